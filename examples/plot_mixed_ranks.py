"""
Machines of several ranks together
==================================

What rank is best depends on the rows: short vectors are too coarse for users and items of whom much
is known, and long ones learn the noise of the others. MRMA [1]_, with which the paper of RaFM
compares it, trains matrix factorizations of several ranks and mixes their predictions. scikit-learn
has what that needs: :class:`~sklearn.ensemble.StackingRegressor` fits each machine in folds and
learns the weights of their predictions on rows that they have not seen.

.. [1] D. Li, C. Chen, W. Liu, T. Lu, N. Gu, S. Chu. "Mixture-Rank Matrix Approximation for
   Collaborative Filtering". NeurIPS 2017.
"""

from itertools import pairwise

import matplotlib.pyplot as plt
import numpy as np
from sklearn.ensemble import StackingRegressor
from sklearn.linear_model import RidgeCV
from sklearn.metrics import root_mean_squared_error
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import OneHotEncoder

from freqfm import FMRegressor, RaFMRegressor

# %%
# Ratings of 600 users and 400 items, few of whom have most ratings. They are drawn from vectors of
# eight numbers each, the first of which count most.

N_USERS, N_ITEMS, N_RATINGS = 600, 400, 30_000
generator = np.random.default_rng(0)


def draw_ids(n):
    """Draw an id for each rating; the first ids are drawn most often."""
    shares = 1 / (5 + np.arange(n))
    return generator.choice(n, N_RATINGS, p=shares / shares.sum())


pairs = np.column_stack([draw_ids(N_USERS), draw_ids(N_ITEMS)])
lengths = np.array([1, 0.8, 0.5, 0.4, 0.3, 0.3, 0.3, 0.3])
of_users, of_items = (generator.normal(size=(n, 8)) * lengths for n in (N_USERS, N_ITEMS))
biases = 0.4 * generator.normal(size=N_ITEMS)
ratings = biases[pairs[:, 1]] + np.einsum("ij,ij->i", of_users[pairs[:, 0]], of_items[pairs[:, 1]])
ratings += generator.normal(size=N_RATINGS)

X = OneHotEncoder().fit_transform(pairs)
X_train, X_test, y_train, y_test = train_test_split(X, ratings, random_state=0)
print(f"{X_train.shape[0]} ratings to train, {X_test.shape[0]} to test")

# %%
# Single ranks, and their mixture
# -------------------------------
#
# The mixture gets the same machines. Its last step, a ridge regression, sees predictions of rows
# that were left out of their fits, so that no machine is trusted for rows that it has memorised.

RANKS = (1, 2, 4, 8, 16)
settings = {"max_iter": 25, "alpha_linear": 1, "alpha_factors": 5, "early_stopping": False}
settings |= {"n_iter_no_change": None, "random_state": 0, "n_jobs": 1}
machines = {f"FM, rank {rank}": FMRegressor(rank, **settings) for rank in RANKS}
machines["RaFM, ranks 2 and 8"] = RaFMRegressor((2, 8), **settings)

mixture = StackingRegressor(list(machines.items()), final_estimator=RidgeCV(), cv=3)
models = {**machines, "mixture": mixture}
for model in models.values():
    model.fit(X_train, y_train)
errors = {
    name: root_mean_squared_error(y_test, model.predict(X_test)) for name, model in models.items()
}
for name, error in errors.items():
    print(f"{name:20} RMSE {error:.4f}")

# %%
# Who is trusted, and for whom it helps
# -------------------------------------
#
# Left: the weights of the machines. MRMA learns them for each user and item; those of this mixture
# are the same for all rows, and still its error is smaller than that of each single rank. Machines
# that say nearly the same, as RaFM and ranks 2 and 8, may also have negative weights.

figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
axes[0].barh(list(machines), mixture.final_estimator_.coef_)
axes[0].invert_yaxis()
axes[0].set(title="Weights of the mixture", xlabel="weight of the prediction")

counts = np.asarray(X_train.sum(axis=0)).ravel()
rarest = np.minimum(*counts[X_test.indices.reshape(-1, 2)].T)
edges = np.quantile(rarest, [0, 0.25, 0.5, 0.75, 1])
for name in ("FM, rank 1", "FM, rank 4", "FM, rank 16", "mixture"):
    predicted, found = models[name].predict(X_test), []
    for low, high in pairwise(edges):
        rows = (rarest >= low) & (rarest <= high)
        found.append(root_mean_squared_error(y_test[rows], predicted[rows]))
    axes[1].plot(range(4), found, marker="o", label=name)
axes[1].set_xticks(range(4), ["fewest", "few", "many", "most"])
axes[1].set(title="Error by how much is known", ylabel="RMSE of test ratings")
axes[1].set_xlabel("training ratings of the user or item, the smaller")
axes[1].legend(fontsize="small")
