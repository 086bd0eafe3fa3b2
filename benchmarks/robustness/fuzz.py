"""Malformed input everywhere: no crash, no hang, no silent answer, no unclear error.

A case takes a call that works (see _fuzz_calls.py), makes one or two of its arguments faulty (see
_faults.py) and judges the outcome. It must be one of

- an error of an expected type, raised on purpose by freqfm or by scikit-learn's validation, not
  somewhere inside of NumPy, scipy or numba, whose message names an argument, a column, a file or
  a line;
- an answer that is right in form, where the fault may be accepted; and the same answer where the
  argument only has another form.

Cases run in processes that may crash or hang, with little memory. They are drawn by a seed and
their number; ``--case 123`` runs one here, with its traceback. The exit status is 1 if there is a
finding. A sixth kind of it, "refused", is a call without a fault that raises.
"""

import argparse
import collections
import faulthandler
import inspect
import json
import linecache
import os
import re
import resource
import subprocess
import sys
import tempfile
import traceback
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from _faults import REFUSE, SAME, pick
from _fuzz_calls import TARGETS
from scipy import sparse

import freqfm

FINDINGS = ["crash", "hang", "silent", "unclear", "refused"]
EXPECTED = (ValueError, TypeError, AttributeError, ImportError, OSError, freqfm.DivergenceError)
ALWAYS_CLEAR = ["column", "columns", "line", "row"]
FOLDERS = {name: str(Path(sys.modules[name].__file__).parent) for name in ("freqfm", "sklearn")}
SECONDS, GIGABYTES, CASES_PER_PROCESS, QUICK = 120, 4, 1000, 400


def draw(seed, number):
    """Return the name of a case's target, its call, and the generator that draws its faults."""
    rng = np.random.default_rng([seed, number])
    name = pick(rng, [*TARGETS])
    return name, rng


def run_case(seed, number, show=False):
    """Return the outcome of a case, a message, and the faulty arguments."""
    name, rng = draw(seed, number)
    call = TARGETS[name](rng)
    args, expected = {name: arg[0] for name, arg in call.args.items()}, {}
    n_faults = min(len(args), pick(rng, [1, 1, 1, 1, 1, 1, 1, 2, 2, 0]))
    for broken in rng.permutation([*args])[:n_faults].tolist():
        value, fault, options = call.args[broken]
        args[broken], expected[broken] = fault(rng, value, **options)
    faulty = ", ".join(f"{name}={shown(args[name])}" for name in expected)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            answer, error = call.run(**args), None
        except Exception as raised:
            answer, error = None, raised
    if show:
        print(f"{name}({faulty}), expected: {expected}\nanswer: {shown(answer, 2000)}\n")
        traceback.print_exception(error)
    names = [*call.args, *call.names, *inspect.signature(call.run).parameters, *ALWAYS_CLEAR]
    if error is not None:
        return *judge_error(error, names, expected), faulty
    problem = judge_warnings(caught, names)
    if problem:
        return "unclear", problem, faulty
    usual = None
    if expected and {*expected.values()} == {SAME}:
        # The call without its faults, drawn again.
        call = TARGETS[name](draw(seed, number)[1])
        usual = call.run(**{name: arg[0] for name, arg in call.args.items()})
    return *judge_answer(answer, usual, call, expected), faulty


def shown(value, length=150):
    """Return how a value looks, in one line."""
    try:
        return re.sub(r"\s+", " ", repr(value))[:length]
    except Exception:  # of matrices whose arrays are wrong
        return object.__repr__(value)


def judge_warnings(caught, names):
    """Return what NumPy or scipy warned of, other than in scikit-learn's scores, or None."""
    for warning in caught:
        ours = not warning.filename.startswith(str(Path(FOLDERS["sklearn"], "metrics")))
        numeric = issubclass(warning.category, RuntimeWarning)
        if ours and numeric and not holds(str(warning.message), names):
            return f"warning of {Path(warning.filename).name}:{warning.lineno}: {warning.message}"
    return None


def judge_error(error, names, expected):
    """Return whether an error is clear, and if not, why."""
    message = f"{type(error).__name__}: {error}"
    if not isinstance(error, EXPECTED):
        return "unclear", message
    frames = traceback.extract_tb(error.__traceback__)
    files, line = [frame.filename for frame in frames], frames[-1].lineno
    ours = [i for i, file in enumerate(files) if file.startswith(FOLDERS["freqfm"])]
    if not ours:  # the call itself is refused by Python or by scikit-learn
        clear = "argument" in message or any(f.startswith(FOLDERS["sklearn"]) for f in files)
    elif any(file.startswith(FOLDERS["sklearn"]) for file in files[ours[-1] :]):
        clear = True
    else:
        raised = linecache.getline(files[-1], line).strip().startswith("raise")
        clear = raised and len(files) - 1 == ours[-1] and holds(str(error), names)
    if not clear:
        return "unclear", f"{Path(files[-1]).name}:{line}: {message}"
    return ("error", "") if expected else ("refused", message)


