"""
Items from sessions: Word2Vec
=============================

Word2Vec also works for items: items that are viewed in the same sessions get similar vectors
("item2vec"). A session is a document, an item a token. Do items of the same department get similar
vectors, even rare items?
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.decomposition import PCA

from freqfm import Word2Vec

# %%
# Sessions
# --------
#
# A shop has six departments of 50 items; the second item of a department is seen half as often as
# the first, the third a third as often, and so on. A session looks at two to eight items of a
# department; one item in four is of any.

N_DEPARTMENTS, N_ITEMS = 6, 50
generator = np.random.default_rng(0)
popularity = 1 / np.arange(1, N_ITEMS + 1)
popularity /= popularity.sum()
sessions = []
for _ in range(1200):
    n = generator.integers(2, 9)
    of_session = np.full(n, generator.integers(N_DEPARTMENTS))
    stray = generator.random(n) < 1 / 4
    of_session[stray] = generator.integers(N_DEPARTMENTS, size=stray.sum())
    items = generator.choice(N_ITEMS, n, p=popularity)
    sessions.append((of_session * N_ITEMS + items).tolist())

# %%
# Vectors
# -------
#
# The order of a session means little: windows reach over whole sessions and are not shrunk. CF-SGD,
# the default, moves rare items by larger steps than frequent ones.

PARAMS = {
    "n_components": 16,
    "window": 8,
    "shrink_windows": False,
    "subsample": None,
    "min_count": 1,
    "max_iter": 15,
    "batch_size": 64,
    "random_state": 0,
}
models = {
    name: Word2Vec(**PARAMS, **params).fit(sessions)
    for name, params in (
        ("CF-SGD", {}),
        ("SGD", {"optimizer": "sgd"}),
        ("Adam", {"optimizer": "adam"}),
    )
}
model = models["CF-SGD"]
print("similar to item 100, the most frequent of department 2:")
print([(item, round(cosine, 2)) for item, cosine in model.most_similar(100, n=5)])

# %%
# Mean vectors of sessions, for instance as features of a classifier:

model.transform(sessions[:3]).round(2)[:, :4]

# %%
# Similar items by popularity
# ---------------------------
#
# Of each item's ten most similar ones, how many are of its department? By chance it is a sixth. All
# optimizers find the departments, of rare items too.

GROUPS = {"first 10": (0, 10), "next 15": (10, 25), "last 25": (25, 50)}


def share_of_department(model, first, last):
    """Return the mean share over the items of some ranks in all departments."""
    shares = []
    for item in model.vocabulary_:
        if first <= item % N_ITEMS < last:
            similar = [other // N_ITEMS for other, _ in model.most_similar(item, n=10)]
            shares.append(np.mean(np.array(similar) == item // N_ITEMS))
    return np.mean(shares)


shares = {
    name: [share_of_department(model, *ranks) for ranks in GROUPS.values()]
    for name, model in models.items()
}
for name, of_model in shares.items():
    print(name, np.round(of_model, 2))

# %%

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
items = np.array(list(model.vocabulary_))
units = model.vectors_ / np.linalg.norm(model.vectors_, axis=1, keepdims=True)
points = PCA(2).fit_transform(units)
for department in range(N_DEPARTMENTS):
    mine = items // N_ITEMS == department
    size = 4 + 800 * popularity[items[mine] % N_ITEMS]
    left.scatter(*points[mine].T, s=size, alpha=0.6, label=f"department {department}")
left.set(title="two principal components, CF-SGD", xticks=[], yticks=[])
left.legend(fontsize="x-small")
for number, (name, of_model) in enumerate(shares.items()):
    right.bar(np.arange(len(GROUPS)) + 0.25 * (number - 1), of_model, 0.22, label=name)
right.axhline(1 / N_DEPARTMENTS, color="gray", linestyle=":", label="by chance")
right.set(title="similar items of the same department", xticks=range(len(GROUPS)), ylim=(0, 1))
right.set_xticklabels(GROUPS)
right.legend(fontsize="x-small")
plt.show()
