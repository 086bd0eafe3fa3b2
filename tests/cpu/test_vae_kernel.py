"""The variational autoencoder's gradients, softmaxes and bitwise reproducibility."""

import numpy as np
import pytest
from helpers import most_popular, slow_params
from numpy.testing import assert_allclose, assert_array_equal
from reference.vae import differences, negative_log_likelihood, objective, unit
from scipy import sparse
from test_numpy_backend import covering, label

from freqfm import FastVAERecommender, backends
from freqfm.backends.base import AutoencoderProblem, Histories, Stream, TrainedTable
from freqfm.backends.cpu.vae import N_CHUNKS, TILE, AutoencoderTrainer
from freqfm.datasets import make_interactions
from freqfm.estimators.recommenders.interactions import Interactions
from freqfm.estimators.recommenders.vae import _NOISE, VAETrainer
from freqfm.estimators.state import make_rule
from freqfm.formulas.rng import key_of
from freqfm.metrics import ndcg_at_k
from freqfm.model_selection import holdout_interactions
from freqfm.optimizers import OPTIMIZERS, SGD, Adam
from freqfm.samplers import MIDX, SAMPLERS, Popularity, Uniform


def small_log(n_users=9, n_items=13, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.integers(1, 4, (n_users, n_items)) * (rng.random((n_users, n_items)) < 0.4)
    X[np.arange(n_users), rng.integers(0, n_items, n_users)] = 1
    return sparse.csr_array(X.astype(np.float32))


# One step of SGD moves every array by minus its gradient.


CASES = covering(
    temperature=[None, 0.4],
    hidden=[(7,), (6, 5)],
    decoder=[(), (5,), (6, 4)],
    activation=["tanh", "relu"],
)


@pytest.mark.parametrize("case", [CASES[0], *slow_params(CASES[1:])], ids=label)
def test_every_gradient_equals_finite_differences(case):
    temperature, hidden, decoder, activation = case.values()
    X = small_log()
    model = FastVAERecommender(
        3,
        hidden_layer_sizes=hidden,
        decoder_layer_sizes=decoder,
        activation=activation,
        similarity="dot" if temperature is None else "cosine",
        temperature=temperature,
        kl_weight=0.3,
        kl_warm_up=1,
        n_samples=2,
        dropout=0,
        early_stopping=False,
        optimizer=SGD(1e-30),
        max_iter=1,
        random_state=3,
        learning_rate=None,
    )
    start = model.fit(X)
    rng = np.random.default_rng(0)
    for layer in start.layers_:
        layer[-1] = rng.standard_normal(layer.shape[1])  # away from the kinks of relu
    before = [array.astype(np.float64) for array in start._tables().values()]
    model.set_params(warm_start=True, optimizer=SGD(1.0)).fit(X)
    # The noise of the second epoch, of two samples of each user.
    indices = np.arange(2 * X.shape[0] * 3).reshape(2, X.shape[0], 3)
    noise = backends.get().standard_normal(Stream(model._seed, 1, _NOISE), indices)
    dense = X.toarray().astype(np.float64)

    def loss(arrays):
        inputs, items, *layers = arrays
        return objective(
            dense, inputs, items, layers, len(hidden), noise, kl_weight=0.3, activation=activation,
            temperature=temperature,
        )  # fmt: skip

    value = loss(before)
    assert model.loss_curve_[-1] == pytest.approx(value * X.shape[0] / X.sum(), rel=1e-5)
    for array, after, gradient in zip(
        before, model._tables().values(), differences(loss, before), strict=True
    ):
        assert_allclose(array - after, gradient, rtol=2e-5, atol=3e-6)


def used(vectors, n_unit):
    """Return vectors with their first ``n_unit`` numbers scaled to unit length."""
    return np.column_stack([unit(vectors[:, :n_unit]), vectors[:, n_unit:]]) if n_unit else vectors


def train_items(X, vectors, queries, proposal=None, n_draws=0, key=0, size=1, n_unit=0):
    """Return the losses and both gradients of one batch, by a step of SGD."""
    n = len(queries)
    empty = np.zeros((0, 0), dtype=np.float32)
    none = np.zeros(0, dtype=np.float32)
    items = TrainedTable(vectors.copy(), none, empty, empty)
    problem = AutoencoderProblem(
        rule=make_rule(SGD(1.0), 0.0, "batch"),
        input_width=1,
        item_width=vectors.shape[1],
        n_unit=n_unit,
        n_samples=1,
        n_queries=n,
        n_positives=X.nnz,
        n_draws=n_draws,
    )
    histories = Histories(X.indptr.astype(np.int64), X.indices.astype(np.int32), X.data)
    totals = X.sum(axis=1).astype(np.float32)
    tables = {
        "inputs": TrainedTable(vectors[:1, :1].copy(), none, empty, empty),
        "items": items,
    }
    with backends.get().autoencoder_trainer(problem, size) as trainer:
        trainer.begin_epoch(tables, 0, np.ones((2, 2)), proposal)
        gradients, losses = trainer.step_items(
            queries, histories, totals, np.float32(1 / n), 1, Stream(0, key, 0)
        )
    return losses, gradients, vectors - items.weights


def run_sampled(X, vectors, queries, sampler, n_draws, key, n_unit=0):
    counts = np.bincount(X.indices, minlength=X.shape[1])
    proposal = sampler.fit(used(vectors, n_unit), counts, random_state=0).proposal_
    proposal = proposal._replace(n_items=len(vectors))
    return train_items(X, vectors, queries, proposal, n_draws, key, n_unit=n_unit)


@pytest.mark.parametrize("n_items", [1, 13, TILE + 3, TILE * N_CHUNKS * 2 + 5])
@pytest.mark.parametrize("n_unit", [0, 3])
def test_full_softmax_equals_the_reference(n_unit, n_items):
    rng = np.random.default_rng(0)
    X = sparse.random(6, n_items, min(1, 20 / n_items), random_state=rng, dtype=np.float32)
    X = sparse.csr_array(X)
    vectors = rng.standard_normal((n_items, 4)).astype(np.float32)
    queries = (3 * rng.standard_normal((6, 4))).astype(np.float32)
    losses, by_queries, by_vectors = train_items(X, vectors, queries, n_unit=n_unit)
    dense = X.toarray().astype(np.float64)
    items = used(vectors.astype(np.float64), n_unit)
    scores = queries.astype(np.float64) @ items.T
    shares = np.exp(scores - scores.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    expected = [
        negative_log_likelihood(q, v, x)
        for q, v, x in zip(queries.astype(float), [items] * 6, dense, strict=True)
    ]
    assert_allclose(losses, expected, rtol=1e-5, atol=1e-5)
    by_scores = (shares * dense.sum(axis=1, keepdims=True) - dense) / 6
    assert_allclose(by_queries, by_scores @ items, rtol=1e-4, atol=1e-5)
    expected, along = by_scores.T @ queries, items[:, :n_unit]
    by_unit = expected[:, :n_unit]
    by_unit -= (by_unit * along).sum(axis=1, keepdims=True) * along
    by_unit /= np.linalg.norm(vectors[:, :n_unit], axis=1, keepdims=True)
    assert_allclose(by_vectors, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_extreme_scores_do_not_overflow():
    rng = np.random.default_rng(0)
    X = small_log(4, 30)
    vectors = 50 * rng.standard_normal((30, 4)).astype(np.float32)
    queries = 50 * rng.standard_normal((4, 4)).astype(np.float32)
    sampler = MIDX("uniform", n_codewords=4)
    drawn = run_sampled(X, vectors, queries, sampler, 20, 0)
    for outcome in (train_items(X, vectors, queries), drawn):
        assert all(np.isfinite(part).all() for part in outcome)


@pytest.mark.slow
@pytest.mark.parametrize("n_unit", [0, 2, 3])
def test_sampled_gradient_equals_finite_differences(n_unit):
    # The draws and their log q are those of the kernel; the objective given them is written here.
    rng = np.random.default_rng(1)
    X = small_log(3, 20)
    vectors = rng.standard_normal((20, 3)).astype(np.float32)
    queries = rng.standard_normal((3, 3)).astype(np.float32)
    sampler = MIDX("popularity", n_codewords=3)
    counts = np.bincount(X.indices, minlength=20)
    sampler.fit(used(vectors, n_unit), counts, random_state=0)
    log_q = sampler.log_proba(queries) + np.log(20)
    losses, by_queries, by_vectors = run_sampled(X, vectors, queries, sampler, 8, 5, n_unit)
    # A query's draws depend only on the key.
    proposal = sampler.proposal_._replace(n_items=len(vectors))
    ids, _ = backends.get().draw(proposal, queries, np.uint64(key_of(Stream(0, 5, 0))), 8)
    dense = X.toarray().astype(float)

    def loss(arrays):
        q, v = arrays
        total = 0.0
        for u in range(3):
            z = used(v, n_unit) @ q[u] - log_q[u]
            drawn = np.exp(z[ids[u]]).sum()
            for i in np.flatnonzero(dense[u]):
                total += dense[u, i] * (np.log(drawn + np.exp(z[i])) - z[i])
        return total / 3

    arrays = [queries.astype(float), vectors.astype(float)]
    # Reported losses estimate those of the softmax over all items, of scores without corrections.
    offset = (dense * (np.log(20 / 8) - log_q)).sum() / 3
    assert_allclose(losses.sum() / 3, loss(arrays) + offset, rtol=1e-5)
    by_q, by_v = differences(loss, arrays)
    assert_allclose(by_queries, by_q, atol=2e-5)
    assert_allclose(by_vectors, by_v, atol=2e-5)


@pytest.mark.slow
def test_bias_of_the_sampled_gradient_shrinks_as_draws_come_closer_to_the_softmax():
    rng = np.random.default_rng(2)
    n_lists = 2000  # of each row, drawn in one batch
    X = sparse.csr_array(np.tile(np.eye(4, 60, dtype=np.float32), (n_lists, 1)))
    vectors = rng.standard_normal((60, 6)).astype(np.float32)
    queries = np.tile(1.5 * rng.standard_normal((4, 6)).astype(np.float32), (n_lists, 1))
    _, exact, _ = train_items(X[:4], vectors, queries[:4])

    def bias(sampler, n_draws):
        _, drawn, _ = run_sampled(X, vectors, queries, sampler, n_draws, 0)
        return np.linalg.norm(drawn.reshape(n_lists, 4, 6).sum(axis=0) - exact)

    off, near, far = (
        bias(s, 5)
        for s in (MIDX("exact", n_codewords=4), MIDX("uniform", n_codewords=8), Uniform())
    )
    assert off < near < far
    # The positive in the sum is a draw too many of n + 1.
    assert bias(MIDX("exact", n_codewords=4), 50) < 0.2 * off


@pytest.mark.parametrize(
    "sampler", ["full", *(s for s in SAMPLERS if s not in ("full", "in_batch"))]
)
@pytest.mark.parametrize("optimizer", ["adam", Adam(0.01, lazy=False)], ids=["adam", "dense"])
def test_bitwise_reproducible_for_any_number_of_threads(sampler, optimizer):
    X = make_interactions(60, 700, 900, random_state=0)
    options = {"negative_sampler": sampler, "optimizer": optimizer, "batch_size": 25}
    if sampler != "full":
        options["n_negatives"] = 30
    models = [
        FastVAERecommender(
            5, max_iter=1, random_state=1, n_jobs=n, learning_rate=None, weight_decay=0.01,
            early_stopping=optimizer == "adam", **options,
        ).fit(X)
        for n in (1, 2, 3)
    ]  # fmt: skip
    for model in models[1:]:
        for one, other in zip(model._tables().values(), models[0]._tables().values(), strict=True):
            assert_array_equal(one, other)
        assert_array_equal(model.loss_curve_, models[0].loss_curve_)


@pytest.mark.parametrize(
    "optimizer", ["adam", *slow_params(name for name in OPTIMIZERS if name != "adam")]
)
def test_every_optimizer_learns_at_its_default_rate(optimizer):
    X = make_interactions(600, 300, 20_000, n_clusters=8, noise=0.2, random_state=0)
    train, held_out = holdout_interactions(X, 0.2, random_state=0)
    model = FastVAERecommender(8, optimizer=optimizer, max_iter=3, early_stopping=False,
                               random_state=0).fit(train)  # fmt: skip
    assert model.loss_curve_[-1] < model.loss_curve_[0]
    found = ndcg_at_k(held_out, model.predict(train))
    assert found > ndcg_at_k(held_out, most_popular(train, 10))


@pytest.mark.parametrize("sampler", ["full", "midx_uniform"])
def test_rows_catch_up_with_dense_steps(monkeypatch, sampler):
    # Replayed when they are next read, or all after every batch: the same numbers.
    X = small_log(40, 30)
    params = {"negative_sampler": sampler, "optimizer": Adam(0.01, beta_1=0.3, lazy=False)}
    params |= {"batch_size": 4, "max_iter": 4, "random_state": 0, "n_jobs": 1}
    # Numbers of the same size: the steps of tiny ones follow rounding errors.
    params["init"] = "normal"
    lazily = FastVAERecommender(3, n_negatives=4 if sampler != "full" else None, **params).fit(X)
    sum_inputs = AutoencoderTrainer.sum_inputs

    def at_once(trainer, histories, step):
        trainer.catch_up(step - 1)
        return sum_inputs(trainer, histories, step)

    monkeypatch.setattr(AutoencoderTrainer, "sum_inputs", at_once)
    again = FastVAERecommender(3, n_negatives=4 if sampler != "full" else None, **params).fit(X)
    for one, other in zip(lazily._tables().values(), again._tables().values(), strict=True):
        assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def test_memory_of_the_full_softmax_does_not_grow_with_the_items():
    sizes = []
    for n_items in (1000, 50_000):
        X = sparse.csr_array(np.eye(50, n_items, dtype=np.float32))
        model = FastVAERecommender(5, max_iter=1, random_state=0, n_jobs=1).fit(X)
        task = VAETrainer(model, model._resolve_components(X, X), *[Interactions(X)] * 2, None, 1)
        sizes.append(sum(array.nbytes for array in task._trainer._scratch))
    assert sizes[0] == sizes[1]


def test_counters_of_items_and_layers_count_users():
    X = sparse.random(60, 30, density=0.1, random_state=0, format="csr")
    n_users = np.count_nonzero(np.diff(X.indptr))
    options = {"early_stopping": False, "random_state": 0}
    model = FastVAERecommender(4, optimizer="cf_sgd", max_iter=2, **options).fit(X)
    for name, state in model._training.optimizer.items():
        if name != "input_factors":
            assert (state["per_row"] == 2 * n_users).all()


@pytest.mark.slow
@pytest.mark.parametrize("rate, falls", [(None, True), (0.01, False)])
def test_the_default_rate_falls_over_a_fit_and_a_given_one_does_not(rate, falls):
    X = make_interactions(60, 30, 600, random_state=0)
    model = FastVAERecommender(4, learning_rate=rate, max_iter=1, random_state=0, n_jobs=1).fit(X)
    model.set_params(max_iter=60)
    task = VAETrainer(model, model._resolve_components(X, X), *[Interactions(X)] * 2, None, 1)
    moved, before = [], model.item_factors_.copy()
    for epoch in range(1, 62):
        task.run_epoch(epoch)
        moved.append(np.abs(model.item_factors_ - before).mean())
        before = model.item_factors_.copy()
    share = np.mean(moved[50:59]) / np.mean(moved[10:20])
    assert share < 0.3 if falls else share > 0.5
    # Later epochs still learn.
    assert moved[-1] > 0


@pytest.mark.slow
def test_popularity_sampler_draws_by_popularity():
    # With many draws, corrected by their log-probabilities, the step is that of all items.
    X = make_interactions(100, 50, 2000, random_state=0)
    params = {"max_iter": 1, "dropout": 0, "early_stopping": False, "batch_size": 100}

    def items(sampler, n_negatives, rate):
        model = FastVAERecommender(4, negative_sampler=sampler, n_negatives=n_negatives,
                                   optimizer=SGD(rate), random_state=0, **params)  # fmt: skip
        return model.fit(X).item_factors_

    start, expected = items("full", None, 1e-30), items("full", None, 1.0)
    found = items(Popularity(1.0), 5000, 1.0)
    assert np.linalg.norm(found - expected) < 0.2 * np.linalg.norm(expected - start)
