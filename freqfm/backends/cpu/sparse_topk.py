"""Sparse vectors of items: the best items of every query, and their Gram matrices."""

from typing import NamedTuple

import numpy as np

from freqfm._numba.jit import ZERO, inlined, kernel
from freqfm.backends.cpu.team import Team
from freqfm.backends.cpu.topk import Best
from freqfm.formulas.selection import buffer_size, clear, number_of, offer, worst_of, write_best

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
