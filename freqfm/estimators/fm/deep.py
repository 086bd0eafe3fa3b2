"""Factorization machines with a tower of dense layers: DeepFM and NFM."""

from dataclasses import dataclass

from freqfm._docs import described_like
from freqfm.estimators.fm.field_factors import FactorsWithFieldsTower, FactorsWithPooledTower
from freqfm.estimators.fm.plain import FMClassifier, FMRegressor
from freqfm.estimators.fm.targets import ClassTargets, RealTargets


@described_like(FMRegressor)
@dataclass(eq=False, repr=False, kw_only=True)
class DeepFMRegressor(RealTargets, FactorsWithFieldsTower):
    """Factorization machine with dense layers for regression, by the squared error.

    The prediction of a row x is [1]_::

        w_0 + sum_i w_i x_i + sum_{i<j} <v_i, v_j> x_i x_j + <u, h(z)>,

    where h(z) are the outputs of dense layers with ReLU, the tower. With ``fields`` its input z is,
    the sum of x_i v_i over each field's columns, concatenated, as in DeepFM [1]_;
    without, it is the pooled interactions of all columns,
    ((sum_i x_i v_i)^2 - sum_i (x_i v_i)^2) / 2 elementwise, as in NFM [2]_.

    The loss is half the squared error. Scale targets that are far from 1,
    for instance with ``sklearn.compose.TransformedTargetRegressor``.

    Parameters
    ----------
    n_components
    hidden_layer_sizes : array-like of int, default=(64,)
        Sizes of the tower's hidden layers. Without any, ``()``, there is no tower: the model is an
        :class:`FMRegressor`, bit for bit, and ``fields``, ``layer_optimizer``,
        ``alpha_layers`` and ``dropout`` have no effect.
    fields : array-like of shape (n_features,), callable or None, default=None
        The field of each column, as integers or strings; a field is the set of columns that come
        from one original variable. :func:`column_fields` reads it from a fitted encoder. A callable
        gets the ``X`` of ``fit`` or ``partial_fit``, also a stream, and returns an array. None
        takes the fields that the rows of :class:`WithFields` carry, or of a stream that it encodes.
        The tower's input is then the sum of x_i v_i over each field's columns, concatenated.
        Without fields it is the pooled interactions, d numbers, as in NFM.
    optimizer : str or Optimizer, default="cf_sgd"
        Of the factors and the linear weights: "sgd", "fa_sgd", "cf_sgd", "rowwise_adagrad",
        "adagrad" or "adam", or an instance from :mod:`freqfm.optimizers`. Searches can set its
        parameters as ``optimizer__...``.
    layer_optimizer : str or Optimizer, default="adam"
        The optimizer of the dense layers: "adam", "adagrad" or "sgd", or an instance from
        :mod:`freqfm.optimizers` or of a custom class, with one learning rate for all weights.
        Searches can set its parameters as ``layer_optimizer__...``.
    learning_rate : float, default=None
        The learning rate of ``optimizer``; None means its default, and 0.75 for "fa_sgd". Not
        allowed with an instance.
    alpha_factors
    alpha_layers : float, default=30.0
        Penalty ``alpha_layers / 2 * w^2`` of each weight w of the dense layers, biases excluded,
        added likewise; it counts once, or with ``alpha_per="row"`` once for each row.
    dropout : float, default=0.5
        Share of the tower's input and of every layer's values that training drops at random; the
        others are divided by 1 - ``dropout``.

    Attributes
    ----------
    factors_
    layers_ : list of ndarray
        The tower, float32: of each hidden layer the weights, (n_in, n_out), with the biases as the
        last row; and at the end the weights u of the outputs, (n_out,). Empty without a tower.
    fields_ : ndarray of shape (n_features,) or None
        The field of each column, numbered from 0 in sorted order; fields that are new to
        ``partial_fit`` get the next numbers.

    See Also
    --------
    DeepFMClassifier : The same model for classes.
    FMRegressor : The model without a tower.
    WithFields : An encoder whose rows carry their fields.
    column_fields : The fields, from a fitted encoder.

    Notes
    -----
    A default fit takes about 12 CPU seconds for the 57,722 rows of 10 features of Frappe. The first
    one also compiles, for about 13.

    CF-SGD takes the tower's derivatives into account in the bound of a token's step, see
    :class:`freqfm.optimizers.CFSGD`: the sum of x_i v_i is replaced by the derivative of the whole
    score with respect to x_k v_k, the largest of any field.

    Training takes O(nnz d + n_rows P) per epoch for a tower of P weights. Memory is that of
    :class:`FMRegressor`, and for each row of a batch 4 d bytes for each field and 4 d more (8 d
    without fields), 68 P bytes for the gradients of parts of a batch, and 24 to 36 P for the
    weights, the state of Adam and their copies.

    Dropout draws for every row, so a row of weight w equals w rows only in expectation, unless
    ``dropout`` is 0. How the defaults were chosen: :doc:`reference results </results_deepfm>`.

    References
    ----------
    .. [1] H. Guo, R. Tang, Y. Ye, Z. Li, X. He. "DeepFM: A Factorization-Machine based Neural
       Network for CTR Prediction". IJCAI 2017.
    .. [2] X. He, T.-S. Chua. "Neural Factorization Machines for Sparse Predictive Analytics".
       SIGIR 2017.

    Examples
    --------
    >>> import numpy as np
    >>> from freqfm import DeepFMRegressor
    >>> X = np.random.default_rng(0).standard_normal((1000, 3))
    >>> y = 1 + X[:, 0] * X[:, 1]
    >>> model = DeepFMRegressor(2, batch_size=100, alpha_factors=0, dropout=0, random_state=0)
    >>> bool(model.fit(X, y).score(X, y) > 0.9)
    True
    """


