"""Temperature strategies against their formulas."""

import numpy as np
import pytest
import reference.mf
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse

from freqfm import FastVAERecommender, MFRecommender
from freqfm.datasets import make_interactions
from freqfm.initializers import Normal
from freqfm.samplers import Full, InBatch, Popularity, Uniform
from freqfm.temperatures import (
    AdapTau,
    AdapTau0,
    CuTau,
    DensityTemperature,
    FixedTemperature,
    LearnedTemperature,
    LearnedUserTemperature,
    Snapshot,
)


@pytest.fixture
def snapshot():
    rng = np.random.default_rng(1)
    X = sparse.csr_array((rng.random((40, 30)) < 0.2).astype(np.float32))
    unit = [t / np.linalg.norm(t, axis=1, keepdims=True) for t in rng.normal(size=(2, 40, 6))]
    losses = rng.normal(3, 1, 40)
    weight = np.diff(X.indptr).astype(float)
    statistics = np.column_stack([losses * weight, weight, rng.normal(size=40)])
    return Snapshot(X, unit[0], unit[1][:30], statistics, n_known=X.nnz)


def refreshed(strategy, snapshot, epochs=(0,)):
    inverse = np.ones((40, 2), dtype=np.float32)
    state = np.zeros((40, 2))
    for epoch in epochs:
        strategy.refresh(epoch, inverse, state, snapshot)
    return inverse


def log_odds(X):
    degrees = np.diff(X.indptr)
    active = degrees > np.percentile(degrees, 20)
    return np.log(active.sum() * X.shape[1] / (2 * degrees[active].sum())), active


def test_fixed(snapshot):
    assert_allclose(refreshed(FixedTemperature(0.25), snapshot), 4)


def test_tau0_is_the_closed_form(snapshot):
    X, U, V, _, _ = snapshot
    odds, active = log_odds(X)
    assert_allclose(refreshed(AdapTau0(), snapshot, [4]), odds / 0.7, rtol=1e-6)
    assert_allclose(refreshed(AdapTau0(warm_up=None), snapshot, [99]), odds / 0.7, rtol=1e-6)
    cosines = U @ V.T
    pairs = (X.toarray() > 0) & active[:, None]
    gap = cosines[pairs].mean() - cosines[active].mean()
    strategy = AdapTau0(smallest_gap=1e-6)
    assert_allclose(refreshed(strategy, snapshot, [5]), odds / max(gap, 1e-6), rtol=1e-5)
    assert_allclose(refreshed(AdapTau0(smallest_gap=2), snapshot, [5]), odds / 2, rtol=1e-5)


@pytest.mark.parametrize("form", ["paper", "reference"])
@pytest.mark.parametrize("threshold, beta", [("mean", 0.5), (0.9, 0.125), (0.5, 1.0)])
def test_adap_tau_solves_its_equation(snapshot, form, threshold, beta):
    statistics = snapshot.statistics
    strategy = AdapTau(form=form, threshold=threshold, beta=beta)
    inverse = refreshed(strategy, snapshot, [6]).astype(float)
    overall = refreshed(AdapTau0(), snapshot, [6])[0, 0].astype(float)
    loss = statistics[:, 0] / statistics[:, 1]
    m = loss.mean() if threshold == "mean" else np.quantile(loss, threshold)
    x = np.maximum((loss - m) / (2 * beta), -1 / np.e)
    w = -np.log(inverse[:, 1] / overall)
    # Around its first point Lambert's function is steep.
    assert_allclose(w * np.exp(w), x, atol=2e-5)
    assert (inverse[:, 1] <= overall * np.e * 1.001).all()
    assert strategy.include_positive == (form == "paper")
    if form == "paper":
        assert_allclose(inverse[:, 0], inverse[:, 1])
    else:
        assert_allclose(inverse[:, 0], overall)


def test_adap_tau_warms_up_with_one_temperature(snapshot):
    inverse = refreshed(AdapTau(warm_up=3), snapshot, [0, 1, 2])
    assert np.ptp(inverse) == 0
    assert np.ptp(refreshed(AdapTau(warm_up=3), snapshot, [0, 1, 2, 3])) > 0


def test_learned_temperatures_descend(snapshot):
    statistics = snapshot.statistics.copy()
    statistics[:, 2] = np.where(np.arange(40) % 2, 1.0, -3.0)
    steps = refreshed(
        LearnedUserTemperature(0.5, learning_rate=0.1),
        snapshot._replace(statistics=statistics),
        [0, 1],
    )
    assert (steps[1::2] < 2).all() and (steps[::2] > 2).all()
    one = refreshed(
        LearnedTemperature(0.5, learning_rate=0.1), snapshot._replace(statistics=statistics), [0, 1]
    )
    assert np.ptp(one) == 0 and one[0, 0] > 2


