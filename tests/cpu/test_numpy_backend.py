"""The backend in plain NumPy: a second folder behind the interface, and the CPU's reference."""

import itertools
from operator import attrgetter

import numpy as np
import pytest
from custom_components import CustomAdagrad, CustomAdam, CustomBPR, CustomFASGD, CustomLogLoss
from numpy.testing import assert_allclose, assert_array_equal
from reference.numpy_backend import NumpyBackend
from scipy import sparse
from sklearn.base import clone
from sklearn.preprocessing import normalize
from sklearn.utils import estimator_checks as checks

from freqfm import (
    ALSRecommender,
    DeepFMClassifier,
    EASERecommender,
    FastVAERecommender,
    FMClassifier,
    FMRegressor,
    ItemKNNRecommender,
    MFRecommender,
    RaFMClassifier,
    RaFMRegressor,
    backends,
)
from freqfm.backbones import MLP, Features, LightGCN
from freqfm.backends.base import (
    Candidates,
    DislikedItems,
    Exclusions,
    FoldInProblem,
    Histories,
    ItemVectors,
    RankedLists,
    Stream,
)
from freqfm.datasets import make_interactions
from freqfm.initializers import Normal, XavierUniform
from freqfm.losses import (
    BPR,
    BSL,
    CCL,
    MAWU,
    PSL,
    RANKING_LOSSES,
    DirectAU,
    SLatK,
    Softmax,
    VectorLoss,
)
from freqfm.optimizers import CFSGD, FASGD, SGD, Adagrad, Adam, RowwiseAdagrad, WeightDecay
from freqfm.samplers import SAMPLERS, Popularity, Uniform
from freqfm.temperatures import AdapTau

pytestmark = pytest.mark.slow  # compiles or emulates many combinations

CPU = backends.get()

# Relative to the largest number of an array. Adam is the least exact: the CPU has its 1 - beta_2 in
# float32, 1e-5 from the number meant.
TOLERANCE = 1e-4


@pytest.fixture
def use(monkeypatch):
    """Return a function that lets estimators use a backend from then on."""

    def use(backend):
        monkeypatch.setattr(backends, "get", lambda device="cpu": backend)

    return use


@pytest.fixture
def numpy_backend(use):
    """Let estimators use the backend in NumPy."""
    use(NumpyBackend())


def covering(**axes):
    """Return few combinations in which any two values of any two axes meet, greedily."""
    sizes = [len(values) for values in axes.values()]
    cells = [(axis, k) for axis, size in enumerate(sizes) for k in range(size)]
    left = {(one, two) for one, two in itertools.combinations(cells, 2) if one[0] != two[0]}
    chosen = []
    while left:
        case = dict(min(left))
        for axis, size in enumerate(sizes):
            if axis not in case:
                case[axis] = max(range(size), key=lambda k: len(_pairs({**case, axis: k}) & left))
        left -= _pairs(case)
        chosen.append({name: axes[name][case[axis]] for axis, name in enumerate(axes)})
    return chosen


def _pairs(case):
    return set(itertools.combinations(sorted(case.items()), 2))


def label(value):
    if isinstance(value, dict):
        return "-".join(map(label, value.values()))
    return str(value) if isinstance(value, str | float | int | tuple) else type(value).__name__


def assert_near(actual, expected, name):
    assert actual.shape == expected.shape, name
    largest = np.abs(expected).max(initial=1e-3)
    assert_allclose(actual, expected, rtol=0, atol=TOLERANCE * largest, err_msg=name)


def fit_both(use, estimator, *data, **weights):
    """Return the estimator fitted by the CPU, and by NumPy."""
    fitted = []
    for backend in (CPU, NumpyBackend()):
        use(backend)
        fitted.append(clone(estimator).fit(*data, **weights))
    return fitted


# Factorization machines.

