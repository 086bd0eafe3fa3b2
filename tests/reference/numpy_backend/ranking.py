"""User and item vectors: softmax, pairwise and alignment losses, whole matrices of scores."""

import itertools
from typing import NamedTuple

import numpy as np
from scipy import sparse
from scipy.special import expit, logsumexp

from freqfm.backends import base
from freqfm.formulas import codes, losses

from .pointwise import log_surrogate, pair_loss
from .sampling import distribution_of
from .steps import Steps
from .streams import dropout_masks, hashes, stream

# Of a row's random numbers, those for its negatives.
DRAWS = np.uint64(0x5DEECE66D)


class Unit(NamedTuple):
    """Vectors as a loss compares them, and what leads back to the rows they come from."""

    vectors: np.ndarray
    lengths: np.ndarray
    masks: np.ndarray
    cosine: bool

    def back(self, gradient):
        """Return the gradient by the rows, of that by the vectors."""
        if self.cosine:
            along = (gradient * self.vectors).sum(axis=1, keepdims=True)
            gradient = (gradient - along * self.vectors) / self.lengths
        return gradient * self.masks


def unit(rows, cosine, masks=1.0):
    """Return rows times masks as a Unit, at length one for cosines."""
    rows, lengths = rows.astype(np.float64) * masks, np.ones((len(rows), 1))
    if cosine:
        lengths = np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    return Unit(rows / lengths, lengths, masks, cosine)


class Batch(NamedTuple):
    """One batch of positives, in rows of one user each."""

    users: np.ndarray  #: of the rows
    items: np.ndarray  #: of the positives
    weights: np.ndarray
    rows: np.ndarray  #: the row of each positive
    keys: np.ndarray  #: random streams of the rows
    pairs: np.ndarray  #: where the positives stand in the epoch
    terms: sparse.csr_array  #: whose product with the table of users are the rows' vectors

    @property
    def mean(self):
        """One over the weight of the batch."""
        return 1 / self.weights.sum(dtype=np.float64)


def batch_of(data, b, key, n_users):
    """Return a batch of ``base.Batches``; ``key`` is the epoch's random stream."""
    rows = np.arange(*data.batch_starts[b : b + 2])
    pairs = np.arange(*data.row_starts[data.batch_starts[b : b + 2]])
    lengths = np.diff(data.row_starts)[rows]
    starts, tokens, multiples = data.terms
    if not len(starts):
        n = len(data.row_users)
        starts, tokens, multiples = np.arange(n + 1), data.row_users, np.ones(n)
    given = multiples.astype(np.float64), tokens, starts
    terms = sparse.csr_array(given, shape=(len(starts) - 1, n_users))
    return Batch(
        data.row_users[rows],
        data.items[pairs],
        data.weights[pairs].astype(np.float64),
        np.repeat(np.arange(len(rows)), lengths),
        hashes(key + rows.astype(np.uint64)),
        pairs,
        terms[rows],
    )


def summed(n, tokens, gradients):
    """Return the sums of gradients by row of a table of ``n``."""
    total = np.zeros((n, gradients.shape[-1]))
    np.add.at(total, tokens.ravel(), gradients.reshape(-1, gradients.shape[-1]))
    return total


