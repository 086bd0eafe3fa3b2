"""Splitters of interactions for cross-validation and searches."""

from dataclasses import KW_ONLY, dataclass
from itertools import pairwise

import numpy as np
from sklearn.model_selection import BaseCrossValidator
from sklearn.utils import Bunch

from freqfm._input.interactions import InteractionTable
from freqfm._input.validation import check_flag, check_fraction, check_integer, draw_seed


class _InteractionSplitter(BaseCrossValidator):
    """Shared parts of the splitters: reading X, and turning masks of test rows into indices.

    Each has ``_masks``, which yields the training rows and the test rows as masks.
    """

    n_splits = 1
    _fewest_splits = 1

    def split(self, X, y=None, groups=None):
        """Generate indices of training and test interactions.

        Parameters
        ----------
        X : array-like or DataFrame of shape (n_interactions, n_columns)
            Users, items and other columns that the splitter reads, one interaction per row.
        y : object, default=None
            Ignored.
        groups : object, default=None
            Ignored.

        Yields
        ------
        train : ndarray
            Indices of the training interactions, in ascending order.
        test : ndarray
            Indices of the test interactions, in ascending order.
        """
        for train, test in self._masks(InteractionTable(X)):
            yield np.flatnonzero(train), np.flatnonzero(test)

    def get_n_splits(self, X=None, y=None, groups=None):
        """Return the number of splits.

        Parameters
        ----------
        X, y, groups : object
            Ignored.

        Returns
        -------
        n_splits : int
        """
        return check_integer("n_splits", self.n_splits, self._fewest_splits)

    def _codes(self, table, **roles):
        """Return codes of users and items, and the positions of further columns."""
        places = table.find(user=self.user, item=self.item, **roles)
        return [codes for _, codes in table.codes(places)], places

    def _count(self, users, train, test, left_out):
        """Add the sizes of a split, of masks of rows, to ``split_sizes_``."""
        n_users = users.max() + 1
        known, tested, others = (
            np.bincount(users[mask], minlength=n_users) > 0 for mask in (train, test, left_out)
        )
        sizes = Bunch(
            n_train=int(train.sum()),
            n_train_users=np.count_nonzero(known),
            n_test=int(test.sum()),
            n_test_users=np.count_nonzero(tested),
            n_left_out=int(left_out.sum()),
            n_left_out_users=np.count_nonzero(others & ~tested),
        )
        self.split_sizes_.append(sizes)
        if self.verbose:
            print(
                f"split {len(self.split_sizes_)}: train {sizes.n_train:,} interactions of "
                f"{sizes.n_train_users:,} users, test {sizes.n_test:,} of {sizes.n_test_users:,}, "
                f"leave out {sizes.n_left_out:,} (all of {sizes.n_left_out_users:,} users)"
            )


class WarmStartKFold(_InteractionSplitter):
    """Folds in which every user and every item of the test part also occurs in the training part.

    Matrix factorization has no vectors for users and items that it has not seen. With
    :class:`~sklearn.model_selection.KFold` a score therefore depends both on how well the model
    ranks and on how many new users and items are in a fold by chance. Here every interaction is
    tested once, except if its user or its item would be without training data: such interactions
    are in all training sets.

    Parameters
    ----------
    n_splits : int, default=5
        Number of folds, at least 2.
    shuffle : bool, default=True
        Whether interactions are assigned to folds at random; else by the order of ids and rows.
    random_state : int, RandomState, Generator or None, default=None
        Seed of ``shuffle``.
    user, item : int or str, default="auto"
        Columns of users and items, as in :class:`~freqfm.InteractionRecommender`.

    See Also
    --------
    LeaveLastOut : Tests the last interactions of every user.
    GlobalTimeSplit : Tests the interactions after a point in time.

    Notes
    -----
    Rows that repeat a pair of user and item belong to the same fold, since a pair known from
    training is not recommended again. The test parts are disjoint and about equally large.

    Examples
    --------
    >>> from freqfm.model_selection import WarmStartKFold
    >>> X = [("ann", "tea"), ("ann", "jam"), ("bob", "tea"), ("bob", "jam"), ("eve", "jam")]
    >>> for train, test in WarmStartKFold(2, random_state=2).split(X):
    ...     print([X[row] for row in test])
    [('ann', 'tea'), ('bob', 'jam')]
    [('ann', 'jam'), ('bob', 'tea')]
    """

    _fewest_splits = 2

    def __init__(self, n_splits=5, *, shuffle=True, random_state=None, user="auto", item="auto"):
        self.n_splits = n_splits
        self.shuffle = shuffle
        self.random_state = random_state
        self.user = user
        self.item = item

    def _masks(self, table):
        shuffle = check_flag("shuffle", self.shuffle)
        n_splits = self.get_n_splits()
        (users, items), _ = self._codes(table)
        pairs, pair_of_row = np.unique(users * (items.max() + 1) + items, return_inverse=True)
        users, items = np.divmod(pairs, items.max() + 1)
        # More folds than pairs could not all be filled.
        n_splits = min(n_splits, len(pairs) + 1)
        order = np.arange(len(pairs))
        if shuffle:
            generator = np.random.default_rng(draw_seed(self.random_state))
            order = generator.permutation(len(pairs))
            users_order = generator.permutation(users.max() + 1)
            order = order[np.argsort(users_order[users[order]], kind="stable")]
        fold = _warm_folds(users, items, order, n_splits)
        sizes = np.bincount(fold[fold >= 0], minlength=n_splits)
        if not sizes.all():
            raise ValueError(
                f"n_splits={self.n_splits} is too large for X: only {sizes.sum()} of its "
                f"{len(pairs)} pairs of user and item can be tested; the others are needed to "
                f"train on every user and item. Give more interactions or ask for fewer folds."
            )
        fold = fold[pair_of_row]
        for k in range(n_splits):
            yield fold != k, fold == k


