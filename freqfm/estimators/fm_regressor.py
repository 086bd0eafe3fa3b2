"""FMRegressor: factorization machines for real targets."""

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.metrics import r2_score

from freqfm.estimators.fm_base import BaseFM
from freqfm.losses import SquaredError

__all__ = ["FMRegressor"]


class FMRegressor(RegressorMixin, BaseFM):
    """Factorization machine for regression, by the squared error.

    The prediction of a row x is [1]_::

        w_0 + sum_i w_i x_i + sum_{i<j} <v_i, v_j> x_i x_j.

    The loss is half the squared error. Targets far from the scale of 1 are better scaled, for
    instance by ``sklearn.compose.TransformedTargetRegressor``.

    Parameters
    ----------
    n_components : int, default=16
        Length d of the factors v_i, the rank of the interactions.
    optimizer : str or Optimizer, default="cf_sgd"
        "sgd", "fa_sgd", "cf_sgd", "rowwise_adagrad", "adagrad", "adam", or an instance from
        :mod:`freqfm.optimizers`. Parameters of either are searched as ``optimizer__...``.
    learning_rate : float, default=None
        The learning rate; None means the optimizer's own default. Not together with an instance.
    max_iter : int, default=100
        Largest number of epochs of one call to ``fit``.
    batch_size : int, default=1024
        Rows per step. A step uses the exact gradient of its rows.
    alpha_linear : float, default=0.0
        Penalty ``alpha / 2 * w_i^2`` for every row that holds token i, averaged over the batch.
    alpha_factors : float, default=0.01
        Penalty ``alpha / 2 * |v_i|^2`` for every row that holds token i, averaged over the batch.
    init : str or Initializer, default="normal"
        "normal", "xavier", or an instance from :mod:`freqfm.initializers`: where the factors start.
    init_scale : float, default=None
        The initializer's scale; None means its own default. Not together with an instance.
    fit_intercept : bool, default=True
        Whether w_0 is learned; it starts at the mean. False keeps it at 0.
    fit_linear : bool, default=True
        Whether the w_i are learned; they start at 0. False keeps them there.
    early_stopping : bool or "auto", default="auto"
        Whether to hold out part of the rows, stop when R^2 on them stands
        still, and restore the model of the best epoch. "auto" does so from 10,001 rows on.
        Without it, training stops when the training loss stands still.
    validation_fraction : float, default=0.1
        Share of the rows held out.
    n_iter_no_change : int, default=10
        Epochs without an improvement by ``tol`` before training stops. None never stops.
    tol : float, default=1e-4
        Least improvement that counts.
    shuffle : bool, default=True
        Whether every epoch visits the rows in a new random order. More than 16,383 rows are put
        into blocks of 16 at random, once, and the blocks are shuffled.
    warm_start : bool, default=False
        Whether ``fit`` goes on from the model, the counters and the optimizer's state of the last
        call: ten fits of one epoch equal one of ten (without early stopping, which restores the
        best epoch after every call).
    verbose : int, default=0
        1 prints the loss, the validation score and the time left after every epoch.
    n_jobs : int, default=None
        Number of threads; None or -1 uses all cores. The result is the same, to the bit.
    random_state : int, RandomState, Generator or None, default=None
        Seed of the start, the order of rows and the validation part.

    Attributes
    ----------
    intercept_ : ndarray of shape (1,)
        w_0, float32.
    coef_ : ndarray of shape (n_features,)
        w_i, float32.
    factors_ : ndarray of shape (n_features, n_components)
        v_i, float32, one row per feature.
    n_features_in_ : int
        Number of features seen during fit.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of features seen during fit, if ``X`` has string column names.
    n_iter_ : int
        Epochs trained, over all calls.
    best_iter_ : int
        The epoch whose model this is: the best one with early stopping, else the last.
    loss_curve_ : ndarray of shape (`n_iter_`,)
        Mean training loss of every epoch, without the penalty; each batch counts
        with the model it met.
    validation_scores_ : ndarray of shape (`n_iter_`,) or (0,)
        ``r2`` on the held-out rows after every epoch, with early stopping.
    token_counts_ : ndarray of shape (n_features,)
        Weight of the training rows that hold each feature.
    optimizer_state_nbytes_ : int
        Bytes of optimizer state that grow with the features.

    Raises
    ------
    DivergenceError
        From ``fit`` and ``partial_fit``, if the loss or a weight stops being finite.

    See Also
    --------
    FMClassifier : The same model for classes.

    Notes
    -----
    Training takes O(nnz d) per epoch. Besides the model (4 (d + 1) bytes per feature)
    and the optimizer's state it holds: a copy of both for the last whole epoch, and one more for
    the best epoch with early stopping; 8 bytes per stored entry of ``X`` and 16 per row; 4 bytes
    per feature and thread; and 4 d + 64 bytes per row of a batch.

    How the defaults were chosen is told in the user guide.

    References
    ----------
    .. [1] S. Rendle. "Factorization Machines". ICDM 2010, equation (1).

    Examples
    --------
    >>> import numpy as np
    >>> from freqfm import FMRegressor
    >>> X = np.random.default_rng(0).standard_normal((1000, 3))
    >>> y = 1 + X[:, 0] * X[:, 1]
    >>> model = FMRegressor(2, batch_size=100, alpha_factors=0, random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.99)
    True
    """

    _loss = SquaredError()
    _score_name = "r2"

    def partial_fit(self, X, y, sample_weight=None):
        """Train one epoch on these rows, from where training stands.

        Counters and optimizer state carry on: ten calls on the same rows equal one ``fit`` of ten
        epochs. There is no early stopping.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            As many features as in the first call.
        y : array-like of shape (n_samples,)
            Targets.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights of the rows.

        Returns
        -------
        self : object
        """
        self._validate_params()
        return self._train_once(X, y, sample_weight)

    def _encode_target(self, y, classes, reset):
        with np.errstate(over="ignore"):
            target = y.astype(np.float32)[np.newaxis]
        if not np.isfinite(target).all():
            raise ValueError(
                f"y holds {np.abs(y).max():g}, which is too large for float32; divide y by a "
                f"constant, for instance with sklearn's TransformedTargetRegressor."
            )
        return target, None

    def _row_weights(self, y, weight, partial):
        return weight

    def _validation_score(self, target, scores, weight):
        return r2_score(target[0], scores[0], sample_weight=weight)

    def predict(self, X):
        """Return the predicted targets.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)

        Returns
        -------
        y : ndarray of shape (n_samples,)
        """
        return self._scores(X)[0].astype(np.float64)
