"""Mini-batches of factorization machines.

Plain and rank-aware machines share the order of an epoch, the rows of a batch, and the steps of
the intercept and the linear weights. How a plain one trains its factors is described in ``fm``.

A batch of a rank-aware machine passes three stages. Its rows are gathered and scored, each thread
taking a part of the rows; the threads wait for each other; then each thread takes the tokens it
owns, sums a token's gradient over the batch in the order of the rows, and updates the token's
weights. No thread writes what another reads, and no sum depends on the number of threads, so the
result does not either.
"""

from typing import NamedTuple

import numpy as np

from freqfm._numba.jit import ONE, ZERO, inlined
from freqfm.backends.base import FMObjective, RankedTraining, UpdateRule
from freqfm.backends.cpu.ownership import owns
from freqfm.formulas.codes import RATE_CONSTANT, RATE_COUNTED, RATE_GIVEN, STEP_ADAM, STEP_CUSTOM
from freqfm.formulas.losses import loss_and_gradient, loss_curvature
from freqfm.formulas.rng import permuted_index, stream_key
from freqfm.formulas.steps import adam_corrections, penalized_curvature, row_rate, step_element

# A row of the batch. ``derivative`` is the weighted derivative of the loss by the score, and
# ``curvature`` the row's part in the curvature of its tokens' weights, see ``fm``.
BATCH_ROW = np.dtype(
    [
        ("begin", np.int64),
        ("end", np.int64),
        ("derivative", np.float64),
        ("loss", np.float64),
        ("curvature", np.float64),
        ("target", np.float32),
        ("weight", np.float32),
        ("score", np.float32),
    ],
    align=True,
)

# One occurrence of a token in the batch, in a list that runs through the batch's rows; ``length``
# counts the occurrences from here on.
LINK = np.dtype(
    [("next", np.int32), ("row", np.int32), ("value", np.float32), ("length", np.int32)]
)

_ONE = np.uint64(1)

# Of the type of tokens, so that nothing compiles once more for the intercept.
_FIRST = np.uint64(0)


class Rows(NamedTuple):
    """The training rows, see ``packing``, and how an epoch visits them.

    The first ``n_blocks`` blocks of 2^block_bits rows come in random order, then the others in
    theirs.
    """

    samples: np.ndarray  #: (n_rows + 1,), SAMPLE
    entries: np.ndarray  #: (n_entries + 1,), ENTRY
    batch_size: int
    n_blocks: int
    block_bits: int
    seed: int


class Problem(NamedTuple):
    """What stays the same for all batches."""

    rows: Rows
    objective: FMObjective
    rule: UpdateRule
    ranked: RankedTraining | None  #: of a rank-aware machine


class BatchRange(NamedTuple):
    """The batches of one call."""

    epoch: int
    first_batch: int
    last_batch: int  #: exclusive
    n_steps: int  #: made before the first batch
    loss: float  #: of the batches that earlier calls have trained, to be added to


class Part(NamedTuple):
    """The batch at hand, and the rows of it that one thread scores."""

    rank: int  #: of the thread
    size: int  #: number of threads
    start: int  #: where in the epoch the batch starts
    n_rows: int  #: of the batch
    begin: int  #: of this thread's rows
    end: int


class StepScale(NamedTuple):
    """What all weights share in the step of a batch."""

    scale: float  #: by what sums over the batch are multiplied
    correction: float  #: what the rate is divided by
    root_correction: float  #: and the root of the second moment, float32


class TokenSums(NamedTuple):
    """Sums over the rows of a batch that hold a token."""

    derivative: float  #: of the loss by the linear weight
    weight: float
    curvature: float


class Order(NamedTuple):
    """The order of one epoch."""

    n_blocks: int
    block_bits: int
    low_bits: int
    high_bits: int
    key: int


