"""The backbone of matrix factorization: a vector for each user and each item."""

from freqfm.backbones._base import Backbone


class Linear(Backbone):
    """A row of a table for each user and each item: matrix factorization.

    The default of :class:`~freqfm.MFRecommender`, which trains it with compiled code that gathers,
    compares and updates rows in one pass. The methods here do the same in separate steps.

    Examples
    --------
    >>> from freqfm import MFRecommender
    >>> from freqfm.backbones import Linear
    >>> MFRecommender(backbone=Linear()).backbone
    Linear()
    """

    @property
    def is_linear(self):
        """Whether vectors are the rows of the tables, see :class:`Backbone`."""
        return type(self) is Linear  # a subclass may do something else

    def start(self, n_users, n_items, draw):
        """Return a table of users and one of items, see :class:`Backbone`."""
        return {"user_factors": draw("user"), "item_factors": draw("item")}

    def forward(self, tables, users, items):
        """Return rows of both tables, see :class:`Backbone`."""
        return tables["user_factors"][users], tables["item_factors"][items], (users, items)

    def backward(self, tables, context, user_gradients, item_gradients):
        """Return the gradients unchanged, see :class:`Backbone`."""
        users, items = context
        return {"user_factors": (users, user_gradients), "item_factors": (items, item_gradients)}

    def occurrences(self, context, user_counts, item_counts):
        """Return the counts unchanged, see :class:`Backbone`."""
        users, items = context
        return {"user_factors": (users, user_counts), "item_factors": (items, item_counts)}
