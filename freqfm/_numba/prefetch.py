"""Prefetching of table rows.

Training visits rows in random order. A prefetched row is loaded while others are processed. The
instruction neither waits nor fails, whatever the address.
"""

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from freqfm._numba.jit import JIT_DISABLED, inlined

#: Numbers of 32 bits in a cache line.
LINE = 16

#: How many vectors ahead one is prefetched.
SOON = 8


def _write_prefetch(builder, address, to_write):
    """Write an instruction that prefetches the cache line at an address."""
    pointer, number = ir.IntType(8).as_pointer(), ir.IntType(32)
    of_type = ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
    function = builder.module.declare_intrinsic("llvm.prefetch", [pointer], of_type)
    # For reading or writing, into all levels of the cache; data, not code.
    flags = number(to_write), number(3), number(1)
    builder.call(function, [builder.bitcast(address, pointer), *flags])


def _prefetch_of(to_write):
    """Return an intrinsic that prefetches the cache line of an element, by a tuple of indices."""

    @intrinsic
    def prefetch(typing_context, array, indices):
        def codegen(context, builder, signature, args):
            made = context.make_array(signature.args[0])(context, builder, args[0])
            address = cgutils.get_item_pointer(
                context,
                builder,
                signature.args[0],
                made,
                cgutils.unpack_tuple(builder, args[1]),
                wraparound=False,
            )
            _write_prefetch(builder, address, to_write)
            return context.get_dummy_value()

        return types.void(array, types.UniTuple(types.uint64, array.ndim)), codegen

    return prefetch


def _prefetch_nothing(array, indices):
    """Replace the intrinsic where nothing is compiled."""


_prefetch_to_read = _prefetch_nothing if JIT_DISABLED else _prefetch_of(0)
_prefetch_to_write = _prefetch_nothing if JIT_DISABLED else _prefetch_of(1)


@inlined
def prefetch_element(array, k):
    """Prefetch element ``k`` of a 1-D array for reading."""
    _prefetch_to_read(array, (np.uint64(k),))


@inlined
def prefetch_columns(table, k, begin, end):
    """Prefetch the columns ``begin`` to ``end`` of row ``k`` of a table for reading."""
    for f in range(begin, end, LINE):
        _prefetch_to_read(table, (np.uint64(k), np.uint64(f)))


@inlined
def prefetch_row(table, k):
    """Prefetch row ``k`` of a table for reading."""
    prefetch_columns(table, k, 0, table.shape[1])


@inlined
def prefetch_row_to_write(table, k):
    """Prefetch row ``k`` of a table for writing, which invalidates the copies of other cores."""
    for f in range(0, table.shape[1], LINE):
        _prefetch_to_write(table, (k, np.uint64(f)))
