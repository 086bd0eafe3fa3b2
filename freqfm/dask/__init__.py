"""Estimators that train on a Dask cluster: the parameters of the plain ones, and a client.

Install Dask with ``pip install 'freqfm[dask]'``. Data are Dask arrays (of NumPy blocks or of sparse
blocks), bags of sparse matrices, or DataFrames; their partitions stay on the workers.
"""

try:
    import dask.array  # noqa: F401
    import distributed  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"freqfm.dask needs Dask, which is not installed completely ({error}); run "
        f"pip install 'freqfm[dask]'."
    ) from error

from freqfm.dask._als import ALSRecommender
from freqfm.dask._closed import EASERecommender, GraphFilterRecommender, ItemKNNRecommender
from freqfm.dask._fm import (
    DeepFMClassifier,
    DeepFMRegressor,
    FFMClassifier,
    FFMRegressor,
    FMClassifier,
    FMRegressor,
    FwFMClassifier,
    FwFMRegressor,
    NFMClassifier,
    NFMRegressor,
    RaFMClassifier,
    RaFMRegressor,
)
from freqfm.dask._interactions import GlobalTimeSplit, InteractionRecommender
from freqfm.dask._mf import MFRecommender

__all__ = [
    "ALSRecommender",
    "DeepFMClassifier",
    "DeepFMRegressor",
    "EASERecommender",
    "FFMClassifier",
    "FFMRegressor",
    "FMClassifier",
    "FMRegressor",
    "FwFMClassifier",
    "FwFMRegressor",
    "GlobalTimeSplit",
    "GraphFilterRecommender",
    "InteractionRecommender",
    "ItemKNNRecommender",
    "MFRecommender",
    "NFMClassifier",
    "NFMRegressor",
    "RaFMClassifier",
    "RaFMRegressor",
]
