"""The displays: what they compute, what they draw, and what they refuse."""

import sys

import numpy as np
import pytest
from helpers import slow_params
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats
from sklearn.compose import TransformedTargetRegressor
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, MaxAbsScaler, StandardScaler

from freqfm import (
    FMClassifier,
    FMRegressor,
    InteractionRecommender,
    ItemKNNRecommender,
    MFRecommender,
)
from freqfm.datasets import make_clicks, make_interactions
from freqfm.displays import (
    InteractionStrengthsDisplay,
    LossCurveDisplay,
    MagnitudePopularityDisplay,
    RecommenderComparisonDisplay,
    StratifiedNDCGDisplay,
    TemperatureDisplay,
)
from freqfm.initializers import PRISM
from freqfm.metrics import ndcg_at_k, stratified_ndcg_at_k
from freqfm.model_selection import (
    WarmStartKFold,
    compare_recommenders,
    holdout_interactions,
    make_ranking_scorer,
)

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")
plt = pytest.importorskip("matplotlib.pyplot")


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def data():
    """Histories of 80 users, of whom one has none, held-out items, and a model."""
    X = make_interactions(80, 40, 900, random_state=0).tolil()
    X[3] = 0
    history, relevant = holdout_interactions(X.tocsr(), 0.3, random_state=0)
    return history, relevant, recommender().fit(history)


def recommender(**params):
    return MFRecommender(**{"n_components": 4, "max_iter": 2, "random_state": 0, **params})


def table(X):
    rows, columns = X.nonzero()
    return np.array([rows, columns]).T


# Names that come from data.

NAMES = [
    "US$ or AU$",
    "$",
    "$a_$",
    r"\$x$",
    "two\nlines",
    "\ud800",
    "\x1b[2J",
    "_x",
    "x" * 10**6,
    7,
]


def drawn(figure):
    """Return the texts of a figure as matplotlib draws them; they are no formulas."""
    figure.draw_without_rendering()
    texts = [text._preprocess_math(text.get_text()) for text in figure.findobj(plt.Text)]
    assert not any(kind for text, kind in texts if "mathdefault" not in text)
    return " | ".join(text for text, _ in texts)


@pytest.mark.parametrize(
    "draw",
    [
        lambda name: LossCurveDisplay([2.0, 1.0], [0.1, 0.2], name=name).plot(),
        *slow_params([
            lambda name: InteractionStrengthsDisplay([[name, "b"]], [1.0]).plot(),
            lambda name: MagnitudePopularityDisplay([1.0, 2.0], [3, 4], what=name).plot(),
            lambda name: StratifiedNDCGDisplay({n: {"popular": 0.1} for n in (name, "b")}).plot(),
        ]),
    ],
    ids=["losses", "interactions", "magnitudes", "strata"],
)  # fmt: skip
@pytest.mark.filterwarnings("error")
def test_names_are_drawn_as_they_are(draw):
    for name in NAMES:
        found = drawn(draw(name).figure_)
        expected = {"two\nlines": "two lines", "\ud800": r"\ud800", "\x1b[2J": r"\x1b[2J"}
        expected = expected.get(name, "x" * 57 + "..." if len(str(name)) > 99 else str(name))
        assert expected in found and max(map(len, found.split(" | "))) < 200
        plt.close("all")


def test_labels_given_to_matplotlib_may_be_formulas():
    display = LossCurveDisplay([2.0, 1.0]).plot(label=r"$\alpha$")
    (text,) = display.ax_.get_legend().get_texts()
    assert text._preprocess_math(text.get_text()) == (r"$\alpha$", True)


# Lengths by popularity.


def test_magnitudes_of_prism_follow_popularity(data):
    history, _, _ = data
    model = recommender(init=PRISM(0.7), learning_rate=1e-9, max_iter=1).fit(history)
    display = MagnitudePopularityDisplay.from_estimator(model)
    assert_allclose(display.lengths, 0.7 * np.log(display.counts + 2) + 0.3, rtol=1e-5)
    assert display.correlation > 0.99  # rounding parts equal counts
    assert_allclose(display.points_.get_offsets().data[:, 1], display.lengths)
    assert display.ax_.get_xscale() == "log"
    assert display.figure_ is display.ax_.figure
    assert f"{display.correlation:.2f}" in display.ax_.get_title()


