"""Factorization machines on a Dask cluster."""

from dataclasses import dataclass

import numpy as np
from sklearn.utils.validation import check_is_fitted

from freqfm._input.validation import draw_seed
from freqfm._sklearn import callbacks_of
from freqfm.dask import _shards
from freqfm.dask._base import Merged, ShardedFMTrainer, ShardedRows
from freqfm.dask._cluster import aligned_partitions
from freqfm.estimators.fm import base, by_field, deep, plain
from freqfm.estimators.fm.targets import balanced_weights
from freqfm.estimators.fm.trainer import Shard
from freqfm.estimators.progress import announce
from freqfm.estimators.training import FitCallbacks


class ShardedFM(Merged):
    """A factorization machine on a cluster; a mixin before the plain estimator.

    ``fit`` is that of ``BaseFM``; preparing, splitting and training on rows differ. The plain
    estimator is the last base of a class. Of the documentation, all but the first line is that of
    ``FMClassifier`` with the other name.
    """

    _trainer = ShardedFMTrainer
    _rows_in = "Dask"

    def __init_subclass__(cls, **options):
        super().__init_subclass__(**options)
        if hasattr(cls, "_local"):
            return  # a user's class, derived from one of these
        cls._local = local = cls.__bases__[-1]
        if cls.__doc__ and local is not plain.FMClassifier:
            _, _, rest = FMClassifier.__doc__.partition("\n")
            cls.__doc__ += "\n" + rest.replace("FMClassifier", local.__name__)
        dataclass(eq=False, repr=False, kw_only=True)(cls)

    def _prepare(self, X, y, sample_weight, classes, reset, partial=False):
        """Bring the rows to their workers and check them, see ``BaseFM._prepare``."""
        if not reset:
            self._check_learned()
        # They raise where they are wrong.
        _ = base.checked_optimizer(self), self._loss
        if y is None:
            raise ValueError("fit needs y, the targets; got None.")
        parts = aligned_partitions({"X": X}, {"y": y, "sample_weight": sample_weight})
        cluster, raw, homes = self._collected(_shards.collect, parts)
        described = cluster.submit_each(_shards.describe, raw, homes, self._of_classes)
        facts = cluster.gather(described)
        filled = _filled(facts)
        raw, homes = ([futures[i] for i in filled] for futures in (raw, homes))
        if reset:
            self._seed = draw_seed(self.random_state)
        shards = self._checked_shards(cluster, raw, homes, facts, reset)
        n_outputs, sizes = self._n_outputs, [facts[i]["n_weighted"] for i in filled]
        rows = ShardedRows(cluster, shards, homes, n_outputs, sizes)
        *features, heads = zip(*cluster.gather(rows.of_shards(Shard.features)), strict=True)
        self._take_features(list(zip(*features, strict=True)), reset)
        if reset:
            head = None if getattr(self, "fields", 0) is not None else _shards.common_fields(heads)
            self._take_fields(X if head is None else head, reset)
            self._check_size(n_outputs)
        return rows, None

    @property
    def _n_outputs(self):
        several = self._of_classes and len(self.classes_) > 2
        return len(self.classes_) if several else 1

    def _checked_shards(self, cluster, raw, homes, facts, reset):
        """Return futures of the shards; set the classes of a new model."""
        model = self._new()
        model.random_state = 0
        known = None
        if self._of_classes:
            # A class without weight is one, too.
            of_shards = [fact["classes"] for fact in facts if fact["n_rows"]]
            labels, totals = zip(*of_shards, strict=True)
            found, codes = np.unique(np.concatenate(labels), return_inverse=True)
            known = self.classes_ = found if reset else self.classes_
            if self.class_weight == "balanced":
                weights = balanced_weights(np.bincount(codes, np.concatenate(totals)))
                model.class_weight = dict(zip(found.tolist(), weights.tolist(), strict=True))
        return [
            cluster.submit(Shard, rows, model, _shards.seed_of(self._seed, i), known, on=home)
            for i, (rows, home) in enumerate(zip(raw, homes, strict=True))
        ]

    def _with_given_validation(self, rows, X_val, y_val, weight):
        """Return the rows with the validation set given to ``fit``, or None without one."""
        given = base.given_names(X_val, y_val, weight)
        if not given:
            return None
        self._check_validation_given(given)
        parts = aligned_partitions({"X_val": X_val}, {"y_val": y_val, "sample_weight_val": weight})
        groups = np.array_split(np.arange(len(parts["X_val"])), len(rows.shards))
        groups = [group for group in groups if len(group)]
        homes = rows.homes[: len(groups)]
        raw = rows.cluster.collected(_shards.collect, parts, groups, homes)
        pairs = zip(rows.shards, raw, strict=False)
        validated = rows.cluster.submit_each(Shard.validated_on, pairs, homes)
        shards = [*validated, *rows.shards[len(validated) :]]
        facts = rows._replace(shards=shards).of_shards(Shard.facts)
        if not sum(held_out for ((_, held_out),) in rows.cluster.gather(facts)):
            raise ValueError("X_val has no rows of positive weight in any of its partitions.")
        return rows._replace(shards=shards, fold=0, held_out=True)

    def _split(self, rows, labels):
        """Return a list of folds, see ``BaseFM._split``; only a single shard has several."""
        n_rows, early_stopping, share = sum(rows.sizes), self.early_stopping, None
        if len(rows.shards) > 1:
            if early_stopping == "auto":
                early_stopping = n_rows >= base.AUTO_EARLY_STOPPING
            if not early_stopping:
                return [rows]
            share = self.validation_fraction
            if share == "auto":
                share = 0.1 if n_rows >= base.CROSS_VALIDATED_BELOW else 0.2
        announce(self.verbose, "holding out a part of each shard's rows")
        split = rows._replace(shards=rows.of_shards(Shard.split, share))
        facts = rows.cluster.gather(split.of_shards(Shard.facts))
        folds = []
        for number, of_fold in enumerate(zip(*facts, strict=True)):
            trained, held_out = zip(*of_fold, strict=True)
            held_out = True if any(held_out) else None
            folds.append(split._replace(sizes=list(trained), fold=number, held_out=held_out))
        return folds

    def _callbacks(self, rows, folds, unfinished):
        hashed = {}
        if unfinished or callbacks_of(self):
            hashed["X"] = rows.cluster.gather(folds[0].of_shards(Shard.digest))
        return FitCallbacks(self, {"X": None, "y": None}, hashed, self.max_iter, unfinished)

    def score(self, X, y, sample_weight=None):
        """Return the accuracy, or R^2 of a regressor, on rows; computed on their workers.

        Parameters
        ----------
        X, y : dask collection
        sample_weight : dask collection, default=None

        Returns
        -------
        score : float
        """
        columns = {"y": y, "sample_weight": sample_weight}
        facts = self._of_partitions(_shards.score_facts, X, columns)
        return _shards.score_of(facts, self._of_classes)


