"""InteractionRecommender(context=...): tables whose columns describe the event."""

import pickle
import re
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pytest
from helpers import each
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.model_selection import cross_val_score

from freqfm import (
    ALSRecommender,
    FastVAERecommender,
    InteractionRecommender,
    MFRecommender,
)
from freqfm.model_selection import WarmStartKFold, holdout_interactions, make_ranking_scorer

MF = MFRecommender(8, max_iter=15, random_state=0, n_jobs=1)
COLUMNS = ["hour", "device"]


def made(n=800):
    """Return a table: the items of a user's group and hour."""
    rng = np.random.default_rng(0)
    users, k = rng.integers(0, 60, n), rng.integers(0, 3, n)
    items = 5 * ((users % 4) * 3 + k) + rng.integers(0, 5, n)
    return pd.DataFrame(
        {
            "user": [f"u{user}" for user in users],
            "hour": 8 * k,
            "item": [f"i{item}" for item in items],
            "device": np.where(k == 1, "phone", "pc"),
        }
    )


@pytest.fixture(scope="module")
def model():
    return InteractionRecommender(clone(MF), context=COLUMNS).fit(made()[:700])


def block(items):
    return [int(item[1:]) // 5 for item in np.ravel(items)]


def test_users_get_what_suits_the_moment(model):
    assert {name: of.tolist() for name, of in model.context_values_.items()} == {
        "hour": [0, 8, 16],
        "device": ["pc", "phone"],
    }
    options = {"exclude_seen": False, "n_recommendations": 5}
    ways = (
        {"hour": 8, "device": "phone"},
        pd.DataFrame({"device": ["phone"], "hour": [8]}),
        [[8, "phone"]],
    )
    found = [model.recommend("u3", context=way, **options) for way in ways]
    assert block(found[0][0]) == [3 * 3 + 1] * 5
    for items, scores in found[1:]:
        assert_array_equal(items, found[0][0])
        assert_array_equal(scores, found[0][1])
    # A row for each user, some of whom fit has not seen.
    table = pd.DataFrame({"hour": [0, 16, 0], "device": "pc"})
    with pytest.warns(UserWarning, match="users holds 1 id"):
        items, _ = model.recommend(["u3", "new", "u6"], context=table, **options)
    assert block(items[0]) == [3 * 3] * 5 and block(items[2]) == [2 * 3] * 5
    # All users, in one moment; users by their items.
    assert model.recommend(context=ways[0])[0].shape == (60, 10)
    items, _ = model.recommend(history=["i20", "i21"], context={"hour": 0, "device": "pc"})
    assert sum(of == 3 for of in block(items[:5])) >= 3
    # What a user has, in any context, is not recommended again.
    seen = set(made()[:700].query("user == 'u3'")["item"])
    assert not seen & set(model.recommend("u3", context=ways[0])[0])


@pytest.mark.slow
def test_tables_are_scored_in_their_context(model):
    test = made()[700:]
    scores = model.predict(test)
    row = test.iloc[[4]]
    assert_allclose(
        scores[4], model.predict_pairs(row["user"], row["item"], context=row[COLUMNS]), rtol=1e-5
    )
    other = {"hour": (row["hour"].item() + 8) % 24, "device": "pc"}
    assert scores[4] > model.predict_pairs(row["user"], row["item"], context=other)
    plain = InteractionRecommender(clone(MF), value=None).fit(made()[:700])
    assert model.score(test) > 1.1 * plain.score(test)
    assert make_ranking_scorer("recall", k=5)(model, test) > 0
    assert min(cross_val_score(clone(model), made(), cv=WarmStartKFold(2))) > 0.5
    history, held_out = holdout_interactions(made(), 0.2, random_state=0)
    assert list(history.columns) == list(held_out.columns) == list(made().columns)


def test_explanations_name_values_of_the_context(model):
    found = model.explain("u3", "i50", context={"hour": 8, "device": "phone"})
    assert set(found.context) == {"hour=8", "device=phone"} and min(found.context.values()) > 0
    parts = found.contributions.sum() + sum(found.context.values()) + found.rest
    assert_allclose(parts, found.score, rtol=1e-6)
    assert set(model.explain("u3", "i50").context) >= {"hour=0", "hour=8", "device=pc"}


@pytest.mark.slow
def test_unknown_and_missing_values_are_ignored(model):
    with pytest.warns(UserWarning, match=r"1 value\(s\) that fit has not seen: \['hour=99'\]"):
        found = model.recommend("u3", context={"hour": 99, "device": "pc"})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        missing = model.recommend("u3", context={"hour": None, "device": "pc"})
    assert_array_equal(found[0], missing[0])
    table = made()[700:]
    table.loc[table.index[0], "device"] = "tv"
    with pytest.warns(UserWarning, match="device=tv"):
        model.score(table)
    holes = made()
    holes.loc[holes.index[::3], "device"] = None
    again = InteractionRecommender(clone(MF), context=COLUMNS).fit(holes)
    assert again.context_values_["device"].tolist() == ["pc", "phone"]
    fast = clone(MF).set_params(max_iter=1)
    empty = InteractionRecommender(fast, context=COLUMNS).fit(made().assign(device=None))
    with pytest.warns(UserWarning, match="device=pc"):
        empty.recommend("u3", context={"hour": 8, "device": "pc"})
    assert empty.partial_fit(made()).context_values_["device"].tolist() == ["pc", "phone"]


def test_one_warning_names_all_that_is_unknown(model):
    strange, copy = {"hour": 99, "device": "tv"}, pickle.loads(pickle.dumps(model))
    calls = (
        lambda model: model.recommend(["u3", "v"], context=strange),
        lambda model: model.recommend(history=["j"], context=strange),
        lambda model: model.predict_pairs(["u3", "v"], ["i3", "i3"], context=strange),
        lambda model: model.predict(made(2).assign(user=["u3", "v"], **strange)),
        lambda model: model.explain("v", "i3", context=strange),
    )
    values = r"the context holds 2 value\(s\) .*'hour=99', 'device=tv'"
    for call in calls:
        for answer, message in ("popular", rf"1 id\(s\).*{values}"), ("none", values):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                call(copy.set_params(unknown=answer))
            found = [str(of.message) for of in caught if "seen" in str(of.message)]
            assert len(found) == 1 and re.search(message, found[0])
        with pytest.raises(ValueError, match="seen"):
            call(copy.set_params(unknown="error"))
    with pytest.raises(ValueError, match="hour=99"):
        copy.recommend("u3", context=strange | {"device": "pc"})


def test_what_a_fold_has_not_seen_is_ignored_in_scores(model):
    table, copy = made()[700:], pickle.loads(pickle.dumps(model)).set_params(unknown="error")
    new, missing = table.assign(hour=99), table.assign(hour=None)
    with pytest.warns(UserWarning, match="hour=99"):
        assert copy.score(new) == model.score(missing)


def test_partial_fit_adds_values(model):
    copy, new = pickle.loads(pickle.dumps(model)), made()[700:720].assign(hour=4, device="bag")
    before = [copy.recommend("u3", context={"hour": h, "device": "pc"}) for h in (0, 8, 16)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        copy.partial_fit(new)
        after = [copy.recommend("u3", context={"hour": h, "device": "pc"}) for h in (0, 8, 16)]
        copy.recommend("u3", context={"hour": 4, "device": "bag"})
        copy.partial_fit(made()[:40].assign(hour=2))
    assert copy.context_values_["hour"].tolist() == [0, 8, 16, 4, 2]
    shares = [len({*old[0]} & {*of[0]}) for old, of in zip(before, after, strict=True)]
    assert min(shares) >= 8
    names, table = copy._context_names, copy.estimator_.backbone_tables_["context_factors"]
    assert names == [f"hour={h}" for h in (0, 8, 16)] + [
        "device=pc", "device=phone", "hour=4", "device=bag", "hour=2",
    ]  # fmt: skip
    assert len(table) == 8 and table[5:].any(axis=1).all()
    assert "hour=2" in copy.explain("u0", "i0", context={"hour": 2, "device": "pc"}).context


def test_fitted_models_do_not_keep_the_queries_of_training(model):
    backbone = model.estimator_.backbone
    assert backbone.context is None and backbone.users is None
    assert len(pickle.dumps(model.estimator_.get_params())) < 5000
    again = pickle.loads(pickle.dumps(model)).partial_fit(made()[700:])
    assert again.estimator_.backbone.context is None
    context = {"hour": 8, "device": "pc"}
    assert again.recommend("u3", context=context)[0].shape == (10,)


@pytest.mark.slow
def test_contexts_work_with_the_rest():
    table = made()
    rows = table[["user", "item", "hour", "device"]].to_numpy(dtype=object)
    by_place = InteractionRecommender(clone(MF), context=[2, 3], value=None).fit(rows[:700])
    by_name = InteractionRecommender(clone(MF), context=COLUMNS).fit(table[:700])
    assert_array_equal(by_place.estimator_.item_factors_, by_name.estimator_.item_factors_)
    assert_array_equal(by_place.predict(rows[700:710]), by_name.predict(table[700:710]))
    again = InteractionRecommender(clone(MF), context=COLUMNS).fit(table[:700])
    again.partial_fit(pd.concat([table[700:], table[:1].assign(user="v", item="j")]))
    assert "v" in again.user_ids_ and again.recommend("v", context=[[8, "pc"]])[0].shape == (10,)
    groups = pd.DataFrame({"user": table["user"].unique()})
    groups["group"] = [f"g{int(user[1:]) % 4}" for user in groups["user"]]
    both = InteractionRecommender(
        clone(MF), context=["hour"], user_features=groups, value=None
    ).fit(table)
    new = pd.DataFrame({"user": ["new"], "group": ["g3"]})
    items, _ = both.recommend(user_features=new, context={"hour": 8}, n_recommendations=5)
    assert block(items) == [3 * 3 + 1] * 5
    stopped = InteractionRecommender(
        clone(MF).set_params(early_stopping=True, n_iter_no_change=None), context=COLUMNS
    ).fit(table[:700], X_val=table[700:])
    assert stopped.estimator_.validation_scores_.max() > 0.5
    assert stopped.estimator_._n_users == 60


def test_without_context_nothing_changes():
    table = made()
    plain = InteractionRecommender(clone(MF), value=None).fit(table)
    none = InteractionRecommender(clone(MF), value=None, context=None).fit(table)
    X = plain._matrix(*(plain._find(r, table[r], r) for r in ("user", "item")), np.ones(800))
    direct = clone(MF).fit(X)
    for model in plain.estimator_, none.estimator_:
        assert_array_equal(model.user_factors_, direct.user_factors_)
    assert not hasattr(plain, "context_values_") and not hasattr(direct, "_context_totals")


@each(
    "params, kind, message",
    [
        ({"context": "hour"}, TypeError, "must be a list of columns"),
        ({"context": ["nope"]}, ValueError, "context='nope' is not a column of X"),
        ({"context": ["user"]}, ValueError, "names column 0 of X, which is read as another"),
        ({"context": ["hour", "hour"]}, ValueError, "names column 1"),
        ({"estimator": ALSRecommender(4)}, ValueError, "context need.* got ALSRecommender"),
        ({"estimator": FastVAERecommender(4)}, ValueError, "context need.* got FastVAE"),
    ],
)
def test_what_cannot_be_used_is_refused(params, kind, message):
    with pytest.raises(kind, match=message):
        InteractionRecommender(**{"context": ["hour"], "value": None} | params).fit(made())


def assert_same_lists(found, expected):
    for one, other in zip(found, expected, strict=True):
        assert_array_equal(one, other)


def test_a_context_is_taken_in_any_form(model):
    users, row = ["u3", "u8"], {"hour": 8, "device": "pc"}
    first = model.recommend(users, context=pd.DataFrame([row]))
    rows = pd.DataFrame([row, {"hour": 16, "device": None}])
    both = model.recommend(users, context=rows)
    assert (both[1] != first[1]).any()
    for one in (
        [8, "pc"],
        (8, "pc"),
        [[8, "pc"]],
        np.array([8, "pc"], dtype=object),
        row,
        [row],
        pd.Series(row),
        pd.Series({"device": "pc", "user": "u3", "hour": 8}),
        pl.DataFrame([row]),
        {"hour": [8, 8], "device": "pc"},
    ):
        assert_same_lists(model.recommend(users, context=one), first)
        pairs = model.predict_pairs(users, ["i3", "i4"], context=one)
        assert_array_equal(pairs, model.predict_pairs(users, ["i3", "i4"], context=row))
    for many in (rows.to_dict("records"), rows.to_dict("list"), rows.to_numpy().tolist()):
        assert_same_lists(model.recommend(users, context=many), both)
    assert len(model.predict_pairs("u3", "i3", context=row)) == 1
    shares = model.explain("u3", "i3", context=row).context
    assert shares == model.explain("u3", "i3", context=[8, "pc"]).context
    hours = InteractionRecommender(clone(MF), context=["hour"], value=None).fit(made())
    expected = hours.recommend(users, context={"hour": [8, 16]})
    for column in ([8, 16], np.array([8, 16]), pd.Series([8, 16], name="hour"), pl.Series([8, 16])):
        assert_same_lists(hours.recommend(users, context=column), expected)
    assert_same_lists(hours.recommend("u3", context=8), hours.recommend("u3", context=[[8]]))


def test_no_users_get_no_lists_in_a_context(model):
    for context in (
        made()[:0],
        made()[:0][COLUMNS],
        np.zeros((0, 2)),
        [],
        {"hour": 8, "device": []},
    ):
        assert [of.shape for of in model.recommend([], context=context)] == [(0, 10)] * 2
        assert model.predict_pairs([], [], context=context).shape == (0,)
        with pytest.raises(ValueError, match="context has 0 rows, but there are 1 users"):
            model.recommend("u3", context=context)
    matrix = model.estimator_
    for context in (np.zeros((0, 5)), np.zeros((1, 5))):
        assert [of.shape for of in matrix.recommend(users=[], context=context)] == [(0, 10)] * 2


def test_malformed_contexts_are_refused(model):
    plain = InteractionRecommender(clone(MF), value=None).fit(made())
    cases = (
        (plain, {"hour": 8}, "fitted with context"),
        (model, {"hour": 8}, r"context has no \['device'\]"),
        (model, [[8]], "has 1 columns, but the model has"),
        (model, pd.DataFrame({"hour": [8]}), "'device' is not a column"),
        (model, [[8, "pc"]] * 3, "has 3 rows, but there are 1 users"),
        (model, {"hour": "eight", "device": "pc"}, "hour"),
        (model, 8, r"context=8 must hold a row of \['hour', 'device'\]"),
        (model, [[8, "pc"], [8]], r"context=\[\[8, 'pc'\], \[8\]\] must hold a row of"),
        (model, [{"hour": 8}, 8], r"context=\[\{'hour': 8\}, 8\] must hold a row of"),
        (model, [{"hour": 8}], r"context has no \['device'\]"),
        (model, {8, "pc"}, "must hold a row of"),
        (model, pd.Series([8, 16], name="hour"), "must hold a row of"),
        (model, {"hour": [8, 8], "device": ["pc"] * 3}, "context has columns of 2 and 3 values"),
        (model, pl.DataFrame({"hour": [8]}).lazy(), "context of type LazyFrame"),
        (model, pd.DataFrame([[8, 8]], columns=["hour"] * 2), "context has several columns"),
    )
    for given, context, message in cases:
        with pytest.raises((ValueError, TypeError), match=message):
            given.recommend("u3", context=context)
    with pytest.raises(ValueError, match="hour"):
        model.score(made()[["user", "item"]])
