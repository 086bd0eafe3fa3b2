"""Adap-tau (Chen et al., 2023): ``adap_tau.py``; the quality without parameters: ``untuned.py``."""

import numpy as np

from papers._shared import (
    NAMES,
    Claim,
    graded,
    kept_runs,
    load,
    load_runs,
    seeds,
    spread,
    write_table,
)

PAPER = "Adap-tau [4]_"
KEPT = {"adap_tau.jsonl": kept_runs()}
SCRIPT = "adap_tau.py"


def claims():
    """Yield the claims with our figures."""
    yield quality(load("untuned.json"))
    yield from temperatures(adap_tau_runs("valid"))
    yield normalisation(adap_tau_runs("valid"))
    yield noise(adap_tau_runs("noise"))


def write_tables():
    """Write the tables of both protocols."""
    adap_tau_table(adap_tau_runs("valid"))
    published_table(adap_tau_runs("all"))


def adap_tau_runs(experiment):
    """Return the runs of a protocol, "valid" or "all", by data set and setting.

    Of a setting that was run with several limits of epochs, the runs with the highest one count.
    """
    runs, limits = {}, {}
    records = load_runs("adap_tau.jsonl").values()
    for record in sorted(records, key=lambda record: record["key"]["seed"]):
        key = record["key"]
        if key["experiment"] == experiment and record["best"] is not None and not key["quick"]:
            settings = runs.setdefault(key["data_set"], {})
            settings.setdefault(key["setting"], []).append(record)
            of = key["data_set"], key["setting"]
            limits[of] = max(limits.get(of, 0), key["epochs"])
    for (data, setting), limit in limits.items():
        found = runs[data][setting]
        runs[data][setting] = [record for record in found if record["key"]["epochs"] == limit]
    return runs


def adap_tau_table(runs):
    """Write one row for each setting."""
    rows = []
    for data, settings in runs.items():
        of = NAMES[data]
        for setting, records in sorted(settings.items()):
            best = [record["best"] for record in records]
            ndcg = [b["test"]["ndcg"] for b in best]
            apart = f" ({spread(ndcg):.4f})" if len(best) > 1 else ""
            rows.append([
                of, setting, len(best), f"{np.mean([b['score'] for b in best]):.4f}",
                f"{np.mean([b['test']['recall'] for b in best]):.4f}",
                f"{np.mean(ndcg):.4f}{apart}",
                f"{np.mean([b['temperature'] for b in best]):.3f}",
                f"{np.mean([b['epoch'] for b in best]):.0f}",
                f"{np.mean([record['epochs'] for record in records]):.0f}",
            ])  # fmt: skip
            of = ""
    header = ["data", "temperature", "seeds", "valid NDCG@20", "test recall@20", "NDCG@20",
              "mean temperature", "best epoch", "epochs"]  # fmt: skip
    write_table("adap_tau", header, rows)


def published_table(runs):
    """Write one row for each setting of the published protocol, at its best epoch on test."""
    rows = []
    for data, settings in runs.items():
        of = NAMES[data]
        for setting in sorted(settings):
            best = settings[setting][0]["best"]
            recall, ndcg = (f"{best['test'][key]:.4f}" for key in ("recall", "ndcg"))
            rows.append([of, setting, recall, ndcg, f"{best['temperature']:.3f}", best["epoch"]])
            of = ""
    header = ["data", "temperature", "recall@20", "NDCG@20", "mean temperature", "epoch"]
    write_table("adap_tau_published", header, rows)


def quality(untuned):
    """Return the claim on the quality of matrix factorization, beside the untuned model."""
    claim = Claim(
        "Quality of MF (Gowalla, recall@20 / NDCG@20)", "0.1838 / 0.1506", "untuned.py"
    )  # fmt: skip
    runs = untuned["Gowalla"]["MFRecommender()"]
    recall, ndcg = ([run[key] for run in runs] for key in ("recall", "ndcg"))
    reached = np.mean(recall) >= 0.1838 and np.mean(ndcg) >= 0.1506
    return claim._replace(
        ours=f"{np.mean(recall):.4f} / {np.mean(ndcg):.4f} without parameters ({seeds(len(runs))}, "
        f"{spread(recall):.4f} and {spread(ndcg):.4f} apart); with fixed temperatures and BSL, "
        f"d = 128",
        verdict="reached, otherwise" if reached else "not reached",
    )


