"""Defaults that an MFRecommender derives from its data: learning rates, dropout, decay."""

import warnings

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from scipy import sparse

from freqfm import MFRecommender
from freqfm.backbones import LightGCN
from freqfm.datasets import make_interactions
from freqfm.estimators.recommenders.components import mf_components
from freqfm.initializers import PRISM, XavierUniform
from freqfm.losses import BSL, CCL, PSL, Softmax
from freqfm.metrics import ndcg_at_k
from freqfm.model_selection import holdout_interactions
from freqfm.optimizers import Adam, RowwiseAdagrad, WeightDecay
from freqfm.samplers import InBatch

USERS, ITEMS, POSITIVES = 6000, 4000, 400_000


def rate_of(n=POSITIVES, **params):
    """Return the rate for n positives of a log."""
    axes = mf_components(MFRecommender(**params), n, (USERS, ITEMS), n)
    return axes.optimizer.learning_rate


def test_rate_goes_by_the_number_of_steps():
    n_batches = np.ceil(POSITIVES / 1024)
    assert rate_of() == pytest.approx(48 / (50 * n_batches))
    assert rate_of(loss="directau") == rate_of(loss="mawu") == pytest.approx(2.5 * rate_of())
    assert rate_of(5000) > rate_of()
    assert rate_of(10**7) == 6e-4
    assert rate_of(100) == 2e-2
    assert rate_of(optimizer=Adam(0.7)) == 0.7
    assert rate_of(learning_rate=0.2, init="prism") == 0.2


@pytest.mark.parametrize("optimizer", ["sgd", "fa_sgd", "cf_sgd"])
def test_layers_warn_of_steps_that_do_not_adapt(optimizer):
    with pytest.warns(UserWarning, match=f"hardly learn with optimizer='{optimizer}'"):
        rate_of(backbone="mlp", optimizer=optimizer)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rate_of(backbone="mlp")
        rate_of(backbone="mlp", optimizer="adagrad")
        rate_of(optimizer=optimizer)


def test_batches_that_share_negatives_draw_fewer_of_few_items():
    def drawn(n_items, **params):
        axes = mf_components(MFRecommender(**params), 9000, (500, n_items), 9000)
        return axes.n_negatives, getattr(axes.sampler, "exponent", None)

    assert drawn(100) == drawn(100, loss="softmax") == (80, 0.5)
    assert drawn(10**6) == drawn(10**6, loss="psl") == (768, 0.5)
    assert drawn(100, n_negatives=500) == (500, 0.5)
    assert drawn(100, loss="ccl") == (64, None)
    assert drawn(100, loss="bpr") == (1, None)


@pytest.mark.parametrize("loss", [Softmax(), BSL(), PSL()], ids=repr)
def test_positives_of_rare_items_weigh_less(loss):
    X = make_interactions(60, 40, 300, random_state=0)
    weighted, counts = X.copy(), np.bincount(X.indices, minlength=40)
    weighted.data *= (counts / (counts + 1)).astype(np.float32)[X.indices]
    equal = type("Equal", (type(loss),), {"shrinkage": 0.0})()
    params = {"n_components": 4, "max_iter": 2, "random_state": 0}
    one = MFRecommender(loss=loss, **params).fit(X)
    other = MFRecommender(loss=equal, **params).fit(weighted)
    assert_array_equal(one.item_factors_, other.item_factors_)
    # In partial_fit the counts are those of all that the model knows.
    one.partial_fit(sparse.csr_array(X[:10]))
    other.partial_fit(sparse.csr_array(weighted[:10]))
    assert_array_equal(one.item_factors_, other.item_factors_)


def dropout_of(n, n_known=None, **params):
    """Return the dropout for n positives of a log."""
    shape = USERS, ITEMS
    return mf_components(MFRecommender(**params), n, shape, n_known or n).user_dropout


def test_large_data_needs_no_dropout():
    assert dropout_of(262_143) == 0.1
    assert dropout_of(262_144) == 0.0
    assert dropout_of(1000, n_known=POSITIVES) == 0.0
    assert dropout_of(POSITIVES, user_dropout=0.3) == 0.3
    assert dropout_of(POSITIVES, loss="softmax") == 0.1
    assert dropout_of(POSITIVES, loss="bpr") == 0.0


def decay_of(**params):
    """Return the weight decay, and its scope, on data of a sixtieth of all pairs."""
    found = mf_components(MFRecommender(**params), POSITIVES, (USERS, ITEMS), POSITIVES)
    return found.weight_decay.value, found.weight_decay.scope


