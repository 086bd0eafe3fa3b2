"""The learned arrays of a model: each is declared once, and all that is done with them follows.

An estimator lists its arrays by ``_learned``, each with what its axes are, what it is for, how new
rows start, and how the copies of several shards are merged. Checks of models that are continued,
growth, copies and the undoing of failures, parts of a model, and Dask are loops over this list.

The tables that an optimizer updates have its arrays beside them: ``states`` has, by the names of
tables, a dict of these arrays, by the names that kernels know.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
from sklearn.utils.validation import check_is_fitted

from freqfm._input.validation import as_kernel_array
from freqfm._machine import aligned_empty, aligned_zeros, as_aligned
from freqfm._messages import not_known
from freqfm.backends.base import TrainedTable
from freqfm.formulas import codes

# What arrays are for: rows of tokens or users, and what all samples train, which both are read by
# predictions; what only further training needs; what epochs count; and what is counted before them.
VECTORS, WEIGHTS, OPTIMIZER = "vectors", "weights", "optimizer"
STATISTICS, COUNTS = "statistics", "counts"

# How the copies w_m that several shards m have trained from w are merged; ``share`` is a shard's
# part of the occurrences of a row since the last merge.
#
# - shares: w + sum f(share) (w_m - w), with f the square root
# - means: the same with f(share) = share, the mean over occurrences
# - sums: w + sum (w_m - w), of counters and sums of squares
# - largest: of numbers of steps
# - moments: sums or means, as the optimizer's arrays are one or the other
SHARES, MEANS, SUMS, LARGEST, MOMENTS = "shares", "means", "sums", "largest", "moments"

_MERGES = {VECTORS: SHARES, WEIGHTS: MEANS, OPTIMIZER: MOMENTS, STATISTICS: SUMS}

# The axes that are counted by the data; samples hold some of the tokens: features and items.
_ROWS = ("features", "items", "users", "tokens")


@dataclass(frozen=True, eq=False)
class Learned:
    """An array that a model learns, as an estimator or a component declares it."""

    #: The attribute, or a tuple of the attribute and the keys, fields or places in it.
    path: str | tuple
    axes: tuple  #: what each axis is, its length, or None
    role: str = VECTORS
    dtype: type = np.float32
    #: Writes new rows, (n_outputs, n_new, width), given the model, these, and how many rows it had.
    #: None leaves zeros.
    start: Callable | None = None
    #: How copies are merged: by default as the role says; a tuple if columns differ.
    merge: str | tuple | None = None
    #: Returns the tables that an array holds, if several, given the model and the array; and the
    #: attribute with the row of each token in them, a number beyond the last of one without any.
    tables: Callable | None = None
    row_of: str | None = None

    @cached_property
    def keys(self):
        """The attribute, and the keys, fields or places in it."""
        return (self.path,) if isinstance(self.path, str) else self.path

    @cached_property
    def name(self):
        """The name, in messages."""
        return ".".join(map(str, self.keys))

    @cached_property
    def kinds(self):
        """The kinds of types that are converted to that of the array."""
        return "iu" if np.dtype(self.dtype).kind == "i" else "fiu"

    @cached_property
    def axis_of_rows(self):
        """The number of the axis of rows, which belong to users or tokens; None without."""
        return next((k for k, axis in enumerate(self.axes) if axis in _ROWS), None)

    @cached_property
    def by_token(self):
        """Whether the array has rows of tokens."""
        axis = self.axis_of_rows
        return self.tables is not None or (axis is not None and self.axes[axis] != "users")

    def rules_of_columns(self):
        """Return a list of slices of columns, and how these are merged."""
        rules = self.merge or _MERGES[self.role]
        if isinstance(rules, str):
            return [(slice(None), rules)]
        return [(slice(k, k + 1), rule) for k, rule in enumerate(rules)]

    def get(self, model):
        """Return the array of a model."""
        found = getattr(model, self.keys[0])
        for key in self.keys[1:]:
            found = getattr(found, key) if hasattr(found, "_fields") else found[key]
        return found

    def set(self, model, array):
        """Set the array of a model, in new containers: copies of the model keep theirs."""
        name, keys = self.keys[0], self.keys[1:]
        setattr(model, name, _placed(getattr(model, name), keys, array) if keys else array)

    def room(self, array, n_tokens):
        """Return an empty array like one of a model that has so many tokens."""
        if self.tables is not None or not array.size:
            return array  # of a size that depends on more, which the model sets
        shape, axis = array.shape, self.axis_of_rows
        return aligned_empty((*shape[:axis], n_tokens, *shape[axis + 1 :]), array.dtype)

    def views(self, model):
        """Return the tables in the array, (n_outputs, n_rows, width), as views; none if empty."""
        array = self.get(model)
        if not array.size:
            return []
        if self.tables is not None:
            return [t if t.ndim == 3 else t[np.newaxis] for t in self.tables(model, array)]
        axis, n_outputs = self.axis_of_rows, len(array) if self.axes[0] == "outputs" else 1
        return [array.reshape(n_outputs, 1 if axis is None else array.shape[axis], -1)]


def _placed(container, keys, value):
    """Return a copy of nested containers with a value in a place."""
    key, *rest = keys
    if hasattr(container, "_fields"):
        value = _placed(getattr(container, key), rest, value) if rest else value
        return container._replace(**{key: value})
    container = container.copy()
    container[key] = _placed(container[key], rest, value) if rest else value
    return container


def entries_of(model, without=()):
    """Return what a model learns, a list of ``Learned``, except attributes of some names."""
    return [entry for entry in model._learned() if entry.keys[0] not in without]


def trained_arrays(model):
    """Return all arrays that an epoch changes."""
    return [entry.get(model) for entry in model._learned() if entry.role != COUNTS]


# What kernels know of an optimizer's state: its names there, the number of axes, and how it is
# merged.
_OF_TABLES = {
    "per_row": ("per_row", 1, SUMS),
    "first": ("factors_first", 2, None),
    "second": ("factors_second", 2, None),
}


@cache
def optimizer_entries(path, /, **axes):
    """Return what an optimizer keeps in a dict of dicts, by the names of tables.

    Parameters
    ----------
    path : tuple
        Of the dict, see ``Learned``.
    **axes : str or None
        Of the rows of each table.
    """
    return [
        Learned((*path, name, key), (rows, None)[:n_axes], OPTIMIZER, merge=merge)
        for name, rows in axes.items()
        for key, (_, n_axes, merge) in _OF_TABLES.items()
    ]


def make_trainable(model, align=False):
    """Give all arrays the types of kernels, and memory to write to, which files may not have.

    With ``align``, those of float32 begin with a cache line: training is faster.
    """
    for entry in model._learned():
        before = entry.get(model)
        array = as_kernel_array(before, entry.dtype)
        array = as_aligned(array) if align and entry.dtype is np.float32 else array
        if array is not before:
            entry.set(model, array)


def check_arrays(model, learned, entries, sizes):
    """Raise unless the arrays of a model are as they are declared.

    Parameters
    ----------
    model : estimator
    learned : LearnedArrays
        Of the model.
    entries : iterable of Learned
    sizes : dict
        The lengths of axes; those of others are added, and must not be 0.
    """
    for entry in entries:
        learned.get(entry.keys[0])
        shape = tuple([sizes.get(axis) if isinstance(axis, str) else axis for axis in entry.axes])
        found = learned.array(entry.name, shape, entry.kinds, entry.get(model))
        if None in shape:
            named = [(axis, n) for axis, n in zip(entry.axes, found, strict=True) if axis]
            for axis, n in named:
                learned.require(n > 0, entry.name, f"holds no {axis}")
            sizes.update((axis, n) for axis, n in named if isinstance(axis, str))


def extend(model, entries, sizes, new=False):
    """Give a model rows of its axes; those before are copied, new ones start as declared.

    Parameters
    ----------
    model : estimator
    entries : iterable of Learned
    sizes : dict
        The lengths of axes.
    new : bool, default=False
        Whether the model has none of these arrays before.

    Raises
    ------
    ValueError
        If an array is declared with an axis that the model does not have.
    """
    for entry in entries:
        array = np.zeros((0,) * len(entry.axes)) if new else entry.get(model)
        of_array = {} if new else dict(zip(entry.axes, array.shape, strict=True))
        lengths = {**of_array, **sizes}
        unknown = [axis for axis in entry.axes if isinstance(axis, str) and axis not in lengths]
        if unknown:
            raise ValueError(
                f"{entry.name} of {type(model).__name__} is declared by {unknown[0]}, but this "
                f"model has {' and '.join(sizes)}; declare it by these, or by numbers."
            )
        grown = aligned_zeros(tuple(lengths.get(axis, axis) for axis in entry.axes), entry.dtype)
        grown[tuple(map(slice, array.shape))] = array
        n_before = array.shape[entry.axis_of_rows or 0]
        entry.set(model, grown)
        for rows in entry.views(model) if entry.start is not None else ():
            entry.start(model, rows[:, n_before:], n_before)


class ServingMixin:
    """Estimators of which a service needs a part, and that part as small as it can be."""

    #: What vectors are stored as, if that changes none of their numbers; None is as they are.
    _stored_dtype = None

    def for_serving(self, *, dtype="float32"):
        """Return a copy of the model that predicts, for files and services.

        It is without an optimizer's state, as :meth:`without_optimizer_state` of models that have
        one; what needs none, as ``partial_fit`` of :class:`ALSRecommender`, works. The copy shares
        the arrays of this model.

        Parameters
        ----------
        dtype : {"float32", "float16"}, default="float32"
            With "float16" the vectors of the copy, and linear weights, are rounded to it, and
            stored as such: a file takes half the room for them. They are float32 in memory, so what
            is loaded predicts as the copy does. NDCG@20 of default models on MovieLens-1M and
            Gowalla (MF, ALS) changes by 0.00003 at most.

        Returns
        -------
        model : estimator

        Raises
        ------
        NotFittedError
            If the model is not fitted.
        ValueError
            If ``dtype`` is not known; or "float16" cannot hold the vectors; or the model has none,
            but weights between items, for instance.

        Examples
        --------
        >>> import pickle
        >>> from freqfm import ALSRecommender
        >>> from freqfm.datasets import make_interactions
        >>> model = ALSRecommender(random_state=0).fit(make_interactions(random_state=0))
        >>> served = model.for_serving(dtype="float16")
        >>> len(pickle.dumps(served)) < 0.6 * len(pickle.dumps(model))
        True
        """
        check_is_fitted(self)
        if dtype not in ("float32", "float16"):
            raise not_known("dtype", dtype, ("float32", "float16"))
        stateless = getattr(self, "without_optimizer_state", None)
        model = copy.copy(self) if stateless is None else stateless()
        if dtype == "float16":
            names = model._names_of_vectors()
            if not names:
                raise ValueError(
                    f"dtype='float16' is for vectors, of which {type(self).__name__} has none; "
                    f"leave it out."
                )
            model._stored_dtype = dtype
            for name in names:
                setattr(model, name, _changed(getattr(model, name), _rounded))
        return model

    def _names_of_vectors(self):
        """Return the names of the attributes that hold vectors."""
        learned = self._learned() if hasattr(self, "_learned") else ()
        return dict.fromkeys(entry.keys[0] for entry in learned if entry.role == VECTORS)

    def __getstate__(self):
        state = dict(super().__getstate__())
        for name in self._names_of_vectors() if self._stored_dtype else ():
            state[name] = _changed(state[name], _as_float16)
        return state

    def __setstate__(self, state):
        if state.get("_stored_dtype"):
            state = {name: _changed(value, _as_float32) for name, value in state.items()}
        super().__setstate__(state)


def _changed(value, change):
    """Return a value with ``change`` of each array of float32 or float16 in lists and dicts."""
    if isinstance(value, np.ndarray) and value.dtype in (np.float32, np.float16):
        with np.errstate(over="ignore"):
            return change(value)
    if type(value) is dict:
        return {name: _changed(one, change) for name, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_changed(one, change) for one in value)
    return value


def _as_float16(array):
    """Return an array in float16 if it has the same numbers there, else unchanged."""
    found = array.astype(np.float16)
    return found if np.array_equal(found, array) else array


def _as_float32(array):
    """Return an array in float32."""
    return array.astype(np.float32)


def _rounded(array):
    """Return an array with the numbers of float16, in float32."""
    found = array.astype(np.float16).astype(np.float32)
    largest = abs(array).max(initial=0)
    if not abs(found - array).max(initial=0) <= largest / 1000:
        raise ValueError(
            f"dtype='float16' cannot hold the vectors, whose numbers are up to {largest:.3g}: its "
            f"range is 6e-5 to 65504. Leave it out."
        )
    return found


class OptimizerStateMixin(ServingMixin):
    """Estimators whose optimizer has a state, which predictions do not need."""

    def without_optimizer_state(self):
        """Return a copy of the model that predicts the same, but cannot be trained further.

        Its file is smaller: by the ``optimizer_state_nbytes_`` of this model. The copy shares the
        arrays of this one.

        Returns
        -------
        model : estimator
            Its ``partial_fit`` raises, and so does ``fit`` with ``warm_start=True``; ``fit`` of a
            new model works.

        Raises
        ------
        NotFittedError
            If the model is not fitted.

        Examples
        --------
        >>> import pickle
        >>> from freqfm import FMClassifier
        >>> from freqfm.datasets import make_clicks
        >>> X, y = make_clicks(200, (500, 100), random_state=0)
        >>> model = FMClassifier(optimizer="adam", max_iter=1, random_state=0).fit(X, y)
        >>> served = model.without_optimizer_state()
        >>> bool((served.predict(X) == model.predict(X)).all())
        True
        >>> round(len(pickle.dumps(model)) / len(pickle.dumps(served)))
        3
        """
        check_is_fitted(self)
        model = copy.copy(self)
        vars(model).pop("_unfinished", None)
        for name in self._state_names():
            setattr(model, name, None)
        model.optimizer_state_nbytes_ = 0
        return model

    def _state_names(self):
        """Return the names of the attributes that hold the optimizer's arrays."""
        return {entry.keys[0]: None for entry in self._learned() if entry.role == OPTIMIZER}

    def _check_has_state(self):
        """Raise if this is a copy without the optimizer's state."""
        for name in self._state_names():
            if getattr(self, name, ()) is None:
                raise ValueError(
                    f"{name} of this {type(self).__name__} is None: it is a copy by "
                    f"without_optimizer_state(), which only predicts. Train the original model "
                    f"further, or fit a new one."
                )


