"""Documents, as users give them, as numbers of tokens."""

import re
import unicodedata
from array import array
from collections import defaultdict
from collections.abc import Iterable, Mapping, Set
from numbers import Integral
from typing import NamedTuple

import numpy as np
from scipy import sparse

from freqfm._input.rows import concatenated_ranges
from freqfm._messages import cut, shown

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


def _words(text):
    """Return the words of a text in lower case."""
    return _WORD.findall(text.lower().translate(_WORD_CHARACTERS))


class Corpus(NamedTuple):
    """Documents as indices of tokens in a vocabulary, with -1 after each document."""

    tokens: np.ndarray  #: (n,), int32
    starts: np.ndarray  #: (n_documents + 1,), where documents begin, int64

    @property
    def n_documents(self):
        """The number of documents, empty ones included."""
        return len(self.starts) - 1

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
    of_string = _words if analyzer == "word" else str.split

    def split(document, i):
        if isinstance(document, str):
            return of_string(document)
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
