"""
Interactions that differ by field
=================================

A factorization machine has one vector for each feature, by which it interacts with all others. What
if a user's taste in items says nothing about the hours or the pages at which the user clicks? A
field-aware machine has a vector for each feature and field, one for each such habit. A
field-weighted machine keeps one vector, and learns a weight for each pair of fields.

On synthetic clicks: first each pair of fields has habits of its own, then only some pairs interact.
"""

from itertools import combinations

import matplotlib.pyplot as plt
import numpy as np
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import OneHotEncoder

from freqfm import FFMClassifier, FMClassifier, FwFMClassifier, column_fields

# %%
# Six fields. For each of the fifteen pairs, every feature is of one of two kinds, drawn for this
# pair alone: features of the same kind go together.

rng = np.random.default_rng(0)
names = ["user", "item", "hour", "page", "device", "source"]
n_rows, n_values = 60_000, 30
rows = rng.integers(0, n_values, (n_rows, len(names)))
kinds = rng.choice([-1.0, 1.0], (len(names), len(names), n_values))
logits = np.zeros(n_rows)
for f, g in combinations(range(len(names)), 2):
    logits += 0.7 * kinds[f, g][rows[:, f]] * kinds[g, f][rows[:, g]]
y = (rng.random(n_rows) < 1 / (1 + np.exp(-logits))).astype(int)

encoder = OneHotEncoder()
X = encoder.fit_transform(rows)
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.3, random_state=0)
fields = column_fields(encoder)

# %%
# Models of the same size
# -----------------------
#
# With six fields a field-aware machine of one number for each vector is as large as a plain one of
# six. The best possible AUC is that of the probabilities that the clicks were drawn by.

best = roc_auc_score(y, logits)
params = {"max_iter": 40, "n_jobs": 1, "random_state": 0}
makers = {
    "FM": lambda d: FMClassifier(6 * d, **params),
    "FFM": lambda d: FFMClassifier(d, fields=fields, **params),
}
numbers = np.array([1, 2, 4])
aucs = {name: [] for name in makers}
for name, make in makers.items():
    for d in numbers:
        model = make(d).fit(X_train, y_train)
        aucs[name].append(roc_auc_score(y_test, model.decision_function(X_test)))
    print(name, " ".join(f"{auc:.3f}" for auc in aucs[name]), f"(best possible: {best:.3f})")

# %%
# What the field-aware machine has learned: the vectors of all users for items, and for hours, of
# one number each. They tell the kinds of users, which are independent.

model = FFMClassifier(1, fields=fields, **params).fit(X_train, y_train)
users = model.factors_[fields == 0, :, 0]

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
for name, found in aucs.items():
    left.plot(6 * numbers, found, "o-", label=name)
left.axhline(best, color="black", linestyle=":", label="best possible")
left.set(xlabel="numbers for each feature", ylabel="AUC of rows not trained on", xticks=6 * numbers)
left.legend()
for kind in (-1, 1):
    of_kind = kinds[0, 1] == kind
    right.scatter(*users[of_kind][:, [1, 2]].T, label=f"kind {kind:+d} for items")
right.set(xlabel="vector for items", ylabel="vector for hours", title="Users in the FFM")
right.legend()
plt.show()

# %%
# The plain machine must keep five habits of a feature in one vector, and give features of other
# fields vectors that are orthogonal to the habits that are not theirs. That takes many more
# numbers, and rows to learn them from.

# %%
# Fields of which only some interact
# ----------------------------------
#
# Now every feature is of one kind. Users go with items of their kind, hours with pages and devices
# with sources, but all others have nothing to do with each other.

kinds = rng.choice([-1.0, 1.0], (len(names), n_values))
of_rows = np.column_stack([kinds[f][rows[:, f]] for f in range(len(names))])
logits = 1.2 * (of_rows[:, ::2] * of_rows[:, 1::2]).sum(axis=1)
y = (rng.random(n_rows) < 1 / (1 + np.exp(-logits))).astype(int)
y_train, y_test = train_test_split(y, test_size=0.3, random_state=0)

for d in (1, 2, 4):
    model = FMClassifier(d, **params).fit(X_train, y_train)
    print("FM  ", d, f"{roc_auc_score(y_test, model.decision_function(X_test)):.3f}")
model = FwFMClassifier(1, fields=fields, alpha_fields=0, **params).fit(X_train, y_train)
found = roc_auc_score(y_test, model.decision_function(X_test))
print("FwFM", 1, f"{found:.3f} (best possible: {roc_auc_score(y, logits):.3f})")

# %%
# One number for each feature says of which kind it is, and the weights say which fields to compare.
# Vectors alone need a number for each pair of fields, so that other fields do not interact.

figure, axes = plt.subplots(figsize=(5, 4), layout="constrained")
weights = model.field_weights_.copy()
np.fill_diagonal(weights, np.nan)  # no row has two features of a field
image = axes.imshow(weights, cmap="Blues", vmin=0)
axes.set(xticks=range(6), yticks=range(6), xticklabels=names, yticklabels=names)
axes.set_title("Weights of pairs of fields in the FwFM")
figure.colorbar(image)
plt.show()
