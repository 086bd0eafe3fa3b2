"""Data sets with frequent and rare tokens: synthetic data, loaders of files and downloads."""

from freqfm.datasets.criteo import load_criteo_tsv
from freqfm.datasets.csr_files import load_csr, save_csr
from freqfm.datasets.fetch import fetch_gowalla, fetch_movielens
from freqfm.datasets.interaction_files import load_interactions
from freqfm.datasets.interactions import make_interactions
from freqfm.datasets.libffm import dump_libffm, load_libffm
from freqfm.datasets.libfm import load_libfm
from freqfm.datasets.one_hot import IncrementalOneHotEncoder
from freqfm.datasets.streams import RowStream
from freqfm.datasets.synthetic import make_clicks

__all__ = [
    "IncrementalOneHotEncoder",
    "RowStream",
    "dump_libffm",
    "fetch_gowalla",
    "fetch_movielens",
    "load_criteo_tsv",
    "load_csr",
    "load_interactions",
    "load_libffm",
    "load_libfm",
    "make_clicks",
    "make_interactions",
    "save_csr",
]
