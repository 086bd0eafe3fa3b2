"""
What suits the moment: context
==============================

What one wants depends on the moment: news in the morning on the phone, films at night on the
television. A recommender of users and items knows the user's mean taste;
``InteractionRecommender(context=[...])`` ranks for a user in a context. Nothing is downloaded.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from freqfm import InteractionRecommender, MFRecommender
from freqfm.model_selection import holdout_interactions

# %%
# A log of events
# ---------------
#
# Programmes belong to a kind and to a language. Viewers speak one language; which kind they watch
# depends on the time of the day, and a little on the device.

rng = np.random.default_rng(0)
KINDS, TIMES = ["news", "series", "film"], ["morning", "noon", "night"]
N_EVENTS, N_VIEWERS, N_LANGUAGES, N_EACH = 6000, 300, 4, 20

viewer, at = rng.integers(N_VIEWERS, size=N_EVENTS), rng.integers(3, size=N_EVENTS)
device = np.where(rng.random(N_EVENTS) < 0.4 + 0.4 * (at == 0), "phone", "television")
suits = np.array([[0.8, 0.15, 0.05], [0.2, 0.7, 0.1], [0.05, 0.25, 0.7]])
kind = np.array([rng.choice(3, p=suits[k]) for k in at])
language = viewer % N_LANGUAGES
number = rng.integers(N_EACH, size=N_EVENTS)
log = pd.DataFrame(
    {
        "viewer": viewer,
        "item": [f"{KINDS[k]} {one} {n}" for k, one, n in zip(kind, language, number, strict=True)],
        "time": np.take(TIMES, at),
        "device": device,
    }
)
print(log.head())

# %%
# With and without context
# ------------------------
#
# The splitters keep all columns of a table, and ``score`` reads the context from the held-out rows.

train, test = holdout_interactions(log, 0.2, random_state=0, user="viewer", item="item")
recommender = MFRecommender(16, max_iter=20, random_state=0)
options = {"user": "viewer", "item": "item", "value": None}
plain = InteractionRecommender(recommender, **options).fit(train)
model = InteractionRecommender(recommender, context=["time", "device"], **options).fit(train)
scores = {"without": plain.score(test), "with context": model.score(test)}
print({name: round(score, 3) for name, score in scores.items()})

# %%
# One viewer, three moments
# -------------------------
#
# ``recommend`` takes a moment for all users, or a table with a row for each. ``explain`` says how
# much of a score is due to each value.

for moment in TIMES:
    items, _ = model.recommend(7, context={"time": moment, "device": "phone"}, n_recommendations=3)
    print(f"{moment:8}", list(items))
explanation = model.explain(7, items[0], context={"time": "night", "device": "television"})
print({name: round(share, 3) for name, share in explanation.context.items()})

# %%
# What is recommended at which time
# ---------------------------------

counts = np.zeros((len(TIMES), len(KINDS)))
for row, moment in enumerate(TIMES):
    items, _ = model.recommend(context={"time": moment, "device": "phone"}, n_recommendations=5)
    kinds = [item.split()[0] for item in items.ravel()]
    counts[row] = [kinds.count(one) / len(kinds) for one in KINDS]

fig, (left, right) = plt.subplots(
    ncols=2, figsize=(9, 3.2), width_ratios=[1, 2], layout="constrained"
)
left.bar(list(scores), list(scores.values()), color=["#9aa5b1", "#3b6ea5"])
left.set_ylabel("NDCG@10 of held-out events")
below = np.zeros(len(TIMES))
for one, share in zip(KINDS, counts.T, strict=True):
    right.bar(TIMES, share, bottom=below, label=one)
    below += share
right.set_ylabel("share of recommendations")
right.legend(ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False)
plt.show()
