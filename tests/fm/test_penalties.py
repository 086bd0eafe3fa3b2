"""Penalties that are chosen on validation rows."""

import numpy as np
import pytest
from helpers import BOTH, assert_same_model, each, model_of
from numpy.testing import assert_array_equal
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV
from sklearn.preprocessing import OneHotEncoder

from freqfm import FFMClassifier, FMClassifier, FMRegressor
from freqfm.callbacks import Checkpoint, resume
from freqfm.datasets import RowStream
from freqfm.estimators.fm import base
from freqfm.estimators.fm.base import penalties_to_try, phase_beside
from freqfm.estimators.training import Phase
from freqfm.exceptions import DivergenceError

OPTIONS = {"max_iter": 4, "n_iter_no_change": None, "random_state": 0}
USUAL, STRONG, WEAK = (1.0, 5.0), (0.3, 25.0), (10.0, 25.0)


def rows_of(n_rows, n_values, scale, pairs=0.0, seed=0):
    """Return one-hot rows, and classes by effects of values and of pairs of some scales."""
    rng = np.random.default_rng(seed)
    fields = np.column_stack([rng.integers(0, n, n_rows) for n in n_values])
    X = OneHotEncoder(categories=[np.arange(n) for n in n_values]).fit_transform(fields)
    score = X @ rng.normal(0, scale, X.shape[1])
    score += rng.normal(0, pairs, n_values[:2])[fields[:, 0], fields[:, 1]] if pairs else 0.0
    return X, (rng.random(n_rows) < 1 / (1 + np.exp(-score))).astype(int)


@pytest.fixture(scope="module")
def clicks():
    return rows_of(600, (30, 20, 10), 0.3)


def options_of(cls):
    """Return the fields of the rows of ``clicks``, for machines that have fields."""
    return (
        {"fields": np.repeat([0, 1, 2], [30, 20, 10])} if cls.__name__[:2] in ("FF", "Fw") else {}
    )


def chosen(model):
    """Return the penalties of a fitted model."""
    return model.alpha_linear_, model.alpha_factors_


@each("scale, pairs, expected", [(0.05, 0, WEAK), (3.0, 0, STRONG), (0.2, 2.0, USUAL)])
def test_the_choice_follows_the_data(scale, pairs, expected):
    n_values = (8, 8) if pairs else (300, 200)
    X, y = rows_of(8000, n_values, scale, pairs)
    given = {"X_val": X[2000:5000], "y_val": y[2000:5000]}
    usual = {"alpha_linear": 1.0, "alpha_factors": 5.0}
    model, fixed = (
        FMClassifier(random_state=0, **params).fit(X[:2000], y[:2000], **given)
        for params in ({}, usual)
    )
    assert chosen(model) == expected
    loss, of_fixed = (log_loss(y[5000:], m.predict_proba(X[5000:])) for m in (model, fixed))
    if pairs:
        linear = X[5000:] @ model.coef_ + model.intercept_
        assert loss < log_loss(y[5000:], 1 / (1 + np.exp(-linear))) - 0.02
    else:
        assert loss < of_fixed


@pytest.mark.slow
@BOTH
def test_the_chosen_model_is_that_of_a_fit_with_its_penalties(clicks, cls):
    X, y = clicks
    for given in ({}, {"X_val": X[400:], "y_val": y[400:]}):
        model = model_of(cls, **OPTIONS | options_of(cls)).fit(X[:400], y[:400], **given)
        pairs = [cls._usual_penalties, *base._OTHERS[cls._of_classes]]
        same = [clone(model).set_params(alpha_linear=a, alpha_factors=b) for a, b in pairs]
        best = [m.fit(X[:400], y[:400], **given).validation_scores_.max() for m in same]
        expected = same[int(np.argmax(best))]
        assert chosen(model) == chosen(expected)
        assert_same_model(model, expected)
        assert_array_equal(model.validation_scores_, expected.validation_scores_)
        assert model.best_iter_ == expected.best_iter_


def test_bits_do_not_depend_on_threads(clicks):
    one, two = (FMClassifier(**OPTIONS, n_jobs=n).fit(*clicks) for n in (1, 2))
    assert chosen(one) == chosen(two)
    assert_same_model(one, two)


