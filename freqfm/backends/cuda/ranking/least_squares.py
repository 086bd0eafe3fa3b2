"""Alternating least squares by conjugate gradients on a GPU: a group of threads solves a row.

For the systems see ``backends.cpu.ranking.least_squares``. A lane takes some entries of a row, and
then some columns of the sum over all entries.
"""

from typing import NamedTuple

import numpy as np

from freqfm._numba.jit import ONE, ZERO, inlined
from freqfm.backends.base import Histories
from freqfm.backends.cuda.groups import group_sum, synchronize_group
from freqfm.backends.cuda.memory import DeviceTrainer, lanes_for, sum_of
from freqfm.backends.cuda.products import most_parts, parts_of, product_in_parts, sum_of_parts
from freqfm.backends.cuda.ranking.batches import on_device
from freqfm.backends.cuda.tables import dot

# Most threads that solve rows at the same time, and how many rows of a batch a group solves. All
# groups wait for each other after a batch, and rows are of all lengths; so batches are long.
_THREADS, _ROWS = 1 << 17, 64

# A row whose residual has this squared length is solved; smaller ones would leave float32.
_SOLVED = np.float32(1e-30)

_LOSS, _PENALTY = range(2)


class Tables(NamedTuple):
    """The rows of both tables."""

    first: np.ndarray
    second: np.ndarray


class Systems(NamedTuple):
    """The arguments of solving a table; b is a batch of rows. All but indices are float32."""

    problem: NamedTuple  #: LeastSquaresProblem
    histories: Histories
    rows: np.ndarray  #: (n, d), updated in place
    #: (n_parts, d, d), sums of some products of factors; the first becomes the Gram matrix, times
    #: the unobserved weight.
    parts: np.ndarray
    pulls: np.ndarray  #: (n_entries or more,), the multiple of a factor that an entry adds
    scratch: np.ndarray  #: (3, n_groups, d), residuals, directions, and products of these
    results: np.ndarray  #: (2, n), the loss of each row, and its penalty


@inlined
def multiply_factors(group, b, args):
    """Sum the products of columns of the factors, in parts."""
    factors, shape = args.problem.factors, args.parts.shape[1:]
    product_in_parts(group, factors, factors, factors.shape[0], shape, args.parts, False)


@inlined
def add_parts(group, b, args):
    """Write the Gram matrix of the factors."""
    width, parts = args.rows.shape[1], args.parts
    n_parts, _ = parts_of(args.problem.factors.shape[0], parts)
    for i in range(group.rank, width, group.size):
        for f in range(group.lane, width, group.n_lanes):
            parts[0, i, f] = args.problem.unobserved_weight * sum_of_parts(parts, n_parts, i, f)


@inlined
def _evaluate(group, r, args, vectors, k, target, out):
    """Return the loss of row ``r`` at vector ``k``, and write half its negative gradient.

    With a target of zero in place of one, these are x A x and -A x, for the matrix A of the row.
    """
    (factors, _, penalties, _), (starts, items, weights) = args.problem, args.histories
    gram, loss, width = args.parts[0], ZERO, factors.shape[1]
    for p in range(starts[r] + group.lane, starts[r + 1], group.n_lanes):
        error = target if weights[p] > ZERO else ZERO
        for f in range(width):
            error -= vectors[k, f] * factors[items[p], f]
        args.pulls[p] = abs(weights[p]) * error
        loss += args.pulls[p] * error
    synchronize_group(group)
    for f in range(group.lane, width, group.n_lanes):
        pull = -penalties[r] * vectors[k, f]
        for g in range(width):
            pull -= vectors[k, g] * gram[g, f]
        loss -= pull * vectors[k, f]
        for p in range(starts[r], starts[r + 1]):
            pull += args.pulls[p] * factors[items[p], f]
        out[group.rank, f] = pull
    # The other lanes have read the vector, and the pulls, when any goes on to write.
    synchronize_group(group)
    return group_sum(group, loss)


