"""The faults that fuzz.py puts into valid arguments, one each, and the expected outcome.

A function per kind of argument takes a random generator, the good value and options. It returns
the faulty value and an expectation: REFUSE (it must not be accepted), SAME (it means the same in
another form, so it is refused or the answer is the same) or ANY.
"""

import gzip
import io
import math
import zipfile
from numbers import Integral, Real

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
from scipy import sparse
from sklearn.utils._param_validation import make_constraint

from freqfm import initializers, losses, optimizers, samplers, temperatures

REFUSE, SAME, ANY = "refuse", "same", "any"
NAN, INF = math.nan, math.inf

STRANGE = ["x", "", "3", b"x", [], [1], {}, (0, 1), 1j, object, print, np.array([0.5, 2])]
STRANGE += [np.datetime64(0, "D"), ["a", 1], [[1], [2, 3]]]
GARBAGE = [NAN, INF, -INF, -1, 0, 0.5, 2, 3.7, 1e-300, 1e300, 1e39, 10**12, 2**70, None, True]
GARBAGE += [np.float32(0.5), np.array(3), np.bool_(True), np.int8(2), *STRANGE]

# Any number is valid for these parameters: the work grows with it.
WORK = {"max_iter", "n_candidates", "n_iter_no_change", "kl_warm_up", "n_samples", "warm_up"}

AXES = {
    "optimizer": optimizers.OPTIMIZERS,
    "loss": losses.RANKING_LOSSES,
    "negative_sampler": samplers.SAMPLERS,
    "temperature": temperatures.TEMPERATURES,
    "init": initializers.INITIALIZERS,
}
SAMPLERS = [
    *(samplers.Uniform, samplers.Popularity, samplers.InBatch, samplers.Full, samplers.MIDX),
    *(samplers.Kernel, samplers.DNS, samplers.SelfAdversarial, samplers.AOBPR, samplers.PRIS),
]
COMPONENTS = [
    *optimizers.OPTIMIZERS.values(),
    *losses.RANKING_LOSSES.values(),
    *initializers.INITIALIZERS.values(),
    *SAMPLERS,
    *temperatures.TEMPERATURES.values(),
]
CHOICES = {
    "similarity": ["cosine", "dot", ("auto", "cosine"), ("cosine", "dot")],
    "early_stopping": [True],
    "weight_decay": [0.1, optimizers.WeightDecay(0.1, scope="batch")],
    "n_negatives": [1, 3, 50],
    "user_dropout": [0.5],
    "batch_size": [1, 5],
    "n_jobs": [2],
    "rank_sharing": ["truncate"],
    "class_weight": ["balanced"],
    "hidden_layer_sizes": [(), (3, 3)],
    "decoder_layer_sizes": [(3,)],
    "activation": ["relu", "identity"],
    "warm_start": [True],
}


def pick(rng, options):
    """Return one of a sequence, as it is."""
    return options[int(rng.integers(len(options)))]


def choose(rng, same=(), refuse=(), other=()):
    """Return one of three sequences of values, and its expectation."""
    options = [(value, SAME) for value in same] + [(value, REFUSE) for value in refuse]
    return pick(rng, options + [(value, ANY) for value in other])


def lenient(fault):
    """Return a fault that may be accepted, as long as the answer has the right form."""
    return lambda rng, value, **options: (fault(rng, value, **options)[0], ANY)


def optional_matrix(rng, A, **options):
    """A matrix that may be left out."""
    value, expect = matrix(rng, A, **options)
    return value, ANY if value is None else expect


def matrix(rng, A, *, rows=False, columns=True, positive=False, largest=3e38, sparse_only=False):
    """Users x items, or rows x features.

    ``rows`` and ``columns`` say whether their numbers are fixed by another argument; ``largest`` is
    the largest number that may be accepted.
    """
    A = A.toarray() if sparse.issparse(A) else A
    kinds = [_types, _containers, _formats, _structures][2 * sparse_only :]
    fault = pick(rng, [_values, _shapes, *kinds])
    if fault in kinds:
        return fault(rng, A)
    if fault is _values:
        value, expect = _values(rng, A, positive, largest)
    else:
        value, expect = _shapes(rng, A, rows, columns)
    if value.ndim == 2 and (sparse_only or rng.random() < 0.5):
        value = sparse.csr_array(value)
    return value, expect