@pytest.mark.parametrize("cls", [LearnedTemperature, LearnedUserTemperature])
def test_learned_temperatures_take_the_steps_of_adam(snapshot, cls):
    strategy, rng = cls(0.5, learning_rate=0.1), np.random.default_rng(0)
    inverse, state = np.ones((40, 2), dtype=np.float32), np.zeros((40, 2))
    strategy.refresh(0, inverse, state, snapshot)
    expected, mean, square = np.full(40, 2.0), 0.0, 0.0
    for epoch in (1, 2, 3):
        # The weights differ between epochs, too: otherwise Adam would divide by them.
        statistics = np.column_stack([rng.random(40), rng.uniform(1, 9, 40), rng.normal(size=40)])
        strategy.refresh(epoch, inverse, state, snapshot._replace(statistics=statistics))
        total = statistics if strategy.per_user else statistics.sum(axis=0, keepdims=True)
        gradient = total[:, 2] / total[:, 1] * expected
        mean, square = (mean + gradient) / 2, 0.9 * square + 0.1 * gradient**2
        step = mean / (1 - 0.5**epoch) / np.sqrt(square / (1 - 0.9**epoch))
        expected = expected * np.exp(-0.1 * step)
        assert_allclose(inverse, np.column_stack([expected, expected]), rtol=1e-5)


def cu_tau_inverse(weights, n_hidden, users, initial):
    """Return 1 / tau of each user, from the formula and not from the layers of the class."""
    n = n_hidden * users.shape[1]
    W, b = weights[:n].reshape(n_hidden, -1), weights[n : n + n_hidden]
    w, c = weights[-n_hidden - 1 : -1], weights[-1]
    return np.array(
        [
            np.exp(sum(w[k] * np.tanh(W[k] @ x + b[k]) for k in range(n_hidden)) + c) / initial
            for x in users
        ]
    )


def test_cu_tau_takes_steps_along_the_gradient(snapshot, monkeypatch):
    monkeypatch.setattr("freqfm.temperatures._USERS", 7)
    strategy, rng = CuTau(0.2, n_hidden=3, learning_rate=0.03), np.random.default_rng(2)
    state, inverse = np.zeros(strategy.state_shape(6)), np.ones((40, 2), dtype=np.float32)
    strategy.refresh(0, inverse, state, snapshot)
    assert_allclose(inverse, 5)
    # So that every layer has a gradient. Without statistics no step is taken.
    state[0, :-1] += rng.normal(scale=0.3, size=state.shape[1] - 1)
    strategy.refresh(0, inverse, state, snapshot._replace(statistics=np.zeros((40, 3))))
    mean, square = 0.0, 0.0
    for step in (1, 2, 3):
        before = state[0, :-1].copy()
        assert_allclose(inverse[:, 0], cu_tau_inverse(before, 3, snapshot.users, 0.2), rtol=1e-6)
        statistics = np.column_stack([rng.random(40), rng.uniform(1, 9, 40), rng.normal(size=40)])
        by_inverse = statistics[:, 2] / statistics[:, 1].sum()
        above, below = (
            [by_inverse @ cu_tau_inverse(before + move, 3, snapshot.users, 0.2) for move in moves]
            for moves in (1e-5 * np.eye(len(before)), -1e-5 * np.eye(len(before)))
        )
        gradient = np.subtract(above, below) / 2e-5
        mean, square = (mean + gradient) / 2, 0.9 * square + 0.1 * gradient**2
        expected = mean / (1 - 0.5**step) / np.sqrt(square / (1 - 0.9**step))
        strategy.refresh(step, inverse, state, snapshot._replace(statistics=statistics))
        assert_allclose(before - state[0, :-1], 0.03 * expected, rtol=1e-3)
        assert (inverse[:, 0] == inverse[:, 1]).all() and np.ptp(inverse) > 0


def test_cu_tau_in_a_recommender():
    X = make_interactions(80, 60, 1500, random_state=0)
    params = {"loss": "softmax", "temperature": CuTau(learning_rate=0.05), "random_state": 0}
    straight = MFRecommender(8, max_iter=4, n_jobs=2, **params).fit(X)
    assert np.ptp(straight.user_temperatures_) > 0
    model = MFRecommender(8, max_iter=2, warm_start=True, **params).fit(X).fit(X)
    assert_array_equal(model.item_factors_, straight.item_factors_)
    assert_array_equal(model.user_temperatures_, straight.user_temperatures_)
    # New users have temperatures by their vectors. Another strategy has another state.
    more = make_interactions(90, 60, 1500, random_state=1)
    model.partial_fit(more)
    assert len(np.unique(model.user_temperatures_[80:])) > 5
    for other in (CuTau(n_hidden=3), "adap_tau", "learned_user", "cu_tau"):
        model.set_params(temperature=other).fit(more)
        assert np.isfinite(model.user_temperatures_).all()
    with pytest.raises(ValueError, match="cu_tau"):
        FastVAERecommender(4, temperature="cu_tau").fit(X)


