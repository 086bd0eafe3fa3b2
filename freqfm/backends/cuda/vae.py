"""Training of a variational autoencoder on a GPU.

The phases of an autoencoder around the softmax over its items: the dense layers, both ways.

Their arguments are those of the softmax, and an Encoder. Inputs of a layer have a column of ones,
so that its biases are a row of its weights.
"""

import functools
import itertools
import math
from typing import NamedTuple

import numpy as np

from freqfm._numba.jit import HALF, ONE, ZERO, inlined
from freqfm.backends.base import Histories, RankingProblem
from freqfm.backends.cuda.groups import KeySort, group_sum
from freqfm.backends.cuda.memory import DeviceTrainer
from freqfm.backends.cuda.products import (
    most_parts,
    parts_of,
    product_in_parts,
    product_of_rows,
    sum_of_parts,
)
from freqfm.backends.cuda.ranking.batches import (
    DERIVATIVE,
    LOSS,
    EpochData,
    ItemLists,
    Launch,
    RankingArgs,
    RankingCall,
    batch_of,
    on_device,
    sum_row,
)
from freqfm.backends.cuda.ranking.softmax import DrawArgs, SoftmaxFamily
from freqfm.backends.cuda.ranking.trainer import OCCURRENCES, batches_between
from freqfm.backends.cuda.tables import (
    DeviceTables,
    Side,
    apply_gradients,
    catch_up_rows,
    dot,
    dropout_of,
    move_all,
    row_scale,
)
from freqfm.formulas.codes import NEGATIVES_DRAWN, NEGATIVES_FULL
from freqfm.formulas.rng import key_in_python, random_bits, standard_normal, uniform

#: Where results of a call have the KL divergences of users, in the rows of their first queries.
DIVERGENCE = 2


class Dense(NamedTuple):
    """A dense layer, and its arrays of a batch, float32; n is the most rows of any."""

    side: Side  #: weights (n_in + 1, n_out), and their gradients
    n_samples: int  #: how many queries a row has
    activated: bool  #: whether its inputs are values of the activation
    inputs: np.ndarray  #: (n, n_in + 1)
    outputs: np.ndarray  #: (n, n_out), or with a column of ones
    by_inputs: np.ndarray  #: (n, n_in), gradients; by values of an activation: before that
    by_outputs: np.ndarray  #: (n, n_out)
    transposed: np.ndarray  #: (n_out, n_in), the weights
    parts: np.ndarray  #: (parts, n_in + 1, n_out), of the gradients by the weights


class Encoder(NamedTuple):
    """What an autoencoder has besides items, for the batches of a call; R is the most queries."""

    relu: bool  #: whether the activation is that, and not tanh
    drops: bool  #: whether elements of the sums of input vectors are dropped
    decodes: bool  #: whether there are layers after the latent vectors
    n_samples: int
    n_users: int
    dropout: float  #: float32
    dropout_key: int  #: uint64, as the next
    noise_key: int
    inverse: float  #: inverse temperature, float32
    kl_weight: float  #: float32
    users: np.ndarray  #: of the call, int64
    histories: Histories  #: their inputs
    inputs: Side  #: the input vectors
    bias: Side  #: of their sums, (1, h)
    layers: tuple  #: of Dense
    latent: np.ndarray  #: (R, d + 1), latent vectors and ones
    by_latent: np.ndarray  #: (R, d)
    last: np.ndarray  #: (R, D + 1), the outputs of the last layer and ones, or ``latent``
    by_last: np.ndarray  #: (R, D)
    scales: np.ndarray  #: (R,), one over the lengths of these outputs, or one


#: RankingArgs whose users are the queries, and an Encoder.
AutoencoderArgs = NamedTuple(
    "AutoencoderArgs", [*RankingArgs.__annotations__.items(), ("encoder", Encoder)]
)


@inlined
def _activate(relu, x):
    return max(x, ZERO) if relu else np.float32(math.tanh(x))


@inlined
def _slope(relu, value):
    """Return the derivative of the activation by its value."""
    if relu:
        return ONE if value > ZERO else ZERO
    return ONE - value * value


