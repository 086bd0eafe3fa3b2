"""Streams of chunks: what they read, and fits on them."""

import builtins
import gzip
import itertools
import re
import threading
import time
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
from helpers import BOTH, WITH_FIELDS, each, fitted, model_of
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from sklearn.base import is_classifier
from sklearn.exceptions import DataConversionWarning, SkipTestWarning
from sklearn.feature_extraction import FeatureHasher
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.linear_model import SGDClassifier
from sklearn.preprocessing import OneHotEncoder
from sklearn.utils.estimator_checks import check_estimator

from freqfm import DivergenceError, FMClassifier, FMRegressor
from freqfm.callbacks import Checkpoint, resume
from freqfm.datasets import (
    IncrementalOneHotEncoder,
    RowStream,
    load_csr,
    load_libfm,
    make_clicks,
    save_csr,
)
from freqfm.optimizers import Adam

FM = {"n_components": 3, "batch_size": 100, "random_state": 0}


@pytest.fixture(scope="module")
def clicks():
    X, y = make_clicks(1050, (100, 40), random_state=0)
    return X, y, np.random.default_rng(0).integers(1, 9, 1050) / 8


def stream_of(X, y, *weight, **options):
    """Return a stream of blocks of 170 rows, in chunks of 300."""

    def blocks():
        for begin in range(0, len(y), 170):
            rows = slice(begin, begin + 170)
            yield X[rows], y[rows], *(w[rows] for w in weight)

    return RowStream(blocks, **{"chunk_size": 300, **options})


def rows_of(chunks):
    """Return the chunks of a stream as one dense X, and the other arrays."""
    X, *others = zip(*chunks, strict=True)
    width = max(one.shape[1] for one in X)
    X = [np.pad(one.toarray(), ((0, 0), (0, width - one.shape[1]))) for one in X]
    return np.concatenate(X), *map(np.concatenate, others)


@pytest.mark.parametrize("n_again", [0, 10])
def test_a_source_that_does_not_repeat_its_rows(clicks, n_again):
    X, y, _ = clicks
    passes = iter([len(y)] + 9 * [n_again])

    def blocks():
        n = next(passes)
        yield X[:n], y[:n]

    model = FMClassifier(max_iter=3, **FM)
    with pytest.raises(ValueError, match=f"1050 rows when it was read first, and {n_again} in a"):
        model.fit(RowStream(blocks))


# Reading


@pytest.mark.parametrize("prefetch", [0, 2])
def test_chunks_hold_the_rows_in_order(clicks, prefetch):
    stream = stream_of(*clicks, prefetch=prefetch)
    for _ in range(2):
        chunks = list(stream)
        assert [X.shape for X, *_ in chunks] == [(300, 140)] * 3 + [(150, 140)]
        for found, given in zip(rows_of(chunks), clicks, strict=True):
            assert_array_equal(found, given.toarray() if sparse.issparse(given) else given)
    assert stream.n_rows == 1050


def test_blocks_without_weights_may_say_so(clicks):
    X, y, _ = clicks
    ((found, targets),) = RowStream(lambda: iter([(X, y, None)]), chunk_size=len(y))
    assert_array_equal(found.toarray(), X.toarray())
    assert_array_equal(targets, y)


def test_shuffling_moves_parts_and_rows(clicks):
    X, y, _ = clicks
    number = np.arange(len(y))
    parts = [lambda a=a: iter([(X[a : a + 350], number[a : a + 350])]) for a in (0, 350, 700)]
    stream = RowStream(parts, shuffle=True, chunk_size=100, buffer_size=350, seed=1)
    orders = []
    for epoch in (0, 1, 0):
        found, rows = rows_of(stream.epoch(epoch))
        assert_array_equal(found, X.toarray()[rows])
        assert_array_equal(np.sort(rows), number)
        orders.append(rows)
    assert_array_equal(orders[0], orders[2])
    assert (orders[0] != orders[1]).any() and (np.diff(orders[0][:350]) != 1).any()
    for order in orders:
        assert len(set((order[:350] // 350).tolist())) == 1


def test_errors_and_early_ends_reach_the_reader_thread(clicks):
    X, y, _ = clicks

    def blocks():
        yield X[:300], y[:300]
        raise OSError("disk on fire")

    with pytest.raises(OSError, match="disk on fire"):
        list(RowStream(blocks, chunk_size=100))
    chunks = iter(stream_of(X, y))
    next(chunks)
    chunks.close()
    assert not [t for t in threading.enumerate() if t.name == "freqfm-stream"]


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), MemoryError("stack")])
def test_streams_are_read_where_no_thread_can_be_started(clicks, error, monkeypatch):
    X, y, _ = clicks
    expected = model_of(FMClassifier).fit(stream_of(X, y))
    start = threading.Thread.start

    def refused(thread):
        if thread.name == "freqfm-stream":
            raise error
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refused)
    with pytest.warns(UserWarning, match=f"No thread could be started that reads ahead .{error}"):
        model = model_of(FMClassifier).fit(stream_of(X, y))
    assert_array_equal(model.factors_, expected.factors_)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda X, y: RowStream(iter([(X, y)])), "source holds .*iterator.* read only once"),
        (lambda X, y: stream_of(X, y, chunk_size=0), "chunk_size=0 must be an integer"),
        (lambda X, y: RowStream.from_csr(X, y, chunk_size=0), "chunk_size=0 must be an integer"),
        (lambda X, y: RowStream.from_csr(X, y, chunk_size=2.5), "chunk_size=2.5 must be an int"),
        (lambda X, y: stream_of(X, y, seed=None), "seed=None must be an integer"),
        (lambda X, y: stream_of(X, y[:-1]), r"30 rows of X, but \[29\] of y"),
        (
            lambda X, y: RowStream(lambda: iter([(X, y), (X, y, y)])),
            "some blocks .* sample_weight and others have none",
        ),
        (lambda X, y: stream_of(X, y, n_features=139), "140 features, but n_features=139"),
        (
            lambda X, y: stream_of(np.full((1050, 1), "a"), y),
            "X holds text.* a stream takes as its encoder",
        ),
        (lambda X, y: RowStream.from_csr(X), "y=None"),
        (lambda X, y: RowStream.from_csr(X, y[:3]), "X has 1050 rows, but y .* 3"),
        (lambda X, y: RowStream.from_libfm(__file__, zero_based="auto"), "zero_based='auto'"),
        (lambda X, y: RowStream.from_libfm("nowhere"), "no file or folder 'nowhere'"),
    ],
)
def test_malformed_streams(clicks, make, message):
    with pytest.raises((ValueError, TypeError, FileNotFoundError), match=message):
        list(make(*clicks[:2]))


