"""Holding out part of every user's history, and the steps before a recommender."""

from hashlib import blake2b
from numbers import Number
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import TransformedTargetRegressor
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import FixedThresholdClassifier, TunedThresholdClassifierCV
from sklearn.pipeline import Pipeline
from sklearn.utils import check_array
from sklearn.utils.validation import check_is_fitted

from freqfm._input import validation
from freqfm._input.frames import is_frame
from freqfm._input.interactions import InteractionTable, with_groups
from freqfm._input.rows import is_canonical, slices, with_one_index_type

# The attribute with the only model of those that change what is made of its scores or targets.
_MODELS = {
    FrozenEstimator: "estimator",
    FixedThresholdClassifier: "estimator_",
    TunedThresholdClassifierCV: "estimator_",
    TransformedTargetRegressor: "regressor_",
}


def steps_of(estimator):
    """Return the transformers before the last step of a pipeline or search, and this step.

    Parameters
    ----------
    estimator : estimator, Pipeline, search, or one around a single model
        They may contain each other. Around a model are thresholds, a calibration, a transformed
        target.

    Returns
    -------
    transformers : list of estimator
    last : estimator
        A search itself if it has kept no best estimator.
    """
    transformers = []
    while True:
        if hasattr(estimator, "best_estimator_"):
            estimator = estimator.best_estimator_
        elif isinstance(estimator, Pipeline):
            # Pipelines with only "passthrough" steps are never unfitted, and have no last one.
            transformers += [
                step for _, step in estimator.steps[:-1] if step not in (None, "passthrough")
            ]
            estimator = estimator.steps[-1][1]
        elif len(inside := models_in(estimator)) == 1:
            estimator = inside[0]
        else:
            return transformers, estimator


def models_in(estimator):
    """Return the fitted models in a meta-estimator that divides or changes their scores, if any."""
    if isinstance(estimator, CalibratedClassifierCV):
        return [part.estimator for part in getattr(estimator, "calibrated_classifiers_", [])]
    names = [name for kind, name in _MODELS.items() if isinstance(estimator, kind)]
    return [vars(estimator)[name] for name in names if name in vars(estimator)]


def last_step(estimator):
    """Return the transformers before the recommender of a pipeline or search, and the recommender.

    Parameters
    ----------
    estimator : estimator, Pipeline or search
        Fitted; pipelines and searches may contain each other.

    Returns
    -------
    transformers : list of estimator
    recommender : estimator

    Raises
    ------
    NotFittedError
        If it is not fitted.
    TypeError
        If the last step is not a recommender.
    ValueError
        If a search has kept no best estimator.
    """
    transformers, last = steps_of(estimator)
    if hasattr(last, "fit") and hasattr(last, "refit") and hasattr(last, "cv_results_"):
        raise ValueError(
            f"{type(last).__name__} was fitted with refit={last.refit!r} and kept no best "
            f"estimator; set refit to True, or to the name of a score."
        )
    searching = hasattr(last, "refit") and hasattr(last, "cv")
    if not hasattr(last, "recommend") and not searching:
        found = repr(last) if isinstance(last, str) or last is None else type(last).__name__
        where = "" if last is estimator else f", the last step of {type(estimator).__name__},"
        raise TypeError(
            f"{found}{where} has no method recommend; give a recommender such as MFRecommender, or "
            f"a pipeline or a search that ends in one."
        )
    check_is_fitted(last)
    return transformers, last


def transform(transformers, X):
    """Return ``X`` after all transformers."""
    for step in transformers:
        X = step.transform(X)
    return X


# splitmix64 (Steele, Lea, Flood. "Fast splittable pseudorandom number generators". OOPSLA 2014).
_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)

_HALF = np.uint64(32)

# Entries whose order is drawn at a time.
_ENTRIES = 1 << 20


