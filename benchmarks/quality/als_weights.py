"""How the default weight of unobserved pairs of ALSRecommender was chosen: NDCG by the weight.

Weights are multiples of the root of the density, and the default. Penalties are those that follow
by default. Data are those of ``knn_defaults.py``. No test part is read.

    python benchmarks/quality/als_weights.py --data DIR

``--quick`` takes drawn data only.
"""

import sys
from pathlib import Path

import knn_defaults
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from _data import data_parser
from als_defaults import judge
from scipy import sparse

from freqfm import ALSRecommender
from freqfm.estimators.recommenders.als import Objective
from freqfm.estimators.recommenders.interactions import Interactions

MULTIPLES = (0.1, 0.3, 1, 3)


def main():
    parser = data_parser(__doc__)
    parser.add_argument("--quick", action="store_true", help="drawn data only")
    header = ("N", "M", *map(str, MULTIPLES), "default", "multiple")
    print(f"{'NDCG':18}" + "".join(f"{name:>9}" for name in header))
    for name, X, later, k in knn_defaults.parts(parser.parse_args()):
        X, later = sparse.csr_array(X), sparse.csr_array(later)
        root = np.sqrt(X.nnz / np.prod(X.shape))
        default = Objective.of(ALSRecommender(), Interactions(X)).unobserved_weight
        weights = [multiple * root for multiple in MULTIPLES]
        models = [ALSRecommender(unobserved_weight=w, random_state=0) for w in (*weights, default)]
        row = [X.nnz / np.count_nonzero(X.sum(axis=axis)) for axis in (1, 0)]
        row = [f"{mean:9.1f}" for mean in row]
        row += [f"{judge(model, X, later, k):9.4f}" for model in models]
        print(f"{name:18.18}" + "".join(row) + f"{default / root:9.2f}", flush=True)


if __name__ == "__main__":
    main()
