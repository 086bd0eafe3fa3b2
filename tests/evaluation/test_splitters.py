"""Splitters of interactions."""

import pickle
import sys
from collections import defaultdict
from datetime import date, datetime, timedelta, timezone
from datetime import time as time_of_day
from decimal import Decimal
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from fake_recommender import Counting
from helpers import each
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from scipy import sparse
from sklearn.model_selection import cross_val_score

from freqfm import InteractionRecommender
from freqfm._input import ids as times_module
from freqfm._input.interactions import InteractionTable
from freqfm.model_selection import GlobalTimeSplit, LeaveLastOut, WarmStartKFold

SPLITTERS = [WarmStartKFold(2, random_state=0), LeaveLastOut(), GlobalTimeSplit()]

# Rows of (user, item, value, time), with repeated pairs and equal times.
logs = st.lists(
    st.tuples(st.integers(0, 6), st.integers(0, 6), st.just(1), st.integers(0, 20)),
    min_size=1,
    max_size=60,
).map(np.array)


def splits_of(splitter, X):
    """Return the splits, or None if the data do not allow them."""
    try:
        return list(splitter.split(X))
    except ValueError as error:
        assert any(words in str(error) for words in ("too large", "nothing to"))
        return None


@settings(deadline=None)
@given(X=logs, n_splits=st.integers(2, 5), shuffle=st.booleans(), seed=st.integers(0, 9))
def test_warm_folds(X, n_splits, shuffle, seed):
    splits = splits_of(WarmStartKFold(n_splits, shuffle=shuffle, random_state=seed), X)
    pairs = {tuple(row) for row in X[:, :2].tolist()}
    users, items = (np.bincount([pair[axis] for pair in pairs], minlength=7) for axis in (0, 1))
    testable = {(u, i) for u, i in pairs if users[u] > 1 and items[i] > 1}
    if splits is None:
        # Each item may have to keep one of its pairs in training.
        assert len(testable) - len({i for _, i in testable}) < n_splits
        return
    assert len(splits) == n_splits
    tested, sizes = set(), []
    for train, test in splits:
        assert_array_equal(np.sort(np.concatenate([train, test])), np.arange(len(X)))
        assert_array_equal(train, np.sort(train))
        assert set(X[test, 0]) <= set(X[train, 0])
        assert set(X[test, 1]) <= set(X[train, 1])
        here = {tuple(row) for row in X[test, :2].tolist()}
        assert here and not here & tested
        assert not here & {tuple(row) for row in X[train, :2].tolist()}
        tested |= here
        sizes.append(len(here))
    assert tested <= testable
    lost = [item for _, item in testable - tested]
    assert len(lost) == len(set(lost))
    assert max(sizes) - min(sizes) <= len(lost) + 1


def test_warm_folds_are_balanced_and_random():
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.integers(50, size=2000), rng.integers(80, size=2000)])
    first, again, other = (
        [test for _, test in WarmStartKFold(5, random_state=seed).split(X)] for seed in (0, 0, 1)
    )
    sizes = [len(test) for test in first]
    assert sum(sizes) == len(X)
    assert max(sizes) < 1.2 * min(sizes)
    for one, two, three in zip(first, again, other, strict=True):
        assert_array_equal(one, two)
        assert len(one) != len(three) or (one != three).any()
    generator = np.random.default_rng(0)
    splitter = WarmStartKFold(5, random_state=generator)
    assert not np.array_equal(next(splitter.split(X))[1], next(splitter.split(X))[1])


def test_shuffled_folds_depend_on_more_than_users():
    # One user: chance must decide which items go together.
    X = [(user, item) for user in (0, 1) for item in range(30)]
    folds = [
        frozenset(test.tolist())
        for seed in range(3)
        for _, test in WarmStartKFold(2, random_state=seed).split(X)
    ]
    assert len(set(folds)) == 6


