"""
New items and new users, known by features
==========================================

A new film has no viewers, and a new user has no history. :class:`~freqfm.backbones.Features` gives
both a vector: the sum of the vectors of their features. Here synthetic films have a genre, a
country and a decade each; viewers like some genres, and a fifth of the films do not occur in
training. Nothing is downloaded.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from scipy import sparse

from freqfm import InteractionRecommender, MFRecommender
from freqfm.backbones import Features
from freqfm.metrics import ndcg_at_k

# %%
# Films and viewers
# -----------------
#
# A viewer likes two genres and one country, more than by chance. Decades do not matter here. Each
# film also has a quality of its own, which its features do not tell.

rng = np.random.default_rng(0)
GENRES = ["crime", "drama", "comedy", "space", "nature", "music", "history", "horror"]
COUNTRIES = ["fr", "it", "jp", "in", "us"]
N_VIEWERS, N_FILMS, N_NEW = 800, 400, 80

genre = rng.integers(len(GENRES), size=N_FILMS)
country = rng.integers(len(COUNTRIES), size=N_FILMS)
films = pd.DataFrame(
    {
        "film": [f"film {k}" for k in range(N_FILMS)],
        "genre": np.take(GENRES, genre),
        "country": np.take(COUNTRIES, country),
        "decade": rng.choice(["1980s", "1990s", "2000s"], size=N_FILMS),
    }
)
of_genre = rng.normal(size=(N_VIEWERS, len(GENRES)))
of_country = 0.7 * rng.normal(size=(N_VIEWERS, len(COUNTRIES)))
quality = 0.7 * rng.normal(size=N_FILMS)
taste = of_genre[:, genre] + of_country[:, country] + quality
likes = taste + rng.gumbel(size=taste.shape) > 4.2
known = np.arange(N_FILMS) < N_FILMS - N_NEW
print(f"{likes.sum():,} likes, {likes[:, known].sum():,} of them of known films")

# %%
# Known and new films
# -------------------
#
# The model is trained on the known films. ``recommend`` gets the features of the new ones, which
# are numbered after the known. Without their identity, known films with the same features would be
# the same; with it, the model learns what is special about each.

one_hot = pd.get_dummies(films[["genre", "country", "decade"]], dtype=float).to_numpy()
X = sparse.csr_array(likes[:, known], dtype=np.float32)
held_out = sparse.csr_array(likes[:, ~known], dtype=np.float32)
viewers = np.flatnonzero(np.diff(held_out.indptr))


def fit(share=1.0, **params):
    """Train on a share of the likes."""
    part = X.copy()
    part.data = (np.random.default_rng(1).random(X.nnz) < share).astype(np.float32)
    part.eliminate_zeros()
    backbone = Features(item_features=one_hot[known], **params)
    model = MFRecommender(16, backbone=backbone, max_iter=15, n_jobs=1, random_state=0)
    return model.fit(part)


def score_new(model):
    """Return the NDCG@10 of new films, ranked among themselves."""
    found, _ = model.recommend(
        users=viewers,
        item_features=one_hot[~known],
        candidates=np.arange(known.sum(), N_FILMS),
    )
    return ndcg_at_k(held_out[viewers], np.where(found < 0, -1, found - known.sum()))


SHARES = [0.05, 0.1, 0.25, 0.5, 1.0]
curves = {
    "features and identity": [score_new(fit(share)) for share in SHARES],
    "features alone": [score_new(fit(share, identity=False)) for share in SHARES],
}
chance = np.mean(
    [
        ndcg_at_k(
            held_out[viewers],
            rng.permuted(np.tile(np.arange(N_NEW), (len(viewers), 1)), axis=1)[:, :10],
        )
        for _ in range(5)
    ]
)

# %%
# The picture
# -----------
#
# A thousand likes are enough to rank new films better than chance. With few likes, a model without
# identities is better, because identities learn a part of what the features should; with many likes
# both are equally good. On the right, the cosines of the learned vectors of features: genres differ
# from each other, and decades, which do not matter for tastes, all have nearly the same vector.

model = fit()
names = pd.get_dummies(films[["genre", "country", "decade"]]).columns
vectors = model.backbone_tables_["item_features"]
vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
for label, scores in curves.items():
    left.plot(np.array(SHARES) * X.nnz, scores, marker="o", label=label)
left.axhline(chance, color="gray", linestyle="--", label="random order")
left.set(xscale="log", xlabel="likes to train on", ylabel="NDCG@10 of new films", ylim=0)
left.legend()
image = right.imshow(vectors @ vectors.T, cmap="RdBu", vmin=-1, vmax=1)
labels = [name.split("_")[1] for name in names]
right.set(xticks=range(len(labels)), yticks=range(len(labels)))
right.set_xticklabels(labels, rotation=90)
right.set_yticklabels(labels)
figure.colorbar(image, label="cosine of feature vectors")

# %%
# By names
# --------
#
# :class:`~freqfm.InteractionRecommender` takes the table of films as it is, by the films' names.
# Films without likes become part of the model.

viewer, film = np.nonzero(likes[:, known])
table = pd.DataFrame({"user": viewer, "film": films["film"].to_numpy()[film]})
by_name = InteractionRecommender(
    MFRecommender(16, max_iter=15, n_jobs=1, random_state=0), item="film", item_features=films
).fit(table)
found, _ = by_name.recommend([0], n_recommendations=5, candidates=films["film"][~known])
print(films.set_index("film").loc[found[0]])