@inlined
def _solve_row(group, r, args):
    """Make some steps of conjugate gradients from row ``r``; return the loss afterwards."""
    k, rows, width, share = group.rank, args.rows, args.rows.shape[1], ZERO
    residuals, directions, products = args.scratch[0], args.scratch[1], args.scratch[2]
    loss = _evaluate(group, r, args, rows, r, ONE, residuals)
    square = dot(group, residuals, k, residuals, k, width)
    for _ in range(args.problem.n_steps):
        for f in range(group.lane, width, group.n_lanes):
            last = share * directions[k, f] if share > ZERO else ZERO
            directions[k, f] = residuals[k, f] + last
        synchronize_group(group)
        curvature = _evaluate(group, r, args, directions, k, ZERO, products)
        if square <= _SOLVED or curvature <= ZERO:
            break
        length = square / curvature
        loss -= length * square
        for f in range(group.lane, width, group.n_lanes):
            rows[r, f] += length * directions[k, f]
            residuals[k, f] += length * products[k, f]
        after = dot(group, residuals, k, residuals, k, width)
        share, square = after / square, after
    return loss


@inlined
def solve_rows(group, b, args):
    """Solve a batch of rows; those without entries become zeros."""
    rows, starts, most = args.rows, args.histories.starts, args.scratch.shape[1]
    n_groups, n_of_batch = min(group.size, most), _ROWS * most
    end = min((b + 1) * n_of_batch, rows.shape[0]) if group.rank < n_groups else 0
    for r in range(b * n_of_batch + group.rank, end, n_groups):
        if starts[r] == starts[r + 1]:
            for f in range(group.lane, rows.shape[1], group.n_lanes):
                rows[r, f] = ZERO
            synchronize_group(group)
        loss = _solve_row(group, r, args)
        square = dot(group, rows, r, rows, r, rows.shape[1])
        if group.lane == 0:
            args.results[_LOSS, r] = loss
            args.results[_PENALTY, r] = args.problem.penalties[r] * square


GRAM = (multiply_factors, add_parts)
SOLVE = (solve_rows,)


class CUDALeastSquaresTrainer(DeviceTrainer):
    """Solves both tables on a GPU, see ``LeastSquaresTrainer``; ``sides`` are as there."""

    def __init__(self, device, sides):
        super().__init__(device)
        both = self.add(Tables(*(rows for *_, rows in sides)))
        width, n_entries = both.first.shape[1], len(sides[0][1].items)
        self._n_lanes = lanes_for(width)
        self._n_groups = min(max(map(len, both)), _THREADS // self._n_lanes)
        scratch = (
            device.empty((most_parts(width, width), width, width), np.float32),
            device.empty(n_entries, np.float32),
            device.empty((3, self._n_groups, width), np.float32),
        )
        self._systems = [
            Systems(
                problem._replace(
                    factors=factors,
                    unobserved_weight=np.float32(problem.unobserved_weight),
                    penalties=device.to_device(problem.penalties),
                ),
                on_device(device, *histories),
                rows,
                *scratch,
                device.empty((2, len(rows)), np.float32),
            )
            for (problem, histories, _), factors, rows in zip(sides, both[::-1], both, strict=True)
        ]

    def run_epoch(self):
        """Solve one table, then the other; return the loss, see ``LeastSquaresTrainer``."""
        self.hold()
        for args in self._systems:
            n, width = args.rows.shape
            self.device.run(GRAM, args, 32, max(len(args.problem.factors), width))
            n_batches = -(-n // (_ROWS * self._n_groups))
            self.device.run(SOLVE, args, self._n_lanes, self._n_groups, (0, n_batches))
        self.changed()
        first, second = (args.results for args in self._systems)
        return sum_of(self.device, second[_LOSS]) + sum_of(self.device, first[_PENALTY])
