"""Some rows of a table on a GPU, and for all of them the nearest codewords.

Codewords are fitted to a sample on the CPU, which takes some milliseconds; see
``freqfm._quantization``.
"""

from typing import NamedTuple

import numpy as np

from freqfm._numba.jit import inlined
from freqfm._quantization import fit_codewords
from freqfm.backends.cuda.groups import group_max
from freqfm.backends.cuda.products import product_of_rows
from freqfm.backends.cuda.tables import row_scale

# Products of rows and codewords in memory at a time: 32 megabytes.
_PRODUCTS = 1 << 23


class Taking(NamedTuple):
    """The arguments of ``take_elements``."""

    table: np.ndarray  #: (n, width)
    rows: np.ndarray  #: (n_rows,), int32
    first: int  #: column
    out: np.ndarray  #: (n_rows, n_columns)


class Nearest(NamedTuple):
    """The arguments of the search for codewords; b is a part of the rows."""

    table: np.ndarray  #: (n, width)
    n_unit: int  #: the first numbers of a row are taken at unit length
    right: np.ndarray  #: (width, n_codewords), all codewords as columns
    halves: np.ndarray  #: (n_codewords,), of the squares of their lengths
    products: np.ndarray  #: (n_of_part, n_codewords)
    codes: np.ndarray  #: (n, n_subspaces), int32


@inlined
def take_elements(group, b, args):
    """Write some columns of some rows."""
    for i in range(group.rank, args.out.shape[0], group.size):
        for f in range(group.lane, args.out.shape[1], group.n_lanes):
            args.out[i, f] = args.table[args.rows[i], args.first + f]


@inlined
def _part(args, b):
    """Return the first row of a part, and how many it has."""
    n = args.products.shape[0]
    return b * n, min(n, args.table.shape[0] - b * n)


@inlined
def multiply_part(group, b, args):
    """Write the products of a part's rows and all codewords."""
    first, n = _part(args, b)
    shape = n, args.right.shape[1]
    product_of_rows(group, args.table, first, args.right, shape, args.products)


@inlined
def choose_codes(group, b, args):
    """Write the codes of a part's rows: of equal distances, the first."""
    first, n = _part(args, b)
    n_codewords, n_subspaces = args.right.shape[1], args.codes.shape[1]
    k = n_codewords // n_subspaces
    for i in range(group.rank, n, group.size):
        scale = row_scale(group, args.table, first + i, args.n_unit)
        for s in range(n_subspaces):
            best, code = -np.float32(np.inf), s * k
            for c in range(s * k + group.lane, (s + 1) * k, group.n_lanes):
                score = scale * args.products[i, c] - args.halves[c]
                if score > best:
                    best, code = score, c
            is_best = best == group_max(group, best)
            code = -group_max(group, -code if is_best else -n_codewords)
            if group.lane == 0:
                args.codes[first + i, s] = code


TAKE = (take_elements,)
CHOOSE = (multiply_part, choose_codes)


def take(device, table, rows, columns):
    """Return some rows of a table, by an index or a slice, and a slice of its columns."""
    rows = np.arange(table.shape[0], dtype=np.int32)[rows]
    first, end, _ = columns.indices(table.shape[1])
    shape = len(rows), end - first
    args = Taking(table, device.to_device(rows), first, device.empty(shape, np.float32))
    device.run(TAKE, args, 32, len(rows))
    return device.to_host(args.out, np.empty(shape, dtype=np.float32))


def quantize(device, table, n_columns, unit, options):
    """Return codewords of the rows of a table, and their codes, see ``Trainer.quantize``."""

    def sample(rows):
        return take(device, table, rows, slice(0, n_columns))

    (n, width), n_subspaces = table.shape, options[0]
    codewords = fit_codewords((n, n_columns), sample, unit, *options)
    right = np.zeros((width, len(codewords)), dtype=np.float32)
    right[:n_columns] = codewords.T
    n_of_part = min(n, _PRODUCTS // len(codewords))
    args = Nearest(
        table=table,
        n_unit=n_columns if unit else 0,
        right=device.to_device(right),
        halves=device.to_device(np.einsum("kf,kf->k", codewords, codewords) / np.float32(2)),
        products=device.empty((n_of_part, len(codewords)), np.float32),
        codes=device.empty((n, n_subspaces), np.int32),
    )
    device.run(CHOOSE, args, 32, n_of_part, (0, -(-n // n_of_part)))
    return codewords, device.to_host(args.codes, np.empty(args.codes.shape, dtype=np.int32))