def temperatures(runs):
    """Yield the claims on temperatures per user, and on the one of the data."""
    per_user, search, per_user_ratios, search_ratios = [], [], {}, {}
    for data, settings in runs.items():
        grid = fixed_temperatures(settings)
        dataset = settings.get("tau0")
        forms = {name: found for name, found in settings.items() if name.startswith("tau_u")}
        if dataset and grid:
            name = best_on_validation(grid)
            mean, text, n = compared(dataset, grid[name])
            search.append(f"{text} of the best of {len(grid)} ({name}; {NAMES[data]}, {n})")
            search_ratios[NAMES[data]] = mean
        if dataset and forms:
            name = best_on_validation(forms)
            mean, text, n = compared(forms[name], dataset)
            per_user.append(f"{text} of tau0's NDCG ({name[7:]}; {NAMES[data]}, {n})")
            per_user_ratios[NAMES[data]] = mean
    yield Claim(
        "Temperatures per user are better than one", "1.05 recall, 1.09 NDCG", SCRIPT,
        "; ".join(per_user), graded(per_user_ratios, 1.02, 1.0),
    )  # fmt: skip
    yield Claim(
        "No search of the temperature is needed", "0.996 of a search", SCRIPT,
        "; ".join(search), graded(search_ratios, 0.98, 0.95),
    )  # fmt: skip


def normalisation(runs):
    """Return the claim on cosines against dot products, each at its best on validation."""
    found, ratios = [], {}
    for data, settings in runs.items():
        grid = fixed_temperatures(settings)
        if grid and "dot product" in settings:
            name = best_on_validation(grid)
            ratios[NAMES[data]], text, n = compared(grid[name], settings["dot product"])
            found.append(f"{text} of dot products' NDCG ({name}; {NAMES[data]}, {n})")
    return Claim(
        "Cosines are better than dot products", "1.09 recall, 1.02 NDCG", SCRIPT,
        "; ".join(found), graded(ratios, 1.02, 1.0),
    )  # fmt: skip


def noise(runs):
    """Return the claim on users with false positives, at the best epoch of each form."""
    found, lowest = [], {}
    for data, settings in runs.items():
        correlations = [of[0]["best"]["over_groups"] for of in settings.values()]
        lowest[NAMES[data]] = min(correlations)
        found.append(f"{min(correlations):.1f} ({NAMES[data]}, {seeds(1)})")
    return Claim(
        "Temperatures rise with the share of false positives", "figure 6", f"{SCRIPT} --noise",
        "Spearman's correlation over four groups, all forms: " * bool(found) + "; ".join(found),
        graded(lowest, 1.0, 0.5),
    )  # fmt: skip


def fixed_temperatures(settings):
    """Return the settings with a temperature of the grid."""
    return {name: runs for name, runs in settings.items() if name.startswith("tau 0.")}


def best_on_validation(settings):
    """Return the name of the setting whose first seed is best on validation."""
    return max(settings, key=lambda name: settings[name][0]["best"]["score"])


def compared(a, b):
    """Return the mean of the ratios of NDCG by seed, the mean with its range, and the seeds."""
    ratios = [
        one["best"]["test"]["ndcg"] / two["best"]["test"]["ndcg"]
        for one, two in zip(a, b, strict=False)
    ]
    range_ = f" ({min(ratios):.3f} to {max(ratios):.3f})" if len(ratios) > 1 else ""
    return np.mean(ratios), f"{np.mean(ratios):.3f}{range_}", seeds(len(ratios))
