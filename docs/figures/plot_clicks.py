"""The picture of the guide's page on clicks: calibration and ROC curves of two models."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.calibration import CalibrationDisplay
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import RocCurveDisplay
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

from freqfm import FMClassifier

rng = np.random.default_rng(0)
log = pd.DataFrame(
    {
        "user": rng.integers(60, size=20_000),
        "ad": rng.integers(40, size=20_000),
        "hour": rng.integers(24, size=20_000),
    }
)
likes = (log["user"] % 5 == log["ad"] % 5) | ((log["hour"] >= 18) & (log["ad"] < 4))
clicked = rng.random(20_000) < np.where(likes, 0.6, 0.1)
columns = make_column_transformer((OneHotEncoder(handle_unknown="ignore"), list(log)))
train, test = slice(0, 16_000), slice(16_000, None)
models = {"FMClassifier": FMClassifier(random_state=0), "LogisticRegression": LogisticRegression()}
figure, (left, right) = plt.subplots(1, 2)
for name, estimator in models.items():
    model = make_pipeline(columns, estimator).fit(log[train], clicked[train])
    probability = model.predict_proba(log[test])[:, 1]
    RocCurveDisplay.from_predictions(clicked[test], probability, name=name, ax=left)
    CalibrationDisplay.from_predictions(
        clicked[test], probability, n_bins=8, strategy="quantile", name=name, ax=right
    )
left.set(title="Which rows are clicked", xlabel="false positive rate", ylabel="true positive rate")
right.set(title="Are probabilities right?", xlabel="predicted", ylabel="clicked")
