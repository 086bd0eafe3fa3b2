"""The interface between models and hardware: the operations of a backend.

An estimator calls the functions of ``freqfm.backends`` and uses nothing else. Arrays that go in
and out are NumPy arrays; scratch memory, tiles, threads and streams belong to the backend. All
results are bitwise the same for any number of threads. Random numbers come from the counter-based
generator of ``formulas.rng``, keyed by seed, epoch and index, so that all backends draw the same.

Estimators and backends pass each other the tuples below; compiled code reads them too.
"""

import contextlib
from abc import ABC, abstractmethod
from itertools import pairwise
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from scipy import sparse

from freqfm._dense import quantize
from freqfm.formulas import codes


class DeviceUnavailableError(RuntimeError):
    """The device cannot be used on this machine."""


class CPUOnlyError(ValueError):
    """The operation, or this variant of it, runs on the CPU only."""


class UpdateRule(NamedTuple):
    """How rows move along their gradients and decay; codes as in ``formulas.codes``."""

    step_code: int
    rate_code: int
    count_code: int
    catch_up: int = codes.CATCH_UP_NONE  #: how a row catches up on batches that did not touch it
    decay_code: int = codes.DECAY_NONE
    lazy: bool = True  #: whether rows absent from a batch stay unchanged
    decoupled: bool = False  #: whether the decay is a factor of the row, as in AdamW
    average: bool = True  #: whether a step uses the mean of a batch's gradients, or their sum
    decay: float = 0.0  #: weight decay of a row that a batch touches
    idle_decay: float = 0.0  #: and of one that it does not
    hyper: np.ndarray = np.ones(codes.N_HYPER)  #: float64; these are of rates that are not used


# Factorization machines.


class RankedTables(NamedTuple):
    """The factors of a rank-aware machine: the tables of all levels, one after the other."""

    weights: np.ndarray  #: (n_weights,), float32
    n_rows: np.ndarray  #: (m,), tokens of each level, int64
    widths: np.ndarray  #: (m,), numbers in a row, int64
    starts: np.ndarray  #: (m,), where in ``weights`` a table begins, int64
    levels: np.ndarray  #: (n,), the highest level of each token, from 0 on, int32
    rows: np.ndarray  #: (n,), the row of a token, the same in all of its tables, int32
    prefix: bool  #: whether levels are parts of one vector


class FieldVectors(NamedTuple):
    """The factors of a field-aware machine: of each token a vector for each field."""

    vectors: np.ndarray  #: (n, n_fields * d), float32, those of a token one after the other
    fields: np.ndarray  #: (n,), the field of each token, from 0 on, int32
    n_fields: int


class Tower(NamedTuple):
    """Dense layers with ReLU on top of a factorization machine, and the weights of their outputs.

    The input is, for every row, the sums of x v of each field, side by side; or, without fields,
    ((sum of x v)^2 - sum of (x v)^2) / 2 column by column. The dot product of the last layer's
    outputs and the last weights is added to the score, beside the pairs or in their place.
    """

    #: (n_weights,), float32: of every layer first the weights, (n_in, n_out), and then the biases;
    #: at the end those of the outputs of the last layer.
    weights: np.ndarray
    widths: np.ndarray  #: (n_layers + 1,), of the input and of every layer, int64
    fields: np.ndarray  #: (n_features,), from 0 on, int32; of length 0 without fields
    n_fields: int
    pairs: bool  #: whether the score has the sum over pairs too


def layers_of(widths, weights):
    """Return the layers in ``weights``, whose last axis is all of a tower, as views.

    Those of a hidden layer have the shape (n_towers, n_in + 1, n_out), with the biases in the last
    row; at the end stand those of the outputs, (n_towers, n_out). Without layers there are none.
    """
    layers, begin = [], 0
    for n_in, n_out in pairwise(widths.tolist()):
        end = begin + (n_in + 1) * n_out
        layers.append(weights[..., begin:end].reshape(-1, n_in + 1, n_out))
        begin = end
    return [*layers, weights[..., begin:].reshape(-1, widths[-1])] if layers else []


class FieldWeights(NamedTuple):
    """A weight for each pair of fields, which multiplies the interactions of their features.

    Pairs are in the order of ``numpy.triu_indices``: the first field with itself and all others,
    the second with itself and those after it, and so on.
    """

    weights: np.ndarray  #: (n_pairs,), float32, less 1: with zeros the machine is a plain one
    fields: np.ndarray  #: (n_features,), from 0 on, int32
    n_fields: int


class FMWeights(NamedTuple):
    """The weights of one output; float32, updated in place."""

    intercept: np.ndarray  #: (1,)
    linear: np.ndarray  #: (n,)
    #: (n, d), or tables of several ranks, or vectors for each field
    factors: np.ndarray | RankedTables | FieldVectors
    dense: Tower | FieldWeights | None = None  #: what all rows use, beside factors of one rank