@settings(deadline=None)
@given(X=logs, n=st.integers(1, 3), drop_repeated=st.booleans())
def test_leave_last_out(X, n, drop_repeated):
    rows_of = defaultdict(list)
    for row in sorted(range(len(X)), key=lambda row: (X[row, 3], row)):
        rows_of[X[row, 0]].append(row)
    expected = sorted(
        row for rows in rows_of.values() if len(rows) > n for row in rows[len(rows) - n :]
    )
    trained = sorted(set(range(len(X))) - set(expected))
    if drop_repeated:
        known = {tuple(row) for row in X[trained, :2].tolist()}
        expected = [row for row in expected if tuple(X[row, :2].tolist()) not in known]
    splits = splits_of(LeaveLastOut(n, drop_repeated=drop_repeated), X)
    if splits is None:
        assert not expected
        return
    ((train, test),) = splits
    assert test.tolist() == expected
    assert train.tolist() == trained


@settings(deadline=None)
@given(
    X=logs,
    n_splits=st.integers(1, 3),
    fraction=st.floats(0.05, 0.3),
    drop_cold=st.booleans(),
    drop_repeated=st.booleans(),
)
def test_global_time_split(X, n_splits, fraction, drop_cold, drop_repeated):
    drop = {"drop_cold": drop_cold, "drop_repeated": drop_repeated}
    splitter = GlobalTimeSplit(n_splits, test_fraction=fraction, **drop)
    splits = splits_of(splitter, X)
    if splits is None:
        return
    assert len(splits) == n_splits == splitter.get_n_splits()
    times = X[:, 3]
    ends = [times[train].max() for train, _ in splits]
    starts = [np.min(times[times > end]) for end in ends]
    for (train, test), start, end in zip(splits, starts, [*starts[1:], 21], strict=True):
        assert_array_equal(train, np.flatnonzero(times < start))
        window = (times >= start) & (times < end)
        if drop_cold:
            for column in (0, 1):
                window &= np.isin(X[:, column], X[train, column])
        if drop_repeated:
            known = {tuple(row) for row in X[train, :2].tolist()}
            window &= np.array([tuple(row) not in known for row in X[:, :2].tolist()])
        assert_array_equal(test, np.flatnonzero(window))
        assert len(test)


@pytest.mark.parametrize(
    ("splitter", "drop"),
    [
        (GlobalTimeSplit, {"drop_cold": False, "drop_repeated": False, "n_splits": 3}),
        (LeaveLastOut, {"drop_repeated": False}),
    ],
)
def test_sizes_of_splits(splitter, drop, capsys):
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.integers(40, size=(300, 2)), np.ones(300), rng.permutation(300)])
    X[:, 0] *= rng.random(300) < 0.8
    n_splits = {name: value for name, value in drop.items() if name == "n_splits"}
    whole = [test for _, test in splitter(**drop).split(X)]
    assert capsys.readouterr().out == ""
    splitter = splitter(**n_splits, verbose=1)
    for _ in range(2):  # the second call starts anew
        splits = list(splitter.split(X))
    lines = capsys.readouterr().out.splitlines()[len(splits) :]
    for (train, test), asked, sizes, line in zip(
        splits, whole, splitter.split_sizes_, lines, strict=True
    ):
        known, tested, wanted = (set(X[rows, 0]) for rows in (train, test, asked))
        assert sizes.n_train == len(train) and sizes.n_train_users == len(known)
        assert sizes.n_test == len(test) and sizes.n_test_users == len(tested)
        assert sizes.n_left_out == len(asked) - len(test) > 0
        assert sizes.n_left_out_users == len(wanted - tested)
        assert f"test {len(test)} of {len(tested)}, leave out {sizes.n_left_out} (all of" in line


