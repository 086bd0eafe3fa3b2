"""InteractionRecommender: histories in place of users, exclusions, embeddings, callbacks."""

import numpy as np
import pytest
from fake_recommender import Counting
from numpy.testing import assert_allclose, assert_array_equal
from purchases import ITEMS, ROWS, USERS
from scipy import sparse
from sklearn import config_context
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.model_selection import GridSearchCV
from sklearn.preprocessing import Binarizer

from freqfm import (
    ALSRecommender,
    FastVAERecommender,
    InteractionRecommender,
    MFRecommender,
    recommend,
)
from freqfm.callbacks import Checkpoint, resume
from freqfm.estimators.recommenders.mf_trainer import MFTrainer
from freqfm.model_selection import WarmStartKFold

pytestmark = pytest.mark.filterwarnings("ignore:.*that fit has not seen")

SMALL = MFRecommender(4, max_iter=3, n_jobs=1, random_state=0)
VAE = FastVAERecommender(3, hidden_layer_sizes=(4,), max_iter=2, n_jobs=1, random_state=0)


@pytest.fixture
def counting():
    return InteractionRecommender(Counting()).fit(ROWS)


@pytest.fixture(params=[SMALL, VAE], ids=["mf", "vae"])
def model(request):
    return InteractionRecommender(request.param, value=None).fit(ROWS)


def rows_of(*histories):
    X = np.zeros((len(histories), len(ITEMS)))
    for row, items in enumerate(histories):
        for item in items:
            X[row, ITEMS.index(item)] += 1
    return X


# Histories.


def test_history_is_folded_in(model):
    items, scores = model.recommend(history=["tea", "jam"], n_recommendations=2)
    expected, expected_scores = model.estimator_.recommend(
        rows_of(["tea", "jam"]), n_recommendations=2
    )
    assert items.tolist() == [ITEMS[code] for code in expected[0]]
    assert_array_equal(scores, expected_scores[0])
    for several in ([["tea", "jam"], ["gin"]], (("jam", "tea"), {"gin"})):
        items, scores = model.recommend(history=several, n_recommendations=2)
        assert items.shape == scores.shape == (2, 2)
        assert_allclose(scores[0], expected_scores[0], rtol=1e-5)
    through = recommend(model, history=["tea", "jam"], n_recommendations=2)
    assert_array_equal(through[1], expected_scores[0])


def test_items_of_the_history_are_excluded(counting):
    every = len(ITEMS)
    items, _ = counting.recommend(history=["tea", "fig"], n_recommendations=every)
    assert sorted(items[:-1]) == sorted(set(ITEMS) - {"tea"}) and items[-1] is None
    items, _ = counting.recommend(history=["tea"], n_recommendations=every, exclude_seen=False)
    assert sorted(items) == sorted(ITEMS)
    items, _ = counting.recommend(history=[["tea"], ["gin"]], candidates=["tea", "gin"])
    assert items[:, 0].tolist() == ["gin", "tea"]


@pytest.mark.parametrize("history", [[], ["fig"]])
def test_history_without_known_items_is_like_that_of_an_unknown_user(model, history):
    items, scores = model.recommend(history=history, n_recommendations=3)
    expected, expected_scores = model.recommend("nobody", n_recommendations=3)
    assert_array_equal(items, expected)
    assert_array_equal(scores, expected_scores)
    assert model.recommend(history=[history], n_recommendations=3)[0].shape == (1, 3)


def test_history_of_numbers():
    model = InteractionRecommender(Counting()).fit(np.array([[1, 10], [1, 20], [2, 20], [2, 30]]))
    assert model.recommend(history=[10], n_recommendations=1)[0].tolist() == [20]
    for several in (np.array([[10, 20], [20, 30]]), [np.array([10, 20]), [30, 20]]):
        assert model.recommend(history=several, n_recommendations=1)[0].tolist() == [[30], [10]]


@pytest.mark.parametrize("history", ["tea", 3, [["tea"], "jam"], [3], [None]])
def test_wrong_histories(model, history):
    with pytest.raises((TypeError, ValueError), match="history"):
        model.recommend(history=history)


