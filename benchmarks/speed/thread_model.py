"""Predicts the seconds of an epoch with more threads than this machine has cores.

An epoch is trained by so many threads, of which one runs at a time. At each barrier a thread notes
how much of a core's time it has had since the one before; of several repeats of the same epoch, the
least counts. The prediction is the sum over barriers of the longest thread's time, plus what
barriers and calls are assumed to cost, plus the time in which one thread works alone between calls.
Printed are the times of each phase, the longest thread's and the mean, and predicted against
measured seconds for one thread and two.

    python benchmarks/speed/thread_model.py --threads 16

Threads do not slow each other down here as they do on cores that share the memory, and each pays
for caches that others have filled; the first of each phase pays most. Linux only.
"""

import argparse
import contextlib
import functools
import re
import sys
import time
from collections import defaultdict
from pathlib import Path
from unittest import mock

import numba
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from _epochs import Epochs, power_law_rows
from numba import types

from freqfm import FastVAERecommender, FMClassifier, MFRecommender
from freqfm._numba.jit import KERNELS, inlined, kernel, python_function, specialised
from freqfm.backends.cpu import team
from freqfm.backends.cpu.team import Team, wait

# Assumed: seconds for each thread but the first that a barrier takes, and that waking a thread for
# a call does. A barrier of two threads was measured to take 0.1 to 0.4 microseconds.
BARRIER, WAKE = 0.2e-6, 10e-6

# What is done before each barrier of a batch, and, last, what is done before the first barrier of
# the batch after it.
PHASES = {
    "softmax_train": ("list", "gather", "score", "rows", "gradients", "finish", "move"),
    "pairwise_train": ("rows", "move"),
}


# In the array that the barriers of a call have: how many turns are over, when the present one
# began, where the clock writes, a semaphore for each rank, and the nanoseconds of each turn.
TURN, BEGIN, TIME, SEMAPHORES, TURNS = 0, 8, 16, 24, 4096

# What a semaphore takes, in numbers of that array, is at most a cache line.
_LINE = 8
_sem_post = types.ExternalFunction("sem_post", types.int32(types.voidptr))
_sem_wait = types.ExternalFunction("sem_wait", types.int32(types.voidptr))
_clock_gettime = types.ExternalFunction("clock_gettime", types.int32(types.int32, types.voidptr))
_CLOCK = np.int32(getattr(time, "CLOCK_THREAD_CPUTIME_ID", 0))


@inlined
def thread_time(log):
    """Return how many nanoseconds of a core this thread has had."""
    _clock_gettime(_CLOCK, log[TIME:].ctypes)
    return log[TIME] * 1_000_000_000 + log[TIME + 1]


@inlined
def await_turn(log, rank):
    """Wait until it is a rank's turn, and note when it begins."""
    _sem_wait(log[SEMAPHORES + rank * _LINE :].ctypes)
    log[BEGIN] = thread_time(log)


@inlined
def end_turn(log, size):
    """Note how long a turn was, and let the next rank's begin; return whose turn it was."""
    turn = log[TURN]
    log[TURNS + turn] = thread_time(log) - log[BEGIN]
    log[TURN] = turn + 1
    _sem_post(log[SEMAPHORES + (turn + 1) % size * _LINE :].ctypes)
    return turn % size


@inlined
def take_turns(log, size):
    """Let all other threads work up to the barrier at which this one has arrived."""
    await_turn(log, end_turn(log, size))


@kernel
def begin_call(log, rank):
    """Wait until it is a thread's first turn, which rank 0 begins at once."""
    if rank > 0:
        await_turn(log, rank)


@kernel
def end_call(log, rank, size):
    """End a thread's last turn; rank 0 returns after all others."""
    end_turn(log, size)
    if rank == 0:
        await_turn(log, rank)


@numba.njit
def take(*args):
    """Take the arguments of a kernel."""


