"""The gradient of a batch by vectors of users and items, which the rule STORE returns."""

import numpy as np
import pytest
from helpers import slow_params
from numpy.testing import assert_allclose, assert_array_equal

from freqfm import backends
from freqfm.backends.base import STORE, Batches, RankingProblem, TrainedTable
from freqfm.formulas import codes
from freqfm.losses import BSL, PSL, RANKING_LOSSES, SLatK, Softmax
from freqfm.samplers import proposal_of

N_USERS, N_ITEMS, WIDTH = 5, 8, 3
RNG = np.random.default_rng(0)
KNOWN = RNG.random((N_USERS, N_ITEMS)) < 0.4
KNOWN[3] = False
USERS, ITEMS = (found.astype(np.int32) for found in np.nonzero(KNOWN))
N_PAIRS = len(ITEMS)
WEIGHTS = RNG.integers(1, 4, N_PAIRS).astype(np.float32)
SHARE = RNG.random(N_ITEMS) + 0.2
SHARE /= SHARE.sum()
# Draws that do not depend on the user: differences of the loss leave them as they are.
GIVEN = proposal_of(SHARE)


def negatives_code(loss):
    """Return the code of the lists that a loss is given unless it draws no negatives."""
    return -1 if loss.n_negatives is None else codes.NEGATIVES_SHARED


CASES = {
    **{name: (make(), negatives_code(make())) for name, make in RANKING_LOSSES.items()},
    "shared, of dot products": (Softmax(), codes.NEGATIVES_SHARED),
    "shared, dropped": (Softmax(), codes.NEGATIVES_SHARED),
    "separate": (BSL(constant=1.3), codes.NEGATIVES_SEPARATE),
    "in batch": (Softmax(), codes.NEGATIVES_IN_BATCH),
    "full": (Softmax(), codes.NEGATIVES_FULL),
    "drawn": (Softmax(), codes.NEGATIVES_DRAWN),
    "PSL, drawn": (PSL(), codes.NEGATIVES_DRAWN),
    "SL@K, full": (SLatK(weight_temperature=0.5), codes.NEGATIVES_FULL),
}


def one_batch(one_positive_a_row):
    """Return the positives in one batch."""
    starts = np.arange(N_PAIRS)
    if not one_positive_a_row:
        starts = np.flatnonzero(np.diff(USERS, prepend=-1))
    return Batches(
        items=ITEMS,
        weights=WEIGHTS,
        row_starts=np.append(starts, N_PAIRS).astype(np.int64),
        row_users=USERS[starts],
        batch_starts=np.array([0, len(starts)]),
    )


def trainer_of(name, average, n_threads):
    loss, negatives_code = CASES[name]
    indptr = np.concatenate([[0], np.cumsum(KNOWN.sum(axis=1))])
    constants = loss.constants(N_USERS, N_ITEMS, N_PAIRS)
    if "thresholds" in constants:
        constants["thresholds"] = np.linspace(-0.5, 0.5, N_USERS).astype(np.float32)
    problem = RankingProblem(
        family=loss.family,
        constants=constants,
        cosine="dot" not in name,
        dropout=0.3 if "dropped" in name else 0.0,
        degrees=np.diff(indptr),
        known=(indptr[:-1], indptr[1:], ITEMS),
        n_items=N_ITEMS,
        width=WIDTH,
        batch_size=N_PAIRS,
        block=loss.block if loss.block == 1 else None,
        negatives_code=negatives_code,
        n_negatives=4,
        rule=STORE._replace(average=average),
        seed=3,
        include_positive=name in ("separate", "drawn"),
        formulas=loss.replacements(),
    )
    return backends.get().ranking_trainer(problem, n_threads=n_threads)


def random_tables(name):
    generator = np.random.default_rng(1)
    sizes = {"user_factors": (N_USERS, WIDTH), "item_factors": (N_ITEMS, WIDTH)}
    tables = {side: generator.normal(size=shape) for side, shape in sizes.items()}
    if getattr(CASES[name][0], "margins", False):
        for side, n in {"user_margins": N_USERS, "item_margins": N_ITEMS}.items():
            tables[side] = generator.uniform(0.3, 0.7, (n, 1))
    none = np.zeros((0, 1), dtype=np.float32)
    return {
        side: TrainedTable(
            weights.astype(np.float32),
            np.zeros(len(weights), np.float32),
            np.zeros(weights.shape, np.float32),
            none,
        )
        for side, weights in tables.items()
    }


def differences(loss, array, step):
    """Return the gradient of a loss by an array that it reads, by differences of fourth order."""
    gradient = np.zeros(array.shape)
    for at in np.ndindex(array.shape):
        kept, values = array[at], []
        for n in (-2, -1, 1, 2):
            array[at] = kept + np.float32(n * step)
            values.append(loss())
        array[at] = kept
        gradient[at] = (values[0] - values[3] + 8 * (values[2] - values[1])) / (12 * step)
    return gradient


SLOW = ["drawn", "PSL, drawn", "SL@K, full"]


# Each family and each kind of negatives without averaging too.
@pytest.mark.parametrize(
    ("name", "average"),
    [
        *((name, True) for name in CASES if name not in SLOW),
        *slow_params((name, True) for name in SLOW),
        *((name, False) for name in ("bpr", "mawu", "separate", "in batch", "full", "PSL, drawn")),
    ],
)
def test_stored_gradients_equal_differences_of_the_loss(name, average):
    generator = np.random.default_rng(2)
    inverse = generator.uniform(1, 3, (N_USERS, 2)).astype(np.float32)
    statistics = np.zeros((N_USERS, 3))
    tables = random_tables(name)
    before = [table.weights.copy() for table in tables.values()]
    # Thousands of losses are quicker without threads.
    with trainer_of(name, average, 2) as trainer, trainer_of(name, average, 1) as alone:
        for each in (trainer, alone):
            each.begin_epoch(0, one_batch(trainer.block == 1), tables, 0, np.ones((2, 2)))
        negatives = None
        if CASES[name][1] in (codes.NEGATIVES_SHARED, codes.NEGATIVES_SEPARATE):
            shape = trainer.lists_shape(0, 1)
            negatives = generator.integers(0, N_ITEMS, shape, dtype=np.int32)

        def loss(trainer=alone):
            total, weight = trainer.train(0, 1, GIVEN, negatives, inverse, statistics)
            return total / weight if average else total

        assert loss() == loss(trainer)
        stored = [table.first.copy() for table in tables.values()]
        for table, weights in zip(tables.values(), before, strict=True):
            assert_array_equal(table.weights, weights)
        expected, finer = (
            [differences(loss, table.weights, step) for table in tables.values()]
            for step in (0.03, 0.015)
        )
    assert any(abs(gradient).max() > 0.05 for gradient in expected)
    scale = 1 if average else WEIGHTS.sum()
    for gradient, one, other in zip(stored, expected, finer, strict=True):
        # Near a kink, as that of a hinge, differences depend on the step.
        smooth = abs(one - other) < 2e-4 * scale
        assert smooth.mean() > 0.5
        assert_allclose(gradient[smooth] / scale, one[smooth] / scale, atol=2e-4)
