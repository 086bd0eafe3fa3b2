"""Factorization machines with fields: field-aware and field-weighted ones."""

from dataclasses import dataclass

from freqfm._docs import described_like
from freqfm.estimators.fm.field_factors import FieldAwareFactors, FieldWeightedFactors
from freqfm.estimators.fm.plain import FMClassifier, FMRegressor
from freqfm.estimators.fm.targets import ClassTargets, RealTargets


@described_like(FMRegressor)
@dataclass(eq=False, repr=False, kw_only=True)
class FFMRegressor(RealTargets, FieldAwareFactors):
    """Field-aware factorization machine for regression, by the squared error.

    The prediction of a row x is [1]_::

        w_0 + sum_i w_i x_i + sum_{i<j} <v_{i,f_j}, v_{j,f_i}> x_i x_j.

    where f_i is the field of feature i: a feature has a vector for each field, and with a feature
    of field f it interacts by that for f. See :doc:`/fields`.

    The loss is half the squared error. Scale targets that are far from 1,
    for instance with ``sklearn.compose.TransformedTargetRegressor``.

    Parameters
    ----------
    n_components : int, default=4
        Length d of the vectors v_{i,f}, the rank of the interactions of two fields.
    fields : array-like of shape (n_features,), callable or None, default=None
        The field of each column, as integers or strings; a field is the set of columns that come
        from one original variable. :func:`column_fields` reads it from a fitted encoder. A callable
        gets the ``X`` of ``fit`` or ``partial_fit``, also a stream, and returns an array. None
        takes the fields that the rows of :class:`WithFields` carry, or of a stream that it encodes.
        With other rows it makes each column a field of its own, for up to 256 columns that are not
        evidently categories of one variable.
    alpha_linear : float or "auto", default="auto"
        Penalty ``alpha_linear / 2 * w_i^2``, added to the sum of the rows' losses. "auto" is chosen
        with ``alpha_factors`` by the score of the validation rows of early stopping, see
        :doc:`/user_guide`: 1 and 2, 10 and 25, or 100 and 300. It is 1 without validation rows,
        on streams, with more than 100,000 rows, and with ``alpha_per="row"``.
    alpha_factors : float or "auto", default="auto"
        Penalty ``alpha_factors / 2 * |v_{i,f}|^2``, added likewise, in equal shares for each row
        that holds feature i and another one of field f. "auto" is chosen likewise, or 2.
    init : str or Initializer, default="normal"
        Initial values of the factors: "normal", with a scale of 0.03, "xavier", or an instance from
        :mod:`freqfm.initializers`, such as ``Normal(scale)``.
    device : str, default="cpu"
        Where the model trains and predicts: "cpu", or "auto". These machines run on the CPU only:
        "cuda" raises. See :ref:`gpu`.

    Attributes
    ----------
    factors_ : ndarray of shape (n_features, n_fields, n_components)
        v_{i,f}, float32.
    fields_ : ndarray of shape (n_features,)
        The field of each column, numbered from 0 in sorted order; fields that are new to
        ``partial_fit`` get the next numbers.

    See Also
    --------
    FFMClassifier : The same model for classes.
    FMRegressor : One vector for each feature.
    WithFields : An encoder whose rows carry their fields.
    column_fields : The fields, from a fitted encoder.

    Notes
    -----
    A default fit takes about 4 CPU seconds for the 57,722 rows of 10 features of Frappe. The first
    one also compiles, for about 12.

    Training takes O(m n d) for each row of m entries in n fields and epoch. The model takes
    4 (n_fields d + 1) bytes per feature, and a row of a batch 4 d n^2 bytes beside what
    :class:`FMRegressor` needs, with n the most fields in a row.

    CF-SGD counts for each feature and field how many rows hold the feature and another one of the
    field, and bounds the steps of a feature's vectors like :class:`freqfm.optimizers.CFSGD`, with
    the sums of the x_j v_{j,f_i} over each field in place of s; FA-SGD knows the frequencies of
    features alone. How the defaults were chosen: :doc:`reference results </results_fields>`.

    References
    ----------
    .. [1] Y. Juan, Y. Zhuang, W.-S. Chin, C.-J. Lin. "Field-aware Factorization Machines for CTR
       Prediction". RecSys 2016, equation (4).

    Examples
    --------
    >>> import numpy as np
    >>> from freqfm import FFMRegressor
    >>> X = np.random.default_rng(0).standard_normal((1000, 3))
    >>> y = 1 + X[:, 0] * X[:, 1] - X[:, 1] * X[:, 2]
    >>> model = FFMRegressor(2, batch_size=100, alpha_factors=0, random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.99)
    True
    """


