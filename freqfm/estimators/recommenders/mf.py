"""Matrix factorization for implicit feedback."""

from dataclasses import dataclass, field, replace
from functools import cache, partial
from numbers import Real
from typing import ClassVar

import numpy as np
from sklearn.utils import Bunch
from sklearn.utils.validation import check_is_fitted

from freqfm._components import NON_NEGATIVE, POSITIVE, POSITIVE_INTEGER, resolve
from freqfm._dense import unit_rows
from freqfm._docs import described_like
from freqfm._input.rows import split_signs
from freqfm._input.validation import (
    LearnedArrays,
    as_kernel_input,
    check_flag,
    check_memory,
    count_threads,
    validate_ids,
)
from freqfm._machine import as_aligned
from freqfm._messages import shown
from freqfm._sklearn import Interval, StrOptions
from freqfm.auxiliary import AUXILIARY_TERMS, AuxiliaryTerm
from freqfm.backbones import BACKBONES, Backbone
from freqfm.backbones._base import check_tables, forward_all, occurrences
from freqfm.backbones._described import mean_context, mean_vector
from freqfm.backends.support import check
from freqfm.estimators.progress import announce
from freqfm.estimators.recommenders.base import checked_pairs
from freqfm.estimators.recommenders.components import FoldIn, default_sampler, mf_components
from freqfm.estimators.recommenders.fold_in import (
    UserLoss,
    fold_in_rows,
    scale_rows,
    shares_of_likes,
)
from freqfm.estimators.recommenders.gradient import GradientRecommender, draw_rows
from freqfm.estimators.recommenders.index import Queries, Request, of_single
from freqfm.estimators.recommenders.interactions import likes_of_new_users
from freqfm.estimators.recommenders.mf_trainer import MFTrainer
from freqfm.estimators.recommenders.trained import RESUMES, check_size
from freqfm.estimators.state import Learned
from freqfm.estimators.training import check_same_class, check_unchanged
from freqfm.initializers import INITIALIZERS, Initializer, Spectral
from freqfm.losses import BPR, RANKING_LOSSES, PairwiseLoss, RankingLoss, VectorLoss
from freqfm.optimizers import OPTIMIZERS, Optimizer, WeightDecay
from freqfm.samplers import SAMPLERS, Sampler
from freqfm.temperatures import TEMPERATURES, Temperature

# Batches with fewer multiplications are faster on one thread than on several.
_WORTH_SEVERAL_THREADS = 20_000

_SIDES = "user", "item"
_FACTORS = {f"{s}_factors": Learned(f"{s}_factors_", (f"{s}s", "components")) for s in _SIDES}
_MARGINS = {f"{s}_margins": Learned(f"{s}_margins_", (f"{s}s",)) for s in _SIDES}

# Maximum number of users whose lengths and temperatures are averaged.
_N_TYPICAL = 4096


def _counts_of_rows(name, n_rows, counts):
    """Return the counts of new rows of a table: those of users or items, or 1.

    A backbone chooses the names and lengths of its tables.
    """
    found = counts.get(name.split("_")[0], ())
    return found if len(found) == n_rows else np.ones(n_rows)


@cache
def _learned_of_backbone(*names):
    """Return the tables of a backbone, whose rows are not users or items."""
    return {name: Learned(("backbone_tables_", name), (None, None)) for name in names}


