"""Contributions to scores: that they add up, against all coalitions, and against shap."""

import copy
import functools
import itertools
import math
import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
from helpers import each
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import (
    ColumnTransformer,
    TransformedTargetRegressor,
    make_column_selector,
    make_column_transformer,
)
from sklearn.decomposition import NMF, PCA, TruncatedSVD
from sklearn.exceptions import NotFittedError
from sklearn.feature_extraction import DictVectorizer, FeatureHasher
from sklearn.feature_extraction.text import CountVectorizer, HashingVectorizer, TfidfTransformer
from sklearn.feature_selection import RFE, SelectFromModel, SelectKBest
from sklearn.frozen import FrozenEstimator
from sklearn.impute import SimpleImputer
from sklearn.model_selection import (
    FixedThresholdClassifier,
    GridSearchCV,
    RandomizedSearchCV,
    TunedThresholdClassifierCV,
)
from sklearn.pipeline import FeatureUnion, make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    KBinsDiscretizer,
    OneHotEncoder,
    OrdinalEncoder,
    PolynomialFeatures,
    SplineTransformer,
    StandardScaler,
)

import freqfm
from freqfm.estimators.fm import explanations
from freqfm.initializers import Normal

RNG = np.random.default_rng(0)
N_FEATURES = 6
ROWS = RNG.normal(size=(80, N_FEATURES)) * (RNG.random((80, N_FEATURES)) < 0.6)
ROWS[3] = 0
SPARSE = sparse.csr_array(ROWS)
MACHINES = [("FM", {"n_components": 3})]
FURTHER = [
    ("RaFM", {"ranks": (2, 4, 7), "rank_assignment": [2, 7, 4, 7, 2, 4]}),
    ("RaFM", {"ranks": (2, 4), "rank_assignment": [45], "rank_sharing": "truncate"}),
    ("FwFM", {"n_components": 3, "fields": [0, 1, 0, 2, 2, 1]}),
    ("FFM", {"n_components": 2, "fields": [0, 1, 0, 2, 2, 1]}),
    ("DeepFM", {"n_components": 3, "hidden_layer_sizes": (5, 4)}),
    ("DeepFM", {"n_components": 3, "fields": [0, 1, 0, 2, 2, 1]}),
    ("DeepFM", {"n_components": 3, "hidden_layer_sizes": ()}),
    ("NFM", {"n_components": 3, "hidden_layer_sizes": (4,)}),
]
# The number of classes is 0 in regressions.
CASES, SLOW = (
    [(*one, n) for one in machines for n in (0, 2, 3)] for machines in (MACHINES, FURTHER)
)
SLOW_SECOND_ORDER = [
    case for case in SLOW
    if case[0] not in ("DeepFM", "NFM") or case[1].get("hidden_layer_sizes") == ()
]  # fmt: skip


def fitted(name="FM", params=None, n_classes=2, X=SPARSE, **more):
    kind = "Classifier" if n_classes else "Regressor"
    y = RNG.permutation(np.arange(X.shape[0]) % n_classes) if n_classes else ROWS @ ROWS[0]
    options = {"max_iter": 3, "init": Normal(0.7), "early_stopping": False, "random_state": 0}
    options |= {"n_iter_no_change": None, "alpha_factors": 0.1, "optimizer": "adagrad"}
    model = getattr(freqfm, name + kind)(**options, **(params or {}), **more)
    return model.fit(X, y)


def scores(model, X):
    """Return the scores, (n_outputs, n_samples)."""
    return np.atleast_2d(getattr(model, "decision_function", model.predict)(X).T)


def parts(found):
    """Return contributions as dense arrays, (n_outputs, n_samples, n_columns), and base values."""
    values = found.contributions
    values = values if isinstance(values, list) else [values]
    values = np.array([v.toarray() if sparse.issparse(v) else np.asarray(v) for v in values])
    return values, np.atleast_1d(found.base_value)


