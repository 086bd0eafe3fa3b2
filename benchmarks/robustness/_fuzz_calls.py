"""Valid calls for fuzz.py to break: what runs, its arguments, and checks of the answers.

A function per target takes a random generator and returns a Call.
"""

import copy
import functools
import pickle
import tempfile
from pathlib import Path
from typing import NamedTuple

import _faults as faults
import numpy as np
from _faults import pick
from scipy import sparse
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

import freqfm
from freqfm import callbacks, datasets, metrics, model_selection

_RNG = np.random.default_rng(0)
N_USERS, N_ITEMS, N_FEATURES, N_ROWS = 12, 9, 7, 30
HISTORIES = np.round(_RNG.random((N_USERS, N_ITEMS)) * 1.6)
HISTORIES[np.arange(N_USERS), np.arange(N_USERS) % N_ITEMS] = 1
HELD_OUT = ((HISTORIES == 0) & (_RNG.random(HISTORIES.shape) < 0.5)) * 1.0
ROWS = np.round(_RNG.random((N_ROWS, N_FEATURES)) * 2)
TARGET, WEIGHT = np.arange(N_ROWS) % 2, np.arange(1.0, N_ROWS + 1)
DOCUMENTS = [[f"i{i}" for i in np.flatnonzero(row)] for row in HISTORIES]
RANKED = np.argsort(_RNG.random(HISTORIES.shape), axis=1)[:, :4]
TABLE = [
    (f"u{u}", f"i{i}", float(HISTORIES[u, i]), int(7 * u + i))
    for u, i in np.argwhere(HISTORIES > 0).tolist()
]


def _parameters(component):
    return getattr(component, "func", component)._parameter_constraints


_SIZES = {"max_iter": 2, "random_state": 0, "n_jobs": 1}
_FM, _RAFM = {"n_components": 3, **_SIZES}, {"ranks": (2, 3), "rank_assignment": [9], **_SIZES}
_DEEP = {"hidden_layer_sizes": (4,), **_FM}
FM = {"FMClassifier": _FM, "FMRegressor": _FM, "RaFMClassifier": _RAFM, "RaFMRegressor": _RAFM}
FM |= {"DeepFMClassifier": _DEEP, "DeepFMRegressor": _DEEP}
FM |= {"FFMClassifier": _FM, "FFMRegressor": _FM}
FM |= {"FwFMClassifier": _FM, "FwFMRegressor": _FM}
_MF, _VAE = {"n_components": 3, **_SIZES}, {"hidden_layer_sizes": (4,), "n_components": 3, **_SIZES}
RECOMMENDERS = {"MFRecommender": _MF, "ALSRecommender": _MF, "FastVAERecommender": _VAE}
_WORDS = {"n_components": 3, "min_count": 1, "batch_size": 8, **_SIZES}

#: Parameters of components, which errors name too.
OF_COMPONENTS = {name for made in faults.COMPONENTS for name in _parameters(made)}

#: Where files are written.
FOLDER = tempfile.TemporaryDirectory()


class Call(NamedTuple):
    """A call that works, how its arguments can be broken, and what its answer must be like."""

    run: object
    #: By name: the value, the function of _faults that breaks it, and that function's options.
    args: dict
    #: Takes the answer and the names of the arguments that are as they should be.
    check: object = lambda answer, intact: None
    #: What errors may name, besides arguments.
    names: tuple = ()


def require(condition, message):
    """Raise if an answer is wrong in form."""
    if not condition:
        raise AssertionError(message)


def check_finite(answer, intact):
    """All numbers of an array or a list of arrays."""
    for array in answer if isinstance(answer, (tuple, list)) else [answer]:
        array = np.asarray(array)
        require(array.dtype.kind not in "fc" or np.isfinite(array).all(), "not finite")


def check_probabilities(answer, intact):
    """Of a factorization machine's outputs."""
    check_finite(answer, intact)
    if len(answer) > 1:
        require(np.allclose(answer[1].sum(axis=1), 1), "does not sum to one")


