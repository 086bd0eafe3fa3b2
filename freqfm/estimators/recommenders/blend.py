"""BlendRecommender: the weighted scores of several recommenders."""

import functools
import operator
import time
from copy import deepcopy
from dataclasses import KW_ONLY, dataclass
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from sklearn.base import clone
from sklearn.utils import Bunch
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from freqfm._components import POSITIVE, POSITIVE_INTEGER, validate_params
from freqfm._docs import described_like
from freqfm._input.item_tables import refuse_table
from freqfm._input.rows import entries_where, slices, split_signs, take_rows, with_one_index_type
from freqfm._input.validation import (
    canonical_csr,
    check_flag,
    draw_seed,
    validate_ids,
    validate_rows,
)
from freqfm._messages import cut, shown, warn_user
from freqfm._signals import release_signals
from freqfm._sklearn import BaseComposition, Interval, StrOptions
from freqfm._versions import VersionStamp
from freqfm.estimators.progress import announced_fits
from freqfm.estimators.recommenders.als import ALSRecommender
from freqfm.estimators.recommenders.base import (
    BaseRecommender,
    check_query,
    checked_pairs,
    recommender_tags,
    refuse_empty,
    score_of_users,
)
from freqfm.estimators.recommenders.closed_form.base import listed_rows
from freqfm.estimators.recommenders.closed_form.ease import EASERecommender
from freqfm.estimators.recommenders.closed_form.graph_filter import GraphFilterRecommender
from freqfm.estimators.recommenders.closed_form.item_knn import ItemKNNRecommender
from freqfm.estimators.recommenders.index import Request, of_single
from freqfm.estimators.recommenders.interactions import are_among, pair_numbers, without
from freqfm.estimators.recommenders.mf import MFRecommender
from freqfm.estimators.recommenders.to_parquet import RecommendToMixin
from freqfm.estimators.recommenders.vae import FastVAERecommender
from freqfm.estimators.state import ServingMixin
from freqfm.estimators.training import attempt
from freqfm.model_selection import holdout_interactions
from freqfm.model_selection._scorer import METRICS, OF_ALL_USERS, metric_and_k
from freqfm.reranking import diversify

# Steps of a forward selection, the number of selections, and users of each, at most a half of all.
_STEPS, _BAGS, _USERS_OF_BAG = 10, 10, 1500

# Members by their scores: (score / best score) to this power.
_POWER = 4

# Smaller weights are not worth the time of the member's requests.
_LEAST_WEIGHT = 0.05


class HeldOutUsers:
    """Users with held-out items, and what the members of a blend make of the items.

    Parameters
    ----------
    values : list of csr_array of shape (n_users, n_items)
        Of each member, see :func:`~freqfm.estimators.recommenders.blend.standardized`; canonical.
    relevant : csr_array of shape (n_users, n_items)
        Held-out items.
    metric : str
    k : int
        Length of the rankings.
    """

    def __init__(self, values, relevant, metric, k):
        self._relevant, self._metric, self._k = relevant, METRICS[metric], k
        pairs = [pair_numbers(matrix) for matrix in values]
        union = np.unique(np.concatenate(pairs))
        users, items = np.divmod(union, relevant.shape[1])
        n_users = relevant.shape[0]
        begins = np.searchsorted(users, np.arange(n_users + 1))
        places = np.arange(len(union)) - begins[users]
        width = max(k, int(np.diff(begins).max(initial=0)))
        self._items = np.full((n_users, width), -1)
        self._items[users, places] = items
        self.values = np.zeros((len(values), n_users, width), dtype=np.float32)
        for table, numbers, matrix in zip(self.values, pairs, values, strict=True):
            at = np.searchsorted(union, numbers)
            table[users[at], places[at]] = matrix.data

    def scores(self, totals, users=slice(None)):
        """Return the score of each user, (n,), if items are ranked by ``totals``, (n, width)."""
        k = self._k
        best = np.argpartition(-totals, k - 1, axis=1)[:, :k]
        items = np.take_along_axis(self._items[users], best, axis=1)
        ranked, scores = _top(items, np.take_along_axis(totals, best, axis=1), k)
        ranked[scores <= 0] = -1
        return self._metric(self._relevant[users], ranked, k, average=False)


def forward_selection(held_out, users):
    """Return weights by forward selection with replacement [1]_, on some of the users.

    The member that improves the mean score most is added, again and again; the weights are how
    often each was added up to the best step.

    References
    ----------
    .. [1] R. Caruana, A. Niculescu-Mizil, G. Crew, A. Ksikes. "Ensemble Selection from Libraries
       of Models". ICML 2004.
    """
    values = held_out.values[:, users]
    total, added, means = np.zeros_like(values[0]), [], []
    for _ in range(_STEPS):
        found = [held_out.scores(total + matrix, users).mean() for matrix in values]
        best = int(np.argmax(found))
        total += values[best]
        added.append(best)
        means.append(found[best])
    return np.bincount(added[: int(np.argmax(means)) + 1], minlength=len(values))


