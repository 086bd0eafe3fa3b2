"""Contributions to scores: that they add up, against all coalitions, and against shap."""

import copy
import functools
import itertools
import math
import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
from helpers import each
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from sklearn.compose import make_column_transformer
from sklearn.exceptions import NotFittedError
from sklearn.feature_selection import RFE, SelectFromModel
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler

import freqfm
from freqfm.estimators.fm.explanations import contributions

RNG = np.random.default_rng(0)
N_FEATURES = 6
ROWS = RNG.normal(size=(80, N_FEATURES)) * (RNG.random((80, N_FEATURES)) < 0.6)
ROWS[3] = 0
SPARSE = sparse.csr_array(ROWS)
MACHINES = [
    ("FM", {"n_components": 3}),
    ("RaFM", {"ranks": (2, 4, 7), "rank_assignment": [2, 7, 4, 7, 2, 4]}),
    ("RaFM", {"ranks": (2, 4), "rank_assignment": [45], "rank_sharing": "truncate"}),
    ("FwFM", {"n_components": 3, "fields": [0, 1, 0, 2, 2, 1]}),
    ("FFM", {"n_components": 2, "fields": [0, 1, 0, 2, 2, 1]}),
    ("DeepFM", {"n_components": 3, "hidden_layer_sizes": (5, 4)}),
    ("DeepFM", {"n_components": 3, "fields": [0, 1, 0, 2, 2, 1]}),
    ("DeepFM", {"n_components": 3, "hidden_layer_sizes": ()}),
    ("NFM", {"n_components": 3, "hidden_layer_sizes": (4,)}),
]
CASES = [
    (name, params, n_classes) for name, params in MACHINES for n_classes in (0, 2, 3)
]  # 0: regression
SECOND_ORDER = [
    case for case in CASES
    if case[0] not in ("DeepFM", "NFM") or case[1].get("hidden_layer_sizes") == ()
]  # fmt: skip


def fitted(name="FM", params=None, n_classes=2, X=SPARSE, **more):
    kind = "Classifier" if n_classes else "Regressor"
    y = RNG.permutation(np.arange(X.shape[0]) % n_classes) if n_classes else ROWS @ ROWS[0]
    options = {"max_iter": 3, "init_scale": 0.7, "early_stopping": False, "random_state": 0}
    options |= {"n_iter_no_change": None, "alpha_factors": 0.1, "optimizer": "adagrad"}
    model = getattr(freqfm, name + kind)(**options, **(params or {}), **more)
    return model.fit(X, y)


def scores(model, X):
    """Return the scores, (n_outputs, n_samples)."""
    return np.atleast_2d(getattr(model, "decision_function", model.predict)(X).T)


def parts(found):
    """Return contributions as dense arrays, (n_outputs, n_samples, n_columns), and base values."""
    values = found.contributions
    values = values if isinstance(values, list) else [values]
    values = np.array([v.toarray() if sparse.issparse(v) else np.asarray(v) for v in values])
    return values, np.atleast_1d(found.base_value)


def all_coalitions(score, x, background):
    """Return the Shapley values of the mean score with absent entries taken from a background."""
    n = len(x)
    present = np.array(list(itertools.product([False, True], repeat=n)))
    rows = np.where(present[:, None], x, background)
    worth = score(rows.reshape(-1, n)).reshape(-1, *rows.shape[:2]).mean(axis=2)
    sizes = present.sum(axis=1)
    found = np.zeros((len(worth), n))
    for i in range(n):
        without = np.flatnonzero(~present[:, i])
        weights = [1 / (n * math.comb(n - 1, size)) for size in sizes[without].tolist()]
        found[:, i] = (worth[:, without + 2 ** (n - 1 - i)] - worth[:, without]) @ weights
    return found


@each("name, params, n_classes", CASES)
def test_contributions_add_up(name, params, n_classes):
    model = fitted(name, params, n_classes)
    for background in (None, SPARSE[:20], ROWS[5:6]):
        values, base = parts(model.explain(SPARSE, background=background))
        # Scores are float32; some of NFM's are near 100.
        close = functools.partial(assert_allclose, rtol=1e-6, atol=1e-5)
        close(base[:, None] + values.sum(axis=2), scores(model, SPARSE))
        rows = np.zeros((1, N_FEATURES)) if background is None else background
        close(base, scores(model, rows).mean(axis=1))
        by_field, same = parts(model.explain(SPARSE, background=background, fields=list("abacbc")))
        assert_array_equal(base, same)
        for column, members in enumerate([[0, 2], [1, 4], [3, 5]]):
            assert_allclose(by_field[:, :, column], values[:, :, members].sum(axis=2), atol=1e-9)


