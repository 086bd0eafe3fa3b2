"""A report of a recommender as HTML: metrics, by popularity and length of history, and examples."""

from html import escape
from pathlib import Path

import numpy as np
from sklearn.utils import Bunch

from freqfm._input.rows import split_signs, take_rows
from freqfm._input.validation import check_count
from freqfm._messages import cut, shown
from freqfm._paths import check_path
from freqfm.displays._plots import rank_held_out
from freqfm.metrics import ndcg_at_k, ranking_report, recall_at_k, stratified_ndcg_at_k
from freqfm.metrics._hits import as_csr, check_item_counts, find_hits, strata, top_k
from freqfm.model_selection._holdout import last_step, transform

_STYLE = """
.freqfm-report {font: 14px/1.5 system-ui, sans-serif; max-width: 60em; color-scheme: light dark}
.freqfm-report table {border-collapse: collapse; margin: .5em 0 1.5em}
.freqfm-report th, .freqfm-report td {padding: .2em .9em .2em 0; text-align: right;
  border-bottom: 1px solid #8884}
.freqfm-report th:first-child, .freqfm-report td:first-child {text-align: left}
.freqfm-report b {color: #1a9850}
.freqfm-report dt {color: #888}
"""


class RankingReport:
    """Report of a recommender as HTML, compared with the most popular items.

    It shows ranking metrics, by popularity of items and by length of histories, and examples of
    recommendations. In a notebook it is displayed; :meth:`to_html` writes it to a file. Every
    figure is compared with recommending the most popular items that a user does not have.

    Parameters
    ----------
    relevant : {sparse matrix, array-like} of shape (n_users, n_items)
        Held-out items.
    ranked : array-like of int, of shape (n_users, k)
        Items recommended to every user, best first; -1 for missing ones.
    history : {sparse matrix, array-like} of shape (n_users, n_items)
        Items that the users had before; they are not recommended.
    item_counts : array-like of shape (n_items,), default=None
        How often each item occurs in training; None counts ``history``.
    item_names : array-like of str of shape (n_items,), default=None
        For the examples; the numbers of the columns if None.
    item_vectors : {array-like, sparse matrix} of shape (n_items, n_dimensions), default=None
        Features of the items for the diversity of the lists.
    n_examples : int, default=3
        Number of users shown as examples, from high to low NDCG.
    name : str, default="model"
        Name of the recommender.

    Attributes
    ----------
    metrics : dict of str to dict
        :func:`freqfm.metrics.ranking_report` of the model, and of "most popular".
    n_users : int
        Number of users with held-out items, of whom the metrics are means.
    ndcg_intervals : dict of str to tuple of float
        95 % confidence intervals of the mean NDCG (the mean plus and minus 1.96 standard errors)
        of the model, of "most popular", and of the "difference" of the two for the same user. NaN
        if there is one user.
    by_popularity : dict of str to Bunch
        For "popular", "neutral" and "unpopular" items, as in
        :func:`freqfm.metrics.stratified_ndcg_at_k`: ``n_items``, their number; their shares of
        all ``interactions``, of the ``held_out`` and of the ``recommended`` ones, and their part
        of the ``ndcg``.
    by_history : list of Bunch
        Users in up to four groups of equal size, by the length of their history, from ``shortest``
        to ``longest``: ``n_users`` with held-out items, ``ndcg``, ``recall`` and ``ndcg_popular``,
        that of the most popular items.
    user_names : sequence or None
        Names of the rows in the HTML's examples: the ids that an ``InteractionRecommender`` has of
        its users; None are the numbers of the rows.
    examples : list of Bunch
        ``user``, the row; columns of the ``history``, ``recommended`` and ``held_out`` items; and
        the ``ndcg``.

    Raises
    ------
    TypeError, ValueError
        If shapes do not match, and as in :func:`freqfm.metrics.ndcg_at_k`.

    Examples
    --------
    >>> from freqfm import MFRecommender
    >>> from freqfm.datasets import make_interactions
    >>> from freqfm.displays import RankingReport
    >>> from freqfm.model_selection import holdout_interactions
    >>> X = make_interactions(200, 100, 4000, random_state=0)
    >>> history, held_out = holdout_interactions(X, 0.2, random_state=0)
    >>> model = MFRecommender(8, max_iter=5, random_state=0).fit(history)
    >>> report = RankingReport.from_estimator(model, held_out, k=10)
    >>> sorted(report.metrics)
    ['MFRecommender', 'most popular']
    >>> len(report.by_history), len(report.examples)
    (4, 3)
    >>> report.to_html()[:8]
    '<section'
    """

    def __init__(
        self,
        relevant,
        ranked,
        history,
        *,
        item_counts=None,
        item_names=None,
        item_vectors=None,
        n_examples=3,
        name="model",
    ):
        relevant, history = as_csr("relevant", relevant), as_csr("history", history)
        # Dislikes are no items to find, and no part of what users like.
        (relevant, _), (history, _) = split_signs(relevant), split_signs(history)
        _check_shapes(relevant, history, item_names)
        if name in ("most popular", "difference"):
            raise ValueError(f"name={shown(name)} is that of another figure; give another name.")
        # Items are looked up by position, also in a Series with an index.
        self.item_names = None if item_names is None else np.asarray(item_names, dtype=object)
        self.user_names = None
        self.name = name
        hits = find_hits(relevant, ranked)
        self.k = hits.ranked.shape[1]
        if item_counts is None:
            item_counts = np.bincount(history.indices, minlength=relevant.shape[1])
        item_counts = check_item_counts(item_counts, *relevant.shape[::-1])
        popular = _most_popular(item_counts, history, self.k)
        self.metrics = {
            one: ranking_report(relevant, found, item_counts=item_counts, item_vectors=item_vectors)
            for one, found in {name: hits.ranked, "most popular": popular}.items()
        }
        ndcg, popular_ndcg = (
            ndcg_at_k(relevant, found, average=False) for found in (hits.ranked, popular)
        )
        values = {name: ndcg, "most popular": popular_ndcg, "difference": ndcg - popular_ndcg}
        self.n_users = int(np.isfinite(ndcg).sum())
        self.ndcg_intervals = {one: _interval(value) for one, value in values.items()}
        parts = stratified_ndcg_at_k(relevant, ranked, item_counts)
        stratum = strata(item_counts, (0.05, 0.2), hits)
        self.by_popularity = _by_popularity(relevant, hits.ranked, item_counts, stratum, parts)
        recall = recall_at_k(relevant, hits.ranked, average=False)
        by_user = {"ndcg": ndcg, "recall": recall, "ndcg_popular": popular_ndcg}
        self.by_history = _by_history(by_user, np.diff(history.indptr))
        n_examples = check_count("n_examples", n_examples) if n_examples else 0
        self.examples = _examples(relevant, hits.ranked, history, ndcg, n_examples)

    @classmethod
    def from_estimator(cls, estimator, relevant, *, history=None, k=10, **options):
        """Recommend with a fitted recommender and report.

        Parameters
        ----------
        estimator : recommender, Pipeline or search
        relevant : {sparse matrix, array-like} of shape (n_users, n_items), or table
            Held-out items; for :class:`~freqfm.InteractionRecommender` a table of held-out
            interactions.
        history : {sparse matrix, array-like} of shape (n_users, n_items), default=None
            Histories to recommend from; None takes the users seen in fit, in order.
        k : int, default=10
            Length of the lists.
        **options : dict
            As in the constructor. By default the users and items of an ``InteractionRecommender``
            have their ids as names, and ``name`` is that of the recommender's class.

        Returns
        -------
        report : RankingReport

        Raises
        ------
        TypeError, ValueError
            If the arguments do not match the recommender.
        """
        transformers, recommender = last_step(estimator)
        relevant, ranked, model, users = rank_held_out(estimator, relevant, k, history)
        defaults = {"name": type(recommender).__name__, "item_counts": model.item_counts_}
        if model is not recommender:
            defaults["item_names"] = recommender.item_ids_
        if users is None:
            history = transform(transformers, history)
        else:
            known = model._history
            history = take_rows(known.matrix((known.n_users, relevant.shape[1])), users)
        report = cls(relevant, ranked, history, **{**defaults, **options})
        if model is not recommender:
            report.user_names = recommender.user_ids_[users]
        return report

    def __repr__(self):
        own = self.metrics[self.name]
        return f"RankingReport({cut(self.name)}, ndcg@{self.k}={own[f'ndcg@{self.k}']:.4f})"

    def _repr_html_(self):
        return self.to_html()

    def to_html(self, path=None):
        """Return the report as a section of HTML, or write it to a file.

        Parameters
        ----------
        path : str or path-like, default=None
            File to which a complete HTML page is written.

        Returns
        -------
        html : str or None
            None if it was written.
        """
        title = f"{_escaped(self.name)}: recommendations of {self.k} items"
        body = (
            f'<section class="freqfm-report"><style>{_STYLE}</style><h2>{title}</h2>'
            f"{self._metrics_html()}{self._popularity_html()}{self._history_html()}"
            f"{self._examples_html()}</section>"
        )
        if path is None:
            return body
        page = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        page = f"{page}<body>{body}</body></html>\n"
        Path(check_path("path", path)).write_text(page, encoding="utf-8")
        return None

    def _metrics_html(self):
        rows = [
            [name, *(f"{values[name]:.4f}" for values in self.metrics.values())]
            for name in self.metrics[self.name]
        ]
        texts = {
            name: f"{low:.4f} to {high:.4f}" for name, (low, high) in self.ndcg_intervals.items()
        }
        rows.append([f"95 % interval of ndcg@{self.k}", *map(texts.get, self.metrics)])
        return (
            f"<p>Means over the {self.n_users:,} users with held-out items. The 95 % interval of "
            f"the difference in NDCG is {texts['difference']}.</p>"
        ) + _table(["", *self.metrics], rows)

    def _popularity_html(self):
        head = ["items", "number", "interactions", "held out", "recommended", "part of NDCG"]
        rows = [
            [
                name,
                part.n_items,
                *(f"{part[key]:.1%}" for key in ("interactions", "held_out", "recommended")),
                f"{part.ndcg:.4f}",
            ]
            for name, part in self.by_popularity.items()
        ]
        return "<h3>By popularity</h3>" + _table(head, rows)

    def _history_html(self):
        head = ["items in the history", "users", "NDCG", "recall", "NDCG of the most popular"]
        rows = [
            [
                f"{group.shortest} to {group.longest}",
                group.n_users,
                *(f"{group[key]:.4f}" for key in ("ndcg", "recall", "ndcg_popular")),
            ]
            for group in self.by_history
        ]
        return "<h3>By length of history</h3>" + _table(head, rows)

    def _examples_html(self):
        parts = []
        for example in self.examples:
            found = set(example.held_out.tolist())
            lists = {
                "history": self._names(example.history),
                "recommended (held-out items in bold)": self._names(example.recommended, found),
                "held out": self._names(example.held_out),
            }
            items = "".join(f"<dt>{name}</dt><dd>{text}</dd>" for name, text in lists.items())
            user = example.user if self.user_names is None else self.user_names[example.user]
            title = f"User {_escaped(user)}, NDCG {example.ndcg:.3f}"
            parts.append(f"<h4>{title}</h4><dl>{items}</dl>")
        return "<h3>Examples</h3>" + "".join(parts) if parts else ""

    def _names(self, items, bold=(), most=20):
        names = []
        for item in items[:most].tolist():
            text = _escaped(item if self.item_names is None else self.item_names[item])
            names.append(f"<b>{text}</b>" if item in bold else text)
        if len(items) > most:
            names.append(f"and {len(items) - most} more")
        return ", ".join(names)


