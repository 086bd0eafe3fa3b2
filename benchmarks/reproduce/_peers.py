"""ALS of implicit and WARP of LightFM, trained and evaluated like the package's models.

Both have vectors of users and of items, 64 numbers long, which are ranked like those of the
package. ALS is trained to its end and evaluated once; WARP stops when NDCG on validation no longer
rises, as the package's models do.
"""

import time

import numpy as np
import threadpoolctl
from _fastvae import K
from scipy import sparse

from freqfm._input.validation import count_threads
from freqfm.metrics import ranking_report
from freqfm.metrics._hits import top_k

__all__ = ["fit_warp", "refit_als", "refit_warp", "run_als"]

FACTORS = 64


def evaluate_vectors(users, items, held_out, known, n_threads):
    """Return what ``evaluate`` returns, for vectors whose products rank items."""
    rows = np.flatnonzero(np.diff(held_out.indptr))
    found, _ = top_k(users[rows], items, K, exclude=known[rows], n_threads=n_threads)
    report = ranking_report(held_out[rows], found)
    return {name: report[f"{name}@{K}"] for name in ("ndcg", "recall")}


def look_at_vectors(users, items, parts, args):
    """Return a look at validation and test."""
    X, valid, test = parts
    n = count_threads(args.n_jobs)
    of_valid = evaluate_vectors(users, items, valid, X, n)
    of_test = evaluate_vectors(users, items, test, X + valid, n)
    return {"score": of_valid["ndcg"], "valid": of_valid, "test": of_test}


def fit_als(X, regularization, alpha, iterations, seed, args):
    """Return a fitted model of implicit, and the seconds it took."""
    from implicit.als import AlternatingLeastSquares

    with threadpoolctl.threadpool_limits(1, user_api="blas"):  # as implicit asks for
        model = AlternatingLeastSquares(
            FACTORS, regularization=regularization, alpha=alpha, iterations=iterations,
            num_threads=count_threads(args.n_jobs), random_state=seed, use_gpu=False,
        )  # fmt: skip
        start = time.perf_counter()
        model.fit(sparse.csr_matrix(X), show_progress=False)
    return model, time.perf_counter() - start


def run_als(parts, regularization, alpha, seed, args):
    """Train ALS of implicit; look once, at the end."""
    model, seconds = fit_als(parts[0], regularization, alpha, args.als_iterations, seed, args)
    look = look_at_vectors(model.user_factors, model.item_factors, parts, args)
    look |= {"epoch": args.als_iterations, "seconds": seconds}
    return {
        "looks": [look], "best": look, "seconds": seconds, "diverged": False,
        "epochs": args.als_iterations,
    }  # fmt: skip


def refit_als(parts, regularization, alpha, seed, args):
    """Train ALS on training and validation rows; look at test."""
    X, valid, test = parts
    model, _ = fit_als(X + valid, regularization, alpha, args.als_iterations, seed, args)
    n = count_threads(args.n_jobs)
    of_test = evaluate_vectors(model.user_factors, model.item_factors, test, X + valid, n)
    return {"best": {"test": of_test}}


def warp_vectors(model):
    """Return the vectors of users and items of LightFM, the items' biases among them."""
    _, users = model.get_user_representations()
    biases, items = model.get_item_representations()
    ones = np.ones((len(users), 1), np.float32)
    return np.hstack([users, ones]), np.hstack([items, biases[:, None]])


def fit_warp(parts, seed, args):
    """Train LightFM's WARP until validation no longer improves; look at test on the way."""
    import lightfm

    model = lightfm.LightFM(FACTORS, loss="warp", random_state=seed)
    run = {"looks": [], "best": None, "seconds": 0.0, "diverged": False}
    clicks = sparse.coo_matrix(parts[0])
    epoch = since_best = 0
    while epoch < args.epochs and since_best != args.patience:
        n = min(args.every, args.epochs - epoch)
        start = time.perf_counter()
        model.fit_partial(clicks, epochs=n, num_threads=count_threads(args.n_jobs))
        run["seconds"] += time.perf_counter() - start
        epoch += n
        now = {"epoch": epoch, "seconds": run["seconds"]}
        now |= look_at_vectors(*warp_vectors(model), parts, args)
        run["looks"].append(now)
        since_best += 1
        if run["best"] is None or now["score"] > run["best"]["score"]:
            run["best"], since_best = now, 0
    return {**run, "epochs": epoch}


def refit_warp(parts, n_epochs, seed, args):
    """Train LightFM on training and validation rows; look at test."""
    import lightfm

    X, valid, test = parts
    n = count_threads(args.n_jobs)
    model = lightfm.LightFM(FACTORS, loss="warp", random_state=seed)
    model.fit(sparse.coo_matrix(X + valid), epochs=n_epochs, num_threads=n)
    return {"best": {"test": evaluate_vectors(*warp_vectors(model), test, X + valid, n)}}
