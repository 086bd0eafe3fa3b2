"""Kernels of the recommenders against references: one batch, one step, the same gradient."""

import contextlib
from itertools import pairwise

import numpy as np
import pytest
import reference.mf
from helpers import assert_same_attributes, each, slow_params
from numba import njit
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse

from freqfm import MFRecommender
from freqfm._numba.jit import as_python
from freqfm.backends.cpu import tables
from freqfm.estimators.recommenders.mf_trainer import MFTrainer
from freqfm.initializers import Initializer
from freqfm.losses import (
    BSL,
    CCL,
    MAWU,
    PSL,
    RANKING_LOSSES,
    DirectAU,
    SLatK,
    Softmax,
)
from freqfm.optimizers import SGD, Adagrad, Adam
from freqfm.samplers import InBatch, Popularity, Uniform
from freqfm.temperatures import AdapTau, Temperature

N_USERS, N_ITEMS, WIDTH = 9, 13, 5


class GivenTables(Initializer):
    """Tables that the test knows."""

    def __init__(self, users=None, items=None):
        self.users = users
        self.items = items

    def draw(self, shape, generator, counts=None):
        return np.array(self.users if shape[0] == N_USERS else self.items, dtype=np.float32)


class GivenNegatives(Uniform):
    """The negatives i, i + 1, ... of list i, so that the test knows them."""

    def draw(self, shape, n_items, proposal, generator):
        start = np.arange(shape[0])[:, None] * 3
        return ((start + np.arange(shape[1])) % n_items).astype(np.int32)


class GivenPopularity(Popularity):
    """Known negatives that were drawn by popularity."""

    draw = GivenNegatives.draw


class PerUser(Temperature):
    """Two inverse temperatures for each user."""

    def refresh(self, epoch, inverse, state, snapshot):
        inverse[:, 0] = np.linspace(2, 4, len(inverse))
        inverse[:, 1] = np.linspace(3, 1, len(inverse))


def one_step(data, **params):
    """Return the step of users and that of items in one big batch, and the model."""
    X, U, V = data
    model = MFRecommender(
        WIDTH,
        **{
            "init": GivenTables(U, V),
            "loss": "softmax",
            "optimizer": SGD(learning_rate=1.0),
            "batch_size": 10_000,
            "max_iter": 1,
            "user_dropout": 0.0,
            "random_state": 0,
            "n_jobs": 2,
            **params,
        },
    ).fit(X)
    return U - model.user_factors_, V - model.item_factors_, model


def models_of_threads(n_threads, **params):
    """Return interactions, and models by several numbers of threads, which are bitwise the same."""
    X = sparse.csr_array((np.random.default_rng(0).random((160, 80)) < 0.1).astype(np.float32))
    params = {"n_components": 64, "max_iter": 2, "batch_size": 300, "random_state": 1, **params}
    models = [MFRecommender(**params, n_jobs=n_jobs).fit(X) for n_jobs in n_threads]
    assert_same_attributes(("user_factors_", "item_factors_", "loss_curve_"), *models)
    return X, models


def assert_agrees(one_step, loss, U, V, atol=2e-5):
    """Compare the result of ``one_step`` with a loss and its gradient by finite differences."""
    *steps, model = one_step
    assert_allclose(model.loss_curve_[0], loss(U, V), rtol=1e-5)
    for step, gradient in zip(steps, reference.mf.gradients(loss, U, V), strict=True):
        assert_allclose(step, gradient, atol=atol)


def pairs_of(X):
    X = sparse.coo_array(X)
    return list(zip(X.row.tolist(), X.col.tolist(), X.data.tolist(), strict=True))


@contextlib.contextmanager
def watched_epochs():
    """Yield a list to which models that are trained add the task and the data of each epoch."""
    seen, shuffle = [], MFTrainer._shuffle

    def spy(task, epoch):
        seen.append((task, shuffle(task, epoch)))
        return seen[-1][1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MFTrainer, "_shuffle", spy)
        yield seen


