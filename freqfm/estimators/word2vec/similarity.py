"""Similarities of word vectors: most similar tokens, cosines, tokens that do not match."""

import numpy as np

from freqfm._input.ids import as_list
from freqfm._input.validation import as_kernel_input, check_count, count_threads
from freqfm._messages import shown
from freqfm.metrics._ranking import top_k


class TokenSimilarity:
    """Mixin of a model with ``vocabulary_`` and ``vectors_``."""

    def most_similar(self, positive=(), negative=(), n=10):
        """Return the tokens whose vectors have the largest cosines with a sum of vectors.

        The query is the sum of the unit vectors of ``positive`` less that of ``negative``; tokens
        of the query are not returned.

        Parameters
        ----------
        positive, negative : token or list of tokens, default=()
            Strings or integers of the vocabulary; at least one in all.
        n : int, default=10
            How many tokens to return, fewer if the vocabulary has no more.

        Returns
        -------
        similar : list of (token, float)
            Tokens with their cosines, the largest first.

        Raises
        ------
        ValueError
            If a token is not in the vocabulary.
        """
        n = check_count("n", n)
        added, taken = (self._rows_of(name, tokens) for name, tokens in
                        (("positive", positive), ("negative", negative)))  # fmt: skip
        given = np.append(added, taken)
        if not len(given):
            raise ValueError("positive and negative are both empty; give a token, or several.")
        query = self._unit_rows(added).sum(axis=0) - self._unit_rows(taken).sum(axis=0)
        query /= max(np.linalg.norm(query), 1e-12)
        items, scores = top_k(
            query[None],
            as_kernel_input(self.vectors_),
            min(n, len(self.vectors_)),
            exclude_for_all=np.unique(given),
            unit_columns=self.vectors_.shape[1],
            n_threads=count_threads(self.n_jobs),
            device=self.device,
        )
        found = zip(items[0].tolist(), scores[0].tolist(), strict=True)
        tokens = self._tokens()
        return [(tokens[k], score) for k, score in found if k >= 0]

    def similarity(self, first, second):
        """Return the cosine of the vectors of two tokens.

        Parameters
        ----------
        first, second : token

        Returns
        -------
        cosine : float
        """
        rows = self._rows_of("first", [first]), self._rows_of("second", [second])
        first, second = (self._unit_rows(row)[0] for row in rows)
        return float(first @ second)

    def doesnt_match(self, tokens):
        """Return the token whose vector has the smallest cosine with the mean of all given ones.

        Parameters
        ----------
        tokens : list of tokens
            Their unit vectors are averaged.

        Returns
        -------
        token : str or int
        """
        rows = self._rows_of("tokens", tokens)
        if not len(rows):
            raise ValueError("tokens is empty; give tokens of the vocabulary.")
        units = self._unit_rows(rows)
        return self._tokens()[rows[np.argmin(units @ units.mean(axis=0))]]

    def _tokens(self):
        """Return the tokens in the order of their rows."""
        return self._check_learned().once(("vocabulary_",), self._tokens_by_row)

    def _rows_of(self, name, tokens):
        """Return the rows of a token, or of several."""
        self._check_learned()
        tokens = as_list(tokens)
        if isinstance(tokens, str) or not hasattr(tokens, "__iter__"):
            tokens = [tokens]
        rows = []
        for token in tokens:
            try:
                if isinstance(token, (bool, np.bool_)):
                    raise TypeError("True would be the token 1")
                rows.append(self.vocabulary_[token])
            except (KeyError, TypeError):
                raise ValueError(
                    f"{name} holds {shown(token)}, which is not among the {len(self.vocabulary_)} "
                    f"tokens of the vocabulary."
                ) from None
        return self._checked_rows(rows)

    def _unit_rows(self, rows):
        """Return vectors at unit length, float64; zeros stay zeros."""
        vectors = self.vectors_[rows].astype(np.float64)
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors / np.where(lengths > 0, lengths, 1)
