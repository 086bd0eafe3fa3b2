"""What InteractionRecommender does about ids and values that fit has not seen: ``unknown``."""

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
        self._found, self._ignored = {}, []

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

    def note_context(self, values):
        """Remember values of a context for the warning; or raise.

        Raises
        ------
        ValueError
            With "error". It names the first few.
        """
        if not values:
            return
        found = (
            f"the context holds {len(values)} value(s) that fit has not seen: {shorten(values, 5)}"
        )
        if self.answer == "error":
            raise ValueError(f"{found}. Leave them out, or set unknown='popular' or 'none'.")
        self._ignored.append(f"{found}. They are ignored.")

    def warn(self):
        """Warn once of all that a call was given: of ids with "popular", of contexts always."""
        found = list(self._ignored)
        if self._found and self.answer == "popular":
            found.insert(
                0,
                f"{'; '.join(self._found.values())}. Items are left out, and users of whom nothing "
                f"else is known get popular items, scored by the shares of users that have them. "
                f"Set unknown='none' to recommend nothing to such users, or 'error' to raise.",
            )
        if found:
            warn_user(" ".join(found))

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
