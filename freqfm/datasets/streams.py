"""Streams of chunks of rows, for data that do not fit into memory."""

from __future__ import annotations

import itertools
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from scipy.sparse import csr_array
from sklearn import config_context
from sklearn.feature_extraction import FeatureHasher
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.utils import column_or_1d

from freqfm._input.cells import read_cells
from freqfm._input.frames import is_frame
from freqfm._input.ids import check_present
from freqfm._input.rows import FieldRows, slices, stack_rows, take_rows, with_one_index_type
from freqfm._input.validation import as_float_csr, check_integer, widen
from freqfm._messages import shorten, shown, warn_once
from freqfm._paths import check_paths
from freqfm.datasets.csr_files import open_csr, slice_csr
from freqfm.datasets.one_hot import IncrementalOneHotEncoder
from freqfm.datasets.text_files import read_blocks


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


# Default number of rows of a chunk.
_CHUNK_SIZE = 32_768

# Progress is printed after so many seconds.
_SECONDS = 5.0

# For how many seconds the end of an iteration waits for the thread that reads.
_PATIENCE = 1.0


@dataclass(eq=False, repr=False, kw_only=True)
class RowStream:
    """Chunks of rows that can be read repeatedly, for ``fit`` and ``partial_fit``.

    ``fit(stream)`` of factorization machines trains on it epoch by epoch; iterating gives pairs
    ``(X, y)``, or triples ``(X, y, sample_weight)`` if there are weights. ``from_parquet``,
    ``from_libfm`` and ``from_csr`` make streams of files.

    Parameters
    ----------
    source : callable or list of callable
        A function without arguments that returns an iterator of blocks of rows, ``(X, y)`` or
        ``(X, y, sample_weight)``, from the start each time it is called; ``X`` as ``fit`` or the
        encoder takes it. A list of functions are the parts of one data set, whose order
        ``shuffle`` changes.
    encoder : transformer, default=None
        Its ``transform`` turns the ``X`` of a block into numbers: a fitted ``OneHotEncoder``, a
        ``FeatureHasher(input_type="string")``, which hashes "name=value" of each field of arrays
        and DataFrames, equal values alike (see :doc:`/streams`), and the strings of lists as they
        are; a ``HashingVectorizer`` for one column of texts; or an
        :class:`IncrementalOneHotEncoder`. An encoder with ``partial_fit`` learns from each block
        first, in iterations and in the first pass of ``fit``. The rows of a
        :class:`freqfm.WithFields` carry their fields. None if the blocks are numbers.
    n_features : int, default=None
        Number of columns of all chunks. None uses that of each block; ``fit`` finds the largest.
    chunk_size : int, default=32768
        Rows of a chunk; the last one may be smaller. For the batches that a fit in memory would
        have, it must be a multiple of ``batch_size``, and so must the number of rows if there are
        fewer than 256 batches.
    shuffle : bool, default=False
        Whether every epoch visits the parts in a new random order and shuffles the rows within a
        buffer. Besides, ``fit`` shuffles the rows of a chunk if the estimator's ``shuffle`` is set.
    buffer_size : int, default=None
        Rows of the buffer; None is four chunks.
    prefetch : int, default=2
        Chunks that a thread reads ahead; 0 reads them when they are asked for.
    n_rows : int, default=None
        Number of rows, for the time left. None is the number that the source knows, or else that
        of the first pass.
    seed : int, default=0
        Seed of the shuffling. The order depends on it and on the number of the epoch.
    verbose : int, default=0
        1 prints the rows read so far, their rate and the time left, every few seconds.

    See Also
    --------
    save_csr : Saves a stream in a form that is read fastest.

    Notes
    -----
    A chunk takes 8 bytes per entry and 8 to 16 per row. ``prefetch`` + 2 of them are in memory,
    and with ``shuffle`` two buffers.

    Examples
    --------
    >>> from freqfm import FMClassifier
    >>> from freqfm.datasets import RowStream, make_clicks
    >>> def blocks():
    ...     for day in range(3):
    ...         yield make_clicks(500, (200, 100), random_state=day)
    >>> stream = RowStream(blocks, chunk_size=1024)
    >>> [X.shape for X, y in stream]
    [(1024, 300), (476, 300)]
    >>> model = FMClassifier(8, max_iter=2, n_iter_no_change=None, random_state=0).fit(stream)
    >>> model.factors_.shape
    (300, 8)
    """

    #: Estimators recognise a stream by this attribute.
    is_row_stream = True

    #: Names of the fields, by which they are hashed.
    _names = None

    source: Callable[[], Iterator] | list = field(kw_only=False)
    encoder: Any = None
    n_features: int | None = None
    chunk_size: int = _CHUNK_SIZE
    shuffle: bool = False
    buffer_size: int | None = None
    prefetch: int = 2
    n_rows: int | None = None
    seed: int = 0
    verbose: int = 0

    @classmethod
    def from_parquet(
        cls,
        path: Any,
        target: str,
        *,
        features: list | None = None,
        sample_weight: str | None = None,
        **options: Any,
    ) -> RowStream:
        """Return a stream of the rows of Parquet files.

        Parameters
        ----------
        path : str, path-like, list of these, pyarrow Dataset or polars LazyFrame
            A file, a folder, several of them, or an opened data set. Paths and Datasets are
            read by pyarrow, row group by row group; a ``polars.scan_parquet(...)`` by Polars, a
            slice for each chunk. A query that joins, groups or sorts would run for every chunk, and
            may return rows in another order each time: write its result to a file first
            (``sink_parquet``).
        target : str
            Column of the targets.
        features : list of str, default=None
            Columns of ``X``; None is all others. Without an encoder they must be numbers.
        sample_weight : str, default=None
            Column of the weights.
        **options
            Parameters of :class:`RowStream`.

        Returns
        -------
        stream : RowStream

        Raises
        ------
        ImportError
            If pyarrow is not installed.
        ValueError
            If a column does not exist.
        """
        size = _chunk_size(options)
        columns = {"target": target, "features": features, "sample_weight": sample_weight}
        parts, names, n_rows = parquet_parts(path, size, **columns)
        stream = cls(parts, **{"n_rows": n_rows, **options})
        stream._names = names
        return stream

    @classmethod
    def from_libfm(
        cls, path: str | os.PathLike[str] | list, *, zero_based: bool = True, **options: Any
    ) -> RowStream:
        """Return a stream of the rows of files in the format of libFM and libsvm.

        Parameters
        ----------
        path : str, path-like or list of these
            Files that end in ".gz", ".bz2" or ".zst" are decompressed.
        zero_based : bool, default=True
            Whether columns are numbered from 0, as usual for libFM, or from 1, as for libsvm. A
            stream cannot look at all numbers first, as :func:`load_libfm` does.
        **options
            Parameters of :class:`RowStream`; give ``n_features`` if the number of columns is known.

        Returns
        -------
        stream : RowStream
        """
        if not isinstance(zero_based, bool):
            raise ValueError(
                f"zero_based={shown(zero_based)} must be True or False: a stream cannot look at "
                f"all column numbers first."
            )
        paths, size = _existing_paths(path), _chunk_size(options)
        return cls([partial(read_blocks, one, zero_based, size) for one in paths], **options)

    @classmethod
    def from_csr(
        cls, X: Any, y: Any = None, sample_weight: Any = None, **options: Any
    ) -> RowStream:
        """Return a stream of the rows of a matrix, or of a folder of ``save_csr``.

        Parameters
        ----------
        X : sparse matrix, or path of a folder
            A matrix may be mapped, ``load_csr(path, mmap=True)``, as a folder always is. What is
            read of a folder for the first time is compared with its checksums; a ValueError says
            which file is damaged.
        y, sample_weight : array-like of shape (n_samples,), default=None
            Targets and weights, with a matrix.
        **options
            Parameters of :class:`RowStream`.

        Returns
        -------
        stream : RowStream
        """
        verify = None
        # An open file, too, is meant as one; check_path refuses it.
        if isinstance(X, (str, bytes, os.PathLike)) or hasattr(X, "read"):
            if y is not None or sample_weight is not None:
                raise ValueError("y and sample_weight are those of the folder; leave them out.")
            bunch, verify = open_csr(X)
            X, y, sample_weight = bunch.data, bunch.target, bunch.sample_weight
        else:
            X = as_float_csr(X)
        if y is None:
            raise ValueError("y=None: a stream for fit needs targets; give y, or save it with X.")
        arrays = [np.asarray(a) for a in (y, sample_weight) if a is not None]
        for array in arrays:
            if len(array) != X.shape[0]:
                raise ValueError(f"X has {X.shape[0]} rows, but y or sample_weight {len(array)}.")
        size = _chunk_size(options)

        def read(rows):
            if verify is not None:
                verify(rows)
            yield _part((X, *arrays), rows)

        parts = [partial(read, rows) for rows in slices(X.shape[0], size)]
        return cls(parts, **{"n_rows": X.shape[0], **options})

    def __iter__(self):
        return self.epoch()

    def epoch(
        self, number: int = 0, *, learn: bool = True, prepare: Callable | None = None
    ) -> Iterator:
        """Return an iterator over the chunks of an epoch.

        Parameters
        ----------
        number : int, default=0
            Number of the epoch, on which the order depends with ``shuffle``.
        learn : bool, default=True
            Whether an encoder with ``partial_fit`` learns from each block first.
        prepare : callable, default=None
            A function of a chunk, which the reading thread calls; what it returns is yielded in
            place of the chunk.

        Returns
        -------
        chunks : iterator
            Of ``(X, y)`` or ``(X, y, sample_weight)``, ``X`` in CSR format.
        """
        self._check()
        prepare = prepare or self._for_users
        stopped = threading.Event()
        chunks = ((len(c[1]), prepare(c)) for c in self._chunks(number, learn, stopped))
        if self.prefetch:
            chunks = _prefetched(chunks, self.prefetch, stopped)
        return self._counted(chunks)

    @property
    def _parts(self):
        return list(self.source) if isinstance(self.source, (list, tuple)) else [self.source]

    def _check(self):
        """Raise unless the parameters can be used."""
        for part in self._parts:
            if not callable(part):
                raise TypeError(
                    f"source holds a {type(part).__name__}, which can be read only once or not at "
                    f"all; give a function that returns a new iterator of blocks (X, y)."
                )
        for name in ("chunk_size", "buffer_size", "n_features", "prefetch"):
            value = getattr(self, name)
            if value is not None:
                check_integer(name, value, 0 if name == "prefetch" else 1)
        check_integer("seed", self.seed, 0)

    def _chunks(self, number, learn, stopped):
        """Yield the chunks, until an event is set."""
        parts, rng = self._parts, np.random.default_rng([self.seed, number])
        if self.shuffle:
            parts = [parts[i] for i in rng.permutation(len(parts))]
        blocks = (block for part in parts for block in part())
        # Another reader may use the encoder if this one was stopped while the source waited.
        blocks = itertools.takewhile(lambda _: not stopped.is_set(), blocks)
        blocks = (self._encoded(block, learn) for block in blocks)
        if not self.shuffle:
            yield from _rechunked(blocks, self.chunk_size)
            return
        for X, *others in _rechunked(blocks, self.buffer_size or 4 * self.chunk_size):
            order = rng.permutation(X.shape[0])
            X, others = take_rows(X, order), [values[order] for values in others]
            for rows in slices(X.shape[0], self.chunk_size):
                yield _part((X, *others), rows)

    def _encoded(self, block, learn):
        """Return a block with X in CSR format."""
        X, *labels = _parts_of(block)
        encoder = self.encoder
        if encoder is not None:
            X = self._encodable(X)
            if learn and hasattr(encoder, "partial_fit"):
                encoder.partial_fit(X)
            # Hashers cannot take an empty list.
            with config_context(transform_output="default"):
                X = encoder.transform(X) if not isinstance(X, list) or X else csr_array((0, 0))
        X = as_float_csr(X)
        if self.n_features is not None:
            X = widen("a block of the stream", X, self.n_features)
        return X, *labels

    def _for_users(self, chunk):
        """Return a chunk whose matrix has one type of indices, as scipy and scikit-learn need.

        With an encoder that knows fields the rows carry them, also while another thread reads on.
        """
        X, *others = chunk
        X = with_one_index_type(X)
        if hasattr(self.encoder, "fields_"):
            X = FieldRows.of(X, self.encoder.fields_[: X.shape[1]])
        return X, *others

    def _encodable(self, X):
        """Return the X of a block in the form that the encoder takes."""
        encoder, names = self.encoder, self._names
        if isinstance(encoder, FeatureHasher):
            table = is_frame(X) or isinstance(X, np.ndarray)
            if table and encoder.input_type != "string":
                raise ValueError(
                    f"encoder=FeatureHasher(input_type={shown(encoder.input_type)}) cannot hash "
                    f"the tables of this stream; set input_type='string'."
                )
            return as_strings(X, names)
        if isinstance(encoder, HashingVectorizer):
            return _texts(X)
        named = hasattr(encoder, "feature_names_in_")
        # WithFields has an encoder of its own.
        grows = isinstance(getattr(encoder, "encoder", encoder), IncrementalOneHotEncoder)
        if names is None or (is_frame(X) and grows):
            return X
        if not named and isinstance(X, np.ndarray):
            return X
        X = as_pandas(X, names)
        if not named:
            return np.asarray(X)
        if not is_frame(X) and names != encoder.feature_names_in_.tolist():
            known = encoder.feature_names_in_.tolist()
            raise ValueError(
                f"the stream has the columns {shorten(names)}, but its encoder was fitted on "
                f"{shorten(known)}; pass features={shorten(known)}."
            )
        return X

    def _counted(self, chunks):
        """Yield chunks; print progress, and remember the number of rows."""
        started = printed = time.perf_counter()
        n_rows = 0
        for n_in_chunk, chunk in chunks:
            n_rows += n_in_chunk
            yield chunk
            now = time.perf_counter()
            if self.verbose and now - printed > _SECONDS:
                printed = now
                self._report(n_rows, now - started)
        self.n_rows = n_rows
        if self.verbose:
            self._report(n_rows, time.perf_counter() - started)

    def _report(self, n_rows, seconds):
        rate = n_rows / max(seconds, 1e-9)
        total, left = "", ""
        if self.n_rows:
            total = f" of {self.n_rows:,}"
            left = f", {max(0, self.n_rows - n_rows) / rate:.0f} s left"
        print(f"{n_rows:,}{total} rows, {rate:,.0f} rows/s, {seconds:.0f} s{left}")


