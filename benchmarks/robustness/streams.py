"""Training on streams: chunks by ``partial_fit``, and memory and time of fits on a ``RowStream``.

Rows are generated on the fly, always the same ones: 39 tokens each by default, in fields of very
different sizes, by a power law within each field; the label depends on some of them.

    python benchmarks/robustness/streams.py chunks  # partial_fit against fit, in turns
    python benchmarks/robustness/streams.py chunks --tokens 10000 --fields 2
    python benchmarks/robustness/streams.py epochs --rows 600000 --chunk 65536  # epochs, in turns
    python benchmarks/robustness/streams.py stream --rows 1000000 --chunk 32768  # memory, seconds
    python benchmarks/robustness/streams.py pass --rows 100000000 --chunk 32768   # constant memory
"""

import argparse
import functools
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from _measure import quartiles
from scipy import sparse
from sklearn.metrics import log_loss

from freqfm import FMClassifier
from freqfm._input.validation import canonical_csr
from freqfm.datasets import RowStream, save_csr
from freqfm.estimators.fm.streaming import StreamTrainer, survey_stream
from freqfm.estimators.fm.trainer import FMTrainer, TrainingRows
from freqfm.estimators.state import trained_arrays
from freqfm.estimators.training import Attempt
from freqfm.optimizers import CFSGD

N_FIELDS = 39
EXPONENT = 1.1


def field_sizes(n_tokens, n_fields):
    """Return the numbers of tokens of the fields, from 4 on, in a geometric series."""
    sizes = np.geomspace(4, n_tokens / 5, n_fields)
    return np.maximum(2, sizes * n_tokens / sizes.sum()).astype(np.int64)


class Rows:
    """Chunks of rows by their numbers: the same number gives the same rows."""

    def __init__(self, n_tokens, n_fields=N_FIELDS, seed=0):
        sizes = field_sizes(n_tokens, n_fields)
        self.n_fields = n_fields
        self.n_tokens = int(sizes.sum())
        self.seed = seed
        self._starts = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int32)
        self._ranges = (sizes ** (1 - EXPONENT) - 1).astype(np.float32)
        self._effects = np.random.default_rng(seed).normal(0, 0.3, 1 << 16).astype(np.float32)

    def chunk(self, number, n_rows):
        """Return X and y of a chunk."""
        rng = np.random.default_rng([self.seed, number])
        ranks = rng.random((n_rows, self.n_fields), dtype=np.float32)
        ranks *= self._ranges
        ranks += 1
        np.power(ranks, np.float32(1 / (1 - EXPONENT)), out=ranks)
        tokens = self._starts + ranks.astype(np.int32) - 1
        tokens = np.minimum(tokens, self.n_tokens - 1)
        scores = self._effects[tokens[:, ::4] & 0xFFFF].sum(axis=1) - 1
        y = rng.random(n_rows, dtype=np.float32) < 1 / (1 + np.exp(-scores))
        X = sparse.csr_array((n_rows, self.n_tokens), dtype=np.float32)
        X.data = np.ones(tokens.size, dtype=np.float32)
        X.indices = tokens.ravel()
        X.indptr = np.arange(0, tokens.size + 1, self.n_fields, dtype=np.int64)
        return X, y.astype(np.int64)


def joined(chunks):
    """Return chunks as one X and y."""
    X = sparse.csr_array((sum(c[0].shape[0] for c in chunks), chunks[0][0].shape[1]), dtype="f4")
    X.data = np.concatenate([c[0].data for c in chunks])
    X.indices = np.concatenate([c[0].indices for c in chunks])
    lengths = np.concatenate([np.diff(c[0].indptr) for c in chunks])
    X.indptr = np.concatenate([[0], np.cumsum(lengths)])
    return X, np.concatenate([c[1] for c in chunks])


def model(args, **params):
    """Return a classifier that trains one epoch on everything."""
    params = {"early_stopping": False, "n_iter_no_change": None, "random_state": 0, **params}
    return FMClassifier(args.components, max_iter=1, n_jobs=args.jobs, **params)


def in_memory(args, X, y):
    """Return the task that trains epochs on rows in memory."""
    rows = canonical_csr(X), y, y[np.newaxis].astype(np.float32), np.ones(len(y))
    fitted = model(args).partial_fit(X, y, classes=[0, 1])
    return FMTrainer(fitted, CFSGD(), TrainingRows(*rows))


