"""The batches of a call: their positives, rows and items, and steps shared by all losses."""

from typing import NamedTuple

import numpy as np

from freqfm._numba.jit import inlined
from freqfm.backends.cuda.groups import worker
from freqfm.backends.cuda.sorting import KeySort
from freqfm.backends.cuda.tables import Dropout, Side, Step, apply_gradients, catch_up_rows
from freqfm.formulas.codes import (
    NEGATIVES_DRAWN,
    NEGATIVES_FULL,
    NEGATIVES_IN_BATCH,
    NEGATIVES_SEPARATE,
    NEGATIVES_SHARED,
)
from freqfm.formulas.rng import hash64
from freqfm.formulas.search import first_above

# The results of each row of a call.
LOSS, WEIGHT, PLAIN_LOSS, DERIVATIVE = range(4)

#: Up to this many scores (512 MB) a batch is scored at once, else in panels of rows.
MOST_SCORES = 1 << 27


class EpochData(NamedTuple):
    """The batches of an epoch, see ``backends.base.Batches``; integers are int32."""

    items: np.ndarray
    weights: np.ndarray
    row_starts: np.ndarray
    row_users: np.ndarray
    batches: np.ndarray  #: (n_batches, 4), first row, number of rows, first pair, number of pairs
    means: np.ndarray  #: (n_batches,), factor of the penalty for each occurrence of a row, float32
    scales: np.ndarray  #: (n_batches,), factor of the gradients of a batch, float32
    key: int  #: random stream of the epoch's rows, uint64


class RankingCall(NamedTuple):
    """The place of a call in the epoch, and its arguments."""

    first_batch: int
    first_row: int
    first_pair: int
    steps_before: int  #: steps of the epoch before batch 0
    n_panels: int  #: how often the phases run for a batch
    cosine: bool  #: whether users' vectors get unit length
    n_unit: int  #: so many of the first numbers of an item's vector get unit length
    queries_given: bool  #: whether users are queries, which are not moved
    dropout: Dropout
    inverse_temperatures: np.ndarray  #: (n_users, 2)
    results: np.ndarray  #: (4, n_rows), of the rows of the call


class BatchPanel(NamedTuple):
    """One batch, or a panel of it."""

    number: int  #: in the call
    step: int  #: in the epoch, from 1 on
    first_row: int
    n_rows: int
    first_pair: int
    n_pairs: int
    mean: float
    scale: float
    panel: int


class RankingArgs(NamedTuple):
    """All that a launch is given."""

    data: EpochData
    call: RankingCall
    loss: NamedTuple  #: of the kind of loss, as is the scratch
    users: Side
    items: Side
    step: Step
    scratch: NamedTuple


class ItemKeys(NamedTuple):
    """The items of the batches of a call: positives, and then negatives."""

    data: EpochData
    first_batch: int
    n_items: int
    code: int  #: of the negatives, or -1 for none
    negatives: np.ndarray
    keys: np.ndarray
    starts: np.ndarray


@inlined
def batch_of(data, call, s):
    """Return the BatchPanel of step ``s`` of a launch."""
    b = s // call.n_panels
    return BatchPanel(
        b - call.first_batch,
        call.steps_before + b + 1,
        data.batches[b, 0],
        data.batches[b, 1],
        data.batches[b, 2],
        data.batches[b, 3],
        data.means[b],
        data.scales[b],
        s % call.n_panels,
    )


@inlined
def panel_of(batch, height):
    """Return the rows of a panel: the first, and the one after the last."""
    return min(batch.panel * height, batch.n_rows), min((batch.panel + 1) * height, batch.n_rows)


@inlined
def is_last(call, batch):
    """Return whether this is the last panel of the batch."""
    return batch.panel + 1 == call.n_panels


@inlined
def key_of(data, batch, r):
    """Return the random stream of row ``r`` of a batch."""
    return hash64(data.key + np.uint64(batch.first_row + r))


