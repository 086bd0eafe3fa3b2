"""Sums over the entries of a batch, for some columns of the factors.

They are written in vector instructions, see ``vectors``. The functions without compilation, at the
end, say what each of them does.
"""

import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from freqfm._numba.jit import JIT_DISABLED
from freqfm._numba.vectors import DOUBLE, I64, LANES, Arguments, VectorWriter

__all__ = ["BLOCK", "sum_gradient_block", "sum_gradient_tail", "sum_row_block", "sum_row_tail"]

_VECTORS = 2

#: Columns of a block. The last ones of a table whose width is no multiple of it are taken one
#: vector at a time.
BLOCK = LANES * _VECTORS


def _row_intrinsic(n_vectors):
    """Return a function that sums a row over ``n_vectors`` vectors of columns.

    With one vector, columns beyond the table count as zeros.
    """

    @intrinsic
    def sum_row(typing_context, batch, entries, factors, column, sums, j):
        def codegen(context, builder, signature, args):
            given, w = Arguments(context, builder, signature, args), VectorWriter(builder)
            tokens, values = given.arrays(0, "entry_tokens entry_values")
            first, last = given.range(1)
            factors, column, sums = given.array(2), given[3], given.array(4)
            width = builder.extract_value(factors.shape, 1)
            mask = w.first_lanes(builder.sub(width, column)) if n_vectors == 1 else None
            totals = [w.variable() for _ in range(n_vectors)]
            squares, norm = w.variable(), w.variable()
            with cgutils.for_range_slice(builder, first, last, I64(1), I64) as (p, _):
                row = w.row(factors, w.index(tokens, p), column)
                x = w.in_all_lanes(w.element(values, p))
                for i, total in enumerate(totals):
                    term = w.times(x, w.load(row, i * LANES, mask))
                    w.add(total, term)
                    w.add(squares, w.times(term, term))
            row = w.row(sums, given[5], column)
            for i, total in enumerate(map(builder.load, totals)):
                w.store(total, row, i * LANES)
                w.add(norm, w.times(total, total))
            found = [w.total(builder.load(x)) for x in (norm, squares)]
            return context.make_tuple(builder, signature.return_type, found)

        arguments = batch, entries, factors, column, sums, j
        return types.UniTuple(types.float32, 2)(*arguments), codegen

    return sum_row


def _gradient_intrinsic(n_vectors):
    """Return a function that sums the gradient of ``n_vectors`` vectors of a token's columns."""

    @intrinsic
    def sum_gradient(typing_context, batch, scratch, scale, factors, t, column, gradient):
        def codegen(context, builder, signature, args):
            given, w = Arguments(context, builder, signature, args), VectorWriter(builder)
            tokens, starts, rows, values = given.arrays(0, "tokens starts rows values")
            derivatives, shrinkages, sums = given.arrays(1, "derivatives shrinkages sums")
            scale, factors, t, column = given[2], given.array(3), given[4], given[5]
            width = builder.extract_value(factors.shape, 1)
            mask = w.first_lanes(builder.sub(width, column)) if n_vectors == 1 else None
            row = w.row(factors, w.index(tokens, t), column)
            shrinkage = w.in_all_lanes(builder.fneg(w.element(shrinkages, t)))
            totals = [
                w.variable(w.times(shrinkage, w.doubles(w.load(row, i * LANES, mask))))
                for i in range(n_vectors)
            ]
            first, last = w.index(starts, t), w.index(starts, builder.add(t, I64(1)))
            with cgutils.for_range_slice(builder, first, last, I64(1), I64) as (p, _):
                j = w.index(rows, p)
                x = builder.fpext(w.element(values, p), DOUBLE)
                a = w.in_all_lanes(w.times(w.times(w.element(derivatives, j), x), scale))
                row = w.row(sums, j, column)
                for i, total in enumerate(totals):
                    w.add(total, w.times(a, w.doubles(w.load(row, i * LANES))))
            address = builder.gep(given.array(6).data, [column])
            for i, total in enumerate(totals):
                w.store(w.floats(builder.load(total)), address, i * LANES)
            return context.get_dummy_value()

        arguments = batch, scratch, scale, factors, t, column, gradient
        return types.void(*arguments), codegen

    return sum_gradient


if JIT_DISABLED:

    def sum_row_tail(batch, entries, factors, column, sums, j, n_columns=LANES):
        """Write some columns of a row's sum of x v.

        Returns the squared norm of the sum, and the sum of the squared norms of all x v.
        """
        entries, column = slice(*entries), int(column)
        tokens, values = batch.entry_tokens[entries], batch.entry_values[entries]
        terms = values[:, None] * factors[tokens, column : column + n_columns]
        total = terms.sum(axis=0)
        sums[j, column : column + len(total)] = total
        return (total * total).sum(), (terms * terms).sum()

    def sum_row_block(*args):
        """Do what ``sum_row_tail`` does for a block of columns."""
        return sum_row_tail(*args, BLOCK)

    def sum_gradient_tail(batch, scratch, scale, factors, t, column, gradient, n_columns=LANES):
        """Write some columns of the gradient of the factors of the batch's token ``t``.

        That of one row of the batch is derivative * x * (sum of x v - x v_k), plus alpha v_k. Sums
        are kept in double precision: they are exact for the purposes of float32 weights, in
        whatever order.
        """
        entries = slice(batch.starts[t], batch.starts[t + 1])
        columns = slice(int(column), min(int(column) + n_columns, factors.shape[1]))
        rows = batch.rows[entries]
        coefficients = scratch.derivatives[rows] * batch.values[entries] * scale
        total = coefficients @ scratch.sums[rows, columns].astype(np.float64)
        gradient[columns] = total - scratch.shrinkages[t] * factors[batch.tokens[t], columns]

    def sum_gradient_block(*args):
        """Do what ``sum_gradient_tail`` does for a block of columns."""
        sum_gradient_tail(*args, BLOCK)

else:
    sum_row_tail, sum_row_block = _row_intrinsic(1), _row_intrinsic(_VECTORS)
    sum_gradient_tail, sum_gradient_block = _gradient_intrinsic(1), _gradient_intrinsic(_VECTORS)