def check_items(n_items, histories=None):
    """Of (items, scores): in range, each once, in order, and none that a user has."""

    def check(answer, intact):
        items, scores = map(np.atleast_2d, answer)
        require(items.shape == scores.shape, "shapes of items and scores differ")
        require(((items >= -1) & (items < n_items)).all(), "item out of range")
        require(((items == -1) == np.isneginf(scores)).all(), "-1 and -inf do not go together")
        require((scores[:, 1:] <= scores[:, :-1]).all(), "not in descending order")
        for row, found in enumerate(items):
            found = found[found >= 0]
            require(len(np.unique(found)) == len(found), "an item twice")
            if histories is not None and {"X", "users", "exclude_seen"} <= intact:
                require(not histories[row, found].any(), "an item seen before")

    return check


def check_named(answer, intact):
    """Of (ids, scores), where None is no id."""
    found, scores = answer
    require(np.shape(found) == np.shape(scores), "shapes of ids and scores differ")
    require(not np.isnan(scores).any(), "NaN among scores")


@functools.cache
def _fitted(name):
    cls = getattr(freqfm, name)
    if name == "Word2Vec":
        return cls(**_WORDS).fit(DOCUMENTS)
    if name == "InteractionRecommender":
        return cls(freqfm.MFRecommender(**_MF)).fit(TABLE)
    return (
        cls(**FM[name]).fit(ROWS, TARGET)
        if name in FM
        else cls(**RECOMMENDERS[name]).fit(HISTORIES)
    )


def fitted(name):
    """Return a model that a case may change."""
    return copy.deepcopy(_fitted(name))


def outputs(model):
    """Return all that a factorization machine predicts."""
    names = ("predict", "predict_proba", "decision_function")
    return [getattr(model, name)(ROWS) for name in names if hasattr(model, name)]


def fm_fit(rng):
    """Fits of factorization machines."""
    name = pick(rng, [*FM])
    cls, partial = getattr(freqfm, name), rng.random() < 0.3
    labels = name.endswith("Classifier")
    classes = {"classes": [0, 1]} if labels else {}

    def run(X, y, params, **options):
        if partial:
            return outputs(cls(**params).partial_fit(X, y, **options, **classes))
        return outputs(cls(**params).fit(X, y, **options))

    options = {"cls": cls, "fixed": ["max_iter", "n_jobs"][: int(rng.integers(1, 3))]}
    args = {
        "X": (ROWS, faults.matrix, {"rows": True, "columns": True}),
        "y": (TARGET, faults.vector, {"labels": labels}),
        "params": (dict(FM[name]), faults.params, options),
        "sample_weight": (WEIGHT, faults.vector, {"positive": True, "optional": True}),
    }
    weighted, validated = rng.random(2) < 0.5
    if validated and not partial:
        # A validation set of more rows than are trained on.
        args["X_val"] = (np.vstack([ROWS, ROWS]), faults.matrix, {"rows": True})
        args["y_val"] = (np.append(TARGET, TARGET), faults.vector, {"labels": labels})
        args["params"][0].update(early_stopping=True)
    if not weighted:
        del args["sample_weight"]
    elif "X_val" in args:
        weights = (np.append(WEIGHT, WEIGHT), faults.vector, {"positive": True, "optional": True})
        args["sample_weight_val"] = weights
    # Predictions ask for as many columns as fits had.
    return Call(run, args, check_probabilities, (*cls().get_params(), "classes", *OF_COMPONENTS))


