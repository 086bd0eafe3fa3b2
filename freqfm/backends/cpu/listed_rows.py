"""Dot products with listed rows of a table, and sums of these rows, kept in registers.

See ``vectors`` for why these are vector instructions. Sums are taken in the order of the list, and
a dot product is summed in the same order on every processor.
"""

from typing import NamedTuple

import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from freqfm._numba.jit import JIT_DISABLED, inlined
from freqfm._numba.prefetch import write_prefetch
from freqfm._numba.vectors import BLOCK, FLOAT, I64, LANES, VECTOR, VECTORS, VectorWriter

__all__ = ["AHEAD", "Listed", "add_rows", "score_rows"]

#: A row is prefetched this many tokens before it is scored.
AHEAD = 32

_FIRST_COLUMN = np.uint64(0)


class Listed(NamedTuple):
    """Some rows of a table: ``n`` tokens of a list, from ``first`` on every ``stride``-th."""

    tokens: np.ndarray  #: int32
    first: int
    stride: int
    n: int
    end: int  #: tokens before this one may be prefetched


class _Block:
    """Arguments of an intrinsic, and vectors of some columns of the rows of its tables."""

    def __init__(self, context, builder, signature, args, n_vectors, flags=()):
        self._context, self._b = context, builder
        self._types, self._args = signature.args, args
        self.writer = VectorWriter(builder, flags)
        self._n_vectors, self._column, self._mask = n_vectors, args[-1], None

    def array(self, position):
        """Return the array that is an argument."""
        kind, value = self._types[position], self._args[position]
        return self._context.make_array(kind)(self._context, self._b, value)

    def listed(self, position):
        """Return the tokens of a Listed, and its numbers."""
        kind = self._types[position].types[0]
        tokens, *numbers = cgutils.unpack_tuple(self._b, self._args[position])
        return self._context.make_array(kind)(self._context, self._b, tokens), *numbers

    def token(self, array, index):
        """Return an element of an array of int32."""
        return self._b.sext(self._b.load(self._b.gep(array.data, [index])), I64)

    def number(self, array, index):
        """Return an element of an array of float32, in all lanes."""
        return self.writer.in_all_lanes(self._b.load(self._b.gep(array.data, [index])))

    def addresses(self, table, row):
        """Return the addresses of the vectors of a row."""
        b, width = self._b, self._b.extract_value(table.shape, 1)
        if self._n_vectors == 1 and self._mask is None:
            self._mask = self.writer.first_lanes(b.sub(width, self._column))
        start = b.add(b.mul(row, width), self._column)
        return [b.gep(table.data, [b.add(start, I64(j * LANES))]) for j in range(self._n_vectors)]

    def load(self, table, row):
        """Return the vectors of a row; beyond the last column they are zero."""
        addresses = self.addresses(table, row)
        return [self.writer.load(address, mask=self._mask) for address in addresses]

    def store(self, vectors, table, row):
        """Write the vectors of a row."""
        for vector, address in zip(vectors, self.addresses(table, row), strict=True):
            self.writer.store(vector, address, mask=self._mask)


# Only a product and its sum may become one instruction, so that sums keep their order.
_FUSED = ("contract",)


def _score_intrinsic(n_vectors):
    """Return a function that scores rows in some columns, and adds up the scores of all columns."""

    @intrinsic
    def score(typing_context, listed, table, vectors, r, out, s, column):
        def codegen(context, builder, signature, args):
            block = _Block(context, builder, signature, args, n_vectors)
            w, b = block.writer, builder
            tokens, first, stride, n, end = block.listed(0)
            table, vectors, out = (block.array(position) for position in (1, 2, 4))
            vector = block.load(vectors, args[3])
            start, last = b.mul(args[5], b.extract_value(out.shape, 1)), b.sub(end, I64(1))
            with cgutils.for_range(b, n) as loop:
                q = b.add(first, b.mul(loop.index, stride))
                ahead = b.add(q, I64(AHEAD))
                ahead = b.select(b.icmp_signed("<", ahead, last), ahead, last)
                for address in block.addresses(table, block.token(tokens, ahead)):
                    write_prefetch(b, address)
                row = block.load(table, block.token(tokens, q))
                terms = [w.times(x, y) for x, y in zip(row, vector, strict=True)]
                while len(terms) > 1:
                    terms = [w.plus(x, y) for x, y in zip(terms[::2], terms[1::2], strict=True)]
                address = b.gep(out.data, [b.add(start, loop.index)])
                before = b.select(b.icmp_signed("==", args[6], I64(0)), FLOAT(0), b.load(address))
                b.store(w.plus(before, w.total(terms[0])), address)
            return context.get_dummy_value()

        return types.void(listed, table, vectors, r, out, s, column), codegen

    return score


