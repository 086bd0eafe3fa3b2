"""Checks of user input, and its conversion to the arrays that kernels read."""

import contextlib
import os
import weakref
from numbers import Integral, Real

import joblib
import numpy as np
from scipy import sparse
from sklearn.utils import check_array, check_random_state
from sklearn.utils.validation import validate_data

from freqfm._input.ids import check_present, natural
from freqfm._input.rows import CarriesFields, column_sums, count_columns, csr_of, is_canonical
from freqfm._machine import available_threads, cores
from freqfm._messages import cut, shown, warn_once, warn_user
from freqfm._sklearn import InvalidParameterError, check_sample_weight

# Files of Linux with the memory limit of a container: control groups, versions 2 and 1.
_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")

_ADVICE_FOR_MISSING = (
    "Fill what is missing, for instance with sklearn's SimpleImputer, or give it a column of its "
    "own."
)

# Root mean square of a column above which a fit warns: its interactions are learned badly.
_LARGE = 4.0

# Effective number of interactions by their weights, as a share of all, below which a fit warns.
_FEW = 0.1


def validate_rows(estimator, X, y="no_validation", *, reset, **options):
    """Validate ``X`` (and ``y``) with scikit-learn and return ``X`` as canonical float32 CSR.

    Parameters
    ----------
    estimator : estimator
        Gets ``n_features_in_`` and ``feature_names_in_`` if ``reset``, else is compared with them.
    X : array-like or sparse of shape (n_samples, n_features)
    y : array-like of shape (n_samples,), optional
    reset : bool
    **options : dict
        Passed on to ``sklearn.utils.validation.validate_data``.

    Returns
    -------
    X : csr_array of shape (n_samples, n_features)
        float32 values, int32 indices, int64 indptr; sorted, without duplicates or stored zeros.
    y : ndarray of shape (n_samples,), or None

    Raises
    ------
    ValueError
        If a sparse ``X`` is malformed, and whatever scikit-learn raises.
    """
    refuse_unread(X)
    if not reset and isinstance(X, CarriesFields) and hasattr(estimator, "_check_carried"):
        estimator._check_carried(X)
    if sparse.issparse(X):
        X = checked_csr(X)
    if not reset and _is_ready(estimator, X, y):
        return canonical_csr(X), None if isinstance(y, str) else y
    if y is not None and not isinstance(y, str) and not sparse.issparse(y):
        y = _as_targets(y)
        if options.get("y_numeric"):
            y = _as_numbers("y", y)
    advice = getattr(estimator, "_advice_for_missing", _ADVICE_FOR_MISSING)
    with named("X", advice), np.errstate(over="ignore"):  # what overflows is refused
        refuse_dates("X", X)
        checked = validate_data(
            estimator, X, y, reset=reset, accept_sparse="csr", dtype=np.float32, **options
        )
    X, y = (checked, None) if isinstance(y, str) else checked
    return canonical_csr(X), y


def as_float_csr(X, name="X"):
    """Return rows as a float32 CSR matrix with int32 indices and int64 indptr.

    NaN is let through.

    Raises
    ------
    ValueError, TypeError
        If they are not two-dimensional, have indices out of bounds, or hold dates, text, complex
        numbers or what is infinite in float32.
    """
    refuse_unread(X)
    if sparse.issparse(X):
        X = checked_csr(X, name)
        check_columns(X)
    if not sparse.issparse(X) or X.dtype != np.float32:
        with named(name), np.errstate(over="ignore"):
            refuse_dates(name, X)
            X = check_array(
                X, accept_sparse="csr", dtype=np.float32, ensure_all_finite="allow-nan",
                ensure_min_samples=0, ensure_min_features=0, input_name=name,
            )  # fmt: skip
        X = sparse.csr_array(X)
    return csr_of(
        X.data.astype(np.float32, copy=False),
        X.indices.astype(np.int32, copy=False),
        X.indptr.astype(np.int64, copy=False),
        X.shape,
    )


def _is_ready(estimator, X, y):
    """Return whether scikit-learn's checks, given after a fit, would neither convert nor refuse.

    They take about as long as it takes to train on a few hundred rows.
    """
    if not (sparse.issparse(X) and X.format == "csr" and X.dtype == np.float32 and X.shape[0]):
        return False
    if X.shape[1] != estimator.n_features_in_ or hasattr(estimator, "feature_names_in_"):
        return False
    whole = type(y) is np.ndarray and y.shape == X.shape[:1] and y.dtype.kind in "biu"
    # A string stands for no targets, see ``validate_rows``.
    if not (whole or isinstance(y, str)):
        return False
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(X.data.sum()))


