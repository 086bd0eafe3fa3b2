"""Draw NDCG against diversity, coverage and miscalibration, for a range of weights.

    python benchmarks/quality/variety.py --data DIR --out results
    cp results/variety.json docs/figures/
    python docs/figures/variety.py

Writes a picture for light and for dark pages, ``docs/images/variety-*.svg``.
"""

import json
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from untuned import COLOURS

FOLDER = Path(__file__).parent
MODELS = {"MFRecommender": "o", "EASERecommender": "s"}
AXES = {
    "diversity of genres": "diversity_at_k of genres",
    "coverage": "coverage_at_k",
    "miscalibration": "miscalibration_at_k of genres",
}
METHODS = {"own vectors": "peers", "genres": "ours", "calibrated": "third"}
LABELS = {
    "own vectors": "diversity on own vectors",
    "genres": "diversity on genres",
    "calibrated": "calibrate to genres",
}
THIRD = {"light": "#b4540a", "dark": "#f0a35e"}


def draw(found, theme):
    """Write the picture of one theme: a panel for each property of the lists."""
    colours = COLOURS[theme] | {"third": THIRD[theme]}
    coloured = ("axes.edgecolor", "axes.labelcolor", "axes.titlecolor", "xtick.color")
    style = dict.fromkeys((*coloured, "ytick.color", "text.color"), colours["text"])
    style |= {"axes.spines.right": False, "axes.spines.top": False, "svg.hashsalt": "variety"}
    with mpl.rc_context(style):
        shape = len(MODELS), len(AXES)
        figure, axes = plt.subplots(
            *shape, figsize=(9.5, 6), layout="constrained", sharey=True, sharex="col"
        )
        for row, (model, marker) in zip(axes, MODELS.items(), strict=True):
            for ax, (name, label) in zip(row, AXES.items(), strict=True):
                ax.grid(linewidth=0.6, color=colours["grid"])
                for method, colour in METHODS.items():
                    # Means over seeds.
                    x, y = (
                        np.mean(
                            [[of[key] for of in seed[method]] for seed in found["models"][model]],
                            axis=0,
                        )
                        for key in (name, "ndcg")
                    )
                    options = {"color": colours[colour], "label": LABELS[method]}
                    ax.plot(x, y, marker=marker, markersize=4, **options)
                if ax in axes[-1]:
                    ax.set_xlabel(label)
            row[0].set_ylabel(f"NDCG@10, {model}")
        axes[0, 1].legend(frameon=False, fontsize=8, loc="upper right")
        path = FOLDER.parent / "images" / f"variety-{theme}.svg"
        figure.savefig(path, transparent=True, metadata={"Date": None})
        plt.close(figure)


if __name__ == "__main__":
    results = json.loads((FOLDER / "variety.json").read_text())
    for theme in COLOURS:
        draw(results, theme)
