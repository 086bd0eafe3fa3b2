"""
Every loss with every backbone
==============================

What a recommender minimises and what computes its vectors are two separate choices:
``MFRecommender(loss=..., backbone=...)``. Which pair ranks best? All of them are fitted to
MovieLens-100K (or a synthetic log of the same kind, without a network).
"""

import os

import matplotlib.pyplot as plt
import numpy as np

from freqfm import MFRecommender
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
# Fits of all pairs
# -----------------
#
# "linear" is matrix factorization, "mlp" passes the vectors of users and items through dense
# layers, and "lightgcn" averages them over neighbours in the graph of interactions. All other
# parameters have their defaults, those of the loss included.

LOSSES = ["bpr", "ccl", "softmax", "psl", "slatk", "bsl"]
BACKBONES = ["linear", "mlp", "lightgcn"]
ndcg = np.zeros((len(LOSSES), len(BACKBONES)))
for i, loss in enumerate(LOSSES):
    for j, backbone in enumerate(BACKBONES):
        model = MFRecommender(
            32, loss=loss, backbone=backbone, max_iter=10, n_jobs=1, random_state=0
        ).fit(history)
        ndcg[i, j] = ndcg_at_k(held_out, model.recommend(users=users, n_recommendations=10)[0])
    print(f"{loss:8}", *(f"{b} {n:.3f}" for b, n in zip(BACKBONES, ndcg[i], strict=True)))

# %%
# The picture
# -----------

figure, ax = plt.subplots(figsize=(5.5, 5), layout="constrained")
image = ax.imshow(ndcg, cmap="viridis", aspect="auto")
for (i, j), value in np.ndenumerate(ndcg):
    color = "white" if value < (ndcg.min() + ndcg.max()) / 2 else "black"
    ax.text(j, i, f"{value:.3f}", ha="center", va="center", color=color)
ax.set_xticks(range(len(BACKBONES)), BACKBONES)
ax.set_yticks(range(len(LOSSES)), LOSSES)
ax.set(xlabel="backbone", ylabel="loss", title="NDCG@10 of held-out items after 10 epochs")
figure.colorbar(image)
plt.show()

# %%
# After so few epochs PSL is best. On MovieLens softmax, PSL, SL@K and BSL, which compare a positive
# with many negatives at once, are ahead of BPR and CCL by a tenth and more. Averages over
# neighbours help most of the losses a little. Dense layers learn slowly from so little data: give
# them more epochs before you judge. Published figures beside ours, on larger data and with as many
# epochs as are best, are in the :doc:`reference results </results_recommenders>`.
