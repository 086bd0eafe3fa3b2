"""Seconds and memory, and which packages can be compared with."""

import gc
import importlib.util
import resource
import sys
import time
from pathlib import Path

import numpy as np


def installed(*names):
    """Return whether all modules are there."""
    return all(importlib.util.find_spec(name) for name in names)


def quartiles(calls, repeats):
    """Time calls in turns; return the quartiles of each one's seconds by its key."""
    for call in calls.values():
        call()
    seconds = {key: [] for key in calls}
    for _ in range(repeats):
        for key, call in calls.items():
            start = time.perf_counter()
            call()
            seconds[key].append(time.perf_counter() - start)
    return {key: np.quantile(taken, [0.25, 0.5, 0.75]).tolist() for key, taken in seconds.items()}


def take_turns(contenders, repeats):
    """Let contenders take turns; return the seconds of each, without the first turn."""
    for contender in contenders.values():
        contender.epoch()
    seconds = {name: [] for name in contenders}
    for _ in range(repeats):
        for name, contender in contenders.items():
            seconds[name].append(contender.epoch())
    return seconds


def peak():
    """Return the peak of this process's resident memory in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def resident():
    """Return this process's resident memory in bytes, or its peak if the system only has that.

    From here on the peak is that of what follows, on Linux.
    """
    gc.collect()
    try:
        Path("/proc/self/clear_refs").write_text("5")
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return peak()
    return pages * resource.getpagesize()