class FMObjective(NamedTuple):
    """The objective of training."""

    loss_code: int
    alpha_linear: float
    alpha_factors: float
    fit_intercept: bool
    fit_linear: bool
    mean_weight: float  #: of a row
    loss_scale: float  #: the factor of the loss, see ``Loss.training_scale``
    #: (n,) float32: factor of the penalty on a token, for each row that holds the token.
    shares: np.ndarray


class RankedTraining(NamedTuple):
    """How the vectors of a rank-aware machine are trained.

    A token's vector at its highest level follows the loss of the score. Its other vectors are
    dependent: they make the score of their level follow that of the next.
    """

    #: Whether dependent vectors also follow the loss of the score, through pairs with vectors that
    #: are at their highest level.
    follow_loss: bool
    dependent_weight: float  #: of the losses of dependent vectors
    #: (m, 4): for each table, where its first and second optimizer state begin and their widths.
    state_layout: np.ndarray


class DenseTraining(NamedTuple):
    """How the dense weights of all outputs are trained, beside what an FMProblem describes."""

    #: The optimizer state of each output's: two arrays of shape (n_weights,), or empty ones.
    states: list
    #: (n_weights,), float32: the multiple of a weight that each unit of the rows' weight adds to
    #: its gradient.
    penalties: np.ndarray
    #: (n_layers + 1,), float32, empty without a tower: shares of the input's and of every layer's
    #: values that are dropped. Value f of level l, of the row at place r of an epoch, is dropped by
    #: 16 bits of a hash, as those of users' vectors are; the stream is number 1 of the epoch, and
    #: the row's key its number r * (n_layers + 1) + l.
    dropouts: np.ndarray
    rule: UpdateRule  #: with one rate for all weights
    formulas: dict = MappingProxyType({})  #: custom formulas of the step, as in ``FMProblem``


class ScoredRows(NamedTuple):
    """Scores that are compared with targets."""

    scores: np.ndarray  #: (n,), float32
    targets: np.ndarray  #: (n,), float32
    weights: np.ndarray  #: (n,), float64


class FMProblem(NamedTuple):
    """The rows and the parameters of the training of a factorization machine.

    Training visits the rows in a new order every epoch: the first ``n_blocks`` blocks of
    2^block_bits rows in random order, then the others in theirs.
    """

    X: sparse.csr_array  #: canonical, float32
    target: np.ndarray  #: (n_outputs, X.shape[0]), float32
    weight: np.ndarray  #: (X.shape[0],)
    rows: np.ndarray | None  #: the rows of X that are trained on, in order; None for all
    n_blocks: int
    block_bits: int
    batch_size: int  #: at most the number of rows
    seed: int
    objective: FMObjective
    rule: UpdateRule
    ranked: RankedTraining | None  #: None unless the factors are ``RankedTables``
    weights: list  #: of FMWeights, one for each output
    states: list  #: of the optimizer, one for each output
    dense: DenseTraining | None = None  #: None unless the weights have dense ones
    #: Custom formulas by the functions that they replace, see ``freqfm._numba.jit.specialised``.
    formulas: dict = MappingProxyType({})


# Recommenders.


#: A rule that moves no row: the gradient of each row, summed over the batch, is stored as its first
#: state, and how often the batch holds the row is added to its counter. With it the training
#: kernels compute gradients by vectors that a backbone returns.
STORE = UpdateRule(codes.STEP_STORE, codes.RATE_COUNTED, codes.COUNT_SAMPLES)


class TrainedTable(NamedTuple):
    """A table and its optimizer state, updated in place; unused arrays are empty."""

    weights: np.ndarray  #: (n, d), float32
    per_row: np.ndarray  #: (n,), learning rates or counters, float32
    first: np.ndarray  #: (n, d) or (n, 1), float32
    second: np.ndarray  #: (n, d), float32


class Terms(NamedTuple):
    """Of which rows of the table of users, each times a number, a row of an epoch is the sum."""

    starts: np.ndarray  #: (n_rows + 1,), where the terms of each row begin, int64; or empty
    tokens: np.ndarray  #: (n_terms,), rows of the table, int32
    multiples: np.ndarray  #: (n_terms,), float32


#: The vector of a row of an epoch is the row of its user in the table.
NO_TERMS = Terms(
    np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.float32)
)


class Batches(NamedTuple):
    """The positives in the order of an epoch: rows of one user each, grouped into batches."""

    items: np.ndarray  #: (n_pairs,), int32
    weights: np.ndarray  #: (n_pairs,), float32
    row_starts: np.ndarray  #: (n_rows + 1,), int64
    row_users: np.ndarray  #: (n_rows,), int32
    batch_starts: np.ndarray  #: (n_batches + 1,), rows, int64
    terms: Terms = NO_TERMS  #: of the rows; on the CPU only


