"""Optimizers whose steps depend on frequencies of tokens, or on past gradients."""

from dataclasses import KW_ONLY, dataclass
from numbers import Real

import numpy as np
from numpy.typing import ArrayLike

from freqfm._components import NON_NEGATIVE, POSITIVE, POSITIVE_OR_INFINITE
from freqfm._sklearn import Interval, StrOptions
from freqfm.formulas import codes
from freqfm.optimizers._base import Optimizer


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
    _slots = {
        "learning_rate": codes.LEARNING_RATE,
        "max_step": codes.MAX_STEP,
        "curvature_cap": codes.CURVATURE_CAP,
        "exponent": codes.EXPONENT,
    }

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
    _slots = {"learning_rate": codes.LEARNING_RATE, "epsilon": codes.EPSILON}

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
    _slots = {
        "learning_rate": codes.LEARNING_RATE,
        "beta_1": codes.BETA_1,
        "beta_2": codes.BETA_2,
        "epsilon": codes.EPSILON,
    }

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
