"""Matrix products, of matrices whose columns are multiplied: each lane sums 8 x 4 elements.

For a GPU, where a warp makes a tile, ``device`` replaces ``arrangement``, ``readable`` and
``from_lane``: the addresses of a lane's elements then differ by constants.
"""

import numpy as np

from freqfm._jit import ONE, ZERO, inlined

__all__ = [
    "arrangement",
    "from_lane",
    "most_parts",
    "multiply_tile",
    "multiply_tile_of_rows",
    "n_tiles",
    "parts_of",
    "product",
    "product_in_parts",
    "product_of_rows_in_parts",
    "readable",
    "sum_of_parts",
]

# Rows and columns of a thread, and most threads of a group side by side.
_TALL, _WIDE, _ABREAST = 8, 4, 8

# A sum is made in parts of at least so many terms, at most so many, where a product has too few
# tiles to keep the groups of a GPU busy.
_SHORTEST_PART, _MOST_PARTS, _BUSY = 64, 128, 1024

_ONE, _TWO = np.uint64(1), np.uint64(2)

_ZEROS = (ZERO, ZERO, ZERO, ZERO)
_NOTHING = (_ZEROS, _ZEROS, _ZEROS, _ZEROS, _ZEROS, _ZEROS, _ZEROS, _ZEROS)


@inlined
def arrangement(team):
    """Return how the lanes of a group are arranged: rows and columns of threads."""
    columns = min(team.n_lanes, _ABREAST)
    return team.n_lanes // columns, columns


@inlined
def readable(index, last):
    """Return what to read in place of an element of a row where only those to ``last`` count.

    A GPU's arrays can be read a little beyond their end, and there the index stays as it is.
    """
    return min(index, last)


@inlined
def from_lane(team, value, lane):
    """Return the value of another lane of the group."""
    return value


