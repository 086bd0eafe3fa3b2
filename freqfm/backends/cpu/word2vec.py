"""Word vectors by negative sampling: every token of a text, given its neighbours, against noise.

A position of the text has inputs, the tokens in its window, and outputs: its own token, the
positive, and tokens drawn as noise. Skip-gram scores each input against each output, CBOW the mean
of the inputs. All pairs of a position share its noise, as in Ji et al. (2016): their scores are a
small matrix, and so are the sums of the gradients of either side, which stay in the cache.

A batch's gradients are summed for each row, in the order of the text; then every row makes one
step. So results do not depend on the number of threads.
"""

from typing import NamedTuple

import numpy as np

from freqfm._memory import aligned_zeros
from freqfm._numba.jit import HALF, ONE, ZERO, inlined, interpreted, kernel
from freqfm._numba.prefetch import LINE, prefetch_row
from freqfm.backends.cpu.listed_rows import Listed, add_rows, score_rows
from freqfm.backends.cpu.tables import (
    NO_UNIT,
    Side,
    Step,
    apply_gradients,
    catch_up_batch,
    empty_occurrences,
    step_after,
)
from freqfm.backends.cpu.team import Member, part, synchronize
from freqfm.backends.cpu.training import TableTrainer
from freqfm.formulas.codes import CATCH_UP_NONE, RATE_COUNTED
from freqfm.formulas.losses import log_loss
from freqfm.formulas.rng import hash64, random_bits, slot_and_position, stream_key

# The score that noise gets if it is the position's own token: no loss, and no gradient.
_IGNORED = np.float32(-1e4)

# The row of a window's new token is prefetched this many positions before.
_POSITIONS_AHEAD = 4

# A kernel call makes about so many multiplications, a tenth of a second's work.
_PRODUCTS_PER_CALL = 500_000_000


class Text(NamedTuple):
    """The tokens of an epoch, and the batches of them that one call reads."""

    tokens: np.ndarray  #: (n,), int32; -1 before, between and after documents
    first_batch: int
    last_batch: int
    key: int  #: random stream of the positions


class Sampling(NamedTuple):
    """How positions are turned into pairs; see ``WordProblem``."""

    cbow: bool
    window: int
    shrink_windows: bool
    n_outputs: int  #: 1 + number of negatives
    batch_size: int
    thresholds: np.ndarray
    aliases: np.ndarray
    learns: bool  #: whether tables are moved; else only the loss is computed


class WordScratch(NamedTuple):
    """Working memory; a thread has R rows of ``scores``."""

    begins: np.ndarray  #: (batch_size,), where windows begin, int64
    ends: np.ndarray  #: (batch_size,), and where they end; at the beginning if there is no input
    losses: np.ndarray  #: (batch_size,), float64
    by_inputs: np.ndarray  #: gradients that inputs move along, float32
    by_outputs: np.ndarray  #: and outputs
    scores: np.ndarray  #: (size * R, n_outputs), of a position; then derivatives
    flat: np.ndarray  #: the same memory, one-dimensional
    transposed: np.ndarray  #: (size * n_outputs, R), derivatives by outputs
    targets: np.ndarray  #: (R * n_outputs,), 1 for positives


class WordSides(NamedTuple):
    """The inputs and the outputs of a batch, and the step that moves them."""

    inputs: Side
    outputs: Side
    step: Step


class Part(NamedTuple):
    """The positions of a batch that one thread learns from."""

    begin: int
    end: int
    first_input: int  #: their first occurrence among the inputs of the batch
    first_number: int  #: how many positions before them have inputs
    last_number: int  #: and how many with them


class Position(NamedTuple):
    """A position of a batch that has inputs."""

    first_input: int  #: its first occurrence among the inputs of the batch
    n_inputs: int
    number: int  #: among the positions that have inputs
    scale: float  #: what gradients are multiplied by; float32
    last_output: int  #: occurrences of outputs before this one may be prefetched


@inlined
def _window(text, sampling, p):
    """Return where the window of position ``p`` begins and ends; it has no input if they agree."""
    tokens = text.tokens
    if tokens[p] < 0:
        return p, p
    reach = sampling.window
    if sampling.shrink_windows:
        reach = 1 + np.int64((random_bits(text.key, p) >> np.uint64(33)) % np.uint64(reach))
    begin = p
    while begin > p - reach and tokens[begin - 1] >= 0:
        begin -= 1
    end = p + 1
    while end <= p + reach and tokens[end] >= 0:
        end += 1
    return (p, p) if end - begin == 1 else (begin, end)


