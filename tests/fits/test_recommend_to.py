"""Lists of all users in a folder of Parquet files: rows, continued calls, and what is refused."""

import pickle
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
from fake_recommender import Counting
from helpers import each, weighted_interactions
from numpy.testing import assert_array_equal
from processes import python

from freqfm import (
    ALSRecommender,
    BlendRecommender,
    EASERecommender,
    FastVAERecommender,
    InteractionRecommender,
    ItemKNNRecommender,
    MFRecommender,
    PopularityRecommender,
)
from freqfm.estimators.recommenders import to_parquet

pytest.importorskip("pyarrow")

N_USERS, N_ITEMS = 50, 30


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(to_parquet, "_USERS_OF_PART", 20)


@pytest.fixture(scope="module")
def X():
    return weighted_interactions(N_USERS, N_ITEMS)


@pytest.fixture(scope="module")
def als(X):
    return ALSRecommender(4, max_iter=2, random_state=0).fit(X)


def log_of(X, user=str, item=str):
    """Return a DataFrame of interactions whose ids are made by functions of numbers."""
    users, items = X.nonzero()
    columns = {"user": [user(u) for u in users.tolist()], "item": [item(i) for i in items.tolist()]}
    return pd.DataFrame({name: pd.Series(ids, dtype=object) for name, ids in columns.items()})


def read(folder):
    return pd.read_parquet(folder).sort_values(["user", "rank"], kind="stable", ignore_index=True)


def table_of(model, users, **options):
    """Return the table that the lists of ``recommend`` make."""
    items, scores = model.recommend(users=users, **options)
    at, ranks = np.nonzero(scores > -np.inf)
    users = np.asarray(users)[at]
    rows = {"user": users, "item": items[at, ranks], "rank": ranks + 1, "score": scores[at, ranks]}
    return pd.DataFrame(rows).sort_values(["user", "rank"], kind="stable", ignore_index=True)


def assert_same_table(found, expected):
    assert found.columns.tolist() == ["user", "item", "rank", "score"]
    assert found["rank"].dtype == np.int32 and found["score"].dtype == np.float32
    for name in found:
        assert_array_equal(found[name].to_numpy(object), expected[name].to_numpy(object))


MODELS = [
    ALSRecommender(4, max_iter=2, random_state=0),
    MFRecommender(4, max_iter=2, random_state=0),
    FastVAERecommender(4, hidden_layer_sizes=(4,), max_iter=1, random_state=0),
    EASERecommender(),
    ItemKNNRecommender(5),
    PopularityRecommender(),
    BlendRecommender([("knn", ItemKNNRecommender(5)), ("popular", PopularityRecommender())]),
]


@each("model", MODELS)
def test_rows_are_the_lists_of_recommend(X, tmp_path_factory, model):
    folder = tmp_path_factory.mktemp("lists") / "new" / "folder"
    model = model.fit(X)
    model.recommend_to(folder, n_recommendations=29)
    names = sorted(file.name for file in folder.iterdir())
    assert names == [f"part-0000{i}-of-00003.parquet" for i in range(3)]
    found = read(folder)
    assert_same_table(found, table_of(model, np.arange(N_USERS), n_recommendations=29))
    assert len(found) < 29 * N_USERS  # some users have fewer


@each(
    "users, options",
    [
        (None, {}),
        ([7, 3, 44], {"exclude_seen": False}),
        (7, {"n_recommendations": 3}),
        (np.arange(50)[::-1], {"candidates": [1, 2, 8], "exclude": [2]}),
        (None, {"candidates": [[u % 30, 5] for u in range(N_USERS)]}),
        (None, {"diversity": 0.5}),
        ([], {}),
    ],
)
def test_users_and_options_are_those_of_recommend(als, tmp_path_factory, users, options):
    folder = tmp_path_factory.mktemp("lists")
    als.recommend_to(folder, users, **options)
    asked = np.arange(N_USERS) if users is None else np.atleast_1d(users).astype(int)
    assert_same_table(read(folder), table_of(als, asked, **options))


def test_what_can_be_read_once_is_used_for_all_users(X, als, tmp_path):
    model = InteractionRecommender(als).fit(log_of(X))
    expected = table_of(model, model.user_ids_, candidates=["1", "2", "8"], exclude=["2"])
    options = {"candidates": iter(["1", "2", "8"]), "exclude": {"2"}}
    model.recommend_to(tmp_path / "some", (u for u in model.user_ids_), **options)
    assert_same_table(read(tmp_path / "some"), expected)
    of_each = [[f"{u % 30}", "5"] for u in range(len(model.user_ids_))]
    model.recommend_to(tmp_path / "each", candidates=of_each)
    assert_same_table(read(tmp_path / "each"), table_of(model, model.user_ids_, candidates=of_each))
    with pytest.raises(ValueError, match="candidates holds the items of 4 users"):
        model.recommend_to(tmp_path / "few", candidates=of_each[:4])


