"""Write what finished runs say about the claims of five papers.

    python docs/figures/claims.py results/prism.jsonl results/rafm.json
    python docs/figures/claims.py

Files that are named are kept here first, without what is not shown: ``cf_sgd.json``,
``cf_sgd_linear.json``, ``deepfm.json``, ``word2vec.jsonl``, ``rafm.json``, ``fastvae.jsonl``,
``vae_speed_scale.json``, ``adap_tau.jsonl`` and ``prism.jsonl``, as the scripts in ``benchmarks``
write them. Runs of JSON lines are added to those that are here. Then ``claims.csv`` is written, and
the tables of single runs. A claim whose runs are not kept here stays as it is in ``claims.csv``.
"""

import argparse
import csv
from pathlib import Path

from papers import adap_tau, cf_sgd, fastvae, prism, rafm

FOLDER = Path(__file__).parent
PAPERS = (cf_sgd, rafm, fastvae, adap_tau, prism)


def keep(path):
    """Keep a file of results."""
    for paper in PAPERS:
        if path.name in paper.KEPT:
            paper.KEPT[path.name](path)
            return
    known = ", ".join(name for paper in PAPERS for name in paper.KEPT)
    raise SystemExit(f"{path} has a name that no paper's results have: {known}.")


def write_claims():
    """Write a row for each claim, papers named once."""
    path = FOLDER / "claims.csv"
    with path.open(newline="") as file:
        before = {row[1].split(" (``")[0]: row[3:] for row in csv.reader(file)}
    with path.open("w", newline="") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL, lineterminator="\n")
        for paper in PAPERS:
            name = paper.PAPER
            for claim in paper.claims():
                found = [claim.ours, claim.verdict]
                if not claim.ours:
                    found = before.get(claim.text, ["not run", ""])
                text = f"{claim.text} (``{claim.script}``)"
                writer.writerow([name, text, claim.published, *found])
                name = ""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", nargs="*", type=Path, help="files to keep first")
    for path in parser.parse_args().results:
        keep(path)
    for paper in (adap_tau, prism):
        paper.write_tables()
    write_claims()


if __name__ == "__main__":
    main()
