"""Regularised least squares of many rows, each with its own observed entries.

The rows of alternating least squares: all share the Gram matrix of the fixed vectors, to which each
row's few observed entries are added. Rows are solved in tiles whose shapes depend neither on the
number of threads nor on which thread solves them.
"""

import math
from typing import NamedTuple

import numpy as np

from freqfm._machine import aligned_zeros, single_threaded_blas
from freqfm._numba.blas import add_product, add_product_of_transposed
from freqfm._numba.jit import ONE, ZERO, inlined, kernel
from freqfm.backends.base import SOLVED_TOGETHER
from freqfm.backends.cpu.team import Team, wait
from freqfm.backends.cpu.vectors import add_multiple

# Rows that conjugate gradients solve together: their products with the Gram matrix are one call of
# BLAS.
_TILE = SOLVED_TOGETHER

# Rows that a thread solves exactly at a time: their losses are a cache line.
_LINE = 8

# Rows of the fixed vectors in one product, and how many sums of such products are kept. The sums
# are added in order, whatever the number of threads.
_CHUNK, _N_SUMS = 512, 8

# Entries of a row whose vectors the exact solver multiplies at once.
_GATHERED = 128

# Multiplications below which starting threads costs more than it saves, and about how many of them
# are made in a call of a kernel: signals can only arrive between calls.
_WORTH_SEVERAL_THREADS, _PER_CALL = 1_000_000, 1_000_000_000

# A row whose residual has this squared length is solved; smaller ones would leave float32.
_SOLVED = np.float32(1e-30)

# Padding between the scratch of two threads, in floats, so that they share no cache line.
_PADDING = 32


class Systems(NamedTuple):
    """Row r minimises sum_p |a_p| ([a_p > 0] - x h_p)^2 + x gram x + penalties[r] |x|^2."""

    gram: np.ndarray  #: (d, d), float32, of all fixed vectors, times the unobserved weight
    factors: np.ndarray  #: (n, d), float32, the fixed vectors
    penalties: np.ndarray  #: (n_rows,), float32
    n_steps: int  #: of conjugate gradients; 0 for the exact solution
    starts: np.ndarray  #: (n_rows + 1,), where the entries of a row begin, int64
    items: np.ndarray  #: rows of ``factors``, int32
    weights: np.ndarray  #: of the entries, float32; negative for those whose target is 0


class Iterates(NamedTuple):
    """Working memory of conjugate gradients, float32; the first axis is the thread."""

    residuals: np.ndarray  #: (size, _TILE, d)
    directions: np.ndarray  #: (size, _TILE, d)
    products: np.ndarray  #: (size, _TILE, d), of directions and matrices
    squares: np.ndarray  #: (size, _TILE + _PADDING), squared lengths of residuals


class Factorisation(NamedTuple):
    """Working memory of the exact solver; the first axis is the thread."""

    matrices: np.ndarray  #: (size, n, n + 1 or more), float64, n being d rounded up to fours
    vectors: np.ndarray  #: (size, n + _PADDING), float64
    gathered: np.ndarray  #: (size, 2, _GATHERED, d), float32, of some entries, then weighted
    sums: np.ndarray  #: (size, d, d), float32, of their products


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
    """Add sum_p |a_p| (x h_p) h_p over the entries of a row to ``out``; four entries at a time."""
    factors, items, weights = systems.factors, systems.items, systems.weights
    rest = end - (end - begin) % 4
    for p in range(begin, rest, 4):
        h, i = np.uint64(items[p]), np.uint64(items[p + 1])
        j, k = np.uint64(items[p + 2]), np.uint64(items[p + 3])
        by_h, by_i, by_j, by_k = ZERO, ZERO, ZERO, ZERO
        for f in range(x.shape[0]):
            by_h += x[f] * factors[h, f]
            by_i += x[f] * factors[i, f]
            by_j += x[f] * factors[j, f]
            by_k += x[f] * factors[k, f]
        by_h, by_i = by_h * abs(weights[p]), by_i * abs(weights[p + 1])
        by_j, by_k = by_j * abs(weights[p + 2]), by_k * abs(weights[p + 3])
        for f in range(x.shape[0]):
            first = by_h * factors[h, f] + by_i * factors[i, f]
            out[f] += first + (by_j * factors[j, f] + by_k * factors[k, f])
    for p in range(rest, end):
        k = np.uint64(systems.items[p])
        score = ZERO
        for f in range(x.shape[0]):
            score += x[f] * factors[k, f]
        add_multiple(abs(systems.weights[p]) * score, factors[k], out)


