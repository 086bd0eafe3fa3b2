"""What a call costs follows what is asked of it, at any number of users and items."""

import tracemalloc

import numpy as np
import pytest
from fake_recommender import Counting
from helpers import each
from numpy.testing import assert_allclose, assert_array_equal

from freqfm import ALSRecommender, InteractionRecommender, MFRecommender
from freqfm.estimators.recommenders import index
from freqfm.metrics._hits import top_k

pytestmark = pytest.mark.filterwarnings("ignore:.*that fit has not seen")

N = 200_000
SOME = np.arange(0, N, N // 50)


def matrix_model(n_users, n_items):
    """Return a model whose arrays are replaced by larger ones: a fit would take long."""
    model = MFRecommender(2, max_iter=1, random_state=0, n_jobs=1).fit(np.eye(3, 4))
    generator = np.random.default_rng(0)
    for name, n in (("user_factors_", n_users), ("item_factors_", n_items)):
        setattr(model, name, generator.standard_normal((n, 2), dtype=np.float32))
    indptr, indices = np.arange(n_users + 1), np.arange(n_users, dtype=np.int32) % n_items
    model._history = model._history._replace(indptr=indptr, indices=indices)
    # Every other item has interactions.
    model.item_counts_, model.n_features_in_ = np.arange(n_items) % 2, n_items
    model._inverse_temperatures = np.resize(model._inverse_temperatures, (n_users, 2))
    return model


def table_model(ids, n_items=1000):
    model = InteractionRecommender(MFRecommender(2, max_iter=1)).fit([(ids[0], 0)])
    model.estimator_ = matrix_model(len(ids), n_items)
    model._keep_ids("user", ids, np.arange(len(ids)))
    model._keep_ids("item", np.arange(n_items), np.arange(n_items))
    return model


def peak(call):
    """Return the most memory that a call takes, in bytes; a first call compiles."""
    call()
    tracemalloc.start()
    call()
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return most


@each(
    "call",
    [
        lambda model: model.recommend(users=0, candidates=SOME),
        lambda model: model.similar_items(1, candidates=SOME),
        lambda model: model.similar_users(1, candidates=SOME),
        lambda model: model.predict_pairs(SOME, SOME),
        lambda model: model.explain(1, 1),
    ],
)
def test_calls_for_few_items_take_little_memory(call, big=[]):  # noqa: B006
    if not big:
        big.append(matrix_model(N, N))
    assert peak(lambda: call(big[0])) < N


@each("dtype", [np.int64, np.int32, np.uint64, np.float32, "U9", object])
def test_ids_that_are_asked_for_are_converted_and_no_others(dtype):
    ids = np.char.zfill(np.arange(N).astype(str), 9)
    if dtype != "U9":
        ids = ids.astype(object) if dtype is object else np.arange(N).astype(dtype)
    model = table_model(ids)
    few = ids[:: N // 50].tolist()
    unknown = ["a longer text", "nul\0"] if isinstance(few[0], str) else [-5, 2**40, 2**70]
    pairs = list(zip(few, range(50), strict=False))
    for call in (
        lambda: model.recommend(few + unknown, n_recommendations=3),
        lambda: model.recommend(few[1]),
        lambda: model.predict_pairs(few, [1] * len(few)),
        lambda: model.similar_users(few, candidates=few + unknown),
        lambda: model.score(pairs),
        lambda: model.transform(pairs),
    ):
        assert peak(call) < 2 * N, peak(call)
    found = model._find("user", few + unknown, "users")
    assert_array_equal(found, [*range(0, N, N // 50), *[-1] * len(unknown)])


def test_candidates_are_ranked_as_all_items_are():
    model = matrix_model(50, 60)
    # The first user has no interactions, and gets popular items.
    model._history = model._history._replace(
        indptr=np.r_[0, np.arange(50)], indices=np.arange(49, dtype=np.int32)
    )
    for candidates in (np.arange(60), np.arange(10, 40), np.array([7, 7, 3]), np.array([], int)):
        others = np.setdiff1d(np.arange(60), candidates)
        for users in ([0, 1, 2], [0], [5]):
            one = model.recommend(users=users, candidates=candidates, exclude=[5])
            other = model.recommend(users=users, exclude=[5, *others])
            assert_array_equal(one[0], other[0])
        one = model.similar_items([1, 2, 8], candidates=candidates, exclude=[5])
        other = model.similar_items([1, 2, 8], exclude=[5, *others])
        assert_array_equal(one[0], other[0])
        assert not set(one[0].ravel()) & {5, *range(0, 60, 2)}


@each("bad", [-1, 40, 10**9])
@each("ids", [np.arange(40), np.arange(40).astype("U2")])
def test_damaged_orders_are_reported_where_they_are_used(ids, bad):
    model = InteractionRecommender(Counting()).fit([(user, 1) for user in ids.tolist()])
    known, order = model.user_ids_, model._user_order.copy()
    model._user_order[20] = bad
    for use in (
        lambda: model.recommend([known[order[20]]]),
        lambda: model.recommend([known[order[19]], known[order[20]]]),
        lambda: model.predict([(known[order[20]], 1)]),
        lambda: model.partial_fit([(known[0], 1)]),
    ):
        with pytest.raises(ValueError, match=r"_user_order of InteractionRecommender holds"):
            use()


def test_users_whose_values_are_zero_have_nothing_to_be_found():
    model = InteractionRecommender(Counting()).fit([("ann", 1, 1), ("bob", 2, 1), ("eve", 3, 1)])
    X = [("eve", 1, 0.0), ("bob", 1, 1.0), ("bob", 3, 2.0), ("bob", 1, 1.0)]
    queries, relevant = model._find_held_out(X)
    assert queries["users"].tolist() == [1]
    assert_array_equal(relevant.toarray(), [[2, 0, 2]])


def test_contributions_take_the_memory_of_few_items():
    model = ALSRecommender(2, max_iter=1, random_state=0).fit(np.eye(5, 4))
    # Without an exponent the penalty does not depend on the number of items.
    model._objective = model._objective._replace(exponent=0.0)
    expected = model.explain(1, 1)
    model.n_features_in_, model.item_counts_ = N, np.resize(model.item_counts_, N)
    model.item_factors_ = np.resize(model.item_factors_, (N, 2)) * (np.arange(N) < 4)[:, None]
    assert peak(lambda: model.explain(1, 1)) < 2 * N
    assert_allclose(model.explain(1, 1).contributions, expected.contributions, rtol=1e-6)


def test_users_without_interactions_are_ranked_once(monkeypatch):
    model = MFRecommender(2, max_iter=1, random_state=0).fit(np.eye(5, 4))
    widths = []

    def counted(queries, items, *args, **options):
        widths.append(items.shape[1])
        return top_k(queries, items, *args, **options)

    monkeypatch.setattr(index, "top_k", counted)
    for users, expected in (([4], [1]), ([0], [2]), ([0, 4], [2, 1]), ([], [])):
        widths.clear()
        assert model.recommend(users=users)[0].shape == (len(users), 10)
        assert widths == expected
