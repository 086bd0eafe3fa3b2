"""What recommenders with weights between items share."""

import pickle

import numpy as np
import pytest
from helpers import each, weighted_interactions
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

from freqfm import (
    ALSRecommender,
    EASERecommender,
    FastVAERecommender,
    GraphFilterRecommender,
    InteractionRecommender,
    ItemKNNRecommender,
    MFRecommender,
)
from freqfm.datasets import make_interactions
from freqfm.estimators.recommenders import index
from freqfm.estimators.recommenders.closed_form import ease, graph_filter

MODELS = EASERecommender(3.0), GraphFilterRecommender(8, random_state=0), ItemKNNRecommender()


@pytest.fixture(scope="module")
def X():
    return weighted_interactions(80, 25)


@each("model", MODELS)
def test_scores_are_sums_of_weights(X, model):
    model = clone(model).fit(X)
    scores = X.toarray() @ model.item_weights_.toarray()
    hidden = np.where((X.toarray() > 0) | (scores <= 0), 0, scores)
    users = np.flatnonzero(np.diff(X.indptr))
    items, found = model.recommend(users=users, n_recommendations=6)
    assert_allclose(np.maximum(found, 0), -np.sort(-hidden[users], axis=1)[:, :6], rtol=1e-4)
    assert_array_equal(items, model.recommend(X[users], n_recommendations=6)[0])
    told = model.explain(9, items[list(users).index(9), 0])
    assert told.contributions.sum() == pytest.approx(told.score, rel=1e-4)
    items, _ = model.recommend(users=users, candidates=[1, 2, 4, 7], exclude=[2])
    assert set(np.unique(items)) <= {-1, 1, 4, 7}
    assert 7 not in model.recommend(users=np.arange(80))[0]


@each(
    "model",
    [
        *(EASERecommender(n_neighbors=n_neighbors) for n_neighbors in (None, 20)),
        GraphFilterRecommender(40, n_neighbors=20, random_state=3),
        ItemKNNRecommender(20),
    ],
)
def test_same_bits_for_any_number_of_threads(monkeypatch, model):
    monkeypatch.setattr(ease, "_BLOCK_SIZE", 1 << 12)
    monkeypatch.setattr(graph_filter, "_BLOCK_SIZE", 1 << 14)
    X = make_interactions(900, 400, 9000, random_state=1)
    one, two = (clone(model).set_params(n_jobs=n).fit(X) for n in (1, 3))
    for name in ("data", "indices"):
        assert_array_equal(*(getattr(of.item_weights_, name) for of in (one, two)))
    for a, b in zip(one.recommend(X), two.recommend(X), strict=True):
        assert_array_equal(a, b)


def test_learned_weights_rank_better_than_neighbors():
    X = make_interactions(2000, 300, 40_000, random_state=0)
    models = EASERecommender(), GraphFilterRecommender(64, random_state=0), ItemKNNRecommender()
    *learned, of_neighbors = (model.fit(X).score(X) for model in models)
    assert min(learned) > of_neighbors


@each(
    "cls, params",
    [
        *((EASERecommender, {name: 1}) for name in ("dropout", "diagonal")),
        *((GraphFilterRecommender, params) for params in ({"response": "low"}, {"flatness": 0})),
        *(
            (cls, params)
            for cls in (EASERecommender, GraphFilterRecommender)
            for params in ({"regularization": -1}, {"n_neighbors": 0})
        ),
    ],
)
def test_parameters_out_of_range_are_refused(X, cls, params):
    (name,) = params
    with pytest.raises(ValueError, match=f"'{name}' parameter of {cls.__name__}"):
        cls(**params).fit(X)


@each(
    "model, grid",
    zip(
        MODELS,
        ({"regularization": [1, 100]}, {"response": ["ridge", "linear"]}, {"n_neighbors": [1, 9]}),
        strict=True,
    ),
)
def test_copies_searches_and_tables(X, model, grid):
    model = clone(model).fit(X)
    again = pickle.loads(pickle.dumps(model))
    assert_array_equal(again.recommend(X)[0], model.recommend(X)[0])
    again.item_weights_ = again.item_weights_[:5]
    with pytest.raises(ValueError, match="item_weights_"):
        again.recommend(X)
    assert GridSearchCV(model, grid, cv=2).fit(X).best_score_ > 0
    users, items = X.nonzero()
    log = [(f"u{u}", f"i{i}") for u, i in zip(users, items, strict=True)]
    table = InteractionRecommender(model).fit(log)
    assert len(table.recommend(["u1"], n_recommendations=3)[0][0]) == 3