@described_like(FMClassifier, FFMRegressor)
@dataclass(eq=False, repr=False, kw_only=True)
class FFMClassifier(ClassTargets, FieldAwareFactors):
    """Field-aware factorization machine for classification, by the log loss.

    The score of a row x is [1]_::

        w_0 + sum_i w_i x_i + sum_{i<j} <v_{i,f_j}, v_{j,f_i}> x_i x_j,

    the log-odds of the second class, where f_i is the field of feature i: a feature has a vector
    for each field, and with a feature of field f it interacts by that for f. Three classes or more
    get one such score each, trained against the rest. See :doc:`/fields`.

    Parameters
    ----------
    alpha_linear : float or "auto", default="auto"
        Penalty ``alpha_linear / 2 * w_i^2``, added to the sum of the rows' losses. "auto" is chosen
        with ``alpha_factors`` by the score of the validation rows of early stopping, see
        :doc:`/user_guide`: 1 and 2, 0.3 and 25, or 10 and 25. It is 1 without validation rows,
        on streams, with more than 100,000 rows, and with ``alpha_per="row"``.

    Attributes
    ----------
    factors_ : ndarray of shape (n_features, n_fields, n_components)
        v_{i,f}, float32; for three classes or more with a first axis for the class.

    See Also
    --------
    FFMRegressor : The same model for real targets.
    FMClassifier : One vector for each feature.
    WithFields : An encoder whose rows carry their fields.
    column_fields : The fields, from a fitted encoder.

    Notes
    -----
    A default fit takes about 6 CPU seconds for the 57,722 rows of 10 features of Frappe. The first
    one also compiles, for about 12.

    Training takes O(m n d) for each row of m entries in n fields and epoch. The model takes
    4 (n_fields d + 1) bytes per feature and class, and a row of a batch 4 d n^2 bytes beside what
    :class:`FMClassifier` needs, with n the most fields in a row.

    CF-SGD counts for each feature and field how many rows hold the feature and another one of the
    field, and bounds the steps of a feature's vectors like :class:`freqfm.optimizers.CFSGD`, with
    the sums of the x_j v_{j,f_i} over each field in place of s; FA-SGD knows the frequencies of
    features alone. How the defaults were chosen: :doc:`reference results </results_fields>`.

    References
    ----------
    .. [1] Y. Juan, Y. Zhuang, W.-S. Chin, C.-J. Lin. "Field-aware Factorization Machines for CTR
       Prediction". RecSys 2016, equation (4).

    Examples
    --------
    >>> from sklearn.preprocessing import OneHotEncoder
    >>> from freqfm import FFMClassifier, column_fields
    >>> rows = [["ann", "tea"], ["ann", "jam"], ["bob", "tea"], ["bob", "jam"]] * 50
    >>> y = ["yes", "no", "no", "yes"] * 50
    >>> encoder = OneHotEncoder().fit(rows)
    >>> model = FFMClassifier(fields=column_fields(encoder), alpha_factors=0.1, random_state=0)
    >>> model = model.fit(encoder.transform(rows), y)
    >>> model.predict(encoder.transform([["ann", "tea"], ["bob", "tea"]])).tolist()
    ['yes', 'no']
    >>> model.factors_.shape
    (4, 2, 4)
    """


@described_like(FMRegressor)
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
    n_components
    fields : array-like of shape (n_features,), callable or None, default=None
        The field of each column, as integers or strings; a field is the set of columns that come
        from one original variable. :func:`column_fields` reads it from a fitted encoder. A callable
        gets the ``X`` of ``fit`` or ``partial_fit``, also a stream, and returns an array. None
        takes the fields that the rows of :class:`WithFields` carry, or of a stream that it encodes.
        With other rows it makes each column a field of its own, for up to 256 columns that are not
        evidently categories of one variable.
    optimizer
    field_optimizer : str or Optimizer, default="adam"
        The optimizer of the weights of pairs: "adam", "adagrad" or "sgd", or an instance from
        :mod:`freqfm.optimizers` or of a custom class, with one learning rate for all weights.
        Searches can set its parameters as ``field_optimizer__...``.
    learning_rate : float, default=None
        The learning rate of ``optimizer``; None means its default, and 0.75 for "fa_sgd". Not
        allowed with an instance that has its own.
    alpha_factors
    alpha_fields : float, default=100.0
        Penalty ``alpha_fields / 2 * (r - 1)^2`` of each weight r of a pair of fields, added
        likewise; it counts once, or with ``alpha_per="row"`` once for each row.
    device : str, default="cpu"
        Where the model trains and predicts: "cpu", or "auto", which takes the CPU. "cuda" raises.

    Attributes
    ----------
    factors_
    field_weights_ : ndarray of shape (n_fields, n_fields)
        r, float32, symmetric; a copy. On the diagonal are the weights within fields.
    fields_ : ndarray of shape (n_features,)
        The field of each column, numbered from 0 in sorted order; fields that are new to
        ``partial_fit`` get the next numbers.

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


@described_like(FMClassifier, FwFMRegressor)
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
    learning_rate : float, default=None
        The learning rate of ``optimizer``; None means its default. Not allowed with an instance
        that has its own.

    Attributes
    ----------
    field_weights_ : ndarray of shape (n_fields, n_fields) or (n_classes, n_fields, n_fields)
        r, float32, symmetric; a copy. On the diagonal are the weights within fields.

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
