"""compare_recommenders against fits by hand, and what it accepts and refuses."""

import pickle
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from helpers import each
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from sklearn.model_selection import KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Binarizer

from freqfm import (
    ALSRecommender,
    BlendRecommender,
    InteractionRecommender,
    ItemKNNRecommender,
    MFRecommender,
    PopularityRecommender,
)
from freqfm.datasets import make_interactions
from freqfm.estimators import comparison as compare
from freqfm.metrics import coverage_at_k, ndcg_at_k
from freqfm.model_selection import (
    GlobalTimeSplit,
    WarmStartKFold,
    compare_recommenders,
    holdout_interactions,
    make_ranking_scorer,
)

KNN = ("knn", ItemKNNRecommender(20))
ALS = ("als", ALSRecommender(4, max_iter=3))
POPULAR, OF_LATE = "most popular", "most popular of late"


@pytest.fixture(scope="module")
def X():
    return make_interactions(120, 60, 2000, random_state=0)


@pytest.fixture(scope="module")
def log(X):
    """Return a table with times at which the items were popular in turn."""
    users, items = X.nonzero()
    times = (
        1_600_000_000 + 1000 * items + np.random.default_rng(0).integers(30_000, size=len(items))
    )
    return [
        (f"u{user}", f"i{item}", 1.0, int(at))
        for user, item, at in zip(users, items, times, strict=True)
    ]


def by_name(comparison):
    return {row.name: row for row in comparison.rows_}


def scores_of(comparison):
    return {row.name: list(row.scores.values()) for row in comparison.rows_}


def test_scores_are_those_of_fits_by_hand(X):
    found = by_name(compare_recommenders(X, [KNN, ALS], random_state=3, n_jobs=1))
    history, held_out = holdout_interactions(X, random_state=3)
    users = np.flatnonzero(np.diff(held_out.indptr))
    for name, model in [
        ("knn", KNN[1]),
        ("als", ALSRecommender(4, max_iter=3, random_state=3)),
        (POPULAR, PopularityRecommender()),
    ]:
        ranked, _ = model.fit(history).recommend(users=users)
        assert found[name].scores["ndcg@10"] == ndcg_at_k(held_out[users], ranked)
        assert found[name].scores["coverage@10"] == coverage_at_k(ranked, 60)
        assert found[name].fit_seconds > 0 and found[name].request_ms > 0
        assert abs(found[name].stored_bytes - len(pickle.dumps(model))) < 200
    assert set(found) == {"knn", "als", POPULAR}


def test_rows_are_ordered_and_intervals_are_of_the_same_users(X):
    comparison = compare_recommenders(X, [KNN, ALS], random_state=3)
    first = comparison.rows_[0]
    assert first.interval == (0, 0)
    ndcg = [row.scores["ndcg@10"] for row in comparison.rows_]
    assert ndcg == sorted(ndcg, reverse=True)
    history, held_out = holdout_interactions(X, random_state=3)
    users = np.flatnonzero(np.diff(held_out.indptr))
    values = {}
    for name, model in [("knn", KNN[1]), (POPULAR, PopularityRecommender())]:
        ranked, _ = model.fit(history).recommend(users=users)
        values[name] = ndcg_at_k(held_out[users], ranked, average=False)
    assert first.name == "knn"
    differences = values[POPULAR] - values["knn"]
    generator = np.random.default_rng(1)
    means = [generator.choice(differences, len(users)).mean() for _ in range(4000)]
    row = by_name(comparison)[POPULAR]
    assert_allclose(row.interval, np.quantile(means, [0.025, 0.975]), atol=0.01)
    assert row.interval[0] < row.scores["ndcg@10"] - ndcg[0] < row.interval[1] < 0