def _filled(facts):
    """Return the numbers of the shards that have something to train on."""
    n_rows = sum(fact["n_rows"] for fact in facts)
    if not n_rows:
        raise ValueError("X has no rows in any of its partitions.")
    filled = [i for i, fact in enumerate(facts) if fact["n_weighted"]]
    if not filled:
        raise ValueError(
            f"sample_weight is 0 for all {n_rows} rows of X; give some of them a positive weight."
        )
    return filled


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


class FMClassifier(_Classes, ShardedFM, plain.FMClassifier):
    """Factorization machine for classification, trained on a Dask cluster.

    The model and its parameters are those of :class:`freqfm.FMClassifier`, whose documentation
    describes them. ``fit`` takes Dask collections: arrays of NumPy or of sparse blocks, DataFrames,
    or bags of sparse matrices; ``y`` and ``sample_weight`` have the same partitions. Rows stay on
    the workers: the rows of ``n_shards`` shards, neighbouring partitions, train side by side, and
    the shards' models are merged several times in an epoch. The client holds the model only.

    Parameters
    ----------
    *args, **params
        Those of :class:`freqfm.FMClassifier`.
    client : distributed.Client, default=None
        None is the current client. It is not pickled.
    n_shards : int, default=None
        Number of shards. None is one per worker, or per partition if these are fewer. Results are
        bitwise the same for any number of workers, but not of shards.
    n_merges : int, default=4
        Merges in an epoch.

    Attributes
    ----------
    client_ : distributed.Client
        The client that is used: ``client``, or else the current one. Also before ``fit``.
    n_shards_ : int
        Number of shards in ``fit``. All others are those of :class:`freqfm.FMClassifier`.

    See Also
    --------
    freqfm.FMClassifier : The estimator on one machine.

    Notes
    -----
    A default fit takes about 34 CPU seconds for the 57,722 rows of 10 features of Frappe, two
    workers together, with a plain machine for classes, and 24 with one for numbers. In each epoch
    0.35 of them are for Dask's tasks; all else is as for :class:`freqfm.FMClassifier`.

    Between two merges a row w of the model becomes w_m on shard m, which has seen the row's token
    n_m times. The merged row is w + sum f_m (w_m - w), where f_m is a multiple of sqrt(n_m / n),
    with n the sum over shards, but at least n_m / n and at most 1. The multiple starts at 1, grows
    by a twentieth in an epoch while the loss falls, and is halved when it rises. The intercept,
    dense layers, and weights of pairs of fields are averaged. The counters of CF-SGD add up, so
    that they are exact. With one shard the model is the plain estimator's, bit for bit.

    Early stopping with several shards holds out a random part of each shard's rows, a tenth, or a
    fifth of fewer than 10,000 rows; it neither stratifies nor cross-validates.

    Examples
    --------
    >>> import dask.array as da
    >>> from distributed import Client
    >>> from freqfm.dask import FMClassifier
    >>> with Client(processes=False, n_workers=1, dashboard_address=None) as client:
    ...     rows = da.random.default_rng(0).random((1000, 5), chunks=(250, -1))
    ...     target = (rows[:, 0] > 0.5).astype(int)
    ...     model = FMClassifier(n_shards=2, max_iter=5, n_iter_no_change=None, random_state=0)
    ...     model = model.fit(rows, target)
    ...     predictions = model.predict(rows).compute()
    >>> predictions.shape
    (1000,)
    """


