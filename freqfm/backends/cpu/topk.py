"""The best items of every query: scores, exclusions and the choice in one pass.

Scores are computed tile by tile, as matrix products of some queries with some items. While a
tile is still in the cache, excluded items are struck out, and every query's scores are compared
with the worst of its best k so far. The scores of all queries with all items are never stored at
once. Nearly all scores fail the comparison, which runs over many of them in one instruction, so
the matrix product takes most of the time.

How a matrix product rounds depends on the number of its rows. So that queries have the same result
alone and together with others, scores that are good enough, but for rounding, are computed again,
one by one; all other items rank behind the best k.
"""

import contextlib
import math
from typing import NamedTuple

import numpy as np

from freqfm._memory import aligned_zeros
from freqfm._numba.blas import product_with_transposed
from freqfm._numba.jit import ONE, ZERO, inlined, kernel
from freqfm._threads import single_threaded_blas
from freqfm.backends.cpu.team import Team
from freqfm.formulas.search import first_above
from freqfm.formulas.selection import (
    buffer_size,
    clear,
    number_of,
    offer,
    worst_of,
    write_best,
)

# This many consecutive scores are compared at once; whether one of them is good enough is a single
# branch, which is rarely taken.
BLOCK = 64

# Items of a tile. With 256 queries it takes half a megabyte, which fits a core's private cache.
TILE_ITEMS = 512

# Queries of a tile. Large tiles make faster matrix products, small ones can be divided among more
# threads. The choice depends only on the problem, so that results do not depend on the number of
# threads.
_MANY_QUERIES = 8192
_ROWS_OF_MANY, _ROWS_OF_FEW = 256, 64

# Below this number of multiplications, some tenths of a millisecond, starting threads takes longer.
_WORTH_SEVERAL_THREADS = 20_000_000

# Padding between the scratch of two threads, in numbers, so that they share no cache line.
_PADDING = 16

_NOTHING = np.float32(-np.inf)

# Two sums of d products of float32 in different orders differ by at most d / 2**23 times the
# product of the vectors' lengths. Shorter vectors count as of this squared length: squares of
# theirs would underflow.
_ROUNDING, _ROUNDINGS_BESIDE = np.float32(2.0**-22), np.float32(8)
_LEAST_SQUARES = np.float32(1e-30)


@inlined
def _strike_out(i, first_item, last_item, cursor, end, indices, tile):
    """Overwrite row ``i``'s excluded items of the tile; return the first one after the tile."""
    while cursor < end and indices[np.uint64(cursor)] < last_item:
        tile[i, np.uint64(indices[np.uint64(cursor)] - first_item)] = _NOTHING
        cursor += 1
    return cursor


@inlined
def _any_above(tile, i, begin, threshold):
    """Return whether any of ``BLOCK`` consecutive scores exceeds the threshold; NaN does not."""
    found = False
    for j in range(begin, begin + np.uint64(BLOCK)):
        found |= tile[i, j] > threshold
    return found


@inlined
def _score(query, row, n_unit):
    """Return the score of a row whose first ``n_unit`` numbers count at unit length."""
    score = ZERO
    squares = ZERO
    for f in range(n_unit):
        score += query[f] * row[f]
        squares += row[f] * row[f]
    if squares > ZERO:
        score /= np.float32(math.sqrt(squares))
    for f in range(np.uint64(n_unit), np.uint64(row.shape[0])):
        score += query[f] * row[f]
    return score


@inlined
def _keep_best(i, query, first_item, n_scores, tile, slack, scores, kept):
    """Keep those of row ``i`` of the tile that may be among the best.

    No score exceeds its number in the tile by more than ``slack``.
    """
    numbers, k = kept.numbers[i], kept.k
    # Items come in increasing order, so of equal scores the one that is already kept stays.
    threshold = kept.thresholds[i]
    for begin in range(np.uint64(0), np.uint64(n_scores), np.uint64(BLOCK)):
        if _any_above(tile, i, begin, threshold - slack):
            for j in range(begin, begin + np.uint64(BLOCK)):
                if tile[i, j] > threshold - slack:
                    item = first_item + np.int64(j)
                    score = _score(query, scores.items[np.uint64(item)], scores.n_unit)
                    if score > threshold:
                        number = number_of(score, item)
                        kept.counts[i] = offer(numbers, kept.counts[i], k, number)
                        threshold = worst_of(numbers, k)
    kept.thresholds[i] = threshold


