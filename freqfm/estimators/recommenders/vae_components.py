"""The components of a variational autoencoder: found by name, checked against each other."""

from typing import NamedTuple

import numpy as np

from freqfm._components import is_named, nearest, resolve
from freqfm.estimators.recommenders.mf_components import (
    refuse_counts,
    refuse_ignored_draws,
    resolve_temperature,
)
from freqfm.formulas import codes
from freqfm.initializers import INITIALIZERS, Initializer
from freqfm.optimizers import CFSGD, FASGD, OPTIMIZERS, SGD, Optimizer
from freqfm.samplers import MIDX, SAMPLERS, InBatch, Sampler
from freqfm.temperatures import DensityTemperature, Temperature

# Largest number of items for which a softmax over all of them is cheap.
_FULL_UP_TO = 50_000

# Default numbers of draws per query, and of MIDX codewords.
_N_NEGATIVES, _N_CODEWORDS = 500, 64

# Default number of batches in an epoch, and bounds of their size in users.
_BATCHES, _SMALLEST_BATCH, _LARGEST_BATCH = 32, 16, 256

# Default distance that Adam's steps cover in a fit at its first rate, and bounds of that rate:
# small data mean few steps, which need to be larger.
_TRAVEL, _SLOWEST, _FASTEST = 16.0, 4e-3, 2e-2

# Default learning rates of other optimizers: layers are updated in every batch, by all of its
# users, so that training diverges at the rates of other models. On MovieLens-1M it also diverges at
# three times these rates, except with SGD.
_RATES = {CFSGD: 0.03, FASGD: 0.1, SGD: 0.1}

# Parameters of the default temperature: an encoder has more to learn than vectors of users, so its
# scores become reliable later. Chosen on validation data of Gowalla, MovieLens-1M and 100K, and of
# six synthetic logs.
_SHRINKAGE, _POWER = 300_000, 0.25


class Components(NamedTuple):
    """The components of a fit."""

    initializer: Initializer
    optimizer: Optimizer
    sampler: Sampler
    temperature: Temperature
    cosine: bool
    n_negatives: int
    batch_size: int
    kl_weight: float
    weight_decay: float
    weight_decay_scope: str
    max_iter: int
    #: number of steps over which the learning rate falls linearly; None keeps it constant
    n_falling_steps: int | None

    @property
    def full(self):
        """Whether nothing is sampled."""
        return self.sampler.negatives_code == codes.NEGATIVES_FULL


def resolve_components(model, n_users, n_items, goes_on):
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
    batch_size = model.batch_size
    if batch_size is None:
        batch_size = np.clip(n_users // _BATCHES, _SMALLEST_BATCH, _LARGEST_BATCH)
    sampler = _sampler(model, n_items)
    full = sampler.negatives_code == codes.NEGATIVES_FULL
    if full and model.n_negatives is not None:
        raise ValueError(
            f"n_negatives={model.n_negatives} is not used with "
            f"negative_sampler={model.negative_sampler!r}, which takes all {n_items} items; leave "
            f"it at None, or name a sampler that draws, such as 'midx_uniform'."
        )
    optimizer, n_falling_steps = _optimizer(model, -(-n_users // int(batch_size)), full, goes_on)
    return Components(
        initializer=resolve("init", model.init, Initializer, INITIALIZERS),
        optimizer=optimizer,
        sampler=sampler,
        temperature=_temperature(model),
        cosine=model.similarity == "cosine",
        n_negatives=int(model.n_negatives or _N_NEGATIVES),
        batch_size=int(batch_size),
        kl_weight=0.0 if model.kl_weight == "reference" else float(model.kl_weight),
        weight_decay=float(model.weight_decay),
        weight_decay_scope=model.weight_decay_scope,
        max_iter=int(model.max_iter),
        n_falling_steps=n_falling_steps,
    )


def _default_rate(model, n_batches, goes_on):
    """Return Adam's learning rate, and the number of steps over which it falls.

    Training that goes on may come after any number of steps: there it is the mean.
    """
    n_steps = int(model.max_iter) * n_batches
    rate = float(np.clip(_TRAVEL / n_steps, _SLOWEST, _FASTEST))
    return (rate / 2, None) if goes_on else (rate, n_steps)


def _optimizer(model, n_batches, full, goes_on):
    """Return the optimizer, and the number of steps over which its rate falls, or None."""
    given = "learning_rate", "learning_rate", model.learning_rate
    optimizer = resolve("optimizer", model.optimizer, Optimizer, OPTIMIZERS, [given])
    refuse_counts(optimizer)
    rate, n_falling_steps = nearest(optimizer, _RATES), None
    if optimizer.step_code == codes.STEP_ADAM and optimizer.learning_rate is None:
        rate, n_falling_steps = _default_rate(model, n_batches, goes_on)
    # An item that is drawn occasionally has small gradients of either sign. Only moments that decay
    # in between keep Adam from taking a full step each time.
    return optimizer.with_defaults(learning_rate=rate, lazy=full), n_falling_steps


def _sampler(model, n_items):
    wanted = model.negative_sampler
    if is_named(wanted, "auto"):
        wanted = "full" if n_items <= _FULL_UP_TO else "midx_uniform"
    midx = isinstance(wanted, MIDX) or (isinstance(wanted, str) and wanted.startswith("midx"))
    given = "n_codewords", "n_codewords", model.n_codewords if midx else None
    sampler = resolve("negative_sampler", wanted, Sampler, SAMPLERS, [given])
    sampler = sampler.with_defaults(n_codewords=_N_CODEWORDS)
    refuse_ignored_draws(sampler)
    if isinstance(sampler, InBatch):
        raise ValueError(
            f"negative_sampler={model.negative_sampler!r} is not supported here, where a batch "
            f"holds users; choose 'full', 'midx_popularity' or another that draws items."
        )
    if model.n_codewords is not None and not isinstance(sampler, MIDX):
        raise ValueError(
            f"n_codewords={model.n_codewords} belongs to MIDX samplers; with "
            f"negative_sampler={model.negative_sampler!r} leave it at None."
        )
    return sampler


def _temperature(model):
    cosine, value = model.similarity == "cosine", model.temperature
    if value is None:
        value = DensityTemperature(shrinkage=_SHRINKAGE, power=_POWER) if cosine else 1.0
    temperature = resolve_temperature(value, cosine)
    if temperature.per_user:
        raise ValueError(
            f"temperature={value!r} gives every user a temperature, but this model stores nothing "
            f"per user; choose 'density', 'adap_tau0', 'learned' or a number."
        )
    return temperature
