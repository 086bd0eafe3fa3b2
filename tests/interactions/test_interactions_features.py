"""InteractionRecommender with DataFrames of features by id."""

import pickle

import numpy as np
import pytest
from fake_recommender import Counting
from helpers import slow_params
from numpy.testing import assert_allclose, assert_array_equal
from purchases import frame
from sklearn import config_context
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from test_resume import Killed, Killing

from freqfm import InteractionRecommender, MFRecommender
from freqfm.backbones import Features, LightGCN
from freqfm.callbacks import resume
from freqfm.model_selection import WarmStartKFold

pytestmark = pytest.mark.filterwarnings("ignore:.*that fit has not seen")

pd = pytest.importorskip("pandas")

USERS = [f"u{k:02}" for k in range(40)]
ITEMS = [f"i{k:02}" for k in range(30)]
KINDS = ["tea", "rum", "egg"]


def log(n_users=36, n_items=24):
    """Return interactions of users with items of their kind."""
    pairs = [
        (USERS[u], ITEMS[i])
        for u in range(n_users)
        for i in range(n_items)
        if u % 3 == i % 3 and (u + i) % 5
    ]
    return pd.DataFrame(pairs, columns=["user", "item"])


def items(first=0, last=30):
    rows = range(first, last)
    return pd.DataFrame(
        {
            "item": [ITEMS[k] for k in rows],
            "kind": [KINDS[k % 3] for k in rows],
            "tags": [[KINDS[k % 3], f"tag {k % 2}"] for k in rows],
            "price": [0.1 * (k % 2) for k in rows],
        }
    )


def users(first=0, last=40):
    rows = range(first, last)
    return pd.DataFrame({"user": [USERS[k] for k in rows], "likes": [KINDS[k % 3] for k in rows]})


def fitted(X=None, **params):
    model = MFRecommender(4, max_iter=20, learning_rate=0.03, batch_size=64, random_state=0)
    return InteractionRecommender(model, **params).fit(log() if X is None else X)


def test_encoders_do_not_depend_on_the_output_of_transformers():
    plain = fitted(item_features=items()).recommend([USERS[0]])
    with config_context(transform_output="pandas"):
        model = fitted(item_features=items())
        assert_array_equal(model.recommend([USERS[0]])[0], plain[0])


def kinds_of(ids, prefix="i"):
    numbers = np.char.lstrip(np.asarray(ids, dtype=str), prefix).astype(int)
    return numbers % 3


def test_items_that_only_have_features_are_recommended():
    model = fitted(item_features=items())
    assert model.item_ids_.tolist() == ITEMS
    assert model.item_encoder_.get_feature_names_out().tolist() == [
        "kind=egg", "kind=rum", "kind=tea", "price", "tags=egg", "tags=rum", "tags=tag 0",
        "tags=tag 1", "tags=tea",
    ]  # fmt: skip
    F = model.estimator_.backbone.item_features.toarray()
    assert_allclose(F[4], [0, 1, 0, 0, 0, 1, 1, 0, 0])
    assert_allclose(F[5, 3], 0.1)
    found, _ = model.recommend(USERS[:36], candidates=ITEMS[24:], n_recommendations=2)
    assert (kinds_of(found) == np.arange(36)[:, None] % 3).mean() > 0.95
    assert kinds_of(model.similar_items("i29", 3)[0]).tolist() == [2, 2, 2]
    # Held-out interactions of new items count.
    held_out = pd.DataFrame({"user": ["u00", "u01"], "item": ["i24", "i25"]})
    assert model.set_params(n_recommendations=12).score(held_out) > 0


def test_users_that_only_have_features_get_items():
    model = fitted(user_features=users())
    found, _ = model.recommend(USERS[36:], n_recommendations=3)
    assert (kinds_of(found) == np.arange(36, 40)[:, None] % 3).mean() > 0.9


