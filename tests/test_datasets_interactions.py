"""Tests of the synthetic implicit feedback and of the loader of interaction files."""

import gzip
import io
import pickle

import numpy as np
import pytest
from scipy.sparse import csr_array, random_array, save_npz
from sklearn.cluster import KMeans
from sklearn.decomposition import TruncatedSVD
from sklearn.metrics import adjusted_rand_score

from freqfm.datasets import load_interactions, make_interactions


def assert_canonical(X, shape):
    assert isinstance(X, csr_array) and X.shape == shape and X.dtype == np.float32
    assert X.indices.dtype == np.int32 and X.indptr.dtype == np.int32
    # A new array looks at the indices anew, whatever X says of itself.
    assert csr_array((X.data, X.indices, X.indptr), shape=X.shape).has_canonical_format
    X.check_format(full_check=True)


# make_interactions


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"noise": 0},
        {"noise": 1},
        {"n_clusters": 1},
        {"popularity_exponent": 2},
        {"popularity_exponent": 0, "activity_exponent": 0},
        {"activity_exponent": 2},
        {"n_users": 20, "n_items": 3000, "n_interactions": 10_000},
        {"n_users": 5000, "n_items": 40, "n_interactions": 60_000},
    ],
)
def test_interactions_are_binary_and_canonical(arguments):
    X, model = make_interactions(**arguments, return_model=True, random_state=0)
    n_users = arguments.get("n_users", 1000)
    n_items = arguments.get("n_items", 500)
    assert_canonical(X, (n_users, n_items))
    assert X.nnz == arguments.get("n_interactions", 20_000) and np.all(X.data == 1)
    assert np.diff(X.indptr).min() >= 5
    n_clusters = arguments.get("n_clusters", 5)
    for clusters, size in ((model.user_clusters, n_users), (model.item_clusters, n_items)):
        assert clusters.shape == (size,) and clusters.dtype == np.int32
        assert np.ptp(np.bincount(clusters, minlength=n_clusters)) <= 1
    sums = np.bincount(model.item_clusters, weights=model.popularity)
    np.testing.assert_allclose(sums, 1)


def test_users_take_items_of_their_cluster():
    X, model = make_interactions(
        4000, 4000, 40_000, n_clusters=8, noise=0.2, return_model=True, random_state=0
    )
    users, items = X.nonzero()
    own = np.mean(model.user_clusters[users] == model.item_clusters[items])
    # A noisy pick is from the own cluster by chance; repeated picks lower the share a little.
    assert 0.8 + 0.2 / 8 - 0.05 < own < 0.8 + 0.2 / 8


def test_without_noise_users_stay_in_their_cluster():
    X, model = make_interactions(noise=0, return_model=True, random_state=0)
    users, items = X.nonzero()
    assert np.array_equal(model.user_clusters[users], model.item_clusters[items])


def test_clusters_can_be_recovered():
    X, model = make_interactions(return_model=True, random_state=0)
    scaled = X / np.sqrt(X.sum(axis=0) + 1)
    vectors = TruncatedSVD(5, random_state=0).fit_transform(scaled)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    found = KMeans(5, n_init=3, random_state=0).fit_predict(vectors)
    assert adjusted_rand_score(model.user_clusters, found) > 0.9


@pytest.mark.parametrize("exponent", [0.5, 1.0, 1.5])
def test_popularity_is_a_power_law(exponent):
    X, model = make_interactions(
        *(30_000, 4000, 300_000),
        n_clusters=2,
        popularity_exponent=exponent,
        activity_exponent=0,
        return_model=True,
        random_state=0,
    )
    count = X.sum(axis=0)
    for cluster in range(2):
        inside = np.flatnonzero(model.item_clusters == cluster)
        order = inside[np.argsort(-model.popularity[inside])]
        popularity = model.popularity[order]
        expected = np.arange(1, 2001.0) ** -exponent
        np.testing.assert_allclose(popularity, expected / expected.sum())
        # The first items are in almost every row, so the observed law starts after them.
        ranks = np.arange(20, 300)
        slope, _ = np.polyfit(np.log(ranks + 1), np.log(count[order[ranks]]), 1)
        assert slope == pytest.approx(-exponent, abs=0.12)


