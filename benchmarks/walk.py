"""What a reader of a fit passes: files, frames from ``fit`` to a kernel, classes of the estimator.

Counted by ``sys.setprofile`` while small models are fitted with one thread and nothing is compiled,
so that kernels are functions of Python. Files of ``freqfm/formulas`` are not counted. Frames are
those from ``fit`` to a kernel that an epoch runs, both included. Classes are those of the package
that the estimator derives from.

    python benchmarks/walk.py
    python benchmarks/walk.py --files       # and which
"""

import argparse
import os
import sys
from pathlib import Path

os.environ["NUMBA_DISABLE_JIT"] = "1"

import freqfm
from freqfm.datasets import make_clicks, make_interactions

PACKAGE = str(Path(freqfm.__file__).parent)


class Walk:
    """Files that are passed during a call, and the frames from it to a kernel of an epoch."""

    def __init__(self, kernels):
        self._kernels = kernels
        self.files, self.frames = set(), []

    def __enter__(self):
        sys.setprofile(self._on_event)
        return self

    def __exit__(self, *raised):
        sys.setprofile(None)

    def _on_event(self, frame, event, arg):
        if event != "call" or not frame.f_code.co_filename.startswith(PACKAGE):
            return
        self.files.add(frame.f_code.co_filename[len(PACKAGE) + 1 :])
        if frame.f_code in self._kernels:
            names = frames_above(frame)
            if any(name.startswith("run_epoch ") for name in names):
                self.frames = max(self.frames, names, key=len)


def frames_above(frame):
    """Return the names and files of the package's frames, outermost first."""
    found = []
    while frame is not None:
        code = frame.f_code
        # What stands for a compiled function while nothing is compiled is no step for a reader.
        if code.co_filename.startswith(PACKAGE) and not code.co_filename.endswith("jit.py"):
            found.append(f"{code.co_name} {code.co_filename[len(PACKAGE) + 1 :]}")
        frame = frame.f_back
    return found[::-1]


def kernels():
    """Return the code of all kernels that are loaded."""
    from freqfm._numba import jit

    return {f.__code__ for f, decorator in jit._DECORATED.values() if decorator is jit.kernel}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", action="store_true", help="list files, frames and classes")
    args = parser.parse_args()
    clicks = make_clicks(60, random_state=0)
    X, y = clicks[0], clicks[1]
    interactions = make_interactions(20, 15, 100, random_state=0)
    params = {"max_iter": 1, "n_jobs": 1, "random_state": 0}
    fits = {
        freqfm.MFRecommender(4, **params): (interactions,),
        freqfm.FastVAERecommender(4, **params): (interactions,),
        freqfm.ALSRecommender(4, **params): (interactions,),
        freqfm.FMClassifier(4, **params): (X, y),
    }
    for model, data in fits.items():
        # Modules are imported by a first fit.
        model.fit(*data)
        with Walk(kernels()) as walk:
            model.fit(*data)
        files = sorted(file for file in walk.files if not file.startswith("formulas"))
        bases = [cls for cls in type(model).__mro__[1:] if cls.__module__.startswith("freqfm")]
        counts = f"{len(files)} files, {len(walk.frames)} frames, {len(bases)} classes above it"
        print(f"{type(model).__name__}: {counts}")
        if args.files:
            names = [f"{cls.__name__} {cls.__module__}" for cls in bases]
            print("  " + "\n  ".join([*files, "", *walk.frames, "", *names]))


if __name__ == "__main__":
    main()
