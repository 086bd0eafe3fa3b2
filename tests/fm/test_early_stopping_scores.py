"""Early stopping by a score that the user chooses."""

import pickle
import warnings

import numpy as np
import pytest
from helpers import BOTH, PENALTIES, assert_same_model, model_of, penalties_of, slow_params
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import accuracy_score, get_scorer, make_scorer, roc_auc_score
from sklearn.model_selection import GridSearchCV

from freqfm import FMClassifier, FMRegressor
from freqfm.datasets import RowStream, make_clicks

OPTIONS = {"max_iter": 4, "random_state": 0, "n_iter_no_change": None}


def spread(estimator, X, y, sample_weight=None):
    """Score that is larger, the more the predictions differ: a callable that is no scorer."""
    return float(np.std(estimator.predict(X)))


def constant(estimator, X, y):
    """Score without weights."""
    assert X.shape[0] == len(y)
    return 0.25


@pytest.fixture(scope="module")
def clicks():
    return make_clicks(600, (30, 20, 10), random_state=0)


@BOTH
def test_every_machine_is_stopped_by_the_score_of_its_epochs(clicks, cls):
    X, y = clicks
    options = (
        {"fields": np.repeat([0, 1, 2], [30, 20, 10])} if cls.__name__[:2] in ("FF", "Fw") else {}
    )
    name = "roc_auc" if hasattr(cls, "predict_proba") else "neg_mean_absolute_error"
    X_val, y_val = X[400:], y[400:]
    given = {"X_val": X_val, "y_val": y_val}
    model = model_of(cls, **OPTIONS | options | {"scoring": name}).fit(X[:400], y[:400], **given)
    assert model.best_iter_ == 1 + np.argmax(model.validation_scores_)
    for n_epochs in (1, 4):
        short = clone(model).set_params(max_iter=n_epochs, early_stopping=False)
        short.set_params(scoring="loss", **penalties_of(model)).fit(X[:400], y[:400])
        score = get_scorer(name)(short, X_val, y_val)
        assert_allclose(model.validation_scores_[n_epochs - 1], score, rtol=1e-12)


@pytest.mark.parametrize("penalties", [PENALTIES, *slow_params([{}])])
def test_folds_are_scored_by_their_own_models_and_all_rows_are_trained_on(
    clicks, capsys, at_full_rates, penalties
):
    X, y = clicks
    model = FMClassifier(scoring="roc_auc", verbose=1, **OPTIONS, **penalties).fit(X, y)
    assert "validation roc_auc 0." in capsys.readouterr().out
    assert model.validation_scores_.shape == (4,) and (model.validation_scores_ > 0.5).all()
    options = OPTIONS | {"max_iter": model.best_iter_} | penalties_of(model)
    whole = FMClassifier(early_stopping=False, **options)
    assert_array_equal(model.factors_, whole.fit(X, y).factors_)
    by_callable = clone(model).set_params(
        verbose=0, scoring=make_scorer(roc_auc_score, response_method="decision_function")
    )
    assert_array_equal(by_callable.fit(X, y).validation_scores_, model.validation_scores_)
    assert_same_model(pickle.loads(pickle.dumps(model)), model)


def test_loss_is_the_default_and_neg_log_loss_its_name(clicks):
    X, y = clicks
    options = OPTIONS | PENALTIES
    default = FMClassifier(**options).fit(X, y)
    named = FMClassifier(scoring="neg_log_loss", **options).fit(X, y)
    assert default.scoring == "loss"
    assert_allclose(named.validation_scores_, default.validation_scores_, rtol=1e-5)
    real = FMRegressor(**options).fit(X, y)
    named = FMRegressor(scoring="r2", **options).fit(X, y)
    assert_allclose(named.validation_scores_, real.validation_scores_, atol=1e-6)


def test_several_classes_labels_and_names_of_columns(clicks):
    pd = pytest.importorskip("pandas")
    X, y = clicks
    labels = np.array(["no", "maybe", "yes"])[y + (np.arange(len(y)) % 3 == 0)]
    frame = pd.DataFrame(X.toarray(), columns=[f"c{i}" for i in range(X.shape[1])])
    given = {"X_val": frame[400:], "y_val": labels[400:]}
    for scoring in ("accuracy", "roc_auc_ovr", "f1_macro"):
        model = FMClassifier(scoring=scoring, **OPTIONS).fit(frame[:400], labels[:400], **given)
        last = clone(model).set_params(early_stopping=False, **penalties_of(model))
        last.fit(frame[:400], labels[:400])
        expected = get_scorer(scoring)(last, frame[400:], labels[400:])
        assert model.validation_scores_[-1] == pytest.approx(expected, rel=1e-12)


