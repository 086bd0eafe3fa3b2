"""One value is one token, whichever container holds it."""

import datetime as dt
import enum
from decimal import Decimal
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from helpers import each
from numpy.testing import assert_array_equal
from sklearn.feature_extraction import FeatureHasher

from freqfm.datasets import IncrementalOneHotEncoder, RowStream

pd = pytest.importorskip("pandas")
pl = pytest.importorskip("polars")
pa = pytest.importorskip("pyarrow")
nw = pytest.importorskip("narwhals")
parquet = pytest.importorskip("pyarrow.parquet")

DAYS = [dt.date(2026, 1, 1), None, dt.date(2026, 7, 2)]
TIMES = [dt.datetime(2026, 1, 1, 10), None, dt.datetime(2026, 7, 2)]
SPANS = [dt.timedelta(hours=1), None, dt.timedelta(days=2)]
TAGS = [[f"tag {k}" for k in range(1200)], None, ["a"]]
WORDS = ["tea", None, "rum"]

# By name: the values, their type in Arrow, and how they are written after "x=".
KINDS = {
    "bool": ([True, None, False], pa.bool_(), ["True", "None", "False"]),
    "int": ([1, 2, 300], pa.int64(), ["1", "2", "300"]),
    "int with nulls": ([1, None, 3], pa.int32(), ["1", "None", "3"]),
    "unsigned": ([1, 2, 255], pa.uint8(), ["1", "2", "255"]),
    "float": ([0.5, 1.0, None], pa.float64(), ["0.5", "1", "None"]),
    "float32": ([0.5, -0.0, 2.0**70], pa.float32(), ["0.5", "0", str(2**70)]),
    "decimal": (
        [Decimal("1.50"), None, Decimal("2.00")], pa.decimal128(9, 2), ["1.5", "None", "2"]
    ),
    "string": (WORDS, pa.string(), WORDS),
    "large string": (WORDS, pa.large_string(), WORDS),
    "category": (WORDS, pa.dictionary(pa.int32(), pa.string()), WORDS),
    "category of int": ([7, None, 9], pa.dictionary(pa.int32(), pa.int64()), ["7", "None", "9"]),
    "bytes": ([b"a", None, b"c"], pa.binary(), ["b'a'", "None", "b'c'"]),
    "date": (DAYS, pa.date32(), ["2026-01-01", "None", "2026-07-02"]),
    "time": ([dt.time(1, 2), None, dt.time(3)], pa.time64("us"), ["01:02:00", "None", "03:00:00"]),
    "time in ns": ([dt.time(1, 2), None, None], pa.time64("ns"), ["01:02:00", "None", "None"]),
    **{
        f"datetime in {unit}": (
            TIMES, pa.timestamp(unit), ["2026-01-01 10:00:00", "None", "2026-07-02"]
        )
        for unit in ("s", "ms", "us", "ns")
    },
    **{
        f"datetime in {unit} of {zone}": (
            [t and t.replace(tzinfo=ZoneInfo(zone)) for t in TIMES], pa.timestamp(unit, zone), texts
        )
        for zone, texts in {
            "UTC": ["2026-01-01 10:00:00+00:00", "None", "2026-07-02 00:00:00+00:00"],
            "Europe/Paris": ["2026-01-01 09:00:00+00:00", "None", "2026-07-01 22:00:00+00:00"],
        }.items()
        for unit in ("s", "ms", "us", "ns")
    },
    **{
        f"duration in {unit}": (SPANS, pa.duration(unit), ["1:00:00", "None", "2 days, 0:00:00"])
        for unit in ("s", "ms", "us", "ns")
    },
    "list": (TAGS, pa.list_(pa.string()), [str(TAGS[0]), "None", "['a']"]),
    "list of float": ([[1.0, 0.5], [], None], pa.list_(pa.float64()), ["[1, 0.5]", "[]", "None"]),
    "list of dates": ([DAYS, [], None], pa.list_(pa.date32()), [str(DAYS), "[]", "None"]),
    "array": ([[1, 2], [5, 6], [3, 4]], pa.list_(pa.int64(), 2), ["[1, 2]", "[5, 6]", "[3, 4]"]),
    "struct": (
        [{"b": 1, "a": 0.4}, {"b": None, "a": 2.0}, None],
        pa.struct({"b": pa.int64(), "a": pa.float64()}),
        ["{'a': 0.4, 'b': 1}", "{'a': 2}", "None"],
    ),
    "map": (
        [{"sea": 2.0, "abv": 0.4}, {}, None],
        pa.map_(pa.string(), pa.float64()),
        ["{'abv': 0.4, 'sea': 2}", "[]", "None"],
    ),
    "null": ([None, None, None], pa.null(), ["None"] * 3),
}  # fmt: skip