def _warm_folds(users, items, order, n_splits):
    """Return the fold of each distinct pair, or -1 for those that are always trained on.

    A pair can be tested if its user and its item have pairs outside the fold. So no user may have
    all pairs in one fold; pairs in -1 are outside every fold, and moving more pairs there never
    violates the condition for others.
    """
    fold = np.full(len(users), -1)
    several = (np.bincount(users)[users] > 1) & (np.bincount(items)[items] > 1)
    # In ``order`` the pairs of a user are adjacent, so numbering them in turn spreads them over the
    # folds. The folds of items are checked below.
    order = order[several[order]]
    fold[order] = np.arange(len(order)) % n_splits
    lowest = np.full(items.max() + 1, n_splits)
    highest = np.full(items.max() + 1, -1)
    np.minimum.at(lowest, items, fold)
    np.maximum.at(highest, items, fold)
    stuck = (lowest == highest) & (lowest >= 0)
    candidates = order[stuck[items[order]]]
    fold[candidates[np.unique(items[candidates], return_index=True)[1]]] = -1
    return fold


@dataclass(eq=False, repr=False)
class LeaveLastOut(_InteractionSplitter):
    """One split: the last interactions of every user are tested, all others are trained on.

    Parameters
    ----------
    n : int, default=1
        How many interactions of a user are tested. Users with no more than ``n`` are used only for
        training.
    time : int, str, "auto" or None, default="auto"
        Column of times: numbers, dates, an ordered category, or numbers and ISO 8601 dates given
        as text. Times whose order is not clear are refused: other text, numbers in different
        units, dates of which only some have a time zone, a day beside an hour of it, truth values,
        complex numbers. "auto" is a
        DataFrame's column "timestamp", "time", "date" or the like; without names, the fourth
        after users, items and values. None means that the rows are ordered by time. Of equal
        times the later row counts as later.
    drop_repeated : bool, default=True
        Whether to leave out test interactions that repeat a pair of user and item of the training
        part: a recommender that excludes what a user has seen cannot find them.
    user, item : int or str, default="auto"
        Columns of users and items, as in :class:`~freqfm.InteractionRecommender`.
    verbose : int, default=0
        1 prints the sizes of each split, as in ``split_sizes_``.

    Attributes
    ----------
    split_sizes_ : list of Bunch
        Of each split since the last call of :meth:`split`: the numbers of interactions to train on
        and to test, ``n_train`` and ``n_test``, and those of their users, ``n_train_users`` and
        ``n_test_users``; ``n_left_out``, the number of interactions that ``drop_repeated``
        leaves out of the test; and ``n_left_out_users``, the number of users of whom it leaves
        nothing to test.

    See Also
    --------
    GlobalTimeSplit : No training interaction is later than a tested one.

    Notes
    -----
    Training parts may contain interactions that are later than the tested ones of other users, so
    a model may use trends that it could not have known at the time. A tested item may be missing
    from the training part:
    :meth:`InteractionRecommender.score <freqfm.InteractionRecommender.score>` leaves such items
    out.

    Examples
    --------
    >>> from freqfm.model_selection import LeaveLastOut
    >>> X = [("ann", "tea", 1, 30), ("ann", "jam", 1, 10), ("bob", "tea", 1, 20)]
    >>> [(train, test)] = LeaveLastOut().split(X)
    >>> test
    array([0])
    """

    n: int = 1
    _: KW_ONLY
    time: str | int | None = "auto"
    drop_repeated: bool = True
    user: str | int = "auto"
    item: str | int = "auto"
    verbose: int = 0

    def _masks(self, table):
        n = check_integer("n", self.n, 1)
        drop_repeated = check_flag("drop_repeated", self.drop_repeated)
        (users, items), places = self._codes(table, time=self.time)
        order = np.lexsort((_times(table, places), users))
        counts = np.bincount(users)
        # The number of later interactions of the same user.
        later = np.cumsum(counts)[users[order]] - 1 - np.arange(len(order))
        test = np.zeros(len(users), dtype=bool)
        test[order] = (later < n) & (counts[users[order]] > n)
        last, train = test.copy(), ~test
        if drop_repeated:
            test &= ~_repeated(users, items, train)
        if not test.any():
            raise ValueError(
                f"n={n} leaves nothing to test: no user of X has more than {n} interaction(s)"
                f"{', with the last of new items' if drop_repeated else ''}. Lower n, or give "
                f"more interactions{', or set drop_repeated=False' if drop_repeated else ''}."
            )
        self.split_sizes_ = []
        self._count(users, train, test, last & ~test)
        yield train, test


