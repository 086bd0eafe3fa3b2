"""Matrix products in tiles: each lane sums 8 x 4 elements.

All numbers that a lane multiplies next are read before any is used, since reading takes most time.
For a GPU, where a warp makes a tile, ``device`` replaces ``arrangement``, ``readable`` and
``of_row``: the addresses of a lane's elements then differ by constants.
"""

import numpy as np

from freqfm._numba.jit import ONE, ZERO, inlined
from freqfm.backends.cuda.tables import FOUR_ZEROS, read, times

# Rows and columns of a thread, and most threads of a group side by side.
_TALL, _WIDE, _ABREAST = 8, 4, 8

# A sum is made in parts of at least so many terms, at most so many, where a product has too few
# tiles to keep the groups of a GPU busy.
_SHORTEST_PART, _MOST_PARTS, _BUSY = 32, 128, 2048

# So many terms are read at once.
_AT_ONCE, _AT_ONCE_OF_ROWS = 4, 8

_NOTHING = (FOUR_ZEROS,) * 8


@inlined
def arrangement(group):
    """Return how the lanes of a group are arranged: rows and columns of threads."""
    columns = min(group.n_lanes, _ABREAST)
    return group.n_lanes // columns, columns


@inlined
def readable(index, last):
    """Return a readable index of an element of a row, which is used only up to ``last``.

    A GPU's arrays can be read a little beyond their end, and there the index stays as it is.
    """
    return min(index, last)


@inlined
def of_row(group, mine, a, i, start, c, last):
    """Return element ``start + c`` of row ``i``, or zero beyond ``last``.

    On a GPU the lanes side by side have read one each, which is ``mine``.
    """
    return a[i, start + c] if start + c <= last else ZERO


