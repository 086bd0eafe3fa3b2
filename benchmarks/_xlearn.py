"""xLearn's command line programs, which take part in benchmarks if they are on the PATH.

They build in seconds:

    git clone https://github.com/aksnzhy/xlearn && cmake -S xlearn -B build \\
        -DCMAKE_POLICY_VERSION_MINIMUM=3.5 && make -C build xlearn_train xlearn_predict
"""

import os
import re
import resource
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np
from scipy import sparse
from sklearn.datasets import dump_svmlight_file

FM, FFM = "1", "2"


def has_xlearn():
    """Return whether xLearn's programs are on the PATH."""
    return all(map(shutil.which, ("xlearn_train", "xlearn_predict")))


class XLearn:
    """xLearn's factorization machine for classification: Adagrad, without locks.

    With ``fields``, the field of each column, it is the field-aware one.

    Attributes
    ----------
    seconds : float
        What the last training took by xLearn's own clock, reading the rows included.
    cpu_seconds : float
        And by the processor's.
    """

    def __init__(self, n_threads, seed=1, *options, fields=None):
        kind, self._fields = FM if fields is None else FFM, fields
        self._options = ["-s", kind, "-nthread", str(n_threads), "-seed", str(seed), *options]
        self._folder = tempfile.TemporaryDirectory()
        folder = Path(self._folder.name)
        self._rows, self._model, self._found = folder / "rows", folder / "model", folder / "found"

    def _write(self, X, y):
        # It keeps a copy of the rows in its own format, and would read that again.
        self._rows.with_name("rows.bin").unlink(missing_ok=True)
        indices, indptr = X.indices.astype(np.int32), X.indptr.astype(np.int32)
        rows = sparse.csr_array((X.data, indices, indptr), shape=X.shape)
        dump_svmlight_file(rows, y, str(self._rows))
        if self._fields is not None:
            text = re.sub(
                r"(\d+):", lambda found: f"{self._fields[int(found[1])]}:{found[0]}",
                self._rows.read_text(),
            )  # fmt: skip
            self._rows.write_text(text)

    def _run(self, program, *arguments):
        command = [program, self._rows, *arguments, "-l", self._folder.name + "/log"]
        # Without the name of a user its log ends the program.
        environment = {"USER": "nobody", **os.environ}
        done = subprocess.run(
            list(map(str, command)), env=environment, capture_output=True, text=True, check=True
        )
        return re.sub(r"\x1b\[[0-9;]*m", "", done.stdout)

    def fit(self, X, y):
        """Train on some rows, without a validation part and so without early stopping."""
        self._write(X, y)
        self.train()

    def train(self, *options):
        """Train on the rows of the last ``fit``; return the mean seconds of an epoch."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        printed = self._run("xlearn_train", *self._options, "-m", self._model, *options)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        self.cpu_seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        self.seconds = float(re.search(r"Total time cost: (\S+)", printed)[1])
        return np.mean([float(row.split()[-1]) for row in re.findall(r"%\s*\](.*)", printed)])

    def predict_proba(self, X):
        """Return the probabilities of both classes."""
        self._write(X, np.zeros(X.shape[0]))
        self._run("xlearn_predict", self._model, "-o", self._found, "--sigmoid")
        p = np.loadtxt(self._found)
        return np.column_stack([1 - p, p])
