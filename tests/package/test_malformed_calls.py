"""Malformed arguments that benchmarks/robustness/fuzz.py has found: errors that name them."""

import numpy as np
import pytest
from helpers import each
from numpy.testing import assert_array_equal
from scipy import sparse

from freqfm import (
    ALSRecommender,
    FastVAERecommender,
    FMClassifier,
    FMRegressor,
    InteractionRecommender,
    MFRecommender,
)
from freqfm.datasets import make_clicks, make_interactions
from freqfm.metrics import (
    diversity_at_k,
    ndcg_at_k,
    normalized_entropy,
    ranking_report,
    recall_at_k,
)
from freqfm.model_selection import (
    GlobalTimeSplit,
    LeaveLastOut,
    WarmStartKFold,
    holdout_by_content,
    holdout_interactions,
    make_ranking_scorer,
)
from freqfm.samplers import MIDX, Popularity, Uniform

TABLE = [(user, item, 1.0, 3 * user + item) for user in range(6) for item in range(4)]
HISTORIES = np.array([[1.0, 2, 0, 1], [0, 1, 1, 1], [1, 0, 1, 0]])
DAYS = np.arange(12).reshape(3, 4).astype("M8[D]")


def split(splitter):
    return list(splitter.split(TABLE))


@each("flag", ["no", "", 1, None, [1], np.array([True, False])])
@each(
    "splitter, name",
    [
        (WarmStartKFold, "shuffle"),
        (LeaveLastOut, "drop_repeated"),
        (GlobalTimeSplit, "drop_cold"),
        (GlobalTimeSplit, "drop_repeated"),
    ],
)
def test_flags_of_splitters_are_true_or_false(splitter, name, flag):
    with pytest.raises(TypeError, match=f"{name}=.* must be True or False"):
        split(splitter(**{name: flag}))


@each("flag", ["macro", "no", 1, None])
@each(
    "name, call",
    [
        ("average", lambda flag: ndcg_at_k([[1, 0]], [[0, 1]], average=flag)),
        ("average", lambda flag: diversity_at_k([[0, 1]], np.eye(2), average=flag)),
        ("truncated", lambda flag: recall_at_k([[1, 0]], [[0, 1]], truncated=flag)),
        ("return_model", lambda flag: make_clicks(10, return_model=flag)),
        ("return_model", lambda flag: make_interactions(return_model=flag)),
    ],
)
def test_flags_of_functions_are_true_or_false(name, call, flag):
    with pytest.raises(TypeError, match=f"{name}=.* must be True or False"):
        call(flag)


@pytest.mark.parametrize("n_splits", [10**12, 2**70])
def test_more_folds_than_memory(n_splits):
    with pytest.raises(ValueError, match=f"n_splits={n_splits} is too large for X"):
        split(WarmStartKFold(n_splits))


@pytest.mark.parametrize("column", [np.array([0.5, 2]), np.array(["auto", "auto"])])
def test_a_column_is_no_array(column):
    with pytest.raises(TypeError, match="user=.* must be a column's position or name"):
        split(WarmStartKFold(user=column))


@pytest.mark.parametrize("hold_out", [holdout_interactions, holdout_by_content])
@pytest.mark.parametrize("container", [np.array, sparse.csr_array])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_held_out_parts_of_missing_numbers(hold_out, container, bad):
    X = HISTORIES.copy()
    X[1, 1] = bad
    with pytest.raises(ValueError, match="X holds NaN or infinity"):
        hold_out(container(X))


@pytest.mark.parametrize("hold_out", [holdout_interactions, holdout_by_content])
@pytest.mark.parametrize("X", [DAYS, HISTORIES.astype("V8"), sparse.csr_array(HISTORIES * 1j)])
def test_held_out_parts_of_what_are_no_numbers(hold_out, X):
    with pytest.raises((TypeError, ValueError), match=r"\bX\b.*give numbers"):
        hold_out(X)


@pytest.mark.parametrize("dtype", [">f8", ">i4", np.float16, np.longdouble, bool])
def test_held_out_parts_of_types_that_scipy_does_not_take(dtype):
    X = HISTORIES.astype(dtype)
    for part, expected in zip(
        holdout_by_content(X), holdout_by_content(X.astype(float)), strict=True
    ):
        assert_array_equal(part.toarray(), expected.toarray())


