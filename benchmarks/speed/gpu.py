"""What a GPU is worth: every mark as a line of a table, in one unattended run under nine minutes.

    python benchmarks/speed/gpu.py --data DIR --out results

Without data, synthetic rows and interactions of the same sizes are used. Times are medians; kernels
are timed from launch to end. PyTorch and implicit take part if they are installed. A part that
fails, or for which no time is left, is a line that says so. ``--emulated`` runs tiny sizes without
a GPU, to see that the script works.
"""

import collections
import json
import statistics
import sys
import time
import traceback
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from _data import click_parts, data_parser, movielens_split
from _epochs import EpochsOfFit, power_law_rows
from sklearn.base import clone
from sklearn.metrics import roc_auc_score

from freqfm import ALSRecommender, FastVAERecommender, FMClassifier, MFRecommender, backends
from freqfm._input.validation import canonical_csr
from freqfm._numba.jit import inlined
from freqfm.backends.cuda.groups import worker
from freqfm.backends.cuda.products import product_of_rows
from freqfm.datasets import make_interactions
from freqfm.metrics import ndcg_at_k, recall_at_k
from freqfm.metrics._hits import top_k
from freqfm.model_selection import holdout_interactions
from freqfm.optimizers import Adam

# fp32 units of a multiprocessor by compute capability; 128 where not listed.
_UNITS = {(7, 0): 64, (7, 5): 64, (8, 0): 64}


@inlined
def copy_words(group, b, args):
    """Copy an array, to measure the card's bandwidth."""
    source, target = args
    thread, n_threads = worker(group)
    for i in range(thread, source.shape[0], n_threads):
        target[i] = source[i]


@inlined
def multiply(group, b, args):
    """Multiply two matrices, to measure products."""
    left, right, out = args
    product_of_rows(group, left, 0, right, out.shape, out)


class Report:
    """The table: what was measured, what is wanted, and whether it is met."""

    def __init__(self, seconds):
        self.lines, self.failed, self._latest = [], [], time.perf_counter() + seconds

    def add(self, name, value, unit, wanted=None, at_most=False):
        """Add a line; ``wanted`` is the least value, or the most."""
        met = "" if wanted is None else "yes" if (value <= wanted) == at_most else "NO"
        if wanted is not None and value == wanted:
            met = "yes"
        self.lines.append((name, float(value), unit, wanted, met))
        limit = "" if wanted is None else f"{'at most' if at_most else 'at least'} {wanted:g}"
        print(f"{name:64}{value:12.4g} {unit:14}{limit:18}{met}", flush=True)

    def part(self, title, measure, *args):
        """Run a part; an error, or no time left, becomes a line. Return what it returns."""
        print(f"\n{title}", flush=True)
        if time.perf_counter() > self._latest:
            self.lines.append((title, None, "no time left", None, "NO"))
            print("  no time left", flush=True)
            return None
        try:
            return measure(self, *args)
        except Exception as error:
            self.lines.append((title, None, repr(error), None, "NO"))
            self.failed.append(title)
            traceback.print_exc(limit=3, file=sys.stdout)
            return None


class Clock:
    """Seconds of launches, by the name of their first phase."""

    def __init__(self, device):
        self.seconds, run = collections.Counter(), device.run

        def timed(phases, *args, **options):
            start = time.perf_counter()
            run(phases, *args, **options)
            self.seconds[phases[0].__name__] += time.perf_counter() - start

        device.run = timed

    def median(self, name, call, repeats):
        """Return the median seconds of a call in launches of a name, after one to warm up."""
        call()
        taken = []
        for _ in range(repeats):
            self.seconds.clear()
            call()
            taken.append(self.seconds[name])
        return statistics.median(taken)


def seconds_of(model, data, repeats):
    """Return the median of the seconds that an epoch of a fit takes."""
    with EpochsOfFit(model, *data) as epoch:
        return median(epoch, repeats)


def median(call, repeats):
    """Return the median of the seconds that calls take, after one to warm up."""
    call()
    taken = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


