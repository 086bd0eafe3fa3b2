"""The layers of the package, checked in its import statements; size of functions; docstrings."""

import ast
import functools
import importlib
import inspect
import re
from pathlib import Path

import pytest

import freqfm
from freqfm._numba.code_cache import COMPILED
from freqfm._sklearn import CALLBACK_ATTRIBUTES

PACKAGE = Path(freqfm.__file__).parent

# Which parts each part may import, apart from itself: a lower layer, or a helper named here.
AXES = [
    "losses",
    "optimizers",
    "initializers",
    "samplers",
    "temperatures",
    "backbones",
    "auxiliary",
]
BELOW_AXES = {
    "_dense",
    "_input",
    "_numba",
    "_machine",
    "_components",
    "_messages",
    "exceptions",
    "formulas",
    "backends",
}
MAY_IMPORT = {
    "exceptions": set(),
    "_dense": set(),
    "_docs": set(),
    "_machine": {"_signals"},
    "_messages": set(),
    "_paths": {"_messages"},
    "_signals": set(),
    "_sklearn": set(),
    "callbacks": {"_input", "_messages", "_paths"},
    "_numba": {"_machine", "_messages", "_signals"},
    "_components": {"_numba", "_messages"},
    "_versions": {"_numba", "_machine", "_messages", "backends"},
    "_input": {"_messages", "_machine", "exceptions"},
    "datasets": {"_input", "_messages", "_paths", "_versions", "exceptions"},
    "formulas": {"_numba"},
    "backends": {
        "_dense",
        "_input",
        "_numba",
        "_machine",
        "_messages",
        "_signals",
        "formulas",
    },
    **{axis: BELOW_AXES for axis in AXES},
    "metrics": BELOW_AXES,
    "reranking": {*BELOW_AXES, "metrics"},
    "model_selection": {"_input", "_messages", "exceptions", "metrics"},
    "displays": {"_input", "_messages", "_paths", "metrics", "model_selection"},
    "estimators": {
        *BELOW_AXES,
        *AXES,
        "_paths",
        "_signals",
        "_versions",
        "callbacks",
        "datasets",
        "metrics",
        "model_selection",
        "reranking",
    },
    "dask": {
        "_components",
        "_input",
        "_messages",
        "_paths",
        "_versions",
        "backends",
        "callbacks",
        "estimators",
        "formulas",
        "initializers",
        "model_selection",
    },
    "testing": {*BELOW_AXES, *AXES, "datasets", "estimators"},
    "__init__": {
        *BELOW_AXES,
        *AXES,
        "_versions",
        "callbacks",
        "datasets",
        "displays",
        "estimators",
        "metrics",
        "model_selection",
        "reranking",
        "testing",
    },
}

# Names that are documented in a part below that of their module, and found when they are used.
FOUND_ABOVE = {"freqfm.model_selection": {"compare_recommenders": "freqfm.estimators.comparison"}}

# Heavy or optional; they are imported inside the functions that need them.
NOT_AT_MODULE_LEVEL = {
    "matplotlib",
    "pandas",
    "torch",
    "skops",
    "polars",
    "narwhals",
    "pyarrow",
    "rich",
    "IPython",
}

# What fits one screen. Not counted are docstrings, parameters that have a default and are described
# in a section "Parameters", and constructors that do nothing but keep their parameters.
MOST_LINES, MOST_PARAMETERS = 60, 8

# Functions under these decorators are compiled.
DECORATORS = {"kernel", "inlined", "subroutine"}


def module_name(path):
    """Return "freqfm.losses" for "freqfm/losses/__init__.py"."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


@functools.cache
def trees():
    """Return the syntax trees of the modules by name; parsing takes a second."""
    return {module: ast.parse(path.read_text("utf-8")) for module, path in SOURCES.items()}


@functools.cache
def nodes(*kinds):
    """Return the nodes of some kinds in all modules, as pairs of the module and the node."""
    every = (
        nodes() if kinds else [(m, node) for m, tree in trees().items() for node in ast.walk(tree)]
    )
    return [(module, node) for module, node in every if isinstance(node, kinds or ast.AST)]


def importing(wanted):
    """Return the modules that import a name for which a function returns True."""
    return {
        module
        for module, node in nodes(ast.Import, ast.ImportFrom)
        for name in imports_of(node, module.rpartition(".")[0])
        if wanted(name)
    }


def imports_of(node, package):
    """Return the full names an import statement asks for; ``package`` anchors relative ones."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    anchor = package.split(".")
    anchor = anchor[: len(anchor) - node.level + 1] if node.level else []
    base = ".".join([*anchor, *([node.module] if node.module else [])])
    return [f"{base}.{alias.name}" for alias in node.names]


