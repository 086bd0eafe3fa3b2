"""Matrix products, of matrices whose rows are columns: tiles of four rows and four per lane."""

from freqfm._jit import ZERO, inlined

__all__ = ["product"]


@inlined
def product(team, left, n_left, right, n_right, out):
    """Write the products of ``n_left`` columns of ``left`` with ``n_right`` of ``right``.

    A group takes four columns of the left and four for each lane of the right. Groups that are
    neighbours share the columns of the right.
    """
    n_rows, n_columns = (n_left + 3) // 4, (n_right + 4 * team.n_lanes - 1) // (4 * team.n_lanes)
    for tile in range(team.rank, n_rows * n_columns, team.size):
        i = tile % n_rows * 4
        j = tile // n_rows * (4 * team.n_lanes) + team.lane
        _tile(team, left, i, n_left, right, j, n_right, out)


@inlined
def _tile(team, left, i, n_left, right, j, n_right, out):
    # Sums stay in registers only if each has a name.
    a, b, c, d = ZERO, ZERO, ZERO, ZERO
    e, f, g, h = ZERO, ZERO, ZERO, ZERO
    k, l, m, n = ZERO, ZERO, ZERO, ZERO  # noqa: E741
    p, q, r, s = ZERO, ZERO, ZERO, ZERO
    # Beyond the end the last column is read, and not written.
    i1, i2, i3 = min(i + 1, n_left - 1), min(i + 2, n_left - 1), min(i + 3, n_left - 1)
    step, last = team.n_lanes, n_right - 1
    j0, j1 = min(j, last), min(j + step, last)
    j2, j3 = min(j + 2 * step, last), min(j + 3 * step, last)
    for row in range(left.shape[0]):
        x, y, z, w = left[row, i], left[row, i1], left[row, i2], left[row, i3]
        o, t, u, v = right[row, j0], right[row, j1], right[row, j2], right[row, j3]
        a, b, c, d = a + x * o, b + x * t, c + x * u, d + x * v
        e, f, g, h = e + y * o, f + y * t, g + y * u, h + y * v
        k, l, m, n = k + z * o, l + z * t, m + z * u, n + z * v  # noqa: E741
        p, q, r, s = p + w * o, q + w * t, r + w * u, s + w * v
    _write(out, i, n_left, j, step, n_right, (a, b, c, d))
    _write(out, i + 1, n_left, j, step, n_right, (e, f, g, h))
    _write(out, i + 2, n_left, j, step, n_right, (k, l, m, n))
    _write(out, i + 3, n_left, j, step, n_right, (p, q, r, s))


@inlined
def _write(out, i, n_left, j, step, n_right, sums):
    """Write four sums of row ``i`` where there are such rows and columns."""
    if i < n_left:
        if j < n_right:
            out[i, j] = sums[0]
        if j + step < n_right:
            out[i, j + step] = sums[1]
        if j + 2 * step < n_right:
            out[i, j + 2 * step] = sums[2]
        if j + 3 * step < n_right:
            out[i, j + 3 * step] = sums[3]
