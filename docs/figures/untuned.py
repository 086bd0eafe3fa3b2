"""Draw the quality of recommenders against the seconds to fit them, and write the tables.

    cp docs/figures/untuned*.json results/
    python benchmarks/quality/untuned.py --data DIR --out results --tuned
    python benchmarks/quality/untuned_fm.py --data DIR --out results --tuned
    cp results/untuned.json results/untuned_fm.json docs/figures/
    python docs/figures/untuned.py

The first line keeps the runs that are there already. Writes a picture of each data set in ``DRAWN``
for light and for dark pages, ``docs/images/untuned-*.svg``, and the tables
``docs/figures/untuned*.rst``.
"""

import json
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from _tables import csv_table

FOLDER = Path(__file__).parent
DRAWN = ("Gowalla", "MovieLens-1M")
OURS = ("BlendRecommender()", "MFRecommender()", "FastVAERecommender()", "ALSRecommender()")
POPULAR = "the most popular items"
COLOURS = {
    "light": {"text": "#222832", "grid": "#d9dde3", "ours": "#1f6fb2", "peers": "#6c7480"},
    "dark": {"text": "#e2e6ec", "grid": "#3c434d", "ours": "#6cb6f2", "peers": "#9aa4b1"},
}
PEERS = {
    "implicit's AlternatingLeastSquares()": "implicit, ALS",
    "implicit's LogisticMatrixFactorization()": "implicit, logistic",
    "implicit's BayesianPersonalizedRanking()": "implicit, BPR",
    "implicit's BM25Recommender()": "implicit, BM25",
    "Cornac's BPR()": "Cornac, BPR",
    "RecBole's BPR()": "RecBole, BPR",
    "EASE()": "EASE",
    "LightFM's WARP()": "LightFM, WARP",
}
# Names that do not fit at the right of their point: side, 0 for the middle, and points above.
PLACES = {
    ("Gowalla", "BlendRecommender()"): (0, 13),
    ("Gowalla", "MFRecommender()"): (-1, 0),
    ("Gowalla", "FastVAERecommender()"): (0, -14),
    ("Gowalla", "ALSRecommender()"): (0, 24),
    ("Gowalla", "EASE()"): (0, -12),
    ("Gowalla", "implicit's BM25Recommender()"): (0.5, -12),
    ("Gowalla", "implicit's BayesianPersonalizedRanking()"): (0.5, -12),
    ("Gowalla", "implicit's LogisticMatrixFactorization()"): (0.5, 12),
    ("Gowalla", "Cornac's BPR()"): (0.5, -12),
    ("MovieLens-1M", "MFRecommender()"): (0, 15),
    ("MovieLens-1M", "ALSRecommender()"): (0, 17),
    ("MovieLens-1M", "Cornac's BPR()"): (0, -12),
    ("MovieLens-1M", "RecBole's BPR()"): (0, 12),
    ("MovieLens-1M", "implicit's AlternatingLeastSquares()"): (0, -12),
    ("MovieLens-1M", "implicit's BayesianPersonalizedRanking()"): (3.2, 0),
    ("MovieLens-1M", "LightFM's WARP()"): (0.4, -13),
    ("MovieLens-1M", "implicit's BM25Recommender()"): (0.5, -12),
    ("MovieLens-1M", "implicit's LogisticMatrixFactorization()"): (-1, 0),
    ("MovieLens-1M", "FastVAERecommender()"): (0.5, -13),
}


def means(results):
    """Return the mean of every figure over seeds, and what was chosen, by data set and model."""
    return {
        data: {model: mean_of(runs) for model, runs in models.items()}
        for data, models in results.items()
        if isinstance(models, dict)
    }


def mean_of(runs):
    """Return the mean of every figure of some seeds, and what they have in common.

    Seeds that were trained beside other work have no seconds.
    """
    common = {key: runs[0][key] for key in ("params", "n_points") if key in runs[0]}
    figures = {}
    for key in runs[0].keys() - common:
        values = [run[key] for run in runs if key in run]
        figures |= {key: float(np.mean(values)), f"{key} spread": float(np.ptp(values))}
    return {**figures, **common, "n_seeds": len(runs)}