def triples_of(epoch):
    """Return the users, items and weights of an epoch in its order."""
    users = np.repeat(epoch.row_users, np.diff(epoch.row_starts))
    return list(zip(users.tolist(), epoch.items.tolist(), epoch.weights.tolist(), strict=True))


def known_pairs(data, **params):
    """Return the pairs of X in the order in which an epoch visits them."""
    with watched_epochs() as seen:
        steps = one_step(data, **params)
    return triples_of(seen[0][1]), steps


INVERSE = np.column_stack([np.linspace(2, 4, N_USERS), np.linspace(3, 1, N_USERS)])
SIMILARITIES = pytest.mark.parametrize("similarity", ["cosine", "dot"])


@SIMILARITIES
@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("sampler", [GivenNegatives, GivenPopularity])
@pytest.mark.parametrize("shared", [True, False])
def test_softmax_gradient(data, similarity, inside, sampler, shared):
    X, U, V = data
    pairs, step = known_pairs(
        data,
        loss=Softmax(include_positive=inside),
        similarity=similarity,
        temperature=PerUser(),
        negative_sampler=sampler(shared=shared),
        n_negatives=7,
    )
    draws = GivenNegatives().draw((1 if shared else len(pairs), 7), N_ITEMS, None, None)
    lists = [draws[0 if shared else p] for p in range(len(pairs))]
    log_q = None
    if sampler is GivenPopularity:
        share = (np.diff(sparse.csc_array(X).indptr) + 1.0) ** 0.75
        log_q = np.log(share / share.sum() * N_ITEMS)

    def loss(U, V):
        return reference.mf.softmax_loss(
            U, V, pairs, lists, cosine=similarity == "cosine", inverse=INVERSE, inside=inside,
            log_q=log_q,
        )  # fmt: skip

    assert_agrees(step, loss, U, V)


@SIMILARITIES
@pytest.mark.parametrize("sampler", ["in_batch", InBatch(corrected=False), "full"], ids=str)
def test_softmax_over_batch_and_all_items(data, similarity, sampler):
    X, U, V = data
    pairs, step = known_pairs(
        data, similarity=similarity, temperature=PerUser(), negative_sampler=sampler
    )
    log_q = None
    lists = [range(N_ITEMS)] * len(pairs)
    if sampler != "full":
        lists = [[i for _, i, _ in pairs]] * len(pairs)
    if sampler == "in_batch":
        log_q = InBatch().proposal(np.diff(sparse.csc_array(X).indptr)).log_q

    def loss(U, V):
        return reference.mf.softmax_loss(
            U, V, pairs, lists, cosine=similarity == "cosine", inverse=INVERSE, log_q=log_q
        )

    assert_agrees(step, loss, U, V)


def test_in_batch_negatives_of_batches_of_unequal_size(data):
    # A batch must not read what a larger batch before it has left.
    X, U, V = data
    params = {"negative_sampler": "in_batch", "temperature": PerUser(), "batch_size": 11}
    with watched_epochs() as seen:
        _, _, model = one_step(data, optimizer=SGD(0.5), **params)
    ((_, found),) = seen
    bounds = found.row_starts[found.batch_starts]
    assert (np.diff(bounds)[1:] < np.diff(bounds)[:-1]).any()
    triples = triples_of(found)
    log_q = InBatch().proposal(np.diff(sparse.csc_array(X).indptr)).log_q
    U, V = U.astype(float), V.astype(float)
    for begin, end in pairwise(bounds):
        pairs = triples[begin:end]
        lists = [[i for _, i, _ in pairs]] * len(pairs)

        def loss(U, V, pairs=pairs, lists=lists):
            return reference.mf.softmax_loss(
                U, V, pairs, lists, cosine=True, inverse=INVERSE, log_q=log_q
            )

        gradients = reference.mf.gradients(loss, U, V)
        U, V = U - 0.5 * gradients[0], V - 0.5 * gradients[1]
    assert_allclose(model.user_factors_, U, atol=1e-4)
    assert_allclose(model.item_factors_, V, atol=1e-4)