@each("name, params, n_classes", SECOND_ORDER)
def test_shapley_values_are_exact(name, params, n_classes):
    model, background = fitted(name, params, n_classes), ROWS[10:17]
    values, _ = parts(model.explain(ROWS[:4], background=background))
    for x, found in zip(ROWS, values.transpose(1, 0, 2), strict=False):
        expected = all_coalitions(lambda rows: scores(model, rows), x, background)
        assert_allclose(found, expected, atol=1e-5)


def test_sums_of_columns_are_shapley_values_of_fields():
    model, background = fitted(), ROWS[10:17]
    groups = [[0, 2], [1, 4], [3, 5]]
    found = model.explain(ROWS[:3], background=background, fields=[0, 1, 0, 2, 1, 2])
    for x, values in zip(ROWS, found.contributions, strict=False):

        def score(chosen, x=x):
            chosen = chosen.astype(int)
            rows = np.empty((len(chosen), N_FEATURES))
            for group, source in zip(groups, chosen.T, strict=True):
                known = np.where(source[:, None] >= 0, background[source], x)
                rows[:, group] = known[:, group]
            return scores(model, rows)

        sources = np.repeat(np.arange(7.0)[:, None], 3, axis=1)
        assert_allclose(values, all_coalitions(score, -np.ones(3), sources)[0], atol=1e-5)


def test_plain_contributions_are_the_linear_term_and_half_of_each_interaction():
    model = fitted()
    W = model.factors_ @ model.factors_.T
    np.fill_diagonal(W, 0)
    expected = ROWS * (model.coef_ + ROWS @ W / 2)
    found = model.explain(ROWS)
    assert_allclose(found.contributions.toarray(), expected, atol=1e-5)
    assert_array_equal(found.contributions.indices, SPARSE.indices)
    assert isinstance(found.base_value, float) and found.base_value == model.intercept_[0]
    # One reference row of zeros is the same.
    zeros = np.zeros((1, N_FEATURES))
    found = model.explain(ROWS, background=zeros)
    assert_allclose(found.contributions.toarray(), expected, atol=1e-5)


@each("name", ["DeepFM", "NFM"])
def test_deep_contributions_of_a_tower_without_a_bend_are_exact(name):
    model = fitted(name, {"n_components": 3, "hidden_layer_sizes": (4,)}, 0)
    model.layers_[0][:] = 0.1 * np.abs(model.layers_[0])
    # Large biases keep every unit active, so that the tower is linear in its input.
    model.layers_[0][-1] = 100
    found, _ = parts(model.explain(ROWS[:3], background=ROWS[10:15]))
    for x, values in zip(ROWS, found[0], strict=False):
        expected = all_coalitions(lambda rows: scores(model, rows), x, ROWS[10:15])[0]
        assert_allclose(values, expected, atol=1e-3)


def test_input_of_all_kinds(monkeypatch):
    model = fitted()
    background = ROWS[:9]
    expected, base = parts(model.explain(ROWS, background=background))
    for X in (
        SPARSE,
        SPARSE.tocoo(),
        sparse.csc_matrix(ROWS),
        ROWS.tolist(),
        np.asfortranarray(ROWS),
    ):
        found, same = parts(model.explain(X, background=sparse.csr_matrix(background)))
        assert_allclose(found, expected, atol=1e-12)
        assert_allclose(same, base)
    for at_once in (1, 17):
        monkeypatch.setattr(contributions, "_ENTRIES_AT_ONCE", at_once)
        for given in (background, None):
            found, _ = parts(model.explain(SPARSE, background=given))
            same = expected if given is not None else parts(fitted().explain(SPARSE))[0]
            assert found.shape == same.shape
        assert_allclose(parts(model.explain(SPARSE, background=background))[0], expected)
    for same in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert_array_equal(
            parts(same.explain(SPARSE, background=background))[0],
            parts(model.explain(SPARSE, background=background))[0],
        )
    integers = (ROWS > 0).astype(np.int8)
    assert_allclose(parts(model.explain(integers))[0].sum(axis=2) + model.intercept_,
                    scores(model, integers), atol=1e-5)  # fmt: skip


