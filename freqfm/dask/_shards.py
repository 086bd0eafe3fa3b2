"""Functions of workers: partitions of a shard, training, and how trained models are merged."""

import copy
import threading
import warnings
from typing import NamedTuple

import numpy as np
from scipy import sparse
from sklearn.base import is_classifier
from sklearn.exceptions import UndefinedMetricWarning
from sklearn.utils import column_or_1d

from freqfm._input.rows import CarriesFields, stack_rows, with_fields_of, with_one_index_type
from freqfm._input.validation import checked_csr
from freqfm.estimators.fm.base import checked_optimizer
from freqfm.estimators.fm.targets import check_labels
from freqfm.estimators.fm.trainer import FMTrainer, RawRows, n_weighted
from freqfm.estimators.state import COUNTS, LARGEST, MEANS, MOMENTS, SHARES, SUMS, entries_of
from freqfm.formulas import codes


def collect(first, X, y, sample_weight):
    """Return the rows of some partitions.

    Parameters
    ----------
    first : int
        Number of the first partition, for messages.
    X, y : list
        Partitions.
    sample_weight : list or None
    """
    columns = {"y": y} if sample_weight is None else {"y": y, "sample_weight": sample_weight}
    X = [matrix_of(part) for part in X]
    for name, parts in columns.items():
        for number, (rows, part) in enumerate(zip(X, parts, strict=True), first):
            if rows.shape[0] != len(part):
                raise ValueError(
                    f"partition {number} of X has {rows.shape[0]} rows, but that of {name} has "
                    f"{len(part)}; partition both alike."
                )
    filled = [i for i, rows in enumerate(X) if rows.shape[0]] or [0]
    of_shard = [X[i] for i in filled]
    common_fields(of_shard)
    X = with_fields_of(of_shard[0], stack(of_shard, "X"))
    columns = {name: stack([parts[i] for i in filled], name) for name, parts in columns.items()}
    return RawRows(X, columns["y"], columns.get("sample_weight"))


def matrix_of(part):
    """Return a partition as a matrix; one of a bag may be any iterable of matrices."""
    part = part if hasattr(part, "shape") else stack(list(part), "X")
    if sparse.issparse(part):
        part = checked_csr(part)
    return part


def stack(parts, name):
    """Return parts one below the other."""
    if not parts:
        raise ValueError(f"a partition of {name} is an empty list; put matrices of rows into it.")
    widths = {part.shape[1] for part in parts if np.ndim(part) == 2 or sparse.issparse(part)}
    if len(widths) > 1:
        raise ValueError(
            f"partitions of {name} have different numbers of columns, {sorted(widths)}; encode all "
            f"of them alike."
        )
    if len(parts) == 1:
        return parts[0]
    if sparse.issparse(parts[0]):
        return with_one_index_type(stack_rows(list(map(checked_csr, parts))))
    if hasattr(parts[0], "iloc"):
        import pandas as pd

        return pd.concat(parts)
    return np.concatenate([np.asarray(part) for part in parts])


def common_fields(parts):
    """Return the first of some matrices; raise if they carry different fields, or one carries none.

    Parameters
    ----------
    parts : list of matrices, or of None
    """
    carried = [part.fields if isinstance(part, CarriesFields) else None for part in parts]
    if any(not np.array_equal(fields, carried[0]) for fields in carried):
        raise ValueError(
            "partitions of X carry different fields; encode all of them by one WithFields, or give "
            "fields as an array."
        )
    return parts[0]


def seed_of(seed, shard):
    """Return the seed of a shard; the first one has that of the fit."""
    if shard == 0:
        return seed
    return int(np.random.default_rng([seed, shard]).integers(1 << 31))


def describe(raw, of_classes):
    """Return the facts about a shard that the client needs before training."""
    facts = {"n_rows": raw.X.shape[0], "n_weighted": n_weighted(raw), "classes": None}
    if of_classes and facts["n_rows"]:
        y = check_labels("y", column_or_1d(raw.y))
        classes, codes = np.unique(y, return_inverse=True)
        weight = None if raw.sample_weight is None else np.asarray(raw.sample_weight)
        facts["classes"] = classes, np.bincount(codes.ravel(), weight)
    return facts


