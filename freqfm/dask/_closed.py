"""Recommenders in closed form on a Dask cluster: from products of items that shards add up."""

from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from operator import itemgetter

import numpy as np
from scipy import sparse

from freqfm._input.rows import column_sums, row_sums, with_one_index_type
from freqfm._input.validation import canonical_csr, count_threads, draw_seed
from freqfm.dask._users import RecommenderOnCluster
from freqfm.estimators.progress import announce
from freqfm.estimators.recommenders.closed_form import ease, graph_filter, item_knn
from freqfm.estimators.recommenders.closed_form.base import listed_rows, n_similar
from freqfm.estimators.recommenders.index import sparse_top_k

# Items whose products with all others are added up at a time.
_ITEMS = 1 << 12


def pair_of_ease(X, of_users):
    """Return the rows of items, and the weighted rows of users; and the products with itself."""
    weighted = ease.weighted_rows(X, of_users)
    return with_one_index_type(X).T.tocsr(), weighted, ease.squares_of(X, weighted)


def pair_of_neighbors(X, totals, model):
    """Return the weighted rows of items, and of users; and the products of items with themselves.

    Parameters
    ----------
    X : csr_array
    totals : ndarray of shape (n_items,)
        Of all users, see ``item_knn.weighted``.
    model : ItemKNNRecommender
    """
    rows = sparse.csr_array(item_knn.weighted(model, with_one_index_type(X).T.tocsr(), totals))
    return rows, with_one_index_type(rows.T.tocsr()), row_sums(rows, np.square)


def pair_of_graph(X, sums):
    """Return the rows of items, and of users, whose products are the similarities of items."""
    rows = graph_filter.divided_by_sums(X, sums)
    return rows.T.tocsr(), rows


def totals_in(X, model):
    """Return the sums of ``item_knn.totals_of`` over some users."""
    return item_knn.totals_of(model, with_one_index_type(X).T.tocsr())


def product(pair, begin, end):
    """Return the products of some items with all, of some users."""
    return (pair[0][begin:end] @ pair[1]).astype(np.float64)


def added(begin, *parts):
    """Return the sum of products, float32, added in the order of the shards."""
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return with_one_index_type(canonical_csr(total))


def most_similar(begin, *parts, factors, k, n_threads):
    """Return the items with the largest products times factors, and these, without the item."""
    rows = added(begin, *parts)
    itself = canonical_csr(sparse.eye_array(*rows.shape, k=begin, dtype=np.float32, format="csr"))
    diagonal = sparse.csr_array(sparse.diags_array(factors.astype(np.float32)))
    return sparse_top_k(rows, diagonal, k, exclude=itself, n_threads=n_threads)


