"""Fitting a variational autoencoder: preparing, growing and training its arrays."""

from itertools import pairwise

import numpy as np

from freqfm._components import is_named, refuse_names, resolve
from freqfm._signals import release_signals
from freqfm._validation import (
    as_array,
    as_kernel_array,
    check_memory,
    count_columns,
    count_threads,
    draw_seed,
)
from freqfm.backends.cpu.blas import single_threaded_blas
from freqfm.backends.cpu.team import Team
from freqfm.backends.cpu.vae import sum_histories
from freqfm.estimators.recommenders.histories import (
    HistoryFit,
    grow_state,
    level_rows,
    new_state,
    pad_rows,
)
from freqfm.estimators.recommenders.mf_components import resolve_temperature
from freqfm.estimators.recommenders.vae_network import as_layers, encode
from freqfm.estimators.recommenders.vae_trainer import OF_ITEMS, Components, VAETrainer, unit_inputs
from freqfm.estimators.training import attempt
from freqfm.formulas import codes
from freqfm.optimizers import OPTIMIZERS, Optimizer
from freqfm.samplers import MIDX, SAMPLERS, Full, InBatch, Sampler
from freqfm.temperatures import TEMPERATURES, DensityTemperature

__all__ = ["VAEFit"]

# Up to so many items a softmax over all of them is cheap.
_FULL_UP_TO = 50_000

# Draws of a query, and codewords of MIDX, if their number is not given.
_N_NEGATIVES, _N_CODEWORDS = 500, 64

# Without a given batch size an epoch has so many batches, of so many users.
_BATCHES, _SMALLEST_BATCH, _LARGEST_BATCH = 32, 16, 256

# How far Adam's steps go in a fit, if no rate is given: small data, of few steps, need larger ones.
_TRAVEL, _SLOWEST, _FASTEST = 2.0, 1e-3, 1e-2

# Of the temperature: an encoder has more to learn than vectors of users have, and trusts its scores
# later. Chosen on held-out parts of Gowalla, MovieLens-1M and 100K, and of six synthetic logs.
_SHRINKAGE, _POWER = 300_000, 0.25

# Users of one pass through the encoder.
_ROWS = 4096

# Standard deviations of the first weights: of inputs, whose sums are over unit vectors, and of
# item vectors.
_INPUT_SCALE, _ITEM_SCALE = 0.1, 0.05