class RankingEpochs(base.RankingTrainer):
    """What ``Backend.ranking_trainer`` returns."""

    def __init__(self, problem):
        self.problem = problem
        self._steps = Steps(problem.rule, problem.formulas)
        softmax = problem.family == "softmax"
        separate = problem.negatives_code == codes.NEGATIVES_SEPARATE
        #: Whether each positive has a list of negatives; a softmax may have one for each batch.
        self._separate_lists = separate or not softmax
        one_positive = separate or losses.log_surrogate in problem.formulas
        self.block = 1 if one_positive and softmax else problem.block
        # A sampler may be updated between batches for which it draws.
        drawn = problem.negatives_code == codes.NEGATIVES_DRAWN
        self.batches_per_call = 1 if drawn else 1 << 30
        self._learn = getattr(self, f"_{problem.family}")

    def begin_epoch(self, epoch, data, tables, first_step, corrections):
        """Take what an epoch trains, and on what."""
        self._data, self._tables, self._corrections = data, tables, corrections
        self._key = stream(self.problem.seed, epoch)

    def end_epoch(self):
        """No row has missed a step."""

    def lists_shape(self, first, last):
        """Return how many lists of negatives the batches take, and the length of a list."""
        pairs = np.diff(self._data.row_starts[self._data.batch_starts[[first, last]]])[0]
        return (pairs if self._separate_lists else last - first), self.problem.n_negatives

    def train(self, first, last, proposal, negatives, inverse_temperatures, statistics):
        """Train on some batches of the epoch; return the sums of the loss and of the weights."""
        loss = weight = 0.0
        self._proposal, self._inverse, self._statistics = proposal, inverse_temperatures, statistics
        start = self._data.row_starts[self._data.batch_starts[first]]
        n_users = len(self._tables["user_factors"].weights)
        with np.errstate(over="ignore", invalid="ignore"):
            for b in range(first, last):
                batch = batch_of(self._data, b, self._key, n_users)
                lists = negatives
                if negatives is not None:
                    at = batch.pairs - start if self._separate_lists else [b - first]
                    lists = negatives[at[0] : at[-1] + 1]
                self._now = self._corrections[b + 1]
                loss += self._learn(batch, lists)
                weight += batch.weights.sum()
        return loss, weight

    def _gather(self, batch):
        """Return the Units of a batch's rows, and of all items."""
        problem, users = self.problem, batch.terms @ self._tables["user_factors"].weights
        masks = 1.0
        if problem.dropout > 0:
            masks = dropout_masks(batch.keys, users.shape[1], problem.dropout)
        items = self._tables["item_factors"].weights
        return unit(users, problem.cosine, masks), unit(items, problem.cosine)

    def _move(self, name, batch, gradient, tokens):
        """Move a table along its gradient; the batch holds ``tokens``."""
        table = self._tables[name]
        n_seen = np.bincount(tokens.ravel(), minlength=len(table.weights)).astype(np.float64)
        self._steps.move(table, gradient, n_seen, n_seen * batch.mean, self._now)

    def _scale(self, batch):
        return batch.mean if self.problem.rule.average else 1.0

    # Softmax.

    def _negatives(self, batch, lists, users):
        """Return lists of negatives, one or a list for each row, and the corrections of logits.

        The last result are the corrections of the positives' logits.
        """
        problem, n_items = self.problem, len(self._tables["item_factors"].weights)
        if problem.negatives_code == codes.NEGATIVES_DRAWN:
            keys, of_positives = hashes(batch.keys ^ DRAWS), np.zeros(len(batch.items))
            lists = np.zeros((len(batch.users), problem.n_negatives), dtype=np.int32)
            log_q = np.zeros(lists.shape)
            for r, u in enumerate(batch.users):
                proposal = distribution_of(self._proposal, users.vectors[r] * self._inverse[u, 1])
                lists[r], log_q[r] = proposal.draw(keys[r], problem.n_negatives)
                mine = batch.rows == r
                of_positives[mine] = proposal.log_q(batch.items[mine])
            corrected = bool(problem.corrected)
            return lists, corrected * log_q, corrected * of_positives
        if problem.negatives_code == codes.NEGATIVES_IN_BATCH:
            lists = batch.items[None]
        elif problem.negatives_code == codes.NEGATIVES_FULL:
            lists = np.arange(n_items)[None]
        log_q = self._proposal.log_q if len(self._proposal.log_q) else np.zeros(n_items)
        return lists, log_q[lists], log_q[batch.items]

    def _softmax(self, batch, lists):
        """Add -w s_p + c log(sum_j exp(w' s_j - q_j)) for each positive; see ``losses.Softmax``."""
        problem, r, v = self.problem, batch.rows, batch.weights
        constant, scale = problem.constants["constant"], self._scale(batch)
        users, items = self._gather(batch)
        lists, log_q, positive_log_q = self._negatives(batch, lists, users)
        drawn_items = np.broadcast_to(lists, (len(batch.users), lists.shape[1]))
        w, w_others = self._inverse[batch.users].astype(np.float64).T
        scores = np.einsum("rd,rjd->rj", users.vectors, items.vectors[drawn_items])
        s = (users.vectors[r] * items.vectors[batch.items]).sum(axis=1)
        surrogates, derivatives = scores, np.ones(scores.shape)
        of_differences = losses.log_surrogate in problem.formulas
        if of_differences:
            # A row is one positive, which is part of the differences.
            surrogates, derivatives = log_surrogate(problem.formulas, scores - s[:, None])
        logits = w_others[:, None] * surrogates - log_q
        log_sums = logsumexp(logits, axis=1)
        shares = np.exp(logits - log_sums[:, None]) * derivatives
        if of_differences:
            w = np.zeros(len(w))
        log_totals, p = log_sums[r], np.zeros(len(s))
        if problem.include_positive:
            logit = w_others[r] * s - positive_log_q
            log_totals = np.logaddexp(logit, log_totals)
            p = np.exp(logit - log_totals)
        values = constant * log_totals - w[r] * s
        rises = np.zeros(len(s))
        if losses.weight_of_positive in problem.formulas:
            temperature = problem.constants["top_temperature"]
            thresholds = problem.constants["thresholds"][batch.users[r]].astype(np.float64)
            top = expit((s - thresholds) / temperature)
            rises = v * values * top * (1 - top) / temperature
            v = v * top

        n_rows = len(batch.users)
        others = np.bincount(r, v * (1 - p), n_rows)
        if problem.statistics_wanted:
            of_scores = np.bincount(r, v * s, n_rows)
            full_weight, all_scores = (
                np.bincount(r, batch.weights * x, n_rows) for x in (np.ones(len(s)), s)
            )
            by_inverse = others * (shares * scores).sum(axis=1)
            by_inverse += np.bincount(r, v * p * s, n_rows)
            plain = full_weight * logsumexp(scores, axis=1) - all_scores
            found = np.column_stack([plain, full_weight, constant * by_inverse - of_scores])
            np.add.at(self._statistics, batch.users, found)

        by_positive = scale * (v * (constant * w_others[r] * p - w[r]) + rises)
        if of_differences:
            by_positive -= scale * v * constant * w_others[r] * shares.sum(axis=1)
        by_positive = by_positive[:, None]
        by_others = (scale * constant * w_others * others)[:, None] * shares
        by_users = np.einsum("rj,rjd->rd", by_others, items.vectors[drawn_items])
        np.add.at(by_users, r, by_positive * items.vectors[batch.items])
        n_items = len(items.vectors)
        by_items = summed(n_items, batch.items, by_positive * users.vectors[r])
        by_items += summed(n_items, drawn_items, by_others[:, :, None] * users.vectors[:, None])
        self._apply(batch, users, items, by_users, by_items, np.append(batch.items, lists))
        return (v * values).sum()

    def _apply(self, batch, users, items, by_users, by_items, tokens):
        """Move users and items by the gradients of their Units."""
        by_users = batch.terms.T @ users.back(by_users)
        self._move("user_factors", batch, by_users, batch.terms.indices)
        self._move("item_factors", batch, items.back(by_items), tokens)

    # Pairs.

    def _lists_of(self, batch, lists):
        """Return a list of negatives for each positive, and their log_q; draw them if needed."""
        if self.problem.negatives_code != codes.NEGATIVES_DRAWN:
            return lists, np.zeros(lists.shape)
        keys = hashes(hashes(self._key ^ DRAWS) + batch.pairs.astype(np.uint64))
        users = batch.users[batch.rows]
        queries = (batch.terms @ self._tables["user_factors"].weights)[batch.rows]
        if self.problem.cosine:
            queries = queries / np.linalg.norm(queries, axis=1, keepdims=True)
        queries = queries * self._inverse[users, :1]
        drawn = [
            distribution_of(self._proposal, query).draw(key, self.problem.n_negatives)
            for query, key in zip(queries, keys, strict=True)
        ]
        return np.array([items for items, _ in drawn]), np.array([log_q for _, log_q in drawn])

    def _pairwise(self, batch, lists):
        """Add the mean of log(1 + exp(-w (s_p - s_j))) over a positive's negatives."""
        problem, r = self.problem, batch.rows
        users, items = self._gather(batch)
        lists, log_q = self._lists_of(batch, lists)
        starts, ends, known_items = problem.known
        known = [
            np.isin(others, known_items[starts[u] : ends[u]])
            for u, others in zip(batch.users[r], lists, strict=True)
        ]
        v = np.where(known, 0, (batch.weights / lists.shape[1])[:, None])
        if problem.weighted:
            weights = np.where(known, 0, np.exp(-log_q))
            v = v * weights / np.maximum(weights.mean(axis=1, keepdims=True), 1e-30)
        w = self._inverse[batch.users[r], 0].astype(np.float64)[:, None]
        x, y, z = users.vectors[r], items.vectors[batch.items], items.vectors[lists]
        scores, others = (x * y).sum(axis=1)[:, None], np.einsum("pd,pjd->pj", x, z)
        found = pair_loss(problem.formulas, w * scores, w * others)
        if losses.ends_draws in problem.formulas:
            v = v * self._weights_of_first(found[0], known)
        scale = self._scale(batch) * v * w
        pulls, pushes = (scale * found[1]).sum(axis=1)[:, None], scale * found[2]
        by_users = np.zeros(users.vectors.shape)
        np.add.at(by_users, r, pulls * y + np.einsum("pj,pjd->pd", pushes, z))
        n_items = len(items.vectors)
        by_items = summed(n_items, batch.items, pulls * x)
        by_items += summed(n_items, lists, pushes[:, :, None] * x[:, None])
        self._apply(batch, users, items, by_users, by_items, np.append(batch.items, lists))
        return (v * found[0]).sum()

    def _weights_of_first(self, values, known):
        """Return factors of the shares of negatives: 0 but for the first that has a loss."""
        n_draws = values.shape[1]
        violations = (values > 0) & ~np.array(known)
        first = violations & (violations.cumsum(axis=1) == 1)
        ranks = (self.problem.n_items - 1) // np.arange(1, n_draws + 1)
        return first * n_draws * np.log(np.maximum(ranks, 1))

    # Alignment and uniformity.

    def _alignment(self, batch, lists):
        """Pull positives together and push users apart, and items; see ``losses.DirectAU``."""
        constants = self.problem.constants
        # For sums, the mean times the weight of the batch.
        whole = 1.0 if self.problem.rule.average else 1 / batch.mean
        users, items = self._gather(batch)
        x, y = users.vectors, items.vectors[batch.items]
        v = batch.weights * batch.mean
        values, by_cosine, by_margin = self._align((x * y).sum(axis=1), batch)
        pushes = [
            _uniformity(of_side, constants[name], constants["half"])
            for of_side, name in ((x, "gamma_users"), (y, "gamma_items"))
        ]
        pull = (v * by_cosine)[:, None]
        by_users, by_items = whole * (pull * y + pushes[0][1]), whole * (pull * x + pushes[1][1])
        by_items = summed(len(items.vectors), batch.items, by_items)
        self._apply(batch, users, items, by_users, by_items, batch.items)
        if constants["margins"]:
            gradient = (whole * v * by_margin)[:, None]
            for name, tokens in (("user_margins", batch.users), ("item_margins", batch.items)):
                margins = self._tables[name].weights
                self._move(name, batch, summed(len(margins), tokens, gradient), tokens)
                margins[tokens] = np.clip(margins[tokens], 0, 1)
        return (pushes[0][0] + pushes[1][0] + v @ values) / batch.mean

    def _align(self, cosines, batch):
        """Return the values of pairs, and their derivatives by the cosine and by either margin."""
        if not self.problem.constants["half"]:
            return 2 - 2 * cosines, np.full(len(cosines), -2.0), None
        if not self.problem.constants["margins"]:
            return -cosines, np.full(len(cosines), -1.0), None
        m_user = self._tables["user_margins"].weights[batch.users, 0]
        m_item = self._tables["item_margins"].weights[batch.items, 0]
        gate = expit(np.clip(m_user, 0, 1).astype(np.float64) + np.clip(m_item, 0, 1))
        clipped = np.clip(cosines, -1 + 1e-7, 1 - 1e-7)
        theta = np.arccos(clipped)
        angle = theta + 1 - gate
        inside = angle <= np.pi
        sines = np.where(inside, np.sin(angle), 0)
        by_cosine = np.where(clipped == cosines, -sines / np.sin(theta), 0)
        # The margin 1 - gate falls with m_user and m_item.
        return -np.cos(np.minimum(angle, np.pi)), by_cosine, -sines * gate * (1 - gate)