def all_coalitions(score, x, background):
    """Return the Shapley values of the mean score with absent entries taken from a background."""
    n = len(x)
    present = np.array(list(itertools.product([False, True], repeat=n)))
    rows = np.where(present[:, None], x, background)
    worth = score(rows.reshape(-1, n)).reshape(-1, *rows.shape[:2]).mean(axis=2)
    sizes = present.sum(axis=1)
    found = np.zeros((len(worth), n))
    for i in range(n):
        without = np.flatnonzero(~present[:, i])
        weights = [1 / (n * math.comb(n - 1, size)) for size in sizes[without].tolist()]
        found[:, i] = (worth[:, without + 2 ** (n - 1 - i)] - worth[:, without]) @ weights
    return found


@each("name, params, n_classes", CASES, slow=SLOW)
def test_contributions_add_up(name, params, n_classes):
    model = fitted(name, params, n_classes)
    for background in (None, SPARSE[:20], ROWS[5:6]):
        values, base = parts(model.explain(SPARSE, background=background))
        # Scores are float32; some of NFM's are near 100.
        close = functools.partial(assert_allclose, rtol=1e-6, atol=1e-5)
        close(base[:, None] + values.sum(axis=2), scores(model, SPARSE))
        rows = np.zeros((1, N_FEATURES)) if background is None else background
        close(base, scores(model, rows).mean(axis=1))
        by_field, same = parts(model.explain(SPARSE, background=background, fields=list("abacbc")))
        assert_array_equal(base, same)
        for column, members in enumerate([[0, 2], [1, 4], [3, 5]]):
            assert_allclose(by_field[:, :, column], values[:, :, members].sum(axis=2), atol=1e-9)


@each("name, params, n_classes", CASES, slow=SLOW_SECOND_ORDER)
def test_shapley_values_are_exact(name, params, n_classes):
    model, background = fitted(name, params, n_classes), ROWS[10:17]
    values, _ = parts(model.explain(ROWS[:4], background=background))
    for x, found in zip(ROWS, values.transpose(1, 0, 2), strict=False):
        expected = all_coalitions(lambda rows: scores(model, rows), x, background)
        assert_allclose(found, expected, atol=1e-5)


def test_sums_of_columns_are_shapley_values_of_fields():
    model, background = fitted(), ROWS[10:17]
    groups = [[0, 2], [1, 4], [3, 5]]
    found = model.explain(ROWS[:3], background=background, fields=[0, 1, 0, 2, 1, 2])
    for x, values in zip(ROWS, found.contributions, strict=False):

        def score(chosen, x=x):
            chosen = chosen.astype(int)
            rows = np.empty((len(chosen), N_FEATURES))
            for group, source in zip(groups, chosen.T, strict=True):
                known = np.where(source[:, None] >= 0, background[source], x)
                rows[:, group] = known[:, group]
            return scores(model, rows)

        sources = np.repeat(np.arange(7.0)[:, None], 3, axis=1)
        assert_allclose(values, all_coalitions(score, -np.ones(3), sources)[0], atol=1e-5)


def test_labels_of_fields_may_be_a_column():
    model, labels = fitted(), ["a", "b", "a", "c", "b", "c"]
    expected = model.interaction_strengths(ROWS, fields=labels)
    for same in (pd.Series(labels), pd.Series(labels, dtype="category"), pd.Index(labels)):
        assert list(model.explain(ROWS, fields=same).names) == ["a", "b", "c"]
        assert list(model.feature_importances(ROWS, fields=same).names) == ["a", "b", "c"]
        found = model.interaction_strengths(ROWS, fields=same)
        for name in ("names", "effects", "field_names", "field_effects"):
            assert_array_equal(found[name], expected[name])


def test_plain_contributions_are_the_linear_term_and_half_of_each_interaction():
    model = fitted()
    W = model.factors_ @ model.factors_.T
    np.fill_diagonal(W, 0)
    expected = ROWS * (model.coef_ + ROWS @ W / 2)
    found = model.explain(ROWS)
    assert_allclose(found.contributions.toarray(), expected, atol=1e-5)
    assert_array_equal(found.contributions.indices, SPARSE.indices)
    assert isinstance(found.base_value, float) and found.base_value == model.intercept_[0]
    # One reference row of zeros is the same.
    zeros = np.zeros((1, N_FEATURES))
    found = model.explain(ROWS, background=zeros)
    assert_allclose(found.contributions.toarray(), expected, atol=1e-5)