def fm_use(rng):
    """Predictions of factorization machines, and what else they do once they are fitted."""
    name = pick(rng, [*FM])
    model = fitted(name)
    methods = [m for m in ("predict", "predict_proba", "decision_function") if hasattr(model, m)]
    method = pick(rng, [*methods, "score", "partial_fit"])
    run = getattr(model, method)
    args = {"X": (ROWS, faults.matrix, {"rows": method not in methods})}
    if method not in methods:
        # Which numbers and weights scikit-learn's scores accept is up to scikit-learn.
        labels = name.endswith("Classifier") or method == "score"
        args["y"] = (TARGET, faults.vector, {"labels": labels})
    if method == "partial_fit":
        weights = {"positive": True, "optional": True}
        args["sample_weight"] = (WEIGHT, faults.vector, weights)
        return Call(lambda **a: outputs(model.partial_fit(**a)), args, check_probabilities)
    return Call(run, args, check_finite if method in methods else None)


def _recommender_fit(rng, name):
    cls, partial = getattr(freqfm, name), rng.random() < 0.3

    def run(X, params, **options):
        model = cls(**params)
        model = model.partial_fit(X) if partial else model.fit(X, **options)
        return [*model.recommend(users=[0], n_recommendations=4), *model.similar_items([0], 2)]

    def check(answer, intact):
        for part in (answer[:2], answer[2:]):
            check_items(N_ITEMS if "X" in intact else 2**31)(part, intact)

    options = {"cls": cls, "fixed": ["max_iter", "n_jobs"][: int(rng.integers(1, 3))]}
    args = {
        "X": (HISTORIES, faults.matrix, {"columns": False}),
        "params": (dict(RECOMMENDERS[name]), faults.params, options),
    }
    if not partial and rng.random() < 0.3:
        args["X_val"] = (HELD_OUT, faults.matrix, {"rows": True})
        args["params"][0].update(early_stopping=True)
    return Call(run, args, check, (*cls().get_params(), *OF_COMPONENTS))


def mf_fit(rng):
    """Fits of matrix factorization."""
    return _recommender_fit(rng, "MFRecommender")


def als_fit(rng):
    """Fits of matrix factorization by alternating least squares."""
    return _recommender_fit(rng, "ALSRecommender")


def vae_fit(rng):
    """Fits of the autoencoder."""
    return _recommender_fit(rng, "FastVAERecommender")


def words_fit(rng):
    """Fits of word vectors."""
    partial = rng.random() < 0.3

    def run(X, params):
        model = freqfm.Word2Vec(**params)
        model = model.partial_fit(X) if partial else model.fit(X)
        return model.vectors_, model.transform(DOCUMENTS)

    fixed = ["max_iter", "n_jobs"][: int(rng.integers(1, 3))]
    args = {
        "X": (DOCUMENTS, faults.documents, {}),
        "params": (dict(_WORDS), faults.params, {"cls": freqfm.Word2Vec, "fixed": fixed}),
    }
    return Call(run, args, check_finite, (*freqfm.Word2Vec().get_params(), *OF_COMPONENTS))


def words_use(rng):
    """What word vectors do once they are fitted."""
    model = fitted("Word2Vec")
    documents = {"X": (DOCUMENTS, faults.documents, {"empty": True})}
    token, tokens = (("i1", faults.token, {}), (["i1", "i4"], faults.table_ids, {}))
    n = (3, faults.count, {})
    calls = [
        (model.transform, documents, check_finite),
        (model.score, {"X": (DOCUMENTS, faults.documents, {})}, check_finite),
        (lambda X: model.partial_fit(X).vectors_, documents, check_finite),
        (model.similarity, {"first": token, "second": token}, check_finite),
        (model.doesnt_match, {"tokens": tokens}, None),
        (lambda **a: model.most_similar(**a), {"positive": tokens, "n": n}, None),
    ]
    return Call(*pick(rng, calls))