class Round(NamedTuple):
    """The rows that a shard trains on between two merges."""

    trainer: object  #: a task of the epoch loop; None without data
    counts: list  #: of the rows of tables, see ``Layout.counts``
    weight: float  #: of the loss among those of other rounds


class RoundTrainer:
    """A model that trains on the data of a shard, a part of them between two merges.

    Its arrays are written over before each round, so that a round depends on its input only.
    Its pickle holds the arguments of the constructor, without packed rows and threads.

    Parameters
    ----------
    made_from : tuple
        Arguments of the subclass.
    layout : Layout
        Of the model.
    own : list of ndarray
        Arrays of the model that no other shard has, which are not merged.
    """

    def __init__(self, made_from, layout, own=()):
        self._made_from, self._layout, self._own = made_from, layout, own
        self._rounds = []
        self._lock = threading.Lock()

    def __reduce__(self):
        return type(self), self._made_from

    def own(self):
        """Return copies of the arrays that no other shard has."""
        return [array.copy() for array in self._own]

    def _assign(self, own, pieces):
        self._layout.assign(pieces)
        for array, values in zip(self._own, own, strict=True):
            array[...] = values

    def train(self, own, number, epoch, share, *pieces):
        """Train one round from merged pieces.

        Parameters
        ----------
        own : list of ndarray
            See :meth:`own`.
        number : int
            Of the round in its epoch.
        epoch : int
        share : float
            The factor of all learning rates.
        *pieces : Piece

        Returns
        -------
        trained : list
            A piece for each of those given, and at the end the arrays of this shard.
        """
        with self._lock:
            self._assign(own, pieces)
            trainer, counts, weight = self._rounds[number]
            losses = []
            if trainer is not None:
                trainer.share = share
                with trainer:
                    losses = [(trainer.run_epoch(epoch), weight)]
            layout, n = self._layout, len(pieces)
            return [*(layout.piece(j, n, counts, losses) for j in range(n)), self.own()]

    def score(self, own, *pieces):
        """Return the validation score and the numbers to combine it with others; or None."""
        if not self._is_validated:
            return None
        with self._lock:
            self._assign(own, pieces)
            return self._score()


class ShardTrainer(RoundTrainer):
    """A factorization machine that trains on the rows of a shard.

    Parameters
    ----------
    shard : Shard
    model : BaseFM
        Initialised.
    fold : int or None
    n_rounds : int
        Rounds of an epoch.
    n_threads : int
        If the model does not say.
    """

    def __init__(self, shard, model, fold, n_rounds, n_threads):
        model = copy.deepcopy(model)
        model._seed, model.verbose = shard.model._seed, 0
        if model.n_jobs is None:
            model.n_jobs = n_threads
        rows = shard.fold(fold)
        optimizer = checked_optimizer(model, rows.spread)
        made_from = shard, model, fold, n_rounds, n_threads
        super().__init__(made_from, Layout(model, optimizer))
        self._held_out, self._is_validated = rows.held_out, rows.held_out is not None
        for number, part in enumerate(_parts(rows, n_rounds, model._seed)):
            of_part = rows._replace(trained=part, held_out=None if number else rows.held_out)
            trainer, total = None, 0.0
            if of_part.n_trained:
                trainer = FMTrainer(model, optimizer, of_part)
                total = float(of_part.of_trained(rows.weight).sum())
            counts = self._layout.counts(of_part.count_tokens(), total)
            self._rounds.append(Round(trainer, counts, total))

    def _score(self):
        _, target, weight = self._held_out
        value = self._rounds[0].trainer.validation_score()
        return value, *moments(target[0].astype(np.float64), weight)


def _parts(rows, n_parts, seed):
    """Return the rows of each round: a random part, the same in all epochs."""
    if n_parts == 1:
        return [rows.trained]
    numbers = np.random.default_rng([seed, 2]).permutation(rows.numbers())
    return [np.sort(part) for part in np.array_split(numbers, n_parts)]


def predicted(rows, model, method="predict"):
    """Return the result of a method of a model on the rows of a partition."""
    rows = matrix_of(rows)
    if not rows.shape[0]:
        like = np.zeros((1, model.n_features_in_), dtype=np.float32)
        return getattr(model, method)(like)[:0]
    return getattr(model, method)(rows)


