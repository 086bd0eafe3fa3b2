"""Draw the NDCG of MFRecommender by epochs against the seconds until then.

    python benchmarks/quality/learning_curve.py --data DIR --out results
    cp results/learning_curve.json docs/figures/
    python docs/figures/learning_curve.py

Writes a picture for light and for dark pages, ``docs/images/learning-curve-*.svg``.
"""

import json
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from untuned import COLOURS

FOLDER = Path(__file__).parent
DRAWN = ("Gowalla", "MovieLens-1M")
LABELS = {"before": "random start, 100 epochs"}


def draw(results, theme):
    """Write the picture of one theme: a panel for each data set."""
    colours = COLOURS[theme]
    coloured = ("axes.edgecolor", "axes.labelcolor", "axes.titlecolor", "xtick.color")
    style = dict.fromkeys((*coloured, "ytick.color", "text.color"), colours["text"])
    style |= {"axes.spines.right": False, "axes.spines.top": False, "svg.hashsalt": "curve"}
    with mpl.rc_context(style):
        figure, axes = plt.subplots(1, len(DRAWN), figsize=(9, 3.4), layout="constrained")
        for ax, data in zip(axes, DRAWN, strict=True):
            ax.grid(linewidth=0.6, color=colours["grid"])
            for name in results[data][0]:
                # Means over seeds.
                points = np.mean([found[name] for found in results[data]], axis=0)
                ours = name == "MFRecommender()"
                marker = "o" if ours else "s" if len(points) == 1 else "."
                colour = colours["ours" if ours else "peers"]
                label = LABELS.get(name, name)
                ax.plot(points[:, 1], points[:, 2], marker=marker, color=colour, label=label)
            ax.set(xscale="log", title=data, xlabel="seconds", ylabel="NDCG@20 of the test part")
            ax.xaxis.set_major_formatter("{x:g}")
        axes[0].legend(frameon=False)
        path = FOLDER.parent / "images" / f"learning-curve-{theme}.svg"
        figure.savefig(path, transparent=True, metadata={"Date": None})
        plt.close(figure)


if __name__ == "__main__":
    found = json.loads((FOLDER / "learning_curve.json").read_text())
    for theme in COLOURS:
        draw(found, theme)
