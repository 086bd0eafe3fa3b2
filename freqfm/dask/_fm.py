"""Factorization machines on a Dask cluster."""

import copy
import inspect
from numbers import Integral

import dask
import dask.array as da
import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils._param_validation import Interval
from sklearn.utils.validation import check_is_fitted

from freqfm._validation import draw_seed
from freqfm.dask import _shards
from freqfm.dask._cluster import (
    Cluster,
    aligned_partitions,
    find_client,
    one_block_of_columns,
    partitions_of,
)
from freqfm.dask._trainer import ShardedFMTrainer, ShardedRows, ShardedTowerTrainer
from freqfm.estimators.fm import deepfm, plain, rafm
from freqfm.estimators.fm.base import _AUTO_EARLY_STOPPING, _CROSS_VALIDATED_BELOW
from freqfm.estimators.training import FitCallbacks

_OPTIONS = {"client": None, "n_shards": None, "n_merges": 4}
CONSTRAINTS = {
    "client": "no_validation",
    "n_shards": [Interval(Integral, 1, None, closed="left"), None],
    "n_merges": [Interval(Integral, 1, None, closed="left")],
}


def with_options(local):
    """Return the constructor of a plain estimator with the options of a cluster added.

    scikit-learn reads its parameters from the signature.
    """
    signature = inspect.signature(local.__init__)
    options = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=value)
        for name, value in _OPTIONS.items()
    ]

    def __init__(self, *args, client=None, n_shards=None, n_merges=4, **params):
        local.__init__(self, *args, **params)
        self.client, self.n_shards, self.n_merges = client, n_shards, n_merges

    parameters = [*signature.parameters.values(), *options]
    __init__.__signature__ = signature.replace(parameters=parameters)
    return __init__


class OnCluster:
    """What estimators on a cluster have in common: a client, ``to_local``, pickling."""

    def __getstate__(self):
        state = {**super().__getstate__(), "client": None}
        state.pop("_shards", None)
        return state

    def __sklearn_clone__(self):
        # A client cannot be copied.
        found = BaseEstimator.__sklearn_clone__(copy.copy(self))
        found.client = self.client
        return found

    @property
    def client_(self):
        """The client that ``fit`` and ``predict`` use: ``client``, or else the current one."""
        return find_client(self.client)

    def to_local(self):
        """Return the plain estimator, with the same parameters and a copy of the model.

        Returns
        -------
        estimator : estimator of :mod:`freqfm`
        """
        params = self.get_params(deep=False)
        without = {*params, "_shards"}
        learned = {name: value for name, value in vars(self).items() if name not in without}
        params = {name: value for name, value in params.items() if name not in _OPTIONS}
        model = self._local(**params)
        for name in ("_skl_callbacks", "_callback_fit_ctx", "_parent_callback_ctx", "_unfinished"):
            learned.pop(name, None)
        vars(model).update(copy.deepcopy(learned))
        return model

    def _blocks(self, X, method, like):
        """Return the lazy result of a method of the plain estimator on every partition of X.

        Parameters
        ----------
        X : collection
        method : str
        like : ndarray
            Of the result's type and number of columns, without rows.
        """
        check_is_fitted(self)
        model = self._sent()
        if isinstance(X, da.Array):
            X = one_block_of_columns(X)
            if like.ndim == 1:
                return X.map_blocks(
                    _shards.predicted, model, method, drop_axis=1, dtype=like.dtype, meta=like
                )
            chunks = X.chunks[0], (like.shape[1],)
            return X.map_blocks(
                _shards.predicted, model, method, chunks=chunks, dtype=like.dtype, meta=like
            )
        parts = partitions_of("X", X)
        call = dask.delayed(_shards.predicted)
        shape = np.nan, *like.shape[1:]
        blocks = [
            da.from_delayed(call(part, model, method), shape, dtype=like.dtype, meta=like)
            for part in parts
        ]
        return da.concatenate(blocks, axis=0, allow_unknown_chunksizes=True)

    def _summed(self, X, y, sample_weight, function):
        """Return the sums over partitions of a function of rows, targets, weights and the model."""
        check_is_fitted(self)
        parts = aligned_partitions({"X": X}, {"y": y, "sample_weight": sample_weight})
        weights = parts["sample_weight"] or [None] * len(parts["X"])
        call, model = dask.delayed(function), self._sent()
        columns = zip(parts["X"], parts["y"], weights, strict=True)
        found = dask.compute(*(call(*column, model) for column in columns))
        return np.sum(found, axis=0)

    def _sent(self):
        """Return the plain model on all workers; without a client, inside of the graph."""
        try:
            client = self.client_
        except RuntimeError:
            return dask.delayed(self.to_local(), pure=True)
        (model,) = client.scatter([self.to_local()], broadcast=True, direct=True, hash=False)
        return dask.delayed(model)


