"""Malformed input of samplers: an error that says what to do, never a crash or a wrong draw."""

import numpy as np
import pytest
from helpers import each
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.exceptions import NotFittedError

from freqfm.samplers import DNS, MIDX, SAMPLERS, Kernel, SelfAdversarial, proposal_of

ITEMS = np.random.default_rng(0).normal(size=(10, 3))
EVERY_NAME = pytest.mark.parametrize("name", SAMPLERS)


@EVERY_NAME
@each(
    "arguments, complaint",
    [
        (([[1.0, np.nan]],), "item_vectors contains NaN"),
        (([[1.0, np.inf]],), "item_vectors contains infinity"),
        (([1.0, 2.0],), "Expected 2D array"),
        ((np.zeros((0, 3)),), "0 sample"),
        ((np.zeros((3, 0)),), "0 feature"),
        ((ITEMS, np.ones(9)), r"counts has shape \(9,\), but item_vectors has 10 rows"),
        ((ITEMS, np.ones((10, 1))), "counts has shape"),
        ((ITEMS, [-1, *np.ones(9)]), "counts holds -1"),
        ((ITEMS, [np.nan, *np.ones(9)]), "counts contains NaN"),
    ],
)
def test_fit_refuses(name, arguments, complaint):
    with pytest.raises(ValueError, match=complaint):
        SAMPLERS[name]().fit(*arguments)
    with pytest.raises(ValueError, match="random"):
        SAMPLERS[name]().fit(ITEMS, random_state="seed")


@each("probabilities", [[[0.5, 0.5]], [0.5, 0.0], [1.5, -0.5], [1e308, 1e308], [0.5, np.nan], []])
def test_probabilities_of_a_proposal_are_checked(probabilities):
    with pytest.raises(ValueError, match="probabilities|sample"):
        proposal_of(probabilities)


@EVERY_NAME
def test_queries_are_checked(name):
    sampler = SAMPLERS[name]()
    for method in (sampler.log_proba, lambda q: sampler.sample(q, 2)):
        with pytest.raises(NotFittedError, match=type(sampler).__name__):
            method(ITEMS)
    sampler.fit(ITEMS, random_state=0)
    for method in (sampler.log_proba, lambda q: sampler.sample(q, 2)):
        with pytest.raises(ValueError, match="queries has 2 columns, but .* have 3"):
            method(ITEMS[:, :2])
        with pytest.raises(ValueError, match="queries contains NaN"):
            method(ITEMS * np.nan)
        with pytest.raises(ValueError, match="Expected 2D array"):
            method(ITEMS[0])
    for n in (0, -1, 1.5, True, None, "many"):
        with pytest.raises((TypeError, ValueError), match="n=.* must be (an integer|at least 1)"):
            sampler.sample(ITEMS, n)


@pytest.mark.parametrize(
    "sampler, complaint",
    [
        (MIDX("nearly"), "'variant' parameter of MIDX"),
        (MIDX(n_codewords=0), "'n_codewords' parameter of MIDX"),
        (MIDX(n_subspaces=5), "'n_subspaces' parameter of MIDX"),
        (MIDX(popularity="rank"), "'popularity' parameter of MIDX"),
        (MIDX(refresh=0), "'refresh' parameter of MIDX"),
        (Kernel(alpha=0), "'alpha' parameter of Kernel"),
        (DNS(n_candidates=0), "'n_candidates' parameter of DNS"),
        (SelfAdversarial(temperature=-1), "'temperature' parameter of SelfAdversarial"),
    ],
)
def test_parameters_are_checked(sampler, complaint):
    with pytest.raises(ValueError, match=complaint):
        sampler.fit(ITEMS)


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(sorted(SAMPLERS)),
    items=hnp.arrays(
        np.float64,
        hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=6),
        elements=st.floats(-1e6, 1e6) | st.sampled_from([np.nan, np.inf, 1e300]),
    ),
    n=st.integers(-1, 4),
)
def test_any_vectors_are_drawn_from_or_refused(name, items, n):
    try:
        sampler = SAMPLERS[name]().fit(items, random_state=0)
        ids, log_q = sampler.sample(items[:2], n, random_state=0)
    except ValueError as error:
        assert str(error)
        return
    assert ids.shape == log_q.shape == (len(items[:2]), n)
    assert ((ids >= 0) & (ids < len(items))).all()
