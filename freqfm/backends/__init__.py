"""Backends, which run the models' loops over data; one folder for each kind of hardware."""

import functools


@functools.cache
def get(device="cpu"):
    """Return the backend of a kind of hardware.

    Parameters
    ----------
    device : "cpu", default="cpu"

    Returns
    -------
    backend : freqfm.backends.base.Backend

    Raises
    ------
    ValueError
        If there is no backend of that name.
    """
    if device == "cpu":
        from freqfm.backends.cpu.backend import CPUBackend

        return CPUBackend()
    raise ValueError(f"device={device!r} is unknown; choose 'cpu'.")
