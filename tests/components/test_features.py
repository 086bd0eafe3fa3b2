"""Features: gradients, counts of features, cold users and items, new rows, bad input."""

import pickle

import numpy as np
import pytest
import reference.mf
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from test_mf_backbones import FAMILIES, reference_loss
from test_mf_kernels import N_ITEMS, N_USERS, WIDTH, known_pairs

from freqfm import FastVAERecommender, MFRecommender
from freqfm.backbones import Features
from freqfm.datasets import make_interactions
from freqfm.estimators.recommenders import mf_trainer
from freqfm.estimators.recommenders.interactions import Interactions
from freqfm.initializers import Initializer
from freqfm.losses import MAWU
from freqfm.optimizers import CFSGD, FASGD

MF = {"n_components": 4, "loss": "bpr", "max_iter": 2, "random_state": 0}


def small_features(n, n_features, seed=0):
    generator = np.random.default_rng(seed)
    dense = (generator.random((n, n_features)) < 0.4) * generator.normal(size=(n, n_features))
    dense[:, 0] = 1
    return dense.astype(np.float32)


class AnyTables(Initializer):
    """Normal numbers that depend on the shape alone."""

    def draw(self, shape, generator, counts=None):
        return np.random.default_rng(shape[0]).normal(size=shape).astype(np.float32)


@pytest.mark.slow
def test_small_data_have_fewer_batches_than_without_features():
    X = make_interactions(300, 200, 8192, random_state=0)
    sides = {"user_features": np.eye(300)[:, :5], "item_features": np.eye(200)[:, :5]}
    found = []
    for backbone in ("linear", *(Features(**{name: F}) for name, F in sides.items())):
        model = MFRecommender(backbone=backbone, max_iter=1, n_components=2).fit(X)
        found.append(int(model._training.n_steps[0]))
    assert 200 < found[0] <= 256 and found[1:] == [128, 128]
    model = MFRecommender(backbone=backbone, max_iter=1, n_components=2, batch_size=512).fit(X)
    assert model._training.n_steps[0] == 16


@pytest.mark.slow
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_gradient(data, family, normalize):
    X = data[0]
    F = small_features(N_ITEMS, 6)
    backbone = Features(item_features=F, normalize=normalize)
    params = {**FAMILIES[family], "init": AnyTables()}
    pairs, (_, _, model) = known_pairs(data, backbone=backbone, **params)
    U, both = (AnyTables().draw((n, WIDTH), None) for n in (N_USERS, N_ITEMS + 6))
    # An item without users is the sum of its features.
    own = np.float32(X.sum(axis=0) > 0)
    scale = 1 / (np.abs(F).sum(axis=1) + own) if normalize else np.ones(N_ITEMS)
    A = scale[:, None] * np.hstack([np.diag(own), F])

    def loss(users, rows):
        return reference_loss(family, X, pairs, users, A @ rows)

    assert_allclose(model.loss_curve_[0], loss(U, both), rtol=1e-5)
    for before, gradient, names in zip(
        (U, both * np.append(own, np.ones(6))[:, None]),
        reference.mf.gradients(loss, U, both),
        (["user_factors"], ["item_factors", "item_features"]),
        strict=True,
    ):
        after = np.concatenate([model.backbone_tables_[name] for name in names])
        assert_allclose(before - after, gradient, atol=4e-5)
    assert_allclose(model.item_factors_, A @ after, atol=1e-5)


