"""Checks of what users pass in, and its conversion to what kernels read."""

import joblib
import numpy as np
from scipy import sparse
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, validate_data

from freqfm.kernels.cpu.team import available_threads


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
    y : ndarray of shape (n_samples,)
        If given.

    Raises
    ------
    ValueError
        If a sparse ``X`` is not well formed, and whatever scikit-learn raises.
    """
    if sparse.issparse(X):
        _check_structure(X)
    X = validate_data(
        estimator,
        X,
        y,
        reset=reset,
        accept_sparse="csr",
        dtype=np.float32,
        **options,
    )
    if isinstance(y, str):
        return canonical_csr(X)
    return canonical_csr(X[0]), X[1]


def _check_structure(X):
    """Raise if a CSR, CSC or COO matrix points outside itself; scipy's C code would not notice."""
    if X.format in ("csr", "csc"):
        n_major, n_minor = X.shape if X.format == "csr" else X.shape[::-1]
        major, minor = ("row", "column") if X.format == "csr" else ("column", "row")
        indptr = X.indptr
        n_stored = min(len(X.indices), len(X.data))
        if (
            len(indptr) != n_major + 1
            or indptr[0] != 0
            or indptr[-1] > n_stored
            or (np.diff(indptr) < 0).any()
        ):
            raise ValueError(
                f"X is not a well-formed {X.format} matrix: its indptr must rise from 0 to at most "
                f"{n_stored}, the number of stored entries, in {n_major} steps (one per {major}). "
                f"Build it from (values, (rows, columns)) triples instead."
            )
        _check_indices(X.indices[: indptr[-1]], n_minor, minor)
    elif X.format == "coo":
        _check_indices(X.row, X.shape[0], "row")
        _check_indices(X.col, X.shape[1], "column")


def _check_indices(indices, n, axis):
    if len(indices) and (indices.min() < 0 or indices.max() >= n):
        bad = indices.min() if indices.min() < 0 else indices.max()
        raise ValueError(
            f"X holds the {axis} index {bad}, but it has {n} {axis}s; indices must lie in "
            f"[0, {n - 1}]. Give X its true shape, or encode its ids first."
        )


def canonical_csr(X):
    """Return float32 CSR with int32 indices and int64 indptr: sorted, no duplicates, no zeros.

    The input is left as it is; it is copied only as far as it has to be changed.
    """
    if X.shape[1] > np.iinfo(np.int32).max:
        raise ValueError(
            f"X has {X.shape[1]} features; at most {np.iinfo(np.int32).max} are supported. Hash "
            f"its ids into fewer columns, for instance with sklearn's FeatureHasher."
        )
    X = sparse.csr_array(X)
    if not _is_canonical(X):
        # Flags that a caller set before changing the arrays may lie: build the matrix anew.
        X = sparse.csr_array((X.data, X.indices, X.indptr), shape=X.shape, copy=True)
        X.has_canonical_format = False
        X.sum_duplicates()
        X.eliminate_zeros()
        if not np.isfinite(X.data).all():
            raise ValueError("X holds infinity once its duplicate entries are summed in float32.")
    return _csr(X.data, X.indices, X.indptr, X.shape)


def take_rows(X, rows):
    """Return some rows of a canonical matrix as a canonical matrix."""
    part = X[rows]
    return _csr(part.data, part.indices, part.indptr, part.shape)


def _csr(data, indices, indptr, shape):
    """Put arrays together in the types that kernels are compiled for."""
    n_stored = indptr[-1]
    X = sparse.csr_array(shape, dtype=np.float32)
    # Assigned, not constructed: scipy would narrow indptr and indices to one common type.
    X.data = np.ascontiguousarray(data[:n_stored], dtype=np.float32)
    X.indices = np.ascontiguousarray(indices[:n_stored], dtype=np.int32)
    X.indptr = np.ascontiguousarray(indptr, dtype=np.int64)
    return X


def _is_canonical(X):
    """Return whether rows are sorted without duplicates, and no zero is stored."""
    n_stored = X.indptr[-1]
    if not X.data[:n_stored].all():
        return False
    rises = np.diff(X.indices[:n_stored]) > 0
    starts = X.indptr[1:-1]
    # Between two rows an index may fall.
    rises[starts[(starts > 0) & (starts < n_stored)] - 1] = True
    return bool(rises.all())


def validate_weights(sample_weight, X):
    """Return one float64 weight per row of ``X``, all of them 1 if None is given.

    Raises
    ------
    ValueError
        If weights are negative, not finite, not one per row, or all zero.
    """
    weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
    if not weight.any():
        raise ValueError(
            "sample_weight is zero for every row, so there is nothing to learn from; give at "
            "least one row a positive weight."
        )
    return weight


def count_threads(n_jobs):
    """Return the number of threads that ``n_jobs`` stands for.

    None means all that the process may use: results do not depend on it. Negative numbers count
    from the number of cores down, as everywhere in joblib.
    """
    if n_jobs is None:
        return available_threads()
    if n_jobs == 0:
        raise ValueError(
            "n_jobs=0 has no meaning; give a positive number of threads, -1 for all cores, or None."
        )
    return n_jobs if n_jobs > 0 else joblib.effective_n_jobs(n_jobs)


def draw_seed(random_state):
    """Return an integer seed from an int, a RandomState, a Generator or None."""
    limit = np.iinfo(np.int32).max
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(limit))
    return int(check_random_state(random_state).randint(limit))