def widen(name, X, n_features):
    """Return ``X`` as CSR with more columns, all zeros, up to ``n_features``.

    Raises
    ------
    ValueError, TypeError
        If ``X`` has more columns, or names them, or if ``n_features`` is not a positive integer.
    """
    n_features = check_count("n_features", n_features)
    if hasattr(X, "columns"):
        raise TypeError(
            f"{name} is a DataFrame, whose columns have names; n_features={n_features} is for "
            f"arrays and sparse matrices. Leave it out, or encode {name} first."
        )
    X = as_float_csr(X, name)
    if X.shape[1] > n_features:
        raise ValueError(
            f"{name} has {X.shape[1]} features, but n_features={n_features}; give at least that "
            f"many."
        )
    return csr_of(X.data, X.indices, X.indptr, (X.shape[0], n_features))


def _as_targets(y):
    """Return targets; raise if values are missing that scikit-learn cannot compare with others."""
    array = as_array("y", y)
    if array.dtype.kind == "T":
        # scikit-learn does not know NumPy's strings of any length.
        array = y = array.astype(object)
    if array.ndim and array.dtype.kind in "OmM":
        check_present(array, "y")
    return y


def _as_numbers(name, values):
    """Return an array, objects and strings converted to numbers; raise if they are none.

    Scikit-learn's error would not name them, and it converts objects only.
    """
    try:
        array = np.asarray(values)
        numbers = array.astype(np.float64) if array.dtype.kind in "OSTU" else array
    except (OverflowError, TypeError, ValueError) as error:
        raise ValueError(
            f"{name} must hold numbers, one for each row of X ({cut(error)})."
        ) from None
    refuse_dates(name, array)
    return numbers


def refuse_dates(name, values):
    """Raise if there are dates or durations, which scikit-learn would convert to numbers."""
    for dtype in _dtypes(values):
        if getattr(dtype, "kind", None) in ("m", "M") or _is_temporal(dtype):
            raise TypeError(
                f"{name} holds {dtype}; give numbers: convert dates and durations yourself, to "
                f"days for instance."
            )


def _dtypes(values):
    """Return the types of the columns of a DataFrame, of an array, or of the items of a list."""
    values = as_native(values)
    if hasattr(values, "columns"):
        # Tables of pyarrow have a schema. Categories have a type in pandas, and in pyarrow.
        types = values.dtypes if hasattr(values, "dtypes") else values.schema.types
        types = [getattr(dtype, "categories", dtype) for dtype in types]
        return [getattr(dtype, "dtype", getattr(dtype, "value_type", dtype)) for dtype in types]
    rows = (list, tuple, np.ndarray)
    dtype = getattr(values, "dtype", None)
    if isinstance(values, rows) and getattr(dtype, "kind", "O") == "O":
        # NumPy would make numbers of its own dates.
        values = getattr(values, "flat", values)
        cells = {type(v): getattr(v, "dtype", None) for v in values if not isinstance(v, rows)}
        return {*cells.values(), *(d for v in values if isinstance(v, rows) for d in _dtypes(v))}
    return [dtype]


def _is_temporal(dtype):
    """Return whether a type of Polars or pyarrow is of dates, times or durations."""
    if hasattr(dtype, "is_temporal"):
        return dtype.is_temporal()
    is_arrow = type(dtype).__module__.startswith("pyarrow")
    return is_arrow and str(dtype).startswith(("date", "time", "duration"))


@contextlib.contextmanager
def named(name, advice=_ADVICE_FOR_MISSING):
    """Let errors of values that are missing, not numbers, or too large name the argument.

    ``advice`` says what to do about missing values.
    """
    try:
        yield
    except OverflowError as error:
        raise ValueError(
            f"{name} holds a number beyond the largest float ({cut(error)})."
        ) from None
    except TypeError as error:
        if not str(error).startswith("float() argument"):
            raise
        if "NAType" in str(error):
            raise ValueError(f"Input {name} contains NaN. {advice}") from None
        raise TypeError(f"{name} holds what is not a number: {cut(error)}.") from None
    except ValueError as error:
        if str(error).startswith(f"Input {name} contains NaN"):
            raise ValueError(f"Input {name} contains NaN. {advice}") from None
        if not str(error).startswith("could not convert string"):
            raise
        raise ValueError(
            f"{name} holds text: {cut(error)}. Encode categories as numbers, for instance with "
            f"OneHotEncoder, which a stream takes as its encoder; for a table with ids of users "
            f"and items use InteractionRecommender."
        ) from None


