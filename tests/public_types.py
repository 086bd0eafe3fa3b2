"""Types of the public interface: ``mypy`` checks this file; nothing runs it."""

import numpy as np
from scipy.sparse import csr_array
from sklearn.utils import Bunch

import freqfm
from freqfm import FMClassifier, InteractionRecommender, MFRecommender, datasets, metrics
from freqfm.callbacks import resume
from freqfm.model_selection import holdout_interactions, make_ranking_scorer


def uses() -> None:
    """Call with the documented types, and assign results to variables of the documented types."""
    freqfm.show_versions()
    version: str = freqfm.__version__
    X: csr_array = datasets.load_interactions("clicks.txt", min_rating=4)
    rows, y = datasets.load_libfm("rows.txt", n_features=10, dtype=np.float64)
    target: np.ndarray = y
    movies: Bunch = datasets.fetch_movielens("100k", data_home=None)
    made = datasets.make_interactions(100, 50, 1000, random_state=np.random.default_rng(0))
    history, hidden = holdout_interactions(made, 0.2, random_state=0)
    items, scores = freqfm.recommend(MFRecommender(n_components=4).fit(history), history)
    quality: float | np.ndarray = metrics.ndcg_at_k(hidden, items, 10)
    report: dict[str, float] = metrics.ranking_report(hidden, items, [5, 10])
    scorer = make_ranking_scorer("recall", k=20)
    value: float = scorer(InteractionRecommender(), X)
    model = resume("fit.checkpoint").fit(rows, target)
    print(version, movies, scores, quality, report, value, model, FMClassifier())


def mistakes() -> None:
    """Calls that a checker must refuse: unused exceptions from it are errors too."""
    datasets.make_clicks("many")  # type: ignore[arg-type]
    metrics.ndcg_at_k([[1]], [[1]], k="ten")  # type: ignore[arg-type]
    freqfm.show_versions(1)  # type: ignore[call-arg]
