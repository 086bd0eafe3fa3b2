"""Second-order factorization machines: mini-batch training and scores.

A batch passes three stages. Its rows are gathered and scored, each thread taking a part of the
rows; the team meets; then each thread takes the tokens it owns, sums a token's gradient over
the batch in the order of the rows, and moves the token's weights. Nobody writes what another
reads, and no sum depends on the number of threads, so neither does any bit of the result.
"""

import numpy as np

from freqfm._jit import HALF, ONE, ZERO, kernel, scalar
from freqfm.kernels.cpu.rows import adam_corrections, owner, row_rate, step_element, step_row
from freqfm.kernels.cpu.team import wait
from freqfm.scalars.codes import RATE_CONSTANT, RATE_COUNTED, RATE_GIVEN, STEP_ADAM
from freqfm.scalars.losses import loss_and_gradient, loss_curvature
from freqfm.scalars.rng import permuted_index, stream_key

# A row of the batch. ``slope`` is the weighted derivative of the loss by the score; ``curvature``
# the row's part in the curvature of its tokens' weights, see ``_score``.
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


@scalar
def _add_token(first, j, k, x, factors, sums):
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


@scalar
def _squared_norm(j, n_tokens, width, sums):
    """Return |sum of x v|^2 of batch row ``j``."""
    total = ZERO
    if n_tokens > 0:
        for f in range(width):
            total += sums[j, f] * sums[j, f]
    return total


@scalar
def _gather(
    begin, end, start, n_blocks, block_bits, low_bits, high_bits, key, samples, entries, batch
):
    """Look up the rows of the batch; blocks of rows come in the order of ``key``."""
    # Three loops of independent loads, so that the processor can have many misses in flight.
    in_block = (_ONE << block_bits) - _ONE
    last = n_blocks
    moved = n_blocks
    for j in range(begin, end):
        i = np.uint64(start + j)
        block = i >> block_bits
        if block < n_blocks:
            if block != last:
                last = block
                moved = permuted_index(block, n_blocks, low_bits, high_bits, key)
            i = (moved << block_bits) | (i & in_block)
        batch[j].begin = i
    for j in range(begin, end):
        i = np.uint64(batch[j].begin)
        batch[j].begin = samples[i].start
        batch[j].end = samples[i + _ONE].start
        batch[j].target = samples[i].target
        batch[j].weight = samples[i].weight
    for j in range(begin, end):
        batch[j].score = entries[np.uint64(batch[j].begin)].value


@scalar
def _score(begin, end, intercept, linear, factors, entries, batch, sums):
    """Score rows: sum_{i<k} <v_i, v_k> x_i x_k is half of |sum of x v|^2 - sum of |x v|^2.

    With it comes a bound on curvature. The score's gradient by the weights of token k is about
    x_k (1, s), s = sum of x v. For any steps delta of the weights, Cauchy and Schwarz bound the
    square of the score's change by (sum_i a_i) * (sum_k a_k |delta_k|^2), a_k = |x_k| |(1, s)|,
    the intercept included as a token of value 1. So a row adds
    |x_k| * (1 + sum_i |x_i|) * (1 + |s|^2), times that of its loss, to the curvature of token k.
    """
    for j in range(begin, end):
        score = intercept[0]
        squares = ZERO
        reach = ONE
        first = np.uint64(batch[j].begin)
        last = np.uint64(batch[j].end)
        for p in range(first, last):
            k = np.uint64(entries[p].token)
            x = entries[p].value
            score += x * linear[k]
            reach += abs(x)
            squares += _add_token(p == first, j, k, x, factors, sums)
        norm = _squared_norm(j, last - first, factors.shape[1], sums)
        batch[j].score = score + HALF * (norm - squares)
        batch[j].curvature = reach * (ONE + norm)


@scalar
def _lose(begin, end, loss_code, batch):
    for j in range(begin, end):
        loss, slope = loss_and_gradient(loss_code, batch[j].score, batch[j].target)
        batch[j].loss = np.float64(batch[j].weight) * loss
        batch[j].slope = np.float64(batch[j].weight) * slope
        batch[j].curvature *= np.float64(batch[j].weight) * loss_curvature(loss_code)


