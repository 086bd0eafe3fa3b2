"""Text of errors and warnings that is made of what a user gave, or of what a file holds."""

import re
from itertools import islice
from reprlib import Repr

import numpy as np

# Characters of a string in a message, and of any other value.
_STRING, _VALUE = 80, 300


class _Short(Repr):
    """Writes as much of a value as a message has room for."""

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


def cut(text):
    """Return a text for a message: on one line, with escaped control characters, not too long.

    Values come from files and from web pages: a terminal must not obey them, nor a log be filled.
    """
    # The repr of an array has several lines.
    text = re.sub(r"\s*\n\s*", " ", text if len(text) <= _VALUE else f"{text[: _VALUE - 3]}...")
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def listed(values, most=5):
    """Return the first few of some values as text for a message, each as by :func:`shown`."""
    values = iter(values)
    first = [shown(value) for value in islice(values, most)]
    return ", ".join(first) + (", ..." if next(values, None) is not None else "")
