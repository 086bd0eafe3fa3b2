"""Optimizers: how the rows of an embedding table are updated from their gradients.

A learning rate per token needs one number per token where Adam needs two per weight:

================= ============================== ==================================
name              class                          state per token, d = n_components
================= ============================== ==================================
"sgd"             :class:`SGD`                   0
"fa_sgd"          :class:`FASGD`                 1
"cf_sgd"          :class:`CFSGD`                 1
"rowwise_adagrad" :class:`RowwiseAdagrad`        2 (one for the factors, one for the linear weight)
"adagrad"         :class:`Adagrad`               d + 1
"adam"            :class:`Adam`                  2 (d + 1)
================= ============================== ==================================
"""

import inspect
from dataclasses import KW_ONLY, dataclass
from numbers import Real
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from freqfm._components import (
    NON_NEGATIVE,
    POSITIVE,
    POSITIVE_OR_INFINITE,
    Component,
    try_formula,
    validate_params,
)
from freqfm._machine import aligned_zeros
from freqfm._numba.jit import python_function
from freqfm._sklearn import Interval, StrOptions
from freqfm.backends.base import UpdateRule
from freqfm.formulas import codes
from freqfm.formulas.steps import step_replacements

__all__ = [
    "CFSGD",
    "FASGD",
    "OPTIMIZERS",
    "SGD",
    "Adagrad",
    "Adam",
    "Optimizer",
    "OptimizerState",
    "RowwiseAdagrad",
    "WeightDecay",
]


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
        validate_params(value)
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
    _slots = ("learning_rate",)

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
        for name in self._slots:
            hyper[getattr(codes, name.upper())] = self.value_of(name)
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
            lazy=bool(self.value_of("lazy")),
            average=bool(self.average),
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

    def init_state(self, n_tokens, n_components, counts, shapes=None):
        """Return the state before the first batch.

        Parameters
        ----------
        n_tokens, n_components : int
            Shape of the table.
        counts : ndarray of shape (n_tokens,)
            How many training rows hold each token.
        shapes : dict, default=None
            Other shapes of the arrays than those of ``state_shapes``.
        """
        shapes = shapes or self.state_shapes(n_tokens, n_components)
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


class SGD(Optimizer):
    """Stochastic gradient descent on the mean gradient of a batch.

    No state. All tokens share one learning rate, so a token that occurs in one row of ten thousand
    is updated ten thousand times more slowly than the intercept.

    Parameters
    ----------
    learning_rate : float, default=None
        Factor of the batch's mean gradient in a step. None is the estimator's default; 1.0, unless
        its docstring names another.

    Examples
    --------
    >>> from freqfm.optimizers import SGD
    >>> SGD(learning_rate=3.0)
    SGD(learning_rate=3.0)
    """

    _step_code = codes.STEP_SGD
    _defaults = {"learning_rate": 1.0}
    _parameter_constraints = {"learning_rate": [*POSITIVE, None]}

    def __init__(self, learning_rate: float | None = None):
        self.learning_rate = learning_rate


@dataclass(eq=False, repr=False)
class FASGD(Optimizer):
    """Frequency-aware SGD: a learning rate per token, for frequencies known in advance.

    Algorithm 1 of [1]_. Equation (7) sets a token's rate to min{1 / 4L, a / sqrt(T p_k)}, and
    theorems 3.1 and 3.2 relate its constant to that of SGD by the factor
    sqrt(sum p^2 / sum p). Combined they give::

        rate_k = min(max_step, learning_rate * sqrt(m / n_k)),    m = sum n^2 / sum n,

    on the batch's mean gradient: ``learning_rate`` means the same as for :class:`SGD`. A token with
    a count of m moves as with SGD, and rarer tokens move faster. If all tokens are equally
    frequent, it is SGD (corollary 3.1), bit for bit.

    State: one number per token.

    Parameters
    ----------
    learning_rate : float, default=None
        Rate of a token of average frequency. None is the estimator's default; 3.0, unless its
        docstring names another.
    max_step : float, default=100.0
        Largest rate, the 1 / 4L of equation (7), in units of the batch's mean gradient.
    counts : array-like of shape (n_features,), default=None
        How often each token occurs. None counts the rows of the first call to ``fit`` or
        ``partial_fit``. A token with count zero is treated as one with count one.

    References
    ----------
    .. [1] Y. Li, D. Choudhary, X. Wei, B. Yuan, B. Bhushanam, T. Zhao, G. Lan. "Frequency-aware
       SGD for Efficient Embedding Learning with Provable Benefits". ICLR 2022.

    Examples
    --------
    >>> from freqfm.optimizers import FASGD
    >>> state = FASGD(learning_rate=1.0, counts=[100, 100, 25]).init_state(3, 16, None)
    >>> state.per_row.round(2)
    array([0.96, 0.96, 1.91], dtype=float32)
    >>> state.nbytes
    12
    """

    _step_code = codes.STEP_SGD
    rate_code = codes.RATE_GIVEN
    _defaults = {"learning_rate": 3.0}
    _parameter_constraints = {
        "learning_rate": [*POSITIVE, None],
        "max_step": POSITIVE_OR_INFINITE,
        "counts": ["array-like", None],
    }

    learning_rate: float | None = None
    _: KW_ONLY
    max_step: float = 100.0
    counts: ArrayLike | None = None

    def _init_per_row(self, n_tokens, counts):
        if self.counts is not None:
            counts = np.asarray(self.counts, dtype=np.float64)
            if counts.shape != (n_tokens,):
                raise ValueError(
                    f"counts of FASGD has shape {counts.shape}, but X has {n_tokens} features; "
                    f"give one count per feature."
                )
            if not (np.isfinite(counts).all() and (counts >= 0).all() and counts.any()):
                raise ValueError(
                    "counts of FASGD must be finite and non-negative, and not all zero."
                )
        # Without new rows, partial_fit has nothing to count.
        average = (counts @ counts) / (counts.sum() or 1.0)
        relative = np.sqrt(average / np.where(counts > 0, counts, 1.0))
        rates = self.value_of("learning_rate") * relative
        return np.minimum(self.max_step, rates).astype(np.float32)


