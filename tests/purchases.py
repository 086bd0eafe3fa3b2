"""A small log for tests of InteractionRecommender: as rows, columns, a DataFrame, a matrix."""

import numpy as np
import pytest

ROWS = [
    ("ann", "tea", 1.0),
    ("ann", "jam", 2.0),
    ("bob", "tea", 1.0),
    ("bob", "jam", 1.0),
    ("bob", "egg", 3.0),
    ("eve", "rum", 1.0),
    ("joe", "rum", 0.5),
    ("joe", "gin", 1.0),
    ("ann", "jam", 0.5),
]
USERS, ITEMS = ["ann", "bob", "eve", "joe"], ["egg", "gin", "jam", "rum", "tea"]
MATRIX = np.array(
    [[0, 0, 2.5, 0, 1], [3, 0, 1, 0, 1], [0, 0, 0, 1, 0], [0, 1, 0, 0.5, 0]], dtype=np.float32
)
COLUMNS = dict(zip(["user", "item", "value"], map(list, zip(*ROWS, strict=True)), strict=True))

FRAMES = ["pandas", "polars", "pyarrow"]


def frame(library, columns=COLUMNS):
    module = pytest.importorskip(library)
    return module.table(columns) if library == "pyarrow" else module.DataFrame(columns)
