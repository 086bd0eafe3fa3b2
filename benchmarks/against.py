"""Processor seconds of many calls, of this version and of another revision in turns.

Both sides run in processes of their own, with one thread, on the same data; what they compile is
kept on disk. The table has the medians of both, and the median and quartiles of the quotient of two
calls that follow each other: the speed of this version by that of the revision. A line below 0.95
is measured again in new processes, as the place of arrays in memory may favour one of two, and is
marked if it stays there. Calls that the revision does not have are left out.

    python benchmarks/against.py HEAD~1 --data DIR
    python benchmarks/against.py HEAD~1 --data DIR --only requests "epochs of machines: FM"
    python benchmarks/against.py HEAD --quick        # small random data: a test

Uncommitted changes count as this version.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
LEAST = 0.95
# A call shorter than this is repeated for as long.
SHORT = 0.05
# Seconds after which a line has no further rounds, if it has three.
LONG = 60
THREADS = ("NUMBA_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class Side:
    """A process that runs calls of one revision.

    Parameters
    ----------
    root : path
        Its sources.
    args : argparse.Namespace
    topic : str, default=""
        The calls; "" for the names of topics.
    """

    def __init__(self, root, args, topic=""):
        command = [sys.executable, __file__, "--side", topic]
        command += ["--quick"] if args.quick else ["--data", str(args.data)]
        environment = {**os.environ, "PYTHONPATH": str(root), **dict.fromkeys(THREADS, "1")}
        self._process = subprocess.Popen(
            command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.names = self._answer()

    def _answer(self):
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("A process ended; its error is above.")
        return json.loads(line)

    def seconds(self, name, times=1):
        """Return the seconds of a call, or None if this revision does not have it."""
        print(json.dumps([name, times]), file=self._process.stdin, flush=True)
        return self._answer()

    def close(self):
        """End the process."""
        self._process.stdin.close()
        self._process.wait()


def answer_calls(topic, folder):
    """Run the calls that standard input names, for as long as there are any."""
    # Calls may print; only answers go to standard output.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    from _calls import TOPICS

    calls = TOPICS[topic](folder) if topic else TOPICS
    print(json.dumps(list(calls)), file=answers, flush=True)
    for line in sys.stdin:
        name, times = json.loads(line)
        try:
            seconds = timed(calls[name], times)
        except (AttributeError, TypeError, ValueError) as error:
            print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
            seconds = None
        print(json.dumps(seconds), file=answers, flush=True)


def timed(call, times):
    """Return the mean processor seconds of a call, by the clock or as it tells."""
    start = time.process_time()
    for _ in range(times):
        told = call()
        if type(told).__name__ == "Seconds":
            return told
    return (time.process_time() - start) / times


def measure(sides, name, n_rounds):
    """Return the seconds of both sides, round by round, or None if one does not have the call."""
    if None in [side.seconds(name) for side in sides]:  # compiles, and fits
        return None
    start = time.monotonic()
    times = max(1, int(SHORT / max(sides[0].seconds(name), 1e-7)))
    rounds = []
    for number in range(n_rounds):
        turns = sides if number % 2 else sides[::-1]
        found = {side: side.seconds(name, times) for side in turns}
        rounds.append([found[side] for side in sides])
        if len(rounds) >= 3 and time.monotonic() - start > LONG:
            break
    return np.array(rounds)


def report(name, rounds, again):
    """Print a line; return its quotient."""
    here, there = np.median(rounds, axis=0)
    low, middle, high = np.quantile(rounds[:, 1] / rounds[:, 0], [0.25, 0.5, 0.75])
    mark = ("  again" if not again else "  SLOWER") if middle < LEAST else ""
    print(
        f"{name:52}{1000 * there:12.3f}{1000 * here:12.3f}"
        f"{middle:8.2f}{low:8.2f} to {high:4.2f}{mark}",
        flush=True,
    )
    return middle


def compare(roots, args, topic, chosen=None):
    """Measure the calls of a topic; return the names of those that became slower."""
    slower = []
    sides = [Side(root, args, topic) for root in roots]
    try:
        for name in sides[0].names:
            title = f"{topic}: {name}"
            if chosen is None and not any(part in title for part in args.only):
                continue
            if chosen is not None and name not in chosen:
                continue
            rounds = measure(sides, name, args.rounds)
            if rounds is not None and report(title, rounds, chosen is not None) < LEAST:
                slower.append(name)
    finally:
        for side in sides:
            side.close()
    return slower


def names_another(topic, part, topics):
    """Return whether a part of a line's name begins with the end of another topic's name."""
    begin = part.partition(":")[0] if ":" in part else ""
    return bool(begin) and not topic.endswith(begin) and any(of.endswith(begin) for of in topics)


@contextlib.contextmanager
def sources_of(revision):
    """Check a revision out, for as long as it is needed."""
    with tempfile.TemporaryDirectory() as folder:
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run(
            [*git, "add", "--quiet", "--detach", f"{folder}/sources", revision], check=True
        )
        try:
            yield Path(folder, "sources")
        finally:
            subprocess.run([*git, "remove", "--force", f"{folder}/sources"], check=True)


def main():
    """Measure and print; the exit status is 1 if a line became slower."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("revision", nargs="?", help="such as HEAD~1 or a commit")
    parser.add_argument("--data", type=Path, default=os.environ.get("FREQFM_DATA"))
    parser.add_argument("--only", nargs="+", default=[""], help="parts of the names of lines")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--quick", action="store_true", help="small random data: a test")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side is not None:
        warnings.simplefilter("ignore")
        from _data import require_data

        return answer_calls(args.side, require_data(args))
    if not args.revision or not (args.data or args.quick):
        parser.error("give a revision, and --data DIR or the environment variable FREQFM_DATA")
    print(f"{'milliseconds':52}{args.revision[:10]:>12}{'here':>12}{'speed':>8}{'quartiles':>16}")
    slower, asked = [], Side(ROOT, args)
    asked.close()
    with sources_of(args.revision) as sources:
        for topic in asked.names:
            if all(names_another(topic, part, asked.names) for part in args.only):
                continue
            found = compare((ROOT, sources), args, topic)
            if found:
                slower += compare((ROOT, sources), args, topic, found)
    print(f"{len(slower)} lines below {LEAST}")
    return bool(slower) and not args.quick


if __name__ == "__main__":
    sys.exit(main())
