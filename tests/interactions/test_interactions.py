"""InteractionRecommender: rankings, pairs and scores by ids."""

from datetime import date, time, timedelta
from decimal import Decimal
from fractions import Fraction
from uuid import UUID

import numpy as np
import pytest
from fake_recommender import Counting
from helpers import each, failing_checks
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from purchases import FRAMES, ITEMS, ROWS, USERS, frame
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils.estimator_checks import check_estimator

from freqfm import InteractionRecommender, MFRecommender
from freqfm._input.ids import as_ids

pandas = pytest.importorskip("pandas")
pyarrow = pytest.importorskip("pyarrow")

pytestmark = pytest.mark.filterwarnings("ignore:.*that fit has not seen")


@pytest.fixture
def model():
    return InteractionRecommender(Counting()).fit(ROWS)


def test_sklearn_compatible():
    model = InteractionRecommender(Counting())
    check_estimator(model, on_skip=None, expected_failed_checks=failing_checks())


def test_recommend(model):
    items, scores = model.recommend(["eve", "ann"], n_recommendations=2)
    assert items.tolist() == [["gin", "jam"], ["egg", "rum"]]
    assert scores.shape == (2, 2) and (np.diff(scores, axis=1) < 0).all()
    every, _ = model.recommend(n_recommendations=2)
    assert_array_equal(every[[2, 0]], items)
    single, its_scores = model.recommend("eve", n_recommendations=2)
    assert_array_equal(single, items[0])
    assert_array_equal(its_scores, scores[0])
    assert model.recommend(np.array("zoe"))[0].shape == (10,)
    assert model.recommend([])[0].shape == (0, 10)


def test_unknown_users_get_what_an_empty_history_gets(model):
    with pytest.warns(UserWarning, match="zoe"):
        items, scores = model.recommend(["zoe", "ann", "zed"], n_recommendations=5)
    assert items[0].tolist() == items[2].tolist() == ["jam", "egg", "tea", "rum", "gin"]
    assert items[1].tolist() == ["egg", "rum", "gin", None, None]
    empty = model.estimator_.recommend(sparse.csr_array((1, 5)), n_recommendations=5)
    assert_array_equal(scores[[0]], empty[1])


def test_candidates_and_exclude(model):
    items, _ = model.recommend(
        ["ann", "zoe"], n_recommendations=2, candidates=["gin", "egg", "fig"], exclude=["egg"]
    )
    assert items.tolist() == [["gin", None]] * 2
    sets, _ = model.recommend(
        ["ann", "zoe"], n_recommendations=2, candidates={"gin", "egg", "fig"}, exclude={"egg"}
    )
    assert_array_equal(sets, items)
    items, _ = model.recommend(["ann"], n_recommendations=5, exclude_seen=False, exclude=["fig"])
    assert sorted(items[0]) == ITEMS
    items, scores = model.recommend(["ann", "zoe"], n_recommendations=2, candidates=["fig"])
    assert set(items.ravel()) == {None} and (scores == -np.inf).all()


def test_pairs(model):
    codes = [USERS.index(user) for user, *_ in ROWS], [ITEMS.index(item) for _, item, _ in ROWS]
    expected = model.estimator_.predict_pairs(*codes)
    assert_array_equal(model.predict(ROWS), expected)
    pairs = [row[0] for row in ROWS], [row[1] for row in ROWS]
    assert_array_equal(model.predict_pairs(*pairs), expected)
    with pytest.raises(ValueError, match="users has 1 ids and items has 2"):
        model.predict_pairs(["ann"], ["tea", "jam"])


def test_similar_and_explain(model):
    items, scores = model.similar_items(["tea", "gin"], n_recommendations=5)
    assert items.tolist() == [
        ["jam", "egg", "gin", "rum", None],
        ["rum", "egg", "jam", "tea", None],
    ]
    assert scores[0, 0] == 2
    users, _ = model.similar_users(["eve"], n_recommendations=1)
    assert users.tolist() == [["joe"]]
    assert model.similar_users("eve", n_recommendations=1)[0].tolist() == ["joe"]
    assert model.similar_items("tea", n_recommendations=1)[1].tolist() == [2]
    some = {"candidates": ["joe", "ann", "nobody"], "exclude": ["joe", "nobody"]}
    found = model.similar_users(["eve", "joe"], n_recommendations=2, **some)[0]
    assert found.tolist() == [["ann", None], ["ann", None]]
    found = model.similar_items("tea", 2, candidates=["gin", "tea"], exclude={"jam"})[0]
    assert found.tolist() == ["gin", None]
    explanation = model.explain("ann", "egg")
    assert explanation.history.tolist() == ["jam", "tea"]
    assert explanation.contributions.tolist() == [1, 1] and explanation.score == 2


