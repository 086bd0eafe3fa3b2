"""The methods by which a factorization machine explains its scores."""

import sys

import numpy as np
from scipy import sparse
from sklearn.utils import Bunch

from freqfm._input.frames import is_frame
from freqfm._input.rows import concatenated_ranges, slices, with_one_index_type
from freqfm._input.validation import check_count, check_flag, kernel_csr, validate_rows
from freqfm._messages import warn_user
from freqfm.backends.base import Tower
from freqfm.estimators.fm.explanations.columns import feature_names as checked_names
from freqfm.estimators.fm.explanations.columns import group_columns, names_of_features
from freqfm.estimators.fm.explanations.contributions import Entries, Explainer, chunks, pull


def interaction_share(model, X, groups):
    """Return the share of the scores' variance that interactions of groups of columns carry.

    With mu the mean row and W without pairs inside a group, x W x / 2 is the sum of
    (x - mu) W (x - mu) / 2 and of terms of single columns. If the groups are independent, these two
    parts of the score are uncorrelated (the functional ANOVA), and the share is that of the first.

    Parameters
    ----------
    model : BaseFM
        Of order two.
    X : csr_array of shape (n_samples, n_features)
    groups : ndarray of shape (n_features,)
        The group of each column, from 0 on.

    Returns
    -------
    share : float
        From 0 to 1, over all outputs; 0 if the scores do not vary.
    """
    features = np.unique(X.indices)
    groups, X = groups[features], sparse.csr_array(X[:, features])
    mean = sparse.csr_array(np.asarray(X.mean(axis=0, dtype=np.float64)).reshape(1, -1))
    every = Entries.of(mean, np.arange(len(features)))
    of_pairs = of_single = 0.0
    parts = list(chunks(X))
    for output, terms in zip(model._outputs(), model._pair_terms(features), strict=True):
        mean_pulls = _pull_between(terms, mean, every, groups)
        interactions, scores = [], []
        for part in parts:
            entries = Entries.of(part)
            i, x = entries.columns, entries.values
            between = x * (_pull_between(terms, part, entries, groups) / 2 - mean_pulls[i])
            whole = x * (output.linear[features[i]] + pull(terms, part, entries) / 2)
            for found, values in ((interactions, between), (scores, whole)):
                found.append(np.bincount(entries.rows, values, part.shape[0]))
        interactions, scores = np.concatenate(interactions), np.concatenate(scores)
        of_pairs += interactions.var()
        of_single += (scores - interactions).var()
    return float(of_pairs / (of_pairs + of_single)) if of_pairs else 0.0


def _pull_between(terms, X, entries, groups):
    """Return (W x)_i like ``pull``, without the pairs inside a group."""
    n_groups = 1 + int(groups.max(initial=0))
    # Each row is divided into one for each of its groups.
    numbers, rows = np.unique(
        entries.rows * n_groups + groups[entries.columns], return_inverse=True
    )
    shape = len(numbers), X.shape[1]
    divided = sparse.csr_array((entries.values, (rows, entries.columns)), shape=shape)
    divided.sort_indices()
    inside = pull(terms, divided, entries._replace(rows=rows))
    return pull(terms, X, entries) - inside


def mean_magnitudes(explainer, X, groups, n_groups):
    """Return the mean absolute sum of contributions of each group, (n_outputs, n_groups)."""
    found = np.zeros((explainer.n_outputs, n_groups))
    for _, entries, values in explainer.chunks(X):
        keys, place = np.unique(
            entries.rows * n_groups + groups[entries.columns], return_inverse=True
        )
        for of_output, data in zip(found, values, strict=True):
            sums = np.abs(np.bincount(place, data, len(keys)))
            of_output += np.bincount(keys % n_groups, sums, n_groups)
    return found / X.shape[0]


_ADVICE = (
    "is only the linear part of {name}, whose features also interact. For what each feature adds "
    "to a score use explain, or shap.Explainer(model.{score}, background)"
)