def holdout_interactions(
    X,
    fraction: float = 0.2,
    *,
    min_history: int = 1,
    random_state: int | np.random.RandomState | np.random.Generator | None = None,
    user: str | int = "auto",
    item: str | int = "auto",
) -> Any:
    """Hold out some interactions of every user, at random.

    Parameters
    ----------
    X : sparse matrix or array of shape (n_users, n_items), or table of interactions
        Histories, one per row. A DataFrame, a list of tuples, or an array of objects or strings is
        a table of interactions, one per row, as for :class:`~freqfm.InteractionRecommender`; so is
        anything if ``user`` or ``item`` is given.
    fraction : float, default=0.2
        Share of a user's items that is held out, rounded, but at least one.
    min_history : int, default=1
        Number of a user's items to keep, at least. Users who have no more keep all of them.
    random_state : int, RandomState, Generator or None, default=None
        Seed of the choice.
    user, item : int or str, default="auto"
        Columns of a table's users and items, as in :class:`~freqfm.InteractionRecommender`.

    Returns
    -------
    history : csr_array of shape (n_users, n_items), or table
        The interactions kept, in X's type; in float64 if pairs repeat and their sums exceed it.
        For a table: its rows, in order, as a table of the same type.
    held_out : csr_array of shape (n_users, n_items), or table
        The interactions held out; ``history + held_out`` is ``X``. Rows of a table that repeat a
        pair of user and item stay together.

    Raises
    ------
    ValueError
        If ``fraction`` or ``min_history`` is out of range, if ``X`` is malformed, or if it is a
        list of lists, which may be a matrix or a table.

    See Also
    --------
    holdout_by_content : Makes the same choice for the same row, whatever the other rows.

    Examples
    --------
    >>> import numpy as np
    >>> from freqfm.model_selection import holdout_interactions
    >>> X = np.array([[1, 1, 0, 1, 1], [0, 0, 2, 0, 0]])
    >>> history, held_out = holdout_interactions(X, 0.5, random_state=0)
    >>> history.sum(axis=1)
    array([2, 2])
    >>> held_out.sum(axis=1)
    array([2, 0])
    >>> table = [("ann", "tea"), ("ann", "jam"), ("bob", "tea"), ("bob", "jam")]
    >>> history, held_out = holdout_interactions(table, 0.5, random_state=0)
    >>> held_out
    [('ann', 'tea'), ('bob', 'tea')]
    """
    validation.check_integer("min_history", min_history, 0)
    source = open_histories(X, user, item)
    generator = np.random.default_rng(validation.draw_seed(random_state))
    keys = generator.integers(2**64, size=source.histories.nnz, dtype=np.uint64)
    fraction = validation.check_fraction("fraction", fraction)
    return source.parts(_choose(source.histories, keys, fraction, min_history))


def holdout_by_content(
    X, fraction: float = 0.2, *, seed: int = 0, user: str | int = "auto", item: str | int = "auto"
) -> Any:
    """Hold out some interactions of every user, chosen by the row's own items.

    The choice looks random, but depends only on the items in a row and the seed. So users can be
    reordered, left out or spread over folds, and every candidate of a search is tested on the same
    held-out interactions.

    Parameters
    ----------
    X : sparse matrix or array of shape (n_users, n_items), or table of interactions
        Histories, one per row. A DataFrame, a list of tuples, or an array of objects or strings is
        a table of interactions, one per row, as for :class:`~freqfm.InteractionRecommender`; so is
        anything if ``user`` or ``item`` is given.
    fraction : float, default=0.2
        Share of a user's items that is held out, rounded, but at least one of two or more, and
        never all. Users with one item keep it.
    seed : int, default=0
        Different seeds give different choices.
    user, item : int or str, default="auto"
        Columns of a table's users and items, as in :class:`~freqfm.InteractionRecommender`.

    Returns
    -------
    history : csr_array of shape (n_users, n_items), or table
        The interactions kept, in X's type; in float64 if pairs repeat and their sums exceed it.
        For a table: its rows, in order, as a table of the same type.
    held_out : csr_array of shape (n_users, n_items), or table
        The interactions held out; ``history + held_out`` is ``X``. Rows of a table that repeat a
        pair of user and item stay together.

    Raises
    ------
    ValueError
        If ``fraction`` is out of range, if ``X`` is malformed, or if it is a list of lists, which
        may be a matrix or a table.

    See Also
    --------
    holdout_interactions : Holds out at random.

    Examples
    --------
    >>> import numpy as np
    >>> from freqfm.model_selection import holdout_by_content
    >>> X = np.array([[1, 1, 0, 1, 1], [0, 0, 2, 0, 0], [1, 1, 0, 1, 1]])
    >>> history, held_out = holdout_by_content(X, 0.5)
    >>> held_out.sum(axis=1)
    array([2, 0, 2])
    >>> bool((held_out[[0]] != held_out[[2]]).nnz)
    False
    """
    validation.check_integer("seed", seed)
    source = open_histories(X, user, item)
    X = source.histories
    salt = _mix(np.array([int(seed) % 2**64], dtype=np.uint64))
    hashes = _mix(source.item_numbers() ^ salt)
    # Sums of integers do not depend on the order. reduceat cannot handle empty rows.
    filled = np.flatnonzero(np.diff(X.indptr))
    keys = hashes
    if len(filled):
        row_hashes = np.add.reduceat(hashes, X.indptr[filled])
        keys = _mix(hashes ^ np.repeat(_mix(row_hashes), np.diff(X.indptr)[filled]))
    return source.parts(_choose(X, keys, validation.check_fraction("fraction", fraction), 1))


def open_histories(X, user, item):
    """Return the histories in a matrix or a table, as an object with a common interface."""
    X = with_groups(X)
    if isinstance(X, (list, tuple)) and not all(isinstance(row, tuple) for row in X):
        raise ValueError(
            "X is a list, but not of tuples: it may be a matrix of users x items or a table of "
            "interactions. Pass np.array(X) for a matrix, a list of tuples for a table."
        )
    objects = getattr(getattr(X, "dtype", None), "kind", None) in ("O", "S", "T", "U")
    if (user, item) == ("auto", "auto") and (
        sparse.issparse(X) or not (isinstance(X, (list, tuple)) or is_frame(X) or objects)
    ):
        return _Matrix(X)
    return _Interactions(X, user, item)


