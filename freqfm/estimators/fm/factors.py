"""The factors of plain and rank-aware machines: one table, or a table for each rank."""

import copy
import math
from dataclasses import dataclass, field
from functools import cache

import numpy as np
from numpy.typing import ArrayLike

from freqfm._components import NON_NEGATIVE
from freqfm._input.validation import LearnedArrays, as_kernel_array, as_kernel_input
from freqfm._machine import aligned_empty, aligned_zeros
from freqfm._messages import shown
from freqfm._sklearn import StrOptions
from freqfm.backends.base import RankedTables, RankedTraining
from freqfm.estimators.fm.base import AT_LEAST_ONE, FACTOR_STATES, BaseFM, squeeze_outputs
from freqfm.estimators.fm.explanations import PairTerm
from freqfm.estimators.state import OPTIMIZER, Learned
from freqfm.estimators.training import check_unchanged


@dataclass(eq=False, repr=False, kw_only=True)
class PlainFactors(BaseFM):
    """One vector of ``n_components`` numbers for each feature."""

    _parameter_constraints = {"n_components": AT_LEAST_ONE}

    n_components: int = field(default=16, kw_only=False)

    # The axes of a feature's vectors.
    _axes = ("components",)

    @classmethod
    @cache
    def _learned_factors(cls, outputs):
        """Return the learned factors, whose axes begin with ``outputs``; see ``_learned``."""
        start = PlainFactors._start_factors
        return [Learned("factors_", (*outputs, "features", *cls._axes), start=start)]

    def _start_factors(self, rows, n_before):
        """Write the vectors of tokens that occur for the first time; see ``Learned``."""
        generator = np.random.default_rng([self._seed, n_before])
        initializer, counts = self._checked_initializer(), np.ones(rows.shape[1])
        for table in rows:
            table[:] = initializer.table(table.shape, generator, counts, n_before)

    def _begin_part(self, part, tokens):
        """Give a part of the model what its arrays of some tokens depend on, see ``ModelPart``."""

    def _init_factors(self, n_outputs, initializer, generator, counts):
        """Set the factors of all outputs."""
        factors = aligned_zeros((n_outputs, *self._factors_shape()))
        for table in factors.reshape(n_outputs, self.n_features_in_, -1):
            table[:] = initializer.table(table.shape, generator, counts)
        self.factors_ = squeeze_outputs(factors)

    def _factors_shape(self):
        """Return the shape of the factors of an output, by the parameters."""
        return self.n_features_in_, int(self.n_components)

    def _refuse_growth(self, n_features):
        """Raise if the model cannot get more features."""

    def _state_shapes(self, optimizer):
        """Return the shapes of the arrays in an output's optimizer state, by name."""
        return optimizer.state_shapes(self.n_features_in_, self.factors_.shape[-1])

    def _check_same_shape(self):
        """Raise if the parameters do not fit the factors of the model to continue."""
        width = self.factors_.shape[-1]
        check_unchanged(self, "n_components", width == self.n_components, f"the {width}")

    def _fewest_factors(self):
        """Return the smallest number of factors of a feature, according to the parameters."""
        return math.prod(self._factors_shape()[1:])

    def _pair_terms(self, features):
        """Return the interactions of some features: for every output a list of ``PairTerm``.

        Their rows and columns are places in ``features``.
        """
        every, tables = np.arange(len(features)), self._vectors(features)
        return [[PairTerm(every, vectors, every, vectors)] for vectors in tables]

    def _vectors(self, features):
        """Return the factors of some features, (n_outputs, n, n_components), float64."""
        tables = self.factors_.reshape(-1, *self.factors_.shape[-2:])
        return tables[:, features].astype(np.float64)

    def _outputs(self):
        """Return the FMWeights of every output, as views of the model's arrays."""
        factors = as_kernel_input(self.factors_).reshape(-1, *self.factors_.shape[-2:])
        return self._outputs_with(factors)


