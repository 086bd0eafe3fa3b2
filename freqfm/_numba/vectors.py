"""Instructions on four numbers at once, for vectors too short for loops that are vectorised."""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from freqfm._numba.jit import JIT_DISABLED


@intrinsic
def multiply_four(typing_context, multiple, source, i, target, j):
    """Write ``multiple`` times ``source[i : i + 4]`` to ``target[j : j + 4]``."""

    def codegen(context, builder, signature, args):
        multiple, source, i, target, j = args
        four = ir.VectorType(ir.FloatType(), 4)

        def address(number, array, index):
            kind = signature.args[number]
            array = context.make_array(kind)(context, builder, array)
            at = cgutils.get_item_pointer(context, builder, kind, array, [index], wraparound=False)
            return builder.bitcast(at, four.as_pointer())

        multiples = ir.Constant(four, ir.Undefined)
        for lane in range(4):
            multiples = builder.insert_element(multiples, multiple, ir.IntType(32)(lane))
        numbers = builder.load(address(1, source, i), align=4)
        builder.store(builder.fmul(multiples, numbers), address(3, target, j), align=4)
        return context.get_dummy_value()

    signature = types.void(types.float32, source, types.uint64, target, types.uint64)
    return signature, codegen


if JIT_DISABLED:

    def multiply_four(multiple, source, i, target, j):
        """See the compiled one."""
        target[j : j + 4] = multiple * source[i : i + 4]