def print_turns(results, n_rows, base):
    """Print quartiles of the rates of calls that took turns, and their ratios to one of them."""
    for name, seconds in results.items():
        low, median, high = (n_rows / s for s in reversed(seconds))
        ratio = results[base][1] / seconds[1]
        spread = f"({low:,.0f} to {high:,.0f})"
        print(f"  {name:26}{median:12,.0f} rows/s {spread:26} {ratio:.2f} of {base}", flush=True)


def chunks_against_fit(args):
    """Print the rows a second of an epoch in memory, of a fit, and of chunks by partial_fit.

    All continue with a model, so that none of them draws one.
    """
    rows = Rows(args.tokens, args.fields)
    chunks = [rows.chunk(i, args.chunk) for i in range(max(2, args.rows // args.chunk))]
    X, y = joined(chunks)
    warm, online = model(args, warm_start=True), model(args)
    online.partial_fit(*chunks[0], classes=[0, 1])
    warm.fit(X, y)
    epochs = in_memory(args, X, y)
    calls = {
        "an epoch in memory": lambda: epochs.run_epoch(1),
        "fit, one epoch": lambda: warm.fit(X, y),
        "partial_fit": lambda: [online.partial_fit(*chunk) for chunk in chunks],
    }
    with epochs:
        results = quartiles(calls, args.repeats)
    print(f"{len(y)} rows of {rows.n_fields} tokens out of {rows.n_tokens}, chunks of {args.chunk}")
    print_turns(results, len(y), "fit, one epoch")
    return results


def epochs_against_memory(args):
    """Print the rows a second of epochs on streams and of one in memory, of the same rows.

    Reading is the bound of a source: no epoch is faster, and its work takes a core from training.
    """
    rows = Rows(args.tokens, args.fields)
    n_rows = args.rows // args.chunk * args.chunk
    X, y = joined([rows.chunk(i, args.chunk) for i in range(n_rows // args.chunk)])
    epochs = in_memory(args, X, y)
    calls = {"an epoch in memory": lambda: epochs.run_epoch(1)}
    with tempfile.TemporaryDirectory() as folder, epochs:
        save_csr(folder, X, y)
        streams = {
            "arrays": RowStream.from_csr(X, y, chunk_size=args.chunk),
            "mapped files": RowStream.from_csr(folder, chunk_size=args.chunk),
            "generated": generated(rows, n_rows, args.chunk),
        }
        fitted = epochs.model
        for name, stream in streams.items():
            survey = survey_stream(fitted, stream)
            task = StreamTrainer(fitted, CFSGD(), stream, survey, None, Attempt())
            calls[f"{name}, an epoch"] = functools.partial(task.run_epoch, 1)
            calls[f"{name}, read only"] = lambda stream=stream: sum(1 for _ in stream.epoch(1))
        results = quartiles(calls, args.repeats)
    print(f"{n_rows} rows of {rows.n_fields} tokens out of {rows.n_tokens}, chunks of {args.chunk}")
    print_turns(results, n_rows, "an epoch in memory")
    return results


def constant_memory(args):
    """Train one pass on generated rows by partial_fit; print memory and rate as it goes."""
    rows, done, printed = Rows(args.tokens, args.fields), 0, 0
    model(args).partial_fit(*rows.chunk(0, 2000), classes=[0, 1])
    memory, start = AnonymousMemory(), time.perf_counter()
    online = model(args, shuffle=False)
    for X, y in generated(rows, args.rows, args.chunk):
        online.partial_fit(X, y, classes=[0, 1])
        done += len(y)
        if done // 1_000_000 > printed or done >= args.rows:
            printed = done // 1_000_000
            size = sum(a.nbytes for a in [*trained_arrays(online), online.token_counts_])
            above, seconds = memory.peak - memory.before - size, time.perf_counter() - start
            print(
                f"{done:12,} rows, {done / seconds:9,.0f} rows/s, {above / 1e6:6,.0f} MB above the "
                f"model of {size / 1e6:,.0f} MB, CPU {time.process_time():,.0f} s",
                flush=True,
            )
    print(f"log loss {log_loss_on(online, rows):.8f}")
    return {"rows": done, "above the model": above, "seconds": seconds}


def log_loss_on(fitted, rows):
    """Return the log loss of rows that no model was trained on."""
    X, y = rows.chunk(10**9, 50_000)
    return log_loss(y, fitted.predict_proba(X))


class AnonymousMemory:
    """The peak of resident memory without pages of files, which the system can drop (Linux)."""

    def __init__(self):
        self._done = threading.Event()
        self.before = self.peak = self._now()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _now(self):
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * int(next(line for line in lines if line.startswith("RssAnon")).split()[1])

    def _watch(self):
        while not self._done.wait(0.02):
            self.peak = max(self.peak, self._now())

    def rise(self):
        """Stop watching; return by how much the peak is above the start."""
        self._done.set()
        self._thread.join()
        return self.peak - self.before


def generated(rows, n_rows, chunk):
    """Return a stream of rows that are generated when they are read."""
    return RowStream(lambda: chunks(rows, n_rows, chunk), chunk_size=chunk)


def chunks(rows, n_rows, chunk):
    """Generate whole chunks, as many as hold that many rows."""
    return (rows.chunk(i, chunk) for i in range(-(-n_rows // chunk)))


def stream_fit(args, rows):
    """Fit on rows of a source; return memory and times."""
    if args.source == "generated":
        data = (generated(rows, args.rows, args.chunk),)
    elif args.source == "mapped":
        data = (RowStream.from_csr(args.folder, chunk_size=args.chunk),)
    else:
        data = joined(list(chunks(rows, args.rows, args.chunk)))
    # Compiles, and loads what is compiled.
    model(args).fit(*rows.chunk(0, 2000))
    results = {}
    for n_epochs in (1, 2):
        memory, start = AnonymousMemory(), time.perf_counter()
        fitted = model(args, shuffle=False).set_params(max_iter=n_epochs).fit(*data)
        results[f"seconds of {n_epochs}"] = time.perf_counter() - start
        if n_epochs == 1:
            arrays = [*trained_arrays(fitted), fitted.token_counts_]
            results["above the model"] = memory.rise() - sum(array.nbytes for array in arrays)
            results["log loss"] = log_loss_on(fitted, rows)
            del arrays
        del fitted
    return results


def stream_against_memory(args):
    """Compare fits on streams with one in memory, each in a process of its own."""
    if args.source:
        print(json.dumps(stream_fit(args, Rows(args.tokens, args.fields))))
        return {}
    results = {}
    cases = [("generated", args.rows // 2), ("generated", args.rows)]
    if not args.generated_only:
        cases += [("mapped", args.rows), ("in memory", args.rows)]
    with tempfile.TemporaryDirectory() as folder:
        if not args.generated_only:
            save_csr(folder, generated(Rows(args.tokens, args.fields), args.rows, args.chunk))
        for source, n_rows in cases:
            call = [sys.executable, __file__, "stream", "--source", source, "--rows", str(n_rows)]
            for name in ("chunk", "tokens", "fields", "components"):
                call += [f"--{name}", str(getattr(args, name))]
            done = subprocess.run([*call, "--folder", folder], capture_output=True, text=True)
            if done.returncode:
                raise SystemExit(done.stderr)
            found = json.loads(done.stdout.splitlines()[-1])
            results[f"{source}, {n_rows} rows"] = found
            first, second = found["seconds of 1"], found["seconds of 2"]
            print(
                f"{source:10}{n_rows:12,} rows: fit of one epoch {n_rows / first:9,.0f} rows/s, "
                f"epoch {n_rows / (second - first):9,.0f} rows/s, "
                f"{found['above the model'] / 1e6:6,.0f} MB above the model, "
                f"log loss {found['log loss']:.8f}",
                flush=True,
            )
    return results


CASES = {
    "chunks": chunks_against_fit,
    "epochs": epochs_against_memory,
    "stream": stream_against_memory,
    "pass": constant_memory,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--source", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    parser.add_argument("--generated-only", action="store_true", help="no other sources")
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--chunk", type=int, default=10_000)
    parser.add_argument("--tokens", type=int, default=10_000_000)
    parser.add_argument("--fields", type=int, default=N_FIELDS, help="tokens of a row")
    parser.add_argument("--components", type=int, default=16)
    parser.add_argument("--jobs", type=int)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, help="folder for results")
    args = parser.parse_args()
    results = CASES[args.case](args)
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / f"streams_{args.case}.json").write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