def test_weights_and_partial_fit():
    y = np.arange(80) % 2
    model = freqfm.FMClassifier(3, max_iter=2, random_state=0, init_scale=1.0)
    for changed in (
        model.fit(SPARSE, y, sample_weight=RNG.random(80)),
        model.set_params(class_weight={0: 2}).partial_fit(SPARSE, y),
        freqfm.FMClassifier(3, fit_linear=False, fit_intercept=False).fit(SPARSE, y),
        freqfm.FMRegressor(3).fit(SPARSE, ROWS[:, 0]),
    ):
        values, base = parts(changed.explain(SPARSE))
        assert_allclose(base[:, None] + values.sum(axis=2), scores(changed, SPARSE), atol=1e-5)


def test_predictions_that_are_no_scores():
    model = freqfm.FMRegressor(3, loss="poisson", max_iter=2, random_state=0).fit(
        SPARSE, np.abs(ROWS[:, 0])
    )
    values, base = parts(model.explain(SPARSE))
    assert_allclose(np.exp(base[0] + values[0].sum(axis=1)), model.predict(SPARSE), rtol=1e-5)


def test_frames():
    names = [f"c{k}" for k in range(N_FEATURES)]
    X = pd.DataFrame(ROWS, columns=names, index=[f"r{k}" for k in range(80)])
    for n_classes in (0, 3):
        model = fitted("FM", {}, n_classes, X=X)
        expected, _ = parts(model.explain(X))
        found = model.explain(X, as_frame=True)
        frame = found.contributions
        assert frame.index.equals(X.index) and list(found.names) == names
        assert_allclose(frame.to_numpy(), np.concatenate(expected, axis=1))
        assert list(frame[2] if n_classes else frame) == names
        frame = model.explain(X, fields=list("ppqqrr"), as_frame=True).contributions
        assert list(frame[1] if n_classes else frame) == ["p", "q", "r"]
        assert frame.index.equals(X.index)


def test_bad_arguments():
    model = fitted()
    for error, message, arguments in [
        (ValueError, "X has 3 features", {"X": np.eye(3)}),
        (ValueError, "background: .*3 features", {"background": np.eye(3)}),
        (ValueError, "background: .*0 sample", {"background": ROWS[:0]}),
        (ValueError, r"fields has shape \(2,\)", {"fields": [1, 2]}),
        (TypeError, "fields must hold", {"fields": np.ones(N_FEATURES)}),
        (ValueError, "fields has shape", {"fields": StandardScaler().fit(np.eye(3))}),
        (NotFittedError, "StandardScaler", {"fields": StandardScaler()}),
        (ValueError, "feature_names has the shape", {"feature_names": ["a"]}),
        (TypeError, "as_frame='no'", {"as_frame": "no"}),
    ]:
        with pytest.raises(error, match=message):
            model.explain(**{"X": ROWS, **arguments})
    with pytest.raises(NotFittedError):
        freqfm.FMClassifier().explain(ROWS)


TABLE = pd.DataFrame(
    {
        "site": RNG.choice(["a", "b", "c"], 200),
        "price": RNG.random(200),
        "device": RNG.choice(["phone", "desk"], 200),
        "age": RNG.integers(10, 80, 200).astype(float),
    }
)
CLICKED = (TABLE.site == "a") ^ (TABLE.device == "phone")


def encoders():
    tokens = make_pipeline(SimpleImputer(strategy="most_frequent"), OneHotEncoder())
    yield make_column_transformer(
        (tokens, ["site", "device"]), (StandardScaler(), ["age"]), remainder="passthrough"
    )
    yield make_column_transformer(
        (OneHotEncoder(drop="first"), [0, 2]), (StandardScaler(), slice(1, 4, 2))
    )
    yield freqfm.WithFields(make_column_transformer((OneHotEncoder(), ["site", "device", "age"])))
    yield make_pipeline(
        make_column_transformer(
            (OrdinalEncoder(), ["device", "site"]), ("passthrough", slice("price", "price"))
        ),
        OneHotEncoder(handle_unknown="ignore", max_categories=5),
    )


