"""The cost of checking a model before its use, as a share of ``recommend`` for 1,000 users.

A model is checked whenever it is used: shapes and types of all arrays, and the histories of the
users who are asked for; scikit-learn's ``check_is_fitted`` is not counted. Times are processor
seconds, medians of the repetitions.

    python benchmarks/robustness/check_cost.py
"""

import argparse
import time

import numpy as np
from sklearn.utils.validation import check_is_fitted

from freqfm import FastVAERecommender, MFRecommender
from freqfm._input.validation import LearnedArrays
from freqfm.datasets import make_interactions

USERS = np.arange(1000)


def seconds(call, n):
    """Return the median processor time of ``n`` calls."""
    times = []
    for _ in range(n):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return float(np.median(times))


def check(model):
    """Do what ``recommend`` does only to check a model."""
    model._check_learned()
    learned, history = LearnedArrays(model), model._history
    starts, ends = history.indptr[:1000], history.indptr[1:1001]
    fits = starts.min() >= 0 and ends.max() <= history.n_interactions and (starts <= ends).all()
    learned.require(fits, "_history.indptr", "")
    learned.indices("_history.indices", history.indices[: ends[-1]], model.n_features_in_)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=15)
    repeat = parser.parse_args().repeat
    print(f"{'estimator':20} {'items':>8} {'recommend':>12} {'check':>12} {'share':>8}")
    for n_items in (200, 2_000, 20_000):
        X = make_interactions(2_000, n_items, 40_000, random_state=0)
        for model in (MFRecommender(max_iter=1), FastVAERecommender(max_iter=1)):
            model.set_params(random_state=0, n_jobs=1).fit(X)
            model.recommend(users=USERS)
            whole = seconds(lambda model=model: model.recommend(users=USERS), repeat)
            part = seconds(lambda model=model: [check(model) for _ in range(20)], repeat)
            part -= seconds(lambda m=model: [check_is_fitted(m) for _ in range(20)], repeat)
            part /= 20
            print(
                f"{type(model).__name__:20} {n_items:8} {1e3 * whole:9.2f} ms {1e6 * part:9.0f} us "
                f"{part / whole:8.2%}"
            )


if __name__ == "__main__":
    main()
