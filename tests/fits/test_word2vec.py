"""Word2Vec: training against a reference, vocabulary, questions, files, conventions."""

import gzip
import itertools
import pickle
import re
from contextlib import nullcontext

import numpy as np
import pytest
from helpers import each, slow_params
from numpy.testing import assert_allclose, assert_array_equal
from reference.numpy_backend.word2vec import Word2VecEpochs, gradients, pairs_of
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import check_estimator

from freqfm import DivergenceError, Word2Vec, backends
from freqfm.backends.base import TrainedTable, WordProblem
from freqfm.backends.cpu import team as team_module
from freqfm.backends.cpu import word2vec as word2vec_module
from freqfm.callbacks import Checkpoint, resume
from freqfm.estimators.state import make_rule, new_state
from freqfm.initializers import Normal
from freqfm.optimizers import CFSGD, FASGD, SGD, Adagrad, Adam, RowwiseAdagrad

ARCHITECTURES = ["skip_gram", "cbow"]
OPTIMIZERS = {
    "sgd": SGD(2.0),
    "fa_sgd": FASGD(2.0),
    "cf_sgd": CFSGD(max_step=0.3),
    "cf_sgd_unbounded": CFSGD(max_step=0.3, curvature_cap=np.inf),
    "rowwise_adagrad": RowwiseAdagrad(),
    "adagrad": Adagrad(),
    "adam": Adam(0.01),
    "dense_adam": Adam(0.01, lazy=False),
}
QUICK = "cf_sgd"

FEW = {"n_components": 6, "min_count": 1, "max_iter": 3, "random_state": 0, "n_jobs": 1}


def sentences(n=60):
    """Return documents in which the words of a topic stand together."""
    generator = np.random.default_rng(0)
    topics = [["cat", "dog", "cow", "pig", "hen"], ["red", "blue", "green", "black", "white"]]
    return [generator.choice(topics[i % 2], 8).tolist() for i in range(n)]


def a_problem(optimizer, cbow, **changed):
    thresholds, aliases = backends.get().alias_tables(np.array([0, 9]), np.arange(1, 10.0))
    problem = WordProblem(
        cbow=cbow, window=3, shrink_windows=True, n_negatives=4, batch_size=7, longest=20,
        thresholds=thresholds, aliases=aliases, width=5, rule=make_rule(optimizer, 0.0, "batch"),
        seed=3, formulas=optimizer.replacements(),
    )  # fmt: skip
    return problem._replace(**changed)


def a_text():
    generator = np.random.default_rng(1)
    documents = [generator.integers(0, 9, n) for n in (12, 1, 0, 9, 2)]
    return np.concatenate([[-1], *(np.append(d, -1) for d in documents)]).astype(np.int32)


def some_tables(optimizer):
    generator = np.random.default_rng(2)
    weights = [generator.normal(0, 0.5, (9, 5)).astype(np.float32) for _ in range(2)]
    states = [new_state(optimizer, np.arange(1, 10), 5) for _ in range(2)]
    return {
        name: TrainedTable(w, **state)
        for name, w, state in zip(("vectors", "output_vectors"), weights, states, strict=True)
    }


# The kernel


