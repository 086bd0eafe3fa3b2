"""Distributions of negatives: their formulas, and the distribution that needs no query.

A proposal is a named tuple of the arrays that describe a distribution over items. Its class gives
formulas, static methods that are compiled into the kernels that draw::

    prepare(proposal, query, numbers, sums)
    draw(proposal, query, key, ids, log_q, numbers, sums)
    log_q_of(proposal, query, item, numbers, sums)

with the arguments

- ``query`` (d,), float32: the vector whose dot product with an item's is the item's logit;
- ``key``, uint64: the random stream of the query, from (seed, epoch, row);
- ``ids`` (n,), int32: receives n items, drawn with replacement;
- ``log_q`` (n,), float32: receives log(n_items Q(item | query)) of each of them, the log of its
  probability relative to uniform sampling, which a softmax subtracts from the logit;
- ``numbers`` float32 and ``sums`` float64: scratch of the thread, of the lengths that the method
  ``scratch`` of the proposal returns; ``prepare`` stores there the values that the other functions
  need for the query.

``log_q_of`` returns the same as ``log_q`` for any other item, such as a positive. A draw depends
only on the proposal, the query and the key, not on other rows or on threads.

The functions ``prepare_query``, ``draw_negatives`` and ``log_q_of`` below are those of a
:class:`Proposal`; ``formulas_of`` returns what replaces them for other classes.
"""

import math
from typing import NamedTuple

import numpy as np

from freqfm._numba.jit import ZERO, inlined, python_function
from freqfm.formulas.rng import random_bits, slot_and_position, unit_interval
from freqfm.formulas.special import exp_of_minus

# Up to this number, all sums are compared: a few instructions without a branch.
_COMPARED = 64

#: Tells the random numbers for negatives from the others of a row.
DRAWS = np.uint64(0x5DEECE66D)

# Padding between the scratch of two threads, in floats, so that they share no cache line.
_PADDING = 16


class Proposal(NamedTuple):
    """A distribution that does not depend on the query; what negatives are drawn from.

    Without ``aliases`` all items are equally likely; :func:`freqfm.samplers.proposal_of` makes one
    of given probabilities. Arrays do not change: for other draws a sampler returns another
    proposal. A backend keeps what it has prepared for one.
    """

    #: (n_items,), float32: log(n_items Q(item)); empty for zeros.
    log_q: np.ndarray = np.zeros(0, dtype=np.float32)
    n_items: int = 0
    #: (n_items, 5), int32: an alias table of the items, or empty. Columns are the item, its alias
    #: and, as the bits of float32, the threshold below which the item itself is drawn, and log_q
    #: of both.
    aliases: np.ndarray = np.zeros((0, 1), dtype=np.int32)

    def arrays(self, width):
        """Return the type and the shape of each array, for item vectors of a given width."""
        return {
            "log_q": (np.float32, (self.n_items if len(self.log_q) else 0,)),
            "aliases": (np.int32, (self.n_items, 5) if len(self.aliases) else (0, None)),
        }

    def check(self, learned, name):
        """Raise unless the indices in the arrays can be followed, see ``check_proposal``."""
        learned.indices(f"{name}.aliases", self.aliases[:, :2].ravel(), self.n_items)


class AlreadyDrawn(NamedTuple):
    """Items that ``ids`` hold already, with their ``log_q``."""

    log_q: np.ndarray  #: of all items; or empty for zeros
    n_items: int

    @staticmethod
    def draw(proposal, query, key, ids, log_q, numbers, sums):
        """Leave the items as they are."""

    @staticmethod
    def log_q_of(proposal, query, item, numbers, sums):
        """Return log(n_items Q(item))."""
        return proposal.log_q[np.uint64(item)] if proposal.log_q.shape[0] > 0 else ZERO


# Functions for the formulas of distributions.


@inlined
def dot_with_row(query, vectors, k):
    """Return the dot product of a query and row ``k``."""
    total = ZERO
    for f in range(query.shape[0]):
        total += query[f] * vectors[k, f]
    return total