def test_tables_with_times_are_split_by_time(log):
    members = [KNN, ("columns", InteractionRecommender(ItemKNNRecommender(20), value=None))]
    comparison = compare_recommenders(log, members, random_state=0)
    [(train, test)] = GlobalTimeSplit().split(log)
    train, test = ([log[row] for row in rows] for rows in (train, test))
    model = InteractionRecommender(ItemKNNRecommender(20)).fit(train)
    expected = make_ranking_scorer("ndcg@10")(model, test)
    assert by_name(comparison)["knn"].scores["ndcg@10"] == expected
    # Values that fall with age, as a user would give them.
    later = np.array([sum(other[3] > row[3] for other in train) for row in train])
    weights = 0.5 ** (later / (0.05 * len(train)))
    faded = [(*row[:2], float(w)) for row, w in zip(train, weights, strict=True)]
    model = InteractionRecommender(PopularityRecommender()).fit(faded)
    of_late = make_ranking_scorer("ndcg@10")(model, test)
    assert by_name(comparison)[OF_LATE].scores["ndcg@10"] == of_late
    assert of_late > by_name(comparison)[POPULAR].scores["ndcg@10"]
    # Without times the last ones are not known.
    names = set(by_name(compare_recommenders([row[:3] for row in log], [KNN], random_state=0)))
    assert names == {"knn", POPULAR}


@pytest.mark.slow
def test_any_form_of_the_same_table(log):
    pd, pl = pytest.importorskip("pandas"), pytest.importorskip("polars")
    expected = scores_of(compare_recommenders(log, [KNN], random_state=0))
    frame = pd.DataFrame(log, columns=["user", "item", "value", "timestamp"])
    strange = frame[["timestamp", "value", "item", "user"]].set_axis(list("abcd"), axis=1)
    dated = frame.assign(timestamp=pd.to_datetime(frame["timestamp"], unit="s"))
    codes = np.column_stack(
        [frame["user"].str[1:], frame["item"].str[1:], frame[["value", "timestamp"]]]
    )
    reader = InteractionRecommender(ItemKNNRecommender(20), user="d", item="c", value="b")
    by_column = GlobalTimeSplit(user="d", item="c", time="a")
    for table, members, cv in [
        (frame, [KNN], None),
        (pl.from_pandas(frame), [KNN], None),
        (np.array(log, dtype=object), [KNN], None),
        (codes.astype(np.int64), [KNN], None),
        (dated, [KNN], None),
        (strange, [("knn", reader)], by_column),
        (strange, [KNN], by_column),
        (log, [KNN], list(GlobalTimeSplit().split(log))),
    ]:
        found = scores_of(compare_recommenders(table, members, cv=cv, random_state=0))
        assert found.keys() == expected.keys()
        for name, scores in found.items():
            # Ties between items may be in another order of ids.
            assert_allclose(scores, expected[name], atol=0.02)


@pytest.mark.slow
def test_splitters_are_of_interactions(X, log):
    for data in (X, log):
        for cv in (2, WarmStartKFold(2, random_state=0), KFold(2, shuffle=True, random_state=0)):
            comparison = compare_recommenders(data, [KNN], cv=cv, random_state=0)
            assert comparison.rows_[0].name == "knn"
            assert all(row.error is None for row in comparison.rows_)
    scores = [
        make_ranking_scorer("ndcg@10")(
            InteractionRecommender(ItemKNNRecommender(20)).fit([log[row] for row in train]),
            [log[row] for row in test],
        )
        for train, test in WarmStartKFold(2, random_state=0).split(log)
    ]
    found = by_name(compare_recommenders(log, [KNN], cv=np.int64(2), random_state=0))
    assert found["knn"].scores["ndcg@10"] == pytest.approx(np.mean(scores))
    assert found[POPULAR].interval[1] < 0


def test_the_best_is_fitted_to_everything_when_asked_for(X, log):
    comparison = compare_recommenders(X, [KNN], random_state=0)
    again = pickle.loads(pickle.dumps(comparison))
    best = again.best_estimator_
    assert best is again.best_estimator_ and isinstance(best, ItemKNNRecommender)
    assert_array_equal(best.recommend(X)[0], ItemKNNRecommender(20).fit(X).recommend(X)[0])
    best = compare_recommenders(log, [], random_state=0).best_estimator_
    assert best.recommend(history=[], n_recommendations=1)[0][0] in {f"i{i}" for i in range(50, 60)}


@pytest.mark.slow
def test_pipelines_and_blends(X, log):
    binary = make_pipeline(Binarizer(), ItemKNNRecommender(20))
    of_table = make_pipeline(InteractionRecommender(ItemKNNRecommender(20)))
    blend = BlendRecommender([KNN, ("popular", PopularityRecommender())])
    found = scores_of(compare_recommenders(2 * X, [("pipe", binary), KNN], random_state=0))
    assert found["pipe"] != found[POPULAR]
    found = scores_of(compare_recommenders(log, [("pipe", of_table), KNN], random_state=0))
    assert found["pipe"] == found["knn"]
    for data in (X, log):
        comparison = compare_recommenders(data, [("blend", blend)], random_state=0)
        assert by_name(comparison)["blend"].error is None


