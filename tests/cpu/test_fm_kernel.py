"""The FM kernels against their reference implementation, finite differences and themselves."""

import numba
import numpy as np
import pytest
from helpers import assert_same_attributes, each, slow_params
from numpy.testing import assert_allclose, assert_array_equal
from reference.differences import slopes
from reference.fm import ReferenceFM, epoch_order, fm_scores, visit_order
from scipy import sparse
from sklearn.base import clone, is_classifier

from freqfm import FMClassifier, FMRegressor
from freqfm.backends.cpu.fm import prepared as fm_prepared
from freqfm.backends.cpu.fm import trainer as fm_trainer
from freqfm.backends.cpu.fm.prepared import ONE_PASS_BITS
from freqfm.formulas.special import arctangent, exp_of_minus, log_of_one_plus
from freqfm.initializers import Normal
from freqfm.optimizers import CFSGD, FASGD, OPTIMIZERS, SGD, Adagrad, Adam, RowwiseAdagrad

COUNTS = np.arange(1.0, 13.0)
CASES = [
    SGD(0.5),
    FASGD(0.5, max_step=0.9),
    FASGD(0.5, counts=COUNTS),
    CFSGD(0.3, max_step=0.1, curvature_cap=0.5),
    CFSGD(0.1, max_step=0.06, exponent=0.25),
    CFSGD(0.1, max_step=10.0, count="batch"),
    CFSGD(0.05, max_step=0.02, curvature_cap=np.inf),
    Adagrad(0.1, epsilon=0.05),
    RowwiseAdagrad(0.1, epsilon=0.05),
    Adam(0.02, epsilon=1e-3, lazy=True),
    Adam(0.02, beta_1=0.5, lazy=False),
]
NAMES = {cls: name for name, cls in OPTIMIZERS.items()}


def estimator(cls, optimizer, **params):
    return cls(
        **{
            "n_components": 5,
            "optimizer": optimizer,
            "max_iter": 4,
            "batch_size": 16,
            "init": Normal(0.3),
            "early_stopping": False,
            "n_iter_no_change": None,
            "random_state": 3,
            **params,
        }
    )


def reference_of(model, optimizer, X, weight):
    """The reference in the state from which ``model`` started."""
    generator = np.random.default_rng(model._seed)
    factors = np.float32(model.init.scale) * generator.standard_normal(
        (X.shape[1], model.n_components), dtype=np.float32
    )
    terms = terms_of(model, optimizer, X, weight)
    return ReferenceFM(0.0, np.zeros(X.shape[1]), factors, *terms)


def terms_of(model, optimizer, X, weight):
    """The loss, the optimizer's settings, and the penalties and their shares, for references."""
    settings = {"name": NAMES[type(optimizer)], **optimizer.get_params()}
    if settings["name"] == "fa_sgd" and settings["counts"] is None:
        settings["counts"] = (X.toarray() != 0).T @ weight
    loss = "log_loss" if is_classifier(model) else "squared_error"
    shares = 1 / np.maximum(model.token_counts_, 1e-9) if model.alpha_per == "token" else 1.0
    return loss, settings, (model.alpha_linear_, model.alpha_factors_), shares


def assert_training_equals(model, optimizer, rows, weighted, reference_of):
    """Fit a model and its reference to rows; return those of positive weight, and the reference."""
    X, y = rows
    y = y if is_classifier(model) else y + np.sin(np.arange(len(y)))
    weight = np.ones(len(y))
    if weighted:
        weight = np.random.default_rng(0).integers(0, 4, len(y)) / 2.0
    # The weighted rows with the penalty once a row, the others with it once a token.
    alpha = (0.01, 0.03, "row") if weighted else (0.5, 1.5, "token")
    names = "alpha_linear", "alpha_factors", "alpha_per"
    model.set_params(**dict(zip(names, alpha, strict=True))).fit(X, y, sample_weight=weight)
    # A row of weight zero is no row.
    X, y, weight = X[weight > 0], y[weight > 0], weight[weight > 0]
    target = y.astype(float)
    reference = reference_of(model, optimizer, X, weight, target)
    losses = [
        reference.epoch(X.toarray(), target, weight, 16, visit_order(len(y), model._seed, epoch))
        for epoch in range(4)
    ]
    assert_allclose(model.loss_curve_, losses, rtol=2e-5)
    assert_allclose(model.intercept_, reference.b, rtol=2e-4, atol=2e-5)
    assert_allclose(model.coef_, reference.w, rtol=2e-4, atol=3e-5)
    return X, reference


