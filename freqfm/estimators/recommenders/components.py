"""The components of recommenders trained by gradients: found by name, checked against each other.

Defaults that depend on the data, or on other components, are chosen here.
"""

from numbers import Real
from typing import NamedTuple

import numpy as np

from freqfm._components import (
    is_named,
    nearest,
    refuse_names,
    replaced,
    resolve,
    set_by_user,
    validate_params,
)
from freqfm._messages import shown, warn_user
from freqfm.auxiliary import AUXILIARY_TERMS, AuxiliaryTerm
from freqfm.backbones import BACKBONES, Backbone
from freqfm.backends.support import check
from freqfm.formulas import codes
from freqfm.initializers import INITIALIZERS, Initializer
from freqfm.losses import RANKING_LOSSES, RankingLoss, VectorLoss
from freqfm.optimizers import CFSGD, FASGD, OPTIMIZERS, SGD, Optimizer, RowwiseAdagrad, WeightDecay
from freqfm.samplers import SAMPLERS, InBatch, Popularity, Sampler, Uniform
from freqfm.temperatures import (
    TEMPERATURES,
    AdapTau0,
    DensityTemperature,
    FixedTemperature,
    Temperature,
)

# Bounds of Adam's mean learning rate, see ``_adam_rate``: of vectors, and of an autoencoder.
_VECTOR_RATES, _LAYER_RATES = (3e-4, 1e-2), (2e-3, 1e-2)

# Mean distance that Adam's steps cover in a fit of an autoencoder; that of vectors is the loss's.
_LAYER_DISTANCE = 8.0

# Default learning rates of other optimizers of an autoencoder: layers are updated in every batch,
# by all of its users, so that training diverges at the rates of other models. On MovieLens-1M it
# also diverges at three times these rates, except with SGD.
_OTHER_LAYER_RATES = {CFSGD: 0.03, FASGD: 0.1, SGD: 0.1}

# Default standard deviation of normal initial values; the initializer's default suits FMs.
_NORMAL_SCALE = 0.1

# Batches that share negatives draw them by popularity to this power, and at most so many times the
# root of the number of items.
_EXPONENT, _NEGATIVES_PER_ROOT = 0.5, 8

# Default batches have at least this many positives.
_SMALLEST_BATCH = 32

# Of an autoencoder: largest number of items, and of pairs of users and items, for which a softmax
# over all items is cheap; default numbers of draws per query, and of MIDX codewords; default number
# of batches in an epoch, and bounds of their size in users.
_FULL_UP_TO, _FULL_PAIRS = 50_000, 2_000_000_000
_N_DRAWS, _N_CODEWORDS = 500, 64
_N_BATCHES, _FEWEST_USERS, _MOST_USERS = 32, 16, 256

# Steps of a default fit: with more of them, batches are larger, up to this size. Rows that a batch
# draws are then moved less often, and ranks are the same, see the guide.
_MOST_STEPS, _LARGEST_BATCH = 4000, 1024

# Default epochs of an autoencoder. For more users they fall in proportion to the root, down to a
# share; likewise those of a loss, from its ``shorter_from`` interactions on, and the rate of its
# optimizer as much. Chosen on validation data of made logs.
_EPOCHS_OF_LAYERS, _MANY_USERS = 24, 50_000
_LEAST_OF_LAYERS, _LEAST_OF_LOSS = 1 / 3, 0.5

# Parameters of its default temperature: an encoder has more to learn than vectors of users, so its
# scores become reliable later. Chosen on validation data of Gowalla, MovieLens-1M and 100K, and of
# six synthetic logs.
_SHRINKAGE, _POWER = 300_000, 0.25