@inlined
def _start_row(begin, end, systems, x, residual):
    """Add sum_p |a_p| (t_p - x h_p) h_p to ``residual``; return sum_p |a_p| (t_p - x h_p)^2."""
    factors = systems.factors
    width = x.shape[0]
    total = 0.0
    for p in range(begin, end):
        i = np.uint64(systems.items[p])
        score = ZERO
        for f in range(width):
            score += x[f] * factors[i, f]
        target = ONE if systems.weights[p] > ZERO else ZERO
        pull = abs(systems.weights[p]) * (target - score)
        total += np.float64(pull) * np.float64(target - score)
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
def _start_system(r, systems, matrix, vector):
    """Write the system of a row without entries: a matrix, and zeros as the right-hand side."""
    n, width = matrix.shape[0], systems.gram.shape[0]
    penalty = np.float64(systems.penalties[r])
    for f in range(width):
        # Below the diagonal only blocks of four around it are read.
        for g in range(f - f % 8, width):
            matrix[f, g] = np.float64(systems.gram[f, g])
        matrix[f, f] += penalty
    # Rows and columns of padding are those of the identity.
    for f in range(width, n):
        for g in range(n):
            matrix[f, g] = matrix[g, f] = 0.0
        matrix[f, f] = 1.0
    for f in range(n):
        vector[f] = 0.0


@inlined
def _add_entries(begin, end, systems, gathered, sums, matrix, vector):
    """Add the entries of a row to its system; return the sum of the positive weights.

    The right-hand side is copied to the last column of ``matrix``.

    Products of a few entries are summed in float32 by BLAS, and these sums in float64.
    """
    n, width = matrix.shape[0], systems.gram.shape[0]
    total = 0.0
    for first in range(begin, end, gathered.shape[1]):
        last = min(first + gathered.shape[1], end)
        vectors, weighted = gathered[0, : last - first], gathered[1, : last - first]
        for p in range(first, last):
            i = np.uint64(systems.items[p])
            weight = systems.weights[p]
            total += np.float64(max(weight, ZERO))
            for f in range(width):
                vectors[p - first, f] = systems.factors[i, f]
                weighted[p - first, f] = abs(weight) * systems.factors[i, f]
                if weight > ZERO:
                    vector[f] += np.float64(weighted[p - first, f])
        add_product_of_transposed(vectors, weighted, sums, ZERO)
        for f in range(width):
            for g in range(f - f % 8, width):
                matrix[f, g] += np.float64(sums[f, g])
    for f in range(n):
        matrix[f, n] = vector[f]
    return total


@inlined
def _root(pivot):
    # A direction that is zero up to rounding gets no weight.
    return math.sqrt(pivot) if pivot > 0.0 else math.inf


@inlined
def _factorise_four(k, matrix):
    """Turn four rows of A, from which the rows above are eliminated, into rows of U."""
    a, b, c, d = matrix[k], matrix[k + 1], matrix[k + 2], matrix[k + 3]
    p = _root(a[k])
    ab, ac, ad = a[k + 1] / p, a[k + 2] / p, a[k + 3] / p
    q = _root(b[k + 1] - ab * ab)
    bc, bd = (b[k + 2] - ab * ac) / q, (b[k + 3] - ab * ad) / q
    r = _root(c[k + 2] - ac * ac - bc * bc)
    cd = (c[k + 3] - ac * ad - bc * bd) / r
    s = _root(d[k + 3] - ad * ad - bd * bd - cd * cd)
    a[k], a[k + 1], a[k + 2], a[k + 3] = p, ab, ac, ad
    b[k + 1], b[k + 2], b[k + 3] = q, bc, bd
    c[k + 2], c[k + 3] = r, cd
    d[k + 3] = s
    p, q, r, s = 1.0 / p, 1.0 / q, 1.0 / r, 1.0 / s
    for f in range(k + 4, matrix.shape[1]):
        w = a[f] * p
        x = (b[f] - ab * w) * q
        y = (c[f] - ac * w - bc * x) * r
        a[f], b[f], c[f] = w, x, y
        d[f] = (d[f] - ad * w - bd * x - cd * y) * s


