"""Tests of the synthetic click log and of the loaders of libFM and Criteo files."""

import bz2
import gzip
from itertools import pairwise

import numpy as np
import pytest
from helpers import each
from scipy.special import expit
from sklearn.datasets import dump_svmlight_file
from sklearn.metrics import roc_auc_score

from freqfm.datasets import RowStream, load_libffm, load_libfm, make_clicks


def write_lines(path, lines):
    with (gzip.open if path.suffix == ".gz" else open)(path, "wt") as file:
        file.writelines(lines)
    return path


@pytest.fixture(scope="module")
def log():
    return make_clicks(40_000, return_model=True, random_state=0)


# make_clicks


def test_clicks_have_one_token_per_field(log):
    X, y, model = log
    assert X.format == "csr" and X.shape == (40_000, 7220) and X.dtype == np.float32
    assert X.indices.dtype == np.int32 and X.indptr.dtype == np.int32
    assert X.has_canonical_format and np.all(X.data == 1)
    assert model.field_offsets.tolist() == [0, 5000, 7000, 7200, 7220]
    for start, stop in pairwise(model.field_offsets):
        assert np.all(X[:, start:stop].sum(axis=1) == 1)
    assert y.shape == (40_000,) and y.dtype == np.int64 and set(y) == {0, 1}


def test_model_shapes(log):
    _, _, model = log
    assert isinstance(model.intercept, float)
    assert model.coef.shape == model.token_probabilities.shape == (7220,)
    assert model.factors.shape == (7220, 4) and model.probabilities.shape == (40_000,)
    sums = np.add.reduceat(model.token_probabilities, model.field_offsets[:-1])
    np.testing.assert_allclose(sums, 1)


def test_a_generator_fixes_the_rows_too():
    X, same, other = (
        make_clicks(200, (30, 20), random_state=np.random.default_rng(seed))[0]
        for seed in (3, 3, 4)
    )
    assert (same != X).nnz == 0 and (other != X).nnz > 0


def test_random_state_fixes_the_rows():
    X, y = make_clicks(500, random_state=3)
    X_same, y_same = make_clicks(500, random_state=np.random.RandomState(3))
    X_other, y_other = make_clicks(500, random_state=4)
    assert np.array_equal(X.indices, X_same.indices) and np.array_equal(y, y_same)
    assert not np.array_equal(X.indices, X_other.indices) and not np.array_equal(y, y_other)


def test_seed_plants_one_model_for_any_number_of_rows():
    *_, small = make_clicks(100, return_model=True, random_state=5)
    *_, large = make_clicks(300, return_model=True, random_state=5)
    for name in ("coef", "factors", "token_probabilities"):
        assert np.array_equal(small[name], large[name])


@pytest.mark.parametrize(
    ("tail", "exponent", "decay"),
    [
        ("zipf", 1.2, lambda rank: (rank + 1) ** -1.2),
        ("exponential", 0.5, lambda rank: np.exp(-0.5 * rank / 20)),
    ],
)
def test_tail_has_the_documented_shape(tail, exponent, decay):
    X, _, model = make_clicks(
        30_000, (200,), tail=tail, tail_exponent=exponent, return_model=True, random_state=0
    )
    expected = decay(np.arange(200.0))
    expected /= expected.sum()
    np.testing.assert_allclose(np.sort(model.token_probabilities)[::-1], expected)
    count = np.bincount(X.indices, minlength=200)
    for rank in (0, 1, 10):
        token = np.argsort(-model.token_probabilities)[rank]
        sigma = np.sqrt(30_000 * expected[rank])
        assert abs(count[token] - 30_000 * expected[rank]) < 5 * sigma


def test_tail_exponent_zero_is_uniform():
    *_, model = make_clicks(10, (8, 4), tail_exponent=0, return_model=True, random_state=0)
    np.testing.assert_allclose(model.token_probabilities, [1 / 8] * 8 + [1 / 4] * 4)


def test_token_ids_do_not_tell_the_rank(log):
    _, _, model = log
    rank = np.argsort(np.argsort(-model.token_probabilities[:5000]))
    assert abs(np.corrcoef(rank, np.arange(5000))[0, 1]) < 0.1


@pytest.mark.parametrize("click_rate", [0.02, 0.3, 0.9])
def test_click_rate_is_met(click_rate):
    _, y, model = make_clicks(20_000, click_rate=click_rate, return_model=True, random_state=1)
    assert model.probabilities.mean() == pytest.approx(click_rate, abs=1e-6)
    assert abs(y.mean() - click_rate) < 5 * np.sqrt(click_rate * (1 - click_rate) / 20_000)