def assign_levels(assignment, ranks, counts):
    """Return the highest level of each feature, from 0 on.

    Parameters
    ----------
    assignment : "nearest" or array-like
        See ``RaFMClassifier``.
    ranks : ndarray of shape (n_ranks,)
        Increasing.
    counts : ndarray of shape (n_features,)
        How many training rows hold each feature.

    Returns
    -------
    levels : ndarray of shape (n_features,), int32
    """
    n_features, n_ranks = len(counts), len(ranks)
    if isinstance(assignment, str):
        # |log n - log D| is smallest for the next rank once n exceeds their geometric mean.
        bounds = np.sqrt(ranks[1:] * ranks[:-1].astype(np.float64))
        return np.searchsorted(bounds, counts, side="left").astype(np.int32)
    given = np.asarray(assignment)
    if given.ndim != 1 or given.dtype.kind not in "iuf" or not np.isfinite(given).all():
        raise ValueError(
            f"rank_assignment must be 'nearest', {n_ranks - 1} increasing numbers of occurrences, "
            f"or the rank of each of the {n_features} features; got {shown(assignment)}."
        )
    if len(given) == n_ranks - 1:
        if np.any(np.diff(given) < 0):
            raise ValueError(
                f"rank_assignment={given.tolist()} must not decrease: feature counts above the "
                f"k-th number get rank k + 1."
            )
        return np.searchsorted(given, counts, side="left").astype(np.int32)
    if len(given) == n_features:
        unknown = np.setdiff1d(given, ranks)
        if len(unknown):
            raise ValueError(
                f"rank_assignment holds {unknown[:5].tolist()}, not among "
                f"ranks={ranks.tolist()}; give each feature one of these."
            )
        return np.searchsorted(ranks, given).astype(np.int32)
    raise ValueError(
        f"rank_assignment has {len(given)} values; it takes {n_ranks - 1} bounds, one between "
        f"every two of ranks={ranks.tolist()}, or a rank for each of the {n_features} features."
    )


class Layout:
    """Where the vectors of features are stored in one array that holds the tables of all ranks.

    The features of the highest level come first, then those of the next. So a feature has the
    same row in every table that it is in, and vectors that a feature does not have take no memory.

    Parameters
    ----------
    ranks : ndarray of shape (n_ranks,)
    levels : ndarray of shape (n_features,)
        The highest level of each feature.
    prefix : bool
        Whether the table of a rank holds only what it adds to the rank before.
    rows : ndarray of shape (n_features,), default=None
        The row of each feature, if that is known.
    """

    def __init__(self, ranks, levels, prefix, rows=None):
        self.levels = levels
        self.prefix = prefix
        self.widths = np.diff(ranks, prepend=0) if prefix else np.asarray(ranks)
        self.widths = self.widths.astype(np.int64)
        self.n_rows = np.array([(levels >= k).sum() for k in range(len(ranks))], dtype=np.int64)
        if rows is None:
            rows = np.empty(len(levels), dtype=np.int32)
            rows[np.argsort(-levels, kind="stable")] = np.arange(len(levels))
        self.rows = as_kernel_array(rows, np.int32)
        self.n_weights = int(self.n_rows @ self.widths)
        self.starts, _ = self.places(self.n_weights)

    def places(self, size):
        """Return where the tables begin in an array of some size, and how wide they are.

        They are as wide as the vectors or, in an optimizer's state, 1 or 0.
        """
        widths = self.widths if size == self.n_weights else np.full_like(self.widths, size > 0)
        sizes = self.n_rows * widths
        return np.cumsum(sizes) - sizes, widths

    def tables(self, numbers):
        """Return the tables in an array as views: of weights, on its last axis, or of a state."""
        if numbers.shape[-1] != self.n_weights:
            numbers = numbers.reshape(-1)  # of a single rank, the state is a table
        shape = numbers.shape[:-1]
        return [
            numbers[..., start : start + n * width].reshape(*shape, n, width)
            for n, start, width in zip(self.n_rows, *self.places(numbers.shape[-1]), strict=True)
        ]

    def ranked_tables(self, weights):
        """Return the tables in ``weights`` as backends take them."""
        return RankedTables(
            weights, self.n_rows, self.widths, self.starts, self.levels, self.rows, self.prefix
        )

    def draw(self, initializer, generator, counts):
        """Return the weights that the tables start from."""
        ordered = np.empty_like(counts)
        ordered[self.rows] = counts
        return np.concatenate(
            [
                initializer.table((int(n), int(d)), generator, ordered[:n]).ravel()
                for n, d in zip(self.n_rows, self.widths, strict=True)
            ]
        )

    def state_shapes(self, optimizer):
        """Return the shapes of the optimizer's state by name; that of tables is in 1-D arrays."""
        if len(self.widths) == 1:
            return optimizer.state_shapes(len(self.levels), int(self.widths[0]))
        sizes = self.n_rows @ [optimizer.state_widths(int(d)) for d in self.widths]
        of_tables = {name: (int(n),) for name, n in zip(FACTOR_STATES, sizes, strict=True)}
        return {**optimizer.state_shapes(len(self.levels), 1), **of_tables}

    def state_layout(self, state):
        """Return where the state of each table begins and how wide it is, (n_ranks, 4), int64."""
        columns = [column for name in FACTOR_STATES for column in self.places(state[name].size)]
        return as_kernel_array(np.column_stack(columns), np.int64)


