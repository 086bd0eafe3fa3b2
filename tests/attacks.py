"""Attacks on learned attributes, to be run in a separate process: ``python attacks.py 3 NAME``.

Every array that a fitted model holds is replaced by what fit cannot have left there, and the model
is used in some ways: in every third one, beginning with another for each replacement, so that every
array meets every replacement and every use; ``1`` instead of ``3`` is each use of each replacement.
A crash ends the process. Otherwise it prints a line for each use that neither refused the model in
words that name the attribute, nor could do without it.
"""

import copy
import itertools
import sys

import numpy as np
from scipy import sparse

from freqfm import (
    ALSRecommender,
    DeepFMClassifier,
    FastVAERecommender,
    FFMClassifier,
    FMClassifier,
    FMRegressor,
    FwFMClassifier,
    MFRecommender,
    RaFMClassifier,
    RaFMRegressor,
    Word2Vec,
    _components,
)
from freqfm.backbones import Features
from freqfm.datasets import make_interactions
from freqfm.samplers import SAMPLERS

WORDS = ValueError, TypeError, AttributeError

ROWS = sparse.random(40, 6, density=0.5, format="csr", random_state=0, dtype=np.float32)
CLASSES = np.arange(40) % 3
FIELDS = [0, 0, 1, 1, 1, 2]
HISTORIES = make_interactions(30, 12, 180, random_state=0)

MACHINES = {
    "FMClassifier": lambda: (FMClassifier(3, optimizer="adam"), CLASSES > 0),
    "FMClassifier of 3": lambda: (FMClassifier(3), CLASSES),
    "FMRegressor": lambda: (FMRegressor(3, optimizer="rowwise_adagrad"), CLASSES * 1.0),
    "RaFMClassifier": lambda: (RaFMClassifier((2, 3), rank_assignment=[20]), CLASSES),
    "RaFMRegressor": lambda: (
        RaFMRegressor((2, 3), rank_assignment=[20], rank_sharing="truncate", optimizer="adagrad"),
        CLASSES * 1.0,
    ),
    "FFMClassifier": lambda: (FFMClassifier(3, fields=FIELDS), CLASSES),
    "FwFMClassifier": lambda: (FwFMClassifier(3, fields=FIELDS), CLASSES),
    "DeepFMClassifier": lambda: (
        DeepFMClassifier(3, hidden_layer_sizes=(4,), fields=FIELDS),
        CLASSES,
    ),
}
RECOMMENDERS = {
    "MFRecommender": lambda: MFRecommender(4),
    "MFRecommender by mawu": lambda: MFRecommender(4, loss="mawu", optimizer="cf_sgd"),
    "MFRecommender by bpr": lambda: MFRecommender(4, loss="bpr", negative_sampler="dns"),
    "MFRecommender by features": lambda: MFRecommender(
        4, backbone=Features(np.eye(30)[:, :4], np.eye(12)[:, :3]), optimizer="adagrad"
    ),
    "ALSRecommender": lambda: ALSRecommender(4),
    "FastVAERecommender": lambda: FastVAERecommender(
        4, hidden_layer_sizes=(5, 3), decoder_layer_sizes=(4,), early_stopping=False
    ),
    "FastVAERecommender by midx": lambda: FastVAERecommender(
        4, negative_sampler="midx_uniform", early_stopping=False
    ),
}
EMBEDDINGS = {
    "Word2Vec": lambda: Word2Vec(4, min_count=1),
    "Word2Vec by CBOW": lambda: Word2Vec(4, min_count=1, architecture="cbow", optimizer="adam"),
}
DOCUMENTS = [["a", "b", "c", "a", "d"], ["b", "d", "d"]] * 4

# What every use needs, and what only further training needs.
OF_MACHINES = {"n_features_in_", "intercept_", "coef_", "factors_", "_factors", "ranks_"}
OF_MACHINES |= {"feature_ranks_", "factor_rows_", "_dense", "_layer_widths", "fields_", "_n_fields"}
OF_RECOMMENDERS = {"n_features_in_", "item_factors_", "item_counts_", "_history", "layers_"}
OF_RECOMMENDERS |= {"_inverse_temperatures", "_fold_in", "user_factors_", "input_factors_"}
OF_RECOMMENDERS |= {f"_history.{field}" for field in ("indptr", "indices", "weights")}
OF_RECOMMENDERS |= {
    f"_fold_in.{field}" for field in ("against", "others", "pairwise", "cosine", "constant")
}
OF_RECOMMENDERS |= {"_objective"} | {
    f"_objective.{field}" for field in ("unobserved_weight", "regularization", "exponent")
}
OF_TRAINING = {"_optimizer_state", "_n_steps", "_states", "_training"}
OF_TRAINING |= {"user_margins_", "item_margins_"}
OF_TRAINING |= {
    f"_training.{field}"
    for field in (
        "optimizer",
        "n_steps",
        "temperature_state",
        "statistics",
        "codewords",
        "shared_state",
    )
}
# Of these, numbers out of range are as bad as a wrong shape.
INDICES = {"_history.indices", "_history.indptr", "_fold_in.others", "factor_rows_", "ranks_"}
INDICES |= {"n_features_in_"}