@inlined
def _count(scratch, end):
    """Return how many inputs, and positions with inputs, there are in the batch before ``end``."""
    n_inputs, n_positions = 0, 0
    for r in range(end):
        length = scratch.ends[r] - scratch.begins[r]
        n_inputs += max(length - 1, 0)
        n_positions += length > 0
    return n_inputs, n_positions


@inlined
def _draw_noise(sampling, key, j):
    """Return number ``j`` of a position's noise, by an alias table."""
    slot, position = slot_and_position(random_bits(key, j), sampling.aliases.shape[0])
    return np.int32(slot) if position < sampling.thresholds[slot] else sampling.aliases[slot]


@inlined
def _list_inputs(text, p, position, begin, end, cbow, occurrences):
    """List the inputs of a position, each with the gradient that it moves along."""
    at = position.first_input
    for q in range(begin, end):
        if q != p:
            occurrences.tokens[at] = text.tokens[q]
            occurrences.rows[at] = position.number if cbow else at
            occurrences.multiples[at] = ONE / np.float32(position.n_inputs) if cbow else ONE
            at += 1


@inlined
def _list_outputs(text, sampling, p, number, occurrences):
    """List the outputs of a position: its token, and noise."""
    k = sampling.n_outputs
    at = number * k
    key = hash64(text.key + np.uint64(p))
    for j in range(k):
        token = text.tokens[p] if j == 0 else _draw_noise(sampling, key, j)
        occurrences.tokens[at + j] = token
        occurrences.rows[at + j] = number if sampling.cbow else at + j
        occurrences.multiples[at + j] = ONE


@inlined
def _list_part(mine, first, text, sampling, sides, scratch):
    """List the inputs and outputs of a part of a batch; ``first`` is the batch's first position."""
    inputs, outputs = sides.inputs.occurrences, sides.outputs.occurrences
    at, number = mine.first_input, mine.first_number
    for r in range(mine.begin, mine.end):
        window_begin, window_end = scratch.begins[r], scratch.ends[r]
        if window_begin == window_end:
            continue
        position = Position(at, window_end - window_begin - 1, number, ONE, 0)
        _list_inputs(text, first + r, position, window_begin, window_end, sampling.cbow, inputs)
        _list_outputs(text, sampling, first + r, number, outputs)
        if inputs.curvatures.shape[0] > 0:
            _bound_curvatures(
                position, sampling.cbow, sampling.n_outputs, inputs.curvatures, outputs.curvatures
            )
        at += position.n_inputs
        number += 1


@inlined
def _bound_curvatures(position, cbow, k, of_inputs, of_outputs):
    """Write what bounds the learning rates of a position's rows, for CF-SGD.

    Twice a score's largest second derivative, 1/4, for each score that depends on the row: with
    vectors of length one, a bound of the curvature if all rows of the position move.
    """
    n = np.float32(position.n_inputs)
    by_input = HALF * np.float32(k) / n if cbow else HALF * np.float32(k)
    by_output = HALF if cbow else HALF * n
    for at in range(position.first_input, position.first_input + position.n_inputs):
        of_inputs[at] = by_input
    for at in range(position.number * k, (position.number + 1) * k):
        of_outputs[at] = by_output


@inlined
def _clear(table, row):
    for f in range(table.shape[1]):
        table[row, f] = ZERO


@inlined
def _differentiate(rank, n, position, tokens, scratch):
    """Turn ``n`` rows of scores into derivatives of the loss by them; return the loss."""
    k = scratch.scores.shape[1]
    flat, targets = scratch.flat, scratch.targets
    base = rank * targets.shape[0]
    at = position.number * k
    for j in range(1, k):
        if tokens[at + j] == tokens[at]:
            for c in range(n):
                flat[base + c * k + j] = _IGNORED
    # The sum has a loop that writes nothing, see ``exponentials``.
    loss = ZERO
    for t in range(n * k):
        loss += log_loss(flat[np.uint64(base + t)], targets[t])[0]
    for t in range(n * k):
        derivative = log_loss(flat[np.uint64(base + t)], targets[t])[1]
        flat[np.uint64(base + t)] = position.scale * derivative
    return np.float64(loss)