def test_probabilities_are_those_of_the_planted_machine():
    X, _, model = make_clicks(200, (30, 20, 10), return_model=True, random_state=2)
    tokens = X.indices.reshape(200, 3)
    score = model.intercept + model.coef[tokens].sum(axis=1)
    for first, second in ((0, 1), (0, 2), (1, 2)):
        left, right = model.factors[tokens[:, first]], model.factors[tokens[:, second]]
        score += (left * right).sum(axis=1)
    np.testing.assert_allclose(model.probabilities, expit(score))


def test_probabilities_are_calibrated(log):
    _, y, model = log
    order = np.argsort(model.probabilities)
    for tenth in np.array_split(order, 10):
        p = model.probabilities[tenth]
        assert abs(y[tenth].mean() - p.mean()) < 5 * np.sqrt((p * (1 - p)).mean() / len(p))


@pytest.mark.parametrize("tail", ["zipf", "exponential"])
@pytest.mark.parametrize("seed", range(3))
def test_interactions_matter(tail, seed):
    X, y, model = make_clicks(20_000, tail=tail, return_model=True, random_state=seed)
    linear = roc_auc_score(y, X @ model.coef)
    assert linear > 0.6
    assert roc_auc_score(y, model.probabilities) > linear + 0.03


def test_factors_are_centred_in_every_field(log):
    _, _, model = log
    for start, stop in pairwise(model.field_offsets):
        mean = model.token_probabilities[start:stop] @ model.factors[start:stop]
        np.testing.assert_allclose(mean, 0, atol=1e-12)
        assert model.factors[start:stop].std() > 0.1


def test_scales_of_zero_leave_only_the_intercept():
    *_, model = make_clicks(
        50, (9, 3), linear_scale=0, interaction_scale=0, return_model=True, random_state=0
    )
    np.testing.assert_allclose(model.probabilities, 0.3)


def test_one_row_of_one_token():
    X, y, model = make_clicks(1, [1], return_model=True, random_state=0)
    assert X.toarray().tolist() == [[1.0]] and y.shape == (1,)
    assert model.probabilities[0] == pytest.approx(0.3)


@each(
    ("arguments", "message"),
    [
        ({"n_samples": 0}, "n_samples=0 must be an integer of at least 1"),
        ({"n_samples": 10.5}, "n_samples=10.5"),
        ({"n_tokens": ()}, r"n_tokens=\(\) must be a list of positive whole"),
        ({"n_tokens": 7}, "n_tokens=7 must be a list of positive whole"),
        ({"n_tokens": (5, 0)}, r"n_tokens=\(5, 0\) must be a list of positive whole"),
        ({"n_samples": 2**30}, "int32 indices can hold; pass fewer rows"),
        ({"tail": "pareto"}, "tail is 'pareto'; pass one of"),
        ({"tail_exponent": -1}, "tail_exponent=-1 must be a finite number"),
        ({"linear_scale": np.nan}, "linear_scale=nan"),
        ({"interaction_scale": "big"}, "interaction_scale='big'"),
        ({"n_components": True}, "n_components=True"),
        ({"click_rate": 1.0}, "click_rate=1.0 must be strictly between"),
    ],
)
def test_make_clicks_rejects(arguments, message):
    with pytest.raises(ValueError, match=message):
        make_clicks(**arguments)


# load_libfm


@pytest.mark.parametrize("line", ["1 qid:3 0:1", "1\tqid:3\t0:1", "1  qid:3", "1 qid:3 # one"])
def test_queries_of_rankings_are_refused(tmp_path, line):
    path = tmp_path / "ranking.txt"
    path.write_text(f"# qid is explained here\n0 0:1 # qid:2\n{line}\n")
    for read in (load_libfm, lambda path: list(RowStream.from_libfm(path))):
        with pytest.raises(ValueError, match="ranking.txt, line 3: found a query, qid:"):
            read(path)
    path.write_text("# qid is explained here\n0 0:1 # qid:2\n")
    assert load_libfm(path, zero_based=True)[0].shape == (1, 1)


def test_libfm_round_trip(tmp_path):
    X, y = make_clicks(200, (30, 20), random_state=0)
    path = tmp_path / "clicks.libfm"
    dump_svmlight_file(X, 2 * y - 1, str(path), zero_based=True)
    X_read, y_read = load_libfm(path, n_features=50, zero_based=True)
    assert X_read.format == "csr" and X_read.shape == (200, 50) and X_read.dtype == np.float32
    assert X_read.has_canonical_format and X_read.indices.dtype == np.int32
    assert np.array_equal(X_read.toarray(), X.toarray())
    assert np.array_equal(y_read, 2.0 * y - 1)


@pytest.mark.parametrize(("suffix", "opener"), [(".gz", gzip.open), (".bz2", bz2.open)])
def test_libfm_compressed(tmp_path, suffix, opener):
    path = str(tmp_path / f"rows.libfm{suffix}")
    with opener(path, "wt") as file:
        file.write("1 0:1 2:0.5\n-1 1:2\n")
    X, y = load_libfm(path)
    assert X.toarray().tolist() == [[1, 0, 0.5], [0, 2, 0]] and y.tolist() == [1, -1]


