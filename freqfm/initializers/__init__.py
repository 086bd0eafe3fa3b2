"""Initializers: the initial values of embedding tables, random or from singular vectors."""

from abc import abstractmethod
from numbers import Real

import numpy as np
from scipy import linalg
from sklearn.utils import check_random_state

from freqfm import backends
from freqfm._components import NON_NEGATIVE, POSITIVE_INTEGER, Component, replaced, resolve
from freqfm._input.rows import count_columns, slices, with_one_index_type, with_values
from freqfm._input.validation import draw_seed
from freqfm._machine import single_threaded_blas
from freqfm._messages import shown
from freqfm._sklearn import Interval

__all__ = ["INITIALIZERS", "PRISM", "Initializer", "Normal", "Spectral", "XavierUniform"]


class Initializer(Component):
    """Base class of initializers."""

    #: Whether the initial lengths of rows have a meaning that training should keep.
    lengths_matter = False
    #: Whether rows of users and items start in directions that follow from their interactions.
    needs_interactions = False
    #: How much of a random row is added to its direction.
    noise = 0.0

    @abstractmethod
    def draw(self, shape, generator, counts=None):
        """Return a float32 table of the given shape (n_tokens, n_components).

        Parameters
        ----------
        shape : tuple of int
        generator : numpy.random.Generator
        counts : ndarray of shape (n_tokens,), default=None
            How often each token occurs, for initializers that use it.
        """

    def table(self, shape, generator, counts=None, n_known=0):
        """Return the result of ``draw``, checked and in the form that kernels read.

        Parameters
        ----------
        shape, generator, counts
            See :meth:`draw`.
        n_known : int, default=0
            Number of rows that the table has before these.

        Raises
        ------
        ValueError
            If it is not a table of finite numbers of that shape.
        """
        table = np.asarray(self.draw(shape, generator, counts))
        if table.shape != shape or table.dtype.kind not in "fiu":
            raise ValueError(
                f"draw of {type(self).__name__} must return numbers of shape {shape}; got an array "
                f"of shape {table.shape} and type {table.dtype}."
            )
        if n_known:
            table = table * np.float32(self.length_ratio(shape, n_known))
        with np.errstate(over="ignore"):
            table = np.require(table, np.float32, ["C", "A", "W"])
        # The sum is not finite if any number is not, and takes no memory.
        if not np.isfinite(table.sum(dtype=np.float64)):
            raise ValueError(
                f"draw of {type(self).__name__} must return numbers that are finite in float32; "
                f"the smallest is {np.min(table):g} and the largest {np.max(table):g}."
            )
        return table

    def length_ratio(self, shape, n_known):
        """Return the factor by which new rows are multiplied to match the rows of the table.

        It is the length of rows drawn for the whole table, divided by that of rows drawn for a
        table of the new rows alone.

        Parameters
        ----------
        shape : tuple of int
            Of the new rows.
        n_known : int
            Number of rows that the table has before these.
        """
        return 1.0

    def of_side(self, side):
        """Return the initializer for a recommender's users ("user") or items ("item")."""
        return self

    def directions(self, X, n_components, generator, n_threads):
        """Return directions in which the rows of users and items start; None for random ones.

        Parameters
        ----------
        X : csr_array of shape (n_users, n_items)
            The interactions, canonical.
        n_components : int
        generator : numpy.random.Generator
        n_threads : int

        Returns
        -------
        directions : dict of str to ndarray, or None
            For "user" and "item", of shape (n, n_components), float32: unit vectors, or zeros where
            a row keeps its random direction.
        """
        return None

    def turned(self, rows, directions):
        """Return rows of the same lengths in given directions; unchanged where these are zeros."""
        lengths = np.linalg.norm(rows, axis=1, keepdims=True)
        placed = directions.any(axis=1, keepdims=True)
        return np.where(placed, lengths * directions + np.float32(self.noise) * rows, rows)

    def stretch(self, shape, n_occurrences):
        """Return the length of rows divided by that of :class:`XavierUniform`.

        Learning rates are multiplied by it: longer rows need longer steps to change direction.

        Parameters
        ----------
        shape : tuple of int
        n_occurrences : int
            Total over all tokens.
        """
        return 1.0


class Normal(Initializer):
    """Independent normal numbers of mean zero.

    Parameters
    ----------
    scale : float, default=None
        Standard deviation. None is the estimator's default; 0.001, unless its docstring names
        another. A small value starts a factorization machine close to its linear part.

    Examples
    --------
    >>> import numpy as np
    >>> from freqfm.initializers import Normal
    >>> Normal(scale=0.1).draw((3, 2), np.random.default_rng(0)).dtype
    dtype('float32')
    """

    _defaults = {"scale": 0.001}
    _parameter_constraints = {"scale": [*NON_NEGATIVE, None]}

    def __init__(self, scale: float | None = None):
        self.scale = scale

    def draw(self, shape, generator, counts=None):
        """Return a table of the given shape, see :class:`Initializer`."""
        return np.float32(self.value_of("scale")) * generator.standard_normal(
            shape, dtype=np.float32
        )