@pytest.mark.parametrize("ids", [[3], [3.5], [[["ann"]]], [b"ann"], np.array(["NaT"], "M8")])
def test_ids_of_another_kind(model, ids):
    for use in (
        lambda: model.recommend(ids),
        lambda: model.recommend(["ann"], candidates=ids),
        lambda: model.recommend(["ann"], exclude=ids),
        lambda: model.similar_items(ids),
    ):
        with pytest.raises((TypeError, ValueError), match="users|candidates|exclude|items"):
            use()


def test_a_table_of_ids_is_no_vector(model):
    users, items = np.array([["ann", "bob"]]), np.array([["tea", "jam"]])
    for use, name in (
        (lambda: model.recommend(users), "users"),
        (lambda: model.similar_items(items), "items"),
        (lambda: model.predict_pairs(users, items), "users"),
    ):
        with pytest.raises(ValueError, match=rf"{name} must be a vector of ids; .* \(1, 2\)"):
            use()


@each(
    "known, asked, found",
    [
        (np.array([1, 2]), [2.0, 1, 300], [1, 0, -1]),
        (np.array([1, 2], dtype=np.int8), np.array([300, 2]), [-1, 1]),
        (np.array([1, 2], dtype=np.uint64), [1, 2], [0, 1]),
        (np.array([1, 2**63], dtype=np.uint64), np.array([2**63], dtype=np.uint64), [1]),
        (np.array([1.0, 2.5]), [1, 2.5], [0, 1]),
        (np.array(["a", "b"]), ["b", "abc"], [1, -1]),
        (np.array(["a", "b"], dtype=object), np.array(["b", "abc"]), [1, -1]),
        (np.array(["a", "b"], dtype=object), np.str_("a"), [0]),
        (np.array([False, True]), [True], [1]),
        (np.array([1, 2]), [2, 2**70], [1, -1]),
        (np.array([1, 2**70], dtype=object), [1, 2, 2**70], [0, -1, 1]),
        (np.array([1, 2**70], dtype=object), np.array([1.0]), [0]),
        (np.array([1.0, 2.0**53], dtype=object), [2**53, 2**53 + 1], [1, -1]),
        (np.array([1.5, 2**53 + 1], dtype=object), [2**53 + 1, 2**53, 1.5], [1, -1, 0]),
        (np.array([1, 2], dtype=np.uint64), [-1, 2, 2**64], [-1, 1, -1]),
        (np.array([1, 2], dtype=np.uint64), np.array([-1, 2]), [-1, 1]),
        (np.array([1, 2], dtype=np.uint8), np.array([-1.0, 2]), [-1, 1]),
        (np.array([1, 2**63], dtype=np.uint64), [-(2**70), 2**63, -2.0], [-1, 1, -1]),
        (np.array([-1, 2]), np.array([2**63, 2], dtype=np.uint64), [-1, 1]),
        (np.array([-1, 2], dtype=np.int8), np.array([255, 2], dtype=np.uint64), [-1, 1]),
        (np.array(["a", "b"]), ["a\0", "a"], [-1, 0]),
        (np.array(["a", "b"], dtype=object), "a\0", [-1]),
        (np.array([b"a", b"b"]), [b"b", b"abc"], [1, -1]),
    ],
)
def test_ids_of_comparable_types(known, asked, found):
    X = np.empty((2, 2), dtype=known.dtype)
    X[:, 0] = X[:, 1] = known
    model = InteractionRecommender(Counting()).fit(X)
    assert model._find("user", asked, "users").tolist() == found


@pytest.mark.parametrize("known, asked", [([1, 2], [1.5]), ([1, 2], ["1"]), ([1.5], ["1"])])
def test_ids_that_cannot_be_compared(known, asked):
    model = InteractionRecommender(Counting()).fit([(i, i) for i in known])
    with pytest.raises(TypeError, match=r"users holds ids such as .*, of another kind than"):
        model.recommend(asked)


