"""What ``verbose`` shows of a fit."""

import inspect
import io
import re
import sys
import types

import numpy as np
import pytest
from helpers import CLASSES, each
from sklearn.base import BaseEstimator

import freqfm
from freqfm import (
    ALSRecommender,
    BlendRecommender,
    DivergenceError,
    EASERecommender,
    FastVAERecommender,
    FMClassifier,
    FMRegressor,
    GraphFilterRecommender,
    InteractionRecommender,
    ItemKNNRecommender,
    MFRecommender,
    PopularityRecommender,
    Word2Vec,
)
from freqfm.datasets import RowStream, make_clicks, make_interactions
from freqfm.estimators.progress import announced_fits
from freqfm.model_selection import compare_recommenders


@pytest.fixture(scope="module")
def X():
    X = make_interactions(20, 15, 100, random_state=0)
    als().fit(X)  # a fit that compiles prints more
    return X


def als(**params):
    return ALSRecommender(2, max_iter=3, n_jobs=1, random_state=0, **params)


@pytest.fixture
def screen(monkeypatch):
    """Return a function that replaces rich's console; what is drawn is the file's text."""
    rich = pytest.importorskip("rich")
    from rich.console import Console

    def replace(**options):
        console = Console(**{"file": io.StringIO(), "width": 100, **options})
        monkeypatch.setattr(rich, "get_console", lambda: console)
        return console

    return replace


def test_a_terminal_shows_a_bar(X, screen, capsys):
    console = screen(force_terminal=True)
    als(verbose=1).fit(X)
    drawn = console.file.getvalue()
    assert "epoch 0/3" in drawn
    last = drawn.rpartition("epoch")[2]
    for part in (" 3/3", "━", "loss ", "at most 0.0 s left"):
        assert part in last
    assert capsys.readouterr().out == "checking interactions\n"


@pytest.mark.parametrize("verbose, n_lines", [(0, 0), (2, 4)])
def test_a_terminal_without_a_bar(verbose, n_lines, X, screen, capsys):
    console = screen(force_terminal=True)
    als(verbose=verbose).fit(X)
    lines = capsys.readouterr().out.splitlines()
    assert console.file.getvalue() == "" and len(lines) == n_lines
    assert all("loss" in line and "s left" in line for line in lines[1:])


def test_files_and_pipes_get_lines(X, screen, capsys):
    console = screen(force_terminal=False)
    als(verbose=1).fit(X)
    assert console.file.getvalue() == "" and len(capsys.readouterr().out.splitlines()) == 4


def test_without_rich_a_terminal_gets_lines(X, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "rich", None)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    als(verbose=True).fit(X)
    assert len(capsys.readouterr().out.splitlines()) == 4


def test_notebooks_show_one_bar_that_moves(X, screen, monkeypatch, capsys):
    screen(force_jupyter=True)
    shown = []

    def display(bar, display_id):
        shown.append(bar._repr_mimebundle_([], [])["text/html"])
        return types.SimpleNamespace(
            update=lambda bar: shown.append(bar._repr_mimebundle_([], [])["text/html"])
        )

    monkeypatch.setitem(sys.modules, "IPython.display", types.SimpleNamespace(display=display))
    als(verbose=1).fit(X)
    assert "epoch 0/3" in shown[0] and "epoch 3/3" in shown[-1] and "loss" in shown[-1]
    assert capsys.readouterr().out == "checking interactions\n"


def test_a_failed_fit_closes_its_bar(X, screen):
    console = screen(force_terminal=True)
    model = MFRecommender(2, learning_rate=1e39, max_iter=2, verbose=1, n_jobs=1, random_state=0)
    for _ in range(2):  # a bar that is left open would refuse the next one, or be drawn with it
        with pytest.raises(DivergenceError):
            model.fit(X)
    drawn = console.file.getvalue()
    assert drawn.endswith("\x1b[?25h")  # the cursor is shown again
    assert drawn.count("\x1b[?25l") == drawn.count("\x1b[?25h") == 2