class VAEFit(HistoryFit):
    """What fitting a :class:`freqfm.FastVAERecommender` takes."""

    _axes = {
        "optimizer": OPTIMIZERS,
        "temperature": TEMPERATURES,
        "negative_sampler": {"auto": Full, **SAMPLERS},
    }

    def _train(self, X, reset, partial):
        with attempt(self) as trial:
            unfinished = self._unfinished_fit(partial)
            reset = reset and unfinished is None
            in_refit = unfinished is not None and unfinished["phase"] == 1
            with release_signals():
                if not reset:
                    self._check_histories()
                X = self._validate_interactions(X, reset, partial)
                if reset:
                    self._seed = draw_seed(self.random_state)
                    self._check_memory(X.shape[1])
                axes = self._resolve_axes(X, reset, unfinished)
                train_part, held_out = (X, None) if partial else self._hold_out(X)
                counts = count_columns(train_part)
                if reset:
                    self._init_model(train_part, counts, axes)
                elif unfinished is None:
                    self._prepare_to_continue(train_part, counts, axes)
                else:
                    self._check_states(axes)
                # What is held out is known all the same: it is not to be recommended.
                self._remember(X, partial and not reset)
                task = None if in_refit else self._new_task(axes, train_part, held_out)
                n_epochs = 1 if partial else int(self.max_iter)
                callbacks = None if partial else self._callbacks(X, n_epochs, unfinished)
            # Interactions held out from a warm start stay unseen, for the next call to hold out.
            refits = held_out is not None and not self.warm_start
            begin_refit = (lambda reset: self._begin_refit(X, reset)) if refits else None
            self._train_phases(task, n_epochs, held_out, trial, callbacks, begin_refit)
        return self

    def _begin_refit(self, X, reset):
        """Return the task that trains on all interactions, with a new model if ``reset``."""
        axes = self._resolve_axes(X, reset=True)
        if reset:
            self._init_model(X, count_columns(X), axes)
        return self._new_task(axes, X, None)

    def _new_task(self, axes, X, held_out):
        n_known = len(self._seen_indices) - (0 if held_out is None else held_out.nnz)
        score = None if held_out is None else self._scorer(X, held_out)
        return VAETrainer(self, axes, X, score, count_threads(self.n_jobs), n_known)

    def _pace(self, X, reset, unfinished):
        """Return the number of users in a batch, and the learning rate or None."""
        if reset:
            self._n_known = 0
        elif unfinished is None:
            self._n_known = np.count_nonzero(np.diff(self._seen_indptr))
        # Steps as large and as many as the users of earlier calls had: a few new ones must not
        # carry the model away from all others.
        n_users = max(np.count_nonzero(np.diff(X.indptr)), self._n_known)
        batch_size = self.batch_size
        if batch_size is None:
            batch_size = np.clip(n_users // _BATCHES, _SMALLEST_BATCH, _LARGEST_BATCH)
        rate = self.learning_rate
        if rate is None and is_named(self.optimizer, "adam"):
            n_steps = int(self.max_iter) * -(-n_users // int(batch_size))
            rate = float(np.clip(_TRAVEL / n_steps, _SLOWEST, _FASTEST))
        return int(batch_size), rate

    def _resolve_axes(self, X, reset, unfinished=None):
        n_items = X.shape[1]
        batch_size, rate = self._pace(X, reset, unfinished)
        optimizer = resolve(
            "optimizer",
            self.optimizer,
            Optimizer,
            OPTIMIZERS,
            [("learning_rate", "learning_rate", rate)],
        )
        sampler = self._resolve_sampler(n_items)
        full = sampler.negatives_code == codes.NEGATIVES_FULL
        if is_named(self.optimizer, "adam") and not full:
            # An item that is drawn now and then has small gradients of either sign. Only moments
            # that decay in between keep Adam from taking a whole step each time.
            optimizer.lazy = False
        if full and self.n_negatives is not None and self.negative_sampler != "auto":
            raise ValueError(
                f"n_negatives={self.n_negatives} has no use with "
                f"negative_sampler={self.negative_sampler!r}, which takes all items; leave it at "
                f"None."
            )
        kl_weight = 0.0 if self.kl_weight == "reference" else float(self.kl_weight)
        return Components(
            optimizer=optimizer,
            sampler=sampler,
            temperature=self._resolve_temperature(),
            cosine=self.similarity == "cosine",
            n_negatives=int(self.n_negatives or _N_NEGATIVES),
            batch_size=batch_size,
            kl_weight=kl_weight,
        )

    def _resolve_sampler(self, n_items):
        wanted = self.negative_sampler
        if isinstance(wanted, str) and wanted == "auto":
            wanted = "full" if n_items <= _FULL_UP_TO else "midx_uniform"
        midx = isinstance(wanted, MIDX) or (isinstance(wanted, str) and wanted.startswith("midx"))
        n_codewords = self.n_codewords if midx else None
        if isinstance(wanted, str) and midx and n_codewords is None:
            n_codewords = _N_CODEWORDS
        sampler = resolve(
            "negative_sampler",
            wanted,
            Sampler,
            SAMPLERS,
            [("n_codewords", "n_codewords", n_codewords)],
        )
        reason = "FastVAERecommender draws by what proposal returns"
        refuse_names("negative_sampler", sampler, ["draw"], reason)
        if isinstance(sampler, InBatch):
            raise ValueError(
                f"negative_sampler={self.negative_sampler!r} has no meaning here, where a batch "
                f"holds users; choose 'full', 'midx_popularity' or another that draws items."
            )
        if self.n_codewords is not None and not isinstance(sampler, MIDX):
            raise ValueError(
                f"n_codewords={self.n_codewords} belongs to MIDX samplers; with "
                f"negative_sampler={self.negative_sampler!r} leave it at None."
            )
        return sampler

    def _resolve_temperature(self):
        cosine, value = self.similarity == "cosine", self.temperature
        if value is None:
            value = DensityTemperature(shrinkage=_SHRINKAGE, power=_POWER) if cosine else 1.0
        temperature = resolve_temperature(value, cosine)
        if temperature.per_user:
            raise ValueError(
                f"temperature={value!r} gives every user a temperature, but a user here is no more "
                f"than a history; choose 'density', 'adap_tau0', 'learned' or a number."
            )
        return temperature

    # The model's arrays.

    def _tables(self):
        """Return the arrays that gradients move, by name: inputs, items, dense layers."""
        layers = {f"layer_{i}": layer for i, layer in enumerate(self.layers_)}
        return {"input_factors": self.input_factors_, "item_factors": self.item_factors_} | layers

    def _layers(self):
        return as_layers(self.layers_, self._n_hidden)

    def _sizes(self):
        """Return the sizes of the encoder's and the decoder's hidden layers."""
        sizes = []
        for name in ("hidden_layer_sizes", "decoder_layer_sizes"):
            given = as_array(name, getattr(self, name))
            empty_allowed = name == "decoder_layer_sizes"
            whole = given.ndim == 1 and (given.dtype.kind in "iu" or given.size == 0)
            if not whole or (given < 1).any() or not (given.size or empty_allowed):
                raise ValueError(
                    f"{name}={getattr(self, name)!r} must be a list of positive whole numbers, "
                    f"such as (200,)" + (", or empty." if empty_allowed else ".")
                )
            sizes.append([int(size) for size in given])
        return sizes

    def _check_memory(self, n_items):
        (n_inputs, *_), decoder = self._sizes()
        width = n_inputs + (decoder[-1] if decoder else int(self.n_components)) + 1
        check_memory(
            n_items * width,
            f"vectors of {n_items} items, {width} numbers each,",
            "Take smaller layers, or number items without gaps.",
        )

    def _draw_rows(self, n_items, counts, first=0):
        """Return rows of inputs and items for new items."""
        generator = np.random.default_rng([self._seed, 1, first])
        (width, *_), decoder = self._sizes()
        inputs = _INPUT_SCALE * generator.standard_normal((n_items, width), dtype=np.float32)
        depth = decoder[-1] if decoder else int(self.n_components)
        items = _ITEM_SCALE * generator.standard_normal((n_items, depth), dtype=np.float32)
        # A softmax of these alone draws items by popularity.
        bias = np.log(np.maximum(counts, 0.5))
        return inputs.astype(np.float32), np.column_stack([items, bias]).astype(np.float32)

    def _init_model(self, X, counts, axes):
        hidden, decoder = self._sizes()
        self.input_factors_, self.item_factors_ = self._draw_rows(X.shape[1], counts)
        generator = np.random.default_rng([self._seed, 2])
        d = int(self.n_components)
        self._n_hidden = len(hidden)
        layers = [np.zeros((1, hidden[0]), dtype=np.float32)]
        for n_in, n_out in [*pairwise(hidden), (hidden[-1], 2 * d), *pairwise([d, *decoder])]:
            bound = np.sqrt(6 / (n_in + n_out))
            layer = np.zeros((n_in + 1, n_out), dtype=np.float32)
            layer[:-1] = generator.uniform(-bound, bound, (n_in, n_out))
            layers.append(layer)
        self.layers_ = layers
        n_users = np.count_nonzero(np.diff(X.indptr))
        self._states = {
            name: new_state(
                axes.optimizer,
                counts if name in OF_ITEMS else np.full(len(table), n_users),
                table.shape[1],
            )
            for name, table in self._tables().items()
        }
        self._inverse_temperatures = np.ones((1, 2), dtype=np.float32)
        self._temperature_state, self._statistics = np.zeros((1, 2)), np.zeros((1, 3))
        self._codewords = np.zeros((0, 1), dtype=np.float32)
        self._n_steps = np.zeros(1, dtype=np.int64)
        self._cosine = axes.cosine
        self._optimizer_name = type(axes.optimizer).__name__
        self.loss_curve_ = np.zeros(0)
        self.validation_scores_ = np.zeros(0)
        self.n_iter_ = 0

    def _prepare_to_continue(self, X, counts, axes):
        """Prepare the model to be trained further, with new rows for new items."""
        name = type(axes.optimizer).__name__
        if name != self._optimizer_name:
            raise ValueError(
                f"optimizer={self.optimizer!r} differs from {self._optimizer_name}, whose state "
                f"the model to continue carries; set it back, or fit anew with warm_start=False."
            )
        self._check_states(axes)
        if axes.cosine != self._cosine:
            raise ValueError(
                f"similarity={self.similarity!r} differs from that of the model to continue; set "
                f"it back, or fit anew with warm_start=False."
            )
        hidden, decoder = self._sizes()
        outputs = [*hidden, 2 * int(self.n_components), *decoder]
        if outputs != [layer.shape[1] for layer in self.layers_] or len(hidden) != self._n_hidden:
            raise ValueError(
                "hidden_layer_sizes, n_components or decoder_layer_sizes differ from those of the "
                "model to continue; set them back, or fit anew with warm_start=False."
            )
        known = len(self.item_factors_)
        rows = self._draw_rows(X.shape[1] - known, counts[known:], known)
        self.input_factors_, self.item_factors_ = (
            as_kernel_array(np.concatenate([old, new])).copy()
            for old, new in zip((self.input_factors_, self.item_factors_), rows, strict=True)
        )
        self.layers_ = [as_kernel_array(layer).copy() for layer in self.layers_]
        states = {}
        for name, table in self._tables().items():
            new = counts[known:] if name in OF_ITEMS else counts[:0]
            more = new_state(axes.optimizer, new, table.shape[1])
            states[name] = grow_state(self._states[name], more)
        self._states = states
        self._n_steps = as_kernel_array(self._n_steps, np.int64).copy()
        for name in ("_inverse_temperatures", "_temperature_state", "_statistics"):
            setattr(self, name, np.array(getattr(self, name)))

    def _remember(self, X, more):
        n_users = max(X.shape[0], self._n_users) if more else X.shape[0]
        self._remember_histories(pad_rows(X, n_users), more, weights=True)

    # Users by their histories.

    def _mean(self, starts, items, values):
        """Return the means of the posteriors of histories, (n, n_components) float32."""
        n = len(starts) - 1
        layers = self._layers()
        values = level_rows(starts, values)
        out = np.zeros((n, layers.posterior.shape[1] // 2), dtype=np.float32)
        table = as_kernel_array(self.input_factors_)
        n_threads = count_threads(self.n_jobs) if len(items) > 10_000 else 1
        with single_threaded_blas(), Team(n_threads) as team:
            for begin in range(0, n, _ROWS):
                end = min(begin + _ROWS, n)
                own = slice(starts[begin], starts[end])
                local = (starts[begin : end + 1] - starts[begin]).astype(np.int64)
                filled = np.flatnonzero(np.diff(local))
                if not len(filled):
                    continue
                bounds = np.append(local[filled], local[-1])
                inputs = unit_inputs(bounds, values[own].astype(np.float32))
                pooled = np.empty((len(filled), table.shape[1]), dtype=np.float32)
                team.run(
                    sum_histories, bounds, np.ascontiguousarray(items[own]), inputs, table, pooled
                )
                # Rows without items have no embedding: zeros.
                out[begin + filled] = encode(layers, pooled, self.activation).mean
        return out

    def _history_of(self, users):
        """Return starts, items and values of users seen in fit."""
        bounds, items, at = self._places_of(users)
        if len(self._seen_weights):
            return bounds, items, self._seen_weights[at]
        return bounds, items, np.ones(len(items), dtype=np.float32)