def _uniformity(units, gamma, half):
    """Return gamma log(mean of exp(-2 |x_a - x_b|^2)) of unit vectors, and its gradient.

    ``half`` counts, as MAWU does, each pair once and the rest of the n x n matrix as cosines of 0;
    else it is DirectAU's mean over pairs, halved.
    """
    n = len(units)
    if n < 2:
        return 0.0, np.zeros(units.shape)
    terms = np.exp(4 * (units @ units.T) - 4)
    np.fill_diagonal(terms, 0)
    total = terms.sum()
    if half:
        rest = n * n - n * (n - 1) / 2
        total = total / 2 + rest * np.exp(-4.0)
        return gamma * np.log(total / n**2), 4 * gamma / total * terms @ units
    return gamma / 2 * np.log(total / (n * n - n)), 4 * gamma / total * terms @ units


def _push_from(user, items, shares, disliked, own, problem, formulas):
    """Return the negative gradient of ranking items above the disliked ones of a user."""
    negatives = problem.items[disliked.items[own]].astype(np.float64)
    positive, negative = (disliked.inverse * (of @ user) for of in (items, negatives))
    _, by_positive, by_negative = pair_loss(formulas, positive[:, None], negative)
    weights = disliked.inverse * np.outer(shares, disliked.shares[own])
    push = -(weights * by_positive).sum(axis=1) @ items
    return push - (weights * by_negative).sum(axis=0) @ negatives


