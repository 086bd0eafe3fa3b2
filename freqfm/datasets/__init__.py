"""Data sets with frequent and rare tokens: synthetic data, loaders of files and downloads."""

from .criteo import load_criteo_tsv
from .csr_files import load_csr, save_csr
from .fetch import fetch_gowalla, fetch_movielens
from .interaction_files import load_interactions
from .interactions import make_interactions
from .libfm import load_libfm
from .one_hot import IncrementalOneHotEncoder
from .streams import RowStream
from .synthetic import make_clicks

__all__ = [
    "IncrementalOneHotEncoder",
    "RowStream",
    "fetch_gowalla",
    "fetch_movielens",
    "load_criteo_tsv",
    "load_csr",
    "load_interactions",
    "load_libfm",
    "make_clicks",
    "make_interactions",
    "save_csr",
]
