"""The samplers' distributions in float64, item by item, from the papers' formulas."""

import numpy as np


def midx_probabilities(query, items, codebooks, codes, variant, pop=None):
    """Return P1(k1) P2(k2 | k1) P3(i | k1, k2) of an inverted multi-index with two codebooks."""
    first, second = codebooks
    half = first.shape[1]
    q1, q2 = query[:half], query[half:]
    pairs = [tuple(code) for code in codes]

    def weight(i):
        """Return what the item weighs within its cell."""
        if variant == "uniform":
            return 1.0
        if variant == "popularity":
            return pop[i]
        k1, k2 = pairs[i]
        return np.exp(np.dot(query, items[i] - np.concatenate([first[k1], second[k2]])))

    omega = np.zeros((len(first), len(second)))
    for i, pair in enumerate(pairs):
        omega[pair] += weight(i)
    psi = [sum(omega[a, b] * np.exp(q2 @ second[b]) for b in range(len(second))) for a in
           range(len(first))]  # fmt: skip
    total = sum(psi[a] * np.exp(q1 @ first[a]) for a in range(len(first)))
    probabilities = []
    for i, (a, b) in enumerate(pairs):
        p1 = psi[a] * np.exp(q1 @ first[a]) / total
        p2 = omega[a, b] * np.exp(q2 @ second[b]) / psi[a]
        probabilities.append(p1 * p2 * weight(i) / omega[a, b])
    return np.array(probabilities)


def kernel_probabilities(query, items, alpha):
    """Return the probabilities of the quadratic kernel."""
    weights = np.array([alpha * np.dot(query, v) ** 2 + 1 for v in items])
    return weights / weights.sum()


def best_of_probabilities(query, items, n):
    """Return the probabilities of the best of n uniform draws: by all n-tuples of items."""
    scores = [float(np.dot(query, v)) for v in items]
    probabilities = np.zeros(len(items))
    for draws in np.ndindex(*[len(items)] * n):
        best = max(scores[i] for i in draws)
        probabilities[next(i for i in draws if scores[i] == best)] += len(items) ** -n
    return probabilities


def ranked_probabilities(query, items, scale):
    """Return the probabilities of adaptive oversampling: all factors, and all ranks of each."""
    n_items, d = items.shape
    weights = [abs(query[f]) * np.sqrt(np.mean((items[:, f] - items[:, f].mean()) ** 2))
               for f in range(d)]  # fmt: skip
    geometric = [np.exp(-rank / scale) for rank in range(n_items)]
    probabilities = np.zeros(n_items)
    for f in range(d):
        # Of equal numbers, the first item stands first in the list of large ones.
        ranking = sorted(range(n_items), key=lambda i, f=f: (-items[i, f], i))
        if query[f] < 0:
            ranking.reverse()
        for rank, i in enumerate(ranking):
            probabilities[i] += weights[f] / sum(weights) * geometric[rank] / sum(geometric)
    return probabilities


def cluster_probabilities(query, centroids, labels, weights):
    """Return P(c | q) P(i | c), the clusters weighted by their items."""
    of_cluster = [sum(w for w, label in zip(weights, labels, strict=True) if label == c)
                  for c in range(len(centroids))]  # fmt: skip
    scores = [of_cluster[c] * np.exp(np.dot(query, centroids[c])) for c in range(len(centroids))]
    return np.array(
        [scores[c] / sum(scores) * w / of_cluster[c] for c, w in zip(labels, weights, strict=True)]
    )
