"""Elementary functions in float32 by polynomials, without a call to a library."""

import math

import numpy as np

from freqfm._numba.jit import HALF, ONE, inlined

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


# arctan(t) = sum (-1)^k t^(2 k + 1) / (2 k + 1), for t <= tan(pi / 8) to 7e-9.
_A1, _A2, _A3, _A4, _A5, _A6, _A7, _A8 = (np.float32((-1) ** k / (2 * k + 1)) for k in range(1, 9))
_TAN_OF_EIGHTH, _QUARTER = np.float32(math.tan(math.pi / 8)), np.float32(math.pi / 4)


@inlined
def arctangent(x):
    """Return arctan(x) for x between -1 and 1, to 1e-7."""
    a = abs(x)
    # Beyond tan(pi / 8) the series is that of the small angle to the diagonal.
    far = a > _TAN_OF_EIGHTH
    t = (a - ONE) / (a + ONE) if far else a
    s = t * t
    series = _A4 + s * (_A5 + s * (_A6 + s * (_A7 + s * _A8)))
    angle = t * (ONE + s * (_A1 + s * (_A2 + s * (_A3 + s * series))))
    angle += _QUARTER if far else np.float32(0)
    return angle if x >= np.float32(0) else -angle


# Series of the sine and the cosine.
_S1, _S2, _S3, _S4, _S5 = (np.float32((-1) ** k / math.factorial(2 * k + 1)) for k in range(1, 6))
_C1, _C2, _C3, _C4, _C5 = (np.float32((-1) ** k / math.factorial(2 * k)) for k in range(1, 6))


@inlined
def sine_and_cosine(x):
    """Return sin(x) and cos(x) for x between -1 and 1, to 1e-7."""
    s = x * x
    sine = x * (ONE + s * (_S1 + s * (_S2 + s * (_S3 + s * (_S4 + s * _S5)))))
    return sine, ONE + s * (_C1 + s * (_C2 + s * (_C3 + s * (_C4 + s * _C5))))


_LN_2 = np.float32(math.log(2))


@inlined
def log_of(a):
    """Return log(a) for a positive normal number, to about 1e-7 (1 + abs(log(a)))."""
    # The bits of a float32: from bit 23 on the exponent, with an offset of 127; below the mantissa.
    bits = np.float32(a).view(np.int32)
    exponent = (bits >> np.int32(23)) - np.int32(127)
    mantissa = np.int32((bits & np.int32(0x7FFFFF)) | np.int32(0x3F800000)).view(np.float32)
    return np.float32(exponent) * _LN_2 + log_of_one_plus(mantissa - ONE)


# Polynomials in w - 2.5 for w < 5, and in sqrt(w) - 3, of the inverse error function of x over x,
# with w = -log(1 - x^2); from M. Giles, "Approximating the erfinv function", 2010.
_N0, _N1, _N2, _N3, _N4, _N5, _N6, _N7, _N8 = (
    np.float32(c)
    for c in (1.50140941, 0.246640727, -0.00417768164, -0.00125372503, 0.00021858087,
              -4.39150654e-06, -3.5233877e-06, 3.43273939e-07, 2.81022636e-08)
)  # fmt: skip
_F0, _F1, _F2, _F3, _F4, _F5, _F6, _F7, _F8 = (
    np.float32(c)
    for c in (2.83297682, 1.00167406, 0.00943887047, -0.0076224613, 0.00573950773,
              -0.00367342844, 0.00134934322, 0.000100950558, -0.000200214257)
)  # fmt: skip
_SQRT_2 = np.float32(math.sqrt(2))


@inlined
def normal_upper_quantile(q):
    """Return the upper quantile q of the standard normal distribution, 2^-26 <= q <= 1/2.

    It is accurate to 1e-5, and to 2e-6 where it is below 5.
    """
    w = -log_of(_TWO * _TWO * q * (ONE - q))
    if w < np.float32(5):
        w -= np.float32(2.5)
        p = _N4 + w * (_N5 + w * (_N6 + w * (_N7 + w * _N8)))
        p = _N0 + w * (_N1 + w * (_N2 + w * (_N3 + w * p)))
    else:
        w = np.float32(math.sqrt(w)) - np.float32(3)
        p = _F4 + w * (_F5 + w * (_F6 + w * (_F7 + w * _F8)))
        p = _F0 + w * (_F1 + w * (_F2 + w * (_F3 + w * p)))
    return _SQRT_2 * p * (ONE - _TWO * q)
