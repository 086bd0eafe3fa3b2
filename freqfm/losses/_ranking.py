"""Losses of recommenders: scores of a user's items compared with those of other items."""

import functools
import math
from abc import abstractmethod
from numbers import Real

import numpy as np
from numba import njit
from scipy import sparse
from scipy.special import expit

from freqfm._components import NON_NEGATIVE, POSITIVE, POSITIVE_INTEGER, Component
from freqfm._numba.jit import python_function
from freqfm._sklearn import Interval, StrOptions
from freqfm.formulas.losses import (
    ends_draws,
    is_violation,
    log_loss,
    log_of_rank,
    log_surrogate,
    pair_loss,
    pairwise_replacements,
    share_of_top,
    weight_of_draw,
    weight_of_positive,
)
from freqfm.formulas.special import arctangent, exp_of_minus, log_of, log_of_one_plus

# Divisor of the log-odds of a pair being positive in BSL's constant: fitted to the constants that
# were best on validation data of Gowalla and MovieLens-1M.
_DENSITY_SCALE = 30

_LOG_2 = np.float32(math.log(2))

# SL@K's temperature of weights times those log-odds. Below half of it, models may learn nothing.
_WEIGHT_SCALE = 13

# CCL's weight is this power of the odds of a pair not being positive: near the best on Gowalla,
# MovieLens and parts of these with 10 to 3,000 items. It is one of a few values, as a formula is
# compiled for each.
_ODDS_POWER = 0.7
_CCL_WEIGHTS = np.array([1, 1.5, 2, 3, 5, 7, 10, 15, 20, 30, 50, 70, 100, 150, 200, 300])

# Surrogates are positive, so that they have a logarithm.
_SMALLEST = np.float32(1e-6)


class RankingLoss(Component):
    """Base class of losses of recommenders.

    A subclass defines which kernel computes it and what it requires of the other components.
    """

    _compiled = True
    _fixed = (
        "family",
        "constants",
        "cosine_only",
        "weights_negatives",
        "adapts_temperature",
        "fold_in_against",
        "fold_in_pairwise",
        "fold_in_inverse_temperatures",
    )
    #: Of a ``VectorLoss``: how many of the last components of a vector are biases.
    n_parts = 0

    #: Name under which backends find the kernel, for instance "softmax".
    family: str
    #: How scores are compared and ranked unless the estimator specifies it: by "cosine" or "dot".
    #: Models that are trained with dot products also rank by dot products.
    similarity = "cosine"
    ranking = "cosine"
    #: Whether scores are divided by a temperature.
    has_temperature = True
    #: Whether a positive is part of the sum of its softmax.
    include_positive: bool | str = False
    #: Whether a margin is learned for each user and item.
    margins = False
    #: Number of negatives; None if the loss draws none.
    n_negatives: int | None = None
    #: How many positives of one user stay together when an epoch is shuffled; None for all.
    block: int | None = None
    #: Batch size, in positives.
    batch_size = 1024
    #: Number of epochs.
    max_iter = 50
    #: Name of the optimizer, and its learning rate; None for its default.
    optimizer = "adam"
    learning_rate: float | None = None
    #: A positive of an item that n users have has the weight n / (n + shrinkage): the vector of an
    #: item with few users is largely determined by these users, with whom it is compared.
    shrinkage = 0.0
    #: Bound of the length of the path of a weight in a fit by Adam; determines its learning rate.
    path_length = 24.0
    #: Whether Adam's default learning rate falls during a fit.
    rate_falls = False
    #: Dropout rate of users' vectors, and the number of interactions from which it is 0.
    user_dropout = 0.0
    no_dropout_from = math.inf
    #: Of more interactions than this, a fit has fewer epochs by default.
    shorter_from = math.inf
    #: Default weight decay in batches, for dot products of a user's and an item's own vectors: it
    #: is multiplied by the root of the density of the data.
    decay_by_root_density = 0.0
    #: Whether the loss is defined only for unit vectors.
    cosine_only = False
    #: Whether negatives are weighted by the inverse of their probability: then any sampler can be
    #: used, with its default number of negatives.
    weights_negatives = False
    #: Whether a loss of pairs is a mean over a positive's negatives, which may have weights.
    averages_negatives = True
    #: Whether temperatures can be derived or learned from a softmax over the negatives.
    adapts_temperature = False
    #: The default temperature for cosines.
    temperature: str | float = 1.0
    #: How a new user is folded in: against other "items" or "users", and at most how many;
    fold_in_against = "items"
    n_fold_in = 1024
    #: whether the user's items are compared with each of them in pairs, or with all in a softmax;
    fold_in_pairwise = False
    #: and the inverse temperatures of the user's items and of the others; None for the model's.
    fold_in_inverse_temperatures: tuple | None = None
    # Which of the constants is the weight of the logarithm over others there; None for 1.
    _fold_in_constant: str | None = None
    #: Positives are weighted by how far they are above the score of the user's item of this rank,
    #: which is computed in every ``refresh``-th epoch; None for no such weights.
    k: int | None = None
    refresh = 1
    #: A remedy if training diverges, besides a smaller learning rate.
    divergence_hint = "a warmer temperature"

    def constants(self, n_users, n_items, n_positives):
        """Return the numbers that the kernels need, for data of a given shape."""
        return {}

    def _for_data(self, n_users, n_items, n_positives):
        """Return the loss with values for parameters that are None, for data of a given shape."""
        return self

    def replacements(self):
        """Return the formulas to replace in kernels, see ``freqfm._numba.jit.specialised``."""
        return {}


