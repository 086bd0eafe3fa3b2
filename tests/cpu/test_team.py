"""Teams of threads: barriers, exceptions, and fits in threads, forks and worker processes."""

import faulthandler
import multiprocessing
import os
import signal
import textwrap
import threading
import time
import warnings

import numba
import numpy as np
import processes
import pytest
import threadpoolctl
from custom_components import Hinge, Momentum
from joblib.externals.loky import get_reusable_executor
from joblib.externals.loky.backend import context as loky_context
from llvmlite import binding
from numpy.testing import assert_array_equal
from scipy import sparse
from sklearn.model_selection import GridSearchCV

from freqfm import (
    ALSRecommender,
    FastVAERecommender,
    FFMClassifier,
    FMClassifier,
    FwFMClassifier,
    MFRecommender,
    RaFMClassifier,
    _machine,
)
from freqfm._input import validation as _validation
from freqfm._input.validation import count_threads
from freqfm._machine import single_threaded_blas
from freqfm._messages import warn_once
from freqfm._numba import instructions
from freqfm._numba.jit import JIT_DISABLED, KERNELS, kernel
from freqfm.backends.cpu import team as team_module
from freqfm.backends.cpu.fm.plain import fm_train
from freqfm.backends.cpu.team import Team, wait

pytestmark = pytest.mark.skipif(JIT_DISABLED, reason="plain Python has teams of one only")

# What the fixture ``whole_teams`` replaces.
free_cores, cores = team_module.free_cores, _machine.cores
current_core = team_module._current_core

# Slots of two threads are a cache line apart.
STRIDE = 8


@kernel
def keep_step(rank, size, barrier, slots, n_rounds):
    """Write the round's number, wait, check that all have written it, wait; count failures."""
    failures = 0
    for i in range(1, n_rounds + 1):
        slots[rank * STRIDE] = i
        wait(barrier, size)
        for other in range(size):
            if slots[other * STRIDE] != i:
                failures += 1
        wait(barrier, size)
    slots[rank * STRIDE] = -failures
    return failures


@kernel
def meet(rank, size, barrier):
    """Wait for the others."""
    wait(barrier, size)
    return rank


# KERNELS lists those of the package.
KERNELS.remove(keep_step)
KERNELS.remove(meet)


@pytest.fixture(autouse=True)
def no_hang(capfd):
    """End the process, with the stacks of all threads, rather than hang."""
    with capfd.disabled():
        stderr = os.dup(2)
    faulthandler.dump_traceback_later(120, exit=True, file=stderr)
    yield
    faulthandler.cancel_dump_traceback_later()
    os.close(stderr)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_every_rank_runs_once(size):
    calls = []

    def note(rank, team_size, barrier, *args):
        calls.append((rank, team_size, args))
        return "first" if rank == 0 else "other"

    with Team(size) as team:
        for _ in range(3):
            calls.clear()
            assert team.run(note, 7, "x") == "first"
            assert sorted(calls) == [(rank, size, (7, "x")) for rank in range(size)]


def test_ranks_run_at_once_and_rank_0_in_the_calling_thread():
    threads = {}

    def note(rank, size, barrier):
        threads[rank] = threading.get_ident()
        return meet(rank, size, barrier)

    with Team(3) as team:
        assert team.run(note) == 0
    assert len(set(threads.values())) == 3
    assert threads[0] == threading.get_ident()


def team_threads():
    return {thread for thread in threading.enumerate() if thread.name == "freqfm-team"}


def test_threads_work_for_one_team_after_the_other_and_then_end(monkeypatch):
    monkeypatch.setattr(team_module, "_SECONDS_IDLE", 0.2)
    monkeypatch.setattr(team_module, "_idle", [])
    before = team_threads()
    for _ in range(3):
        with Team(3) as team:
            team.run(meet)
    started = team_threads() - before
    assert len(started) == 2
    with Team(2) as team, Team(3):
        # Longer than a thread stays idle: it belongs to a team.
        time.sleep(0.5)
        assert team.run(meet) == 0
        assert len(team_threads() - before) == 3
    for thread in team_threads() - before:
        thread.join(10)
    assert team_threads() <= before
    assert not team_module._idle


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_barriers_keep_threads_in_step(size):
    # Seven threads are more than the cores of most test machines, and all have to take turns.
    slots = np.zeros(size * STRIDE, dtype=np.int64)
    with Team(size) as team:
        for n_rounds in (2_000, 1, 500):
            assert team.run(keep_step, slots, n_rounds) == 0
            assert_array_equal(slots[::STRIDE], 0)


