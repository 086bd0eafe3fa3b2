"""Recommendations to many users, written to a folder of Parquet files block by block."""

import json
import re
from pathlib import Path

import joblib
import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from freqfm._input.ids import as_list
from freqfm._input.item_tables import is_list
from freqfm._input.rows import slices
from freqfm._input.validation import check_count, validate_ids
from freqfm._messages import cut, shown
from freqfm._paths import check_path
from freqfm.callbacks import _storage
from freqfm.estimators.progress import announced_parts

# Users of a file, and places for items: blocks large enough for the products, small enough that a
# kill loses seconds.
_USERS_OF_PART, _PLACES_OF_PART = 1 << 15, 1 << 22

_PART = r"part-\d{5,}-of-\d{5,}\.parquet"

# The key of the files' metadata that holds hashes of what was asked for.
_KEY = b"freqfm"

# Parameters that the lists do not depend on: how many items there are is asked for.
_WITHOUT_EFFECT = {"n_jobs", "verbose", "n_recommendations"}

_PLAIN = bool, int, float, str, type(None), np.generic


class RecommendToMixin:
    """Recommenders with users seen in ``fit``, whose lists can be written to a folder."""

    def recommend_to(self, path, users=None, *, n_recommendations=None, **options):
        """Recommend to many users, and write their lists to a folder of Parquet files.

        The table has a row for each recommended item, with the columns ``user``, ``item``, ``rank``
        (from 1 on, best first) and ``score``: those that :meth:`recommend` returns, bit for bit.
        Places without an item have no row.

        A file holds the lists of some ten thousand users, and appears in the folder when it is
        complete. A call that was killed is continued by the same call: files that are there are not
        computed again. What was asked for is part of the files, so that lists of another model or
        with other options are never mixed. One call at a time writes to a folder. With ``verbose``,
        progress is shown.

        Parameters
        ----------
        path : str or path-like
            Folder; it is created if need be. Files of others in it are an error.
        users : array-like of shape (n_users,), default=None
            Users seen in ``fit``, as for :meth:`recommend`; None is all of them.
        n_recommendations : int, default=None
            Items per user; None takes the constructor's.
        **options : dict
            Passed to :meth:`recommend`: ``exclude_seen``, ``candidates``, ``exclude``,
            ``diversity``, ``item_vectors``, if the model has features ``item_features``, and one
            ``context`` for all users.

        Raises
        ------
        ImportError
            If pyarrow is not installed.
        ValueError
            If the folder holds files that this call would not write, and as :meth:`recommend`.
        TypeError
            If Parquet files cannot hold the ids, or an option is not known.
        OSError
            If files cannot be written.

        Examples
        --------
        >>> import tempfile
        >>> import pandas as pd
        >>> from freqfm import EASERecommender
        >>> from freqfm.datasets import make_interactions
        >>> model = EASERecommender().fit(make_interactions(200, 100, random_state=0))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     model.recommend_to(folder, n_recommendations=3)
        ...     table = pd.read_parquet(folder)
        >>> list(table)
        ['user', 'item', 'rank', 'score']
        """
        check_is_fitted(self)
        n = self.n_recommendations if n_recommendations is None else n_recommendations
        options["n_recommendations"] = check_count("n_recommendations", n)
        for name in ("X", "history", "dislikes", "user_features"):
            if options.get(name) is not None:
                raise TypeError(
                    f"recommend_to writes the lists of users seen in fit, and takes no {name}; "
                    f"write what recommend({name}=...) returns."
                )
        users = as_list(users)
        users = [users] if users is not None and not np.ndim(users) else users
        _write(self, path, *self._users_and_items(users), options)

    def _users_and_items(self, users):
        """Return users, all if None, and ids of all items; () if they are numbers."""
        n_users = getattr(self, "_n_users", None) or self.n_users_
        users = np.arange(n_users) if users is None else validate_ids("users", users, n_users)
        return users, np.arange(0)