def _log_odds(n_users, n_items, n_positives):
    """Return log(n_users * n_items / (2 n_positives)), at least 0: how sparse the data are."""
    return math.log(max(1.0, n_users * n_items / (2 * max(n_positives, 1))))


class Softmax(RankingLoss):
    """Softmax loss: the cross-entropy of the user's items among all others.

    For scores s and inverse temperature w, a positive p contributes ::

        -w s_p + log(exp(w s_p) + sum_j exp(w s_j))

    with j over the negatives [1]_. For negatives that are not drawn uniformly, the log of their
    relative probability is subtracted from the logit, so that the sum estimates that of all items.

    A positive of an item that n users have has the weight n / (n + 1): the vector of an item with
    few users is largely determined by these users, so its score for each of them says little.
    The attribute ``shrinkage`` of a subclass replaces the 1; 0 leaves all weights as they are.

    Parameters
    ----------
    include_positive : bool or "auto", default="auto"
        Whether the positive itself is part of the sum. "auto" leaves the choice to the temperature
        strategy (the authors' code of Adap-tau excludes it, their paper includes it); other
        strategies exclude it: at the temperatures of recommenders a positive that is already ranked
        well would lose its gradient. If all items, or those of the batch, are negatives, the sum
        contains it anyway.

    References
    ----------
    .. [1] J. Chen, J. Wu, J. Wu, S. Zhou, X. Cao, X. He. "Adap-tau: Adaptively Modulating Embedding
       Magnitude for Recommendation". WWW 2023, equations (1) and (2).

    Examples
    --------
    >>> from freqfm.losses import Softmax
    >>> Softmax(include_positive=True)
    Softmax(include_positive=True)
    """

    family = "softmax"
    n_negatives = 768
    weights_negatives = True
    adapts_temperature = True
    temperature = "adap_tau0"
    block = 16
    shrinkage = 1.0
    rate_falls = True
    user_dropout = 0.1
    _fold_in_constant = "constant"
    _parameter_constraints = {"include_positive": ["boolean", StrOptions({"auto"})]}

    def __init__(self, *, include_positive: bool | str = "auto"):
        self.include_positive = include_positive

    def factor(self, n_users, n_items, n_positives):
        """Return the weight of the logarithm over negatives, for data of a given shape."""
        return 1.0

    def constants(self, n_users, n_items, n_positives):
        """Return the numbers that kernels need, see :class:`RankingLoss`."""
        return {
            "constant": float(self.factor(n_users, n_items, n_positives)),
            "top_temperature": 1.0,
            # Of each user, with or without interactions: the trainer's array.
            "thresholds": None,
        }


class BSL(Softmax):
    """Bilateral softmax loss: negatives have more weight than positives.

    The default of :class:`~freqfm.MFRecommender`. A positive contributes
    ``-w s_p + constant * log sum_j exp(w s_j)``. With one positive per row the positive side of
    [1]_ is the identity, and the constant is the ratio of its two temperatures.

    Parameters
    ----------
    constant : float or "auto", default="auto"
        Weight of the negatives' logarithm. "auto" computes it from the density of the data,
        1 + log(n_users * n_items / (2 n_positives)) / 30: 1.22 for Gowalla, the authors' value, and
        1.10 for the much denser MovieLens-1M, where 1.22 is bad; both were best on validation data.

    References
    ----------
    .. [1] J. Wu, J. Chen, J. Wu, W. Shi, J. Zhang, X. Wang. "BSL: Understanding and Improving
       Softmax Loss for Recommendation". ICDE 2024.

    Examples
    --------
    >>> from freqfm.losses import BSL
    >>> round(BSL().factor(29_858, 40_981, 810_128), 2)
    1.22
    """

    temperature = "density"
    no_dropout_from = 1 << 18
    divergence_hint = "a warmer temperature or a smaller constant of the loss"
    _parameter_constraints = {"constant": [*POSITIVE, StrOptions({"auto"})]}

    def __init__(self, constant: float | str = "auto"):
        self.constant = constant

    def factor(self, n_users, n_items, n_positives):
        """Return the weight of the logarithm over negatives, for data of a given shape."""
        if self.constant != "auto":
            return float(self.constant)
        return 1 + _log_odds(n_users, n_items, n_positives) / _DENSITY_SCALE


