"""Tests of load_libffm and dump_libffm, files of entries field:feature:value."""

import gzip

import numpy as np
import pytest
from helpers import assert_same_model, each
from numpy.testing import assert_array_equal
from scipy import sparse
from sklearn.preprocessing import OneHotEncoder

from freqfm import DeepFMClassifier, FFMClassifier, FwFMClassifier, WithFields
from freqfm._input import validation
from freqfm.datasets import dump_libffm, load_libffm, make_clicks
from freqfm.datasets import text_files as libffm

FIELDS = np.repeat([3, 0, 7], [30, 20, 5])


def write(path, *lines):
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


@pytest.fixture
def rows():
    X, y = make_clicks(200, (30, 20, 5), random_state=0)
    X.data[:] = np.random.default_rng(0).standard_normal(X.nnz)
    # Columns of the fields alternate, and all have entries.
    order = np.random.default_rng(1).permutation(np.unique(X.indices))
    return sparse.csr_array(X[:, order]), y, FIELDS[order]


def test_entries_have_fields(tmp_path):
    path = write(
        tmp_path / "rows", "# comment", "-1 2:4:0.5 0:1:1 0:0:0 # end", "", "+1", "1 2:2:3"
    )
    X, y, fields = load_libffm(path)
    assert X.toarray().tolist() == [[0, 1, 0, 0, 0.5], [0] * 5, [0, 0, 3, 0, 0]] and X.nnz == 3
    assert X.dtype == np.float32 and X.has_canonical_format and X.indices.dtype == np.int32
    assert y.tolist() == [-1, 1, 1]
    assert fields.tolist() == [0, 0, 2, -1, 2] and fields.dtype == np.int64
    X, _, fields = load_libffm(path, n_features=7, dtype=np.float64)
    assert (
        X.shape == (3, 7) and X.dtype == np.float64 and fields.tolist() == [0, 0, 2, -1, 2, -1, -1]
    )


@each("suffix", ["", ".gz", ".bz2", ".zst"])
@each("zero_based", [True, False])
@each("labels", [lambda y: y, lambda y: y.astype(bool), lambda y: 2 * y - 1, lambda y: y / 3])
def test_round_trip(tmp_path, rows, suffix, zero_based, labels):
    if suffix == ".zst":
        pytest.importorskip("pyarrow")
    X, y, fields = rows
    path, y = tmp_path / f"rows{suffix}", labels(y)
    dump_libffm(X, y, path, fields=fields, zero_based=zero_based)
    found, target, found_fields = load_libffm(
        str(path), zero_based=zero_based, n_features=len(fields), fields=fields
    )
    assert_array_equal(found.toarray(), X.toarray())
    assert_array_equal(target, y)
    assert_array_equal(found_fields, fields)


def test_containers_and_carried_fields(tmp_path):
    table, y = [["ann", "tea"], ["bob", "jam"]], np.array([[1], [0]])
    X = WithFields(OneHotEncoder()).fit_transform(table)
    expected = "1 0:0:1 1:3:1\n0 0:1:1 1:2:1\n"
    split = sparse.csr_array(([2, -1, 1, 5, 1, 1, -5], [0, 0, 3, 0, 1, 2, 0], [0, 3, 7]), (2, 4))
    for given, fields in (
        (X, None), (X.toarray(), X.fields), (X.tocsc(), list(X.fields)), (split, X.fields),
        (X.toarray().tolist(), X.fields.astype(np.uint8)),
    ):  # fmt: skip
        with pytest.warns(UserWarning, match="column-vector y"):
            dump_libffm(given, y, tmp_path / "rows", fields=fields)
        assert (tmp_path / "rows").read_text() == expected


def test_files_share_columns_and_fields(tmp_path):
    train = write(tmp_path / "train", "1 0:1:1 1:3:1", "0 0:2:1 1:4:2")
    test = write(tmp_path / "test", "1 2:9:1 0:2:1")
    X, _, X_test, _, fields = load_libffm([train, str(test)])
    assert X.shape == (2, 9) and X_test.shape == (1, 9) and isinstance(load_libffm((train,)), list)
    assert fields.tolist() == [0, 0, 1, 1, -1, -1, -1, -1, 2]
    # A file that is loaded later, without a field of the training data.
    write(test, "1 0:2:1", "0")
    fields = load_libffm(train, zero_based=False)[2]
    X_test, _, same = load_libffm(test, fields=fields, zero_based=False)
    assert X_test.toarray().tolist() == [[0, 1, 0, 0], [0] * 4]
    assert_array_equal(same, fields)
    write(test, "1 0:2:1 1:5:1")
    with pytest.raises(ValueError, match="n_features was set to 4, but input file contains 5"):
        load_libffm(test, fields=fields, zero_based=False)
    write(test, "1 0:2:1 0:4:1")
    with pytest.raises(
        ValueError, match=r"feature 4, column 3 .* field 0 .*, but fields\[3\] is 1"
    ):
        load_libffm(test, fields=fields, zero_based=False)
    # "auto" takes numbers from 0 on where one file has them, or where a file has no entries.
    write(test, "1")
    assert load_libffm([train, test])[-1].tolist() == [-1, 0, 0, 1, 1]
    assert load_libffm([train, train])[-1].tolist() == [0, 0, 1, 1]
    # Columns of which no field is known take that of a later file.
    write(test, "1 5:0:1")
    given = [-1, 0, 0, 1, 1]
    assert load_libffm(test, fields=given)[2].tolist() == [5, 0, 0, 1, 1]
    assert given[0] == -1


