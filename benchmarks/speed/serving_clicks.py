"""What serving clicks costs: encoding, the machine, rows per call, memory of workers.

The log is drawn: 26 columns of categories, of up to 10,000 values, and 13 of numbers, as Criteo's
has. Times depend on shapes only; they are CPU milliseconds of one thread, medians of calls that
take turns, but those of requests, which are wall time. Memory is what a worker does not share with
others (Linux), after 20 requests, of machines with a million hashed features and 16 components.

    python benchmarks/speed/serving_clicks.py [--quick] [--rounds 31] [--out results]
"""

import argparse
import gc
import http.client
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from bisect import bisect_right
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import joblib
import numpy as np
import pandas as pd
from scipy.sparse import csr_array
from sklearn.compose import make_column_transformer
from sklearn.feature_extraction import FeatureHasher
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import KBinsDiscretizer, OneHotEncoder

from freqfm import FMClassifier

IDS, NUMBERS = [f"c{i}" for i in range(26)], [f"n{i}" for i in range(13)]
ROWS_PER_CALL = 1, 8, 64, 512, 4096
SHORT = {"max_iter": 2, "n_iter_no_change": None, "early_stopping": False, "n_jobs": 1}

# A worker that loads a model and answers; it prints how much memory it does not share.
WORKER = """
import sys
sys.path.insert(0, sys.argv[1])
import serving_clicks
serving_clicks.work(*sys.argv[2:])
"""


def drawn_log(n_rows):
    """Return a log of categories and numbers, and clicks."""
    rng = np.random.default_rng(0)
    sizes = np.geomspace(4, 10_000, len(IDS)).astype(int)
    ids = {name: rng.zipf(1.2, n_rows) % size for name, size in zip(IDS, sizes, strict=True)}
    log = pd.DataFrame({name: [f"v{value}" for value in of] for name, of in ids.items()})
    for name in NUMBERS:
        log[name] = rng.lognormal(size=n_rows)
    return log, rng.random(n_rows) < np.where(ids["c3"] % 2, 0.4, 0.1)


def value_columns(encoder, first):
    """Return the column of each value of each field, and that of new values or None."""
    n = max(map(len, encoder.categories_))
    fields = zip(encoder.feature_names_in_, encoder.categories_, strict=True)
    table = pd.DataFrame({name: np.resize(values, n) for name, values in fields})
    columns = (encoder.transform(table).indices.reshape(n, -1) + first).T.tolist()
    found = {}
    for i, name in enumerate(table):
        known = dict(zip(table[name], columns[i], strict=True))
        rare = encoder.infrequent_categories_[i]
        found[name] = known, None if rare is None else known[rare[0]]
    return found


def encoder_of(pipeline):
    """Return a function that encodes a list of dicts as the pipeline's ColumnTransformer does."""
    columns, n_columns = pipeline[0], pipeline[-1].n_features_in_
    one_hot, bins = (of for _, of, _ in columns.transformers_[:2])
    starts = [part.start for part in columns.output_indices_.values()]
    values = value_columns(one_hot, starts[0])
    ends = [len(edges) - 1 for edges in bins.bin_edges_]
    firsts = starts[1] + np.cumsum([0, *ends[:-1]])
    edges = {
        name: (int(first), of[1:-1].tolist())
        for name, first, of in zip(bins.feature_names_in_, firsts, bins.bin_edges_, strict=True)
    }

    def encode(rows):
        numbers, ends = [], [0]
        for row in rows:
            found = [known.get(row.get(name), new) for name, (known, new) in values.items()]
            numbers += [number for number in found if number is not None]
            numbers += [first + bisect_right(of, row[name]) for name, (first, of) in edges.items()]
            ends.append(len(numbers))
        ones = np.ones(len(numbers), dtype=np.float32)
        indices = np.array(numbers, dtype=np.int32)
        return csr_array((ones, indices, ends), shape=(len(rows), n_columns))

    return encode


def tokens(rows):
    """Return the tokens of rows that are hashed."""
    return [[f"{name}={value}" for name, value in row.items()] for row in rows]


def scorers(log, clicked):
    """Return two functions: one that returns those to be timed, and the prediction of dicts."""
    one_hot = OneHotEncoder(handle_unknown="infrequent_if_exist", min_frequency=5)
    bins = KBinsDiscretizer(8, quantile_method="averaged_inverted_cdf")
    columns = make_column_transformer((one_hot, IDS), (bins, NUMBERS))
    pipeline = make_pipeline(columns, FMClassifier(random_state=0, **SHORT)).fit(log, clicked)
    machine, encode = pipeline[-1], encoder_of(pipeline)
    hasher = FeatureHasher(2**18, input_type="string", alternate_sign=False)
    rows = log.to_dict("records")
    hashed = FMClassifier(random_state=0, **SHORT).fit(hasher.transform(tokens(rows)), clicked)
    encoded = columns.transform(log).astype(np.float32)
    expected = pipeline.predict_proba(log[:500])

    def by_dictionary(rows):
        return machine.predict_proba(encode(rows))

    def prepared(n):
        frame, some, X = log[:n], rows[:n], encoded[:n]
        return {
            "pipeline": lambda: pipeline.predict_proba(frame),
            "ColumnTransformer alone": lambda: columns.transform(frame),
            "dictionary and machine": lambda: by_dictionary(some),
            "hasher and machine": lambda: hashed.predict_proba(hasher.transform(tokens(some))),
            "machine alone": lambda: machine.predict_proba(X),
        }

    assert np.array_equal(by_dictionary(rows[:500]), expected)
    return prepared, by_dictionary


