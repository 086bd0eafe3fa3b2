"""The best items of every query: scores, exclusions and the choice in one pass.

Scores are computed tile by tile, as matrix products of some queries with some items. While a
tile still lies in the cache, excluded items are struck out, and every query's scores are compared
with the worst of its best k so far. The scores of all queries with all items never exist at
once. Nearly all scores fail the comparison, which runs over many of them in one instruction, so
the matrix product takes most of the time.
"""

import math

import numpy as np

from freqfm._jit import ONE, ZERO, inlined, kernel
from freqfm.backends.cpu.blas import product_with_transposed

# So many neighbouring scores are compared at once; whether one of them is good enough is a single
# branch, and rarely taken.
BLOCK = 64

# Items of a tile. With 256 queries it takes half a megabyte, which stays in a core's own cache.
TILE_ITEMS = 512

_NOTHING = np.float32(-np.inf)


@inlined
def _worse(score, item, other_score, other_item):
    """Return whether an item ranks behind another; of two equal scores the larger index does."""
    return score < other_score or (score == other_score and item > other_item)


@inlined
def _sink(r, n_kept, score, item, scores, items):
    """Replace the worst of the ``n_kept`` entries in row ``r``; the next worst comes to the top.

    The row is a heap: an entry at place i ranks behind those at 2 i + 1 and 2 i + 2.
    """
    place = np.uint64(0)
    n_kept = np.uint64(n_kept)
    while True:
        child = np.uint64(2) * place + np.uint64(1)
        if child >= n_kept:
            break
        other = child + np.uint64(1)
        if other < n_kept and _worse(
            scores[r, other], items[r, other], scores[r, child], items[r, child]
        ):
            child = other
        if not _worse(scores[r, child], items[r, child], score, item):
            break
        scores[r, place] = scores[r, child]
        items[r, place] = items[r, child]
        place = child
    scores[r, place] = score
    items[r, place] = item


@inlined
def _first_from(indices, begin, end, item):
    """Return where the rising part [begin, end) of ``indices`` reaches ``item``, by bisection."""
    while begin < end:
        middle = (begin + end) // 2
        if indices[np.uint64(middle)] < item:
            begin = middle + 1
        else:
            end = middle
    return begin


@inlined
def _strike_out(i, first_item, last_item, cursor, end, indices, tile):
    """Overwrite row ``i``'s excluded items of the tile; return the first one behind the tile."""
    while cursor < end and indices[np.uint64(cursor)] < last_item:
        tile[i, np.uint64(indices[np.uint64(cursor)] - first_item)] = _NOTHING
        cursor += 1
    return cursor


@inlined
def _any_above(tile, i, begin, threshold):
    """Return whether one of ``BLOCK`` neighbouring scores exceeds the threshold; NaN does not."""
    found = False
    for j in range(begin, begin + np.uint64(BLOCK)):
        found |= tile[i, j] > threshold
    return found


@inlined
def _keep_best(i, r, first_item, n_scores, tile, scores, items):
    """Take over from row ``i`` of the tile what belongs to the best of query ``r``."""
    # Items come in rising order, so of equal scores the one that is already kept has to stay.
    threshold = scores[r, 0]
    for begin in range(np.uint64(0), np.uint64(n_scores), np.uint64(BLOCK)):
        if _any_above(tile, i, begin, threshold):
            for j in range(begin, begin + np.uint64(BLOCK)):
                if tile[i, j] > threshold:
                    item = np.int32(first_item + np.int64(j))
                    _sink(r, items.shape[1], tile[i, j], item, scores, items)
                    threshold = scores[r, 0]


@inlined
def _sort(r, scores, items):
    """Turn the heap of row ``r`` into a list that falls from the best item on."""
    for last in range(items.shape[1] - 1, 0, -1):
        # The worst goes behind all others, which are a heap again.
        score = scores[r, 0]
        item = items[r, 0]
        _sink(r, last, scores[r, last], items[r, last], scores, items)
        scores[r, last] = score
        items[r, last] = item


