"""Tables of interactions, as users hold them, and which of their columns mean what."""

from numbers import Integral

import numpy as np
from sklearn.utils import check_array

from freqfm._ids import as_ids, check_present, natural, unique_codes

# How frames name the columns, in order of preference, and where arrays have them.
_NAMES = {
    "user": ("user",),
    "item": ("item",),
    "value": ("value",),
    "time": ("timestamp", "time"),
}
_PLACES = {"user": 0, "item": 1, "value": 2, "time": 3}


class Table:
    """A table of interactions: an array, a list of tuples or a frame, read column by column.

    Parameters
    ----------
    X : array-like or frame of shape (n_interactions, n_columns)

    Attributes
    ----------
    shape : tuple of int
    names : list or None
        Names of a frame's columns; None for an array.

    Raises
    ------
    ValueError, TypeError
        If ``X`` is not two-dimensional, has no rows, is sparse or complex, or is a frame that
        cannot be read.
    """

    def __init__(self, X):
        self.names = None
        # Of the type: lazy frames do work, or warn, when they are asked themselves.
        if hasattr(type(X), "columns") or hasattr(type(X), "column_names"):
            self.names, self._columns, n_rows = _open_frame(X)
            self.shape = n_rows, len(self.names)
        else:
            if isinstance(X, (list, tuple)):
                # As objects, since NumPy would write ("ann", 3) as two strings.
                X = np.array(X, dtype=object)
            X = check_array(
                X,
                dtype=None,
                ensure_all_finite=False,
                ensure_min_samples=0,
                ensure_min_features=0,
                input_name="X",
            )
            self.shape = X.shape
            self._columns = X.T
        if self.shape[0] == 0:
            raise ValueError(
                f"X has 0 sample(s) (shape={self.shape}) while a minimum of 1 is required: give at "
                f"least one interaction."
            )

    def find(self, **wanted):
        """Return the place of the column of each role, or None where there is none.

        Parameters
        ----------
        **wanted : int, str, "auto" or None
            By role ("user", "item", "value", "time"): a place, a frame's name, what the data
            suggest, or no column. Ask for users and items first.

        Returns
        -------
        places : dict of str to (int or None)

        Raises
        ------
        ValueError
            If a column is not there, if two roles share one, or if none suggests itself.
        TypeError
            If a role's column is given as anything else.
        """
        if self.shape[1] < 2:
            raise ValueError(
                f"X has {self.shape[1]} feature(s) (shape={self.shape}) while a minimum of 2 is "
                f"required: a column of users and a column of items."
            )
        places, by_place = {}, True
        for role, key in wanted.items():
            if key is None and role in ("value", "time"):
                places[role] = None
                continue
            if isinstance(key, str) and key != "auto":
                place = self._place_of_name(role, key)
                by_place = False
            elif isinstance(key, Integral):
                place = self._check_place(role, int(key))
            elif key == "auto":
                place = next((self.names.index(n) for n in _NAMES[role] if n in self), None)
                if place is not None:
                    by_place = by_place and role not in ("user", "item")
                else:
                    place = self._usual_place(role, places, by_place)
            else:
                raise TypeError(f"{role}={key!r} must be a column's place or name, or 'auto'.")
            if place is not None and place in places.values():
                (other,) = [name for name, taken in places.items() if taken == place]
                raise ValueError(
                    f"{role} and {other} would both be column {place} of X; tell them apart by "
                    f"{role}=... and {other}=..."
                )
            places[role] = place
        return places

    def __contains__(self, name):
        return self.names is not None and name in self.names

    def _place_of_name(self, role, name):
        if name in self:
            return self.names.index(name)
        found = "is an array, whose columns have no names" if self.names is None else self.names
        raise ValueError(
            f"{role}={name!r} is not a column of X, which "
            f"{found if self.names is None else f'has {found}'}; name one of its columns, or give "
            f"its place."
        )

    def _check_place(self, role, place):
        n_columns = self.shape[1]
        if not -n_columns <= place < n_columns:
            raise ValueError(
                f"{role}={place} is not a column of X, which has {n_columns} columns; give a place "
                f"from 0 to {n_columns - 1}."
            )
        return place % n_columns

    def _usual_place(self, role, places, by_place):
        """Return where tables without names have a role: users, items, values, times."""
        place = _PLACES[role]
        if role in ("user", "item"):
            return place
        usual = by_place and (places["user"], places["item"]) == (0, 1)
        if usual and place < self.shape[1] and place not in places.values():
            name = None if self.names is None else self.names[place]
            if role == "time" or name not in _NAMES["time"]:
                return place
        if role == "time":
            raise ValueError(
                f"time='auto' finds no column of times in X: it has "
                f"{self.names or f'{self.shape[1]} columns'}, and a frame's 'timestamp' or 'time', "
                f"or the fourth column, would be taken. Pass time= its name or place, or "
                f"time=None if the rows stand in order of time."
            )
        return None

    def ids(self, role, place):
        """Return a column of ids; see :func:`as_ids`."""
        return as_ids(self._columns[place], f"X's column of {role}s")

    def numbers(self, role, place):
        """Return a column as float64.

        Raises
        ------
        ValueError
            If it holds anything but finite numbers.
        """
        values = self._columns[place]
        try:
            if values.dtype.kind in "mM":
                raise TypeError(f"found {values.dtype}")
            numbers = values.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"X's column of {role}s ({place}) must hold numbers ({error}); pass {role}= the "
                f"right column, or {role}=None to ignore it."
            ) from None
        if not np.isfinite(numbers).all():
            row = int(np.flatnonzero(~np.isfinite(numbers))[0])
            raise ValueError(
                f"X's column of {role}s ({place}) holds {numbers[row]} in row {row}; NaN and "
                f"infinity (inf) are no {role}s: drop or fill such rows."
            )
        return numbers

    def ranks(self, place):
        """Return ranks of a column of times: equal times share one.

        Raises
        ------
        ValueError, TypeError
            If a time is missing, or if they cannot be compared with each other.
        """
        values = natural(self._columns[place])
        check_present(values, "X's column of times")
        return unique_codes(values, "X's column of times")[1]


def _open_frame(X):
    """Return the names, a mapping from places to columns, and the number of rows of a frame."""
    try:
        import narwhals
    except ImportError:
        if not hasattr(X, "iloc"):
            raise ImportError(
                f"X is a {type(X).__module__.split('.')[0]} {type(X).__name__}; reading it takes "
                f"narwhals: pip install 'freqfm[frames]', or give an array or a list."
            ) from None
        return list(X.columns), _Lazily(lambda place: np.asarray(X.iloc[:, place])), X.shape[0]
    try:
        frame = narwhals.from_native(X, eager_only=True)
    except TypeError as error:
        raise TypeError(
            f"X of type {type(X).__name__} is not a frame in memory, an array or a list ({error}); "
            f"collect or convert it first."
        ) from None
    names = list(frame.columns)

    def column(place):
        series = frame.get_column(names[place])
        values = series.to_numpy()
        missing = series.is_null().to_numpy()
        if missing.any():
            # Whatever NumPy made of them, NaN in what were integers for instance.
            values = values.astype(object)
            values[missing] = None
        return values

    return names, _Lazily(column), frame.shape[0]


class _Lazily:
    """What a function returns, by index."""

    def __init__(self, function):
        self._function = function

    def __getitem__(self, place):
        return self._function(place)