def without_batches(X, y):
    """Return ways to use a machine."""
    return {
        "predict": lambda model: model.predict(X),
        "partial_fit": lambda model: model.partial_fit(X, y),
        "fit": lambda model: model.set_params(warm_start=True).fit(X, y),
    }


def of_recommender():
    """Return ways to use a recommender."""
    users = np.arange(HISTORIES.shape[0])
    return {
        "recommend to users": lambda model: model.recommend(users=users),
        "recommend": lambda model: model.recommend(HISTORIES),
        "transform": lambda model: model.transform(HISTORIES),
        "score": lambda model: model.score(HISTORIES),
        "predict_pairs": lambda model: model.predict_pairs(users, users % 12),
        "similar_items": lambda model: model.similar_items([0, 11]),
        "similar_users": lambda model: model.similar_users(users),
        "explain": lambda model: [model.explain(user, 3) for user in (0, 29)],
        "partial_fit": lambda model: model.partial_fit(HISTORIES),
        "fit": lambda model: model.set_params(warm_start=True).fit(HISTORIES),
    }


def of_words():
    """Return ways to use vectors of words."""
    return {
        "transform": lambda model: model.transform(DOCUMENTS),
        "most_similar": lambda model: model.most_similar("a", n=2),
        "similarity": lambda model: model.similarity("a", "b"),
        "doesnt_match": lambda model: model.doesnt_match(["a", "b", "d"]),
        "score": lambda model: model.score(DOCUMENTS),
        "partial_fit": lambda model: model.partial_fit(DOCUMENTS),
    }


def broken(value):
    """Yield what an attribute cannot be, with a name for it; numbers out of range are "indices"."""
    yield "None", None
    yield "text", "x"
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        for other in (-1, 0, value - 1, value + 1, 1 << 40, 2.5):
            yield "indices", other
    if isinstance(value, (list, dict)):
        yield "empty", type(value)()
        items = enumerate(value) if isinstance(value, list) else value.items()
        for key, part in items:
            for name, other in broken(part):
                whole = copy.copy(value)
                whole[key] = other
                yield name, whole
    if not isinstance(value, np.ndarray):
        return
    if value.size:
        yield "longer", np.concatenate([value, value, value])
        yield "shorter", value[:-1]
        yield "empty", value[:0]
        yield "narrower", value[..., :-1]
    yield "of more dimensions", value[None]
    yield "of no dimension", value.reshape(-1)[0] if value.size else np.float32(0)
    dtypes = [object, complex, "U3"]
    if value.dtype.kind in "iuf" and value.itemsize > 1:
        dtypes += [value.dtype.newbyteorder(), np.float16]
    for dtype in dtypes:
        yield str(dtype), value.astype(dtype)
    if value.dtype.kind in "iu" and value.size:
        for place in (0, -1):
            for bad in (-1, -(1 << 30), 1 << 30):
                other = value.copy()
                other.reshape(-1)[place] = bad
                yield "indices", other


def use(model, attribute, kind, uses, needed):
    """Use a broken model; print what was not refused in words."""
    for name, call in uses.items():
        if name == "explain" and not hasattr(model, "explain"):
            continue
        training = name in ("partial_fit", "fit")
        # A pickle would have the byte order of this machine.
        victim = copy.deepcopy(model) if training else model
        try:
            with np.errstate(all="ignore"):
                call(victim)
        except WORDS as error:
            must = attribute in needed | OF_TRAINING and kind != "narrower"
            if must and attribute not in str(error):
                print(f"{attribute} {kind}: {name} says {type(error).__name__}: {error}")
        except Exception as error:
            print(f"{attribute} {kind}: {name} raises {type(error).__name__}: {error}")
        else:
            must = attribute in needed or (training and attribute in OF_TRAINING)
            if attribute.startswith("_history.") and kind == "indices":
                # Of the users that are asked for, before training of all.
                must = training or name in ("recommend to users", "explain")
            if attribute in ("_fold_in.others", "_training.codewords", "_history.indptr"):
                must &= kind not in ("longer", "shorter", "empty")  # nothing else has the length
            # Machines with fewer factors are as good.
            if must and (attribute in INDICES if kind == "indices" else kind != "narrower"):
                print(f"{attribute} {kind}: {name} does not mind")


