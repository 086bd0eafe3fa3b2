"""FwFMClassifier and FwFMRegressor: field-weighted factorization machines."""

from dataclasses import dataclass

from freqfm.estimators.fm.field_factors import FieldWeightedFactors
from freqfm.estimators.fm.targets import ClassTargets, RealTargets


@dataclass(eq=False, repr=False, kw_only=True)
class FwFMClassifier(ClassTargets, FieldWeightedFactors):
    """Field-weighted factorization machine for classification, by the log loss.

    The score of a row x is [1]_::

        w_0 + sum_i w_i x_i + sum_{i<j} r_{f(i)f(j)} <v_i, v_j> x_i x_j,

    the log-odds of the second class, where f(i) is the field of column i and r holds a learned
    weight for each pair of fields, and for pairs within a field. All start at 1, with which the
    model is an :class:`FMClassifier`, and those of pairs that occur keep their mean. Three classes
    or more get one such score each, trained against the rest.

    Parameters
    ----------
    n_components : int, default=16
        Length d of the factors v_i, the rank of the interactions.
    fields : array-like of shape (n_features,), callable or None, default=None
        The field of each column, as integers or strings; a field is the set of columns that come
        from one original variable. :func:`column_fields` reads it from a fitted encoder. A callable
        gets the ``X`` of ``fit`` or ``partial_fit``, also a stream, and returns an array. None
        takes the fields that the rows of :class:`WithFields` carry, or of a stream that it encodes.
        With other rows it makes each column a field of its own, for up to 256 columns that are not
        evidently categories of one variable.
    loss : "log" or Loss, default="log"
        The loss to minimise: the log loss, or an instance of a custom class derived from
        :class:`freqfm.losses.Loss`, such as a hinge loss. Early stopping then monitors the mean
        loss on held-out rows, and ``predict_proba`` exists if the loss has an ``expectation``.
    optimizer : str or Optimizer, default="cf_sgd"
        Such as "sgd", "fa_sgd", "cf_sgd", "rowwise_adagrad", "adagrad" or "adam", or an instance
        from :mod:`freqfm.optimizers`. Searches can set its parameters as ``optimizer__...``.
    field_optimizer : str or Optimizer, default="adam"
        The optimizer of the weights of pairs: "adam", "adagrad" or "sgd", or an instance from
        :mod:`freqfm.optimizers` or of a custom class, with one learning rate for all weights.
        Searches can set its parameters as ``field_optimizer__...``.
    learning_rate : float, default=None
        The learning rate of ``optimizer``; None means its default. Not allowed with an instance
        that has its own.
    max_iter : int, default=100
        Maximum number of epochs in one call to ``fit``. The last two, of ten or more, are at
        falling learning rates, see :ref:`settling`.
    batch_size : int, default=1024
        Rows per step; with fewer than 256 steps an epoch, the most rows per step, as the rows are
        then divided evenly. A step uses the exact gradient over its rows.
    alpha_linear : float or "auto", default="auto"
        Penalty ``alpha_linear / 2 * w_i^2``, added to the sum of the rows' losses. "auto" is chosen
        with ``alpha_factors`` by the score of the validation rows of early stopping, see
        :doc:`/user_guide`: 1 and 5, 0.3 and 25, or 10 and 25. It is 1 without validation rows,
        on streams, with more than 100,000 rows, and with ``alpha_per="row"``.
    alpha_factors : float or "auto", default="auto"
        Penalty ``alpha_factors / 2 * |v_i|^2``, added likewise. "auto" is chosen likewise, or 5.
    alpha_fields : float, default=100.0
        Penalty ``alpha_fields / 2 * (r - 1)^2`` of each weight r of a pair of fields, added
        likewise; it counts once, or with ``alpha_per="row"`` once for each row.
    alpha_per : {"token", "row"}, default="token"
        Whether the penalty on a token counts once, as in scikit-learn's linear models (like 1 / C
        of ``LogisticRegression`` and ``alpha`` of ``Ridge``), or once for each row that holds the
        token, so that it grows with the data.
    init : str or Initializer, default="normal"
        Initial values of the factors: "normal", "xavier", or an instance from
        :mod:`freqfm.initializers`.
    init_scale : float, default=None
        The initializer's scale; None means its default. Not allowed with an instance that has its
        own.
    fit_intercept : bool, default=True
        Whether w_0 is learned; it starts at the log-odds of the class. False keeps it at
        0.
    fit_linear : bool, default=True
        Whether the w_i are learned; they start at 0. False keeps them there.
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
    n_iter_no_change : int, "auto" or None, default="auto"
        Epochs without an improvement by ``tol`` before training stops. "auto" is 10 epochs, but
        with early stopping at least 50 steps. None never stops.
    tol : float, default=1e-4
        Smallest change that is an improvement.
    shuffle : bool, default=True
        Whether every epoch visits the rows in a new random order. More than 16,383 rows are divided
        into random blocks of 16 once, and every epoch shuffles the blocks.
    class_weight : dict, "balanced" or None, default=None
        Factor of the weights of each class's rows. With "balanced" all classes have the same weight
        in total, counted with ``sample_weight``.
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
        Where the model trains and predicts: "cpu", or "auto", which takes the CPU. "cuda" raises.

    Attributes
    ----------
    intercept_ : ndarray of shape (1,) or (n_classes,)
        w_0, float32.
    coef_ : ndarray of shape (n_features,) or (n_classes, n_features)
        w_i, float32.
    factors_ : ndarray of shape (n_features, n_components) or (n_classes, n_features, n_components)
        v_i, float32, one row per feature.
    field_weights_ : ndarray of shape (n_fields, n_fields) or (n_classes, n_fields, n_fields)
        r, float32, symmetric; a copy. On the diagonal are the weights within fields.
    fields_ : ndarray of shape (n_features,)
        The field of each column, numbered from 0 in sorted order; fields that are new to
        ``partial_fit`` get the next numbers.
    classes_ : ndarray of shape (n_classes,)
        The class labels.
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
        Mean training loss of every epoch, over the rows not held out, without the penalty, summed
        over the classes; the loss of each batch is taken before its step.
    validation_scores_ : ndarray of shape (`n_iter_`,) or (0,)
        ``neg_log_loss``, or the score that ``scoring`` names, of the validation rows after every
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
    FwFMRegressor : The same model for real targets.
    FMClassifier : The model without weights of pairs.
    WithFields : An encoder whose rows carry their fields.
    column_fields : The fields, from a fitted encoder.

    Notes
    -----
    A default fit takes about 2.5 CPU seconds for the 57,722 rows of 10 features of Frappe. The
    first one also compiles, for about 15.

    CF-SGD bounds the step of a token by the derivatives of the score with respect to x_k v_k, see
    :class:`freqfm.optimizers.CFSGD`: they take the place of the sum of x_i v_i.

    How the defaults were chosen: :doc:`reference results </results_fields>`.

    Training takes O(nnz d + n_rows F^2 d) per epoch for F fields. Memory is that of
    :class:`FMClassifier`, and 4 F d bytes for each row of a batch, 34 F^2 for gradients of parts
    of a batch, and 128 F d + 8 F^2 for each thread.

    References
    ----------
    .. [1] J. Pan, J. Xu, A. Lobos Ruiz, W. Zhao, S. Pan, Y. Sun, Q. Lu. "Field-weighted
       Factorization Machines for Click-Through Rate Prediction in Display Advertising". WWW 2018,
       equation (4).

    Examples
    --------
    >>> from freqfm import FwFMClassifier
    >>> from freqfm.datasets import make_clicks
    >>> X, y = make_clicks(3000, (200, 100), random_state=0)
    >>> fields = ["user"] * 200 + ["item"] * 100
    >>> model = FwFMClassifier(n_components=8, fields=fields, random_state=0).fit(X, y)
    >>> model.field_weights_.shape
    (2, 2)
    >>> model.predict_proba(X[:2]).shape
    (2, 2)
    """