def moments(values, weight):
    """Return the sum of weights, and the mean and the variance of values; zeros without weight."""
    total = weight.sum()
    if not total:
        return 0.0, 0.0, 0.0
    # Differences from one of the values: equal values have a variance of exactly 0.
    origin = values[weight.argmax()]
    mean = origin + np.average(values - origin, weights=weight)
    return total, mean, np.average((values - mean) ** 2, weights=weight)


def pooled_variance(weights, means, variances):
    """Return the variance of values, given their ``moments`` in several parts."""
    # No sum of squares: it loses all digits of targets that are far from 0.
    return moments(means, weights)[2] + np.average(variances, weights=weights)


def score_facts(X, y, sample_weight, model):
    """Return the facts about a partition that ``score_of`` needs.

    Returns
    -------
    facts : tuple
        Number of rows, weighted sum of hits or squared errors, and the ``moments`` of hits or of
        targets.
    """
    y, found = np.asarray(y), predicted(X, model)
    weight = np.ones(len(y)) if sample_weight is None else np.asarray(sample_weight)
    if is_classifier(model):
        hits = (found == y).astype(np.float64)
        return len(y), weight @ hits, *moments(hits, weight)
    y = y.astype(np.float64)
    return len(y), weight @ (found - y) ** 2, *moments(y, weight)


def score_of(facts, of_classes):
    """Return the accuracy, or R^2 as ``r2_score`` defines it, from the facts of all partitions."""
    n_rows, sums, weights, means, variances = np.array(facts, dtype=np.float64).T
    total = weights.sum()
    if not total:
        raise ValueError(
            "X has no rows of positive weight in any of its partitions; a score needs some."
        )
    if of_classes:
        return float(sums.sum() / total)
    if n_rows.sum() < 2:
        warnings.warn(
            "R^2 score is not well-defined with less than two samples.",
            UndefinedMetricWarning,
            stacklevel=3,
        )
        return float("nan")
    error, variance = sums.sum() / total, pooled_variance(weights, means, variances)
    if variance == 0:
        return float(error == 0)
    return float(1 - error / variance)


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
    model : estimator
        Arrays with a row for each user are left out: each belongs to one shard.
    optimizer : Optimizer

    Attributes
    ----------
    tables : list of MergedTable
    tokens : list
        The token of each row, for each kind of counts: None for rows that every sample has.
    """

    def __init__(self, model, optimizer):
        rules = {MOMENTS: SUMS if is_summed(optimizer) else MEANS}
        self.tables, self.tokens = [], [None, slice(None)]
        ranked = {}
        for entry in entries_of(model):
            if entry.role == COUNTS or "users" in entry.axes:
                continue
            for rows in entry.views(model):
                n_rows, counts = rows.shape[1], int(entry.by_token)
                if not n_rows:
                    continue
                if entry.row_of is not None:
                    if n_rows not in ranked:
                        ranked[n_rows] = len(self.tokens)
                        self.tokens.append(np.argsort(getattr(model, entry.row_of))[:n_rows])
                    counts = ranked[n_rows]
                for columns, rule in entry.rules_of_columns():
                    rule = rules.get(rule, rule)
                    self.tables.append(MergedTable(rows[..., columns], counts, rule))

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
        found = [np.array([total]) if token is None else by_token[token] for token in self.tokens]
        return [np.asarray(counts, dtype=np.float32) for counts in found]

    def piece(self, number, n_pieces, counts=(), losses=()):
        """Return a copy of one of several equal pieces of the tables; the first has the losses."""
        tables = [table.rows[:, _part(table.rows, 1, number, n_pieces)] for table in self.tables]
        counts = [count[_part(count, 0, number, n_pieces)] for count in counts]
        losses = [] if number else list(losses)
        return Piece([rows.copy() for rows in tables], [count.copy() for count in counts], losses)

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
        if rule == SHARES:
            factor = np.clip(np.float32(scale) * np.sqrt(share), share, 1)
        elif rule == SUMS:
            factor = np.ones_like(share)
        merged += factor[:, None] * (rows - before)
    for rows, share in zip(after, shares, strict=True):
        # A row that one shard alone has seen is that shard's, bit for bit.
        alone = share == 1
        merged[:, alone] = rows[:, alone]
    return merged
