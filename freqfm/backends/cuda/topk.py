"""The best items of every query: scores of some queries at a time, and a choice by threshold.

A score and its item are one number, see :mod:`freqfm.formulas.selection`. A group scans a slice of
a query's scores; what exceeds the worst of the best so far goes to a buffer, which is sorted when
it is full.
"""

from typing import NamedTuple

import numpy as np

from freqfm._numba.jit import inlined
from freqfm.backends.cuda.groups import any_of_lanes, last_of_lanes, prefix_sum, synchronize_group
from freqfm.backends.cuda.products import product_of_rows
from freqfm.backends.cuda.tables import row_scale, unit_element
from freqfm.formulas.selection import item_of, number_of, score_of

# Scores in memory at a time: half a gigabyte; buffers take as much at most.
_SCORES = 1 << 27

# So many slices of scores keep a GPU busy; a slice has at least so many items for each that is
# kept, and at least ``_SLICE``.
_GROUPS, _SLICE = 4096, 4096

_NOTHING = np.float32(-np.inf)

#: The number of no item.
_EMPTY = -(1 << 63)


class TopKArgs(NamedTuple):
    """The arguments of a launch; b is a part of the queries."""

    queries: np.ndarray  #: (n, d)
    items: np.ndarray  #: (n_items, d)
    n_unit: int
    starts: np.ndarray  #: (n + 1,), int64, where the exclusions of a query begin
    excluded: np.ndarray  #: (n_excluded,), int32
    for_all: np.ndarray  #: (n_excluded,), int32
    right: np.ndarray  #: (d, n_items), the items as columns, scaled
    scores: np.ndarray  #: (n_of_part, n_items)
    buffers: np.ndarray  #: (n_of_part * n_slices, capacity), int64
    merged: np.ndarray  #: (n_of_part, capacity), int64
    found: np.ndarray  #: (n, k), int32
    best: np.ndarray  #: (n, k)


@inlined
def scale_items(group, b, args):
    """Write the items as columns, their first numbers at unit length."""
    items, right = args.items, args.right
    for i in range(group.rank, items.shape[0], group.size):
        scale = row_scale(group, items, i, args.n_unit)
        for f in range(group.lane, items.shape[1], group.n_lanes):
            right[f, i] = unit_element(items, i, f, scale, args.n_unit)


@inlined
def _part(args, b):
    """Return the first query of part ``b``, and their number."""
    first = b * args.scores.shape[0]
    return first, min(args.scores.shape[0], args.queries.shape[0] - first)


@inlined
def score_part(group, b, args):
    """Write the scores of a part's queries."""
    first, n = _part(args, b)
    shape = n, args.items.shape[0]
    product_of_rows(group, args.queries, first, args.right, shape, args.scores)


@inlined
def strike_out(group, b, args):
    """Overwrite the scores of excluded items."""
    first, n = _part(args, b)
    for i in range(group.rank, n, group.size):
        for p in range(
            args.starts[first + i] + group.lane, args.starts[first + i + 1], group.n_lanes
        ):
            args.scores[i, args.excluded[p]] = _NOTHING
        for p in range(group.lane, args.for_all.shape[0], group.n_lanes):
            args.scores[i, args.for_all[p]] = _NOTHING


