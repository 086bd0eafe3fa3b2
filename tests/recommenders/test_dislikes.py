"""Dislikes: negative values of interactions."""

import pickle
import warnings

import numpy as np
import pytest
from helpers import each, slow_params
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from sklearn.base import clone

from freqfm import (
    ALSRecommender,
    EASERecommender,
    FastVAERecommender,
    GraphFilterRecommender,
    InteractionRecommender,
    ItemKNNRecommender,
    MFRecommender,
    PopularityRecommender,
)
from freqfm._numba.jit import JIT_DISABLED, KERNELS
from freqfm.callbacks import Checkpoint, resume
from freqfm.datasets import make_interactions
from freqfm.metrics import dislike_rate_at_k, ndcg_at_k, ranking_report, recall_at_k
from freqfm.model_selection import make_ranking_scorer

N_USERS, N_ITEMS = SHAPE = 60, 30
LIKES = make_interactions(*SHAPE, n_interactions=600, random_state=0)
DISLIKES = sparse.csr_array(sparse.random(*SHAPE, density=0.05, random_state=0))
DISLIKES.data += 1
# A pair that is in both is a dislike.
X = sparse.csr_array(LIKES - LIKES.multiply(DISLIKES != 0) - DISLIKES)
DISLIKED, USERS = DISLIKES.toarray() != 0, np.arange(N_USERS)

MODELS = {
    "als": ALSRecommender(4, max_iter=2, random_state=0, n_jobs=1),
    "ease": EASERecommender(),
    "knn": ItemKNNRecommender(),
    "filter": GraphFilterRecommender(random_state=0),
    "popular": PopularityRecommender(),
    "vae": FastVAERecommender(4, max_iter=2, random_state=0, n_jobs=1, early_stopping=False),
    **{
        loss: MFRecommender(4, loss=loss, max_iter=2, random_state=0, n_jobs=1)
        for loss in ("bsl", "ccl", "bpr", "directau", "mawu", "macr")
    },
    **{
        backbone: MFRecommender(4, backbone=backbone, max_iter=2, random_state=0, n_jobs=1)
        for backbone in ("lightgcn", "mlp")
    },
}


def made(name):
    return clone(MODELS[name])


def items_of(model, *args, **options):
    return model.recommend(*args, n_recommendations=N_ITEMS, **options)[0]


def is_listed(items):
    """Return which items are in the lists of users, (n_users, n_items)."""
    found = np.zeros((len(items), N_ITEMS + 1), dtype=bool)
    np.put_along_axis(found, items, True, axis=1)
    return found[:, :N_ITEMS]


@pytest.mark.parametrize("name", MODELS)
def test_dislikes_are_not_recommended(name):
    model = made(name).fit(X)
    known, folded = items_of(model, users=USERS), items_of(model, X)
    for items in (known, folded):
        assert not is_listed(items)[X.toarray() != 0].any()
    # Something else is still recommended, and dislikes are on request.
    assert (known[:, 0] >= 0).all()
    everything = is_listed(items_of(model, users=USERS, exclude_seen=False))
    assert everything[DISLIKED & (model.item_counts_ > 0)].any()
    # Only likes are counted.
    assert_array_equal(model.item_counts_, (X.toarray() > 0).sum(axis=0))
    given = made(name).fit(LIKES, dislikes=-DISLIKES)
    assert_array_equal(items_of(given, users=USERS), known)
    assert 0 <= model.score(X) <= 1


@pytest.mark.parametrize("name", MODELS)
def test_models_without_dislikes_are_the_same(name):
    empty = sparse.csr_array(SHAPE)
    one, other = made(name).fit(LIKES), made(name).fit(LIKES, dislikes=empty)
    assert_array_equal(one.item_counts_, other.item_counts_)
    for found, expected in zip(
        one.recommend(users=USERS), other.recommend(users=USERS), strict=True
    ):
        assert_array_equal(found, expected)
    assert one._dislikes is None and other._dislikes is None
    assert made(name).fit(X)._dislikes is not None


