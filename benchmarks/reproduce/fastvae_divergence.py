"""FastVAE (Chen et al., WWW 2022), figure 2: how close do proposals come to the softmax?

On the data and with the autoencoder of fastvae.py, before training and after (full softmax, at the
epoch chosen on validation), for 200 users: the KL divergence of every proposal Q from the softmax
P, KL(Q, P), and KL(P, Q) beside it. Proposals are uniform, by popularity, of DNS, of the quadratic
kernel (up to 32 components) and of MIDX, both variants with 16 and 64 codewords; MIDX in its exact
form should have none. Beside the tables stands the largest share of the bound of theorem 5.3 that
is reached; the picture shows one user's cumulative probabilities, items by popularity.

Scores are dot products of queries and item vectors, whose last number is the bias. With
``--similarity cosine`` queries are unit vectors divided by the temperature, and item vectors have
unit length but for the bias. Here MIDX quantizes vectors and biases together; in training it takes
the biases as they are.

    python benchmarks/reproduce/fastvae_divergence.py --data DIR --out results
    python benchmarks/reproduce/fastvae_divergence.py --data DIR --data-set ml1m --similarity cosine
    python benchmarks/reproduce/fastvae_divergence.py --quick

Finished runs go to ``--results`` (default: fastvae.jsonl in ``--out``, as those of fastvae.py,
whose full softmax is not trained twice), and a run that is there is skipped: remove the file when
the package has changed. Writes fastvae_divergence.png if matplotlib is there.
"""

import sys
from pathlib import Path

import numpy as np
from _fastvae import (
    KERNEL_UP_TO,
    NETWORK,
    Runs,
    data_sets,
    parse,
    results_of,
    two_columns,
    vae,
    vae_parser,
)

sys.path.insert(0, str(Path(__file__).parents[1]))
from _runs import table
from scipy.special import logsumexp
from sklearn.preprocessing import normalize

from freqfm.samplers import DNS, MIDX, Kernel, Popularity, Uniform

USERS = 200


def kl(log_q, log_p):
    """Return the KL divergence of each row's distribution P from Q: sum Q log(Q / P)."""
    q = np.exp(log_q)
    return np.where(q > 0, q * (log_q - log_p), 0).sum(axis=1)


def proposals(components):
    """Return the samplers whose proposals are compared, by name."""
    named = {"uniform": Uniform(), "popularity": Popularity(), "DNS": DNS()}
    if components <= KERNEL_UP_TO:
        named["kernel"] = Kernel()
    for n in (16, 64):
        for variant in ("uniform", "popularity"):
            named[f"midx_{variant}, K = {n}"] = MIDX(variant, n_codewords=n)
    named["MIDX, exact"] = MIDX("exact", n_codewords=16)
    return named


def log_softmax_of(vectors, queries):
    """Return the log-probabilities of the model itself, float64."""
    logits = queries.astype(np.float64) @ vectors.T.astype(np.float64)
    return logits - logsumexp(logits, axis=1, keepdims=True)


def queries_and_vectors(model, X):
    """Return queries and item vectors whose products are the model's scores."""
    # Without a hidden layer in the decoder a query is the latent mean, and a one for the bias.
    latent = model.transform(X)
    vectors, biases = model.item_factors_[:, :-1], model.item_factors_[:, -1]
    if model.similarity == "cosine":
        latent, vectors = normalize(latent), normalize(vectors)
    ones = np.ones(len(latent), np.float32)
    queries = np.column_stack([latent / model.temperature_, ones])
    return queries, np.column_stack([vectors, biases])


