"""What the papers share: kept results, claims, verdicts and the descriptions of runs."""

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
from _tables import csv_table

FOLDER = Path(__file__).parents[1]
NAMES = {
    "ml1m": "MovieLens-1M", "gowalla": "Gowalla",
    "bpr": "BPR", "softmax": "softmax", "directau": "DirectAU", "mawu": "MAWU",
}  # fmt: skip


class Claim(NamedTuple):
    """A row of the table of claims; ``ours`` and ``verdict`` are empty if nothing has been run."""

    text: str
    published: str
    script: str
    ours: str = ""
    verdict: str = ""


def load(name):
    """Return the content of a JSON file that is kept, or None."""
    path = FOLDER / name
    return json.loads(path.read_text()) if path.exists() else None


def load_runs(name):
    """Return the finished runs that are kept, by what identifies them."""
    return read_runs(FOLDER / name)


def read_runs(path):
    """Return the runs of a file of JSON lines, by what identifies them."""
    lines = path.read_text().splitlines() if path.exists() else []
    records = map(json.loads, lines)
    return {json.dumps(record["key"], sort_keys=True): record for record in records}


def without_looks(record):
    """Return a run without its epochs."""
    return {name: value for name, value in record.items() if name != "looks"}


def kept_runs(shorten=without_looks):
    """Return a function that adds runs, shortened, to those that are kept."""

    def keep(path):
        records = load_runs(path.name) | read_runs(path)
        lines = [json.dumps(shorten(records[name])) + "\n" for name in sorted(records)]
        (FOLDER / path.name).write_text("".join(lines))

    return keep


def kept_file(shorten):
    """Return a function that replaces a JSON file that is kept by another one, shortened."""

    def keep(path):
        content = shorten(json.loads(path.read_text()))
        (FOLDER / path.name).write_text(json.dumps(content, indent=1) + "\n")

    return keep


def graded(ratios, holds, weaker):
    """Return the verdicts on ratios, by what they are of, that should reach a bound."""
    grades = {}
    for of, ratio in ratios.items():
        grades.setdefault(grade(ratio, holds, weaker), []).append(of)
    return "; ".join(f"{name}: {', '.join(of)}" for name, of in grades.items())


def grade(ratio, holds, weaker):
    """Return the verdict on a ratio that should reach a bound."""
    if ratio >= holds:
        return "holds"
    return "holds weaker" if ratio >= weaker else "does not hold"


def seeds(n):
    """Return a number of seeds in words."""
    return f"{n} seed{'s' * (n > 1)}"


def spread(values):
    """Return how far seeds are apart."""
    return float(np.ptp(values))


def write_table(name, header, rows):
    """Write a table of the page of results."""
    lines = csv_table(header, rows) if rows else ["Not run.", ""]
    (FOLDER / f"{name}.rst").write_text("\n".join(lines))