def test_whole_numbers_of_any_type_and_size():
    expected = holdout_by_content(HISTORIES, seed=2)
    for one, other in zip(holdout_by_content(HISTORIES, seed=np.int8(2)), expected, strict=True):
        assert_array_equal(one.toarray(), other.toarray())
    history, held_out = holdout_interactions(HISTORIES, min_history=2**70)
    assert_array_equal(history.toarray(), HISTORIES)
    assert held_out.nnz == 0
    for call in (
        lambda: holdout_interactions(HISTORIES, min_history=True),
        lambda: holdout_by_content(HISTORIES, seed=True),
        lambda: make_ranking_scorer(seed=False),
    ):
        with pytest.raises(ValueError, match="(min_history|seed)=.* must be an integer"):
            call()


@pytest.mark.parametrize("error", [TypeError, ValueError])
def test_parameters_of_another_type_raise_what_those_of_constructors_do(error):
    for call in (
        lambda: ndcg_at_k([[1, 0]], [[0, 1]], 1.5),
        lambda: make_ranking_scorer(k="10"),
        lambda: make_ranking_scorer(seed=None),
        lambda: make_ranking_scorer(fraction="0.2"),
        lambda: holdout_interactions(HISTORIES, min_history=1.5),
        lambda: next(WarmStartKFold(2.0).split([(1, 2), (1, 3)])),
        lambda: next(WarmStartKFold(shuffle="yes").split([(1, 2), (1, 3)])),
        lambda: MFRecommender(max_iter=1.5).fit(HISTORIES),
        lambda: MFRecommender(max_iter=1, n_jobs="all").fit(HISTORIES),
    ):
        with pytest.raises(error):
            call()


@pytest.mark.parametrize("metric", [[], {}, ["ndcg"], np.array(3), None])
def test_a_metric_is_a_name(metric):
    with pytest.raises(ValueError, match="metric=.* is not known"):
        make_ranking_scorer(metric)


def test_rows_of_several_lengths():
    ragged = [[1, 0, 0], [1]]
    with pytest.raises(ValueError, match="relevant cannot be read as an array"):
        ndcg_at_k(ragged, [[0], [1]])
    with pytest.raises(ValueError, match="ranked cannot be read as an array"):
        ndcg_at_k([[1, 0], [0, 1]], ragged)
    with pytest.raises(ValueError, match="item_counts cannot be read as an array"):
        ranking_report([[1, 0]], [[0, 1]], item_counts=ragged)
    with pytest.raises(ValueError, match="y_proba cannot be read as an array"):
        normalized_entropy([0, 1], ragged)
    with pytest.raises(ValueError, match="hidden_layer_sizes cannot be read as an array"):
        FastVAERecommender(hidden_layer_sizes=[[1], [2, 3]]).fit(HISTORIES)
    with pytest.raises(ValueError, match="k cannot be read as an array"):
        ranking_report([[1, 0]], [[0, 1]], ragged)
    with pytest.raises(ValueError, match="y_true cannot be read as an array"):
        normalized_entropy(ragged, [0.5, 0.5])


@pytest.mark.parametrize(
    "values", [DAYS[0], [1j, 0, 1, 0], ["a", "b", "c", "d"], np.array([1, "a", None, 3], object)]
)
def test_probabilities_and_weights_are_numbers(values):
    y = [0, 1, 0, 1]
    with pytest.raises(TypeError, match="y_proba .*numbers"):
        normalized_entropy(y, values)
    with pytest.raises(TypeError, match="sample_weight .*numbers"):
        normalized_entropy(y, [0.5] * 4, values)


LARGE = np.array([[1, 10**400], [1, 1]], dtype=object)


@pytest.mark.parametrize("unit", ["M8[D]", "m8[s]"])
def test_dates_are_no_numbers(unit):
    X, y = HISTORIES.astype(np.int64).astype(unit), [0, 1, 0]
    dates = np.arange(3).astype(unit)
    for call, name in (
        (lambda: FMClassifier().fit(X, y), "X"),
        (lambda: FMRegressor().fit(HISTORIES, dates), "y"),
        (lambda: FMClassifier().fit(HISTORIES, y, dates), "sample_weight"),
        (lambda: MFRecommender().fit(X), "X"),
        (lambda: Uniform().fit(X), "item_vectors"),
        (lambda: Uniform().fit(HISTORIES, X[:, 0]), "counts"),
        (lambda: Uniform().fit(HISTORIES).sample(X, 1), "queries"),
    ):
        with pytest.raises(TypeError, match=f"{name} holds (datetime|timedelta)64"):
            call()


def test_integers_beyond_all_floats():
    model = MFRecommender(2, max_iter=1).fit(np.eye(2))
    for call, name in (
        (lambda: FMClassifier().fit(LARGE, [0, 1]), "X"),
        (lambda: MFRecommender().fit(LARGE), "X"),
        (lambda: Uniform().fit(LARGE), "item_vectors"),
        (lambda: make_ranking_scorer("ndcg")(model, LARGE), "X"),
    ):
        with pytest.raises(ValueError, match=f"{name} holds a number beyond the largest float"):
            call()
    with pytest.raises(ValueError, match="y must hold numbers"):
        FMRegressor().fit(HISTORIES[:2], LARGE[0])


