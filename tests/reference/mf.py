"""The recommenders' losses in float64, gradients by differences."""

import numpy as np
from scipy.special import softmax

from reference.differences import slopes


def similarities(U, V, cosine):
    """Return the scores of all users and items."""
    if cosine:
        U = U / np.linalg.norm(U, axis=1, keepdims=True)
        V = V / np.linalg.norm(V, axis=1, keepdims=True)
    return U @ V.T


def columns_of(pairs):
    """Return the users, the items and the weights of pairs."""
    users, items, weights = zip(*pairs, strict=True)
    return np.array(users), np.array(items), np.array(weights)


def softmax_loss(U, V, pairs, lists, *, cosine, inverse, inside=False, constant=1.0, log_q=None):
    """Return the mean softmax loss.

    ``pairs`` are (user, item, weight), ``lists`` gives the negatives of each pair, ``inverse`` is
    (n_users, 2), ``log_q`` what is subtracted from the items' logits: a number per item, or for
    each pair one per negative and then that of the positive.
    """
    u, i, weights = columns_of(pairs)
    scores = similarities(U, V, cosine)[u]
    log_q = np.zeros(len(V)) if log_q is None else np.asarray(log_q)
    drawn = np.column_stack([lists, i])
    logits = inverse[u, 1:] * np.take_along_axis(scores, drawn, axis=1)
    terms = np.exp(logits - (log_q if log_q.ndim == 2 else log_q[drawn]))
    among = (terms if inside else terms[:, :-1]).sum(axis=1)
    losses = -inverse[u, 0] * scores[np.arange(len(i)), i] + constant * np.log(among)
    return np.average(losses, weights=weights)


#: Of pairwise losses, by name: the value by the scores of a positive and of a negative.
PAIR_LOSSES = {
    "bpr": lambda positive, negative: np.log1p(np.exp(negative - positive)),
    "ccl": lambda positive, negative: 1 - positive + 20 * np.maximum(0, negative - 0.4),
    "warp": lambda positive, negative: np.maximum(0, 1 - positive + negative),
    "macr": lambda positive, negative: np.logaddexp(0, -positive) + np.logaddexp(0, negative),
}

#: Surrogates of exp(d) of PSL, by activation.
SURROGATES = {
    "tanh": lambda d: np.tanh(d) + 1,
    "atan": lambda d: np.arctan(d) + 1,
    "relu": lambda d: np.maximum(0, d + 1),
}


def psl_loss(U, V, pairs, lists, *, inverse, log_q=None, surrogate=SURROGATES["tanh"]):
    """Return the mean pairwise softmax loss; ``log_q`` is a number per item."""
    u, i, weights = columns_of(pairs)
    scores, lists = similarities(U, V, True)[u], np.asarray(lists)
    log_q = np.zeros(len(V)) if log_q is None else np.asarray(log_q)
    above = np.take_along_axis(scores, lists, axis=1) - scores[np.arange(len(i)), i][:, None]
    terms = surrogate(above / 2) ** (2 * inverse[u, 1:])
    losses = np.log((terms * np.exp(-log_q[lists])).sum(axis=1))
    return np.average(losses, weights=weights)


def slatk_loss(U, V, pairs, lists, *, cosine, inverse, thresholds, temperature):
    """Return the mean softmax loss, weighed by how far positives are above a user's threshold."""
    scores = similarities(U, V, cosine)
    total = weight = 0.0
    for (u, i, v), negatives in zip(pairs, lists, strict=True):
        log_sum = np.log(np.exp(inverse[u, 1] * scores[u, negatives]).sum())
        share = 1 / (1 + np.exp((thresholds[u] - scores[u, i]) / temperature))
        total += v * share * (log_sum - inverse[u, 0] * scores[u, i])
        weight += v
    return total / weight


def pairwise_loss(
    U, V, pairs, lists, *, cosine, inverse, known, of_pair=PAIR_LOSSES["bpr"], log_q=None
):
    """Return the mean loss over pairs of scores; items that the user knows are skipped.

    With ``log_q`` of each negative it is the mean with weights 1 / exp(log_q), which sum to one.
    """
    scores = similarities(U, V, cosine)
    total = weight = 0.0
    for p, ((u, i, v), negatives) in enumerate(zip(pairs, lists, strict=True)):
        unknown = [not known[u, j] for j in negatives]
        others = np.asarray(negatives)[unknown]
        values = of_pair(inverse[u, 0] * scores[u, i], inverse[u, 0] * scores[u, others])
        shares = np.full(len(others), 1 / len(negatives))
        if log_q is not None and len(others):
            shares = softmax(-np.asarray(log_q[p], dtype=float)[unknown])
        total += v * (shares @ values)
        weight += v
    return total / weight


