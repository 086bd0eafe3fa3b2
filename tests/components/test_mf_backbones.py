"""Backbones: a second one, trained through every family of losses."""

import numpy as np
import pytest
import reference.mf
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from sklearn.base import clone
from test_mf_kernels import INVERSE, N_ITEMS, N_USERS, WIDTH, GivenNegatives, PerUser, known_pairs

from freqfm import MFRecommender
from freqfm.backbones import BACKBONES, MLP, Backbone, Features, LightGCN, Linear
from freqfm.datasets import make_interactions
from freqfm.losses import MAWU, RANKING_LOSSES, DirectAU, VectorLoss
from freqfm.optimizers import SGD, Adam
from freqfm.testing import check_component

pytestmark = pytest.mark.slow  # compiles or emulates many combinations


NAMES = "user_features", "item_features"


class CustomLinear(Linear):
    """Matrix factorization in parts, not in the compiled code of the default."""


@pytest.fixture
def features():
    rng = np.random.default_rng(7)
    dense = [(rng.random((n, n)) < 0.5) * rng.normal(size=(n, n)) for n in (N_USERS, N_ITEMS)]
    return [sparse.csr_array(F.astype(np.float32)) for F in dense]


def identity():
    return Features(*(sparse.dia_array(np.eye(n)) for n in (N_USERS, N_ITEMS)), identity=False)


FAMILIES = {
    "softmax": {"loss": "softmax", "temperature": PerUser(), "n_negatives": 7},
    "bpr": {"loss": "bpr", "similarity": "cosine", "temperature": 0.5, "n_negatives": 3},
    "directau": {"loss": DirectAU(1.5)},
    "mawu": {"loss": MAWU(1.2, 0.7, margins=False)},
}
for of_lists in ("softmax", "bpr"):
    FAMILIES[of_lists]["negative_sampler"] = GivenNegatives()


def reference_loss(family, X, pairs, U, V):
    """Return the loss of one batch of all pairs by the vectors."""
    if family == "directau":
        return reference.mf.directau_loss(U, V, pairs, gamma=1.5)
    if family == "mawu":
        return reference.mf.mawu_loss(U, V, None, None, pairs, gammas=(1.2, 0.7))
    n = FAMILIES[family]["n_negatives"]
    if family == "softmax":
        lists = [GivenNegatives().draw((1, n), N_ITEMS, None, None)[0]] * len(pairs)
        return reference.mf.softmax_loss(U, V, pairs, lists, cosine=True, inverse=INVERSE)
    lists = GivenNegatives().draw((len(pairs), n), N_ITEMS, None, None)
    inverse = np.full((N_USERS, 2), 2.0)
    known = X.toarray() > 0
    return reference.mf.pairwise_loss(U, V, pairs, lists, cosine=True, inverse=inverse, known=known)


@pytest.mark.parametrize("family", FAMILIES)
def test_gradient_by_features(data, features, family):
    X, tables_of_users, tables_of_items = data
    backbone = Features(*features, identity=False)
    pairs, (_, _, model) = known_pairs(data, backbone=backbone, **FAMILIES[family])

    def loss(of_users, of_items):
        U, V = features[0] @ of_users, features[1] @ of_items
        return reference_loss(family, X, pairs, U, V)

    assert_allclose(model.loss_curve_[0], loss(tables_of_users, tables_of_items), rtol=1e-5)
    expected = reference.mf.gradients(loss, tables_of_users, tables_of_items)
    for name, before, gradient in zip(
        NAMES, (tables_of_users, tables_of_items), expected, strict=True
    ):
        assert_allclose(before - model.backbone_tables_[name], gradient, atol=3e-5)
    # What recommendations use is what the backbone makes of its tables.
    vectors = [F @ model.backbone_tables_[name] for F, name in zip(features, NAMES, strict=True)]
    assert_allclose(model.user_factors_, vectors[0], atol=1e-6)
    assert_allclose(model.item_factors_, vectors[1], atol=1e-6)


