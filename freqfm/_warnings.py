"""Warnings with the location of the user's call, from any depth in the package."""

import functools
import sys
import warnings

# Packages whose stack frames lie between a user's call and its warning.
_INNER = ("freqfm", "joblib", "numba", "sklearn", "threading")


def warn_user(message, category=UserWarning):
    """Warn, with the location of the user's call into the package."""
    frame, level = sys._getframe(1), 1
    while frame.f_back and frame.f_globals.get("__name__", "").split(".")[0] in _INNER:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level + 1)


@functools.cache
def warn_once(message):
    """Warn like :func:`warn_user`, once per process for each message.

    In a search, every fit would repeat the warnings about the same data.
    """
    warn_user(message)
