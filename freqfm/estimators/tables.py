"""Tables that an optimizer updates: its rule, its state, and the input of an epoch.

Here ``tables`` is a dict of arrays; ``states`` has, by the same names, a dict of the optimizer's
arrays for each of them, by the names that kernels know.
"""

import copy
from typing import NamedTuple

import numpy as np
from sklearn.utils.validation import check_is_fitted

from freqfm._input.validation import as_kernel_array
from freqfm.backends.base import TrainedTable
from freqfm.formulas import codes

# The attributes of estimators that hold an optimizer's arrays; None in a copy without them.
STATES = ("_training", "_states", "_optimizer_state", "_dense_state")

# What the numbers of a ``ModelTable`` are: weights, an optimizer's averages or sums of gradients,
# counters of rows, or the number of steps.
WEIGHTS, MOMENTS, COUNTERS, STEPS = "weights", "moments", "counters", "steps"

# In a ``ModelTable``, every token has the row of its number.
BY_NUMBER = "by number"


class ModelTable(NamedTuple):
    """An array of a model, as rows of tokens or as a row that every sample trains."""

    rows: np.ndarray  #: (n_outputs, n_rows, width), a view
    kind: str  #: what the numbers are
    #: The row of each token, a number beyond the last of a token without any; None if samples have
    #: a single row.
    row_of: np.ndarray | str | None = BY_NUMBER


# The optimizer's names of what kernels know by other names.
_SHAPES = {"per_row": "per_row", "first": "factors_first", "second": "factors_second"}


class OptimizerStateMixin:
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
        for name in STATES:
            if hasattr(model, name):
                setattr(model, name, None)
        model.optimizer_state_nbytes_ = 0
        return model

    def _check_has_state(self):
        """Raise if this is a copy without the optimizer's state."""
        for name in STATES:
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
    return {name: getattr(state, of_state) for name, of_state in _SHAPES.items()}


def grow_state(old, new):
    """Return an optimizer's arrays, first {}, with new rows at the end; unused ones are empty."""
    grown = {}
    for name, rows in new.items():
        parts = [part for part in (old.get(name, rows[:0]), rows) if part.size]
        grown[name] = as_kernel_array(np.concatenate(parts)) if parts else rows
    return grown


def state_arrays(states):
    """Return the arrays of an optimizer's states."""
    return [array for state in states.values() for array in state.values()]


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
        shapes = {key: shapes[of_state] for key, of_state in _SHAPES.items()}
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
