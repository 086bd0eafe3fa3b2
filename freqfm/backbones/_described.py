"""Vectors that are sums of the vectors of features, and of users in a context."""

import copy
from dataclasses import KW_ONLY, dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from sklearn.utils import check_array

from freqfm._input.rows import count_columns, take_rows, with_one_index_type
from freqfm._input.validation import canonical_csr, checked_csr, validate_ids
from freqfm._messages import cut, warn_user
from freqfm.backbones._base import Backbone

_SIDES = "user", "item"


@dataclass(eq=False, repr=False)
class Features(Backbone):
    """Vectors are sums of the vectors of features: users and items may be new.

    A user or item is described by a row of numbers, one for each feature, most of them zero. Its
    vector is the sum of the features' vectors, each times the feature's number, and of a vector of
    its own, the identity [1]_::

        vector_r = identity_r + sum_f features[r, f] vector_f

    The vector of a feature is learned from all rows that have it, and a row that does not occur in
    training has a vector if its features are known. Numbers are used as they are: scale large
    numbers, such as years or prices, or turn them into categories.

    A user or item without interactions has no identity, unless it has no features either: its
    vector is only the sum of its features' vectors. Such users get recommendations by their
    features, and such items are recommended. "uniform" and "popularity" do not draw these items
    as negatives, because the model would learn that items with their features are liked less. For
    users and items that are not part of the model, pass features to ``recommend``
    (``user_features=``, ``item_features=``), or add them by ``partial_fit``, with matrices that
    have more rows.

    Parameters
    ----------
    user_features : {array-like, sparse matrix} of shape (n_users, n_user_features), default=None
        A row of finite numbers for each row of ``X``; with None, a user has the vector of its
        identity. It may be a DataFrame of numbers. Encode categories by scikit-learn's
        encoders, or use :class:`~freqfm.InteractionRecommender`, which takes features by id.
    item_features : {array-like, sparse matrix} of shape (n_items, n_item_features), default=None
        Likewise, a row for each column of ``X``.
    identity : bool, default=True
        Whether users and items with features also have a vector of their own.
    normalize : bool, default=False
        Whether a row is divided by the sum of its absolute numbers, in which the identity counts
        as 1, as LightFM does by default.

    References
    ----------
    .. [1] M. Kula. "Metadata Embeddings for User and Item Cold-start Recommendations".
       CBRecSys 2015. There a feature also has a bias; here it has none.

    Examples
    --------
    >>> import numpy as np
    >>> from freqfm import MFRecommender
    >>> from freqfm.backbones import Features
    >>> from freqfm.datasets import make_interactions
    >>> X = make_interactions(200, 100, random_state=0)
    >>> kinds = np.eye(10)[np.arange(100) % 10]
    >>> model = MFRecommender(16, backbone=Features(item_features=kinds), max_iter=5)
    >>> model = model.set_params(random_state=0).fit(X)
    >>> model.backbone_tables_["item_features"].shape
    (10, 16)
    >>> new = np.eye(10)[[3, 7]]
    >>> items, _ = model.recommend(users=[0], item_features=new, candidates=[100, 101])
    >>> sorted(items[0, :2].tolist())
    [100, 101]
    """

    _parameter_constraints = {
        "user_features": "no_validation",  # see _matrix
        "item_features": "no_validation",
        "identity": ["boolean"],
        "normalize": ["boolean"],
    }

    # A batch takes about a millisecond besides its positives. With half as many batches as without
    # features, new users and items are ranked as well, with a quarter they are not: see
    # docs/results_recommenders.rst.
    n_batches = 128

    user_features: Any = None
    item_features: Any = None
    _: KW_ONLY
    identity: bool = True
    normalize: bool = False

    def bind(self, X, n_threads):
        """Return this backbone with its features checked, see :class:`Backbone`."""
        if not self._has_context and self.user_features is None and self.item_features is None:
            raise ValueError(
                "backbone='features' has no features: give backbone=Features(item_features=...), "
                "with a row for each user or item, or give them to InteractionRecommender by id."
            )
        bound = copy.copy(self)
        counts = np.diff(X.indptr), count_columns(X)
        bound._sides = dict(zip(_SIDES, map(self._bind_side, _SIDES, counts), strict=True))
        return bound

    def _bind_side(self, side, counts):
        """Return the features of one side in the form that training reads.

        ``counts`` are the numbers of interactions of its rows.
        """
        given = getattr(self, f"{side}_features")
        if given is None:
            return _Side(counts, np.ones(len(counts), dtype=np.float32))
        name = f"{side}_features"
        features = _matrix(name, given)
        if features.shape[0] != len(counts):
            raise ValueError(
                f"{name} of {type(self).__name__} has {features.shape[0]} rows, but X has "
                f"{len(counts)} {side}s; give a row for each, set_params(backbone__{name}=...)."
            )
        own = np.zeros(len(counts), dtype=np.float32)
        if self.identity:
            own[(counts > 0) | (np.diff(features.indptr) == 0)] = 1
        return _Side(counts, *self._normalized(own, features))

    def _normalized(self, own, features):
        """Return weights of identities and features; divided by their sums if ``normalize``."""
        if not self.normalize:
            return own, features
        lengths = np.diff(features.indptr)
        sums = own.astype(np.float64)
        np.add.at(sums, np.repeat(np.arange(len(own)), lengths), np.abs(features.data))
        scale = (1 / np.where(sums > 0, sums, 1)).astype(np.float32)
        features = features.copy()
        features.data = features.data * np.repeat(scale, lengths)
        return own * scale, features

    def start(self, n_users, n_items, draw):
        """Return tables of identities and of features, see :class:`Backbone`."""
        tables = {}
        for name, side in self._sides.items():
            counts = side.counts if self._has_identity(name) else np.zeros(0, np.int64)
            n_own = len(counts)
            if side.features is not None:
                if not n_own:
                    _warn_of_nothing(name, side.n_features)
                counts = np.concatenate([counts, _column_sums(side.features, side.counts)])
            table = draw(name, counts, n_own)
            if n_own:
                # Identities that are not used yet start at zero when they are first used.
                tables[f"{name}_factors"] = table[:n_own] * (side.own > 0)[:, None]
            if side.features is not None:
                tables[f"{name}_features"] = table[n_own:].copy()
        return tables

    def _has_identity(self, side):
        return bool(self.identity) or getattr(self, f"{side}_features") is None

    def forward(self, tables, users, items):
        """Return sums of rows, see :class:`Backbone`."""
        self._check_tables(tables)
        vectors, context = [], {}
        for (name, side), rows in zip(self._sides.items(), (users, items), strict=True):
            part = side.part(rows)
            vectors.append(part.sums(tables.get(f"{name}_factors"), tables.get(f"{name}_features")))
            context[name] = part
        return *vectors, context

    def backward(self, tables, context, user_gradients, item_gradients):
        """Return the gradients by identities and by features, see :class:`Backbone`."""
        found = {}
        for name, gradient in zip(_SIDES, (user_gradients, item_gradients), strict=True):
            part = context[name]
            if self._has_identity(name):
                has_own = part.own > 0
                found[f"{name}_factors"] = part.owners, part.own[has_own, None] * gradient[has_own]
            if part.features is not None:
                found[f"{name}_features"] = part.columns, part.features.T @ gradient
        return found

    def occurrences(self, context, user_counts, item_counts):
        """Return how often identities and features occur, see :class:`Backbone`."""
        found = {}
        for name, counts in zip(_SIDES, (user_counts, item_counts), strict=True):
            part = context[name]
            if self._has_identity(name):
                found[f"{name}_factors"] = part.owners, counts[part.own > 0]
            if part.features is not None:
                found[f"{name}_features"] = part.columns, _column_sums(part.features, counts)
        return found

    def new_rows(self, tables, known, user_vectors, draw):
        """Return identities of new users and items, see :class:`Backbone`.

        Users start at the result of folding in; items, and users without known items, start at the
        sum of their features' vectors, or at random if they have no features.
        """
        found = {}
        for (name, side), n_known in zip(self._sides.items(), known, strict=True):
            if not self._has_identity(name):
                continue
            part = side.part(np.arange(n_known, len(side.counts)))
            rows = draw(name) * (side.n_features[n_known:] == 0)[:, None]
            if name == "user":
                placed = user_vectors.any(axis=1) & (part.own > 0)
                if part.features is not None:
                    user_vectors = user_vectors - part.sums(None, tables["user_features"])
                rows[placed] = user_vectors[placed] / part.own[placed, None]
            found[f"{name}_factors"] = rows.astype(np.float32)
        return found

    def described(self):
        """Return which users and items have features, see :class:`Backbone`."""
        return tuple(side.n_features > 0 for side in self._sides.values())

    def vectors_of(self, tables, side, features):
        """Return sums of the vectors of features, see :class:`Backbone`."""
        name = f"{side}_features"
        if getattr(self, name) is None:
            return super().vectors_of(tables, side, features)
        features = _matrix(name, features)
        _check_columns(side, features, tables)
        own = np.zeros(features.shape[0], dtype=np.float32)
        found = _Side(own, *self._normalized(own, features))
        part = found.part(np.arange(len(own)))
        return part.sums(None, tables[name]), found.n_features > 0

    def _wanted_tables(self):
        """Return the names of the tables that ``start`` makes."""
        wanted = {f"{name}_factors" for name in _SIDES if self._has_identity(name)}
        with_features = (name for name in _SIDES if self._sides[name].features is not None)
        return wanted | {f"{name}_features" for name in with_features}

    def _check_tables(self, tables):
        """Raise unless tables are those that ``start`` makes."""
        wanted = self._wanted_tables()
        if wanted != set(tables):
            raise ValueError(
                f"the model was trained with the tables {', '.join(sorted(tables))}, but "
                f"{type(self).__name__} now has {', '.join(sorted(wanted))}: set identity and the "
                f"features back, or call fit for a new model."
            )
        for name, side in self._sides.items():
            _check_columns(name, side.features, tables)
            n_rows = len(tables.get(f"{name}_factors", side.counts))
            if n_rows != len(side.counts):
                raise ValueError(
                    f"the model has identities of {n_rows} {name}s, but X has {len(side.counts)}."
                )