SETTINGS = [
    *({"loss": name} for name in RANKING_LOSSES),
    {"loss": "bsl", "negative_sampler": "midx_uniform"},
    {"loss": "softmax", "negative_sampler": "full", "temperature": "learned_user"},
    {"loss": "softmax", "negative_sampler": "in_batch", "user_dropout": 0.2},
    {"loss": "bpr", "weight_decay": 0.1},
    {"loss": "bpr", "negative_sampler": "dns", "optimizer": SGD(0.5)},
    {"loss": "directau", "optimizer": Adam(0.05, lazy=False)},
    {"loss": "bpr", "optimizer": "cf_sgd", "init": "prism"},
    {"loss": "mawu", "optimizer": "fa_sgd"},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=repr)
def test_identity_features_are_matrix_factorization(data, settings):
    # With a user for each item: those without one, and with features, are not drawn as negatives.
    X = data[0].toarray()
    X[0, X.sum(axis=0) == 0] = 1
    X = sparse.csr_array(X)
    params = {"max_iter": 4, "batch_size": 8, "learning_rate": 0.05, "random_state": 0}
    params |= {"weight_decay": 0.0, "init": "xavier", **settings}
    if not isinstance(settings.get("optimizer", ""), str):
        del params["learning_rate"]
    plain = MFRecommender(WIDTH, **params).fit(X)
    for backbone in (identity(), CustomLinear()):
        model = MFRecommender(WIDTH, backbone=backbone, **params).fit(X)
        # Two kernels: the order in which each adds up a vector's products depends on the processor.
        assert_allclose(model.loss_curve_, plain.loss_curve_, rtol=1e-6, atol=1e-7)
        for name in ("user_factors_", "item_factors_"):
            assert_allclose(getattr(model, name), getattr(plain, name), atol=1e-6, rtol=1e-6)
        assert_array_equal(model.recommend(users=[0, 1])[0], plain.recommend(users=[0, 1])[0])


def test_model_goes_on(data, features):
    X = data[0]
    params = {
        "backbone": Features(*features, identity=False),
        "random_state": 0,
        "optimizer": "adagrad",
    }
    whole = MFRecommender(WIDTH, max_iter=4, **params).fit(X)
    parts = MFRecommender(WIDTH, max_iter=2, warm_start=True, **params).fit(X).fit(X)
    assert_array_equal(parts.item_factors_, whole.item_factors_)
    assert (clone(whole).backbone.user_features != features[0]).nnz == 0
    more = sparse.vstack([X, X[:1]], format="csr")
    with pytest.raises(ValueError, match="user_features of Features has 9 rows, but X has 10 us"):
        whole.partial_fit(more)
    whole.partial_fit(X)
    assert len(whole.loss_curve_) == 5


# A backbone only sees the gradients of the vectors, whatever the loss.
@pytest.mark.parametrize(
    ("backbone", "family"),
    [
        (MLP((6,), activation="tanh"), "softmax"),
        (MLP((6,), activation="tanh"), "mawu"),
        (MLP((10, 8)), "bpr"),
        (MLP((10, 8)), "directau"),
        (MLP(()), "softmax"),
    ],
    ids=str,
)
def test_gradient_by_dense_layers(data, backbone, family):
    X, U, V = data
    pairs, (_, _, model) = known_pairs(data, backbone=backbone, **FAMILIES[family])
    before = backbone.start(N_USERS, N_ITEMS, lambda side: U if side == "user" else V)
    activation = {"tanh": np.tanh, "relu": lambda x: np.maximum(x, 0)}[backbone.activation]
    n_layers = len(backbone.hidden_layer_sizes) + 1

    def loss(*tables):
        by_name = dict(zip(before, tables, strict=True))
        vectors = []
        for side in ("user", "item"):
            x = by_name[f"{side}_factors"]
            for k in range(n_layers):
                layer = by_name[f"{side}_layer_{k}"]
                x = x @ layer[:-1] + layer[-1]
                x = activation(x) if k < n_layers - 1 else x
            vectors.append(x)
        return reference_loss(family, X, pairs, *vectors)

    # Of losses of several terms, the sum may be much smaller than each.
    assert_allclose(model.loss_curve_[0], loss(*before.values()), rtol=1e-5, atol=1e-6)
    expected = reference.mf.gradients(loss, *before.values())
    for (name, table), gradient in zip(before.items(), expected, strict=True):
        found = table - model.backbone_tables_[name]
        assert_allclose(found, gradient, atol=4e-5 * max(1, np.abs(gradient).max()), err_msg=name)


