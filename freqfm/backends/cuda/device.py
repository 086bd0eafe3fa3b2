"""A GPU: its memory, and launches of phases. The only file that imports ``numba.cuda``."""

import warnings

import numpy as np
from numba import cuda
from numba.core.errors import NumbaPerformanceWarning

from freqfm._jit import compiling, fingerprint_of, translated
from freqfm.backends.cuda import team

__all__ = ["Device", "kernel_of", "open_problem"]

# Threads of a block; several groups share one.
_BLOCK = 256

# Grids without barriers may have so many blocks.
_MOST_BLOCKS = 1 << 16

# CUDA_ERROR_OUT_OF_MEMORY.
_OUT_OF_MEMORY = 2

_WHOLE_WARP = 0xFFFFFFFF


def _mask(group):
    """Return the lanes of a group within its warp."""
    if group.n_lanes == 32:
        return _WHOLE_WARP
    first = cuda.laneid & ~(group.n_lanes - 1)
    return ((1 << group.n_lanes) - 1) << first


_mask = cuda.jit(device=True)(_mask)


def _group_sum(group, value):
    mask, distance = _mask(group), group.n_lanes >> 1
    while distance > 0:
        value += cuda.shfl_xor_sync(mask, value, distance)
        distance >>= 1
    return value


def _group_max(group, value):
    mask, distance = _mask(group), group.n_lanes >> 1
    while distance > 0:
        value = max(value, cuda.shfl_xor_sync(mask, value, distance))
        distance >>= 1
    return value


def _prefix_sum(group, value):
    mask, distance = _mask(group), 1
    while distance < group.n_lanes:
        before = cuda.shfl_up_sync(mask, value, distance)
        if group.lane >= distance:
            value += before
        distance <<= 1
    return value


def _first_of_lanes(group, value):
    return cuda.shfl_sync(_mask(group), value, cuda.laneid & ~(group.n_lanes - 1))


def _last_of_lanes(group, value):
    return cuda.shfl_sync(_mask(group), value, cuda.laneid | (group.n_lanes - 1))


def _any_of_lanes(group, value):
    return cuda.any_sync(_mask(group), value)


def _place_among_equals(group, value):
    equal = cuda.match_any_sync(_mask(group), value)
    before = equal & ((1 << cuda.laneid) - 1)
    return cuda.popc(np.uint32(before)), cuda.popc(np.uint32(equal))


def _synchronize_group(group):
    cuda.syncwarp(_mask(group))


def _add_at(array, index, value):
    cuda.atomic.add(array, index, value)


_OF_WARPS = {
    team.group_sum: _group_sum,
    team.group_max: _group_max,
    team.prefix_sum: _prefix_sum,
    team.first_of_lanes: _first_of_lanes,
    team.last_of_lanes: _last_of_lanes,
    team.any_of_lanes: _any_of_lanes,
    team.place_among_equals: _place_among_equals,
    team.synchronize_group: _synchronize_group,
    team.add_at: _add_at,
}


def _device_function(function):
    return cuda.jit(device=True)(function)


def _in_turn(phases):
    """Return a device function that runs phases, with a barrier of the grid after each."""
    phase, *others = phases

    if others:
        rest = _in_turn(others)

        def run(group, grid, b, args):
            phase(group, b, args)
            grid.sync()
            rest(group, grid, b, args)

    else:

        def run(group, grid, b, args):
            phase(group, b, args)
            grid.sync()

    return _device_function(run)