@scalar
def _link(rank, size, n_in_batch, entries, batch, heads, links, tokens):
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


@scalar
def _occurrence(link, batch, links):
    """Return the row, the value and value times slope of an occurrence, and the next one."""
    link = np.uint64(link)
    j = np.uint64(links[link].row)
    x = np.float64(links[link].value)
    return j, x, batch[j].slope * x, links[link].next


@scalar
def _sum_gradient(k, head, factors, batch, links, sums, total, gradient, scale, decay):
    """Sum a token's gradient over the batch; leave that of its factors in ``gradient``.

    The factors' gradient of one row is slope * x * (sum of x v - x v_k). Sums are kept in double
    precision: they are exact for the purposes of float32 weights, in whatever order.

    Returns the linear gradient, and the weight and curvature of the rows that hold the token.
    """
    width = factors.shape[1]
    n_left = links[np.uint64(head)].length - 1
    j, x, slope, link = _occurrence(head, batch, links)
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
        j, x, slope, link = _occurrence(link, batch, links)
        j2, x2, slope2, link = _occurrence(link, batch, links)
        j3, x3, slope3, link = _occurrence(link, batch, links)
        j4, x4, slope4, link = _occurrence(link, batch, links)
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
        j, x, slope, link = _occurrence(link, batch, links)
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


