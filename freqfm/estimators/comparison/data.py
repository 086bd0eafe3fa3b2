"""The interactions of a comparison, a matrix or a table: how they are divided, and how to rank."""

from numbers import Integral

import numpy as np
from scipy.sparse import issparse
from sklearn.base import clone
from sklearn.model_selection import check_cv

from freqfm._input.frames import is_frame, is_lazy
from freqfm._input.interactions import InteractionTable, is_auto, with_groups
from freqfm._input.rows import entries_where, take_rows, with_one_index_type
from freqfm._input.validation import canonical_csr
from freqfm._messages import cut
from freqfm.estimators.interactions.recommender import InteractionRecommender
from freqfm.model_selection import GlobalTimeSplit, WarmStartKFold, holdout_interactions
from freqfm.model_selection._holdout import open_histories
from freqfm.model_selection._steps import last_step, transform

OF_LATE = "most popular of late"

# Its values halve with each such share of the interactions that is later: of 1, 3, 5, 10, 20 and
# 50 % the best on validation windows of MovieLens-100K, and next to the best of MovieLens-1M.
_HALF_LIFE = 0.05

# A numeric array with as many columns or fewer is a table, not a matrix of users x items.
_COLUMNS_OF_TABLES = 4

# Parameters by which a table is read.
_READ_BY = "user", "item", "value", "dislikes_up_to", "dislikes", "unknown"


class ComparedData:
    """Interactions in a matrix, whose rows stay users in every part, or in a table with ids.

    Parameters
    ----------
    X : matrix or table
    members : list of (str, estimator)
        The first ``InteractionRecommender`` among them says how a table is read.
    cv : object
        Else a splitter does, if it names columns.

    Attributes
    ----------
    all : csr_array or table
    has_times : bool
    """

    def __init__(self, X, members, cv):
        X = with_groups(X)
        if is_lazy(X):
            raise TypeError(f"it is a {type(X).__name__}; give a table in memory.")
        cv = cv if hasattr(cv, "split") else None  # numbers of NumPy have an item, too
        options = {role: getattr(cv, role) for role in ("user", "item") if hasattr(cv, role)}
        readers = [of for _, of in members if isinstance(of, InteractionRecommender)]
        if readers:
            options = {name: getattr(readers[0], name) for name in _READ_BY}
        reader, shape = InteractionRecommender(**options), getattr(X, "shape", ())
        is_array = not is_frame(X) and not issparse(X) and len(shape) == 2
        if is_array and shape[1] <= _COLUMNS_OF_TABLES and is_auto(reader.user):
            reader.set_params(user=0, item=1 if is_auto(reader.item) else reader.item)
        source = open_histories(X, reader.user, reader.item)
        self._reader, self._time, self.has_times = None, getattr(cv, "time", "auto"), False
        if not hasattr(source, "table"):
            self.all = canonical_csr(source.histories)
            return
        self._reader, self.all = reader, source.table.given
        self.has_times = hasattr(cv, "time") or source.table.has_times(reader.user, reader.item)

    def take(self, rows):
        """Return some rows of a table, or interactions of a matrix, by an array of int."""
        if self._reader is not None:
            return InteractionTable(self.all).take(rows)
        return entries_where(self.all, np.isin(np.arange(self.all.nnz), rows))

    def splits(self, cv, seed):
        """Return the parts to train on and to test."""
        columns, rows = {}, self.all
        if self._reader is None:
            rows = np.transpose(with_one_index_type(self.all).nonzero())
        else:
            columns = {"user": self._reader.user, "item": self._reader.item}
        if cv is None and not self.has_times:
            return [holdout_interactions(self.all, random_state=seed, **columns)]
        if cv is None:
            cv = GlobalTimeSplit(**columns)
        elif isinstance(cv, Integral):
            cv = WarmStartKFold(cv, random_state=seed, **columns)
        splits = check_cv(cv).split(rows)
        return [tuple(self.take(np.asarray(part)) for part in parts) for parts in splits]

    def wrapped(self, member):
        """Return the recommender that is fitted to the parts."""
        of_matrices = hasattr(member, "recommend") and not hasattr(member, "_find_held_out")
        if self._reader is None or not of_matrices:
            return member
        return clone(self._reader).set_params(estimator=member)

    def fit(self, name, estimator, X):
        """Return the recommender of a name, fitted to a part of the data, or to all."""
        model = clone(estimator).fit(X)
        if name != OF_LATE:
            return model
        table, columns = InteractionTable(X), {"user": model.user, "item": model.item}
        place = table.find(**columns, value=model.value, time=self._time)["time"]
        # Splitters take rows in order for time=None.
        ranks = np.arange(table.shape[0]) if place is None else table.ranks(place)
        later = len(ranks) - np.searchsorted(np.sort(ranks), ranks, side="right")
        users, items, values = model._read(X, reset=False)
        codes = model._find("user", users, "users"), model._find("item", items, "items")
        model.estimator_.fit(
            model._matrix(*codes, values * 0.5 ** (later / (_HALF_LIFE * len(ranks))))
        )
        return model

    def find_held_out(self, model, test):
        """Return the ids of users, relevant items, and a recommender with a query for them."""
        transformers, recommender = last_step(model)
        if self._reader is None:
            users = np.flatnonzero(np.diff(test.indptr))
            relevant = take_rows(canonical_csr(test), users)
            return users, relevant, recommender, {"users": users}
        query, relevant = recommender._find_held_out(transform(transformers, test))
        return recommender.user_ids_[query["users"]], relevant, recommender.estimator_, query


def open_interactions(X, members, cv, seed):
    """Return the :class:`ComparedData`, and the parts to train on and to test.

    Raises
    ------
    TypeError, ValueError
        If there are none; the message says how columns are named here.
    """
    try:
        data = ComparedData(X, members, cv)
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
