"""Tests of the downloads, from a server on this machine: none of them needs the internet."""

import hashlib
import io
import threading
import zipfile
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from scipy.sparse import csr_array

from freqfm.datasets import fetch, fetch_gowalla, fetch_movielens

RATINGS = [
    # user, item, rating, timestamp
    (7, 30, 5, 978300760),
    (7, 10, 3, 978302109),
    (2, 30, 1, 978301968),
    (9, 10, 4, 978300275),
    (9, 20, 4, 978824291),
]
TITLES = {20: "Amélie (2001)", 10: 'One: "Two", Three (1995)', 40: "Never Rated", 30: "Heat"}

X_EXPECTED = [[0, 0, 1], [3, 0, 5], [4, 4, 0]]
TITLES_EXPECTED = [TITLES[10], TITLES[20], TITLES[30]]


class Server:
    """Files by their paths, and the paths that were asked for."""

    def __init__(self):
        self.files = {}
        self.truncated = set()
        self.requests = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(handler):
                self.requests.append(handler.path)
                body = self.files.get(handler.path)
                if body is None:
                    handler.send_error(404)
                    return
                handler.send_response(200)
                handler.send_header("Content-Length", str(len(body)))
                handler.end_headers()
                handler.wfile.write(
                    body[: len(body) // 2] if handler.path in self.truncated else body
                )

            def log_message(handler, *args):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}/"


@pytest.fixture
def server(monkeypatch):
    # A proxy of the machine must not be asked for 127.0.0.1.
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = Server()
    thread = threading.Thread(target=partial(server.http.serve_forever, poll_interval=0.01))
    thread.start()
    monkeypatch.setattr(fetch, "MOVIELENS_URL", server.url)
    monkeypatch.setattr(fetch, "GOWALLA_URL", server.url)
    yield server
    server.http.shutdown()
    thread.join()
    server.http.server_close()


def sha256(content):
    return hashlib.sha256(content).hexdigest()


def movielens_members(variant):
    """The text of the two members of an archive, in the format of the variant."""
    if variant == "100k":
        ratings = "".join("\t".join(map(str, row)) + "\n" for row in RATINGS)
        titles = "".join(
            f"{i}|{title}|01-Jan-1995||address|0|0|1|0|0|1\n" for i, title in TITLES.items()
        )
    elif variant == "1m":
        ratings = "".join("::".join(map(str, row)) + "\n" for row in RATINGS)
        titles = "".join(f"{i}::{title}::Drama|Comedy\n" for i, title in TITLES.items())
    else:
        ratings = "userId,movieId,rating,timestamp\n"
        ratings += "".join("{},{},{:.1f},{}\n".format(*row) for row in RATINGS)
        titles = "movieId,title,genres\r\n"
        for i, title in TITLES.items():
            quoted = '"' + title.replace('"', '""') + '"' if "," in title else title
            titles += f"{i},{quoted},Drama\r\n"
    return ratings, titles


GENRES_EXPECTED = {"100k": ("Adventure", "Comedy"), "1m": ("Drama", "Comedy")}


def serve_movielens(server, monkeypatch, variant, more=None, leave_out=()):
    """Put an archive on the server and make its checksum the expected one."""
    folder, _, layout = fetch.MOVIELENS[variant]
    names = [f"{folder}/{layout.ratings}", f"{folder}/{layout.titles}"]
    members = dict(zip(names, movielens_members(variant), strict=True)) | (more or {})
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in members.items():
            if name not in leave_out:
                archive.writestr(name, text.encode(layout.encoding))
    return serve_archive(server, monkeypatch, variant, buffer.getvalue())


def serve_archive(server, monkeypatch, variant, content):
    folder, _, layout = fetch.MOVIELENS[variant]
    server.files[f"/{folder}.zip"] = content
    monkeypatch.setitem(fetch.MOVIELENS, variant, (folder, sha256(content), layout))
    return content


GOWALLA = {"train.txt": b"0 3 1\n1 0\n2 1 3\n", "test.txt": b"0 0\n1 4 2\n3 1\n"}


def serve_gowalla(server, monkeypatch):
    for name, content in GOWALLA.items():
        server.files["/" + name] = content
        monkeypatch.setitem(fetch.GOWALLA_SHA256, name, sha256(content))