def is_stream(X):
    """Return whether ``X`` is a stream of chunks, such as ``freqfm.datasets.RowStream``."""
    return bool(getattr(type(X), "is_row_stream", False))


def refuse_unread(X):
    """Raise if a stream or a query is given to a method that takes rows."""
    if hasattr(X, "collect_schema") and not hasattr(X, "to_numpy"):
        raise TypeError(f"X is a {type(X).__name__}; pass the rows, X.collect().")
    if is_stream(X):
        raise TypeError(
            "X is a stream, which only fit of factorization machines takes; call this method with "
            "each of its chunks: for X, y in stream."
        )
    refuse_masked("X", X)


_OF_OWNER = object()

# For each owner, the results of ``LearnedArrays.once`` and the attributes that they depend on.
_FOUND = weakref.WeakKeyDictionary()


class LearnedArrays:
    """Checks the arrays of a model for the properties that compiled code does not check.

    Learned attributes can be assigned, and are read from files. Every method raises a ValueError
    that names the attribute. Shapes are checked in constant time; only ``indices`` reads the
    values. Checks of all rows are called by ``once``, or when the model is trained.

    Parameters
    ----------
    owner : object
        The estimator or component.
    advice : str
        What the user can do.
    """

    def __init__(self, owner, advice="It is not what fit left: fit or load the model again"):
        self._owner = owner
        self._advice = advice
        self._agreed = []

    def get(self, name):
        """Return an attribute."""
        try:
            return getattr(self._owner, name)
        except AttributeError:
            raise self._error(name, "is missing") from None

    def size(self, name):
        """Return an attribute that is a positive integer."""
        size = self.get(name)
        if not isinstance(size, Integral) or isinstance(size, bool) or size < 1:
            raise self._error(name, f"is {shown(size)}, not a positive integer")
        self._agreed.append(name)
        return int(size)

    def array(self, name, shape, kinds="fiu", value=_OF_OWNER):
        """Return the shape of an array attribute, whose dtype has a kind in ``kinds``.

        An axis of length None may have any length. ``value`` is the array, if it is part of an
        attribute; ``name`` is then only used in messages.
        """
        array = self.get(name) if value is _OF_OWNER else value
        if (
            not isinstance(array, np.ndarray)
            or array.dtype.kind not in kinds
            # Compiled code knows neither the other byte order nor half and long double numbers.
            or not array.dtype.isnative
            or array.dtype.char in "eg"
        ):
            found = getattr(array, "dtype", type(array).__name__)
            numbers = "numbers" if "f" in kinds else "integers"
            raise self._error(
                name, f"is of type {found}, not an array of {numbers} for compiled code"
            )
        if array.shape != shape and not (
            array.ndim == len(shape)
            and all(n is None or n == size for n, size in zip(shape, array.shape, strict=True))
        ):
            wanted = str(tuple("any" if n is None else n for n in shape)).replace("'", "")
            others = f" by {', '.join(self._agreed)}" if self._agreed else ""
            raise self._error(name, f"has shape {array.shape}, but needs {wanted}{others}")
        self._agreed.append(name)
        return array.shape

    def arrays(self, name, arrays, shapes):
        """Check a dict of arrays; where the wanted shape is empty, any empty shape is accepted."""
        self.require(isinstance(arrays, dict), name, f"holds a {type(arrays).__name__}, not a dict")
        for key, shape in shapes.items():
            self.require(key in arrays, name, f"has no {key!r}")
            if 0 in shape and np.size(arrays[key]) == 0:
                shape = (None,) * len(shape)
            self.array(f"{name}[{key!r}]", shape, value=arrays[key])

    def indices(self, name, indices, n):
        """Raise unless integers lie in [0, n)."""
        if len(indices) and (indices.min() < 0 or indices.max() >= n):
            raise self._error(
                name, f"holds {indices.min()} to {indices.max()}, outside [0, {n - 1}]"
            )

    def once(self, names, find):
        """Return the result of ``find``, which is called again when an attribute has been replaced.

        So the time of a call does not grow with the model. Attributes may be changed in place
        without notice: compiled code must read copies of them. Results are not stored or copied
        with the owner.

        Parameters
        ----------
        names : tuple of str
            Attributes that ``find`` reads, its key.
        find : callable
            Checks the attributes, and returns what is derived from them.
        """
        values = [self.get(name) for name in names]
        found = _FOUND.setdefault(self._owner, {})
        known = found.get(names)
        if known is None or any(a is not b for a, b in zip(values, known[0], strict=True)):
            known = found[names] = values, find()
        return known[1]

    def require(self, condition, name, found):
        """Raise unless a condition holds; ``found`` says what is wrong with the attribute."""
        if not condition:
            raise self._error(name, found)

    def _error(self, name, found):
        owner = type(self._owner).__name__
        return ValueError(f"{name} of {owner} {found}. {self._advice}.")


