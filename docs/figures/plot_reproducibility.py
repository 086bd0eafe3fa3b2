"""The picture of the guide's page on reproducibility: NDCG by seed and number of threads."""

import matplotlib.pyplot as plt
import numpy as np

from freqfm import MFRecommender
from freqfm.datasets import make_interactions
from freqfm.metrics import ndcg_at_k
from freqfm.model_selection import holdout_interactions

X = make_interactions(300, 150, 5000, random_state=0)
history, held_out = holdout_interactions(X, 0.2, random_state=0)
users, seeds = np.arange(X.shape[0]), np.arange(8)
figure, ax = plt.subplots()
styles = {1: {"s": 130, "facecolors": "none", "edgecolors": "C0"}, 2: {"s": 25}}
for n_jobs, style in styles.items():
    ndcg = []
    for seed in seeds:
        model = MFRecommender(16, max_iter=20, n_jobs=n_jobs, random_state=seed).fit(history)
        ndcg.append(ndcg_at_k(held_out, model.recommend(users=users)[0]))
    ax.scatter(seeds, ndcg, label=f"n_jobs={n_jobs}", **style)
ax.axhline(np.mean(ndcg), color="gray", linestyle="--", label="mean over seeds")
ax.set(xlabel="random_state", ylabel="NDCG@10")
ax.legend(loc="center left", bbox_to_anchor=(1, 0.5))
