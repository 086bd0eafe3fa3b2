"""Sparse rows in a folder of plain binary files, which can be mapped into memory."""

from __future__ import annotations

import json
import os
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from sklearn.utils import Bunch, column_or_1d

from freqfm._input.rows import csr_of, with_one_index_type
from freqfm._input.validation import (
    as_float_csr,
    check_columns,
    check_integer,
    check_structure,
    is_stream,
)
from freqfm._messages import cut, shown

_FORMAT = "freqfm csr 1"
_HEADER = "header.json"

_NUMBERS = {np.dtype(c).str for c in "?" + np.typecodes["AllInteger"] + np.typecodes["Float"]}

# The types that files may have, as strings of NumPy: only these are made into a dtype, as a file of
# objects would be mapped as pointers.
_DTYPES = {
    "indptr": {np.dtype(np.int64).str},
    "indices": {np.dtype(np.int32).str},
    "data": {np.dtype(np.float32).str},
    "target": _NUMBERS,
    "sample_weight": _NUMBERS,
}


def slice_csr(X, begin, end):
    """Return a range of rows; entries are views, so that of a mapped file only these are read."""
    first, last = X.indptr[begin], X.indptr[end]
    indptr = np.asarray(X.indptr[begin : end + 1], dtype=np.int64) - first
    return csr_of(X.data[first:last], X.indices[first:last], indptr, (end - begin, X.shape[1]))


def save_csr(path: str | os.PathLike[str], X, y=None, sample_weight=None) -> None:
    """Save sparse rows in a folder, from which they can be mapped into memory.

    Parameters
    ----------
    path : str or path-like
        Folder; it is created if need be, and files of an earlier call in it are replaced. Windows
        does not replace files that are mapped into memory.
    X : {array-like, sparse matrix} of shape (n_samples, n_features), or RowStream
        Rows; of a stream, one chunk is in memory at a time.
    y : array-like of shape (n_samples,), default=None
        Targets, numbers. A stream holds them itself.
    sample_weight : array-like of shape (n_samples,), default=None
        Weights of the rows. A stream holds them itself.

    Raises
    ------
    TypeError
        If targets are not numbers, or ``X`` holds dates.
    ValueError
        If ``y`` is given beside a stream, targets or weights are not one for each row, or ``X`` is
        complex, not two-dimensional, beyond float32, or sparse with indices out of bounds or more
        than 2^31 - 1 columns.
    OSError
        If files cannot be written or replaced. What is in the folder stays as it is.

    See Also
    --------
    load_csr : Reads the folder.
    RowStream.from_csr : A stream of the rows in it.

    Examples
    --------
    >>> import tempfile
    >>> from freqfm.datasets import load_csr, make_clicks, save_csr
    >>> X, y = make_clicks(100, (20, 10), random_state=0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_csr(folder, X, y)
    ...     bunch = load_csr(folder)
    >>> bunch.data.shape, bunch.target.shape
    ((100, 30), (100,))
    """
    if is_stream(X):
        if y is not None or sample_weight is not None:
            raise ValueError("y and sample_weight are part of a stream; leave them out.")
        chunks = X.epoch(0)
    else:
        chunks = [(X, y, sample_weight)]
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    header = {"format": _FORMAT, "n_features": 0, "arrays": {}}
    # The rows to write may be mapped from the same folder: the old files remain until all rows are
    # written, and as long as they are mapped.
    with TemporaryDirectory(dir=folder) as new:
        _write(Path(new), header, chunks)
        names = [f"{name}.bin" for name in header["arrays"]]
        for name in names:
            if (folder / name).exists():
                # On Windows, even a replacement by the same file fails while it is mapped.
                (folder / name).rename(folder / name)
        # A folder without header is not complete.
        (folder / _HEADER).unlink(missing_ok=True)
        for name in names:
            Path(new, name).replace(folder / name)
    (folder / _HEADER).write_text(json.dumps(header))


def _write(folder, header, chunks):
    """Write chunks of rows to new files, and what they hold to the header."""
    end = 0
    _append(folder, header, "indptr", np.zeros(1, dtype=np.int64))
    for rows, *others in chunks:
        rows = as_float_csr(rows)
        header["n_features"] = max(header["n_features"], rows.shape[1])
        _append(folder, header, "indptr", rows.indptr[1:] + end)
        _append(folder, header, "indices", rows.indices)
        _append(folder, header, "data", rows.data)
        for name, values in zip(("target", "sample_weight"), others, strict=False):
            if values is not None:
                _append(folder, header, name, column_or_1d(values))
        _check_lengths(header)
        end += int(rows.indptr[-1])


