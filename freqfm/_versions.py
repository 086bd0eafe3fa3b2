"""The version of the package, in files of models, and the versions of its environment."""

import platform
import sys
from importlib import metadata

__version__ = "0.1.0"

# The item of an estimator's stored state that holds the version which stored it.
_STAMP = "_freqfm_version"

_DEPENDENCIES = ("numpy", "scipy", "scikit-learn", "numba", "joblib", "threadpoolctl")
_OPTIONAL = (
    *("matplotlib", "rich", "skops", "narwhals", "pandas", "polars", "pyarrow"),
    *("dask", "distributed", "numba-cuda"),
)


class VersionStamp:
    """Mixin: the stored state of an estimator holds the version, and loading warns of another."""

    def __getstate__(self):
        return {**super().__getstate__(), _STAMP: __version__}

    def __setstate__(self, state):
        state = dict(state)
        stored = state.pop(_STAMP, __version__)
        if stored != __version__:
            from freqfm._messages import warn_user  # imports NumPy

            warn_user(
                f"This {type(self).__name__} was stored by freqfm {stored} and is loaded by "
                f"freqfm {__version__}, which may predict differently or fail. Load it with "
                f"freqfm {stored}, or fit it again."
            )
        super().__setstate__(state)


def show_versions() -> None:
    """Print what a bug report needs: system, versions, threads, GPU, and where compiled code is.

    Examples
    --------
    >>> import freqfm
    >>> freqfm.show_versions()  # doctest: +ELLIPSIS
    freqfm 0.1.0
    ...
    """
    from freqfm import backends
    from freqfm._machine import available_threads
    from freqfm._numba.jit import JIT_DISABLED, cache_directory

    print(f"freqfm {__version__}")
    print(f"python {sys.version.split()[0]} on {platform.platform()} ({platform.machine()})")
    for name in _DEPENDENCIES + _OPTIONAL:
        try:
            print(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            if name in _DEPENDENCIES:
                print(f"{name} is missing")
    print(f"threads {available_threads()}")
    try:
        print(f"GPU {backends.get('cuda').name}")
    except backends.DeviceUnavailableError as error:
        print(f"no GPU: {error}")
    print(f"compiled code {'off' if JIT_DISABLED else cache_directory() or 'is not cached'}")
