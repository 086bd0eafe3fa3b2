"""Binary search in sorted arrays."""

from freqfm._numba.jit import inlined


@inlined
def first_above(values, begin, end, x):
    """Return the first place at which the sorted ``values[begin:end]`` exceed ``x``, or ``end``.

    The number of steps depends only on the length.
    """
    base = begin
    length = end - begin
    while length > 1:
        half = length >> 1
        base += half if values[base + half - 1] <= x else 0
        length -= half
    return base + (1 if length == 1 and values[base] <= x else 0)