class Sizes:
    """Sizes of what is measured, small ones for an emulated GPU."""

    def __init__(self, emulated):
        self.words = 1 << 10 if emulated else 1 << 28
        self.square = 16 if emulated else 4096
        self.rows = 200 if emulated else 400_000
        self.columns = 300 if emulated else 1_000_000
        self.batches = (64, 128) if emulated else (1024, 65_536)
        self.width = 4 if emulated else 64
        self.items = 300 if emulated else 1_500_000
        self.queries = 2 if emulated else 1024
        self.batch_size = 16 if emulated else 8192
        self.users = 20 if emulated else 1024
        self.interactions = (30, 20, 200) if emulated else (29_858, 40_981, 820_000)
        self.repeats = 1 if emulated else 5
        self.epochs = 1 if emulated else 20
        self.untuned = {"n_components": 4, "max_iter": 2} if emulated else {}


def measure_card(report, device, clock, sizes):
    """Return the card's copy bandwidth and its peak of fp32, in units a second."""
    words = device.to_device(np.zeros(sizes.words, dtype=np.float32))
    target = device.empty(sizes.words, np.float32)
    run = lambda: device.run((copy_words,), (words, target), 32, sizes.words // 128)  # noqa: E731
    bandwidth = 8 * sizes.words / clock.median("copy_words", run, sizes.repeats)
    report.add("copy bandwidth", bandwidth / 1e9, "GB/s")
    peak = peak_of(device)
    report.add("peak of fp32, by clock and multiprocessors", peak / 1e12, "TFLOP/s")
    n = sizes.square
    left, right = (device.to_device(np.ones(at, dtype=np.float32)) for at in ((n, 64), (64, n)))
    out = device.empty((n, n), np.float32)
    run = lambda: device.run((multiply,), (left, right, out), 32, n * n // 1024)  # noqa: E731
    speed = 2 * 64 * n * n / clock.median("multiply", run, sizes.repeats)
    report.add("product of (n, 64) and (64, n), share of the peak", speed / peak, "", 0.25)
    return bandwidth, peak


def peak_of(device):
    """Return floating-point operations a second of a card, or 1 of an emulated one."""
    if device.name == "emulated":
        return 1.0
    from numba import cuda

    card = cuda.get_current_device()
    units = _UNITS.get(tuple(card.compute_capability), 128)
    return 2.0 * units * card.MULTIPROCESSOR_COUNT * 1000.0 * card.CLOCK_RATE


def ratings(args, sizes):
    """Return rows of a user and a movie each, and whether it was liked: train and test."""
    if args.data and not args.emulated:
        (X, y), _, (X_test, y_test) = movielens_split(args.data, 0)
        return canonical_csr(X), y, canonical_csr(X_test), y_test
    X = power_law_rows(sizes.rows, 9746, 2)
    generator = np.random.default_rng(0)
    V = generator.normal(0, 0.5, (X.shape[1], 4))
    score = (X @ V).prod(axis=1) + X @ generator.normal(0, 0.5, X.shape[1])
    y = (score + generator.logistic(size=len(score)) > 0).astype(np.int64)
    n = len(y) // 10 * 9
    return X[:n], y[:n], X[n:], y[n:]


def fm(sizes, **params):
    """Return a machine that trains without validation."""
    fixed = {"early_stopping": False, "n_iter_no_change": None, "random_state": 0}
    return FMClassifier(sizes.width, **{**fixed, **params})


def measure_fm(report, clock, bandwidth, rows, sizes):
    """Measure scores and training of factorization machines.

    Shares of the bandwidth count the bytes that must be moved at least, each row of the factors
    once; and those that are gathered, a row for each entry.
    """
    X, y = rows
    d, n = sizes.width, X.shape[0]
    model = fm(sizes, max_iter=1, device="cuda").fit(X, y)
    taken = clock.median("score", lambda: model.decision_function(X), sizes.repeats)
    entries = 8 * X.nnz + 12 * n
    report.add("scores, rows a second", n / taken / 1e6, "million")
    least = 4 * (d + 1) * X.shape[1] + entries
    report.add("scores, share of the bandwidth", least / taken / bandwidth, "", 0.5)
    gathered = 4 * (d + 1) * X.nnz + entries
    report.add("scores, share if vectors are gathered", gathered / taken / bandwidth, "")
    for batch_size in sizes.batches:
        with EpochsOfFit(fm(sizes, batch_size=batch_size, device="cuda"), X, y) as epoch:
            taken = clock.median("score_batch", epoch, sizes.repeats)
            whole = median(epoch, sizes.repeats)
        # A batch reads and writes the vectors of its tokens once, and its entries.
        tokens = sum(
            len(np.unique(X.indices[X.indptr[i] : X.indptr[min(i + batch_size, n)]]))
            for i in range(0, n, batch_size)
        )
        least = 2 * 4 * (d + 1) * tokens + 16 * X.nnz
        # Scores gather vectors, sums gather those of rows.
        gathered = 2 * 4 * (d + 1) * X.nnz + least
        name = f"batches of {batch_size}"
        wanted = 50 if batch_size == 1024 and X.nnz == 2 * n else None
        report.add(f"{name}, rows a second", n / taken / 1e6, "million", wanted)
        report.add(f"{name}, share of the bandwidth", least / taken / bandwidth, "", 0.25)
        report.add(f"{name}, share if gathered", gathered / taken / bandwidth, "")
        report.add(f"{name}, rows a second of a whole epoch", n / whole / 1e6, "million")
        on_cpu = seconds_of(fm(sizes, batch_size=batch_size), (X, y), sizes.repeats)
        report.add(f"{name}, times as fast as this machine's CPU", on_cpu / whole, "x")


def measure_parity(report, device, rows, sizes):
    """Compare models with those of the CPU, and bits of runs and grids."""
    X, y, X_test, y_test = rows
    for name, params in [
        ("a step", {"max_iter": 1, "batch_size": X.shape[0]}),
        ("an epoch", {"max_iter": 1}),
    ]:
        one, other = (fm(sizes, device=device, **params).fit(X, y) for device in ("cuda", "cpu"))
        error = np.linalg.norm(one.factors_ - other.factors_) / np.linalg.norm(other.factors_)
        report.add(
            f"{name} against the CPU, relative norm of the difference", error, "",
            1e-5 if name == "a step" else 1e-3, at_most=True,
        )  # fmt: skip
    auc = [
        roc_auc_score(
            y_test, fm(sizes, device=at, max_iter=sizes.epochs).fit(X, y).decision_function(X_test)
        )
        for at in ("cuda", "cpu")
    ]
    report.add("AUC after a fit, difference", abs(auc[0] - auc[1]), "", 0.001, at_most=True)
    models = []
    for blocks in (None, None, 5):
        device.most_blocks = blocks
        models.append(fm(sizes, max_iter=2, device="cuda").fit(X, y))
    device.most_blocks = None
    for other, name in zip(models[1:], ("two runs", "two grids"), strict=True):
        same = np.array_equal(models[0].factors_, other.factors_)
        report.add(f"the same bits for {name}", float(same), "", 1)


def torch_epoch(X, y, d, batch_size, graphed):
    """Return a function that trains an epoch of the same machine in PyTorch."""
    import torch

    at = "cuda" if torch.cuda.is_available() else "cpu"
    tokens = torch.tensor(X.indices.reshape(-1, 2).astype(np.int64), device=at)
    target = torch.tensor(y, dtype=torch.float32, device=at)
    V = torch.nn.Parameter(0.01 * torch.randn(X.shape[1], d, device=at))
    w = torch.nn.Parameter(torch.zeros(X.shape[1], device=at))
    b = torch.nn.Parameter(torch.zeros(1, device=at))
    steps = torch.optim.Adam([V, w, b], 1e-3, capturable=graphed)
    some = torch.zeros(batch_size, 2, dtype=torch.int64, device=at)
    wanted = torch.zeros(batch_size, device=at)

    def step(some, wanted):
        steps.zero_grad(set_to_none=False)
        score = b + w[some].sum(1) + (V[some[:, 0]] * V[some[:, 1]]).sum(1)
        torch.nn.functional.binary_cross_entropy_with_logits(score, wanted).backward()
        steps.step()

    if graphed:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(3):
                step(some, wanted)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step(some, wanted)

    def epoch():
        order = torch.randperm(len(target), device=at)
        for start in range(0, len(order) - batch_size + 1, batch_size):
            rows = order[start : start + batch_size]
            if graphed:
                some.copy_(tokens[rows])
                wanted.copy_(target[rows])
                graph.replay()
            else:
                step(tokens[rows], target[rows])
        if at == "cuda":
            torch.cuda.synchronize()

    return epoch


def measure_torch(report, rows, sizes):
    """Compare with PyTorch on the same card: dense Adam, the same model, and batches."""
    X, y, _, _ = rows
    wanted = {False: 5, True: 1.5}
    for batch_size, graphed in zip(sizes.batches, (False, True), strict=True):
        params = {"batch_size": batch_size, "alpha_linear": 0, "alpha_factors": 0}
        model = fm(sizes, optimizer=Adam(1e-3, lazy=False), device="cuda", **params)
        ours = seconds_of(model, (X, y), sizes.repeats)
        theirs = median(torch_epoch(X, y, sizes.width, batch_size, graphed), 2)
        name = "CUDA-graphed" if graphed else "eager"
        report.add(
            f"FM, batches of {batch_size}, times as fast as PyTorch, {name}", theirs / ours, "x",
            wanted[graphed],
        )  # fmt: skip


def measure_top_k(report, sizes):
    """Measure the search for the best items."""
    generator = np.random.default_rng(0)
    queries, items = (
        generator.normal(size=(n, sizes.width)).astype(np.float32)
        for n in (sizes.queries, sizes.items)
    )
    found = {}
    for at in ("cuda", "cpu"):
        call = lambda at=at: found.update({at: top_k(queries, items, 20, device=at)[0]})  # noqa: E731
        taken = median(call, 1)
        name = f"the best 20 of {sizes.items} items for {sizes.queries} queries, {at}"
        report.add(name, taken, "s")
    same = np.mean(found["cuda"] == found["cpu"])
    report.add("the same items as on the CPU, share", same, "", 0.999)


def gowalla(args, sizes):
    """Return training and test interactions."""
    if args.data and not args.emulated:
        train, _, test = click_parts(args.data, "gowalla")
        return train, test
    n_users, n_items, n = sizes.interactions
    made = make_interactions(n_users, n_items, n, random_state=0)
    return holdout_interactions(made, 0.2, random_state=0)


def measure_mf(report, clock, peak, interactions, sizes):
    """Measure matrix factorization: epochs of two losses, and of least squares."""
    train, _ = interactions
    m = min(1024, train.shape[1])
    # Scores, and gradients of both sides.
    flops = 3 * 2 * train.nnz * m * 64
    for batch_size in (None, sizes.batch_size):
        given = {} if batch_size is None else {"batch_size": batch_size}
        params = {"n_negatives": m, "random_state": 0, **given}
        name = f"BSL, {m} shared negatives, batches of {batch_size or 'the default size'}"
        with EpochsOfFit(MFRecommender(64, device="cuda", **params), train) as epoch:
            taken = clock.median("gather", epoch, sizes.repeats)
        report.add(f"{name}, share of the peak of fp32", flops / taken / peak, "", 0.25)
        compare_epochs(report, name, MFRecommender(64, **params), train, sizes)
    compare_epochs(report, "BPR", MFRecommender(64, loss="bpr", random_state=0), train, sizes)
    compare_epochs(report, "ALS", ALSRecommender(sizes.width, random_state=0), train, sizes)


def compare_epochs(report, name, model, train, sizes):
    """Report the seconds of an epoch, and those of this machine's CPU."""
    taken = seconds_of(clone(model).set_params(device="cuda"), (train,), sizes.repeats)
    report.add(f"{name}, seconds of a whole epoch", taken, "s")
    on_cpu = seconds_of(model, (train,), 1)
    report.add(f"{name}, times as fast as this machine's CPU", on_cpu / taken, "x")


def measure_untuned(report, interactions, sizes):
    """Measure an untuned fit, and compare what it recommends with the CPU's."""
    train, test = interactions
    scores = {}
    for at in ("cuda", "cpu"):
        start = time.perf_counter()
        fitted = MFRecommender(device=at, random_state=0, **sizes.untuned).fit(train)
        if at == "cuda":
            report.add("untuned fit", time.perf_counter() - start, "s", 10, at_most=True)
            report.add("untuned fit, epochs", fitted.n_iter_, "")
        ranked = fitted.recommend(users=np.arange(train.shape[0]), n_recommendations=20)[0]
        scores[at] = recall_at_k(test, ranked), ndcg_at_k(test, ranked)
    for name, one, other in zip(("recall@20", "NDCG@20"), *scores.values(), strict=True):
        report.add(f"{name} on the GPU", one, "")
        difference = abs(one / other - 1)
        report.add(f"{name}, relative difference from the CPU", difference, "", 0.005, True)


def measure_vae(report, interactions, sizes):
    """Measure epochs of the autoencoder, on few items and on many."""
    train, _ = interactions
    many = power_law_rows(sizes.users, sizes.items, min(20, sizes.items))
    for name, rows in (("Gowalla", train), (f"{sizes.items} items", many)):
        for sampler in ("full", "midx_uniform"):
            model = FastVAERecommender(
                sizes.width, negative_sampler=sampler, early_stopping=False, device="cuda",
                batch_size=min(256, rows.shape[0]), random_state=0,
            )  # fmt: skip
            taken = seconds_of(model, (rows,), 1)
            n_batches = -(-rows.shape[0] // model.batch_size)
            title = f"autoencoder, {name}, sampler {sampler}, milliseconds a batch"
            report.add(title, 1000 * taken / n_batches, "ms")


def measure_implicit(report, interactions, sizes):
    """Compare BPR with implicit's on the GPU."""
    from implicit.gpu.bpr import BayesianPersonalizedRanking

    train, _ = interactions
    peer = BayesianPersonalizedRanking(factors=64, iterations=10)
    theirs = median(lambda: peer.fit(train, show_progress=False), 1) / 10
    model = MFRecommender(64, loss="bpr", device="cuda")
    ours = seconds_of(model, (train,), sizes.repeats)
    report.add("BPR, times as fast as implicit on the GPU", theirs / ours, "x")


def open_backend(emulated):
    """Return the GPU's backend, or one that is emulated."""
    if not emulated:
        return backends.get("cuda")
    sys.path.append(str(Path(__file__).resolve().parents[2] / "tests"))
    from emulated_gpu import EmulatedDevice

    from freqfm.backends.cuda.backend import CUDABackend

    backend = CUDABackend(EmulatedDevice())
    backends._cuda = lambda number: backend
    return backend


def main():
    parser = data_parser(__doc__)
    parser.add_argument("--emulated", action="store_true", help="tiny sizes, without a GPU")
    parser.add_argument(
        "--seconds", type=float, default=450, help="after so many no further part begins"
    )
    args = parser.parse_args()
    backend, sizes = open_backend(args.emulated), Sizes(args.emulated)
    report = Report(args.seconds)
    device = backend.device
    print(f"{backend.name}; NumPy {np.__version__}")
    clock, part = Clock(device), report.part
    bandwidth, peak = part("The card", measure_card, device, clock, sizes) or (1.0, 1.0)
    rows, interactions = ratings(args, sizes), gowalla(args, sizes)
    wide = power_law_rows(sizes.rows, sizes.columns, 39)
    wide = canonical_csr(wide), np.random.default_rng(0).integers(2, size=wide.shape[0])
    for title, some in (("MovieLens ratings", rows[:2]), ("39 of a million columns", wide)):
        title = f"Factorization machines, {title}"
        part(title, measure_fm, clock, bandwidth, some, sizes)
    part("Parity and bits", measure_parity, device, rows, sizes)
    part("Matrix factorization, Gowalla", measure_mf, clock, peak, interactions, sizes)
    part("MFRecommender() on Gowalla", measure_untuned, interactions, sizes)
    part("The best items", measure_top_k, sizes)
    part("Autoencoders", measure_vae, interactions, sizes)
    if not args.emulated:  # these need a card
        part("Factorization machines compared with PyTorch", measure_torch, rows, sizes)
        part("BPR compared with implicit", measure_implicit, interactions, sizes)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "gpu.json").write_text(json.dumps([backend.name, *report.lines], indent=1))
    if report.failed:
        raise SystemExit(f"parts that raised an error: {', '.join(report.failed)}")


if __name__ == "__main__":
    main()
