"""Tables of an autoencoder beside its items: inputs, whose rows batches list, and dense layers."""

from typing import NamedTuple

import numpy as np

from freqfm._numba.jit import inlined
from freqfm.backends.cuda.tables import Side, Step, apply_gradients, catch_up_rows, move_all


class Moved(NamedTuple):
    """Rows of a table, and the step that moves them."""

    side: Side
    step: Step
    number: int  #: of the step in the epoch
    sources: np.ndarray  #: the source rows of the occurrences
    mean: float  #: the factor of the penalty for each occurrence


@inlined
def catch_up_listed(group, s, moved):
    """Let the rows of a batch catch up on the steps that they have missed."""
    catch_up_rows(group, 0, moved.number, moved.side, moved.step)


@inlined
def move_listed(group, s, moved):
    """Move the rows that a batch has listed."""
    apply_gradients(group, 0, moved.number, moved.side, moved.sources, 0, moved.mean, moved.step)


@inlined
def move_layer(group, s, moved):
    """Move all rows of a table."""
    move_all(group, moved.number, moved.side, moved.step)


CATCH_UP = (catch_up_listed,)
MOVE_LISTED = (move_listed,)
MOVE_ALL = (move_layer,)
