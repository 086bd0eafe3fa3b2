"""A mini-batch of a factorization machine: what the kernels of all of them share.

A batch passes three stages. Its rows are gathered and scored, each thread taking a part of the
rows; the team meets; then each thread takes the tokens it owns, sums a token's gradient over
the batch in the order of the rows, and moves the token's weights. Nobody writes what another
reads, and no sum depends on the number of threads, so neither does any bit of the result.
"""

from typing import NamedTuple

import numpy as np

from freqfm._jit import ONE, ZERO, inlined
from freqfm.backends.cpu.ownership import owner
from freqfm.formulas.codes import RATE_CONSTANT, RATE_COUNTED, RATE_GIVEN, STEP_ADAM
from freqfm.formulas.losses import loss_and_gradient, loss_curvature
from freqfm.formulas.rng import permuted_index, stream_key
from freqfm.formulas.steps import adam_corrections, row_rate, step_element

# A row of the batch. ``slope`` is the weighted derivative of the loss by the score; ``curvature``
# the row's part in the curvature of its tokens' weights, see ``fm``.
BATCH_ROW = np.dtype(
    [
        ("begin", np.int64),
        ("end", np.int64),
        ("slope", np.float64),
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


class Objective(NamedTuple):
    """What training minimises."""

    loss_code: int
    alpha_linear: float
    alpha_factors: float
    fit_intercept: bool
    fit_linear: bool
    mean_weight: float  #: of a row
    #: (n,) float32: by what the penalty on a token is multiplied, for each row that holds it.
    shares: np.ndarray


class Stepping(NamedTuple):
    """How weights move along their gradients, see ``freqfm.formulas.codes``."""

    step_code: int
    rate_code: int
    count_code: int
    lazy: bool
    average: bool
    hyper: np.ndarray  #: (N_HYPER,), float64


class Order(NamedTuple):
    """The order of one epoch."""

    n_blocks: int
    block_bits: int
    low_bits: int
    high_bits: int
    key: int


class Scratch(NamedTuple):
    """Working memory; ``heads`` to ``gradients`` have a row for each thread, heads start at -1.

    It takes 4 n size + 4 d batch_size + 56 batch_size + 16 m size bytes for n tokens, vectors of
    length d and at most m entries in a batch.
    """

    batch: np.ndarray  #: (batch_size,), BATCH_ROW
    sums: np.ndarray  #: (batch_size, d), float32, sums of x v
    heads: np.ndarray  #: (size, n), int32
    links: np.ndarray  #: (size, m + 1), LINK
    tokens: np.ndarray  #: (size, m + 1), int32
    totals: np.ndarray  #: (size, d or more), float64
    gradients: np.ndarray  #: (size, d or more), float32


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
def gather_rows(begin, end, start, rows, order, batch):
    """Look up the rows ``begin`` to ``end`` of the batch that starts at ``start``."""
    # Three loops of independent loads, so that the processor can have many misses in flight.
    samples = rows.samples
    in_block = (_ONE << order.block_bits) - _ONE
    last = order.n_blocks
    moved = order.n_blocks
    for j in range(begin, end):
        i = np.uint64(start + j)
        block = i >> order.block_bits
        if block < order.n_blocks:
            if block != last:
                last = block
                moved = permuted_index(
                    block, order.n_blocks, order.low_bits, order.high_bits, order.key
                )
            i = (moved << order.block_bits) | (i & in_block)
        batch[j].begin = i
    for j in range(begin, end):
        i = np.uint64(batch[j].begin)
        batch[j].begin = samples[i].start
        batch[j].end = samples[i + _ONE].start
        batch[j].target = samples[i].target
        batch[j].weight = samples[i].weight
    for j in range(begin, end):
        batch[j].score = rows.entries[np.uint64(batch[j].begin)].value


@inlined
def add_token(first, j, k, x, factors, sums):
    """Add x * v_k to the sums of batch row ``j``; return the squared norm of what was added."""
    squares = ZERO
    if first:
        for f in range(factors.shape[1]):
            term = x * factors[k, f]
            sums[j, f] = term
            squares += term * term
    else:
        for f in range(factors.shape[1]):
            term = x * factors[k, f]
            sums[j, f] += term
            squares += term * term
    return squares


@inlined
def squared_norm(j, n_tokens, width, sums):
    """Return |sum of x v|^2 of batch row ``j``, to which so many tokens were added."""
    total = ZERO
    if n_tokens > 0:
        for f in range(width):
            total += sums[j, f] * sums[j, f]
    return total


@inlined
def differentiate_losses(begin, end, loss_code, batch):
    """Turn the scores of rows into losses, slopes and curvatures."""
    for j in range(begin, end):
        loss, slope = loss_and_gradient(loss_code, batch[j].score, batch[j].target)
        batch[j].loss = np.float64(batch[j].weight) * loss
        batch[j].slope = np.float64(batch[j].weight) * slope
        batch[j].curvature *= np.float64(batch[j].weight) * loss_curvature(loss_code)


@inlined
def step_corrections(stepping, step):
    """Return what the rate and the root of the second moment are divided by in this step."""
    if stepping.step_code == STEP_ADAM:
        correction, root = adam_corrections(stepping.hyper, step)
        return correction, np.float32(root)
    return 1.0, ONE


@inlined
def step_intercept(
    n_in_batch, batch, scale, correction, root_correction, objective, stepping, state, intercept
):
    """Move the intercept by the slopes of the batch; return the batch's loss."""
    loss = 0.0
    slope = 0.0
    weight = 0.0
    curvature = 0.0
    for j in range(n_in_batch):
        slope += batch[j].slope
        weight += batch[j].weight
        curvature += batch[j].curvature
        loss += batch[j].loss
    if objective.fit_intercept and weight > 0.0:
        code = stepping.rate_code
        if code == RATE_GIVEN:
            code = RATE_CONSTANT
        rate = row_rate(
            code, stepping.count_code, stepping.hyper, state.intercept[2:], _FIRST, weight,
            curvature,
        )  # fmt: skip
        if code == RATE_COUNTED:
            # Every row holds the intercept: beyond 2 its first step would overshoot.
            rate = min(rate, np.float32(2.0 / curvature))
        step_element(
            stepping.step_code,
            stepping.hyper,
            np.float32(rate / correction),
            root_correction,
            intercept,
            _FIRST,
            np.float32(slope * scale),
            state.intercept[0:1],
            state.intercept[1:2],
        )
    return loss


@inlined
def link_tokens(rank, size, n_in_batch, entries, batch, heads, links, tokens):
    """List, for every token this thread owns, its occurrences in the order of the rows."""
    n_tokens = 0
    n_links = 0
    for j in range(n_in_batch - 1, -1, -1):
        for p in range(batch[j].end - 1, batch[j].begin - 1, -1):
            k = np.uint64(entries[np.uint64(p)].token)
            if owner(k, size) != rank:
                continue
            head = heads[k]
            tokens[n_tokens] = k
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
    """Return the row, the value and value times slope of an occurrence, and the next one."""
    link = np.uint64(link)
    j = np.uint64(links[link].row)
    x = np.float64(links[link].value)
    return j, x, batch[j].slope * x, links[link].next


@inlined
def sum_gradient(k, head, factors, batch, links, sums, total, gradient, scale, decay):
    """Sum a token's gradient over the batch; leave that of its factors in ``gradient``.

    The factors' gradient of one row is slope * x * (sum of x v - x v_k). Sums are kept in double
    precision: they are exact for the purposes of float32 weights, in whatever order.

    Returns the linear gradient, and the weight and curvature of the rows that hold the token.
    """
    width = factors.shape[1]
    n_left = links[np.uint64(head)].length - 1
    j, x, slope, link = occurrence(head, batch, links)
    linear = slope
    own = slope * x
    weight = np.float64(batch[j].weight)
    curvature = abs(x) * batch[j].curvature
    if n_left == 0:
        own = (own - decay * weight) * scale
        slope *= scale
        for f in range(width):
            gradient[f] = np.float32(slope * sums[j, f] - own * factors[k, f])
        return linear, weight, curvature
    for f in range(width):
        total[f] = slope * sums[j, f]
    # Four at a time: the running total is read and written once for all of them.
    while n_left >= 4:
        j, x, slope, link = occurrence(link, batch, links)
        j2, x2, slope2, link = occurrence(link, batch, links)
        j3, x3, slope3, link = occurrence(link, batch, links)
        j4, x4, slope4, link = occurrence(link, batch, links)
        n_left -= 4
        linear += slope + slope2 + slope3 + slope4
        own += slope * x + slope2 * x2 + slope3 * x3 + slope4 * x4
        weight += batch[j].weight + batch[j2].weight + batch[j3].weight + batch[j4].weight
        curvature += abs(x) * batch[j].curvature + abs(x2) * batch[j2].curvature
        curvature += abs(x3) * batch[j3].curvature + abs(x4) * batch[j4].curvature
        for f in range(width):
            total[f] += (
                slope * sums[j, f]
                + slope2 * sums[j2, f]
                + slope3 * sums[j3, f]
                + slope4 * sums[j4, f]
            )
    while n_left > 0:
        j, x, slope, link = occurrence(link, batch, links)
        n_left -= 1
        linear += slope
        own += slope * x
        weight += batch[j].weight
        curvature += abs(x) * batch[j].curvature
        for f in range(width):
            total[f] += slope * sums[j, f]
    own = (own - decay * weight) * scale
    for f in range(width):
        gradient[f] = np.float32(scale * total[f] - own * factors[k, f])
    return linear, weight, curvature


@inlined
def step_linear(k, slope, weight, rate, scale, root_correction, objective, stepping, state, linear):
    """Move the linear weight of token ``k`` by the sum of its slopes, and shrink it."""
    if objective.fit_linear:
        decay = objective.alpha_linear * objective.shares[k]
        slope = scale * (slope + decay * weight * linear[k])
        step_element(
            stepping.step_code,
            stepping.hyper,
            rate,
            root_correction,
            linear,
            k,
            np.float32(slope),
            state.linear_first,
            state.linear_second,
        )
