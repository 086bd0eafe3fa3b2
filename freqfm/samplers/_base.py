"""The interface of samplers, for users and for estimators."""

import math
from abc import abstractmethod
from numbers import Integral, Real
from types import SimpleNamespace
from typing import get_type_hints

import numpy as np
from scipy.special import logsumexp
from sklearn.utils.validation import check_array, check_is_fitted

from freqfm import backends
from freqfm._components import Component, validate_params
from freqfm._input import validation
from freqfm._input.rows import slices
from freqfm._machine import single_threaded_blas
from freqfm.backends.base import Stream
from freqfm.formulas import codes
from freqfm.formulas.proposals import Proposal

# Probabilities of this many pairs of a query and an item are computed at a time.
_PAIRS = 1 << 24


class Sampler(Component):
    """Base class of negative samplers.

    A sampler holds hyper-parameters. Its distribution over items is a :class:`Proposal`, which
    estimators request with ``proposal`` and keep themselves; ``fit`` keeps one as ``proposal_``,
    for drawing items directly or measuring how far a sampler is from a softmax.
    """

    #: How the negatives of a batch are arranged, see ``freqfm.formulas.codes``: all its positives
    #: share a list, unless a class says otherwise. Losses of pairs draw a list for each positive.
    negatives_code: int = codes.NEGATIVES_SHARED
    #: Default number of negatives; None for the loss's default.
    n_negatives: int | None = None

    @abstractmethod
    def proposal(self, counts):
        """Return the distribution over items.

        Parameters
        ----------
        counts : ndarray of shape (n_items,)
            How many users have each item.

        Returns
        -------
        proposal : Proposal
        """

    def draw(self, shape, n_items, proposal, generator):
        """Return lists of items, int32.

        Estimators draw from the proposal themselves; they call this method only if a custom class
        overrides it.

        Parameters
        ----------
        shape : tuple of int
            How many lists, and their length.
        n_items : int
        proposal : Proposal
            The result of ``proposal``.
        generator : Generator

        Returns
        -------
        items : ndarray of the given shape, int32
            Drawn with replacement.

        Raises
        ------
        ValueError
            If the proposal needs queries.
        """
        check_static(self, proposal)
        stream = Stream(int(generator.integers(1 << 63)), 0, 0)
        return backends.get().draw_lists(proposal, stream, 0, shape)

    def fit(self, item_vectors, counts=None, *, random_state=None):
        """Prepare to draw items.

        Parameters
        ----------
        item_vectors : array-like of shape (n_items, d)
            The logit of an item is the dot product of its vector and a query.
        counts : array-like of shape (n_items,), default=None
            How often each item occurs; None means equally often.
        random_state : int, RandomState instance, Generator or None, default=None
            Pass an int for the same result at every call.

        Returns
        -------
        self : object
        """
        validate_params(self)
        vectors = _as_vectors("item_vectors", item_vectors)
        with np.errstate(over="ignore"):
            longest = np.einsum("jf,jf->j", vectors, vectors).max()
        if not np.isfinite(longest):
            raise ValueError(
                "item_vectors holds vectors too long: products overflow float32; scale them."
            )
        counts = _check_counts(counts, len(vectors))
        with single_threaded_blas():
            self.proposal_ = self._proposal_of(vectors, counts, validation.draw_seed(random_state))
        self.item_vectors_ = vectors
        return self

    def _proposal_of(self, vectors, counts, seed):
        return self.proposal(counts)

    def log_proba(self, queries):
        """Return the logarithm of the probability of drawing each item.

        Parameters
        ----------
        queries : array-like of shape (n_queries, d)

        Returns
        -------
        log_proba : ndarray of shape (n_queries, n_items), float64
            The exponentials of a row sum to one.
        """
        weights = self._log_weights(self._check_queries(queries).astype(np.float64))
        return weights - logsumexp(weights, axis=1, keepdims=True)

    def _log_weights(self, queries):
        """Return the log-probabilities, up to a constant for each row."""
        if not isinstance(self.proposal_, Proposal):
            raise NotImplementedError(
                f"The probabilities of {type(self).__name__} depend on the query, and it does not "
                f"tell how; derive it from the sampler whose distribution it takes, such as MIDX."
            )
        log_q = self.proposal_.log_q
        log_q = log_q if len(log_q) else np.zeros(self.proposal_.n_items)
        return np.repeat(log_q[None].astype(np.float64), len(queries), axis=0)

    def sample(self, queries, n, *, random_state=None):
        """Draw items for every query, with replacement.

        Parameters
        ----------
        queries : array-like of shape (n_queries, d)
        n : int
            Number of items for each query.
        random_state : int, RandomState instance, Generator or None, default=None
            Pass an int for the same items at every call.

        Returns
        -------
        ids : ndarray of shape (n_queries, n), int32
        log_q : ndarray of shape (n_queries, n), float32
            The logarithm of the probability of each, as in ``log_proba``.
        """
        queries = self._check_queries(queries)
        n = validation.check_count("n", n)
        proposal = self.proposal_
        key = np.uint64(validation.draw_seed(random_state))
        ids, log_q = backends.get().draw(proposal, queries, key, n)
        return ids, log_q - np.float32(np.log(proposal.n_items))

    def _check_queries(self, queries):
        check_is_fitted(self, "proposal_")
        learned = validation.LearnedArrays(self)
        shape = learned.array("item_vectors_", (None, None), "f")
        check_proposal(learned, "proposal_", self.proposal_, *shape)
        queries = _as_vectors("queries", queries)
        width = self.item_vectors_.shape[1]
        if queries.shape[1] != width:
            raise ValueError(
                f"queries has {queries.shape[1]} columns, but the item vectors that "
                f"{type(self).__name__} was fitted on have {width}; give as many for each query."
            )
        return queries


