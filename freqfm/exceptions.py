"""Errors of the package."""


class DivergenceError(ValueError):
    """Training produced a loss or a weight that is not finite.

    The estimator keeps the model of the last epoch that ended with finite weights, so that it can
    still predict. If there is none, it stays as it was before the call.
    """