@pytest.mark.parametrize("sampler", [Uniform(), Uniform(shared=False), "in_batch"], ids=repr)
def test_batches_that_are_scored_in_several_panels(monkeypatch, sampler):
    X = sparse.random(200, 30, density=0.1, random_state=0, format="csr")
    params = {
        "negative_sampler": sampler, "optimizer": SGD(0.5), "batch_size": 10_000, "max_iter": 2,
        "early_stopping": False, "random_state": 0, "n_jobs": 2,
    }  # fmt: skip
    whole = MFRecommender(WIDTH, **params).fit(X)
    monkeypatch.setattr("freqfm.backends.cpu.ranking.softmax._SCORES", 1)
    panels = MFRecommender(WIDTH, **params).fit(X)
    assert_allclose(panels.loss_curve_, whole.loss_curve_, rtol=1e-6)
    assert_allclose(panels.user_factors_, whole.user_factors_, rtol=1e-4, atol=1e-6)
    assert_allclose(panels.item_factors_, whole.item_factors_, rtol=1e-4, atol=1e-6)


def test_low_temperatures_of_items_that_all_point_away(data):
    # Below -87 exponentials underflow: these logits are far below those of the closest item.
    _X, U, V = data
    U, V = abs(U), -abs(V)
    pairs, (*_, model) = known_pairs(
        (_X, U, V), temperature=0.01, negative_sampler=GivenNegatives(), n_negatives=7
    )
    expected = reference.mf.softmax_loss(
        U, V, pairs, [range(7)] * len(pairs), cosine=True, inverse=np.full((N_USERS, 2), 100)
    )
    assert_allclose(model.loss_curve_[0], expected, rtol=1e-5)


def test_bsl_weighs_the_logarithm(data):
    _X, U, V = data
    pairs, step = known_pairs(
        data, loss=BSL(1.5), temperature=PerUser(), negative_sampler=GivenNegatives(), n_negatives=4
    )
    lists = [range(4)] * len(pairs)

    def loss(U, V):
        return reference.mf.softmax_loss(
            U, V, pairs, lists, cosine=True, inverse=INVERSE, constant=1.5
        )

    assert_agrees(step, loss, U, V)


@pytest.mark.slow
@pytest.mark.parametrize("activation", ["tanh", "atan", "relu"])
def test_surrogates_of_psl(activation):
    # What the kernel calls for each negative, with the difference of two cosines.
    (formula,) = PSL(activation).replacements().values()
    log_surrogate, surrogate = njit(formula), reference.mf.SURROGATES[activation]
    for difference in np.linspace(-1.8, 1.8, 9):
        logs = [2 * np.log(surrogate((difference + h) / 2)) for h in (-1e-5, 0, 1e-5)]
        value, derivative = log_surrogate(np.float32(difference))
        assert value == pytest.approx(logs[1], abs=1e-5)
        assert derivative == pytest.approx((logs[2] - logs[0]) / 2e-5, abs=1e-4)


# Other activations are other formulas in the same kernel.
@pytest.mark.slow
@pytest.mark.parametrize("sampler", [GivenNegatives(), GivenPopularity(shared=False), "full"])
def test_psl_gradient(data, sampler):
    X, U, V = data
    separate = getattr(sampler, "shared", True) is False
    n_negatives = {} if sampler == "full" else {"n_negatives": 7}
    pairs, step = known_pairs(
        data, loss=PSL(), temperature=PerUser(), negative_sampler=sampler, **n_negatives
    )
    lists = [range(N_ITEMS)] * len(pairs)
    if sampler != "full":
        drawn = GivenNegatives().draw((len(pairs) if separate else 1, 7), N_ITEMS, None, None)
        lists = [drawn[p if separate else 0] for p in range(len(pairs))]
    log_q = None
    if separate:
        share = (np.diff(sparse.csc_array(X).indptr) + 1.0) ** 0.75
        log_q = np.log(share / share.sum() * N_ITEMS)

    def loss(U, V):
        return reference.mf.psl_loss(
            U,
            V,
            pairs,
            lists,
            inverse=INVERSE,
            log_q=log_q,
            surrogate=reference.mf.SURROGATES["tanh"],
        )

    assert_agrees(step, loss, U, V)


