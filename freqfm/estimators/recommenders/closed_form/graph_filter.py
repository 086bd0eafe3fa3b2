"""Filters of the graph of items: smooth histories by the leading directions of all users."""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from functools import partial
from itertools import pairwise
from numbers import Real
from typing import NamedTuple

import numpy as np
from scipy import sparse
from scipy.sparse.csgraph import connected_components
from sklearn.utils import check_random_state

from freqfm._components import NON_NEGATIVE, POSITIVE, POSITIVE_INTEGER
from freqfm._input.rows import column_sums, entries_of, slices, with_one_index_type, with_values
from freqfm._input.validation import check_memory, draw_seed
from freqfm._machine import single_threaded_blas
from freqfm._sklearn import Interval, StrOptions
from freqfm.estimators.progress import announce
from freqfm.estimators.recommenders.closed_form import base
from freqfm.estimators.recommenders.interactions import noise_edge
from freqfm.initializers import orthonormal, rotated

# With n_neighbors="auto", of many items.
_N_NEIGHBORS = 500

# With so many times as many items as neighbors, weights are computed between similar items alone.
_MANY_TIMES = 24

# Numbers of the rows of the filter that a thread computes at a time, or rows of some of them.
_BLOCK_SIZE, _BLOCK_ROWS = 1 << 22, 64

# Iterations that find eigenvectors, and rows of users that are multiplied at a time.
_N_ITER, _ROWS = 3, 1 << 16

# Smaller eigenvalues are rounding errors, and so are weights of less than so many units in the last
# place of the vectors that they are products of.
_LEAST_EIGENVALUE, _ROUNDING = 1e-6, 4 * np.finfo(np.float32).eps

# Of "auto", chosen on validation: by how much the regularization grows with the noise, and the
# power of items without noise.
_GROWTH, _LEAST_POWER, _MOST_POWER = 6.0, 0.2, 0.5


class Graph(NamedTuple):
    """The similarities P of items, the products of the columns of a matrix."""

    rows: Callable  #: of a slice, returns these rows of P, sparse
    vectors: np.ndarray  #: (n_items, r), float32, the leading eigenvectors of P
    eigenvalues: np.ndarray  #: (r,), descending
    parts: Callable  #: returns the connected component of each item, (n_items,)