class _Matrix:
    """Histories in a matrix: sorted, no duplicates, no zeros, original dtype."""

    def __init__(self, X):
        if sparse.issparse(X):
            validation.check_finite("X", X)
            X = _summed(with_one_index_type(validation.checked_csr(X)), X.dtype)
        else:
            X = check_array(X, dtype=None, ensure_all_finite=False, input_name="X")
            validation.check_finite("X", X)
            # scipy supports neither half precision nor foreign byte orders.
            dtype = np.float32 if X.dtype == np.float16 else X.dtype.newbyteorder("=")
            X = sparse.csr_array(X.astype(dtype, copy=False))
        validation.check_finite("X", X)
        X.eliminate_zeros()
        self.histories = X

    def item_numbers(self):
        """Return a number that identifies the item of each entry."""
        return self.histories.indices.astype(np.uint64)

    def parts(self, chosen):
        """Return the matrix without the chosen entries, and the chosen entries."""
        return self._without(chosen), self._without(~chosen)

    def _without(self, left_out):
        X = self.histories.copy()
        X.data[left_out] = 0
        X.eliminate_zeros()
        return X


def _summed(X, dtype):
    """Return a copy in the given type, or in float64 if that type cannot hold its sums."""
    X = X.copy() if is_canonical(X) else validation.summed_csr(X)
    with np.errstate(invalid="ignore", over="ignore"):
        data = X.data.astype(dtype)
    if dtype.kind == "f" or (data == X.data).all():
        X.data = data
    return X


class _Interactions:
    """Histories in a table; their entries are its distinct pairs of user and item."""

    def __init__(self, X, user, item):
        self.table = InteractionTable(X)
        places = self.table.find(user=user, item=item)
        (user_ids, users), (self._items, items) = self.table.codes(places)
        n_items = len(self._items)
        pairs, self._pair_of_row = np.unique(users * n_items + items, return_inverse=True)
        users, items = np.divmod(pairs, n_items)
        indptr = np.searchsorted(users, np.arange(len(user_ids) + 1))
        self.histories = sparse.csr_array(
            (np.ones(len(pairs)), items, indptr), shape=(len(user_ids), n_items)
        )

    def item_numbers(self):
        """Return a number that identifies the item of each entry, whatever the other rows are."""
        # Equal numbers have equal hashes in any type; the hashes of strings change per process.
        texts = (
            repr(hash(item) if isinstance(item, Number) else item) for item in self._items.tolist()
        )
        digests = b"".join(blake2b(text.encode(), digest_size=8).digest() for text in texts)
        return np.frombuffer(digests, dtype="<u8").astype(np.uint64)[self.histories.indices]

    def parts(self, chosen):
        """Return the rows without the chosen pairs of user and item, and the rows with them."""
        chosen = chosen[self._pair_of_row]
        return self.table.take(np.flatnonzero(~chosen)), self.table.take(np.flatnonzero(chosen))


def _choose(X, keys, fraction, min_history):
    """Return a mask of the entries of each row that have the smallest keys, 64 random bits."""
    lengths = np.diff(X.indptr)
    wanted = np.maximum(np.round(fraction * lengths), 1).astype(lengths.dtype)
    # No row is longer than the total number of entries.
    wanted = np.minimum(wanted, np.maximum(lengths - min(int(min_history), X.nnz), 0))
    chosen = np.zeros(X.nnz, dtype=bool)
    # Part by part: a part takes about 50 bytes for each of its entries.
    step = max(1, _ENTRIES * len(lengths) // max(1, X.nnz))
    for part in slices(len(lengths), step):
        row_lengths, begin, end = lengths[part], X.indptr[part.start], X.indptr[part.stop]
        rows = np.repeat(np.arange(len(row_lengths), dtype=np.uint64), row_lengths)
        # Sorting row and half a key as one number takes an eighth of the time of a lexsort. The
        # sort is stable: of equal halves the lower column comes first, wherever the row is.
        order = np.argsort(rows << _HALF | keys[begin:end] >> _HALF, kind="stable")
        rank = np.arange(len(rows)) - np.repeat(np.cumsum(row_lengths) - row_lengths, row_lengths)
        chosen[begin:end][order] = rank < np.repeat(wanted[part], row_lengths)
    return chosen


def _mix(numbers):
    """Return well-mixed 64-bit hashes of 64-bit numbers."""
    numbers = numbers + _STEP
    numbers = (numbers ^ (numbers >> np.uint64(30))) * _FIRST
    numbers = (numbers ^ (numbers >> np.uint64(27))) * _SECOND
    return numbers ^ (numbers >> np.uint64(31))
