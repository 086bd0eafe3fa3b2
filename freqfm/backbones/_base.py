"""The base class of backbones, and the linear backbone."""

from abc import abstractmethod

import numpy as np

from freqfm._components import Component
from freqfm._input.validation import as_kernel_array

# Names of tables that the estimator itself trains, beside those of a backbone.
_TAKEN = {"user_margins", "item_margins"}


class Backbone(Component):
    """Base class of backbones: how vectors of users and items are computed from tables.

    Losses compare the vectors of users and items, however these are computed. A backbone computes
    them from tables, which the estimator keeps, and turns gradients with respect to the vectors
    into gradients with respect to the tables' rows, which the estimator's optimizer then updates.
    A backbone itself holds hyper-parameters and data such as features, and nothing that is learned,
    so that it can be cloned and shared.

    A custom backbone derives from this class and defines ``start``, ``forward`` and ``backward`` in
    NumPy. The estimator calls ``forward`` for the users and items of each batch.
    """

    #: Whether vectors are the rows of tables "user_factors" and "item_factors": compiled code then
    #: trains these, and calls neither ``forward`` nor ``backward``.
    is_linear = False
    # Whether an epoch trains the vectors themselves, as if they were tables, by compiled code.
    # Their changes are added to the tables at its end, and ``forward`` computes them again;
    # ``backward`` is not called. Tables are "user_factors" and "item_factors", as long as vectors.
    _changes_by_epoch = False
    # Whether vectors are means over ``n_layers`` layers of tables with these names: the backend of
    # a GPU then computes and trains them itself.
    _is_mean_of_layers = False
    # Whether vectors depend on the interactions that ``bind`` has got.
    _propagates = False
    # Whether rows of X are queries, users in a context, rather than users; see ``Context``.
    _has_context = False
    # Whether tables hardly learn from steps in proportion to their gradients, as with SGD.
    _needs_adaptive_steps = False
    #: The largest default batch size, in positives; None for that of the loss.
    batch_size: int | None = None
    #: The least number of batches of an epoch by default, approximately.
    n_batches = 256

    def bind(self, X, n_threads):
        """Return the backbone that computes vectors for the interactions of a fit.

        The result is used for ``start``, ``forward`` and ``backward``, and only while the estimator
        trains. The default is this object itself; a backbone whose vectors depend on the
        interactions returns a copy that knows them.

        Parameters
        ----------
        X : csr_array of shape (n_users, n_items)
            All interactions that the model has been trained on, and those of this call.
        n_threads : int
            How many threads may be used; results must not depend on it.

        Returns
        -------
        backbone : Backbone
        """
        return self

    @abstractmethod
    def start(self, n_users, n_items, draw):
        """Return the tables at the beginning of a fit.

        Parameters
        ----------
        n_users, n_items : int
        draw : callable
            ``draw(side, n_rows, n_own)`` returns a table of shape (n_rows, n_components) drawn by
            the estimator's initializer; ``side`` is "user" or "item". Without ``n_rows`` there is a
            row for each user or item. An array in its place holds how often each row occurs, for
            initializers that depend on it. The first ``n_own`` of given rows, by default none, are
            those of users or items, and start in their directions. Each call draws other numbers.

        Returns
        -------
        tables : dict of str to ndarray of shape (n_rows, width)
            float32, under names that the backbone chooses.

        Raises
        ------
        ValueError
            If the backbone cannot be used with these numbers of users or items.
        """

    @abstractmethod
    def forward(self, tables, users, items):
        """Return the vectors of some users and items.

        Parameters
        ----------
        tables : dict of str to ndarray
        users, items : ndarray of int of shape (n_rows,)
            Rows, each once and in ascending order.

        Returns
        -------
        user_vectors : ndarray of shape (len(users), n_components)
        item_vectors : ndarray of shape (len(items), n_components)
        context : object
            What ``backward`` needs to know of this call.
        """

    @abstractmethod
    def backward(self, tables, context, user_gradients, item_gradients):
        """Return the gradients with respect to the tables' rows.

        Parameters
        ----------
        tables : dict of str to ndarray
            As they were in ``forward``.
        context : object
            The third value that ``forward`` returned.
        user_gradients, item_gradients : ndarray
            Gradients of the loss with respect to the vectors that ``forward`` returned, in the
            same order.

        Returns
        -------
        gradients : dict of str to (rows, values)
            For each table to update: its rows, each once, and the gradient of each, of shape
            (len(rows), width).
        """

    def occurrences(self, context, user_counts, item_counts):
        """Return how often rows of the tables occur, by how often users and items do.

        It is used by optimizers whose rates depend on counts, and by
        ``WeightDecay(scope="batch")``. Rows that do not occur are not updated. The default is an
        empty dict.

        Parameters
        ----------
        context : object
            The third value that ``forward`` returned.
        user_counts, item_counts : ndarray
            How often the users and items given to ``forward`` occur: in a batch, as positives or
            negatives; or in all interactions.

        Returns
        -------
        occurrences : dict of str to (rows, counts)
            For some of the tables, the rows that ``backward`` returns, in the same order, and how
            often each occurs. Rows of other tables occur once in each batch.
        """
        return {}

    def new_rows(self, tables, known, user_vectors, draw):
        """Return the rows of tables that new users and items add; None if they cannot be added.

        It is called for the backbone that ``bind`` has returned for all interactions, including
        new ones. The default is None.

        Parameters
        ----------
        tables : dict of str to ndarray
        known : tuple of int
            Numbers of users and items of the model so far.
        user_vectors : ndarray of shape (n_new_users, n_components)
            Vectors of the new users from folding in; zeros for users without known items.
        draw : callable
            As in ``start``, for the new users and items.

        Returns
        -------
        rows : dict of str to ndarray of shape (n_new_rows, width), or None
        """
        return None

    def described(self):
        """Return masks of the users and of the items that have a vector even without interactions.

        Returns
        -------
        described : tuple of ndarray of bool, or None
            For each user and for each item; None, the default, if there are none.
        """
        return None

    def vectors_of(self, tables, side, features):
        """Return the vectors of new users or items that are known by features alone.

        Parameters
        ----------
        tables : dict of str to ndarray
        side : {"user", "item"}
        features : {array-like, sparse matrix} of shape (n_rows, n_features)

        Returns
        -------
        vectors : ndarray of shape (n_rows, n_components), float32
        known : ndarray of bool of shape (n_rows,)
            Which of them have any feature.

        Raises
        ------
        ValueError
            If the backbone has no features of users or items, which is the default.
        """
        raise ValueError(
            f"{side}_features needs a model that was trained with features of {side}s; "
            f"backbone={type(self).__name__} has none: fit with "
            f"backbone=Features({side}_features=...)."
        )


