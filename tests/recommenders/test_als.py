"""ALSRecommender: solutions against dense least squares, and its public interface."""

import pickle

import numpy as np
import pytest
from helpers import check_matrix_recommender, slow_params, weighted_interactions
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

from freqfm import ALSRecommender, DivergenceError, InteractionRecommender, recommend
from freqfm.backends.cpu.ranking import least_squares as kernels
from freqfm.datasets import make_interactions
from freqfm.metrics import ndcg_at_k
from freqfm.model_selection import holdout_interactions

A0, LAMBDA, NU = 0.3, 0.05, 0.7


def make(**params):
    objective = {
        "unobserved_weight": A0, "regularization": LAMBDA, "regularization_exponent": NU,
    }  # fmt: skip
    return ALSRecommender(
        **{"n_components": 5, "max_iter": 4, "random_state": 0, **objective, **params}
    )


def weighted(n_users=40, n_items=25, seed=0):
    return weighted_interactions(n_users, n_items, 0.3, [0.5, 1, 3], seed)


@pytest.fixture(scope="module")
def X():
    return weighted()


@pytest.fixture(scope="module")
def model(X):
    return make(max_iter=20).fit(X)


def penalties(X, axis):
    """Return the penalties of users (axis 1) or items (axis 0), by the paper."""
    return LAMBDA * (X.sum(axis=axis) + A0 * X.shape[axis]) ** NU


def loss_of(X, users, items):
    """Return the loss of the paper, with dense float64 matrices."""
    X, users, items = (np.asarray(a, dtype=np.float64) for a in (X.toarray(), users, items))
    scores = users @ items.T
    loss = (X * (1 - scores) ** 2).sum() + A0 * (scores**2).sum()
    loss += penalties(X, 1) @ (users**2).sum(axis=1)
    return loss + penalties(X, 0) @ (items**2).sum(axis=1)


def solution(X, vectors):
    """Return the vectors of the rows of X that minimise the loss, float64."""
    X, vectors = X.toarray().astype(np.float64), vectors.astype(np.float64)
    found = []
    for row, penalty in zip(X, penalties(X, 1), strict=True):
        matrix = (vectors.T * (row + A0)) @ vectors + penalty * np.eye(vectors.shape[1])
        found.append(np.linalg.solve(matrix, row @ vectors))
    return np.array(found)


def halves(model, X, monkeypatch):
    """Return copies of users and items after each half of an epoch, from the start of a fit on."""
    found = []
    backend = kernels.least_squares

    def record(problem, histories, rows, n_threads):
        sides = [problem.factors.copy(), rows.copy()]
        losses = backend(problem, histories, rows, n_threads)
        sides = [(sides[0], side) for side in (sides[1], rows.copy())]
        of_items = len(rows) == X.shape[1]
        found.extend(side if of_items else side[::-1] for side in sides)
        return losses

    monkeypatch.setattr(
        "freqfm.backends.cpu.backend.CPUBackend.least_squares", staticmethod(record)
    )
    model.fit(X)
    return found


@pytest.mark.parametrize("solver", ["cg", *slow_params(["cholesky"])])
def test_sklearn_compatible(solver):
    check_matrix_recommender(ALSRecommender(max_iter=3, solver=solver))


# Solutions


@pytest.mark.parametrize(
    "solver", [{"solver": "cholesky"}, {"solver": "cg", "cg_steps": 30}], ids=["cholesky", "cg"]
)
@pytest.mark.parametrize("n_components", [1, 5, 40])
def test_an_epoch_solves_least_squares(X, solver, n_components):
    model = make(max_iter=1, n_components=n_components, **solver).fit(X)
    users = model._draw("user", X.shape[0])
    items = solution(X.T.tocsr(), users)
    assert_allclose(model.item_factors_, items, atol=2e-5 * np.abs(items).max())
    expected = solution(X, model.item_factors_)
    assert_allclose(model.user_factors_, expected, atol=2e-5 * np.abs(expected).max())
    total = loss_of(X, model.user_factors_, model.item_factors_)
    assert_allclose(model.loss_curve_, [total / X.sum()], rtol=1e-5)