def test_exclusions_of_each_user_may_be_a_matrix(X, als, tmp_path):
    of_each = weighted_interactions(N_USERS, N_ITEMS, seed=1)
    als.recommend_to(tmp_path, exclude=of_each.tocoo())
    assert_same_table(read(tmp_path), table_of(als, np.arange(N_USERS), exclude=of_each))


@each(
    "user, item",
    [
        (str, str),
        (lambda u: u + 2**60, lambda i: i - 7),
        (lambda u: u / 4, lambda i: f"é{i}"),
        (lambda u: Decimal(u) / 8, str),
        (lambda u: f"{u}".encode(), lambda i: (f"{i}", "x")[i % 2]),
    ],
)
def test_ids_of_any_kind_are_written(X, tmp_path_factory, user, item):
    folder = tmp_path_factory.mktemp("lists")
    log = log_of(X, user, item)
    model = InteractionRecommender(PopularityRecommender()).fit(log)
    model.recommend_to(folder, n_recommendations=28)
    found, expected = read(folder), table_of(model, model.user_ids_, n_recommendations=28)
    assert_same_table(found, expected)
    assert type(found["user"][0]) is type(expected["user"][0])


def test_integers_keep_their_type(X, tmp_path):
    log = log_of(X, int, int).astype({"user": np.int16, "item": np.uint64})
    log["item"] += np.uint64(2**63)
    model = InteractionRecommender(PopularityRecommender()).fit(log)
    model.recommend_to(tmp_path, n_recommendations=28)
    assert read(tmp_path).dtypes.tolist() == [np.int16, np.uint64, np.int32, np.float32]
    assert_same_table(read(tmp_path), table_of(model, model.user_ids_, n_recommendations=28))


def test_unknown_users_and_other_recommenders_follow_recommend(X, tmp_path):
    model = InteractionRecommender(Counting(), unknown="none").fit(log_of(X))
    users = ["4", "nobody", "9"]
    model.recommend_to(tmp_path / "some", users, exclude=["1"], n_recommendations=4)
    expected = table_of(model, users, exclude=["1"], n_recommendations=4)
    assert_same_table(read(tmp_path / "some"), expected)
    assert set(expected["user"]) == {"4", "9"}
    model.recommend_to(tmp_path / "one", "4")
    assert set(read(tmp_path / "one")["user"]) == {"4"}


def test_a_context_for_all_users(X, tmp_path):
    log = log_of(X).assign(device=lambda log: np.where(np.arange(len(log)) % 2, "tv", "phone"))
    estimator = MFRecommender(4, max_iter=1, random_state=0)
    model = InteractionRecommender(estimator, context=["device"]).fit(log)
    model.recommend_to(tmp_path / "tv", context={"device": "tv"})
    expected = table_of(model, model.user_ids_, context={"device": "tv"})
    assert_same_table(read(tmp_path / "tv"), expected)
    with pytest.raises(ValueError, match="context has 2 rows"):
        model.recommend_to(tmp_path / "two", context={"device": ["tv", "phone"]})
    assert not (tmp_path / "two").exists()


def interrupted(model, path, n_calls, monkeypatch, **options):
    """Call ``recommend_to``, but interrupt a call of ``recommend``."""
    calls, recommend = [], type(model).recommend

    def counted(self, *args, **given):
        calls.append(1)
        if len(calls) == n_calls:
            raise KeyboardInterrupt
        return recommend(self, *args, **given)

    with monkeypatch.context() as patch:
        patch.setattr(type(model), "recommend", counted)
        model.recommend_to(path, **options)
    return len(calls)


def test_a_call_is_continued_where_it_was_interrupted(als, tmp_path, monkeypatch, capsys):
    with pytest.raises(KeyboardInterrupt):
        interrupted(als, tmp_path, 4, monkeypatch)
    before = {file: file.stat().st_mtime_ns for file in tmp_path.iterdir()}
    assert len(before) == 2 and all(file.suffix == ".parquet" for file in before)
    (tmp_path / f".part-00002-of-00003.parquet.{'0' * 32}.tmp").touch()
    # A copy from a file, with other threads.
    copy = pickle.loads(pickle.dumps(als)).set_params(n_jobs=1, verbose=2)
    # A look at the first user, and the last part.
    assert interrupted(copy, tmp_path, -1, monkeypatch) == 2
    assert {file: file.stat().st_mtime_ns for file in before} == before
    assert_same_table(read(tmp_path), table_of(als, np.arange(N_USERS)))
    assert not list(tmp_path.glob(".*"))
    assert "recommending to 50 users" in capsys.readouterr().out
    assert interrupted(als, tmp_path, -1, monkeypatch) == 1


