"""Training and scoring of factorization machines on a GPU: its memory, and launches."""

import itertools

import numpy as np

from freqfm._input.rows import take_rows
from freqfm.backends.base import RankedTables
from freqfm.backends.cuda.fm import batch, layers
from freqfm.backends.cuda.memory import DeviceTrainer, lanes_for, sum_of
from freqfm.backends.cuda.tables import COLUMNS, rule_for_device
from freqfm.formulas.codes import BETA_1, BETA_2, STEP_ADAM, STEP_CUSTOM
from freqfm.formulas.steps import adam_corrections, layer_corrections

# So many entries are scored at a time, to save memory.
_ENTRIES_SCORED = 1 << 28

_NO_WEIGHTS = np.zeros((1, 0), dtype=np.float32)


class DeviceRows:
    """Rows of X in a GPU's memory.

    Parameters
    ----------
    device : Device
    X : csr_array
        Canonical, float32.
    """

    def __init__(self, device, X):
        self.shape, self.nnz = X.shape, X.nnz
        self.rows = batch.FMRows(
            device.to_device(X.indptr.astype(np.int64)),
            device.to_device(X.indices.astype(np.int32)),
            device.to_device(X.data),
        )


def fm_scores(device, X, weights):
    """Return the scores of rows under every output, see ``Backend``."""
    if not isinstance(X, DeviceRows) and X.nnz > _ENTRIES_SCORED:
        # Every part but the last has about so many entries, and a row at least.
        cuts = np.searchsorted(X.indptr, np.arange(_ENTRIES_SCORED, X.nnz, _ENTRIES_SCORED))
        cuts = np.unique(np.concatenate([[0], cuts, [X.shape[0]]]))
        parts = [X[begin:end] for begin, end in itertools.pairwise(cuts)]
        if len(parts) > 1:
            return np.concatenate([fm_scores(device, part, weights) for part in parts], axis=1)
    rows = X if isinstance(X, DeviceRows) else DeviceRows(device, X)
    levels = levels_on_device(device, weights[0].factors, None)
    on_device = (batch.FMVectors(*map(device.to_device, _vectors_of(output))) for output in weights)
    tower = weights[0].dense
    return np.stack([_score(device, rows, output, levels, tower) for output in on_device])


def _vectors_of(output):
    """Return the FMVectors of an FMWeights."""
    factors, dense = output.factors, _NO_WEIGHTS
    factors = factors.weights if isinstance(factors, RankedTables) else factors.reshape(-1)
    if output.dense is not None:
        dense = output.dense.weights.reshape(1, -1)
    return batch.FMVectors(output.intercept, output.linear, factors, dense)


def _score(device, rows, vectors, levels, tower):
    """Return the scores of rows under one output, whose FMVectors are on the GPU.

    ``tower`` is a Tower whose weights are not read, or None.
    """
    n_rows = rows.shape[0]
    scores, nothing = device.empty(n_rows, np.float32), device.empty((0, 0), np.float32)
    if tower is not None:
        layers.score_towers(device, tower, rows.rows, vectors, levels, scores)
    else:
        args = rows.rows, vectors, levels, nothing, scores
        device.run(batch.SCORE, args, lanes_for(max(levels.widths), COLUMNS), n_rows)
    return device.to_host(scores, np.empty(n_rows, dtype=np.float32))


def levels_on_device(device, factors, training):
    """Return the Levels of a machine; without a RankedTraining they are for scores."""
    ranked = isinstance(factors, RankedTables)
    widths = tuple(map(int, factors.widths)) if ranked else (factors.shape[1],)
    nothing = np.zeros(0, dtype=np.int32)
    layout = np.zeros((len(widths), 1)) if training is None else training.state_layout
    return batch.Levels(
        ranked=ranked,
        widths=widths,
        starts=tuple(map(int, factors.starts)) if ranked else (0,),
        columns=tuple(itertools.accumulate(widths[:-1], initial=0)),
        first_starts=tuple(map(int, layout[:, 0])),
        levels=device.to_device(factors.levels if ranked else nothing),
        rows=device.to_device(factors.rows if ranked else nothing),
        prefix=not ranked or bool(factors.prefix),
        follow_loss=training is not None and bool(training.follow_loss),
        dependent_weight=np.float32(0 if training is None else training.dependent_weight),
    )


