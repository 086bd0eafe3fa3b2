"""Machines that take the fields of columns from an array, a callable, or rows that carry them."""

import pickle

import numpy as np
import pytest
from helpers import PENALTIES, WITH_FIELDS, assert_same_model, each
from numpy.testing import assert_array_equal
from scipy import sparse
from sklearn import config_context
from sklearn.base import clone, is_classifier
from sklearn.compose import ColumnTransformer, make_column_transformer
from sklearn.exceptions import NotFittedError
from sklearn.feature_selection import SelectKBest, VarianceThreshold
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import FeatureUnion, make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    KBinsDiscretizer,
    MaxAbsScaler,
    Normalizer,
    OneHotEncoder,
    StandardScaler,
)
from sklearn.utils.estimator_checks import check_estimator

from freqfm import (
    DeepFMClassifier,
    FFMClassifier,
    FMClassifier,
    FwFMClassifier,
    FwFMRegressor,
    WithFields,
    column_fields,
)
from freqfm._input.validation import canonical_csr
from freqfm.datasets import IncrementalOneHotEncoder, RowStream
from freqfm.estimators.fm.field_factors import _find_categories

EACH = pytest.mark.parametrize("cls", WITH_FIELDS)


@pytest.fixture(scope="module")
def table():
    """Rows of a rare and two other variables, so that each fold has other columns."""
    rng = np.random.default_rng(0)
    rows = np.column_stack([rng.integers(0, n, 300) for n in (200, 8, 5)])
    return rows, (rows[:, 1] + rows[:, 2]) % 2


def encoder_of():
    return OneHotEncoder(handle_unknown="ignore")


def machine(cls, **params):
    return cls(2, max_iter=2, random_state=0, **PENALTIES, **params)


@EACH
def test_folds_have_the_fields_of_their_own_columns(cls, table):
    rows, y = table
    model = make_pipeline(WithFields(encoder_of()), machine(cls))
    with pytest.raises(ValueError, match=r"fields has shape .* wrap the encoder in freqfm.WithF"):
        fields = column_fields(encoder_of().fit(rows))
        make_pipeline(encoder_of(), machine(cls, fields=fields)).fit(rows[:200], y[:200])
    assert np.isfinite(cross_val_score(model, rows, y, cv=3, error_score="raise")).all()
    grid = {
        f"{cls.__name__.lower()}__n_components": [2, 3],
        "withfields__encoder__min_frequency": [1, 2],
    }
    search = GridSearchCV(model, grid, cv=2, error_score="raise").fit(rows, y)
    assert_array_equal(np.unique(search.best_estimator_[-1].fields_), [0, 1, 2])


@EACH
def test_ways_to_give_fields_learn_the_same_model(cls, table):
    rows, y = table
    encoder = encoder_of().fit(rows)
    X, fields = encoder.transform(rows), column_fields(encoder)
    seen = []
    expected = machine(cls, fields=fields).fit(X, y)
    called = machine(cls, fields=lambda X: seen.append(X) or fields.astype(str)).fit(X, y)
    pipeline = make_pipeline(WithFields(encoder_of()), machine(cls)).fit(rows, y)
    assert_same_model(expected, called)
    assert_same_model(expected, pipeline[-1])
    assert len(seen) == 1 and seen[0] is X
    assert_array_equal(expected.fields_, fields)
    # Rows to predict need not carry fields, and may hold unknown categories.
    assert_array_equal(pipeline[-1].predict(X), expected.predict(X))
    pipeline.predict(rows[:3] + 1000)
    copied = pickle.loads(pickle.dumps(pipeline))
    assert_array_equal(copied.predict(rows), expected.predict(X))
    assert_array_equal(clone(pipeline).fit(rows, y).predict(rows), expected.predict(X))


@EACH
def test_fields_in_partial_fit_and_warm_starts(cls, table):
    rows, y = table
    encoder = WithFields(encoder_of()).fit(rows)
    X = encoder.transform(rows)
    first = {"classes": [0, 1]} if is_classifier(cls()) else {}
    for given in ({}, {"n_features": X.shape[1]}):
        model = machine(cls).partial_fit(X[:100], y[:100], **first, **given)
        assert_array_equal(model.fields_, encoder.fields_)
        assert model.partial_fit(X[100:], y[100:], **given).coef_.any()
        before = pickle.dumps(model.coef_)
        with pytest.raises(ValueError, match=r"fields differ from those|every column of X a field"):
            model.partial_fit(sparse.csr_array(X), y)
        with pytest.raises(ValueError, match="fields differ from those of the model"):
            model.set_params(fields=lambda X: np.arange(X.shape[1])).partial_fit(X, y)
        assert pickle.dumps(model.coef_) == before
    with pytest.raises(ValueError, match=r"X.fields has shape \(\d+,\), but X has 400 features"):
        machine(cls).partial_fit(X, y, **first, n_features=400)
    warm = machine(cls, warm_start=True).fit(X, y)
    assert_array_equal(warm.fit(X, y).fields_, encoder.fields_)


