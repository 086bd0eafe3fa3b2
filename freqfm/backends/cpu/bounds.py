"""Upper bounds of dot products, from vectors rounded to 8-bit integers.

A processor with AVX-512 VNNI multiplies four times as many 8-bit integers at a time as float32. The
product of the rounded vectors tells which items can be among the best: only their scores are then
computed, in float32.

A vector v is s b + e: a scale s, integers b in [-127, 127], and the rounding error e. The dot
product of a query q = s b + e and an item v = t c + f is

    q v = s t (b c) + s b f + e v <= s t (b c) + |s b| |f| + |e| |v|,

by Cauchy and Schwarz.
"""

import math

import numba
import numpy as np
from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from freqfm._jit import JIT_DISABLED, ZERO, inlined

__all__ = ["AVAILABLE", "ITEMS", "QUERIES", "bound_products", "round_item", "round_query"]

#: Whether this machine has the instruction.
AVAILABLE = (
    not JIT_DISABLED
    and numba.config.ENABLE_AVX
    and not numba.config.CPU_NAME
    and not numba.config.CPU_FEATURES
    and bool(binding.get_host_cpu_features().get("avx512vnni"))
)

_LANES, _VECTORS = 16, 4

#: Queries and items are taken so many at a time; their products stay in registers.
QUERIES, ITEMS = 6, _LANES * _VECTORS

_I32, _I64 = ir.IntType(32), ir.IntType(64)
_INTS, _FLOATS = ir.VectorType(_I32, _LANES), ir.VectorType(ir.FloatType(), _LANES)

# The instruction multiplies unsigned by signed integers, so this is added to those of queries.
_OFFSET = 128

# The largest integer, and the steps of a vector's length in which its largest number is measured.
_LEVELS, _STEPS = np.float32(127), np.float32(2**15)


@intrinsic
def _bound_block(typing_context, codes, i, scales, panel, first, statistics, out):
    """Write the bounds of ``QUERIES`` queries from ``i`` on, and ``ITEMS`` items from ``first`` on.

    The arrays are described in ``bound_products``; ``panel`` holds these items only.
    """

    def codegen(context, builder, signature, args):
        def array(position):
            return context.make_array(signature.args[position])(context, builder, args[position])

        def address(array, row, column, kind=None):
            width = builder.extract_value(array.shape, 1)
            place = builder.gep(array.data, [builder.add(builder.mul(row, width), column)])
            return place if kind is None else builder.bitcast(place, kind.as_pointer())

        def in_all_lanes(x, kind):
            nothing = ir.Constant(kind, ir.Undefined)
            one = builder.insert_element(nothing, x, _I32(0))
            return builder.shuffle_vector(one, nothing, ir.Constant(_INTS, [0] * _LANES))

        codes, scales, panel, statistics, out = (array(position) for position in (0, 2, 3, 5, 6))
        i, first = args[1], args[4]
        queries = [builder.add(i, _I64(r)) for r in range(QUERIES)]
        vectors = [_I64(j * _LANES) for j in range(_VECTORS)]
        items = [builder.add(first, j) for j in vectors]
        name, kind = "llvm.x86.avx512.vpdpbusd.512", ir.FunctionType(_INTS, [_INTS] * 3)
        add_products = cgutils.get_or_insert_function(builder.module, kind, name)
        zeros = ir.Constant(_INTS, [0] * _LANES)
        sums = [[cgutils.alloca_once_value(builder, zeros) for _ in items] for _ in queries]
        n_words = builder.extract_value(codes.shape, 1)
        with cgutils.for_range(builder, n_words, intp=_I64) as loop:
            words = [builder.load(address(panel, loop.index, j, _INTS), align=4) for j in vectors]
            for query, row in zip(queries, sums, strict=True):
                word = in_all_lanes(builder.load(address(codes, query, loop.index)), _INTS)
                for slot, other in zip(row, words, strict=True):
                    builder.store(
                        builder.call(add_products, [builder.load(slot), word, other]), slot
                    )
        item_statistics = [
            [builder.load(address(statistics, _I64(n), j, _FLOATS), align=4) for n in range(4)]
            for j in items
        ]
        for query, row in zip(queries, sums, strict=True):
            scale, rounded, error = (
                in_all_lanes(builder.load(address(scales, query, _I64(n))), _FLOATS)
                for n in range(3)
            )
            for j, slot, found in zip(items, row, item_statistics, strict=True):
                other_scale, other_error, norm, offset = found
                product = builder.fsub(builder.sitofp(builder.load(slot), _FLOATS), offset)
                bound = builder.fmul(product, builder.fmul(scale, other_scale))
                bound = builder.fadd(bound, builder.fmul(rounded, other_error))
                bound = builder.fadd(bound, builder.fmul(error, norm))
                builder.store(bound, address(out, query, j, _FLOATS), align=4)
        return context.get_dummy_value()

    arguments = codes, i, scales, panel, first, statistics, out
    return types.void(*arguments), codegen


