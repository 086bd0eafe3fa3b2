"""Matrix factorization for implicit feedback by alternating least squares."""

from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import numpy as np

from freqfm import backends
from freqfm._components import NON_NEGATIVE, POSITIVE, POSITIVE_INTEGER
from freqfm._input.rows import row_sums, slices, with_one_index_type
from freqfm._input.validation import as_kernel_array, as_kernel_input, count_threads
from freqfm._sklearn import StrOptions
from freqfm.backends.base import LeastSquaresProblem
from freqfm.estimators.recommenders.index import rows_of
from freqfm.estimators.recommenders.interactions import (
    likes_of_new_users,
    noise_edge,
    summands,
    total_of,
)
from freqfm.estimators.recommenders.trained import TrainedRecommender, check_size
from freqfm.estimators.state import Learned, entries_of, extend
from freqfm.estimators.training import TrainingTask

# The root mean square length of the vectors that training starts from.
_INITIAL_LENGTH = 0.1

# Rows of items that are converted to float64 at a time.
_ROWS = 1 << 12

# Steps that stand for the exact solution.
_EXACT = 0

# With a larger edge of the noise unobserved pairs weigh less by default; chosen on validation.
_LITTLE_NOISE = 0.1

# The default regularization, relative to the scale of noise; 0.4 to 0.5 are equally good.
_OF_NOISE = 0.45


class ALSTrainer(TrainingTask):
    """The alternation: all items by the users, then all users by the items; see ``TrainingTask``.

    Parameters
    ----------
    model : ALSRecommender
        Initialised; its factors are updated in place.
    components : Components
    X : csr_array of shape (n_users, n_items)
        Canonical; values are weights, and those of dislikes negative.
    score : callable or None
        Returns the validation score of the model.
    n_threads : int
    """

    _names = "user_factors_", "item_factors_"
    divergence_hint = (
        "scaling the weights in X to about 1, or a larger regularization or unobserved_weight"
    )

    def __init__(self, model, components, X, score, n_threads):
        self.model, self._score = model, score
        self._total = total_of([summands(abs(X.data))])
        users, items = model.user_factors_, model.item_factors_
        system, n_steps = components.objective.system, components.n_steps
        alternating = [
            system(items, with_one_index_type(X).T.tocsr(), users, n_steps),
            system(users, X, items, n_steps),
        ]
        self._backend, self._trainer = backends.start(
            model.device, "least_squares_trainer", alternating, n_threads
        )

    def run_epoch(self, epoch):
        """Solve all items, then all users; return the loss per weight of an interaction."""
        return float(self._trainer.run_epoch()) / self._total

    def validation_score(self):
        """Return the validation score of the model."""
        self._trainer.pull()
        return self._score()


class Objective(NamedTuple):
    """The numbers of the squared error that a fit minimises."""

    unobserved_weight: float
    regularization: float
    exponent: float

    @classmethod
    def of(cls, model, known):
        """Return the objective of a fit to Interactions; parameters that are None depend on it."""
        n_users, n_items = known.shape
        weight, exponent = known.total() / known.nnz, float(model.regularization_exponent)
        unobserved = model.unobserved_weight
        if unobserved is None:
            unobserved = weight * np.sqrt(known.nnz / n_users / n_items)
            unobserved *= min(1, _LITTLE_NOISE / noise_edge(known, known.item_counts))
        regularization = model.regularization
        if regularization is None:
            regularization = _OF_NOISE * _scale_of_noise(known, float(unobserved), exponent)
        return cls(float(unobserved), float(regularization), exponent)

    def system(self, rows, X, fixed, n_steps):
        """Return the linear systems of the rows of a table, as the backend solves them.

        Parameters
        ----------
        rows : ndarray of shape (n, d)
            Where the solutions are written, and ``n_steps`` start.
        X : csr_array of shape (n, n_fixed)
            The weights of pairs of these rows and fixed ones; negative for dislikes.
        fixed : ndarray of shape (n_fixed, d)
        n_steps : int
            Of conjugate gradients; 0 solves exactly.
        """
        penalties = self.penalties(row_sums(X, abs), len(fixed))
        problem = LeastSquaresProblem(fixed, self.unobserved_weight, penalties, n_steps)
        return problem, rows_of(X), rows

    def penalties(self, totals, n_others):
        """Return the penalty of rows by the sums of their weights, float32."""
        scale = _growth(totals, n_others, self.unobserved_weight, self.exponent)
        with np.errstate(over="ignore"):
            return (self.regularization * scale).astype(np.float32)


