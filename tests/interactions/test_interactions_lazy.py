"""Tables of interactions that are read chunk by chunk."""

import tracemalloc

import numpy as np
import pytest
from fake_recommender import Counting
from numpy.testing import assert_array_equal

from freqfm import InteractionRecommender
from freqfm._input import interactions as _interactions

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


class Seeing(Counting):
    """A recommender that keeps its matrix."""

    def fit(self, X, y=None):
        self.X = X
        return super().fit(X)