def test_times_may_be_ordered_categories():
    pd, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    months = ["Jan", "Feb", "Mar"]
    table = pd.DataFrame(
        {"user": ["ann", "bob"] * 3, "item": list("aabbcc"),
         "time": pd.Categorical(np.repeat(months, 2), categories=months, ordered=True)}
    )  # fmt: skip
    enum = polars.Series("time", np.repeat(months, 2).tolist(), dtype=polars.Enum(months))
    others = {name: table[name].tolist() for name in ("user", "item")}
    for X in (table, polars.DataFrame({**others, "time": enum})):
        ((train, test),) = GlobalTimeSplit(test_fraction=0.34, drop_cold=False).split(X)
        assert (train.tolist(), test.tolist()) == ([0, 1, 2, 3], [4, 5])
        ((train, test),) = LeaveLastOut().split(X)
        assert (train.tolist(), test.tolist()) == ([0, 1, 2, 3], [4, 5])


def test_global_time_split_has_the_shares_asked_for():
    X = np.column_stack([np.zeros((1000, 3)), np.random.default_rng(0).permutation(1000)])
    X[:, 1] = X[:, 3] >= 100
    ((train, test),) = GlobalTimeSplit(drop_repeated=False).split(X)
    assert len(train) == 800 and len(test) == 200
    splits = list(GlobalTimeSplit(3, test_fraction=0.1, drop_repeated=False).split(X))
    assert [len(train) for train, _ in splits] == [700, 800, 900]
    assert [len(test) for _, test in splits] == [100] * 3


def test_where_times_are():
    pandas = pytest.importorskip("pandas")
    rows = [("ann", "a", 1, 30), ("ann", "b", 1, 10), ("ann", "c", 1, 20)]
    days = np.array([30, 10, 20]).astype("datetime64[D]")
    users, items = ["ann"] * 3, ["a", "b", "c"]
    for X, time in (
        (rows, "auto"),
        (rows, 3),
        (np.array(rows)[:, [0, 1, 3]], 2),
        (np.array(rows)[:, [0, 1, 3]], -1),
        (pandas.DataFrame({"user": users, "item": items, "timestamp": days}), "auto"),
        (pandas.DataFrame({"user": users, "time": days, "item": items}), "auto"),
        (pandas.DataFrame({0: users, 1: items, 2: 1, 3: days}), "auto"),
        (pandas.DataFrame({"user": users, "item": items, "when": days}), "when"),
        (pandas.DataFrame({"user": users, "item": items, "when": days.astype(str)}), "when"),
        (pandas.DataFrame({"user": users, "item": items, "when": days.tolist()}), "when"),
    ):
        ((_, test),) = LeaveLastOut(time=time).split(X)
        assert test.tolist() == [0]
    ((_, test),) = LeaveLastOut(time=None).split([row[:2] for row in rows])
    assert test.tolist() == [2]
    ((_, test),) = LeaveLastOut(user=1, item=0, time=3).split([(r[1], r[0], 1, r[3]) for r in rows])
    assert test.tolist() == [0]


BERLIN = ZoneInfo("Europe/Berlin")


