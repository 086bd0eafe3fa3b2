"""Training of user and item vectors on a GPU: its memory, and launches."""

import numpy as np

from freqfm._numba.jit import interpreted
from freqfm.backends.base import CPUOnlyError, RankingTrainer
from freqfm.backends.cuda.device_tables import DeviceTables
from freqfm.backends.cuda.draws import cells_on, draw_scratch
from freqfm.backends.cuda.fm.plain import SUM_LOSSES
from freqfm.backends.cuda.memory import DeviceTrainer
from freqfm.backends.cuda.products import most_parts
from freqfm.backends.cuda.ranking.alignment import (
    ALIGN,
    CATCH_UP_MARGINS,
    MARGINS,
    Alignment,
    AlignmentArgs,
    AlignmentScratch,
)
from freqfm.backends.cuda.ranking.pairwise import PAIRS, Pairwise, PairwiseArgs, PairwiseScratch
from freqfm.backends.cuda.ranking.softmax import (
    CATCH_UP,
    CATCH_UP_USERS,
    DERIVATIVE,
    DRAW,
    LIST_ITEMS,
    LIST_USERS,
    LISTS,
    LOSS,
    PLAIN_LOSS,
    SHARED,
    WEIGHT,
    DrawArgs,
    EpochData,
    ItemKeys,
    RankingCall,
    Softmax,
    SoftmaxArgs,
    SoftmaxScratch,
    UserKeys,
)
from freqfm.backends.cuda.sorting import KeySort
from freqfm.backends.cuda.tables import Dropout, Side
from freqfm.formulas import codes
from freqfm.formulas.cells import Cells
from freqfm.formulas.rng import stream_key

__all__ = ["CUDARankingTrainer"]

# A call sorts at most so many occurrences, to save memory.
_OCCURRENCES = 1 << 24

# Up to this many scores (512 MB) a batch is scored at once, else in panels of rows.
_SCORES = 1 << 27

# Losses are summed on the GPU in groups of this size.
_LOSSES = 4096

_SEPARATE_LISTS = (codes.NEGATIVES_SEPARATE, codes.NEGATIVES_DRAWN)


