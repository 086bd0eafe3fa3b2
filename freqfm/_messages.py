"""Text and place of errors and warnings: values shortened and escaped, the user's call."""

import difflib
import functools
import re
import sys
import warnings
from reprlib import Repr

import numpy as np

# Characters of a string in a message, and of any other value.
_STRING, _VALUE = 80, 300

# Control characters, which terminals may take for commands; line ends; characters that change the
# direction of writing; and halves of surrogate pairs, which cannot be encoded.
_ESCAPED = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


class _Short(Repr):
    """Text of values, shortened to fit into a message."""

    def __init__(self):
        super().__init__()
        self.maxstring = self.maxlong = _STRING
        self.maxother = _VALUE


def shown(value):
    """Return a value as text for a message, as :func:`cut` does; strings are in quotes."""
    if isinstance(value, (np.datetime64, np.timedelta64)):
        return str(value)
    # NumPy 2 would add the type of a number.
    return cut(_Short().repr(value.item() if isinstance(value, np.generic) else value))


def cut(text, most=_VALUE):
    """Return a text or an error for a message: on one line, escaped, and not too long.

    Values may come from files and from web pages: they must neither control a terminal nor fill a
    log.
    """
    text = str(text)
    # The repr of an array has several lines.
    text = re.sub(r"\s*\n\s*", " ", text if len(text) <= most else f"{text[: most - 3]}...")
    return _ESCAPED.sub(lambda found: repr(found[0])[1:-1], text)


def shorten(names, most=20):
    """Return names for a message; only the first ones if there are many."""
    names = list(names)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"[{', '.join(map(shown, names[:most]))}]{more}"


def not_known(name, value, known):
    """Return the error of an argument that is none of the known names; it suggests similar ones."""
    near = difflib.get_close_matches(str(value), known, n=2, cutoff=0.4) or sorted(known)
    return ValueError(
        f"{name}={shown(value)} is not known; did you mean {' or '.join(map(repr, near))}? Known "
        f"names: {', '.join(map(repr, sorted(known)))}."
    )


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
    actions = tuple(
        action for action, _, kind, *_ in warnings.filters if issubclass(category, kind)
    )
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