@each(
    "times",
    [
        ["78", "746", "1000"],
        ["9.5", "10", "11.25"],
        ["-1e3", "+20", " 100 "],
        # As floats the last two would be equal.
        ["9007199254740991", "9007199254740992", "9007199254740993"],
        ["1704412800.12345678901", "1704412800.1234567891", "1704412800.123456789101"],
        ["2023-02-01", "2023-10-01 00:00:01", "2024-01"],
        # The same day in other time zones.
        ["2024-01-01T10:00:00+02:00", "2024-01-01T09:00:00Z", "2024-01-01 08:00 -0200"],
        ["0001-01-01T00:00+05:00", "2024-01-05T10:00:00Z", "9999-12-31T23:59:59-01:00"],
        # One unit of NumPy's holds these two, another one those with many decimals.
        ["0001-01-01", "2024-01-05T10:00:00.123456789", "9999-12-31"],
        ["2024-01-05T10", "2024-01-05T10:00:00.00000000001", "2024-01-05T10:00:00.0000000001"],
        ["20240105", "20240131", "20240201"],
        np.array([b"9", b"10", b"11"]),
        [b"2024-01-05", b"2024-01-06", b"2024-01-07"],
        [date(2024, 1, 4), datetime(2024, 1, 5), "2024-01-06"],
        # The hour that is repeated: the last one is the earliest by the clock.
        [
            datetime(2024, 10, 27, 2, 20, tzinfo=BERLIN),
            datetime(2024, 10, 27, 2, 30, tzinfo=BERLIN),
            datetime(2024, 10, 27, 2, 10, tzinfo=BERLIN, fold=1),
        ],
        [
            datetime(2024, 1, 5, 12, tzinfo=ZoneInfo("Asia/Tokyo")),
            datetime(2024, 1, 5, 12, tzinfo=BERLIN),
            datetime(2024, 1, 5, 11, 30, tzinfo=timezone.utc),
        ],
        [np.datetime64("0001-01-01"), np.datetime64("2024-01-05T10", "ns"), date(9999, 12, 31)],
        [timedelta(hours=9), timedelta(days=1), timedelta(days=10)],
        [Decimal("1.1"), 10**30, 10**30 + 1],
    ],
)
def test_times_are_sorted_by_time(times):
    rows = [("ann", item, 1, time) for item, time in zip("abc", times, strict=True)]
    for order in ([0, 1, 2], [2, 0, 1], [1, 2, 0]):
        for splitter in (LeaveLastOut(), GlobalTimeSplit(test_fraction=0.3, drop_cold=False)):
            ((train, test),) = splitter.split([rows[row] for row in order])
            assert test.tolist() == [order.index(2)]
            assert len(train) == 2


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
@each(
    "times",
    [
        ["0001-01-01", "2024-01-05T10:00:00.123456789", "9999-12-31"],
        ["2024-01-01T10:00:00+02:00", "2024-01-01T09:00:00Z", "2024-01-01 08:00 -0200"],
        [datetime(2024, 10, 27, 0, minute, tzinfo=timezone.utc) for minute in (5, 10, 59)],
        [date(2024, 1, 31), date(2024, 2, 1), date(2024, 12, 1)],
    ],
)
def test_times_in_frames_are_sorted_by_time(library, times):
    module = pytest.importorskip(library)
    columns = {"user": ["ann"] * 3, "item": list("bca"), "time": [times[i] for i in (1, 2, 0)]}
    frame = module.table(columns) if library == "pyarrow" else module.DataFrame(columns)
    frames = [frame]
    if library == "pandas":
        frames += [frame.astype({"time": kind}) for kind in ("object", "category")]
        if isinstance(times[0], str):
            frames.append(frame.astype({"time": "string"}))
        elif isinstance(times[0], datetime):
            frames.append(frame.assign(time=frame["time"].dt.tz_convert("Europe/Berlin")))
    for one in frames:
        ((_, test),) = LeaveLastOut().split(one)
        assert test.tolist() == [1]