class XavierUniform(Initializer):
    """Uniform numbers between -b and b, with b = scale * sqrt(6 / (n_tokens + n_components)).

    Glorot and Bengio (2010), equation (16), with the table's two dimensions as fan-in and fan-out:
    as in the PyTorch implementation of factorization machines that Li et al. (2022) use.

    Parameters
    ----------
    scale : float, default=1.0
        The gain.

    Examples
    --------
    >>> import numpy as np
    >>> from freqfm.initializers import XavierUniform
    >>> bool(np.abs(XavierUniform().draw((4, 2), np.random.default_rng(0))).max() <= 1)
    True
    """

    _parameter_constraints = {"scale": NON_NEGATIVE}

    def __init__(self, scale: float = 1.0):
        self.scale = scale

    def draw(self, shape, generator, counts=None):
        """Return a table of the given shape, see :class:`Initializer`."""
        bound = np.float32(self.scale * np.sqrt(6.0 / (shape[0] + shape[1])))
        return bound * (2 * generator.random(shape, dtype=np.float32) - 1)

    def length_ratio(self, shape, n_known):
        """Return the bound for all rows divided by the bound for the new rows alone."""
        return float(np.sqrt(sum(shape) / (n_known + sum(shape))))


class PRISM(XavierUniform):
    """Popularity as row length: random directions, with lengths that grow with the count.

    A row of uniform numbers is scaled to the exact length of equation (4) of [1]_ ::

        alpha * ln(count + 2) + 1 - alpha.

    A loss on cosines hardly changes lengths, so rows keep their initial lengths. A ranking by dot
    products then favours popular items, the more so the larger alpha is. This replaces weight
    decay, which makes lengths depend on popularity only over many epochs. A long row also turns
    more slowly, so lengths act as learning rates by frequency as well.

    Parameters
    ----------
    alpha : float, default=1.0
        Between 0, where all rows have length 1, and 1.
    users, items : bool, default=True
        Whether the users, and the items, of a recommender start with such lengths; otherwise they
        start as with :class:`XavierUniform`. A user's length does not affect the ranking of items,
        only how fast the user's direction changes.

    References
    ----------
    .. [1] D. Loveland, M. Ju, T. Zhao, N. Shah, D. Koutra. "On the Role of Weight Decay in
       Collaborative Filtering: A Popularity Perspective". 2025, equation (4) and appendix B.1.

    Examples
    --------
    >>> import numpy as np
    >>> from freqfm.initializers import PRISM
    >>> table = PRISM().draw((3, 8), np.random.default_rng(0), np.array([0, 10, 1000]))
    >>> np.linalg.norm(table, axis=1).round(3)
    array([0.693, 2.485, 6.91 ], dtype=float32)
    """

    _parameter_constraints = {
        "alpha": [Interval(Real, 0, 1, closed="both")],
        "users": ["boolean"],
        "items": ["boolean"],
    }
    lengths_matter = True
    scale = 1.0

    def __init__(self, alpha: float = 1.0, *, users: bool = True, items: bool = True):
        self.alpha = alpha
        self.users = users
        self.items = items

    def draw(self, shape, generator, counts=None):
        """Return a table of the given shape, see :class:`Initializer`."""
        counts = np.zeros(shape[0]) if counts is None else np.asarray(counts, dtype=np.float64)
        table = super().draw(shape, generator).astype(np.float64)
        table *= (self._length(counts) / np.linalg.norm(table, axis=1))[:, None]
        return table.astype(np.float32)

    def of_side(self, side):
        """Return this or :class:`XavierUniform`, see :class:`Initializer`."""
        return self if (self.users if side == "user" else self.items) else XavierUniform()

    def length_ratio(self, shape, n_known):
        """Return 1: lengths depend on counts only."""
        return 1.0

    def stretch(self, shape, n_occurrences):
        """Return the length at the mean count divided by that of :class:`XavierUniform`."""
        n_tokens, n_components = shape
        plain = np.sqrt(2 * n_components / (n_tokens + n_components))
        return float(self._length(n_occurrences / n_tokens) / plain)

    def _length(self, counts):
        return self.alpha * np.log(counts + 2) + 1 - self.alpha


# Singular values, and rows, of less than this share of the largest are rounding errors.
_NEGLIGIBLE = 1e-6

# More vectors are multiplied than are wanted, since the last ones are found badly.
_OVERSAMPLES = 10

# More interactions are multiplied in threads, in at most so many iterations: others would take
# longer than epochs, and make no difference after some of these.
_MANY, _ITERATIONS_OF_MANY = 5 << 17, 3

