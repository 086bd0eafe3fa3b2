"""PRISM (Loveland et al., 2025): ``prism.py``."""

import sys
from pathlib import Path

from papers._shared import (
    NAMES,
    Claim,
    graded,
    kept_runs,
    load_runs,
    seeds,
    write_table,
)

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks" / "reproduce"))
from prism import DEBIASING, DECAYS, GAMMA, best_rate, summarise

PAPER = "PRISM [5]_"
KEPT = {"prism.jsonl": kept_runs()}
SCRIPT = "prism.py"
# After a loss: vectors pass layers.
LAYERS = ", non-linear"


def claims():
    """Yield the claims with our figures."""
    summaries = prism_summaries()
    yield from against_decay(summaries)
    yield against_decay_with_layers(summaries)
    yield popularity_in_lengths(summaries)
    yield trade(summaries)
    yield from beside_debiasing(summaries)


def write_tables():
    """Write one row for each loss and variant."""
    summaries = prism_summaries()
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


def prism_summaries():
    """Return the means over seeds by data set, loss and variant, as ``prism.py`` shows them.

    DirectAU with another weight than the default of ``prism.py`` counts as another loss, and so do
    vectors that pass layers.
    """
    runs = {}
    records = load_runs("prism.jsonl").values()
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


def short(of):
    """Return data and loss as verdicts name them."""
    return f"{of[1]} ({of[0]})"


def described(of, n_seeds):
    """Return data, loss and seeds of a figure."""
    return f"{', '.join(of)}, {seeds(n_seeds)}"


def pairs_with_decay(summaries, layers):
    """Yield what a pair is of, PRISM, and the decay that is best on validation with its name."""
    for of, variants in summaries.items():
        grid = {f"decay {decay}" for decay in DECAYS} & variants.keys()
        if of[1].endswith(LAYERS) == layers and "PRISM" in variants and grid - {"decay 0"}:
            name = max(grid, key=lambda name: variants[name]["valid_of_first_seed"])
            yield of, variants["PRISM"], variants[name], name


def against_decay(summaries):
    """Yield the claims on PRISM's NDCG and epochs beside those of weight decay."""
    quality, epochs, ratios, shorter = [], [], {}, {}
    for of, ours, best, name in pairs_with_decay(summaries, layers=False):
        text = described(of, min(ours["seeds"], best["seeds"]))
        ratios[short(of)] = ours["ndcg"] / best["ndcg"]
        shorter[short(of)] = best["epoch"] / ours["epoch"]
        quality.append(f"{ours['ndcg'] / best['ndcg']:.3f} of {name}'s NDCG ({text})")
        epochs.append(f"{ours['epoch']:.0f} to the best, {name} {best['epoch']:.0f} ({text})")
    yield Claim(
        "Replaces a tuned weight decay", "mean +0.12 % NDCG", SCRIPT,
        "; ".join(["on synthetic data yes", *quality]) if quality else "",
        graded(ratios, 0.99, 0.95),
    )  # fmt: skip
    yield Claim(
        "Fewer epochs than with weight decay", "-38.5 %", SCRIPT,
        "; ".join(epochs), graded(shorter, 1.33, 1.05),
    )  # fmt: skip


def against_decay_with_layers(summaries):
    """Return the claim on PRISM beside weight decay where vectors pass layers."""
    texts, ratios = [], {}
    for of, ours, best, name in pairs_with_decay(summaries, layers=True):
        ratio = ours["ndcg"] / best["ndcg"]
        texts.append(
            f"{ratio:.3f} of {name}'s NDCG ({described(of, min(ours['seeds'], best['seeds']))})"
        )
        ratios[short(of)] = 1 / ratio if "softmax" in of[1] else ratio
    return Claim(
        "With layers better than a tuned weight decay, worse with softmax",
        "mean +8.59 % NDCG with DirectAU and MAWU, -21.61 % with softmax", SCRIPT,
        "; ".join(texts), graded(ratios, 1.03, 1.0),
    )  # fmt: skip


def popularity_in_lengths(summaries):
    """Return the claim on correlations of lengths and counts with and without decay.

    Decay of batches was not run with every loss.
    """
    texts, met = [], {}
    named = {
        "decay 1e-6": "with 1e-6",
        "decay 0": "without",
        "batched 1e-6": "with 1e-6 in batches",
    }
    for of, variants in summaries.items():
        if of[1].endswith(LAYERS) or not {"decay 1e-6", "decay 0"} <= variants.keys():
            continue
        found = {name: variants[name] for name in named if name in variants}
        decay, *others = (s["correlation"] for s in found.values())
        listed = ", ".join(f"{s['correlation']:.2f} {named[name]}" for name, s in found.items())
        n_seeds = min(s["seeds"] for s in found.values())
        texts.append(f"Spearman {listed} ({described(of, n_seeds)})")
        met[short(of)] = float(decay >= 0.8 and max(others) <= 0.5)
    return Claim(
        "Decay of whole tables makes lengths follow popularity, that of batches does not",
        "figure 2", SCRIPT, "; ".join(texts), graded(met, 1, 0.5),
    )  # fmt: skip


def trade(summaries):
    """Return the claim on alpha: what it does to the ratio of unpopular and popular NDCG."""
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
    return Claim(
        "alpha trades popular for unpopular items", "ratio of NDCG +76 %", SCRIPT,
        "; ".join(texts), graded(best, 1.25, 1.05),
    )  # fmt: skip


def beside_debiasing(summaries):
    """Yield the claims on PRISM with DirectAU beside BPR with remedies for the popularity bias."""
    texts, fairer, better = [], {}, {}
    for (data, loss), variants in summaries.items():
        found = {name: s for name, s in variants.items() if name.startswith(DEBIASING)}
        if not found:
            continue
        directau = {
            of[1]: variants["PRISM"]
            for of, variants in summaries.items()
            if of[0] == data and "DirectAU" in of[1] and LAYERS not in of[1]
        }
        name = max(directau, key=lambda name: directau[name]["valid"])
        decays = [s for name, s in variants.items() if name.startswith("decay")]
        others = {loss: max(decays, key=lambda s: s["valid"]), **found}
        shown = {f"PRISM, {name}": directau[name], **others}
        share = {n: s["ndcg_unpopular"] / s["ndcg_popular"] for n, s in shown.items()}
        listed = (f"{n} {share[n]:.3f} and {s['ndcg']:.4f}" for n, s in shown.items())
        texts.append(f"{'; '.join(listed)} ({data})")
        ours, *theirs = share.values()
        fairer[data] = ours / max(theirs)
        better[data] = directau[name]["ndcg"] / max(s["ndcg"] for s in others.values())
    yield Claim(
        "With DirectAU a larger share of unpopular items than BPR with IPL, ReSN or MACR has",
        "figure 9", SCRIPT,
        "; ".join(["ratio of unpopular to popular NDCG, and NDCG", *texts]) if texts else "",
        graded(fairer, 1.25, 1.0),
    )  # fmt: skip
    yield Claim(
        "With DirectAU a better NDCG than these", "figure 9", SCRIPT,
        "the same runs" if texts else "", graded(better, 1.0, 0.97),
    )  # fmt: skip