@inlined
def _score_for_one(query, rows, n_unit, out):
    """Write the scores of rows for a single query; return the rows' largest squared length.

    Reading the rows dominates the cost.
    """
    largest = ZERO
    for j in range(rows.shape[0]):
        out[j] = _score(query, rows[j], n_unit)
        largest = max(largest, _squared_length(rows[j], n_unit))
    return largest + ONE if n_unit > 0 else largest


@inlined
def _squared_length(row, first):
    """Return the squared length of a row without the numbers before ``first``."""
    squares = ZERO
    for f in range(np.uint64(first), np.uint64(row.shape[0])):
        squares += row[f] * row[f]
    return squares


@inlined
def _to_unit(rows, n_unit, out):
    """Write rows with their first ``n_unit`` numbers scaled to unit length; zeros stay zeros."""
    for j in range(rows.shape[0]):
        squares = ZERO
        for f in range(n_unit):
            squares += rows[j, f] * rows[j, f]
        scale = ONE / np.float32(math.sqrt(squares)) if squares > ZERO else ONE
        for f in range(n_unit):
            out[j, f] = scale * rows[j, f]
        for f in range(n_unit, rows.shape[1]):
            out[j, f] = rows[j, f]


@inlined
def _score_tile(queries, rows, n_unit, unit, tile):
    """Write the scores of a tile of queries and rows; return the rows' largest squared length."""
    if n_unit > 0:
        _to_unit(rows, n_unit, unit)
        rows = unit[: rows.shape[0]]
    product_with_transposed(queries, rows, tile)
    largest = ZERO
    for j in range(rows.shape[0]):
        largest = max(largest, _squared_length(rows[j], 0))
    return largest


class Scores(NamedTuple):
    """The scores that items are ranked by: dot products of queries and items."""

    queries: np.ndarray  #: (n, d), float32
    items: np.ndarray  #: (m, d), float32
    n_unit: int  #: the first ``n_unit`` numbers of an item are scaled to unit length


class Parts(NamedTuple):
    """How the queries and the items are divided among threads."""

    n_rows: int  #: queries of a part
    n_ranges: int  #: parts of the items


class Scratch(NamedTuple):
    """Working memory of each thread."""

    tiles: np.ndarray  #: (size, n_rows, TILE_ITEMS + BLOCK), float32
    units: np.ndarray  #: (size, TILE_ITEMS, d), float32; empty tiles if unused
    cursors: np.ndarray  #: (size, n_rows or more), int64
    slacks: np.ndarray  #: (size, n_rows or more), float32; of rows of length 1
    numbers: np.ndarray  #: (size, n_rows, c), int64, a buffer of the best for each query
    counts: np.ndarray  #: (size, n_rows or more), int64: how many these hold
    thresholds: np.ndarray  #: (size, n_rows or more), float32


class _Kept(NamedTuple):
    """The best of each of a thread's queries so far."""

    numbers: np.ndarray  #: (n_rows, c), int64
    counts: np.ndarray  #: (n_rows or more,), int64
    thresholds: np.ndarray  #: (n_rows or more,), float32: what is exceeded by others to be kept
    k: int


class Best(NamedTuple):
    """The results for the first range of items, for the second, and so on."""

    items: np.ndarray  #: (n_ranges * n, k), int32
    scores: np.ndarray  #: (n_ranges * n, k), float32


@inlined
def _slack(query):
    """Return how far two sums of its products with a row of length 1 may differ."""
    length = np.float32(math.sqrt(max(_squared_length(query, 0), _LEAST_SQUARES)))
    return _ROUNDING * (np.float32(query.shape[0]) + _ROUNDINGS_BESIDE) * length