class SLatK(Softmax):
    """SL@K: a softmax in which positives near or above the user's K-th best item weigh more.

    With the score beta_u of the user's K-th best item, a positive p contributes ::

        sigmoid((s_p - beta_u) / weight_temperature) * (-w s_p + log sum_j exp(w s_j)),

    which bounds NDCG@K [1]_. The gradient passes through both factors. Every ``refresh`` epochs
    beta is computed from the scores of all items; the authors estimate it from the user's
    positives and drawn items.

    Parameters
    ----------
    k : int, default=20
        Number of recommendations to optimise.
    weight_temperature : float or "auto", default="auto"
        Divisor of the differences of cosines, or dot products, in the weights. "auto" computes it
        from the density of the data, 13 / log(n_users * n_items / (2 n_positives)) but at most 13:
        2.0 for Gowalla and 4.5 for the much denser MovieLens-1M.
    refresh : int, default=5
        Epochs between computations of beta; each takes about as long as recommending to all users.

    Notes
    -----
    The gradient by the weight lowers the score of a positive, the more so the larger the logarithm
    is, which grows with the number of negatives: like the constant of :class:`BSL` it lets the
    negatives count for more. With a small ``weight_temperature`` it undoes what the softmax learns,
    on dense data from larger values on; a large one makes the weights equal and the loss a softmax.
    The values that rank best are close to those that rank badly.

    References
    ----------
    .. [1] W. Yang, J. Chen, S. Zhang, P. Wu, Y. Sun, Y. Feng, C. Chen, C. Wang. "Breaking the Top-K
       Barrier: Advancing Top-K Ranking Metrics Optimization in Recommender Systems". KDD 2025,
       section 3.

    Examples
    --------
    >>> from freqfm.losses import SLatK
    >>> SLatK(k=10)
    SLatK(k=10)
    """

    temperature = "density"
    _parameter_constraints = {
        "k": POSITIVE_INTEGER,
        "weight_temperature": [*POSITIVE, StrOptions({"auto"})],
        "refresh": POSITIVE_INTEGER,
    }

    def __init__(self, k: int = 20, *, weight_temperature: float | str = "auto", refresh: int = 5):
        self.k = k
        self.weight_temperature = weight_temperature
        self.refresh = refresh

    def temperature_of_weights(self, n_users, n_items, n_positives):
        """Return the divisor of differences of scores, for data of a given shape."""
        if self.weight_temperature != "auto":
            return float(self.weight_temperature)
        return _WEIGHT_SCALE / max(_log_odds(n_users, n_items, n_positives), 1.0)

    def constants(self, n_users, n_items, n_positives):
        """Return the numbers that kernels need, see :class:`RankingLoss`."""
        return {
            **super().constants(n_users, n_items, n_positives),
            "top_temperature": self.temperature_of_weights(n_users, n_items, n_positives),
        }

    def replacements(self):
        """Return the formulas to replace in kernels, see ``freqfm._numba.jit.specialised``."""
        return {weight_of_positive: python_function(share_of_top)}


@njit
def _log_of_tanh_plus_one(difference):
    # 2 log(1 + tanh(d / 2)) = 2 log 2 - 2 log(1 + exp(-d)).
    small = exp_of_minus(abs(difference))
    log_of_sigmoid = min(difference, np.float32(0)) - log_of_one_plus(small)
    derivative = (small if difference >= np.float32(0) else np.float32(1)) / (np.float32(1) + small)
    return np.float32(2) * (_LOG_2 + log_of_sigmoid), np.float32(2) * derivative


@njit
def _log_of_atan_plus_one(difference):
    half = np.float32(0.5) * difference
    surrogate = max(arctangent(half) + np.float32(1), _SMALLEST)
    derivative = np.float32(1) / (surrogate * (np.float32(1) + half * half))
    return np.float32(2) * log_of(surrogate), derivative


@njit
def _log_of_relu(difference):
    surrogate = max(np.float32(1) + np.float32(0.5) * difference, _SMALLEST)
    return np.float32(2) * log_of(surrogate), np.float32(1) / surrogate