def test_psl_compares_cosines(data):
    with pytest.raises(ValueError, match="loss='psl' is defined on unit vectors"):
        MFRecommender(loss="psl", similarity="dot").fit(data[0])
    with pytest.raises(ValueError, match="'learned' is learned from a softmax"):
        MFRecommender(loss="psl", temperature="learned").fit(data[0])


@pytest.mark.slow
@SIMILARITIES
def test_slatk_gradient(data, similarity):
    _, U, V = data
    pairs, step = known_pairs(
        data,
        loss=SLatK(k=3, weight_temperature=0.4),
        similarity=similarity,
        temperature=PerUser(),
        negative_sampler=GivenNegatives(),
        n_negatives=7,
    )
    cosine = similarity == "cosine"
    thresholds = np.sort(reference.mf.similarities(U, V, cosine), axis=1)[:, -3]
    lists = [GivenNegatives().draw((1, 7), N_ITEMS, None, None)[0]] * len(pairs)

    def loss(U, V):
        return reference.mf.slatk_loss(
            U, V, pairs, lists, cosine=cosine, inverse=INVERSE, thresholds=thresholds,
            temperature=0.4,
        )  # fmt: skip

    assert_agrees(step, loss, U, V)


def test_the_weights_of_slatk_are_more_equal_on_denser_data():
    loss = SLatK()
    gowalla, movielens = (29_858, 40_981, 719_081), (6_039, 3_628, 590_733)
    assert_allclose(loss.temperature_of_weights(*gowalla), 1.93, atol=0.01)
    assert_allclose(loss.temperature_of_weights(*movielens), 4.45, atol=0.01)
    assert loss.temperature_of_weights(10, 10, 100) == 13
    assert SLatK(weight_temperature=2).temperature_of_weights(*gowalla) == 2


@pytest.mark.slow
def test_slatk_with_equal_weights_is_half_a_softmax(data):
    """SGD has steps in proportion to the loss, whatever its size."""
    X = data[0]
    options = {"max_iter": 3, "optimizer": SGD(0.01), "random_state": 0}
    equal = MFRecommender(4, loss=SLatK(weight_temperature=1e6), **options).fit(X)
    options |= {"optimizer": SGD(0.005), "temperature": "density"}
    softmax = MFRecommender(4, loss=Softmax(include_positive=False), **options).fit(X)
    assert_allclose(equal.user_factors_, softmax.user_factors_, atol=1e-6)


@SIMILARITIES
@pytest.mark.parametrize("n_negatives", [1, 3])
@pytest.mark.parametrize("name", ["bpr", "ccl"])
def test_pairwise_gradient(data, similarity, n_negatives, name):
    X, U, V = data
    cls = RANKING_LOSSES[name]
    if cls.cosine_only and similarity == "dot":
        return
    temperature = PerUser() if cls.has_temperature else None
    inverse = INVERSE if cls.has_temperature else np.ones(INVERSE.shape)
    pairs, step = known_pairs(
        data,
        loss=CCL(negative_weight=20.0) if name == "ccl" else name,
        similarity=similarity,
        temperature=temperature,
        negative_sampler=GivenNegatives(),
        n_negatives=n_negatives,
        weight_decay=0.0,
    )
    lists = GivenNegatives().draw((len(pairs), n_negatives), N_ITEMS, None, None)
    known = X.toarray() > 0

    def loss(U, V):
        return reference.mf.pairwise_loss(
            U, V, pairs, lists, cosine=similarity == "cosine", inverse=inverse, known=known,
            of_pair=reference.mf.PAIR_LOSSES[name],
        )  # fmt: skip

    assert any(known[u, j] for (u, _, _), row in zip(pairs, lists, strict=True) for j in row)
    assert_agrees(step, loss, U, V)