def test_results_depend_on_the_seed_alone(X):
    members = [("als", ALSRecommender(4, max_iter=3)), ("pairs", InteractionRecommender())]
    one, other = (
        compare_recommenders(X, members[:1], random_state=5, n_jobs=n_jobs) for n_jobs in (1, 2)
    )
    assert scores_of(one) == scores_of(other)
    assert [row.interval for row in one.rows_] == [row.interval for row in other.rows_]
    assert one.rows_[0].estimator.random_state == 5
    assert one.rows_[0].estimator.n_jobs == 1 and members[0][1].n_jobs is None


class Failing(PopularityRecommender):
    """A recommender that cannot be fitted."""

    def fit(self, X, y=None):
        raise MemoryError("too\nlarge")


class Slow(PopularityRecommender):
    """A recommender that takes a minute, of a clock that a test may move."""

    now = 0.0

    def fit(self, X, y=None):
        Slow.now += 60
        return super().fit(X)


def test_what_fails_or_comes_too_late_has_a_row(X, monkeypatch):
    clock = SimpleNamespace(perf_counter=lambda: Slow.now)
    monkeypatch.setattr(compare, "time", clock)
    members = [("<b>", Failing()), ("slow", Slow()), ("late", ItemKNNRecommender())]
    comparison = compare_recommenders(X, members, time_limit=30, random_state=0)
    rows = by_name(comparison)
    assert rows["<b>"].error == "MemoryError: too large"
    assert rows["late"].error == "not begun: the time_limit of 30 seconds had passed"
    assert rows["slow"].error is None and rows["slow"].fit_seconds == 60
    assert [row.name for row in comparison.rows_[2:]] == ["<b>", "late"]
    for text in (repr(comparison), comparison._repr_html_()):
        assert "too large" in text and "not begun" in text
    assert "<b>" not in comparison._repr_html_()
    with pytest.raises(ValueError, match=r"no recommender could be tested.*\(not begun"):
        compare_recommenders(X, members, time_limit=0)
    given = BlendRecommender([KNN])
    comparison = compare_recommenders(X, [("blend", given)], time_limit=30, random_state=0)
    assert by_name(comparison)["blend"].estimator.time_limit == 30


def test_frame(X):
    pytest.importorskip("pandas")
    frame = compare_recommenders(X, [("bad", Failing()), KNN], random_state=0).to_frame()
    assert list(frame.index) == ["knn", POPULAR, "bad"]
    assert list(frame.columns) == [
        *("ndcg@10", "recall@10", "coverage@10", "difference_low", "difference_high"),
        *("fit_seconds", "request_ms", "stored_bytes", "error"),
    ]
    assert frame["error"].isna().tolist() == [True, True, False]
    assert np.isnan(frame.loc["bad", "ndcg@10"])


def test_scorers(X):
    scoring = [make_ranking_scorer("recall", k=5), "mrr@3", "coverage@5"]
    again = make_ranking_scorer("recall", k=5, exclude_seen=False)
    comparison = compare_recommenders(X, [KNN], scoring=[*scoring, again], random_state=0)
    assert list(comparison.rows_[0].scores) == [
        *("recall@5", "mrr@3", "coverage@5", "recall@5, with seen items"),
    ]
    scores = comparison.rows_[0].scores
    assert scores["recall@5, with seen items"] < scores["recall@5"]
    assert list(compare_recommenders(X, [KNN], scoring="ndcg").rows_[0].scores) == ["ndcg@10"]


