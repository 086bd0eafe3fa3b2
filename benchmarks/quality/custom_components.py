"""The time of custom components over that of the package's components with the same formulas.

Each formula is copied into a custom class; fits alternate, and the ratio of the medians of
their CPU times is printed: 1 is the same speed. Run it on a quiet machine::

    python benchmarks/quality/custom_components.py
"""

import argparse
import math
import time

import numpy as np
from numba import njit

from freqfm import FMClassifier, FMRegressor, MFRecommender
from freqfm.datasets import make_clicks, make_interactions
from freqfm.formulas.losses import expectation_of_log_loss, log_loss, pair_loss, squared_error
from freqfm.losses import Loss, PairwiseLoss
from freqfm.optimizers import Optimizer


class CustomLogLoss(Loss):
    """The log loss as a custom formula."""

    curvature = 0.25
    for_classes = True

    @staticmethod
    @njit
    def value_and_derivative(score, target):
        value, derivative = log_loss(score, target)
        return value, derivative

    expectation = staticmethod(expectation_of_log_loss)

    def base_score(self, target, weight):
        share = np.average(target, weights=weight)
        return float(np.log(share / (1 - share)))


class CustomSquaredError(Loss):
    @staticmethod
    @njit
    def value_and_derivative(score, target):
        value, derivative = squared_error(score, target)
        return value, derivative


class CustomBPR(PairwiseLoss):
    @staticmethod
    @njit
    def value_and_derivatives(positive, negative):
        value, by_positive, by_negative = pair_loss(positive, negative)
        return value, by_positive, by_negative


class CustomAdagrad(Optimizer):
    n_states = 1

    def __init__(self, learning_rate=0.05):
        self.learning_rate = learning_rate

    @staticmethod
    @njit
    def step(parameter, gradient, total, unused, rate):
        total += gradient * gradient
        return parameter - rate * gradient / (math.sqrt(total) + np.float32(1e-10)), total, unused


def cases(n_rows, n_pairs):
    """Return, by name, data and models with a component of the package and a custom one."""
    X, y = make_clicks(n_rows, (20_000, 3000, 300, 24), random_state=0)
    interactions = make_interactions(5000, 2000, n_pairs, random_state=0)
    common = {"max_iter": 3, "random_state": 0, "n_jobs": 1}
    fm = {"n_components": 16, "early_stopping": False, "n_iter_no_change": None, **common}
    mf = {"n_components": 32, **common}
    return {
        "log loss": ((X, y), [FMClassifier(loss=loss, **fm) for loss in ("log", CustomLogLoss())]),
        "squared error": (
            (X, y.astype(float)),
            [FMRegressor(loss=loss, **fm) for loss in ("squared", CustomSquaredError())],
        ),
        "adagrad": (
            (X, y),
            [FMClassifier(optimizer=step, **fm) for step in ("adagrad", CustomAdagrad())],
        ),
        "bpr": (
            (interactions,),
            [MFRecommender(loss=loss, **mf) for loss in ("bpr", CustomBPR())],
        ),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--pairs", type=int, default=300_000)
    parser.add_argument("--runs", type=int, default=7)
    args = parser.parse_args()
    for name, (data, models) in cases(args.rows, args.pairs).items():
        times = [[], []]
        for run in range(args.runs + 1):
            for model, taken in zip(models, times, strict=True):
                start = time.process_time()
                model.fit(*data)
                if run:  # The first one compiles.
                    taken.append(time.process_time() - start)
        shipped, custom = map(np.median, times)
        ratio = custom / shipped
        print(f"{name:14} shipped {shipped:6.2f} s, custom {custom:6.2f} s, ratio {ratio:.3f}")


if __name__ == "__main__":
    main()