class LinearPart:
    """The attribute ``coef_``, kept where other attributes are.

    shap takes every model that has ``coef_`` and ``intercept_`` for a linear one, with no means to
    tell it otherwise; it is therefore told that there is no ``coef_``. Feature selection of
    scikit-learn ranks by ``coef_``, which is one possible order: it gets a warning.
    """

    def __set_name__(self, owner, name):
        self._name = name

    def __get__(self, model, owner=None):
        if model is None:
            return self
        if self._name not in vars(model):
            raise AttributeError(f"{type(model).__name__!r} object has no attribute {self._name!r}")
        caller = sys._getframe(1).f_globals.get("__name__") or ""
        if caller.startswith("shap."):
            warn_user(f"{self._describe(model)}; shap gets no {self._name}.")
            raise AttributeError(self._describe(model))
        if caller.startswith("sklearn.feature_selection."):
            warn_user(
                f"{self._describe(model)}, and to select features "
                f"sklearn.inspection.permutation_importance."
            )
        return vars(model)[self._name]

    def __set__(self, model, value):
        vars(model)[self._name] = value

    def __delete__(self, model):
        try:
            del vars(model)[self._name]
        except KeyError:
            raise AttributeError(self._name) from None

    def _describe(self, model):
        name = type(model).__name__
        score = "decision_function" if hasattr(model, "decision_function") else "predict"
        return f"{self._name} {_ADVICE.format(name=name, score=score)}"


# Pairs that are scored at once, each taking about 40 bytes.
_PAIRS_AT_ONCE = 1 << 20

# Without rows all pairs are scored; this many features, or fields, have 50 million.
_MOST_FEATURES = 10_000


def strongest_interactions(model, X, fields, feature_names, n_pairs):
    """See ``ExplanationMixin.interaction_strengths``."""
    n_pairs = check_count("n_pairs", n_pairs)
    model._check_learned()
    groups, field_names = None, []
    if fields is not None:
        groups, field_names = group_columns(model, fields)
        if feature_names is None and hasattr(fields, "transform"):
            feature_names = names_of_features(fields, model)
    names = checked_names(model, feature_names)
    if X is None:
        chunks = _all_pairs(model.n_features_in_)
    else:
        X, _ = validate_rows(model, X, reset=False)
        X = with_one_index_type(X)
        chunks = _pairs_of_rows(X)
    found = np.zeros((0, 2), np.int64), np.zeros((0, len(model.intercept_))), np.zeros(0)
    of_fields, n_fields = None, len(field_names)
    if groups is not None and n_fields <= _MOST_FEATURES:
        of_fields = np.zeros((n_fields, n_fields))
    alone = _alone(model)
    for pairs, products in chunks:
        if groups is not None:
            apart = groups[pairs[:, 0]] != groups[pairs[:, 1]]
            pairs, products = pairs[apart], products[apart]
        strengths = _strengths(model, pairs, alone)
        effects = np.abs(strengths).max(axis=1, initial=0) * products
        if of_fields is not None:
            np.add.at(of_fields, tuple(groups[pairs].T), effects)
        found = _keep_largest(found, (pairs, strengths, effects), n_pairs)
    pairs, strengths, effects = found
    result = Bunch(
        features=pairs,
        names=names[pairs],
        strengths=strengths[:, 0] if strengths.shape[1] == 1 else strengths,
        effects=effects,
    )
    if groups is not None:
        of_fields = None if of_fields is None else of_fields + of_fields.T
        result.update(field_names=field_names, field_effects=of_fields)
    if X is not None:
        result.update(share=_share(model, X, groups))
    return result


def _share(model, X, groups):
    if any(isinstance(output.dense, Tower) for output in model._outputs()):
        return None
    if groups is None:
        groups = getattr(model, "fields_", None)
    return interaction_share(model, X, np.arange(X.shape[1]) if groups is None else groups)


