"""
A custom loss and a custom optimizer
====================================

A hinge loss and gradient steps with momentum, in 15 lines, without editing the package. Each is a
function of numbers compiled by ``numba.njit``; it is compiled into the training loop and runs as
fast as the losses and optimizers that come with the package. :doc:`/custom_parts` has the other
parts, and says what each may define.
"""

import matplotlib.pyplot as plt
import numpy as np
from numba import njit

from freqfm import FMClassifier, FMRegressor
from freqfm.initializers import Normal
from freqfm.losses import Loss
from freqfm.optimizers import Optimizer

# %%
# The two classes
# ---------------
#
# A loss gives its value and its derivative by the score; an optimizer gives the step of one weight.


class Hinge(Loss):
    @staticmethod
    @njit
    def value_and_derivative(score, target):
        sign = 2 * target - 1
        return (1 - sign * score, -sign) if sign * score < 1 else (0.0, 0.0)


class Momentum(Optimizer):
    n_states = 1

    def __init__(self, learning_rate=0.05, momentum=0.9):
        self.learning_rate, self.momentum = learning_rate, momentum

    @property
    def step(self):
        momentum = self.momentum
        return njit(lambda w, g, v, _, rate: (w - rate * (momentum * v + g), momentum * v + g, _))


# %%
# Check both
# ----------
#
# The derivative against finite differences, and the optimizer against a loop in NumPy: without
# factors the model is linear, and with one batch the gradient is that of least squares.

formula = Hinge().value_and_derivative
scores = np.array([-1.7, -0.2, 0.4, 2.3])
for target in (0.0, 1.0):
    differences = [(formula(s + 1e-4, target)[0] - formula(s - 1e-4, target)[0]) / 2e-4
                   for s in scores]  # fmt: skip
    np.testing.assert_allclose([formula(s, target)[1] for s in scores], differences, atol=1e-6)

rng = np.random.default_rng(0)
X = rng.standard_normal((2000, 3))
y = X @ [1.0, -2.0, 0.5] + 0.1 * rng.standard_normal(2000)
linear = FMRegressor(
    1, optimizer=Momentum(0.1), init=Normal(0), alpha_linear=0, alpha_factors=0, batch_size=2000,
    max_iter=4, tol=0, early_stopping=False, fit_intercept=False, n_iter_no_change=None,
).set_params(warm_start=True).fit(X, y)  # fmt: skip

weights = velocity = np.zeros(3)
for _ in range(4):  # with five epochs or more, the last ones have smaller rates
    velocity = 0.9 * velocity + X.T @ (X @ weights - y) / 2000
    weights = weights - 0.1 * velocity
np.testing.assert_allclose(linear.coef_, weights, rtol=1e-4)
print("derivatives and steps are right")

# %%
# Train
# -----
#
# A class that depends on the product of two features. The hinge loss ignores rows that are right
# by a margin of 1, so scores gather there; the log loss pushes them further. The hinge loss has no
# ``expectation``, so there is no ``predict_proba``.

label = X[:, 0] * X[:, 1] + 0.3 * rng.standard_normal(2000) > 0
common = {"n_components": 2, "alpha_linear": 0.1, "alpha_factors": 0.1, "random_state": 0}
models = {
    "log loss": FMClassifier(batch_size=100, **common),
    "hinge loss": FMClassifier(loss=Hinge(), optimizer=Momentum(), batch_size=100, **common),
}
figure, ax = plt.subplots(layout="constrained")
for name, model in models.items():
    margin = (2 * label[1000:] - 1) * model.fit(X[:1000], label[:1000]).decision_function(X[1000:])
    print(f"{name}: {np.mean(margin > 0):.3f} right, predict_proba: "
          f"{hasattr(model, 'predict_proba')}")  # fmt: skip
    ax.hist(np.clip(margin, -3, 8), 60, histtype="step", label=name)
ax.axvline(1, color="gray", linewidth=1)
ax.set(xlabel="score of the true class (test rows)", ylabel="rows")
ax.legend()
plt.show()