@pytest.mark.parametrize("of, axis", [("items", 0), ("users", 1)])
def test_magnitudes_of_both_sides(data, of, axis):
    history, _, model = data
    display = MagnitudePopularityDisplay.from_estimator(model, of=of, color="red")
    counts = np.asarray((history != 0).sum(axis=axis)).ravel()
    vectors = getattr(model, f"{of[:-1]}_factors_")
    assert_array_equal(display.counts, counts[counts > 0])
    assert_allclose(display.lengths, np.linalg.norm(vectors[counts > 0], axis=1), rtol=1e-6)
    assert of in display.ax_.get_xlabel() and of in display.ax_.get_ylabel()


def test_magnitudes_of_factorization_machines():
    X, y = make_clicks(500, (30, 10), random_state=0)
    model = FMClassifier(n_components=3, max_iter=2, random_state=0).fit(X, y)
    display = MagnitudePopularityDisplay.from_vectors(
        model.factors_, model.token_counts_, what="tokens"
    )
    seen = model.token_counts_ > 0
    lengths = np.linalg.norm(model.factors_[seen], axis=1)
    expected = stats.spearmanr(model.token_counts_[seen], lengths).statistic
    assert display.correlation == pytest.approx(expected)
    assert "tokens" in display.ax_.get_xlabel()