@pytest.mark.parametrize("count", ["sample", "batch"])
def test_features_are_counted_in_batches(data, count):
    X = data[0]
    F = sparse.csr_array(small_features(N_USERS, 4))
    model = MFRecommender(
        WIDTH, backbone=Features(user_features=F), loss="directau", optimizer=CFSGD(count=count),
        max_iter=3, batch_size=10_000, random_state=0,
    ).fit(X)  # fmt: skip
    degrees = np.diff(X.indptr)
    counters = {name: state["per_row"] for name, state in model._training.optimizer.items()}
    if count == "sample":
        assert_array_equal(counters["user_features"], 3 * ((F != 0).T @ degrees))
        assert_array_equal(counters["user_factors"], 3 * degrees)
        assert_array_equal(counters["item_factors"], 3 * X.astype(bool).sum(axis=0))
    else:
        assert_array_equal(counters["user_features"], 3)
        assert_array_equal(counters["user_factors"], 3 * (degrees > 0))


def test_given_frequencies_are_those_of_features(data):
    X, F = data[0], small_features(N_USERS, 4)
    model = MFRecommender(
        WIDTH, backbone=Features(user_features=F), loss="directau", optimizer="fa_sgd", max_iter=1
    ).fit(X)
    counts = (F != 0).T @ np.diff(X.indptr)
    expected = FASGD().init_state(4, WIDTH, counts).per_row
    assert_array_equal(model._training.optimizer["user_features"]["per_row"], expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    "params",
    [{}, {"loss": MAWU(), "optimizer": "cf_sgd", "weight_decay": 0.01, "init": "prism"}],
    ids=["bpr", "mawu"],
)
def test_bits_do_not_depend_on_threads(params):
    X = make_interactions(300, 200, 4000, random_state=0)
    backbone = Features(small_features(300, 20), sparse.csc_array(small_features(200, 30)))
    params = {**MF, "n_components": 40, "batch_size": 1000, "backbone": backbone, **params}
    one, *others = (MFRecommender(**params, n_jobs=n).fit(X) for n in (1, 2, 3))
    for other in others:
        for name, table in one.backbone_tables_.items():
            assert_array_equal(other.backbone_tables_[name], table)


@pytest.fixture(scope="module")
def groups():
    """Users and items of four groups, of which features tell; a fifth of each is new."""
    generator = np.random.default_rng(0)
    of_users, of_items = np.arange(100) % 4, np.arange(80) % 4
    same = of_users[:, None] == of_items
    X = sparse.csr_array((generator.random((100, 80)) < np.where(same, 0.4, 0.02)).astype(float))
    user_features, item_features = (np.eye(4)[of_axis] for of_axis in (of_users, of_items))
    return X, sparse.csr_array(user_features), item_features


def fit_known(groups, n_users=80, n_items=64, **params):
    X, user_features, item_features = groups
    params = {"n_components": 8, "max_iter": 30, "batch_size": 64, "random_state": 0, **params}
    backbone = Features(user_features[:n_users], item_features[:n_items])
    return MFRecommender(backbone=backbone, **params).fit(X[:n_users, :n_items])


def share_of_group(items, of_users):
    return np.mean(items % 4 == np.asarray(of_users)[:, None])


@pytest.mark.slow
def test_new_users_and_items_are_recommended_by_features(groups):
    _, user_features, item_features = groups
    model = fit_known(groups)
    new_items = np.arange(64, 80)
    items, scores = model.recommend(
        users=np.arange(80), item_features=item_features[64:], candidates=new_items,
        n_recommendations=3,
    )  # fmt: skip
    assert share_of_group(items, np.arange(80) % 4) > 0.95
    assert (np.diff(scores) <= 0).all()
    items, _ = model.recommend(user_features=user_features[80:], n_recommendations=5)
    assert items.shape == (20, 5) and items.max() < 64
    assert share_of_group(items, np.arange(80, 100) % 4) > 0.95
    assert model.recommend(users=[], item_features=item_features[64:])[0].shape == (0, 10)
    assert model.recommend(users=[])[0].shape == (0, 10)
    # New items take part with all others, and single users and histories do too.
    found, _ = model.recommend(
        user_features=user_features[80:], item_features=item_features[64:], n_recommendations=80
    )
    assert (np.sort(found) == np.arange(80)).all()
    one, _ = model.recommend(users=3, item_features=item_features[64:], exclude=np.arange(64))
    assert one.shape == (10,) and one.min() >= 64
    history = groups[0][:5, :64]
    folded, _ = model.recommend(history, item_features=item_features[64:], candidates=new_items)
    assert share_of_group(folded[:, :3], np.arange(5) % 4) > 0.9


