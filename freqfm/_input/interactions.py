"""Tables of interactions in any container, and the roles of their columns."""

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping, Set
from numbers import Integral
from operator import itemgetter
from os import PathLike

import numpy as np
from scipy import sparse
from sklearn.utils import check_array

from freqfm._input import frames, ids
from freqfm._messages import cut, shorten, shown, warn_once

# Default positions of the columns in tables without names.
_PLACES = {"user": 0, "item": 1, "value": 2, "time": 3}

# Tables without names have at most this many columns, unless it is said which ones to read.
_MOST_COLUMNS = 10

# The share of rows with zeros in place of both ids above which a table looks like a matrix.
_EMPTY = 0.4

# The advice of errors.
_FOR_MATRICES = (
    "fit a recommender that takes matrices, such as MFRecommender, and split its users with KFold"
)
ADVICE_FOR_NONE = {"value": ", or pass value=None to count every interaction as 1"}
ADVICE_FOR_VALUES = (
    ", such as value=None; if low values are dislikes, pass dislikes_up_to= the highest of them"
)

# Rows of a lazy table that are read at a time.
_ROWS_OF_CHUNK = 1 << 18


class InteractionTable:
    """A table of interactions: an array, a list of tuples or a DataFrame, read column by column.

    Parameters
    ----------
    X : array-like or DataFrame of shape (n_interactions, n_columns)
        Users and items may also be in the index of a Series or DataFrame, as pandas groups them.
    name : str, default="X"
        Of the argument, for errors. Others than "X" may have no rows.

    Attributes
    ----------
    shape : tuple of int
    given : array or DataFrame
        What it was made from.
    all_names : list of str or None
        Names of a DataFrame's columns; None for an array, and for a DataFrame whose names are
        integers.
    names : list of str or None
        The same, but None if names only number the columns.

    Raises
    ------
    ValueError, TypeError
        If ``X`` is not two-dimensional, has no rows, is sparse or complex, or is a DataFrame that
        cannot be read.
    """

    def __init__(self, X, name="X"):
        X = with_groups(X)
        self.names, self.all_names, self.given, self._name = None, None, X, name
        if frames.is_frame(X):
            names, self._native = frames.open_frame(X, name)
            twice = [name for name, n in Counter(map(str, names)).items() if n > 1]
            if twice:
                raise ValueError(
                    f"{name} has several columns of the name {shorten(twice)}; rename them."
                )
            self.shape = X.shape[0], len(names)
            if not all(isinstance(name, Integral) for name in names):
                self.all_names = list(map(str, names))
            if not frames.only_numbered(names):
                self.names = self.all_names
        else:
            if sparse.issparse(X):
                raise TypeError(
                    f"X is a sparse matrix of shape {X.shape}, where a table of interactions is "
                    f"expected. Pass its users and items, np.column_stack(X.nonzero()), or "
                    f"{_FOR_MATRICES}."
                )
            refuse_lazy(X, name)
            if isinstance(X, (Iterator, Mapping, Set)):
                raise TypeError(
                    f"X is a {type(X).__name__}; give the interactions as a list of tuples, an "
                    f"array or a DataFrame."
                )
            columns = _columns_of(X)
            n_rows = len(columns[0]) if len(columns) else len(X)
            self.shape = n_rows, len(columns)
            self._native = columns.__getitem__
        if self.shape[0] == 0 and name == "X":
            raise ValueError(
                f"X has 0 sample(s) (shape={self.shape}) while a minimum of 1 is required: give at "
                f"least one interaction."
            )

    def column(self, place):
        """Return the column at a position, as an array."""
        column = self._native(place)
        return column if isinstance(column, np.ndarray) else frames.to_numpy(column)

    def has_times(self, user, item):
        """Return whether there is a column of times, by its name or its usual position."""
        if self.names is not None:
            return "time" in map(frames.role_of, self.names)
        usual = all(is_auto(key) or key == at for at, key in enumerate((user, item)))
        return usual and self.shape[1] > 3

    def find(self, **wanted):
        """Return the position of the column for each role, or None where there is none.

        Parameters
        ----------
        **wanted : int, str, "auto" or None
            By role ("user", "item", "value", "time"): a position, the name of a DataFrame's
            column, "auto" for the column with a usual name (see :mod:`freqfm._input.frames`) or,
            without names, in the usual position, or None for no column. Give users and items
            first.

        Returns
        -------
        places : dict of str to (int or None)

        Raises
        ------
        ValueError
            If a column does not exist, if two roles share one, if names are ambiguous, if times
            are where values are expected, or if this looks like a matrix of users x items.
        TypeError
            If a column is given as anything else.
        """
        if self.shape[1] < 2 and "item" in wanted:
            raise ValueError(
                f"X has {self.shape[1]} feature(s) (shape={self.shape}) while a minimum of 2 is "
                f"required: a column of users and a column of items."
            )
        self.check_is_table(wanted)
        places = {
            role: self.place_of(role, key)
            for role, key in wanted.items()
            if not is_auto(key) or role == "dislikes"
        }
        for role in wanted:
            if role not in places:
                places[role] = (self._usual_place if self.names is None else self._usual_name)(
                    role, places
                )
        for role, place in places.items():
            others = [name for name in places if name != role and places[name] == place]
            if place is not None and others:
                advice = ADVICE_FOR_VALUES if {role, others[0]} == {"value", "dislikes"} else ""
                raise ValueError(
                    f"{role} and {others[0]} would both be column {place} of X; separate them with "
                    f"{role}=... and {others[0]}=...{advice}"
                )
        return places

    def place_of(self, role, key):
        """Return the position of a column that is given by name or position."""
        if key is None and role in ("value", "time", "dislikes"):
            return None
        if isinstance(key, str):
            if self.names is not None and key in self.names:
                return self.names.index(key)
            found = "whose columns have no names"
            if self.names is not None:
                found = f"which has {shorten(self.names)}"
            raise ValueError(
                f"{role}={shown(key)} is not a column of {self._name}, {found}; name one of its "
                f"columns, or give a position{ADVICE_FOR_NONE.get(role, '')}."
            )
        if not isinstance(key, Integral) or isinstance(key, bool):
            raise TypeError(f"{role}={shown(key)} must be a column's position or name, or 'auto'.")
        n_columns = self.shape[1]
        if not -n_columns <= key < n_columns:
            raise ValueError(
                f"{role}={key} is not a column of {self._name}, which has {n_columns} columns; "
                f"give a position from 0 to {n_columns - 1}."
            )
        return int(key) % n_columns

    def _usual_name(self, role, places):
        """Return the only column with a usual name for this role."""
        found = [place for place, name in enumerate(self.names) if frames.role_of(name) == role]
        if len(found) > 1:
            found = [place for place in found if place not in places.values()]
        if len(found) == 1:
            return found[0]
        if role == "value" and not found:
            others = set(range(len(self.names))) - {places.get("user"), places.get("item")}
            # Counts of groups of users and items have no other column.
            is_counted = len(others) == 1 and frames.is_count(self.names[min(others)])
            return others.pop() if is_counted else None
        several = f"several columns of {role}s, {shorten(self.names[place] for place in found)},"
        advice = {
            "value": "value= the right one, or value=None to count every interaction as 1",
            "time": "time= its name, or time=None if the rows are in order of time",
        }.get(
            role,
            "user=..., item=... with the names of the right columns, or fit a recommender that "
            "takes matrices, such as MFRecommender, if the columns are items",
        )
        raise ValueError(
            f"{role}='auto' finds {several if found else f'no column of {role}s'} in X, whose "
            f"columns are {shorten(self.names)}. Pass {advice}."
        )

    def _usual_place(self, role, places):
        """Return the position of a role in tables without names: users, items, values, times."""
        place = _PLACES[role]
        if role in ("user", "item"):
            return place
        usual = (places["user"], places["item"]) == (0, 1) and self.shape[1] > place
        if usual and self._has_times(_PLACES["value"]):
            advice = "value=None to count every interaction as 1, or value=2 if they are values"
            if role == "time":
                advice = "time=2 if they are, or time=3 if the last column holds the times"
            raise ValueError(
                f"{role}='auto' finds what looks like times in column 2 of X, where values are "
                f"expected. Pass {advice}."
            )
        if usual:
            return place
        if role == "time":
            raise ValueError(
                f"time='auto' finds no column of times in X: it has {self.shape[1]} columns "
                f"without names, of which the fourth would be taken after users, items and values. "
                f"Pass time= its position, or time=None if the rows are in order of time."
            )
        return None

    def warn_about_values(self, places, others=()):
        """Warn if ratings are used as weights, or if ignored columns might be weights.

        ``others`` are the positions of columns that are read as something else.
        """
        names = range(self.shape[1]) if self.names is None else self.names
        read = ", ".join(
            f"{role}={shown(names[place])}" for role, place in places.items() if place is not None
        )
        place = places["value"]
        if place is None:
            ignored = [
                name
                for place, name in enumerate(names)
                if place not in (*places.values(), *others) and frames.role_of(name) != "time"
            ]
            if ignored:
                warn_once(
                    f"X is read with {read}: every interaction counts as 1, and columns are "
                    f"ignored, {shorten(ignored)}. Pass value= the column of weights if there is "
                    f"one, value=None to ignore these silently."
                )
        elif self.names is not None and frames.is_rating(names[place]):
            warn_once(
                f"X is read with {read}: ratings are weights, so that low ones count as interest "
                f"too. Pass dislikes_up_to=2, for instance, if ratings up to 2 are dislikes, "
                f"value=None to count every interaction as 1 (having dropped the low ratings, for "
                f"instance), value={shown(names[place])} to use ratings silently."
            )

    def check_is_table(self, wanted):
        """Raise if this looks like a matrix of users x items; warn if it may be one.

        Tables have names, or ids that are no numbers, or it is said which columns to read. A matrix
        has a column for each item, and in the first two of them many rows without either.
        """
        n_rows, n_columns = self.shape
        guessed = is_auto(wanted.get("user")) and is_auto(wanted.get("item"))
        if self.names is not None or n_columns < 2 or not guessed:
            return
        some = slice(None, None, max(1, n_rows >> 12))
        entries = ids.as_floats(np.array([self.column(place)[some] for place in (0, 1)]))
        if entries is None:
            return
        n_empty = np.count_nonzero((np.isnan(entries) | (entries == 0)).all(axis=0))
        sparse_rows = n_empty > max(2, _EMPTY * entries.shape[1])
        wide = n_columns > len(_PLACES)
        # pandas names the axis of the columns if it makes these of the values of another column.
        pivoted = getattr(getattr(self.given, "columns", None), "name", None) is not None
        if pivoted or n_columns > _MOST_COLUMNS or (wide and sparse_rows):
            raise ValueError(
                f"X of shape {self.shape} looks like a matrix of users x items, where a table of "
                f"interactions is expected, one in each row. If it is a matrix, {_FOR_MATRICES}; "
                f"if it is a table, pass user=0, item=1."
            )
        fractions = n_columns > 2 and (np.trunc(entries) != entries).any(axis=1).all()
        if wide or sparse_rows or fractions:
            warn_once(
                f"X of shape {self.shape} is read as a table of interactions: users in column 0, "
                f"items in column 1, values in column 2. If it is a matrix of users x items, "
                f"{_FOR_MATRICES}; if it is a table, pass user=0, item=1."
            )

    def _has_times(self, place):
        """Return whether most numbers of a column are in the range of times."""
        numbers = ids.as_floats(self.column(place))
        return numbers is not None and 2 * np.count_nonzero(ids.are_times(numbers)) > len(numbers)

    def take(self, rows):
        """Return some rows, as a table of the type that was given."""
        if isinstance(self.given, (list, tuple)):
            return [self.given[row] for row in rows.tolist()]
        if hasattr(self.given, "iloc"):
            return self.given.iloc[rows]
        return self.given.take(rows) if hasattr(self.given, "column_names") else self.given[rows]

    def ids(self, role, place):
        """Return a column of ids; see :func:`as_ids`."""
        return ids.as_ids(self.column(place), f"X's column of {role}s")

    def distinct_ids(self, role, place):
        """Return ids of a column, and which of them each row has.

        Of Arrow's columns each id is converted once, not once for each row.
        """
        column = self._native(place)
        if hasattr(column, "dictionary_encode") and not column.null_count:
            if hasattr(column.type, "value_type"):  # of a dictionary, which may hold other ids
                column = column.cast(column.type.value_type)
            with contextlib.suppress(NotImplementedError):  # lists, for which there is an error
                column = column.dictionary_encode().unify_dictionaries().combine_chunks()
                known = ids.as_ids(frames.to_numpy(column.dictionary), f"X's column of {role}s")
                return known, column.indices.to_numpy()
        return self.ids(role, place), slice(None)

    def codes(self, places):
        """Return, for users and for items, the distinct ids and the codes of the rows."""
        return [
            ids.unique_codes(self.ids(role, places[role]), f"X's column of {role}s")
            for role in ("user", "item")
        ]

    def numbers(self, role, place):
        """Return a column of numbers or truth values as float64.

        Raises
        ------
        ValueError
            If it holds anything but finite numbers.
        """
        values, name = self.column(place), f"X's column of {role.removesuffix('s')}s ({place})"
        try:
            if values.dtype.kind in "mM":
                raise TypeError(f"found {values.dtype}")
            numbers = values.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"{name} must hold numbers ({cut(error)}); pass {role}= the right column, or "
                f"{role}=None to ignore it."
            ) from None
        ids.check_present(numbers, name)
        return numbers

    def ranks(self, place):
        """Return ranks of a column of times; equal times have equal ranks.

        Raises
        ------
        ValueError, TypeError
            If a time is missing, and as in :func:`time_ranks`.
        """
        name = "X's column of times"
        column = self._native(place)
        times = frames.times_of(column)
        values = ids.natural(times if isinstance(times, np.ndarray) else frames.to_numpy(times))
        ids.check_present(values, name)
        if getattr(frames.dtype_of(column), "ordered", False) and hasattr(column, "cat"):
            return column.cat.codes.to_numpy()
        if type(frames.dtype_of(column)).__name__ == "Enum":
            return column.to_physical().to_numpy()
        return ids.time_ranks(values, name)