def _values(rng, A, positive, largest):
    A = A.copy()
    bad = pick(rng, [NAN, INF, -INF, 1e39, -1.0, 0.0, 1e-300, 1e38, -1e38])
    A[rng.integers(len(A)), rng.integers(A.shape[1])] = bad
    A *= bad != 0 or rng.random() < 0.5
    return A, REFUSE if (largest < INF and not abs(bad) <= largest) or (
        positive and bad < 0
    ) else ANY


def _shapes(rng, A, rows, columns):
    of_rows, of_columns = (
        [A[:0], A[:1], np.vstack([A, A])],
        [A[:, :1], A[:, :-1], np.hstack([A, A])],
    )
    return choose(
        rng,
        refuse=[A[0], A[None], A.ravel(), A[:, :0], np.array(1.0), np.zeros((0, 0))]
        + of_rows * rows + of_columns * columns + [A.T] * (rows or columns),
        other=of_rows * (not rows) + of_columns * (not columns) + [A.T] * (not (rows or columns)),
    )  # fmt: skip


def _types(rng, A):
    words, whole = A.astype(object), A.astype(np.int64)
    words[0, 0] = pick(rng, ["a", None, [1], 1j, 10**400])
    same = [object, np.float16, np.longdouble, np.int8, ">f8", np.uint64]
    refuse = [
        words,
        whole.astype("M8[D]"),
        whole.astype("m8[s]"),
        A.astype(complex),
        A.astype("V8"),
    ]
    return choose(rng, [A.astype(t) for t in same], refuse, [A.astype(bool), A.astype(str)])


def _containers(rng, A):
    read_only, ragged, frame = A.copy(), A.tolist(), pd.DataFrame(A)
    read_only.flags.writeable = False
    ragged[0].pop()
    table = pa.table({str(i): column for i, column in enumerate(A.T)})
    forms = [A.tolist(), tuple(map(tuple, A)), np.asfortranarray(A), A.repeat(2, axis=1)[:, ::2]]
    frames = [frame, pl.DataFrame(A), frame.astype(pd.SparseDtype(float, 0)), frame.astype("Int64")]
    missing = [frame.replace(1, pd.NA), frame.astype("Int64").replace(1, pd.NA)]
    return choose(
        rng,
        same=[*forms, *frames, read_only],
        refuse=[*missing, iter(A), ragged, frame[0], *STRANGE, object(), [[]], None],
        other=[table, np.ma.masked_array(A, A > 1), np.asmatrix(A)],
    )


def _formats(rng, A):
    container = pick(rng, ["array", "matrix"])
    formats = ["csr", "csc", "coo", "bsr", "lil", "dok", "dia"]
    X = [getattr(sparse, f"{name}_{container}")(A) for name in formats]
    types = [pick(rng, X).astype(t) for t in (np.float64, np.int64, np.longdouble, np.int8)]
    return choose(rng, [*X, *types], [X[0].astype(complex), sparse.coo_array(A[0])], [X[0].T])


