"""Factorization machines with a vector of one rank for each feature, or of several ranks."""

from dataclasses import dataclass

from freqfm._docs import described_like
from freqfm.estimators.fm.factors import PlainFactors, RankedFactors
from freqfm.estimators.fm.targets import ClassTargets, RealTargets


@dataclass(eq=False, repr=False, kw_only=True)
class FMRegressor(RealTargets, PlainFactors):
    """Factorization machine for regression, by the squared error.

    The prediction of a row x is [1]_::

        w_0 + sum_i w_i x_i + sum_{i<j} <v_i, v_j> x_i x_j.

    The loss is half the squared error. Scale targets that are far from 1,
    for instance with ``sklearn.compose.TransformedTargetRegressor``.

    Parameters
    ----------
    n_components : int, default=16
        Length d of the factors v_i, the rank of the interactions.
    loss : str or Loss, default="squared"
        The loss to minimise, such as "squared", "huber", "poisson" or "quantile", or an instance
        from :mod:`freqfm.losses` or of a custom class. Except with "squared", early stopping
        monitors the mean loss on held-out rows instead of R^2.
    optimizer : str or Optimizer, default="cf_sgd"
        Such as "sgd", "fa_sgd", "cf_sgd", "rowwise_adagrad", "adagrad" or "adam", or an instance
        from :mod:`freqfm.optimizers`. Searches can set its parameters as ``optimizer__...``.
    learning_rate : float, default=None
        The learning rate; None means the optimizer's default, and 0.75 for "fa_sgd". Not allowed
        with an instance that has its own.
    max_iter : int, default=100
        Maximum number of epochs in one call to ``fit``. The last two, of ten or more, are at
        falling learning rates, see :ref:`settling`.
    batch_size : int, default=1024
        Rows per step; with fewer than 256 steps an epoch, the most rows per step, as the rows are
        then divided evenly. A step uses the exact gradient over its rows.
    alpha_linear : float or "auto", default="auto"
        Penalty ``alpha_linear / 2 * w_i^2``, added to the sum of the rows' losses. "auto" is chosen
        with ``alpha_factors`` by the score of the validation rows of early stopping, see
        :doc:`/user_guide`: 1 and 5, 10 and 25, or 100 and 300. It is 1 without validation rows,
        on streams, with more than 100,000 rows, and with ``alpha_per="row"``.
    alpha_factors : float or "auto", default="auto"
        Penalty ``alpha_factors / 2 * |v_i|^2``, added likewise. "auto" is chosen likewise, or 5.
    alpha_per : {"token", "row"}, default="token"
        Whether the penalty on a token counts once, as in scikit-learn's linear models (like 1 / C
        of ``LogisticRegression`` and ``alpha`` of ``Ridge``), or once for each row that holds the
        token, so that it grows with the data.
    init : str or Initializer, default="normal"
        Initial values of the factors: "normal", "xavier", or an instance from
        :mod:`freqfm.initializers`, such as ``Normal(scale)``.
    fit_intercept : bool, default=True
        Whether w_0 is learned; it starts at the mean. False keeps it at 0.
    fit_linear : bool, default=True
        Whether the w_i are learned; they start at 0. False keeps them there.
    early_stopping : bool or "auto", default="auto"
        Whether to hold out part of the rows, find the epoch with the best R^2 on them, and then
        train a new model on all rows for that many epochs. "auto" does so for 300 rows or more.
        Without early stopping, training ends when the training loss no longer improves. With
        ``X_val`` in ``fit`` those rows are used instead of held-out ones, and the model of the best
        epoch is kept, without training again; the latter is also the case with
        ``warm_start=True``.
    validation_fraction : float or "auto", default="auto"
        Share of the rows held out. "auto" is a tenth; fewer than 10,000 rows are cross-validated
        instead: each of five folds, or ten for fewer than 3,000 rows, is held out from a model that
        the others train, and the mean of the scores is used.
    scoring : str or callable, default="loss"
        The score that early stopping maximises on held-out rows: "loss" for ``r2``, or
        the negative mean of another loss; the name of a scorer of scikit-learn, such as
        "neg_mean_absolute_error"; or a callable ``scorer(estimator, X, y)`` that returns a number,
        which is also given ``sample_weight`` if rows have weights. Streams and Dask take "loss"
        only.
    n_iter_no_change : int, "auto" or None, default="auto"
        Epochs without an improvement by ``tol`` before training stops. "auto" is 10 epochs, but
        with early stopping at least 50 steps. None never stops.
    tol : float, default=1e-4
        Smallest change that is an improvement.
    shuffle : bool, default=True
        Whether every epoch visits the rows in a new random order. More than 16,383 rows are divided
        into random blocks of 16 once, and every epoch shuffles the blocks.
    warm_start : bool, default=False
        Whether ``fit`` continues from the model, the counters and the optimizer state of the last
        call, at full learning rates: ten fits of one epoch equal one of ten, but for its last
        epochs, see :ref:`settling` (without early stopping, which restores the best epoch after
        every call). There is no ``ConvergenceWarning`` then.
    verbose : int, default=0
        1 prints what ``fit`` is doing, and shows the loss, the validation score and the remaining
        time, as a bar in terminals and notebooks if rich is installed, else as a line for each
        epoch. 2 always prints lines.
    n_jobs : int, default=None
        Number of threads, at most one per core; None or -1 uses all cores. Results are bitwise
        identical for any number.
    random_state : int, RandomState, Generator or None, default=None
        Seed of the initial values, the order of rows and the validation part.
    device : str, default="cpu"
        Where the model trains and predicts: "cpu"; "cuda" for an NVIDIA GPU, or "cuda:1" for the
        second one; "auto" for a GPU if one can be used, else the CPU. See :ref:`gpu`.

    Attributes
    ----------
    intercept_ : ndarray of shape (1,)
        w_0, float32.
    coef_ : ndarray of shape (n_features,)
        w_i, float32.
    factors_ : ndarray of shape (n_features, n_components)
        v_i, float32, one row per feature.
    alpha_linear_, alpha_factors_ : float
        The penalties of the model: those given, or what "auto" has become.
    n_features_in_ : int
        Number of features seen during fit.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of features seen during fit, if ``X`` has string column names.
    n_iter_ : int
        Epochs trained, over all calls, excluding those of the new model trained on all rows.
    best_iter_ : int
        The epoch whose model this is, or the number of epochs for which the new model was trained
        on all rows: the best one with early stopping, else the last.
    loss_curve_ : ndarray of shape (`n_iter_`,)
        Mean training loss of every epoch, over the rows not held out, without the penalty; the loss
        of each batch is taken before its step.
    validation_scores_ : ndarray of shape (`n_iter_`,) or (0,)
        ``r2``, or the score that ``scoring`` names, of the validation rows after every
        epoch, with early stopping.
    token_counts_ : ndarray of shape (n_features,)
        Total weight of the training rows that hold each feature.
    optimizer_state_nbytes_ : int
        Bytes of optimizer state that grow with the number of features.

    Raises
    ------
    DivergenceError
        From ``fit`` and ``partial_fit``, if the loss or a weight stops being finite.

    Warns
    -----
    ConvergenceWarning
        From ``fit``, if ``max_iter`` was reached while the model still improved.

    See Also
    --------
    FMClassifier : The same model for classes.

    Notes
    -----
    A default fit takes about 2.5 CPU seconds for the 57,722 rows of 10 features of Frappe. The
    first one also compiles, for about 7.

    Training takes O(nnz d) per epoch. Besides the model (4 (d + 1) bytes per feature)
    and the optimizer state it holds: a copy of both for the last complete epoch, and another for
    the best epoch with early stopping; 8 bytes per stored entry of ``X``, and 32 per row, or 40
    with early stopping; 8 more per row with weights; 12 bytes per feature; 4 d + 40 bytes per row
    of a batch and 12 per entry of it, and for each thread 20 and 60 more. An ``X`` that is not
    float32 CSR with 32-bit indices is copied. With callbacks, the rows left for training by early
    stopping are copied too. A choice of penalties, with 100,000 rows or fewer, keeps another copy
    of the model.

    How the defaults were chosen: :doc:`reference results </results_fm>`.

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


@described_like(FMRegressor)
@dataclass(eq=False, repr=False, kw_only=True)
class FMClassifier(ClassTargets, PlainFactors):
    """Factorization machine for classification, by the log loss.

    The score of a row x is [1]_::

        w_0 + sum_i w_i x_i + sum_{i<j} <v_i, v_j> x_i x_j,

    the log-odds of the second class. Three classes or more get one such score each, trained
    against the rest.

    Parameters
    ----------
    loss : "log" or Loss, default="log"
        The loss to minimise: the log loss, or an instance of a custom class derived from
        :class:`freqfm.losses.Loss`, such as a hinge loss. Early stopping then monitors the mean
        loss on held-out rows, and ``predict_proba`` exists if the loss has an ``expectation``.
    learning_rate : float, default=None
        The learning rate; None means the optimizer's default. Not allowed with an instance that has
        its own.
    alpha_linear : float or "auto", default="auto"
        Penalty ``alpha_linear / 2 * w_i^2``, added to the sum of the rows' losses. "auto" is chosen
        with ``alpha_factors`` by the score of the validation rows of early stopping, see
        :doc:`/user_guide`: 1 and 5, 0.3 and 25, or 10 and 25. It is 1 without validation rows,
        on streams, with more than 100,000 rows, and with ``alpha_per="row"``.
    fit_intercept : bool, default=True
        Whether w_0 is learned; it starts at the log-odds of the class. False keeps it at 0.
    early_stopping : bool or "auto", default="auto"
        Whether to hold out part of the rows, find the epoch with the best score on them, and
        then train a new model on all rows for that many epochs. "auto" does so for 300 rows or
        more, if every class has enough rows. Without early stopping, training ends when the
        training loss no longer improves. With ``X_val`` in ``fit`` those rows are used instead of
        held-out ones, and the model of the best epoch is kept, without training again; the latter
        is also the case with ``warm_start=True``.
    validation_fraction : float or "auto", default="auto"
        Share of the rows held out, stratified by class. "auto" is a tenth; fewer than
        10,000 rows are cross-validated instead: each of five folds, or ten for fewer than 3,000
        rows, is held out from a model that the others train, and the mean of the scores is used.
    scoring : str or callable, default="loss"
        The score that early stopping maximises on held-out rows: "loss" for ``neg_log_loss``, or
        the negative mean of another loss; the name of a scorer of scikit-learn, such as
        "roc_auc"; or a callable ``scorer(estimator, X, y)`` that returns a number, which is
        also given ``sample_weight`` if rows have weights (with those of classes). Streams and Dask
        take "loss" only.
    shuffle
    class_weight : dict, "balanced" or None, default=None
        Factor of the weights of each class's rows. With "balanced" all classes have the same weight
        in total, counted with ``sample_weight``.

    Attributes
    ----------
    intercept_ : ndarray of shape (1,) or (n_classes,)
        w_0, float32.
    coef_ : ndarray of shape (n_features,) or (n_classes, n_features)
        w_i, float32.
    factors_ : ndarray of shape (n_features, n_components) or (n_classes, n_features, n_components)
        v_i, float32, one row per feature.
    classes_ : ndarray of shape (n_classes,)
        The class labels.
    loss_curve_ : ndarray of shape (`n_iter_`,)
        Mean training loss of every epoch, over the rows not held out, without the penalty, summed
        over the classes; the loss of each batch is taken before its step.
    validation_scores_ : ndarray of shape (`n_iter_`,) or (0,)
        ``neg_log_loss``, or the score that ``scoring`` names, of the validation rows after every
        epoch, with early stopping.

    See Also
    --------
    FMRegressor : The same model for real targets.

    Notes
    -----
    A default fit takes about 3 CPU seconds for the 57,722 rows of 10 features of Frappe. The first
    one also compiles, for about 7.

    Training takes O(nnz d) per epoch. Besides the model (4 (d + 1) bytes per feature and class)
    and the optimizer state it holds: a copy of both for the last complete epoch, and another for
    the best epoch with early stopping; 8 bytes per stored entry of ``X``, and 32 per row, or 40
    with early stopping; 8 more per row with weights; for three classes or more, 4 more per row and
    class, or 10 with early stopping; 12 bytes per feature; 4 d + 40 bytes per row of a batch and 12
    per entry of it, and for each thread 20 and 60 more. Before that, drawing the validation part
    takes about 100 bytes per row. An ``X`` that is not float32 CSR with 32-bit indices is copied.
    With callbacks, the rows left for training by early stopping are copied too. A choice of
    penalties, with 100,000 rows or fewer, keeps another copy of the model.

    How the defaults were chosen: :doc:`reference results </results_fm>`.

    References
    ----------
    .. [1] S. Rendle. "Factorization Machines". ICDM 2010, equation (1).
    .. [2] Y. Li, D. Choudhary, X. Wei, B. Yuan, B. Bhushanam, T. Zhao, G. Lan. "Frequency-aware
       SGD for Efficient Embedding Learning with Provable Benefits". ICLR 2022.

    Examples
    --------
    >>> from freqfm import FMClassifier
    >>> from freqfm.datasets import make_clicks
    >>> X, y = make_clicks(3000, (200, 100), random_state=0)
    >>> model = FMClassifier(n_components=8, random_state=0).fit(X, y)
    >>> model.factors_.shape
    (300, 8)
    >>> model.predict_proba(X[:2]).shape
    (2, 2)
    """


@described_like(FMRegressor)
@dataclass(eq=False, repr=False, kw_only=True)
class RaFMRegressor(RealTargets, RankedFactors):
    """Rank-aware factorization machine for regression, by the squared error.

    The prediction of a row x is [1]_::

        w_0 + sum_i w_i x_i + sum_{i<j} <v_i^(p), v_j^(p)> x_i x_j,  p = min(p_i, p_j).

    Feature i has vectors v_i^(1), ..., v_i^(p_i) of the ranks D_1 < ... < D_(p_i), up to the one
    that its frequency supports, and a pair interacts at the largest rank that both have. How it is
    computed, and how vectors are trained, is described in :class:`RaFMClassifier`. The loss is half
    the squared error. Scale targets that are far from 1, for instance with
    ``sklearn.compose.TransformedTargetRegressor``.

    Parameters
    ----------
    ranks : array-like of int, default=(8, 32)
        The ranks D_1 < ... < D_m.
    rank_assignment : "nearest" or array-like, default="nearest"
        The highest rank of each feature. "nearest" takes the rank D that is nearest to the
        feature's frequency n: the smallest abs(log n - log D), equation (17) of [1]_. An array of
        ``len(ranks) - 1`` increasing numbers: features that occur more often than the first get
        the second rank, and so on. An array of shape (n_features,): the ranks themselves.
    counts : array-like of shape (n_features,), default=None
        How often each feature occurs; None counts the training rows.
    rank_sharing : {"separate", "truncate"}, default="separate"
        "separate" keeps a vector for each rank. "truncate" is DiFacto [2]_: one vector, of which a
        pair uses as many coordinates as the shorter one has; no vector is dependent.
    form : {"paper", "reference"}, default="reference"
        What dependent vectors are trained on. "paper", algorithm 1 of [1]_: only the distance of
        B(p) to B(p + 1). "reference", the authors' code: the loss of the score too, through pairs
        with free vectors; and w_0 and the w_i are trained on the distances too.
    dependent_weight : float, default=1.0
        Weight of the distances of B(p) to B(p + 1), p < m, relative to the loss of the score.

    Attributes
    ----------
    factors_ : list of ndarray
        A table for each rank, float32, of shape (n_features of that rank, D_p).
        With ``rank_sharing="truncate"``, the D_p - D_(p - 1) coordinates that the rank adds.
    factor_rows_ : ndarray of shape (n_features,)
        The row of each feature, which is the same in all of its tables.
    feature_ranks_ : ndarray of shape (n_features,)
        The highest rank of each feature.
    ranks_ : ndarray of shape (n_ranks,)
        The ranks.
    n_parameters_ : int
        Number of factors and linear weights.

    See Also
    --------
    RaFMClassifier : The same model for classes.
    FMRegressor : One rank for all features.

    Notes
    -----
    A default fit takes about 6 CPU seconds for the 57,722 rows of 10 features of Frappe. The first
    one also compiles, for about 9.

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