def tables_that_no_fit_takes():
    """Yield rows that are refused in memory, in all containers that can hold them."""
    days = np.array([["2026-01-01"], ["2026-01-02"]], dtype="M8[ns]")
    yield from (days, days.astype("M8[s]"), days - days[0], list(days), [list(row) for row in days])
    yield np.array([[day] for day in days[:, 0]] + [[0]], dtype=object)[:2]
    for one in (1e300, 1 + 2j, 10**400, np.inf, "a", {"a": 1}):
        yield [[one], [1]]
        yield np.array([[one], [1]], dtype=object)
    for array in (np.array([[1e300], [2]]), np.array([[1 + 2j], [2]])):
        yield from (
            array,
            sparse.csr_array(array),
            sparse.coo_array(array),
            sparse.csc_array(array),
        )
    yield from (np.ones(2), [1.0, 2.0], np.ones((2, 1, 1)), np.float64(1), np.array([["a"], ["b"]]))
    pandas, pyarrow = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    polars, narwhals = pytest.importorskip("polars"), pytest.importorskip("narwhals")
    for column in (days[:, 0], days[:, 0] - days[0, 0], np.array([1e300, 1]), np.array(["a", "b"])):
        frame = pandas.DataFrame({"a": column})
        table = pyarrow.Table.from_pandas(frame)
        yield from (frame, frame.astype("category"), table, polars.from_arrow(table))
        yield table.to_pandas(types_mapper=pandas.ArrowDtype)
        yield pyarrow.table({"a": table["a"].combine_chunks().dictionary_encode()})
        yield narwhals.from_native(polars.from_arrow(table))
    yield pandas.DataFrame({"a": pandas.Series(days[:, 0]).dt.tz_localize("UTC")})
    yield polars.DataFrame({"a": [1.0, 2.0]}).lazy()


@pytest.mark.filterwarnings("ignore:overflow encountered in cast:RuntimeWarning")
def test_streams_refuse_what_fits_in_memory_refuse(tmp_path):
    y = [0.5, 1.0]
    for X in tables_that_no_fit_takes():
        with pytest.raises((TypeError, ValueError)) as in_memory:
            FMRegressor(2, max_iter=1).fit(X, y)
        # The rest names the estimator, or shows the matrix.
        expected = re.split(" (?:by )?FMRegressor", str(in_memory.value).splitlines()[0])[0]
        for call in (
            lambda X=X: FMRegressor(2, max_iter=1).fit(RowStream(lambda: iter([(X, y)]))),
            lambda X=X: list(RowStream(lambda: iter([(X, y)]))),
            lambda X=X: RowStream.from_csr(X, y),
            lambda X=X: save_csr(tmp_path, X, y),
        ):
            with pytest.raises(type(in_memory.value), match=re.escape(expected)):
                call()


