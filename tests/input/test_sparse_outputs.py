"""Sparse matrices that the package returns have the types of indices that scikit-learn takes."""

import inspect
import re

import numpy as np
from helpers import CLASSES, each
from scipy import sparse
from sklearn.base import clone, is_classifier
from sklearn.datasets import dump_svmlight_file
from sklearn.decomposition import TruncatedSVD
from sklearn.ensemble import RandomForestClassifier, StackingClassifier
from sklearn.feature_extraction import FeatureHasher
from sklearn.feature_selection import SelectKBest, chi2
from sklearn.linear_model import SGDClassifier
from sklearn.pipeline import FeatureUnion
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier

import freqfm
from freqfm import (
    EASERecommender,
    FMRegressor,
    GraphFilterRecommender,
    ItemKNNRecommender,
    MFRecommender,
    WithFields,
    datasets,
    model_selection,
)
from freqfm.datasets import (
    IncrementalOneHotEncoder,
    RowStream,
    dump_libffm,
    load_csr,
    load_interactions,
    load_libffm,
    load_libfm,
    make_clicks,
    make_interactions,
    save_csr,
)
from freqfm.model_selection import holdout_by_content, holdout_interactions

ROWS = np.random.default_rng(0).integers(0, 4, (200, 3))
TARGET = (ROWS[:, 0] == ROWS[:, 1]).astype(int)
ONE_HOT = sparse.csr_array(OneHotEncoder(dtype=np.float32).fit_transform(ROWS))


def explained(cls):
    params = {"ranks": (2,), "rank_assignment": []} if "RaFM" in cls.__name__ else {}
    fields = {"fields": np.repeat([0, 1, 2], 4)} if "fields" in cls._get_param_names() else {}

    def outputs(X, folder):
        model = cls(max_iter=1, random_state=0, **params, **fields).fit(X, TARGET)
        yield model.explain(X).contributions
        yield model.explain(X, background=X[:5]).contributions
        if is_classifier(model):
            yield from model.fit(X, ROWS[:, 0]).explain(X[:3]).contributions

    return outputs


def of_files(X, folder):
    save_csr(folder / "csr", X, TARGET)
    for mmap in (True, False):
        yield load_csr(folder / "csr", mmap=mmap).data
    for chunk in RowStream.from_csr(folder / "csr"):
        yield chunk[0]


def of_streams(X, folder):
    options = {"encoder": FeatureHasher(64, input_type="string"), "shuffle": True}
    blocks = [(X, TARGET)], [(ROWS.astype(str), TARGET)]
    for source, given in zip(blocks, ({}, options), strict=True):
        for chunk in RowStream(lambda source=source: iter(source), chunk_size=64, **given):
            yield chunk[0]
    encoder = WithFields(IncrementalOneHotEncoder())
    yield from (chunk[0] for chunk in RowStream(lambda: iter([(ROWS, TARGET)]), encoder=encoder))


def of_libffm(X, folder):
    dump_libffm(X, TARGET, folder / "f", fields=np.repeat([0, 1, 2], 4))
    yield load_libffm(folder / "f")[0]
    yield load_libffm([folder / "f"] * 2)[2]


def of_libfm(X, folder):
    dump_svmlight_file(ONE_HOT, TARGET, str(folder / "f"))
    yield load_libfm(folder / "f")[0]


def of_tables(X, folder):
    (folder / "f.txt").write_text("1 2 3\n2 2\n")
    yield load_interactions(folder / "f.txt")


def rows_with_fields(X, folder):
    for encoder in (
        OneHotEncoder(),
        OneHotEncoder(sparse_output=False),
        IncrementalOneHotEncoder(),
    ):
        rows = WithFields(encoder).fit_transform(ROWS)
        yield from (rows, rows.copy(), rows[:5], rows[:, :5], abs(rows), rows.tocsc().tocsr())


