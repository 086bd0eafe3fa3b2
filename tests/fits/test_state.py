"""An array that a class declares beside its own is right wherever models are trained.

What is added counts the samples that hold each token, or that each user has, once an epoch: so it
is the number of epochs times what the model's own counters say, plus the one that it starts with,
after growth, interruptions, undone calls, and on clusters.
"""

import pickle

import numpy as np
import pytest
from helpers import each
from numpy.testing import assert_array_equal
from scipy import sparse
from sklearn.base import clone
from test_resume import Killed, Killing

from freqfm import (
    ALSRecommender,
    DeepFMClassifier,
    FastVAERecommender,
    FFMClassifier,
    FMClassifier,
    FMRegressor,
    FwFMClassifier,
    MFRecommender,
    NFMClassifier,
    RaFMClassifier,
    Word2Vec,
    backends,
)
from freqfm._input.rows import count_columns
from freqfm.backbones import Context, Features, LightGCN
from freqfm.callbacks import resume
from freqfm.datasets import RowStream, make_interactions
from freqfm.estimators.fm.base import BaseFM
from freqfm.estimators.fm.trainer import FMTrainer
from freqfm.estimators.recommenders.mf_trainer import MFTrainer
from freqfm.estimators.recommenders.vae import VAETrainer
from freqfm.estimators.state import OPTIMIZER, STATISTICS, Learned
from freqfm.estimators.word2vec.model import Word2VecTrainer
from freqfm.optimizers import Adam

ROWS = sparse.random_array((120, 12), density=0.3, format="csr", rng=0, dtype=np.float32)
Y = np.arange(120) % 2
WIDER = sparse.csr_array(sparse.hstack([ROWS[:30], np.eye(30, 2, dtype=np.float32)]))
LIKES = make_interactions(30, 12, 180, random_state=0)
MORE = make_interactions(36, 15, 200, random_state=1)

FIELDS = np.append(np.arange(12) % 3, [3, 3])
MACHINES = [
    FMClassifier(3),
    FMRegressor(3, optimizer="adam"),
    FMClassifier(3, optimizer=Adam(lazy=False)),
    RaFMClassifier((2, 3), rank_assignment=[36]),
    FFMClassifier(2, fields=FIELDS[:12]),
    FwFMClassifier(3, fields=FIELDS[:12]),
    DeepFMClassifier(3, fields=FIELDS[:12], hidden_layer_sizes=(4,)),
    NFMClassifier(3, hidden_layer_sizes=(4,)),
]
RECOMMENDERS = {
    "linear": MFRecommender(4),
    "margins": MFRecommender(4, loss="mawu"),
    "temperature": MFRecommender(4, loss="softmax", temperature="adap_tau"),
    "lightgcn": MFRecommender(4, backbone="lightgcn"),
    "lightgcn by batch": MFRecommender(4, backbone=LightGCN(propagate="batch"), loss="mawu"),
    "features": MFRecommender(4, backbone=Features(item_features=np.eye(12, 4))),
}
SHORT = {"max_iter": 3, "random_state": 0}


def begin(model, rows, n_before):
    rows[:] = 1


def declare(patch, cls, trainer, count, axes, **options):
    """Let a class learn an array for each axis, which its trainer updates in every epoch."""
    declared = {axis: Learned(f"_of_{axis}", (axis,), start=begin, **options) for axis in axes}
    known, train = cls._learned, trainer.run_epoch

    def run_epoch(self, epoch):
        loss = train(self, epoch)
        for axis, entry in declared.items():
            entry.get(self.model)[...] += count(self, axis)
        return loss

    patch.setattr(cls, "_learned", lambda self: [*known(self), *declared.values()])
    patch.setattr(trainer, "run_epoch", run_epoch)


COUNTED = {"role": STATISTICS, "dtype": np.float64}


@pytest.fixture
def of_features(monkeypatch):
    init = FMTrainer.__init__

    def keep(self, model, optimizer, rows, *args):
        init(self, model, optimizer, rows, *args)
        self.held = rows.count_tokens()

    monkeypatch.setattr(FMTrainer, "__init__", keep)
    declare(monkeypatch, BaseFM, FMTrainer, lambda task, _: task.held, ["features"], **COUNTED)