def test_dates_in_parquet_files_are_no_numbers(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    polars = pytest.importorskip("polars")
    parquet = pytest.importorskip("pyarrow.parquet")
    dtypes = [pyarrow.date32(), pyarrow.time64("ns")]
    dtypes += [pyarrow.timestamp(u, z) for u in ("s", "ms", "us", "ns") for z in (None, "UTC")]
    dtypes += [pyarrow.duration(unit) for unit in ("s", "ms", "us", "ns")]
    for k, dtype in enumerate(dtypes):
        width = pyarrow.int32() if dtype == pyarrow.date32() else pyarrow.int64()
        table = pyarrow.table({"x": pyarrow.array([1, 2], width).cast(dtype), "y": [0, 1]})
        path = tmp_path / f"{k}.parquet"
        parquet.write_table(table, path)
        for source in (path, polars.scan_parquet(path)):
            with pytest.raises(TypeError, match="X holds .*; give numbers: convert dates"):
                list(RowStream.from_parquet(source, "y"))


@each(
    "blocks, message",
    [
        ([(np.eye(2), [0, 1]), (np.eye(2), ["0", "1"])], "holds 0 in one block and '0' in another"),
        ([(np.eye(2), ["0", "1"]), (np.eye(2), np.array([0, 1], object))], "'0' in one .* and 0"),
        ([(np.eye(2), [b"0", b"1"]), (np.eye(2), ["0", "1"])], "b'0' in one block and '0' in"),
        ([(np.eye(2), [0, 1]), (np.eye(2), np.array(["2026", "2027"], "M8[Y]"))], "0 in one block"),
        ([(np.eye(2), np.ones((2, 2)))], r"y should be a 1d array, got an array of shape \(2, 2\)"),
        ([(np.eye(2), 1)], r"y should be a 1d array, got an array of shape \(\)"),
        ([(np.eye(2), [0, 1], 2.0)], r"2 rows of X, but \[2, 1\] of y and sample_weight"),
        ([np.eye(2)], r"a block of the stream is a ndarray; .* yield \(X, y\)"),
        ([(np.eye(2),)], "a block of the stream is a tuple of 1"),
        ([(np.eye(2), [0, 1], None, None)], "a block of the stream is a tuple of 4"),
    ],
)
def test_blocks_that_do_not_fit_together(blocks, message):
    for size in (2, 4):
        with pytest.raises((TypeError, ValueError), match=message):
            list(RowStream(lambda: iter(blocks), chunk_size=size))


def test_targets_of_blocks_may_be_numbers_of_any_type(tmp_path):
    targets = [[0, 1], [True, False], [0.0, 1.0], np.array([[1], [0]], dtype=np.uint8)]
    with pytest.warns(DataConversionWarning, match="A column-vector y was passed"):
        ((_, y),) = RowStream(lambda: ((np.eye(2), y) for y in targets), prefetch=0)
    assert_array_equal(y, [0, 1, 1, 0, 0, 1, 1, 0])


def test_progress_is_printed_every_few_seconds(clicks, capsys, monkeypatch):
    clock = SimpleNamespace(perf_counter=itertools.count(step=3).__next__)
    monkeypatch.setattr("freqfm.datasets.streams.time", clock)
    list(stream_of(*clicks, verbose=1, n_rows=1000, prefetch=0))
    assert capsys.readouterr().out.splitlines() == [
        "600 of 1,000 rows, 100 rows/s, 6 s, 4 s left",
        "1,050 of 1,000 rows, 88 rows/s, 12 s, 0 s left",
        "1,050 of 1,050 rows, 70 rows/s, 15 s, 0 s left",
    ]


def test_integers_beside_prices_keep_their_digits():
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"user": [2**60 + 1, 2**60 + 2], "price": [1.5, 2.5]})
    users, prices = IncrementalOneHotEncoder().fit(frame).columns_
    assert users == {2**60 + 1: 0, 2**60 + 2: 1} and prices == {1.5: 2, 2.5: 3}


def test_scikit_learn_takes_chunks_saved_rows_and_encoded_rows(tmp_path):
    X = sparse.csr_array(sparse.random(200, 30, 0.1, format="csr", random_state=0))
    y = np.arange(200) % 2
    save_csr(tmp_path, X, y)
    encoder = IncrementalOneHotEncoder().fit([[i % 7] for i in range(200)])
    given = [load_csr(tmp_path).data, load_csr(tmp_path, mmap=True).data]
    given.append(encoder.transform([[i % 7] for i in range(200)]))
    given += [rows for rows, _ in RowStream.from_csr(X, y)]
    for rows in given:
        assert rows.indices.dtype == rows.indptr.dtype == np.int32
        assert SGDClassifier().fit(rows, y).coef_.shape == (1, rows.shape[1])
        assert rows.tocoo().nnz == rows.nnz


def test_no_rows_are_lost_while_the_reader_waits(clicks):
    X, y, _ = clicks
    n_rows = 0
    for chunk, _ in RowStream.from_csr(X, y, chunk_size=150):
        if not n_rows:
            time.sleep(0.3)  # longer than the reader tries to pass on a chunk
        n_rows += chunk.shape[0]
    assert n_rows == len(y)


def test_streams_of_matrices_of_any_format(clicks):
    X, y, weight = clicks
    expected = rows_of(RowStream.from_csr(X, y, weight, chunk_size=300))
    for same in (X.tocsc(), X.tocoo(), X.toarray(), sparse.csr_matrix(X, dtype=np.float64)):
        stream = RowStream.from_csr(same, y.tolist(), weight.tolist(), chunk_size=300)
        assert stream.n_rows == 1050
        for one, other in zip(rows_of(stream), expected, strict=True):
            assert_array_equal(one, other)


def test_wider_chunks_leave_the_given_matrix_alone(clicks):
    X, y, _ = clicks
    chunks = list(RowStream(lambda: iter([(X, y)]), n_features=200, chunk_size=len(y)))
    assert [chunk.shape for chunk, _ in chunks] == [(1050, 200)]
    assert X.shape == (1050, 140)


@pytest.mark.parametrize("name", ["y_val", "sample_weight_val"])
def test_validation_arguments_beside_streams_are_refused(name):
    X, y = make_clicks(400, (20, 10), random_state=0)
    validation = {"X_val": RowStream.from_csr(X, y)}
    for options, found in (({}, "no X_val; .* needs both"), (validation, ".* Leave it out")):
        with pytest.raises(ValueError, match=f"given {name}, but {found}"):
            FMClassifier(2, max_iter=1).fit(RowStream.from_csr(X, y), **options, **{name: y})


@pytest.mark.parametrize("name", ["rows", "rows.gz", "rows.zst"])
def test_libfm_files(tmp_path, name):
    lines = [f"{i % 2} {i % 7}:1 {10 + i % 5}:{i}.5\n" for i in range(50)]
    lines.insert(3, "# a comment\n")
    text = "".join(lines).encode()
    if name.endswith("zst"):
        pyarrow = pytest.importorskip("pyarrow")
        with pyarrow.output_stream(tmp_path / name, compression="zstd") as file:
            file.write(text)
    else:
        (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith("gz") else text)
    X, y = load_libfm(tmp_path / name, zero_based=True)
    found, target = rows_of(RowStream.from_libfm(tmp_path / name, n_features=15, chunk_size=20))
    assert_array_equal(found, X.toarray())
    assert_array_equal(target, y)
    if name == "rows":
        for line, found in (
            (b"1 2:x\n", "could not convert"),
            (b"1 2:1 3:nan\n1 2:1\n", "found nan as a value"),
            (b"inf 2:1\n1 2:1\n", "found inf as the target"),
        ):
            (tmp_path / name).write_bytes(text + line)
            with pytest.raises(ValueError, match=f"rows, line 52: {found}"):
                list(RowStream.from_libfm(tmp_path / name, chunk_size=20))


