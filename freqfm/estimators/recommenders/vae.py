"""A variational autoencoder for collaborative filtering, by full or sampled softmax."""

from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from numbers import Real
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted

from freqfm import backends
from freqfm._components import NON_NEGATIVE, POSITIVE, POSITIVE_INTEGER
from freqfm._dense import ACTIVATIONS, as_layers, decode, draw_layer, encode, unit_rows
from freqfm._input.rows import take_rows
from freqfm._input.validation import as_kernel_input, check_memory, check_sizes, count_threads
from freqfm._machine import single_threaded_blas
from freqfm._sklearn import Interval, StrOptions
from freqfm.backends.base import AutoencoderBatch, AutoencoderProblem, Histories
from freqfm.estimators.recommenders.components import vae_components
from freqfm.estimators.recommenders.fold_in import scale_rows
from freqfm.estimators.recommenders.gradient import (
    GradientRecommender,
    RecommenderTrainer,
    draw_rows,
)
from freqfm.estimators.recommenders.interactions import Interactions
from freqfm.estimators.recommenders.trained import RESUMES
from freqfm.estimators.state import WEIGHTS, Learned
from freqfm.estimators.training import check_unchanged
from freqfm.formulas.proposals import AlreadyDrawn
from freqfm.initializers import INITIALIZERS, Initializer, Normal
from freqfm.optimizers import OPTIMIZERS, Optimizer, WeightDecay
from freqfm.samplers import SAMPLERS, QuerySampler, Sampler
from freqfm.samplers._base import check_draws, recall_codewords
from freqfm.temperatures import TEMPERATURES, Temperature

# Tables with a row for every item, the first two of the model; the others are dense layers.
OF_ITEMS = ("input_factors", "item_factors")


# Purposes of random streams: the order of an epoch, dropout, noise, and negatives.
_ORDER, _DROPOUT, _NOISE, _DRAWS = range(4)


def pass_on(layer, n, noise):
    """Let the first ``n`` outputs be the first ``n`` inputs, plus noise, before the activation."""
    layer[:n, :n] *= noise
    layer[:n, :n] += np.eye(n, dtype=np.float32)


def unit_inputs(starts, values):
    """Return the values of histories, normalised to unit length per history."""
    lengths = np.sqrt(np.maximum(np.add.reduceat(values**2, starts[:-1]), 1e-30))
    lengths[np.diff(starts) == 0] = 1
    return (values / np.repeat(lengths, np.diff(starts))).astype(np.float32)