@pytest.mark.slow
@each("name", ["DeepFM", "NFM"])
def test_deep_contributions_of_a_tower_without_a_bend_are_exact(name):
    model = fitted(name, {"n_components": 3, "hidden_layer_sizes": (4,)}, 0)
    model.layers_[0][:] = 0.1 * np.abs(model.layers_[0])
    # Large biases keep every unit active, so that the tower is linear in its input.
    model.layers_[0][-1] = 100
    found, _ = parts(model.explain(ROWS[:3], background=ROWS[10:15]))
    for x, values in zip(ROWS, found[0], strict=False):
        expected = all_coalitions(lambda rows: scores(model, rows), x, ROWS[10:15])[0]
        assert_allclose(values, expected, atol=1e-3)


def test_input_of_all_kinds(monkeypatch):
    model = fitted()
    background = ROWS[:9]
    expected, base = parts(model.explain(ROWS, background=background))
    for X in (
        SPARSE,
        SPARSE.tocoo(),
        sparse.csc_matrix(ROWS),
        ROWS.tolist(),
        np.asfortranarray(ROWS),
    ):
        found, same = parts(model.explain(X, background=sparse.csr_matrix(background)))
        assert_allclose(found, expected, atol=1e-12)
        assert_allclose(same, base)
    for at_once in (1, 17):
        monkeypatch.setattr(explanations, "_ENTRIES_AT_ONCE", at_once)
        for given in (background, None):
            found, _ = parts(model.explain(SPARSE, background=given))
            same = expected if given is not None else parts(fitted().explain(SPARSE))[0]
            assert found.shape == same.shape
        assert_allclose(parts(model.explain(SPARSE, background=background))[0], expected)
    for same in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert_array_equal(
            parts(same.explain(SPARSE, background=background))[0],
            parts(model.explain(SPARSE, background=background))[0],
        )
    integers = (ROWS > 0).astype(np.int8)
    assert_allclose(parts(model.explain(integers))[0].sum(axis=2) + model.intercept_,
                    scores(model, integers), atol=1e-5)  # fmt: skip


def test_weights_and_partial_fit():
    y = np.arange(80) % 2
    model = freqfm.FMClassifier(3, max_iter=2, random_state=0, init=Normal(1.0))
    for changed in (
        model.fit(SPARSE, y, sample_weight=RNG.random(80)),
        model.set_params(class_weight={0: 2}).partial_fit(SPARSE, y),
        freqfm.FMClassifier(3, fit_linear=False, fit_intercept=False).fit(SPARSE, y),
        freqfm.FMRegressor(3).fit(SPARSE, ROWS[:, 0]),
    ):
        values, base = parts(changed.explain(SPARSE))
        assert_allclose(base[:, None] + values.sum(axis=2), scores(changed, SPARSE), atol=1e-5)


@pytest.mark.slow
def test_predictions_that_are_no_scores():
    model = freqfm.FMRegressor(3, loss="poisson", max_iter=2, random_state=0).fit(
        SPARSE, np.abs(ROWS[:, 0])
    )
    values, base = parts(model.explain(SPARSE))
    assert_allclose(np.exp(base[0] + values[0].sum(axis=1)), model.predict(SPARSE), rtol=1e-5)


def test_frames():
    names = [f"c{k}" for k in range(N_FEATURES)]
    X = pd.DataFrame(ROWS, columns=names, index=[f"r{k}" for k in range(80)])
    for n_classes in (0, 3):
        model = fitted("FM", {}, n_classes, X=X)
        expected, _ = parts(model.explain(X))
        found = model.explain(X, as_frame=True)
        frame = found.contributions
        assert frame.index.equals(X.index) and list(found.names) == names
        assert_allclose(frame.to_numpy(), np.concatenate(expected, axis=1))
        assert list(frame[2] if n_classes else frame) == names
        frame = model.explain(X, fields=list("ppqqrr"), as_frame=True).contributions
        assert list(frame[1] if n_classes else frame) == ["p", "q", "r"]
        assert frame.index.equals(X.index)