@described_like(FMClassifier, DeepFMRegressor)
@dataclass(eq=False, repr=False, kw_only=True)
class DeepFMClassifier(ClassTargets, FactorsWithFieldsTower):
    """Factorization machine with dense layers for classification, by the log loss.

    The score of a row x is [1]_::

        w_0 + sum_i w_i x_i + sum_{i<j} <v_i, v_j> x_i x_j + <u, h(z)>,

    the log-odds of the second class, where h(z) are the outputs of dense layers with ReLU, the
    tower. With ``fields`` its input z are the sums of x_i v_i over each field's columns,
    concatenated, as in DeepFM [1]_; without, it is the pooled interactions of all columns,
    ((sum_i x_i v_i)^2 - sum_i (x_i v_i)^2) / 2 elementwise, as in NFM [2]_. Three classes or
    more get one such score each, trained against the rest, with a tower for each.

    Parameters
    ----------
    hidden_layer_sizes : array-like of int, default=(64,)
        Sizes of the tower's hidden layers. Without any, ``()``, there is no tower: the model is an
        :class:`FMClassifier`, bit for bit, and ``fields``, ``layer_optimizer``,
        ``alpha_layers`` and ``dropout`` have no effect.
    learning_rate : float, default=None
        The learning rate of ``optimizer``; None means its default. Not allowed with an instance
        that has its own.

    Attributes
    ----------
    layers_ : list of ndarray
        The tower, float32: of each hidden layer the weights, (n_in, n_out), with the biases as the
        last row; and at the end the weights u of the outputs, (n_out,). For three classes or more
        they have a first axis for the class. Empty without a tower.

    See Also
    --------
    DeepFMRegressor : The same model for real targets.
    FMClassifier : The model without a tower.
    WithFields : An encoder whose rows carry their fields.
    column_fields : The fields, from a fitted encoder.

    Notes
    -----
    A default fit takes about 16 CPU seconds for the 57,722 rows of 10 features of Frappe. The first
    one also compiles, for about 13.

    The tower earns its time where three features or more act together. Where effects are those of
    single features and pairs, FMClassifier is as good or better, in a fraction of the time.

    CF-SGD takes the tower's derivatives into account in the bound of a token's step, see
    :class:`freqfm.optimizers.CFSGD`: the sum of x_i v_i is replaced by the derivative of the whole
    score with respect to x_k v_k, the largest of any field.

    Training takes O(nnz d + n_rows P) per epoch for a tower of P weights. Memory is that of
    :class:`FMClassifier`, and for each row of a batch 4 d bytes for each field and 4 d more (8 d
    without fields), 68 P bytes for the gradients of parts of a batch, and 24 to 36 P for the
    weights, the state of Adam and their copies.

    Dropout draws for every row, so a row of weight w equals w rows only in expectation, unless
    ``dropout`` is 0. How the defaults were chosen: :doc:`reference results </results_deepfm>`.

    References
    ----------
    .. [1] H. Guo, R. Tang, Y. Ye, Z. Li, X. He. "DeepFM: A Factorization-Machine based Neural
       Network for CTR Prediction". IJCAI 2017.
    .. [2] X. He, T.-S. Chua. "Neural Factorization Machines for Sparse Predictive Analytics".
       SIGIR 2017.

    Examples
    --------
    >>> from sklearn.preprocessing import OneHotEncoder
    >>> from freqfm import DeepFMClassifier, column_fields
    >>> from freqfm.initializers import Normal
    >>> rows = [["ann", "tea"], ["ann", "jam"], ["bob", "tea"], ["bob", "jam"]] * 50
    >>> y = ["yes", "no", "no", "yes"] * 50
    >>> encoder = OneHotEncoder().fit(rows)
    >>> model = DeepFMClassifier(fields=column_fields(encoder), init=Normal(0.1), random_state=0)
    >>> model = model.set_params(max_iter=300).fit(encoder.transform(rows), y)
    >>> model.predict(encoder.transform([["ann", "tea"], ["bob", "tea"]])).tolist()
    ['yes', 'no']
    >>> [layer.shape for layer in model.layers_]
    [(33, 64), (64,)]
    """


