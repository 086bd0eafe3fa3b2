"""Maximal marginal relevance: choosing items that are relevant and unlike those chosen before.

The largest cosine of an item with those chosen only grows, so its worth only falls. An item is
compared with the items chosen since it was last looked at only if its worth at that time exceeds
the best of this place so far; the others cannot be the best. Few cosines are computed.
"""

from typing import NamedTuple

import numpy as np

from freqfm._numba.jit import ONE, ZERO, inlined, kernel
from freqfm.backends.cpu.team import Team

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
