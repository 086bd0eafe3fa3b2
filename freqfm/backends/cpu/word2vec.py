"""Word vectors by negative sampling: each token of a text is compared with random tokens.

A position of the text has inputs, the tokens in its window, and outputs: its own token, the
positive, and tokens drawn as noise. Skip-gram scores each input against each output, CBOW the mean
of the inputs. All pairs of a position share its noise, as in Ji et al. (2016): their scores are a
small matrix, and so are the sums of the gradients of either side, which stay in the cache.

A batch's gradients are summed for each row, in the order of the text; then every row makes one
step. So results do not depend on the number of threads.
"""

from typing import NamedTuple

import numpy as np

from freqfm._machine import aligned_zeros
from freqfm._numba.instructions import LINE, prefetch_row
from freqfm._numba.jit import HALF, ONE, ZERO, inlined, kernel
from freqfm.backends.cpu.tables import (
    NO_UNIT,
    Side,
    Step,
    TableTrainer,
    apply_gradients,
    catch_up_batch,
    empty_occurrences,
    step_after,
)
from freqfm.backends.cpu.team import Member, part, synchronize
from freqfm.backends.cpu.vectors import add_multiple
from freqfm.formulas.codes import CATCH_UP_NONE, RATE_COUNTED
from freqfm.formulas.losses import log_loss
from freqfm.formulas.rng import hash64, key_in_python, random_bits, slot_and_position

#: A row is prefetched this many tokens before it is scored.
AHEAD = 32


class Listed(NamedTuple):
    """Some rows of a table: ``n`` tokens of a list, from ``first`` on every ``stride``-th."""

    tokens: np.ndarray  #: int32
    first: int
    stride: int
    n: int
    end: int  #: tokens before this one may be prefetched


@inlined
def score_rows(listed, table, vectors, r, out, s):
    """Write the dot products of listed rows of a table and row ``r`` of ``vectors`` to ``out[s]``.

    Rows that are next in the list are prefetched.
    """
    vector = vectors[np.uint64(r)]
    for i in range(listed.n):
        q = listed.first + i * listed.stride
        prefetch_row(table, listed.tokens[np.uint64(min(q + AHEAD, listed.end - 1))])
        row = table[np.uint64(listed.tokens[np.uint64(q)])]
        score = ZERO
        for f in range(table.shape[1]):
            score += vector[f] * row[f]
        out[np.uint64(s), np.uint64(i)] = score


@inlined
def add_rows(listed, table, multiples, m, out, r):
    """Add listed rows of a table, each times a number of ``multiples[m]``, to ``out[r]``."""
    total = out[np.uint64(r)]
    for i in range(listed.n):
        token = np.uint64(listed.tokens[np.uint64(listed.first + i * listed.stride)])
        add_multiple(multiples[np.uint64(m), np.uint64(i)], table[token], total)


# The score of noise that equals the position's own token: its loss and its gradient are zero.
_IGNORED = np.float32(-1e4)

# The row of a window's new token is prefetched this many positions before.
_POSITIONS_AHEAD = 4

# Number of multiplications of a kernel call, about a tenth of a second.
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
    """Working memory; a thread has R rows of ``scores`` and of ``hidden``."""

    begins: np.ndarray  #: (batch_size,), where windows begin, int64
    ends: np.ndarray  #: (batch_size,), and where they end; at the beginning if there is no input
    first_inputs: np.ndarray  #: (batch_size + 1,), inputs before each position, int64
    numbers: np.ndarray  #: (batch_size + 1,), positions with inputs before each position, int64
    losses: np.ndarray  #: (batch_size,), float64
    by_inputs: np.ndarray  #: gradients that inputs move along, float32
    by_outputs: np.ndarray  #: and outputs
    hidden: np.ndarray  #: (size * R, d), vectors that are scored: of the inputs, or their mean
    scores: np.ndarray  #: (size * R, n_outputs), of a position; then derivatives
    flat: np.ndarray  #: the same memory, one-dimensional
    targets: np.ndarray  #: (R * n_outputs,), 1 for positives


