"""Vectors of users in a context: the sum of a user's vector and of those of the context."""

import copy
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from freqfm._input.rows import take_rows, with_one_index_type
from freqfm._input.validation import canonical_csr, validate_ids
from freqfm.backbones._features import Features, _matrix

#: The name of the table of the context's vectors.
TABLE = "context_factors"


@dataclass(eq=False, repr=False, kw_only=True)
class Context(Features):
    """Vectors of users in a context, such as a device and an hour: a row of X is a query.

    A query is a user in a context, and a row of ``X`` holds the items that the user chose in it.
    The vector of a query is the sum of the user's vector and of those of the context's features,
    each times its number, as in a factorization machine [1]_, but trained by a ranking loss::

        vector_q = vector_user(q) + sum_f context[q, f] vector_f

    The vectors of users and of items are those of :class:`Features`, with features or without.
    What belongs to a user remains the user's, in any context: the history, which is never
    recommended nor drawn as a negative of a loss of two scores, the temperature, and counts.
    Items have no context; a query's context changes which of them are close to it.

    A fitted model has a row for each user, not for each query: ``user_factors_`` are vectors of
    users in the mean context of all interactions. With ``context=`` in
    :meth:`MFRecommender.recommend <freqfm.MFRecommender.recommend>`, which may be one that no
    interaction had, the vector of that context takes the place of the mean; without it users are
    ranked by the mean. Vectors of the context are zeros at first.

    Parameters
    ----------
    context : {array-like, sparse matrix} of shape (n_queries, n_context_features)
        The context of each row of ``X``: finite numbers, usually ones and zeros that encode
        categories. :class:`~freqfm.InteractionRecommender` encodes the columns of a table,
        ``context=["device", "hour"]``. In ``partial_fit`` it may have more columns than before,
        after the old ones.
    users : array-like of int of shape (n_queries,), default=None
        The user of each row of ``X``, from 0 on; users may have any number of rows. None means
        that each row is another user, in one context.
    user_features : {array-like, sparse matrix} of shape (n_users, n_user_features), default=None
        A row for each user, see :class:`Features`.
    item_features : {array-like, sparse matrix} of shape (n_items, n_item_features), default=None
        Likewise, a row for each column of ``X``.
    identity : bool, default=True
        Whether users and items with features also have a vector of their own.
    normalize : bool, default=False
        Whether the rows of ``user_features`` and of ``item_features`` are normalised. The context
        is used as it is.

    See Also
    --------
    Features : The same without context.

    Notes
    -----
    The table is ``backbone_tables_["context_factors"]``. Compiled code computes the vectors of the
    queries of a batch, so that there is no vector for each query; with features of items it does
    so for the users alone, and NumPy computes items. The loss "mawu", whose margins are those of
    users, is not supported, and neither are GPUs nor clusters.

    References
    ----------
    .. [1] S. Rendle, Z. Gantner, C. Freudenthaler, L. Schmidt-Thieme. "Fast Context-aware
       Recommendations with Factorization Machines". SIGIR 2011. There ratings are predicted.

    Examples
    --------
    Two users take tea in the morning (the first column) and soup at night:

    >>> import numpy as np
    >>> from freqfm import MFRecommender
    >>> from freqfm.backbones import Context
    >>> X = np.eye(4)[[0, 1, 0, 1, 2, 3]]
    >>> moments = np.eye(2)[[0, 1, 0, 1, 0, 1]]
    >>> backbone = Context(context=moments, users=[0, 0, 1, 1, 2, 2])
    >>> model = MFRecommender(8, backbone=backbone, max_iter=40, random_state=0).fit(X)
    >>> model.user_factors_.shape
    (3, 8)
    >>> items, _ = model.recommend(
    ...     users=[0, 0], context=np.eye(2), n_recommendations=1, exclude_seen=False
    ... )
    >>> items.ravel().tolist()
    [0, 1]
    """

    _parameter_constraints = {
        **Features._parameter_constraints,
        "context": "no_validation",  # see read
        "users": "no_validation",
    }
    _has_context = True

    context: Any = None
    users: Any = None
    user_features: Any = None
    item_features: Any = None
    identity: bool = True
    normalize: bool = False

    def read(self, n_rows):
        """Return the users and the contexts of the rows of a matrix; of any number if None.

        Raises
        ------
        ValueError, TypeError
            If they are not a user and a row of finite numbers for each.
        """
        if self.context is None:
            raise ValueError(
                "backbone=Context has no context: give Context(context=..., users=...), with a row "
                "for each row of X, or give columns to InteractionRecommender(context=[...])."
            )
        context = _matrix("context", self.context, "Context", "row of X")
        users = np.arange(context.shape[0]) if self.users is None else self.users
        users = validate_ids("users of Context", users, np.iinfo(np.int32).max)
        for name, n in ("context", context.shape[0]), ("users", len(users)):
            if n_rows is not None and n != n_rows:
                raise ValueError(
                    f"{name} of Context has {n} rows, but X has {n_rows}; give a row for each, "
                    f"set_params(backbone__{name}=...)."
                )
        return Queries(users.astype(np.int64), context)

    def by_user(self, X):
        """Return the interactions of users, (n_users, n_items), canonical, of those of queries."""
        users = self.read(X.shape[0]).users
        rows = np.repeat(users, np.diff(X.indptr))
        n_users = int(users.max(initial=-1)) + 1
        if self.user_features is not None:
            n_users = max(n_users, np.shape(self.user_features)[0])
        shape = n_users, X.shape[1]
        return canonical_csr(sparse.coo_array((X.data, (rows, X.indices)), shape=shape).tocsr())

    def with_totals(self, X, before=None):
        """Return a copy that knows the queries, the rows of X, and the sums of their contexts.

        Parameters
        ----------
        X : csr_array of shape (n_queries, n_items)
        before : ndarray of shape (n_context_features + 1,), default=None
            The sums of earlier calls, and at the end their number of interactions.
        """
        bound = copy.copy(self)
        bound.queries = self.read(X.shape[0])
        lengths = np.diff(X.indptr)
        context = bound.queries.context
        totals = np.append(context.T @ lengths.astype(np.float64), float(X.nnz))
        if before is not None:
            n_before = len(before) - 1
            if context.shape[1] < n_before:
                _check_width(context, n_before)
            totals[:n_before] += before[:-1]
            totals[-1] += before[-1]
        bound.totals = totals
        return bound

    def bind(self, X, n_threads):
        """Return this backbone with its features checked, see :class:`Backbone`."""
        return self._bind(X)

    def start(self, n_users, n_items, draw):
        """Return the tables of users and items, and zeros for the context."""
        tables = super().start(n_users, n_items, draw)
        width = next(iter(tables.values())).shape[1]
        n_features = self.queries.context.shape[1]
        return {**tables, TABLE: np.zeros((n_features, width), dtype=np.float32)}

    def terms(self):
        """Return what the vectors of queries are sums of.

        Returns
        -------
        users : ndarray of shape (n_queries,), int32
        terms : csr_array of shape (n_queries, n_rows), float32
            How often the vector of a query has the rows of some tables, one below the other.
        names : list of str
            These tables.
        """
        users, context = self.queries
        side, tables = self._sides["user"], {}
        if self._has_identity("user"):
            n = len(users)
            own = side.own[users], users, np.arange(n + 1)
            tables["user_factors"] = sparse.csr_array(own, shape=(n, len(side.own)))
        if side.features is not None:
            tables["user_features"] = take_rows(side.features, users)
        tables[TABLE] = context
        parts = [with_one_index_type(of) for of in tables.values()]
        terms = canonical_csr(sparse.hstack(parts, format="csr"))
        return users.astype(np.int32), terms, list(tables)

    def forward(self, tables, users, items):
        """Return vectors of users in the mean context, and of items, see :class:`Backbone`."""
        vectors, item_vectors, context = super().forward(tables, users, items)
        return vectors + self._mean_vector(tables), item_vectors, context

    def _mean_vector(self, tables):
        return mean_vector(self.totals, tables)

    def occurrences(self, context, user_counts, item_counts):
        """Return how often the rows of all tables occur in all interactions."""
        found = super().occurrences(context, user_counts, item_counts)
        return {**found, TABLE: (np.arange(len(self.totals) - 1), self.totals[:-1].clip(min=0))}

    def new_rows(self, tables, known, user_vectors, draw):
        """Return identities of new users and items, and zeros for new features of the context."""
        placed = user_vectors.any(axis=1)[:, None]
        own = user_vectors - np.where(placed, self._mean_vector(tables), np.float32(0))
        n_known, width = tables[TABLE].shape
        n_new = self.queries.context.shape[1] - n_known
        rows = super().new_rows(tables, known, own, draw)
        return {**rows, TABLE: np.zeros((n_new, width), dtype=np.float32)}

    def _wanted_tables(self):
        return super()._wanted_tables() | {TABLE}

    def _check_tables(self, tables):
        super()._check_tables(tables)
        _check_width(self.queries.context, len(tables[TABLE]))

    def terms_of(self, tables, context):
        """Return what each feature of a context, (1, n), adds to a vector, (n, n_components)."""
        return _matrix("context", context, "Context", "user").toarray().T * tables[TABLE]

    def shift_of(self, tables, totals, context, n_rows):
        """Return what contexts add to vectors in the mean context, (n_rows, n_components) float32.

        Parameters
        ----------
        tables : dict of str to ndarray
        totals : ndarray
            As ``with_totals`` makes them.
        context : {array-like, sparse matrix} of shape (n_rows, n_context_features)
            One row may stand for all.
        n_rows : int

        Raises
        ------
        ValueError, TypeError
            If it is not a matrix of such a shape.
        """
        context = _matrix("context", context, "Context", "user")
        _check_width(context, len(tables[TABLE]))
        if context.shape[0] not in (1, n_rows):
            raise ValueError(
                f"context has {context.shape[0]} rows, but there are {n_rows} users to recommend "
                f"to; give one row for each, or one for all."
            )
        shift = context @ tables[TABLE] - mean_vector(totals, tables)
        return np.broadcast_to(shift, (n_rows, shift.shape[1]))


def mean_context(totals):
    """Return the mean context of all interactions, (1, n), by ``Context.with_totals``."""
    return totals[None, :-1] / max(totals[-1], 1.0)


def mean_vector(totals, tables):
    """Return the vector of the mean context, float32; features that are new have no vector yet."""
    table = tables[TABLE]
    mean = mean_context(totals)[0, : len(table)]
    # Not by BLAS, whose sums depend on its threads.
    return np.einsum("f,fd->d", mean, table, dtype=np.float64).astype(np.float32)


class Queries(NamedTuple):
    """The queries of a matrix: a user and a context for each row."""

    users: np.ndarray  #: (n,), int64
    context: sparse.csr_array  #: (n, n_context_features), canonical


def _check_width(context, n_trained):
    """Raise unless a context has as many features as the model."""
    if context.shape[1] != n_trained:
        raise ValueError(
            f"context has {context.shape[1]} columns, but the model was trained with {n_trained}; "
            f"give the same features in the same order."
        )
