"""Speed of scoring: many users against implicit, one user against NumPy, FM rows against training.

Each comparison is one process in which the sides take turns. A ratio is the median over runs of the
ratio within a run, followed by its quartiles; above 1 freqfm is faster.

- "All users": ``recommend`` of 10 items to every user of Gowalla, without the items they have, by
  the same vectors of length 64 on both sides. They are trained by implicit's BPR, or with
  ``--factors random`` are random numbers. implicit runs with one thread and with all, BLAS limited
  to one thread, as it asks for, and not; the fastest is taken.
- "Two threads": the same call of freqfm, with two threads over one.
- "One user": ``recommend`` among a million items, against a dot product with all of them and
  ``argpartition``.
- "FM": rows per second of ``predict_proba`` over rows per second of a training epoch, both with one
  thread, by tokens in a row and number of factors.

    python benchmarks/speed/scoring_speed.py --data DIR [--runs 7] [--quick]

On two cores of an AMD EPYC (Zen 4); the first three lines while others computed on them as well, so
that two threads got little more than one core. The last two columns are of rows with a million
features:

    All users, best of implicit       4.6   quartiles 4.2 - 5.1
    All users, one thread each        4.3   quartiles 3.8 - 5.1
    One user, 1,000,000 items         1.1   quartiles 1.0 - 1.3
    FM, tokens                   2      10      39      10      39
        d=16                   4.3     6.2     5.4     4.1     4.2
        d=64                   4.5     5.3     5.1     4.1     4.5
"""

import json
import sys
import time
from pathlib import Path

import numpy as np
import threadpoolctl

sys.path.insert(0, str(Path(__file__).parents[1]))
from _data import click_parts, data_parser, movielens_split, require_data
from fm_speed import Freqfm, synthetic
from scipy import sparse

from freqfm import MFRecommender

K = 10


def take_turns(calls, runs):
    """Return the seconds of named calls that take turns; a first round warms up."""
    seconds = {name: [] for name in calls}
    for run in range(runs + 1):
        for name, call in calls.items():
            started = time.perf_counter()
            call()
            if run:
                seconds[name].append(time.perf_counter() - started)
    return {name: np.array(times) for name, times in seconds.items()}


def ratio(seconds, slower, faster):
    """Return the median and the quartiles of one call's time over another's."""
    return np.percentile(seconds[slower] / seconds[faster], [50, 25, 75]).tolist()


def show(title, found, note=""):
    median, low, high = found
    print(f"{title:44}{median:7.2f}   {low:.2f} - {high:.2f}   {note}", flush=True)


def with_vectors(X, users, items, n_jobs):
    """Return a fitted model that ranks by the dot products of given vectors."""
    model = MFRecommender(users.shape[1], loss="bpr", max_iter=1, random_state=0, n_jobs=n_jobs)
    model.fit(X)
    model.user_factors_, model.item_factors_ = users, items
    return model


