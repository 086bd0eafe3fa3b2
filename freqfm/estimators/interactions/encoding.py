"""How InteractionRecommender numbers users and items, and what is done about unknown ones."""

import numpy as np
from scipy import sparse
from sklearn.utils.validation import validate_data

from freqfm._input.frames import only_numbered
from freqfm._input.ids import as_ids, extend_ids, find_codes, ids_of, unique_codes
from freqfm._input.interactions import ADVICE_FOR_NONE, InteractionTable, LazyTable, is_auto
from freqfm._input.rows import csr_of, csr_of_parts, slices, with_one_index_type
from freqfm._input.validation import LearnedArrays
from freqfm._messages import not_known, shorten, shown, warn_user
from freqfm.datasets.csr_files import slice_csr
from freqfm.estimators.recommenders.interactions import with_dislikes

# Entries that are in float64 at a time.
_ENTRIES = 1 << 20

# The parameters that name columns, in the order in which columns are read.
_ROLES = "user", "item", "value", "dislikes"


class InteractionEncodingMixin:
    """Reads tables by the parameters that name columns, ``user`` for one, and stores ids.

    ``user_ids_`` and ``item_ids_`` are the ids by code; ``_user_order`` and ``_item_order`` sort
    them, so that a code is found by bisection in ids of any type.
    """

    def _learn_ids(self, role, ids):
        """Replace all ids of a role by these; return their codes."""
        known, codes = unique_codes(ids, f"X's column of {role}s")
        self._keep_ids(role, known, np.arange(len(known)))
        return codes

    def _add_ids(self, role, ids, name=None):
        """Return codes of ids; new ids get codes after all others. ``name`` is for errors."""
        known, order = self._ids(role, whole=True)
        name = name or f"X's column of {role}s"
        codes, known, order = extend_ids(known, order, ids, name)
        self._keep_ids(role, known, order)
        return codes

    def _keep_ids(self, role, known, order):
        setattr(self, f"{role}_ids_", known)
        setattr(self, f"_{role}_order", order)

    def _ids(self, role, whole=False):
        """Return ids and the indices that sort them, if they are well-formed.

        The order is checked as a ``whole``, or once unless it is replaced.
        """
        learned, name, name_of_order = LearnedArrays(self), f"{role}_ids_", f"_{role}_order"
        known, order = learned.get(name), learned.get(name_of_order)
        vector = isinstance(known, np.ndarray) and known.ndim == 1 and len(known)
        learned.require(vector, name, "is not a vector of ids")
        learned.array(name_of_order, known.shape, "iu")
        if whole:
            learned.indices(name_of_order, order, len(known))
        else:
            learned.once((name, name_of_order), lambda: self._ids(role, whole=True))
        return known, order

    def _named(self, role, codes):
        """Return ids by code; None where the code is -1."""
        known, _ = self._ids(role)
        if np.max(codes, initial=-1) >= len(known):
            LearnedArrays(self).require(False, f"{role}_ids_", f"holds {len(known)} ids, too few")
        return ids_of(known, codes)

    def _read(self, X, reset, roles=("user", "item", "value"), optional=()):
        """Return ids of users and items, and values, of the rows of ``X``, as far as asked for.

        Values of dislikes are negative. Of those columns that fit has read, only the ``optional``
        ones may be missing.
        """
        table = InteractionTable(X)
        read = (*roles, "dislikes") if "value" in roles else roles
        wanted = {role: getattr(self, role) for role in read}
        if reset:
            places = self._learn_columns(table)
        else:
            places = self._find_columns(table, self._columns_of_fit(table, wanted, optional))
        return [
            values_of(table, places, self.dislikes_up_to)
            if role == "value"
            else table.ids(role, places[role])
            for role in roles
        ]

    def _find_columns(self, table, wanted):
        """Return the positions of columns by role, and warn if values may be unexpected."""
        places = table.find(**wanted)
        if "value" in wanted and is_auto(self.value) and self.dislikes_up_to is None:
            table.warn_about_values(places, self._context_places(table, places.values()))
        return places

    def _learn_columns(self, table):
        """Store how many columns a table has, their names, and the places of those to be read."""
        self.n_features_in_ = table.shape[1]
        vars(self).pop("feature_names_in_", None)
        if table.all_names is not None:
            self.feature_names_in_ = np.array(table.all_names, dtype=object)
        wanted = {role: getattr(self, role) for role in _ROLES}
        self._places = self._find_columns(table, wanted)
        if self.dislikes_up_to is not None and self._places["value"] is None:
            raise ValueError(
                f"dislikes_up_to={shown(self.dislikes_up_to)} says which values are dislikes, but "
                f"X has no column of values, or it is not found; pass value= its name or position."
            )
        return self._places

    def _columns_of_fit(self, table, wanted, optional):
        """Return the columns that fit has read, by role: their names or, of an array, positions.

        Those that are ``optional`` are None if they are missing.
        """
        names = getattr(self, "feature_names_in_", np.array([])).tolist()
        if only_numbered(names):
            if names and table.all_names is not None:
                # Numbers tell the places of columns only if all of them are there.
                validate_data(self, table.given, reset=False, skip_check_array=True)
            names = None
        if table.names is not None and names is None:
            return wanted
        n_before = LearnedArrays(self).size("n_features_in_")
        places = {r: None if key is None else self._places[r] for r, key in wanted.items()}
        if table.names is not None:
            columns = {role: None if at is None else names[at] for role, at in places.items()}
            missing = [role for role in optional if columns[role] not in table.names]
            return columns | dict.fromkeys(missing)
        n_columns = table.shape[1]
        missing = [role for role in optional if (places[role] or 0) >= n_columns]
        places |= dict.fromkeys(missing)
        used = sorted(place for place in places.values() if place is not None)
        leading = used == list(range(len(used))) and 2 <= len(used) <= n_columns
        if n_columns != n_before and not leading:
            raise ValueError(
                f"X has {n_columns} features, but {type(self).__name__} is expecting "
                f"{n_before} features as input: its columns {used} are used. Give "
                f"columns in the order of fit, of which only those after the used ones may be "
                f"missing, or a DataFrame with their names{ADVICE_FOR_NONE['value']}."
            )
        if names is None:
            # Columns at the places of fit are checked as in fit: for a matrix, and for times.
            found = [role for role, place in places.items() if place is not None]
            return places | {role: wanted[role] for role in found if is_auto(wanted[role])}
        table.check_is_table(wanted)
        warn_user(
            f"X does not have valid feature names, but {type(self).__name__} was fitted with "
            f"feature names: its columns are read as {shorten(names[:n_columns])}."
        )
        return places

    def _matrix(self, users, items, values, n_users=None):
        shape = n_users or len(self.user_ids_), len(self.item_ids_)
        return matrix_of(users, items, values, shape, self._tells_dislikes)

    @property
    def _tells_dislikes(self):
        """Whether dislikes are told apart, and not only negative values."""
        return self.dislikes is not None or self.dislikes_up_to is not None

    def _read_lazily(self, X):
        """Learn the ids of a table that is read chunk by chunk, and return its matrix."""
        table = LazyTable(X)
        first = table.first_rows()
        if first is None:
            raise ValueError("X has 0 rows; give at least one interaction.")
        places = self._learn_columns(first)
        del first
        # In the order in which the chunks have them.
        roles = [role for role in _ROLES if places[role] is not None]
        places = {role: roles.index(role) if role in roles else None for role in _ROLES}
        parts, number = [], self._learn_ids
        for chunk in table.chunks([table.names[self._places[role]] for role in roles]):
            part, values = [], None
            for role in ("user", "item"):
                ids, at = chunk.distinct_ids(role, places[role])
                part.append(number(role, ids).astype(np.int32)[at])
            if len(roles) > 2:
                values = values_of(chunk, places, self.dislikes_up_to)
                with np.errstate(over="ignore"):
                    narrow = values.astype(np.float32)
                values = narrow if (narrow == values).all() else values
            parts.append([*part, values])
            number = self._add_ids
        for at, role in enumerate(("user", "item")):
            new_codes = self._sort_ids(role)
            for part in parts:
                part[at] = new_codes[part[at]]
        if "dislikes" in roles or self.dislikes_up_to is not None:
            columns = map(np.concatenate, zip(*parts, strict=True))
            return self._matrix(*columns)
        return _summed(csr_of_parts(parts, (len(self.user_ids_), len(self.item_ids_))))

    def _sort_ids(self, role):
        """Sort the ids; return the new code of each."""
        known, order = self._ids(role, whole=True)
        self._keep_ids(role, known[order], np.arange(len(known)))
        return np.argsort(order).astype(np.int32)

    def _find(self, role, ids, name, unknown=None):
        """Return codes of ids; those of unknown ones are -1, and ``UnknownIds`` notes them."""
        ids = as_ids(ids, name)
        try:
            codes = find_codes(*self._ids(role), ids, name)
        except (IndexError, ValueError):
            # The order may have been changed in place.
            self._ids(role, whole=True)
            raise
        strange = codes < 0
        if unknown is not None and strange.any():
            unknown.note(role, name, ids[strange].tolist())
        return codes


