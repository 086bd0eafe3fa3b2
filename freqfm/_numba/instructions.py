"""Instructions of the processor, and a function of the system, for which numba has no function."""

import ctypes
import sys

import numpy as np
from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from freqfm._numba.jit import JIT_DISABLED


def _publish_sleep():
    """Make the system's sleep callable from compiled code under one name."""
    if sys.platform == "win32":
        function = ctypes.windll.kernel32.Sleep
    else:
        function = ctypes.CDLL(None).usleep
    binding.add_symbol("freqfm_sleep", ctypes.cast(function, ctypes.c_void_p).value)


_publish_sleep()

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