@pytest.mark.slow
def test_parameters_are_kept_and_searched(clicks):
    model = FMClassifier(**OPTIONS)
    assert clone(model).get_params()["alpha_linear"] == model.alpha_factors == "auto"
    grid = {"alpha_linear": ["auto", 3.0], "alpha_factors": ["auto", 0]}
    search = GridSearchCV(model, grid, cv=2, scoring="neg_log_loss").fit(*clicks)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    for value in ("large", -1, None):
        with pytest.raises(ValueError, match="alpha_factors"):
            FMClassifier(alpha_factors=value).fit(*clicks)


def tried(model, data, **given):
    """Return the penalties that a fit tries."""
    seen = []

    def watched(model, rows):
        seen.extend([chosen(model), *penalties_to_try(model, rows)])
        return seen[1:]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base, "penalties_to_try", watched)
        model.set_params(**OPTIONS).fit(*data, **given)
    return seen


@each(
    "params, expected",
    [
        ({}, [USUAL, STRONG, WEAK]),
        ({"alpha_linear": 2}, [(2, 5), (2, 25)]),
        ({"alpha_factors": 2}, [(1, 2), (0.3, 2), (10, 2)]),
        ({"alpha_linear": 2, "alpha_factors": 3}, [(2, 3)]),
        ({"fit_linear": False}, [(1, 5), (1, 25)]),
        ({"alpha_per": "row"}, [USUAL]),
        ({"early_stopping": False}, [USUAL]),
        ({"warm_start": True}, [USUAL, STRONG, WEAK]),
    ],
)
def test_only_what_is_auto_and_can_be_validated_is_chosen(clicks, params, expected):
    assert tried(FMClassifier(**params), clicks) == expected


@pytest.mark.slow
def test_large_data_have_the_usual_penalties(clicks, monkeypatch):
    fields = options_of(FFMClassifier)
    assert tried(FFMClassifier(**fields), clicks) == [(1, 2), STRONG, WEAK]
    assert tried(FMRegressor(), clicks) == [USUAL, WEAK, (100, 300)]
    monkeypatch.setattr(base, "_MOST_ROWS", 100)
    assert tried(FMClassifier(), clicks) == [USUAL]
    assert tried(FFMClassifier(**fields), clicks) == [(1, 2)]


def test_fits_without_a_choice_and_those_that_continue(clicks):
    X, y = clicks
    part = FMClassifier(random_state=0).partial_fit(X, y, classes=[0, 1])
    assert (
        chosen(part)
        == chosen(FMClassifier(max_iter=1).fit(RowStream(lambda: iter([clicks]))))
        == USUAL
    )
    X, y = rows_of(2000, (300, 200), 0.05)
    model = FMClassifier(warm_start=True, **OPTIONS).fit(X, y)
    assert chosen(model) == WEAK
    # A model that continues keeps its penalties, except those that are given now.
    assert chosen(model.fit(X, y)) == chosen(model.partial_fit(X, y)) == WEAK
    assert chosen(model.set_params(alpha_linear=2).fit(X, y)) == (2, 25)
    assert chosen(model.set_params(alpha_linear="auto", warm_start=False).fit(X, y)) == WEAK


@pytest.mark.slow
def test_verbose_says_once_what_was_chosen_and_whether_pairs_help(capsys):
    for pairs, params in ((0, {}), (0, {"alpha_factors": 5.0, "alpha_linear": 1.0}), (2.0, {})):
        X, y = rows_of(2000, (8, 8), 0.2, pairs)
        FMClassifier(verbose=1, random_state=0, **params).fit(X, y)
        out = capsys.readouterr().out
        assert out.count("chosen by validation: alpha_linear=") == (not params)
        assert out.count("the model is linear in effect") == (not pairs)


