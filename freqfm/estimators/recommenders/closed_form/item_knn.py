"""Item-based nearest neighbours: items that the same users have, without training."""

from dataclasses import KW_ONLY, dataclass
from numbers import Real

import numpy as np

from freqfm._components import NON_NEGATIVE, POSITIVE_INTEGER
from freqfm._input.rows import (
    column_sums,
    count_columns,
    row_sums,
    with_one_index_type,
    with_values,
)
from freqfm._input.validation import check_memory
from freqfm._sklearn import Interval, StrOptions
from freqfm.estimators.recommenders.closed_form import base
from freqfm.estimators.recommenders.interactions import noise_edge

# Of item_power="auto", chosen on validation: by how much the power grows with the noise, the power
# without noise, and the largest.
_GROWTH, _LEAST_POWER, _MOST_POWER = 2.0, -0.25, 0.5

# The weightings whose weighted values of an item are divided by their length.
OF_UNIT_ROWS = "cosine", "tfidf"


@dataclass(eq=False, repr=False)
class ItemKNNRecommender(base.ItemWeightsRecommender):
    """Item-based nearest neighbours: the score of an item is its similarity to the user's items.

    Two items are similar if the same users have them [1]_. For each item the most similar ones are
    kept, and a user's score of an item is the sum of its similarities to the items that the user
    has. Nothing is trained, and users who were not there in ``fit`` are scored as all others.

    Parameters
    ----------
    n_neighbors : int, default=200
        Similar items that are kept for each item.
    weighting : {"conditional", "cosine", "tfidf", "bm25"}, default="conditional"
        How interactions are weighted before items are compared: see the notes.
    item_power : float or "auto", default="auto"
        Weights from item i to item j are multiplied by (n_j / n_i)^item_power, with the sums n of
        the roots of the items' values: the larger, the more popular are recommended items. "auto"
        follows the density of ``X`` for "conditional", see the notes, and is 0 for the others.
    bm25_k1 : float, default=1.2
        Of "bm25": the larger, the later large values of ``X`` stop to count more.
    bm25_b : float, default=0.75
        Of "bm25": how much less the users of popular items count, between 0 and 1.
    n_recommendations : int, default=10
        Number of items that ``predict`` returns, and the k of NDCG in ``score``.
    verbose : int, default=0
        1 shows what ``fit`` does and the remaining time, as a bar in terminals and notebooks if
        rich is installed, else as lines. 2 always prints lines.
    n_jobs : int, default=None
        Threads, at most one per core; None uses all cores. The result does not depend on it.

    Attributes
    ----------
    item_power_ : float
        The power that was used.
    item_weights_ : csr_array of shape (n_items, n_items), float32
        Row j has the similarities of the ``n_neighbors`` items that are most similar to item j.
    item_counts_ : ndarray of shape (n_items,)
        How many users have each item.
    n_features_in_ : int
        Number of items.
    feature_names_in_ : ndarray of shape (n_items,)
        Only if X is a DataFrame whose columns are named by strings.

    Raises
    ------
    ValueError
        If the data cannot be learned from.

    See Also
    --------
    ALSRecommender : Vectors of users and items, in seconds.

    Notes
    -----
    A default fit takes about 0.5 CPU seconds for 590,733 interactions of 6,039 users with 3,628
    items (MovieLens-1M). The first one also compiles, for about 1.

    With w_ui the values of ``X``, n_u the number of items of user u and W_i the sum of the values
    of item i, the weighted values are, for the similarity sum_u a_ui a_uj of the items i and j,

    - "conditional": w_ui^(1/2), divided by the fourth root of its sum over the items of a user, and
      by the root of its sum over the users of an item;
    - "cosine": w_ui, divided by the root of their sum of squares over the users of an item;
    - "tfidf": w_ui^(1/2) max(0, log(n_items / (1 + n_u))), divided likewise: users who have many
      items say little about each of them;
    - "bm25": that logarithm times w_ui (k1 + 1) / (w_ui + k1 (1 - b + b W_i / mean W)), not divided
      [2]_: popular items are similar to many others.

    With ``item_power=0.5`` "conditional" estimates the probability that someone who has item i has
    item j, in which users of few items count more [3]_; with 0 it is close to a cosine. Where data
    are sparse, cosines are largest between items of hardly any users, by chance; where they are
    dense, frequent items are recommended too often even by cosines. "auto" is ::

        2 (N^-1/2 + M^-1/2)^2 - 0.25, and at most 0.5,

    with the mean numbers N of items of a user and M of users of an item, of those that have any.
    The square is the ``noise_edge_`` of :class:`GraphFilterRecommender`: the eigenvalue up to which
    random interactions get. On validation parts this was within 4 % of the NDCG of the best of
    eight powers, and nearly always above the other weightings:
    :doc:`results </results_recommenders>`.

    ``recommend`` returns only items with a positive score, and -1 where there are too few.
    ``transform`` returns the rows of ``X`` themselves, a sparse matrix. ``similar_items`` compares
    weighted values, of all items and not of the neighbours alone, and ``similar_users`` compares
    cosines of the values of users.

    Memory: 8 bytes for each neighbour, and for each interaction 4 bytes, or 8 if the values of
    ``X`` are not all one; while ``fit`` and ``similar_items`` run, 16 more for
    each interaction.

    References
    ----------
    .. [1] B. Sarwar, G. Karypis, J. Konstan, J. Riedl. "Item-Based Collaborative Filtering
       Recommendation Algorithms". WWW 2001.
    .. [2] S. Robertson, H. Zaragoza. "The Probabilistic Relevance Framework: BM25 and Beyond".
       Foundations and Trends in Information Retrieval 3(4), 2009.
    .. [3] M. Deshpande, G. Karypis. "Item-Based Top-N Recommendation Algorithms". ACM Transactions
       on Information Systems 22(1), 2004, section 4.2.

    Examples
    --------
    >>> from freqfm import ItemKNNRecommender
    >>> from freqfm.datasets import make_interactions
    >>> X = make_interactions(200, 100, random_state=0)
    >>> model = ItemKNNRecommender(n_neighbors=20).fit(X)
    >>> items, scores = model.recommend(users=[0, 1], n_recommendations=3)
    >>> items.shape
    (2, 3)
    """

    _parameter_constraints = {
        "n_neighbors": POSITIVE_INTEGER,
        "weighting": [StrOptions({"conditional", "cosine", "tfidf", "bm25"})],
        "item_power": [Interval(Real, None, None, closed="neither"), StrOptions({"auto"})],
        "bm25_k1": NON_NEGATIVE,
        "bm25_b": [Interval(Real, 0, 1, closed="both")],
    }

    n_neighbors: int = 200
    _: KW_ONLY
    weighting: str = "conditional"
    item_power: float | str = "auto"
    bm25_k1: float = 1.2
    bm25_b: float = 0.75

    def _item_weights(self, X):
        n_items, k = X.shape[1], neighbors_of(self, X, X.nnz)
        self.item_power_ = power_of(self, X)
        X = with_one_index_type(X)
        sums = column_sums(X, np.sqrt)
        powers = np.where(sums > 0, sums, 1) ** self.item_power_
        rows = self._compared_rows(X)
        rows = with_values(rows, lambda values, items, _: values * powers[items])
        found, scores = base.most_similar(self, rows, rows, k)
        # Which items are most similar does not depend on the factors of an item's own row.
        scores /= powers[:, None] ** 2
        return base.listed_rows(found, scores, n_items)

    def _compared_rows(self, X):
        rows = X.T.tocsr()
        compared = weighted(self, rows, totals_of(self, rows))
        return base.unit_rows(compared) if self.weighting in OF_UNIT_ROWS else compared