def recommend(rng):
    """Recommendations by users or histories, with candidates and exclusions, also by a pipeline."""
    model, users = fitted(pick(rng, [*RECOMMENDERS])), np.array([3, 0, 5])
    sparse_only, items = rng.random() < 0.3, {"n": N_ITEMS, "optional": True}
    some = {
        "n_recommendations": (4, faults.count, {"optional": True}),
        "exclude_seen": (True, faults.flag, {}),
        "candidates": (np.array([1, 4, 8, 2]), faults.ids, items),
        "exclude": (np.array([4, 0]), faults.ids, items),
    }
    of_each = {"rows": True, "sparse_only": True, "largest": 1e308}
    if rng.random() < 0.5:
        some["exclude"] = (sparse.csr_array(HELD_OUT[users]), faults.matrix, of_each)
    candidates = np.isin(np.arange(N_ITEMS), [1, 4, 8, 2]) * np.ones((3, 1))
    if rng.random() < 0.3:
        candidates *= np.eye(3, N_ITEMS, 2) + np.eye(3, N_ITEMS, 8)[:, ::-1]
        some["candidates"] = (sparse.csr_array(candidates), faults.matrix, of_each)
    args = {name: arg for name, arg in some.items() if rng.random() < 0.6}
    by_history = rng.random() < 0.5
    if by_history:
        options = {"sparse_only": sparse_only}
        args["X"] = (HISTORIES[users], faults.matrix, options)
    else:
        args["users"] = (users, faults.ids, {"n": N_USERS})

    def check(answer, intact):
        check_items(N_ITEMS, HISTORIES[users])(answer, intact | ({"X", "users", *some} - {*args}))
        if "candidates" in args and "candidates" in intact:
            # Of faulty users there may be fewer.
            for row, found in zip(candidates, np.atleast_2d(answer[0]), strict=False):
                require(row[found[found >= 0]].all(), "not a candidate")

    if by_history and rng.random() < 0.2:
        pipeline = make_pipeline(FunctionTransformer(), model)
        return Call(lambda X, **options: freqfm.recommend(pipeline, X, **options), args, check)
    return Call(model.recommend, args, check)


def recommender_use(rng):
    """What else recommenders do once they are fitted."""
    name = pick(rng, [*RECOMMENDERS])
    model, n, of_items = fitted(name), (3, faults.count, {}), check_items(N_ITEMS)
    users = (np.array([0, 3, 11]), faults.ids, {"n": N_USERS})
    items = (np.array([8, 0, 4]), faults.ids, {"n": N_ITEMS})
    some = (items[0], faults.ids, {"n": N_ITEMS, "optional": True})
    X = (HISTORIES, faults.matrix, {})
    more = (HISTORIES, faults.matrix, {"columns": False})
    pair = {"user": (3, faults.ids, {"n": N_USERS}), "item": (4, faults.ids, {"n": N_ITEMS})}
    y = (HELD_OUT, faults.matrix, {"rows": True, "largest": 1e308})
    calls = [
        (model.similar_items, {"items": items, "n_recommendations": n}, of_items),
        (model.similar_users, {"users": users, "n_recommendations": n}, check_items(N_USERS)),
        (model.similar_items, {"items": items, "candidates": some, "exclude": some}, of_items),
        (model.predict_pairs, {"users": users, "items": items}, check_finite),
        (model.transform, {"X": X}, check_finite),
        (
            lambda X: (items := model.predict(X), np.where(items < 0, -np.inf, 0)),
            {"X": X},
            of_items,
        ),
        (model.score, {"X": X}, None),
        (model.score, {"X": X, "y": y}, None),
        (lambda X: model.partial_fit(X).recommend(users=[0]), {"X": more}, check_items(2**31)),
    ]
    if name == "MFRecommender":
        calls.append((lambda **a: model.explain(**a)["score"], pair, check_finite))
    return Call(*pick(rng, calls), ("users", "items"))


def table_fit(rng):
    """Fits to tables."""

    def run(X, params):
        model = freqfm.InteractionRecommender(freqfm.MFRecommender(**_MF), **params).fit(X)
        return model.recommend(model.user_ids_[:3], n_recommendations=3)

    def check(answer, intact):
        check_named(answer, intact)
        known = {None, *(row[1] for row in TABLE)}
        require(intact != {"X", "params"} or {*answer[0].ravel()} <= known, "unknown ids")

    options = {"cls": freqfm.InteractionRecommender, "fixed": ("estimator", "value")}
    args = {"X": (TABLE, faults.table, {}), "params": ({}, faults.params, options)}
    also = "user", "users", "item", "items", "value", "values", "n_recommendations"
    return Call(run, args, check, also)