def test_scores_are_weighted(clicks):
    X, y = clicks
    weight = np.random.default_rng(0).integers(0, 4, len(y)).astype(float)
    given = {"X_val": X[400:], "y_val": y[400:], "sample_weight_val": weight[400:]}
    for class_weight in (None, {0: 1.0, 1: 3.0}):
        model = FMClassifier(scoring="accuracy", class_weight=class_weight, **OPTIONS)
        model.fit(X[:400], y[:400], weight[:400], **given)
        last = clone(model).set_params(early_stopping=False, **penalties_of(model))
        last.fit(X[:400], y[:400], weight[:400])
        of_class = np.where(y[400:] == 1, 3.0 if class_weight else 1.0, 1.0)
        found = accuracy_score(
            y[400:], last.predict(X[400:]), sample_weight=weight[400:] * of_class
        )
        assert model.validation_scores_[-1] == pytest.approx(found, rel=1e-12)
    FMClassifier(scoring=spread, **OPTIONS).fit(X, y, weight)
    with pytest.raises(TypeError, match="sample_weight"):
        FMClassifier(scoring=constant, **OPTIONS).fit(X, y, weight)


def test_callables_stop_training(clicks, capsys):
    X, y = clicks
    options = {"n_iter_no_change": 3, "random_state": 0, "verbose": 1, **PENALTIES}
    patient = FMRegressor(scoring=constant, **options)
    patient.fit(X, y)
    assert patient.n_iter_ == 4 and patient.best_iter_ == 1
    assert "validation constant 0.25" in capsys.readouterr().out
    assert_array_equal(patient.validation_scores_, 0.25)
    grid = {"scoring": ["loss", "average_precision", spread]}
    search = GridSearchCV(FMClassifier(**OPTIONS, **PENALTIES), grid, cv=2, scoring="roc_auc").fit(
        X, y
    )
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()


def test_scores_that_cannot_be_used_are_refused_by_name(clicks):
    X, y = clicks
    for scoring in ("auc", None, 3):
        with pytest.raises(ValueError, match="'scoring' parameter of FMClassifier"):
            FMClassifier(scoring=scoring).fit(X, y)
    for value in (np.nan, "high", None):
        model = FMClassifier(scoring=lambda estimator, X, y, value=value: value)
        with pytest.raises(ValueError, match="scoring=.* gave .*finite number"):
            model.fit(X, y)
        assert not hasattr(model, "coef_")
    with pytest.raises(ValueError, match="scoring='roc_auc' needs rows in memory"):
        FMClassifier(scoring="roc_auc").fit(RowStream([(X, y)]))
    pytest.importorskip("dask")
    from freqfm.dask import FMClassifier as OnCluster

    with pytest.raises(ValueError, match="scoring='roc_auc' is not computed on a Dask cluster"):
        OnCluster(scoring="roc_auc").fit(X, y)


def noise(cls, n=400):
    """Return rows that tell nothing of their targets."""
    rng = np.random.default_rng(3)
    X = np.eye(50)[rng.integers(50, size=n)]
    return X, rng.integers(2, size=n) if cls is FMClassifier else rng.standard_normal(n)


@pytest.mark.parametrize("cls", [FMClassifier, FMRegressor])
@pytest.mark.parametrize("way", ["folds", "X_val", "stream"])
def test_a_model_that_is_no_better_than_a_constant_is_warned_of(cls, way):
    X, y = noise(cls)
    model = cls(2, max_iter=3, n_iter_no_change=None, random_state=0, alpha_linear=0)
    data, more = (X, y), {"X_val": X[200:], "y_val": y[200:]}
    if way == "X_val":
        data = X[:200], y[:200]
    if way == "stream":
        data = [RowStream(lambda: [(X[:200], y[:200])])]
    more = {} if way == "folds" else more
    name = {FMClassifier: "neg_log_loss -0.", FMRegressor: "r2 -0."}[cls]
    with pytest.warns(UserWarning, match=rf"best validation score \({name}.*constant.*alpha_lin"):
        model.fit(*data, **more)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.simplefilter("ignore", ConvergenceWarning)
        # A weight of each feature tells these targets.
        effects = np.linspace(-9, 9, 50) if cls is FMRegressor else np.arange(50) % 2
        known = (X @ effects).astype(y.dtype)
        data = [RowStream(lambda: [(X[:200], known[:200])])] if way == "stream" else (X, known)
        if more:
            more["y_val"] = known[200:]
        cls(2, max_iter=3, random_state=0).fit(*data, **more)