class QuerySampler(Sampler):
    """Base class of samplers that depend on the query.

    Attributes
    ----------
    proposal_ : Proposal
        After ``fit``: the distribution, as arrays.
    item_vectors_ : ndarray of shape (n_items, d), float32
    """

    negatives_code = codes.NEGATIVES_DRAWN
    n_negatives = 128
    #: Whether draws come with corrections that a softmax subtracts.
    corrected = True
    #: Whether losses of pairs take the draws, too, with weights in proportion to the exponentials
    #: of minus the corrections. Those of a positive's negatives, without known items, sum to their
    #: number: one negative has no use for a weight, so that more are the default.
    weighted = False
    n_negatives_of_pairs = 5
    #: Number of epochs between two calls of ``proposal``; None for calls within epochs too, see
    #: ``draws_per_refresh``.
    refresh: int | None = 1
    #: The class of all of its proposals, by which a backend knows beforehand whether it can draw
    #: from them; None if that is unknown: then only the CPU draws.
    proposal_type: type | None = None

    @abstractmethod
    def proposal(self, counts, vectors, seed, previous=None):
        """Return the distribution for the current item vectors.

        Parameters
        ----------
        counts : ndarray of shape (n_items,)
            How many users have each item.
        vectors : ndarray of shape (n_items, d), float32
            Vectors as the loss compares them. The proposal may keep the array.
        seed : int
        previous : named tuple, default=None
            What this returned for earlier vectors of the items. If these are from an earlier call
            of ``fit``, only its ``codewords`` are left.

        Returns
        -------
        proposal : named tuple
            A :class:`Proposal`, or a named tuple of arrays and numbers, ``n_items`` among them,
            whose class has the formulas of a distribution, see Notes.

        Notes
        -----
        Formulas are static methods of the class, compiled into the kernels that draw:

        - ``draw(proposal, query, key, ids, log_q, numbers, sums)`` writes items to ``ids`` and
          log(n_items Q(item | query)) to ``log_q``. A softmax subtracts it from the logits.
        - ``log_q_of(proposal, query, item, numbers, sums)``, optional, returns that of any item
          for the same query; without it, it is zero.
        - ``prepare(proposal, query, numbers, sums)``, optional, is called once for each query.

        ``query`` is a vector of float32, ``key`` a uint64 that makes all random numbers of the
        query, as ``freqfm.formulas.proposals.random_number(key, index)``. ``numbers``, float32,
        and ``sums``, float64, keep what ``prepare`` has computed; they are as long as the optional
        method ``scratch()`` says, which returns two integers.
        """

    def draws_per_refresh(self, n_items):
        """Return the number of draws between two calls of ``proposal`` if ``refresh`` is None.

        :class:`~freqfm.MFRecommender` counts the draws of an epoch for all users, and updates the
        sampler before the next batch; :class:`~freqfm.FastVAERecommender` only between epochs.

        Parameters
        ----------
        n_items : int

        Returns
        -------
        n_draws : int
            n_items log(n_items): an update that sorts items takes as long as so many draws.
        """
        return max(1, round(n_items * math.log(n_items)))

    def _proposal_of(self, vectors, counts, seed):
        return self.proposal(counts, vectors, seed)


