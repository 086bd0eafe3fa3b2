"""The picture of the guide's page on context: what is found by the size of its effect."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from freqfm import InteractionRecommender, MFRecommender
from freqfm.model_selection import holdout_interactions

rng = np.random.default_rng(0)
user, moment = rng.integers(150, size=3000), rng.integers(3, size=3000)
shares, hits = (0.0, 0.25, 0.5, 0.75, 1.0), {"without context": [], "with context": []}
for share in shares:
    # The kind of item is that of the moment, or any.
    kind = np.where(rng.random(3000) < share, moment, rng.integers(3, size=3000))
    item = 10 * (3 * (user % 4) + kind) + rng.integers(10, size=3000)
    log = pd.DataFrame({"user": user, "item": item, "moment": moment})
    train, test = holdout_interactions(log, 0.2, random_state=0, user="user", item="item")
    for found, context in zip(hits.values(), (None, ["moment"]), strict=True):
        model = MFRecommender(8, max_iter=15, n_jobs=1, random_state=0)
        model = InteractionRecommender(model, value=None, context=context).fit(train)
        # In both cases a query is a user in a moment.
        queries = test.drop_duplicates(["user", "moment"])
        options = {} if context is None else {"context": queries[["moment"]]}
        items, _ = model.recommend(queries["user"], **options)
        chosen = test.groupby(["user", "moment"])["item"].agg(set)
        pairs = zip(items, queries[["user", "moment"]].itertuples(index=False), strict=True)
        found.append(np.mean([len(chosen[tuple(one)] & set(of)) > 0 for of, one in pairs]))

figure, ax = plt.subplots()
for (name, found), color in zip(hits.items(), ("gray", "C0"), strict=True):
    ax.plot(shares, found, marker="o", label=name, color=color)
ax.set(ylim=0, xlabel="share of events that depend on the moment", ylabel="hit rate at 10")
ax.legend()
