"""Training an autoencoder on a GPU: its memory, and launches."""

import functools
import itertools
import math

import numpy as np

from freqfm.backends.base import Histories, RankingProblem
from freqfm.backends.cuda.device_tables import DeviceTables
from freqfm.backends.cuda.memory import DeviceTrainer
from freqfm.backends.cuda.products import most_parts
from freqfm.backends.cuda.ranking.batches import (
    DERIVATIVE,
    LOSS,
    EpochData,
    ItemLists,
    Launch,
    RankingCall,
)
from freqfm.backends.cuda.ranking.histories import on_device
from freqfm.backends.cuda.ranking.softmax import DrawArgs, SoftmaxFamily
from freqfm.backends.cuda.ranking.trainer import OCCURRENCES, batches_between
from freqfm.backends.cuda.sorting import KeySort
from freqfm.backends.cuda.tables import Side, dropout_of
from freqfm.backends.cuda.vae.layers import (
    DIVERGENCE,
    AutoencoderArgs,
    Dense,
    Encoder,
    phases_of,
)
from freqfm.formulas.codes import NEGATIVES_DRAWN, NEGATIVES_FULL
from freqfm.formulas.rng import key_in_python

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
