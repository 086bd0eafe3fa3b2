"""Auxiliary terms: what training minimises beside the loss, as a function of a batch's vectors."""

from freqfm.auxiliary._terms import IPL, NCL, SGL, AuxiliaryTerm, ReSN, SimGCL, TermBatch, TermEpoch

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

AUXILIARY_TERMS = {"ipl": IPL, "ncl": NCL, "resn": ReSN, "sgl": SGL, "simgcl": SimGCL}
