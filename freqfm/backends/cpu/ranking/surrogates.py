"""The softmax of surrogates: functions that replace those of ``softmax_rows``.

A row is one positive. In place of the scores s_j of negatives stand the logs of surrogates of
exp(s_j - s_p), which depend on the positive's score s_p, too.
"""

import numpy as np

from freqfm._numba.jit import ONE, ZERO
from freqfm.backends.cpu.ranking.softmax_rows import derivatives_of_row, values_of_row
from freqfm.backends.cpu.tables import row_length, user_of
from freqfm.formulas.losses import log_surrogate


def _write_surrogates(r, s, n, batch, softmax, items, scratch):
    """Write the logs of the surrogates to row ``s``, and their derivatives to the slopes."""
    table, scores, slopes = items.table.weights, scratch.scores, scratch.slopes
    k = np.uint64(batch.data.items[batch.data.row_starts[batch.first_row + r]])
    dot = ZERO
    for f in range(table.shape[1]):
        dot += table[k, f] * scratch.sources[r, f]
    positive = dot / (row_length(table, k, table.shape[1]) if softmax.cosine else ONE)
    for j in range(n):
        scores[s, j], slopes[s, j] = log_surrogate(scores[s, j] - positive)
    return False


def _multiply_by_slopes(r, s, n, batch, softmax, scratch):
    """Multiply the exponentials in row ``s`` by the slopes; see ``derivatives_of_row``."""
    scores, slopes = scratch.scores, scratch.slopes
    for j in range(n):
        scores[s, j] *= slopes[s, j]
    # A sum has a loop over one array, see ``_exponentials_of_row``.
    total = ZERO
    for j in range(n):
        total += scores[s, j]
    inverse = np.float64(softmax.inverse_temperatures[user_of(batch, r), 1])
    return 0.0, softmax.constant * inverse * total / scratch.totals[r]


#: Replacements of a loss that replaces ``log_surrogate``, see ``jit.specialised``.
SURROGATES = {values_of_row: _write_surrogates, derivatives_of_row: _multiply_by_slopes}