def _add_intrinsic(n_vectors):
    """Return a function that adds multiples of rows, in some columns, to a row."""

    @intrinsic
    def add(typing_context, listed, table, multiples, m, out, r, column):
        def codegen(context, builder, signature, args):
            block = _Block(context, builder, signature, args, n_vectors, _FUSED)
            w, b = block.writer, builder
            tokens, first, stride, n, _ = block.listed(0)
            table, multiples, out = (block.array(position) for position in (1, 2, 4))
            start = b.mul(args[3], b.extract_value(multiples.shape, 1))
            sums = [w.variable(x) for x in block.load(out, args[5])]
            with cgutils.for_range(b, n) as loop:
                token = block.token(tokens, b.add(first, b.mul(loop.index, stride)))
                multiple = block.number(multiples, b.add(start, loop.index))
                for total, x in zip(sums, block.load(table, token), strict=True):
                    w.add(total, w.times(multiple, x))
            block.store([b.load(total) for total in sums], out, args[5])
            return context.get_dummy_value()

        return types.void(listed, table, multiples, m, out, r, column), codegen

    return add


if JIT_DISABLED:

    def _columns(table, column, n):
        return table[:, int(column) : int(column) + n]

    def _rows(listed):
        return listed.tokens[listed.first :: listed.stride][: listed.n]

    def _score_vector(listed, table, vectors, r, out, s, column, n=LANES):
        if column == 0:
            out[s, : listed.n] = 0
        rows = _columns(table, column, n)[_rows(listed)]
        out[s, : listed.n] += rows @ _columns(vectors, column, n)[r]

    def _add_vector(listed, table, multiples, m, out, r, column, n=LANES):
        rows = _columns(table, column, n)[_rows(listed)]
        _columns(out, column, n)[r] += multiples[m, : listed.n] @ rows

    def _with_block(function):
        return lambda *args: function(*args, LANES * VECTORS)

    _score_block, _add_block = _with_block(_score_vector), _with_block(_add_vector)

else:
    _score_vector, _score_block = _score_intrinsic(1), _score_intrinsic(VECTORS)
    _add_vector, _add_block = _add_intrinsic(1), _add_intrinsic(VECTORS)


@inlined
def score_rows(listed, table, vectors, r, out, s):
    """Write the dot products of listed rows of a table and row ``r`` of ``vectors`` to ``out[s]``.

    Rows that are next in the list are prefetched.
    """
    width, column = np.uint64(table.shape[1]), _FIRST_COLUMN
    while column + BLOCK <= width:
        _score_block(listed, table, vectors, r, out, s, column)
        column += BLOCK
    while column < width:
        _score_vector(listed, table, vectors, r, out, s, column)
        column += VECTOR


@inlined
def add_rows(listed, table, multiples, m, out, r):
    """Add listed rows of a table, each times a number of ``multiples[m]``, to ``out[r]``."""
    width, column = np.uint64(table.shape[1]), _FIRST_COLUMN
    while column + BLOCK <= width:
        _add_block(listed, table, multiples, m, out, r, column)
        column += BLOCK
    while column < width:
        _add_vector(listed, table, multiples, m, out, r, column)
        column += VECTOR
