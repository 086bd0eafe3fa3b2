"""How the rows and columns of a matrix are cut into tiles, each the work of one call of BLAS.

It must not depend on the number of threads, because BLAS may sum in another order when a shape
changes.
"""

from freqfm._numba.jit import inlined


@inlined
def tile_height(n, most):
    """Return how many of ``n`` rows a tile has, at most ``most``.

    Tiles are equal and, but for very few rows, an even number: of five tiles, one of two threads
    would have three.
    """
    n_tiles = 2 * -(-n // (2 * most))
    return -(-n // n_tiles)


@inlined
def n_tiles(n, height):
    """Return how many tiles of a height ``n`` rows have."""
    return -(-n // height)


@inlined
def tile_of(t, n, height, m, width):
    """Return where tile ``t`` of an (n, m) matrix begins and ends: its rows, then its columns."""
    across = n_tiles(m, width)
    top, left = t // across * height, t % across * width
    return top, min(top + height, n), left, min(left + width, m)