def test_floats_that_may_be_rounded_integers_are_no_ids():
    snowflakes = 2**60 + np.arange(3)
    X = np.column_stack([snowflakes, [0, 1, 2], [0.5, 1, 2]])
    message = r"column of users holds 1\.15292e\+18 at row 0; float64 numbers of 2\*\*53"
    with pytest.raises(ValueError, match=message):
        InteractionRecommender(Counting()).fit(X)
    model = InteractionRecommender(Counting()).fit(list(zip(*X[:, 1:].T, strict=True)))
    with pytest.raises(ValueError, match="users holds 1.15292e"):
        model.recommend(snowflakes.astype(float))
    with pytest.raises(ValueError, match=r"float32 numbers of 2\*\*24"):
        model.recommend(np.float32([1, 2**24]))


@each(
    "X, message",
    [
        (zip("ab", "cd", strict=True), "X is a zip; give the interactions as a list of tuples"),
        ({"user": [1], "item": [2]}, "X is a dict; give"),
        ({(1, 2), (3, 4)}, "X is a set; give"),
        ([((1, "a"), 2), ((2, "b"), 3)], r"users holds \(1, 'a'\); ids are numbers or strings"),
    ],
)
def test_what_is_no_table_of_ids(X, message):
    with pytest.raises(TypeError, match=message):
        InteractionRecommender(Counting()).fit(X)


numbers = st.sampled_from(
    [0, 1, 0.5, 2**53, 2**53 + 1, 2.0**53, 2**53 - 1, 2**60, 2**60 + 1, 2**70]
)
strings = st.text("ab\0", max_size=3)


class FixedDraws:
    """What hypothesis drew once, in the place of its data."""

    def __init__(self, value):
        self.value = value

    def draw(self, strategy):
        return self.value


@settings(deadline=None)
@example(ids=[0], more=FixedDraws([2.0**53, 2**70]))
@given(ids=st.lists(numbers, min_size=1) | st.lists(strings, min_size=1), more=st.data())
def test_ids_stay_apart(ids, more):
    # Python tells exactly which ids are equal.
    model = InteractionRecommender(Counting()).fit([(id, "tea") for id in ids])
    assert len(model.user_ids_) == len(set(ids))
    assert set(model.user_ids_.tolist()) == set(ids)
    asked = more.draw(st.lists(strings if isinstance(ids[0], str) else numbers))
    try:
        codes = model._find("user", asked, "users")
    except TypeError as error:
        assert "another kind" in str(error)
        assert any(isinstance(id, float) and id % 1 for id in asked)
        return
    known = model.user_ids_.tolist()
    assert [known[code] if code >= 0 else None for code in codes] == [
        id if id in ids else None for id in asked
    ]
    if not asked:
        return
    model.partial_fit([(id, "tea") for id in asked])
    assert len(model.user_ids_) == len({*ids, *asked})
    assert set(model.user_ids_.tolist()) == {*ids, *asked}


@pytest.mark.parametrize("library", FRAMES)
def test_ids_of_frames_stay_apart(library):
    ids = ["a", "a\0", "", "\0", "b"]
    model = InteractionRecommender(Counting()).fit(frame(library, {"user": ids, "item": ids}))
    assert model.user_ids_.tolist() == model.item_ids_.tolist() == sorted(ids)
    assert model.user_ids_.dtype == object


def test_ids_of_the_model_are_found_in_lists():
    for users in (["ann", "bob"], [1, 2], [np.int8(1), np.int8(2)], [False, True], [0.5, 1.5]):
        model = InteractionRecommender(Counting()).fit(
            [(users[0], "tea"), (users[1], "tea"), (users[1], "jam")]
        )
        # NumPy's scalars, not those of Python.
        assert_array_equal(model.recommend(list(model.user_ids_))[0], model.recommend()[0])
        assert_array_equal(model.recommend(users)[0], model.recommend()[0])