@described_like(FMClassifier, RaFMRegressor)
@dataclass(eq=False, repr=False, kw_only=True)
class RaFMClassifier(ClassTargets, RankedFactors):
    """Rank-aware factorization machine for classification, by the log loss.

    The score of a row x, the log-odds of the second class, is [1]_::

        w_0 + sum_i w_i x_i + sum_{i<j} <v_i^(p), v_j^(p)> x_i x_j,  p = min(p_i, p_j).

    Feature i has vectors v_i^(1), ..., v_i^(p_i) of the ranks D_1 < ... < D_(p_i), up to the one
    that its frequency supports, and a pair interacts at the largest rank that both have. With F_p
    the features that have rank D_p, A(q, p) the interactions within F_p by their vectors of rank
    D_q, and B(1) the plain factorization machine of rank D_1, linear part included, ::

        B(p + 1) = B(p) - A(p, p + 1) + A(p + 1, p + 1)

    is the model with ranks up to D_(p + 1), and B(m) is the score. A feature's vector of its
    highest rank is free: it is trained on the loss of the score. Its other vectors are dependent:
    they are trained to bring B(p) close to B(p + 1).

    Three classes or more get one such score each, trained against the rest.

    Attributes
    ----------
    factors_ : list of ndarray
        A table for each rank, float32, of shape (n_features of that rank, D_p), or (n_classes,
        ...). With ``rank_sharing="truncate"``, the D_p - D_(p - 1) coordinates that it adds.
    n_parameters_ : int
        Number of factors and linear weights, over all classes.

    See Also
    --------
    RaFMRegressor : The same model for real targets.
    FMClassifier : One rank for all features.

    Notes
    -----
    A default fit takes about 8 CPU seconds for the 57,722 rows of 10 features of Frappe. The first
    one also compiles, for about 9.

    Scoring and training take O(D_1 n(F_1) + ... + D_m n(F_m)) per row, with n(F_p) entries of
    features that have rank D_p. The model takes 4 (D_1 + ... + D_(p_i) + 1) bytes per feature and
    class: vectors that a feature does not have are not stored. Besides this and the optimizer
    state, training holds a copy of both for the last complete epoch, and another for the best epoch
    with early stopping; 8 m D_m + 56 (m + 1) bytes per row of a batch; per stored
    entry and row of ``X`` as much as :class:`FMClassifier`; and 20 bytes per feature, and 4 more
    for each thread.

    With one rank this is a plain FM. Defaults from ``optimizer`` on are those of the plain FM.

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
