"""Seconds of an epoch of factorization machines, in turns with xLearn.

Both train on the same rows with two threads by default: xLearn with Adagrad and without locks,
freqfm with CF-SGD in mini-batches of 1,024, with the same result for any number of threads. xLearn
reads the rows before its first epoch and prints each epoch's time; neither that nor an evaluation
counts here.

    python benchmarks/speed/xlearn_speed.py --data DIR --out results

Without data, synthetic rows of the size of the MovieLens ratings are used. Needs xLearn's programs
on the PATH, see ``_xlearn.py``.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from _data import data_parser, movielens_split
from _xlearn import XLearn, has_xlearn
from fm_speed import Freqfm, synthetic

from freqfm._input.validation import canonical_csr, count_threads


def seconds_of_epochs(call, n):
    """Return the mean seconds of some epochs."""
    start = time.perf_counter()
    for _ in range(n):
        call()
    return (time.perf_counter() - start) / n


def compare(X, y, d, args):
    """Return the seconds of an epoch of both, of each round."""
    ours = Freqfm(X, y, d, args.threads)
    other = XLearn(args.threads, 1, "-k", str(d), "-e", str(args.epochs), "--no-norm")
    other.fit(X, y)
    ours.epoch()
    rounds = [
        (seconds_of_epochs(ours.epoch, args.epochs), other.train()) for _ in range(args.repeats)
    ]
    return {"freqfm": [one for one, _ in rounds], "xLearn": [two for _, two in rounds]}


def main():
    parser = data_parser(__doc__)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--epochs", type=int, default=20, help="epochs of each in a round")
    parser.add_argument("--threads", type=int, default=count_threads(None))
    args = parser.parse_args()
    if not has_xlearn():
        raise SystemExit("xlearn_train and xlearn_predict must be on the PATH.")
    X, y = movielens_split(args.data, 0)[0] if args.data else synthetic(390_120, 2)
    X, results = canonical_csr(X), {}
    print(f"{len(y)} rows, {args.threads} threads: seconds of an epoch, median and quartiles")
    for d in (16, 64):
        results[f"d={d}"] = seconds = compare(X, y, d, args)
        for name, taken in seconds.items():
            low, median, high = np.quantile(taken, [0.25, 0.5, 0.75])
            ratio = np.median(seconds["xLearn"]) / median
            print(f"  d={d:<4}{name:10}{median:9.4f} ({low:.4f} to {high:.4f}){ratio:8.2f}")
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "xlearn_speed.json").write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