def test_losses_of_two_scores_decay_by_the_density():
    root = np.sqrt(1 / 60)
    for params in ({}, {"optimizer": "adam"}, {"init": "prism"}, {"n_components": 3}):
        assert decay_of(loss="bpr", **params) == (pytest.approx(0.1 * root), "batch")
    whole = decay_of(loss="bpr", weight_decay=WeightDecay(scope="full"))
    assert whole == (pytest.approx(0.1 * root), "full")
    for decay in (0.0, 0.3):
        assert decay_of(loss="bpr", weight_decay=decay) == (decay, "full")
        assert decay_of(weight_decay=WeightDecay(decay, scope="batch")) == (decay, "batch")
    others = {"loss": "softmax", "similarity": "dot"}, {"loss": "bpr", "similarity": "cosine"}
    backbones = ({"loss": "bpr", "backbone": name} for name in ("lightgcn", "mlp"))
    for params in ({}, {"loss": "ccl"}, {"loss": "directau"}, *others, *backbones):
        assert decay_of(**params)[0] == 0
    # All that the model knows counts, not what is new.
    more = mf_components(MFRecommender(loss="bpr"), 20, (USERS, ITEMS), POSITIVES)
    assert more.weight_decay.value == pytest.approx(0.1 * root)
    X = make_interactions(40, 30, 300, random_state=0)
    given = {"weight_decay": WeightDecay(0.1 * (X.nnz / 1200) ** 0.5, scope="batch")}
    models = [MFRecommender(4, loss="bpr", max_iter=3, random_state=0, **p) for p in ({}, given)]
    assert_array_equal(*(model.fit(X).item_factors_ for model in models))


def weight_of(n, shape=(USERS, ITEMS), loss="ccl"):
    """Return CCL's weight of negatives for n positives of a log."""
    found = mf_components(MFRecommender(loss=loss), n, shape, n).loss
    return found.value_of("negative_weight")


def test_the_weight_of_negatives_goes_by_the_density():
    # Gowalla, MovieLens-1M, MovieLens-100K, and its ten most popular films.
    assert weight_of(810_128, (29_858, 40_981)) == 150
    assert weight_of(590_733, (6039, 3628)) == 15
    assert weight_of(71_981, (943, 1682)) == 10
    assert weight_of(8273, (2000, 10)) == 1.5
    assert weight_of(1, (10**6, 10**6)) == 300
    assert weight_of(100, (10, 10)) == weight_of(10**9, (10, 10)) == 1
    assert weight_of(8273, (2000, 10), CCL(0.1, negative_weight=6.0)) == 6
    margin = mf_components(MFRecommender(loss=CCL(0.1)), 10, (9, 9), 10).loss.margin
    assert margin == 0.1 and CCL().negative_weight is None
    with pytest.raises(ValueError, match="'negative_weight' parameter of CCL must be a float"):
        weight_of(10, (9, 9), CCL(negative_weight="ten"))


@pytest.mark.slow  # a kernel of its own for each weight
def test_users_are_folded_in_with_the_weight_of_the_fit():
    X = make_interactions(60, 40, 500, random_state=0)
    params = {"n_components": 4, "max_iter": 3, "random_state": 0}
    model = MFRecommender(loss="ccl", **params).fit(X)
    given = CCL(negative_weight=weight_of(X.nnz, X.shape))
    same = MFRecommender(loss=given, **params).fit(X)
    assert_array_equal(model.item_factors_, same.item_factors_)
    assert_array_equal(model.transform(X[:5]), same.transform(X[:5]))
    model.set_params(loss=CCL(negative_weight=200.0))
    assert (model.transform(X[:5]) != same.transform(X[:5])).any()


def distances_moved(model, X, n_epochs):
    """Return how far items move in each of some epochs, on average."""
    moved, before = [], None
    for _ in range(n_epochs):
        model.set_params(max_iter=1, warm_start=True).fit(X)
        if before is not None:
            moved.append(np.linalg.norm(model.item_factors_ - before, axis=1).mean())
        before = model.item_factors_.copy()
    return moved


@pytest.mark.slow
def test_the_default_rate_falls_over_a_fit_and_a_given_one_does_not():
    X = make_interactions(40, 30, 300, random_state=0)
    falling = distances_moved(MFRecommender(4, random_state=0), X, 110)
    assert np.mean(falling[90:99]) < 0.3 * np.mean(falling[20:30])
    # Later epochs still learn.
    assert min(falling[100:]) > 0
    steady = distances_moved(MFRecommender(4, learning_rate=0.02, random_state=0), X, 110)
    assert np.mean(steady[90:99]) > 0.5 * np.mean(steady[20:30])


def test_a_rate_that_fell_does_not_hold_back_new_interactions():
    X = make_interactions(40, 30, 300, random_state=0)
    model = MFRecommender(4, random_state=0).fit(X)
    mean = mf_components(model, 20, X.shape, X.nnz)
    assert mean.n_falling_steps is None
    whole = mf_components(model, X.nnz, X.shape, X.nnz)
    assert mean.optimizer.learning_rate == whole.optimizer.learning_rate / 2
    before = model.item_factors_.copy()
    model.partial_fit(X[:5])
    moved = np.abs(model.item_factors_ - before).max()
    assert moved > 0.5 * mean.optimizer.learning_rate