@pytest.mark.parametrize("cbow", [False, True])
@pytest.mark.parametrize("name", [QUICK, *slow_params(n for n in OPTIMIZERS if n != QUICK)])
def test_training_equals_the_reference(name, cbow):
    optimizer, tokens = OPTIMIZERS[name], a_text()
    problem = a_problem(optimizer, cbow)
    n_batches, trained, losses = -(-len(tokens) // problem.batch_size), [], []
    for trainer in (backends.get().word2vec_trainer(problem, 1), Word2VecEpochs(problem)):
        tables = some_tables(optimizer)
        with trainer:
            for epoch in range(2):
                steps = np.arange(epoch * n_batches, (epoch + 1) * n_batches + 1)
                trainer.begin_tables(tables, steps[0], optimizer.corrections(steps))
                losses.append(trainer.train(epoch, tokens))
                trainer.catch_up_tables(n_batches)
        trained.append(tables)
    assert_allclose(losses[:2], losses[2:], rtol=1e-5)
    for side in trained[0]:
        for ours, reference in zip(trained[0][side], trained[1][side], strict=True):
            assert_allclose(ours, reference, atol=2e-5)


@pytest.mark.parametrize("cbow", [False, True])
def test_gradient_of_the_reference_by_finite_differences(cbow):
    problem = a_problem(SGD(), cbow)
    positions = pairs_of(problem, a_text(), 0)
    generator = np.random.default_rng(0)
    tables = [generator.normal(0, 0.5, (9, 5)) for _ in range(2)]
    _, by, _, n_samples, _ = gradients(problem, positions, *tables)
    assert n_samples > 0
    for side, k, f in [(0, 3, 1), (0, 8, 4), (1, 5, 0), (1, 7, 2)]:
        values = []
        for shift in (1e-5, -1e-5):
            shifted = [table.copy() for table in tables]
            shifted[side][k, f] += shift
            values.append(gradients(problem, positions, *shifted)[0])
        assert_allclose(by[side][k, f], (values[0] - values[1]) / 2e-5, rtol=1e-6)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_bits_do_not_depend_on_threads(architecture, monkeypatch):
    # Subsampling, batches that end within documents, rows of no whole vector, many calls.
    monkeypatch.setattr(word2vec_module, "_PRODUCTS_PER_CALL", 1)
    model = Word2Vec(21, architecture=architecture, min_count=1, max_iter=2, random_state=0)
    documents = sentences(200)
    one = clone(model).set_params(n_jobs=1).fit(documents)
    sizes = itertools.cycle([2, 2, 1])
    monkeypatch.setattr(team_module, "_SECONDS_KNOWN", 0)
    monkeypatch.setattr(team_module, "free_cores", lambda wanted: min(next(sizes), wanted))
    two = clone(model).set_params(n_jobs=2).fit(documents)
    assert_array_equal(one.vectors_, two.vectors_)
    assert_array_equal(one.output_vectors_, two.output_vectors_)
    assert_array_equal(one.loss_curve_, two.loss_curve_)
    assert one.score(documents) == two.score(documents)


def test_learning_rate_decays_linearly():
    # With one batch an epoch, SGD's first steps have rates 1, 2/3 and 1/3.
    model = Word2Vec(
        **FEW,
        optimizer="sgd",
        learning_rate=3.0,
        batch_size=10_000,
        init=Normal(0.5),
        subsample=None,
    )
    documents = sentences(20)
    model.fit(documents)
    constant = clone(model).set_params(schedule="constant", max_iter=1).fit(documents)
    for rate in (2.0, 1.0):
        constant.set_params(learning_rate=rate).partial_fit(documents)
    assert_allclose(model.vectors_, constant.vectors_, rtol=1e-6)


# What is learned


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_words_of_a_topic_are_similar(architecture):
    model = Word2Vec(
        **{**FEW, "max_iter": 40}, architecture=architecture, subsample=None, batch_size=32
    ).fit(sentences())
    assert {word for word, _ in model.most_similar("cat", n=4)} == {"dog", "cow", "pig", "hen"}
    assert model.most_similar(["cat", "dog"], "red", n=1)[0][0] in {"cow", "pig", "hen"}
    assert model.similarity("red", "blue") > model.similarity("red", "hen")
    assert model.similarity("red", "red") == pytest.approx(1)
    assert model.doesnt_match(["cat", "white", "hen", "pig"]) == "white"
    assert len(model.most_similar("cat", n=50)) == 9
    assert model.loss_curve_[-1] < model.loss_curve_[0]
    assert model.score(sentences()) > model.score([["cat", "red"] * 4] * 30)


def test_documents_are_classified_in_a_pipeline():
    documents = [" ".join(words) for words in sentences()]
    y = np.arange(len(documents)) % 2
    pipeline = make_pipeline(Word2Vec(**{**FEW, "max_iter": 20}), LogisticRegression())
    assert pipeline.fit(documents[:40], y[:40]).score(documents[40:], y[40:]) == 1


def test_transform_is_the_mean_of_known_tokens():
    model = Word2Vec(**FEW).fit(sentences())
    row = [model.vectors_[model.vocabulary_[word]] for word in ("cat", "red", "cat")]
    means = model.transform([["cat", "never", "red", "cat"], [], "never seen"])
    assert_array_equal(model.transform(X=[["cat", "red", "cat"]]), means[:1])
    assert means.dtype == np.float32
    assert_allclose(means[0], np.mean(row, axis=0), rtol=1e-6)
    assert_array_equal(means[1:], 0)
    assert_array_equal(model.get_feature_names_out()[:2], ["word2vec0", "word2vec1"])
    found = Word2Vec(**FEW).fit_transform(text for text in sentences())
    assert_array_equal(found, model.transform(sentences()))


def test_vocabulary_and_counts():
    model = Word2Vec(**{**FEW, "min_count": 2}).fit(["b a a b c", "", "b a"])
    assert model.vocabulary_ == {"a": 0, "b": 1}
    assert_array_equal(model.token_counts_, [3, 3])
    assert model.vectors_.shape == model.output_vectors_.shape == (2, 6)


@pytest.mark.parametrize(
    ("analyzer", "vocabulary"),
    [
        ("word", {"a", "it", "s"}),
        ("whitespace", {"It's", "a", "A"}),
        (lambda text: list(text.replace(" ", "")), {"I", "t", "'", "s", "a", "A"}),
    ],
)
def test_strings_are_split(analyzer, vocabulary):
    assert Word2Vec(**FEW, analyzer=analyzer).fit(["It's a A"]).vocabulary_.keys() == vocabulary


@each(
    "text",
    [
        "मानक हिन्दी क्षत्रिय",
        "বাংলা ভাষা",
        "தமிழ் மொழி",
        "മലയാളം അവന്\u200d",  # ends with a joiner, as letters for final consonants were written
        "ශ්\u200dරී ලංකා",
        "ภาษาไทย ที่นี่",
        "ភាសាខ្មែរ ជំរាបសួរ",
        "မြန်မာ ဘာသာ",
        "བོད་ཡིག་ གཉིས་".replace("\u0f0b", " "),
        "مُحَمَّدٌ كِتَابٌ",
        "می\u200cخواهم کتاب\u200cها",  # noqa: RUF001
        "שָׁלוֹם עִבְרִית צה״ל",
        "paral·lel col·legi",
        "cafe\u0301 nai\u0308ve tie\u0302\u0301ng",
        "i\u0307stanbul snake_case x² 7",
        "葛\U000e0100 日本語",
        "ᠬᠠᠨ\u180eᠠ ᠮᠣᠩᠭᠣᠯ",
    ],
)
def test_words_of_any_script_are_whole(text):
    model = Word2Vec(**FEW).fit([text, f"«{text}»! " * 2])
    assert model.vocabulary_.keys() == set(text.split())


@each(
    ("text", "words"),
    [
        ("İstanbul Straße", {"i\u0307stanbul", "straße"}),
        ("\ufeffco\u00adope\u00adrate l\u200euck", {"cooperate", "luck"}),
        ("آية\u06dd٣", {"آية", "٣"}),  # the end of a verse and its number
        ("ինչպե՞ս ես", {"ինչպես", "ես"}),  # noqa: RUF001
        ("a · b", {"a", "b"}),
        ("the cat\u200bsat\u00a0down\u3000here", {"the", "cat", "sat", "down", "here"}),
        ("good ❤\ufe0f👩\u200d🚀day\u200c \u0301", {"good", "day"}),
        ("it's half-done…\x1fnow\x85\ud800then", {"it", "s", "half", "done", "now", "then"}),
    ],
)
def test_characters_between_and_within_words(text, words):
    assert Word2Vec(**FEW).fit([text]).vocabulary_.keys() == words


def test_documents_may_be_numbers_arrays_or_a_generator():
    sessions = np.random.default_rng(0).integers(5, 9, (10, 4))
    models = [Word2Vec(**FEW).fit(given) for given in (sessions, (s.tolist() for s in sessions))]
    assert models[0].vocabulary_ == {5: 0, 6: 1, 7: 2, 8: 3}
    assert_array_equal(models[0].vectors_, models[1].vectors_)
    assert models[0].most_similar(np.int64(5), n=1)[0][0] in (6, 7, 8)


def test_partial_fit_brings_new_tokens():
    documents = sentences()
    model = Word2Vec(**FEW, optimizer="adagrad").partial_fit(documents[:30])
    before = dict(model.vocabulary_)
    model.partial_fit([*documents[30:], ["zebra", "cat", "ape", "zebra"]])
    assert list(model.vocabulary_)[-2:] == ["ape", "zebra"]
    assert before.items() <= model.vocabulary_.items()
    assert model.vectors_.shape == (12, 6)
    assert model.token_counts_[model.vocabulary_["zebra"]] == 2
    assert model.token_counts_.sum() == 60 * 8 + 4
    assert model.n_iter_ == 2


def test_optimizers_and_initializers_compose():
    documents = sentences(10)
    for params in (
        {"optimizer": "adam", "init": "prism"},
        {"optimizer": SGD(9.0), "init": "xavier"},
    ):
        assert np.isfinite(Word2Vec(**FEW, **params).fit(documents).vectors_).all()
    start = Word2Vec(**FEW, init=Normal(0.5), optimizer=SGD(1e-9)).fit(documents)
    assert 0.3 < start.vectors_.std() < 0.7
    model = Word2Vec(**FEW).set_params(optimizer__exponent=0.4)
    assert model.optimizer.exponent == 0.4
    assert Word2Vec(**FEW).fit(documents).optimizer_state_nbytes_ == 2 * 10 * 4


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({}, CFSGD(4.0, max_step=0.1)),
        ({"architecture": "cbow"}, CFSGD(8.0, max_step=0.5)),
        ({"max_iter": 20}, CFSGD(2.0, max_step=0.05)),
        ({"max_iter": 20, "optimizer": "sgd", "batch_size": 100}, SGD(12.5)),
        ({"max_iter": 20, "optimizer": "rowwise_adagrad"}, RowwiseAdagrad(0.1)),
        ({"max_iter": 1}, CFSGD(4.0, max_step=0.1)),
        ({"learning_rate": 1.0}, CFSGD(1.0, max_step=0.1)),
        ({"optimizer": "sgd", "batch_size": 100}, SGD(25.0)),
        ({"optimizer": "rowwise_adagrad"}, RowwiseAdagrad(0.1)),
        ({"optimizer": "adam", "learning_rate": 0.5}, Adam(0.5)),
        ({"optimizer": CFSGD()}, CFSGD(4.0, max_step=0.1)),
        ({"optimizer": CFSGD(exponent=0.4)}, CFSGD(4.0, max_step=0.1, exponent=0.4)),
        ({"optimizer": CFSGD(3.0, max_step=0.2)}, CFSGD(3.0, max_step=0.2)),
        ({"optimizer": Adam(beta_1=0.8), "learning_rate": 0.5}, Adam(0.5, beta_1=0.8)),
    ],
)
def test_default_learning_rates(params, expected, monkeypatch):
    monkeypatch.setattr(Word2Vec, "_largest_rate", lambda *_: np.inf)
    model = Word2Vec(**params)
    found = model._with_rates(model._resolve_optimizer(), None, 0)
    assert repr(found) == repr(expected.with_defaults())


