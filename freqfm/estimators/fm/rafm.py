"""RaFMClassifier and RaFMRegressor: factorization machines with a rank for each feature."""

from freqfm.estimators.fm.base import BaseFM
from freqfm.estimators.fm.rafm_factors import RankedFactors
from freqfm.estimators.fm.targets import ClassTargets, RealTargets

__all__ = ["RaFMClassifier", "RaFMRegressor"]


class RaFMClassifier(ClassTargets, RankedFactors, BaseFM):
    """Rank-aware factorization machine for classification, by the log loss.

    The score of a row x, the log-odds of the second class, is [1]_::

        w_0 + sum_i w_i x_i + sum_{i<j} <v_i^(p), v_j^(p)> x_i x_j,  p = min(p_i, p_j).

    Feature i has vectors v_i^(1), ..., v_i^(p_i) of the ranks D_1 < ... < D_(p_i), up to the one
    that its frequency supports, and a pair interacts at the largest rank that both have. With F_p
    the features that have rank D_p, A(q, p) the interactions within F_p by their vectors of rank
    D_q, and B(1) the machine of rank D_1 alone, linear part included, ::

        B(p + 1) = B(p) - A(p, p + 1) + A(p + 1, p + 1)

    knows the ranks up to D_(p + 1), and B(m) is the score. A feature's vector of its highest rank
    is free: it follows the loss of the score. Its others are dependent: they make B(p) follow
    B(p + 1).

    Three classes or more get one such score each, trained against the rest.

    Parameters
    ----------
    ranks : array-like of int, default=(8, 32)
        The ranks D_1 < ... < D_m.
    rank_assignment : "nearest" or array-like, default="nearest"
        The highest rank of each feature. "nearest" takes the rank D that is nearest to the
        feature's frequency n: the least abs(log n - log D), equation (17) of [1]_. An array of
        ``len(ranks) - 1`` increasing numbers: features that occur more often than the first get
        the second rank, and so on. An array of shape (n_features,): the ranks themselves.
    counts : array-like of shape (n_features,), default=None
        How often each feature occurs; None counts the training rows.
    rank_sharing : {"separate", "truncate"}, default="separate"
        "separate" keeps a vector of each rank. "truncate" is DiFacto [2]_: one vector, of which a
        pair uses as many coordinates as the shorter one has; nothing is dependent.
    form : {"paper", "reference"}, default="reference"
        What dependent vectors learn from. "paper", algorithm 1 of [1]_: from the distance of B(p)
        to B(p + 1) alone. "reference", the authors' code: from the loss of the score too, through
        pairs with free vectors; and w_0 and the w_i follow the distances too.
    dependent_weight : float, default=1.0
        Weight of the distances of B(p) to B(p + 1), p < m, beside the loss of the score.
    loss : "log" or Loss, default="log"
        What training minimises: the log loss, or an instance of your own class that derives from
        :class:`freqfm.losses.Loss`, such as a hinge loss. Early stopping watches the mean loss on
        held-out rows then, and ``predict_proba`` exists if the loss has an ``expectation``.
    optimizer : str or Optimizer, default="cf_sgd"
        Such as "sgd", "fa_sgd", "cf_sgd", "rowwise_adagrad", "adagrad" or "adam", or an instance
        from :mod:`freqfm.optimizers`. Parameters of either are searched as ``optimizer__...``.
    learning_rate : float, default=None
        The learning rate; None means the optimizer's own default. Not together with an instance.
    max_iter : int, default=100
        Largest number of epochs of one call to ``fit``.
    batch_size : int, default=1024
        Rows per step. A step uses the exact gradient of its rows.
    alpha_linear : float, default=1.0
        Penalty ``alpha_linear / 2 * w_i^2``, added to the sum of the rows' losses.
    alpha_factors : float, default=5.0
        Penalty ``alpha_factors / 2 * |v_i|^2``, likewise.
    alpha_per : {"token", "row"}, default="token"
        Whether the penalty on a token counts once, as in scikit-learn's linear models (it is like
        the 1 / C of ``LogisticRegression``, and ``alpha`` of ``Ridge``), or once for each row that
        holds the token, so that it grows with the data.
    init : str or Initializer, default="normal"
        "normal", "xavier", or an instance from :mod:`freqfm.initializers`: where the factors start.
    init_scale : float, default=None
        The initializer's scale; None means its own default. Not together with an instance.
    fit_intercept : bool, default=True
        Whether w_0 is learned; it starts at the log-odds of the class. False keeps it at 0.
    fit_linear : bool, default=True
        Whether the w_i are learned; they start at 0. False keeps them there.
    early_stopping : bool or "auto", default="auto"
        Whether to hold out part of the rows, find the epoch with the lowest log loss on them, and
        then train a new model on all rows for so many epochs. "auto" does so from 300 rows on, if
        every class has rows enough. Without it, training stops when the training loss stands still.
        With ``X_val`` in ``fit``
        these rows take the place of the part, and the model of the best epoch is kept as it is; so
        it is with ``warm_start=True``.
    validation_fraction : float or "auto", default="auto"
        Share of the rows held out, with the classes in equal shares. "auto" is a tenth; fewer than
        10,000 rows are cross-validated instead: each of five folds, or ten for fewer than 3,000
        rows, is held out from a model that the others train, and the mean of the scores counts.
    n_iter_no_change : int, "auto" or None, default="auto"
        Epochs without an improvement by ``tol`` before training stops. "auto" is 10, but with
        early stopping at least 50 steps. None never stops.
    tol : float, default=1e-4
        Least improvement that counts.
    shuffle : bool, default=True
        Whether every epoch visits the rows in a new random order. More than 16,383 rows are put
        into blocks of 16 at random, once, and the blocks are shuffled.
    class_weight : dict, "balanced" or None, default=None
        Factors of the rows' weights by class.
    warm_start : bool, default=False
        Whether ``fit`` goes on from the model, the counters and the optimizer's state of the last
        call: ten fits of one epoch equal one of ten (without early stopping, which restores the
        best epoch after every call). There is no ``ConvergenceWarning`` then.
    verbose : int, default=0
        1 prints the loss, the validation score and the time left after every epoch.
    n_jobs : int, default=None
        Number of threads, at most one a core; None or -1 uses all cores. The result is the
        same, to the bit.
    random_state : int, RandomState, Generator or None, default=None
        Seed of the start, the order of rows and the validation part.

    Attributes
    ----------
    intercept_ : ndarray of shape (1,) or (n_classes,)
        w_0, float32.
    coef_ : ndarray of shape (n_features,) or (n_classes, n_features)
        w_i, float32.
    factors_ : list of ndarray
        A table for each rank, float32, of shape (n_features of that rank, D_p), or (n_classes,
        ...). With ``rank_sharing="truncate"``, the D_p - D_(p - 1) coordinates that it adds.
    factor_rows_ : ndarray of shape (n_features,)
        The row of each feature, the same in all of its tables.
    feature_ranks_ : ndarray of shape (n_features,)
        The highest rank of each feature.
    ranks_ : ndarray of shape (n_ranks,)
        The ranks.
    n_parameters_ : int
        How many factors and linear weights there are, of all classes.
    classes_ : ndarray of shape (n_classes,)
        The class labels.
    n_features_in_ : int
        Number of features seen during fit.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of features seen during fit, if ``X`` has string column names.
    n_iter_ : int
        Epochs trained, over all calls; without those of the model trained anew on all rows.
    best_iter_ : int
        The epoch whose model this is, or for how many epochs it was trained anew on all rows: the
        best one with early stopping, else the last.
    loss_curve_ : ndarray of shape (`n_iter_`,)
        Mean training loss of every epoch, of the rows not held out, without the penalty, summed
        over the classes; each batch counts with the model it met.
    validation_scores_ : ndarray of shape (`n_iter_`,) or (0,)
        ``neg_log_loss`` of the validation rows after every epoch, with early stopping.
    token_counts_ : ndarray of shape (n_features,)
        Weight of the training rows that hold each feature.
    optimizer_state_nbytes_ : int
        Bytes of optimizer state that grow with the features.

    Raises
    ------
    DivergenceError
        From ``fit`` and ``partial_fit``, if the loss or a weight stops being finite.

    Warns
    -----
    ConvergenceWarning
        From ``fit``, if ``max_iter`` ended it while it still improved.

    See Also
    --------
    RaFMRegressor : The same model for real targets.
    FMClassifier : One rank for all features.

    Notes
    -----
    Scoring and training take O(D_1 n(F_1) + ... + D_m n(F_m)) per row, for n(F_p) entries of
    features that have rank D_p. The model takes 4 (D_1 + ... + D_(p_i) + 1) bytes per feature and
    class: vectors that a feature does not have are not stored. Training holds, besides this and the
    optimizer's state, a copy of both for the last whole epoch, and one more for the best epoch with
    early stopping; 16 (D_1 + ... + D_m) + 56 (m + 1) bytes per row of a batch; and per stored entry
    and row of ``X`` and per feature as much as :class:`FMClassifier`.

    One rank is a plain FM, whose defaults the parameters from ``optimizer`` on have.

    References
    ----------
    .. [1] X. Chen, Y. Zheng, J. Wang, W. Ma, J. Huang. "RaFM: Rank-Aware Factorization Machines".
       ICML 2019.
    .. [2] M. Li, Z. Liu, A. J. Smola, Y.-X. Wang. "DiFacto: Distributed Factorization Machines".
       WSDM 2016.

    Examples
    --------
    >>> from freqfm import RaFMClassifier
    >>> from freqfm.datasets import make_clicks
    >>> X, y = make_clicks(3000, (200, 100), random_state=0)
    >>> model = RaFMClassifier((4, 16), rank_assignment=[50], random_state=0).fit(X, y)
    >>> [table.shape for table in model.factors_]
    [(300, 4), (20, 16)]
    >>> model.predict_proba(X[:2]).shape
    (2, 2)
    >>> model.n_parameters_, model.up_to_rank(4).n_parameters_
    (1820, 1500)
    """

    _parameter_constraints = {
        **BaseFM._parameter_constraints,
        **RankedFactors._parameter_constraints,
        **ClassTargets._parameter_constraints,
    }

    def __init__(
        self,
        ranks=(8, 32),
        *,
        rank_assignment="nearest",
        counts=None,
        rank_sharing="separate",
        form="reference",
        dependent_weight=1.0,
        loss="log",
        optimizer="cf_sgd",
        learning_rate=None,
        max_iter=100,
        batch_size=1024,
        alpha_linear=1.0,
        alpha_factors=5.0,
        alpha_per="token",
        init="normal",
        init_scale=None,
        fit_intercept=True,
        fit_linear=True,
        early_stopping="auto",
        validation_fraction="auto",
        n_iter_no_change="auto",
        tol=1e-4,
        shuffle=True,
        class_weight=None,
        warm_start=False,
        verbose=0,
        n_jobs=None,
        random_state=None,
    ):
        super().__init__(
            loss=loss,
            optimizer=optimizer,
            learning_rate=learning_rate,
            max_iter=max_iter,
            batch_size=batch_size,
            alpha_linear=alpha_linear,
            alpha_factors=alpha_factors,
            alpha_per=alpha_per,
            init=init,
            init_scale=init_scale,
            fit_intercept=fit_intercept,
            fit_linear=fit_linear,
            early_stopping=early_stopping,
            validation_fraction=validation_fraction,
            n_iter_no_change=n_iter_no_change,
            tol=tol,
            shuffle=shuffle,
            warm_start=warm_start,
            verbose=verbose,
            n_jobs=n_jobs,
            random_state=random_state,
        )
        self.ranks = ranks
        self.rank_assignment = rank_assignment
        self.counts = counts
        self.rank_sharing = rank_sharing
        self.form = form
        self.dependent_weight = dependent_weight
        self.class_weight = class_weight