@pytest.mark.parametrize("weighted", [False, True], ids=["unweighted", "weighted"])
@pytest.mark.parametrize("cls", [FMClassifier, FMRegressor])
@pytest.mark.parametrize("optimizer", CASES, ids=repr)
def test_training_equals_the_reference(clicks, cls, optimizer, weighted):
    def from_the_best_constant(model, optimizer, X, weight, target):
        reference = reference_of(model, optimizer, X, weight)
        share = weight @ target / weight.sum()
        reference.b[0] = np.log(share / (1 - share)) if cls is FMClassifier else share
        return reference

    model = estimator(cls, optimizer)
    given = model, optimizer, clicks, weighted, from_the_best_constant
    X, reference = assert_training_equals(*given)
    assert_allclose(model.factors_, reference.V, rtol=2e-4, atol=3e-5)
    scores = fm_scores(X.toarray(), reference.b, reference.w, reference.V)
    assert_allclose(model._scores(X)[0], scores, atol=2e-4)


# Around the numbers of columns that one instruction, and one block of them, takes.
WIDTHS = [1, 16, 17, 32, 33, 64, 65, 80, 128, 150]


@each("width", WIDTHS)
def test_vectors_of_any_length_are_trained(clicks, width):
    X, y = clicks
    params = {"n_components": width, "init": Normal(0.5 / np.sqrt(width)), "alpha_factors": 0.5}
    optimizer, weight = CFSGD(0.1, max_step=10.0), np.ones(len(y))
    model = estimator(FMRegressor, optimizer, max_iter=1, **params).fit(X, y)
    reference = reference_of(model, optimizer, X, weight)
    reference.b[0] = y.mean()
    reference.epoch(X.toarray(), y.astype(float), weight, 16, visit_order(len(y), model._seed, 0))
    assert_allclose(model.coef_, reference.w, rtol=2e-4, atol=3e-5)
    assert_allclose(model.factors_, reference.V, rtol=2e-4, atol=3e-5)


@each("width", [5, *WIDTHS])
def test_scores_equal_sum_over_pairs(clicks, width):
    X, y = clicks
    model = estimator(FMRegressor, SGD(0.1), n_components=width, init=Normal(0.1)).fit(X, y)
    # Rows of no entry, of one and of two beside each other, and of all.
    X = sparse.csr_array(np.concatenate([np.tri(13, 12, -1), 2 * np.eye(5, 12), X.toarray()]))
    expected = fm_scores(X.toarray(), model.intercept_, model.coef_, model.factors_)
    assert_allclose(model.predict(X), expected, atol=1e-5)


@pytest.mark.parametrize("alpha_per", ["token", "row"])
@pytest.mark.parametrize("cls", [FMClassifier, FMRegressor])
def test_gradient_equals_finite_differences(clicks, cls, alpha_per):
    # One SGD step of length one on the whole data moves the model by minus its gradient.
    X, y = clicks
    weight = np.random.default_rng(1).random(len(y)) + 0.5
    alpha = {"alpha_linear": 0.02, "alpha_factors": 0.05}
    if alpha_per == "token":
        alpha = {"alpha_linear": 0.7, "alpha_factors": 1.1}
    model = estimator(cls, SGD(1.0), batch_size=1000, max_iter=1, **alpha, alpha_per=alpha_per)
    model.fit(X, y, sample_weight=weight)
    reference = reference_of(model, SGD(1.0), X, weight)
    base = model._loss.base_score(y, weight)
    dense, touched = X.toarray(), (X.toarray() != 0).T @ weight
    times = (touched > 0) if alpha_per == "token" else touched

    b0, w0, V0 = np.array([base]), reference.w, reference.V

    def objective():
        scores = fm_scores(dense, b0, w0, V0)
        if cls is FMClassifier:
            losses = np.logaddexp(0, scores) - y * scores
        else:
            losses = (scores - y) ** 2 / 2
        penalty = alpha["alpha_linear"] / 2 * (times @ w0**2)
        penalty += alpha["alpha_factors"] / 2 * (times @ (V0**2).sum(axis=1))
        return (weight @ losses + penalty) / weight.sum()

    for table, moved in ((b0, model.intercept_), (w0, model.coef_), (V0, model.factors_)):
        assert_allclose(table - moved, slopes(objective, table), rtol=1e-6, atol=2e-6)


