"""Machines with fields that get new columns, in fields that they have and in new ones."""

import copy
import pickle

import numpy as np
import pytest
from helpers import WITH_FIELDS, assert_same_model, classes_of, each
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from sklearn.preprocessing import OneHotEncoder

from freqfm import (
    DeepFMClassifier,
    FFMClassifier,
    FwFMClassifier,
    FwFMRegressor,
    WithFields,
    column_fields,
)
from freqfm._input.rows import FieldRows
from freqfm.datasets import IncrementalOneHotEncoder, RowStream
from freqfm.initializers import Initializer, Normal, XavierUniform
from freqfm.optimizers import OPTIMIZERS, Adam

pytestmark = pytest.mark.slow  # kernels of further families

# Columns of fields b, d and e; then more of them, and of a and c, which come earlier in order.
WIDE = np.array(list("bbbbdddeebdaac"))
N_KNOWN, NUMBERS = 9, [0, 0, 0, 0, 1, 1, 1, 2, 2, 0, 1, 3, 3, 4]


class Constant(Initializer):
    """The same vector for all, so that models with all columns from the start are equal."""

    def draw(self, shape, generator, counts=None):
        return np.full(shape, 0.1, dtype=np.float32)


def machine(cls, **params):
    return cls(**{"n_components": 3, "random_state": 0, "batch_size": 16, **params})


def chunk(n_columns, seed, n_rows=60):
    """Rows of one column of each field, and their targets."""
    rng = np.random.default_rng(seed)
    fields = WIDE[:n_columns]
    columns = [rng.choice(np.flatnonzero(fields == f), n_rows) for f in np.unique(fields)]
    X = np.zeros((n_rows, n_columns), dtype=np.float32)
    for of_field in columns:
        X[np.arange(n_rows), of_field] = 1
    return FieldRows.of(sparse.csr_array(X), fields), rng.integers(0, 2, n_rows)


def grown(cls, **params):
    """A model of a narrow chunk, and a copy that has grown but was not trained any more."""
    model = machine(cls, **params).partial_fit(*chunk(N_KNOWN, 0), **classes_of(cls))
    wide = copy.deepcopy(model)
    wide._grow(chunk(len(WIDE), 1)[0], len(WIDE))
    return model, wide


@each("cls", WITH_FIELDS)
@each("optimizer", ["cf_sgd", "adam", "rowwise_adagrad", "sgd"])
def test_what_a_model_has_does_not_change(cls, optimizer):
    model, wide = grown(cls, optimizer=optimizer, init=Normal(0.1))
    assert_array_equal(wide.fields_, NUMBERS)
    assert_array_equal(wide.intercept_, model.intercept_)
    for name in ("coef_", "token_counts_"):
        assert_array_equal(getattr(wide, name)[:N_KNOWN], getattr(model, name))
        assert not getattr(wide, name)[N_KNOWN:].any()
    at = np.ix_(range(N_KNOWN), range(3)) if wide.factors_.ndim == 3 else slice(N_KNOWN)
    assert_array_equal(wide.factors_[at], model.factors_)
    new = np.ones(wide.factors_.shape[:-1], dtype=bool)
    new[at] = False
    assert 0.05 < wide.factors_[new].std() < 0.2
    before, after = model._optimizer_state[0], wide._optimizer_state[0]
    for name, state in before.items():
        if state.size and name != "intercept":
            n_fields, n_now = (3, 5) if wide.factors_.ndim == 3 and state.ndim == 2 else (1, 1)
            old = state.reshape(N_KNOWN, n_fields, -1)
            now = after[name].reshape(len(WIDE), n_now, -1)
            assert_array_equal(now[:N_KNOWN, :n_fields], old)
            assert now.any() == old.any() and not now[:, n_fields:].any()
            assert name == "per_row" or not now[N_KNOWN:].any()
    X = chunk(N_KNOWN, 2)[0]
    score = "decision_function" if hasattr(cls, "decision_function") else "predict"
    X_wide = sparse.csr_array((X.data, X.indices, X.indptr), shape=(60, len(WIDE)))
    assert_allclose(getattr(wide, score)(X_wide), getattr(model, score)(X), rtol=1e-5)