OTHERS = [name for name in BACKBONES if name not in ("linear", "features", "context")]


@pytest.mark.parametrize("loss", RANKING_LOSSES)
@pytest.mark.parametrize("name", OTHERS)
def test_backbones_train_by_every_loss(name, loss):
    X = make_interactions(60, 40, 500, random_state=0)
    params = {"max_iter": 3, "batch_size": 100, "init": "normal", "random_state": 0}
    if name == "lightgcn" and issubclass(RANKING_LOSSES[loss], VectorLoss):
        name = LightGCN(propagate="batch")
    one, two = (
        MFRecommender(8, backbone=name, loss=loss, **params, n_jobs=n_jobs).fit(X)
        for n_jobs in (1, 2)
    )
    assert min(one.loss_curve_[1:]) < one.loss_curve_[0]
    assert_array_equal(one.item_factors_, two.item_factors_)
    assert_array_equal(one.user_factors_, two.user_factors_)
    assert (one.recommend(X[:5], n_recommendations=3)[0] >= 0).all()
    assert_array_equal(clone(one).fit(X).item_factors_, one.item_factors_)
    one.partial_fit(sparse.vstack([X, X[:1]], format="csr"))
    assert np.isfinite(one.user_factors_).all() and one.user_factors_.shape == (61, 8)


class Fixed(CustomLinear):
    new_rows = Backbone.new_rows


def test_a_backbone_need_not_take_new_rows(data):
    model = MFRecommender(WIDTH, backbone=Fixed(), max_iter=1).fit(data[0])
    with pytest.raises(ValueError, match=r"backbone=Fixed\(\) takes no new ones; call fit"):
        model.partial_fit(sparse.vstack([data[0], data[0][:1]], format="csr"))


def test_new_users_of_dense_layers_start_as_similar_ones():
    X = make_interactions(60, 40, 500, random_state=0)
    model = MFRecommender(8, backbone=MLP((8,)), max_iter=5, optimizer="adam", random_state=0)
    rows = model.fit(X).backbone_tables_["user_factors"]
    later = sparse.lil_array((62, 41), dtype=np.float32)
    later[60, [0, 2, 4]] = 1
    later[61, 40] = 1  # nothing to fold in
    later = later.tocsr()
    cosines = model.transform(later[[60], :40]) @ model._user_vectors(np.arange(60)).T
    model.set_params(learning_rate=1e-12).partial_fit(later)
    tables = model.backbone_tables_
    assert tables["user_factors"].shape == (62, 8) and tables["item_factors"].shape == (41, 8)
    assert_allclose(tables["user_factors"][60], rows[cosines[0].argmax()], atol=1e-6)
    assert np.abs(rows - tables["user_factors"][61]).max(axis=1).min() > 1e-3
    assert model.recommend(users=[60, 61])[0].shape == (2, 10)


@pytest.mark.parametrize("sizes", [(0,), (2.5,), ("a",)])
def test_invalid_layers_are_refused(data, sizes):
    with pytest.raises(ValueError, match="hidden_layer_sizes=.* a list of positive whole numbers"):
        MFRecommender(backbone=MLP(sizes)).fit(data[0])


class Wrong(Features):
    def forward(self, tables, users, items):
        Q, V, context = super().forward(tables, users, items)
        return Q[:, :2], V, context