# One-hot fields cannot hold these.
NESTED = "list", "list of float", "list of dates", "array", "struct", "map"


def objects(values):
    """Return values as an array of objects, also if all are lists of the same length."""
    array = np.empty((len(values), 1), dtype=object)
    for row, value in enumerate(values):
        array[row, 0] = value
    return array


def typed(arrow):
    """Return the array of one type that NumPy has for values of Arrow, or one of objects."""
    values = arrow.to_numpy(zero_copy_only=False)
    return objects(values.tolist()) if values.dtype == object else values[:, np.newaxis]


# What makes a container of a table of pyarrow.
CONTAINERS = {
    "objects": lambda table: objects(table["x"].to_pylist()),
    "array": lambda table: typed(table["x"].combine_chunks()),
    "pandas": lambda table: table.to_pandas(),
    "pandas objects": lambda table: pd.DataFrame(objects(table["x"].to_pylist()), columns=["x"]),
    "pandas nullable": lambda table: table.to_pandas().convert_dtypes(),
    "pandas arrow": lambda table: table.to_pandas(types_mapper=pd.ArrowDtype),
    "polars": pl.from_arrow,
    "table": lambda table: table,
    "batch": lambda table: table.to_batches()[0],
    "narwhals of pandas": lambda table: nw.from_native(table.to_pandas()),
    "narwhals of polars": lambda table: nw.from_native(pl.from_arrow(table)),
    "narwhals of Arrow": nw.from_native,
}


def table_of(kind, missing=True):
    """Return a table of a column "x", of values of a kind."""
    values, dtype, _ = KINDS[kind]
    values = [value for value in values if missing or value is not None]
    if kind == "map":
        values = [value and list(value.items()) for value in values]
    return pa.table({"x": pa.array(values, dtype)})


def containers_of(kind, missing=True):
    """Yield containers of values of a kind by name, all that can hold them."""
    table = table_of(kind, missing)
    for name, make in CONTAINERS.items():
        # NumPy has no time zones.
        if name != "array" or " of " not in kind or "datetime" not in kind:
            yield name, make(table)


def hashed(stream):
    """Return the columns of the rows of a stream, which have one token each."""
    return np.concatenate([X.indices for X, *_ in stream]).tolist()


HASHER = FeatureHasher(input_type="string")


def columns_of(name, tokens):
    return HASHER.transform([[f"{name}={token}"] for token in tokens]).indices.tolist()


@pytest.mark.slow
@each("kind", KINDS)
def test_values_are_hashed_alike(kind):
    tokens = [str(token) for token in KINDS[kind][2]]
    for name, X in containers_of(kind):
        stream = RowStream(lambda X=X: iter([(X, [0, 1, 0])]), encoder=HASHER, prefetch=0)
        expected = columns_of("0" if isinstance(X, np.ndarray) else "x", tokens)
        assert hashed(stream) == expected, name


@pytest.mark.filterwarnings("ignore:X (has|does not have valid) feature names")
@each("kind", [kind for kind in KINDS if kind not in (*NESTED, "null")])
def test_values_have_the_same_one_hot_columns(kind):
    containers = dict(containers_of(kind, missing=False))
    encoder = IncrementalOneHotEncoder().fit(containers["objects"])
    n = len(table_of(kind, missing=False))
    for name, X in containers.items():
        assert_array_equal(encoder.transform(X).indices, np.arange(n), name)
        assert repr(IncrementalOneHotEncoder().fit(X).columns_) == repr(encoder.columns_), name


@each("kind", NESTED)
def test_lists_and_structs_are_no_categories(kind):
    for _, X in containers_of(kind, missing=False):
        with pytest.raises(TypeError, match="Field 0 of X holds a value that cannot be a category"):
            IncrementalOneHotEncoder().fit(X)


@pytest.mark.parametrize("reader", ["pyarrow", "polars"])
def test_values_of_parquet_files(reader, tmp_path):
    tables = {kind: table_of(kind)["x"] for kind in KINDS}
    parquet.write_table(pa.table({**tables, "y": [0, 1, 0]}), tmp_path / "t.parquet")
    source = tmp_path if reader == "pyarrow" else pl.scan_parquet(tmp_path / "t.parquet")
    for kind, (values, _, tokens) in KINDS.items():
        options = {"features": [kind], "prefetch": 0}
        stream = RowStream.from_parquet(source, "y", encoder=HASHER, **options)
        assert hashed(stream) == columns_of(kind, tokens), kind
        if kind not in NESTED and None not in values:
            encoder = IncrementalOneHotEncoder()
            list(RowStream.from_parquet(source, "y", encoder=encoder, **options))
            assert [*map(str, encoder.columns_[0])] == tokens, kind