class PSL(Softmax):
    """Pairwise softmax loss: the softmax with another function in place of the exponential.

    The softmax loss of a positive p is the logarithm of a sum of exponentials of differences,
    exp(w (s_j - s_p)). Here a positive contributes [1]_ ::

        log sum_j surrogate((s_j - s_p) / 2)^(2 w),

    with cosines s and an activation that grows less than exp: negatives that score far above the
    positive, some of which are false negatives, have less weight. Differences are halved so that
    they are between -1 and 1. Because of the factor 2 in the exponent, temperatures mean the same
    as in a softmax; in the authors' notation the temperature is half as large.

    Parameters
    ----------
    activation : {"tanh", "atan", "relu"}, default="tanh"
        The surrogate of exp(d): tanh(d) + 1, arctan(d) + 1 or max(0, d + 1).

    Notes
    -----
    New users are folded in by a softmax of the same temperature.

    References
    ----------
    .. [1] W. Yang, J. Chen, X. Xin, S. Zhou, B. Hu, Y. Feng, C. Chen, C. Wang. "PSL: Rethinking and
       Improving Softmax Loss from Pairwise Perspective for Recommendation". NeurIPS 2024,
       section 3.

    Examples
    --------
    >>> from freqfm.losses import PSL
    >>> PSL(activation="relu")
    PSL(activation='relu')
    """

    temperature = "density"
    adapts_temperature = False
    cosine_only = True
    _parameter_constraints = {"activation": [StrOptions({"tanh", "atan", "relu"})]}

    def __init__(self, activation: str = "tanh"):
        self.activation = activation

    def replacements(self):
        """Return the formulas to replace in kernels, see ``freqfm._numba.jit.specialised``."""
        activations = {
            "tanh": _log_of_tanh_plus_one,
            "atan": _log_of_atan_plus_one,
            "relu": _log_of_relu,
        }
        return {log_surrogate: python_function(activations[self.activation])}


class PairwiseLoss(RankingLoss):
    """Base class of losses of a positive's score and a negative's.

    A custom loss defines :attr:`value_and_derivatives`, a function of numbers compiled by
    ``numba.njit``: a static method, or a property that returns a function that reads
    hyper-parameters from its closure. It is compiled into the training loop with the options of the
    package's own formulas (``error_model="numpy"``, single precision), once for each formula, and
    cached on disk if the formula can be hashed.

    The loss is averaged over a positive's negatives, with weights if the sampler is ``weighted``. A
    drawn item that is among the user's training items is skipped: its share of the mean is zero.
    Users are folded in by the same loss.

    Examples
    --------
    >>> from numba import njit
    >>> from freqfm import MFRecommender
    >>> from freqfm.datasets import make_interactions
    >>> from freqfm.losses import PairwiseLoss
    >>> class HingeOfPairs(PairwiseLoss):
    ...     @staticmethod
    ...     @njit
    ...     def value_and_derivatives(positive, negative):
    ...         if positive - negative < 1:
    ...             return 1 - positive + negative, -1.0, 1.0
    ...         return 0.0, 0.0, 0.0
    >>> X = make_interactions(50, 20, 400, random_state=0)
    >>> model = MFRecommender(4, loss=HingeOfPairs(), max_iter=3, random_state=0).fit(X)
    >>> model.recommend(users=[0], n_recommendations=2)[0].shape
    (1, 2)
    """

    _formulas = {"value_and_derivatives": ("positive", "negative")}
    _results = {"value_and_derivatives": 3}
    _required = ("value_and_derivatives",)
    _fixed = (*RankingLoss._fixed, "replacements", "pair_gradients")

    family = "pairwise"
    similarity = "dot"
    n_negatives = 1
    block = 16
    optimizer = "rowwise_adagrad"
    decay_by_root_density = 0.1
    fold_in_pairwise = True
    n_fold_in = 512
    #: Function of (positive, negative), the scores of two items divided by the temperature, that
    #: returns the loss and its derivatives with respect to both.
    value_and_derivatives = None

    def replacements(self):
        """Return the formulas to replace in kernels, see ``freqfm._numba.jit.specialised``."""
        if self.value_and_derivatives is pair_loss:
            return {}
        return pairwise_replacements(self.value_and_derivatives)

    def pair_gradients(self, positive, negative):
        """Return the derivatives with respect to arrays of positive and negative scores.

        Parameters
        ----------
        positive, negative : ndarray
            Arrays whose shapes broadcast.
        """
        if self.value_and_derivatives is pair_loss:
            derivative = 1 / (1 + np.exp(positive - negative))
            return -derivative, derivative
        formula = np.vectorize(python_function(self.value_and_derivatives), otypes="ddd")
        return formula(positive, negative)[1:]


class BPR(PairwiseLoss):
    """Bayesian personalised ranking: the log loss of a positive above a negative.

    A positive p and a negative j contribute ``log(1 + exp(-w (s_p - s_j)))`` [1]_, averaged over a
    positive's negatives. A drawn item that is among the user's training items is skipped: its share
    of the mean is zero.

    References
    ----------
    .. [1] S. Rendle, C. Freudenthaler, Z. Gantner, L. Schmidt-Thieme. "BPR: Bayesian Personalized
       Ranking from Implicit Feedback". UAI 2009.

    Examples
    --------
    >>> from freqfm.losses import BPR
    >>> BPR().n_negatives
    1
    """

    ranking = "dot"
    shorter_from = 1_500_000
    value_and_derivatives = staticmethod(pair_loss)


@njit
def _hinge(positive, negative):
    violation = np.float32(1) - positive + negative
    derivative = np.float32(1) if violation > np.float32(0) else np.float32(0)
    return max(violation, np.float32(0)), -derivative, derivative