def refuse_lazy(X, name):
    """Raise if this is a path, or a table that is read chunk by chunk."""
    if isinstance(X, (str, PathLike)) or frames.is_lazy(X):
        raise TypeError(
            f"{name} is a {type(X).__name__}, which only fit reads, as X; give the rows in memory, "
            f"as pandas.read_parquet(path) returns them."
        )


def with_groups(X):
    """Return counts or sums of pandas by groups with the groups as columns; others unchanged."""
    groups = getattr(getattr(X, "index", None), "names", [])
    if not hasattr(X, "iloc") or len(groups) < 2:
        return X
    roles = set(map(frames.role_of, groups)) - set(map(frames.role_of, getattr(X, "columns", [])))
    return X.reset_index() if X.ndim == 1 or {"user", "item"} <= roles else X


class LazyTable:
    """A table that is read chunk by chunk: a Dataset or a reader of pyarrow, or a LazyFrame.

    Parameters
    ----------
    X : pyarrow.dataset.Dataset, pyarrow.RecordBatchReader or polars.LazyFrame
        A reader is read once.
    """

    def __init__(self, X):
        self._X, self._first = X, None
        schema = X.collect_schema().names() if hasattr(X, "collect_schema") else X.schema.names
        self.names = list(schema)

    def first_rows(self):
        """Return a table of the first rows, with all columns; None if there are none."""
        lazy = hasattr(self._X, "collect")
        rows = self._X.head(_ROWS_OF_CHUNK).collect() if lazy else next(self._batches(None), None)
        if hasattr(self._X, "read_next_batch"):
            self._first = rows
        return None if rows is None or not rows.shape[0] else InteractionTable(rows)

    def chunks(self, columns=None):
        """Yield a table for each chunk that has rows, of some columns by name or of all."""
        lazy = hasattr(self._X, "collect")
        parts = self._collected(columns) if lazy else self._batches(columns)
        for frame in parts:
            if frame.shape[0]:
                yield InteractionTable(frame)

    def _batches(self, columns):
        """Yield tables of pyarrow, of enough rows each, whose columns share a dictionary.

        What is done with a chunk takes time for all ids that are known, so chunks of few rows, as
        of thousands of small files, would take far longer than their rows.
        """
        import pyarrow

        waiting, n_rows = [], 0
        for batch in self._single_batches(columns):
            waiting.append(batch)
            n_rows += len(batch)
            if n_rows >= _ROWS_OF_CHUNK:
                yield pyarrow.Table.from_batches(waiting).unify_dictionaries()
                waiting, n_rows = [], 0
        if n_rows:
            yield pyarrow.Table.from_batches(waiting).unify_dictionaries()

    def _single_batches(self, columns):
        if hasattr(self._X, "read_next_batch"):
            if self._first is not None:
                first, self._first = self._first, None
                yield from first.select(columns).to_batches()
            yield from (batch if columns is None else batch.select(columns) for batch in self._X)
            return
        for fragment in _fragments_of(self._X):
            # The Dataset's schema has the columns of partitions too, and one type for each column.
            schema = {"schema": self._X.schema} if fragment is not self._X else {}
            yield from fragment.to_batches(columns=columns, batch_size=_ROWS_OF_CHUNK, **schema)

    def _collected(self, columns):
        # A query is run once for each pass: its rows may come in another order every time.
        X = self._X if columns is None else self._X.select(columns)
        if hasattr(X, "collect_batches"):
            yield from X.collect_batches(chunk_size=_ROWS_OF_CHUNK)
        else:
            yield from X.collect().iter_slices(_ROWS_OF_CHUNK)


