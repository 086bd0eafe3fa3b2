"""Instructions of the processor, such as prefetching, and a function of the system.

Prefetching of table rows.

Training visits rows in random order. A prefetched row is loaded while others are processed. The
instruction neither waits nor fails, whatever the address.
"""

import ctypes
import sys

import numpy as np
from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from freqfm._numba.jit import JIT_DISABLED, inlined

# The system's sleep, callable from compiled code under one name.
_sleep = ctypes.windll.kernel32.Sleep if sys.platform == "win32" else ctypes.CDLL(None).usleep
binding.add_symbol("freqfm_sleep", ctypes.cast(_sleep, ctypes.c_void_p).value)

#: Sleep for microseconds, a uint32; on Windows for milliseconds.
sleep = types.ExternalFunction("freqfm_sleep", types.int32(types.uint32))


def _slot(context, builder, array_type, array, index):
    array = context.make_array(array_type)(context, builder, array)
    return cgutils.get_item_pointer(context, builder, array_type, array, [index], wraparound=False)


@intrinsic
def atomic_add(typing_context, array, index, value):
    """Add to an element of an array of int64; return its previous value."""

    def codegen(context, builder, signature, args):
        slot = _slot(context, builder, signature.args[0], args[0], args[1])
        return builder.atomic_rmw("add", slot, args[2], "seq_cst")

    return types.int64(array, types.intp, types.int64), codegen


@intrinsic
def atomic_load(typing_context, array, index):
    """Return an element of an array of int64."""

    def codegen(context, builder, signature, args):
        slot = _slot(context, builder, signature.args[0], args[0], args[1])
        return builder.load_atomic(slot, "seq_cst", 8)

    return types.int64(array, types.intp), codegen


# The instruction by which a thread tells its core that it waits for memory to change, for each kind
# of processor: the function of LLVM, and its argument.
_PAUSES = {
    **dict.fromkeys(("x86_64", "amd64"), ("llvm.x86.sse2.pause", None)),
    **dict.fromkeys(("aarch64", "arm64"), ("llvm.aarch64.hint", 1)),
}


@intrinsic
def pause(typing_context):
    """Leave the core to the thread that shares it, if there is one, for some cycles."""

    def codegen(context, builder, signature, args):
        # Not ``platform.machine()``: an emulated process, as of Python for x86-64 on Windows for
        # ARM, is compiled for another processor than the machine has.
        processor = binding.get_process_triple().partition("-")[0]
        name, hint = _PAUSES.get(processor, (None, None))
        if name is not None:
            given = [] if hint is None else [ir.Constant(ir.IntType(32), hint)]
            kind = ir.FunctionType(ir.VoidType(), [value.type for value in given])
            builder.call(cgutils.get_or_insert_function(builder.module, kind, name), given)
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def _count_bits(typing_context, word):
    def codegen(context, builder, signature, args):
        return builder.ctpop(args[0])

    return types.uint64(types.uint64), codegen


def _interpreted_count_bits(word):
    return np.uint64(int(word).bit_count())


#: Return the number of bits of a uint64 that are set.
count_bits = _interpreted_count_bits if JIT_DISABLED else _count_bits


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
def prefetch_cell(table, k, f):
    """Prefetch the cache line of a cell of a table."""
    _prefetch(table, (np.uint64(k), np.uint64(f)))


@inlined
def prefetch_row(table, k):
    """Prefetch row ``k`` of a table."""
    for f in range(0, table.shape[1], LINE):
        prefetch_cell(table, k, f)
