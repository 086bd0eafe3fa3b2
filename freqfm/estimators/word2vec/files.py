"""Files of word vectors in the format of the original word2vec program, text or binary."""

import gzip
import os

import numpy as np

__all__ = ["read_vectors", "write_vectors"]


def _open(path, mode):
    path = os.fspath(path)
    return gzip.open(path, mode) if path.endswith(".gz") else open(path, mode)


def write_vectors(path, tokens, vectors, binary):
    """Write vectors, one for each token.

    Raises
    ------
    ValueError
        If the format cannot hold a token; nothing is written then.
    """
    names = [str(token) for token in tokens]
    for name in names:
        if not name or name.split() != [name]:
            raise ValueError(
                f"the token {name!r} is empty or holds white space, by which files of word2vec "
                f"separate tokens from numbers; store the model with pickle or skops instead."
            )
    with _open(path, "wb") as file:
        file.write(f"{len(names)} {vectors.shape[1]}\n".encode())
        for name, row in zip(names, vectors.astype("<f4", copy=False), strict=True):
            # Nine digits tell apart all numbers of float32.
            numbers = row.tobytes() if binary else " ".join(f"{x:.9g}" for x in row).encode()
            file.write(name.encode() + b" " + numbers + b"\n")


def read_vectors(path, binary):
    """Return the tokens of a file, a list of strings, and their vectors.

    Raises
    ------
    ValueError
        If the file does not have this format; the message says where.
    """
    with _open(path, "rb") as file:
        header = file.readline(100).split()
        if len(header) != 2 or not all(part.isdigit() for part in header):
            raise _error(path, "does not begin with the numbers of tokens and of components")
        n, width = map(int, header)
        if n < 1 or width < 1:
            raise _error(path, f"is said to hold {n} vectors of {width} numbers")
        read_row = _read_binary if binary else _read_text
        tokens, rows = [], []
        for i in range(n):
            try:
                name, row = read_row(file, width)
                token = name.decode()
            except ValueError as error:
                raise _error(path, f"cannot be read at vector {i + 1} of {n}: {error}") from None
            tokens.append(token)
            rows.append(row)
        if file.read().strip():
            raise _error(path, f"holds more than the {n} vectors that it is said to hold")
    if len(set(tokens)) < n:
        raise _error(path, "holds a token twice")
    vectors = np.array(rows, dtype=np.float32)
    if not np.isfinite(vectors).all():
        raise _error(path, "holds numbers that are not finite in float32")
    return tokens, vectors


def _read_text(file, width):
    name, *numbers = file.readline().rstrip().split(b" ") or [b""]
    if not name or len(numbers) != width:
        raise ValueError(f"a token and {width} numbers are expected")
    return name, np.array([float(number) for number in numbers], dtype=np.float32)


def _read_binary(file, width):
    name = bytearray()
    while (byte := file.read(1)) != b" ":
        if not byte or len(name) > 10_000:
            raise ValueError("a token that ends with a space is expected")
        # Some programs end a row with a line break.
        if byte != b"\n":
            name += byte
    row = np.frombuffer(file.read(4 * width), dtype="<f4")
    if not name or len(row) != width:
        raise ValueError(f"a token and {width} numbers of 4 bytes are expected")
    return bytes(name), row


def _error(path, found):
    return ValueError(
        f"{os.fspath(path)} {found}; it is not a file of word vectors in the format of word2vec, "
        f"or it was written with the other value of binary."
    )