@each("model", [EASERecommender(n_neighbors=5), GraphFilterRecommender(9), ItemKNNRecommender(5)])
def test_partial_fit_is_a_fit_of_all_interactions(model):
    whole = sparse.csr_array(make_interactions(60, 40, 700, random_state=0))
    whole.data[:] = 1 + np.arange(whole.nnz) % 3
    if isinstance(model, GraphFilterRecommender):
        model = model.set_params(random_state=0)
    expected = clone(model).fit(whole)
    # The second part has new users and new items.
    first, second = whole[:45, :30], whole.copy()
    second = sparse.lil_array(second)
    second[:45, :30] = 0
    found = clone(model).partial_fit(first).partial_fit(sparse.csr_array(second))
    for name in ("indptr", "indices", "data"):
        parts = (getattr(of.item_weights_, name) for of in (found, expected))
        assert_array_equal(*parts)
    assert_array_equal(found.recommend(users=[0, 50])[0], expected.recommend(users=[0, 50])[0])
    # Values of known pairs are added up; there may be fewer rows.
    found.partial_fit(whole[:20])
    expected = clone(model).fit(whole + sparse.vstack([whole[:20], 0 * whole[20:]]))
    assert_array_equal(found.item_weights_.data, expected.item_weights_.data)
    before = found.item_weights_
    with pytest.raises(ValueError, match="no interaction"):
        found.partial_fit(0 * whole)
    with pytest.raises(ValueError, match="NaN"):
        found.partial_fit(np.full(whole.shape, np.nan))
    assert found.item_weights_ is before


def test_columns_of_partial_fit_begin_with_those_of_the_model():
    pd = pytest.importorskip("pandas")
    X = pd.DataFrame(np.eye(3), columns=["a", "b", "c"])
    model = ItemKNNRecommender(2).fit(X)
    with pytest.raises(ValueError, match="column 0 of X is 'd'"):
        model.partial_fit(pd.DataFrame(np.eye(4), columns=["d", "a", "b", "c"]))
    assert list(model.feature_names_in_) == ["a", "b", "c"]


