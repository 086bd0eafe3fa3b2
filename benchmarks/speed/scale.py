"""Recommenders on a large made log: before the first epoch, epochs, memory, the model, a request.

Each model is fitted in its own process, after a small fit that loads compiled code. Printed are

- seconds of all threads and, in brackets, of the clock: before the first epoch, for an epoch, and
  for the fit; that of a model of epochs has as many as are set by default;
- how many epochs the first number is;
- the peak of resident memory while it is fitted, beyond that with the log, in MB;
- the size of the pickled model in MB, and milliseconds of ``recommend`` for one user.

    python benchmarks/speed/scale.py --interactions 17000000 --users 500000 --items 100000
    python benchmarks/speed/scale.py --items 1000000 --models bpr item_knn
    python benchmarks/speed/scale.py --quick
"""

import argparse
import json
import pickle
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from _epochs import task_of
from _measure import peak, resident

import freqfm
from freqfm.datasets import make_interactions

MODELS = {
    "mf": freqfm.MFRecommender,
    "bpr": lambda **params: freqfm.MFRecommender(loss="bpr", **params),
    "vae": lambda **params: freqfm.FastVAERecommender(early_stopping=False, **params),
    "als": freqfm.ALSRecommender,
    "ease": freqfm.EASERecommender,
    "graph_filter": freqfm.GraphFilterRecommender,
    "item_knn": freqfm.ItemKNNRecommender,
    "popularity": freqfm.PopularityRecommender,
}
N_EPOCHS, N_REQUESTS = 2, 20
ITEMS_OF_CLUSTER = 2000


def now():
    """Return seconds of all threads, and of the clock."""
    return np.array([time.process_time(), time.perf_counter()])


def made(n_users, n_items, n_interactions):
    """Return a log in which a few users and items have many interactions."""
    return make_interactions(
        n_users, n_items, n_interactions, n_clusters=max(5, n_items // ITEMS_OF_CLUSTER),
        random_state=0,
    )  # fmt: skip


def fit(name, X, **params):
    """Return a fitted model, and what it took; models of epochs are fitted for a few."""
    model, begun = MODELS[name](**params), now()
    if not hasattr(model, "max_iter"):
        model.fit(X)
        return model, {"fit": (now() - begun).tolist()}
    task, marks = task_of(model, X), []
    with task:
        for epoch in range(N_EPOCHS):
            marks.append(now())
            task.run_epoch(epoch)
        marks.append(now())
        task.pull()
    before, epoch = marks[0] - begun, marks[-1] - marks[-2]
    n_epochs = int(getattr(task, "components", model).max_iter)
    return model, {
        "before": before.tolist(),
        "epoch": epoch.tolist(),
        "n_epochs": n_epochs,
        "ratio": before[0] / epoch[0],
        "fit": (before + n_epochs * epoch).tolist(),
    }


def measure(name, sizes, n_jobs):
    """Return what a model takes."""
    fit(name, made(300, 200, 3000), n_jobs=n_jobs)
    X = made(*sizes)
    before = resident()
    try:
        model, found = fit(name, X, n_jobs=n_jobs)
    except (ValueError, MemoryError) as error:
        return {"refused": str(error)}
    found["memory"] = (peak() - before) / 1e6
    found["model"] = len(pickle.dumps(model, protocol=5)) / 1e6
    model.recommend(users=0)
    begun = time.perf_counter()
    for user in range(N_REQUESTS):
        model.recommend(users=user)
    found["request"] = 1e3 * (time.perf_counter() - begun) / N_REQUESTS
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--interactions", type=int, default=17_000_000)
    parser.add_argument("--users", type=int, default=500_000)
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--n-jobs", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="a small log: a test")
    parser.add_argument("--one", help="measure this model in this process")
    args = parser.parse_args()
    sizes = args.users, args.items, args.interactions
    if args.quick:
        sizes = 400, 300, 6000
    if args.one:
        print(json.dumps(measure(args.one, sizes, args.n_jobs)))
        return
    given = ["--users", "--items", "--interactions", "--n-jobs"]
    given = [str(of) for pair in zip(given, (*sizes, args.n_jobs), strict=True) for of in pair]
    for name in args.models:
        command = [sys.executable, __file__, "--one", name, *given]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        print(f"{name:13}{shown(json.loads(done.stdout.splitlines()[-1]))}", flush=True)


def shown(found):
    """Return what a model takes, on one line."""
    if "refused" in found:
        return f"refused: {found['refused']}"

    def both(key):
        return f"{found[key][0]:.1f} ({found[key][1]:.1f}) s"

    line = f"fit {both('fit')}, memory {found['memory']:.0f} MB, model {found['model']:.0f} MB"
    if "before" in found:
        line += f", {found['n_epochs']} epochs of {both('epoch')}, before them {both('before')}"
        line += f", {found['ratio']:.1f} epochs"
    return f"{line}, a request {found['request']:.1f} ms"


if __name__ == "__main__":
    main()