def test_activity_is_a_power_law():
    X = make_interactions(2000, 5000, 60_000, activity_exponent=0.7, random_state=0)
    degrees = np.sort(np.diff(X.indptr))[::-1]
    expected = np.arange(1, 2001.0) ** -0.7
    expected *= (60_000 - 5 * 2000) / expected.sum()
    np.testing.assert_allclose(degrees, 5 + expected, atol=1)


def test_draws_without_replacement_have_the_documented_weights():
    # Many alike users with 2 of 6 items: the exact probability of each pair is known.
    X, model = make_interactions(
        *(60_000, 6, 120_000),
        n_clusters=2,
        noise=0.3,
        min_interactions=2,
        return_model=True,
        random_state=0,
    )
    weight = 0.15 * model.popularity
    weight = np.where(model.item_clusters == 0, weight + 0.7 * model.popularity, weight)
    rows = X.toarray()[model.user_clusters == 0]
    for first in range(6):
        for second in range(first):
            expected = weight[first] * weight[second]
            expected *= 1 / (1 - weight[first]) + 1 / (1 - weight[second])
            observed = np.mean(rows[:, first] * rows[:, second])
            sigma = np.sqrt(expected * (1 - expected) / len(rows))
            assert abs(observed - expected) < 5 * sigma


def test_guessed_draws_have_the_documented_weights():
    # A large catalogue without a tail: here users guess, while they look at all items above.
    X, model = make_interactions(
        *(3000, 3000, 30_000),
        n_clusters=2,
        popularity_exponent=0,
        activity_exponent=0,
        noise=0.5,
        return_model=True,
        random_state=0,
    )
    users, items = X.nonzero()
    own = np.mean(model.user_clusters[users] == model.item_clusters[items])
    assert abs(own - 0.75) < 5 * np.sqrt(0.75 * 0.25 / X.nnz)
    count = X.sum(axis=0)
    assert abs(count.var() / count.mean() - 1) < 0.15


def test_users_can_take_everything():
    X = make_interactions(30, 20, 600, n_clusters=3, random_state=0)
    assert np.all(X.toarray() == 1)
    X, model = make_interactions(
        30, 20, 30 * 20 // 2, n_clusters=2, noise=0, return_model=True, random_state=0
    )
    same = model.user_clusters[:, np.newaxis] == model.item_clusters
    assert np.array_equal(X.toarray(), same)


def test_one_user_and_one_item():
    X = make_interactions(1, 1, 1, n_clusters=1, min_interactions=1)
    assert X.toarray().tolist() == [[1.0]]


def test_order_says_nothing_about_popularity_and_activity():
    X, model = make_interactions(2000, 2000, 40_000, return_model=True, random_state=0)
    assert abs(np.corrcoef(np.diff(X.indptr), np.arange(2000))[0, 1]) < 0.1
    assert abs(np.corrcoef(X.sum(axis=0), np.arange(2000))[0, 1]) < 0.1
    assert abs(np.corrcoef(model.user_clusters, np.arange(2000))[0, 1]) < 0.1
    assert abs(np.corrcoef(model.item_clusters, np.arange(2000))[0, 1]) < 0.1


def test_random_state_fixes_the_interactions():
    X = make_interactions(random_state=3)
    X_same, model = make_interactions(random_state=np.random.RandomState(3), return_model=True)
    X_other = make_interactions(random_state=4)
    assert np.array_equal(X.indices, X_same.indices) and np.array_equal(X.indptr, X_same.indptr)
    assert not np.array_equal(X.indices, X_other.indices)
    assert set(model) == {"user_clusters", "item_clusters", "popularity"}