def holds(message, names):
    """Return whether a message holds one of some names."""
    return any(re.search(rf"(?<!\w){re.escape(name)}(?!\w)", message) for name in names)


def judge_answer(answer, usual, call, expected):
    """Return whether an answer may be given, and if not, why."""
    # Two faults may cancel out, such as twice as many users and twice as many lists.
    if [*expected.values()] == [REFUSE]:
        return "silent", f"accepted, with the answer {shown(answer, 80)}"
    try:
        if call.check is not None:
            call.check(answer, {*call.args} - {*expected})
        if usual is not None:
            assert_same(answer, usual)
    except AssertionError as error:
        return "silent", f"{shown(str(error), 200)} ({shown(answer, 80)})"
    return "answer", ""


def assert_same(answer, usual):
    """Raise if two answers differ: numbers, arrays, or sequences and dicts of these."""
    if isinstance(answer, dict):
        answer, usual = [*answer.values()], [*usual.values()]
    if isinstance(answer, (list, tuple)):
        for one, other in zip(answer, usual, strict=True):
            assert_same(one, other)
    else:
        answer, usual = (x.toarray() if sparse.issparse(x) else x for x in (answer, usual))
        np.testing.assert_array_equal(
            answer, usual, "not the answer to the same in its usual form:"
        )


def work(first, last, options):
    """Run cases in this process; write their numbers before, and the outcomes after."""
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + GIGABYTES * 2**30,) * 2)
    for number in range(first, last):
        name = draw(options.seed, number)[0]
        if options.only in name:
            print(json.dumps([number, name]), file=out)
            faulthandler.dump_traceback_later(SECONDS, exit=True)
            print(json.dumps([number, name, *run_case(options.seed, number)]), file=out)
            faulthandler.cancel_dump_traceback_later()


def supervise(first, last, options):
    """Run cases in as many processes as it takes; print findings, and count outcomes by target."""
    counts = collections.defaultdict(collections.Counter)
    command = [sys.executable, "-X", "faulthandler", __file__, "--seed", str(options.seed)]
    command += ["--only", options.only, "--work"]

    def record(number, name, outcome, message, faulty):
        counts[name][outcome] += 1
        if outcome in FINDINGS:
            print(f"{outcome}: {name}, case {number}: {message} [{faulty}]", flush=True)

    while first < last:
        running = []
        with tempfile.TemporaryFile("w+") as log:
            process = subprocess.Popen(
                [*command, str(first), str(last)], stdout=subprocess.PIPE, stderr=log, text=True
            )
            for line in process.stdout:
                running = json.loads(line)
                if len(running) > 2:
                    record(*running)
            status = process.wait()
            log.seek(0)
            trace = log.read()
        if status == 0:
            break
        hang = "Timeout (" in trace
        if len(running) != 2 or (status > 0 and not hang):
            raise RuntimeError(f"fuzz.py itself failed at {running}:\n{trace}")
        where = re.findall(r'File "(.*)", line (\d+) in (\w+)', trace)[:3]
        words = shown(trace[:200], 200)
        record(*running, "hang" if hang else "crash", f"status {status}, {words}, {where}", "")
        first = running[0] + 1
    return counts


def main():
    """Run the cases and print a table of counts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=10_000, help="number of cases")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} cases")
    parser.add_argument("--only", default="", help="run targets with this in their names")
    parser.add_argument("--case", type=int, help="run this case here, and show all of it")
    parser.add_argument("--work", type=int, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        return work(*options.work, options)
    if options.case is not None:
        return print(*run_case(options.seed, options.case, show=True)[:2])
    n = QUICK if options.quick else options.n
    totals = collections.defaultdict(collections.Counter)
    with ThreadPoolExecutor(options.jobs) as pool:
        starts = range(0, n, CASES_PER_PROCESS)
        ends = [min(n, start + CASES_PER_PROCESS) for start in starts]
        for counts in pool.map(supervise, starts, ends, [options] * len(ends)):
            for name, counter in counts.items():
                totals[name] += counter
                totals["all"] += counter
    columns = ["error", "answer", *FINDINGS]
    print(f"\n{'target':16}{'cases':>8}" + "".join(f"{column:>9}" for column in columns))
    for name, counter in totals.items():
        numbers = "".join(f"{counter[column]:9}" for column in columns)
        print(f"{name:16}{counter.total():8}{numbers}")
    sys.exit(any(totals["all"][finding] for finding in FINDINGS))


if __name__ == "__main__":
    main()
