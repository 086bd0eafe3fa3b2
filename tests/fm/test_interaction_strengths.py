"""Which pairs of features interact: against the dot products, and what is drawn of them."""

import itertools

import numpy as np
import pytest
from helpers import slow_params
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from sklearn.base import clone
from sklearn.compose import TransformedTargetRegressor
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder

from freqfm import (
    DeepFMRegressor,
    FFMRegressor,
    FMClassifier,
    FMRegressor,
    FwFMRegressor,
    NFMRegressor,
    RaFMRegressor,
)
from freqfm.displays import InteractionStrengthsDisplay
from freqfm.estimators.fm import explanations as interactions
from freqfm.initializers import Normal

RNG = np.random.default_rng(0)
X = sparse.csr_array(RNG.random((60, 9)) * (RNG.random((60, 9)) < 0.4))
Y = np.arange(60) % 3
PAIRS = np.transpose(np.triu_indices(9, k=1))


def fitted(cls=FMRegressor, y=Y, **params):
    return cls(max_iter=2, init=Normal(0.5), n_iter_no_change=None, random_state=0, **params).fit(
        X, y
    )


def expected_order(effects):
    return np.lexsort((*PAIRS.T[::-1], -effects))


@pytest.mark.parametrize("at_once", [4, 1 << 20])
def test_strengths_are_dot_products(at_once, monkeypatch):
    monkeypatch.setattr(interactions, "_PAIRS_AT_ONCE", at_once)
    model = fitted()
    dots = (model.factors_ @ model.factors_.T)[tuple(PAIRS.T)]
    found = model.interaction_strengths(n_pairs=5)
    best = expected_order(np.abs(dots))[:5]
    assert_array_equal(found.features, PAIRS[best])
    assert_allclose(found.strengths, dots[best], atol=1e-5)
    assert_allclose(found.effects, np.abs(found.strengths))
    assert found.names.tolist() == [[f"x{i}", f"x{j}"] for i, j in PAIRS[best]]

    means = (np.abs(X.toarray()).T @ np.abs(X.toarray()) / 60)[tuple(PAIRS.T)]
    found = model.interaction_strengths(-X, n_pairs=100)
    met = expected_order(np.abs(dots) * means)[: np.count_nonzero(means)]
    assert_array_equal(found.features, PAIRS[met])
    assert_allclose(found.effects, (np.abs(dots) * means)[met], atol=1e-5)


def test_only_pairs_that_meet_are_compared():
    rows = sparse.csr_array(np.eye(9) + np.eye(9, k=1))
    found = fitted().interaction_strengths(rows, n_pairs=20)
    assert sorted(found.features.tolist()) == [[k, k + 1] for k in range(8)]
    assert len(fitted().interaction_strengths(np.eye(9)).features) == 0