def all_users(X, kind, runs):
    """Compare ``recommend`` for all users with implicit's, and two threads with one."""
    from implicit.bpr import BayesianPersonalizedRanking

    X = sparse.csr_matrix((X.data, X.indices, X.indptr), shape=X.shape)
    # implicit adds a column for the biases of items.
    other = BayesianPersonalizedRanking(63, iterations=40, random_state=0)
    if kind == "random":
        rng = np.random.default_rng(0)
        other.user_factors, other.item_factors = (
            rng.standard_normal((n, 64), dtype=np.float32) for n in X.shape
        )
    else:
        other.fit(X, show_progress=False)
    users = np.arange(X.shape[0])

    def theirs(n_threads, n_blas):
        other.num_threads = n_threads
        with threadpoolctl.threadpool_limits(n_blas, user_api="blas"):
            return other.recommend(users, X, N=K, filter_already_liked_items=True)

    calls = {
        f"implicit, {n or 'all'} threads, BLAS {blas or 'all'}": (
            lambda n=n, blas=blas: theirs(n, blas)
        )
        for n, blas in [(1, 1), (0, 1), (0, None)]
    }
    models = {
        f"freqfm, n_jobs={n}": with_vectors(X, other.user_factors, other.item_factors, n)
        for n in (1, 2)
    }
    for name, model in models.items():
        calls[name] = lambda model=model: model.recommend(users=users, n_recommendations=K)
    same = calls["freqfm, n_jobs=1"]()[0] == calls["implicit, 1 threads, BLAS 1"]()[0]
    seconds = take_turns(calls, runs)
    for name, times in seconds.items():
        print(f"  {name:40}{len(users) / np.median(times):10.0f} users/s")
    best = min((name for name in calls if "implicit" in name), key=lambda n: seconds[n].min())
    found = {
        "All users, best of implicit": ratio(seconds, best, "freqfm, n_jobs=2"),
        "All users, one thread each": ratio(seconds, next(iter(calls)), "freqfm, n_jobs=1"),
        "Two threads": ratio(seconds, "freqfm, n_jobs=1", "freqfm, n_jobs=2"),
    }
    for title, values in found.items():
        show(title, values, f"({same.mean():.5f} of the items are the same)")
    return found


def one_user(n_items, runs):
    """Compare ``recommend`` for one user with NumPy."""
    rng = np.random.default_rng(0)
    X = sparse.random_array((100, n_items), density=50 / n_items, format="csr", rng=rng)
    X.data[:] = 1
    users, items = (rng.standard_normal((n, 64), dtype=np.float32) for n in X.shape)
    model = with_vectors(X, users, items, None)

    def product():
        scores = items @ users[7]
        best = np.argpartition(scores, -K)[-K:]
        return best[np.argsort(-scores[best])]

    calls = {"NumPy": product, "freqfm": lambda: model.recommend(users=7, exclude_seen=False)}
    assert (calls["NumPy"]() == calls["freqfm"]()[0][:K]).all()
    seconds = take_turns(calls, 3 * runs)
    found = {f"One user, {n_items} items": ratio(seconds, "NumPy", "freqfm")}
    for title, values in found.items():
        show(title, values, f"({1000 * np.median(seconds['freqfm']):.1f} ms)")
    return found


def fm_rows(data, runs, quick):
    """Compare predicted rows per second with trained ones, one thread each."""
    found = {}
    for tokens, n_columns in ((2, None), (10, 6600), (39, 6600), (10, 10**6), (39, 10**6)):
        if tokens == 2:
            X, y = movielens_split(data, 0)[0]
        else:
            X, y = synthetic(100_000, tokens, n_columns)
        if quick:
            X, y = X[:5000], y[:5000]
        for d in (16, 64):
            ours = Freqfm(X, y, d, 1)
            model = ours.model
            calls = {
                "epoch": ours.epoch,
                "predict": lambda model=model, X=X: model.predict_proba(X),
            }
            seconds = take_turns(calls, runs)
            title = f"FM, {tokens} tokens of {X.shape[1]}, d={d}"
            found[title] = ratio(seconds, "epoch", "predict")
            rate = len(y) / np.median(seconds["predict"]) / 1e6
            show(title, found[title], f"({rate:.1f} million rows/s)")
    return found


def main():
    """Measure, print and write ``scoring_speed.json``."""
    parser = data_parser(__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--factors", choices=["bpr", "random"], default="bpr")
    parser.add_argument("--quick", action="store_true", help="few users, items and rows")
    args = parser.parse_args()
    data = require_data(args)
    X = click_parts(data, "gowalla")[0]
    X = X[:500] if args.quick else X
    print(f"{'':44}{'ratio':>7}   quartiles")
    found = all_users(X, "random" if args.quick else args.factors, args.runs)
    found |= one_user(20_000 if args.quick else 1_000_000, args.runs)
    found |= fm_rows(data, args.runs, args.quick)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "scoring_speed.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