def pairs_of(task, axis):
    """Return how many of a trainer's interactions each user, or item, has."""
    if axis == "items":
        return count_columns(task.X)
    return np.diff(task.interactions.by_user.indptr)


@pytest.fixture
def of_both(monkeypatch):
    declare(monkeypatch, MFRecommender, MFTrainer, pairs_of, ["users", "items"], **COUNTED)


def assert_counted(model, n_epochs, likes, *more):
    """Assert that a model's arrays have counted likes and dislikes in all epochs."""
    for axis, array in ((0, model._of_items), (1, model._of_users)):
        of_likes = np.ones(array.shape)
        for n, X in ((n_epochs, likes), *more):
            counts = (X != 0).sum(axis=axis)
            of_likes[: len(counts)] += n * counts
        assert_array_equal(array, of_likes)


@pytest.mark.parametrize("model", MACHINES, ids=lambda model: type(model).__name__)
def test_an_array_of_features(model, of_features, tmp_path):
    model = clone(model).set_params(**SHORT, early_stopping=False).fit(ROWS, Y)
    assert_array_equal(model._of_features, 1 + 3 * model.token_counts_)
    again = pickle.loads(pickle.dumps(model))
    more = 1 + 3 * model.token_counts_ + count_columns(ROWS[:20])
    for each_model in (model, again):
        each_model.partial_fit(ROWS[:20], Y[:20])
        assert_array_equal(each_model._of_features, more)
    fields = {}
    if not isinstance(model, RaFMClassifier):
        fields = {"fields": FIELDS} if getattr(model, "fields", None) is not None else {}
        model.set_params(**fields).partial_fit(WIDER, Y[:30], n_features=14)
        more = np.append(more, [1, 1]) + count_columns(WIDER)
        assert_array_equal(model._of_features, more)
    # An epoch of another call that fails, and a chunk, leave the array as it was.
    with pytest.raises(ValueError):
        model.partial_fit(np.full((3, model.n_features_in_), 1e38), [0, 1, 0])
    assert_array_equal(model._of_features, more)
    fields = {"fields": FIELDS[:12]} if fields else {}
    model.set_params(**fields, max_iter=10, early_stopping=True, validation_fraction=0.3)
    model.set_params(alpha_linear=1.0, alpha_factors=1.0, n_iter_no_change=2).fit(ROWS, Y)
    n_epochs = model.best_iter_ + min(model._n_settling, model.best_iter_)
    assert_array_equal(model._of_features, 1 + n_epochs * model.token_counts_)
    with pytest.raises(Killed):
        clone(model).set_callbacks(Killing(tmp_path / "file", 2)).fit(ROWS, Y)
    assert_array_equal(resume(tmp_path / "file").fit(ROWS, Y)._of_features, model._of_features)
    chunks = RowStream(lambda: ((ROWS[k : k + 40], Y[k : k + 40]) for k in (0, 40, 80)))
    model.set_params(max_iter=2, early_stopping=False).fit(chunks)
    assert_array_equal(model._of_features, 1 + 2 * model.token_counts_)


def test_an_array_of_an_unknown_axis_is_refused(of_features, of_both, monkeypatch):
    unknown = Learned("_of_queries", ("queries",))
    for model, data, found in (
        (FMClassifier(3), (ROWS, Y), "features and outputs"),
        (MFRecommender(4), (LIKES,), "users and items and components"),
    ):
        known = type(model)._learned
        with monkeypatch.context() as patch:
            patch.setattr(type(model), "_learned", lambda self, f=known: [*f(self), unknown])
            name = type(model).__name__
            message = f"_of_queries of {name} is declared by queries, but this model has {found};"
            with pytest.raises(ValueError, match=message):
                model.fit(*data)