# Vectors of one block of columns, and of three and four, that threads share out.
@pytest.mark.parametrize("n_components", [100, *slow_params([9, 70])])
@pytest.mark.parametrize("optimizer", CASES, ids=repr)
def test_bitwise_reproducible_for_any_number_of_threads(clicks, optimizer, n_components):
    rng = np.random.default_rng(0)
    X = rng.random((600, 300)) * (rng.random((600, 300)) < 0.05)
    X[:, 7] = 1
    y = rng.integers(0, 2, 600)
    models = [
        estimator(FMClassifier, optimizer, n_components=n_components, batch_size=200, n_jobs=n).fit(
            X[:, :12] if getattr(optimizer, "counts", None) is not None else X, y
        )
        for n in (1, 2, 3, 4, 5)
    ]
    assert_same_attributes(("intercept_", "coef_", "factors_", "loss_curve_"), *models)


@each("n_batches", [1, 2, 3, 5])
def test_bits_do_not_depend_on_how_many_batches_a_call_trains(n_batches):
    rng = np.random.default_rng(0)
    X = sparse.csr_array(np.eye(40, dtype=np.float32)[rng.integers(0, 40, (400, 3))].sum(axis=1))
    y = rng.integers(0, 2, 400)
    whole = estimator(FMClassifier, Adam(0.02), max_iter=2, batch_size=30).fit(X, y)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fm_trainer, "_WEIGHTS_PER_BATCH", 0)
        init = fm_trainer.FMEpochs.__init__

        def of_short_calls(self, problem, n_threads):
            init(self, problem, n_threads)
            self._batches_per_call = n_batches

        patch.setattr(fm_trainer.FMEpochs, "__init__", of_short_calls)
        for n_jobs in (1, 2, 3):
            model = clone(whole).set_params(n_jobs=n_jobs).fit(X, y)
            assert_array_equal(model.factors_, whole.factors_)
            assert_array_equal(model.loss_curve_, whole.loss_curve_)


def test_dense_steps_of_more_tokens_than_a_batch_has_entries(clicks):
    X, y = clicks
    optimizer = Adam(0.02, lazy=False)
    few = estimator(FMClassifier, optimizer).fit(X, y)
    wide = sparse.csr_array((X.data, X.indices, X.indptr), shape=(X.shape[0], 5000))
    many = estimator(FMClassifier, optimizer).fit(wide, y)
    assert_array_equal(many.factors_[:12], few.factors_)
    assert_array_equal(many.coef_[:12], few.coef_)
    generator = np.random.default_rng(many._seed)
    start = np.float32(0.3) * generator.standard_normal((5000, 5), dtype=np.float32)
    assert_array_equal(many.factors_[12:], start[12:])


