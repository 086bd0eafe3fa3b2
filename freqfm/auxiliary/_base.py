"""The base class of auxiliary terms: a value and gradients for the vectors of a batch."""

from abc import abstractmethod
from typing import NamedTuple

import numpy as np
from scipy import sparse

from freqfm._components import Component


class TermEpoch(NamedTuple):
    """What an auxiliary term may use at the beginning of an epoch, to read."""

    epoch: int  #: number of the epoch, from 0 on; continued fits go on counting
    generator: np.random.Generator  #: of this epoch and term
    X: sparse.csr_array  #: all interactions that the model is trained on
    user_vectors: np.ndarray  #: of all users, (n_users, d), float32
    item_vectors: np.ndarray  #: of all items, (n_items, d), float32
    backbone: object  #: what computes the vectors, bound to ``X``
    tables: dict  #: that the backbone computes them from, by its names
    n_threads: int  #: how many threads may be used; results must not depend on it


class TermBatch(NamedTuple):
    """A batch, as an auxiliary term gets it, to read: vectors cannot be written to."""

    number: int  #: of the batch in its epoch, from 0 on
    users: np.ndarray  #: (n_users_of_batch,), each once and in ascending order
    items: np.ndarray  #: (n_items_of_batch,), positives and negatives
    #: Of ``users``, (len(users), d), float32; (n_views, len(users), d) if the term has views.
    user_vectors: np.ndarray
    item_vectors: np.ndarray  #: likewise of ``items``
    pair_users: np.ndarray  #: (n_pairs,), of each positive, its user's place in ``users``
    pair_items: np.ndarray  #: (n_pairs,), its item's place in ``items``
    pair_weights: np.ndarray  #: (n_pairs,), float32
    #: (n_negatives,), of each negative its place in ``items``, without items that the user has;
    #: None if negatives are not drawn for each positive, or no term ``uses_negatives``.
    negative_items: np.ndarray | None = None
    negative_pairs: np.ndarray | None = None  #: likewise, which of the pairs it was drawn for
    epoch: int = 0  #: number of the epoch, from 0 on
    generator: np.random.Generator | None = None  #: of this epoch, batch and term
    user_counts: np.ndarray | None = None  #: (n_users,), interactions of all users of the model
    item_counts: np.ndarray | None = None  #: (n_items,), of all items
    state: object = None  #: what ``begin_epoch`` has returned

    @property
    def positive_items(self):
        """The places in ``items`` of the items that are positives, each once."""
        return np.unique(self.pair_items)

    @property
    def both_vectors(self):
        """The vectors of users, and those of items."""
        return self.user_vectors, self.item_vectors


class AuxiliaryTerm(Component):
    """Base class of auxiliary terms: what training minimises beside the loss.

    A term is a function of the vectors of a batch's users and items, such as a contrast of two
    views, or a penalty on scores of popular items. Training minimises, over the batches of an
    epoch, the mean loss of the batch's positives plus the values of all terms. A term returns its
    value and the gradients with respect to the vectors; the backbone turns these into gradients of
    its tables, together with those of the loss.

    A custom term derives from this class and defines ``value_and_gradients`` in NumPy.
    :func:`~freqfm.testing.check_component` compares its gradients with differences of values.

    *Calls*: ``check_backbone`` when ``fit`` begins; ``begin_epoch``, then ``views``, before each
    epoch; ``value_and_gradients`` once in each batch, in order.

    *Scale*: the value is that of a batch, comparable with the mean loss of a positive, and includes
    the term's own weight: nothing is multiplied afterwards, except that optimizers which sum over a
    batch, rather than average, take the term as often as the batch has positives.

    *Random numbers* come from the ``generator`` of the epoch or the batch, which depends on
    ``random_state``, the epoch, the batch and the term's place in the list only. So a fit that is
    resumed has the same ones.

    *State*: a term holds hyper-parameters and nothing that is learned. What it needs to know beside
    a batch, ``begin_epoch`` computes from the model as it is then, and batches get it as ``state``.
    So checkpoints store nothing for a term: a resumed epoch computes the same state. State must not
    be kept longer than an epoch.

    *Threads*: NumPy's products run on one thread within these calls.
    """

    #: Whether the term needs a backbone whose vectors depend on ``bind``'s interactions.
    needs_graph = False
    #: Whether the term reads the negatives of a batch, which take time to look up.
    uses_negatives = True

    def check_backbone(self, backbone):
        """Raise a ValueError if the term cannot be used with a backbone; the default never does.

        Parameters
        ----------
        backbone : Backbone
            As the estimator was given it.
        """

    def begin_epoch(self, epoch):
        """Return the state of an epoch, which each of its batches gets; the default is None.

        Parameters
        ----------
        epoch : TermEpoch

        Returns
        -------
        state : object
        """
        return None

    def views(self, epoch):
        """Return backbones that compute the vectors which the term gets, in place of the model's.

        Each is a backbone over the model's own tables, such as the model's on a graph with fewer
        edges, ``epoch.backbone.bind(X, epoch.n_threads)``. The vectors of all views are stacked,
        and the gradients of each are propagated through its backbone. The default is an empty list:
        the term gets the model's vectors.

        Parameters
        ----------
        epoch : TermEpoch

        Returns
        -------
        views : list of Backbone
        """
        return []

    @abstractmethod
    def value_and_gradients(self, batch):
        """Return the value of the term for a batch, and its gradients with respect to the vectors.

        Parameters
        ----------
        batch : TermBatch

        Returns
        -------
        value : float
        user_gradients : ndarray of the shape of ``batch.user_vectors``, or None
            The derivatives by the vectors of users; None if the value does not depend on them.
        item_gradients : ndarray of the shape of ``batch.item_vectors``, or None
        """