def test_bad_arguments():
    model = fitted()
    for error, message, arguments in [
        (ValueError, "X has 3 features", {"X": np.eye(3)}),
        (ValueError, "background: .*3 features", {"background": np.eye(3)}),
        (ValueError, "background: .*0 sample", {"background": ROWS[:0]}),
        (ValueError, r"fields has shape \(2,\)", {"fields": [1, 2]}),
        (TypeError, "fields must hold", {"fields": np.ones(N_FEATURES)}),
        (ValueError, "fields has shape", {"fields": StandardScaler().fit(np.eye(3))}),
        (NotFittedError, "StandardScaler", {"fields": StandardScaler()}),
        (ValueError, "feature_names has the shape", {"feature_names": ["a"]}),
        (TypeError, "as_frame='no'", {"as_frame": "no"}),
    ]:
        with pytest.raises(error, match=message):
            model.explain(**{"X": ROWS, **arguments})
    with pytest.raises(NotFittedError):
        freqfm.FMClassifier().explain(ROWS)


TABLE = pd.DataFrame(
    {
        "site": RNG.choice(["a", "b", "c"], 200),
        "price": RNG.random(200),
        "device": RNG.choice(["phone", "desk"], 200),
        "age": RNG.integers(10, 80, 200).astype(float),
    }
)
CLICKED = (TABLE.site == "a") ^ (TABLE.device == "phone")


def encoders():
    tokens = make_pipeline(SimpleImputer(strategy="most_frequent"), OneHotEncoder())
    yield make_column_transformer(
        (tokens, ["site", "device"]), (StandardScaler(), ["age"]), remainder="passthrough"
    )
    yield make_column_transformer(
        (OneHotEncoder(drop="first"), [0, 2]), (StandardScaler(), slice(1, 4, 2))
    )
    yield freqfm.WithFields(make_column_transformer((OneHotEncoder(), ["site", "device", "age"])))
    yield make_pipeline(
        make_column_transformer(
            (OrdinalEncoder(), ["device", "site"]), ("passthrough", slice("price", "price"))
        ),
        OneHotEncoder(handle_unknown="ignore", max_categories=5),
    )


def test_explain_of_pipelines():
    table = TABLE.set_axis([f"r{k}" for k in range(200)])
    for encoder in encoders():
        machine = freqfm.FMClassifier(4, max_iter=3, random_state=0)
        pipeline = make_pipeline(encoder, machine).fit(table, CLICKED)
        for background in (None, table[:20]):
            found = freqfm.explain(pipeline, table, background=background, as_frame=True)
            assert found.contributions.index.equals(table.index)
            total = found.base_value + found.contributions.sum(axis=1)
            assert_allclose(total, pipeline.decision_function(table), atol=1e-5)
            arrays = freqfm.explain(pipeline, table, background=background)
            assert_array_equal(arrays.contributions, found.contributions)
    alone = fitted()
    found = freqfm.explain(alone, ROWS).contributions
    assert_array_equal(found.toarray(), alone.explain(ROWS).contributions.toarray())
    with pytest.raises(TypeError, match="needs a factorization machine.*got OneHotEncoder"):
        freqfm.explain(OneHotEncoder(), TABLE)
    with pytest.raises(NotFittedError):
        freqfm.explain(make_pipeline(OneHotEncoder(), freqfm.FMRegressor()), TABLE)


def test_original_columns():
    for encoder in encoders():
        X = encoder.fit_transform(TABLE)
        model = freqfm.FMClassifier(4, max_iter=3, random_state=0).fit(X, CLICKED)
        found = model.explain(X, fields=encoder, as_frame=True)
        assert set(found.names) <= set(TABLE.columns) and len(set(found.names)) >= 3
        total = found.base_value + found.contributions.sum(axis=1)
        assert_allclose(total, model.decision_function(X), atol=1e-5)


