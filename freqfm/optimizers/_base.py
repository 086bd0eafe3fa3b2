"""The interface of optimizers to kernels: codes, hyper-parameters and arrays of state."""

import inspect
from typing import NamedTuple

import numpy as np

from freqfm._components import NON_NEGATIVE, POSITIVE, Component, try_formula
from freqfm._machine import aligned_zeros
from freqfm._numba.jit import python_function
from freqfm._sklearn import StrOptions
from freqfm.backends.base import UpdateRule
from freqfm.formulas import codes
from freqfm.formulas.steps import step_replacements


class OptimizerState(NamedTuple):
    """State arrays that an optimizer keeps between batches; kernels update them in place.

    All float32; arrays that the optimizer does not need are empty.
    """

    per_row: np.ndarray  #: (n_tokens,) learning rates or counters
    intercept: np.ndarray  #: (3,) two moments and a counter
    linear_first: np.ndarray  #: (n_tokens,)
    linear_second: np.ndarray  #: (n_tokens,)
    factors_first: np.ndarray  #: (n_tokens, n_components), or (n_tokens, 1)
    factors_second: np.ndarray  #: (n_tokens, n_components)
    #: (n_tokens, n_fields) counters of the vectors that a token has for each field
    per_vector: np.ndarray

    @property
    def nbytes(self):
        """Bytes of state that grow with the number of tokens."""
        return sum(array.nbytes for array in self) - self.intercept.nbytes


class WeightDecay(Component):
    """An L2 penalty on the rows of tables, and the batches in which it shrinks them.

    Parameters
    ----------
    value : float, default=None
        The penalty: ``value`` times the row is added to the gradient of a row. None is the
        estimator's default.
    scope : {"full", "batch"}, default="full"
        "full" shrinks every row in every batch: steps that a row has missed are made up for
        exactly when it is next updated or read. "batch" shrinks the rows that occur in a batch, in
        proportion to how often they occur: items as positives or drawn, and users once for the
        positives that the loss keeps together, see its ``block``.

    Examples
    --------
    >>> from freqfm import MFRecommender
    >>> from freqfm.optimizers import WeightDecay
    >>> MFRecommender(weight_decay=WeightDecay(1e-4, scope="batch"))
    MFRecommender(weight_decay=WeightDecay(scope='batch', value=0.0001))
    """

    _parameter_constraints = {
        "value": [*NON_NEGATIVE, None],
        "scope": [StrOptions({"full", "batch"})],
    }

    def __init__(self, value: float | None = None, *, scope: str = "full"):
        self.value = value
        self.scope = scope

    @classmethod
    def of(cls, value):
        """Return the decay that an estimator is given, a number or one of these."""
        if not isinstance(value, cls):
            # By default only the rows of a batch shrink.
            value = cls(value, scope="batch" if value is None else "full")
        value._validate_params()
        return value


