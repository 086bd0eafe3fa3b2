"""Regularised least squares of many rows, each with its own observed entries.

The rows of alternating least squares: all share the Gram matrix of the fixed vectors, to which each
row's few observed entries are added. Rows are solved in tiles whose shapes depend neither on the
number of threads nor on which thread solves them.
"""

import math
from typing import NamedTuple

import numpy as np

from freqfm._jit import ONE, ZERO, inlined, kernel
from freqfm._memory import aligned_zeros
from freqfm._threads import single_threaded_blas
from freqfm.backends.cpu.blas import add_product, add_product_of_transposed
from freqfm.backends.cpu.team import Team, wait

# Rows that conjugate gradients solve together: their products with the Gram matrix are one call of
# BLAS.
_TILE = 32

# Rows of the fixed vectors in one product, and how many sums of such products are kept. The sums
# are added in order, whatever the number of threads.
_CHUNK, _N_SUMS = 512, 8

# Multiplications below which starting threads costs more than it saves, and about how many of them
# are made in a call of a kernel: signals can only arrive between calls.
_WORTH_A_TEAM, _PER_CALL = 1_000_000, 1_000_000_000

# A row whose residual has this squared length is solved; smaller ones would leave float32.
_SOLVED = np.float32(1e-30)

# Padding between the scratch of two threads, in floats, so that they share no cache line.
_PADDING = 32


class Systems(NamedTuple):
    """Row r minimises sum_p a_p (1 - x h_p)^2 + x gram x + penalties[r] |x|^2."""

    gram: np.ndarray  #: (d, d), float32, of all fixed vectors, times the unobserved weight
    factors: np.ndarray  #: (n, d), float32, the fixed vectors
    penalties: np.ndarray  #: (n_rows,), float32
    n_steps: int  #: of conjugate gradients; 0 for the exact solution
    starts: np.ndarray  #: (n_rows + 1,), where the entries of a row begin, int64
    items: np.ndarray  #: rows of ``factors``, int32
    weights: np.ndarray  #: of the entries, float32


class Iterates(NamedTuple):
    """Working memory of conjugate gradients, float32; the first axis is the thread."""

    residuals: np.ndarray  #: (size, _TILE, d)
    directions: np.ndarray  #: (size, _TILE, d)
    products: np.ndarray  #: (size, _TILE, d), of directions and matrices
    squares: np.ndarray  #: (size, _TILE + _PADDING), squared lengths of residuals


class Factorisation(NamedTuple):
    """Working memory of the exact solver, float64; the first axis is the thread."""

    matrices: np.ndarray  #: (size, d, d), lower triangles
    vectors: np.ndarray  #: (size, d + _PADDING)


@kernel
def gram_matrix(rank, size, barrier, factors, scale, sums, out):
    """Write scale times factors^T factors to ``out``; ``sums`` (_N_SUMS, d, d) are zeros."""
    n = factors.shape[0]
    n_sums = sums.shape[0]
    for part in range(rank, n_sums, size):
        begin = part * _CHUNK
        while begin < n:
            rows = factors[begin : min(begin + _CHUNK, n)]
            add_product_of_transposed(rows, rows, sums[part], ONE)
            begin += n_sums * _CHUNK
    wait(barrier, size)
    for i in range(rank, out.shape[0], size):
        for j in range(out.shape[1]):
            total = ZERO
            for part in range(n_sums):
                total += sums[part, i, j]
            out[i, j] = scale * total


@inlined
def _add_observed(begin, end, systems, x, out):
    """Add sum_p a_p (x h_p) h_p over the entries of a row to ``out``; four entries at a time."""
    factors = systems.factors
    width = x.shape[0]
    p = begin
    while p + 4 <= end:
        i = np.uint64(systems.items[p])
        j = np.uint64(systems.items[p + 1])
        k = np.uint64(systems.items[p + 2])
        m = np.uint64(systems.items[p + 3])
        by_i, by_j, by_k, by_m = ZERO, ZERO, ZERO, ZERO
        for f in range(width):
            by_i += x[f] * factors[i, f]
            by_j += x[f] * factors[j, f]
            by_k += x[f] * factors[k, f]
            by_m += x[f] * factors[m, f]
        by_i *= systems.weights[p]
        by_j *= systems.weights[p + 1]
        by_k *= systems.weights[p + 2]
        by_m *= systems.weights[p + 3]
        for f in range(width):
            out[f] += (by_i * factors[i, f] + by_j * factors[j, f]) + (
                by_k * factors[k, f] + by_m * factors[m, f]
            )
        p += 4
    while p < end:
        i = np.uint64(systems.items[p])
        by_i = ZERO
        for f in range(width):
            by_i += x[f] * factors[i, f]
        by_i *= systems.weights[p]
        for f in range(width):
            out[f] += by_i * factors[i, f]
        p += 1