@inlined
def _eliminate_four(k, i, matrix):
    """Eliminate four rows of U, from ``k`` on, from the four rows from ``i`` on."""
    a, b, c, d = matrix[k], matrix[k + 1], matrix[k + 2], matrix[k + 3]
    one, two, three, four = matrix[i], matrix[i + 1], matrix[i + 2], matrix[i + 3]
    a1, a2, a3, a4 = a[i], a[i + 1], a[i + 2], a[i + 3]
    b1, b2, b3, b4 = b[i], b[i + 1], b[i + 2], b[i + 3]
    c1, c2, c3, c4 = c[i], c[i + 1], c[i + 2], c[i + 3]
    d1, d2, d3, d4 = d[i], d[i + 1], d[i + 2], d[i + 3]
    for f in range(i, matrix.shape[1]):
        w, x, y, z = a[f], b[f], c[f], d[f]
        one[f] -= (a1 * w + b1 * x) + (c1 * y + d1 * z)
        two[f] -= (a2 * w + b2 * x) + (c2 * y + d2 * z)
        three[f] -= (a3 * w + b3 * x) + (c3 * y + d3 * z)
        four[f] -= (a4 * w + b4 * x) + (c4 * y + d4 * z)


@inlined
def _solve_system(matrix, vector):
    """Solve A x = b by A = U^T U, for A and, as its last column, b; return |U^-T b|^2.

    The upper triangle is replaced by U, the last column by U^-T b.
    """
    n = matrix.shape[0]
    for k in range(0, n, 4):
        _factorise_four(k, matrix)
        for i in range(k + 4, n, 4):
            _eliminate_four(k, i, matrix)
    square = 0.0
    for i in range(n - 1, -1, -1):
        row = matrix[i]
        total = row[n]
        square += total * total
        for f in range(i + 1, n):
            total -= row[f] * vector[f]
        vector[i] = total / row[i]
    return square


@kernel
def solve_exactly(rank, size, barrier, span, systems, scratch, rows, losses):
    """Write the solutions of a span of rows, and their losses, which are zeros before."""
    begin, end = span
    n = scratch.matrices.shape[1]
    matrix, vector = scratch.matrices[rank, :, : n + 1], scratch.vectors[rank, :n]
    gathered, sums = scratch.gathered[rank], scratch.sums[rank]
    for part in range(begin + rank * _LINE, end, size * _LINE):
        for r in range(part, min(part + _LINE, end)):
            first, last = systems.starts[r], systems.starts[r + 1]
            for f in range(rows.shape[1]):
                rows[r, f] = ZERO
            if first < last:
                _start_system(r, systems, matrix, vector)
                total = _add_entries(first, last, systems, gathered, sums, matrix, vector)
                losses[r] = total - _solve_system(matrix, vector)
                for f in range(rows.shape[1]):
                    rows[r, f] = np.float32(vector[f])


def _exact_scratch(n_threads, width):
    """Return the working memory of the exact solver."""
    padded = -(-width // 4) * 4
    return Factorisation(
        # Rows begin with a cache line.
        matrices=aligned_zeros((n_threads, padded, -(-(padded + 1) // 8) * 8), np.float64),
        vectors=aligned_zeros((n_threads, padded + _PADDING), np.float64),
        gathered=aligned_zeros((n_threads, 2, _GATHERED, width)),
        sums=aligned_zeros((n_threads, width, width)),
    )


def least_squares(problem, histories, rows, n_threads):
    """Minimise the squared errors of rows, see ``Backend.least_squares``."""
    n, width = rows.shape
    losses = np.zeros(n)
    work = 2 * len(histories.items) * width * (width if problem.n_steps == 0 else 4)
    n_threads = n_threads if work >= _WORTH_SEVERAL_THREADS else 1
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
        scratch = _exact_scratch(n_threads, width)
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