def test_users_and_items_out_of_the_model_are_recommended():
    model = fitted(item_features=items(0, 24), user_features=users(0, 36))
    assert model.item_ids_.tolist() == ITEMS[:24]
    new = items(24, 30).iloc[::-1]
    found, _ = model.recommend(["u00"], item_features=new, candidates=ITEMS[24:])
    assert set(found[0, :6]) == set(ITEMS[24:]) and found[0, 6] is None
    assert set(found[0, :2]) == {"i24", "i27"}
    whole = model.recommend("u01", item_features=new, exclude=["i00", "i29"], n_recommendations=28)
    assert not {"i00", "i29"} & set(whole[0]) and {"i24", "i28"} <= set(whole[0])
    found, _ = model.recommend(user_features=users(36, 40), n_recommendations=3)
    assert (kinds_of(found) == np.arange(36, 40)[:, None] % 3).mean() > 0.9
    found, _ = model.recommend(
        user_features=users(36, 38), item_features=new, candidates=ITEMS[24:]
    )
    assert set(found[0, :2]) == {"i24", "i27"}
    found, _ = model.recommend(history=["i00", "i03"], item_features=new, candidates=ITEMS[24:])
    assert set(found[:2]) == {"i24", "i27"}
    for exclude in (None, ["i26"], [["i26"], ["i27"]]):
        histories = [["i00", "i25"], ["i03", "i29"]]
        found, _ = model.recommend(
            history=histories, item_features=new, candidates=ITEMS[24:], exclude=exclude
        )
        for ids, history, other in zip(found.tolist(), histories, ["i26", "i27"], strict=True):
            left_out = {history[1], *([other] if np.ndim(exclude) == 2 else exclude or [])}
            assert set(ids) == {*ITEMS[24:], None} - left_out
    unknown, _ = model.recommend(["somebody"], item_features=new, n_recommendations=30)
    assert {*unknown[0]} == set(ITEMS)


def test_partial_fit_takes_new_ids_with_features():
    model = fitted(item_features=items(0, 24))
    rows = log(40, 30)
    more = rows[rows["item"].isin(ITEMS[24:27]) | rows["user"].isin(USERS[36:])]
    with pytest.warns(UserWarning, match=r"item_features has no row for 5 of 29 items, such as"):
        clone_of = pickle.loads(pickle.dumps(model)).partial_fit(more)
    assert len(clone_of.item_ids_) == 29
    model.set_params(item_features=items()).partial_fit(more)
    assert sorted(model.item_ids_) == ITEMS and model.user_ids_.tolist() == USERS
    found, _ = model.recommend(USERS[36:], n_recommendations=3, exclude_seen=False)
    assert (kinds_of(found) == np.arange(36, 40)[:, None] % 3).mean() > 0.9


@pytest.mark.parametrize("library", ["pandas", *slow_params(["polars", "pyarrow"])])
def test_frames_of_any_library(library):
    columns = {name: items()[name].tolist() for name in items()}
    columns["price"][3] = None
    expected = fitted(item_features=items().replace({"price": {0.1: 0.1}}))
    model = fitted(item_features=frame(library, columns))
    F, G = (m.estimator_.backbone.item_features.toarray() for m in (model, expected))
    G[3, 3] = 0
    assert_array_equal(F, G)


@pytest.mark.filterwarnings("ignore:item_features has no row for 12 of 27 items")
@pytest.mark.parametrize(
    "make",
    [
        lambda f: f.set_index("item"),
        lambda f: f.rename(columns={"item": "movieId"}),
        lambda f: f.set_index(pd.Index(f["item"].tolist())).drop(columns="item"),
        lambda f: f.rename(columns={"item": "item_id"}).iloc[::2].iloc[::-1],
        lambda f: f.rename_axis("row"),
    ],
    ids=["index", "usual name", "unnamed index", "some rows", "index of something else"],
)
def test_ids_are_found(make):
    model = InteractionRecommender(MFRecommender(4, max_iter=1), item_features=make(items()))
    assert set(model.fit(log()).item_ids_) >= set(ITEMS[:30:2])


def test_ids_are_in_an_index_named_as_in_the_interactions():
    # A column "item" would be one of ids, without that index.
    features = items().set_index(pd.Index(items()["item"], name="gadget")).assign(item="a thing")
    model = InteractionRecommender(MFRecommender(4), item="gadget", item_features=features)
    model.fit(log().rename(columns={"item": "gadget"}))
    assert model.item_ids_.tolist() == ITEMS