def test_users_or_history(model):
    with pytest.raises(ValueError, match="either users or history"):
        model.recommend(["ann"], history=["tea"])


# Exclusions for each user.


@pytest.mark.parametrize("users", [None, ["ann", "zoe", "bob"], ["zoe"], "ann", "zoe"])
def test_every_user_has_own_exclusions(model, users):
    plain, _ = model.recommend(users, n_recommendations=5)
    plain = np.atleast_2d(plain)
    own = [[row[0], "fig"] if i % 2 == 0 else [] for i, row in enumerate(plain)]
    items, _ = model.recommend(users, n_recommendations=5, exclude=own)
    for i, (row, before) in enumerate(zip(np.atleast_2d(items), plain, strict=True)):
        left = [
            item for item in before if item is not None and not (i % 2 == 0 and item == before[0])
        ]
        assert row[: len(left)].tolist() == left and set(row[len(left) :]) <= {None}


def test_exclusions_of_histories(counting):
    items, _ = counting.recommend(history=[["tea"], ["tea"]], exclude=[["jam"], []])
    assert "jam" not in items[0] and items[1, 0] == "jam"


@pytest.mark.parametrize("users", [None, ["ann", "zoe", "bob"], ["zoe"], "ann", "zoe"])
def test_every_user_has_own_candidates(model, users):
    plain, _ = model.recommend(users, n_recommendations=5)
    plain = np.atleast_2d(plain)
    own = [
        ["fig", *(item for item in (row[i % 2], row[2]) if item is not None)]
        for i, row in enumerate(plain)
    ]
    items, scores = model.recommend(users, n_recommendations=5, candidates=own)
    for i, (row, before) in enumerate(zip(np.atleast_2d(items), plain, strict=True)):
        left = [before[place] for place in (i % 2, 2) if before[place] is not None]
        assert row[: len(left)].tolist() == left and set(row[len(left) :]) <= {None}
    assert (np.isfinite(scores) == (items != np.array(None))).all()


def test_candidates_of_histories(counting):
    items, _ = counting.recommend(history=[["tea"], ["tea"]], candidates=[["gin"], ["jam", "tea"]])
    assert items[:, 0].tolist() == ["gin", "jam"] and set(items[:, 1:].ravel()) == {None}
    items, _ = counting.recommend(history=["tea"], candidates=[["gin"]])
    assert items[0] == "gin"
    for none in ([["fig"]], ["fig"], [[]], []):
        items, scores = counting.recommend(history=["tea"], candidates=none)
        assert set(items) == {None} and (scores == -np.inf).all()


@pytest.mark.parametrize("scale", [1, 0.02, 300])
def test_items_of_a_history_have_the_usual_weight(scale):
    rng = np.random.default_rng(0)
    rows = [(u, i) for u in range(30) for i in rng.choice(20, 5, replace=False).tolist()]
    als = ALSRecommender(4, max_iter=5, random_state=0)
    # Rows of value 0 are no interactions, however many there are.
    zeros = [(u, i, 0) for u in range(30) for i in range(20) if (u, i) not in rows]
    model = InteractionRecommender(als).fit([(*row, scale) for row in rows] + zeros)
    history = [i for u, i in rows if u == 3]
    expected = InteractionRecommender(als).fit(rows).recommend(history=history)
    found = model.recommend(history=history)
    assert_array_equal(found[0], expected[0])
    assert_allclose(found[1], expected[1], rtol=1e-3)


def test_recommendations_may_be_excluded(counting):
    first, _ = counting.recommend(["ann", "bob"], n_recommendations=4)
    assert None in first
    second, _ = counting.recommend(["ann", "bob"], exclude=first)
    assert set(second.ravel()) == {None}
    again, _ = counting.recommend(["ann", "bob"], candidates=first, n_recommendations=4)
    assert_array_equal(again, first)
    with pytest.raises(ValueError, match="None"):
        counting.recommend(["ann", None])


def test_sets_views_and_iterators_are_lists(counting):
    users = dict.fromkeys(["ann", "bob"])
    expected = counting.recommend(list(users), candidates=["gin", "jam"], exclude=["jam"])
    for as_other in (set, dict.keys, iter, lambda users: (user for user in users)):
        found = counting.recommend(
            as_other(users), candidates={"gin", "jam"}, exclude=iter(["jam"])
        )
        order = np.argsort(list(as_other(users)))
        assert_array_equal(found[0][order], expected[0])
    assert counting.similar_items({"tea", "gin"}, 2)[0].shape == (2, 2)


