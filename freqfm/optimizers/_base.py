"""What an optimizer is to a kernel: codes, hyper-parameters and arrays of state."""

from typing import NamedTuple

import numpy as np

from freqfm._components import Component
from freqfm.formulas import codes


class OptimizerState(NamedTuple):
    """Arrays that an optimizer carries from batch to batch; a kernel updates them in place.

    All float32; an array that the optimizer has no use for is empty.
    """

    per_row: np.ndarray  #: (n_tokens,) learning rates or counters
    intercept: np.ndarray  #: (3,) two moments and a counter
    linear_first: np.ndarray  #: (n_tokens,)
    linear_second: np.ndarray  #: (n_tokens,)
    factors_first: np.ndarray  #: (n_tokens, n_components), or (n_tokens, 1)
    factors_second: np.ndarray  #: (n_tokens, n_components)

    @property
    def nbytes(self):
        """Bytes of state that grow with the tokens."""
        return sum(array.nbytes for array in self) - self.intercept.nbytes


class Optimizer(Component):
    """Base class of optimizers.

    A subclass sets the codes below, stores its hyper-parameters under the names of the slots in
    ``_slots``, and says how wide its state is. Kernels do the rest.
    """

    _compiled = True
    _fixed = (
        "step_code", "rate_code", "count_code", "hyper", "corrections", "state_shapes",
        "state_widths", "init_state", "_slots",
    )  # fmt: skip

    #: How a row moves along its gradient, see ``freqfm.formulas.codes``.
    step_code = codes.STEP_SGD
    #: Where a row's learning rate comes from.
    rate_code = codes.RATE_CONSTANT
    #: Whether a step follows the mean of the batch's gradients, or their sum.
    average = True
    #: Whether rows absent from a batch are left alone.
    lazy = True
    #: Constructor parameters that kernels read, and their slots.
    _slots = {"learning_rate": codes.LEARNING_RATE}

    @property
    def count_code(self):
        """What a counter counts; of interest to counted rates only."""
        return codes.COUNT_SAMPLES

    def hyper(self):
        """Return the hyper-parameters as kernels read them."""
        hyper = np.zeros(codes.N_HYPER)
        for name, slot in self._slots.items():
            hyper[slot] = getattr(self, name)
        return hyper

    def corrections(self, steps):
        """Return what the rate and the root of the second moment are divided by, of shape (n, 2).

        Parameters
        ----------
        steps : ndarray of shape (n,)
            Numbers of steps, of which the first is 1.
        """
        return np.ones((len(steps), 2))

    def state_widths(self, n_components):
        """Return the number of columns of ``factors_first`` and ``factors_second``."""
        return 0, 0

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
        arrays = {name: np.zeros(shape, dtype=np.float32) for name, shape in shapes.items()}
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
        }

    def _init_per_row(self, n_tokens, counts):
        return np.zeros(0, dtype=np.float32)