@pytest.mark.parametrize("solver", ["cg", "cholesky"])
def test_each_half_of_an_epoch_lowers_the_loss(X, solver, monkeypatch):
    found = halves(make(solver=solver, cg_steps=1), X, monkeypatch)
    assert len(found) == 16
    losses = [loss_of(X, *sides) for sides in found]
    for before, after in zip(losses[::2], losses[1::2], strict=True):
        assert after < before
    curve = make(solver=solver, cg_steps=1).fit(X).loss_curve_
    assert_allclose(curve, np.array(losses[3::4]) / X.sum(), rtol=1e-5)


def test_gradient_is_zero_at_the_solution(X):
    model = make(max_iter=300, solver="cholesky", n_components=3).fit(X)
    users, items = (a.astype(np.float64) for a in (model.user_factors_, model.item_factors_))
    least, step = loss_of(X, users, items), 1e-4
    scale = []
    for table in (users, items):
        for place in np.ndindex(table.shape):
            at = table[place]
            around = []
            for to in (at + step, at - step):
                table[place] = to
                around.append(loss_of(X, users, items))
            table[place] = at
            curvature = (sum(around) - 2 * least) / step**2
            scale.append(abs(around[0] - around[1]) / (2 * step) / curvature)
    # How far each number is from where its derivative is zero.
    assert max(scale) < 2e-3


@pytest.mark.parametrize("n_steps", [3, 0])
def test_rows_do_not_depend_on_threads_tiles_or_calls(n_steps, monkeypatch):
    X = make_interactions(150, 70, 2500, random_state=0)
    monkeypatch.setattr(kernels, "_WORTH_SEVERAL_THREADS", 0)
    solver = {"solver": "cg" if n_steps else "cholesky", "cg_steps": max(n_steps, 1)}
    models = [make(n_jobs=n, n_components=20, **solver).fit(X) for n in (1, 2, 3)]
    monkeypatch.setattr(kernels, "_PER_CALL", 20_000)
    models.append(make(n_jobs=2, n_components=20, **solver).fit(X))
    for other in models[1:]:
        for name in ("user_factors_", "item_factors_", "loss_curve_"):
            assert_array_equal(getattr(other, name), getattr(models[0], name))
        assert_array_equal(other.transform(X), models[0].transform(X))


@pytest.mark.parametrize("gathered", [1, 7])
def test_exact_rows_of_more_entries_than_are_gathered(X, gathered, monkeypatch):
    assert np.diff(X.indptr).max() > 7
    monkeypatch.setattr(kernels, "_GATHERED", gathered)
    model = make(max_iter=1, solver="cholesky", n_components=6).fit(X)
    expected = solution(X, model.item_factors_)
    assert_allclose(model.user_factors_, expected, atol=2e-5 * np.abs(expected).max())


def test_many_steps_of_solved_rows(X):
    model = make(cg_steps=500).fit(X)
    exact = make(solver="cholesky").fit(X)
    assert_allclose(model.user_factors_, exact.user_factors_, atol=1e-4)


def test_singular_matrices():
    # Fewer items than components, and next to no penalty.
    X = sparse.csr_array(np.ones((6, 2), dtype=np.float32))
    for solver in ("cg", "cholesky"):
        model = make(n_components=8, regularization=1e-20, solver=solver, max_iter=8).fit(X)
        scores = model.user_factors_ @ model.item_factors_.T
        assert_allclose(scores, 1 / (1 + A0), atol=1e-3)


# The meaning of parameters


def test_values_are_weights(X):
    ones = X.copy()
    ones.data[:] = 1
    one, other = make(random_state=1).fit(ones), make(random_state=1).fit(X)
    assert np.abs(one.user_factors_ - other.user_factors_).max() > 0.01
    heavy = X.data == 3
    users = np.repeat(np.arange(40), np.diff(X.indptr))
    errors = [
        np.abs(1 - m.predict_pairs(users[heavy], X.indices[heavy])).mean() for m in (one, other)
    ]
    assert errors[1] < 0.8 * errors[0]


def test_scale_of_weights_does_not_matter(X):
    scale = {"regularization_exponent": 1.0, "solver": "cholesky"}
    one = make(**scale).fit(X)
    other = make(**scale, unobserved_weight=4 * A0).fit(4 * X)
    assert_allclose(other.item_factors_, one.item_factors_, atol=1e-5)
    assert_allclose(other.loss_curve_, one.loss_curve_, rtol=1e-5)


