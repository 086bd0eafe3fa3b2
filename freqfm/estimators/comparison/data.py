"""The interactions of a comparison, a matrix or a table: how they are divided, and how to rank."""

import numpy as np
from scipy.sparse import issparse
from sklearn.base import clone
from sklearn.model_selection import check_cv

from freqfm._input.columns import role_of
from freqfm._input.frames import is_frame, is_lazy
from freqfm._input.interactions import InteractionTable, is_auto, with_groups
from freqfm._input.rows import take_rows
from freqfm._input.validation import canonical_csr
from freqfm._messages import cut
from freqfm.estimators.interactions.recommender import InteractionRecommender
from freqfm.model_selection import GlobalTimeSplit, WarmStartKFold, holdout_interactions
from freqfm.model_selection._holdout import open_histories
from freqfm.model_selection._steps import last_step, transform

OF_LATE = "most popular of late"

# Its values halve with each such share of the interactions: the best of
# 1, 3, 5, 10, 20 and 50 % on validation windows of MovieLens-100K, next to the best of 1M.
_HALF_LIFE = 0.05

# A numeric array with as many columns or fewer is a table, not a matrix of users x items.
_COLUMNS_OF_TABLES = 4

# Parameters by which a table is read.
_READ_BY = "user", "item", "value", "dislikes_up_to", "dislikes", "unknown"


def fitted(name, estimator, data, X):
    """Return the recommender of a name, fitted to a part of the data or to all."""
    model = clone(estimator)
    return data.fit_of_late(model, X) if name == OF_LATE else model.fit(X)


def open_interactions(X, members, cv, seed):
    """Return the :class:`MatrixData` or :class:`TableData`, and the parts to train on and to test.

    Raises
    ------
    TypeError, ValueError
        If there are none; the message says how columns are named here.
    """
    try:
        data = _open(X, members, cv)
        splits = data.splits(cv, seed)
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(
            f"interactions cannot be divided: {cut(error, 1000)} Here columns are named by a "
            f"splitter, cv=GlobalTimeSplit(user=..., item=..., time=...), or by an "
            f"InteractionRecommender among the estimators; a DataFrame that is a matrix has to be "
            f"given as an array or a sparse matrix."
        ) from None
    if not all(part.nnz if issparse(part) else len(part) for parts in splits for part in parts):
        raise ValueError("interactions are too few: nothing is left to train on, or to test.")
    return data, splits


def _open(X, members, cv):
    """Return the data of a matrix or a table."""
    X = with_groups(X)
    if is_lazy(X):
        raise TypeError(f"it is a {type(X).__name__}; give a table in memory.")
    options = {role: getattr(cv, role) for role in ("user", "item") if hasattr(cv, role)}
    for _, member in members:
        if isinstance(member, InteractionRecommender):
            options = {name: getattr(member, name) for name in _READ_BY}
            break
    shape = getattr(X, "shape", ())
    if not is_frame(X) and not issparse(X) and len(shape) == 2 and shape[1] <= _COLUMNS_OF_TABLES:
        defaults = {"user": 0, "item": 1}
        options |= {n: at for n, at in defaults.items() if is_auto(options.get(n, "auto"))}
    source = open_histories(X, options.get("user", "auto"), options.get("item", "auto"))
    if not hasattr(source, "table"):
        return MatrixData(source)
    return TableData(source.table, InteractionRecommender(**options), cv)


class MatrixData:
    """Interactions in a matrix, whose rows are users and stay so in every part."""

    has_times = False

    def __init__(self, source):
        self._source = source
        self.all = canonical_csr(source.histories)

    def splits(self, cv, seed):
        """Return the parts to train on and to test."""
        if cv is None:
            return [holdout_interactions(self.all, random_state=seed)]
        parts, n = [], self._source.histories.nnz
        for _, test in _splitter(cv, seed).split(np.transpose(self._source.histories.nonzero())):
            parts.append(self._source.parts(np.isin(np.arange(n), test)))
        return parts

    def wrapped(self, member):
        """Return the recommender that is fitted to the parts."""
        return member

    def first_rows(self, X, n):
        """Return the histories of the first users that have any."""
        return X[np.flatnonzero(np.diff(X.indptr))[:n]]

    def find_held_out(self, model, test):
        """Return the ids of users, relevant items, and a recommender with a query for them."""
        users = np.flatnonzero(np.diff(test.indptr))
        _, recommender = last_step(model)
        return users, take_rows(canonical_csr(test), users), recommender, {"users": users}


class TableData:
    """Interactions in a table with ids, and maybe times."""

    def __init__(self, table, reader, cv):
        self._reader, self.all = reader, table.given
        self._time, self.has_times = getattr(cv, "time", "auto"), True
        if not hasattr(cv, "time"):
            usual = (reader.user, reader.item) in (("auto", "auto"), (0, 1))
            found = usual and table.shape[1] > 3
            self.has_times = found if table.names is None else "time" in map(role_of, table.names)

    def splits(self, cv, seed):
        """Return the parts to train on and to test."""
        columns = {"user": self._reader.user, "item": self._reader.item}
        if cv is None and not self.has_times:
            return [holdout_interactions(self.all, random_state=seed, **columns)]
        cv = GlobalTimeSplit(**columns) if cv is None else _splitter(cv, seed, columns)
        table = InteractionTable(self.all)
        return [tuple(map(table.take, map(np.asarray, part))) for part in cv.split(self.all)]

    def wrapped(self, member):
        """Return the recommender that is fitted to the parts."""
        if not hasattr(member, "recommend") or hasattr(member, "_find_held_out"):
            return member  # pipelines, and recommenders of tables
        return InteractionRecommender(**self._reader.get_params(deep=False) | {"estimator": member})

    def first_rows(self, X, n):
        """Return the first rows of a table."""
        table = InteractionTable(X)
        return table.take(np.arange(min(n, table.shape[0])))

    def find_held_out(self, model, test):
        """Return the ids of users, relevant items, and a recommender with a query for them."""
        transformers, recommender = last_step(model)
        query, relevant = recommender._find_held_out(transform(transformers, test))
        users = recommender.user_ids_[query["users"]]
        return users, relevant, recommender.estimator_, query

    def fit_of_late(self, model, X):
        """Fit to values that halve with each twentieth of the interactions that is later."""
        table, columns = InteractionTable(X), {"user": model.user, "item": model.item}
        place = table.find(**columns, value=model.value, time=self._time)["time"]
        ranks = np.arange(table.shape[0]) if place is None else table.ranks(place)
        later = len(ranks) - np.searchsorted(np.sort(ranks), ranks, side="right")
        users, items, values = model.fit(X)._read(X, reset=False)
        codes = model._find("user", users, "users"), model._find("item", items, "items")
        values = values * 0.5 ** (later / (_HALF_LIFE * len(ranks)))
        model.estimator_.fit(model._matrix(*codes, values))
        return model


def _splitter(cv, seed, columns=None):
    """Return a splitter of interactions."""
    if isinstance(cv, int):
        return WarmStartKFold(cv, random_state=seed, **(columns or {}))
    return check_cv(cv)