@each("bits", [1, 2, 8, 9, 10, 11, 12, 13, 14, 21, 22, 23, 30, 31])
def test_entries_are_sorted_by_token(bits):
    # With many entries tokens of few bits are sorted in one pass, with few in two.
    for n in (500, 9000):
        n_tokens, generator = 2**bits - 1, np.random.default_rng(bits)
        tokens = generator.integers(0, n_tokens, n)
        tokens[:3] = 0, n_tokens - 1, n_tokens // 2
        entries = (tokens.astype(np.uint64) << np.uint64(32)) | np.arange(n, dtype=np.uint64)
        # What lies behind the counts must stay as it is.
        counts, keys = np.full(2**14, -1, dtype=np.int32), np.stack([entries, entries[::-1]])
        fm_prepared._sort(np.uint64(n), n_tokens, counts[: 2**ONE_PASS_BITS], keys)
        assert_array_equal(keys[0], np.sort(entries))
        assert (counts[2**ONE_PASS_BITS :] == -1).all()


@pytest.mark.slow
def test_large_tables_are_reproducible_for_any_number_of_threads():
    # Factors of more than 64 MB are shared out among threads by rows and tokens.
    rng = np.random.default_rng(0)
    X = sparse.csr_array(rng.random((900, 300)) * (rng.random((900, 300)) < 0.05))
    X = sparse.csr_array((X.data, X.indices * 1760, X.indptr), shape=(900, 528_000))
    y = rng.integers(0, 2, 900)
    one, two = (
        FMClassifier(
            33, batch_size=300, max_iter=2, early_stopping=False, random_state=0, n_jobs=n
        ).fit(X, y)
        for n in (1, 2)
    )
    assert_array_equal(two.factors_, one.factors_)
    assert_array_equal(two.coef_, one.coef_)


def test_the_first_step_of_the_intercept_does_not_overshoot():
    # Rows without entries, so that nothing else moves.
    X, y = sparse.csr_array((40, 2), dtype=np.float32), np.random.default_rng(0).normal(size=40)
    optimizer = CFSGD(9.0, max_step=9.0, curvature_cap=np.inf)
    model = estimator(FMRegressor, optimizer, max_iter=1).fit(X, y)
    reference = reference_of(model, optimizer, X, np.ones(40))
    reference.b[0] = y.mean()
    reference.epoch(X.toarray(), y, np.ones(40), 16, visit_order(40, model._seed, 0))
    assert_allclose(model.intercept_, reference.b, rtol=1e-4)


def test_fa_sgd_with_uniform_counts_is_sgd_to_the_bit(clicks):
    X, y = clicks
    sgd = estimator(FMClassifier, SGD(0.3)).fit(X, y)
    fa_sgd = estimator(FMClassifier, FASGD(0.3, counts=np.full(12, 37.0))).fit(X, y)
    assert_array_equal(fa_sgd.factors_, sgd.factors_)
    assert_array_equal(fa_sgd.coef_, sgd.coef_)
    assert_array_equal(fa_sgd.intercept_, sgd.intercept_)


def test_fa_sgd_moves_rare_tokens_faster():
    state = FASGD(1.0, counts=[1, 16, 256]).init_state(3, 2, None)
    assert_allclose(state.per_row[0] / state.per_row, [1, 4, 16], rtol=1e-6)
    once, never, _ = FASGD(1.0, counts=[1, 0, 4]).init_state(3, 2, None).per_row
    assert once == never


