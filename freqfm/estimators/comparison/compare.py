"""compare_recommenders: a table of recommenders, fitted to and tested on the same interactions."""

import contextlib
import pickle
import time
import warnings
from numbers import Integral

import numpy as np
from sklearn.base import clone
from sklearn.utils import Bunch

from freqfm._input.rows import split_signs
from freqfm._input.validation import check_number, count_threads, draw_seed
from freqfm._messages import cut, shown
from freqfm.estimators.blend.recommender import BlendRecommender, default_members
from freqfm.estimators.comparison.data import OF_LATE, open_interactions
from freqfm.estimators.comparison.table import RecommenderComparison
from freqfm.estimators.progress import announce
from freqfm.estimators.recommenders.closed_form.popularity import PopularityRecommender
from freqfm.model_selection._scorer import (
    METRICS,
    OF_ALL_USERS,
    RankingScorer,
    scorer_of,
    seen_by,
    warn_of_seen,
)
from freqfm.model_selection._steps import last_step

POPULAR = "most popular"

# Requests of one user that are timed, after a first one.
_REQUESTS = 20

# Samples of users: at least, at most, and how many users all of them have together.
_LEAST_SAMPLES, _MOST_SAMPLES, _SAMPLED_USERS = 200, 1000, 2e7

# Rows to which a recommender is fitted before it is timed, so that it is compiled.
_FIRST_ROWS = 200