OPTIMIZERS = {
    "sgd": SGD(0.1),
    "fa_sgd": FASGD(0.1),
    "cf_sgd": CFSGD(),
    "cf_sgd by batches": CFSGD(count="batch", exponent=0.7),
    "rowwise_adagrad": RowwiseAdagrad(),
    "adagrad": Adagrad(),
    "adam": Adam(0.01),
    "dense adam": Adam(0.01, lazy=False),
}
LEVELS = {"ranks": (1, 2, 4), "rank_assignment": [5, 15]}
FM_MODELS = {
    "binary": FMClassifier(3),
    "three classes": FMClassifier(3),
    "regression": FMRegressor(3),
    "paper": RaFMClassifier(**LEVELS),
    "reference": RaFMClassifier(**LEVELS, form="reference", dependent_weight=0.5),
    "truncate": RaFMRegressor(**LEVELS, rank_sharing="truncate"),
}


def rows(model):
    """Return rows with values and without, and targets."""
    generator = np.random.default_rng(5)
    X = generator.choice([0.5, 1, 2], (60, 14)) * (generator.random((60, 14)) < 0.25)
    X[:, 0], X[7] = 1, 0
    y = np.arange(60) % 3 if model == "three classes" else np.arange(60) % 2
    return sparse.csr_array(X.astype(np.float32)), y


def fit_machines_that_agree(use, model, X, y, **options):
    """Fit a machine by both backends, compare the models, and return that of the CPU."""
    cpu, reference = fit_both(use, model, X, y, **options)
    for name in (*cpu._weight_names, "loss_curve_", "validation_scores_"):
        assert_near(getattr(reference, name), getattr(cpu, name), name)
    scores = "decision_function" if hasattr(cpu, "decision_function") else "predict"
    assert_near(getattr(reference, scores)(X), getattr(cpu, scores)(X), scores)
    return cpu


@pytest.mark.parametrize(
    "case",
    covering(
        model=list(FM_MODELS),
        optimizer=list(OPTIMIZERS),
        weighted=[False, True],
        params=[
            {"max_iter": 5},
            {"fit_intercept": False, "alpha_per": "row", "alpha_linear": 1e-2},
            {"fit_linear": False, "shuffle": False},
            {"early_stopping": True, "validation_fraction": 0.3},
        ],
    ),
    ids=label,
)
def test_factorization_machines_agree(use, case):
    X, y = rows(case["model"])
    model = FM_MODELS[case["model"]]
    model = clone(model).set_params(
        optimizer=OPTIMIZERS[case["optimizer"]], batch_size=25, init=Normal(0.3), random_state=0,
        **{"max_iter": 2, **case["params"]},
    )  # fmt: skip
    weight = np.random.default_rng(6).uniform(0.5, 2, len(y)) if case["weighted"] else None
    fit_machines_that_agree(use, model, X, y, sample_weight=weight)


def test_large_sets_are_visited_in_the_same_blocks(use):
    X = sparse.csr_array(np.random.default_rng(0).random((16_400, 3)).astype(np.float32))
    model = FMRegressor(2, max_iter=1, batch_size=4000, early_stopping=False, random_state=0)
    cpu, reference = fit_both(use, model, X, np.arange(16_400) % 5)
    assert_near(reference.factors_, cpu.factors_, "factors_")


# Recommenders.


def histories():
    """Return users with up to ten weighted items, one without any."""
    generator = np.random.default_rng(3)
    X = (generator.random((16, 12)) < np.linspace(0.7, 0.1, 12)) * generator.choice(
        [0.5, 1, 2], (16, 12)
    )
    X[3] = 0
    return sparse.csr_array(X.astype(np.float32))


