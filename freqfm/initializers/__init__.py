"""Initializers: the initial values of embedding tables."""

from freqfm._components import resolve
from freqfm._messages import shown
from freqfm.initializers._base import PRISM, Initializer, Normal, Spectral, XavierUniform

__all__ = ["INITIALIZERS", "PRISM", "Initializer", "Normal", "Spectral", "XavierUniform"]

INITIALIZERS = {"normal": Normal, "xavier": XavierUniform, "prism": PRISM, "spectral": Spectral}


def resolve_for_columns(estimator):
    """Return the initializer of an estimator that has no users and items.

    Raises
    ------
    ValueError
        If it needs the interactions of users and items.
    """
    initializer = resolve("init", estimator.init, Initializer, INITIALIZERS)
    if initializer.needs_interactions:
        others = [name for name, kind in INITIALIZERS.items() if not kind.needs_interactions]
        raise ValueError(
            f"init={shown(estimator.init)} needs interactions of users and items, which "
            f"{type(estimator).__name__} does not have; choose one of {others}."
        )
    return initializer
