"""``partial_fit`` of factorization machines on the chunks of a stream."""

import copy
import tracemalloc

import numpy as np
import pytest
from helpers import classes_of, fitted, model_of
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from scipy.special import logit

from freqfm import (
    DeepFMClassifier,
    DivergenceError,
    FFMClassifier,
    FMClassifier,
    FMRegressor,
    FwFMClassifier,
    RaFMClassifier,
)
from freqfm.datasets import make_clicks
from freqfm.estimators.fm import streaming as parts
from freqfm.initializers import Normal
from freqfm.optimizers import OPTIMIZERS

FIELDS = np.repeat([0, 1, 2], [2000, 900, 100])


@pytest.fixture(scope="module")
def chunks():
    """Chunks of 100 rows, each of which holds few of 3,000 tokens."""
    X, y = make_clicks(400, (2000, 900, 100), random_state=0)
    weight = np.random.default_rng(0).random(400)
    return [(X[i : i + 100], y[i : i + 100], weight[i : i + 100]) for i in range(0, 400, 100)]


def trained(model, chunks):
    for X, y, weight in chunks:
        model.partial_fit(X, y, sample_weight=weight, **classes_of(type(model)))
    return model


def everything(model):
    """Return all arrays that training changes, copied."""
    states = [array for state in model._optimizer_state for array in state.values()]
    tower = [model._dense, *model._dense_state.values()] if hasattr(model, "_dense") else []
    arrays = [*fitted(model).values(), *states, *tower, model._n_steps, model._target_sums]
    return copy.deepcopy(arrays)


def whole_model(monkeypatch):
    """Let ``partial_fit`` train the whole model in place, as training without parts does."""
    for cls in (FMClassifier, DeepFMClassifier, RaFMClassifier, FFMClassifier, FwFMClassifier):
        monkeypatch.setattr(
            cls, "_part_of", lambda self, rows, _, **given: parts.WholeModel(self, rows)
        )


@pytest.mark.parametrize("optimizer", ["adam", "cf_sgd", "rowwise_adagrad"])
def test_part_of_the_model_trains_as_the_whole(chunks, optimizer, monkeypatch):
    model = model_of(FMClassifier, optimizer=optimizer)
    three = [(X, y + (X.indices[::3] < 50), weight) for X, y, weight in chunks]
    found = [
        everything(trained(model_of(FMClassifier, optimizer=optimizer), chunks)),
        everything(model.partial_fit(*three[0][:2], classes=[0, 1, 2]).partial_fit(*three[1][:2])),
    ]
    whole_model(monkeypatch)
    model = model_of(FMClassifier, optimizer=optimizer)
    expected = [
        everything(trained(model_of(FMClassifier, optimizer=optimizer), chunks)),
        everything(model.partial_fit(*three[0][:2], classes=[0, 1, 2]).partial_fit(*three[1][:2])),
    ]
    for one, other in zip(found, expected, strict=True):
        for a, b in zip(one, other, strict=True):
            assert_array_equal(a, b)


@pytest.mark.slow
@pytest.mark.parametrize("fields", [None, np.repeat([0, 1, 2], [2000, 900, 100])])
def test_part_of_a_tower_trains_as_the_whole(chunks, fields, monkeypatch):
    params = {"hidden_layer_sizes": (4,), "fields": fields}
    found = everything(trained(model_of(DeepFMClassifier, **params), chunks))
    whole_model(monkeypatch)
    expected = everything(trained(model_of(DeepFMClassifier, **params), chunks))
    for a, b in zip(found, expected, strict=True):
        assert_array_equal(a, b)


@pytest.mark.parametrize("cls", [FFMClassifier, FwFMClassifier])
@pytest.mark.parametrize("optimizer", ["adam", "cf_sgd", "rowwise_adagrad"])
def test_part_of_a_model_with_fields_trains_as_the_whole(chunks, optimizer, cls, monkeypatch):
    params = {"fields": FIELDS, "optimizer": optimizer}

    def arrays():
        found = everything(trained(model_of(cls, **params), chunks))
        three = [(X, y + (X.indices[::3] < 50)) for X, y, _ in chunks[:2]]
        model = model_of(cls, **params).partial_fit(*three[0], classes=[0, 1, 2])
        return found + everything(model.partial_fit(*three[1]))

    found = arrays()
    whole_model(monkeypatch)
    for a, b in zip(found, arrays(), strict=True):
        assert_array_equal(a, b)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adam", "cf_sgd"])