@pytest.mark.slow
@each("cls", [FFMClassifier, FwFMClassifier, DeepFMClassifier])
def test_machines_take_what_is_loaded(tmp_path, rows, cls):
    X, y, fields = rows
    dump_libffm(X, y, tmp_path / "train.ffm", fields=fields)
    dump_libffm(X[:20], y[:20], tmp_path / "test.ffm", fields=fields)
    expected = cls(2, fields=fields, max_iter=2, random_state=0).fit(X, y)
    X, y, X_test, _, fields = load_libffm([tmp_path / "train.ffm", tmp_path / "test.ffm"])
    model = cls(2, fields=fields, max_iter=2, random_state=0).fit(X, y)
    assert_same_model(model, expected)
    assert_array_equal(model.predict_proba(X_test), expected.predict_proba(X)[:20])


@each(
    ("line", "message"),
    [
        (
            "1 1:0:1 2:3:1",
            "line 3: feature 0 is in field 1, but in field 0 before; .* set by_field",
        ),
        ("1 0:0:1 0:0:1", "line 3: .*sorted and unique.*entries field:feature:value, each feature"),
        ("1 0:1", "line 3: found '0:1'; give every line a target and entries field:feature:value"),
        ("1 0:1:1:1", "line 3: found '0:1:1:1'"),
        ("1 -1:1:1", "line 3: found '-1:1:1'"),
        ("1 0:-1:1", "line 3: found '0:-1:1'"),
        ("1 0:1.5:1", "line 3: found '0:1.5:1'"),
        ("1 a\x1b:1:1", r"line 3: found 'a\\x1b:1:1'"),
        ("1 0:1:", "line 3: found '0:1:'"),
        ("1 0: 1:1", "line 3: found '0:'"),
        (f"1 0:{'9' * 5000}:1", "line 3: found '0:9999"),
        ("1 0:3000000000:1", "line 3: .*numbered below 2"),
        ("0:1:1 0:2:1", "line 3: could not convert string to float.*give every line a target"),
        ("x 0:1:1", "line 3: could not convert string to float"),
        ("1 0:1:x", "line 3: could not convert string to float"),
        ("1 0:1:nan", "line 3: found nan as a value, of float32"),
        ("1 0:1:1e39", "line 3: found inf as a value"),
        ("inf 0:1:1", "line 3: found inf as the target"),
        ("1 qid:1 0:1:1", "line 3: found a query, qid:"),
    ],
)
def test_malformed_lines_are_named(tmp_path, line, message):
    good = write(tmp_path / "good", *["1 0:0:1"] * 9)
    path = write(tmp_path / "rows", "1 0:0:1", "# comment", line, "1 0:0:1")
    for paths in (path, [good, path], [path, good]):
        with pytest.raises(ValueError, match=f"rows, {message}"):
            load_libffm(paths)


def test_features_in_two_fields_may_be_two_columns(tmp_path):
    train = write(tmp_path / "train", "1 0:7:1 3:7:2", "0 3:2:4 0:7:3")
    test = write(tmp_path / "test", "1 0:2:5", "0 3:7:6 0:7:7")
    X, _, X_test, y_test, fields = load_libffm([train, test], by_field=True)
    assert X.toarray().tolist() == [[1, 2, 0, 0], [3, 0, 4, 0]]
    assert X_test.toarray().tolist() == [[0, 0, 0, 5], [7, 6, 0, 0]] and y_test.tolist() == [1, 0]
    assert fields.tolist() == [0, 3, 3, 0]
    for zero_based in (True, False):
        options = {"by_field": True, "n_features": 5, "zero_based": zero_based}
        X, _, fields = load_libffm(train, **options)
        assert X.toarray().tolist() == [[1, 2, 0, 0, 0], [3, 0, 4, 0, 0]]
        assert fields.tolist() == [0, 3, 3, -1, -1]
    with pytest.raises(ValueError, match="train, line 1: .*sorted and unique"):
        load_libffm(write(train, "1 0:7:1 0:7:2"), by_field=True)