OUTPUTS = {
    "WithFields.transform": rows_with_fields,
    "WithFields.fit_transform": rows_with_fields,
    "IncrementalOneHotEncoder.transform": lambda X, folder: [
        IncrementalOneHotEncoder().fit_transform(ROWS)
    ],
    "RowStream.epoch": of_streams,
    "load_csr": of_files,
    "load_libffm": of_libffm,
    "load_libfm": of_libfm,
    "load_interactions": of_tables,
    "make_clicks": lambda X, folder: [make_clicks(50, (5, 4), random_state=0)[0]],
    "make_interactions": lambda X, folder: [make_interactions(50, 40, 500, random_state=0)],
    "holdout_by_content": lambda X, folder: holdout_by_content(X, 0.3),
    "holdout_interactions": lambda X, folder: holdout_interactions(X, 0.3),
    **{
        cls.__name__: lambda X, folder, cls=cls: [cls().fit(X).item_weights_]
        for cls in (EASERecommender, GraphFilterRecommender, ItemKNNRecommender)
    },
    "FMRegressor.explain": explained(FMRegressor),
}
SLOW = {f"{cls.__name__}.explain": explained(cls) for cls in CLASSES if cls is not FMRegressor}


def documented_outputs():
    """Return the names of what documents that it returns a csr_array, or has one as attribute."""
    for module in (freqfm, datasets, model_selection):
        for name in module.__all__:
            given = getattr(module, name)
            methods = vars(given) if inspect.isclass(given) else {}
            methods = {**methods, "explain": getattr(given, "explain", None)} if methods else {}
            for label, of in {
                name: given,
                **{f"{name}.{m}": f for m, f in methods.items()},
            }.items():
                if callable(of) and not label.partition(".")[2].startswith("_"):
                    doc = inspect.getdoc(of) or ""
                    part = re.search(
                        r"^(Returns|Attributes)\n-+\n(.*?)(\n\n\w+\n-+|\Z)", doc, re.M | re.S
                    )
                    if part and re.search("csr_array|CSR", part[2]):
                        yield label


def test_all_sparse_outputs_are_known():
    of_network = {"fetch_gowalla", "fetch_movielens"}
    assert set(documented_outputs()) - of_network == {*OUTPUTS, *SLOW}


@each("name", OUTPUTS, slow=SLOW)
@each("dtype", [np.int32, np.int64])
def test_sparse_outputs_are_as_scikit_learn_makes_them(name, dtype, tmp_path_factory):
    X = sparse.csr_array(ONE_HOT, copy=True)
    X.indices, X.indptr = X.indices.astype(dtype), X.indptr.astype(dtype)
    outputs = list({**OUTPUTS, **SLOW}[name](X, tmp_path_factory.mktemp("output")))
    assert outputs
    for output in outputs:
        assert isinstance(output, sparse.csr_array)
        assert (output.indices.dtype, output.indptr.dtype) == (np.int32, np.int32)
        output.check_format(full_check=True)


@each("kind", ["rows with fields", "contributions"])
@each(
    "use",
    [
        StandardScaler(with_mean=False),
        TruncatedSVD(2),
        SGDClassifier(),
        SVC(),
        DecisionTreeClassifier(),
        RandomForestClassifier(2),
        FeatureUnion([("all", "passthrough"), ("svd", TruncatedSVD(2))]),
        StackingClassifier([("svc", SVC())], passthrough=True),
        SelectKBest(chi2, k=2),
    ],
)
def test_sparse_outputs_are_input_of_scikit_learn(kind, use):
    X = WithFields(OneHotEncoder()).fit_transform(ROWS)
    if kind == "contributions":
        X = abs(FMRegressor(2, max_iter=1).fit(X, TARGET).explain(X).contributions)
    fitted = clone(use).fit(X, TARGET)
    (fitted.predict if hasattr(fitted, "predict") else fitted.transform)(X)
    for stack, parts in ((sparse.hstack, [X, np.ones((200, 1)), X]), (sparse.vstack, [X, X])):
        assert stack(parts).shape[0] in (200, 400)


def test_scorers_get_rows_of_one_type_of_indices():
    given = []

    def scorer(model, X, y):
        given.append(X)
        return X.tocoo().tocsr().sum()

    FMRegressor(2, max_iter=2, scoring=scorer, early_stopping=True).fit(ONE_HOT, TARGET)
    model = MFRecommender(2, max_iter=2, scoring=lambda model, X, y: scorer(model, X, y))
    model.set_params(early_stopping=True).fit(make_interactions(50, 40, 500, random_state=0))
    assert len(given) > 2
    assert {(X.indices.dtype, X.indptr.dtype) for X in given} == {(np.dtype("i4"), np.dtype("i4"))}
