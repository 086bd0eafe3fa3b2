"""The batches of a call and their users' vectors, summed and folded in."""

import math
from typing import NamedTuple

import numpy as np

from freqfm._numba.jit import ZERO, inlined
from freqfm.backends.base import Histories
from freqfm.backends.cuda.groups import KeySort, group_max, group_sum, synchronize_group, worker
from freqfm.backends.cuda.memory import lanes_for
from freqfm.backends.cuda.tables import (
    Dropout,
    Side,
    Step,
    apply_gradients,
    catch_up_rows,
    dot,
    gather_dropped_row,
    through_dropout,
    through_normalisation,
)
from freqfm.formulas.codes import (
    NEGATIVES_DRAWN,
    NEGATIVES_FULL,
    NEGATIVES_IN_BATCH,
    NEGATIVES_SEPARATE,
    NEGATIVES_SHARED,
)
from freqfm.formulas.losses import pair_gradient
from freqfm.formulas.rng import hash64
from freqfm.formulas.selection import first_above
from freqfm.formulas.special import exp_of_minus
from freqfm.formulas.steps import fall_along

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
def gather_user(group, r, args, batch, out):
    """Gather the user of row ``r`` of a batch, with dropout, to row ``r``; keep the length."""
    u, key = args.data.row_users[batch.first_row + r], key_of(args.data, batch, r)
    table, call = args.users.table.weights, args.call
    length = gather_dropped_row(group, table, u, call.cosine, call.dropout, key, out, r)
    if group.lane == 0:
        args.scratch.lengths[r] = length


@inlined
def through_gathering(group, r, args, batch, gradients, units):
    """Backpropagate the gradient by a row of ``units`` through what ``gather_user`` does."""
    if args.call.cosine:
        through_normalisation(group, gradients, units, r, args.scratch.lengths[r])
    through_dropout(group, gradients, args.call.dropout, key_of(args.data, batch, r), r)


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


# Users that are folded in at a time; each takes scratch for all others.
_GROUPS = 4096


class FoldInArgs(NamedTuple):
    """The arguments of folding in; arrays and numbers are float32 unless another type is given."""

    problem: NamedTuple  #: FoldInProblem
    turned: np.ndarray  #: (d, m), the others as columns
    sums: np.ndarray  #: (n_groups, d), scratch: of the user's items by their weights
    histories: Histories
    scores: np.ndarray  #: (n_groups, m)
    pushes: np.ndarray  #: (n_groups, m)
    gradients: np.ndarray  #: (n_groups, d)
    last_users: np.ndarray  #: (n_groups, d), from where the last step was made
    last_gradients: np.ndarray  #: (n_groups, d), and the gradients there
    out: np.ndarray  #: (n, d), the users' vectors


@inlined
def sum_row(group, histories, r, table, out):
    """Write the sum of weights times rows of a table of user ``r``."""
    for f in range(group.lane, table.shape[1], group.n_lanes):
        total = ZERO
        for p in range(histories.starts[r], histories.starts[r + 1]):
            total += histories.weights[p] * table[histories.items[p], f]
        out[f] = total


@inlined
def sum_rows(group, b, args):
    """Write the sums of all users."""
    histories, table, out = args
    for r in range(group.rank, out.shape[0], group.size):
        sum_row(group, histories, r, table, out[r])


@inlined
def _normalise(group, out, r):
    """Scale a vector to unit length; return whether its length was positive."""
    squares = dot(group, out, r, out, r, out.shape[1])
    if squares > ZERO:
        scale = np.float32(1) / np.float32(math.sqrt(squares))
        for f in range(group.lane, out.shape[1], group.n_lanes):
            out[r, f] *= scale
    synchronize_group(group)
    return squares > ZERO


@inlined
def _score_others(group, r, args, scores):
    """Write the scores of the others; return the largest."""
    turned, out, largest = args.turned, args.out, np.float32(-np.inf)
    for j in range(group.lane, turned.shape[1], group.n_lanes):
        total = ZERO
        for f in range(turned.shape[0]):
            total += out[r, f] * turned[f, j]
        scores[j] = args.problem.inverse * total
        largest = max(largest, scores[j])
    return group_max(group, largest)


@inlined
def _pushes_of_softmax(group, largest, scores, pushes, args):
    """Write the multiples of the others that a user is pushed away from, by a softmax."""
    problem, total = args.problem, ZERO
    for j in range(group.lane, scores.shape[0], group.n_lanes):
        pushes[j] = exp_of_minus(max(largest - scores[j], ZERO))
        total += pushes[j]
    scale = problem.constant * problem.inverse / group_sum(group, total)
    for j in range(group.lane, scores.shape[0], group.n_lanes):
        pushes[j] *= scale


@inlined
def _pairs(group, r, weight, scores, pushes, args):
    """Add the pulls of a user's items to the gradient, and write the pushes, by pairs."""
    histories, problem, gradient = args.histories, args.problem, args.gradients[group.rank]
    n, width = scores.shape[0], args.out.shape[1]
    for j in range(group.lane, n, group.n_lanes):
        pushes[j] = ZERO
    for p in range(histories.starts[r], histories.starts[r + 1]):
        k = histories.items[p]
        score = problem.inverse * dot(group, args.out, r, problem.items, k, width)
        share = histories.weights[p] / (weight * np.float32(n))
        pull = ZERO
        for j in range(group.lane, n, group.n_lanes):
            by_positive, by_negative = pair_gradient(share, score, scores[j])
            pushes[j] += problem.inverse * by_negative
            pull -= by_positive
        pull = problem.inverse * group_sum(group, pull)
        for f in range(group.lane, width, group.n_lanes):
            gradient[f] += pull * problem.items[k, f]