class WARP(PairwiseLoss):
    """Weighted approximate-rank pairwise loss: the first negative within a margin counts.

    For each positive p items are drawn, at most ``n_negatives`` of the estimator, until one, j,
    scores above ``s_p - 1``. It contributes ::

        log(max(1, (n_items - 1) // n_draws)) * (1 - s_p + s_j),

    as the number of draws that it took estimates the rank of the positive [1]_. A drawn item that
    is among the user's training items counts as a draw, and is skipped. Positives without such a
    negative have no gradient.

    References
    ----------
    .. [1] J. Weston, S. Bengio, N. Usunier. "WSABIE: Scaling Up to Large Vocabulary Image
       Annotation". IJCAI 2011, section 3.

    Examples
    --------
    >>> from freqfm.losses import WARP
    >>> WARP().n_negatives
    10
    """

    ranking = "dot"
    n_negatives = 10
    averages_negatives = False
    learning_rate = 0.02
    user_dropout = 0.3
    value_and_derivatives = staticmethod(_hinge)

    def replacements(self):
        """Return the formulas to replace in kernels, see ``freqfm._numba.jit.specialised``."""
        until = {weight_of_draw: log_of_rank, ends_draws: is_violation}
        return super().replacements() | {old: python_function(new) for old, new in until.items()}


@functools.cache
def _contrast(margin, weight):
    # Once for each value of the parameters, as it is compiled wherever it is new.
    @njit
    def contrast(positive, negative):
        above = max(negative - margin, np.float32(0))
        derivative = weight if negative > margin else np.float32(0)
        return np.float32(1) - positive + weight * above, -np.float32(1), derivative

    return contrast


class CCL(PairwiseLoss):
    """Cosine contrastive loss of SimpleX: negatives count only above a margin.

    A positive p contributes ``1 - s_p + negative_weight * mean_j max(0, s_j - margin)`` [1]_, with
    cosines s and the mean over the positive's negatives. A drawn item that is among the user's
    training items is skipped, and so is its share of ``1 - s_p``.

    Parameters
    ----------
    margin : float, default=0.4
        Cosine up to which a negative has no gradient.
    negative_weight : float, default=None
        Weight of the mean over negatives. None depends on the density of the data, the share of
        pairs that are positives: (1 / density - 1) ** 0.7, at least 1 and at most 300, rounded to
        one of 16 values; 20 without data.

    Notes
    -----
    The best weight depends on the data: 150 on Gowalla, 8 to 20 on MovieLens, where 150 ranks no
    better than popularity, and 1 to 3 on its most popular films.

    References
    ----------
    .. [1] K. Mao, J. Zhu, J. Wang, Q. Dai, Z. Dong, X. Xiao, X. He. "SimpleX: A Simple and Strong
       Baseline for Collaborative Filtering". CIKM 2021, equation (1).

    Examples
    --------
    >>> from freqfm.losses import CCL
    >>> CCL(margin=0.8)
    CCL(margin=0.8)
    """

    similarity = "cosine"
    cosine_only = True
    has_temperature = False
    n_negatives = 64
    optimizer = "adam"
    rate_falls = True
    divergence_hint = "a smaller negative_weight"
    _parameter_constraints = {
        "margin": [Interval(Real, -1, 1, closed="both")],
        "negative_weight": [*POSITIVE, None],
    }
    _defaults = {"negative_weight": 20.0}

    def __init__(self, margin: float = 0.4, *, negative_weight: float | None = None):
        self.margin = margin
        self.negative_weight = negative_weight

    def _for_data(self, n_users, n_items, n_positives):
        """Return the loss with a weight for data of a given shape, see :class:`RankingLoss`."""
        odds = max(n_users * n_items / max(n_positives, 1) - 1, 1.0)
        distance = np.abs(np.log(_CCL_WEIGHTS) - _ODDS_POWER * math.log(odds))
        return self.with_defaults(negative_weight=float(_CCL_WEIGHTS[distance.argmin()]))

    @property
    def value_and_derivatives(self):
        """Function of the scores of a positive and a negative, see :class:`PairwiseLoss`."""
        return _contrast(np.float32(self.margin), np.float32(self.value_of("negative_weight")))


class _Alignment(RankingLoss):
    """Losses on unit vectors that pull positives together and push users and items apart."""

    family = "alignment"
    ranking = "dot"
    cosine_only = True
    has_temperature = False
    block = 1
    # Rankings are by dot products, and lengths follow popularity only after larger steps.
    path_length = 240.0
    # Steps of at most 0.01 do not get as far in fewer.
    max_iter = 100
    #: Whether the mean of the uniformity is over the full square matrix of pairs, half of it zero.
    half = False
    fold_in_against = "users"
    _fold_in_constant = "gamma_users"

    @property
    def fold_in_inverse_temperatures(self):
        """The weight of one positive, and the exponent of the uniformity."""
        return (1.0 if self.half else 2.0), 4.0

    def constants(self, n_users, n_items, n_positives):
        """Return the numbers that kernels need, see :class:`RankingLoss`."""
        gamma_users, gamma_items = (float(gamma) for gamma in self.gammas)
        return {
            "margins": bool(self.margins),
            "gamma_users": gamma_users,
            "gamma_items": gamma_items,
            "half": bool(self.half),
        }