PROCESSOR = binding.get_process_triple().partition("-")[0]


HAS_PAUSE = pytest.mark.skipif(
    JIT_DISABLED or PROCESSOR not in instructions._PAUSES, reason="has no instruction"
)


@HAS_PAUSE
def test_threads_that_wait_pause():
    look = numba.njit(lambda: instructions.pause())
    look()
    (code,) = look.inspect_llvm().values()
    assert instructions._PAUSES[PROCESSOR][0] in code


@pytest.mark.slow
@HAS_PAUSE
def test_processor_is_that_of_the_process():
    # Of an emulated process, the machine has another: its instruction would end the process.
    other = "AMD64" if PROCESSOR in ("aarch64", "arm64") else "ARM64"
    source = f"""
        import platform
        platform.machine = lambda: {other!r}
        import numba
        from freqfm._numba import instructions
        numba.njit(lambda: instructions.pause())()
    """
    done = processes.python(textwrap.dedent(source))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("culprit", [0, 1, 2])
@pytest.mark.parametrize("error", [ArithmeticError, KeyboardInterrupt])
def test_exception_of_a_member_reaches_the_caller(culprit, error):
    others = threading.Semaphore(0)

    def fail(rank, size, barrier):
        if rank == culprit:
            # The others are about to wait for this rank, which will not come.
            for _ in range(size - 1):
                others.acquire()
            raise error(f"rank {rank}")
        others.release()
        return meet(rank, size, barrier)

    for _ in range(20):
        with Team(3) as team, pytest.raises(error, match=f"rank {culprit}"):
            team.run(fail)


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 300, (3000, 5)).ravel()
    indptr = np.arange(0, 15001, 5)
    X = sparse.csr_array((np.ones(15000, dtype=np.float32), tokens, indptr), shape=(3000, 300))
    return X, (rng.random(3000) < 0.4).astype(int)


def fitted_scores(rows, n_jobs, seed=0):
    X, y = rows
    return small_model(n_jobs, seed).fit(X, y).decision_function(X)


def small_model(n_jobs, seed=0):
    """Return a model that one team trains, as without early stopping nothing is scored."""
    options = {"max_iter": 3, "batch_size": 500, "early_stopping": False, "random_state": seed}
    return FMClassifier(8, n_jobs=n_jobs, **options)


def test_large_enough_for_a_team(rows, monkeypatch):
    # Else the tests below would not test teams.
    sizes = {}
    run = Team.run

    def noted(team, kernel, *args, **options):
        sizes.setdefault(kernel, set()).add(team.size)
        return run(team, kernel, *args, **options)

    monkeypatch.setattr(Team, "run", noted)
    fitted_scores(rows, 2)
    assert sizes[fm_train] == {2}


def test_two_python_threads_fit_at_once(rows):
    expected = [fitted_scores(rows, 1, seed) for seed in range(2)]
    start = threading.Barrier(2)
    results = [[], []]

    def work(seed):
        start.wait()
        for _ in range(3):
            results[seed].append(fitted_scores(rows, 2, seed))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed in range(2):
        assert len(results[seed]) == 3
        for scores in results[seed]:
            assert_array_equal(scores, expected[seed])


def _send_fit(connection, rows):
    connection.send(fitted_scores(rows, 2))
    connection.close()


@pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="the system cannot fork"
)
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_fit_in_a_forked_child(rows):
    expected = fitted_scores(rows, 2)
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_send_fit, args=(sender, rows))
    child.start()
    sender.close()
    try:
        assert receiver.poll(120), "the child hangs"
        assert_array_equal(receiver.recv(), expected)
    finally:
        child.join(10)
        child.kill()
    assert child.exitcode == 0
    assert_array_equal(fitted_scores(rows, 2), expected)


def blas_threads():
    """Return the numbers of threads of the BLAS libraries in this process."""
    libraries = threadpoolctl.threadpool_info()
    return {library["num_threads"] for library in libraries if library["user_api"] == "blas"}


def test_an_interrupt_at_the_begin_of_a_block_leaves_no_limit(monkeypatch, ctrl_c):
    def interrupted():
        signal.raise_signal(signal.SIGINT)
        return controller()

    controller = _machine._controller
    monkeypatch.setattr(_machine, "_controller", interrupted)
    with threadpoolctl.threadpool_limits(3, user_api="blas"):
        before = blas_threads()
        with pytest.raises(KeyboardInterrupt), single_threaded_blas():
            pytest.fail("the block was entered")
        assert blas_threads() == before


