"""A GPU: its memory, and launches of phases. The only file that imports ``numba.cuda``.

The constants of a kernel: types, and the codes and switches of the model that it trains.

Those are the fields of tuples that hold a bool, or codes, by their names. So a kernel holds
the code of one optimizer, loss and sampler. It is a third shorter, which counts because it does not
fit into a GPU's instruction cache, and compiles faster.
"""

import threading
import time
import warnings

import numpy as np
from numba import cuda

from freqfm._messages import cut
from freqfm._numba.jit import announce, fingerprint_of, translated
from freqfm.backends.cuda import groups, kernel_files, products


def _fields(args):
    """Return the names and values of a NamedTuple; a plain tuple has numbers for names."""
    return list(zip(getattr(args, "_fields", map(str, range(len(args)))), args, strict=True))


def _is_constant(field, value):
    return field.endswith(("code", "catch_up")) or isinstance(value, bool | np.bool_)


def kind_of(args):
    """Return the types and constants of a launch's arguments, as a hashable value."""
    if isinstance(args, tuple):
        return type(args), tuple(
            value if _is_constant(field, value) else kind_of(value)
            for field, value in _fields(args)
        )
    if getattr(args, "ndim", 0):
        return args.dtype, args.ndim, args.is_c_contiguous()
    return type(args)


def with_constants(args):
    """Return a function that puts the constants of ``args`` into arguments of the same types."""
    names = {}
    expression = _expression(args, "args", names)
    exec(f"def put(args):\n    return {expression}", names)
    return names["put"]


def _expression(value, name, names):
    """Return an expression for ``value``, which is called ``name``; its types go to ``names``."""
    if not _holds_constants(value):
        return name
    if type(value) is tuple:
        parts = [_expression(part, f"{name}[{i}]", names) for i, part in enumerate(value)]
        return f"({', '.join(parts)},)"
    alias = f"Type{len(names)}"
    names[alias] = type(value)
    parts = [
        repr(np.asarray(part).item())
        if _is_constant(field, part)
        else _expression(part, f"{name}.{field}", names)
        for field, part in _fields(value)
    ]
    return f"{alias}({', '.join(parts)})"


def _holds_constants(value):
    return isinstance(value, tuple) and any(
        _is_constant(field, part) or _holds_constants(part) for field, part in _fields(value)
    )


# Most threads of a block, of which several groups share one, and most registers of a thread: with
# these one block fills a multiprocessor. Barriers are faster with few blocks.
_BLOCK, _SMALLEST_BLOCK, _MOST_REGISTERS = 512, 128, 128

# A launch takes about so many seconds: interrupts wait for its end, and the driver of a GPU that
# also draws a screen ends longer ones. It has at most so many times the batches of the one before.
_SECONDS, _GROWTH = 0.2, 8

# CUDA_ERROR_OUT_OF_MEMORY.
_OUT_OF_MEMORY = 2

# So many numbers behind a matrix may be read, see ``products.readable``.
_SLACK = 64

_HIGHEST_BIT = np.uint32(1 << 31)

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


def _readable(index, last):
    return index


# A whole warp makes a tile of a product.


def _of_row(group, mine, a, i, start, c, last):
    return cuda.shfl_sync(_WHOLE_WARP, mine, (cuda.laneid & 24) + c)


def _arrangement(group):
    return 4, 8


_OF_WARPS = {
    groups.group_sum: _group_sum,
    groups.group_max: _group_max,
    groups.prefix_sum: _prefix_sum,
    groups.first_of_lanes: _first_of_lanes,
    groups.last_of_lanes: _last_of_lanes,
    groups.any_of_lanes: _any_of_lanes,
    groups.place_among_equals: _place_among_equals,
    groups.synchronize_group: _synchronize_group,
    products.arrangement: _arrangement,
    products.readable: _readable,
    products.of_row: _of_row,
    groups.add_at: _add_at,
}


def _device_function(function):
    return cuda.jit(device=True)(function)


