"""What InteractionRecommender does about users and values that fit has not seen: ``unknown``."""

import numpy as np

from freqfm._messages import not_known, shorten
from freqfm._warnings import warn_user

ANSWERS = "popular", "error", "none"

# What the users of most calls get.
POPULAR = "get popular items, scored by the shares of users that have them"


class UnknownIds:
    """What fit has not seen of the ids and values of a call, and how it answers for users.

    Parameters
    ----------
    answer : {"popular", "error", "none"}
        The parameter ``unknown`` of the estimator.
    """

    def __init__(self, answer):
        if answer not in ANSWERS:
            raise not_known("unknown", answer, ANSWERS)
        self.answer = answer
        self._users, self._ignored = [], []

    @property
    def are_empty(self):
        """Whether users who are unknown are recommended nothing."""
        return self.answer == "none"

    def note(self, role, name, values, kind="id"):
        """Remember what fit has not seen of a "user", an "item" or the "context"; or raise.

        Ids of items have one rule whatever the answer is, so that there is no warning of them.

        Raises
        ------
        ValueError
            With "error". It names the first few.
        """
        if not len(values):
            return
        values = list(dict.fromkeys(values))
        found = f"{name} holds {len(values)} {kind}(s) that fit has not seen: {shorten(values, 5)}."
        if self.answer == "error":
            raise ValueError(
                f"{found} Leave them out, add them by partial_fit, or set unknown='popular' or "
                f"'none'."
            )
        if role == "user":
            self._users.append(found)
        elif kind != "id":
            self._ignored.append(f"{found} They are ignored.")

    def warn(self, outcome=POPULAR):
        """Warn once of all that a call was given: of users with "popular", of values always.

        ``outcome`` says what users get.
        """
        found = []
        if self._users and self.answer == "popular":
            found = [
                *self._users,
                f"Users of whom nothing else is known {outcome}. Set unknown='none' for no "
                f"warning, and no items for such users, or 'error' to raise.",
            ]
        if found or self._ignored:
            warn_user(" ".join([*found, *self._ignored]))

    def emptied(self, items, scores, users):
        """Return items and scores without those of unknown users, if these get none.

        Parameters
        ----------
        items, scores : ndarray of shape (n_users, n_recommendations)
        users : ndarray of bool, of shape (n_users,)
            Which are unknown.
        """
        if not (self.are_empty and users.any()):
            return items, scores
        empty = users[:, np.newaxis]
        return np.where(empty, -1, items), np.where(empty, np.float32(-np.inf), scores)
