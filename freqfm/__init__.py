"""freqfm: factorization machines and recommenders that use how often each token occurs.

Public names are imported on first use, so that ``import freqfm`` takes milliseconds; importing
scikit-learn and numba, which the estimators need, takes about a second.
"""

import importlib
from typing import TYPE_CHECKING, Any

from freqfm._versions import __version__, show_versions
from freqfm.exceptions import DivergenceError

# For type checkers: the names below.
if TYPE_CHECKING:
    # isort: off
    from freqfm import (
        auxiliary as auxiliary,
        backbones as backbones,
        callbacks as callbacks,
        datasets as datasets,
        displays as displays,
        initializers as initializers,
        losses as losses,
        metrics as metrics,
        model_selection as model_selection,
        optimizers as optimizers,
        reranking as reranking,
        samplers as samplers,
        temperatures as temperatures,
        testing as testing,
    )
    from freqfm.estimators.recommenders.blend import BlendRecommender as BlendRecommender
    from freqfm.estimators.fm.by_field import (
        FFMClassifier as FFMClassifier,
        FFMRegressor as FFMRegressor,
        FwFMClassifier as FwFMClassifier,
        FwFMRegressor as FwFMRegressor,
    )
    from freqfm.estimators.fm.deep import (
        DeepFMClassifier as DeepFMClassifier,
        DeepFMRegressor as DeepFMRegressor,
        NFMClassifier as NFMClassifier,
        NFMRegressor as NFMRegressor,
    )
    from freqfm.estimators.fm.explanations import explain as explain
    from freqfm.estimators.fm.fields import WithFields as WithFields, column_fields as column_fields
    from freqfm.estimators.fm.plain import (
        FMClassifier as FMClassifier,
        FMRegressor as FMRegressor,
        RaFMClassifier as RaFMClassifier,
        RaFMRegressor as RaFMRegressor,
    )
    from freqfm.estimators.recommenders.als import ALSRecommender as ALSRecommender
    from freqfm.estimators.recommenders.closed_form.ease import EASERecommender as EASERecommender
    from freqfm.estimators.interactions.recommender import (
        InteractionRecommender as InteractionRecommender,
    )
    from freqfm.estimators.recommenders.closed_form.graph_filter import (
        GraphFilterRecommender as GraphFilterRecommender,
    )
    from freqfm.estimators.recommenders.closed_form.item_knn import (
        ItemKNNRecommender as ItemKNNRecommender,
    )
    from freqfm.estimators.recommenders.closed_form.base import (
        PopularityRecommender as PopularityRecommender,
    )
    from freqfm.estimators.recommenders.mf import MFRecommender as MFRecommender
    from freqfm.estimators.recommenders.base import recommend as recommend
    from freqfm.estimators.recommenders.vae import FastVAERecommender as FastVAERecommender
    from freqfm.estimators.word2vec.model import Word2Vec as Word2Vec

_PACKAGES = (
    *("auxiliary", "backbones", "callbacks", "datasets", "displays", "initializers", "losses"),
    *("metrics", "model_selection", "optimizers", "reranking", "samplers", "temperatures"),
    "testing",
)
_KINDS = "Classifier", "Regressor"
_NAMES = {
    "estimators.recommenders.blend": ["BlendRecommender"],
    "estimators.fm.by_field": [f"{m}{kind}" for m in ("FFM", "FwFM") for kind in _KINDS],
    "estimators.fm.deep": [f"{m}{kind}" for m in ("DeepFM", "NFM") for kind in _KINDS],
    "estimators.fm.plain": [f"{m}{kind}" for m in ("FM", "RaFM") for kind in _KINDS],
    "estimators.recommenders.als": ["ALSRecommender"],
    "estimators.recommenders.closed_form.ease": ["EASERecommender"],
    "estimators.recommenders.closed_form.graph_filter": ["GraphFilterRecommender"],
    "estimators.recommenders.closed_form.item_knn": ["ItemKNNRecommender"],
    "estimators.recommenders.closed_form.base": ["PopularityRecommender"],
    "estimators.recommenders.mf": ["MFRecommender"],
    "estimators.recommenders.vae": ["FastVAERecommender"],
    "estimators.interactions.recommender": ["InteractionRecommender"],
    "estimators.word2vec.model": ["Word2Vec"],
    "estimators.fm.fields": ["WithFields", "column_fields"],
    "estimators.fm.explanations": ["explain"],
    "estimators.recommenders.base": ["recommend"],
}
_LAZY = {name: f"freqfm.{module}" for module, names in _NAMES.items() for name in names}
_LAZY |= dict.fromkeys(_PACKAGES)

__all__ = ["DivergenceError", "__version__", "show_versions", *_LAZY]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'freqfm' has no attribute {name!r}")
    module = importlib.import_module(_LAZY[name] or f"freqfm.{name}")
    return getattr(module, name) if _LAZY[name] else module


def __dir__() -> list[str]:
    return sorted(__all__)
