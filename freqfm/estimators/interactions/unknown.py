"""What InteractionRecommender answers for ids that fit has not seen: the parameter ``unknown``."""

import numpy as np

from freqfm._messages import not_known, shorten
from freqfm._warnings import warn_user

ANSWERS = "popular", "error", "none"


class UnknownIds:
    """The ids of a call that fit has not seen, and how the call answers for them.

    Parameters
    ----------
    answer : {"popular", "error", "none"}
        The parameter ``unknown`` of the estimator.
    """

    def __init__(self, answer):
        if answer not in ANSWERS:
            raise not_known("unknown", answer, ANSWERS)
        self.answer = answer
        self._found = {}

    @property
    def are_empty(self):
        """Whether users who are unknown are recommended nothing."""
        return self.answer == "none"

    def note(self, name, ids, kind="id"):
        """Remember ids, or features, of an argument for the warning; or raise.

        Raises
        ------
        ValueError
            With "error". It names the first few.
        """
        if not len(ids):
            return
        ids = list(dict.fromkeys(ids))
        found = f"{name} holds {len(ids)} {kind}(s) that fit has not seen: {shorten(ids, 5)}"
        if self.answer == "error":
            raise ValueError(
                f"{found}. Leave them out, add them by partial_fit, or set unknown='popular' or "
                f"'none'."
            )
        self._found[name] = found

    def warn(self):
        """Warn once of all that a call was given, with "popular"."""
        if self._found and self.answer == "popular":
            warn_user(
                f"{'; '.join(self._found.values())}. Items are left out, and users of whom nothing "
                f"else is known get popular items, scored by the shares of users that have them. "
                f"Set unknown='none' to recommend nothing to such users, or 'error' to raise."
            )

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