ARROW = "pandas arrow", "polars", "table", "batch", "narwhals of polars", "narwhals of Arrow"

# By type: the containers that keep nanoseconds.
NANOSECONDS = {
    pa.timestamp("ns"): CONTAINERS,
    pa.timestamp("ns", "Europe/Paris"): [name for name in CONTAINERS if name != "array"],
    pa.duration("ns"): CONTAINERS,
    pa.time64("ns"): ARROW,
    pa.list_(pa.timestamp("ns")): CONTAINERS,
}


@each("dtype, names", NANOSECONDS.items())
def test_nanoseconds_are_refused(dtype, names):
    numbers = pa.array([[1001]] if pa.types.is_list(dtype) else [1001])
    table = pa.table({"x": numbers.cast(dtype)})
    for name in names:
        with pytest.raises(
            ValueError, match="column ('x'|0) of X holds what Python's types cannot"
        ):
            IncrementalOneHotEncoder().fit(CONTAINERS[name](table))


@each(
    "X",
    [
        np.array([["12000-01-01"]], "M8[D]"),
        np.array([["500000-01-01"]], "M8[D]"),
        np.array([["2026-01-01T00:00:00.000000000001"]], "M8[ps]"),
        np.array([[10**18]], "m8[s]"),
        pa.table({"x": pa.array([10**15], pa.timestamp("ms"))}),
        pl.DataFrame({"x": pl.Series([10**15]).cast(pl.Datetime("ms"))}),
    ],
)
def test_dates_beyond_those_of_python_are_refused(X):
    with pytest.raises(ValueError, match="column ('x'|0) of X holds what Python's types cannot"):
        IncrementalOneHotEncoder().fit(X)


UTC = dt.timezone.utc


@each(
    "known, other",
    [
        ("1", 1),
        ("a", b"a"),
        (1, dt.date(2026, 1, 1)),
        (dt.date(2026, 1, 1), "2026-01-01"),
        (dt.datetime(2026, 1, 1, 3), dt.datetime(2026, 1, 1, 3, tzinfo=UTC)),
        (dt.date(2026, 1, 1), dt.datetime(2026, 1, 1, tzinfo=UTC)),
        (dt.timedelta(seconds=1), 1),
        (dt.time(1), dt.timedelta(hours=1)),
    ],
)
def test_values_of_another_kind_are_refused(known, other):
    encoder = IncrementalOneHotEncoder().fit(objects([known]))
    for call in (encoder.transform, encoder.partial_fit):
        with pytest.raises(TypeError, match="Field 0 of X holds .* beside .*; these would be two"):
            call(objects([other]))
    with pytest.raises(TypeError, match="Field 0 of X holds .* beside .*; these would be two"):
        IncrementalOneHotEncoder().fit(objects([known, other]))


class Colour(str, enum.Enum):
    RED = "red"


@each(
    "value, token",
    [
        (np.int8(3), "3"),
        (np.float32(2), "2"),
        (np.str_("a"), "a"),
        (np.bool_(True), "True"),
        (np.datetime64("2026-01-01", "ns"), "2026-01-01"),
        (np.timedelta64(1, "h"), "1:00:00"),
        (np.datetime64("NaT", "s"), "None"),
        (pd.NaT, "None"),
        (pd.NA, "None"),
        (Decimal("NaN"), "None"),
        (Decimal("0.10"), "0.1"),
        (Colour.RED, "red"),
        ({"b", "a"}, "['a', 'b']"),
        (frozenset({2, 1}), "[1, 2]"),
        (("b", "a"), "['b', 'a']"),
        (np.array([1.0, 2.5]), "[1, 2.5]"),
        ({"b": 1, "a": None}, "{'b': 1}"),
        ([("b", 1), ("a", 2)], "{'a': 2, 'b': 1}"),
        ([("a", 1), ("a", 2)], "[['a', 1], ['a', 2]]"),
        (float("inf"), "inf"),
        (10**30, str(10**30)),
    ],
)
def test_objects_that_only_lists_and_arrays_hold(value, token):
    stream = RowStream(lambda: iter([(objects([value]), [0])]), encoder=HASHER, prefetch=0)
    assert hashed(stream) == columns_of(0, [token])