def _structures(rng, A):
    """A sparse matrix whose arrays were changed."""
    name, X = pick(rng, ["indptr", "indices", "data", "coords", "flags", "halves"]), None
    X = getattr(sparse, f"{pick(rng, ['csr', 'csc', 'bsr'])}_{pick(rng, ['array', 'matrix'])}")(A)
    X.indices, X.indptr = X.indices.astype(np.int64), X.indptr.astype(np.int64)
    if name == "coords":
        X = sparse.coo_array(A)
        coords = [c.astype(np.int64) for c in X.coords]
        axis = int(rng.integers(2))
        coords[axis][rng.integers(X.nnz)] = pick(rng, [-1, A.shape[axis], 2**40])
        X.coords = tuple(coords)
    elif name == "flags":
        # Indices in falling order, and flags that deny it.
        for start, end in zip(X.indptr[:-1], X.indptr[1:], strict=True):
            for array in (X.indices, X.data):
                array[start:end] = array[start:end][::-1].copy()
        X.has_sorted_indices = X.has_canonical_format = True
    elif name == "halves":
        X.data, X.indices, X.indptr = (X.data / 2).repeat(2, 0), X.indices.repeat(2), X.indptr * 2
    else:
        array = getattr(X, name)
        put = array.copy()
        put[rng.integers(len(put))] = NAN if name == "data" else pick(rng, [-1, 10**6, 2**40])
        some = [put, array[:-1], array[:0]]
        if name != "data":
            some += [array + 1000, array + 0.5, array[:, None]]
        setattr(X, name, pick(rng, some))
    return X, SAME if name in ("flags", "halves") else REFUSE


def matrix_or_table(rng, A):
    """A matrix for functions that take lists and DataFrames as tables of interactions."""
    value, expect = matrix(rng, A, columns=False, largest=1e308)
    table = isinstance(value, (list, tuple)) or hasattr(value, "columns")
    objects = getattr(getattr(value, "dtype", None), "kind", "O") in "OUST"
    if sparse.issparse(value) and value.ndim == 2 and 0 in value.shape:
        return value, ANY  # of nothing, nothing is held out
    # In a table, a number beyond those of NumPy is an id.
    huge = isinstance(value, np.ndarray) and value.dtype == object and 10**400 in value.ravel()
    return value, ANY if huge or (expect is SAME and (table or objects)) else expect


def vector(rng, v, *, positive=False, labels=False, optional=False, largest=3e38):
    """Targets, weights or counts: a number, or label, for each row of something else."""
    v = np.asarray(v)
    changed, words, bad = (
        v.astype(float),
        v.astype(object),
        pick(rng, [NAN, INF, -1.0, 1e39, 1e300]),
    )
    changed[rng.integers(len(v))] = bad
    words[0] = pick(rng, ["a", None, [1], 1j, b"x"])
    refuse = not bad < INF or (not labels and bad > largest) or (positive and bad < 0)
    text = [np.resize(["b", "a"], len(v)), v.astype("M8[s]")]
    return choose(
        rng,
        [v.tolist(), v.astype(object), pd.Series(v), pl.Series(v.tolist()), pa.array(v)],
        [changed] * 3 * refuse + text * (not labels) + [None] * (not optional)
        + [v[:-1], np.append(v, v), v[:0], np.column_stack([v, v]), v[None, None], words, iter(v)]
        + [v.astype(complex), sparse.csr_array(v[None]), "x", {}, object(), print],
        [changed] * (not refuse) + text * labels + [None] * optional
        + [v[0], v * 0, v.astype(str), v[:, None]],
    )  # fmt: skip


def ids(rng, v, *, n, optional=False):
    """Numbers of users or items, of which there are ``n``."""
    single, v = np.ndim(v) == 0, np.atleast_1d(v)
    strange = v.copy()
    strange[0] = pick(rng, [-1, -2, n, n + 5, 2**31, 2**40])
    refuse = [v + 0.5, v.astype(str), v.astype(complex), v.astype("M8[s]"), [[1, 2], [1]]]
    refuse += [strange, np.append(v, NAN), v[None], v[None, None]]
    other = [v.astype(object), v.astype(float), v.astype(bool), v[:1], v[0], float(v[0])]
    if single:
        refuse, same = [x[0] for x in refuse], [np.int64(v[0]), np.uint8(v[0]), np.array(v[0])]
        return choose(
            rng, same, [*refuse, "x", {}, print, NAN, 2**70, None], [x[0] for x in other[:3]]
        )
    other += [np.append(v, v), v[:0], [], iter(v.tolist()), {*v.tolist()}] + [None] * optional
    refuse += [{}, object(), print, "x", NAN, 2**70, 1j] + [None] * (not optional)
    return choose(rng, [v.tolist(), tuple(v), v.astype(np.uint64), pd.Series(v)], refuse, other)


