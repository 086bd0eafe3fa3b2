"""The HTML report of a recommender: its figures, its users, its text."""

import itertools
from html.parser import HTMLParser

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from scipy import sparse
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MaxAbsScaler

from freqfm import InteractionRecommender, MFRecommender
from freqfm.datasets import make_interactions
from freqfm.displays import RankingReport
from freqfm.metrics import ranking_report
from freqfm.model_selection import holdout_interactions

HISTORY, HELD_OUT = holdout_interactions(
    make_interactions(50, 40, 700, random_state=0), 0.3, random_state=0
)
MODEL = {"n_components": 4, "max_iter": 2, "random_state": 0}


@pytest.fixture(scope="module")
def model():
    return MFRecommender(**MODEL).fit(HISTORY)


@pytest.fixture(scope="module")
def report(model):
    return RankingReport.from_estimator(model, HELD_OUT, k=10, item_vectors=np.eye(40))


class TextOf(HTMLParser):
    def __init__(self, html):
        super().__init__()
        self.tags, self.texts = [], []
        self.feed(html)
        assert not self.tags

    def handle_starttag(self, tag, attrs):
        if tag != "meta":
            self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.tags.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def test_figures_are_those_of_the_metrics(model, report):
    ranked, _ = model.recommend(users=np.arange(50), n_recommendations=10)
    counts = model.item_counts_
    expected = ranking_report(HELD_OUT, ranked, item_counts=counts, item_vectors=np.eye(40))
    assert report.metrics["MFRecommender"] == expected


def test_the_most_popular_items_are_new_to_the_user():
    history = np.array([[1, 1, 0, 0], [0, 0, 0, 1]])
    relevant, ranked = np.array([[0, 0, 1, 1], [0, 1, 0, 0]]), [[3, 2], [0, 1]]
    found = RankingReport(relevant, ranked, history, item_counts=[1, 9, 9, 2**24 + 1])
    # Items 3 and 2 for the first user, 1 and 2 for the second.
    assert found.metrics["most popular"]["ndcg@2"] == 1


def test_parts_add_up(report):
    parts = report.by_popularity.values()
    assert sum(part.n_items for part in parts) == 40
    for name in ("interactions", "held_out", "recommended"):
        assert sum(part[name] for part in parts) == pytest.approx(1)
    ndcg = report.metrics["MFRecommender"]["ndcg@10"]
    assert sum(part["ndcg"] for part in parts) == pytest.approx(ndcg)

    groups = report.by_history
    assert all(a.longest <= b.shortest for a, b in itertools.pairwise(groups))
    n_users = [group.n_users for group in groups]
    assert (
        sum(n_users) == np.count_nonzero(HELD_OUT.sum(axis=1)) and max(n_users) - min(n_users) < 2
    )
    assert np.average([group.ndcg for group in groups], weights=n_users) == pytest.approx(ndcg)


def test_intervals_are_of_the_means_over_users():
    # Two users of whom the first one's item is found by the model, the other one's by popularity.
    relevant = np.array([[0, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0]])
    found = RankingReport(relevant, [[2], [2], [0]], 0 * relevant, item_counts=[1, 9, 3, 3])
    assert found.n_users == 2
    assert found.ndcg_intervals["model"] == pytest.approx((0.5 - 0.98, 0.5 + 0.98))
    assert found.ndcg_intervals["most popular"] == pytest.approx((0.5 - 0.98, 0.5 + 0.98))
    assert found.ndcg_intervals["difference"] == pytest.approx((-1.96, 1.96))
    html = found.to_html()
    assert "the 2 users with held-out items" in html and "is -1.9600 to 1.9600." in html
    alone = RankingReport(relevant[:1], [[2]], 0 * relevant[:1], item_counts=[1, 9, 3, 3])
    assert alone.n_users == 1 and np.isnan(alone.ndcg_intervals["difference"]).all()


def test_examples_from_high_to_low(model, report):
    values = [example.ndcg for example in report.examples]
    assert len(values) == 3 and values == sorted(values, reverse=True)
    for example in report.examples:
        ranked, _ = model.recommend(users=[example.user], n_recommendations=10)
        assert_array_equal(example.recommended, ranked[0])
        assert_array_equal(example.history, np.flatnonzero(HISTORY.toarray()[example.user]))
        assert_array_equal(example.held_out, np.flatnonzero(HELD_OUT.toarray()[example.user]))


