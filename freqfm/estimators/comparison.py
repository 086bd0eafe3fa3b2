"""compare_recommenders: a table of recommenders, fitted to and tested on the same interactions."""

import contextlib
import functools
import pickle
import time
import warnings
from html import escape
from numbers import Integral
from os import PathLike

import numpy as np
from scipy.sparse import issparse
from sklearn.base import clone
from sklearn.model_selection import check_cv
from sklearn.utils import Bunch

from freqfm._input.frames import is_frame, is_lazy
from freqfm._input.interactions import InteractionTable, is_auto, with_groups
from freqfm._input.rows import entries_where, split_signs, take_rows, with_one_index_type
from freqfm._input.validation import canonical_csr, check_number, count_threads, draw_seed
from freqfm._messages import cut, shown
from freqfm.estimators.interactions.recommender import InteractionRecommender
from freqfm.estimators.progress import announced_fits
from freqfm.estimators.recommenders import blend
from freqfm.estimators.recommenders.closed_form.base import PopularityRecommender
from freqfm.model_selection import GlobalTimeSplit, WarmStartKFold, _scorer, holdout_interactions
from freqfm.model_selection._holdout import last_step, open_histories, transform

OF_LATE = "most popular of late"

# Its values halve with each such share of the interactions that is later: of 1, 3, 5, 10, 20 and
# 50 % the best on validation windows of MovieLens-100K, and next to the best of MovieLens-1M.
_HALF_LIFE = 0.05

# A numeric array with as many columns or fewer is a table, not a matrix of users x items.
_COLUMNS_OF_TABLES = 4

# Parameters by which a table is read.
_READ_BY = "user", "item", "value", "dislikes_up_to", "dislikes", "unknown"


class ComparedData:
    """Interactions in a matrix, whose rows stay users in every part, or in a table with ids.

    Parameters
    ----------
    X : matrix or table
    members : list of (str, estimator)
        The first ``InteractionRecommender`` among them says how a table is read.
    cv : object
        Else a splitter does, if it names columns.

    Attributes
    ----------
    all : csr_array or table
    has_times : bool
    """

    def __init__(self, X, members, cv):
        X = with_groups(X)
        if is_lazy(X) or isinstance(X, (str, PathLike)):
            raise TypeError(f"it is a {type(X).__name__}; give a table in memory.")
        cv = cv if hasattr(cv, "split") else None  # numbers of NumPy have an item, too
        options = {role: getattr(cv, role) for role in ("user", "item") if hasattr(cv, role)}
        readers = [member for _, member in members if isinstance(member, InteractionRecommender)]
        if readers:
            options = {name: getattr(readers[0], name) for name in _READ_BY}
        reader, shape = InteractionRecommender(**options), getattr(X, "shape", ())
        is_array = not is_frame(X) and not issparse(X) and len(shape) == 2
        if is_array and shape[1] <= _COLUMNS_OF_TABLES and is_auto(reader.user):
            reader.set_params(user=0, item=1 if is_auto(reader.item) else reader.item)
        source = open_histories(X, reader.user, reader.item)
        self._reader, self._time, self.has_times = None, getattr(cv, "time", "auto"), False
        if not hasattr(source, "table"):
            self.all = canonical_csr(source.histories)
            return
        self._reader, self.all = reader, source.table.given
        self.has_times = hasattr(cv, "time") or source.table.has_times(reader.user, reader.item)

    def take(self, rows):
        """Return some rows of a table, or interactions of a matrix, by an array of int."""
        if self._reader is not None:
            return InteractionTable(self.all).take(rows)
        return entries_where(self.all, np.isin(np.arange(self.all.nnz), rows))

    def splits(self, cv, seed):
        """Return the parts to train on and to test."""
        columns, rows = {}, self.all
        if self._reader is None:
            rows = np.transpose(with_one_index_type(self.all).nonzero())
        else:
            columns = {"user": self._reader.user, "item": self._reader.item}
        if cv is None and not self.has_times:
            return [holdout_interactions(self.all, random_state=seed, **columns)]
        if cv is None:
            cv = GlobalTimeSplit(**columns)
        elif isinstance(cv, Integral):
            cv = WarmStartKFold(cv, random_state=seed, **columns)
        splits = check_cv(cv).split(rows)
        return [tuple(self.take(np.asarray(part)) for part in parts) for parts in splits]

    def wrapped(self, member):
        """Return the recommender that is fitted to the parts."""
        takes_matrices = hasattr(member, "recommend") and not hasattr(member, "_find_held_out")
        if self._reader is None or not takes_matrices:
            return member
        return clone(self._reader).set_params(estimator=member)

    def fit(self, name, estimator, X):
        """Return the recommender of a name, fitted to a part of the data, or to all."""
        model = clone(estimator).fit(X)
        if name != OF_LATE:
            return model
        table, columns = InteractionTable(X), {"user": model.user, "item": model.item}
        place = table.find(**columns, value=model.value, time=self._time)["time"]
        # Splitters take rows in order for time=None.
        ranks = np.arange(table.shape[0]) if place is None else table.ranks(place)
        later = len(ranks) - np.searchsorted(np.sort(ranks), ranks, side="right")
        users, items, values = model._read(X, reset=False)
        codes = model._find("user", users, "users"), model._find("item", items, "items")
        model.estimator_.fit(
            model._matrix(*codes, values * 0.5 ** (later / (_HALF_LIFE * len(ranks))))
        )
        return model

    def find_held_out(self, model, test):
        """Return the ids of users, relevant items, and a recommender with a query for them."""
        transformers, recommender = last_step(model)
        if self._reader is None:
            users = np.flatnonzero(np.diff(test.indptr))
            relevant = take_rows(canonical_csr(test), users)
            return users, relevant, recommender, {"users": users}
        query, relevant = recommender._find_held_out(transform(transformers, test))
        return recommender.user_ids_[query["users"]], relevant, recommender.estimator_, query