def test_calls_of_several_threads_leave_blas_as_it_was():
    with threadpoolctl.threadpool_limits(3, user_api="blas"):
        before = blas_threads()
        first, second = single_threaded_blas(), single_threaded_blas()
        first.__enter__(), second.__enter__()
        assert blas_threads() == {1}
        first.__exit__(None, None, None)
        assert blas_threads() == {1}
        second.__exit__(None, None, None)
        assert blas_threads() == before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_forked_while_another_thread_computes_gets_its_blas_back():
    def use_in_child():
        child = os.fork()
        if child == 0:
            with single_threaded_blas():
                inside = blas_threads()
            os._exit(7 if (inside, blas_threads()) == ({1}, before) else 0)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    codes = []
    with threadpoolctl.threadpool_limits(3, user_api="blas"):
        before = blas_threads()
        thread = threading.Thread(target=use_in_child)
        with single_threaded_blas():
            thread.start()
            thread.join()
    assert codes == [7]


@pytest.mark.slow
def test_grid_search_in_worker_processes(rows, monkeypatch):
    X, y = rows
    # joblib's processes, but forked from one that need not import the dependencies.
    processes.context()
    monkeypatch.setattr(loky_context, "_DEFAULT_START_METHOD", processes.START)
    model = small_model(None)
    grid = [
        {"optimizer__learning_rate": [0.1, 1.0], "n_jobs": [None, 2]},
        {"loss": [Hinge()], "optimizer": [Momentum(0.05), Momentum(0.5)]},
    ]
    scores = []
    try:
        for n_jobs in (1, 2):
            search = GridSearchCV(model, grid, cv=2, n_jobs=n_jobs, error_score="raise").fit(X, y)
            scores.append(search.cv_results_["mean_test_score"])
    finally:
        get_reusable_executor().shutdown(wait=True)
    assert_array_equal(scores[0], scores[1])
    assert len(scores[0]) == 6
    assert scores[0].std() > 0


def test_run_returns_only_when_all_members_are_done():
    done = []

    def fail(rank, size, barrier):
        if rank == 1:
            raise ArithmeticError
        if rank == 2:
            time.sleep(0.2)
            done.append(rank)

    with Team(3) as team, pytest.raises(ArithmeticError):
        team.run(fail)
    assert done == [2]


def fails_at(monkeypatch, nth):
    """Let the ``nth`` thread that is started fail, as if the system had no more of them."""
    start, started = threading.Thread.start, []

    def start_or_fail(thread):
        started.append(thread)
        if len(started) == nth:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_or_fail)
    monkeypatch.setattr(team_module, "_idle", [])
    return started


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_thread_that_cannot_start(rows, nth, monkeypatch):
    X, y = rows
    expected = fitted_scores(rows, 1)
    model = small_model(4)
    started = fails_at(monkeypatch, nth)
    with pytest.warns(UserWarning, match=f"Only {nth} of 4 threads could be started .*n_jobs"):
        model.fit(X, y)
    # Later teams of the fit have what was started and try for more.
    assert len(started) >= nth
    assert_array_equal(model.decision_function(X), expected)


def test_interrupt_while_threads_start(monkeypatch, interrupts):
    start = threading.Thread.start

    def start_and_interrupt(thread):
        start(thread)
        if thread.name == "freqfm-team":
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(team_module, "_SECONDS_IDLE", 0.1)
    monkeypatch.setattr(team_module, "_idle", [])
    monkeypatch.setattr(threading.Thread, "start", start_and_interrupt)
    before = set(threading.enumerate())
    with pytest.raises(KeyboardInterrupt), Team(4):
        pass
    for thread in set(threading.enumerate()) - before:
        thread.join(10)
    assert set(threading.enumerate()) <= before