@pytest.mark.parametrize(
    "name",
    ["bsl", "bpr", *slow_params(["softmax", "psl", "slatk", "ccl", "directau", "mawu", "macr"])],
)
def test_every_ranking_loss_lowers_dislikes(name):
    # Items that similar users like, but that some dislike.
    model = MFRecommender(8, loss=name, max_iter=20, random_state=0, n_jobs=1)
    likes = X.maximum(0)
    users, items = DISLIKES.nonzero()
    without = clone(model).fit(likes)
    least = clone(model).fit(likes, dislikes=DISLIKES != 0)
    most = clone(model).fit(likes, dislikes=5 * (DISLIKES != 0))

    def share_above(model):
        """Return the mean share of a user's likes that are ranked above a dislike."""
        of_user, every = np.full(N_ITEMS, 0), np.arange(N_ITEMS)
        scores = np.array([model.predict_pairs(of_user + u, every) for u in users])
        disliked = scores[np.arange(len(users)), items][:, None]
        liked = likes[users].toarray() > 0
        return (liked & (scores > disliked)).sum() / liked.sum()

    shares = [share_above(one) for one in (without, least, most)]
    assert shares[0] < shares[1] < shares[2]


@pytest.mark.skipif(JIT_DISABLED, reason="nothing is compiled")
def test_kernels_are_compiled_once_with_dislikes_and_without():
    rows = X.copy()
    rows.indices, rows.indptr = rows.indices.astype(np.int64), rows.indptr.astype(np.int64)
    for likes, history in (LIKES, LIKES), (rows, rows):
        made("bpr").fit(likes).transform(history)
    names = "pairwise_train", "fold_in_rows"
    found = {kernel.__name__: kernel.signatures for kernel in KERNELS}
    found = {name: kinds for name, kinds in found.items() if name.startswith(names)}
    assert found and max(map(len, found.values())) == 1


def test_weights_of_dislikes_in_least_squares():
    model = ALSRecommender(3, solver="cholesky", max_iter=3, random_state=0, n_jobs=1)
    model.set_params(unobserved_weight=0.1, regularization=0.05).fit(X)
    rows = X.toarray()
    items = model.item_factors_.astype(np.float64)
    for u in range(0, N_USERS, 7):
        weights, liked = abs(rows[u]), rows[u] > 0
        penalty = 0.05 * (weights.sum() + 0.1 * N_ITEMS)
        matrix = items.T @ ((weights + 0.1)[:, None] * items) + penalty * np.eye(3)
        expected = np.linalg.solve(matrix, (weights * liked) @ items)
        assert_allclose(model.transform(X)[u], expected, rtol=1e-3, atol=1e-5)
        assert_allclose(model.user_factors_[u], expected, rtol=1e-3, atol=1e-5)
    losses = ALSRecommender(3, max_iter=8, random_state=0, n_jobs=1).fit(X).loss_curve_
    assert (np.diff(losses) < 1e-6).all()
    told = model.explain(2, 5)
    assert_allclose(told.contributions.sum() + told.rest, told.score, rtol=1e-4)
    assert abs(told.rest) < 1e-4


@each("loss", ["bsl", "slatk", "bpr"])
def test_all_likes_may_become_dislikes(loss):
    one = np.array([[1.0, 0.0], [0.0, 0.0]])
    model = MFRecommender(4, loss=loss, max_iter=1, random_state=0).fit(one)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.partial_fit(-one)
    assert model._history.n_interactions == 0 and model._dislikes.n_interactions == 1


@each("name", ["als", "vae", "bsl", "lightgcn"])
def test_the_last_call_counts(name):
    model = made(name).fit(X)
    u, liked = (int(of[0]) for of in (X.toarray() > 0).nonzero())
    changed = sparse.csr_array(([-1.0], ([u], [liked])), shape=SHAPE)
    model.partial_fit(changed)
    n = model._dislikes.n_interactions
    assert n == DISLIKES.nnz + 1 and model._history.n_interactions == (X.data > 0).sum() - 1
    assert not is_listed(items_of(model, users=[u]))[0, liked]
    model.partial_fit(-changed)
    assert model._dislikes.n_interactions == DISLIKES.nnz
    assert model._history.n_interactions == (X.data > 0).sum()
    # A user and an item that are new, disliked and liked.
    wider = sparse.csr_array(
        ([1.0, -2.0, 1.0], ([N_USERS] * 2 + [0], [2, 3, N_ITEMS])),
        shape=(N_USERS + 1, N_ITEMS + 1),
    ) if name != "lightgcn" else X  # fmt: skip
    model.partial_fit(wider)
    if name != "lightgcn":
        items = model.recommend(users=[N_USERS], n_recommendations=N_ITEMS)[0]
        assert not {2, 3} & set(items[0].tolist())