class LevelScratch(NamedTuple):
    """What a rank-aware machine needs for each level."""

    #: (m + 1, batch_size), BATCH_ROW; the last one has the derivatives by the linear part, if
    #: dependent vectors follow the loss.
    batches: np.ndarray
    sums: np.ndarray  #: (batch_size * sum of D_p,), float32, sums of x v
    free_sums: np.ndarray  #: the same, of the vectors that are at their token's highest level
    gradients: np.ndarray  #: the same, float64: gradients of dependent vectors, per unit of x


class Scratch(NamedTuple):
    """Working memory of a rank-aware machine.

    ``heads`` to ``gradient`` have a row for each thread; heads start at -1.

    It takes 4 n size + 4 d batch_size + 56 batch_size + 16 m size bytes for n tokens, vectors of
    length d and at most m entries in a batch.
    """

    batch: np.ndarray  #: (batch_size,), BATCH_ROW
    sums: np.ndarray  #: (batch_size, d), float32, sums of x v
    heads: np.ndarray  #: (size, n), int32
    links: np.ndarray  #: (size, m + 1), LINK
    tokens: np.ndarray  #: (size, m + 1), int32
    total: np.ndarray  #: (size, d or more), float64
    gradient: np.ndarray  #: (size, d or more), float32
    levels: LevelScratch


@inlined
def scratch_of_thread(rank, scratch):
    """Return the scratch with ``heads`` to ``gradient`` those of one thread."""
    return Scratch(
        scratch.batch,
        scratch.sums,
        scratch.heads[rank],
        scratch.links[rank],
        scratch.tokens[rank],
        scratch.total[rank],
        scratch.gradient[rank],
        scratch.levels,
    )