def test_libfm_files_share_their_columns(tmp_path):
    (tmp_path / "train").write_text("3.5 0:1 6:1\n")
    (tmp_path / "test").write_text("1 1:1\n2 2:1\n")
    X1, y1, X2, y2 = load_libfm([tmp_path / "train", str(tmp_path / "test")])
    assert X1.shape == (1, 7) and X2.shape == (2, 7)
    assert X2.nonzero()[1].tolist() == [1, 2]
    assert y1.tolist() == [3.5] and y2.tolist() == [1, 2]


def test_libfm_columns_from_one(tmp_path):
    path = tmp_path / "rows"
    path.write_text("1 1:1 3:1\n")
    assert load_libfm(path)[0].toarray().tolist() == [[1, 0, 1]]
    assert load_libfm(path, zero_based=True)[0].toarray().tolist() == [[0, 1, 0, 1]]


def test_libfm_list_of_one_path_gives_a_list(tmp_path):
    path = tmp_path / "rows"
    path.write_text("1 0:1\n")
    result = load_libfm((path,))
    assert isinstance(result, list) and len(result) == 2
    assert isinstance(load_libfm(path), tuple)


def test_libfm_drops_written_zeros_and_takes_a_dtype(tmp_path):
    path = tmp_path / "rows"
    path.write_text("1 0:0 1:4\n")
    X, _ = load_libfm(path, dtype=np.float64)
    assert X.nnz == 1 and X.dtype == np.float64 and X.shape == (1, 2)


def test_libfm_rejects(tmp_path):
    path = tmp_path / "rows"
    path.write_text("1 0:1 5:1\n")
    with pytest.raises(ValueError, match="n_features was set to 3, but input file contains 6"):
        load_libfm(path, n_features=3)
    with pytest.raises(ValueError, match=r"path is \[\]; pass a path"):
        load_libfm([])
    path.write_text("1 5:1 0:1\n")
    with pytest.raises(ValueError, match="sorted and unique"):
        load_libfm(path)


@each(
    ("line", "message"),
    [
        ("1 99999999999999999999:1", "line 3: .*columns ascending and below 2"),
        ("1 3000000000:1", "line 3: .*columns ascending and below 2"),
        (f"1 {'9' * 5000}:1", "line 3: "),
        ("1 0:nan", "line 3: found nan as a value, of float32; give finite numbers"),
        ("1 0:1 1:inf", "line 3: found inf as a value"),
        ("1 0:1e39", "line 3: found inf as a value, of float32"),
        ("nan 0:1", "line 3: found nan as the target"),
        ("-inf 0:1", "line 3: found -inf as the target"),
        ("x 0:1", "line 3: could not convert string to float.*give every line a target and"),
        ("1 0", "line 3: "),
        ("1 x:1", "line 3: "),
        ("1 5:1 0:1", "line 3: .*sorted and unique"),
    ],
)
def test_libfm_names_the_malformed_line(tmp_path, line, message):
    write_lines(tmp_path / "good", ["1 0:1\n"] * 9)
    path = write_lines(tmp_path / "rows", ["1 0:1\n", "# comment\n", f"{line}\n", "1 0:1\n"])
    for paths in (path, [tmp_path / "good", path], [path, tmp_path / "good"]):
        with pytest.raises(ValueError, match=f"rows, {message}"):
            load_libfm(paths)


@pytest.mark.parametrize(
    ("load", "line"),
    [
        (load_libfm, "1 0:1\n"),
        (load_libffm, "1 0:0:1\n"),
    ],
)
def test_damaged_and_marked_files(tmp_path, load, line):
    for suffix, compress in ((".gz", gzip.compress), (".bz2", bz2.compress)):
        path = tmp_path / f"rows{suffix}"
        whole = compress(line.encode() * 1000)
        path.write_bytes(whole)
        found = load(path)
        assert len(found[1]) == 1000
        for content in (whole[: len(whole) // 2], whole[:-6], line.encode()):
            path.write_bytes(content)
            with pytest.raises(
                ValueError, match=rf"rows\{suffix} cannot be decompressed \(.*; pass"
            ):
                load(path)
    path = tmp_path / "rows"
    path.write_text(line, encoding="utf-8")
    plain = load(path)
    path.write_text(line, encoding="utf-8-sig")
    marked = load(path)
    for one, other in zip((plain, marked), (marked, plain), strict=True):
        X, y = one[:2]
        assert X.shape[0] == 1 and y.tolist() == [1]
        assert np.array_equal(X.toarray(), other[0].toarray())
    path.write_text(line, encoding="utf-16")
    with pytest.raises(ValueError, match="rows is encoded in UTF-16"):
        load(path)
