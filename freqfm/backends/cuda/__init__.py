"""The backend "cuda": NVIDIA GPUs, through numba.cuda.

How the parts fit:

``groups``
    A phase is a function of ``(group, b, args)`` under ``freqfm._numba.jit.inlined``: groups share
    the work items, lanes of a group the columns or the entries. What a group does together, such as
    a sum over its lanes, are functions of this file. They are written for one lane; so a phase is
    ordinary code, which tests run on a CPU, with groups in random order.
``device``
    The only file that imports ``numba.cuda``. ``Device`` holds arrays and runs tuples of phases:
    ``device.run(PHASES, args, n_lanes, n_items, (first, last))`` loops over batches, and in each
    over the phases, with a barrier of the whole grid after each. A launch has as many batches as
    take a fifth of a second. It compiles the phases with everything that they call, formulas of
    ``freqfm.formulas`` too, and replaces the functions of ``groups`` by those of a warp, and
    formulas by custom ones.
``kernel_files``
    Compiled kernels on disk.
``memory``
    ``DeviceTrainer`` keeps arrays of a model on the GPU while its context is open; rules in
    float32; sums of long arrays.
``fm``
    ``batch``: the tokens of all batches of an epoch, sorted, and phases of factorization machines,
    plain or with tables of several ranks. ``layers``: those of DeepFM and NFM. ``trainer``: what
    runs them.
``tables``, ``products``
    What recommenders share: steps of rows, how they are gathered, caught up and moved; matrix
    products by registers.
``ranking``
    ``batches``: what a batch lists, what all losses do with it, and users by their histories.
    ``softmax`` with its draws, ``pairwise``, ``alignment``: the phases of a kind of loss, and the
    ``Family`` that allocates and launches them; ``trainer``: what runs these, also through a graph.
    ``least_squares`` has no batches.
``vae``
    The phases of an autoencoder's dense layers, before and after those of
    ``ranking.softmax``, which train its items with queries in place of users; and what runs them,
    batches with negatives for each query one by one, others together.
``backend``
    ``CUDABackend``, which ``freqfm.backends.get`` returns. Missing operations raise
    ``CPUOnlyError``.

To add an operation: write its phases in a file of their own, with arguments in a NamedTuple of
device arrays and numbers of float32 (a Python float would be float64, which is slow); write the
function or trainer that allocates, launches and copies back, with nothing but a ``Device``; replace
the line in ``backend``; and run it in the tests by ``tests/emulated_gpu.py``. Every sum needs an
order that does not depend on the number of groups; ``add_at`` is for integers.

The speed of a phase depends on memory: after a barrier every number comes from the second-level
cache or from memory, some 500 cycles away, and a thread waits where it first uses a number. So read
several rows or columns before any is used, keep chains of reads that depend on each other short,
and give a group little to do one after the other. A barrier takes 1.4 microseconds on an H200.
"""

import importlib.util

import numpy as np
from numpy.lib import NumpyVersion

from freqfm._messages import cut
from freqfm.backends.base import DeviceUnavailableError

__all__ = ["open_device"]

# numba-cuda up to 0.30 uses a name that later versions of NumPy lack, at the first compilation.
_NUMPY_LIMIT = "2.5.0"

_INSTALL = "pip install 'freqfm[cuda12]' or, for CUDA 13, pip install 'freqfm[cuda13]'"


def open_device(number):
    """Return the CUDABackend of a GPU.

    Parameters
    ----------
    number : int
        Counted from 0.

    Raises
    ------
    DeviceUnavailableError
        If the package, the driver or the GPU is missing, or they do not fit together.
    """
    if importlib.util.find_spec("numba_cuda") is None:
        raise DeviceUnavailableError(
            f"the package numba-cuda is not installed. Install it with {_INSTALL}; or set "
            f"device='cpu'."
        )
    try:
        from freqfm.backends.cuda.device import Device, open_problem

        problem = open_problem(number)
    except Exception as error:
        problem = f"numba-cuda cannot be loaded ({cut(error)})"
    if problem:
        unfit = ""
        if NumpyVersion(np.__version__) >= _NUMPY_LIMIT:
            unfit = (
                f" numba-cuda runs with NumPy before {_NUMPY_LIMIT}, and NumPy {np.__version__} is "
                f"installed."
            )
        raise DeviceUnavailableError(
            f"{problem}.{unfit} It takes an NVIDIA GPU with its driver, and {_INSTALL}; or set "
            f"device='cpu'."
        )
    from freqfm.backends.cuda.backend import CUDABackend

    return CUDABackend(Device(number))