@pytest.mark.parametrize("sharing", ["separate", "truncate"])
@pytest.mark.parametrize("ranks", [(2, 3, 5), (4,)])
def test_part_of_a_rank_aware_model_trains_as_the_whole(
    chunks, ranks, sharing, optimizer, monkeypatch
):
    # The last chunk holds no token of the highest rank.
    X, y, weight = chunks[-1]
    chunks = [*chunks[:-1], (X[:3], y[:3], weight[:3])]
    rare = np.setdiff1d(np.arange(3000), X[:3].indices)
    levels = np.zeros(3000, dtype=int)
    levels[rare] = np.arange(len(rare)) % len(ranks)
    params = {"ranks": ranks, "rank_sharing": sharing, "optimizer": optimizer}
    params["rank_assignment"] = np.array(ranks)[levels]
    found = everything(trained(model_of(RaFMClassifier, **params), chunks))
    three = [(X, y + (X.indices[::3] < 50), weight) for X, y, weight in chunks[:2]]
    model = model_of(RaFMClassifier, **params).partial_fit(*three[0][:2], classes=[0, 1, 2])
    found += everything(model.partial_fit(*three[1][:2]))
    whole_model(monkeypatch)
    expected = everything(trained(model_of(RaFMClassifier, **params), chunks))
    model = model_of(RaFMClassifier, **params).partial_fit(*three[0][:2], classes=[0, 1, 2])
    expected += everything(model.partial_fit(*three[1][:2]))
    for a, b in zip(found, expected, strict=True):
        assert_array_equal(a, b)


@pytest.mark.parametrize(
    "cls", [FMClassifier, DeepFMClassifier, RaFMClassifier, FFMClassifier, FwFMClassifier]
)
def test_chunk_that_diverges_changes_nothing(chunks, cls):
    fields = {"fields": FIELDS} if cls in (FFMClassifier, FwFMClassifier) else {}
    model = trained(model_of(cls, **fields), chunks[:2])
    before = everything(model)
    X, y, _ = chunks[2]
    with pytest.raises(DivergenceError, match="epoch 3.*The estimator is as it was before"):
        model.partial_fit(X * np.float32(1e25), y)
    for now, then in zip(everything(model), before, strict=True):
        assert_array_equal(now, then)
    trained(model, chunks[2:3])


@pytest.mark.parametrize(
    "model, most",
    [
        # A copy of one number for each token would take 1.6 MB.
        (FMClassifier(16, random_state=0), 1e6),
        # Ranks of all tokens are looked at, in 16 bytes a token; vectors and state take 280.
        pytest.param(
            RaFMClassifier((16, 32), rank_assignment=[0], optimizer="adam", random_state=0),
            12e6,
            marks=pytest.mark.slow,
        ),
    ],
)
def test_chunk_takes_no_memory_that_grows_with_the_tables(model, most):
    X, y = make_clicks(50, (100, 20), random_state=0)
    wide = sparse.csr_array((X.data, X.indices, X.indptr), shape=(50, 400_000))
    for _ in range(2):
        model.partial_fit(wide, y, classes=[0, 1])
    tracemalloc.start()
    model.partial_fit(wide, y)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < most


@pytest.mark.parametrize("cls", [FMClassifier, DeepFMClassifier])
def test_rows_without_entries_train_the_intercept(chunks, cls):
    model = trained(model_of(cls), chunks[:1])
    factors, counts = model.factors_.copy(), model.token_counts_.copy()
    before = model.intercept_.copy()
    model.partial_fit(sparse.csr_array((5, 3000), dtype=np.float32), [1, 0, 1, 1, 1])
    assert (model.intercept_ != before).all()
    assert_array_equal(model.factors_, factors)
    assert_array_equal(model.token_counts_, counts)


# Base score


def test_intercept_moves_with_the_targets_so_far(chunks):
    options = {"fit_linear": False, "alpha_linear": 0, "alpha_factors": 0, "random_state": 0}
    still = FMClassifier(1, optimizer="sgd", learning_rate=1e-12, init=Normal(0), **options)
    X, y, _ = chunks[0]
    still.partial_fit(X[:10], np.zeros(10, int), classes=[0, 1])
    assert still.intercept_[0] == pytest.approx(logit(1e-6), rel=1e-5)
    still.partial_fit(X, y)
    assert still.intercept_[0] == pytest.approx(logit(y.sum() / 110), rel=1e-5)
    still = FMRegressor(1, optimizer="sgd", learning_rate=1e-12, init=Normal(0), **options)
    weight = np.arange(1.0, 101)
    still.fit(X[:10], y[:10] + 5).partial_fit(X, y, sample_weight=weight)
    mean = (y[:10].sum() + 50 + y @ weight) / (10 + weight.sum())
    assert still.intercept_[0] == pytest.approx(mean, rel=1e-5)


def test_without_an_intercept_none_is_averaged(chunks):
    options = {"fit_linear": False, "alpha_factors": 0, "optimizer": "sgd", "random_state": 0}
    X, model = chunks[0][0], FMRegressor(1, fit_intercept=False, **options)
    assert model.partial_fit(X, np.ones(100)).partial_fit(X, np.zeros(100)).intercept_[0] == 0


