"""Auxiliary terms: what training minimises beside the loss, as a function of a batch's vectors."""

from freqfm.auxiliary._base import AuxiliaryTerm, TermBatch, TermEpoch
from freqfm.auxiliary._simgcl import SimGCL

__all__ = ["AUXILIARY_TERMS", "AuxiliaryTerm", "SimGCL", "TermBatch", "TermEpoch"]

AUXILIARY_TERMS = {
    "simgcl": SimGCL,
}
