"""Learned attributes that fit did not leave: an error that names them, never a crash."""

import copy
import inspect
import itertools
import pickle
import tracemalloc
from pathlib import Path

import attacks
import joblib
import numpy as np
import pytest
from helpers import each, slow_params
from numpy.testing import assert_allclose, assert_array_equal
from processes import python
from scipy import sparse
from sklearn.base import clone

from freqfm import (
    ALSRecommender,
    DeepFMClassifier,
    FastVAERecommender,
    FFMClassifier,
    FMClassifier,
    FwFMClassifier,
    InteractionRecommender,
    MFRecommender,
    RaFMClassifier,
    Word2Vec,
)
from freqfm._input.ids import as_ids, find_codes
from freqfm._input.validation import LearnedArrays, as_kernel_array, as_kernel_input
from freqfm.datasets import make_interactions
from freqfm.initializers import Initializer
from freqfm.losses import MAWU
from freqfm.model_selection import make_ranking_scorer
from freqfm.optimizers import FASGD
from freqfm.samplers import SAMPLERS, QuerySampler, Uniform

X = make_interactions(30, 12, 180, random_state=0)


def documented(cls):
    """Return the names under "Attributes" of a class's docstring."""
    lines = inspect.getdoc(cls).partition("\nAttributes\n---")[2].partition("\n\n")[0]
    names = [line.partition(" : ")[0] for line in lines.splitlines() if " : " in line]
    return {name for line in names for name in line.split(", ")}


@pytest.mark.parametrize(
    "model",
    [
        *(cls(max_iter=2) for cls in (FMClassifier, RaFMClassifier, DeepFMClassifier)),
        *(cls(max_iter=2, fields=np.arange(12) % 3) for cls in (FFMClassifier, FwFMClassifier)),
        *(cls(max_iter=2) for cls in (MFRecommender, ALSRecommender, FastVAERecommender)),
        *slow_params([MFRecommender(max_iter=2, loss="mawu", backbone="lightgcn")]),
        MFRecommender(max_iter=2, early_stopping=True),
        InteractionRecommender(ALSRecommender(max_iter=2)),
        Word2Vec(min_count=1),
    ],
    ids=lambda model: type(model).__name__,
)
def test_learned_attributes_are_documented(model):
    if isinstance(model, Word2Vec):
        model.fit([["tea", "jam"], ["jam", "egg"]])
    elif isinstance(model, InteractionRecommender):
        model.fit(np.argwhere(X.toarray()))
    else:
        model.fit(X, np.arange(30) % 2)
    learned = {name for name in vars(model) if name.endswith("_") and name[0] != "_"}
    assert learned and learned <= documented(type(model))