@described_like(FMRegressor)
@dataclass(eq=False, repr=False, kw_only=True)
class NFMRegressor(RealTargets, FactorsWithPooledTower):
    """Neural factorization machine for regression, by the squared error.

    The prediction of a row x is [1]_::

        w_0 + sum_i w_i x_i + <u, h(z)>,    z = ((sum_i x_i v_i)^2 - sum_i (x_i v_i)^2) / 2,

    where z are the pooled interactions of the row, elementwise (bi-interaction pooling), and h(z)
    the outputs of dense layers with ReLU, the tower. In a factorization machine the sum of the
    elements of z stands in place of <u, h(z)>; a :class:`DeepFMRegressor` without fields has both.

    The loss is half the squared error. Scale targets that are far from 1,
    for instance with ``sklearn.compose.TransformedTargetRegressor``.

    Parameters
    ----------
    n_components
    hidden_layer_sizes : array-like of int, default=(64,)
        Sizes of the tower's hidden layers. Without any, ``()``, there is no tower: the model is an
        :class:`FMRegressor`, bit for bit except for the initial values, and
        ``layer_optimizer``, ``alpha_layers`` and ``dropout`` have no effect.
    optimizer : str or Optimizer, default="cf_sgd"
        Of the factors and the linear weights: "sgd", "fa_sgd", "cf_sgd", "rowwise_adagrad",
        "adagrad" or "adam", or an instance from :mod:`freqfm.optimizers`. Searches can set its
        parameters as ``optimizer__...``.
    layer_optimizer : str or Optimizer, default="adam"
        The optimizer of the dense layers: "adam", "adagrad" or "sgd", or an instance from
        :mod:`freqfm.optimizers` or of a custom class, with one learning rate for all weights.
        Searches can set its parameters as ``layer_optimizer__...``.
    learning_rate : float, default=None
        The learning rate of ``optimizer``; None means its default, and 0.75 for "fa_sgd". Not
        allowed with an instance.
    alpha_factors
    alpha_layers : float, default=100.0
        Penalty ``alpha_layers / 2 * w^2`` of each weight w of the dense layers, biases excluded,
        added likewise; it counts once, or with ``alpha_per="row"`` once for each row.
    dropout : float, default=0.5
        Share of the pooled interactions, and of every layer's values, that training drops at
        random; the others are divided by 1 - ``dropout``.
    init : str or Initializer, default="normal"
        Initial values of the factors: "normal", with a scale of 0.1, "xavier", or an instance from
        :mod:`freqfm.initializers`, such as ``Normal(scale)``.

    Attributes
    ----------
    factors_
    layers_ : list of ndarray
        The tower, float32: of each hidden layer the weights, (n_in, n_out), with the biases as the
        last row; and at the end the weights u of the outputs, (n_out,). Empty without a tower.

    See Also
    --------
    NFMClassifier : The same model for classes.
    FMRegressor : The model without a tower.

    Notes
    -----
    A default fit takes about 11 CPU seconds for the 57,722 rows of 10 features of Frappe. The
    first one also compiles, for about 13.

    Pooled interactions are products of two vectors, and the tower learns nothing from ones near 0:
    so vectors start larger than those of other machines, and layers three times as large as those
    of DeepFM, with a larger penalty. There is no batch normalisation, which the paper puts behind
    the pooling; penalties and ``dropout`` regularise.

    Training takes O(nnz d + n_rows P) per epoch for a tower of P weights; memory is that of
    :class:`DeepFMRegressor` without fields. Dropout draws for every row, so a row of weight w
    equals w rows only in expectation, unless ``dropout`` is 0. Figures beside machines without a
    tower: :doc:`reference results </results_deepfm>`.

    References
    ----------
    .. [1] X. He, T.-S. Chua. "Neural Factorization Machines for Sparse Predictive Analytics".
       SIGIR 2017.

    Examples
    --------
    >>> import numpy as np
    >>> from freqfm import NFMRegressor
    >>> X = np.random.default_rng(0).standard_normal((1000, 3))
    >>> y = 1 + X[:, 0] * X[:, 1]
    >>> model = NFMRegressor(2, batch_size=100, alpha_factors=0, dropout=0, random_state=0)
    >>> bool(model.fit(X, y).score(X, y) > 0.9)
    True
    """