@each("name", ["als", "bsl"])
def test_early_stopping_holds_out_likes(name):
    model = made(name).set_params(early_stopping=True, max_iter=3).fit(X)
    assert len(model.validation_scores_)
    assert not is_listed(items_of(model, users=USERS))[DISLIKED].any()
    with pytest.raises(ValueError, match="X_val holds no interaction"):
        model.fit(X, X_val=-DISLIKES)


@each("name", ["als", "bsl", "vae"])
def test_early_stopping_by_dislikes_holds_out_dislikes(name):
    model = made(name).set_params(early_stopping=True, max_iter=3, n_iter_no_change=None)
    model.set_params(scoring="neg_dislike_rate@20").fit(X)
    assert (model.validation_scores_ < 0).any()
    # Those held out are known in the end, and trained on.
    assert model._dislikes.n_interactions == DISLIKES.nnz
    assert not is_listed(items_of(model, users=USERS))[DISLIKED].any()
    # A callable is given both; what is to be found is not known.
    seen = []

    def scorer(model, histories, held_out):
        rows, y = histories.tocoo().toarray(), held_out.tocoo().toarray()
        assert not (rows * y).any() and (rows < 0).any()
        assert (y > 0).any() and (y < 0).any()
        seen.append((y < 0).sum())
        items, _ = model.recommend(histories)
        return ndcg_at_k(held_out, items) - dislike_rate_at_k(held_out, items)

    model.set_params(scoring=scorer).fit(X)
    assert len(seen) == 3 and 0 < seen[0] < DISLIKES.nnz / 2
    # What is given: known pairs, and dislikes of users who like nothing, are left out.
    held_out = X.copy()
    held_out.data[1::2] *= -1
    known = X.copy()
    known.data[::2] = 0
    known.eliminate_zeros()
    model.fit(known, X_val=held_out)
    expected = (held_out.toarray() < 0) & (known.toarray() == 0)
    expected &= (known.toarray() > 0).any(axis=1)[:, None]
    assert seen[-1] == expected.sum()
    model.set_params(scoring="ndcg").fit(known, X_val=held_out)
    for given in ({"X": LIKES}, {"X": X, "X_val": abs(X)}, {"X": LIKES, "X_val": abs(X)}):
        with pytest.raises(ValueError, match=r"scoring='neg_dislike_rate' counts|X_val holds no"):
            model.set_params(scoring="neg_dislike_rate").fit(**given)


def test_a_callable_takes_validation_likes_alone():
    seen = []

    def scorer(model, histories, held_out):
        seen.append((histories.data.min(), held_out.data.min()))
        return 0.0

    model = made("als").set_params(early_stopping=True, scoring=scorer)
    likes = X.multiply(X > 0)
    held_out = sparse.csr_array(likes.multiply(np.arange(N_ITEMS) < 9))
    model.fit(sparse.csr_array(X - held_out), X_val=held_out)
    assert all(of_histories < 0 < of_held_out for of_histories, of_held_out in seen) and seen


class Interrupted(BaseException):
    pass


class Interrupting(Checkpoint):
    """A checkpoint after whose last file the fit ends."""

    def __init__(self, path, n_files):
        super().__init__(path)
        self.n_files = n_files

    def save(self, estimator, progress):
        super().save(estimator, progress)
        self.n_files -= 1
        if not self.n_files:
            raise Interrupted


@pytest.mark.slow
@each("name, n_files", [("als", 1), ("bsl", 4), ("directau", 2)])
def test_a_resumed_fit_is_that_without_an_interruption(name, n_files, tmp_path):
    model = made(name).set_params(early_stopping=True, max_iter=3, n_iter_no_change=None)
    if name == "als":
        model.set_params(scoring="neg_dislike_rate")
    expected = clone(model).fit(LIKES, dislikes=DISLIKES)
    with pytest.raises(Interrupted):
        model.set_callbacks(Interrupting(tmp_path / name, n_files)).fit(LIKES, dislikes=DISLIKES)
    again = resume(tmp_path / name)
    with pytest.raises(ValueError, match="X"):
        resume(tmp_path / name).fit(LIKES, dislikes=2 * DISLIKES)
    again.fit(X)
    for attribute in ("item_factors_", "user_factors_", "loss_curve_", "validation_scores_"):
        assert_array_equal(getattr(again, attribute), getattr(expected, attribute))
    assert_array_equal(again._dislikes.weights, expected._dislikes.weights)


