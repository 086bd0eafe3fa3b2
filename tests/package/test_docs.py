"""Docstrings that are put together of those of similar classes."""

import inspect
import subprocess
import sys

import pytest
from sklearn.base import BaseEstimator

import freqfm
from freqfm._components import constraints_of
from freqfm._docs import _entries, _sections, described_like

MACHINES = {
    name: getattr(freqfm, name)
    for name in freqfm.__all__
    if name.endswith(("FMClassifier", "FMRegressor"))
}


def test_all_parameters_are_described():
    assert len(MACHINES) == 12
    for name, cls in MACHINES.items():
        sections = _sections(cls.__doc__)
        assert list(sections)[1:] == [
            *("Parameters", "Attributes", "Raises", "Warns"),
            *("See Also", "Notes", "References", "Examples"),
        ]
        entries = _entries(sections["Parameters"])
        assert set(entries) == set(inspect.signature(cls).parameters), name
        assert list(entries)[-4:] == ["verbose", "n_jobs", "random_state", "device"]
        for section in ("Parameters", "Attributes"):
            for entry, text in _entries(sections[section]).items():
                first, *rest = text.split("\n")
                assert first.startswith(f"{entry} : ") and rest, (name, entry)
                assert all(line.startswith("    ") for line in rest), (name, entry)
        # What is of classes is not said of real targets.
        assert ("classes_" in cls.__doc__) == name.endswith("Classifier")


def test_defaults_are_those_of_the_signature():
    for name, cls in MACHINES.items():
        entries = _entries(_sections(cls.__doc__)["Parameters"])
        for parameter in inspect.signature(cls).parameters.values():
            first = entries[parameter.name].split("\n")[0]
            told = first.rpartition("default=")[2].strip('"').replace("1e-4", "0.0001")
            assert told == str(parameter.default), (name, first)


AXES = "losses optimizers samplers temperatures initializers backbones auxiliary"


def test_all_parameters_have_a_constraint_and_a_text():
    modules = freqfm, *(getattr(freqfm, name) for name in AXES.split())
    public = [getattr(module, name) for module in modules for name in module.__all__]
    classes = [cls for cls in public if inspect.isclass(cls) and issubclass(cls, BaseEstimator)]
    assert len(classes) > 60
    for cls in classes:
        parameters = set(inspect.signature(cls).parameters)
        entries = _entries(_sections(cls.__doc__ or "").get("Parameters", ""))
        assert {name for names in entries for name in names.split(", ")} == parameters, cls
        # WithFields, which has none, looks at what its encoder can do.
        assert parameters <= set(constraints_of(cls) or ["encoder"]), cls


# The methods and properties that pages of estimators list, beside parameters and what is learned.
METHODS = {
    "fit", "partial_fit", "fit_transform", "transform", "predict", "predict_proba",
    "predict_log_proba", "decision_function", "score", "explain", "feature_importances",
    "interaction_strengths", "up_to_rank", "recommend", "recommend_to", "predict_pairs",
    "similar_items", "similar_users", "export_vectors", "without_optimizer_state", "for_serving",
    "get_params", "set_params", "set_output", "get_feature_names_out", "set_fit_request",
    "set_score_request", "set_partial_fit_request", "set_transform_request", "to_local",
    "most_similar", "doesnt_match", "save_word2vec_format", "load_word2vec_format",
}  # fmt: skip


def test_estimators_have_no_public_methods_but_these():
    modules = freqfm, pytest.importorskip("freqfm.dask")
    public = (getattr(module, name) for module in modules for name in module.__all__)
    estimators = [cls for cls in public if inspect.isclass(cls) and issubclass(cls, BaseEstimator)]
    parameters = {name for cls in estimators for name in inspect.signature(cls).parameters}
    found = {
        name
        for cls in estimators
        for base in inspect.getmro(cls)
        if base.__module__.startswith("freqfm")
        for name in vars(base)
        if not name.startswith("_") and not name.endswith("_")
    }
    assert len(estimators) > 35 and found - parameters == METHODS


def whole(a, b, c=1):
    """Add.

    Parameters
    ----------
    a, b : int
        Numbers.
    c : int, default=1
        One more.

        Of two paragraphs.

    Returns
    -------
    total : int

    Examples
    --------
    >>> whole(1, 2)
    4
    """


def test_what_a_docstring_leaves_out_is_added():
    @described_like(whole)
    def same(a, b, c=2):
        """Add twice.

        Parameters
        ----------
        c : int, default=2
            Another.
        """

    assert (
        same.__doc__
        == inspect.cleandoc("""Add twice.

        Parameters
        ----------
        a, b : int
            Numbers.
        c : int, default=2
            Another.

        Returns
        -------
        total : int
        """)
        + "\n"
    )

    @described_like(whole, same)
    def more(a, b, between, c=2, last=3):
        """Add more.

        Parameters
        ----------
        a, b
        between : int
            New.
        c
        last : int, default=3
            New.

        Notes
        -----
        None.
        """

    assert list(_sections(more.__doc__)) == ["", "Parameters", "Returns", "Notes"]
    entries = _entries(_sections(more.__doc__)["Parameters"])
    assert list(entries) == ["a, b", "between", "c", "last"]
    assert entries["c"].endswith("Another.") and entries["a, b"].endswith("Numbers.")

    @described_like(whole)
    def fewer(a, b):
        """Add two."""

    assert "c : int" not in fewer.__doc__


def test_python_without_docstrings_imports():
    code = "import freqfm; assert freqfm.DeepFMClassifier.__doc__ is None"
    subprocess.run([sys.executable, "-OO", "-c", code], check=True)