class ShardedFM(OnCluster):
    """A factorization machine on a cluster; a mixin before the plain estimator.

    ``fit`` is that of ``BaseFM``: what differs is how rows are prepared, split and trained on.
    """

    _trainer = ShardedFMTrainer

    def _prepare(self, X, y, sample_weight, classes, reset, partial=False):
        """Bring the rows to their workers and check them, see ``BaseFM._prepare``."""
        if not reset:
            self._check_learned()
        optimizer, _ = self._checked_optimizer(), self._loss
        if y is None:
            raise ValueError("fit needs y, the targets; got None.")
        cluster = Cluster(self.client_)
        cluster.check_versions()
        parts = aligned_partitions({"X": X}, {"y": y, "sample_weight": sample_weight})
        groups = groups_of(self.n_shards, cluster, len(parts["X"]))
        homes = cluster.homes([[parts["X"][i] for i in group] for group in groups])
        raw = _collected(cluster, parts, groups, homes)
        facts = cluster.gather(
            [
                cluster.submit(_shards.describe, rows, self._of_classes, on=home)
                for rows, home in zip(raw, homes, strict=True)
            ]
        )
        filled = [i for i, fact in enumerate(facts) if fact["n_rows"]]
        if not filled:
            raise ValueError("X has no rows in any of its partitions.")
        raw, homes, facts = ([of[i] for i in filled] for of in (raw, homes, facts))
        self.n_shards_ = len(groups)
        if reset:
            self._seed = draw_seed(self.random_state)
        shards = self._checked_shards(cluster, raw, homes, facts, reset)
        self._take_features(cluster, shards, homes, reset)
        n_outputs = self._n_outputs
        if reset:
            self._check_size(n_outputs)
        sizes = [fact["n_rows"] for fact in facts]
        n_rounds = int(self.n_merges) if len(shards) > 1 else 1
        rows = ShardedRows(cluster, shards, homes, n_outputs, n_rounds, sizes)
        return rows, None, optimizer

    @property
    def _n_outputs(self):
        several = self._of_classes and len(self.classes_) > 2
        return len(self.classes_) if several else 1

    def _checked_shards(self, cluster, raw, homes, facts, reset):
        """Return futures of the shards; set the classes of a new model."""
        params = self.get_params(deep=False)
        model = self._local(**{k: v for k, v in params.items() if k not in _OPTIONS})
        model.random_state = 0
        known = None
        if self._of_classes:
            labels, numbers = zip(*(fact["classes"] for fact in facts), strict=True)
            found, codes = np.unique(np.concatenate(labels), return_inverse=True)
            known = self.classes_ = found if reset else self.classes_
            if self.class_weight == "balanced":
                counts = np.bincount(codes, np.concatenate(numbers))
                weights = counts.sum() / (len(found) * counts)
                model.class_weight = dict(zip(found.tolist(), weights.tolist(), strict=True))
        return [
            cluster.submit(_shards.Shard, rows, model, _seed_of(self._seed, i), known, on=home)
            for i, (rows, home) in enumerate(zip(raw, homes, strict=True))
        ]

    def _take_features(self, cluster, shards, homes, reset):
        """Compare the features of all shards, and with those of the model to continue."""
        found = cluster.gather(
            [
                cluster.submit(_shards.Shard.features, shard, on=home)
                for shard, home in zip(shards, homes, strict=True)
            ]
        )
        widths = sorted({width for width, _ in found})
        expected = widths[0] if reset else self.n_features_in_
        if widths != [expected]:
            raise ValueError(
                f"partitions of X have {widths} columns, where {expected} are expected; encode all "
                f"of them alike."
            )
        names = found[0][1]
        known = names if reset else getattr(self, "feature_names_in_", None)
        if any(not np.array_equal(of, known) for _, of in found):
            raise ValueError("partitions of X have different column names; give all the same.")
        if reset:
            self.n_features_in_ = widths[0]
            vars(self).pop("feature_names_in_", None)
            if names is not None:
                self.feature_names_in_ = names

    def _with_given_validation(self, rows, X_val, y_val, weight):
        """Return the rows with the validation set given to ``fit``, or None without one."""
        names = "X_val", "y_val", "sample_weight_val"
        given = [n for n, v in zip(names, (X_val, y_val, weight), strict=True) if v is not None]
        if not given:
            return None
        self._check_validation_given(given)
        parts = aligned_partitions({"X_val": X_val}, {"y_val": y_val, "sample_weight_val": weight})
        groups = np.array_split(np.arange(len(parts["X_val"])), len(rows.shards))
        groups = [group for group in groups if len(group)]
        homes = rows.homes[: len(groups)]
        raw = _collected(rows.cluster, parts, groups, homes)
        validated = [
            rows.cluster.submit(_shards.Shard.validated_on, shard, of, on=home)
            for shard, of, home in zip(rows.shards, raw, homes, strict=False)
        ]
        shards = [*validated, *rows.shards[len(validated) :]]
        rows.cluster.gather(rows._replace(shards=shards).of_shards(_shards.Shard.facts))
        return rows._replace(shards=shards, fold=0, held_out=True)

    def _split(self, rows, labels):
        """Return a list of folds, see ``BaseFM._split``; only a single shard has several."""
        n_rows, early_stopping, share = sum(rows.sizes), self.early_stopping, None
        if len(rows.shards) > 1:
            if early_stopping == "auto":
                early_stopping = n_rows >= _AUTO_EARLY_STOPPING
            if not early_stopping:
                return [rows]
            share = self.validation_fraction
            if share == "auto":
                share = 0.1 if n_rows >= _CROSS_VALIDATED_BELOW else 0.2
        split = rows._replace(shards=rows.of_shards(_shards.Shard.split, share))
        facts = rows.cluster.gather(split.of_shards(_shards.Shard.facts))
        folds = []
        for number, of_fold in enumerate(zip(*facts, strict=True)):
            trained, held_out = zip(*of_fold, strict=True)
            held_out = True if any(held_out) else None
            folds.append(split._replace(sizes=list(trained), fold=number, held_out=held_out))
        return folds

    def _callbacks(self, rows, folds, unfinished):
        hashed = {}
        if unfinished or getattr(self, "_skl_callbacks", ()):
            hashed["X"] = rows.cluster.gather(folds[0].of_shards(_shards.Shard.digest))
        return FitCallbacks(self, {"X": None, "y": None}, hashed, self.max_iter, unfinished)

    @property
    def partial_fit(self):
        """Not available on a cluster."""
        raise AttributeError(
            f"{type(self).__name__} of freqfm.dask has no partial_fit; set warm_start=True and "
            f"call fit, or use to_local()."
        )


