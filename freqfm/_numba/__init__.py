"""Uses of numba and LLVM beyond numba's public interface.

``jit.py`` has the decorators, ``compiler.py`` makes compiling cheaper, ``extremes.py`` has ``min``
and ``max``. ``code_cache.py`` keeps compiled code on disk. ``blas.py`` and ``instructions.py``
have what numba offers no function for. Nothing else in the package imports llvmlite, or of numba's
modules more than the top one.
"""
