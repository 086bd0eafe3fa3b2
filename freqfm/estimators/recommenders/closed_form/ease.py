"""EASE: a regression of every item on the others, in closed form."""

from dataclasses import KW_ONLY, dataclass
from numbers import Real

import numpy as np
from scipy import sparse

from freqfm import backends
from freqfm._components import NON_NEGATIVE, POSITIVE_INTEGER
from freqfm._input.rows import entries_of, with_one_index_type, with_values
from freqfm._input.validation import canonical_csr, check_memory
from freqfm._machine import single_threaded_blas
from freqfm._sklearn import Interval, StrOptions
from freqfm.estimators.progress import announce
from freqfm.estimators.recommenders.closed_form import base
from freqfm.estimators.recommenders.index import rows_of

# With n_neighbors="auto", of many items.
_N_NEIGHBORS = 100

# Popular items are neighbors of many: products are divided by this power of their sums of squares.
_POPULARITY_POWER = 0.3

# Numbers of the systems of equations that a thread solves at a time.
_BLOCK_SIZE = 1 << 21

_REAL = [Interval(Real, None, None, closed="neither")]
_SHARE = [Interval(Real, 0, 1, closed="left")]


@dataclass(eq=False, repr=False)
class EASERecommender(base.ItemWeightsRecommender):
    """EASE, embarrassingly shallow autoencoders: every item is regressed on the others.

    The score of an item is a weighted sum over the user's items, and the weights are those of a
    ridge regression that predicts the item's interactions by those of the other items [1]_. There
    is nothing to train in epochs and nothing random, and users who were not there in ``fit`` are
    scored as all others.

    Parameters
    ----------
    regularization : float or "auto", default="auto"
        Penalty on squared weights, the same for all items. "auto" is twice the mean number of items
        of users who have any: the more items a user has, the more the regressions have to share
        among.
    dropout : float, default=0.5
        Share of a history's items that regressions have to do without, on average: adds
        ``dropout / (1 - dropout)`` times the sum of squares of an item to its penalty, so that
        weights from popular items are not too certain (EDLAE [2]_).
    user_power : float, default=0.3
        Users of n items are weighted by n^-user_power, so that those who have many do not decide
        alone.
    item_power : float, default=0.0
        Weights from item i to item j are multiplied by (n_i / n_j)^item_power, with the sums of
        squares n of the items: above 0, less popular items are recommended. With ``user_power``
        this is the normalisation by counts of DAN [3]_.
    diagonal : float, default=0.0
        The largest weight of an item from itself. Above 0, regressions of items that the others
        predict badly are penalised less (RDLAE [4]_).
    n_neighbors : int, "auto" or None, default="auto"
        Items that each item is regressed on: those most similar to it, or all for None, which takes
        time cubic in the number of items. "auto" is None for at most 4,096 items, else 100.
    n_recommendations : int, default=10
        Number of items that ``predict`` returns, and the k of NDCG in ``score``.
    verbose : int, default=0
        1 shows what ``fit`` does and the remaining time, as a bar in terminals and notebooks if
        rich is installed, else as lines. 2 always prints lines.
    n_jobs : int, default=None
        Threads, at most one per core; None uses all cores. The result does not depend on it.

    Attributes
    ----------
    regularization_ : float
        The penalty that was used.
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
        If the data cannot be learned from, or if the products of all pairs of items do not fit into
        memory.

    See Also
    --------
    ItemKNNRecommender : Similarities of items in place of regressions.
    MFRecommender : Vectors of users and items, trained in epochs.

    Notes
    -----
    A default fit takes about 6 CPU seconds for 590,733 interactions of 6,039 users with 3,628 items
    (MovieLens-1M).

    With the values X, whose rows are weighted as above, G = X'X and the penalties c_i =
    ``regularization_`` + dropout / (1 - dropout) G_ii, let P be the inverse of G + diag(c). The
    weight from i to j is -P_ij / P_jj [1]_; with ``diagonal`` > 0 it is -P_ij times (1 - diagonal)
    / P_jj, or times c_j where 1 - c_j P_jj would be at most ``diagonal`` [4]_.

    With neighbors, P is the inverse for item j and its neighbors alone: those items i with the
    largest G_ij / G_ii^0.3. Products in G with other items than the ``4 n_neighbors`` first ones by
    this order count as 0 there. Time and quality: :doc:`results </results_recommenders>`.

    ``recommend`` returns only items with a positive score, and -1 where there are too few.
    ``transform`` returns the rows of ``X`` themselves, a sparse matrix. ``similar_items`` and
    ``similar_users`` compare cosines of the columns and rows of ``X``.

    Time is O(n_items n_neighbors^3 + sum of squared lengths of histories). Memory: 8 bytes for each
    neighbor, and about 100 more while ``fit`` runs; for all items as neighbors 8 bytes for each
    pair of items, and 32 in ``fit``; and for each interaction 4 bytes, or 8 if the values of ``X``
    are not all one.

    References
    ----------
    .. [1] H. Steck. "Embarrassingly Shallow Autoencoders for Sparse Data". WWW 2019, equation (8).
    .. [2] H. Steck. "Autoencoders that don't overfit towards the Identity". NeurIPS 2020.
    .. [3] S. Park, J. Yoon, H. Kim, J. Lee. "Why is Normalization Necessary for Linear
       Recommenders?" SIGIR 2025.
    .. [4] J. Moon, H. Kim, J. Lee. "It's Enough: Relaxing Diagonal Constraints in Linear
       Autoencoders for Recommendation". SIGIR 2023.

    Examples
    --------
    >>> from freqfm import EASERecommender
    >>> from freqfm.datasets import make_interactions
    >>> X = make_interactions(200, 100, random_state=0)
    >>> model = EASERecommender().fit(X)
    >>> items, scores = model.recommend(users=[0, 1], n_recommendations=3)
    >>> items.shape
    (2, 3)
    """

    _parameter_constraints = {
        "regularization": [*NON_NEGATIVE, StrOptions({"auto"})],
        "dropout": _SHARE,
        "user_power": _REAL,
        "item_power": _REAL,
        "diagonal": _SHARE,
        "n_neighbors": [*POSITIVE_INTEGER, None, StrOptions({"auto"})],
    }

    regularization: float | str = "auto"
    _: KW_ONLY
    dropout: float = 0.5
    user_power: float = 0.3
    item_power: float = 0.0
    diagonal: float = 0.0
    n_neighbors: int | str | None = "auto"

    def _item_weights(self, X):
        lengths, k = np.diff(X.indptr), neighbors_of(self, X.shape[1])
        weighted = weighted_rows(X, weights_of_users(self, lengths))
        squares = squares_of(X, weighted)
        if k is None:
            announce(self.verbose, f"multiplying all pairs of {X.shape[1]:,} items")
            products = with_one_index_type(X).T @ weighted
        else:
            products = _products_of_similar(self, X, weighted, squares, k)
        return regressed(self, products, squares, lengths)


