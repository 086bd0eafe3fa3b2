"""The best items of every query, by dense or sparse vectors, relevant or diverse.

The best items of every query: scores, exclusions and the choice in one pass.

Scores are computed tile by tile, as matrix products of some queries with some items. While a
tile is still in the cache, excluded items are struck out, and every query's scores are compared
with the worst of its best k so far. The scores of all queries with all items are never stored at
once. Nearly all scores fail the comparison, which runs over many of them in one instruction, so
the matrix product takes most of the time.

How a matrix product rounds depends on the number of its rows. So that queries have the same result
alone and together with others, scores that are good enough, but for rounding, are computed again,
one by one; all other items rank behind the best k.

No score exceeds the product of the lengths of its vectors. For many queries, items may therefore be
taken in descending order of their lengths: most queries are done after the longest ones.

Maximal marginal relevance: choosing items that are relevant and unlike those chosen before.

The largest cosine of an item with those chosen only grows, so its worth only falls. An item is
compared with the items chosen since it was last looked at only if its worth at that time exceeds
the best of this place so far; the others cannot be the best. Few cosines are computed.
"""

import contextlib
import math
from typing import NamedTuple

import numpy as np

from freqfm._input.rows import csr_of
from freqfm._input.validation import kernel_csr
from freqfm._machine import aligned_zeros, single_threaded_blas
from freqfm._numba.blas import product_with_transposed
from freqfm._numba.jit import ONE, ZERO, inlined, kernel, subroutine
from freqfm.backends.base import Exclusions
from freqfm.backends.cpu.team import Team
from freqfm.formulas.selection import (
    buffer_size,
    clear,
    first_above,
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

# So few queries take no matrix products: their scores are computed one by one at once.
_SINGLE = 4

# Below this number of multiplications, some tenths of a millisecond, starting threads takes longer.
_WORTH_SEVERAL_THREADS = 20_000_000

# Padding between the scratch of two threads, in numbers, so that they share no cache line.
_PADDING = 16

_NOTHING = np.float32(-np.inf)

# So many queries are worth it to put the items in order, unless the median of their squared lengths
# exceeds this share of the largest one.
_MANY_IN_ORDER, _SHORT = 2048, 0.25

_AS_STORED = np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.float32)

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


@subroutine
def _score_rows(query, items, places, n, n_unit, out):
    """Write the scores of ``n`` rows, whose first ``n_unit`` numbers count at unit length.

    This is not inlined: as one piece of machine code, it rounds alike wherever it is called.
    """
    for e in range(n):
        row = np.uint64(places[e])
        score = ZERO
        if n_unit > 0:
            squares = ZERO
            for f in range(n_unit):
                score += query[f] * items[row, f]
                squares += items[row, f] * items[row, f]
            if squares > ZERO:
                score /= np.float32(math.sqrt(squares))
        for f in range(np.uint64(n_unit), np.uint64(items.shape[1])):
            score += query[f] * items[row, f]
        out[e] = score


@inlined
def _keep_best(row, i, first_item, n_scores, slack, scores, scratch, k):
    """Keep those of a row of the tile that may be among the best of query ``i``.

    No score exceeds its number in the tile by more than ``slack``.
    """
    tile, places, exact = scratch.tile, scratch.places, scratch.exact
    query, numbers, threshold = scratch.queries[row], scratch.numbers[i], scratch.thresholds[i]
    for begin in range(np.uint64(0), np.uint64(n_scores), np.uint64(BLOCK)):
        if _any_above(tile, row, begin, threshold - slack):
            n = 0
            for j in range(begin, begin + np.uint64(BLOCK)):
                if tile[row, j] > threshold - slack:
                    places[np.uint64(n)] = first_item + np.int64(j)
                    n += 1
            _score_rows(query, scores.items, places, n, scores.n_unit, exact)
            for e in range(n):
                # Of equal scores the smaller item is kept, which may come later. NaN is not.
                number = number_of(exact[e], _item_at(places[e], scores))
                if exact[e] >= threshold and number > numbers[np.uint64(k - 1)]:
                    scratch.counts[i] = offer(numbers, scratch.counts[i], k, number)
                    threshold = worst_of(numbers, k)
    scratch.thresholds[i] = threshold


