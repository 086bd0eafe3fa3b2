"""The one-hot encoder that grows: missing values, and output in DataFrames."""

import copy
import pickle

import numpy as np
import pytest
from helpers import each
from numpy.testing import assert_array_equal
from sklearn import config_context
from sklearn.preprocessing import OneHotEncoder

from freqfm.datasets import IncrementalOneHotEncoder, RowStream


@each("container", ["pandas", "polars"])
def test_encoders_when_frames_are_the_output_of_all(container):
    pytest.importorskip("pandas"), pytest.importorskip(container)
    rows = np.array([["ann", "tea"], ["bob", "tea"]] * 4)
    with config_context(transform_output=container):
        frame = IncrementalOneHotEncoder(sparse_output=False).fit_transform(rows)
        assert list(frame.columns) == ["x0_ann", "x0_bob", "x1_tea"]
        for encoder in (IncrementalOneHotEncoder(), OneHotEncoder().fit(rows)):
            stream = RowStream(lambda: iter([(rows, [0, 1] * 4)]), encoder=encoder, prefetch=0)
            assert_array_equal(next(iter(stream))[0].toarray(), frame.to_numpy())
        sparse_rows = IncrementalOneHotEncoder().fit(rows)
        with pytest.raises(
            ValueError, match=f"makes no {container} DataFrame; set sparse_output=F"
        ):
            sparse_rows.transform(rows)
    sparse_rows.set_output(transform=container)
    with pytest.raises(ValueError, match=r"or set_output\(transform='default'\)"):
        sparse_rows.transform(rows)


def objects(*values):
    return np.array([*values], dtype=object).reshape(-1, 1)


NAN = float("nan")
WITH_MISSING = [
    objects("b", None, "a", None, "b"),
    objects("b", NAN, "a", np.nan, np.float32("nan")),
    objects("b", None, "a", NAN, None, np.nan, "b"),
    objects(None, None),
    objects(NAN),
    objects(2, None, 1, NAN),
    objects(True, None, False),
    objects("None", None, "nan", NAN),
    np.array([[1.5], [NAN], [2.5]]),
    np.array([[NAN], [2.5]], dtype=np.float32),
    [["a", None], [None, "b"], ["a", "b"]],
    [["a"], [NAN]],
]


def assert_as_one_hot(X, batches, check_names=True):
    """Assert that rows are encoded as by scikit-learn's encoder, but for the order of columns."""
    expected, encoder = OneHotEncoder().fit(X), IncrementalOneHotEncoder()
    for batch in batches:
        encoder.partial_fit(batch)
    loaded = pickle.loads(pickle.dumps(encoder))
    for one in (encoder, loaded, copy.deepcopy(encoder), loaded.partial_fit(X)):
        names, found = list(one.get_feature_names_out()), one.transform(X).toarray()
        wanted = dict(
            zip(expected.get_feature_names_out(), expected.transform(X).toarray().T, strict=True)
        )
        if check_names and len(wanted) == found.shape[1]:
            assert sorted(names) == sorted(wanted)
            assert_array_equal(found, np.transpose([wanted[name] for name in names]))
        by_column = [
            sorted(map(tuple, rows.T)) for rows in (found, expected.transform(X).toarray())
        ]
        assert by_column[0] == by_column[1]


@each("X", WITH_MISSING)
def test_missing_values_are_categories_as_in_scikit_learn(X):
    assert_as_one_hot(X, [X])
    assert_as_one_hot(X, [X[k : k + 1] for k in range(len(X))])
    assert_as_one_hot(X, [X[::-1], X])


@each("dtype", ["Int64", "boolean", "category", "str", "object", "float32"])
def test_missing_values_of_pandas_are_categories(dtype):
    pandas = pytest.importorskip("pandas")
    values = {"category": ["b", "a", None], "str": ["b", "a", None], "object": ["b", None, NAN]}
    X = pandas.DataFrame({"c": pandas.array(values.get(dtype, [1, 0, None]), dtype=dtype)})
    # Whole numbers and truth values have names of their own, "c_1" and "c_True" for "c_1.0".
    assert_as_one_hot(X, [X[:1], X[1:]], check_names=dtype in values)


def test_missing_values_stand_for_each_other_unless_both_are_known():
    encoder = IncrementalOneHotEncoder().fit([["a"], [None]])
    assert_array_equal(encoder.transform([[NAN], [None], ["a"]]).indices, [1, 1, 0])
    assert encoder.transform([["b"]]).nnz == 0
    assert_array_equal(encoder.partial_fit([[NAN]]).transform([[NAN]]).toarray(), [[0, 0, 1]])
    assert IncrementalOneHotEncoder().fit([["a"]]).transform([[None], [NAN]]).nnz == 0
    # They are of no kind: what follows them still has to be of one.
    for first in ([None], [NAN], [None, NAN]):
        encoder = IncrementalOneHotEncoder().fit(objects(*first, "a"))
        with pytest.raises(TypeError, match="Field 0 of X holds 1 beside 'a'"):
            encoder.partial_fit([[1]])
    moments = np.array([["2020-01-01"], ["NaT"]], dtype="datetime64[D]")
    assert IncrementalOneHotEncoder().fit_transform(moments).toarray().tolist() == [[1, 0], [0, 1]]
