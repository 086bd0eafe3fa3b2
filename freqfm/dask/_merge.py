"""Models as tables of rows, and how those that shards have trained are merged row by row."""

from typing import NamedTuple

import numpy as np

from freqfm.estimators.tables import COUNTERS, MOMENTS, STEPS
from freqfm.formulas import codes

# How a table is merged; ``share`` is a shard's part of the occurrences of a row since the last
# merge, and sums are over shards.
WEIGHTS = "weights"  # w + sum f(share) (w_m - w), with f the square root
MEANS = "means"  # the same with f(share) = share: the mean over occurrences
SUMS = "sums"  # w + sum (w_m - w): counters, and sums of squares
LARGEST = "largest"  # of all shards: numbers of steps

# Adagrad's state is a sum over batches; other states are averages, of gradients for instance.
_SUMMED_STEPS = (codes.STEP_ADAGRAD, codes.STEP_ROWWISE_ADAGRAD)


def is_summed(optimizer):
    """Return whether the states of an optimizer are sums over batches."""
    return optimizer.step_code in _SUMMED_STEPS


class MergedTable(NamedTuple):
    """An array of a model, as a view of shape (n_outputs, n_rows, width)."""

    rows: np.ndarray
    counts: int  #: which of the layout's counts belong to the rows
    rule: str  #: how it is merged


class Piece(NamedTuple):
    """Some rows of all tables, with their counts in a shard."""

    tables: list  #: of ndarray
    counts: list  #: of ndarray of shape (n_rows,), float32; empty in a merged piece
    #: The mean loss and the weight of the rows, of every round and shard so far in the epoch.
    losses: list


class Layout:
    """Arrays of a model as tables, cut into pieces and merged.

    Parameters
    ----------
    tables : list of ModelTable
    optimizer : Optimizer
        Of the model.

    Attributes
    ----------
    tables : list of MergedTable
    tokens : list
        The token of each row, for each kind of counts: None for rows that every sample has.
    """

    def __init__(self, tables, optimizer):
        rules = {COUNTERS: SUMS, STEPS: LARGEST, MOMENTS: SUMS if is_summed(optimizer) else MEANS}
        self.tables, self.tokens = [], [None, slice(None)]
        ranked = {}
        for rows, kind, row_of in tables:
            n_rows, counts = rows.shape[1], int(row_of is not None)
            if not rows.size:
                continue
            if isinstance(row_of, np.ndarray):
                if n_rows not in ranked:
                    ranked[n_rows] = len(self.tokens)
                    self.tokens.append(np.argsort(row_of)[:n_rows])
                counts = ranked[n_rows]
            rule = rules.get(kind, MEANS if row_of is None else WEIGHTS)
            self.tables.append(MergedTable(rows, counts, rule))

    @property
    def rules(self):
        """The index of the counts and the rule of each table, for ``merge``."""
        return [(table.counts, table.rule) for table in self.tables]

    def counts(self, by_token, total):
        """Return the counts of the rows, for each kind, from those of tokens.

        Parameters
        ----------
        by_token : ndarray of shape (n_tokens,)
        total : float
            The count of rows that every sample has.
        """
        found = [np.array([total]) if of is None else by_token[of] for of in self.tokens]
        return [np.asarray(counts, dtype=np.float32) for counts in found]

    def piece(self, number, n_pieces, counts=(), losses=()):
        """Return a copy of one of several equal pieces of the tables; the first has the losses."""
        tables = [table.rows[:, _part(table.rows, 1, number, n_pieces)] for table in self.tables]
        counts = [of[_part(of, 0, number, n_pieces)] for of in counts]
        losses = [] if number else list(losses)
        return Piece([rows.copy() for rows in tables], [of.copy() for of in counts], losses)

    def assign(self, pieces):
        """Write pieces, all of them in order, into the tables."""
        for number, piece in enumerate(pieces):
            for table, rows in zip(self.tables, piece.tables, strict=True):
                table.rows[:, _part(table.rows, 1, number, len(pieces))] = rows


def _part(array, axis, number, n_pieces):
    n_rows = array.shape[axis]
    return slice(number * n_rows // n_pieces, (number + 1) * n_rows // n_pieces)


def merge(rules, scale, before, *trained):
    """Return one piece, merged from those of the shards.

    Shards are added in their order, so that the result does not depend on where they are.

    Parameters
    ----------
    rules : list
        See ``Layout.rules``.
    scale : float
        Factor of the square roots of shares; the product is at least the share and at most 1.
    before : Piece
        What all shards have started from.
    *trained : Piece
        Of each shard.

    Returns
    -------
    piece : Piece
    """
    shares = [
        _shares([piece.counts[k] for piece in trained]) for k in range(len(trained[0].counts))
    ]
    merged = []
    for i, (kind, rule) in enumerate(rules):
        after = [piece.tables[i] for piece in trained]
        if rule == LARGEST:
            merged.append(np.maximum.reduce(after))
            continue
        merged.append(_merge_rows(rule, scale, before.tables[i], after, shares[kind]))
    losses = sum((piece.losses for piece in trained), start=before.losses)
    return Piece(merged, [], losses)


def _shares(counts):
    """Return each shard's share of the occurrences of rows; equal ones of rows without any."""
    total = np.sum(counts, axis=0)
    equal = np.full(len(total), 1 / len(counts), dtype=np.float32)
    return [np.divide(n, total, out=equal.copy(), where=total > 0) for n in counts]


def _merge_rows(rule, scale, before, after, shares):
    merged = before.copy()
    for rows, share in zip(after, shares, strict=True):
        factor = share
        if rule == WEIGHTS:
            factor = np.clip(np.float32(scale) * np.sqrt(share), share, 1)
        elif rule == SUMS:
            factor = np.ones_like(share)
        merged += factor[:, None] * (rows - before)
    for rows, share in zip(after, shares, strict=True):
        # A row that one shard alone has seen is that shard's, bit for bit.
        alone = share == 1
        merged[:, alone] = rows[:, alone]
    return merged