class _Side(NamedTuple):
    """The users or the items, and the terms of the sum that each vector is."""

    counts: np.ndarray  #: (n,), how many interactions each has
    own: np.ndarray  #: (n,), the factor of its identity, 0 without one; float32
    features: sparse.csr_array | None = None  #: (n, n_features), canonical

    @property
    def n_features(self):
        """How many features each row has."""
        return np.diff(self.features.indptr) if self.features is not None else 0 * self.counts

    def part(self, rows):
        """Return some of the rows."""
        own = self.own[rows]
        if self.features is None:
            return _Part(rows, own)
        features = take_rows(self.features, rows)
        columns, places = np.unique(features.indices, return_inverse=True)
        shape = len(rows), len(columns)
        compact = sparse.csr_array((features.data, places, features.indptr), shape=shape)
        return _Part(rows, own, compact, columns)


class _Part(NamedTuple):
    """Some rows of a side, with the columns of the features that they have."""

    rows: np.ndarray
    own: np.ndarray  #: (n_rows,), factors of identities
    features: sparse.csr_array | None = None  #: (n_rows, n_columns)
    columns: np.ndarray | None = None

    @property
    def owners(self):
        """The rows that have an identity."""
        return self.rows[self.own > 0]

    def sums(self, identities, vectors):
        """Return the sums of rows of both tables, of which one may be None."""
        if self.features is None:
            return self.own[:, None] * identities[self.rows]
        feature_sums = self.features @ vectors[self.columns]
        if identities is None:
            return feature_sums
        return self.own[:, None] * identities[self.rows] + feature_sums


