"""The script that predicts epochs with more threads than there are cores."""

from pathlib import Path

import pytest

from freqfm._numba.jit import JIT_DISABLED

pytestmark = pytest.mark.skipif(JIT_DISABLED, reason="plain Python has teams of one only")


@pytest.mark.slow
def test_all_phases_of_all_threads_are_timed(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks" / "speed")
    import thread_model as model

    cases = {
        "softmax_train": lambda n: model.mf(n, 30, batch_size=256),
        "pairwise_train": lambda n: model.mf(n, 30, batch_size=256, loss="bpr"),
    }
    for name, make in cases.items():
        one, three = (model.predict(make, n, 2) for n in (1, 3))
        assert (one.size, three.size) == (1, 3)
        assert three.n_calls == one.n_calls
        phases = {phase: times for (kernel, phase), times in three.phases.items() if kernel == name}
        assert set(phases) == set(model.PHASES[name])
        for longest, mean, n_barriers in phases.values():
            # 1,200 positives.
            assert n_barriers == 5
            assert longest >= mean > 0
        assert 0 < three.seconds < 1
