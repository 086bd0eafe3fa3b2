"""Calls that ``against.py`` times: functions that return calls by name, one for each topic.

Calls use public names only. What a revision does not have fails when it is first called, not when
the calls of its topic are made: models are made by functions, and kept. A call that measures
itself returns its processor seconds as :class:`Seconds`.
"""

import functools
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas
import polars
from scipy import sparse

sys.path.insert(0, str(Path(__file__).parent / "robustness"))
from _data import click_parts, frappe_fields, frappe_split, movielens_split, wikitext
from compile_time import FITS
from compile_time import seconds as seconds_of_first_fit

import freqfm
from freqfm import datasets, metrics, model_selection

TOPICS = {}
EPOCHS = 5
# No parts held out, no search of penalties: one phase of training.
FIXED = {"early_stopping": False, "n_iter_no_change": None}


def topic(function):
    """Register a function that returns calls."""
    TOPICS[function.__name__.replace("_", " ")] = function
    return function


def once(function, *args, **params):
    """Return a function that makes a value at its first call, and keeps it."""
    return functools.cache(functools.partial(function, *args, **params))


def estimator(name, *args, **params):
    """Return an estimator of one thread by its name."""
    return getattr(freqfm, name)(*args, n_jobs=1, **params)


def fitted(name, *args, data, **params):
    """Return a fitted estimator, by its name."""
    return estimator(name, *args, **params).fit(*data)


class Seconds(float):
    """What a call has measured itself."""


class Clock:
    """A callback that reads the processor time after each epoch."""

    def setup(self, estimator, context):
        self.times = []

    def teardown(self, estimator, context):
        pass

    def on_fit_task_begin(self, estimator, context, **data):
        pass

    def on_fit_task_end(self, estimator, context, **data):
        self.times.append(time.process_time())


def epoch_of(name, *args, data, **params):
    """Return a call that fits, and returns the median seconds of an epoch after the first."""

    def fit():
        clock = Clock()
        model = estimator(name, *args, max_iter=EPOCHS, random_state=0, **params)
        model.set_callbacks(clock).fit(*data)
        return Seconds(np.median(np.diff(clock.times[:EPOCHS])))

    return fit


def stringed(prefix, numbers):
    """Return ids that are strings."""
    return np.char.add(prefix, np.asarray(numbers).astype(str)).astype(object)


@topic
def epochs_of_machines(folder):
    """Plain, rank-aware, field-aware, field-weighted and deep machines."""
    ratings, clicks = movielens_split(folder, 0)[0], frappe_split(folder)[0]
    fields = frappe_fields(clicks[0])
    machine = {"alpha_linear": 1.0, "alpha_factors": 5.0, **FIXED}
    pairs, rows = {"data": ratings, **machine}, {"data": clicks, **machine}
    return {
        "FM, 64 components": epoch_of("FMClassifier", 64, **pairs),
        "FM, 16 components": epoch_of("FMClassifier", 16, **pairs),
        "FM, squared loss": epoch_of("FMRegressor", 64, **pairs),
        "FM, Adam": epoch_of("FMClassifier", 64, optimizer="adam", **pairs),
        "RaFM": epoch_of("RaFMClassifier", (16, 64), rank_assignment=[50], **pairs),
        "FM, ten fields": epoch_of("FMClassifier", 16, **rows),
        "FFM": epoch_of("FFMClassifier", 4, fields=fields, **rows),
        "FwFM": epoch_of("FwFMClassifier", 16, fields=fields, **rows),
        "DeepFM": epoch_of("DeepFMClassifier", 16, fields=fields, **rows),
        "NFM": epoch_of("NFMClassifier", 16, **rows),
    }