def outside_functions(node):
    """Yield the nodes that run when the module is imported."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            yield child
            yield from outside_functions(child)


# What every part may need.
EVERYWHERE = {"_docs", "_sklearn"}


def part_of(name):
    """Return the part of the package a full name belongs to: a folder, or a helper module."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in MAY_IMPORT else "__init__"


def backend_of(name):
    """Return the folder of ``backends`` that a full name is in: "cpu"; None outside of these."""
    parts = name.split(".")
    folder = parts[2] if parts[:2] == ["freqfm", "backends"] and len(parts) > 2 else None
    return None if folder in (None, "base", "get", "support") else folder


def violations(module, tree, is_package=False):
    """Return what is wrong with a module's imports, in words."""
    package = module if is_package else module.rpartition(".")[0]
    here = part_of(module)
    found = []
    if module != "freqfm" and here == "__init__":
        found.append(f"{module} is not listed in MAY_IMPORT")
    for node in ast.walk(tree):
        for name in imports_of(node, package):
            if name.split(".")[0] != "freqfm":
                continue
            there = part_of(name)
            if there not in {here, *EVERYWHERE, *MAY_IMPORT[here]}:
                found.append(f"{module} imports {name}: {here} may not import {there}")
            backend, of_module = backend_of(name), backend_of(module)
            if backend and of_module and backend != of_module:
                found.append(
                    f"{module} imports {name}: {of_module} may not import backends/{backend}"
                )
            if backend and here != "backends" and "backends" in MAY_IMPORT[here]:
                found.append(f"{module} imports {name}: ask freqfm.backends.get() instead")
    for node in outside_functions(tree):
        for name in imports_of(node, package):
            if name.split(".")[0] in NOT_AT_MODULE_LEVEL:
                found.append(f"{module} imports {name} at module level")
    return found


def undocumented(tree):
    """Return the names of public functions, classes and methods without a docstring."""

    def look(body, prefix):
        for node in body:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                if node.name.startswith("_"):
                    continue
                if not ast.get_docstring(node):
                    yield prefix + node.name
                if isinstance(node, ast.ClassDef):
                    yield from look(node.body, f"{prefix}{node.name}.")
            else:
                # Definitions under if, try or with.
                for field in ("body", "orelse", "handlers", "finalbody"):
                    yield from look(getattr(node, field, []), prefix)

    return [*([] if ast.get_docstring(tree) else ["the module"]), *look(tree.body, "")]


def is_folder(module):
    """Return whether an imagined module is a package; helpers are files."""
    return module.count(".") == 1 and "._" not in module


def test_package_is_found():
    assert {"freqfm", "freqfm._numba.jit", "freqfm.backends.cpu.fm.plain", "freqfm.losses"} <= set(
        SOURCES
    )


def test_imports_follow_the_layers():
    found = [
        violation
        for module, tree in trees().items()
        for violation in violations(module, tree, SOURCES[module].name == "__init__.py")
    ]
    assert found == []


def test_layers_are_not_evaded():
    # A module that imports by name could import any part.
    found = {
        module
        for module, node in nodes(ast.Name, ast.Attribute)
        if getattr(node, "id", getattr(node, "attr", "")).endswith(("import_module", "__import__"))
    }
    # Two look for other packages, or for a class that a file names.
    others = {"freqfm.dask._cluster", "freqfm.callbacks._storage"}
    assert found == {"freqfm", *others, *FOUND_ABOVE}
    for module, names in FOUND_ABOVE.items():
        module = importlib.import_module(module)
        assert module._LAZY.items() == names.items()
        assert set(names) <= {*module.__all__, *dir(module)}


