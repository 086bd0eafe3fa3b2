"""Components as a user would write them: losses, optimizers and a sampler with formulas."""

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from freqfm.formulas.proposals import dot_with_row, find_in_sums, random_number
from freqfm.losses import Loss, PairwiseLoss
from freqfm.optimizers import FASGD, Optimizer
from freqfm.samplers import QuerySampler


class Hinge(Loss):
    """Hinge loss with a margin."""

    def __init__(self, margin=1.0):
        self.margin = margin

    @property
    def value_and_derivative(self):
        margin = self.margin

        @njit
        def hinge(score, target):
            sign = 2 * target - 1
            if sign * score < margin:
                return margin - sign * score, -sign
            return 0.0, 0.0

        return hinge


class CustomLogLoss(Loss):
    curvature = 0.25

    @staticmethod
    @njit
    def value_and_derivative(score, target):
        small = math.exp(-abs(score))
        value = math.log1p(small) + max(score, 0.0) - target * score
        return value, (1.0 if score >= 0 else small) / (1.0 + small) - target

    @staticmethod
    @njit
    def expectation(score):
        return 1 / (1 + math.exp(-score))


class CustomSquaredError(Loss):
    @staticmethod
    @njit
    def value_and_derivative(score, target):
        residual = score - target
        return np.float32(0.5) * residual * residual, residual

    def base_score(self, target, weight):
        return float(np.average(target, weights=weight))


class CustomBPR(PairwiseLoss):
    @staticmethod
    @njit
    def value_and_derivatives(positive, negative):
        derivative = 1 / (1 + math.exp(positive - negative))
        return math.log1p(math.exp(negative - positive)), -derivative, derivative


class HingeOfPairs(PairwiseLoss):
    @staticmethod
    @njit
    def value_and_derivatives(positive, negative):
        if positive - negative < 1:
            return 1 - positive + negative, -1.0, 1.0
        return 0.0, 0.0, 0.0


class CustomSGD(Optimizer):
    def __init__(self, learning_rate=0.1):
        self.learning_rate = learning_rate

    @staticmethod
    @njit
    def step(parameter, gradient, first, second, rate):
        return parameter - rate * gradient, first, second


class CustomFASGD(FASGD):
    """Learning rates of a shipped class, with a custom step."""

    step = staticmethod(CustomSGD.step)


class Momentum(Optimizer):
    n_states = 1

    def __init__(self, learning_rate=0.1, momentum=0.9):
        self.learning_rate = learning_rate
        self.momentum = momentum

    @property
    def step(self):
        momentum = self.momentum

        @njit
        def step(parameter, gradient, velocity, unused, rate):
            velocity = momentum * velocity + gradient
            return parameter - rate * velocity, velocity, unused

        return step


class CustomAdagrad(Optimizer):
    n_states = 1

    def __init__(self, learning_rate=0.05):
        self.learning_rate = learning_rate

    @staticmethod
    @njit
    def step(parameter, gradient, total, unused, rate):
        total += gradient * gradient
        return parameter - rate * gradient / (math.sqrt(total) + np.float32(1e-10)), total, unused


class CustomAdam(Optimizer):
    """Adam, whose corrections of the bias need the number of the step."""

    n_states = 2

    def __init__(self, learning_rate=0.01, lazy=True):
        self.learning_rate = learning_rate
        self.lazy = lazy

    @staticmethod
    @njit
    def step(parameter, gradient, mean, square, rate, number):
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.999 * square + 0.001 * gradient * gradient
        root = math.sqrt(square / (1 - 0.999**number))
        return parameter - rate * mean / (1 - 0.9**number) / (root + 1e-8), mean, square


class PositivePart(NamedTuple):
    """Items in proportion to max(<q, v_i>, 0) + 1."""

    n_items: int
    vectors: np.ndarray

    @staticmethod
    def prepare(proposal, query, numbers, sums):
        total = 0.0
        for i in range(proposal.n_items):
            total += max(dot_with_row(query, proposal.vectors, i), np.float32(0)) + 1
            sums[i] = total

    @staticmethod
    def draw(proposal, query, key, ids, log_q, numbers, sums):
        n = proposal.n_items
        for j in range(ids.shape[0]):
            i = find_in_sums(sums, 0, n, random_number(key, j) * sums[n - 1])
            weight = max(dot_with_row(query, proposal.vectors, i), np.float32(0)) + 1
            ids[j] = i
            log_q[j] = math.log(weight * n / sums[n - 1])

    def scratch(self):
        return 0, self.n_items


class Rectified(QuerySampler):
    def __init__(self, corrected=True):
        self.corrected = corrected

    def proposal(self, counts, vectors, seed, previous=None):
        return PositivePart(len(vectors), vectors)