@kernel
def fm_train(
    rank,
    size,
    barrier,
    # rows, and which of them
    samples,
    entries,
    first_batch,
    last_batch,
    batch_size,
    n_blocks,
    block_bits,
    seed,
    epoch,
    # model
    intercept,
    linear,
    factors,
    # objective
    loss_code,
    alpha_linear,
    alpha_factors,
    fit_intercept,
    fit_linear,
    mean_weight,
    # optimizer
    step_code,
    rate_code,
    count_code,
    lazy,
    average,
    step,
    hyper,
    per_row,
    intercept_state,
    linear_first,
    linear_second,
    factors_first,
    factors_second,
    # scratch
    batch,
    sums,
    heads,
    links,
    tokens,
    totals,
    gradients,
):
    """Train on the batches ``first_batch`` to ``last_batch`` of an epoch; return their loss.

    Arrays
    ------
    samples, entries : the rows, see ``packing``. An epoch visits their first ``n_blocks`` blocks of
        2^block_bits rows in random order, then the others in theirs.
    intercept (1,), linear (n,), factors (n, d) : float32, updated in place.
    hyper (N_HYPER,) : float64, see ``codes``.
    per_row (n,) or (0,) : learning rates or counters, float32.
    intercept_state (3,) : first and second moment and counter of the intercept.
    linear_first, linear_second, factors_first, factors_second : the optimizer's state; empty
        where the step has none.
    batch (batch_size,), sums (batch_size, d) : scratch shared by the team.
    heads (size, n), links (size, m), tokens (size, m + 1), totals and gradients (size, d or more) :
        scratch of each thread; m is the largest number of entries a batch can hold, and heads
        start at -1.

    The scratch takes 4 n size + 4 d batch_size + 56 batch_size + 16 m size bytes.
    """
    n_rows = samples.shape[0] - 1
    n_tokens_in_all = factors.shape[0]
    bits = 2
    while (1 << bits) < n_blocks:
        bits += 1
    low_bits = np.uint64(bits // 2)
    high_bits = np.uint64(bits - bits // 2)
    key = stream_key(seed, epoch)
    blocks = np.uint64(n_blocks)
    in_block_bits = np.uint64(block_bits)
    heads_ = heads[rank]
    links_ = links[rank]
    tokens_ = tokens[rank]
    totals_ = totals[rank]
    gradient = gradients[rank]
    me = np.uint64(rank)
    team = np.uint64(size)
    loss = 0.0
    for b in range(first_batch, last_batch):
        start = b * batch_size
        n_in_batch = min(batch_size, n_rows - start)
        begin = n_in_batch * rank // size
        end = n_in_batch * (rank + 1) // size
        _gather(
            begin,
            end,
            start,
            blocks,
            in_block_bits,
            low_bits,
            high_bits,
            key,
            samples,
            entries,
            batch,
        )
        _score(begin, end, intercept, linear, factors, entries, batch, sums)
        _lose(begin, end, loss_code, batch)
        wait(barrier, size)

        step += 1
        correction = 1.0
        root_correction = ONE
        if step_code == STEP_ADAM:
            correction, root = adam_corrections(hyper, step)
            root_correction = np.float32(root)
        scale = 1.0 / (n_in_batch * mean_weight) if average else 1.0
        if rank == 0:
            slope = 0.0
            weight = 0.0
            curvature = 0.0
            for j in range(n_in_batch):
                slope += batch[j].slope
                weight += batch[j].weight
                curvature += batch[j].curvature
                loss += batch[j].loss
            if fit_intercept and weight > 0.0:
                code = rate_code if rate_code != RATE_GIVEN else RATE_CONSTANT
                rate = row_rate(code, count_code, hyper, intercept_state[2:], 0, weight, curvature)
                if rate_code == RATE_COUNTED:
                    # Every row holds the intercept: beyond 2 its first step would overshoot.
                    rate = min(rate, np.float32(2.0 / curvature))
                step_element(
                    step_code,
                    hyper,
                    np.float32(rate / correction),
                    root_correction,
                    intercept,
                    0,
                    np.float32(slope * scale),
                    intercept_state[0:1],
                    intercept_state[1:2],
                )
        n_tokens = _link(me, team, n_in_batch, entries, batch, heads_, links_, tokens_)
        for t in range(n_tokens if lazy else n_tokens_in_all):
            k = np.uint64(tokens_[t] if lazy else t)
            head = heads_[k]
            if head >= 0:
                heads_[k] = -1
                slope, weight, curvature = _sum_gradient(
                    k,
                    head,
                    factors,
                    batch,
                    links_,
                    sums,
                    totals_,
                    gradient,
                    scale,
                    alpha_factors,
                )
                if lazy and weight == 0.0:
                    continue
            elif owner(k, team) == me:
                slope = 0.0
                weight = 0.0
                curvature = 0.0
                for f in range(factors.shape[1]):
                    gradient[f] = ZERO
            else:
                continue
            rate = row_rate(rate_code, count_code, hyper, per_row, k, weight, curvature)
            rate = np.float32(rate / correction)
            if fit_linear:
                slope = scale * (slope + alpha_linear * weight * linear[k])
                step_element(
                    step_code,
                    hyper,
                    rate,
                    root_correction,
                    linear,
                    k,
                    np.float32(slope),
                    linear_first,
                    linear_second,
                )
            step_row(
                step_code,
                hyper,
                rate,
                root_correction,
                factors,
                k,
                gradient,
                factors_first,
                factors_second,
            )
        wait(barrier, size)
    return loss


@kernel
def fm_score(
    rank, size, barrier, indptr, indices, values, intercept, linear, factors, sums, scores
):
    """Write the scores of CSR rows: intercept + linear part + interactions, in O(nnz d).

    ``sums`` (size, d or more) is scratch; ``scores`` (n_rows,) is the float32 result. Rows are
    shared out in blocks of equal length.
    """
    n_rows = scores.shape[0]
    for i in range(n_rows * rank // size, n_rows * (rank + 1) // size):
        score = intercept[0]
        squares = ZERO
        begin = np.uint64(indptr[i])
        end = np.uint64(indptr[i + 1])
        for p in range(begin, end):
            k = np.uint64(indices[p])
            x = values[p]
            score += x * linear[k]
            squares += _add_token(p == begin, rank, k, x, factors, sums)
        norm = _squared_norm(rank, end - begin, factors.shape[1], sums)
        scores[i] = score + HALF * (norm - squares)