@each(
    "times, match",
    [
        (["05-01-24", "04-02-24", "03-03-24"], "times holds '03-03-24' at row 2, whose order in"),
        (["05/01/24", "04/02/24"], "holds '04/02/24' at row 1, whose order in time is not clear"),
        (["2024-01-04", "2024-1-5"], "holds '2024-1-5' at row 1"),
        (["2024-01-04", "20240105"], "holds '20240105' at row 1"),
        (["2024-W01-1", "2024-W02-1"], "holds '2024-W01-1' at row 0"),
        (["2024-01-05", "2024-02-30"], "holds '2024-02-30' at row 1"),
        (["2024-01-05T24:00", "2024-01-05T10:00"], "holds '2024-01-05T24:00' at row 0"),
        (["today", "now"], "holds 'now' at row 1"),
        (["2024-01-05", "NaT"], "holds 'NaT' at row 1"),
        (["", "2024-01-05"], "holds '' at row 0"),
        (["1", "1_0"], "holds '1_0' at row 1"),
        (["\u0661", "\u0662"], "holds '\u0661' at row 0"),
        ([time_of_day(10), time_of_day(9)], "holds '09:00:00' at row 1"),
        (["2024-01-05T10:00:00+02:00", "2024-01-05T09:00:00"], "'2024-01-05T10:00:00.02:00' besi"),
        ([datetime(2024, 1, 5, tzinfo=BERLIN), datetime(2024, 1, 5)], "which has no time zone"),
        (["2024-01-05", "2024-01-05T10:00"], "'2024-01-05' beside '2024-01-05T10:00', so that"),
        ([date(2024, 1, 5), datetime(2024, 1, 5, 10)], "'2024-01-05' beside '2024-01-05T10:00:00'"),
        (["2024-01", "2024-01-05"], "'2024-01' beside '2024-01-05'"),
        (["2024", "2024-01"], "'2024' beside '2024-01'"),
        (
            ["202402", "20240105"],
            "202402 beside 20240105, which look like times in different units",
        ),
        (["1704412800", "1704412800000", "0"], "1704412800 beside 1704412800000, which look like"),
        ([1704412800, 1704412800000], "different units"),
        ([1704412800.5, 20240105], "different units"),
        (np.array([1704412800, 1704412790], dtype=np.float32), "float32 numbers of 2..24 and more"),
        ([1.7e18, 1.8e18], "float64 numbers of 2..53 and more are rounded"),
    ],
)
def test_times_whose_order_is_not_clear(times, match):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"user": ["ann"] * len(times), "item": range(len(times))})
    frame["time"] = times
    tables = [frame, list(frame.itertuples(index=False, name=None))]
    for table in tables if isinstance(times, list) else tables[:1]:
        for splitter in (LeaveLastOut(time=2), GlobalTimeSplit(time=2)):
            with pytest.raises(ValueError, match=match):
                list(splitter.split(table))


SECONDS = np.random.default_rng(0).permutation(60) * 50_000 + 1_700_000_000
IN_UTC = [datetime.fromtimestamp(second, timezone.utc) for second in SECONDS.tolist()]
IN_BERLIN = [one.astimezone(BERLIN) for one in IN_UTC]
OTHER_ZONES = [BERLIN, ZoneInfo("Asia/Tokyo"), timezone(-timedelta(hours=3, minutes=30))]
IN_SEVERAL_ZONES = [one.astimezone(OTHER_ZONES[k % 3]) for k, one in enumerate(IN_UTC)]


@each(
    "times",
    [
        IN_UTC,
        IN_BERLIN,
        IN_SEVERAL_ZONES,
        [one.replace(tzinfo=None) for one in IN_UTC],
        list(SECONDS.astype("datetime64[s]")),
        [one.isoformat() for one in IN_SEVERAL_ZONES],
        [one.isoformat().encode() for one in IN_UTC],
        # Of several lengths.
        [str(one.replace(microsecond=one.hour % 2 * 5)) for one in IN_UTC],
        list(map(str, SECONDS)),
    ],
)
def test_usual_times_are_not_read_one_by_one(monkeypatch, times):
    monkeypatch.setattr(times_module, "_as_text", None)
    ranks = InteractionTable([(0, 0, 1, one) for one in times]).ranks(3)
    assert_array_equal(np.argsort(ranks), np.argsort(SECONDS))


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
def test_usual_columns_of_times_are_not_read_one_by_one(monkeypatch, library):
    monkeypatch.setattr(times_module, "_at_once", None)
    module = pytest.importorskip(library)
    columns = {"user": [0] * 60, "time": IN_BERLIN}
    frame = module.table(columns) if library == "pyarrow" else module.DataFrame(columns)
    frames = [frame]
    if library == "pandas":
        zone, clock = frame["time"].dt.tz_convert("Asia/Tokyo"), frame["time"].dt.tz_convert(None)
        of_arrow = "timestamp[us, Asia/Tokyo][pyarrow]"
        times = [zone, zone.astype("category"), zone.astype(of_arrow), clock.dt.to_period("s")]
        frames += [frame.assign(time=one) for one in [*times, clock, clock.astype("category")]]
    for one in frames:
        assert_array_equal(np.argsort(InteractionTable(one).ranks(1)), np.argsort(SECONDS))
    if library == "pandas":
        zone[7] = None
        for kind in (zone.dtype, "category", of_arrow, "object"):
            with pytest.raises(ValueError, match="times holds (NaT|None|<NA>|nan) at row 7"):
                InteractionTable(frame.assign(time=zone.astype(kind))).ranks(1)