def _chunk_size(options):
    """Return the size of the chunks of a stream that is made with these parameters."""
    return check_integer("chunk_size", options.get("chunk_size", _CHUNK_SIZE), 1)


def _parts_of(block):
    """Return X, y and maybe the weights of a block, the latter as vectors."""
    if not isinstance(block, (tuple, list)) or len(block) not in (2, 3):
        n = f" of {len(block)}" if isinstance(block, (tuple, list)) else ""
        raise ValueError(
            f"a block of the stream is a {type(block).__name__}{n}; its source must yield (X, y) "
            f"or (X, y, sample_weight)."
        )
    X, y, *weight = block
    # In memory, too, targets may be a column.
    return X, column_or_1d(y, warn=True), *(np.atleast_1d(w) for w in weight if w is not None)


def _texts(X):
    """Return a column of texts."""
    if not is_frame(X) and np.ndim(X) != 2:
        return X
    _, columns = read_cells(X if is_frame(X) else np.asarray(X))
    if len(columns) != 1:
        raise ValueError(
            f"a block of the stream has {len(columns)} columns, but HashingVectorizer takes one of "
            f"texts; name it as features=[...], or encode all with "
            f"FeatureHasher(input_type='string')."
        )
    check_present(np.array(columns[0], dtype=object), "the column of texts")
    return columns[0]