def test_layers_have_no_cycle():
    # A part may be imported by those after it only.
    done = set()
    while len(done) < len(MAY_IMPORT):
        ready = {part for part, below in MAY_IMPORT.items() if part not in done and below <= done}
        assert ready, sorted(set(MAY_IMPORT) - done)
        done |= ready


def n_lines(function):
    """Return the number of lines of a function's body, without its docstring."""
    body = function.body[1:] if ast.get_docstring(function) else function.body
    return body[-1].end_lineno - body[0].lineno + 1 if body else 0


def n_parameters(function):
    """Return how many parameters a function has, without ``self`` and described options."""
    args = function.args
    positional = [arg.arg for arg in args.posonlyargs + args.args]
    n = len(positional) - (positional[:1] in (["self"], ["cls"])) + len(args.kwonlyargs)
    if "Parameters\n---" in (ast.get_docstring(function) or ""):
        n -= len(args.defaults) + sum(default is not None for default in args.kw_defaults)
    return n


def keeps_parameters(function):
    """Return whether a function is a constructor that sets or passes on what it is given."""

    def keeps(line):
        text = ast.unparse(line)
        if isinstance(line, ast.Assign):
            return text == f"self.{ast.unparse(line.value)} = {ast.unparse(line.value)}"
        return text.startswith("super().__init__(")

    return function.name == "__init__" and all(map(keeps, function.body))


def too_large(module, tree):
    """Yield the full names of functions with too many lines or parameters."""
    for node in ast.iter_child_nodes(tree):
        name = module
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            name = f"{module}.{node.name}"
        if (
            isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
            and (n_lines(node) > MOST_LINES or n_parameters(node) > MOST_PARAMETERS)
            and not keeps_parameters(node)
        ):
            yield name
        yield from too_large(name, node)


def test_cuda_is_imported_in_one_file():
    found = importing(lambda name: name.startswith(("numba.cuda", "numba_cuda")))
    assert found == {"freqfm.backends.cuda.device"}


def test_details_of_numba_are_imported_in_one_folder():
    details = "numba.core", "numba.cpython", "numba.extending", "llvmlite"
    found = importing(lambda name: name.startswith(details))
    assert {part_of(module) for module in found} == {"_numba"}


def private(name):
    """Return whether a full name belongs to scikit-learn, and has a part that is private."""
    return re.match(r"sklearn\b.*\._(?!_)", name) is not None


def test_private_names_of_scikit_learn_are_in_one_file():
    assert importing(private) == {"freqfm._sklearn"}
    assert private("sklearn.utils._param_validation.Interval")
    assert private("sklearn.utils.validation._num_samples") and not private("sklearn.__version__")
    naming = {
        module
        for module, node in nodes(ast.Constant, ast.Attribute)
        for name in [getattr(node, "value", None), getattr(node, "attr", None)]
        if isinstance(name, str) and name in CALLBACK_ATTRIBUTES
    }
    assert naming == {"freqfm._sklearn"}


def private_members(tree):
    """Yield the names that classes define for themselves and for those derived from them."""
    for node in ast.walk(tree):
        for line in node.body if isinstance(node, ast.ClassDef) else ():
            targets = getattr(line, "targets", [getattr(line, "target", line)])
            for name in [getattr(one, "name", getattr(one, "id", "")) for one in targets]:
                if re.match("_(?!_)", name):
                    yield name


OURS = "self", "cls", "super()"