def test_bars_within_a_bar(X, screen):
    screen(force_terminal=True)
    from rich import get_console
    from rich.progress import track

    for seed in track([0, 1], console=get_console()):
        als(verbose=1).set_params(random_state=seed).fit(X)
    drawn = get_console().file.getvalue()
    assert "Working" in drawn and "100%" in drawn


# Phases

_ROWS = make_clicks(400, (30, 20), random_state=0)
_PAIRS = [(f"u{user}", item) for user in range(20) for item in range(user, user + 5)]
_SHORT = {"max_iter": 2, "random_state": 0}
_OF_ROWS = [
    "checking rows",
    "holding out 10 folds in turn of 400 rows",
    "preparing rows to train on",
]
_OF_PENALTIES = *2 * ("trying alpha_linear=", "epoch"), "chosen by validation: alpha_linear="
_OF_ITEMS = "comparing items", "item"
_LAST = "ordering the weights between items"


def phases_of_rows(cls):
    has_fields = "fields" in cls._get_param_names()
    return (
        cls(**_SHORT, **({"fields": [0] * 30 + [1] * 20} if has_fields else {})),
        _ROWS,
        [*_OF_ROWS, "epoch", *_OF_PENALTIES, "fitting all data", "epoch"],
    )


def phases_of_interactions(model, *phases):
    X = make_interactions(20, 15, 100, random_state=0)
    return model, [X], ["checking interactions", *phases]


SPECTRAL = "finding singular vectors of the interactions"
HELD_OUT = "holding out 10% of the interactions"
PHASES = [
    phases_of_rows(FMRegressor),
    (
        FMClassifier(**_SHORT),
        [RowStream(lambda: iter([_ROWS]))],
        ["counting the features of all rows", "epoch"],
    ),
    (FMRegressor(early_stopping=False, **_SHORT), _ROWS, [_OF_ROWS[0], _OF_ROWS[2], "epoch"]),
    phases_of_interactions(MFRecommender(2, **_SHORT), SPECTRAL, "epoch"),
    phases_of_interactions(
        MFRecommender(2, early_stopping=True, **_SHORT),
        *(HELD_OUT, SPECTRAL, "epoch", "fitting all data", SPECTRAL, "epoch"),
    ),
    phases_of_interactions(ALSRecommender(2, **_SHORT), "epoch"),
    phases_of_interactions(FastVAERecommender(2, **_SHORT), SPECTRAL, "epoch"),
    phases_of_interactions(ItemKNNRecommender(3), *_OF_ITEMS, _LAST),
    phases_of_interactions(PopularityRecommender()),
    (
        BlendRecommender([("popular", PopularityRecommender())], random_state=0),
        [make_interactions(20, 15, 100, random_state=0)],
        [
            "fitting popular without what is held out",
            "finding the weights of the blend",
            "fitting popular to everything, weight 1.00",
        ],
    ),
    phases_of_interactions(
        GraphFilterRecommender(3, random_state=0),
        *("finding 3 eigenvectors of items", "filtering items", "item", _LAST),
    ),
    phases_of_interactions(
        EASERecommender(),
        *("multiplying all pairs of 15 items", "regressing every item on all others", _LAST),
    ),
    phases_of_interactions(
        EASERecommender(n_neighbors=3),
        *(*_OF_ITEMS, "collecting the products of similar items"),
        *("regressing every item on at most 3 others", "item", _LAST),
    ),
    (
        InteractionRecommender(MFRecommender(2, **_SHORT)),
        [_PAIRS],
        ["numbering users and items", "checking interactions", SPECTRAL, "epoch"],
    ),
    (Word2Vec(2, min_count=1, **_SHORT), [["a b c", "b c"]], ["reading documents", "epoch"]),
]


