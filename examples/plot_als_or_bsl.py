"""
ALS or BSL? Quality against seconds
===================================

``ALSRecommender`` solves least squares and needs little time. ``MFRecommender`` with its default
loss, BSL, is trained by gradients: it takes longer and ranks better. How much longer, and how much
better? Both are shown by epochs on MovieLens-100K (or a synthetic log of the same kind, without a
network).
"""

import os
import time

import matplotlib.pyplot as plt
import numpy as np

from freqfm import ALSRecommender, MFRecommender
from freqfm.datasets import fetch_movielens, make_interactions
from freqfm.metrics import ndcg_at_k
from freqfm.model_selection import holdout_interactions

try:
    offline = "FREQFM_OFFLINE" in os.environ
    X = fetch_movielens("100k", min_rating=4, n_retries=0, download_if_missing=not offline).X
except OSError:
    print("MovieLens is not at hand: drawing a log instead.")
    X = make_interactions(900, 1200, 50_000, n_clusters=12, noise=0.3, random_state=0)
history, held_out = holdout_interactions(X, 0.2, random_state=0)
users = np.arange(X.shape[0])

# %%
# Fits of an increasing number of epochs, each from the start. The first fits compile and are not
# counted.

EPOCHS = {
    "ALS": (ALSRecommender, [1, 2, 4, 8, 16]),
    "BSL": (MFRecommender, [5, 10, 20, 40]),
}
figure, ax = plt.subplots(figsize=(7.5, 4.2), layout="constrained")
for name, (estimator, epochs) in EPOCHS.items():
    estimator(8, max_iter=1, n_jobs=1, random_state=0).fit(history[:50])
    seconds, ndcg = [], []
    for max_iter in epochs:
        model = estimator(max_iter=max_iter, n_jobs=1, random_state=0)
        start = time.perf_counter()
        model.fit(history)
        seconds.append(time.perf_counter() - start)
        ndcg.append(ndcg_at_k(held_out, model.recommend(users=users)[0]))
        print(f"{name}, {max_iter:3} epochs: {seconds[-1]:6.2f} s, NDCG@10 {ndcg[-1]:.4f}")
    ax.plot(seconds, ndcg, "o-", label=name)
    for at, max_iter in enumerate(epochs):
        ax.annotate(f"{max_iter}", (seconds[at], ndcg[at]), (0, 7), textcoords="offset points")
counts = np.bincount(history.indices, minlength=X.shape[1])
popular = np.argsort(-np.where(history.toarray() > 0, -1, counts), axis=1, kind="stable")[:, :10]
ax.axhline(ndcg_at_k(held_out, popular), color="gray", linestyle=":", label="most popular")
ax.set(xscale="log", xlabel="seconds to fit", ylabel="NDCG@10 of held-out items", ylim=(0, None))
ax.set_title("Quality against time, with the number of epochs")
ax.legend()
plt.show()

# %%
# After some epochs both are far above the most popular items. ALS reaches its best in a fraction of
# the time. BSL takes longer. On small data both end close to one another, and on large and sparse
# logs such as Gowalla BSL ends higher by a fifth (:doc:`/results`). Use ALS for a first result and
# for quick searches, and BSL in production.
