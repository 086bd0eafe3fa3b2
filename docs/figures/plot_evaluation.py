"""The picture of the guide's page on evaluation: NDCG by popularity of three models."""

import numpy as np

from freqfm import ALSRecommender, MFRecommender
from freqfm.datasets import make_interactions
from freqfm.displays import StratifiedNDCGDisplay
from freqfm.model_selection import holdout_interactions

X = make_interactions(600, 300, 12_000, random_state=0)
history, held_out = holdout_interactions(X, 0.2, random_state=0)
models = {
    "MFRecommender": MFRecommender(n_components=16, max_iter=30, random_state=0).fit(history),
    "ALSRecommender": ALSRecommender(n_components=16, random_state=0).fit(history),
}
users = np.arange(X.shape[0])
ranked = {name: model.recommend(users=users)[0] for name, model in models.items()}
counts = models["MFRecommender"].item_counts_
unseen = np.where(history.toarray() > 0, -1, counts)
ranked["most popular"] = np.argsort(-unseen, axis=1, kind="stable")[:, :10]
StratifiedNDCGDisplay.from_rankings(held_out, ranked, counts)
