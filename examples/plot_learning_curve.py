"""
How many rows does it take?
===========================

Logistic regression, gradient boosting and a factorization machine on a click log with thousands of
users and ads, from a thousand to thirty thousand training rows.
"""

import matplotlib.pyplot as plt
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, TargetEncoder
from threadpoolctl import threadpool_limits

from freqfm import FMClassifier
from freqfm.datasets import make_clicks

# %%
# A row has a user, an ad, a site and an hour. Trees do not split thousands of categories well, so
# gradient boosting gets each category's click rate in training (``TargetEncoder``), as usual.

FIELDS = (2000, 500, 100, 24)
X, y = make_clicks(40_000, FIELDS, interaction_scale=1.5, random_state=0)
rows = X.indices.reshape(-1, len(FIELDS))
test = slice(30_000, None)
one_hot = OneHotEncoder(handle_unknown="ignore")
models = {
    "logistic regression": make_pipeline(one_hot, LogisticRegression(max_iter=300)),
    "gradient boosting": make_pipeline(
        TargetEncoder(), HistGradientBoostingClassifier(random_state=0)
    ),
    "FMClassifier": make_pipeline(
        one_hot, FMClassifier(8, max_iter=1000, n_jobs=1, random_state=0)
    ),
}
sizes = [1000, 5000, 30_000]
figure, ax = plt.subplots(figsize=(7.5, 4.4), layout="constrained")
for name, model in models.items():
    aucs = []
    for size in sizes:
        with threadpool_limits(1):  # threads of gradient boosting wait for each other on busy cores
            model.fit(rows[:size], y[:size])
        aucs.append(roc_auc_score(y[test], model.predict_proba(rows[test])[:, 1]))
    print(f"{name:20}" + "".join(f"{auc:8.3f}" for auc in aucs))
    ax.plot(sizes, aucs, "o-", label=name)
ax.set(xscale="log", xlabel="training rows", ylabel="AUC of 10,000 test rows")
ax.set_xticks(sizes, [f"{size:,}" for size in sizes])
ax.minorticks_off()
ax.set_title("Who clicks what takes rows to learn")
ax.legend()
plt.show()

# %%
# The linear model soon stops improving: it cannot learn who clicks what, with any number of rows.
# Gradient boosting needs many rows to learn more than click rates. The factorization machine is
# best from the first thousand rows on, and still improves.