def _fragments_of(data):
    """Yield the parts of a pyarrow Dataset that are read one at a time: row groups, if it has any.

    A scan of a whole Dataset reads far ahead of a slow reader, also with the least readahead. One
    with a filter has no fragments, and is scanned as a whole.
    """
    try:
        fragments = list(data.get_fragments())
    except ValueError:
        fragments = [data]
    for fragment in fragments:
        if hasattr(fragment, "split_by_row_group"):
            yield from fragment.split_by_row_group()
        else:
            yield fragment


def _columns_of(X):
    """Return the columns of an array or a list of rows."""
    rows = isinstance(X, (list, tuple)) and set(map(type, X)) <= {list, tuple}
    if rows and len(set(map(len, X))) == 1:
        # As objects, since NumPy would convert ("ann", 3) to two strings.
        places = map(itemgetter, range(len(X[0])))
        return [np.fromiter(map(place, X), object, len(X)) for place in places]
    return check_array(
        np.array(X, dtype=object) if isinstance(X, (list, tuple)) else X,
        dtype=None,
        ensure_all_finite=False,
        ensure_min_samples=0,
        ensure_min_features=0,
        input_name="X",
    ).T


def is_auto(key):
    """Return whether a column is to be found by its name or place."""
    # Arrays compare element by element.
    return isinstance(key, str) and key == "auto"