# New features


@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
def test_new_features_start_as_in_a_new_model(chunks, optimizer):
    (X, y, _), (X2, y2, _) = chunks[:2]
    narrow = sparse.csr_array(X[:, :2900])
    model = model_of(FMClassifier, optimizer=optimizer)
    model.partial_fit(narrow, y, classes=[0, 1])
    before = fitted(model)
    model.partial_fit(X2[:1], y2[:1], n_features=3000)
    assert model.n_features_in_ == 3000
    untouched = np.setdiff1d(np.arange(2900), X2[:1].indices)
    for name in ("coef_", "factors_", "token_counts_"):
        assert_array_equal(getattr(model, name)[untouched], before[name][untouched])
    new = np.setdiff1d(np.arange(2900, 3000), X2[:1].indices)
    assert (model.coef_[new] == 0).all() and (model.token_counts_[new] == 0).all()
    assert 0 < model.factors_[new].std() < 2 * model.factors_[:2900].std()
    # A model that had all features from the start differs in what is drawn only.
    model.partial_fit(X2, y2)
    assert_allclose(model.predict_proba(X).sum(axis=1), 1)


def test_narrow_chunks_fit_into_a_wide_model(chunks):
    X, y, _ = chunks[0]
    narrow = sparse.csr_array(X[:, :2500])
    wide = sparse.csr_array((narrow.data, narrow.indices, narrow.indptr), shape=(100, 3000))
    model, expected = model_of(FMClassifier), model_of(FMClassifier)
    model.partial_fit(narrow, y, classes=[0, 1], n_features=3000)
    model.partial_fit(narrow.toarray(), y, n_features=3000)
    expected.partial_fit(wide, y, classes=[0, 1]).partial_fit(wide, y)
    assert_array_equal(model.factors_, expected.factors_)


def test_widths_that_cannot_be(chunks):
    pandas = pytest.importorskip("pandas")
    X, y, _ = chunks[0]
    model = model_of(FMClassifier).partial_fit(X, y, classes=[0, 1])
    before = everything(model)
    for n_features, message in (
        (2999, "X has 3000 features, but n_features=2999"),
        (0, "n_features=0 must be an integer of at least 1"),
    ):
        with pytest.raises(ValueError, match=message):
            model.partial_fit(X, y, n_features=n_features)
    with pytest.raises(ValueError, match="n_features=5 is less than the 3000 features of the mod"):
        model.partial_fit(np.eye(5), np.ones(5), n_features=5)
    with pytest.raises(ValueError, match="y holds .7.*not among the classes"):
        model.partial_fit(X, np.full(100, 7), n_features=4000)
    assert model.n_features_in_ == 3000
    for now, then in zip(everything(model), before, strict=True):
        assert_array_equal(now, then)
    frame = pandas.DataFrame(np.eye(5), columns=list("abcde"))
    with pytest.raises(TypeError, match="X is a DataFrame, whose columns have names"):
        model.partial_fit(frame, np.ones(5), n_features=3000)
    named = model_of(FMRegressor).partial_fit(frame, np.ones(5))
    with pytest.raises(ValueError, match="n_features=6 would add features without names"):
        named.partial_fit(np.eye(6), np.ones(6), n_features=6)


@pytest.mark.slow
def test_ranks_and_fields_of_other_widths(chunks):
    X, y, _ = chunks[0]
    ranked = model_of(RaFMClassifier).partial_fit(X, y, classes=[0, 1])
    with pytest.raises(ValueError, match="n_features=3001 .*whose ranks were given out"):
        ranked.partial_fit(X, y, n_features=3001)
    deep = model_of(DeepFMClassifier, fields=np.zeros(3000, int)).partial_fit(X, y, classes=[0, 1])
    with pytest.raises(ValueError, match=r"fields has shape \(3000,\), but X has 3001 features"):
        deep.partial_fit(X, y, n_features=3001)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"params": {"batch_size": 0}}, "'batch_size' parameter"),
        ({"X": lambda X: X * np.float32(np.nan)}, "X contains NaN"),
        ({"X": lambda X: X[:, :-1]}, "X has 2999 features"),
        ({"y": lambda y: y + 0.5}, "Unknown label type: continuous"),
        ({"y": lambda y: y[:-1]}, "inconsistent numbers of samples"),
    ],
)
def test_later_calls_are_checked_too(chunks, change, message):
    X, y, _ = chunks[0]
    model = model_of(FMClassifier).partial_fit(X, y, classes=[0, 1]).partial_fit(X, y)
    before = everything(model)
    model.set_params(**change.get("params", {}))
    X, y = change.get("X", copy.copy)(X), change.get("y", copy.copy)(y)
    with pytest.raises(ValueError, match=message):
        model.partial_fit(X, y)
    for array, expected in zip(everything(model), before, strict=True):
        assert_array_equal(array, expected)