class DirectAU(_Alignment):
    """Alignment and uniformity: pull positives together, push users apart, and items apart.

    Over the pairs of a batch, with unit vectors, the loss [1]_ is ::

        mean |u - i|^2 + gamma / 2 * (uniformity of users + uniformity of items),
        uniformity = log mean_{a < b} exp(-2 |x_a - x_b|^2).

    A user that occurs in the batch twice is a pair at distance zero, as in the authors' code. The
    loss draws no negatives. The values of X weight only the alignment.

    Parameters
    ----------
    gamma : float, default=0.5
        Weight of the uniformity. The denser the data, the smaller it has to be, see Notes.

    Notes
    -----
    Rankings are by dot products, so popular items need longer vectors. Lengths are not part of the
    loss: they grow with the steps of the optimizer, and with too small a ``learning_rate``
    rankings are worse than those by popularity. On data as dense as MovieLens, a large ``gamma``
    has the same effect, and with less than about 0.3 all vectors become the same. Validate both;
    the authors use ``gamma=5`` for Gowalla, which is sparse.

    References
    ----------
    .. [1] C. Wang, Y. Yu, W. Ma, M. Zhang, C. Chen, Y. Liu, S. Ma. "Towards Representation
       Alignment and Uniformity in Collaborative Filtering". KDD 2022.

    Examples
    --------
    >>> from freqfm.losses import DirectAU
    >>> DirectAU(gamma=5)
    DirectAU(gamma=5)
    """

    divergence_hint = "a smaller gamma"
    _parameter_constraints = {"gamma": NON_NEGATIVE}

    def __init__(self, gamma: float = 0.5):
        self.gamma = gamma

    @property
    def gammas(self):
        """Weights of the two uniformities, of users and of items."""
        return self.gamma, self.gamma


class MAWU(_Alignment):
    """Margin-aware alignment with a weight for each uniformity.

    Like :class:`DirectAU`, but following [1]_ the alignment is -mean cos(theta + m), with the angle
    theta between user and item and a margin m = 1 - sigmoid(m_u + m_i) learned per user and item,
    m_u and m_i in [0, 1]; and the two uniformities have separate weights. As in the authors' code,
    a uniformity is the log of a mean over the full square matrix of cosines, in which the half
    above the diagonal counts as zero: about half of DirectAU's gradient.

    Parameters
    ----------
    gamma_users : float, default=0.25
        Weight of the users' uniformity.
    gamma_items : float, default=0.25
        Weight of the items' uniformity. The authors' values for Gowalla are 2.6 and 1.4.
    margins : bool, default=True
        Whether margins are learned. False sets them to zero; the alignment is then DirectAU's, up
        to a factor of 2 and a constant.

    References
    ----------
    .. [1] S. Park, M. Yoon, J. Lee, H. Park, J. Lee. "Toward a Better Understanding of Loss
       Functions for Collaborative Filtering". CIKM 2023.

    Examples
    --------
    >>> from freqfm.losses import MAWU
    >>> MAWU().gammas
    (0.25, 0.25)
    """

    half = True
    divergence_hint = "a smaller gamma_users or gamma_items"
    _parameter_constraints = {
        "gamma_users": NON_NEGATIVE,
        "gamma_items": NON_NEGATIVE,
        "margins": ["boolean"],
    }

    def __init__(
        self, gamma_users: float = 0.25, gamma_items: float = 0.25, *, margins: bool = True
    ):
        self.gamma_users = gamma_users
        self.gamma_items = gamma_items
        self.margins = margins

    @property
    def gammas(self):
        """Weights of the two uniformities, of users and of items."""
        return self.gamma_users, self.gamma_items


