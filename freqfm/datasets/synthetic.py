"""Made data: clicks, and interactions with heavy-tailed popularity."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.sparse import csr_array
from scipy.special import expit, logit
from sklearn.utils import Bunch, check_random_state

from freqfm._input import validation
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
    validation.check_flag("return_model", return_model)
    sizes = validation.check_sizes("n_tokens", n_tokens, empty_allowed=False)
    validation.check_integer("n_samples", n_samples, 1)
    validation.check_integer("n_components", n_components, 1)
    validation.check_number("tail_exponent", tail_exponent, 0, np.inf)
    validation.check_number("linear_scale", linear_scale, 0, np.inf)
    validation.check_number("interaction_scale", interaction_scale, 0, np.inf)
    if not 0 < validation.check_number("click_rate", click_rate, 0, 1) < 1:
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
    data = np.ones(tokens.size, dtype=np.float32)
    indptr = np.arange(0, tokens.size + 1, len(sizes), dtype=np.int32)
    X = csr_array((data, tokens.ravel(), indptr), shape=(n_samples, offsets[-1]))
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


# Users are drawn in blocks of about this many interactions, to bound memory.
BLOCK_SIZE = 2**20

# A guess takes about as long as scanning this many items when drawing from all of them.
ITEMS_PER_GUESS = 10


def make_interactions(
    n_users: int = 1000,
    n_items: int = 500,
    n_interactions: int = 20_000,
    *,
    n_clusters: int = 5,
    popularity_exponent: float = 1.0,
    activity_exponent: float = 0.5,
    noise: float = 0.1,
    min_interactions: int = 5,
    return_model: bool = False,
    random_state: int | np.random.RandomState | np.random.Generator | None = None,
) -> Any:
    """Draw implicit feedback from users who mostly choose items of their own cluster.

    Users and items are spread evenly over clusters. A few users have many items and a few
    items of each cluster are chosen by many users, as in the logs of real shops and services.

    Parameters
    ----------
    n_users : int, default=1000
        Number of users, the rows.
    n_items : int, default=500
        Number of items, the columns.
    n_interactions : int, default=20_000
        Number of pairs of a user and an item, all different.
    n_clusters : int, default=5
        Number of clusters, at most the number of users and the number of items.
    popularity_exponent : float, default=1.0
        How steeply the popularity of an item falls with its rank `r = 0, 1, ...` in its
        cluster: it is proportional to ``(r + 1) ** -popularity_exponent``. From 0, where all
        items are equally popular, to 2.
    activity_exponent : float, default=0.5
        The same for users: beyond `min_interactions`, the number of items of a user is
        proportional to ``(r + 1) ** -activity_exponent`` with the user's rank `r` among all
        users, until a user has all items. From 0 to 2.
    noise : float, default=0.1
        Probability that an item is drawn from a random cluster instead of the user's own,
        from 0 to 1; with 0 all items of a user are from one cluster.
    min_interactions : int, default=5
        Smallest number of items of a user, at least 1.
    return_model : bool, default=False
        Whether to return the clusters and the popularities too.
    random_state : int, RandomState instance, Generator or None, default=None
        Pass an int for the same interactions at every call.

    Returns
    -------
    X : csr_array of shape (n_users, n_items), dtype float32
        1 for every interaction, with int32 indices, sorted. The order of rows and columns
        is unrelated to clusters, activity and popularity.
    model : Bunch
        Only with ``return_model=True``:

        - user_clusters : ndarray of shape (n_users,), dtype int32
        - item_clusters : ndarray of shape (n_items,), dtype int32
        - popularity : ndarray of shape (n_items,), dtype float64, how likely each item is among
          those of its cluster; they add up to 1 in every cluster

    Raises
    ------
    ValueError
        If an argument is outside its range, or `n_interactions` is too small for
        `min_interactions` or too large for the number of users and items.

    Notes
    -----
    A user draws items one by one, each among those not drawn yet: an item of the user's cluster
    has the weight ``(1 - noise + noise / n_clusters) * popularity``, any other item
    ``noise / n_clusters * popularity``. Users who draw a large part of their cluster therefore
    flatten the observed popularity of its top items and draw more from the other clusters.

    The matrix is never held in dense form: memory grows with ``n_users``, ``n_items`` and
    ``n_interactions``, not with their product. A steep popularity takes longer than a flat one.

    Examples
    --------
    >>> from freqfm.datasets import make_interactions
    >>> X, model = make_interactions(200, 100, 3000, return_model=True, random_state=0)
    >>> X.shape, X.nnz, int(X.sum(axis=1).min()) >= 5
    ((200, 100), 3000, True)
    >>> users, items = X.nonzero()
    >>> same_cluster = model.user_clusters[users] == model.item_clusters[items]
    >>> print(f"{same_cluster.mean():.1f}")
    0.8
    """
    validation.check_count("n_users", n_users)
    validation.check_count("n_items", n_items)
    validation.check_count("n_interactions", n_interactions)
    validation.check_count("n_clusters", n_clusters)
    validation.check_count("min_interactions", min_interactions)
    validation.check_flag("return_model", return_model)
    validation.check_number("popularity_exponent", popularity_exponent, 0, 2)
    validation.check_number("activity_exponent", activity_exponent, 0, 2)
    validation.check_number("noise", noise, 0, 1)

    if n_clusters > min(n_users, n_items):
        raise ValueError(
            f"n_clusters is {n_clusters}, with {n_users} users and {n_items} items; pass at most "
            "as many clusters as there are users and as there are items."
        )
    rng = as_random_state(random_state)
    catalogue = _Catalogue(rng, n_items, n_clusters, popularity_exponent, noise)
    user_clusters = rng.permutation(np.arange(n_users, dtype=np.int32) % n_clusters)
    # Without noise, users have only items of their own cluster.
    most = (
        catalogue.sizes[user_clusters] if noise == 0 else np.full(n_users, n_items, dtype=np.int64)
    )
    degrees = _draw_degrees(rng, n_interactions, min_interactions, most, activity_exponent)

    indptr = np.concatenate([[0], np.cumsum(degrees)])
    indices = _draw_items(rng, catalogue, user_clusters, degrees, indptr)
    data = np.ones(n_interactions, dtype=np.float32)
    X = csr_array((data, indices, indptr.astype(np.int32)), shape=(n_users, n_items))
    # The rows are sorted and without duplicates by construction: this skips a check later.
    X.has_canonical_format = True
    if not return_model:
        return X
    model = Bunch(
        user_clusters=user_clusters,
        item_clusters=catalogue.by_item(catalogue.clusters),
        popularity=catalogue.by_item(catalogue.popularity),
    )
    return X, model


def _draw_items(rng, catalogue, user_clusters, degrees, indptr):
    """Draw the items of all users, block by block; return their columns."""
    n_users, indices = len(degrees), np.empty(indptr[-1], dtype=np.int32)
    start = 0
    while start < n_users:
        # At least one user, however many items that user has.
        stop = np.searchsorted(indptr, indptr[start] + BLOCK_SIZE, side="right") - 1
        stop = max(start + 1, int(stop))
        drawn = catalogue.draw(rng, user_clusters[start:stop], degrees[start:stop])
        indices[indptr[start] : indptr[stop]] = drawn
        start = stop
    return indices


class _Catalogue:
    """The items ordered by cluster, the most popular first, and draws from them.

    A position is the index of an item in this order, as opposed to its column.
    """

    def __init__(self, rng, n_items, n_clusters, popularity_exponent, noise):
        self.noise = noise
        self.columns = rng.permutation(n_items)
        self.sizes = np.bincount(np.arange(n_items) % n_clusters)
        self.offsets = np.concatenate([[0], np.cumsum(self.sizes)])
        self.clusters = np.repeat(np.arange(n_clusters, dtype=np.int32), self.sizes)
        rank = np.arange(n_items) - self.offsets[self.clusters]
        self.popularity = (rank + 1.0) ** -popularity_exponent
        self.popularity /= np.add.reduceat(self.popularity, self.offsets[:-1])[self.clusters]
        # The cumulative popularity of cluster c runs from c to c + 1: one array for all clusters.
        self.cumulated = np.cumsum(self.popularity)

    def by_item(self, values):
        """Return values by position in the order of the columns."""
        result = np.empty_like(values)
        result[self.columns] = values
        return result

    def draw(self, rng, user_clusters, degrees):
        """Draw the given number of different items for each user of a block.

        Returns their columns, user by user, sorted for each user.
        """
        n_users, n_items = len(degrees), len(self.columns)
        users = np.arange(n_users, dtype=np.int64)
        # An interaction is coded as user * n_items + position; the chosen codes are sorted.
        chosen = np.empty(0, dtype=np.int64)
        missing = degrees.astype(np.int64)
        guesses = 1
        while missing.any():
            # Guessing draws with replacement and drops repeated items, which is fast until a user
            # lacks only items that are rarely drawn. The number of guesses for such a user
            # doubles in every round, until scanning all items costs less.
            costly = missing * guesses * ITEMS_PER_GUESS > n_items
            new = [
                self._draw_rest(rng, user, user_clusters[user], missing[user], chosen)
                for user in np.flatnonzero(costly)
            ]
            missing[costly] = 0
            if missing.any():
                user = np.repeat(users, missing * guesses)
                guessed = user * n_items + self._guess(rng, user_clusters[user])
                kept = _first_new(guessed, chosen)
                # Users who guessed more items than they lack keep the first ones.
                owner = kept // n_items
                place = np.arange(len(kept)) - np.searchsorted(owner, users)[owner]
                within = place < missing[owner]
                new.append(kept[within])
                missing -= np.bincount(owner[within], minlength=n_users)
            # Two sorted runs, which a stable sort merges.
            chosen = np.sort(np.concatenate([chosen, *new]), kind="stable")
            guesses *= 2
        owner, position = np.divmod(chosen, n_items)
        return np.sort(owner * n_items + self.columns[position]) % n_items

    def _guess(self, rng, clusters):
        """Return one position for each entry of clusters, the cluster of the user who guesses."""
        other = rng.random_sample(len(clusters)) < self.noise
        clusters[other] = rng.randint(len(self.sizes), size=np.count_nonzero(other))
        position = np.searchsorted(
            self.cumulated, clusters + rng.random_sample(len(clusters)), side="right"
        )
        # The sums are rounded: they may end just below or above the next integer.
        return np.clip(position, self.offsets[clusters], self.offsets[clusters + 1] - 1)

    def _draw_rest(self, rng, user, cluster, count, chosen):
        """Draw count more items for one user, exactly, with a weight for every item.

        The items with the largest log weight plus Gumbel noise are a draw without replacement.
        """
        n_items = len(self.columns)
        n_clusters = len(self.sizes)
        # The logarithm of 0 is minus infinity: those items are never drawn.
        with np.errstate(divide="ignore"):
            weight = np.full(n_items, np.log(self.noise / n_clusters))
        in_cluster = slice(self.offsets[cluster], self.offsets[cluster + 1])
        weight[in_cluster] = np.log(1 - self.noise + self.noise / n_clusters)
        weight += np.log(self.popularity) + rng.gumbel(size=n_items)
        first, last = np.searchsorted(chosen, [user * n_items, (user + 1) * n_items])
        weight[chosen[first:last] - user * n_items] = -np.inf
        drawn = np.argpartition(weight, n_items - count)[n_items - count :]
        return np.sort(user * n_items + drawn)


def _first_new(guessed, chosen):
    """Return the guesses in order, without repetitions and items chosen before."""
    _, first = np.unique(guessed, return_index=True)
    guessed = guessed[np.sort(first)]
    if not len(chosen):
        return guessed
    place = np.minimum(np.searchsorted(chosen, guessed), len(chosen) - 1)
    return guessed[chosen[place] != guessed]


def _draw_degrees(rng, total, least, most, exponent):
    """Return the number of items of each user: a power law within bounds that sums to total."""
    n_users = len(most)
    if total < least * n_users:
        raise ValueError(
            f"n_interactions is {total}, less than {n_users} users times min_interactions="
            f"{least}; pass more interactions or a smaller min_interactions."
        )
    if total > most.sum() or least > most.min():
        raise ValueError(
            f"n_interactions is {total} and min_interactions {least}, but the users can take "
            f"{most.min()} different items or more each, {most.sum()} together; pass fewer "
            "interactions or more items."
        )
    weight = rng.permutation(np.arange(1, n_users + 1, dtype=np.float64) ** -exponent)
    share = most.astype(np.float64)
    free = np.ones(n_users, dtype=bool)
    while free.any():
        # Items beyond the users' limits go to the other users, in proportion.
        extra = total - most[~free].sum() - least * np.count_nonzero(free)
        share[free] = least + extra * weight[free] / weight[free].sum()
        over = free & (share >= most)
        if not over.any():
            break
        share[over] = most[over]
        free &= ~over
    degrees = np.floor(share).astype(np.int64)
    # The largest fractions are rounded up until the sum is right.
    fraction = np.where(degrees < most, share - degrees, -1.0)
    degrees[np.argsort(-fraction, kind="stable")[: total - degrees.sum()]] += 1
    return degrees
