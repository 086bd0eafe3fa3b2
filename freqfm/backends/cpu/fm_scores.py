"""The score of a row under a factorization machine.

A row of n entries and d factors takes n d multiplications, and about as many bytes are fetched: at
full speed the fetching dominates. Sums over entries are therefore kept in registers, for 64 columns
of the factors at a time. A compiler vectorises only the innermost of two loops, and keeps the sums
of an outer loop in memory, so the loop over entries is written in vector instructions here.
"""

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from freqfm._jit import FASTMATH, HALF, JIT_DISABLED, ZERO, inlined

__all__ = ["score_of_row"]

# Columns of a vector, and vectors of a block of columns. The last columns of a table whose width is
# no multiple of a block are taken one vector at a time.
_LANES, _VECTORS = 16, 4
_VECTOR, _BLOCK = np.uint64(_LANES), np.uint64(_LANES * _VECTORS)
_ONE, _TWO = np.uint64(1), np.uint64(2)

_FLOAT, _I32, _I64 = ir.FloatType(), ir.IntType(32), ir.IntType(64)
_FLOATS = ir.VectorType(_FLOAT, _LANES)
_FLAGS = tuple(sorted(FASTMATH))


class _Writer:
    """Writes vector instructions."""

    def __init__(self, builder):
        self._builder = builder

    def variable(self):
        """Return a vector of zeros that ``add`` changes; LLVM keeps it in a register."""
        return cgutils.alloca_once_value(self._builder, ir.Constant(_FLOATS, [0.0] * _LANES))

    def add(self, variable, x):
        b = self._builder
        b.store(b.fadd(b.load(variable), x, flags=_FLAGS), variable)

    def times(self, x, y):
        return self._builder.fmul(x, y, flags=_FLAGS)

    def in_all_lanes(self, x):
        """Return a vector of a scalar's copies."""
        b, nothing = self._builder, ir.Constant(ir.VectorType(x.type, _LANES), ir.Undefined)
        zeros = ir.Constant(ir.VectorType(_I32, _LANES), [0] * _LANES)
        return b.shuffle_vector(b.insert_element(nothing, x, _I32(0)), nothing, zeros)

    def first_lanes(self, n):
        """Return a mask of the lanes before ``n``."""
        numbers = ir.Constant(ir.VectorType(_I64, _LANES), list(range(_LANES)))
        return self._builder.icmp_unsigned("<", numbers, self.in_all_lanes(n))

    def load(self, address, mask=None):
        """Return 16 numbers at an address, zeros where the mask, if given, is false."""
        b = self._builder
        address = b.bitcast(address, _FLOATS.as_pointer())
        if mask is None:
            return b.load(address, align=4)
        name = f"llvm.masked.load.v{_LANES}f32.p0v{_LANES}f32"
        signature = ir.FunctionType(_FLOATS, [address.type, _I32, mask.type, _FLOATS])
        function = cgutils.get_or_insert_function(b.module, signature, name)
        return b.call(function, [address, _I32(4), mask, ir.Constant(_FLOATS, [0.0] * _LANES)])

    def total(self, x):
        """Return the sum of the lanes."""
        b, n = self._builder, _LANES
        while n > 1:
            n //= 2
            low, high = (
                b.shuffle_vector(
                    x,
                    ir.Constant(x.type, ir.Undefined),
                    ir.Constant(ir.VectorType(_I32, n), list(range(begin, begin + n))),
                )
                for begin in (0, n)
            )
            x = b.fadd(low, high, flags=_FLAGS)
        return b.extract_element(x, _I32(0))


def _columns_intrinsic(n_vectors):
    """Return a function that sums a row over ``n_vectors`` vectors of columns.

    With one vector, columns beyond the table count as zeros.
    """

    @intrinsic
    def sum_columns(typing_context, token, value, row, linear, factors, column):
        def codegen(context, builder, signature, args):
            def array(position):
                return context.make_array(signature.args[position])(
                    context, builder, args[position]
                )

            def at(array, *offsets):
                index = offsets[0]
                for offset in offsets[1:]:
                    index = builder.add(index, offset)
                return builder.gep(array.data, [index])

            token, value, linear, factors = (array(position) for position in (0, 1, 3, 4))
            first, last = cgutils.unpack_tuple(builder, args[2])
            width, column = builder.extract_value(factors.shape, 1), args[5]
            w = _Writer(builder)
            mask = w.first_lanes(builder.sub(width, column)) if n_vectors == 1 else None
            score = cgutils.alloca_once_value(builder, _FLOAT(0.0))
            sums = [w.variable() for _ in range(n_vectors)]
            squares = [w.variable() for _ in range(n_vectors)]
            with cgutils.for_range_slice(builder, first, last, _I64(1), _I64) as (p, _):
                k = builder.zext(builder.load(at(token, p)), _I64)
                x = builder.load(at(value, p))
                w.add(score, w.times(x, builder.load(at(linear, k))))
                start, x = builder.mul(k, width), w.in_all_lanes(x)
                for j in range(n_vectors):
                    address = at(factors, start, column, _I64(j * _LANES))
                    term = w.times(x, w.load(address, mask))
                    w.add(sums[j], term)
                    w.add(squares[j], w.times(term, term))
            difference = w.variable()
            for s, q in zip(map(builder.load, sums), map(builder.load, squares), strict=True):
                w.add(difference, builder.fsub(w.times(s, s), q, flags=_FLAGS))
            found = [builder.load(score), w.total(builder.load(difference))]
            return context.make_tuple(builder, signature.return_type, found)

        arguments = token, value, row, linear, factors, column
        return types.UniTuple(types.float32, 2)(*arguments), codegen

    return sum_columns


if JIT_DISABLED:

    def _sum_vector(token, value, row, linear, factors, column, n_columns=_LANES):
        """Sum a row over some columns.

        Returns the sum of x w, and that of (sum of x v)^2 - sum of (x v)^2 over the columns.
        """
        entries = slice(*row)
        x, tokens = value[entries], token[entries]
        terms = x[:, None] * factors[tokens, int(column) : int(column) + n_columns]
        pairs = terms.sum(axis=0) ** 2 - (terms * terms).sum(axis=0)
        return x @ linear[tokens], pairs.sum()

    def _sum_block(*args):
        return _sum_vector(*args, _LANES * _VECTORS)

else:
    _sum_vector, _sum_block = _columns_intrinsic(1), _columns_intrinsic(_VECTORS)


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
    if width >= _BLOCK:
        score, pairs = _sum_block(rows.token, rows.value, row, linear, factors, np.uint64(0))
        column = _BLOCK
    else:
        score, pairs = _sum_vector(rows.token, rows.value, row, linear, factors, np.uint64(0))
        column = _VECTOR
    while column + _BLOCK <= width:
        pairs += _sum_block(rows.token, rows.value, row, linear, factors, column)[1]
        column += _BLOCK
    while column < width:
        pairs += _sum_vector(rows.token, rows.value, row, linear, factors, column)[1]
        column += _VECTOR
    return weights.intercept[0] + score + HALF * pairs