class Graph(NamedTuple):
    """A graph through which a backend that ``propagates`` trains a backbone's tables.

    Vectors are means over layers of the tables, see ``Backend.propagation``. An epoch trains the
    vectors, adds to the tables what it has changed them by, and computes the vectors again. Or,
    ``by_batch``, each batch computes the vectors, and moves the tables along their gradients: the
    means over layers of those by the vectors.
    """

    X: sparse.csr_array  #: of shape (n_users, n_items); its values are not used
    n_layers: int
    by_batch: bool
    #: Of users and of items: the backbone's tables or, ``by_batch``, the vectors. The trainer is
    #: given the others, with the optimizer's state.
    others: tuple
    formulas: dict  #: custom formulas of the loss alone, as in ``FMProblem``


class RankingProblem(NamedTuple):
    """The description of a fit of user and item vectors, before the first epoch."""

    family: str  #: of the loss; it determines the kernel
    constants: dict  #: the loss's numbers by name; the names depend on the family
    cosine: bool  #: whether a score is a cosine, or a dot product
    dropout: float  #: of users' vectors
    degrees: np.ndarray  #: (n_rows,), the positives of every user or of every query
    #: (starts, ends, indices) of every user's items, sorted; never negatives.
    known: tuple
    n_items: int
    width: int  #: of the vectors
    batch_size: int  #: positives
    block: int | None  #: positives of a user that stay together in an epoch; None for all
    negatives_code: int  #: which negatives are used, see ``formulas.codes``; -1 for none
    n_negatives: int
    rule: UpdateRule
    seed: int
    corrected: bool = True  #: whether log q is subtracted if negatives are drawn per user
    weighted: bool = False  #: whether pairs are weighted by exp(-log q) if they are
    include_positive: bool = False  #: whether a positive is part of the sum of its softmax
    statistics_wanted: bool = False  #: whether users' statistics are collected for temperatures
    sampler: str = ""  #: as the user gave it, for messages
    #: The class of the proposals of negatives per user, if the sampler has one; or None.
    proposal_type: type | None = None
    formulas: dict = MappingProxyType({})  #: custom formulas, as in ``FMProblem``
    #: The most terms of a row, see ``Terms``; None if rows are users.
    n_terms: int | None = None
    graph: Graph | None = None  #: for a backend that ``propagates``

    def storing(self, formulas):
        """Return a problem that stores gradients, and moves no row; ``formulas`` are the loss's."""
        return self._replace(rule=STORE._replace(average=self.rule.average), formulas=formulas)


class FoldInProblem(NamedTuple):
    """A user's loss as a function of the user's unit vector, with all items held fixed."""

    items: np.ndarray  #: (n_items, d), vectors that scores are computed with, float32
    others: np.ndarray  #: (m, d), vectors that the user is pushed away from, float32
    pairwise: bool  #: whether the user's items are ranked above the others, or a softmax
    positive: float  #: inverse temperature of the user's items
    inverse: float  #: and of the others
    constant: float  #: weight of the logarithm in a softmax
    inertia: float  #: multiple of the vector itself that a step adds to the gradient
    largest_rise: float  #: of the loss in a step; if it rises more, the step is undone
    n_steps: int

    def in_float32(self):
        """Return the problem with its numbers in the type of the vectors, as kernels take them."""
        names = ("positive", "inverse", "constant", "inertia", "largest_rise")
        return self._replace(**{name: np.float32(getattr(self, name)) for name in names})


class LeastSquaresProblem(NamedTuple):
    """The squared error of each row of a table as a function of the row, with others held fixed.

    For a row x whose entries p have weights a_p and belong to the fixed vectors h_p it is ::

        sum_p a_p (1 - x h_p)^2 + unobserved_weight sum_j (x h_j)^2 + penalty |x|^2,

    where j runs over all fixed vectors.
    """

    factors: np.ndarray  #: (n, d), the fixed vectors, float32
    unobserved_weight: float
    penalties: np.ndarray  #: (n_rows,), float32, positive
    n_steps: int  #: of conjugate gradients, from the current row; 0 solves exactly


class Snapshot:
    """A copy of arrays that can be written back into them.

    Parameters
    ----------
    arrays : list of ndarray
    """

    def __init__(self, arrays):
        self._arrays = arrays
        self._copies = [np.empty_like(array) for array in arrays]

    def save(self):
        """Copy the arrays."""
        self.load(self._arrays)

    def restore(self):
        """Write the copies back."""
        for copy, array in zip(self._copies, self._arrays, strict=True):
            array[...] = copy

    def copies(self):
        """Return the copies, as NumPy arrays."""
        return self._copies

    def load(self, copies):
        """Store the copies of another snapshot."""
        for copy, array in zip(self._copies, copies, strict=True):
            found = np.asarray(array)
            if (found.shape, found.dtype) != (copy.shape, copy.dtype):
                raise ValueError(
                    f"an array of shape {found.shape} and type {found.dtype}, where "
                    f"{copy.shape} and {copy.dtype} are needed"
                )
            copy[...] = array