@EACH
def test_fields_of_streams(cls, table):
    rows, y = table
    encoder = IncrementalOneHotEncoder()
    stream = RowStream(
        lambda: iter([(rows[:150], y[:150]), (rows[150:], y[150:])]), encoder=encoder
    )
    model = machine(cls, fields=lambda stream: column_fields(stream.encoder)).fit(stream)
    assert_array_equal(model.fields_, column_fields(encoder))


@EACH
def test_what_is_not_fields_is_refused(cls, table):
    rows, y = table
    X = WithFields(encoder_of()).fit_transform(rows)
    for fields, error, message in (
        (lambda X: [0, 1], ValueError, r"fields\(X\) has shape \(2,\)"),
        (lambda X: np.ones(X.shape[1]), TypeError, r"fields\(X\) must hold integers or strings"),
        (lambda X: None, ValueError, r"fields\(X\) has shape \(\)"),
        (3, ValueError, "The 'fields' parameter"),
    ):
        with pytest.raises(error, match=message):
            machine(cls, fields=fields).fit(X, y)
    with pytest.raises(ValueError, match="X comes from WithFields, but what followed has lost"):
        machine(cls).fit(X + X, y)


@each(
    "labels, found",
    [
        ([1] * 8 + ["1"] * 5, "int beside str"),
        ([1] * 8 + ["a"] * 5, "int beside str"),
        (np.array([1] * 8 + ["1"] * 5, dtype=object), "int beside str"),
        ([b"a"] * 8 + ["a"] * 5, "bytes beside str"),
        ([1] * 8 + [True] * 5, "bool beside int"),
        ([True] * 13, "bool"),
        ([1] * 8 + [1.0] * 5, "float64"),
        ([1] * 8 + [1.5] * 5, "float64"),
    ],
)
def test_labels_of_fields_are_of_one_type(labels, found, table):
    rows, y = table
    X = encoder_of().fit_transform(rows[:, 1:])
    for given in (labels, lambda X: labels):
        with pytest.raises(TypeError, match=rf"fields.* must hold integers or str.*got {found}\."):
            machine(FwFMClassifier, fields=given).fit(X, y)
    with pytest.raises(TypeError, match=f"got {found}"):
        machine(FMClassifier).fit(X, y).explain(X, fields=labels)


@pytest.mark.slow
@each(
    "labels",
    [
        ["a"] * 8 + ["a\0"] * 5,
        (np.int64(3),) * 8 + (4,) * 5,
        [2] * 8 + [2**70] * 5,
        np.array([1] * 8 + [2] * 5, dtype=object),
        [np.str_("a")] * 8 + ["b"] * 5,
        ("Series", ["a"] * 8 + ["b"] * 5),
        ("Categorical", ["a"] * 8 + ["b"] * 5),
    ],
)
def test_labels_of_fields_of_any_container(labels, table):
    rows, y = table
    if len(labels) == 2:
        labels = getattr(pytest.importorskip("pandas"), labels[0])(labels[1])
    model = machine(FwFMClassifier, fields=labels).fit(encoder_of().fit_transform(rows[:, 1:]), y)
    assert_array_equal(model.fields_, [0] * 8 + [1] * 5)


def test_rows_carry_fields_through_selections(table):
    rows, y = table
    encoder = WithFields(make_column_transformer((encoder_of(), [1, 2]), (StandardScaler(), [0])))
    X = encoder.fit_transform(rows)
    assert X.dtype == np.float32 and X.shape == (300, 14)
    assert_array_equal(X.fields, np.repeat([0, 1, 2], [8, 5, 1]))
    assert_array_equal(X.fields, column_fields(make_pipeline(encoder)))
    mask = np.arange(14) % 2 == 0
    for part, expected in (
        (X[:10], X.fields), (X[[3, 1]], X.fields), (X[y == 1], X.fields),
        (X[:, 3:9], X.fields[3:9]), (X[:, mask], X.fields[mask]), (X[:2, [9, 0]], X.fields[[9, 0]]),
        (pickle.loads(pickle.dumps(X)), X.fields),
    ):  # fmt: skip
        assert_array_equal(part.fields, expected)
    assert X[2, 3] in (0, 1)
    best = SelectKBest(k=6).fit(X, y)
    assert_array_equal(best.transform(X).fields, X.fields[best.get_support()])
    assert list(encoder.get_feature_names_out()) == list(encoder.encoder_.get_feature_names_out())
    assert encoder.n_features_in_ == 3
    dense = WithFields(OneHotEncoder(sparse_output=False)).fit_transform(rows)
    assert_array_equal(dense.toarray(), encoder_of().fit_transform(rows).toarray())


