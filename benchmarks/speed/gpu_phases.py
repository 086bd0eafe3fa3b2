"""Where a launch on a GPU spends its time: cycles of each phase, and of waiting for other blocks.

    python benchmarks/speed/gpu_phases.py --data DIR --case "FM 1024" --case BPR

The first thread reads its clock around every phase and barrier. A phase that others take longer
for is one in which this thread waits. Printed is an epoch after two others: launches, milliseconds,
and cycles for each batch. Without data, synthetic rows and interactions are used.
"""

import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from _data import click_parts, data_parser, movielens_split
from _epochs import EpochsOfFit, power_law_rows
from llvmlite import ir
from numba import types
from numba.cuda.extending import intrinsic

from freqfm import ALSRecommender, FastVAERecommender, FMClassifier, MFRecommender, backends
from freqfm._input.validation import canonical_csr
from freqfm.backends.cuda import device as cuda_device


@intrinsic
def clock(typing_context):
    """Return the cycles of this multiprocessor."""

    def codegen(context, builder, signature, args):
        kind = ir.FunctionType(ir.IntType(64), [])
        read = ir.InlineAsm(kind, "mov.u64 $0, %clock64;", "=l", side_effect=True)
        return builder.call(read, [])

    return types.int64(), codegen


def timed_in_turn(phases, i=0):
    """Do what ``device._in_turn`` does, and add the cycles of the first thread to an array."""
    phase, *others = phases
    barrier = cuda_device._barrier

    def run_phase(group, arrived, b, args):
        given, cycles = args
        begun = clock()
        phase(group, b, given)
        done = clock()
        barrier(arrived)
        if group.rank == 0 and group.lane == 0:
            cycles[2 * i] += done - begun
            cycles[2 * i + 1] += clock() - done

    run_phase = cuda_device._device_function(run_phase)
    if not others:
        return run_phase
    rest = timed_in_turn(others, i + 1)

    def run(group, arrived, b, args):
        run_phase(group, arrived, b, args)
        rest(group, arrived, b, args)

    return cuda_device._device_function(run)


class Record:
    """What launches of the same phases have taken."""

    def __init__(self, n_phases):
        self.launches = self.batches = 0
        self.seconds, self.cycles = 0.0, np.zeros(2 * n_phases, dtype=np.int64)


class Profile:
    """Records of a device's launches."""

    def __init__(self, device):
        self._run, self._device = device.run, device
        cuda_device._in_turn = timed_in_turn
        device.run = self._timed
        self.clear()

    def clear(self):
        """Forget all launches."""
        self.records = {}

    def _timed(self, phases, args, n_lanes, n_items, span=(0, 1), formulas=None):
        names = tuple(phase.__name__ for phase in phases)
        record = self.records.setdefault(names, Record(len(phases)))
        cycles = self._device.to_device(np.zeros_like(record.cycles))
        started = time.perf_counter()
        self._run(phases, (args, cycles), n_lanes, n_items, span, formulas)
        record.seconds += time.perf_counter() - started
        record.launches += 1
        record.batches += span[1] - span[0]
        record.cycles += self._device.to_host(cycles, np.empty_like(record.cycles))

    def show(self, title, seconds):
        """Print the records, the longest first."""
        print(f"\n{title}: {1e3 * seconds:.2f} ms an epoch")
        for names, record in sorted(self.records.items(), key=lambda item: -item[1].seconds):
            print(f"  {1e3 * record.seconds:9.3f} ms  {record.launches} launches, "
                  f"{record.batches} batches  {names[0] if len(names) == 1 else ''}")  # fmt: skip
            if len(names) > 1:
                of_batch = record.cycles.reshape(-1, 2) / record.batches
                for name, (work, wait) in zip(names, of_batch, strict=True):
                    print(f"      {name:22}{work:10.0f} cycles of work{wait:10.0f} of waiting")
        sys.stdout.flush()


def cases(data):
    """Return functions that return what trains an epoch, by name."""
    if data:
        (X, y), *_ = movielens_split(data, 0)
        X, clicks = canonical_csr(X), click_parts(data, "gowalla")[0]
    else:
        X, clicks = power_law_rows(800_000, 9746, 2), power_law_rows(30_000, 40_000, 20)
        y = np.random.default_rng(0).integers(2, size=X.shape[0])
    rows = {"early_stopping": False, "n_iter_no_change": None, "random_state": 0}
    made = {}
    for batch_size in (1024, 65_536):
        model = FMClassifier(64, batch_size=batch_size, device="cuda", **rows)
        made[f"FM {batch_size}"] = lambda model=model: EpochsOfFit(model, X, y)
    for name, model in {
        "softmax": MFRecommender(64, loss="softmax", n_negatives=1024),
        "BPR": MFRecommender(64, loss="bpr"),
        "DirectAU": MFRecommender(64, loss="directau"),
        "ALS": ALSRecommender(64),
        "MIDX": MFRecommender(64, negative_sampler="midx_popularity", n_negatives=50),
        "autoencoder": FastVAERecommender(64, negative_sampler="full"),
        "autoencoder, MIDX": FastVAERecommender(64, negative_sampler="midx_uniform"),
    }.items():
        model.set_params(device="cuda", random_state=0)
        made[name] = lambda model=model: EpochsOfFit(model, clicks)
    return made


def main():
    parser = data_parser(__doc__.splitlines()[0])
    parser.add_argument("--case", action="append", help="only this one; repeatable")
    args = parser.parse_args()
    profile = Profile(backends.get("cuda").device)
    for name, make in cases(args.data).items():
        if args.case and name not in args.case:
            continue
        with make() as epoch:
            for _ in range(3):
                profile.clear()
                started = time.perf_counter()
                epoch()
        profile.show(name, time.perf_counter() - started)


if __name__ == "__main__":
    main()
