"""Data sets with frequent and rare tokens: a synthetic click log and loaders of real files."""

from .criteo import load_criteo_tsv
from .libfm import load_libfm
from .synthetic import make_clicks

__all__ = ["load_criteo_tsv", "load_libfm", "make_clicks"]
