"""The factors of a rank-aware factorization machine: a table for each rank."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils._param_validation import StrOptions

from freqfm._components import NON_NEGATIVE
from freqfm._input.validation import LearnedArrays, as_kernel_array, as_kernel_input
from freqfm._memory import aligned_empty
from freqfm._messages import shown
from freqfm.backends.base import RankedTraining
from freqfm.estimators.fm.base import BaseFM, squeeze_outputs
from freqfm.estimators.fm.explanations.contributions import PairTerm
from freqfm.estimators.fm.factors.layout import Layout, assign_levels
from freqfm.estimators.fm.factors.plain import FACTOR_STATES
from freqfm.estimators.tables import MOMENTS, WEIGHTS, ModelTable


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
    _weight_names = ("intercept_", "coef_", "_factors")

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
        return self._layout().tables(self._factors)

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
        model.ranks_ = self.ranks_[self.ranks_ <= rank]
        model.feature_ranks_ = np.minimum(self.feature_ranks_, rank)
        model.ranks = tuple(model.ranks_.tolist())
        model.rank_assignment = model.feature_ranks_
        layout = model._layout()
        for name in ("intercept_", "coef_", "_n_steps", "token_counts_", "_target_sums"):
            setattr(model, name, getattr(self, name).copy())
        model._factors = self._factors[..., : layout.n_weights].copy()
        model.n_parameters_ = len(self.intercept_) * (layout.n_weights + len(layout.levels))
        model._state_layout = self._state_layout[: len(model.ranks_)]
        starts, widths = model._state_layout[-1, ::2], model._state_layout[-1, 1::2]
        sizes = starts + widths * layout.n_rows[-1]
        model._optimizer_state = [
            {name: array.copy() for name, array in state.items()} for state in self._optimizer_state
        ]
        for state in model._optimizer_state:
            for name, size in zip(FACTOR_STATES, sizes, strict=True):
                state[name] = state[name][:size].copy()
        if len(model.ranks_) == 1:
            model._become_plain(widths)
        model.optimizer_state_nbytes_ = sum(state.nbytes for state in model._optimizer_states())
        return model

    def _become_plain(self, state_widths):
        """Put the vectors of the only rank left, and their state, in the order of the features."""
        rows, n_features = self.factor_rows_, len(self.feature_ranks_)
        tables = self._factors.reshape(len(self.intercept_), n_features, -1)[:, rows]
        self._factors = squeeze_outputs(tables.reshape(len(tables), -1))
        for state in self._optimizer_state:
            for name, width in zip(FACTOR_STATES, state_widths, strict=True):
                state[name] = state[name].reshape(n_features, width)[rows]
        self.factor_rows_ = np.arange(n_features, dtype=np.int32)

    def _begin_part(self, part, tokens):
        part.feature_ranks_ = self.feature_ranks_[tokens]
        layout = Layout(self.ranks_, part._levels(), self._prefix)
        part.factor_rows_ = layout.rows
        part._factors = aligned_empty((*self._factors.shape[:-1], layout.n_weights))
        part._state_layout, sizes = layout.lay_out(self._state_layout[:, 1::2])
        for state in part._optimizer_state:
            for name, size in zip(FACTOR_STATES, sizes.tolist(), strict=True):
                # Of a single rank, the state is a table.
                shape = min(len(tokens), len(state[name])), state[name].shape[-1]
                state[name] = aligned_empty(shape if state[name].ndim == 2 else size)

    def _factor_tables(self):
        layout, row_of = self._layout(), self.factor_rows_
        weights = self._factors.reshape(-1, layout.n_weights)
        tables = [ModelTable(table, WEIGHTS, row_of) for table in layout.tables(weights)]
        for state in self._optimizer_state:
            for k, name in enumerate(FACTOR_STATES):
                numbers = state[name].reshape(-1)
                for n, (start, width) in zip(
                    layout.n_rows, self._state_layout[:, 2 * k : 2 * k + 2], strict=True
                ):
                    table = numbers[start : start + n * width].reshape(1, n, width)
                    tables.append(ModelTable(table, MOMENTS, row_of))
        return tables

    def _levels(self, features=slice(None)):
        return np.searchsorted(self.ranks_, self.feature_ranks_[features]).astype(np.int32)

    def _layout(self):
        """Return the Layout of the learned tables."""
        names = "ranks_", "feature_ranks_", "factor_rows_", "_prefix"
        return LearnedArrays(self).once(names, self._checked_layout)

    def _init_factors(self, n_outputs, initializer, generator, counts, optimizer):
        self.ranks_ = ranks = self._checked_ranks()
        self._prefix = self.rank_sharing == "truncate"
        levels = assign_levels(self.rank_assignment, ranks, self._checked_counts(counts))
        layout = Layout(ranks, levels, self._prefix)
        self.feature_ranks_ = ranks[levels]
        self.factor_rows_ = layout.rows
        self._factors = squeeze_outputs(
            np.stack([layout.draw(initializer, generator, counts) for _ in range(n_outputs)])
        )
        self._state_layout = layout.state_layout(optimizer)
        self.n_parameters_ = n_outputs * (layout.n_weights + len(counts))
        return [layout.init_state(optimizer, counts) for _ in range(n_outputs)]

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

    def _check_factors(self, learned, outputs, n_features):
        learned.array("ranks_", (None,), "iu")
        learned.array("feature_ranks_", (n_features,), "iu")
        learned.array("factor_rows_", (n_features,), "iu")
        learned.array("_factors", (*outputs, self._layout().n_weights))

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
        expected = self._layout().state_layout(optimizer)
        LearnedArrays(self).array("_state_layout", expected.shape, "iu")
        if not np.array_equal(self._state_layout, expected):
            LearnedArrays(self).require(False, "_state_layout", "does not fit ranks_")

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
            state_layout=as_kernel_array(self._state_layout, np.int64),
        )