@pytest.mark.slow
def test_users_and_items_without_interactions_are_sums_of_features(groups):
    X, user_features, item_features = groups
    X = sparse.csr_array(X.toarray() * np.outer(np.arange(100) < 90, np.arange(80) < 64))
    backbone = Features(user_features, item_features)
    model = MFRecommender(8, backbone=backbone, max_iter=20, random_state=0).fit(X)
    tables = model.backbone_tables_
    assert_allclose(model.item_factors_[64:], item_features[64:] @ tables["item_features"])
    assert_allclose(model.user_factors_[90:], user_features[90:] @ tables["user_features"])
    assert not tables["item_factors"][64:].any() and tables["item_factors"][:64].any()
    items, _ = model.recommend(users=np.arange(90, 100), n_recommendations=5)
    assert share_of_group(items, np.arange(90, 100) % 4) > 0.95
    similar, _ = model.similar_items([70], 3)
    assert share_of_group(similar, [70 % 4]) == 1


@pytest.mark.parametrize("sampler", ["uniform", "popularity"])
def test_items_without_interactions_are_not_drawn(groups, sampler):
    X, _, item_features = groups
    cold = np.arange(80) >= 64
    described = item_features * (np.arange(80) != 79)[:, None]
    X = sparse.csr_array(X.toarray() * ~cold)
    model = MFRecommender(4, backbone=Features(item_features=described), max_iter=1,
                          negative_sampler=sampler, random_state=0, n_jobs=1)  # fmt: skip
    drawn = []
    negatives = mf_trainer.MFTrainer._negatives

    def spy(*args):
        drawn.append(negatives(*args))
        return drawn[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mf_trainer.MFTrainer, "_negatives", spy)
        model.fit(X)
    # Item 79 has no features, and is drawn as in plain matrix factorization.
    assert_array_equal(np.unique(np.concatenate(drawn)), [*range(64), 79])


@pytest.mark.slow
def test_partial_fit_adds_users_and_items(groups):
    X, user_features, item_features = groups
    model = fit_known(groups)
    with pytest.raises(ValueError, match="user_features of Features has 80 rows, but X has 100"):
        model.partial_fit(X)
    before = model.item_factors_.copy()
    known = X[:, :64].copy()
    known.resize(X.shape)
    model.set_params(
        backbone__user_features=user_features, backbone__item_features=item_features
    ).partial_fit(known)
    assert model.user_factors_.shape == (100, 8) and model.item_factors_.shape == (80, 8)
    assert_allclose(
        model.item_factors_[64:], item_features[64:] @ model.backbone_tables_["item_features"]
    )
    assert np.abs(model.item_factors_[:64] - before).max() < 0.5
    # New users start where their histories place them.
    items, _ = model.recommend(users=np.arange(80, 100), n_recommendations=5)
    assert share_of_group(items, np.arange(80, 100) % 4) > 0.9
    new, _ = model.recommend(users=np.arange(100), candidates=np.arange(64, 80))
    assert share_of_group(new[:, :3], np.arange(100) % 4) > 0.9
    # An identity starts at zero with the first interactions.
    model.partial_fit(X)
    assert model.backbone_tables_["item_factors"][64:].any(axis=1).all()


def test_new_users_without_features_start_where_they_are_folded_in(groups):
    X, _, item_features = groups
    params = {**MF, "optimizer": "sgd", "learning_rate": 1e-9}
    model = MFRecommender(**params, backbone=Features(item_features=item_features)).fit(X[:80])
    expected = model._place_new_users(Interactions.of(X))
    model.partial_fit(X)
    assert_allclose(model.user_factors_[80:], expected, atol=1e-6)