def divergences(model, X, seed, args):
    """Return KL divergences by sampler, for some users, and one user's cumulative probabilities."""
    generator = np.random.default_rng(seed)
    active = np.flatnonzero(np.diff(X.indptr))
    users = generator.choice(active, min(USERS, len(active)), replace=False)
    queries, vectors = queries_and_vectors(model, X[users])
    counts = model.item_counts_
    log_p = log_softmax_of(vectors, queries)
    by_popularity = np.argsort(-counts, kind="stable")
    points = np.unique(np.geomspace(1, len(counts), 200).astype(int)) - 1
    shown = {"softmax": np.cumsum(np.exp(log_p[0])[by_popularity])[points].tolist()}
    outcome = {}
    for name, sampler in proposals(args.components).items():
        sampler.fit(vectors, counts, random_state=seed)
        log_q = sampler.log_proba(queries)
        shown[name] = np.cumsum(np.exp(log_q[0])[by_popularity])[points].tolist()
        of_users = kl(log_q, log_p)
        outcome[name] = {
            "mean": float(of_users.mean()),
            "largest": float(of_users.max()),
            "least": float(of_users.min()),
            "reverse": float(kl(log_p, log_q).mean()),
            "error": float(np.abs(np.exp(log_q) - np.exp(log_p)).max()),
        }
        if name.startswith("midx_uniform"):
            # Theorem 5.3: 2 C |z|, with C the length of the longest residual.
            longest = np.linalg.norm(vectors - sampler.quantized_vectors_, axis=1).max()
            bound = 2 * longest * np.linalg.norm(queries, axis=1)
            outcome[name]["of_bound"] = float((of_users / bound).max())
    return {"samplers": outcome, "points": (points + 1).tolist(), "cumulative": shown}


def divergence_of(parts, trained, seed, args):
    """Return KL divergences of a model trained for this many epochs, or hardly at all."""
    X = parts[0]
    model = vae("full", seed, args)
    if not trained:
        # A step this small hardly changes the initial model.
        model.set_params(learning_rate=1e-30, negative_sampler="uniform", n_negatives=1)
    model.set_params(max_iter=max(1, trained)).fit(X)
    return divergences(model, X, seed, args)


def divergence_experiment(data_set, parts, results, args):
    """Run and show figure 2 of one data set; return both states of the model."""
    runs = Runs(results, data_set, parts, 0, args)
    chosen = runs.sampled("full")["best"]["epoch"]
    states = {}
    for name, trained in (("random", 0), ("trained", chosen)):
        key = runs.key("divergence", *NETWORK, "quick", trained=trained)
        states[name] = results.run(key, divergence_of, runs.parts, trained, 0, args)
    rows = [
        [name, *(max(0.0, state["samplers"][name][what]) for state in states.values()
                 for what in ("mean", "largest", "reverse"))]
        for name in states["trained"]["samplers"]
    ]  # fmt: skip
    table(
        f"{data_set}: divergence of proposals Q from the softmax P, mean and largest of {USERS} "
        f"users, before training and after {chosen} epochs",
        ["", *(f"{name}: {what}" for name in states for what in ("KL(Q, P)", "largest",
                                                                "KL(P, Q)"))],
        rows,
    )  # fmt: skip
    for state, outcome in states.items():
        exact = outcome["samplers"]["MIDX, exact"]["error"]
        print(f"{state}: probabilities of exact MIDX are off by at most {exact:.1e}")
        for name, of_sampler in outcome["samplers"].items():
            if "of_bound" in of_sampler:
                print(
                    f"  {name}: KL(Q, P) at least {of_sampler['least']:.2e} and at most "
                    f"{of_sampler['of_bound']:.1%} of 2 C |z|"
                )
    trained = states["trained"]["samplers"]
    print("on the trained model, KL(Q, P) of")
    for static in ("uniform", "popularity"):
        for name in trained:
            if name.startswith(f"midx_{static}"):
                ratio = trained[name]["mean"] / trained[static]["mean"]
                print(f"  {name} / {static}: {ratio:.3f}")
    return states


def draw_divergence(by_data_set, path):
    """Draw one user's cumulative probabilities over items by popularity."""
    drawing = two_columns(len(by_data_set), width=13, sharey=True)
    if drawing is None:
        return
    figure, axes = drawing
    for row, (data_set, states) in zip(axes, by_data_set.items(), strict=True):
        for axis, (state, outcome) in zip(row, states.items(), strict=True):
            for name, cumulative in outcome["cumulative"].items():
                wide = {"linewidth": 3, "color": "black"} if name == "softmax" else {}
                axis.plot(outcome["points"], cumulative, label=name, **wide)
            axis.set(xscale="log", xlabel="items by popularity", title=f"{data_set}, {state}")
            axis.set(ylabel="cumulative probability")
        row[0].legend(fontsize="small")
    figure.savefig(path, dpi=110)


def main():
    args = parse(vae_parser(__doc__))
    results = results_of(args)
    by_data_set = {
        name: divergence_experiment(name, parts, results, args) for name, parts in data_sets(args)
    }
    draw_divergence(by_data_set, args.out / "fastvae_divergence.png")


if __name__ == "__main__":
    main()