def _rechunked(blocks, size):
    """Yield chunks of ``size`` rows, and a last one of at least one row."""
    waiting, n_waiting, known = [], 0, None
    for block in blocks:
        n = block[0].shape[0]
        if any(len(values) != n for values in block[1:]):
            raise ValueError(
                f"a block of the stream has {n} rows of X, but {[len(v) for v in block[1:]]} of y "
                f"and sample_weight; give one for each row."
            )
        known = block[1][:1] if known is None or not len(known) else known
        if n and _kind(known) != _kind(block[1]):
            raise TypeError(
                f"y of the stream holds {shown(known.tolist()[0])} in one block and "
                f"{shown(block[1].tolist()[0])} in another, which would be merged into one type; "
                f"convert all blocks to the same."
            )
        begin = 0
        while n_waiting + n - begin >= size:
            end = begin + size - n_waiting
            yield _joined([*waiting, _part(block, slice(begin, end))])
            waiting, n_waiting, begin = [], 0, end
        if begin < n:
            waiting.append(_part(block, slice(begin, n)))
            n_waiting += n - begin
    if waiting:
        yield _joined(waiting)


def _kind(targets):
    """Return the kind of some targets: numbers of all types are of one kind."""
    first = np.asarray(targets.tolist()[0]) if targets.dtype.kind in "OT" else targets
    return "number" if first.dtype.kind in "biuf" else first.dtype.kind


