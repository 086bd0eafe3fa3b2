"""Auxiliary terms: their values, gradients and place in training."""

import itertools
import pickle
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

from freqfm import DivergenceError, MFRecommender
from freqfm.auxiliary import IPL, NCL, SGL, AuxiliaryTerm, ReSN, SimGCL, TermBatch, TermEpoch
from freqfm.backbones import Context, LightGCN
from freqfm.estimators.recommenders.mf_trainer import AuxiliaryTerms
from freqfm.optimizers import SGD

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


def contrast_of_views(users, items, temperature):
    """Return the sum of the contrasts of users and of the positive items of ``make_batch``."""
    sides = users, items[:, [0, 2, 3, 5]]
    return sum(contrast(*of, np.arange(len(of[0])), temperature) for of in sides)


def check_gradients(term, batch):
    """Compare gradients with central differences; return the value."""
    value, *gradients = term.value_and_gradients(batch)
    for found, slope in zip(gradients, slopes(term, batch), strict=True):
        np.testing.assert_allclose(found, slope, atol=1e-7)
    return value


def with_views(n):
    """Return a batch with so many views of random vectors."""
    batches = [make_batch(seed=seed) for seed in range(n)]
    return batches[0]._replace(
        user_vectors=np.stack([batch.user_vectors for batch in batches]),
        item_vectors=np.stack([batch.item_vectors for batch in batches]),
    )


def test_simgcl_is_the_contrast_of_two_noisy_views():
    batch, term = make_batch(), SimGCL(0.7, noise=0.2, temperature=0.5)
    generator, noisy = np.random.default_rng(1), []
    for vectors in (batch.user_vectors, batch.item_vectors):
        views = []
        for _ in range(2):
            noise = generator.random(vectors.shape, dtype=np.float32).astype(float)
            noise = 0.2 * noise / np.linalg.norm(noise, axis=1, keepdims=True)
            views.append(vectors + np.where(vectors < 0, -noise, noise))
        noisy.append(np.stack(views))
    expected = 0.7 * contrast_of_views(*noisy, 0.5)
    np.testing.assert_allclose(check_gradients(term, batch), expected, rtol=1e-6)


def test_sgl_is_the_contrast_of_two_graphs_with_edges_left_out():
    batch, term = with_views(2), SGL(0.7, dropout=0.25, temperature=0.5)
    expected = 0.7 * contrast_of_views(*batch.both_vectors, 0.5)
    np.testing.assert_allclose(check_gradients(term, batch), expected, rtol=1e-12)
    bound = []
    graph = SimpleNamespace(bind=lambda X, n_threads: bound.append(X))
    nothing = np.zeros((0, 1))
    epoch = TermEpoch(0, np.random.default_rng(0), X, nothing, nothing, graph, {}, 1)
    term.views(epoch)
    one, other = (kept.toarray() for kept in bound)
    for kept in (one, other):
        assert (kept <= DENSE).all()
        assert 0.65 < kept.sum() / X.nnz < 0.85
    assert (one != other).any()


def test_ncl_is_the_contrast_with_a_layer_and_with_means_of_clusters():
    generator = np.random.default_rng(5)
    state = [(generator.standard_normal((3, 3)), generator.integers(0, 3, n)) for n in (10, 12)]
    batch = with_views(3)._replace(state=state)
    term = NCL(0.6, prototype_weight=0.3, hops=2, temperature=0.5)
    expected = 0.0
    places = np.arange(5), [0, 2, 3, 5]
    for side, rows in enumerate((batch.users, batch.items)):
        table, before, mean = batch.both_vectors[side][:, places[side]]
        layer = 3 * mean - 2 * before
        expected += 0.6 * contrast(layer, table, np.arange(len(table)), 0.5)
        prototypes, own = state[side]
        expected += 0.3 * contrast(table, prototypes, own[rows[places[side]]], 0.5)
    np.testing.assert_allclose(check_gradients(term, batch), expected, rtol=1e-12)


def test_prototypes_of_ncl_are_means_of_the_nearest_vectors():
    generator = np.random.default_rng(0)
    centers = np.repeat(10 * np.eye(3, dtype=np.float32), 10, axis=0)
    tables = {"user_factors": centers + generator.random((30, 3), dtype=np.float32)}
    tables["item_factors"] = tables["user_factors"][:20]
    epoch = TermEpoch(0, generator, X, None, None, None, tables, 1)
    for (means, own), n in zip(NCL(n_clusters=3).begin_epoch(epoch), (30, 20), strict=True):
        table = tables["user_factors"][:n]
        assert len(means) == n // 10
        distances = ((table[:, np.newaxis] - means) ** 2).sum(axis=2)
        np.testing.assert_array_equal(own, distances.argmin(axis=1))
        for k in np.unique(own):
            np.testing.assert_allclose(means[k], table[own == k].mean(axis=0), rtol=1e-5)