# Conventions


def test_conventions_of_scikit_learn():
    with pytest.warns(Warning, match="requires input of type|Can't test"):
        check_estimator(Word2Vec())


def test_pickle_clone_and_resume(tmp_path):
    documents = sentences()
    model = Word2Vec(**FEW, optimizer=Adam(0.01))
    expected = clone(model).fit(documents)
    again = pickle.loads(pickle.dumps(expected))
    assert_array_equal(again.transform(documents), expected.transform(documents))
    assert_array_equal(
        again.partial_fit(documents).vectors_, expected.partial_fit(documents).vectors_
    )

    class Killing(Checkpoint):
        def save(self, estimator, progress):
            super().save(estimator, progress)
            raise KeyboardInterrupt

    expected = clone(model).fit(documents)
    with pytest.raises(KeyboardInterrupt):
        model.set_callbacks(Killing(tmp_path / "file")).fit(documents)
    assert model.n_iter_ == 1 and model.transform(documents).any()
    resumed = resume(tmp_path / "file")
    assert resumed.n_iter_ == 1
    assert_array_equal(resumed.fit(documents).vectors_, expected.vectors_)
    assert_array_equal(resumed.loss_curve_, expected.loss_curve_)
    with pytest.raises(ValueError, match="X is not that of the fit to be resumed"):
        resume(tmp_path / "file").fit(documents[1:])