def assert_canonical(X):
    assert isinstance(X, csr_array) and X.dtype == np.float32 and X.indices.dtype == np.int32
    assert csr_array((X.data, X.indices, X.indptr), shape=X.shape).has_canonical_format


# fetch_movielens


@pytest.mark.parametrize("variant", list(fetch.MOVIELENS))
def test_movielens_bunch(server, monkeypatch, tmp_path, variant):
    serve_movielens(server, monkeypatch, variant)
    bunch = fetch_movielens(variant, data_home=tmp_path)
    assert_canonical(bunch.X)
    assert bunch.X.toarray().tolist() == X_EXPECTED
    assert bunch.user_ids.tolist() == [2, 7, 9] and bunch.user_ids.dtype == np.int64
    assert bunch.item_ids.tolist() == [10, 20, 30] and bunch.item_ids.dtype == np.int64
    assert bunch.titles.tolist() == TITLES_EXPECTED and bunch.titles.dtype == object
    assert bunch.genres.tolist() == [GENRES_EXPECTED.get(variant, ("Drama",))] * 3
    assert bunch.user_indices.tolist() == [1, 1, 0, 2, 2] and bunch.user_indices.dtype == np.int32
    assert bunch.item_indices.tolist() == [2, 0, 2, 0, 1] and bunch.item_indices.dtype == np.int32
    assert bunch.ratings.tolist() == [5, 3, 1, 4, 4] and bunch.ratings.dtype == np.float32
    assert bunch.timestamps.tolist() == [row[3] for row in RATINGS]
    assert bunch.timestamps.dtype == np.int64
    assert bunch.DESCR.startswith(f"MovieLens {variant}\n")


def test_movielens_half_stars(server, monkeypatch, tmp_path):
    monkeypatch.setitem(globals(), "RATINGS", [(1, 10, 0.5, 1), (1, 20, 4.5, 2)])
    serve_movielens(server, monkeypatch, "25m")
    bunch = fetch_movielens("25m", data_home=tmp_path)
    assert bunch.X.toarray().tolist() == [[0.5, 4.5]]


def test_movielens_min_rating(server, monkeypatch, tmp_path):
    serve_movielens(server, monkeypatch, "1m")
    bunch = fetch_movielens(min_rating=4, data_home=tmp_path)
    assert_canonical(bunch.X)
    # The shape is that of all ratings: the first user has no clicks left.
    assert bunch.X.toarray().tolist() == [[0, 0, 0], [0, 0, 1], [1, 1, 0]]
    assert bunch.ratings.tolist() == [5, 3, 1, 4, 4]
    assert fetch_movielens(min_rating=5.5, data_home=tmp_path).X.nnz == 0


def test_movielens_is_downloaded_once(server, monkeypatch, tmp_path):
    content = serve_movielens(server, monkeypatch, "1m")
    fetch_movielens(data_home=tmp_path)
    assert server.requests == ["/ml-1m.zip"]
    assert (tmp_path / "movielens" / "ml-1m.zip").read_bytes() == content
    bunch = fetch_movielens(data_home=str(tmp_path))
    offline = fetch_movielens(data_home=tmp_path, download_if_missing=False)
    assert server.requests == ["/ml-1m.zip"]
    assert bunch.X.toarray().tolist() == offline.X.toarray().tolist() == X_EXPECTED
    assert [path.name for path in (tmp_path / "movielens").iterdir()] == ["ml-1m.zip"]


def test_movielens_uses_the_data_home_of_sklearn(server, monkeypatch, tmp_path):
    serve_movielens(server, monkeypatch, "100k")
    monkeypatch.setenv("SCIKIT_LEARN_DATA", str(tmp_path / "home"))
    fetch_movielens("100k")
    assert (tmp_path / "home" / "movielens" / "ml-100k.zip").is_file()


def test_movielens_wrong_checksum_is_not_kept(server, monkeypatch, tmp_path):
    serve_movielens(server, monkeypatch, "1m")
    server.files["/ml-1m.zip"] += b"more"
    with pytest.raises(OSError, match=r"ml-1m.zip could not be downloaded to .*SHA256 checksum"):
        fetch_movielens(data_home=tmp_path, delay=0)
    assert list((tmp_path / "movielens").iterdir()) == []