@inlined
def n_tiles(team, n, m):
    """Return how many tiles an n x m product has."""
    rows, columns = arrangement(team)
    tall, wide = _TALL * rows, _WIDE * columns
    return ((n + tall - 1) // tall) * ((m + wide - 1) // wide)


@inlined
def product(team, left, right, shape, out):
    """Write the products of the columns of ``left`` and ``right``; ``shape`` is their numbers."""
    span = 0, left.shape[0]
    for t in range(team.rank, n_tiles(team, shape[0], shape[1]), team.size):
        multiply_tile(team, t, (left, 0), right, span, shape, out, False)


def most_parts(n, m):
    """Return in how many parts, at most, the sums of an n x m product should be made."""
    tiles = -(-n // (4 * _TALL)) * -(-m // (_ABREAST * _WIDE))
    return max(1, min(_MOST_PARTS, _BUSY // tiles))


@inlined
def parts_of(n_terms, parts):
    """Return in how many of ``parts`` a sum of so many terms is made, and the length of a part."""
    most = parts.shape[0]
    length = max(_SHORTEST_PART, (n_terms + most - 1) // most)
    return (n_terms + length - 1) // length, length


@inlined
def _part(n_terms, parts, part):
    """Return the first term of a part, and the one after its last."""
    _, length = parts_of(n_terms, parts)
    return part * length, min((part + 1) * length, n_terms)


@inlined
def product_in_parts(team, left, right, n_terms, shape, parts):
    """Write the parts of the products of columns of ``left`` and ``right``, of ``n_terms`` rows.

    Parameters
    ----------
    left, right : ndarray of shape (n_terms or more, n or more) and (n_terms or more, m or more)
    n_terms : int
    shape : tuple of int
        n and m.
    parts : ndarray of shape (most parts, n or more, m or more)
    """
    n_parts, _ = parts_of(n_terms, parts)
    tiles = n_tiles(team, shape[0], shape[1])
    for t in range(team.rank, tiles * n_parts, team.size):
        part = t // tiles
        span = _part(n_terms, parts, part)
        multiply_tile(team, t % tiles, (left, 0), right, span, shape, parts[part], False)


@inlined
def product_of_rows_in_parts(team, left, right, n_terms, shape, parts):
    """Do what ``product_in_parts`` does with the transpose of ``left``."""
    n_parts, _ = parts_of(n_terms, parts)
    tiles = n_tiles(team, shape[0], shape[1])
    for t in range(team.rank, tiles * n_parts, team.size):
        part = t // tiles
        span = _part(n_terms, parts, part)
        multiply_tile_of_rows(team, t % tiles, left, right, span, shape, parts[part])


@inlined
def _part_or_zero(parts, part, n, i, f):
    value = parts[min(part, n - 1), i, f]
    return value if part < n else ZERO


@inlined
def sum_of_parts(parts, n, i, f):
    """Return element (i, f) of the sum of the first ``n`` parts."""
    total = ZERO
    # Four at a time, so that what one waits for does not delay the others.
    for part in range(0, n, 4):
        a, b = _part_or_zero(parts, part, n, i, f), _part_or_zero(parts, part + 1, n, i, f)
        c, d = _part_or_zero(parts, part + 2, n, i, f), _part_or_zero(parts, part + 3, n, i, f)
        total += (a + b) + (c + d)
    return total


@inlined
def _eight_rows(first, distance, last):
    """Return eight places at a distance, at most ``last``; unsigned ones need no check of sign."""
    return (
        np.uint64(min(first, last)),
        np.uint64(min(first + distance, last)),
        np.uint64(min(first + 2 * distance, last)),
        np.uint64(min(first + 3 * distance, last)),
        np.uint64(min(first + 4 * distance, last)),
        np.uint64(min(first + 5 * distance, last)),
        np.uint64(min(first + 6 * distance, last)),
        np.uint64(min(first + 7 * distance, last)),
    )


@inlined
def _four(first, distance, last):
    """Return four places at a distance in a row."""
    return (
        np.uint64(readable(first, last)),
        np.uint64(readable(first + distance, last)),
        np.uint64(readable(first + 2 * distance, last)),
        np.uint64(readable(first + 3 * distance, last)),
    )


@inlined
def _eight(first, distance, last):
    """Return eight places at a distance in a row."""
    return _four(first, distance, last) + _four(first + 4 * distance, distance, last)


@inlined
def _read_eight(a, k, p):
    return (
        a[k, p[0]], a[k, p[1]], a[k, p[2]], a[k, p[3]],
        a[k, p[4]], a[k, p[5]], a[k, p[6]], a[k, p[7]],
    )  # fmt: skip


@inlined
def _read_four(b, k, q):
    return b[k, q[0]], b[k, q[1]], b[k, q[2]], b[k, q[3]]


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
def _place_of_tile(team, t, m):
    """Return the first row and column of a lane in tile ``t``, which is one of a row of tiles."""
    rows, columns = arrangement(team)
    tiles = (m + _WIDE * columns - 1) // (_WIDE * columns)
    i = (t // tiles) * _TALL * rows + team.lane // columns
    return i, (t % tiles) * _WIDE * columns + team.lane % columns


@inlined
def multiply_tile(team, t, left, b, span, shape, out, add):
    """Write tile ``t`` of the sum over k of a[k, first + i] b[k, j].

    Parameters
    ----------
    left : tuple of (ndarray, int)
        a and first.
    b : ndarray
    span : tuple of int
        The first k, and the one after the last.
    shape : tuple of int
        How many i and j there are.
    out : ndarray
    add : bool
        Whether the sum is added to ``out``.
    """
    (a, first), (n, m) = left, shape
    i, j = _place_of_tile(team, t, m)
    rows, columns = arrangement(team)
    # What is outside is computed as well, and not written.
    p = _eight(first + i, rows, first + n - 1)
    q = _four(j, columns, m - 1)
    k, last = np.uint64(span[0]), np.uint64(span[1] - 1)
    sums, x, y = _NOTHING, _read_eight(a, k, p), _read_four(b, k, q)
    while k < last:
        # What is multiplied next is on its way meanwhile.
        next_x, next_y = _read_eight(a, k + _ONE, p), _read_four(b, k + _ONE, q)
        sums = _add_products(sums, x, y)
        k += _TWO
        x, y = _read_eight(a, min(k, last), p), _read_four(b, min(k, last), q)
        sums = _add_products(sums, next_x, next_y)
    if k == last:
        sums = _add_products(sums, x, y)
    _put_tile(out, (i, j), (rows, columns), shape, sums, add)


@inlined
def _read_rows(a, p, k):
    return (
        a[p[0], k], a[p[1], k], a[p[2], k], a[p[3], k],
        a[p[4], k], a[p[5], k], a[p[6], k], a[p[7], k],
    )  # fmt: skip


@inlined
def _times(x, factor):
    return (
        x[0] * factor, x[1] * factor, x[2] * factor, x[3] * factor,
        x[4] * factor, x[5] * factor, x[6] * factor, x[7] * factor,
    )  # fmt: skip


@inlined
def _from_lane(team, x, lane):
    return (
        from_lane(team, x[0], lane), from_lane(team, x[1], lane),
        from_lane(team, x[2], lane), from_lane(team, x[3], lane),
        from_lane(team, x[4], lane), from_lane(team, x[5], lane),
        from_lane(team, x[6], lane), from_lane(team, x[7], lane),
    )  # fmt: skip


@inlined
def multiply_tile_of_rows(team, t, a, b, span, shape, out):
    """Write tile ``t`` of the sum over k of a[i, k] b[k, j]; see ``multiply_tile``.

    Lanes side by side read a row's elements for each other.
    """
    i, j = _place_of_tile(team, t, shape[1])
    rows, columns = arrangement(team)
    p, q = _eight_rows(i, rows, shape[0] - 1), _four(j, columns, shape[1] - 1)
    sums, last, first_lane = _NOTHING, span[1] - 1, team.lane - team.lane % columns
    y = _read_four(b, np.uint64(span[0]), q)
    for start in range(span[0], span[1], columns):
        k = start + team.lane % columns
        mine = _read_rows(a, p, np.uint64(min(k, last)))
        mine = _times(mine, ONE if k <= last else ZERO)
        for c in range(columns):
            next_y = _read_four(b, np.uint64(min(start + c + 1, last)), q)
            sums = _add_products(sums, _from_lane(team, mine, first_lane + c), y)
            y = next_y
    _put_tile(out, (i, j), (rows, columns), shape, sums, False)


@inlined
def _put_tile(out, place, distances, shape, sums, add):
    (i, j), (distance, _) = place, distances
    _put_row(out, i, j, distances, shape, sums[0], add)
    _put_row(out, i + distance, j, distances, shape, sums[1], add)
    _put_row(out, i + 2 * distance, j, distances, shape, sums[2], add)
    _put_row(out, i + 3 * distance, j, distances, shape, sums[3], add)
    _put_row(out, i + 4 * distance, j, distances, shape, sums[4], add)
    _put_row(out, i + 5 * distance, j, distances, shape, sums[5], add)
    _put_row(out, i + 6 * distance, j, distances, shape, sums[6], add)
    _put_row(out, i + 7 * distance, j, distances, shape, sums[7], add)


@inlined
def _put_row(out, i, j, distances, shape, values, add):
    if i < shape[0]:
        distance = distances[1]
        _put(out, i, j, shape, values[0], add)
        _put(out, i, j + distance, shape, values[1], add)
        _put(out, i, j + 2 * distance, shape, values[2], add)
        _put(out, i, j + 3 * distance, shape, values[3], add)


@inlined
def _put(out, i, j, shape, value, add):
    if j < shape[1]:
        place = np.uint64(i), np.uint64(j)
        out[place] = out[place] + value if add else value
