"""Random numbers by their indices, draws of items, and alias tables."""

import numpy as np

from freqfm._numba.jit import ONE, kernel
from freqfm.backends.cpu.team import Member, Team, part
from freqfm.formulas.proposals import (
    draw_negatives,
    draws_from,
    formulas_of,
    prepare_query,
)
from freqfm.formulas.rng import hash64, key_in_python, key_of, random_bits
from freqfm.formulas.rng import standard_normal as _normal_of
from freqfm.formulas.rng import uniform as _uniform_of


@kernel
def _sort_by_bits(stream, shift, ends, order):
    """Write the integers from 0 on to ``order``, sorted by their random bits, which are distinct.

    The bits above the lowest ``shift`` are the number of a bucket. ``ends`` is scratch: a zero for
    each bucket, and one more.
    """
    key = key_of(stream)
    n = order.shape[0]
    for i in range(n):
        ends[np.int64(random_bits(key, i) >> shift) + 1] += 1
    for bucket in range(1, ends.shape[0]):
        ends[bucket] += ends[bucket - 1]
    for i in range(n):
        bucket = np.int64(random_bits(key, i) >> shift)
        order[ends[bucket]] = i
        ends[bucket] += 1
    # Insertion sort, which moves little: a bucket holds one or two numbers.
    for place in range(1, n):
        i = order[place]
        bits = random_bits(key, i)
        while place > 0 and random_bits(key, order[place - 1]) > bits:
            order[place] = order[place - 1]
            place -= 1
        order[place] = i


@kernel
def _draw_uniform(stream, indices, out):
    key = key_of(stream)
    for i in range(out.shape[0]):
        out[i] = _uniform_of(random_bits(key, indices[i]))


@kernel
def _draw_normal(stream, indices, out):
    key = key_of(stream)
    for i in range(out.shape[0]):
        out[i] = _normal_of(random_bits(key, indices[i]))


def _drawn(kernel, stream, indices):
    out = np.empty(indices.size, dtype=np.float32)
    kernel(stream, np.ascontiguousarray(indices, dtype=np.int64).reshape(-1), out)
    return out.reshape(indices.shape)


def permutation(stream, n):
    """Return the integers below ``n`` in random order, see ``Backend.permutation``."""
    n_bits = max(int(n).bit_length() - 1, 1)
    order = np.empty(n, dtype=np.int64)
    ends = np.zeros((1 << n_bits) + 1, dtype=np.int64)
    _sort_by_bits(stream, np.uint64(64 - n_bits), ends, order)
    return order


def uniform(stream, indices):
    """Return numbers between 0 and 1, see ``Backend.uniform``."""
    return _drawn(_draw_uniform, stream, indices)


def standard_normal(stream, indices):
    """Return normal numbers, see ``Backend.standard_normal``."""
    return _drawn(_draw_normal, stream, indices)


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