@inlined
def _score_for_one(query, rows, n_unit, out):
    """Write the scores of rows for a single query, whose cost is that of reading them."""
    others = np.uint64(n_unit), np.uint64(rows.shape[1])
    for j in range(rows.shape[0]):
        product = ZERO
        squares = ZERO
        for f in range(n_unit):
            product += query[f] * rows[j, f]
            squares += rows[j, f] * rows[j, f]
        if squares > ZERO:
            product /= np.float32(math.sqrt(squares))
        for f in range(others[0], others[1]):
            product += query[f] * rows[j, f]
        out[j] = product


@inlined
def _to_unit(rows, n_unit, out):
    """Write rows whose first ``n_unit`` numbers are brought to unit length; zeros stay zeros."""
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
    """Write the scores of a tile of queries and rows."""
    if n_unit > 0:
        _to_unit(rows, n_unit, unit)
        product_with_transposed(queries, unit[: rows.shape[0]], tile)
    else:
        product_with_transposed(queries, rows, tile)


@kernel
def rank_items(
    rank,
    size,
    barrier,
    queries,
    table,
    n_unit,
    indptr,
    indices,
    banned,
    n_rows,
    n_ranges,
    tiles,
    units,
    cursors,
    items,
    scores,
):
    """Write the ``k`` best items of every query, best first, by the product <query, item>.

    Threads take pairs of ``n_rows`` queries and one of ``n_ranges`` ranges of items in turn. How
    queries and items are cut into tiles, and hence every bit of the scores, depends neither on the
    number of threads nor on that of ranges.

    Arrays
    ------
    queries (n, d), table (m, d) : float32. The first ``n_unit`` numbers of each row of the table
        are taken at unit length.
    indptr (n + 1,), indices : the items excluded for every query, rising within a query; all of
        them must lie in [0, m).
    banned : int32, the items excluded for all queries, rising, in [0, m).
    tiles (size, n_rows, TILE_ITEMS + BLOCK), units (size, TILE_ITEMS, d), cursors (size, n_rows or
        more) : float32 and int64, scratch of each thread. Without ``n_unit``, or for one query,
        ``units`` is not used.
    items (n_ranges * n, k) int32, scores (n_ranges * n, k) float32 : the results of the first
        range of items, of the second, and so on. Equal scores stand in the order of their items;
        missing places hold item -1 and the score -inf. An item whose score is NaN or -inf is never
        chosen.
    """
    n_queries = queries.shape[0]
    n_items = table.shape[0]
    n_tiles = -(-n_items // TILE_ITEMS)
    tile = tiles[rank]
    unit = units[rank]
    cursors_ = cursors[rank]
    for job in range(rank, -(-n_queries // n_rows) * n_ranges, size):
        first = job // n_ranges * n_rows
        n_here = min(n_rows, n_queries - first)
        part = queries[first : first + n_here]
        begin = job % n_ranges * n_tiles // n_ranges * TILE_ITEMS
        end = min((job % n_ranges + 1) * n_tiles // n_ranges * TILE_ITEMS, n_items)
        out = job % n_ranges * n_queries + first
        for i in range(n_here):
            cursors_[i] = _first_from(indices, indptr[first + i], indptr[first + i + 1], begin)
            for place in range(items.shape[1]):
                scores[out + i, place] = _NOTHING
                items[out + i, place] = -1
        next_banned = _first_from(banned, 0, banned.shape[0], begin)
        for first_item in range(begin, end, TILE_ITEMS):
            last_item = min(first_item + TILE_ITEMS, end)
            n_scores = last_item - first_item
            rows = table[first_item:last_item]
            if n_queries == 1:
                _score_for_one(part[0], rows, n_unit, tile[0])
            else:
                _score_tile(part, rows, n_unit, unit, tile)
            banned_here = next_banned
            for i in range(n_here):
                row = np.uint64(i)
                next_banned = _strike_out(
                    row, first_item, last_item, banned_here, banned.shape[0], banned, tile
                )
                cursors_[row] = _strike_out(
                    row, first_item, last_item, cursors_[row], indptr[first + i + 1], indices, tile
                )
                # The last block of a tile may reach beyond its scores.
                for j in range(n_scores, -(-n_scores // BLOCK) * BLOCK):
                    tile[row, j] = _NOTHING
                _keep_best(row, np.uint64(out + i), first_item, n_scores, tile, scores, items)
        for i in range(n_here):
            _sort(np.uint64(out + i), scores, items)
