"""Types of the public interface: ``mypy`` checks this file; nothing runs it."""

import numpy as np
from scipy.sparse import csr_array
from sklearn.preprocessing import OneHotEncoder
from sklearn.utils import Bunch

import freqfm
from freqfm import (
    ALSRecommender,
    DeepFMClassifier,
    FastVAERecommender,
    FFMClassifier,
    FMClassifier,
    FMRegressor,
    FwFMClassifier,
    InteractionRecommender,
    MFRecommender,
    RaFMClassifier,
    Word2Vec,
    datasets,
    metrics,
)
from freqfm.callbacks import Checkpoint, resume
from freqfm.losses import BSL, Huber
from freqfm.model_selection import holdout_interactions, make_ranking_scorer
from freqfm.optimizers import Adam
from freqfm.samplers import MIDX
from freqfm.temperatures import AdapTau


def uses() -> None:
    """Call with the documented types, and assign results to variables of the documented types."""
    freqfm.show_versions()
    version: str = freqfm.__version__
    X: csr_array = datasets.load_interactions("clicks.txt", shape=(4, 5))
    rows, y = datasets.load_libfm("rows.txt", n_features=10, dtype=np.float64)
    target: np.ndarray = y
    datasets.dump_libffm(rows, y, "rows.ffm", fields=np.zeros(10, dtype=int))
    loaded = datasets.load_libffm("rows.ffm", zero_based=True)
    movies: Bunch = datasets.fetch_movielens("100k", data_home=None)
    made = datasets.make_interactions(100, 50, 1000, random_state=np.random.default_rng(0))
    history, hidden = holdout_interactions(made, 0.2, random_state=0)
    items, scores = freqfm.recommend(MFRecommender(n_components=4).fit(history), history)
    quality: float | np.ndarray = metrics.ndcg_at_k(hidden, items, 10)
    report: dict[str, float] = metrics.ranking_report(hidden, items, [5, 10])
    scorer = make_ranking_scorer("recall", k=20)
    value: float = scorer(InteractionRecommender(), X)
    model = resume("fit.checkpoint").fit(rows, target)
    fields: np.ndarray = freqfm.column_fields(OneHotEncoder())
    words = Word2Vec.load_word2vec_format("vectors.txt", binary=True)
    nearest: list[tuple[str | int, float]] = words.most_similar(["king", "woman"], "man", n=3)
    cosine: float = words.similarity("king", "queen")
    deep = DeepFMClassifier(fields=fields, hidden_layer_sizes=(8,), layer_optimizer=Adam())
    print(
        deep.fit(rows, target),
        version,
        loaded,
        movies,
        scores,
        quality,
        report,
        value,
        model,
        nearest,
        cosine,
        FMClassifier(),
    )


def constructors() -> None:
    """Build estimators and components with the types that are documented."""
    FMClassifier(8, optimizer=Adam(1e-3, lazy=False), class_weight={0: 1, 1: 2}, device="cuda:1")
    FMRegressor(loss=Huber(delta=2), learning_rate=0.1, random_state=np.random.default_rng(0))
    FwFMClassifier(fields=["a", "b"], field_optimizer=Adam(), alpha_fields=10)
    RaFMClassifier([4, 16], counts=np.ones(10), early_stopping="auto")
    FFMClassifier(4, fields=["user", "item"], optimizer="adagrad")
    MFRecommender(loss=BSL(1.2), temperature=AdapTau(warm_up=None), negative_sampler=MIDX())
    ALSRecommender(32, unobserved_weight=0.3, solver="cholesky", n_jobs=2)
    FastVAERecommender(hidden_layer_sizes=[50], temperature=0.1, kl_weight="reference")
    Word2Vec(50, architecture="cbow", optimizer=Adam(), subsample=None, analyzer=str.split)
    InteractionRecommender(MFRecommender(), user=0, item="track", value=None)
    Checkpoint("fit.checkpoint", every=5)


def mistakes() -> None:
    """Calls that a checker must refuse: unused exceptions from it are errors too."""
    datasets.make_clicks("many")  # type: ignore[arg-type]
    metrics.ndcg_at_k([[1]], [[1]], k="ten")  # type: ignore[arg-type]
    freqfm.show_versions(1)  # type: ignore[call-arg]
    FMClassifier(max_iter="many")  # type: ignore[arg-type]
    FMClassifier(device=1)  # type: ignore[arg-type]
    RaFMClassifier(learning_rate="fast")  # type: ignore[arg-type]
    DeepFMClassifier(hidden_layer_sizes="large", dropout="half")  # type: ignore[arg-type]
    MFRecommender(optimizer=1.0)  # type: ignore[arg-type]
    ALSRecommender(regularization="auto")  # type: ignore[arg-type]
    FastVAERecommender(n_negatives=0.5)  # type: ignore[arg-type]
    Word2Vec(window="wide")  # type: ignore[arg-type]
    Word2Vec().similarity("king", "queen", "man")  # type: ignore[call-arg]
    Adam(learning_rate="fast")  # type: ignore[arg-type]
    Checkpoint(1)  # type: ignore[arg-type]
