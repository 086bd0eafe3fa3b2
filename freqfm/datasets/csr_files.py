"""Sparse rows in a folder of plain binary files, which can be mapped into memory.

Each call of ``save_csr`` writes to a subfolder of its own. The header, which is replaced in one
step, names the subfolder that counts: readers have the rows of one call, and maps of earlier rows
keep working. A draft of the header lies beside a subfolder until then.
"""

import contextlib
import json
import os
import re
import shutil
import uuid
import zlib
from pathlib import Path

import numpy as np
from sklearn.utils import Bunch, column_or_1d

from freqfm._input import validation
from freqfm._input.rows import csr_of, slices, with_one_index_type
from freqfm._messages import cut, shown
from freqfm._paths import check_path

_FORMAT = "freqfm csr 2"
_HEADER = "header.json"
_ROWS = re.compile("rows-[0-9a-f]{32}")

# Bytes of a file that have one checksum: a stream checks those alone that it reads.
_BLOCK = 1 << 22

# Seconds after which a subfolder without its header is not written to any more.
_ABANDONED = 3600

# The types of files; those of targets and weights are numbers, of this machine.
_DTYPES = {"indptr": np.int64, "indices": np.int32, "data": np.float32}


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
        Folder; it is created if need be, and rows of an earlier call in it are replaced, all at
        once, when all are written.
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
        If files cannot be written or replaced. After any error the earlier rows are still there.

    See Also
    --------
    load_csr : Reads the folder.
    RowStream.from_csr : A stream of the rows in it.

    Notes
    -----
    Several processes may save to a folder, map it and read it at the same time: a reader gets the
    rows of one call, with their own targets, and keeps them. The last call that ends counts. The
    folder takes room for old and new rows meanwhile. What a process that was killed had written is
    never read; a call an hour later or more removes it. A call removes the rows before its own
    too, on Windows once no process maps them.

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
    folder = Path(check_path("path", path))
    if validation.is_stream(X):
        if y is not None or sample_weight is not None:
            raise ValueError("y and sample_weight are part of a stream; leave them out.")
        chunks = X.epoch(0)
    else:
        chunks = [(X, y, sample_weight)]
    folder.mkdir(parents=True, exist_ok=True)
    rows = folder / f"rows-{uuid.uuid4().hex}"
    draft = rows.with_suffix(".json")
    header = {"format": _FORMAT, "rows": rows.name, "n_features": 0, "arrays": {}}
    try:
        # The draft is there first: without one, rows are those of a call that has ended.
        draft.touch()
        rows.mkdir()
        _write(rows, header, chunks)
        # Only if nobody has removed it.
        with open(draft, "r+") as file:
            json.dump({**header, "checksum": _checksum(header)}, file)
        draft.replace(folder / _HEADER)
    except BaseException:
        if draft.exists():
            _remove(rows)
        raise
    _remove_old(folder)


def _remove_old(folder):
    """Remove the rows of calls that have ended, and of processes that were killed."""
    for rows in {entry.with_suffix("") for entry in folder.iterdir()}:
        draft = rows.with_suffix(".json")
        # Errors are those of files that another process removes.
        with contextlib.suppress(OSError):
            written = [draft, *rows.glob("*")] if draft.exists() else []
            now = (folder / _HEADER).stat().st_mtime
            ended = all(now - file.stat().st_mtime > _ABANDONED for file in written)
            # Read after the draft was looked for: rows without one may just have become current.
            if _ROWS.fullmatch(rows.name) and ended and _header(folder)["rows"] != rows.name:
                _remove(rows)


def _remove(rows):
    """Remove a subfolder and the draft of its header; on Windows not while it is mapped."""
    rows.with_suffix(".json").unlink(missing_ok=True)
    shutil.rmtree(rows, ignore_errors=True)


def _write(folder, header, chunks):
    """Write chunks of rows to new files, and what they hold to the header."""
    end = 0
    _append(folder, header, "indptr", np.zeros(1, dtype=np.int64))
    for rows, *others in chunks:
        rows = validation.as_float_csr(rows)
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
    """Append an array to its file, and the checksums of blocks to the header."""
    if array.dtype.kind not in "biuf":
        raise TypeError(
            f"{name} holds {array.dtype}; save_csr stores numbers: encode targets first, for "
            f"instance with sklearn's LabelEncoder."
        )
    dtype = array.dtype.newbyteorder("=")
    new = {"dtype": dtype.str, "size": 0, "checksums": []}
    known = header["arrays"].setdefault(name, new)
    path = folder / f"{name}.bin"
    common = np.result_type(known["dtype"], dtype)
    if common != known["dtype"]:
        # Targets of a later chunk may be fractions.
        before = np.fromfile(path, known["dtype"]).astype(common)
        path.unlink()
        known = header["arrays"][name] = {**new, "dtype": common.str}
        _append(folder, header, name, before)
    content = np.ascontiguousarray(array, dtype=common).view(np.uint8)
    with open(path, "ab") as file:
        file.write(content)
    checksums, first = known["checksums"], -known["size"] * common.itemsize % _BLOCK
    if first:
        checksums[-1] = zlib.crc32(content[:first], checksums[-1])
    checksums += [
        zlib.crc32(content[first:][block]) for block in slices(max(len(content) - first, 0), _BLOCK)
    ]
    known["size"] += len(array)


def _checksum(header):
    """Return the checksum of a header."""
    return zlib.crc32(json.dumps(header).encode())


def _check_lengths(header):
    """Raise unless there are as many targets and weights as rows."""
    sizes = {name: known["size"] for name, known in header["arrays"].items()}
    for name in sizes.keys() & {"target", "sample_weight"}:
        if sizes[name] != sizes["indptr"] - 1:
            raise ValueError(
                f"there are {sizes['indptr'] - 1} rows, but {sizes[name]} values of {name}; give "
                f"one for each row."
            )