class VAETrainer(RecommenderTrainer):
    """Epochs over users of a variational autoencoder; see ``RecommenderTrainer`` for parameters."""

    #: A remedy if training diverges, besides a smaller learning rate.
    divergence_hint = "scale the weights in X to about 1"

    def __init__(self, model, components, interactions, known, score, n_threads):
        super().__init__(model, components, interactions, known, score, n_threads)
        self._users = np.flatnonzero(np.diff(self.X.indptr))
        self._batch_size = min(components.batch_size, len(self._users))
        self._random = backends.get()
        problem = self._problem()
        start = backends.start(model.device, "autoencoder_trainer", problem, n_threads)
        self._backend, self._trainer = start

    def _drawn(self, n_queries, step):
        """Return the draws of a custom sampler for a batch and their log-probabilities, or None."""
        if not self._sampler_draws:
            return None
        sampler, log_q = self.components.sampler, self._proposal.log_q
        shape, n_items = (n_queries, self.components.n_negatives), self.X.shape[1]
        generator = np.random.default_rng([self._seed, step, 4])
        items = sampler.draw(shape, n_items, self._proposal, generator)
        items = check_draws(sampler, items, shape, n_items)
        return items, log_q[items] if len(log_q) else np.zeros(shape, dtype=np.float32)

    def _problem(self):
        """Return the backend's description of this fit, and the largest batch."""
        model, components = self.model, self.components
        n_samples = int(model.n_samples)
        n_queries = self._batch_size * n_samples
        n_positives = int(np.sort(np.diff(self.X.indptr))[-self._batch_size :].sum())
        n_draws = 0 if components.full else components.n_negatives
        n_scores = n_positives * n_samples + n_queries * n_draws
        if n_draws and n_scores > np.iinfo(np.int32).max:
            raise ValueError(
                f"batch_size={self._batch_size} with n_negatives={n_draws} makes {n_scores} scores "
                f"a batch; choose a smaller batch_size."
            )
        return AutoencoderProblem(
            rule=self._rule,
            input_width=model.input_factors_.shape[1],
            item_width=model.item_factors_.shape[1],
            # The last element of an item's vector is its bias.
            n_unit=model.item_factors_.shape[1] - 1 if components.cosine else 0,
            n_samples=n_samples,
            n_queries=n_queries,
            n_positives=n_positives,
            n_draws=n_draws,
            n_users=self.X.shape[0],
            n_hidden=int(model._n_hidden),
            activation=model.activation,
            dropout=float(model.dropout) if model.dropout_on == "hidden" else 0.0,
            sampler=repr(model.negative_sampler),
            proposal_type=getattr(components.sampler, "proposal_type", None),
            formulas=self.optimizer.replacements(),
        )

    def run_epoch(self, epoch):
        """Train on every user once; return the mean loss per interaction."""
        stream = self._stream(epoch, _ORDER)
        order = self._users[self._random.permutation(stream, len(self._users))]
        n_batches = -(-len(order) // self._batch_size)
        self._refresh_temperatures(epoch)
        self._refresh_proposal(epoch)
        first_step = int(self.training.n_steps[0])
        proposal = self._proposal
        if self._sampler_draws:
            proposal = AlreadyDrawn(proposal.log_q, proposal.n_items)
        self._trainer.begin_epoch(*self._epoch_of(n_batches), proposal)
        parts = enumerate(np.array_split(order, n_batches), first_step + 1)
        batches = (self._batch(users, epoch, step) for step, users in parts)
        total = weight = 0.0
        # Overflows are reported at the end of the epoch.
        with np.errstate(over="ignore", invalid="ignore"):
            for loss, batch_weight, derivative in self._trainer.train(batches):
                total += loss
                weight += batch_weight
                if self.components.temperature.statistics_wanted:
                    self.training.statistics[0, 1:] += batch_weight, derivative
        self._trainer.catch_up(first_step + n_batches)
        self.training.n_steps[:] += n_batches
        return total / weight

    def _refresh_temperatures(self, epoch):
        super()._refresh_temperatures(epoch)
        positive, others = self.inverse_temperatures[0]
        if positive != others:
            strategy = type(self.components.temperature).__name__
            raise ValueError(
                f"refresh of {strategy} has written the inverse temperatures {positive:g} for "
                f"positives and {others:g} for the logarithm, but this model has one temperature; "
                f"write the same number into both columns."
            )

    def _vectors_for(self, strategy):
        if not strategy.looks_at_vectors:
            return None, None
        self._trainer.pull(self.weights())
        mean = self.model._mean(self.X.indptr, self.X.indices, self.X.data)
        return unit_rows(self.model._decode(mean)), unit_rows(self.model.item_factors_[:, :-1])

    def _refresh_proposal(self, epoch):
        sampler = self.components.sampler
        if self.components.full:
            return
        if not isinstance(sampler, QuerySampler):
            if self._proposal is None:
                proposal = sampler.proposal(self._known.item_counts)._replace(
                    n_items=self.X.shape[1]
                )
                self._proposal = self._checked(proposal)
        elif self._proposal_is_due(epoch):
            self._replace_proposal(self._propose(self._seed + epoch))

    def _propose(self, seed):
        """Return the distribution of negatives for the current item vectors."""
        sampler, counts = self.components.sampler, self._known.item_counts
        table, last = self.model.item_factors_, self._proposal
        last = last or recall_codewords(self.training.codewords)
        if not self._quantizes:
            self._trainer.pull([table])
            vectors = self.model._item_index().vectors().copy()
            return sampler.proposal(counts, vectors, seed, last)
        # Biases are known exactly; quantizing them would waste codewords.
        n = table.shape[1] - 1
        if last is not None:
            last = recall_codewords(last.codewords[:, :n])
        codewords, codes = self._quantize(table, n, seed, last)
        codewords = np.pad(codewords, [(0, 0), (0, 1)])
        offsets = self._trainer.take(table, slice(None), slice(n, None))[:, 0]
        return sampler.proposal_of_codes(counts, codewords, codes, offsets=offsets)

    def _batch(self, users, epoch, step):
        """Return the AutoencoderBatch of users."""
        rows, model = take_rows(self.X, users), self.model
        return AutoencoderBatch(
            step=step,
            users=users,
            positives=Histories(rows.indptr, rows.indices, rows.data),
            inputs=self._inputs(users, rows, epoch),
            inverse_temperature=self.inverse_temperatures[0, 0],
            kl_weight=self.components.kl_weight * min(1.0, (epoch + 1) / model.kl_warm_up),
            dropout=self._stream(epoch, _DROPOUT),
            noise=self._stream(epoch, _NOISE),
            draws=self._stream(step, _DRAWS),
            drawn=self._drawn(len(users) * int(model.n_samples), step),
        )

    def _inputs(self, users, rows, epoch):
        """Return the encoder's inputs for the histories of users."""
        starts, items, inputs = rows.indptr, rows.indices, unit_inputs(rows.indptr, rows.data)
        dropout = self.model.dropout
        if dropout and self.model.dropout_on == "input":
            # Dropped items do not occur in the batch: their rows are not updated.
            shift = np.repeat(self.X.indptr[users] - starts[:-1], np.diff(starts))
            stream = self._stream(epoch, _DROPOUT)
            drawn = self._random.uniform(stream, np.arange(len(items)) + shift)
            kept = drawn >= np.float32(dropout)
            items, inputs = items[kept], inputs[kept] / np.float32(1 - dropout)
            starts = np.concatenate([[0], np.cumsum(kept)])[starts]
        return Histories(starts, items, inputs)

    def attributes(self):
        """Return the learned attributes, copied, for callbacks that evaluate the model."""
        model = self.model
        return {
            "input_factors_": model.input_factors_.copy(),
            "item_factors_": model.item_factors_.copy(),
            "layers_": [layer.copy() for layer in model.layers_],
        }


# Number of users in one pass through the encoder.
_ROWS = 4096

# Standard deviations of normal initial weights: of inputs, whose sums are over unit vectors, and of
# item vectors.
_INPUT_SCALE, _ITEM_SCALE = 0.1, 0.05


@cache
def _learned_of_layers(n_layers):
    """Return the tables of items and of so many layers."""
    factors = {name: Learned(f"{name}_", ("items", None)) for name in OF_ITEMS}
    layers = [Learned(("layers_", i), (None, None), WEIGHTS) for i in range(n_layers)]
    return factors | {f"layer_{i}": layer for i, layer in enumerate(layers)}


@dataclass(eq=False, repr=False, kw_only=True)
class FastVAERecommender(GradientRecommender):
    """Variational autoencoder for implicit feedback, by full or sampled softmax.

    An encoder maps a user's history to a distribution of latent vectors; a decoder computes the
    scores of all items from them. No vector of a user is stored, so new users and longer
    histories need no training. The model is Mult-VAE [1]_; if there are too many items for a
    softmax over all of them, items are drawn by an inverted multi-index, as in FastVAE [2]_.

    With x_ui for the values in ``X`` and a_i for rows of ``input_factors_``, the encoder is ::

        h = f(W_1 ... f(sum_i dropout(x_ui / |x_u|) a_i + b_0) ...),
        z ~ N(mu, diag(exp(s))),        [mu, s] = W h + b,

    and the decoder, with v_i and c_i for vectors and biases of items, ::

        q = z                           without decoder layers, or else
        q = f(U_m ... f(U_1 z + b_1) ...),
        s_ui = cos(q, v_i) / tau + c_i  or, with similarity="dot",
        s_ui = <q, v_i> / tau + c_i,
        P(i | u) = exp(s_ui) / sum_j exp(s_uj).

    The papers use dot products, without tau. With cosines the popularity of an item is in its bias,
    not in its length; the default temperature tau depends on the density of the data.

    Training minimises the mean over users of the multinomial loss and the KL divergence of z from a
    standard normal distribution, with weight 1 a bound of the negative log-likelihood, ::

        -sum_i x_ui log P(i | u) + kl_weight_t / 2 sum_k (mu_k^2 + exp(s_k) - 1 - s_k),
        kl_weight_t = kl_weight min(1, t / kl_warm_up) in epoch t.

    Recommendations use z = mu and no dropout; their scores are s_ui.

    Parameters
    ----------
    n_components : int, default=64
        Length of the latent vectors z.
    hidden_layer_sizes : array-like of int, default=(200,)
        Sizes of the encoder's hidden layers, at least one. The first is the length of the rows of
        ``input_factors_``.
    decoder_layer_sizes : array-like of int, default=()
        Sizes of the decoder's hidden layers. The last is the length of the items' vectors; if there
        are none it is ``n_components``, and z itself is the query.
    activation : {"tanh", "relu"}, default="tanh"
        The function f in all hidden layers.
    similarity : {"cosine", "dot"}, default="cosine"
        How queries and items are compared; [1]_ and [2]_ use "dot".
    temperature : float, str or Temperature, default=None
        Divisor of the similarities: a number, or for instance "density", "adap_tau0" or "learned";
        see :mod:`freqfm.temperatures`. None is 1 for the dot product and
        ``DensityTemperature(shrinkage=300_000, power=0.25)`` for the cosine. Strategies with a
        temperature for each user are not supported.
    negative_sampler : str or Sampler, default="auto"
        The items over which the sum of the softmax runs: "auto" or for instance "full", "uniform",
        "popularity", "midx_uniform", "midx_popularity", "midx_exact", "kernel", "dns",
        "self_adversarial", "aobpr" or "pris"; see :mod:`freqfm.samplers`. "full" takes all items,
        the others draw some for each user, and the sum for an item of the user contains that item
        too. "auto" is "full" for up to 50,000 items and 2,000,000,000 pairs of users and items,
        else "midx_uniform". Names that start with "midx" have 64 codewords in each half of the
        vectors; ``MIDX`` has another number.
    n_negatives : int, default=None
        Number of draws for each user and latent vector, with replacement; the user's items are not
        excluded. None is 500. Not allowed with "full", nor where "auto" is "full".
    kl_weight : float or "reference", default=0.05
        Weight of the KL divergence after the warm-up. 1 gives the bound; [1]_ finds that 0.2 ranks
        better. "reference" trains like the published code of [2]_: z is drawn with noise, but
        the KL divergence has no gradient, which is the same as 0.
    kl_warm_up : int, default=8
        Epochs over which the weight rises linearly to ``kl_weight``. 1 means no warm-up.
    n_samples : int, default=1
        Latent vectors z drawn for each user and step.
    dropout : float, default=0.5
        Share of a user's items, or of hidden values, set to zero in each step; the others are
        divided by 1 - ``dropout``.
    dropout_on : {"input", "hidden"}, default="input"
        "input" drops items of the history, as in [1]_ and [2]_; "hidden" drops values of the sum
        over items, as in the published code of [2]_.
    optimizer : str or Optimizer, default="adam"
        Such as "adam", "cf_sgd", "fa_sgd", "rowwise_adagrad", "adagrad" or "sgd"; see
        :mod:`freqfm.optimizers`. It updates all arrays, including dense layers. If items are drawn,
        ``lazy`` of Adam is False by default: gradients of drawn items change sign, so moments must
        decay between draws.
    learning_rate : float, default=None
        Learning rate of the optimizer. For Adam, None depends on the number of steps in the fit:
        16 divided by the steps, between 0.004 and 0.02, from which it falls linearly to 5 % at
        ``max_iter``; in ``partial_fit`` half of that. It is 0.1 for "sgd" and "fa_sgd", 0.03 for
        "cf_sgd", and the optimizer's default for others.
    max_iter : int, default=None
        Number of epochs. None is 24 for up to 50,000 users; it falls in proportion to the root of
        more, down to 8 from 450,000 on: :doc:`guide </scale>`. ``init="normal"`` needs 50 for the
        same NDCG.
    batch_size : int, default=None
        Users in a batch. None is 1/32 of the users, between 16 and 256; of more than 42,000 users
        as many as make 4,000 steps in the default epochs, at most 1,024.
    weight_decay : float or WeightDecay, default=0.0
        L2 penalty on all weights: ``weight_decay`` times the row is added to the gradient of a row,
        in every batch, or as :class:`freqfm.optimizers.WeightDecay` says. The loss is a mean over
        the users of a batch (for CF-SGD and FA-SGD a sum). The decay of ``Adam()``, which is lazy,
        is decoupled, see :class:`MFRecommender`.
    init : {"spectral", "normal", "xavier", "prism"} or Initializer, default="spectral"
        Initial values of the items' two vectors, see :mod:`freqfm.initializers`. "spectral" starts
        both in directions from the interactions, and each layer so that it passes its input on;
        the first recommendations are then those of a spectral filter. "normal" has a standard
        deviation of 0.1 for ``input_factors_`` and 0.05 for ``item_factors_``. New items of
        ``partial_fit`` start at random.
    n_recommendations : int, default=10
        Number of items that ``predict`` returns, and the k of ``score`` and ``scoring``.
    early_stopping : bool or "auto", default="auto"
        Whether to hold out interactions, stop when ``scoring`` no longer improves, and then train a
        new model on all interactions for the best number of epochs, at least 5. With
        ``warm_start=True`` the best epoch is restored instead. With ``X_val`` in ``fit`` those
        interactions are used instead of held-out ones, and the model of the best epoch is kept;
        "auto" does so, and holds nothing out.
    validation_fraction : float, default=0.1
        Share of each user's interactions that early stopping holds out.
    scoring : str or callable, default="ndcg"
        The score that early stopping maximises on held-out interactions: a metric that
        :func:`~freqfm.model_selection.make_ranking_scorer` knows, at ``n_recommendations`` or at
        another number, as in "recall@50"; what that function returns, of which the metric, ``k``
        and ``exclude_seen`` are used; or a callable ``scorer(estimator, X, y)`` that returns a
        number: ``X`` are the histories of users without the items to be found, which ``y`` holds,
        both sparse matrices.
        For "neg_dislike_rate" and callables a part of the dislikes, negative values, is held out
        too.
    n_iter_no_change : int or None, default=10
        Epochs without an improvement by ``tol`` before training stops. Not used without early
        stopping. None never stops.
    tol : float, default=1e-4
        Smallest improvement.
    warm_start : bool, default=False
        Whether ``fit`` continues from the current model.
    verbose : int, default=0
        1 prints what ``fit`` is doing, and shows the loss, the validation score and the remaining
        time, as a bar in terminals and notebooks if rich is installed, else as a line for each
        epoch. 2 always prints lines.
    n_jobs : int, default=None
        Threads, at most one per core; None uses all cores. The result does not depend on it.
    random_state : int, RandomState instance, Generator or None, default=None
        Pass an int for the same model at every call.
    device : str, default="cpu"
        Where the model trains and predicts: "cpu"; "cuda" for an NVIDIA GPU, or "cuda:1" for the
        second one; "auto" for a GPU if one can be used, else the CPU. See :ref:`gpu`.

    Attributes
    ----------
    input_factors_ : ndarray of shape (n_items, hidden_layer_sizes[0]), float32
        What each item of a history adds to the first hidden layer.
    item_factors_ : ndarray of shape (n_items, d + 1), float32
        The vectors of the items and, in the last column, their biases; d is ``n_components``, or
        the size of the last decoder layer.
    layers_ : list of ndarray, float32
        The dense layers in order: the bias of the first hidden layer, (1, h); further hidden
        layers; the layer to means and log-variances, (h + 1, 2 * n_components); the decoder's. The
        last row of each is its bias.
    item_counts_ : ndarray of shape (n_items,)
        How many users have each item.
    loss_curve_ : ndarray of shape (`n_iter_`,)
        Loss of each epoch including the KL divergence, per interaction, or per sum of weights. If
        items are drawn, it is computed from sampled sums.
    validation_scores_ : ndarray
        The score of each epoch, with early stopping.
    temperature_ : float
        The temperature of the last epoch.
    n_iter_, best_iter_ : int
        Number of epochs trained, excluding those of the new model on all interactions; and the
        epoch of the model's weights, or the number of epochs of the new model.
    optimizer_state_nbytes_ : int
        Bytes of the optimizer state.
    n_features_in_ : int
        Number of items.
    feature_names_in_ : ndarray of shape (n_items,)
        Only if X is a DataFrame whose columns are named by strings.

    Raises
    ------
    ValueError
        If components cannot be combined, or the data cannot be learned from.
    DivergenceError
        If the loss or a weight stops being finite; the last finite epoch is kept.

    Warns
    -----
    ConvergenceWarning
        From ``fit`` with early stopping, if ``max_iter`` was reached while it still improved.

    See Also
    --------
    MFRecommender : Stores a vector for each user; other losses.
    InteractionRecommender : Takes (user, item) pairs with any ids.
    freqfm.samplers.MIDX : Draws items for "midx_uniform" and "midx_popularity".

    Notes
    -----
    A default fit takes about 10 CPU seconds for 590,733 interactions of 6,039 users with 3,628
    items (MovieLens-1M). The first one also compiles, for about 9.

    Cost of an epoch, for vectors of length d: O(n_users * n_items * d) with "full", in two passes
    over tiles of items, O(n_users * n_negatives * d) with draws, plus the sampler's cost per query;
    ``n_samples`` multiplies both. Encoder and decoder add the number of interactions times
    ``hidden_layer_sizes[0]``, and the dense layers for each user.

    Memory: 4 (h + d + 1) bytes for each item, with h = ``hidden_layer_sizes[0]``, the optimizer
    state (twice as much again for Adam), and a copy of both during training (two with early
    stopping). Besides these, training takes 40 bytes per item, with MIDX 8 d + 100 more; 16 per
    user; and for the histories 4 per interaction, or 8 if the values of ``X`` are not all one, and
    8 more with early stopping. Nothing grows with users times items: "full" holds the scores of a
    batch and 512 items at a time for each thread, draws take about 20 bytes for each user of a
    batch and draw, and 8 more for each thread. Before training, ``init="spectral"`` takes three
    tables of n_components + 10 columns for users and items, ``init="normal"`` none.

    Item biases start at the logarithms of popularity. MIDX does not quantize them: the
    probabilities of its cells, and of items within a cell, are proportional to the exponentials of
    biases, for "midx_popularity" times the popularity.

    References
    ----------
    .. [1] D. Liang, R. G. Krishnan, M. D. Hoffman, T. Jebara. "Variational Autoencoders for
       Collaborative Filtering". WWW 2018.
    .. [2] J. Chen, D. Lian, B. Jin, X. Huang, K. Zheng, E. Chen. "Fast Variational AutoEncoder with
       Inverted Multi-Index for Collaborative Filtering". WWW 2022.

    Examples
    --------
    >>> from freqfm import FastVAERecommender
    >>> from freqfm.datasets import make_interactions
    >>> X = make_interactions(200, 100, random_state=0)
    >>> model = FastVAERecommender(n_components=16, max_iter=20, random_state=0).fit(X)
    >>> items, scores = model.recommend(X[:2], n_recommendations=3)
    >>> items.shape
    (2, 3)
    >>> model.transform(X).shape
    (200, 16)
    """

    _registries = {
        "init": INITIALIZERS,
        "optimizer": OPTIMIZERS,
        "weight_decay": WeightDecay.of,
        "temperature": TEMPERATURES,
        "negative_sampler": SAMPLERS,
    }
    _keeps_weights, _weights_in_fit = True, (1e-6, 1e10)

    _parameter_constraints: ClassVar = {
        # Names and instances are resolved in fit.
        **dict.fromkeys(_registries, "no_validation"),
        "hidden_layer_sizes": ["array-like"],
        "decoder_layer_sizes": ["array-like"],
        "activation": [StrOptions({"tanh", "relu"})],
        "similarity": [StrOptions({"cosine", "dot"})],
        "n_negatives": [*POSITIVE_INTEGER, None],
        "kl_weight": [*NON_NEGATIVE, StrOptions({"reference"})],
        "kl_warm_up": POSITIVE_INTEGER,
        "n_samples": POSITIVE_INTEGER,
        "dropout": [Interval(Real, 0, 1, closed="left")],
        "dropout_on": [StrOptions({"input", "hidden"})],
        "learning_rate": [*POSITIVE, None],
        "max_iter": [*POSITIVE_INTEGER, None],
        "batch_size": [*POSITIVE_INTEGER, None],
        "weight_decay": [*NON_NEGATIVE, WeightDecay],
        "early_stopping": ["boolean", StrOptions({"auto"})],
    }

    n_components: int = field(default=64, kw_only=False)
    hidden_layer_sizes: ArrayLike = (200,)
    decoder_layer_sizes: ArrayLike = ()
    activation: str = "tanh"
    similarity: str = "cosine"
    temperature: float | str | Temperature | None = None
    negative_sampler: str | Sampler = "auto"
    n_negatives: int | None = None
    kl_weight: float | str = 0.05
    kl_warm_up: int = 8
    n_samples: int = 1
    dropout: float = 0.5
    dropout_on: str = "input"
    optimizer: str | Optimizer = "adam"
    learning_rate: float | None = None
    max_iter: int | None = None
    batch_size: int | None = None
    weight_decay: float | WeightDecay = 0.0
    init: str | Initializer = "spectral"
    early_stopping: bool | str = "auto"

    def _embed_rows(self, X):
        return self._mean(X.indptr, X.indices, X.data)

    @property
    def _n_features_out(self):
        return self._layers().posterior.shape[1] // 2

    @property
    def temperature_(self):
        """The temperature of the last epoch."""
        check_is_fitted(self)
        return float(1 / self._inverse_temperatures[0, 0])

    # Training.

    def _sizes(self):
        """Return the sizes of the encoder's and the decoder's hidden layers."""
        return (
            check_sizes("hidden_layer_sizes", self.hidden_layer_sizes, empty_allowed=False),
            check_sizes("decoder_layer_sizes", self.decoder_layer_sizes, empty_allowed=True),
        )

    def _resolve_components(self, X, known):
        (n_inputs, *_), decoder = self._sizes()
        width = n_inputs + (decoder[-1] if decoder else int(self.n_components)) + 1
        check_memory(
            X.shape[1] * width,
            f"vectors of {X.shape[1]} items, {width} numbers each,",
            "Take smaller layers, or number items without gaps.",
        )
        n_users = np.count_nonzero(np.diff(X.indptr))
        n_known = max(n_users, self._n_known_users)
        return vae_components(self, n_known, X.shape[1], n_known > n_users)

    _rows_of_temperatures = 1

    def _learned_tables(self):
        return _learned_of_layers(len(self.layers_))

    def _layers(self):
        return as_layers(self.layers_, self._n_hidden)

    def _start(self, data, components, reset):
        counts, (hidden, decoder), d = data.item_counts, self._sizes(), int(self.n_components)
        layers, directions, known = {}, None, 0 if reset else len(self.item_factors_)
        if reset:
            generator = np.random.default_rng([self._seed, 2])
            shapes = [*pairwise(hidden), (hidden[-1], 2 * d), *pairwise([d, *decoder])]
            dense = [draw_layer(generator, *shape) for shape in shapes]
            initializer, n = components.initializer, min(*hidden, d, *decoder)
            directions = self._directions(initializer, data.X, n, generator)
            for layer in dense if directions is not None else ():
                pass_on(layer, n, initializer.noise)
            self._n_hidden = len(hidden)
            dense = self.layers_ = [np.zeros((1, hidden[0]), dtype=np.float32), *dense]
            n_users = np.count_nonzero(np.diff(data.indptr))
            layers = {
                f"layer_{i}": (layer, np.full(len(layer), n_users)) for i, layer in enumerate(dense)
            }
        generator, counts = np.random.default_rng([self._seed, 1, known]), counts[known:]
        tables = {}
        widths = hidden[0], decoder[-1] if decoder else d
        for name, n, scale in zip(OF_ITEMS, widths, (_INPUT_SCALE, _ITEM_SCALE), strict=True):
            suited = components.initializer.with_defaults(scale=scale, base=Normal(scale))
            shape, of_items = (len(counts), n), directions and directions["item"]
            options = generator, counts, known, of_items
            tables[name] = draw_rows(suited.of_side("item"), shape, *options), counts
        # With biases only, the softmax draws items by popularity.
        rows, _ = tables["item_factors"]
        bias = np.log(np.maximum(counts, 0.5))
        tables["item_factors"] = np.column_stack([rows, bias]).astype(np.float32), counts
        self._add_rows(tables | layers, components, {"items": data.shape[1]}, reset)

    def _check_continues(self, known, components, mode):
        if mode != RESUMES:
            check_unchanged(self, "similarity", components.cosine == self._cosine, "that")
            same = self.activation == self._activation
            check_unchanged(self, "activation", same, repr(self._activation))
            self._check_layers()
        super()._check_continues(known, components, mode)

    def _check_layers(self):
        """Raise unless layers have the sizes that the parameters give."""
        hidden, decoder = self._sizes()
        outputs = [*hidden, 2 * int(self.n_components), *decoder]
        if outputs != [layer.shape[1] for layer in self.layers_] or len(hidden) != self._n_hidden:
            raise ValueError(
                "hidden_layer_sizes, n_components or decoder_layer_sizes differ from those of the "
                "model to continue; set them back, or fit a new model with warm_start=False."
            )

    def _keep_settings(self, components, known):
        self._cosine = components.cosine
        self._activation = self.activation

    def _make_trainer(self, components, interactions, known, score):
        if interactions is not known:
            # The encoder sees a user's whole history, and all other items are negatives.
            users = np.flatnonzero(np.diff(interactions.indptr))
            interactions = Interactions(known.rows(users))
        n_threads = count_threads(self.n_jobs)
        return VAETrainer(self, components, interactions, known, score, n_threads)

    # Vectors.

    def _check_vectors(self, learned):
        n_items = self.n_features_in_
        _, n_inputs = learned.array("input_factors_", (n_items, None))
        learned.array("_inverse_temperatures", (1, 2))
        learned.get("_cosine")
        activation = learned.get("_activation")
        learned.require(activation in list(ACTIVATIONS), "_activation", f"is {activation!r}")
        layers, n_hidden = learned.get("layers_"), learned.size("_n_hidden")
        fits = isinstance(layers, list) and len(layers) > n_hidden
        learned.require(fits, "layers_", f"is not a list of more than {n_hidden} arrays")
        learned.array("layers_[0]", (1, n_inputs), value=layers[0])
        for i, layer in enumerate(layers[1:], 1):
            _, n_inputs = learned.array(f"layers_[{i}]", (n_inputs + 1, None), value=layer)
            if i == n_hidden:
                # Means and log-variances.
                learned.require(n_inputs % 2 == 0, f"layers_[{i}]", "has an odd number of columns")
                n_inputs //= 2
        learned.array("item_factors_", (n_items, n_inputs + 1))

    @property
    def _unit_columns(self):
        return self.item_factors_.shape[1] - 1 if self._cosine else 0

    @property
    def _compared_columns(self):
        # The last column holds biases.
        return self.item_factors_.shape[1] - 1

    def _fold_in_rows(self, X):
        mean = self._embed_rows(X)
        queries = self._decode(mean)
        if self._cosine:
            queries = unit_rows(queries)
        # Users without history get the items in the order of their biases.
        queries = self._inverse_temperatures[0, 0] * mean.any(axis=1, keepdims=True) * queries
        return np.column_stack([queries, np.ones(len(queries), dtype=np.float32)])

    def _decode(self, mean):
        return decode(self._layers(), mean, self._activation)[0]

    # Users by their histories.

    def _mean(self, starts, items, values):
        """Return the means of the posteriors of histories, (n, n_components) float32."""
        n = len(starts) - 1
        layers = self._layers()
        values = scale_rows(starts, values)
        out = np.zeros((n, layers.posterior.shape[1] // 2), dtype=np.float32)
        table = as_kernel_input(self.input_factors_)
        n_threads = count_threads(self.n_jobs) if len(items) > 10_000 else 1
        with single_threaded_blas():
            for begin in range(0, n, _ROWS):
                end = min(begin + _ROWS, n)
                part = slice(starts[begin], starts[end])
                local = (starts[begin : end + 1] - starts[begin]).astype(np.int64)
                filled = np.flatnonzero(np.diff(local))
                if not len(filled):
                    continue
                bounds = np.append(local[filled], local[-1])
                inputs = unit_inputs(bounds, values[part].astype(np.float32))
                histories = Histories(bounds, np.ascontiguousarray(items[part]), inputs)
                pooled = backends.serve(self.device, "sum_histories", histories, table, n_threads)
                # Rows without items have no embedding: zeros.
                out[begin + filled] = encode(layers, pooled, self._activation).mean
        return out