@each("optimizer", ["adam", "adagrad", "sgd"])
def test_new_weights_of_pairs_are_one(optimizer):
    model, wide = grown(FwFMClassifier, field_optimizer=optimizer, init=Normal(0.3))
    assert model.field_weights_[0, 1] != 1
    expected = np.ones((5, 5), dtype=np.float32)
    expected[:3, :3] = model.field_weights_
    assert_array_equal(wide.field_weights_, expected)
    known = [0, 1, 2, 5, 6, 9]  # Of the 15 pairs.
    for name, state in model._dense_state.items():
        if state.size:
            assert_array_equal(wide._dense_state[name][:, known], state)
            assert np.count_nonzero(wide._dense_state[name]) == np.count_nonzero(state)


@each("hidden", [(5,), (6, 4), ()])
@each("optimizer", ["adam", "sgd"])
def test_new_inputs_of_towers_are_drawn(hidden, optimizer):
    model, wide = grown(DeepFMClassifier, hidden_layer_sizes=hidden, layer_optimizer=optimizer)
    assert wide._layer_widths.tolist() == [15, *hidden]
    if not hidden:
        assert wide.layers_ == []
        return
    (first, *others), (old, *old_others) = wide.layers_, model.layers_
    assert_array_equal(first[[*range(9), 15]], old)
    bound = np.sqrt(6 / (15 + hidden[0]))
    assert 0.4 * bound < first[9:15].std() < 0.75 * bound and np.abs(first[9:15]).max() <= bound
    for layer, old_layer in zip(others, old_others, strict=True):
        assert_array_equal(layer, old_layer)
    for name, state in model._dense_state.items():
        assert wide._dense_state[name].size == (wide._dense.size if state.size else 0)
        assert_array_equal(wide._dense_state[name][wide._dense_state[name] != 0], state[state != 0])


@each("cls", [FFMClassifier, FwFMClassifier, DeepFMClassifier])
# FA-SGD knows the frequencies of the first call only.
@each("optimizer", [*sorted(OPTIMIZERS.keys() - {"fa_sgd"}), Adam(lazy=False)])
def test_grown_models_learn_as_those_with_all_columns_from_the_start(cls, optimizer):
    params = {"optimizer": optimizer, "init": Constant()}
    if cls is DeepFMClassifier:
        params["hidden_layer_sizes"] = ()
    chunks = [chunk(N_KNOWN, 0), chunk(11, 1), chunk(len(WIDE), 2), chunk(N_KNOWN, 3)]
    grows, expected = machine(cls, **params), machine(cls, fields=NUMBERS, **params)
    for X, y in chunks:
        # Rows that are narrower than the model.
        n = max(X.shape[1], getattr(grows, "n_features_in_", 0))
        X_wide = FieldRows.of(X, WIDE[:n])
        grows.partial_fit(X_wide, y, n_features=n, **classes_of(cls))
        expected.partial_fit(sparse.csr_array(X), y, n_features=len(WIDE), **classes_of(cls))
    assert_array_equal(grows.fields_, expected.fields_)
    # The sum over pairs of fields, of which there are more, is rounded in another order.
    tolerance = 1e-5 if cls is FwFMClassifier else 0
    models = [
        {name: vars(m)[name] for name in ("coef_", "factors_", "intercept_", "token_counts_")}
        | {"dense": getattr(m, "_dense", np.zeros(0))}
        | m._optimizer_state[0]
        for m in (grows, expected)
    ]
    for name, found in models[0].items():
        assert_allclose(found, models[1][name], rtol=tolerance, atol=tolerance, err_msg=name)


