"""Matrix products inside kernels: the BLAS of scipy, called without Python.

A matrix product computes a whole tile of scores at nearly the peak speed of the processor. Each
thread of a team calls BLAS on different tiles, so BLAS itself must stay on one thread: every team
that runs such a kernel needs ``_machine.single_threaded_blas()`` around it.
"""

import numpy as np
from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import get_cython_function_address, intrinsic

from freqfm._numba.jit import JIT_DISABLED, inlined

# A fixed name for scipy's sgemm, under which cached code finds it in every process.
binding.add_symbol("freqfm_sgemm", get_cython_function_address("scipy.linalg.cython_blas", "sgemm"))


@intrinsic
def _sgemm(typing_context, a_transposed, b_transposed, sizes, a, b, beta, c):
    """C := op(A) op(B) + beta C for row-major 2-D arrays; ``sizes`` are m, n and k."""

    def codegen(context, builder, signature, args):
        flag_a, flag_b, sizes, a, b, beta, c = args
        m, n, k = cgutils.unpack_tuple(builder, sizes)
        int_type, float_type = ir.IntType(32), ir.FloatType()
        char = ir.IntType(8)

        def on_stack(value):
            return cgutils.alloca_once_value(builder, value)

        def as_int(value):
            return builder.trunc(value, int_type)

        def letter(flag):
            return builder.select(flag, char(ord("T")), char(ord("N")))

        def array(position, value):
            made = context.make_array(signature.args[position])(context, builder, value)
            width = builder.extract_value(made.shape, 1)
            stride = builder.extract_value(made.strides, 0)
            leading = builder.sdiv(stride, ir.IntType(stride.type.width)(4))
            # The stride of a single row may be anything.
            wider = builder.icmp_signed(">", leading, width)
            return made.data, on_stack(as_int(builder.select(wider, leading, width)))

        a_data, a_leading = array(3, a)
        b_data, b_leading = array(4, b)
        c_data, c_leading = array(6, c)
        one = on_stack(float_type(1.0))
        # Fortran sees every row-major matrix transposed: C^T = op(B)^T op(A)^T.
        arguments = [on_stack(letter(flag_b)), on_stack(letter(flag_a))]
        arguments += [on_stack(as_int(size)) for size in (n, m, k)]
        arguments += [one, b_data, b_leading, a_data, a_leading, on_stack(beta), c_data, c_leading]
        function_type = ir.FunctionType(ir.VoidType(), [arg.type for arg in arguments])
        function = cgutils.get_or_insert_function(builder.module, function_type, "freqfm_sgemm")
        builder.call(function, arguments)
        return context.get_dummy_value()

    of_sizes = types.UniTuple(types.int64, 3)
    flags = types.boolean, types.boolean
    return types.void(*flags, of_sizes, a, b, types.float32, c), codegen


if JIT_DISABLED:

    def _sgemm(a_transposed, b_transposed, sizes, a, b, beta, c):
        m, n, k = sizes
        a = a[:k, :m].T if a_transposed else a[:m, :k]
        b = b[:n, :k].T if b_transposed else b[:k, :n]
        c[:m, :n] = a @ b + (beta * c[:m, :n] if beta else 0)


@inlined
def product_with_transposed(a, b, c):
    """C := A B^T, for A (m, k), B (n, k) and C (m, n), float32, rows contiguous."""
    _sgemm(False, True, (a.shape[0], b.shape[0], a.shape[1]), a, b, np.float32(0), c)


@inlined
def add_product(a, b, c, keep):
    """C := A B + keep C, for A (m, k or wider), B (k, n) and C (m, n), float32, rows contiguous."""
    _sgemm(False, False, (a.shape[0], b.shape[1], b.shape[0]), a, b, np.float32(keep), c)


@inlined
def add_product_of_transposed(a, b, c, keep):
    """C := A^T B + keep C, for A (k, m), B (k, n) and C (m, n), float32, rows contiguous."""
    _sgemm(True, False, (a.shape[1], b.shape[1], a.shape[0]), a, b, np.float32(keep), c)
