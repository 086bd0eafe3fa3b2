"""Word2Vec: vectors of words, or of any tokens in sequences."""

from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass
from numbers import Integral, Real
from typing import ClassVar

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from freqfm import backends
from freqfm._components import POSITIVE, POSITIVE_INTEGER, nearest, resolve, validate_params
from freqfm._input import validation
from freqfm._input.ids import as_list
from freqfm._input.validation import LearnedArrays
from freqfm._messages import shown
from freqfm._signals import release_signals
from freqfm._sklearn import Interval, StrOptions
from freqfm._versions import VersionStamp
from freqfm.backends.base import STORE, Histories, Stream, TrainedTable, WordProblem
from freqfm.estimators import state, training
from freqfm.estimators.progress import announce
from freqfm.estimators.state import OPTIMIZER, STATISTICS, Learned, OptimizerStateMixin
from freqfm.estimators.training import FitCallbacks, Phase, TrainedEstimator, TrainingTask, attempt
from freqfm.estimators.word2vec.documents import Documents, read_vectors, write_vectors
from freqfm.initializers import INITIALIZERS, Initializer, resolve_for_columns
from freqfm.metrics._hits import top_k
from freqfm.optimizers import CFSGD, FASGD, OPTIMIZERS, SGD, Adagrad, Adam, Optimizer

# Purposes of random numbers; the numbers of positions have no purpose.
_ORDER, _SUBSAMPLE = 1, 2

# Seed and epoch of the windows and the noise that ``score`` draws: the same for all models.
_SCORED = 0, 1 << 40