@inlined
def _item_at(place, scores):
    """Return the item in a row of ``scores.items``."""
    return np.int64(scores.order[np.uint64(place)]) if scores.order.shape[0] > 0 else place


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
        for f in range(np.uint64(n_unit), np.uint64(rows.shape[1])):
            out[j, f] = rows[j, f]


@inlined
def _largest_length(rows):
    """Return the largest length of some rows."""
    largest = _LEAST_SQUARES
    for j in range(rows.shape[0]):
        squares = ZERO
        for f in range(rows.shape[1]):
            squares += rows[j, f] * rows[j, f]
        largest = max(largest, squares)
    return np.float32(math.sqrt(largest))


@inlined
def _leave_out(n_queries, length, scratch):
    """Remove the queries that no item of this length is good enough for; return how many stay.

    The last one takes the place of each.
    """
    active, queries = scratch.active, scratch.queries
    place = 0
    while place < n_queries:
        i = active[np.uint64(place)]
        if scratch.lengths[np.uint64(i)] * length >= scratch.thresholds[np.uint64(i)]:
            place += 1
            continue
        n_queries -= 1
        active[np.uint64(place)] = active[np.uint64(n_queries)]
        for f in range(queries.shape[1]):
            queries[np.uint64(place), f] = queries[np.uint64(n_queries), f]
    return n_queries


class Scores(NamedTuple):
    """The scores that items are ranked by: dot products of queries and items."""

    queries: np.ndarray  #: (n, d), float32
    items: np.ndarray  #: (m, d), float32
    order: np.ndarray  #: (m,), int32: which items these are; empty if they are in order
    lengths: np.ndarray  #: (m,), float32: theirs, descending; empty if they are in order
    n_unit: int  #: the first ``n_unit`` numbers of an item are scaled to unit length


class Parts(NamedTuple):
    """How the queries and the items are divided among threads."""

    n_rows: int  #: queries of a part
    n_ranges: int  #: parts of the items


class Scratch(NamedTuple):
    """Working memory of each thread, or of one: then without the first axis."""

    tile: np.ndarray  #: (size, n_rows, TILE_ITEMS + BLOCK), float32
    unit: np.ndarray  #: (size, TILE_ITEMS, d), float32; empty if unused
    queries: np.ndarray  #: (size, n_rows, d), float32: those that are not done
    active: np.ndarray  #: (size, n_rows or more), int64: which of a part these are
    cursors: np.ndarray  #: (size, n_rows or more), int64
    lengths: np.ndarray  #: (size, n_rows or more), float32, of queries
    places: np.ndarray  #: (size, TILE_ITEMS or more), int64: rows to be scored
    exact: np.ndarray  #: (size, BLOCK or more), float32: their scores
    numbers: np.ndarray  #: (size, n_rows, c), int64, a buffer of the best for each query
    counts: np.ndarray  #: (size, n_rows or more), int64: how many these hold
    thresholds: np.ndarray  #: (size, n_rows or more), float32

    @classmethod
    def of(cls, size, n_rows, n_units, d, k):
        """Return that of ``size`` threads."""

        def numbers(kind, n):
            return np.empty((size, n + _PADDING), dtype=kind)

        return cls(
            tile=aligned_zeros((size, n_rows, TILE_ITEMS + BLOCK)),
            unit=aligned_zeros((size, n_units, d)),
            queries=aligned_zeros((size, n_rows, d)),
            active=numbers(np.int64, n_rows),
            cursors=numbers(np.int64, n_rows),
            lengths=numbers(np.float32, n_rows),
            places=numbers(np.int64, TILE_ITEMS),
            exact=numbers(np.float32, BLOCK),
            numbers=np.empty((size, n_rows, buffer_size(k)), dtype=np.int64),
            counts=numbers(np.int64, n_rows),
            thresholds=numbers(np.float32, n_rows),
        )