@inlined
def _start_row(begin, end, systems, x, residual):
    """Add sum_p a_p (1 - x h_p) h_p to ``residual``; return sum_p a_p (1 - x h_p)^2."""
    factors = systems.factors
    width = x.shape[0]
    total = 0.0
    for p in range(begin, end):
        i = np.uint64(systems.items[p])
        score = ZERO
        for f in range(width):
            score += x[f] * factors[i, f]
        pull = systems.weights[p] * (ONE - score)
        total += np.float64(pull) * np.float64(ONE - score)
        for f in range(width):
            residual[f] += pull * factors[i, f]
    return total


@inlined
def _dot(one, other):
    total = ZERO
    for f in range(one.shape[0]):
        total += one[f] * other[f]
    return total


@inlined
def _start_tile(first, systems, tile, losses, rows):
    """Compute losses, residuals and first directions of the rows from ``first`` on."""
    residuals, directions, products, squares = tile
    n, width = rows.shape
    for r in range(n):
        # The solution of a row without entries.
        if systems.starts[first + r] == systems.starts[first + r + 1]:
            rows[r] = ZERO
    add_product(rows, systems.gram, products[:n], ZERO)
    for r in range(n):
        x = rows[r]
        residual = residuals[r]
        penalty = systems.penalties[first + r]
        loss = 0.0
        for f in range(width):
            product = products[r, f] + penalty * x[f]
            loss += np.float64(product) * np.float64(x[f])
            residual[f] = -product
        begin, end = systems.starts[first + r], systems.starts[first + r + 1]
        losses[first + r] = loss + _start_row(begin, end, systems, x, residual)
        for f in range(width):
            directions[r, f] = residual[f]
        squares[r] = _dot(residual, residual)


@inlined
def _step_tile(first, systems, tile, losses, rows):
    """Make one step of conjugate gradients with the rows from ``first`` on."""
    residuals, directions, products, squares = tile
    n, width = rows.shape
    add_product(directions[:n], systems.gram, products[:n], ZERO)
    for r in range(n):
        direction = directions[r]
        product = products[r]
        residual = residuals[r]
        x = rows[r]
        penalty = systems.penalties[first + r]
        for f in range(width):
            product[f] += penalty * direction[f]
        begin, end = systems.starts[first + r], systems.starts[first + r + 1]
        _add_observed(begin, end, systems, direction, product)
        curvature = _dot(direction, product)
        if squares[r] <= _SOLVED or curvature <= ZERO:
            continue
        length = squares[r] / curvature
        losses[first + r] -= np.float64(length) * np.float64(squares[r])
        for f in range(width):
            x[f] += length * direction[f]
            residual[f] -= length * product[f]
        square = _dot(residual, residual)
        share = square / squares[r]
        for f in range(width):
            direction[f] = residual[f] + share * direction[f]
        squares[r] = square


@kernel
def conjugate_gradients(rank, size, barrier, span, systems, scratch, rows, losses):
    """Make some steps from the current rows of a span; write their losses afterwards."""
    begin, end = span
    tile = (
        scratch.residuals[rank],
        scratch.directions[rank],
        scratch.products[rank],
        scratch.squares[rank],
    )
    for first in range(begin + rank * _TILE, end, size * _TILE):
        part = rows[first : min(first + _TILE, end)]
        _start_tile(first, systems, tile, losses, part)
        for _ in range(systems.n_steps):
            _step_tile(first, systems, tile, losses, part)


@inlined
def _add_outer_products(begin, end, systems, matrix, vector):
    """Add sum_p a_p h_p h_p^T to a lower triangle, sum_p a_p h_p to a vector; return sum_p a_p."""
    factors = systems.factors
    total = 0.0
    for p in range(begin, end, 4):
        # Four entries at a time; beyond the last one, entries weigh nothing.
        i, a = _entry(systems, p, end)
        j, b = _entry(systems, p + 1, end)
        k, c = _entry(systems, p + 2, end)
        m, d = _entry(systems, p + 3, end)
        total += (a + b) + (c + d)
        for f in range(vector.shape[0]):
            w, x = a * np.float64(factors[i, f]), b * np.float64(factors[j, f])
            y, z = c * np.float64(factors[k, f]), d * np.float64(factors[m, f])
            vector[f] += (w + x) + (y + z)
            row = matrix[f]
            for g in range(f + 1):
                row[g] += (w * np.float64(factors[i, g]) + x * np.float64(factors[j, g])) + (
                    y * np.float64(factors[k, g]) + z * np.float64(factors[m, g])
                )
    return total


