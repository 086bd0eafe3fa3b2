"""Word2Vec against gensim: words per second, and Spearman's correlation with human similarities.

- Words per second: all words of the text, those that are left out too, by the seconds of training;
  both take turns in one process, with the same text, window, negatives, size and threads; medians
  of the repetitions. Beside it the seconds of whole fits, vocabulary included.
- Similarity: Spearman's correlation of cosines with WordSim-353 and SimLex-999, pairs of words of
  the vocabulary, after the same number of epochs; means and standard deviations over seeds. How far
  the two programs' means would differ with other pairs is estimated by drawing pairs again.

    python benchmarks/speed/word2vec_speed.py --data DIR --out results

Without data, text is drawn by Zipf's law, and there is no similarity.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from _data import data_parser, similarity_pairs, wikitext
from gensim.models import Word2Vec as GensimWord2Vec
from scipy.stats import spearmanr

from freqfm import Word2Vec
from freqfm._input.validation import count_threads

D, WINDOW, NEGATIVES, MIN_COUNT = 100, 5, 5, 5


def freqfm_model(architecture, n_epochs, n_threads, seed):
    """Return our model, not fitted."""
    return Word2Vec(
        D, architecture=architecture, window=WINDOW, n_negatives=NEGATIVES, min_count=MIN_COUNT,
        max_iter=n_epochs, n_jobs=n_threads, random_state=seed,
    )  # fmt: skip


def gensim_model(architecture, n_epochs, n_threads, seed, text=None):
    """Return gensim's model, fitted if there is a text."""
    return GensimWord2Vec(
        text, vector_size=D, sg=architecture == "skip_gram", window=WINDOW, negative=NEGATIVES,
        min_count=MIN_COUNT, epochs=n_epochs, workers=n_threads, seed=seed,
    )  # fmt: skip


class Freqfm:
    """What ``Word2Vec.fit`` does after it has read the documents: its training task."""

    def __init__(self, text, architecture, n_threads):
        self.model = model = freqfm_model(architecture, 1000, n_threads, 0)
        optimizer = model._resolve_optimizer()
        vocabulary, corpus = model._read(text, {})
        optimizer = model._with_rates(optimizer, corpus, len(vocabulary))
        model._init_model(optimizer)
        model._grow(vocabulary, corpus, optimizer)
        self.task, self.epoch = model._trainer_of(optimizer, corpus, True), 0

    def train(self, n_epochs):
        """Train some epochs; return their seconds."""
        start = time.perf_counter()
        with self.task:
            for _ in range(n_epochs):
                self.task.run_epoch(self.epoch)
                self.epoch += 1
        return time.perf_counter() - start


class Gensim:
    """gensim's model, with its vocabulary."""

    def __init__(self, text, architecture, n_threads):
        self.text = text
        self.model = gensim_model(architecture, 1000, n_threads, 0)
        self.model.build_vocab(text)

    def train(self, n_epochs):
        """Train some epochs; return their seconds."""
        start = time.perf_counter()
        self.model.train(self.text, total_examples=len(self.text), epochs=n_epochs)
        return time.perf_counter() - start


def compare_speed(text, architecture, args, n_threads):
    """Print and return the words per second of both, and the seconds of whole fits."""
    n_words = sum(map(len, text)) * args.epochs
    contenders = {
        "freqfm": Freqfm(text, architecture, n_threads),
        "gensim": Gensim(text, architecture, n_threads),
    }
    results = {name: [] for name in contenders}
    for turn in range(args.repeats + 1):
        for name, contender in contenders.items():
            seconds = contender.train(args.epochs)
            if turn:  # the first one compiles
                results[name].append(n_words / seconds)
    ours, theirs = (np.median(words) for words in results.values())
    print(
        f"{architecture:10} freqfm {ours / 1e6:.2f} million words per second, gensim "
        f"{theirs / 1e6:.2f}: {ours / theirs:.2f} times",
        flush=True,
    )
    fits = {
        "freqfm": lambda: freqfm_model(architecture, args.epochs, n_threads, 0).fit(text),
        "gensim": lambda: gensim_model(architecture, args.epochs, n_threads, 0, text),
    }
    seconds = {}
    for name, fit in fits.items():
        start = time.perf_counter()
        fit()
        seconds[name] = time.perf_counter() - start
    print(f"{'':10} whole fits: {seconds['freqfm']:.2f} s, gensim {seconds['gensim']:.2f} s")
    return {"words_per_second": results, "fit_seconds": seconds}


