"""Auxiliary terms: what training minimises beside the loss, as a function of a batch's vectors."""

from freqfm.auxiliary._base import AuxiliaryTerm, TermBatch, TermEpoch
from freqfm.auxiliary._ipl import IPL
from freqfm.auxiliary._ncl import NCL
from freqfm.auxiliary._resn import ReSN
from freqfm.auxiliary._sgl import SGL
from freqfm.auxiliary._simgcl import SimGCL

__all__ = [
    "AUXILIARY_TERMS",
    "IPL",
    "NCL",
    "SGL",
    "AuxiliaryTerm",
    "ReSN",
    "SimGCL",
    "TermBatch",
    "TermEpoch",
]

AUXILIARY_TERMS = {
    "ipl": IPL,
    "ncl": NCL,
    "resn": ReSN,
    "sgl": SGL,
    "simgcl": SimGCL,
}