SLOW = [phases_of_rows(cls) for cls in CLASSES if cls is not FMRegressor] + [
    phases_of_interactions(
        MFRecommender(2, backbone="lightgcn", **_SHORT), "preparing LightGCN", SPECTRAL, "epoch"
    )
]


@each("model, data, phases", PHASES, slow=SLOW)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_every_phase_of_a_fit_is_announced(model, data, phases, capsys):
    nested = isinstance(model, InteractionRecommender)
    recommender = model.estimator if nested else model
    model.fit(*data)
    assert capsys.readouterr().out == ""
    recommender.set_params(verbose=2)
    model.fit(*data)
    # Whether a kernel is compiled, and what validation has found, are no phases.
    others = "compiling ", "validation rows are predicted as well without"
    lines = [of for of in capsys.readouterr().out.splitlines() if not of.startswith(others)]
    # Epochs of one phase count as one, and so do items.
    kinds = [line.split()[0] if line.startswith(("epoch", "item")) else line for line in lines]
    kinds = [kind for i, kind in enumerate(kinds) if i == 0 or kind != kinds[i - 1]]
    assert len(kinds) == len(phases)
    assert all(kind.startswith(phase) for kind, phase in zip(kinds, phases, strict=True))


def estimators_of(module):
    """Return the estimators of a module that are fitted to data; ``WithFields`` passes data on."""
    public = (getattr(module, name) for name in module.__all__)
    found = {of for of in public if isinstance(of, type) and issubclass(of, BaseEstimator)}
    return found - {freqfm.WithFields}


def test_phases_are_known_of_every_estimator():
    assert estimators_of(freqfm) == {type(model) for model, *_ in [*PHASES, *SLOW]}


def says_usual_seconds(estimator):
    """Return whether the notes of an estimator begin with the seconds of a default fit."""
    notes = inspect.getdoc(estimator).partition("Notes\n-----\n")[2]
    sentence = " ".join(notes.partition("\n\n")[0].split())
    return re.match(r"A default fit takes about [\d.]+ CPU seconds for \D*\d[\d,]* \w+", sentence)


def test_docstrings_say_the_usual_seconds():
    assert {of.__name__ for of in estimators_of(freqfm) if not says_usual_seconds(of)} == set()


def test_parts_of_a_phase_are_shown_with_the_time_left(X, screen, monkeypatch, capsys):
    monkeypatch.setattr("freqfm.estimators.progress._BETWEEN_REPORTS", 0)
    console = screen(force_terminal=True)
    EASERecommender(n_neighbors=3, verbose=1).fit(X)
    drawn = console.file.getvalue()
    for part in ("item 0/15", "item 15/15", "0.0 s left"):
        assert drawn.count(part) >= 2  # of two phases
    assert "\nitem " not in capsys.readouterr().out
    ItemKNNRecommender(3, verbose=2).fit(X)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("item ")]
    assert [line.split()[1] for line in lines] == [f"{n}/15" for n in range(1, 16)]
    assert all(line.endswith("s left") for line in lines)


# Fits of several members

_TIMES = r"\d+\.\d s(, about \d+\.\d s left)?"


def blend(**params):
    members = [("als", als()), ("knn", ItemKNNRecommender(5)), ("popular", PopularityRecommender())]
    return BlendRecommender(members, random_state=0, n_jobs=1, **params)


def compare(X, verbose):
    members = [("als", als()), ("knn\nof 5", ItemKNNRecommender(5))]
    return compare_recommenders(X, members, random_state=0, n_jobs=1, verbose=verbose)


