"""
Recommend films by title and genre
==================================

From ratings of films to recommendations with titles: fit, recommend, find similar films, explain a
recommendation, and compare genres. The data are MovieLens-100K; without a network, a synthetic log
of the same kind.
"""

import os

import numpy as np

from freqfm import InteractionRecommender, MFRecommender
from freqfm.datasets import fetch_movielens, make_interactions

# %%
# The log
# -------
#
# A rating of four stars or more counts as "liked".


def load():
    """Return pairs of a person and a film, and the genre of each film."""
    try:
        films = fetch_movielens(
            "100k", n_retries=0, download_if_missing="FREQFM_OFFLINE" not in os.environ
        )
    except OSError:
        print("MovieLens is not at hand: drawing a log instead.")
        X, truth = make_interactions(
            900, 500, 40_000, n_clusters=6, noise=0.2, return_model=True, random_state=0
        )
        names = np.array(["Comedy", "Crime", "Documentary", "Horror", "Romance", "Western"])
        genres = names[truth.item_clusters]
        titles = np.array([f"{genre} {n}" for n, genre in enumerate(genres)], dtype=object)
        users, items = X.nonzero()
        return users, titles[items], dict(zip(titles, genres, strict=True))
    liked = films.ratings >= 4
    # The rarest genre of a film says most about it.
    counts = {}
    for genres in films.genres:
        for genre in genres:
            counts[genre] = counts.get(genre, 0) + 1
    genre = [min(genres, key=counts.get) for genres in films.genres]
    users, items = films.user_indices[liked], films.item_indices[liked]
    return users, films.titles[items], dict(zip(films.titles, genre, strict=True))


users, titles, genre_of = load()
pairs = np.column_stack([users.astype(object), titles])
print(f"{len(pairs):,} likes of {len(set(users)):,} people, {len(set(titles)):,} films")

# %%
# Fit, and ask for one person
# ---------------------------
#
# Films that the person has liked are left out.

model = InteractionRecommender(
    MFRecommender(n_components=32, max_iter=40, n_jobs=1, random_state=0)
).fit(pairs)

person = 7
likes = titles[users == person]
print("likes: " + "; ".join(likes[:6]) + " ...")
films, scores = model.recommend(person, n_recommendations=8)
for film, score in zip(films, scores, strict=True):
    print(f"{score:5.2f}  {film} ({genre_of[film]})")

# %%
# Similar films, and why one was recommended
# ------------------------------------------

names, counts = np.unique(titles.astype(str), return_counts=True)
film = names[counts.argmax()]
print(f"like {film}, which most people like:")
for other in model.similar_items(film, n_recommendations=5)[0]:
    print(f"    {other} ({genre_of[other]})")

why = model.explain(person, films[0])
order = np.argsort(-why.contributions)[:4]
print(f"why {films[0]}:")
for at in order:
    print(f"    {why.contributions[at]:+.3f}  {why.history[at]}")

# %%
# Somebody new
# ------------
#
# A history is enough; nothing is trained.

history = list(likes[:3])
print("somebody who likes " + ", ".join(history) + " gets")
print("    " + "; ".join(model.recommend(history=history, n_recommendations=4)[0]))

# %%
# Which genres do people get?
# ---------------------------
#
# For twelve people: the share of genres in what they like (left) and in twenty recommendations
# (right). The rows are similar: the model was not given the genres, and has learned which kinds of
# films each person likes.

import matplotlib.pyplot as plt

people = np.unique(users)[:: max(1, len(np.unique(users)) // 12)][:12]
kinds = sorted(set(genre_of.values()))
column = {kind: at for at, kind in enumerate(kinds)}


def shares(lists):
    """Return the share of every genre in lists of films, a row for each list."""
    table = np.zeros((len(lists), len(kinds)))
    for row, some in enumerate(lists):
        for film in some:
            table[row, column[genre_of[film]]] += 1 / len(some)
    return table


liked = shares([titles[users == one] for one in people])
given = shares(model.recommend(list(people), n_recommendations=20)[0])
figure, axes = plt.subplots(1, 2, figsize=(10, 4.2), sharey=True, layout="constrained")
for ax, table, title in zip(axes, (liked, given), ("liked", "recommended"), strict=True):
    image = ax.imshow(table, cmap="Blues", aspect="auto", vmin=0, vmax=0.4)
    ax.set_xticks(range(len(kinds)), kinds, rotation=60, ha="right")
    ax.set_title(f"share of genres in what is {title}")
axes[0].set_ylabel("twelve people")
figure.colorbar(image, ax=axes, shrink=0.8)
plt.show()

# %%
# How good are they?
# ------------------
#
# A fifth of the likes is held out, the model is trained on the others, and
# :class:`~freqfm.displays.RankingReport` compares it with the most popular films: by popularity, by
# length of history, and for three people. Its method ``to_html`` writes a file.

from freqfm.displays import RankingReport

train = np.random.default_rng(0).random(len(pairs)) < 0.8
RankingReport.from_estimator(model.fit(pairs[train]), pairs[~train], k=10)