def test_libfm_files_of_comments(tmp_path):
    path = tmp_path / "rows"
    path.write_text("# a comment\n" * 2000 + "1 0:1\n" + "\n" * 2000 + "0 1:1\n")
    X, y = rows_of(RowStream.from_libfm(path, chunk_size=1, prefetch=0))
    assert_array_equal(X, np.eye(2))
    assert_array_equal(y, [1, 0])


@pytest.mark.parametrize("reader", ["pyarrow", "polars", "polars DataFrame"])
def test_parquet_files(tmp_path, reader):
    pytest.importorskip("pyarrow")
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame(
        {"user": [f"u{i % 9}" for i in range(90)], "item": [i % 4 for i in range(90)],
         "click": [i % 2 for i in range(90)], "w": [1.0 + i for i in range(90)]}
    )  # fmt: skip
    for i in range(2):
        part = frame[45 * i : 45 * (i + 1)]
        part.write_parquet(tmp_path / f"part{i}.parquet", row_group_size=20)
    lazy = polars.scan_parquet(tmp_path / "*.parquet")
    source = {"pyarrow": tmp_path, "polars": lazy, "polars DataFrame": frame}[reader]
    options = {"features": ["user", "item"], "sample_weight": "w", "chunk_size": 32}
    encoder = OneHotEncoder().fit(frame.select("user", "item").to_numpy())
    stream = RowStream.from_parquet(source, "click", encoder=encoder, **options)
    assert stream.n_rows == 90
    X, y, weight = rows_of(stream)
    assert_array_equal(X, encoder.transform(frame.select("user", "item").to_numpy()).toarray())
    assert_array_equal(y, frame["click"])
    assert_array_equal(weight, frame["w"])
    hasher = FeatureHasher(16, input_type="string", alternate_sign=False)
    X, *_ = rows_of(RowStream.from_parquet(source, "click", encoder=hasher, **options))
    rows = [[f"user={u}", f"item={i}"] for u, i in frame.select("user", "item").rows()]
    assert_array_equal(X, hasher.transform(rows).toarray())
    X, _ = rows_of(RowStream.from_parquet(source, "click", features=["item", "w"]))
    assert_array_equal(X, frame.select("item", "w").to_numpy())
    with pytest.raises(ValueError, match="no column 'clik' in the Parquet files"):
        RowStream.from_parquet(source, "clik")


@pytest.mark.parametrize("reader", ["pyarrow", "polars"])
def test_categories_of_parquet_files_keep_their_digits(tmp_path, reader):
    pytest.importorskip("pyarrow")
    polars = pytest.importorskip("polars")
    ids = [2**24 + i % 20 for i in range(60)]
    hours = [None if i == 7 else i % 5 for i in range(60)]  # a null in the first row group only
    frame = polars.DataFrame(
        {"id": ids, "hour": hours, "price": [i % 3 / 10 for i in range(60)], "y": [0, 1] * 30}
    )
    frame.write_parquet(tmp_path / "t.parquet", row_group_size=30)
    source = tmp_path if reader == "pyarrow" else polars.scan_parquet(tmp_path / "t.parquet")

    def read(encoder, *features):
        stream = RowStream.from_parquet(
            source, "y", encoder=encoder, features=list(features), chunk_size=30
        )
        return rows_of(stream)[0]

    options = {"input_type": "string", "alternate_sign": False}
    hasher = FeatureHasher(1 << 12, **options)
    for features in (["id"], ["hour"], ["price"], ["id", "hour", "price"]):
        rows = [
            [f"{name}={int(value) if value == 0 else value}" for name, value in row.items()]
            for row in frame.select(features).rows(named=True)
        ]
        assert_array_equal(read(hasher, *features), hasher.transform(rows).toarray())
    encoder = IncrementalOneHotEncoder()
    assert read(encoder, "id", "price").shape == (60, 23)
    assert list(encoder.columns_[0]) == ids[:20]
    fitted = OneHotEncoder().fit(np.reshape(ids, (-1, 1)))
    assert_array_equal(read(fitted, "id").argmax(axis=1), np.array(ids) - 2**24)
    X = read(None, "id", "hour")
    assert np.isnan(X[7, 1]) and np.isnan(X).sum() == 1


def test_frames_are_hashed_by_name_and_lists_as_they_are():
    pandas = pytest.importorskip("pandas")
    hasher = FeatureHasher(64, input_type="string", alternate_sign=False)
    frame = pandas.DataFrame({"user": [1, 2], "price": [0.5, 0.25]})
    expected = hasher.transform([["user=1", "price=0.5"], ["user=2", "price=0.25"]]).toarray()
    for rows in (frame, [["user=1", "price=0.5"], ["user=2", "price=0.25"]]):
        X, _ = rows_of(RowStream(lambda rows=rows: iter([(rows, [0, 1])]), encoder=hasher))
        assert_array_equal(X, expected)
    hasher = FeatureHasher(64, input_type="dict")
    rows = [{"user": 1.0}, {"price": 2.0}]
    X, _ = rows_of(RowStream(lambda: iter([(rows, [0, 1])]), encoder=hasher))
    assert_array_equal(X, hasher.transform(rows).toarray())