def test_results_do_not_depend_on_threads_and_can_be_stored():
    model = made("bsl").fit(X)
    parallel = made("bsl").set_params(n_jobs=2).fit(X)
    assert_array_equal(model.item_factors_, parallel.item_factors_)
    again = pickle.loads(pickle.dumps(model))
    assert_array_equal(items_of(again, users=USERS), items_of(model, users=USERS))
    damaged = pickle.loads(pickle.dumps(model))
    damaged._dislikes = damaged._dislikes._replace(indices=damaged._dislikes.indices + N_ITEMS)
    with pytest.raises(ValueError, match=r"_dislikes\.indices"):
        items_of(damaged, users=USERS)


def test_what_cannot_be_used_is_refused():
    with pytest.raises(ValueError, match="holds no positive value: all"):
        made("bsl").fit(-DISLIKES)
    with pytest.raises(ValueError, match=r"dislikes has shape \(59, 30\), but X has \(60, 30\)"):
        made("als").fit(LIKES, dislikes=DISLIKES[:59])
    with pytest.raises(ValueError, match="dislikes: .*29 features"):
        made("knn").fit(LIKES, dislikes=DISLIKES[:, :29])
    with pytest.raises(ValueError, match="dislikes: .*NaN"):
        made("ease").fit(LIKES, dislikes=np.full(SHAPE, np.nan))


def test_dislikes_in_a_context_are_refused():
    users, items = X.nonzero()
    table = [(f"u{u}", f"i{i}", v, "day") for u, i, v in zip(users, items, X.data, strict=True)]
    model = InteractionRecommender(made("bsl"), user=0, item=1, value=2, context=[3])
    with pytest.raises(ValueError, match=r"X holds \d+ dislikes, and backbone="):
        model.fit(table)


def test_dislikes_on_a_cluster_are_refused():
    pytest.importorskip("distributed")
    from freqfm.dask import _users

    with pytest.raises(ValueError, match="a dislike, and these are not supported on a cluster"):
        _users.collect_users(0, [X], None, kind=MFRecommender, learns_dislikes=False)


def test_negative_values_of_tables():
    users, items = X.nonzero()
    table = np.column_stack([users, items, X.toarray()[users, items]])
    model = InteractionRecommender(made("bsl")).fit(table)
    found = model.recommend(n_recommendations=N_ITEMS - 1)[0]
    for u, row in zip(model.user_ids_, found, strict=True):
        disliked = np.flatnonzero(DISLIKED[int(u)])
        assert not set(disliked) & {i for i in row.tolist() if i is not None}
    score = make_ranking_scorer("neg_dislike_rate", k=5)(model, table)
    assert score == 0  # known dislikes are not recommended
    assert 0 <= model.score(table) <= 1


def test_dislike_rate():
    held_out = np.array([[-1, 1, 0, -2, 0], [0, 1, 0, 0, 0], [-1e-300, 0, 0, 1, 0]])
    ranked = np.array([[1, 0, 2], [1, 2, 3], [2, -1, 0]])
    assert dislike_rate_at_k(held_out, ranked) == pytest.approx((1 / 2 + 1) / 2)
    assert_array_equal(dislike_rate_at_k(held_out, ranked, 1, average=False), [0, np.nan, 0])
    # Other metrics do not count dislikes.
    for metric in (ndcg_at_k, recall_at_k):
        assert metric(held_out, ranked) == metric(np.maximum(held_out, 0), ranked)
    report = ranking_report(held_out, ranked, k=[1, 3])
    assert report["dislike_rate@1"] == 0 and report["dislike_rate@3"] == 0.75
    assert "dislike_rate@1" not in ranking_report(abs(held_out), ranked, k=1)
    with pytest.raises(ValueError, match="no dislike"):
        dislike_rate_at_k(abs(held_out), ranked)
    assert_array_equal(held_out[0], [-1, 1, 0, -2, 0])


def test_dislikes_that_outweigh_all_likes_are_refused():
    X = np.eye(6, 8) - np.eye(6, 8, 2)
    model = MFRecommender(2, max_iter=1, random_state=0)
    model.fit(np.where(X < 0, -90, X))
    for weight in (1e3, 1e9):
        with pytest.raises(ValueError, match=r"dislikes of X weigh 1e\+\d+ times"):
            model.fit(np.where(X < 0, -weight, X))