@inlined
def _of_thread(rank, scratch):
    """Return a thread's part of what a team has."""
    return Scratch(
        scratch.tile[rank],
        scratch.unit[rank],
        scratch.queries[rank],
        scratch.active[rank],
        scratch.cursors[rank],
        scratch.lengths[rank],
        scratch.places[rank],
        scratch.exact[rank],
        scratch.numbers[rank],
        scratch.counts[rank],
        scratch.thresholds[rank],
    )


class Best(NamedTuple):
    """The results for the first range of items, for the second, and so on."""

    items: np.ndarray  #: (n_ranges * n, k), int32
    scores: np.ndarray  #: (n_ranges * n, k), float32


@inlined
def _score_tile(n_active, first_item, n_scores, scores, rounding, scratch):
    """Write the scores of a tile; return the queries that stay, and the items' largest length.

    A length of 0 says that the scores are exact.
    """
    if scores.queries.shape[0] <= _SINGLE:
        for j in range(n_scores):
            scratch.places[j] = first_item + j
        for i in range(n_active):
            query, tile = scratch.queries[i], scratch.tile[i]
            _score_rows(query, scores.items, scratch.places, n_scores, scores.n_unit, tile)
        return n_active, ZERO
    rows, length = scores.items[first_item : first_item + n_scores], ZERO
    if scores.n_unit > 0:
        _to_unit(rows, scores.n_unit, scratch.unit)
        rows = scratch.unit[:n_scores]
    if scores.order.shape[0] > 0:
        # Lengths are rounded, too.
        length = scores.lengths[np.uint64(first_item)] * (ONE + rounding + rounding)
        n_active = _leave_out(n_active, length, scratch)
    if n_active > 0:
        product_with_transposed(scratch.queries[:n_active], rows, scratch.tile)
    return n_active, length if scores.order.shape[0] > 0 else _largest_length(rows)


