"""Elementary functions in float32 by polynomials, without a call to a library."""

import math

import numpy as np

from freqfm._jit import HALF, ONE, inlined

_LOG2_E = np.float32(1 / math.log(2))
_TWO = np.float32(2)
_LARGEST = np.float32(87)
# 2^r = sum (r ln 2)^k / k!, for |r| <= 1/2 to 5e-9.
_E1, _E2, _E3, _E4, _E5, _E6, _E7 = (
    np.float32(math.log(2) ** k / math.factorial(k)) for k in range(1, 8)
)
# log(1 + z) = 2 artanh(w) = 2 w sum w^2k / (2 k + 1), w = z / (2 + z) <= 1/3, to 2e-9.
_L1, _L2, _L3, _L4, _L5, _L6, _L7 = (np.float32(1 / (2 * k + 1)) for k in range(1, 8))


@inlined
def exp_of_minus(a):
    """Return exp(-a) for a >= 0, to a relative 1e-7 (1 + a / 2); never less than exp(-87)."""
    t = -min(a, _LARGEST) * _LOG2_E
    n = np.int32(t - HALF)  # rounds, since t is not positive
    r = t - np.float32(n)
    power = _E4 + r * (_E5 + r * (_E6 + r * _E7))
    power = ONE + r * (_E1 + r * (_E2 + r * (_E3 + r * power)))
    # 2^n by its bits: the exponent of a float32 starts at bit 23, with an offset of 127.
    return power * np.int32((n + np.int32(127)) << np.int32(23)).view(np.float32)


@inlined
def log_of_one_plus(z):
    """Return log(1 + z) for 0 <= z <= 1, to two units in the last place."""
    w = z / (_TWO + z)
    s = w * w
    series = _L4 + s * (_L5 + s * (_L6 + s * _L7))
    return _TWO * w * (ONE + s * (_L1 + s * (_L2 + s * (_L3 + s * series))))