class ContextGroup:
    """A context manager that enters several others, and leaves them in the reverse order."""

    def _contexts(self):
        """Return the others, in the order in which they are entered."""
        return []

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            for context in self._contexts():
                stack.enter_context(context)
            self._entered = stack.pop_all()
        return self

    def __exit__(self, *exception):
        self._entered.__exit__(*exception)


class Trainer(ContextGroup):
    """Trains arrays of the caller, in place; a context manager.

    A trainer on hardware with a memory of its own may keep the arrays there while its context is
    open. The caller's arrays are then out of date from the first epoch on, until the context ends
    or the caller asks for some by :meth:`pull`. It writes into them outside of the context or
    before the first epoch; else it calls :meth:`push` afterwards. The methods here are those of a
    trainer that trains the caller's arrays themselves.
    """

    def pull(self, arrays=None):
        """Bring some of the caller's arrays up to date; None is all."""

    def push(self, arrays):
        """Take over some of the caller's arrays, pulled and then written to between two epochs."""

    def take(self, array, rows, columns):
        """Return some rows, by an index or a slice, and a slice of columns of an array."""
        self.pull([array])
        return array[rows, columns]

    def quantize(self, array, n_columns, unit, options):
        """Return codewords of the rows of an array, without its last columns, and their codes.

        Parameters
        ----------
        array : ndarray of shape (n, n_columns or more), float32
            One of the caller's.
        n_columns : int
        unit : bool
            Whether rows are taken at unit length.
        options : tuple
            Further arguments of ``freqfm._dense.quantize``.
        """
        self.pull([array])
        return quantize(array[:, :n_columns], *options, unit=unit)

    def snapshot(self, arrays):
        """Return a Snapshot of arrays of the caller: the trained ones, and any others."""
        return Snapshot(arrays)

    def largest(self, arrays):
        """Return the largest absolute value in some of the caller's arrays; NaN or inf for NaN."""
        # The maximum of NumPy, unlike that of Python, is NaN if any number is NaN.
        return np.max([np.maximum(array.max(), -array.min()) for array in arrays])


class RankingTrainer(Trainer, ABC):
    """Trains user and item vectors on batches of positives, see ``Trainer``.

    An epoch is ``begin_epoch``, calls of ``train`` on some batches each, and ``end_epoch``.
    """

    #: How many positives of a user may stand in one row of ``Batches``; None for all.
    block: int | None
    #: How many batches one call may train on: about a tenth of a second of work.
    batches_per_call: int

    @abstractmethod
    def begin_epoch(self, epoch, data, tables, first_step, corrections):
        """Set the tables and the data of an epoch.

        Parameters
        ----------
        epoch : int
            Number of the epoch, for random numbers.
        data : Batches
        tables : dict of TrainedTable
            "user_factors" and "item_factors", and for learned margins "user_margins" and
            "item_margins".
        first_step : int
            Number of steps made before.
        corrections : ndarray of shape (n_batches + 1, 2), float64
            Divisors of the rate and of the root of the second moment, from ``first_step`` on.
        """

    @abstractmethod
    def lists_shape(self, first, last):
        """Return how many lists of negatives the batches need, and the length of a list."""

    @abstractmethod
    def train(self, first, last, proposal, negatives, inverse_temperatures, statistics):
        """Train on some batches of the epoch; return the sum of the loss and of the weights.

        Parameters
        ----------
        first, last : int
            The first batch, and the one after the last.
        proposal : Proposal or None
            What negatives are drawn from.
        negatives : ndarray of shape ``lists_shape(first, last)``, int32, or None
            None if there are no lists, or if the trainer draws the negatives itself, by the
            vectors of users.
        inverse_temperatures : ndarray of shape (n_users, 2), float32
            Of positives and of negatives.
        statistics : ndarray of shape (n_users, 3), float64
            For each user, the loss at temperature one, its weight, and the derivative of the loss
            by the inverse temperature are added to it.
        """

    @abstractmethod
    def end_epoch(self):
        """Let all rows catch up on the steps that they have missed."""

    def compute_vectors(self):
        """Bring vectors up to date that a Graph computes in each batch."""


# Rows of a table, from its beginning, that ``least_squares`` solves together: the bits of a row
# depend on its place among these alone, so that a part of a table that begins and ends between two
# such groups is solved as in the whole.
SOLVED_TOGETHER = 32


