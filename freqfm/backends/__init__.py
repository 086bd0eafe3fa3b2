"""Backends, which run the models' loops over data; one folder for each kind of hardware."""

import functools
import os

from freqfm._messages import cut, shown
from freqfm.backends.base import CPUOnlyError, DeviceUnavailableError

__all__ = ["get", "serve", "start"]


def get(device="cpu"):
    """Return the backend of a device.

    Parameters
    ----------
    device : str, default="cpu"
        "cpu"; "cuda" or "cuda:N", the N-th NVIDIA GPU, counted from 0; or "auto", the first GPU if
        it can be used, else the CPU.

    Returns
    -------
    backend : freqfm.backends.base.Backend

    Raises
    ------
    ValueError
        If the name is unknown.
    DeviceUnavailableError
        If the device cannot be used on this machine; the message says what to install.
    """
    name = device if isinstance(device, str) else ""
    kind, _, number = name.partition(":")
    if name == "cpu":
        return _cpu()
    if name in ("cuda", "auto") or (kind == "cuda" and number.isdecimal()):
        try:
            if _forked:
                raise DeviceUnavailableError(
                    "this process was forked from one that had used the GPU, which CUDA does not "
                    "support. Start processes by 'spawn', or by joblib's default backend."
                )
            return _cuda(int(number or 0))
        except DeviceUnavailableError as error:
            if name == "auto":
                return _cpu()
            raise DeviceUnavailableError(
                f"device={shown(device)} cannot be used: {cut(error, 1000)}"
            ) from None
    raise ValueError(
        f"device={shown(device)} is unknown; choose 'cpu', 'cuda', 'cuda:1' for the second GPU, or "
        f"'auto'."
    )


@functools.cache
def _cpu():
    from freqfm.backends.cpu.backend import CPUBackend

    return CPUBackend()


# Whether a parent of this process had opened a GPU when it was forked.
_forked = []


@functools.cache
def _cuda(number):
    from freqfm.backends.cuda import open_device

    backend = open_device(number)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=lambda: _forked.append(True))
    return backend


def start(device, operation, *args):
    """Return the backend that a fit uses, and the result of one of its operations.

    Parameters
    ----------
    device : str
        See :func:`get`; "auto" uses the CPU if the GPU's backend lacks the operation.
    operation : str
        Name of a method of the backend.
    *args : tuple
        Its arguments.

    Raises
    ------
    CPUOnlyError
        If the backend of the device lacks the operation.
    """
    backend = get(device)
    try:
        return backend, getattr(backend, operation)(*args)
    except CPUOnlyError:
        if device != "auto":
            raise
    backend = get("cpu")
    return backend, getattr(backend, operation)(*args)


def serve(device, operation, *args):
    """Return the result of an operation of a fitted model.

    It runs on the device of the fit if this machine has it, else on the CPU: models that were
    trained on a GPU predict anywhere. For parameters see :func:`start`.
    """
    try:
        get(device)
    except DeviceUnavailableError:
        device = "cpu"
    return start(device, operation, *args)[1]