def assert_recommenders_agree(use, model):
    X = histories()
    cpu, reference = fit_both(use, model, X)
    for name, expected in cpu._tables().items():
        assert_near(reference._tables()[name], expected, name)
    for name in ("loss_curve_", "_inverse_temperatures", "_training.statistics"):
        one, other = (attrgetter(name)(model) for model in (reference, cpu))
        assert_near(one, other, name)
    # One model, used by both. Histories of a recommender without an encoder are folded in by steps
    # that need not converge, so that float32 and float64 part: see below.
    asked = {"X": X} if isinstance(model, FastVAERecommender) else {"users": np.arange(16)}
    served = []
    for backend in (CPU, NumpyBackend()):
        use(backend)
        served.append(cpu.recommend(**asked, n_recommendations=4))
    assert_array_equal(served[1][0], served[0][0])
    found = served[0][0] >= 0
    assert_near(served[1][1][found], served[0][1][found], "scores")


STEPS = {**OPTIMIZERS, "cf_sgd": CFSGD(0.3)}
del STEPS["cf_sgd by batches"]
SOFTMAX_SAMPLERS = list(SAMPLERS)


@pytest.mark.parametrize(
    "case",
    covering(
        optimizer=list(STEPS),
        sampler=SOFTMAX_SAMPLERS,
        loss=[BSL(1.2), Softmax(include_positive=True), Softmax()],
        comparison=[
            ("cosine", 0.5),
            ("cosine", AdapTau(warm_up=1)),
            ("cosine", "learned"),
            ("cosine", "learned_user"),
            ("dot", 0.5),
            ("dot", "learned"),
        ],
        user_dropout=[0.0, 0.2],
        decay=[(0.0, "full"), (0.01, "full"), (0.01, "batch")],
    ),
    ids=label,
)
def test_softmax_losses_agree(use, case):
    similarity, temperature = case.pop("comparison")
    model = mf_model(**case, similarity=similarity, temperature=temperature)
    assert_recommenders_agree(use, model)


@pytest.mark.parametrize(
    "case",
    covering(
        optimizer=list(STEPS),
        loss=[
            *(
                make()
                for make in RANKING_LOSSES.values()
                if not issubclass(make, (Softmax, VectorLoss))
            ),
            MAWU(0.5, 0.5, margins=False),
        ],
        user_dropout=[0.0, 0.2],
        decay=[(0.0, "full"), (0.01, "full"), (0.01, "batch")],
    ),
    ids=label,
)
def test_other_losses_agree(use, case):
    assert_recommenders_agree(use, mf_model(**case))


def test_margins_that_momentum_moves_beyond_their_bounds_agree(use):
    model = mf_model(loss=MAWU(0.5, 0.5), optimizer="sgd")
    model.set_params(optimizer=Adam(0.1, epsilon=1e-2, lazy=False), batch_size=6)
    assert_recommenders_agree(use, model)


@pytest.mark.parametrize(
    "case",
    covering(
        loss=[PSL(), SLatK(3, weight_temperature=0.5, refresh=1), SLatK(20, refresh=2), CCL()],
        sampler=["uniform", "popularity"],
        user_dropout=[0.0, 0.2],
    ),
    ids=label,
)
def test_later_losses_agree(use, case):
    assert_recommenders_agree(use, mf_model(**case, optimizer="sgd"))


@pytest.mark.parametrize("loss", [PSL(), SLatK(3)], ids=label)
@pytest.mark.parametrize("sampler", ["full", "in_batch", "midx_popularity"])
def test_later_losses_agree_on_other_negatives(use, loss, sampler):
    assert_recommenders_agree(use, mf_model(loss=loss, sampler=sampler, optimizer="sgd"))


@pytest.mark.parametrize("temperature", [AdapTau(warm_up=1), "learned_user"])
def test_temperatures_of_slatk_agree(use, temperature):
    assert_recommenders_agree(
        use,
        mf_model(loss=SLatK(3, weight_temperature=0.5), temperature=temperature, optimizer="sgd"),
    )


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
@pytest.mark.parametrize("sampler", ["uniform", "dns"])
def test_negatives_of_pairs_agree(use, sampler, similarity):
    model = mf_model(loss=BPR(), sampler=sampler, similarity=similarity, optimizer="sgd")
    assert_recommenders_agree(use, model)