def test_fits_that_are_stopped_or_interrupted_have_the_best_model_so_far(clicks, tmp_path):
    X, y = clicks
    given = {"X_val": X[400:], "y_val": y[400:]}
    train, n_trained = base.train_task, []

    def failing(task, *args, **options):
        n_trained.append(chosen(task.model))
        if len(n_trained) == failing.at:
            raise failing.error
        return train(task, *args, **options)

    def fit(at, error):
        failing.at, failing.error = at, error
        n_trained.clear()
        model = FMClassifier(**OPTIONS)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(base, "train_task", failing)
            try:
                model.fit(X[:400], y[:400], **given)
            except KeyboardInterrupt:
                assert error is KeyboardInterrupt
        return model

    of_pairs = {
        pair: FMClassifier(**OPTIONS, alpha_linear=pair[0], alpha_factors=pair[1]).fit(
            X[:400], y[:400], **given
        )
        for pair in (USUAL, STRONG, WEAK)
    }
    best = {pair: model.validation_scores_.max() for pair, model in of_pairs.items()}
    # An interrupt keeps the best of those before; a model that diverges is no candidate.
    for at, error, of in (
        (2, KeyboardInterrupt, [USUAL]),
        (3, KeyboardInterrupt, [USUAL, STRONG]),
        (2, DivergenceError("diverged"), [USUAL, WEAK]),
        (3, DivergenceError("diverged"), [USUAL, STRONG]),
    ):
        model = fit(at, error)
        assert n_trained == [USUAL, STRONG, WEAK][: at if error is KeyboardInterrupt else 3]
        expected = max(of, key=best.get)
        assert chosen(model) == expected
        assert_same_model(model, of_pairs[expected])


def test_callbacks_see_the_first_fit_and_the_chosen_model_and_stop_all(clicks):
    pytest.importorskip("sklearn.callback")

    class Watch:
        def __init__(self, last):
            self.last, self.seen = last, []

        def setup(self, estimator, context):
            pass

        teardown = on_fit_task_begin = setup

        def on_fit_task_end(self, estimator, context, *, X, fitted_estimator):
            scores = fitted_estimator.decision_function(X)
            self.seen.append((context.task_name, chosen(fitted_estimator), scores))
            return len(self.seen) == self.last

    X, y = rows_of(1000, (300, 200), 0.05)
    given = {"X_val": X[600:], "y_val": y[600:]}
    for last, n_epochs in ((2, 2), (9, 4)):
        watch = Watch(last)
        model = FMClassifier(**OPTIONS).set_callbacks(watch).fit(X[:600], y[:600], **given)
        assert (chosen(model) == USUAL) == (n_epochs == 2)
        names, pairs, scores = zip(*watch.seen, strict=True)
        assert names == ("epoch",) * n_epochs + ("fit",)
        assert pairs == (USUAL,) * n_epochs + (chosen(model),)
        assert_array_equal(scores[-1], model.decision_function(X[:600]))


class Killing(Checkpoint):
    """A checkpoint that ends the fit once it has been written a number of times."""

    def __init__(self, path, n_saved):
        super().__init__(path)
        self.left = n_saved

    def save(self, estimator, progress):
        super().save(estimator, progress)
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt


@pytest.mark.slow
def test_a_fit_that_is_resumed_chooses_as_well(tmp_path):
    X, y = rows_of(1000, (300, 200), 0.05)
    for given in ({}, {"X_val": X[600:], "y_val": y[600:]}):
        data = (X[:600], y[:600]) if given else (X, y)
        expected = FMClassifier(**OPTIONS).fit(*data, **given)
        assert chosen(expected) != USUAL
        # In the first fit, at its end and when all rows are trained on.
        for n_saved in (1, 4) if given else (1, 4, 5):
            checkpoint = Killing(tmp_path / "file", n_saved)
            with pytest.raises(KeyboardInterrupt):
                FMClassifier(**OPTIONS).set_callbacks(checkpoint).fit(*data, **given)
            model = resume(tmp_path / "file").fit(*data, **given)
            assert chosen(model) == chosen(expected)
            assert_same_model(model, expected)


@pytest.mark.filterwarnings("error")
def test_only_the_chosen_model_may_warn_that_it_still_improved():
    X, y = rows_of(2000, (300, 200), 3.0)
    with pytest.warns(ConvergenceWarning, match="reached max_iter=2") as caught:
        FMClassifier(max_iter=2, random_state=0).fit(X, y)
    assert len(caught) == 1


def test_models_that_cannot_win_are_given_up():
    best = np.linspace(-1, -0.5, 21)
    slow, late = np.linspace(-1, -0.65, 21), np.linspace(-1, -0.55, 21)
    phase = phase_beside(Phase(100, 9), best)
    assert phase.patience == 5
    # Not before half the patience; then by how much the score has risen.
    assert not phase.gives_up(slow[:5]) and phase.gives_up(slow[:6])
    assert not any(phase.gives_up(late[:n]) for n in range(22))
    assert not any(phase.gives_up(np.r_[late, np.full(n, -0.55)]) for n in range(60))
    assert phase_beside(Phase(100), best) == Phase(100)
