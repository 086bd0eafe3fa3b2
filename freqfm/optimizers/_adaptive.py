"""Optimizers that scale steps by past gradients: Adagrad, row-wise Adagrad, Adam."""

from dataclasses import KW_ONLY, dataclass
from numbers import Real

import numpy as np

from freqfm._components import POSITIVE
from freqfm._sklearn import Interval
from freqfm.formulas import codes
from freqfm.optimizers._base import Optimizer


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