def epochs(sampler):
    """Return for how many epochs fits agree: clusters of vectors that hardly differ may jump."""
    return 1 if "midx" in sampler else 2


def mf_model(loss, optimizer, sampler="auto", decay=(0.0, "full"), **params):
    draws = loss.n_negatives is not None and sampler not in ("full", "in_batch")
    return MFRecommender(
        6, loss=loss, optimizer=STEPS[optimizer], negative_sampler=sampler,
        max_iter=epochs(sampler), batch_size=30, n_negatives=5 if draws else None,
        weight_decay=WeightDecay(decay[0], scope=decay[1]), init=XavierUniform(0.5),
        random_state=0, **params,
    )  # fmt: skip


@pytest.mark.parametrize(
    "case",
    covering(
        optimizer=["sgd", "adagrad", "dense adam", "cf_sgd"],
        loss=[BSL(1.2), BPR(), MAWU(0.5, 0.5)],
        decay=[(0.0, "full"), (0.01, "full"), (0.01, "batch")],
    ),
    ids=label,
)
def test_backbones_agree(use, case):
    generator = np.random.default_rng(8)
    features = [
        sparse.csr_array(generator.normal(size=(n, 5)).astype(np.float32)) for n in (16, 12)
    ]
    assert_recommenders_agree(use, mf_model(**case, backbone=Features(*features)))


@pytest.mark.parametrize("loss", [BSL(1.2), BPR(), DirectAU(0.5)], ids=label)
@pytest.mark.parametrize(
    "backbone",
    [LightGCN(2), LightGCN(2, propagate="batch"), MLP((9,), activation="tanh")],
    ids=label,
)
def test_shipped_backbones_agree(use, backbone, loss):
    assert_recommenders_agree(use, mf_model(loss, "sgd", backbone=backbone))


VAE_SAMPLERS = [name for name in SAMPLERS if name not in ("in_batch", "dns", "self_adversarial")]
VAE_STEPS = {
    "sgd": SGD(0.05), "fa_sgd": FASGD(0.02), "cf_sgd": CFSGD(0.1),
    "rowwise_adagrad": RowwiseAdagrad(0.01), "adagrad": Adagrad(0.01), "adam": Adam(0.01),
    "dense adam": Adam(0.01, lazy=False),
}  # fmt: skip


@pytest.mark.parametrize(
    "case",
    covering(
        optimizer=list(VAE_STEPS),
        sampler=VAE_SAMPLERS,
        similarity=["cosine", "dot"],
        temperature=[None, "learned"],
        n_samples=[1, 2],
        dropout_on=["input", "hidden"],
        decay=[(0.0, "full"), (0.01, "full"), (0.01, "batch")],
    ),
    ids=label,
)
def test_autoencoders_agree(use, case):
    decay, sampler = case.pop("decay"), case.pop("sampler")
    model = FastVAERecommender(
        4, hidden_layer_sizes=(5,), negative_sampler=sampler,
        max_iter=epochs(sampler), batch_size=8, n_negatives=None if sampler == "full" else 5,
        weight_decay=WeightDecay(decay[0], scope=decay[1]), early_stopping=False, random_state=0,
        init="normal", **{**case, "optimizer": VAE_STEPS[case["optimizer"]]},
    )  # fmt: skip
    assert_recommenders_agree(use, model)


@pytest.mark.parametrize("solver", ["cg", "cholesky"])
def test_least_squares_agree(use, solver):
    X = histories()
    model = ALSRecommender(3, solver=solver, max_iter=3, random_state=0)
    cpu, reference = fit_both(use, model, X)
    for name in ("user_factors_", "item_factors_", "loss_curve_"):
        assert_near(getattr(reference, name), getattr(cpu, name), name)
    placed = []
    for backend in (CPU, NumpyBackend()):
        use(backend)
        placed.append(cpu.transform(X))
    assert_near(placed[1], placed[0], "transform")