def of_other_objects(tree):
    """Yield the names of attributes of anything but ``self``, ``cls`` and ``super()``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) not in OURS:
            yield node.attr


def test_nothing_private_of_other_objects_is_used_on_a_cluster():
    # What estimators there inherit they may call, and stored attributes they may read.
    own, of_plain = set(), set()
    for module, tree in trees().items():
        (own if part_of(module) == "dask" else of_plain).update(private_members(tree))
    used = {
        name
        for module, tree in trees().items()
        if part_of(module) == "dask"
        for name in of_other_objects(tree)
    }
    assert {"_read", "_records", "_learned", "_of_classes"} <= of_plain
    assert used & (of_plain - own) == set()
    source = ast.parse("self._a = model._read(X), super()._split(X), cls._b, model.estimator_._c")
    assert set(of_other_objects(source)) == {"estimator_", "_read", "_c"}


def test_cuda_is_imported_only_when_asked_for():
    importing = {
        module
        for module, tree in trees().items()
        for node in outside_functions(tree)
        for name in imports_of(node, module.rpartition(".")[0])
        if name.startswith("freqfm.backends.cuda") and ".cuda" not in module
    }
    assert importing == set()


def test_functions_are_small():
    found = {name for module, tree in trees().items() for name in too_large(module, tree)}
    assert not found, "too many lines or parameters"


def test_only_hashed_folders_are_compiled():
    # The cache of compiled code is named after the sources of these folders.
    decorators = {f"freqfm._numba.jit.{decorator}" for decorator in DECORATORS}
    compiled = importing(decorators.__contains__)
    assert {part_of(module) for module in compiled} == set(COMPILED)


def test_public_names_have_docstrings():
    found = {module: undocumented(tree) for module, tree in trees().items()}
    assert {module: names for module, names in found.items() if names} == {}


def test_type_checkers_see_the_lazy_names():
    (block,) = (node for node in trees()["freqfm"].body if isinstance(node, ast.If))
    assert ast.unparse(block.test) == "TYPE_CHECKING"
    seen = {}
    for node in block.body:
        for alias in node.names:
            # A submodule is imported by itself, a name from its module.
            seen[alias.name] = None if node.module == "freqfm" else node.module
    assert seen == freqfm._LAZY


def test_package_is_typed():
    assert (PACKAGE / "py.typed").exists()


FOLDERS = [*AXES, "callbacks", "datasets", "displays", "metrics", "model_selection"]


def public_objects(names=FOLDERS):
    """Return the public classes and functions of the package and of some of its folders."""
    modules = [freqfm, *(getattr(freqfm, name) for name in names)]
    found = (getattr(module, name) for module in modules for name in module.__all__)
    return {one for one in found if inspect.isclass(one) or inspect.isfunction(one)}


def by_position(function):
    """Return the parameters that may be given without their names."""
    parameters = inspect.signature(function).parameters.values()
    return [p for p in parameters if p.kind == p.POSITIONAL_OR_KEYWORD and p.name != "self"]


def test_parameters_after_the_first_are_given_by_name():
    # Two of a kind, the first of users and the second of items.
    pairs = {"Features", "MAWU"}
    # Displays take the arrays that they draw; tuples of arrays are no components.
    classes = public_objects([name for name in FOLDERS if name != "displays"])
    classes = {one for one in classes if inspect.isclass(one)}
    classes = {cls for cls in classes if not issubclass(cls, (tuple, Exception))}
    most = {cls: 2 if cls.__name__ in pairs else 1 for cls in classes}
    assert len(classes) > 50
    assert {cls for cls in classes if len(by_position(cls)) > most[cls]} == set()


def test_flags_and_seeds_are_given_by_name():
    functions = public_objects()
    for cls in [one for one in functions if inspect.isclass(one)]:
        methods = inspect.getmembers(cls, inspect.isroutine)
        functions |= {method for name, method in methods if name[0] != "_"}
    of_package = {
        one
        for one in functions
        if not inspect.isclass(one)
        and str(getattr(one, "__module__", "")).startswith("freqfm")
        and one.__name__ != "get_params"  # as scikit-learn has it
    }
    found = {
        (function.__qualname__, p.name)
        for function in of_package
        for p in by_position(function)
        if p.default is not p.empty
        and (isinstance(p.default, bool) or p.name in ("seed", "random_state"))
    }
    assert found == set()


def test_public_names_resolve():
    assert len(set(freqfm.__all__)) == len(freqfm.__all__)
    for name in freqfm.__all__:
        assert getattr(freqfm, name) is not None
    assert set(freqfm.__all__) == set(dir(freqfm))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = freqfm.nothing


@pytest.mark.parametrize(
    "module, source, complaint",
    [
        ("freqfm.formulas.steps", "from freqfm.backends.cpu.team import wait", "import backends"),
        ("freqfm.backends.cpu.fm.plain", "import freqfm.optimizers as o", "import optimizers"),
        ("freqfm.losses", "from freqfm import optimizers", "import optimizers"),
        ("freqfm.losses.ranking", "from ..optimizers import SGD", "import optimizers"),
        ("freqfm.optimizers._base", "def f():\n    import freqfm.estimators.fm", "estimators"),
        ("freqfm.initializers", "from freqfm import FMClassifier", "may not import __init__"),
        ("freqfm.initializers", "import freqfm", "may not import __init__"),
        (
            "freqfm.backends.cuda.fm.batch",
            "from freqfm.backends.cpu import rows",
            "backends/cpu",
        ),
        (
            "freqfm.backends.cuda.fm.batch",
            "from ...cpu.ownership import owner",
            "backends/cpu",
        ),
        ("freqfm.metrics", "from freqfm.backends.cpu.topk import top_k", "backends.get()"),
        ("freqfm.estimators.fm.plain", "from ...backends.cpu import team", "backends.get()"),
        ("freqfm.datasets.text_files", "from freqfm._numba import jit", "import _numba"),
        ("freqfm._components", "from . import losses", "import losses"),
        (
            "freqfm._numba.jit",
            "try:\n    import freqfm.formulas\nfinally:\n    f()",
            "import formulas",
        ),
        ("freqfm.plots", "import math", "freqfm.plots is not listed"),
        ("freqfm.estimators.fm", "if True:\n    import pandas as pd", "pandas at module level"),
        ("freqfm.losses", "class A:\n    from torch import nn", "torch.nn at module level"),
    ],
)
def test_checker_sees_violations(module, source, complaint):
    (found,) = violations(module, ast.parse(source), is_folder(module))
    assert complaint in found


@pytest.mark.parametrize(
    "module, source",
    [
        (
            "freqfm.estimators.fm",
            "from freqfm.losses import LogLoss\nimport numpy, freqfm._numba",
        ),
        (
            "freqfm.estimators.fm.plain",
            "from ..training import EpochLoop\nfrom ...backends.base import FMWeights",
        ),
        ("freqfm.estimators.fm", "def f():\n    import matplotlib.pyplot, pandas"),
        ("freqfm.backends.cuda.fm.batch", "from freqfm.formulas.steps import sgd_step"),
        ("freqfm.optimizers", "from ._base import Optimizer\nfrom pandas_like import x"),
    ],
)
def test_checker_lets_others_pass(module, source):
    assert violations(module, ast.parse(source), is_folder(module)) == []


def test_checker_sees_missing_docstrings():
    source = '''
class A:
    def method(self): pass
    def _private(self): pass
    @property
    def told(self):
        """Told."""
try:
    def tried(): pass
except ImportError:
    def caught(): pass
class _Hidden:
    def method(self): pass
'''
    assert undocumented(ast.parse(source)) == ["the module", "A", "A.method", "tried", "caught"]


def test_checker_sees_large_functions():
    many = ", ".join(f"p{i}" for i in range(9))
    few, rest = many[:-4], "p8=None"
    documented = '"""Do.\n\n    Parameters\n    ----------\n    """'
    sources = {
        f"def f({many}): pass": ["m.f"],
        f"def f({few}, *, {rest}): pass": ["m.f"],
        f"def f({few}, {rest}): pass": ["m.f"],
        f"def f({few}): pass": [],
        f"def f({few}, {rest}):\n    {documented}": [],
        f"class A:\n    def __init__(self, {many}): self.p0 = p0": [],
        f"class A:\n    def __init__(self, {many}): self.p0 = p1": ["m.A.__init__"],
        f"class A:\n    def f(self, {few}): pass": [],
        f"if True:\n    def f({many}): pass": ["m.f"],
        f"def f():\n    def g({many}): pass": ["m.f.g"],
        "def f():\n" + "    pass\n" * 61: ["m.f"],
        "def f():\n" + "    pass\n" * 60: [],
    }
    for source, expected in sources.items():
        assert list(too_large("m", ast.parse(source))) == expected, source