def test_divergence_keeps_what_was_there():
    model = Word2Vec(**{**FEW, "max_iter": 30}, optimizer=SGD(1e9), init=Normal(1.0))
    with pytest.raises(DivergenceError, match="Word2Vec diverged in epoch"):
        model.fit(sentences())
    assert not hasattr(model, "vectors_") or np.isfinite(model.vectors_).all()


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("name", ["vectors.txt", "vectors.gz"])
def test_files_of_word2vec(binary, name, tmp_path):
    model = Word2Vec(**FEW).fit([[*words, "naïve", "4"] for words in sentences(10)])
    model.save_word2vec_format(tmp_path / name, binary=binary)
    loaded = Word2Vec.load_word2vec_format(tmp_path / name, binary=binary)
    assert loaded.vocabulary_ == model.vocabulary_
    assert_array_equal(loaded.vectors_, model.vectors_)
    assert loaded.most_similar("naïve") == model.most_similar("naïve")
    assert loaded.get_params()["n_components"] == 6
    for call in (loaded.score, loaded.partial_fit):
        with pytest.raises(ValueError, match="loaded from a file of vectors"):
            call(sentences())


@each(
    ("content", "binary", "message"),
    [
        (b"", False, "holds no vectors"),
        (b"", True, "of tokens and of components are expected first"),
        (b"a\n", False, "at vector 1: a token and its numbers"),
        (b"a 1 2\nb 3\n", False, "at vector 2: a token and 2 numbers"),
        (b"a 1 2\nb 3 4 5\n", False, "at vector 2: a token and 2 numbers"),
        (b"2 2\na 1 2\n", False, "holds 1 vectors, but its first line says 2.*limit=1 loads"),
        (b"1 2\na 1\n", False, "a token and 2 numbers"),
        (b"1 2\na 1 x\n", False, "at vector 1"),
        (b"1 2\na 1 nan\n", False, "numbers for 'a' that are not finite"),
        (b"a 1 1e39\n", False, "numbers for 'a' that are not finite"),
        (b"99999999999 2\na 1 2\n", False, "first line says 99999999999"),
        (b"1 99999999999999999999\na 1 2\n", True, "vectors of 99999999999999999999 numbers"),
        (b"1 0\na\n", False, "vectors of 0 numbers"),
        (b"a 1 2\n\xe9 3 4\n", False, "at vector 2: 'utf-8' codec can't decode"),
        (b"1 2\na \0\0\0\0", True, "2 numbers of 4 bytes"),
        (b"1 2\na \0\0\0\0\0\0\0", True, "2 numbers of 4 bytes"),
        (b"2 1\na \0\0\0\0", True, "holds 1 vectors, but its first line says 2"),
        (b"2 1\na \0\0\0\0 \0\0\0\0", True, "at vector 2: a token and 1 numbers"),
        (b"1 2\na", True, "ends with a space"),
        (b"0 2\n", True, "holds no vectors"),
        (b"a 1 2\n", True, "of tokens and of components are expected first"),
        (b"1 2\na 0.123456 0.654321\nb 1.23456 2.34567\n", True, "at vector 2: a token and"),
    ],
)
def test_malformed_files(content, binary, message, tmp_path):
    for name, written in (("file", content), ("file.gz", gzip.compress(content))):
        (tmp_path / name).write_bytes(written)
        with pytest.raises(ValueError, match=message):
            Word2Vec.load_word2vec_format(tmp_path / name, binary=binary)