class Clock:
    """How long each thread works before each barrier, in each call of a kernel."""

    def __init__(self):
        self.log = np.zeros(1 << 22, dtype=np.int64)
        self.reset()

    def reset(self):
        """Forget all calls."""
        self.calls, self.taking, self.alone = [], {}, 0.0
        self.left = time.thread_time()

    def specialised(self, kernel, replacements):
        """Return a kernel with clocks; called instead of ``specialised``."""
        if kernel not in KERNELS:
            return kernel
        replacements = {**(replacements or {}), wait: python_function(take_turns)}
        return functools.partial(self.run, specialised(kernel, replacements))

    def run(self, kernel, rank, size, _, *args):
        """Call a kernel; note how long taking its arguments and each of its phases takes."""
        if rank == 0:
            self.alone += time.thread_time() - self.left
        log = self.log
        begin_call(log, rank)
        # Compiled at the first of these, then timed.
        for _ in range(2):
            start = time.thread_time()
            take(rank, size, log, *args)
            self.taking[rank] = time.thread_time() - start
        log[BEGIN] = time.thread_time_ns()
        result = kernel(rank, size, log, *args)
        end_call(log, rank, size)
        if rank == 0:
            self.note(kernel, size)
        return result

    def note(self, kernel, size):
        """Note a call that has ended."""
        log, taking = self.log, np.array([self.taking[rank] for rank in range(size)])
        # Variants of kernels have a number at the end of their name.
        name = re.sub("_[0-9a-f]{16}$", "", kernel.__qualname__)
        times = 1e-9 * log[TURNS : TURNS + log[TURN]].reshape(-1, size)
        times[0] -= taking
        self.calls.append((name, times, taking.sum()))
        log[TURN] = 0
        self.left = time.thread_time()


def phase_of(name, place, n_barriers, size):
    """Return what a kernel does before a barrier, given the place of the barrier in the call."""
    if name == "fm_train":
        # A batch for each thread is prepared at a time.
        place %= 2 * size + 1
        return "prepare" if place == 1 else "rows" if place and place % 2 == 0 else "tokens"
    phases = PHASES.get(name, range(n_barriers))
    # The last step of a call ends without a barrier.
    return phases[-1 if 0 < place == n_barriers - 1 else place % len(phases)]


class Prediction:
    """The phases of an epoch that was trained several times, and how long it takes."""

    def __init__(self, epochs, overhead):
        self.phases = defaultdict(lambda: np.zeros(3))
        self.alone = min(alone for _, alone in epochs)
        self.calling = self.n_calls = 0
        for repeats in zip(*(calls for calls, _ in epochs), strict=True):
            name = repeats[0][0]
            times = np.min([times for _, times, _ in repeats], axis=0) - overhead
            n_barriers, size = times.shape
            for place, seconds in enumerate(times.clip(0)):
                phase = name, phase_of(name, place, n_barriers, size)
                self.phases[phase] += seconds.max(), seconds.mean(), place < n_barriers - 1
            # Threads take arguments one after the other, under Python's lock.
            self.calling += min(taking for _, _, taking in repeats) + WAKE * (size - 1)
            self.n_calls += 1
            self.size = size

    @property
    def seconds(self):
        """Seconds of an epoch."""
        longest, _, n_barriers = sum(self.phases.values())
        return longest + n_barriers * BARRIER * (self.size - 1) + self.calling + self.alone

    def show(self):
        """Print the phases."""
        for (name, phase), (longest, mean, n_barriers) in self.phases.items():
            print(f"    {name:24} {phase!s:10} {n_barriers:6.0f} barriers, longest "
                  f"{1e3 * longest:8.2f} ms, mean {1e3 * mean:8.2f} ms")  # fmt: skip
        print(f"    {self.n_calls} calls, which begin in {1e3 * self.calling:.2f} ms; between them "
              f"one thread works for {1e3 * self.alone:.2f} ms")  # fmt: skip


