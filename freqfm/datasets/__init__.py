"""Data sets with frequent and rare tokens: synthetic data, loaders of files and downloads."""

from freqfm.datasets.csr_files import load_csr, save_csr
from freqfm.datasets.fetch import fetch_gowalla, fetch_movielens
from freqfm.datasets.one_hot import IncrementalOneHotEncoder
from freqfm.datasets.streams import RowStream
from freqfm.datasets.synthetic import make_clicks, make_interactions
from freqfm.datasets.text_files import dump_libffm, load_interactions, load_libffm, load_libfm

__all__ = [
    "IncrementalOneHotEncoder",
    "RowStream",
    "dump_libffm",
    "fetch_gowalla",
    "fetch_movielens",
    "load_csr",
    "load_interactions",
    "load_libffm",
    "load_libfm",
    "make_clicks",
    "make_interactions",
    "save_csr",
]
