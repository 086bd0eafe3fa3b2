"""The base class of losses in NumPy: functions of the vectors of a batch."""

from abc import abstractmethod

from freqfm.losses._ranking import BPR, RankingLoss


class VectorLoss(RankingLoss):
    """Base class of losses of the vectors of a batch, for those that are no formula of two scores.

    A custom loss derives from this class and defines ``value_and_gradients`` in NumPy. Training
    minimises it in place of the losses that are compiled; otherwise it is as an auxiliary term, see
    :class:`~freqfm.auxiliary.AuxiliaryTerm`: which calls there are, what they get, how gradients
    are checked, with which backbones. Each positive has ``n_negatives`` negatives, drawn uniformly
    or by a class derived from :class:`~freqfm.samplers.Uniform`.

    The last ``n_parts`` numbers of a vector are parts of the user or of the item alone, such as a
    bias, rather than coordinates. Users are folded in by their coordinates alone, with zeros as
    parts, and similar items are those with similar coordinates. Rankings are by dot products of
    what ``ranked`` makes of the vectors.

    Examples
    --------
    Logistic regression, in which the bias of an item is left out of rankings:

    >>> import numpy as np
    >>> from freqfm import MFRecommender
    >>> from freqfm.datasets import make_interactions
    >>> from freqfm.losses import VectorLoss
    >>> class WithoutBias(VectorLoss):
    ...     n_parts = 1
    ...
    ...     def value_and_gradients(self, batch):
    ...         of_negatives = batch.pair_users[batch.negative_pairs], batch.negative_items
    ...         users, items = np.hstack([(batch.pair_users, batch.pair_items), of_negatives])
    ...         is_positive = np.arange(len(users)) < len(batch.pair_users)
    ...         u, i = batch.user_vectors[users], batch.item_vectors[items]
    ...         scores = (u[:, :-1] * i[:, :-1]).sum(axis=1) + i[:, -1]
    ...         value = np.logaddexp(0, np.where(is_positive, -scores, scores)).sum()
    ...         slopes = 1 / (1 + np.exp(-scores)) - is_positive
    ...         of_users, of_items = map(np.zeros_like, batch.both_vectors)
    ...         np.add.at(of_users[:, :-1], users, slopes[:, None] * i[:, :-1])
    ...         np.add.at(of_items[:, :-1], items, slopes[:, None] * u[:, :-1])
    ...         np.add.at(of_items[:, -1], items, slopes)
    ...         n = len(batch.pair_users)
    ...         return value / n, of_users / n, of_items / n
    ...
    ...     def ranked(self, side, vectors):
    ...         return vectors * np.append(np.ones(vectors.shape[1] - 1, dtype=np.float32), 0)
    >>> X = make_interactions(50, 20, 400, random_state=0)
    >>> model = MFRecommender(4, loss=WithoutBias(), max_iter=3, random_state=0).fit(X)
    >>> model.recommend(users=[0], n_recommendations=2)[0].shape
    (1, 2)
    """

    _compiled = False
    # Its lists of negatives: one for each positive. The kernel is not called.
    family = "pairwise"
    similarity = "dot"
    ranking = "dot"
    has_temperature = False
    n_negatives = 1
    block = 1
    optimizer = "rowwise_adagrad"
    rate_falls = True
    fold_in_pairwise = True
    fold_in_inverse_temperatures = (1.0, 1.0)
    n_fold_in = 512
    #: The ``PairwiseLoss`` of coordinates by which users are folded in.
    fold_in_loss = BPR()
    divergence_hint = "a larger weight_decay"
    #: How many of the last numbers of a vector are no coordinates.
    n_parts = 0
    #: As of auxiliary terms.
    needs_graph = False
    uses_negatives = True

    def check_backbone(self, backbone):
        """Raise a ValueError if a backbone cannot be used, see ``AuxiliaryTerm``."""

    def begin_epoch(self, epoch):
        """Return the state of an epoch, see ``AuxiliaryTerm``."""
        return None

    def views(self, epoch):
        """Return backbones that compute other vectors, see ``AuxiliaryTerm``."""
        return []

    @abstractmethod
    def value_and_gradients(self, batch):
        """Return the mean loss of a positive, and its gradients with respect to the vectors.

        Parameters
        ----------
        batch : TermBatch
            With the negatives of each positive.

        Returns
        -------
        value : float
        user_gradients : ndarray of the shape of ``batch.user_vectors``, or None
        item_gradients : ndarray of the shape of ``batch.item_vectors``, or None
        """

    def ranked(self, side, vectors):
        """Return vectors of users or items whose dot products are the scores of rankings.

        Parameters
        ----------
        side : {"user", "item"}
        vectors : ndarray of shape (n, n_components)
            As trained.

        Returns
        -------
        vectors : ndarray of the same shape
            Coordinates may be scaled, and parts be anything. The default leaves out parts.
        """
        if not self.n_parts:
            return vectors
        ranked = vectors.copy()
        ranked[:, -self.n_parts :] = 0
        return ranked