def test_rank_correlation():
    rng = np.random.default_rng(0)
    counts, lengths = rng.integers(1, 9, 50), rng.random(50)
    display = MagnitudePopularityDisplay(lengths, counts)
    assert display.correlation == pytest.approx(stats.spearmanr(counts, lengths).statistic)
    assert np.isnan(MagnitudePopularityDisplay([1.0, 2.0], [3, 3]).correlation)
    assert np.isnan(MagnitudePopularityDisplay([1.0, 2.0], [0, 3]).correlation)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: MagnitudePopularityDisplay([1.0], [1, 2]), "2 counts and 1 lengths"),
        (lambda: MagnitudePopularityDisplay([1.0], [[1]]), "counts must be one-dimensional"),
        (lambda: MagnitudePopularityDisplay.from_vectors([1.0], [1]), "vectors must be a matrix"),
        (lambda: MagnitudePopularityDisplay.from_estimator(None, of="item"), "of='item' must be"),
    ],
)
def test_magnitudes_refuse(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# Curves of the training.


def test_loss_curve_of_a_recommender(data):
    _, _, model = data
    display = LossCurveDisplay.from_estimator(model)
    assert_array_equal(display.line_.get_xdata(), [1, 2])
    assert_array_equal(display.line_.get_ydata(), model.loss_curve_)
    assert display.validation_line_ is None and display.best_line_ is None
    assert display.line_.get_label() == "MFRecommender, loss"


def test_validation_scores_have_a_separate_axis(data):
    history, _, _ = data
    model = recommender(early_stopping=True, max_iter=4).fit(history)
    display = LossCurveDisplay.from_estimator(model, name="one")
    assert_array_equal(display.validation_line_.get_ydata(), model.validation_scores_)
    assert display.best_line_.get_xdata()[0] == model.best_iter_
    assert display.validation_ax_ is not display.ax_
    other = LossCurveDisplay.from_estimator(
        model, name="two", ax=display.ax_, validation_ax=display.validation_ax_, color="red"
    )
    assert other.ax_ is display.ax_ and other.validation_ax_ is display.validation_ax_
    assert len(other.figure_.axes) == 2
    texts = [text.get_text() for text in other.ax_.get_legend().get_texts()]
    assert "one, loss" in texts and "two, loss" in texts


def test_loss_curve_of_factorization_machines():
    X, y = make_clicks(500, (30, 10), random_state=0)
    model = make_pipeline(
        MaxAbsScaler(), FMClassifier(n_components=3, max_iter=3, early_stopping=True)
    ).fit(X, y)
    display = LossCurveDisplay.from_estimator(model)
    assert len(display.validation_scores) == len(display.loss_curve)


# Temperatures.


def test_loss_curve_inside_a_scaled_target():
    X, y = np.eye(5)[np.arange(40) % 5], np.arange(40.0) % 5
    regressor = FMRegressor(2, max_iter=3, random_state=0)
    scaled = TransformedTargetRegressor(regressor, transformer=StandardScaler()).fit(X, y)
    display = LossCurveDisplay.from_estimator(make_pipeline("passthrough", scaled))
    assert_array_equal(display.loss_curve, scaled.regressor_.loss_curve_)


def test_temperatures(data):
    history, _, model = data
    seen = np.diff(history.indptr) > 0
    assert not seen.all()
    display = TemperatureDisplay.from_estimator(model, bins=5)
    assert_array_equal(display.temperatures, model.user_temperatures_[seen].astype(float))
    assert sum(bar.get_height() for bar in display.bars_) == seen.sum()
    assert display.points_ is None
    assert f"{seen.sum()} users" in display.ax_.get_title()
    assert display.ax_.get_xlabel() == "temperature"
    display.plot(kind="degree")
    assert_array_equal(display.points_.get_offsets().data[:, 0], np.diff(history.indptr)[seen])
    assert display.bars_ is None


def test_temperatures_refuse():
    with pytest.raises(ValueError, match="kind='hist' must be"):
        TemperatureDisplay([0.1]).plot(kind="hist")
    with pytest.raises(ValueError, match="needs degrees"):
        TemperatureDisplay([0.1]).plot(kind="degree")
    with pytest.raises(ValueError, match="1 temperatures and 2 degrees"):
        TemperatureDisplay([0.1], [1, 2])


# NDCG by popularity.


def test_stratified_ndcg_of_known_users(data):
    history, relevant, model = data
    other = recommender(n_components=2).fit(history)
    display = StratifiedNDCGDisplay.from_estimators({"a": model, "b": other}, relevant, k=5)
    for name, fitted in (("a", model), ("b", other)):
        ranked, _ = fitted.recommend(users=np.arange(80), n_recommendations=5)
        expected = stratified_ndcg_at_k(relevant, ranked, model.item_counts_)
        assert display.parts[name] == dict(expected)
        assert display.ndcg[name] == pytest.approx(ndcg_at_k(relevant, ranked))
        heights = [bar.get_height() for bar in display.bars_[name]]
        assert_allclose(heights, list(expected.values()))
    ticks = [label.get_text() for label in display.ax_.get_xticklabels()]
    assert ticks == ["popular", "neutral", "unpopular"]
    assert "@5" in display.ax_.get_ylabel()
    by_rankings = StratifiedNDCGDisplay.from_rankings(
        relevant, {"b": ranked}, model.item_counts_, ax=display.ax_, color="red"
    )
    assert by_rankings.parts["b"] == display.parts["b"] and by_rankings.k == 5
    assert by_rankings.ax_ is display.ax_
    assert {bar.get_facecolor() for bar in by_rankings.bars_["b"]} == {(1, 0, 0, 1)}


def test_stratified_ndcg_of_some_users_and_of_histories(data):
    history, relevant, model = data
    users = np.array([5, 1, 7])
    display = StratifiedNDCGDisplay.from_estimators(model, relevant[users], users=users, k=5)
    ranked, _ = model.recommend(users=users, n_recommendations=5)
    assert display.ndcg["MFRecommender"] == pytest.approx(ndcg_at_k(relevant[users], ranked))
    halving = FunctionTransformer(lambda X: X / 2, accept_sparse=True)
    pipeline = make_pipeline(halving, recommender()).fit(history)
    display = StratifiedNDCGDisplay.from_estimators(
        {"p": pipeline}, relevant.toarray(), history=history, k=5
    )
    ranked, _ = pipeline[-1].recommend(history / 2, n_recommendations=5)
    assert display.ndcg["p"] == pytest.approx(ndcg_at_k(relevant, ranked))


def test_stratified_ndcg_of_interactions(data):
    history, relevant, _ = data
    search = GridSearchCV(
        InteractionRecommender(recommender()),
        {"estimator__n_components": [2]},
        cv=WarmStartKFold(2),
    ).fit(table(history))
    display = StratifiedNDCGDisplay.from_estimators({"s": search}, table(relevant), k=5)
    scorer = make_ranking_scorer("ndcg", k=5)
    assert display.ndcg["s"] == pytest.approx(scorer(search, table(relevant)))
    with pytest.raises(ValueError, match="leave history and users at None"):
        StratifiedNDCGDisplay.from_estimators({"s": search}, table(relevant), users=[1])


def test_stratified_ndcg_refuses(data):
    history, relevant, model = data
    with pytest.raises(ValueError, match="parts names no model"):
        StratifiedNDCGDisplay.from_estimators({}, relevant)
    with pytest.raises(ValueError, match="history and users were both given"):
        StratifiedNDCGDisplay.from_estimators(model, relevant, history=history, users=[1])


# All displays.

CALLS = [
    lambda model, **options: MagnitudePopularityDisplay.from_estimator(model, **options),
    lambda model, **options: LossCurveDisplay.from_estimator(model, **options),
    lambda model, **options: TemperatureDisplay.from_estimator(model, **options),
    lambda model, **options: TemperatureDisplay.from_estimator(model, kind="degree", **options),
]


@pytest.mark.parametrize("call", CALLS)
def test_axes_wrappers_and_keywords(data, call):
    history, _, model = data
    _, ax = plt.subplots()
    display = call(model, ax=ax, alpha=0.5)
    assert display.ax_ is ax and display.figure_ is ax.figure
    assert display.plot() is display and display.ax_ is not ax
    assert len(plt.get_fignums()) == 2
    wrapped = make_pipeline(InteractionRecommender(recommender())).fit(table(history))
    assert call(wrapped).ax_.get_title() == call(wrapped[-1].estimator_).ax_.get_title()


@pytest.mark.parametrize("call", CALLS)
def test_estimators_that_cannot_be_drawn(call):
    for unfitted in (recommender(), make_pipeline(recommender())):
        with pytest.raises(NotFittedError):
            call(unfitted)
    scaler = MaxAbsScaler().fit([[1.0]])
    with pytest.raises(TypeError, match="MaxAbsScaler has no"):
        call(scaler)
    with pytest.raises(TypeError, match="inside Pipeline, has no"):
        call(make_pipeline(scaler))


def test_without_matplotlib(monkeypatch):
    display = TemperatureDisplay([0.1, 0.2])
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match=r"freqfm\[plot\]"):
        display.plot()


