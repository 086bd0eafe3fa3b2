"""Text in errors and warnings from values of users or from files: shortened and escaped."""

import difflib
import re
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
