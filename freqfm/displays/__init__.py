"""Plots of fitted models, with the interface of scikit-learn's displays.

``from_estimator`` and similar methods compute and draw, ``plot`` draws again. The plotted data are
attributes of the display. Drawing requires matplotlib, ``pip install 'freqfm[plot]'``;
``RankingReport`` is HTML and requires nothing.
"""

from freqfm.displays._plots import (
    InteractionStrengthsDisplay,
    LossCurveDisplay,
    MagnitudePopularityDisplay,
    RecommenderComparisonDisplay,
    StratifiedNDCGDisplay,
    TemperatureDisplay,
)
from freqfm.displays._report import RankingReport

__all__ = [
    "InteractionStrengthsDisplay",
    "LossCurveDisplay",
    "MagnitudePopularityDisplay",
    "RankingReport",
    "RecommenderComparisonDisplay",
    "StratifiedNDCGDisplay",
    "TemperatureDisplay",
]
