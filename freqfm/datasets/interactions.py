"""Synthetic implicit feedback: which users interacted with which items, without ratings."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse import csr_array
from sklearn.utils import Bunch

from freqfm._input.validation import check_count, check_flag, check_number
from freqfm.datasets.synthetic import as_random_state

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
    for name, value in (
        ("n_users", n_users),
        ("n_items", n_items),
        ("n_interactions", n_interactions),
        ("n_clusters", n_clusters),
        ("min_interactions", min_interactions),
    ):
        check_count(name, value)
    check_flag("return_model", return_model)
    for name, value, most in (
        ("popularity_exponent", popularity_exponent, 2),
        ("activity_exponent", activity_exponent, 2),
        ("noise", noise, 1),
    ):
        check_number(name, value, 0, most)

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
