"""Groups of GPU threads that share the work of a phase, and their common operations.

A phase is a function of ``(group, b, args)`` that a whole grid runs: group ``rank`` of ``size``
takes the work items rank, rank + size, and so on, and lane ``lane`` of ``n_lanes`` takes the
columns or the entries lane, lane + n_lanes, and so on. Between phases all groups wait for each
other.

The functions below are those of groups of a single lane, with which phases run on a CPU. For a GPU
``device`` replaces them by functions of a warp.
"""

from typing import NamedTuple

from freqfm._numba.jit import inlined


class Group(NamedTuple):
    """Where in the grid a thread is."""

    rank: int  #: of the group
    size: int  #: number of groups
    lane: int  #: within the group
    n_lanes: int  #: a power of two, at most 32


@inlined
def worker(group):
    """Return the number of a thread, and the number of threads, for work without groups."""
    return group.rank * group.n_lanes + group.lane, group.size * group.n_lanes


@inlined
def group_sum(group, value):
    """Return the sum over the lanes, to all of them, in an order that is always the same."""
    return value


@inlined
def group_max(group, value):
    """Return the largest value of all lanes, to all of them."""
    return value


@inlined
def prefix_sum(group, value):
    """Return the sum over this lane and those before it."""
    return value


@inlined
def first_of_lanes(group, value):
    """Return the value of the first lane to all lanes."""
    return value


@inlined
def last_of_lanes(group, value):
    """Return the value of the last lane to all lanes."""
    return value


@inlined
def any_of_lanes(group, value):
    """Return to all lanes whether the value of any is true."""
    return value


@inlined
def place_among_equals(group, value):
    """Return how many lanes before this one have the same value, and how many of all have it."""
    return 0, 1


@inlined
def synchronize_group(group):
    """Wait for all lanes, and see the values that they have written."""


@inlined
def add_at(array, index, value):
    """Add to an element that several threads may add to; for integers, whose order is free."""
    array[index] += value
