"""Samplers: their distributions, and that draws follow them."""

import numpy as np
import pytest
import reference.samplers
from helpers import each, slow_params
from numpy.testing import assert_allclose, assert_array_equal
from reference.numpy_backend.sampling import distribution_of
from scipy import stats
from scipy.special import log_softmax
from sklearn.base import clone

from freqfm import FastVAERecommender, backends
from freqfm._numba.jit import kernel, specialised
from freqfm.backends.base import Stream
from freqfm.datasets import make_interactions
from freqfm.formulas.proposals import draws_from, formulas_of, log_q_of, prepare_query
from freqfm.formulas.rng import key_of
from freqfm.samplers import (
    AOBPR,
    DNS,
    MIDX,
    PRIS,
    SAMPLERS,
    Kernel,
    Popularity,
    Sampler,
    SelfAdversarial,
    Uniform,
    proposal_of,
)
from freqfm.samplers._base import leave_out

N_ITEMS, WIDTH = 120, 7


def _write_log_q(proposal, query, out, numbers, sums):
    prepare_query(proposal, query, numbers, sums)
    for i in range(out.shape[0]):
        out[i] = log_q_of(proposal, query, i, numbers, sums)


write_log_q = kernel(_write_log_q, cached=False)

CASES = [make() for make in SAMPLERS.values()] + [
    MIDX("popularity", popularity="count", n_codewords=3),
    MIDX("popularity", popularity="power", n_codewords=200),
    MIDX("uniform", n_subspaces=1, n_codewords=5),
    MIDX("popularity", n_subspaces=3, n_codewords=4),
    MIDX("exact", n_subspaces=3, n_codewords=4),
    Kernel(alpha=0.5),
    DNS(n_candidates=2),
    SelfAdversarial(temperature=0.5),
    AOBPR(rank_scale=10.0),
    PRIS("uniform", n_clusters=5),
]
EVERY_SAMPLER = pytest.mark.parametrize("sampler", CASES, ids=repr)


def clustered(rng, n, d, spread=0.3):
    """Return unit vectors in clusters, as trained ones are."""
    centres = rng.normal(size=(12, d))
    vectors = centres[rng.integers(0, 12, n)] + spread * rng.normal(size=(n, d))
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.fixture(scope="module")
def problem():
    rng = np.random.default_rng(5)
    items = rng.normal(size=(N_ITEMS, WIDTH)).astype(np.float32)
    items[7] = items[3]
    queries = rng.normal(size=(3, WIDTH)).astype(np.float32)
    return items, rng.integers(0, 40, N_ITEMS), queries


@pytest.fixture(scope="module", params=["random", "clustered", *slow_params(["trained"])])
def larger(request):
    rng = np.random.default_rng(6)
    if request.param == "trained":
        X = make_interactions(400, 800, 12_000, n_clusters=8, random_state=0)
        model = FastVAERecommender(10, similarity="dot", max_iter=20, random_state=0).fit(X)
        vectors = model.item_factors_[:, :-1].astype(float)
        return vectors, model.item_counts_, model.transform(X[:5]).astype(float)
    if request.param == "random":
        return rng.normal(size=(800, 10)), rng.integers(0, 90, 800), rng.normal(size=(5, 10))
    counts = (1000 / np.arange(1, 801)).astype(int)
    return clustered(rng, 800, 10), counts, 8 * clustered(rng, 5, 10)


def fit_to(sampler, problem):
    items, counts, queries = problem
    return clone(sampler).fit(items, counts, random_state=0), queries


@EVERY_SAMPLER
def test_probabilities_sum_to_one(sampler, problem):
    fitted, queries = fit_to(sampler, problem)
    log_proba = fitted.log_proba(queries)
    assert log_proba.shape == (3, N_ITEMS)
    assert_allclose(np.exp(log_proba).sum(axis=1), 1, rtol=1e-12)