@topic
def epochs_of_recommenders(folder):
    """Each family of losses; the autoencoder; words; and whole fits of closed forms."""
    gowalla = {"data": [click_parts(folder, "gowalla")[0]]}
    movies = {"data": [click_parts(folder, "ml1m-implicit")[0]]}
    mf, vae = functools.partial(epoch_of, "MFRecommender", 64), "FastVAERecommender"
    midx = {"negative_sampler": "midx_uniform", "n_negatives": 64}
    calls = {
        "BPR, Gowalla": mf(loss="bpr", **gowalla),
        "BPR": mf(loss="bpr", **movies),
        "WARP": mf(loss="warp", **movies),
        "softmax": mf(**movies),
        "DirectAU": mf(loss="directau", **movies),
        "MIDX": mf(**midx, **movies),
        "LightGCN": mf(loss="bpr", backbone="lightgcn", **movies),
        "ALS, Gowalla": epoch_of("ALSRecommender", 64, **gowalla),
        "VAE": epoch_of(vae, 32, early_stopping=False, **movies),
        "VAE, MIDX": epoch_of(vae, 32, early_stopping=False, **midx, **movies),
        "words": epoch_of("Word2Vec", 64, data=[wikitext(folder)]),
    }
    for name in ("EASERecommender", "ItemKNNRecommender", "GraphFilterRecommender"):
        calls[f"fit of {name}"] = functools.partial(fitted, name, **movies)
    return calls