def _model_of(weights, state, of_dense):
    """Return the FMWeightState of an output, given the optimizer states of both kinds."""
    dense_first, dense_second = of_dense
    return batch.FMWeightState(
        **_vectors_of(weights)._asdict(),
        per_row=state.per_row,
        intercept_state=state.intercept,
        linear_first=state.linear_first,
        linear_second=state.linear_second,
        factors_first=state.factors_first.reshape(-1),
        factors_second=state.factors_second.reshape(-1),
        dense_first=dense_first.reshape(1, -1),
        dense_second=dense_second.reshape(1, -1),
    )


class FMEpochs(DeviceTrainer):
    """Epochs on a GPU, for one or several outputs; see ``Backend.fm_trainer``.

    Rows are moved to the GPU once, weights and the optimizer's state when the context is first
    used.

    Parameters
    ----------
    device : Device
    problem : FMProblem
    """

    def __init__(self, device, problem):
        super().__init__(device)
        self._problem = problem
        X, trained = problem.X, slice(None)
        if problem.rows is not None:
            X, trained = take_rows(X, problem.rows), problem.rows
        self._levels = levels_on_device(device, problem.weights[0].factors, problem.ranked)
        self._n_rows = X.shape[0]
        self._n_batches = -(-self._n_rows // problem.batch_size)
        self._n_lanes = lanes_for(max(self._levels.widths), COLUMNS)
        self._sort = batch.EpochSort(device, problem, X)
        self._rows = DeviceRows(device, X)
        self._targets = [
            batch.FMTargets(
                device.to_device(np.ascontiguousarray(target[trained])),
                device.to_device(problem.weight[trained].astype(np.float32)),
                self._sort.rows,
                problem.batch_size,
            )
            for target in problem.target
        ]
        self._rule = rule_for_device(problem.rule)
        self._objective = problem.objective._replace(
            alpha_linear=np.float32(problem.objective.alpha_linear),
            alpha_factors=np.float32(problem.objective.alpha_factors),
            mean_weight=np.float32(problem.objective.mean_weight),
            loss_scale=np.float32(problem.objective.loss_scale),
            shares=device.to_device(problem.objective.shares),
        )
        self._dense, of_dense = problem.dense, itertools.repeat((_NO_WEIGHTS, _NO_WEIGHTS))
        self._tower, self._phases, self._formulas = None, batch.TRAIN, problem.formulas
        if self._dense is not None:
            self._make_layers(problem.weights[0].dense)
            of_dense = self._dense.states
        each = zip(problem.weights, problem.states, of_dense, strict=False)
        self._outputs = [self.add(_model_of(*output)) for output in each]
        lengths = np.sort(np.diff(X.indptr))
        self._scratch = self._make_scratch(int(lengths[-problem.batch_size :].sum()))
        self._n_items = max(problem.batch_size, X.nnz // self._n_batches)

    def _make_layers(self, tower):
        """Allocate what dense layers need."""
        device, problem, dense = self.device, self._problem, self._dense
        width, n_rows, rates = self._levels.widths[0], problem.batch_size, dense.dropouts
        self._tower, self._n_lanes = tower, layers.N_LANES
        self._phases, self._formulas = layers.TRAIN, {**problem.formulas, **dense.formulas}
        self._layers = layers.make_layers(device, tower, n_rows, width, rates)
        self._gradients = layers.make_gradients(device, problem, tower)

    def _make_scratch(self, most_entries):
        """Return scratch for batches of at most so many entries."""

        def floats(*shape):
            return self.device.empty(shape, np.float32)

        batch_size, levels = self._problem.batch_size, self._levels
        n_levels, width = len(levels.widths), sum(levels.widths)
        n_pieces = 2 * (most_entries // batch.WINDOW + 1)
        n_touched = 0 if self._problem.rule.lazy else self._problem.X.shape[1]
        layered = self._tower is not None
        n_inputs = self._tower.widths[0] if layered else 0
        return batch.FMScratch(
            sums=floats(0 if layered else batch_size, width),
            free_sums=floats(0 if levels.prefix else batch_size, width),
            by_level=floats(n_levels, batch_size),
            weights=floats(batch_size),
            derivatives=floats(batch_size),
            curvatures=floats(batch_size),
            losses=floats(self._n_rows),
            of_rows=floats(3, batch_size // batch.WINDOW + 1),
            of_pieces=floats(3 + n_levels, n_pieces),
            vectors=floats(n_pieces, width),
            touched=self.device.empty(n_touched, np.int32),
            layered=layered,
            gradients=floats(batch_size if layered else 0, n_inputs + width),
            fields=self._layers.fields if layered else self.device.empty(0, np.int32),
        )

    def run_epoch(self, epoch, n_steps, share=1.0):
        """Train every output on every row once; return the loss of all, see ``Backend``."""
        device = self.device
        self._sort.run(epoch)
        self.hold()
        rule, formula = self._problem.rule, self._formulas.get(adam_corrections)
        steps, loss = self._steps(n_steps, share, rule, formula), 0.0
        if self._tower is not None:
            rule, formula = self._dense.rule, self._formulas.get(layer_corrections)
            of_tower = layers.with_key(self._layers, self._problem.seed, epoch)
            gradients = self._gradients._replace(steps=self._steps(n_steps, share, rule, formula))
        for model, data in zip(self._outputs, self._targets, strict=True):
            device.fill(self._scratch.touched, 0)
            args = batch.FMArgs(
                self._objective, self._rule, steps, self._rows.rows, data,
                self._sort.occurrences, model, self._scratch, self._levels,
            )  # fmt: skip
            if self._tower is not None:
                weighted = layers.with_weights(of_tower, self._tower, model.dense)
                args = layers.DeepArgs(*args, weighted, gradients)
            span = 0, self._n_batches
            device.run(self._phases, args, self._n_lanes, self._n_items, span, self._formulas)
            self.changed()
            loss += sum_of(device, self._scratch.losses)
        return loss

    def scores(self, rows):
        """Return the scores of rows under every output."""
        if not self.is_held:
            return fm_scores(self.device, rows, self._problem.weights)
        device, levels, tower = self.device, self._levels, self._tower
        n = len(batch.FMVectors._fields)
        models = (batch.FMVectors(*model[:n]) for model in self._outputs)
        return np.stack([_score(device, rows, model, levels, tower) for model in models])

    def _steps(self, n_steps, share, rule, corrections):
        """Return the factors of sums and the divisors of the steps of an epoch, on the device.

        ``corrections`` is a custom formula, or None.
        """
        problem = self._problem
        steps = np.ones((self._n_batches, 3))
        if rule.average:
            n_rows = np.full(self._n_batches, problem.batch_size)
            n_rows[-1] = self._n_rows - (self._n_batches - 1) * problem.batch_size
            steps[:, 0] = 1 / (n_rows * problem.objective.mean_weight)
        numbers = n_steps + 1 + np.arange(self._n_batches)
        if rule.step_code == STEP_ADAM:
            steps[:, 1] = 1 - rule.hyper[BETA_1] ** numbers
            steps[:, 2] = np.sqrt(1 - rule.hyper[BETA_2] ** numbers)
        elif rule.step_code == STEP_CUSTOM:
            # A user's step may receive its number.
            steps[:, 1:] = [corrections(rule.hyper, number) for number in numbers]
        steps[:, 1] /= share
        return self.device.to_device(steps.astype(np.float32))