@inlined
def _sort(group, buffer, n):
    """Sort the first ``n`` numbers of a buffer, a power of two, from the largest on (bitonic)."""
    length = 2
    while length <= n:
        distance = length >> 1
        while distance > 0:
            for pair in range(group.lane, n >> 1, group.n_lanes):
                low = (pair // distance) * 2 * distance + pair % distance
                one, other = buffer[low], buffer[low + distance]
                if (one < other) == ((low & length) == 0):
                    buffer[low], buffer[low + distance] = other, one
            synchronize_group(group)
            distance >>= 1
        length <<= 1


@inlined
def _compress(group, buffer, n, k):
    """Keep the best ``k`` of ``n`` numbers; return their number, and a bound for the next."""
    synchronize_group(group)
    for place in range(n + group.lane, buffer.shape[0], group.n_lanes):
        buffer[place] = _EMPTY
    synchronize_group(group)
    _sort(group, buffer, buffer.shape[0])
    return min(n, k), np.int64(buffer[k - 1])


@inlined
def _offer(group, buffer, n, k, threshold, number):
    """Put the numbers of all lanes into a buffer if they are good enough."""
    wanted = number > threshold
    if not any_of_lanes(group, wanted):
        return n, threshold
    up_to = prefix_sum(group, 1 if wanted else 0)
    if wanted:
        buffer[n + up_to - 1] = number
    n += last_of_lanes(group, up_to)
    if n + group.n_lanes > buffer.shape[0]:
        n, threshold = _compress(group, buffer, n, k)
    return n, threshold


@inlined
def choose(group, b, args):
    """Find the best items of each slice of a query's scores."""
    _, n_queries = _part(args, b)
    n_items, k = args.items.shape[0], args.found.shape[1]
    n_slices = args.buffers.shape[0] // args.scores.shape[0]
    length = (n_items + n_slices - 1) // n_slices
    for task in range(group.rank, n_queries * n_slices, group.size):
        i, begin = task // n_slices, task % n_slices * length
        end = min(begin + length, n_items)
        buffer, n, threshold = args.buffers[task], 0, np.int64(_EMPTY)
        for start in range(begin, end, group.n_lanes):
            j, number = start + group.lane, np.int64(_EMPTY)
            if j < end:
                score = args.scores[i, j]
                if score > _NOTHING:
                    number = number_of(score, j)
            n, threshold = _offer(group, buffer, n, k, threshold, number)
        _compress(group, buffer, n, k)


@inlined
def merge(group, b, args):
    """Find the best items of all slices, and write them."""
    first, n_queries = _part(args, b)
    k, n_slices = args.found.shape[1], args.buffers.shape[0] // args.scores.shape[0]
    for i in range(group.rank, n_queries, group.size):
        buffer = args.buffers[i * n_slices]
        if n_slices > 1:
            buffer, n, threshold = args.merged[i], 0, np.int64(_EMPTY)
            for start in range(0, n_slices * k, group.n_lanes):
                place, number = start + group.lane, np.int64(_EMPTY)
                if place < n_slices * k:
                    number = args.buffers[i * n_slices + place // k, place % k]
                n, threshold = _offer(group, buffer, n, k, threshold, number)
            _compress(group, buffer, n, k)
        for place in range(group.lane, k, group.n_lanes):
            number = buffer[place]
            exists = number > _EMPTY
            args.found[first + i, place] = item_of(number) if exists else np.int32(-1)
            args.best[first + i, place] = score_of(number) if exists else _NOTHING


SCALE = (scale_items,)
FIND = (score_part, strike_out, choose, merge)


def top_k(device, queries, items, k, excluded, unit_columns):
    """Return the best items of every query, and their scores, see ``Backend``."""
    (n, width), n_items = queries.shape, len(items)
    capacity = 1 << int(k + max(k, 64) - 1).bit_length()
    n_of_part = max(1, min(n, _SCORES // max(n_items, 2 * capacity)))
    most_slices = min(_GROUPS, _SCORES // (2 * capacity)) // n_of_part
    n_slices = max(1, min(most_slices, n_items // max(_SLICE, 2 * k)))
    args = TopKArgs(
        queries=device.to_device(queries),
        items=device.to_device(items),
        n_unit=int(unit_columns),
        starts=device.to_device(excluded.indptr.astype(np.int64)),
        excluded=device.to_device(excluded.indices.astype(np.int32)),
        for_all=device.to_device(excluded.for_all),
        right=device.empty((width, n_items), np.float32),
        scores=device.empty((n_of_part, n_items), np.float32),
        buffers=device.empty((n_of_part * n_slices, capacity), np.int64),
        merged=device.empty((n_of_part if n_slices > 1 else 0, capacity), np.int64),
        found=device.empty((n, k), np.int32),
        best=device.empty((n, k), np.float32),
    )
    device.run(SCALE, args, 32, n_items)
    n_groups = max(n_of_part * n_slices, n_of_part * n_items // 512)
    device.run(FIND, args, 32, n_groups, (0, -(-n // n_of_part)))
    found, best = np.empty((n, k), dtype=np.int32), np.empty((n, k), dtype=np.float32)
    return device.to_host(args.found, found), device.to_host(args.best, best)