def neighbors_of(model, n_items):
    """Return how many neighbors an item has, if these fit into memory; None is all others."""
    k = base.count_neighbors(model.n_neighbors, n_items, _N_NEIGHBORS)
    advice = "Set n_neighbors, to 100 for instance."
    if k is not None:
        advice = "Set fewer, or leave out items with few interactions."
    n_products = n_items if k is None else base.n_similar(k, n_items)
    check_memory(4 * n_items * n_products, f"n_neighbors={k} for {n_items:,} items", advice)
    return k


def weights_of_users(model, lengths):
    """Return the weights of users by how many items they have; the mean interaction has 1."""
    of_users = np.maximum(lengths, 1.0) ** -model.user_power
    return of_users * (lengths.sum() / (of_users @ lengths))


def regressed(model, products, squares, lengths):
    """Return the weights between items.

    Parameters
    ----------
    model : EASERecommender
    products : csr_array of shape (n_items, n_items), or tuple
        Products of the columns of the matrix and of the weighted one; or, with neighbors, what
        ``similar_products`` returns.
    squares : ndarray of shape (n_items,)
        The products of items with themselves.
    lengths : ndarray of shape (n_users,)
        How many items users have.
    """
    model.regularization_ = model.regularization
    if model.regularization == "auto":
        model.regularization_ = 2 * lengths.sum() / np.count_nonzero(lengths)
    penalties = model.regularization_ + squares * (model.dropout / (1 - model.dropout))
    if sparse.issparse(products):
        weights, left = _regress_on_all(products, squares + penalties, model.verbose)
    else:
        weights, left = _regress_on_similar(model, *products, squares + penalties)
    # The penalty's share of what the other items leave of an item, c_j P_jj.
    shares = penalties / np.maximum(left, np.finfo(np.float32).tiny)
    scales = np.where(1 - shares > model.diagonal, 1 - model.diagonal, shares)
    counts = np.maximum(squares, 1) ** model.item_power
    weights.data *= np.repeat(counts, np.diff(weights.indptr)).astype(np.float32)
    weights.data *= (scales / counts).astype(np.float32)[weights.indices]
    return weights


