"""Auxiliary terms in the training of matrix factorization: their values and gradients by batch."""

import numpy as np

from freqfm._components import resolve, set_by_user
from freqfm._input.validation import count_columns
from freqfm._machine import single_threaded_blas
from freqfm._messages import shown
from freqfm.auxiliary import AUXILIARY_TERMS, AuxiliaryTerm, TermEpoch
from freqfm.backbones._base import backward, compute
from freqfm.backends.support import check
from freqfm.losses import VectorLoss

# The random streams of terms, beside those of ``MFTrainer``.
_TERMS = 7

_SIDES = "user", "item"


def resolve_terms(model, loss, backbone):
    """Return the terms that the parameter ``auxiliary`` names, and a loss in NumPy, as a tuple.

    Raises
    ------
    ValueError
        If a name is unknown, or if terms cannot be used with the loss or the backbone.
    TypeError
        If a value is neither a name nor a term.
    """
    values = model.auxiliary if isinstance(model.auxiliary, (list, tuple)) else [model.auxiliary]
    values = [] if model.auxiliary is None else values
    terms = tuple(resolve("auxiliary", of, AuxiliaryTerm, AUXILIARY_TERMS) for of in values)
    given, otherwise = f"auxiliary={shown(model.auxiliary)}", "leave auxiliary at None"
    if isinstance(loss, VectorLoss):
        _check_loss(model, loss)
        terms = (loss, *terms)
        given, otherwise = f"loss={shown(model.loss)}", "choose another loss"
    if terms and backbone._has_context:
        words = {"backbone": f"backbone={type(backbone).__name__}", "advice": otherwise}
        check("context", "auxiliary terms", given=given, **words)
    if terms and backbone._changes_by_epoch and not backbone.is_linear:
        raise ValueError(
            f"{given} needs the gradients of each batch, and the backbone "
            f"propagates once in an epoch; set "
            f"backbone={type(backbone).__name__}(propagate='batch')."
        )
    for term in terms:
        # A user's backbone may propagate as well.
        propagates = backbone._propagates or "bind" in set_by_user(backbone)
        if term.needs_graph and (backbone.is_linear or not propagates):
            raise ValueError(
                f"{given} needs a backbone that propagates along interactions; "
                f"set backbone=LightGCN(propagate='batch'), got {type(backbone).__name__}."
            )
        term.check_backbone(backbone)
    return terms


def similarities(model):
    """Return the similarities that a model is given for the loss, and for rankings."""
    given = model.similarity
    pair = (given, "auto") if isinstance(given, str) else given
    if len(pair) != 2 or any(name not in ("auto", "cosine", "dot") for name in pair):
        raise ValueError(
            f"similarity={shown(given)} must be 'auto', 'cosine' or 'dot', or a pair of these: of "
            f"the loss, and of rankings."
        )
    return tuple(pair)


def _check_loss(model, loss):
    """Raise unless the parameters of a model fit a loss in NumPy, which reads whole vectors."""
    similarity, ranking = similarities(model)
    differs = similarity not in ("auto", loss.similarity)
    refused = {
        "similarity": differs or (loss.n_parts > 0 and ranking == "cosine"),
        "user_dropout": bool(model.user_dropout),
        "auxiliary": loss.n_parts > 0 and model.auxiliary is not None,
        "n_components": loss.n_parts >= int(model.n_components),
    }
    for name in filter(refused.get, refused):
        parts = f", of which the last {loss.n_parts} are no coordinates" if loss.n_parts else ""
        advice = "set more" if name == "n_components" else "leave it at its default"
        raise ValueError(
            f"{name}={shown(getattr(model, name))} cannot be used with loss={shown(model.loss)}, a "
            f"function of the numbers of vectors{parts}; {advice}."
        )


