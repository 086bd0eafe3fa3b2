"""Write what finished runs say about the claims of Adap-tau and PRISM.

    python docs/figures/claims.py results/prism.jsonl results/adap_tau.jsonl
    python docs/figures/claims.py

Files that are named are kept here first, without their epochs, as ``prism.jsonl`` or
``adap_tau.jsonl``; runs that are here already are replaced. Then the tables ``prism.rst``,
``adap_tau.rst`` and ``adap_tau_published.rst`` are written, and the two papers' rows of
``claims.csv``. The other rows of ``claims.csv`` are written by hand.
"""

import csv
import json
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "reproduce"))
from _tables import csv_table
from prism import DECAYS, GAMMA, best_rate, summarise

FOLDER = Path(__file__).parent

NAMES = {
    "ml1m": "MovieLens-1M", "gowalla": "Gowalla",
    "bpr": "BPR", "softmax": "softmax", "directau": "DirectAU", "mawu": "MAWU",
}  # fmt: skip

# After a loss: vectors pass layers.
LAYERS = ", non-linear"


def name_of(record):
    """Return what identifies a run."""
    return json.dumps(record["key"], sort_keys=True)


def read(path):
    """Return the runs of a file, by name."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {name_of(record): record for record in map(json.loads, lines)}


def keep(path):
    """Add the runs of a results file to those that are kept here, without their epochs."""
    kept = FOLDER / ("prism.jsonl" if "prism" in path.name else "adap_tau.jsonl")
    records = read(kept) | read(path)
    for record in records.values():
        record.pop("looks", None)
    kept.write_text("".join(json.dumps(records[name]) + "\n" for name in sorted(records)))


def prism_summaries():
    """Return the means over seeds by data set, loss and variant, as ``prism.py`` shows them.

    DirectAU with another weight than the default of ``prism.py`` counts as another loss, and so do
    vectors that pass layers.
    """
    runs = {}
    records = read(FOLDER / "prism.jsonl").values()
    for record in sorted(records, key=lambda record: record["key"]["seed"]):
        key = record["key"]
        gamma = key.get("gamma", GAMMA)
        loss = NAMES[key["loss"]] + (f" with gamma={gamma:g}" if gamma != GAMMA else "")
        loss += LAYERS if "backbone" in key else ""
        variants = runs.setdefault((NAMES[key["data"]], loss), {})
        if record["best"] is not None and not key["quick"]:
            variants.setdefault(key["variant"], {}).setdefault(key["rate"], []).append(record)
    return {
        of: {
            variant: {
                **summarise(by_rate),
                "seeds": len(by_rate[best_rate(by_rate)]),
                "rates": sorted(by_rate),
            }
            for variant, by_rate in variants.items()
        }
        for of, variants in runs.items()
    }


def write_table(name, header, rows):
    """Write a table of the page of results."""
    lines = csv_table(header, rows) if rows else ["Not run.", ""]
    (FOLDER / f"{name}.rst").write_text("\n".join(lines))


def prism_table(summaries):
    """Write one row for each loss and variant."""
    header = ["data, loss", "variant", "rate", "of", "seeds", "NDCG@20", "popular", "neutral",
              "unpopular", "Spearman", "best epoch", "epochs"]  # fmt: skip
    rows = []
    for (data, loss), variants in summaries.items():
        of = f"{data}, {loss}"
        for variant, s in sorted(variants.items()):
            spread = f" ({s['spread']:.4f})" if s["seeds"] > 1 else ""
            parts = [f"{s[f'ndcg_{part}']:.4f}" for part in ("popular", "neutral", "unpopular")]
            rows.append([
                of, variant, f"{s['rate']:g}", ", ".join(f"{rate:g}" for rate in s["rates"]),
                s["seeds"], f"{s['ndcg']:.4f}{spread}", *parts,
                f"{s['correlation']:.2f}", f"{s['epoch']:.0f}", s["epochs"],
            ])  # fmt: skip
            of = ""
    write_table("prism", header, rows)


def graded(ratios, holds, weaker):
    """Return the verdicts on ratios, by what they are of, that should reach a bound."""
    if not ratios:
        return "not run"
    grades = {}
    for of, ratio in ratios.items():
        less = "holds weaker" if ratio >= weaker else "does not hold"
        grades.setdefault("holds" if ratio >= holds else less, []).append(of)
    return "; ".join(f"{grade}: {', '.join(of)}" for grade, of in grades.items())


def short(of):
    """Return data and loss as verdicts name them."""
    return f"{of[1]} ({of[0]})"


def described(of, n_seeds):
    """Return data, loss and seeds of a figure."""
    return f"{', '.join(of)}, {n_seeds} seed{'s' * (n_seeds > 1)}"


def pairs_with_decay(summaries, layers):
    """Yield what a pair is of, PRISM, and the decay that is best on validation with its name."""
    for of, variants in summaries.items():
        grid = {f"decay {decay}" for decay in DECAYS} & variants.keys()
        if of[1].endswith(LAYERS) == layers and "PRISM" in variants and grid - {"decay 0"}:
            name = max(grid, key=lambda name: variants[name]["valid_of_first_seed"])
            yield of, variants["PRISM"], variants[name], name


def against_decay(summaries):
    """Return PRISM's NDCG and epochs beside those of weight decay."""
    quality, epochs, ratios, shorter = [], [], {}, {}
    for of, ours, best, name in pairs_with_decay(summaries, layers=False):
        text = described(of, min(ours["seeds"], best["seeds"]))
        ratios[short(of)] = ours["ndcg"] / best["ndcg"]
        shorter[short(of)] = best["epoch"] / ours["epoch"]
        quality.append(f"{ours['ndcg'] / best['ndcg']:.3f} of {name}'s NDCG ({text})")
        epochs.append(f"{ours['epoch']:.0f} to the best, {name} {best['epoch']:.0f} ({text})")
    return {
        "Replaces a tuned weight decay": (
            quality and ["on made data yes", *quality],
            graded(ratios, 0.99, 0.95),
        ),
        "Fewer epochs than with weight decay": (epochs, graded(shorter, 1.33, 1.05)),
    }