def test_regularization_and_unobserved_weight_shrink_scores(X):
    def size(**params):
        users, items = make(**params).fit(X).export_vectors()
        return np.mean(users @ items.T)

    assert size(regularization=1.0) < size(regularization=0.01)
    assert size(unobserved_weight=3.0) < size(unobserved_weight=0.1)


def test_defaults_follow_the_data(X):
    auto = {"unobserved_weight": None, "regularization": None, "solver": "cholesky"}
    mean, density = X.data.mean(), X.nnz / 1000
    dense = X.toarray()
    counts = [np.count_nonzero(dense, axis=axis) for axis in (0, 1)]
    edge = sum(of[of > 0].mean() ** -0.5 for of in counts) ** 2
    assert edge > 0.1
    unobserved = mean * np.sqrt(density) * 0.1 / edge
    of_users = (dense.sum(axis=1, keepdims=True) + unobserved * 25) ** NU
    of_items = (dense.sum(axis=0) + unobserved * 40) ** NU
    squares = dense**2 / of_users / of_items
    noise = sum(np.sqrt(squares.sum() / np.count_nonzero(dense.any(axis=k))) for k in (0, 1))
    given = {
        "unobserved_weight": unobserved,
        "regularization": 0.45 * noise,
    }
    one, other = make(**auto).fit(X), make(solver="cholesky", **given).fit(X)
    assert_allclose(one.item_factors_, other.item_factors_, atol=1e-5)
    # Dense data have little noise.
    dense = sparse.csr_array(np.ones((60, 50)))
    assert ALSRecommender(2).fit(dense)._objective.unobserved_weight == 1
    # The unit of the weights makes no difference.
    scaled = make(**auto).fit(8 * X)
    assert_array_equal(scaled.item_factors_, one.item_factors_)