def table_ids(rng, value, *, nested=False):
    """Strings that name users or items; ``nested``, where lists of them are allowed too."""
    same = [np.array(value), tuple(value), np.array(value, dtype=object), pd.Series(value)]
    refuse = [[*value, None], [*value, NAN], [[1], 2], 3, 2.5, {}, object(), b"x", 1j, print]
    other = [[*value, 3], [*value, "nobody"], value * 2, [], value[0]]
    return choose(rng, same, refuse + [[value]] * (not nested), other + [[value]] * nested)


def token(rng, value):
    """A token of a vocabulary of strings."""
    same = [np.str_(value), [value]]
    return choose(rng, same, [*GARBAGE, "nobody", None, [value, "nobody"]])


def documents(rng, value, *, empty=False):
    """Documents of string tokens; ``empty`` where there may be none, or none with known tokens."""
    joined = [" ".join(tokens) for tokens in value]
    same = [tuple(value), iter(value), joined, np.array(joined), pd.Series(joined)]
    same += [[np.array(tokens, dtype=object) for tokens in value], [*map(tuple, value)]]
    refuse = [None, 3, 0.5, print, object(), b"x", "a b", {}, {"a"}, pd.DataFrame({"a": joined})]
    refuse += [
        sparse.csr_array([[1]]),
        [*value, None],
        [*value, 3],
        [*value, {"a": 1}],
        [*value, b"x"],
    ]
    refuse += [[*value, [*value[0], bad]] for bad in (None, 0.5, [1], b"x", True, {})]
    nothing = [[], [[]], [[], []], iter([])]
    other = [value[:1], value[::-1], value * 2, [[1, 2], [2, 1]], ["é \0 x", *joined]]
    other += [[*value, [3, 4]], *nothing * empty]
    return choose(rng, same, refuse + nothing * (not empty), other)


def table_lists(rng, value):
    """A list of ids for each of two users."""
    same = [tuple(map(tuple, value)), [np.array(ids) for ids in value]]
    refuse = [value[:1], value * 2, [[*value[0], None], value[1]], [value, value], [value[0], None]]
    refuse += [[value[0], [[1], 2]], [value[0], {}], {}, 3, object(), print, [3, value[1]]]
    return choose(rng, same, refuse, [value[0], "x", [], [[], value[1]], [["nobody"], value[0]]])


def count(rng, value, *, optional=False, least=1):
    """An integer of at least ``least``."""
    bad = pick(rng, GARBAGE)
    good = isinstance(bad, Integral) and not isinstance(bad, bool) and bad >= least
    return bad, ANY if good or (optional and bad is None) else REFUSE


def fraction(rng, value):
    """A number strictly between 0 and 1."""
    bad = pick(rng, GARBAGE)
    return bad, ANY if isinstance(bad, (float, np.floating)) and 0 < bad < 1 else REFUSE


def flag(rng, value):
    """A boolean; numbers may be accepted or refused."""
    bad = pick(rng, GARBAGE)
    return bad, REFUSE if any(bad is x for x in STRANGE) else ANY


def anything(rng, value, *, good=()):
    """A value of any other type."""
    bad = pick(rng, GARBAGE)
    whole = isinstance(bad, Integral)
    good = [x for x in good if type(x) is type(bad) or (whole and isinstance(x, Integral))]
    return bad, ANY if any(bad == x for x in good) else REFUSE