@pytest.mark.filterwarnings("ignore:Retry downloading")
def test_movielens_truncated_download_is_not_kept(server, monkeypatch, tmp_path):
    serve_movielens(server, monkeypatch, "1m")
    server.truncated.add("/ml-1m.zip")
    with pytest.raises(OSError, match=r"could not be downloaded .*retrieval incomplete"):
        fetch_movielens(data_home=tmp_path, n_retries=2, delay=0)
    assert len(server.requests) == 3
    assert list((tmp_path / "movielens").iterdir()) == []
    server.truncated.clear()
    assert fetch_movielens(data_home=tmp_path).X.nnz == 5


def test_movielens_missing_on_the_server(server, tmp_path):
    with pytest.raises(OSError, match=r"ml-1m.zip could not be downloaded .*404.*; check the conn"):
        fetch_movielens(data_home=tmp_path, n_retries=0)
    assert len(server.requests) == 1
    assert list((tmp_path / "movielens").iterdir()) == []


def test_movielens_without_a_server(server, monkeypatch, tmp_path):
    # Nothing listens at the port of a server that was closed.
    closed = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    closed.server_close()
    monkeypatch.setattr(fetch, "MOVIELENS_URL", f"http://127.0.0.1:{closed.server_address[1]}/")
    with pytest.raises(OSError, match="could not be downloaded"):
        fetch_movielens(data_home=tmp_path, n_retries=0)


def test_movielens_not_downloaded_unless_asked(server, monkeypatch, tmp_path):
    content = serve_movielens(server, monkeypatch, "1m")
    with pytest.raises(OSError, match=r"ml-1m.zip is missing and download_if_missing is False"):
        fetch_movielens(data_home=tmp_path, download_if_missing=False)
    path = tmp_path / "movielens" / "ml-1m.zip"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content[:-1])
    with pytest.raises(OSError, match=r"by its SHA-256 checksum and download_if_missing is False"):
        fetch_movielens(data_home=tmp_path, download_if_missing=False)
    assert server.requests == [] and path.read_bytes() == content[:-1]


@pytest.mark.filterwarnings("ignore:SHA256 checksum of existing")
def test_movielens_damaged_cache_is_replaced(server, monkeypatch, tmp_path):
    content = serve_movielens(server, monkeypatch, "1m")
    path = tmp_path / "movielens" / "ml-1m.zip"
    path.parent.mkdir()
    path.write_bytes(b"damaged")
    assert fetch_movielens(data_home=tmp_path).X.nnz == 5
    assert path.read_bytes() == content


def test_movielens_archive_writes_nothing(server, monkeypatch, tmp_path):
    home = tmp_path / "one" / "two"
    evil = {"../../evil.txt": "x", "/evil.txt": "x", "ml-1m/../../evil.txt": "x"}
    serve_movielens(server, monkeypatch, "1m", more=evil)
    assert fetch_movielens(data_home=home).X.nnz == 5
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files == [home / "movielens" / "ml-1m.zip"]


@pytest.mark.parametrize(
    ("more", "leave_out", "message"),
    [
        ({}, ["ml-1m/ratings.dat"], "There is no item named 'ml-1m/ratings.dat'"),
        ({"../ml-1m/movies.dat": "x"}, ["ml-1m/movies.dat"], "There is no item named"),
        ({"ml-1m/ratings.dat": "1::2::three::4\n"}, [], "could not convert string 'three'"),
        ({"ml-1m/movies.dat": "10::Ten::Drama\n"}, [], r"20\)"),
    ],
)
def test_movielens_unexpected_archive(server, monkeypatch, tmp_path, more, leave_out, message):
    serve_movielens(server, monkeypatch, "1m", more=more, leave_out=leave_out)
    with pytest.raises(OSError, match=rf"is not the archive of MovieLens 1m \(.*{message}"):
        fetch_movielens(data_home=tmp_path)