def test_arrays_of_other_libraries_are_lists(counting):
    arrow, polars, pandas = map(pytest.importorskip, ("pyarrow", "polars", "pandas"))
    users, items, lists = ["ann", "bob"], ["gin", "jam", "rum"], [["tea", "gin"], ["rum"]]

    def answers(of, of_lists):
        yield counting.recommend(of(users), candidates=of(items), exclude=of(["jam"]))
        yield counting.recommend(of(users), candidates=of_lists(lists))
        yield counting.recommend(of(users), exclude=of_lists(lists))
        yield counting.recommend(history=of(items))
        yield counting.recommend(history=of_lists(lists))
        yield counting.similar_items(of(items), candidates=of(["tea", "egg"]), exclude=of(["egg"]))
        yield counting.similar_users(of(users))
        yield counting.predict_pairs(of(users), of(items[:2]))

    expected = list(answers(list, list))
    for of, of_lists in (
        (arrow.array, arrow.array),
        (arrow.array, lambda lists: [arrow.array(ids) for ids in lists]),
        (
            lambda ids: arrow.chunked_array([ids[:1], ids[1:]]),
            lambda ids: arrow.chunked_array([ids]),
        ),
        (
            lambda ids: list(arrow.array(ids)),
            lambda lists: list(map(list, map(arrow.array, lists))),
        ),
        (lambda ids: arrow.array(ids).dictionary_encode(), lambda lists: list(arrow.array(lists))),
        (
            lambda ids: arrow.array(ids, "large_string"),
            lambda lists: arrow.array(lists).to_numpy(False),
        ),
        (polars.Series, polars.Series),
        (pandas.Series, pandas.Series),
        (pandas.Index, lambda lists: [pandas.Series(ids, index=[7] * len(ids)) for ids in lists]),
        (
            lambda ids: pandas.array(ids, pandas.ArrowDtype(arrow.string())),
            lambda lists: pandas.Series(
                lists, dtype=pandas.ArrowDtype(arrow.list_(arrow.string()))
            ),
        ),
    ):
        for found, wanted in zip(answers(of, of_lists), expected, strict=True):
            for one, other in zip(found, wanted, strict=True):
                assert_array_equal(one, other)
    one = counting.recommend(arrow.scalar("ann"))
    assert_array_equal(one[0], counting.recommend("ann")[0])


def test_matrices_are_no_histories():
    model = InteractionRecommender(MFRecommender(2, max_iter=1)).fit([(0, 0), (0, 1), (1, 2)])
    X = np.array([[1, 0, 0], [1, 1, 1]])
    for history in (X, X.astype(float), X.astype(np.int8) * 5):
        for use in (model.recommend, model.transform):
            with pytest.raises(ValueError, match=r"history of shape \(2, 3\) looks like a matrix"):
                use(history=history)
    for ids in (np.array([[0, 1, 2], [2, 1, 0]]), X[:, :2], X[0]):
        assert model.recommend(history=ids)[0].shape[-1] == 10


def test_hidden_ids_of_masked_arrays_are_none(counting):
    items = np.ma.array(["gin", "jam", "rum"], mask=[0, 1, 0])
    for name in ("candidates", "exclude"):
        found = counting.recommend(["ann"], **{name: items})
        assert_array_equal(found[0], counting.recommend(["ann"], **{name: ["gin", "rum"]})[0])
    for use in (
        lambda: counting.recommend(np.ma.array(["ann", "bob"], mask=[0, 1])),
        lambda: counting.recommend(history=items),
        lambda: counting.similar_items(items),
    ):
        with pytest.raises(ValueError, match="holds None at row 1"):
            use()


