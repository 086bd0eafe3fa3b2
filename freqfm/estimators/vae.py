"""A variational autoencoder for collaborative filtering, by full or sampled softmax."""

from numbers import Integral, Real

import numpy as np
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from freqfm._components import NON_NEGATIVE, POSITIVE
from freqfm.estimators.base import with_callbacks
from freqfm.estimators.mf_task import unit_rows
from freqfm.estimators.vae_fit import VAEFit
from freqfm.estimators.vae_net import decode

__all__ = ["FastVAERecommender"]

_POSITIVE_INTEGER = [Interval(Integral, 1, None, closed="left")]


class FastVAERecommender(VAEFit):
    """Variational autoencoder."""

    _parameter_constraints: dict = {
        "n_components": _POSITIVE_INTEGER,
        "hidden_layer_sizes": ["array-like"],
        "decoder_layer_sizes": ["array-like"],
        "activation": [StrOptions({"tanh", "relu"})],
        "negative_sampler": "no_validation",  # names and instances are resolved in fit
        "n_negatives": [*_POSITIVE_INTEGER, None],
        "n_codewords": [*_POSITIVE_INTEGER, None],
        "kl_weight": [*NON_NEGATIVE, StrOptions({"reference"})],
        "kl_warm_up": _POSITIVE_INTEGER,
        "n_samples": _POSITIVE_INTEGER,
        "dropout": [Interval(Real, 0, 1, closed="left")],
        "dropout_on": [StrOptions({"input", "hidden"})],
        "optimizer": "no_validation",
        "learning_rate": [*POSITIVE, None],
        "max_iter": _POSITIVE_INTEGER,
        "batch_size": [*_POSITIVE_INTEGER, None],
        "weight_decay": NON_NEGATIVE,
        "weight_decay_scope": [StrOptions({"full", "batch"})],
        "n_recommendations": _POSITIVE_INTEGER,
        "early_stopping": ["boolean"],
        "validation_fraction": [Interval(Real, 0, 1, closed="neither")],
        "n_iter_no_change": [*_POSITIVE_INTEGER, None],
        "tol": NON_NEGATIVE,
        "warm_start": ["boolean"],
        "verbose": ["verbose"],
        "n_jobs": [Integral, None],
        "random_state": ["random_state", np.random.Generator],
    }

    def __init__(
        self,
        n_components=64,
        *,
        hidden_layer_sizes=(200,),
        decoder_layer_sizes=(),
        activation="tanh",
        negative_sampler="auto",
        n_negatives=None,
        n_codewords=None,
        kl_weight=0.2,
        kl_warm_up=20,
        n_samples=1,
        dropout=0.5,
        dropout_on="input",
        optimizer="adam",
        learning_rate=None,
        max_iter=50,
        batch_size=None,
        weight_decay=0.0,
        weight_decay_scope="full",
        n_recommendations=10,
        early_stopping=False,
        validation_fraction=0.1,
        n_iter_no_change=10,
        tol=1e-4,
        warm_start=False,
        verbose=0,
        n_jobs=None,
        random_state=None,
    ):
        self.n_components = n_components
        self.hidden_layer_sizes = hidden_layer_sizes
        self.decoder_layer_sizes = decoder_layer_sizes
        self.activation = activation
        self.negative_sampler = negative_sampler
        self.n_negatives = n_negatives
        self.n_codewords = n_codewords
        self.kl_weight = kl_weight
        self.kl_warm_up = kl_warm_up
        self.n_samples = n_samples
        self.dropout = dropout
        self.dropout_on = dropout_on
        self.optimizer = optimizer
        self.learning_rate = learning_rate
        self.max_iter = max_iter
        self.batch_size = batch_size
        self.weight_decay = weight_decay
        self.weight_decay_scope = weight_decay_scope
        self.n_recommendations = n_recommendations
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.tol = tol
        self.warm_start = warm_start
        self.verbose = verbose
        self.n_jobs = n_jobs
        self.random_state = random_state

    @with_callbacks
    def fit(self, X, y=None):
        """Fit the model.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_users, n_items)
            Interactions; values are their weights. Rows and columns may be empty.
        y : Ignored

        Returns
        -------
        self : object

        Raises
        ------
        ValueError
            On input that cannot be learned from: it names the argument, what was found and what to
            do.
        DivergenceError
            If the loss or a weight stops being finite. The model of the last finite epoch is kept.
        """
        self._validate_params()
        reset = not (self.warm_start and hasattr(self, "item_factors_"))
        return self._train(X, reset, partial=False)

    def partial_fit(self, X, y=None):
        """Train one epoch on more interactions; users and items may be new.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_users, n_items)
            New interactions. Rows beyond the users of the model are new users, columns beyond its
            items new items. There may be fewer rows than users, but not fewer columns than items.
        y : Ignored

        Returns
        -------
        self : object
        """
        self._validate_params()
        return self._train(X, not hasattr(self, "item_factors_"), partial=True)

    def transform(self, X):
        """Return the mean of the latent vectors of users by their histories.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_users, n_items)

        Returns
        -------
        embeddings : ndarray of shape (n_users, n_components), float32
            A row without items gives zeros.
        """
        check_is_fitted(self)
        X = self._validate_history(X)
        return self._mean(X.indptr, X.indices, X.data)

    @property
    def _n_features_out(self):
        return self._layers().posterior.shape[1] // 2

    def _item_vectors(self):
        return self.item_factors_

    def _queries_of(self, mean):
        queries, _ = decode(self._layers(), mean, self.activation)
        return np.column_stack([queries, np.ones(len(queries), dtype=np.float32)])

    def _fold_in(self, X):
        return self._queries_of(self._mean(X.indptr, X.indices, X.data))

    def _user_vectors(self, users):
        return self._queries_of(self._mean(*self._history_of(users)))

    def _similarity_vectors(self, axis):
        if axis == "items":
            return unit_rows(self.item_factors_[:, :-1])
        return unit_rows(self._mean(*self._history_of(np.arange(self._n_users))))