def against_decay_with_layers(summaries):
    """Return PRISM's NDCG beside that of weight decay where vectors pass layers."""
    texts, ratios = [], {}
    for of, ours, best, name in pairs_with_decay(summaries, layers=True):
        ratio = ours["ndcg"] / best["ndcg"]
        texts.append(
            f"{ratio:.3f} of {name}'s NDCG ({described(of, min(ours['seeds'], best['seeds']))})"
        )
        ratios[short(of)] = 1 / ratio if "softmax" in of[1] else ratio
    return {
        "With layers better than a tuned weight decay, worse with softmax": (
            texts,
            graded(ratios, 1.03, 1.0),
        )
    }


def popularity_in_lengths(summaries):
    """Return the correlations of lengths and counts with and without decay."""
    texts, met = [], {}
    for of, variants in summaries.items():
        if {"decay 1e-6", "decay 0", "batched 1e-6"} <= variants.keys():
            names = ("decay 1e-6", "decay 0", "batched 1e-6")
            decay, none, batched = (variants[name]["correlation"] for name in names)
            text = described(of, min(variants[name]["seeds"] for name in names))
            texts.append(
                f"Spearman {decay:.2f} with 1e-6, {none:.2f} without, {batched:.2f} with 1e-6 in "
                f"batches ({text})"
            )
            met[short(of)] = float(decay >= 0.8 and max(none, batched) <= 0.5)
    return {
        "Decay of whole tables makes lengths follow popularity, that of batches does not": (
            texts,
            graded(met, 1, 0.5),
        )
    }


