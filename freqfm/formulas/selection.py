"""Binary search, and choosing the items with the highest scores.

Choosing the items with the highest scores.

A score and its item are one number of 64 bits, larger for better scores and, of equal scores, for
smaller items. So no two are equal, and the best of all are the same in whatever order they come.

A buffer has the best ``k`` so far at the front, the worst of these at place ``k - 1``, and those
that exceeded it since then behind. When it is full, the best ``k`` of all are moved to the front.
If ``k`` is small, nothing is behind: the best are sorted, and every number is inserted.
"""

import numpy as np

from freqfm._numba.jit import inlined, subroutine


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


_LOW_31, _LOW_32, _SIGN = 0x7FFFFFFF, 0xFFFFFFFF, 1 << 31

# Up to this many are sorted.
_FEW = 32

_NOTHING = np.float32(-np.inf)


@inlined
def number_of(score, item):
    """Return the number of a score and its item."""
    bits = np.int64(np.float32(score).view(np.int32))
    ordered = bits if bits >= 0 else -(bits & _LOW_31)  # of minus zero, 0
    return (ordered << 32) | (_LOW_31 - np.int64(item))


@inlined
def score_of(number):
    """Return the score of a number."""
    ordered = number >> 32
    return np.int32(ordered if ordered >= 0 else -ordered - _SIGN).view(np.float32)


@inlined
def item_of(number):
    """Return the item of a number."""
    return np.int32(_LOW_31 - (number & _LOW_32))


@inlined
def worst_of(numbers, k):
    """Return the score that others have to exceed to be among the best of a buffer."""
    return score_of(numbers[np.uint64(k - 1)])


def buffer_size(k):
    """Return how many numbers a buffer for the best ``k`` holds."""
    return k if k <= _FEW else 2 * k


@inlined
def clear(numbers, k):
    """Let a buffer hold ``k`` times no item, -1 with the score -inf; return how many it holds."""
    for place in range(k):
        numbers[place] = number_of(_NOTHING, -1)
    return k


@inlined
def offer(numbers, n, k, number):
    """Add a number, larger than that at ``k - 1``, to the ``n`` of a buffer; return how many."""
    if numbers.shape[0] == k:
        _insert(numbers, k - 1, 1, number)
        return k
    numbers[np.uint64(n)] = number
    n += 1
    if n == numbers.shape[0]:
        _select(numbers, n, k)
        n = k
    return n


@inlined
def _insert(numbers, place, gap, number):
    """Write a number to a place or, by steps of ``gap``, before the smaller ones ahead of it."""
    while place >= gap and numbers[np.uint64(place - gap)] < number:
        numbers[np.uint64(place)] = numbers[np.uint64(place - gap)]
        place -= gap
    numbers[np.uint64(place)] = number


@subroutine
def _select(numbers, n, k):
    """Move the ``k`` largest of ``n`` numbers to the front, the least of them to place ``k - 1``.

    This is quickselect: a part of which that place is one is divided by the median of three.
    """
    low, high = 0, n - 1
    while low < high:
        one, other, third = numbers[low], numbers[(low + high) >> 1], numbers[high]
        pivot = max(min(one, other), min(max(one, other), third))
        i, j = low, high
        while i <= j:
            while numbers[np.uint64(i)] > pivot:
                i += 1
            while numbers[np.uint64(j)] < pivot:
                j -= 1
            if i <= j:
                number = numbers[np.uint64(i)]
                numbers[np.uint64(i)] = numbers[np.uint64(j)]
                numbers[np.uint64(j)] = number
                i += 1
                j -= 1
        if k - 1 <= j:
            high = j
        elif k - 1 >= i:
            low = i
        else:
            break


@subroutine
def write_best(numbers, n, items, scores):
    """Write the items and scores of the best of the ``n`` numbers of a buffer, best first."""
    k = items.shape[0]
    if numbers.shape[0] > k:
        _select(numbers, n, k)
        gap = k  # Shell sort
        while gap > 1:
            gap = max(1, gap * 4 // 9)
            for place in range(gap, k):
                _insert(numbers, place, gap, numbers[np.uint64(place)])
    for place in range(k):
        items[place], scores[place] = item_of(numbers[place]), score_of(numbers[place])