@described_like(FMClassifier, NFMRegressor)
@dataclass(eq=False, repr=False, kw_only=True)
class NFMClassifier(ClassTargets, FactorsWithPooledTower):
    """Neural factorization machine for classification, by the log loss.

    The score of a row x is [1]_::

        w_0 + sum_i w_i x_i + <u, h(z)>,    z = ((sum_i x_i v_i)^2 - sum_i (x_i v_i)^2) / 2,

    the log-odds of the second class, where z are the pooled interactions of the row, elementwise
    (bi-interaction pooling), and h(z) the outputs of dense layers with ReLU, the tower. In a
    factorization machine the sum of the elements of z stands in place of <u, h(z)>; a
    :class:`DeepFMClassifier` without fields has both. Three classes or more get one such score
    each, trained against the rest, with a tower for each.

    Parameters
    ----------
    hidden_layer_sizes : array-like of int, default=(64,)
        Sizes of the tower's hidden layers. Without any, ``()``, there is no tower: the model is an
        :class:`FMClassifier`, bit for bit except for the initial values, and
        ``layer_optimizer``, ``alpha_layers`` and ``dropout`` have no effect.
    learning_rate : float, default=None
        The learning rate of ``optimizer``; None means its default. Not allowed with an instance
        that has its own.

    Attributes
    ----------
    layers_ : list of ndarray
        The tower, float32: of each hidden layer the weights, (n_in, n_out), with the biases as the
        last row; and at the end the weights u of the outputs, (n_out,). For three classes or more
        they have a first axis for the class. Empty without a tower.

    See Also
    --------
    NFMRegressor : The same model for real targets.
    FMClassifier : The model without a tower.

    Notes
    -----
    A default fit takes about 11 CPU seconds for the 57,722 rows of 10 features of Frappe. The
    first one also compiles, for about 13.

    Pooled interactions are products of two vectors, and the tower learns nothing from ones near 0:
    so vectors start larger than those of other machines, and layers three times as large as those
    of DeepFM, with a larger penalty. There is no batch normalisation, which the paper puts behind
    the pooling; penalties and ``dropout`` regularise.

    Training takes O(nnz d + n_rows P) per epoch for a tower of P weights; memory is that of
    :class:`DeepFMClassifier` without fields. Dropout draws for every row, so a row of weight w
    equals w rows only in expectation, unless ``dropout`` is 0. Figures beside machines without a
    tower: :doc:`reference results </results_deepfm>`.

    References
    ----------
    .. [1] X. He, T.-S. Chua. "Neural Factorization Machines for Sparse Predictive Analytics".
       SIGIR 2017.

    Examples
    --------
    >>> from sklearn.preprocessing import OneHotEncoder
    >>> from freqfm import NFMClassifier
    >>> rows = [["ann", "tea"], ["ann", "jam"], ["bob", "tea"], ["bob", "jam"]] * 50
    >>> y = ["yes", "no", "no", "yes"] * 50
    >>> encoder = OneHotEncoder().fit(rows)
    >>> model = NFMClassifier(alpha_factors=0.1, dropout=0, random_state=0)
    >>> model = model.fit(encoder.transform(rows), y)
    >>> model.predict(encoder.transform([["ann", "tea"], ["bob", "tea"]])).tolist()
    ['yes', 'no']
    >>> [layer.shape for layer in model.layers_]
    [(17, 64), (64,)]
    """
