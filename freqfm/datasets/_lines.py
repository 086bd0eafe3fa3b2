"""Lines of text files, compressed or not."""

import bz2
import gzip
import io
import os
import zlib
from itertools import islice


def _open_zstd(path, mode):
    """Open a file compressed by zstd."""
    try:
        import pyarrow
    except ImportError:
        raise ImportError(f"opening {path} takes pyarrow: pip install 'freqfm[streams]'.") from None
    if mode == "wb":
        return pyarrow.output_stream(path, compression="zstd")
    return io.BufferedReader(pyarrow.input_stream(path, compression="zstd"))


_OPENERS = {".gz": gzip.open, ".bz2": bz2.open, ".zst": _open_zstd}


def opener_of(path):
    """Return the function that opens a file, compressed if its name says so."""
    return _OPENERS.get(os.path.splitext(path)[1], open)


_UTF8_MARK = b"\xef\xbb\xbf"
_UTF16_MARKS = b"\xff\xfe", b"\xfe\xff"


def read_lines(path):
    """Yield the number and the bytes of each line, without a byte order mark.

    Parameters
    ----------
    path : str
        Files that end in ".gz", ".bz2" or ".zst" are decompressed.

    Raises
    ------
    ValueError
        If the file cannot be decompressed, or is encoded in UTF-16.
    """
    opener = opener_of(path)
    with opener(path, "rb") as file:
        try:
            lines = enumerate(file, start=1)
            for number, line in islice(lines, 1):
                if line.startswith(_UTF16_MARKS):
                    raise ValueError(f"{path} is encoded in UTF-16; save it as UTF-8.")
                yield number, line.removeprefix(_UTF8_MARK)
            yield from lines
        except Exception as error:
            # zstd's error has a class in each library. Only errors of the operating system have an
            # errno.
            known = isinstance(error, (EOFError, OSError, zlib.error))
            if not known and type(error).__name__ != "ZstdError":
                raise
            if opener is open or getattr(error, "errno", None) is not None:
                raise
            raise ValueError(
                f"{path} cannot be decompressed ({error}); pass a complete file, or one whose name "
                f"does not end in .gz, .bz2 or .zst if it is not compressed."
            ) from error


def parsed(path, lines, parse):
    """Yield the number of each line, and the result of a function of its text.

    Errors of the function name the file and the line.

    Bytes that are not UTF-8 are kept in a readable form.
    """
    for number, line in lines:
        try:
            row = parse(line.decode("utf-8", "backslashreplace").rstrip("\r\n"))
        except ValueError as error:
            raise at_line(path, number, error) from None
        yield number, row


def at_line(path, number, problem):
    """Return the error for a problem in a line."""
    return ValueError(f"{path}, line {number}: {problem}")
