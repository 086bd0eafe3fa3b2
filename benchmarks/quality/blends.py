"""NDCG@20 of a blend and of its members, with default parameters, on test parts.

For each data set: the members in order of their test score, the blend, its weights, and the seconds
of the fits, of the members alone and of the blend. The weights are found without the test part.

    python benchmarks/quality/blends.py --data DIR
    python benchmarks/quality/blends.py --quick        # small random data: a test
"""

import sys
import time
from pathlib import Path

import numpy as np
from sklearn.base import clone

sys.path.insert(0, str(Path(__file__).parents[1]))
from _data import QUICK, click_parts, data_parser, require_data

from freqfm import BlendRecommender
from freqfm.estimators.recommenders.blend import default_members
from freqfm.metrics import ndcg_at_k

K = 20


def tested(model, X, test):
    """Fit a model; return its NDCG on the test part, and the seconds of the fit."""
    start = time.perf_counter()
    model.fit(X)
    seconds = time.perf_counter() - start
    users = np.flatnonzero(np.diff(test.indptr))
    ranked, _ = model.recommend(users=users, n_recommendations=K)
    return ndcg_at_k(test[users], ranked, K), seconds


def main():
    parser = data_parser(__doc__.splitlines()[0])
    parser.add_argument("--sets", nargs="+", default=["ml100k", "ml1m-implicit", "gowalla"])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help=QUICK)
    args = parser.parse_args()
    folder = require_data(args)
    for name in args.sets[: 1 if args.quick else None]:
        train, valid, test = click_parts(folder, name)
        X = train + valid
        for seed in range(args.seeds):
            found = {}
            for member, model in default_members():
                params = {"random_state": seed} if hasattr(model, "random_state") else {}
                found[member] = tested(clone(model).set_params(**params), X, test)
            blend = BlendRecommender(scoring=f"ndcg@{K}", random_state=seed)
            score, seconds = tested(blend, X, test)
            best = max(of for of, _ in found.values())
            members = ", ".join(f"{member} {of:.4f}" for member, (of, _) in found.items())
            weights = zip(blend.named_estimators_, blend.weights_, strict=True)
            print(
                f"{name}, seed {seed}: blend {score:.4f}, {score / best - 1:+.1%} of the best of "
                f"{members}; weights {', '.join(f'{m} {w:.2f}' for m, w in weights)}; "
                f"{seconds:.0f} s, members {sum(of for _, of in found.values()):.0f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
