"""Pictures of fitted models, in the manner of scikit-learn's displays.

``from_estimator`` and its like compute and draw, ``plot`` draws again. What is drawn is in the
display's attributes. Drawing takes matplotlib, ``pip install 'freqfm[plot]'``.
"""

from freqfm.displays._popularity import MagnitudePopularityDisplay, StratifiedNDCGDisplay
from freqfm.displays._training import LossCurveDisplay, TemperatureDisplay

__all__ = [
    "LossCurveDisplay",
    "MagnitudePopularityDisplay",
    "StratifiedNDCGDisplay",
    "TemperatureDisplay",
]