@inlined
def find_in_sums(sums, first, n, at):
    """Return the first j below n with ``at < sums[first + j]``, or n - 1."""
    base = first
    length = n
    while length > _COMPARED:
        half = length >> 1
        base += half if sums[np.uint64(base + half - 1)] <= at else 0
        length -= half
    n_below = base - first
    for j in range(length - 1):
        n_below += sums[np.uint64(base + j)] <= at
    return n_below


@inlined
def random_number(key, index):
    """Return random number ``index`` of a stream, between 0 and 1."""
    return unit_interval(random_bits(key, index))


@inlined
def random_below(key, index, n):
    """Return a random integer below n."""
    return min(np.int64(random_number(key, index) * n), n - 1)


@inlined
def is_alias(aliases, slot, at):
    """Return whether the alias of a slot is drawn: 1, or 0 for its item."""
    return 1 if at >= np.int32(aliases[slot, 2]).view(np.float32) else 0


@inlined
def turn_into_weights(logits):
    """Replace logits by minus the logs of their softmax's weights, relative to the mean weight."""
    n = logits.shape[0]
    largest = -np.float32(np.inf)
    for j in range(n):
        largest = max(largest, logits[j])
    total = 0.0
    for j in range(n):
        total += exp_of_minus(max(largest - logits[j], ZERO))
    log_mean = np.float32(largest + math.log(total / n))
    for j in range(n):
        logits[j] = log_mean - logits[j]


# The functions that kernels call, for a query first ``prepare_query``.


@inlined
def prepare_query(proposal, query, numbers, sums):
    """Write to the scratch what the functions below need for a query."""


@inlined
def draw_negatives(proposal, query, key, ids, log_q, numbers, sums):
    """Draw items for a query into ``ids``, and write their ``log_q``; lists of length 0 have none.

    Arguments are those of formulas, see the module docstring.
    """
    aliases = proposal.aliases
    if aliases.shape[0] == 0:
        for j in range(ids.shape[0]):
            ids[j] = random_below(key, j, proposal.n_items)
        for j in range(log_q.shape[0]):
            log_q[j] = ZERO
        return
    for j in range(ids.shape[0]):
        slot, position = slot_and_position(random_bits(key, j), aliases.shape[0])
        other = is_alias(aliases, slot, position)
        ids[j] = aliases[slot, other]
        if log_q.shape[0] > 0:
            log_q[j] = np.int32(aliases[slot, 3 + other]).view(np.float32)


@inlined
def log_q_of(proposal, query, item, numbers, sums):
    """Return log(n_items Q(item | query)) for the query that was prepared last."""
    return proposal.log_q[np.uint64(item)] if proposal.log_q.shape[0] > 0 else ZERO


def _no_correction(proposal, query, item, numbers, sums):
    return ZERO


def formulas_of(proposal):
    """Return replacements of functions of this file in kernels, see ``jit.specialised``."""
    kind = type(proposal)
    if kind is Proposal:
        return {}
    return {
        prepare_query: getattr(kind, "prepare", python_function(prepare_query)),
        draw_negatives: kind.draw,
        log_q_of: getattr(kind, "log_q_of", _no_correction),
    }


class Draws(NamedTuple):
    """A proposal, and working memory to draw from it: a row for each of ``size`` threads."""

    proposal: tuple
    numbers: np.ndarray  #: (size, ...), float32
    sums: np.ndarray  #: (size, ...), float64
    log_q: np.ndarray  #: (size, n), float32, of n draws whose log_q is not used


def draws_from(proposal, size, n=0):
    """Return Draws for ``size`` threads."""
    lengths = proposal.scratch() if hasattr(proposal, "scratch") else (0, 0)
    n_numbers, n_sums, n = (length + _PADDING for length in (*lengths, n))
    return Draws(
        proposal,
        np.zeros((size, n_numbers), dtype=np.float32),
        np.zeros((size, n_sums)),
        np.zeros((size, n), dtype=np.float32),
    )
