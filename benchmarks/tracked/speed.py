"""Seconds of a fit, of scores and of recommendations, and bytes of a model."""

import pickle
import sys
from pathlib import Path

import numpy as np

from freqfm import FastVAERecommender, FMClassifier, MFRecommender, RaFMClassifier
from freqfm.datasets import make_clicks, make_interactions

# The scripts are no package.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "speed"))
import serving_speed

N_JOBS = 1
EPOCHS = {"max_iter": 3, "n_jobs": N_JOBS, "random_state": 0}
FM = {"early_stopping": False, "n_iter_no_change": None, **EPOCHS}

MACHINES = {
    "cf_sgd": FMClassifier(16, **FM),
    "adam": FMClassifier(16, optimizer="adam", **FM),
    "rafm": RaFMClassifier((4, 16), rank_assignment=[50], **FM),
}
RECOMMENDERS = {
    "mf_softmax": MFRecommender(64, **EPOCHS),
    "mf_bpr": MFRecommender(64, loss="bpr", **EPOCHS),
    "mf_directau": MFRecommender(64, loss="directau", **EPOCHS),
    "mf_midx": MFRecommender(64, negative_sampler="midx_uniform", n_negatives=64, **EPOCHS),
    "vae_full": FastVAERecommender(32, early_stopping=False, **EPOCHS),
    "vae_midx": FastVAERecommender(
        32, negative_sampler="midx_uniform", n_negatives=64, early_stopping=False, **EPOCHS
    ),
}


class FactorizationMachines:
    """Three epochs, and the scores of all rows."""

    params = sorted(MACHINES)
    param_names = ["model"]

    def setup(self, name):
        """Draw rows, and fit once."""
        self.X, self.y = make_clicks(50_000, (3000, 1000, 50), random_state=0)
        self.model = MACHINES[name].fit(self.X, self.y)
        self.model.predict_proba(self.X)

    def time_fit(self, name):
        """Three epochs."""
        self.model.fit(self.X, self.y)

    def time_predict(self, name):
        """Probabilities of all rows."""
        self.model.predict_proba(self.X)


class Recommenders:
    """Three epochs, and the best ten items of all users."""

    params = sorted(RECOMMENDERS)
    param_names = ["model"]

    def setup(self, name):
        """Draw interactions, and fit once."""
        self.X = make_interactions(3000, 2000, 60_000, random_state=0)
        self.model = RECOMMENDERS[name].fit(self.X)
        self.model.recommend(users=np.arange(10))

    def time_fit(self, name):
        """Three epochs."""
        self.model.fit(self.X)

    def time_recommend(self, name):
        """The best items of all users."""
        self.model.recommend(users=np.arange(3000))

    def track_nbytes(self, name):
        """Bytes of the pickled model."""
        return len(pickle.dumps(self.model))

    track_nbytes.unit = "bytes"


class OneUser:
    """How long a single user waits among 20,000 items."""

    params = ["one user", "one history", "100 excluded", "100 candidates", "similar items"]
    param_names = ["call"]

    def setup(self, call):
        """Fit models, and call once."""
        rng = np.random.default_rng(0)
        self.call = serving_speed.calls(rng, 20_000, 200, 64, N_JOBS)[f"MF, cosine: {call}"]
        self.call()

    def time_call(self, call):
        """One call."""
        self.call()
