"""Splitters, held-out parts of histories, and scorers of rankings."""

import pickle
from collections import defaultdict

import numpy as np
import pytest
from fake_recommender import Counting
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.feature_selection import VarianceThreshold
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score, cross_validate
from sklearn.pipeline import make_pipeline

from freqfm import InteractionRecommender, metrics
from freqfm.model_selection import (
    GlobalTimeSplit,
    LeaveLastOut,
    WarmStartKFold,
    holdout_by_content,
    holdout_interactions,
    make_ranking_scorer,
)

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


def random_histories(n_users=60, n_items=40, density=0.2, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.integers(1, 6, size=(n_users, n_items)) * (rng.random((n_users, n_items)) < density)
    return sparse.csr_array(X)


# Splitters of interactions


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
        (pandas.DataFrame({"u": users, "i": items, "r": 1, "t": days}), "auto"),
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


@pytest.mark.parametrize(
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


# Held-out parts of histories


HOLDOUTS = [
    lambda X, fraction: holdout_interactions(X, fraction, random_state=0),
    holdout_by_content,
]
matrices = st.integers(0, 2**32 - 1).map(
    lambda seed: random_histories(
        *np.random.default_rng(seed).integers(1, 20, size=2), density=seed % 7 / 6, seed=seed
    )
)


@pytest.mark.parametrize("hold_out", HOLDOUTS)
@settings(deadline=None)
@given(X=matrices, fraction=st.floats(0.01, 0.99))
def test_parts_of_histories(hold_out, X, fraction):
    before = X.copy()
    history, held_out = hold_out(X, fraction)
    assert_array_equal((history + held_out).toarray(), X.toarray())
    assert_array_equal(X.toarray(), before.toarray())
    assert history.dtype == held_out.dtype == X.dtype
    assert not history.multiply(held_out).nnz
    for length, n_held in zip(np.diff(X.indptr), np.diff(held_out.indptr), strict=True):
        wanted = max(round(fraction * length), 1)
        assert n_held == max(min(wanted, length - 1), 0)


@settings(deadline=None)
@given(X=matrices, seed=st.integers(0, 5), order=st.randoms())
def test_content_alone_decides(X, seed, order):
    expected = holdout_by_content(X, 0.4, seed)[1].toarray()
    rows = list(range(X.shape[0]))
    order.shuffle(rows)
    rows = rows[: 1 + len(rows) // 2]
    shuffled = holdout_by_content(X[rows], 0.4, seed)[1]
    assert_array_equal(shuffled.toarray(), expected[rows])
    values = X.copy().astype(np.float64)
    values.data[:] = np.random.default_rng(0).random(X.nnz) + 0.1
    assert_array_equal(holdout_by_content(values, 0.4, seed)[1].toarray() != 0, expected != 0)
    wider = sparse.csr_array((X.data, X.indices, X.indptr), shape=(X.shape[0], X.shape[1] + 9))
    assert_array_equal(holdout_by_content(wider, 0.4, seed)[1].toarray()[:, :-9], expected)


def test_any_format_of_histories():
    X = random_histories()
    doubled = sparse.coo_array(
        (np.tile(X.data / 2, 2), np.tile(np.stack(X.nonzero()), 2)), shape=X.shape
    )
    unsorted = X[:, ::-1].tocsr()
    unsorted = sparse.csr_array(
        (unsorted.data, X.shape[1] - 1 - unsorted.indices, unsorted.indptr), shape=X.shape
    )
    zeros = sparse.csr_array(X + 0)
    zeros.data[::3] = 0
    for hold_out in HOLDOUTS:
        expected = hold_out(X, 0.3)[1].toarray()
        for same in (X.toarray(), X.tocsc(), sparse.csr_matrix(X), doubled, unsorted):
            history, held_out = hold_out(same, 0.3)
            assert_array_equal(held_out.toarray(), expected)
            assert isinstance(history, sparse.csr_array)
        assert_array_equal(hold_out(zeros, 0.3)[1].nnz, hold_out(zeros.toarray(), 0.3)[1].nnz)


def test_held_out_items_look_random():
    X = sparse.csr_array(np.ones((400, 50)))
    X.data[:] = np.random.default_rng(0).random(X.nnz) < 0.5
    X.eliminate_zeros()
    for hold_out in HOLDOUTS:
        held_out = hold_out(X, 0.2)[1]
        share = (held_out != 0).sum(axis=0) / (X != 0).sum(axis=0)
        # 200 rows an item: a standard deviation of 0.03.
        assert share.min() > 0.08 and share.max() < 0.32
    one, other = (holdout_by_content(X, seed=seed)[1] for seed in (0, 1))
    assert (one != other).nnz > one.nnz


def test_min_history():
    X = random_histories()
    lengths = np.diff(X.indptr)
    for least in (0, 3, 8):
        history, held_out = holdout_interactions(X, 0.5, min_history=least, random_state=0)
        assert (np.diff(history.indptr) >= np.minimum(lengths, least)).all()
        assert (np.diff(held_out.indptr)[lengths > least] > 0).all()
    one, again, other = (holdout_interactions(X, random_state=seed)[1] for seed in (0, 0, 1))
    assert not (one != again).nnz and (one != other).nnz


@pytest.mark.parametrize("fraction", [0, 1, -0.5, np.nan, None, "half"])
def test_wrong_fractions(fraction):
    for hold_out in HOLDOUTS:
        with pytest.raises(ValueError, match="fraction=.* must be a number above 0 and below 1"):
            hold_out(random_histories(), fraction)
    with pytest.raises(ValueError, match="fraction="):
        make_ranking_scorer(fraction=fraction)


def test_wrong_holdouts():
    X = random_histories()
    with pytest.raises(ValueError, match="min_history=-1 must be an integer of at least 0"):
        holdout_interactions(X, min_history=-1)
    with pytest.raises(ValueError, match="seed='x' must be an integer"):
        holdout_by_content(X, seed="x")
    with pytest.raises(ValueError, match="Expected 2D array"):
        holdout_by_content([1, 2])
    X.indices[3] = 10**6
    for hold_out in HOLDOUTS:
        with pytest.raises(ValueError, match="X holds the column index 1000000"):
            hold_out(X, 0.2)
    assert holdout_by_content(sparse.csr_array((3, 4)))[1].shape == (3, 4)
    assert_array_equal(
        holdout_by_content(X[:0])[0].shape, holdout_by_content(X[:0], seed=-1)[1].shape
    )


# Scorers

METRICS = {
    "ndcg": metrics.ndcg_at_k,
    "recall": metrics.recall_at_k,
    "precision": metrics.precision_at_k,
    "average_precision": metrics.average_precision_at_k,
    "hit_rate": metrics.hit_rate_at_k,
    "reciprocal_rank": metrics.reciprocal_rank,
}


@pytest.fixture(scope="module")
def blocks():
    """Users of two groups, who choose among items of their own."""
    rng = np.random.default_rng(0)
    X = rng.random((80, 40)) < np.where(np.arange(80)[:, None] % 2 == np.arange(40) % 2, 0.4, 0.02)
    return sparse.csr_array(X.astype(np.float32))


@pytest.mark.parametrize("name", METRICS)
def test_scorer_of_histories(blocks, name):
    model = Counting().fit(blocks)
    scorer = make_ranking_scorer(name, k=5, fraction=0.3, seed=2)
    history, held_out = holdout_by_content(blocks, 0.3, 2)
    ranked, _ = model.recommend(history, n_recommendations=5)
    rows = np.flatnonzero(np.diff(held_out.indptr))
    expected = METRICS[name](held_out[rows], ranked[rows], 5)
    assert scorer(model, blocks) == pytest.approx(expected)
    assert scorer(model, blocks.toarray()) == pytest.approx(expected)
    assert scorer(model, blocks, held_out) != scorer(model, blocks)
    assert scorer(model, history, held_out) == pytest.approx(expected)
    assert scorer(model, history, sparse.coo_matrix(held_out)) == pytest.approx(expected)
    permuted = np.random.default_rng(0).permutation(80)
    assert scorer(model, blocks[permuted]) == pytest.approx(expected)
    assert scorer(Counting(-1e6).fit(blocks), blocks) < expected
    assert type(scorer(model, blocks)) is float


def test_scorer_of_pipelines(blocks):
    scorer = make_ranking_scorer("recall")
    plain, pipeline = Counting().fit(blocks), make_pipeline(TfidfTransformer(), Counting())
    with pytest.raises(NotFittedError):
        scorer(pipeline, blocks)
    assert scorer(pipeline.fit(blocks), blocks) == pytest.approx(scorer(plain, blocks), abs=0.05)
    selecting = make_pipeline(VarianceThreshold(0.2), Counting()).fit(blocks)
    with pytest.raises(ValueError, match="the transformers before Counting turn the 40 items"):
        scorer(selecting, blocks)
    with pytest.raises(TypeError, match="TfidfTransformer has no method recommend"):
        scorer(TfidfTransformer().fit(blocks), blocks)


@pytest.mark.parametrize("n_jobs", [None, 2])
def test_searches_of_histories(blocks, n_jobs):
    search = GridSearchCV(
        make_pipeline(TfidfTransformer(), Counting()),
        {"counting__weight": [-1e6, 1e-3]},
        scoring={name: make_ranking_scorer(name) for name in METRICS},
        refit="ndcg",
        cv=KFold(3, shuffle=True, random_state=0),
        n_jobs=n_jobs,
    ).fit(blocks)
    assert search.best_params_ == {"counting__weight": 1e-3}
    for name in METRICS:
        scores = search.cv_results_[f"mean_test_{name}"]
        assert scores[0] < scores[1] <= 1
    assert make_ranking_scorer()(search, blocks) == make_ranking_scorer()(
        search.best_estimator_, blocks
    )


def test_given_relevant_items_in_a_search(blocks):
    history, held_out = holdout_interactions(blocks, random_state=0)
    scorer = make_ranking_scorer(k=5)
    search = GridSearchCV(Counting(), {"weight": [1e-3]}, scoring=scorer, cv=4)
    search.fit(history, held_out)
    for k, (train, test) in enumerate(KFold(4).split(history)):
        expected = scorer(Counting().fit(history[train]), history[test], held_out[test])
        assert search.cv_results_[f"split{k}_test_score"] == [expected]


def test_scorer_of_interactions(blocks):
    X = np.column_stack(blocks.nonzero())
    model = InteractionRecommender(Counting(), k=7)
    scoring = {name: make_ranking_scorer(name, k=7) for name in METRICS}
    found = cross_validate(model, X, cv=WarmStartKFold(3, random_state=0), scoring=scoring)
    own = cross_val_score(model, X, cv=WarmStartKFold(3, random_state=0))
    assert_array_equal(found["test_ndcg"], own)
    assert (found["test_recall"] > 0.2).all()
    train, test = next(WarmStartKFold(3, random_state=0).split(X))
    fitted = clone(model).fit(X[train])
    assert scoring["ndcg"](make_pipeline(fitted), X[test]) == fitted.score(X[test])
    (items, _), users = fitted.recommend(np.unique(X[test, 0]), n_recommendations=7), X[test, 0]
    hits = [items[np.unique(users).searchsorted(user)].tolist().count(i) for user, i in X[test]]
    assert scoring["precision"](fitted, X[test]) == pytest.approx(np.sum(hits) / items.size)


def test_scorers_show_how_they_were_made():
    scorer = make_ranking_scorer("recall", k=np.int64(20), seed=3)
    assert repr(scorer) == "make_ranking_scorer('recall', k=20, fraction=0.2, seed=3)"
    assert repr(pickle.loads(pickle.dumps(scorer))) == repr(scorer)


@pytest.mark.parametrize(
    "options, match",
    [
        ({"metric": "ndgc"}, "metric='ndgc' is not known; did you mean 'ndcg'"),
        ({"metric": None}, "metric=None is not known"),
        ({"k": 0}, "k=0 must be an integer of at least 1"),
        ({"k": None}, "k=None must be an integer"),
        ({"seed": 0.5}, "seed=0.5 must be an integer"),
    ],
)
def test_wrong_scorers(options, match):
    with pytest.raises(ValueError, match=match):
        make_ranking_scorer(**options)


def test_nothing_to_score(blocks):
    model, scorer = Counting().fit(blocks), make_ranking_scorer()
    with pytest.raises(ValueError, match="no row of X holds two items"):
        scorer(model, sparse.csr_array(np.eye(40)))
    with pytest.raises(ValueError, match="y holds no items"):
        scorer(model, blocks, sparse.csr_array(blocks.shape))
    with pytest.raises(ValueError, match=r"y must be .* \(80, 40\); got one of shape \(80, 30"):
        scorer(model, blocks, blocks[:, :30])
    with pytest.raises(ValueError, match="y must be a sparse matrix .* got one of type ndarray"):
        scorer(model, blocks, np.zeros(80))