def test_damaged_compressed_files(tmp_path):
    whole = gzip.compress(b"a 1 2\nb 3 4\n" * 99)
    for damaged in (whole[:-12], whole[:-8] + b"\0" * 8, whole[:20] + b"\xff" * 9, b"a 1 2\n"):
        (tmp_path / "file.gz").write_bytes(damaged)
        with pytest.raises(ValueError, match=r"file.gz cannot be read at vector"):
            Word2Vec.load_word2vec_format(tmp_path / "file.gz")


def binary_of(*rows, header=None):
    """Return a binary file of tokens, as bytes, and numbers."""
    header = header or f"{len(rows)} {len(rows[0]) - 1}\n".encode()
    rows = [name + b" " + np.array(numbers, "<f4").tobytes() for name, *numbers in rows]
    return header + b"".join(rows)


@each(
    ("content", "options", "found", "warning"),
    [
        (b"a 1 2\nb 3 4\n", {}, {"a": [1, 2], "b": [3, 4]}, None),
        (b"a 1 2\r\nb 3 4", {}, {"a": [1, 2], "b": [3, 4]}, None),
        (b"\xef\xbb\xbfa 1 2\n\nb 3 4 \n\n", {}, {"a": [1, 2], "b": [3, 4]}, None),
        (b"\xef\xbb\xbf1 2\n7 3 4\n", {}, {"7": [3, 4]}, None),
        (b"7 3 4\n. . 1 2\n", {}, {"7": [3, 4], ". .": [1, 2]}, None),
        (b"a 1 2\nb 3 4\nrest", {"limit": 1}, {"a": [1, 2]}, None),
        (b"9 1\na 1\nb 2\n", {"limit": np.int64(2)}, {"a": [1], "b": [2]}, None),
        (b"2 1\na 1\nb 2\n", {"limit": 9}, {"a": [1], "b": [2]}, None),
        (b"1 1\na 1\nb 2\n", {}, {"a": [1], "b": [2]}, "2 vectors, but its first line says 1"),
        (b"a 1\nb 2\na 3\n", {}, {"a": [1], "b": [2]}, "1 vectors of tokens .* such as 'a'"),
        (b"\xe9t 1\n", {"decode_error": "replace"}, {"\ufffdt": [1]}, None),
        (b"\xe9t 1\nt 2\n", {"decode_error": "ignore"}, {"t": [1]}, "such as 't'"),
        (binary_of([b"a", 1], [b"\nb", 2]), {"binary": True}, {"a": [1], "b": [2]}, None),
        (binary_of([b"a", 1], [b"b", 2]), {"binary": True, "limit": 1}, {"a": [1]}, None),
        (
            binary_of([b"a", 1], [b"b", 2], [b"a", 3], header=b"2 1\n"),
            {"binary": True},
            {"a": [1], "b": [2]},
            "3 vectors, but its first line says 2|such as 'a'",
        ),
        (
            binary_of([b"\xe9t", 1]),
            {"binary": True, "decode_error": "ignore"},
            {"t": [1]},
            None,
        ),
    ],
)
def test_files_of_other_programs(content, options, found, warning, tmp_path):
    (tmp_path / "file").write_bytes(content)
    with pytest.warns(match=warning) if warning else nullcontext():
        model = Word2Vec.load_word2vec_format(tmp_path / "file", **options)
    assert {token: model.vectors_[i].tolist() for token, i in model.vocabulary_.items()} == found
    assert model.n_components == model.vectors_.shape[1] == model.transform([["a"]]).shape[1]