def find_weights(held_out, generator):
    """Return the weights of a blend, and the mean scores of its members and of the blend.

    Half of a weight is the mean over forward selections on random parts of the users, which alone
    would follow chance too closely; the other half is the member's score, relative to the best,
    to the fourth power. The best member is left alone if it is ahead of the blend by more than a
    standard error: the best of several is ahead by chance, too. Of eight fits in which it was ahead
    by less, the blend had 0.9 to 2.5 % more NDCG@20 on test parts in the four of MovieLens-100K and
    of parts of it, and 0.1 to 2.7 % less in those of drawn, small or thinned data.
    """
    n_members, n_users, _ = held_out.values.shape
    single = np.array([held_out.scores(matrix) for matrix in held_out.values])
    means = single.mean(axis=1)
    best = int(np.argmax(means))
    alone = np.eye(n_members)[best]
    if n_members == 1 or means[best] <= 0:
        return alone, means, means[best]
    weights = (np.maximum(means, 0) / means[best]) ** _POWER
    weights /= weights.sum()
    size = min(_USERS_OF_BAG, -(-n_users // 2))
    for _ in range(_BAGS):
        users = np.sort(generator.choice(n_users, size, replace=False))
        counts = forward_selection(held_out, users)
        weights += counts / counts.sum() / _BAGS
    weights /= 2
    weights[weights < _LEAST_WEIGHT] = 0
    weights /= weights.sum()
    blended = held_out.scores(np.tensordot(weights.astype(np.float32), held_out.values, 1))
    lead = single[best] - blended
    if lead.mean() >= lead.std() / np.sqrt(n_users):
        return alone, means, means[best]
    return weights, means, blended.mean()


# Users whose rankings choose the weights, at most.
_HELD_OUT_USERS = 10_000

# Candidates of all members that are merged at a time.
_PLACES = 1 << 22


class _Lists(NamedTuple):
    """The best items of users by one member, and what its scores are standardized by."""

    values: sparse.csr_array  #: (n_users, n_items) float32, canonical: scores in units of spread
    least: np.ndarray  #: (n_users, 1), the lowest score of the list
    spread: np.ndarray  #: (n_users, 1), the standard deviation of its scores


def standardized(items, scores, n_items):
    """Return the :class:`_Lists` of ranked items, -1 for none, and their scores.

    The lowest score of each list becomes 0, and the standard deviation 1: members count alike,
    whatever the scale of their scores.
    """
    listed = items >= 0
    number = np.maximum(listed.sum(axis=1, keepdims=True), 1)
    scores = np.where(listed, scores, np.inf).astype(np.float64)
    least = scores.min(axis=1, keepdims=True)
    least[~np.isfinite(least)] = 0
    above = np.where(listed, scores - least, 0)
    centred = np.where(listed, above - above.sum(axis=1, keepdims=True) / number, 0)
    spread = np.sqrt((centred**2).sum(axis=1, keepdims=True) / number)
    spread[spread == 0] = 1
    return _Lists(_as_rows(items, above / spread, n_items), least, spread)


def _as_rows(items, values, n_items):
    """Return items of users, -1 for none, and their values, as a canonical matrix without zeros."""
    items = np.where(values > 0, items, -1)
    return canonical_csr(listed_rows(items, values.astype(np.float32), n_items))


def _of_members(name):
    """Return a decorator of methods that all members must have."""

    def has(self):
        return all(hasattr(member, name) for _, member in self._members())

    return available_if(has)


def default_members(time_limit=None):
    """Return the recommenders that a blend has by default, in order of cost."""
    members = [
        ("als", ALSRecommender()),
        ("ease", EASERecommender()),
        ("graph_filter", GraphFilterRecommender()),
        ("item_knn", ItemKNNRecommender()),
        ("mf", MFRecommender()),
    ]
    return members if time_limit is None else [*members, ("vae", FastVAERecommender())]


# CPU seconds of default fits, about, in those of ALSRecommender.
_COSTS = {"EASE": 4, "GraphFilter": 3, "MF": 30, "FastVAE": 20, "Popularity": 0.01, "Blend": 80}


def costs_of(members):
    """Return how long recommenders take to be fitted, relative to each other, by name."""
    kinds = {name: type(member).__name__ for name, member, *_ in members}
    return {name: _COSTS.get(kind.removesuffix("Recommender"), 1) for name, kind in kinds.items()}


def checked_members(estimators, method):
    """Return names and recommenders; raise unless they are such, with a method of this name."""
    for member in estimators if isinstance(estimators, list) else [estimators]:
        is_pair = isinstance(member, tuple) and len(member) == 2 and isinstance(member[0], str)
        if not is_pair or not hasattr(member[1], method) or isinstance(member[1], type):
            raise TypeError(
                f"estimators holds {cut(shown(member), 80)}; give (name, recommender) pairs."
            )
    return estimators


def with_params(member, given):
    """Return a recommender with these parameters wherever it has one of None; see ``clone``."""
    lacking = [name for name, value in member.get_params().items() if value is None]
    lacking = {name: name.rpartition("__")[2] for name in lacking}
    return member.set_params(**{n: given[last] for n, last in lacking.items() if last in given})


@dataclass(eq=False, repr=False)
class BlendRecommender(RecommendToMixin, ServingMixin, VersionStamp, BaseComposition):
    """The answer of several recommenders: their scores, weighted by how well each one ranks.

    ``fit`` holds out a part of each user's interactions, fits the members to the rest, finds the
    weights that rank what was held out best, and fits the members with a weight again, to
    everything. The score of an item for a user is ::

        sum_m w_m max(0, s_m - l_m) / d_m

    over the members m, where s_m is the member's score, and l_m and d_m are the lowest score and
    the standard deviation of the user's ``n_candidates`` best items by the member. So members count
    alike, whatever the scale of their scores. Items in no list follow, in the order of the member
    with the largest weight; their scores are not above 0.

    Half of a weight comes from forward selection with replacement [1]_, averaged over random parts
    of the users, half is (score / best score)^4. If the best member is ahead of the blend by more
    than a standard error over users, that member is left alone.

    Parameters
    ----------
    estimators : list of (str, estimator), default=None
        Names and recommenders of users x items. None is :class:`ALSRecommender`,
        :class:`EASERecommender`, :class:`GraphFilterRecommender`, :class:`ItemKNNRecommender` and
        :class:`MFRecommender`; with a ``time_limit`` also :class:`FastVAERecommender`. Those with
        an ``n_jobs`` or a ``random_state`` of None get the blend's.
    weights : "auto", array-like of float of shape (n_estimators,), or None, default="auto"
        "auto" finds them; None means equal ones. Where they are given, nothing is held out.
    scoring : str, default="ndcg"
        The metric by which weights are found, at ``n_recommendations``; or such as "recall@20". See
        :func:`~freqfm.model_selection.make_ranking_scorer`.
    n_candidates : int, default=200
        Items of each member's list.
    validation_fraction : float, default=0.1
        Share of each user's interactions that is held out to find the weights.
    time_limit : float, default=None
        Seconds that ``fit`` may take, about: members that are not fitted in half of these are left
        out. At least one is fitted.
    n_recommendations : int, default=10
        Number of items that ``predict`` returns, and the k of NDCG in ``score``.
    n_jobs : int, default=None
        Threads, at most one per core; None uses all cores. The result does not depend on it.
    random_state : int, RandomState, Generator or None, default=None
        Seed of what is held out, of the search of weights, and of the members.
    verbose : int, default=0
        1 shows which member is fitted, how many fits are done, and the time left: as a bar, or in a
        line for each fit, as 2 does. What members show is up to their own ``verbose``.

    Attributes
    ----------
    estimators_ : list of estimators
        The fitted members that have a weight.
    named_estimators_ : Bunch
        The same by name.
    weights_ : ndarray of shape (n_members,)
        Their weights, which add up to 1.
    validation_scores_ : dict of float
        Scores on the held-out interactions, by the names of members, and of "blend". Only if
        weights are found.
    fit_seconds_ : dict of float
        Seconds of the first fit of each member.
    n_features_in_ : int
        Number of items.
    feature_names_in_ : ndarray of shape (n_items,)
        Only if X is a DataFrame whose columns are named by strings.

    Raises
    ------
    ValueError
        If no member can be fitted; the message has their errors.

    Warns
    -----
    UserWarning
        If a member cannot take the data, or memory or time does not suffice for it. The others are
        blended.

    See Also
    --------
    InteractionRecommender : ``InteractionRecommender("auto")`` blends from tables with ids.
    freqfm.model_selection.compare_recommenders : A table of recommenders on the same data.

    Notes
    -----
    A default fit takes about 250 CPU seconds for 590,733 interactions of 6,039 users with 3,628
    items (MovieLens-1M).

    NDCG@20 of default members, one seed, beside that of the best of them: MovieLens-100K 0.4446 and
    0.4411, MovieLens-1M 0.3973 and 0.3925, Gowalla 0.1621 and 0.1587
    (``benchmarks/quality/blends.py``). With :class:`FastVAERecommender`, which a ``time_limit``
    adds, and which takes longest: 0.4461, 0.3974 and 0.1638.

    A fit takes twice the time of its members, or less if some get no weight. A request takes the
    time of the requests of its members, and memory of 8 bytes for each of ``n_candidates`` of each
    member, for up to four million candidates at a time.

    References
    ----------
    .. [1] R. Caruana, A. Niculescu-Mizil, G. Crew, A. Ksikes. "Ensemble Selection from Libraries
       of Models". ICML 2004.

    Examples
    --------
    >>> from freqfm import ALSRecommender, BlendRecommender, ItemKNNRecommender
    >>> from freqfm.datasets import make_interactions
    >>> X = make_interactions(300, 100, 6000, random_state=0)
    >>> members = [("als", ALSRecommender(16)), ("knn", ItemKNNRecommender(20))]
    >>> model = BlendRecommender(members, random_state=0).fit(X)
    >>> sorted(model.validation_scores_)
    ['als', 'blend', 'knn']
    >>> items, scores = model.recommend(users=[0, 1], n_recommendations=3)
    >>> items.shape
    (2, 3)
    """

    _parameter_constraints = {
        "estimators": [list, None],
        "weights": [StrOptions({"auto"}), "array-like", None],
        "scoring": [str],
        "n_candidates": POSITIVE_INTEGER,
        "validation_fraction": [Interval(Real, 0, 1, closed="neither")],
        "time_limit": [*POSITIVE, None],
        "n_recommendations": POSITIVE_INTEGER,
        "n_jobs": [Integral, None],
        "random_state": ["random_state", np.random.Generator],
        "verbose": ["verbose"],
    }

    estimators: Any = None
    _: KW_ONLY
    weights: Any = "auto"
    scoring: str = "ndcg"
    n_candidates: int = 200
    validation_fraction: float = 0.1
    time_limit: float | None = None
    n_recommendations: int = 10
    n_jobs: int | None = None
    random_state: Any = None
    verbose: int = 0

    # Parameters.

    @property
    def _finds_weights(self):
        return isinstance(self.weights, str)

    def _members(self):
        return default_members(self.time_limit) if self.estimators is None else self.estimators

    def get_params(self, deep=True):
        """Return the parameters, with ``deep`` those of the members too, as ``mf__loss``.

        Parameters
        ----------
        deep : bool, default=True

        Returns
        -------
        params : dict
        """
        if self.estimators is None:
            return super().get_params(deep=False)
        return self._get_params("estimators", deep=deep)

    def set_params(self, **params):
        """Set parameters; ``mf`` or ``mf__loss`` is the member "mf", or a parameter of it.

        With ``estimators=None`` the default members are written out first.

        Parameters
        ----------
        **params : dict

        Returns
        -------
        self : object
        """
        own = self._get_param_names()
        if params.get("estimators", self.estimators) is None:
            if all(name.partition("__")[0] in own for name in params):
                return super().set_params(**params)
            params["estimators"] = default_members(params.get("time_limit", self.time_limit))
        return self._set_params("estimators", **params)

    def __sklearn_tags__(self):
        return recommender_tags(super().__sklearn_tags__())

    # Fits.

    def fit(self, X, y=None, *, X_val=None, dislikes=None):
        """Fit the members, find their weights, and fit those with a weight again.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_users, n_items)
            Interactions; values are their weights, negative ones are dislikes. Rows and columns may
            be empty.
        y : Ignored
        X_val : {array-like, sparse matrix} of shape (n_users, n_items), default=None
            Interactions by which weights are found, in place of a random part of ``X``: later ones,
            for instance. Those that ``X`` holds too are left out of it meanwhile; if it holds none,
            no second fit is needed.
        dislikes : {array-like, sparse matrix} of shape (n_users, n_items), default=None
            Items that users dislike: all entries that are not zero.

        Returns
        -------
        self : object
        """
        validate_params(self)
        if metric_and_k("scoring", self.scoring)[0] in OF_ALL_USERS:
            raise ValueError(f"scoring={self.scoring!r} is no mean over users; take 'ndcg'.")
        with attempt(self), release_signals():
            X = self._checked(X, reset=True)
            refuse_empty(X)
            options = self._options(dislikes)
            seed = draw_seed(self.random_state)
            given = {"n_jobs": self.n_jobs, "random_state": seed}
            members = [(n, with_params(clone(one), given)) for n, one in self._checked_members()]
            if self._finds_weights:
                members = self._with_found_weights(members, X, X_val, options, seed)
            else:
                if X_val is not None:
                    raise ValueError(
                        "fit was given X_val, but finds no weights by it, as weights are given; "
                        "set weights='auto', or leave X_val out."
                    )
                members = self._with_given_weights(members)
                with self._announced(members, len(members)) as begin:
                    members = self._fit_weighted(members, X, options, begin)
            names, self.estimators_, weights = map(list, zip(*members, strict=True))
            self.named_estimators_ = Bunch(**dict(zip(names, self.estimators_, strict=True)))
            self.weights_ = np.array(weights)
            self.n_users_ = X.shape[0]
        return self

    def _checked(self, X, reset=False, name=None):
        """Return interactions as a canonical matrix; errors begin with the name of an argument."""
        try:
            refuse_table(X)
            return validate_rows(self, X, reset=reset)[0]
        except ValueError as error:
            if name is None:
                raise
            raise ValueError(f"{name}: {error}") from None

    def _options(self, dislikes):
        """Return the options of the members' fits."""
        return {} if dislikes is None else {"dislikes": self._checked(dislikes, name="dislikes")}

    def _checked_members(self):
        """Return the members; raise unless they are pairs of a name and a recommender."""
        members = self._members()
        if not members:
            raise ValueError("estimators is empty; give a list of (name, recommender) or None.")
        self._validate_names([name for name, _ in checked_members(members, "recommend")])
        return members

    def _with_given_weights(self, members):
        """Return names, members and weights of those with a weight."""
        weights = np.ones(len(members))
        if self.weights is not None:
            try:
                weights = np.asarray(self.weights, dtype=float)
            except (TypeError, ValueError):
                weights = np.array(np.nan)
        if weights.shape != (len(members),) or not np.isfinite(weights).all() or weights.min() < 0:
            raise ValueError(
                f"weights={cut(shown(self.weights), 80)} must be {len(members)} numbers, one for "
                f"each of estimators, none of them negative."
            )
        if not weights.any():
            raise ValueError("weights are all 0; at least one estimator needs a weight.")
        weights = weights / weights.sum()
        return [(*one, weight) for one, weight in zip(members, weights, strict=True) if weight]

    def _with_found_weights(self, members, X, X_val, options, seed):
        """Return names, members and weights of those that are worth one, fitted to ``X``."""
        generator = np.random.default_rng(seed)
        if X_val is None:
            history, held_out = holdout_interactions(
                X, self.validation_fraction, random_state=generator
            )
        else:
            held_out = self._checked(X_val, name="X_val")
            if held_out.shape != X.shape:
                raise ValueError(f"X_val has shape {held_out.shape}, but X has {X.shape}.")
            history = without(X, held_out)
            if not history.nnz:
                raise ValueError("X_val holds all interactions of X; none is left to fit to.")
        history, held_out = canonical_csr(history), split_signs(canonical_csr(held_out))[0]
        refuse_empty(history)
        users = np.flatnonzero((np.diff(held_out.indptr) > 0) & (np.diff(history.indptr) > 0))
        if not len(users):
            raise ValueError(
                "no user has held-out interactions beside others, to find weights by; give "
                "weights=None, or as X_val later interactions of the users of X."
            )
        if len(users) > _HELD_OUT_USERS:
            users = np.sort(generator.choice(users, _HELD_OUT_USERS, replace=False))
        n_rounds = 1 + (history.nnz < X.nnz)
        with self._announced(members, n_rounds * len(members)) as begin:
            tried = self._fit_members(members, history, options, begin, n_rounds)
            names = [name for name, _ in tried]
            begin("finding the weights of the blend", names * (n_rounds - 1))
            evaluation = self._evaluation([one for _, one in tried], users, held_out)
            weights, scores, blend = find_weights(evaluation, generator)
            self.validation_scores_ = dict(zip(names, map(float, scores), strict=True))
            self.validation_scores_["blend"] = float(blend)
            found = [(*one, float(w)) for one, w in zip(tried, weights, strict=True) if w]
            return self._fit_weighted(found, X, options, begin) if n_rounds > 1 else found

    def _announced(self, members, n_fits):
        """Return the context manager of a function that announces fits, and their time."""
        self.fit_seconds_ = {}
        return announced_fits(self.verbose, n_fits, costs_of(members), self.fit_seconds_)

    def _fit_weighted(self, members, X, options, begin):
        """Return names, members and weights, with the members fitted to everything."""
        fitted, names = [], [name for name, *_ in members]
        for at, (name, member, weight) in enumerate(members):
            begin(f"fitting {cut(name)} to everything, weight {weight:.2f}", names[at:])
            start = time.perf_counter()
            fitted.append((name, clone(member).fit(X, **options), weight))
            self.fit_seconds_.setdefault(name, time.perf_counter() - start)
        return fitted

    def _fit_members(self, members, X, options, begin, n_rounds):
        """Return names and members that could be fitted, within half of the time limit."""
        fitted, errors, names = [], {}, [name for name, _ in members]
        for at, (name, member) in enumerate(members):
            spent = sum(self.fit_seconds_.values())
            # The next member is at least as expensive as the last one, if it is a default.
            next_one = max(self.fit_seconds_.values(), default=0)
            if self.time_limit and fitted and 2 * (spent + next_one) > self.time_limit:
                errors[name] = f"{spent:.1f} s are spent, and the members are fitted twice"
                continue
            again = (n_rounds - 1) * list(self.fit_seconds_)
            begin(f"fitting {cut(name)} without what is held out", names[at:] * n_rounds + again)
            start = time.perf_counter()
            try:
                member.fit(X, **options)
            except (MemoryError, NotImplementedError, TypeError, ValueError) as error:
                errors[name] = f"{type(error).__name__}: {cut(error)}"
                continue
            self.fit_seconds_[name] = time.perf_counter() - start
            fitted.append((name, member))
        left_out = "; ".join(f"{name} ({reason})" for name, reason in errors.items())
        if not fitted:
            raise ValueError(f"no member of the blend could be fitted: {left_out}")
        if errors:
            warn_user(f"The blend leaves out {left_out}.")
        return fitted

    def _evaluation(self, members, users, held_out):
        """Return held-out users with the lists of each member."""
        lists = [self._lists(member, {"users": users}) for member in members]
        metric, k = metric_and_k("scoring", self.scoring)
        k = k or self.n_recommendations
        return HeldOutUsers([one.values for one in lists], take_rows(held_out, users), metric, k)

    @_of_members("partial_fit")
    def partial_fit(self, X, y=None, *, dislikes=None):
        """Train the members further; the weights stay as they are.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_users, n_items)
            New interactions. Rows beyond the users of the model are new users, columns beyond its
            items new items.
        y : Ignored
        dislikes : {array-like, sparse matrix} of shape (n_users, n_items), default=None
            Items that users dislike.

        Returns
        -------
        self : object
        """
        if not hasattr(self, "estimators_"):
            return self.fit(X, dislikes=dislikes)
        with attempt(self), release_signals():
            X = self._checked(X, reset=True)
            options = self._options(dislikes)
            # All or none: an error leaves the members as they were.
            members = deepcopy(self.estimators_)
            for member in members:
                member.partial_fit(X, **options)
            self.estimators_ = members
            self.named_estimators_ = Bunch(
                **dict(zip(self.named_estimators_, members, strict=True))
            )
            self.n_users_ = max(self.n_users_, X.shape[0])
        return self

    @described_like(ServingMixin.for_serving)
    def for_serving(self, *, dtype="float32"):
        """Return a copy of the model that recommends, for files and services.

        Members are copied so; those without vectors stay as they are.
        """
        model = super().for_serving()
        members = [
            m.for_serving(dtype=dtype if m._names_of_vectors() else "float32")
            if isinstance(m, ServingMixin)
            else m
            for m in self.estimators_
        ]
        model.estimators_ = members
        model.named_estimators_ = Bunch(**dict(zip(self.named_estimators_, members, strict=True)))
        return model

    # Predictions.

    def _lists(self, member, query, **options):
        """Return the :class:`_Lists` of a member's best unseen items."""
        items, scores = member.recommend(**query, n_recommendations=self.n_candidates, **options)
        return standardized(items, scores, self.n_features_in_)

    def _all_lists(self, query):
        """Return the lists of all members."""
        return [self._lists(member, query) for member in self.estimators_]

    def _weighted(self, values):
        """Return the weighted sum of the members' values, as a canonical matrix."""
        weighted = [
            with_one_index_type(matrix) * np.float32(weight)
            for matrix, weight in zip(values, self.weights_, strict=True)
        ]
        return canonical_csr(functools.reduce(operator.add, weighted))

    def _of_pairs(self, query, pairs, lists):
        """Return the scores of the entries of a canonical matrix, in their order.

        Unlike the lists, members are asked for these items, which users may have.
        """
        n, numbers = max(1, int(np.diff(pairs.indptr).max(initial=0))), pair_numbers(pairs)
        values, rest = np.zeros((len(lists), pairs.nnz)), np.full(pairs.nnz, -np.inf)
        options = {"candidates": pairs, "exclude_seen": False, "n_recommendations": n}
        for at, (member, listed) in enumerate(zip(self.estimators_, lists, strict=True)):
            items, scores = member.recommend(**query, **options)
            users, places = np.nonzero(items >= 0)
            found = np.searchsorted(numbers, users * pairs.shape[1] + items[users, places])
            units = (scores[users, places] - listed.least[users, 0]) / listed.spread[users, 0]
            values[at, found] = np.maximum(units, 0)
            if at == self._main:
                rest[found] = _below_zero(units)
        total = np.zeros(pairs.nnz, dtype=np.float32)
        for weight, row in zip(self.weights_, values.astype(np.float32), strict=True):
            total += np.float32(weight) * row
        return np.where(total > 0, total, rest).astype(np.float32)

    @property
    def _main(self):
        """The place of the member with the largest weight."""
        return int(np.argmax(self.weights_))

    @described_like(BaseRecommender.recommend)
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
    ):
        """Recommend items to users.

        Parameters
        ----------
        exclude_seen : bool, default=True
            Whether to exclude the items of a user's history, and those that the user dislikes. The
            items of the history among the best ``n_candidates`` of a member are ranked otherwise.
        candidates : array-like of int or sparse matrix of shape (n_users, n_items), default=None
            Items that may be recommended: to all users, or to each user. None allows all.
        exclude : array-like of int or sparse matrix of shape (n_users, n_items), default=None
            Items to exclude: for all users, or for each user.
        diversity : float, default=0.0
            From 0 to 1: how much the items of a list are to differ, see
            :func:`freqfm.reranking.diversify`.
        item_vectors : {array-like, sparse matrix} of shape (n_items, n_dimensions), default=None
            Features by which items differ, such as genres; None takes the vectors of the member
            with the largest weight that has any. Without ``diversity`` they are not used.

        Returns
        -------
        items : ndarray of shape (n_users, n_recommendations), int64
            In descending order of scores, or with ``diversity`` as they were chosen; -1 where there
            are too few. One-dimensional if ``users`` is a single number.
        scores : ndarray of the same shape, float32
            See the formula above; -inf where there is no item.

        Raises
        ------
        ValueError
            If neither or both of ``X`` and ``users`` are given, or indices are out of range.
        """
        check_is_fitted(self, "estimators_")
        query, n_queries = self._queries(X, users)
        n = self.n_recommendations if n_recommendations is None else n_recommendations
        request = Request(n, candidates, exclude, diversity, item_vectors)
        request = request.checked(n_queries, self.n_features_in_)
        exclude_seen, pool = check_flag("exclude_seen", exclude_seen), request
        if request.diversity:
            pool = request.pool(self.n_features_in_)
            vectors = self._vectors_to_differ(request.vectors)
        items = np.full((n_queries, request.n), -1)
        scores = np.full(items.shape, -np.inf, dtype=np.float32)
        step = max(1, _PLACES // max(pool.n, len(self.estimators_) * self.n_candidates))
        for part in slices(n_queries, step):
            rows = np.arange(part.start, part.stop)
            found = self._rank(_rows_of(query, rows), pool.of(rows), exclude_seen)
            if request.diversity:
                found = diversify(*found, vectors, request.diversity, request.n, n_jobs=self.n_jobs)
            items[part], scores[part] = found
        return of_single(users, (items, scores))

    def _queries(self, X, users):
        """Return the arguments of members that name users, and how many these are."""
        check_query(X, users)
        if X is not None:
            X = self._checked(X)
            return {"X": X}, X.shape[0]
        users = validate_ids("users", users, self.n_users_)
        return {"users": users}, len(users)

    def _rank(self, query, request, exclude_seen):
        """Return the best items of some users, and their scores."""
        lists = self._all_lists(query)
        total = self._weighted([listed.values for listed in lists])
        if not exclude_seen:
            # Which items these are is up to the members; their scores follow from the same lists.
            more = [self._lists(member, query, exclude_seen=False) for member in self.estimators_]
            total = canonical_csr(self._weighted([listed.values for listed in more]) + total)
            total.data = self._of_pairs(query, total, lists)
        total = _allowed(total, request)
        items, scores = _top(*_padded(total, request.n), request.n)
        short = np.flatnonzero(items[:, -1] < 0)
        if len(short):
            known, query = take_rows(total, short), _rows_of(query, short)
            rest = self._rest(
                query, lists[self._main], short, known, request.of(short), exclude_seen
            )
            both = map(np.hstack, zip(_padded(known), rest, strict=True))
            items[short], scores[short] = _top(*both, request.n)
        return items, scores

    def _rest(self, query, listed, short, known, request, exclude_seen):
        """Return items in no list, and their scores, of users with too few others."""
        items, scores = self.estimators_[self._main].recommend(
            **query,
            n_recommendations=request.n + int(np.diff(known.indptr).max(initial=0)),
            exclude_seen=exclude_seen,
            candidates=request.candidates,
            exclude=request.exclude,
        )
        numbers = np.arange(len(short))[:, None] * known.shape[1] + items
        new = (items >= 0) & ~are_among(pair_numbers(known), numbers)
        units = (scores - listed.least[short]) / listed.spread[short]
        return np.where(new, items, -1), np.where(new, _below_zero(units), -np.inf)

    def _vectors_to_differ(self, vectors):
        """Return the vectors by which recommended items differ."""
        if vectors is not None:
            return vectors
        for place in np.argsort(-self.weights_, kind="stable"):
            # Those of popular items, one number each, do not tell items apart.
            if all(
                hasattr(self.estimators_[place], n) for n in ("export_vectors", "similar_items")
            ):
                return self.estimators_[place].export_vectors()[1]
        raise ValueError(
            "diversity needs vectors by which items differ; no member has any: give item_vectors."
        )

    def predict(self, X):
        """Return recommended items for users by their histories, excluding the items they have.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_users, n_items)

        Returns
        -------
        items : ndarray of shape (n_users, n_recommendations), int64
            In descending order of scores; -1 where there are too few.
        """
        return self.recommend(X)[0]

    def score(self, X, y=None):
        """Return the mean NDCG of recommendations, at ``n_recommendations``.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_users, n_items)
            Histories.
        y : {array-like, sparse matrix} of shape (n_users, n_items), or array-like of int of shape \
                (n_users,), default=None
            Items to be found: all entries that are not zero, or one item for each user. None holds
            out a fifth of each row of ``X``, chosen by the row's content.

        Returns
        -------
        ndcg : float
            Mean over users with at least one item to be found; nan if there are none.
        """
        check_is_fitted(self, "estimators_")
        return score_of_users(self, self._checked(X), y)[0]

    def predict_pairs(self, users, items):
        """Return the scores of pairs of users and items, by which ``recommend`` ranks.

        Parameters
        ----------
        users, items : array-like of int of shape (n_pairs,)
            Users seen in ``fit``, and items.

        Returns
        -------
        scores : ndarray of shape (n_pairs,), float32
            -inf for items that the member with the largest weight does not recommend.
        """
        check_is_fitted(self, "estimators_")
        users, items = checked_pairs(users, items, self.n_users_, self.n_features_in_)
        some, rows = np.unique(users, return_inverse=True)
        shape = len(some), self.n_features_in_
        pairs = sparse.csr_array((np.ones(len(rows), np.float32), (rows, items)), shape=shape)
        pairs, scores = canonical_csr(pairs), []
        for part in slices(len(some), max(1, _PLACES // (len(self.weights_) * self.n_candidates))):
            part = np.arange(part.start, part.stop)
            query, asked = {"users": some[part]}, take_rows(pairs, part)
            scores.append(self._of_pairs(query, asked, self._all_lists(query)))
        scores = np.concatenate([np.zeros(0, np.float32), *scores])
        return scores[np.searchsorted(pair_numbers(pairs), rows * shape[1] + items)]

    @_of_members("similar_items")
    def similar_items(self, items, n_recommendations=10, *, candidates=None, exclude=None):
        """Return the items most similar to given items: by the weighted similarities of members.

        Parameters
        ----------
        items : int or array-like of int of shape (n_items,)
        n_recommendations : int, default=10
            How many; an item is not counted as similar to itself.
        candidates, exclude : array-like of int or sparse matrix of shape \
                (n_items, `n_features_in_`), default=None
            Items that may, or may not, be returned: for all given items, or for each.

        Returns
        -------
        similar : ndarray of shape (n_items, n_recommendations), int64
            In descending order; -1 where there are too few. One-dimensional for a single item.
        similarities : ndarray of the same shape, float32
            The weighted mean of those of the members, 0 where an item is not among a member's best
            ``n_candidates``; -inf where there is no item.
        """
        check_is_fitted(self, "estimators_")
        rows = validate_ids("items", items, self.n_features_in_)
        request = Request(n_recommendations, candidates, exclude)
        request = request.checked(len(rows), self.n_features_in_)
        n = max(request.n, self.n_candidates)
        found = [
            member.similar_items(rows, n, candidates=request.candidates, exclude=request.exclude)
            for member in self.estimators_
        ]
        total = self._weighted([_as_rows(*best, self.n_features_in_) for best in found])
        return of_single(items, _top(*_padded(total, request.n), request.n))

    @_of_members("explain")
    def explain(self, user, item, X=None):
        """Return how much each item of a user's history contributes to a score.

        Parameters
        ----------
        user : int
            A user seen in ``fit``; or, with ``X``, a row of it.
        item : int
            The item whose score is explained.
        X : {array-like, sparse matrix} of shape (n_users, n_items), default=None
            Histories of users.

        Returns
        -------
        explanation : Bunch
            ``history``, the user's items in descending order of ``contributions``; ``rest``, what
            is not due to them, as what scores are shifted by; ``score``, the sum of both; and
            ``members``, the part of each member of the blend in the score, by name.
        """
        check_is_fitted(self, "estimators_")
        query, _ = self._queries(X, [user] if X is None else None)
        query = (
            query if X is None else _rows_of(query, validate_ids("user", user, query["X"].shape[0]))
        )
        lists, parts, shares = self._all_lists(query), {}, {}
        pair = sparse.csr_array(([1.0], ([0], [item])), shape=(1, self.n_features_in_))
        score = float(self._of_pairs(query, canonical_csr(pair), lists)[0])
        for name, listed, weight in zip(self.named_estimators_, lists, self.weights_, strict=True):
            found = self.named_estimators_[name].explain(user, item, X)
            units = max(0.0, (found.score - listed.least[0, 0]) / listed.spread[0, 0])
            shares[name] = float(weight * units)
            for one, share in zip(found.history, found.contributions, strict=True):
                part = weight / listed.spread[0, 0] * share if units else 0.0
                parts[int(one)] = parts.get(int(one), 0.0) + part
        history, contributions = np.array(list(parts), np.int64), np.array(list(parts.values()))
        order = np.argsort(-contributions, kind="stable")
        return Bunch(
            history=history[order],
            contributions=contributions[order],
            rest=score - float(contributions.sum()),
            score=score,
            members=shares,
        )


def _below_zero(units):
    """Return scores in units of spread, mapped in their order to numbers from -1 to 0."""
    units = np.minimum(units, 0)
    return np.where(np.isfinite(units), units / (1 - np.maximum(units, -1e30)), -np.inf)


def _rows_of(query, rows):
    """Return the part of a query for some of its users."""
    if "users" in query:
        return {"users": query["users"][rows]}
    return {"X": take_rows(query["X"], rows)}


def _allowed(total, request):
    """Return the entries of a canonical matrix that are candidates and not excluded."""
    for items, kept in ((request.candidates, True), (request.exclude, False)):
        if items is None:
            continue
        if sparse.issparse(items):
            found = are_among(pair_numbers(canonical_csr(items)), pair_numbers(total))
        else:
            found = np.isin(total.indices, items)
        total = entries_where(total, found if kept else ~found)
    return total


def _padded(total, width=1):
    """Return the items and values of each row, side by side: -1 and -inf fill the places left."""
    lengths = np.diff(total.indptr)
    shape = total.shape[0], max(width, int(lengths.max(initial=0)))
    items, scores = np.full(shape, -1), np.full(shape, -np.inf, dtype=np.float32)
    filled = np.arange(shape[1]) < lengths[:, None]
    items[filled], scores[filled] = total.indices, total.data
    return items, scores


def _top(items, scores, n):
    """Return the ``n`` best items of each row, and their scores; the first of equal ones."""
    order = np.argsort(-scores, axis=1, kind="stable")[:, :n]
    return np.take_along_axis(items, order, axis=1), np.take_along_axis(scores, order, axis=1)
