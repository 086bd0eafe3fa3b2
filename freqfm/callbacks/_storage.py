"""Values and arrays in one file: JSON and NumPy arrays in a zip archive, without pickle.

A file can hold what estimators of this package consist of: numbers, strings, lists, dicts, arrays,
sparse matrices, random generators, and the package's estimators and components. Loading a file runs
no code from it: classes are looked up by name among the public ones of the package.
"""

import contextlib
import hashlib
import importlib
import io
import json
import os
import re
import uuid
import zipfile
from pathlib import Path

import numpy as np
from scipy import sparse
from sklearn import config_context
from sklearn.base import BaseEstimator

from freqfm._messages import cut, shown
from freqfm._sklearn import CALLBACK_ATTRIBUTES

# Modules whose public classes may be loaded.
_MODULE = re.compile(r"freqfm(\.[a-z]\w*)?", re.ASCII)

_BIT_GENERATORS = ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")

# Attributes and parameters that belong to a process, not to a model.
_NOT_STORED = {"client", "_metadata_request", *CALLBACK_ATTRIBUTES}

_HEADER = "header.json"

# Seconds after which the temporary file of a process is not written to any more.
_ABANDONED = 3600


def check_place(path):
    """Raise an OSError unless a file can be written at a path; no file remains.

    Temporary files of processes that were killed while they wrote this file are removed.
    """
    temporary = _temporary(path)
    try:
        with open(temporary, "wb"):
            pass
        now = temporary.stat().st_mtime
        remove_temporary(path.parent, re.escape(path.name), now - _ABANDONED)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def replacing(path):
    """Context manager of an open file that becomes the one at a path, completely or not at all."""
    temporary = _temporary(path)
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _temporary(path):
    """Return the path of the file that is written before it replaces another.

    Every thread and process, also of other containers and machines, has another path.
    """
    return path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")


def remove_temporary(folder, names, until=float("inf")):
    """Remove the temporary files of files whose names match a pattern, up to a time.

    The time is that of the clock of the file system.
    """
    ours = re.compile(rf"\.{names}\.[0-9a-f]{{32}}\.tmp")
    for other in folder.iterdir():
        if ours.fullmatch(other.name):
            with contextlib.suppress(OSError):
                if other.stat().st_mtime < until:
                    other.unlink()


