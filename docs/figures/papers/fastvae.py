"""FastVAE (Chen et al., 2022): ``fastvae.py``, ``fastvae_divergence.py`` and ``vae_speed.py``."""

import numpy as np

from papers._shared import NAMES, Claim, graded, kept_file, kept_runs, load, load_runs, seeds

PAPER = "FastVAE [3]_"


def _of_test(record):
    """Return a run of an autoencoder with its figures on test; of divergences, their means."""
    if "samplers" in record:
        means = {name: {"mean": of["mean"]} for name, of in record["samplers"].items()}
        return {"key": record["key"], "samplers": means}
    best = {key: record["best"][key] for key in ("epoch", "test")} if record["best"] else None
    return {"key": record["key"], "best": best}


def _batches(content):
    return [
        {"items": of["items"], "sampler": of["sampler"], "batch": of["batch"]}
        for of in content["results"]
    ]


KEPT = {"fastvae.jsonl": kept_runs(_of_test), "vae_speed_scale.json": kept_file(_batches)}
# With the draws of the paper on Gowalla, where more codewords are needed.
DRAWS = {"ml1m": (200, 16), "gowalla": (1000, 64)}


def claims():
    """Yield the claims with our figures."""
    records = [run for run in load_runs("fastvae.jsonl").values() if not run["key"]["quick"]]
    ndcgs = by_sampler([run for run in records if "best" in run])
    yield as_good_as_full(ndcgs)
    yield better_than_static(ndcgs)
    yield closer(records)
    yield faster(load("vae_speed_scale.json"))


def by_sampler(records):
    """Return NDCG@50 of all seeds, by data set and sampler."""
    found = {}
    for run in sorted(records, key=lambda run: run["key"]["seed"]):
        key = run["key"]
        n_negatives, n_codewords = DRAWS[key["data"]]
        as_wanted = (
            key.get("n_negatives", n_negatives) == n_negatives
            and key.get("n_codewords", n_codewords) == n_codewords
            and key.get("similarity") == "dot"
            and "refit" not in key
        )
        if as_wanted and run["best"] is not None:
            of = found.setdefault(NAMES[key["data"]], {})
            of.setdefault(key["setting"], []).append(run["best"]["test"]["ndcg"])
    return found


def as_good_as_full(ndcgs):
    """Return the claim on MIDX and the full softmax."""
    claim = Claim(
        "Sampled training by MIDX is as good as the full softmax (NDCG@50)",
        "1.02 (MovieLens-10M), 1.03 (Gowalla)", "fastvae.py",
    )  # fmt: skip
    return compared(claim, ndcgs, "full", "the full softmax's", 0.99, 0.97)


def better_than_static(ndcgs):
    """Return the claim on MIDX and draws that do not depend on the user."""
    claim = Claim("And better than static draws", "figure 3", "fastvae.py")
    one = compared(claim, ndcgs, "uniform", "uniform draws'", 1.01, 1.0)
    two = compared(claim, ndcgs, "popularity", "popular draws'", 1.01, 1.0)
    if not one.ours or not two.ours:
        return claim
    verdict = one.verdict
    if two.verdict != verdict:
        verdict = f"against uniform draws {verdict}; against popular ones {two.verdict}"
    return claim._replace(ours=f"{one.ours}; {two.ours}", verdict=verdict)


def compared(claim, ndcgs, other, named, holds, weaker):
    """Return a claim with the NDCG of "midx_popularity" relative to that of another sampler."""
    ratios = {
        data: np.mean(of["midx_popularity"]) / np.mean(of[other])
        for data, of in ndcgs.items()
        if {"midx_popularity", other} <= of.keys()
    }
    if not ratios:
        return claim
    n_seeds = min(len(ndcgs[data][name]) for data in ratios for name in ("midx_popularity", other))
    listed = ", ".join(f"{ratio:.3f} ({data})" for data, ratio in ratios.items())
    return claim._replace(
        ours=f"{listed} of {named}; {seeds(n_seeds)}", verdict=graded(ratios, holds, weaker)
    )


def closer(records):
    """Return the claim on divergences from the softmax."""
    claim = Claim(
        "Closer to the softmax than static draws", "theorems 5.3 and 5.4, figure 2",
        "fastvae_divergence.py",
    )  # fmt: skip
    ratios = {}
    for run in records:
        if "samplers" in run and run["key"]["trained"] and run["key"]["similarity"] == "dot":
            midx, uniform = (run["samplers"][name]["mean"] for name in
                             ("midx_uniform, K = 64", "uniform"))  # fmt: skip
            ratios[NAMES[run["key"]["data"]]] = midx / uniform
    if not ratios:
        return claim
    listed = ", ".join(f"{ratio:.2f} ({data})" for data, ratio in ratios.items())
    of_inverse = {data: 1 / ratio for data, ratio in ratios.items()}
    return claim._replace(
        ours=f"KL divergence {listed} of uniform draws' (64 codewords)",
        verdict=graded(of_inverse, 2, 1.1),
    )


def faster(batches):
    """Return the claim on speed."""
    claim = Claim(
        "Faster than the full softmax with 1.5 million items", "more than 6 times",
        "vae_speed.py --scale",
    )  # fmt: skip
    if batches is None:
        return claim
    n_items = max(of["items"] for of in batches)
    seconds = {of["sampler"]: of["batch"][0] for of in batches if of["items"] == n_items}
    full = seconds.pop("full")
    ratios = [full / of for name, of in seconds.items() if name.startswith("midx")]
    listed = " and ".join(f"{ratio:.0f}" for ratio in ratios)
    return claim._replace(
        ours=f"{listed} times (200 draws a user)",
        verdict="holds" if min(ratios) > 6 else "does not hold",
    )
