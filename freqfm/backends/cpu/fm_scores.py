"""The score of a row under a factorization machine.

A row of n entries and d factors takes n d multiplications, and about as many bytes are fetched: at
full speed the fetching dominates. Sums over entries are therefore kept in registers, for 64 columns
of the factors at a time, see ``vectors``.
"""

import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from freqfm._numba.jit import HALF, JIT_DISABLED, ZERO, inlined
from freqfm._numba.prefetch import EARLY, prefetch_element_early, prefetch_row_early
from freqfm._numba.vectors import (
    BLOCK,
    FLOAT,
    I64,
    LANES,
    VECTOR,
    VECTORS,
    Arguments,
    VectorWriter,
)

__all__ = ["score_rows"]

_NONE, _ONE, _TWO = np.uint64(0), np.uint64(1), np.uint64(2)

# Factors of more bytes than this are prefetched. A core itself runs ahead far enough to hide the
# second-level cache, but neither the shared cache nor memory.
_NEAR = 1 << 22

# Vectors are prefetched for this many rows at a time, and how many entries ahead.
_ROWS, _EARLY = np.uint64(4), np.uint64(EARLY)


def _columns_intrinsic(n_vectors):
    """Return a function that sums a row over ``n_vectors`` vectors of columns.

    With one vector, columns beyond the table count as zeros.
    """

    @intrinsic
    def sum_columns(typing_context, token, value, row, linear, factors, column):
        def codegen(context, builder, signature, args):
            given, w = Arguments(context, builder, signature, args), VectorWriter(builder)
            token, value, linear, factors = (given.array(i) for i in (0, 1, 3, 4))
            first, last = given.range(2)
            width, column = builder.extract_value(factors.shape, 1), given[5]
            mask = w.first_lanes(builder.sub(width, column)) if n_vectors == 1 else None
            score = cgutils.alloca_once_value(builder, FLOAT(0.0))
            sums = [w.variable() for _ in range(n_vectors)]
            squares = [w.variable() for _ in range(n_vectors)]
            with cgutils.for_range_slice(builder, first, last, I64(1), I64) as (p, _):
                k, x = w.index(token, p), w.element(value, p)
                w.add(score, w.times(x, w.element(linear, k)))
                row, x = w.row(factors, k, column), w.in_all_lanes(x)
                for j in range(n_vectors):
                    term = w.times(x, w.load(row, j * LANES, mask))
                    w.add(sums[j], term)
                    w.add(squares[j], w.times(term, term))
            difference = w.variable()
            for s, q in zip(map(builder.load, sums), map(builder.load, squares), strict=True):
                w.add(difference, w.minus(w.times(s, s), q))
            found = [builder.load(score), w.total(builder.load(difference))]
            return context.make_tuple(builder, signature.return_type, found)

        arguments = token, value, row, linear, factors, column
        return types.UniTuple(types.float32, 2)(*arguments), codegen

    return sum_columns


if JIT_DISABLED:

    def _sum_vector(token, value, row, linear, factors, column, n_columns=LANES):
        """Sum a row over some columns.

        Returns the sum of x w, and that of (sum of x v)^2 - sum of (x v)^2 over the columns.
        """
        entries = slice(*row)
        x, tokens = value[entries], token[entries]
        terms = x[:, None] * factors[tokens, int(column) : int(column) + n_columns]
        pairs = terms.sum(axis=0) ** 2 - (terms * terms).sum(axis=0)
        return x @ linear[tokens], pairs.sum()

    def _sum_block(*args):
        return _sum_vector(*args, LANES * VECTORS)

else:
    _sum_vector, _sum_block = _columns_intrinsic(1), _columns_intrinsic(VECTORS)


@inlined
def _score_pair(p, q, rows, weights):
    """Return what two entries add to the intercept: a dot product is their only interaction."""
    i, j = np.uint64(rows.token[p]), np.uint64(rows.token[q])
    product = ZERO
    for f in range(weights.factors.shape[1]):
        product += weights.factors[i, f] * weights.factors[j, f]
    x, y = rows.value[p], rows.value[q]
    return x * weights.linear[i] + y * weights.linear[j] + x * y * product


@inlined
def score_of_row(i, rows, weights):
    """Return the score of row ``i`` of a CSR matrix.

    The interactions, sum_{i<k} <v_i, v_k> x_i x_k, are half of |sum of x v|^2 - sum of |x v|^2.
    """
    row = np.uint64(rows.indptr[i]), np.uint64(rows.indptr[i + 1])
    linear, factors = weights.linear, weights.factors
    if row[1] - row[0] == _TWO:
        return weights.intercept[0] + _score_pair(row[0], row[0] + _ONE, rows, weights)
    width = np.uint64(factors.shape[1])
    # Every call sums the linear part too; where the result is not used, LLVM leaves that out.
    if width >= BLOCK:
        score, pairs = _sum_block(rows.token, rows.value, row, linear, factors, np.uint64(0))
        column = BLOCK
    else:
        score, pairs = _sum_vector(rows.token, rows.value, row, linear, factors, np.uint64(0))
        column = VECTOR
    while column + BLOCK <= width:
        pairs += _sum_block(rows.token, rows.value, row, linear, factors, column)[1]
        column += BLOCK
    while column < width:
        pairs += _sum_vector(rows.token, rows.value, row, linear, factors, column)[1]
        column += VECTOR
    return weights.intercept[0] + score + HALF * pairs


@inlined
def _prefetch_entries(first, last, end, weights, rows):
    """Prefetch the vectors of some entries, of those before ``end``."""
    for p in range(first, min(last, end)):
        k = np.uint64(rows.token[p])
        prefetch_row_early(weights.factors, k)
        prefetch_element_early(weights.linear, k)


@inlined
def score_rows(begin, end, rows, weights, scores):
    """Write the scores of the rows from ``begin`` to ``end`` of a CSR matrix."""
    far = weights.factors.size * weights.factors.itemsize > _NEAR
    # As the bound of a loop: LLVM would compile a branch as two versions of all that follows.
    prefetched = np.uint64(rows.indptr[end]) if far else _NONE
    for block in range(begin, end, _ROWS):
        last = min(block + _ROWS, end)
        first_entry, last_entry = np.uint64(rows.indptr[block]), np.uint64(rows.indptr[last])
        _prefetch_entries(first_entry + _EARLY, last_entry + _EARLY, prefetched, weights, rows)
        i = block
        # Pairs in a loop of their own, whose variables fit into registers.
        while i < last and rows.indptr[i + _ONE] - rows.indptr[i] == 2:
            p = np.uint64(rows.indptr[i])
            scores[i] = weights.intercept[0] + _score_pair(p, p + _ONE, rows, weights)
            i += _ONE
        for j in range(i, last):
            scores[j] = score_of_row(j, rows, weights)