def save(path, value):
    """Write a value to a file, which is replaced completely or not at all.

    Parameters
    ----------
    path : Path
    value : object
        Of the types listed in the module's docstring.

    Raises
    ------
    TypeError
        If it contains anything else.
    OSError
        If the file cannot be written.
    """
    arrays = []
    header = json.dumps(_encode(value, arrays, "the model"))
    with replacing(path) as file, zipfile.ZipFile(file, "w") as archive:
        archive.writestr(_HEADER, header)
        for i, array in enumerate(arrays):
            with archive.open(f"{i}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


def digest(value, name):
    """Return a hash of a value.

    Parameters
    ----------
    value : object
        As in :func:`save`.
    name : str
        What it is, for error messages.

    Returns
    -------
    digest : str

    Raises
    ------
    TypeError
        If a file could not hold the value.
    """
    arrays = []
    hashed = hashlib.blake2b(json.dumps(_encode(value, arrays, name)).encode(), digest_size=16)
    for array in map(np.ascontiguousarray, arrays):
        hashed.update(f"{array.dtype.str}{array.shape}".encode())
        hashed.update(array.reshape(-1).view(np.uint8).data)
    return hashed.hexdigest()


def load(path):
    """Return the value that a file holds.

    Parameters
    ----------
    path : str or path-like

    Returns
    -------
    value : object

    Raises
    ------
    ValueError
        If the file was not written by :func:`save`, or is damaged.
    OSError
        If it cannot be read.
    MemoryError
        If it does not fit into memory.
    """
    with open(path, "rb") as file:
        try:
            with zipfile.ZipFile(file) as archive:
                header = json.loads(archive.read(_HEADER))
                arrays = []
                for i in range(len(archive.namelist()) - 1):
                    # Via memory: NumPy reads directly from an archive in many small pieces.
                    member = io.BytesIO(archive.read(f"{i}.npy"))
                    array = np.lib.format.read_array(member, allow_pickle=False)
                    # Compiled code reads the byte order of this machine only.
                    arrays.append(array.astype(array.dtype.newbyteorder("="), copy=False))
            return _decode(header, arrays)
        except MemoryError:
            raise
        # The exception raised for a damaged file depends on where the damage is.
        except Exception as error:
            raise ValueError(
                f"{Path(path)} is not a file of freqfm.callbacks.Checkpoint, or it is damaged "
                f"({type(error).__name__}: {cut(error)})."
            ) from error


def _encode(value, arrays, name):
    """Return a value in a form that JSON can store; arrays are collected and numbered."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, np.generic):
        return {"scalar": _encode(value.item(), arrays, name), "dtype": value.dtype.str}
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            items = [_encode(item, arrays, f"an item of {name}") for item in value.ravel().tolist()]
            return {"objects": items, "shape": list(value.shape)}
        arrays.append(value)
        return {"array": len(arrays) - 1}
    if sparse.issparse(value):
        # COO would add up entries that repeat a pair in its own type, which may be too small.
        value = sparse.csr_array(value.astype(np.float64) if value.format == "coo" else value)
        # With the smallest type of indices, as it will be when it is loaded.
        value = sparse.csr_array((value.data, value.indices, value.indptr), shape=value.shape)
        parts = [value.data, value.indices, value.indptr]
        return {"csr": _encode(parts, arrays, name), "shape": list(value.shape)}
    if isinstance(value, (list, tuple)):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [_encode(item, arrays, f"an item of {name}") for item in value]}
    if isinstance(value, dict):
        pairs = [[_encode(k, arrays, name), _encode(v, arrays, str(k))] for k, v in value.items()]
        return {"dict": pairs}
    if isinstance(value, np.random.RandomState):
        return {"random_state": _encode(value.get_state(legacy=False), arrays, name)}
    if isinstance(value, np.random.Generator):
        return {"generator": _encode(value.bit_generator.state, arrays, name)}
    if isinstance(value, BaseEstimator):
        return _encode_object(value, arrays, name)
    raise TypeError(
        f"a checkpoint cannot hold {name}={shown(value)} of type {type(value).__name__}; it holds "
        f"numbers, strings, lists, dicts, arrays, sparse matrices and the classes of freqfm."
    )


def _encode_object(value, arrays, name):
    module, class_name = ".".join(type(value).__module__.split(".")[:2]), type(value).__name__
    for candidate in (module, "freqfm"):
        if _class(candidate, class_name) is type(value):
            break
    else:
        raise TypeError(
            f"a checkpoint cannot hold {name}={shown(value)}: {type(value).__qualname__} is not a "
            f"public class of freqfm, and no others are loaded from files."
        )
    params = value.get_params(deep=False)
    state = value.__getstate__()
    learned = {k: v for k, v in state.items() if k not in params and k not in _NOT_STORED}
    requests = getattr(value, "_metadata_request", None)
    return {
        "class": [candidate, class_name],
        "params": _encode({k: v for k, v in params.items() if k not in _NOT_STORED}, arrays, name),
        "learned": _encode(learned, arrays, name),
        "requests": {} if requests is None else requests._serialize(),
    }


def _class(module, name):
    """Return a public class of the package, or None."""
    module = importlib.import_module(module) if _MODULE.fullmatch(module) else None
    found = getattr(module, name) if name in getattr(module, "__all__", ()) else None
    return found if isinstance(found, type) and issubclass(found, BaseEstimator) else None


def _decode(value, arrays):
    """Return the value that :func:`_encode` was given."""
    if not isinstance(value, dict):
        return value
    kind = next(iter(value))
    content = value[kind]
    if kind == "scalar":
        return np.dtype(value["dtype"]).type(_decode(content, arrays))
    if kind == "array":
        return arrays[content]
    if kind == "objects":
        array = np.empty(len(content), dtype=object)
        array[:] = [_decode(item, arrays) for item in content]
        return array.reshape(value["shape"])
    if kind == "csr":
        matrix = sparse.csr_array(tuple(_decode(content, arrays)), shape=tuple(value["shape"]))
        # SciPy's compiled code does not check indices.
        matrix.check_format(full_check=True)
        return matrix
    if kind in ("list", "tuple"):
        items = [_decode(item, arrays) for item in content]
        return items if kind == "list" else tuple(items)
    if kind == "dict":
        return {_decode(k, arrays): _decode(v, arrays) for k, v in content}
    if kind == "random_state":
        generator = np.random.RandomState()
        generator.set_state(_decode(content, arrays))
        return generator
    if kind == "generator":
        state = _decode(content, arrays)
        if state["bit_generator"] not in _BIT_GENERATORS:
            raise ValueError(f"unknown bit generator {state['bit_generator']!r}")
        bits = getattr(np.random, state["bit_generator"])()
        bits.state = state
        return np.random.Generator(bits)
    return _decode_object(value, arrays)


def _decode_object(value, arrays):
    module, name = value["class"]
    found = _class(module, name)
    if found is None:
        raise ValueError(f"unknown class {module}.{name}")
    made = found(**_decode(value["params"], arrays))
    learned = _decode(value["learned"], arrays)
    for name in learned:
        if not isinstance(name, str) or callable(getattr(found, name, None)):
            raise ValueError(f"{shown(name)} is no name of an attribute")
    made.__setstate__(learned)
    with config_context(enable_metadata_routing=True):
        for method, request in value["requests"].items():
            getattr(made, f"set_{method}_request")(**request)
    return made