def test_vectors_too_long_for_products():
    with pytest.raises(ValueError, match="item_vectors holds vectors too long"):
        MIDX().fit(HISTORIES * 1e38)


@pytest.fixture(scope="module")
def model():
    return MFRecommender(2, max_iter=1, random_state=0).fit(HISTORIES)


@pytest.mark.parametrize("n", [2**31, 10**12, 2**70])
def test_more_items_than_there_can_be(model, n):
    for call, name in (
        (lambda: model.recommend(users=[0], n_recommendations=n), "n_recommendations"),
        (lambda: model.similar_items([0], n), "n_recommendations"),
        (lambda: Uniform().fit(HISTORIES).sample(HISTORIES, n), "n"),
        (lambda: make_ranking_scorer(k=n), "k"),
    ):
        with pytest.raises(ValueError, match=f"^{name}={n} must be at most 2147483647"):
            call()


@pytest.mark.parametrize("flag", ["no", "", 0, None, [1], np.array([True, False])])
def test_exclude_seen_is_true_or_false(model, flag):
    table = InteractionRecommender(MFRecommender(2, max_iter=1)).fit(TABLE)
    for call in (model.recommend, table.recommend):
        with pytest.raises(TypeError, match="exclude_seen=.* must be True or False"):
            call(users=[0], exclude_seen=flag)


@pytest.mark.parametrize("item", [1.0, 1.5, "1", None, [1], [[1]], 99, -1])
def test_one_item_and_one_user_are_explained(model, item):
    with pytest.raises((TypeError, ValueError), match="item"):
        model.explain(0, item)
    with pytest.raises((TypeError, ValueError), match="user"):
        model.explain(item, 0)
    with pytest.raises((TypeError, ValueError), match="user"):
        model.explain(item, 0, X=HISTORIES)


def test_ids_of_several_lengths(model):
    ragged = [[1, 2], [1]]
    for call, name in (
        (lambda: model.recommend(ragged), "X"),
        (lambda: model.recommend(users=ragged), "users"),
        (lambda: model.similar_items(ragged), "items"),
        (lambda: model.score(HISTORIES, ragged), "y"),
    ):
        with pytest.raises(ValueError, match=f"{name} cannot be read as an array"):
            call()


def test_scorers_look_at_the_structure_of_matrices(model):
    X = sparse.coo_array(HISTORIES)
    X.col = np.where(X.col == 3, 2**20, X.col)
    y = sparse.csr_array(np.eye(3, 4))
    with pytest.raises(ValueError, match="X holds the column index 1048576"):
        make_ranking_scorer(k=1)(model, X, y)
    y.data[0] = np.nan
    with pytest.raises(ValueError, match="y holds NaN or infinity"):
        make_ranking_scorer(k=1)(model, sparse.csr_array(HISTORIES), y)


def test_tokens_of_clicks_are_no_text():
    with pytest.raises(ValueError, match="n_tokens=b'x' must be a list of positive whole"):
        make_clicks(5, b"x")


@pytest.mark.parametrize(
    "name, value",
    [
        ("user_ids_", None),
        ("user_ids_", np.arange(5)),
        ("item_ids_", np.arange(3)),
        ("item_ids_", np.arange(4)[None]),
        ("_user_order", np.arange(5)),
        ("_user_order", np.array([0, 1, 2, 3, 4, 10**6])),
        ("_item_order", np.arange(4.0)),
    ],
)
def test_ids_that_fit_did_not_leave(name, value):
    model = InteractionRecommender(MFRecommender(2, max_iter=1, random_state=0)).fit(TABLE)
    setattr(model, name, value)
    # Of two arrays of other lengths, either may be the one that was changed.
    role = name.strip("_").split("_")[0]
    with pytest.raises(ValueError, match=f"^_?{role}_(ids_|order) of InteractionRecommender "):
        model.recommend(users=[0, 5], n_recommendations=4, exclude_seen=False, candidates=[0, 3])


def test_labels_may_be_dates():
    y = np.array(["2025-01-01", "2026-01-01", "2025-01-01"], dtype="M8[D]")
    model = FMClassifier(2, max_iter=1).fit(HISTORIES, y)
    assert set(model.predict(HISTORIES)) <= set(y)