def neighbors_of(model, X, n_held):
    """Return how many neighbors an item has, if they fit beside the interactions held here."""
    n_items = X.shape[1]
    k = min(int(model.n_neighbors), n_items)
    check_memory(
        2 * n_items * k + 2 * n_held,
        f"n_neighbors={model.n_neighbors} for {n_items:,} items and {X.nnz:,} interactions",
        "Set fewer neighbors, or leave out items with few interactions.",
    )
    return k


def power_of(model, X):
    """Return the power of items' popularity, by Interactions or their matrix."""
    if model.item_power != "auto":
        return float(model.item_power)
    if model.weighting != "conditional":
        return 0.0
    edge = noise_edge(X, model.item_counts_)
    return min(_LEAST_POWER + _GROWTH * edge, _MOST_POWER)


def totals_of(model, rows):
    """Return the sums over users that ``weighted`` needs: of roots, or of the values."""
    return row_sums(rows, np.sqrt if model.weighting == "conditional" else np.asarray)


def weighted(model, rows, totals):
    """Return the weighted values of items before they are divided by their length.

    Parameters
    ----------
    model : ItemKNNRecommender
    rows : csr_array of shape (n_items, n)
        All values of some users.
    totals : ndarray of shape (n_items,)
        What ``totals_of`` returns for all users.
    """
    if model.weighting == "cosine":
        return rows
    n_items = rows.shape[0]
    if model.weighting == "conditional":
        of_users, of_items = column_sums(rows, np.sqrt) ** 0.25, np.sqrt(totals)
        return with_values(rows, lambda x, i, u: np.sqrt(x) / of_users[u] / of_items[i])
    of_users = np.maximum(0, np.log(n_items / (1 + count_columns(rows))))
    if model.weighting == "tfidf":
        return with_values(rows, lambda x, i, u: np.sqrt(x) * of_users[u])
    k1, b = float(model.bm25_k1), float(model.bm25_b)
    lengths = k1 * (1 - b + b * totals / totals.mean())
    return with_values(rows, lambda x, i, u: of_users[u] * x * (k1 + 1) / (x + lengths[i]))