@inlined
def _learn_pairs(rank, position, inputs, outputs, scratch):
    """Compare each input of a position with its outputs, as skip-gram does; return the loss.

    The gradients by the inputs and by the outputs are written to the scratch.
    """
    k, n = scratch.scores.shape[1], position.n_inputs
    of_inputs, of_outputs = inputs.table.weights, outputs.table.weights
    at, first, row = position.first_input, position.number * k, rank * scratch.transposed.shape[1]
    tokens = inputs.occurrences.tokens
    listed = Listed(outputs.occurrences.tokens, first, 1, k, position.last_output)
    for c in range(n):
        token = np.int64(tokens[at + c])
        score_rows(listed, of_outputs, of_inputs, token, scratch.scores, row + c)
    loss = _differentiate(rank, n, position, outputs.occurrences.tokens, scratch)
    for c in range(n):
        _clear(scratch.by_inputs, at + c)
        add_rows(listed, of_outputs, scratch.scores, row + c, scratch.by_inputs, at + c)
        for j in range(k):
            scratch.transposed[rank * k + j, c] = scratch.scores[row + c, j]
    listed = Listed(tokens, at, 1, n, at + n)
    for j in range(k):
        _clear(scratch.by_outputs, first + j)
        add_rows(listed, of_inputs, scratch.transposed, rank * k + j, scratch.by_outputs, first + j)
    return loss


@inlined
def _learn_mean(rank, position, inputs, outputs, scratch):
    """Compare the mean of a position's inputs with its outputs, as CBOW does; return the loss.

    The mean, which outputs move along, and the gradient by it are written to the scratch.
    """
    k, number = scratch.scores.shape[1], position.number
    of_outputs, row = outputs.table.weights, rank * scratch.transposed.shape[1]
    at, first = position.first_input, number * k
    for c in range(position.n_inputs):
        scratch.transposed[rank * k, c] = inputs.occurrences.multiples[at + c]
    listed = Listed(inputs.occurrences.tokens, at, 1, position.n_inputs, at + position.n_inputs)
    _clear(scratch.by_outputs, number)
    add_rows(listed, inputs.table.weights, scratch.transposed, rank * k, scratch.by_outputs, number)
    listed = Listed(outputs.occurrences.tokens, first, 1, k, position.last_output)
    score_rows(listed, of_outputs, scratch.by_outputs, number, scratch.scores, row)
    loss = _differentiate(rank, 1, position, outputs.occurrences.tokens, scratch)
    _clear(scratch.by_inputs, number)
    add_rows(listed, of_outputs, scratch.scores, row, scratch.by_inputs, number)
    for j in range(k):
        outputs.occurrences.multiples[first + j] = scratch.scores[row, j]
    return loss


@inlined
def _learn_part(rank, mine, scale, text, cbow, sides, scratch):
    """Find the losses and gradients of a part of a batch."""
    inputs, outputs = sides.inputs, sides.outputs
    at, number = mine.first_input, mine.first_number
    last_output = mine.last_number * scratch.scores.shape[1]
    for r in range(mine.begin, mine.end):
        scratch.losses[r] = 0.0
        # The last token of a window is new, the others were in the one before.
        newest = text.tokens[scratch.ends[min(r + _POSITIONS_AHEAD, mine.end - 1)] - 1]
        prefetch_row(inputs.table.weights, np.uint64(max(newest, 0)))
        n_inputs = scratch.ends[r] - scratch.begins[r] - 1
        if n_inputs < 0:
            continue
        position = Position(at, n_inputs, number, scale, last_output)
        if cbow:
            scratch.losses[r] = _learn_mean(rank, position, inputs, outputs, scratch)
        else:
            scratch.losses[r] = _learn_pairs(rank, position, inputs, outputs, scratch)
        at += n_inputs
        number += 1


