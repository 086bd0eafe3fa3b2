"""What shards have trained is merged by the formulas that the documentation states; no cluster."""

from types import SimpleNamespace

import numpy as np
import pytest
from helpers import each
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse

from freqfm import FMClassifier, FMRegressor, MFRecommender, RaFMClassifier
from freqfm.estimators.fm.base import checked_optimizer
from freqfm.estimators.fm.trainer import RawRows, Shard
from freqfm.optimizers import SGD, Adagrad, Adam, RowwiseAdagrad

pytest.importorskip("distributed")

from freqfm.dask import _base, _shards
from freqfm.dask._shards import (
    LARGEST,
    MEANS,
    SHARES,
    SUMS,
    Layout,
    Piece,
    is_summed,
    merge,
)

# How often each of three shards has seen each of six rows; nobody has seen the last.
COUNTS = np.array([[1, 4, 0, 2, 8, 0], [1, 0, 3, 2, 1, 0], [2, 0, 0, 2, 1, 0]], dtype=np.float32)


def piece_of(generator, counts=(), losses=()):
    rows = generator.normal(size=(2, 6, 3)).astype(np.float32)
    return Piece([rows], list(counts), list(losses))


@each("rule", [SHARES, MEANS, SUMS, LARGEST])
@each("scale", [0.0, 0.7, 1.0, 1.4, 3.0])
def test_rows_are_merged_by_how_often_shards_have_seen_them(rule, scale):
    generator = np.random.default_rng(0)
    before = piece_of(generator, losses=[(0.5, 1.0)])
    trained = [
        piece_of(generator, [np.ones(1, np.float32), counts], [(k, 2.0)])
        for k, counts in enumerate(COUNTS)
    ]
    merged = merge([(1, rule)], scale, before, *trained)
    start, after = before.tables[0], [piece.tables[0] for piece in trained]
    total = COUNTS.sum(axis=0)
    shares = np.where(total > 0, COUNTS / np.maximum(total, 1), 1 / 3)
    if rule == LARGEST:
        expected = np.max(after, axis=0)
    else:
        factors = {
            SHARES: np.minimum(np.maximum(scale * np.sqrt(shares), shares), 1),
            MEANS: shares,
            SUMS: np.ones_like(shares),
        }[rule]
        moved = zip(factors, after, strict=True)
        expected = start + sum(factor[:, None] * (rows - start) for factor, rows in moved)
        # Rows that one shard alone has seen are its own.
        expected[:, 1], expected[:, 2] = after[0][:, 1], after[1][:, 2]
        assert_array_equal(merged.tables[0][:, 1:3], expected[:, 1:3])
    assert_allclose(merged.tables[0], expected, rtol=1e-5, atol=1e-6)
    assert merged.losses == [(0.5, 1.0), (0, 2.0), (1, 2.0), (2, 2.0)]
    assert_array_equal(before.tables[0], start)


@pytest.mark.parametrize("n_pieces", [1, 2, 3, 7])
def test_pieces_are_all_of_a_model_and_have_its_losses_once(clicks, n_pieces):
    X, y = clicks
    model = FMClassifier(3, optimizer="adam", max_iter=2, random_state=0).fit(X, y)
    layout = Layout(model, checked_optimizer(model))
    for table in layout.tables:
        table.rows[...] = np.random.default_rng(0).integers(1, 99, table.rows.shape)
    counts = layout.counts(np.arange(12.0), 60.0)
    pieces = [layout.piece(j, n_pieces, counts, [(0.5, 1.0)]) for j in range(n_pieces)]
    assert [len(piece.losses) for piece in pieces] == [1] + [0] * (n_pieces - 1)
    whole = [table.rows.copy() for table in layout.tables]
    for table in layout.tables:
        table.rows[...] = 0
    assert not model.factors_.any()
    layout.assign(pieces)
    for table, kept in zip(layout.tables, whole, strict=True):
        assert_array_equal(table.rows, kept)
    for kind, expected in enumerate(counts):
        assert_array_equal(np.concatenate([piece.counts[kind] for piece in pieces]), expected)


