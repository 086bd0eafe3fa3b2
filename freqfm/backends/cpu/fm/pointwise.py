"""A pointwise loss over many scores: predictions, the mean loss, and its derivative."""

import numpy as np

from freqfm._numba.jit import kernel
from freqfm.formulas.losses import expectation, loss_and_gradient


@kernel
def expected_targets(rank, size, barrier, loss_code, scores, out):
    """Write to ``out`` (n,) the targets that ``scores`` (n,) predict; both float32."""
    n = scores.shape[0]
    for i in range(n * rank // size, n * (rank + 1) // size):
        out[i] = expectation(loss_code, scores[i])


@kernel
def sum_losses(rank, size, barrier, loss_code, rows):
    """Return the weighted sum of the losses, and of their derivatives; for a single thread."""
    loss = 0.0
    derivative = 0.0
    for i in range(rows.scores.shape[0]):
        of_row = loss_and_gradient(loss_code, rows.scores[i], rows.targets[i])
        loss += rows.weights[i] * np.float64(of_row[0])
        derivative += rows.weights[i] * np.float64(of_row[1])
    return loss, derivative