@pytest.mark.slow
def test_broken_models_are_refused():
    names = [*attacks.MACHINES, *attacks.RECOMMENDERS, *attacks.EMBEDDINGS, *SAMPLERS]
    source = Path(attacks.__file__).read_text()
    done = python(source, "3", *names, NUMBA_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr[-2000:]
    assert not done.stdout
    assert all(f"attack {name}\n" in done.stderr for name in names)


@pytest.mark.parametrize(
    "field, bad", [("indptr", [0, 5, 1 << 40]), ("indices", [0, 1, -5]), ("indices", [0, 1, 99])]
)
def test_excluded_items_must_be_well_formed(field, bad):
    model = MFRecommender(4, max_iter=1, random_state=0).fit(X)
    ones = np.ones(3, dtype=np.float32)
    exclude = sparse.csr_array((ones, np.array([0, 1, 2]), np.array([0, 1, 3])), shape=(2, 12))
    model.recommend(X[:2], exclude=exclude)
    setattr(exclude, field, np.array(bad))
    with pytest.raises(ValueError, match="exclude"):
        model.recommend(X[:2], exclude=exclude)
    with pytest.raises(ValueError, match="exclude"):
        model.recommend(users=[0, 1], exclude=exclude)
    with pytest.raises(ValueError, match="well-formed|index"):
        make_ranking_scorer()(model, exclude, X[:2])


@pytest.mark.parametrize(
    "change",
    [
        np.asfortranarray,
        lambda array: array.astype(np.float64),
        lambda array: np.repeat(array, 2, axis=0)[::2],
        lambda array: np.frombuffer(array.tobytes(), array.dtype).reshape(array.shape),
    ],
    ids=["Fortran", "float64", "strides", "read-only"],
)
@pytest.mark.parametrize("loss", ["bsl", "bpr"])
def test_arrays_of_another_layout_serve_as_well(change, loss):
    model = MFRecommender(4, max_iter=1, loss=loss, random_state=0).fit(X)
    expected = model.recommend(X)
    model.item_factors_ = change(model.item_factors_)
    model.user_factors_ = change(model.user_factors_)
    for one, other in zip(model.recommend(X), expected, strict=True):
        assert_allclose(one, other, atol=1e-5)
    model.partial_fit(X)


@pytest.mark.parametrize(
    ("model", "array"),
    [
        (FMClassifier(3), "factors_"),
        (RaFMClassifier((2, 4)), "coef_"),
        (DeepFMClassifier(3, hidden_layer_sizes=(4,)), "factors_"),
        (FFMClassifier(3), "factors_"),
        (FwFMClassifier(3), "_dense"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_memory_mapped_machines_go_on(clicks, model, array, tmp_path):
    model = clone(model).set_params(max_iter=1, random_state=0).fit(*clicks)
    joblib.dump(model, tmp_path / "model")
    mapped = joblib.load(tmp_path / "model", mmap_mode="r")
    assert not getattr(mapped, array).flags.writeable
    assert_array_equal(mapped.predict_proba(clicks[0]), model.predict_proba(clicks[0]))
    trained = getattr(mapped.partial_fit(*clicks), array)
    assert_array_equal(trained, getattr(model.partial_fit(*clicks), array))


@pytest.mark.parametrize(
    "model",
    [
        MFRecommender(4, max_iter=1),
        MFRecommender(4, max_iter=1, loss="bpr"),
        ALSRecommender(4, max_iter=1),
        FastVAERecommender(4, max_iter=1, early_stopping=False),
    ],
    ids=repr,
)
def test_memory_mapped_recommenders_go_on(model, tmp_path):
    model = clone(model).set_params(random_state=0).fit(X)
    joblib.dump(model, tmp_path / "model")
    mapped = joblib.load(tmp_path / "model", mmap_mode="r")
    assert not mapped.item_factors_.flags.writeable
    for call in (
        lambda model: model.recommend(X)[1],
        lambda model: model.recommend(users=[0, 2], candidates=[1, 3])[0],
        lambda model: model.similar_items([1])[1],
        lambda model: model.transform(X),
        lambda model: model.partial_fit(X).item_factors_,
    ):
        assert_array_equal(call(mapped), call(model))


def test_kernels_read_mapped_arrays_in_place(tmp_path):
    np.save(tmp_path / "table.npy", np.ones((3, 2), dtype=np.float32))
    mapped = np.load(tmp_path / "table.npy", mmap_mode="r")
    assert np.shares_memory(as_kernel_input(mapped), mapped)
    assert not np.shares_memory(as_kernel_array(mapped), mapped)
    assert as_kernel_input(mapped.T).flags.c_contiguous


def test_optimizer_state_from_a_file_is_checked(clicks):
    sio = pytest.importorskip("skops.io")
    model = FMClassifier(3, optimizer="adam", max_iter=1, random_state=0).fit(*clicks)
    (state,) = model._optimizer_state
    wrong_array = r"_optimizer_state\['factors_second'\] of FMClassifier"
    for broken, message in (
        ({**state, "factors_second": np.zeros((1, 1), dtype=np.float32)}, wrong_array),
        ({**state, "factors_second": np.zeros((0, 3), dtype=np.float32)}, wrong_array),
        (list(state), "_optimizer_state of FMClassifier holds a list, not a dict"),
    ):
        model._optimizer_state = [broken]
        loaded = sio.loads(sio.dumps(model), trusted=["freqfm.estimators.fm.plain.FMClassifier"])
        with pytest.raises(ValueError, match=message):
            loaded.partial_fit(*clicks)


N_ROWS = 20_000


def word_vectors(dtype=np.float32, order="C"):
    model = Word2Vec(4, n_jobs=1)
    model.vocabulary_ = {f"w{row}": row for row in range(N_ROWS)}
    vectors = np.random.default_rng(0).normal(size=(N_ROWS, 4))
    model.vectors_ = vectors.astype(dtype, order=order)
    return model


def machine(**params):
    rows = sparse.identity(N_ROWS, format="csr", dtype=np.float32)[:40]
    return RaFMClassifier(**{"ranks": (1, 2), **params}, max_iter=1, n_jobs=1).fit(
        rows, np.arange(40) % 2
    )


def recommender(dtype):
    ids = np.arange(N_ROWS).astype(dtype)
    return InteractionRecommender(ALSRecommender(2, max_iter=1)).fit(np.column_stack([ids, ids]))


ROW = sparse.csr_array(([1.0], ([0], [3])), shape=(1, N_ROWS), dtype=np.float32)


@pytest.mark.parametrize(
    ("fitted", "calls"),
    [
        *(
            (
                lambda layout=layout: word_vectors(*layout),
                [
                    lambda model: model.similarity("w1", "w2"),
                    lambda model: model.doesnt_match(["w1", "w2", "w3"]),
                    lambda model: model.transform(["w1 w2 never"]),
                    lambda model: model.get_feature_names_out(),
                ],
            )
            for layout in ([], [np.float64], [np.float32, "F"])
        ),
        *slow_params(
            (lambda params=params: machine(**params), [lambda model: model.predict(ROW)])
            for params in ({}, {"ranks": (2,)}, {"rank_sharing": "truncate"})
        ),
        *(
            (
                lambda id=id: recommender(type(id)),
                [lambda model, id=id: model.predict_pairs([id], [id])],
            )
            for id in (7, "7")
        ),
    ],
)
def test_a_call_reads_the_rows_that_it_asks_for(fitted, calls, monkeypatch):
    model, indices, lengths = fitted(), LearnedArrays.indices, []

    def recorded(learned, name, values, n):
        lengths.append(len(values))
        indices(learned, name, values, n)

    monkeypatch.setattr(LearnedArrays, "indices", recorded)
    for call in calls:
        call(model)
        lengths.clear()
        tracemalloc.start()
        call(model)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        # Arrays of all rows, be they truth values, take more.
        assert peak < N_ROWS and max(lengths, default=0) < 10


@each("long", ["x" * 99, 1 << 40])
def test_an_unknown_id_of_a_wider_type_is_sought_without_a_copy_of_all(long):
    ids = np.arange(N_ROWS, dtype=np.int32)
    known = np.sort(ids.astype(str)) if isinstance(long, str) else ids
    values = as_ids([long, known[7]], "users")
    order = np.arange(N_ROWS)
    tracemalloc.start()
    assert_array_equal(find_codes(known, order, values, "users"), [-1, 7])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < N_ROWS


@pytest.mark.parametrize(
    ("fitted", "call", "name", "broken"),
    [
        (word_vectors, lambda model: model.similarity("w1", "w2"), "vocabulary_", None),
        (word_vectors, lambda model: model.transform(["w1"]), "vocabulary_", -1),
        (word_vectors, lambda model: model.doesnt_match(["w1"]), "vocabulary_", 1),
        *slow_params(
            (machine, lambda model: model.predict(ROW), name, broken)
            for name, broken in (
                ("factor_rows_", N_ROWS),
                ("factor_rows_", -1),
                ("feature_ranks_", 7),
            )
        ),
        (lambda: recommender(int), lambda model: model.predict_pairs([7], [7]), "_user_order", -1),
    ],
)
def test_an_attribute_is_checked_whenever_it_is_replaced(fitted, call, name, broken):
    model = fitted()
    expected, whole = call(model), getattr(model, name)
    damaged = copy.copy(whole)
    damaged[next(reversed(damaged)) if isinstance(damaged, dict) else -1] = broken
    for _ in range(2):
        setattr(model, name, damaged)
        for other in (model, pickle.loads(pickle.dumps(model)), copy.copy(model)):
            for _ in range(2):
                with pytest.raises(ValueError, match=f"^{name} of "):
                    call(other)
        setattr(model, name, whole)
        assert_array_equal(call(model), expected)


@pytest.mark.slow
def test_ranks_changed_in_place_do_not_lead_compiled_code_astray():
    for name, call in itertools.product(
        ("factor_rows_", "feature_ranks_"),
        (lambda model: model.predict(ROW), lambda model: model.partial_fit(ROW, [0])),
    ):
        model = machine()
        model.predict(ROW)
        getattr(model, name)[3] = 1 << 30
        with pytest.raises(ValueError, match=f"^{name} of RaFMClassifier was changed in place"):
            call(model)


def test_vocabularies_changed_in_place_do_not_lead_compiled_code_astray():
    documents = [["tea", "jam"], ["jam", "egg"]] * 3
    model = Word2Vec(4, min_count=1, max_iter=1).fit(documents)
    model.score(documents)
    for bad in (-1, 3, 1 << 40, None, "x"):
        model.vocabulary_["tea"] = bad
        for call in (
            lambda: model.similarity("tea", "jam"),
            lambda: model.transform(documents),
            lambda: model.score(documents),
            lambda: model.partial_fit(documents),
        ):
            with pytest.raises(ValueError, match="vocabulary_ of Word2Vec holds"):
                call()


def test_margins_cannot_come_later():
    model = MFRecommender(4, loss=MAWU(margins=False), max_iter=1, random_state=0).fit(X)
    with pytest.raises(ValueError, match="user_margins_ of MFRecommender is missing"):
        model.set_params(loss__margins=True, warm_start=True).fit(X)


class Small(Initializer):
    def draw(self, shape, generator, counts=None):
        return np.zeros((1, 1), dtype=np.float32)


class Unrated(FASGD):
    def _init_per_row(self, n_tokens, counts):
        return np.zeros(1, dtype=np.float32)


class Pointing(QuerySampler):
    """A proposal with one field that is wrong."""

    def __init__(self, field="cell_of", value=99):
        self.field = field
        self.value = value

    refresh = 1

    def proposal(self, counts, vectors, seed, previous=None):
        proposal = SAMPLERS["midx_popularity"](n_codewords=2).proposal(counts, vectors, seed)
        array = getattr(proposal, self.field).copy()
        array.reshape(-1)[-1] = self.value
        return proposal._replace(**{self.field: array})


class ShortGrid(Pointing):
    """A grid of cells without the last codeword."""

    def proposal(self, counts, vectors, seed, previous=None):
        proposal = SAMPLERS["midx_popularity"](n_codewords=2).proposal(counts, vectors, seed)
        grid = proposal.grid[:, :1].copy()
        return proposal._replace(grid=grid, grid_cells=proposal.grid_cells[: grid.size].copy())


class ShortProposal(Uniform):
    def proposal(self, counts):
        return super().proposal(counts)._replace(log_q=np.zeros(1, dtype=np.float32))


def test_arrays_of_a_users_components_are_checked(clicks):
    with pytest.raises(ValueError, match=r"draw of Small must return numbers of shape \(12, 3"):
        FMClassifier(3, init=Small()).fit(*clicks)
    with pytest.raises(ValueError, match="draw of Small must return numbers of shape"):
        MFRecommender(3, init=Small()).fit(X)
    with pytest.raises(ValueError, match="_init_per_row of Unrated must return"):
        FMClassifier(3, optimizer=Unrated()).fit(*clicks)
    of_cells = ("cell_items", "cell_codes", "cell_of", "cell_starts")
    for field in (*of_cells, "prefix_codes", "grid_cells"):
        with pytest.raises(ValueError, match=rf"proposal.{field} of Pointing"):
            MFRecommender(4, max_iter=1, negative_sampler=Pointing(field)).fit(X)
    with pytest.raises(ValueError, match=r"proposal.grid of ShortGrid has 1 columns"):
        MFRecommender(4, max_iter=1, negative_sampler=ShortGrid()).fit(X)
    with pytest.raises(ValueError, match=r"proposal.log_q of ShortProposal has shape \(1,\)"):
        MFRecommender(4, max_iter=1, negative_sampler=ShortProposal()).fit(X)