def test_html(tmp_path):
    relevant, history = sparse.csr_array([[0, 0, 1]]), sparse.csr_array([[1, 0, 0]])
    names = ["a<b", "b & c", "d"]
    found = RankingReport(
        relevant, [[2, 1]], history, item_names=names, name="<model>", n_examples=1
    )
    html = found._repr_html_()
    texts = TextOf(html).texts
    assert html == found.to_html()
    assert {"<model>: recommendations of 2 items", "a<b", "d", "1.0000"} <= {*texts}
    assert not any("method" in text for text in texts)
    assert "<b>d</b>, b &amp; c" in html
    assert repr(found) == "RankingReport(<model>, ndcg@2=1.0000)"
    found.to_html(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>") and html in page
    TextOf(page.removeprefix("<!doctype html>"))


def test_html_of_names_that_no_file_holds(tmp_path):
    names = ["\ud800half", "two\nlines", "x" * 10**6]
    relevant, history = sparse.csr_array([[0, 1, 1]]), sparse.csr_array([[1, 0, 0]])
    found = RankingReport(relevant, [[2, 1]], history, item_names=names, name="\udfff")
    found.user_names = ["\x1b[2J"]
    found.to_html(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert r"\ud800half" in page and "two lines" in page and r"User \x1b[2J," in page
    assert r"<h2>\udfff: recommendations" in page
    assert len(page) < 10**4


def test_histories_given_and_pipelines(report):
    pipeline = make_pipeline(MaxAbsScaler(), MFRecommender(**MODEL)).fit(HISTORY)
    found = RankingReport.from_estimator(pipeline, HELD_OUT, history=HISTORY, k=10)
    assert found.k == 10 and len(found.examples) == 3
    assert found.by_popularity["popular"].n_items == 2
    assert found.metrics["most popular"].items() <= report.metrics["most popular"].items()


def test_named_items():
    table = np.array([[f"u{u}", f"i{i}"] for u, i in np.argwhere(HISTORY.toarray())])
    held_out = np.array([[f"u{u}", f"i{i}"] for u, i in np.argwhere(HELD_OUT.toarray()[:5])])
    model = InteractionRecommender(MFRecommender(**MODEL)).fit(table)
    found = RankingReport.from_estimator(model, held_out, k=5, n_examples=2)
    assert found.metrics.keys() == {"InteractionRecommender", "most popular"}
    texts = " ".join(TextOf(found.to_html()).texts)
    assert all(item in texts for item in model.item_ids_[found.examples[0].recommended])
    # The users of the held-out table, in the model's order: not its first rows.
    found = RankingReport.from_estimator(model, held_out[held_out[:, 0] == "u3"], k=5)
    assert found.examples[0].user == 0 and "<h4>User u3, " in found.to_html()
    with pytest.raises(ValueError, match="leave history and users at None"):
        RankingReport.from_estimator(model, held_out, history=HISTORY)


def test_names_in_a_series_are_taken_by_position(model):
    pd = pytest.importorskip("pandas")
    names = pd.Series([f"film {i}" for i in range(40)], index=range(40, 0, -1))
    one, other = (
        RankingReport.from_estimator(model, HELD_OUT, history=HISTORY, k=3, item_names=given)
        for given in (names, names.to_numpy())
    )
    assert one.to_html() == other.to_html()


def test_held_out_items_that_are_not_those_of_the_model_are_refused(model):
    for relevant, message in (
        (HELD_OUT[:, :30], r"relevant has the shape \(50, 30\), but the model knows 40 items"),
        (sparse.vstack([HELD_OUT] * 2), r"relevant has the shape \(100, 40\), but .* 50 users"),
    ):
        with pytest.raises(ValueError, match=message):
            RankingReport.from_estimator(model, relevant)
    assert RankingReport.from_estimator(model, HELD_OUT[:30]).k == 10
    table = InteractionRecommender(MFRecommender(**MODEL)).fit(np.argwhere(HISTORY.toarray()))
    for relevant, error, message in (
        (HELD_OUT, TypeError, "X is a sparse matrix .* np.column_stack"),
        (None, ValueError, "Expected 2D array"),
        ([("ann", "tea")], TypeError, "X's column of users"),
    ):
        with pytest.raises(error, match=f"relevant cannot be used: {message}"):
            RankingReport.from_estimator(table, relevant)


def test_refused(model):
    ranked = np.zeros((50, 1), dtype=int)
    with pytest.raises(ValueError, match=r"history has the shape \(3, 40\), but relevant"):
        RankingReport(HELD_OUT, ranked, HISTORY[:3])
    with pytest.raises(ValueError, match=r"item_names has the shape \(2,\)"):
        RankingReport(HELD_OUT, ranked, HISTORY, item_names=["a", "b"])
    for name in ("most popular", "difference"):
        with pytest.raises(ValueError, match=f"name='{name}' is that of another figure"):
            RankingReport(HELD_OUT, ranked, HISTORY, name=name)
    with pytest.raises(TypeError, match=r"n_examples=2\.5"):
        RankingReport(HELD_OUT, ranked, HISTORY, n_examples=2.5)
    for counts, error, message in (
        (np.ones(39), ValueError, r"item_counts has the shape \(39,\), but relevant has 40 col"),
        (np.ones(50), ValueError, "give one count for each item. They look like counts of users"),
        ([[1], [1, 2]], ValueError, "item_counts cannot be read as an array"),
        (["a"] * 40, TypeError, "item_counts holds <U1; give a number for every item"),
        (-np.ones(40), ValueError, "item_counts must be finite and not negative"),
    ):
        with pytest.raises(error, match=message):
            RankingReport(HELD_OUT, ranked, HISTORY, item_counts=counts)
    with pytest.raises(ValueError, match="relevant holds no item of any of its 50 users; give"):
        RankingReport(HELD_OUT * 0, ranked, HISTORY)
    with pytest.raises(TypeError, match="no method recommend"):
        RankingReport.from_estimator(MaxAbsScaler(), HELD_OUT)
