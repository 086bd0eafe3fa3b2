"""Interactions, what a recommender learns from: sums of calls, parts, users of rows, Dask's."""

import ast
import inspect
import operator
import textwrap

import numpy as np
import pytest
from helpers import each
from numpy.testing import assert_array_equal
from scipy import sparse

import freqfm
from freqfm._input.validation import canonical_csr
from freqfm.backbones import Context
from freqfm.estimators.recommenders.index import VectorIndex
from freqfm.estimators.recommenders.interactions import Interactions
from freqfm.estimators.recommenders.trained import TrainedRecommender
from freqfm.metrics import ndcg_at_k
from freqfm.model_selection._scorer import scorer_of


def signed(seed, shape=(30, 20), density=0.3):
    """Return a matrix of likes and dislikes of weights 1, 2 and 3."""
    rng = np.random.default_rng(seed)
    values = rng.integers(1, 4, size=shape) * rng.choice([-1, 1], size=shape)
    return canonical_csr(sparse.csr_array(values * (rng.random(shape) < density)))


def of_users(seed):
    return Interactions.of(signed(seed))


def of_queries(seed):
    """Return Interactions of 30 queries, of 12 users of whom two have none."""
    likes = abs(signed(seed))
    backbone = Context(context=np.ones((30, 1)), users=np.arange(30) % 12)
    return Interactions(likes, queries=backbone.read(30)).padded(14)


def test_signs_are_taken_apart_and_put_together():
    X = signed(0)
    found = Interactions.of(X)
    assert_array_equal(found.X.toarray(), np.maximum(X.toarray(), 0))
    assert_array_equal(found.dislikes.toarray(), np.maximum(-X.toarray(), 0))
    assert_array_equal(found.signed.toarray(), X.toarray())
    for name in ("data", "indices", "indptr"):
        # A checkpoint's hash is one of these arrays.
        assert getattr(found.signed, name).dtype == getattr(X, name).dtype
    likes = abs(X)
    assert Interactions.of(likes).X is likes and Interactions.of(likes).signed is likes


@each("weighted", [True, False])
@each("first, second", [(1, 2), (3, 4)])
def test_of_a_pair_that_is_liked_and_disliked_the_last_call_counts(first, second, weighted):
    before, new = signed(first), signed(second)
    found = Interactions.of(before).plus(Interactions.of(new), weighted)
    before, new = before.toarray(), new.toarray()
    same = before * new > 0
    expected = np.where(new != 0, new, before) + np.where(same, before, 0)
    likes = np.maximum(expected, 0)
    assert_array_equal(found.X.toarray(), likes if weighted else likes > 0)
    assert_array_equal(found.dislikes.toarray(), np.maximum(-expected, 0))


def test_sums_without_dislikes_have_none():
    likes, both = Interactions(abs(signed(1))), Interactions.of(signed(2))
    assert likes.plus(likes, weighted=True).dislikes is None
    assert likes.plus(both, weighted=True).dislikes is both.dislikes
    kept = both.plus(Interactions(likes.X), weighted=True)
    disliked = both.dislikes.toarray() > 0
    assert_array_equal(kept.dislikes.toarray() > 0, disliked & (likes.X.toarray() == 0))


def test_rows_of_queries_are_added_up_by_user():
    queries = of_queries(5)
    expected = np.zeros((14, 20))
    np.add.at(expected, np.arange(30) % 12, queries.X.toarray())
    assert_array_equal(queries.by_user.X.toarray(), expected)
    assert_array_equal(queries.rows(np.array([3, 13])).toarray(), expected[[3, 13]])
    assert_array_equal(queries.by_user.item_counts, (expected > 0).sum(axis=0))
    assert_array_equal(queries.history(weighted=False).counts, (expected > 0).sum(axis=1))
    users = of_users(5)
    assert users.by_user is users


@each("make", [of_users, of_queries])
@each("dislikes", [True, False])
def test_a_split_is_one_of_users(make, dislikes):
    given = make(6)
    trained, held_out = given.split(0.3, 0, dislikes)
    assert_array_equal(trained.X.toarray() + held_out.X.toarray(), given.X.toarray())
    parts = [part.by_user.X.toarray() > 0 for part in (trained, held_out)]
    assert parts[1].any() and not (parts[0] & parts[1]).any()
    assert trained.queries is held_out.queries is given.queries
    if given.dislikes is None or not dislikes:
        assert trained.dislikes is given.dislikes and held_out.dislikes is None
        return
    disliked = trained.dislikes.toarray() + held_out.dislikes.toarray()
    assert held_out.dislikes.nnz
    likes = parts[0].any(axis=1)
    assert_array_equal(disliked[likes], given.dislikes.toarray()[likes])