def in_turn(uses, every):
    """Return a function of an attribute's name that returns some of the uses.

    At each call they begin with another one. What only training needs is used by training only.
    """
    starts = itertools.cycle(range(every))

    def uses_of(name):
        if name in OF_TRAINING:
            return {"partial_fit": uses["partial_fit"]}
        return dict(list(uses.items())[next(starts) :: every])

    return uses_of


def attack(model, uses, needed, every):
    """Break the learned attributes of a model one after the other, and the fields of tuples."""
    uses_of = in_turn(uses, every)
    parameters = model.get_params(deep=False)
    for attribute, value in list(vars(model).items()):
        learned = isinstance(value, (np.ndarray, list, dict, tuple))
        if attribute in parameters or not (learned or attribute in INDICES):
            continue
        attack_part(model, attribute, value, lambda other: other, uses_of, needed)
        fields = value._asdict() if hasattr(value, "_fields") else {}
        for field, part in fields.items():

            def whole(other, value=value, field=field):
                return value._replace(**{field: other})

            attack_part(model, f"{attribute}.{field}", part, whole, uses_of, needed)
        delattr(model, attribute)
        # A model without these is one before its first fit.
        fresh = {} if attribute in ("coef_", "item_factors_", "vectors_") else uses
        use(model, attribute, "missing", fresh, needed)
        setattr(model, attribute, value)


def attack_part(model, name, value, whole, uses_of, needed):
    """Break an attribute or a part of it; ``whole`` returns the attribute with another part."""
    attribute = name.partition(".")[0]
    for kind, other in broken(value):
        print("attack", name, kind, file=sys.stderr, flush=True)
        # An empty array where fit left one is what fit left.
        same = isinstance(value, np.ndarray) and not value.size and np.shape(other)[:1] == (0,)
        if same or other is value:
            continue
        setattr(model, attribute, whole(other))
        use(model, name, kind, uses_of(name), needed)
    setattr(model, attribute, whole(value))


def attack_sampler(sampler):
    """Break the arrays of what a sampler keeps."""
    queries = np.random.default_rng(1).normal(size=(2, 4))
    sampler.fit(np.random.default_rng(0).normal(size=(50, 4)), random_state=0)
    uses = {"sample": lambda sampler: sampler.sample(queries, 20)}
    proposal = sampler.proposal_
    for field, value in proposal._asdict().items():
        for kind, other in broken(value):
            if field == "n_candidates" and kind == "indices":
                continue  # as many draws as are asked for
            print("attack", field, kind, file=sys.stderr, flush=True)
            sampler.proposal_ = proposal._replace(**{field: other})
            use(sampler, "proposal_", kind, uses, set())
    sampler.proposal_ = proposal
    for kind, other in broken(sampler.item_vectors_):
        whole = copy.copy(sampler)
        whole.item_vectors_ = other
        use(whole, "item_vectors_", kind, uses, {"item_vectors_"})


def main(name, every):
    if name in SAMPLERS:
        attack_sampler(SAMPLERS[name]())
    elif name in MACHINES:
        model, y = MACHINES[name]()
        model.set_params(max_iter=1, random_state=0, n_jobs=2).fit(ROWS, y)
        attack(model, without_batches(ROWS, y), OF_MACHINES, every)
    elif name in EMBEDDINGS:
        model = EMBEDDINGS[name]()
        model.set_params(max_iter=1, random_state=0, n_jobs=2).fit(DOCUMENTS)
        attack(model, of_words(), {"vocabulary_", "vectors_"}, every)
    else:
        model = RECOMMENDERS[name]()
        model.set_params(max_iter=1, random_state=0, n_jobs=2).fit(HISTORIES)
        attack(model, of_recommender(), OF_RECOMMENDERS, every)


if __name__ == "__main__":
    # Parameters are all valid, and are not what is attacked.
    _components.validate_parameter_constraints = lambda *given, **options: None
    every, *names = sys.argv[1:]
    for name in names:
        print("attack", name, file=sys.stderr, flush=True)
        main(name, int(every))
