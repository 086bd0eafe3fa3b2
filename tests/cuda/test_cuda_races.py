"""No phase of a GPU depends on which of its threads is first."""

from typing import NamedTuple

import numpy as np
import pytest
from races import RacingDevice
from test_cuda_ptx import CASES

from freqfm import backends
from freqfm._numba.jit import inlined
from freqfm.backends.cuda.backend import CUDABackend
from freqfm.backends.cuda.fm import batch as fm
from freqfm.backends.cuda.groups import group_sum, synchronize_group

NAMES = ["softmax", "drawn", "learned", "pairs", "own pairs", "alignment", "autoencoder"]
NAMES += ["autoencoder, drawn", "classes", "ranks", "top k", "histories", "least squares"]
NAMES += ["graph", "graph, in batches"]
NAMES += ["fields and layers", "layers"]


class Args(NamedTuple):
    """What the phases of this file are given."""

    numbers: np.ndarray


@inlined
def write_by_all(group, b, args):
    """Let groups write to the same element."""
    if group.lane == 0:
        args.numbers[0] = group.rank


@inlined
def read_of_others(group, b, args):
    """Let lanes read what others write, without waiting."""
    args.numbers[group.rank * group.n_lanes + group.lane] = group_sum(group, 1)
    group_sum(group, args.numbers[group.rank * group.n_lanes])


@inlined
def read_after_waiting(group, b, args):
    """Let lanes read what others have written."""
    args.numbers[group.rank * group.n_lanes + group.lane] = group.lane
    synchronize_group(group)
    group_sum(group, args.numbers[group.rank * group.n_lanes])


@pytest.mark.parametrize(
    "phase, is_race", [(write_by_all, True), (read_of_others, True), (read_after_waiting, False)]
)
def test_races_are_found(phase, is_race):
    device = RacingDevice()
    device.run((phase,), Args(np.zeros(12)), 4, 3)
    assert bool(device.races) == is_race


@pytest.mark.slow
@pytest.mark.parametrize("case", NAMES)
def test_phases_have_no_races(monkeypatch, case):
    # So that some tokens have several pieces.
    monkeypatch.setattr(fm, "WINDOW", 8)
    device = RacingDevice()
    monkeypatch.setattr(backends, "_cuda", lambda number: CUDABackend(device))
    CASES[case]()
    assert device.launches
    assert device.races == set()