@pytest.mark.parametrize("name", ["history", "candidates", "exclude"])
def test_frames_and_matrices_are_no_lists(counting, name):
    rows = [["tea", "jam"], ["gin", "tea"]]
    users = {} if name == "history" else {"users": ["ann", "bob"]}
    others = [pytest.importorskip(module).DataFrame(rows) for module in ("pandas", "polars")]
    for given in (*others, sparse.csr_array((2, 2))):
        with pytest.raises(TypeError, match=f"{name} is a .*; give a list of ids"):
            counting.recommend(**users, **{name: given})


def test_one_list_of_exclusions_for_each_user(model):
    for name in ("exclude", "candidates"):
        with pytest.raises(ValueError, match=f"{name} holds 3 lists of ids, but there are 2 users"):
            model.recommend(["ann", "bob"], **{name: [["tea"], [], []]})
        with pytest.raises(ValueError, match=f"{name} holds ids beside lists"):
            model.recommend(["ann", "bob"], **{name: ["tea", ["jam"]]})


# Embeddings and explanations.


def test_transform_looks_users_up(model):
    embeddings = model.transform(ROWS)
    assert embeddings.shape == (len(ROWS), embeddings.shape[1]) and embeddings.dtype == np.float32
    assert_allclose(model.transform(ROWS[2:3]), embeddings[2:3], rtol=1e-5)
    of_users = model.estimator_._embed(np.arange(len(USERS)))
    assert_allclose(embeddings, of_users[[USERS.index(user) for user, *_ in ROWS]])
    assert_array_equal(clone(model).fit_transform(ROWS), embeddings)
    with pytest.warns(UserWarning, match="zoe"):
        unknown = model.transform([ROWS[0], ("zoe", "tea", 1), ROWS[1]])
    assert_allclose(unknown[[0, 2]], embeddings[:2], rtol=1e-5)
    assert not unknown[1].any()


def test_transform_of_histories(model):
    expected = model.estimator_.transform(rows_of(["tea", "jam"], ["gin"]))
    assert_array_equal(model.transform(history=[["tea", "jam"], ["gin"]]), expected)
    assert_allclose(model.transform(history=["tea", "jam"]), expected[0], rtol=1e-5)
    for wrong in ({}, {"X": ROWS, "history": ["tea"]}):
        with pytest.raises(ValueError, match="transform takes either X"):
            model.transform(**wrong)


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_embeddings_in_frames(model, library):
    frames = pytest.importorskip(library)
    X = pytest.importorskip("pandas").DataFrame(ROWS, index=range(5, 5 + len(ROWS)))
    lists = [["tea", "jam"], ["gin"]]
    expected, of_lists = model.transform(ROWS), model.transform(history=lists)
    names = model.get_feature_names_out()
    assert len(names) == expected.shape[1] and names[1] == "interactionrecommender1"
    chosen = clone(model).set_output(transform=library).fit(X)
    with config_context(transform_output=library):
        found = [(m.transform(X), m.transform(history=lists)) for m in (model, chosen)]
        assert_allclose(model.transform(history=lists[1]), of_lists[1], rtol=1e-5)
    # The recommender may return frames, too.
    inner = InteractionRecommender(clone(model.estimator).set_output(transform=library), value=None)
    assert_allclose(inner.fit(ROWS).transform(history=lists[1]), of_lists[1], rtol=1e-5)
    for embeddings, others in found:
        for frame, array in ((embeddings, expected), (others, of_lists)):
            assert isinstance(frame, frames.DataFrame) and list(frame.columns) == list(names)
            assert_allclose(frame.to_numpy(), array, rtol=1e-5)
        if library == "pandas":
            assert_array_equal(embeddings.index, X.index)


def test_embeddings_beside_other_columns(model):
    pandas = pytest.importorskip("pandas")
    X = pandas.DataFrame(ROWS, columns=["user", "item", "value"])
    columns = make_column_transformer((clone(model), ["user", "item"]), (Binarizer(), ["value"]))
    found = columns.set_output(transform="pandas").fit_transform(X)
    assert_array_equal(found.columns, columns.get_feature_names_out())
    assert_array_equal(found.iloc[:, :-1], model.transform(ROWS))


def test_embeddings_of_the_autoencoder_are_those_of_histories():
    model = InteractionRecommender(VAE, value=None).fit(ROWS)
    histories = [[item for user, item, *_ in ROWS if user == name] for name in USERS]
    looked_up = model.transform([(name, "tea", 1) for name in USERS])
    assert_allclose(model.transform(history=histories), looked_up, rtol=1e-5, atol=1e-6)