def values_of(table, places, dislikes_up_to):
    """Return the values of interactions, or else ones; those of dislikes are negative."""
    values = np.ones(table.shape[0])
    if places["value"] is not None:
        values = table.numbers("value", places["value"])
        if dislikes_up_to is not None:
            values = np.where(values <= dislikes_up_to, -1.0, 1.0)
    if places["dislikes"] is not None:
        weights = np.abs(table.numbers("dislikes", places["dislikes"]))
        values = np.where(weights > 0, -weights, values)
    return values


def matrix_of(users, items, values, shape, tells_dislikes):
    """Return the matrix of interactions; with ``tells_dislikes`` negative values are dislikes."""

    def matrix(rows):
        # Duplicates are summed here, in float64.
        pairs = users[rows], items[rows]
        return _as_float32(sparse.csr_array((values[rows], pairs), shape=shape))

    if not tells_dislikes:
        return matrix(slice(None))
    # A like and a dislike of one pair do not cancel each other out.
    disliked = values < 0
    return with_one_index_type(with_dislikes(matrix(~disliked), -matrix(disliked)))


def _summed(X):
    """Return a CSR matrix with the sums of entries that repeat a pair, in float32, in its arrays.

    Some rows are in float64 at a time.
    """
    indptr, end = X.indptr.copy(), 0
    for rows in slices(X.shape[0], max(1, _ENTRIES * X.shape[0] // max(1, X.nnz))):
        block = slice_csr(X, rows.start, rows.stop)
        wide = block.data.astype(np.float64), block.indices.copy(), block.indptr
        block = with_one_index_type(csr_of(*wide, block.shape))
        block.sum_duplicates()
        block = _as_float32(block)
        part = slice(end, end + block.nnz)
        X.data[part], X.indices[part] = block.data, block.indices
        indptr[rows.start + 1 : rows.stop + 1] = end + block.indptr[1:]
        end += block.nnz
    return with_one_index_type(
        csr_of(X.data[:end].astype(np.float32, copy=False), X.indices[:end], indptr, X.shape)
    )


def _as_float32(X):
    """Return a matrix in float32; raise if a sum of values is too large for it."""
    with np.errstate(over="ignore"):
        converted = X.astype(np.float32)
    if not np.isfinite(converted.data).all():
        raise ValueError(
            f"X's column of values holds numbers whose sums are up to {np.abs(X.data).max():g} and "
            f"overflow float32; scale them."
        )
    lost = (converted.data == 0) & (X.data != 0)
    if lost.any():
        raise ValueError(
            f"X's column of values holds numbers that are 0 in float32, such as "
            f"{X.data[lost][0]:.3g}; drop these rows, or scale them."
        )
    return converted


ANSWERS = "popular", "error", "none"

# What the users of most calls get.
POPULAR = "get popular items, scored by the shares of users that have them"


class UnknownIds:
    """What fit has not seen of the ids and values of a call, and how it answers for users.

    Parameters
    ----------
    answer : {"popular", "error", "none"}
        The parameter ``unknown`` of the estimator.
    """

    def __init__(self, answer):
        if answer not in ANSWERS:
            raise not_known("unknown", answer, ANSWERS)
        self.answer = answer
        self._users, self._ignored = [], []

    @property
    def are_empty(self):
        """Whether users who are unknown are recommended nothing."""
        return self.answer == "none"

    def note(self, role, name, values, kind="id"):
        """Remember what fit has not seen of a "user", an "item" or the "context"; or raise.

        Ids of items have one rule whatever the answer is, so that there is no warning of them.

        Raises
        ------
        ValueError
            With "error". It names the first few.
        """
        if not len(values):
            return
        values = list(dict.fromkeys(values))
        found = f"{name} holds {len(values)} {kind}(s) that fit has not seen: {shorten(values, 5)}."
        if self.answer == "error":
            raise ValueError(
                f"{found} Leave them out, add them by partial_fit, or set unknown='popular' or "
                f"'none'."
            )
        if role == "user":
            self._users.append(found)
        elif kind != "id":
            self._ignored.append(f"{found} They are ignored.")

    def warn(self, outcome=POPULAR):
        """Warn once of all that a call was given: of users with "popular", of values always.

        ``outcome`` says what users get.
        """
        found = []
        if self._users and self.answer == "popular":
            found = [
                *self._users,
                f"Users of whom nothing else is known {outcome}. Set unknown='none' for no "
                f"warning, and no items for such users, or 'error' to raise.",
            ]
        if found or self._ignored:
            warn_user(" ".join([*found, *self._ignored]))

    def emptied(self, items, scores, users):
        """Return items and scores without those of unknown users, if these get none.

        Parameters
        ----------
        items, scores : ndarray of shape (n_users, n_recommendations)
        users : ndarray of bool, of shape (n_users,)
            Which are unknown.
        """
        if not (self.are_empty and users.any()):
            return items, scores
        empty = users[:, np.newaxis]
        return np.where(empty, -1, items), np.where(empty, np.float32(-np.inf), scores)