def load_csr(
    path: str | os.PathLike[str], *, mmap: bool = False, verify: bool | None = None
) -> Bunch:
    """Load sparse rows that ``save_csr`` has saved.

    Parameters
    ----------
    path : str or path-like
        The folder.
    mmap : bool, default=False
        Whether to map the files into memory, read-only, instead of reading them: the system reads
        the pages that are used, and drops them when memory is short. Indices of columns are then
        not checked here, but where freqfm uses them.
    verify : bool, default=None
        Whether to compare all files with the checksums that ``save_csr`` has stored, which reads
        them. None does so unless they are mapped: then only the sizes of the files and the ends of
        rows are compared here. A stream, :meth:`RowStream.from_csr` of the folder, compares what it
        reads, once.

    Returns
    -------
    bunch : Bunch
        - data : csr_array of shape (n_samples, n_features), dtype float32
        - target : ndarray of shape (n_samples,), or None
        - sample_weight : ndarray of shape (n_samples,), or None

    Raises
    ------
    ValueError
        If the folder is not complete, of another format, or damaged where it was compared.

    See Also
    --------
    save_csr : Writes the folder, with an example.
    """
    mmap = validation.check_flag("mmap", mmap)
    return open_csr(
        path, mmap, not mmap if verify is None else validation.check_flag("verify", verify)
    )[0]


def open_csr(path, mmap=True, verify=False):
    """Return the Bunch of ``load_csr``, and a function that verifies a range of its rows."""
    path = check_path("path", path)
    header = None
    try:
        while True:
            before, header = header, _header(Path(path))
            if not isinstance(header, dict) or header.get("format") != _FORMAT:
                break
            try:
                return _open(Path(path), header, mmap, verify)
            except OSError:
                # Another process may have replaced the rows meanwhile.
                if header == before:
                    raise
    except MemoryError:
        raise
    # The exception raised for a damaged folder depends on where the damage is.
    except Exception as error:
        raise ValueError(
            f"{path} is not a folder that save_csr has written completely "
            f"({type(error).__name__}: {cut(error)})."
        ) from None
    found = header.get("format") if isinstance(header, dict) else header
    raise ValueError(
        f"{path} has the format {shown(found)}; this version reads {_FORMAT!r}. Save it again."
    )


def _header(folder):
    """Return what the header of a folder holds."""
    return json.loads((folder / _HEADER).read_text())


def _open(path, header, mmap, verify):
    """Return the results of ``open_csr`` for a folder, given its header; raise if it is damaged."""
    given = {key: value for key, value in header.items() if key != "checksum"}
    if _checksum(given) != header["checksum"] or not _ROWS.fullmatch(header["rows"]):
        raise ValueError(f"its {_HEADER} is damaged")
    folder, kept = path / header["rows"], header["arrays"]
    _check_lengths(header)
    arrays = {name: _read(folder, name, known, mmap) for name, known in kept.items()}
    shape = (
        len(arrays["indptr"]) - 1,
        validation.check_integer("n_features", header["n_features"], 0),
    )
    left = {name: list(known["checksums"]) for name, known in kept.items()}

    def compare(name, first, last):
        content, size = arrays[name].view(np.uint8), arrays[name].itemsize
        for i in range(first * size // _BLOCK, -(-last * size // _BLOCK)):
            found = content[i * _BLOCK : (i + 1) * _BLOCK]
            # Each block once.
            if left[name][i] is not None and zlib.crc32(found) != left[name][i]:
                raise ValueError(
                    f"{folder / name}.bin is damaged: what it holds from byte {i * _BLOCK} on is "
                    f"not what save_csr has written. Save the rows again."
                )
            left[name][i] = None

    def verify_rows(rows):
        entries = arrays["indptr"][rows.start], arrays["indptr"][rows.stop]
        for name in arrays:
            compare(name, *(entries if name in ("indices", "data") else (rows.start, rows.stop)))

    for name in arrays if verify else ["indptr"]:
        compare(name, 0, len(arrays[name]))
    return _bunch(arrays, shape, read_indices=not mmap), verify_rows


def _bunch(arrays, shape, read_indices):
    """Return the arrays of a folder, which are checked, as a Bunch."""
    X = csr_of(*(arrays[name] for name in ("data", "indices", "indptr")), shape)
    validation.check_columns(X)
    # SciPy's compiled code does not check indices.
    validation.check_structure(X, read_indices=read_indices)
    if len(X.indices) != X.indptr[-1]:
        raise ValueError(f"{X.indptr[-1]} entries in the rows, but {len(X.indices)} in the files")
    others = {name: arrays.get(name) for name in ("target", "sample_weight")}
    return Bunch(data=with_one_index_type(X), **others)


def _read(folder, name, kept, mmap):
    """Return an array of a folder."""
    path, dtype = folder / f"{name}.bin", np.dtype(kept["dtype"])
    # A file of objects would be mapped as pointers.
    known = dtype.kind in "biuf" and dtype.isnative and dtype.str == kept["dtype"]
    if not known or dtype != _DTYPES.get(name, dtype):
        raise ValueError(f"{name} holds {dtype}, which save_csr does not write on this machine")
    n_bytes = validation.check_integer("size", kept["size"], 0) * dtype.itemsize
    found = path.stat().st_size
    if found != n_bytes or len(kept["checksums"]) != -(-n_bytes // _BLOCK):
        raise ValueError(
            f"{path} holds {found} bytes, not the {n_bytes} of its header; save the rows again"
        )
    if mmap and n_bytes:
        # As a plain array: slices of memmap objects are slow.
        return np.asarray(np.memmap(path, dtype, "r"))
    return np.fromfile(path, dtype)
