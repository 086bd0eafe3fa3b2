"""Recommenders that store a vector for each user and each item."""

import numpy as np
from sklearn.utils import Bunch

from freqfm._input.rows import take_rows
from freqfm._input.validation import check_memory, validate_id
from freqfm._memory import as_aligned
from freqfm.estimators.training import check_unchanged

__all__ = ["FactorsMixin"]


class FactorsMixin:
    """A recommender with ``user_factors_`` and ``item_factors_``; a mixin before its base class.

    A subclass defines ``_contributions``, for ``explain``.
    """

    def _check_size(self, shape):
        check_memory(
            sum(shape) * int(self.n_components),
            f"n_components={self.n_components} for {shape[0]} users and {shape[1]} items",
            "Take fewer components, or number users and items without gaps.",
        )

    def _check_continues(self, X, components, partial):
        super()._check_continues(X, components, partial)
        n_users, width = self.user_factors_.shape
        check_unchanged(self, "n_components", width == self.n_components, f"the {width}")
        if not partial and X.shape[0] != n_users:
            raise ValueError(
                f"X has {X.shape[0]} rows, but the model to continue has {n_users} users. Use "
                f"partial_fit for new users, or fit a new model with warm_start=False."
            )

    def _align_factors(self):
        """Align vectors with cache lines: training is faster."""
        for name in ("user_factors_", "item_factors_"):
            setattr(self, name, as_aligned(getattr(self, name)))

    def _check_vectors(self, learned):
        _, width = learned.array("item_factors_", (self.n_features_in_, None))
        learned.require(width > 0, "item_factors_", "holds no numbers")
        learned.array("user_factors_", (self._n_users, width))

    def _vectors_in_training(self, users, X):
        return self._user_vectors(users)

    def _embed(self, users):
        return self._user_vectors(users)

    def _similarity_table(self, axis):
        table = self.user_factors_ if axis == "users" else self.item_factors_
        return table, table.shape[1]

    def _explain(self, user, item, X):
        """Split the score of an item into the contributions of the user's items, and a rest."""
        queries = self._queries(X, [user] if X is None else None)
        row = 0 if X is None else validate_id("user", user, len(queries.vectors))
        item = validate_id("item", item, self.n_features_in_)
        query, history = queries.vectors[row], take_rows(queries.history, [row])
        if queries.learned[row]:
            score = float(query @ self._item_vectors([item])[0])
            contributions = self._contributions(query, history, item)
        else:
            score = float(self._popularity(self.item_counts_[item]))
            contributions = np.zeros(0)
        if not self._is_learned("items", [item])[0]:
            score = -np.inf
        order = np.argsort(-contributions, kind="stable")
        return Bunch(
            history=history.indices[order].astype(np.int64),
            contributions=contributions[order].astype(np.float64),
            rest=score - float(contributions.sum()),
            score=score,
        )
