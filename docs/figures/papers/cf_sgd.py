"""CF-SGD (Li et al., 2022): ``cf_sgd.py``, ``deepfm.py`` and ``word2vec.py``."""

import numpy as np

from papers._shared import Claim, grade, kept_file, kept_runs, load, load_runs, spread

PAPER = "CF-SGD [1]_"


def _tables(results):
    """Return the means over seeds of ``cf_sgd.json``."""
    return results["tables"]


def _test_aucs(results):
    """Return the test AUC of each optimizer and seed of ``deepfm.json``."""
    return {name: [run["test_auc"] for run in runs] for name, runs in results["movielens"].items()}


def _last_losses(record):
    """Return a run of ``word2vec.jsonl`` with its held-out loss after the last epoch."""
    return {"key": record["key"], "valid": record["valid"][-1:]}


KEPT = {
    "cf_sgd.json": kept_file(_tables),
    "cf_sgd_linear.json": kept_file(_tables),
    "deepfm.json": kept_file(_test_aucs),
    "word2vec.jsonl": kept_runs(_last_losses),
}
# The rates that ``word2vec.py`` takes from the paper.
PAPER_RATES = (
    "CFSGD(learning_rate=1.0, max_step=0.05)",
    "SGD(learning_rate=1.0)",
    "Adam(learning_rate=0.025)",
)


def claims():
    """Yield the claims with our figures."""
    yield from fm_claims(load("cf_sgd.json"))
    yield linear_claim(load("cf_sgd_linear.json"))
    yield deepfm_claim(load("deepfm.json"))
    by_model = word2vec_losses(load_runs("word2vec.jsonl").values())
    for architecture, name in (("cbow", "CBOW"), ("skip_gram", "skip-gram")):
        yield word2vec_claim(name, by_model.get(architecture))


def fm_claims(tables):
    """Yield the claims on factorization machines."""
    peak = Claim(
        "Peak test AUC of CF-SGD equals that of Adam and Adagrad (FM, MovieLens-1M ratings)",
        "all about 0.810", "cf_sgd.py",
    )  # fmt: skip
    sooner = Claim("CF-SGD reaches its peak much sooner than SGD", "figure 2", "cf_sgd.py")
    moments = Claim(
        "Adagrad's and Adam's second moments follow how often tokens occur",
        "correlation rises to about 0.9", "cf_sgd.py",
    )  # fmt: skip
    state = Claim(
        "One number of state per token, where Adam has two per weight", "N against 2 N d",
        "cf_sgd.py",
    )  # fmt: skip
    if tables is None:
        yield from (peak, sooner, moments, state)
        return
    ours, adam, adagrad = (tables[name] for name in ("CF-SGD", "Adam", "Adagrad"))
    aucs = [of["test_auc"][0] for of in (ours, adam, adagrad)]
    apart = max(of["test_auc"][1] for of in (ours, adam, adagrad))
    yield peak._replace(
        ours="{:.4f}; Adam {:.4f}, Adagrad {:.4f}; ".format(*aucs)
        + f"seeds spread by {apart:.3f}, as their splits do",
        verdict=grade(aucs[0] - max(aucs[1:]), -0.002, -0.005),
    )
    epochs = [tables[name]["epochs_to_0.995"][0] for name in ("CF-SGD", "SGD")]
    yield sooner._replace(
        ours="{:.0f} epochs against {:.0f} to 0.995 of it, each with its best rate".format(*epochs),
        verdict=grade(epochs[1] / epochs[0], 2, 1.1),
    )
    correlations = [of["correlation_after_5"] for of in (adagrad, adam)]
    yield moments._replace(
        ours="{:.3f} and {:.3f} after 5 epochs".format(*correlations),
        verdict=grade(min(correlations), 0.85, 0.7),
    )
    sizes = [of["state_bytes_per_token"] for of in (ours, adam)]
    yield state._replace(
        ours="{:.0f} bytes against {:.0f}, d = 64; ".format(*sizes)
        + "at equal frequencies FA-SGD is SGD, bit by bit",
        verdict=grade(sizes[1] / sizes[0], 100, 10),
    )