def test_views_of_the_graph_are_differentiated_through_their_own_propagation():
    """The gradients by tables are the differences of the value."""
    backbone = LightGCN(propagate="batch").bind(X, 1)
    generator = np.random.default_rng(0)
    tables = {
        f"{side}_factors": generator.standard_normal((n, 4)).astype(np.float32)
        for side, n in zip(("user", "item"), X.shape, strict=True)
    }
    vectors = {name: table.copy() for name, table in tables.items()}
    batch = TermBatch(0, *(np.arange(n) for n in X.shape), *tables.values(), *X.nonzero(), X.data)
    for term in (SGL(0.5, dropout=0.3), NCL(0.5, prototype_weight=0.2, hops=2)):
        components = SimpleNamespace(auxiliary=(term,), optimizer=SimpleNamespace(average=True))
        task = SimpleNamespace(
            components=components,
            vectors=vectors,
            _known=SimpleNamespace(X=X),
            _seed=0,
            _n_threads=1,
        )
        terms = AuxiliaryTerms(task, backbone, tables)
        terms.begin_epoch(0)
        value, _, of_tables = terms.gradients(batch, 1.0)
        gradients = {name: sum(of_view[name][1] for of_view in of_tables) for name in tables}
        for name, table in tables.items():
            direction = generator.standard_normal(table.shape).astype(np.float32)
            kept, ends = table.copy(), []
            for sign in (1, -1):
                table[:] = kept + sign * np.float32(2e-3) * direction
                ends.append(terms.gradients(batch, 1.0)[0])
            table[:] = kept
            slope = (ends[0] - ends[1]) / 4e-3
            np.testing.assert_allclose(np.sum(gradients[name] * direction), slope, rtol=0.02)
        assert value > 0


def spread_of_rates(users, items, gamma):
    """Return the standard deviation of the items' interaction rates, item by item."""
    counts, rates = DENSE.sum(axis=0), []
    for i, liked in enumerate(DENSE.T):
        total = sum(1 / (1 + np.exp(-users[u] @ items[i])) for u in np.flatnonzero(liked))
        rates.append(total / counts[i] ** (2 - gamma) * counts.mean() ** (1 - gamma))
    return np.std(rates, ddof=1)


@pytest.mark.parametrize("gamma", [1.0, 1.6])
def test_ipl_follows_the_spread_of_interaction_rates(gamma):
    generator, term = np.random.default_rng(0), IPL(0.7, gamma=gamma)
    users, items = (generator.standard_normal((n, 3)) for n in X.shape)
    state = term.begin_epoch(TermEpoch(0, generator, X, users, items, None, None, 1))
    everything = TermBatch(
        *(0, np.arange(30), np.arange(20), users, items, *X.nonzero(), X.data), state=state
    )
    # The tangent over all interactions has the value, and the derivatives, of the spread.
    value, *gradients = term.value_and_gradients(everything)
    np.testing.assert_allclose(value, 0.7 * spread_of_rates(users, items, gamma))
    for table, gradient in zip((users, items), gradients, strict=True):
        direction, ends = generator.standard_normal(table.shape), []
        for sign in (1, -1):
            moved = [of + sign * 1e-6 * direction if of is table else of for of in (users, items)]
            ends.append(0.7 * spread_of_rates(*moved, gamma))
        slope = (ends[0] - ends[1]) / 2e-6
        np.testing.assert_allclose(np.sum(gradient * direction), slope, rtol=1e-6)
    check_gradients(term, make_batch()._replace(state=state))


def test_ipl_of_items_with_one_rate_is_zero():
    term, zeros = IPL(), np.zeros((30, 3))
    state = term.begin_epoch(TermEpoch(0, None, X, zeros, zeros[:20], None, None, 1))
    assert term.value_and_gradients(make_batch()._replace(state=state))[0] == 0


def test_resn_is_the_largest_singular_value_of_the_scores():
    for d in (2, 3, 8):  # more numbers than users, too
        batch = make_batch(d)
        largest = np.linalg.svd(batch.user_vectors @ batch.item_vectors.T)[1][0]
        value = check_gradients(ReSN(0.7), batch)
        np.testing.assert_allclose(value, 0.7 * largest**2 / 30)


@pytest.mark.slow
def test_terms_against_popularity_lower_what_they_measure():
    users, items = 60, 40
    popular = np.random.default_rng(0).random((users, items)) < np.linspace(0.9, 0.05, items)
    log = sparse.csr_array(popular.astype(np.float32))
    found, settings = {}, SETTINGS | {"max_iter": 3, "learning_rate": 0.05}
    for name, term in {"none": None, "ipl": IPL(5.0), "resn": ReSN(5.0)}.items():
        model = MFRecommender(**settings, auxiliary=term).fit(log)
        scores = model.user_factors_ @ model.item_factors_.T
        rates = [(1 / (1 + np.exp(-scores[popular[:, i], i]))).mean() for i in range(items)]
        found[name] = np.std(rates), np.linalg.svd(scores)[1][0]
    assert found["ipl"][0] < 0.7 * found["none"][0]
    assert found["resn"][1] < 0.7 * found["none"][1]


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


