"""
How does time grow?
===================

Seconds to train against the number of rows, and against the number of threads, on logs that are
drawn here. Nothing is downloaded.
"""

import time

import joblib
import matplotlib.pyplot as plt
import numpy as np

from freqfm import ALSRecommender, FMClassifier, MFRecommender
from freqfm.datasets import make_clicks, make_interactions

# %%
# Three models: a classifier of clicks, a user, an ad, a site and an hour in each row; a recommender
# by gradient steps; and one by least squares. Five epochs each, so that all sizes do the same work
# for each row. The first fit in a process loads or compiles code, so it does not count.


def clicks(n_rows):
    """Return rows and labels."""
    return make_clicks(n_rows, (2000, 500, 100, 24), random_state=0)


def log(n_rows):
    """Return a matrix with about so many interactions, fifty for each user."""
    return (make_interactions(n_rows // 50, 2000, n_rows, random_state=0),)


EPOCHS = {"max_iter": 5, "early_stopping": False, "random_state": 0}
MODELS = {
    "FMClassifier": (FMClassifier(64, n_iter_no_change=None, **EPOCHS), clicks),
    "MFRecommender": (MFRecommender(64, batch_size=1024, **EPOCHS), log),
    "ALSRecommender": (ALSRecommender(64, **EPOCHS), log),
}


def seconds(model, data, n_jobs, repeats=3):
    """Return the least seconds of some fits."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        model.set_params(n_jobs=n_jobs).fit(*data)
        times.append(time.perf_counter() - start)
    return min(times)


# %%
# Rows
# ----
#
# Both axes are logarithmic, and grey lines mark where ten times the rows take ten times as long.

sizes = [2000, 6000, 20_000, 60_000, 200_000]
figure, ax = plt.subplots(figsize=(7.5, 4.4), layout="constrained")
for name, (model, draw) in MODELS.items():
    model.set_params(n_jobs=1).fit(*draw(1000))
    data = [draw(size) for size in sizes]
    n_rows = [part[0].shape[0] if name == "FMClassifier" else part[0].nnz for part in data]
    times = [seconds(model, part, 1) for part in data]
    ax.plot(n_rows, times, marker="o", label=name)
    ax.plot(n_rows, times[-1] * np.array(n_rows) / n_rows[-1], color="lightgray", zorder=0)
    print(f"{name:15} {times[-1]:.2f} s for {n_rows[-1]:,} rows")
ax.set(xscale="log", yscale="log", xlabel="rows", ylabel="seconds for five epochs")
ax.legend()
plt.show()

# %%
# The curves run along the grey lines, except for the smallest logs: a row costs the same in a small
# log and in a large one.
#
# Threads
# -------
#
# The largest log again, with one thread up to as many as there are cores, at most eight. The model
# does not depend on their number, to the last bit.

n_cores = min(joblib.cpu_count(), 8)
threads = sorted({1, *(n for n in (2, 4) if n < n_cores), n_cores})
figure, ax = plt.subplots(figsize=(7.5, 4.4), layout="constrained")
for name, (model, draw) in MODELS.items():
    data, times, models = draw(sizes[-1]), [], []
    for n_jobs in threads:
        times.append(seconds(model, data, n_jobs))
        models.append(model.factors_ if name == "FMClassifier" else model.item_factors_)
    ax.plot(threads, times[0] / np.array(times), marker="o", label=name)
    same = all(np.array_equal(models[0], other) for other in models)
    print(f"{name:15} the same model with {threads} threads: {same}")
ax.plot(threads, threads, color="lightgray", zorder=0)
ax.set(xlabel="threads", ylabel="times as fast as one thread", xticks=threads, ylim=0)
ax.legend()
plt.show()

# %%
# More threads are faster, though not as many times as there are threads: they share the memory, and
# wait for each other after each batch, so that results stay the same. The classifier gains least:
# rows of four values leave little to compute between two waits. While other programs compute,
# curves are lower. The reference results have a page on speed, with larger sizes.
