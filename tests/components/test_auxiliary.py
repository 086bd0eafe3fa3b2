"""Auxiliary terms: their values, gradients and place in training."""

import numpy as np
import pytest
from scipy import sparse

from freqfm import MFRecommender
from freqfm.auxiliary import AuxiliaryTerm, SimGCL, TermBatch
from freqfm.backbones import LightGCN

DENSE = np.random.default_rng(1).random((30, 20)) < 0.3
X = sparse.csr_array(DENSE.astype(np.float32))
SETTINGS = {
    "n_components": 4,
    "loss": "bpr",
    "max_iter": 2,
    "learning_rate": 0.01,
    "random_state": 0,
    "n_jobs": 1,
}


class Lengths(AuxiliaryTerm):
    """The squared lengths of users, times a weight; ``error`` is a factor of the gradients."""

    def __init__(self, weight=0.1, *, error=1.0):
        self.weight = weight
        self.error = error

    def value_and_gradients(self, batch):
        users = batch.user_vectors
        value = self.weight * (users**2).sum(dtype=np.float64)
        return value, 2 * self.error * self.weight * users, None


def make_batch(d=3, seed=0):
    """Return a batch of five users and six items with random vectors, in float64."""
    generator = np.random.default_rng(seed)
    return TermBatch(
        number=0,
        users=np.array([1, 3, 4, 7, 8]),
        items=np.array([0, 2, 3, 5, 6, 9]),
        user_vectors=generator.standard_normal((5, d)),
        item_vectors=generator.standard_normal((6, d)),
        pair_users=np.array([0, 1, 1, 2, 3, 4]),
        pair_items=np.array([0, 2, 3, 0, 5, 2]),
        pair_weights=np.ones(6, dtype=np.float32),
        generator=np.random.default_rng(1),
        user_counts=np.arange(1, 10),
        item_counts=np.arange(1, 11),
    )


def slopes(term, batch, size=1e-6):
    """Return the central differences of a term's value by each number of the vectors."""
    found = []
    for name in ("user_vectors", "item_vectors"):
        vectors = getattr(batch, name)
        slope = np.zeros_like(vectors)
        for place in np.ndindex(*vectors.shape):
            ends = []
            for sign in (1, -1):
                moved = vectors.copy()
                moved[place] += sign * size
                moved = batch._replace(**{name: moved, "generator": np.random.default_rng(1)})
                ends.append(term.value_and_gradients(moved)[0])
            slope[place] = (ends[0] - ends[1]) / (2 * size)
        found.append(slope)
    return found


def contrast(first, second, own, temperature):
    """Return the mean InfoNCE of rows, number by number."""
    total = 0.0
    for i, x in enumerate(first):
        scores = [x @ y / np.linalg.norm(x) / np.linalg.norm(y) / temperature for y in second]
        total -= scores[own[i]] - np.log(np.sum(np.exp(scores)))
    return total / len(first)


def test_simgcl_is_the_contrast_of_two_noisy_views():
    batch, term = make_batch(), SimGCL(0.7, noise=0.2, temperature=0.5)
    generator, expected = np.random.default_rng(1), 0.0
    for vectors in (batch.user_vectors, batch.item_vectors[[0, 2, 3, 5]]):
        views = []
        for _ in range(2):
            noise = generator.random(vectors.shape, dtype=np.float32).astype(float)
            noise = 0.2 * noise / np.linalg.norm(noise, axis=1, keepdims=True)
            views.append(vectors + np.where(vectors < 0, -noise, noise))
        expected += 0.7 * contrast(*views, np.arange(len(vectors)), 0.5)
    value, *gradients = term.value_and_gradients(batch)
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    for found, slope in zip(gradients, slopes(term, batch), strict=True):
        np.testing.assert_allclose(found, slope, atol=1e-7)


def test_a_batch_moves_by_the_gradients_of_the_loss_and_of_the_terms():
    """One step of SGD over all positives: the term's part is the difference of two fits."""
    settings = SETTINGS | {"optimizer": "sgd", "max_iter": 1, "batch_size": X.nnz}
    before = MFRecommender(**settings | {"learning_rate": 1e-30}).fit(X).user_factors_
    for backbone in ("linear", LightGCN(n_layers=0)):
        plain, added = (
            MFRecommender(**settings, backbone=backbone, auxiliary=term).fit(X)
            for term in (None, [Lengths(0.1), Lengths(0.3)])
        )
        moved = added.user_factors_ - plain.user_factors_
        np.testing.assert_allclose(moved, -0.01 * 2 * 0.4 * before, atol=1e-6)
        np.testing.assert_array_equal(added.item_factors_, plain.item_factors_)
        value = 0.4 * (before.astype(float) ** 2).sum()
        np.testing.assert_allclose(added.loss_curve_[0] - plain.loss_curve_[0], value, rtol=1e-4)


def test_wrong_gradients_of_a_users_term_are_found():
    with pytest.warns(UserWarning, match="gradients of users that are not the derivatives"):
        MFRecommender(**SETTINGS, auxiliary=Lengths(0.2, error=3.0)).fit(X)