def test_columns_of_partitions(tmp_path):
    dataset = pytest.importorskip("pyarrow.dataset")
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.table({"item": [3, 4, 5, 6], "day": [1, 1, 2, 2], "click": [0, 1, 1, 0]})
    options = {"partitioning": ["day"], "partitioning_flavor": "hive"}
    dataset.write_dataset(table, tmp_path, format="parquet", **options)
    data = dataset.dataset(tmp_path, partitioning="hive")
    X, y = rows_of(RowStream.from_parquet(data, "click", features=["item", "day"]))
    assert_array_equal(X, [[3, 1], [4, 1], [5, 2], [6, 2]])
    assert_array_equal(y, [0, 1, 1, 0])


def test_texts_are_hashed():
    texts = np.array([["red tea"], ["green tea"]], dtype=object)
    hasher = HashingVectorizer(n_features=8)
    stream = RowStream(lambda: iter([(texts, [0, 1])]), encoder=hasher)
    X, _ = rows_of(stream)
    assert_allclose(X, hasher.transform(texts[:, 0]).toarray(), rtol=1e-6)
    stream = RowStream(lambda: iter([(np.repeat(texts, 2, axis=1), [0, 1])]), encoder=hasher)
    with pytest.raises(ValueError, match="2 columns, but HashingVectorizer takes one"):
        list(stream)


@pytest.fixture
def users_and_items(tmp_path):
    """Return a frame whose two fields hold the same numbers, and a Parquet file of it."""
    pandas = pytest.importorskip("pandas")
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    rng = np.random.default_rng(0)
    columns = {name: rng.integers(9, size=200) for name in ("user", "item")}
    frame = pandas.DataFrame({**columns, "clicked": rng.integers(2, size=200)})
    parquet.write_table(pyarrow.Table.from_pandas(frame), tmp_path / "log.parquet")
    return frame, tmp_path / "log.parquet"


@pytest.mark.parametrize("encoder", [OneHotEncoder(), IncrementalOneHotEncoder()], ids=repr)
def test_an_encoder_compares_the_names_of_fields(users_and_items, encoder, recwarn):
    frame, path = users_and_items
    encoder.fit(frame[["item", "user"]])
    stream = RowStream.from_parquet(path, "clicked", features=["item", "user"], encoder=encoder)
    X, _ = rows_of(stream.epoch(learn=False))
    assert_array_equal(X, encoder.transform(frame[["item", "user"]]).toarray())
    assert not recwarn.list
    swapped = RowStream.from_parquet(path, "clicked", encoder=encoder)
    with pytest.raises(ValueError, match="names should match"):
        next(iter(swapped))


@pytest.mark.parametrize("reader", ["pyarrow", "polars"])
def test_encoders_of_scikit_learn_know_what_pandas_reads(tmp_path, reader):
    pandas = pytest.importorskip("pandas")
    polars = pytest.importorskip("polars")
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    moments = pyarrow.array([10**9, 5 * 10**9, 10**10])
    columns = {
        "id": [1, None, 3],
        "price": [1.5, None, 2.0],
        "word": ["a", None, "b"],
        "new": [True, False, True],
        "kind": pyarrow.array(["a", "b", "a"]).dictionary_encode(),
        "day": pyarrow.array([1, 2, 3], pyarrow.int32()).cast(pyarrow.date32()),
        "time": moments.cast(pyarrow.timestamp("ns")),
        "zone": moments.cast(pyarrow.timestamp("us", "Europe/Paris")),
        "span": moments.cast(pyarrow.duration("ns")),
    }
    path = tmp_path / "t.parquet"
    parquet.write_table(pyarrow.table({**columns, "y": [0, 1, 0]}), path)
    frame = pandas.read_parquet(path)
    source = path if reader == "pyarrow" else polars.scan_parquet(path)
    for names in [*([name] for name in columns), list(columns)]:
        for rows in (frame[names], frame[names].to_numpy()):
            encoder = OneHotEncoder().fit(rows)
            stream = RowStream.from_parquet(source, "y", features=names, encoder=encoder)
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "X does not have valid feature names")
                assert_array_equal(rows_of(stream)[0], encoder.transform(rows).toarray())


@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
def test_encoders_of_scikit_learn_without_pandas(monkeypatch):
    pandas = pytest.importorskip("pandas")
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame({"id": [1, 2, 1], "word": ["a", "b", "a"], "y": [0, 1, 0]})
    rows = np.array(frame[["id", "word"]].rows(), dtype=object)
    load = builtins.__import__

    def without_pandas(name, namespace=None, *args):
        # Scikit-learn may use it.
        if name == "pandas" and namespace and namespace["__name__"].startswith("freqfm"):
            raise ImportError(name)
        return load(name, namespace, *args)

    monkeypatch.setattr("builtins.__import__", without_pandas)
    options = {"features": ["id", "word"], "prefetch": 0}
    for fitted_on in (rows, pandas.DataFrame(rows, columns=["id", "word"])):
        encoder = OneHotEncoder().fit(fitted_on)
        stream = RowStream.from_parquet(frame, "y", encoder=encoder, **options)
        (X, _), *_ = stream
        assert X.shape == (3, 4) and (X.sum(axis=1) == 2).all()
    swapped = RowStream.from_parquet(frame, "y", encoder=encoder, features=["word", "id"])
    with pytest.raises(ValueError, match="fitted on .'id', 'word'.; pass features="):
        list(swapped)


HASHERS = [FeatureHasher(64, input_type="string"), HashingVectorizer(n_features=64)]


@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
@pytest.mark.parametrize("encoder", [*HASHERS, IncrementalOneHotEncoder()], ids=repr)
def test_blocks_may_be_empty(encoder):
    pandas = pytest.importorskip("pandas")
    rows = pandas.DataFrame({"word": ["tea", "rum"]})
    for empty in (rows[:0], rows[:0].to_numpy()):
        blocks = [(rows, [0, 1]), (empty, []), (rows, [1, 0])]
        ((X, y),) = RowStream(lambda blocks=blocks: iter(blocks), encoder=encoder)
        assert X.shape[0] == 4 and X.nnz == 4
        assert_array_equal(y, [0, 1, 1, 0])
        with pytest.raises(ValueError, match=r"0 rows of X, but \[2\] of y"):
            list(RowStream(lambda X=empty: iter([(X, [0, 1])]), encoder=encoder))


