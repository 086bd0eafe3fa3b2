"""What long reproductions share: results to resume from, training with looks, tables."""

import json
import time
from pathlib import Path

import numpy as np
from _data import QUICK, click_parts, data_parser, movielens_100k, require_data
from scipy.stats import spearmanr
from sklearn.base import clone

from freqfm import DivergenceError
from freqfm.metrics import ranking_report

__all__ = [
    "QUICK",
    "Results",
    "click_parts",
    "data_parser",
    "epochs_of",
    "evaluate",
    "movielens_100k",
    "rank_correlation",
    "require_data",
    "run_parser",
    "table",
    "train",
]


def run_parser(description, *, epochs, every, patience):
    """Return a parser with the options of all long runs, and these defaults."""
    parser = data_parser(description)
    parser.add_argument("--results", type=Path, help="JSON lines of finished runs (in --out)")
    parser.add_argument("--epochs", type=int, default=epochs, help=f"at most ({epochs})")
    parser.add_argument("--every", type=int, default=every, help=f"epochs a look ({every})")
    parser.add_argument(
        "--patience", type=int, default=patience, help=f"looks without a gain ({patience})"
    )
    parser.add_argument("--n-jobs", type=int, default=None)
    parser.add_argument("--quick", action="store_true", help=QUICK)
    return parser


class Results:
    """Finished runs, one JSON object a line: a run that is there is not done again."""

    def __init__(self, path):
        self.path, self.done = path, {}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        text = path.read_text()
        for line in text.splitlines():
            try:
                record = json.loads(line)
            except json.JSONDecodeError:
                continue  # a run that was killed while it wrote
            self.done[self._name(record["key"])] = record
        if text and not text.endswith("\n"):
            path.write_text(text + "\n")

    @staticmethod
    def _name(key):
        return json.dumps(key, sort_keys=True)

    def run(self, key, work, *arguments):
        """Return what ``work(*arguments)`` returned, a dict, for this key: now or earlier."""
        name = self._name(key)
        if name not in self.done:
            start = time.perf_counter()
            outcome = work(*arguments)
            record = {"key": key, "total_seconds": time.perf_counter() - start, **outcome}
            with self.path.open("a") as file:
                file.write(json.dumps(record) + "\n")
            self.done[name] = record
            print(
                f"{', '.join(map(str, key.values()))}: {record['total_seconds']:.0f} s", flush=True
            )
        return self.done[name]


def evaluate(model, held_out, known=None, k=20):
    """Return recall and NDCG at ``k``, and its parts by popularity, of users seen in training.

    Items of the users' training rows are not recommended, nor are those in ``known``.
    """
    users = np.flatnonzero(np.diff(held_out.indptr))
    exclude = None if known is None else known[users]
    items, _ = model.recommend(users=users, n_recommendations=k, exclude=exclude)
    report = ranking_report(held_out[users], items, item_counts=model.item_counts_)
    names = ("ndcg", "recall", "ndcg_popular", "ndcg_neutral", "ndcg_unpopular")
    return {name: report[f"{name}@{k}"] for name in names}


def train(model, X, look, *, epochs, every, patience=None, at_best=None):
    """Train ``model``, look at it every few epochs, and stop when its score no longer rises.

    ``look(model)`` returns a dict of numbers with a "score". ``at_best(model)``, if given, returns
    another, and is asked at every look with a score higher than all before. Only training is timed,
    and compilation is not.
    """
    clone(model).set_params(max_iter=1).fit(X[:50])
    model.set_params(warm_start=True)
    run = {"looks": [], "best": None, "seconds": 0.0, "diverged": False}
    n_epochs = since_best = 0
    while n_epochs < epochs and since_best != patience:
        model.set_params(max_iter=min(every, epochs - n_epochs))
        start = time.perf_counter()
        try:
            model.fit(X)
        except DivergenceError:
            run["diverged"] = True
            break
        run["seconds"] += time.perf_counter() - start
        n_epochs = model.n_iter_
        now = {
            "epoch": n_epochs,
            "seconds": run["seconds"],
            "loss": float(model.loss_curve_[-1]),
            **look(model),
        }
        run["looks"].append(now)
        since_best += 1
        if run["best"] is None or now["score"] > run["best"]["score"]:
            run["best"], since_best = now, 0
            if at_best is not None:
                run["best"] = {**now, **at_best(model)}
    run["epochs"] = n_epochs
    return run


def rank_correlation(a, b):
    """Return Spearman's correlation; NaN if ``b`` is constant."""
    return float(spearmanr(a, b).statistic) if np.ptp(b) > 0 else float("nan")


def epochs_of(*runs):
    """Return how many epochs runs took on average, for a table."""
    diverged = " (diverged)" if any(run["diverged"] for run in runs) else ""
    return f"{np.mean([run['epochs'] for run in runs]):.0f}{diverged}"


def table(title, header, rows):
    """Print rows of strings, integers and floats, aligned."""
    shown = [
        [f"{cell:.4f}" if isinstance(cell, float) else str(cell) for cell in row] for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(header, *shown, strict=True)]
    print(f"\n{title}")
    for row in [header, *shown]:
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        print("  ".join([row[0].ljust(widths[0]), *cells[1:]]))