def test_comparisons_are_drawn_with_intervals():
    X = make_interactions(100, 50, 1500, random_state=0)
    members = [("knn $", ItemKNNRecommender(10)), ("broken", ItemKNNRecommender(-1))]
    comparison = compare_recommenders(X, members, random_state=0)
    display = RecommenderComparisonDisplay.from_comparison(comparison, s=9)
    assert display.names == ["knn $", "most popular"] and display.metric == "ndcg@10"
    rows = comparison.rows_[:2]
    scores = [row.scores["ndcg@10"] for row in rows]
    assert_array_equal(
        display.points_.get_offsets(),
        [[row.fit_seconds, score] for row, score in zip(rows, scores, strict=True)],
    )
    (bars,) = (one for one in display.ax_.collections if one is not display.points_)
    low, high = rows[1].interval
    assert_allclose(bars.get_segments()[1][:, 1], [scores[0] + low, scores[0] + high])
    assert [text.get_text() for text in display.ax_.texts] == [r"knn \$", "most popular"]
    again = display.plot(ax=plt.subplots()[1])
    assert again is display
    bare = RecommenderComparisonDisplay(["a"], [0.5], [2.0]).plot()
    assert bare.ax_.get_ylabel() == "score" and bare.ax_.get_xscale() == "log"
    for scores, options, words in [
        ([0.5, 0.4], {}, "scores has the shape"),
        ([0.5], {"intervals": [0.1]}, "intervals has the shape"),
        ([[0.5]], {}, "scores must be one-dimensional"),
    ]:
        with pytest.raises(ValueError, match=words):
            RecommenderComparisonDisplay(["a"], scores, [2.0], **options)