@pytest.mark.parametrize("encoder", [*HASHERS, IncrementalOneHotEncoder()], ids=repr)
def test_blocks_that_cannot_be_encoded(encoder):
    polars = pytest.importorskip("polars")
    cases = [(polars.LazyFrame({"x": ["a", "b"]}), TypeError, r"LazyFrame; pass .* X.collect\(\)")]
    cases.append((np.ones((2, 1, 1)), ValueError, r"X has shape \(2, 1, 1\); give rows of fields"))
    if isinstance(encoder, HashingVectorizer):
        cases = [(polars.DataFrame({"x": ["a", None]}), ValueError, "column of texts holds None")]
    else:
        cases.append((np.array(["a", "b"]), ValueError, r"X has shape \(2,\); give rows of fields"))
    for X, error, message in cases:
        with pytest.raises(error, match=message):
            list(RowStream(lambda X=X: iter([(X, [0, 1])]), encoder=encoder))


def test_columns_that_cannot_be_features(users_and_items):
    _, path = users_and_items
    with pytest.raises(ValueError, match="holds the target or the weights"):
        RowStream.from_parquet(path, "clicked", features=["user", "clicked"])
    with pytest.raises(ValueError, match="set input_type='string'"):
        next(iter(RowStream.from_parquet(path, "clicked", encoder=FeatureHasher(64))))


def test_incremental_encoder_takes_no_sparse_matrix():
    with pytest.raises(TypeError, match="X is a sparse matrix; IncrementalOneHotEncoder takes"):
        IncrementalOneHotEncoder().fit(sparse.csr_array(np.eye(2)))


def test_incremental_encoder_refuses_what_cannot_be_a_category():
    encoder = IncrementalOneHotEncoder().fit([["tea", 1]])
    for train in (encoder.partial_fit, encoder.transform):
        with pytest.raises(TypeError, match="Field 1 of X holds a value that cannot be a category"):
            train([["jam", 1], ["jam", [2]]])
    assert encoder.get_feature_names_out().tolist() == ["x0_tea", "x1_1"]


def test_incremental_encoder_tells_strings_from_numbers():
    encoder = IncrementalOneHotEncoder()
    with pytest.raises(TypeError, match="Field 0 of X holds '1' beside 1; .* Convert the field"):
        encoder.fit([[1], ["1"]])
    encoder.fit([["1", 2], ["3", 4.5]])
    for call in (encoder.partial_fit, encoder.transform):
        with pytest.raises(TypeError, match="Field 0 of X holds 5 beside '1'"):
            call(np.array([["6", 1], [5, 1]], dtype=object))
    assert encoder.n_features_out_ == 4


def test_incremental_encoder_knows_dates_in_any_unit():
    pandas = pytest.importorskip("pandas")
    days = np.array([["2026-01-01"], ["2026-01-02"]], dtype="M8[D]")
    encoder = IncrementalOneHotEncoder().fit(days.astype("M8[ns]"))
    for unit in ("s", "us", "ns"):
        rows = days.astype(f"M8[{unit}]")
        for given in (rows, pandas.DataFrame(rows)):
            assert_array_equal(encoder.transform(given).toarray(), np.eye(2))
    assert encoder.get_feature_names_out()[0].startswith("x0_2026-01-01")


def test_incremental_encoder_names_its_columns():
    pandas = pytest.importorskip("pandas")
    rows = pandas.DataFrame({"user": ["ann", "bob"], "item": ["tea", "tea"]})
    encoder = IncrementalOneHotEncoder().fit(rows).partial_fit(rows.replace("tea", "jam"))
    names = ["user_ann", "user_bob", "item_tea", "item_jam"]
    assert encoder.get_feature_names_out().tolist() == names
    with pytest.raises(ValueError, match="names should match"):
        encoder.transform(rows[["item", "user"]])
    with pytest.raises(ValueError, match="names should match"):
        encoder.partial_fit(rows[["item", "user"]])
    encoder.fit(rows.to_numpy())
    assert not hasattr(encoder, "feature_names_in_")
    assert encoder.get_feature_names_out().tolist() == ["x0_ann", "x0_bob", "x1_tea"]
    assert encoder.get_feature_names_out(["who", "what"]).tolist()[2] == "what_tea"


def test_incremental_encoder_does_not_learn_from_validation_rows():
    encoder = IncrementalOneHotEncoder()

    def stream(words):
        block = [[word] for word in words], [0, 1, 0, 1]
        return RowStream(lambda: iter([block]), encoder=encoder)

    model = FMClassifier(2, max_iter=2).fit(stream("abab"), X_val=stream("acac"))
    assert encoder.get_feature_names_out().tolist() == ["x0_a", "x0_b"]
    assert model.n_features_in_ == 2