@each("cls", WITH_FIELDS)
def test_growth_is_the_same_by_any_number_of_threads_and_after_pickling(cls):
    models = [machine(cls, n_jobs=n, init=XavierUniform()) for n in (1, 2, 1)]
    y_of = (lambda y: y + 1) if "Regressor" in cls.__name__ else lambda y: y + np.arange(60) % 2
    given = {} if "Regressor" in cls.__name__ else {"classes": [0, 1, 2]}
    for n, seed in ((N_KNOWN, 0), (len(WIDE), 1), (len(WIDE), 2)):
        X, y = chunk(n, seed)
        models = [m.partial_fit(X, y_of(y), n_features=n, **given) for m in models]
        models[2] = pickle.loads(pickle.dumps(models[2]))
    for model in models[1:]:
        assert_same_model(model, models[0])
        assert_array_equal(model.fields_, NUMBERS)
        assert_array_equal(getattr(model, "_dense", 0), getattr(models[0], "_dense", 0))
    models[0].set_params(warm_start=True, max_iter=1).fit(X, y_of(y))


@each("cls", WITH_FIELDS)
def test_ways_to_give_the_fields_of_new_columns(cls):
    (X, y), (X_wide, y_wide) = chunk(N_KNOWN, 0), chunk(len(WIDE), 1)
    plain, plain_wide = sparse.csr_array(X), X_wide.toarray()
    carried = machine(cls).partial_fit(X, y, **classes_of(cls))
    carried.partial_fit(X_wide, y_wide, n_features=len(WIDE))
    called = machine(cls, fields=lambda X: WIDE[: X.shape[1]])
    called.partial_fit(plain, y, **classes_of(cls))
    called.partial_fit(plain_wide, y_wide, n_features=len(WIDE))
    array = machine(cls, fields=NUMBERS[:N_KNOWN]).partial_fit(plain, y, **classes_of(cls))
    array.set_params(fields=NUMBERS).partial_fit(plain_wide, y_wide, n_features=len(WIDE))
    assert_same_model(called, carried)
    assert_same_model(array, carried)


@each("cls", WITH_FIELDS)
def test_growth_that_cannot_be(cls):
    (X, y), (X_wide, y_wide) = chunk(N_KNOWN, 0), chunk(len(WIDE), 1)
    model = machine(cls).partial_fit(X, y, **classes_of(cls))
    before = pickle.dumps(model)
    one_field_less = np.where(WIDE == "b", "d", WIDE)
    one_field_more = WIDE.copy()
    one_field_more[0] = "a"
    for rows, message in (
        (sparse.csr_array(X_wide), "fields differ from those of the model.*rows that carry the sa"),
        (FieldRows.of(X_wide, one_field_less), "fields differ from those of the model"),
        (FieldRows.of(X_wide, one_field_more), "fields differ from those of the model"),
        (FieldRows.of(X_wide, WIDE[:9]), r"X.fields has shape \(9,\), but X has 14 features"),
        (FieldRows.of(X_wide, None), "has lost the fields"),
    ):
        with pytest.raises(ValueError, match=message):
            model.partial_fit(rows, y_wide, n_features=len(WIDE))
    model.set_params(fields=list(WIDE[:N_KNOWN]))
    with pytest.raises(ValueError, match=r"fields has shape \(9,\), but X has 14 features"):
        model.partial_fit(X_wide, y_wide, n_features=len(WIDE))
    model.set_params(fields=None)
    with pytest.raises(ValueError, match="inconsistent numbers"):
        model.partial_fit(X_wide, y_wide[:5], n_features=len(WIDE))
    assert pickle.dumps(model) == before


def test_each_column_a_field_may_grow_to_the_most():
    X = np.random.default_rng(0).standard_normal((50, 6))
    model = FwFMRegressor(2, init=Normal(0.1), random_state=0).partial_fit(X[:, :4], X[:, 0])
    model.partial_fit(X, X[:, 0], n_features=6)
    assert model.field_weights_.shape == (6, 6)
    with pytest.raises(ValueError, match="every column of X a field, but X has 300 columns"):
        model.partial_fit(X, X[:, 0], n_features=300)


# Encoders that learn more categories.