def open_interactions(X, members, cv, seed):
    """Return the :class:`ComparedData`, and the parts to train on and to test.

    Raises
    ------
    TypeError, ValueError
        If there are none; the message says how columns are named here.
    """
    try:
        data = ComparedData(X, members, cv)
        splits = data.splits(cv, seed)
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(
            f"interactions cannot be divided: {cut(error, 1000)} Here columns are named by a "
            f"splitter, cv=GlobalTimeSplit(user=..., item=..., time=...), or by an "
            f"InteractionRecommender among the estimators; a DataFrame that is a matrix has to be "
            f"given as an array or a sparse matrix."
        ) from None
    if not all(part.nnz if issparse(part) else len(part) for parts in splits for part in parts):
        raise ValueError("interactions are too few: nothing is left to train on, or to test.")
    return data, splits


_COLUMNS = "fit_seconds", "request_ms", "stored_bytes", "error"


class RecommenderComparison:
    """A table of recommenders that were tested on the same interactions.

    :func:`~freqfm.model_selection.compare_recommenders` makes it, and describes it.

    Parameters
    ----------
    rows : list of Bunch
        Best first.
    data : ComparedData
        All interactions.
    """

    def __init__(self, rows, data):
        self.rows_ = rows
        self._data = data

    @functools.cached_property
    def best_estimator_(self):
        """The recommender of the first row, fitted to all interactions when it is first used."""
        row = self.rows_[0]
        return self._data.fit(row.name, row.estimator, self._data.all)

    def to_frame(self):
        """Return the rows as a DataFrame, by name.

        Returns
        -------
        frame : pandas DataFrame
            A column for each metric, and "difference_low" and "difference_high", "fit_seconds",
            "request_ms", "stored_bytes" and "error".
        """
        import pandas as pd

        rows = {}
        for row in self.rows_:
            low, high = row.interval
            rows[row.name] = {**row.scores, "difference_low": low, "difference_high": high}
            rows[row.name] |= {name: row[name] for name in _COLUMNS}
        return pd.DataFrame.from_dict(rows, orient="index").rename_axis("name")

    def _lines(self):
        """Return the lines of the table as text, the first of which is its head."""
        head = [*self.rows_[0].scores, "difference to the best", "fit, s", "request, ms", "MB"]
        lines = [["", *head]]
        for row in self.rows_:
            cells = (
                [cut(row.error)] if row.error else [f"{score:.4f}" for score in row.scores.values()]
            )
            if not row.error:
                low, high = row.interval
                cells += [f"{low:+.4f} to {high:+.4f}" if low or high else ""]
                numbers = row.fit_seconds, row.request_ms, row.stored_bytes / 1e6
                cells += [f"{number:.2f}" for number in numbers]
            lines.append([cut(row.name, 60), *cells])
        return lines

    def __repr__(self):
        lines = self._lines()
        whole = [line for line in lines if len(line) == len(lines[0])]
        widths = [max(map(len, column)) for column in zip(*whole, strict=True)]
        widths[0] = max(len(line[0]) for line in lines)
        return "\n".join(
            "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]).rstrip()
            for line in lines
        )

    def _repr_html_(self):
        rows = ("".join(f"<td>{escape(cell)}</td>" for cell in line) for line in self._lines())
        return "<table>" + "".join(f"<tr>{row}</tr>" for row in rows) + "</table>"


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
        1 shows which recommender is fitted, how many are done, and the time left.

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
    given = {"n_jobs": n_jobs, "random_state": seed, "time_limit": time_limit}
    rows, users = _rows(members, data, splits, scorers, given, verbose)
    first = next(iter(scorers))
    rows.sort(key=lambda row: (row.error is not None, -row.scores[first]))
    if rows[0].error:
        errors = "; ".join(f"{cut(row.name)} ({row.error})" for row in rows)
        raise ValueError(f"no recommender could be tested: {errors}")
    _add_intervals([row for row in rows if not row.error], users, np.random.default_rng(seed))
    return RecommenderComparison(rows, data)


