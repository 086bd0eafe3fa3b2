"""Seconds of an epoch of field-aware machines, in turns with xLearn, and the AUC of both.

Frappe, vectors of 4 numbers, one thread. Seconds are those of the processor: of freqfm's thread,
and of xLearn's process, with 31 epochs less with 1. xLearn trains by Adagrad, one row at a time.

    python benchmarks/speed/ffm_speed.py --data DIR --out results

Needs xLearn's programs on the PATH, see ``_xlearn.py``.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np
from sklearn.metrics import log_loss, roc_auc_score

sys.path.insert(0, str(Path(__file__).parents[1]))
from _data import data_parser, frappe_fields, frappe_split, require_data
from _epochs import Epochs
from _xlearn import XLearn, has_xlearn

from freqfm import FFMClassifier

EPOCHS = 30


def of_freqfm(model, X, y):
    """Return a function that returns the seconds of an epoch."""
    epochs = Epochs(model, X, y)

    def seconds():
        start = time.thread_time()
        for _ in range(EPOCHS):
            epochs()
        return (time.thread_time() - start) / EPOCHS

    return seconds


def of_xlearn(other):
    """Return a function that returns the seconds of an epoch."""

    def seconds():
        taken = []
        for n in (1, EPOCHS + 1):
            other.train("-e", str(n))
            taken.append(other.cpu_seconds)
        return (taken[1] - taken[0]) / EPOCHS

    return seconds


def main():
    parser = data_parser(__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    if not has_xlearn():
        raise SystemExit("xlearn_train and xlearn_predict must be on the PATH.")
    (X, y), (X_valid, y_valid), (X_test, y_test) = frappe_split(require_data(args))
    y, y_valid, y_test = (labels > 0 for labels in (y, y_valid, y_test))
    fields = frappe_fields(X)
    results = {"epoch": {}, "test": {}}

    calls = {
        optimizer: of_freqfm(
            FFMClassifier(fields=fields, optimizer=optimizer, n_jobs=1, random_state=0), X, y
        )
        for optimizer in ("cf_sgd", "adagrad")
    }
    for name, options in {"xLearn": [], "xLearn, rows as they are": ["--no-norm"]}.items():
        other = XLearn(1, 1, "-k", "4", *options, fields=fields)
        other.fit(X, y.astype(int))
        calls[name] = of_xlearn(other)
    for call in calls.values():
        call()
    turns = [{name: call() for name, call in calls.items()} for _ in range(args.repeats)]
    for name in calls:
        low, median, high = np.quantile([turn[name] for turn in turns], [0.25, 0.5, 0.75])
        results["epoch"][name] = [low, median, high]
        print(f"{name:28}{median:9.4f} s an epoch ({low:.4f} to {high:.4f})", flush=True)

    def report(name, models):
        found = []
        for model in models:
            p = model.predict_proba(X_test)[:, 1]
            found.append((roc_auc_score(y_test, p), log_loss(y_test, np.clip(p, 1e-7, 1 - 1e-7))))
        auc, loss = np.mean(found, axis=0)
        results["test"][name] = found
        print(f"{name:28}AUC {auc:.4f} (spread {np.ptp(found, axis=0)[0]:.4f}), loss {loss:.4f}")

    seeds = range(args.seeds)
    ours = [FFMClassifier(fields=fields, random_state=seed) for seed in seeds]
    report("FFMClassifier()", [model.fit(X, y, X_val=X_valid, y_val=y_valid) for model in ours])
    for name, options in {"xLearn": [], "xLearn, rows as they are": ["--no-norm"]}.items():
        best = []
        for seed in seeds:
            # As many epochs as are best on the validation part.
            tried = []
            for n in range(1, 16):
                other = XLearn(1, seed + 1, "-k", "4", "-e", str(n), *options, fields=fields)
                other.fit(X, y.astype(int))
                p = other.predict_proba(X_valid)[:, 1]
                tried.append((roc_auc_score(y_valid, p), other))
            best.append(max(tried, key=lambda one: one[0])[1])
        report(name, best)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "ffm_speed.json").write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