class WordSides(NamedTuple):
    """The inputs and the outputs of a batch, and the step that moves them."""

    inputs: Side
    outputs: Side
    step: Step


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
def _number_positions(n, scratch):
    """Number the positions of a batch that have inputs, and their inputs."""
    scratch.first_inputs[0] = scratch.numbers[0] = 0
    for r in range(n):
        length = scratch.ends[r] - scratch.begins[r]
        scratch.first_inputs[r + 1] = scratch.first_inputs[r] + max(length - 1, 0)
        scratch.numbers[r + 1] = scratch.numbers[r] + (length > 0)


@inlined
def _draw_noise(sampling, key, j):
    """Return number ``j`` of a position's noise, by an alias table."""
    slot, position = slot_and_position(random_bits(key, j), sampling.aliases.shape[0])
    return np.int32(slot) if position < sampling.thresholds[slot] else sampling.aliases[slot]


@inlined
def _list_position(r, p, text, sampling, sides, scratch):
    """List inputs and outputs of position ``p``, number ``r`` of a batch that has inputs.

    Each is listed with the gradient that it moves along.
    """
    inputs, outputs = sides.inputs.occurrences, sides.outputs.occurrences
    first, number, k = scratch.first_inputs[r], scratch.numbers[r], sampling.n_outputs
    at = first
    for q in range(scratch.begins[r], scratch.ends[r]):
        if q != p:
            inputs.tokens[at] = text.tokens[q]
            inputs.rows[at] = number if sampling.cbow else at
            at += 1
    n = np.float32(at - first)
    for q in range(first, at):
        inputs.multiples[q] = ONE / n if sampling.cbow else ONE
    key = hash64(text.key + np.uint64(p))
    for j in range(k):
        q = number * k + j
        outputs.tokens[q] = text.tokens[p] if j == 0 else _draw_noise(sampling, key, j)
        outputs.rows[q] = number if sampling.cbow else q
        outputs.multiples[q] = ONE
    if inputs.curvatures.shape[0] > 0:
        # Bounds of the learning rates of the rows, for CF-SGD: twice a score's largest second
        # derivative, 1/4, for each score that depends on the row. With vectors of length one it
        # bounds the curvature if all rows of the position move.
        of_input = HALF * np.float32(k)
        for q in range(first, at):
            inputs.curvatures[q] = of_input / n if sampling.cbow else of_input
        for q in range(number * k, (number + 1) * k):
            outputs.curvatures[q] = HALF if sampling.cbow else HALF * n


@inlined
def _clear(table, first, n):
    """Set ``n`` rows of a table to zero."""
    for row in range(first, first + n):
        for f in range(table.shape[1]):
            table[row, f] = ZERO


@inlined
def _differentiate(rank, n, listed, scale, scratch):
    """Turn ``n`` rows of scores into derivatives of the loss by them; return the loss.

    The outputs are listed; noise that equals the first, the positive, is left out.
    """
    k = scratch.scores.shape[1]
    flat, targets = scratch.flat, scratch.targets
    base = rank * targets.shape[0]
    for j in range(1, k):
        if listed.tokens[listed.first + j] == listed.tokens[listed.first]:
            for c in range(n):
                flat[base + c * k + j] = _IGNORED
    # The sum has a loop that writes nothing, see ``exponentials``.
    loss = ZERO
    for t in range(n * k):
        loss += log_loss(flat[np.uint64(base + t)], targets[t])[0]
    for t in range(n * k):
        derivative = log_loss(flat[np.uint64(base + t)], targets[t])[1]
        flat[np.uint64(base + t)] = scale * derivative
    return np.float64(loss)