def fold_in(problem, formulas, histories, disliked=None):
    """Return what ``Backend.fold_in`` does: steps to the direction of the gradient plus inertia."""
    starts, indices, values = histories
    others = problem.others.astype(np.float64)
    vectors = np.zeros((len(starts) - 1, others.shape[1]), dtype=np.float32)
    for r, (begin, end) in enumerate(itertools.pairwise(starts)):
        items = problem.items[indices[begin:end]].astype(np.float64)
        shares = values[begin:end].astype(np.float64)
        user = shares @ items
        if not user.any():
            continue
        user, shares = user / np.linalg.norm(user), shares / shares.sum()
        inertia, last = problem.inertia, None
        for n in range(problem.n_steps + 1):
            scores = problem.inverse * (others @ user)
            if problem.pairwise:
                positive = problem.inverse * (items @ user)[:, None]
                _, by_positive, by_others = pair_loss(formulas, positive, scores)
                weights = shares[:, None] * problem.inverse / len(others)
                gradient = -(weights * by_positive).sum(axis=1) @ items
                gradient -= (weights * by_others).sum(axis=0) @ others
            else:
                softmax = np.exp(scores - logsumexp(scores))
                gradient = problem.positive * (shares @ items)
                gradient -= problem.constant * problem.inverse * (softmax @ others)
            if disliked is not None:
                own = slice(*disliked.starts[r : r + 2])
                gradient += _push_from(user, items, shares, disliked, own, problem, formulas)
            if last and (gradient + last[1]) @ (user - last[0]) / 2 < -problem.largest_rise:
                (user, gradient), inertia = last, 2 * inertia
            if n == problem.n_steps:
                break
            last = user, gradient
            user = gradient + inertia * user
            if not user.any():
                break
            user = user / np.linalg.norm(user)
        vectors[r] = user
    return vectors
