"""Initial directions of users and items: singular vectors of their interactions."""

import numpy as np
from scipy import linalg
from sklearn.utils import check_random_state
from sklearn.utils.extmath import svd_flip

from freqfm._components import NON_NEGATIVE, POSITIVE_INTEGER, replaced
from freqfm._input.rows import csr_of, with_one_index_type
from freqfm._input.validation import count_columns, draw_seed
from freqfm._machine import single_threaded_blas
from freqfm.initializers._base import Initializer, XavierUniform

# Singular values, and rows, of less than this share of the largest are rounding errors.
_NEGLIGIBLE = 1e-6

# More vectors are multiplied than are wanted, since the last ones are found badly.
_OVERSAMPLES = 10


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
        # On a cluster X has the products with the matrix, whose rows are on the workers.
        graph = X.graph() if hasattr(X, "graph") else divided_by_degrees(X, count_columns(X))
        with single_threaded_blas():
            n = min(n_components, *X.shape)
            users, values, items = _leading(graph, n, self.n_iter, draw_seed(generator))
        roots = np.sqrt(np.where(values > _NEGLIGIBLE * values[0], values, 0))
        missing = (0, 0), (0, n_components - len(roots))
        directions = {}
        for side, vectors in (("user", users), ("item", items)):
            table = np.pad(vectors * roots, missing).astype(np.float32)
            lengths = np.linalg.norm(table, axis=1, keepdims=True)
            kept = lengths > _NEGLIGIBLE * lengths.max(initial=0)
            directions[side] = table / np.where(kept, lengths, np.inf)
        return directions


def divided_by_degrees(X, item_counts):
    """Return interactions, each divided by the root of both numbers of neighbours."""
    lengths = np.diff(X.indptr)
    values = 1 / np.sqrt(np.repeat(lengths, lengths) * item_counts[X.indices])
    return with_one_index_type(csr_of(values.astype(np.float32), X.indices, X.indptr, X.shape))


def _leading(matrix, n, n_iter, seed):
    """Return the ``n`` leading singular vectors of a matrix, as columns, and its singular values.

    The algorithm is that of scikit-learn's ``randomized_svd``, which takes no matrix that is only
    known by its products.
    """
    transposed = matrix.shape[0] < matrix.shape[1]
    tall = matrix.T if transposed else matrix
    basis = check_random_state(seed).normal(size=(tall.shape[1], n + _OVERSAMPLES))
    basis = basis.astype(np.float32)
    for _ in range(n_iter):
        basis = _orthonormal(tall.T @ _orthonormal(tall @ basis))
    basis = _orthonormal(tall @ basis)
    left, values, right = linalg.svd((tall.T @ basis).T, full_matrices=False)
    left, right = svd_flip(basis @ left, right, u_based_decision=not transposed)
    left, right = left[:, :n], right[:n].T
    return (right, values[:n], left) if transposed else (left, values[:n], right)


def _orthonormal(table):
    return linalg.qr(table, mode="economic", check_finite=False)[0]
