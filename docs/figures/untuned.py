"""Draw the quality of untuned recommenders against the seconds to fit them, and write their table.

    python benchmarks/untuned.py --data DIR --out results
    cp results/untuned.json docs/figures/
    python docs/figures/untuned.py

Writes a picture of each data set for light and for dark pages, ``docs/images/untuned-*.svg``, and
``docs/figures/untuned.rst``.
"""

import json
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np

FOLDER = Path(__file__).parent
OURS = ("MFRecommender()", "FastVAERecommender()", "ALSRecommender()")
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
}
# Names that do not fit at the right of their point: side, and points above.
PLACES = {
    ("Gowalla", "MFRecommender()"): (-1, 0),
    ("Gowalla", "FastVAERecommender()"): (-0.5, 13),
    ("Gowalla", "implicit's BM25Recommender()"): (0.5, -12),
    ("MovieLens-1M", "MFRecommender()"): (-0.5, 12),
    ("MovieLens-1M", "FastVAERecommender()"): (0.5, -13),
}


def means(results):
    """Return the mean of every figure over seeds, by data set and model."""
    return {
        data: {
            model: {key: float(np.mean([run[key] for run in runs])) for key in runs[0]}
            for model, runs in models.items()
        }
        for data, models in results.items()
        if isinstance(models, dict)
    }


def draw_models(ax, data, models, colours):
    """Draw points with names, and a line for the most popular items."""
    popular = models[POPULAR]["ndcg"]
    ax.axhline(popular, color=colours["peers"], linestyle=":", linewidth=1)
    note = {"textcoords": "offset points", "va": "center"}
    ax.annotate(POPULAR, (0.11, popular), (0, -8), color=colours["peers"], fontsize=9, **note)
    for model, mean in models.items():
        if model == POPULAR:
            continue
        ours = model in OURS
        colour = colours["ours" if ours else "peers"]
        ax.plot(mean["fit"], mean["ndcg"], "o", markersize=9 if ours else 7, color=colour)
        side, above = PLACES.get((data, model), (1, 0))
        ax.annotate(
            model.removesuffix("()") if ours else PEERS[model],
            (mean["fit"], mean["ndcg"]),
            (9 * side, above),
            ha="left" if side > 0 else "right",
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
        ax.set(xscale="log", xlim=(0.1, 600), ylim=(0, top), title=data)
        ax.set(xlabel="seconds to fit", ylabel="NDCG@20 of the test part")
        ax.xaxis.set_major_formatter("{x:g}")
        path = FOLDER.parent / "images" / f"untuned-{data.lower()}-{theme}.svg"
        figure.savefig(path, transparent=True, metadata={"Date": None})
        plt.close(figure)


def write_table(table):
    """Write the figures as a table for the page of results."""
    header = ", ".join(f'"{data}: recall@20", NDCG@20, "fit, s"' for data in table)
    lines = [".. csv-table::", f'   :header: "", {header}', ""]
    for model in next(iter(table.values())):
        cells = []
        for models in table.values():
            mean = models[model]
            cells += [f"{mean['recall']:.4f}", f"{mean['ndcg']:.4f}"]
            cells.append(f"{mean['fit']:.2g}" if mean["fit"] < 10 else f"{mean['fit']:.0f}")
        if model == POPULAR:
            cells[2::3] = [""] * len(table)
        name = model.replace("implicit's ", "implicit, ")
        lines.append(f'   "{name}", ' + ", ".join(cells))
    (FOLDER / "untuned.rst").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    table = means(json.loads((FOLDER / "untuned.json").read_text()))
    for data, models in table.items():
        for theme in COLOURS:
            draw(data, models, theme)
    write_table(table)