class Components(NamedTuple):
    """The components and numbers of a fit."""

    max_iter: int
    objective: Objective
    n_steps: int  #: of conjugate gradients; 0 for the exact solution


def _growth(totals, n_others, unobserved_weight, exponent):
    """Return the factors of the regularization of rows, by the sums of their weights."""
    return (totals + unobserved_weight * n_others) ** exponent


def _scale_of_noise(known, unobserved_weight, exponent):
    """Return the size of the singular values of noise, in units of the regularization.

    Near zero the loss is the sum over all pairs of -2 a_ui u^T v, and the penalties p_u |u|^2 and
    p_i |v|^2, times the regularization. It falls along the singular vectors of the matrix
    a_ui / sqrt(p_u p_i) whose singular value is above the regularization. If interactions fell on
    pairs at random, with a variance of their mean, singular values would reach about the root of
    the mean sum of squares of a row, plus that of a column. The first singular value is at least
    the larger of the two, so that vectors never vanish at half of their sum.
    """
    of_users, of_items = (
        _growth(known.sums(axis), n_others, unobserved_weight, -exponent)
        for axis, n_others in ((1, known.shape[1]), (0, known.shape[0]))
    )
    n_rows = np.count_nonzero(np.diff(known.indptr))
    n_columns = np.count_nonzero(known.item_counts)
    squares = of_users @ known.squares_times(of_items)
    return np.sqrt(squares) * (n_rows**-0.5 + n_columns**-0.5)