KILLED = """
import os, signal, sys
import numpy as np
from helpers import weighted_interactions
from freqfm import PopularityRecommender
from freqfm.callbacks import _storage
from freqfm.estimators.recommenders import to_parquet

to_parquet._USERS_OF_PART = 20
replace, done = os.replace, []

def kill(*paths):
    done.append(1)
    if len(done) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    replace(*paths)

os.replace = kill
PopularityRecommender().fit(weighted_interactions(50, 30)).recommend_to(sys.argv[1])
"""


@pytest.mark.slow
def test_a_killed_process_leaves_whole_files_only(X, tmp_path):
    assert python(KILLED, str(tmp_path)).returncode == -9
    visible = [file.name for file in tmp_path.iterdir() if not file.name.startswith(".")]
    assert visible == ["part-00000-of-00003.parquet"]
    model = PopularityRecommender().fit(X)
    model.recommend_to(tmp_path)
    assert_same_table(read(tmp_path), table_of(model, np.arange(N_USERS)))


def test_lists_of_other_calls_are_not_mixed(X, als, tmp_path):
    als.recommend_to(tmp_path)
    before = read(tmp_path)
    other = ALSRecommender(4, max_iter=3, random_state=0).fit(X)
    cases = [
        (other, {}, "its model"),
        (als, {"users": np.arange(50)[::-1]}, "its users"),
        (als, {"n_recommendations": 9}, "its n_recommendations"),
        (als, {"exclude": [3]}, "its exclude"),
        (PopularityRecommender().fit(X), {}, "its model"),
    ]
    for model, options, match in cases:
        with pytest.raises(ValueError, match=f"lists of another call.*{match}.*new folder"):
            model.recommend_to(tmp_path, **options)
    als.recommend_to(tmp_path, n_recommendations=10, users=range(50))  # the same in other words
    to_parquet._USERS_OF_PART = 30
    with pytest.raises(ValueError, match="its size of files"):
        als.recommend_to(tmp_path)
    pd.testing.assert_frame_equal(read(tmp_path), before)


def test_what_cannot_be_written_is_refused_by_name(X, als, tmp_path):
    strange = tmp_path / "strange"
    strange.mkdir()
    (strange / "mine.parquet").write_text("data")
    with pytest.raises(ValueError, match=r"holds 'mine.parquet', which recommend_to has not"):
        als.recommend_to(strange)
    assert [file.name for file in strange.iterdir()] == ["mine.parquet"]
    named = tmp_path / "named"
    named.mkdir()
    pd.DataFrame({"a": [1]}).to_parquet(named / "part-00000-of-00003.parquet")
    with pytest.raises(ValueError, match="which recommend_to has not written"):
        als.recommend_to(named)
    (named / "part-00000-of-00003.parquet").write_text("cut")
    with pytest.raises(ValueError, match="is damaged .*remove it"):
        als.recommend_to(named)
    with pytest.raises(OSError, match=r"mine\.parquet"):
        als.recommend_to(strange / "mine.parquet")
    new = tmp_path / "new"
    cases = [
        ({"X": X}, TypeError, "takes no X"),
        ({"histories": [1]}, TypeError, "histories"),
        ({"users": [50]}, ValueError, "users"),
        ({"n_recommendations": 0}, ValueError, "n_recommendations"),
        ({"candidates": [[1], [2]]}, ValueError, "candidates holds the items of 2 users"),
        ({"exclude": X[:3]}, ValueError, "exclude holds the items of 3 users"),
        ({"diversity": 2}, ValueError, "diversity"),
    ]
    for options, error, match in cases:
        with pytest.raises(error, match=match):
            als.recommend_to(new, **options)
    with pytest.raises(TypeError, match="path=3"):
        als.recommend_to(3)
    with pytest.raises(ValueError, match="not fitted"):
        ALSRecommender().recommend_to(new)
    log = log_of(X, lambda u: 2**70 + u)
    model = InteractionRecommender(PopularityRecommender()).fit(log)
    with pytest.raises(TypeError, match=r"cannot hold the ids of users, such as 11805"):
        model.recommend_to(new)
    assert not new.exists()


def test_pyarrow_is_optional(als, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"pip install 'freqfm\[streams\]'"):
        als.recommend_to(tmp_path)
