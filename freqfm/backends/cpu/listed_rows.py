"""Dot products with listed rows of a table, and sums of these rows."""

from typing import NamedTuple

import numpy as np

from freqfm._numba.jit import ZERO, inlined
from freqfm._numba.prefetch import prefetch_row
from freqfm.backends.cpu.vectors import add_multiple

#: A row is prefetched this many tokens before it is scored.
AHEAD = 32


class Listed(NamedTuple):
    """Some rows of a table: ``n`` tokens of a list, from ``first`` on every ``stride``-th."""

    tokens: np.ndarray  #: int32
    first: int
    stride: int
    n: int
    end: int  #: tokens before this one may be prefetched


@inlined
def score_rows(listed, table, vectors, r, out, s):
    """Write the dot products of listed rows of a table and row ``r`` of ``vectors`` to ``out[s]``.

    Rows that are next in the list are prefetched.
    """
    vector = vectors[np.uint64(r)]
    for i in range(listed.n):
        q = listed.first + i * listed.stride
        prefetch_row(table, listed.tokens[np.uint64(min(q + AHEAD, listed.end - 1))])
        row = table[np.uint64(listed.tokens[np.uint64(q)])]
        score = ZERO
        for f in range(table.shape[1]):
            score += vector[f] * row[f]
        out[np.uint64(s), np.uint64(i)] = score


@inlined
def add_rows(listed, table, multiples, m, out, r):
    """Add listed rows of a table, each times a number of ``multiples[m]``, to ``out[r]``."""
    total = out[np.uint64(r)]
    for i in range(listed.n):
        token = np.uint64(listed.tokens[np.uint64(listed.first + i * listed.stride)])
        add_multiple(multiples[np.uint64(m), np.uint64(i)], table[token], total)
