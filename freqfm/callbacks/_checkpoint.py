"""Checkpoint: the state of a fit in a file, epoch by epoch."""

import os
from numbers import Integral
from pathlib import Path
from typing import Any

from freqfm._input.validation import check_integer
from freqfm._messages import shown, warn_user
from freqfm._paths import check_path
from freqfm.callbacks import _storage

# Version of the file format.
_FORMAT = 1

# Parameters that may change in a continued fit: the seed has been drawn already, and on another
# device only the last bits differ.
_WITHOUT_EFFECT = {"client", "device", "n_jobs", "random_state", "verbose"}


class Checkpoint:
    """Callback that writes the state of a fit to a file, from which :func:`resume` continues it.

    After an epoch the model, the optimizer state and everything else that training needs are
    written to a temporary file, which then replaces the previous one: the file is always complete,
    even if the process is killed. It contains arrays and JSON; loading it runs no code.

    Parameters
    ----------
    path : str or path-like
        The file. Its folder must exist; an existing file is overwritten, or the one that a symbolic
        link stands for. A relative path is that of the working directory at the time of this call.
    every : int, default=1
        Epochs between checkpoints. The last epoch of a fit is always written.

    Raises
    ------
    ValueError
        If ``every`` is not a positive integer.
    OSError, TypeError
        From ``fit``, before it trains: if the folder does not exist, or no file can be written
        there, or if a parameter of the estimator cannot be stored, such as a custom component.

    Warns
    -----
    UserWarning
        If a file cannot be written later on, because the disk is full, say. The fit continues, the
        file stays as it was, and the next checkpoint is tried again.

    See Also
    --------
    resume : Continues the fit.

    Notes
    -----
    The file is as large as the model and the optimizer state, twice as large with early stopping,
    which keeps the best epoch too; it is flushed to the disk each time. It does not hold the
    training data, only a hash by which a change of the data is detected.

    Use one file per fit. Do not set a checkpoint in searches and ensembles, whose fits would
    overwrite each other's file.

    Examples
    --------
    >>> import os, tempfile
    >>> from freqfm import FMClassifier
    >>> from freqfm.callbacks import Checkpoint, resume
    >>> from freqfm.datasets import make_clicks
    >>> X, y = make_clicks(1000, (50, 20), random_state=0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "fm.checkpoint")
    ...     model = FMClassifier(max_iter=20, n_iter_no_change=None, random_state=0)
    ...     model = model.set_callbacks(Checkpoint(path))
    ...     model = model.fit(X, y)  # suppose that this was killed
    ...     model = resume(path).fit(X, y)
    >>> model.n_iter_
    20
    """

    def __init__(self, path: str | os.PathLike[str], *, every: int = 1):
        self.path = Path(check_path("path", path)).absolute()
        self.every = check_integer("every", every, 1)

    def __repr__(self):
        return f"Checkpoint({os.fspath(self.path)!r}, every={self.every})"

    # The protocol of scikit-learn's callbacks; the estimators' training loop does the work.

    def setup(self, estimator, context):
        """Check that the estimator can write checkpoints."""
        if not hasattr(estimator, "_writes_checkpoints"):
            raise TypeError(
                f"{type(estimator).__name__} does not write checkpoints; set them on an estimator "
                f"of freqfm."
            )

    def teardown(self, estimator, context):
        """Do nothing."""

    def on_fit_task_begin(self, estimator, context):
        """Do nothing."""

    def on_fit_task_end(self, estimator, context):
        """Do nothing."""

    @property
    def _target(self):
        """The file itself, if the path is a symbolic link."""
        return Path(os.path.realpath(self.path))

    def check_folder(self):
        """Raise unless the file can be written."""
        path = self._target
        if os.path.isdir(path):
            raise IsADirectoryError(
                f"{self!r}: {os.fspath(path)!r} is a folder; give the path of a file in it."
            )
        try:
            _storage.check_place(path)
        except OSError as error:
            raise type(error)(
                f"{self!r}: no file can be written there ({error}); give another path, or the "
                f"path of a file in a folder: create it first."
            ) from error

    def save(self, estimator, progress):
        """Write the file; warn if that fails, since hours of training are worth more than the file.

        Parameters
        ----------
        estimator : estimator
            Fitted; its model is that of the last epoch.
        progress : dict
            What the training loop needs beyond the estimator.
        """
        value = {
            "format": _FORMAT,
            "every": self.every,
            "estimator": estimator,
            "progress": progress,
        }
        try:
            _storage.save(self._target, value)
        except OSError as error:
            warn_user(
                f"{self!r} could not be written ({error}). Training continues; the file, if there "
                f"is one, is that of an earlier epoch."
            )


