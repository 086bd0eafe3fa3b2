"""Errors and warnings that hold what a user gave: on one line, escaped, and cut."""

import re
import warnings

import numpy as np
import pytest
from helpers import each, slow_params
from sklearn.feature_extraction import FeatureHasher

from freqfm import (
    FMClassifier,
    FMRegressor,
    InteractionRecommender,
    MFRecommender,
    RaFMClassifier,
    Word2Vec,
)
from freqfm._messages import cut, shorten, shown
from freqfm.backbones import Features
from freqfm.callbacks import Checkpoint
from freqfm.datasets import (
    IncrementalOneHotEncoder,
    RowStream,
    load_interactions,
    load_libffm,
    load_libfm,
)
from freqfm.displays import MagnitudePopularityDisplay
from freqfm.metrics import ndcg_at_k, normalized_entropy, stratified_ndcg_at_k
from freqfm.model_selection import LeaveLastOut, make_ranking_scorer


@each(
    "value, expected",
    [
        ("a b", "'a b'"),
        ("7", "'7'"),
        (7, "7"),
        (np.int64(7), "7"),
        (np.str_("a"), "'a'"),
        (np.float32(0.5), "0.5"),
        (float("nan"), "nan"),
        (None, "None"),
        (b"\xff", r"b'\xff'"),
        (np.datetime64("2024-01-31"), "2024-01-31"),
        ("two\nlines", r"'two\nlines'"),
        ("\x1b[2J", r"'\x1b[2J'"),
        ("\ud800", r"'\ud800'"),
        ("a\u202eb", r"'a\u202eb'"),
        (["a", 1], "['a', 1]"),
        (np.zeros((2, 2)), "array([[0., 0.], [0., 0.]])"),
    ],
)
def test_values_are_shown_on_one_line(value, expected):
    assert shown(value) == expected


class Loud:
    def __repr__(self):
        return "\x1b[31m\r\n" + "x" * 1000


@each(
    "value",
    ["x" * 10**7, 10**4000, ["x" * 10**5] * 10**5, {"x" * 10**5: ["y" * 10**5] * 99}, Loud()],
)
def test_long_values_are_cut(value):
    assert len(shown(value)) < 350 and shown(value).isprintable()


def test_text_is_cut_and_keeps_its_script():
    assert cut("x" * 100, 10) == "xxxxxxx..."
    for text in ("山田\u3000太郎", "क्\u200dष", "naïve", "👩\u200d🔬"):
        assert cut(text) == text
    assert cut("a\n\n  b\x00\x9b") == r"a b\x00\x9b"


def test_names_are_listed():
    assert shorten(np.array(["a", "b"])) == "['a', 'b']"
    assert shorten(iter("abc"), 2) == "['a', 'b'] and 1 more"
    assert shorten([]) == "[]"


LOG = [["u1", "a"], ["u1", "b"], ["u2", "a"], ["u2", "b"]]


@pytest.fixture(scope="module")
def fitted():
    model = InteractionRecommender(MFRecommender(2, max_iter=1, random_state=0)).fit(LOG)
    words = Word2Vec(min_count=1, n_components=2, max_iter=1).fit([["tea", "jam"], ["jam", "egg"]])
    return model, words


def frame(columns):
    pd = pytest.importorskip("pandas")
    return pd.DataFrame(columns)


def stream(encoder, X):
    return list(RowStream(lambda: iter([(X, [0, 1])]), encoder=encoder, prefetch=0))


ROWS = np.eye(3, dtype=np.float32)

