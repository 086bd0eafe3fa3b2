"""The picture of the guide's page on serving clicks: time of a row, and calibration by hour."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

from freqfm import FMClassifier

# Printed by benchmarks/speed/serving_clicks.py.
milliseconds = {"machine": 0.55, "dictionary": 0.92, "hasher": 1.4, "pipeline": 82}

rng = np.random.default_rng(0)
n = 60_000
day = np.sort(rng.integers(30, size=n))
log = pd.DataFrame({"ad": rng.integers(40, size=n), "hour": rng.integers(24, size=n)})
chance = np.where(log["ad"] % 3, 0.1, 0.3) * (1 + np.sin(2 * np.pi * log["hour"] / 24) / 2)
# From day 25 on, evenings have fewer clicks than the model has learned.
chance *= np.where((day >= 25) & (log["hour"] >= 17), 0.6, 1)
clicked = rng.random(n) < chance
train, test = day < 25, day >= 25
model = make_pipeline(OneHotEncoder(), FMClassifier(random_state=0)).fit(log[train], clicked[train])
served = pd.DataFrame({"hour": log["hour"][test], "clicked": clicked[test]})
served["predicted"] = model.predict_proba(log[test])[:, 1]
served["variance"] = served["predicted"] * (1 - served["predicted"])
hours = served.groupby("hour")
error = np.sqrt(hours["variance"].sum()) / hours.size()

figure, (left, right) = plt.subplots(1, 2, width_ratios=[2, 3])
bars = left.barh(list(milliseconds), list(milliseconds.values()), color="tab:blue")
left.bar_label(bars, padding=2)
left.axvline(1, color="gray", linestyle="--", linewidth=0.8)
left.set(title="One row", xlabel="milliseconds", xscale="log", xlim=(0.1, 400))
predicted, by_hour = hours["predicted"].mean(), hours["clicked"].mean()
right.fill_between(predicted.index, predicted - 2 * error, predicted + 2 * error, alpha=0.3)
right.plot(predicted, label="predicted")
right.plot(by_hour, "o", markersize=4, label="clicked")
right.set(title="Days 25 to 29, by hour", xlabel="hour", ylabel="share of clicks", ylim=0)
right.legend()
