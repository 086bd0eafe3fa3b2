"""Matrix products, of matrices whose columns are multiplied: each lane sums 4 x 4 elements."""

from freqfm._jit import ZERO, inlined

__all__ = ["multiply_tile", "n_tiles", "product"]

# Rows and columns of a thread, and most threads of a group side by side.
_SIDE, _ABREAST = 4, 8


@inlined
def _lanes(team):
    """Return how the lanes of a group are arranged: rows and columns of threads."""
    columns = min(team.n_lanes, _ABREAST)
    return team.n_lanes // columns, columns


@inlined
def n_tiles(team, n, m):
    """Return how many tiles an n x m product has."""
    rows, columns = _lanes(team)
    tall, wide = _SIDE * rows, _SIDE * columns
    return ((n + tall - 1) // tall) * ((m + wide - 1) // wide)


@inlined
def product(team, left, n_left, right, n_right, out):
    """Write the products of ``n_left`` columns of ``left`` with ``n_right`` of ``right``."""
    span, shape = (0, left.shape[0]), (n_left, n_right)
    for t in range(team.rank, n_tiles(team, n_left, n_right), team.size):
        multiply_tile(team, t, left, right, span, shape, out, False)


@inlined
def _put(out, i, j, shape, value, add):
    if i < shape[0] and j < shape[1]:
        out[i, j] = out[i, j] + value if add else value


@inlined
def multiply_tile(team, t, a, b, span, shape, out, add):
    """Write tile ``t`` of the sum over k of a[k, i] b[k, j].

    Parameters
    ----------
    a, b : ndarray of shape (n_terms, n or more) and (n_terms, m or more)
    span : tuple of int
        The first k, and the one after the last.
    shape : tuple of int
        n and m.
    out : ndarray
    add : bool
        Whether the sum is added to ``out``.
    """
    n, m = shape
    rows, columns = _lanes(team)
    tiles = (m + _SIDE * columns - 1) // (_SIDE * columns)
    i0 = (t // tiles) * _SIDE * rows + team.lane // columns
    j0 = (t % tiles) * _SIDE * columns + team.lane % columns
    i1, i2, i3 = i0 + rows, i0 + 2 * rows, i0 + 3 * rows
    j1, j2, j3 = j0 + columns, j0 + 2 * columns, j0 + 3 * columns
    # What is outside is computed as well, from the last row or column, and not written.
    p0, p1, p2, p3 = min(i0, n - 1), min(i1, n - 1), min(i2, n - 1), min(i3, n - 1)
    q0, q1, q2, q3 = min(j0, m - 1), min(j1, m - 1), min(j2, m - 1), min(j3, m - 1)
    s00 = s01 = s02 = s03 = ZERO
    s10 = s11 = s12 = s13 = ZERO
    s20 = s21 = s22 = s23 = ZERO
    s30 = s31 = s32 = s33 = ZERO
    for k in range(span[0], span[1]):
        a0, a1, a2, a3 = a[k, p0], a[k, p1], a[k, p2], a[k, p3]
        b0, b1, b2, b3 = b[k, q0], b[k, q1], b[k, q2], b[k, q3]
        s00, s01, s02, s03 = s00 + a0 * b0, s01 + a0 * b1, s02 + a0 * b2, s03 + a0 * b3
        s10, s11, s12, s13 = s10 + a1 * b0, s11 + a1 * b1, s12 + a1 * b2, s13 + a1 * b3
        s20, s21, s22, s23 = s20 + a2 * b0, s21 + a2 * b1, s22 + a2 * b2, s23 + a2 * b3
        s30, s31, s32, s33 = s30 + a3 * b0, s31 + a3 * b1, s32 + a3 * b2, s33 + a3 * b3
    _put_row(out, i0, (j0, j1, j2, j3), shape, (s00, s01, s02, s03), add)
    _put_row(out, i1, (j0, j1, j2, j3), shape, (s10, s11, s12, s13), add)
    _put_row(out, i2, (j0, j1, j2, j3), shape, (s20, s21, s22, s23), add)
    _put_row(out, i3, (j0, j1, j2, j3), shape, (s30, s31, s32, s33), add)


@inlined
def _put_row(out, i, columns, shape, values, add):
    _put(out, i, columns[0], shape, values[0], add)
    _put(out, i, columns[1], shape, values[1], add)
    _put(out, i, columns[2], shape, values[2], add)
    _put(out, i, columns[3], shape, values[3], add)
