"""Paths of files and folders that users give."""

import os

from freqfm._messages import shown


def check_path(name, path, also=""):
    """Return a path as a string.

    Parameters
    ----------
    name : str
        The argument, for the error.
    path : str or path-like
    also : str
        What else the argument may be, for the error.

    Raises
    ------
    TypeError
        If it is anything else: bytes, a number, which ``open`` takes for an open file, or an open
        file, whose lines a loop takes for paths.
    ValueError
        If no file has such a path.
    """
    text = os.fspath(path) if isinstance(path, (str, os.PathLike)) else None
    if not isinstance(text, str):
        advice = ""
        if isinstance(path, bytes) or isinstance(text, bytes):
            advice = "; decode bytes with os.fsdecode"
        elif hasattr(path, "read") or hasattr(path, "write"):
            advice = "; give the path of a file, not an open one"
        raise TypeError(
            f"{name}={shown(path)} must be a path, a str or an os.PathLike{also}{advice}."
        )
    # pathlib takes an empty path for the current folder.
    if not text or "\0" in text:
        raise ValueError(f"{name}={shown(text)} is no path; give that of a file or a folder.")
    return str(text)


def check_paths(name, paths):
    """Return the paths of an argument, one or a list or tuple of them, as a list of strings.

    Raises
    ------
    TypeError, ValueError
        As :func:`check_path`; a ValueError as well if there is none.
    """
    if not isinstance(paths, (list, tuple)):
        return [check_path(name, paths, ", or a list or tuple of these")]
    if not paths:
        raise ValueError(f"{name} is {paths!r}; pass a path or a list of at least one path.")
    return [check_path(f"{name}[{i}]", path) for i, path in enumerate(paths)]