@dataclass(eq=False, repr=False)
class CFSGD(Optimizer):
    """Counter-based frequency-aware SGD: learning rates from token counts during training.

    Algorithm 2 of [1]_. The rate of a token seen c_k times so far is::

        rate_k = min(max_step, learning_rate / c_k^exponent, curvature_cap / L_k),

    on the *sum* of the batch's gradients. With exponent 1/2 the first two terms are equation (12),
    where p_k = c_k / T, and T cancels. The last term is for mini-batches and for values other than
    0 and 1. Equation (12) bounds a step by 1 / 4L, with L the smoothness of the loss on one sample.
    The more rows of a batch hold the token, and the larger their values and factors, the larger the
    curvature of the batch's loss; L_k bounds that curvature, row by row::

        L_k = sum_rows l'' |x_k| (1 + sum_i |x_i|) (1 + |s|^2),    s = sum_i x_i v_i,

    with l'' the largest second derivative of the loss: 1/4 for the log loss, 1 for the squared
    error. (Exactly it would be ``|s - x_i v_i|^2``, which is larger only if the vectors of a
    row cancel.) Twice the curvature of the penalties, the larger of ``alpha_linear`` and
    ``alpha_factors`` for each row, is added.

    On sparse clicks it affects only tokens that occur in a large part of all rows, whose first
    steps would overshoot without it; on dense data it keeps training stable. Counters are
    incremented before the step, so that none is zero.

    State: one number per token, 4 bytes.

    Parameters
    ----------
    learning_rate : float, default=None
        Rate of a token on its first occurrence, before the bounds. None is the estimator's default;
        2.0, unless its docstring names another.
    max_step : float, default=None
        The bound 1 / 4L of equation (12) for a token that occurs once in the batch. None is the
        estimator's default; 0.05, unless its docstring names another. ``fit`` of factorization
        machines divides it by two thirds of the mean square of the rows' weights over their squared
        mean, if that is above one: the smoothness L of a row's loss grows with the row's weight.
    curvature_cap : float, default=2.0
        Bound of the rate times L_k. ``numpy.inf`` turns it off, except for the intercept, which
        is part of every row: its bound is at most 2.
    exponent : float, default=0.5
        Exponent of the counter.
    count : {"sample", "batch"}, default="sample"
        Whether a token's counter is incremented by the number of rows that hold it (as in the
        paper; with ``sample_weight``, by their weight), or by one per batch (as in FBGEMM's
        ``COUNTER_SGD``).

    References
    ----------
    .. [1] Y. Li, D. Choudhary, X. Wei, B. Yuan, B. Bhushanam, T. Zhao, G. Lan. "Frequency-aware
       SGD for Efficient Embedding Learning with Provable Benefits". ICLR 2022.

    Examples
    --------
    >>> from freqfm.optimizers import CFSGD
    >>> CFSGD().init_state(1000, 64, None).nbytes
    4000
    """

    _step_code = codes.STEP_SGD
    rate_code = codes.RATE_COUNTED
    average = False
    _defaults = {"learning_rate": 2.0, "max_step": 0.05}
    _parameter_constraints = {
        "learning_rate": [*POSITIVE, None],
        "max_step": [*POSITIVE_OR_INFINITE, None],
        "curvature_cap": POSITIVE_OR_INFINITE,
        "exponent": NON_NEGATIVE,
        "count": [StrOptions({"sample", "batch"})],
    }
    _slots = "learning_rate", "max_step", "curvature_cap", "exponent"

    learning_rate: float | None = None
    _: KW_ONLY
    max_step: float | None = None
    curvature_cap: float = 2.0
    exponent: float = 0.5
    count: str = "sample"

    @property
    def count_code(self):
        """The code of what counters count."""
        return codes.COUNT_SAMPLES if self.count == "sample" else codes.COUNT_BATCHES

    def _init_per_row(self, n_tokens, counts):
        return np.zeros(n_tokens, dtype=np.float32)


