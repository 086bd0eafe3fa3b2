"""Scores of factorization machines, plain and rank-aware.

With A(p, q) the interactions of the tokens of level q by their vectors of level p, scores are
B(p + 1) = B(p) - A(p, p + 1) + A(p + 1, p + 1). A token's vector at its highest level is free and
follows the loss of the last score; the others are dependent and make B(p) follow B(p + 1). With
``prefix`` levels are parts of one vector, nothing is subtracted, and all vectors follow the loss. A
plain machine has one level, and row k of its table belongs to token k.
"""

from typing import NamedTuple

import numpy as np

from freqfm._numba.jit import HALF, ZERO, inlined
from freqfm.backends.cuda.columns import (
    COLUMNS,
    FOUR_ZEROS,
    add,
    four_columns,
    moved,
    products,
    read_from,
    sum_inside,
    times,
    write,
)
from freqfm.backends.cuda.groups import group_sum


class FMRows(NamedTuple):
    """Rows of X, in CSR."""

    indptr: np.ndarray  #: (n_rows + 1,), int64
    tokens: np.ndarray  #: (nnz,), int32
    values: np.ndarray  #: (nnz,), float32


class FMVectors(NamedTuple):
    """The weights of one output, float32."""

    intercept: np.ndarray  #: (1,)
    linear: np.ndarray  #: (n,)
    factors: np.ndarray  #: the tables of all levels, one-dimensional
    dense: np.ndarray  #: (1, n_weights), of dense layers; or (1, 0)


class Levels(NamedTuple):
    """The tables of all levels, which stand one after the other in one array of weights.

    Tuples, which a kernel reads without the delay of an array in memory.
    """

    ranked: bool  #: whether there are several tables; if not, ``levels`` and ``rows`` are empty
    widths: tuple  #: (m,)
    starts: tuple  #: (m,), where tables begin in the weights
    columns: tuple  #: (m,), where levels begin in a row of the scratch
    first_starts: tuple  #: (m,), where states of row-wise Adagrad begin
    levels: np.ndarray  #: (n,), int32, the highest level of each token
    rows: np.ndarray  #: (n,), int32, the row of a token in its tables
    prefix: bool
    follow_loss: bool  #: whether dependent vectors follow the loss of the last score too
    dependent_weight: float  #: of the losses of dependent vectors


@inlined
def level_of(levels, k):
    """Return the highest level of a token."""
    return levels.levels[k] if levels.ranked else 0


@inlined
def row_of(levels, k):
    """Return the row of a token in its tables."""
    return levels.rows[k] if levels.ranked else k


@inlined
def sum_level(group, row, p, weights, levels, out):
    """Return a level's interactions in a row, those that are replaced, and |sum of x v|^2.

    The sums go to row ``j`` of ``out``: all, and those of free vectors; or nowhere.
    """
    rows, i, j = row
    sums, free_sums = out
    width, start, column = levels.widths[p], levels.starts[p], levels.columns[p]
    final = levels.prefix or p == len(levels.widths) - 1
    norm, kept_norm, squares, kept_squares = ZERO, ZERO, ZERO, ZERO
    for f in range(group.lane, width, COLUMNS * group.n_lanes):
        columns = four_columns(group, f, width)
        kept, free, of_kept, of_free = FOUR_ZEROS, FOUR_ZEROS, FOUR_ZEROS, FOUR_ZEROS
        for e in range(rows.indptr[i], rows.indptr[i + 1]):
            k = rows.tokens[e]
            if level_of(levels, k) < p:
                continue
            term = times(
                rows.values[e], read_from(weights, start + row_of(levels, k) * width, columns)
            )
            if level_of(levels, k) == p and not final:
                free, of_free = add(free, term), add(of_free, products(term, term))
            else:
                kept, of_kept = add(kept, term), add(of_kept, products(term, term))
        total = add(kept, free)
        norm += sum_inside(columns, products(total, total))
        squares += sum_inside(columns, add(of_kept, of_free))
        kept_norm += sum_inside(columns, products(kept, kept))
        kept_squares += sum_inside(columns, of_kept)
        if sums.shape[0] > 0:
            write(sums, j, moved(columns, column), total)
        if free_sums.shape[0] > 0:
            write(free_sums, j, moved(columns, column), free)
    norm = group_sum(group, norm)
    interactions = HALF * (norm - group_sum(group, squares))
    replaced = ZERO if final else HALF * group_sum(group, kept_norm - kept_squares)
    return interactions, replaced, norm


@inlined
def linear_part(group, rows, i, linear):
    """Return the linear part of a row's score, and the sum of |x|."""
    total, reach = ZERO, ZERO
    for p in range(rows.indptr[i] + group.lane, rows.indptr[i + 1], group.n_lanes):
        x = rows.values[p]
        total += x * linear[rows.tokens[p]]
        reach += abs(x)
    return group_sum(group, total), group_sum(group, reach)


@inlined
def score(group, b, args):
    """Write the scores of rows."""
    rows, (intercept, linear, weights, _), levels, nothing, scores = args
    for i in range(group.rank, scores.shape[0], group.size):
        of_linear, _ = linear_part(group, rows, i, linear)
        found, replaced = intercept[0] + of_linear, ZERO
        for p in range(len(levels.widths)):
            row = rows, i, 0
            found -= replaced
            more, replaced, _ = sum_level(group, row, p, weights, levels, (nothing, nothing))
            found += more
        if group.lane == 0:
            scores[i] = found


SCORE = (score,)