def test_explain_of_pipelines():
    table = TABLE.set_axis([f"r{k}" for k in range(200)])
    for encoder in encoders():
        machine = freqfm.FMClassifier(4, max_iter=3, random_state=0)
        pipeline = make_pipeline(encoder, machine).fit(table, CLICKED)
        for background in (None, table[:20]):
            found = freqfm.explain(pipeline, table, background=background, as_frame=True)
            assert found.contributions.index.equals(table.index)
            total = found.base_value + found.contributions.sum(axis=1)
            assert_allclose(total, pipeline.decision_function(table), atol=1e-5)
            arrays = freqfm.explain(pipeline, table, background=background)
            assert_array_equal(arrays.contributions, found.contributions)
    alone = fitted()
    found = freqfm.explain(alone, ROWS).contributions
    assert_array_equal(found.toarray(), alone.explain(ROWS).contributions.toarray())
    with pytest.raises(TypeError, match="needs a factorization machine.*got OneHotEncoder"):
        freqfm.explain(OneHotEncoder(), TABLE)
    with pytest.raises(NotFittedError):
        freqfm.explain(make_pipeline(OneHotEncoder(), freqfm.FMRegressor()), TABLE)


def test_original_columns():
    for encoder in encoders():
        X = encoder.fit_transform(TABLE)
        model = freqfm.FMClassifier(4, max_iter=3, random_state=0).fit(X, CLICKED)
        found = model.explain(X, fields=encoder, as_frame=True)
        assert set(found.names) <= set(TABLE.columns) and len(set(found.names)) >= 3
        total = found.base_value + found.contributions.sum(axis=1)
        assert_allclose(total, model.decision_function(X), atol=1e-5)


@pytest.mark.slow
@each("name, params, n_classes", [case for case in SECOND_ORDER if case[2] != 2])
def test_shap_agrees(name, params, n_classes):
    shap = pytest.importorskip("shap")
    model, background = fitted(name, params, n_classes), ROWS[10:17]
    score = getattr(model, "decision_function", model.predict)
    expected = shap.Explainer(score, background)(ROWS[:4], silent=True)
    values, base = parts(model.explain(ROWS[:4], background=background))
    found = np.transpose(expected.values.reshape(*expected.values.shape[:2], -1), (2, 0, 1))
    assert_allclose(values, found, atol=1e-5)
    assert_allclose(base, np.atleast_2d(expected.base_values[0]).ravel(), atol=1e-5)


def test_shap_does_not_take_a_machine_for_a_linear_model():
    shap = pytest.importorskip("shap")
    for name, params in MACHINES:
        model = fitted(name, params)
        message = r"only the linear part.*decision_function, background.*shap gets no coef_"
        for explainer, error in [
            (shap.Explainer, "not callable"),
            (shap.LinearExplainer, "unknown"),
        ]:
            with pytest.warns(UserWarning, match=message), pytest.raises(Exception, match=error):
                explainer(model, ROWS)


def test_feature_selection_by_coef_warns():
    y = np.arange(80) % 2
    model = fitted()
    with pytest.warns(UserWarning, match="only the linear part.*permutation_importance"):
        chosen = SelectFromModel(model, prefit=True, max_features=2).transform(ROWS)
    with pytest.warns(UserWarning, match="only the linear part"):
        RFE(freqfm.FMRegressor(2, max_iter=1), n_features_to_select=5).fit(ROWS, y)
    assert chosen.shape == (80, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert model.coef_.shape == (N_FEATURES,) and "coef_" in vars(model)
    with pytest.raises(AttributeError, match="'FMClassifier' object has no attribute 'coef_'"):
        _ = freqfm.FMClassifier().coef_


@each("name, params, n_classes", CASES)
def test_importances_are_mean_absolute_contributions(name, params, n_classes):
    model = fitted(name, params, n_classes)
    for fields in (None, list("abacbc")):
        for background in (None, ROWS[:9]):
            given = SPARSE if background is None else background
            expected, _ = parts(model.explain(SPARSE, background=given, fields=fields))
            found = model.feature_importances(ROWS, background=background, fields=fields)
            expected = np.abs(expected).mean(axis=1)
            expected = expected.T if n_classes == 3 else expected[0]
            assert_allclose(found.importances, expected, atol=1e-9)
            assert len(found.names) == len(expected)
