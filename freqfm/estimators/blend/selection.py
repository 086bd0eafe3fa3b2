"""Weights of blended recommenders, by how well they rank held-out items."""

import numpy as np

from freqfm.estimators.recommenders.histories import pair_numbers
from freqfm.model_selection._scorer import METRICS

# Steps of a forward selection, the number of selections, and users of each, at most a half of all.
_STEPS, _BAGS, _USERS_OF_BAG = 10, 10, 1500

# Members by their scores: (score / best score) to this power.
_POWER = 4

# Smaller weights are not worth the time of the member's requests.
_LEAST_WEIGHT = 0.05


class HeldOutUsers:
    """Users with held-out items, and what the members of a blend make of the items.

    Parameters
    ----------
    values : list of csr_array of shape (n_users, n_items)
        Of each member, see :func:`~freqfm.estimators.blend.recommender.standardized`; canonical.
    relevant : csr_array of shape (n_users, n_items)
        Held-out items.
    metric : str
    k : int
        Length of the rankings.
    """

    def __init__(self, values, relevant, metric, k):
        self._relevant, self._metric, self._k = relevant, METRICS[metric], k
        pairs = [pair_numbers(of) for of in values]
        union = np.unique(np.concatenate(pairs))
        users, items = np.divmod(union, relevant.shape[1])
        n_users = relevant.shape[0]
        begins = np.searchsorted(users, np.arange(n_users + 1))
        places = np.arange(len(union)) - begins[users]
        width = max(k, int(np.diff(begins).max(initial=0)))
        self._items = np.full((n_users, width), -1)
        self._items[users, places] = items
        self.values = np.zeros((len(values), n_users, width), dtype=np.float32)
        for table, numbers, of in zip(self.values, pairs, values, strict=True):
            at = np.searchsorted(union, numbers)
            table[users[at], places[at]] = of.data

    @property
    def n_users(self):
        """The number of users."""
        return len(self._items)

    def scores(self, totals, users=slice(None)):
        """Return the score of each user, (n,), if items are ranked by ``totals``, (n, width)."""
        k, items = self._k, self._items[users]
        best = np.argpartition(-totals, k - 1, axis=1)[:, :k]
        of_best = np.take_along_axis(totals, best, axis=1)
        best = np.take_along_axis(best, np.argsort(-of_best, axis=1, kind="stable"), axis=1)
        ranked = np.take_along_axis(items, best, axis=1)
        ranked[np.take_along_axis(totals, best, axis=1) <= 0] = -1
        return self._metric(self._relevant[users], ranked, k, average=False)

    def of_weights(self, weights):
        """Return the score of each user for a blend."""
        return self.scores(np.tensordot(weights.astype(np.float32), self.values, 1))


def forward_selection(held_out, users):
    """Return weights by forward selection with replacement [1]_, on some of the users.

    The member that improves the mean score most is added, again and again; the weights are how
    often each was added up to the best step.

    References
    ----------
    .. [1] R. Caruana, A. Niculescu-Mizil, G. Crew, A. Ksikes. "Ensemble Selection from Libraries
       of Models". ICML 2004.
    """
    values = held_out.values[:, users]
    total, added, means = np.zeros_like(values[0]), [], []
    for _ in range(_STEPS):
        found = [held_out.scores(total + of, users).mean() for of in values]
        best = int(np.argmax(found))
        total += values[best]
        added.append(best)
        means.append(found[best])
    return np.bincount(added[: int(np.argmax(means)) + 1], minlength=len(values))


def find_weights(held_out, generator):
    """Return the weights of a blend, and the mean scores of its members and of the blend.

    Half of a weight is the mean over forward selections on random parts of the users, which alone
    would follow chance too closely; the other half is the member's score, relative to the best,
    to the fourth power. The best member is left alone unless the blend is ahead of it by more than
    a standard error of the difference, over the same users.
    """
    n_members, n_users = len(held_out.values), held_out.n_users
    single = np.array([held_out.scores(of) for of in held_out.values])
    means = single.mean(axis=1)
    best = int(np.argmax(means))
    alone = np.eye(n_members)[best]
    if n_members == 1 or means[best] <= 0:
        return alone, means, means[best]
    weights = (np.maximum(means, 0) / means[best]) ** _POWER
    weights /= weights.sum()
    size = min(_USERS_OF_BAG, -(-n_users // 2))
    for _ in range(_BAGS):
        users = np.sort(generator.choice(n_users, size, replace=False))
        counts = forward_selection(held_out, users)
        weights += counts / counts.sum() / _BAGS
    weights /= 2
    weights[weights < _LEAST_WEIGHT] = 0
    weights /= weights.sum()
    blended = held_out.of_weights(weights)
    ahead = blended - single[best]
    if ahead.mean() <= ahead.std() / np.sqrt(n_users):
        return alone, means, means[best]
    return weights, means, blended.mean()
