"""Pluggable components: objects that hold hyper-parameters, given by name or as instances."""

import copy
import functools
import inspect
import operator
import weakref
from abc import ABC
from itertools import takewhile
from numbers import Integral, Real

import numpy as np
from sklearn.base import BaseEstimator

from freqfm._messages import not_known, shown
from freqfm._numba.jit import as_python, python_function
from freqfm._sklearn import Interval, validate_parameter_constraints

# Item indices and counts are int32.
POSITIVE_INTEGER = [Interval(Integral, 1, 2**31 - 1, closed="both")]
POSITIVE = [Interval(Real, 0, None, closed="neither")]
POSITIVE_OR_INFINITE = [Interval(Real, 0, None, closed="right")]
NON_NEGATIVE = [Interval(Real, 0, None, closed="left")]


class Component(BaseEstimator, ABC):
    """Base class of optimizers, losses, samplers and other exchangeable parts of estimators.

    A component holds hyper-parameters and nothing else, so it can be shared, cloned, searched
    (``optimizer__learning_rate``) and compared; its state belongs to the estimator that uses it.
    """

    _parameter_constraints: dict = {}

    #: The values of parameters that are None, unless those of an estimator suit it better.
    _defaults: dict = {}
    #: Whether compiled code implements the component. If so, a user's subclass may change constants
    #: of one of the package's classes and methods that estimators call, but cannot give a formula.
    _compiled = False
    #: Names that only the package's own classes may set: codes, and what must agree with them.
    _fixed: tuple = ()
    #: Functions of numbers that a user's class may give, to be compiled into kernels, with the
    #: names of their parameters; and which of them a class must give that derives directly from
    #: the base class. If none are listed, all are required.
    _formulas: dict = {}
    _required: tuple = ()
    #: How many numbers formulas return that return several.
    _results: dict = {}
    #: Formulas that may take one more parameter, the step number.
    _numbered: tuple = ()
    #: Parameters that compiled code reads, at the position that a code of the same name tells.
    _slots: tuple = ()

    def value_of(self, name):
        """Return the value of a parameter, or its default if it is None.

        Parameters
        ----------
        name : str
        """
        value = getattr(self, name)
        return self._defaults.get(name) if value is None else value

    def with_defaults(self, **suited):
        """Return the component with values in place of the parameters that are None.

        Parameters
        ----------
        **suited : object
            The values that suit an estimator; None means the component's own default.

        Returns
        -------
        component : Component
            Itself if no parameter is None, else a copy.
        """
        missing = [name for name in self._defaults if getattr(self, name) is None]
        suited = {name: value for name, value in suited.items() if value is not None}
        values = {**self._defaults, **suited}
        return replaced(self, {name: values[name] for name in missing}) if missing else self


def nearest(component, by_class):
    """Return the value of the closest class of a component in a dict by class, or None."""
    return next((by_class[cls] for cls in type(component).__mro__ if cls in by_class), None)


def replaced(component, values):
    """Return a copy of a component that differs in the values of some parameters."""
    changed = copy.copy(component)
    for name, value in values.items():
        setattr(changed, name, value)
    return changed


@functools.cache
def constraints_of(cls):
    """Return the constraints of all parameters; a class lists those of its own, as its bases do."""
    own = (vars(base).get("_parameter_constraints", {}) for base in reversed(cls.__mro__))
    return functools.reduce(operator.or_, own)


def validate_params(estimator):
    """Raise unless the parameters of an estimator, or a component, have the values they may."""
    cls = type(estimator)
    given = estimator.get_params(deep=False)
    validate_parameter_constraints(constraints_of(cls), given, caller_name=cls.__name__)


# The values of parameters that were found valid, by estimator.
_VALID = weakref.WeakKeyDictionary()


def validate_changed_params(estimator):
    """Validate parameters, unless they are the same objects as in the last call."""
    values = [getattr(estimator, name) for name in constraints_of(type(estimator))]
    known = _VALID.get(estimator, ())
    if len(known) != len(values) or not all(map(operator.is_, values, known)):
        validate_params(estimator)
        _VALID[estimator] = values


def is_ours(cls):
    """Return whether a class is one of the package's."""
    return cls.__module__.split(".")[0] == "freqfm"


def shipped_class(component):
    """Return the closest of the package's classes that a component is an instance of."""
    return next(filter(is_ours, type(component).__mro__))


def set_by_user(component):
    """Return the names that classes outside the package, or the instance itself, set."""
    names = set(vars(component))
    for cls in takewhile(lambda cls: not is_ours(cls), type(component).__mro__):
        names |= set(vars(cls))
    return names


def refuse_names(axis, component, names, reason):
    """Raise if a user's class, or the instance, sets one of these names, which would be ignored."""
    names = sorted(set_by_user(component) & set(names))
    if names:
        raise TypeError(
            f"{axis} is a {type(component).__name__} that sets {', '.join(names)}, which would be "
            f"ignored: {reason}."
        )


IGNORED = "compiled code knows only freqfm's own classes"


