"""The contributions of entries to the output of a tower of dense layers: DeepSHAP."""

import numpy as np

from freqfm.backends.base import layers_of

# Change of a unit's input below which the slope of the ReLU is its derivative.
_NO_CHANGE = 1e-9


def mean_of_tower(output, features, background):
    """Return the mean output of the tower for reference rows; see ``add_tower``."""
    layers, weights = _layers_of(output.dense)
    before = _forward(layers, _Inputs(output, features).of(background))
    return float(np.mean(np.maximum(before[-1], 0) @ weights))


def add_tower(output, features, X, background, entries, contributions):
    """Add the contributions of entries to the tower's output.

    The change of the output from a reference row is divided among the tower's inputs by the rescale
    rule of DeepLIFT [1]_, and an input's part among the entries by their Shapley values for this
    input, which is of order one or two; the mean over reference rows is DeepSHAP [2]_.

    Parameters
    ----------
    output : FMWeights
    features : ndarray of shape (n_columns,)
        The features that the columns of ``X`` and ``background`` are.
    X : csr_array of shape (n_rows, n_columns)
    background : csr_array of shape (n_background, n_columns)
    entries : Entries
        Those of ``X``, and in each row those of ``background``.
    contributions : ndarray of shape (n_entries,)
        Is added to.

    References
    ----------
    .. [1] A. Shrikumar, P. Greenside, A. Kundaje. "Learning Important Features Through Propagating
       Activation Differences". ICML 2017.
    .. [2] S. Lundberg, S.-I. Lee. "A Unified Approach to Interpreting Model Predictions".
       NeurIPS 2017.
    """
    inputs = _Inputs(output, features)
    layers, weights = _layers_of(output.dense)
    before, after = (_forward(layers, inputs.of(rows)) for rows in (background, X))
    sums, known = inputs.sums(X), inputs.sums(background)
    reference = background.toarray().astype(np.float64)
    for b in range(len(reference)):
        slopes = _slopes(layers, weights, [values[b] for values in before], after)
        old = reference[b, entries.columns]
        changed = np.flatnonzero((entries.values != 0) | (old != 0))
        place = entries.rows[changed], entries.columns[changed]
        values = entries.values[changed], old[changed]
        parts = inputs.parts(*place, *values, sums, known[b], slopes)
        contributions[changed] += parts / len(reference)


class _Inputs:
    """The input of a tower: the sums of fields, or the pooled interactions; see ``Tower``."""

    def __init__(self, output, features):
        tower = output.dense
        self._factors = output.factors[features].astype(np.float64)
        self._n_fields = tower.n_fields if len(tower.fields) else 0
        self._fields = tower.fields[features] if self._n_fields else None

    def sums(self, X):
        """Return the sums of x v of rows, of all fields."""
        return X @ self._factors

    def of(self, X):
        """Return the inputs of rows."""
        if self._n_fields:
            width = self._factors.shape[1]
            found = np.zeros((X.shape[0], self._n_fields, width))
            for field in np.unique(self._fields):
                columns = np.flatnonzero(self._fields == field)
                found[:, field] = X[:, columns] @ self._factors[columns]
            return found.reshape(len(found), -1)
        return (self.sums(X) ** 2 - X.power(2) @ self._factors**2) / 2

    def parts(self, rows, columns, x, b, sums, known, slopes):
        """Return the parts of entries in the inputs' changes from b to x, times slopes."""
        vectors = self._factors[columns]
        if self._n_fields:
            by_field = slopes.reshape(len(slopes), self._n_fields, -1)
            return (x - b) * np.einsum("ij,ij->i", vectors, by_field[rows, self._fields[columns]])
        others = sums[rows] + known - (x + b)[:, None] * vectors
        return (x - b) / 2 * np.einsum("ij,ij,ij->i", vectors, others, slopes[rows])


def _layers_of(tower):
    """Return the layers, biases in the last row, and the weights of the last one's outputs."""
    *layers, weights = (layer[0] for layer in layers_of(tower.widths, tower.weights.astype(float)))
    return layers, weights


def _forward(layers, values):
    """Return what enters the units of each layer, before the ReLU."""
    found = []
    for layer in layers:
        found.append(values @ layer[:-1] + layer[-1])
        values = np.maximum(found[-1], 0)
    return found


def _slopes(layers, weights, before, after):
    """Return how much the output changes by each input, on average from a reference row on."""
    slopes = np.broadcast_to(weights, after[-1].shape)
    for layer, old, new in zip(layers[::-1], before[::-1], after[::-1], strict=True):
        change = new - old
        same = np.abs(change) < _NO_CHANGE
        rise = np.maximum(new, 0) - np.maximum(old, 0)
        slopes = slopes * np.where(same, new > 0, rise / np.where(same, 1, change))
        slopes = slopes @ layer[:-1].T
    return slopes
