"""The base class of initializers."""

from abc import abstractmethod

import numpy as np

from freqfm._components import Component


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
