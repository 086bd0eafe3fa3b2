"""Loader of libFM text files."""

import os

import numpy as np
from scipy.sparse import csr_array
from sklearn.datasets import load_svmlight_files


def load_libfm(path, *, n_features=None, zero_based="auto", dtype=np.float32):
    """Load data in the text format of libFM, which is that of svmlight.

    One row per line: the target, then ``column:value`` for every non-zero entry [1]_. The
    format has no field for the number of columns: load the files of one data set in one call,
    or pass `n_features`, to give them all the same columns.

    Parameters
    ----------
    path : str, path-like, or list or tuple of these
        File or files to read; those that end in ".gz" or ".bz2" are decompressed.
    n_features : int, default=None
        Number of columns. None takes the largest column number found in the files.
    zero_based : bool or "auto", default="auto"
        Whether the columns are numbered from 0 (True) or 1 (False). "auto" takes them to be
        numbered from 1 if column 0 is in none of the files; say True where columns start at 0
        and the first may be missing by chance.
    dtype : numpy dtype, default=numpy.float32
        Type of the values of X.

    Returns
    -------
    X : csr_array of shape (n_samples, n_features), dtype `dtype`
        With int32 indices, sorted; zeros written in the file are not stored.
    y : ndarray of shape (n_samples,), dtype float64
        The targets as they are in the file, often -1 and 1.

        For a list or tuple of paths the result is the flat list ``[X1, y1, X2, y2, ...]``,
        all with the same number of columns.

    Raises
    ------
    ValueError
        If there is no path, if a line cannot be read, if the column numbers of a line are not
        in increasing order, or if `n_features` is less than the largest column number found.

    See Also
    --------
    sklearn.datasets.load_svmlight_files : The reader behind this function.

    References
    ----------
    .. [1] Steffen Rendle, "Factorization Machines with libFM", ACM Transactions on
       Intelligent Systems and Technology 3(3), 2012.

    Examples
    --------
    >>> import os, tempfile
    >>> from freqfm.datasets import load_libfm
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "train.libfm")
    ...     with open(path, "w") as file:
    ...         _ = file.write("1 0:1 3:1\\n-1 1:1 4:0.5\\n")
    ...     X, y = load_libfm(path)
    >>> X.toarray().tolist()
    [[1.0, 0.0, 0.0, 1.0, 0.0], [0.0, 1.0, 0.0, 0.0, 0.5]]
    >>> y.tolist()
    [1.0, -1.0]
    """
    one = isinstance(path, str | os.PathLike)
    paths = [path] if one else list(path)
    if not paths:
        raise ValueError(f"path is {path!r}; pass a path or a list of at least one path.")
    loaded = load_svmlight_files(
        paths, n_features=n_features, zero_based=zero_based, dtype=np.dtype(dtype)
    )
    for position in range(0, len(loaded), 2):
        loaded[position] = _canonical(loaded[position])
    return (loaded[0], loaded[1]) if one else loaded


def _canonical(X):
    """X as a csr_array with sorted int32 indices and no stored zeros."""
    X = csr_array(X)
    X.sum_duplicates()
    X.eliminate_zeros()
    # The reader counts in int64; int32 halves the memory and is what compiled kernels expect.
    if max(X.nnz, X.shape[1]) <= np.iinfo(np.int32).max:
        X.indices = X.indices.astype(np.int32)
        X.indptr = X.indptr.astype(np.int32)
    return X
