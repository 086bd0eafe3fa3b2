"""How the defaults of DeepFMClassifier were chosen: on validation rows, one change at a time.

Around the defaults of ``fields=None``, one setting at a time is changed; ``FMClassifier()`` stands
beside. Frappe: four fifths of the rows of the validation file to train, a fifth to validate.
MovieLens-1M ratings: label rating > 3, 80/10/10, the validation part. No test rows are read. Drawn
clicks depend on pairs of four fields, and in "triples" on three of them together; the last quarter
validates, and a tower on these fields stands beside. The table shows AUC and log loss, means over
seeds, how far the log losses of seeds are apart, and the CPU seconds of a fit.

    python benchmarks/quality/deepfm_defaults.py --data DIR
    python benchmarks/quality/deepfm_defaults.py --data DIR --sets Frappe --seeds 3
"""

import sys
import time
import warnings
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from _data import data_parser, movielens_split, require_data
from scipy.special import expit, logit
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.model_selection import train_test_split

from freqfm import DeepFMClassifier, FMClassifier
from freqfm.datasets import load_libfm, make_clicks
from freqfm.initializers import Normal
from freqfm.optimizers import Adam

CHANGES = [
    {},
    {"alpha_layers": 10.0},
    {"alpha_layers": 100.0},
    {"dropout": 0.7},
    {"hidden_layer_sizes": (32,)},
    {"hidden_layer_sizes": (128,)},
    {"layer_optimizer": Adam(0.001)},
    {"hidden_layer_sizes": (64, 64), "dropout": 0.0, "alpha_layers": 0.0},
]


def frappe(data):
    """Return (X, y) of the rows to train on and to validate on."""
    X, y = load_libfm([data / "frappe" / "frappe.validation.libfm.gz"])
    parts = train_test_split(np.arange(len(y)), test_size=0.2, random_state=0)
    return [(X[rows], (y[rows] > 0).astype(int)) for rows in parts]


def movielens(data):
    """Return (X, y) of the rows to train on and to validate on."""
    return movielens_split(data, 0)[:2]


def drawn(effect):
    """Return the same of drawn clicks, with an effect of the parity of three fields' tokens."""
    X, _, model = make_clicks(60_000, N_TOKENS, return_model=True, random_state=1)
    rng = np.random.default_rng(1)
    bits = rng.integers(0, 2, X.shape[1])[X.indices.reshape(-1, 4)[:, 1:]]
    scores = logit(model.probabilities) + effect * (2 * (bits.sum(axis=1) % 2) - 1)
    y = (rng.random(len(scores)) < expit(scores)).astype(int)
    return [(X[:45_000], y[:45_000]), (X[45_000:], y[45_000:])]


N_TOKENS = (5000, 2000, 200, 20)
ON_FIELDS = {"fields": np.repeat(range(4), N_TOKENS), "init": Normal(0.1), "dropout": 0.2}
DRAWN = {"pairs": lambda _: drawn(0.0), "triples": lambda _: drawn(1.5)}
SETS = {"Frappe": frappe, "MovieLens": movielens, **DRAWN}


def judge(model, parts, n_seeds):
    """Return the mean AUC and log loss over seeds, the spread of the log loss, and seconds."""
    (X, y), (X_valid, y_valid) = parts
    found, start = [], time.process_time()
    for seed in range(n_seeds):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.set_params(random_state=seed).fit(X, y)
        p = model.predict_proba(X_valid)[:, 1]
        found.append((roc_auc_score(y_valid, p), log_loss(y_valid, p)))
    seconds = (time.process_time() - start) / n_seeds
    return (*np.mean(found, axis=0), np.ptp(found, axis=0)[1], seconds)


def main():
    parser = data_parser(__doc__)
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--seeds", type=int, default=1)
    args = parser.parse_args()
    models = {"FMClassifier()": FMClassifier()}
    models |= {str(change or "the defaults"): DeepFMClassifier(**change) for change in CHANGES}
    for name in args.sets:
        parts = SETS[name](require_data(args))
        print(f"\n{name + ', validation':72}{'AUC':>8}{'log loss':>10}{'spread':>8}{'s':>7}")
        more = (
            {"a tower on fields": DeepFMClassifier(**ON_FIELDS)}
            if name in ("pairs", "triples")
            else {}
        )
        for setting, model in (models | more).items():
            auc, loss, spread, seconds = judge(model, parts, args.seeds)
            print(f"{setting:72}{auc:8.4f}{loss:10.4f}{spread:8.4f}{seconds:7.1f}", flush=True)


if __name__ == "__main__":
    main()