# Names of made columns are those of original ones, and of each other.
GOODS = pd.DataFrame(
    {
        "title": ["price", "go"] * 10,
        "body": ["go home", "red price"] * 10,
        "price": np.linspace(0, 1, 20),
        "age": np.arange(20.0) % 7,
        "site": list("aabbc") * 4,
        "time": pd.Timestamp("2026-01-01") + pd.to_timedelta(np.arange(20) % 2 * 25, "h"),
    }
)
SOLD = np.arange(20) % 3 == 0
NUMBERS = ["price", "age"]


class Same(TransformerMixin, BaseEstimator):
    """Knows nothing about its columns."""

    def fit(self, X, y=None):
        return self

    def transform(self, X):
        return np.asarray(X)


def hour_and_day(times):
    times = times.iloc[:, 0].dt
    return np.column_stack([times.hour, times.day])


def named_hour_and_day(times):
    return pd.DataFrame(hour_and_day(times), columns=["hour", "day"], index=times.index)


def numbers_of(table):
    return table[NUMBERS].to_numpy()


def records_of(table):
    return table[["site"]].to_dict("records")


def other_names(_, names):
    return [{"price": "euro", "age": "years"}[name] for name in names]


def columns(*parts, **options):
    names = "abcdef"
    return ColumnTransformer([(names[k], *part) for k, part in enumerate(parts)], **options)


def origins():
    """Yield encoders, and the original column of each column that they make."""
    words, spread = (CountVectorizer(), "title"), ("passthrough", ["price"])
    yield columns(words, spread), "go a__price price"
    yield columns(words, spread, verbose_feature_names_out=False), "go a__price price"
    yield columns(words, (CountVectorizer(), "body")), "a__go a__price b__go home b__price red"
    yield make_pipeline(columns(words, spread), TfidfTransformer(), SelectKBest(k=2)), "go price"
    yield FeatureUnion([("a", columns(words)), ("b", columns(spread))]), "go a__a__price price"
    yield (
        columns((columns(words), ["title"]), (columns(words), ["title"])),
        ("a__a__go a__a__price b__a__go b__a__price"),
    )
    parts = [(PCA(1), NUMBERS), (PCA(1), ["age", "price"]), (NMF(1), NUMBERS)]
    parts += [(TruncatedSVD(1), NUMBERS), (make_pipeline(StandardScaler(), PCA(1)), NUMBERS)]
    yield columns(*parts), "a__pca0 b__pca0 nmf0 truncatedsvd0 e__pca0"
    again = FeatureUnion([("p", "passthrough"), ("again", PCA(1)), ("no", "drop")])
    yield make_pipeline(columns((PCA(2), NUMBERS)), again), "a__pca0 pca1 again__pca0"

    # All that comes of one column is added to it, whatever the names and the transformers.
    splines = [(SplineTransformer(n), ["price"]) for n in (4, 3)]
    yield columns(*splines), " ".join(["price"] * 11)
    bins = KBinsDiscretizer(2, quantile_method="averaged_inverted_cdf")
    union = [("bins", bins), ("x", "passthrough"), ("poly", PolynomialFeatures(include_bias=False))]
    expected = "price price age age price age price age price price*age age"
    yield make_pipeline(columns(("passthrough", NUMBERS)), FeatureUnion(union)), expected
    rare = OneHotEncoder(min_frequency=5, handle_unknown="infrequent_if_exist")
    parts = [(rare, ["site"]), ("drop", ["age"]), (OneHotEncoder(drop="first"), ["title", "site"])]
    yield columns(*parts, spread), "site site site title site site price"
    short = OneHotEncoder(feature_name_combiner=lambda name, value: str(value))
    yield (
        FeatureUnion([("o", columns((short, ["site"]))), ("n", columns(spread))]),
        ("site site site price"),
    )
    parts = [(freqfm.WithFields(OneHotEncoder()), [False] * 4 + [True, False])]
    parts += [(SimpleImputer(), slice("price", "age")), (OrdinalEncoder(), lambda X: ["body"])]
    yield (
        columns(*parts, remainder=OneHotEncoder()),
        ("site site site price age body title title time time"),
    )
    floats = make_column_selector(dtype_include=float)
    yield (
        columns((StandardScaler(), floats), (OneHotEncoder(), [-2, 0])),
        ("price age site site site title title"),
    )

    # Functions, and transformers without names.
    log, by_name = FunctionTransformer(np.log1p), FunctionTransformer(feature_names_out=other_names)
    same = FunctionTransformer(np.asarray, feature_names_out="one-to-one")
    parts = [(log, NUMBERS), (same, NUMBERS), (Same(), ["age"]), (Same(), NUMBERS)]
    yield columns(*parts), "price age price age age same0 same1"
    yield columns((by_name.set_params(func=np.asarray), NUMBERS), spread), "euro years price"
    dates = make_pipeline(FunctionTransformer(hour_and_day), OneHotEncoder())
    yield columns((dates, ["time"]), spread), "time_0 time_0 time_1 time_1 price"
    dates = make_pipeline(FunctionTransformer(named_hour_and_day), OneHotEncoder())
    yield columns((dates, ["time"]), spread), "hour hour day day price"
    select = FunctionTransformer(lambda table: table[["site", "title"]])
    yield make_pipeline(select, OneHotEncoder()), "site site site title title"
    yield make_pipeline(select, Same(), OneHotEncoder()), "same0 same0 same0 same1 same1"
    yield FunctionTransformer(lambda table: table[NUMBERS]), "price age"
    wrong = FunctionTransformer(
        lambda table: table[["site"]].to_numpy(), feature_names_out="one-to-one"
    )
    yield make_pipeline(wrong, OneHotEncoder()), " ".join(["functiontransformer0"] * 3)
    unnamed = FunctionTransformer(numbers_of)
    yield (
        FeatureUnion([("o", columns((OneHotEncoder(), ["site"]))), ("f", unnamed)]),
        ("site site site functiontransformer0 functiontransformer1"),
    )
    hashes = HashingVectorizer(n_features=2)
    yield (
        columns((hashes, "title"), (hashes, "body"), spread),
        ("title_0 title_1 body_0 body_1 price"),
    )
    title = FunctionTransformer(lambda table: table["title"])
    members = [("a", hashes), ("b", hashes), ("c", CountVectorizer())]
    yield (
        make_pipeline(title, FeatureUnion(members)),
        (
            "a__hashingvectorizer0 a__hashingvectorizer1 "
            "b__hashingvectorizer0 b__hashingvectorizer1 go price"
        ),
    )
    records = FunctionTransformer(records_of)
    yield make_pipeline(records, DictVectorizer()), "site=a site=b site=c"
    yield (
        make_pipeline(records, FeatureHasher(2), TfidfTransformer()),
        "featurehasher0 featurehasher1",
    )


