"""Four columns of a row at a time: a lane waits for four numbers as long as for one."""

from freqfm._numba.jit import ZERO, inlined
from freqfm.formulas.special import exp_of_minus

COLUMNS = 4

FOUR_ZEROS = (ZERO, ZERO, ZERO, ZERO)


@inlined
def four_columns(group, f, width):
    """Return the columns of a lane from ``f`` on; the first in place of those that are outside."""
    g, h, i = f + group.n_lanes, f + 2 * group.n_lanes, f + 3 * group.n_lanes
    return f, (g if g < width else f), (h if h < width else f), (i if i < width else f)


@inlined
def read(array, k, columns):
    """Return four elements of a row."""
    f, g, h, i = columns
    return array[k, f], array[k, g], array[k, h], array[k, i]


@inlined
def moved(columns, by):
    """Return columns further behind."""
    f, g, h, i = columns
    return by + f, by + g, by + h, by + i


@inlined
def read_from(array, begin, columns):
    """Return four elements of a row that begins at a place of a one-dimensional array."""
    f, g, h, i = moved(columns, begin)
    return array[f], array[g], array[h], array[i]


@inlined
def write(array, k, columns, values):
    """Write four elements of a row; one that stands for those outside is the same."""
    f, g, h, i = columns
    array[k, f], array[k, g], array[k, h], array[k, i] = values


@inlined
def times(x, values):
    """Return four values times ``x``."""
    return x * values[0], x * values[1], x * values[2], x * values[3]


@inlined
def products(u, v):
    """Return the products of four values each."""
    return u[0] * v[0], u[1] * v[1], u[2] * v[2], u[3] * v[3]


@inlined
def add(u, v):
    """Return the sums of four values each."""
    return u[0] + v[0], u[1] + v[1], u[2] + v[2], u[3] + v[3]


@inlined
def sum_inside(columns, values):
    """Return the sum of four values without those of columns that are outside."""
    f, g, h, i = columns
    total = values[0] + (values[1] if g > f else ZERO)
    return total + ((values[2] if h > f else ZERO) + (values[3] if i > f else ZERO))


@inlined
def largest_of(values):
    """Return the largest of four values."""
    return max(max(values[0], values[1]), max(values[2], values[3]))


@inlined
def exponentials(shift, values):
    """Return exp(value - shift) of four values, at most ``shift``."""
    return (
        exp_of_minus(shift - values[0]),
        exp_of_minus(shift - values[1]),
        exp_of_minus(shift - values[2]),
        exp_of_minus(shift - values[3]),
    )