# Custom formulas, by NumPy alone: the package's formulas, written again.


@pytest.mark.parametrize(
    ("custom", "shipped"),
    [
        ({"loss": CustomLogLoss()}, {"loss": "log"}),
        ({"optimizer": CustomAdam(0.01)}, {"optimizer": Adam(0.01)}),
        ({"optimizer": CustomFASGD(0.1)}, {"optimizer": FASGD(0.1)}),
    ],
    ids=label,
)
@pytest.mark.parametrize("model", ["binary", "paper"])
def test_custom_formulas_of_factorization_machines(numpy_backend, model, custom, shipped):
    X, y = rows(model)
    one, other = (
        clone(FM_MODELS[model])
        .set_params(max_iter=2, batch_size=25, init=Normal(0.3), random_state=0, **params)
        .fit(X, y)
        for params in (custom, shipped)
    )
    for name in (*one._weight_names, "loss_curve_"):
        assert_near(getattr(one, name), getattr(other, name), name)


@pytest.mark.parametrize(
    ("custom", "shipped"),
    [
        ({"loss": CustomBPR()}, {"loss": BPR()}),
        ({"optimizer": CustomAdagrad(0.05)}, {"optimizer": Adagrad(0.05)}),
    ],
    ids=label,
)
def test_custom_formulas_of_recommenders(numpy_backend, custom, shipped):
    X = histories()
    params = {"loss": BPR(), "n_negatives": 2, "n_components": 6, "similarity": "dot"}
    one, other = (
        MFRecommender(**{**params, **of_model}, max_iter=2, batch_size=30, random_state=0).fit(X)
        for of_model in (custom, shipped)
    )
    for name in ("user_factors_", "item_factors_", "loss_curve_"):
        assert_near(getattr(one, name), getattr(other, name), name)
    assert_near(one.transform(X), other.transform(X), "transform")


# Operations on their own.


# With little inertia some steps are undone.
@pytest.mark.parametrize("inertia", [3.0, 0.05])
@pytest.mark.parametrize("pairwise", [False, True])
@pytest.mark.parametrize("n_disliked", [0, 2])
def test_folding_in_agrees(n_disliked, pairwise, inertia):
    X, generator = histories(), np.random.default_rng(0)
    items, others = (generator.normal(size=(n, 4)).astype(np.float32) for n in (12, 5))
    problem = FoldInProblem(
        items, others, pairwise, positive=1.5, inverse=2.0, constant=1.2, inertia=inertia,
        largest_rise=1e-4, n_steps=4,
    )  # fmt: skip
    given = problem, Histories(X.indptr.astype(np.int64), X.indices, X.data), 1
    n = n_disliked * X.shape[0]
    disliked = DislikedItems(
        n_disliked * np.arange(X.shape[0] + 1),
        generator.integers(0, 12, n).astype(np.int32),
        generator.random(n, dtype=np.float32),
        1.7,
    )
    results = [backend.fold_in(*given, disliked=disliked) for backend in (CPU, NumpyBackend())]
    assert_near(results[1], results[0], "vectors")
    if not n_disliked:
        assert_array_equal(CPU.fold_in(*given), results[0])


@pytest.mark.parametrize("unit_columns", [0, 2])
def test_top_k_agrees(unit_columns):
    generator = np.random.default_rng(0)
    queries, items = (generator.normal(size=(n, 3)).astype(np.float32) for n in (5, 9))
    items[4], items[6] = items[2], np.nan
    excluded = Exclusions(
        np.array([0, 2, 2, 3, 3, 3]), np.array([1, 8, 0], dtype=np.int32), np.array([5], np.int32)
    )
    results = [
        backend.top_k(queries, items, 8, excluded, unit_columns, 1)
        for backend in (CPU, NumpyBackend())
    ]
    assert_array_equal(results[0][0], results[1][0])
    assert_allclose(results[0][1], results[1][1], rtol=1e-5)


