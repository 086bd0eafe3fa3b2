"""
Clicks from columns, and which pairs interact
=============================================

A click log like Criteo's has categories with thousands of values, counts with long tails, and
missing values. ``ColumnTransformer`` encodes each kind, ``FMClassifier`` is trained, and its
vectors show which pairs of columns interact. The log is synthetic, so we know which pairs it should
find.
"""

# sphinx_gallery_thumbnail_number = 2

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.calibration import CalibrationDisplay
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder

from freqfm import FMClassifier, column_fields

# %%
# The log
# -------
#
# A few values of each category occur in most of the rows. Clicks depend on pairs of user and site
# and on pairs of ad and hour; the counts have effects of their own, and the device has none.

rng = np.random.default_rng(0)
N = 40_000


def draw(n_values):
    """Return values with a long tail."""
    weights = 1 / np.arange(1, n_values + 1)
    return rng.choice(n_values, N, p=weights / weights.sum())


log = pd.DataFrame({"user": draw(800), "site": draw(100), "ad": draw(300), "hour": draw(24)})
log["device"] = draw(5)
log["visits"] = np.where(rng.random(N) < 0.2, np.nan, np.floor(rng.lognormal(1, 1.2, N)))
log["age_days"] = np.floor(rng.exponential(60, N))


def interact(one, other, scale):
    """Return the effect of pairs of values, by hidden vectors."""
    a, b = (rng.normal(size=(log[name].max() + 1, 3)) for name in (one, other))
    return scale * (a[log[one]] * b[log[other]]).sum(axis=1) / np.sqrt(3)


score = -1.5 + interact("user", "site", 1.2) + interact("ad", "hour", 0.8)
score += 0.3 * np.log1p(log["visits"].fillna(0)) - 0.004 * log["age_days"]
clicked = (rng.random(N) < 1 / (1 + np.exp(-score))).astype(int)
print(log.head(4).to_string())

# %%
# The pipeline
# ------------
#
# As the winners of Criteo's challenge did, a count becomes the category ``floor(log(x) ** 2)``, and
# a missing one a category of its own. Values in fewer than five rows share a column.


def round_counts(counts):
    """Turn counts into categories."""
    return np.floor(np.log1p(counts) ** 2)


rare = {"handle_unknown": "infrequent_if_exist", "min_frequency": 5}
columns = make_column_transformer(
    (OneHotEncoder(**rare), ["user", "site", "ad", "hour", "device"]),
    (
        make_pipeline(FunctionTransformer(round_counts), OneHotEncoder(**rare)),
        ["visits", "age_days"],
    ),
)
train, test = slice(0, 30_000), slice(30_000, None)
models = {
    "logistic regression": LogisticRegression(max_iter=300),
    "FMClassifier": FMClassifier(n_jobs=1, random_state=0),
}
figure, ax = plt.subplots(figsize=(6, 4.4), layout="constrained")
for name, estimator in models.items():
    models[name] = make_pipeline(columns, estimator).fit(log[train], clicked[train])
    probability = models[name].predict_proba(log[test])[:, 1]
    auc, loss = roc_auc_score(clicked[test], probability), log_loss(clicked[test], probability)
    print(f"{name:20} AUC {auc:.4f}, log loss {loss:.4f}")
    CalibrationDisplay.from_predictions(
        clicked[test], probability, n_bins=10, strategy="quantile", name=name, ax=ax
    )
ax.set(title="Are probabilities right?", xlabel="predicted", ylabel="clicked")

# %%
# Which pairs interact most
# -------------------------
#
# A row's score is a sum over pairs of its columns. How much one pair of variables moves scores from
# row to row is the standard deviation of its part. For single values instead of whole columns there
# is :meth:`~freqfm.FMClassifier.interaction_strengths`.

pipeline = models["FMClassifier"]
X, factors = pipeline[:-1].transform(log[test]), pipeline[-1].factors_
fields = column_fields(pipeline[0])
names = ["user", "site", "ad", "hour", "device", "visits", "age_days"]
sums = [X[:, fields == field] @ factors[fields == field] for field in range(len(names))]
strength = np.zeros((len(names), len(names)))
for one in range(len(names)):
    for other in range(one):
        strength[one, other] = (sums[one] * sums[other]).sum(axis=1).std()
figure, ax = plt.subplots(figsize=(6, 4.6), layout="constrained")
image = ax.imshow(np.where(strength > 0, strength, np.nan), cmap="Blues")
ax.set_xticks(range(len(names)), names, rotation=60, ha="right")
ax.set_yticks(range(len(names)), names)
ax.set_title("How much a pair moves the log-odds")
figure.colorbar(image, shrink=0.8)
for place in np.argsort(-strength, axis=None)[:4]:
    one, other = np.unravel_index(place, strength.shape)
    print(f"{names[other]:>8} x {names[one]:8} {strength[one, other]:.2f}")
plt.show()

# %%
# The two pairs on which clicks depend stand out; all others hardly matter. The linear model has no
# pairs, so its probabilities are too close to the mean.
