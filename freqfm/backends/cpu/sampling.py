"""Draws of items, and alias tables, which draw from any distribution in constant time."""

import numpy as np

from freqfm._numba.jit import ONE, kernel
from freqfm.backends.cpu.team import Member, Team, part
from freqfm.formulas.rng import hash64, key_in_python
from freqfm.formulas.sampling_laws import (
    draw_negatives,
    draws_from,
    formulas_of,
    prepare_query,
)

# Below this many items, starting threads takes longer than drawing.
_WORTH_SEVERAL_THREADS = 50_000


@kernel
def _draw(rank, size, barrier, draws, queries, key, ids, log_q):
    """Draw the rows of ``ids`` and ``log_q``, (n_queries, n), for the rows of ``queries``."""
    proposal, numbers, sums = draws.proposal, draws.numbers[rank], draws.sums[rank]
    begin, end = part(Member(rank, size, barrier), queries.shape[0])
    for r in range(begin, end):
        query_key = hash64(key + np.uint64(r))
        prepare_query(proposal, queries[r], numbers, sums)
        draw_negatives(proposal, queries[r], query_key, ids[r], log_q[r], numbers, sums)


def _run(proposal, queries, key, ids, log_q, n_threads):
    n_threads = n_threads if ids.size >= _WORTH_SEVERAL_THREADS else 1
    with Team(n_threads, formulas_of(proposal)) as team:
        team.run(_draw, draws_from(proposal, n_threads), queries, key, ids, log_q)


def draw(proposal, queries, key, n):
    """Return items for each query and their log-probabilities, see ``Backend.draw``."""
    ids = np.zeros((len(queries), n), dtype=np.int32)
    log_q = np.zeros(ids.shape, dtype=np.float32)
    _run(proposal, queries, key, ids, log_q, 1)
    return ids, log_q


def draw_lists(proposal, stream, first, shape, n_threads=1):
    """Return lists of items drawn without a query, see ``Backend.draw_lists``."""
    ids = np.empty(shape, dtype=np.int32)
    nothing = np.empty((shape[0], 0), dtype=np.float32)
    with np.errstate(over="ignore"):
        key = key_in_python(*stream) + np.uint64(first)
    _run(proposal, nothing, key, ids, nothing, n_threads)
    return ids


@kernel
def _build_alias_tables(starts, weights, thresholds, aliases, stack):
    """Fill the alias tables of cells whose items stand between ``starts``.

    In: ``weights`` (n,), float64, changed. Out: ``thresholds`` (n,), float32, and ``aliases`` (n,),
    int32, which are positions. ``stack`` (n,), int32, is scratch.
    """
    for cell in range(starts.shape[0] - 1):
        begin = starts[cell]
        end = starts[cell + 1]
        total = 0.0
        for j in range(begin, end):
            total += weights[j]
        n_small = 0  # from the front of the stack
        n_large = 0  # from its end
        for j in range(begin, end):
            weights[j] *= (end - begin) / total
            thresholds[j] = ONE
            aliases[j] = j
            if weights[j] < 1.0:
                stack[begin + n_small] = j
                n_small += 1
            else:
                n_large += 1
                stack[end - n_large] = j
        while n_small > 0 and n_large > 0:
            n_small -= 1
            small = stack[begin + n_small]
            large = stack[end - n_large]
            thresholds[small] = weights[small]
            aliases[small] = large
            weights[large] -= 1.0 - weights[small]
            if weights[large] < 1.0:
                n_large -= 1
                stack[begin + n_small] = large
                n_small += 1


def alias_tables(starts, weights):
    """Return thresholds and aliases of cells of items, see ``Backend.alias_tables``."""
    thresholds = np.zeros(len(weights), dtype=np.float32)
    aliases, stack = (np.zeros(len(weights), dtype=np.int32) for _ in range(2))
    _build_alias_tables(starts, weights.copy(), thresholds, aliases, stack)
    return thresholds, aliases
