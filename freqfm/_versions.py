"""The package's version, and those of its environment."""

import platform
import sys
from importlib import metadata

__version__ = "0.1.0"

_DEPENDENCIES = ("numpy", "scipy", "scikit-learn", "numba", "joblib", "threadpoolctl")
_OPTIONAL = ("matplotlib", "skops", "pandas", "polars", "dask", "distributed", "numba-cuda")


def show_versions() -> None:
    """Print what a bug report needs: system, versions, threads and where compiled code is kept.

    Examples
    --------
    >>> import freqfm
    >>> freqfm.show_versions()  # doctest: +ELLIPSIS
    freqfm 0.1.0
    ...
    """
    from freqfm._jit import JIT_DISABLED, cache_directory
    from freqfm._threads import available_threads

    print(f"freqfm {__version__}")
    print(f"python {sys.version.split()[0]} on {platform.platform()} ({platform.machine()})")
    for name in _DEPENDENCIES + _OPTIONAL:
        try:
            print(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            if name in _DEPENDENCIES:
                print(f"{name} is missing")
    print(f"threads {available_threads()}")
    print(f"compiled code {'off' if JIT_DISABLED else cache_directory() or 'is not cached'}")