class LeastSquaresTrainer(Trainer):
    """Solves the rows of two tables in turn, each with the other held fixed; see ``Trainer``.

    Parameters
    ----------
    backend : Backend
        Its ``least_squares`` solves them.
    sides : list of tuple
        Of each table, in the order of an epoch, the LeastSquaresProblem, whose factors are the rows
        of the other table, the Histories, and the rows; see ``Backend.least_squares``.
    n_threads : int
    """

    def __init__(self, backend, sides, n_threads):
        self._backend, self._sides, self._n_threads = backend, sides, n_threads

    def run_epoch(self):
        """Solve one table, then the other; return the loss, with all penalties."""
        for side in self._sides:
            losses = self._backend.least_squares(*side, self._n_threads)
        # They contain the penalties of the other table only.
        problem, _, rows = self._sides[0]
        return self.loss(losses, problem.penalties, rows)

    @staticmethod
    def loss(losses, penalties, rows):
        """Return the loss by those of the rows of one table, and the penalties of the other."""
        squares = np.einsum("nf,nf->n", rows, rows, dtype=np.float64)
        return losses.sum() + penalties.astype(np.float64) @ squares


class Stream(NamedTuple):
    """A stream of random numbers, each of which depends only on these three and its index."""

    seed: int
    time: int  #: epoch or step
    purpose: int  #: keeps the streams of an epoch apart


class Histories(NamedTuple):
    """The items of some users, sorted; rows of a CSR matrix."""

    starts: np.ndarray  #: (n_users + 1,), int64
    items: np.ndarray  #: (n,), int32
    weights: np.ndarray  #: (n,), float32


class DislikedItems(NamedTuple):
    """The items that some users dislike, as part of a user's loss in folding in."""

    starts: np.ndarray  #: (n_users + 1,), int64
    items: np.ndarray  #: (n,), int32
    shares: np.ndarray  #: (n,), weights divided by the sum of the user's histories, float32
    inverse: float  #: inverse temperature of pairs of an item of the history and a disliked one


class Exclusions(NamedTuple):
    """Items that must not be returned, in increasing order; all of them exist."""

    indptr: np.ndarray  #: (n_queries + 1,), int64
    indices: np.ndarray  #: (n,), of each query, int32
    for_all: np.ndarray  #: of all queries, int32


class Candidates(NamedTuple):
    """The only items that may be returned for each query, in increasing order; all exist."""

    indptr: np.ndarray  #: (n_queries + 1,), int64
    indices: np.ndarray  #: (n,), int32


class ItemLists(NamedTuple):
    """Which items may be returned for sparse queries."""

    allowed: np.ndarray  #: (n_items,), bool: whether for any query
    excluded: Candidates  #: the items that may not, for each query
    candidates: Candidates  #: the only ones that may, for each query, if ``has_candidates``
    has_candidates: bool


class RankedLists(NamedTuple):
    """Items that were found for each query, in descending order of relevance."""

    items: np.ndarray  #: (n, n_candidates), int32; -1 after the last
    relevances: np.ndarray  #: (n, n_candidates), float32, between 0 and 1


class ItemVectors(NamedTuple):
    """Unit vectors of items, or zeros, whose cosines are compared: dense ones, or sparse ones."""

    dense: np.ndarray  #: (n_items, d), float32; without rows if they are sparse
    sparse: Histories  #: a row for each item; without rows if they are dense
    n_columns: int


class AutoencoderProblem(NamedTuple):
    """The tables of an autoencoder, and its largest batch; a user has ``n_samples`` queries."""

    rule: UpdateRule
    input_width: int  #: of the vectors that are summed over histories
    item_width: int  #: of the vectors that queries are scored against
    n_unit: int  #: the first ``n_unit`` numbers of item vectors are scaled to unit length
    n_samples: int
    n_queries: int  #: queries of a batch
    n_positives: int  #: interactions of the users of a batch
    n_draws: int  #: negatives drawn for each query; 0 for the softmax over all items
    n_users: int = 0  #: of all batches, for the numbers of random draws
    n_hidden: int = 1  #: hidden layers of the encoder
    activation: str = "tanh"  #: of hidden layers, see ``freqfm._dense``
    dropout: float = 0.0  #: share of the sums of input vectors that are set to zero
    sampler: str = ""  #: as in ``RankingProblem``
    proposal_type: type | None = None  #: as in ``RankingProblem``
    formulas: dict = MappingProxyType({})  #: custom formulas, as in ``FMProblem``


class AutoencoderBatch(NamedTuple):
    """Users of a batch of an autoencoder, and how it is trained on them."""

    step: int  #: counted from 1, across epochs
    users: np.ndarray  #: (B,), rows of X
    positives: Histories
    inputs: Histories  #: of the encoder, normalised, some dropped
    inverse_temperature: float  #: float32
    kl_weight: float
    dropout: Stream  #: number u h + f is of element f of the sums, (B, h), of user u
    noise: Stream  #: number (s n_users + u) d + k is of element k of sample s of user u
    draws: Stream  #: of negatives
    #: Negatives and log q, each (B n_samples, n_draws), from a custom sampler; or None.
    drawn: tuple | None