def rules_of(layout):
    """Return the rules of a layout's tables, by the addresses of their arrays."""
    return {table.rows.__array_interface__["data"][0]: table.rule for table in layout.tables}


def address(array):
    return array.__array_interface__["data"][0]


@each("optimizer", [SGD(0.1), Adagrad(0.1), RowwiseAdagrad(0.1), Adam(0.1)])
def test_sums_of_optimizers_add_up_and_averages_are_averaged(clicks, optimizer):
    assert is_summed(optimizer) == isinstance(optimizer, (Adagrad, RowwiseAdagrad))
    expected = SUMS if is_summed(optimizer) else MEANS
    X, y = clicks
    model = FMClassifier(3, optimizer=optimizer, max_iter=2, random_state=0).fit(X, y)
    found = rules_of(Layout(model, optimizer))
    (state,) = model._optimizer_states()
    assert found[address(state.intercept)] == expected
    assert found[address(state.intercept[2:])] == SUMS
    for name in ("linear_first", "linear_second", "factors_first", "factors_second"):
        array = getattr(state, name)
        assert not array.size or found[address(array)] == expected
    assert found[address(model.coef_)] == found[address(model.factors_)] == SHARES
    assert found[address(model.intercept_)] == MEANS
    assert found[address(model._n_steps)] == LARGEST


def test_counters_add_up(clicks):
    X, y = clicks
    model = FMClassifier(3, optimizer="cf_sgd", max_iter=2, random_state=0).fit(X, y)
    (state,) = model._optimizer_states()
    found = rules_of(Layout(model, checked_optimizer(model)))
    assert found[address(state.per_row)] == SUMS


def test_items_are_merged_and_users_are_not():
    X = sparse.random(30, 8, density=0.4, random_state=0, format="csr")
    model = MFRecommender(3, optimizer=Adam(0.1), max_iter=2, random_state=0).fit(X)
    layout = Layout(model, model.optimizer)
    found = rules_of(layout)
    assert found[address(model.item_factors_)] == SHARES
    assert found[address(model._training.optimizer["item_factors"]["first"])] == MEANS
    assert address(model.user_factors_) not in found
    assert found[address(model._training.n_steps)] == LARGEST


@pytest.mark.slow
def test_rows_of_every_rank_have_the_counts_of_their_tokens(clicks):
    X, y = clicks
    held = np.diff(X.tocsc().indptr)
    model = RaFMClassifier((2, 4), rank_assignment=[15], max_iter=2, random_state=0).fit(X, y)
    layout = Layout(model, checked_optimizer(model))
    counts = layout.counts(held.astype(float), 60.0)
    high = np.flatnonzero(model.feature_ranks_ == 4)
    assert 0 < len(high) < 12 and set(high) != set(range(len(high)))
    of_widths = {table.rows.shape[2]: table for table in layout.tables if table.rule == SHARES}
    assert_array_equal(np.sort(counts[of_widths[4].counts]), np.sort(held[high]))
    # The vectors of each token, by its row, are moved by the token's count.
    token_of_row = np.argsort(model._layout().rows)
    assert_array_equal(counts[of_widths[2].counts], held[token_of_row])


# Numbers of several shards.


def test_variances_of_parts_are_those_of_all():
    generator = np.random.default_rng(0)
    parts = [generator.normal(1e6 + k, 1 + k, size=20 + 10 * k) for k in range(3)]
    weights = [generator.integers(0, 4, len(part)).astype(float) for part in parts]
    parts.append(np.full(4, 9.0))
    weights.append(np.zeros(4))
    found = np.array([_shards.moments(*of) for of in zip(parts, weights, strict=True)]).T
    values, weight = np.concatenate(parts), np.concatenate(weights)
    mean = np.average(values, weights=weight)
    variance = np.average((values - mean) ** 2, weights=weight)
    assert_allclose(_shards.pooled_variance(*found), variance, rtol=1e-9)
    for k in range(3):
        assert_allclose(found[:2, k], [weights[k].sum(), np.average(parts[k], weights=weights[k])])
    assert_array_equal(found[:, 3], 0)
    # Exactly: R^2 tells equal targets from others.
    assert _shards.moments(np.array([5.0, *[0.1] * 6]), np.arange(7.0))[2] == 0