def table_use(rng):
    """What recommenders of named items do once they are fitted."""
    model, n = fitted("InteractionRecommender"), (3, faults.count, {})
    users, items = (["u3", "u0"], faults.table_ids, {}), (["i8", "i1"], faults.table_ids, {})
    some = {
        "users": users,
        "n_recommendations": n,
        "exclude_seen": (True, faults.flag, {}),
        "candidates": (["i1", "i5", "i8"], faults.table_ids, {}),
        "exclude": (["i2"], faults.table_ids, {}),
    }
    history = (["i8", "i1"], faults.table_ids, {"nested": True})
    lists = ([["i1", "i2"], ["i8"]], faults.table_lists, {})
    X, good = (TABLE, faults.table, {}), {"good": ("u3", "i1")}
    pair = {"user": ("u3", faults.anything, good), "item": ("i1", faults.anything, good)}
    calls = [
        (model.recommend, some, check_named),
        (model.recommend, {"history": history, "n_recommendations": n}, check_named),
        (
            model.recommend,
            {"users": users, pick(rng, ["exclude", "candidates"]): lists},
            check_named,
        ),
        (model.transform, {"history": history}, check_finite),
        (model.transform, {"X": (TABLE, faults.lenient(faults.table), {})}, check_finite),
        (model.similar_items, {"items": items, "n_recommendations": n}, check_named),
        (model.similar_users, {"users": users, "n_recommendations": n}, check_named),
        (model.similar_users, {"users": users, "candidates": users, "exclude": users}, check_named),
        (model.predict_pairs, {"users": users, "items": items}, check_finite),
        (model.predict, {"X": (TABLE, faults.table, {"valued": False})}, check_finite),
        (model.score, {"X": (TABLE, faults.table, {})}, check_finite),
        (lambda X: model.partial_fit(X).recommend(["u1"]), {"X": X}, check_named),
        (lambda **a: model.explain(**a)["score"], pair, check_finite),
    ]
    return Call(*pick(rng, calls), ("id", "ids", "estimator", "users", "items"))


def sampler(rng):
    """Samplers by themselves."""
    made = pick(rng, faults.SAMPLERS)()
    cls = getattr(made, "func", type(made))
    counts = {"positive": True, "optional": True, "largest": 1e308}

    def run(params, item_vectors, counts, queries, n):
        sampler = cls(**params).fit(item_vectors, counts, random_state=0)
        return sampler.log_proba(queries), *sampler.sample(queries, n, random_state=0)

    def check(answer, intact):
        require(np.allclose(np.exp(answer[0]).sum(axis=1), 1, atol=1e-3), "does not sum to one")
        require(((answer[1] >= 0) & (answer[1] < answer[0].shape[1])).all(), "item out of range")

    args = {
        "params": ({}, faults.params, {"cls": cls}),
        "item_vectors": (HISTORIES.T[:, :4], faults.matrix, {"rows": True}),
        "counts": (1.0 + np.arange(N_ITEMS), faults.vector, counts),
        "queries": (np.ones((5, 4)), faults.matrix, {}),
        "n": (6, faults.count, {}),
    }
    return Call(run, args, check, tuple(cls().get_params()))