def test_arrays_of_users_do_not_fit_a_model_without_any(monkeypatch):
    count = {"items": count_columns}
    for axis in ("items", "users"):
        with monkeypatch.context() as patch:
            tell = lambda task, axis: count[axis](task.X)  # noqa: E731
            declare(patch, FastVAERecommender, VAETrainer, tell, [axis], **COUNTED)
            model = FastVAERecommender(4, hidden_layer_sizes=(5,), early_stopping=False, **SHORT)
            if axis == "users":
                message = "_of_users of FastVAERecommender is declared by users, but this model has"
                with pytest.raises(ValueError, match=message):
                    model.fit(LIKES)
                assert not hasattr(model, "item_factors_")
                continue
            assert_array_equal(model.fit(LIKES)._of_items, 1 + 3 * count_columns(LIKES))
            model.partial_fit(MORE)
            expected = np.append(1 + 3 * count_columns(LIKES), [1, 1, 1])
            known = model._history.matrix((36, 15))[np.flatnonzero(np.diff(MORE.indptr))]
            assert_array_equal(model._of_items, expected + count_columns(known))


@pytest.mark.parametrize("name", RECOMMENDERS)
def test_arrays_of_users_and_items(name, of_both, tmp_path):
    model = clone(RECOMMENDERS[name]).set_params(**SHORT).fit(LIKES)
    assert_counted(model, 3, LIKES)
    model.partial_fit(LIKES[:5])
    assert_counted(model, 3, LIKES, (1, LIKES[:5]))
    if name != "features":
        model.partial_fit(MORE)
        assert_counted(model, 3, LIKES, (1, LIKES[:5]), (1, MORE))
    disliked = LIKES.copy()
    disliked.data[::5] *= -1
    model = clone(model).fit(disliked)
    assert_counted(model, 3, disliked)
    model.set_params(early_stopping=True, max_iter=6).fit(LIKES)
    assert_counted(model, model.best_iter_, LIKES)
    with pytest.raises(Killed):
        clone(model).set_callbacks(Killing(tmp_path / "file", 2)).fit(LIKES)
    found = resume(tmp_path / "file").fit(LIKES)
    assert_array_equal(found._of_users, model._of_users)
    assert_array_equal(found._of_items, model._of_items)


@each("options", [{}, {"item_features": np.eye(12)[:, :3]}])
def test_users_in_a_context_are_users(options, of_both):
    users, items = LIKES.nonzero()
    queries = sparse.csr_array((np.ones(len(users)), (np.arange(len(users)), items)))
    context = Context(context=np.eye(len(users))[:, :4], users=users, **options)
    model = MFRecommender(4, backbone=context, **SHORT).fit(queries)
    assert_counted(model, 3, LIKES)
    model.partial_fit(queries)
    assert_counted(model, 4, LIKES)


@each("model, data, trainer", [
    (FMClassifier(3, early_stopping=False), (ROWS, Y), FMTrainer),
    (MFRecommender(4), (LIKES,), MFTrainer),
])  # fmt: skip
def test_a_failed_epoch_is_undone(model, data, trainer, of_features, of_both, monkeypatch):
    train = trainer.run_epoch

    def fail_in_third(self, epoch):
        loss = train(self, epoch)
        if epoch == 2:
            raise KeyboardInterrupt
        return loss

    monkeypatch.setattr(trainer, "run_epoch", fail_in_third)
    model = clone(model).set_params(**SHORT)
    for call in (model.fit, model.partial_fit):
        # The call of partial_fit trains the third epoch of the model.
        with pytest.raises(KeyboardInterrupt):
            call(*data)
        if trainer is FMTrainer:
            assert_array_equal(model._of_features, 1 + 2 * model.token_counts_)
        else:
            assert_counted(model, 2, LIKES)
    monkeypatch.setattr(trainer, "run_epoch", train)


def test_an_array_from_a_file_is_checked(of_features, of_both):
    for model, data, name in (
        (FMClassifier(3, early_stopping=False), (ROWS, Y), "_of_features"),
        (MFRecommender(4), (LIKES,), "_of_users"),
    ):
        model.set_params(**SHORT).fit(*data)
        for broken in (np.zeros(3), None, np.array(["x"])):
            setattr(model, name, broken)
            with pytest.raises(ValueError, match=f"{name} of {type(model).__name__} "):
                model.partial_fit(*data)


