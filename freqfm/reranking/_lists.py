"""The lists of candidates that re-ranking takes, checked and sorted."""

from typing import NamedTuple

import numpy as np

from freqfm._input.item_tables import codes_of
from freqfm._input.validation import as_array, check_count
from freqfm.backends.base import RankedLists


class Given(NamedTuple):
    """Items and scores as a caller gave them, in descending order of the scores."""

    items: np.ndarray  #: (n, n_candidates), indices or ids; missing ones last
    scores: np.ndarray  #: (n, n_candidates)
    codes: np.ndarray  #: (n, n_candidates), int32: rows of the table of items; -1 for missing ones
    is_single: bool  #: whether one list was given, without a dimension of lists
    are_ids: bool  #: whether ``items`` holds ids, of which None is missing

    @classmethod
    def of(cls, items, scores, n_items, item_ids):
        """Return the lists that were given; raise if they are not valid.

        Parameters
        ----------
        items, scores : array-like of shape (n, n_candidates) or (n_candidates,)
        n_items : int
            Number of rows of the table of items.
        item_ids : array-like of shape (n_items,) or None
            The ids of these rows, if ``items`` holds ids.
        """
        items, scores = as_array("items", items), as_array("scores", scores)
        if items.shape != scores.shape or items.ndim not in (1, 2) or not items.shape[-1]:
            raise ValueError(
                f"items has shape {items.shape} and scores {scores.shape}; give both as recommend "
                f"returns them, (n_users, n_candidates)."
            )
        if scores.dtype.kind not in "biuf":
            raise TypeError(f"scores holds {scores.dtype}; give numbers.")
        is_single = items.ndim == 1
        items, scores = np.atleast_2d(items), np.atleast_2d(scores)
        codes = codes_of("items", items.ravel(), n_items, item_ids).reshape(items.shape)
        numbers = np.where(codes >= 0, scores.astype(np.float64), -np.inf)
        if not np.isfinite(numbers[codes >= 0]).all():
            raise ValueError("scores holds NaN or infinity for an item; give finite numbers.")
        _refuse_repeated(items, codes)
        order = np.argsort(-numbers, axis=1, kind="stable")
        items, scores, codes = (
            np.take_along_axis(array, order, axis=1) for array in (items, scores, codes)
        )
        return cls(items, scores, codes.astype(np.int32), is_single, item_ids is not None)

    def lists(self):
        """Return the items and how relevant they are, for the backend."""
        return RankedLists(self.codes, relevances(self.codes, self.scores))

    def take(self, chosen):
        """Return the items and scores at some places, -1 for none."""
        missing = chosen < 0
        # Where no candidate is left, the last one may be missing, as it was given.
        places = np.where(missing, self.codes.shape[1] - 1, chosen)
        items, scores, codes = (
            np.take_along_axis(array, places, axis=1)
            for array in (self.items, self.scores, self.codes)
        )
        missing &= codes >= 0
        if missing.any():
            items = items.astype(object if self.are_ids else np.int64)
            scores = scores.astype(np.result_type(scores, np.float32))
            items[missing], scores[missing] = None if self.are_ids else -1, -np.inf
        return (items[0], scores[0]) if self.is_single else (items, scores)

    def count(self, n_recommendations):
        """Return how many items are to be chosen; None is all."""
        n = self.codes.shape[1]
        k = n if n_recommendations is None else check_count("n_recommendations", n_recommendations)
        if k > n:
            raise ValueError(
                f"n_recommendations={k}, but items has {n} columns; recommend more candidates."
            )
        return k


def relevances(items, scores):
    """Return scores scaled to 1 for the best item of each list and 0 for its worst, float32.

    All are 0 if the best is no better. Rows fall, and end with missing items, -1, which have 0.
    """
    there = items >= 0
    scores = scores.astype(np.float64)
    best = np.where(there[:, :1], scores[:, :1], 0)
    above = np.where(there, scores, best)
    worst = above.min(axis=1, keepdims=True)
    spread = best - worst
    found = (above - worst) / np.where(spread > 0, spread, 1)
    return np.where(there, found, 0).astype(np.float32)


def _refuse_repeated(items, codes):
    ordered = np.sort(codes, axis=1)
    twice = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)
    if twice.any():
        row = int(np.flatnonzero(twice.any(axis=1))[0])
        raise ValueError(f"items names an item twice in row {row}; give every item once.")