ODD = ["", "x", "7", "1.5", "2024", "2024-02-30", "0000-01-01", "2024-01-05T24:00", "2024-01-05 "]


@pytest.mark.slow
@settings(max_examples=200)
@given(
    st.lists(st.datetimes(timezones=st.none() | st.timezones()) | st.dates(), min_size=1),
    st.lists(st.tuples(st.integers(0, 40), st.sampled_from([*ODD, "+", "-", ":", "\u0663"]))),
    st.sampled_from(["objects", "iso", "seconds", "zone"]),
)
def test_times_that_are_read_at_once_are_those_read_one_by_one(dates, changes, form):
    if form == "zone":
        dates = [one for one in dates if getattr(one, "tzinfo", None)] or dates
    values = dates if form == "objects" else [one.isoformat() for one in dates]
    values = [one[:19] for one in values] if form == "seconds" else values
    for place, text in changes[: form != "objects" and 1]:
        one = values[place % len(values)]
        values[place % len(values)] = one[:place] + text + one[place + len(text) :]

    def ranks():
        try:
            given = np.fromiter(values, object, len(values))
            return np.unique(times_module.time_ranks(given, "X"), return_inverse=True)[1].tolist()
        except (TypeError, ValueError) as error:
            return str(error)

    at_once = ranks()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(times_module, "_at_once", lambda times, types: None)
        assert ranks() == at_once


@each("time", [True, np.True_, 1j, np.complex64(1), frozenset([1])])
def test_values_without_an_order_are_no_times(time):
    pandas = pytest.importorskip("pandas")
    rows = [(0, 0, time), (0, 1, time)]
    for splitter in (LeaveLastOut(time=2), GlobalTimeSplit(time=2)):
        for X in (rows, pandas.DataFrame(rows)):
            with pytest.raises(TypeError, match="times holds values of the type .*; times are num"):
                list(splitter.split(X))


def test_missing_durations_without_narwhals(monkeypatch):
    pandas = pytest.importorskip("pandas")
    monkeypatch.setitem(sys.modules, "narwhals", None)
    durations = pandas.to_timedelta([None, "1s"])
    frame = pandas.DataFrame({"user": "ann", "item": ["a", "b"], "time": durations})
    with pytest.raises(ValueError, match="column of times holds (NaT|None) at row 0"):
        list(LeaveLastOut().split(frame))


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
@pytest.mark.parametrize("splitter", SPLITTERS, ids=repr)
def test_frames_split_as_arrays(library, splitter):
    module = pytest.importorskip(library)
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.integers(9, size=(200, 2)), np.ones(200), rng.permutation(200)])
    columns = dict(zip(["user", "item", "value", "time"], X.T.astype(int), strict=True))
    frame = module.table(columns) if library == "pyarrow" else module.DataFrame(columns)
    for one, other in zip(splitter.split(frame), splitter.split(X), strict=True):
        assert_array_equal(one[0], other[0])
        assert_array_equal(one[1], other[1])