@pytest.mark.slow
def test_model_is_copied_searched_and_stopped(groups):
    X, _, item_features = groups
    model = MFRecommender(
        **{**MF, "max_iter": 4}, backbone=Features(item_features=item_features), early_stopping=True
    )
    search = GridSearchCV(model, {"backbone__identity": [True, False]}, cv=2).fit(X)
    assert set(search.best_estimator_.backbone_tables_) >= {"item_features"}
    model.fit(X)
    again = pickle.loads(pickle.dumps(model))
    assert_array_equal(again.recommend(X[:3])[0], model.recommend(X[:3])[0])
    skops = pytest.importorskip("skops.io")
    file = skops.dumps(model)
    read = skops.loads(file, trusted=skops.get_untrusted_types(data=file))
    assert_array_equal(read.recommend(X[:3])[0], model.recommend(X[:3])[0])
    assert_array_equal(clone(model).fit(X).item_factors_, model.item_factors_)
    assert_allclose(
        model.item_factors_,
        model.backbone_tables_["item_factors"]
        + item_features @ model.backbone_tables_["item_features"],
        atol=1e-6,
    )


def test_rows_without_anything_are_reported(groups):
    X, _, item_features = groups
    empty = item_features * (np.arange(80) != 7)[:, None]
    with pytest.warns(UserWarning, match=r"1 item\(s\), such as item 7, have no features, and id"):
        MFRecommender(**MF, backbone=Features(item_features=empty, identity=False)).fit(X)


def test_features_that_cannot_be_used_are_refused(groups):
    X, user_features, item_features = groups

    def refused(message, error=ValueError, **params):
        with pytest.raises(error, match=message):
            MFRecommender(**{**MF, **params}).fit(X)

    refused("backbone='features' has no features: give backbone=Features", backbone="features")
    refused("item_features of Features has 79 rows, but X has 80 items; give a row for each",
            backbone=Features(item_features=item_features[1:]))  # fmt: skip
    refused("user_features of Features must be a matrix of numbers.*Encode categories",
            backbone=Features(user_features=np.array([["a"]] * 100)))  # fmt: skip
    refused("Input item_features contains NaN",
            backbone=Features(item_features=np.full((80, 1), np.nan)))  # fmt: skip
    refused("item_features of Features.*1D array", backbone=Features(item_features=np.ones(80)))
    refused("'identity' parameter of Features", backbone=Features(user_features, identity="no"))
    model = fit_known(groups, max_iter=1)
    with pytest.raises(ValueError, match="item_features has 3 columns, but the model was trained"):
        model.recommend(users=[0], item_features=item_features[:, :3])
    with pytest.raises(ValueError, match="item_features has no feature at row 1"):
        model.recommend(users=[0], item_features=item_features[:2] * [[1], [0]])
    with pytest.raises(ValueError, match="one of X, users and user_features; two were given"):
        model.recommend(users=[0], user_features=user_features)
    with pytest.raises(ValueError, match="candidates holds 70, outside the fitted range"):
        model.recommend(users=[0], item_features=item_features[:2], candidates=[70])
    with pytest.raises(ValueError, match="the model was trained with the tables"):
        model.set_params(backbone__identity=False).partial_fit(X[:80, :64])
    plain = MFRecommender(**MF).fit(X)
    with pytest.raises(ValueError, match="user_features needs a model that was trained with feat"):
        plain.recommend(user_features=user_features)
    with pytest.raises(TypeError, match="unexpected keyword argument 'user_features'"):
        FastVAERecommender(max_iter=1).fit(X).recommend(user_features=user_features)
    model._described = (np.ones(3, dtype=bool), np.ones(64, dtype=bool))
    with pytest.raises(ValueError, match=r"_described of MFRecommender has shape \(3,\)"):
        model.recommend(users=[0])
