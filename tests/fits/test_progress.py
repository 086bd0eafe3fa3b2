"""What ``verbose`` shows of a fit."""

import io
import sys
import types

import pytest

from freqfm import ALSRecommender, DivergenceError, MFRecommender
from freqfm.datasets import make_interactions


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
        console = Console(file=io.StringIO(), width=100, **options)
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
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("verbose, n_lines", [(0, 0), (2, 3)])
def test_a_terminal_without_a_bar(verbose, n_lines, X, screen, capsys):
    console = screen(force_terminal=True)
    als(verbose=verbose).fit(X)
    lines = capsys.readouterr().out.splitlines()
    assert console.file.getvalue() == "" and len(lines) == n_lines
    assert all("loss" in line and "s left" in line for line in lines)


def test_files_and_pipes_get_lines(X, screen, capsys):
    console = screen(force_terminal=False)
    als(verbose=1).fit(X)
    assert console.file.getvalue() == "" and len(capsys.readouterr().out.splitlines()) == 3


def test_without_rich_a_terminal_gets_lines(X, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "rich", None)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    als(verbose=True).fit(X)
    assert len(capsys.readouterr().out.splitlines()) == 3


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
    assert capsys.readouterr().out == ""


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