def _rows(members, data, splits, scorers, given, verbose):
    """Return a row for each recommender, and the users of each split."""
    rows, users, seconds, limit = [], None, {}, given["time_limit"]
    names, begun = [name for name, _ in members], time.perf_counter()
    with announced_fits(verbose, len(members), blend.costs_of(members), seconds) as begin:
        for at, (name, member) in enumerate(members):
            row = Bunch(name=name, scores=dict.fromkeys(scorers, np.nan), interval=(np.nan, np.nan))
            row.update(fit_seconds=np.nan, request_ms=np.nan, stored_bytes=None, error=None)
            rows.append(row)
            left = None if limit is None else limit - (time.perf_counter() - begun)
            if left is not None and left <= 0:
                row.error = f"not begun: the time_limit of {limit:g} seconds had passed"
                continue
            begin(f"fitting {cut(name)}", names[at:])
            try:
                row.estimator = _prepared(data.wrapped(clone(member)), given | {"time_limit": left})
                found = [_tested(row, data, *split, list(scorers.values())) for split in splits]
                users = users or [one.users for one in found]
                if not all(map(np.array_equal, users, [one.users for one in found])):
                    raise ValueError("it is tested on other users, or in contexts: compare alone")
            except Exception as error:
                row.error = f"{type(error).__name__}: {cut(error)}"
                continue
            means = np.mean([one.scores for one in found], axis=0)
            row.scores = dict(zip(scorers, means.tolist(), strict=True))
            seconds[name] = sum(one.seconds for one in found)
            row.fit_seconds = seconds[name] / len(found)
            row.per_user = [one.per_user for one in found]
    return rows, users


def _scorers(scoring):
    """Return the scorers by the names of their columns."""
    is_list = np.iterable(scoring) and not isinstance(scoring, (str, dict))
    scorers = [_scorer.scorer_of(one, 10) for one in (scoring if is_list else [scoring])]
    known = scorers and all(isinstance(one, _scorer.RankingScorer) for one in scorers)
    if not known or scorers[0].metric in _scorer.OF_ALL_USERS:
        raise ValueError(
            f"scoring={cut(shown(scoring))} must be metrics, such as 'ndcg@10', or results of "
            f"make_ranking_scorer; the first one gives the order and has to be a mean over users, "
            f"unlike {' and '.join(_scorer.OF_ALL_USERS)}."
        )
    also = {True: "", False: ", with seen items"}
    return {f"{one.metric}@{one.k}{also[one.exclude_seen]}": one for one in scorers}


def _checked(estimators, time_limit):
    """Return names and recommenders; raise unless they are such."""
    if estimators is None:
        return [*blend.default_members(time_limit), ("blend", blend.BlendRecommender())]
    names = {POPULAR, OF_LATE}
    for name, _ in blend.checked_members(estimators, "get_params"):
        if name in names:
            raise ValueError(f"estimators has the name {shown(name)} twice; give others.")
        names.add(name)
    return estimators


def _prepared(member, given):
    """Return a recommender with these parameters wherever it has one of None."""
    if hasattr(member, "_find_held_out") and member.estimator is None:
        member.set_params(estimator__verbose=0)  # writes out what None stands for
    return blend.with_params(member, given)


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
        _scorer.warn_of_seen(split_signs(relevant)[0], _scorer.seen_by(recommender, query["users"]))
    ranked, k = {}, max(scorer.k for scorer in scorers)
    for options in {one.exclude_seen: one._options for one in scorers}.values():
        found, _ = recommender.recommend(**query, n_recommendations=k, **options)
        ranked[not options] = found
    scores = [one.measure(relevant, ranked[one.exclude_seen]) for one in scorers]
    first = scorers[0]
    values = _scorer.METRICS[first.metric](
        relevant, ranked[first.exclude_seen], first.k, average=False
    )
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
    codes, n = np.split(codes, np.cumsum([len(ids) for ids in users])[:-1]), len(known)
    values = [
        np.transpose(scores) for scores in zip(*(row.pop("per_user") for row in rows), strict=True)
    ]
    n_samples = int(np.clip(_SAMPLED_USERS / n, _LEAST_SAMPLES, _MOST_SAMPLES))
    means = np.zeros((n_samples, len(rows)))
    for mean in means:
        drawn = np.bincount(generator.integers(n, size=n), minlength=n)
        for at, scores in zip(codes, values, strict=True):
            mean += drawn[at] @ scores / max(1, drawn[at].sum()) / len(values)
    bounds = np.quantile(means - means[:, :1], [0.025, 0.975], axis=0)
    for row, interval in zip(rows, bounds.T.tolist(), strict=True):
        row.interval = tuple(interval)