@each("params", [{"limit": 0}, {"limit": 2.5}, {"decode_error": "drop"}, {"binary": "no"}])
def test_options_of_files_are_checked(params, tmp_path):
    (tmp_path / "file").write_bytes(b"a 1 2\n")
    with pytest.raises((ValueError, TypeError), match=next(iter(params))):
        Word2Vec.load_word2vec_format(tmp_path / "file", **params)


@each("token", ["New York", "a\nb", "", " ", "\ud800"])
def test_tokens_that_files_cannot_hold(token, tmp_path):
    model = Word2Vec(**FEW).fit([[token, "Rome"] * 5])
    with pytest.raises(ValueError, match=re.escape(f"the token {token!r} cannot be stored")):
        model.save_word2vec_format(tmp_path / "file")
    assert not (tmp_path / "file").exists()


@pytest.mark.parametrize("binary", [False, True])
def test_files_hold_all_other_tokens(binary, tmp_path):
    spaces = [chr(code) for code in range(0x3001) if chr(code).isspace() and chr(code) not in " \n"]
    tokens = [f"{a}{space}{b}" for space in spaces for a in ("", "a") for b in ("", "b")]
    tokens += ["\ufeff", "\0", "1", "1.5", "नमस्ते", "می\u200cخواهم", "👩\u200d🚀"]  # noqa: RUF001
    model = Word2Vec(**FEW).fit([tokens])
    model.save_word2vec_format(tmp_path / "file", binary=binary)
    loaded = Word2Vec.load_word2vec_format(tmp_path / "file", binary=binary)
    assert loaded.vocabulary_ == model.vocabulary_
    assert_array_equal(loaded.vectors_, model.vectors_)