def groups_of(n_shards, cluster, n_partitions):
    """Return the numbers of the partitions of each shard, side by side."""
    if n_shards is None:
        n_shards = min(len(cluster.workers), n_partitions)
    if n_shards > n_partitions:
        raise ValueError(
            f"n_shards={n_shards} is more than the {n_partitions} partitions of X; repartition "
            f"X, or take fewer shards."
        )
    return np.array_split(np.arange(n_partitions), n_shards)


def _collected(cluster, parts, groups, homes):
    """Return futures of the raw rows of each group of partitions."""
    futures = []
    for group, home in zip(groups, homes, strict=True):
        columns = [None if of is None else [of[i] for i in group] for of in parts.values()]
        futures.append(cluster.collected(_shards.collect, int(group[0]), *columns, on=home))
    return futures


def _seed_of(seed, shard):
    """Return the seed of a shard; the first one has that of the fit."""
    if shard == 0:
        return seed
    return int(np.random.default_rng([seed, shard]).integers(1 << 31))


class _Classes:
    """Predictions of classes on a cluster."""

    def predict(self, X):
        """Return the class of the largest score, lazily.

        Parameters
        ----------
        X : dask collection

        Returns
        -------
        y : dask.array.Array of shape (n_samples,)
        """
        check_is_fitted(self)
        return self._blocks(X, "predict", self.classes_[:0])

    def decision_function(self, X):
        """Return the scores, lazily; see the plain estimator.

        Parameters
        ----------
        X : dask collection

        Returns
        -------
        scores : dask.array.Array of shape (n_samples,) or (n_samples, n_classes)
        """
        check_is_fitted(self)
        n_outputs = self._n_outputs
        return self._blocks(X, "decision_function", np.zeros((0, n_outputs)[: 1 + (n_outputs > 1)]))

    def predict_proba(self, X):
        """Return the probabilities of the classes, lazily.

        Parameters
        ----------
        X : dask collection

        Returns
        -------
        probabilities : dask.array.Array of shape (n_samples, n_classes)
        """
        check_is_fitted(self)
        return self._blocks(X, "predict_proba", np.zeros((0, len(self.classes_))))

    def predict_log_proba(self, X):
        """Return the logarithms of the probabilities of the classes, lazily.

        Parameters
        ----------
        X : dask collection

        Returns
        -------
        logs : dask.array.Array of shape (n_samples, n_classes)
        """
        check_is_fitted(self)
        return self._blocks(X, "predict_log_proba", np.zeros((0, len(self.classes_))))

    def score(self, X, y, sample_weight=None):
        """Return the accuracy on rows, computed on the workers.

        Parameters
        ----------
        X, y : dask collection
        sample_weight : dask collection, default=None

        Returns
        -------
        score : float
        """
        hits, weight, *_ = self._summed(X, y, sample_weight, _shards.hits)
        return float(hits / weight)


