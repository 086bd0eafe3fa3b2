"""Sums over the entries of a batch, for some columns of the factors.

These take most of the time of training. They are written in vector instructions, see ``vectors``.
"""

import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from freqfm._jit import JIT_DISABLED
from freqfm.backends.cpu.vectors import I64, LANES, Arguments, VectorWriter

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
    def sum_row(typing_context, tokens, values, entries, factors, column, sums, j):
        def codegen(context, builder, signature, args):
            given, w = Arguments(context, builder, signature, args), VectorWriter(builder)
            tokens, values, factors, sums = (given.array(i) for i in (0, 1, 3, 5))
            first, last = given.range(2)
            column = given[4]
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
            address = w.row(sums, given[6], column)
            for i, total in enumerate(map(builder.load, totals)):
                w.store(total, address, i * LANES)
                w.add(norm, w.times(total, total))
            found = [w.total(builder.load(x)) for x in (norm, squares)]
            return context.make_tuple(builder, signature.return_type, found)

        arguments = tokens, values, entries, factors, column, sums, j
        return types.UniTuple(types.float32, 2)(*arguments), codegen

    return sum_row


def _gradient_intrinsic(n_vectors):
    """Return a function that sums the gradient of ``n_vectors`` vectors of a token's columns."""

    @intrinsic
    def sum_gradient(
        typing_context, rows, coefficients, occurrences, sums, shrinkage, factors, k, column,
        gradient,
    ):  # fmt: skip
        def codegen(context, builder, signature, args):
            given, w = Arguments(context, builder, signature, args), VectorWriter(builder)
            rows, coefficients, sums, factors, gradient = (
                given.array(i) for i in (0, 1, 3, 5, 8)
            )
            first, last = given.range(2)
            column = given[7]
            width = builder.extract_value(factors.shape, 1)
            mask = w.first_lanes(builder.sub(width, column)) if n_vectors == 1 else None
            row = w.row(factors, given[6], column)
            shrinkage = w.in_all_lanes(builder.fneg(given[4]))
            totals = [
                w.variable(w.times(shrinkage, w.doubles(w.load(row, i * LANES, mask))))
                for i in range(n_vectors)
            ]
            with cgutils.for_range_slice(builder, first, last, I64(1), I64) as (p, _):
                row = w.row(sums, w.index(rows, p), column)
                a = w.in_all_lanes(w.element(coefficients, p))
                for i, total in enumerate(totals):
                    w.add(total, w.times(a, w.doubles(w.load(row, i * LANES))))
            address = builder.gep(gradient.data, [column])
            for i, total in enumerate(totals):
                w.store(w.floats(builder.load(total)), address, i * LANES)
            return context.get_dummy_value()

        arguments = (
            rows, coefficients, occurrences, sums, shrinkage, factors, k, column, gradient
        )  # fmt: skip
        return types.void(*arguments), codegen

    return sum_gradient


if JIT_DISABLED:

    def sum_row_tail(tokens, values, entries, factors, column, sums, j, n_columns=LANES):
        """Write some columns of a row's sum of x v; return squared norms, see below.

        Returns the squared norm of the sum, and the sum of the squared norms of all x v.
        """
        entries, columns = slice(*entries), slice(int(column), int(column) + n_columns)
        terms = values[entries][:, None] * factors[tokens[entries], columns]
        total = terms.sum(axis=0)
        sums[j, int(column) : int(column) + len(total)] = total
        return (total * total).sum(), (terms * terms).sum()

    def sum_row_block(*args):
        """Do what ``sum_row_tail`` does for a block of columns."""
        return sum_row_tail(*args, BLOCK)

    def sum_gradient_tail(
        rows, coefficients, occurrences, sums, shrinkage, factors, k, column, gradient,
        n_columns=LANES,
    ):  # fmt: skip
        """Write some columns of the gradient of a token's factors."""
        occurrences = slice(*occurrences)
        columns = slice(int(column), min(int(column) + n_columns, factors.shape[1]))
        total = coefficients[occurrences] @ sums[rows[occurrences], columns].astype(np.float64)
        gradient[columns] = total - shrinkage * factors[k, columns]

    def sum_gradient_block(*args):
        """Do what ``sum_gradient_tail`` does for a block of columns."""
        sum_gradient_tail(*args, BLOCK)

else:
    sum_row_tail, sum_row_block = _row_intrinsic(1), _row_intrinsic(_VECTORS)
    sum_gradient_tail, sum_gradient_block = _gradient_intrinsic(1), _gradient_intrinsic(_VECTORS)