def weighted_rows(X, of_users):
    """Return a matrix whose rows are multiplied by weights."""
    return with_values(X, lambda values, users, _: values * of_users[users])


def squares_of(X, weighted):
    """Return the products of the columns of a matrix and of the weighted one, float64."""
    squares = np.zeros(X.shape[1])
    for part, values, _, items in entries_of(X):
        np.add.at(squares, items, weighted.data[part] * values.astype(np.float64))
    return squares


def _regress_on_all(gram, diagonal, verbose):
    """Return the weights between all items, and 1 / P_jj."""
    n_items = len(diagonal)
    gram = gram.toarray().astype(np.float64)
    gram[np.diag_indices(n_items)] = np.where(diagonal > 0, diagonal, 1)
    announce(verbose, "regressing every item on all others")
    with single_threaded_blas():
        inverse = np.linalg.inv(gram)
    left = 1 / np.diag(inverse)
    weights = -inverse * left
    np.fill_diagonal(weights, 0)
    return sparse.csr_array(weights.astype(np.float32)), left


def _products_of_similar(model, X, weighted, squares, k):
    """Return a symmetric matrix of products of similar items; the similar ones and their products.

    These have shape (n_items, k), with the item -1 where there are fewer.
    """
    scales, n_products = scales_of(squares), base.n_similar(k, len(squares))
    scaled = with_values(X, lambda values, _, items: values * scales[items])
    found, products = base.most_similar(model, weighted.T.tocsr(), scaled.T, n_products)
    announce(model.verbose, "collecting the products of similar items")
    return similar_products(found, products, scales, k)


def scales_of(squares):
    """Return the factors by which products with items are compared."""
    return np.where(squares > 0, squares, 1) ** -_POPULARITY_POWER


def similar_products(found, scaled, scales, k):
    """Return a symmetric matrix of products; similar items and their products, (n_items, k).

    Parameters
    ----------
    found : ndarray of shape (n_items, n_similar)
        The items whose scaled products with an item are largest, -1 where there are fewer.
    scaled : ndarray of shape (n_items, n_similar)
    scales : ndarray of shape (n_items,)
        See ``scales_of``.
    k : int
    """
    n_items = len(scales)
    products = np.where(found >= 0, scaled / scales[found], 0).astype(np.float32)
    similar = found[:, :k].copy(), products[:, :k].copy()
    gram = with_one_index_type(canonical_csr(base.listed_rows(found, products, n_items)))
    return canonical_csr(gram.maximum(gram.T.tocsr())), *similar


def _regress_on_similar(model, gram, similar, products, diagonal):
    """Return the weights of each item from its similar ones, and 1 / P_jj."""
    n_items, k = similar.shape
    backend, rows, left = backends.get("cpu"), rows_of(gram), diagonal.copy()
    step = max(1, _BLOCK_SIZE // k**2)
    # For the places without an item.
    diagonal = np.append(np.where(diagonal > 0, diagonal, 1), 1).astype(np.float32)

    def solve(part):
        blocks = backend.sparse_blocks(rows, similar[part], 1)
        blocks[:, np.arange(k), np.arange(k)] = diagonal[similar[part]]
        solved = np.linalg.solve(blocks, products[part, :, None])[..., 0]
        left[part] -= (products[part] * solved).sum(axis=1)
        products[part] = solved

    base.run_blocks(model, solve, n_items, step, f"regressing every item on at most {k} others")
    return canonical_csr(base.listed_rows(similar, products, n_items).T), left