def milliseconds(calls, rounds):
    """Return the median CPU milliseconds of each call; they take turns."""
    taken = {name: [] for name in calls}
    for round_ in range(rounds + 2):
        for name, call in calls.items():
            started = time.thread_time()
            call()
            # The first rounds load and compile.
            if round_ >= 2:
                taken[name].append(1000 * (time.thread_time() - started))
    return {name: float(np.median(of)) for name, of in taken.items()}


def hashed_model(n_features, path):
    """Store a machine of many features, and what it is asked."""
    rng = np.random.default_rng(0)
    n_rows = 5_000
    indices = rng.integers(n_features, size=39 * n_rows).astype(np.int32)
    ends = np.arange(0, len(indices) + 1, 39)
    X = csr_array((np.ones(len(indices), np.float32), indices, ends), shape=(n_rows, n_features))
    machine = FMClassifier(random_state=0, **SHORT).fit(X, rng.random(n_rows) < 0.2)
    joblib.dump((machine.without_optimizer_state(), X[:20]), path)


def answer(machine, X):
    """Predict 20 rows, one by one."""
    for i in range(X.shape[0]):
        machine.predict_proba(X[[i]])


def private():
    """Return the megabytes that this process shares with no other."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024


def work(path, how, n_workers):
    """Load a model and answer, in this process or in forked ones; print their private memory."""
    machine, X = joblib.load(path, mmap_mode="r" if how == "mmap" else None)
    answer(machine, X)
    if how == "fork":
        gc.freeze()
        for _ in range(int(n_workers)):
            if os.fork() == 0:
                answer(machine, X)
                # All forks are there when they are measured.
                time.sleep(1)
                # One write each: print would write the end of a line on its own.
                print(f"{private()}\n", end="", flush=True)
                os._exit(0)
        for _ in range(int(n_workers)):
            os.wait()
    else:
        time.sleep(2)
        print(f"{private()}\n", end="", flush=True)


def memory(n_features, n_workers):
    """Return the private megabytes of workers, by how they get the model."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.joblib")
        hashed_model(n_features, path)
        here = str(Path(__file__).resolve().parent)
        for how in ("fork", "mmap", "load"):
            command = [sys.executable, "-c", WORKER, here, path, how, str(n_workers)]
            processes = [
                subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
                for _ in range(1 if how == "fork" else n_workers)
            ]
            printed = " ".join(process.communicate()[0] for process in processes)
            found[how] = float(np.median([float(number) for number in printed.split()]))
    return found


class Handler(BaseHTTPRequestHandler):
    """Answers a list of rows with their probabilities."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self):
        """Answer."""
        rows = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        body = json.dumps(self.server.predict(rows)[:, 1].tolist()).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        """Print nothing."""


def http_milliseconds(predict, rows, n_requests):
    """Return the median and 99th percentile of the wall milliseconds of requests of a row."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.predict = predict
        threading.Thread(target=server.serve_forever, daemon=True).start()
        client, taken = http.client.HTTPConnection(*server.server_address), []
        for i in range(n_requests):
            started = time.perf_counter()
            client.request("POST", "/", json.dumps([rows[i % len(rows)]]))
            client.getresponse().read()
            taken.append(1000 * (time.perf_counter() - started))
        client.close()
        server.shutdown()
    return np.percentile(taken, [50, 99]).tolist()


def main():
    """Measure, print and write ``serving_clicks.json``."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small data, to see that it runs")
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder for results")
    args = parser.parse_args()
    rounds = 3 if args.quick else args.rounds
    log, clicked = drawn_log(5_000 if args.quick else 20_000)
    prepared, dictionary = scorers(log, clicked)
    per_call = {
        n: milliseconds(prepared(n), max(3, rounds // max(1, n // 64))) for n in ROWS_PER_CALL
    }
    print(f"CPU milliseconds of a row, and microseconds of a row in calls of {ROWS_PER_CALL}")
    for name in per_call[1]:
        each = "".join(f"{1000 * of[name] / n:11.1f}" for n, of in per_call.items())
        print(f"{name:26}{per_call[1][name]:9.2f}{each}")
    rows = log[:1000].to_dict("records")
    answers = http_milliseconds(dictionary, rows, 50 if args.quick else 2_000)
    print(f"milliseconds of a request of a row, median and 99th percentile: {answers}")
    found = memory(2**16 if args.quick else 2**20, 2 if args.quick else 4)
    print(f"private MB of a worker: {found}")
    args.out.mkdir(parents=True, exist_ok=True)
    report = {"milliseconds": per_call, "request_ms": answers, "private_mb": found}
    (args.out / "serving_clicks.json").write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