def warp_loss(U, V, pairs, lists, *, cosine, inverse, known):
    """Return the mean loss of positives and the first of their negatives that has one."""
    scores, n_items = similarities(U, V, cosine), len(V)
    total = weight = 0.0
    for (u, i, v), negatives in zip(pairs, lists, strict=True):
        weight += v
        for draw, j in enumerate(negatives, 1):
            value = 1 - inverse[u, 0] * (scores[u, i] - scores[u, j])
            if value > 0 and not known[u, j]:
                total += v * np.log(max(1, (n_items - 1) // draw)) * value
                break
    return total / weight


def directau_loss(U, V, pairs, *, gamma):
    """Return DirectAU's loss of one batch."""
    x = np.array([U[u] / np.linalg.norm(U[u]) for u, _, _ in pairs])
    y = np.array([V[i] / np.linalg.norm(V[i]) for _, i, _ in pairs])
    weight = np.array([v for _, _, v in pairs])
    align = np.average(((x - y) ** 2).sum(axis=1), weights=weight)

    def uniformity(z):
        a, b = np.tril_indices(len(z), -1)
        return np.log(np.exp(-2 * ((z[a] - z[b]) ** 2).sum(axis=1)).mean())

    return align + gamma * (uniformity(x) + uniformity(y)) / 2


def mawu_loss(U, V, user_margins, item_margins, pairs, *, gammas):
    """Return MAWU's loss of one batch; margins None are no margins."""
    x = np.array([U[u] / np.linalg.norm(U[u]) for u, _, _ in pairs])
    y = np.array([V[i] / np.linalg.norm(V[i]) for _, i, _ in pairs])
    weight = np.array([v for _, _, v in pairs])
    theta = np.arccos(np.clip((x * y).sum(axis=1), -1 + 1e-7, 1 - 1e-7))
    if user_margins is not None:
        sums = np.array([user_margins[u] + item_margins[i] for u, i, _ in pairs])
        theta = np.clip(theta + 1 - 1 / (1 + np.exp(-sums)), 0, np.pi)
    align = -np.average(np.cos(theta), weights=weight)

    def uniformity(z):
        cosines = np.tril(z @ z.T, -1)
        terms = np.exp(-2 * (2 - 2 * cosines))
        # The diagonal of the lower triangle is zero too.
        return np.log(terms.mean())

    return align + gammas[0] * uniformity(x) + gammas[1] * uniformity(y)


def gradients(loss, *tables, step=1e-5):
    """Return the gradients of ``loss(*tables)`` by central differences."""
    tables = [np.array(table, dtype=np.float64) for table in tables]
    return [slopes(lambda: loss(*tables), table, step) for table in tables]


def loss_of_disliked(user, items, shares, disliked, shares_of_disliked, loss, inverse):
    """Return what dislikes add to ``user_loss``; ``loss`` is an element of ``PAIR_LOSSES``."""
    scores = inverse * (items @ user)[:, None], inverse * (disliked @ user)
    return shares @ loss(*scores) @ shares_of_disliked


def user_loss(user, items, shares, others, *, pairwise, positive, inverse, constant):
    """Return what a user's vector minimises when it is folded in; ``shares`` sum to one.

    ``pairwise`` is an element of ``PAIR_LOSSES``, or None for a softmax.
    """
    if pairwise is not None:
        losses = pairwise(inverse * (items @ user)[:, None], inverse * (others @ user))
        return shares @ losses.mean(axis=1)
    pull = positive * shares @ (items @ user)
    return constant * np.log(np.exp(inverse * (others @ user)).sum()) - pull


def fold_in(loss, items, shares, inertia, n_steps):
    """Return the unit vector after some steps to the direction of -gradient + inertia * user.

    A step after which the loss is higher is undone, and the inertia is doubled.
    """
    user, last = shares @ items, None
    for n in range(n_steps + 1):
        user = user / np.linalg.norm(user)
        (gradient,) = gradients(loss, user)
        if last and (gradient + last[1]) @ (user - last[0]) / 2 > 1e-4:
            (user, gradient), inertia = last, 2 * inertia
        last = user, gradient
        if n < n_steps:
            user = inertia * user - gradient
    return user