def linear_claim(tables):
    """Return the claim on models whose linear weights start at random."""
    claim = Claim(
        "Also with linear weights that start from N(0, 1), as in the code behind the paper, CF-SGD "
        "reaches its peak sooner", "figure 2", "cf_sgd.py --linear-scale 1",
    )  # fmt: skip
    if tables is None:
        return claim
    names = ("CF-SGD", "SGD", "Adam")
    aucs = [tables[name]["test_auc"][0] for name in names]
    epochs = [tables[name]["epochs_to_0.995"][0] for name in names]
    return claim._replace(
        ours="AUC {:.4f}; SGD {:.4f}, Adam {:.4f}; ".format(*aucs)
        + "{:.0f}, {:.0f} and {:.0f} epochs to 0.995 of the peak".format(*epochs),
        verdict=grade(epochs[1] / epochs[0], 2, 1.1),
    )


def deepfm_claim(aucs):
    """Return the claim on DeepFM."""
    claim = Claim("The same with DeepFM", "figure 2", "deepfm.py")
    if aucs is None:
        return claim
    ours, adam, sgd = (np.array(aucs[name]) for name in ("CF-SGD", "Adam", "SGD"))
    ahead = int((ours > sgd).sum())
    return claim._replace(
        ours=f"AUC {ours.mean():.4f}; Adam {adam.mean():.4f}, SGD {sgd.mean():.4f}, each with its "
        f"best rate; ahead of SGD in {ahead} of {len(ours)} seeds",
        verdict=f"against Adam {_yes(ours.mean() >= adam.mean() - 0.002)}, "
        f"against SGD {_yes(ahead == len(ours))}",
    )


def _yes(true):
    return "yes" if true else "no"


def word2vec_losses(runs):
    """Return the losses of all seeds by architecture, and by optimizer and rate.

    Of runs with several numbers of epochs, those with the most count.
    """
    losses, longest = {}, max((run["key"]["epochs"] for run in runs), default=0)
    runs = [run for run in runs if run["key"]["epochs"] == longest]
    for run in sorted(runs, key=lambda run: run["key"]["seed"]):
        of = losses.setdefault(run["key"]["architecture"], {})
        of.setdefault(run["key"]["optimizer"], []).append(run["valid"][0])
    return losses


def word2vec_claim(name, losses):
    """Return the claim on word vectors of one architecture."""
    claim = Claim(f"The same with word2vec, {name}", "figure 5", "word2vec.py")
    if losses is None:
        return claim
    paper = [losses[rate] for rate in PAPER_RATES]
    best = [searched(losses, rate.split("(")[0]) for rate in PAPER_RATES]
    apart = [spread(of) for of in best]

    def ahead(of_rates):
        ours, sgd, _ = of_rates
        return np.mean(sgd) - np.mean(ours) > max(spread(ours), spread(sgd))

    verdict = "only at the paper's rates" if ahead(paper) else "does not hold"
    return claim._replace(
        ours="held-out loss {:.3f}; SGD {:.3f}, Adam {:.3f}, ".format(*map(np.mean, best))
        + f"spreads {min(apart):.3f} to {max(apart):.3f}; "
        + "at the paper's rates {:.3f}, {:.3f}, {:.3f}".format(*map(np.mean, paper)),
        verdict="holds" if ahead(best) and ahead(paper) else verdict,
    )


def searched(losses, optimizer):
    """Return the losses at the best rate of an optimizer, by seed.

    Rates are searched on the first seed, and only the best is trained with the others.
    """
    return next(
        of
        for rate, of in losses.items()
        if rate.startswith(f"{optimizer}(") and rate not in PAPER_RATES and len(of) > 1
    )
