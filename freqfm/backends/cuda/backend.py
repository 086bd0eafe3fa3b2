"""The backend "cuda": kernels for NVIDIA GPUs, see the folder's docstring."""

from freqfm.backends.base import Backend, CPUOnlyError, FieldVectors, FieldWeights
from freqfm.backends.cuda.fm.trainer import DeviceRows, FMEpochs, fm_scores
from freqfm.backends.cuda.ranking import trainer as ranking
from freqfm.backends.cuda.ranking.batches import fold_in, sum_histories
from freqfm.backends.cuda.ranking.least_squares import CUDALeastSquaresTrainer
from freqfm.backends.cuda.topk import top_k
from freqfm.backends.cuda.vae import CUDAAutoencoderTrainer
from freqfm.backends.support import check


def _cpu_only(self, *args, **options):
    """Raise: the GPU does not have the operation."""
    raise CPUOnlyError("a part of this runs on the CPU only; set device='cpu', or device='auto'.")


def _refuse_others(weights):
    parts = type(weights[0].dense), type(weights[0].factors)
    for kind, name in {FieldWeights: "FwFM", FieldVectors: "FFM"}.items():
        if kind in parts:
            check("GPU", name)


class CUDABackend(Backend):
    """The models' operations on a GPU; see :class:`freqfm.backends.base.Backend`.

    Parameters
    ----------
    device : Device
        Memory and launches.

    Attributes
    ----------
    name : str
        Of the GPU.
    device : Device
    """

    propagates = True

    def __init__(self, device):
        self.device = device
        self.name = device.name

    # Factorization machines.

    def fm_trainer(self, problem, n_threads):
        """Return a trainer of whole epochs, see ``Backend``."""
        _refuse_others(problem.weights)
        return FMEpochs(self.device, problem)

    def fm_rows(self, X):
        """Return rows in the GPU's memory, see ``Backend``."""
        return DeviceRows(self.device, X)

    def fm_scores(self, X, weights, n_threads):
        """Return the scores of rows under every output, see ``Backend``."""
        _refuse_others(weights)
        return fm_scores(self.device, X, weights)

    # Recommenders.

    def ranking_trainer(self, problem, n_threads):
        """Return a RankingTrainer, see ``Backend``."""
        if problem.graph is None:
            return ranking.CUDARankingTrainer(self.device, problem)
        by_batch = problem.graph.by_batch
        trainer = ranking.BatchGraphTrainer if by_batch else ranking.EpochGraphTrainer
        return trainer(self.device, problem)

    def least_squares_trainer(self, sides, n_threads):
        """Return a LeastSquaresTrainer, see ``Backend``."""
        if not all(problem.n_steps for problem, *_ in sides):
            check("GPU", 'ALSRecommender: solver="cholesky"')
        return CUDALeastSquaresTrainer(self.device, sides)

    def autoencoder_trainer(self, problem, n_threads):
        """Return a trainer of an autoencoder, see ``Backend``."""
        return CUDAAutoencoderTrainer(self.device, problem)

    def top_k(self, queries, items, k, excluded, unit_columns, n_threads):
        """Return the best items of every query, and their scores, see ``Backend``."""
        return top_k(self.device, queries, items, k, excluded, unit_columns)

    def fold_in(self, problem, histories, n_threads, formulas=None):
        """Return unit vectors of users by their histories, see ``Backend``."""
        return fold_in(self.device, problem, histories, formulas)

    def sum_histories(self, histories, table, n_threads):
        """Return the sums of weights times rows of a table, see ``Backend``."""
        return sum_histories(self.device, histories, table)

    # Operations that estimators request from the CPU, whatever the device: they are small.

    expected_targets = loss_sums = alias_tables = draw = draw_lists = _cpu_only
    top_k_of_candidates = sparse_top_k = sparse_blocks = least_squares = diversify = _cpu_only
    permutation = uniform = standard_normal = propagation = _cpu_only

    def table_trainer(self, rule, n_threads, formulas=None):
        """Not implemented."""
        check("GPU", "Features, MLP, backbones of your own")

    def word2vec_trainer(self, problem, n_threads):
        """Not implemented."""
        check("GPU", "Word2Vec")