@dataclass(eq=False, repr=False)
class GlobalTimeSplit(_InteractionSplitter):
    """Train on interactions before a point in time, test on all later ones.

    With several splits there are several such points: each split tests the time up to the next
    point, and the training part grows, as in :class:`~sklearn.model_selection.TimeSeriesSplit`.

    Parameters
    ----------
    n_splits : int, default=1
        Number of points in time.
    test_fraction : float, default=0.2
        Share of the interactions in each test part, before any are left out; interactions at the
        same time stay together. ``n_splits * test_fraction`` must be less than 1.
    time : int, str, "auto" or None, default="auto"
        Column of times, as in :class:`LeaveLastOut`.
    drop_cold : bool, default=True
        Whether to leave out test interactions of users or items that are not in the training
        part.
    drop_repeated : bool, default=True
        Whether to leave out test interactions that repeat a pair of the training part, as in
        :class:`LeaveLastOut`.
    user, item : int or str, default="auto"
        Columns of users and items, as in :class:`~freqfm.InteractionRecommender`.
    verbose : int, default=0
        1 prints the sizes of each split, as in ``split_sizes_``.

    Attributes
    ----------
    split_sizes_ : list of Bunch
        Of each split since the last call of :meth:`split`: the numbers of interactions to train on
        and to test, ``n_train`` and ``n_test``, and those of their users, ``n_train_users`` and
        ``n_test_users``; ``n_left_out``, the number of interactions that ``drop_cold`` and
        ``drop_repeated`` leave out of the test; and ``n_left_out_users``, the number of users of
        whom they leave nothing to test.

    See Also
    --------
    LeaveLastOut : Tests all users, each at the user's latest times.

    Examples
    --------
    >>> from freqfm.model_selection import GlobalTimeSplit
    >>> X = [("ann", "tea", 1, 30), ("ann", "jam", 1, 10), ("bob", "tea", 1, 20)]
    >>> [(train, test)] = GlobalTimeSplit(test_fraction=0.4).split(X)
    >>> train, test
    (array([1, 2]), array([0]))
    >>> X += [("eve", "tea", 1, 40), ("bob", "jam", 1, 50)]
    >>> splitter = GlobalTimeSplit(test_fraction=0.4, verbose=1)
    >>> [(train, test)] = splitter.split(X)
    split 1: train 3 interactions of 2 users, test 1 of 1, leave out 1 (all of 1 users)
    >>> splitter.split_sizes_[0].n_test
    1
    """

    n_splits: int = 1
    _: KW_ONLY
    test_fraction: float = 0.2
    time: str | int | None = "auto"
    drop_cold: bool = True
    drop_repeated: bool = True
    user: str | int = "auto"
    item: str | int = "auto"
    verbose: int = 0

    def shares(self):
        """Return the shares of the interactions before each point in time, and at the end 1."""
        n_splits = self.get_n_splits()
        fraction = check_fraction("test_fraction", self.test_fraction)
        if n_splits * fraction >= 1:
            raise ValueError(
                f"n_splits={n_splits} times test_fraction={fraction} is {n_splits * fraction:g}, "
                f"which leaves nothing to train on; it must stay below 1."
            )
        return 1 - fraction * np.arange(n_splits, -1, -1)

    def _masks(self, table):
        shares = self.shares()
        drop_cold = check_flag("drop_cold", self.drop_cold)
        drop_repeated = check_flag("drop_repeated", self.drop_repeated)
        (users, items), places = self._codes(table, time=self.time)
        times = _times(table, places)
        n_rows = len(times)
        first = np.minimum(np.round(shares * n_rows).astype(int), n_rows - 1)
        points = np.sort(times)[first]
        points[-1] = times.max() + 1
        self.split_sizes_ = []
        for start, end in pairwise(points):
            train = times < start
            window = (times >= start) & (times < end)
            test = window.copy()
            if drop_cold:
                test &= np.isin(users, users[train]) & np.isin(items, items[train])
            if drop_repeated:
                test &= ~_repeated(users, items, train)
            if not (train.any() and test.any()):
                part = "test" if train.any() else "train on"
                raise ValueError(
                    f"test_fraction={self.test_fraction} and n_splits={self.n_splits} make a split "
                    f"with nothing to {part}: too many interactions of X share a time, are of new "
                    f"users or items, or repeat earlier ones. Set other values, or drop_cold=False "
                    f"and drop_repeated=False."
                )
            self._count(users, train, test, window & ~test)
            yield train, test


def _repeated(users, items, train):
    """Return a mask of the interactions that repeat a pair of the training part."""
    pairs = users * (items.max() + 1) + items
    return np.isin(pairs, pairs[train])


def _times(table, places):
    """Return the ranks of the rows in time."""
    place = places["time"]
    return np.arange(table.shape[0]) if place is None else table.ranks(place)