@inlined
def _rank_part(rank, part, scores, excluded, parts, scratch, best):
    """Write the best of one range of items for one part of the queries."""
    n_queries, n_items = scores.queries.shape[0], scores.items.shape[0]
    n_tiles = -(-n_items // TILE_ITEMS)
    tile, unit, cursors = scratch.tiles[rank], scratch.units[rank], scratch.cursors[rank]
    slacks = scratch.slacks[rank]
    thresholds = scratch.thresholds[rank]
    kept = _Kept(scratch.numbers[rank], scratch.counts[rank], thresholds, best.items.shape[1])
    indptr, indices, banned = excluded.indptr, excluded.indices, excluded.for_all
    first = part // parts.n_ranges * parts.n_rows
    n_here = min(parts.n_rows, n_queries - first)
    queries = scores.queries[first : first + n_here]
    begin = part % parts.n_ranges * n_tiles // parts.n_ranges * TILE_ITEMS
    end = min((part % parts.n_ranges + 1) * n_tiles // parts.n_ranges * TILE_ITEMS, n_items)
    out = part % parts.n_ranges * n_queries + first
    for i in range(n_here):
        cursors[i] = first_above(indices, indptr[first + i], indptr[first + i + 1], begin - 1)
        slacks[i] = _slack(queries[i])
        kept.counts[i], thresholds[i] = clear(kept.numbers[i], kept.k), _NOTHING
    next_banned = first_above(banned, 0, banned.shape[0], begin - 1)
    for first_item in range(begin, end, TILE_ITEMS):
        last_item = min(first_item + TILE_ITEMS, end)
        n_scores = last_item - first_item
        rows = scores.items[first_item:last_item]
        if n_queries == 1:
            squares = _score_for_one(queries[0], rows, scores.n_unit, tile[0])
        else:
            squares = _score_tile(queries, rows, scores.n_unit, unit, tile)
        length = np.float32(math.sqrt(max(squares, _LEAST_SQUARES)))
        banned_here = next_banned
        for i in range(n_here):
            row = np.uint64(i)
            next_banned = _strike_out(
                row, first_item, last_item, banned_here, banned.shape[0], banned, tile
            )
            cursors[row] = _strike_out(
                row, first_item, last_item, cursors[row], indptr[first + i + 1], indices, tile
            )
            # The last block of a tile may reach beyond its scores.
            for j in range(n_scores, -(-n_scores // BLOCK) * BLOCK):
                tile[row, j] = _NOTHING
            slack = slacks[row] * length
            _keep_best(row, queries[row], first_item, n_scores, tile, slack, scores, kept)
    for i in range(n_here):
        at = np.uint64(out + i)
        write_best(kept.numbers[i], kept.counts[i], best.items[at], best.scores[at])


@kernel
def rank_items(rank, size, barrier, scores, excluded, parts, scratch, best):
    """Write the ``k`` best items of every query, best first.

    Threads take turns at pairs of a part of the queries and a range of the items. How queries and
    items are cut into tiles depends neither on the number of threads nor on that of ranges, so
    neither do the scores, bit by bit. Equal scores are in the order of their items; missing places
    have item -1 and the score -inf. An item whose score is NaN or -inf is never chosen.

    Parameters
    ----------
    scores : Scores
    excluded : Exclusions
    parts : Parts
    scratch : Scratch
    best : Best
    """
    n_parts = -(-scores.queries.shape[0] // parts.n_rows) * parts.n_ranges
    for part in range(rank, n_parts, size):
        _rank_part(rank, part, scores, excluded, parts, scratch, best)


@inlined
def _rank_candidates(q, scores, candidates, excluded, numbers, best):
    """Write the best of one query's candidates."""
    query, k = scores.queries[q], best.items.shape[1]
    n = clear(numbers, k)
    hidden, end, banned = excluded.indptr[q], excluded.indptr[q + 1], 0
    n_banned = excluded.for_all.shape[0]
    for e in range(candidates.indptr[q], candidates.indptr[q + 1]):
        item = candidates.indices[np.uint64(e)]
        hidden = first_above(excluded.indices, hidden, end, item - 1)
        banned = first_above(excluded.for_all, banned, n_banned, item - 1)
        if hidden < end and excluded.indices[np.uint64(hidden)] == item:
            continue
        if banned < n_banned and excluded.for_all[np.uint64(banned)] == item:
            continue
        score = _score(query, scores.items[np.uint64(item)], scores.n_unit)
        if score > worst_of(numbers, k):
            n = offer(numbers, n, k, number_of(score, item))
    write_best(numbers, n, best.items[q], best.scores[q])


@kernel
def rank_candidates(rank, size, barrier, scores, candidates, excluded, numbers, best):
    """Write the ``k`` best of every query's candidates, best first.

    The scores are those that a query alone has in :func:`rank_items`, bit by bit.

    Parameters
    ----------
    scores : Scores
    candidates : Candidates
    excluded : Exclusions
    numbers : ndarray of shape (size, c), int64
        Buffers of :mod:`freqfm.formulas.selection`.
    best : Best
    """
    for q in range(rank, scores.queries.shape[0], size):
        _rank_candidates(q, scores, candidates, excluded, numbers[rank], best)


def top_k_of_candidates(queries, items, k, candidates, excluded, unit_columns, n_threads):
    """Return the best of each query's candidates, see ``Backend.top_k_of_candidates``."""
    best = Best(
        np.empty((len(queries), k), dtype=np.int32), np.empty((len(queries), k), dtype=np.float32)
    )
    if k == 0:
        return best
    n_threads = min(n_threads, len(queries))
    if len(candidates.indices) * items.shape[1] < _WORTH_SEVERAL_THREADS:
        n_threads = 1
    with Team(n_threads) as team:
        scores = Scores(queries, items, int(unit_columns))
        numbers = np.empty((team.size, buffer_size(k)), dtype=np.int64)
        team.run(rank_candidates, scores, candidates, excluded, numbers, best)
    return best


def top_k(queries, items, k, excluded, unit_columns, n_threads):
    """Return the best items of every query and their scores, see ``Backend.top_k``."""
    n, d = queries.shape
    n_rows = _ROWS_OF_MANY if n >= _MANY_QUERIES else _ROWS_OF_FEW
    if n * items.size < _WORTH_SEVERAL_THREADS:
        n_threads = 1
    n_groups, n_tiles = -(-n // n_rows), -(-len(items) // TILE_ITEMS)
    # If there are fewer groups of queries than threads, the items are divided too.
    n_ranges = min(-(-n_threads // n_groups), n_tiles)
    n_threads = min(n_threads, n_groups * n_ranges)
    best = Best(
        np.empty((n_ranges * n, k), dtype=np.int32), np.empty((n_ranges * n, k), dtype=np.float32)
    )
    # A single query takes no matrix products.
    blas = single_threaded_blas() if n > 1 else contextlib.nullcontext()
    with blas, Team(n_threads) as team:
        n_units = TILE_ITEMS if unit_columns and n > 1 else 0
        scratch = Scratch(
            tiles=aligned_zeros((team.size, min(n_rows, n), TILE_ITEMS + BLOCK)),
            units=aligned_zeros((team.size, n_units, d)),
            cursors=np.empty((team.size, n_rows + _PADDING), dtype=np.int64),
            slacks=np.empty((team.size, n_rows + _PADDING), dtype=np.float32),
            numbers=np.empty((team.size, min(n_rows, n), buffer_size(k)), dtype=np.int64),
            counts=np.empty((team.size, n_rows + _PADDING), dtype=np.int64),
            thresholds=np.empty((team.size, n_rows + _PADDING), dtype=np.float32),
        )
        scores = Scores(queries, items, int(unit_columns))
        team.run(rank_items, scores, excluded, Parts(n_rows, n_ranges), scratch, best)
    if n_ranges == 1:
        return best.items, best.scores
    # The best of all ranges are merged; of equal scores those of earlier ranges come first, and
    # missing places, with -inf, last.
    found, scores = (part.reshape(n_ranges, n, k).swapaxes(0, 1).reshape(n, -1) for part in best)
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(found, order, axis=1), np.take_along_axis(scores, order, axis=1)