@inlined
def note_row(group, r, data, batch, pair_rows):
    """Note for each positive of row ``r`` that it is one of that row."""
    row = batch.first_row + r
    for p in range(data.row_starts[row] + group.lane, data.row_starts[row + 1], group.n_lanes):
        pair_rows[p - batch.first_pair] = r


@inlined
def _batch_of_occurrence(starts, e):
    """Return the batch of occurrence ``e``; some batches may be empty."""
    return np.int64(first_above(starts, 0, starts.shape[0], e) - 1)


@inlined
def _list_users(group, b, args):
    """Write the keys of the users of a call."""
    thread, n_threads = worker(group)
    row_users, first, n_users, keys, starts = args
    for e in range(thread, keys.shape[0], n_threads):
        keys[e] = _batch_of_occurrence(starts, e) * n_users + row_users[first + e]


@inlined
def _list_items(group, b, args):
    """Write the keys of the items of a call."""
    thread, n_threads = worker(group)
    data, code = args.data, args.code
    call_pair = data.batches[args.first_batch, 2]
    for e in range(thread, args.keys.shape[0], n_threads):
        number = _batch_of_occurrence(args.starts, e)
        o = e - args.starts[number]
        b = args.first_batch + number
        first_pair, n_pairs = data.batches[b, 2], data.batches[b, 3]
        if o < n_pairs:
            item = data.items[first_pair + o]
        elif code == NEGATIVES_SHARED:
            item = args.negatives[number, o - n_pairs]
        elif code == NEGATIVES_IN_BATCH:
            item = data.items[first_pair + o - n_pairs]
        elif code == NEGATIVES_FULL:
            item = np.int32(o - n_pairs)
        else:
            # A list for each positive of the call or, if they are drawn, for each row of a batch.
            of_list = args.negatives.shape[1]
            before = (first_pair - call_pair) * of_list
            at = before + o - n_pairs
            item = args.negatives[at // of_list, at % of_list]
        args.keys[e] = number * args.n_items + item


@inlined
def catch_up_users(group, s, args):
    """Let the users of a batch catch up on the steps that they have missed."""
    batch = batch_of(args.data, args.call, s)
    if batch.panel == 0 and not args.call.queries_given:
        catch_up_rows(group, batch.number, batch.step, args.users, args.step)


@inlined
def catch_up_batch(group, s, args):
    """Let the rows of a batch catch up on the steps that they have missed."""
    batch = batch_of(args.data, args.call, s)
    catch_up_users(group, s, args)
    if batch.panel == 0:
        catch_up_rows(group, batch.number, batch.step, args.items, args.step)


@inlined
def move_rows(group, s, args):
    """Move the users and the items of a batch, after its last panel."""
    batch, scratch, call = batch_of(args.data, args.call, s), args.scratch, args.call
    if not is_last(call, batch):
        return
    number, step, mean = batch.number, batch.step, batch.mean
    if not call.queries_given:
        apply_gradients(
            group, number, step, args.users, scratch.user_gradients, 0, mean, args.step
        )  # fmt: skip
    apply_gradients(group, number, step, args.items, scratch.sources, call.n_unit, mean, args.step)


_LIST_USERS = (_list_users,)
_LIST_ITEMS = (_list_items,)
CATCH_UP = (catch_up_batch,)


class UserLists:
    """The Sides of the users of batches.

    Parameters
    ----------
    device : Device
    n_users, width : int
    n_rows : int
        The most of a batch.
    """

    def __init__(self, device, n_users, width, n_rows):
        self._device, self._n_users = device, n_users
        self._sort = KeySort(device, n_users)
        self._parts = (
            device.to_device(np.arange(n_rows, dtype=np.int32)),
            device.to_device(np.ones(n_rows, dtype=np.float32)),
            device.empty((n_rows, width), np.float32),
        )

    def side(self, table, data, batch_starts):
        """Return the Side of the users of batches, which begin at these rows."""

        def write_keys(keys, starts):
            args = data.row_users, int(batch_starts[0]), self._n_users, keys, starts
            self._device.run(_LIST_USERS, args, 1, len(keys))

        touched = self._sort.run(batch_starts - batch_starts[0], write_keys)
        return Side(table, touched, *self._parts, n_seen=0)


class ItemLists:
    """The Sides of the items of batches: positives, and then negatives.

    Parameters
    ----------
    device : Device
    n_items, width : int
    n_occurrences : int
        The most of a batch.
    code : int
        How the negatives of a batch are listed, see ``formulas.codes``; -1 for none.
    """

    def __init__(self, device, n_items, width, n_occurrences, code):
        self._device, self._n_items, self._code = device, n_items, code
        self._sort = KeySort(device, n_items)
        self._parts = (
            device.empty(n_occurrences, np.int32),
            device.empty(n_occurrences, np.float32),
            device.empty((n_occurrences, width), np.float32),
        )

    def side(self, table, data, first_batch, sizes, negatives, n_seen=0):
        """Return the Side of the items of batches with so many occurrences."""

        def write_keys(keys, starts):
            args = ItemKeys(data, first_batch, self._n_items, self._code, negatives, keys, starts)
            self._device.run(_LIST_ITEMS, args, 1, len(keys))

        touched = self._sort.run(np.append(0, np.cumsum(sizes)), write_keys)
        return Side(table, touched, *self._parts, n_seen=n_seen)


class Launch(NamedTuple):
    """The batches of a call: the arguments of a Family, and the function that runs its phases."""

    data: EpochData
    call: RankingCall
    tables: object  #: DeviceTables
    users: Side
    list_items: object  #: returns the Side of the items, given lists of negatives
    #: Runs phases, given their arguments and further formulas, for each panel of each batch.
    run: object
    proposal: object  #: the proposal that negatives are drawn from, or None
    negatives: np.ndarray  #: lists of negatives, if they are drawn before

    def args(self, loss, items, scratch):
        """Return the RankingArgs of a kind of loss."""
        return RankingArgs(self.data, self.call, loss, self.users, items, self.tables.step, scratch)

    def train(self, phases, args, catch_up=CATCH_UP, formulas=None):
        """Run phases, after rows have caught up on what they have missed."""
        self.run(phases if self.tables.idle else catch_up + phases, args, formulas)


class Family:
    """A kind of loss: its memory, and its phases.

    Parameters
    ----------
    device : Device
    problem : RankingProblem
    n_rows, n_pairs : int
        The most of a batch.

    Attributes
    ----------
    n_listed : int
        The most negatives of a batch.
    n_panels : int
        How often the phases run for a batch.
    lists_code : int
        How the negatives of a batch are listed, see ``formulas.codes``; -1 for none.
    """

    n_listed, n_panels, lists_code = 0, 1, -1

    def __init__(self, device, problem, n_rows, n_pairs):
        self._device, self._problem = device, problem

    def _floats(self, *shape):
        return self._device.empty(shape, np.float32)

    @staticmethod
    def block_of(problem):
        """Return how many positives of a user may stand in one row; None for all."""
        return problem.block

    def lists_shape(self, n_batches, n_pairs):
        """Return how many lists of negatives batches need, and the length of a list."""
        separate = self.lists_code == NEGATIVES_SEPARATE
        return n_pairs if separate else n_batches, self._problem.n_negatives

    def n_negatives(self, n_rows, n_pairs):
        """Return how many negatives batches of some size have."""
        m = self._problem.n_negatives
        return {
            NEGATIVES_IN_BATCH: n_pairs,
            NEGATIVES_SEPARATE: n_pairs * m,
            NEGATIVES_DRAWN: n_rows * m,
            NEGATIVES_SHARED: np.full_like(n_rows, m),
            NEGATIVES_FULL: np.full_like(n_rows, self._problem.n_items),
            -1: np.zeros_like(n_rows),
        }[self.lists_code]

    def run(self, launch):
        """Train on the batches of a Launch."""
        raise NotImplementedError