@pytest.mark.slow
@SIMILARITIES
@pytest.mark.parametrize("n_negatives", [1, 8])
def test_warp_gradient(data, similarity, n_negatives):
    X, U, V = data
    if similarity == "dot":
        U, V = 2 * U, 2 * V  # so that some positives are above some negatives by the margin
    pairs, step = known_pairs(
        (X, U, V),
        loss="warp",
        similarity=similarity,
        temperature=PerUser(),
        negative_sampler=GivenNegatives(),
        n_negatives=n_negatives,
        weight_decay=0.0,
        user_dropout=0.0,
    )
    lists = GivenNegatives().draw((len(pairs), n_negatives), N_ITEMS, None, None)
    options = {
        "cosine": similarity == "cosine", "inverse": INVERSE, "known": X.toarray() > 0,
    }  # fmt: skip
    assert_agrees(step, lambda U, V: reference.mf.warp_loss(U, V, pairs, lists, **options), U, V)
    if n_negatives > 1:
        # Later draws count, and not all of them.
        losses = [
            reference.mf.warp_loss(U, V, pairs, lists[:, :n], **options) for n in (1, n_negatives)
        ]
        assert losses[0] < losses[1]
        by_pairs = reference.mf.pairwise_loss(
            U, V, pairs, lists, **options, of_pair=reference.mf.PAIR_LOSSES["warp"]
        )
        assert abs(losses[1] / by_pairs - 1) > 0.1


@pytest.mark.slow
def test_directau_gradient(data):
    _, U, V = data
    pairs, step = known_pairs(data, loss=DirectAU(gamma=1.5))

    def loss(U, V):
        return reference.mf.directau_loss(U, V, pairs, gamma=1.5)

    assert_agrees(step, loss, U, V)