def test_what_only_training_needs_is_left_out_of_served_models(monkeypatch):
    declare(monkeypatch, BaseFM, FMTrainer, lambda *_: 1, ["features"], role=OPTIMIZER)
    model = FMClassifier(3, early_stopping=False, **SHORT).fit(ROWS, Y)
    assert_array_equal(model._of_features, np.full(12, 4))
    served = model.without_optimizer_state()
    assert served._of_features is None
    assert_array_equal(served.predict(ROWS), model.predict(ROWS))
    without = FMClassifier(3, early_stopping=False, **SHORT)
    monkeypatch.undo()
    size = without.fit(ROWS, Y).optimizer_state_nbytes_
    assert model.optimizer_state_nbytes_ == size + 12 * 4


def test_words_and_alternating_squares(monkeypatch):
    documents = [["tea", "jam"], ["jam", "egg"], ["egg", "tea", "tea"]] * 3
    declare(monkeypatch, Word2Vec, Word2VecTrainer, lambda *_: 1, ["tokens"], **COUNTED)
    model = Word2Vec(3, min_count=1, **SHORT).fit(documents)
    assert_array_equal(model._of_tokens, np.full(3, 4))
    model.partial_fit([["tea", "fig"]] * 3)
    assert_array_equal(np.sort(model._of_tokens), [2, 5, 5, 5])
    from freqfm.estimators.recommenders.als import ALSTrainer

    declare(monkeypatch, ALSRecommender, ALSTrainer, lambda *_: 1, ["users", "items"], **COUNTED)
    model = ALSRecommender(3, **SHORT).fit(LIKES)
    assert_array_equal(model._of_users, np.full(30, 4))
    model.partial_fit(MORE)
    assert_array_equal(model._of_users, [5] * 30 + [2] * 6)


@pytest.mark.slow
def test_a_gpu_trains_beside_it(of_features, of_both, monkeypatch):
    from emulated_gpu import EmulatedDevice

    from freqfm.backends.cuda.backend import CUDABackend

    gpu = CUDABackend(EmulatedDevice(3, 0))
    monkeypatch.setattr(backends, "_cuda", lambda number: gpu)
    model = FMClassifier(3, device="cuda", early_stopping=True, **SHORT).fit(ROWS, Y)
    assert_array_equal(model._of_features, 1 + model.best_iter_ * model.token_counts_)
    assert_counted(MFRecommender(4, device="cuda", **SHORT).fit(LIKES), 3, LIKES)


@pytest.mark.slow
@each("n_shards", [1, 4])
def test_shards_of_a_cluster(n_shards, of_features, of_both):
    distributed = pytest.importorskip("distributed")
    fdask, da = (pytest.importorskip(name) for name in ("freqfm.dask", "dask.array"))
    cluster = {"processes": False, "n_workers": 1, "dashboard_address": None}
    with distributed.Client(**cluster, threads_per_worker=1):
        rows = da.from_array(ROWS.toarray(), chunks=(30, -1))
        target, likes = da.from_array(Y, chunks=30), da.from_array(LIKES.toarray(), chunks=(8, -1))
        options = {"n_shards": n_shards, "n_merges": 2, **SHORT}
        machine = fdask.FMClassifier(3, early_stopping=False, **options).fit(rows, target)
        assert_array_equal(machine._of_features, 1 + 3 * machine.token_counts_)
        fields = {"fields": FIELDS[:12], "early_stopping": False}
        machine = fdask.FFMClassifier(3, **fields, **options).fit(rows, target)
        assert_array_equal(machine._of_features, 1 + 3 * machine.token_counts_)
        model = fdask.MFRecommender(4, **options).fit(likes)
        assert_counted(model, 3, LIKES)
        assert_counted(model.to_local().partial_fit(LIKES), 4, LIKES)