def test_blocks_are_seamless(monkeypatch):
    from freqfm.datasets import interactions

    monkeypatch.setattr(interactions, "BLOCK_SIZE", 100)
    X, model = make_interactions(return_model=True, random_state=0)
    assert_canonical(X, (1000, 500))
    assert X.nnz == 20_000 and np.diff(X.indptr).min() >= 5
    users, items = X.nonzero()
    assert np.mean(model.user_clusters[users] == model.item_clusters[items]) > 0.8


def test_large_sizes_stay_sparse():
    # A dense matrix of this shape would take 400 GB.
    X = make_interactions(300_000, 300_000, 1_600_000, random_state=0)
    assert_canonical(X, (300_000, 300_000))
    assert X.nnz == 1_600_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_users": 0}, "n_users is 0; pass an integer >= 1"),
        ({"n_items": 2.5}, "n_items is 2.5; pass an integer >= 1"),
        ({"n_interactions": "many"}, "n_interactions is 'many'"),
        ({"n_clusters": True}, "n_clusters is True"),
        ({"min_interactions": 0}, "min_interactions is 0; pass an integer >= 1"),
        ({"popularity_exponent": -1}, "popularity_exponent is -1; pass a number from 0 to 2"),
        ({"popularity_exponent": 3}, "popularity_exponent is 3; pass a number from 0 to 2"),
        ({"activity_exponent": np.nan}, "activity_exponent is nan; pass a number from 0 to 2"),
        ({"noise": 1.5}, "noise is 1.5; pass a number from 0 to 1"),
        ({"noise": None}, "noise is None"),
        ({"n_clusters": 501}, "n_clusters is 501, with 1000 users and 500 items; pass at most"),
        ({"n_interactions": 4999}, "n_interactions is 4999, less than 1000 users times min_"),
        ({"n_interactions": 500_001}, "n_interactions is 500001 .* pass fewer interactions or"),
        ({"n_interactions": 100_001, "noise": 0}, "100 different items .* 100000 together"),
        ({"n_items": 10, "min_interactions": 11}, "10 different items or more each"),
        ({"n_users": 2**31, "n_interactions": 2**34}, "more than int32 indices can hold"),
    ],
)
def test_make_interactions_rejects(arguments, message):
    with pytest.raises(ValueError, match=message):
        make_interactions(**arguments)


# load_interactions: npz


@pytest.mark.parametrize("format", ["csr", "csc", "coo", "bsr", "dia"])
@pytest.mark.parametrize("compressed", [True, False])
def test_npz_of_any_sparse_format(tmp_path, format, compressed):
    X = random_array((12, 8), density=0.3, rng=0)
    save_npz(tmp_path / "X.npz", X.asformat(format), compressed=compressed)
    X_read = load_interactions(tmp_path / "X.npz")
    assert_canonical(X_read, (12, 8))
    np.testing.assert_array_equal(X_read.toarray(), X.toarray().astype(np.float32))


@pytest.mark.parametrize("dtype", [bool, np.int8, np.uint16, np.int64])
def test_npz_of_other_dtypes(tmp_path, dtype):
    X = csr_array(np.array([[0, 1, 0], [1, 0, 1]], dtype=dtype))
    save_npz(tmp_path / "X.npz", X)
    assert_canonical(load_interactions(str(tmp_path / "X.npz")), (2, 3))


def test_npz_becomes_canonical(tmp_path):
    parts = (np.array([3.0, 0, 1, 2]), np.array([2, 0, 1, 1]), np.array([0, 2, 4]))
    save_npz(tmp_path / "X.npz", csr_array(parts, shape=(2, 3)))
    X = load_interactions(tmp_path / "X.npz")
    assert_canonical(X, (2, 3))
    assert X.nnz == 2 and X.toarray().tolist() == [[0, 0, 3], [0, 3, 0]]


def test_npz_shape(tmp_path):
    path = tmp_path / "X.npz"
    save_npz(path, csr_array(np.eye(3)))
    assert_canonical(load_interactions(path, shape=(5, 4)), (5, 4))
    with pytest.raises(ValueError, match=r"X.npz holds a matrix of shape \(3, 3\), which does not"):
        load_interactions(path, shape=(2, 3))