@each("encoder, expected", [*origins()][::5], slow=[*origins()])
def test_columns_are_grouped_by_origin_whatever_their_names(encoder, expected):
    labels = [label.replace("*", " ") for label in expected.split()]
    encoder = clone(encoder).fit(GOODS, SOLD)
    rows = encoder.transform(GOODS)
    machine = freqfm.FMClassifier(2, max_iter=2, init=Normal(0.5), random_state=0).fit(rows, SOLD)
    for background in (None, rows[:5]):
        found = machine.explain(rows, background=background, fields=encoder)
        right = machine.explain(rows, background=background, fields=labels)
        assert list(found.names) == list(right.names) == list(dict.fromkeys(labels))
        assert_array_equal(found.contributions, right.contributions)
    whole = freqfm.explain(make_pipeline(encoder, machine), GOODS, background=GOODS[:5])
    assert_array_equal(whole.names, right.names)
    assert_array_equal(whole.contributions, right.contributions)
    found = machine.feature_importances(rows, fields=encoder)
    right = machine.feature_importances(rows, fields=labels)
    assert_array_equal(found.names, right.names)
    assert_array_equal(found.importances, right.importances)
    found = machine.interaction_strengths(rows, fields=encoder, n_pairs=1000)
    right = machine.interaction_strengths(rows, fields=labels, n_pairs=1000)
    for name in ("features", "effects", "field_names", "field_effects", "share"):
        assert_array_equal(found[name], right[name])
    # Each feature has a name of its own.
    assert len(set(found.names.ravel())) == len(np.unique(found.features))


