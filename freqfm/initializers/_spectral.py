"""Initial directions of users and items: singular vectors of their interactions."""

import numpy as np

from freqfm import backends
from freqfm._components import NON_NEGATIVE, POSITIVE_INTEGER, replaced
from freqfm._threads import single_threaded_blas
from freqfm.initializers._base import Initializer
from freqfm.initializers._random import XavierUniform

__all__ = ["Spectral"]

# More singular vectors than wanted are iterated: the last ones converge slowly.
_MORE = 10

# Directions of less than this share of the largest norm are rounding errors.
_NEGLIGIBLE = 1e-6


class Spectral(Initializer):
    """Rows of leading singular vectors of the interactions, with some noise.

    Users and items that are close in the graph of interactions start close to each other, which
    training from random directions takes many epochs to find. The matrix is that of the
    interactions, each divided by the root of both numbers of neighbours, as in spectral clustering
    of bipartite graphs [1]_ and in the filters of [2]_. A column is multiplied by the root of its
    singular value; the row gets the length that ``base`` would give it, and ``noise`` times the
    random row is added, so that users, or items, with the same leading vectors can become
    different. Rows without interactions start as with ``base``, and so do new rows of
    ``partial_fit``.

    Parameters
    ----------
    noise : float, default=0.3
        How much of the random row is added.
    base : Initializer, default=None
        Gives lengths and random rows, for instance :class:`PRISM`. None is :class:`XavierUniform`,
        for :class:`~freqfm.FastVAERecommender` :class:`Normal`.
    n_iter : int, default=4
        Iterations; each multiplies by the matrix and its transpose.

    Notes
    -----
    Takes ``2 (n_iter + 1)`` products of the matrix and a table of ``n_components + 10`` columns,
    and about three such tables of users and of items. Values of interactions are not used. It is
    for the users and items of :class:`~freqfm.MFRecommender` and the items of
    :class:`~freqfm.FastVAERecommender`; vectors of features, layers and margins start as with
    ``base``.

    References
    ----------
    .. [1] I. S. Dhillon. "Co-clustering documents and words using bipartite spectral graph
       partitioning". KDD 2001, section 4.
    .. [2] Y. Shen, Y. Wu, Y. Zhang, C. Shan, J. Zhang, K. B. Letaief, D. Li. "How Powerful is Graph
       Convolution for Recommendation?". CIKM 2021.

    Examples
    --------
    >>> from freqfm import MFRecommender
    >>> from freqfm.datasets import make_interactions
    >>> from freqfm.initializers import Spectral
    >>> X = make_interactions(200, 100, random_state=0)
    >>> model = MFRecommender(16, init=Spectral(noise=0.1), max_iter=5, random_state=0).fit(X)
    >>> model.user_factors_.shape
    (200, 16)
    """

    _defaults = {"base": XavierUniform()}
    _parameter_constraints = {
        "noise": NON_NEGATIVE,
        "base": [Initializer, None],
        "n_iter": POSITIVE_INTEGER,
    }
    needs_interactions = True

    def __init__(self, noise: float = 0.3, *, base: Initializer | None = None, n_iter: int = 4):
        self.noise = noise
        self.base = base
        self.n_iter = n_iter

    @property
    def _base(self):
        return self.value_of("base").with_defaults()

    def with_defaults(self, **suited):
        """Return this with a ``base``, and with values that suit it, see :class:`Component`."""
        whole = super().with_defaults(**suited)
        return replaced(whole, {"base": whole.base.with_defaults(**suited)})

    @property
    def lengths_matter(self):
        """Whether training should keep the lengths, see :class:`Initializer`."""
        return self._base.lengths_matter

    def of_side(self, side):
        """Return this with the ``base`` of a side, see :class:`Initializer`."""
        return type(self)(self.noise, base=self._base.of_side(side), n_iter=self.n_iter)

    def draw(self, shape, generator, counts=None):
        """Return a table drawn by ``base``, see :class:`Initializer`."""
        return self._base.draw(shape, generator, counts)

    def length_ratio(self, shape, n_known):
        """Return the ratio of ``base``, see :class:`Initializer`."""
        return self._base.length_ratio(shape, n_known)

    def stretch(self, shape, n_occurrences):
        """Return the factor of ``base``, see :class:`Initializer`."""
        return self._base.stretch(shape, n_occurrences)

    def directions(self, X, n_components, generator, n_threads):
        """Return singular vectors, see :class:`Initializer`."""
        graph = backends.get().propagation(X, n_threads)
        with single_threaded_blas():
            vectors = _singular_vectors(graph, X.shape, n_components, generator, self.n_iter)
        for table in vectors:
            lengths = np.linalg.norm(table, axis=1, keepdims=True)
            table /= np.where(lengths > _NEGLIGIBLE * lengths.max(initial=0), lengths, np.inf)
        return dict(zip(("user", "item"), vectors, strict=True))


def _singular_vectors(graph, shape, n_components, generator, n_iter):
    """Return leading left and right singular vectors times the roots of the singular values.

    By subspace iteration. Components beyond the rank are zeros.

    Parameters
    ----------
    graph : object
        See ``Backend.propagation``.
    shape : tuple of int
        Numbers of users and items.
    n_components : int
    generator : numpy.random.Generator
    n_iter : int
    """
    width = min(n_components + _MORE, *shape)
    items = _orthonormal(generator.standard_normal((shape[1], width), dtype=np.float32))
    for _ in range(n_iter):
        users = _orthonormal(_product(graph, shape, "user", items))
        items = _orthonormal(_product(graph, shape, "item", users))
    users = _product(graph, shape, "user", items)
    values, rotation = np.linalg.eigh(users.T @ users)
    # The squares of the singular values, the largest first.
    order = np.argsort(-values, kind="stable")[:n_components]
    squares, rotation = values[order], rotation[:, order]
    roots = np.where(squares > _NEGLIGIBLE * squares[0], squares, 0) ** np.float32(0.25)
    tables = users @ (rotation / np.where(roots > 0, roots, np.inf)), items @ (rotation * roots)
    missing = n_components - len(order)
    return [np.pad(table, ((0, 0), (0, missing))) for table in tables]


def _product(graph, shape, side, table):
    """Return the product of the matrix, or of its transpose, and a table."""
    n_users, n_items = shape
    none, width = np.zeros(0, dtype=np.int64), table.shape[1]
    if side == "user":
        base = np.zeros((n_users, width), dtype=np.float32)
        return 2 * graph.mean(base, table, 1, wanted=(np.arange(n_users), none))[0]
    base = np.zeros((n_items, width), dtype=np.float32)
    return 2 * graph.mean(table, base, 1, wanted=(none, np.arange(n_items)))[1]


def _orthonormal(table):
    """Return an orthonormal basis of the columns; zeros for linearly dependent columns."""
    values, rotation = np.linalg.eigh(table.T @ table)
    kept = values > _NEGLIGIBLE * values[-1:]
    return table @ (rotation / np.sqrt(np.where(kept, values, np.inf)))