def test_mean_loss_of_rounds_counts_their_weights():
    assert _base._mean([(0.3, 0.0)]) == 0.3
    assert _base._mean([(1.0, 3.0), (2.0, 1.0), (5.0, 0.0)]) == pytest.approx(1.25)


def test_every_shard_has_a_seed():
    seeds = [_shards.seed_of(7, shard) for shard in range(50)]
    assert seeds[0] == 7 and len(set(seeds)) == 50
    assert seeds != [_shards.seed_of(8, shard) for shard in range(50)]


def test_steps_of_merges_follow_the_loss():
    trainer = _base.Sharded.__new__(_base.Sharded)
    trainer._cluster, trainer.model = SimpleNamespace(workers=["a", "b"]), SimpleNamespace()
    trainer._start_merging(4)
    curve, scales = [], []
    # The loss falls, rises once, falls, and rises twice.
    for loss in (1.0, 0.8, 0.9, 0.7, 0.8, 0.75):
        trainer.model.loss_curve_ = np.array(curve)
        trainer._watch(loss)
        curve.append(loss)
        scales.append(trainer._scale)
    assert_allclose(scales, [1.05, 1.05**2, 1.05**2, 1.05**3, 1.05**3, 1.05**3 / 2])
    for _ in range(60):
        trainer._watch(0.1)
    # No longer than with all changes added up.
    assert trainer._scale == 2
    steps, other = trainer.extra(), _base.Sharded.__new__(_base.Sharded)
    other.restore_extra(steps)
    assert (other._scale, other._lowest, other._n_above) == (2, 0.1, 0)


def test_small_rises_are_noise_if_the_loss_has_fallen_far():
    trainer = _base.Sharded.__new__(_base.Sharded)
    trainer._cluster, trainer._least_rise = SimpleNamespace(workers=["a"]), 0.1
    trainer._start_merging(2)
    trainer.model = SimpleNamespace(loss_curve_=[1.0])
    for loss in (0.5, 0.54, 0.55, 0.56, 0.57):
        trainer._watch(loss)
    assert trainer._scale == pytest.approx(1.05**3 / 2)


def test_r2_of_all_shards_with_constant_targets_in_one():
    parts = [np.array([1.0, 2.0, 6.0]), np.full(5, 4.0)]
    weights, errors = [np.array([1.0, 2.0, 1.0]), np.ones(5)], [0.5, 0.25]
    facts = []
    for part, weight, error in zip(parts, weights, errors, strict=True):
        total, mean, variance = _shards.moments(part, weight)
        facts.append((1 - error / (variance or 1), total, mean, variance))
    trainer = _base.ShardedFMTrainer.__new__(_base.ShardedFMTrainer)
    trainer.model, trainer._retried = FMRegressor(), lambda work: facts
    weight, values = np.concatenate(weights), np.concatenate(parts)
    variance = _shards.moments(values, weight)[2]
    expected = 1 - np.average(errors, weights=[4, 5]) / variance
    assert trainer.validation_score() == pytest.approx(expected)
    # As facts of partitions: of one row each, and without any variance.
    assert _shards.score_of([(1, 0.0, 1.0, 3.0, 0.0), (1, 0.0, 1.0, 5.0, 0.0)], False) == 1
    for error, score in ((0.0, 1), (2.0, 0)):
        assert _shards.score_of([(4, error, 4.0, 3.0, 0.0)], False) == score


def test_rows_of_a_shard_are_held_out_and_shared_out_at_random(clicks):
    X, y = clicks
    raw = RawRows(X, y, None)
    shard = Shard(raw, FMClassifier(3), 7, np.array([0, 1]))
    assert shard.split(0.25).facts() == [(45, 15)]
    parts = _shards._parts(shard.rows, 4, 7)
    assert [len(part) for part in parts] == [15] * 4
    assert_array_equal(np.sort(np.concatenate(parts)), np.arange(60))
    assert all((np.diff(part) > 1).any() for part in parts)
    rows = _base.ShardedRows(None, [], [], 1, [30, 50, 40])
    assert rows.n_trained == 50