def test_names_of_features_without_names_of_scikit_learn():
    dates = make_pipeline(FunctionTransformer(hour_and_day), OneHotEncoder())
    encoder = columns((dates, ["time"]), ("passthrough", ["price"]))
    rows = encoder.fit_transform(GOODS)
    machine = freqfm.FMClassifier(2, max_iter=2, random_state=0).fit(rows, SOLD)
    found = machine.interaction_strengths(fields=encoder, n_pairs=100).names
    names = {"time_0_0", "time_0_1", "time_1_1", "time_1_2", "price"}
    assert set(found.ravel()) == names
    assert len(found) == 10 - 2  # without the pairs of two hours, and of two days


def test_unknown_columns_of_a_union_are_refused():
    unnamed = FunctionTransformer(numbers_of)
    pipeline = make_pipeline(
        FeatureUnion([("one", unnamed), ("two", unnamed)]), freqfm.FMClassifier(2, max_iter=1)
    ).fit(GOODS, SOLD)
    with pytest.raises(TypeError, match="members 'one', 'two' of a FeatureUnion do not tell how"):
        freqfm.explain(pipeline, GOODS)
    machine = fitted()
    for encoder in (FeatureUnion([("a", OneHotEncoder())]), make_pipeline(StandardScaler()), PCA()):
        with pytest.raises(NotFittedError):
            machine.explain(ROWS, fields=encoder)


def clicks_of(table, **params):
    encoder = columns((OneHotEncoder(handle_unknown="ignore"), ["site", "device"]))
    machine = freqfm.FMClassifier(3, max_iter=2, init=Normal(0.5), random_state=0, **params)
    return make_pipeline(encoder, machine)


def models_around():
    """Yield fitted models around a pipeline whose scores are those of the pipeline."""
    pipeline = clicks_of(TABLE)
    grid = {"fmclassifier__n_components": [2, 3]}
    tuned = TunedThresholdClassifierCV(pipeline, cv=2)
    for model in (
        FixedThresholdClassifier(pipeline, threshold=0.3),
        tuned,
        GridSearchCV(pipeline, grid, cv=2),
        RandomizedSearchCV(tuned, {"cv": [2, 3]}, n_iter=1, cv=2),
        TunedThresholdClassifierCV(GridSearchCV(pipeline, grid, cv=2), cv=2),
        make_pipeline("passthrough", FixedThresholdClassifier(pipeline)),
    ):
        yield model.fit(TABLE, CLICKED), model.decision_function
    pipeline.fit(TABLE, CLICKED)
    frozen = FrozenEstimator(pipeline)
    yield frozen, frozen.decision_function
    yield FixedThresholdClassifier(frozen).fit(TABLE, CLICKED), frozen.decision_function
    yield CalibratedClassifierCV(frozen).fit(TABLE, CLICKED), frozen.decision_function
    single = CalibratedClassifierCV(pipeline, cv=2, ensemble=False).fit(TABLE, CLICKED)
    yield single, pipeline.decision_function
    machine = freqfm.FMRegressor(3, max_iter=2, init=Normal(0.5), random_state=0)
    target = TransformedTargetRegressor(
        make_pipeline(pipeline[0], machine), transformer=StandardScaler()
    ).fit(TABLE, TABLE.age)
    yield target, target.regressor_.predict
    several = CalibratedClassifierCV(pipeline, cv=3).fit(TABLE, CLICKED)
    members = [part.estimator.decision_function for part in several.calibrated_classifiers_]
    yield several, lambda table: np.mean([member(table) for member in members], axis=0)