@each(
    ("documents", "error", "message"),
    [
        ("a single text", ValueError, "X is a single str"),
        (7, TypeError, "X is of type int"),
        ({"a": 1}, TypeError, "X is of type dict"),
        (["a b", None], TypeError, r"X\[1\] is None of type NoneType"),
        (["a b", float("nan")], TypeError, r"X\[1\] is nan of type float"),
        (["a b", b"a b"], TypeError, r"X\[1\] is b'a b' of type bytes.*decode\(err"),
        ([{"a", "b"}], TypeError, r"X\[0\] is .* of type set"),
        ([["a", ["b"]]], TypeError, r"X\[0\] is not a sequence of tokens"),
        ([["a", 1.5]], TypeError, "the token 1.5 of type float"),
        ([["a", True]], TypeError, "the token True of type bool"),
        ([["a", "b", 1]], TypeError, "both strings and integers"),
        ([], ValueError, "X holds 0 documents"),
        ([["a"], ["b"]], ValueError, "no two of these stand in one document"),
        (["a a a a"], ValueError, "1 occur min_count=1 times"),
    ],
)
def test_documents_that_cannot_be_learned_from(documents, error, message):
    with pytest.raises(error, match=message):
        Word2Vec(**FEW).fit(documents)


def test_documents_are_no_metadata():
    for method in ("fit", "partial_fit", "score"):
        assert not hasattr(Word2Vec, f"set_{method}_request")
    model = Word2Vec(**FEW).fit(X=["a b", "b a"])
    assert model.transform(X=["a"]).shape == (1, 6) and model.score(X=["a b"]) < 0


def test_a_table_is_refused():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"text": ["a b", "b a"]})
    with pytest.raises(TypeError, match=r"X\['text'\]"):
        Word2Vec(**FEW).fit(frame)
    assert Word2Vec(**FEW).fit(frame["text"]).vectors_.shape == (2, 6)


@each(
    ("params", "message"),
    [
        ({"architecture": "glove"}, "architecture"),
        ({"window": 0}, "window"),
        ({"n_negatives": 0}, "n_negatives"),
        ({"subsample": 0}, "subsample"),
        ({"noise_exponent": np.inf}, "noise_exponent"),
        ({"analyzer": "words"}, "analyzer"),
        ({"schedule": "cosine"}, "schedule"),
        ({"optimizer": "adma"}, "did you mean 'adam'"),
        ({"optimizer": Adam(0.1), "learning_rate": 0.1}, "given together with the instance"),
        ({"init": Normal(-1.0)}, "'scale' parameter of Normal"),
        ({"device": "gpu"}, "device='gpu' is unknown"),
        ({"window": 1000, "batch_size": 2**31 - 1}, "makes up to"),
    ],
)
def test_parameters_are_checked(params, message):
    with pytest.raises((ValueError, TypeError), match=message):
        Word2Vec(**{**FEW, **params}).fit(sentences(300))


def test_questions_about_unknown_tokens():
    model = Word2Vec(**FEW).fit(sentences(10))
    with pytest.raises(ValueError, match="positive holds 'ape', which is not among the 10 tokens"):
        model.most_similar("ape")
    with pytest.raises(ValueError, match="second holds 3"):
        model.similarity("cat", 3)
    with pytest.raises(ValueError, match="both empty"):
        model.most_similar()
    with pytest.raises(ValueError, match="tokens is empty"):
        model.doesnt_match([])
    with pytest.raises(ValueError, match="n=0"):
        model.most_similar("cat", n=0)
    with pytest.raises(ValueError, match="nothing to score"):
        model.score([["ape", "cat"]])


