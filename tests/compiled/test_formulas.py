"""Formulas of one number, as plain Python: at the ends of their ranges, and against NumPy."""

import math

import numpy as np
import pytest
from helpers import each
from numpy.testing import assert_allclose
from scipy.special import ndtri

from freqfm._numba.jit import as_python
from freqfm.formulas import losses, proposals, rng, selection, steps
from freqfm.optimizers import SGD


@each("n", range(9))
@each("begin", [0, 1, 3])
def test_first_above(n, begin):
    first_above = as_python(selection.first_above)
    # Around the part that is searched are numbers that would be found.
    values = np.concatenate([np.full(begin, 99), np.arange(n) // 2 * 2, np.full(3, -99)])
    for x in range(-2, 11):
        expected = begin + np.searchsorted(values[begin : begin + n], x, side="right")
        assert first_above(values, begin, begin + n, x) == expected


@each("n", [1, 2, 63, 64, 65, 128, 130, 500])
def test_the_first_sum_above_a_number(n):
    find, generator = as_python(proposals.find_in_sums), np.random.default_rng(n)
    sums = np.concatenate([[-5.0, -5.0], np.cumsum(generator.integers(0, 3, n)), [-5.0]])
    for at in np.arange(0, sums.max() + 1):
        # Beyond the last sum, by rounding, it is the last one.
        expected = min(np.searchsorted(sums[2:-1], at, side="right"), n - 1)
        assert find(sums, 2, n, at) == expected


@each("margin", [0.0, 0.3, 1.0])
@each("cosine", [-1.0, -0.98, -0.5, 0.0, 0.7, 1.0])
def test_cosines_with_a_margin(margin, cosine):
    margin_cosine = as_python(losses.margin_cosine)
    value, by_cosine, by_margin = margin_cosine(cosine, margin)
    angle = min(math.acos(cosine) + margin, math.pi)
    assert value == pytest.approx(math.cos(angle), abs=1e-3)
    if abs(cosine) == 1:
        # The derivative of the angle is infinite here.
        assert by_cosine == 0
    elif angle == math.pi:
        assert (value, by_cosine, by_margin) == (-1, 0, 0)
    else:
        h, of_cosine = 1e-6, [margin_cosine(cosine + d, margin)[0] for d in (-1e-6, 1e-6)]
        of_margin = [margin_cosine(cosine, margin + d)[0] for d in (-1e-6, 1e-6)]
        assert by_cosine == pytest.approx((of_cosine[1] - of_cosine[0]) / (2 * h), abs=1e-4)
        assert by_margin == pytest.approx((of_margin[1] - of_margin[0]) / (2 * h), abs=1e-4)
    in_float32 = as_python(losses.margin_cosine_in_float32)
    found = in_float32(np.float32(cosine), np.float32(margin))
    if abs(cosine) < 1:
        assert_allclose(found, (value, by_cosine, by_margin), atol=2e-6, rtol=2e-6)


@each("score", [-1e4, -3.0, 0.5, 2.0, 1e4])
def test_share_of_the_best_does_not_overflow(score):
    share, derivative = as_python(losses.share_of_top)(score, 0.5, 0.01)
    x = (score - 0.5) / 0.01
    assert share == pytest.approx(0.5 * (1 + math.tanh(x / 2)), abs=1e-12)
    assert derivative == pytest.approx(25 * (1 - math.tanh(x / 2) ** 2), abs=1e-9)


@each("positive, negative", [(0.3, 1.2), (2.0, -1.0), (0.5, 0.5), (-90.0, 90.0), (90.0, -90.0)])
def test_gradient_of_a_pair_is_that_of_its_loss(positive, negative):
    positive, negative, share = np.float32([positive, negative, 0.7])
    value, *derivatives = as_python(losses.pair_loss)(positive, negative)
    gap = float(negative) - float(positive)
    assert value == pytest.approx(np.logaddexp(0, gap), rel=1e-5, abs=1e-30)
    found = as_python(losses.pair_gradient)(share, positive, negative)
    assert_allclose(found, 0.7 * np.array(derivatives), rtol=1e-6, atol=1e-12)
    assert_allclose(found[1], 0.7 / (1 + math.exp(-gap)), rtol=1e-5, atol=1e-12)


@each("logit, log_sum", [(0.0, 0.0), (3.0, -2.0), (800.0, -800.0), (-800.0, 800.0)])
def test_softmax_with_its_positive(logit, log_sum):
    total, share = as_python(losses.softmax_with_positive)(logit, log_sum)
    assert total == pytest.approx(np.logaddexp(logit, log_sum))
    assert share == pytest.approx(math.exp(logit - np.logaddexp(logit, log_sum)))


@each("number", [0, 1, 2, 1000, 4000, 12_000, 50_000, 2**23, 2**24 - 1])
def test_normal_numbers_at_both_ends(number):
    normal = as_python(rng.standard_normal)
    quantile = -ndtri((number + 0.5) * 2.0**-25)
    for sign in (0, 1):
        found = normal(np.uint64(number << 40 | sign))
        assert found == pytest.approx(quantile if sign else -quantile, rel=2e-5, abs=2e-6)
        assert abs(found) < 5.55


@each("code", [-1, 6, 77, None])
def test_steps_of_unknown_codes_are_errors_and_move_nothing(code):
    class Unknown(SGD):
        _step_code = code

    with pytest.raises(ValueError, match=f"Unknown has the step code {code}, which no kernel"):
        Unknown(0.1).update_rule()
    rule = SGD(0.1).update_rule()._replace(step_code=code)
    weights, gradient, first, second = np.ones((4, 1, 2), dtype=np.float32)
    one = np.float32(1)
    as_python(steps.step_row)(rule, one, one, weights, 0, gradient[0], first, second)
    row = weights[0], 1, one, first[0], second[0]
    as_python(steps.step_element)(rule, one, one, *row)
    for array in (weights, first, second):
        assert (array == 1).all()