@pytest.mark.slow
def test_explain_of_models_around_a_pipeline():
    for model, score in models_around():
        for background in (None, TABLE[:20]):
            found = freqfm.explain(model, TABLE, background=background, as_frame=True)
            assert list(found.contributions) == list(found.names) == ["site", "device"]
            total = found.base_value + found.contributions.sum(axis=1)
            assert_allclose(total, score(TABLE), atol=1e-5)
    machines = CalibratedClassifierCV(freqfm.FMClassifier(2, max_iter=2), cv=2)
    machines.fit(ROWS, np.arange(80) % 3)
    found = freqfm.explain(machines, ROWS)
    values, base = parts(found)
    right = [parts(part.estimator.explain(ROWS)) for part in machines.calibrated_classifiers_]
    assert_allclose(values, np.mean([one for one, _ in right], axis=0), atol=1e-12)
    assert_allclose(base, np.mean([one for _, one in right], axis=0))


def test_models_that_cannot_be_explained_say_why():
    texts = [f"word{k}" for k in range(40)]
    pipeline = make_pipeline(CountVectorizer(), freqfm.FMClassifier(2, max_iter=1))
    calibrated = CalibratedClassifierCV(pipeline, cv=2).fit(texts, np.arange(40) % 2)
    with pytest.raises(ValueError, match="columns or classes that differ.*ensemble=False"):
        freqfm.explain(calibrated, texts)
    for model in (TunedThresholdClassifierCV(pipeline), CalibratedClassifierCV(pipeline),
                  TransformedTargetRegressor(pipeline), GridSearchCV(pipeline, {})):  # fmt: skip
        with pytest.raises(NotFittedError, match=type(model).__name__):
            freqfm.explain(model, texts)


@pytest.mark.slow
@each("name, params, n_classes", [case for case in CASES + SLOW_SECOND_ORDER if case[2] != 2])
def test_shap_agrees(name, params, n_classes):
    shap = pytest.importorskip("shap")
    model, background = fitted(name, params, n_classes), ROWS[10:17]
    score = getattr(model, "decision_function", model.predict)
    expected = shap.Explainer(score, background)(ROWS[:4], silent=True)
    values, base = parts(model.explain(ROWS[:4], background=background))
    found = np.transpose(expected.values.reshape(*expected.values.shape[:2], -1), (2, 0, 1))
    assert_allclose(values, found, atol=1e-5)
    assert_allclose(base, np.atleast_2d(expected.base_values[0]).ravel(), atol=1e-5)


@each("name, params", MACHINES, slow=FURTHER)
def test_shap_does_not_take_a_machine_for_a_linear_model(name, params):
    shap = pytest.importorskip("shap")
    model = fitted(name, params)
    message = r"only the linear part.*decision_function, background.*shap gets no coef_"
    for explainer, error in [(shap.Explainer, "not callable"), (shap.LinearExplainer, "unknown")]:
        with pytest.warns(UserWarning, match=message), pytest.raises(Exception, match=error):
            explainer(model, ROWS)


def test_feature_selection_by_coef_warns():
    y = np.arange(80) % 2
    model = fitted()
    with pytest.warns(UserWarning, match="only the linear part.*permutation_importance"):
        chosen = SelectFromModel(model, prefit=True, max_features=2).transform(ROWS)
    with pytest.warns(UserWarning, match="only the linear part"):
        RFE(freqfm.FMRegressor(2, max_iter=1), n_features_to_select=5).fit(ROWS, y)
    assert chosen.shape == (80, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert model.coef_.shape == (N_FEATURES,) and "coef_" in vars(model)
    with pytest.raises(AttributeError, match="'FMClassifier' object has no attribute 'coef_'"):
        _ = freqfm.FMClassifier().coef_


@each("name, params, n_classes", CASES, slow=SLOW)
def test_importances_are_mean_absolute_contributions(name, params, n_classes):
    model = fitted(name, params, n_classes)
    for fields in (None, list("abacbc")):
        for background in (None, ROWS[:9]):
            given = SPARSE if background is None else background
            expected, _ = parts(model.explain(SPARSE, background=given, fields=fields))
            found = model.feature_importances(ROWS, background=background, fields=fields)
            expected = np.abs(expected).mean(axis=1)
            expected = expected.T if n_classes == 3 else expected[0]
            assert_allclose(found.importances, expected, atol=1e-9)
            assert len(found.names) == len(expected)