def _barrier(arrived):
    """Wait for all blocks, and see the values that they have written.

    Each block adds one to ``arrived[0]``, and the first one so much that the highest bit changes
    with the last. The barrier of cooperative groups does the same, but takes a library to link
    with, for which all of a kernel is compiled to slower code.
    """
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        cuda.threadfence()
        step = np.uint32(1)
        if cuda.blockIdx.x == 0:
            step = np.uint32(_HIGHEST_BIT - np.uint32(cuda.gridDim.x - 1))
        before = cuda.atomic.add(arrived, 0, step)
        while (before ^ cuda.atomic.add(arrived, 0, np.uint32(0))) & _HIGHEST_BIT == 0:
            pass
        cuda.threadfence()
    cuda.syncthreads()


_barrier = _device_function(_barrier)


def _in_turn(phases):
    """Return a device function that runs phases, with a barrier of the grid after each."""
    phase, *others = phases

    if others:
        rest = _in_turn(others)

        def run(group, arrived, b, args):
            phase(group, b, args)
            _barrier(arrived)
            rest(group, arrived, b, args)

    else:

        def run(group, arrived, b, args):
            phase(group, b, args)
            _barrier(arrived)

    return _device_function(run)


def kernel_of(phases, formulas, args):
    """Return the Python function of a kernel that runs phases for each batch of a range.

    The constants of ``args`` are compiled into the kernel.
    """
    replacements = {**_OF_WARPS, **formulas}
    run = _in_turn([translated(phase, _device_function, replacements) for phase in phases])
    put, Group = _device_function(with_constants(args)), groups.Group

    def kernel(first, last, n_lanes, arrived, args):
        thread = cuda.grid(1)
        group = Group(thread // n_lanes, cuda.gridsize(1) // n_lanes, thread % n_lanes, n_lanes)
        given = put(args)
        for b in range(first, last):
            run(group, arrived, b, given)

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
        with self._active():
            kind = cuda.get_current_device().name
        kind = kind.decode() if isinstance(kind, bytes) else kind
        self.name = f"cuda:{number} ({kind})"
        self.most_blocks = None
        self._kernels, self._kept = {}, []
        self._arrived, self._turn = None, threading.RLock()

    def _active(self):
        """Return the context manager of the GPU; from now on this thread has some context.

        Without one numba cannot free memory, and to index an array it opens the first GPU.
        """
        if cuda.gpus.current is None:
            self._gpu.__enter__()
        return self._gpu

    # Memory.

    def free_memory(self):
        """Return how many bytes of the GPU's memory are free."""
        with self._active():
            return int(cuda.current_context().get_memory_info().free)

    def empty(self, shape, dtype):
        """Return an array of meaningless values; raise MemoryError if there is no room."""
        shape = tuple(map(int, np.atleast_1d(shape)))
        with self._active():
            try:
                if len(shape) < 2:
                    return cuda.device_array(shape, dtype)
                n = int(np.prod(shape, dtype=np.int64))
                return cuda.device_array(n + _SLACK, dtype)[:n].reshape(shape)
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
            with self._active():
                copy.copy_to_device(np.ascontiguousarray(array))

    def copy(self, source, target):
        """Copy an array of the device to another one of its shape."""
        with self._active():
            target.copy_to_device(source)

    def fill(self, array, value):
        """Set all elements of a one-dimensional array."""
        if array.size:
            self.write(np.full(array.shape, value, dtype=array.dtype), array)

    def to_host(self, array, out):
        """Copy an array of the device to a NumPy array, and return that."""
        if out.size:
            with self._active():
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
            Of ``(group, b, args)``, see ``groups``.
        args : NamedTuple or tuple
            Device arrays, numbers of NumPy or int, and tuples of these.
        n_lanes : int
            Threads of a group: a power of two, at most 32.
        n_items : int
            How many groups have work in the longest phase.
        span : tuple of int, default=(0, 1)
            The first batch, and the one after the last.
        formulas : dict, default=None
            Custom formulas, see ``freqfm._numba.jit.specialised``.
        """
        # The barrier counts the blocks of one kernel; with a stream for each thread two might run.
        with self._active(), self._turn:
            kernel = self._kernel(phases, formulas or {}, args)
            most_blocks = min(kernel.most_blocks, self.most_blocks or kernel.most_blocks)
            launch = kernel.on(*_shape_of_grid(n_items * n_lanes, most_blocks))
            first, last = map(int, span)
            while first < last:
                end, begin = min(first + kernel.n_batches, last), time.perf_counter()
                launch(first, end, int(n_lanes), self._arrived, args)
                # An interrupt by the user arrives between launches.
                cuda.synchronize()
                kernel.took(end - first, time.perf_counter() - begin)
                first = end

    def _kernel(self, phases, formulas, args):
        """Return the _Kernel of phases, compiled for its arguments."""
        fingerprint = fingerprint_of(formulas)
        key = phases, fingerprint.key, kind_of(args)
        if key not in self._kernels:
            # Values that cannot be hashed are identified by address and must stay alive.
            self._kept += fingerprint.kept
            if self._arrived is None:
                self._arrived = cuda.to_device(np.zeros(1, dtype=np.uint32))
            self._kernels[key] = self._compiled(phases, formulas, args)
        return self._kernels[key]

    def _compiled(self, phases, formulas, args):
        """Return the _Kernel of phases for the types and constants of ``args``.

        Its code is that on disk if it is there.
        """
        name = code = None
        if not formulas:
            capability = cuda.get_current_device().compute_capability
            target = *capability, *cuda.runtime.get_version()
            name = kernel_files.name_of(phases, kind_of(args), target)
            code = kernel_files.load(name)
        if code is None or not _is_usable(code):
            announce(f"{phases[0].__name__} for the GPU")
            kernel = cuda.jit(kernel_of(phases, formulas, args), max_registers=_MOST_REGISTERS)
            (code,) = kernel.specialize(0, 1, 32, self._arrived, args).overloads.values()
            kernel_files.save(name, code)
        # All blocks, or none, run at the same time.
        code.cooperative = True
        # A launcher of code that has been compiled already.
        launcher = cuda.jit(_nothing)
        launcher.overloads[code.argument_types] = code
        launcher._specialized = True
        return _Kernel(launcher, code.max_cooperative_grid_blocks(_BLOCK))


def _is_usable(code):
    """Return whether the GPU takes code from disk, which another driver may have linked."""
    try:
        code.bind()
    except Exception:
        return False
    return True


def _nothing():
    pass


class _Kernel:
    """A compiled kernel, how many blocks it may have, and of how many batches a launch is."""

    def __init__(self, compiled, most_blocks):
        self.most_blocks, self._compiled, self._launches = most_blocks, compiled, {}
        self.n_batches = 1

    def took(self, n_batches, seconds):
        """Set the length of the next launch by the duration of the last one."""
        self.n_batches = max(1, min(_GROWTH * n_batches, int(n_batches * _SECONDS / seconds)))

    def on(self, *shape):
        """Return a launcher of the kernel for a grid of so many blocks of so many threads."""
        if shape not in self._launches:
            with warnings.catch_warnings():
                # Small data take few blocks, which numba warns of.
                warnings.simplefilter("ignore")
                self._launches[shape] = self._compiled[shape]
        return self._launches[shape]


def _shape_of_grid(n_threads, most_blocks):
    """Return how many blocks a grid of about so many threads has, and their threads.

    Little work is spread over all multiprocessors, by smaller blocks.
    """
    n_of_block = _BLOCK
    while n_of_block > _SMALLEST_BLOCK and 2 * n_threads <= n_of_block * most_blocks:
        n_of_block //= 2
    return max(1, min(-(-n_threads // n_of_block), most_blocks)), n_of_block


def open_problem(number):
    """Return why a GPU cannot be used, or None if it can."""
    if not cuda.is_available():
        error = cuda.cuda_error() or "no GPU was found"
        return f"no usable NVIDIA driver was found ({cut(error)})"
    n_devices = len(cuda.gpus)
    if number >= n_devices:
        return f"this machine has {n_devices} GPUs, numbered from 0"
    try:
        with cuda.gpus[number]:
            if cuda.get_current_device().compute_capability < (7, 0):
                return "the GPU is older than compute capability 7.0"
            _Kernel(cuda.jit(_nothing), 1).on(1, 32)()
            cuda.synchronize()
    except Exception as error:
        return f"the GPU does not run what is compiled for it ({cut(error)})"
    return None