@pytest.mark.parametrize(
    "cls, params",
    [
        (RaFMRegressor, {"ranks": (2, 4), "rank_assignment": [30]}),
        (DeepFMRegressor, {"hidden_layer_sizes": (4,)}),
        (NFMRegressor, {"hidden_layer_sizes": (4,)}),
        (FFMRegressor, {"fields": np.arange(9) // 3}),
        (FwFMRegressor, {"fields": [0, 1, 2] * 3}),
        (FMClassifier, {}),
    ],
)
def test_strengths_by_scores(cls, params):
    model = fitted(cls, **params)
    score = getattr(model, "decision_function", model.predict)
    found = model.interaction_strengths(n_pairs=3)
    for (i, j), strength in zip(found.features, found.strengths, strict=True):
        rows = np.zeros((4, 9))
        rows[[0, 1], i] = rows[[0, 2], j] = 1
        both, one, other, none = score(rows)
        assert_allclose(strength, both - one - other + none, atol=1e-5)


def test_bad_arguments(monkeypatch):
    model = fitted()
    with pytest.raises(ValueError, match=r"feature_names has the shape \(2,\).* 9 features"):
        model.interaction_strengths(feature_names=["a", "b"])
    with pytest.raises(TypeError, match=r"n_pairs=1\.5"):
        model.interaction_strengths(n_pairs=1.5)
    with pytest.raises(ValueError, match="X has 3 features"):
        model.interaction_strengths(X=np.eye(3))
    with pytest.raises(NotFittedError):
        FMRegressor().interaction_strengths()
    monkeypatch.setattr(interactions, "_MOST_FEATURES", 8)
    with pytest.raises(ValueError, match="9 features and X=None.*give rows as X"):
        model.interaction_strengths()
    assert len(model.interaction_strengths(X=X).features)


def test_display():
    plt = pytest.importorskip("matplotlib.pyplot")
    tokens = np.array([[a, b] for a in "pq" for b in "rst"] * 20)
    target = (tokens[:, 0] == "p") * (tokens[:, 1] == "s")
    model = FMClassifier(max_iter=40, init=Normal(0.1), alpha_factors=0.1, random_state=0)
    pipeline = make_pipeline(OneHotEncoder(), model)
    search = GridSearchCV(pipeline, {"fmclassifier__n_components": [4]}, cv=2).fit(tokens, target)
    display = InteractionStrengthsDisplay.from_estimator(search, tokens, n_pairs=3)
    assert len(display.bars_) == 3
    labels = [label.get_text() for label in display.ax_.get_yticklabels()]
    assert labels == [f"{a} & {b}" for a, b in display.names]
    assert {a[:2] for a, _ in display.names} == {"x0"} and "x1_s" in display.names[:, 1]

    # Steps of one pipeline are those of pipelines in it, too.
    last = pipeline.fit(tokens, target)
    expected = InteractionStrengthsDisplay.from_estimator(last, tokens, n_pairs=3)
    for steps in ([last], ["passthrough", last], [*last]):
        found = InteractionStrengthsDisplay.from_estimator(make_pipeline(*steps), tokens, n_pairs=3)
        assert_array_equal(found.names, expected.names)
        assert_array_equal(found.strengths, expected.strengths)
    nested = make_pipeline(OrdinalEncoder(), clone(pipeline)).fit(tokens, target)
    found = InteractionStrengthsDisplay.from_estimator(nested, tokens, n_pairs=3)
    assert_array_equal(found.strengths, expected.strengths)
    assert {a[:2] for a, _ in found.names} == {"x0"} and "x1_1.0" in found.names[:, 1]
    around = TransformedTargetRegressor(make_pipeline(OneHotEncoder(), fitted()))
    found = InteractionStrengthsDisplay.from_estimator(around.fit(tokens, 1.0 * target), tokens)
    assert {a[:2] for a, _ in found.names} == {"x0"}
    assert {b[:2] for _, b in found.names} == {"x1"}
    one_step = make_pipeline(fitted())
    for rows in (None, X):
        found = InteractionStrengthsDisplay.from_estimator(one_step, rows, n_pairs=3)
        assert_array_equal(found.names, fitted().interaction_strengths(X=rows, n_pairs=3).names)

    three = fitted(FMClassifier)
    with pytest.raises(ValueError, match="class_index=None must be the place of a class"):
        InteractionStrengthsDisplay.from_estimator(three)
    display = InteractionStrengthsDisplay.from_estimator(three, class_index=1, n_pairs=2)
    assert_array_equal(display.strengths, three.interaction_strengths(n_pairs=2).strengths[:, 1])
    with pytest.raises(ValueError, match="class_index=1, but the model has one score"):
        InteractionStrengthsDisplay.from_estimator(fitted(), class_index=1)
    with pytest.raises(ValueError, match="give two names for each"):
        InteractionStrengthsDisplay([["a", "b"]], [1.0, 2.0])
    plt.close("all")


def test_fields_and_names_of_an_encoder():
    tokens = np.array([[a, b, c] for a in "pq" for b in "rst" for c in "xy"] * 20)
    encoder = OneHotEncoder().fit(tokens)
    rows = encoder.transform(tokens)
    target = (tokens[:, 0] == "p") ^ (tokens[:, 1] == "s")
    model = FMClassifier(4, max_iter=20, random_state=0).fit(rows, target)
    for given in (None, rows):
        found = model.interaction_strengths(given, fields=encoder, n_pairs=100)
        assert len(found.names) == 2 * 3 + 2 * 2 + 3 * 2
        assert all(one[:2] != other[:2] for one, other in found.names)
        assert list(found.field_names) == ["x0", "x1", "x2"]
        for i, j in itertools.combinations(range(3), 2):
            both = [{a[:2], b[:2]} == {f"x{i}", f"x{j}"} for a, b in found.names]
            assert_allclose(found.field_effects[i, j], found.effects[both].sum())
        assert np.diag(found.field_effects).tolist() == [0, 0, 0]
        assert_array_equal(found.field_effects, found.field_effects.T)
        assert found.field_effects[0, 1] > 4 * found.field_effects[0, 2]


def test_effects_of_too_many_fields_are_no_table(monkeypatch):
    monkeypatch.setattr(interactions, "_MOST_FEATURES", 8)
    for fields, expected in [(np.arange(9), None), (np.arange(9) // 3, (3, 3))]:
        found = fitted().interaction_strengths(X, fields=fields)
        assert len(found.strengths) and np.shape(found.field_effects) == (expected or ())
        assert (found.field_effects is None) == (expected is None)


@pytest.mark.parametrize("further", [False, *slow_params([True])])
def test_share_is_that_of_an_analysis_of_variance(further):
    tokens = np.array(list(itertools.product("pq", "rst", "xy")))
    rows, y = OneHotEncoder().fit_transform(tokens), np.arange(12) % 2
    fields = np.repeat([0, 1, 2], [2, 3, 2])
    options = {"max_iter": 3, "early_stopping": False, "init": Normal(0.5), "random_state": 0}
    machines = [FMRegressor(3, **options), FMClassifier(3, **options)]
    if further:
        machines = [
            RaFMRegressor((2, 4), rank_assignment=[5], **options),
            FwFMRegressor(3, fields=fields, **options),
            FFMRegressor(2, fields=fields, **options),
            FMClassifier(3, **options),
        ]
        deep = DeepFMRegressor(2, **options).fit(rows, y)
        assert deep.interaction_strengths(rows).share is None
    for model in machines:
        model.fit(rows, y)
        score = getattr(model, "decision_function", model.predict)(rows)
        additive = rows @ np.linalg.lstsq(rows.toarray(), score, rcond=None)[0]
        expected = 1 - additive.var() / score.var()
        found = model.interaction_strengths(rows, fields=fields).share
        assert 0.001 < found < 1
        assert_allclose(found, expected, rtol=1e-3)
        if hasattr(model, "fields_"):
            assert model.interaction_strengths(rows).share == found
    model.factors_[:] = 0
    assert model.interaction_strengths(rows, fields=fields).share == 0
    model.coef_[:] = 0
    assert model.interaction_strengths(rows).share == 0


def test_display_draws_no_noise():
    pytest.importorskip("matplotlib.pyplot")
    tokens = RNG.integers(0, 3, (200, 2))
    pipeline = make_pipeline(OneHotEncoder(), FMClassifier(max_iter=5, random_state=0))
    pipeline.fit(tokens, tokens[:, 0] == 1)
    pipeline[-1].factors_[:] *= 1e-3
    display = InteractionStrengthsDisplay.from_estimator(pipeline, tokens)
    assert len(display.bars_) == 0 and display.share < 0.01
    assert "Interactions carry 0.0% of the variance" in display.ax_.texts[0].get_text()
