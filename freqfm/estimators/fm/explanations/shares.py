"""How much of the variance of scores comes of interactions, and how much of each column."""

import numpy as np
from scipy import sparse

from freqfm.estimators.fm.explanations.contributions import Entries, chunks, pull


def interaction_share(model, X, groups):
    """Return the share of the scores' variance that interactions of groups of columns carry.

    With mu the mean row and W without pairs inside a group, x W x / 2 is the sum of
    (x - mu) W (x - mu) / 2 and of terms of single columns. If the groups are independent, these two
    parts of the score are uncorrelated (the functional ANOVA), and the share is that of the first.

    Parameters
    ----------
    model : BaseFM
        Of order two.
    X : csr_array of shape (n_samples, n_features)
    groups : ndarray of shape (n_features,)
        The group of each column, from 0 on.

    Returns
    -------
    share : float
        From 0 to 1, over all outputs; 0 if the scores do not vary.
    """
    features = np.unique(X.indices)
    groups, X = groups[features], sparse.csr_array(X[:, features])
    mean = sparse.csr_array(np.asarray(X.mean(axis=0, dtype=np.float64)).reshape(1, -1))
    every = Entries.of(mean, np.arange(len(features)))
    of_pairs = of_single = 0.0
    parts = list(chunks(X))
    for output, terms in zip(model._outputs(), model._pair_terms(features), strict=True):
        mean_pulls = _pull_between(terms, mean, every, groups)
        interactions, scores = [], []
        for part in parts:
            entries = Entries.of(part)
            i, x = entries.columns, entries.values
            between = x * (_pull_between(terms, part, entries, groups) / 2 - mean_pulls[i])
            whole = x * (output.linear[features[i]] + pull(terms, part, entries) / 2)
            for found, values in ((interactions, between), (scores, whole)):
                found.append(np.bincount(entries.rows, values, part.shape[0]))
        interactions, scores = np.concatenate(interactions), np.concatenate(scores)
        of_pairs += interactions.var()
        of_single += (scores - interactions).var()
    return float(of_pairs / (of_pairs + of_single)) if of_pairs else 0.0


def _pull_between(terms, X, entries, groups):
    """Return (W x)_i like ``pull``, without the pairs inside a group."""
    n_groups = 1 + int(groups.max(initial=0))
    # Each row is divided into one for each of its groups.
    numbers, rows = np.unique(
        entries.rows * n_groups + groups[entries.columns], return_inverse=True
    )
    shape = len(numbers), X.shape[1]
    divided = sparse.csr_array((entries.values, (rows, entries.columns)), shape=shape)
    divided.sort_indices()
    inside = pull(terms, divided, entries._replace(rows=rows))
    return pull(terms, X, entries) - inside


def mean_magnitudes(explainer, X, groups, n_groups):
    """Return the mean absolute sum of contributions of each group, (n_outputs, n_groups)."""
    found = np.zeros((explainer.n_outputs, n_groups))
    for _, entries, values in explainer.chunks(X):
        keys, place = np.unique(
            entries.rows * n_groups + groups[entries.columns], return_inverse=True
        )
        for of_output, data in zip(found, values, strict=True):
            sums = np.abs(np.bincount(place, data, len(keys)))
            of_output += np.bincount(keys % n_groups, sums, n_groups)
    return found / X.shape[0]
