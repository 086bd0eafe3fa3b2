"""Synthetic click logs: heavy-tailed tokens and a planted factorization machine."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.sparse import csr_array
from scipy.special import expit, logit
from sklearn.utils import Bunch, check_random_state

from freqfm._input.validation import check_flag, check_integer, check_number
from freqfm._messages import shown

TAILS = ("zipf", "exponential")

# With tail_exponent=1 an "exponential" tail falls by exp(EXPONENTIAL_SPAN) over a field.
EXPONENTIAL_SPAN = 10.0


def make_clicks(
    n_samples: int = 50_000,
    n_tokens: Sequence[int] = (5000, 2000, 200, 20),
    *,
    tail: str = "zipf",
    tail_exponent: float = 1.0,
    n_components: int = 4,
    linear_scale: float = 1.0,
    interaction_scale: float = 1.5,
    click_rate: float = 0.3,
    return_model: bool = False,
    random_state: int | np.random.RandomState | np.random.Generator | None = None,
) -> Any:
    """Draw a click log from a planted second-order factorization machine.

    Every row has one categorical field per entry of `n_tokens`, and each field holds exactly
    one of its tokens. A few tokens of a field are frequent and most are rare, as the user ids,
    item ids and advertisers of a real click log are; [1]_ studies such data. The clicks are
    drawn from a factorization machine [2]_ with random coefficients and factors.

    Parameters
    ----------
    n_samples : int, default=50_000
        Number of rows.
    n_tokens : sequence of int, default=(5000, 2000, 200, 20)
        Number of tokens of each field.
    tail : {"zipf", "exponential"}, default="zipf"
        How the probability of a token falls with its rank `r = 0, 1, ...` in its field of
        `m` tokens:

        - "zipf": proportional to ``(r + 1) ** -tail_exponent``;
        - "exponential": proportional to ``exp(-tail_exponent * r / (m / 10))``, so that with
          ``tail_exponent=1`` a tenth of the tokens is drawn in about 63% of the rows and the
          last token is about ``exp(-10)``, or 5e-5, times as likely as the first.
    tail_exponent : float, default=1.0
        How steep the tail is; 0 makes all tokens of a field equally likely.
    n_components : int, default=4
        Length of the planted factors.
    linear_scale : float, default=1.0
        Standard deviation of the linear part of a row's log-odds, over random models: the
        coefficients have the standard deviation ``linear_scale / sqrt(n_fields)``.
    interaction_scale : float, default=1.5
        The same for the sum of the pairwise interactions, before centring (see Notes).
    click_rate : float, default=0.3
        Mean of the true click probabilities of the rows, strictly between 0 and 1. The
        intercept is set to reach it.
    return_model : bool, default=False
        Whether to return the planted model too.
    random_state : int, RandomState instance, Generator or None, default=None
        Pass an int for the same rows at every call.

    Returns
    -------
    X : csr_array of shape (n_samples, sum(n_tokens)), dtype float32
        One-hot rows with int32 indices, sorted; field `f` has the columns
        ``field_offsets[f]`` to ``field_offsets[f + 1] - 1``. Within a field the order of the
        columns is unrelated to how frequent their tokens are.
    y : ndarray of shape (n_samples,), dtype int64
        1 for a click, 0 for none.
    model : Bunch
        Only with ``return_model=True``:

        - intercept : float
        - coef : ndarray of shape (n_features,), dtype float64
        - factors : ndarray of shape (n_features, n_components), dtype float64
        - probabilities : ndarray of shape (n_samples,), the true click probability of each row
        - token_probabilities : ndarray of shape (n_features,), how likely each token is in its
          field; they add up to 1 in every field
        - field_offsets : ndarray of shape (n_fields + 1,), dtype int64

    Raises
    ------
    ValueError
        If an argument is outside its range, or of another type.

    Notes
    -----
    The factors of a field are centred under its token probabilities. The expected interaction
    of a token is then zero, so no linear model can learn anything of the interactions.

    References
    ----------
    .. [1] Yan Li et al., "Frequency-aware SGD for Efficient Embedding Learning with Provable
       Benefits", ICLR 2022.
    .. [2] Steffen Rendle, "Factorization Machines", ICDM 2010.

    Examples
    --------
    >>> from freqfm.datasets import make_clicks
    >>> X, y, model = make_clicks(1000, (50, 20), return_model=True, random_state=0)
    >>> X.shape, y.shape
    ((1000, 70), (1000,))
    >>> print(f"{model.probabilities.mean():.3f}")
    0.300
    >>> model.field_offsets.tolist()
    [0, 50, 70]
    """
    check_flag("return_model", return_model)
    sizes = _check_n_tokens(n_tokens)
    check_integer("n_samples", n_samples, 1)
    check_integer("n_components", n_components, 1)
    for name, value in (
        ("tail_exponent", tail_exponent),
        ("linear_scale", linear_scale),
        ("interaction_scale", interaction_scale),
    ):
        check_number(name, value, 0, np.inf)
    if not 0 < check_number("click_rate", click_rate, 0, 1) < 1:
        raise ValueError(f"click_rate={click_rate} must be strictly between 0 and 1.")
    if tail not in TAILS:
        raise ValueError(f"tail is {shown(tail)}; pass one of {TAILS}.")
    if max(n_samples * len(sizes), sum(sizes)) > np.iinfo(np.int32).max:
        raise ValueError(
            f"n_samples is {n_samples} and n_tokens is {shown(n_tokens)}, more than int32 indices "
            "can hold; pass fewer rows or fewer tokens."
        )

    # The model is drawn before the rows: one seed gives the same coefficients and factors for any
    # number of rows.
    rng = as_random_state(random_state)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    token_probabilities = np.concatenate(
        [rng.permutation(_rank_probabilities(size, tail, tail_exponent)) for size in sizes]
    )
    coef, factors = _draw_terms(
        rng, token_probabilities, offsets, n_components, linear_scale, interaction_scale
    )

    tokens = _draw_tokens(rng, n_samples, token_probabilities, offsets)
    score = coef[tokens].sum(axis=1) + _interactions(factors, tokens)
    intercept = _intercept_for_rate(score, click_rate)
    probabilities = expit(intercept + score)
    y = (rng.random_sample(n_samples) < probabilities).astype(np.int64)
    X = _one_hot(tokens, offsets[-1])
    if not return_model:
        return X, y
    model = Bunch(
        intercept=intercept,
        coef=coef,
        factors=factors,
        probabilities=probabilities,
        token_probabilities=token_probabilities,
        field_offsets=offsets,
    )
    return X, y, model


def as_random_state(random_state):
    """Return a RandomState from an int, a RandomState, a Generator or None."""
    if isinstance(random_state, np.random.Generator):
        random_state = int(random_state.integers(2**31 - 1))
    return check_random_state(random_state)


def _draw_tokens(rng, n_samples, token_probabilities, offsets):
    """Return a token of each field for every row."""
    tokens = np.empty((n_samples, len(offsets) - 1), dtype=np.int32)
    for field, (start, stop) in enumerate(pairwise(offsets)):
        drawn = rng.choice(stop - start, size=n_samples, p=token_probabilities[start:stop])
        tokens[:, field] = start + drawn
    return tokens


def _rank_probabilities(size, tail, tail_exponent):
    """Probabilities of the tokens of one field, the most frequent first."""
    rank = np.arange(size, dtype=np.float64)
    if tail == "zipf":
        weight = (rank + 1.0) ** -tail_exponent
    else:
        weight = np.exp(-tail_exponent * EXPONENTIAL_SPAN * rank / size)
    return weight / weight.sum()


def _draw_terms(rng, token_probabilities, offsets, n_components, linear_scale, interaction_scale):
    """Random coefficients, and random factors that are centred in every field."""
    n_fields = len(offsets) - 1
    coef = rng.normal(scale=linear_scale / np.sqrt(n_fields), size=offsets[-1])
    # A dot product of two factors with standard deviation s has variance n_components * s**4.
    n_products = n_components * max(n_fields * (n_fields - 1) / 2, 1)
    factor_scale = (interaction_scale**2 / n_products) ** 0.25
    factors = rng.normal(scale=factor_scale, size=(offsets[-1], n_components))
    for start, stop in pairwise(offsets):
        factors[start:stop] -= token_probabilities[start:stop] @ factors[start:stop]
    return coef, factors


def _interactions(factors, tokens):
    """Sum of the dot products of all pairs of a row's factors, by Rendle's identity."""
    rows = factors[tokens]
    return 0.5 * ((rows.sum(axis=1) ** 2).sum(axis=1) - (rows**2).sum(axis=(1, 2)))


def _intercept_for_rate(score, click_rate):
    """The intercept with which the mean click probability is click_rate."""
    # Beyond these ends every row is below (above) the rate; the 1.0 keeps rounding out of it.
    low = logit(click_rate) - score.max() - 1.0
    high = logit(click_rate) - score.min() + 1.0
    return float(brentq(lambda b: expit(b + score).mean() - click_rate, low, high))


def _one_hot(tokens, n_features):
    """One-hot csr_array of the column numbers in each row of tokens."""
    n_samples, n_fields = tokens.shape
    indptr = np.arange(0, tokens.size + 1, n_fields, dtype=np.int32)
    data = np.ones(tokens.size, dtype=np.float32)
    return csr_array((data, tokens.ravel(), indptr), shape=(n_samples, n_features))


def _check_n_tokens(n_tokens):
    """n_tokens as a list of int."""
    try:
        sizes = [] if isinstance(n_tokens, (str, bytes)) else list(n_tokens)
    except TypeError:
        sizes = []
    if not sizes:
        raise ValueError(
            f"n_tokens is {shown(n_tokens)}; pass a sequence with the number of tokens of each "
            "field, such as (1000, 100)."
        )
    return [check_integer(f"n_tokens[{field}]", size, 1) for field, size in enumerate(sizes)]