@each(
    "kind",
    [
        *(np.str_, np.uint16, Decimal, Fraction, time),
        lambda i: np.bytes_(b"%d" % i),
        lambda i: Decimal(i) / 10,
        lambda i: UUID(int=i),
        lambda i: 2**70 + i,
        lambda i: pyarrow.scalar(str(i)),
    ],
)
@each("n_known", [4, 200])
def test_what_fit_takes_each_call_takes(kind, n_known):
    ids = list(map(kind, range(1, 5)))
    others = [kind(i % 18 + 5) for i in range(n_known)]
    rows = [(one, one) for one in ids + others] + [(ids[0], ids[1]), (ids[2], ids[0])]
    model = InteractionRecommender(Counting(), unknown="error", n_recommendations=2).fit(rows)
    for some in (ids, tuple(ids), np.fromiter(ids, object, 4), pandas.Series(ids, dtype=object)):
        for found in (
            model.recommend(some),
            model.recommend(history=some, candidates=some),
            model.recommend(history=[some] * 2, candidates=[some] * 2, exclude=[some] * 2),
            model.recommend(ids[:1], candidates=some, exclude=ids[3:]),
            model.similar_items(some, candidates=some, exclude=ids[3:]),
        ):
            known = {None, *model.item_ids_.tolist()}
            assert {one for one in np.ravel(found[0]).tolist()} <= known
        assert len(model.predict_pairs(some, some)) == 4
    assert model.recommend(ids[0], candidates=ids)[0][0] in model.item_ids_.tolist()
    assert model.predict(rows).shape == (len(rows),)
    model.partial_fit(rows)
    assert len(model.user_ids_) == len({*map(str, ids + others)})


@each(
    "one, other",
    [
        (np.datetime64("2024-01-01"), np.datetime64("2024-01-02", "s")),
        (np.datetime64("2024-01-01"), np.datetime64("2024-01-02")),
        (np.timedelta64(1, "s"), np.timedelta64(2, "s")),
        (np.timedelta64(1, "h"), np.timedelta64(2, "m")),
        (date(2024, 1, 1), date(2024, 1, 2)),
        (pandas.Timestamp("2024-01-01"), pandas.Timestamp("2024-01-02")),
        (timedelta(1), timedelta(2)),
        (frozenset([1]), frozenset([2])),
        ((1, 2), (1, 3)),
        (np.array([1]), np.array([2])),
        (1j, 1j),
        (int, int),
    ],
)
def test_what_is_no_id(one, other):
    model = InteractionRecommender(Counting()).fit([("ann", "tea"), ("bob", "tea")])
    both = np.fromiter([one, other], object, 2)
    for use, name in (
        (lambda: model.fit([(one, 1), (other, 1)]), "X's column of users"),
        (lambda: model.fit([(1, one), (1, other)]), "X's column of items"),
        (lambda: model.fit(pandas.DataFrame({"user": both, "item": 1})), "X's column of users"),
        (lambda: model.recommend(both), "users"),
        (lambda: model.recommend("ann", candidates=[[one, other]]), "candidates"),
        (lambda: model.recommend(history=[[one, other]]), "history"),
        (lambda: model.similar_items(both, exclude=["tea"]), "items"),
        (lambda: model.explain("ann", one), "item"),
        (lambda: model.predict([("ann", one)]), "(X's column of )?items"),
    ):
        with pytest.raises(TypeError, match=f"^{name} holds .*(ids are|be told apart|other kind)"):
            use()


@each("missing, shown", [(np.nan, "nan"), (None, "None"), (pandas.NaT, "NaT"), (pandas.NA, "<NA>")])
def test_missing_ids_are_shown_as_they_are(missing, shown):
    for ids in (["a", missing], [1, missing], [2.5, missing]):
        column = pandas.Series(ids, dtype=object)
        for X in ([(one, 1) for one in ids], pandas.DataFrame({"user": column, "item": 1})):
            with pytest.raises(ValueError, match=f"users holds {shown} at row 1"):
                InteractionRecommender(Counting()).fit(X)
    with pytest.raises(ValueError, match="users holds nan at row 1"):
        InteractionRecommender(Counting()).fit(pandas.DataFrame({"user": [1, np.nan], "item": 1}))