class Components(NamedTuple):
    """The components that a fit combines; those without a default are of every recommender."""

    optimizer: Optimizer
    sampler: Sampler | None
    temperature: Temperature | None
    initializer: Initializer
    cosine: bool  #: whether the loss compares vectors at unit length
    n_negatives: int
    batch_size: int
    weight_decay: WeightDecay
    max_iter: int
    #: number of steps over which the learning rate falls linearly; None keeps it constant
    n_falling_steps: int | None
    device: str
    kl_weight: float = 0.0  #: of an autoencoder, after the warm-up
    #: The others are of matrix factorization.
    loss: RankingLoss | None = None
    backbone: Backbone | None = None
    rank_by_cosine: bool = False  #: whether rankings compare vectors at unit length
    #: whether popular items are negatives more often, and their scores are not corrected for it
    relative_to_popularity: bool = False
    include_positive: bool = False  #: whether a positive is part of the sum of its softmax
    margins: bool = False  #: whether a margin is learned for each user and item
    block: int | None = None  #: positives of a user that stay together in an epoch; None for all
    user_dropout: float = 0.0
    auxiliary: tuple = ()  #: the auxiliary terms

    @property
    def full(self):
        """Whether all items are negatives, and nothing is sampled."""
        return self.sampler.negatives_code == codes.NEGATIVES_FULL


class FoldIn(NamedTuple):
    """The parts of the loss that a fit stores, to fold in users."""

    against: str  #: the vectors that a user is pushed away from: "items" or "users"
    others: np.ndarray  #: their indices, (m,)
    pairwise: bool  #: whether each of the user's items is compared with each other one in pairs
    cosine: bool  #: whether the loss compares vectors at unit length
    inverse_temperatures: tuple | None  #: of the user's items and of others; None for the model's
    constant: float  #: weight of the logarithm over the others

    @classmethod
    def of(cls, components, history, shape, generator):
        """Return the values to store.

        Parameters
        ----------
        components : Components
            Of the fit.
        history : InteractionHistory
            Of all users.
        shape : tuple
            Numbers of users with interactions, of items and of training interactions.
        generator : numpy.random.Generator
            Chooses the others if there are too many.
        """
        loss = components.loss
        others = np.arange(shape[1])
        if loss.fold_in_against == "users":
            others = np.flatnonzero(history.counts)
        elif components.relative_to_popularity and history.n_interactions:
            others = np.sort(generator.choice(history.indices, loss.n_fold_in))
        if len(others) > loss.n_fold_in:
            others = np.sort(generator.choice(others, loss.n_fold_in, replace=False))
        return cls(
            against=loss.fold_in_against,
            others=others,
            pairwise=loss.fold_in_pairwise,
            cosine=components.cosine,
            inverse_temperatures=loss.fold_in_inverse_temperatures,
            constant=loss.constants(*shape).get(loss._fold_in_constant, 1.0),
        )

    def check(self, learned, n_users, n_items):
        """Raise unless others are users or items of the model."""
        known = {"users": n_users, "items": n_items}
        learned.require(self.against in known, "_fold_in.against", f"is {self.against!r}")
        pair = self.inverse_temperatures
        fits = pair is None or [*map(type, pair)] == [float, float]
        learned.require(fits, "_fold_in.inverse_temperatures", f"is {pair!r}")
        (n_others,) = learned.array("_fold_in.others", (None,), "iu", value=self.others)
        learned.require(n_others > 0, "_fold_in.others", "is empty")
        learned.indices("_fold_in.others", self.others, known[self.against])