def test_propagation_through_the_whole_graph_takes_large_batches():
    def size(backbone, n=POSITIVES, **params):
        model = MFRecommender(backbone=backbone, **params)
        return mf_components(model, n, (USERS, ITEMS), n).batch_size

    in_batches = LightGCN(propagate="batch")
    assert size(in_batches) == POSITIVES // 64
    assert size(in_batches, 10**7) == 8192
    assert size(in_batches, loss="directau") == size("linear", loss="directau") == 1024
    assert size("lightgcn") == size("mlp") == size("linear") == size(LightGCN(0)) == 1024
    assert size(in_batches, batch_size=100) == 100
    assert rate_of(backbone=in_batches) == pytest.approx(48 / (50 * 64), rel=0.02)


def test_scores_relative_to_popularity_are_ranked_by_dot_products():
    def ranks_by_cosine(**params):
        model = MFRecommender(**params)
        return mf_components(model, POSITIVES, (USERS, ITEMS), POSITIVES).rank_by_cosine

    assert ranks_by_cosine(negative_sampler="in_batch")
    assert not ranks_by_cosine(negative_sampler=InBatch(corrected=False))
    assert ranks_by_cosine(negative_sampler=InBatch(corrected=False), similarity=("auto", "cosine"))


@pytest.mark.parametrize(
    ("loss", "optimizer"), [("bsl", Adam), ("mawu", Adam), ("bpr", RowwiseAdagrad)]
)
def test_the_loss_chooses_the_optimizer(loss, optimizer):
    def resolved(**params):
        return mf_components(MFRecommender(loss=loss, **params), 90, (9, 9), 90).optimizer

    assert type(resolved()) is optimizer
    assert resolved(learning_rate=0.2).learning_rate == 0.2
    assert type(resolved(optimizer="adam")) is Adam


# So many positives that no rate is at its bound.
@pytest.mark.parametrize(
    ("loss", "n"),
    [
        ("softmax", POSITIVES),
        ("bsl", POSITIVES),
        ("directau", 10 * POSITIVES),
        ("mawu", 10 * POSITIVES),
    ],
)
def test_long_vectors_of_cosines_make_longer_steps(loss, n):
    plain, long = rate_of(n, loss=loss), rate_of(n, loss=loss, init="prism")
    assert plain < long <= (2e-2 if loss in ("bsl", "softmax") else 1e-2)
    assert rate_of(n, loss=loss, init=PRISM(users=False)) < long
    assert rate_of(n, loss=loss, init=PRISM(users=False, items=False)) == plain
    assert rate_of(n, loss=loss, init="normal") == plain


def test_dot_products_make_no_longer_steps():
    for params in ({"loss": "bpr", "optimizer": "adam"}, {"similarity": "dot"}):
        assert rate_of(**params, init="prism") == rate_of(**params)


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_stretch_is_the_length_over_that_of_plain_rows(alpha):
    shape, counts = (500, 16), np.full(500, 18)
    long, plain = (
        np.sqrt(np.mean(np.sum(initializer.draw(shape, np.random.default_rng(0), counts) ** 2, 1)))
        for initializer in (PRISM(alpha), XavierUniform())
    )
    assert PRISM(alpha).stretch(shape, counts.sum()) == pytest.approx(long / plain, rel=0.02)


def test_long_vectors_trained_in_parts_keep_their_rate():
    X = sparse.csr_array((np.random.default_rng(0).random((40, 30)) < 0.2).astype(np.float32))
    parts = MFRecommender(8, init="prism", random_state=0)
    for _ in range(2):
        parts.partial_fit(X)
    whole = MFRecommender(8, init="prism", max_iter=2, random_state=0).fit(X)
    assert_array_equal(parts.item_factors_, whole.item_factors_)


@pytest.mark.parametrize("loss", ["directau", "mawu"])
def test_uniformity_leaves_dense_data_better_than_popularity(loss):
    train, test = holdout_interactions(
        make_interactions(200, 60, 2400, random_state=0), 0.2, random_state=0
    )
    model = MFRecommender(16, loss=loss, random_state=0).fit(train)
    popularity = np.tile(train.sum(axis=0), (200, 1))
    scores = [
        ndcg_at_k(test, np.argsort(-np.where(train.toarray() > 0, -np.inf, s))[:, :10], k=10)
        for s in (model.user_factors_ @ model.item_factors_.T, popularity)
    ]
    assert scores[0] > 2 * scores[1]
