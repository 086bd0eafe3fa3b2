"""Checks of components of your own, as scikit-learn has them for estimators."""

import copy
import inspect
import itertools
from functools import partial

import numpy as np
from scipy import sparse
from sklearn.base import clone

from freqfm._components import IGNORED, refuse_names, resolve, set_by_user, shipped_class
from freqfm._messages import shown
from freqfm._numba.jit import python_function
from freqfm.auxiliary import AuxiliaryTerm
from freqfm.backbones import Backbone, LightGCN
from freqfm.datasets import make_interactions
from freqfm.estimators.recommenders.mf import MFRecommender
from freqfm.initializers import Initializer
from freqfm.losses import Loss, RankingLoss, VectorLoss
from freqfm.optimizers import Optimizer
from freqfm.samplers import Sampler
from freqfm.temperatures import Temperature

__all__ = ["check_component"]

# The base classes of components, and the parameters of estimators that take them.
_AXES = {
    Loss: "loss",
    RankingLoss: "loss",
    Optimizer: "optimizer",
    Sampler: "negative_sampler",
    Temperature: "temperature",
    Initializer: "init",
    Backbone: "backbone",
    AuxiliaryTerm: "auxiliary",
}

# Values of the arguments of formulas; no two of them are equal, as many losses have a kink there.
_POINTS = {
    "score": (-1.713, -0.628, 0.397, 1.291),
    "target": (0.0, 1.0),
    "positive": (-0.817, -0.312, 0.214, 0.733),
    "negative": (-0.709, -0.254, 0.321, 0.894),
}

# Directions in which arrays move; the lengths of the steps, relative to the root mean square of an
# array, or to a smallest scale.
_DIRECTIONS, _STEPS, _SMALLEST = 4, (1e-3, 1e-4), 1e-2

# Largest relative differences: between slopes of different steps, which differ at kinks, and
# between these and the gradient.
_TOLERANCE_OF_STEPS, _TOLERANCE = 0.03, 0.05


def check_component(component, X=None, **params):
    """Raise if a component of your own class is wrong in a way that no fit would notice.

    These are checked:

    - ``clone`` copies it, and the values of its parameters are valid.
    - Nothing that the class sets would be ignored, such as a parameter that no formula can read.
    - The derivatives of a loss, the gradients of a backbone, of an auxiliary term and of a loss of
      vectors are those of its values, by finite differences.
    - A step of an optimizer moves a weight against its gradient.
    - All but losses and optimizers with formulas are tried in an
      :class:`~freqfm.MFRecommender`, which refuses results of the wrong type or shape.

    Parameters
    ----------
    component : Component
        A loss, an optimizer, a sampler, a temperature, an initializer, a backbone or an auxiliary
        term.
    X : {array-like, sparse matrix} of shape (n_users, n_items), default=None
        The interactions of the recommender; None for 40 users and 30 items. A backbone that has
        features of users or items needs a matrix of their numbers.
    **params : object
        Other parameters of the recommender.

    Raises
    ------
    AssertionError
        If a derivative, a gradient or a step is wrong.
    TypeError, ValueError
        If something else is wrong.

    Examples
    --------
    >>> from numba import njit
    >>> from freqfm.losses import Loss
    >>> from freqfm.testing import check_component
    >>> class WrongSign(Loss):
    ...     @staticmethod
    ...     @njit
    ...     def value_and_derivative(score, target):
    ...         return (score - target) ** 2 / 2, target - score
    >>> check_component(WrongSign())
    Traceback (most recent call last):
        ...
    AssertionError: value_and_derivative(-1.713, 0) of WrongSign returns the derivative 1.71 ...
    """
    base = next((base for base in _AXES if isinstance(component, base)), None)
    if base is None:
        raise TypeError(
            f"component={shown(component)} is a {type(component).__name__}, but must be an "
            f"instance of a class that derives from {', '.join(cls.__name__ for cls in _AXES)}."
        )
    axis = _AXES[base]
    resolve(axis, clone(component), base, {})
    _refuse_unread(axis, component)
    for name, variables in component._formulas.items():
        if name == "step":
            _check_step(component)
        elif component._results.get(name, 1) > 1:
            _check_derivatives(component, name, variables)
    if component._compiled:
        return
    X = make_interactions(40, 30, 300, random_state=0) if X is None else X
    graph = LightGCN(propagate="batch")
    backbone = graph if getattr(component, "needs_graph", False) else "linear"
    settings = {"n_components": 4, "max_iter": 6, "random_state": 0, "backbone": backbone}
    model = MFRecommender(**{**settings, axis: component, **params}).fit(X)
    if isinstance(component, (AuxiliaryTerm, VectorLoss)):
        compared = copy.copy(component)
        compared.value_and_gradients = partial(_compared, component)
        clone(model).set_params(**{axis: compared}).fit(X)
    if isinstance(component, Backbone) and not component.is_linear:
        bound, X = component, sparse.csr_array(X)
        if component._has_context:
            bound = component.with_totals(component.read(X.shape[0]), X)
        _check_backbone(bound.bind(X, 1), model.backbone_tables_, X.shape)