class WordProblem(NamedTuple):
    """The description of a fit of word vectors, before the first epoch."""

    #: Whether the mean of a window predicts its token, or each of its tokens (skip-gram).
    cbow: bool
    window: int  #: largest distance between a position and its inputs
    shrink_windows: bool  #: whether the distance is drawn from 1 to ``window``, for each position
    n_negatives: int
    batch_size: int  #: positions
    longest: int  #: most inputs that a position can have, by the length of the documents
    #: Alias table of the noise: (n_tokens,) float32, and int32; see ``Backend.alias_tables``.
    thresholds: np.ndarray
    aliases: np.ndarray
    width: int  #: of the vectors
    rule: UpdateRule
    seed: int
    formulas: dict = MappingProxyType({})  #: custom formulas, as in ``FMProblem``


class Backend(ABC):
    """The operations that a kind of hardware provides to the models.

    A trainer is a context manager that holds what an epoch needs: packed data, scratch, threads.
    """

    #: Name of the device, such as "cpu".
    name: str
    #: Whether ``ranking_trainer`` takes problems with a Graph.
    propagates = False

    # Factorization machines.

    def label_tokens(self, indices, n_features):
        """Return the distinct tokens, increasing, and where each entry's token is among them.

        Parameters
        ----------
        indices : ndarray of shape (nnz,), int32
            The token of each entry.
        n_features : int
            Tokens are less than this.

        Returns
        -------
        tokens : ndarray of shape (n_tokens,), int32
        labels : ndarray of shape (nnz,), int32
        counts : ndarray of shape (n_tokens,), int32
            The number of entries of each token.
        """
        tokens, labels, counts = np.unique(indices, return_inverse=True, return_counts=True)
        return tokens, labels.astype(np.int32), counts.astype(np.int32)

    @abstractmethod
    def fm_trainer(self, problem, n_threads):
        """Return a trainer of whole epochs, fused: score, loss, gradient and step in one pass.

        A Trainer with the methods

        - ``run_epoch(epoch, n_steps, share=1.0)``, which trains every output on every row once,
          after ``n_steps`` steps, at ``share`` times all learning rates, and returns the sum of
          the weighted losses;
        - ``scores(rows)``, which returns the scores of rows from ``fm_rows``, by the present
          weights.

        Parameters
        ----------
        problem : FMProblem
        n_threads : int
        """

    def fm_rows(self, X):
        """Return rows to be scored several times, for instance a copy in a GPU's memory.

        Parameters
        ----------
        X : csr_array
            Canonical.

        Returns
        -------
        rows : object
            What ``fm_scores`` of this backend takes in place of ``X``.
        """
        return X

    @abstractmethod
    def fm_scores(self, X, weights, n_threads):
        """Return the scores of rows under every output, (n_outputs, n_rows) float32.

        Parameters
        ----------
        X : csr_array
            Canonical; or what ``fm_rows`` has returned.
        weights : list of FMWeights
        n_threads : int
        """

    @abstractmethod
    def expected_targets(self, loss_code, formulas, scores):
        """Return the targets that scores predict, (n,) float32.

        Parameters
        ----------
        loss_code : int
        formulas : dict
            Custom formulas, as in FMProblem.
        scores : ndarray of shape (n,), float32
        """

    @abstractmethod
    def loss_sums(self, loss_code, formulas):
        """Return a function of ScoredRows: their weighted sums of losses, and of derivatives.

        Derivatives are those by the scores. A function, because custom formulas take longer to find
        than the losses of some rows to sum.

        Parameters
        ----------
        loss_code, formulas : see ``expected_targets``
        """

    # Recommenders.

    @abstractmethod
    def ranking_trainer(self, problem, n_threads):
        """Return a RankingTrainer for a RankingProblem."""

    @abstractmethod
    def table_trainer(self, rule, n_threads, formulas=None):
        """Return a Trainer that moves tables along given gradients.

        It has the methods

        - ``begin_tables(tables, first_step, corrections)``, as ``RankingTrainer.begin_epoch``;
        - ``step_rows(name, rows, gradients, n, counts=None, mean=1.0)``: in the ``n``-th step of
          the epoch, from 1 on, some rows of a table, each once, move along their gradients,
          (n_rows, d) float32; a batch holds each of them ``counts`` times, or once, and the
          penalty of a decay of touched rows is multiplied by that times ``mean``;
        - ``catch_up_tables(n)``: all rows catch up on the steps they missed, up to the ``n``-th.

        Parameters
        ----------
        rule : UpdateRule
        n_threads : int
        formulas : dict, default=None
            Custom formulas, as in FMProblem.
        """

    @abstractmethod
    def propagation(self, X, n_threads):
        """Return an object that averages vectors over the layers of a graph of users and items.

        It has a method ``mean(users, items, n_layers, wanted=None)``, which returns the means of
        A^k E over k from 0 to ``n_layers``, E the rows of users and of items, as two tables that
        are valid until the next call. A has an element for each interaction, one over the root of
        the product of both numbers of neighbours. ``wanted`` are the rows of either side that are
        computed; None is all.

        Parameters
        ----------
        X : csr_array of shape (n_users, n_items)
            Canonical; its values are not used.
        n_threads : int
        """

    @abstractmethod
    def fold_in(self, problem, histories, n_threads, formulas=None, disliked=None):
        """Return unit vectors of users by their histories, with items held fixed.

        The loss of every disliked item j, of share d_j, is added: d_j sum_i w_i loss(s_i, s_j),
        where w_i are the shares of the history's items i, and s scores times the inverse
        temperature.

        Parameters
        ----------
        problem : FoldInProblem
        histories : Histories
            Items are rows of ``problem.items``.
        n_threads : int
        formulas : dict, default=None
            Custom formulas, as in FMProblem.
        disliked : DislikedItems, default=None
            Items are rows of ``problem.items``. Only the CPU takes them.

        Returns
        -------
        vectors : ndarray of shape (n_users, d), float32
            Zeros for a user without items.
        """

    @abstractmethod
    def least_squares(self, problem, histories, rows, n_threads):
        """Minimise the squared errors of the rows of a table; return their losses, float64.

        A row without entries becomes zeros.

        Parameters
        ----------
        problem : LeastSquaresProblem
        histories : Histories
            The entries of each row; items are rows of ``problem.factors``.
        rows : ndarray of shape (n_rows, d), float32
            Updated in place.
        n_threads : int
        """

    def least_squares_trainer(self, sides, n_threads):
        """Return a LeastSquaresTrainer; for parameters see there."""
        return LeastSquaresTrainer(self, sides, n_threads)

    # Autoencoders, samplers and metrics.

    @abstractmethod
    def autoencoder_trainer(self, problem, n_threads):
        """Return a trainer of an autoencoder, see ``FastVAERecommender`` for the model.

        A Trainer with the methods

        - ``begin_epoch(tables, first_step, corrections, proposal)`` with TrainedTables by name,
          input vectors, item vectors and the dense layers, in this order;
        - ``train(batches)``, of an iterable of AutoencoderBatch: an iterator over the loss of each,
          summed over users and including the weighted KL divergence; the sum of the weights of its
          positives; and the derivative of the loss by the inverse temperature. A user's queries are
          scored against all items, or against items drawn for it;
        - ``catch_up(step)``: rows catch up on the steps they missed, up to this one.

        Parameters
        ----------
        problem : AutoencoderProblem
        n_threads : int
        """

    @abstractmethod
    def word2vec_trainer(self, problem, n_threads):
        """Return a Trainer of word vectors by negative sampling.

        It has the methods

        - ``begin_tables(tables, first_step, corrections)``, as ``RankingTrainer.begin_epoch``, with
          TrainedTables "vectors", of inputs, and "output_vectors";
        - ``train(epoch, tokens, learns=True)``: a pass over tokens, int32, with -1 before, between
          and after documents; a step for every ``batch_size`` of them, the last one shorter. It
          returns the sum of the losses before each step, and the number of samples. If not
          ``learns``, no row moves;
        - ``catch_up_tables(n)``: rows catch up on the steps they missed, up to the ``n``-th.

        The inputs of position p are the tokens around it within its document, and not further than
        ``window``, or than 1 + (b >> 33) mod ``window``, with b the bits of number p in the stream
        of the seed and the epoch. Its outputs are its token and ``n_negatives`` draws of noise: the
        bits of number j of the stream ``hash64(key + p)`` draw number j, from 1 on, the upper half
        the slot of the alias table, the lower half the alternative; draws that are the token itself
        do not count. Every pair of an input (or, with ``cbow``, of the mean of the inputs) and an
        output adds the log loss of its dot product: of target 1 for the token, 0 for noise.

        Parameters
        ----------
        problem : WordProblem
        n_threads : int
        """

    @abstractmethod
    def sum_histories(self, histories, table, n_threads):
        """Return the sums of weights times rows of a table, (n_users, d) float32.

        Parameters
        ----------
        histories : Histories
        table : ndarray of shape (n_items, d), float32
        n_threads : int
        """

    @abstractmethod
    def draw(self, proposal, queries, key, n):
        """Return items drawn for each query, and the logarithms of their probabilities.

        Parameters
        ----------
        proposal : Proposal
        queries : ndarray of shape (n_queries, d), float32
        key : uint64
            Of the random stream.
        n : int

        Returns
        -------
        ids : ndarray of shape (n_queries, n), int32
        log_q : ndarray of shape (n_queries, n), float32
            log(n_items Q(item | query)).
        """

    @abstractmethod
    def draw_lists(self, proposal, stream, first, shape, n_threads=1):
        """Return lists of items from a distribution that needs no query.

        List ``i`` is row ``i`` of what ``draw`` returns for the key of the stream. Its item ``j``
        depends only on random number ``j`` of ``hash64(key of the stream + i)``.

        Parameters
        ----------
        proposal : Proposal
            One that does not depend on a query.
        stream : Stream
        first : int
            Number of the first list in the stream.
        shape : tuple of int
            How many lists, and their length.
        n_threads : int, default=1

        Returns
        -------
        ids : ndarray of that shape, int32
        """

    @abstractmethod
    def alias_tables(self, starts, weights):
        """Return alias tables of cells of positions.

        To draw from a cell, draw one of its positions uniformly; keep it with the probability of
        its threshold, else take its alias. Positions are then drawn in proportion to the weights.

        Parameters
        ----------
        starts : ndarray of shape (n_cells + 1,), int64
        weights : ndarray of shape (n,), float64

        Returns
        -------
        thresholds : ndarray of shape (n,), float32
        aliases : ndarray of shape (n,), int32
        """

    @abstractmethod
    def top_k(self, queries, items, k, excluded, unit_columns, n_threads):
        """Return the items with the largest dot products for each query, and these dot products.

        Parameters
        ----------
        queries : ndarray of shape (n_queries, d), float32
        items : ndarray of shape (n_items, d), float32
        k : int
            At most n_items.
        excluded : Exclusions
        unit_columns : int
            Number of leading columns of ``items`` that are scaled to unit length.
        n_threads : int

        Returns
        -------
        found : ndarray of shape (n_queries, k), int32
            Best first, equal scores in the order of items; -1 where there is no further item.
        scores : ndarray of shape (n_queries, k), float32
            -inf where there is no item. Items whose score is NaN or -inf are never found.
        """

    @abstractmethod
    def top_k_of_candidates(self, queries, items, k, candidates, excluded, unit_columns, n_threads):
        """Return the best of each query's candidates, by dot products.

        Parameters and results are those of :meth:`top_k`; ``candidates`` is a Candidates.
        """

    @abstractmethod
    def sparse_top_k(self, queries, columns, k, lists, n_threads):
        """Return the items with the largest positive scores for sparse queries, and the scores.

        Parameters
        ----------
        queries : Histories
            The entries of each query, by columns.
        columns : Histories
            The entries of each column, by items. The score of an item is its dot product with the
            query, the products added up in the order of the columns.
        k : int
            At most n_items.
        lists : ItemLists
        n_threads : int

        Returns
        -------
        found : ndarray of shape (n_queries, k), int32
            Best first, equal scores in the order of items; -1 where there is no further item.
        scores : ndarray of shape (n_queries, k), float32
            -inf where there is no item.
        """

    @abstractmethod
    def sparse_blocks(self, matrix, items, n_threads):
        """Return the rows and columns of lists of items of a matrix, (n, k, k) float32.

        Parameters
        ----------
        matrix : Histories
            A square sparse matrix.
        items : ndarray of shape (n, k), int32
            No item twice in a list; -1 after the last of one, where blocks are zero.
        n_threads : int
        """

    @abstractmethod
    def diversify(self, lists, vectors, diversity, k, n_threads):
        """Choose items by maximal marginal relevance, (1 - diversity) r - diversity c.

        With r, the relevance of an item, and c, its largest cosine with those chosen before; 0 for
        the first.

        Parameters
        ----------
        lists : RankedLists
        vectors : ItemVectors
            The cosine with a vector of zeros is 0.
        diversity : float
            Between 0 and 1.
        k : int
            How many are chosen, at most n_candidates.
        n_threads : int

        Returns
        -------
        chosen : ndarray of shape (n, k), int32
            Places in the lists, of equal items the first; -1 where there is no further item.
        """

    # Random numbers.

    @abstractmethod
    def permutation(self, stream, n):
        """Return the integers below ``n``, sorted by their random bits, int64.

        Parameters
        ----------
        stream : Stream
        n : int
        """

    @abstractmethod
    def uniform(self, stream, indices):
        """Return numbers in [0, 1), float32, of the shape of their indices in the stream.

        Parameters
        ----------
        stream : Stream
        indices : ndarray of int64
        """

    @abstractmethod
    def standard_normal(self, stream, indices):
        """Return standard normal numbers; for parameters see ``uniform``."""