def test_large_sets_are_visited_in_blocks():
    rng = np.random.default_rng(0)
    n = 2**14 + 7
    X = sparse.csr_array(np.eye(6, dtype=np.float32)[rng.integers(0, 6, n)])
    y = rng.integers(0, 2, n)
    model = estimator(FMClassifier, SGD(0.5), n_components=2, batch_size=1000, max_iter=1)
    model.fit(X, y)
    reference = reference_of(model, SGD(0.5), X, np.ones(n))
    reference.b[0] = np.log(y.mean() / (1 - y.mean()))
    order = visit_order(n, model._seed, 0)
    assert_array_equal(np.sort(order), np.arange(n))
    loss = reference.epoch(X.toarray(), y.astype(float), np.ones(n), 1000, order)
    assert_allclose(model.loss_curve_, [loss], rtol=1e-6)
    assert_allclose(model.coef_, reference.w, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("n", [1, 2, 3, 7, 64, 65, 1000])
def test_epoch_order_is_a_permutation(n):
    orders = [epoch_order(n, seed, epoch) for seed in (0, 5) for epoch in (0, 1)]
    for order in orders:
        assert_array_equal(np.sort(order), np.arange(n))
    if n >= 7:
        assert len({tuple(order) for order in orders}) == 4


def test_epoch_order_is_uniform():
    # Where row 0 goes, over many epochs, in eight equal parts of the epoch.
    n, epochs = 96, 800
    places = [int(np.flatnonzero(epoch_order(n, 1, e) == 0)[0]) * 8 // n for e in range(epochs)]
    observed = np.bincount(places, minlength=8)
    chi_square = ((observed - epochs / 8) ** 2 / (epochs / 8)).sum()
    assert chi_square < 24.3  # the 0.999 quantile with 7 degrees of freedom


def test_counters_count_samples_or_batches(clicks):
    X, y = clicks
    held = np.diff(X.tocsc().indptr)
    by_sample = estimator(FMClassifier, CFSGD(), max_iter=3).fit(X, y)
    assert_array_equal(by_sample._optimizer_state[0]["per_row"], 3 * held)
    by_batch = estimator(FMClassifier, CFSGD(count="batch"), batch_size=60, max_iter=3).fit(X, y)
    assert_array_equal(by_batch._optimizer_state[0]["per_row"], 3 * (held > 0))


@pytest.mark.parametrize(
    "name, floats",
    [
        ("sgd", 0),
        ("fa_sgd", 1),
        ("cf_sgd", 1),
        ("rowwise_adagrad", 2),
        ("adagrad", 6),
        ("adam", 12),
    ],
)
def test_optimizer_state_nbytes(clicks, name, floats):
    X, y = clicks
    model = estimator(FMClassifier, name).fit(X, y)
    assert model.optimizer_state_nbytes_ == 4 * floats * X.shape[1]


def test_untouched_tokens_stay_where_they_started(clicks):
    X, y = clicks
    for optimizer in ("sgd", "cf_sgd", "adagrad", "adam"):
        model = estimator(FMClassifier, optimizer).fit(X, y)
        generator = np.random.default_rng(model._seed)
        start = np.float32(0.3) * generator.standard_normal((12, 5), dtype=np.float32)
        assert_array_equal(model.factors_[5], start[5])
        assert model.coef_[5] == 0
        assert (model.factors_[0] != start[0]).all()


def test_special_functions():
    @numba.njit
    def evaluate(a, z):
        exps, logs = np.empty_like(a), np.empty_like(z)
        for i in range(len(a)):
            exps[i] = exp_of_minus(a[i])
            logs[i] = log_of_one_plus(z[i])
        return exps, logs

    a = np.concatenate([np.linspace(0, 87, 20_001), np.geomspace(1e-30, 1, 2000)])
    z = np.concatenate([np.linspace(0, 1, 20_001), np.geomspace(1e-30, 1, 2000)])
    a, z = a.astype(np.float32), z.astype(np.float32)
    exps, logs = evaluate(a, z)
    assert exps.dtype == logs.dtype == np.float32
    assert_allclose(exps, np.exp(-a.astype(float)), rtol=5e-6)
    near = a < 10  # further out, rounding a * log2(e) dominates
    assert_allclose(exps[near], np.exp(-a[near].astype(float)), rtol=1e-6)
    assert_allclose(logs, np.log1p(z.astype(float)), rtol=2.4e-7)
    far, _ = evaluate(np.float32([200, np.inf]), np.float32([0, 0]))
    assert_allclose(far, np.exp(-87.0), rtol=5e-6)


def test_arctangent():
    @numba.vectorize
    def evaluate(x):
        return arctangent(x)

    x = np.concatenate([np.linspace(-1, 1, 20_001), np.geomspace(1e-30, 1, 2000)])
    x = np.append(x, [0.0, np.nan]).astype(np.float32)
    found = evaluate(x)
    assert found.dtype == np.float32
    assert_allclose(found, np.arctan(x.astype(float)), rtol=3e-7)
