"""Warnings with the location of the user's call, from any depth in the package."""

import functools
import sys
import warnings

# Packages whose stack frames lie between a user's call and its warning.
_INNER = ("freqfm", "joblib", "numba", "sklearn", "threading")


# Warnings shown by filters that show each but once at a place, with its file and those actions.
_shown = set()


def warn_user(message, category=UserWarning):
    """Warn, with the location of the user's call into the package.

    Filters such as Python's default show a warning once at a place. Python forgets what it has
    shown whenever a filter is set, as scikit-learn does in each check of its input, so that every
    fit of a search would warn again; therefore it is remembered here as well. Under other filters,
    such as "always", every call warns.
    """
    frame, level = sys._getframe(1), 1
    while frame.f_back and frame.f_globals.get("__name__", "").split(".")[0] in _INNER:
        frame, level = frame.f_back, level + 1
    key = message, category, frame.f_lineno
    actions = tuple(action for action, _, of, *_ in warnings.filters if issubclass(category, of))
    shown = frame.f_code.co_filename, key, actions
    if shown in _shown:
        return
    warnings.warn(message, category, stacklevel=level + 1)
    # Python has noted it there if the filter is to show it once.
    if frame.f_globals.get("__warningregistry__", {}).get(key):
        _shown.add(shown)


@functools.cache
def warn_once(message):
    """Warn like :func:`warn_user`, once per process for each message.

    In a search, every fit would repeat the warnings about the same data.
    """
    warn_user(message)
