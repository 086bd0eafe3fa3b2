"""Auxiliary terms: what training minimises beside the loss, as a function of a batch's vectors."""

from freqfm.auxiliary._base import AuxiliaryTerm, TermBatch, TermEpoch
from freqfm.auxiliary._ncl import NCL
from freqfm.auxiliary._sgl import SGL
from freqfm.auxiliary._simgcl import SimGCL

__all__ = ["AUXILIARY_TERMS", "NCL", "SGL", "AuxiliaryTerm", "SimGCL", "TermBatch", "TermEpoch"]

AUXILIARY_TERMS = {
    "ncl": NCL,
    "sgl": SGL,
    "simgcl": SimGCL,
}