class ClosedFormOnCluster(RecommenderOnCluster):
    """A recommender by weights between items; a mixin before the plain estimator.

    Shards multiply the columns of their rows, a block of items at a time; the products are added in
    float64, in the order of the shards.
    """

    def _products(self, X, pairs, reduce):
        """Return what a function makes of the summed products of each block of items.

        Parameters
        ----------
        X : ShardedInteractions
        pairs : list
            Of futures, see ``pair_of_ease``.
        reduce : callable
            Of the number of the first item of a block, and the products of each shard.
        """
        announce(self.verbose, "multiplying items")
        cluster, homes, n_items = X.cluster, X.homes, X.shape[1]
        n_blocks = max(len(homes), -(-n_items // _ITEMS))
        bounds = np.linspace(0, n_items, n_blocks + 1).astype(int).tolist()
        blocks = [block for block in pairwise(bounds) if block[0] < block[1]]

        def found():
            futures = []
            for number, block in enumerate(blocks):
                parts = cluster.submit_each(product, pairs, homes, *block)
                home = homes[number % len(homes)]
                futures.append(cluster.submit(reduce, block[0], *parts, on=home))
            return cluster.gather(futures)

        return cluster.retried(found)

    def _all_products(self, X, pairs):
        """Return the matrix of the products of all items, float32."""
        return sparse.csr_array(sparse.vstack(self._products(X, pairs, added), format="csr"))

    def _best(self, X, pairs, factors, k):
        """Return the ``k`` items with the largest products times factors, and these."""
        options = {"factors": factors, "k": k, "n_threads": count_threads(self.n_jobs)}
        found = self._products(X, pairs, partial(most_similar, **options))
        return [np.concatenate(of_blocks) for of_blocks in zip(*found, strict=True)]

    def transform(self, X):
        """Not available on a cluster: the embeddings would be the rows of ``X`` themselves."""
        raise NotImplementedError(
            f"the embeddings of {type(self).__name__} are the rows of X themselves; use these."
        )


@dataclass(eq=False, repr=False, kw_only=True)
class EASERecommender(ClosedFormOnCluster, ease.EASERecommender):
    """EASE, a regression of every item on the others, on a Dask cluster.

    The model and its parameters are those of :class:`freqfm.EASERecommender`, whose documentation
    describes them. ``fit`` takes a Dask array of NumPy or of sparse blocks, a DataFrame, or a bag
    of sparse matrices: rows are users. Shards add up the products of items; the client regresses.

    Parameters
    ----------
    *args, **params
        Those of :class:`freqfm.EASERecommender`.
    client : distributed.Client, default=None
        None is the current client. It is not pickled.
    n_shards : int, default=None
        Number of shards. None is one per worker, or per partition if these are fewer.

    Attributes
    ----------
    client_ : distributed.Client
        The client that is used: ``client``, or else the current one. Also before ``fit``.
    n_shards_ : int
        Number of shards in ``fit``. All others are those of :class:`freqfm.EASERecommender`.

    See Also
    --------
    freqfm.EASERecommender : The estimator on one machine.

    Notes
    -----
    A default fit takes about 24 CPU seconds for 590,733 interactions of 6,039 users with 3,628
    items (MovieLens-1M), two workers together, on a busy machine.

    If all values of ``X`` are integers and ``user_power=0``, sums are exact: without neighbors the
    model is that of one machine bit for bit, for any number of shards. Else sums are rounded by how
    users are shared out, and the model is that of one machine up to rounding. It does not depend on
    the number of workers. Without neighbors the client needs 24 bytes for each pair of items, else
    32 ``n_neighbors`` for each item; a worker needs the products of 4,096 items with all.

    Examples
    --------
    >>> import dask.array as da
    >>> from distributed import Client
    >>> from freqfm.dask import EASERecommender
    >>> from freqfm.datasets import make_interactions
    >>> X = make_interactions(200, 100, random_state=0)
    >>> with Client(processes=False, n_workers=1, dashboard_address=":0") as client:
    ...     model = EASERecommender(n_shards=2).fit(da.from_array(X.toarray(), chunks=(50, -1)))
    ...     items, scores = model.recommend(users=[0])
    >>> items.shape
    (1, 10)
    """

    _local = ease.EASERecommender

    def _item_weights(self, X):
        lengths, k = np.concatenate(X.lengths), ease.neighbors_of(self, X.shape[1])
        tables = np.split(ease.weights_of_users(self, lengths), X.bounds[1:-1])
        pairs = X.each(pair_of_ease, tables)
        squares = sum(X.cluster.gather(X.cluster.submit_each(itemgetter(2), pairs, X.homes)))
        if k is None:
            return ease.regressed(self, self._all_products(X, pairs), squares, lengths)
        scales = ease.scales_of(squares)
        found, scaled = self._best(X, pairs, scales, n_similar(k, len(scales)))
        similar = ease.similar_products(found, scaled, scales, k)
        return ease.regressed(self, similar, squares, lengths)


@dataclass(eq=False, repr=False, kw_only=True)
class ItemKNNRecommender(ClosedFormOnCluster, item_knn.ItemKNNRecommender):
    """Item-based nearest neighbours on a Dask cluster.

    The model and its parameters are those of :class:`freqfm.ItemKNNRecommender`, whose
    documentation describes them. ``fit`` takes a Dask array of NumPy or of sparse blocks, a
    DataFrame, or a bag of sparse matrices: rows are users. Shards add up the products of items.

    Parameters
    ----------
    *args, **params
        Those of :class:`freqfm.ItemKNNRecommender`.
    client : distributed.Client, default=None
        None is the current client. It is not pickled.
    n_shards : int, default=None
        Number of shards. None is one per worker, or per partition if these are fewer.

    Attributes
    ----------
    client_ : distributed.Client
        The client that is used: ``client``, or else the current one. Also before ``fit``.
    n_shards_ : int
        Number of shards in ``fit``. All others are those of :class:`freqfm.ItemKNNRecommender`.

    See Also
    --------
    freqfm.ItemKNNRecommender : The estimator on one machine.

    Notes
    -----
    A default fit takes about 6 CPU seconds for 590,733 interactions of 6,039 users with 3,628
    items (MovieLens-1M), two workers together, on a busy machine.

    Similarities are sums of weighted values, and rounded by how users are shared out: the model is
    that of one machine up to rounding, and where items are equally similar up to rounding, another
    one may be kept. The results of a number of shards do not depend on the workers.

    Examples
    --------
    >>> import dask.array as da
    >>> from distributed import Client
    >>> from freqfm.dask import ItemKNNRecommender
    >>> from freqfm.datasets import make_interactions
    >>> X = make_interactions(200, 100, random_state=0)
    >>> with Client(processes=False, n_workers=1, dashboard_address=":0") as client:
    ...     model = ItemKNNRecommender(n_shards=2).fit(da.from_array(X.toarray(), chunks=(50, -1)))
    ...     items, scores = model.recommend(users=[0])
    >>> items.shape
    (1, 10)
    """

    _local = item_knn.ItemKNNRecommender

    def _item_weights(self, X):
        n_items, model = X.shape[1], self._new()
        k = item_knn.neighbors_of(self, X, 0)
        self.item_power_ = item_knn.power_of(self, X)
        sums = sum(X.gathered(partial(column_sums, of=np.sqrt)))
        powers = np.where(sums > 0, sums, 1) ** self.item_power_
        totals = sum(X.gathered(partial(totals_in, model=model)))
        pairs = X.each(partial(pair_of_neighbors, model=model), totals)
        if self.weighting in item_knn.OF_UNIT_ROWS:
            squares = sum(X.cluster.gather(X.cluster.submit_each(itemgetter(2), pairs, X.homes)))
            lengths = np.sqrt(np.where(squares > 0, squares, 1))
        else:
            lengths = np.ones(n_items)
        found, scores = self._best(X, pairs, powers / lengths, k)
        return listed_rows(
            found, (scores / (powers * lengths)[:, None]).astype(np.float32), n_items
        )


@dataclass(eq=False, repr=False, kw_only=True)
class GraphFilterRecommender(ClosedFormOnCluster, graph_filter.GraphFilterRecommender):
    """A low-pass filter of the graph of items, on a Dask cluster.

    The model and its parameters are those of :class:`freqfm.GraphFilterRecommender`, whose
    documentation describes them. ``fit`` takes a Dask array of NumPy or of sparse blocks, a
    DataFrame, or a bag of sparse matrices: rows are users. Shards add up the products of items; the
    client finds the eigenvectors, and filters.

    Parameters
    ----------
    *args, **params
        Those of :class:`freqfm.GraphFilterRecommender`.
    client : distributed.Client, default=None
        None is the current client. It is not pickled.
    n_shards : int, default=None
        Number of shards. None is one per worker, or per partition if these are fewer.

    Attributes
    ----------
    client_ : distributed.Client
        The client that is used: ``client``, or else the current one. Also before ``fit``.
    n_shards_ : int
        Number of shards in ``fit``. All others are those of :class:`freqfm.GraphFilterRecommender`.

    See Also
    --------
    freqfm.GraphFilterRecommender : The estimator on one machine.

    Notes
    -----
    A default fit takes about 15 CPU seconds for 590,733 interactions of 6,039 users with 3,628
    items (MovieLens-1M), two workers together.

    The model is that of one machine up to rounding, which depends on how users are shared out. The
    client needs 8 bytes for each pair of items that some users have both of, and as much as one
    machine for the eigenvectors and the weights.

    Examples
    --------
    >>> import dask.array as da
    >>> from distributed import Client
    >>> from freqfm.dask import GraphFilterRecommender
    >>> from freqfm.datasets import make_interactions
    >>> X = make_interactions(200, 100, random_state=0)
    >>> with Client(processes=False, n_workers=1, dashboard_address=":0") as client:
    ...     model = GraphFilterRecommender(32, n_shards=2, random_state=0)
    ...     model = model.fit(da.from_array(X.toarray(), chunks=(50, -1)))
    ...     items, scores = model.recommend(users=[0])
    >>> items.shape
    (1, 10)
    """

    _local = graph_filter.GraphFilterRecommender

    def _item_weights(self, X):
        n, sums = graph_filter.count_components(self, X.shape), X.sums(0)
        products = self._all_products(X, X.each(pair_of_graph, sums))
        graph = graph_filter.graph_of(products, n, draw_seed(self.random_state))
        return graph_filter.filtered(self, X, sums, graph)