def test_npz_by_format(tmp_path):
    path = tmp_path / "X.bin"
    buffer = io.BytesIO()
    save_npz(buffer, csr_array(np.eye(3)))
    path.write_bytes(buffer.getvalue())
    assert load_interactions(path, format="npz").nnz == 3
    with pytest.raises(ValueError, match=r"X.bin, line 1: found"):
        load_interactions(path)


class Bomb:
    """An object whose unpickling is noticed."""

    exploded = False

    def __reduce__(self):
        return (setattr, (Bomb, "exploded", True))


def csr_parts(**changes):
    parts = {
        "format": np.array(b"csr"),
        "shape": np.array([3, 4]),
        "data": np.ones(4),
        "indices": np.array([0, 3, 1, 2]),
        "indptr": np.array([0, 2, 3, 4]),
    }
    return {**parts, **changes}


def test_npz_parts_are_sound(tmp_path):
    np.savez(tmp_path / "X.npz", **csr_parts())
    assert load_interactions(tmp_path / "X.npz").nnz == 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"indices": np.array([0, 4, 1, 2])}, "indices must be < 4"),
        ({"indices": np.array([0, -1, 1, 2])}, "indices must be >= 0"),
        ({"indptr": np.array([0, 3, 2, 4])}, "its index pointers decrease"),
        # With this last index pointer, SciPy 1.17 looks at none of the others.
        ({"indptr": np.array([0, 2, 3, 0])}, "its index pointers decrease"),
        ({"indptr": np.array([0, 2, 4])}, "index pointer size"),
        ({"data": np.ones(3)}, "same size"),
        ({"data": np.ones(4, dtype=complex)}, "its values are complex128, not real numbers"),
        ({"data": np.array([Bomb()] * 4)}, "allow_pickle"),
        ({"shape": np.array([3])}, ""),
        ({"shape": np.array([3, 2**40])}, "more than int32 can hold"),
        ({"format": np.array(b"xyz")}, ""),
        (
            {"format": np.array(b"bsr"), "data": np.ones((4, 1, 2)), "shape": np.array([3, 9])},
            r"its shape \(3, 9\) is not a multiple of its blocks \(1, 2\)",
        ),
        (
            {"format": np.array(b"dia"), "data": np.ones((1, 3)), "offsets": np.array([4])},
            "it has diagonals outside its shape",
        ),
        (
            {"format": np.array(b"coo"), "row": np.full(4, 7), "col": np.zeros(4, int)},
            "",
        ),
    ],
)
def test_npz_rejects_damaged_parts(tmp_path, changes, message):
    path = tmp_path / "X.npz"
    np.savez(path, **csr_parts(**changes))
    with pytest.raises(ValueError, match=rf"X.npz is not a sparse matrix.*{message}"):
        load_interactions(path)
    assert not Bomb.exploded