def test_incremental_encoder_keeps_columns():
    rows = np.array([["a", 1], ["b", 2], ["a", 3]], dtype=object)
    encoder = IncrementalOneHotEncoder().partial_fit(rows[:2])
    before = encoder.transform(rows).toarray()
    assert_array_equal(before, [[1, 0, 1, 0], [0, 1, 0, 1], [1, 0, 0, 0]])
    after = encoder.partial_fit(rows).transform(rows).toarray()
    assert_array_equal(after, np.column_stack([before, [0, 0, 1]]))
    assert encoder.fit(rows[:1]).n_features_out_ == 2
    for most in (1, 3):
        limited = IncrementalOneHotEncoder(max_features=most).fit(rows)
        assert limited.transform(rows).shape == (3, most)
    with pytest.raises(ValueError, match="Field 1 of X holds inf at row 1; give finite numbers"):
        encoder.partial_fit([["new", 1], ["new", -np.inf]])
    assert encoder.n_features_out_ == 2 and list(encoder.columns_[0]) == ["a"]
    for value in (0, -3, 2.7, True):
        with pytest.raises(ValueError, match=f"max_features={value!r} must be an integer"):
            IncrementalOneHotEncoder(max_features=value).fit(rows)
    with pytest.raises(ValueError, match="X has 1 features, but .* expecting 2"):
        encoder.transform([["a"]])


def test_incremental_encoder_follows_the_conventions_of_scikit_learn():
    # Scikit-learn 1.6 subtracts a mean from integers in place.
    failing = {"check_positive_only_tag_during_fit": "needs scikit-learn 1.7"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SkipTestWarning)
        check_estimator(IncrementalOneHotEncoder(), expected_failed_checks=failing)


def test_incremental_encoder_returns_frames():
    pandas = pytest.importorskip("pandas")
    encoder = IncrementalOneHotEncoder(sparse_output=False).set_output(transform="pandas")
    rows = encoder.fit_transform(pandas.DataFrame({"user": ["ann", "bob"]}))
    assert rows.columns.tolist() == ["user_ann", "user_bob"]
    with pytest.raises(TypeError, match="sparse_output='no' must be True or False"):
        IncrementalOneHotEncoder(sparse_output="no").fit_transform([["ann"]])
    assert_array_equal(rows.to_numpy(), np.eye(2))


# Fits


def params_of(cls, **params):
    # More than 256 batches: fewer would be of equal size, in a chunk and in memory.
    params = {"batch_size": 4, "shuffle": False, "early_stopping": False, **params}
    return model_of(cls, **params)


@BOTH
def test_fit_on_a_stream_equals_the_fit_in_memory(clicks, cls):
    X, y, weight = clicks
    params = {"dropout": 0} if hasattr(cls, "dropout") else {}
    params |= {"fields": np.repeat([0, 1], [100, 40])} if cls in WITH_FIELDS else {}
    in_memory = params_of(cls, **params).fit(X, y, weight)
    streamed = params_of(cls, **params).fit(stream_of(X, y, weight))
    for name, expected in fitted(in_memory).items():
        assert_allclose(fitted(streamed)[name], expected, rtol=2e-5, atol=1e-6, err_msg=name)
    if is_classifier(streamed):
        assert_array_equal(streamed.classes_, [0, 1])
    # Weights of 1 are summed exactly: equal to the bit. The last chunk has six rows, a batch of
    # four and one of two.
    stream = stream_of(X, y, chunk_size=348)
    in_memory, streamed = params_of(cls, **params).fit(X, y), params_of(cls, **params).fit(stream)
    if not hasattr(cls, "dropout"):
        for name in ("factors_", "coef_", "intercept_", "token_counts_"):
            assert_array_equal(fitted(streamed)[name], fitted(in_memory)[name], err_msg=name)


def test_classes_and_their_weights(clicks):
    X, y, weight = clicks
    labels = np.array(["no", "yes", "maybe"])[y + (X.indices[::2] % 3 == 0)]
    params = {"class_weight": {"no": 2, "yes": 0.5}}
    in_memory = params_of(FMClassifier, **params).fit(X, labels, weight)
    streamed = params_of(FMClassifier, **params).fit(stream_of(X, labels, weight))
    assert_array_equal(streamed.classes_, in_memory.classes_)
    assert_allclose(streamed.factors_, in_memory.factors_, rtol=1e-4, atol=1e-6)
    with pytest.raises(ValueError, match="class_weight='balanced' needs all rows"):
        params_of(FMClassifier, class_weight="balanced").fit(stream_of(X, y))
    with pytest.raises(ValueError, match="y holds one class only"):
        params_of(FMClassifier).fit(stream_of(X, np.zeros(1050)))


