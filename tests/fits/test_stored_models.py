"""Stored models: the version that stored them is compared with the one that loads them."""

import copy
import pickle
import warnings

import joblib
import numpy as np
import pytest
from helpers import each as for_each
from numpy.testing import assert_array_equal
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

import freqfm
from freqfm import (
    ALSRecommender,
    BlendRecommender,
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


# Copies for services.


def _predicted(model, data):
    """Return what a model of any kind predicts."""
    return getattr(model, "transform" if isinstance(model, Word2Vec) else "predict")(data[0])


@for_each(
    "name", ["FM", "MF", "ALS", "VAE", "pairs", "words"], slow=["RaFM", "FFM", "FwFM", "DeepFM"]
)
def test_vectors_are_stored_in_float16(name):
    model, data = MODELS[name]
    model = clone(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(*data)
    before = _predicted(model, data)
    assert_array_equal(_predicted(model.for_serving(), data), before)
    served = model.for_serving(dtype="float16")
    expected = _predicted(served, data)
    assert_array_equal(_predicted(model, data), before)
    for copied in (copy.copy(served), copy.deepcopy(served), pickle.loads(pickle.dumps(served))):
        assert_array_equal(_predicted(copied, data), expected)
        assert_array_equal(_predicted(pickle.loads(pickle.dumps(copied)), data), expected)
    inner, given = getattr(served, "estimator_", served), getattr(model, "estimator_", model)
    for attribute in inner._names_of_vectors():
        tables = (np.atleast_2d(getattr(one, attribute)) for one in (inner, given))
        for rounded, vectors in zip(*tables, strict=True):
            assert rounded.dtype == np.float32
            assert_array_equal(rounded, vectors.astype(np.float16))


def test_files_of_float16_take_half_the_room_until_numbers_change():
    X = make_interactions(300, 200, random_state=0)
    model = ALSRecommender(64, max_iter=1, random_state=0).fit(X)
    served = model.for_serving(dtype="float16")
    n_bytes = [len(pickle.dumps(one)) for one in (model, served)]
    assert n_bytes[0] - n_bytes[1] > 0.99 * 2 * 64 * 500
    # Trained further, it has numbers that float16 does not hold: they are stored as they are.
    served.partial_fit(X)
    again = pickle.loads(pickle.dumps(served))
    assert_array_equal(again.user_factors_, served.user_factors_)
    assert len(pickle.dumps(served)) > n_bytes[1] + 2 * 64 * 500 - 1000


def test_copies_for_services_are_refused_by_name():
    model = MFRecommender(2, max_iter=1, random_state=0).fit(LOG)
    with pytest.raises(ValueError, match=r"dtype='half' is not known"):
        model.for_serving(dtype="half")
    with pytest.raises(NotFittedError):
        MFRecommender().for_serving()
    with pytest.raises(ValueError, match=r"without_optimizer_state\(\), which only predicts"):
        model.for_serving().partial_fit(LOG)
    with pytest.raises(ValueError, match="float16' is for vectors, of which EASERecommender"):
        EASERecommender().fit(LOG).for_serving(dtype="float16")
    for factor in (1e6, 1e-6):
        scaled = copy.copy(model)
        scaled.user_factors_ = np.float32(factor) * model.user_factors_
        with pytest.raises(ValueError, match="float16' cannot hold the vectors, whose numbers"):
            scaled.for_serving(dtype="float16")


def test_members_of_a_blend_are_served_as_they_can_be():
    members = [("als", ALSRecommender(2, random_state=0)), ("knn", ItemKNNRecommender())]
    model = BlendRecommender(members, weights=[1, 1], random_state=0).fit(LOG)
    served = model.for_serving(dtype="float16")
    assert served.named_estimators_["als"] is served.estimators_[0] is not model.estimators_[0]
    again = pickle.loads(pickle.dumps(served))
    assert_array_equal(again.recommend(users=[1, 2])[1], served.recommend(users=[1, 2])[1])