def test_dislikes_of_users_without_likes_are_not_held_out():
    X = np.array([[1, 1, 1, 0, 0, 0], [0, 0, 0, -1, -1, -1], [1, 1, 0, -1, -1, -1]])
    given = Interactions.of(canonical_csr(sparse.csr_array(X)))
    for seed in range(5):
        _, held_out = given.split(0.4, seed, dislikes=True)
        assert not held_out.dislikes.toarray()[1].any() and held_out.dislikes.toarray()[2].any()


def test_rows_of_new_users_are_empty():
    given = of_users(7)
    padded = given.padded(35)
    assert padded.shape == padded.dislikes.shape == (35, 20)
    assert_array_equal(padded.signed.toarray()[:30], given.signed.toarray())
    assert not padded.signed.toarray()[30:].any()
    assert given.padded(3).shape == (30, 20)


class Scores:
    """A model with given scores."""

    _seed, _stores_users = 0, True

    def __init__(self, scores):
        self._items = np.ascontiguousarray(scores.T, dtype=np.float32)
        self.user_factors_ = np.eye(len(scores), dtype=np.float32)

    def _with_dislikes(self, X, users):
        return X

    def _ranking_scorer(self):
        return scorer_of("ndcg@5", 10)

    def _user_vectors(self, users):
        return self.user_factors_[users]

    def _item_index(self):
        learned = np.ones(len(self._items), dtype=bool)
        return VectorIndex(self._items, 0, learned.__getitem__, {"n_threads": 1, "device": "cpu"})


def test_the_score_is_that_of_lists_without_what_is_trained_on():
    scores = np.random.default_rng(0).random((30, 20))
    trained, held_out = Interactions(abs(signed(8))).split(0.3, 0, dislikes=False)
    lists = np.argsort(-np.where(trained.X.toarray() > 0, -1, scores), axis=1)[:, :5]
    some = np.flatnonzero(np.diff(held_out.indptr))
    expected = ndcg_at_k(held_out.X.toarray()[some], lists[some])
    assert trained.score_of(Scores(scores), held_out)() == pytest.approx(expected)


def test_interactions_on_a_cluster_are_used_as_those_of_one_machine():
    dask = pytest.importorskip("freqfm.dask._users")
    used = "X dislikes queries shape nnz indptr item_counts by_user rows history shown hashed split"
    sums = "signed total sums squares_times"
    for name in [*used.split(), *sums.split(), "validated_on", "score_of"]:
        found = getattr(dask.ShardedInteractions, name)
        if name in ("rows", "history", "hashed", "split", "score_of", "sums", "squares_times"):
            own = inspect.signature(getattr(Interactions, name))
            assert inspect.signature(found).parameters.keys() == own.parameters.keys()


def names_called(function, owner):
    """Return the names of attributes of ``self``, or of ``super()``, that a function uses."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    return {node.attr for node in found if ast.unparse(node.value) == owner}


def definitions(cls, name):
    """Yield the functions of the package that run when a method is called."""
    for kind in cls.__mro__:
        function = inspect.unwrap(vars(kind).get(name, len))
        if inspect.isfunction(function) and function.__module__.startswith("freqfm"):
            yield function
            if name not in names_called(function, "super()"):
                return


@each("name", ["ALSRecommender", "FastVAERecommender", "MFRecommender", "dask.MFRecommender"])
def test_a_fit_calls_few_hooks(name):
    if name.startswith("dask"):
        pytest.importorskip("freqfm.dask")
    cls = operator.attrgetter(name)(freqfm)
    # Predictions check the learned arrays too.
    found, unread = {"_check_learned"}, {"fit"}
    while unread:
        method = unread.pop()
        found.add(method)
        for function in definitions(cls, method):
            unread |= names_called(function, "self") - found
    own = {m: getattr(TrainedRecommender, m, None) for m in found}
    hooks = {m for m, base in own.items() if callable(base) and getattr(cls, m) is not base}
    assert {"_start", "_make_trainer"} <= hooks and len(hooks) <= 8