def _column_sums(features, counts):
    """Return the sums of counts of the rows that have each column, float64."""
    weights = np.repeat(counts, np.diff(features.indptr))
    return np.bincount(features.indices, weights=weights, minlength=features.shape[1])


def _matrix(name, features, owner="Features", row=None):
    """Return features as a canonical matrix; ``owner`` has them, a row for each ``row``.

    Raises
    ------
    ValueError, TypeError
        If they are not a matrix of finite numbers.
    """
    if sparse.issparse(features):
        features = checked_csr(features, name)
    try:
        features = check_array(
            features, accept_sparse="csr", dtype=np.float32, ensure_min_samples=0, input_name=name
        )
    except (TypeError, ValueError) as error:
        raise type(error)(
            f"{name} of {owner} must be a matrix of numbers, with a row for each "
            f"{row or name[:4]}: {cut(error)} Encode categories, for instance with OneHotEncoder "
            f"or DictVectorizer, or use InteractionRecommender({name}=...)."
        ) from None
    return canonical_csr(features)


def _check_columns(side, features, tables):
    """Raise unless features have a column for each row of their table."""
    if features is not None:
        _check_width(f"{side}_features", features, len(tables.get(f"{side}_features", ())))


def _warn_of_nothing(name, n_features):
    """Warn of users or items that have neither features nor an identity."""
    without = np.flatnonzero(n_features == 0)
    if len(without):
        warn_user(
            f"{len(without)} {name}(s), such as {name} {without[0]}, have no features, and "
            f"identity=False: their vectors are zero."
        )


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
        """Return the users and the contexts of the rows of a matrix, of which there are so many.

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
            if n != n_rows:
                raise ValueError(
                    f"{name} of Context has {n} rows, but X has {n_rows}; give a row for each, "
                    f"set_params(backbone__{name}=...)."
                )
        n_users = int(users.max(initial=-1)) + 1
        if self.user_features is not None:
            n_users = max(n_users, np.shape(self.user_features)[0])
        return Queries(users.astype(np.int64), context, n_users)

    def with_totals(self, queries, X, before=None):
        """Return a copy that knows the queries, the rows of X, and the sums of their contexts.

        Parameters
        ----------
        queries : Queries
        X : csr_array of shape (n_queries, n_items)
        before : ndarray of shape (n_context_features + 1,), default=None
            The sums of earlier calls, and at the end their number of interactions.
        """
        bound = copy.copy(self)
        bound.queries, context, lengths = queries, queries.context, np.diff(X.indptr)
        totals = np.append(context.T @ lengths.astype(np.float64), float(X.nnz))
        if before is not None:
            n_before = len(before) - 1
            if context.shape[1] < n_before:
                _check_width("context", context, n_before)
            totals[:n_before] += before[:-1]
            totals[-1] += before[-1]
        bound.totals = totals
        return bound

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
        users, context, _ = self.queries
        side, tables = self._sides["user"], {}
        if self._has_identity("user"):
            n = len(users)
            own = side.own[users], users, np.arange(n + 1)
            tables["user_factors"] = sparse.csr_array(own, shape=(n, len(side.own)))
        if side.features is not None:
            tables["user_features"] = take_rows(side.features, users)
        tables[TABLE] = context
        parts = [with_one_index_type(table) for table in tables.values()]
        terms = canonical_csr(sparse.hstack(parts, format="csr"))
        return users.astype(np.int32), terms, list(tables)

    def forward(self, tables, users, items):
        """Return vectors of users in the mean context, and of items, see :class:`Backbone`."""
        vectors, item_vectors, context = super().forward(tables, users, items)
        return vectors + mean_vector(self.totals, tables), item_vectors, context

    def occurrences(self, context, user_counts, item_counts):
        """Return how often the rows of all tables occur in all interactions."""
        found = super().occurrences(context, user_counts, item_counts)
        return {**found, TABLE: (np.arange(len(self.totals) - 1), self.totals[:-1].clip(min=0))}

    def new_rows(self, tables, known, user_vectors, draw):
        """Return identities of new users and items, and zeros for new features of the context."""
        placed = user_vectors.any(axis=1)[:, None]
        own = user_vectors - np.where(placed, mean_vector(self.totals, tables), np.float32(0))
        n_known, width = tables[TABLE].shape
        n_new = self.queries.context.shape[1] - n_known
        rows = super().new_rows(tables, known, own, draw)
        return {**rows, TABLE: np.zeros((n_new, width), dtype=np.float32)}

    def _wanted_tables(self):
        return super()._wanted_tables() | {TABLE}

    def _check_tables(self, tables):
        super()._check_tables(tables)
        _check_width("context", self.queries.context, len(tables[TABLE]))

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
        _check_width("context", context, len(tables[TABLE]))
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
    n_users: int  #: of the model


def _check_width(name, features, n_trained):
    """Raise unless a matrix has as many columns as the model was trained with."""
    if features.shape[1] != n_trained:
        raise ValueError(
            f"{name} has {features.shape[1]} columns, but the model was trained with {n_trained}; "
            f"give the same features in the same order."
        )
