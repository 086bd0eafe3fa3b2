"""Files of word vectors in the format of the original word2vec program, text or binary."""

import codecs
import gzip
import re
import zlib
from array import array
from itertools import chain, islice

import numpy as np

from freqfm._input.validation import check_count, check_flag
from freqfm._messages import cut, shown
from freqfm._paths import check_path
from freqfm._warnings import warn_user

# The errors that damaged files cause.
_UNREADABLE = ValueError, EOFError, zlib.error, gzip.BadGzipFile

# A header that announces more components is refused.
_WIDEST = 1 << 20

# A token that ends with a number: the row has more numbers than components.
_ENDS_WITH_NUMBER = re.compile(rb" [-+]?\.?\d[^ ]*$")


def _open(path, mode):
    return gzip.open(path, mode) if path.endswith(".gz") else open(path, mode)


def write_vectors(path, tokens, vectors, binary):
    """Write vectors, one for each token.

    Raises
    ------
    ValueError
        If the format cannot hold a token; nothing is written then.
    """
    path, binary = check_path("path", path), check_flag("binary", binary)
    names = [str(token) for token in tokens]
    for name in names:
        # Half of a surrogate pair has no bytes.
        whole = name.encode(errors="ignore").decode() == name
        if not name or not whole or " " in name or "\n" in name:
            raise ValueError(
                f"the token {shown(name)} cannot be stored in files of word2vec: it is empty, or "
                f"holds a space, a line break or no valid Unicode; store the model with pickle or "
                f"skops instead."
            )
    with _open(path, "wb") as file:
        file.write(f"{len(names)} {vectors.shape[1]}\n".encode())
        for name, row in zip(names, vectors.astype("<f4", copy=False), strict=True):
            # Nine digits tell apart all numbers of float32.
            text = "" if binary else " ".join(f"{x:.9g}" for x in row.tolist())
            file.write(name.encode() + b" " + (text.encode() or row.tobytes()) + b"\n")


def read_vectors(path, binary, limit, decode_error):
    """Return the distinct tokens of a file, a list of strings, and their vectors.

    For parameters, errors and warnings see ``Word2Vec.load_word2vec_format``.
    """
    path = check_path("path", path)
    read_rows = _binary_rows if check_flag("binary", binary) else _text_rows
    limit = None if limit is None else check_count("limit", limit)
    if decode_error not in ("strict", "replace", "ignore"):
        raise ValueError(
            f"decode_error={decode_error!r} is unknown; choose 'strict', 'replace' or 'ignore'."
        )
    tokens, numbers = [], bytearray()
    with _open(path, "rb") as file:
        try:
            n_said, found = read_rows(file)
            for name, row in islice(found, limit):
                tokens.append(name.decode(errors=decode_error))
                numbers += row
        except _UNREADABLE as error:
            raise _error(
                path, f"cannot be read at vector {len(tokens) + 1}: {cut(error)}"
            ) from None
    if not tokens:
        raise _error(path, "holds no vectors")
    _check_number(path, len(tokens), n_said, limit)
    vectors = np.frombuffer(numbers, dtype=np.float32).reshape(len(tokens), -1)
    finite = np.isfinite(vectors).all(axis=1)
    if not finite.all():
        name = tokens[np.argmin(finite)]
        raise _error(path, f"holds numbers for {shown(name)} that are not finite in float32")
    return _first_of_each(path, tokens, vectors)


def _check_number(path, n_read, n_said, limit):
    """Compare the number of vectors with that of the first line, None if it has none."""
    if n_said is None or n_read in (n_said, limit):
        return
    found = f"{path} holds {n_read} vectors, but its first line says {n_said}"
    if n_read < n_said:
        raise ValueError(f"{found}: it may be cut off. limit={n_read} loads what is there.")
    warn_user(f"{found}; all are loaded.")


def _first_of_each(path, tokens, vectors):
    """Return distinct tokens with the first vector of each."""
    rows = {}
    for row, token in enumerate(tokens):
        rows.setdefault(token, row)
    if len(rows) < len(tokens):
        again = next(token for row, token in enumerate(tokens) if rows[token] != row)
        warn_user(
            f"{path} holds {len(tokens) - len(rows)} vectors of tokens that it held "
            f"before, such as {shown(again)}; the first vector of each token is kept."
        )
        vectors = vectors[list(rows.values())]
    return list(rows), vectors


def _header(line):
    """Return the numbers of vectors and of components in a line; None if it has no two numbers."""
    parts = line.split()
    if len(parts) != 2 or not all(part.isdigit() for part in parts):
        return None
    n, width = map(int, parts)
    if not 1 <= width <= _WIDEST:
        raise ValueError(f"vectors of {width} numbers are announced")
    return n, width


def _text_rows(file):
    """Return the number of vectors that is announced, or None, and names and vectors."""
    line = file.readline().removeprefix(codecs.BOM_UTF8)
    header = _header(line)
    if header is not None:
        return header[0], _parsed(file, header[1])
    return None, _parsed(chain([line], file), line.rstrip().count(b" "))


def _parsed(lines, width):
    for line in lines:
        # Some tokens of GloVe's files hold spaces.
        name, *numbers = line.rstrip().rsplit(b" ", width)
        if not name and not numbers:
            continue
        if not name or not width or len(numbers) != width or _ENDS_WITH_NUMBER.search(name):
            raise ValueError(f"a token and {width or 'its'} numbers are expected")
        yield name, array("f", map(float, numbers))


def _binary_rows(file):
    """Return the number of vectors that is announced, and names and vectors."""
    header = _header(file.readline(100))
    if header is None:
        raise ValueError("the numbers of tokens and of components are expected first")
    return header[0], _unpacked(file, header[1])


def _unpacked(file, width):
    while (name := _name(file)) is not None:
        numbers = file.read(4 * width)
        if not name or len(numbers) != 4 * width:
            raise ValueError(f"a token and {width} numbers of 4 bytes are expected")
        yield name, np.frombuffer(numbers, dtype="<f4").astype(np.float32).tobytes()


def _name(file):
    """Return the next token of a binary file, or None at its end."""
    name = bytearray()
    while (byte := file.read(1)) != b" ":
        if not byte and not name:
            return None
        if not byte or len(name) > 10_000:
            raise ValueError("a token that ends with a space is expected")
        # Some programs end a row with a line break.
        if byte != b"\n":
            name += byte
    return bytes(name)


def _error(path, found):
    return ValueError(
        f"{path} {found}; it is not a file of word vectors in the format of word2vec, "
        f"is damaged, or was written with the other value of binary."
    )
