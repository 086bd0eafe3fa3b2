"""Matrix factorization for implicit feedback."""

from numbers import Integral, Real

import numpy as np
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from freqfm._components import NON_NEGATIVE, POSITIVE, POSITIVE_INTEGER
from freqfm._validation import count_threads, take_rows, validate_id
from freqfm.estimators.recommenders.histories import unit_rows
from freqfm.estimators.recommenders.mf_fit import MFFit
from freqfm.estimators.recommenders.mf_users import explain_score, fold_in_rows
from freqfm.estimators.training import with_callbacks

__all__ = ["MFRecommender"]


class MFRecommender(MFFit):
    """Matrix factorization for implicit feedback, by softmax with temperatures that set themselves.

    Users and items get a vector each; scores are their cosines or dot products. The default, a
    softmax of cosines against shared negatives whose weight and temperature follow from the density
    of the data, is meant to be fitted without tuning. What else there is composes: five losses,
    six optimizers, samplers, temperatures in closed form [1]_, per user or learned, and vectors
    that start at lengths by popularity [2]_.

    Parameters
    ----------
    n_components : int, default=64
        Length of the vectors.
    loss : {"softmax", "bsl", "bpr", "directau", "mawu"} or RankingLoss, default="bsl"
        See :mod:`freqfm.losses`. "bsl" is a softmax whose negatives weigh a little more.
    similarity : {"auto", "cosine", "dot"}, default="auto"
        What the loss compares. "auto" is the dot product for BPR and the cosine for all others.
    ranking : {"auto", "cosine", "dot"}, default="auto"
        What recommendations are ranked by. "auto" is the dot product for BPR, DirectAU and MAWU,
        the cosine for softmax and BSL, and the dot product whenever ``similarity`` or
        ``init="prism"`` gives lengths a meaning.
    temperature : float, {"density", "adap_tau0", "adap_tau", "learned", "learned_user"} or \
            Temperature, default=None
        What scores are divided by, see :mod:`freqfm.temperatures`. None is "density" for BSL and
        "adap_tau0" for softmax, 1 for dot products and for BPR. DirectAU and MAWU have none.
    negative_sampler : {"auto", "uniform", "popularity", "in_batch", "full", "midx_uniform", \
            "midx_popularity", "midx_exact", "kernel", "dns", "self_adversarial"} or Sampler, \
            default="auto"
        Where negatives come from, see :mod:`freqfm.samplers`. "auto" draws uniformly, or not at all
        for the losses that need none. From "midx_uniform" on they are drawn for each user, by the
        user's scores: for softmax and BSL; for BPR only "dns".
    n_negatives : int, default=None
        Negatives of a batch (shared), of a positive, or of the positives of a user that stand
        together (drawn for each user). None is the sampler's own number, or else the loss's: 1024
        for softmax and BSL, 1 for BPR, 128 if softmax or BSL draw for each user.
    optimizer : {"adam", "cf_sgd", "fa_sgd", "rowwise_adagrad", "adagrad", "sgd"} or Optimizer, \
            default="adam"
        See :mod:`freqfm.optimizers`.
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
        Only if X is a frame whose columns are named by strings.

    Raises
    ------
    ValueError
        On axes that do not fit together, and on data that cannot be learned from.
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

    _parameter_constraints: dict = {
        "n_components": [Interval(Integral, 1, None, closed="left")],  # see check_memory
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

    @with_callbacks
    def fit(self, X, y=None):
        """Fit the model.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_users, n_items)
            Interactions; values are the weights of positives. Rows and columns may be empty.
        y : Ignored

        Returns
        -------
        self : object

        Raises
        ------
        ValueError
            On input that cannot be learned from: it names the argument, what was found and what to
            do.
        DivergenceError
            If the loss or a weight stops being finite. The model of the last finite epoch is kept.
        """
        self._validate_params()
        reset = not (self.warm_start and hasattr(self, "item_factors_"))
        return self._train(X, reset, partial=False)

    def partial_fit(self, X, y=None):
        """Train one epoch on more interactions; users and items may be new.

        New users start where ``transform`` puts them by the items that the model knows, at the
        length that trained users have; new items, and users of these alone, as in ``fit``.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_users, n_items)
            New interactions. Rows beyond the users of the model are new users, columns beyond its
            items new items. There may be fewer rows than users, but not fewer columns than items.
        y : Ignored

        Returns
        -------
        self : object
        """
        self._validate_params()
        return self._train(X, not hasattr(self, "item_factors_"), partial=True)

    @property
    def temperature_(self):
        """Mean temperature of the last epoch, over users with interactions."""
        check_is_fitted(self)
        seen = np.diff(self._seen_indptr) > 0
        return float(self.user_temperatures_[seen].mean())

    @property
    def user_temperatures_(self):
        """Each user's temperature in the logarithm of the softmax."""
        check_is_fitted(self)
        if self._family == "alignment":
            raise AttributeError(f"loss={self.loss!r} has no temperature.")
        return 1 / self._inverse_temperatures[:, 1]

    def _check_vectors(self, learned):
        n_users, n_items = self._n_users, self.n_features_in_
        _, width = learned.array("item_factors_", (n_items, None))
        learned.require(width > 0, "item_factors_", "holds no numbers")
        learned.array("user_factors_", (n_users, width))
        learned.array("_inverse_temperatures", (n_users, 2))
        learned.array("_fold_constants", (3,))
        (n_chosen,) = learned.array("_others", (None,), "iu")
        learned.require(n_chosen > 0, "_others", "is empty")
        n_others = n_users if learned.get("_family") == "alignment" else n_items
        learned.indices("_others", self._others, n_others)

    @property
    def _unit_columns(self):
        return self.item_factors_.shape[1] if self._rank_by_cosine else 0

    def _item_vectors(self, items=slice(None)):
        vectors = self.item_factors_[items]
        return unit_rows(vectors) if self._rank_by_cosine else vectors

    def _user_vectors(self, users):
        vectors = self.user_factors_[users]
        return unit_rows(vectors) if self._rank_by_cosine else vectors

    def _vectors_of(self, users, X):
        return self._user_vectors(users)

    def _embed(self, users):
        return self._user_vectors(users)

    def _similarity_table(self, axis):
        table = self.user_factors_ if axis == "users" else self.item_factors_
        return table, table.shape[1]

    def _fold_in(self, X):
        return fold_in_rows(self, X, count_threads(self.n_jobs))

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
        return explain_score(self, queries[row], take_rows(history, [row]), item)