class AuxiliaryTerms:
    """The terms of a fit.

    Parameters
    ----------
    components : Components
    tables : dict of str to ndarray
        Of the backbone.
    vectors : dict of str to ndarray
        Those of all users, and of all items.
    X : csr_array
        All interactions that the model is trained on.
    seed, n_threads : int
    """

    def __init__(self, components, tables, vectors, X, seed, n_threads):
        self._terms, self._backbone = components.auxiliary, components.backbone
        self._averages = components.optimizer.average
        self._tables, self._vectors, self._X = tables, vectors, X
        self._counts = np.diff(X.indptr), count_columns(X)
        self._seed, self._n_threads = seed, n_threads

    def begin_epoch(self, epoch):
        """Compute the state and the views of each term."""
        self._epoch, self._states, self._views = epoch, [], []
        for number, term in enumerate(self._terms):
            given = TermEpoch(
                epoch,
                self._generator(number, 0),
                self._X,
                *map(_read_only, self._vectors.values()),
                self._backbone,
                self._tables,
                self._n_threads,
            )
            with single_threaded_blas():
                self._states.append(term.begin_epoch(given))
            given = given._replace(generator=self._generator(number, 1))
            self._views.append(list(term.views(given)))

    def _generator(self, number, place):
        return np.random.default_rng([self._seed, self._epoch, _TERMS, number, place])

    def gradients(self, batch, weight):
        """Return the value of all terms, and their gradients.

        Parameters
        ----------
        batch : TermBatch
            Without what belongs to a term.
        weight : float
            Of the batch, for optimizers that sum over it.

        Returns
        -------
        value : float
        of_vectors : list of ndarray
            Gradients with respect to the batch's users and items.
        of_tables : list of dict of str to (rows, values)
            Gradients with respect to tables, by views.
        """
        total, of_tables = 0.0, []
        scale = np.float32(1 if self._averages else weight)
        of_vectors = [np.zeros_like(batch.user_vectors), np.zeros_like(batch.item_vectors)]
        for number, term in enumerate(self._terms):
            own, contexts = self._of_term(number, batch)
            value, *found = _checked(term, own)
            total += value
            found = [scale * gradient for gradient in found]
            if not self._views[number]:
                for sum_of_terms, gradient in zip(of_vectors, found, strict=True):
                    sum_of_terms += gradient
            for view, context, *of_view in zip(self._views[number], contexts, *found, strict=False):
                by_name = backward(view, self._tables, context, *of_view)
                # Views of one graph may return the same memory.
                of_tables.append({n: (rows, of.copy()) for n, (rows, of) in by_name.items()})
        return total, of_vectors, of_tables

    def _of_term(self, number, batch):
        """Return the batch as a term gets it, and the contexts of its views."""
        batch = batch._replace(
            epoch=self._epoch,
            generator=self._generator(number, 2 + batch.number),
            user_counts=self._counts[0],
            item_counts=self._counts[1],
            state=self._states[number],
        )
        vectors, contexts = batch.both_vectors, []
        if self._views[number]:
            rows, width = (batch.users, batch.items), batch.user_vectors.shape[1]
            views = (compute(view, self._tables, rows, width) for view in self._views[number])
            *vectors, contexts = zip(*views, strict=True)
            vectors = map(np.stack, vectors)
        users, items = map(_read_only, vectors)
        return batch._replace(user_vectors=users, item_vectors=items), contexts


def _read_only(array):
    """Return a view of an array that cannot be written to: other terms, or the model, read it."""
    view = array.view()
    view.flags.writeable = False
    return view


def _checked(term, batch):
    """Return the value of a term and its gradients, checked; a gradient of None is zero.

    Raises
    ------
    ValueError
        If it returns anything else.
    """
    call = f"value_and_gradients of {type(term).__name__}"
    with single_threaded_blas():
        found = term.value_and_gradients(batch)
    fits = isinstance(found, tuple) and len(found) == 3 and np.ndim(found[0]) == 0
    if not fits or np.asarray(found[0]).dtype.kind not in "fiu":
        raise ValueError(
            f"{call} must return a number, gradients of users, and gradients of items; got "
            f"{shown(found)}."
        )
    value, *gradients = found
    checked = [float(value)]
    for vectors, gradient, side in zip(batch.both_vectors, gradients, _SIDES, strict=True):
        gradient = np.zeros_like(vectors) if gradient is None else np.asarray(gradient)
        if gradient.shape != vectors.shape or gradient.dtype.kind not in "fiu":
            raise ValueError(
                f"{call} must return gradients of {side}s of the shape {vectors.shape}, or None; "
                f"got shape {gradient.shape} and type {gradient.dtype}."
            )
        checked.append(gradient.astype(vectors.dtype, copy=False))
    return checked
