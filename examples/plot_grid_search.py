"""
GridSearchCV for recommenders
=============================

scikit-learn's searches split rows. For a recommender the right thing to hold out is not a user but
some of the user's interactions; so give the search a table with one interaction per row, and
wrap the recommender in :class:`~freqfm.InteractionRecommender`. Splitters, scorers, pipelines
and parameter names are those of scikit-learn.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score

from freqfm import InteractionRecommender, MFRecommender, recommend
from freqfm.datasets import make_interactions
from freqfm.model_selection import WarmStartKFold, make_ranking_scorer

# %%
# A table of 16,000 pairs of a user and an item. The last tenth, after shuffling, is set aside: the
# search does not see it.

X = make_interactions(800, 400, 16_000, n_clusters=10, noise=0.2, random_state=0)
pairs = np.array(
    [[f"user {user}", f"item {item}"] for user, item in zip(*X.nonzero(), strict=True)]
)
pairs = np.random.default_rng(0).permutation(pairs)
train, test = pairs[:-1600], pairs[-1600:]

# %%
# The search
# ----------
#
# ``WarmStartKFold`` makes folds in which every user and item to be tested occurs in training too.
# A candidate is fitted on two thirds of the interactions; the score is the NDCG of ten
# recommendations to each user, compared with their interactions in the remaining third. Parameters
# of the recommender are set by names with two underscores, and so are those of its components.

grid = {
    "estimator__n_components": [8, 16, 32],
    "estimator__temperature": [0.15, 0.3, 0.6, 1.2, "density"],
}
recommender = MFRecommender(negative_sampler="full", max_iter=20, n_jobs=1, random_state=0)
search = GridSearchCV(
    InteractionRecommender(recommender),
    grid,
    cv=WarmStartKFold(3, random_state=0),
    scoring=make_ranking_scorer("ndcg", k=10),
)
search.fit(train)
print(search.best_params_)

# %%
# Candidates come in the order of the grid, the last parameter first, so their scores make a table.
# On this small log the temperature matters most. The default, which depends on the density and the
# number of the data, comes close to the best; more components help a little where the temperature
# is high enough.

means = search.cv_results_["mean_test_score"].reshape(3, 5)
errors = search.cv_results_["std_test_score"].reshape(3, 5)
figure, ax = plt.subplots(layout="constrained")
for column, temperature in enumerate(grid["estimator__temperature"]):
    ax.errorbar(
        grid["estimator__n_components"],
        means[:, column],
        errors[:, column],
        marker="o",
        capsize=3,
        label=str(temperature),
    )
ax.set(xscale="log", xlabel="n_components", ylabel="NDCG@10, mean of three folds")
ax.set_xticks(grid["estimator__n_components"], grid["estimator__n_components"])
ax.minorticks_off()
figure.legend(title="temperature", loc="outside right upper")
ax.set_title("Held-out interactions of known users")
plt.show()

# %%
# The best candidate has been fitted to all of ``train``. Its score on the interactions that were
# set aside, and recommendations; searches and pipelines have no method ``recommend``, so there is a
# function of that name that calls the fitted recommender inside.

for metric in ("ndcg", "recall", "hit_rate"):
    score = make_ranking_scorer(metric, k=10)(search, test)
    print(f"{metric:>9}@10 on the test interactions: {score:.4f}")
items, scores = recommend(search, ["user 3", "user 5"], n_recommendations=3)
print(items)

# %%
# New users instead of new interactions
# -------------------------------------
#
# To recommend to users who were not in training, test on such users: rows of the sparse matrix are
# users, so any splitter of rows will do. A fifth of each test user's history is hidden from the
# model, which folds in the rest.

scores = cross_val_score(
    recommender.set_params(n_components=32, temperature=0.6),
    X,
    cv=KFold(3, shuffle=True, random_state=0),
    scoring=make_ranking_scorer("ndcg", k=10),
)
print("NDCG@10 of users who were not in the training part:", scores.round(4))