class FMRegressor(_Numbers, ShardedFM, plain.FMRegressor):
    """Factorization machine for regression, trained on a Dask cluster."""


class RaFMClassifier(_Classes, ShardedFM, plain.RaFMClassifier):
    """Rank-aware factorization machine for classification, trained on a Dask cluster."""


class RaFMRegressor(_Numbers, ShardedFM, plain.RaFMRegressor):
    """Rank-aware factorization machine for regression, trained on a Dask cluster."""


class DeepFMClassifier(_Classes, ShardedFM, deep.DeepFMClassifier):
    """Factorization machine with dense layers for classification, trained on a Dask cluster."""


class DeepFMRegressor(_Numbers, ShardedFM, deep.DeepFMRegressor):
    """Factorization machine with dense layers for regression, trained on a Dask cluster."""


class NFMClassifier(_Classes, ShardedFM, deep.NFMClassifier):
    """Neural factorization machine for classification, trained on a Dask cluster."""


class NFMRegressor(_Numbers, ShardedFM, deep.NFMRegressor):
    """Neural factorization machine for regression, trained on a Dask cluster."""


class FwFMClassifier(_Classes, ShardedFM, by_field.FwFMClassifier):
    """Field-weighted factorization machine for classification, trained on a Dask cluster."""


class FwFMRegressor(_Numbers, ShardedFM, by_field.FwFMRegressor):
    """Field-weighted factorization machine for regression, trained on a Dask cluster."""


class FFMClassifier(_Classes, ShardedFM, by_field.FFMClassifier):
    """Field-aware factorization machine for classification, trained on a Dask cluster."""


class FFMRegressor(_Numbers, ShardedFM, by_field.FFMRegressor):
    """Field-aware factorization machine for regression, trained on a Dask cluster."""
