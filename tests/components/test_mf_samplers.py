"""Matrix factorization with negatives that are drawn for each user."""

import pickle
from itertools import pairwise

import numpy as np
import pytest
import reference.mf
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.model_selection import GridSearchCV, ParameterGrid
from test_mf_kernels import (
    INVERSE,
    N_ITEMS,
    PerUser,
    assert_agrees,
    models_of_threads,
    one_step,
    watched_epochs,
)

from freqfm import MFRecommender
from freqfm._numba.jit import kernel, specialised
from freqfm.backbones import LightGCN
from freqfm.backends.cpu.ranking.family import DRAWS
from freqfm.datasets import make_interactions
from freqfm.formulas.proposals import (
    draw_negatives,
    draws_from,
    formulas_of,
    log_q_of,
    prepare_query,
)
from freqfm.formulas.rng import hash64, stream_key
from freqfm.losses import Softmax
from freqfm.samplers import AOBPR, MIDX, PRIS, SAMPLERS, Kernel, QuerySampler, SelfAdversarial
from freqfm.temperatures import AdapTau

NAMES = [name for name, make in SAMPLERS.items() if isinstance(make(), QuerySampler)]


def train_and_watch(data, **params):
    """Return (user step, item step, model) of one batch, its epoch and the proposal."""
    with watched_epochs() as seen:
        steps = one_step(data, **params)
    ((task, epoch),) = seen
    return steps, epoch, task._proposal


def _draw_and_correct(proposal, query, key, ids, log_q, of_items, numbers, sums):
    prepare_query(proposal, query, numbers, sums)
    draw_negatives(proposal, query, key, ids, log_q, numbers, sums)
    for i in range(of_items.shape[0]):
        of_items[i] = log_q_of(proposal, query, i, numbers, sums)


draw_and_correct = kernel(_draw_and_correct, cached=False)


def draw(proposal, query, key, n):
    """Return draws, their log_q, and a function that returns log_q of any item."""
    ids, log_q = np.zeros(n, dtype=np.int32), np.zeros(n, dtype=np.float32)
    of_items = np.zeros(proposal.n_items, dtype=np.float32)
    numbers, sums = (array[0] for array in draws_from(proposal, 1)[1:3])
    query = np.ascontiguousarray(query, dtype=np.float32)
    run = specialised(draw_and_correct, formulas_of(proposal))
    run(proposal, query, np.uint64(key), ids, log_q, of_items, numbers, sums)
    return ids, log_q, of_items.item


def hashed(key):
    # Compiled functions return integers of Python, which NumPy 1 takes for int64 or floats.
    return np.uint64(hash64(key))


def key_of(seed, index):
    with np.errstate(over="ignore"):
        key = hashed(np.uint64(stream_key(seed, 0)) + np.uint64(index))
        return hashed(key ^ DRAWS)


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_softmax_gradient(data, similarity, inside, name):
    (du, dv, model), epoch, proposal = train_and_watch(
        data,
        loss=Softmax(include_positive=inside),
        similarity=similarity,
        temperature=PerUser(),
        negative_sampler=name,
        n_negatives=7,
    )
    _, U, V = data
    units = U / np.linalg.norm(U, axis=1, keepdims=True) if similarity == "cosine" else U
    pairs, lists, log_q = [], [], []
    for r, u in enumerate(epoch.row_users):
        query = units[u] * np.float32(INVERSE[u, 1])
        ids, drawn, of = draw(proposal, query, key_of(model._seed, r), 7)
        drawn = drawn * SAMPLERS[name]().corrected
        for p in range(epoch.row_starts[r], epoch.row_starts[r + 1]):
            i = epoch.items[p]
            pairs.append((u, i, epoch.weights[p]))
            lists.append(ids)
            log_q.append([*drawn, of(i)])
    assert len(epoch.row_users) < len(pairs)

    def loss(U, V):
        return reference.mf.softmax_loss(
            U, V, pairs, lists, cosine=similarity == "cosine", inverse=INVERSE, inside=inside,
            log_q=log_q,
        )  # fmt: skip

    assert_agrees((du, dv, model), loss, U, V, atol=3e-5)


PAIR_SAMPLERS = [
    name for name in NAMES if SAMPLERS[name]().weighted or not SAMPLERS[name]().corrected
]


