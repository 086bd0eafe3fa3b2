"""Teams of threads: meetings, exceptions, and fits in threads, forks and worker processes."""

import faulthandler
import multiprocessing
import os
import threading
import time

import numpy as np
import pytest
from joblib.externals.loky import get_reusable_executor
from numpy.testing import assert_array_equal
from scipy import sparse
from sklearn.model_selection import GridSearchCV

from freqfm import FMClassifier
from freqfm._jit import JIT_DISABLED, KERNELS, kernel
from freqfm.kernels.cpu.team import Team, wait

pytestmark = pytest.mark.skipif(JIT_DISABLED, reason="plain Python has teams of one only")

# Slots of two threads stand a cache line apart.
STRIDE = 8


@kernel
def keep_step(rank, size, barrier, slots, n_rounds):
    """Write the round's number, meet, look whether all have written it, meet; count failures."""
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
    """End the process, with the stacks of all threads, rather than wait for ever."""
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


def test_threads_end_with_the_team():
    with Team(3) as team:
        team.run(meet)
        assert any(thread.name.startswith("freqfm") for thread in threading.enumerate())
    assert not any(thread.name.startswith("freqfm") for thread in threading.enumerate())


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_barriers_keep_threads_in_step(size):
    # Seven threads are more than the cores of most test machines, and all have to take turns.
    slots = np.zeros(size * STRIDE, dtype=np.int64)
    with Team(size) as team:
        for n_rounds in (10_000, 1, 500):
            assert team.run(keep_step, slots, n_rounds) == 0
            assert_array_equal(slots[::STRIDE], 0)


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
    model = FMClassifier(8, max_iter=3, batch_size=500, n_jobs=n_jobs, random_state=seed)
    return model.fit(X, y).decision_function(X)


def test_large_enough_for_a_team(rows, monkeypatch):
    # Or else the tests below would say nothing about teams.
    sizes = set()
    run = Team.run
    monkeypatch.setattr(Team, "run", lambda team, *args: sizes.add(team.size) or run(team, *args))
    fitted_scores(rows, 2)
    assert sizes == {2}


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


def test_grid_search_in_worker_processes(rows):
    X, y = rows
    model = FMClassifier(8, max_iter=2, batch_size=500, random_state=0)
    grid = {"optimizer__learning_rate": [0.1, 1.0], "n_jobs": [None, 2]}
    scores = []
    try:
        for n_jobs in (1, 2):
            search = GridSearchCV(model, grid, cv=2, n_jobs=n_jobs, error_score="raise").fit(X, y)
            scores.append(search.cv_results_["mean_test_score"])
    finally:
        get_reusable_executor().shutdown(wait=True)
    assert_array_equal(scores[0], scores[1])
    assert len(scores[0]) == 4


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