def check_structure(X, name="X", read_indices=True):
    """Raise if a sparse matrix has indices out of bounds, which compiled code of scipy follows.

    Those of the columns of a CSR matrix are not read without ``read_indices``.
    """
    if X.ndim != 2:
        raise ValueError(
            f"{name} is a sparse array of {X.ndim} dimension(s); give one of shape "
            f"(n_samples, n_features), for a single row {name}.reshape(1, -1)."
        )
    if X.format == "dia" and ((X.offsets <= -X.shape[0]) | (X.offsets >= X.shape[1])).any():
        raise ValueError(f"{name} holds diagonals outside its shape {X.shape}; leave them out.")
    if X.format == "coo":
        _check_indices(X.row, X.shape[0], "row", name)
        _check_indices(X.col, X.shape[1], "column", name)
    if X.format not in ("csr", "csc", "bsr"):
        return
    major, minor = ("column", "row") if X.format == "csc" else ("row", "column")
    n_major, n_minor = X.shape[::-1] if X.format == "csc" else X.shape
    if X.format == "bsr":
        if X.shape[0] % X.blocksize[0] or X.shape[1] % X.blocksize[1]:
            raise ValueError(
                f"{name} is of shape {X.shape}, not a multiple of its blocks {X.blocksize}; build "
                f"it again."
            )
        major, minor = "row of blocks", "column of blocks"
        n_major, n_minor = n_major // X.blocksize[0], n_minor // X.blocksize[1]
    indptr, n_stored = X.indptr, len(X.indices)
    if (
        indptr.ndim != 1
        or indptr.dtype.kind not in "iu"
        or len(X.data) != n_stored
        or len(indptr) != n_major + 1
        or indptr[0] != 0
        or indptr[-1] > n_stored
        or (indptr[1:] < indptr[:-1]).any()
    ):
        raise ValueError(
            f"{name} is not a well-formed {X.format} matrix: its indptr must be integers that rise "
            f"from 0 to at most {n_stored}, the number of stored entries, in {n_major} steps (one "
            f"per {major}), and it must have as many data as indices. Build it from "
            f"(values, (rows, columns)) triples instead."
        )
    if read_indices:
        _check_indices(X.indices[: indptr[-1]], n_minor, minor, name)


def _check_indices(indices, n, axis, name):
    if indices.ndim != 1 or indices.dtype.kind not in "iu":
        raise ValueError(
            f"{name} holds {axis} indices of type {indices.dtype} and shape {indices.shape}; they "
            f"must be a vector of integers."
        )
    # One pass: as an unsigned number, a negative index exceeds all others.
    if len(indices) and indices.view(indices.dtype.str.replace("i", "u")).max() >= n:
        bad = indices.min() if indices.min() < 0 else indices.max()
        raise ValueError(
            f"{name} holds the {axis} index {bad}, but its shape has room for {n}; indices must "
            f"lie in [0, {n - 1}]. Give {name} its true shape, or encode its ids first."
        )


def checked_csr(X, name="X"):
    """Return a sparse matrix of any format as CSR; raise if its indices are out of bounds.

    CSR is returned unchanged. Other formats become float64, since scipy adds up entries that repeat
    a pair in the type of the data, in which 256 ones of uint8 are 0.
    """
    check_structure(X, name)
    if X.format == "csr":
        return X
    if X.dtype.kind in "biuf":
        X = X.astype(np.float64)
    X = sparse.csr_array(X)
    # Check again: scipy converts other formats without checking their indices.
    check_structure(X, name)
    return X


