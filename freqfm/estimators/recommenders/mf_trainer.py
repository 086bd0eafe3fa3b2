"""The training task of matrix factorization: epochs of positives, their negatives, the scratch."""

import numpy as np

from freqfm._validation import as_kernel_array
from freqfm.backends.cpu.alignment import TILE_ROWS as ALIGNMENT_ROWS
from freqfm.backends.cpu.alignment import PairScratch, Uniformity, alignment_train
from freqfm.backends.cpu.drawing import draw_for_pairs, draw_for_rows
from freqfm.backends.cpu.pairwise import pairwise_train
from freqfm.backends.cpu.softmax import TILE_ROWS, softmax_train
from freqfm.backends.cpu.softmax_rows import Objective, Scratch
from freqfm.backends.cpu.tables import Epoch, Table, empty_occurrences
from freqfm.estimators.recommenders.histories import unit_rows
from freqfm.estimators.recommenders.trainer import RecommenderTrainer
from freqfm.formulas import codes
from freqfm.formulas.sampling_laws import draw_scratch
from freqfm.samplers._base import recall_codewords

# A kernel call does about so many multiplications, a tenth of a second's work, before Python may
# look whether the user has interrupted.
_WORK_PER_CALL = 5_000_000_000

# A batch's scores are kept whole up to so many numbers (16 MB), else in panels of rows.
_SCORES = 1 << 22

# At most so many negatives are drawn at a time.
_DRAWS = 1 << 23

_NO_NUMBERS = np.zeros(0, dtype=np.float32)
_NO_ROW = np.zeros((0, 1), dtype=np.float32)
_NO_TABLE = Table(
    weights=_NO_ROW,
    per_row=_NO_NUMBERS,
    first=_NO_ROW,
    second=_NO_ROW,
    caught_up=np.zeros(0, dtype=np.int64),
    heads=np.zeros(0, dtype=np.int32),
)