@each(
    "splitter, X, match",
    [
        (WarmStartKFold(1), [(1, 2)], "n_splits=1 must be an integer of at least 2"),
        (WarmStartKFold(2.0), [(1, 2)], "n_splits=2.0 must be an integer"),
        (WarmStartKFold(2), [(1, 2), (1, 3)], "n_splits=2 is too large for X: only 0 of its 2"),
        (WarmStartKFold(2), [(1, 2), (1, None)], "column of items holds None at row 1"),
        (WarmStartKFold(2), [1, 2], "Expected 2D array"),
        (WarmStartKFold(user="who"), [(1, 2)], "user='who' is not a column"),
        (LeaveLastOut(0), [(1, 2, 1, 0)], "n=0 must be an integer of at least 1"),
        (LeaveLastOut(2), [(1, 2, 1, 0)] * 2, "n=2 leaves nothing to test"),
        (LeaveLastOut(), [(1, 2, 3)], "time='auto' finds no column of times in X: it has 3 col"),
        (LeaveLastOut(time=5), [(1, 2, 3)], "time=5 is not a column of X"),
        (LeaveLastOut(time=1), [(1, 2, 3)], "time and item would both be column 1"),
        (LeaveLastOut(), [(1, 2, 3, None)], "column of times holds None at row 0"),
        (LeaveLastOut(), [(1, 2, 3, "24/10/2023")], "times holds '24/10/2023' at row 0, whose"),
        (LeaveLastOut(), [(1, 2, 3, "2023"), (1, 2, 3, "nan")], "times holds 'nan' at row 1"),
        (
            LeaveLastOut(time=2),
            [(1, 2, "a"), (1, 2, 3)],
            "times holds values of the types int, str",
        ),
        (GlobalTimeSplit(0), [(1, 2, 1, 0)], "n_splits=0 must be an integer of at least 1"),
        (GlobalTimeSplit(test_fraction=1), [(1, 2, 1, 0)], "test_fraction=1 must be a number"),
        (GlobalTimeSplit(5), [(1, 2, 1, 0)], "n_splits=5 times test_fraction=0.2 is 1"),
        (GlobalTimeSplit(), [(1, 2, 1, 0)] * 9, "a split with nothing to train on"),
        (
            GlobalTimeSplit(),
            [(row, row, 1, row) for row in range(9)],
            "nothing to test.*drop_cold=False",
        ),
    ],
)
def test_wrong_splits(splitter, X, match):
    with pytest.raises(ValueError if "types" not in match else TypeError, match=match):
        list(splitter.split(X))


@pytest.mark.parametrize("splitter", SPLITTERS, ids=repr)
def test_a_matrix_is_no_table(splitter):
    X = sparse.coo_array(np.eye(4, 7))
    message = r"X is a sparse matrix of shape \(4, 7\), where a table of interactions is expected"
    with pytest.raises(TypeError, match=message):
        list(splitter.split(X))


def test_dates_without_a_time():
    X = np.array([[0, 0, 5], [0, 1, 6]], dtype="datetime64[s]")
    with pytest.raises(TypeError, match="ids are numbers"):
        list(LeaveLastOut(time=2).split(X))
    X = [(0, 0, np.datetime64("2020-01-01")), (0, 1, np.datetime64("NaT"))]
    with pytest.raises(ValueError, match="column of times holds NaT at row 1"):
        list(LeaveLastOut(time=2).split(X))


@pytest.mark.parametrize("splitter", SPLITTERS, ids=repr)
def test_splitters_are_at_home_in_scikit_learn(splitter):
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.integers(9, size=(200, 2)), np.ones(200), rng.permutation(200)])
    copy = pickle.loads(pickle.dumps(splitter))
    assert repr(copy) == repr(splitter)
    assert len(list(copy.split(X, groups=np.zeros(200)))) == splitter.get_n_splits(X)
    scores = cross_val_score(InteractionRecommender(Counting()), X, cv=splitter)
    assert len(scores) == splitter.get_n_splits() and np.isfinite(scores).all()