def refuse_ignored(axis, component, base):
    """Raise if a user's class lacks a formula, or sets what only the package's own classes may.

    Compiled code knows a loss or an optimizer only by a code, some numbers, and the formulas that
    the class defines. ``freqfm.testing.check_component`` looks for other names that are not used.

    Parameters
    ----------
    axis : str
        Name of the constructor parameter, for error messages.
    component : Component
    base : type
        The class that every component of this axis derives from.

    Raises
    ------
    TypeError
        If something would be ignored, or a formula is missing or invalid. The message
        names the class and the attribute.
    """
    cls, shipped = type(component), shipped_class(component)
    is_direct = shipped is base
    if cls is shipped and not is_direct and vars(component).keys() <= component.get_params().keys():
        # The user has set only the values of parameters.
        return
    _check_formulas(
        axis, component, component._required or (component._formulas if is_direct else ())
    )
    if component._compiled and is_direct and not component._formulas:
        raise TypeError(
            f"{axis} is a {cls.__name__}, which derives from {base.__name__} itself, and its "
            f"formula would be ignored: {IGNORED}. Derive from one of these."
        )
    refuse_names(axis, component, component._fixed, IGNORED)


def _check_formulas(axis, component, required):
    """Raise unless the formulas of a component are functions of the right parameters."""
    cls = type(component).__name__
    for name, parameters in component._formulas.items():
        wanted = f"a function of ({', '.join(parameters)}) compiled by numba.njit"
        formula = getattr(component, name)
        if formula is None:
            if name in required:
                raise TypeError(
                    f"{axis} is a {cls} without {name}; give it {wanted}, as a static method or as "
                    f"a property."
                )
            if getattr(shipped_class(component), name) is not None:
                raise TypeError(f"{name} of {cls} is None, but has to be a number or {wanted}.")
            continue
        if isinstance(formula, Real):
            if not 0 < formula < np.inf:
                raise ValueError(f"{name} of {cls} is {formula!r}; it must be positive and finite.")
            continue
        function = python_function(formula)
        if not inspect.isfunction(function):
            raise TypeError(
                f"{name} of {cls} is {formula!r}, but has to be {wanted}: a static method, or a "
                f"property that returns one."
            )
        found = list(inspect.signature(function).parameters)
        if len(found) not in (len(parameters), len(parameters) + (name in component._numbered)):
            raise TypeError(
                f"{name} of {cls} has parameters ({', '.join(found)}), but has to be {wanted}."
            )
        try_formula(component, name, *[1.0] * len(found))


def try_formula(component, name, *numbers):
    """Return the results of a formula for some numbers, or None if it fails in Python.

    Raises
    ------
    TypeError
        If it uses a name that is not defined, or does not return as many numbers as it should:
        numba's errors for that name functions of the package only.
    """
    what = f"{name} of {type(component).__name__}"
    try:
        returned = as_python(getattr(component, name))(*numbers)
    except NameError as error:
        raise TypeError(f"{what} cannot be called: {error}.") from None
    except Exception:
        # It may work as compiled code.
        return None
    n_results = component._results.get(name, 1)
    if np.size(returned) != n_results:
        raise TypeError(
            f"{what} returns {shown(returned)}, but has to return {n_results} number(s)."
        )
    return returned


def is_named(value, name):
    """Return whether a user gave this name; arrays would compare element by element."""
    return isinstance(value, str) and value == name


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
        Parameter of the component, the estimator's name for it, and its value, unless it is None.
        They may not accompany an instance that has its own value.

    Returns
    -------
    component : Component
        Parameters that are None are still to be filled by ``with_defaults``.

    Raises
    ------
    ValueError
        If the name is unknown, or if a parameter is given twice.
    TypeError
        If ``value`` is neither a name nor a component of this kind, or is an instance of a user's
        class that would be partly ignored.
    """
    given = [(key, name, number) for key, name, number in parameters if number is not None]
    if isinstance(value, str):
        if value not in registry:
            raise not_known(axis, value, registry)
        component = registry[value]()
        if not given and is_ours(type(component)):
            return component  # its defaults are valid
        known = component.get_params()
        unknown = [item for item in given if item[0] not in known]
        if unknown:
            key, name, number = unknown[0]
            raise ValueError(
                f"{name}={shown(number)} is not used: {axis}={shown(value)} has no {key}; leave it "
                f"at None."
            )
        component.set_params(**{key: number for key, _, number in given})
    else:
        if not isinstance(value, base):
            raise TypeError(
                f"{axis} must be one of {', '.join(map(repr, sorted(registry)))} or an instance "
                f"of {base.__name__}; got {shown(value)} of type {type(value).__name__}."
            )
        component = value
        for key, name, number in given:
            if getattr(component, key, number) is not None:
                raise ValueError(
                    f"{name}={shown(number)} was given together with the instance "
                    f"{axis}={shown(value)}, which has its own. Leave one of the two out."
                )
            component = replaced(component, {key: number})
    # Formulas may depend on the parameters.
    validate_params(component)
    refuse_ignored(axis, component, base)
    return component


def name_to_instance(estimator, axes, params):
    """Replace a name in ``params`` by an instance where a parameter of the component is set too.

    So grids over ``optimizer__learning_rate`` work without an instance.

    Parameters
    ----------
    estimator : estimator
    axes : dict of str to dict or callable
        For each parameter that takes a component, those known by name, or what makes one of other
        values, such as numbers.
    params : dict
        What ``set_params`` was called with; changed in place.

    Raises
    ------
    ValueError
        If the parameter is neither an instance nor the name of a component.
    """
    for axis, registry in axes.items():
        value = params.get(axis, getattr(estimator, axis))
        nested = [name for name in params if name.startswith(f"{axis}__")]
        if not nested or hasattr(value, "set_params"):
            continue
        if callable(registry):
            params[axis] = registry(value)
            continue
        if not isinstance(value, str) or value not in registry:
            raise ValueError(
                f"{nested[0]} cannot be set, because {axis}={shown(value)} is not the name of a "
                f"component; set {axis} too, to an instance or one of "
                f"{', '.join(map(repr, sorted(registry)))}."
            )
        params[axis] = registry[value]()