@inlined
def _learn_position(rank, r, last_output, cbow, scale, sides, scratch):
    """Return the loss of position ``r``, and write the gradients to the scratch.

    Skip-gram scores each input with the outputs; CBOW scores the mean of the inputs. Outputs before
    number ``last_output`` of the batch may be prefetched.
    """
    inputs, outputs = sides.inputs.occurrences, sides.outputs.occurrences
    of_inputs, of_outputs = sides.inputs.table.weights, sides.outputs.table.weights
    hidden, scores, k = scratch.hidden, scratch.scores, scratch.scores.shape[1]
    at, first = scratch.first_inputs[r], scratch.numbers[r] * k
    row = rank * (scratch.targets.shape[0] // k)  # of this thread
    n_inputs = scratch.first_inputs[r + 1] - at
    n = 1 if cbow else n_inputs
    _clear(hidden, row, n)
    for c in range(n_inputs):
        vector = of_inputs[np.uint64(inputs.tokens[at + c])]
        add_multiple(inputs.multiples[at + c], vector, hidden[row + (0 if cbow else c)])
    listed = Listed(outputs.tokens, first, 1, k, last_output)
    for c in range(n):
        score_rows(listed, of_outputs, hidden, row + c, scores, row + c)
    loss = _differentiate(rank, n, listed, scale, scratch)
    at = scratch.numbers[r] if cbow else at
    _clear(scratch.by_inputs, at, n)
    for c in range(n):
        add_rows(listed, of_outputs, scores, row + c, scratch.by_inputs, at + c)
    if cbow:
        # All outputs move along the mean.
        for f in range(hidden.shape[1]):
            scratch.by_outputs[at, f] = hidden[row, f]
        for j in range(k):
            outputs.multiples[first + j] = scores[row, j]
        return loss
    _clear(scratch.by_outputs, first, k)
    for j in range(k):
        for c in range(n):
            add_multiple(scores[row + c, j], hidden[row + c], scratch.by_outputs[first + j])
    return loss


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
        if rank == 0:
            _number_positions(n, scratch)
        synchronize(member)
        n_inputs, n_positions = scratch.first_inputs[n], scratch.numbers[n]
        n_outputs = n_positions * sampling.n_outputs
        n_samples = n_positions if sampling.cbow else n_inputs
        mean = 1.0 / max(n_samples, 1)
        for r in range(begin, end):
            if scratch.begins[r] < scratch.ends[r]:
                _list_position(r, first + r, text, sampling, sides, scratch)
        if now.rule.catch_up != CATCH_UP_NONE:
            catch_up_batch(member, n_inputs, inputs, n_outputs, outputs, now)
        last_output = scratch.numbers[end] * sampling.n_outputs
        scale = np.float32(mean if now.rule.average else 1.0)
        for r in range(begin, end):
            scratch.losses[r] = 0.0
            # The last token of a window is new, the others were in the one before.
            newest = text.tokens[scratch.ends[min(r + _POSITIONS_AHEAD, end - 1)] - 1]
            prefetch_row(inputs.table.weights, np.uint64(max(newest, 0)))
            if scratch.begins[r] < scratch.ends[r]:
                scratch.losses[r] = _learn_position(
                    rank, r, last_output, sampling.cbow, scale, sides, scratch
                )
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
            first_inputs=aligned_zeros(n + 1, np.int64),
            numbers=aligned_zeros(n + 1, np.int64),
            losses=aligned_zeros(n, np.float64),
            by_inputs=aligned_zeros((n if problem.cbow else n * most, problem.width)),
            by_outputs=aligned_zeros((n if problem.cbow else n * k, problem.width)),
            hidden=aligned_zeros((size * rows, problem.width)),
            scores=scores,
            flat=scores.reshape(-1),
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
        key = key_in_python(problem.seed, epoch)
        loss, n_samples = 0.0, 0
        for begin in range(0, n_batches, self._batches_per_call):
            end = min(begin + self._batches_per_call, n_batches)
            text = Text(tokens, begin, end, key)
            sides = WordSides(inputs, outputs, self.step(begin))
            of_call = self.team.run(word2vec_train, text, sampling, sides, self._scratch)
            loss, n_samples = loss + of_call[0], n_samples + of_call[1]
        return loss, n_samples