@EVERY_SAMPLER
def test_draws_follow_the_distribution(sampler, problem):
    fitted, queries = fit_to(sampler, problem)
    ids, log_q = fitted.sample(queries, 20_000, random_state=3)
    assert (ids.shape, ids.dtype) == ((3, 20_000), np.int32)
    assert (log_q.shape, log_q.dtype) == ((3, 20_000), np.float32)
    seen = np.stack([np.bincount(drawn, minlength=N_ITEMS) for drawn in ids])
    expected = 20_000 * np.exp(fitted.log_proba(queries))
    # The chi-square test needs expected counts of five: rare items are counted together.
    rare = expected < 5
    seen, few = seen[~rare], seen[rare].sum()
    expected, n_rare = expected[~rare], expected[rare].sum()
    if n_rare >= 5:
        seen, expected = np.append(seen, few), np.append(expected, n_rare)
    expected *= seen.sum() / expected.sum()
    assert stats.chisquare(seen, expected, ddof=2).pvalue > 0.01


def test_items_left_out_are_never_drawn_and_the_others_as_before():
    weights = np.random.default_rng(1).random(N_ITEMS) ** 4 + 1e-4
    absent = np.arange(N_ITEMS) % 3 == 0
    for whole, of_items in ((proposal_of(weights), weights), (Uniform().proposal(weights), 1)):
        part = leave_out(whole, absent)
        ids = backends.get().draw_lists(part, Stream(3, 1, 0), 0, (100, 1000))
        expected = np.where(absent, 0.0, of_items)
        expected *= ids.size / expected.sum()
        seen = np.bincount(ids.ravel(), minlength=N_ITEMS)
        assert not seen[absent].any()
        assert stats.chisquare(seen[~absent], expected[~absent]).pvalue > 1e-3
        share = expected[~absent] / ids.size
        assert_allclose(part.log_q[~absent], np.log(share * len(share)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("sampler", [Uniform(), Popularity(), Popularity(exponent=1)], ids=repr)
def test_lists_follow_the_distribution(sampler):
    counts = np.random.default_rng(1).integers(0, 40, N_ITEMS)
    weights = (counts + 1) ** getattr(sampler, "exponent", 0)
    proposal, draw_lists = sampler.proposal(counts), backends.get().draw_lists
    stream = Stream(3, 1, 0)
    long, short = (
        draw_lists(proposal, stream, 0, (2, 30_000)),
        draw_lists(proposal, stream, 5, (60_000, 1)),
    )
    halves = [half.ravel() for half in (*long, short)]
    for drawn in halves:
        expected = weights / weights.sum() * drawn.size
        found = np.bincount(drawn, minlength=N_ITEMS)
        assert stats.chisquare(found, expected).pvalue > 1e-3
    # Neighbours, in a list and among lists, are independent.
    for drawn in halves:
        pairs = np.zeros((N_ITEMS, N_ITEMS))
        np.add.at(pairs, (drawn[:-1], drawn[1:]), 1)
        blocks = pairs.reshape(4, N_ITEMS // 4, 4, N_ITEMS // 4).sum(axis=(1, 3))
        assert stats.chi2_contingency(blocks).pvalue > 1e-3


@pytest.mark.parametrize("sampler", [Uniform(), Popularity()], ids=repr)
def test_lists_are_draws_by_number(sampler):
    proposal, backend = sampler.proposal(np.arange(N_ITEMS)), backends.get()
    lists = backend.draw_lists(proposal, Stream(2, 3, 4), 0, (9, 6))
    assert lists.dtype == np.int32 and lists.shape == (9, 6)
    assert_array_equal(backend.draw_lists(proposal, Stream(2, 3, 4), 4, (3, 2)), lists[4:7, :2])
    many = backend.draw_lists(proposal, Stream(2, 3, 4), 0, (51_000, 1))
    shared = backend.draw_lists(proposal, Stream(2, 3, 4), 0, (51_000, 1), n_threads=3)
    assert_array_equal(shared, many)
    for stream in (Stream(1, 3, 4), Stream(2, 1, 4), Stream(2, 3, 1)):
        assert (backend.draw_lists(proposal, stream, 0, (9, 6)) != lists).any(axis=1).all()
    with np.errstate(over="ignore"):
        key = np.uint64(key_of(Stream(2, 3, 4)))
    queries = np.zeros((9, 0), dtype=np.float32)
    assert_array_equal(backend.draw(proposal, queries, key, 6)[0], lists)


def test_a_sampler_draws_by_its_proposal(problem):
    items, counts, _ = problem
    rng = np.random.default_rng(0)
    proposal = Popularity(exponent=2).proposal(1_000_000 * (counts == counts.max()))
    drawn = Popularity().draw((20, 3), N_ITEMS, proposal, rng)
    assert drawn.shape == (20, 3) and drawn.dtype == np.int32
    assert_array_equal(np.unique(drawn), np.flatnonzero(counts == counts.max()))
    assert (Uniform().draw((20, 3), N_ITEMS, Uniform().proposal(counts), rng) != drawn).any()
    needs_queries = Kernel().proposal(counts, items, 0)
    with pytest.raises(ValueError, match="proposal of Uniform is a Quadratic, which needs queries"):
        Uniform().draw((2, 3), N_ITEMS, needs_queries, rng)


@EVERY_SAMPLER
def test_log_q_is_that_of_the_distribution(sampler, problem):
    fitted, queries = fit_to(sampler, problem)
    ids, log_q = fitted.sample(queries, 500, random_state=2)
    expected = np.take_along_axis(fitted.log_proba(queries), ids, axis=1)
    if getattr(sampler, "weighted", False):
        # Minus the log of n_items and of the weights relative to their mean.
        logits = np.take_along_axis(queries @ fitted.item_vectors_.T, ids, axis=1)
        logits = logits / getattr(sampler, "temperature", 1.0) - expected
        expected = -(np.log(N_ITEMS) + log_softmax(logits, axis=1) + np.log(500))
    assert_allclose(log_q, expected, atol=2e-5)


@EVERY_SAMPLER
def test_log_q_of_any_item(sampler, problem):
    # What kernels subtract from the logit of a positive that was not drawn.
    fitted, queries = fit_to(sampler, problem)
    if getattr(sampler, "weighted", False) or not getattr(sampler, "corrected", True):
        expected = np.zeros((3, N_ITEMS))
    else:
        expected = fitted.log_proba(queries) + np.log(N_ITEMS)
    proposal = fitted.proposal_
    numbers, sums = draws_from(proposal, 1)[1:3]
    found = np.empty(N_ITEMS, dtype=np.float32)
    for query, row in zip(queries, expected, strict=True):
        write = specialised(write_log_q, formulas_of(proposal))
        write(proposal, query, found, numbers[0], sums[0])
        assert_allclose(found, row, atol=2e-5)


# The log_q of PRIS are weights; ``test_pris_equals_the_reference`` has its probabilities.
KNOWN = [s for s in CASES if getattr(s, "corrected", True) and not isinstance(s, PRIS)]


@pytest.mark.parametrize("sampler", KNOWN, ids=repr)
def test_probabilities_are_those_of_the_reference(sampler, problem):
    # Written from the formula of the distribution, in another backend.
    fitted, queries = fit_to(sampler, problem)
    for query, row in zip(queries, fitted.log_proba(queries), strict=True):
        log_q = distribution_of(fitted.proposal_, query).log_q(np.arange(N_ITEMS))
        assert_allclose(log_q - np.log(N_ITEMS), row, atol=2e-6)


def test_exact_midx_is_the_softmax(larger):
    # Theorem 4.1.
    items, _, queries = larger
    for n_subspaces in (1, 2, 3):
        sampler = MIDX("exact", n_subspaces=n_subspaces).fit(items, random_state=0)
        queries32, items32 = (np.asarray(a, np.float32).astype(float) for a in (queries, items))
        expected = log_softmax(queries32 @ items32.T, axis=1)
        assert_allclose(sampler.log_proba(queries), expected, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["uniform", "popularity", "exact"])
def test_midx_equals_the_reference(problem, variant):
    items, counts, queries = problem
    sampler = MIDX(variant, n_codewords=4).fit(items, counts, random_state=0)
    assert [book.shape for book in sampler.codebooks_] == [(4, 4), (4, 3)]
    pop = np.log1p(np.maximum(counts, 1))
    for query, row in zip(queries, sampler.log_proba(queries), strict=True):
        expected = reference.samplers.midx_probabilities(
            query, items, sampler.codebooks_, sampler.codes_, variant, pop
        )
        assert_allclose(np.exp(row), expected, rtol=1e-5)


def test_items_have_the_nearest_codewords(larger):
    items, _, _ = larger
    sampler = MIDX(n_codewords=6).fit(items, random_state=0)
    for part, book, code in zip(
        np.split(items, 2, axis=1), sampler.codebooks_, sampler.codes_.T, strict=True
    ):
        distance = ((part[:, None] - book) ** 2).sum(axis=2)
        assert_array_equal(code, distance.argmin(axis=1))
        for k in range(6):
            assert_allclose(book[k], part[code == k].mean(axis=0), atol=0.1)
    rebuilt = [book[code] for book, code in zip(sampler.codebooks_, sampler.codes_.T, strict=True)]
    assert_allclose(sampler.quantized_vectors_, np.hstack(rebuilt), atol=1e-7)


def divergence(log_p, log_q):
    return (np.exp(log_p) * (log_p - log_q)).sum(axis=1)


def test_divergence_from_the_softmax_is_bounded(larger):
    # Theorems 5.3 and 5.4.
    items, counts, queries = larger
    softmax = log_softmax(queries @ items.T, axis=1)
    uniform = MIDX("uniform").fit(items, counts, random_state=0)
    residual = np.linalg.norm(items - uniform.quantized_vectors_, axis=1).max()
    bound = 2 * residual * np.linalg.norm(queries, axis=1)
    found = divergence(uniform.log_proba(queries), softmax)
    assert (found > 0).all()
    assert (found <= bound).all()
    for popularity in ("log", "count", "power"):
        sampler = MIDX("popularity", popularity=popularity).fit(items, counts, random_state=0)
        found = divergence(sampler.log_proba(queries), softmax)
        ratio = np.ptp(sampler.proposal_.log_q)
        assert (found <= bound + ratio).all(), popularity


def test_more_codewords_are_closer_to_the_softmax(larger):
    items, counts, queries = larger
    softmax = log_softmax(queries @ items.T, axis=1)
    samplers = [Uniform(), *(MIDX("uniform", n_codewords=k) for k in (4, 16, 128))]
    found = [
        divergence(s.fit(items, counts, random_state=0).log_proba(queries), softmax).mean()
        for s in samplers
    ]
    assert found == sorted(found, reverse=True)
    assert found[-1] < found[0] / 4


@pytest.mark.slow
def test_kernel_equals_the_reference(problem):
    items, _, queries = problem
    sampler = Kernel(alpha=3.0).fit(items)
    for query, row in zip(queries, sampler.log_proba(queries), strict=True):
        assert_allclose(
            np.exp(row), reference.samplers.kernel_probabilities(query, items, 3.0), rtol=1e-5
        )
    nodes = sampler.proposal_.nodes
    assert nodes.nbytes <= 8 * N_ITEMS * (WIDTH + 1)
    whole = items.T @ items
    assert_allclose(nodes[1][0], whole[0, 0], rtol=1e-5)
    assert_allclose(nodes[1][1], 2 * whole[0, 1], rtol=1e-4)


def test_dns_equals_enumeration():
    items = np.array([[1.0], [3.0], [3.0], [0.0], [-2.0]])
    for n in (1, 2, 4):
        sampler = DNS(n_candidates=n).fit(items)
        for query in ([1.0], [-1.0], [0.0]):
            expected = reference.samplers.best_of_probabilities(query, items, n)
            assert_allclose(np.exp(sampler.log_proba([query]))[0], expected, rtol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("within", ["uniform", "popularity"])
def test_pris_equals_the_reference(problem, within):
    items, counts, queries = problem
    sampler = PRIS(within, n_clusters=4).fit(items, counts, random_state=0)
    cells = sampler.proposal_
    labels = cells.cell_codes[cells.cell_of][:, 0]
    distance = ((items[:, None] - cells.codewords) ** 2).sum(axis=2)
    assert_array_equal(labels, distance.argmin(axis=1))
    weights = np.log1p(np.maximum(counts, 1)) if within == "popularity" else np.ones(N_ITEMS)
    ids, log_q = sampler.sample(queries, 50_000, random_state=0)
    for q, query in enumerate(queries):
        expected = reference.samplers.cluster_probabilities(query, cells.codewords, labels, weights)
        assert_allclose(np.exp(sampler.log_proba(queries)[q]), expected, rtol=1e-5)
        # Means with the weights are those of the softmax.
        share = np.bincount(ids[q], np.exp(-log_q[q]) / N_ITEMS / 50_000, N_ITEMS)
        assert_allclose(share, np.exp(log_softmax(items @ query)), rtol=0.2, atol=2e-3)


@pytest.mark.slow
def test_aobpr_equals_the_reference(problem):
    items, _, queries = problem
    for scale in (0.5, 10.0, 1e4):
        sampler = AOBPR(scale).fit(items)
        for query, row in zip(queries, sampler.log_proba(queries), strict=True):
            expected = reference.samplers.ranked_probabilities(query, items, scale)
            assert_allclose(np.exp(row), expected, rtol=1e-5)


@pytest.mark.slow
def test_gradient_of_the_sampled_softmax():
    # By the logits it is the softmax, here as its mean logit. Self-normalised weights are biased,
    # the less, the closer the proposal is to the softmax, and not at all if it is the softmax.
    rng = np.random.default_rng(8)
    items, query = clustered(rng, 400, 8), 6 * clustered(rng, 1, 8)
    logits = (query @ items.T)[0]
    truth = np.exp(log_softmax(logits)) @ logits
    bias, error = [], []
    for sampler in (Uniform(), MIDX("uniform", n_codewords=4), MIDX("exact")):
        sampler.fit(items, random_state=0)
        ids, log_q = sampler.sample(np.repeat(query, 20_000, axis=0), 8, random_state=3)
        weights = np.exp(log_softmax(logits[ids] - log_q, axis=1))
        estimates = (weights * logits[ids]).sum(axis=1)
        bias.append(abs(estimates.mean() - truth))
        error.append(estimates.std() / np.sqrt(20_000))
    assert bias[2] < 3 * error[2]
    assert bias[0] > bias[1] + 5 * error[1]
    assert bias[1] > 5 * error[1]


ODD_VECTORS = {
    "one item": np.ones((1, 4)),
    "identical items": np.ones((50, 4)),
    "zeros": np.zeros((20, 3)),
    "fewer items than codewords": np.random.default_rng(0).normal(size=(5, 3)),
    "one column": np.random.default_rng(0).normal(size=(100, 1)),
    "two places": np.repeat([[1.0, 2.0, 3.0], [0.0, -1.0, 1.0]], 30, axis=0),
    "long vectors": 1e3 * np.random.default_rng(0).normal(size=(100, 4)),
}


@pytest.mark.parametrize("name", SAMPLERS)
@each("odd", ODD_VECTORS)
def test_odd_vectors(name, odd):
    items = ODD_VECTORS[odd]
    counts = np.arange(len(items)) % 5
    queries = np.random.default_rng(1).normal(size=(2, items.shape[1])).astype(np.float32)
    sampler = SAMPLERS[name]().fit(items, counts, random_state=0)
    ids, log_q = sampler.sample(queries, 300, random_state=0)
    assert ((ids >= 0) & (ids < len(items))).all()
    log_proba = sampler.log_proba(queries)
    assert_allclose(np.exp(log_proba).sum(axis=1), 1, rtol=1e-9)
    if getattr(sampler, "weighted", False):
        # Weights relative to their mean.
        assert_allclose(np.exp(-log_q).mean(axis=1), len(items), rtol=1e-3)
    else:
        drawn = np.take_along_axis(log_proba, ids, axis=1)
        assert_allclose(log_q, drawn, rtol=1e-4, atol=1e-3)
    if name.startswith(("midx", "pris")):
        again = sampler.proposal(counts, sampler.item_vectors_, 1, sampler.proposal_)
        assert_allclose(again.codewords, sampler.proposal_.codewords, atol=1e3)


@pytest.mark.slow
def test_queries_that_are_not_finite_draw_some_item(problem):
    # A fit that diverges ends with an error, and not with a crash.
    items, counts, _ = problem
    for cls in SAMPLERS.values():
        sampler = cls().fit(items, counts, random_state=0)
        for number in (np.nan, np.inf, 3e38):
            sampler._check_queries = lambda queries: queries
            query = np.full((1, WIDTH), number, dtype=np.float32)
            # Without the probabilities of uncorrected draws, which are of no use here.
            ids, _ = Sampler.sample(sampler, query, 50, random_state=0)
            assert ((ids >= 0) & (ids < N_ITEMS)).all()


def test_refreshed_codewords_stay_and_follow():
    rng = np.random.default_rng(2)
    items = clustered(rng, 3000, 16).astype(np.float32)
    moved = items + 0.02 * rng.normal(size=items.shape).astype(np.float32)
    sampler = MIDX()
    first = sampler.proposal(np.ones(3000), items, 0)
    again = sampler.proposal(np.ones(3000), moved, 1, first)
    assert_allclose(again.codewords, first.codewords, atol=0.3)

    def error(proposal, vectors):
        near = proposal.codewords[proposal.cell_codes[proposal.cell_of]].sum(axis=1)
        return ((vectors - near) ** 2).mean()

    assert error(again, moved) < 1.1 * error(sampler.proposal(np.ones(3000), moved, 1), moved)


@pytest.mark.parametrize("seed", range(3))
def test_each_cluster_has_a_codeword(seed):
    # Codewords that start near each other would leave clusters without one.
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(8, 6))
    items = np.repeat(centres, 40, axis=0) + 1e-3 * rng.normal(size=(320, 6))
    sampler = MIDX(n_subspaces=1, n_codewords=8).fit(items, random_state=seed)
    assert_allclose(sampler.quantized_vectors_, items, atol=0.01)


def test_subsample_of_many_items(monkeypatch):
    from freqfm import _dense as _quantization

    items = clustered(np.random.default_rng(2), 3000, 6)
    whole = MIDX().fit(items, random_state=0)
    monkeypatch.setattr(_quantization, "_POINTS_PER_CODEWORD", 8)
    part = MIDX().fit(items, random_state=0)

    def error(sampler):
        return ((items - sampler.quantized_vectors_) ** 2).mean()

    assert error(whole) != error(part) < 1.5 * error(whole)


@pytest.mark.parametrize("name", SAMPLERS)
def test_same_seed_same_draws(name, problem):
    items, counts, queries = problem
    one, other = (SAMPLERS[name]().fit(items, counts, random_state=3) for _ in range(2))
    drawn = one.sample(queries, 9, random_state=4)
    for a, b in zip(drawn, other.sample(queries, 9, random_state=4), strict=True):
        assert_array_equal(a, b)
    assert (one.sample(queries, 50, random_state=4)[0][0] != one.sample(
        queries, 50, random_state=5)[0][0]).any()  # fmt: skip
    assert clone(one).get_params() == one.get_params()
    assert not hasattr(clone(one), "proposal_")