@inlined
def _rank_part(part, scores, excluded, parts, scratch, best):
    """Write the best of one range of items for one part of the queries."""
    n_queries, n_items = scores.queries.shape[0], scores.items.shape[0]
    n_tiles, k = -(-n_items // TILE_ITEMS), best.items.shape[1]
    indptr, indices, banned = excluded.indptr, excluded.indices, excluded.for_all
    rounding = _ROUNDING * (np.float32(scores.items.shape[1]) + _ROUNDINGS_BESIDE)
    first = part // parts.n_ranges * parts.n_rows
    n_here = min(parts.n_rows, n_queries - first)
    begin = part % parts.n_ranges * n_tiles // parts.n_ranges * TILE_ITEMS
    end = min((part % parts.n_ranges + 1) * n_tiles // parts.n_ranges * TILE_ITEMS, n_items)
    out = part % parts.n_ranges * n_queries + first
    for i in range(n_here):
        scratch.active[i] = i
        for f in range(scores.queries.shape[1]):
            scratch.queries[i, f] = scores.queries[np.uint64(first + i), f]
        starts = indptr[first + i], indptr[first + i + 1]
        scratch.cursors[i] = first_above(indices, starts[0], starts[1], begin - 1)
        scratch.lengths[i] = _largest_length(scratch.queries[i : i + 1])
        scratch.counts[i], scratch.thresholds[i] = clear(scratch.numbers[i], k), _NOTHING
    next_banned = first_above(banned, 0, banned.shape[0], begin - 1)
    n_active = n_here
    for first_item in range(begin, end, TILE_ITEMS):
        last_item = min(first_item + TILE_ITEMS, end)
        n_scores = last_item - first_item
        n_active, length = _score_tile(n_active, first_item, n_scores, scores, rounding, scratch)
        if n_active == 0:
            break
        banned_here = next_banned
        for place in range(n_active):
            row, i = np.uint64(place), np.uint64(scratch.active[np.uint64(place)])
            next_banned = _strike_out(
                row, first_item, last_item, banned_here, banned.shape[0], banned, scratch.tile
            )
            last = indptr[np.uint64(first) + i + np.uint64(1)]
            scratch.cursors[i] = _strike_out(
                row, first_item, last_item, scratch.cursors[i], last, indices, scratch.tile
            )
            # The last block of a tile may reach beyond its scores.
            for j in range(np.uint64(n_scores), np.uint64(-(-n_scores // BLOCK) * BLOCK)):
                scratch.tile[row, j] = _NOTHING
            slack = rounding * length * scratch.lengths[i] if length > ZERO else ZERO
            _keep_best(row, i, first_item, n_scores, slack, scores, scratch, k)
    for i in range(n_here):
        at = np.uint64(out + i)
        write_best(scratch.numbers[i], scratch.counts[i], best.items[at], best.scores[at])


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
    of_thread = _of_thread(rank, scratch)
    for part in range(rank, n_parts, size):
        _rank_part(part, scores, excluded, parts, of_thread, best)


@inlined
def _rank_candidates(q, scores, candidates, excluded, scratch, best):
    """Write the best of one query's candidates."""
    query, k = scores.queries[q], best.items.shape[1]
    numbers, places, exact = scratch.numbers[0], scratch.places, scratch.exact
    n_kept, n_found = clear(numbers, k), 0
    hidden, end, banned = excluded.indptr[q], excluded.indptr[q + 1], 0
    n_banned, last = excluded.for_all.shape[0], candidates.indptr[q + 1]
    for e in range(candidates.indptr[q], last):
        item = candidates.indices[np.uint64(e)]
        hidden = first_above(excluded.indices, hidden, end, item - 1)
        banned = first_above(excluded.for_all, banned, n_banned, item - 1)
        is_hidden = hidden < end and excluded.indices[np.uint64(hidden)] == item
        if not is_hidden and not (
            banned < n_banned and excluded.for_all[np.uint64(banned)] == item
        ):
            places[np.uint64(n_found)] = item
            n_found += 1
        if n_found < BLOCK and e < last - 1:
            continue
        _score_rows(query, scores.items, places, n_found, scores.n_unit, exact)
        for found in range(n_found):
            if exact[found] > worst_of(numbers, k):
                number = number_of(exact[found], places[found])
                n_kept = offer(numbers, n_kept, k, number)
        n_found = 0
    write_best(numbers, n_kept, best.items[q], best.scores[q])


@kernel
def rank_candidates(rank, size, barrier, scores, candidates, excluded, scratch, best):
    """Write the ``k`` best of every query's candidates, best first.

    The scores are those that a query alone has in :func:`rank_items`, bit by bit.

    Parameters
    ----------
    scores : Scores
    candidates : Candidates
    excluded : Exclusions
    scratch : Scratch
    best : Best
    """
    of_thread = _of_thread(rank, scratch)
    for q in range(rank, scores.queries.shape[0], size):
        _rank_candidates(q, scores, candidates, excluded, of_thread, best)


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
        scores = Scores(queries, items, *_AS_STORED, int(unit_columns))
        scratch = Scratch.of(team.size, 1, 0, 1, k)
        team.run(rank_candidates, scores, candidates, excluded, scratch, best)
    return best


def _in_order(scores, excluded):
    """Return the Scores of items by descending length, and exclusions by their places there.

    Items whose lengths hardly differ, or may be infinite, stay as they are.
    """
    queries, items, others = scores.queries, scores.items, scores.items[:, scores.n_unit :]
    squares = np.einsum("ij,ij->i", others, others) + np.float32(scores.n_unit > 0)
    longest = squares.max() * np.einsum("ij,ij->i", queries, queries).max()
    if not (np.median(squares) < _SHORT * squares.max() and np.isfinite(longest)):
        return scores, excluded
    squares[excluded.for_all] = -1  # these come last, and are cut off
    order = np.argsort(-squares).astype(np.int32)
    place = np.empty_like(order)
    place[order] = np.arange(len(order), dtype=np.int32)
    hidden = place[excluded.indices]
    shape = len(queries), len(items)
    hidden = csr_of(np.ones(len(hidden), np.float32), hidden, excluded.indptr, shape)
    hidden = hidden.tocsc().tocsr()  # transposed twice, rows are sorted
    hidden = kernel_csr(hidden.data, hidden.indices, hidden.indptr, shape)
    order = order[: len(order) - len(excluded.for_all)]
    lengths = np.sqrt(np.maximum(squares[order], _LEAST_SQUARES))
    scores = scores._replace(items=items[order], order=order, lengths=lengths)
    return scores, Exclusions(hidden.indptr, hidden.indices, np.zeros(0, np.int32))


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
    scores = Scores(queries, items, *_AS_STORED, int(unit_columns))
    if n >= _MANY_IN_ORDER and n_ranges == 1:
        scores, excluded = _in_order(scores, excluded)
    best = Best(
        np.empty((n_ranges * n, k), dtype=np.int32), np.empty((n_ranges * n, k), dtype=np.float32)
    )
    blas = single_threaded_blas() if n > _SINGLE else contextlib.nullcontext()
    with blas, Team(n_threads) as team:
        n_units = TILE_ITEMS if unit_columns and n > _SINGLE else 0
        scratch = Scratch.of(team.size, min(n_rows, n), n_units, d, k)
        team.run(rank_items, scores, excluded, Parts(n_rows, n_ranges), scratch, best)
    if n_ranges == 1:
        return best.items, best.scores
    # The best of all ranges are merged; of equal scores those of earlier ranges come first, and
    # missing places, with -inf, last.
    found, scores = (part.reshape(n_ranges, n, k).swapaxes(0, 1).reshape(n, -1) for part in best)
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(found, order, axis=1), np.take_along_axis(scores, order, axis=1)


# Below this number of queries and their entries, starting threads takes longer.
_MANY_LISTED = 1000


class _Sums(NamedTuple):
    """Scores of a thread's query, only valid for the items that it has marked."""

    scores: np.ndarray  #: (size, n_items), float32
    queries: np.ndarray  #: (size, n_items), int32: the last query that has a score for the item
    touched: np.ndarray  #: (size, n_items), int32: the items of this query, in any order
    numbers: np.ndarray  #: (size, c), int64, a buffer of the best


@inlined
def _add_products(q, queries, columns, scores, marks, touched):
    """Add up the scores of query ``q``; return how many items have one."""
    n_touched = 0
    for e in range(queries.starts[q], queries.starts[q + 1]):
        column = queries.items[np.uint64(e)]
        weight = queries.weights[np.uint64(e)]
        for p in range(columns.starts[column], columns.starts[column + 1]):
            item = np.uint64(columns.items[np.uint64(p)])
            if marks[item] != q:
                marks[item] = q
                scores[item] = ZERO
                touched[np.uint64(n_touched)] = columns.items[np.uint64(p)]
                n_touched += 1
            scores[item] += weight * columns.weights[np.uint64(p)]
    return n_touched


@kernel
def rank_sparse(rank, size, barrier, queries, columns, lists, sums, best):
    """Write the ``k`` items with the largest positive scores of every query, best first.

    A score adds the products of a query's entries, in their order, with entries of the item.
    Missing places have item -1 and the score -inf.

    Parameters
    ----------
    queries : Histories
    columns : Histories
        Row c are the items that have an entry in column c.
    lists : ItemLists
    sums : _Sums
    best : Best
    """
    scores, marks, touched = sums.scores[rank], sums.queries[rank], sums.touched[rank]
    numbers, k = sums.numbers[rank], best.items.shape[1]
    for q in range(rank, queries.starts.shape[0] - 1, size):
        n = _add_products(q, queries, columns, scores, marks, touched)
        for e in range(lists.excluded.indptr[q], lists.excluded.indptr[q + 1]):
            marks[np.uint64(lists.excluded.indices[np.uint64(e)])] = -1
        first, found = 0, touched
        if lists.has_candidates:
            first, n = lists.candidates.indptr[q], lists.candidates.indptr[q + 1]
            found = lists.candidates.indices
        n_kept, threshold = clear(numbers, k), ZERO
        for e in range(first, n):
            item = found[np.uint64(e)]
            at = np.uint64(item)
            if marks[at] != q or not lists.allowed[at]:
                continue
            score = scores[at]
            if score > ZERO and score >= threshold:
                number = number_of(score, item)
                if number > numbers[np.uint64(k - 1)]:
                    n_kept = offer(numbers, n_kept, k, number)
                    threshold = worst_of(numbers, k)
        write_best(numbers, n_kept, best.items[q], best.scores[q])


def sparse_top_k(queries, columns, k, lists, n_threads):
    """Return the best items of every query, see ``Backend.sparse_top_k``."""
    n, n_items = len(queries.starts) - 1, len(lists.allowed)
    best = Best(np.empty((n, k), dtype=np.int32), np.empty((n, k), dtype=np.float32))
    n_threads = min(n_threads, n)
    if len(queries.items) + n < _MANY_LISTED:
        n_threads = 1
    with Team(n_threads) as team:
        shape = team.size, n_items
        sums = _Sums(
            np.empty(shape, dtype=np.float32),
            np.full(shape, -1, dtype=np.int32),
            np.empty(shape, dtype=np.int32),
            np.empty((team.size, buffer_size(k)), dtype=np.int64),
        )
        team.run(rank_sparse, queries, columns, lists, sums, best)
    return best


@kernel
def fill_blocks(rank, size, barrier, matrix, items, places, blocks):
    """Write the rows and columns of some items of a sparse matrix, for several lists of items.

    Parameters
    ----------
    matrix : Histories
        Square.
    items : ndarray of shape (n, k), int32
        No item twice in a row; -1 after its last.
    places : ndarray of shape (size, n_items), int32
        -1 in all places, before and after.
    blocks : ndarray of shape (n, k, k), float32
        Zeros, to be overwritten.
    """
    place = places[rank]
    for b in range(rank, items.shape[0], size):
        k = 0
        while k < items.shape[1] and items[b, k] >= 0:
            place[np.uint64(items[b, k])] = k
            k += 1
        for i in range(k):
            item = items[b, i]
            for e in range(matrix.starts[item], matrix.starts[item + 1]):
                j = place[np.uint64(matrix.items[np.uint64(e)])]
                if j >= 0:
                    blocks[b, i, j] = matrix.weights[np.uint64(e)]
        for i in range(k):
            place[np.uint64(items[b, i])] = -1


def sparse_blocks(matrix, items, n_threads):
    """Return blocks of a sparse matrix, see ``Backend.sparse_blocks``."""
    n, k = items.shape
    blocks = np.zeros((n, k, k), dtype=np.float32)
    with Team(min(n_threads, n)) as team:
        places = np.full((team.size, len(matrix.starts) - 1), -1, dtype=np.int32)
        team.run(fill_blocks, matrix, items, places, blocks)
    return blocks


# Below this number of candidates times places, starting threads takes longer.
_MANY_DISSIMILARITIES = 20_000


class _Scratch(NamedTuple):
    """What is known of the candidates of a thread's list."""

    cosines: np.ndarray  #: (size, n_candidates), float32: the largest found with chosen items
    n_compared: np.ndarray  #: (size, n_candidates), int32: with how many; -1 if it is chosen
    row: np.ndarray  #: (size, n_columns), float32: zeros, in which sparse vectors are spread


@inlined
def _spread(item, rows, row):
    """Write the entries of a sparse row into a dense one."""
    for e in range(rows.starts[item], rows.starts[item + np.uint64(1)]):
        row[np.uint64(rows.items[np.uint64(e)])] = rows.weights[np.uint64(e)]


@inlined
def _clear(item, rows, row):
    """Write zeros where a sparse row has entries."""
    for e in range(rows.starts[item], rows.starts[item + np.uint64(1)]):
        row[np.uint64(rows.items[np.uint64(e)])] = ZERO


@inlined
def _dot(item, other, vectors, row):
    """Return the dot product of two vectors; if they are sparse, ``row`` holds that of ``item``."""
    total = ZERO
    if vectors.dense.shape[0] > 0:
        for f in range(np.uint64(vectors.dense.shape[1])):
            total += vectors.dense[item, f] * vectors.dense[other, f]
        return total
    rows = vectors.sparse
    for e in range(rows.starts[other], rows.starts[other + np.uint64(1)]):
        total += rows.weights[np.uint64(e)] * row[np.uint64(rows.items[np.uint64(e)])]
    return total


@inlined
def _compare(place, n_chosen, chosen, items, known, vectors):
    """Compare a candidate with the chosen items that it was not compared with.

    ``known`` are the rows of a ``_Scratch``. Returns the largest cosine with a chosen item.
    """
    cosines, n_compared, row = known
    item = np.uint64(items[place])
    is_sparse = vectors.dense.shape[0] == 0
    if is_sparse:
        _spread(item, vectors.sparse, row)
    for r in range(n_compared[place], n_chosen):
        other = np.uint64(items[np.uint64(chosen[np.uint64(r)])])
        cosines[place] = max(cosines[place], _dot(item, other, vectors, row))
    n_compared[place] = n_chosen
    if is_sparse:
        _clear(item, vectors.sparse, row)
    return cosines[place]


@kernel
def choose_diverse(rank, size, barrier, lists, vectors, diversity, scratch, chosen):
    """Write the places of the candidates chosen for each list, in this order; see ``Backend``.

    Parameters
    ----------
    lists : RankedLists
    vectors : ItemVectors
    diversity : float32
    scratch : _Scratch
    chosen : ndarray of shape (n_lists, k), int32
        -1 in all places before.
    """
    known = scratch.cosines[rank], scratch.n_compared[rank], scratch.row[rank]
    cosines, n_compared, _ = known
    for q in range(rank, lists.items.shape[0], size):
        list_ = np.uint64(q)
        items, relevances = lists.items[list_], lists.relevances[list_]
        n = np.uint64(0)
        while n < np.uint64(items.shape[0]) and items[n] >= 0:
            cosines[n], n_compared[n] = -ONE, 0
            n += np.uint64(1)
        for r in range(min(np.int64(n), chosen.shape[1])):
            best, most = np.uint64(0), _NOTHING
            for place in range(n):
                relevance = (ONE - diversity) * relevances[place]
                if relevance + diversity <= most:
                    break  # Relevances fall: no later one is worth more.
                if n_compared[place] < 0 or relevance - diversity * cosines[place] <= most:
                    continue
                cosine = _compare(place, r, chosen[list_], items, known, vectors)
                worth = relevance - diversity * cosine
                if worth > most:
                    best, most = place, worth
            if most == _NOTHING:
                break  # as with NaN
            chosen[list_, np.uint64(r)] = np.int32(best)
            n_compared[best] = -1


def diversify(lists, vectors, diversity, k, n_threads):
    """Return the places of the candidates chosen for each list, see ``Backend.diversify``."""
    n, width = lists.items.shape
    chosen = np.full((n, k), -1, dtype=np.int32)
    if n * width * k < _MANY_DISSIMILARITIES:
        n_threads = 1
    with Team(max(1, min(n_threads, n))) as team:
        scratch = _Scratch(
            np.empty((team.size, width), dtype=np.float32),
            np.empty((team.size, width), dtype=np.int32),
            np.zeros((team.size, vectors.n_columns), dtype=np.float32),
        )
        team.run(choose_diverse, lists, vectors, np.float32(diversity), scratch, chosen)
    return chosen