@inlined
def part_of_batch(b, rank, size, rows):
    """Return the Part that thread ``rank`` of ``size`` has in batch ``b``."""
    start = b * rows.batch_size
    n_rows = min(rows.batch_size, rows.samples.shape[0] - 1 - start)
    return Part(rank, size, start, n_rows, n_rows * rank // size, n_rows * (rank + 1) // size)


@inlined
def order_of_epoch(rows, epoch):
    """Return the Order in which an epoch visits ``rows``."""
    bits = 2
    while (1 << bits) < rows.n_blocks:
        bits += 1
    return Order(
        np.uint64(rows.n_blocks),
        np.uint64(rows.block_bits),
        np.uint64(bits // 2),
        np.uint64(bits - bits // 2),
        stream_key(rows.seed, epoch),
    )


@inlined
def row_in_order(place, last, moved, order):
    """Return which row an epoch visits at a place, its block, and where that block is moved to.

    ``last`` and ``moved`` are what the place before returned, or ``order.n_blocks`` at the start:
    neighbours are mostly of one block, which is looked up once.
    """
    i = np.uint64(place)
    block = i >> order.block_bits
    if block < order.n_blocks:
        if block != last:
            last = block
            moved = permuted_index(
                block, order.n_blocks, order.low_bits, order.high_bits, order.key
            )
        i = (moved << order.block_bits) | (i & ((_ONE << order.block_bits) - _ONE))
    return i, last, moved


@inlined
def gather_rows(part, rows, order, batch):
    """Look up the rows of a thread's part of the batch."""
    # Three loops of independent loads, so that the processor can have many misses in flight.
    samples = rows.samples
    last = moved = order.n_blocks
    for j in range(part.begin, part.end):
        i, last, moved = row_in_order(part.start + j, last, moved, order)
        batch[j].begin = i
    for j in range(part.begin, part.end):
        i = np.uint64(batch[j].begin)
        batch[j].begin = samples[i].start
        batch[j].end = samples[i + _ONE].start
        batch[j].target = samples[i].target
        batch[j].weight = samples[i].weight
    for j in range(part.begin, part.end):
        batch[j].score = rows.entries[np.uint64(batch[j].begin)].value


@inlined
def add_token(first, k, x, table, total):
    """Add x * v_k to the sum of x v of a row; return the squared norm of what was added."""
    squares = ZERO
    if first:
        for f in range(table.shape[1]):
            term = x * table[k, f]
            total[f] = term
            squares += term * term
    else:
        for f in range(table.shape[1]):
            term = x * table[k, f]
            total[f] += term
            squares += term * term
    return squares


@inlined
def squared_norm(n_tokens, width, total):
    """Return |sum of x v|^2 of a row, to which so many tokens were added."""
    norm = ZERO
    if n_tokens > 0:
        for f in range(width):
            norm += total[f] * total[f]
    return norm


@inlined
def differentiate_losses(part, loss_code, batch):
    """Turn the scores of rows into losses, derivatives and curvatures."""
    for j in range(part.begin, part.end):
        loss, derivative = loss_and_gradient(loss_code, batch[j].score, batch[j].target)
        batch[j].loss = np.float64(batch[j].weight) * loss
        batch[j].derivative = np.float64(batch[j].weight) * derivative
        batch[j].curvature *= np.float64(batch[j].weight) * loss_curvature(
            loss_code, batch[j].score, batch[j].target
        )


@inlined
def begin_step(number, n_in_batch, problem):
    """Return the StepScale of a batch; the first one has number 1."""
    rule = problem.rule
    correction = 1.0
    root_correction = ONE
    if rule.step_code == STEP_ADAM or rule.step_code == STEP_CUSTOM:
        correction, root = adam_corrections(rule.hyper, number)
        root_correction = np.float32(root)
    scale = 1.0 / (n_in_batch * problem.objective.mean_weight) if rule.average else 1.0
    return StepScale(scale, correction, root_correction)


@inlined
def sum_of_rows(n_in_batch, batch):
    """Return the loss of the batch, and its sums for the intercept, which all rows hold."""
    loss = 0.0
    derivative = 0.0
    weight = 0.0
    curvature = 0.0
    for j in range(n_in_batch):
        derivative += batch[j].derivative
        weight += batch[j].weight
        curvature += batch[j].curvature
        loss += batch[j].loss
    return loss, TokenSums(derivative, weight, curvature)


@inlined
def step_intercept(summed, step, problem, weights, state):
    """Update the intercept by the sums over the batch."""
    if problem.objective.fit_intercept and summed.weight > 0.0:
        rule = problem.rule
        code = rule.rate_code
        if code == RATE_GIVEN:
            code = RATE_CONSTANT
        rate = row_rate(
            code, rule.count_code, rule.hyper, state.intercept[2:], _FIRST, summed.weight,
            summed.curvature,
        )  # fmt: skip
        if code == RATE_COUNTED:
            # Every row holds the intercept: beyond 2 its first step would overshoot.
            rate = min(rate, np.float32(2.0 / summed.curvature))
        step_element(
            rule,
            np.float32(rate / step.correction),
            step.root_correction,
            weights.intercept,
            _FIRST,
            np.float32(summed.derivative * step.scale),
            state.intercept[0:1],
            state.intercept[1:2],
        )


@inlined
def link_tokens(part, entries, batch, scratch):
    """List, for every token this thread owns, its occurrences in the order of the rows."""
    heads = scratch.heads
    links = scratch.links
    n_tokens = 0
    n_links = 0
    for j in range(part.n_rows - 1, -1, -1):
        for p in range(batch[j].end - 1, batch[j].begin - 1, -1):
            k = np.uint64(entries[np.uint64(p)].token)
            if not owns(part.rank, part.size, k):
                continue
            head = heads[k]
            scratch.tokens[n_tokens] = k
            n_tokens += head < 0
            links[n_links].next = head
            links[n_links].row = j
            links[n_links].value = entries[np.uint64(p)].value
            # Without a branch: whether a token has been met before is hard to predict.
            links[n_links].length = 1 + (head >= 0) * links[np.uint64(max(head, 0))].length
            heads[k] = n_links
            n_links += 1
    return n_tokens


@inlined
def occurrence(link, batch, links):
    """Return the row, the value x and x times derivative of an occurrence, and the next one."""
    link = np.uint64(link)
    j = np.uint64(links[link].row)
    x = np.float64(links[link].value)
    return j, x, batch[j].derivative * x, links[link].next


@inlined
def no_gradient(width, gradient):
    """Return the sums of a token that the batch does not hold; its gradient is zero."""
    for f in range(width):
        gradient[f] = ZERO
    return TokenSums(0.0, 0.0, 0.0)


@inlined
def sum_gradient(row, head, table, scratch, scale, alpha):
    """Sum a token's gradient over the batch; leave that of its factors in ``scratch.gradient``.

    The factors' gradient of one row of the batch is derivative * x * (sum of x v - x v_k), plus
    ``alpha`` v_k. Sums are kept in double precision: they are exact for the purposes of float32
    weights, in whatever order.
    """
    batch = scratch.batch
    links = scratch.links
    sums = scratch.sums
    total = scratch.total
    gradient = scratch.gradient
    width = table.shape[1]
    n_left = links[np.uint64(head)].length - 1
    j, x, d, link = occurrence(head, batch, links)
    derivative = d
    # What v_k itself is multiplied by.
    factor = d * x
    weight = np.float64(batch[j].weight)
    curvature = abs(x) * batch[j].curvature
    if n_left == 0:
        factor = (factor - alpha * weight) * scale
        d *= scale
        for f in range(width):
            gradient[f] = np.float32(d * sums[j, f] - factor * table[row, f])
        return TokenSums(derivative, weight, curvature)
    for f in range(width):
        total[f] = d * sums[j, f]
    # Four at a time: the running total is read and written once for all of them.
    while n_left >= 4:
        j, x, d, link = occurrence(link, batch, links)
        j2, x2, d2, link = occurrence(link, batch, links)
        j3, x3, d3, link = occurrence(link, batch, links)
        j4, x4, d4, link = occurrence(link, batch, links)
        n_left -= 4
        derivative += d + d2 + d3 + d4
        factor += d * x + d2 * x2 + d3 * x3 + d4 * x4
        weight += batch[j].weight + batch[j2].weight + batch[j3].weight + batch[j4].weight
        curvature += abs(x) * batch[j].curvature + abs(x2) * batch[j2].curvature
        curvature += abs(x3) * batch[j3].curvature + abs(x4) * batch[j4].curvature
        for f in range(width):
            total[f] += d * sums[j, f] + d2 * sums[j2, f] + d3 * sums[j3, f] + d4 * sums[j4, f]
    while n_left > 0:
        j, x, d, link = occurrence(link, batch, links)
        n_left -= 1
        derivative += d
        factor += d * x
        weight += batch[j].weight
        curvature += abs(x) * batch[j].curvature
        for f in range(width):
            total[f] += d * sums[j, f]
    factor = (factor - alpha * weight) * scale
    for f in range(width):
        gradient[f] = np.float32(scale * total[f] - factor * table[row, f])
    return TokenSums(derivative, weight, curvature)


@inlined
def token_rate(k, summed, step, problem, state):
    """Return the learning rate of token ``k``, whose counter advances."""
    rule = problem.rule
    curvature = penalized_curvature(summed.curvature, summed.weight, k, problem.objective)
    rate = row_rate(
        rule.rate_code, rule.count_code, rule.hyper, state.per_row, k, summed.weight, curvature
    )
    return np.float32(rate / step.correction)


@inlined
def step_linear(k, summed, rate, step, problem, weights, state):
    """Update the linear weight of token ``k`` by its gradient and the penalty."""
    if problem.objective.fit_linear:
        alpha = problem.objective.alpha_linear * problem.objective.shares[k]
        gradient = step.scale * (summed.derivative + alpha * summed.weight * weights.linear[k])
        step_element(
            problem.rule,
            rate,
            step.root_correction,
            weights.linear,
            k,
            np.float32(gradient),
            state.linear_first,
            state.linear_second,
        )