class VectorLoss(RankingLoss):
    """Base class of losses of the vectors of a batch, for those that are no formula of two scores.

    A custom loss derives from this class and defines ``value_and_gradients`` in NumPy. Training
    minimises it in place of the losses that are compiled; otherwise it is as an auxiliary term, see
    :class:`~freqfm.auxiliary.AuxiliaryTerm`: which calls there are, what they get, with which
    backbones. Each positive has ``n_negatives`` negatives, drawn uniformly
    or by a class derived from :class:`~freqfm.samplers.Uniform`.

    The last ``n_parts`` components of a vector are biases: they belong to the user or to the item
    alone, and dot products leave them out. Users are folded in by the other components, with biases
    of zero, and similar items are those with similar other components. Rankings are by dot products
    of what ``ranked`` makes of the vectors.

    Examples
    --------
    Logistic regression, in which the bias of an item is left out of rankings:

    >>> import numpy as np
    >>> from freqfm import MFRecommender
    >>> from freqfm.datasets import make_interactions
    >>> from freqfm.losses import VectorLoss
    >>> class WithoutBias(VectorLoss):
    ...     n_parts = 1
    ...
    ...     def value_and_gradients(self, batch):
    ...         negatives = batch.pair_users[batch.negative_pairs], batch.negative_items
    ...         users, items = np.hstack([(batch.pair_users, batch.pair_items), negatives])
    ...         is_positive = np.arange(len(users)) < len(batch.pair_users)
    ...         u, i = batch.user_vectors[users], batch.item_vectors[items]
    ...         scores = (u[:, :-1] * i[:, :-1]).sum(axis=1) + i[:, -1]
    ...         value = np.logaddexp(0, np.where(is_positive, -scores, scores)).sum()
    ...         slopes = 1 / (1 + np.exp(-scores)) - is_positive
    ...         by_user, by_item = map(np.zeros_like, batch.both_vectors)
    ...         np.add.at(by_user[:, :-1], users, slopes[:, None] * i[:, :-1])
    ...         np.add.at(by_item[:, :-1], items, slopes[:, None] * u[:, :-1])
    ...         np.add.at(by_item[:, -1], items, slopes)
    ...         n = len(batch.pair_users)
    ...         return value / n, by_user / n, by_item / n
    ...
    ...     def ranked(self, side, vectors):
    ...         return vectors * np.append(np.ones(vectors.shape[1] - 1, dtype=np.float32), 0)
    >>> X = make_interactions(50, 20, 400, random_state=0)
    >>> model = MFRecommender(4, loss=WithoutBias(), max_iter=3, random_state=0).fit(X)
    >>> model.recommend(users=[0], n_recommendations=2)[0].shape
    (1, 2)
    """

    _compiled = False
    # Its lists of negatives: one for each positive. The kernel is not called.
    family = "pairwise"
    similarity = "dot"
    ranking = "dot"
    has_temperature = False
    n_negatives = 1
    block = 1
    optimizer = "rowwise_adagrad"
    rate_falls = True
    fold_in_pairwise = True
    fold_in_inverse_temperatures = (1.0, 1.0)
    n_fold_in = 512
    #: The ``PairwiseLoss`` of dot products by which users are folded in.
    fold_in_loss = BPR()
    divergence_hint = "a larger weight_decay"
    #: How many of the last components of a vector are biases, which dot products leave out.
    n_parts = 0
    #: As of auxiliary terms.
    needs_graph = False
    uses_negatives = True

    def check_backbone(self, backbone):
        """Raise a ValueError if a backbone cannot be used, see ``AuxiliaryTerm``."""

    def begin_epoch(self, epoch):
        """Return the state of an epoch, see ``AuxiliaryTerm``."""
        return None

    def views(self, epoch):
        """Return backbones that compute other vectors, see ``AuxiliaryTerm``."""
        return []

    @abstractmethod
    def value_and_gradients(self, batch):
        """Return the mean loss of a positive, and its gradients with respect to the vectors.

        Parameters
        ----------
        batch : TermBatch
            With the negatives of each positive.

        Returns
        -------
        value : float
        user_gradients : ndarray of the shape of ``batch.user_vectors``, or None
        item_gradients : ndarray of the shape of ``batch.item_vectors``, or None
        """

    def ranked(self, side, vectors):
        """Return vectors of users or items whose dot products are the scores of rankings.

        Parameters
        ----------
        side : {"user", "item"}
        vectors : ndarray of shape (n, n_components)
            As trained.

        Returns
        -------
        vectors : ndarray of the same shape
            Scaled, or with other biases. The default leaves out biases.
        """
        if not self.n_parts:
            return vectors
        ranked = vectors.copy()
        ranked[:, -self.n_parts :] = 0
        return ranked


# The logarithm of a probability is at most this, so that that of its complement is finite.
_LARGEST = -1e-12


@njit
def _cross_entropies(positive, negative):
    positive_loss, by_positive = log_loss(positive, np.float32(1))
    negative_loss, by_negative = log_loss(negative, np.float32(0))
    return positive_loss + negative_loss, by_positive, by_negative


class _CrossEntropies(PairwiseLoss):
    """The cross-entropy of a positive's score and that of a negative's."""

    value_and_derivatives = staticmethod(_cross_entropies)


