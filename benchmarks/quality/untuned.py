"""How good recommenders are with default parameters, and how good tuned peers are.

Every untuned model is trained on training and validation parts together, as nothing is chosen, and
evaluated once: recall and NDCG at 20 of the test part, items of the training rows left out. Only
the number of threads and the seed are set (and 20 epochs of LightFM, whose default is one). With
``--tuned`` the peers are also chosen from the small grids of ``_recommenders.py``, by NDCG at 20 of
the validation part, and then trained again on both parts. Beside it the seconds to fit and to rank
for all users. Peers (implicit, lightfm-next, Cornac, RecBole) take part if they are installed.

    python benchmarks/quality/untuned.py --data DIR --out results
    python benchmarks/quality/untuned.py --data DIR --seeds 3 --tuned --models 'implicit*'

Runs are kept in ``untuned.json`` and points of a search in ``untuned_search.jsonl``, both in
``--out``. A model that is there with as many seeds is not run again; ``--again`` does so. Reads
Gowalla (the usual split), MovieLens-1M clicks and MovieLens-100K; ``--quick`` draws small data.
"""

import json
import sys
import time
from fnmatch import fnmatch
from functools import partial
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from _data import click_parts, require_data, table_parser
from _recommenders import GRIDS, K, contenders, points
from _runs import Results

from freqfm._input.validation import count_threads
from freqfm.metrics import ranking_report

DATA_SETS = {"Gowalla": "gowalla", "MovieLens-1M": "ml1m-implicit", "MovieLens-100K": "ml100k"}


def data_sets(args):
    """Yield the name of every data set, and its training, validation and test parts."""
    if args.quick:
        yield "drawn", click_parts(require_data(args), "gowalla")
        return
    for name in args.data_set:
        yield name, click_parts(require_data(args), DATA_SETS[name])


def judge(make, X, test, seed, n_threads):
    """Return the quality of one model and its seconds."""
    users = np.flatnonzero(np.diff(test.indptr))
    start = time.perf_counter()
    model = make(X, seed, n_threads)
    fitted = time.perf_counter()
    found = model.rank(X, users)
    ranked = time.perf_counter()
    report = ranking_report(test[users], found)
    return {
        "recall": report[f"recall@{K}"],
        "ndcg": report[f"ndcg@{K}"],
        "fit": fitted - start,
        "rank": ranked - fitted,
    }


def choose(name, make, data, parts, n_threads, searched):
    """Return the best point of a grid by NDCG on validation, and how many points it has."""
    X, valid, _ = parts
    found = []
    for params in points(name):
        key = {"data": data, "model": name, **params}
        found.append(searched.run(key, judge, partial(make, **params), X, valid, 0, n_threads))
    best = max(range(len(found)), key=lambda n: found[n]["ndcg"])
    return points(name)[best], len(found)


def candidates(makers, data, parts, n_threads, searched, args):
    """Yield the name, the maker and the parameters of what is asked for."""
    wanted = [name for name in makers if any(fnmatch(name, given) for given in args.models)]
    for name in wanted:
        untuned = name if name.startswith("the ") else f"{name}()"
        yield untuned, makers[name], {}
    for name in wanted:
        if args.tuned and name in GRIDS:
            params, n_points = choose(name, makers[name], data, parts, n_threads, searched)
            more = {"params": params, "n_points": n_points}
            yield f"{name}, tuned", partial(makers[name], **params), more


def show(name, runs):
    """Print the means over seeds of one data set, and by how much NDCG differs."""
    print(f"\n{name}, test")
    print(f"{'':42}{'recall@20':>10}{'NDCG@20':>9}{'spread':>8}{'fit, s':>8}{'rank, s':>9}")
    for model, of_seeds in runs.items():
        keys = ("recall", "ndcg", "fit", "rank")
        mean = {key: float(np.mean([run.get(key, np.nan) for run in of_seeds])) for key in keys}
        spread = float(np.ptp([run["ndcg"] for run in of_seeds]))
        print(
            f"{model:42}{mean['recall']:10.4f}{mean['ndcg']:9.4f}{spread:8.4f}"
            f"{mean['fit']:8.1f}{mean['rank']:9.2f}"
        )


def main():
    parser = table_parser(__doc__)
    parser.add_argument("--data-set", nargs="+", choices=DATA_SETS, default=list(DATA_SETS))
    parser.add_argument("--n-jobs", type=int, default=None)
    parser.add_argument("--quick", action="store_true", help="200 users, drawn: a test")
    args = parser.parse_args()
    n_threads = count_threads(args.n_jobs)
    path = args.out / "untuned.json"
    searched = Results(args.out / "untuned_search.jsonl")
    results = json.loads(path.read_text()) if path.exists() else {}
    results["n_threads"] = n_threads
    makers = contenders()
    for name, parts in data_sets(args):
        X, test = parts[0] + parts[1], parts[2]
        runs = results.setdefault(name, {})
        for model, make, more in candidates(makers, name, parts, n_threads, searched, args):
            if args.search_only or (len(runs.get(model, [])) >= args.seeds and not args.again):
                continue
            make(X[:50], 0, n_threads)  # compiles, or reads what was compiled
            runs[model] = [
                {**judge(make, X, test, seed, n_threads), **more} for seed in range(args.seeds)
            ]
            path.write_text(json.dumps(results, indent=1))
            print(f"{name}, {model}: done", flush=True)
        show(name, runs)


if __name__ == "__main__":
    main()
