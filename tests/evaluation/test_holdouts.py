"""Held-out parts of histories."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from purchases import frame
from scipy import sparse

from freqfm.model_selection import holdout_by_content, holdout_interactions, make_ranking_scorer


def random_histories(n_users=60, n_items=40, density=0.2, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.integers(1, 6, size=(n_users, n_items)) * (rng.random((n_users, n_items)) < density)
    return sparse.csr_array(X)


HOLDOUTS = [
    lambda X, fraction: holdout_interactions(X, fraction, random_state=0),
    holdout_by_content,
]
matrices = st.integers(0, 2**32 - 1).map(
    lambda seed: random_histories(
        *np.random.default_rng(seed).integers(1, 20, size=2), density=seed % 7 / 6, seed=seed
    )
)


@pytest.mark.parametrize("hold_out", HOLDOUTS)
@settings(deadline=None)
@given(X=matrices, fraction=st.floats(0.01, 0.99))
def test_parts_of_histories(hold_out, X, fraction):
    before = X.copy()
    history, held_out = hold_out(X, fraction)
    assert_array_equal((history + held_out).toarray(), X.toarray())
    assert_array_equal(X.toarray(), before.toarray())
    assert history.dtype == held_out.dtype == X.dtype
    assert not history.multiply(held_out).nnz
    for length, n_held in zip(np.diff(X.indptr), np.diff(held_out.indptr), strict=True):
        wanted = max(round(fraction * length), 1)
        assert n_held == max(min(wanted, length - 1), 0)


@settings(deadline=None)
@given(X=matrices, seed=st.integers(0, 5), order=st.randoms())
def test_content_alone_decides(X, seed, order):
    expected = holdout_by_content(X, 0.4, seed=seed)[1].toarray()
    rows = list(range(X.shape[0]))
    order.shuffle(rows)
    rows = rows[: 1 + len(rows) // 2]
    shuffled = holdout_by_content(X[rows], 0.4, seed=seed)[1]
    assert_array_equal(shuffled.toarray(), expected[rows])
    values = X.copy().astype(np.float64)
    values.data[:] = np.random.default_rng(0).random(X.nnz) + 0.1
    assert_array_equal(holdout_by_content(values, 0.4, seed=seed)[1].toarray() != 0, expected != 0)
    wider = sparse.csr_array((X.data, X.indices, X.indptr), shape=(X.shape[0], X.shape[1] + 9))
    assert_array_equal(holdout_by_content(wider, 0.4, seed=seed)[1].toarray()[:, :-9], expected)


def test_any_format_of_histories():
    X = random_histories()
    doubled = sparse.coo_array(
        (np.tile(X.data / 2, 2), np.tile(np.stack(X.nonzero()), 2)), shape=X.shape
    )
    unsorted = X[:, ::-1].tocsr()
    unsorted = sparse.csr_array(
        (unsorted.data, X.shape[1] - 1 - unsorted.indices, unsorted.indptr), shape=X.shape
    )
    zeros = sparse.csr_array(X + 0)
    zeros.data[::3] = 0
    for hold_out in HOLDOUTS:
        expected = hold_out(X, 0.3)[1].toarray()
        for same in (X.toarray(), X.tocsc(), sparse.csr_matrix(X), doubled, unsorted):
            history, held_out = hold_out(same, 0.3)
            assert_array_equal(held_out.toarray(), expected)
            assert isinstance(history, sparse.csr_array)
        assert_array_equal(hold_out(zeros, 0.3)[1].nnz, hold_out(zeros.toarray(), 0.3)[1].nnz)


def test_held_out_items_look_random():
    X = sparse.csr_array(np.ones((400, 50)))
    X.data[:] = np.random.default_rng(0).random(X.nnz) < 0.5
    X.eliminate_zeros()
    for hold_out in HOLDOUTS:
        held_out = hold_out(X, 0.2)[1]
        share = (held_out != 0).sum(axis=0) / (X != 0).sum(axis=0)
        # 200 rows an item: a standard deviation of 0.03.
        assert share.min() > 0.08 and share.max() < 0.32
    one, other = (holdout_by_content(X, seed=seed)[1] for seed in (0, 1))
    assert (one != other).nnz > one.nnz


def test_min_history():
    X = random_histories()
    lengths = np.diff(X.indptr)
    for least in (0, 3, 8):
        history, held_out = holdout_interactions(X, 0.5, min_history=least, random_state=0)
        assert (np.diff(history.indptr) >= np.minimum(lengths, least)).all()
        assert (np.diff(held_out.indptr)[lengths > least] > 0).all()
    one, again, other = (holdout_interactions(X, random_state=seed)[1] for seed in (0, 0, 1))
    assert not (one != again).nnz and (one != other).nnz


@pytest.mark.parametrize("fraction", [0, 1, -0.5, np.nan, None, "half"])
def test_wrong_fractions(fraction):
    for hold_out in HOLDOUTS:
        with pytest.raises(ValueError, match="fraction=.* must be a number above 0 and below 1"):
            hold_out(random_histories(), fraction)
    with pytest.raises(ValueError, match="fraction="):
        make_ranking_scorer(fraction=fraction)


def in_place(one, other):
    """Return whether no row of a table is lost, and rows stay in order."""
    return sorted([*one, *other]) == list(range(len(one) + len(other)))


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow", "tuples", "objects", "places"])
@pytest.mark.parametrize("hold_out", HOLDOUTS)
def test_tables(library, hold_out):
    rng = np.random.default_rng(0)
    columns = {"row": np.arange(300), "itemId": rng.integers(30, size=300)}
    columns["user_id"] = rng.integers(20, size=300)
    rows = list(zip(*(columns[name].tolist() for name in columns), strict=True))
    tuples = [(user, item, row) for row, item, user in rows]
    given = {}
    if library in ("pandas", "polars", "pyarrow"):
        X = frame(library, columns)
    elif library == "places":
        X, given = np.array(rows), {"user": 2, "item": 1}
    else:
        X = tuples if library == "tuples" else np.array(tuples, dtype=object)

    def pairs(part):
        if library in ("pandas", "polars", "pyarrow"):
            assert type(part) is type(X)
            return [tuple(np.asarray(part[c]).tolist()) for c in ("user_id", "itemId", "row")]
        places = (2, 1, 0) if library == "places" else (0, 1, 2)
        return [tuple(row[place] for row in part) for place in places]

    if hold_out is holdout_by_content:
        parts = hold_out(X, 0.3, **given)
    else:
        parts = holdout_interactions(X, 0.3, random_state=0, **given)
    (users, items, kept), (test_users, test_items, held) = map(pairs, parts)
    assert in_place(kept, held) and list(kept) == sorted(kept) and list(held) == sorted(held)
    known, tested = (
        set(zip(users, items, strict=True)),
        set(zip(test_users, test_items, strict=True)),
    )
    assert not known & tested
    for user in range(20):
        n_held = sum(pair[0] == user for pair in tested)
        n_known = sum(pair[0] == user for pair in known)
        assert n_held == max(round(0.3 * (n_held + n_known)), 1)
    # All kinds of tables agree.
    if hold_out is holdout_by_content:
        assert list(held) == [row for _, _, row in hold_out(tuples, 0.3)[1]]


def test_content_alone_decides_in_tables():
    rng = np.random.default_rng(1)
    for ids in (lambda n: n, str, lambda n: n + 0.0):
        X = [(f"u{u}", ids(i)) for u, i in rng.integers([9, 40], size=(150, 2)).tolist()]
        held = set(holdout_by_content(X, 0.4)[1])
        some = [row for row in X[::-1] if row[0] in ("u1", "u5")]
        assert set(holdout_by_content(some, 0.4)[1]) == {row for row in held if row in some}
        assert set(holdout_by_content(X, 0.4, seed=1)[1]) != held


def test_frames_are_never_matrices():
    two = frame("pandas", {"a": [1, 1, 2, 2], "b": [1, 2, 1, 2]})
    for hold_out in HOLDOUTS:
        with pytest.raises(ValueError, match=r"no column of users in X, whose columns are \['a'"):
            hold_out(two, 0.5)
        history, held_out = hold_out(two.rename(columns={"a": "user", "b": "item"}), 0.5)
        assert history["user"].tolist() == held_out["user"].tolist() == [1, 2]
    with pytest.raises(TypeError, match="Sparse|sparse"):
        holdout_interactions(random_histories(), user=0)


def test_wrong_holdouts():
    X = random_histories()
    with pytest.raises(ValueError, match="min_history=-1 must be an integer of at least 0"):
        holdout_interactions(X, min_history=-1)
    with pytest.raises(ValueError, match="seed='x' must be an integer"):
        holdout_by_content(X, seed="x")
    with pytest.raises(ValueError, match="Expected 2D array"):
        holdout_by_content(np.array([1, 2]))
    for lists in ([1, 2], [[1, 2], [3, 4]], ([1, 0], [0, 1])):
        with pytest.raises(ValueError, match=r"X is a list, but not of tuples.*np.array\(X\)"):
            holdout_interactions(lists)
    X.indices[3] = 10**6
    for hold_out in HOLDOUTS:
        with pytest.raises(ValueError, match="X holds the column index 1000000"):
            hold_out(X, 0.2)
    assert holdout_by_content(sparse.csr_array((3, 4)))[1].shape == (3, 4)
    assert_array_equal(
        holdout_by_content(X[:0])[0].shape, holdout_by_content(X[:0], seed=-1)[1].shape
    )