def test_probabilities_of_both_classes_add_up_to_one():
    with pytest.raises(ValueError, match=r"y_proba has two columns, whose sums lie between"):
        normalized_entropy([0, 1], [[0.2, 0.2], [0.9, 0.9]])
    both = normalized_entropy([0, 1], [[0.8, 0.2], [0.1, 0.9]])
    assert both == normalized_entropy([0, 1], [0.2, 0.9])


def test_values_of_items_to_be_found_do_not_matter(model):
    y = np.zeros((3, 4))
    y[:, 1] = 1e300
    assert model.score(HISTORIES, y) == model.score(HISTORIES, y > 0)
    scorer, y = make_ranking_scorer(k=2), sparse.csr_array(y)
    assert scorer(model, HISTORIES, y) == scorer(model, HISTORIES, y != 0)
    assert y.data.min() == 1e300


def test_values_of_held_out_items_do_not_matter(model, monkeypatch):
    # Else values too small for float32 would be no items.
    ranked = np.tile(np.arange(2), (3, 1))
    monkeypatch.setattr(
        model, "recommend", lambda X, n_recommendations: (ranked[: len(X.indptr) - 1], None)
    )
    X = sparse.csr_array(np.array([[1.0, 1, 0, 1], [1, 0, 1, 0], [0, 1, 1, 1]]))
    scores = [make_ranking_scorer("recall", k=2)(model, X * value) for value in (1, 1e-300)]
    assert scores[0] == scores[1] > 0


def test_weights_of_popularity_are_numbers():
    with pytest.raises(ValueError, match="exponent=1e\\+300 makes weights"):
        Popularity(1e300).fit(HISTORIES)


@pytest.mark.parametrize("counts", [None, np.ones(3), np.ones((2, 4))])
def test_token_counts_that_fit_did_not_leave(counts):
    model = FMClassifier(2, max_iter=1).fit(HISTORIES, [0, 1, 0])
    model.token_counts_ = counts
    with pytest.raises(ValueError, match="^token_counts_ of FMClassifier "):
        model.partial_fit(HISTORIES, [0, 1, 0])


def test_histories_as_tuples(model):
    rows = tuple(map(tuple, HISTORIES))
    one = MFRecommender(2, max_iter=1, random_state=0).fit(HISTORIES).partial_fit(rows)
    other = MFRecommender(2, max_iter=1, random_state=0).fit(HISTORIES).partial_fit(HISTORIES)
    assert_array_equal(one.item_factors_, other.item_factors_)


@pytest.mark.parametrize("cls", [FMClassifier, FMRegressor])
def test_validation_rows_too_large_to_score(cls):
    model = cls(2, max_iter=2, learning_rate=0.1, random_state=0, early_stopping=True)
    with pytest.raises(ValueError, match="X_val, or the part of X .* overflow float32"):
        model.fit(HISTORIES, [0, 1, 0], X_val=HISTORIES * 1e38, y_val=[0, 1, 0])
    assert not hasattr(model, "coef_")


def test_labels_that_cannot_be_sorted():
    with pytest.raises(TypeError, match="y_true holds labels that cannot be sorted"):
        normalized_entropy(np.array([None, 1, 0], dtype=object), [0.1, 0.2, 0.3])


@pytest.mark.parametrize("cls", [MFRecommender, ALSRecommender, FastVAERecommender])
def test_parameters_of_narrow_types(cls):
    narrow = cls(np.int8(2), max_iter=np.int8(1), random_state=0).fit(HISTORIES)
    usual = cls(2, max_iter=1, random_state=0).fit(HISTORIES)
    assert_array_equal(narrow.item_factors_, usual.item_factors_)


@each("name", ["init", "optimizer", "loss", "temperature", "negative_sampler"])
@each("value", [np.array([0.5, 2.0]), [1], {}, 1j])
def test_components_are_names_or_instances(name, value):
    for cls in (MFRecommender, FastVAERecommender, FMClassifier):
        if name in cls().get_params():
            with pytest.raises((TypeError, ValueError), match=name):
                cls(**{name: value}).fit(HISTORIES, [0, 1, 0])


@pytest.mark.parametrize("n", [2**31, 2**70])
@pytest.mark.parametrize("cls", [MFRecommender, FastVAERecommender])
def test_more_negatives_than_there_can_be(cls, n):
    for name in ("n_negatives", "batch_size"):
        with pytest.raises(ValueError, match=f"'{name}' parameter .* int in the range"):
            cls(**{name: n}).fit(HISTORIES)


def test_weights_that_leave_one_class_have_no_entropy():
    for weights in ([1e-300, 1e300], [1e300, 1e-300]):
        with pytest.raises(ValueError, match="sample_weight gives nearly all weight to one class"):
            normalized_entropy([0, 1], [0.2, 0.7], sample_weight=weights)