class MACR(VectorLoss):
    """Model-agnostic counterfactual reasoning, after Wei et al.

    A score has a factor for the item, which learns popularity, and one for the user. With the dot
    product s_ui of vectors and a number for each item and each user, m_i and n_u ::

        y_ui = sigmoid(s_ui) sigmoid(m_i) sigmoid(n_u),

    and a positive contributes, with BCE the cross-entropy of it and of its negatives [1]_ ::

        BCE(y_ui) + alpha BCE(sigmoid(m_i)) + beta BCE(sigmoid(n_u)).

    Rankings leave out what a score would be if the user did not match the item: they are by ::

        (s_ui - c) sigmoid(m_i) sigmoid(n_u).

    The number of a user or item is the last one of its vector, and the other ``n_components - 1``
    are those of the dot product. ``user_factors_`` and ``item_factors_`` hold both.

    Parameters
    ----------
    c : float, default=1.0
        The score of a pair without a match. The larger it is, the more the popularity of items is
        taken out of rankings. Training does not depend on it, and rankings follow
        ``set_params(loss__c=...)`` at once.
    alpha : float, default=0.001
        Weight of the items' cross-entropy.
    beta : float, default=0.001
        Weight of the users'.

    Notes
    -----
    Items with a score below ``c`` are ranked the lower the more popular they are. Where ``c`` is
    above the scores of many that a user likes, from about 4 on with MovieLens, rankings are bad.
    The defaults were chosen on validation parts of MovieLens-100K and -1M: ``c=1`` costs less than
    1 % of the NDCG@20. :ref:`results-popularity` compares this loss with other ways.

    The authors have dense layers of the vectors in place of a number of each item and user.
    Users are folded in by the cross-entropies of the dot products, and then have the number 0.

    References
    ----------
    .. [1] T. Wei, F. Feng, J. Chen, Z. Wu, J. Yi, X. He. "Model-Agnostic Counterfactual Reasoning
       for Eliminating Popularity Bias in Recommender System". KDD 2021, equations (5) to (9).

    Examples
    --------
    >>> from freqfm import MFRecommender
    >>> from freqfm.datasets import make_interactions
    >>> from freqfm.losses import MACR
    >>> X = make_interactions(200, 100, random_state=0)
    >>> model = MFRecommender(16, loss=MACR(c=2), max_iter=2, random_state=0).fit(X)
    >>> model.recommend(users=[0], n_recommendations=3)[0].shape
    (1, 3)
    """

    n_parts = 1
    n_negatives = 5
    batch_size = 2048
    max_iter = 30
    decay_by_root_density = 0.025
    fold_in_loss = _CrossEntropies()
    _parameter_constraints = {
        "c": [Interval(Real, None, None, closed="neither")],
        "alpha": NON_NEGATIVE,
        "beta": NON_NEGATIVE,
    }

    def __init__(self, c: float = 1.0, *, alpha: float = 0.001, beta: float = 0.001):
        self.c = c
        self.alpha = alpha
        self.beta = beta

    def value_and_gradients(self, batch):
        """Return the loss of a batch and its gradients, see :class:`VectorLoss`."""
        positives, drawn_for = batch.pair_users, batch.negative_pairs
        users = np.concatenate([positives, positives[drawn_for]])
        items = np.concatenate([batch.pair_items, batch.negative_items])
        weights = np.concatenate([batch.pair_weights, batch.pair_weights[drawn_for]])
        weights = weights / batch.pair_weights.sum(dtype=np.float64)
        labels = np.arange(len(users)) < len(positives)
        (u, n), (i, m) = (
            (vectors[:, :-1], vectors[:, -1].astype(np.float64)) for vectors in batch.both_vectors
        )
        logits = np.einsum("pd,pd->p", u[users], i[items]), m, n
        # Functions of a user or an item are computed once for all of its pairs.
        places = slice(None), items, users
        logs = [-np.logaddexp(0, -logit)[at] for logit, at in zip(logits, places, strict=True)]
        log_y = np.minimum(sum(logs), _LARGEST)
        log_rest = np.log(-np.expm1(log_y))
        value = -weights @ np.where(labels, log_y, log_rest)
        slope = weights * np.where(labels, -1, np.exp(log_y - log_rest))
        by_score, by_item, by_user = (
            slope * expit(-logit)[at] for logit, at in zip(logits, places, strict=True)
        )
        for weight, logit, at, log, by in (
            (self.alpha, m, items, logs[1], by_item),
            (self.beta, n, users, logs[2], by_user),
        ):
            value -= weight * (weights @ (log - ~labels * logit[at]))
            by += weight * weights * (expit(logit)[at] - labels)
        slopes = sparse.csr_array((by_score, (users, items)), shape=(len(u), len(i)))
        user_gradients = np.column_stack([slopes @ i, np.bincount(users, by_user, len(u))])
        item_gradients = np.column_stack([slopes.T @ u, np.bincount(items, by_item, len(i))])
        return float(value), user_gradients, item_gradients

    def ranked(self, side, vectors):
        """Return vectors whose dot products are the scores of rankings, see :class:`VectorLoss`."""
        last = np.full((len(vectors), 1), 1 if side == "user" else -self.c, dtype=vectors.dtype)
        return expit(vectors[:, -1:]) * np.hstack([vectors[:, :-1], last])
