"""What can be used where: one table, from which errors and the guide take decisions and words."""

import functools

from freqfm.backends.base import CPUOnlyError

# Models and parts of a fit; columns are separated by two blanks. "-" is where a question makes no
# sense. Parts without a model are of MFRecommender.
_TABLE = """
                                      GPU  Dask       streams  dislikes  context  partial_fit
FM, RaFM, DeepFM, NFM                 yes  yes        yes      -         -        yes
FFM                                   no   yes        yes      -         -        yes
FwFM                                  no   yes        yes      -         -        yes
FM: other scoring than "loss"         yes  no         no       -         -        -
MFRecommender                         yes  yes        no       yes       yes      yes
ALSRecommender                        yes  yes        no       yes       no       yes
ALSRecommender: solver="cholesky"     no   yes        no       yes       no       yes
ALSRecommender of freqfm.dask         no   yes        no       yes       no       no
FastVAERecommender                    yes  no         no       no        no       yes
recommenders in closed form           no   yes        no       no        no       yes
PopularityRecommender                 no   no         no       no        no       yes
Word2Vec                              no   no         no       -         -        yes
LightGCN                              yes  no         no       yes       no       yes
Features, MLP, backbones of your own  no   no         no       yes       no       yes
Context                               no   no         no       no        yes      yes
auxiliary terms                       no   no         no       yes       no       yes
losses in NumPy, such as "macr"       no   no         no       yes       no       yes
MAWU with margins                     yes  yes        no       yes       no       yes
MAWU with LightGCN("batch")           no   no         no       yes       no       yes
WARP                                  no   yes        no       yes       yes      yes
samplers by user, losses of pairs     no   yes        no       yes       yes      yes
temperature="cu_tau"                  yes  no         no       yes       yes      yes
temperatures that change in a fit     yes  one shard  no       yes       yes      yes
parts refreshed after several epochs  yes  one shard  no       yes       yes      yes
initializers that read interactions   yes  no         no       yes       yes      yes
X_val                                 yes  no         no       yes       yes      -
scoring by a function                 yes  no         no       yes       yes      -
dislikes                              no   no         no       yes       no       yes
"""

# The part of the errors of a column that all of them have, unless they end with a full stop.
_ENDS = {
    "GPU": " on the CPU only; set device='cpu', or device='auto'.",
    "Dask": ", or use freqfm.MFRecommender on one machine.",
}

_VECTORS = "backbones, losses in NumPy and auxiliary terms are trained"
_TRAINS = "{given} does not train on a cluster; {advice}"
_SHARDS = "{given} keeps a state between rounds that shards do not share; set n_shards=1, or choose"
_METRIC = "{given} is not computed on a Dask cluster; "

# What errors say of the cells for which there are errors; words in braces are those of the call.
ERRORS = {
    ("GPU", "FFM"): "FFM runs",
    ("GPU", "FwFM"): "FwFM runs",
    ("GPU", 'ALSRecommender: solver="cholesky"'): "solver='cholesky' runs",
    ("GPU", "ALSRecommender of freqfm.dask"): "{given} solves",
    ("GPU", "Word2Vec"): "Word vectors are trained",
    ("GPU", "Features, MLP, backbones of your own"): _VECTORS,
    ("GPU", "Context"): "backbone=Context is trained",
    ("GPU", 'MAWU with LightGCN("batch")'): "margins with LightGCN(propagate='batch') run",
    ("GPU", "WARP"): "the loss WARP runs",
    ("GPU", "samplers by user, losses of pairs"): "sampler {given} runs",
    ("GPU", "dislikes"): "dislikes are trained",
    ("Dask", 'FM: other scoring than "loss"'): _METRIC + "set scoring='loss'.",
    ("Dask", "scoring by a function"): _METRIC + "give the name of a metric, such as 'ndcg@20'.",
    ("Dask", "Features, MLP, backbones of your own"): _TRAINS,
    ("Dask", "auxiliary terms"): _TRAINS,
    ("Dask", "dislikes"): "{given} on a cluster; {advice}",
    ("Dask", "X_val"): "X_val is not supported on a cluster; leave it out, and a part of X is held "
    "out.",
    ("Dask", "initializers that read interactions"): "{given} needs all interactions in one place, "
    "and they are on the workers; choose 'spectral'",
    ("Dask", 'temperature="cu_tau"'): "{given} keeps a state of all users, which a cluster does "
    "not train; choose another",
    ("Dask", "temperatures that change in a fit"): _SHARDS + " another.",
    ("Dask", "parts refreshed after several epochs"): _SHARDS + " another.",
    ("streams", 'FM: other scoring than "loss"'): "{given} needs rows in memory, but X is a "
    "stream; set scoring='loss'.",
    ("dislikes", "Context"): "X holds {n} dislikes, and {given} does not learn from them: they "
    "belong to users, and rows of X to users in a context. Leave them out, or drop the context.",
    ("context", "MAWU with margins"): "{given} learns margins of users, which queries of "
    "backbone=Context do not have; set margins=False, or choose another loss.",
    ("context", "auxiliary terms"): "{given} is a function of vectors of users, and rows of "
    "{backbone} are queries; {advice}.",
}


@functools.cache
def table():
    """Return the table: names of columns, and the cells of each row by its name."""
    head, *rows = (line for line in _TABLE.splitlines() if line)
    columns = head.split()
    cells = ([cell.strip() for cell in row.split("  ") if cell.strip()] for row in rows)
    return columns, {name: dict(zip(columns, values, strict=True)) for name, *values in cells}


def check(where, part, error=None, **words):
    """Raise unless a part can be used somewhere.

    Parameters
    ----------
    where, part : str
        A column and a row of the table.
    error : type, default=None
        The exception; None is a CPUOnlyError of what a GPU lacks, and else a ValueError.
    **words
        Those that the error has in braces.
    """
    if table()[1][part][where] in ("yes", "-"):
        return
    text = ERRORS[where, part].format(**words)
    text += "" if text.endswith(".") else _ENDS[where]
    raise (error or (CPUOnlyError if where == "GPU" else ValueError))(text)
