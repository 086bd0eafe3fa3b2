"""Lines of code by folder: those that are neither blank, a comment nor a docstring.

Of the package, or of another folder::

    python benchmarks/lines.py --root tests
"""

import argparse
import ast
from collections import Counter
from pathlib import Path

DEFINITIONS = ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef


def n_lines(source):
    """Return the number of lines of code of a file."""
    documented = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, DEFINITIONS) and ast.get_docstring(node, clean=False) is not None:
            documented.update(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    return sum(
        number not in documented and line.strip() != "" and not line.lstrip().startswith("#")
        for number, line in enumerate(source.splitlines(), 1)
    )


def main():
    """Count and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=Path("freqfm"), help="folder of the files")
    root = parser.parse_args().root
    counts = Counter()
    for path in sorted(root.rglob("*.py")):
        counts[path.parent.as_posix()] += n_lines(path.read_text("utf-8"))
    for folder, count in counts.items():
        print(f"{count:7,}  {folder}")
    print(f"{sum(counts.values()):7,}  in all")


if __name__ == "__main__":
    main()
