"""The picture of the guide's page on explanations: one row, and the importances of columns."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

from freqfm import FMClassifier, explain
from freqfm.initializers import Normal

rng = np.random.default_rng(0)
log = pd.DataFrame(rng.integers(8, size=(4000, 3)), columns=["user", "ad", "hour"]).astype(str)
likes = log["user"].astype(int) % 2 == log["ad"].astype(int) % 2
clicked = rng.random(4000) < np.where(likes, 0.6, 0.1)
model = make_pipeline(
    OneHotEncoder(), FMClassifier(init=Normal(0.1), alpha_factors=1, random_state=0)
)
model.fit(log, clicked)
found = explain(model, log, background=log[:500], as_frame=True)
figure, (left, right) = plt.subplots(1, 2)
one = found.contributions.iloc[0]
labels = [f"{name} = {log[name][0]}" for name in one.index]
colors = ["tab:red" if value < 0 else "tab:blue" for value in one]
left.barh(labels, one, color=colors)
left.axvline(0, color="gray", linewidth=0.8)
left.set(title="Why this row", xlabel="added to the mean log-odds")
right.barh(list(one.index), found.contributions.abs().mean())
right.set(title="Which columns matter", xlabel="mean absolute contribution")