def draw_models(ax, data, models, colours):
    """Draw points with names, and a line for the most popular items.

    A ring is the model of the same colour after a search of its parameters, without its seconds.
    """
    popular = models[POPULAR]["ndcg"]
    ax.axhline(popular, color=colours["peers"], linestyle=":", linewidth=1)
    note = {"textcoords": "offset points", "va": "center"}
    ax.annotate(POPULAR, (0.11, popular), (0, -8), color=colours["peers"], fontsize=9, **note)
    for model, mean in models.items():
        ours = model in OURS
        if not ours and model not in PEERS:
            continue
        colour = colours["ours" if ours else "peers"]
        at = mean["fit"], mean["ndcg"]
        ax.plot(*at, "o", markersize=9 if ours else 7, color=colour)
        tuned = models.get(model.removesuffix("()") + ", tuned")
        if tuned:
            to = tuned["fit"], tuned["ndcg"]
            ax.plot(*zip(at, to, strict=True), "-", linewidth=0.8, color=colour)
            ax.plot(*to, "o", markersize=7, color=colour, markerfacecolor="none")
        side, above = PLACES.get((data, model), (1, 0))
        ax.annotate(
            model.removesuffix("()") if ours else PEERS[model],
            at,
            (9 * side, above),
            ha="left" if side > 0 else "right" if side else "center",
            fontsize=10.5 if ours else 9.5,
            weight="bold" if ours else "normal",
            color=colour,
            **note,
        )


def draw(data, models, theme):
    """Write one picture."""
    colours = COLOURS[theme]
    coloured = ("axes.edgecolor", "axes.labelcolor", "axes.titlecolor", "xtick.color")
    style = dict.fromkeys((*coloured, "ytick.color", "text.color"), colours["text"])
    style |= {"axes.spines.right": False, "axes.spines.top": False, "svg.hashsalt": data}
    with mpl.rc_context(style):
        figure, ax = plt.subplots(figsize=(5.6, 4), layout="constrained")
        ax.grid(linewidth=0.6, color=colours["grid"])
        ax.set_axisbelow(True)
        draw_models(ax, data, models, colours)
        top = 1.13 * max(mean["ndcg"] for mean in models.values())
        ax.set(xscale="log", xlim=(0.1, 5000), ylim=(0, top), title=data)
        ax.set(xlabel="seconds to fit", ylabel="NDCG@20 of the test part")
        ax.xaxis.set_major_formatter("{x:g}")
        path = FOLDER.parent / "images" / f"untuned-{data.lower()}-{theme}.svg"
        figure.savefig(path, transparent=True, metadata={"Date": None})
        plt.close(figure)


def seconds(mean, key):
    """Return two digits of seconds, or all before the point."""
    value = mean[key]
    return f"{value:.2g}" if value < 10 else f"{value:.0f}"


def chosen(mean):
    """Return the parameters of a tuned model, and from how many they were chosen."""
    params = {name.split("__")[-1]: value for name, value in mean["params"].items()}
    listed = ", ".join(f"{name}={value:g}" for name, value in params.items())
    return f"{listed}; of {mean['n_points']}"


def write_tables(name, results, columns):
    """Write figures as a table for each data set, and what was chosen for tuned models.

    ``columns`` are the header of a figure and how it is shown, by its key.
    """
    names = list(dict.fromkeys(model for models in results.values() for model in models))
    names.sort(key=lambda model: (model.endswith("tuned"), model not in OURS))
    header = ["", *(title for title, _ in columns.values())]
    lines, notes = [], []
    for data, models in results.items():
        rows = [[model, *cells_of(model, models.get(model), columns)] for model in names]
        lines += csv_table(header, rows, title=data)
        notes += [
            f"- {model.removesuffix(', tuned')} on {data}: {chosen(models[model])}"
            for model in names
            if "params" in models.get(model, ())
        ]
    if notes:
        lines += ["Chosen on validation:", "", *notes, ""]
    (FOLDER / f"{name}.rst").write_text("\n".join(lines))


def cells_of(model, mean, columns):
    """Return the figures of one model as they are shown."""
    if mean is None:
        return ["not run"] + [""] * (len(columns) - 1)
    return [
        "" if model == POPULAR and key == "fit" else shown(mean, key)
        for key, (_, shown) in columns.items()
    ]


def four(mean, key):
    """Return four digits after the point."""
    return f"{mean[key]:.4f}"


def with_spread(mean, key):
    """Return four digits, and how far seeds are apart, if there are several."""
    spread = f" ({mean[f'{key} spread']:.4f})" if mean["n_seeds"] > 1 else ""
    return f"{mean[key]:.4f}{spread}"


if __name__ == "__main__":
    results = means(json.loads((FOLDER / "untuned.json").read_text()))
    for data in DRAWN:
        for theme in COLOURS:
            draw(data, results[data], theme)
    ranking = {"recall": ("recall@20", four), "ndcg": ("NDCG@20", with_spread)}
    write_tables("untuned", results, {**ranking, "fit": ("fit, s", seconds)})
    results = means(json.loads((FOLDER / "untuned_fm.json").read_text()))
    clicks = {"auc": ("AUC", four), "log_loss": ("log loss", with_spread)}
    write_tables("untuned_fm", results, {**clicks, "fit": ("fit, s", seconds)})
