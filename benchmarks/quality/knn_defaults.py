"""How the default power of items of ItemKNNRecommender was chosen: NDCG by the power.

Data are those of ``bpr_defaults.py``, beside thinned interactions, the apps of Frappe, the words
that follow a word, and drawn ones. Beside the powers are the default, the other weightings, and the
most popular items. No test part is read.

    python benchmarks/quality/knn_defaults.py --data DIR

``--quick`` takes drawn data only.
"""

import sys
from itertools import product
from pathlib import Path

import bpr_defaults
import numpy as np
from scipy import sparse

sys.path.insert(0, str(Path(__file__).parents[1]))
from _data import click_parts, data_parser, frappe_split, require_data, wikitext
from als_defaults import held_out, judge
from bpr_defaults import by_scores

from freqfm import ItemKNNRecommender
from freqfm.datasets import make_interactions

POWERS = (-0.2, -0.1, 0, 0.1, 0.2, 0.3, 0.4, 0.5)
WEIGHTINGS = ("conditional", "cosine", "tfidf", "bm25")
MOST_ITEMS = 15_000


def parts(args):
    """Yield the name of every data set, training and held-out interactions, and the k of NDCG."""
    if not args.quick:
        yield from of_files(require_data(args))
    for exponent, n in product((0.3, 1.0, 1.5), (12_000, 60_000)):
        X = make_interactions(2000, 1500, n, popularity_exponent=exponent, random_state=0)
        yield f"drawn, {exponent}, {n}", *held_out(X), 20


def of_files(data):
    """Yield the same of data in files."""
    yield from bpr_defaults.parts(data)
    for name, shares in (("ml100k", (0.5, 0.2, 0.1)), ("ml1m-implicit", (0.05,))):
        X = sum(click_parts(data, name)[:2])
        for share in shares:
            keep = np.random.default_rng(0).random(X.nnz) < share
            yield f"{name}, {share:.0%}", *cut(*(at[keep] for at in X.nonzero())), 20
    X = sum(click_parts(data, "gowalla")[:2])
    yield "Gowalla, a quarter", *cut(*X[::4].nonzero()), 20
    rows = frappe_split(data)[0]
    fields = rows[0].indices.reshape(-1, 10)[rows[1] > 0]
    yield "Frappe", *cut(fields[:, 0], fields[:, 1]), 20
    words = np.concatenate([np.array(line) for line in wikitext(data)])
    words = np.unique(words, return_inverse=True)[1]
    yield "words", *cut(words[:-1], words[1:]), 20


def cut(users, items):
    """Return what is known and what is held out of pairs of users with at least two items."""
    users, items = (np.unique(at, return_inverse=True)[1] for at in (users, items))
    X = sparse.csr_array((np.ones(len(users), np.float32), (users, items)))
    X.data[:] = 1
    return held_out(X[np.diff(X.indptr) > 1][:8000])


def main():
    parser = data_parser(__doc__)
    parser.add_argument("--quick", action="store_true", help="drawn data only")
    args = parser.parse_args()
    header = ("N", "M", *POWERS, *WEIGHTINGS, "popular", "power")
    print(f"{'NDCG':18}" + "".join(f"{name:>9.9}" for name in map(str, header)))
    for name, X, later, k in parts(args):
        X, later = sparse.csr_array(X), sparse.csr_array(later)
        means = [X.nnz / np.count_nonzero(X.sum(axis=axis)) for axis in (1, 0)]
        models = [ItemKNNRecommender(item_power=power) for power in POWERS]
        models += [ItemKNNRecommender(weighting=weighting) for weighting in WEIGHTINGS]
        row = [judge(model, X, later, k) for model in models]
        popular = np.nan
        if X.shape[1] <= MOST_ITEMS:
            popular = by_scores(np.broadcast_to(X.sum(axis=0), X.shape), X, later, k)
        row += [popular, models[len(POWERS)].item_power_]
        print(
            f"{name:18.18}"
            + "".join(f"{value:9.1f}" for value in means)
            + "".join(f"{value:9.4f}" for value in row),
            flush=True,
        )


if __name__ == "__main__":
    main()
