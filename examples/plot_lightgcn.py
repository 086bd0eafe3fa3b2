"""
Layers of neighbours: LightGCN
==============================

``backbone="lightgcn"`` averages the vectors of users and items over layers of neighbours in the
graph of interactions: a user with few items then also has what other users of these items like.
The loss, temperatures, negatives and the optimizer are those of matrix factorization. How many
layers help, and with which loss?
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy import sparse

from freqfm import MFRecommender
from freqfm.backbones import LightGCN
from freqfm.datasets import make_interactions
from freqfm.metrics import ndcg_at_k
from freqfm.model_selection import holdout_interactions

# %%
# A sparse log
# ------------
#
# Users take items of one of 30 groups, eight on average. A fifth is held out.

X = make_interactions(
    n_users=2000, n_items=1000, n_interactions=16_000, n_clusters=30, noise=0.1, random_state=0
)
history, held_out = (
    sparse.csr_array(part) for part in holdout_interactions(X, 0.2, random_state=0)
)
users = np.flatnonzero(np.diff(held_out.indptr))

# %%
# The number of layers
# --------------------
#
# No layers are matrix factorization. BPR compares dot products, BSL cosines. Gradients are exact
# here; by default vectors are propagated once an epoch, which is faster.

LAYERS = [0, 1, 2, 3, 4]
LOSSES = {"bpr": {"optimizer": "adam", "init": "normal"}, "bsl": {}}
scores = {loss: [] for loss in LOSSES}
for loss, params in LOSSES.items():
    for n_layers in LAYERS:
        model = MFRecommender(
            n_components=16,
            backbone=LightGCN(n_layers, propagate="batch"),
            loss=loss,
            batch_size=256,
            max_iter=30,
            n_jobs=1,
            random_state=0,
            **params,
        ).fit(history)
        found, _ = model.recommend(users=users, n_recommendations=20)
        scores[loss].append(ndcg_at_k(held_out[users], found))
        print(f"{loss}, {n_layers} layers: {scores[loss][-1]:.3f}")

# %%
# The picture
# -----------
#
# A propagation takes users to items and items to users. In terms of the adjacency matrix, whose
# eigenvalues come in pairs of opposite signs, the mean of layers 0 to L multiplies an eigenvector
# by (1 + e + ... + e^L) / (L + 1). Where e is near -1, users and items of a group have vectors of
# opposite signs; for odd L the factor is then near 0, and what remains are vectors that a group's
# users and items share. Cosines need the difference: their users differ from their items.

figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
for loss, of_loss in scores.items():
    axes.plot(LAYERS, of_loss, marker="o", label=loss)
axes.set(xlabel="layers", ylabel="NDCG@20 on held-out interactions", xticks=LAYERS)
axes.legend()