def params(rng, value, *, cls, fixed=()):
    """Parameters of a constructor: other choices for a few of them, or garbage for one."""
    constraints = cls._parameter_constraints
    axes, kind = [name for name in AXES if name in constraints], rng.random()
    if kind < 0.03:
        return {**value, "learning_ratee": 1}, REFUSE
    if kind < 0.4 and axes:
        names = {pick(rng, [*axes, *CHOICES]) for _ in range(3)} & {*constraints} - {*fixed}
        others = {n: pick(rng, CHOICES.get(n) or list(AXES[n])) for n in sorted(names)}
        return {**value, **others}, ANY
    if kind < 0.7 and axes:
        component = pick(rng, COMPONENTS)
        component = component(0.1) if component is temperatures.FixedTemperature else component()
        bad, expect = _garbage(rng, component)
        return {**value, pick(rng, axes): component.set_params(**bad)}, expect
    bad, expect = _garbage(rng, cls, fixed)
    return {**value, **bad}, expect


def _garbage(rng, owner, fixed=()):
    """Return a parameter, a value that may be invalid, and whether it is."""
    constraints = owner._parameter_constraints
    names = [name for name in constraints if name not in fixed]
    if not names:
        return {}, ANY
    name, bad = pick(rng, names), pick(rng, GARBAGE)
    if constraints[name] == "no_validation":
        return {name: bad}, ANY if bad is None or isinstance(bad, Real) else REFUSE
    if not any(make_constraint(c).is_satisfied_by(bad) for c in constraints[name]):
        return {name: bad}, REFUSE
    return {name: 2 if name in WORK and isinstance(bad, Integral) and bad > 2 else bad}, ANY


def table_kept(rng, rows):
    """A table for functions that return one of the same kind, and do not look at values."""
    value, expect = table(rng, rows, valued=False)
    return value, ANY if expect is SAME or sparse.issparse(value) else expect


def table(rng, rows, *, valued=True):
    """Interactions of (user, item, value, time) as a list of tuples; values may be ignored."""
    frame = pd.DataFrame(rows, columns=["user", "item", "value", "time"])
    role, codes = pick(rng, ["user", "item"]), frame["user"].factorize()[0]
    at, column = int(rng.integers(len(rows))), pick(rng, [0, 1, 2][: 2 + valued])
    broken, mixed = frame.astype(object).to_numpy(), frame.astype(object).to_numpy()
    broken[at, column] = pick(rng, [None, NAN, [1], {}, 1j])
    mixed[at, column] = pick(rng, [3, 2.5, (1, 2), b"x", True, 10**30])
    bad = pick(rng, [NAN, INF, -1.0, 1e39, 0.0])
    revalued = frame.assign(value=frame["value"].where(frame.index != at, bad))
    kinds = [codes.astype(t) for t in ("int8", "uint64", "f4", "f8", "M8[D]", complex, "S5", bool)]
    kinds += [pd.Categorical(frame[role]), codes + 2**60, pd.array(codes, dtype="Int64")]
    kinds += [frame[role] + "\0", frame[role].astype("string"), [(c,) for c in codes]]
    others = [frame.assign(**{role: kind}) for kind in kinds]
    names = [
        [1, 2, 3, 4],
        [*"abcd"],
        ["user", "user", "item", "value"],
        ["time", "user", "item", "x"],
    ]
    others += [frame.set_axis(n, axis=1) for n in names]
    others += [frame.set_axis(pd.MultiIndex.from_product([[0, 1], ["a", "b"]]), axis=1)]
    shuffled = frame[["time", "item", "value", "user"]]
    frames = [pd.DataFrame, pl.from_pandas, pa.Table.from_pandas, pd.DataFrame.to_numpy]
    forms = [np.array(rows, dtype=object), tuple(rows), [list(row) for row in rows]]
    return choose(
        rng,
        [*forms, frame, shuffled, pl.from_pandas(shuffled), pa.Table.from_pandas(frame)],
        [broken, broken.tolist(), pd.DataFrame(broken, columns=frame.columns)]
        + [frame[:0], frame[["user"]], frame.to_numpy()[None]]
        + [iter(rows), frame.to_dict("list"), frame.to_dict("records"), sparse.csr_array(np.eye(3))]
        + [3, "x", [], [()], [[]], {}, object()]
        + [pick(rng, frames[:3])(revalued)] * 3 * (valued and not -1 <= bad < 1e39),
        [*others, pl.from_pandas(frame).lazy(), frame[:1], frame[["user", "item"]], mixed]
        + [frame.to_numpy().astype(str), mixed.tolist(), mixed.T, frame.to_records(index=False)]
        + [np.eye(3), ["ab", "cd"]]
        + [_or_none(pick(rng, frames), pick(rng, others))] * 10,
    )  # fmt: skip