class Alien(Features):
    def backward(self, tables, context, user_gradients, item_gradients):
        return {"nothing": ([0], user_gradients[:1])}


class OnlyValues(Features):
    def backward(self, tables, context, user_gradients, item_gradients):
        return {"user_factors": user_gradients}


class DrawnForBoth(Features):
    def start(self, n_users, n_items, draw):
        return {"user_factors": draw("both")}


@pytest.mark.parametrize(
    "backbone, message",
    [
        (Wrong, "forward of Wrong must return the shape"),
        (Alien, "backward of Alien must return"),
        (OnlyValues, r"must return \(rows, values\) for 'user_factors'.*; got ndarray"),
        (DrawnForBoth, "draw takes side='user' or side='item'; got 'both'"),
    ],
)
def test_invalid_backbones_are_refused(data, features, backbone, message):
    with pytest.raises(ValueError, match=message):
        MFRecommender(WIDTH, backbone=backbone(*features)).fit(data[0])
    with pytest.raises(ValueError, match="backbone='lineal' is not known; did you mean 'linear'"):
        MFRecommender(backbone="lineal").fit(data[0])


class TwoTables(Backbone):
    """Vectors of users are sums of two rows: of the user, and of one of four groups."""

    def start(self, n_users, n_items, draw):
        return {"users": draw("user"), "groups": draw("user", 4), "items": draw("item")}

    def forward(self, tables, users, items):
        vectors = tables["users"][users] + tables["groups"][users % 4]
        return vectors, tables["items"][items], (users, items)

    def backward(self, tables, context, user_gradients, item_gradients):
        users, items = context
        groups = np.zeros_like(tables["groups"])
        np.add.at(groups, users % 4, user_gradients)
        return {
            "users": (users, user_gradients),
            "groups": (np.arange(4), groups),
            "items": (items, item_gradients),
        }

    def new_rows(self, tables, known, user_vectors, draw):
        return {"users": draw("user"), "items": draw("item"), "groups": draw("user", 0)}


class NegatedGroups(TwoTables):
    def backward(self, *args):
        gradients = super().backward(*args)
        rows, values = gradients["groups"]
        return gradients | {"groups": (rows, -values)}


class LastOfGroup(TwoTables):
    def backward(self, tables, context, user_gradients, item_gradients):
        gradients = super().backward(tables, context, user_gradients, item_gradients)
        groups = np.zeros_like(tables["groups"])
        groups[context[0] % 4] = user_gradients
        return gradients | {"groups": (np.arange(4), groups)}


class Noisy(NegatedGroups):
    def forward(self, tables, users, items):
        Q, V, context = super().forward(tables, users, items)
        return Q + np.random.default_rng().normal(0, 0.01, Q.shape), V, context


def test_gradients_that_are_not_those_of_the_vectors_are_found(data):
    check_component(TwoTables(), data[0])
    for backbone in (NegatedGroups(), LastOfGroup()):
        name = type(backbone).__name__
        with pytest.raises(AssertionError, match=f"backward of {name} returns .* of 'groups', but"):
            check_component(backbone, data[0])
    # Drawn vectors have no derivatives to compare.
    check_component(Noisy(), data[0])


def test_each_table_of_a_side_is_drawn_anew(data):
    X = data[0]
    model = MFRecommender(4, backbone=TwoTables(), max_iter=1, learning_rate=1e-9, random_state=0)
    tables = model.fit(X).backbone_tables_
    assert np.abs(tables["users"][:4] - tables["groups"]).min() > 1e-6
    plain = MFRecommender(4, max_iter=1, learning_rate=1e-9, random_state=0).fit(X)
    assert_allclose(tables["users"], plain.user_factors_, atol=1e-6)
    more = sparse.vstack([X, X[[0]]], format="csr")
    model.partial_fit(more)
    assert model.backbone_tables_["groups"].shape == (4, 4)
    assert len(model.user_factors_) == X.shape[0] + 1