class Remembering(FixedTemperature):
    """A fixed temperature that keeps the statistics it is shown."""

    statistics_wanted = True
    looks_at_vectors = True
    include_positive = True

    def refresh(self, epoch, inverse, state, snapshot):
        super().refresh(epoch, inverse, state, snapshot)
        self.seen_.append(
            (snapshot.users.copy(), snapshot.items.copy(), snapshot.statistics.copy())
        )


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
@pytest.mark.parametrize("sampler", [Full(), InBatch(), Uniform(), Popularity(shared=False)])
def test_statistics_of_users(similarity, sampler):
    # With steps too small to matter, statistics are those of the starting vectors.
    rng = np.random.default_rng(0)
    X = sparse.csr_array((rng.random((12, 9)) < 0.4) * rng.integers(1, 3, (12, 9)), dtype=float)
    strategy = Remembering(0.5)
    strategy.seen_ = []
    MFRecommender(
        4, loss="softmax", temperature=strategy,
        negative_sampler=sampler, similarity=similarity, max_iter=2,
        learning_rate=1e-12, user_dropout=0, batch_size=1000, random_state=0, init=Normal(1.0),
        n_negatives=None if isinstance(sampler, (Full, InBatch)) else 4000,
    ).fit(X)  # fmt: skip
    U, V, statistics = strategy.seen_[1]
    scores = reference.mf.similarities(U.astype(float), V.astype(float), similarity == "cosine")
    dense = X.toarray()
    counts = (dense > 0).sum(axis=0)
    dense = dense * (counts / (counts + 1))
    assert_allclose(statistics[:, 1], dense.sum(axis=1), rtol=1e-6)
    # How often each item is expected among the negatives, and the correction of its logit.
    n, log_q = np.ones(9), np.zeros(9)
    if isinstance(sampler, (InBatch, Popularity)):
        log_q = sampler.proposal(counts).log_q
        n = counts if isinstance(sampler, InBatch) else 4000 * np.exp(log_q) / 9
    elif isinstance(sampler, Uniform):
        n = np.full(9, 4000 / 9)
    at_one = np.log((n * np.exp(scores)).sum(axis=1))
    losses = (dense * (at_one[:, None] - scores)).sum(axis=1)
    exact = isinstance(sampler, (Full, InBatch))
    assert_allclose(statistics[:, 0], losses, rtol=1e-4 if exact else 0.02)
    share = n * np.exp(2 * scores - log_q)
    share /= share.sum(axis=1, keepdims=True)
    derivatives = (dense * ((share * scores).sum(axis=1, keepdims=True) - scores)).sum(axis=1)
    assert_allclose(statistics[:, 2], derivatives, rtol=1e-3, atol=1e-4 if exact else 0.2)


def test_density_temperature(snapshot):
    odds, _ = log_odds(snapshot.X)
    assert_allclose(
        refreshed(DensityTemperature(3, slope=0.5, shrinkage=0), snapshot),
        3 + 0.5 * odds,
        rtol=1e-6,
    )
    snapshot = snapshot._replace(n_known=900)
    few = refreshed(DensityTemperature(3, slope=0.5, shrinkage=1600), snapshot)
    assert_allclose(few, 0.6 * (3 + 0.5 * odds), rtol=1e-6)


def test_density_temperature_counts_earlier_interactions():
    # A few more interactions do not turn a small log into a large one.
    X = sparse.csr_array((np.random.default_rng(0).random((300, 200)) < 0.2).astype(np.float32))
    model = MFRecommender(4, max_iter=1, random_state=0).fit(X)
    before = model.temperature_
    few = MFRecommender(4, max_iter=1, random_state=0).fit(X[:20])
    assert few.temperature_ > 2 * before
    model.partial_fit(X[:20])
    assert_allclose(model.temperature_, before, rtol=0.1)


@pytest.mark.parametrize("name", ["adap_tau", "learned_user"])
def test_users_without_new_interactions_keep_their_temperatures(name):
    X = make_interactions(80, 60, 1500, random_state=0)
    model = MFRecommender(8, loss="softmax", temperature=name, max_iter=10, random_state=0).fit(X)
    # The first call still uses what the last epoch of fit has found.
    for user in range(3):
        before = model.user_temperatures_
        rows = sparse.csr_array((np.ones(3), ([user] * 3, [1, 2, 3])), shape=X.shape)
        model.partial_fit(rows)
    after = model.user_temperatures_
    assert len(np.unique(after)) > 75  # Two users may be equal after rounding.
    if name == "learned_user":
        assert_array_equal(after[3:], before[3:])
    else:  # The temperature of all users has changed a little.
        assert np.corrcoef(after[3:], before[3:])[0, 1] > 0.999
