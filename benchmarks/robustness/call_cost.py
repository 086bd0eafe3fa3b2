"""Processor time of a call that asks for little, against the numbers of users, items and tokens.

What a call costs should follow what is asked of it. Models are not fitted at these sizes: a tiny
one is, and its arrays are replaced by larger ones. Methods that rank all users or items grow with
their number; all others should not. The last column is the slope between the last two sizes in a
plot whose axes are logarithmic: 0 where a call does not depend on the size, 1 where it is
proportional. Sizes that do not fit into memory, and calls that would take more than a minute, are
left out.

    python benchmarks/robustness/call_cost.py [--quick] [--largest 1e7] [--only words]
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
from scipy import sparse

from freqfm import (
    ALSRecommender,
    FastVAERecommender,
    InteractionRecommender,
    MFRecommender,
    Word2Vec,
)
from freqfm._input.validation import physical_memory

# Two primes: the axis of an array with such a length is that of users or of items.
USERS, ITEMS = 997, 1009
D = 16
HISTORY = 5
# Seconds of a call, above which its row ends.
LONGEST = 60
# A table of vectors, a copy of it, the interactions, and their ids.
BYTES = 2 * 4 * D + 8 * HISTORY + 64


def matrix(n_users, n_items):
    """Return users with the same number of items each."""
    indptr = np.arange(n_users + 1, dtype=np.int64) * HISTORY
    indices = (np.arange(n_users * HISTORY) % HISTORY * (n_items // HISTORY)).astype(np.int32)
    ones = np.ones(len(indices), dtype=np.float32)
    return sparse.csr_array((ones, indices, indptr), shape=(n_users, n_items))


def resized(value, sizes):
    """Return an array whose first axis is that of users or items, at another size."""
    if isinstance(value, dict):
        return {name: resized(part, sizes) for name, part in value.items()}
    if not isinstance(value, np.ndarray) or not value.ndim or len(value) not in sizes:
        return value
    shape = sizes[len(value)], *value.shape[1:]
    if value.dtype == np.float32 and value.ndim == 2:
        return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    return np.resize(value, shape)


def enlarged(model, n_users, n_items):
    """Return a model with arrays for more users and items."""
    model.fit(matrix(USERS, ITEMS))
    if hasattr(model, "without_optimizer_state"):
        model = model.without_optimizer_state()
    sizes = {USERS: n_users, ITEMS: n_items}
    for name, value in vars(model).items():
        setattr(model, name, resized(value, sizes))
    X = matrix(n_users, n_items)
    model._history = model._history._replace(indptr=X.indptr, indices=X.indices)
    model.item_counts_ = np.full(n_items, 9)
    model.n_features_in_ = n_items
    return model


def recommender_calls(model, n_users, n_items):
    """Return calls of a recommender of matrices, by name."""
    model = enlarged(model, n_users, n_items)
    one, some = matrix(1, n_items), np.arange(0, n_items, n_items // 100)[:100]
    people = np.arange(0, n_users, n_users // 100)[:100]
    calls = {
        "recommend, a user": lambda: model.recommend(users=1),
        "recommend, a history": lambda: model.recommend(one),
        "recommend, 100 candidates": lambda: model.recommend(users=1, candidates=some),
        "recommend, 100 excluded": lambda: model.recommend(users=1, exclude=some),
        "predict_pairs, 100": lambda: model.predict_pairs(people, some),
        "similar_items": lambda: model.similar_items(1),
        "similar_items, 100 candidates": lambda: model.similar_items(1, candidates=some),
        "transform, a history": lambda: model.transform(one),
        "explain": lambda: model.explain(1, 1),
    }
    if hasattr(model, "user_factors_"):
        calls["similar_users"] = lambda: model.similar_users(1)
        calls["similar_users, 100 candidates"] = lambda: model.similar_users(1, candidates=people)
    return {name: call for name, call in calls.items() if hasattr(model, name.split(",")[0])}


def table_calls(convert, n_users, n_items):
    """Return calls of an InteractionRecommender, whose ids are converted numbers, by name."""
    model = InteractionRecommender(MFRecommender(D, max_iter=1, early_stopping=False, n_jobs=1))
    model.fit([(convert(1), convert(1))])
    model.estimator_ = enlarged(model.estimator_, n_users, n_items)
    dtype = np.int64 if convert is int else object
    for role, n in (("user", n_users), ("item", n_items)):
        model._keep_ids(role, np.array(list(map(convert, range(n))), dtype=dtype), np.arange(n))
    some = model.item_ids_[:: n_items // 100][:100].tolist()
    people = model.user_ids_[:: n_users // 100][:100].tolist()
    pairs = list(zip(people, some, strict=True))
    return {
        "recommend, a user": lambda: model.recommend(people[1]),
        "recommend, an unknown user": lambda: model.recommend(convert(10**9)),
        "recommend, a history": lambda: model.recommend(history=some[:5]),
        "recommend, 100 candidates": lambda: model.recommend(people[1], candidates=some),
        "recommend, 100 excluded": lambda: model.recommend(people[1], exclude=some),
        "predict, 100 pairs": lambda: model.predict(pairs),
        "score, 100 pairs": lambda: model.score(pairs),
        "similar_items": lambda: model.similar_items(some[1]),
        "similar_items, 100 candidates": lambda: model.similar_items(some[1], candidates=some),
        "similar_users": lambda: model.similar_users(people[1]),
        "similar_users, 100 candidates": lambda: model.similar_users(people[1], candidates=people),
        "transform, 100 pairs": lambda: model.transform(pairs),
        "explain": lambda: model.explain(people[1], some[1]),
    }


def word_calls(n_tokens):
    """Return calls of Word2Vec, by name."""
    model = Word2Vec(D, min_count=1, max_iter=1, n_jobs=1)
    model.fit([[f"{n:09}" for n in range(ITEMS)]] * 2)
    model = model.without_optimizer_state()
    for name, value in vars(model).items():
        setattr(model, name, resized(value, {ITEMS: n_tokens}))
    tokens = [f"{n:09}" for n in range(n_tokens)]
    model.vocabulary_ = dict(zip(tokens, range(n_tokens), strict=True))
    return {
        "similarity": lambda: model.similarity(tokens[1], tokens[2]),
        "most_similar": lambda: model.most_similar(tokens[1]),
        "doesnt_match": lambda: model.doesnt_match(tokens[1:5]),
        "transform, a document": lambda: model.transform([tokens[1:9]]),
    }


def as_text(number):
    """Return a number as text of nine digits, so that the order is the same."""
    return f"{number:09}"


def sweeps():
    """Return functions that make calls for a number of users, items or tokens, by title."""
    common = {"max_iter": 1, "early_stopping": False, "n_jobs": 1}
    models = {
        "MF, cosine": lambda: MFRecommender(D, loss="softmax", **common),
        "MF, dot product": lambda: MFRecommender(D, loss="bpr", **common),
        "ALS": lambda: ALSRecommender(D, **common),
        "VAE": lambda: FastVAERecommender(D, hidden_layer_sizes=(D,), **common),
    }
    found = {}
    for title, make in models.items():
        found[f"{title}, users"] = lambda n, make=make: recommender_calls(make(), n, ITEMS)
        found[f"{title}, items"] = lambda n, make=make: recommender_calls(make(), USERS, n)
    for title, convert in (("tables of numbers", int), ("tables of text", as_text)):
        found[f"{title}, users"] = lambda n, convert=convert: table_calls(convert, n, ITEMS)
        found[f"{title}, items"] = lambda n, convert=convert: table_calls(convert, USERS, n)
    found["words, tokens"] = word_calls
    return found


def seconds_of(call, n_calls):
    """Return the median processor seconds of a call, of few calls if they take long."""
    call()  # compiles, and touches memory for the first time
    taken = []
    while len(taken) < n_calls and sum(taken) < 2:
        start = time.process_time()
        call()
        taken.append(time.process_time() - start)
    return float(np.median(taken))


def measure(make, sizes, n_calls):
    """Return the seconds of each call at each size."""
    found = {}
    for n in sizes:
        for name, call in make(n).items():
            # The next size is ten times as large.
            if 10 * max(found.get(name, [0])) < LONGEST:
                found.setdefault(name, []).append(seconds_of(call, n_calls))
    return found


def report(title, sizes, found):
    """Print the milliseconds of each call at each size, and the last slope."""
    print(f"\n{title:32}" + "".join(f"{n:>12,}" for n in sizes) + "     slope")
    for name, seconds in found.items():
        slope = ""
        if len(seconds) > 1:
            ends = np.log(seconds[-1] / seconds[-2]) / np.log(sizes[1] / sizes[0])
            slope = f"{ends:10.2f}"
        print(f"{name:32}" + "".join(f"{1000 * s:12.3f}" for s in seconds) + slope, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--largest", type=float, default=1e7, help="users, items or tokens")
    parser.add_argument("--only", default="", help="titles that hold this text")
    parser.add_argument("--calls", type=int, default=31)
    parser.add_argument("--quick", action="store_true", help="two small sizes: that it runs")
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder for results")
    args = parser.parse_args()
    if args.quick:
        args.largest, args.calls = 4000, 2
    results = {}
    for title, make in sweeps().items():
        if args.only not in title:
            continue
        # Text takes about a hundred bytes more, as objects in lists and dicts.
        each = BYTES + (200 if "text" in title or "words" in title else 0)
        most = min(args.largest, (physical_memory() or np.inf) / 2 / each)
        sizes = [2000, 4000] if args.quick else [10**k for k in range(4, 9) if 10**k <= most]
        found = measure(make, sizes, args.calls)
        report(title, sizes, found)
        results[title] = {"sizes": sizes, "seconds": found}
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "call_cost.json").write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
