"""The contribution of each entry of a row to its score: Shapley values in closed form.

The score of a machine of order two is f(x) = w_0 + w x + x W x / 2, with a symmetric matrix W of
pair interactions whose diagonal is zero. For a pair of entries and one reference row b, the Shapley
value of entry i of the term W_ij x_i x_j is the mean of its two marginal contributions,
W_ij (x_i - b_i) b_j and W_ij (x_i - b_i) x_j. So, with means over reference rows::

    phi_i = w_i (x_i - E b_i) + sum_j W_ij E[(x_i - b_i) (x_j + b_j)] / 2
          = (x_i - E b_i) (w_i + (W x)_i / 2) + (x_i (W E b)_i - E[b_i (W b)_i]) / 2.

Only the first moments of the reference rows and E[b_i (W b)_i] are needed. With the empty row as
reference, phi_i = x_i (w_i + (W x)_i / 2): the linear term and half of each interaction.
"""

from typing import NamedTuple

import numpy as np
from scipy import sparse

from freqfm.backends.base import Tower, layers_of

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


# Contributions that are computed at once; each takes about 16 bytes times the number of factors.
_ENTRIES_AT_ONCE = 1 << 17


class PairTerm(NamedTuple):
    """A part of the matrix W: ``left @ right.T`` in some of its rows and columns.

    The terms of a machine add up to W, except on its diagonal, which does not count.
    """

    rows: np.ndarray  #: (n_left,), without duplicates
    left: np.ndarray  #: (n_left, width)
    columns: np.ndarray  #: (n_right,), without duplicates
    right: np.ndarray  #: (n_right, width)


class Entries(NamedTuple):
    """Entries of a matrix of rows, in row-major order; some may be zero."""

    rows: np.ndarray
    columns: np.ndarray
    values: np.ndarray
    keys: np.ndarray  #: row times number of columns plus column

    @classmethod
    def of(cls, X, support=()):
        """Return the entries of canonical CSR rows, and in all rows those of some columns."""
        n_rows, n_columns = X.shape
        stored = np.repeat(np.arange(n_rows), np.diff(X.indptr)) * n_columns + X.indices
        keys = stored
        if len(support):
            keys = np.union1d(stored, np.arange(n_rows)[:, None] * n_columns + support)
        values = np.zeros(len(keys))
        values[np.searchsorted(keys, stored)] = X.data
        return cls(*np.divmod(keys, max(1, n_columns)), values, keys)


class Explainer:
    """The contributions of entries of rows to the scores of a fitted machine.

    Parameters
    ----------
    model : BaseFM
    background : csr_array of shape (n_background, n_features) or None
        Reference rows; None is the empty row.
    """

    def __init__(self, model, background):
        n_features = model.n_features_in_
        if background is None:
            background = sparse.csr_array((1, n_features), dtype=np.float32)
        self._model, self._background = model, background
        self._support = np.unique(background.indices)
        self._outputs = model._outputs()
        # The means of b and of b_i (W b)_i, in the columns of the support.
        known = background[:, self._support]
        n_rows = background.shape[0]
        self._means = np.asarray(known.sum(axis=0, dtype=np.float64)).ravel() / n_rows
        self._products = np.zeros((len(self._outputs), len(self._support)))
        terms = model._pair_terms(self._support)
        for part in chunks(known):
            entries = Entries.of(part)
            for products, of_output in zip(self._products, terms, strict=True):
                pulls = entries.values * pull(of_output, part, entries) / n_rows
                products += np.bincount(entries.columns, pulls, len(self._support))

    @property
    def n_outputs(self):
        """Number of scores of a row."""
        return len(self._outputs)

    def base_values(self):
        """Return the mean scores of the reference rows, of shape (n_outputs,)."""
        found = [
            output.intercept[0] + output.linear[self._support] @ self._means + products.sum() / 2
            for output, products in zip(self._outputs, self._products, strict=True)
        ]
        for k, output in enumerate(self._outputs):
            if isinstance(output.dense, Tower):
                found[k] += mean_of_tower(output, self._support, self._known(self._support))
        return np.array(found)

    def chunks(self, X):
        """Yield the contributions of chunks of rows.

        They are the number of rows, their ``Entries`` in all columns, and contributions of shape
        (n_outputs, n_entries).
        """
        for part in chunks(X, len(self._support)):
            yield part.shape[0], *self._explain(part)

    def _known(self, features):
        return self._background[:, features]

    def _explain(self, X):
        n_features = X.shape[1]
        features = np.union1d(X.indices, self._support)
        support = np.searchsorted(features, self._support)
        X = sparse.csr_array(X[:, features])
        entries = Entries.of(X, support)
        means, products = np.zeros(len(features)), np.zeros(len(features))
        means[support] = self._means
        mean_row = sparse.csr_array(means[None])
        everywhere = Entries.of(mean_row, np.arange(len(features)))
        found = np.empty((len(self._outputs), len(entries.keys)))
        terms = self._model._pair_terms(features)
        for k, (output, of_output) in enumerate(zip(self._outputs, terms, strict=True)):
            products[support] = self._products[k]
            i, x = entries.columns, entries.values
            slopes = output.linear[features[i]] + pull(of_output, X, entries) / 2
            mean_pulls = pull(of_output, mean_row, everywhere)
            found[k] = (x - means[i]) * slopes + (x * mean_pulls[i] - products[i]) / 2
            if isinstance(output.dense, Tower):
                add_tower(output, features, X, self._known(features), entries, found[k])
        columns = features[entries.columns]
        keys = entries.rows * n_features + columns
        return Entries(entries.rows, columns, entries.values, keys), found


def chunks(X, n_more=0):
    """Yield consecutive rows of a CSR matrix, each with some more entries than it stores."""
    ends = X.indptr[1:] + n_more * np.arange(1, X.shape[0] + 1, dtype=np.int64)
    begin = 0
    while begin < X.shape[0]:
        before = ends[begin - 1] if begin else 0
        end = max(begin + 1, int(np.searchsorted(ends, before + _ENTRIES_AT_ONCE, "right")))
        yield X[begin:end]
        begin = end


def pull(terms, X, entries):
    """Return (W x)_i for some entries i of rows x of a CSR matrix."""
    n_columns = X.shape[1]
    found, of_itself = np.zeros(len(entries.keys)), np.zeros(n_columns)
    for term in terms:
        sums = X[:, term.columns] @ term.right
        left = np.full(n_columns, -1)
        left[term.rows] = np.arange(len(term.rows))
        place = left[entries.columns]
        inside = np.flatnonzero(place >= 0)
        found[inside] += _row_dots(term.left[place[inside]], sums[entries.rows[inside]])
        both = np.flatnonzero(left[term.columns] >= 0)
        own = term.columns[both]
        of_itself[own] += _row_dots(term.left[left[own]], term.right[both])
    return found - of_itself[entries.columns] * entries.values


def _row_dots(a, b):
    return np.einsum("ij,ij->i", a, b)