def metric(rng):
    """Metrics of rankings and probabilities."""
    name = pick(rng, metrics.__all__)
    if name == "normalized_entropy":
        weights = {"optional": True, "positive": True, "largest": 1e308}
        args = {
            "y_true": (TARGET, faults.vector, {"labels": True}),
            "y_proba": (np.linspace(0.1, 0.9, N_ROWS), faults.vector, {}),
            "sample_weight": (WEIGHT, faults.vector, weights),
        }
        return Call(metrics.normalized_entropy, args, check_finite)
    ranked = (RANKED, faults.ranking, {"n": N_ITEMS})
    k = (3, faults.count, {"optional": True})
    counts = (HISTORIES.sum(axis=0), faults.vector, {"positive": True, "largest": 1e308})
    of_lists = {
        "coverage_at_k": {"n_items": (N_ITEMS, faults.count, {"least": N_ITEMS})},
        "gini": {"n_items": (N_ITEMS, faults.count, {"least": N_ITEMS})},
        "novelty_at_k": {"item_counts": counts},
        "diversity_at_k": {"item_vectors": (HISTORIES.T, faults.matrix, {"columns": False})},
        "miscalibration_at_k": {
            "categories": (HISTORIES.T, faults.matrix, {"columns": False, "positive": True}),
            "history": (HISTORIES[: len(RANKED)], faults.matrix, {"positive": True}),
        },
    }
    if name in of_lists:
        ranked[2]["rows"] = False
        args = {"ranked": ranked, **of_lists[name], "k": k}
        return Call(getattr(metrics, name), args, _in_range(name))
    relevant = {"rows": True, "columns": False, "largest": 1e308}
    args = {"relevant": (HELD_OUT, faults.matrix, relevant), "ranked": ranked, "k": k}
    if name in ("stratified_ndcg_at_k", "ranking_report"):
        args["item_counts"] = counts
        counts[2]["optional"] = name == "ranking_report"
        if name == "ranking_report":
            args["k"] = ([1, 3], faults.lenient(faults.count), {})
        args["edges"] = ((0.2, 0.5), faults.anything, {"good": ((0, 1),)})
    return Call(getattr(metrics, name), args, _in_range(name))


def _in_range(metric):
    """Of metrics: shares, but for bits and distances."""
    largest = {"novelty": 2000, "diversity": 2, "miscalibration": 4.7}

    def check(answer, intact):
        values = answer if isinstance(answer, dict) else {metric.removesuffix("_at_k"): answer}
        for name, value in values.items():
            most = largest.get(name.partition("@")[0], 1)
            require(-1e-9 <= value <= most + 1e-9, f"{name} out of range")

    return check


def splitter(rng):
    """Splitters of interactions."""
    count, column = faults.count, ("auto", faults.anything, {"good": (None, 0, 2, -1, "x")})
    some = {
        "WarmStartKFold": {
            "n_splits": (2, count, {"least": 2}),
            "shuffle": (True, faults.flag, {}),
        },
        "LeaveLastOut": {"n": (1, count, {}), "time": column},
        "GlobalTimeSplit": {
            "n_splits": (1, count, {}),
            "test_fraction": (0.3, faults.fraction, {}),
            "time": column,
            "drop_cold": (True, faults.flag, {}),
        },
    }
    name = pick(rng, [*some])
    args = {"X": (TABLE, faults.table, {"valued": False}), **some[name], "user": column}

    def run(X, **params):
        seed = {"random_state": 0} if name == "WarmStartKFold" else {}
        splits = getattr(model_selection, name)(**params, **seed).split(X)
        return [part for split in splits for part in split]

    def check(answer, intact):
        for train, test in zip(answer[::2], answer[1::2], strict=True):
            require(len(train) and len(test) and not {*train} & {*test}, "folds overlap")

    return Call(run, args, check, ("users", "items", "values", "times", "item"))