class Word2VecTrainer(TrainingTask):
    """A task for the epoch loop, see ``TrainingTask``.

    Parameters
    ----------
    model : Word2Vec
        Initialised; its arrays are updated in place.
    optimizer : Optimizer
    corpus : Corpus
    n_threads : int
    decays : bool
        Whether the learning rate decays over ``max_iter`` epochs.
    """

    _names = "vectors_", "output_vectors_"
    divergence_hint = "a smaller batch_size"

    def __init__(self, model, optimizer, corpus, n_threads, decays):
        self.model, self.optimizer = model, optimizer
        self._corpus, self._decays = corpus, decays
        self._keep = model._keep_probabilities(model.token_counts_)
        problem = _problem(model, optimizer, corpus, model._seed)
        self._backend, self._trainer = backends.start(
            model.device, "word2vec_trainer", problem, n_threads
        )

    def run_epoch(self, epoch):
        """Read every document once, in random order; return the mean loss."""
        tokens = self._subsampled(epoch)
        n_batches = -(-len(tokens) // int(self.model.batch_size))
        tables, first_step, corrections = state.epoch_tables(
            self.model._tables(), self.model._states, self.model._n_steps, self.optimizer, n_batches
        )
        if self._decays:
            # Learning rates are divided by the first correction.
            done = (epoch + np.arange(n_batches) / n_batches) / int(self.model.max_iter)
            corrections[1:, 0] /= 1 - done
        self._trainer.begin_tables(tables, first_step, corrections)
        loss, n_samples = self._trainer.train(epoch, tokens)
        self._trainer.catch_up_tables(n_batches)
        self.model._n_steps += n_batches
        # Subsampling may leave nothing of a small corpus.
        return loss / max(n_samples, 1)

    def _subsampled(self, epoch):
        """Return the tokens of an epoch, with -1 before, between and after documents."""
        corpus, backend, seed = self._corpus, backends.get(), self.model._seed
        order = backend.permutation(Stream(seed, epoch, _ORDER), len(corpus.starts) - 1)
        indices = corpus.in_order(order)
        tokens = corpus.tokens[indices]
        if self._keep is not None:
            # Those of -1 are the last number.
            kept = backend.uniform(Stream(seed, epoch, _SUBSAMPLE), indices) < self._keep[tokens]
            tokens = tokens[kept]
        return np.append(np.int32(-1), tokens)


def _problem(model, optimizer, corpus, seed):
    """Return the WordProblem of a model and documents."""
    thresholds, aliases = model._noise_tables()
    return WordProblem(
        cbow=model.architecture == "cbow",
        window=int(model.window),
        shrink_windows=bool(model.shrink_windows),
        n_negatives=int(model.n_negatives),
        batch_size=int(model.batch_size),
        longest=max(corpus.longest - 1, 1),
        thresholds=thresholds,
        aliases=aliases,
        width=model.vectors_.shape[1],
        rule=state.make_rule(optimizer, 0.0, "batch"),
        seed=int(seed),
        formulas=optimizer.replacements(),
    )


def mean_loss(model, optimizer, corpus, n_threads):
    """Return the mean loss of documents; windows and noise depend on the documents alone."""
    seed, epoch = _SCORED
    problem = _problem(model, optimizer, corpus, seed)._replace(rule=STORE, formulas={})
    no_rate, no_state = np.zeros(0, np.float32), np.zeros((0, 1), np.float32)
    tables = {
        name: TrainedTable(validation.as_kernel_input(table), no_rate, no_state, no_state)
        for name, table in model._tables().items()
    }
    _, trainer = backends.start(model.device, "word2vec_trainer", problem, n_threads)
    with trainer:
        trainer.begin_tables(tables, 0, np.ones((1, 2)))
        tokens = np.append(np.int32(-1), corpus.tokens)
        loss, n_samples = trainer.train(epoch, tokens, learns=False)
    return loss / n_samples if n_samples else np.nan


# Default learning rates by architecture, for up to so many epochs; but for Adagrad, more epochs at
# the same rate overfit little text. Those of SGD are for each position of a batch.
_EPOCHS_OF_RATES = 5
_RATES = {
    "skip_gram": {SGD: 0.25, FASGD: 0.25, CFSGD: 4.0, Adam: 0.01, Adagrad: 0.1},
    "cbow": {SGD: 0.4, FASGD: 0.4, CFSGD: 8.0, Adam: 0.01, Adagrad: 0.1},
}

# Bound of SGD's default rates times the square of the most frequent token's share.
_LARGEST_SHARE = 0.025

# CF-SGD's bound of a step by default: the gradients of CBOW are shared by the tokens of a window.
_LARGEST_STEPS = {"skip_gram": 0.1, "cbow": 0.5}


# What the optimizer updates, by the names that kernels know.
_TABLES = {
    name: Learned(f"{name}_", ("tokens", "components")) for name in ("vectors", "output_vectors")
}


@dataclass(eq=False, repr=False)
class Word2Vec(
    VersionStamp,
    OptimizerStateMixin,
    TrainedEstimator,
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
    BaseEstimator,
):
    """Word vectors by negative sampling, of skip-gram or CBOW.

    Tokens that occur near the same tokens get similar vectors [1]_. At each position of a document,
    the input vectors v of the tokens in a window around it are compared with the output vector u of
    its own token w, and with those of ``n_negatives`` tokens k drawn as noise::

        -log sigmoid(<u_w, h>) - sum_k log sigmoid(-<u_k, h>),

    where h is each v of the window in turn (skip-gram), or their mean (CBOW), and noise that is w
    itself is left out. Tokens may be words,
    or any items in sequences, such as those of shopping sessions.

    Parameters
    ----------
    n_components : int, default=100
        Length of the vectors; ``vector_size`` of gensim.
    architecture : {"skip_gram", "cbow"}, default="skip_gram"
        CBOW takes a third of the time of skip-gram; skip-gram is better on little text and for rare
        tokens.
    window : int, default=5
        Largest distance between a position and a token of its window. Windows end with documents.
    min_count : int, default=5
        Rarer tokens are left out, before windows are formed.
    n_negatives : int, default=5
        Number of tokens drawn as noise at each position, for all tokens of its window.
    noise_exponent : float, default=0.75
        Noise is drawn in proportion to a token's count to this power. 1 draws by frequency, 0
        uniformly; for sessions of items negative numbers may be best.
    subsample : float or None, default=1e-3
        A token that makes up the share f of all tokens is kept with the probability
        sqrt(t / f) + t / f, where t is the value given, drawn again in every epoch; ``sample`` of
        gensim. None keeps all.
    shrink_windows : bool, default=True
        Whether the size of each window is drawn from 1 to ``window``, so that near tokens have more
        weight. For sessions, where order means little, False is better.
    analyzer : {"word", "whitespace"} or callable, default="word"
        How a document that is a string is split. "word" converts it to lower case and finds words
        of letters, digits and their combining marks, in any script; punctuation, symbols and white
        space separate them. Unlike ``CountVectorizer`` it keeps words of one letter, and does not
        cut those with marks or joiners. "whitespace" splits at white space. A function is called
        with each document, string or not, and returns its tokens. Otherwise, sequences of tokens
        are used as they are.
    optimizer : str or Optimizer, default="cf_sgd"
        "sgd", "fa_sgd", "cf_sgd", "rowwise_adagrad", "adagrad" or "adam", or an instance from
        :mod:`freqfm.optimizers`. Searches can set its parameters as ``optimizer__...``.
    learning_rate : float, default=None
        The optimizer's learning rate; None is a default for the architecture and ``max_iter``, see
        Notes. Not allowed with an instance that has its own.
    schedule : {"linear", "constant"}, default="linear"
        Whether the learning rate decays linearly, from batch to batch, to zero at the end of
        ``fit``. ``partial_fit`` always has a constant one.
    max_iter : int, default=5
        Epochs; ``epochs`` of gensim.
    batch_size : int, default=256
        Positions per step. A step sums the gradients of a batch for each token, and moves the
        token once.
    init : str or Initializer, default="normal"
        Initial values of the input vectors: "normal", "xavier", "prism", or an instance from
        :mod:`freqfm.initializers`, such as ``Normal(scale)``; "normal" has the scale
        1 / (sqrt(12) ``n_components``). Output vectors start at zero.
    verbose : int, default=0
        1 prints what ``fit`` is doing, and shows the loss and the remaining time, as a bar in
        terminals and notebooks if rich is installed, else as a line for each epoch. 2 always prints
        lines.
    n_jobs : int, default=None
        Threads, at most one per core; None uses all cores. The result does not depend on it.
    random_state : int, RandomState instance, Generator or None, default=None
        Pass an int for the same model at every call.
    device : str, default="cpu"
        "cpu", or "auto". Word vectors are trained on the CPU only: "cuda" raises.

    Attributes
    ----------
    vocabulary_ : dict
        The row of each token in the other attributes; in ``fit`` tokens are sorted.
    vectors_ : ndarray of shape (n_tokens, n_components), float32
        The input vectors, usually called word vectors.
    output_vectors_ : ndarray of shape (n_tokens, n_components), float32
    token_counts_ : ndarray of shape (n_tokens,)
        How often each token occurs.
    loss_curve_ : ndarray of shape (`n_iter_`,)
        Mean loss of each epoch, per input that is compared; the loss of each batch is taken before
        its step.
    n_iter_, best_iter_ : int
        Epochs trained, over all calls, and the one whose model this is: the last.
    validation_scores_ : ndarray of shape (0,)
        Empty, as there is no early stopping.
    optimizer_state_nbytes_ : int
        Bytes of the optimizer state.

    Raises
    ------
    TypeError, ValueError
        If documents or parameters cannot be used; the message names the argument.
    DivergenceError
        If the loss or a weight stops being finite; the model of the last finite epoch is kept.

    See Also
    --------
    MFRecommender : Vectors of users and items, if sessions belong to known users.

    Notes
    -----
    A default fit takes about 3.5 CPU seconds for 455,097 tokens of WikiText-2. The first one also
    compiles, for about 5.

    All pairs of a position share its noise, as in [2]_, while word2vec draws for each pair. The
    expected gradient is the same, and the computation becomes a small matrix product. The gradient
    of CBOW is the exact one [3]_: word2vec and gensim move each token of a window by the gradient
    with respect to the mean, without dividing it by the number of tokens.

    Default learning rates are, for skip-gram and CBOW, 4 and 8 for "cf_sgd", with a ``max_step`` of
    0.1 and 0.5; 0.25 and 0.4 times ``batch_size`` for "sgd" and "fa_sgd", whose rates are of the
    mean over a batch, as in all estimators here; and 0.01 for "adam". With more than 5 epochs they,
    and ``max_step``, are multiplied by sqrt(5 / ``max_iter``), as more epochs overfit at the same
    rate. "adagrad" and "rowwise_adagrad" take 0.1. The 0.025 for each pair of word2vec would be
    about 0.15 times ``batch_size`` for "sgd". In small vocabularies the rates of "sgd" and "fa_sgd"
    are at most 0.025 over the squared share of the most frequent token. CF-SGD's bound by the
    curvature, see :class:`freqfm.optimizers.CFSGD`, is that for vectors of length one.

    Results are bitwise reproducible. An epoch takes O(n_pairs (1 + n_negatives) n_components);
    memory is 8 n_tokens n_components bytes for the model, as much again for a copy of the last
    whole epoch, 4 bytes for each token of the documents, and the optimizer's state.

    References
    ----------
    .. [1] T. Mikolov, I. Sutskever, K. Chen, G. Corrado, J. Dean. "Distributed Representations of
       Words and Phrases and their Compositionality". NeurIPS 2013.
    .. [2] S. Ji, N. Satish, S. Li, P. Dubey. "Parallelizing Word2Vec in Shared and Distributed
       Memory". 2016.
    .. [3] O. Irsoy, A. Benton, K. Stratos. "Corrected CBOW Performs as well as Skip-gram". 2021.

    Examples
    --------
    >>> from freqfm import Word2Vec
    >>> documents = ["the cat chased the mouse", "the dog chased the cat"] * 50
    >>> model = Word2Vec(n_components=8, random_state=0).fit(documents)
    >>> sorted(model.vocabulary_)
    ['cat', 'chased', 'dog', 'mouse', 'the']
    >>> model.transform(["a dog and a cat"]).shape
    (1, 8)
    >>> len(model.most_similar("dog", n=3))
    3
    """

    _parameter_constraints: ClassVar = {
        "n_components": POSITIVE_INTEGER,
        "architecture": [StrOptions({"skip_gram", "cbow"})],
        "window": POSITIVE_INTEGER,
        "min_count": POSITIVE_INTEGER,
        "n_negatives": POSITIVE_INTEGER,
        "noise_exponent": [Interval(Real, -10, 10, closed="both")],
        "subsample": [*POSITIVE, None],
        "shrink_windows": ["boolean"],
        "analyzer": [StrOptions({"word", "whitespace"}), callable],
        "optimizer": "no_validation",  # names and instances are resolved in fit
        "learning_rate": [*POSITIVE, None],
        "schedule": [StrOptions({"linear", "constant"})],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "batch_size": POSITIVE_INTEGER,
        "init": "no_validation",
    }

    _registries = {"optimizer": OPTIMIZERS, "init": INITIALIZERS}
    # There is no early stopping; the epoch loop compares losses all the same.
    tol = 0.0

    n_components: int = 100
    _: KW_ONLY
    architecture: str = "skip_gram"
    window: int = 5
    min_count: int = 5
    n_negatives: int = 5
    noise_exponent: float = 0.75
    subsample: float | None = 1e-3
    shrink_windows: bool = True
    analyzer: str | Callable = "word"
    optimizer: str | Optimizer = "cf_sgd"
    learning_rate: float | None = None
    schedule: str = "linear"
    max_iter: int = 5
    batch_size: int = 256
    init: str | Initializer = "normal"

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.two_d_array = False
        tags.transformer_tags.preserves_dtype = []
        return tags

    @property
    def _n_features_out(self):
        return self.vectors_.shape[1]

    # Fitting.

    @training.with_callbacks
    def fit(self, X, y=None):
        """Learn the vocabulary and the vectors of documents.

        Parameters
        ----------
        X : iterable of str, or of sequences of tokens
            Documents. Strings are split by ``analyzer``. Tokens are strings or integers.
        y : Ignored

        Returns
        -------
        self : object

        Raises
        ------
        TypeError, ValueError
            If documents cannot be read, or no document has two tokens of the vocabulary.
        DivergenceError
            If the loss or a weight stops being finite. The model of the last finite epoch is kept.
        """
        validate_params(self)
        with attempt(self) as trial:
            unfinished = self.__dict__.pop("_unfinished", None)
            with release_signals():
                optimizer = self._resolve_optimizer()
                vocabulary, corpus = self._read(X, {})
                hashed = {"X": [corpus.tokens, corpus.starts, list(vocabulary)]}
                data = {"X": X, "y": y}
                callbacks = FitCallbacks(self, data, hashed, self.max_iter, unfinished)
                optimizer = self._with_rates(optimizer, corpus, len(vocabulary))
                if unfinished is None:
                    self._init_model(optimizer)
                    self._grow(vocabulary, corpus, optimizer)
                else:
                    self._check_trainable(optimizer)
                trainer = self._trainer_of(optimizer, corpus, self.schedule == "linear")
            training.train(trainer, Phase(int(self.max_iter)), trial, callbacks)
            callbacks.end_fit()
        return self

    def fit_transform(self, X, y=None):
        """Learn the vectors of documents, and return the mean vector of each.

        Parameters
        ----------
        X : iterable of str, or of sequences of tokens
            Documents, see ``fit``.
        y : Ignored

        Returns
        -------
        X : ndarray of shape (n_documents, n_components), dtype float32
        """
        # The documents are read twice.
        documents = list(X) if isinstance(X, Iterator) else X
        return self.fit(documents, y).transform(documents)

    def partial_fit(self, X, y=None):
        """Train one epoch on more documents, at a learning rate that does not decay.

        Tokens that occur at least ``min_count`` times in these documents are added at the end of
        the vocabulary. Counts are added to those of earlier documents.

        Parameters
        ----------
        X : iterable of str, or of sequences of tokens
            Documents, see ``fit``.
        y : Ignored

        Returns
        -------
        self : object
        """
        validate_params(self)
        with attempt(self) as trial:
            self.__dict__.pop("_unfinished", None)
            with release_signals():
                optimizer = self._resolve_optimizer()
                is_new = not hasattr(self, "vectors_")
                if not is_new:
                    self._check_trainable(optimizer)
                vocabulary, corpus = self._read(X, {} if is_new else self.vocabulary_)
                optimizer = self._with_rates(optimizer, corpus, len(vocabulary))
                if is_new:
                    self._init_model(optimizer)
                self._grow(vocabulary, corpus, optimizer)
                trainer = self._trainer_of(optimizer, corpus, False)
            training.train(trainer, Phase(1), trial)
        return self

    def _resolve_optimizer(self):
        """Return the optimizer, whose rates may be None until ``_with_rates``."""
        rate = "learning_rate", "learning_rate", self.learning_rate
        return resolve("optimizer", self.optimizer, Optimizer, OPTIMIZERS, [rate])

    def _with_rates(self, optimizer, corpus, n_tokens):
        """Return the optimizer with the default rates of the architecture where none is given."""
        # Decreases with the number of epochs.
        share = float(np.sqrt(_EPOCHS_OF_RATES / max(int(self.max_iter), _EPOCHS_OF_RATES)))
        rate = nearest(optimizer, _RATES[self.architecture])
        if rate is not None and not isinstance(optimizer, Adagrad):
            rate *= share
        if isinstance(optimizer, (SGD, FASGD)):
            rate = min(rate * int(self.batch_size), self._largest_rate(corpus, n_tokens))
        bound = _LARGEST_STEPS[self.architecture] * share
        return optimizer.with_defaults(learning_rate=rate, max_step=bound)

    def _largest_rate(self, corpus, n_tokens):
        """Return the largest default rate of SGD: lower if a token occurs often in each batch."""
        counts = corpus.counts(n_tokens)
        kept = counts.astype(np.float64)
        if self.subsample is not None:
            kept *= np.minimum(self._keep_probabilities(counts)[:-1], 1)
        return float(_LARGEST_SHARE * (kept.sum() / kept.max()) ** 2)

    def _read(self, X, known):
        """Return the vocabulary, known tokens first, and the Corpus of documents.

        Raises
        ------
        TypeError, ValueError
            If documents cannot be read, or there is nothing to learn from.
        """
        announce(self.verbose, "reading documents")
        read = Documents.read(X, self.analyzer)
        vocabulary = dict(known)
        for token in read.vocabulary(self.min_count, known):
            vocabulary[token] = len(vocabulary)
        corpus = read.corpus(vocabulary)
        if len(vocabulary) < 2 or corpus.longest < 2:
            raise ValueError(
                f"X holds {len(read.lengths)} documents with {len(read.tokens)} distinct "
                f"tokens, of which {len(vocabulary)} occur min_count={self.min_count} times or "
                f"are known; no two of these stand in one document. Give more text, or lower "
                f"min_count."
            )
        validation.check_memory(
            2 * len(vocabulary) * int(self.n_components),
            f"n_components={self.n_components} for {len(vocabulary)} tokens",
            "Take fewer components, or raise min_count.",
        )
        return vocabulary, corpus

    def _initial_vectors(self, counts, seeds):
        """Return the initial vectors of tokens."""
        n_components = int(self.n_components)
        # The standard deviation of word2vec's uniform numbers.
        scale = 1 / (np.sqrt(12) * n_components)
        initializer = resolve_for_columns(self).with_defaults(scale=scale)
        generator = np.random.default_rng(seeds)
        return initializer.table((len(counts), n_components), generator, counts)

    def _init_model(self, optimizer):
        """Set the arrays of a new model, without tokens."""
        self._seed = validation.draw_seed(self.random_state)
        self.vocabulary_, self.token_counts_ = {}, np.zeros(0, dtype=np.int64)
        self.vectors_ = np.zeros((0, int(self.n_components)), dtype=np.float32)
        self.output_vectors_ = self.vectors_
        self._states = {name: {} for name in _TABLES}
        self._optimizer_name = type(optimizer).__name__
        self._n_steps = np.zeros(1, dtype=np.int64)
        self._init_curves()

    def _learned(self):
        """Return what the model learns, a list of ``Learned``."""
        states = state.optimizer_entries(("_states",), **dict.fromkeys(_TABLES, "tokens"))
        return [*_TABLES.values(), Learned("_n_steps", (1,), STATISTICS, np.int64), *states]

    def _tables(self):
        """Return the arrays that the optimizer updates, by the names that kernels know."""
        return {name: entry.get(self) for name, entry in _TABLES.items()}

    def _grow(self, vocabulary, corpus, optimizer):
        """Add the documents' counts, and rows for new tokens; at first all are new."""
        n_old, n_new = len(self.vocabulary_), len(vocabulary)
        counts = corpus.counts(n_new)
        self.vocabulary_ = vocabulary
        if n_new > n_old:
            rows = self._initial_vectors(counts[n_old:], [self._seed, n_old])
            self.vectors_ = np.concatenate([self.vectors_, rows])
            self.output_vectors_ = np.concatenate([self.output_vectors_, np.zeros_like(rows)])
            self._states = {
                name: state.grow_state(
                    old, state.new_state(optimizer, counts[n_old:], rows.shape[1])
                )
                for name, old in self._states.items()
            }
        known = ("_n_steps", "_states", *Word2VecTrainer._names)
        state.extend(self, state.entries_of(self, known), {"tokens": n_new}, new=not n_old)
        counts[:n_old] += self.token_counts_
        self.token_counts_ = counts

    def _trainer_of(self, optimizer, corpus, decays):
        """Return the task for the epoch loop."""
        state.make_trainable(self, align=True)
        states = (entry.get(self) for entry in self._learned() if entry.role == OPTIMIZER)
        self.optimizer_state_nbytes_ = sum(array.nbytes for array in states)
        n_threads = validation.count_threads(self.n_jobs)
        return Word2VecTrainer(self, optimizer, corpus, n_threads, decays)

    def _keep_probabilities(self, counts):
        """Return the probability of keeping each token in an epoch, and a final 1; None for all."""
        if self.subsample is None:
            return None
        frequencies = counts / counts.sum()
        share = self.subsample / np.maximum(frequencies, 1e-300)
        return np.append(np.sqrt(share) + share, 1.0)

    # Learned arrays.

    def _check_learned(self):
        """Raise unless the vocabulary and the vectors fit; return the ``LearnedArrays``."""
        check_is_fitted(self)
        learned = LearnedArrays(self)
        vocabulary = learned.get("vocabulary_")
        is_dict = isinstance(vocabulary, dict) and len(vocabulary) > 0
        learned.require(is_dict, "vocabulary_", "is not a dict of tokens")
        learned.array("vectors_", (len(vocabulary), None), "f")
        learned.once(("vocabulary_",), self._tokens_by_row)
        return learned

    def _tokens_by_row(self):
        """Return the tokens in the order of their rows, an array of objects."""
        rows = self._checked_rows(self.vocabulary_.values())
        distinct = np.bincount(rows).max() == 1
        found = "does not number its tokens from 0 on"
        LearnedArrays(self).require(distinct, "vocabulary_", found)
        tokens = np.empty(len(rows), dtype=object)
        tokens[rows] = np.fromiter(self.vocabulary_, dtype=object, count=len(rows))
        return tokens

    def _checked_rows(self, rows):
        """Return numbers of rows from ``vocabulary_`` as an array."""
        learned = LearnedArrays(self)
        try:
            rows = np.fromiter(rows, np.int64, len(rows))
        except (TypeError, ValueError, OverflowError):
            learned.require(False, "vocabulary_", "holds values that are not integers")
        learned.indices("vocabulary_", rows, len(self.vocabulary_))
        return rows

    def _check_outputs(self):
        """Raise unless the model has what a loss is computed from; return the ``LearnedArrays``."""
        learned = self._check_learned()
        if not hasattr(self, "output_vectors_"):
            raise ValueError(
                f"this {type(self).__name__} was loaded from a file of vectors, which holds "
                f"neither counts nor output vectors: it can be neither trained nor scored."
            )
        learned.array("output_vectors_", self.vectors_.shape, "f")
        learned.array("token_counts_", (len(self.vocabulary_),))
        self._noise_tables()
        return learned

    def _noise_tables(self):
        """Return the alias tables that noise is drawn from, see ``Backend.alias_tables``."""
        return LearnedArrays(self).once(("token_counts_", "noise_exponent"), self._count_noise)

    def _count_noise(self):
        positive = (self.token_counts_ > 0).all()
        learned = LearnedArrays(self)
        learned.require(positive, "token_counts_", "holds numbers that are not positive")
        noise = self.token_counts_.astype(np.float64) ** self.noise_exponent
        return backends.get().alias_tables(np.array([0, len(noise)]), noise)

    def _check_trainable(self, optimizer):
        """Raise unless the model can be trained further by an optimizer."""
        self._check_has_state()
        learned = self._check_outputs()
        self._tokens_by_row()  # not only once: training reads all rows
        training.check_same_class(self, "optimizer", optimizer)
        width = self.vectors_.shape[1]
        training.check_unchanged(self, "n_components", width == self.n_components, f"the {width}")
        training.check_progress(learned)
        state.check_steps(learned, "_n_steps", learned.get("_n_steps"))
        state.check_states(learned, "_states", learned.get("_states"), self._tables(), optimizer)

    # Predictions.

    def transform(self, X):
        """Return the mean vector of each document.

        Parameters
        ----------
        X : iterable of str, or of sequences of tokens
            Documents, see ``fit``. Tokens that are not in the vocabulary are skipped.

        Returns
        -------
        means : ndarray of shape (n_documents, n_components), float32
            Zeros for a document without a known token.
        """
        self._check_learned()
        read = Documents.read(X, self.analyzer)
        tokens, rows = self._known(read)
        corpus = read.corpus({token: k for k, token in enumerate(tokens)})
        known = corpus.tokens[corpus.tokens >= 0]
        starts = corpus.starts - np.arange(len(corpus.starts))
        lengths = np.diff(starts)
        weights = np.repeat(1 / np.maximum(lengths, 1), lengths).astype(np.float32)
        histories = Histories(starts.astype(np.int64), known, weights)
        table = validation.as_kernel_input(self.vectors_[rows])
        n_threads = validation.count_threads(self.n_jobs)
        return backends.serve(self.device, "sum_histories", histories, table, n_threads)

    def _known(self, read):
        """Return the tokens of Documents that are in the vocabulary, and their rows."""
        tokens = [token for token in read.tokens if token in self.vocabulary_]
        return tokens, self._checked_rows([self.vocabulary_[token] for token in tokens])

    def score(self, X, y=None):
        """Return the negative mean loss of documents: the larger, the better.

        Windows and noise are drawn with a fixed seed, so that models with the same vocabulary are
        compared on the same pairs; there is no subsampling.

        Parameters
        ----------
        X : iterable of str, or of sequences of tokens
            Documents, see ``fit``. Tokens that are not in the vocabulary are left out.
        y : Ignored

        Returns
        -------
        score : float
        """
        self._check_outputs()
        read = Documents.read(X, self.analyzer)
        self._known(read)
        corpus = read.corpus(self.vocabulary_)
        optimizer = self._resolve_optimizer().with_defaults()
        loss = mean_loss(self, optimizer, corpus, validation.count_threads(self.n_jobs))
        if np.isnan(loss):
            raise ValueError(
                "X has no document with two tokens of the vocabulary; there is nothing to score."
            )
        return -float(loss)

    def most_similar(self, positive=(), negative=(), n=10):
        """Return the tokens whose vectors have the largest cosines with a sum of vectors.

        The query is the sum of the unit vectors of ``positive`` less that of ``negative``; tokens
        of the query are not returned.

        Parameters
        ----------
        positive, negative : token or list of tokens, default=()
            Strings or integers of the vocabulary; at least one in all.
        n : int, default=10
            How many tokens to return, fewer if the vocabulary has no more.

        Returns
        -------
        similar : list of (token, float)
            Tokens with their cosines, the largest first.

        Raises
        ------
        ValueError
            If a token is not in the vocabulary.
        """
        n = validation.check_count("n", n)
        added, taken = (self._rows_of(name, tokens) for name, tokens in
                        (("positive", positive), ("negative", negative)))  # fmt: skip
        given = np.append(added, taken)
        if not len(given):
            raise ValueError("positive and negative are both empty; give a token, or several.")
        query = self._unit_rows(added).sum(axis=0) - self._unit_rows(taken).sum(axis=0)
        query /= max(np.linalg.norm(query), 1e-12)
        items, scores = top_k(
            query[None],
            validation.as_kernel_input(self.vectors_),
            min(n, len(self.vectors_)),
            exclude_for_all=np.unique(given),
            unit_columns=self.vectors_.shape[1],
            n_threads=validation.count_threads(self.n_jobs),
            device=self.device,
        )
        found = zip(items[0].tolist(), scores[0].tolist(), strict=True)
        tokens = self._tokens()
        return [(tokens[k], score) for k, score in found if k >= 0]

    def similarity(self, first, second):
        """Return the cosine of the vectors of two tokens.

        Parameters
        ----------
        first, second : token

        Returns
        -------
        cosine : float
        """
        rows = self._rows_of("first", [first]), self._rows_of("second", [second])
        first, second = (self._unit_rows(row)[0] for row in rows)
        return float(first @ second)

    def doesnt_match(self, tokens):
        """Return the token whose vector has the smallest cosine with the mean of all given ones.

        Parameters
        ----------
        tokens : list of tokens
            Their unit vectors are averaged.

        Returns
        -------
        token : str or int
        """
        rows = self._rows_of("tokens", tokens)
        if not len(rows):
            raise ValueError("tokens is empty; give tokens of the vocabulary.")
        units = self._unit_rows(rows)
        return self._tokens()[rows[np.argmin(units @ units.mean(axis=0))]]

    def _tokens(self):
        """Return the tokens in the order of their rows."""
        return self._check_learned().once(("vocabulary_",), self._tokens_by_row)

    def _rows_of(self, name, tokens):
        """Return the rows of a token, or of several."""
        self._check_learned()
        tokens = as_list(tokens)
        if isinstance(tokens, str) or not hasattr(tokens, "__iter__"):
            tokens = [tokens]
        rows = []
        for token in tokens:
            try:
                if isinstance(token, (bool, np.bool_)):
                    raise TypeError("True would be the token 1")
                rows.append(self.vocabulary_[token])
            except (KeyError, TypeError):
                raise ValueError(
                    f"{name} holds {shown(token)}, which is not among the {len(self.vocabulary_)} "
                    f"tokens of the vocabulary."
                ) from None
        return self._checked_rows(rows)

    def _unit_rows(self, rows):
        """Return vectors at unit length, float64; zeros stay zeros."""
        vectors = self.vectors_[rows].astype(np.float64)
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors / np.where(lengths > 0, lengths, 1)

    # Files.

    def save_word2vec_format(self, path, *, binary=False):
        """Write the vectors to a file that other programs read.

        The format is that of the original word2vec program: the tokens, as text in UTF-8, and the
        vectors. It does not contain what further training needs; to train further, pickle the
        model.

        Parameters
        ----------
        path : str or path-like
            Compressed if it ends with ".gz".
        binary : bool, default=False
            Whether numbers are stored as bytes instead of text.

        Raises
        ------
        ValueError
            If a token is empty, or holds a space or a line break; nothing is written then.
        """
        write_vectors(path, self._tokens(), self.vectors_, binary)

    @classmethod
    def load_word2vec_format(cls, path, *, binary=False, limit=None, decode_error="strict"):
        """Return a model with the vectors of a file in the format of word2vec, or of GloVe.

        It has ``transform`` and ``most_similar``, but cannot be trained further. A text without a
        first line that announces how many tokens and components follow, as GloVe writes, is read
        too.

        Parameters
        ----------
        path : str or path-like
            Decompressed if it ends with ".gz".
        binary : bool, default=False
            Whether numbers are stored as bytes instead of text.
        limit : int, default=None
            Read only so many vectors, which are those of the most frequent tokens in most files.
            None reads all.
        decode_error : {"strict", "replace", "ignore"}, default="strict"
            What to do with bytes of tokens that are not UTF-8: raise, put U+FFFD in their place, or
            leave them out.

        Returns
        -------
        model : Word2Vec
            Its tokens are strings. Of a token that occurs twice the first vector is kept, with a
            warning.

        Raises
        ------
        ValueError
            If the file has another format, or fewer vectors than its first line announces. With
            more it warns, and loads all.

        Examples
        --------
        >>> import tempfile
        >>> from pathlib import Path
        >>> from freqfm import Word2Vec
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "vectors.txt"
        ...     _ = path.write_text("the 0.1 0.5\\ncat 0.3 0.2\\ndog 0.4 0.2\\n")
        ...     model = Word2Vec.load_word2vec_format(path, limit=2)
        >>> model.vocabulary_
        {'the': 0, 'cat': 1}
        """
        tokens, vectors = read_vectors(path, binary, limit, decode_error)
        model = cls(n_components=vectors.shape[1])
        model.vocabulary_ = {token: i for i, token in enumerate(tokens)}
        model.vectors_ = vectors
        return model