class Optimizer(Component):
    """Base class of optimizers.

    A custom optimizer has a parameter ``learning_rate``, with a default of its own or None if every
    estimator that uses it gives one, and defines :attr:`step`, a function
    of numbers compiled by ``numba.njit``: a static method, or a property that returns a function
    that reads hyper-parameters from its closure. It is compiled into the training loop with the
    options of the package's own formulas (``error_model="numpy"``, single precision), once for each
    combination of formulas, and cached on disk if the formula can be hashed. A class that derives
    from :class:`FASGD` or :class:`CFSGD` inherits their learning rate per row.

    Examples
    --------
    >>> import numpy as np
    >>> from numba import njit
    >>> from freqfm import FMRegressor
    >>> from freqfm.optimizers import Optimizer
    >>> class Momentum(Optimizer):
    ...     n_states = 1
    ...
    ...     def __init__(self, learning_rate=0.3, momentum=0.9):
    ...         self.learning_rate = learning_rate
    ...         self.momentum = momentum
    ...
    ...     @property
    ...     def step(self):
    ...         momentum = self.momentum
    ...
    ...         @njit
    ...         def step(parameter, gradient, velocity, unused, rate):
    ...             velocity = momentum * velocity + gradient
    ...             return parameter - rate * velocity, velocity, unused
    ...
    ...         return step
    >>> X = np.random.default_rng(0).standard_normal((500, 2))
    >>> y = X[:, 0] + X[:, 0] * X[:, 1]
    >>> model = FMRegressor(2, optimizer=Momentum(), alpha_factors=0, batch_size=50, random_state=0)
    >>> bool(model.fit(X, y).score(X, y) > 0.99)
    True
    """

    _compiled = True
    _parameter_constraints = {"learning_rate": [*POSITIVE, None]}
    _formulas = {"step": ("parameter", "gradient", "first", "second", "rate")}
    _results = {"step": 3}
    _numbered = ("step",)
    _codes = (
        "step_code", "_step_code", "rate_code", "count_code", "hyper", "corrections",
        "state_shapes", "state_widths", "init_state", "_slots", "replacements", "update_rule",
    )  # fmt: skip

    @property
    def _fixed(self):
        return (*self._codes, "n_states") if self.step is None else self._codes

    #: Function of (parameter, gradient, first, second, rate) that returns the parameter and its two
    #: state values after a step of one weight; state starts at zero. A sixth parameter, if the
    #: function has one, is the number of the step, counted from 1. None for the formulas of the
    #: package.
    step = None
    #: How many state values ``step`` keeps for each weight: 0, 1 or 2. Those that it does not keep
    #: are zero in each step.
    n_states = 0
    #: How a row is updated from its gradient without ``step``, see ``freqfm.formulas.codes``.
    _step_code: int | None = None
    #: How a row's learning rate is determined.
    rate_code = codes.RATE_CONSTANT
    #: Whether a step uses the mean of the batch's gradients, or their sum.
    average = True
    #: Whether rows absent from a batch are not updated.
    lazy = True
    #: Constructor parameters that kernels read, and their slots.
    _slots = {"learning_rate": codes.LEARNING_RATE}

    @property
    def step_code(self):
        """The code of the update from a row's gradient."""
        return self._step_code if self.step is None else codes.STEP_CUSTOM

    @property
    def count_code(self):
        """The code of what counters count; used only by learning rates from counts."""
        return codes.COUNT_SAMPLES

    def hyper(self):
        """Return the hyper-parameters in the form that kernels read."""
        hyper = np.zeros(codes.N_HYPER)
        for name, slot in self._slots.items():
            hyper[slot] = self.value_of(name)
        return hyper

    def with_defaults(self, **suited):
        """Return the optimizer with values in place of the parameters that are None.

        Raises
        ------
        TypeError
            If it still has no learning rate.
        """
        filled = super().with_defaults(**suited)
        if getattr(filled, "learning_rate", None) is None:
            raise TypeError(
                f"The optimizer {filled!r} has no learning rate; give it a constructor parameter "
                f"learning_rate, the size of its steps, and set that or the estimator's."
            )
        return filled

    def update_rule(self):
        """Return the update rule for backends, without weight decay.

        Raises
        ------
        ValueError
            If the step has a code that kernels do not know.
        """
        if self.step_code not in codes.STEPS:
            raise ValueError(
                f"{type(self).__name__} has the step code {self.step_code!r}, which no kernel "
                f"knows; take one of formulas/codes.py, or define step."
            )
        return UpdateRule(
            step_code=self.step_code,
            rate_code=self.rate_code,
            count_code=self.count_code,
            catch_up=codes.CATCH_UP_NONE,
            decay_code=codes.DECAY_NONE,
            lazy=bool(self.value_of("lazy")),
            decoupled=False,
            average=bool(self.average),
            decay=0.0,
            idle_decay=0.0,
            hyper=self.hyper(),
        )

    def corrections(self, steps):
        """Return the divisors of the rate and of the root of the second moment, of shape (n, 2).

        Parameters
        ----------
        steps : ndarray of shape (n,)
            Step numbers, starting from 1.
        """
        ones = np.ones(len(steps))
        # A custom ``step`` receives the step number in place of the correction of the root.
        return np.column_stack([ones, ones if self.step is None else steps])

    def replacements(self):
        """Return the formulas to replace in kernels, see ``freqfm._numba.jit.specialised``."""
        if self.step is None:
            return {}
        if self.n_states not in (0, 1, 2):
            raise TypeError(
                f"n_states of {type(self).__name__} is {self.n_states!r}; a step keeps 0, 1 or 2 "
                f"numbers of state for each weight."
            )
        n_parameters = len(inspect.signature(python_function(self.step)).parameters)
        self._check_states(n_parameters)
        with_number = n_parameters > len(self._formulas["step"])
        return step_replacements(self.step, self.n_states, with_number)

    def _check_states(self, n_parameters):
        """Raise if a first step returns a state that would not be kept."""
        returned = try_formula(self, "step", 1.0, 1.0, 0.0, 0.0, 0.5, *[1.0] * (n_parameters - 5))
        lost = [] if returned is None else returned[1 + self.n_states :]
        if np.any(lost):
            raise TypeError(
                f"step of {type(self).__name__} returns the state {lost[0]!r}, but its "
                f"n_states={self.n_states}, and state beyond that is not kept; set n_states to 1 "
                f"or 2, or return 0."
            )

    def state_widths(self, n_components):
        """Return the number of columns of ``factors_first`` and ``factors_second``."""
        return tuple(n_components if self.n_states > i else 0 for i in range(2))

    def init_state(self, n_tokens, n_components, counts):
        """Return the state before the first batch.

        Parameters
        ----------
        n_tokens, n_components : int
            Shape of the table.
        counts : ndarray of shape (n_tokens,)
            How many training rows hold each token.
        """
        shapes = self.state_shapes(n_tokens, n_components)
        arrays = {name: aligned_zeros(shape) for name, shape in shapes.items()}
        per_row = np.asarray(self._init_per_row(n_tokens, counts), dtype=np.float32)
        if per_row.shape != shapes["per_row"]:
            raise ValueError(
                f"_init_per_row of {type(self).__name__} must return an array of shape "
                f"{shapes['per_row']}; got {per_row.shape}."
            )
        return OptimizerState(**{**arrays, "per_row": per_row})

    def state_shapes(self, n_tokens, n_components):
        """Return the shapes of the arrays of an :class:`OptimizerState`, by name."""
        first, second = self.state_widths(n_components)

        def shape(*sizes):
            return sizes if all(sizes) else (0,) * len(sizes)

        return {
            "per_row": (0 if self.rate_code == codes.RATE_CONSTANT else n_tokens,),
            "intercept": (3,),
            "linear_first": (n_tokens if first else 0,),
            "linear_second": (n_tokens if second else 0,),
            "factors_first": shape(n_tokens, first),
            "factors_second": shape(n_tokens, second),
            "per_vector": (0, 0),
        }

    def _init_per_row(self, n_tokens, counts):
        return np.zeros(0, dtype=np.float32)