def _all_pairs(n_features):
    """Yield all pairs in chunks, with ones."""
    if n_features > _MOST_FEATURES:
        raise ValueError(
            f"the model has {n_features} features and X=None, so that all their pairs would be "
            f"compared; give rows as X, and only pairs that occur in them are."
        )
    step = max(1, _PAIRS_AT_ONCE // n_features)
    for part in slices(n_features, step):
        first = np.arange(part.start, part.stop)
        n_others = n_features - 1 - first
        second = concatenated_ranges(first + 1, n_others)
        pairs = np.column_stack([np.repeat(first, n_others), second])
        yield pairs, np.ones(len(pairs))


def _pairs_of_rows(X):
    """Yield the pairs that occur together in rows, with the mean of their |x_i x_j|."""
    X = sparse.csr_array((np.abs(X.data, dtype=np.float64), X.indices, X.indptr), shape=X.shape)
    means = sparse.coo_array(sparse.triu(X.T @ X, k=1)) / X.shape[0]
    for part in slices(means.nnz, _PAIRS_AT_ONCE):
        yield np.column_stack([means.row[part], means.col[part]]), means.data[part]


def _alone(model):
    """Return the scores of rows of one feature each, less the score of a row of none."""
    n = model.n_features_in_
    rows = kernel_csr(np.ones(n), np.arange(n), np.append(np.arange(n + 1), n), (n + 1, n))
    scores = model._score_rows(rows).T.astype(np.float64)
    return scores[:-1] - scores[-1], scores[-1]


def _strengths(model, pairs, alone):
    """Return the effects on the score of two features together, minus those of each alone."""
    n_rows, n_features = len(pairs), model.n_features_in_
    indptr = np.arange(0, 2 * n_rows + 1, 2)
    rows = kernel_csr(np.ones(2 * n_rows), pairs.ravel(), indptr, (n_rows, n_features))
    scores = model._score_rows(rows)
    single, empty = alone
    return scores.T - empty - single[pairs[:, 0]] - single[pairs[:, 1]]


def _keep_largest(best, new, n):
    """Return the ``n`` pairs of the largest effects of both; equal ones in order of the features.

    They are tuples of arrays: pairs, strengths and effects.
    """
    parts = [np.concatenate(both) for both in zip(best, new, strict=True)]
    pairs, _, effects = parts
    if len(effects) > n:
        least = np.partition(effects, len(effects) - n)[len(effects) - n]
        parts = [part[effects >= least] for part in parts]
        pairs, _, effects = parts
    order = np.lexsort((pairs[:, 1], pairs[:, 0], -effects))[:n]
    return tuple(part[order] for part in parts)


class ExplanationMixin:
    """Methods that explain scores; the class for the factors has ``_pair_terms``."""

    coef_ = LinearPart()

    def explain(self, X, *, background=None, fields=None, feature_names=None, as_frame=False):
        """Return the contribution of each entry of each row to the row's score.

        The contributions of a row, and ``base_value``, add up to its score: that of
        ``decision_function`` in classifiers, of ``predict`` in regressors before the loss turns it
        into a prediction. They are in its units, log-odds with the log loss.

        Without ``background`` an entry contributes its linear term and half of each of its
        interactions, w_i x_i + x_i sum_j W_ij x_j / 2, and ``base_value`` is the score of an empty
        row. With ``background`` they are Shapley values: the mean change of the score as the entry
        takes the place of that of a reference row, over all reference rows and all orders in which
        entries do so; an absent feature may contribute too. ``base_value`` is then the mean score
        of the reference rows. Both are exact for machines of order two.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Rows.
        background : {array-like, sparse matrix} of shape (n_background, n_features), default=None
            Reference rows, such as some hundreds of the training rows. None is one empty row.
        fields : transformer or array-like of shape (n_features,), default=None
            To add up the contributions of the columns of a field: the fitted encoder that makes
            ``X``, such as ``pipeline[:-1]``, whose original columns are the fields, as in
            :func:`explain`; or the label of the field of each column. A sum of Shapley values is
            the Shapley value of the field.
        feature_names : array-like of shape (n_features,), default=None
            Names of the columns, without ``fields``. None takes ``feature_names_in_``, or "x0",
            "x1", ... without them.
        as_frame : bool, default=False
            Whether ``contributions`` is a DataFrame of pandas. For three classes or more the first
            level of its columns is the class.

        Returns
        -------
        explanation : Bunch
            contributions : csr_array of shape (n_samples, n_features)
                With ``fields`` an ndarray of shape (n_samples, n_fields). For three classes or more
                a list of one for each class. float64.
            base_value : float, or ndarray of shape (n_classes,)
                The score to which the contributions are added.
            names : ndarray of shape (n_features,) or (n_fields,)
                Names of the columns of ``contributions``.

        Raises
        ------
        TypeError, ValueError
            If an argument cannot be used.

        Notes
        -----
        Shapley values take time and memory for each entry of a row and each feature of the
        background, however many reference rows there are. In a DeepFM or NFM the tower's part is
        approximate (DeepLIFT with its rescale rule, averaged over reference rows: DeepSHAP), adds
        up exactly too, and takes time for each pair of a row and a reference row.

        Exactness for order two: a term W_ij x_i x_j has two orders, in which entry i adds
        W_ij (x_i - b_i) b_j or W_ij (x_i - b_i) x_j; see S. Lundberg, S.-I. Lee, "A Unified
        Approach to Interpreting Model Predictions", NeurIPS 2017, for the values.

        Examples
        --------
        >>> import numpy as np
        >>> from freqfm import FMRegressor
        >>> X = np.random.default_rng(0).integers(0, 2, (2000, 3)).astype(float)
        >>> y = X[:, 0] + 2 * X[:, 1] * X[:, 2]
        >>> model = FMRegressor(4, optimizer="adam", learning_rate=0.02, random_state=0).fit(X, y)
        >>> found = model.explain([[1, 1, 1]])
        >>> found.contributions.toarray().round(1)
        array([[1., 1., 1.]])
        >>> bool(abs(found.base_value) < 0.05)
        True
        """
        check_flag("as_frame", as_frame)
        index = getattr(X, "index", None) if is_frame(X) else None
        X, explainer = self._explainer(X, background)
        if fields is None:
            names, found = checked_names(self, feature_names), _by_column(explainer, X)
        else:
            groups, names = group_columns(self, fields)
            found = list(_by_group(explainer, X, groups, len(names)))
        base = explainer.base_values()
        if as_frame:
            found = _as_frame(found, names, index, getattr(self, "classes_", None))
        elif len(base) == 1:
            found = found[0]
        base = float(base[0]) if len(base) == 1 else base
        return Bunch(contributions=found, base_value=base, names=names)

    def feature_importances(self, X, *, background=None, fields=None, feature_names=None):
        """Return the mean absolute contribution of each column, or field, to the scores of rows.

        The contributions are the Shapley values of :meth:`explain`; what is the same in all rows
        has an importance of 0.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Rows; some thousands suffice.
        background : {array-like, sparse matrix} of shape (n_background, n_features), default=None
            Reference rows. None takes ``X``.
        fields : transformer or array-like of shape (n_features,), default=None
            As in :meth:`explain`: the importances of fields, of the sums over their columns.
        feature_names : array-like of shape (n_features,), default=None
            Names of the columns, without ``fields``.

        Returns
        -------
        importances : Bunch
            importances : ndarray of shape (n_columns,) or (n_columns, n_classes)
                In units of the score, log-odds with the log loss.
            names : ndarray of shape (n_columns,)
                Names of the columns or fields, in the same order.

        Raises
        ------
        TypeError, ValueError
            If an argument cannot be used.

        See Also
        --------
        sklearn.inspection.permutation_importance : How much a score of the predictions, such as
            the AUC, depends on a column.

        Notes
        -----
        Without ``fields`` it takes time for each row and each column that the reference rows hold.
        In a DeepFM or NFM it takes time for each pair of a row and a reference row: give some
        hundreds.

        Examples
        --------
        >>> import numpy as np
        >>> from freqfm import FMRegressor
        >>> X = np.random.default_rng(0).integers(0, 2, (2000, 3)).astype(float)
        >>> y = 4 * X[:, 0] + X[:, 1]
        >>> model = FMRegressor(4, optimizer="adam", learning_rate=0.02, random_state=0).fit(X, y)
        >>> found = model.feature_importances(X, feature_names=list("abc"))
        >>> found.names[np.argsort(-found.importances)].tolist()
        ['a', 'b', 'c']
        """
        X, explainer = self._explainer(X, X if background is None else background)
        if fields is None:
            names = checked_names(self, feature_names)
            groups = np.arange(len(names))
        else:
            groups, names = group_columns(self, fields)
        found = mean_magnitudes(explainer, X, groups, len(names))
        return Bunch(importances=found[0] if len(found) == 1 else found.T, names=names)

    def interaction_strengths(self, X=None, *, fields=None, feature_names=None, n_pairs=20):
        """Return the pairs of features that interact most.

        The strength of a pair is how much the score of two features with the value 1 differs from
        the sum of their separate effects: <v_i, v_j> in a factorization machine; in RaFM at the
        lower of their ranks; in FwFM times the weight of their fields; in FFM of their vectors for
        each other's field; in DeepFM and NFM including the tower's effect.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features), default=None
            Rows such as those that the model was trained on; some thousands suffice. With them
            only pairs that occur together in a row are compared, by their mean effect on a row's
            score. With None all pairs are compared, even those of one field, which never occur
            together.
        fields : transformer or array-like of shape (n_features,), default=None
            As in :meth:`explain`: pairs inside a field are left out. A transformer also names the
            features. None takes ``fields_`` of a machine that has fields for the share only.
        feature_names : array-like of shape (n_features,), default=None
            For instance ``encoder.get_feature_names_out()``. None takes the names that ``fields``
            gives, ``feature_names_in_``, or "x0", "x1", ... without them.
        n_pairs : int, default=20
            How many pairs to return, at most.

        Returns
        -------
        interactions : Bunch
            Sorted by decreasing effect:

            features : ndarray of shape (n_pairs, 2)
                Columns of the two features.
            names : ndarray of shape (n_pairs, 2)
                Their names.
            strengths : ndarray of shape (n_pairs,) or (n_pairs, n_classes)
                Positive if the pair raises the score.
            effects : ndarray of shape (n_pairs,)
                Absolute strength, the largest of all classes; with ``X`` times the mean of
                ``|x_i x_j|`` over all rows.
            field_names : ndarray of shape (n_fields,)
                With ``fields``: their names.
            field_effects : ndarray of shape (n_fields, n_fields)
                With ``fields``: the sum of the effects of all pairs of two fields, symmetric. None
                for more than 10,000 fields.
            share : float or None
                With ``X``: the share of the scores' variance that interactions of different fields
                (of columns, without fields) carry beyond what single fields do, as if fields were
                independent. Near 0 the pairs carry nothing, and the strengths are noise. None in a
                DeepFM or NFM with layers, which is not of order two.

        Raises
        ------
        TypeError, ValueError
            If an argument cannot be used, or ``X`` is None and there are more than 10,000 features.

        Notes
        -----
        With ``X`` it takes time, and about 40 bytes of memory, for each different pair in its rows.

        Examples
        --------
        >>> import numpy as np
        >>> from freqfm import FMRegressor
        >>> X = np.random.default_rng(0).integers(0, 2, (2000, 4)).astype(float)
        >>> y = X[:, 0] * X[:, 2] - 0.5 * X[:, 1] * X[:, 3]
        >>> model = FMRegressor(4, optimizer="adam", learning_rate=0.02, random_state=0).fit(X, y)
        >>> found = model.interaction_strengths(feature_names=list("abcd"), n_pairs=2)
        >>> found.names.tolist()
        [['a', 'c'], ['b', 'd']]
        >>> found.strengths.round(1)
        array([ 1. , -0.5])
        """
        return strongest_interactions(self, X, fields, feature_names, n_pairs)

    def _explainer(self, X, background):
        """Return rows as canonical CSR, and the Explainer."""
        self._check_learned()
        X, _ = validate_rows(self, X, reset=False)
        if background is not None:
            try:
                background, _ = validate_rows(self, background, reset=False)
            except ValueError as error:
                raise ValueError(f"background: {error}") from None
            background = with_one_index_type(background)
        return with_one_index_type(X), Explainer(self, background)


def _by_column(explainer, X):
    """Return the contributions to each output as CSR matrices."""
    found = [[] for _ in range(explainer.n_outputs)]
    for n_rows, entries, values in explainer.chunks(X):
        indptr = np.searchsorted(entries.rows, np.arange(n_rows + 1))
        for parts, data in zip(found, values, strict=True):
            shape = n_rows, X.shape[1]
            parts.append(sparse.csr_array((data, entries.columns, indptr), shape=shape))
    return [with_one_index_type(sparse.vstack(parts, format="csr")) for parts in found]


def _by_group(explainer, X, groups, n_groups):
    """Return sums of contributions of groups of columns, (n_outputs, n_samples, n_groups)."""
    found = np.zeros((explainer.n_outputs, X.shape[0], n_groups))
    begin = 0
    for n_rows, entries, values in explainer.chunks(X):
        place = entries.rows * n_groups + groups[entries.columns]
        for of_output, data in zip(found, values, strict=True):
            sums = np.bincount(place, data, n_rows * n_groups)
            of_output[begin : begin + n_rows] = sums.reshape(n_rows, n_groups)
        begin += n_rows
    return found


def _as_frame(found, names, index, classes):
    """Return the contributions to all outputs as one DataFrame."""
    import pandas as pd

    frames = []
    for part in found:
        make = pd.DataFrame.sparse.from_spmatrix if sparse.issparse(part) else pd.DataFrame
        frames.append(make(part, index=index, columns=names))
    if len(frames) == 1:
        return frames[0]
    return pd.concat(frames, axis=1, keys=classes.tolist())