@inlined
def _keep_or_go_back(group, r, first, args):
    """Undo the last step if the loss has risen; return whether it has.

    The change of the loss is estimated by the mean of the gradients before and after the step.
    """
    user, gradient = args.out[r], args.gradients[group.rank]
    last_user, last_gradient = args.last_users[group.rank], args.last_gradients[group.rank]
    fall = ZERO
    if not first:
        for f in range(group.lane, user.shape[0], group.n_lanes):
            fall += fall_along(user[f], gradient[f], last_user[f], last_gradient[f])
    rises = group_sum(group, fall) < -args.problem.largest_rise
    for f in range(group.lane, user.shape[0], group.n_lanes):
        if rises:
            user[f], gradient[f] = last_user[f], last_gradient[f]
        else:
            last_user[f], last_gradient[f] = user[f], gradient[f]
    return rises


@inlined
def _write_gradient(group, r, weight, args):
    """Write the negative gradient of a user's loss; a lane writes the columns that it reads."""
    problem, out, sums = args.problem, args.out, args.sums[group.rank]
    scores, pushes = args.scores[group.rank], args.pushes[group.rank]
    gradient = args.gradients[group.rank]
    largest = _score_others(group, r, args, scores)
    for f in range(group.lane, out.shape[1], group.n_lanes):
        gradient[f] = ZERO if problem.pairwise else problem.positive / weight * sums[f]
    synchronize_group(group)
    if problem.pairwise:
        _pairs(group, r, weight, scores, pushes, args)
    else:
        _pushes_of_softmax(group, largest, scores, pushes, args)
    synchronize_group(group)
    for f in range(group.lane, out.shape[1], group.n_lanes):
        total = gradient[f]
        for j in range(pushes.shape[0]):
            total -= pushes[j] * problem.others[j, f]
        gradient[f] = total


@inlined
def _step(group, r, inertia, args):
    """Move a user along its gradient; return whether its vector has a length."""
    out, gradient = args.out, args.gradients[group.rank]
    for f in range(group.lane, out.shape[1], group.n_lanes):
        out[r, f] = gradient[f] + inertia * out[r, f]
    synchronize_group(group)
    return _normalise(group, out, r)


@inlined
def fold_in_rows(group, b, args):
    """Write unit vectors of users; a row without items gets zeros."""
    histories, out = args.histories, args.out
    n_groups = min(group.size, args.scores.shape[0])
    for r in range(group.rank, out.shape[0] if group.rank < n_groups else 0, n_groups):
        weight = ZERO
        for p in range(histories.starts[r] + group.lane, histories.starts[r + 1], group.n_lanes):
            weight += histories.weights[p]
        weight = group_sum(group, weight)
        sum_row(group, histories, r, args.problem.items, out[r])
        for f in range(group.lane, out.shape[1], group.n_lanes):
            args.sums[group.rank, f] = out[r, f]
        synchronize_group(group)
        moves = _normalise(group, out, r)
        inertia = args.problem.inertia
        # Once more, to check the last step.
        for n in range(args.problem.n_steps + 1):
            if moves:
                _write_gradient(group, r, weight, args)
                if _keep_or_go_back(group, r, n == 0, args):
                    inertia += inertia
                if n < args.problem.n_steps:
                    moves = _step(group, r, inertia, args)


SUM = (sum_rows,)
FOLD_IN = (fold_in_rows,)


def on_device(device, starts, items, weights):
    """Return Histories in a GPU's memory."""
    return Histories(
        device.to_device(np.asarray(starts, dtype=np.int64)),
        device.to_device(np.asarray(items, dtype=np.int32)),
        device.to_device(np.asarray(weights, dtype=np.float32)),
    )


def sum_histories(device, histories, table):
    """Return the sums of weights times rows of a table, see ``Backend``."""
    sums = np.empty((len(histories.starts) - 1, table.shape[1]), dtype=np.float32)
    out = device.empty(sums.shape, np.float32)
    args = on_device(device, *histories), device.to_device(table), out
    device.run(SUM, args, lanes_for(table.shape[1]), len(sums))
    return device.to_host(out, sums)


def fold_in(device, problem, histories, formulas):
    """Return unit vectors of users by their histories, see ``Backend``."""
    n, (n_others, width) = len(histories[0]) - 1, problem.others.shape
    n_groups = min(n, _GROUPS)
    vectors = np.empty((n, width), dtype=np.float32)
    args = FoldInArgs(
        problem=problem.in_float32()._replace(
            items=device.to_device(problem.items),
            others=device.to_device(problem.others),
            pairwise=bool(problem.pairwise),
            n_steps=int(problem.n_steps),
        ),
        turned=device.to_device(np.ascontiguousarray(problem.others.T)),
        histories=on_device(device, *histories),
        sums=device.empty((n_groups, width), np.float32),
        scores=device.empty((n_groups, n_others), np.float32),
        pushes=device.empty((n_groups, n_others), np.float32),
        gradients=device.empty((n_groups, width), np.float32),
        last_users=device.empty((n_groups, width), np.float32),
        last_gradients=device.empty((n_groups, width), np.float32),
        out=device.empty((n, width), np.float32),
    )
    device.run(FOLD_IN, args, 32, n_groups, formulas=formulas)
    return device.to_host(args.out, vectors)