def check_tables(backbone, tables):
    """Return the initial tables of a backbone, if they can be trained.

    Raises
    ------
    ValueError
        If they cannot.
    """
    name = type(backbone).__name__
    if not isinstance(tables, dict) or not tables or _TAKEN & set(tables):
        raise ValueError(
            f"start of {name} must return a dict of tables, with names other than "
            f"{' and '.join(sorted(_TAKEN))}; got {tables!r}."
        )
    return {key: _numbers(f"start of {name}", key, table) for key, table in tables.items()}


def _numbers(call, name, values, shape=None):
    """Return two-dimensional float32 numbers; raise if there are none or the shape is wrong."""
    values = np.asarray(values)
    fits = values.ndim == 2 and values.dtype.kind in "fiu" and shape in (None, values.shape)
    if not fits:
        expected = "a two-dimensional array of numbers" if shape is None else f"the shape {shape}"
        raise ValueError(
            f"{call} must return {expected} for {name!r}; got shape {values.shape} and type "
            f"{values.dtype}."
        )
    return as_kernel_array(values)


def forward(backbone, tables, users, items, user_vectors, item_vectors):
    """Write the vectors of some users and items into arrays of all; return the context.

    Parameters
    ----------
    backbone : Backbone
    tables : dict of str to ndarray
    users, items : ndarray of int
    user_vectors, item_vectors : ndarray of shape (n_users, d) and (n_items, d), float32
        Their rows ``users`` and ``items`` are written.

    Raises
    ------
    ValueError
        If the backbone returns arrays of another shape or type.
    """
    outs = user_vectors, item_vectors
    *vectors, context = compute(backbone, tables, (users, items), user_vectors.shape[1])
    for values, rows, out in zip(vectors, (users, items), outs, strict=True):
        out[rows] = values
    return context


def compute(backbone, tables, rows, width):
    """Return the vectors of some users and of some items, float32, and the context.

    Parameters
    ----------
    backbone : Backbone
    tables : dict of str to ndarray
    rows : tuple of ndarray of int
        Users and items.
    width : int
        Of the vectors.

    Raises
    ------
    ValueError
        If the backbone returns arrays of another shape or type.
    """
    found = backbone.forward(tables, *rows)
    call = f"forward of {type(backbone).__name__}"
    if not isinstance(found, tuple) or len(found) != 3:
        raise ValueError(f"{call} must return vectors of users and of items, and a context.")
    *vectors, context = found
    sides = zip(vectors, ("users", "items"), rows, strict=True)
    checked = (_numbers(call, side, values, (len(ids), width)) for values, side, ids in sides)
    return *checked, context