@pytest.mark.parametrize("unit_columns", [0, 2])
def test_top_k_of_candidates_agrees(unit_columns):
    generator = np.random.default_rng(0)
    queries, items = (generator.normal(size=(n, 3)).astype(np.float32) for n in (5, 9))
    items[4], items[6] = items[2], np.nan
    candidates = sparse.csr_array(generator.random((5, 9)) < [[0.7], [0.7], [0], [1], [0.3]])
    candidates = Candidates(candidates.indptr.astype(np.int64), candidates.indices)
    excluded = Exclusions(
        np.array([0, 2, 2, 3, 3, 3]), np.array([1, 8, 0], dtype=np.int32), np.array([5], np.int32)
    )
    results = [
        backend.top_k_of_candidates(queries, items, 7, candidates, excluded, unit_columns, 1)
        for backend in (CPU, NumpyBackend())
    ]
    assert_array_equal(results[0][0], results[1][0])
    assert_allclose(results[0][1], results[1][1], rtol=1e-5)


@pytest.mark.parametrize(
    "model", [ItemKNNRecommender(5), EASERecommender(n_neighbors=5), EASERecommender()]
)
def test_weights_between_items_agree(use, model):
    X = make_interactions(60, 30, 400, random_state=0)
    # Counts of ones tie, and ties are broken by how sums were rounded.
    X.data = np.random.default_rng(0).uniform(1, 2, X.nnz).astype(np.float32)
    lists = sparse.csr_array((np.arange(60)[:, None] + np.arange(30)) % 3 == 0).astype(np.float32)
    found = []
    for backend in (CPU, NumpyBackend()):
        use(backend)
        fitted = clone(model).fit(X)
        options = {"n_recommendations": 4, "exclude": [3, 8]}
        items, scores = fitted.recommend(X, candidates=lists, **options)
        found.append((fitted.item_weights_.toarray(), items, scores))
    assert_array_equal(found[0][1], found[1][1])
    for one, other in zip(*found, strict=True):
        assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def test_diverse_items_agree():
    generator = np.random.default_rng(0)
    items = generator.permuted(np.tile(np.arange(40, dtype=np.int32), (30, 1)), axis=1)[:, :25]
    for row, n in enumerate(generator.integers(0, 26, 20)):
        items[row, n:] = -1
    relevances = -np.sort(-generator.random((30, 25)).astype(np.float32), axis=1)
    lists = RankedLists(items, relevances)
    dense = generator.normal(size=(40, 6)).astype(np.float32)
    dense /= np.linalg.norm(dense, axis=1, keepdims=True)
    dense[7] = 0
    none = Histories(np.zeros(1, np.int64), np.zeros(0, np.int32), np.zeros(0, np.float32))
    rows = sparse.csr_array(np.where(generator.random((40, 50)) < 0.2, 1.0, 0.0))
    rows.data = generator.random(rows.nnz)
    rows = normalize(rows)
    rows = Histories(
        rows.indptr.astype(np.int64), rows.indices.astype(np.int32), rows.data.astype(np.float32)
    )
    empty = np.zeros((0, 0), dtype=np.float32)
    for vectors in (ItemVectors(dense, none, 6), ItemVectors(empty, rows, 50)):
        for diversity in (0.0, 0.4, 1.0):
            found = [
                backend.diversify(lists, vectors, diversity, 10, n_threads)
                for backend, n_threads in ((CPU, 1), (CPU, 2), (NumpyBackend(), 1))
            ]
            assert_array_equal(found[0], found[2])
            assert_array_equal(found[1], found[2])