def test_what_the_default_recommender_has_is_there():
    model = InteractionRecommender(value=None).fit(ROWS)
    explanation = model.explain("ann", "egg")
    assert sorted(explanation.history) == ["jam", "tea"]
    assert_allclose(explanation.score, model.predict_pairs(["ann"], ["egg"])[0], rtol=1e-4)
    assert model.transform(ROWS).shape == (len(ROWS), 128)
    assert len(model.export_vectors()[1]) == len(ITEMS)
    for name in ("transform", "fit_transform", "set_output", "export_vectors"):
        assert not hasattr(InteractionRecommender(Counting()), name)
    with pytest.raises(AttributeError) as error:
        InteractionRecommender(Counting()).export_vectors()
    assert "'Counting' object has no" in str(error.value.__cause__)
    assert hasattr(InteractionRecommender(Counting()), "explain")


# Callbacks.


class Recorder:
    """Counts calls of its methods."""

    def __init__(self):
        self.told = []

    def setup(self, estimator, context):
        self.told.append("setup")

    def teardown(self, estimator, context):
        self.told.append("teardown")

    def on_fit_task_begin(self, estimator, context):
        pass

    def on_fit_task_end(self, estimator, context):
        self.told.append((type(estimator).__name__, context.task_name))


class Propagated(Recorder):
    """One that searches hand on."""

    max_propagation_depth = None


def test_callbacks_reach_the_recommender():
    pytest.importorskip("sklearn.callback")
    recorder, given = Recorder(), Recorder()
    model = InteractionRecommender(clone(SMALL).set_callbacks(given), value=None)
    model.set_callbacks(recorder).fit(ROWS)
    told = ["setup", *[("MFRecommender", "epoch")] * 3, ("MFRecommender", "fit"), "teardown"]
    assert recorder.told == given.told == told
    # Callbacks that were passed on are removed again.
    assert model.estimator_._skl_callbacks == [given]
    assert clone(model).set_callbacks().fit(ROWS) and recorder.told == told


def test_callbacks_of_a_search_reach_the_recommender():
    pytest.importorskip("sklearn.callback")
    recorder = Propagated()
    search = GridSearchCV(
        InteractionRecommender(SMALL, value=None),
        {"estimator__max_iter": [1, 2]},
        cv=WarmStartKFold(2, random_state=0),
    )
    search.set_callbacks(recorder).fit(ROWS * 3)
    assert recorder.told.count(("MFRecommender", "epoch")) >= 2 * 1 + 2 * 2
    assert recorder.told.count("setup") == recorder.told.count("teardown") == 1
    assert "_skl_callbacks" not in vars(search.best_estimator_.estimator_)


def test_checkpoints_of_the_recommender_inside(tmp_path, monkeypatch):
    path = tmp_path / "model.checkpoint"
    whole = InteractionRecommender(SMALL, value=None).fit(ROWS)
    with monkeypatch.context() as patch:
        run = MFTrainer.run_epoch

        def killed(task, epoch):
            if epoch == 2:
                raise KeyboardInterrupt
            return run(task, epoch)

        patch.setattr(MFTrainer, "run_epoch", killed)
        with pytest.raises(KeyboardInterrupt):
            InteractionRecommender(SMALL, value=None).set_callbacks(Checkpoint(path)).fit(ROWS)
    assert resume(path).n_iter_ == 2
    model = InteractionRecommender(resume(path), value=None).fit(ROWS)
    assert_array_equal(model.estimator_.item_factors_, whole.estimator_.item_factors_)
    assert_array_equal(model.recommend()[0], whole.recommend()[0])
    with pytest.raises(ValueError, match="X is not that of the fit to be resumed"):
        InteractionRecommender(resume(path), value=None).fit(ROWS[1:])


def test_callbacks_that_cannot_be_passed_on():
    pytest.importorskip("sklearn.callback")
    with pytest.raises(TypeError, match="Counting does not support callbacks"):
        InteractionRecommender(Counting()).set_callbacks(Recorder()).fit(ROWS)