def test_learned_attributes_are_checked():
    model = Word2Vec(**FEW).fit(sentences(10))
    known = model.vocabulary_
    for bad in (1 << 40, 11, -1, None):
        model.vocabulary_ = {**known, "cat": bad}
        for call in (lambda: model.similarity("dog", "dog"), lambda: model.transform([["cat"]])):
            with pytest.raises(ValueError, match="vocabulary_ of Word2Vec holds"):
                call()
    model.vocabulary_ = {**known, "cat": known["dog"]}
    with pytest.raises(ValueError, match="does not number its tokens"):
        model.partial_fit(sentences(10))
    model = Word2Vec(**FEW).fit(sentences(10))
    model.token_counts_ = -model.token_counts_
    with pytest.raises(ValueError, match="token_counts_ of Word2Vec holds numbers that are not"):
        model.score(sentences(10))
    model.vectors_ = model.vectors_[1:]
    with pytest.raises(ValueError, match="vectors_ of Word2Vec has shape"):
        model.most_similar("cat")
    with pytest.raises(ValueError, match="optimizer='sgd' differs from CFSGD"):
        Word2Vec(**FEW).fit(sentences(10)).set_params(optimizer="sgd").partial_fit(sentences(10))


def test_a_vocabulary_may_be_in_any_order(tmp_path):
    documents = sentences(10)
    model = Word2Vec(**FEW).fit(documents)
    other = pickle.loads(pickle.dumps(model))
    other.vocabulary_ = dict(reversed(model.vocabulary_.items()))
    assert other.most_similar("cat") == model.most_similar("cat")
    assert other.doesnt_match(["cat", "red"]) == model.doesnt_match(["cat", "red"])
    other.save_word2vec_format(tmp_path / "file")
    loaded = Word2Vec.load_word2vec_format(tmp_path / "file")
    assert loaded.most_similar("cat") == model.most_similar("cat")
    assert other.score(documents) == model.score(documents)
    assert_array_equal(other.partial_fit(documents).vectors_, model.partial_fit(documents).vectors_)


def test_noise_follows_the_counts_and_their_exponent():
    documents = sentences(10)
    model = Word2Vec(**FEW).fit(documents)
    first, counts = model.score(documents), model.token_counts_
    model.token_counts_ = np.append(counts[:-1], 1 << 30)
    assert model.score(documents) != first
    model.token_counts_ = counts
    assert model.score(documents) == first
    assert model.set_params(noise_exponent=-9.0).score(documents) != first


@pytest.mark.parametrize("architecture", ["skip_gram", "cbow"])
@pytest.mark.parametrize("optimizer", ["sgd", "fa_sgd"])
def test_default_rates_suit_small_vocabularies(optimizer, architecture):
    rng = np.random.default_rng(0)
    documents = [[f"{topic}{w}" for w in rng.integers(5, size=20)] for topic in [0, 1] * 200]
    params = {"subsample": None, "random_state": 0, "architecture": architecture}
    model = Word2Vec(8, optimizer=optimizer, **params).fit(documents)
    assert model.loss_curve_[-1] < model.loss_curve_[0]
    model.partial_fit(documents)
    assert model.loss_curve_[-1] < model.loss_curve_[0]


def test_a_few_documents_move_a_model_little():
    # Their own counts bound the rate: by those of all documents so far a step would be ten times
    # as long, and the score afterwards -3.
    rng = np.random.default_rng(0)
    documents = [[f"{topic}{w}" for w in rng.integers(5, size=20)] for topic in [0, 1] * 200]
    model = Word2Vec(8, optimizer="sgd", subsample=None, random_state=0).fit(documents)
    before = model.score(documents)
    for few in ([["00", "11"] * 3], [["00", "10"] * 10] * 20):
        model.partial_fit(few)
        assert model.score(documents) > before - 0.1


def test_masks_are_no_tokens_and_arrays_of_arrow_are_lists():
    model = Word2Vec(2, min_count=1, max_iter=1, random_state=0).fit([[0, 1, 2, 3]] * 9)
    for token in (True, np.False_):
        for use in (
            lambda token=token: model.most_similar(token),
            lambda token=token: model.most_similar(0, negative=[token]),
            lambda token=token: model.most_similar(np.array([token, token])),
            lambda token=token: model.similarity(token, 2),
            lambda token=token: model.doesnt_match([2, token]),
        ):
            with pytest.raises(ValueError, match="holds .*(True|False).*, which is not among"):
                use()
    arrow = pytest.importorskip("pyarrow")
    assert model.most_similar(arrow.array([1, 2])) == model.most_similar([1, 2])
    assert model.similarity(*arrow.array([1, 2])) == model.similarity(1, 2)
