"""The parts of data sets that streams read: row groups of Parquet files, and text files."""

import os
from functools import partial
from itertools import islice
from typing import NamedTuple

import numpy as np

from freqfm._input.cells import read_cells
from freqfm._input.frames import is_frame
from freqfm._messages import shorten, shown
from freqfm.datasets import criteo
from freqfm.datasets._lines import as_paths
from freqfm.datasets.libfm import read_blocks

__all__ = ["Columns", "as_pandas", "as_strings", "criteo_parts", "libfm_parts", "parquet_parts"]


class Columns(NamedTuple):
    """Names of the columns of a table."""

    target: str
    features: list | None  #: None is all others
    sample_weight: str | None

    def resolved(self, names):
        """Return the columns with the features by name; raise if one does not exist."""
        wanted = [self.target, *(self.features or ()), self.sample_weight]
        missing = [name for name in wanted if name is not None and name not in names]
        if missing:
            raise ValueError(
                f"there is no column {shown(missing[0])} in the Parquet files, which have "
                f"{shorten(names)}; name one of these."
            )
        others = [name for name in names if name not in (self.target, self.sample_weight)]
        if not set(self.features or ()) <= set(others):
            raise ValueError(
                f"features={self.features} holds the target or the weights; leave them out."
            )
        return self._replace(features=list(self.features or others))

    def all(self):
        """Return all names."""
        return [*self.features, *self.labels()]

    def labels(self):
        """Return the names of the target and of the weights, if there are any."""
        return [name for name in (self.target, self.sample_weight) if name]


def parquet_parts(path, columns, n_rows):
    """Return a list of functions that read parts, names of the features, and the number of rows."""
    if type(path).__module__.split(".")[0] == "polars":
        return _polars_parts(path, columns, n_rows)
    data = open_parquet(path)
    import pyarrow

    columns = columns.resolved(data.schema.names)

    def read(fragment):
        # The Dataset's schema has the columns of partitions too.
        options = {"columns": columns.all(), "batch_size": n_rows, "schema": data.schema}
        for batch in fragment.to_batches(**options):
            if batch.num_rows:
                labels = (batch.column(name) for name in columns.labels())
                yield (
                    pyarrow.Table.from_batches([batch]).select(columns.features),
                    *(label.to_numpy(zero_copy_only=False) for label in labels),
                )

    groups = [g for f in data.get_fragments() for g in f.split_by_row_group()]
    return [partial(read, group) for group in groups], columns.features, data.count_rows()


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
    paths = [os.fspath(one) for one in _existing_paths(path)]
    return pyarrow.dataset.dataset(paths[0] if len(paths) == 1 else paths, format="parquet")


def _polars_parts(frame, columns, n_rows):
    """Return the results of ``parquet_parts`` for a LazyFrame."""
    import polars

    if isinstance(frame, polars.DataFrame):
        frame = frame.lazy()
    columns = columns.resolved(frame.collect_schema().names())
    frame = frame.select(columns.all())
    total = frame.select(polars.len()).collect().item()

    def read(begin):
        table = frame.slice(begin, n_rows).collect()
        labels = (table[name].to_numpy() for name in columns.labels())
        yield table.select(columns.features), *labels

    parts = [partial(read, begin) for begin in range(0, total, n_rows)]
    return parts, columns.features, total


def _existing_paths(path):
    paths = as_paths(path)
    for one in paths:
        if not os.path.exists(one):
            raise FileNotFoundError(f"there is no file or folder {os.fspath(one)!r}.")
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
        rows = criteo.read_rows(one)
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