if not AVAILABLE:

    @inlined
    def _bound_block(codes, i, scales, panel, first, statistics, out):
        """Do nothing; it is not called where the instruction is missing."""


@inlined
def _round(vector, n, scale, offset, codes):
    """Write a vector's integers, plus an offset; return the squared length of the error."""
    inverse = np.float32(1) / scale if scale > ZERO else ZERO
    squares = ZERO
    for f in range(n):
        code = np.rint(vector[f] * inverse)
        error = vector[f] - scale * code
        squares += error * error
        codes[f] = np.uint8(np.int32(code) + np.int32(offset))
    return squares


@inlined
def _scale_and_norm(vector, n):
    """Return the scale by which a vector is rounded, and its length.

    The largest number is found in integers: the compiler does not vectorise a maximum of floats,
    which may be NaN.
    """
    squares = ZERO
    for f in range(n):
        squares += vector[f] * vector[f]
    norm = np.float32(math.sqrt(squares))
    inverse = _STEPS / norm if norm > ZERO else ZERO
    largest = np.int32(0)
    for f in range(n):
        largest = max(largest, np.int32(abs(vector[f]) * inverse))
    return np.float32(largest + 1) * norm / (_STEPS * _LEVELS), norm


@inlined
def round_query(query, i, bytes_of_codes, scales):
    """Write what ``bound_products`` needs of query ``i``.

    Dot products of d numbers in float32 are off by d 2^-24 times the lengths; twice that, and some
    more for the bound's own rounding, is added to the error.
    """
    d = query.shape[0]
    scale, norm = _scale_and_norm(query, d)
    error = np.float32(math.sqrt(_round(query, d, scale, _OFFSET, bytes_of_codes[i])))
    slack = np.float32(d + 32) * np.float32(2.0**-22)
    scales[i, 0] = scale
    scales[i, 1] = (norm + error) * np.float32(1.001)
    scales[i, 2] = error * np.float32(1.001) + slack * norm


@inlined
def round_item(item, j, words, bytes_of_words, panels, statistics):
    """Write what ``bound_products`` needs of item ``j`` of a tile; ``words`` is scratch."""
    d = item.shape[0]
    scale, norm = _scale_and_norm(item, d)
    error = np.float32(math.sqrt(_round(item, d, scale, 0, bytes_of_words)))
    total = np.int32(0)
    for f in range(d):
        total += np.int32(np.int8(bytes_of_words[f]))
    panel, place = np.uint64(j) // np.uint64(ITEMS), np.uint64(j) % np.uint64(ITEMS)
    for w in range(panels.shape[1]):
        panels[panel, np.uint64(w), place] = words[w]
    statistics[0, j] = scale
    statistics[1, j] = error * np.float32(1.001)
    statistics[2, j] = norm * np.float32(1.001)
    statistics[3, j] = np.float32(np.int32(_OFFSET) * total)


@inlined
def bound_products(n_queries, n_items, codes, scales, panels, statistics, out):
    """Write upper bounds of the dot products of queries and items.

    Up to ``QUERIES`` - 1 rows and ``ITEMS`` - 1 columns more than asked for are written.

    Parameters
    ----------
    n_queries, n_items : int
    codes : ndarray of shape (n, ceil(d / 4)), int32
        The bytes of a query, four in a word.
    scales : ndarray of shape (n, 3), float32
        Of each query the scale, the length after rounding, and the length of the error.
    panels : ndarray of shape (n_panels, ceil(d / 4), ITEMS), int32
        The words of 64 items side by side.
    statistics : ndarray of shape (4, n_panels * ITEMS), float32
        Of each item the scale, the lengths of the error and of the vector, and what is to be
        subtracted for the queries' offset.
    out : ndarray of shape (n, n_panels * ITEMS or more), float32
    """
    for first in range(0, n_items, ITEMS):
        panel = panels[first // ITEMS]
        for i in range(0, n_queries, QUERIES):
            _bound_block(codes, np.uint64(i), scales, panel, np.uint64(first), statistics, out)