@each("known, asked", [(3000, 2), (3000, 1000), (3000, 3000), (2, 50)])
def test_ids_are_found_among_any_number_of_others(known, asked):
    rng = np.random.default_rng(0)
    for kind in (str, int, np.str_, lambda i: UUID(int=i), lambda i: f"{i}\0"):
        ids = list(map(kind, rng.permutation(known).tolist()))
        model = InteractionRecommender(Counting())
        # Those of the second part are known after all others, and not sorted with them.
        model._learn_ids("user", as_ids(ids[: known // 2], "ids"))
        model._add_ids("user", as_ids(ids[known // 2 :], "ids"))
        values = list(map(kind, rng.integers(0, 2 * known, asked).tolist()))
        place_of = {one: place for place, one in enumerate(model.user_ids_.tolist())}
        expected = [place_of.get(one, -1) for one in values]
        assert model._find("user", values, "users").tolist() == expected
        assert model._find("user", np.array(values, object), "users").tolist() == expected
        assert -1 in expected or asked < 10


@each("known", [[0, 1, 7], [0.0, 1, 7], ["False", "True"], [0, 1, 2**70], np.uint64([0, 1, 9])])
@each(
    "mask",
    [
        np.array([False, True]),
        [False, True],
        [np.True_, True],
        (True, 7),
        [[True], [False]],
        np.array([[True], [False]]),
        frozenset([True]),
    ],
)
def test_masks_are_no_ids(known, mask):
    model = InteractionRecommender(MFRecommender(2, max_iter=1)).fit([(i, i) for i in known])
    users = list(known[:2])
    for use in (
        lambda: model.recommend(users, candidates=mask),
        lambda: model.recommend(users, exclude=mask),
        lambda: model.recommend(history=mask),
        lambda: model.transform(history=mask),
        lambda: model.recommend(mask),
        lambda: model.recommend(True),
        lambda: model.similar_items(mask),
        lambda: model.similar_items(users, candidates=mask),
        lambda: model.similar_users(users, exclude=mask),
        lambda: model.predict_pairs(mask, mask),
        lambda: model.explain(users[0], True),
        lambda: model.explain(True, users[0]),
        lambda: model.predict([(True, users[0])]),
        lambda: model.score([(users[0], True)]),
        lambda: model.partial_fit([(users[0], True)]),
    ):
        with pytest.raises((TypeError, ValueError), match="of another kind|types|a vector|object"):
            use()


def test_masks_are_no_ids_of_other_frames():
    model = InteractionRecommender(Counting()).fit([(0, 0), (1, 1)])
    polars = pytest.importorskip("polars")
    for mask in (pandas.Series([True]), polars.Series([True]), pyarrow.array([True])):
        with pytest.raises(TypeError, match="exclude holds ids such as .*; give ids; for a mask"):
            model.recommend([0], exclude=mask)
    assert InteractionRecommender(Counting()).fit([(True, 1), (False, 1)]).recommend([True])


def test_numbers_that_no_type_has_together_are_added():
    model = InteractionRecommender(Counting()).fit(np.array([[3, 2**63]], dtype=np.uint64))
    model.partial_fit(np.array([[-3, -5], [3, 7]]))
    assert model.user_ids_.tolist() == [3, -3] and model.item_ids_.tolist() == [2**63, -5, 7]
    same = InteractionRecommender(Counting()).fit(np.array([[3, 4]], dtype=np.uint64))
    assert same.partial_fit(np.array([[5, 6]])).user_ids_.dtype == np.uint64


def test_truth_values_are_no_numbers():
    with pytest.raises(TypeError, match="types bool, int, which cannot be told apart or sorted"):
        InteractionRecommender(Counting()).fit([(1, "tea"), (True, "jam")])


@pytest.mark.parametrize("n", [0, -1, 2.5, "ten", None, True])
def test_wrong_number_of_recommendations(model, n):
    calls = [
        lambda: model.similar_items(["tea"], n_recommendations=n),
        lambda: model.similar_users(["ann"], n),
    ]
    if n is not None:  # the constructor's
        calls.append(lambda: model.recommend(["ann"], n_recommendations=n))
    for call in calls:
        with pytest.raises((TypeError, ValueError), match=f"n_recommendations={n!r} must be"):
            call()


@pytest.mark.parametrize(
    "name, arguments",
    [
        ("predict", [ROWS]),
        ("score", [ROWS]),
        ("recommend", []),
        ("predict_pairs", [["ann"], ["tea"]]),
        ("similar_items", [["tea"]]),
        ("similar_users", [["ann"]]),
        ("explain", ["ann", "tea"]),
    ],
)
def test_before_fit(name, arguments):
    with pytest.raises(NotFittedError, match="InteractionRecommender instance is not fitted"):
        getattr(InteractionRecommender(Counting()), name)(*arguments)


def test_score_is_of_known_users_and_new_items(model):
    # ann is recommended egg first and gin third; bob has nothing new that is known.
    held_out = [("ann", "gin", 1), ("zoe", "tea", 1), ("bob", "fig", 1)]
    assert model.score(held_out) == pytest.approx(1 / np.log2(4))
    assert model.score([("ann", "egg", 1)]) == 1
    assert clone(model).set_params(n_recommendations=2).fit(ROWS).score(held_out) == 0
    with pytest.raises(ValueError, match="X holds 2 interaction.* none of a user and an item"):
        model.score(held_out[1:])