def _or_none(function, value):
    """Return a DataFrame of another library, or None if it cannot hold this."""
    try:
        return function(value)
    except Exception:
        return None


def ranking(rng, value, *, n, rows=True):
    """Rankings: a matrix of items, -1 for none; ``rows`` says whether their number is fixed."""
    changed = value.copy()
    changed[0, 0] = bad = pick(rng, [-1, -2, n, 2**40, value[0, 1]])
    shapes = [value[0], value[None], value[:, :0], [[1], [2, 3]], *[value.T, value[1:]] * rows]
    types = [value.astype(t) for t in (float, str, bool, complex)]
    refuse = [*shapes, *types, sparse.csr_array(value), None, {}, "x", 3, object()]
    return choose(
        rng, [value.tolist()], [*refuse, *[changed] * int(bad != -1)], [value.astype(object)]
    )


TOKENS = b'nan inf -1 1e400 \0 \xef\xbb\xbf :: 0x10 99999999999999999999 4000000000 # " , \xff : '
TOKENS = [
    *TOKENS.split(),
    b"9" * 5000,
    "\u0663".encode(),
    b"1_0",
    b"1.5",
    b"300000000",
    b"\t",
    b"\r",
]


def content(rng, data):
    """Bytes of a file."""
    at, end = sorted(int(rng.integers(len(data))) for _ in range(2))
    flipped = bytes([data[at] ^ 1 << int(rng.integers(8))])
    packed, token = gzip.compress(data, mtime=0), pick(rng, [*TOKENS, b" ", b"\n\n"])
    with_token = [data[:at] + token + data[at + k :] for k in (0, 1)] + [token + data, token]
    with_token += [data.replace(pick(rng, [b" ", b"\t", b"\n"]), token, 1)]
    cuts = [data[:at], data[at:], data[:at] + data[end:], packed[:at], packed, b""]
    return choose(
        rng, other=[data[:at] + flipped + data[at + 1 :], data + data, *with_token, *cuts]
    )


def array(rng, value):
    """A learned attribute: of another shape, type or range."""
    if not isinstance(value, np.ndarray) or value.ndim == 0:
        return choose(rng, other=[None, -1, 0, 1, 5, 10**6, "x", 0.5, [], [value]])
    low = value.copy()
    if value.size and value.dtype.kind in "iu":
        low.flat[int(rng.integers(value.size))] = pick(rng, [-1, -(10**6), 10**6])
    types = [
        np.float64,
        np.int64 if value.dtype.kind in "biu" else np.float16,
        object,
        str,
        complex,
    ]
    other = [low, low, value[:-1], value[:0], np.append(value, value), np.concatenate([value] * 2)]
    other += [value.T, value[None], value[..., :-1], value.tolist(), None]
    same = [value.repeat(2, axis=-1)[..., ::2], np.asfortranarray(value)]
    return choose(rng, same, other=other + [_or_none(value.astype, t) for t in types])


def archive(rng, data):
    """A zip archive of arrays: broken, or whole and with one of its members changed."""
    if rng.random() < 0.3:
        return content(rng, data)
    result = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(result, "w") as new:
        target = pick(rng, old.namelist())
        for name in old.namelist():
            member = old.read(name)
            if name == target and name.endswith(".npy"):
                changed = array(rng, np.load(io.BytesIO(member)))[0]
                np.save(file := io.BytesIO(), _or_none(np.asarray, changed))
                member = file.getvalue()
            elif name == target:
                member = content(rng, member)[0]
            new.writestr(zipfile.ZipInfo(name), member)
    return result.getvalue(), ANY
