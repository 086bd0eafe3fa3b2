"""Loader of raw Criteo click logs, with the preprocessing of the FA-SGD paper."""

from __future__ import annotations

import math
import os
import re
import sys
from functools import lru_cache

import numpy as np
from scipy.sparse import csr_array
from sklearn.preprocessing import OneHotEncoder
from sklearn.utils import Bunch

from freqfm._input.validation import check_integer
from freqfm._messages import shown
from freqfm._paths import check_paths
from freqfm.datasets._lines import parsed, read_lines

COUNT_NAMES = [f"I{i}" for i in range(1, 14)]
CATEGORY_NAMES = [f"C{i}" for i in range(1, 27)]
FEATURE_NAMES = COUNT_NAMES + CATEGORY_NAMES

INTEGER = re.compile("-?[0-9]+")


def load_criteo_tsv(
    path: str | os.PathLike[str], *, min_frequency: int = 10, encoder=None
) -> Bunch:
    """Load raw rows of the Criteo display advertising data as one-hot fields.

    A line has 40 columns, separated by tabs: the label, 13 integer counts, and 26 categories
    as hexadecimal strings. A missing value is empty, and there is no header. All 39 columns
    become categorical fields as in [1]_, appendix A.1, which follows the winners of the 2014
    Criteo challenge: a count ``x > 2`` becomes the category ``floor(log(x) ** 2)``, every
    smaller count is a separate category, and so is a missing value.

    Parameters
    ----------
    path : str, path-like, or list or tuple of these
        File or files to read; those that end in ".gz", ".bz2" or ".zst" are decompressed. The
        rows of several files are concatenated.
    min_frequency : int, default=10
        Tokens with fewer occurrences than this share one column per field. Unused if
        `encoder` is given.
    encoder : OneHotEncoder, default=None
        The fitted `encoder` of an earlier call. Pass the encoder of the training rows to give the
        validation and test rows the same columns. None fits a new encoder on these rows.

    Returns
    -------
    bunch : Bunch
        - data : csr_array of shape (n_samples, n_features), dtype float32, with sorted int32
          indices. Every row holds one 1 per field. An unknown token is in the column of the
          field's rare tokens, or in no column if the field has no rare tokens.
        - target : ndarray of shape (n_samples,), dtype int64, 1 for a click and 0 for none
        - encoder : the fitted OneHotEncoder
        - feature_names : list of the 39 field names, I1 to I13 and C1 to C26; for the names
          of the one-hot columns call ``encoder.get_feature_names_out(feature_names)``

    Raises
    ------
    ValueError
        If there is no path or no row, if a file cannot be decompressed, if a line does not have
        40 columns, its label is not 0 or 1 or a count is not an integer, if `min_frequency` is
        not an integer >= 1, or if `encoder` was not fitted on the 39 fields.

    References
    ----------
    .. [1] Yan Li et al., "Frequency-aware SGD for Efficient Embedding Learning with Provable
       Benefits", ICLR 2022.

    Examples
    --------
    >>> import os, tempfile
    >>> from freqfm.datasets import load_criteo_tsv
    >>> categories = "\\t".join(["68fd1e64"] * 26)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "train.tsv")
    ...     with open(path, "w") as file:
    ...         for label, count in ((1, "2"), (0, "3"), (0, "")):
    ...             counts = "\\t".join([count] * 13)
    ...             _ = file.write(f"{label}\\t{counts}\\t{categories}\\n")
    ...     bunch = load_criteo_tsv(path, min_frequency=1)
    >>> bunch.data.shape, bunch.target.tolist()
    ((3, 65), [1, 0, 0])
    >>> bunch.encoder.categories_[0].tolist()
    ['', '2', 'log1']
    """
    check_integer("min_frequency", min_frequency, 1)
    if encoder is not None and getattr(encoder, "n_features_in_", None) != len(FEATURE_NAMES):
        raise ValueError(
            f"encoder is {shown(encoder)}, which was not fitted on {len(FEATURE_NAMES)} fields; "
            "pass the encoder of an earlier call of load_criteo_tsv."
        )
    rows = [row for one in check_paths("path", path) for row in read_log_rows(one)]
    if not rows:
        raise ValueError(f"path is {path!r}, with no rows; pass a path of at least one row.")

    labels, tokens = zip(*rows, strict=True)
    tokens = np.array(tokens, dtype=object)
    if encoder is None:
        encoder = OneHotEncoder(
            handle_unknown="infrequent_if_exist",
            min_frequency=int(min_frequency),
            dtype=np.float32,
        )
        encoder.set_output(transform="default").fit(tokens)
    data = csr_array(encoder.transform(tokens), dtype=np.float32)
    data.sort_indices()
    return Bunch(
        data=data,
        target=np.array(labels, dtype=np.int64),
        encoder=encoder,
        feature_names=list(FEATURE_NAMES),
    )


def read_log_rows(path):
    """Yield the label and the list of 39 tokens for every line of one file."""
    return (row for _, row in parsed(path, read_lines(path), _parse))


def _parse(text):
    """Return the label and the tokens of one line."""
    columns = text.split("\t")
    if len(columns) != 1 + len(FEATURE_NAMES):
        raise ValueError(
            f"found {len(columns)} columns; give every line 40 columns separated by tabs: "
            "the label, 13 counts and 26 categories."
        )
    label, counts, categories = columns[0], columns[1:14], columns[14:]
    if label not in ("0", "1"):
        raise ValueError(f"found the label {shown(label)}; give every line a label 0 or 1.")
    tokens = list(map(_count_token, counts))
    if None in tokens:
        wrong = tokens.index(None)
        raise ValueError(
            f"found {shown(counts[wrong])} in {COUNT_NAMES[wrong]}; give an integer or leave it "
            f"empty."
        )
    # Millions of rows repeat the same strings: interning stores each of them once.
    return int(label), tokens + [sys.intern(category) for category in categories]


@lru_cache(maxsize=100_000)
def _count_token(text):
    """Return the category of a count, or None if the text is not an integer."""
    if text == "":
        return ""
    # No count has so many digits, which Python refuses to parse.
    if not INTEGER.fullmatch(text) or len(text) > 4000:
        return None
    count = int(text)
    # The prefix "log" distinguishes a transformed 3 (1) from the count 1.
    return f"log{math.floor(math.log(count) ** 2)}" if count > 2 else str(count)