@pytest.mark.parametrize("exponent", [0, 0.5, 1])
@pytest.mark.parametrize("scale", [1, 0.01, 1e6])
def test_vectors_do_not_vanish_on_small_data(exponent, scale):
    rng = np.random.default_rng(0)
    groups = np.kron(np.eye(4), np.ones((6, 5)))
    X = sparse.csr_array(scale * groups * (rng.random(groups.shape) < 0.4))
    model = ALSRecommender(4, regularization_exponent=exponent, random_state=0).fit(X)
    items, scores = model.recommend(users=np.arange(24), n_recommendations=1)
    assert (items[:, 0] // 5 == np.arange(24) // 6).mean() > 0.8
    assert scores.max() > 0.1
    assert model.loss_curve_[-1] < 0.99


def test_default_regularization_is_below_the_first_singular_value():
    rng = np.random.default_rng(0)
    for density, exponent in ((0.01, 1.0), (0.1, 1.0), (0.3, 0.0), (0.3, 0.5), (1.0, 1.0)):
        X = rng.lognormal(0, 1.5, (30, 20)) * (rng.random((30, 20)) < density)
        model = ALSRecommender(2, regularization_exponent=exponent, max_iter=1, random_state=0)
        found = model.fit(sparse.csr_array(X))._objective
        penalties = [
            (X.sum(axis=axis) + found.unobserved_weight * n) ** exponent
            for axis, n in ((1, 20), (0, 30))
        ]
        scaled = X / np.sqrt(np.outer(*penalties))
        assert 0 < found.regularization < 0.9001 * np.linalg.svd(scaled)[1][0]


def test_defaults_suit_few_items():
    """Half of the users' items out of 12, in 3 groups, beside one that most have."""
    rng = np.random.default_rng(0)
    users = rng.dirichlet(np.full(3, 0.3), 300)
    likes = rng.random((300, 12)) < np.clip(users @ np.kron(np.eye(3), np.ones(4)), 0.03, 0.7)
    likes[:, 0] = rng.random(300) < 0.8
    train, test = holdout_interactions(sparse.csr_array(likes.astype(float)), 0.3, random_state=0)
    model = ALSRecommender(random_state=0).fit(train)
    unseen = train.toarray() == 0
    by_popularity = np.argsort(-(unseen * (1 + train.sum(axis=0))), axis=1)
    items = model.recommend(users=np.arange(300), n_recommendations=3)[0]
    of_model, of_popularity = (ndcg_at_k(test, ids[:, :3]) for ids in (items, by_popularity))
    assert of_model > 1.3 * of_popularity


def test_rows_without_interactions_are_zeros(model):
    assert not model.user_factors_[3].any() and not model.item_factors_[7].any()
    items, _ = model.recommend(users=3, n_recommendations=3)
    assert_array_equal(items, np.argsort(-model.item_counts_, kind="stable")[:3])
    assert_array_equal(model.similar_items(7)[0], np.full(10, -1))


@pytest.mark.parametrize(
    "params",
    [
        {"unobserved_weight": 0}, {"regularization": 0}, {"regularization_exponent": -1},
        {"solver": "lu"}, {"cg_steps": 0}, {"early_stopping": "auto"},
    ],
    ids=str,
)  # fmt: skip
def test_parameters_out_of_range(X, params):
    (name,) = params
    with pytest.raises(ValueError, match=f"'{name}' parameter of ALSRecommender"):
        make(**params).fit(X)


def test_weights_beyond_float32_diverge(X):
    with pytest.raises(DivergenceError, match="as it was before the call. Try scaling the weights"):
        make(unobserved_weight=1e38).fit(X)
    model = make(warm_start=True).fit(X)
    kept = model.item_factors_.copy()
    with pytest.raises(DivergenceError):
        model.set_params(unobserved_weight=1e38).fit(X)
    assert_array_equal(model.item_factors_, kept)


# Users by their histories


def test_folding_in_is_exact(model, X):
    other = weighted(seed=5)
    expected = solution(other, model.item_factors_)
    assert_allclose(model.transform(other), expected, atol=1e-6 * np.abs(expected).max())
    assert not model.transform(other)[3].any()
    # One row as among others.
    assert_array_equal(model.transform(other[[8]]), model.transform(other)[[8]])
    exact = make(solver="cholesky").fit(X)
    assert_allclose(exact.transform(X), exact.user_factors_, atol=1e-6)


def test_settings_of_the_fit_place_users(model, X):
    changed = clone(model).fit(X).set_params(regularization=100, unobserved_weight=5)
    assert_array_equal(changed.transform(X), clone(model).fit(X).transform(X))


def test_scores_are_explained(model, X):
    for user, item in ((0, 4), (12, 8), (3, 4)):
        known, new = model.explain(user, item), model.explain(user, item, X)
        # User 3 has no history, and is recommended popular items.
        assert_allclose(known.score, model.predict_pairs([user], [item])[0], atol=1e-6)
        assert_allclose(known.rest + known.contributions.sum(), known.score, atol=1e-6)
        assert_allclose(new.rest, new.score if user == 3 else 0, atol=1e-5)
        assert (np.diff(known.contributions) <= 0).all()
        assert_array_equal(np.sort(known.history), np.sort(X[[user]].indices))
    assert model.explain(0, 7).score == model.predict_pairs([0], [7])[0] == -np.inf
    # A contribution is what the score loses if the item has no pull, with the same matrix.
    (_, items), user = model.export_vectors(), 0
    row, vectors = X[[user]].toarray()[0].astype(np.float64), items.astype(np.float64)
    penalty = LAMBDA * (row.sum() + A0 * X.shape[1]) ** NU
    matrix = (vectors.T * (row + A0)) @ vectors + penalty * np.eye(5)
    told = model.explain(user, 4, X)
    for item, contribution in zip(told.history, told.contributions, strict=True):
        pull = np.linalg.solve(matrix, row[item] * vectors[item])
        assert_allclose(contribution, vectors[4] @ pull, atol=1e-6)


# More data


def test_partial_fit_is_an_epoch_over_everything(X):
    first, second = X.copy(), X.copy()
    some = np.random.default_rng(0).random(X.nnz) < 0.5
    first.data[some], second.data[~some] = 0, 0
    for part in (first, second):
        part.eliminate_zeros()
    model = make().fit(first)
    same = pickle.loads(pickle.dumps(model))
    model.partial_fit(second)
    expected = same.set_params(warm_start=True, max_iter=1).fit(X)
    assert_array_equal(model.item_factors_, expected.item_factors_)
    assert_array_equal(model.user_factors_, expected.user_factors_)
    assert_array_equal(model.item_counts_, X.astype(bool).sum(axis=0))
    assert model.n_iter_ == 5
    assert_array_equal(make().partial_fit(X).n_iter_, 1)


def test_repeated_interactions_gain_weight(X):
    twice = make(max_iter=1).fit(X).partial_fit(X)
    same = make(max_iter=1).fit(X).set_params(warm_start=True, max_iter=1).fit(2 * X)
    assert_array_equal(twice.item_factors_, same.item_factors_)


def test_new_users_and_items(X):
    model = make().fit(X[:30, :20])
    model.partial_fit(X)
    assert model.user_factors_.shape == (40, 5) and model.item_factors_.shape == (25, 5)
    known = X.astype(bool).sum(axis=0) > 0
    assert model.item_factors_[known].any(axis=1).all()
    # Users with only new items, as nothing else is known of them.
    alone = sparse.csr_array(([1.0, 1.0], ([40, 41], [25, 25])), shape=(42, 26))
    model.partial_fit(alone)
    assert model.user_factors_[40:].any(axis=1).all() and model.item_factors_[25].any()
    users, items = model.user_factors_.copy(), model.item_factors_.copy()
    model.partial_fit(sparse.csr_array(([1.0], ([0], [1])), shape=(1, 26)))
    assert model.user_factors_.shape == users.shape and model.item_factors_.shape == items.shape


def test_warm_start_goes_on(X):
    whole = make(max_iter=4).fit(X)
    parts = make(max_iter=2, warm_start=True).fit(X).fit(X)
    assert_array_equal(parts.item_factors_, whole.item_factors_)
    assert_array_equal(parts.loss_curve_, whole.loss_curve_)
    with pytest.raises(ValueError, match="n_components=7 differs from the 5"):
        parts.set_params(n_components=7).fit(X)
    with pytest.raises(ValueError, match="X has 30 rows, but .* 40 users"):
        parts.set_params(n_components=5).fit(X[:30])


# Quality, early stopping and composition


@pytest.fixture(scope="module")
def log():
    return make_interactions(300, 120, 6000, n_clusters=6, noise=0.2, random_state=0)


def test_defaults_find_held_out_items(log):
    train, held_out = holdout_interactions(log, 0.2, random_state=0)
    model = ALSRecommender(16, random_state=0).fit(train)
    items, _ = model.recommend(users=np.arange(300))
    popular = np.argsort(-model.item_counts_)[None, :10].repeat(300, axis=0)
    assert ndcg_at_k(held_out, items) > 2 * ndcg_at_k(held_out, popular)


def test_early_stopping_finds_the_epochs_and_fits_all(log):
    model = ALSRecommender(
        16, regularization=1e-4, early_stopping=True, n_iter_no_change=2, max_iter=30,
        random_state=0,
    ).fit(log)  # fmt: skip
    best = 1 + np.argmax(model.validation_scores_)
    assert best < model.n_iter_ < 30
    assert model.best_iter_ == max(best, 5)
    whole = ALSRecommender(16, regularization=1e-4, max_iter=model.best_iter_, random_state=0)
    whole.fit(log)
    assert_array_equal(model.item_factors_, whole.item_factors_)
    # The curve is that of the search.
    assert model.loss_curve_[-1] != whole.loss_curve_[-1]


def test_named_items_pipelines_and_searches(log):
    pairs = np.column_stack(log.nonzero())
    named = InteractionRecommender(ALSRecommender(8, max_iter=3, random_state=0)).fit(pairs)
    items, _ = recommend(named, [5], n_recommendations=3)
    assert items.shape == (1, 3)
    search = GridSearchCV(
        ALSRecommender(8, max_iter=3, random_state=0), {"regularization": [0.003, 30.0]}, cv=2
    ).fit(log)
    assert search.best_params_ == {"regularization": 0.003}


def test_verbose_and_silent(X, capsys):
    make(max_iter=2).fit(X)
    assert capsys.readouterr().out == ""
    make(max_iter=2, verbose=1).fit(X)
    assert capsys.readouterr().out.splitlines()[-1].startswith("epoch   2/2  loss 0.")
