"""Re-ranking of one user's candidates, in plain Python and float64."""

import math

import numpy as np


def marginal_relevance(relevances, vectors, diversity, k):
    """Return the places chosen by maximal marginal relevance, best first.

    Parameters
    ----------
    relevances : ndarray of shape (n_candidates,)
    vectors : ndarray of shape (n_candidates, d)
    diversity : float
    k : int
    """
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    units = vectors / np.where(lengths > 0, lengths, 1)
    chosen = []
    while len(chosen) < min(k, len(relevances)):
        best, worth = None, -np.inf
        for place, relevance in enumerate(relevances):
            if place in chosen:
                continue
            cosine = max((float(units[place] @ units[other]) for other in chosen), default=0.0)
            value = (1 - diversity) * relevance - diversity * cosine
            if value > worth:
                best, worth = place, value
        chosen.append(best)
    return chosen


def scaled(scores):
    """Return scores scaled to 1 for the best and 0 for the worst."""
    spread = max(scores) - min(scores)
    return [(score - min(scores)) / spread if spread else 0.0 for score in scores]


def divergence(history, shares):
    """Return KL(p, q) of the categories in a history and of the mean shares in a list."""
    q = [sum(of_item[c] for of_item in shares) / len(shares) for c in range(len(history))]
    pairs = zip(history, q, strict=True)
    return sum(p * math.log(p / (0.99 * of_list + 0.01 * p)) for p, of_list in pairs if p > 0)


def calibrated(relevances, shares, history, weight, k):
    """Return the places of a calibrated list, whose objective is computed anew for every item.

    Parameters
    ----------
    relevances : list of float
    shares : list of lists
        Of the categories in each candidate.
    history : list of float
        Shares of the categories.
    weight : float
    k : int
    """
    chosen = []
    while len(chosen) < min(k, len(relevances)):
        best, worth = None, -np.inf
        for place in range(len(relevances)):
            if place in chosen:
                continue
            places = [*chosen, place]
            value = (1 - weight) * sum(relevances[i] for i in places)
            value -= weight * divergence(history, [shares[i] for i in places])
            if value > worth + 1e-12:
                best, worth = place, value
        chosen.append(best)
    return chosen


def limited(groups, limit, k):
    """Return the places of the best candidates with at most ``limit`` of a group.

    Parameters
    ----------
    groups : list of sets
        Of each candidate, best first.
    limit : int
    k : int
    """
    chosen = []
    for place, of_item in enumerate(groups):
        if all(sum(group in groups[i] for i in chosen) < limit for group in of_item):
            chosen.append(place)
    return chosen[:k]


def boosted(relevances, boosts, k):
    """Return the places of the k largest sums of a relevance and a boost."""
    worth = [one + other for one, other in zip(relevances, boosts, strict=True)]
    return sorted(range(len(worth)), key=lambda place: -worth[place])[:k]
