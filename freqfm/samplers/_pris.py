"""Draws from clusters of items, with importance weights."""

from dataclasses import KW_ONLY, dataclass

import numpy as np
from sklearn.utils._param_validation import StrOptions

from freqfm._components import POSITIVE_INTEGER
from freqfm._numba.jit import ZERO
from freqfm.formulas.cells import Cells, draw_from_cells
from freqfm.formulas.sampling_laws import dot_with_row, turn_into_weights
from freqfm.samplers._base import QuerySampler
from freqfm.samplers._midx import MIDX, log_weights_of_cells


class WeightedCells(Cells):
    """Draws from cells; log_q is minus the log of the weight of a draw, relative to the mean.

    Weights are in proportion to exp(<q, v_i>) / Q(i | q).
    """

    __slots__ = ()

    @staticmethod
    def draw(proposal, query, key, ids, log_q, numbers, sums):
        """Draw items, and compare their scores with the log-probabilities of their draws."""
        draw_from_cells(proposal, query, key, ids, log_q, numbers, sums)
        for j in range(ids.shape[0]):
            score = dot_with_row(query, proposal.vectors, np.uint64(ids[j]))
            log_q[j] = score - log_q[j]
        turn_into_weights(log_q)

    @staticmethod
    def log_q_of(proposal, query, item, numbers, sums):
        """Return zero: a positive has the mean weight."""
        return ZERO

    def arrays(self, width):
        """Return the type and the shape of each array, for item vectors of a given width."""
        return {**super().arrays(width), "vectors": (np.float32, (self.n_items, width))}


@dataclass(eq=False, repr=False)
class PRIS(QuerySampler):
    """Draws from clusters of items, weighted as draws from the softmax of scores [1]_.

    A draw for a query q takes two steps: a cluster c by its centroid, in proportion to
    ``W_c exp(<q, centroid_c>)``, and an item of it in proportion to its weight, of which W_c is the
    sum over the cluster. Of the n draws j of a positive each then has the importance weight ::

        w_j ~ exp(<q, v_j>) / Q(j | q),   sum_j w_j = 1,

    a constant in the gradient, so that the weighted mean over draws estimates the mean over items
    drawn from the softmax of the scores: hard negatives count more. :class:`~freqfm.losses.BPR`
    and other losses of pairs use these weights, with known items left out of the sum; a softmax
    multiplies exponentials by ``n w_j``, as for :class:`SelfAdversarial`, which is the same for
    uniform draws.

    Parameters
    ----------
    within : {"popularity", "uniform"}, default="popularity"
        The weights of items: by the logarithm of their counts, as ``MIDX(popularity="log")``, or
        equal.
    n_clusters : int, default=16
        Number of clusters. More are closer to the softmax, and weights then differ less.
    refresh : int, default=1
        Epochs between updates of clusters and vectors, each starting from the last centroids.

    Attributes
    ----------
    proposal_ : Proposal
        After ``fit``: the distribution, as arrays.
    item_vectors_ : ndarray of shape (n_items, d), float32

    Notes
    -----
    Clusters are those of ``MIDX(n_subspaces=1)``, found by k-means, and follow the vectors in every
    epoch, by two steps from the last centroids. In the paper's joint form centroids are learned by
    gradients, of a loss of their own scores and of the squared distance between an item and its
    centroid; k-means minimises the latter.

    Weights are by the vectors of the last update, and by the user's current vector. ``log_proba``
    returns the probabilities of the draws, ``sample`` minus the logarithms of ``n_items n w_j``.

    Memory for M items and K clusters: 4 (K + M) d bytes, and 8 ("uniform") or 32 per item. A query
    costs K d multiplications, a draw d.

    References
    ----------
    .. [1] D. Lian, Q. Liu, E. Chen. "Personalized Ranking with Importance Sampling". WWW 2020.

    Examples
    --------
    >>> import numpy as np
    >>> from freqfm.samplers import PRIS
    >>> sampler = PRIS("uniform", n_clusters=2).fit([[0.0], [1.0], [3.0], [4.0]], random_state=0)
    >>> np.exp(sampler.log_proba([[1.0]])).round(3)  # centroids 0.5 and 3.5
    array([[0.024, 0.024, 0.476, 0.476]])
    """

    weighted = True
    proposal_type = WeightedCells
    _parameter_constraints = {
        "within": [StrOptions({"popularity", "uniform"})],
        "n_clusters": POSITIVE_INTEGER,
        "refresh": POSITIVE_INTEGER,
    }

    within: str = "popularity"
    _: KW_ONLY
    n_clusters: int = 16
    refresh: int = 1

    def proposal(self, counts, vectors, seed, previous=None):
        """Return the distribution for the current item vectors, see :class:`QuerySampler`."""
        clusters = MIDX(self.within, n_codewords=self.n_clusters, n_subspaces=1)
        cells = clusters.proposal(counts, vectors, seed, previous)
        return WeightedCells(*cells._replace(vectors=vectors))

    def _log_weights(self, queries):
        return log_weights_of_cells(self.proposal_, queries)