class RaFMRegressor(RealTargets, RankedFactors, BaseFM):
    """Rank-aware factorization machine for regression, by the squared error.

    The prediction of a row x is [1]_::

        w_0 + sum_i w_i x_i + sum_{i<j} <v_i^(p), v_j^(p)> x_i x_j,  p = min(p_i, p_j).

    Feature i has vectors v_i^(1), ..., v_i^(p_i) of the ranks D_1 < ... < D_(p_i), up to the one
    that its frequency supports, and a pair interacts at the largest rank that both have. How it is
    computed, and how vectors learn, is described in :class:`RaFMClassifier`. The loss is half the
    squared error. Targets far from the scale of 1 are better scaled, for instance by
    ``sklearn.compose.TransformedTargetRegressor``.

    Parameters
    ----------
    ranks : array-like of int, default=(8, 32)
        The ranks D_1 < ... < D_m.
    rank_assignment : "nearest" or array-like, default="nearest"
        The highest rank of each feature. "nearest" takes the rank D that is nearest to the
        feature's frequency n: the least abs(log n - log D), equation (17) of [1]_. An array of
        ``len(ranks) - 1`` increasing numbers: features that occur more often than the first get
        the second rank, and so on. An array of shape (n_features,): the ranks themselves.
    counts : array-like of shape (n_features,), default=None
        How often each feature occurs; None counts the training rows.
    rank_sharing : {"separate", "truncate"}, default="separate"
        "separate" keeps a vector of each rank. "truncate" is DiFacto [2]_: one vector, of which a
        pair uses as many coordinates as the shorter one has; nothing is dependent.
    form : {"paper", "reference"}, default="reference"
        What dependent vectors learn from. "paper", algorithm 1 of [1]_: from the distance of B(p)
        to B(p + 1) alone. "reference", the authors' code: from the loss of the score too, through
        pairs with free vectors; and w_0 and the w_i follow the distances too.
    dependent_weight : float, default=1.0
        Weight of the distances of B(p) to B(p + 1), p < m, beside the loss of the score.
    loss : str or Loss, default="squared"
        What training minimises, such as "squared", "huber", "poisson" or "quantile", or an instance
        from :mod:`freqfm.losses`, be it of your own class. Early stopping watches the mean loss on
        held-out rows in place of R^2 for all but "squared".
    optimizer : str or Optimizer, default="cf_sgd"
        Such as "sgd", "fa_sgd", "cf_sgd", "rowwise_adagrad", "adagrad" or "adam", or an instance
        from :mod:`freqfm.optimizers`. Parameters of either are searched as ``optimizer__...``.
    learning_rate : float, default=None
        The learning rate; None means the optimizer's own default. Not together with an instance.
    max_iter : int, default=100
        Largest number of epochs of one call to ``fit``.
    batch_size : int, default=1024
        Rows per step. A step uses the exact gradient of its rows.
    alpha_linear : float, default=1.0
        Penalty ``alpha_linear / 2 * w_i^2``, added to the sum of the rows' losses.
    alpha_factors : float, default=5.0
        Penalty ``alpha_factors / 2 * |v_i|^2``, likewise.
    alpha_per : {"token", "row"}, default="token"
        Whether the penalty on a token counts once, as in scikit-learn's linear models (it is like
        the 1 / C of ``LogisticRegression``, and ``alpha`` of ``Ridge``), or once for each row that
        holds the token, so that it grows with the data.
    init : str or Initializer, default="normal"
        "normal", "xavier", or an instance from :mod:`freqfm.initializers`: where the factors start.
    init_scale : float, default=None
        The initializer's scale; None means its own default. Not together with an instance.
    fit_intercept : bool, default=True
        Whether w_0 is learned; it starts at the mean. False keeps it at 0.
    fit_linear : bool, default=True
        Whether the w_i are learned; they start at 0. False keeps them there.
    early_stopping : bool or "auto", default="auto"
        Whether to hold out part of the rows, find the epoch whose R^2 on them is best, and then
        train a new model on all rows for so many epochs. "auto" does so from 300 rows on.
        Without it, training stops when the training loss stands still. With ``X_val`` in ``fit``
        these rows take the place of the part, and the model of the best epoch is kept as it is; so
        it is with ``warm_start=True``.
    validation_fraction : float or "auto", default="auto"
        Share of the rows held out. "auto" is a tenth; fewer than 10,000 rows are cross-validated
        instead: each of five folds, or ten for fewer than 3,000 rows, is held out from a model that
        the others train, and the mean of the scores counts.
    n_iter_no_change : int, "auto" or None, default="auto"
        Epochs without an improvement by ``tol`` before training stops. "auto" is 10, but with
        early stopping at least 50 steps. None never stops.
    tol : float, default=1e-4
        Least improvement that counts.
    shuffle : bool, default=True
        Whether every epoch visits the rows in a new random order. More than 16,383 rows are put
        into blocks of 16 at random, once, and the blocks are shuffled.
    warm_start : bool, default=False
        Whether ``fit`` goes on from the model, the counters and the optimizer's state of the last
        call: ten fits of one epoch equal one of ten (without early stopping, which restores the
        best epoch after every call). There is no ``ConvergenceWarning`` then.
    verbose : int, default=0
        1 prints the loss, the validation score and the time left after every epoch.
    n_jobs : int, default=None
        Number of threads, at most one a core; None or -1 uses all cores. The result is the
        same, to the bit.
    random_state : int, RandomState, Generator or None, default=None
        Seed of the start, the order of rows and the validation part.

    Attributes
    ----------
    intercept_ : ndarray of shape (1,)
        w_0, float32.
    coef_ : ndarray of shape (n_features,)
        w_i, float32.
    factors_ : list of ndarray
        A table for each rank, float32, of shape (n_features of that rank, D_p).
        With ``rank_sharing="truncate"``, the D_p - D_(p - 1) coordinates that the rank adds.
    factor_rows_ : ndarray of shape (n_features,)
        The row of each feature, the same in all of its tables.
    feature_ranks_ : ndarray of shape (n_features,)
        The highest rank of each feature.
    ranks_ : ndarray of shape (n_ranks,)
        The ranks.
    n_parameters_ : int
        How many factors and linear weights there are.
    n_features_in_ : int
        Number of features seen during fit.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of features seen during fit, if ``X`` has string column names.
    n_iter_ : int
        Epochs trained, over all calls; without those of the model trained anew on all rows.
    best_iter_ : int
        The epoch whose model this is, or for how many epochs it was trained anew on all rows: the
        best one with early stopping, else the last.
    loss_curve_ : ndarray of shape (`n_iter_`,)
        Mean training loss of every epoch, of the rows not held out, without the penalty; each batch
        counts with the model it met.
    validation_scores_ : ndarray of shape (`n_iter_`,) or (0,)
        ``r2`` of the validation rows after every epoch, with early stopping.
    token_counts_ : ndarray of shape (n_features,)
        Weight of the training rows that hold each feature.
    optimizer_state_nbytes_ : int
        Bytes of optimizer state that grow with the features.

    Raises
    ------
    DivergenceError
        From ``fit`` and ``partial_fit``, if the loss or a weight stops being finite.

    Warns
    -----
    ConvergenceWarning
        From ``fit``, if ``max_iter`` ended it while it still improved.

    See Also
    --------
    RaFMClassifier : The same model for classes.
    FMRegressor : One rank for all features.

    Notes
    -----
    Time, memory and defaults are those of :class:`RaFMClassifier`, for two classes.

    References
    ----------
    .. [1] X. Chen et al. "RaFM: Rank-Aware Factorization Machines". ICML 2019.
    .. [2] M. Li et al. "DiFacto: Distributed Factorization Machines". WSDM 2016.

    Examples
    --------
    >>> import numpy as np
    >>> from freqfm import RaFMRegressor
    >>> X = np.random.default_rng(0).standard_normal((1000, 3))
    >>> y = 1 + X[:, 0] * X[:, 1]
    >>> model = RaFMRegressor((1, 2), batch_size=100, alpha_factors=0, random_state=0).fit(X, y)
    >>> model.feature_ranks_.tolist()
    [2, 2, 2]
    >>> bool(model.score(X, y) > 0.99)
    True
    """

    _parameter_constraints = {
        **BaseFM._parameter_constraints,
        **RankedFactors._parameter_constraints,
    }

    def __init__(
        self,
        ranks=(8, 32),
        *,
        rank_assignment="nearest",
        counts=None,
        rank_sharing="separate",
        form="reference",
        dependent_weight=1.0,
        loss="squared",
        optimizer="cf_sgd",
        learning_rate=None,
        max_iter=100,
        batch_size=1024,
        alpha_linear=1.0,
        alpha_factors=5.0,
        alpha_per="token",
        init="normal",
        init_scale=None,
        fit_intercept=True,
        fit_linear=True,
        early_stopping="auto",
        validation_fraction="auto",
        n_iter_no_change="auto",
        tol=1e-4,
        shuffle=True,
        warm_start=False,
        verbose=0,
        n_jobs=None,
        random_state=None,
    ):
        super().__init__(
            loss=loss,
            optimizer=optimizer,
            learning_rate=learning_rate,
            max_iter=max_iter,
            batch_size=batch_size,
            alpha_linear=alpha_linear,
            alpha_factors=alpha_factors,
            alpha_per=alpha_per,
            init=init,
            init_scale=init_scale,
            fit_intercept=fit_intercept,
            fit_linear=fit_linear,
            early_stopping=early_stopping,
            validation_fraction=validation_fraction,
            n_iter_no_change=n_iter_no_change,
            tol=tol,
            shuffle=shuffle,
            warm_start=warm_start,
            verbose=verbose,
            n_jobs=n_jobs,
            random_state=random_state,
        )
        self.ranks = ranks
        self.rank_assignment = rank_assignment
        self.counts = counts
        self.rank_sharing = rank_sharing
        self.form = form
        self.dependent_weight = dependent_weight