def make_rule(optimizer, weight_decay, scope):
    """Return the update rule: how rows step and decay."""
    full = weight_decay > 0 and scope == "full"
    lazy_adam = optimizer.step_code == codes.STEP_ADAM and optimizer.lazy
    catch_up = codes.CATCH_UP_NONE
    if full or not optimizer.lazy:
        by_factor = optimizer.step_code == codes.STEP_SGD or lazy_adam
        catch_up = codes.CATCH_UP_FACTOR if by_factor else codes.CATCH_UP_REPLAY
    decay_code = codes.DECAY_NONE
    if weight_decay > 0:
        decay_code = codes.DECAY_FULL if full else codes.DECAY_BATCH
    return optimizer.update_rule()._replace(
        catch_up=catch_up,
        decay_code=decay_code,
        decoupled=full and lazy_adam,
        decay=float(weight_decay),
        idle_decay=float(weight_decay) if full else 0.0,
    )


def new_state(optimizer, counts, width):
    """Return the optimizer's arrays for the rows of a table, by how often these occur."""
    state = optimizer.init_state(len(counts), int(width), np.maximum(counts, 1))
    return {name: getattr(state, of_state) for name, (of_state, *_) in _OF_TABLES.items()}


def grow_state(old, new):
    """Return an optimizer's arrays, first {}, with new rows at the end; unused ones are empty."""
    grown = {}
    for name, rows in new.items():
        parts = [part for part in (old.get(name, rows[:0]), rows) if part.size]
        grown[name] = as_kernel_array(np.concatenate(parts)) if parts else rows
    return grown


def check_steps(learned, name, n_steps):
    """Raise unless an array holds a valid number of an optimizer's steps."""
    learned.array(name, (1,), "iu", n_steps)
    learned.indices(name, n_steps, 1 << 62)


def check_states(learned, name, states, tables, optimizer):
    """Raise unless kernels can continue with the optimizer states of a model, by their name."""
    for of_table, table in tables.items():
        fits = isinstance(states, dict) and of_table in states
        learned.require(fits, name, f"has no {of_table!r}")
        shapes = optimizer.state_shapes(len(table), table.shape[1] if table.ndim == 2 else 1)
        shapes = {key: shapes[of_state] for key, (of_state, *_) in _OF_TABLES.items()}
        learned.arrays(f"{name}[{of_table!r}]", states[of_table], shapes)


def epoch_tables(tables, states, n_steps, optimizer, n_batches):
    """Return the backend's input for an epoch: tables, the first step, and its corrections."""
    first_step = int(n_steps[0])
    steps = np.arange(first_step, first_step + n_batches + 1)
    tables = {
        name: TrainedTable(weights.reshape(len(weights), -1), **states[name])
        for name, weights in tables.items()
    }
    return tables, first_step, optimizer.corrections(steps)
