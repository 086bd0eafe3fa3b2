"""The tables of a rank-aware factorization machine: ranks of features, and their rows."""

import numpy as np

from freqfm._input.validation import as_kernel_array
from freqfm._messages import shown
from freqfm.backends.base import RankedTables


def assign_levels(assignment, ranks, counts):
    """Return the highest level of each feature, from 0 on.

    Parameters
    ----------
    assignment : "nearest" or array-like
        See ``RaFMClassifier``.
    ranks : ndarray of shape (n_ranks,)
        Increasing.
    counts : ndarray of shape (n_features,)
        How many training rows hold each feature.

    Returns
    -------
    levels : ndarray of shape (n_features,), int32
    """
    n_features, n_ranks = len(counts), len(ranks)
    if isinstance(assignment, str):
        # |log n - log D| is smallest for the next rank once n exceeds their geometric mean.
        bounds = np.sqrt(ranks[1:] * ranks[:-1].astype(np.float64))
        return np.searchsorted(bounds, counts, side="left").astype(np.int32)
    given = np.asarray(assignment)
    if given.ndim != 1 or given.dtype.kind not in "iuf" or not np.isfinite(given).all():
        raise ValueError(
            f"rank_assignment must be 'nearest', {n_ranks - 1} increasing numbers of occurrences, "
            f"or the rank of each of the {n_features} features; got {shown(assignment)}."
        )
    if len(given) == n_ranks - 1:
        if np.any(np.diff(given) < 0):
            raise ValueError(
                f"rank_assignment={given.tolist()} must not decrease: feature counts above the "
                f"k-th number get rank k + 1."
            )
        return np.searchsorted(given, counts, side="left").astype(np.int32)
    if len(given) == n_features:
        unknown = np.setdiff1d(given, ranks)
        if len(unknown):
            raise ValueError(
                f"rank_assignment holds {unknown[:5].tolist()}, not among "
                f"ranks={ranks.tolist()}; give each feature one of these."
            )
        return np.searchsorted(ranks, given).astype(np.int32)
    raise ValueError(
        f"rank_assignment has {len(given)} values; it takes {n_ranks - 1} bounds, one between "
        f"every two of ranks={ranks.tolist()}, or a rank for each of the {n_features} features."
    )


class Layout:
    """Where the vectors of features are stored in one array that holds the tables of all ranks.

    The features of the highest level come first, then those of the next. So a feature has the
    same row in every table that it is in, and vectors that a feature does not have take no memory.

    Parameters
    ----------
    ranks : ndarray of shape (n_ranks,)
    levels : ndarray of shape (n_features,)
        The highest level of each feature.
    prefix : bool
        Whether the table of a rank holds only what it adds to the rank before.
    rows : ndarray of shape (n_features,), default=None
        The row of each feature, if that is known.
    """

    def __init__(self, ranks, levels, prefix, rows=None):
        self.levels = levels
        self.prefix = prefix
        self.widths = np.diff(ranks, prepend=0) if prefix else np.asarray(ranks)
        self.widths = self.widths.astype(np.int64)
        self.n_rows = np.array([(levels >= k).sum() for k in range(len(ranks))], dtype=np.int64)
        if rows is None:
            rows = np.empty(len(levels), dtype=np.int32)
            rows[np.argsort(-levels, kind="stable")] = np.arange(len(levels))
        self.rows = as_kernel_array(rows, np.int32)
        ends = np.cumsum(self.n_rows * self.widths)
        self.starts = ends - self.n_rows * self.widths
        self.n_weights = int(ends[-1])

    def tables(self, weights):
        """Return the tables in ``weights``, whose last axis is all of them, as views."""
        shape = weights.shape[:-1]
        return [
            weights[..., start : start + n * width].reshape(*shape, n, width)
            for start, n, width in zip(self.starts, self.n_rows, self.widths, strict=True)
        ]

    def ranked_tables(self, weights):
        """Return the tables in ``weights`` as backends take them."""
        return RankedTables(
            weights, self.n_rows, self.widths, self.starts, self.levels, self.rows, self.prefix
        )

    def draw(self, initializer, generator, counts):
        """Return the weights that the tables start from."""
        ordered = np.empty_like(counts)
        ordered[self.rows] = counts
        return np.concatenate(
            [
                initializer.table((int(n), int(d)), generator, ordered[:n]).ravel()
                for n, d in zip(self.n_rows, self.widths, strict=True)
            ]
        )

    def init_state(self, optimizer, counts):
        """Return the optimizer's state before the first batch, that of the tables in 1-D arrays."""
        if len(self.widths) == 1:
            return optimizer.init_state(len(counts), int(self.widths[0]), counts)
        state, shapes = optimizer.init_state(len(counts), 1, counts), self.state_shapes(optimizer)
        return state._replace(
            factors_first=np.zeros(shapes["factors_first"], dtype=np.float32),
            factors_second=np.zeros(shapes["factors_second"], dtype=np.float32),
        )

    def state_shapes(self, optimizer):
        """Return the shapes of the optimizer's state by name, see ``init_state``."""
        if len(self.widths) == 1:
            return optimizer.state_shapes(len(self.levels), int(self.widths[0]))
        _, (first, second) = self.lay_out(self._state_widths(optimizer))
        shapes = optimizer.state_shapes(len(self.levels), 1)
        return {**shapes, "factors_first": (int(first),), "factors_second": (int(second),)}

    def state_layout(self, optimizer):
        """Return where the state of each table begins and how wide it is, (n_ranks, 4), int64."""
        return self.lay_out(self._state_widths(optimizer))[0]

    def lay_out(self, widths):
        """Return the layout of states of given widths, see ``state_layout``, and total sizes."""
        sizes = widths * self.n_rows[:, None]
        ends = np.cumsum(sizes, axis=0)
        starts = ends - sizes
        layout = np.column_stack([starts[:, 0], widths[:, 0], starts[:, 1], widths[:, 1]])
        return layout, ends[-1]

    def _state_widths(self, optimizer):
        return np.array([optimizer.state_widths(int(d)) for d in self.widths], dtype=np.int64)