def mf_components(model, n_pairs, shape, n_known):
    """Return the components that the parameters of an MFRecommender name.

    Parameters
    ----------
    model : MFRecommender
    n_pairs : int
        Number of positives to train on: small data get small batches.
    shape : tuple of int
        Users and items of the model.
    n_known : int
        Number of positives that the model knows if it is trained further, at least ``n_pairs``; it
        determines Adam's rate.

    Raises
    ------
    ValueError
        If a name is unknown, or if two of them do not fit together.
    TypeError
        If a value is neither a name nor a component.
    """
    loss = resolve("loss", model.loss, RankingLoss, RANKING_LOSSES)._for_data(*shape, n_known)
    backbone = resolve("backbone", model.backbone, Backbone, BACKBONES)
    if backbone._has_context and loss.margins:
        check("context", "MAWU with margins", given=f"loss={model.loss!r}")
    cosine = _similarity(model, loss) == "cosine"
    temperature = _temperature(model, loss, cosine)
    initializer = _initializer(model)
    stretch = _stretch(initializer, shape, int(model.n_components), n_known) if cosine else 1.0
    sampler = _sampler(model, loss)
    n_negatives = model.n_negatives
    if n_negatives is None:
        of_sampler = None
        if loss.weights_negatives:
            of_sampler = sampler.n_negatives
        elif getattr(sampler, "weighted", False):
            of_sampler = max(sampler.n_negatives_of_pairs, loss.n_negatives)
        n_negatives = of_sampler or _default_negatives(loss, shape[1])
    elif loss.n_negatives is None:
        raise ValueError(
            f"n_negatives={n_negatives} is not used: loss={model.loss!r} draws no negatives; leave "
            f"it at None."
        )
    relative = isinstance(sampler, InBatch) and not sampler.corrected
    usual = is_named(model.optimizer, "auto") and backbone.is_linear
    share = _share_of_epochs(n_known, loss.shorter_from, _LEAST_OF_LOSS) if usual else 1.0
    optimizer, n_falling_steps = _vector_optimizer(
        model, loss, backbone, n_pairs, n_known, stretch, share
    )
    density = n_known / (shape[0] * shape[1])
    return Components(
        loss=loss,
        backbone=backbone,
        optimizer=optimizer,
        sampler=sampler,
        temperature=temperature,
        initializer=initializer,
        cosine=cosine,
        rank_by_cosine=_rank_by_cosine(model, loss, cosine, initializer, relative),
        relative_to_popularity=relative,
        include_positive=_include_positive(loss, sampler, temperature),
        margins=loss.margins,
        n_negatives=int(n_negatives),
        batch_size=_batch_size(model, loss, backbone, n_pairs),
        block=loss.block,
        user_dropout=_user_dropout(model, loss, n_known),
        weight_decay=_weight_decay(model, loss, backbone, cosine, density),
        max_iter=int(model.max_iter or round(share * loss.max_iter)),
        n_falling_steps=n_falling_steps,
        auxiliary=resolve_terms(model, loss, backbone),
        device=model.device,
    )


def _share_of_epochs(n, many, least):
    """Return the share of the usual epochs that a fit of ``n`` interactions or users has."""
    return min(1.0, max(least, (many / max(n, 1)) ** 0.5))


def _include_positive(loss, sampler, temperature):
    """Return whether a positive is part of the sum of its softmax."""
    of_items = codes.NEGATIVES_IN_BATCH, codes.NEGATIVES_FULL
    if sampler is not None and sampler.negatives_code in of_items:
        # It is part of the sum already, as an item.
        return False
    given = loss.include_positive
    return temperature is not None and temperature.include_positive if given == "auto" else given


def _resolved_optimizer(value, learning_rate, adam_rate, other_rates, **defaults):
    """Return an optimizer, and the number of steps over which its rate falls, or None.

    Parameters
    ----------
    value : str or Optimizer
    learning_rate : float or None
        Unless the optimizer has its own.
    adam_rate : tuple
        The arguments of ``_adam_rate``.
    other_rates : dict of type to float
        Default rates by class of the optimizer.
    **defaults
        Of other parameters.
    """
    given = "learning_rate", "learning_rate", learning_rate
    optimizer = resolve("optimizer", value, Optimizer, OPTIMIZERS, [given])
    if getattr(optimizer, "counts", None) is not None:
        raise ValueError(
            f"counts of {type(optimizer).__name__} are those of the columns of one table, but a "
            f"recommender has users and items, which it counts itself; leave counts at None."
        )
    rate, n_falling_steps = nearest(optimizer, other_rates), None
    if optimizer.step_code == codes.STEP_ADAM and optimizer.learning_rate is None:
        rate, n_falling_steps = _adam_rate(*adam_rate)
    return optimizer.with_defaults(learning_rate=rate, **defaults), n_falling_steps


