"""Temperatures of the softmax: fixed, from a closed form, per user, or learned.

A strategy fills one array with two inverse temperatures for each user, and updates it after every
epoch.
"""

from freqfm.temperatures._strategies import (
    AdapTau,
    AdapTau0,
    CuTau,
    DensityTemperature,
    FixedTemperature,
    LearnedTemperature,
    LearnedUserTemperature,
    Snapshot,
    Temperature,
)

__all__ = [
    "TEMPERATURES",
    "AdapTau",
    "AdapTau0",
    "CuTau",
    "DensityTemperature",
    "FixedTemperature",
    "LearnedTemperature",
    "LearnedUserTemperature",
    "Snapshot",
    "Temperature",
]

TEMPERATURES = {
    "density": DensityTemperature,
    "adap_tau0": AdapTau0,
    "adap_tau": AdapTau,
    "learned": LearnedTemperature,
    "learned_user": LearnedUserTemperature,
    "cu_tau": CuTau,
}