def forward_all(backbone, tables, user_vectors, item_vectors):
    """Write the vectors of all users and items; return the context, see :func:`forward`."""
    vectors = user_vectors, item_vectors
    return forward(backbone, tables, *(np.arange(len(table)) for table in vectors), *vectors)


def backward(backbone, tables, context, user_gradients, item_gradients):
    """Return the gradients with respect to table rows, checked: {name: (rows, values)}.

    Raises
    ------
    ValueError
        If the backbone returns anything but gradients of its tables.
    """
    call = f"backward of {type(backbone).__name__}"
    gradients = backbone.backward(tables, context, user_gradients, item_gradients)
    if not isinstance(gradients, dict) or not set(gradients) <= set(tables):
        raise ValueError(f"{call} must return a dict by names of its tables, {sorted(tables)}.")
    checked = {}
    for name, found in gradients.items():
        if not isinstance(found, (tuple, list)) or len(found) != 2:
            raise ValueError(
                f"{call} must return (rows, values) for {name!r}: indices of rows, and their "
                f"gradients; got {type(found).__name__}."
            )
        (rows, values), table = found, tables[name]
        rows = np.asarray(rows)
        inside = rows.ndim == 1 and rows.dtype.kind in "iu"
        inside = inside and (not len(rows) or (rows.min() >= 0 and rows.max() < len(table)))
        # Most backbones return rows in ascending order, which takes no sorting to check.
        if not inside or not ((np.diff(rows) > 0).all() or len(np.unique(rows)) == len(rows)):
            raise ValueError(
                f"{call} must return different rows of {name!r}, integers in "
                f"[0, {len(table) - 1}]; got {rows!r}."
            )
        shape = len(rows), table.shape[1]
        checked[name] = rows.astype(np.int64), _numbers(call, name, values, shape)
    return checked


def occurrences(backbone, tables, context, user_counts, item_counts):
    """Return how often rows of the tables occur, checked: {name: (rows, counts)}.

    Raises
    ------
    ValueError
        If the backbone returns anything but one count for each row.
    """
    call = f"occurrences of {type(backbone).__name__}"
    found = backbone.occurrences(context, user_counts, item_counts)
    if not isinstance(found, dict) or not set(found) <= set(tables):
        raise ValueError(f"{call} must return a dict by names of its tables, {sorted(tables)}.")
    checked = {}
    for name, (rows, counts) in found.items():
        rows, counts = np.asarray(rows), np.asarray(counts, dtype=np.float64)
        if rows.shape != counts.shape or not (counts >= 0).all():
            raise ValueError(
                f"{call} must return a count, at least 0, for each row of {name!r}; got "
                f"{len(rows)} rows and counts of shape {counts.shape}."
            )
        checked[name] = rows, counts
    return checked


class Linear(Backbone):
    """A row of a table for each user and each item: matrix factorization.

    The default of :class:`~freqfm.MFRecommender`, which trains it with compiled code that gathers,
    compares and updates rows in one pass. The methods here do the same in separate steps.

    Examples
    --------
    >>> from freqfm import MFRecommender
    >>> from freqfm.backbones import Linear
    >>> MFRecommender(backbone=Linear()).backbone
    Linear()
    """

    @property
    def is_linear(self):
        """Whether vectors are the rows of the tables, see :class:`Backbone`."""
        return type(self) is Linear  # a subclass may do something else

    def start(self, n_users, n_items, draw):
        """Return a table of users and one of items, see :class:`Backbone`."""
        return {"user_factors": draw("user"), "item_factors": draw("item")}

    def forward(self, tables, users, items):
        """Return rows of both tables, see :class:`Backbone`."""
        return tables["user_factors"][users], tables["item_factors"][items], (users, items)

    def backward(self, tables, context, user_gradients, item_gradients):
        """Return the gradients unchanged, see :class:`Backbone`."""
        users, items = context
        return {"user_factors": (users, user_gradients), "item_factors": (items, item_gradients)}

    def occurrences(self, context, user_counts, item_counts):
        """Return the counts unchanged, see :class:`Backbone`."""
        users, items = context
        return {"user_factors": (users, user_counts), "item_factors": (items, item_counts)}
