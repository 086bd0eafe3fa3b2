"""Documents as numbers of tokens, and files of word vectors."""

import codecs
import gzip
import re
import unicodedata
import zlib
from array import array
from collections import defaultdict
from collections.abc import Iterable, Mapping, Set
from itertools import chain, islice
from numbers import Integral
from typing import NamedTuple

import numpy as np
from scipy import sparse

from freqfm._input.rows import concatenated_ranges
from freqfm._input.validation import check_count, check_flag
from freqfm._messages import cut, not_known, shown, warn_user
from freqfm._paths import check_path

# Within words: joiners, the Catalan middle dot, and the signs of Hebrew abbreviations.
_KEPT = "_\u00b7\u05f3\u05f4\u180e\u200c\u200d"

# Invisible, such as soft hyphens and marks of direction; or of stress, over Armenian vowels.
_LEFT_OUT = "\u00ad\u055b\u055c\u055e\u061c\ufeff"


class _WordCharacters(dict):
    """A table for ``str.translate`` that replaces characters between words by spaces.

    The ``\\w`` of regular expressions would cut words at combining marks, which write vowels in
    most scripts of India, in Thai, Arabic and Hebrew, and accents in decomposed Latin.
    """

    def __missing__(self, code):
        character = chr(code)
        category = unicodedata.category(character)
        if category[0] in "LMN" or character in _KEPT:
            self[code] = code
        elif character in _LEFT_OUT or (category == "Cf" and 0x200E <= code <= 0x206F):
            self[code] = None
        else:
            self[code] = " "
        return self[code]


_WORD_CHARACTERS = _WordCharacters()

# A word begins with no mark, such as those of emoji, and does not end with a zero-width non-joiner.
_WORD = re.compile("\\w(?:[^ ]*[^ \u200c])?")


class Corpus(NamedTuple):
    """Documents as indices of tokens in a vocabulary, with -1 after each document."""

    tokens: np.ndarray  #: (n,), int32
    starts: np.ndarray  #: (n_documents + 1,), where documents begin, int64

    @property
    def longest(self):
        """The number of tokens in the longest document."""
        return int(np.diff(self.starts).max(initial=1)) - 1

    def counts(self, n_tokens):
        """Return how often each token occurs, int64."""
        return np.bincount(self.tokens + 1, minlength=n_tokens + 1)[1:]

    def in_order(self, order):
        """Return the indices into ``tokens`` of all documents in another order."""
        return concatenated_ranges(self.starts[order], np.diff(self.starts)[order])


class Documents(NamedTuple):
    """Documents that have been read once: their distinct tokens, and their numbers."""

    tokens: list  #: distinct, in the order of their first occurrence
    numbers: np.ndarray  #: (n,), of all documents' tokens, int32
    lengths: np.ndarray  #: (n_documents,), int64

    @classmethod
    def read(cls, documents, analyzer):
        """Read an iterable of documents.

        Parameters
        ----------
        documents : iterable
            Of strings, or of sequences of tokens, which are strings or integers.
        analyzer : {"word", "whitespace"} or callable
            See ``Word2Vec``.

        Raises
        ------
        TypeError, ValueError
            If they cannot be read; the message says which document.
        """
        _check_container(documents)
        split = _splitter(analyzer)
        numbers, lengths = array("i"), array("q")
        number_of = defaultdict()
        number_of.default_factory = number_of.__len__
        for i, document in enumerate(documents):
            tokens = split(document, i)
            before = len(numbers)
            try:
                numbers.extend(map(number_of.__getitem__, tokens))
            except TypeError as error:
                raise TypeError(
                    f"X[{i}] is not a sequence of tokens, strings or integers: {cut(error)}."
                ) from None
            lengths.append(len(numbers) - before)
        return cls(
            _checked_tokens(number_of),
            np.array(numbers, dtype=np.int32),
            np.array(lengths, dtype=np.int64),
        )

    def vocabulary(self, min_count, known=()):
        """Return the tokens that occur at least so often, sorted, without known ones."""
        counts = np.bincount(self.numbers, minlength=len(self.tokens))
        frequent = (self.tokens[i] for i in np.flatnonzero(counts >= min_count))
        new = [token for token in frequent if token not in known]
        try:
            return sorted(new)
        except TypeError:
            raise TypeError(
                "X holds both strings and integers as tokens; take one of them."
            ) from None

    def corpus(self, vocabulary):
        """Return the documents without the tokens that a vocabulary does not have.

        Parameters
        ----------
        vocabulary : dict
            The index of each token.
        """
        index_of = np.array([vocabulary.get(token, -1) for token in self.tokens], dtype=np.int32)
        indices = index_of[self.numbers] if len(self.numbers) else self.numbers
        kept = indices >= 0
        ends = np.append(0, np.cumsum(kept))[np.append(0, np.cumsum(self.lengths))]
        starts = ends + np.arange(len(ends))
        tokens = np.full(starts[-1], -1, dtype=np.int32)
        inside = np.ones(len(tokens), dtype=bool)
        inside[starts[1:] - 1] = False
        tokens[inside] = indices[kept]
        return Corpus(tokens, starts)


def _check_container(documents):
    """Raise unless documents can be read one by one."""
    advice = "give an iterable of strings or of lists of tokens"
    if isinstance(documents, (str, bytes)):
        raise ValueError(f"X is a single {type(documents).__name__}; {advice}.")
    if sparse.issparse(documents):
        raise TypeError(
            f"X is a sparse matrix; {advice}. The order of tokens is needed, not counts."
        )
    if hasattr(documents, "columns"):
        raise TypeError("X is a table; give one of its columns, such as X['text'].")
    if isinstance(documents, (Mapping, Set)) or not isinstance(documents, Iterable):
        raise TypeError(f"X is of type {type(documents).__name__}; {advice}.")


def _splitter(analyzer):
    """Return a function of a document and its number that returns the tokens."""
    if callable(analyzer):
        return lambda document, i: analyzer(document)

    def split(document, i):
        if isinstance(document, str) and analyzer == "word":
            return _WORD.findall(document.lower().translate(_WORD_CHARACTERS))
        if isinstance(document, str):
            return document.split()
        if isinstance(document, (bytes, Mapping, Set)) or not hasattr(document, "__iter__"):
            raise TypeError(
                f"X[{i}] is {shown(document)} of type {type(document).__name__}; give a "
                f"string (of bytes, decode(errors='replace') makes one), or a list of tokens."
            )
        return document

    return split


def _checked_tokens(number_of):
    """Return tokens as Python's strings and integers, in the order of their numbers."""
    tokens = list(number_of)
    for i, token in enumerate(tokens):
        if isinstance(token, str):
            tokens[i] = str(token)
        elif isinstance(token, Integral) and not isinstance(token, bool):
            tokens[i] = int(token)
        else:
            raise TypeError(
                f"X holds the token {shown(token)} of type {type(token).__name__}; tokens are "
                f"strings or integers."
            )
    return tokens


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
                f"holds a space, a line break or no valid Unicode; store the model with pickle."
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
    if decode_error not in (known := ("strict", "replace", "ignore")):
        raise not_known("decode_error", decode_error, known)
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
