"""Fresh processes for tests, which need not import the dependencies: that takes a second or two."""

import functools
import gc
import importlib.util
import multiprocessing
import os
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

# The folder that the package is imported from, which finding does not import.
ROOT = Path(importlib.util.find_spec("freqfm").origin).parents[1]
TESTS = Path(__file__).parent

# What the process that others are forked from imports: not the package; what is missing is not.
PRELOADED = ["numba", "scipy.sparse.linalg", "scipy.stats", "sklearn.model_selection", "pandas"]
PRELOADED += ["dask.array", "dask.bag", "distributed", "numba_ready"]


class Done(NamedTuple):
    returncode: int  #: negative: the signal that has killed the process
    stdout: str
    stderr: str


#: How processes start: forked from one that has imported these, where the system can fork.
START = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"


@functools.cache
def context():
    """Return multiprocessing's context, with the process that others are forked from."""
    context = multiprocessing.get_context(START)
    if START == "forkserver":
        from multiprocessing import forkserver

        context.set_forkserver_preload(PRELOADED)
        forkserver.ensure_running()
    return context


def python(source, *args, root=ROOT, file="<test>", timeout=600, **env):
    """Run source code as a script of a process that has not imported the package.

    Parameters
    ----------
    source : str
    *args : str
        What ``sys.argv`` holds besides the name of the file.
    root : path
        Folder from which the package is imported.
    file : str
        Name of the script, for warnings and tracebacks.
    timeout : float
        Seconds after which the process is killed.
    **env : str
        Additional environment variables.

    Returns
    -------
    done : Done
    """
    with tempfile.TemporaryDirectory() as folder:
        outputs = [os.path.join(folder, name) for name in ("stdout", "stderr")]
        for path in outputs:
            Path(path).touch()
        env = {**os.environ, "NUMBA_DISABLE_JIT": "0", **env}
        call = source, [str(file), *args], env, str(root), outputs
        process = context().Process(target=_run, args=call)
        process.start()
        process.join(timeout)
        if process.exitcode is None:
            process.kill()
            process.join()
        return Done(process.exitcode, *(Path(path).read_text() for path in outputs))


def _run(source, argv, env, root, outputs):
    """Run the source code in this process, which is a fresh one."""
    for stream, path in zip((sys.stdout, sys.stderr), outputs, strict=True):
        os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND), stream.fileno())
    os.environ.clear()
    os.environ.update(env)
    sys.argv = argv
    sys.path[:0] = [root, str(TESTS)]

    import numba

    gc.freeze()
    numba.config.reload_config()
    exec(compile(source, argv[0], "exec"), {"__name__": "__main__", "__file__": argv[0]})
