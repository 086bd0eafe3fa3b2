"""How the default weight decay of BPR was chosen: NDCG by its multiple of the root of the density.

Data are those of ``als_defaults.py``, beside parts of Gowalla and MovieLens-1M: users of popular or
of rare items, few users, and few interactions. No test part is read.

    python benchmarks/quality/bpr_defaults.py --data DIR
"""

import sys
from pathlib import Path

import als_defaults
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from _data import click_parts, data_parser, require_data
from als_defaults import by_scores, held_out, judge
from scipy import sparse

from freqfm import MFRecommender
from freqfm.optimizers import WeightDecay

MULTIPLES = (0, 0.03, 0.06, 0.1, 0.2, 0.5)


def parts(data):
    """Yield the name of every data set, training and held-out interactions, and the k of NDCG."""
    yield from als_defaults.parts(data)
    rng = np.random.default_rng(1)
    movies = sum(click_parts(data, "ml1m-implicit"))
    some = movies[np.sort(rng.choice(movies.shape[0], 1000, replace=False))]
    yield "1,000 users", *held_out(some[:, some.sum(axis=0) > 1]), 20
    kept = movies * sparse.csr_array(rng.random(movies.shape) < 0.15)
    kept = kept[np.diff(kept.indptr) > 4]
    yield "15 % of pairs", *held_out(kept[:, kept.sum(axis=0) > 2]), 20
    places = sum(click_parts(data, "gowalla")[:2])
    by_popularity = np.argsort(-places.sum(axis=0))
    for name, items, least in (("popular", slice(2000), 15), ("rare", slice(2000, 12_000), 5)):
        some = places[:, np.sort(by_popularity[items])]
        yield f"Gowalla, {name}", *held_out(some[np.diff(some.indptr) >= least][:8000]), 20


def main():
    args = data_parser(__doc__).parse_args()
    print(f"{'NDCG':18}" + "".join(f"{m:>9}" for m in (*MULTIPLES, "popular", "density")))
    for name, X, later, k in parts(require_data(args)):
        X, later = sparse.csr_array(X), sparse.csr_array(later)
        density = X.nnz / np.prod(X.shape)
        params = {"loss": "bpr", "random_state": 0}
        decays = np.sqrt(density) * np.array(MULTIPLES)
        models = [
            MFRecommender(weight_decay=WeightDecay(d, scope="batch"), **params) for d in decays
        ]
        row = [judge(model, X, later, k) for model in models]
        popularity = np.broadcast_to(X.sum(axis=0), X.shape)
        row += [by_scores(popularity, X, later, k), density]
        print(f"{name:18}" + "".join(f"{value:9.4f}" for value in row), flush=True)


if __name__ == "__main__":
    main()