@pytest.mark.parametrize(
    "name, n_negatives, similarity",
    [("dns", 1, "dot"), *((name, 5, "cosine") for name in PAIR_SAMPLERS)],
)
def test_bpr_gradient(data, name, n_negatives, similarity):
    (du, dv, model), epoch, proposal = train_and_watch(
        data,
        loss="bpr",
        negative_sampler=name,
        n_negatives=n_negatives,
        weight_decay=0.0,
        similarity=similarity,
        temperature=PerUser(),
    )
    X, U, V = data
    units = U / np.linalg.norm(U, axis=1, keepdims=True) if similarity == "cosine" else U
    users = np.repeat(epoch.row_users, np.diff(epoch.row_starts))
    pairs = list(zip(users, epoch.items, epoch.weights, strict=True))
    lists, log_q = [], []
    for p, (u, _, _) in enumerate(pairs):
        with np.errstate(over="ignore"):
            key = hashed(hashed(np.uint64(stream_key(model._seed, 0)) ^ DRAWS) + np.uint64(p))
        query = units[u] * np.float32(INVERSE[u, 0])
        ids, drawn, _ = draw(proposal, query, key, n_negatives)
        lists.append(ids)
        log_q.append(drawn)

    def loss(U, V):
        return reference.mf.pairwise_loss(
            U, V, pairs, lists, cosine=similarity == "cosine", inverse=INVERSE,
            known=X.toarray() > 0, log_q=log_q if SAMPLERS[name]().weighted else None,
        )  # fmt: skip

    assert_agrees((du, dv, model), loss, U, V, atol=3e-5)


@pytest.mark.slow
def test_exact_proposal_gives_the_full_softmax(data):
    # Every draw adds the same to the sum: n / M of the sum of all items.
    params = {"similarity": "dot", "temperature": 1.0}
    full = one_step(data, negative_sampler="full", **params)[2]
    for n in (1, 5):
        drawn = one_step(data, negative_sampler="midx_exact", n_negatives=n, **params)[2]
        shift = np.log(n / N_ITEMS)
        assert_allclose(drawn.loss_curve_[0], full.loss_curve_[0] + shift, rtol=1e-6)


WAYS = [
    *ParameterGrid({"negative_sampler": NAMES, "loss": ["bsl"]}),
    {"negative_sampler": "dns", "loss": "bpr", "batch_size": 700},
    {"negative_sampler": "aobpr", "loss": "bpr", "batch_size": 100},
    {"negative_sampler": "pris", "loss": "bpr", "similarity": "cosine", "temperature": 0.1},
    {
        "negative_sampler": MIDX("popularity", n_codewords=5),
        "loss": Softmax(include_positive=True),
        "temperature": AdapTau(warm_up=1),
    },
    {"negative_sampler": "midx_uniform", "optimizer": "sgd", "weight_decay": 1e-3},
    {"negative_sampler": "dns", "loss": "bpr", "optimizer": "sgd", "weight_decay": 1e-3},
]


@pytest.mark.parametrize("params", WAYS, ids=str)
def test_bitwise_reproducible_for_any_number_of_threads(params):
    _, (one, *_) = models_of_threads((1, 2, 3), init="xavier", **params)
    assert one.loss_curve_[-1] < one.loss_curve_[0]


class Watched(QuerySampler):
    """MIDX, or AOBPR for losses of pairs, and what it was asked for."""

    calls = []

    def __init__(self, refresh=1):
        self.refresh = refresh

    def proposal(self, counts, vectors, seed, previous=None):
        self.calls.append((counts.copy(), vectors.copy(), seed, previous))
        shipped = MIDX() if self.corrected else AOBPR()
        return shipped.proposal(counts, vectors, seed, previous)


@pytest.mark.slow
@pytest.mark.parametrize("refresh, n_calls", [(1, 5), (2, 3), (9, 1)])
def test_proposals_are_refreshed(refresh, n_calls):
    X = make_interactions(60, 40, 600, random_state=0)
    Watched.calls.clear()
    sampler = Watched(refresh)
    model = MFRecommender(8, negative_sampler=sampler, max_iter=5, random_state=0).fit(X)
    assert len(Watched.calls) == n_calls
    assert Watched.calls[0][3] is None
    assert all(call[3] is not None for call in Watched.calls[1:])
    for counts, vectors, _, _ in Watched.calls:
        assert_array_equal(counts, model.item_counts_)
        assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
    assert len({call[2] for call in Watched.calls}) == n_calls
    # State belongs to the fit, not to the sampler.
    assert vars(sampler) == {"refresh": refresh}