class Adagrad(Optimizer):
    """Adagrad: steps are divided by the square root of the sum of squared gradients so far.

    The method of [1]_ as implemented by ``torch.optim.Adagrad``, on the batch's mean gradient. A
    row that is absent from a batch has gradient zero and does not move, so skipping it is exact.

    State: one number per weight, n_components + 1 per token.

    Parameters
    ----------
    learning_rate : float, default=None
        Size of the first step of every weight. None is the estimator's default; 0.05, unless its
        docstring names another.
    epsilon : float, default=1e-10
        Added to the square root.

    References
    ----------
    .. [1] J. Duchi, E. Hazan, Y. Singer. "Adaptive Subgradient Methods for Online Learning and
       Stochastic Optimization". JMLR 12, 2011.

    Examples
    --------
    >>> from freqfm.optimizers import Adagrad
    >>> Adagrad().init_state(1000, 64, None).nbytes == 4 * 1000 * 65
    True
    """

    _step_code = codes.STEP_ADAGRAD
    n_states = 1
    _defaults = {"learning_rate": 0.05}
    _parameter_constraints = {"learning_rate": [*POSITIVE, None], "epsilon": POSITIVE}
    _slots = "learning_rate", "epsilon"

    def __init__(self, learning_rate: float | None = None, *, epsilon: float = 1e-10):
        self.learning_rate = learning_rate
        self.epsilon = epsilon


class RowwiseAdagrad(Adagrad):
    """Adagrad with one accumulator per row: the mean of the row's squared gradients.

    Like CF-SGD it keeps one number per row, but learning rates depend on gradients instead of
    counts, as in FBGEMM's ``EXACT_ROWWISE_ADAGRAD``. Each linear weight is a row of length one.

    State: one number per row of factors and one per linear weight, 2 per token.

    Parameters
    ----------
    learning_rate : float, default=None
        Root mean square of the first step of every row. None is the estimator's default; 0.05,
        unless its docstring names another.
    epsilon : float, default=1e-10
        Added to the root.

    Examples
    --------
    >>> from freqfm.optimizers import RowwiseAdagrad
    >>> RowwiseAdagrad().init_state(1000, 64, None).nbytes
    8000
    """

    _step_code = codes.STEP_ROWWISE_ADAGRAD

    def state_widths(self, n_components):
        """Return the number of columns of ``factors_first`` and ``factors_second``."""
        return (1, 0) if self.step is None else super().state_widths(n_components)


@dataclass(eq=False, repr=False)
class Adam(Optimizer):
    """Adam: steps along a moving mean of gradients, scaled by a moving mean of their squares.

    The method of [1]_ as implemented by ``torch.optim.Adam``, on the batch's mean gradient.

    State: two numbers per weight, 2 * (n_components + 1) per token.

    Parameters
    ----------
    learning_rate : float, default=None
        Approximate size of the largest step of a weight. None is the estimator's default; 0.003,
        unless its docstring names another.
    beta_1, beta_2 : float, default=0.9 and 0.999
        Decay rates of the moving means of gradients and squared gradients.
    epsilon : float, default=1e-8
        Added to the root.
    lazy : bool, default=None
        Whether rows absent from a batch keep their weights and moments, as in
        ``torch.optim.SparseAdam``; the bias corrections count all batches. False updates every row
        in every batch, as ``torch.optim.Adam`` does with a dense gradient, at
        n_tokens * n_components operations per batch. None is the estimator's default; True, unless
        its docstring names another.

    References
    ----------
    .. [1] D. P. Kingma, J. Ba. "Adam: A Method for Stochastic Optimization". ICLR 2015.

    Examples
    --------
    >>> from freqfm.optimizers import Adam
    >>> Adam().init_state(1000, 64, None).nbytes == 8 * 1000 * 65
    True
    """

    _step_code = codes.STEP_ADAM
    n_states = 2
    _defaults = {"learning_rate": 0.003, "lazy": True}
    _parameter_constraints = {
        "learning_rate": [*POSITIVE, None],
        "beta_1": [Interval(Real, 0, 1, closed="left")],
        "beta_2": [Interval(Real, 0, 1, closed="left")],
        "epsilon": POSITIVE,
        "lazy": ["boolean", None],
    }
    _slots = "learning_rate", "beta_1", "beta_2", "epsilon"

    learning_rate: float | None = None
    _: KW_ONLY
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-8
    lazy: bool | None = None

    def corrections(self, steps):
        """Return the bias corrections of the moments, see :class:`Optimizer`."""
        if self.step is not None:
            return super().corrections(steps)
        powers = np.maximum(steps, 1)
        first = 1 - self.beta_1**powers
        return np.column_stack([first, np.sqrt(1 - self.beta_2**powers)])


OPTIMIZERS = {
    "sgd": SGD,
    "fa_sgd": FASGD,
    "cf_sgd": CFSGD,
    "rowwise_adagrad": RowwiseAdagrad,
    "adagrad": Adagrad,
    "adam": Adam,
}