def trade(summaries):
    """Return what smaller alphas do to the ratio of unpopular and popular items' NDCG."""
    texts, best = [], {}
    for of, variants in summaries.items():
        found = {float(name[6:] or 1): s for name, s in variants.items() if name[:5] == "PRISM"}
        if len(found) < 2 or 1.0 not in found:
            continue
        shares = {
            alpha: s["ndcg_unpopular"] / s["ndcg_popular"] / found[1.0]["ndcg_unpopular"]
            * found[1.0]["ndcg_popular"]
            for alpha, s in found.items()
        }  # fmt: skip
        for alpha in sorted(found.keys() - {1.0}, reverse=True):
            change = found[alpha]["ndcg"] / found[1.0]["ndcg"] - 1
            texts.append(
                f"alpha {alpha:g}: ratio {shares[alpha] - 1:+.0%}, NDCG {change:+.1%} "
                f"({described(of, found[alpha]['seeds'])})"
            )
        # An NDCG that falls by more than 3 % is no trade.
        kept = [a for a, s in found.items() if s["ndcg"] >= 0.97 * found[1.0]["ndcg"]]
        best[of[1]] = max(shares[alpha] for alpha in kept)
    return {"alpha trades popular for unpopular items": (texts, graded(best, 1.25, 1.05))}


def adap_tau_runs(experiment):
    """Return the runs of a protocol, "valid" or "all", by data set and setting.

    Of a setting that was run with several limits of epochs, the runs with the highest one count.
    """
    runs, limits = {}, {}
    records = read(FOLDER / "adap_tau.jsonl").values()
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
            spread = f" ({np.ptp(ndcg):.4f})" if len(best) > 1 else ""
            rows.append([
                of, setting, len(best), f"{np.mean([b['score'] for b in best]):.4f}",
                f"{np.mean([b['test']['recall'] for b in best]):.4f}",
                f"{np.mean(ndcg):.4f}{spread}",
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


def adap_tau_claims(runs):
    """Return what the runs say about the temperatures, and the verdicts."""
    per_user, search, per_user_ratios, search_ratios = [], [], {}, {}

    def ratio(a, b):
        pairs = list(zip(a, b, strict=False))
        found = [one["best"]["test"]["ndcg"] / two["best"]["test"]["ndcg"] for one, two in pairs]
        low, high = min(found), max(found)
        seeds = f"{len(found)} seed{'s' * (len(found) > 1)}"
        range_ = f" ({low:.3f} to {high:.3f})" if len(found) > 1 else ""
        return np.mean(found), f"{np.mean(found):.3f}{range_}", seeds

    for data, settings in runs.items():
        grid = {name: found for name, found in settings.items() if name.startswith("tau 0.")}
        dataset = settings.get("tau0")
        forms = {name: found for name, found in settings.items() if name.startswith("tau_u")}
        if dataset and grid:
            name = max(grid, key=lambda name: grid[name][0]["best"]["score"])
            mean, text, seeds = ratio(dataset, grid[name])
            search.append(f"{text} of the best of {len(grid)} ({name}; {NAMES[data]}, {seeds})")
            search_ratios[NAMES[data]] = mean
        if dataset and forms:
            # The form that validation prefers.
            name = max(forms, key=lambda name: forms[name][0]["best"]["score"])
            mean, text, seeds = ratio(forms[name], dataset)
            per_user.append(f"{text} of tau0's NDCG ({name[7:]}; {NAMES[data]}, {seeds})")
            per_user_ratios[NAMES[data]] = mean
    return {
        "Temperatures per user are better than one": (
            per_user,
            graded(per_user_ratios, 1.02, 1.0),
        ),
        "No search of the temperature is needed": (search, graded(search_ratios, 0.98, 0.95)),
    }


def write_claims(claims):
    """Replace our figures and the verdicts of these claims, where there are runs."""
    with (FOLDER / "claims.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    for row in rows:
        ours, verdict = claims.get(row[1], ((), ""))
        if ours:
            row[3:] = "; ".join(ours), verdict
    with (FOLDER / "claims.csv").open("w", newline="") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(rows)


if __name__ == "__main__":
    for path in sys.argv[1:]:
        keep(Path(path))
    summaries, runs = prism_summaries(), adap_tau_runs("valid")
    prism_table(summaries)
    adap_tau_table(runs)
    published_table(adap_tau_runs("all"))
    claims = against_decay(summaries) | against_decay_with_layers(summaries)
    claims |= popularity_in_lengths(summaries) | trade(summaries)
    write_claims(claims | adap_tau_claims(runs))
