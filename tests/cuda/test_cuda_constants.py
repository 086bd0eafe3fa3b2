"""What kernels of a GPU are compiled for."""

import numpy as np
import pytest

from freqfm.backends.base import UpdateRule
from freqfm.backends.cuda.device import kind_of, with_constants
from freqfm.backends.cuda.tables import Step


class DeviceArray(np.ndarray):
    """An array that says whether it is contiguous, as those of a GPU do."""

    def is_c_contiguous(self):
        """Return whether rows stand one after the other."""
        return self.flags.c_contiguous


def array(*shape, dtype=np.float32):
    return np.zeros(shape, dtype=dtype).view(DeviceArray)


def rule(**changed):
    codes = dict.fromkeys(["step_code", "rate_code", "count_code", "catch_up", "decay_code"], 0)
    switches = dict.fromkeys(["lazy", "decoupled", "average"], False)
    numbers = {"decay": np.float32(0), "idle_decay": np.float32(0), "hyper": (np.float32(1),)}
    return UpdateRule(**{**codes, **switches, **numbers, **changed})


ARGS = (Step(rule(), array(3, 2)), np.float32(2), array(4))


@pytest.mark.parametrize(
    "other",
    [
        (Step(rule(step_code=3), array(3, 2)), *ARGS[1:]),
        (Step(rule(lazy=True), array(3, 2)), *ARGS[1:]),
        (*ARGS[:2], array(4, dtype=np.int32)),
        (*ARGS[:2], array(8)[::2]),
        (*ARGS[:2], array(4, 1)),
        (ARGS[0], 2, ARGS[2]),
    ],
)
def test_other_types_and_codes_are_other_kernels(other):
    assert kind_of(other) != kind_of(ARGS)


def test_other_numbers_and_sizes_are_not():
    other = Step(rule(decay=np.float32(1)), array(9, 2)), np.float32(3), array(7)
    assert kind_of(other) == kind_of(ARGS)


def test_constants_replace_what_is_given():
    put = with_constants((Step(rule(step_code=np.int64(3), lazy=np.bool_(True)), array(3, 2)), 5))
    given = Step(rule(step_code=1, decay=np.float32(7)), array(6, 2)), 8
    (step, number) = put(given)
    assert isinstance(step, Step) and step.corrections is given[0].corrections
    assert (step.rule.step_code, step.rule.lazy, step.rule.decay, number) == (3, True, 7, 8)


def test_without_constants_nothing_is_made():
    given = (array(3), 5)
    assert with_constants(given)(given) is given
