"""Vector instructions.

A compiler vectorises only the innermost of two loops, and keeps the sums of an outer loop in
memory. Sums of vectors are therefore written with these instructions, and stay in registers. Nor
does such a loop need a second version, for arrays that overlap.
"""

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from freqfm._numba.jit import FASTMATH, JIT_DISABLED

#: Numbers in a vector: 16 float32 fill a cache line. Vectors of a block of columns: the last
#: columns of a table whose width is no multiple of a block are taken one vector at a time.
LANES, VECTORS = 16, 4
VECTOR, BLOCK = np.uint64(LANES), np.uint64(LANES * VECTORS)

FLOAT, DOUBLE = ir.FloatType(), ir.DoubleType()
I32, I64 = ir.IntType(32), ir.IntType(64)
FLOATS, _DOUBLES = ir.VectorType(FLOAT, LANES), ir.VectorType(DOUBLE, LANES)
_ZEROS = ir.Constant(FLOATS, [0.0] * LANES)
_FLAGS = tuple(sorted(FASTMATH))


class Arguments:
    """The arguments of an intrinsic as LLVM values."""

    def __init__(self, context, builder, signature, args):
        self._context, self._builder = context, builder
        self._types, self._values = signature.args, args

    def array(self, position, field=None):
        """Return an array, or the array that is a field of a named tuple."""
        of_type, value = self._types[position], self._values[position]
        if field is not None:
            index = of_type.fields.index(field)
            of_type, value = of_type[index], self._builder.extract_value(value, index)
        return self._context.make_array(of_type)(self._context, self._builder, value)

    def arrays(self, position, fields):
        """Return the arrays that are fields of a named tuple."""
        return [self.array(position, field) for field in fields.split()]

    def range(self, position):
        """Return the two numbers of a tuple."""
        return cgutils.unpack_tuple(self._builder, self._values[position])

    def __getitem__(self, position):
        return self._values[position]


class VectorWriter:
    """Writes vector instructions, of float32 if nothing else is said.

    Parameters
    ----------
    builder : IRBuilder
    flags : tuple of str
        What LLVM may change: by default, what it may in all compiled functions.
    """

    def __init__(self, builder, flags=_FLAGS):
        self._builder, self._flags = builder, flags

    def element(self, array, index):
        """Return an element of a 1-D array."""
        return self._builder.load(self._builder.gep(array.data, [index]))

    def index(self, array, index):
        """Return an element of a 1-D array of int32 as int64."""
        return self._builder.zext(self.element(array, index), I64)

    def row(self, table, k, column):
        """Return the address of an element of a 2-D array."""
        b = self._builder
        start = b.mul(k, b.extract_value(table.shape, 1))
        return b.gep(table.data, [b.add(start, column)])

    def variable(self, start=_ZEROS):
        """Return a vector that ``add`` changes; LLVM keeps it in a register."""
        return cgutils.alloca_once_value(self._builder, start)

    def add(self, variable, x):
        """Add a vector or scalar to a variable."""
        self._builder.store(self.plus(self._builder.load(variable), x), variable)

    def plus(self, x, y):
        """Return the sum of two vectors, or of two scalars."""
        return self._builder.fadd(x, y, flags=self._flags)

    def times(self, x, y):
        """Return the product of two vectors, or of two scalars."""
        return self._builder.fmul(x, y, flags=self._flags)

    def minus(self, x, y):
        """Return the difference of two vectors."""
        return self._builder.fsub(x, y, flags=self._flags)

    def in_all_lanes(self, x):
        """Return a vector of a scalar's copies."""
        b, nothing = self._builder, ir.Constant(ir.VectorType(x.type, LANES), ir.Undefined)
        zeros = ir.Constant(ir.VectorType(I32, LANES), [0] * LANES)
        return b.shuffle_vector(b.insert_element(nothing, x, I32(0)), nothing, zeros)

    def first_lanes(self, n):
        """Return a mask of the lanes before ``n``."""
        numbers = ir.Constant(ir.VectorType(I64, LANES), list(range(LANES)))
        return self._builder.icmp_signed("<", numbers, self.in_all_lanes(n))

    def load(self, address, offset=0, mask=None, others=_ZEROS):
        """Return the numbers from an address on; where the mask, if given, is false, ``others``."""
        b, kind = self._builder, others.type
        address = b.bitcast(b.gep(address, [I64(offset)]), kind.as_pointer())
        if mask is None:
            return b.load(address, align=4)
        suffix = "f32" if kind == FLOATS else "i32"
        name = f"llvm.masked.load.v{LANES}{suffix}.p0v{LANES}{suffix}"
        signature = ir.FunctionType(kind, [address.type, I32, mask.type, kind])
        function = cgutils.get_or_insert_function(b.module, signature, name)
        return b.call(function, [address, I32(4), mask, others])

    def store(self, x, address, offset=0, mask=None):
        """Write a vector from an address on, only the numbers where the mask, if given, is true."""
        b = self._builder
        address = b.bitcast(b.gep(address, [I64(offset)]), FLOATS.as_pointer())
        if mask is None:
            b.store(x, address, align=4)
            return
        name = f"llvm.masked.store.v{LANES}f32.p0v{LANES}f32"
        signature = ir.FunctionType(ir.VoidType(), [FLOATS, address.type, I32, mask.type])
        function = cgutils.get_or_insert_function(b.module, signature, name)
        b.call(function, [x, address, I32(4), mask])

    def doubles(self, x):
        """Return a vector in double precision."""
        return self._builder.fpext(x, _DOUBLES)

    def floats(self, x):
        """Return a vector in double precision rounded to float32."""
        return self._builder.fptrunc(x, FLOATS)

    def total(self, x):
        """Return the sum of the lanes."""
        b, n = self._builder, LANES
        while n > 1:
            n //= 2
            low, high = (
                b.shuffle_vector(
                    x,
                    ir.Constant(x.type, ir.Undefined),
                    ir.Constant(ir.VectorType(I32, n), list(range(begin, begin + n))),
                )
                for begin in (0, n)
            )
            x = self.plus(low, high)
        return b.extract_element(x, I32(0))


@intrinsic
def _contains(typing_context, values, begin, end, x):
    def codegen(context, builder, signature, args):
        b, w, (_, begin, end, x) = builder, VectorWriter(builder), args
        values = context.make_array(signature.args[0])(context, builder, args[0])
        x, n = w.in_all_lanes(x), b.sub(end, begin)
        nothing = ir.Constant(ir.VectorType(I32, LANES), [0] * LANES)
        found = cgutils.alloca_once_value(b, ir.Constant(ir.VectorType(ir.IntType(1), LANES), None))
        rest = b.and_(n, I64(LANES - 1))

        def compare(at, mask=None):
            loaded = w.load(b.gep(values.data, [at]), mask=mask, others=nothing)
            equal = b.icmp_signed("==", loaded, x)
            b.store(b.or_(b.load(found), b.and_(equal, mask) if mask else equal), found)

        whole = b.sub(end, rest)
        with cgutils.for_range_slice(b, begin, whole, I64(LANES), I64) as (at, _):
            compare(at)
        compare(whole, w.first_lanes(rest))
        return b.icmp_unsigned("!=", b.bitcast(b.load(found), ir.IntType(16)), ir.IntType(16)(0))

    return types.boolean(values, begin, end, types.int32), codegen


def _is_among(values, begin, end, x):
    return x in values[begin:end]


#: Return whether an int32 is among the values from ``begin`` to ``end`` of an array of int32.
contains = _is_among if JIT_DISABLED else _contains
