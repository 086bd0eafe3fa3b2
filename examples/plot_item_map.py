"""
A map of films
==============

Items that the same people like have similar vectors. Two principal components of the vectors
make a map on which nobody has told the model anything about films.
"""

import os

import matplotlib.pyplot as plt
import numpy as np
from sklearn.decomposition import PCA
from sklearn.preprocessing import normalize

from freqfm import MFRecommender
from freqfm.datasets import fetch_movielens, make_interactions

# %%
# MovieLens-100K, or a log of the same kind drawn without a network. Of each film we keep one genre
# to colour it by.

SHOWN = ["Children's", "Horror", "Sci-Fi", "Romance", "Film-Noir", "War"]
try:
    films = fetch_movielens(
        "100k", min_rating=4, n_retries=0, download_if_missing="FREQFM_OFFLINE" not in os.environ
    )
except OSError:
    print("MovieLens is not at hand: drawing a log instead.")
    X, truth = make_interactions(
        900, 600, 40_000, n_clusters=6, noise=0.2, return_model=True, random_state=0
    )
    genres = [(SHOWN[cluster],) for cluster in truth.item_clusters]
    titles = np.array([f"{genre[0]} {n}" for n, genre in enumerate(genres)])
else:
    X, genres, titles = films.X, films.genres, films.titles
counts = np.bincount(X.indices, minlength=X.shape[1])

# %%
# The vectors of the 300 most liked films, at unit length, since the model compares cosines.

model = MFRecommender(32, max_iter=40, n_jobs=1, random_state=0).fit(X)
popular = np.argsort(-counts)[:300]
plane = PCA(2, random_state=0).fit_transform(normalize(model.item_factors_[popular]))

figure, ax = plt.subplots(figsize=(9, 6.5), layout="constrained")
ax.scatter(*plane.T, s=8, color="#c5cad1")
for genre, colour in zip(SHOWN, plt.colormaps["Dark2"].colors, strict=False):
    of_genre = [genre in genres[item] for item in popular]
    ax.scatter(*plane[of_genre].T, s=10 + counts[popular[of_genre]] / 4, color=colour, label=genre,
               alpha=0.8)  # fmt: skip
for place in np.concatenate([plane.argmax(0), plane.argmin(0), np.arange(14)]):
    ax.annotate(str(titles[popular[place]])[:28], plane[place], fontsize=7, alpha=0.9)
ax.set(xlabel="first component", ylabel="second component", title="Films, by who likes them")
ax.legend(title="genre", markerscale=0.8)
plt.show()

# %%
# Genres lie together. Neighbours on the map are what ``similar_items`` would return, as far as two
# of 32 dimensions can show it:

for item in popular[:3]:
    near, cosines = model.similar_items(item, n_recommendations=3)
    print(f"{titles[item]}: " + "; ".join(str(titles[other]) for other in near))