@pytest.mark.slow
@pytest.mark.parametrize("margins", [True, False])
def test_mawu_gradient(data, margins):
    _X, U, V = data
    pairs, (du, dv, model) = known_pairs(data, loss=MAWU(1.1, 0.7, margins=margins))
    m_users = model._draw_margins("user", N_USERS) if margins else None
    m_items = model._draw_margins("item", N_ITEMS) if margins else None

    def loss(U, V, a=m_users, b=m_items):
        return reference.mf.mawu_loss(U, V, a, b, pairs, gammas=(1.1, 0.7))

    assert_allclose(model.loss_curve_[0], loss(U, V), rtol=1e-5)
    if not margins:
        gu, gv = reference.mf.gradients(loss, U, V)
    else:
        gu, gv, ga, gb = reference.mf.gradients(loss, U, V, m_users, m_items)
        assert_allclose(model.user_margins_, np.clip(m_users - ga, 0, 1), atol=2e-5)
        assert_allclose(model.item_margins_, np.clip(m_items - gb, 0, 1), atol=2e-5)
        assert (model.user_margins_ != m_users).any()
    assert_allclose(du, gu, atol=2e-5)
    assert_allclose(dv, gv, atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("lazy", [True, False])
def test_margins_stay_between_zero_and_one(lazy):
    # Unless lazy, momentum moves them further after the batches that hold them.
    X = sparse.random(60, 30, density=0.1, random_state=0, format="csr")
    params = {"optimizer": Adam(0.3, lazy=lazy), "batch_size": 8, "max_iter": 3}
    model = MFRecommender(4, loss=MAWU(1, 1), early_stopping=False, random_state=0, **params).fit(X)
    for margins in (model.user_margins_, model.item_margins_):
        assert 0 <= margins.min() <= margins.max() == 1


@pytest.mark.slow
@pytest.mark.parametrize("loss", [DirectAU(1.0), MAWU(1.0, 1.0)])
def test_a_pair_alone_in_its_batch_is_only_aligned(loss):
    X = sparse.csr_array(np.eye(5, dtype=np.float32))
    model = MFRecommender(4, loss=loss, batch_size=2, max_iter=1, random_state=0).fit(X)
    assert np.isfinite(model.loss_curve_).all() and np.isfinite(model.user_factors_).all()


@pytest.mark.slow
def test_mawu_without_margins_is_directau_alignment(data):
    _X, _U, _V = data
    mawu = one_step(data, loss=MAWU(0, 0, margins=False))
    directau = one_step(data, loss=DirectAU(0))
    for half, whole in zip(mawu[:2], directau[:2], strict=True):
        assert_allclose(2 * half, whole, rtol=1e-4, atol=1e-6)
    assert_allclose(2 + 2 * mawu[2].loss_curve_, directau[2].loss_curve_, rtol=1e-5)


def test_dropout_drops_and_scales(data):
    # The step of a dropped weight is zero, and others are those of the scaled vector.
    X, _U, _V = data
    kept, _, _ = one_step(data, user_dropout=0.5, temperature=1.0, similarity="dot")
    share = np.mean(kept[np.diff(X.indptr) > 0] == 0)
    assert 0.2 < share < 0.8


@each("dropout", [0.1, 0.5, 0.75])
@each("cosine", [True, False])
def test_what_is_kept_of_a_row_is_scaled(dropout, cosine):
    gather, through = as_python(tables.gather_dropped_row), as_python(tables.through_dropout)
    rng, width = np.random.default_rng(0), 1003
    table = rng.normal(size=(3, width)).astype(np.float32)
    mask, out = np.zeros((2, width), np.float32), np.zeros((2, width), np.float32)
    with np.errstate(over="ignore"):
        length = gather(table, 2, cosine, dropout, np.uint64(7), mask, out, 1)
    assert_allclose(np.unique(mask[1]), [0, 1 / (1 - dropout)], rtol=1e-6)
    assert np.mean(mask[1] == 0) == pytest.approx(dropout, abs=0.06)
    # Not in groups: a hash serves four weights.
    assert len(np.unique((mask[1, :1000] > 0).reshape(-1, 4), axis=0)) > 4
    expected = mask[1] * table[2]
    assert length == pytest.approx(np.linalg.norm(expected) if cosine else 1, rel=1e-5)
    assert_allclose(out[1], expected / length, rtol=1e-5)
    assert not out[0].any() and not mask[0].any()
    gradient = np.ones((2, width), np.float32)
    through(gradient, dropout, mask, 1)
    assert_array_equal(gradient[1], mask[1])
    assert (gradient[0] == 1).all()


OPTIMIZERS = [
    SGD(0.3),
    Adagrad(0.1),
    Adam(0.05, lazy=False),
    Adam(0.05, lazy=True),
]


def dense_reference(model_params, data, optimizer, decay, n_epochs):
    """Train with an L2 penalty on whole tables, moved in every batch, by plain NumPy."""
    _X, U, V = data
    tables = [U.astype(np.float64), V.astype(np.float64)]
    states = [[np.zeros_like(t), np.zeros_like(t)] for t in tables]
    step = 0
    for batches in model_params:
        for pairs, negatives in batches:
            step += 1
            lists = [negatives] * len(pairs)

            def loss(U, V, pairs=pairs, lists=lists):
                return reference.mf.softmax_loss(
                    U, V, pairs, lists, cosine=False, inverse=np.ones((N_USERS, 2))
                )

            for table, state, g in zip(
                tables, states, reference.mf.gradients(loss, *tables), strict=True
            ):
                touched = np.any(g != 0, axis=1, keepdims=True)
                rate = optimizer.learning_rate
                if isinstance(optimizer, Adam) and optimizer.lazy:
                    table *= 1 - rate * decay
                else:
                    g = g + decay * table
                    touched = np.ones_like(touched)
                if isinstance(optimizer, Adagrad):
                    state[0] += g * g
                    table -= rate * g / (np.sqrt(state[0]) + optimizer.epsilon)
                elif isinstance(optimizer, Adam):
                    b1, b2 = optimizer.beta_1, optimizer.beta_2
                    state[0] += touched * (1 - b1) * (g - state[0])
                    state[1] += touched * (1 - b2) * (g * g - state[1])
                    table -= touched * (
                        rate / (1 - b1**step) * state[0]
                        / (np.sqrt(state[1] / (1 - b2**step)) + optimizer.epsilon)
                    )  # fmt: skip
                else:
                    table -= rate * g
    return tables


@pytest.mark.parametrize("optimizer", [OPTIMIZERS[-1], *slow_params(OPTIMIZERS[:-1])], ids=repr)
def test_lazy_weight_decay_is_exact(data, optimizer):
    X, U, V = data
    with watched_epochs() as seen:
        model = MFRecommender(
            WIDTH, loss="softmax", init=GivenTables(U, V),
            optimizer=optimizer, batch_size=4, max_iter=2,
            user_dropout=0, similarity="dot", temperature=1.0, weight_decay=0.05, n_negatives=3,
            negative_sampler=GivenNegatives(), random_state=0, n_jobs=2,
        ).fit(X)  # fmt: skip
    plan = []
    for _, epoch in seen:
        triples, bounds = triples_of(epoch), epoch.row_starts[epoch.batch_starts]
        lists = ((3 * b + np.arange(3)) % N_ITEMS for b in range(len(bounds) - 1))
        batches = (triples[begin:end] for begin, end in pairwise(bounds))
        plan.append(list(zip(batches, lists, strict=True)))
    assert len(plan[0]) > 5
    users, items = dense_reference(plan, data, optimizer, 0.05, 2)
    assert_allclose(model.user_factors_, users, atol=3e-4)
    assert_allclose(model.item_factors_, items, atol=3e-4)


@pytest.mark.parametrize("beta_1", [0.9, 0.99])
@pytest.mark.parametrize("max_iter, atol", [(1, 1e-5), (2, 5e-5)])
def test_momentum_of_rows_that_are_not_in_batches(beta_1, max_iter, atol):
    X = sparse.csr_array(np.tile(np.eye(20, dtype=np.float32), (25, 1)))
    params = {
        "loss": "softmax", "n_negatives": 4, "batch_size": 1, "max_iter": max_iter,
        "early_stopping": False, "user_dropout": 0, "random_state": 0,
        "optimizer": Adam(0.01, beta_1=beta_1, lazy=False),
    }  # fmt: skip
    model = MFRecommender(4, **params).fit(X)
    # With a decay, however small, every missed step is made in full.
    reference = MFRecommender(4, weight_decay=1e-30, **params).fit(X)
    assert_allclose(model.user_factors_, reference.user_factors_, atol=atol)


@pytest.mark.parametrize(
    "params",
    [
        *({"loss": name} for name in RANKING_LOSSES),
        {"temperature": AdapTau(warm_up=1)},
        {"negative_sampler": "full"},
        # Several tiles of rows, of negatives and of columns.
        {"n_components": 130, "batch_size": 900, "n_negatives": 300},
        {"negative_sampler": Uniform(shared=False), "n_negatives": 5},
        {"loss": "bpr", "n_components": 40},
        {"loss": "mawu", "weight_decay": 1e-3, "optimizer": Adam(0.01, lazy=False)},
        {"loss": "psl", "negative_sampler": "popularity"},
        {"loss": "slatk", "temperature": AdapTau(warm_up=1)},
    ],
    ids=str,
)
def test_bitwise_reproducible_for_any_number_of_threads(params):
    X, (one, *others) = models_of_threads((1, 2, 5, 16), **params)
    vectors, found = one.transform(X), one.recommend(users=np.arange(160))[0]
    for other in others:
        assert_array_equal(vectors, other.transform(X))
        assert_array_equal(found, other.recommend(users=np.arange(160))[0])