@inlined
def n_tiles(group, n, m):
    """Return how many tiles an n x m product has."""
    rows, columns = arrangement(group)
    tall, wide = _TALL * rows, _WIDE * columns
    return ((n + tall - 1) // tall) * ((m + wide - 1) // wide)


@inlined
def product_of_rows(group, left, first, right, shape, out):
    """Write the products of rows of ``left``, from ``first`` on, and columns of ``right``.

    ``shape`` is the numbers of both.
    """
    span = 0, left.shape[1]
    for t in range(group.rank, n_tiles(group, shape[0], shape[1]), group.size):
        multiply_tile_of_rows(group, t, (left, first), right, span, shape, out)


def most_parts(n, m):
    """Return in how many parts, at most, the sums of an n x m product should be made."""
    # The tiles of a warp, whose threads stand in four rows.
    tiles = -(-n // (4 * _TALL)) * -(-m // (_ABREAST * _WIDE))
    return max(1, min(_MOST_PARTS, _BUSY // tiles))


@inlined
def parts_of(n_terms, parts):
    """Return in how many of ``parts`` a sum of so many terms is made, and the length of a part."""
    most = parts.shape[0]
    length = max(_SHORTEST_PART, (n_terms + most - 1) // most)
    return (n_terms + length - 1) // length, length


@inlined
def span_of_part(n_terms, parts, part):
    """Return the first term of a part, and the one after its last."""
    _, length = parts_of(n_terms, parts)
    return part * length, min((part + 1) * length, n_terms)


@inlined
def product_in_parts(group, left, right, n_terms, shape, parts, of_rows):
    """Write the parts of the products of rows of ``left`` and columns of ``right``.

    Parameters
    ----------
    left : ndarray of shape (n or more, n_terms or more)
        Or, unless ``of_rows``, its transpose: its columns are multiplied.
    right : ndarray of shape (n_terms or more, m or more)
    n_terms : int
    shape : tuple of int
        n and m.
    parts : ndarray of shape (most parts, n or more, m or more)
    of_rows : bool
    """
    n_parts, _ = parts_of(n_terms, parts)
    tiles = n_tiles(group, shape[0], shape[1])
    for task in range(group.rank, tiles * n_parts, group.size):
        t, part = task % tiles, task // tiles
        span = span_of_part(n_terms, parts, part)
        if of_rows:
            multiply_tile_of_rows(group, t, (left, 0), right, span, shape, parts[part])
        else:
            multiply_tile(group, t, left, right, span, shape, parts[part])


@inlined
def _part_or_zero(parts, part, n, i, f):
    value = parts[min(part, n - 1), i, f]
    return value if part < n else ZERO


@inlined
def sum_of_parts(parts, n, i, f):
    """Return element (i, f) of the sum of the first ``n`` parts."""
    total = ZERO
    # Four at a time, so that they are read in parallel.
    for part in range(0, n, 4):
        a, b = _part_or_zero(parts, part, n, i, f), _part_or_zero(parts, part + 1, n, i, f)
        c, d = _part_or_zero(parts, part + 2, n, i, f), _part_or_zero(parts, part + 3, n, i, f)
        total += (a + b) + (c + d)
    return total


@inlined
def _place(index, last, in_row):
    """Return a place that can be read; an unsigned one needs no check of its sign."""
    return np.uint64(readable(index, last) if in_row else min(index, last))


@inlined
def _four(first, distance, last, in_row):
    """Return four places at a distance: ``in_row`` or, if that is false, rows up to the last."""
    return (
        _place(first, last, in_row),
        _place(first + distance, last, in_row),
        _place(first + 2 * distance, last, in_row),
        _place(first + 3 * distance, last, in_row),
    )


@inlined
def _eight(first, distance, last, in_row):
    """Return eight places at a distance."""
    after = first + 4 * distance
    return _four(first, distance, last, in_row) + _four(after, distance, last, in_row)


@inlined
def _read_eight(a, k, p):
    return read(a, k, p[:4]) + read(a, k, p[4:])


@inlined
def _add(sums, x, y):
    return sums[0] + x * y[0], sums[1] + x * y[1], sums[2] + x * y[2], sums[3] + x * y[3]


@inlined
def _add_products(sums, x, y):
    """Return the sums of 8 x 4 products, with those of ``x`` and ``y`` added."""
    return (
        _add(sums[0], x[0], y), _add(sums[1], x[1], y),
        _add(sums[2], x[2], y), _add(sums[3], x[3], y),
        _add(sums[4], x[4], y), _add(sums[5], x[5], y),
        _add(sums[6], x[6], y), _add(sums[7], x[7], y),
    )  # fmt: skip


@inlined
def _place_of_tile(group, t, m):
    """Return the first row and column of a lane in tile ``t``, which is one of a row of tiles."""
    rows, columns = arrangement(group)
    tiles = (m + _WIDE * columns - 1) // (_WIDE * columns)
    i = (t // tiles) * _TALL * rows + group.lane // columns
    return i, (t % tiles) * _WIDE * columns + group.lane % columns


@inlined
def _within(k, last):
    """Return the row of a term, and one, or zero if it is beyond the last."""
    return np.uint64(min(k, last)), (ONE if k <= last else ZERO)


@inlined
def _read_term(a, b, k, last, p, q):
    """Return the factors of term ``k``: zeros beyond the last."""
    row, factor = _within(k, last)
    return _read_eight(a, row, p), times(factor, read(b, row, q))


@inlined
def multiply_tile(group, t, a, b, span, shape, out):
    """Write tile ``t`` of the sum over k of a[k, i] b[k, j].

    Parameters
    ----------
    a, b : ndarray
    span : tuple of int
        The first k, and the one after the last.
    shape : tuple of int
        How many i and j there are.
    out : ndarray
    """
    i, j = _place_of_tile(group, t, shape[1])
    rows, columns = arrangement(group)
    # Elements outside of the matrix are computed as well, but not written.
    p, q = _eight(i, rows, shape[0] - 1, True), _four(j, columns, shape[1] - 1, True)
    sums, last = _NOTHING, span[1] - 1
    for k in range(span[0], span[1], _AT_ONCE):
        x0, y0 = _read_term(a, b, k, last, p, q)
        x1, y1 = _read_term(a, b, k + 1, last, p, q)
        x2, y2 = _read_term(a, b, k + 2, last, p, q)
        x3, y3 = _read_term(a, b, k + 3, last, p, q)
        sums = _add_products(_add_products(sums, x0, y0), x1, y1)
        sums = _add_products(_add_products(sums, x2, y2), x3, y3)
    _put_tile(out, (i, j), (rows, columns), shape, sums)


@inlined
def _read_rows(a, p, k, last):
    """Return element ``k`` of eight rows: zeros beyond the last."""
    k, factor = _within(k, last)
    return (
        a[p[0], k] * factor, a[p[1], k] * factor, a[p[2], k] * factor, a[p[3], k] * factor,
        a[p[4], k] * factor, a[p[5], k] * factor, a[p[6], k] * factor, a[p[7], k] * factor,
    )  # fmt: skip


@inlined
def _of_rows(group, mine, a, p, start, c, last):
    return (
        of_row(group, mine[0], a, p[0], start, c, last),
        of_row(group, mine[1], a, p[1], start, c, last),
        of_row(group, mine[2], a, p[2], start, c, last),
        of_row(group, mine[3], a, p[3], start, c, last),
        of_row(group, mine[4], a, p[4], start, c, last),
        of_row(group, mine[5], a, p[5], start, c, last),
        of_row(group, mine[6], a, p[6], start, c, last),
        of_row(group, mine[7], a, p[7], start, c, last),
    )


@inlined
def _read_four_rows(b, start, last, q):
    """Return four rows of four elements; the last row in place of those beyond it."""
    return (
        read(b, np.uint64(min(start, last)), q),
        read(b, np.uint64(min(start + 1, last)), q),
        read(b, np.uint64(min(start + 2, last)), q),
        read(b, np.uint64(min(start + 3, last)), q),
    )


@inlined
def multiply_tile_of_rows(group, t, left, b, span, shape, out):
    """Write tile ``t`` of the sum over k of a[first + i, k] b[k, j]; see ``multiply_tile``.

    ``left`` is a and first.
    """
    (a, first), (i, j) = left, _place_of_tile(group, t, shape[1])
    rows, columns = arrangement(group)
    p = _eight(first + i, rows, first + shape[0] - 1, False)
    q = _four(j, columns, shape[1] - 1, True)
    sums, last, side = _NOTHING, span[1] - 1, group.lane % columns
    for k in range(span[0], span[1], _AT_ONCE_OF_ROWS):
        mine = _read_rows(a, p, k + side, last)
        y, z = _read_four_rows(b, k, last, q), _read_four_rows(b, k + 4, last, q)
        sums = _add_products(sums, _of_rows(group, mine, a, p, k, 0, last), y[0])
        sums = _add_products(sums, _of_rows(group, mine, a, p, k, 1, last), y[1])
        sums = _add_products(sums, _of_rows(group, mine, a, p, k, 2, last), y[2])
        sums = _add_products(sums, _of_rows(group, mine, a, p, k, 3, last), y[3])
        sums = _add_products(sums, _of_rows(group, mine, a, p, k, 4, last), z[0])
        sums = _add_products(sums, _of_rows(group, mine, a, p, k, 5, last), z[1])
        sums = _add_products(sums, _of_rows(group, mine, a, p, k, 6, last), z[2])
        sums = _add_products(sums, _of_rows(group, mine, a, p, k, 7, last), z[3])
    _put_tile(out, (i, j), (rows, columns), shape, sums)


@inlined
def _put_tile(out, place, distances, shape, sums):
    (i, j), (distance, _) = place, distances
    _put_row(out, i, j, distances, shape, sums[0])
    _put_row(out, i + distance, j, distances, shape, sums[1])
    _put_row(out, i + 2 * distance, j, distances, shape, sums[2])
    _put_row(out, i + 3 * distance, j, distances, shape, sums[3])
    _put_row(out, i + 4 * distance, j, distances, shape, sums[4])
    _put_row(out, i + 5 * distance, j, distances, shape, sums[5])
    _put_row(out, i + 6 * distance, j, distances, shape, sums[6])
    _put_row(out, i + 7 * distance, j, distances, shape, sums[7])


@inlined
def _put_row(out, i, j, distances, shape, values):
    if i < shape[0]:
        distance = distances[1]
        _put(out, i, j, shape, values[0])
        _put(out, i, j + distance, shape, values[1])
        _put(out, i, j + 2 * distance, shape, values[2])
        _put(out, i, j + 3 * distance, shape, values[3])


@inlined
def _put(out, i, j, shape, value):
    if j < shape[1]:
        out[np.uint64(i), np.uint64(j)] = value