def _check_shapes(relevant, history, item_names):
    """Check that histories and names belong to the users and items of ``relevant``."""
    if not relevant.nnz:
        raise ValueError(
            f"relevant holds no item of any of its {relevant.shape[0]} users; give held-out items."
        )
    if history.shape != relevant.shape:
        raise ValueError(
            f"history has the shape {history.shape}, but relevant {relevant.shape}; give a row "
            f"for each user and a column for each item in both."
        )
    n_items = relevant.shape[1]
    if item_names is not None and np.shape(item_names) != (n_items,):
        raise ValueError(
            f"item_names has the shape {np.shape(item_names)}, but relevant has {n_items} "
            f"columns; give one name for each item."
        )


def _most_popular(item_counts, history, k):
    """Return the most popular items that each user does not have."""
    users = np.ones((history.shape[0], 1), dtype=np.float32)
    # Ranks instead of counts, which may not fit into float32.
    _, ranks = np.unique(item_counts, return_inverse=True)
    return top_k(users, ranks.reshape(-1, 1).astype(np.float32), k, exclude=history)[0]


def _by_popularity(relevant, ranked, item_counts, stratum, ndcg):
    """Return the figures of each stratum of items; ``ndcg`` are its parts of the NDCG."""
    sums = {
        "n_items": np.ones(len(stratum)),
        "interactions": item_counts,
        "held_out": np.bincount(relevant.indices, minlength=len(stratum)),
        "recommended": np.bincount(ranked[ranked >= 0], minlength=len(stratum)),
    }
    sums = {name: np.bincount(stratum, values, minlength=3) for name, values in sums.items()}
    with np.errstate(invalid="ignore"):
        shares = {name: numbers / numbers.sum() for name, numbers in sums.items()}
    return {
        part: Bunch(
            n_items=int(sums["n_items"][code]),
            **{name: float(share[code]) for name, share in shares.items() if name != "n_items"},
            ndcg=value,
        )
        for code, (part, value) in enumerate(ndcg.items())
    }