def check_columns(X):
    """Raise if rows have more columns than int32 indices can number."""
    if X.shape[1] > np.iinfo(np.int32).max:
        raise ValueError(
            f"X has {X.shape[1]} features; at most {np.iinfo(np.int32).max} are supported. Hash "
            f"its ids into fewer columns, for instance with sklearn's FeatureHasher."
        )


def canonical_csr(X):
    """Return float32 CSR with int32 indices and int64 indptr: sorted, no duplicates, no zeros.

    The input is not changed; it is copied only where necessary.
    """
    check_columns(X)
    if not (sparse.issparse(X) and X.format == "csr"):
        X = sparse.csr_array(X)
    if not is_canonical(X):
        X = summed_csr(X)
        X.eliminate_zeros()
        with np.errstate(over="ignore"):
            X.data = X.data.astype(np.float32)
        if not np.isfinite(X.data).all():
            raise ValueError("X holds infinity once its duplicate entries are summed in float32.")
    return kernel_csr(X.data, X.indices, X.indptr, X.shape)


def summed_csr(X):
    """Return a copy of a CSR matrix in float64, with entries that repeat a pair added up."""
    # Flags may be stale if the caller changed the arrays: build the matrix again.
    X = sparse.csr_array((X.data, X.indices, X.indptr), shape=X.shape, dtype=np.float64, copy=True)
    X.has_canonical_format = False
    X.sum_duplicates()
    return X


def kernel_csr(data, indices, indptr, shape):
    """Return the CSR matrix of arrays, in the types that kernels are compiled for.

    It is only read: files that are mapped into memory are not copied.
    """
    n_stored = indptr[-1]
    return csr_of(
        as_kernel_input(data[:n_stored], np.float32),
        as_kernel_input(indices[:n_stored], np.int32),
        as_kernel_input(indptr, np.int64),
        shape,
    )


def as_kernel_array(array, dtype=np.float32):
    """Return an array as kernels expect it: contiguous and writable; copied if it is not.

    Memory-mapped arrays are not writable, in joblib's workers for instance.
    """
    return np.require(array, dtype, ["C", "A", "W"])


def as_kernel_input(array, dtype=np.float32):
    """Return an array in the form of the arguments that kernels only read.

    Kernels are compiled for writable arrays. A read-only array is passed as if it were writable: if
    ``joblib.load(path, mmap_mode="r")`` has mapped a model into memory, a copy of the whole table
    would take longer than a prediction.
    """
    array = np.require(array, dtype, ["C", "A"])
    return array if array.flags.writeable else np.asarray(_ClaimedWritable(array))


class _ClaimedWritable:
    """A read-only array whose interface claims that it can be written."""

    def __init__(self, array):
        self._array = array  # keeps the memory
        interface = array.__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}


def validate_weights(sample_weight, X):
    """Return one float64 weight per row of ``X``; all are 1 if None is given.

    Default weights of 1 take no memory, and cannot be written to.

    Raises
    ------
    ValueError
        If weights are negative, not finite, not one per row, all zero, or beyond float32.
    """
    if sample_weight is None:
        return np.broadcast_to(1.0, X.shape[0])
    refuse_dates("sample_weight", sample_weight)
    refuse_masked("sample_weight", sample_weight)
    with named("sample_weight"):
        weight = check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
    return check_weights("sample_weight", weight)


def check_weights(name, weight):
    """Return the weights if they are valid in float32, the type that kernels use."""
    with np.errstate(over="ignore", under="ignore"):
        kept = weight.astype(np.float32)
    if not (np.isfinite(kept).all() and (kept >= 0).all() and kept.any()):
        raise ValueError(
            f"{name} leads to row weights from {weight.min():g} to {weight.max():g}; they must be "
            f"finite in float32 and non-negative, and at least one must be positive."
        )
    return weight


def count_threads(n_jobs):
    """Return the number of threads for ``n_jobs``, at most one per core.

    None means all cores that the process may use: results do not depend on it. Negative numbers
    count down from the number of cores, as in joblib.

    Raises
    ------
    TypeError
        If it is neither an integer nor None.
    ValueError
        If it is 0.
    """
    if n_jobs is None:
        return available_threads()
    if isinstance(n_jobs, (bool, np.bool_)) or not isinstance(n_jobs, Integral) or n_jobs == 0:
        raise InvalidParameterError(
            f"n_jobs={shown(n_jobs)} is not a number of threads; give a positive integer, -1 for "
            f"all cores, or None."
        )
    n_cores = cores()
    if n_jobs > n_cores:
        warn_once(
            f"n_jobs={int(n_jobs)} is more than the {n_cores} cores that this process may use; "
            f"{n_cores} threads are used. The result is the same."
        )
        return n_cores
    return int(n_jobs) if n_jobs > 0 else min(joblib.effective_n_jobs(n_jobs), n_cores)