FEW = [FFMClassifier, FwFMRegressor]
ALL_COLUMNS = slice(0, 2)


def mixed(n_rows=300):
    """Return two categories and a number, and targets."""
    rng = np.random.default_rng(1)
    rows = np.column_stack([rng.integers(0, n, n_rows) for n in (6, 4)])
    return np.column_stack([rows, rng.standard_normal(n_rows)]), rows.sum(axis=1) % 2


def column_transformer(encoder):
    return ColumnTransformer([("q", encoder, ALL_COLUMNS), ("n", StandardScaler(), [2])])


@each("cls", FEW)
@each(
    "steps",
    [
        [column_transformer(WithFields(OneHotEncoder()))],
        [column_transformer(WithFields(OneHotEncoder(sparse_output=False)))],
        [ColumnTransformer([("q", WithFields(OneHotEncoder()), ALL_COLUMNS)])],
        [FeatureUnion([("q", WithFields(OneHotEncoder())), ("n", StandardScaler())])],
        [WithFields(OneHotEncoder()), FunctionTransformer(sparse.csr_matrix, accept_sparse=True)],
        [WithFields(OneHotEncoder()), FunctionTransformer(lambda X: X.toarray())],
        [WithFields(OneHotEncoder()), FunctionTransformer(lambda X: X.T.T)],
        [
            WithFields(OneHotEncoder()),
            FunctionTransformer(lambda X: sparse.vstack([X, X])[: X.shape[0]]),
        ],
        [WithFields(OneHotEncoder()), FunctionTransformer(lambda X: sparse.hstack([X, X]))],
        [WithFields(OneHotEncoder()), FunctionTransformer(lambda X: X.multiply(X.mean(axis=0)))],
        [OneHotEncoder()],
        [OneHotEncoder(drop="first"), MaxAbsScaler()],
        [IncrementalOneHotEncoder(sparse_output=False)],
        [KBinsDiscretizer(4, strategy="uniform")],
    ],
)
def test_categories_whose_fields_are_lost_are_refused(cls, steps):
    rows, y = mixed()
    rows = rows if isinstance(steps[0], ColumnTransformer) else rows[:, :2]
    with pytest.raises(
        ValueError, match=r"columns \d+ to \d+ are categories of one variable.*Wrap"
    ):
        make_pipeline(*steps, machine(cls)).fit(rows, y)


@pytest.mark.slow
@each("cls", FEW)
def test_columns_that_are_fields_each_are_no_categories(cls):
    rng, (rows, y) = np.random.default_rng(2), mixed()
    flags = (rng.random((300, 40)) < 0.05).astype(float)
    flags[:, 0] = 1
    numbers = rng.standard_normal((300, 5))
    positive, negative = numbers.clip(min=0), (-numbers).clip(min=0)
    onehot = OneHotEncoder().fit_transform(rows[:, :2])
    for X in (flags, numbers, np.hstack([positive, negative]), onehot[:20], flags[:, :1]):
        model = machine(cls).fit(X, y[: X.shape[0]])
        assert_array_equal(model.fields_, np.arange(X.shape[1]))
    assert machine(cls, fields=range(10)).fit(onehot, y).fields_.max() == 9


@each("of_interest", [slice(0, 6), slice(6, 10)])
def test_categories_are_found_in_all_rows(of_interest):
    """A pair of categories in one row, however late, and columns that vary, are no one-hot code."""
    X = OneHotEncoder().fit_transform(mixed(50_000)[0][:, :2]).tocsr().astype(np.float32)
    X = canonical_csr(X[:, of_interest])
    assert _find_categories(X) == (0, X.shape[1] - 1)
    two = X.toarray()
    two[-1, :] = 1
    assert _find_categories(canonical_csr(two)) is None
    varied = X.toarray()
    varied[np.flatnonzero(varied[:, 1])[-1], 1] = 2
    first, last = _find_categories(canonical_csr(varied)) or (2, X.shape[1] - 1)
    assert (first, last) == (2, X.shape[1] - 1)