def holdout(rng):
    """Parts of histories that are held out."""
    args = {"X": (HISTORIES, faults.matrix_or_table, {})}
    named = rng.random() < 0.3
    if named:
        args["X"] = (TABLE, faults.table_kept, {})
    args["fraction"] = (0.3, faults.fraction, {})
    if rng.random() < 0.5:
        args["min_history"] = (1, faults.count, {"least": 0})
        args["random_state"] = (0, faults.anything, {"good": (None, 0, 2, True)})
        run = model_selection.holdout_interactions
    else:
        args["seed"] = (0, faults.anything, {"good": (-1, 0, 2, 10**12, 2**70)})
        run = model_selection.holdout_by_content

    def check(answer, intact):
        if not sparse.issparse(answer[0]):
            return require(len(answer[0]), "all is held out")
        history, held_out = (part.toarray() for part in answer)
        require(not ((history != 0) & (held_out != 0)).any(), "held out and kept")
        whole = "X" not in intact or (history + held_out == HISTORIES).all()
        return require(whole, "something is lost")

    return Call(run, args, check)


def scorer(rng):
    """Scorers of rankings."""
    model = fitted(pick(rng, [*RECOMMENDERS]))
    y_options = {"rows": True, "sparse_only": True, "largest": 1e308}
    args = {
        # Values of what is held out do not matter.
        "X": (HISTORIES, faults.matrix, {"largest": 1e308}),
        "metric": ("ndcg", faults.anything, {}),
        "k": (3, faults.count, {}),
        "fraction": (0.3, faults.fraction, {}),
        "y": (sparse.csr_array(HELD_OUT), faults.matrix, y_options),
    }
    if rng.random() < 0.5:
        del args["y"]
    else:
        # Rows without held-out items are not examined.
        args["X"] = (HISTORIES, faults.lenient(faults.matrix), {})

    def run(X, metric, k, fraction, y=None):
        return model_selection.make_ranking_scorer(metric, k=k, fraction=fraction)(model, X, y)

    return Call(run, args, lambda answer, intact: require(0 <= answer <= 1, "out of range"))


def made_data(rng):
    """Data that are made."""
    args = {"random_state": (0, faults.anything, {"good": (None, 0, 2, True)})}
    if rng.random() < 0.5:
        args |= {"n_users": (20, faults.count, {}), "n_items": (15, faults.count, {})}
        args["n_interactions"] = (120, faults.count, {})
        return Call(datasets.make_interactions, args)
    good = {"good": (2, 10**12, 2**70, [1], (0, 1))}
    args |= {"n_samples": (20, faults.count, {}), "n_tokens": ((5, 3), faults.anything, good)}
    return Call(lambda **a: datasets.make_clicks(**a)[0], args)


def _lines(*columns):
    return b"".join(
        ("\t".join(map(str, row)) + "\n").encode() for row in zip(*columns, strict=True)
    )


FILES = {
    "lists.txt": _lines(map(str, range(3)), ["1 2 3", "", "4 0"]).replace(b"\t", b" "),
    "rows.libfm": _lines(
        TARGET, np.full(N_ROWS, "1:1"), [f"{2 + i % 5}:0.5" for i in range(N_ROWS)]
    ),
    "rows.ffm": _lines(
        TARGET, np.full(N_ROWS, "0:1:1"), [f"{i % 2}:{2 + i % 4}:0.5" for i in range(N_ROWS)]
    ),
}
_LOADERS = {
    "rows.libfm": datasets.load_libfm,
    "rows.ffm": datasets.load_libffm,
}


def loader(rng):
    """Loaders of damaged files, compressed or not."""
    name = pick(rng, [*FILES])
    compressed, before = rng.random() < 0.3, rng.random() < 0.5
    path = Path(FOLDER.name) / (name + ".gz" * compressed)
    load = _LOADERS.get(name, datasets.load_interactions)
    content = FILES[name]
    if compressed and before:
        content = faults.gzip.compress(content, mtime=0)

    def run(content):
        path.write_bytes(faults.gzip.compress(content) if compressed and not before else content)
        answer = load(path)
        return answer[0] if isinstance(answer, tuple) else answer

    def check(answer, intact):
        require(np.isfinite(answer.data).all(), "not finite")
        answer.check_format(full_check=True)

    return Call(run, {"content": (content, faults.content, {})}, check, (path.name,))