class MFTrainer(RecommenderTrainer):
    """Epochs over the interactions of a recommender; for parameters see ``RecommenderTrainer``.

    Attributes
    ----------
    constant : float
        The weight of the negatives' logarithm in a softmax.
    divergence_hint : str
        What may help if training diverges, apart from a smaller learning rate.
    """

    def __init__(self, model, axes, X, score, n_threads, n_known):
        super().__init__(model, axes, X, score, n_threads, n_known)
        loss = axes.loss
        self.divergence_hint = loss.divergence_hint
        self._family = loss.family
        code = None if axes.sampler is None else axes.sampler.negatives_code
        own = code == codes.NEGATIVES_OWN
        self._own = own or self._family == "pairwise"
        self._drawn = code == codes.NEGATIVES_DRAWN
        self._block = 1 if own and self._family == "softmax" else axes.block
        self._n_negatives = axes.n_negatives
        self._batch_size = min(axes.batch_size, X.nnz)
        degrees = np.diff(X.indptr)
        self._user_of = np.repeat(np.arange(X.shape[0], dtype=np.int32), degrees)
        longest = int(degrees.max()) if self._block is None else self._block
        self._most_pairs = min(self._batch_size + longest, X.nnz)
        if axes.sampler is not None and not self._drawn:
            proposal = axes.sampler.proposal(self._counts)
            self._proposal = self._checked(proposal, model.item_factors_.shape[1])
        self.constant = 1.0
        if self._family == "softmax":
            self.constant = loss.factor(np.count_nonzero(degrees), X.shape[1], X.nnz)
        users, items = (np.full(n, -1, dtype=np.int32) for n in X.shape)
        self._heads = {
            "user_factors": users, "item_factors": items,
            "user_margins": users, "item_margins": items,
        }  # fmt: skip
        self._allocate()

    # Memory.

    def _width_of_lists(self):
        """Return the number of negatives a row is scored against: M."""
        code = self.axes.sampler.negatives_code
        if code == codes.NEGATIVES_IN_BATCH:
            return self._most_pairs
        if code == codes.NEGATIVES_FULL:
            return self.X.shape[1]
        return self._n_negatives

    def _allocate(self):
        d, n_pairs, size = int(self.model.n_components), self._most_pairs, self._n_threads

        def floats(*shape):
            return np.zeros(shape, dtype=np.float32)

        n_listed = 0
        if self._family == "alignment":
            self._scratch = PairScratch(
                masks=floats(n_pairs, d),
                lengths=floats(n_pairs),
                units=floats(2, n_pairs, d),
                gradients=floats(2, n_pairs, d),
                cosines=floats(size, ALIGNMENT_ROWS, n_pairs),
                row_sums=np.zeros((n_pairs, 4)),
                margin_gradients=floats(n_pairs, 1),
            )
        else:
            shared = width = panel = lists = 0
            if self._family == "pairwise":
                n_listed = n_pairs * self._n_negatives
            else:
                width = self._width_of_lists()
                panel = min(n_pairs, max(TILE_ROWS, _SCORES // width // TILE_ROWS * TILE_ROWS))
                own = self._own or self._drawn
                shared = 0 if own else width
                lists = size * width if own else width
                n_listed = n_pairs * width if own else width
            self._scratch = Scratch(
                masks=floats(n_pairs, d),
                lengths=floats(n_pairs),
                scaled=floats(n_pairs, d),
                user_gradients=floats(n_pairs, d),
                sources=floats(n_pairs + shared, d),
                negative_units=floats(lists, d),
                negative_corrections=floats(lists),
                scores=floats(panel, width),
                row_sums=np.zeros((n_pairs, 4)),
            )
        if n_pairs + n_listed > np.iinfo(np.int32).max:
            raise ValueError(
                f"batch_size={self._batch_size} with n_negatives={self._n_negatives} for each "
                f"positive makes {n_pairs + n_listed} scores a batch; choose a smaller batch_size."
            )
        self._user_occurrences = empty_occurrences(n_pairs, d, size)
        self._item_occurrences = empty_occurrences(n_pairs + n_listed, d, size)

    # One epoch.

    def run_epoch(self, epoch):
        """Train on every positive once; return the mean loss."""
        model = self.model
        data = self._shuffle(epoch)
        n_batches = len(data.batch_starts) - 1
        self._refresh_temperatures(epoch)
        self._refresh_proposal(epoch)
        clock = self._clock(n_batches)
        trained = {name: self._table(name, clock, self._heads[name]) for name in model._tables()}
        tables = [trained.get(name, _NO_TABLE) for name in self._heads]
        generator = np.random.default_rng([model._seed, epoch, 1])
        pair_starts = data.row_starts[data.batch_starts]
        total = weight = 0.0
        first = 0
        while first < n_batches:
            last = min(first + self._batches_per_call(), n_batches)
            part = self._train(epoch, data, first, last, pair_starts, generator, tables, clock)
            total += part[0]
            weight += part[1]
            first = last
        self._catch_up(clock.first_step + n_batches, clock, trained.values())
        model._n_steps += n_batches
        return total / weight

    def _shuffle(self, epoch):
        """Return the positives in the order of an epoch: blocks of one user's, in random order."""
        X = self.X
        generator = np.random.default_rng([self.model._seed, epoch, 0])
        n_pairs = X.nnz
        if self._block is None:
            lengths = np.diff(X.indptr)
            order = generator.permutation(np.flatnonzero(lengths))
            begins, lengths = X.indptr[order], lengths[order]
        else:
            order = generator.permutation(-(-n_pairs // self._block))
            begins = order * self._block
            lengths = np.minimum(begins + self._block, n_pairs) - begins
        ends = np.cumsum(lengths)
        pairs = np.repeat(begins - ends + lengths, lengths)
        pairs += np.arange(n_pairs)
        users = self._user_of[pairs]
        if self._block == 1:
            starts = np.arange(n_pairs)
        else:
            # A row ends with its block, and where a block reaches into the next user's positives.
            begins_row = np.diff(users, prepend=-1) != 0
            begins_row[ends - lengths] = True
            starts = np.flatnonzero(begins_row)
        n_batches = -(-n_pairs // self._batch_size)
        bounds = np.linspace(0, n_pairs, n_batches + 1).astype(np.int64)
        batches = np.unique(np.searchsorted(starts, bounds))
        return Epoch(
            items=X.indices[pairs],
            weights=X.data[pairs],
            row_starts=np.append(starts, n_pairs).astype(np.int64),
            row_users=users[starts],
            batch_starts=batches.astype(np.int64),
        )

    def _vectors_for(self, strategy):
        users, items = self.model.user_factors_, self.model.item_factors_
        if self.axes.cosine and strategy.looks_at_vectors:
            return unit_rows(users), unit_rows(items)
        return users, items

    def _refresh_proposal(self, epoch):
        """Let a sampler that looks at the query see the items as they are now."""
        sampler, model = self.axes.sampler, self.model
        if not self._drawn:
            return
        if self._proposal is None or epoch % sampler.refresh == 0:
            vectors = model.item_factors_
            vectors = unit_rows(vectors) if self.axes.cosine else vectors.copy()
            seed = int(np.random.default_rng([model._seed, epoch, 3]).integers(1 << 31))
            last = self._proposal or recall_codewords(model._codewords)
            proposal = sampler.proposal(self._counts, vectors, seed, last)
            self._proposal = self._checked(proposal, vectors.shape[1])
            model._codewords = self._proposal.codewords
        self._draw_scratch = draw_scratch(self._proposal, self._n_threads)

    def _batches_per_call(self):
        if self._drawn:
            return 1
        d, n = int(self.model.n_components), self._batch_size
        if self._family == "alignment":
            return max(1, _WORK_PER_CALL // (8 * n * n * d))
        if self._family == "pairwise":
            draws = n * self._n_negatives
            return max(1, min(_WORK_PER_CALL // (100 * d * draws), _DRAWS // draws))
        width = self._width_of_lists()
        draws = n * width if self._own else self._n_negatives or 1
        return max(1, min(_WORK_PER_CALL // (6 * n * width * d), _DRAWS // draws))

    def _train(self, epoch, data, first, last, pair_starts, generator, tables, clock):
        model, axes, optimizer = self.model, self.axes, self.optimizer
        common = (
            self._rule,
            self._rule,
            optimizer.hyper(),
            int(clock.first_step + first),
            clock,
            self._scratch,
            self._user_occurrences,
            self._item_occurrences,
        )
        span = (data, first, last, model._seed, epoch)
        dropout = float(axes.user_dropout)
        if self._family == "alignment":
            loss = axes.loss
            uniformity = Uniformity(
                bool(loss.margins), *(float(g) for g in loss.gammas), bool(loss.half)
            )
            return self._team.run(alignment_train, *span, dropout, uniformity, *tables, *common)
        tables = tables[:2]  # users and items
        if self._drawn:
            negatives = self._draw(epoch, data, first, tables[0], clock)
        else:
            n_lists = last - first
            if self._own:
                n_lists = int(pair_starts[last] - pair_starts[first])
            negatives = self._draw_lists((n_lists, self._n_negatives), generator)
        if self._family == "pairwise":
            return self._team.run(
                pairwise_train,
                *span,
                bool(axes.cosine),
                dropout,
                self.X.indptr,
                self.X.indices,
                negatives,
                model._inverse_temperatures,
                *tables,
                *common,
            )
        return self._team.run(
            softmax_train,
            *span,
            self._objective(),
            negatives,
            _NO_NUMBERS if self._drawn else self._proposal.log_q,
            model._inverse_temperatures,
            model._statistics,
            *tables,
            *common,
        )

    def _draw_lists(self, shape, generator):
        """Return lists of negatives from a sampler that does not look at the query."""
        sampler, n_items = self.axes.sampler, self.X.shape[1]
        negatives = sampler.draw(shape, n_items, self._proposal, generator)
        if sampler.negatives_code in (codes.NEGATIVES_IN_BATCH, codes.NEGATIVES_FULL):
            return negatives
        negatives = np.asarray(negatives)
        fits = negatives.shape == shape and negatives.dtype.kind in "iu"
        if not (fits and negatives.min() >= 0 and negatives.max() < n_items):
            raise ValueError(
                f"draw of {type(sampler).__name__} must return items in [0, {n_items - 1}], "
                f"integers of shape {shape}; got an array of shape {negatives.shape} and type "
                f"{negatives.dtype}, or items out of range."
            )
        return as_kernel_array(negatives, np.int32)

    def _objective(self):
        """Return what a softmax minimises, for kernels."""
        axes = self.axes
        corrected = axes.sampler.corrected if self._drawn else len(self._proposal.log_q) > 0
        return Objective(
            cosine=bool(axes.cosine),
            dropout=float(axes.user_dropout),
            negatives_code=int(axes.sampler.negatives_code),
            corrected=corrected,
            inside=bool(axes.include_positive),
            constant=float(self.constant),
            statistics_wanted=bool(axes.temperature.statistics_wanted),
        )

    def _draw(self, epoch, data, batch, users, clock):
        """Draw the negatives of a batch for its users; return lists for its positives, if any."""
        model, n = self.model, self._n_negatives
        rows = slice(*data.batch_starts[batch : batch + 2])
        n_rows = rows.stop - rows.start
        n_pairs = data.row_starts[rows.stop] - data.row_starts[rows.start]
        span = (data, batch, model._seed, epoch)
        scratch = (self._proposal, *self._draw_scratch)
        step = int(clock.first_step + batch)
        of_users = (users, self._rule, self.optimizer.hyper(), step, clock)
        if self._family == "pairwise":
            negatives = np.empty((n_pairs, n), dtype=np.int32)
            log_q = np.empty((n_pairs, n), dtype=np.float32)
            self._team.run(
                draw_for_pairs, *span, *scratch, *of_users, self._user_occurrences, negatives, log_q
            )
            return negatives
        # The kernel finds them where it puts those that it lists itself.
        items = self._item_occurrences
        positive, own = slice(0, n_pairs), slice(n_pairs, n_pairs + n_rows * n)
        self._team.run(
            draw_for_rows, *span, self._objective(), *scratch, model._inverse_temperatures,
            *of_users, self._scratch, self._user_occurrences, items.multiples[positive],
            items.tokens[own].reshape(n_rows, n), items.multiples[own].reshape(n_rows, n),
        )  # fmt: skip
        return np.empty((0, n), dtype=np.int32)

    def attributes(self):
        """Return the learned attributes, copied, for callbacks that evaluate the model."""
        names = ("user_factors_", "item_factors_")
        return {name: getattr(self.model, name).copy() for name in names}