def warn_of_large_values(estimator, X):
    """Warn of columns whose values are far beyond 1, which factorization machines learn badly."""
    if not X.nnz or max(X.data.max(), -X.data.min()) <= _LARGE:
        return
    squares = column_sums(X, lambda values: np.square(values, dtype=np.float64))
    means = squares / np.maximum(count_columns(X), 1)
    large = np.flatnonzero(means > _LARGE**2)
    if len(large):
        names = getattr(estimator, "feature_names_in_", np.arange(X.shape[1]))
        warn_user(
            f"X has {len(large)} column(s) with values far beyond 1, such as column "
            f"{shown(names[large[0]])} with a root mean square of {means[large[0]] ** 0.5:.3g}; "
            f"{type(estimator).__name__} learns badly from such. Scale them, for instance with "
            f"sklearn's StandardScaler, or MaxAbsScaler for sparse columns."
        )


def warn_of_heavy_weights(weight):
    """Warn if a few interactions outweigh all others, as counts with a heavy tail do."""
    total = weight.sum(dtype=np.float64)
    squares = np.einsum("i,i->", weight, weight, dtype=np.float64)
    if total**2 > _FEW * len(weight) * squares:
        return
    n_heavy = max(1, len(weight) // 100)
    heaviest = np.partition(weight, -n_heavy)[-n_heavy:]
    share = heaviest.sum(dtype=np.float64) / total
    warn_user(
        f"{n_heavy} of {len(weight)} interactions have {share:.0%} of the weight of all, as values "
        f"are weights, so that recommendations follow these few. Give np.log1p of counts with a "
        f"heavy tail, clip them at a few times the median, or count each pair once."
    )


def check_count(name, value):
    """Return a count as an int, of at least 1 and within int32, the type of item indices.

    See :func:`check_integer`.
    """
    most = np.iinfo(np.int32).max
    if check_integer(name, value, 1) > most:
        raise ValueError(f"{name}={value} must be at most {most}.")
    return int(value)


def check_integer(name, number, least=None):
    """Return an integer as an int.

    Raises
    ------
    InvalidParameterError
        If it is not an integer; a bool is not accepted. As in constructors' parameters, this error
        of scikit-learn is a TypeError and a ValueError.
    ValueError
        If it is less than ``least``.
    """
    is_integer = isinstance(number, Integral) and not isinstance(number, (bool, np.bool_))
    if not is_integer or (least is not None and number < least):
        error = ValueError if is_integer else InvalidParameterError
        bound = "" if least is None else f" of at least {least}"
        raise error(f"{name}={shown(number)} must be an integer{bound}.")
    return int(number)


def check_number(name, value, least, most):
    """Return a finite number within bounds as a float.

    Raises
    ------
    InvalidParameterError
        If it is anything else; True and False are no numbers.
    """
    is_number = isinstance(value, Real) and not isinstance(value, (bool, np.bool_))
    if not (is_number and np.isfinite(value) and least <= value <= most):
        raise InvalidParameterError(
            f"{name}={shown(value)} must be a finite number from {least} to {most}."
        )
    return float(value)


def check_fraction(name, fraction):
    """Return the number if it lies between 0 and 1."""
    is_number = isinstance(fraction, Real)
    if not is_number or not 0 < fraction < 1:
        error = ValueError if is_number else InvalidParameterError
        raise error(f"{name}={shown(fraction)} must be a number above 0 and below 1.")
    return float(fraction)


def physical_memory():
    """Return the memory of the machine, or of the container, in bytes, with swap; None if unknown.

    Swap is counted even where the container may not use it: a model that fits is never refused.
    """
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None
    for path in _LIMITS:
        # On other systems there is no such file; without a limit it contains "max".
        with contextlib.suppress(OSError, ValueError), open(path, encoding="ascii") as file:
            memory = min(memory, int(file.read()))
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            swap = next(line for line in lines if line.startswith("SwapTotal"))
        return memory + 1024 * int(swap.split()[1])
    except (OSError, StopIteration):
        return memory


def check_memory(n_weights, what, advice):
    """Raise if the weights of a model, and the copy kept while training, exceed all memory.

    This is a lower bound of what training needs, so a model that fits is never refused.

    Parameters
    ----------
    n_weights : int
    what, advice : str
        For the error.
    """
    memory, n_bytes = physical_memory(), 8 * n_weights
    if memory is not None and n_bytes > memory:
        raise ValueError(
            f"{what} would take {n_bytes / 1e9:,.0f} GB of memory at least, but this machine has "
            f"{memory / 1e9:,.0f} GB. {advice}"
        )


def draw_seed(random_state):
    """Return an integer seed from an int, a RandomState, a Generator or None."""
    limit = np.iinfo(np.int32).max
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(limit))
    return int(check_random_state(random_state).randint(limit))