def _interval(values):
    """Return a 95 % confidence interval of the mean of one number for each user, or NaN."""
    values = values[np.isfinite(values)]
    if len(values) < 2:
        return float("nan"), float("nan")
    half = 1.96 * values.std(ddof=1) / len(values) ** 0.5
    return float(values.mean() - half), float(values.mean() + half)


def _by_history(by_user, lengths):
    """Return the figures of users in groups by the lengths of their histories."""
    users = np.flatnonzero(np.isfinite(by_user["ndcg"]))
    users = users[np.argsort(lengths[users], kind="stable")]
    return [
        Bunch(
            shortest=int(lengths[part[0]]),
            longest=int(lengths[part[-1]]),
            n_users=len(part),
            **{name: float(value[part].mean()) for name, value in by_user.items()},
        )
        for part in np.array_split(users, 4)
        if len(part)
    ]


def _examples(relevant, ranked, history, values, n):
    """Return users at equal distances in descending order of their NDCG."""
    users = np.flatnonzero(~np.isnan(values))
    users = users[np.argsort(-values[users], kind="stable")]
    n = min(n, len(users))
    places = ((np.arange(n) + 0.5) * len(users) / max(n, 1)).astype(int)
    return [
        Bunch(
            user=int(user),
            ndcg=float(values[user]),
            history=_row(history, user),
            recommended=ranked[user][ranked[user] >= 0],
            held_out=_row(relevant, user),
        )
        for user in users[places]
    ]


def _row(matrix, row):
    return matrix.indices[matrix.indptr[row] : matrix.indptr[row + 1]]


def _escaped(value):
    """Return a value as text of HTML; characters that cannot be encoded are escaped."""
    return escape(cut(value))


def _table(head, rows):
    cells = "".join(f"<th>{_escaped(cell)}</th>" for cell in head)
    lines = [
        "<tr>" + "".join(f"<td>{_escaped(cell)}</td>" for cell in row) + "</tr>" for row in rows
    ]
    return f"<table><tr>{cells}</tr>{''.join(lines)}</table>"
