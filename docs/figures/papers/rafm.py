"""RaFM (Chen et al., 2019): ``rafm.py``."""

from papers._shared import Claim, grade, kept_file, load

PAPER = "RaFM [2]_"


def _without_curves(summaries):
    return {
        data: {
            name: {key: value for key, value in of.items() if key != "curve"}
            for name, of in models.items()
        }
        for data, models in summaries.items()
    }


KEPT = {"rafm.json": kept_file(_without_curves)}
PAIR = "RaFM(64, 256)"


def claims():
    """Yield the claims with our figures."""
    of_claims = {
        Claim("Lower log loss than any FM (Frappe)", "0.85 of it", "rafm.py"): lower_loss,
        Claim("Half of the parameters", "0.51 of FM(256)'s", "rafm.py"): fewer_parameters,
        Claim("Trains faster than FM", "0.73 of the time", "rafm.py"): faster,
        Claim("The lowest rank alone is as good as an FM of that rank", "figure 3",
              "rafm.py"): lowest_rank,
        Claim("Lower error of ratings", "0.98 of FM's", "rafm.py"): lower_error,
    }  # fmt: skip
    summaries = load("rafm.json")
    for claim, found in of_claims.items():
        if summaries is None:
            yield claim
        else:
            ours, verdict = found(summaries)
            yield claim._replace(ours=ours, verdict=verdict)


def best(models, kind):
    """Return the name of the model of a kind that is best on validation."""
    return min((name for name in models if name.startswith(kind)), key=lambda n: models[n]["valid"])


def lower_loss(summaries):
    """Return the log loss beside that of the best FM, each chosen on validation."""
    models = summaries["frappe"]
    ours, fm = best(models, "RaFM"), best(models, "FM")
    ratio = models[ours]["test"] / models[fm]["test"]
    text = f"{ratio:.3f} of {fm}'s ({ours}), on a quarter of the paper's training rows"
    return text, grade(-ratio, -0.95, -0.99)


def fewer_parameters(summaries):
    """Return the parameters of the paper's pair of ranks beside those of FM(256)."""
    models = summaries["frappe"]
    ours, fm = models[PAIR], models["FM(256)"]
    parameters, loss = (ours[key] / fm[key] for key in ("n_parameters", "test"))
    text = f"{parameters:.2f} (ranks 64 and 256), for {loss:.3f} of its log loss"
    return text, "holds" if parameters <= 0.51 and loss <= 1 else "does not hold"


def faster(summaries):
    """Return the time of an epoch beside that of FM(256)."""
    models = summaries["frappe"]
    first, second = (
        models[name]["seconds"][0] / models["FM(256)"]["seconds"][0]
        for name in (PAIR, "RaFM(64, 128)")
    )
    text = f"{first:.2f} (ranks 64 and 256) and {second:.2f} (64 and 128) of FM(256)'s"
    return text, grade(-first, -0.8, -0.95)


def lowest_rank(summaries):
    """Return the loss of the lowest rank alone beside that of an FM of this rank."""
    models = summaries["frappe"]
    alone, fm = models[PAIR]["lowest"], models["FM(64)"]["test"]
    text = f"log loss {alone:.4f} against {fm:.4f} (rank 64 of 64 and 256)"
    return text, grade(-alone / fm, -1, -1.01)


def lower_error(summaries):
    """Return the error of ratings beside that of the best FM."""
    models = summaries["movielens"]
    fm = best(models, "FM")
    ratios = [
        of["test"] / models[fm]["test"] for name, of in models.items() if name.startswith("RaFM")
    ]
    text = f"{min(ratios):.3f} to {max(ratios):.3f} of {fm}'s (MovieLens-1M)"
    return text, grade(-min(ratios), -0.985, -1)