def test_sums_and_alias_tables_agree():
    generator = np.random.default_rng(0)
    some = Histories(
        np.array([0, 2, 2, 5]),
        np.array([0, 3, 1, 2, 3], dtype=np.int32),
        generator.random(5).astype(np.float32),
    )
    table = generator.normal(size=(4, 3)).astype(np.float32)
    starts, weights = np.array([0, 5, 6, 12]), generator.random(12)
    cpu, reference = (
        [backend.sum_histories(some, table, 1), *backend.alias_tables(starts, weights)]
        for backend in (CPU, NumpyBackend())
    )
    for name, one, other in zip(("sums", "thresholds", "aliases"), cpu, reference, strict=True):
        assert_near(other, one, name)


def test_random_numbers_agree():
    stream, indices = Stream(3, 5, 2), np.arange(2000).reshape(20, 100)
    cpu, reference = (
        [
            backend.permutation(stream, 50),
            backend.uniform(stream, indices),
            backend.standard_normal(stream, indices),
        ]
        for backend in (CPU, NumpyBackend())
    )
    assert_array_equal(cpu[0], reference[0])
    assert_array_equal(cpu[1], reference[1])
    assert_allclose(cpu[2], reference[2], atol=1e-5)


# Behaviour of estimators, with no other backend at work.

CHECKS = [
    checks.check_estimators_dtypes,
    checks.check_fit2d_1sample,
    checks.check_fit2d_1feature,
    checks.check_fit_idempotent,
    checks.check_methods_subset_invariance,
    checks.check_readonly_memmap_input,
    checks.check_estimators_pickle,
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize(
    "estimator",
    [
        FMClassifier(2),
        RaFMRegressor((1, 2)),
        DeepFMClassifier(2, hidden_layer_sizes=(3,)),
        MFRecommender(2),
        ALSRecommender(2),
        FastVAERecommender(2),
    ],
    ids=label,
)
def test_checks_of_scikit_learn(numpy_backend, estimator, check):
    check(type(estimator).__name__, clone(estimator).set_params(max_iter=1))


def test_a_weight_is_so_many_rows(numpy_backend):
    X, y = rows("binary")
    weight = np.arange(len(y)) % 3
    model = FMClassifier(
        2, optimizer="sgd", learning_rate=0.3, max_iter=3, batch_size=1000, early_stopping=False,
        random_state=0,
    )  # fmt: skip
    weighted = clone(model).fit(X, y, sample_weight=weight)
    repeated = np.repeat(np.arange(len(y)), weight)
    repeated = clone(model).fit(X[repeated], y[repeated])
    assert_allclose(weighted.factors_, repeated.factors_, atol=1e-5)


def test_partial_fit_goes_on(numpy_backend):
    X, y = rows("binary")
    params = {"max_iter": 2, "shuffle": False, "early_stopping": False, "random_state": 0}
    model = FMClassifier(2, optimizer="adam", alpha_per="row", **params)
    whole = clone(model).fit(X, y)
    parts = clone(model).partial_fit(X, y, classes=[0, 1]).partial_fit(X, y)
    assert_array_equal(whole.factors_, parts.factors_)


def test_early_stopping_keeps_the_best_epoch(numpy_backend):
    X, y = rows("binary")
    params = {"early_stopping": True, "n_iter_no_change": 1, "alpha_factors": 0}
    model = FMClassifier(2, **params, max_iter=90, random_state=0)
    model.fit(X[:40], y[:40], X_val=X[40:], y_val=y[40:])
    best = model.validation_scores_.max()
    assert model.n_iter_ < 90 and model.validation_scores_[model.best_iter_ - 1] == best


@pytest.mark.parametrize("sampler", [Uniform(), Popularity()], ids=repr)
def test_lists_agree(sampler):
    proposal = sampler.proposal(np.arange(30))
    lists = [
        backend.draw_lists(proposal, Stream(5, 2, 7), 3, (8, 11))
        for backend in (CPU, NumpyBackend())
    ]
    assert_array_equal(*lists)