@each("model", [*MODELS, GraphFilterRecommender(8, response="plateau", random_state=1)])
def test_items_without_a_common_user_are_not_recommended(model):
    # With eight components, eigenvectors of equal eigenvalues mix the blocks.
    block = make_interactions(60, 25, 300, min_interactions=1, random_state=0)
    X = sparse.csr_array(sparse.block_diag([block, block.copy(), block.copy()]))
    order = np.random.default_rng(0).permutation(75)
    X, block_of = X[:, order], order // 25
    model = clone(model).fit(X)
    rows, columns = model.item_weights_.nonzero()
    assert_array_equal(block_of[rows], block_of[columns])
    items, scores = model.recommend(users=np.arange(180), n_recommendations=40)
    lists = [row[row >= 0] for row in items]
    assert all((block_of[row] == user // 60).all() for user, row in enumerate(lists))
    assert_array_equal(scores == -np.inf, items == -1)
    assert (items == -1).any(axis=1).all() and (items[:, 0] >= 0).all()
    for user in (0, 70, 179):
        for all_of, one in zip((items, scores), model.recommend(users=user, n_recommendations=40),
                               strict=True):  # fmt: skip
            assert_array_equal(all_of[user], one)
    assert model.predict_pairs([0], np.flatnonzero(block_of == 2)[:1]) == 0


EXTREME = [
    *(EASERecommender(n_neighbors=n_neighbors) for n_neighbors in (None, 3)),
    *(ItemKNNRecommender(weighting=weighting) for weighting in ("cosine", "tfidf", "bm25")),
    GraphFilterRecommender(8, random_state=0),
    *(
        ALSRecommender(4, solver=solver, max_iter=2, random_state=0)
        for solver in ("cg", "cholesky")
    ),
    MFRecommender(4, max_iter=1, random_state=0),
    FastVAERecommender(4, max_iter=1, random_state=0),
]


@each("model", EXTREME)
def test_weights_that_leave_float32_are_refused(X, model):
    model, X = clone(model).fit(X), X.astype(np.float64)
    one = X.copy()
    one.data[5] = 1e30
    if not isinstance(model, MFRecommender):  # its targets do not depend on the weights' size
        found = "X holds weights of interactions of up to .*e.* must be from 1e-06 to 1e.10"
        for weights in (*(X * of for of in (1e-42, 1e-30, 1e-20, 1e20, 1e30, 1e37)), one):
            for container in (weights, weights.toarray()):
                with pytest.raises(ValueError, match=found):
                    clone(model).fit(container)
        if not isinstance(model, FastVAERecommender):  # whose dislikes have no weights
            with pytest.raises(ValueError, match="dislikes: X holds weights"):
                clone(model).fit(X, dislikes=one)
    if hasattr(model, "item_weights_"):
        for weights in (X * 1e-42, X * 1e20, one):
            for call in (model.recommend, model.transform):
                with pytest.raises(ValueError, match="must be from 1e-20 to 1e.10"):
                    call(weights)
    tiny = X.copy()
    tiny.data[5] = -1e-300
    for weights in (X * 1e-300, tiny, tiny.toarray()):
        for call in (clone(model).fit, model.recommend):
            with pytest.raises(ValueError, match="0 in float32, such as -?.e-300"):
                call(weights)
    for weights in (X * 1e39, (X * 1e39).toarray()):
        for call in (clone(model).fit, model.recommend):
            with pytest.raises(ValueError, match="X contains infinity or a value too large"):
                call(weights)


@each("model", EXTREME)
def test_all_weights_that_are_taken_give_finite_scores(X, model):
    rng = np.random.default_rng(0)
    mixed = X.copy()
    mixed.data = rng.choice(np.float32([1e-37, 1e-30, 1e-10, 1, 1e10]), X.nnz)
    users = np.flatnonzero(np.diff(X.indptr))
    for weights in (mixed, X * 1e-6, X * 5e9):
        fitted = clone(model).fit(weights)
        for history in (weights[users], X[users] * 1e-20):
            items, scores = fitted.recommend(history, n_recommendations=3)
            assert np.isfinite(scores[items >= 0]).all() and (items >= 0).any()
            items, _ = fitted.recommend(history, n_recommendations=3, diversity=0.5)
            assert (items >= 0).any()


@each("weighting", ["cosine", "tfidf"])
def test_similarities_do_not_depend_on_the_size_of_weights(X, weighting):
    expected = ItemKNNRecommender(weighting=weighting).fit(X)
    # Some items have weights whose squares are 0 in float32.
    scales = np.float32(2.0) ** np.tile([0, -100, 30], 9)[:25]
    model = clone(expected).fit(X * scales)
    assert_array_equal(model.item_weights_.toarray(), expected.item_weights_.toarray())
    for a, b in zip(model.similar_items([0, 1, 2]), expected.similar_items([0, 1, 2]), strict=True):
        assert_array_equal(a, b)


def test_similar_users_do_not_depend_on_the_size_of_weights(X):
    scales = np.float32(2.0) ** np.tile([0, -100, 30], 27)[:80, None]
    models = [EASERecommender().fit(of) for of in (X, sparse.csr_array(X.multiply(scales)))]
    for a, b in zip(*(model.similar_users([0, 1, 2]) for model in models), strict=True):
        assert_array_equal(a, b)


def test_values_of_a_table_that_vanish_are_refused():
    table = [("ann", "tea", 1.0), ("ann", "jam", 1e-300), ("bob", "tea", 1.0)]
    with pytest.raises(ValueError, match="column of values holds .* 0 in float32, such as 1e-300"):
        InteractionRecommender(EASERecommender()).fit(table)


@each("model", MODELS)
def test_requests_that_read_a_part_of_the_weights_have_the_same_bits(X, model, monkeypatch):
    model = clone(model).set_params(n_neighbors=3).fit(X)
    n_users, n_items = X.shape
    users, items = np.repeat(np.arange(n_users), n_items), np.tile(np.arange(n_items), n_users)
    requests = {
        "recommend": lambda: model.recommend(X),
        "candidates": lambda: model.recommend(X, candidates=[1, 4, 5], exclude=[4]),
        "pairs": lambda: [model.predict_pairs(users, items)],
        "explain": lambda: [model.explain(1, item).score for item in range(n_items)],
    }
    found = {}
    for fewer in (1 / 1e9, 1e9):
        monkeypatch.setattr(index, "_FEWER", fewer)
        found[fewer] = {name: request() for name, request in requests.items()}
    for name in requests:
        for one, other in zip(*(found[fewer][name] for fewer in found), strict=True):
            assert_array_equal(one, other)


def test_weights_changed_in_place_lead_no_compiled_code_astray(X, monkeypatch):
    model = ItemKNNRecommender(3).fit(X)
    model.recommend(users=[0])
    model.item_weights_.indices[:] = 10**9
    for fewer in (1 / 1e9, 1e9):
        monkeypatch.setattr(index, "_FEWER", fewer)
        for request in (model.recommend, lambda users: model.predict_pairs(users, [1])):
            with pytest.raises(ValueError, match="item_weights_ of this model were changed in pl"):
                request(users=[0])