def test_a_feature_has_one_field_in_all_files(tmp_path):
    paths = [write(tmp_path / "one", "1 0:7:1"), write(tmp_path / "other", "0 0:3:1", "1 2:7:1")]
    with pytest.raises(ValueError, match="other, line 2: feature 7 is in field 2, but in field 0"):
        load_libffm(paths)


@each(
    ("arguments", "error", "message"),
    [
        (
            {"fields": [0, 1], "n_features": 3},
            ValueError,
            r"fields has shape \(2,\); give 3 fields",
        ),
        ({"fields": [[0, 1]]}, ValueError, r"fields has shape \(1, 2\); give the field of each"),
        (
            {"fields": ["a", "b"]},
            TypeError,
            "fields holds <U1, .*give integers, for instance np.un",
        ),
        (
            {"fields": [0]},
            ValueError,
            "n_features was set to 1, but input file contains 2 features",
        ),
        (
            {"n_features": 1},
            ValueError,
            "n_features was set to 1, but input file contains 2 features",
        ),
        ({"zero_based": "no"}, ValueError, "zero_based"),
        ({"by_field": 1}, ValueError, "by_field"),
        (
            {"by_field": True, "fields": [0, 1]},
            ValueError,
            "by_field=True numbers the columns anew",
        ),
        ({"path": []}, ValueError, r"path is \[\]; pass a path"),
    ],
)
def test_arguments_of_load(tmp_path, arguments, error, message):
    path = write(tmp_path / "rows", "1 0:0:1 1:1:1")
    with pytest.raises(error, match=message):
        load_libffm(**{"path": path, **arguments})


@each(
    ("arguments", "error", "message"),
    [
        ({"fields": None}, ValueError, "fields=None, and X carries none"),
        ({"fields": [0]}, ValueError, r"fields has shape \(1,\); give 2 fields"),
        ({"fields": [0, -1]}, ValueError, r"fields\[1\] is -1, and X has entries in that column"),
        ({"fields": [0.0, 1.0]}, TypeError, "fields holds float64"),
        ({"y": [1]}, ValueError, "X has 2 rows, but y 1"),
        ({"y": ["a", "b"]}, TypeError, "y holds <U1; give numbers"),
        ({"y": [1, np.nan]}, ValueError, "y holds NaN or infinity"),
        ({"X": [[np.nan, 1], [0, 1]]}, ValueError, "X holds NaN or infinity"),
        ({"zero_based": "auto"}, ValueError, "zero_based"),
    ],
)
def test_arguments_of_dump(tmp_path, arguments, error, message):
    given = {"X": [[1, 0], [0, 2]], "y": [0, 1], "fields": [0, 1], **arguments}
    with pytest.raises(error, match=message):
        dump_libffm(path=tmp_path / "rows", **given)
    assert not (tmp_path / "rows").exists()


def test_columns_without_entries_need_no_field(tmp_path):
    dump_libffm([[1, 0], [2, 0]], [0, 1], tmp_path / "rows.gz", fields=[4, -1])
    text = gzip.decompress((tmp_path / "rows.gz").read_bytes())
    assert text == b"0 4:0:1\n1 4:0:2\n"


def test_a_few_features_with_large_numbers_are_no_columns(tmp_path, monkeypatch):
    path = write(tmp_path / "rows", "1 0:2147483646:1")
    with pytest.raises(
        ValueError, match=r"rows, line 1: feature 2147483646 .* n_features=2147483647"
    ):
        load_libffm(path)
    assert load_libffm(path, by_field=True)[0].shape == (1, 1)
    with pytest.raises(ValueError, match="in range|larger|n_features"):
        load_libffm(path, n_features=10)
    monkeypatch.setattr(validation, "physical_memory", lambda: 1 << 30)
    with pytest.raises(ValueError, match="fields of 2147483647 columns would take 17 GB"):
        load_libffm(path, n_features=2147483647)
    monkeypatch.setattr(libffm, "_ALWAYS_ALLOWED", 500)
    few = write(tmp_path / "few", "1 0:1:1", "0 0:2:1", "1 0:499:0 0:0:0")
    many = write(tmp_path / "many", *(f"1 0:{i}:1" for i in range(8)), "1 0:600:1")
    assert load_libffm(few)[0].shape == (3, 500)
    assert load_libffm(many)[0].shape == (9, 601)
    assert load_libffm([few, many])[0].shape == (3, 601)
    beyond = write(tmp_path / "beyond", "1 0:1:1", "0 0:500:0")
    for given in (beyond, [few, beyond, few]):
        with pytest.raises(ValueError, match="beyond, line 2: feature 500 would make 501 col"):
            load_libffm(given)
    assert load_libffm(beyond, n_features=501)[2][499] == 0
    assert load_libffm(beyond, fields=np.zeros(501, int))[0].shape == (2, 501)
