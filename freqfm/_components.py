"""Pluggable components: objects that hold hyper-parameters, found by name or given as instances."""

import difflib
from numbers import Real

from sklearn.base import BaseEstimator
from sklearn.utils._param_validation import Interval

POSITIVE = [Interval(Real, 0, None, closed="neither")]
POSITIVE_OR_INFINITE = [Interval(Real, 0, None, closed="right")]
NON_NEGATIVE = [Interval(Real, 0, None, closed="left")]


class Component(BaseEstimator):
    """Base class of everything that is chosen along an axis: an optimizer, a loss, ...

    A component holds hyper-parameters and nothing else, so it can be shared, cloned, searched
    (``optimizer__learning_rate``) and compared; its state belongs to the estimator that uses it.
    """

    _parameter_constraints: dict = {}


def resolve(axis, value, base, registry, parameters=()):
    """Return the component that ``value`` names, or ``value`` itself if it is one.

    Parameters
    ----------
    axis : str
        Name of the constructor parameter, for error messages.
    value : str or Component
        What the user gave.
    base : type
        The class that every component of this axis derives from.
    registry : dict of str to type
        The components known by name.
    parameters : iterable of (str, str, object)
        Parameter of the component, the estimator's name for it, and its value, of which None
        means the component's own default. They go with a name only: an instance has its own.

    Returns
    -------
    component : Component

    Raises
    ------
    ValueError
        If the name is unknown, or if parameters accompany an instance.
    TypeError
        If ``value`` is neither a name nor a component of this axis.
    """
    given = [(own, name, number) for own, name, number in parameters if number is not None]
    if isinstance(value, str):
        if value not in registry:
            near = difflib.get_close_matches(value, registry, n=2, cutoff=0.4) or sorted(registry)
            raise ValueError(
                f"{axis}={value!r} is not known; did you mean {' or '.join(map(repr, near))}? "
                f"Known names: {', '.join(map(repr, sorted(registry)))}."
            )
        unknown = [item for item in given if item[0] not in registry[value]().get_params()]
        if unknown:
            own, name, number = unknown[0]
            raise ValueError(
                f"{name}={number!r} has no use: {axis}={value!r} has no {own}; leave it at None."
            )
        component = registry[value](**{own: number for own, _, number in given})
    else:
        if not isinstance(value, base):
            raise TypeError(
                f"{axis} must be one of {', '.join(map(repr, sorted(registry)))} or an instance "
                f"of {base.__name__}; got {value!r} of type {type(value).__name__}."
            )
        if given:
            _, name, number = given[0]
            raise ValueError(
                f"{name}={number!r} was given together with the instance {axis}={value!r}, "
                f"which has its own. Leave one of the two out."
            )
        component = value
    component._validate_params()
    return component


def name_to_instance(estimator, axes, params):
    """Make a name in ``params`` an instance where a parameter of the component is set too.

    So grids over ``optimizer__learning_rate`` need no instance.

    Parameters
    ----------
    estimator : estimator
    axes : dict of str to dict
        The components known by name, for each parameter that takes one.
    params : dict
        What ``set_params`` was called with; changed in place.
    """
    for axis, registry in axes.items():
        value = params.get(axis, getattr(estimator, axis))
        nested = any(name.startswith(f"{axis}__") for name in params)
        if nested and isinstance(value, str) and value in registry:
            params[axis] = registry[value]()