def _adam_rate(distance, bounds, n_steps, n_falling_steps):
    """Return Adam's learning rate, and the number of steps over which it falls, or None.

    A step of Adam moves a weight by about its rate. What matters is how far weights can move over
    all steps of a fit: small data mean few steps, which need to be larger. A falling rate starts at
    twice the mean, so that the last steps are small; in training that goes on, which may come after
    any number of steps, it is the mean.
    """
    mean = float(np.clip(distance / n_steps, *bounds))
    return mean if n_falling_steps is None else 2 * mean, n_falling_steps


def _vector_optimizer(model, loss, backbone, n_pairs, n_known, stretch, share):
    """Return the optimizer of vectors, and the number of steps over which its rate falls, or None.

    A step of Adam turns a vector by an angle of about the rate divided by its length, so longer
    initial vectors need larger steps.
    """
    value, given_rate = model.optimizer, model.learning_rate
    if is_named(value, "auto"):
        value = loss.optimizer
        given_rate = loss.learning_rate if given_rate is None else given_rate
    n_batches = -(-n_known // _batch_size(model, loss, backbone, n_known))
    n_steps = round(share * loss.max_iter) * n_batches
    falls = loss.rate_falls and n_known <= n_pairs
    n_falling_steps = max(int(model.max_iter or 0) * n_batches, n_steps) if falls else None
    adam_rate = loss.path_length * stretch, _VECTOR_RATES, n_steps, n_falling_steps
    shorter = model.max_iter is None and share < 1
    rates = {RowwiseAdagrad: share * RowwiseAdagrad().value_of("learning_rate")}
    found = _resolved_optimizer(value, given_rate, adam_rate, rates if shorter else {})
    if backbone._needs_adaptive_steps and found[0].step_code == codes.STEP_SGD:
        warn_user(
            f"The layers of backbone={model.backbone!r} hardly learn with "
            f"optimizer={model.optimizer!r}, whose steps are in proportion to the gradients; set "
            f"optimizer='adam' or 'adagrad'."
        )
    return found


def _user_dropout(model, loss, n_known):
    if model.user_dropout is not None:
        return model.user_dropout
    return loss.user_dropout if n_known < loss.no_dropout_from else 0.0


def _weight_decay(model, loss, backbone, cosine, density):
    """Return the weight decay.

    Without it, lengths of vectors, which cosines ignore, would grow as far as the training data are
    fitted better. Dense data, with few users or items in many positives each, need more of it.
    """
    decay = WeightDecay.of(model.weight_decay)
    if decay.value is not None:
        return decay
    # Decay would shrink the layers of other backbones to zero.
    decays = backbone.is_linear and not cosine
    value = loss.decay_by_root_density * min(density, 1.0) ** 0.5 if decays else 0.0
    return replaced(decay, {"value": value})


def _rank_by_cosine(model, loss, cosine, initializer, relative):
    ranking = similarities(model)[1]
    if ranking != "auto":
        return ranking == "cosine"
    return not relative and cosine and loss.ranking == "cosine" and not initializer.lengths_matter


def _batch_size(model, loss, backbone, n_pairs):
    if model.batch_size is not None:
        return int(model.batch_size)
    largest = loss.batch_size
    # Losses without negatives compare all pairs of a batch; their time grows with its square.
    if backbone.batch_size is not None and loss.n_negatives is not None:
        largest = backbone.batch_size
    return min(max(n_pairs // backbone.n_batches, _SMALLEST_BATCH), largest)


def _default_negatives(loss, n_items):
    """Return the loss's number of negatives; fewer of few items if a batch shares them."""
    if not loss.weights_negatives:
        return loss.n_negatives or 0
    return min(loss.n_negatives, int(np.ceil(_NEGATIVES_PER_ROOT * np.sqrt(n_items))))


def _initializer(model):
    value = "spectral" if is_named(model.init, "auto") else model.init
    initializer = resolve("init", value, Initializer, INITIALIZERS)
    return initializer.with_defaults(scale=_NORMAL_SCALE)


def _stretch(initializer, shape, n_components, n_pairs):
    """Return the geometric mean of the factors of the initial lengths of users and items."""
    stretches = [
        initializer.of_side(side).stretch((n, n_components), n_pairs)
        for side, n in zip(("user", "item"), shape, strict=True)
    ]
    return float(np.sqrt(np.prod(stretches)))


def _similarity(model, loss):
    value = similarities(model)[0]
    if value == "auto":
        return loss.similarity
    if loss.cosine_only and value == "dot":
        raise ValueError(
            f"loss={model.loss!r} is defined on unit vectors; similarity must be 'cosine' or "
            f"'auto'."
        )
    return value


def _resolved_temperature(value, cosine):
    """Return the strategy for a number, a name or an instance."""
    if isinstance(value, Real) and not isinstance(value, bool):
        temperature = FixedTemperature(float(value))
        validate_params(temperature)
        return temperature
    temperature = resolve("temperature", value, Temperature, TEMPERATURES)
    if temperature.cosine_only and not cosine:
        raise ValueError(
            f"temperature={value!r} is derived for cosines; set similarity='cosine', or give a "
            f"number."
        )
    return temperature


def _temperature(model, loss, cosine):
    value = model.temperature
    if not loss.has_temperature:
        if value is not None:
            raise ValueError(
                f"loss={model.loss!r} has no temperature; temperature must be None, got {value!r}."
            )
        return None
    if value is None:
        value = loss.temperature if cosine else 1.0
    if not loss.adapts_temperature:
        # First, since cosines would not help.
        temperature = _resolved_temperature(value, cosine=True)
        is_derived = isinstance(temperature, AdapTau0)
        if is_derived or temperature.statistics_wanted:
            how = "belongs to" if is_derived else "is learned from"
            raise ValueError(
                f"temperature={value!r} {how} a softmax; with loss={model.loss!r} give a number."
            )
    return _resolved_temperature(value, cosine)


def default_sampler(weights_negatives):
    """Return the sampler "auto" of losses that correct for probabilities of draws, or of others."""
    return Popularity(_EXPONENT) if weights_negatives else Uniform()


def _sampler(model, loss):
    value = model.negative_sampler
    if loss.n_negatives is None:
        if value not in ("auto", None):
            raise ValueError(
                f"loss={model.loss!r} draws no negatives; negative_sampler must be 'auto' or None, "
                f"got {value!r}."
            )
        return None
    if is_named(value, "auto"):
        return default_sampler(loss.weights_negatives)
    sampler = _resolved_sampler(value)
    if not loss.weights_negatives and not _fits_pairs(sampler, loss):
        fitting = [name for name, make in SAMPLERS.items() if _fits_pairs(make(), loss)]
        raise ValueError(
            f"loss={model.loss!r} draws negatives for each positive and does not correct for their "
            f"probabilities; negative_sampler must be one of {', '.join(map(repr, fitting))}, or a "
            f"class derived from Uniform; got {value!r}."
        )
    if model.n_negatives is not None and (
        isinstance(sampler, InBatch) or sampler.negatives_code == codes.NEGATIVES_FULL
    ):
        raise ValueError(
            f"n_negatives={model.n_negatives} is not used with negative_sampler={value!r}, which "
            f"takes all items; leave it at None."
        )
    return sampler


def _fits_pairs(sampler, loss):
    """Return whether a sampler draws negatives that a loss of pairs takes as they are.

    Or with weights, if the loss is a mean over negatives.
    """
    if sampler.negatives_code == codes.NEGATIVES_DRAWN:
        if isinstance(loss, VectorLoss):
            return False
        weighted = getattr(sampler, "weighted", False) and loss.averages_negatives
        return weighted or not getattr(sampler, "corrected", True)
    return isinstance(sampler, Uniform)


def _resolved_sampler(value, **defaults):
    """Return a sampler; raise if a custom one defines ``draw`` where it would not be called."""
    axis = "negative_sampler"
    sampler = resolve(axis, value, Sampler, SAMPLERS).with_defaults(**defaults)
    if sampler.negatives_code not in range(codes.NEGATIVES_DRAWN + 1):
        raise TypeError(
            f"{axis} is a {type(sampler).__name__} whose "
            f"negatives_code={sampler.negatives_code!r} is none of those in freqfm.formulas.codes."
        )
    if sampler.negatives_code not in (codes.NEGATIVES_SHARED, codes.NEGATIVES_SEPARATE):
        refuse_names(axis, sampler, ["draw"], "negatives of this kind are drawn by compiled code")
    return sampler


# Autoencoders.


def vae_components(model, n_users, n_items, goes_on):
    """Return the components that the parameters of a FastVAERecommender name.

    Parameters
    ----------
    model : FastVAERecommender
    n_users : int
        Number of users with interactions, in this call or an earlier one if there were more: steps
        keep the size and number that they had then, so that a few new users do not change the
        model much.
    n_items : int
    goes_on : bool
        Whether this call continues training on a part of the data.

    Raises
    ------
    ValueError
        If a name is unknown, or if two of them do not fit together.
    TypeError
        If a value is neither a name nor a component.
    """
    usual = round(_share_of_epochs(n_users, _MANY_USERS, _LEAST_OF_LAYERS) * _EPOCHS_OF_LAYERS)
    batch_size, n_epochs = model.batch_size, int(model.max_iter or usual)
    if batch_size is None:
        batch_size = np.clip(n_users // _N_BATCHES, _FEWEST_USERS, _MOST_USERS)
        batch_size = max(batch_size, min(n_users * usual // _MOST_STEPS, _LARGEST_BATCH))
    sampler = _item_sampler(model, n_users, n_items)
    full = sampler.negatives_code == codes.NEGATIVES_FULL
    if full and model.n_negatives is not None:
        raise ValueError(
            f"n_negatives={model.n_negatives} is not used with "
            f"negative_sampler={model.negative_sampler!r}, which takes all {n_items} items; leave "
            f"it at None, or name a sampler that draws, such as 'midx_uniform'."
        )
    n_steps = n_epochs * -(-n_users // int(batch_size))
    adam_rate = _LAYER_DISTANCE, _LAYER_RATES, n_steps, None if goes_on else n_steps
    given, decay = (model.optimizer, model.learning_rate), WeightDecay.of(model.weight_decay)
    # An item that is drawn occasionally has small gradients of either sign. Only moments that decay
    # in between keep Adam from taking a full step each time.
    found = _resolved_optimizer(*given, adam_rate, _OTHER_LAYER_RATES, lazy=full)
    optimizer, n_falling_steps = found
    return Components(
        optimizer=optimizer,
        sampler=sampler,
        temperature=_shared_temperature(model),
        initializer=resolve("init", model.init, Initializer, INITIALIZERS),
        cosine=model.similarity == "cosine",
        n_negatives=int(model.n_negatives or _N_DRAWS),
        batch_size=int(batch_size),
        weight_decay=replaced(decay, {"value": float(decay.value or 0)}),
        max_iter=n_epochs,
        n_falling_steps=n_falling_steps,
        device=model.device,
        kl_weight=0.0 if model.kl_weight == "reference" else float(model.kl_weight),
    )


def _item_sampler(model, n_users, n_items):
    wanted = model.negative_sampler
    if is_named(wanted, "auto"):
        cheap = n_items <= _FULL_UP_TO and n_users * n_items <= _FULL_PAIRS
        wanted = "full" if cheap else "midx_uniform"
    sampler = _resolved_sampler(wanted, n_codewords=_N_CODEWORDS)
    if isinstance(sampler, InBatch):
        raise ValueError(
            f"negative_sampler={model.negative_sampler!r} is not supported here, where a batch "
            f"holds users; choose 'full', 'midx_popularity' or another that draws items."
        )
    return sampler


def _shared_temperature(model):
    cosine, value = model.similarity == "cosine", model.temperature
    if value is None:
        value = DensityTemperature(shrinkage=_SHRINKAGE, power=_POWER) if cosine else 1.0
    temperature = _resolved_temperature(value, cosine)
    if temperature.per_user:
        raise ValueError(
            f"temperature={value!r} gives every user a temperature, but this model stores nothing "
            f"per user; choose 'density', 'adap_tau0', 'learned' or a number."
        )
    return temperature


def resolve_terms(model, loss, backbone):
    """Return the terms that the parameter ``auxiliary`` names, and a loss in NumPy, as a tuple.

    Raises
    ------
    ValueError
        If a name is unknown, or if terms cannot be used with the loss or the backbone.
    TypeError
        If a value is neither a name nor a term.
    """
    values = model.auxiliary if isinstance(model.auxiliary, (list, tuple)) else [model.auxiliary]
    values = [] if model.auxiliary is None else values
    terms = tuple(resolve("auxiliary", of, AuxiliaryTerm, AUXILIARY_TERMS) for of in values)
    given, otherwise = f"auxiliary={shown(model.auxiliary)}", "leave auxiliary at None"
    if isinstance(loss, VectorLoss):
        _check_loss(model, loss)
        terms = (loss, *terms)
        given, otherwise = f"loss={shown(model.loss)}", "choose another loss"
    if terms and backbone._has_context:
        words = {"backbone": f"backbone={type(backbone).__name__}", "advice": otherwise}
        check("context", "auxiliary terms", given=given, **words)
    if terms and backbone._changes_by_epoch and not backbone.is_linear:
        raise ValueError(
            f"{given} needs the gradients of each batch, and the backbone "
            f"propagates once in an epoch; set "
            f"backbone={type(backbone).__name__}(propagate='batch')."
        )
    for term in terms:
        # A user's backbone may propagate as well.
        propagates = backbone._propagates or "bind" in set_by_user(backbone)
        if term.needs_graph and (backbone.is_linear or not propagates):
            raise ValueError(
                f"{given} needs a backbone that propagates along interactions; "
                f"set backbone=LightGCN(propagate='batch'), got {type(backbone).__name__}."
            )
        term.check_backbone(backbone)
    return terms


def similarities(model):
    """Return the similarities that a model is given for the loss, and for rankings."""
    given = model.similarity
    pair = (given, "auto") if isinstance(given, str) else given
    if len(pair) != 2 or any(name not in ("auto", "cosine", "dot") for name in pair):
        raise ValueError(
            f"similarity={shown(given)} must be 'auto', 'cosine' or 'dot', or a pair of these: of "
            f"the loss, and of rankings."
        )
    return tuple(pair)


def _check_loss(model, loss):
    """Raise unless the parameters of a model fit a loss in NumPy, which reads whole vectors."""
    similarity, ranking = similarities(model)
    differs = similarity not in ("auto", loss.similarity)
    refused = {
        "similarity": differs or (loss.n_parts > 0 and ranking == "cosine"),
        "user_dropout": bool(model.user_dropout),
        "auxiliary": loss.n_parts > 0 and model.auxiliary is not None,
        "n_components": loss.n_parts >= int(model.n_components),
    }
    for name in filter(refused.get, refused):
        parts = f", of which the last {loss.n_parts} are no coordinates" if loss.n_parts else ""
        advice = "set more" if name == "n_components" else "leave it at its default"
        raise ValueError(
            f"{name}={shown(getattr(model, name))} cannot be used with loss={shown(model.loss)}, a "
            f"function of the numbers of vectors{parts}; {advice}."
        )