def blocks_of(n_rows=400, size=50):
    rng = np.random.default_rng(0)
    rows = rng.zipf(1.5, (n_rows, 3)).astype(str).astype(object)
    y = (rows[:, 0] == rows[:, 1]).astype(int)
    return rows, [(rows[a : a + size], y[a : a + size]) for a in range(0, n_rows, size)]


@pytest.mark.slow
@each("cls", WITH_FIELDS)
def test_streams_carry_the_fields_of_encoders_that_grow(cls):
    rows, blocks = blocks_of()
    models = []
    for prefetch in (0, 2):
        encoder = WithFields(IncrementalOneHotEncoder())
        stream = RowStream(lambda: iter(blocks), encoder=encoder, chunk_size=40, prefetch=prefetch)
        model = machine(cls)
        widths = []
        for X, y in stream:
            assert_array_equal(X.fields, encoder.fields_[: X.shape[1]])
            model.partial_fit(X, y, n_features=X.shape[1], **classes_of(cls))
            widths.append(X.shape[1])
        assert widths[0] < widths[-1] == encoder.encoder_.n_features_out_
        assert_array_equal(model.fields_, column_fields(encoder))
        model.predict(encoder.transform(rows))
        models.append(model)
    assert_same_model(*models)


@pytest.mark.slow
@each("cls", WITH_FIELDS)
def test_fits_on_streams_take_the_fields_of_their_encoder(cls):
    rows, blocks = blocks_of()
    fits = []
    for encoder, fields in (
        (WithFields(IncrementalOneHotEncoder()), None),
        (IncrementalOneHotEncoder(), lambda stream: column_fields(stream.encoder)),
    ):
        stream = RowStream(lambda: iter(blocks), encoder=encoder, chunk_size=50)
        fits.append(machine(cls, fields=fields, max_iter=2).fit(stream))
    assert_same_model(*fits)
    stream.encoder = WithFields(OneHotEncoder(handle_unknown="ignore")).fit(rows)
    assert machine(cls, max_iter=1).fit(stream).fields_.max() == 2
    stream.n_features = 1000
    with pytest.raises(ValueError, match=r"X.encoder.fields_ has shape .* but X has 1000 features"):
        machine(cls, max_iter=1).fit(stream)


def test_encoders_with_fields_learn_from_more_rows():
    pandas = pytest.importorskip("pandas")
    encoder = WithFields(IncrementalOneHotEncoder()).partial_fit([["ann", "tea"], ["bob", "tea"]])
    assert_array_equal(encoder.fields_, [0, 0, 1])
    assert encoder.partial_fit([["eve", "jam"]]) is encoder
    X = encoder.transform([["eve", "tea"]])
    assert_array_equal(X.fields, [0, 0, 1, 0, 1])
    assert X.indices.tolist() == [2, 3]
    assert not hasattr(encoder.encoder, "columns_")
    assert not hasattr(WithFields(OneHotEncoder()), "partial_fit")
    # Fitting starts anew.
    assert_array_equal(encoder.fit([["eve", "jam"]]).fields_, [0, 1])
    frame = pandas.DataFrame({"user": ["ann"], "food": ["tea"]})
    assert WithFields(IncrementalOneHotEncoder()).partial_fit(frame).n_features_in_ == 2


def test_tables_of_files_are_encoded_with_fields(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = {"user": list("aabbc"), "day": [1, 2, 1, 3, 3], "click": [0, 1, 0, 1, 1]}
    parquet.write_table(pyarrow.table(table), tmp_path / "rows.parquet")
    encoder = WithFields(IncrementalOneHotEncoder())
    stream = RowStream.from_parquet(tmp_path / "rows.parquet", "click", encoder=encoder)
    for X, _ in stream:
        assert_array_equal(X.fields, [0, 0, 0, 1, 1, 1])
    assert encoder.feature_names_in_.tolist() == ["user", "day"]
    assert FFMClassifier(2, max_iter=1).fit(stream).fields_.max() == 1
