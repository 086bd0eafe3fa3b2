"""Malformed arguments of splitters, holdouts, scorers and metrics: errors that name them."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from scipy import sparse

from freqfm.metrics import ndcg_at_k, normalized_entropy, ranking_report
from freqfm.model_selection import (
    GlobalTimeSplit,
    LeaveLastOut,
    WarmStartKFold,
    holdout_by_content,
    holdout_interactions,
    make_ranking_scorer,
)

TABLE = [(user, item, 1.0, 3 * user + item) for user in range(6) for item in range(4)]
HISTORIES = np.array([[1.0, 2, 0, 1], [0, 1, 1, 1], [1, 0, 1, 0]])
DAYS = np.arange(12).reshape(3, 4).astype("M8[D]")


def split(splitter):
    return list(splitter.split(TABLE))


@pytest.mark.parametrize("flag", ["no", "", 1, None, [1], np.array([True, False])])
@pytest.mark.parametrize(
    "splitter, name",
    [
        (WarmStartKFold, "shuffle"),
        (LeaveLastOut, "drop_repeated"),
        (GlobalTimeSplit, "drop_cold"),
        (GlobalTimeSplit, "drop_repeated"),
    ],
)
def test_flags_of_splitters_are_true_or_false(splitter, name, flag):
    with pytest.raises(TypeError, match=f"{name}=.* must be True or False"):
        split(splitter(**{name: flag}))


@pytest.mark.parametrize("n_splits", [10**12, 2**70])
def test_more_folds_than_memory(n_splits):
    with pytest.raises(ValueError, match=f"n_splits={n_splits} is too large for X"):
        split(WarmStartKFold(n_splits))


@pytest.mark.parametrize("column", [np.array([0.5, 2]), np.array(["auto", "auto"])])
def test_a_column_is_no_array(column):
    with pytest.raises(TypeError, match="user=.* must be a column's place or name"):
        split(WarmStartKFold(user=column))


@pytest.mark.parametrize("hold_out", [holdout_interactions, holdout_by_content])
@pytest.mark.parametrize("container", [np.array, sparse.csr_array])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_held_out_parts_of_missing_numbers(hold_out, container, bad):
    X = HISTORIES.copy()
    X[1, 1] = bad
    with pytest.raises(ValueError, match="X holds NaN or infinity"):
        hold_out(container(X))


@pytest.mark.parametrize("hold_out", [holdout_interactions, holdout_by_content])
@pytest.mark.parametrize("X", [DAYS, HISTORIES.astype("V8"), sparse.csr_array(HISTORIES * 1j)])
def test_held_out_parts_of_what_are_no_numbers(hold_out, X):
    with pytest.raises((TypeError, ValueError), match=r"\bX\b.*give numbers"):
        hold_out(X)


@pytest.mark.parametrize("dtype", [">f8", ">i4", np.float16, np.longdouble, bool])
def test_held_out_parts_of_types_that_scipy_does_not_take(dtype):
    X = HISTORIES.astype(dtype)
    for part, expected in zip(
        holdout_by_content(X), holdout_by_content(X.astype(float)), strict=True
    ):
        assert_array_equal(part.toarray(), expected.toarray())


def test_whole_numbers_of_any_type_and_size():
    expected = holdout_by_content(HISTORIES, seed=2)
    for one, other in zip(holdout_by_content(HISTORIES, seed=np.int8(2)), expected, strict=True):
        assert_array_equal(one.toarray(), other.toarray())
    history, held_out = holdout_interactions(HISTORIES, min_history=2**70)
    assert_array_equal(history.toarray(), HISTORIES)
    assert held_out.nnz == 0
    for call in (
        lambda: holdout_interactions(HISTORIES, min_history=True),
        lambda: holdout_by_content(HISTORIES, seed=True),
        lambda: make_ranking_scorer(seed=False),
    ):
        with pytest.raises(ValueError, match="(min_history|seed)=.* must be an integer"):
            call()


@pytest.mark.parametrize("metric", [[], {}, ["ndcg"], np.array(3), None])
def test_a_metric_is_a_name(metric):
    with pytest.raises(ValueError, match="metric=.* is not known"):
        make_ranking_scorer(metric)


def test_rows_of_several_lengths():
    ragged = [[1, 0], [1]]
    with pytest.raises(ValueError, match="relevant cannot be read as an array"):
        ndcg_at_k(ragged, [[0], [1]])
    with pytest.raises(ValueError, match="ranked cannot be read as an array"):
        ndcg_at_k([[1, 0], [0, 1]], ragged)
    with pytest.raises(ValueError, match="item_counts cannot be read as an array"):
        ranking_report([[1, 0]], [[0, 1]], item_counts=ragged)
    with pytest.raises(ValueError, match="y_proba cannot be read as an array"):
        normalized_entropy([0, 1], ragged)
    with pytest.raises(ValueError, match="y_true cannot be read as an array"):
        normalized_entropy(ragged, [0.5, 0.5])


@pytest.mark.parametrize(
    "values", [DAYS[0], [1j, 0, 1, 0], ["a", "b", "c", "d"], np.array([1, "a", None, 3], object)]
)
def test_probabilities_and_weights_are_numbers(values):
    y = [0, 1, 0, 1]
    with pytest.raises(TypeError, match="y_proba .*numbers"):
        normalized_entropy(y, values)
    with pytest.raises(TypeError, match="sample_weight .*numbers"):
        normalized_entropy(y, [0.5] * 4, values)