def test_optimizers_that_sum_over_a_batch_take_a_term_as_often_as_it_has_positives():
    class Summing(SGD):
        average = False

    averaged, summed = (
        MFRecommender(**settings, auxiliary=SimGCL(0.5)).fit(X).user_factors_
        for settings in (
            SETTINGS | {"learning_rate": None, "batch_size": X.nnz, "optimizer": optimizer}
            for optimizer in (SGD(0.01), Summing(0.01 / X.nnz))
        )
    )
    np.testing.assert_allclose(averaged, summed, atol=2e-5)


ALL = [SimGCL(0.2), "sgl", "ipl", "resn", NCL(n_clusters=2), Lengths(0.01)]


def test_terms_are_trained_alike_with_any_threads_and_in_copies():
    model = MFRecommender(**SETTINGS, backbone=LightGCN(propagate="batch"), auxiliary=ALL)
    model.set_params(batch_size=60)
    fitted = model.fit(X)
    copies = clone(model).set_params(n_jobs=2), pickle.loads(pickle.dumps(model))
    for again in copies:
        np.testing.assert_array_equal(again.fit(X).user_factors_, fitted.user_factors_)
    other = clone(model).set_params(random_state=1).fit(X)
    assert (other.loss_curve_ != fitted.loss_curve_).all()


@pytest.mark.slow
def test_parameters_of_a_term_are_searched_by_the_name_of_the_axis():
    search = GridSearchCV(
        MFRecommender(**SETTINGS, auxiliary="simgcl"),
        {"auxiliary__weight": [0.0, 0.5]},
        cv=[(np.arange(20), np.arange(20, 30))],
    )
    assert search.fit(X).best_params_["auxiliary__weight"] in (0.0, 0.5)
    assert type(search.best_estimator_.auxiliary) is SimGCL


def test_terms_that_cannot_be_used_are_refused_by_name():
    def refused(auxiliary, **settings):
        with pytest.raises((ValueError, TypeError)) as error:
            MFRecommender(**SETTINGS | settings, auxiliary=auxiliary).fit(X)
        return str(error.value)

    context = Context(context=np.eye(30), users=np.arange(30))
    assert refused("nothing").startswith("auxiliary='nothing' is not known")
    assert "instance of AuxiliaryTerm" in refused([3])
    assert "rows of backbone=Context are queries" in refused("simgcl", backbone=context)
    assert "LightGCN(propagate='batch')" in refused("simgcl", backbone="lightgcn")
    for term, backbone in itertools.product(("sgl", "ncl"), ("linear", "mlp", LightGCN(0))):
        assert "propagates along interactions" in refused(term, backbone=backbone)
    shallow = LightGCN(1, propagate="batch")
    assert "needs the layer 2 of LightGCN" in refused("ncl", backbone=shallow)
    assert "must be a float" in refused(SimGCL(-1.0))


def test_what_a_users_term_returns_is_checked():
    class Returns(Lengths):
        def value_and_gradients(self, batch):
            return RETURNED[self.weight](batch)

    returned = [
        ("must return a number", lambda batch: 1.0),
        ("must return a number", lambda batch: (batch.user_vectors, None, None)),
        ("must return a number", lambda batch: ("one", None, None)),
        ("read-only", lambda batch: batch.user_vectors.fill(0)),
        ("gradients of users of the shape", lambda batch: (0.0, batch.users, None)),
        ("gradients of items of the shape", lambda batch: (0.0, None, batch.item_vectors.T)),
    ]
    RETURNED = [function for _, function in returned]
    for k, (message, _) in enumerate(returned):
        with pytest.raises(ValueError, match=message):
            MFRecommender(**SETTINGS, auxiliary=Returns(k)).fit(X)
    RETURNED.append(lambda batch: (np.nan, None, None))
    with pytest.raises(DivergenceError, match="check what Returns computes"):
        MFRecommender(**SETTINGS, auxiliary=["simgcl", Returns(len(returned))]).fit(X)
    RETURNED.append(lambda batch: (0.0, None, None))
    nothing, plain = (
        MFRecommender(**SETTINGS, backbone=LightGCN(propagate="batch"), auxiliary=term).fit(X)
        for term in (Returns(len(returned) + 1), None)
    )
    np.testing.assert_array_equal(nothing.user_factors_, plain.user_factors_)
