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


@intrinsic
def _prefetch(typing_context, array, indices):
    """Prefetch the cache line of an element, by a tuple of indices."""

    def codegen(context, builder, signature, args):
        made = context.make_array(signature.args[0])(context, builder, args[0])
        indices = cgutils.unpack_tuple(builder, args[1])
        address = cgutils.get_item_pointer(
            context, builder, signature.args[0], made, indices, wraparound=False
        )
        pointer, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        of_type = ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
        function = builder.module.declare_intrinsic("llvm.prefetch", [pointer], of_type)
        # For reading, into all levels of the cache; data, not code.
        flags = number(0), number(3), number(1)
        builder.call(function, [builder.bitcast(address, pointer), *flags])
        return context.get_dummy_value()

    return types.void(array, types.UniTuple(types.uint64, array.ndim)), codegen


if JIT_DISABLED:

    def _prefetch(array, indices):
        pass


@inlined
def prefetch_element(array, k):
    """Prefetch element ``k`` of a 1-D array."""
    _prefetch(array, (np.uint64(k),))


@inlined
def prefetch_row(table, k):
    """Prefetch row ``k`` of a table."""
    for f in range(0, table.shape[1], LINE):
        _prefetch(table, (np.uint64(k), np.uint64(f)))