def cosines(vectors, rows, of_name):
    """Return the cosines of the pairs whose words are both known, and the pairs' scores."""
    known = [(rows[a], rows[b], score) for a, b, score in of_name if a in rows and b in rows]
    one, two, scores = map(np.array, zip(*known, strict=True))
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return (units[one] * units[two]).sum(axis=1), scores


def correlation(of_seeds, scores, drawn=slice(None)):
    """Return Spearman's correlation with the scores of some pairs, for each seed."""
    return np.array([spearmanr(c[drawn], scores[drawn]).statistic for c in of_seeds])


def difference(ours, theirs, scores, n_draws=500):
    """Return the difference of the mean correlations, and its standard error over the pairs."""
    rng, n = np.random.default_rng(0), len(scores)
    draws = [slice(None), *(rng.integers(n, size=n) for _ in range(n_draws))]
    found = [
        correlation(ours, scores, drawn).mean() - correlation(theirs, scores, drawn).mean()
        for drawn in draws
    ]
    return found[0], np.std(found[1:])


def compare_similarity(text, pairs, architecture, n_epochs, args, n_threads):
    """Print and return the correlations of both."""
    fitted = {"freqfm": [], "gensim": []}
    for seed in range(1, args.seeds + 1):
        ours = freqfm_model(architecture, n_epochs, n_threads, seed).fit(text)
        fitted["freqfm"].append((ours.vectors_, ours.vocabulary_))
        theirs = gensim_model(architecture, n_epochs, n_threads, seed, text).wv
        fitted["gensim"].append((theirs.vectors, theirs.key_to_index))
    results = {}
    for name, of_name in pairs.items():
        found = {who: [cosines(*of_seed, of_name) for of_seed in fitted[who]] for who in fitted}
        scores = found["freqfm"][0][1]
        ours, theirs = ([c for c, _ in of_seeds] for of_seeds in found.values())
        each = [correlation(of_seeds, scores) for of_seeds in (ours, theirs)]
        shown = (f"{np.mean(f):.3f} +- {np.std(f):.3f}" for f in each)
        change, error = difference(ours, theirs, scores)
        print(
            f"{architecture:10} {n_epochs:3} epochs, {name} ({len(scores)} pairs): "
            f"{', gensim '.join(shown)}, difference {change:.3f} (with other pairs +- {error:.3f})",
            flush=True,
        )
        results[name] = dict(zip(fitted, (f.tolist() for f in each), strict=True))
    return results


def made_text(n_lines=4000, n_words=20_000):
    """Return lines of 100 words, drawn by Zipf's law."""
    numbers = np.random.default_rng(0).zipf(1.2, (n_lines, 100)) % n_words
    return numbers.astype(str).tolist()


def main():
    parser = data_parser(__doc__)
    parser.add_argument("--only", choices=["speed", "similarity"], default=None)
    parser.add_argument("--architectures", nargs="+", default=["skip_gram", "cbow"])
    parser.add_argument("--epochs", type=int, default=2, help="of training that is timed at once")
    parser.add_argument("--similarity-epochs", type=int, nargs="+", default=[5, 20])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--n-jobs", type=int, default=None)
    parser.add_argument("--quick", action="store_true", help="200 lines, one repetition: a test")
    args = parser.parse_args()
    n_threads = count_threads(args.n_jobs)
    text = wikitext(args.data) if args.data else made_text()
    if args.quick:
        text, args.repeats, args.seeds, args.similarity_epochs = text[:200], 1, 1, [5]
    print(f"{sum(map(len, text))} words, d = {D}, {n_threads} threads")
    results = {}
    for architecture in args.architectures:
        found = results[architecture] = {}
        if args.only != "similarity":
            found["speed"] = compare_speed(text, architecture, args, n_threads)
        if args.only != "speed" and args.data:
            pairs = similarity_pairs(args.data)
            for n in args.similarity_epochs:
                of_epochs = compare_similarity(text, pairs, architecture, n, args, n_threads)
                found[f"similarity after {n}"] = of_epochs
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "word2vec_speed.json").write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
