"""Parameters of components that are None take the estimator's defaults."""

import numpy as np
import pytest
from helpers import slow_params
from numpy.testing import assert_array_equal
from scipy import sparse
from sklearn.base import clone

from freqfm import (
    DeepFMRegressor,
    FastVAERecommender,
    FMClassifier,
    FMRegressor,
    FwFMRegressor,
    MFRecommender,
    Word2Vec,
)
from freqfm.initializers import Normal
from freqfm.optimizers import CFSGD, FASGD, SGD, Adagrad, Adam
from freqfm.samplers import MIDX

X = sparse.csr_matrix((np.random.default_rng(0).random((60, 30)) < 0.2).astype(np.float32))
Y = np.random.default_rng(1).standard_normal(60)
DOCUMENTS = [[str(j) for j in row.indices] for row in X]
SHORT = {"n_components": 4, "max_iter": 3, "random_state": 0, "n_jobs": 1}


def learned(model):
    if isinstance(model, Word2Vec):
        return model.fit(DOCUMENTS).vectors_
    if isinstance(model, FMClassifier):
        return model.fit(X, Y > 0).factors_
    if isinstance(model, FMRegressor | DeepFMRegressor | FwFMRegressor):
        return model.fit(X, Y).factors_
    return model.fit(X).item_factors_


# An estimator with a component by name, and an instance with the same defaults.
SAME = [
    (FMRegressor(**SHORT, optimizer="fa_sgd"), {"optimizer": FASGD(max_step=100)}),
    (FMClassifier(**SHORT, optimizer="fa_sgd"), {"optimizer": FASGD(3.0)}),
    (FMClassifier(**SHORT, learning_rate=0.5), {"optimizer": CFSGD(exponent=0.5)}),
    (DeepFMRegressor(**SHORT), {"layer_optimizer": Adam(0.003, lazy=True)}),
    (FwFMRegressor(**SHORT), {"field_optimizer": Adam(lazy=True)}),
    (MFRecommender(**SHORT), {"optimizer": Adam(beta_1=0.9)}),
    (MFRecommender(**SHORT, init="normal"), {"init": Normal()}),
    (FastVAERecommender(**SHORT, optimizer="cf_sgd"), {"optimizer": CFSGD(exponent=0.5)}),
    (Word2Vec(**SHORT), {"optimizer": CFSGD(exponent=0.5)}),
    (Word2Vec(**SHORT, optimizer="sgd"), {"optimizer": SGD()}),
    (Word2Vec(**SHORT, optimizer="adagrad"), {"optimizer": Adagrad()}),
    (Word2Vec(**SHORT), {"init": Normal()}),
    *slow_params([
        (MFRecommender(**SHORT, loss="softmax", negative_sampler="midx_uniform"),
         {"negative_sampler": MIDX("uniform", n_codewords=16)}),
        (FastVAERecommender(**SHORT, negative_sampler="uniform"), {"optimizer": Adam(beta_1=0.9)}),
        (FastVAERecommender(**SHORT, negative_sampler="midx_uniform"),
         {"negative_sampler": MIDX("uniform", n_subspaces=2)}),
    ]),
]  # fmt: skip


@pytest.mark.parametrize(("model", "instance"), SAME, ids=lambda value: repr(value)[:70])
def test_an_instance_has_the_defaults_of_its_name(model, instance):
    expected = learned(clone(model))
    assert_array_equal(learned(clone(model).set_params(**instance)), expected)


@pytest.mark.parametrize(
    ("model", "params"),
    [
        (FMRegressor(**SHORT, optimizer="fa_sgd"), {"optimizer__max_step": 100.0}),
        (FMClassifier(**SHORT, learning_rate=0.5), {"optimizer__exponent": 0.5}),
        (MFRecommender(**SHORT), {"optimizer__beta_1": 0.9}),
        (FastVAERecommender(**SHORT, negative_sampler="uniform"), {"optimizer__beta_2": 0.999}),
        (FastVAERecommender(**SHORT, negative_sampler="midx_uniform"),
         {"negative_sampler__n_subspaces": 2}),
        (Word2Vec(**SHORT), {"optimizer__exponent": 0.5}),
    ],
    ids=repr,
)  # fmt: skip
def test_setting_one_parameter_keeps_the_defaults_of_the_others(model, params):
    expected = learned(clone(model))
    assert_array_equal(learned(clone(model).set_params(**params)), expected)


def test_values_of_the_user_are_kept():
    assert Adam(0.5).with_defaults(learning_rate=0.1, lazy=False).learning_rate == 0.5
    assert Adam(lazy=True).with_defaults(lazy=False).lazy is True
    adam = Adam()
    assert adam.with_defaults(lazy=False).lazy is False
    assert adam.with_defaults(lazy=None).lazy is True
    assert adam.learning_rate is None and adam.lazy is None


class Shipped(CFSGD):
    average = True


def test_a_subclass_takes_the_defaults_of_its_class():
    model = FastVAERecommender(**SHORT, optimizer=Shipped())
    expected = FastVAERecommender(**SHORT, optimizer=Shipped(0.03))
    assert_array_equal(learned(model), learned(expected))