@dataclass(eq=False, repr=False, kw_only=True)
class ALSRecommender(TrainedRecommender):
    """Matrix factorization for implicit feedback, by alternating least squares (iALS, WRMF).

    Each user and item has a vector; scores are dot products of these. Observed interactions should
    have a score of one, and all other pairs of zero, with a smaller weight [1]_. Dislikes, which
    are negative values, should have a score of zero, with their absolute value as the weight. With
    the users fixed, the best vector of each item is the solution of a linear system, and vice
    versa. Penalties grow with the number of interactions of a user or item, and initial vectors are
    short, as in [2]_, which makes the model competitive.

    Parameters
    ----------
    n_components : int, default=64
        Length of the vectors.
    unobserved_weight : float, default=None
        The weight alpha_0 of every pair of a user and an item, observed or not, in the loss. The
        values of ``X`` are the weights of observed interactions, in addition. None is the mean of
        these values times the square root of the density of ``X``, the share of pairs observed, and
        less where users or items have few interactions, see the notes.
    regularization : float, default=None
        The L2 penalty lambda of vectors, before it is scaled by frequencies. None is 0.45 times the
        size that singular values of random interactions have, see the notes.
    regularization_exponent : float, default=1.0
        The exponent nu of the scaling: a penalty is multiplied by the total weight of the pairs of
        its user or item, to this power. 0 penalises all vectors equally.
    solver : {"cg", "cholesky"}, default="cg"
        "cg" makes ``cg_steps`` steps of conjugate gradients from the current vectors. "cholesky"
        solves every linear system exactly, and takes several times as long.
    cg_steps : int, default=3
        Steps of conjugate gradients. Not used by "cholesky".
    max_iter : int, default=16
        Number of epochs; each solves for all items, then for all users.
    n_recommendations : int, default=10
        Number of items that ``predict`` returns, and the k of ``score`` and ``scoring``.
    early_stopping : bool, default=False
        Whether to hold out interactions, to find the number of epochs with the best ``scoring``,
        and then to train on all interactions for as many epochs. With ``X_val`` in ``fit`` those
        interactions are used instead, and the model of the best epoch is kept.
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
    n_iter_no_change : int or None, default=5
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
        Where ``fit`` trains by "cg", and predictions are computed: "cpu", "cuda" for an NVIDIA GPU,
        or "auto" for a GPU if one can be used. Exact solutions are computed on the CPU: new users'
        vectors, and training by "cholesky", which raises with "cuda". See :ref:`gpu`.

    Attributes
    ----------
    user_factors_ : ndarray of shape (n_users, n_components), float32
        Zeros for users without interactions.
    item_factors_ : ndarray of shape (n_items, n_components), float32
        Zeros for items without interactions.
    item_counts_ : ndarray of shape (n_items,)
        How many users have each item.
    loss_curve_ : ndarray of shape (`n_iter_`,)
        The loss after each epoch, penalties included, divided by the sum of the values of ``X``.
        Vectors of zeros have a loss of one.
    validation_scores_ : ndarray
        The score of each epoch, with early stopping.
    n_iter_, best_iter_ : int
        Number of epochs trained, and the best one.
    n_features_in_ : int
        Number of items.
    feature_names_in_ : ndarray of shape (n_items,)
        Only if X is a DataFrame whose columns are named by strings.

    Raises
    ------
    ValueError
        If the data cannot be learned from.
    DivergenceError
        If the loss or a weight stops being finite, as with huge values in ``X``; the last finite
        epoch is kept.

    Warns
    -----
    ConvergenceWarning
        From ``fit`` with early stopping, if ``max_iter`` was reached while it still improved.

    See Also
    --------
    MFRecommender : Other losses, trained by gradients.
    InteractionRecommender : Takes (user, item) pairs with any ids.

    Notes
    -----
    A default fit takes about 1.5 CPU seconds for 590,733 interactions of 6,039 users with 3,628
    items (MovieLens-1M). The first one also compiles, for about 5.

    With the vectors u of users and v of items, a_ui the absolute values of ``X``, and r_ui = 1, or
    0 for dislikes, the loss is ::

        sum_{ui observed} a_ui (r_ui - u . v)^2 + alpha_0 sum_{all ui} (u . v)^2
            + lambda sum_u (sum_i a_ui + alpha_0 n_items)^nu |u|^2
            + lambda sum_i (sum_u a_ui + alpha_0 n_users)^nu |v|^2.

    If all values of ``X`` are one, the sums of a_ui are the numbers of interactions, as in [2]_.
    Solving for a user, with V the matrix of all items' vectors, means solving ::

        (sum_i a_ui v v^T + alpha_0 V^T V + penalty I) u = sum_i a_ui r_ui v.

    The default of alpha_0 is, with the mean numbers N of items of a user and M of users of an item,
    of those that have any ::

        mean a_ui (n_interactions / (n_users n_items))^1/2 min(1, 0.1 / (N^-1/2 + M^-1/2)^2).

    The last square is the ``noise_edge_`` of :class:`GraphFilterRecommender`. The smaller alpha_0,
    the more do penalties differ between rows, by their frequencies, and the less do vectors follow
    the most frequent ones. Which weight is best depends most on how much chance there is in the
    data: :doc:`results </results_recommenders>`.

    The default of lambda comes from the loss near zero: vectors grow along the singular vectors of
    the matrix a_ui / (p_u p_i)^(1/2) whose singular value is above lambda, with the penalties p_u
    and p_i of a user and an item over lambda. It is ::

        0.45 (1 / n_users^(1/2) + 1 / n_items^(1/2)) (sum_ui a_ui^2 / (p_u p_i))^(1/2),

    with the numbers of users and items that have interactions. Singular values of interactions that
    fall on pairs at random are hardly above this without the factor. On validation parts it was
    within 3 % of the best NDCG from 10 to 40,000 items.

    ``transform``, and ``recommend`` for the rows of ``X``, solve this exactly in float64 for users
    that were not trained. As users are solved last in an epoch, a row seen in ``fit`` gets the
    vector of its user: the same up to rounding with ``solver="cholesky"``, and nearly the same
    with "cg". ``partial_fit`` adds interactions to those known and trains one epoch on all of
    them; the weights of repeated interactions add up.

    Multiplying ``X`` and ``unobserved_weight`` by the same number changes nothing if
    ``regularization_exponent`` is one. To tune, search over ``unobserved_weight`` and
    ``regularization`` on a logarithmic grid, then raise ``n_components``.

    Memory: 4 d (n_users + n_items) bytes of vectors, and a copy of them during training (two with
    early stopping). An interaction takes 12 bytes in training and 4 afterwards, 4 more each time if
    the values of ``X`` are not all one, and at most 30 with early stopping. A user takes 50 bytes,
    an item 60, and each thread 400 d + 8 d^2. An ``X`` that :func:`datasets.load_csr` maps into
    memory is not copied.

    Time per epoch with "cg": about 4 (``cg_steps`` + 1) d multiplications per interaction, and
    (``cg_steps`` + 2) d^2 per user and item; with "cholesky" d^2 per interaction and d^3 / 6 per
    user and item.

    References
    ----------
    .. [1] Y. Hu, Y. Koren, C. Volinsky. "Collaborative Filtering for Implicit Feedback Datasets".
       ICDM 2008.
    .. [2] S. Rendle, W. Krichene, L. Zhang, Y. Koren. "Revisiting the Performance of iALS on Item
       Recommendation Benchmarks". RecSys 2022, arXiv:2110.14037 (2021).

    Examples
    --------
    >>> from freqfm import ALSRecommender
    >>> from freqfm.datasets import make_interactions
    >>> X = make_interactions(200, 100, random_state=0)
    >>> model = ALSRecommender(n_components=16, random_state=0).fit(X)
    >>> items, scores = model.recommend(users=[0, 1], n_recommendations=3)
    >>> items.shape
    (2, 3)
    >>> model.transform(X).shape
    (200, 16)
    """

    _records = {**TrainedRecommender._records, "_objective": Objective}
    # Least squares cannot step on a part of the data.
    _keeps_weights = _stores_users = _uses_dislikes = _trains_on_all = True
    _weights_in_fit, _weights_in_histories = (1e-6, 1e10), (0.0, 1e10)

    _parameter_constraints: ClassVar = {
        "unobserved_weight": [*POSITIVE, None],
        "regularization": [*POSITIVE, None],
        "regularization_exponent": NON_NEGATIVE,
        "solver": [StrOptions({"cg", "cholesky"})],
        "cg_steps": POSITIVE_INTEGER,
        "max_iter": POSITIVE_INTEGER,
    }

    n_components: int = field(default=64, kw_only=False)
    unobserved_weight: float | None = None
    regularization: float | None = None
    regularization_exponent: float = 1.0
    solver: str = "cg"
    cg_steps: int = 3
    max_iter: int = 16
    n_iter_no_change: int | None = 5

    def partial_fit(self, X, y=None, *, dislikes=None):
        """Add interactions to those known, and train one epoch on all; users and items may be new.

        New users start with the result of ``transform`` on the items that the model knows. New
        items, and users with only new items, start as in ``fit``. The values of ``X`` are added to
        the weights of interactions that the model knows. Of a pair that is liked and disliked the
        last call counts.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_users, n_items)
            New interactions. Rows beyond the users of the model are new users, columns beyond its
            items new items. There may be fewer rows than users, but not fewer columns than items.
            Negative values are dislikes.
        y : Ignored
        dislikes : {array-like, sparse matrix} of shape (n_users, n_items), default=None
            As in ``fit``.

        Returns
        -------
        self : object
        """
        return super().partial_fit(X, y, dislikes=dislikes)

    # Training.

    def _learned(self):
        sides = {"user_factors_": "users", "item_factors_": "items"}
        return [Learned(name, (axis, "components")) for name, axis in sides.items()]

    def _resolve_components(self, interactions, known):
        check_size(self, known.shape)
        return Components(
            max_iter=int(self.max_iter),
            objective=Objective.of(self, known),
            n_steps=_EXACT if self.solver == "cholesky" else int(self.cg_steps),
        )

    def _draw(self, side, n, first=0):
        """Return initial rows for users or items, from a random stream for each side."""
        d = int(self.n_components)
        generator = np.random.default_rng([self._seed, side == "item", first])
        scale = np.float32(_INITIAL_LENGTH / np.sqrt(d))
        return scale * generator.standard_normal((n, d), dtype=np.float32)

    def _start(self, data, components, reset):
        if reset:
            self.user_factors_ = self.item_factors_ = np.zeros((0, int(self.n_components)))
            self._init_curves()
        n_users, n_items = len(self.user_factors_), len(self.item_factors_)
        users = self._draw("user", data.shape[0] - n_users, n_users)
        items = self._draw("item", data.shape[1] - n_items, n_items)
        if len(users) and not reset:
            likes = likes_of_new_users(data, n_users, n_items)
            placed = self._solve_rows(likes, components.objective)
            # Users without known items keep their random vectors.
            has_place = placed.any(axis=1)
            users[has_place] = placed[has_place]
        self.user_factors_ = as_kernel_array(np.concatenate([self.user_factors_, users]))
        self.item_factors_ = as_kernel_array(np.concatenate([self.item_factors_, items]))
        sizes = dict(zip(("users", "items"), data.shape, strict=True))
        extend(self, entries_of(self, ALSTrainer._names), sizes, reset)

    def _keep_settings(self, components, known):
        self._objective = components.objective

    def _make_trainer(self, components, interactions, known, score):
        return ALSTrainer(self, components, known.signed, score, count_threads(self.n_jobs))

    # Users by their histories.

    def _fold_in_rows(self, X):
        return self._solve_rows(X, self._objective)

    def _solve_rows(self, X, objective):
        """Return the vectors that minimise the loss of the rows of a canonical matrix."""
        items = as_kernel_input(self.item_factors_)
        rows = np.zeros((X.shape[0], items.shape[1]), dtype=np.float32)
        # Few rows are solved exactly, and on the CPU.
        system = objective.system(rows, X, items, _EXACT)
        backends.get().least_squares(*system, count_threads(self.n_jobs))
        return rows

    def explain(self, user, item, X=None):
        """Return the contribution of each item of a user's history to a score.

        A user's vector is the solution of a linear system, and so a sum over the user's items: item
        i contributes a_ui v_item^T W v_i to the score, with W the inverse of the user's matrix.

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
            ``history``, the user's items in descending order of ``contributions``; ``rest``, the
            part of the score by which the user's vector differs from the exact solution, zero up
            to rounding with ``X``; and ``score``, the sum of both.
            As in ``predict_pairs``, the score of a user without history is the share
            of users that have the item, and that of an item without users is -inf; it is all
            rest.
        """
        return self._explain(user, item, X)

    def _contributions(self, query, history, item):
        """Return the contributions of a history's items to the score of an item, float64."""
        items, weights = self.item_factors_, abs(history.data.astype(np.float64))
        rows, wanted = (items[i].astype(np.float64) for i in (history.indices, item))
        (penalty,) = self._objective.penalties(weights.sum(keepdims=True), len(items))
        matrix = (rows * weights[:, None]).T @ rows + penalty * np.eye(items.shape[1])
        for some in slices(len(items), _ROWS):
            part = items[some].astype(np.float64)
            matrix += self._objective.unobserved_weight * (part.T @ part)
        # Dislikes, whose score should be zero, are part of the matrix alone.
        return np.maximum(history.data, 0) * (rows @ np.linalg.solve(matrix, wanted))