@pytest.mark.slow
@pytest.mark.parametrize(
    "loss, n_negatives, n_batches", [("bpr", 2, 1), ("bpr", 1, 2), ("bsl", 64, 1)]
)
def test_proposals_are_refreshed_within_epochs(monkeypatch, loss, n_negatives, n_batches):
    # 148 draws are more than a batch has for its 100 positives, if each has one.
    X = make_interactions(60, 40, 600, random_state=0)
    monkeypatch.setattr(Watched, "corrected", loss != "bpr")
    Watched.calls.clear()
    models = [
        MFRecommender(
            8, loss=loss, negative_sampler=Watched(None), n_negatives=n_negatives, batch_size=100,
            backbone=backbone, max_iter=2, random_state=0,
        ).fit(X)
        for backbone in ("linear", LightGCN(1, propagate="batch"))
    ]  # fmt: skip
    per_epoch = len(range(0, -(-X.nnz // 100), n_batches))
    assert len(Watched.calls) == 4 * per_epoch
    # Each is of other vectors and by another seed; LightGCN's differ from its tables.
    assert len({call[2] for call in Watched.calls}) == 2 * per_epoch
    vectors = [call[1] for call in Watched.calls]
    assert all((one != other).any(axis=1).all() for one, other in pairwise(vectors))
    assert all(model.loss_curve_[1] < model.loss_curve_[0] for model in models)


@pytest.mark.parametrize(
    "params, complaint",
    [
        (
            {"loss": "bpr", "negative_sampler": "midx_uniform"},
            "'popularity', 'dns', 'self_adversarial', 'aobpr', 'pris', or a class derived",
        ),
        ({"loss": "bpr", "negative_sampler": Kernel()}, "does not correct for their probabilities"),
        ({"loss": "warp", "negative_sampler": SelfAdversarial()}, "'dns', 'aobpr', or a class"),
        ({"negative_sampler": PRIS("count")}, "'within' parameter of PRIS"),
        ({"loss": "directau", "negative_sampler": "kernel"}, "draws no negatives"),
        ({"negative_sampler": "midx"}, "did you mean 'midx_"),
        ({"negative_sampler": MIDX("fast")}, "'variant' parameter of MIDX"),
        ({"negative_sampler": Kernel(alpha=-1)}, "'alpha' parameter of Kernel"),
    ],
)
def test_axes_that_do_not_fit(params, complaint):
    with pytest.raises(ValueError, match=complaint):
        MFRecommender(**params).fit(make_interactions(60, 40, 600, random_state=0))


@pytest.mark.slow
def test_names_can_be_searched():
    model = MFRecommender(negative_sampler="midx_uniform")
    model.set_params(negative_sampler__n_codewords=4)
    assert repr(model.negative_sampler) == "MIDX(n_codewords=4, variant='uniform')"
    X = make_interactions(60, 40, 600, random_state=0)
    model = MFRecommender(4, loss="bpr", max_iter=1, random_state=0)
    samplers = {"negative_sampler": ["dns"], "negative_sampler__n_candidates": [2, 5]}
    other = {"negative_sampler": [AOBPR()], "negative_sampler__rank_scale": [5.0]}
    search = GridSearchCV(model, [samplers, other], cv=2).fit(X)
    assert len(set(search.cv_results_["mean_test_score"])) > 1
    again = pickle.loads(pickle.dumps(search.best_estimator_))
    assert_array_equal(
        again.partial_fit(X).item_factors_, search.best_estimator_.partial_fit(X).item_factors_
    )


@pytest.mark.parametrize("name", NAMES)
def test_few_items_and_new_ones(name):
    X = make_interactions(50, 30, 500, random_state=0)
    model = MFRecommender(8, negative_sampler=name, max_iter=2, random_state=0)
    model.fit(X[:, :1])
    assert_array_equal(model.recommend(X[:, :1], exclude_seen=False)[0][:, 0], 0)
    before = model.fit(X[:40, :20]).item_factors_.copy()
    model.partial_fit(X)
    assert model.item_factors_.shape == (30, 8)
    # Old items moved, and new ones are somewhere.
    assert (model.item_factors_[:20] != before).any(axis=1).all()
    assert np.linalg.norm(model.item_factors_, axis=1).min() > 0


@pytest.mark.parametrize("name", NAMES)
def test_a_warm_start_goes_on_where_the_fit_ended(name):
    X = make_interactions(60, 80, 900, random_state=0)
    params = {"negative_sampler": name, "n_negatives": 5, "learning_rate": 0.01, "random_state": 0}
    straight = MFRecommender(4, max_iter=4, **params).fit(X)
    model = MFRecommender(4, max_iter=2, warm_start=True, **params).fit(X).fit(X)
    assert_array_equal(model.item_factors_, straight.item_factors_)
    model.set_params(negative_sampler=MIDX(n_codewords=3)).fit(X)  # another number of codewords
    assert model.n_iter_ == 6
