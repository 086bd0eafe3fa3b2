"""Vectors of users or items that predictions search: the best rows for queries."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy import sparse

from freqfm import backends
from freqfm._dense import unit_rows
from freqfm._input.ids import as_list
from freqfm._input.item_tables import is_list, number_table
from freqfm._input.rows import csr_of, slices, take_rows
from freqfm._input.validation import (
    canonical_csr,
    check_count,
    check_memory,
    check_number,
    kernel_csr,
    validate_ids,
)
from freqfm.backends.base import Candidates, Histories, ItemLists
from freqfm.metrics._hits import as_csr, ascending, top_k

# Pairs whose vectors are gathered at a time: those of all pairs may be many times the model.
_PAIRS = 1 << 14

# Queries are divided into at least so many parts if progress is reported.
_REPORTED_PARTS = 100

# Of a table by columns those alone are read that queries have, if there are so many times as many.
_FEWER = 4

# Results of so many places are not worth a look at the memory; of more, they must not be wider than
# there are rows to be found.
_FEW_PLACES, _MOST_PLACES = 1 << 18, 1 << 26

# Diverse items are chosen from the best ones: this many for each that is wanted, and at least.
_POOL, _LEAST_POOL = 5, 100


class Queries(NamedTuple):
    """The users whom ``recommend`` was asked to recommend to."""

    vectors: np.ndarray  #: (n, d) float32, used for ranking
    history: sparse.csr_array  #: (n, n_items), the items they have; empty if they are not needed
    learned: np.ndarray  #: (n,), whether the vector was learned; other users get popular items

    def of(self, rows):
        """Return some of the users, by their numbers."""
        return Queries(self.vectors[rows], take_rows(self.history, rows), self.learned[rows])


class Request(NamedTuple):
    """Which rows are requested for each query."""

    n: int  #: how many
    candidates: object = None  #: indices for all queries, or those of each, see _checked; or None
    exclude: object = None  #: rows that must not be found, likewise
    diversity: float = 0.0  #: between 0 and 1: how much the rows found are to differ
    vectors: object = None  #: by which rows differ, a row for each; None is those of the model

    def checked(self, n_queries, n_rows):
        """Return this in the form for :meth:`VectorIndex.search`; raise if it is not valid."""
        shape = n_queries, n_rows
        candidates = _checked("candidates", self.candidates, shape)
        if not (candidates is None or sparse.issparse(candidates)):
            candidates = ascending(candidates, n_rows)
        return Request(
            check_recommendations(self.n, n_queries, n_rows),
            candidates,
            _checked("exclude", self.exclude, shape),
            check_number("diversity", self.diversity, 0, 1),
            None if self.vectors is None else number_table("item_vectors", self.vectors, n_rows),
        )

    def of(self, queries):
        """Return the part for some of the queries, by their numbers."""
        parts = self.candidates, self.exclude
        parts = [take_rows(part, queries) if sparse.issparse(part) else part for part in parts]
        return self._replace(candidates=parts[0], exclude=parts[1])

    def pool(self, n_rows):
        """Return what has to be found, of all rows, so that diverse ones can be chosen from it."""
        return self._replace(n=max(self.n, min(max(_LEAST_POOL, _POOL * self.n), n_rows)))

    @property
    def rows(self):
        """An index of the rows that may be found."""
        if self.candidates is None:
            return slice(None)
        if sparse.issparse(self.candidates):
            return ascending(self.candidates.indices, self.candidates.shape[1])
        return self.candidates


class VectorIndex(NamedTuple):
    """Vectors of all users, or of all items, as a model's arrays are at the moment.

    What a recommender returns for users or items is found in one of these.
    """

    table: np.ndarray | sparse.csr_array  #: (n, d)
    n_unit: int  #: how many leading columns are taken at unit length
    #: Takes an index of rows; returns for each whether training moved it. Others are never found.
    learned: Callable
    #: Further arguments: ``n_threads`` and ``device``, and ``report`` of ``sparse_top_k``.
    options: dict

    def vectors(self, rows=slice(None)):
        """Return some vectors, (n, d) float32."""
        rows = self.table[rows]
        if not self.n_unit:  # as of all sparse tables
            return rows
        units = unit_rows(rows[:, : self.n_unit])
        if self.n_unit == rows.shape[1]:
            return units
        return np.column_stack([units, rows[:, self.n_unit :]])

    def plus(self, vectors):
        """Return the index with more vectors at the end, all of them learned."""
        n_old, n = len(self.table), len(self.table) + len(vectors)

        def learned(rows):
            rows = np.arange(n)[rows] if isinstance(rows, slice) else rows
            found = np.ones(len(rows), dtype=bool)
            found[rows < n_old] = self.learned(rows[rows < n_old])
            return found

        return self._replace(table=np.concatenate([self.table, vectors]), learned=learned)

    def search(self, queries, request, hidden=None):
        """Return the rows with the largest dot products with each query, and these.

        Parameters
        ----------
        queries : ndarray or csr_array of shape (n_queries, d)
            Sparse if the table is; then rows are only found for which a query and a row have a
            column in common.
        request : Request
            Checked.
        hidden : csr_array of shape (n_queries, n), default=None
            What must not be found for each query, besides ``request.exclude``.

        Returns
        -------
        found : ndarray of shape (n_queries, request.n), int64
            -1 where there are too few.
        scores : ndarray of the same shape, float32
        """
        rows, exclude = request.rows, request.exclude
        if sparse.issparse(exclude):
            hidden = exclude if hidden is None else canonical_csr((hidden != 0) + (exclude != 0))
            exclude = None
        unlearned = np.flatnonzero(~self.learned(rows))
        if len(unlearned):
            unlearned = unlearned if isinstance(rows, slice) else rows[unlearned]
            exclude = unlearned if exclude is None else np.concatenate([exclude, unlearned])
        options = {"exclude": hidden, "exclude_for_all": exclude, "candidates": request.candidates}
        if sparse.issparse(self.table):
            options |= {name: value for name, value in self.options.items() if name != "device"}
            queries, table = self._in_common(queries)
            found, scores = sparse_top_k(queries, table, request.n, **options)
            return found.astype(np.int64), scores
        options |= {"unit_columns": self.n_unit, **self.options}
        found, scores = top_k(queries, self.table, request.n, **options)
        finite = not (found < 0).any() or (
            np.isfinite(queries).all() and np.isfinite(self.table[rows]).all()
        )
        if not finite:
            raise ValueError(
                "the vectors of this model hold NaN or infinity, so nothing can be ranked; fit it "
                "again, or restore the arrays that fit has learned."
            )
        return found.astype(np.int64), scores

    def similar(self, rows, request):
        """Return the rows most similar to some of them, and the cosines of their vectors."""
        itself = kernel_csr(
            np.ones(len(rows), dtype=np.float32),
            rows,
            np.arange(len(rows) + 1),
            (len(rows), self.table.shape[0]),
        )
        if sparse.issparse(self.table):
            queries = self.table[rows]
        else:
            # Zeros in the query ignore columns that are not compared.
            queries = np.zeros((len(rows), self.table.shape[1]), dtype=np.float32)
            queries[:, : self.n_unit] = unit_rows(self.table[rows, : self.n_unit])
        request = request.checked(len(rows), self.table.shape[0])
        similar, cosines = self.search(queries, request, itself)
        cold = ~self.learned(rows)
        similar[cold], cosines[cold] = -1, -np.inf
        return similar, cosines

    def _in_common(self, queries):
        """Return sparse queries and the table; with the columns alone that few queries have.

        So a request does not read all of a table that is stored by columns.
        """
        if self.table.format != "csc":
            return queries, self.table
        columns, n = self.table.T, self.table.shape[0]
        used = np.unique(queries.indices) if _FEWER * queries.nnz < columns.shape[0] else None
        if used is not None:
            columns, shape = take_rows(columns, used), (queries.shape[0], len(used))
            at = np.searchsorted(used, queries.indices).astype(np.int32)
            queries = csr_of(queries.data, at, queries.indptr, shape)
        # As unsigned numbers negative ones are large: one pass instead of two.
        unsigned = columns.indices.view(f"u{columns.indices.itemsize}")
        if columns.nnz and unsigned.max() >= n:
            raise ValueError(
                f"the item_weights_ of this model were changed in place: they name items outside "
                f"[0, {n - 1}]; fit or load the model again."
            )
        return queries, columns.T

    def scores(self, queries, query_at, rows):
        """Return the dot product of ``queries[query_at[i]]`` and row ``rows[i]`` for each i."""
        some, at = np.unique(rows, return_inverse=True)
        if sparse.issparse(self.table):
            queries, table = self._in_common(queries)
            vectors = table[some]
        else:
            vectors = self.vectors(some)
        scores = np.empty(len(rows), dtype=np.float32)
        for part in slices(len(rows), _PAIRS):
            pair = queries[query_at[part]], vectors[at[part]]
            if sparse.issparse(vectors):
                scores[part] = pair[0].multiply(pair[1]).sum(axis=1)
            else:
                scores[part] = np.einsum("pf,pf->p", *pair)
        return scores


def sparse_top_k(
    queries,
    items,
    k,
    *,
    exclude=None,
    exclude_for_all=None,
    candidates=None,
    n_threads=1,
    report=None,
):
    """Find the ``k`` items with the largest positive scores for every query.

    Like ``metrics._hits.top_k``, which describes arguments and results, for sparse queries and
    items. ``report``, if there is one, is called with the number of queries that are done, now and
    then.
    """
    candidates_of_each = candidates if sparse.issparse(candidates) else None
    for_all = candidates is not None and candidates_of_each is None
    allowed = np.full(items.shape[0], not for_all)
    if for_all:
        allowed[candidates] = True
    if exclude_for_all is not None:
        allowed[exclude_for_all] = False
    n_queries, n_kept = queries.shape[0], min(k, items.shape[0])
    found = np.full((n_queries, k), -1, dtype=np.int32)
    scores = np.full((n_queries, k), -np.inf, dtype=np.float32)
    queries, columns = rows_of(queries), rows_of(items.T.tocsr())
    hidden, of_each = _candidates(exclude, n_queries), _candidates(candidates_of_each, n_queries)
    step = max(1, n_queries // _REPORTED_PARTS if report else n_queries)
    for part in slices(n_queries, step):
        bounds = slice(part.start, part.stop + 1)
        lists = ItemLists(
            allowed,
            hidden._replace(indptr=hidden.indptr[bounds]),
            of_each._replace(indptr=of_each.indptr[bounds]),
            candidates_of_each is not None,
        )
        some = queries._replace(starts=queries.starts[bounds])
        best = backends.get("cpu").sparse_top_k(some, columns, n_kept, lists, n_threads)
        found[part, :n_kept], scores[part, :n_kept] = best
        if report:
            report(part.stop)
    return found, scores


def rows_of(X):
    """Return the rows of a CSR matrix, in the types that kernels are compiled for."""
    X = kernel_csr(X.data, X.indices, X.indptr, X.shape)
    return Histories(X.indptr, X.indices, X.data)


def _candidates(lists, n_queries):
    """Return a list of items for each query, the entries of a canonical matrix, if there is one."""
    if lists is None:
        return Candidates(np.zeros(n_queries + 1, np.int64), np.zeros(0, np.int32))
    return Candidates(*rows_of(lists)[:2])


def _checked(name, rows, shape):
    """Return rows given by indices, for all queries, or by a sparse matrix, for each; or None.

    Lists of indices for each become such a matrix.
    """
    rows = rows if isinstance(rows, np.ndarray) else as_list(rows)
    if isinstance(rows, (list, tuple)) and rows and all(map(is_list, rows)):
        lists = [validate_ids(name, as_list(one), shape[1]) for one in rows]
        of_each = np.repeat(np.arange(len(lists)), list(map(len, lists)))
        pairs = of_each, np.concatenate(lists)
        rows = sparse.csr_array((np.ones(len(of_each)), pairs), shape=(len(lists), shape[1]))
    if not sparse.issparse(rows):
        return None if rows is None else validate_ids(name, rows, shape[1])
    rows = as_csr(name, rows)
    if rows.shape != shape:
        raise ValueError(
            f"{name} has shape {rows.shape}, but needs {shape}: a row for each of those asked for."
        )
    return rows


def check_recommendations(wanted, n_queries, n_rows, name="n_recommendations"):
    """Return how many are wanted for each query, if it is a count and the results can be held."""
    k = check_count(name, wanted)
    n_places = k * n_queries
    if n_places <= _FEW_PLACES:  # finding out how much memory there is reads files
        return k
    what = f"{name}={k} for each of {n_queries} rows"
    # 16 bytes for each: an index in two types, and a score.
    check_memory(2 * n_places, what, "Ask for fewer, or for fewer rows at a time.")
    if k > n_rows and n_places > _MOST_PLACES:
        raise ValueError(
            f"{what} would have {n_places:,} places, most of them empty: there are only {n_rows} "
            f"to be found. Ask for {name}={n_rows} at most."
        )
    return k


def of_single(ids, ranked):
    """Return ranked rows and their scores, one-dimensional if ``ids`` is a single number."""
    found, scores = ranked
    return (found[0], scores[0]) if ids is not None and np.ndim(ids) == 0 else ranked
