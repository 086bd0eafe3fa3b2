"""Stored models: the version that stored them is compared with the one that loads them."""

import copy
import pickle
import warnings

import joblib
import numpy as np
import pytest
from numpy.testing import assert_array_equal
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

import freqfm
from freqfm import (
    ALSRecommender,
    DeepFMClassifier,
    EASERecommender,
    FastVAERecommender,
    FFMClassifier,
    FMRegressor,
    FwFMClassifier,
    GraphFilterRecommender,
    InteractionRecommender,
    ItemKNNRecommender,
    MFRecommender,
    PopularityRecommender,
    RaFMClassifier,
    Word2Vec,
    _versions,
)
from freqfm.callbacks import Checkpoint, resume
from freqfm.datasets import IncrementalOneHotEncoder, make_interactions

LOG = make_interactions(40, 20, 200, random_state=0)
PAIRS = [(f"user {u}", f"item {i}") for u, i in zip(*LOG.nonzero(), strict=True)]
LABELS = np.arange(40) % 2

MODELS = {
    "FM": (FMRegressor(2, max_iter=2, random_state=0), (LOG, LABELS)),
    "RaFM": (RaFMClassifier((1, 2), max_iter=2, random_state=0), (LOG, LABELS)),
    "FFM": (FFMClassifier(2, max_iter=2, random_state=0), (LOG, LABELS)),
    "FwFM": (FwFMClassifier(2, max_iter=2, random_state=0), (LOG, LABELS)),
    "DeepFM": (DeepFMClassifier(2, max_iter=2, random_state=0), (LOG, LABELS)),
    "MF": (MFRecommender(2, max_iter=2, random_state=0), (LOG,)),
    "ALS": (ALSRecommender(2, max_iter=2, random_state=0), (LOG,)),
    "KNN": (ItemKNNRecommender(), (LOG,)),
    "EASE": (EASERecommender(), (LOG,)),
    "popular": (PopularityRecommender(), (LOG,)),
    "filter": (GraphFilterRecommender(random_state=0), (LOG,)),
    "VAE": (FastVAERecommender(2, max_iter=2, random_state=0), (LOG,)),
    "pairs": (InteractionRecommender(MFRecommender(2, max_iter=2, random_state=0)), (PAIRS,)),
    "words": (Word2Vec(2, min_count=1, max_iter=1, random_state=0), ([["tea", "jam", "tea"]] * 9,)),
    "encoder": (IncrementalOneHotEncoder(), (PAIRS,)),
}


@pytest.fixture(params=MODELS)
def model(request):
    model, data = MODELS[request.param]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.fit(*data)


def test_loading_with_the_version_that_stored_it_is_silent(model, tmp_path):
    joblib.dump(model, tmp_path / "model")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for again in (
            pickle.loads(pickle.dumps(model)),
            joblib.load(tmp_path / "model"),
            copy.deepcopy(model),
        ):
            assert vars(again).keys() == vars(model).keys()


def test_loading_with_another_version_warns(model, monkeypatch):
    stored = pickle.dumps(model)
    monkeypatch.setattr(_versions, "__version__", "9.9")
    name = type(model).__name__
    message = f"This {name} was stored by freqfm {freqfm.__version__} and is loaded by freqfm 9.9"
    with pytest.warns(UserWarning, match=message) as caught:
        pickle.loads(stored)
    assert caught[0].filename == __file__


def test_checkpoints_tell_their_version(tmp_path, monkeypatch):
    path = tmp_path / "fit"
    MFRecommender(2, max_iter=2, random_state=0).set_callbacks(Checkpoint(path)).fit(LOG)
    monkeypatch.setattr(_versions, "__version__", "9.9")
    with pytest.warns(UserWarning, match="stored by freqfm"):
        resume(path)


# Copies without the optimizer's state.


@pytest.mark.parametrize("name", ["FM", "RaFM", "FwFM", "DeepFM", "MF", "VAE", "pairs", "words"])
def test_a_copy_without_optimizer_state_predicts_and_is_not_trained(name):
    model, data = MODELS[name]
    params = {
        "DeepFM": {"layer_optimizer": "adam"},
        "FwFM": {"field_optimizer": "adam"},
        "pairs": {"estimator__optimizer": "adam"},
    }
    model = clone(model).set_params(**params.get(name, {"optimizer": "adam"}))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(*data)
    served = model.without_optimizer_state()
    of_served, of_model = (getattr(each, "estimator_", each) for each in (served, model))
    assert of_served.optimizer_state_nbytes_ == 0 < of_model.optimizer_state_nbytes_
    lost = len(pickle.dumps(model)) - len(pickle.dumps(served))
    assert lost >= of_model.optimizer_state_nbytes_
    method = "transform" if name in ("words", "pairs") else "predict"
    expected = getattr(model, method)(data[0])
    for each in (served, pickle.loads(pickle.dumps(served)), served.without_optimizer_state()):
        assert_array_equal(getattr(each, method)(data[0]), expected)
    with pytest.raises(ValueError, match=r"without_optimizer_state\(\), which only predicts"):
        served.partial_fit(*data)
    assert_array_equal(getattr(served, method)(data[0]), expected)
    if hasattr(served, "warm_start"):
        with pytest.raises(ValueError, match=r"without_optimizer_state\(\), which only predicts"):
            served.set_params(warm_start=True).fit(*data)
        served.set_params(warm_start=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert_array_equal(getattr(served.fit(*data), method)(data[0]), expected)
        model.partial_fit(*data)


def test_only_models_with_an_optimizer_can_be_copied_without_its_state():
    assert not hasattr(ALSRecommender(), "without_optimizer_state")
    model = InteractionRecommender(ALSRecommender(2, max_iter=1)).fit([("ann", "tea")])
    served = model.without_optimizer_state()
    assert served is not model
    assert_array_equal(served.recommend(["ann"])[0], model.recommend(["ann"])[0])
    with pytest.raises(NotFittedError):
        MFRecommender().without_optimizer_state()