@inlined
def _users_of(args, batch):
    """Return the first user of a batch in the call, and how many there are."""
    n = args.encoder.n_samples
    return batch.first_row // n, batch.n_rows // n


@inlined
def _kept(encoder, u, f, width):
    """Return the factor of element ``f`` of the sum of user ``u`` of the call."""
    if not encoder.drops:
        return ONE
    bits = random_bits(encoder.dropout_key, encoder.users[u] * width + f)
    return ONE / (ONE - encoder.dropout) if uniform(bits) >= encoder.dropout else ZERO


@inlined
def _noise(encoder, sample, u, f, width):
    """Return the noise of element ``f`` of a sample of user ``u`` of the call."""
    row = sample * encoder.n_users + encoder.users[u]
    return standard_normal(random_bits(encoder.noise_key, row * width + f))


# Before the softmax. Functions are made phases by ``_phase``.


@inlined
def catch_up_inputs(group, layer, batch, args):
    """Let the input vectors of a batch catch up on the steps that they have missed."""
    catch_up_rows(group, batch.number, batch.step, args.encoder.inputs, args.step)


@inlined
def pool(group, layer, batch, args):
    """Write the first hidden values, from the sums of input vectors; list these vectors."""
    encoder, (first, n) = args.encoder, _users_of(args, batch)
    inputs, starts = encoder.inputs, encoder.histories.starts
    width = inputs.table.weights.shape[1]
    for r in range(group.rank, n, group.size):
        u = first + r
        sum_row(group, encoder.histories, u, inputs.table.weights, layer.inputs[r])
        for f in range(group.lane, width, group.n_lanes):
            total = layer.inputs[r, f] * _kept(encoder, u, f, width)
            total += encoder.bias.table.weights[0, f]
            layer.inputs[r, f] = _activate(encoder.relu, total)
        for p in range(starts[u] + group.lane, starts[u + 1], group.n_lanes):
            inputs.rows[p - starts[first]] = r
            inputs.multiples[p - starts[first]] = encoder.histories.weights[p]


@inlined
def multiply(group, layer, batch, args):
    """Multiply the inputs of a layer by its weights, and write these transposed."""
    (n_out, n_in), weights = layer.transposed.shape, layer.side.table.weights
    shape = batch.n_rows // layer.n_samples, n_out
    product_of_rows(group, layer.inputs, 0, weights, shape, layer.outputs)
    for k in range(group.rank, n_in, group.size):
        for f in range(group.lane, n_out, group.n_lanes):
            layer.transposed[f, k] = weights[k, f]