def test_npz_rejects_other_files(tmp_path):
    path = tmp_path / "X.npz"
    save_npz(path, csr_array(np.eye(30)))
    whole = path.read_bytes()
    contents = [b"", b"not a zip file", whole[: len(whole) // 2], pickle.dumps(Bomb())]
    buffer = io.BytesIO()
    np.save(buffer, np.eye(2))
    contents.append(buffer.getvalue())
    for content in contents:
        path.write_bytes(content)
        with pytest.raises(ValueError, match="X.npz is not a sparse matrix that can be used"):
            load_interactions(path)
    assert not Bomb.exploded
    np.savez(path, other=np.eye(2))
    with pytest.raises(ValueError, match="X.npz is not a sparse matrix that can be used"):
        load_interactions(path)
    with pytest.raises(FileNotFoundError, match=r"missing.npz"):
        load_interactions(tmp_path / "missing.npz")


# load_interactions: lists


@pytest.mark.parametrize("suffix", ["", ".txt", ".txt.gz"])
def test_lists(tmp_path, suffix):
    path = tmp_path / f"train{suffix}"
    with (gzip.open if suffix.endswith("gz") else open)(path, "wt") as file:
        file.write("0 3 1\n\n2 0 0 2\r\n  \n4\n0\t1 2 \n")
    X = load_interactions(path)
    assert_canonical(X, (5, 4))
    assert X.toarray().tolist() == [
        [0, 1, 1, 1],
        [0, 0, 0, 0],
        [1, 0, 1, 0],
        [0, 0, 0, 0],
        [0, 0, 0, 0],
    ]


def test_lists_round_trip(tmp_path):
    X = make_interactions(300, 100, 5000, random_state=0)
    path = tmp_path / "train.txt"
    with open(path, "w") as file:
        for user in np.random.RandomState(0).permutation(300):
            items = X.indices[X.indptr[user] : X.indptr[user + 1]]
            file.write(" ".join(map(str, [user, *items[::-1]])) + "\n")
    X_read = load_interactions(path, shape=X.shape)
    assert_canonical(X_read, X.shape)
    assert (X_read != X).nnz == 0


def test_lists_shape(tmp_path):
    path = tmp_path / "train.txt"
    path.write_text("0 1\n2 5\n")
    assert load_interactions(path).shape == (3, 6)
    assert load_interactions(path, shape=(3, 6)).shape == (3, 6)
    assert load_interactions(path, shape=[10, 20]).shape == (10, 20)
    with pytest.raises(ValueError, match=r"train.txt, line 2: user 2 is outside shape \(2, 6\)"):
        load_interactions(path, shape=(2, 6))
    with pytest.raises(ValueError, match=r"train.txt, line 2: item 5 is outside shape \(3, 5\)"):
        load_interactions(path, shape=(3, 5))


def test_lists_without_interactions(tmp_path):
    path = tmp_path / "train.txt"
    path.write_text("3\n")
    assert load_interactions(path).shape == (4, 0)
    path.write_text("\n")
    assert load_interactions(path, shape=(2, 3)).nnz == 0
    with pytest.raises(ValueError, match=r"train.txt has no user; pass a file with at least"):
        load_interactions(path)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("1 -2", "found '-2'; give every line a user and the items"),
        ("1 2.0", "found '2.0'"),
        ("1 2_0", "found '2_0'"),
        ("1 +2", r"found '\+2'"),
        ("1,2", "found '1,2'"),
        ("user", "found 'user'"),
        ("1 \u0662", "found .*xd9"),  # an Arabic digit
        ("1 2\x0b3", "found '1 2"),
        ("1 3000000000", "item 3000000000 is more than 2147483646"),
        ("3000000000 1", "user 3000000000 is more than 2147483646"),
        ("1 " + "9" * 5000, "found 'a very long number'"),
    ],
)
def test_lists_name_the_malformed_line(tmp_path, line, found):
    path = tmp_path / "train.txt"
    path.write_text(f"0 1\n{line}\n", encoding="utf-8")
    with pytest.raises(ValueError, match=f"train.txt, line 2: {found}"):
        load_interactions(path)


def test_lists_reject_damaged_gzip(tmp_path):
    path = tmp_path / "train.txt.gz"
    whole = gzip.compress(b"0 1 2 3\n" * 1000)
    for content in (whole[:-12], b"0 1\n"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"train.txt.gz cannot be decompressed"):
            load_interactions(path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"format": "csv"}, "format is 'csv'; pass one of"),
        ({"shape": 5}, r"shape is 5; pass a tuple \(n_users, n_items\)"),
        ({"shape": (5,)}, r"shape is \(5,\)"),
        ({"shape": (5, 0)}, r"shape is \(5, 0\)"),
        ({"shape": (5, 2**31)}, "shape is"),
        ({"shape": (5.0, 3)}, "shape is"),
    ],
)
def test_load_interactions_rejects(tmp_path, arguments, message):
    with pytest.raises(ValueError, match=message):
        load_interactions(tmp_path / "train.txt", **arguments)