@kernel
def word2vec_train(rank, size, barrier, text, sampling, sides, scratch):
    """Train on some batches of an epoch; return the sum of the loss and the number of samples.

    A sample of skip-gram is an input and its position's outputs; of CBOW, a position.
    """
    member = Member(rank, size, barrier)
    inputs, outputs, step = sides.inputs, sides.outputs, sides.step
    total_loss = 0.0
    total_samples = 0
    for b in range(text.first_batch, text.last_batch):
        now = step_after(step, b - text.first_batch + 1)
        first = b * sampling.batch_size
        n = min(sampling.batch_size, text.tokens.shape[0] - first)
        begin, end = part(member, n)
        for r in range(begin, end):
            scratch.begins[r], scratch.ends[r] = _window(text, sampling, first + r)
        synchronize(member)
        first_input, first_number = _count(scratch, begin)
        last_number = _count(scratch, end)[1]
        n_inputs, n_positions = _count(scratch, n)
        mine = Part(begin, end, first_input, first_number, last_number)
        n_outputs = n_positions * sampling.n_outputs
        n_samples = n_positions if sampling.cbow else n_inputs
        mean = 1.0 / max(n_samples, 1)
        _list_part(mine, first, text, sampling, sides, scratch)
        if now.rule.catch_up != CATCH_UP_NONE:
            catch_up_batch(member, n_inputs, inputs, n_outputs, outputs, now)
        scale = np.float32(mean if now.rule.average else 1.0)
        _learn_part(rank, mine, scale, text, sampling.cbow, sides, scratch)
        synchronize(member)
        if rank == 0:
            total_samples += n_samples
            for r in range(n):
                total_loss += scratch.losses[r]
        if sampling.learns:
            apply_gradients(member, n_inputs, inputs, scratch.by_inputs, NO_UNIT, now, mean)
            apply_gradients(member, n_outputs, outputs, scratch.by_outputs, NO_UNIT, now, mean)
        synchronize(member)
    return total_loss, total_samples


class Word2VecTrainer(TableTrainer):
    """Trains word vectors on the CPU; see ``Backend.word2vec_trainer``."""

    def __init__(self, problem, n_threads):
        super().__init__(problem.rule, n_threads, problem.formulas)
        self._problem = problem
        n, k, size = problem.batch_size, 1 + problem.n_negatives, n_threads
        most = min(2 * problem.window, problem.longest)
        if n * max(most, k) > np.iinfo(np.int32).max:
            raise ValueError(
                f"batch_size={n} with window={problem.window} makes up to {n * most} pairs a "
                f"batch; choose a smaller batch_size or window."
            )
        counted = problem.rule.rate_code == RATE_COUNTED
        self._inputs = empty_occurrences(n * most, problem.width, size, counted)
        self._outputs = empty_occurrences(n * k, problem.width, size, counted)
        # Rows of threads begin with a cache line.
        rows = -(-most // LINE) * LINE
        scores = aligned_zeros((size * rows, k))
        targets = aligned_zeros(rows * k)
        targets[::k] = 1
        self._scratch = WordScratch(
            begins=aligned_zeros(n, np.int64),
            ends=aligned_zeros(n, np.int64),
            losses=aligned_zeros(n, np.float64),
            by_inputs=aligned_zeros((n if problem.cbow else n * most, problem.width)),
            by_outputs=aligned_zeros((n if problem.cbow else n * k, problem.width)),
            scores=scores,
            flat=scores.reshape(-1),
            transposed=aligned_zeros((size * k, rows)),
            targets=targets,
        )
        products = 3 * n * k * problem.width * (2 if problem.cbow else most)
        self._batches_per_call = max(1, _PRODUCTS_PER_CALL // products)

    def train(self, epoch, tokens, learns=True):
        """Read the tokens of an epoch, see ``Backend.word2vec_trainer``."""
        problem = self._problem
        n_batches = -(-len(tokens) // problem.batch_size)
        sampling = Sampling(
            cbow=problem.cbow,
            window=problem.window,
            shrink_windows=problem.shrink_windows,
            n_outputs=1 + problem.n_negatives,
            batch_size=problem.batch_size,
            thresholds=problem.thresholds,
            aliases=problem.aliases,
            learns=learns,
        )
        inputs = Side(self.tables["vectors"], self._inputs)
        outputs = Side(self.tables["output_vectors"], self._outputs)
        with np.errstate(over="ignore"):
            key = np.uint64(interpreted(stream_key)(problem.seed, epoch))
        loss, n_samples = 0.0, 0
        for begin in range(0, n_batches, self._batches_per_call):
            end = min(begin + self._batches_per_call, n_batches)
            text = Text(tokens, begin, end, key)
            sides = WordSides(inputs, outputs, self.step(begin))
            of_call = self.team.run(word2vec_train, text, sampling, sides, self._scratch)
            loss, n_samples = loss + of_call[0], n_samples + of_call[1]
        return loss, n_samples