@dataclass(eq=False, repr=False)
class GraphFilterRecommender(base.ItemWeightsRecommender):
    """A low-pass filter of the graph of items, after GF-CF and ChebyCF.

    Two items are neighbors in a graph if the same users have them. A history is smoothed by a
    filter, which keeps what it has in common with the leading eigenvectors of that graph and damps
    the rest; the result are the scores [1]_ [2]_. Nothing is trained, and users who were not there
    in ``fit`` are scored as all others.

    Parameters
    ----------
    n_components : int, default=512
        Eigenvectors for which the response is exact, at most as many as there are users and items.
    response : {"ridge", "plateau", "linear"}, default="ridge"
        How much of an eigenvector is kept, by its eigenvalue: see the notes.
    regularization : float or "auto", default="auto"
        Of "ridge": the smaller, the more alike are large and small eigenvalues. "auto" is a rule
        from the mean numbers of items and users: see the notes.
    flatness : float, default=1.5
        Of "plateau": the larger, the more alike are eigenvalues of medium size.
    low_pass : float, default=0.3
        Added to the response of eigenvalues above those of noise, ``noise_edge_``.
    item_power : float or "auto", default="auto"
        Weights from item i to item j are multiplied by (n_j / n_i)^item_power, with the sums n of
        the items' values: the larger, the more popular are recommended items. "auto" is 0.2 plus
        ``noise_edge_``, at most 0.5.
    n_neighbors : int, "auto" or None, default="auto"
        Items that an item adds to the scores of: those with the largest weights, or all for None,
        which takes time quadratic in the number of items. "auto" is None for at most 4,096 items,
        else 500.
    n_recommendations : int, default=10
        Number of items that ``predict`` returns, and the k of NDCG in ``score``.
    verbose : int, default=0
        1 and more show what ``fit`` does, and the time left.
    n_jobs : int, default=None
        Threads, at most one per core; None uses all cores. The result does not depend on it.
    random_state : int, RandomState instance or None, default=None
        Seed of the subspace. Results differ by little.

    Attributes
    ----------
    regularization_ : float
        The regularization that was used, with any response.
    item_power_ : float
        The power that was used.
    noise_edge_ : float
        The largest eigenvalue that chance alone would give.
    eigenvalues_ : ndarray of shape (n_components,), float64
        Those of the leading eigenvectors, descending from 1.
    item_weights_ : csr_array of shape (n_items, n_items), float32
        Row i has what an interaction with item i adds to the score of each item.
    item_counts_ : ndarray of shape (n_items,)
        How many users have each item.
    n_features_in_ : int
        Number of items.
    feature_names_in_ : ndarray of shape (n_items,)
        Only if X is a DataFrame whose columns are named by strings.

    Raises
    ------
    ValueError
        If the data cannot be learned from, or if the eigenvectors do not fit into memory.

    See Also
    --------
    EASERecommender : Regressions of items, with a filter of another kind.
    MFRecommender : Vectors of users and items, trained in epochs.

    Notes
    -----
    A default fit takes about 4 CPU seconds for 590,733 interactions of 6,039 users with 3,628 items
    (MovieLens-1M).

    Values of ``X`` are divided by the roots of their sums over the user and over the item; let A be
    the result and P = A'A, with eigenvalues p between 0 and 1. The weight from i to j is

        n_i^-item_power h(P)_ij n_j^item_power,   i != j,

    and 0 for i = j. The response h is

    - "ridge": (1 + c) p / (p + c), as of a ridge regression on A, with c = ``regularization_``;
    - "plateau": 1/2 - sign(x) abs(x)^flatness / 2 with x = 1 - 2 p, that of ChebyCF [2]_;
    - "linear": p, that of GF-CF [1]_, also the limit of "ridge" for large regularization.

    ``low_pass`` is added where p exceeds ``noise_edge_``: the ideal low-pass filter of both papers.
    The eigenvectors are found by three iterations of a random subspace [4]_ with P. Beyond
    ``n_components`` of them the response is linear, with the quotient h / p of the last. ChebyCF
    approximates h by a Chebyshev polynomial of P for each history instead; on Gowalla this takes
    ten times as long and ranks no better: :doc:`results </results_recommenders>`.

    A random sparse graph with n items per user and m users per item has eigenvalues up to about
    ``noise_edge_`` = (n^-1/2 + m^-1/2)^2, apart from the first [3]_. "auto" is
    ``noise_edge_ * exp(6 * noise_edge_)``: sparse data, whose spectrum is mostly noise, get an
    almost linear response.

    With neighbors, and more than 24 times as many items, weights from an item i are computed only
    for the ``4 n_neighbors`` items j with the largest P_ij n_j^item_power.

    Weights of less than four units in the last place of float32, relative to the vectors that they
    are products of, are 0, and so are those between items that no chain of users and items
    connects. ``recommend`` returns only items with a positive score, and -1 where there are too
    few. ``transform`` returns the rows of ``X`` themselves, a sparse matrix. ``similar_items`` and
    ``similar_users`` compare cosines of the columns and rows of ``X``.

    Time is O((n_interactions + n_items n_neighbors) n_components + sum of squared lengths of
    histories). Memory: 8 bytes for each item and neighbor, and for each interaction 4 bytes, or 8
    if the values of ``X`` are not all one. While ``fit`` runs, it takes 12 bytes more for each
    interaction, twice as many for each neighbor, about 12 bytes for each item and component, as
    many for each user, up to 65,536 of them, and 50 MB for each thread.

    References
    ----------
    .. [1] Y. Shen, Y. Wu, Y. Zhang, C. Shan, J. Zhang, K. B. Letaief, D. Li. "How Powerful is Graph
       Convolution for Recommendation?". CIKM 2021, equation (15).
    .. [2] C. Kim, J. Sung, Y. Han, J. Lee. "Graph Spectral Filtering with Chebyshev Interpolation
       for Recommendation". SIGIR 2025.
    .. [3] V. A. Marchenko, L. A. Pastur. "Distribution of eigenvalues for some sets of random
       matrices". Mathematics of the USSR-Sbornik 1(4), 1967.
    .. [4] N. Halko, P. G. Martinsson, J. A. Tropp. "Finding structure with randomness". SIAM Review
       53(2), 2011, algorithm 4.4.

    Examples
    --------
    >>> from freqfm import GraphFilterRecommender
    >>> from freqfm.datasets import make_interactions
    >>> X = make_interactions(200, 100, random_state=0)
    >>> model = GraphFilterRecommender(n_components=32, random_state=0).fit(X)
    >>> items, scores = model.recommend(users=[0, 1], n_recommendations=3)
    >>> items.shape
    (2, 3)
    """

    _parameter_constraints = {
        "n_components": POSITIVE_INTEGER,
        "response": [StrOptions({"ridge", "plateau", "linear"})],
        "regularization": [*NON_NEGATIVE, StrOptions({"auto"})],
        "flatness": POSITIVE,
        "low_pass": NON_NEGATIVE,
        "item_power": [Interval(Real, None, None, closed="neither"), StrOptions({"auto"})],
        "n_neighbors": [*POSITIVE_INTEGER, None, StrOptions({"auto"})],
        "random_state": ["random_state"],
    }

    n_components: int = 512
    _: KW_ONLY
    response: str = "ridge"
    regularization: float | str = "auto"
    flatness: float = 1.5
    low_pass: float = 0.3
    item_power: float | str = "auto"
    n_neighbors: int | str | None = "auto"
    random_state: object = None

    def _item_weights(self, X):
        sums = column_sums(X)
        return filtered(self, X, sums, self._decomposed(X, sums))

    def _decomposed(self, X, sums):
        """Return the graph of items and its leading eigenvectors."""
        n, matrix = count_components(self, X.shape), divided_by_sums(X, sums)

        def multiplied(basis):
            # A table of all users would cost most.
            moved = np.zeros_like(basis)
            for part in slices(matrix.shape[0], _ROWS):
                moved += matrix[part].T @ (matrix[part] @ basis)
            return moved

        vectors, values = _leading(multiplied, X.shape[1], n, draw_seed(self.random_state))
        sources = sparse.csr_array(with_one_index_type(matrix.T.tocsr()))
        parts = partial(_components_of, X)
        return Graph(lambda part: sources[part] @ matrix, vectors, values, parts)

    def _respond(self, p):
        """Return the response to eigenvalues."""
        if self.response == "linear":
            return p
        if self.response == "ridge":
            return (1 + self.regularization_) * p / (p + self.regularization_)
        x = 1 - 2 * p
        return (1 - np.sign(x) * np.abs(x) ** self.flatness) / 2

    def _n_kept(self, n_items):
        """Return how many weights of an item are kept."""
        k = base.count_neighbors(self.n_neighbors, n_items, _N_NEIGHBORS)
        return n_items if k is None else k

    def _filter(self, graph, powers):
        """Return the items with the largest weights from each item, and these, (n_items, k)."""
        p = np.maximum(graph.eigenvalues, _LEAST_EIGENVALUE)
        kept = self._respond(p)
        slope = kept[-1] / p[-1]
        kept = kept + self.low_pass * (p > self.noise_edge_) - slope * p
        whole = Filter(
            graph,
            graph.vectors * kept.astype(np.float32),
            (graph.vectors * powers[:, None]).astype(np.float32),
            (slope * powers).astype(np.float32),
        )
        n_items = len(powers)
        k = self._n_kept(n_items)
        if n_items > _MANY_TIMES * k:
            find, step = partial(whole.to_similar, n=base.n_similar(k, n_items)), _BLOCK_ROWS
        else:
            step = max(1, _BLOCK_SIZE // n_items)
            find = partial(whole.to_all, parts=graph.parts())
        found, weights = np.empty((n_items, k), np.int32), np.empty((n_items, k), np.float32)

        def best(part):
            items, values = find(part)
            if k < n_items:
                some = np.argpartition(values, -k, axis=1)[:, -k:]
                items, values = (np.take_along_axis(of, some, axis=1) for of in (items, values))
            found[part] = np.where(values != 0, items, -1)
            weights[part] = values / powers[part, None]

        base.run_blocks(self, best, n_items, step, "filtering items")
        return found, weights


@dataclass
class Filter:
    """What items add to the scores of others: products of vectors, and some of P."""

    graph: Graph
    sources: np.ndarray  #: (n_items, r), float32
    targets: np.ndarray  #: (n_items, r), float32
    linear: np.ndarray  #: (n_items,), float32, factors of the columns of P

    def __post_init__(self):
        self._errors = _ROUNDING * np.linalg.norm(self.sources, axis=1)
        self._reach = np.linalg.norm(self.targets, axis=1)

    def to_all(self, part, parts):
        """Return all items for each item of a slice, and what it adds to their scores.

        Nothing between items of different ``parts``.
        """
        block = self.sources[part] @ self.targets.T
        block += self.graph.rows(part).toarray() * self.linear
        rows = np.arange(part.stop - part.start)
        block[rows, part.start + rows] = 0
        block[abs(block) <= self._errors[part, None] * self._reach] = 0
        # Vectors of equal eigenvalues mix items that no users connect.
        if parts.any():
            block[parts[part, None] != parts] = 0
        return np.broadcast_to(np.arange(len(self.targets)), block.shape), block

    def to_similar(self, part, n):
        """Return the same of the ``n`` items for which the part of P is largest."""
        rows = self.graph.rows(part)
        found = np.zeros((rows.shape[0], n), np.int32)
        weights = np.zeros((rows.shape[0], n), np.float32)
        for row, (begin, end) in enumerate(pairwise(rows.indptr)):
            item, items, values = part.start + row, rows.indices[begin:end], rows.data[begin:end]
            others = items != item
            items, values = items[others], values[others]
            values *= self.linear[items]
            if n < len(items):
                some = np.argpartition(values, -n)[-n:]
                items, values = items[some], values[some]
            values += self.targets[items] @ self.sources[item]
            values[abs(values) <= self._errors[item] * self._reach[items]] = 0
            found[row, : len(items)], weights[row, : len(items)] = items, values
        return found, weights


def filtered(model, X, sums, graph):
    """Return the weights between items by Interactions, the sums of items, and their Graph."""
    model.noise_edge_ = noise_edge(X, model.item_counts_)
    model.regularization_, model.item_power_ = model.regularization, model.item_power
    if model.regularization == "auto":
        model.regularization_ = model.noise_edge_ * float(np.exp(_GROWTH * model.noise_edge_))
    if model.item_power == "auto":
        model.item_power_ = min(_LEAST_POWER + model.noise_edge_, _MOST_POWER)
    model.eigenvalues_ = graph.eigenvalues
    powers = np.where(sums > 0, sums, 1) ** model.item_power_
    found, weights = model._filter(graph, powers)
    return base.listed_rows(found, weights, X.shape[1])


def count_components(model, shape):
    """Return how many eigenvectors are found, if they fit into memory."""
    n, n_items = min(int(model.n_components), *shape), shape[1]
    check_memory(
        n * (min(_ROWS, shape[0]) + n_items) + n_items * model._n_kept(n_items),
        f"n_components={n} and n_neighbors={model.n_neighbors} for {shape[0]:,} users and "
        f"{n_items:,} items",
        "Set fewer.",
    )
    announce(model.verbose, f"finding {n} eigenvectors of items")
    return n


def divided_by_sums(X, sums):
    """Return interactions, each divided by the roots of the sums of its user and of its item."""
    of_users = np.zeros(X.shape[0])
    for _, values, users, _ in entries_of(X):
        np.add.at(of_users, users, values.astype(np.float64))
    return with_values(X, lambda x, users, items: x / np.sqrt(of_users[users] * sums[items]))


def graph_of(similarities, n, seed):
    """Return the Graph of a matrix P that is computed, float32, with ``n`` eigenvectors."""
    vectors, values = _leading(similarities.__matmul__, similarities.shape[0], n, seed)

    def parts():
        return connected_components(similarities, directed=False)[1]

    return Graph(similarities.__getitem__, vectors, values, parts)


def _leading(multiplied, n_items, n, seed):
    """Return the leading eigenvectors and eigenvalues of the matrix that multiplies tables."""
    basis = check_random_state(seed).normal(size=(n_items, n)).astype(np.float32)
    with single_threaded_blas():
        for _ in range(_N_ITER):
            basis = multiplied(orthonormal(basis))
        basis = orthonormal(basis)
        values, rotation = np.linalg.eigh((basis.T @ multiplied(basis)).astype(np.float64))
        return rotated(basis, rotation[:, ::-1]), np.maximum(values[::-1], 0)


def _components_of(X):
    """Return the connected component of each item, in the graph of users and their items."""
    n_items = X.shape[1]
    parts = np.arange(n_items)
    for _, _, users, items in entries_of(X):
        # The graph of all entries would take 40 bytes for each: of some, nodes are the components.
        firsts = X.indices[X.indptr[users]]
        edges = np.ones(len(items), dtype=np.float32), (parts[firsts], parts[items])
        graph = sparse.csr_array(edges, (n_items, n_items))
        parts = connected_components(graph, directed=False)[1][parts]
    return parts