@inlined
def _entry(systems, p, end):
    """Return the fixed vector of an entry and its weight; the last one and 0 from ``end`` on."""
    at = min(p, end - 1)
    weight = np.float64(systems.weights[at]) if p < end else 0.0
    return np.uint64(systems.items[at]), weight


@inlined
def _factorise(matrix, width):
    """Replace a lower triangle A by L with L L^T = A."""
    for i in range(width):
        row = matrix[i]
        for j in range(i):
            other = matrix[j]
            total = row[j]
            for k in range(j):
                total -= row[k] * other[k]
            row[j] = total / other[j]
        pivot = row[i]
        for k in range(i):
            pivot -= row[k] * row[k]
        # A direction that only rounding tells from zero gets no weight.
        row[i] = math.sqrt(pivot) if pivot > 0.0 else math.inf


@inlined
def _substitute(matrix, vector):
    """Replace b by the solution of L L^T x = b; return the squared length of L^-1 b."""
    width = vector.shape[0]
    square = 0.0
    for i in range(width):
        row = matrix[i]
        total = vector[i]
        for k in range(i):
            total -= row[k] * vector[k]
        vector[i] = total / row[i]
        square += vector[i] * vector[i]
    for i in range(width - 1, -1, -1):
        row = matrix[i]
        vector[i] /= row[i]
        for k in range(i):
            vector[k] -= row[k] * vector[i]
    return square


@kernel
def solve_exactly(rank, size, barrier, span, systems, scratch, rows, losses):
    """Write the solutions of a span of rows, and their losses."""
    begin, end = span
    width = rows.shape[1]
    matrix = scratch.matrices[rank]
    vector = scratch.vectors[rank, :width]
    for r in range(begin + rank, end, size):
        for f in range(width):
            vector[f] = 0.0
            for g in range(f + 1):
                matrix[f, g] = np.float64(systems.gram[f, g])
            matrix[f, f] += np.float64(systems.penalties[r])
        total = 0.0
        if systems.starts[r] < systems.starts[r + 1]:
            total = _add_outer_products(
                systems.starts[r], systems.starts[r + 1], systems, matrix, vector
            )
            _factorise(matrix, width)
            total -= _substitute(matrix, vector)
        losses[r] = total
        for f in range(width):
            rows[r, f] = np.float32(vector[f])


def least_squares(problem, histories, rows, n_threads):
    """Minimise the squared errors of rows, see ``Backend.least_squares``."""
    n, width = rows.shape
    losses = np.zeros(n)
    work = 2 * len(histories.items) * width * (width if problem.n_steps == 0 else 4)
    n_threads = n_threads if work >= _WORTH_A_TEAM else 1
    sums, gram = aligned_zeros((_N_SUMS, width, width)), aligned_zeros((width, width))
    systems = Systems(gram, problem.factors, problem.penalties, int(problem.n_steps), *histories)
    solver = conjugate_gradients if problem.n_steps else solve_exactly
    if problem.n_steps:
        tile = (n_threads, _TILE, width)
        scratch = Iterates(
            *(aligned_zeros(tile) for _ in range(3)),
            aligned_zeros((n_threads, _TILE + _PADDING)),
        )
    else:
        matrices = aligned_zeros((n_threads, width, width), np.float64)
        vectors = aligned_zeros((n_threads, width + _PADDING), np.float64)
        scratch = Factorisation(matrices, vectors)
    n_calls = 1 + work // _PER_CALL
    tiles_per_call = -(-n // (_TILE * n_calls))
    step = max(1, tiles_per_call) * _TILE
    with single_threaded_blas(), Team(n_threads) as team:
        scale = np.float32(problem.unobserved_weight)
        team.run(gram_matrix, problem.factors, scale, sums, gram)
        for begin in range(0, n, step):
            span = begin, min(begin + step, n)
            team.run(solver, span, systems, scratch, rows, losses)
    return losses