def compare_recommenders(
    interactions,
    estimators=None,
    *,
    cv=None,
    scoring=("ndcg@10", "recall@10", "coverage@10"),
    time_limit=None,
    random_state=None,
    n_jobs=None,
    verbose=0,
):
    """Fit recommenders to a part of the interactions, and compare how they rank the rest.

    The most popular items, the same for all users, are always among them; and where there are
    times, the items most popular of late, whose values halve with every twentieth of the
    interactions that is later. A model that is not ahead of these has not learned what users like.

    Parameters
    ----------
    interactions : matrix of shape (n_users, n_items), or table of shape (n_interactions, n_columns)
        A matrix as recommenders take it, sparse or with more than four columns; or a table as
        :class:`~freqfm.InteractionRecommender` takes it, such as a DataFrame or a list of tuples.
    estimators : list of (str, estimator), default=None
        Names and recommenders. None are :class:`~freqfm.ALSRecommender`,
        :class:`~freqfm.EASERecommender`, :class:`~freqfm.GraphFilterRecommender`,
        :class:`~freqfm.ItemKNNRecommender`, :class:`~freqfm.MFRecommender`, with a ``time_limit``
        :class:`~freqfm.FastVAERecommender`, and the :class:`~freqfm.BlendRecommender` of these. Of
        a table, recommenders of matrices are put into an ``InteractionRecommender``, which reads
        the columns as the first one in the list does. Parameters ``n_jobs``, ``random_state`` and
        ``time_limit`` that are None get those of the comparison, or the time left.
    cv : int, splitter or iterable of (train, test), default=None
        How interactions, as rows of a table, are divided. None holds out the last fifth of a table
        with times, by :class:`GlobalTimeSplit`, else a random fifth of each user, by
        :func:`holdout_interactions`; an int is the number of folds of :class:`WarmStartKFold`. The
        rows of a matrix are its interactions, in the order of ``nonzero``. A splitter's names of
        columns are used for the recommenders too, unless one of these has its own.
    scoring : str, scorer or list of these, default=("ndcg@10", "recall@10", "coverage@10")
        Metrics by name, or of :func:`make_ranking_scorer`. The first one gives the order, and has
        to be a mean over users.
    time_limit : float, default=None
        Seconds after which no other recommender is begun.
    random_state : int, RandomState, Generator or None, default=None
        Seed of what is held out, of the recommenders, and of the intervals.
    n_jobs : int, default=None
        Threads of the recommenders, at most one per core; None uses all cores.
    verbose : int, default=0
        1 says which recommender is being fitted.

    Returns
    -------
    comparison : RecommenderComparison
        A table with a row for each recommender, best first, as notebooks and terminals show it:

        - ``rows_``, a list of Bunch: ``name``; ``scores``, by metric; ``interval``, of the
          difference to the best in the first metric; ``fit_seconds``; ``request_ms``, the median
          milliseconds for one user; ``stored_bytes``, of the pickled model; and ``error``, what
          went wrong or None;
        - ``to_frame()``, a DataFrame of them;
        - ``best_estimator_``, the first one, fitted to all interactions, which are kept for that,
          when it is first used.

    Raises
    ------
    TypeError, ValueError
        If the arguments are not valid, or no recommender can be tested. One that fails has a row
        with its error.

    See Also
    --------
    freqfm.displays.RecommenderComparisonDisplay : Draws the scores against the seconds.
    make_ranking_scorer : For ``cross_val_score`` and searches.

    Notes
    -----
    A score is the mean over the parts of ``cv``. An interval is of the difference to the best
    recommender over the same users: 2.5 % and 97.5 % of the differences in up to 1,000 samples of
    these with replacement. It tells how much depends on which users are tested; not how much on
    seeds, or on the choice of the best.

    Before it is timed, a recommender is fitted to 200 rows, so that compiling takes no part of the
    time.

    Examples
    --------
    >>> from freqfm import ALSRecommender, ItemKNNRecommender
    >>> from freqfm.datasets import make_interactions
    >>> from freqfm.model_selection import compare_recommenders
    >>> X = make_interactions(300, 100, 6000, random_state=0)
    >>> members = [("als", ALSRecommender(16)), ("neighbours", ItemKNNRecommender(20))]
    >>> comparison = compare_recommenders(X, members, random_state=0)
    >>> sorted(row.name for row in comparison.rows_)
    ['als', 'most popular', 'neighbours']
    >>> items, scores = comparison.best_estimator_.recommend(users=[0], n_recommendations=3)
    >>> items.shape
    (1, 3)
    """
    scorers = _scorers(scoring)
    # An int is passed on, so that each fit can be repeated by hand.
    seed = random_state if isinstance(random_state, Integral) else draw_seed(random_state)
    if time_limit is not None:
        time_limit = check_number("time_limit", time_limit, 0, np.finfo(float).max)
    count_threads(n_jobs)
    members = _checked(estimators, time_limit)
    data, splits = open_interactions(interactions, members, cv, seed)
    names = [POPULAR, OF_LATE] if data.has_times else [POPULAR]
    members = [*((name, PopularityRecommender()) for name in names), *members]
    begun, rows, users = time.perf_counter(), [], None
    for name, member in members:
        row = Bunch(name=name, scores=dict.fromkeys(scorers, np.nan), interval=(np.nan, np.nan))
        row.update(fit_seconds=np.nan, request_ms=np.nan, stored_bytes=None, error=None)
        rows.append(row)
        left = None if time_limit is None else time_limit - (time.perf_counter() - begun)
        if left is not None and left <= 0:
            row.error = f"not begun: the time_limit of {time_limit:g} seconds had passed"
            continue
        announce(verbose, f"fitting {cut(name)}, {len(rows)} of {len(members)}")
        try:
            given = {"n_jobs": n_jobs, "random_state": seed, "time_limit": left}
            row.estimator = _prepared(data.wrapped(clone(member)), given)
            found = [_tested(row, data, *split, list(scorers.values())) for split in splits]
            users = users or [one.users for one in found]
            if not all(map(np.array_equal, users, [one.users for one in found])):
                raise ValueError("it is tested on other users, or in contexts: compare it alone")
        except Exception as error:
            row.error = f"{type(error).__name__}: {cut(error)}"
            continue
        means = np.mean([one.scores for one in found], axis=0)
        row.scores = dict(zip(scorers, means.tolist(), strict=True))
        row.fit_seconds = float(np.mean([one.seconds for one in found]))
        row.per_user = [one.per_user for one in found]
    first = next(iter(scorers))
    rows.sort(key=lambda row: (row.error is not None, -row.scores[first]))
    if rows[0].error:
        errors = "; ".join(f"{cut(row.name)} ({row.error})" for row in rows)
        raise ValueError(f"no recommender could be tested: {errors}")
    _add_intervals([row for row in rows if not row.error], users, np.random.default_rng(seed))
    return RecommenderComparison(rows, data)


