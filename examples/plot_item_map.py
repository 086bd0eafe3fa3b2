"""
A map of films
==============

Items that the same people like have similar vectors. Two principal components of the vectors are a
map of films. The model knows only who liked which film.
"""

import os

import matplotlib.pyplot as plt
import numpy as np
from sklearn.decomposition import PCA
from sklearn.preprocessing import normalize

from freqfm import MFRecommender
from freqfm.datasets import fetch_movielens, make_interactions

# %%
# MovieLens-100K, whose films we colour by their year. Without a network a log is drawn, whose items
# are coloured by the group of users they were made for.

try:
    films = fetch_movielens(
        "100k", min_rating=4, n_retries=0, download_if_missing="FREQFM_OFFLINE" not in os.environ
    )
except OSError:
    print("MovieLens is not at hand: drawing a log instead.")
    X, truth = make_interactions(
        900, 600, 40_000, n_clusters=8, noise=0.2, return_model=True, random_state=0
    )
    colour, what, colours = truth.item_clusters, "group", "tab10"
    titles = np.array([f"item {n} of group {group}" for n, group in enumerate(colour)])
else:
    X, titles = films.X, films.titles
    years = [title[-5:-1] if title.endswith(")") else "1990" for title in titles]
    colour, what, colours = np.clip(np.array(years, float), 1960, None), "year", "viridis"
counts = np.bincount(X.indices, minlength=X.shape[1])

# %%
# The vectors of the 300 most liked films, at unit length, since the model compares cosines. The
# size of a point says how many people like the film.

model = MFRecommender(32, max_iter=40, n_jobs=1, random_state=0).fit(X)
popular = np.argsort(-counts, kind="stable")[:300]
plane = PCA(2, random_state=0).fit_transform(normalize(model.item_factors_[popular]))

figure, ax = plt.subplots(figsize=(9, 6), layout="constrained")
points = ax.scatter(*plane.T, s=counts[popular] / 3, c=colour[popular], cmap=colours, alpha=0.8)
figure.colorbar(points, label=what)
named = []
for place, item in enumerate(popular):  # names where there is room
    if all(np.abs((plane[place] - plane[other]) / (0.4, 0.08)).max() > 1 for other in named):
        named.append(place)
        style = {"textcoords": "offset points", "fontsize": 7, "ha": "center"}
        ax.annotate(titles[item][:26], plane[place], (0, 6), **style)
ax.set(
    xlabel="first component",
    ylabel="second component",
    title=f"Each point is an item, its colour the {what}",
)
plt.show()

# %%
# Points of the same colour are close. On MovieLens the first component is the year: the people of
# that log saw films that were new when they joined, or classics. Neighbours on the map are similar
# to those of ``similar_items``, as far as two of 32 dimensions can show it:

for item in popular[:3]:
    near, cosines = model.similar_items(item, n_recommendations=3)
    print(f"{titles[item]}: " + "; ".join(str(titles[other]) for other in near))
