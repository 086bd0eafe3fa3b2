"""What the first fit of every estimator compiles, in CPU seconds.

Each estimator is fitted and used once, on a few rows, in a separate process with an empty folder
for compiled code; then in another process, which loads what the first one compiled.

    python benchmarks/robustness/compile_time.py

It takes about three minutes; ``--quick`` tries one estimator only.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

FITS = {
    "FMClassifier()": "freqfm.FMClassifier(n_jobs=1).fit(X, y).predict(X)",
    "RaFMClassifier()": "freqfm.RaFMClassifier(n_jobs=1).fit(X, y).predict(X)",
    "MFRecommender()": "freqfm.MFRecommender(n_jobs=1).fit(X).recommend(X)",
    "MFRecommender(loss='bpr')": "freqfm.MFRecommender(loss='bpr', n_jobs=1).fit(X).recommend(X)",
    "FastVAERecommender()": "freqfm.FastVAERecommender(n_jobs=1).fit(X).recommend(X)",
    "ALSRecommender()": "freqfm.ALSRecommender(n_jobs=1).fit(X).recommend(X)",
    "Word2Vec()": "freqfm.Word2Vec(n_jobs=1).fit(documents).transform(documents)",
}

CODE = """
import json
import time
import warnings
warnings.simplefilter("ignore")
import numpy as np
from scipy import sparse
import freqfm
rng = np.random.default_rng(0)
X = sparse.csr_array((rng.random((40, 30)) < 0.3).astype(np.float32))
y = np.arange(40) % 2
documents = [list(map(int, row.nonzero()[0])) for row in X.toarray()]
estimators = freqfm.FMClassifier, freqfm.MFRecommender, freqfm.FastVAERecommender  # imported
estimators += freqfm.ALSRecommender, freqfm.Word2Vec
start = time.process_time(), time.perf_counter()
{fit}
print(json.dumps([time.process_time() - start[0], time.perf_counter() - start[1]]))
"""


def seconds(fit, folder):
    """Return the CPU and wall seconds of a fit in a fresh process."""
    done = subprocess.run(
        [sys.executable, "-c", CODE.format(fit=fit)],
        env={**os.environ, "NUMBA_CACHE_DIR": folder},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def main():
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder for results")
    parser.add_argument("--quick", action="store_true", help="only try whether it runs")
    args = parser.parse_args()
    results = {}
    print("CPU seconds, with wall seconds in parentheses")
    print(f"{'':28}{'first process':>18}{'second process':>18}")
    for name, fit in list(FITS.items())[: 1 if args.quick else None]:
        with tempfile.TemporaryDirectory() as folder:
            results[name] = [seconds(fit, folder) for _ in range(2)]
        columns = [f"{cpu:.1f} ({wall:.1f})" for cpu, wall in results[name]]
        print(f"{name:28}{columns[0]:>18}{columns[1]:>18}", flush=True)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "compile_time.json").write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