FIELDS = {"fields": np.arange(300) // 100, "max_iter": 2}
ESTIMATORS = {
    "FM": lambda n: FMClassifier(8, max_iter=2, batch_size=500, n_jobs=n, random_state=0),
    "FFM": lambda n: FFMClassifier(**FIELDS, batch_size=500, n_jobs=n, random_state=0),
    "FwFM": lambda n: FwFMClassifier(**FIELDS, batch_size=500, n_jobs=n, random_state=0),
    "RaFM": lambda n: RaFMClassifier((2, 5), max_iter=2, batch_size=500, n_jobs=n, random_state=0),
    "MF": lambda n: MFRecommender(8, max_iter=2, batch_size=500, n_jobs=n, random_state=0),
    "BPR": lambda n: MFRecommender(
        8, loss="bpr", max_iter=2, batch_size=500, weight_decay=0.1, n_jobs=n, random_state=0
    ),
    "DirectAU": lambda n: MFRecommender(
        8, loss="directau", max_iter=2, batch_size=500, n_jobs=n, random_state=0
    ),
    "DNS": lambda n: MFRecommender(
        8, negative_sampler="dns", max_iter=2, batch_size=500, n_jobs=n, random_state=0
    ),
    "ALS": lambda n: ALSRecommender(24, max_iter=2, n_jobs=n, random_state=0),
    "VAE": lambda n: FastVAERecommender(
        8, max_iter=2, early_stopping=False, n_jobs=n, random_state=0
    ),
    "MIDX": lambda n: FastVAERecommender(
        8, negative_sampler="midx_uniform", n_negatives=20, max_iter=2, early_stopping=False,
        n_jobs=n, random_state=0,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ESTIMATORS)
def test_bitwise_reproducible_when_a_team_changes_its_size(rows, name, monkeypatch):
    # Scratch was allocated for three threads; one, two or three of them take part in a call.
    # Few rows of least squares are no work for a team.
    n = 3000 if name == "ALS" else 1000
    X, y = rows[0][:n], rows[1][:n]
    target = [] if hasattr(ESTIMATORS[name](1), "recommend") else [y]
    sizes, present = [], []

    def free(wanted):
        sizes.append(1 + len(sizes) * 5 % 7 % wanted)
        return sizes[-1]

    def arrays(model):
        # Several epochs' work, and several calls of the kernels even where one epoch is a call.
        model.fit(X, *target).partial_fit(X, *target).partial_fit(X, *target)
        found = [model.loss_curve_]
        for attribute in ("factors_", "user_factors_", "item_factors_"):
            table = getattr(model, attribute, [])
            found += table if isinstance(table, list) else [table]
        return found

    expected = arrays(ESTIMATORS[name](1))
    monkeypatch.setattr(team_module, "_SECONDS_KNOWN", 0)
    monkeypatch.setattr(team_module, "free_cores", free)
    monkeypatch.setattr(
        Team,
        "_present_size",
        lambda team, ask=Team._present_size: present.append(ask(team)) or present[-1],
    )
    for one, other in zip(arrays(ESTIMATORS[name](3)), expected, strict=True):
        assert_array_equal(one, other)
    assert set(present) == {1, 2, 3}


def test_busy_cores_are_left_to_others(monkeypatch):
    looks = []
    monkeypatch.setattr(os, "cpu_count", lambda: 4)

    def running(*answers):
        answers = list(answers)
        looks.clear()
        monkeypatch.setattr(
            team_module, "_running_threads", lambda: looks.append(1) or answers.pop(0)
        )

    running(1, 1, 1)
    assert free_cores(3) == 3
    running(3, 3, 3)
    assert free_cores(3) == 2
    # A thread that ran for a moment only.
    running(3, 2, 3)
    assert free_cores(3) == 3
    running(9, 9, 9)
    assert free_cores(3) == 0
    assert len(looks) == 3

    def unknown():
        raise FileNotFoundError

    monkeypatch.setattr(team_module, "_running_threads", unknown)
    assert free_cores(3) == 3


def test_one_thread_works_if_no_core_is_free(monkeypatch):
    monkeypatch.setattr(team_module, "free_cores", lambda wanted: 0)
    sizes = []
    with Team(3) as team:
        team.run(lambda rank, size, barrier: sizes.append((rank, size)))
    assert sizes == [(0, 1)]


def test_the_load_is_read_again_after_a_while(monkeypatch):
    free, sizes = [1, 2], []
    monkeypatch.setattr(team_module, "free_cores", lambda wanted: free.pop(0))
    monkeypatch.setattr(team_module, "_SECONDS_KNOWN", np.inf)
    with Team(2) as team:
        for _ in range(3):
            team.run(lambda rank, size, barrier: sizes.append(size))
        assert sizes == [1, 1, 1]
        team._known_until = 0.0
        assert team.run(lambda rank, size, barrier: size) == 2


@pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity") or len(os.sched_getaffinity(0)) < 2,
    reason="the system has no affinities, or a single core",
)
def test_threads_avoid_the_core_of_the_caller(monkeypatch):
    cores, found = os.sched_getaffinity(0), {}
    assert current_core() in cores
    for core in sorted(cores)[:2]:
        monkeypatch.setattr(team_module, "_current_core", lambda core=core: core)
        with Team(3) as team:
            team.run(lambda rank, *_: found.update({rank: os.sched_getaffinity(0)}))
        assert found == {0: cores, 1: cores - {core}, 2: cores - {core}}


@pytest.mark.skipif(not os.path.exists("/proc/loadavg"), reason="only Linux tells")
def test_threads_of_the_machine_are_counted():
    assert 1 <= team_module._running_threads() < 10_000


@pytest.fixture
def interrupts():
    """Return a function that starts a thread which interrupts teams, and nothing else."""
    inside = {Team.run.__code__, Team.__enter__.__code__}

    def interrupt(signum, frame):
        while frame is not None:
            if frame.f_code in inside:
                raise KeyboardInterrupt
            frame = frame.f_back

    def send(n, delay):
        time.sleep(delay)
        for _ in range(n):
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            time.sleep(0.0002)

    def start(n, delay):
        sender = threading.Thread(target=send, args=(n, delay))
        sender.start()
        return sender

    before = signal.signal(signal.SIGINT, interrupt)
    yield start
    signal.signal(signal.SIGINT, before)


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="needs signals")
@pytest.mark.parametrize("n_signals", [10, 50])
def test_no_thread_works_after_an_interrupt(n_signals, interrupts):
    slots, n_interrupts = np.zeros(3 * STRIDE, dtype=np.int64), 0
    with Team(3) as team:
        team.run(keep_step, slots, 1)
        for i in range(10):
            sender = interrupts(n_signals, 0.0005 * i)
            try:
                while sender.is_alive():
                    team.run(keep_step, slots, 500)
            except KeyboardInterrupt:
                n_interrupts += 1
            at_work = team._barrier[team_module._RUNNING :].any()
            sender.join()
            assert not at_work
        # Where cores are busy, all signals may arrive before the team runs.
        assert n_interrupts > 0
        assert team.run(keep_step, slots, 10) == 0


