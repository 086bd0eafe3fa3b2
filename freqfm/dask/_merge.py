"""Models as tables of rows, and how those that shards have trained are merged row by row."""

from typing import NamedTuple

import numpy as np

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


class TableLayout:
    """Arrays of a model as tables, cut into pieces and merged.

    Attributes
    ----------
    tables : list of MergedTable
    tokens : list
        The token of each row, for each kind of counts: None for rows that every sample has.
    """

    def __init__(self):
        self.tables, self.tokens = [], [None]

    def _count(self, tokens):
        """Register the tokens of a table's rows; return the number of their counts."""
        self.tokens.append(tokens)
        return len(self.tokens) - 1

    def _add(self, array, shape, counts, rule):
        if array.size:
            rows = array.reshape(shape)
            if not np.may_share_memory(rows, array):
                raise ValueError("a table whose rows are merged in place would have been copied")
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


class Layout(TableLayout):
    """The arrays of a factorization machine, and of its optimizer, as tables.

    Parameters
    ----------
    model : BaseFM
        Initialised. Tables are views of its arrays.
    optimizer : Optimizer
    """

    def __init__(self, model, optimizer):
        super().__init__()
        n_tokens = model.n_features_in_
        state_rule = SUMS if is_summed(optimizer) else MEANS
        by_token = self._count(slice(None))
        n_outputs = len(model.intercept_)
        self._add(model.intercept_, (n_outputs, 1, 1), 0, MEANS)
        self._add(model.coef_, (n_outputs, n_tokens, 1), by_token, WEIGHTS)
        ranked = hasattr(model, "_layout")
        if ranked:
            self._add_ranked(model, state_rule)
        else:
            self._add(model.factors_, (n_outputs, n_tokens, -1), by_token, WEIGHTS)
        for state in model._optimizer_states():
            # Two moments, and a counter.
            self._add(state.intercept[:2], (1, 1, 2), 0, state_rule)
            self._add(state.intercept[2:], (1, 1, 1), 0, SUMS)
            self._add(state.per_row, (1, -1, 1), by_token, SUMS)
            self._add(state.per_vector, (1, n_tokens, -1), by_token, SUMS)
            names = ("linear_first", "linear_second")
            for name in names if ranked else (*names, "factors_first", "factors_second"):
                array = getattr(state, name)
                width = array.shape[1] if array.ndim == 2 else 1
                self._add(array, (1, -1, width), by_token, state_rule)
        if getattr(model, "_has_dense", False):
            for array in (model._dense, *model._dense_state.values()):
                self._add(array, (n_outputs, 1, -1), 0, MEANS)
        self._add(model._n_steps, (1, 1, 1), 0, LARGEST)

    def _add_ranked(self, model, state_rule):
        """Add the tables of every rank; the features of the highest rank have the first rows."""
        n_outputs, layout = len(model.intercept_), model._layout()
        token_of_row = np.argsort(layout.rows)
        for k, n_rows in enumerate(layout.n_rows):
            if not n_rows:
                continue
            counts = self._count(token_of_row[:n_rows])
            width, start = layout.widths[k], layout.starts[k]
            flat = model._factors.reshape(n_outputs, -1)[:, start : start + n_rows * width]
            rows = np.lib.stride_tricks.as_strided(
                flat, (n_outputs, n_rows, width), (flat.strides[0], width * 4, 4)
            )
            self.tables.append(MergedTable(rows, counts, WEIGHTS))
            begins, widths = model._state_layout[k, ::2], model._state_layout[k, 1::2]
            for state in model._optimizer_states():
                arrays = state.factors_first, state.factors_second
                for array, begin, width in zip(arrays, begins, widths, strict=True):
                    part = array.reshape(-1)[begin : begin + n_rows * width]
                    self._add(part, (1, n_rows, width), counts, state_rule)


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
