"""The parts of data sets that streams read: row groups of Parquet files, and text files."""

import os
from functools import partial
from itertools import islice

import numpy as np

from freqfm._input.cells import read_cells
from freqfm._input.frames import is_frame
from freqfm._messages import shorten, shown
from freqfm._paths import check_paths
from freqfm.datasets import criteo
from freqfm.datasets.libfm import read_blocks


def _find_columns(names, target, features, sample_weight):
    """Return the names of the features, and those of the target and of the weights if any."""
    labels = [target] if sample_weight is None else [target, sample_weight]
    missing = [name for name in (*labels, *(features or ())) if name not in names]
    if missing:
        raise ValueError(
            f"there is no column {shown(missing[0])} in the Parquet files, which have "
            f"{shorten(names)}; name one of these."
        )
    if not set(features or ()).isdisjoint(labels):
        raise ValueError(f"features={features} holds the target or the weights; leave them out.")
    return list(features or [name for name in names if name not in labels]), labels


def parquet_parts(path, n_rows, **columns):
    """Return a list of functions that read parts, names of the features, and the number of rows.

    ``columns`` are the names of the target, the features and the weights.
    """
    if type(path).__module__.split(".")[0] == "polars":
        return _polars_parts(path, n_rows, columns)
    data = open_parquet(path)
    import pyarrow

    features, labels = _find_columns(data.schema.names, **columns)

    def read(fragment):
        # The Dataset's schema has the columns of partitions too.
        options = {"columns": features + labels, "batch_size": n_rows, "schema": data.schema}
        for batch in fragment.to_batches(**options):
            if batch.num_rows:
                rows = pyarrow.Table.from_batches([batch])
                yield rows.select(features), *(rows[label].to_numpy() for label in labels)

    groups = [g for f in data.get_fragments() for g in f.split_by_row_group()]
    return [partial(read, group) for group in groups], features, data.count_rows()


def open_parquet(path):
    """Return the pyarrow Dataset of a path, of several, or of a Dataset itself."""
    try:
        import pyarrow.dataset
    except ImportError:
        raise ImportError(
            "reading Parquet files takes pyarrow: pip install 'freqfm[streams]'; or give a "
            "polars.scan_parquet(...)."
        ) from None
    if isinstance(path, pyarrow.dataset.Dataset):
        return path
    paths = _existing_paths(path)
    return pyarrow.dataset.dataset(paths[0] if len(paths) == 1 else paths, format="parquet")


def _polars_parts(frame, n_rows, columns):
    """Return the results of ``parquet_parts`` for a LazyFrame."""
    import polars

    if isinstance(frame, polars.DataFrame):
        frame = frame.lazy()
    features, labels = _find_columns(frame.collect_schema().names(), **columns)
    frame = frame.select(features + labels)
    total = frame.select(polars.len()).collect().item()

    def read(begin):
        rows = frame.slice(begin, n_rows).collect()
        yield rows.select(features), *(rows[label].to_numpy() for label in labels)

    return [partial(read, begin) for begin in range(0, total, n_rows)], features, total


def _existing_paths(path):
    paths = check_paths("path", path)
    for one in paths:
        if not os.path.exists(one):
            raise FileNotFoundError(f"there is no file or folder {one!r}.")
    return paths


def libfm_parts(path, zero_based, n_rows):
    """Return a list of functions that read the files of the format of libFM, block by block."""
    if not isinstance(zero_based, bool):
        raise ValueError(
            f"zero_based={shown(zero_based)} must be True or False: a stream cannot look at all "
            f"column numbers first."
        )

    return [partial(read_blocks, one, zero_based, n_rows) for one in _existing_paths(path)]


def criteo_parts(path, n_rows):
    """Return a list of functions that read files of Criteo's format, and names of the fields."""

    def read(one):
        rows = criteo.read_log_rows(one)
        while block := list(islice(rows, n_rows)):
            labels, tokens = zip(*block, strict=True)
            yield np.array(tokens, dtype=object), np.array(labels, dtype=np.int64)

    return [partial(read, one) for one in _existing_paths(path)], list(criteo.FEATURE_NAMES)


def as_strings(X, names):
    """Return rows of fields as lists of "name=value", which FeatureHasher takes.

    Lists are returned unchanged.
    """
    if not is_frame(X) and not isinstance(X, np.ndarray):
        return X
    found, columns = read_cells(X)
    names = found if names is None or is_frame(X) else names
    prefixes = [f"{name}=" for name in names]
    return [
        [f"{a}{b}" for a, b in zip(prefixes, row, strict=True)]
        for row in zip(*columns, strict=True)
    ]


def as_pandas(X, names):
    """Return rows of a file as a pandas DataFrame; without pandas, as an array of objects.

    Scikit-learn's encoders take this form. Types are those that pandas reads from the same file,
    except that integers with missing values keep their digits.
    """
    try:
        import pandas

        if isinstance(X, np.ndarray):
            return pandas.DataFrame(X, columns=names)
        table = X.to_arrow() if hasattr(X, "to_arrow") else X
        frame = table.to_pandas(integer_object_nulls=True)
    except ImportError:
        return np.array(list(zip(*read_cells(X)[1], strict=True)), dtype=object)
    for name in names:
        if frame[name].dtype == object and pandas.api.types.infer_dtype(frame[name]) == "integer":
            gaps = [np.nan if value is None else value for value in frame[name]]
            frame[name] = np.array(gaps, dtype=object)
    return frame