def test_cells():
    rows = pd.DataFrame(
        {
            "item": ["a", "b", "c"],
            "year": pd.Categorical([1995, 1996, None]),
            "words": [{"sea": 2.0}, {}, {"sky": 0.5}],
            "new": [True, False, True],
        }
    )
    X = [("u", "a"), ("v", "b"), ("v", "c")]
    model = InteractionRecommender(MFRecommender(2, max_iter=1), item_features=rows).fit(X)
    names = model.item_encoder_.get_feature_names_out().tolist()
    assert names == ["new", "words=sea", "words=sky", "year=1995", "year=1996"]
    F = model.estimator_.backbone.item_features.toarray()
    assert_allclose(F, [[1, 2, 0, 1, 0], [0, 0, 0, 0, 1], [1, 0, 0.5, 0, 0]])


# What makes a DataFrame of a table of pyarrow.
MAKERS = {
    "pandas": lambda table: table.to_pandas(),
    "pandas arrow": lambda table: table.to_pandas(types_mapper=pd.ArrowDtype),
    "polars": lambda table: pytest.importorskip("polars").from_arrow(table),
    "pyarrow": lambda table: table,
    "narwhals": lambda table: pytest.importorskip("narwhals").from_native(table),
}


@pytest.mark.parametrize("library", MAKERS)
def test_cells_mean_the_same_in_all_libraries(library):
    pa = pytest.importorskip("pyarrow")
    a_map = pa.map_(pa.string(), pa.float64())
    columns = {
        "item": ["a", "b", "c"],
        "struct": [{"abv": 0.4, "sugar": 2}, None, {"abv": None, "sugar": 1}],
        "map": pa.array([[("abv", 0.4), ("sugar", 2.0)], [], None], a_map),
        "tags": [["x", "y"], None, ["x"]],
        "years": [[1995, 1996], [], [1995]],
        "kind": pa.array(["tea", "rum", None]).dictionary_encode(),
        "price": pa.array([0.5, None, 1.0]),
        "count": [1, None, 3],
        "new": [True, None, False],
    }
    features = MAKERS[library](pa.table(columns))
    model = InteractionRecommender(MFRecommender(2, max_iter=1), item_features=features)
    model.fit([("u", "a"), ("v", "b"), ("v", "c")])
    names = "count kind=rum kind=tea map=abv map=sugar new price struct=abv struct=sugar tags=x "
    names += "tags=y years=1995 years=1996"
    assert model.item_encoder_.get_feature_names_out().tolist() == names.split()
    F = model.estimator_.backbone.item_features.toarray()
    assert_allclose(
        F,
        [
            [1, 0, 1, 0.4, 2, 1, 0.5, 0.4, 2, 1, 1, 1, 1],
            [0, 1, 0, 0.0, 0, 0, 0.0, 0.0, 0, 0, 0, 0, 0],
            [3, 0, 0, 0.0, 0, 0, 1.0, 0.0, 1, 1, 0, 1, 0],
        ],
    )


@pytest.mark.parametrize("library", ["pandas", "pandas arrow", "pyarrow"])
def test_numbers_of_categories_are_names(library):
    pa = pytest.importorskip("pyarrow")
    years = pa.array([1995, None, 1996]).dictionary_encode()
    features = MAKERS[library](pa.table({"item": ["a", "b", "c"], "year": years}))
    model = InteractionRecommender(MFRecommender(2, max_iter=1), item_features=features)
    model.fit([("u", "a"), ("v", "b"), ("v", "c")])
    assert model.item_encoder_.get_feature_names_out().tolist() == ["year=1995", "year=1996"]


@pytest.mark.parametrize("library", MAKERS)
def test_dates_are_no_features(library):
    pa = pytest.importorskip("pyarrow")
    numbers = pa.array([10**9, 2 * 10**9])
    for dtype in (
        pa.date64(), pa.time64("ns"), *map(pa.timestamp, ("s", "us", "ns")),
        pa.timestamp("ns", "UTC"), pa.duration("s"), pa.duration("ns"),
    ):  # fmt: skip
        values = numbers.cast(dtype)
        for column in (values, values.dictionary_encode()):
            features = MAKERS[library](pa.table({"item": ["a", "b"], "x": column}))
            model = InteractionRecommender(MFRecommender(2), item_features=features)
            with pytest.raises(TypeError, match="item_features holds .* in column 'x'; features a"):
                model.fit([("u", "a"), ("v", "b")])