def requests_of(model, X, rng):
    """Return requests for recommendations by the model that a function returns."""
    n_users, n_items = X.shape
    some = rng.choice(n_items, min(100, n_items // 2), replace=False)
    people, one = np.arange(min(1000, n_users)), X[[3]]
    pairs = rng.integers(n_users, size=1000), rng.integers(n_items, size=1000)
    return {
        "one user": lambda: model().recommend(users=3),
        "1,000 users": lambda: model().recommend(users=people, n_recommendations=20),
        "one history": lambda: model().recommend(one),
        "1,000 histories": lambda: model().recommend(X[people], n_recommendations=20),
        "100 candidates": lambda: model().recommend(users=3, candidates=some),
        "100 excluded": lambda: model().recommend(users=3, exclude=some),
        "1,000 pairs": lambda: model().predict_pairs(*pairs),
        "similar items": lambda: model().similar_items(3),
        "explain": lambda: model().explain(3, int(some[0])),
    }


@topic
def requests(folder):
    """Users, histories, candidates and pairs of each kind of model, and all users of ALS."""
    rng = np.random.default_rng(0)
    gowalla = click_parts(folder, "gowalla")[0]
    movies = click_parts(folder, "ml1m-implicit")[0]
    few = {"max_iter": 1, "random_state": 0}
    als = once(fitted, "ALSRecommender", data=[gowalla], **few)
    mf = once(fitted, "MFRecommender", data=[gowalla], **few)
    vae = once(fitted, "FastVAERecommender", data=[movies], early_stopping=False, **few)
    models = {"ALS": (als, gowalla), "MF": (mf, gowalla), "VAE": (vae, movies)}
    for name in ("EASERecommender", "ItemKNNRecommender", "GraphFilterRecommender"):
        models[name.removesuffix("Recommender")] = once(fitted, name, data=[movies]), movies
    calls = {}
    for name, (model, X) in models.items():
        calls |= {f"{name}: {call}": made for call, made in requests_of(model, X, rng).items()}
    everyone = np.arange(gowalla.shape[0])
    calls["ALS: all users"] = lambda: als().recommend(users=everyone, n_recommendations=20)
    return calls


def large_model(n_items, n_known):
    """Return a model with random vectors, of items of which the first ``n_known`` are bought."""
    ends = np.linspace(0, n_known, 101).astype(np.int64)
    ones, items = np.ones(n_known, np.float32), np.arange(n_known, dtype=np.int32)
    X = sparse.csr_array((ones, items, ends), shape=(100, n_items))
    model = fitted("MFRecommender", 128, loss="bpr", max_iter=1, random_state=0, data=[X])
    rng = np.random.default_rng(0)
    model.item_factors_ = rng.standard_normal(model.item_factors_.shape, dtype=np.float32)
    return model


def large_weights(n_items, k):
    """Return a model with ``k`` random neighbours of each item, of users with ten items each."""
    items, ends = np.arange(n_items, dtype=np.int32), np.arange(0, n_items + 1, 10)
    X = sparse.csr_array((np.ones(n_items, np.float32), items, ends), (len(ends) - 1, n_items))
    model = fitted("ItemKNNRecommender", 1, data=[X])
    rng, ends = np.random.default_rng(0), np.arange(0, n_items * k + 1, k)
    neighbors = np.sort(rng.integers(n_items, size=(n_items, k), dtype=np.int32), axis=1).ravel()
    weights = rng.random(n_items * k, dtype=np.float32)
    model.item_weights_ = sparse.csr_array((weights, neighbors, ends), (n_items, n_items))
    return model


@topic
def large_requests(folder):
    """One user of 500,000 items, of which some have no interactions, and of a million by weights.

    Models with weights between items, of neighbours, are all alike.
    """
    model = once(large_weights, 1_000_000, 100)
    calls = {"a million items, by weights": lambda: model().recommend(users=3)}
    for n_cold in (0, 150_000):
        dense = once(large_model, 500_000, 500_000 - n_cold)
        calls[f"{n_cold:,} cold items"] = lambda model=dense: model().recommend(users=3)
    return calls


@topic
def scores_of_machines(folder):
    """Probabilities of many rows and of one, and small updates."""
    (X, y), (X_valid, _), _ = movielens_split(folder, 0)
    clicks = frappe_split(folder)[0]
    few = {"max_iter": 1, "random_state": 0, "alpha_linear": 1.0, "alpha_factors": 5.0, **FIXED}
    fields = {"fields": frappe_fields(clicks[0]), "data": clicks, **few}
    plain = once(fitted, "FMClassifier", 64, data=(X, y), **few)
    online = once(fitted, "FMClassifier", 64, data=(X, y), **few)
    aware = once(fitted, "FFMClassifier", 4, **fields)
    deep = once(fitted, "DeepFMClassifier", **fields)
    return {
        "FM: all rows": lambda: plain().predict_proba(X_valid),
        "FM: one row": lambda: plain().predict_proba(X_valid[[0]]),
        "FM: update by 100 rows": lambda: online().partial_fit(X[:100], y[:100]),
        "FM: explain 100 rows": lambda: plain().explain(X[:100]),
        "FFM: all rows": lambda: aware().predict_proba(clicks[0]),
        "DeepFM: all rows": lambda: deep().predict_proba(clicks[0]),
    }


def log_of(n_rows, n_users, n_items):
    """Return users and items of a log, which are strings."""
    rng = np.random.default_rng(0)
    users, items = rng.integers(n_users, size=n_rows), rng.integers(n_items, size=n_rows)
    users[:n_users], items[:n_items] = np.arange(n_users), np.arange(n_items)
    return stringed("user", users), stringed("item", items)


@topic
def ids(folder):
    """Requests and pairs by strings among many ids."""
    users, items = log_of(120_000, 100_000, 20_000)
    few = estimator("MFRecommender", 8, loss="bpr", max_iter=1, random_state=0)
    model = freqfm.InteractionRecommender(few).fit(np.column_stack([users, items]))
    people, some = users[:100].tolist(), items[:100].tolist()
    pairs = list(zip(people, some, strict=True))
    array = np.column_stack([users[:10_000], items[:10_000]])
    return {
        "one user": lambda: model.recommend(people[1]),
        "100 users": lambda: model.recommend(people),
        "100 users in an array": lambda: model.recommend(users[:100]),
        "one history": lambda: model.recommend(history=some[:5]),
        "100 candidates": lambda: model.recommend(people[1], candidates=some),
        "100 excluded": lambda: model.recommend(people[1], exclude=some),
        "100 pairs": lambda: model.predict(pairs),
        "10,000 pairs in an array": lambda: model.predict(array),
        "similar items": lambda: model.similar_items(some[1]),
    }


@topic
def containers(folder):
    """Fits to interactions in lists, arrays and DataFrames."""
    users, items = log_of(100_000, 20_000, 5_000)
    numbers = np.random.default_rng(0).integers(20_000, size=(100_000, 2))
    columns = {"user": users.tolist(), "item": items.tolist()}
    logs = {
        "list of tuples": list(zip(users.tolist(), items.tolist(), strict=True)),
        "list of tuples of integers": list(map(tuple, numbers.tolist())),
        "list of lists": np.column_stack([users, items]).tolist(),
        "array of strings": np.column_stack([users, items]),
        "array of integers": numbers,
        "pandas": pandas.DataFrame(columns),
        "polars": polars.DataFrame(columns),
    }
    few = estimator("ALSRecommender", 2, max_iter=1, random_state=0)

    def call_of(log):
        return lambda: freqfm.InteractionRecommender(few).fit(log)

    return {f"fit: {name}": call_of(log) for name, log in logs.items()}


@topic
def files(folder):
    """Files of interactions and of rows, and an encoder."""
    place = Path(tempfile.mkdtemp(dir=folder))
    rng = np.random.default_rng(0)
    users, items = log_of(100_000, 20_000, 5_000)
    np.savetxt(place / "lists.txt", rng.integers(20_000, size=(20_000, 6)), fmt="%d")
    rows = sparse.csr_array(sparse.random(20_000, 5_000, 0.002, random_state=0, dtype=np.float32))
    y = np.arange(20_000) % 2
    with (place / "rows.libfm").open("w") as libfm, (place / "rows.ffm").open("w") as libffm:
        for label, columns in zip(y, np.split(rows.indices, rows.indptr[1:-1]), strict=True):
            libfm.write(f"{label} " + " ".join(f"{column}:1" for column in columns) + "\n")
            libffm.write(f"{label} " + " ".join(f"{c % 9}:{c}:1" for c in columns) + "\n")
    datasets.save_csr(place / "rows", rows, y)
    frame = pandas.DataFrame({"user": users, "item": items})
    return {
        "load_interactions": lambda: datasets.load_interactions(place / "lists.txt"),
        "load_libffm": lambda: datasets.load_libffm(place / "rows.ffm"),
        "load_libfm": lambda: datasets.load_libfm(place / "rows.libfm"),
        "save_csr": lambda: datasets.save_csr(place / "again", rows, y),
        "load_csr": lambda: datasets.load_csr(place / "rows"),
        "encode": lambda: datasets.IncrementalOneHotEncoder().fit(frame).transform(frame),
    }


@topic
def splits_and_metrics(folder):
    """Splitters of a log with times, with and without a time zone, and rankings."""
    rng = np.random.default_rng(0)
    seconds = pandas.to_timedelta(rng.integers(10**7, size=100_000), "s")
    times = pandas.Series(pandas.Timestamp(2024, 1, 1) + seconds)
    columns = {"user": rng.integers(10_000, size=100_000), "item": rng.integers(5000, size=100_000)}
    frame = pandas.DataFrame({**columns, "timestamp": times})
    zone = frame.assign(timestamp=times.dt.tz_localize("UTC").dt.tz_convert("Europe/Berlin"))
    latest, later = model_selection.LeaveLastOut(), model_selection.GlobalTimeSplit()
    folds = model_selection.WarmStartKFold(3, random_state=0)
    X, _, test = click_parts(folder, "ml1m-implicit")
    model = fitted("ALSRecommender", max_iter=1, random_state=0, data=[X])
    ranked = model.recommend(users=np.arange(X.shape[0]), n_recommendations=20)[0]
    return {
        "GlobalTimeSplit": lambda: list(later.split(frame)),
        "GlobalTimeSplit, time zone": lambda: list(later.split(zone)),
        "LeaveLastOut": lambda: list(latest.split(frame)),
        "WarmStartKFold": lambda: list(folds.split(frame)),
        "holdout": lambda: model_selection.holdout_interactions(X, 0.1, random_state=0),
        "ndcg_at_k": lambda: metrics.ndcg_at_k(test, ranked),
        "score": lambda: model.score(X, test),
    }


def child_seconds(code):
    """Run code in a new process; return its processor seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Seconds(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


@topic
def imports_and_first_fits(folder):
    """New processes: what they import, and what they compile with an empty folder of code."""

    def first_fit(fit):
        with tempfile.TemporaryDirectory() as cache:
            return Seconds(seconds_of_first_fit(fit, cache)[0])

    calls = {
        "import": lambda: child_seconds("import freqfm"),
        "import of a recommender": lambda: child_seconds("from freqfm import MFRecommender"),
    }
    return calls | {f"first {name}": lambda fit=fit: first_fit(fit) for name, fit in FITS.items()}
