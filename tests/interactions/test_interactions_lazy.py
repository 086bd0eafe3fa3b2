"""Tables of interactions that are read chunk by chunk."""

import tracemalloc

import numpy as np
import pytest
from fake_recommender import Counting
from helpers import each
from numpy.testing import assert_array_equal

from freqfm import InteractionRecommender
from freqfm._input import interactions as _interactions
from freqfm.estimators.interactions import encoding

polars = pytest.importorskip("polars")
pyarrow = pytest.importorskip("pyarrow")
dataset = pytest.importorskip("pyarrow.dataset")
parquet = pytest.importorskip("pyarrow.parquet")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(_interactions, "_ROWS_OF_CHUNK", 7)
    rng = np.random.default_rng(0)
    frame = polars.DataFrame(
        {"when": np.arange(60), "item_id": rng.integers(0, 9, 60),
         "user_id": [f"u{i}" for i in rng.integers(0, 20, 60)], "count": rng.random(60)}
    )  # fmt: skip
    for i in range(3):
        frame[20 * i : 20 * (i + 1)].write_parquet(tmp_path / f"{i}.parquet")
    return tmp_path, frame


READERS = {
    "pyarrow": lambda path: dataset.dataset(path),
    "polars": lambda path: polars.scan_parquet(path / "*.parquet"),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("value", ["auto", None])
def test_matrix_of_a_folder_is_that_of_the_table(folder, reader, value):
    path, frame = folder
    expected = InteractionRecommender(Seeing(), value=value).fit(frame)
    model = InteractionRecommender(Seeing(), value=value).fit(READERS[reader](path))
    names = ["user_ids_", "item_ids_"]
    if hasattr(expected, "feature_names_in_"):  # Scikit-learn 1.6 knows none of Polars 2.
        names.append("feature_names_in_")
    for name in names:
        assert_array_equal(getattr(model, name), getattr(expected, name))
    for name in ("indptr", "indices", "data"):
        found = getattr(model.estimator_.X, name)
        np.testing.assert_allclose(found, getattr(expected.estimator_.X, name), rtol=1e-6)
    assert model.estimator_.X.dtype == np.float32
    with pytest.raises(TypeError, match="X is a .*which only fit reads.*chunk by chunk"):
        model.partial_fit(READERS[reader](path))


@pytest.mark.parametrize("named", [["item"], ["value"], ["user", "value"], ["value", "item"]])
def test_columns_may_be_named_or_found(folder, named):
    _, frame = folder
    columns = {"user": "user_id", "item": "item_id", "value": "count"}
    given = {role: columns[role] for role in named}
    expected = InteractionRecommender(Seeing(), **given).fit(frame)
    model = InteractionRecommender(Seeing(), **given).fit(frame.lazy())
    for name in ("user_ids_", "item_ids_"):
        assert_array_equal(getattr(model, name), getattr(expected, name))
    difference = model.estimator_.X - expected.estimator_.X
    np.testing.assert_allclose(difference.toarray(), 0, atol=1e-6)


def test_a_query_is_run_once_besides_its_first_rows(folder):
    _, frame = folder
    rng, n_runs = np.random.default_rng(0), []

    def in_any_order(rows):
        n_runs.append(len(rows))
        return rows[rng.permutation(len(rows))]

    query = frame.lazy().map_batches(in_any_order, streamable=False)
    model = InteractionRecommender(Seeing()).fit(query)
    expected = InteractionRecommender(Seeing()).fit(frame)
    np.testing.assert_allclose(model.estimator_.X.toarray(), expected.estimator_.X.toarray())
    assert len(n_runs) <= 2


def test_partitions_and_filters_of_a_dataset(folder):
    path, frame = folder
    table = frame.select("user_id", "item_id").to_arrow()
    options = {"partitioning": ["item_id"], "partitioning_flavor": "hive"}
    dataset.write_dataset(table, path / "items", format="parquet", **options)
    data = dataset.dataset(path / "items", partitioning="hive")
    few = polars.col("item_id") < 4
    for given, expected in [
        (data, frame),
        (data.filter(dataset.field("item_id") < 4), frame.filter(few)),
    ]:
        model = InteractionRecommender(Seeing(), value=None).fit(given)
        expected = InteractionRecommender(Seeing(), value=None).fit(expected)
        assert_array_equal(model.item_ids_, expected.item_ids_)
        assert (model.estimator_.X != expected.estimator_.X).nnz == 0


def test_memory_is_that_of_few_row_groups(tmp_path, monkeypatch):
    monkeypatch.setattr(_interactions, "_ROWS_OF_CHUNK", 1000)
    rng = np.random.default_rng(0)
    ids = {
        f"{role}_id": pyarrow.array([f"{role} {k:0400d}" for k in range(50)]).take(
            pyarrow.array(rng.integers(0, 50, 30_000))
        )
        for role in ("user", "item")
    }
    table = pyarrow.table(ids)
    options = {"max_rows_per_file": 5000, "max_rows_per_group": 1000}
    dataset.write_dataset(table, tmp_path, format="parquet", **options)
    n_bytes = table.nbytes
    del table, ids
    before = pyarrow.default_memory_pool()
    pool = pyarrow.proxy_memory_pool(before)
    pyarrow.set_memory_pool(pool)
    tracemalloc.start()
    try:
        model = InteractionRecommender(Seeing()).fit(dataset.dataset(tmp_path))
        of_python = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        pyarrow.set_memory_pool(before)
    assert model.estimator_.X.sum() == 30_000
    assert pool.max_memory() + of_python < n_bytes / 4


def test_row_groups_of_few_rows_are_read_together(tmp_path, monkeypatch):
    monkeypatch.setattr(_interactions, "_ROWS_OF_CHUNK", 50)
    ids = np.random.default_rng(0).integers(0, 20, (2, 180)).astype(str)
    table = pyarrow.table({"user_id": pyarrow.array(ids[0]).dictionary_encode(), "item_id": ids[1]})
    # Files of three rows, whose dictionaries differ, and one of 60, which is read in parts of 50.
    for begin in range(0, 120, 3):
        rows = table[begin : begin + 3].to_pydict()
        rows["user_id"] = pyarrow.array(rows["user_id"]).dictionary_encode()
        parquet.write_table(pyarrow.table(rows), tmp_path / f"{begin:03}.parquet")
    parquet.write_table(table[120:], tmp_path / "large.parquet")
    data = dataset.dataset(tmp_path)
    chunks = list(_interactions.LazyTable(data).chunks(["user_id", "item_id"]))
    assert [chunk.shape[0] for chunk in chunks] == [51, 51, 68, 10]
    assert np.concatenate([chunk.ids("user", 0) for chunk in chunks]).tolist() == ids[0].tolist()
    model = InteractionRecommender(Seeing(), value=None).fit(data)
    expected = InteractionRecommender(Seeing(), value=None).fit(table)
    assert_array_equal(model.user_ids_, expected.user_ids_)
    assert (model.estimator_.X != expected.estimator_.X).nnz == 0


def test_empty_folder_and_missing_columns(folder):
    path, frame = folder
    with pytest.raises(ValueError, match="X has 0 rows"):
        InteractionRecommender(Seeing()).fit(frame.clear().lazy())
    with pytest.raises(ValueError, match="user='nobody' is not a column of X"):
        InteractionRecommender(Seeing(), user="nobody").fit(READERS["pyarrow"](path))
    assert not hasattr(InteractionRecommender(Seeing()), "user_ids_")


def batches_of(frame):
    """Return batches of Arrow, of any number of rows."""
    table = frame.to_arrow()
    return [table.slice(at, 11).combine_chunks().to_batches()[0] for at in range(0, 200, 11)]


class Stream:
    """What other libraries give: nothing but a stream of Arrow."""

    def __init__(self, frame):
        self._table = frame.to_arrow()

    def __arrow_c_stream__(self, requested_schema=None):
        return self._table.__arrow_c_stream__(requested_schema)


LAZY = {
    "path of a folder": lambda path, frame: str(path),
    "path of a file": lambda path, frame: path / "0.parquet",
    "Dataset": lambda path, frame: dataset.dataset(path),
    "RecordBatchReader": lambda path, frame: frame.to_arrow().to_reader(max_chunksize=9),
    "list of batches": lambda path, frame: batches_of(frame),
    "iterator of batches": lambda path, frame: iter(batches_of(frame)),
    "stream": lambda path, frame: Stream(frame),
    "Scanner": lambda path, frame: dataset.dataset(path).scanner().to_reader(),
}

COLUMNS = {
    "strings": {},
    "integers": {"user_id": polars.col("user_id") * 10**12 - 7},
    "categories": {"item_id": polars.col("item_id").cast(polars.String).cast(polars.Categorical)},
    "no values": {"rating": None},
    "counts": {"rating": polars.col("rating").round()},
    "huge": {"rating": polars.col("rating") * 1e30},
}


@pytest.fixture
def log(tmp_path, monkeypatch):
    """Return a folder and its table, which has pairs several times, in several chunks."""
    monkeypatch.setattr(_interactions, "_ROWS_OF_CHUNK", 23)
    monkeypatch.setattr(encoding, "_ENTRIES", 10)
    rng = np.random.default_rng(0)

    def made(columns):
        frame = polars.DataFrame(
            {"when": np.arange(200), "item_id": [f"i{i}" for i in rng.integers(0, 9, 200)],
             "user_id": rng.integers(0, 20, 200), "rating": 5 * rng.random(200)}
        )  # fmt: skip
        frame = frame.with_columns(**{n: c for n, c in columns.items() if c is not None})
        frame = frame.drop([name for name, column in columns.items() if column is None])
        frame.write_parquet(tmp_path / "0.parquet", row_group_size=50)
        return tmp_path, frame

    return made


QUICK = ["path of a folder", "iterator of batches"]


@pytest.mark.filterwarnings("ignore:X is read with")
@each("name", QUICK, slow=[name for name in LAZY if name not in QUICK])
def test_matrix_of_batches_is_bitwise_that_of_the_table(log, name):
    for kind, columns in COLUMNS.items():
        path, frame = log(columns)
        for options in ({}, {"dislikes_up_to": 2}) if "rating" in frame.columns else ({},):
            expected = InteractionRecommender(Seeing(), **options).fit(frame)
            model = InteractionRecommender(Seeing(), **options).fit(LAZY[name](path, frame))
            for ids in ("user_ids_", "item_ids_"):
                assert_array_equal(getattr(model, ids), getattr(expected, ids), err_msg=kind)
                assert getattr(model, ids).dtype == getattr(expected, ids).dtype
            for part in ("indptr", "indices", "data"):
                found = [getattr(one.estimator_.X, part) for one in (model, expected)]
                assert_array_equal(*found, err_msg=kind)


def test_what_cannot_be_read_lazily_is_refused_by_name(log, tmp_path):
    path, frame = log({})
    model, reader = InteractionRecommender(Seeing(), value=None), LAZY["RecordBatchReader"]
    with pytest.raises(FileNotFoundError, match="nowhere"):
        model.fit(tmp_path / "nowhere")
    (tmp_path / "log.csv").write_text("user,item")
    with pytest.raises(ValueError, match=r"log\.csv"):
        model.fit(tmp_path / "log.csv")
    read = reader(path, frame)
    model.fit(read)
    for empty in (read, iter(batches_of(frame)[:1] * 0)):
        with pytest.raises((TypeError, ValueError), match="X has 0 rows|X is a list_iterator"):
            model.fit(empty)
    with pytest.raises(TypeError, match="X is a generator"):
        model.fit(row for row in [("a", "b")])
    for lazy in (str(path / "0.parquet"), reader(path, frame), LAZY["Dataset"](path, frame)):
        for call in (model.partial_fit, model.predict, model.score):
            with pytest.raises(TypeError, match="X is a .*which only fit reads.*memory"):
                call(lazy)
    with pytest.raises(TypeError, match="X_val is a str, which only fit reads"):
        model.fit(frame, X_val=str(path / "0.parquet"))
    with pytest.raises(TypeError, match=r"context=.* needs a table in memory"):
        InteractionRecommender(context=["when"]).fit(path / "0.parquet")
    mixed = [batches_of(frame)[0], batches_of(frame.select("item_id", "user_id"))[1]]
    with pytest.raises(ValueError, match="(?i)schema"):
        model.fit(mixed)
    missing = frame.with_columns(user_id=polars.when(polars.col("when") > 3).then("user_id"))
    with pytest.raises(ValueError, match="X's column of users"):
        model.fit(LAZY["stream"](path, missing))


@pytest.mark.slow
def test_a_row_takes_twelve_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(_interactions, "_ROWS_OF_CHUNK", 4000)
    monkeypatch.setattr(encoding, "_ENTRIES", 1000)
    rng = np.random.default_rng(0)
    n = 300_000
    columns = {"user_id": rng.integers(0, 3000, n), "item_id": rng.integers(0, 2000, n)}
    table = pyarrow.table({**columns, "rating": rng.integers(1, 6, n)})
    for value, n_bytes in ((None, 12), ("rating", 20)):
        model = InteractionRecommender(Nothing(), value=value)
        reader = table.to_reader(max_chunksize=4000)
        tracemalloc.start()
        try:
            model.fit(reader)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < n_bytes * n + 1.6e6


class Nothing(Counting):
    """A recommender that learns nothing."""

    def fit(self, X, y=None):
        return self


class Seeing(Counting):
    """A recommender that keeps its matrix."""

    def fit(self, X, y=None):
        self.X = X
        return super().fit(X)