class _Numbers:
    """Predictions of real numbers on a cluster."""

    def predict(self, X):
        """Return the predicted targets, lazily.

        Parameters
        ----------
        X : dask collection

        Returns
        -------
        y : dask.array.Array of shape (n_samples,)
        """
        return self._blocks(X, "predict", np.zeros(0))

    def score(self, X, y, sample_weight=None):
        """Return R^2 on rows, computed on the workers.

        Parameters
        ----------
        X, y : dask collection
        sample_weight : dask collection, default=None

        Returns
        -------
        score : float
        """
        error, weight, total, squares = self._summed(X, y, sample_weight, _shards.errors)
        return float(1 - error / (squares - total**2 / weight))


_NOTE = """{summary}

    The model and its parameters are those of :class:`freqfm.{name}`, whose documentation describes
    them. ``fit`` takes Dask collections: arrays of NumPy or of sparse blocks, DataFrames, or bags
    of sparse matrices; ``y`` and ``sample_weight`` have the same partitions. Rows stay on the
    workers: the rows of ``n_shards`` shards, neighbouring partitions, train side by side, and the
    shards' models are merged several times in an epoch. The client holds the model only.

    Parameters
    ----------
    *args, **params
        Those of :class:`freqfm.{name}`.
    client : distributed.Client, default=None
        None is the current client. It is not pickled.
    n_shards : int, default=None
        Number of shards. None is one per worker, or per partition if these are fewer. Results are
        bitwise the same for any number of workers, but not of shards.
    n_merges : int, default=4
        Merges in an epoch.

    Attributes
    ----------
    n_shards_ : int
        Number of shards in ``fit``. All others are those of :class:`freqfm.{name}`.

    See Also
    --------
    freqfm.{name} : The estimator on one machine.

    Notes
    -----
    Between two merges a row w of the model becomes w_m on shard m, which has seen the row's token
    n_m times. The merged row is w + sum f_m (w_m - w), where f_m is a multiple of sqrt(n_m / n),
    with n the sum over shards, but at least n_m / n and at most 1. The multiple starts at 1, grows
    by a twentieth in an epoch while the loss falls, and is halved when it rises. The intercept,
    and dense layers, are averaged. The counters of CF-SGD add up, so that they are exact. With
    one shard the model is the plain estimator's, bit for bit.

    Early stopping with several shards holds out a random part of each shard's rows, a tenth, or a
    fifth of fewer than 10,000 rows; it neither stratifies nor cross-validates.

    Examples
    --------
    >>> import dask.array as da
    >>> from distributed import Client
    >>> from freqfm.dask import {name}
    >>> from freqfm.datasets import make_clicks
    >>> X, y = make_clicks(1000, (50, 20), random_state=0)
    >>> with Client(processes=False, n_workers=1, dashboard_address=None) as client:
    ...     rows = da.from_array(X.toarray(), chunks=(250, -1))
    ...     target = da.from_array({target}, chunks=250)
    ...     model = {name}(n_shards=2, max_iter=5, n_iter_no_change=None, random_state=0)
    ...     model = model.fit(rows, target)
    ...     predictions = model.predict(rows).compute()
    >>> predictions.shape
    (1000,)
    """