def test_widths_may_grow_and_rows_weigh_nothing(clicks):
    X, y, weight = clicks
    weight = np.where(np.arange(1050) < 300, 0, weight)
    widths = np.where(np.arange(1050) < 400, 120, 140)

    def blocks():
        for a in range(0, 1050, 50):
            block = sparse.csr_array(X[a : a + 50, : widths[a]])
            yield block, y[a : a + 50], weight[a : a + 50]

    model = params_of(FMRegressor, batch_size=2).fit(RowStream(blocks, chunk_size=100))
    assert model.n_features_in_ == 140
    narrow = X.tolil()
    narrow[:400, 120:] = 0
    expected = params_of(FMRegressor, batch_size=2).fit(
        sparse.csr_array(narrow)[300:], y[300:], weight[300:]
    )
    assert_allclose(model.factors_, expected.factors_, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("as_stream", [True, False])
def test_validation_stream_stops_early(clicks, as_stream):
    X, y, weight = clicks
    train, held = stream_of(X[:900], y[:900]), (X[900:], y[900:], weight[900:])
    params = {**FM, "max_iter": 30, "n_iter_no_change": 3, "learning_rate": 5.0, "shuffle": False}
    val = {"X_val": stream_of(*held)}
    if not as_stream:
        val = {"X_val": held[0], "y_val": held[1], "sample_weight_val": held[2]}
    model = FMClassifier(**params).fit(train, **val)
    given = dict(zip(("X_val", "y_val", "sample_weight_val"), held, strict=True))
    expected = FMClassifier(**params).fit(X[:900], y[:900], **given)
    assert model.best_iter_ == expected.best_iter_ < model.n_iter_ < 30
    assert_allclose(model.validation_scores_, expected.validation_scores_, rtol=1e-5)
    assert_array_equal(model.factors_, expected.factors_)


def test_rows_are_shuffled_within_chunks(clicks):
    X, y, _ = clicks
    params = {"max_iter": 2, "n_iter_no_change": None}
    ordered = FMClassifier(**FM, **params, shuffle=False).fit(stream_of(X, y))
    shuffled = FMClassifier(**FM, **params).fit(stream_of(X, y))
    assert (ordered.factors_ != shuffled.factors_).any()
    again = FMClassifier(**FM, **params, n_jobs=2).fit(stream_of(X, y))
    assert_array_equal(again.factors_, shuffled.factors_)


def test_warm_start_continues(clicks):
    X, y, _ = clicks
    params = {**FM, "shuffle": False, "n_iter_no_change": None}
    once = FMClassifier(**params, max_iter=4).fit(stream_of(X, y))
    warm = FMClassifier(**params, max_iter=2, warm_start=True).fit(stream_of(X, y))
    warm.fit(stream_of(X, y))
    assert_array_equal(warm.factors_, once.factors_)
    assert_allclose(warm.loss_curve_, once.loss_curve_)
    with pytest.raises(ValueError, match="X is a stream of 141 features, but the model .* 140"):
        warm.fit(stream_of(sparse.hstack([X, X[:, [0]]], format="csr"), y))
    assert_array_equal(warm.factors_, once.factors_)


@pytest.mark.parametrize("optimizer", ["cf_sgd", Adam(lazy=False)])
def test_failure_in_a_chunk_keeps_the_model_of_the_one_before(clicks, optimizer):
    X, y, _ = clicks
    passes = []

    def blocks():
        passes.append(0)
        for begin in range(0, 1000, 100):
            # In the third pass, the second epoch, the fourth chunk cannot be learned.
            factor = np.float32(1e25 if len(passes) == 3 and begin == 300 else 1)
            yield X[begin : begin + 100] * factor, y[begin : begin + 100]

    params = {**FM, "optimizer": optimizer, "early_stopping": False}
    model = FMClassifier(**params)
    with pytest.raises(DivergenceError, match="epoch 2.*The model of (the chunk before|epoch 1)"):
        model.fit(RowStream(blocks, chunk_size=100))
    assert model.n_iter_ == len(model.loss_curve_) == 1
    assert np.isfinite(model.factors_).all()
    one = FMClassifier(**params, max_iter=1, n_iter_no_change=None)
    one.fit(RowStream(lambda: iter([(X[:1000], y[:1000])]), chunk_size=100))
    in_place = optimizer == "cf_sgd"
    assert (model.factors_ != one.factors_).any() == in_place
    model.predict_proba(X)


def test_checkpoint_resumes(clicks, tmp_path):
    X, y, _ = clicks
    path = tmp_path / "fm.checkpoint"
    params = {**FM, "max_iter": 4, "n_iter_no_change": None}
    expected = FMClassifier(**params).fit(stream_of(X, y, shuffle=True))
    passes = []

    def dying():
        passes.append(0)
        if len(passes) == 4:
            raise OSError("gone")
        yield from stream_of(X, y).epoch()

    model = FMClassifier(**params).set_callbacks(Checkpoint(path))
    with pytest.raises(OSError, match="gone"):
        model.fit(RowStream(dying, chunk_size=300, shuffle=True))
    resumed = resume(path)
    assert resumed.n_iter_ == 2
    with pytest.raises(ValueError, match="y is not that of the fit to be resumed|X is not"):
        resume(path).fit(stream_of(X, 1 - y))
    resumed.fit(stream_of(X, y, shuffle=True))
    assert_array_equal(resumed.factors_, expected.factors_)
    assert_array_equal(resumed.loss_curve_, expected.loss_curve_)


@pytest.mark.parametrize(
    "params, given, message",
    [
        ({}, {"y": [1]}, "fit was given y beside a stream"),
        ({}, {"sample_weight": [1]}, "fit was given sample_weight beside a stream"),
        ({"early_stopping": True}, {}, "early_stopping=True with a stream needs .* X_val"),
        ({"early_stopping": False}, {"X_val": [[1]], "y_val": [1]}, "would ignore them"),
        ({}, {"X_val": [[1]]}, "X_val, but no y_val"),
    ],
)
def test_fits_that_cannot_be(clicks, params, given, message):
    with pytest.raises(ValueError, match=message):
        FMClassifier(**params).fit(stream_of(*clicks), **given)
    with pytest.raises(ValueError, match="X is a stream without a row"):
        FMClassifier().fit(RowStream(lambda: iter(())))


def test_chunks_train_by_partial_fit_with_an_encoder_that_grows():
    rng = np.random.default_rng(0)
    rows = rng.zipf(1.5, (400, 2)).astype(str).astype(object)
    y = (rows[:, 0] == "1").astype(int)
    blocks = [(rows[a : a + 50], y[a : a + 50]) for a in range(0, 400, 50)]
    encoder = IncrementalOneHotEncoder()
    model = FMClassifier(**FM)
    for X, y_chunk in RowStream(lambda: iter(blocks), encoder=encoder, chunk_size=50):
        model.partial_fit(X, y_chunk, classes=[0, 1], n_features=X.shape[1])
    assert model.n_features_in_ == encoder.n_features_out_ > 20
    model.predict_proba(encoder.transform(rows))
    stream = RowStream(lambda: iter(blocks), encoder=IncrementalOneHotEncoder(), chunk_size=50)
    assert FMClassifier(**FM, max_iter=2).fit(stream).n_features_in_ == model.n_features_in_
