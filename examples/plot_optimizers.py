"""
Which optimizer learns the rare tokens?
=======================================

In this synthetic click log most ads are rare, as in real logs. Three optimizers train
the same factorization machine on it: SGD, with one learning rate for all tokens; Adam, with two
numbers of state per weight; CF-SGD, with one counter per token. For every optimizer, the best of
three learning rates is chosen by the validation score.
"""

import time

import matplotlib.pyplot as plt
import numpy as np
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split

from freqfm import FMClassifier
from freqfm.datasets import make_clicks

# Four fields: ads, users, sites, hours. The most frequent ad is shown thousands of times, most
# ads a few times.
N_ADS = 20_000
X, y = make_clicks(80_000, (N_ADS, 3000, 300, 24), tail_exponent=1.0, random_state=0)
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.3, random_state=0)

# %%
# Test rows by how often their ad was seen in training: the 5 % most frequent ads are the head,
# the next 15 % the torso, the rest the tail.

shown = np.bincount(X_train.indices, minlength=X.shape[1])[:N_ADS]
rank = np.empty(N_ADS, dtype=int)
rank[np.argsort(-shown, kind="stable")] = np.arange(N_ADS)
test_rank = rank[X_test.indices.reshape(len(y_test), 4)[:, 0]] / N_ADS
strata = {
    "all": test_rank >= 0,
    "head": test_rank < 0.05,
    "torso": (test_rank >= 0.05) & (test_rank < 0.2),
    "tail": test_rank >= 0.2,
}
print(f"{X_train.shape[0]} rows train, {X_test.shape[0]} test, {X.shape[1]} tokens")
print("test rows by ad: " + ", ".join(f"{name} {rows.mean():.0%}" for name, rows in strata.items()))

# %%
# The fits. ``early_stopping="auto"`` holds out 10 % of the training rows to find the best number of
# epochs, and then trains a new model on all of them.

candidates = {"sgd": [1, 3, 10], "adam": [0.001, 0.003, 0.01], "cf_sgd": [0.5, 1, 2]}
models, seconds, aucs = {}, {}, {}
print(f"\n{'optimizer':10}{'rate':>7}{'epochs':>8}{'seconds':>9}{'state, MB':>11}", end="")
print("".join(f"{name + ' AUC':>11}" for name in strata))
for optimizer, rates in candidates.items():
    for rate in rates:
        start = time.perf_counter()
        model = FMClassifier(
            n_components=16,
            optimizer=optimizer,
            learning_rate=rate,
            max_iter=100,
            n_jobs=1,
            random_state=0,
        ).fit(X_train, y_train)
        took = time.perf_counter() - start
        best = models.get(optimizer)
        if best is None or model.validation_scores_.max() > best.validation_scores_.max():
            models[optimizer], seconds[optimizer] = model, took
    model = models[optimizer]
    scores = model.decision_function(X_test)
    aucs[optimizer] = [roc_auc_score(y_test[rows], scores[rows]) for rows in strata.values()]
    print(
        f"{optimizer:10}{model.learning_rate:7g}{model.best_iter_:8d}{seconds[optimizer]:9.1f}"
        f"{model.optimizer_state_nbytes_ / 1e6:11.2f}"
        + "".join(f"{auc:11.4f}" for auc in aucs[optimizer])
    )

# %%
# Left, how fast they learn; right, how well, by how often the ad of a test row was shown. The
# optimizers differ most at first and in the tail, and in the memory they take.

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
for optimizer, model in models.items():
    left.plot(np.arange(1, model.n_iter_ + 1), -model.validation_scores_, label=optimizer)
left.set(xlabel="epoch", ylabel="log loss, validation", title="How fast they learn")
left.legend()
for shift, (optimizer, values) in enumerate(aucs.items()):
    right.bar(np.arange(len(strata)) + 0.27 * (shift - 1), values, width=0.25, label=optimizer)
right.set(ylim=(0.7, None), ylabel="test AUC", title="How well they learn, by frequency")
right.set_xticks(np.arange(len(strata)), strata)
plt.show()