# The columns of longer tables become orthonormal by the eigenvectors of their products, several
# times as fast as by an exact decomposition; directions of less than this share are dropped.
_EXACT_ROWS, _DROPPED = 1 << 13, 1e-6


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
    and about three such tables of users and of items. Of more than 655,360 interactions there are
    at most three iterations, and seven products in all. Values of interactions are not used. It is
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
        if hasattr(X, "graph"):
            graph = X.graph()
        elif X.nnz > _MANY:
            graph = _Products(
                backends.get().propagation(with_one_index_type(X), n_threads), X.shape
            )
        else:
            graph = divided_by_degrees(X, count_columns(X))
        with single_threaded_blas():
            n = min(n_components, *X.shape)
            users, values, items = _leading(graph, n, self.n_iter, draw_seed(generator))
        roots = np.sqrt(np.where(values > _NEGLIGIBLE * values[0], values, 0))
        directions = {}
        for side, vectors in (("user", users), ("item", items)):
            table = np.zeros((len(vectors), n_components), dtype=np.float32)
            np.multiply(vectors, roots, out=table[:, : len(roots)], casting="same_kind")
            lengths = np.linalg.norm(table, axis=1, keepdims=True)
            kept = lengths > _NEGLIGIBLE * lengths.max(initial=0)
            table /= np.where(kept, lengths, np.inf)
            directions[side] = table
        return directions


class _Products:
    """Half of the matrix of :func:`divided_by_degrees`, or its transpose, by products with tables.

    A product with users, or with items, is overwritten by the next one.
    """

    def __init__(self, graph, shape, side=0):
        self._graph, self.shape, self._side = graph, shape, side

    @property
    def T(self):
        return _Products(self._graph, self.shape[::-1], 1 - self._side)

    def __matmul__(self, table):
        # The mean of zeros and their neighbours is half of the product.
        order = slice(None, None, -1 if self._side else 1)
        tables = np.zeros((self.shape[0], table.shape[1]), dtype=np.float32), table
        wanted = np.arange(self.shape[0]), np.arange(0)
        return self._graph.mean(*tables[order], 1, wanted[order])[self._side]


def divided_by_degrees(X, item_counts):
    """Return interactions, each divided by the root of both numbers of neighbours."""
    lengths = np.diff(X.indptr)
    return with_values(X, lambda _, users, items: 1 / np.sqrt(lengths[users] * item_counts[items]))


def _leading(matrix, n, n_iter, seed):
    """Return the ``n`` leading singular vectors of a matrix, as columns, and its singular values.

    The algorithm is that of scikit-learn's ``randomized_svd``, which takes no matrix that is only
    known by its products.
    """
    transposed = matrix.shape[0] < matrix.shape[1]
    tall = matrix.T if transposed else matrix
    basis = check_random_state(seed).normal(size=(tall.shape[1], n + _OVERSAMPLES))
    basis = basis.astype(np.float32)
    if isinstance(matrix, _Products):
        for _ in range(min(n_iter, _ITERATIONS_OF_MANY)):
            basis = orthonormal(tall.T @ (tall @ basis))
        left = tall @ basis
        values, rotation = _of_columns(left)
        left, right = rotated(left, rotation / values), rotated(basis, rotation)
        values = 2 * np.where(np.isinf(values), 0, values)
    else:
        for _ in range(n_iter):
            basis = orthonormal(tall.T @ orthonormal(tall @ basis))
        basis = orthonormal(tall @ basis)
        rotation, values, right = linalg.svd((tall.T @ basis).T, full_matrices=False)
        left, right = rotated(basis, rotation), right.T
    users, items = (right, left) if transposed else (left, right)
    users, items = users[:, :n], items[:, :n]
    # Signs that do not depend on the library: the largest number of each column is positive.
    signs = np.where(users.max(axis=0) >= -users.min(axis=0), 1, -1).astype(np.float32)
    users *= signs
    items *= signs
    return users, values[:n], items


def orthonormal(table):
    """Return an orthonormal basis of the columns of a table, which may be overwritten."""
    if len(table) <= _EXACT_ROWS:
        return linalg.qr(table, mode="economic", check_finite=False)[0]
    values, vectors = _of_columns(table)
    return rotated(table, vectors / values)


def _of_columns(table):
    """Return the singular values of a table, infinite for dropped ones, and its right vectors."""
    squares, vectors = linalg.eigh((table.T @ table).astype(np.float64))
    squares, vectors = squares[::-1], vectors[:, ::-1]
    return np.sqrt(np.where(squares > _DROPPED * squares[0], squares, np.inf)), vectors


def rotated(table, rotation):
    """Return the product of a table and a square matrix, in place if it is long."""
    rotation = rotation.astype(table.dtype)
    if len(table) <= _EXACT_ROWS:
        return table @ rotation
    for part in slices(len(table), _EXACT_ROWS):
        table[part] = table[part] @ rotation
    return table


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