@functools.cache
def _checkpoint(name):
    cls, params = getattr(freqfm, name), {**FM, **RECOMMENDERS}[name]
    path = Path(FOLDER.name) / name
    model = cls(**{**params, "max_iter": 3}).set_callbacks(callbacks.Checkpoint(path, every=2))
    model.fit(*((ROWS, TARGET) if name in FM else (HISTORIES,)))
    return path.read_bytes()


def checkpoint(rng):
    """Fits that go on from a damaged file."""
    name = pick(rng, [*FM, *RECOMMENDERS])
    path = Path(FOLDER.name) / "model.checkpoint"

    def run(content):
        path.write_bytes(content)
        model = callbacks.resume(path).fit(*((ROWS, TARGET) if name in FM else (HISTORIES,)))
        return outputs(model) if name in FM else model.recommend(users=[0, 1])

    args = {"content": (_checkpoint(name), faults.archive, {})}
    names = (path.name, "X", "y", *vars(_fitted(name)))
    return Call(run, args, check_finite if name in FM else check_items(N_ITEMS), names)


def _find_array(rng, holder):
    """Return a place below some attributes that holds an array: (its dict or list, the key)."""
    key = pick(rng, [k for k in holder if k.endswith("_") or k.startswith("_")])
    for _ in range(3):
        value = holder[key]
        if hasattr(value, "__dict__") and not isinstance(value, (np.ndarray, type)):
            value = vars(value)
        if isinstance(value, (list, dict)) and value:
            holder, key = (
                value,
                pick(rng, [*value] if isinstance(value, dict) else range(len(value))),
            )
    return holder, key


def _uses(model):
    """Return what can be done with a model, and how its answer is checked."""
    if not hasattr(model, "recommend"):
        return [
            (lambda: outputs(model), check_finite),
            (lambda: outputs(model.partial_fit(ROWS, TARGET)), check_finite),
        ]
    named = hasattr(model, "user_ids_")
    users, items = (["u0", "u3"], ["i1", "i2"]) if named else ([0, 3], [1, 2])
    of_items, of_users = (
        (check_named,) * 2 if named else (check_items(N_ITEMS), check_items(N_USERS))
    )
    more = TABLE if named else HISTORIES
    uses = [
        (lambda: model.recommend(users=users), of_items),
        (lambda: model.recommend(users=users, candidates=items), of_items),
        (lambda: model.similar_items(items, 3), of_items),
        (lambda: model.similar_users(users, 3), of_users),
        (lambda: model.predict_pairs(users, items), check_finite),
        (lambda: model.partial_fit(more).recommend(users=users), of_items),
    ]
    by_history = [
        (lambda: model.recommend(HISTORIES), of_items),
        (lambda: model.transform(HISTORIES), None),
    ]
    return uses if named else uses + by_history


def changed_model(rng):
    """Models whose learned attributes were changed, by hand or in a file."""
    name = pick(rng, [*FM, *RECOMMENDERS, "InteractionRecommender"])
    model = fitted(name)
    part = model.estimator_ if hasattr(model, "estimator_") and rng.random() < 0.5 else model
    holder, key = _find_array(rng, vars(part))
    stored, (run, check) = rng.random() < 0.2, pick(rng, [*enumerate(_uses(model))])
    names = (*vars(getattr(model, "estimator_", model)), *vars(model), "fit", "model")

    def change_and_use(changed):
        holder[key] = changed
        used = pickle.loads(pickle.dumps(model)) if stored else model
        return _uses(used)[run][0]()

    return Call(change_and_use, {"changed": (holder[key], faults.array, {})}, check[1], names)


TARGETS = [fm_fit, fm_use, mf_fit, als_fit, vae_fit, recommend, recommender_use, table_fit]
TARGETS += [table_use, sampler, metric, splitter, holdout, scorer, made_data, loader]
TARGETS += [checkpoint, changed_model, words_fit, words_use]
TARGETS = {target.__name__: target for target in TARGETS}