def kernel_of(phases, formulas):
    """Return the Python function of a kernel that runs phases for each batch of a range.

    A single phase needs no barrier, and its kernel no cooperative launch.
    """
    replacements = {**_OF_WARPS, **formulas}
    made = [translated(phase, _device_function, replacements) for phase in phases]
    Team = team.Team

    if len(made) == 1:
        (phase,) = made

        def kernel(first, last, n_lanes, args):
            thread = cuda.grid(1)
            group = Team(thread // n_lanes, cuda.gridsize(1) // n_lanes, thread % n_lanes, n_lanes)
            phase(group, first, args)

    else:
        run = _in_turn(made)

        def kernel(first, last, n_lanes, args):
            thread = cuda.grid(1)
            group = Team(thread // n_lanes, cuda.gridsize(1) // n_lanes, thread % n_lanes, n_lanes)
            grid = cuda.cg.this_grid()
            for b in range(first, last):
                run(group, grid, b, args)

    return kernel


class Device:
    """One GPU, see :func:`freqfm.backends.cuda.open_device`.

    Parameters
    ----------
    number : int
        Counted from 0.

    Attributes
    ----------
    name : str
    most_blocks : int or None
        A limit of the blocks of a grid, for tests that compare grids.
    """

    def __init__(self, number):
        self._gpu = cuda.gpus[number]
        with self._gpu:
            kind = cuda.get_current_device().name
        kind = kind.decode() if isinstance(kind, bytes) else kind
        self.name = f"cuda:{number} ({kind})"
        self.most_blocks = None
        self._kernels, self._launched, self._kept = {}, set(), []

    def attributes(self):
        """Return what a benchmark needs to know of the card."""
        with self._gpu:
            card = cuda.get_current_device()
            return {
                "compute_capability": tuple(card.compute_capability),
                "multiprocessors": card.MULTIPROCESSOR_COUNT,
                "clock_hz": 1000.0 * card.CLOCK_RATE,
            }

    # Memory.

    def free_memory(self):
        """Return how many bytes of the GPU's memory are free."""
        with self._gpu:
            return int(cuda.current_context().get_memory_info().free)

    def empty(self, shape, dtype):
        """Return an array of meaningless values; raise MemoryError if there is no room."""
        shape = tuple(map(int, np.atleast_1d(shape)))
        with self._gpu:
            try:
                return cuda.device_array(shape, dtype)
            except cuda.cudadrv.driver.CudaAPIError as error:
                if int(error.code) != _OUT_OF_MEMORY:
                    raise
                n_bytes = np.prod(shape, dtype=np.float64) * np.dtype(dtype).itemsize
                free, total = cuda.current_context().get_memory_info()
                raise MemoryError(
                    f"{self.name} has no room for another {n_bytes / 1e6:.0f} MB: "
                    f"{free / 1e6:.0f} of {total / 1e6:.0f} MB are free. Take a smaller model or "
                    f"batch_size, or set device='cpu'."
                ) from error

    def to_device(self, array):
        """Return a copy of a NumPy array."""
        copy = self.empty(array.shape, array.dtype)
        self.write(array, copy)
        return copy

    def write(self, array, copy):
        """Copy a NumPy array to one of the device."""
        if array.size:
            with self._gpu:
                copy.copy_to_device(np.ascontiguousarray(array))

    def fill(self, array, value):
        """Set all elements of a one-dimensional array."""
        if array.size:
            self.write(np.full(array.shape, value, dtype=array.dtype), array)

    def to_host(self, array, out):
        """Copy an array of the device to a NumPy array, and return that."""
        if out.size:
            with self._gpu:
                if out.flags.c_contiguous:
                    array.copy_to_host(out)
                else:
                    out[...] = array.copy_to_host()
        return out

    # Launches.

    def run(self, phases, args, n_lanes, n_items, span=(0, 1), formulas=None):
        """Run phases for each batch of a span, with a barrier after each phase.

        Parameters
        ----------
        phases : tuple of function
            Of ``(team, b, args)``, see ``team``.
        args : NamedTuple or tuple
            Device arrays, numbers of NumPy or int, and tuples of these.
        n_lanes : int
            Threads of a group: a power of two, at most 32.
        n_items : int
            How many groups have work in the longest phase.
        span : tuple of int, default=(0, 1)
            The first batch, and the one after the last.
        formulas : dict, default=None
            Custom formulas, see ``freqfm._jit.specialised``.
        """
        kernel = self._kernel(phases, formulas or {})
        given = *map(int, span), int(n_lanes), args
        n_blocks = max(1, -(-n_items * n_lanes // _BLOCK))
        with self._gpu:
            compiled = self._compiled(kernel, phases, given)
            limit = self._resident_blocks(compiled) if len(phases) > 1 else _MOST_BLOCKS
            n_blocks = min(n_blocks, limit, self.most_blocks or limit)
            with warnings.catch_warnings():
                # Small data take few blocks.
                warnings.simplefilter("ignore", NumbaPerformanceWarning)
                launch = compiled[n_blocks, _BLOCK]
            launch(*given)
            # An interrupt by the user arrives between launches.
            cuda.synchronize()

    def _compiled(self, kernel, phases, given):
        """Return a kernel that is compiled for the types of its arguments."""
        if kernel in self._launched:
            return kernel.specialize(*given)
        self._launched.add(kernel)
        with compiling(f"{phases[0].__name__} for the GPU"):
            return kernel.specialize(*given)

    def _resident_blocks(self, compiled):
        """Return how many blocks can wait for each other: those that run at the same time."""
        (code,) = compiled.overloads.values()
        return code.max_cooperative_grid_blocks(_BLOCK)

    def _kernel(self, phases, formulas):
        fingerprint = fingerprint_of(formulas)
        key = phases, fingerprint.key
        if key not in self._kernels:
            # Values that cannot be hashed are identified by address and must stay alive.
            self._kept += fingerprint.kept
            self._kernels[key] = cuda.jit(kernel_of(phases, formulas))
        return self._kernels[key]


def open_problem(number):
    """Return why a GPU cannot be used, or None if it can."""
    if not cuda.is_available():
        error = cuda.cuda_error() or "no GPU was found"
        return f"no usable NVIDIA driver was found ({' '.join(str(error).split())})"
    n_devices = len(cuda.gpus)
    if number >= n_devices:
        return f"this machine has {n_devices} GPUs, numbered from 0"
    with cuda.gpus[number]:
        if cuda.get_current_device().compute_capability < (7, 0):
            return "the GPU is older than compute capability 7.0"
    try:
        cuda.compile(lambda: None, (), cc=(7, 5))
    except Exception as error:
        return f"the compiler of the CUDA toolkit does not work ({' '.join(str(error).split())})"
    return None