def _scorers(scoring):
    """Return the scorers by the names of their columns."""
    scoring = [scoring] if isinstance(scoring, (str, RankingScorer)) else scoring
    scorers = [scorer_of(one, 10) for one in scoring]
    known = scorers and all(isinstance(one, RankingScorer) for one in scorers)
    if not known or scorers[0].metric in OF_ALL_USERS:
        raise ValueError(
            f"scoring={cut(shown(scoring))} must be metrics, such as 'ndcg@10', or results of "
            f"make_ranking_scorer; the first one gives the order and has to be a mean over users, "
            f"unlike {' and '.join(OF_ALL_USERS)}."
        )
    also = {True: "", False: ", with seen items"}
    return {f"{one.metric}@{one.k}{also[one.exclude_seen]}": one for one in scorers}


def _checked(estimators, time_limit):
    """Return names and recommenders; raise unless they are such."""
    if estimators is None:
        return [*default_members(time_limit), ("blend", BlendRecommender())]
    names = {POPULAR, OF_LATE}
    for member in estimators if isinstance(estimators, list) else [estimators]:
        is_pair = isinstance(member, tuple) and len(member) == 2 and isinstance(member[0], str)
        if not is_pair or not hasattr(member[1], "get_params") or isinstance(member[1], type):
            raise TypeError(
                f"estimators holds {cut(shown(member), 80)}; give a list of tuples of a name and a "
                f"recommender."
            )
        if member[0] in names:
            raise ValueError(f"estimators has the name {shown(member[0])} twice; give others.")
        names.add(member[0])
    return estimators


def _prepared(member, given):
    """Return a recommender with these parameters wherever it has one of None."""
    if hasattr(member, "_find_held_out") and member.estimator is None:
        member.set_params(estimator__verbose=0)  # writes out what None stands for
    lacking = [name for name, value in member.get_params().items() if value is None]
    lacking = {name: name.rpartition("__")[2] for name in lacking}
    return member.set_params(**{n: given[last] for n, last in lacking.items() if last in given})


def _tested(row, data, train, test, scorers):
    """Fit to a part, and return the users, values of the first metric, scores and seconds."""
    with contextlib.suppress(Exception), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data.fit(row.name, row.estimator, data.take(np.arange(_FIRST_ROWS)))
    start = time.perf_counter()
    model = data.fit(row.name, row.estimator, train)
    seconds = time.perf_counter() - start
    users, relevant, recommender, query = data.find_held_out(model, test)
    if row.name == POPULAR and all(scorer.exclude_seen for scorer in scorers):
        warn_of_seen(split_signs(relevant)[0], seen_by(recommender, query["users"]))
    ranked, k = {}, max(scorer.k for scorer in scorers)
    for options in {one.exclude_seen: one._options for one in scorers}.values():
        found, _ = recommender.recommend(**query, n_recommendations=k, **options)
        ranked[not options] = found
    scores = [one.measure(relevant, ranked[one.exclude_seen]) for one in scorers]
    first = scorers[0]
    values = METRICS[first.metric](relevant, ranked[first.exclude_seen], first.k, average=False)
    measured = np.isfinite(values)
    users, asked, times = users[measured], last_step(model)[1], [time.perf_counter()]
    for user in [users[0], *users[:_REQUESTS]]:
        asked.recommend(users=[user], n_recommendations=k)
        times.append(time.perf_counter())
    row.request_ms = float(1000 * np.median(np.diff(times)[1:]))
    row.stored_bytes = len(pickle.dumps(model))
    return Bunch(users=users, per_user=values[measured], scores=scores, seconds=seconds)


def _add_intervals(rows, users, generator):
    """Set the intervals of the differences to the first row, by samples of users."""
    known, codes = np.unique(np.concatenate(users), return_inverse=True)
    codes, n = np.split(codes, np.cumsum([len(of) for of in users])[:-1]), len(known)
    values = [np.transpose(of) for of in zip(*(row.pop("per_user") for row in rows), strict=True)]
    n_samples = int(np.clip(_SAMPLED_USERS / n, _LEAST_SAMPLES, _MOST_SAMPLES))
    means = np.zeros((n_samples, len(rows)))
    for mean in means:
        drawn = np.bincount(generator.integers(n, size=n), minlength=n)
        for at, of in zip(codes, values, strict=True):
            mean += drawn[at] @ of / max(1, drawn[at].sum()) / len(values)
    bounds = np.quantile(means - means[:, :1], [0.025, 0.975], axis=0)
    for row, interval in zip(rows, bounds.T.tolist(), strict=True):
        row.interval = tuple(interval)