class SoftmaxFamily:
    """A positive against all of its negatives at once.

    Parameters
    ----------
    device : Device
    problem : RankingProblem
    n_pairs : int
        The most positives of a batch.

    Attributes
    ----------
    n_listed : int
        The most negatives of a batch.
    n_panels : int
        How often the phases run for a batch.
    lists_code : int
        How the negatives of a batch are listed, see ``formulas.codes``; -1 for none.
    """

    def __init__(self, device, problem, n_pairs):
        self._device, self._problem = device, problem
        self.lists_code = problem.negatives_code
        self._separate = problem.negatives_code in _SEPARATE_LISTS
        self._n_pairs, width = n_pairs, self._list_length(n_pairs)
        self.n_listed = n_pairs * width if self._separate else width
        height = n_pairs if self._separate else max(1, min(n_pairs, _SCORES // width))
        self.n_panels = -(-n_pairs // height)
        self._scratch = self._make_scratch(height, width)
        self._corrections = self._proposal = self._drawn = None

    @staticmethod
    def block_of(problem):
        """Return how many positives of a user may stand in one row; None for all."""
        return 1 if problem.negatives_code == codes.NEGATIVES_SEPARATE else problem.block

    def _list_length(self, n_pairs):
        if self._problem.negatives_code == codes.NEGATIVES_IN_BATCH:
            return n_pairs
        if self._problem.negatives_code == codes.NEGATIVES_FULL:
            return self._problem.n_items
        return self._problem.n_negatives

    def _make_scratch(self, height, width):
        def floats(*shape):
            return self._device.empty(shape, np.float32)

        n_rows, d, separate = self._n_pairs, self._problem.width, self._separate
        n_shared = 0 if separate else width
        return SoftmaxScratch(
            sources=floats(n_rows + n_shared, d),
            negatives=floats(n_shared, d),
            negative_columns=floats(d, n_shared),
            corrections=floats(n_rows if separate else 1, width),
            positive_corrections=floats(n_rows),
            scales=floats(n_rows if separate else 0, width),
            scores=floats(height, width),
            parts=floats(most_parts(height, d) if n_shared else 0, height, d),
            negative_parts=floats(most_parts(n_shared, d) if n_shared else 0, n_shared, d),
            scaled=floats(n_rows, d),
            user_gradients=floats(n_rows, d),
            of_rows=floats(4, n_rows),
            pair_rows=self._device.empty(self._n_pairs if n_shared else 0, np.int32),
            of_pairs=floats(4, self._n_pairs),
        )

    def lists_shape(self, n_batches, n_pairs):
        """Return how many lists of negatives batches need, and the length of a list."""
        separate = self._problem.negatives_code == codes.NEGATIVES_SEPARATE
        return n_pairs if separate else n_batches, self._problem.n_negatives

    def n_negatives(self, n_rows, n_pairs):
        """Return how many negatives batches of some size have."""
        code, m = self._problem.negatives_code, self._list_length(1)
        if code == codes.NEGATIVES_IN_BATCH:
            return n_pairs
        return n_rows * m if self._separate else np.full_like(n_rows, m)

    def _set_proposal(self, proposal):
        if self._corrections is not None and self._proposal is proposal:
            return
        device, self._proposal = self._device, proposal
        self._corrections = device.to_device(proposal.log_q)
        if self._problem.negatives_code == codes.NEGATIVES_DRAWN:
            self._cells = cells_on(device, proposal)
            m = self._problem.n_negatives
            self._drawn = draw_scratch(device, proposal, self._n_pairs, m, self._drawn)

    def _softmax(self, negatives):
        problem = self._problem
        drawn = problem.negatives_code == codes.NEGATIVES_DRAWN
        return Softmax(
            negatives_code=problem.negatives_code,
            n_negatives=self._list_length(1),
            corrected=problem.corrected if drawn else len(self._proposal.log_q) > 0,
            include_positive=problem.include_positive,
            constant=np.float32(problem.constants["constant"]),
            statistics_wanted=problem.statistics_wanted,
            negatives=negatives,
            corrections=self._corrections,
        )

    def run(self, launch):
        """Train on the batches of a Launch."""
        self._set_proposal(launch.proposal)
        scratch = self._scratch
        if self._problem.negatives_code == codes.NEGATIVES_DRAWN:
            scratch = scratch._replace(corrections=self._drawn.log_q)
            launch.negatives = self._drawn.ids
            self._draw(launch, scratch)
        args = self._args(launch, launch.items(), scratch)
        phases = LISTS if self._separate else SHARED
        launch.run(phases if launch.tables.idle else CATCH_UP + phases, args)

    def _args(self, launch, items, scratch):
        softmax = self._softmax(launch.negatives)
        return SoftmaxArgs(
            launch.data, launch.call, softmax, launch.users, items, launch.tables.step, scratch
        )

    def _draw(self, launch, scratch):
        """Draw the negatives of a batch, by users that have caught up."""
        args = DrawArgs(self._args(launch, launch.users, scratch), self._cells, self._drawn)
        launch.run(DRAW if launch.tables.idle else CATCH_UP_USERS + DRAW, args)


class PairwiseFamily:
    """Each positive is ranked above each of its negatives; see ``SoftmaxFamily``."""

    n_panels, lists_code = 1, codes.NEGATIVES_SEPARATE

    def __init__(self, device, problem, n_pairs):
        self._problem = problem
        self.n_listed = n_pairs * problem.n_negatives
        shape = n_pairs, problem.width
        self._scratch = PairwiseScratch(
            sources=device.empty(shape, np.float32),
            user_gradients=device.empty(shape, np.float32),
            lengths=device.empty(n_pairs, np.float32),
            pair_rows=device.empty(n_pairs, np.int32),
            losses=device.empty(n_pairs, np.float32),
            factors=device.empty(n_pairs + self.n_listed, np.float32),
        )
        self._known = [device.to_device(part.astype(np.int32)) for part in problem.known]

    @staticmethod
    def block_of(problem):
        """Return how many positives of a user may stand in one row; None for all."""
        return problem.block

    def lists_shape(self, n_batches, n_pairs):
        """Return how many lists of negatives batches need, and the length of a list."""
        return n_pairs, self._problem.n_negatives

    def n_negatives(self, n_rows, n_pairs):
        """Return how many negatives batches of some size have."""
        return n_pairs * self._problem.n_negatives

    def run(self, launch):
        """Train on the batches of a Launch."""
        args = PairwiseArgs(
            launch.data, launch.call, Pairwise(*self._known, launch.negatives), launch.users,
            launch.items(), launch.tables.step, self._scratch,
        )  # fmt: skip
        launch.run(PAIRS if launch.tables.idle else CATCH_UP + PAIRS, args)


class AlignmentFamily:
    """Positive pairs are pulled together, sides pushed apart; see ``SoftmaxFamily``."""

    n_listed, lists_code = 0, -1

    def __init__(self, device, problem, n_pairs):
        def floats(*shape):
            return device.empty(shape, np.float32)

        self._problem, n, d = problem, n_pairs, problem.width
        height = max(1, min(n, _SCORES // (2 * n)))
        self.n_panels = -(-n // height)
        self._scratch = AlignmentScratch(
            units=floats(2, n, d),
            columns=floats(2, d, n),
            cosines=floats(2, height, n),
            parts=floats(2, most_parts(2 * height, d), height, d),
            totals=floats(2, n),
            gradients=floats(2, n, d),
            pushes=floats(2, 2),
            lengths=floats(n),
            margin_gradients=floats(n, 1),
        )
        self._of_margins = floats(n, 1)
        constants = problem.constants
        gammas = constants["gamma_users"], constants["gamma_items"]
        self._gammas = device.to_device(np.array(gammas, dtype=np.float32))

    @staticmethod
    def block_of(problem):
        """Return how many positives of a user may stand in one row; None for all."""
        return problem.block

    def lists_shape(self, n_batches, n_pairs):
        """Return how many lists of negatives batches need, and the length of a list."""
        return 0, 0

    def n_negatives(self, n_rows, n_pairs):
        """Return how many negatives batches of some size have."""
        return np.zeros_like(n_pairs)

    def run(self, launch):
        """Train on the batches of a Launch."""
        constants, tables, items = self._problem.constants, launch.tables, launch.items()
        sides, phases = [launch.users, items], ALIGN
        if constants["margins"]:
            sides = [
                side._replace(table=tables[name], gradients=self._of_margins)
                for side, name in zip(sides, ("user_margins", "item_margins"), strict=True)
            ]
            phases = ALIGN + MARGINS
        if not tables.idle:
            phases = CATCH_UP + (CATCH_UP_MARGINS if constants["margins"] else ()) + phases
        alignment = Alignment(constants["margins"], constants["half"], self._gammas, *sides)
        args = AlignmentArgs(
            launch.data, launch.call, alignment, launch.users, items, tables.step, self._scratch
        )
        launch.run(phases, args)


#: By the names of ``RankingProblem.family``.
FAMILIES = {"softmax": SoftmaxFamily, "pairwise": PairwiseFamily, "alignment": AlignmentFamily}


class _Launch:
    """The batches of a call: what they are given, and what runs them."""

    def __init__(self, trainer, call, span, proposal, negatives):
        self._trainer, self.call, self._span = trainer, call, span
        self.proposal, self.negatives = proposal, negatives
        self.data, self.tables = trainer.on_device, trainer.tables
        self.users = trainer.list_users(call.first_batch, span[1])

    def items(self):
        """Return the Side of the items, of positives and negatives."""
        return self._trainer.list_items(self.call.first_batch, self._span[1], self.negatives)

    def run(self, phases, args):
        """Run phases for each panel of each batch."""
        self._trainer.run(phases, args, self._span, self.call.n_panels)


class CUDARankingTrainer(DeviceTrainer, RankingTrainer):
    """Trains user and item vectors on a GPU; see ``RankingTrainer``.

    Tables are moved to the GPU before the first epoch, the order of the positives in each epoch.

    Parameters
    ----------
    device : Device
    problem : RankingProblem

    Raises
    ------
    CPUOnlyError
        If a part of the problem runs on the CPU only.
    """

    def __init__(self, device, problem):
        _refuse(problem)
        super().__init__(device)
        self._device, self._problem = device, problem
        degrees = np.diff(problem.known[0])
        n_known = len(problem.known[1])
        family = FAMILIES[problem.family]
        self.block = family.block_of(problem)
        longest = int(degrees.max()) if self.block is None else self.block
        n_pairs = min(problem.batch_size + longest, n_known)
        self._family = family(device, problem, n_pairs)
        n_occurrences = n_pairs + self._family.n_listed
        drawn = problem.negatives_code == codes.NEGATIVES_DRAWN
        self.batches_per_call = 1 if drawn else max(1, _OCCURRENCES // n_occurrences)
        self.tables = DeviceTables(self._mirror, problem.rule, problem.formulas)
        self._item_sort = KeySort(device, problem.n_items)
        self._user_sort = KeySort(device, len(degrees))
        self._results = device.empty((4, n_known), np.float32)
        d = problem.width
        self._of_users = (
            device.to_device(np.arange(n_pairs, dtype=np.int32)),
            device.to_device(np.ones(n_pairs, dtype=np.float32)),
            device.empty((n_pairs, d), np.float32),
        )
        self._of_items = (
            device.empty(n_occurrences, np.int32),
            device.empty(n_occurrences, np.float32),
            device.empty((n_occurrences, d), np.float32),
        )
        self._most_groups = n_occurrences
        self._no_lists = device.empty((1, max(1, problem.n_negatives)), np.int32)

    def begin_epoch(self, epoch, data, tables, first_step, corrections):
        """Set the tables and the data of an epoch; see ``RankingTrainer``."""
        self.tables.begin_epoch(tables, corrections)
        self._data, device = data, self._device
        self._pair_starts = data.row_starts[data.batch_starts]
        weights = np.add.reduceat(data.weights, self._pair_starts[:-1], dtype=np.float64)
        self._weights = weights
        with np.errstate(over="ignore"):
            key = np.uint64(interpreted(stream_key)(self._problem.seed, epoch))
        self.on_device = EpochData(
            device.to_device(data.items.astype(np.int32, copy=False)),
            device.to_device(data.weights),
            device.to_device(data.row_starts.astype(np.int32)),
            device.to_device(data.row_users.astype(np.int32, copy=False)),
            device.to_device(_batches(data.batch_starts, self._pair_starts)),
            device.to_device((1 / weights).astype(np.float32)),
            key,
        )

    def lists_shape(self, first, last):
        """Return how many lists of negatives the batches need, and the length of a list."""
        n_pairs = int(self._pair_starts[last] - self._pair_starts[first])
        return self._family.lists_shape(last - first, n_pairs)

    def list_users(self, first, last):
        """Return the Side of the users of some batches."""
        starts = self._data.batch_starts[first : last + 1]
        starts = starts - starts[0]
        n_users = len(self.tables["user_factors"].weights)

        def write_keys(keys, starts):
            args = UserKeys(self.on_device, first, n_users, keys, starts)
            self._device.run(LIST_USERS, args, 1, len(keys))

        return Side(
            self.tables["user_factors"], self._user_sort.run(starts, write_keys), *self._of_users
        )

    def list_items(self, first, last, negatives):
        """Return the Side of the items of some batches: positives, and negatives."""
        problem = self._problem
        n_rows = np.diff(self._data.batch_starts[first : last + 1])
        n_pairs = np.diff(self._pair_starts[first : last + 1])
        starts = np.append(0, np.cumsum(n_pairs + self._family.n_negatives(n_rows, n_pairs)))

        def write_keys(keys, starts):
            args = ItemKeys(
                self.on_device, first, problem.n_items, self._family.lists_code, negatives, keys,
                starts,
            )  # fmt: skip
            self._device.run(LIST_ITEMS, args, 1, len(keys))

        return Side(
            self.tables["item_factors"], self._item_sort.run(starts, write_keys), *self._of_items
        )

    def train(self, first, last, proposal, negatives, inverse_temperatures, statistics):
        """Train on some batches of the epoch; see ``RankingTrainer``."""
        device, problem, data = self._device, self._problem, self._data
        first_row, last_row = data.batch_starts[first], data.batch_starts[last]
        threshold = np.uint64(problem.dropout * 65536)
        call = RankingCall(
            first_batch=int(first),
            first_row=int(first_row),
            first_pair=int(self._pair_starts[first]),
            n_panels=self._family.n_panels,
            average=problem.rule.average,
            cosine=problem.cosine,
            dropout=Dropout(threshold, np.float32(1 / (1 - problem.dropout))),
            inverse_temperatures=device.to_device(inverse_temperatures),
            results=self._results,
        )
        lists = self._no_lists if negatives is None else device.to_device(negatives)
        self._family.run(_Launch(self, call, (first, last), proposal, lists))
        n_rows = int(last_row - first_row)
        if problem.statistics_wanted:
            users = data.row_users[first_row:last_row]
            for i, column in enumerate((PLAIN_LOSS, WEIGHT, DERIVATIVE)):
                of_rows = np.empty(n_rows, dtype=np.float32)
                device.to_host(self._results[column][:n_rows], of_rows)
                np.add.at(statistics[:, i], users, of_rows)
        return self._sum_losses(n_rows), float(self._weights[first:last].sum())

    def run(self, phases, args, span, n_panels):
        """Run phases for each panel of each batch of a span."""
        steps = span[0] * n_panels, span[1] * n_panels
        formulas = self._problem.formulas
        self._device.run(phases, args, 32, self._most_groups, steps, formulas)

    def _sum_losses(self, n_rows):
        device, n_sums = self._device, -(-n_rows // _LOSSES)
        sums = device.empty(n_sums, np.float64)
        device.run(SUM_LOSSES, (self._results[LOSS][:n_rows], sums), 32, n_sums)
        return float(device.to_host(sums, np.empty(n_sums)).sum())

    def end_epoch(self):
        """Let all rows catch up on the steps that they have missed."""
        self.tables.end_epoch(len(self._data.batch_starts) - 1)
        self._data = None


def _batches(row_starts, pair_starts):
    """Return where each batch begins, and its size: rows, and pairs."""
    sizes = np.diff(row_starts), np.diff(pair_starts)
    columns = row_starts[:-1], sizes[0], pair_starts[:-1], sizes[1]
    return np.column_stack(columns).astype(np.int32)


def _refuse(problem):
    """Raise if a part of the problem runs on the CPU only."""
    advice = "set device='cpu', or device='auto'."
    if problem.rule.step_code == codes.STEP_STORE:
        raise CPUOnlyError(f"backbones are trained on the CPU only; {advice}")
    if len(problem.known[1]) > np.iinfo(np.int32).max:
        raise CPUOnlyError(
            f"X has {len(problem.known[1])} interactions; more than {np.iinfo(np.int32).max} are "
            f"trained on the CPU only; {advice}"
        )
    if problem.family not in FAMILIES:
        raise CPUOnlyError(f"losses of the family {problem.family!r} run on the CPU only; {advice}")
    if problem.constants.get("pairs") or len(problem.constants.get("thresholds", ())):
        raise CPUOnlyError(f"the losses PSL and SL@K run on the CPU only; {advice}")
    drawn = problem.negatives_code == codes.NEGATIVES_DRAWN
    if drawn and (problem.proposal_type is not Cells or problem.family != "softmax"):
        raise CPUOnlyError(f"sampler {problem.sampler} runs on the CPU only; {advice}")