@pytest.mark.parametrize("found", [True, False])
def test_fits_of_a_blend_are_counted_with_the_time_left(found, X, capsys):
    model = blend(verbose=2, **({} if found else {"weights": None})).fit(X)
    lines = capsys.readouterr().out.splitlines()
    n_fits = 6 if found else 3
    numbers = [re.search(rf"; fit (\d) of {n_fits}, {_TIMES}$", line)[1] for line in lines]
    names = [line.split()[1] for line in lines if line.startswith("fitting")]
    assert names[:3] == ["als", "knn", "popular"]
    if found:
        assert lines[3].startswith("finding the weights")
        n_again = len(model.estimators_)
        assert names[3:] == list(model.named_estimators_)
        assert numbers[4:] == [str(n) for n in range(7 - n_again, 7)]
    assert numbers[:3] == ["1", "2", "3"]
    assert "left" not in lines[0] and all(line.endswith(" left") for line in lines[1:])


def test_the_time_left_follows_from_costs_until_it_is_measured(capsys):
    seconds = {}
    with announced_fits(2, 4, {"als": 1, "mf": 30}, seconds) as begin:
        begin("fitting als", ["als", "mf", "als", "mf"])
        seconds["als"] = 2.0
        begin("fitting mf", ["mf", "als", "mf"])
        seconds["mf"] = 20.0
        begin("fitting als", ["als", "mf"])
    left = [line.rpartition(", ")[2] for line in capsys.readouterr().out.splitlines()]
    assert left[1:] == ["about 122.0 s left", "about 22.0 s left"]


def test_a_member_that_fails_tells_nothing_of_the_time_left(X, capsys):
    class Broken(EASERecommender):
        def fit(self, X, y=None):
            raise MemoryError

    members = [("broken", Broken()), ("als", als()), ("popular", PopularityRecommender())]
    with pytest.warns(UserWarning, match="leaves out broken"):
        BlendRecommender(members, random_state=0, n_jobs=1, verbose=2).fit(X)
    lines = capsys.readouterr().out.splitlines()
    assert "; fit 3 of 6, " in lines[1] and "left" not in lines[1] and "left" in lines[2]


def test_a_blend_has_a_bar_that_its_members_do_not_disturb(X, screen, capsys):
    console = screen(force_terminal=True)
    blend(verbose=1).set_params(als__verbose=1).fit(X)
    drawn = console.file.getvalue()
    for part in ("fit 0/6", "fitting als without what is held out", "fit 6/6", "epoch 3/3"):
        assert part in drawn
    assert re.search(r"s left: fitting (als|knn|popular) to everything", drawn)
    assert re.fullmatch("(checking interactions\n)*", capsys.readouterr().out)
    with pytest.raises(ValueError, match="no member"):
        BlendRecommender([("als", als(unobserved_weight=-1))], verbose=1).fit(X)
    drawn = console.file.getvalue()
    assert drawn.endswith("\x1b[?25h")  # the cursor is shown again
    assert drawn.count("\x1b[?25l") == drawn.count("\x1b[?25h") == 2


@each("fit", [lambda X: blend(verbose=1).fit(X), lambda X: compare(X, verbose=1)])
def test_a_bar_of_fits_has_the_time_in_a_narrow_terminal(fit, X, screen):
    console = screen(force_terminal=True, width=60)
    fit(X)
    assert "s left" in console.file.getvalue()


def test_comparisons_are_counted_with_the_time_left(X, capsys):
    compare(X, verbose=0)
    assert capsys.readouterr().out == ""
    compare(X, verbose=2)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    for n, (line, name) in enumerate(zip(lines, ["most popular", "als", "knn"], strict=True)):
        assert re.match(rf"fitting {name}.*; fit {n + 1} of 3, {_TIMES}$", line)
    assert lines[2].endswith(" left")


def test_the_number_of_parts_changes_no_bit(X, monkeypatch):
    models = EASERecommender(n_neighbors=3), ItemKNNRecommender(3)
    in_parts = [model.fit(X).item_weights_.toarray() for model in models]
    monkeypatch.setattr("freqfm.estimators.recommenders.index._REPORTED_PARTS", 1)
    for model, expected in zip(models, in_parts, strict=True):
        assert np.array_equal(model.fit(X).item_weights_.toarray(), expected)
