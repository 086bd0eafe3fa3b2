"""Matrix factorization for implicit feedback."""

from numbers import Integral, Real

import numpy as np
from sklearn.utils import Bunch
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from freqfm._components import NON_NEGATIVE, POSITIVE, POSITIVE_INTEGER, resolve
from freqfm._validation import (
    LearnedArrays,
    as_kernel_array,
    canonical_csr,
    check_memory,
    count_columns,
    count_threads,
    take_rows,
    validate_id,
)
from freqfm.backbones import BACKBONES, Linear
from freqfm.backbones._base import check_tables, forward
from freqfm.estimators.recommenders.base import BaseRecommender, grow_state, new_state
from freqfm.estimators.recommenders.fold_in import FoldIn, UserLoss, fold_in_rows
from freqfm.estimators.recommenders.histories import level_rows, pad_rows, unit_rows
from freqfm.estimators.recommenders.mf_components import resolve_components
from freqfm.estimators.recommenders.mf_trainer import BackboneTrainer, MFTrainer
from freqfm.initializers import INITIALIZERS
from freqfm.losses import BPR, RANKING_LOSSES, PairwiseLoss, RankingLoss
from freqfm.optimizers import OPTIMIZERS
from freqfm.samplers import SAMPLERS, Uniform
from freqfm.temperatures import TEMPERATURES

__all__ = ["MFRecommender"]

# Below so many multiplications a batch, one thread is faster than several.
_WORTH_A_TEAM = 20_000

# Users of whom lengths and temperatures are averaged, if there are many more.
_N_TYPICAL = 4096