def test_model_is_searched():
    model = InteractionRecommender(
        MFRecommender(4, max_iter=2, random_state=0, backbone="features"), item_features=items()
    )
    grid = {"estimator__backbone": [Features(), Features(identity=False, normalize=True)]}
    search = GridSearchCV(model, grid, cv=WarmStartKFold(2)).fit(log())
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    again = pickle.loads(pickle.dumps(search.best_estimator_))
    assert_array_equal(again.recommend("u00")[0], search.best_estimator_.recommend("u00")[0])
    assert clone(model).item_features.equals(items())


def test_fit_is_resumed(tmp_path):
    model = MFRecommender(4, max_iter=4, random_state=0)
    features = {"item_features": items(), "user_features": users()}
    expected = InteractionRecommender(model, **features).fit(log())
    with pytest.raises(Killed):
        clone(expected).set_callbacks(Killing(tmp_path / "model", 2)).fit(log())
    found = InteractionRecommender(resume(tmp_path / "model"), **features).fit(log())
    assert_array_equal(found.estimator_.item_factors_, expected.estimator_.item_factors_)


def test_what_features_need_is_reported():
    with pytest.warns(UserWarning, match=r"item_features has no row for 1 of 24 items.*\['i00'\]"):
        fitted(item_features=items(1, 24))
    for year, size in ((2000, 2000), (-1999, 1999)):
        with pytest.warns(UserWarning, match=f"column 'year' of item_features .* up to {size}"):
            fitted(item_features=items().assign(year=year))
    model = fitted(item_features=items(0, 24))
    with pytest.warns(UserWarning, match=r"1 feature\(s\) that fit has not seen: \['kind=new'\]"):
        model.recommend("u00", item_features=items(24, 25).assign(kind="new"))


def test_missing_values_in_lists_and_dicts_are_no_features():
    cells = [["a", None], [np.nan, "b"], {"x": None}, {"x": 2.0, "y": np.nan}]
    table = items(0, 28).assign(cell=cells * 7)[["item", "cell"]]
    model = fitted(item_features=table)
    assert model.item_encoder_.get_feature_names_out().tolist() == ["cell=a", "cell=b", "cell=x"]


def test_features_that_cannot_be_used_are_refused():
    def refused(message, error=ValueError, X=None, estimator=None, **features):
        with pytest.raises(error, match=message):
            InteractionRecommender(estimator, **features).fit(log() if X is None else X)

    refused("item_features must be a DataFrame", TypeError, item_features=np.eye(24))
    refused(
        "item_features has no column of item ids among .'kind'", item_features=items()[["kind"]]
    )
    refused(
        r"item_features has several rows for \['i03'\]",
        item_features=pd.concat([items(), items(3, 4)]),
    )
    refused("holds datetime.* in column 'since'; features are", TypeError,
            item_features=items().assign(since=pd.Timestamp("2020-01-01")))  # fmt: skip
    for cell in ({"x": "y"}, {"x": np.inf}, np.inf, 1e300, -(10**400), {"x": 1e39}, 1j, b"a"):
        refused("item_features holds .* in column 'cell'; features are finite numbers", TypeError,
                item_features=items().assign(cell=pd.Series([cell] * 24, dtype="O")))  # fmt: skip
    refused("the ids of item_features holds ids such as 0, of another kind", TypeError,
            item_features=pd.DataFrame({"item": range(30), "kind": "a"}))  # fmt: skip
    refused("item_features holds no features", item_features=items()[["item"]])
    both = MFRecommender(backbone=Features(item_features=np.eye(24)))
    refused("item_features is given twice", estimator=both, item_features=items())
    for estimator in (Counting(), MFRecommender(backbone=LightGCN())):
        refused("item_features need a recommender whose backbone is Features",
                estimator=estimator, item_features=items())  # fmt: skip
    model = fitted(item_features=items(0, 24))
    with pytest.raises(ValueError, match="holds items that are in the model, such as .'i23'"):
        model.recommend("u00", item_features=items(23, 30))
    with pytest.raises(ValueError, match="user_features needs a model that was fitted with feat"):
        model.recommend(user_features=users())
    with pytest.raises(ValueError, match="users or user_features; both were given"):
        model.recommend("u00", user_features=users())
    with pytest.warns(UserWarning, match="item_features holds 1 feature.s. that fit has not seen"):
        found, _ = model.recommend(
            "u00",
            item_features=items(24, 25)[["item"]].assign(colour="red"),
            n_recommendations=25,
            exclude_seen=False,
        )
    assert "i24" not in found and found[0] is not None