@pytest.mark.slow
@each("cls", FEW)
@each(
    "step",
    [
        FunctionTransformer(lambda X: X.copy()),
        FunctionTransformer(lambda X: abs(2 * X.astype(float))),
        FunctionTransformer(lambda X: X.tocsc()),
        FunctionTransformer(lambda X: X.tocsc().copy()[:, ::-1][:, ::-1].tocsr()),
        FunctionTransformer(lambda X: pickle.loads(pickle.dumps(X.tocsc()))),
        MaxAbsScaler(),
        StandardScaler(with_mean=False),
        Normalizer(),
        VarianceThreshold(0.01),
    ],
)
def test_steps_that_keep_columns_carry_their_fields(cls, step):
    rows, y = mixed()
    model = make_pipeline(WithFields(OneHotEncoder()), step, machine(cls)).fit(rows[:, :2], y)
    assert_array_equal(model[-1].fields_, np.repeat([0, 1], [6, 4]))
    model.predict(rows[:, :2])


@pytest.mark.slow
@each("cls", FEW)
@each(
    "encoder, widths",
    [
        (column_transformer(WithFields(OneHotEncoder())), [6, 4, 1]),
        (column_transformer(OneHotEncoder()), [6, 4, 1]),
        (
            FeatureUnion([
                ("q", column_transformer(OneHotEncoder())),
                ("all", "passthrough"),
                ("none", "drop"),
                ("n", StandardScaler()),
            ]),
            [6, 4, 1, 1, 1, 1, 1, 1, 1],
        ),
    ],
)  # fmt: skip
def test_fields_of_encoders_within_others(cls, encoder, widths):
    rows, y = mixed()
    model = make_pipeline(WithFields(encoder), machine(cls)).fit(rows, y)
    assert_array_equal(model[-1].fields_, np.repeat(np.arange(len(widths)), widths))
    assert_array_equal(column_fields(clone(encoder).fit(rows)), model[-1].fields_)
    model.predict(rows)


@pytest.mark.slow
@each("cls", [FFMClassifier, DeepFMClassifier])
@each("fields", [None, np.repeat([0, 1, 2], 5), list("aaaaabbbbbccccc")])
def test_rows_that_carry_other_fields_are_refused(cls, fields):
    rng = np.random.default_rng(0)
    rows = np.column_stack([rng.integers(0, 5, 300) for _ in range(3)])
    rows[:, 2] = np.minimum(rows[:, 2], 3 if isinstance(fields, list) else 4)
    y = (rows[:, 1] == rows[:, 2]).astype(int)
    X = WithFields(OneHotEncoder()).fit_transform(rows)
    fields = fields[:14] if isinstance(fields, list) else fields
    model = machine(cls, fields=fields).fit(X, y)
    expected = model.predict_proba(sparse.csr_array(X))
    for good in (X, X[:, :], X.tocsc()):
        assert_array_equal(model.predict_proba(good), expected)
    wrong = X[:, ::-1]
    before = pickle.dumps(model)
    for call in (
        model.predict,
        model.predict_proba,
        model.decision_function,
        model.explain,
        model.feature_importances,
        model.interaction_strengths,
        lambda X: model.explain(X[:, ::-1], background=X),
        lambda X: model.score(X.tocsc(), y),
        lambda X: model.partial_fit(X, y),
        lambda X: clone(model).fit(X[:, ::-1], y, X_val=X, y_val=y),
    ):
        with pytest.raises(ValueError, match="X carries fields other than those of the columns"):
            call(wrong)
    warm = clone(model).set_params(warm_start=True).fit(X, y)
    if fields is None:
        with pytest.raises(ValueError, match="X carries fields other than"):
            warm.fit(wrong, y)
    assert pickle.dumps(model) == before


@pytest.mark.slow
def test_fields_of_the_users_own_may_be_coarser_or_finer():
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 5, (300, 3))
    X = WithFields(OneHotEncoder()).fit_transform(rows)
    for fields in (["all"] * 15, ["a"] * 5 + ["b"] * 10, np.arange(15) + 7):
        machine(FFMClassifier, fields=fields).fit(X, rows[:, 0] > 2).predict(X)