@dataclass(eq=False, repr=False, kw_only=True)
class RankedFactors(BaseFM):
    """For each feature a vector of every rank up to the one that its frequency supports."""

    _parameter_constraints = {
        "ranks": ["array-like"],
        "rank_assignment": [StrOptions({"nearest"}), "array-like"],
        "counts": ["array-like", None],
        "rank_sharing": [StrOptions({"separate", "truncate"})],
        "form": [StrOptions({"paper", "reference"})],
        "dependent_weight": NON_NEGATIVE,
    }

    ranks: ArrayLike = field(default=(8, 32), kw_only=False)
    rank_assignment: ArrayLike = "nearest"
    counts: ArrayLike | None = None
    rank_sharing: str = "separate"
    form: str = "reference"
    dependent_weight: float = 1.0

    @property
    def factors_(self):
        """Vectors, a table for each rank, as views of the model's weights."""
        if not hasattr(self, "_factors"):
            raise AttributeError(f"{type(self).__name__} has no factors_ before fit")
        return self._tables(self._factors)

    def up_to_rank(self, rank):
        """Return the model without its vectors of ranks above ``rank``.

        It is B(1, p) of the paper: every pair interacts at the highest rank up to ``rank`` that
        both have. With the smallest rank it is a plain factorization machine. The returned model
        is a copy, ready to predict and to be trained further.

        Parameters
        ----------
        rank : int
            One of ``ranks``.

        Returns
        -------
        model : estimator of the same class
        """
        self._check_learned()
        if rank not in self.ranks_:
            raise ValueError(
                f"rank={shown(rank)} is not one of the ranks {self.ranks_.tolist()}; choose one of "
                f"them."
            )
        model = copy.copy(self)
        for entry in self._learned():
            entry.set(model, entry.get(self).copy())
        model.ranks_ = self.ranks_[self.ranks_ <= rank]
        model.feature_ranks_ = np.minimum(self.feature_ranks_, rank)
        model.ranks = tuple(model.ranks_.tolist())
        model.rank_assignment = model.feature_ranks_
        layout, n_ranks = model._layout(), len(model.ranks_)
        model._factors = self._factors[..., : layout.n_weights].copy()
        model.n_parameters_ = len(self.intercept_) * (layout.n_weights + len(layout.levels))
        for state in model._optimizer_state:
            for name in FACTOR_STATES:
                tables = self._tables(state[name])[:n_ranks]
                state[name] = np.concatenate([table.ravel() for table in tables])
        if n_ranks == 1:
            model._become_plain()
        model._count_state_bytes()
        return model

    def _become_plain(self):
        """Put the vectors of the only rank left, and their state, in the order of the features."""
        rows, n_features = self.factor_rows_, len(self.feature_ranks_)
        tables = self._factors.reshape(len(self.intercept_), n_features, -1)[:, rows]
        self._factors = squeeze_outputs(tables.reshape(len(tables), -1))
        for state in self._optimizer_state:
            for name in FACTOR_STATES:
                state[name] = state[name].reshape(n_features, -1)[rows]
        self.factor_rows_ = np.arange(n_features, dtype=np.int32)

    def _begin_part(self, part, tokens):
        part.feature_ranks_ = self.feature_ranks_[tokens]
        layout = Layout(self.ranks_, part._levels(), self._prefix)
        part.factor_rows_ = layout.rows
        part._factors = aligned_empty((*self._factors.shape[:-1], layout.n_weights))
        part._optimizer_state = [dict(state) for state in self._optimizer_state]
        sizes = {0: 0, self._layout().n_weights: layout.n_weights}
        for state in part._optimizer_state:
            for name in FACTOR_STATES:
                # Of a single rank, the state is a table.
                known, size = state[name], sizes.get(state[name].size, int(layout.n_rows.sum()))
                table = min(len(tokens), len(known)), known.shape[-1]
                state[name] = aligned_empty(table if known.ndim == 2 else size)

    @classmethod
    @cache
    def _learned_factors(cls, outputs):
        tables = {"tables": cls._tables, "row_of": "factor_rows_"}
        return [Learned("_factors", (*outputs, "weights of ranks"), **tables)]

    @classmethod
    def _learned_moments(cls, place):
        tables = {"tables": cls._tables, "row_of": "factor_rows_"}
        return [Learned((*place, name), (None,), OPTIMIZER, **tables) for name in FACTOR_STATES]

    def _tables(self, numbers):
        return self._layout().tables(numbers)

    def _levels(self, features=slice(None)):
        return np.searchsorted(self.ranks_, self.feature_ranks_[features]).astype(np.int32)

    def _layout(self):
        """Return the Layout of the learned tables."""
        names = "ranks_", "feature_ranks_", "factor_rows_", "_prefix"
        return LearnedArrays(self).once(names, self._checked_layout)

    def _init_factors(self, n_outputs, initializer, generator, counts):
        self.ranks_ = ranks = self._checked_ranks()
        self._prefix = self.rank_sharing == "truncate"
        levels = assign_levels(self.rank_assignment, ranks, self._checked_counts(counts))
        layout = Layout(ranks, levels, self._prefix)
        self.feature_ranks_ = ranks[levels]
        self.factor_rows_ = layout.rows
        self._factors = squeeze_outputs(
            np.stack([layout.draw(initializer, generator, counts) for _ in range(n_outputs)])
        )
        self.n_parameters_ = n_outputs * (layout.n_weights + len(counts))

    def _checked_ranks(self):
        """Return ``ranks`` as an array."""
        ranks = np.asarray(self.ranks)
        whole = ranks.ndim == 1 and ranks.size > 0 and ranks.dtype.kind in "iu"
        if not whole or ranks[0] < 1 or np.any(np.diff(ranks) <= 0):
            raise ValueError(
                f"ranks={shown(self.ranks)} must be positive whole numbers, each larger than the "
                f"one before, such as (16, 64)."
            )
        return ranks.astype(np.int64)

    def _checked_counts(self, counts):
        """Return the frequencies by which ranks are assigned."""
        if self.counts is None:
            return counts
        given = np.asarray(self.counts, dtype=np.float64)
        if given.shape != counts.shape:
            raise ValueError(
                f"counts has shape {given.shape}, but X has {len(counts)} features; give one "
                f"count per feature, or None to count the training rows."
            )
        if not np.isfinite(given).all() or (given < 0).any():
            raise ValueError("counts must be finite and non-negative; found other values.")
        return given

    def _check_shapes(self, learned, sizes):
        learned.array("ranks_", (None,), "iu")
        for name in ("feature_ranks_", "factor_rows_"):
            learned.array(name, (sizes["features"],), "iu")
        sizes["weights of ranks"] = self._layout().n_weights

    def _checked_layout(self):
        learned, ranks = LearnedArrays(self), self.ranks_
        fits = len(ranks) and ranks[0] > 0 and (np.diff(ranks) > 0).all()
        learned.require(fits, "ranks_", "does not hold increasing ranks")
        highest = self.feature_ranks_.max()
        fits = highest <= ranks[-1]
        learned.require(fits, "feature_ranks_", f"holds {highest}, above the highest of ranks_")
        prefix = learned.get("_prefix")
        learned.require(isinstance(prefix, bool), "_prefix", f"is {prefix!r}, not a bool")
        layout = Layout(ranks, self._levels(), prefix, self.factor_rows_.copy())
        # A feature's row is the same in all its tables; the table of its highest rank is shortest.
        rows = self.factor_rows_
        fits = rows.min() >= 0 and (rows < layout.n_rows[layout.levels]).all()
        learned.require(fits, "factor_rows_", "holds rows beyond those of feature_ranks_")
        return layout

    def _check_rows(self, features):
        """Raise if ranks or rows of features were changed in place, which ``once`` overlooks."""
        learned, layout, found = LearnedArrays(self), self._layout(), "was changed in place"
        same = np.array_equal(self._levels(features), layout.levels[features])
        learned.require(same, "feature_ranks_", found)
        same = np.array_equal(self.factor_rows_[features], layout.rows[features])
        learned.require(same, "factor_rows_", found)

    def _score_rows(self, X):
        self._check_rows(X.indices)
        return super()._score_rows(X)

    def _state_shapes(self, optimizer):
        return self._layout().state_shapes(optimizer)

    def _check_state(self, optimizer):
        super()._check_state(optimizer)
        self._check_rows(slice(None))

    def _check_same_shape(self):
        prefix = self.rank_sharing == "truncate"
        if not np.array_equal(self._checked_ranks(), self.ranks_) or prefix != self._prefix:
            before = "truncate" if self._prefix else "separate"
            raise ValueError(
                f"ranks={shown(self.ranks)} with rank_sharing={shown(self.rank_sharing)} differs "
                f"from the {self.ranks_.tolist()} with {before!r} of the model to continue; set "
                f"them back, or fit a new model with warm_start=False."
            )

    def _refuse_growth(self, n_features):
        raise ValueError(
            f"n_features={n_features} would add features to a model of {self.n_features_in_}, "
            f"whose ranks were given out by frequency in the first call; hash new tokens into the "
            f"known features."
        )

    def _fewest_factors(self):
        return int(self._checked_ranks()[0])

    def _pair_terms(self, features):
        layout = self._layout()
        levels, rows = layout.levels[features], layout.rows[features]
        found = []
        for weights in self._factors.reshape(len(self.intercept_), -1):
            terms = []
            for level, table in enumerate(layout.tables(weights)):
                at = np.flatnonzero(levels >= level)
                vectors = table[rows[at]].astype(np.float64)
                terms.append(PairTerm(at, vectors, at, vectors))
                if not layout.prefix:
                    # Pairs of a higher rank interact by vectors of that rank only.
                    higher = levels[at] > level
                    above, vectors = at[higher], vectors[higher]
                    terms.append(PairTerm(above, -vectors, above, vectors))
            found.append(terms)
        return found

    def _outputs(self):
        layout = self._layout()
        weights = as_kernel_input(self._factors).reshape(len(self.intercept_), -1)
        if len(self.ranks_) == 1:
            # A plain factorization machine.
            return self._outputs_with(weights.reshape(len(weights), -1, self.ranks_[0]))
        return self._outputs_with([layout.ranked_tables(of_output) for of_output in weights])

    def _ranked_training(self):
        if len(self.ranks_) == 1:
            return None
        return RankedTraining(
            follow_loss=self.form == "reference",
            dependent_weight=float(self.dependent_weight),
            state_layout=self._layout().state_layout(self._optimizer_state[0]),
        )