class UncorrectedSampler(QuerySampler):
    """Base class of samplers of hard negatives, for whose probabilities losses do not correct."""

    corrected = False

    def sample(self, queries, n, *, random_state=None):
        """Draw items for every query, see :meth:`Sampler.sample`."""
        ids, log_q = super().sample(queries, n, random_state=random_state)
        queries = self._check_queries(queries)
        step = max(1, _PAIRS // self.proposal_.n_items)
        for rows in slices(len(queries), step):
            log_q[rows] = np.take_along_axis(self.log_proba(queries[rows]), ids[rows], axis=1)
        return ids, log_q


def recall_codewords(codewords):
    """Return the codewords of an earlier call's last proposal; None if it had none."""
    return SimpleNamespace(codewords=codewords) if len(codewords) else None


def check_draws(sampler, items, shape, n_items):
    """Return the result of ``sampler.draw`` as int32; raise unless it has ``shape``."""
    items = np.asarray(items)
    fits = items.shape == shape and items.dtype.kind in "iu"
    if not (fits and items.min() >= 0 and items.max() < n_items):
        raise ValueError(
            f"draw of {type(sampler).__name__} must return items in [0, {n_items - 1}], "
            f"integers of shape {shape}; got an array of shape {items.shape} and type "
            f"{items.dtype}, or items out of range."
        )
    return validation.as_kernel_array(items, np.int32)


def check_static(sampler, proposal):
    """Raise unless lists can be drawn from a sampler's proposal without queries."""
    if not isinstance(proposal, Proposal):
        raise ValueError(
            f"proposal of {type(sampler).__name__} is a {type(proposal).__name__}, which needs "
            f"queries; return what freqfm.samplers.proposal_of makes, or override draw."
        )


def proposal_of(probabilities):
    """Return a distribution that does not depend on the query, for the ``proposal`` of a sampler.

    Parameters
    ----------
    probabilities : array-like of shape (n_items,)
        Or numbers in proportion to them.

    Returns
    -------
    proposal : Proposal

    Raises
    ------
    ValueError
        If a number is not positive, or their sum not finite.

    Notes
    -----
    It takes 24 bytes for each item. A draw takes the same time for any number of items, by an alias
    table [1]_.

    References
    ----------
    .. [1] A. J. Walker. "An Efficient Method for Generating Discrete Random Variables with General
       Distributions". ACM Transactions on Mathematical Software 3, 1977.

    Examples
    --------
    >>> import numpy as np
    >>> from freqfm.samplers import Uniform, proposal_of
    >>> class Recent(Uniform):
    ...     def proposal(self, counts):
    ...         return proposal_of(1 + np.arange(len(counts)))
    >>> sampler = Recent().fit(np.ones((4, 2)))
    >>> np.exp(sampler.log_proba(np.ones((1, 2)))).round(2)
    array([[0.1, 0.2, 0.3, 0.4]])
    """
    shares = check_array(
        probabilities, ensure_2d=False, dtype=np.float64, input_name="probabilities"
    )
    if shares.ndim != 1 or shares.min() <= 0 or not np.isfinite(shares.sum()):
        raise ValueError(
            "probabilities must be positive numbers, one for each item, with a finite sum."
        )
    return _given(shares)


def _given(weights):
    """Return the proposal that draws items in proportion to weights; those of zero are not drawn.

    Their log_q, which only a positive would need, is zero.
    """
    n, present = len(weights), weights > 0
    shares = weights / weights.sum()
    log_q = np.zeros(n, dtype=np.float32)
    log_q[present] = np.log(shares[present] * present.sum())
    table = alias_table(np.arange(n, dtype=np.int32), np.array([0, n]), shares, log_q)
    return Proposal(log_q=log_q, n_items=n, aliases=table)


def alias_table(items, starts, weight, log_q):
    """Return the table used by draws from cells: one row per draw, so one cache miss.

    Parameters
    ----------
    items : ndarray of shape (n_items,), int32
        Cell by cell.
    starts : ndarray of shape (n_cells + 1,), int64
        Where cells begin in ``items``.
    weight : ndarray of shape (n_items,), float64
        In the order of ``items``: what an item of a cell is drawn in proportion to.
    log_q : ndarray of shape (n_items,), float32
        In the order of the numbers of items.
    """
    thresholds, others = backends.get().alias_tables(starts, weight)
    table = np.empty((len(items), 5), dtype=np.int32)
    table[:, 0], table[:, 1] = items, items[others]
    # Others are items of the same cell: near each other here, and scattered in ``log_q``.
    bits, item_log_q = table.view(np.float32), log_q[items]
    bits[:, 2], bits[:, 3], bits[:, 4] = thresholds, item_log_q, item_log_q[others]
    return table


def leave_out(proposal, absent):
    """Return a proposal that needs no queries, without some items: they are never drawn.

    Parameters
    ----------
    proposal : Proposal
    absent : ndarray of bool of shape (n_items,)
    """
    if not absent.any():
        return proposal
    weights = np.ones(proposal.n_items)
    if len(proposal.aliases):
        weights = np.exp(proposal.log_q.astype(np.float64))
    return _given(np.where(absent, 0, weights))


def check_proposal(learned, name, proposal, n_items, width):
    """Raise unless compiled code can draw items from a proposal.

    Parameters
    ----------
    learned : LearnedArrays
        Names the estimator or sampler in errors.
    name : str
        Name of the proposal for error messages.
    proposal : Proposal
    n_items, width : int
        Shape of the item vectors.
    """
    kind = type(proposal)
    fits = kind is Proposal or (hasattr(kind, "draw") and hasattr(kind, "_fields"))
    learned.require(fits, name, f"is a {kind.__name__}, not a Proposal or one with a draw")
    learned.require("n_items" in kind._fields, f"{name}.n_items", "is missing")
    found = f"is {proposal.n_items}, but item_vectors_ has {n_items} rows"
    learned.require(proposal.n_items == n_items, f"{name}.n_items", found)
    if not hasattr(kind, "arrays"):
        return  # a user's own distribution
    try:
        arrays = proposal.arrays(width)
    except (AttributeError, IndexError, TypeError):
        learned.require(False, name, "has an array of another type or with other axes than needed")
    # Other numbers have to be integers.
    floats = [field for field, hint in get_type_hints(kind).items() if hint is float]
    for field, value in proposal._asdict().items():
        if field in arrays:
            dtype, shape = arrays[field]
            learned.array(f"{name}.{field}", shape, np.dtype(dtype).kind, value)
            fits = value.dtype == dtype
        else:
            is_number = isinstance(value, Real) and not isinstance(value, bool)
            fits = is_number and value > 0 and (isinstance(value, Integral) or field in floats)
        found = "" if fits else f"is {value!r}, of another type than it has to be"
        learned.require(fits, f"{name}.{field}", found)
    if hasattr(kind, "check"):
        proposal.check(learned, name)


def _as_vectors(name, array):
    validation.refuse_dates(name, array)
    with validation.named(name):
        array = check_array(array, dtype=np.float32, order="C", input_name=name)
    return validation.as_kernel_array(array)


def _check_counts(counts, n_items):
    if counts is None:
        return np.ones(n_items)
    validation.refuse_dates("counts", counts)
    counts = check_array(counts, ensure_2d=False, dtype=np.float64, input_name="counts")
    if counts.shape != (n_items,):
        raise ValueError(
            f"counts has shape {counts.shape}, but item_vectors has {n_items} rows; give as many."
        )
    if counts.min() < 0:
        raise ValueError(
            f"counts holds {counts.min():g}; give how often each item occurs, 0 or more."
        )
    return counts
