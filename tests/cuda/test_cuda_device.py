"""What ``Device`` asks numba.cuda for, with a driver that only keeps track of contexts."""

import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("numba.cuda")

from freqfm import backends
from freqfm.backends import cuda
from freqfm.backends.cuda import device
from freqfm.backends.cuda.fm.batch import SCORE, TRAIN


class Gpu:
    """A GPU whose context is put on a stack of the thread, and taken off."""

    def __init__(self, driver, number):
        self._driver, self.number = driver, number

    def __enter__(self):
        if self._driver.error is not None:
            raise self._driver.error
        self._driver.stack.append(self.number)

    def __exit__(self, *exception):
        assert self._driver.stack.pop() == self.number


class Gpus(list):
    """Two GPUs."""

    def __init__(self, driver):
        super().__init__(Gpu(driver, number) for number in range(2))
        self._driver = driver

    @property
    def current(self):
        """The GPU whose context is current."""
        return self[self._driver.stack[-1]] if self._driver.stack else None


class Driver(threading.local):
    """Stands for ``numba.cuda``; ``code`` is what it compiles."""

    def __init__(self):
        self.stack, self.error, self.gpus = [], None, Gpus(self)
        self.n_compiled, self.code = 0, None
        self.runtime = SimpleNamespace(get_version=lambda: (13, 0))

    def is_available(self):
        """Return whether there is a driver."""
        return True

    def get_current_device(self):
        """Return the GPU whose context is current."""
        assert self.stack
        return SimpleNamespace(name=f"GPU {self.stack[-1]}", compute_capability=(9, 0))

    def current_context(self):
        """Return the current context."""
        assert self.stack
        info = SimpleNamespace(free=8, total=8)
        return SimpleNamespace(get_memory_info=lambda: info)

    def to_device(self, array):
        """Return an array of a GPU."""
        assert self.stack
        return array

    def synchronize(self):
        """Wait for a kernel."""
        assert self.stack

    def jit(self, function, **options):
        """Return what compiles a kernel, and starts it."""
        self.n_compiled += 1
        return Compiled(self.code)


class Compiled:
    """A kernel of some code."""

    def __init__(self, code):
        self.overloads = {} if code is None else {code.argument_types: code}

    def specialize(self, *args):
        """Compile the kernel for some arguments."""
        return self

    def __getitem__(self, shape):
        (code,) = self.overloads.values()
        return code


class Code:
    """Compiled code."""

    argument_types, cooperative = (), False

    def __init__(self, error=None):
        self.error = error

    def bind(self):
        """Load the code into a GPU."""
        if self.error is not None:
            raise self.error

    def max_cooperative_grid_blocks(self, n_threads):
        """Return the most blocks of a grid."""
        return 132

    def __call__(self, *args):
        self.bind()


@pytest.fixture
def driver(monkeypatch):
    driver = Driver()
    driver.code = Code()
    monkeypatch.setattr(device, "cuda", driver)
    monkeypatch.setattr(device, "kernel_of", lambda *args: None)
    monkeypatch.setattr(device.kernel_files, "save", lambda *args: None)
    monkeypatch.setattr(device.kernel_files, "load", lambda name: None)
    return driver


def test_a_thread_keeps_the_context_of_its_gpu(driver):
    second = device.Device(1)
    assert second.name == "cuda:1 (GPU 1)"
    # Between the calls arrays are indexed and freed.
    assert driver.stack == [1]
    second.free_memory()
    assert driver.stack == [1]
    seen = []

    def run_thread():
        second.free_memory()
        seen.append(list(driver.stack))

    thread = threading.Thread(target=run_thread)
    thread.start()
    thread.join()
    assert seen == [[1]]


def test_a_context_of_others_stays(driver):
    driver.stack = [0]
    device.Device(1).free_memory()
    assert driver.stack == [0]


def test_launches_of_threads_take_turns(driver):
    running, most = [], []

    class Slow(Code):
        """Code that runs for a while."""

        def __call__(self, *args):
            running.append(self)
            most.append(len(running))
            time.sleep(0.01)
            running.pop()

    # The fake is not shared by threads, the GPU is.
    gpu = device.Device(0)
    gpu._kernel = lambda *args: device._Kernel(Compiled(Slow()), 132)
    threads = [threading.Thread(target=gpu.run, args=(TRAIN, (), 32, 10)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 4


@pytest.mark.parametrize("seconds_of_batch", [1e-5, 0.001, 0.05, 3.0])
def test_launches_are_short(driver, monkeypatch, seconds_of_batch):
    now, launches = [0.0], []

    class Timed(Code):
        """Code that takes so long for a batch."""

        def __call__(self, first, last, *args):
            launches.append((first, last))
            now[0] += seconds_of_batch * (last - first)

    gpu, kernel = device.Device(0), device._Kernel(Compiled(Timed()), 132)
    gpu._kernel = lambda *args: kernel
    monkeypatch.setattr(device, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    gpu.run(TRAIN, (), 32, 10, (3, 1000))
    assert [first for first, _ in launches] == [3, *(last for _, last in launches[:-1])]
    assert launches[-1][1] == 1000
    seconds = [seconds_of_batch * (last - first) for first, last in launches]
    assert max(seconds) <= max(0.2001, seconds_of_batch)
    # Launches grow until they take that long.
    assert len(launches) <= 5 + sum(seconds) / min(0.1, seconds_of_batch * 996)


@pytest.mark.parametrize("phases", [SCORE, TRAIN])
def test_code_on_disk_that_the_gpu_refuses_is_compiled_again(driver, monkeypatch, phases):
    for error, n_compiled in ((None, 1), (RuntimeError("no kernel image"), 2)):
        driver.n_compiled = 0
        monkeypatch.setattr(device.kernel_files, "load", lambda name, error=error: Code(error))
        device.Device(0).run(phases, (np.float32(1),), 32, 10)
        # Code is launched by a kernel that is compiled for nothing.
        assert driver.n_compiled == n_compiled


REFUSED = RuntimeError("GPU compute capability 7.0 is not\nsupported")


@pytest.mark.parametrize("of_context", [False, True])
def test_a_gpu_that_runs_nothing_is_not_used(driver, monkeypatch, of_context):
    monkeypatch.setattr(backends, "_cuda", cuda.open_device)
    monkeypatch.setattr(cuda.importlib.util, "find_spec", lambda name: name)
    if of_context:
        driver.error = REFUSED
    else:
        driver.code.error = REFUSED
    with pytest.raises(backends.DeviceUnavailableError, match=r"\(GPU compute .* not supported\)"):
        backends.get("cuda")
    assert backends.get("auto") is backends.get("cpu")
    assert not driver.stack
    driver.error = driver.code.error = None
    assert backends.get("auto").name == "cuda:0 (GPU 0)"
