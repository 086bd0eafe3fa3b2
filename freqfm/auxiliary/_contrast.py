"""InfoNCE: the contrast of each row with its own key and with all other keys."""

import numpy as np

from freqfm._input.rows import slices

# Queries whose logits with all keys are computed at a time.
_ROWS = 1 << 10


def info_nce(queries, keys, own, temperature):
    """Return the mean InfoNCE of rows, and its gradients with respect to queries and to keys.

    With cosines s_ij of query i and key j it is, for n queries and the temperature t ::

        -1/n sum_i log(exp(s_i,own(i) / t) / sum_j exp(s_ij / t)).

    Parameters
    ----------
    queries : ndarray of shape (n, d)
    keys : ndarray of shape (m, d)
    own : ndarray of int of shape (n,)
        The key of each query.
    temperature : float

    Returns
    -------
    value : float
    query_gradients, key_gradients : ndarray
    """
    (units, lengths), (key_units, key_lengths) = _normalised(queries), _normalised(keys)
    total, by_units, by_keys = 0.0, np.zeros_like(units), np.zeros_like(key_units)
    for rows in slices(len(queries), _ROWS):
        places = np.arange(len(units[rows])), own[rows]
        logits = units[rows] @ key_units.T / temperature
        logits -= logits.max(axis=1, keepdims=True)
        total -= logits[places].sum(dtype=np.float64)
        shares = np.exp(logits, out=logits)
        sums = shares.sum(axis=1, keepdims=True)
        total += np.log(sums).sum(dtype=np.float64)
        shares /= sums
        shares[places] -= 1
        shares /= len(queries) * temperature
        by_units[rows] = shares @ key_units
        by_keys += shares.T @ units[rows]
    gradients = (
        _through_normalisation(*of)
        for of in ((by_units, units, lengths), (by_keys, key_units, key_lengths))
    )
    return total / len(queries), *gradients


def info_nce_of_views(batch, users, items, weight, temperature):
    """Return the InfoNCE of two views, over users and positive items of a batch, and gradients.

    Parameters
    ----------
    batch : TermBatch
    users, items : ndarray of shape (2, n_rows, d)
        Two views of the vectors of the batch.
    weight, temperature : float
    """
    total, gradients = 0.0, [np.zeros_like(views) for views in (users, items)]
    places = np.arange(len(batch.users)), batch.positive_items
    for views, rows, gradient in zip((users, items), places, gradients, strict=True):
        value, *found = info_nce(*views[:, rows], np.arange(len(rows)), temperature)
        total += weight * value
        for of_view, by_rows in zip(gradient, found, strict=True):
            of_view[rows] = weight * by_rows
    return total, *gradients


def _normalised(vectors):
    """Return vectors at unit length, and their lengths; those of length zero stay zero."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    lengths[lengths == 0] = 1
    return vectors / lengths, lengths


def _through_normalisation(gradients, units, lengths):
    """Return gradients with respect to vectors, from those with respect to unit vectors."""
    along = np.einsum("ij,ij->i", gradients, units)[:, np.newaxis]
    return (gradients - along * units) / lengths
