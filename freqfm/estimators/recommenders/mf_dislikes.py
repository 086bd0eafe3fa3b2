"""Dislikes in the training of matrix factorization: pairs of a like and a dislike of one user.

Beside its loss of likes, each epoch lowers the pairwise loss of every dislike j of a user u and one
like i of that user, drawn at random ::

    sum_uj |x_uj| loss(w s_ui, w s_uj),

with the scores s that the loss compares, the user's inverse temperature w, and the weight |x_uj| of
the dislike. The loss is that of the model if it is pairwise, else that of BPR, log(1 + exp(b - a)).
A dislike so is a negative of its user whatever the loss, the sampler and the backbone are.
"""

import contextlib
import functools

import numpy as np

from freqfm import backends
from freqfm.backends.base import Batches, ContextGroup
from freqfm.losses import BPR, PairwiseLoss
from freqfm.samplers import Uniform

# The random stream of the likes that dislikes are compared with, beside those of ``MFTrainer``.
_LIKES = 5

# Dislikes may weigh this many times as much as likes: an epoch has a pair for each unit of weight.
_LARGEST_RATIO = 100


class PairsOfDislikes:
    """A mixin before a trainer: epochs over dislikes, each compared with likes of its user.

    ``X`` are the dislikes, of users that have likes among ``known``. A dislike occurs in an epoch
    as often as its weight is the mean weight of likes, a fraction by chance: a batch averages, and
    an optimizer may divide by the size of gradients, so that a factor would not count.
    """

    def _shuffle(self, epoch):
        """Return the pairs of an epoch: rows of a like, whose lists of negatives are a dislike."""
        generator = np.random.default_rng([self._seed, epoch, _LIKES])
        likes, weights = self._known.X, self._weights
        often = weights / likes.data.mean(dtype=np.float64)
        times = (often + generator.random(len(weights))).astype(np.int64)
        times[0] = max(times[0], 1)
        pairs = generator.permutation(np.repeat(np.arange(len(weights)), times))
        users, n_pairs = self._user_of[pairs], len(pairs)
        self._disliked = self.X.indices[pairs]
        n_batches = -(-n_pairs // self._batch_size)
        self._batch_starts = np.linspace(0, n_pairs, n_batches + 1).astype(np.int64)
        liked = generator.integers(likes.indptr[users], likes.indptr[users + 1])
        return Batches(
            items=likes.indices[liked],
            weights=np.ones(n_pairs, dtype=np.float32),
            row_starts=np.arange(n_pairs + 1),
            row_users=users,
            batch_starts=self._batch_starts,
        )

    def _negatives(self, epoch, first, last, generator):
        return self._disliked[self._batch_starts[first] : self._batch_starts[last], None]


@functools.cache
def _of_pairs(trainer):
    """Return the class of a trainer of pairs, for the class of a trainer of likes."""
    return type(f"{trainer.__name__}OfDislikes", (PairsOfDislikes, trainer), {})


def with_dislikes_trained(task, dislikes):
    """Return a task that trains on dislikes too, before the likes of each epoch.

    Parameters
    ----------
    task : MFTrainer
    dislikes : csr_array of shape (n_users, n_items)
        Those of users with likes; canonical.

    Raises
    ------
    ValueError
        If the task trains on a GPU, or dislikes outweigh likes by far.
    """
    if task._backend is not backends.get():
        raise ValueError(
            f"dislikes are trained on the CPU only, but device={task.model.device!r} trains on "
            f"{task.device}; set device='cpu', or leave dislikes out."
        )
    ratio = _total(dislikes) / _total(task.X)
    if ratio > _LARGEST_RATIO:
        raise ValueError(
            f"The dislikes of X weigh {ratio:.3g} times as much as its likes, and are trained on "
            f"as often; divide their values, so that it is at most {_LARGEST_RATIO} times."
        )
    components = task.components
    loss = components.loss if isinstance(components.loss, PairwiseLoss) else BPR()
    components = components._replace(
        loss=loss,
        sampler=Uniform(),
        temperature=None,
        n_negatives=1,
        block=1,
        include_positive=False,
        margins=False,
        auxiliary=(),
    )
    arguments = components, dislikes, task._known, None, task._n_threads
    return TrainedWithDislikes(task, _of_pairs(type(task))(task.model, *arguments))


def _total(X):
    return X.data.sum(dtype=np.float64)


class TrainedWithDislikes(ContextGroup):
    """A task for the epoch loop, see ``TrainingTask``: that of likes, after that of dislikes.

    Both change the same arrays, and count the optimizer's steps together.
    """

    def __init__(self, likes, dislikes):
        self._likes, self._dislikes = likes, dislikes
        self._share = _total(dislikes.X) / _total(likes.X)

    def __getattr__(self, name):
        return getattr(self._likes, name)

    def _contexts(self):
        return [self._likes, self._dislikes]

    def run_epoch(self, epoch):
        """Train on every dislike and every like once; return the loss per weight of a like."""
        with self._coordinates():
            of_dislikes = self._dislikes.run_epoch(epoch)
        return self._share * of_dislikes + self._likes.run_epoch(epoch)

    @contextlib.contextmanager
    def _coordinates(self):
        """Let numbers of vectors that are no coordinates be 0, with gradients of 0."""
        n_parts, tables = self._likes.components.loss.n_parts, self._likes.model._tables()
        parts = [table[:, -n_parts:] for table in tables.values()] if n_parts else []
        kept = [part.copy() for part in parts]
        for part in parts:
            part[:] = 0
        yield
        for part, values in zip(parts, kept, strict=True):
            part[:] = values
