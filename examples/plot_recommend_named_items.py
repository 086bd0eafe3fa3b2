"""
Recommend books by their titles
===============================

Logs of shops and libraries hold names, not row and column numbers.
:class:`~freqfm.InteractionRecommender` takes pairs of a reader and a title as they are, and returns
titles. Here 400 synthetic readers borrow 32 books of four kinds; nothing is downloaded.
"""

import numpy as np

from freqfm import InteractionRecommender, MFRecommender
from freqfm.datasets import make_interactions

BOOKS = {
    "crime": [
        "The Silent Ferry",
        "Nine Locked Doors",
        "A Body of Evidence",
        "The Clockmaker's Alibi",
        "Cold Harbour Lane",
        "The Last Witness but One",
        "Ink and Arsenic",
        "The Empty Chair at Table Six",
    ],
    "space": [
        "Tides of Europa",
        "The Slow Ship",
        "Beacon at Lagrange",
        "Rust on the Ringworks",
        "A Garden on Ceres",
        "Signal from the Quiet",
        "The Cartographer of Comets",
        "Nobody's Moon",
    ],
    "cooking": [
        "Bread by Hand",
        "One Pot, Four Seasons",
        "The Patient Onion",
        "Salt, Smoke and Time",
        "Soup for a Long Winter",
        "The Pickle Almanac",
        "Flour Under the Fingernails",
        "Breakfast All Day",
    ],
    "gardens": [
        "The Hedge Year",
        "Moss and Other Patience",
        "Bees for Beginners",
        "A Border in Shade",
        "The Compost Letters",
        "Pruning without Fear",
        "Roses I Have Failed",
        "Seeds in Brown Envelopes",
    ],
}

# %%
# The log
# -------
#
# Every reader has a favourite kind but takes others too, and a few books of each kind are borrowed
# by all readers. The table is a list of pairs; a DataFrame of pandas or Polars would do as well.

kinds = np.repeat(list(BOOKS), [len(titles) for titles in BOOKS.values()])
titles = np.concatenate(list(BOOKS.values()))
X, truth = make_interactions(
    400,
    len(titles),
    3200,
    n_clusters=len(BOOKS),
    noise=0.3,
    min_interactions=4,
    return_model=True,
    random_state=0,
)
# The columns of X come in any order of kinds: give each kind its own titles.
column_titles = np.empty(len(titles), dtype=object)
for number, kind in enumerate(BOOKS):
    column_titles[truth.item_clusters == number] = BOOKS[kind]
readers, columns = X.nonzero()
log = [
    (f"reader {reader}", column_titles[column])
    for reader, column in zip(readers, columns, strict=True)
]

log += [("ann", "Bread by Hand"), ("ann", "The Patient Onion"), ("ann", "Bees for Beginners")]
log += [("bob", "Nobody's Moon"), ("bob", "The Slow Ship"), ("bob", "Tides of Europa")]
print(f"{len(log)} loans, the first: {log[0]}")

# %%
# Fit and recommend
# -----------------
#
# One fit, no tuning: the temperature depends on the density of the data. Books that a reader has
# had are excluded by default. Scores are cosines here.

model = InteractionRecommender(MFRecommender(n_components=16, n_jobs=1, random_state=0)).fit(log)

people = ["ann", "bob", "reader 7"]
books, scores = model.recommend(people, n_recommendations=4)
for person, row, row_scores in zip(people, books, scores, strict=True):
    print(f"\n{person} has read: " + "; ".join(sorted(b for who, b in log if who == person)))
    for book, score in zip(row, row_scores, strict=True):
        print(f"    {score:5.2f}  {book}")

# %%
# More questions
# --------------
#
# Which books are similar, why was one recommended, which of a short list would be, and what does a
# newcomer get? Readers without a history get popular books, and so do those whom the model does not
# know, with a warning.

print(
    "Like 'Cold Harbour Lane':",
    *model.similar_items("Cold Harbour Lane", n_recommendations=3)[0],
    sep="\n    ",
)

why = model.explain("ann", books[0, 0])
print(f"\nWhy ann gets {books[0, 0]!r}:")
for book, part in zip(why.history, why.contributions, strict=True):
    print(f"    {part:+.2f}  {book}")
print(f"    {why.rest:+.2f}  what is not due to single books")

on_sale = ["Nobody's Moon", "Bread by Hand", "The Hedge Year", "Ink and Arsenic"]
for_ann, _ = model.recommend("ann", candidates=on_sale, n_recommendations=2)
for_newcomers, _ = model.recommend(history=[], n_recommendations=2)
print("\nOn sale, for ann: " + "; ".join(for_ann))
print("For a newcomer:   " + "; ".join(for_newcomers))

# %%
# New readers and new books come with ``partial_fit``, which continues the same model: the tables
# grow by a row each.

model.partial_fit([("eve", "Pruning without Fear"), ("eve", "A Field Guide to Weeds")])
print(f"{len(model.user_ids_)} readers and {len(model.item_ids_)} books, the last of them:")
print(model.user_ids_[-1], "and", model.item_ids_[-1])

# %%
# What the model has learned
# --------------------------
#
# The model was not given the kind of a book. The cosines between the books' vectors show that it
# has learned it: books of one kind have similar readers, hence similar vectors.

import matplotlib.pyplot as plt
from sklearn.preprocessing import normalize

rows = np.searchsorted(model.item_ids_[: len(titles)], titles)
vectors = normalize(model.estimator_.item_factors_[rows])
figure, ax = plt.subplots(figsize=(9, 7), layout="constrained")
image = ax.imshow(vectors @ vectors.T, vmin=-1, vmax=1, cmap="RdBu")
ax.set_yticks(range(len(titles)), titles, fontsize=7)
middles = [np.flatnonzero(kinds == kind).mean() for kind in BOOKS]
ax.set_xticks(middles, list(BOOKS))
ax.set_title("Cosines between books, by kinds that the model was not told")
figure.colorbar(image, shrink=0.7)
plt.show()
