"""Epochs with and without context: CPU seconds of one thread, medians of alternating epochs.

Data are the training rows of Frappe (``benchmarks/quality/context.py``), whose queries are distinct
users in a context, and ratings above 3 of 2,000 users of MovieLens-1M with three columns of context
drawn at random, so that each rating is a query.

    python benchmarks/speed/context_speed.py --data DIR
"""

import sys
import time
from pathlib import Path

import numpy as np
from scipy import sparse

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "quality"))
from _data import data_parser, movielens_ratings, require_data
from _epochs import Epochs
from context import Part, load

from freqfm import MFRecommender
from freqfm.backbones import Context

LOSSES = {"bsl": 128, "softmax": 64, "bpr": 64, "ccl": 64}
N_USERS, SIZES = 2000, (4, 7, 24)


def frappe(data):
    """Return users, items and contexts of the interactions: all rows of the first split."""
    rows = load(data)
    rows = rows[np.random.default_rng(0).permutation(len(rows))][: int(0.7 * len(rows))]
    part = Part(rows, rows)
    return part.users, part.items, part.context.toarray()


def movielens(data):
    """Return the same of MovieLens-1M, with random contexts."""
    users, items, ratings = movielens_ratings(data)
    some = (ratings > 3) & (users < N_USERS)
    rng = np.random.default_rng(0)
    contexts = [np.eye(size)[rng.integers(0, size, some.sum())] for size in SIZES]
    return users[some], np.unique(items[some], return_inverse=True)[1], np.hstack(contexts)


def matrices(users, items, contexts):
    """Return the interactions of users, those of queries, and the backbone of these."""
    rows = np.column_stack([users, contexts])
    distinct, queries = np.unique(rows, axis=0, return_inverse=True)
    found = []
    for codes in users, queries.ravel():
        X = sparse.csr_array((np.ones(len(items), np.float32), (codes, items)))
        X.sum_duplicates()
        found.append(X)
    context = sparse.csr_array(distinct[:, 1:].astype(np.float32))
    return *found, Context(context=context, users=distinct[:, 0].astype(np.int64))


def main():
    parser = data_parser(__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    for read in frappe, movielens:
        X, queries, backbone = matrices(*read(require_data(options)))
        print(f"{read.__name__}: {X.nnz} interactions, {queries.nnz} of {queries.shape[0]} queries")
        for loss, width in LOSSES.items():
            model = MFRecommender(width, loss=loss, random_state=0, n_jobs=1)
            with_context = MFRecommender(**model.get_params(False) | {"backbone": backbone})
            epochs = Epochs(model, X), Epochs(with_context, queries)
            seconds = []
            for _ in range(options.repeats + 1):
                for epoch in epochs:
                    start = time.process_time()
                    epoch()
                    seconds.append(time.process_time() - start)
            # The first epochs compile.
            plain, context = np.median(np.reshape(seconds, (-1, 2))[1:], axis=0)
            print(f"  {loss:8} {plain:.4f} s, {context:.4f} s, ratio {context / plain:.2f}")


if __name__ == "__main__":
    main()