def estimator(local, target="y"):
    """Return a decorator that gives a class the parameters and documentation of a plain estimator.

    Parameters
    ----------
    local : type
        The plain estimator.
    target : str
        Targets of the example.
    """

    def complete(found):
        found._local = local
        found.__init__ = with_options(local)
        found._parameter_constraints = {**local._parameter_constraints, **CONSTRAINTS}
        found.__doc__ = _NOTE.format(name=local.__name__, summary=found.__doc__, target=target)
        return found

    return complete


@estimator(plain.FMClassifier)
class FMClassifier(_Classes, ShardedFM, plain.FMClassifier):
    """Factorization machine for classification, trained on a Dask cluster."""


@estimator(plain.FMRegressor, "y.astype(float)")
class FMRegressor(_Numbers, ShardedFM, plain.FMRegressor):
    """Factorization machine for regression, trained on a Dask cluster."""


@estimator(rafm.RaFMClassifier)
class RaFMClassifier(_Classes, ShardedFM, rafm.RaFMClassifier):
    """Rank-aware factorization machine for classification, trained on a Dask cluster."""


@estimator(rafm.RaFMRegressor, "y.astype(float)")
class RaFMRegressor(_Numbers, ShardedFM, rafm.RaFMRegressor):
    """Rank-aware factorization machine for regression, trained on a Dask cluster."""


@estimator(deepfm.DeepFMClassifier)
class DeepFMClassifier(_Classes, ShardedFM, deepfm.DeepFMClassifier):
    """Factorization machine with dense layers for classification, trained on a Dask cluster."""

    _trainer = ShardedTowerTrainer


@estimator(deepfm.DeepFMRegressor, "y.astype(float)")
class DeepFMRegressor(_Numbers, ShardedFM, deepfm.DeepFMRegressor):
    """Factorization machine with dense layers for regression, trained on a Dask cluster."""

    _trainer = ShardedTowerTrainer