@contextlib.contextmanager
def all_threads():
    """Let so many threads take part as are asked for."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(team, "free_cores", lambda wanted: wanted))
        for module in "_machine", "_input.validation":
            stack.enter_context(mock.patch(f"freqfm.{module}.cores", lambda: 1024))
        yield


@kernel
def synchronize_only(rank, size, barrier, n):
    """Wait at the barrier so many times."""
    for _ in range(n):
        wait(barrier, size)


def predict(make, size, repeats):
    """Return the Prediction of an epoch with ``size`` threads."""
    clock, epochs = Clock(), []
    with all_threads(), mock.patch.object(team, "specialised", clock.specialised):
        with Team(size) as members:
            members.run(synchronize_only, 200)
        overhead = np.median(clock.calls[-1][1])
        epoch = make(size)
        for _ in range(1 + repeats):
            epoch.restart()
            clock.reset()
            epoch()
            epochs.append((clock.calls, clock.alone))
    return Prediction(epochs[1:], overhead)


def measure(make, sizes, repeats):
    """Return the least seconds of an epoch by the number of threads, which take turns."""
    with all_threads():
        epochs = {size: make(size) for size in sizes}
        seconds = defaultdict(list)
        for _ in range(1 + repeats):
            for size, epoch in epochs.items():
                seconds[size].append(epoch())
    return {size: min(taken[1:]) for size, taken in seconds.items()}


def fm(size, tokens, batch_size=1024):
    """Return epochs of a factorization machine on rows of so many tokens."""
    X = power_law_rows(32 * batch_size, 100_000, tokens)
    y = np.random.default_rng(1).integers(2, size=X.shape[0])
    model = FMClassifier(batch_size=batch_size, early_stopping=False, random_state=0, n_jobs=size)
    return Epochs(model, X, y)


def mf(size, n_users=8_000, **params):
    """Return epochs of matrix factorization."""
    X = power_law_rows(n_users, 20_000, 40)
    return Epochs(MFRecommender(init="xavier", random_state=0, n_jobs=size, **params), X)


def bpr(size, batch_size):
    """Return epochs by ``"bpr"``, whose batches take less time, so that there are more of them."""
    return mf(size, 20_000, loss="bpr", batch_size=batch_size)


def vae(size, batch_size, **params):
    """Return epochs of a variational autoencoder."""
    X = power_law_rows(2_000, 20_000, 40)
    params |= {"batch_size": batch_size, "random_state": 0, "n_jobs": size}
    return Epochs(FastVAERecommender(**params), X)


CASES = {
    "BSL": lambda n: mf(n, batch_size=1024),
    "BSL, batches of 4,096": lambda n: mf(n, batch_size=4096),
    "softmax": lambda n: mf(n, batch_size=1024, loss="softmax"),
    "softmax, batches of 4,096": lambda n: mf(n, batch_size=4096, loss="softmax"),
    "BPR": lambda n: bpr(n, 1024),
    "BPR, batches of 4,096": lambda n: bpr(n, 4096),
    "VAE": lambda n: vae(n, 256, negative_sampler="full"),
    "VAE, batches of 1,024": lambda n: vae(n, 1024, negative_sampler="full"),
    "FM, rows of 10 tokens": lambda n: fm(n, 10),
    "FM, rows of 10 tokens, batches of 4,096": lambda n: fm(n, 10, 4096),
    "FM, rows of 39 tokens": lambda n: fm(n, 39),
    "FM, rows of 39 tokens, batches of 4,096": lambda n: fm(n, 39, 4096),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=16, help="of the prediction")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--case", choices=CASES, action="append", help="only this one; repeatable")
    args = parser.parse_args()
    for name in args.case or CASES:
        print(name)
        predictions = {n: predict(CASES[name], n, args.repeats) for n in (1, 2, args.threads)}
        predictions[args.threads].show()
        measured = measure(CASES[name], (1, 2), args.repeats)
        for n, prediction in predictions.items():
            found = f", measured {measured[n]:.4f} s" if n in measured else ""
            print(f"  {n} threads: predicted {prediction.seconds:.4f} s{found}, "
                  f"{predictions[1].seconds / prediction.seconds:.2f} times as fast as one",
                  flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
