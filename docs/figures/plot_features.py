"""The picture of the guide's page on features: how well new items are ranked by their features."""

import matplotlib.pyplot as plt
import numpy as np

from freqfm import MFRecommender
from freqfm.backbones import Features
from freqfm.datasets import make_interactions
from freqfm.metrics import ndcg_at_k

X, truth = make_interactions(
    400, 250, 8000, n_clusters=10, noise=0.2, return_model=True, random_state=0
)
kinds = np.eye(10)[truth.item_clusters]  # the feature of an item is its group
known, new = X[:, :200], X[:, 200:]
users = np.flatnonzero(np.diff(new.indptr))
rng = np.random.default_rng(0)
n_interactions, ndcg = [], []
for share in (0.02, 0.1, 0.3, 1.0):
    part = known.copy()
    part.data = (rng.random(known.nnz) < share).astype(np.float32)
    part.eliminate_zeros()
    backbone = Features(item_features=kinds[:200])
    model = MFRecommender(16, backbone=backbone, max_iter=15, n_jobs=1, random_state=0).fit(part)
    found, _ = model.recommend(
        users=users, item_features=kinds[200:], candidates=np.arange(200, 250)
    )
    n_interactions.append(part.nnz)
    ndcg.append(ndcg_at_k(new[users], found - 200))
shuffled = rng.permuted(np.tile(np.arange(50), (len(users), 1)), axis=1)[:, :10]

figure, ax = plt.subplots()
ax.plot(n_interactions, ndcg, marker="o", label="by their features")
ax.axhline(ndcg_at_k(new[users], shuffled), color="gray", linestyle="--", label="in random order")
ax.set(xscale="log", ylim=0, xlabel="interactions to train on", ylabel="NDCG@10 of new items")
ax.set_xticks(n_interactions, [f"{n:,}" for n in n_interactions])
ax.set_xticks([], minor=True)
ax.legend()