def resume(path: str | os.PathLike[str]) -> Any:
    """Return the estimator stored in a checkpoint; its ``fit`` continues the interrupted fit.

    Given the same data, ``fit`` ends with the same model, bit for bit, as if it had not been
    interrupted, and continues to write the file. Before that, the estimator has the model of the
    last epoch that was written, and can predict.

    Parameters
    ----------
    path : str or path-like
        File of a :class:`Checkpoint`. Untrusted files are safe to load: no code in them is run.

    Returns
    -------
    estimator : estimator
        With its parameters and learned attributes. Only the parameters ``n_jobs``, ``device``,
        ``verbose`` and ``client`` may be changed before ``fit``.

    Raises
    ------
    ValueError
        If the file is not a checkpoint, or is damaged. From ``fit``, if data or parameters differ
        from those of the interrupted fit, or if the state of its training is damaged.
    OSError
        If the file cannot be read.

    See Also
    --------
    Checkpoint : Writes the file.

    Examples
    --------
    >>> import os, tempfile
    >>> from freqfm import MFRecommender
    >>> from freqfm.callbacks import Checkpoint, resume
    >>> from freqfm.datasets import make_interactions
    >>> X = make_interactions(200, 100, random_state=0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "mf.checkpoint")
    ...     model = MFRecommender(max_iter=3, random_state=0).set_callbacks(Checkpoint(path))
    ...     model = model.fit(X)
    ...     model = resume(path)
    >>> model.recommend(users=[0])[0].shape
    (1, 10)
    """
    path = check_path("path", path)
    value = _storage.load(path)
    if not isinstance(value, dict) or value.get("format") != _FORMAT:
        raise ValueError(
            f"{Path(path)} is not a checkpoint that this version of freqfm can read; resume it "
            f"with the version that wrote it."
        )
    estimator, progress, every = (value.get(key) for key in ("estimator", "progress", "every"))
    if (
        not hasattr(estimator, "_writes_checkpoints")
        or not isinstance(progress, dict)
        or not isinstance(progress.get("fingerprint"), dict)
        or not isinstance(progress.get("phase"), Integral)
        or not isinstance(every, Integral)
        or every < 1
    ):
        raise ValueError(
            f"{Path(path)} holds no estimator that can be resumed; if freqfm wrote it, it is "
            f"damaged: fit again."
        )
    estimator._unfinished = progress
    return estimator.set_callbacks(Checkpoint(path, every=every))


def fingerprint(estimator, data):
    """Return hashes of data and parameters, by which a continued fit detects changes.

    Parameters
    ----------
    estimator : estimator
    data : dict of str to object
        Arrays, sparse arrays or None, by the name of the argument.

    Returns
    -------
    parts : dict of str to str

    Raises
    ------
    TypeError
        If a checkpoint cannot store a parameter.
    """
    parts = {}
    for name, value in data.items():
        if hasattr(value, "indptr"):
            value = [value.shape, value.indptr, value.indices, value.data]
        parts[name] = _storage.digest(value, name)
    for name, value in estimator.get_params(deep=False).items():
        if name not in _WITHOUT_EFFECT:
            parts[name] = _storage.digest(value, name)
    return parts


def check_fingerprint(estimator, found, expected):
    """Raise if a continued fit is given other data or parameters than it began with.

    Parameters
    ----------
    estimator : estimator
    found, expected : dict
        From :func:`fingerprint`.

    Raises
    ------
    ValueError
        The message names the argument.
    """
    different = [name for name in found if found[name] != expected.get(name)]
    if different:
        name = different[0]
        given = f"={shown(getattr(estimator, name))}" if hasattr(estimator, name) else ""
        raise ValueError(
            f"{name}{given} is not that of the fit to be resumed; pass the same, or start again "
            f"with sklearn.base.clone(estimator).fit(...)."
        )
