"""CPU time per epoch of a field-weighted machine, and of a plain one on the same rows.

One thread each, epochs in turns, d = 16. Medians and quartiles of nanoseconds a row, and of the
quotient of two epochs that follow each other.

    python benchmarks/speed/fwfm_speed.py --data DIR
"""

import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "quality"))
from _data import data_parser, require_data
from _epochs import Epochs
from fields_defaults import SETS

from freqfm import FMClassifier, FwFMClassifier


def nanoseconds(epochs, n_rows):
    """Return the CPU time of an epoch, for each row."""
    start = time.process_time()
    epochs()
    return (time.process_time() - start) * 1e9 / n_rows


def main():
    parser = data_parser(__doc__)
    parser.add_argument("--repeats", type=int, default=15)
    args = parser.parse_args()
    print(f"{'':34}{'FM':>7}{'FwFM':>8}{'quotient':>10}{'quartiles':>18}")
    for name, load in SETS.items():
        pairs, fields = load(require_data(args))
        X, y = pairs[0][0]
        params = {"early_stopping": False, "n_jobs": 1, "random_state": 0}
        models = FMClassifier(**params), FwFMClassifier(fields=fields, **params)
        both = [Epochs(model, X, y) for model in models]
        turns = [[nanoseconds(epochs, len(y)) for epochs in both] for _ in range(args.repeats + 1)]
        turns = np.array(turns[1:])
        low, middle, high = np.quantile(turns[:, 1] / turns[:, 0], [0.25, 0.5, 0.75])
        plain, weighted = np.median(turns, axis=0)
        print(f"{name:34}{plain:7.0f}{weighted:8.0f}{middle:10.2f}{low:10.2f} to {high:4.2f}")


if __name__ == "__main__":
    main()