@dataclass(eq=False, repr=False, kw_only=True)
class FwFMRegressor(RealTargets, FieldWeightedFactors):
    """Field-weighted factorization machine for regression, by the squared error.

    The prediction of a row x is [1]_::

        w_0 + sum_i w_i x_i + sum_{i<j} r_{f(i)f(j)} <v_i, v_j> x_i x_j,

    where f(i) is the field of column i and r holds a learned weight for each pair of fields, and
    for pairs within a field. All start at 1, with which the model is an :class:`FMRegressor`, and
    those of pairs that occur keep their mean.

    The loss is half the squared error. Scale targets that are far from 1,
    for instance with ``sklearn.compose.TransformedTargetRegressor``.

    Parameters
    ----------
    n_components : int, default=16
        Length d of the factors v_i, the rank of the interactions.
    fields : array-like of shape (n_features,), callable or None, default=None
        The field of each column, as integers or strings; a field is the set of columns that come
        from one original variable. :func:`column_fields` reads it from a fitted encoder. A callable
        gets the ``X`` of ``fit`` or ``partial_fit``, also a stream, and returns an array. None
        takes the fields that the rows of :class:`WithFields` carry, or of a stream that it encodes.
        With other rows it makes each column a field of its own, for up to 256 columns that are not
        evidently categories of one variable.
    loss : str or Loss, default="squared"
        The loss to minimise, such as "squared", "huber", "poisson" or "quantile", or an instance
        from :mod:`freqfm.losses` or of a custom class. Except with "squared", early stopping
        monitors the mean loss on held-out rows instead of R^2.
    optimizer : str or Optimizer, default="cf_sgd"
        Such as "sgd", "fa_sgd", "cf_sgd", "rowwise_adagrad", "adagrad" or "adam", or an instance
        from :mod:`freqfm.optimizers`. Searches can set its parameters as ``optimizer__...``.
    field_optimizer : str or Optimizer, default="adam"
        The optimizer of the weights of pairs: "adam", "adagrad" or "sgd", or an instance from
        :mod:`freqfm.optimizers` or of a custom class, with one learning rate for all weights.
        Searches can set its parameters as ``field_optimizer__...``.
    learning_rate : float, default=None
        The learning rate of ``optimizer``; None means its default, and 0.75 for "fa_sgd". Not
        allowed with an instance that has its own.
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
    alpha_fields : float, default=100.0
        Penalty ``alpha_fields / 2 * (r - 1)^2`` of each weight r of a pair of fields, added
        likewise; it counts once, or with ``alpha_per="row"`` once for each row.
    alpha_per : {"token", "row"}, default="token"
        Whether the penalty on a token counts once, as in scikit-learn's linear models (like 1 / C
        of ``LogisticRegression`` and ``alpha`` of ``Ridge``), or once for each row that holds the
        token, so that it grows with the data.
    init : str or Initializer, default="normal"
        Initial values of the factors: "normal", "xavier", or an instance from
        :mod:`freqfm.initializers`.
    init_scale : float, default=None
        The initializer's scale; None means its default. Not allowed with an instance that has its
        own.
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
        Where the model trains and predicts: "cpu", or "auto", which takes the CPU. "cuda" raises.

    Attributes
    ----------
    intercept_ : ndarray of shape (1,)
        w_0, float32.
    coef_ : ndarray of shape (n_features,)
        w_i, float32.
    factors_ : ndarray of shape (n_features, n_components)
        v_i, float32, one row per feature.
    field_weights_ : ndarray of shape (n_fields, n_fields)
        r, float32, symmetric; a copy. On the diagonal are the weights within fields.
    fields_ : ndarray of shape (n_features,)
        The field of each column, numbered from 0 in sorted order; fields that are new to
        ``partial_fit`` get the next numbers.
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
    FwFMClassifier : The same model for classes.
    FMRegressor : The model without weights of pairs.
    WithFields : An encoder whose rows carry their fields.
    column_fields : The fields, from a fitted encoder.

    Notes
    -----
    A default fit takes about 4 CPU seconds for the 57,722 rows of 10 features of Frappe. The first
    one also compiles, for about 15.

    CF-SGD bounds the step of a token by the derivatives of the score with respect to x_k v_k, see
    :class:`freqfm.optimizers.CFSGD`: they take the place of the sum of x_i v_i.

    How the defaults were chosen: :doc:`reference results </results_fields>`.

    Training takes O(nnz d + n_rows F^2 d) per epoch for F fields. Memory is that of
    :class:`FMRegressor`, and 4 F d bytes for each row of a batch, 34 F^2 for the gradients of parts
    of a batch, and 128 F d + 8 F^2 for each thread.

    References
    ----------
    .. [1] J. Pan, J. Xu, A. Lobos Ruiz, W. Zhao, S. Pan, Y. Sun, Q. Lu. "Field-weighted
       Factorization Machines for Click-Through Rate Prediction in Display Advertising". WWW 2018,
       equation (4).

    Examples
    --------
    >>> import numpy as np
    >>> from freqfm import FwFMRegressor
    >>> X = np.random.default_rng(0).standard_normal((1000, 3))
    >>> y = 1 + X[:, 0] * X[:, 1]
    >>> model = FwFMRegressor(2, batch_size=100, alpha_factors=0, random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.99)
    True
    """
