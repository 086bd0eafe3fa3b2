"""A recommender in a few lines, with the interface of the real ones."""

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.utils import Bunch
from sklearn.utils.validation import check_is_fitted


class Counting(BaseEstimator):
    """Scores an item by how often it occurs with the history's items, then by its popularity.

    Dense and slow. ``weight`` is what popularity counts; a negative one makes a bad recommender.
    """

    def __init__(self, weight=1e-3):
        self.weight = weight

    def fit(self, X, y=None):
        return self.partial_fit(X, new=True)

    def partial_fit(self, X, y=None, new=False):
        X = sparse.csr_array(X).toarray().astype(float)
        if new or not hasattr(self, "seen_"):
            self.seen_ = np.zeros((0, 0))
        seen = np.zeros(np.maximum(X.shape, self.seen_.shape))
        seen[: self.seen_.shape[0], : self.seen_.shape[1]] = self.seen_
        seen[: X.shape[0], : X.shape[1]] += X
        self.seen_ = seen
        self.together_ = (seen != 0).T.astype(float) @ (seen != 0)
        np.fill_diagonal(self.together_, 0)
        self.popular_ = np.abs(seen).sum(axis=0)
        self.n_features_in_ = seen.shape[1]
        return self

    def _scores(self, histories):
        return (histories != 0) @ self.together_ + self.weight * self.popular_

    def recommend(
        self,
        X=None,
        *,
        users=None,
        n_recommendations=10,
        exclude_seen=True,
        candidates=None,
        exclude=None,
    ):
        check_is_fitted(self)
        assert X is None or users is None
        if X is not None:
            histories = sparse.csr_array(X).toarray()
            assert histories.shape[1] == self.seen_.shape[1]
        else:
            histories = self.seen_ if users is None else self.seen_[users]
        scores = self._scores(histories)
        if exclude_seen:
            scores[histories != 0] = -np.inf
        if sparse.issparse(exclude):
            scores[exclude.toarray() != 0] = -np.inf
        elif exclude is not None:
            scores[:, exclude] = -np.inf
        if sparse.issparse(candidates):
            scores[candidates.toarray() == 0] = -np.inf
        elif candidates is not None:
            others = np.setdiff1d(np.arange(scores.shape[1]), candidates)
            scores[:, others] = -np.inf
        return best(scores, n_recommendations)

    def predict(self, X):
        return self.recommend(X)[0]

    def predict_pairs(self, users, items):
        return self._scores(self.seen_)[users, items]

    def similar_items(self, items, n_recommendations=10, *, candidates=None, exclude=None):
        scores = self.together_[items]
        return self._similar(items, scores, n_recommendations, candidates, exclude)

    def similar_users(self, users, n_recommendations=10, *, candidates=None, exclude=None):
        scores = self.seen_[users] @ self.seen_.T
        return self._similar(users, scores, n_recommendations, candidates, exclude)

    def _similar(self, queries, scores, n_recommendations, candidates, exclude):
        scores[np.arange(len(queries)), queries] = -np.inf
        if candidates is not None:
            scores[:, np.setdiff1d(np.arange(scores.shape[1]), candidates)] = -np.inf
        if exclude is not None:
            scores[:, exclude] = -np.inf
        return best(scores, n_recommendations)

    def explain(self, user, item):
        history = np.flatnonzero(self.seen_[user])
        contributions = self.together_[history, item]
        return Bunch(history=history, contributions=contributions, score=contributions.sum())


def best(scores, n):
    """Return the places of the n largest scores of each row and these, padded by -1 and -inf."""
    scores = np.pad(scores, ((0, 0), (0, n)), constant_values=-np.inf)
    order = np.argsort(-scores, axis=1, kind="stable")[:, :n]
    scores = np.take_along_axis(scores, order, axis=1)
    return np.where(np.isneginf(scores), -1, order), scores.astype(np.float32)
