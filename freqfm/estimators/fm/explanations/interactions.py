"""Which pairs of features a factorization machine has learned to interact."""

import numpy as np
from scipy import sparse
from sklearn.utils import Bunch

from freqfm._input.rows import concatenated_ranges, slices, with_one_index_type
from freqfm._input.validation import check_count, kernel_csr, validate_rows
from freqfm.backends.base import Tower
from freqfm.estimators.fm.explanations.columns import feature_names as checked_names
from freqfm.estimators.fm.explanations.columns import group_columns, names_of_features
from freqfm.estimators.fm.explanations.shares import interaction_share

# Pairs that are scored at once, each taking about 40 bytes.
_PAIRS_AT_ONCE = 1 << 20

# Without rows all pairs are scored; this many features, or fields, have 50 million.
_MOST_FEATURES = 10_000


def strongest_interactions(model, X, fields, feature_names, n_pairs):
    """See ``ExplanationMixin.interaction_strengths``."""
    n_pairs = check_count("n_pairs", n_pairs)
    model._check_learned()
    groups, field_names = None, []
    if fields is not None:
        groups, field_names = group_columns(model, fields)
        if feature_names is None and hasattr(fields, "transform"):
            feature_names = names_of_features(fields, model)
    names = checked_names(model, feature_names)
    if X is None:
        chunks = _all_pairs(model.n_features_in_)
    else:
        X, _ = validate_rows(model, X, reset=False)
        X = with_one_index_type(X)
        chunks = _pairs_of_rows(X)
    found = np.zeros((0, 2), np.int64), np.zeros((0, len(model.intercept_))), np.zeros(0)
    of_fields, n_fields = None, len(field_names)
    if groups is not None and n_fields <= _MOST_FEATURES:
        of_fields = np.zeros((n_fields, n_fields))
    alone = _alone(model)
    for pairs, products in chunks:
        if groups is not None:
            apart = groups[pairs[:, 0]] != groups[pairs[:, 1]]
            pairs, products = pairs[apart], products[apart]
        strengths = _strengths(model, pairs, alone)
        effects = np.abs(strengths).max(axis=1, initial=0) * products
        if of_fields is not None:
            np.add.at(of_fields, tuple(groups[pairs].T), effects)
        found = _keep_largest(found, (pairs, strengths, effects), n_pairs)
    pairs, strengths, effects = found
    result = Bunch(
        features=pairs,
        names=names[pairs],
        strengths=strengths[:, 0] if strengths.shape[1] == 1 else strengths,
        effects=effects,
    )
    if groups is not None:
        of_fields = None if of_fields is None else of_fields + of_fields.T
        result.update(field_names=field_names, field_effects=of_fields)
    if X is not None:
        result.update(share=_share(model, X, groups))
    return result


def _share(model, X, groups):
    if any(isinstance(output.dense, Tower) for output in model._outputs()):
        return None
    if groups is None:
        groups = getattr(model, "fields_", None)
    return interaction_share(model, X, np.arange(X.shape[1]) if groups is None else groups)


def _all_pairs(n_features):
    """Yield all pairs in chunks, with ones."""
    if n_features > _MOST_FEATURES:
        raise ValueError(
            f"the model has {n_features} features and X=None, so that all their pairs would be "
            f"compared; give rows as X, and only pairs that occur in them are."
        )
    step = max(1, _PAIRS_AT_ONCE // n_features)
    for part in slices(n_features, step):
        first = np.arange(part.start, part.stop)
        n_others = n_features - 1 - first
        second = concatenated_ranges(first + 1, n_others)
        pairs = np.column_stack([np.repeat(first, n_others), second])
        yield pairs, np.ones(len(pairs))


def _pairs_of_rows(X):
    """Yield the pairs that occur together in rows, with the mean of their |x_i x_j|."""
    X = sparse.csr_array((np.abs(X.data, dtype=np.float64), X.indices, X.indptr), shape=X.shape)
    means = sparse.coo_array(sparse.triu(X.T @ X, k=1)) / X.shape[0]
    for part in slices(means.nnz, _PAIRS_AT_ONCE):
        yield np.column_stack([means.row[part], means.col[part]]), means.data[part]


def _alone(model):
    """Return the scores of rows of one feature each, less the score of a row of none."""
    n = model.n_features_in_
    rows = kernel_csr(np.ones(n), np.arange(n), np.append(np.arange(n + 1), n), (n + 1, n))
    scores = model._score_rows(rows).T.astype(np.float64)
    return scores[:-1] - scores[-1], scores[-1]


def _strengths(model, pairs, alone):
    """Return the effects on the score of two features together, minus those of each alone."""
    n_rows, n_features = len(pairs), model.n_features_in_
    indptr = np.arange(0, 2 * n_rows + 1, 2)
    rows = kernel_csr(np.ones(2 * n_rows), pairs.ravel(), indptr, (n_rows, n_features))
    scores = model._score_rows(rows)
    single, empty = alone
    return scores.T - empty - single[pairs[:, 0]] - single[pairs[:, 1]]


def _keep_largest(best, new, n):
    """Return the ``n`` pairs of the largest effects of both; equal ones in order of the features.

    They are tuples of arrays: pairs, strengths and effects.
    """
    parts = [np.concatenate(both) for both in zip(best, new, strict=True)]
    pairs, _, effects = parts
    if len(effects) > n:
        least = np.partition(effects, len(effects) - n)[len(effects) - n]
        parts = [part[effects >= least] for part in parts]
        pairs, _, effects = parts
    order = np.lexsort((pairs[:, 1], pairs[:, 0], -effects))[:n]
    return tuple(part[order] for part in parts)