def test_movielens_not_an_archive(server, monkeypatch, tmp_path):
    serve_archive(server, monkeypatch, "1m", b"<html>moved</html>")
    with pytest.raises(OSError, match="is not the archive of MovieLens 1m .*not a zip file"):
        fetch_movielens(data_home=tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"variant": "2m"}, "variant is '2m'; pass one of"),
        ({"min_rating": "4"}, "min_rating='4' must be a finite number"),
        ({"min_rating": np.nan}, "min_rating=nan"),
        ({"n_retries": -1}, "n_retries=-1 must be an integer of at least 0"),
        ({"n_retries": 1.5}, "n_retries=1.5"),
        ({"delay": -1}, "delay=-1 must be a finite number from 0"),
        ({"delay": None}, "delay=None"),
    ],
)
def test_fetch_movielens_rejects(server, tmp_path, arguments, message):
    with pytest.raises(ValueError, match=message):
        fetch_movielens(**{"data_home": tmp_path, **arguments})
    assert server.requests == []


# fetch_gowalla


def test_gowalla_bunch(server, monkeypatch, tmp_path):
    serve_gowalla(server, monkeypatch)
    bunch = fetch_gowalla(data_home=tmp_path)
    for X in (bunch.train, bunch.test):
        assert_canonical(X)
    # Item 4 and user 3 are in the test part only.
    assert bunch.train.toarray().tolist() == [
        [0, 1, 0, 1, 0],
        [1, 0, 0, 0, 0],
        [0, 1, 0, 1, 0],
        [0, 0, 0, 0, 0],
    ]
    assert bunch.test.toarray().tolist() == [
        [1, 0, 0, 0, 0],
        [0, 0, 1, 0, 1],
        [0, 0, 0, 0, 0],
        [0, 1, 0, 0, 0],
    ]
    assert bunch.DESCR.startswith("Gowalla") and set(bunch) == {"train", "test", "DESCR"}


def test_gowalla_is_downloaded_once(server, monkeypatch, tmp_path):
    serve_gowalla(server, monkeypatch)
    fetch_gowalla(data_home=tmp_path)
    fetch_gowalla(data_home=tmp_path)
    fetch_gowalla(data_home=tmp_path, download_if_missing=False)
    assert server.requests == ["/train.txt", "/test.txt"]
    assert sorted(path.name for path in (tmp_path / "gowalla").iterdir()) == sorted(GOWALLA)


@pytest.mark.filterwarnings("ignore:Retry downloading")
def test_gowalla_bad_downloads_are_not_kept(server, monkeypatch, tmp_path):
    serve_gowalla(server, monkeypatch)
    server.files["/test.txt"] = b"0 1\n"
    with pytest.raises(OSError, match=r"test.txt could not be downloaded .*SHA256 checksum"):
        fetch_gowalla(data_home=tmp_path)
    assert [path.name for path in (tmp_path / "gowalla").iterdir()] == ["train.txt"]
    server.files["/test.txt"] = GOWALLA["test.txt"]
    server.truncated.add("/test.txt")
    with pytest.raises(OSError, match=r"test.txt could not be downloaded .*incomplete"):
        fetch_gowalla(data_home=tmp_path, n_retries=1, delay=0)
    assert [path.name for path in (tmp_path / "gowalla").iterdir()] == ["train.txt"]


def test_gowalla_not_downloaded_unless_asked(server, tmp_path):
    with pytest.raises(OSError, match=r"train.txt is missing and download_if_missing is False"):
        fetch_gowalla(data_home=tmp_path, download_if_missing=False)
    assert server.requests == []


def test_fetch_gowalla_rejects(server, tmp_path):
    with pytest.raises(ValueError, match="n_retries=True must be an integer"):
        fetch_gowalla(data_home=tmp_path, n_retries=True)
    assert server.requests == []


# The real addresses and checksums


def test_addresses_and_checksums_are_well_formed():
    checksums = [sha256 for _, sha256, _ in fetch.MOVIELENS.values()]
    checksums += list(fetch.GOWALLA_SHA256.values())
    assert len(set(checksums)) == len(checksums)
    for checksum in checksums:
        assert len(checksum) == 64 and int(checksum, 16)
    for url in (fetch.MOVIELENS_URL, fetch.GOWALLA_URL):
        assert url.startswith("https://") and url.endswith("/")