def validate_ids(name, ids, n):
    """Return indices into ``range(n)`` as an int64 vector; a single number is one index.

    Raises
    ------
    TypeError
        If they are not integers.
    ValueError
        If one is out of range, or they are not one-dimensional.
    """
    array = natural(np.atleast_1d(as_array(name, ids)))
    if array.size == 0:
        return np.zeros(0, dtype=np.int64)
    if array.dtype.kind not in "iu":
        raise TypeError(
            f"{name} must be integers in [0, {n - 1}], rows or columns of what was fitted; got "
            f"{array.dtype}. For other ids use InteractionRecommender."
        )
    if array.ndim != 1:
        raise ValueError(f"{name} must be one-dimensional; got shape {array.shape}.")
    if array.min() < 0 or array.max() >= n:
        bad = array.min() if array.min() < 0 else array.max()
        raise ValueError(
            f"{name} holds {bad}, outside the fitted range [0, {n - 1}]. New users are recommended "
            f"to by their histories, recommend(X); new items come with partial_fit."
        )
    return array.astype(np.int64)


def validate_id(name, index, n):
    """Return a single index into ``range(n)`` as an int; see :func:`validate_ids`."""
    indices = validate_ids(name, index, n)
    if np.ndim(index) != 0:
        raise ValueError(f"{name} must be a single index; got {shown(index)}.")
    return int(indices[0])


def as_native(X):
    """Return the object that a DataFrame of narwhals wraps; other objects unchanged."""
    if type(X).__module__.split(".")[0] != "narwhals":
        return X
    import narwhals

    return narwhals.to_native(X)


def as_array(name, values):
    """Return values as a NumPy array, or raise an error that names them.

    Raises
    ------
    ValueError
        If NumPy cannot make an array of them, for instance of rows of different lengths.
    """
    refuse_masked(name, values)
    try:
        return np.asarray(values)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} cannot be read as an array: {cut(error)}") from None


def check_finite(name, values):
    """Raise unless an array or a sparse matrix holds finite numbers."""
    if values.dtype.kind not in "biuf":
        raise TypeError(f"{name} holds {values.dtype}; give numbers.")
    if not np.isfinite(values.data if sparse.issparse(values) else values).all():
        raise ValueError(f"{name} holds NaN or infinity; give finite numbers.")


def refuse_masked(name, values):
    """Raise if values are masked, since NumPy and scikit-learn would use what the mask hides."""
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        raise ValueError(
            f"{name} is an array of which values are masked; fill them first, for instance by "
            f"{name}.filled(0)."
        )


def check_sizes(name, sizes, empty_allowed):
    """Return sizes, as those of hidden layers, as a list of int.

    Raises
    ------
    ValueError
        If they are not a list of positive integers, or are empty without ``empty_allowed``.
    """
    given = as_array(name, sizes)
    whole = given.ndim == 1 and (given.dtype.kind in "iu" or given.size == 0)
    if not whole or (given < 1).any() or not (given.size or empty_allowed):
        raise ValueError(
            f"{name}={shown(sizes)} must be a list of positive whole numbers, such as (200,)"
            + (", or empty." if empty_allowed else ".")
        )
    return [int(size) for size in given]


def check_flag(name, value):
    """Return True or False.

    Raises
    ------
    InvalidParameterError
        If ``value`` is anything else, such as "no"; see :func:`check_count`.
    """
    if not isinstance(value, (bool, np.bool_)):
        raise InvalidParameterError(f"{name}={shown(value)} must be True or False.")
    return bool(value)