@each(
    "changed, words",
    [
        ({"estimators": [ItemKNNRecommender()]}, "estimators holds ItemKNNRecommender"),
        ({"estimators": ItemKNNRecommender()}, "estimators holds ItemKNNRecommender"),
        ({"estimators": [("knn", ItemKNNRecommender)]}, "estimators holds ('knn'"),
        ({"estimators": {"knn": ItemKNNRecommender()}}, "estimators holds"),
        ({"estimators": [KNN, KNN]}, "the name 'knn' twice"),
        ({"estimators": [(POPULAR, ALS[1])]}, "the name 'most popular' twice"),
        ({"scoring": "coverage@10"}, "has to be a mean over users"),
        ({"scoring": "ndgc"}, "did you mean 'ndcg'"),
        ({"scoring": []}, "scoring=[]"),
        ({"scoring": [max]}, "scoring=[<built-in function max>]"),
        ({"scoring": None}, "scoring=None"),
        ({"scoring": {"ndcg@5": "ndcg@20"}}, "scoring={'ndcg@5': 'ndcg@20'}"),
        ({"time_limit": -1}, "time_limit=-1"),
        ({"time_limit": "1"}, "time_limit='1'"),
        ({"cv": 1}, "n_splits"),
        ({"cv": "time"}, "cv"),
        ({"interactions": [[1, 0], [0, 1]]}, "cannot be divided: X is a list"),
        ({"interactions": sparse.csr_array((5, 5))}, "interactions are too few"),
        ({"interactions": [("ann", "tea")]}, "interactions are too few"),
        ({"interactions": "log.parquet"}, "it is a str; give a table in memory"),
        ({"interactions": Path("log.parquet")}, "Path; give a table in memory"),
        ({"interactions": None}, "interactions cannot be divided"),
        ({"interactions": [("ann", i, 1_600_000_000 + i) for i in range(9)]}, "times"),
    ],
)
def test_what_is_refused(X, changed, words):
    with pytest.raises((TypeError, ValueError)) as error:
        compare_recommenders(**{"interactions": X, "estimators": [KNN]} | changed)
    assert words in str(error.value)


def test_lazy_tables_are_refused():
    pl = pytest.importorskip("polars")
    with pytest.raises(TypeError, match="interactions cannot be divided: it is a LazyFrame"):
        compare_recommenders(pl.LazyFrame({"user": ["a"], "item": ["b"]}))


def test_default_recommenders(X):
    comparison = compare_recommenders(X[:40, :30], random_state=0, n_jobs=1)
    names = {"als", "ease", "graph_filter", "item_knn", "mf", "blend", POPULAR}
    assert set(by_name(comparison)) == names
    assert not any(row.error for row in comparison.rows_)


def test_columns_are_named_by_a_splitter_or_a_recommender(log):
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(log, columns=["who", "item", "value", "time"])
    with pytest.raises(ValueError, match=r"no column of users.*cv=GlobalTimeSplit\(user="):
        compare_recommenders(frame, [KNN])
    with pytest.raises(ValueError, match=r"several columns of times.*time=\.\.\.\)"):
        compare_recommenders(frame.assign(user=frame["who"], date=frame["time"]), [KNN])
    X = pd.DataFrame(np.ones((30, 20)))
    with pytest.raises(ValueError, match="has to be given as an array"):
        compare_recommenders(X, [KNN])


@pytest.mark.slow
def test_all_matrices_and_dislikes(X):
    expected = scores_of(compare_recommenders(X, [KNN], random_state=0))
    for same in (X.toarray(), X.toarray() > 0, X.tocsc(), X.astype(np.int8), sparse.coo_matrix(X)):
        assert scores_of(compare_recommenders(same, [KNN], random_state=0)) == expected
    Y = X.copy()
    Y.data[::4] *= -1
    scoring = ["ndcg@10", "neg_dislike_rate@10"]
    rows = compare_recommenders(Y, [KNN], scoring=scoring, random_state=0).rows_
    assert all(row.scores["neg_dislike_rate@10"] < 0 for row in rows)
    # Users without interactions are not tested.
    more = sparse.vstack([X, sparse.csr_array((5, 60))]).tocsr()
    assert not any(row.error for row in compare_recommenders(more, [KNN], cv=2).rows_)


@pytest.mark.slow
def test_features_and_contexts(log):
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(log, columns=["user", "item", "value", "timestamp"])
    frame["device"] = np.where(np.arange(len(frame)) % 2, "a", "b")
    kinds = pd.DataFrame(
        {"item": [f"i{i}" for i in range(65)], "kind": ["x", "y", "z", "v", "w"] * 13}
    )
    model = MFRecommender(4, max_iter=2)
    members = [
        ("features", InteractionRecommender(model, value="value", item_features=kinds)),
        ("context", InteractionRecommender(model, value="value", context=["device"])),
    ]
    rows = by_name(compare_recommenders(frame, members, random_state=0))
    assert rows["features"].error is None and rows[OF_LATE].error is None
    assert "in contexts" in rows["context"].error