@pytest.mark.slow
@each("cls", [FFMClassifier, DeepFMClassifier])
def test_fields_may_not_swap_their_labels(cls):
    rng = np.random.default_rng(0)
    X, y = rng.integers(0, 2, (300, 4)).astype(float), rng.integers(0, 2, 300)
    model = machine(cls, fields=list("aabb")).partial_fit(X, y, classes=[0, 1])
    for same, swapped in (("aabb", "bbaa"), ("xxyy", "yyxx"), ("yzzy", None)):
        if swapped:
            # Other labels are names for the same fields.
            model.set_params(fields=list(same)).partial_fit(X, y)
            assert_array_equal(model.fields_, [0, 0, 1, 1])
        with pytest.raises(ValueError, match="fields differ from those of the model"):
            model.set_params(fields=list(swapped or same)).partial_fit(X, y)


@pytest.mark.slow
def test_streams_of_categories_need_fields_and_validation_has_the_same(table):
    rows, y = table
    rows = rows[:, 1:]

    def stream(encoder, rows=rows):
        return RowStream(lambda: iter([(rows, y)]), encoder=encoder)

    for encoder in (OneHotEncoder().fit(rows), IncrementalOneHotEncoder()):
        with pytest.raises(ValueError, match=r"columns 0 to 7 are categories of one variable"):
            machine(FFMClassifier).fit(stream(encoder))
    encoder = WithFields(OneHotEncoder()).fit(rows)
    model = machine(FFMClassifier).fit(stream(encoder), X_val=stream(encoder))
    assert_array_equal(model.fields_, encoder.fields_)
    swapped = WithFields(OneHotEncoder()).fit(rows[:, ::-1])
    with pytest.raises(ValueError, match="X carries fields other than"):
        machine(FFMClassifier).fit(stream(encoder), X_val=stream(swapped, rows[:, ::-1]))


@pytest.mark.slow
@each("container", ["pandas", "polars"])
@each(
    "encoder",
    [
        OneHotEncoder(),
        OneHotEncoder(sparse_output=False),
        IncrementalOneHotEncoder(),
        IncrementalOneHotEncoder(sparse_output=False),
        ColumnTransformer([("o", OneHotEncoder(), ["a"])], remainder="passthrough"),
    ],
)
def test_output_in_frames_does_not_concern_rows_with_fields(container, encoder, table):
    pandas, _ = pytest.importorskip("pandas"), pytest.importorskip(container)
    rows, y = table
    frame = pandas.DataFrame(rows[:, 1:], columns=["a", "b"])
    expected = WithFields(clone(encoder)).fit_transform(frame)
    with config_context(transform_output=container):
        model = make_pipeline(WithFields(clone(encoder)), machine(FwFMClassifier)).fit(frame, y)
        X = model[0].transform(frame)
        model.predict(frame)
    assert_array_equal(X.toarray(), expected.toarray())
    assert_array_equal(X.fields, expected.fields)
    for part in (model, model[0]):
        with pytest.raises(ValueError, match=f"transform='{container}'.*rows of WithFields are sp"):
            part.set_output(transform=container)
        assert part.set_output(transform="default") is part


@pytest.mark.slow
def test_sklearn_compatible():
    check_estimator(WithFields(encoder_of()), on_skip=None)
    # Scikit-learn 1.6 subtracts a mean from integers in place.
    failing = {"check_positive_only_tag_during_fit": "needs scikit-learn 1.7"}
    encoder = WithFields(IncrementalOneHotEncoder())
    check_estimator(encoder, on_skip=None, expected_failed_checks=failing)


def test_a_union_needs_the_widths_of_other_members_than_encoders(table):
    """Encoders within tell their fields without names of what they get, other members do not."""
    shifted = make_pipeline(FunctionTransformer(lambda X: X + 1), encoder_of())
    encoder = WithFields(FeatureUnion([("one", shifted), ("two", shifted)])).fit(table[0])
    one = column_fields(clone(shifted).fit(table[0]))
    assert_array_equal(encoder.fields_, np.append(one, one + 3))
    for other in (FunctionTransformer(), make_pipeline(MaxAbsScaler(), FunctionTransformer())):
        union = FeatureUnion([("one", shifted), ("two", other)])
        with pytest.raises(TypeError, match="of a FeatureUnion does not tell how many columns"):
            WithFields(union).fit(table[0])


def test_encoders_whose_fields_are_not_known_are_refused(table):
    with pytest.raises(TypeError, match="got StandardScaler. Give fields as an array"):
        WithFields(StandardScaler()).fit(table[0])
    with pytest.raises(NotFittedError):
        WithFields(encoder_of()).transform(table[0])