def _refuse_unread(axis, component):
    """Raise if a class whose formulas are compiled sets names that nothing reads."""
    if not component._compiled:
        return
    cls, shipped = type(component), shipped_class(component)
    given = set_by_user(component)
    known = {*dir(shipped), *shipped._get_param_names(), *component._slots}
    attributes = {name: inspect.getattr_static(cls, name, None) for name in given}
    methods = {n for n, one in attributes.items() if callable(one) or isinstance(one, property)}
    new = {name for name in given - known if not name.startswith("_")}
    # Methods that estimators call may read new parameters, and so may a formula as a property.
    called = {name for name in methods & known if not name.startswith("__")}
    called -= {n for n in component._formulas if not isinstance(attributes.get(n), property)}
    refuse_names(axis, component, new & methods if called else new, IGNORED)


def _check_derivatives(component, name, variables):
    """Compare the derivatives that a formula returns, after its value, with differences."""
    formula = getattr(component, name)
    for point in itertools.product(*(_POINTS[variable] for variable in variables)):
        place, moved = ", ".join(f"{number:g}" for number in point), np.array(point)
        for i, derivative in enumerate(formula(*point)[1:]):
            _compare(
                f"{name}({place}) of {type(component).__name__} returns the derivative "
                f"{derivative:.3g} by the {variables[i]}",
                lambda moved=moved: formula(*moved)[0],
                moved,
                np.array([i]),
                np.array([derivative]),
            )


def _check_step(optimizer):
    """Raise if a step moves a weight in the direction of its gradient."""
    step = optimizer.step
    if step is None:
        return
    more = [1.0] * (len(inspect.signature(python_function(step)).parameters) - 5)
    moves = [g * step(0.0, g, 0.0, 0.0, 0.1, *more)[0] for g in (-1.0, 1.0)]
    if min(moves) > 0:
        raise AssertionError(
            f"step of {type(optimizer).__name__} moves a weight in the direction of its gradient, "
            f"which raises the loss: check its sign."
        )


def _check_backbone(backbone, tables, shape):
    """Compare the gradients of tables with differences of a weighted sum of some vectors."""
    rows = [np.unique(np.linspace(0, n - 1, 16).astype(np.int64)) for n in shape]
    *vectors, context = backbone.forward(tables, *rows)
    generator = np.random.default_rng(0)
    weights = [generator.standard_normal(table.shape).astype(np.float32) for table in vectors]

    def total():
        pairs = zip(backbone.forward(tables, *rows)[:2], weights, strict=True)
        return sum(np.sum(table * weight, dtype=np.float64) for table, weight in pairs)

    found = backbone.backward(tables, context, *weights)
    # The next call may overwrite its results.
    for name, (moved, gradient) in copy.deepcopy(found).items():
        what = f"backward of {type(backbone).__name__} returns gradients of {name!r}"
        _compare(what, total, tables[name], moved, gradient)


def _compared(term, batch):
    """Return the value of a term and its gradients, which are compared with differences."""
    vectors, stream = [table.astype(np.float64) for table in batch.both_vectors], batch.generator
    before = stream.bit_generator.state
    moved = batch._replace(user_vectors=vectors[0], item_vectors=vectors[1])

    def call(batch=moved):
        stream.bit_generator.state = before
        return term.value_and_gradients(batch)

    for side, table, gradient in zip(("users", "items"), vectors, call()[1:], strict=True):
        what = f"value_and_gradients of {type(term).__name__} returns gradients of {side}"
        gradient = np.zeros_like(table) if gradient is None else gradient
        _compare(what, lambda: call()[0], table, np.arange(len(table)), gradient)
    return call(batch)


def _compare(what, value, array, rows, gradient):
    """Raise unless a gradient is that of ``value()`` by some rows of an array.

    The rows move along random directions, and are set back. Where a shorter step gives another
    slope, there is a kink or a random number, and nothing is known.
    """
    generator, kept = np.random.default_rng(0), array[rows]
    scale = max(np.sqrt(np.mean(np.square(kept, dtype=np.float64))), _SMALLEST)
    slopes = []
    for _ in range(_DIRECTIONS):
        direction, found = generator.standard_normal(gradient.shape), []
        for step in np.multiply(_STEPS, scale):
            ends = []
            for sign in (1, -1):
                array[rows] = kept + sign * step * direction
                ends.append(value())
            found.append((ends[0] - ends[1]) / (2 * step))
        slopes.append((np.sum(gradient * direction), *found))
    array[rows] = kept
    promised, measured, nearer = np.transpose(slopes)
    converges = _difference(measured, nearer) <= _TOLERANCE_OF_STEPS
    if converges and _difference(promised, nearer) > _TOLERANCE:
        raise AssertionError(
            f"{what}, but that is not the derivative of the value: along a random direction the "
            f"value changes by {nearer[0]:.3g} for each unit, where it would be {promised[0]:.3g}."
        )


def _difference(slopes, others):
    """Return the difference of slopes, relative to the larger ones."""
    size = max(np.linalg.norm(slopes), np.linalg.norm(others))
    return np.linalg.norm(slopes - others) / size if size > 0 else 0.0