def _append(folder, header, name, array):
    """Append an array to its file."""
    if array.dtype.kind not in "biuf":
        raise TypeError(
            f"{name} holds {array.dtype}; save_csr stores numbers: encode targets first, for "
            f"instance with sklearn's LabelEncoder."
        )
    dtype = array.dtype.newbyteorder("=")
    known = header["arrays"].setdefault(name, {"dtype": dtype.str, "size": 0})
    path = folder / f"{name}.bin"
    common = np.result_type(known["dtype"], dtype)
    if common != known["dtype"]:
        # Targets of a later chunk may be fractions.
        np.fromfile(path, known["dtype"]).astype(common).tofile(path)
        known["dtype"] = common.str
    with open(path, "ab") as file:
        np.ascontiguousarray(array, dtype=common).tofile(file)
    known["size"] += len(array)


def _check_lengths(header):
    """Raise unless there are as many targets and weights as rows."""
    sizes = {name: known["size"] for name, known in header["arrays"].items()}
    for name in sizes.keys() & {"target", "sample_weight"}:
        if sizes[name] != sizes["indptr"] - 1:
            raise ValueError(
                f"there are {sizes['indptr'] - 1} rows, but {sizes[name]} values of {name}; give "
                f"one for each row."
            )


def load_csr(path: str | os.PathLike[str], *, mmap: bool = False) -> Bunch:
    """Load sparse rows that ``save_csr`` has saved.

    Parameters
    ----------
    path : str or path-like
        The folder.
    mmap : bool, default=False
        Whether to map the files into memory, read-only, instead of reading them: the system reads
        the pages that are used, and drops them when memory is short. Indices of columns are then
        not checked here, but where freqfm uses them.

    Returns
    -------
    bunch : Bunch
        - data : csr_array of shape (n_samples, n_features), dtype float32
        - target : ndarray of shape (n_samples,), or None
        - sample_weight : ndarray of shape (n_samples,), or None

    Raises
    ------
    ValueError
        If the folder is not complete, damaged, or of another format.

    See Also
    --------
    save_csr : Writes the folder, with an example.
    """
    folder = Path(path)
    try:
        header = json.loads((folder / _HEADER).read_text())
        found = header.get("format") if isinstance(header, dict) else header
        if found == _FORMAT:
            return _bunch(folder, header, mmap)
    except MemoryError:
        raise
    # The exception raised for a damaged folder depends on where the damage is.
    except Exception as error:
        raise ValueError(
            f"{os.fspath(path)} is not a folder that save_csr has written completely "
            f"({type(error).__name__}: {cut(error)})."
        ) from None
    raise ValueError(
        f"{os.fspath(path)} has the format {shown(found)}; this version reads {_FORMAT!r}. Save it "
        f"again."
    )


def _bunch(folder, header, mmap):
    """Return the arrays of a folder; its header and its indices are checked."""
    arrays = {name: _read(folder, name, kept, mmap) for name, kept in header["arrays"].items()}
    shape = len(arrays["indptr"]) - 1, check_integer("n_features", header["n_features"], 0)
    X = csr_of(*(arrays[name] for name in ("data", "indices", "indptr")), shape)
    check_columns(X)
    # SciPy's compiled code does not check indices.
    check_structure(X, read_indices=not mmap)
    if len(X.indices) != X.indptr[-1]:
        raise ValueError(f"{X.indptr[-1]} entries in the rows, but {len(X.indices)} in the files")
    others = {name: arrays.get(name) for name in ("target", "sample_weight")}
    for name, values in others.items():
        if values is not None and len(values) != shape[0]:
            raise ValueError(f"{name} has {len(values)} values for {shape[0]} rows")
    return Bunch(data=with_one_index_type(X), **others)


def _read(folder, name, kept, mmap):
    """Return an array of a folder."""
    if kept["dtype"] not in _DTYPES[name]:
        raise ValueError(
            f"{name} holds {shown(kept['dtype'])}, which save_csr does not write on this machine"
        )
    path, dtype = folder / f"{name}.bin", np.dtype(kept["dtype"])
    size, found = check_integer("size", kept["size"], 0), path.stat().st_size
    if found != size * dtype.itemsize:
        raise ValueError(
            f"{path} holds {found} bytes, not the {size * dtype.itemsize} of its header; save the "
            f"rows again"
        )
    if mmap and size:
        # As a plain array: slices of memmap objects are slow.
        return np.asarray(np.memmap(path, dtype, "r"))
    return np.fromfile(path, dtype)
