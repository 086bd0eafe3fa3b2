"""SimGCL: the contrast of vectors with two kinds of noise."""

import numpy as np

from freqfm._components import NON_NEGATIVE, POSITIVE
from freqfm.auxiliary._base import AuxiliaryTerm
from freqfm.auxiliary._contrast import info_nce_of_views


class SimGCL(AuxiliaryTerm):
    """The contrast of two noisy views of each vector, after SimGCL.

    To each vector, noise of the length ``noise`` is added twice, in a random direction of the
    vector's own orthant. With the views x' and x'' of a user, cosines, and sums over the users v of
    the batch, the term is the mean of ::

        -log(exp(cos(x'_u, x''_u) / t) / sum_v exp(cos(x'_u, x''_v) / t))

    over users, plus the same over the items that are positives in the batch, times ``weight``. It
    makes vectors more uniform on the sphere. The paper, which the paper of Adap-tau cites as
    SimSGL, adds noise in every layer of LightGCN [1]_; here it is added to the mean over layers, so
    that the term can be used with any backbone.

    Parameters
    ----------
    weight : float, default=0.03
        Factor of the term.
    noise : float, default=0.1
        Length of the noise.
    temperature : float, default=0.2
        Divisor of the cosines.

    References
    ----------
    .. [1] J. Yu, H. Yin, X. Xia, T. Chen, L. Cui, Q. V. H. Nguyen. "Are Graph Augmentations
       Necessary? Simple Graph Contrastive Learning for Recommendation". SIGIR 2022, equations (3),
       (7) and (8).

    Examples
    --------
    >>> from freqfm import MFRecommender
    >>> from freqfm.auxiliary import SimGCL
    >>> from freqfm.backbones import LightGCN
    >>> from freqfm.datasets import make_interactions
    >>> X = make_interactions(200, 100, 4000, random_state=0)
    >>> backbone = LightGCN(propagate="batch")
    >>> model = MFRecommender(16, backbone=backbone, loss="bpr", auxiliary=SimGCL(), max_iter=2)
    >>> model.fit(X).item_factors_.shape
    (100, 16)
    """

    uses_negatives = False
    _parameter_constraints = {
        "weight": NON_NEGATIVE,
        "noise": NON_NEGATIVE,
        "temperature": POSITIVE,
    }

    def __init__(self, weight=0.03, *, noise=0.1, temperature=0.2):
        self.weight = weight
        self.noise = noise
        self.temperature = temperature

    def value_and_gradients(self, batch):
        """Return the contrast of a batch, see :class:`AuxiliaryTerm`."""
        users, items = (self._noisy(of, batch.generator) for of in batch.both_vectors)
        value, *by_views = info_nce_of_views(batch, users, items, self.weight, self.temperature)
        return value, *(of_side.sum(axis=0) for of_side in by_views)

    def _noisy(self, vectors, generator):
        """Return two views of vectors."""
        return np.stack([vectors + self._noise(vectors, generator) for _ in range(2)])

    def _noise(self, vectors, generator):
        noise = generator.random(vectors.shape, dtype=np.float32)
        noise *= np.float32(self.noise) / np.linalg.norm(noise, axis=1, keepdims=True)
        return np.copysign(noise, vectors)