def _write(model, path, users, items, options):
    """Write the lists of users to those files of a folder that are not there."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise ImportError("Parquet files take pyarrow: pip install 'freqfm[streams]'.") from None
    path, n_users = Path(check_path("path", path)), len(users)
    # Errors come before anything is written.
    options_of = _by_user(options, n_users)
    model.recommend(users=users[:1], **options_of(slice(0, 1)))
    named = {"user": users, "item": items}
    columns = {name: _arrow(pyarrow, f"{name}s", ids) for name, ids in named.items()}
    of_request = {"model": model, "users": users, **options}
    hashes = {name: _hash(value) for name, value in of_request.items()}
    types = {name: ids.type for name, ids in columns.items()}
    schema = pyarrow.schema(
        {**types, "rank": pyarrow.int32(), "score": pyarrow.float32()}, {_KEY: json.dumps(hashes)}
    )
    size = max(1, min(_USERS_OF_PART, _PLACES_OF_PART // options["n_recommendations"]))
    parts = list(slices(n_users, size)) or [slice(0, 0)]
    files = [path / f"part-{i:05d}-of-{len(parts):05d}.parquet" for i in range(len(parts))]
    done = _files_of(parquet, path, files, hashes)
    verbose = getattr(model, "verbose", getattr(model.__dict__.get("estimator_"), "verbose", 0))
    phase = f"recommending to {n_users:,} users"
    with announced_parts(verbose, phase, n_users, "user") as report:
        for part, file in zip(parts, files, strict=True):
            if file not in done:
                found, scores = model.recommend(users=users[part], **options_of(part))
                at, ranks = np.nonzero(scores > -np.inf)
                columns_of_part = [
                    columns["user"].take(pyarrow.array(part.start + at)),
                    _arrow(pyarrow, "items", found[at, ranks], types["item"]),
                    pyarrow.array(ranks + 1, pyarrow.int32()),
                    pyarrow.array(scores[at, ranks]),
                ]
                with _storage.replacing(file) as stream:
                    table = pyarrow.Table.from_arrays(columns_of_part, schema=schema)
                    parquet.write_table(table, stream)
            if n_users:
                report(part.stop)


def _arrow(pyarrow, name, ids, kind=None):
    """Return ids as an array of Arrow."""
    try:
        return pyarrow.array(ids, kind)
    except (pyarrow.ArrowException, OverflowError, ValueError, TypeError) as error:
        raise TypeError(
            f"Parquet files cannot hold the ids of {name}, such as {shown(ids[0])} "
            f"({cut(error)}); fit the model to ids that are strings, or integers below 2^63."
        ) from None


def _by_user(options, n_users):
    """Return a function of a slice of users, which returns their options.

    Matrices and lists of lists have a row for each user. Iterators, which are read once, are
    replaced by lists.
    """
    of_each = {}
    for name in {"candidates", "exclude"} & options.keys():
        value = options[name]
        if sparse.issparse(value):
            value = sparse.csr_array(value)
        else:
            value = options[name] = as_list(value)
            if not (is_list(value) and len(value) and is_list(value[0])):
                continue
        n = value.shape[0] if sparse.issparse(value) else len(value)
        if n != n_users:
            raise ValueError(
                f"{name} holds the items of {n} users, but there are {n_users} to recommend to; "
                f"give those of each, or one list of items for all."
            )
        of_each[name] = value
    return lambda part: {**options, **{name: value[part] for name, value in of_each.items()}}


def _files_of(parquet, folder, files, hashes):
    """Return the files in a folder; raise unless they are of those that the call would write."""
    folder.mkdir(parents=True, exist_ok=True)
    _storage.remove_temporary(folder, _PART)
    # What readers of folders ignore, too.
    found = {file for file in folder.iterdir() if file.name[0] not in "._"}
    for file in sorted(found):
        known = None
        if re.fullmatch(_PART, file.name):
            try:
                known = json.loads((parquet.read_schema(file).metadata or {}).get(_KEY, "null"))
            except (OSError, ValueError) as error:
                raise ValueError(f"{file} is damaged ({cut(error)}); remove it.") from None
        if not isinstance(known, dict):
            raise ValueError(
                f"{folder} holds {shown(file.name)}, which recommend_to has not written; give the "
                f"path of a new folder."
            )
        names = [*hashes, *(name for name in known if name not in hashes)]
        changed = [name for name in names if hashes.get(name) != known.get(name)]
        if changed or file not in files:
            what = changed[0] if changed else "size of files"
            raise ValueError(
                f"{folder} holds lists of another call of recommend_to: its {what} was not the "
                f"same. Give the path of a new folder, or repeat that call to finish it."
            )
    return found


def _hash(value):
    """Return a hash of a value; that of an estimator is the same for its copies."""
    if isinstance(value, BaseEstimator):
        if hasattr(value, "without_optimizer_state"):
            value = value.without_optimizer_state()
        params, state = value.get_params(deep=False), value.__getstate__()
        kept = {
            name: one
            for name, one in sorted(state.items())
            if name not in _WITHOUT_EFFECT and (name not in params or isinstance(one, _PLAIN))
        }
        value = [type(value).__name__, kept]
    if isinstance(value, dict):
        value = list(map(list, value.items()))
    if isinstance(value, (list, tuple)) and not all(isinstance(one, _PLAIN) for one in value):
        value = list(map(_hash, value))
    try:
        return _storage.digest(value, "it")
    except TypeError:
        # A class of others, whose pickle, unlike that of arrays, has no changing parts.
        return joblib.hash(value)