def _part(block, rows):
    X, *others = block
    return slice_csr(X, rows.start, rows.stop), *(values[rows] for values in others)


def _joined(blocks):
    """Return blocks as one; the widest has the number of columns."""
    if len(blocks) == 1:
        return blocks[0]
    if len({len(block) for block in blocks}) > 1:
        raise ValueError(
            "some blocks of the stream have sample_weight and others have none; give it in all."
        )
    rows, *others = zip(*blocks, strict=True)
    return stack_rows(rows), *map(np.concatenate, others)


def _prefetched(items, depth, stopped):
    """Yield what an iterator yields, read ahead by a thread; it ends once ``stopped`` is set."""
    ready, room = queue.SimpleQueue(), threading.Semaphore(depth)

    def read():
        error = None
        try:
            for item in items:
                ready.put((item, None))
                room.acquire()
                if stopped.is_set():
                    break
        except BaseException as caught:
            error = caught
        finally:
            items.close()
        ready.put((None, error))

    thread = threading.Thread(target=read, name="freqfm-stream", daemon=True)
    try:
        thread.start()
    except (RuntimeError, MemoryError) as error:
        warn_once(
            f"No thread could be started that reads ahead ({error}). The result is the same; to "
            f"read without one, set prefetch=0."
        )
        yield from items
        return
    try:
        while True:
            item, error = ready.get()
            if error is not None:
                raise error
            if item is None:
                return
            yield item
            room.release()
    finally:
        stopped.set()
        room.release()
        # The source may wait for a network: do not wait for the thread, for instance after Ctrl-C.
        thread.join(_PATIENCE)