@inlined
def activate(group, layer, batch, args):
    """Turn the outputs of a hidden layer into its values."""
    for r in range(group.rank, batch.n_rows // layer.n_samples, group.size):
        for f in range(group.lane, layer.transposed.shape[0], group.n_lanes):
            layer.outputs[r, f] = _activate(args.encoder.relu, layer.outputs[r, f])


@inlined
def draw_latent(group, layer, batch, args):
    """Draw latent vectors by means and log-variances."""
    encoder, (first, n) = args.encoder, _users_of(args, batch)
    d = encoder.by_latent.shape[1]
    for r in range(group.rank, n, group.size):
        divergence = ZERO
        for f in range(group.lane, d, group.n_lanes):
            mean, log_variance = layer.outputs[r, f], layer.outputs[r, d + f]
            deviation = np.float32(math.exp(HALF * log_variance))
            divergence += mean * mean + deviation * deviation - ONE - log_variance
            for sample in range(encoder.n_samples):
                noise = _noise(encoder, sample, first + r, f, d)
                encoder.latent[sample * n + r, f] = mean + deviation * noise
        divergence = HALF * group_sum(group, divergence)
        if group.lane == 0:
            at = batch.first_row + r - args.call.first_row
            args.call.results[DIVERGENCE, at] = divergence


@inlined
def write_queries(group, layer, batch, args):
    """Write the queries, which are the users of the softmax."""
    encoder, queries = args.encoder, args.users.table.weights
    for r in range(group.rank, batch.n_rows, group.size):
        scale = row_scale(group, encoder.last, r, args.call.n_unit)
        for f in range(group.lane, encoder.by_last.shape[1], group.n_lanes):
            queries[r, f] = encoder.inverse * scale * encoder.last[r, f]
        if group.lane == 0:
            encoder.scales[r] = scale


# After the softmax.


@inlined
def through_queries(group, layer, batch, args):
    """Write the gradients by what queries are made of, and those by the inverse temperature."""
    encoder, queries = args.encoder, args.users.table.weights
    gradients, width = args.scratch.user_gradients, encoder.by_last.shape[1]
    for r in range(group.rank, batch.n_rows, group.size):
        along = dot(group, gradients, r, queries, r, width) / encoder.inverse
        for f in range(group.lane, width, group.n_lanes):
            total = encoder.inverse * gradients[r, f]
            if args.call.n_unit > 0:
                total = (total - along * queries[r, f]) * encoder.scales[r]
            if encoder.decodes:
                total *= _slope(encoder.relu, encoder.last[r, f])
            encoder.by_last[r, f] = total
        if group.lane == 0:
            at = batch.first_row + r - args.call.first_row
            args.call.results[DERIVATIVE, at] = along


@inlined
def through_latent(group, layer, batch, args):
    """Write the gradients by means and log-variances, with those of the KL divergence."""
    encoder, (first, n) = args.encoder, _users_of(args, batch)
    d = encoder.by_latent.shape[1]
    kl_weight = encoder.kl_weight * batch.scale * np.float32(encoder.n_samples)
    for r in range(group.rank, n, group.size):
        for f in range(group.lane, d, group.n_lanes):
            by_mean, by_deviation = ZERO, ZERO
            for sample in range(encoder.n_samples):
                gradient = encoder.by_latent[sample * n + r, f]
                by_mean += gradient
                by_deviation += gradient * _noise(encoder, sample, first + r, f, d)
            deviation = np.float32(math.exp(HALF * layer.outputs[r, d + f]))
            by_log_variance = HALF * deviation * by_deviation
            if kl_weight > ZERO:
                by_mean += kl_weight * layer.outputs[r, f]
                by_log_variance += kl_weight * HALF * (deviation * deviation - ONE)
            layer.by_outputs[r, f], layer.by_outputs[r, d + f] = by_mean, by_log_variance


@inlined
def multiply_back(group, layer, batch, args):
    """Find the gradients by a layer's weights, in parts, and by its inputs."""
    (n_out, n_in), n = layer.transposed.shape, batch.n_rows // layer.n_samples
    inputs, by_outputs, shape = layer.inputs, layer.by_outputs, (n_in + 1, n_out)
    product_in_parts(group, inputs, by_outputs, n, shape, layer.parts, False)
    product_of_rows(group, by_outputs, 0, layer.transposed, (n, n_in), layer.by_inputs)


@inlined
def move_layer(group, layer, batch, args):
    """Move the weights of a layer, and backpropagate through the activation before it."""
    (n_out, n_in), n = layer.transposed.shape, batch.n_rows // layer.n_samples
    n_parts, _ = parts_of(n, layer.parts)
    for k in range(group.rank, n_in + 1, group.size):
        for f in range(group.lane, n_out, group.n_lanes):
            layer.side.gradients[k, f] = sum_of_parts(layer.parts, n_parts, k, f)
    # A lane reads the gradients that it has written itself.
    move_all(group, batch.step, layer.side, _users_of(args, batch)[1], args.step)
    for r in range(group.rank, n if layer.activated else 0, group.size):
        for f in range(group.lane, n_in, group.n_lanes):
            layer.by_inputs[r, f] *= _slope(args.encoder.relu, layer.inputs[r, f])


@inlined
def through_sums(group, layer, batch, args):
    """Write the gradient by the bias of the sums, and those by the sums before dropout."""
    (first, n), width = _users_of(args, batch), layer.by_inputs.shape[1]
    for f in range(group.rank, width, group.size):
        total = ZERO
        for r in range(group.lane, n, group.n_lanes):
            total += layer.by_inputs[r, f]
            layer.by_inputs[r, f] *= _kept(args.encoder, first + r, f, width)
        total = group_sum(group, total)
        if group.lane == 0:
            args.encoder.bias.gradients[0, f] = total


@inlined
def move_inputs(group, layer, batch, args):
    """Move the input vectors of a batch, and the bias of their sums."""
    side, mean = args.encoder.inputs, batch.scale
    apply_gradients(group, batch.number, batch.step, side, layer.by_inputs, 0, mean, args.step)
    move_all(group, batch.step, args.encoder.bias, _users_of(args, batch)[1], args.step)


@functools.cache
def _phase(function, i, forward):
    """Return the phase of a function of layer ``i``, before the softmax or after it."""

    def phase(group, s, args):
        batch = batch_of(args.data, args.call, s)
        if batch.panel == (0 if forward else args.call.n_panels - 1):
            function(group, args.encoder.layers[i], batch, args)

    # Compiled kernels are found by the names of their phases.
    phase.__name__ = f"{function.__name__}_{i}"
    return inlined(phase)


def phases_of(n_layers, posterior, idle):
    """Return the phases before the softmax, and those after it.

    Parameters
    ----------
    n_layers, posterior : int
        How many dense layers, and the number of that of means and log-variances.
    idle : bool
        See ``DeviceTables``.
    """
    before = [(pool, 0)] if idle else [(catch_up_inputs, 0), (pool, 0)]
    after = [(through_queries, 0)]
    for i in range(n_layers):
        before += [(multiply, i), (draw_latent if i == posterior else activate, i)]
    for i in reversed(range(n_layers)):
        after += [(through_latent, i)] * (i == posterior) + [(multiply_back, i), (move_layer, i)]
    before, after = [*before, (write_queries, 0)], [*after, (through_sums, 0), (move_inputs, 0)]
    return tuple(
        tuple(_phase(*made, forward) for made in phases)
        for phases, forward in ((before, True), (after, False))
    )


_NO_DROPOUT = dropout_of(0.0)


def _joined(parts):
    """Return Histories one after the other."""
    lengths = [np.diff(part.starts) for part in parts]
    return Histories(
        np.append(0, np.cumsum(np.concatenate(lengths))),
        np.concatenate([part.items for part in parts]),
        np.concatenate([part.weights for part in parts]),
    )


class CUDAAutoencoderTrainer(DeviceTrainer):
    """Trains an autoencoder, see ``Backend.autoencoder_trainer``.

    The items are trained by the softmax of recommenders, with queries in place of users. Batches of
    the softmax over all items are launched together; negatives are drawn batch by batch.

    Parameters
    ----------
    device : Device
    problem : AutoencoderProblem
    """

    def __init__(self, device, problem):
        super().__init__(device)
        self._problem = problem
        self._tables = DeviceTables(self, problem.rule, problem.formulas)
        self._family = None

    def begin_epoch(self, tables, first_step, corrections, proposal):
        """Prepare for the steps after ``first_step``, and to draw from a proposal."""
        self._tables.begin_epoch(tables, corrections)
        self._inputs, self._items, *layers = (self._tables[name] for name in tables)
        self._first_step, self._proposal = first_step, proposal
        if self._family is None:
            self._input_sort = KeySort(self.device, len(self._inputs.weights))
            self._make_items(len(self._items.weights))
        self._make_layers(*layers)

    def _floats(self, *shape):
        return self.device.empty(shape, np.float32)

    def _ones(self, *shape):
        return self.device.to_device(np.ones(shape, dtype=np.float32))

    def _make_items(self, n_items):
        """Allocate the memory of the softmax over items."""
        device, problem, drawn = self.device, self._problem, self._problem.n_draws > 0
        n_pairs, width = problem.n_positives * problem.n_samples, problem.item_width
        items = RankingProblem(
            family="softmax",
            constants={"constant": 1.0, "top_temperature": 1.0, "thresholds": None},
            cosine=False,
            dropout=0.0,
            degrees=np.zeros(0, dtype=np.int64),
            known=(),
            n_items=n_items,
            width=width,
            batch_size=n_pairs,
            block=None,
            negatives_code=NEGATIVES_DRAWN if drawn else NEGATIVES_FULL,
            n_negatives=problem.n_draws,
            rule=problem.rule,
            seed=0,
            include_positive=drawn,
        )
        self._family = family = SoftmaxFamily(device, items, problem.n_queries, n_pairs)
        self._n_occurrences = n_pairs + family.n_listed
        self._item_lists = ItemLists(device, n_items, width, self._n_occurrences, family.lists_code)
        self._per_call = 1 if drawn else max(1, OCCURRENCES // self._n_occurrences)
        self._inverse = self._ones(problem.n_queries, 2)
        self._queries = self._ones(problem.n_queries, width)
        self._no_lists = device.empty((1, 1), np.int32)
        n, h = problem.n_positives, problem.input_width
        self._of_inputs = device.empty(n, np.int32), self._floats(n), self._floats(n, h)

    def _make_layers(self, bias, *tables):
        """Allocate the memory of the dense layers and of input vectors."""
        problem, posterior, (h,) = self._problem, self._problem.n_hidden - 1, bias.weights.shape[1:]
        n_rows = [problem.n_queries // problem.n_samples] * (posterior + 1)
        n_rows += [problem.n_queries] * (len(tables) - posterior)
        widths = [h, *(table.weights.shape[1] for table in tables)]
        widths[posterior + 1] //= 2
        sizes = list(zip(n_rows, widths, strict=True))
        values = [self._ones(rows, width + 1) for rows, width in sizes]
        gradients = [self._floats(rows, width) for rows, width in sizes]
        latent = values[posterior + 1], gradients[posterior + 1], values[-1], gradients[-1]
        self._dense = [self._side_of(bias), [], *latent, self._floats(problem.n_queries)]
        for i, (table, (rows, n_in)) in enumerate(zip(tables, sizes[:-1], strict=True)):
            outputs, n_out = (values[i + 1], gradients[i + 1]), table.weights.shape[1]
            if i == posterior:
                outputs = self._floats(rows, n_out), self._floats(rows, n_out)
            self._dense[1].append(
                Dense(
                    self._side_of(table),
                    problem.n_samples if i <= posterior else 1,
                    i != posterior + 1,
                    values[i],
                    outputs[0],
                    gradients[i],
                    outputs[1],
                    self._floats(n_out, n_in),
                    self._floats(most_parts(n_in + 1, n_out), n_in + 1, n_out),
                )
            )
        self._before, self._after = phases_of(len(tables), posterior, self._tables.idle)

    def _side_of(self, table):
        gradients = self._floats(*table.weights.shape)
        return self._tables.nothing._replace(table=table, gradients=gradients)

    def train(self, batches):
        """Train on batches, see ``Backend``."""
        # Those of a call have as many users each.
        for _, alike in itertools.groupby(batches, key=lambda batch: len(batch.users)):
            while call := list(itertools.islice(alike, self._per_call)):
                yield from self._train(call)

    def _train(self, batches):
        """Train on the batches of a call; return what ``train`` yields for each."""
        problem, n, n_users = self._problem, len(batches), len(batches[0].users)
        n_rows = n_users * problem.n_samples
        scale = np.float32((1 / n_users if problem.rule.average else 1) / problem.n_samples)
        results = self._floats(4, n * n_rows)
        data, n_pairs = self._data_of(batches, n_rows, scale)
        sizes = n_pairs + self._family.n_negatives(np.full(n, n_rows), n_pairs)
        # All items are moved by the mean over the queries.
        n_seen = 0 if problem.n_draws else n_rows
        queries = self._tables.nothing.table._replace(weights=self._queries)
        launch = Launch(
            data,
            self._call_from(batches[0].step, results),
            self._tables,
            self._tables.nothing._replace(table=queries),
            lambda negatives: self._item_lists.side(self._items, data, 0, sizes, negatives, n_seen),
            functools.partial(self._run, n, self._encoder_of(batches)),
            self._proposal,
            self._no_lists,
        )
        if batches[0].drawn is not None:
            self._family.put_draws(self._proposal, *batches[0].drawn)
        self._family.run(launch)
        results = self.device.to_host(results, np.empty(results.shape, dtype=np.float32))
        results = results.astype(np.float64).reshape(4, n, n_rows)
        losses = results[LOSS].sum(axis=1) / problem.n_samples
        divergences = results[DIVERGENCE, :, :n_users].sum(axis=1)
        weights = np.array([batch.positives.weights.sum(dtype=np.float64) for batch in batches])
        if problem.n_draws:
            # The sum over items is as many times that over draws.
            losses += weights * math.log(len(self._items.weights) / problem.n_draws)
        losses += batches[0].kl_weight * divergences
        by_inverse = results[DERIVATIVE].sum(axis=1) / (scale * problem.n_samples)
        return zip(losses.tolist(), weights.tolist(), by_inverse, strict=True)

    def _run(self, n, encoder, phases, args, formulas):
        """Run phases of the softmax for each panel of ``n`` batches, and those around them."""
        span, draws = (0, n * self._family.n_panels), isinstance(args, DrawArgs)
        formulas = {**self._problem.formulas, **(formulas or {})}
        whole = AutoencoderArgs(*(args.ranking if draws else args), encoder)
        if draws:
            self.device.run(self._before, whole, 32, self._n_occurrences, span, formulas)
            self.device.run(phases, args, 32, self._n_occurrences, span, formulas)
            return
        before = () if self._problem.n_draws else self._before
        phases = before + phases + self._after
        self.device.run(phases, whole, 32, self._n_occurrences, span, formulas)

    def _call_from(self, step, results):
        """Return the RankingCall of batches from a step on."""
        return RankingCall(
            first_batch=0,
            first_row=0,
            first_pair=0,
            steps_before=int(step - self._first_step) - 1,
            n_panels=self._family.n_panels,
            cosine=False,
            n_unit=int(self._problem.n_unit),
            queries_given=True,
            dropout=_NO_DROPOUT,
            inverse_temperatures=self._inverse,
            results=results,
        )

    def _data_of(self, batches, n_rows, scale):
        """Return the EpochData of batches, and how many positives each has."""
        device, n, n_samples = self.device, len(batches), self._problem.n_samples
        positives = _joined([batch.positives for batch in batches for _ in range(n_samples)])
        row_starts = np.arange(n + 1) * n_rows
        pair_starts = positives.starts[row_starts]
        mean = scale if self._problem.n_draws else 1 / n_rows
        starts, items, weights = on_device(device, *positives)
        data = EpochData(
            items,
            weights,
            starts,
            device.to_device(np.tile(np.arange(n_rows, dtype=np.int32), n)),
            device.to_device(batches_between(row_starts, pair_starts)),
            device.to_device(np.full(n, mean, dtype=np.float32)),
            device.to_device(np.full(n, scale)),
            key_in_python(*batches[0].draws),
        )
        return data, np.diff(pair_starts)

    def _encoder_of(self, batches):
        """Return the Encoder of batches."""
        device, problem, one = self.device, self._problem, batches[0]
        inputs = _joined([batch.inputs for batch in batches])
        lengths = [len(batch.inputs.items) for batch in batches]
        keys = np.repeat(np.arange(len(batches)) * len(self._inputs.weights), lengths)
        touched = self._input_sort.run(
            np.append(0, np.cumsum(lengths)),
            lambda out, starts: device.write(keys + inputs.items, out),
        )
        bias, layers, *others = self._dense
        return Encoder(
            problem.activation == "relu",
            problem.dropout > 0,
            len(layers) > problem.n_hidden,
            problem.n_samples,
            problem.n_users,
            np.float32(problem.dropout),
            key_in_python(*one.dropout),
            key_in_python(*one.noise),
            np.float32(one.inverse_temperature),
            np.float32(one.kl_weight),
            device.to_device(np.concatenate([batch.users for batch in batches])),
            on_device(device, *inputs),
            Side(self._inputs, touched, *self._of_inputs, n_seen=0),
            bias,
            tuple(layers),
            *others,
        )

    def catch_up(self, step):
        """Let all rows catch up on the steps up to ``step``."""
        self._tables.end_epoch(int(step - self._first_step))