@dataclass(eq=False, repr=False, kw_only=True)
class MFRecommender(GradientRecommender):
    """Matrix factorization for implicit feedback, by default with the loss BSL.

    Each user and item has a vector; scores are cosines or dot products of these. The default loss,
    BSL, is a softmax of cosines in which negatives have more weight; this weight and the
    temperature depend on the density of the data, so that it can be used without tuning. Losses,
    optimizers, samplers, temperatures in closed form [1]_, per user or learned, and vectors whose
    initial lengths depend on popularity [2]_ can be combined.

    Parameters
    ----------
    n_components : int, default=128
        Length of the vectors. Fewer need more epochs: with 64, ``max_iter=80`` gained 1 % of NDCG
        over the default on Gowalla.
    backbone : {"linear", "lightgcn", "mlp"} or Backbone, default="linear"
        What computes the vectors, see :mod:`freqfm.backbones`. "linear" learns a vector for each
        user and item, "lightgcn" averages these over neighbours, "mlp" adds dense layers, and
        ``Features(user_features=..., item_features=...)`` sums vectors of features. With
        ``Context(context=..., users=...)`` the rows of ``X`` are queries, users in a context, and
        those of the model users.
    loss : str or RankingLoss, default="bsl"
        Such as "softmax", "bsl", "bpr", "warp", "directau", "mawu", "psl", "slatk", "ccl" or
        "macr"; see :mod:`freqfm.losses`. "bsl" is a softmax whose negatives have a little more
        weight.
    similarity : {"auto", "cosine", "dot"} or tuple of two of these, default="auto"
        The similarity in the loss, or those in the loss and in rankings; one alone leaves "auto" to
        rankings. "auto" is the dot product for BPR, WARP and MACR, and the cosine for all others;
        in rankings also the dot product for DirectAU and MAWU, and with ``similarity="dot"``,
        ``init="prism"`` and ``negative_sampler=InBatch(corrected=False)``, where lengths matter.
    temperature : float, str or Temperature, default=None
        Divisor of the scores: a number, or for instance "density", "adap_tau0", "adap_tau",
        "learned", "learned_user" or "cu_tau"; see :mod:`freqfm.temperatures`. None is "density" for
        BSL, PSL and SL@K, "adap_tau0" for softmax, and 1 for dot products, BPR and WARP. DirectAU,
        MAWU, CCL and MACR have none.
    negative_sampler : str or Sampler, default="auto"
        How negatives are drawn: "auto" or for instance "uniform", "popularity", "in_batch",
        "full", "midx_uniform", "midx_popularity", "midx_exact", "kernel", "dns",
        "self_adversarial", "aobpr" or "pris"; see :mod:`freqfm.samplers`. "auto" draws by the root
        of the popularity, which is corrected for, for BSL, softmax, PSL and SL@K; uniformly for
        BPR, WARP, CCL, MACR and custom losses of two scores; and not at all for losses without
        negatives. From "midx_uniform" on, negatives are drawn for each user by the user's scores,
        for softmax and BSL; BPR and CCL support only the last four of these, WARP only "dns" and
        "aobpr", MACR none.
    n_negatives : int, default=None
        Negatives per batch (shared), per positive, or per block of a user's positives (drawn for
        each user). None is the sampler's default, or else the loss's: 768 for BSL, softmax, PSL and
        SL@K, but at most 8 times the root of the number of items; 64 for CCL, 10 for WARP, 5 for
        MACR, 1 for BPR, but 5 if these have weights, and 128 if negatives are drawn for each user.
    optimizer : str or Optimizer, default="auto"
        Such as "adam", "cf_sgd", "fa_sgd", "rowwise_adagrad", "adagrad" or "sgd"; see
        :mod:`freqfm.optimizers`. "auto" is "rowwise_adagrad" for BPR, WARP, MACR and custom losses
        of two scores, and "adam" for all others.
    learning_rate : float, default=None
        Learning rate of the optimizer. None is the optimizer's default, but 0.02 for WARP with
        ``optimizer="auto"``. For Adam it depends on the number of steps in a fit of the default
        number of epochs: 24 (240 for DirectAU and MAWU) divided by the steps, between 0.0003 and
        0.01. With ``init="prism"`` and cosines it is scaled by how much longer the initial vectors
        are. Except with DirectAU and MAWU, the rate falls linearly from twice that, over the
        default number of epochs or ``max_iter`` if that is more, to a twentieth of its first value;
        ``partial_fit`` on new interactions uses the mean. A given rate does not fall. That of
        "rowwise_adagrad" is lower in proportion to default epochs, where BPR has fewer.
    max_iter : int, default=None
        Number of epochs; None is the loss's default: 50, 100 for DirectAU and MAWU, and 30 for
        MACR. For BPR with ``optimizer="auto"`` and ``backbone="linear"`` it falls from 1,500,000
        interactions on, in proportion to their root, to 25 from 6,000,000 on: :doc:`guide
        </scale>`.
    batch_size : int, default=None
        Approximate number of positives in a batch; None is the default of the loss, or of
        ``LightGCN(propagate="batch")``, and less for small data.
    user_dropout : float, default=None
        Share of a user's weights set to zero in each batch. None is the loss's default: 0.1 for
        softmax, PSL and SL@K, and for BSL with fewer than 262,144 interactions; 0.3 for
        WARP; else 0.
    weight_decay : float or WeightDecay, default=None
        L2 penalty: ``weight_decay`` times the row is added to the gradient of a row, in every
        batch. ``WeightDecay(value, scope="batch")`` shrinks the rows that occur in a batch, see
        :class:`freqfm.optimizers.WeightDecay`, and so does None, which is a
        tenth of the root of the density of X, the share of pairs that are positives, for BPR, WARP
        and other losses of two scores, and a fortieth of it for MACR, with dot products and
        ``backbone="linear"``, else 0.
    init : {"auto", "xavier", "normal", "prism", "spectral"} or Initializer, default="auto"
        Initial values of the vectors, see :mod:`freqfm.initializers`. "auto" is "spectral", which
        takes directions from the interactions and needs half of the epochs. Their scale is a
        parameter of the initializer, as in ``Normal(0.2)``; "normal" has 0.1.
    auxiliary : str, AuxiliaryTerm or list of these, default=None
        What training minimises beside the loss: "sgl", "simgcl", "ncl", "ipl", "resn", or a term
        of your own; see :mod:`freqfm.auxiliary`. With these, and with the loss "macr",
        batches are trained step by step, which takes several times as long with
        ``backbone="linear"``, and LightGCN needs ``propagate="batch"``.
    n_recommendations : int, default=10
        Number of items that ``predict`` returns, and the k of ``score`` and ``scoring``.
    early_stopping : bool, default=False
        Whether to hold out interactions, stop when ``scoring`` no longer improves, and then train a
        new model on all interactions for the best number of epochs, at least 5. With
        ``warm_start=True`` the best epoch is restored instead. With ``X_val`` in ``fit`` those
        interactions are used instead of held-out ones, and the model of the best epoch is kept.
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
    user_factors_ : ndarray of shape (n_users, n_components), float32
        The vectors as trained, not normalised.
    item_factors_ : ndarray of shape (n_items, n_components), float32
    backbone_tables_ : dict of ndarray
        The tables learned with a backbone other than "linear", under the backbone's names;
        ``user_factors_`` and ``item_factors_`` are computed from them.
    temperature_ : float
        Mean temperature of the last epoch, over users with interactions.
    user_temperatures_ : ndarray of shape (n_users,), float32
        Each user's temperature in the logarithm of the softmax.
    item_counts_ : ndarray of shape (n_items,)
        How many users have each item.
    user_margins_, item_margins_ : ndarray of shape (n_users,) and (n_items,), float32
        Between 0 and 1. Only with the loss "mawu".
    loss_curve_ : ndarray of shape (`n_iter_`,)
        Mean loss of each epoch, per positive.
    validation_scores_ : ndarray
        The score of each epoch, with early stopping.
    n_iter_, best_iter_ : int
        Number of epochs trained, and the epoch of the model's vectors.
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
    InteractionRecommender : Takes (user, item) pairs with any ids.

    Notes
    -----
    A default fit takes about 30 CPU seconds for 590,733 interactions of 6,039 users with 3,628
    items (MovieLens-1M). The first one also compiles, for about 14.

    Memory: 4 d (n_users + n_items) bytes of vectors, the optimizer state (twice as much again for
    Adam), and a copy of both during training (two with early stopping). An interaction takes about
    16 bytes in training (30 with "directau" and "mawu", where each is a row of its own; 4 more if
    weights differ, and 30 to 40 with early stopping), and 4 afterwards. Between epochs a
    temperature that depends on the vectors, as the softmax's does by default, takes a copy of them.
    A user takes 30 bytes (60 with a temperature, 110 if it is learned or per user), an item 40. The
    scores of a batch take at most about 16 MB plus 64 n_negatives numbers. Negatives that are drawn
    for each user take about 20 bytes for each row of a batch and negative, in addition to the state
    of the sampler.

    Time per epoch: about 4 n_negatives d multiplications per interaction if negatives are shared,
    and a copy of vectors and state, including users and items without interactions. With 5 million
    users, a million items and the defaults, vectors and Adam's state take 9.2 GB and the copy as
    much again, so number users and items without gaps. ``verbose=1`` prints the remaining time.

    With ``WeightDecay(scope="full")`` the penalty's gradient is part of every step. For SGD, FA-SGD
    and CF-SGD the steps that a row has missed are one power of 1 - rate * weight_decay; for
    Adagrad, and for ``Adam(lazy=False)``, they are replayed one by one. Both give the same result
    as updating the whole table in every batch. ``Adam()``, which is lazy, does not update the
    moments of absent rows; its decay is decoupled, as in AdamW, and exact as such.
    ``Adam(lazy=False)`` is ``torch.optim.Adam`` with dense gradients.

    References
    ----------
    .. [1] J. Chen, J. Wu, J. Wu, S. Zhou, X. Cao, X. He. "Adap-tau: Adaptively Modulating Embedding
       Magnitude for Recommendation". WWW 2023.
    .. [2] D. Loveland, M. Ju, T. Zhao, N. Shah, D. Koutra. "On the Role of Weight Decay in
       Collaborative Filtering: A Popularity Perspective". 2025.

    Examples
    --------
    >>> from freqfm import MFRecommender
    >>> from freqfm.datasets import make_interactions
    >>> X = make_interactions(200, 100, random_state=0)
    >>> model = MFRecommender(n_components=16, max_iter=20, random_state=0).fit(X)
    >>> items, scores = model.recommend(users=[0, 1], n_recommendations=3)
    >>> items.shape
    (2, 3)
    """

    _registries = {
        "backbone": BACKBONES,
        "loss": RANKING_LOSSES,
        "optimizer": OPTIMIZERS,
        "weight_decay": WeightDecay.of,
        "temperature": TEMPERATURES,
        "negative_sampler": SAMPLERS,
        "init": {"auto": Spectral, **INITIALIZERS},
        "auxiliary": AUXILIARY_TERMS,
    }
    _records = {**GradientRecommender._records, "_fold_in": FoldIn}
    _stores_users = _uses_dislikes = True
    # Whether the loss says how vectors are ranked; how many of their components are biases.
    _has_vector_loss, _n_parts = False, 0
    #: Which users and items have features: two arrays of bool; None without features.
    _described = None

    _parameter_constraints: ClassVar = {
        # Names and instances are resolved in fit.
        **dict.fromkeys(_registries, "no_validation"),
        "similarity": [StrOptions({"auto", "cosine", "dot"}), tuple, list],
        "n_negatives": [*POSITIVE_INTEGER, None],
        "learning_rate": [*POSITIVE, None],
        "max_iter": [*POSITIVE_INTEGER, None],
        "batch_size": [*POSITIVE_INTEGER, None],
        "user_dropout": [Interval(Real, 0, 1, closed="left"), None],
        "weight_decay": [*NON_NEGATIVE, None, WeightDecay],
    }

    n_components: int = field(default=128, kw_only=False)
    backbone: str | Backbone = "linear"
    loss: str | RankingLoss = "bsl"
    similarity: str | tuple[str, str] = "auto"
    temperature: float | str | Temperature | None = None
    negative_sampler: str | Sampler | None = "auto"
    n_negatives: int | None = None
    optimizer: str | Optimizer = "auto"
    learning_rate: float | None = None
    max_iter: int | None = None
    batch_size: int | None = None
    user_dropout: float | None = None
    weight_decay: float | WeightDecay | None = None
    init: str | Initializer = "auto"
    auxiliary: str | AuxiliaryTerm | list | None = None

    def _components_by_name(self, params):
        # The value of "auto" in fit, with the loss that is set.
        loss = params.get("loss", self.loss)
        loss = RANKING_LOSSES.get(loss, RankingLoss) if isinstance(loss, str) else loss
        auto = getattr(loss, "optimizer", RankingLoss.optimizer)
        sampler = partial(default_sampler, getattr(loss, "weights_negatives", False))
        axes = super()._components_by_name(params)
        axes = {**axes, "negative_sampler": {"auto": sampler, **SAMPLERS}}
        if auto in OPTIMIZERS:
            axes = {**axes, "optimizer": {"auto": OPTIMIZERS[auto], **OPTIMIZERS}}
        return axes

    @property
    def temperature_(self):
        """Mean temperature of the last epoch, over users with interactions."""
        check_is_fitted(self)
        return float(self.user_temperatures_[self._history.counts > 0].mean())

    @property
    def user_temperatures_(self):
        """Each user's temperature in the logarithm of the softmax."""
        check_is_fitted(self)
        if self._fold_in.inverse_temperatures is not None:
            raise AttributeError(f"loss={self.loss!r} has no temperature.")
        return 1 / self._inverse_temperatures[:, 1]

    # Training.

    @property
    def _given_backbone(self):
        return resolve("backbone", self.backbone, Backbone, BACKBONES)

    def _read(self, X, reset, **options):
        interactions, backbone = super()._read(X, reset, **options), self._given_backbone
        if not backbone._has_context:
            return interactions
        if interactions.dislikes is not None:
            given = f"backbone={self.backbone!r}"
            check("dislikes", "Context", n=interactions.dislikes.nnz, given=given)
        return replace(interactions, queries=backbone.read(interactions.shape[0]))

    def _resolve_components(self, X, known):
        check_size(self, known.shape)
        shape = known.shape
        return mf_components(self, X.nnz, shape, max(X.nnz, self._n_known_interactions))

    def _bound(self, components, interactions, known, adds):
        backbone = components.backbone
        if backbone.is_linear:
            return components
        announce(self.verbose, f"preparing {type(backbone).__name__}")
        if backbone._has_context:
            before = self._context_totals if adds else None
            backbone = backbone.with_totals(interactions.queries, interactions.X, before)
            self._context_totals = backbone.totals
        backbone = backbone.bind(known.X, count_threads(self.n_jobs))
        return components._replace(backbone=backbone)

    def _learned_tables(self):
        of_backbone = getattr(self, "backbone_tables_", None)
        tables = _FACTORS if of_backbone is None else _learned_of_backbone(*of_backbone)
        return tables | {n: entry for n, entry in _MARGINS.items() if hasattr(self, entry.path)}

    def _start(self, data, components, reset):
        backbone = components.backbone
        if reset:
            stale = "user_margins_", "item_margins_", "backbone_tables_", "_described"
            for name in stale:
                self.__dict__.pop(name, None)
            if not backbone._has_context:
                self.__dict__.pop("_context_totals", None)
            self._loss_name = type(components.loss).__name__
            self._backbone_name = type(backbone).__name__
            if not backbone.is_linear:
                self.backbone_tables_ = {}
        n_known = {side: 0 if reset else len(getattr(self, f"{side}_factors_")) for side in _SIDES}
        counts = np.diff(data.indptr), data.item_counts
        counts = {s: count[n:] for (s, n), count in zip(n_known.items(), counts, strict=True)}
        rows_of = self._first_rows if reset else self._new_rows
        rows = rows_of(data, components, counts, n_known)
        has_margins = components.margins if reset else hasattr(self, "user_margins_")
        for side in _SIDES if has_margins else ():
            margins = self._draw_margins(side, len(counts[side]), n_known[side])
            rows[f"{side}_margins"] = margins, counts[side]
            if reset:
                setattr(self, f"{side}_margins_", margins)
        sizes = {"users": data.shape[0], "items": data.shape[1]}
        self._add_rows(rows, components, sizes, reset)
        if not (reset or backbone.is_linear):
            self._compute_vectors(backbone, data.shape)

    def _first_rows(self, data, components, counts, n_known):
        """Return the tables of a new model, without margins, and how often their rows occur."""
        backbone = components.backbone
        generator = np.random.default_rng([self._seed, 2])
        size = int(self.n_components)
        directions = self._directions(components.initializer, data.X, size, generator)
        draw = self._drawer(components, counts, n_known, directions)
        tables = backbone.start(*map(len, counts.values()), draw)
        if backbone.is_linear:
            return {f"{side}_factors": (tables[f"{side}_factors"], counts[side]) for side in _SIDES}
        self.backbone_tables_ = tables = check_tables(backbone, tables)
        context = self._compute_vectors(backbone, data.shape)
        # Rows of a backbone's tables are not users or items; most do not count them.
        occurring = {name: np.ones(len(table)) for name, table in tables.items()}
        found = occurrences(backbone, tables, context, *counts.values())
        for name, (rows, of_rows) in found.items():
            occurring[name][rows] = of_rows
        return {name: (table, occurring[name]) for name, table in tables.items()}

    def _new_rows(self, data, components, counts, n_known):
        """Return rows for new users and items, by table, and how often they occur.

        Raises
        ------
        ValueError
            If there are new users or items and the backbone takes none.
        """
        shape = tuple(n_known.values())
        draw = self._drawer(components, counts, n_known, None)
        # Users without known items keep their random vectors.
        placed = self._place_new_users(data)
        if components.backbone.is_linear:
            rows = {f"{side}_factors": draw(side) for side in _SIDES}
            has_place = placed.any(axis=1)
            rows["user_factors"][has_place] = placed[has_place]
        elif data.shape == shape and not components.backbone._has_context:
            return {}
        else:
            rows = components.backbone.new_rows(self.backbone_tables_, shape, placed, draw)
        if rows is None:
            raise ValueError(
                f"X has shape {data.shape}, but the model has {shape[0]} users and {shape[1]} "
                f"items, and backbone={shown(self.backbone)} takes no new ones; call fit for a "
                f"new model."
            )
        return {name: (own, _counts_of_rows(name, len(own), counts)) for name, own in rows.items()}

    def _compute_vectors(self, backbone, shape):
        """Set the vectors of as many users and items; return the backbone's context."""
        vectors = [np.empty((n, int(self.n_components)), dtype=np.float32) for n in shape]
        self.user_factors_, self.item_factors_ = vectors
        self._described = backbone.described()
        return forward_all(backbone, self.backbone_tables_, *vectors)

    def _drawer(self, components, counts, known, directions):
        """Return the function that draws tables for a backbone, see ``Backbone.start``.

        Parameters
        ----------
        components : Components
        counts : dict of str to ndarray
            How often each user, and each item, occurs.
        known : dict of str to int
            How many users and items the model has before these.
        directions : dict of str to ndarray or None
            See ``Initializer.directions``.
        """
        n_calls = dict.fromkeys(counts, 0)

        def draw(side, rows=None, n_own=None):
            if side not in n_calls:
                raise ValueError(f"draw takes side='user' or side='item'; got {shown(side)}.")
            if rows is None:
                rows, n_own = counts[side], len(counts[side])
            rows = np.ones(rows) if np.ndim(rows) == 0 else rows
            check_memory(
                len(rows) * int(self.n_components),
                f"n_components={self.n_components} for {len(rows)} vectors of {side}s",
                "Take fewer components or features.",
            )
            first = known[side]
            # A random stream for each side, and for each of several tables of a side; the margins
            # have number 1.
            stream = [self._seed, side == "item", first]
            if n_calls[side]:
                stream.append(1 + n_calls[side])
            n_calls[side] += 1
            return draw_rows(
                components.initializer.of_side(side),
                (len(rows), int(self.n_components)),
                np.random.default_rng(stream),
                rows,
                first,
                directions[side] if directions and n_own else None,
            )

        return draw

    def _draw_margins(self, side, n, first=0):
        """Return initial margins, of one column by Glorot's normal rule, within [0, 1]."""
        generator = np.random.default_rng([self._seed, side == "item", (1 << 32) + first])
        margins = np.sqrt(2 / (first + n + 1)) * generator.standard_normal(n)
        return np.clip(margins, 0, 1).astype(np.float32)

    def _check_continues(self, known, components, mode):
        if mode != RESUMES:
            for parameter in ("loss", "backbone"):
                check_same_class(self, parameter, getattr(components, parameter))
            check_unchanged(self, "similarity", components.cosine == self._fold_in.cosine, "that")
        learned = LearnedArrays(self)
        if not components.backbone.is_linear:
            learned.get("backbone_tables_")
        for side in _SIDES if components.margins else ():
            learned.get(f"{side}_margins_")
        super()._check_continues(known, components, mode)

    def _check_trainable(self):
        tables = getattr(self, "backbone_tables_", {})
        fits = isinstance(tables, dict) and all(isinstance(name, str) for name in tables)
        LearnedArrays(self).require(fits, "backbone_tables_", "is not a dict of tables")
        super()._check_trainable()

    def _place_new_users(self, data):
        """Return the initial vectors of new users, at the length of trained ones.

        They are folded in by the items that the model knows; rows without any are zeros.
        """
        likes = likes_of_new_users(data, len(self.user_factors_), len(self.item_factors_))
        return np.float32(self._typical_length()) * self._fold_in_units(likes)

    def _keep_settings(self, components, known):
        self._rank_by_cosine = components.rank_by_cosine
        self._n_parts = components.loss.n_parts
        self._has_vector_loss = isinstance(components.loss, VectorLoss)
        shape = np.count_nonzero(np.diff(known.indptr)), known.shape[1], known.nnz
        generator = np.random.default_rng([self._seed, 2])
        self._fold_in = FoldIn.of(components, self._history, shape, generator)

    def _make_trainer(self, components, interactions, known, score):
        work = components.batch_size * (components.n_negatives + 8) * int(self.n_components)
        n_threads = count_threads(self.n_jobs) if work >= _WORTH_SEVERAL_THREADS else 1
        for name in _FACTORS:
            setattr(self, f"{name}_", as_aligned(getattr(self, f"{name}_")))
        return MFTrainer(self, components, interactions, known, score, n_threads)

    # Vectors.

    def _check_vectors(self, learned):
        super()._check_vectors(learned)
        n_users, n_items = self._n_users, self.n_features_in_
        learned.array("_inverse_temperatures", (n_users, 2))
        if self._described is not None:
            fits = isinstance(self._described, tuple) and len(self._described) == 2
            learned.require(fits, "_described", "is not a pair of arrays")
            for described, n in zip(self._described, (n_users, n_items), strict=True):
                learned.array("_described", (n,), "b", value=described)
        self._fold_in.check(learned, n_users, n_items)

    @property
    def _unit_columns(self):
        return self.item_factors_.shape[1] if self._rank_by_cosine else 0

    @property
    def _compared_columns(self):
        return self.item_factors_.shape[1] - self._n_parts

    def _item_table(self):
        return self._ranked_by_loss("item", self.item_factors_)

    def _user_table(self):
        return self.user_factors_[:, : self._compared_columns]

    def _user_vectors(self, users, context=None):
        if context is not None:
            return self._ranked(self._in_context(None, context, users))
        return self._ranked(self.user_factors_[users])

    def _ranked_by_loss(self, side, vectors):
        """Return vectors as the loss ranks them, before they are normalised."""
        if not self._has_vector_loss:
            return vectors
        loss = resolve("loss", self.loss, RankingLoss, RANKING_LOSSES)
        check_same_class(self, "loss", loss)
        ranked = as_kernel_input(np.asarray(loss.ranked(side, vectors)))
        if ranked.shape != vectors.shape:
            raise ValueError(
                f"ranked of {type(loss).__name__} must return vectors of the shape "
                f"{vectors.shape}; got {ranked.shape}."
            )
        return ranked

    def _is_learned(self, axis, rows=slice(None)):
        learned = super()._is_learned(axis, rows)
        if self._described is None:
            return learned
        return learned | self._described[0 if axis == "users" else 1][rows]

    # Users and items by their features.

    @described_like(GradientRecommender.recommend)
    def recommend(
        self,
        X=None,
        *,
        users=None,
        n_recommendations=None,
        exclude_seen=True,
        candidates=None,
        exclude=None,
        diversity=0.0,
        item_vectors=None,
        user_features=None,
        item_features=None,
        context=None,
    ):
        """Recommend items to users.

        Parameters
        ----------
        users : int or array-like of int of shape (n_users,), default=None
            Users seen in ``fit``, by their rows. One of ``X``, ``users`` and ``user_features`` must
            be given.
        item_vectors : {array-like, sparse matrix} of shape (n_items, n_dimensions), default=None
            Features by which items differ, such as genres; None takes the model's own vectors.
            Without ``diversity`` they are not used. With ``item_features``, the rows of these items
            follow.
        user_features : {array-like, sparse matrix} of shape (n_users, n_user_features), \
                default=None
            Features of new users without a history, with the columns that
            :class:`backbones.Features` had in ``fit``.
        item_features : {array-like, sparse matrix} of shape (n_new_items, n_item_features), \
                default=None
            Features of items that are not in the model. They may be recommended too: the first one
            is item ``n_items``, the next ``n_items + 1``, and so on, in ``candidates`` and
            ``exclude`` as well.
        context : {array-like, sparse matrix} of shape (n_users, n_context_features) or \
                (1, n_context_features), default=None
            The context of each user, or one for all, with the columns that
            :class:`backbones.Context` had in ``fit``; None is the mean of all interactions.

        Returns
        -------
        items : ndarray of shape (n_users, n_recommendations), int64
            In descending order of scores, or with ``diversity`` as they were chosen; -1 where there
            are too few. One-dimensional if ``users`` is a single number.
        scores : ndarray of the same shape, float32
            Dot products, or cosines if the model ranks by these; -inf where there is no item. A
            user without history and features gets popular items, scored by the share of users that
            have them.

        Raises
        ------
        ValueError
            If not exactly one of ``X``, ``users`` and ``user_features`` is given, indices are out
            of range, or the model was not trained with features or context.
        """
        exclude_seen = check_flag("exclude_seen", exclude_seen)
        request = Request(n_recommendations, candidates, exclude, diversity, item_vectors)
        if user_features is None:
            queries = self._queries(X, users, exclude_seen)
            if context is not None:
                rows = None if users is None else validate_ids("users", users, self._n_users)
                vectors = self._in_context(queries.vectors, context, rows)
                queries = queries._replace(vectors=self._ranked(vectors))
        elif X is None and users is None:
            self._check_learned()
            vectors, known = self._vectors_by_features("user", user_features, context)
            queries = Queries(vectors, self._no_histories(len(vectors)), known)
        else:
            raise ValueError("recommend takes one of X, users and user_features; two were given.")
        new_items = None
        if item_features is not None:
            new_items, known = self._vectors_by_features("item", item_features)
            if not known.all():
                raise ValueError(
                    f"item_features has no feature at row {np.argmin(known)}; there is nothing to "
                    f"recommend it by: leave it out."
                )
        return of_single(users, self._rank(queries, request, new_items))

    def _vectors_by_features(self, side, features, context=None):
        """Return vectors for rankings of users or items by their features, and which have any."""
        backbone, tables = self._given_backbone, getattr(self, "backbone_tables_", {})
        vectors, known = backbone.vectors_of(tables, side, features)
        if side == "user" and backbone._has_context:
            vectors = vectors + mean_vector(self._context_totals, tables)
        if context is not None:
            vectors = vectors + self._context_shift(context, len(vectors))
        return self._ranked(vectors, side), known

    # Users in a context.

    def _ranked(self, vectors, side="user"):
        """Return vectors of users or items as rankings compare them."""
        vectors = self._ranked_by_loss(side, vectors)
        return unit_rows(vectors) if self._rank_by_cosine else vectors

    def _context_shift(self, context, n_rows):
        """Return what contexts add to vectors of users in the mean context."""
        backbone = self._given_backbone
        if not hasattr(self, "_context_totals"):
            raise ValueError(
                f"context= needs a model that was trained with it; backbone={shown(self.backbone)} "
                f"has none: fit with backbone=Context(context=..., users=...)."
            )
        return backbone.shift_of(self.backbone_tables_, self._context_totals, context, n_rows)

    def _in_context(self, vectors, context, users=None):
        """Return vectors of users in contexts, as long as trained ones.

        ``vectors`` are those for rankings of folded-in users, in the mean context; they are not
        read if ``users`` are users seen in fit.
        """
        if users is not None:
            vectors = self.user_factors_[users]
        elif self._rank_by_cosine:
            vectors = vectors * np.float32(self._typical_length())
        return vectors + self._context_shift(context, len(vectors))

    def predict_pairs(self, users, items, context=None):
        """Return the scores of pairs of users and items.

        Parameters
        ----------
        users, items : array-like of int of shape (n_pairs,)
            Users seen in ``fit``, and items.
        context : {array-like, sparse matrix} of shape (n_pairs, n_context_features) or \
                (1, n_context_features), default=None
            The context of each pair, or one for all; None is the mean, see ``recommend``.

        Returns
        -------
        scores : ndarray of shape (n_pairs,), float32
            The scores that ``recommend`` ranks by: for users without history and features the
            share of users that have the item. -inf for items without interactions and features,
            which are not recommended.
        """
        if context is None:
            return super().predict_pairs(users, items)
        users, items = checked_pairs(users, items, self._n_users, self.n_features_in_)
        vectors = self._user_vectors(users, context)
        return self._score_pairs(users, items, vectors, np.arange(len(users)))

    # Users by their histories.

    def _some_users(self):
        """Return users with interactions, evenly spread; the first user if there are none."""
        indptr = self._history.indptr
        some = np.arange(0, self._n_users, max(1, self._n_users // _N_TYPICAL))
        some = some[indptr[some] < indptr[some + 1]]
        if not len(some):
            some = np.flatnonzero(self._history.counts)[:_N_TYPICAL]
        return some if len(some) else np.zeros(1, dtype=np.int64)

    def _typical_length(self, some=None):
        """Return the root mean square of the lengths of trained users; ``some`` if known."""
        if not self._history.n_interactions:
            return 1.0
        users = self._without_parts(
            self.user_factors_[self._some_users() if some is None else some]
        )
        return float(np.sqrt(np.mean(np.sum(users**2, axis=1))))

    def _compared_items(self, items=slice(None)):
        """Return vectors of items as the loss compares them."""
        vectors = self._without_parts(self.item_factors_[items])
        return unit_rows(vectors) if self._fold_in.cosine else as_kernel_input(vectors)

    def _without_parts(self, vectors):
        """Return vectors with biases of zero."""
        n = self._compared_columns
        return vectors * (np.arange(vectors.shape[1]) < n) if self._n_parts else vectors

    def _user_loss(self):
        """Return the loss that folding in minimises, with all items and users fixed."""
        fold_in, some = self._fold_in, self._some_users()
        if fold_in.against == "users":
            others = unit_rows(self.user_factors_[fold_in.others])
        else:
            others = self._compared_items(fold_in.others)
        inverse = fold_in.inverse_temperatures
        if inverse is None:
            # The temperatures at the end of training.
            inverse = self._inverse_temperatures[some].mean(axis=0)
        length = 1.0 if fold_in.cosine else self._typical_length(some)
        return UserLoss(
            others=np.ascontiguousarray(others),
            pairwise=self._pairwise_loss() if fold_in.pairwise else None,
            positive=inverse[0] * length,
            inverse=inverse[1] * length,
            constant=np.float64(fold_in.constant),
            inverse_of_disliked=self._inverse_temperatures[some, 0].mean() * length,
        )

    def _pairwise_loss(self):
        loss = resolve("loss", self.loss, RankingLoss, RANKING_LOSSES)
        if isinstance(loss, VectorLoss):
            loss = loss.fold_in_loss
        if not isinstance(loss, PairwiseLoss):
            return BPR()
        return loss._for_data(self._n_users, len(self.item_factors_), self._history.n_interactions)

    def _fold_in_units(self, X):
        """Return the unit vectors of the rows of a canonical matrix; zeros for empty rows."""
        items, indices = slice(None), X.indices
        if self._fold_in.cosine and len(indices) < len(self.item_factors_):
            # Normalise a few rows rather than the whole table.
            items, indices = np.unique(indices, return_inverse=True)
            indices = indices.astype(np.int32)
        vectors = self._compared_items(items)
        n_threads = count_threads(self.n_jobs)
        return fold_in_rows(self._user_loss(), X, vectors, indices, n_threads, self.device)

    def _fold_in_rows(self, X):
        vectors = self._fold_in_units(X)
        if not self._rank_by_cosine:
            vectors *= np.float32(self._typical_length())
        if self._has_vector_loss:
            known = vectors.any(axis=1)
            vectors[known] = self._ranked_by_loss("user", vectors[known])
        return vectors

    def explain(self, user, item, X=None, *, context=None):
        """Return the contribution of each item of a user's history to a score.

        At the minimum of a user's loss the user's vector is a sum over the user's items, minus a
        part that depends on other items. The score splits in the same way.

        Parameters
        ----------
        user : int
            A user seen in ``fit``, whose interactions then have equal weights, as others are not
            kept; or, with ``X``, a row of it.
        item : int
            The item whose score is explained.
        X : {array-like, sparse matrix} of shape (n_users, n_items), default=None
            Histories of users to be folded in.
        context : {array-like, sparse matrix} of shape (1, n_context_features), default=None
            The user's context, for a model with the backbone ``Context``; None is the mean.

        Returns
        -------
        explanation : Bunch
            ``history``, the user's items in descending order of ``contributions``; ``rest``, the
            part that is not due to single items; and ``score``, the sum of both. Of a model with
            context also ``context_contributions``, of shape (n_context_features,), which are part
            of that sum.
            As in ``predict_pairs``, the score of a user without history and features is the share
            of users that have the item, and that of an item without users is -inf; it is all
            rest.
        """
        if context is None and not hasattr(self, "_context_totals"):
            return self._explain(user, item, X)
        query, users = self._query(user, X), None if X is not None else [user]
        if context is None:
            context = mean_context(self._context_totals)
        vectors = self._in_context(query.vectors, context, users)
        by_feature = self._given_backbone.terms_of(self.backbone_tables_, context)
        own = vectors - by_feature.sum(axis=0)
        length = np.linalg.norm(vectors) if self._rank_by_cosine else 1.0
        scale = np.float32(1 / length) if length > 0 else np.float32(0)
        query = query._replace(vectors=scale * vectors)
        found = self._explain_query(query, scale * own, item)
        shares = np.zeros(len(by_feature))
        if query.learned[0]:
            shares = scale * (by_feature @ self._item_index().vectors([item])[0])
        found.rest -= float(shares.sum())
        return Bunch(**found, context_contributions=shares.astype(np.float64))

    def _contributions(self, query, history, item):
        """Return the contributions of a history's items to the score of an item."""
        if not history.nnz:
            return np.zeros(0)
        (query,) = self._without_parts(query)
        length = np.linalg.norm(query)
        user, loss = query / (length if length > 0 else 1), self._user_loss()
        vectors, liked = self._compared_items(history.indices), history.data > 0
        likes, dislikes = split_signs(history)
        weights = scale_rows(likes.indptr, likes.data)
        shares, pulls = weights / weights.sum(), np.zeros(history.nnz)
        pulls[liked], push = loss.gradient_parts(user, vectors[liked], shares)
        if dislikes is not None:
            disliked = vectors[~liked], shares_of_likes(likes, dislikes)
            added = loss.pulls_of_disliked(user, vectors[liked], shares, *disliked)
            pulls[liked] += added[0]
            pulls[~liked] = added[1]
        # At the minimum the user's vector has the direction of the negative gradient.
        scale = length / max(float(np.linalg.norm(pulls @ vectors - push)), 1e-12)
        return scale * pulls * (vectors @ self._item_index().vectors([item])[0])