#: What says something about a string: calls with a model, words, the string and a folder.
CALLS = {
    "unknown users": lambda m, w, text, at: m.similar_users([text]),
    "ids of another kind": lambda m, w, text, at: m.recommend([7, text]),
    "ids in lists": lambda m, w, text, at: m.recommend(history=text),
    "ids of several types": lambda m, w, text, at: m.fit([[text, 1], [1, text]]),
    "ids that are lists": lambda m, w, text, at: m.recommend([[(text, 1)]]),
    "explained items": lambda m, w, text, at: m.explain(text, "a"),
    "tokens": lambda m, w, text, at: w.most_similar(text),
    "documents": lambda m, w, text, at: w.transform([{text: 1}]),
    "documents of bytes": lambda m, w, text, at: w.transform([repr(text).encode()]),
    "tokens of another type": lambda m, w, text, at: w.transform([[(text,)]]),
    "text in rows": lambda m, w, text, at: FMRegressor().fit([[text]], [1.0]),
    "text in targets": lambda m, w, text, at: FMRegressor().fit(ROWS, [text, "1", "2"]),
    "one class": lambda m, w, text, at: FMClassifier().fit(ROWS, [text] * 3),
    "classes of the first call": lambda m, w, text, at: (
        FMClassifier(2).partial_fit(ROWS, [text, text, "b"]).partial_fit(ROWS, ["b", "c", "d"])
    ),
    "labels": lambda m, w, text, at: normalized_entropy([text] * 3, [0.1, 0.2, 0.3]),
    "a loss": lambda m, w, text, at: MFRecommender(loss=text).fit(ROWS),
    "an optimizer": lambda m, w, text, at: FMClassifier(optimizer=text).fit(ROWS, [0, 1, 0]),
    "a metric": lambda m, w, text, at: make_ranking_scorer(text),
    "a device": lambda m, w, text, at: FMClassifier(device=text).fit(ROWS, [0, 1, 0]),
    "a number": lambda m, w, text, at: RowStream.from_csr(ROWS, [0, 1, 0], chunk_size=text),
    "a name of a column": lambda m, w, text, at: InteractionRecommender(user=text).fit(
        frame({"user": [1, 2], "item": [1, 2]})
    ),
    "names of columns": lambda m, w, text, at: InteractionRecommender().fit(
        frame({text: [1, 2], "what": [1, 2]})
    ),
    "several columns": lambda m, w, text, at: InteractionRecommender().fit(
        frame({"user": [1, 2], "user_id": [1, 2], "item": [1, 2], text: [1, 2]})
    ),
    "text in values": lambda m, w, text, at: InteractionRecommender(value="value").fit(
        frame({"user": [1, 2], "item": [1, 2], "value": [text, "1"]})
    ),
    "times": lambda m, w, text, at: list(
        LeaveLastOut().split(frame({"user": [1, 1], "item": [1, 2], "time": [text, "2024-01-31"]}))
    ),
    "features of users": lambda m, w, text, at: InteractionRecommender(
        user_features=frame({"user": ["u1"], "age": [1]})
    ).fit([["u1", "a"], [text, "b"]]),
    "features twice": lambda m, w, text, at: InteractionRecommender(
        user_features=frame({"user": [text, text], "age": [1, 2]})
    ).fit(LOG),
    "categories": lambda m, w, text, at: IncrementalOneHotEncoder().fit([[text], [1]]),
    "blocks of text": lambda m, w, text, at: stream(None, [[text], [text]]),
    "a type of input": lambda m, w, text, at: stream(FeatureHasher(input_type=text), [[1], [2]]),
    "text in given validation rows": lambda m, w, text, at: FMRegressor().fit(
        ROWS, [0, 1, 0], X_val=[[text] * 3], y_val=[1]
    ),
    "text in given validation targets": lambda m, w, text, at: FMRegressor().fit(
        ROWS, [0, 1, 0], X_val=ROWS, y_val=[text] * 3
    ),
    "text in weights": lambda m, w, text, at: FMRegressor().fit(ROWS, [0, 1, 0], [text] * 3),
    "weights of classes": lambda m, w, text, at: FMClassifier(class_weight={text: 2}).fit(
        ROWS, [0, 1, 0]
    ),
    "text in histories": lambda m, w, text, at: MFRecommender().fit([[text, "1"], ["1", "2"]]),
    "users of a matrix": lambda m, w, text, at: (
        MFRecommender(2, max_iter=1).fit(ROWS).recommend(users=[text])
    ),
    "a list of ranks": lambda m, w, text, at: RaFMClassifier(ranks=(text,)).fit(ROWS, [0, 1, 0]),
    "features": lambda m, w, text, at: MFRecommender(
        backbone=Features(item_features=[[text]] * 3)
    ).fit(ROWS),
    "relevant items": lambda m, w, text, at: ndcg_at_k([[text]], [[0]]),
    "ranked items": lambda m, w, text, at: ndcg_at_k([[1]], [[text]]),
    "counts of items": lambda m, w, text, at: stratified_ndcg_at_k([[1]], [[0]], [text], 1),
    "probabilities": lambda m, w, text, at: normalized_entropy([0, 1], [text, text]),
    "a file of vectors": lambda m, w, text, at: Word2Vec.load_word2vec_format(
        written(at, f"1 2\na {text} 1\n")
    ),
    "names of features": lambda m, w, text, at: (
        FMRegressor(2, max_iter=1).fit(ROWS, [0, 1, 0]).interaction_strengths(feature_names=text)
    ),
    "of": lambda m, w, text, at: MagnitudePopularityDisplay.from_estimator(m, of=text),
    "a shape": lambda m, w, text, at: load_interactions(written(at, "1 2"), shape=text),
    "a format": lambda m, w, text, at: load_interactions(written(at, "1 2"), format=text),
    "lines of interactions": lambda m, w, text, at: load_interactions(written(at, text)),
    "lines of libfm": lambda m, w, text, at: load_libfm(written(at, text)),
    "lines of libffm": lambda m, w, text, at: load_libffm(written(at, f"1 {text}")),
    "parameters in checkpoints": lambda m, w, text, at: (
        FMRegressor(verbose=0, loss={text: Loud()})
        .set_callbacks(Checkpoint(at / "file"))
        .fit(ROWS, [0, 1, 0])
    ),
}


def written(folder, text):
    (folder / "file").write_bytes(text.encode("utf-8", "surrogatepass"))
    return folder / "file"


HOSTILE = ["\x1b[2J\x07", "a\nb\r\nc", "\ud800", "\u202eabc", "x" * 10**5]


# Fits with features compile kernels of their own.
QUICK = [call for call in CALLS if call not in ("features of users", "features twice")]


@pytest.mark.parametrize("call", [*QUICK, *slow_params(["features of users", "features twice"])])
def test_errors_and_warnings_are_short_and_escaped(call, fitted, tmp_path):
    for text in HOSTILE:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                CALLS[call](*fitted, text, tmp_path)
            except (TypeError, ValueError, KeyError, AttributeError) as error:
                caught.append(error)
        assert caught, text[:9]
        for found in caught:
            message = str(getattr(found, "message", found))
            assert len(message) < 2000, message[:200]
            assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\ud800-\udfff]", message), (
                message
            )
            assert "b\r\nc" not in message and "a\nb" not in message, message