def test_cores_by_affinity_and_quota(monkeypatch):
    monkeypatch.setattr("joblib.cpu_count", lambda: 3)
    monkeypatch.setattr("numba.config.NUMBA_NUM_THREADS", 8)
    monkeypatch.setattr(_machine, "cores", cores.__wrapped__)
    assert _machine.available_threads() == count_threads(None) == 3
    monkeypatch.setattr("numba.config.NUMBA_NUM_THREADS", 2)
    assert _machine.available_threads() == 2


@pytest.mark.parametrize("n_jobs", [3, 100_000, 2**40])
def test_more_threads_than_cores(n_jobs, monkeypatch):
    monkeypatch.setattr(_validation, "cores", lambda: 2)
    warn_once.cache_clear()
    with pytest.warns(UserWarning, match=f"n_jobs={n_jobs} .* 2 cores .* 2 threads") as told:
        assert count_threads(n_jobs) == 2
    assert told[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert count_threads(n_jobs) == 2
        assert count_threads(2) == 2
        assert count_threads(-1) <= 2


def test_fit_with_more_threads_than_cores(rows, monkeypatch):
    monkeypatch.setattr(_validation, "cores", lambda: 2)
    warn_once.cache_clear()
    with pytest.warns(UserWarning, match="n_jobs=100000"):
        scores = fitted_scores(rows, 100_000)
    assert_array_equal(scores, fitted_scores(rows, 1))


@pytest.mark.parametrize("n_jobs", [True, False, 1.5, "2"])
def test_n_jobs_that_is_no_number_of_threads(n_jobs):
    with pytest.raises(TypeError, match=f"n_jobs={n_jobs!r} is not a number of threads.*-1"):
        count_threads(n_jobs)


@pytest.mark.parametrize("estimator", [FMClassifier, MFRecommender, FastVAERecommender])
def test_fit_refuses_booleans_as_n_jobs(estimator, rows):
    X, y = rows
    with pytest.raises(TypeError, match="n_jobs=True"):
        estimator(n_jobs=True).fit(X, y)
