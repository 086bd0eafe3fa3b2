"""How the start and the epochs of FastVAERecommender were chosen: on validation parts.

Around the defaults, some settings at a time are changed. The table shows recall@20 and NDCG@20 on
the validation part, and the CPU seconds to train. No test part is read; ``untuned.py``
looks at test, with the defaults alone. Data sets and options are those of ``mf_defaults.py``.

    python benchmarks/quality/vae_defaults.py --data DIR --out results --n-jobs 1
    python benchmarks/quality/vae_defaults.py --data DIR --data-set ml100k --seeds 3
"""

import time

import numpy as np
from mf_defaults import K, main

from freqfm import FastVAERecommender
from freqfm.initializers import Spectral
from freqfm.metrics import ranking_report

# Early stopping was on below this number of interactions.
STOPPED_BELOW = 200_000

# The defaults before they were changed to these.
BEFORE = {"init": "normal", "max_iter": 50, "kl_warm_up": 20, "early_stopping": "small data"}

CHANGES = {
    "the defaults": {},
    "before": BEFORE,
    "before, without early stopping": {**BEFORE, "early_stopping": False},
    "normal": {"init": "normal"},
    "early stopping": {"early_stopping": True},
    "12 epochs": {"max_iter": 12, "kl_warm_up": 5},
    "12 epochs, normal": {"max_iter": 12, "kl_warm_up": 5, "init": "normal"},
    "16 epochs": {"max_iter": 16, "kl_warm_up": 6},
    "20 epochs": {"max_iter": 20},
    "30 epochs": {"max_iter": 30, "kl_warm_up": 12},
    "50 epochs": {"max_iter": 50, "kl_warm_up": 20},
    "kl_warm_up=1": {"kl_warm_up": 1},
    "kl_warm_up=20": {"kl_warm_up": 20},
    "dropout=0.4": {"dropout": 0.4},
    "learning_rate=0.01": {"learning_rate": 0.01},
    "learning_rate=0.03": {"learning_rate": 0.03},
    "batch_size=128": {"batch_size": 128},
    "batch_size=256": {"batch_size": 256},
    "noise=0.1": {"init": Spectral(0.1)},
    "noise=1": {"init": Spectral(1.0)},
}


def fit(X, held_out, change, seed, n_jobs):
    """Train one model; return its quality on the held-out part, and the CPU seconds."""
    params = dict(change)
    if params.get("early_stopping") == "small data":
        params["early_stopping"] = X.nnz < STOPPED_BELOW
    model = FastVAERecommender(**params, random_state=seed, n_jobs=n_jobs)
    start = time.process_time()
    model.fit(X)
    seconds = time.process_time() - start
    users = np.flatnonzero(np.diff(held_out.indptr))
    found = model.recommend(X[users], n_recommendations=K)[0]
    report = ranking_report(held_out[users], found)
    return {"recall": report[f"recall@{K}"], "ndcg": report[f"ndcg@{K}"], "seconds": seconds}


if __name__ == "__main__":
    main(__doc__, CHANGES, fit, "vae_defaults")