class MFRecommender(BaseRecommender):
    """Matrix factorization for implicit feedback, by a softmax with adaptive temperatures.

    Users and items get a vector each; scores are their cosines or dot products. The default, a
    softmax of cosines against shared negatives whose weight and temperature follow from the density
    of the data, is meant to be fitted without tuning. What else there is composes: five losses,
    six optimizers, samplers, temperatures in closed form [1]_, per user or learned, and vectors
    that start at lengths by popularity [2]_.

    Parameters
    ----------
    n_components : int, default=64
        Length of the vectors.
    backbone : "linear" or Backbone, default="linear"
        Where the vectors come from, see :mod:`freqfm.backbones`. "linear" learns a vector for each
        user and item.
    loss : str or RankingLoss, default="bsl"
        Such as "softmax", "bsl", "bpr", "directau" or "mawu"; see :mod:`freqfm.losses`. "bsl" is
        a softmax whose negatives weigh a little more.
    similarity : {"auto", "cosine", "dot"}, default="auto"
        What the loss compares. "auto" is the dot product for BPR and the cosine for all others.
    ranking : {"auto", "cosine", "dot"}, default="auto"
        What recommendations are ranked by. "auto" is the dot product for BPR, DirectAU and MAWU,
        the cosine for softmax and BSL, and the dot product whenever ``similarity`` or
        ``init="prism"`` gives lengths a meaning.
    temperature : float, str or Temperature, default=None
        What scores are divided by: a number, or for instance "density", "adap_tau0", "adap_tau",
        "learned" or "learned_user"; see :mod:`freqfm.temperatures`. None is "density" for BSL and
        "adap_tau0" for softmax, 1 for dot products and for BPR. DirectAU and MAWU have none.
    negative_sampler : str or Sampler, default="auto"
        Where negatives come from: "auto" or for instance "uniform", "popularity", "in_batch",
        "full", "midx_uniform", "midx_popularity", "midx_exact", "kernel", "dns" or
        "self_adversarial"; see :mod:`freqfm.samplers`. "auto" draws uniformly, or not at all
        for the losses that need none. From "midx_uniform" on they are drawn for each user, by the
        user's scores: for softmax and BSL; for BPR only "dns".
    n_negatives : int, default=None
        Negatives of a batch (shared), of a positive, or of the positives of a user that stand
        together (drawn for each user). None is the sampler's own number, or else the loss's: 1024
        for softmax and BSL, 1 for BPR, 128 if softmax or BSL draw for each user.
    optimizer : str or Optimizer, default="adam"
        Such as "adam", "cf_sgd", "fa_sgd", "rowwise_adagrad", "adagrad" or "sgd"; see
        :mod:`freqfm.optimizers`.
    learning_rate : float, default=None
        Learning rate of the optimizer. None is the optimizer's own, but for Adam a rate by the
        number of steps of a fit of ``loss.max_iter`` epochs: 24 over the steps, between 0.0003 and
        0.01. With ``init="prism"`` and cosines it is larger by as much as vectors start longer.
    max_iter : int, default=None
        Epochs; None is the loss's own number, see its ``max_iter``.
    batch_size : int, default=None
        Positives in a batch, more or less; None is the loss's own number, less for small data.
    user_dropout : float, default=None
        Share of a user's weights set to zero in each batch. None is the loss's own: 0.1 for softmax
        and BSL, else 0.
    weight_decay : float, default=0.0
        L2 penalty: the gradient of a row gets ``weight_decay`` times the row.
    weight_decay_scope : {"full", "batch"}, default="full"
        "full" shrinks every row in every batch, exactly but lazily: a row makes up the steps it has
        missed when it is next touched or read, see Notes. "batch" shrinks the rows that a batch
        touches, in proportion to how often.
    init : {"xavier", "normal", "prism"} or Initializer, default="xavier"
        Where vectors start, see :mod:`freqfm.initializers`.
    init_scale : float, default=None
        Scale of the initializer, for "xavier" and "normal"; None is 1 and 0.1.
    n_recommendations : int, default=10
        Items that ``predict`` returns, and at which ``score`` and early stopping measure NDCG.
    early_stopping : bool, default=False
        Whether to hold out interactions, stop when their NDCG no longer improves, and restore the
        best epoch. Without it all interactions are trained on.
    validation_fraction : float, default=0.1
        Share of each user's interactions that early stopping holds out.
    n_iter_no_change : int, default=10
        Epochs without improvement by ``tol`` that end the fit; of the NDCG, and without early
        stopping of nothing.
    tol : float, default=1e-4
        Smallest improvement.
    warm_start : bool, default=False
        Whether ``fit`` continues from the present model.
    verbose : int, default=0
        1 prints a line per epoch.
    n_jobs : int, default=None
        Threads, at most one a core; None uses all cores. The result does not depend on it.
    random_state : int, RandomState instance, Generator or None, default=None
        Pass an int for the same model at every call.

    Attributes
    ----------
    user_factors_ : ndarray of shape (n_users, n_components), float32
        The vectors as trained, not normalised.
    item_factors_ : ndarray of shape (n_items, n_components), float32
    backbone_tables_ : dict of ndarray
        What a backbone other than "linear" has learned, by its own names; ``user_factors_`` and
        ``item_factors_`` are what it makes of them.
    temperature_ : float
        Mean temperature of the last epoch, over users with interactions.
    user_temperatures_ : ndarray of shape (n_users,), float32
        Each user's temperature in the logarithm of the softmax.
    item_counts_ : ndarray of shape (n_items,)
        How many users have each item.
    user_margins_, item_margins_ : ndarray of shape (n_users,) and (n_items,), float32
        With loss "mawu" only.
    loss_curve_ : ndarray of shape (`n_iter_`,)
        Mean loss of each epoch, per positive.
    validation_scores_ : ndarray
        NDCG of each epoch, with early stopping.
    n_iter_, best_iter_ : int
        Epochs trained, and the one whose vectors the model has.
    optimizer_state_nbytes_ : int
        Bytes of the optimizer's state.
    n_features_in_ : int
        Number of items.
    feature_names_in_ : ndarray of shape (n_items,)
        Only if X is a DataFrame whose columns are named by strings.

    Raises
    ------
    ValueError
        On components that do not fit together, and on data that cannot be learned from.
    DivergenceError
        If the loss or a weight stops being finite; the last finite epoch is kept.

    Warns
    -----
    ConvergenceWarning
        From ``fit``, with early stopping, if ``max_iter`` ended it while the NDCG still improved.

    See Also
    --------
    InteractionRecommender : Takes (user, item) pairs with any ids.

    Notes
    -----
    Memory: 4 d (n_users + n_items) bytes of vectors, the optimizer's state (twice as much again for
    Adam), while training a copy of both (two with early stopping), about 40 bytes per interaction
    while training and 4 afterwards, 100 per user, and a batch's scores, at most about 16 MB plus 64
    n_negatives numbers. Negatives that are drawn for each user take some 20 bytes for each row of a
    batch and negative, and the state of the sampler, see there.

    Time of an epoch: some 4 n_negatives d multiplications for each interaction, where negatives are
    shared, and a copy of vectors and state, users and items without interactions included. With 5
    million users, a million items and the defaults, vectors and Adam's state take 4.6 GB and the
    copy as much, so number users and items without gaps. ``verbose=1`` tells the time left.

    Weight decay of scope "full" is the penalty's gradient in every step. For SGD, FA-SGD and CF-SGD
    steps that a row has missed are one power of 1 - rate * weight_decay; for Adagrad, and for
    ``Adam(lazy=False)``, they are replayed one by one: both give what moving the whole table in
    every batch gives. ``Adam()``, which is lazy, leaves the moments of absent rows alone; its decay
    is decoupled, as in AdamW, and exact as such. ``Adam(lazy=False)`` is ``torch.optim.Adam`` with
    dense gradients.

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
        "temperature": TEMPERATURES,
        "negative_sampler": {"auto": Uniform, **SAMPLERS},
        "init": INITIALIZERS,
    }
    _records = {**BaseRecommender._records, "_fold_in": FoldIn}

    _parameter_constraints: dict = {
        "n_components": [Interval(Integral, 1, None, closed="left")],  # see check_memory
        "backbone": "no_validation",
        "loss": "no_validation",  # names and instances are resolved in fit
        "similarity": [StrOptions({"auto", "cosine", "dot"})],
        "ranking": [StrOptions({"auto", "cosine", "dot"})],
        "temperature": "no_validation",
        "negative_sampler": "no_validation",
        "n_negatives": [*POSITIVE_INTEGER, None],
        "optimizer": "no_validation",
        "learning_rate": [*POSITIVE, None],
        "max_iter": [*POSITIVE_INTEGER, None],
        "batch_size": [*POSITIVE_INTEGER, None],
        "user_dropout": [Interval(Real, 0, 1, closed="left"), None],
        "weight_decay": NON_NEGATIVE,
        "weight_decay_scope": [StrOptions({"full", "batch"})],
        "init": "no_validation",
        "init_scale": [*NON_NEGATIVE, None],
        "n_recommendations": POSITIVE_INTEGER,
        "early_stopping": ["boolean"],
        "validation_fraction": [Interval(Real, 0, 1, closed="neither")],
        "n_iter_no_change": POSITIVE_INTEGER,
        "tol": NON_NEGATIVE,
        "warm_start": ["boolean"],
        "verbose": ["verbose"],
        "n_jobs": [Integral, None],
        "random_state": ["random_state", np.random.Generator],
    }

    def __init__(
        self,
        n_components=64,
        *,
        backbone="linear",
        loss="bsl",
        similarity="auto",
        ranking="auto",
        temperature=None,
        negative_sampler="auto",
        n_negatives=None,
        optimizer="adam",
        learning_rate=None,
        max_iter=None,
        batch_size=None,
        user_dropout=None,
        weight_decay=0.0,
        weight_decay_scope="full",
        init="xavier",
        init_scale=None,
        n_recommendations=10,
        early_stopping=False,
        validation_fraction=0.1,
        n_iter_no_change=10,
        tol=1e-4,
        warm_start=False,
        verbose=0,
        n_jobs=None,
        random_state=None,
    ):
        self.n_components = n_components
        self.backbone = backbone
        self.loss = loss
        self.similarity = similarity
        self.ranking = ranking
        self.temperature = temperature
        self.negative_sampler = negative_sampler
        self.n_negatives = n_negatives
        self.optimizer = optimizer
        self.learning_rate = learning_rate
        self.max_iter = max_iter
        self.batch_size = batch_size
        self.user_dropout = user_dropout
        self.weight_decay = weight_decay
        self.weight_decay_scope = weight_decay_scope
        self.init = init
        self.init_scale = init_scale
        self.n_recommendations = n_recommendations
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.tol = tol
        self.warm_start = warm_start
        self.verbose = verbose
        self.n_jobs = n_jobs
        self.random_state = random_state

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

    # Training; the order of these calls is that of ``BaseRecommender._train``.

    def _validate_interactions(self, X, reset, partial):
        X = super()._validate_interactions(X, reset, partial)
        # Every user has a row, even without anything new.
        return pad_rows(X, self._n_users) if partial and not reset else X

    def _check_size(self, shape):
        check_memory(
            sum(shape) * int(self.n_components),
            f"n_components={self.n_components} for {shape[0]} users and {shape[1]} items",
            "Take fewer components, or number users and items without gaps.",
        )

    def _resolve_components(self, X):
        return resolve_components(self, X.nnz, X.shape, max(X.nnz, self._n_known_interactions))

    def _tables(self):
        """Return the arrays that gradients move, by name."""
        names = ["user_margins", "item_margins"]
        tables = getattr(self, "backbone_tables_", None)
        if tables is None:
            tables, names = {}, ["user_factors", "item_factors", *names]
        arrays = {name: getattr(self, f"{name}_") for name in names if hasattr(self, f"{name}_")}
        return tables | arrays

    def _start_backbone(self, components, counts):
        """Set the tables of a new model, and the vectors that its backbone makes of them."""
        backbone = components.backbone

        def draw(side, n_rows=None):
            rows = counts[side] if n_rows is None else np.ones(n_rows)
            return self._draw(components, side, rows)

        tables = backbone.start(len(counts["user"]), len(counts["item"]), draw)
        self._backbone_name = type(backbone).__name__
        if type(backbone) is Linear:  # a subclass may do something else
            self.user_factors_, self.item_factors_ = tables["user_factors"], tables["item_factors"]
            return
        self.backbone_tables_ = check_tables(backbone, tables)
        self.user_factors_, self.item_factors_ = (
            np.empty((len(count), int(self.n_components)), dtype=np.float32)
            for count in counts.values()
        )
        self._refresh_vectors(backbone)

    def _refresh_vectors(self, backbone):
        """Let the vectors of all users and items be what the backbone makes of its tables."""
        vectors = self.user_factors_, self.item_factors_
        everything = (np.arange(len(table)) for table in vectors)
        forward(backbone, self.backbone_tables_, *everything, *vectors)

    def _draw(self, components, side, counts, first=0):
        """Return rows for users or items of given counts, from a random stream for each side."""
        initializer = components.initializer.of_side(side)
        generator = np.random.default_rng([self._seed, side == "item", first])
        return initializer.table((len(counts), int(self.n_components)), generator, counts)

    def _draw_margins(self, side, n):
        """Return starting margins as of an (n, 1) table by Glorot's normal rule, within [0, 1]."""
        generator = np.random.default_rng([self._seed, side == "item", 1 << 32])
        margins = np.sqrt(2 / (n + 1)) * generator.standard_normal(n)
        return np.clip(margins, 0, 1).astype(np.float32)

    def _init_model(self, X, components):
        counts = {"user": np.diff(X.indptr), "item": count_columns(X)}
        for name in ("user_margins_", "item_margins_", "backbone_tables_"):
            self.__dict__.pop(name, None)
        self._start_backbone(components, counts)
        if components.margins:
            for side, count in counts.items():
                setattr(self, f"{side}_margins_", self._draw_margins(side, len(count)))
        self._states = {}
        for name, table in self._tables().items():
            # Rows of other backbones' tables stand for no user or item: they count alike.
            of_backbone = name in getattr(self, "backbone_tables_", {})
            count = np.ones(len(table)) if of_backbone else counts[name.split("_")[0]]
            width = table.shape[1] if table.ndim == 2 else 1
            self._states[name] = new_state(components.optimizer, count, width)
        self._loss_name = type(components.loss).__name__
        self._init_training(components, n_temperatures=X.shape[0])

    def _check_continues(self, X, components, partial):
        super()._check_continues(X, components, partial)
        self._refuse_another("loss", components.loss, self._loss_name)
        self._refuse_another("backbone", components.backbone, self._backbone_name)
        if self.user_factors_.shape[1] != self.n_components:
            raise ValueError(
                f"n_components={self.n_components} differs from the {self.user_factors_.shape[1]} "
                f"of the model to continue; set it back, or fit anew with warm_start=False."
            )
        if not partial and X.shape[0] != len(self.user_factors_):
            raise ValueError(
                f"X has {X.shape[0]} rows, but the model to continue has {len(self.user_factors_)} "
                f"users. Use partial_fit for new users, or fit anew with warm_start=False."
            )

    def _check_states(self, components):
        learned = LearnedArrays(self)
        for side in ("user", "item") if components.margins else ():
            learned.array(f"{side}_margins_", (len(getattr(self, f"{side}_factors_")),))
        super()._check_states(components)

    def _grow(self, X, components):
        if hasattr(self, "backbone_tables_"):
            self._grow_nothing(X, components)
            return
        counts = {"user": np.diff(X.indptr), "item": count_columns(X)}
        placed = self._place_new_users(X)
        states = {}
        for side, count in counts.items():
            known = len(getattr(self, f"{side}_factors_"))
            new = count[known:]
            rows = self._draw(components, side, new, known)
            if side == "user":
                # Who has no known item stays where it was drawn.
                has_place = placed.any(axis=1)
                rows[has_place] = placed[has_place]
            grown = {f"{side}_factors": rows}
            if hasattr(self, f"{side}_margins_"):
                grown[f"{side}_margins"] = self._draw_margins(side, len(new))
            for name, rows in grown.items():
                table = np.concatenate([getattr(self, f"{name}_"), rows])
                setattr(self, f"{name}_", as_kernel_array(table))
                width = rows.shape[1] if rows.ndim == 2 else 1
                more = new_state(components.optimizer, new, width)
                states[name] = grow_state(self._states[name], more)
        self._states = states
        self._grow_temperatures(X.shape[0] - len(self._inverse_temperatures))
        self._n_steps = as_kernel_array(self._n_steps, np.int64).copy()

    def _grow_nothing(self, X, components):
        """Make the arrays of a model writable; raise if there are new users or items."""
        shape = len(self.user_factors_), len(self.item_factors_)
        if X.shape != shape:
            raise ValueError(
                f"X has shape {X.shape}, but the model has {shape[0]} users and {shape[1]} items, "
                f"and backbone={self.backbone!r} takes no new ones; fit anew."
            )
        self.backbone_tables_ = {
            name: as_kernel_array(table).copy() for name, table in self.backbone_tables_.items()
        }
        for name in ("user_factors_", "item_factors_", "user_margins_", "item_margins_"):
            if hasattr(self, name):
                setattr(self, name, as_kernel_array(getattr(self, name)).copy())
        self._states = {
            name: {key: as_kernel_array(array).copy() for key, array in state.items()}
            for name, state in self._states.items()
        }
        self._grow_temperatures(0)
        self._n_steps = as_kernel_array(self._n_steps, np.int64).copy()

    def _grow_temperatures(self, n_new):
        """Add rows for new users, at the mean temperature."""
        old = self._inverse_temperatures
        new = np.repeat(old.mean(axis=0, keepdims=True), n_new, axis=0)
        self._inverse_temperatures = as_kernel_array(np.concatenate([old, new]))
        for name, width in (("_temperature_state", 2), ("_statistics", 3)):
            grown = np.concatenate([getattr(self, name), np.zeros((n_new, width))])
            setattr(self, name, as_kernel_array(grown, np.float64))

    def _place_new_users(self, X):
        """Return where users beyond those of the model start, at the length of trained ones.

        By items that the model knows; rows without any are zeros.
        """
        new = np.arange(len(self.user_factors_), X.shape[0])
        history = take_rows(X, new)
        history.resize(len(new), len(self.item_factors_))
        return np.float32(self._typical_length()) * self._fold_in_units(canonical_csr(history))

    def _keep_settings(self, components, X):
        self._rank_by_cosine = components.rank_by_cosine
        shape = np.count_nonzero(np.diff(X.indptr)), X.shape[1], X.nnz
        generator = np.random.default_rng([self._seed, 2])
        self._fold_in = FoldIn.of(components, self._history, shape, generator)

    def _make_trainer(self, components, X, score, n_known):
        work = components.batch_size * (components.n_negatives + 8) * int(self.n_components)
        n_threads = count_threads(self.n_jobs) if work >= _WORTH_A_TEAM else 1
        trainer = BackboneTrainer if hasattr(self, "backbone_tables_") else MFTrainer
        return trainer(self, components, X, score, n_threads, n_known)

    # Vectors.

    def _check_vectors(self, learned):
        n_users, n_items = self._n_users, self.n_features_in_
        _, width = learned.array("item_factors_", (n_items, None))
        learned.require(width > 0, "item_factors_", "holds no numbers")
        learned.array("user_factors_", (n_users, width))
        learned.array("_inverse_temperatures", (n_users, 2))
        self._fold_in.check(learned, n_users, n_items)

    @property
    def _unit_columns(self):
        return self.item_factors_.shape[1] if self._rank_by_cosine else 0

    def _item_vectors(self, items=slice(None)):
        vectors = self.item_factors_[items]
        return unit_rows(vectors) if self._rank_by_cosine else vectors

    def _user_vectors(self, users):
        vectors = self.user_factors_[users]
        return unit_rows(vectors) if self._rank_by_cosine else vectors

    def _vectors_in_training(self, users, X):
        return self._user_vectors(users)

    def _embed(self, users):
        return self._user_vectors(users)

    def _similarity_table(self, axis):
        table = self.user_factors_ if axis == "users" else self.item_factors_
        return table, table.shape[1]

    # Users by their histories.

    def _some_users(self):
        """Return users with interactions, spread over all, or the first if nobody has any."""
        indptr = self._history.indptr
        some = np.arange(0, self._n_users, max(1, self._n_users // _N_TYPICAL))
        some = some[indptr[some] < indptr[some + 1]]
        if not len(some):
            some = np.flatnonzero(self._history.counts)[:_N_TYPICAL]
        return some if len(some) else np.zeros(1, dtype=np.int64)

    def _typical_length(self):
        """Return the root mean square of the lengths of trained users."""
        if not self._history.n_interactions:
            return 1.0
        users = self.user_factors_[self._some_users()]
        return float(np.sqrt(np.mean(np.sum(users**2, axis=1))))

    def _compared_items(self, items=slice(None)):
        """Return vectors of items as the loss compares them."""
        vectors = self.item_factors_[items]
        return unit_rows(vectors) if self._fold_in.cosine else as_kernel_array(vectors)

    def _user_loss(self):
        """Return the loss that folding in minimises, with all items and users as they are."""
        fold_in = self._fold_in
        if fold_in.against == "users":
            others = unit_rows(self.user_factors_[fold_in.others])
        else:
            others = self._compared_items(fold_in.others)
        inverse = fold_in.inverse_temperatures
        if inverse is None:
            # Those that the training has ended at.
            inverse = self._inverse_temperatures[self._some_users()].mean(axis=0)
        length = 1.0 if fold_in.cosine else self._typical_length()
        return UserLoss(
            others=np.ascontiguousarray(others),
            pairwise=self._pairwise_loss() if fold_in.pairwise else None,
            positive=inverse[0] * length,
            inverse=inverse[1] * length,
            constant=np.float64(fold_in.constant),
        )

    def _pairwise_loss(self):
        loss = resolve("loss", self.loss, RankingLoss, RANKING_LOSSES)
        return loss if isinstance(loss, PairwiseLoss) else BPR()

    def _fold_in_units(self, X):
        """Return the unit vectors of the rows of a canonical matrix; zeros for empty rows."""
        items, indices = slice(None), X.indices
        if self._fold_in.cosine and len(indices) < len(self.item_factors_):
            # A few rows, normalised, rather than the whole table.
            items, indices = np.unique(indices, return_inverse=True)
            indices = indices.astype(np.int32)
        vectors = self._compared_items(items)
        return fold_in_rows(self._user_loss(), X, vectors, indices, count_threads(self.n_jobs))

    def _fold_in_rows(self, X):
        vectors = self._fold_in_units(X)
        if not self._rank_by_cosine:
            vectors *= np.float32(self._typical_length())
        return vectors

    def explain(self, user, item, X=None):
        """Tell how much each item of a user's history adds to a score.

        At the minimum of a user's loss the vector is a sum over the user's items, minus a push away
        from others. So is the score.

        Parameters
        ----------
        user : int
            A user seen in ``fit``; or, with ``X``, a row of it.
        item : int
            The item whose score is explained.
        X : {array-like, sparse matrix} of shape (n_users, n_items), default=None
            Histories of users to be folded in.

        Returns
        -------
        explanation : Bunch
            ``history``, the user's items in descending order of ``contributions``; ``rest``, what
            is not due to single items; and ``score``, the sum of both.
        """
        queries, history = self._queries(X, [user] if X is None else None)
        row = 0 if X is None else validate_id("user", user, len(queries))
        item = validate_id("item", item, self.n_features_in_)
        return self._explain(queries[row], take_rows(history, [row]), item)

    def _explain(self, query, history, item):
        """Split the score of an item into what each item of a user's history adds, and a rest."""
        (target,) = self._item_vectors([item])
        score = float(query @ target)
        contributions = np.zeros(0)
        if history.nnz:
            length = np.linalg.norm(query)
            weights = level_rows(history.indptr, history.data)
            vectors = self._compared_items(history.indices)
            pulls, push = self._user_loss().pulls_and_push(
                query / (length if length > 0 else 1), vectors, weights / weights.sum()
            )
            # At the minimum the user's vector has the direction of the negative gradient.
            scale = length / max(float(np.linalg.norm(pulls @ vectors - push)), 1e-12)
            contributions = scale * pulls * (vectors @ target)
        order = np.argsort(-contributions, kind="stable")
        return Bunch(
            history=history.indices[order].astype(np.int64),
            contributions=contributions[order].astype(np.float64),
            rest=score - float(contributions.sum()),
            score=score,
        )
