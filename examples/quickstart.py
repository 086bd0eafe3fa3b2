"""
Quickstart: recommend items, predict clicks
===========================================

A recommender from a log of users and items, and a classifier of clicks, each compared with the
obvious alternative. Nothing is downloaded; the first run compiles for some seconds.
"""

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import cross_val_score

from freqfm import FMClassifier, InteractionRecommender, MFRecommender
from freqfm.datasets import make_clicks, make_interactions
from freqfm.metrics import ndcg_at_k
from freqfm.model_selection import WarmStartKFold, holdout_interactions, make_ranking_scorer

# %%
# Recommend items
# ---------------
#
# A log is a table with a user and an item in each row. Here 400 users chose among 200 items.

X = make_interactions(400, 200, 8000, n_clusters=8, noise=0.2, random_state=0)
log = [(f"user {user}", f"item {item}") for user, item in zip(*X.nonzero(), strict=True)]
model = InteractionRecommender(MFRecommender(16, max_iter=30, random_state=0)).fit(log)
items, scores = model.recommend(["user 3", "user 5"], n_recommendations=3)
print("user 3 gets", ", ".join(items[0]))
print("user 5 gets", ", ".join(items[1]))
print(
    "somebody who likes item 7 gets", *model.recommend(history=["item 7"], n_recommendations=1)[0]
)

# %%
# How good is it? Three folds of interactions, with a ranking metric; and the most popular items as
# the alternative.

folds = cross_val_score(
    model, log, cv=WarmStartKFold(3, random_state=0), scoring=make_ranking_scorer("ndcg", k=10)
)
history, held_out = holdout_interactions(X, 1 / 3, random_state=0)
counts = np.where(history.toarray() > 0, -1, history.sum(axis=0))
popular = np.argsort(-counts, axis=1, kind="stable")[:, :10]
ndcg = {"most popular": ndcg_at_k(held_out, popular), "MFRecommender": folds.mean()}
for name, value in ndcg.items():
    print(f"NDCG@10 of {name:14} {value:.3f}")

# %%
# Predict clicks
# --------------
#
# Rows of a click log, one-hot encoded: a user, an ad and an hour. Who clicks what depends on pairs,
# which a factorization machine learns and a linear model cannot.

X, y = make_clicks(20_000, (200, 100, 24), interaction_scale=2, random_state=0)
train, test = slice(0, 15_000), slice(15_000, None)
aucs = {}
for model in LogisticRegression(max_iter=200), FMClassifier(random_state=0):
    probability = model.fit(X[train], y[train]).predict_proba(X[test])[:, 1]
    aucs[type(model).__name__] = roc_auc_score(y[test], probability)
    print(f"AUC of {type(model).__name__:18} {aucs[type(model).__name__]:.3f}")

# %%
# Both at a glance, if matplotlib is installed.

try:
    import matplotlib.pyplot as plt
except ImportError:
    print("Install matplotlib to see a picture.")
else:
    figure, axes = plt.subplots(1, 2, figsize=(9, 3), layout="constrained")
    for ax, values, title in zip(
        axes, (ndcg, aucs), ("NDCG@10 of recommendations", "AUC of predicted clicks"), strict=True
    ):
        bars = ax.barh(list(values), list(values.values()), color=["#9aa4b1", "#1f6fb2"])
        ax.bar_label(bars, fmt="%.3f", padding=3)
        ax.set(title=title, xlim=(0, 1.15 * max(values.values())))
    figure.savefig("quickstart.png", dpi=120)
    print("The picture is in quickstart.png.")
