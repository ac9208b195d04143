"""Downloads from a server on this machine, without the internet."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import http.server
import io
import os
import random
import re
import shutil
import tarfile
import threading
from dataclasses import replace

import pytest
import requests

from dlguide.data import datasets, download, verification
from dlguide.errors import DataError, MissingComponentError, TransferError
from dlguide.files import CLONE, cached_data

DATA = random.Random(3).randbytes(300_000)
SHA256 = hashlib.sha256(DATA).hexdigest()


class Server:
    """A web server on this machine; each request takes the next behaviour, the last one stays."""

    def __init__(self) -> None:
        self.data: dict[str, bytes] = {"/file": DATA}
        self.behaviours: list[str] = ["well"]
        self.sent: list[int] = []  # bytes of each answer
        self.asked = 0
        self.stop = threading.Event()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                outer.answer(self)

            def log_message(self, *_):
                pass

        self.httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.httpd.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.httpd.server_port}/file"
        threading.Thread(target=self.httpd.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self.stop.set()
        self.httpd.shutdown()
        self.httpd.server_close()

    def answer(self, request: http.server.BaseHTTPRequestHandler) -> None:
        how = self.behaviours.pop(0) if len(self.behaviours) > 1 else self.behaviours[0]
        self.asked += 1
        data = self.data.get(request.path)
        if how == "silent":
            self.stop.wait(30)
            return
        if how == "endless":
            request.send_response(200)
            request.end_headers()
            self.sent.append(0)
            with contextlib.suppress(OSError):
                while self.sent[-1] < 400_000_000:
                    self.sent[-1] += request.wfile.write(bytes(1 << 16))
            return
        status = int(how) if how.isdigit() else 200 if data is not None else 404
        request.send_response(302 if how.startswith("/") or how.startswith("file:") else status)
        if how.startswith(("/", "file:")):
            request.send_header("Location", how)
        body = data if status == 200 and data and how in ("well", "cut", "other") else b""
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        if how == "cut":
            body = body[: len(body) // 2]
        request.wfile.write(body[::-1] if how == "other" else body)
        self.sent.append(len(body))
        request.close_connection = True


@pytest.fixture
def server(monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    server = Server()
    yield server
    server.close()


# --- one file ----------------------------------------------------------------------------------


def test_a_file_comes_whole_and_is_reported(server, tmp_path):
    calls = []
    path = tmp_path / "below" / "file"
    found = download.fetch_file(server.url, path, SHA256, progress=lambda *two: calls.append(two))
    assert found == path
    assert path.read_bytes() == DATA
    assert calls[-1] == (300_000, 300_000)
    assert os.listdir(path.parent) == ["file"]
    for known in (SHA256, None):
        assert download.fetch_file(server.url, path, known) == path
    assert server.asked == 1


def test_a_server_that_sends_more_than_was_declared_is_read_no_further(server, tmp_path):
    server.behaviours = ["endless"]
    with pytest.raises(TransferError, match=r"more than 300000 bytes. Nothing was kept"):
        download.fetch_file(server.url, tmp_path / "file", SHA256, nbytes=len(DATA))
    assert os.listdir(tmp_path) == []
    server.stop.wait(2)
    assert server.sent[-1] < 20_000_000  # what buffers hold


@pytest.mark.parametrize("status", ["400", "404", "503"])
def test_an_error_of_the_server_is_not_asked_for_again(status, server, tmp_path):
    server.behaviours = [status]
    with pytest.raises(TransferError, match=f"could not be downloaded: .*{status}") as error:
        download.fetch_file(server.url, tmp_path / "file", SHA256)
    assert server.asked == 1
    assert server.url in str(error.value)
    assert f"copy it to {tmp_path / 'file'}" in str(error.value)


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("500", "could not be downloaded: .*500"),
        ("cut", "could not be downloaded"),
        ("silent", "could not be downloaded: .*timed out"),
        ("other", "is not the file that was expected, with SHA-256"),
        ("file:///etc/passwd", "could not be downloaded"),
    ],
)
def test_a_file_that_cannot_be_had_leaves_what_was_there(how, text, server, tmp_path, monkeypatch):
    server.behaviours = [how]
    path = tmp_path / "file"
    monkeypatch.setattr(download, "_TIMEOUT_S", 0.2)
    for before in ([], ["file"]):
        with pytest.raises(TransferError, match=text) as error:
            download.fetch_file(server.url, path, SHA256)
        assert server.url in str(error.value)
        assert str(path) in str(error.value)
        assert os.listdir(tmp_path) == before
        path.write_bytes(b"damaged")
    server.behaviours = ["well"]
    download.fetch_file(server.url, path, SHA256)
    assert path.read_bytes() == DATA


@pytest.mark.parametrize(
    ("url", "there", "refused"),
    [
        ("https://data.example/a", "http://data.example/a", True),
        ("https://data.example/a", "https://other.example/a", False),
        ("http://data.example/a", "http://other.example/a", False),
    ],
)
def test_a_download_is_not_led_from_https_to_http(url, there, refused, monkeypatch, tmp_path):
    class Adapter(requests.adapters.BaseAdapter):
        def send(self, request, **_):
            reply = requests.Response()
            reply.status_code, reply.url, reply.request = 200, request.url, request
            reply.raw = io.BytesIO(b"abc")
            if request.url == url:
                reply.status_code = 302
                reply.headers["Location"] = there
            return reply

        def close(self):
            pass

    monkeypatch.setattr(requests.Session, "get_adapter", lambda self, url: Adapter())
    if refused:
        with pytest.raises(TransferError, match=r"leads to http://data\.example/a, without TLS"):
            download.fetch_file(url, tmp_path / "a")
        assert not list(tmp_path.iterdir())
    else:
        download.fetch_file(url, tmp_path / "a")
        assert (tmp_path / "a").read_bytes() == b"abc"


def test_a_disk_that_is_too_full_is_refused_before_the_download(server, tmp_path, monkeypatch):
    free = shutil.disk_usage(tmp_path)._replace(free=100_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: free)
    with pytest.raises(ValueError, match=r"room for 170\.1 MB, got .* with 100\.0 MB free"):
        download.fetch("cifar10", tmp_path)
    assert server.asked == 0


# --- data sets by name -------------------------------------------------------------------------


def archived(files):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return packed.getvalue()


@pytest.fixture
def small(server, monkeypatch):
    """Put small files in the place of the published ones, on our own server."""
    parts = {f"part{number}.gz": gzip.compress(bytes([number]) * 50) for number in range(4)}
    batches = {f"cifar-10-batches-bin/{number}.bin": bytes([number]) * 99 for number in range(3)}
    packed = archived(batches)
    base = server.url.removesuffix("/file")
    server.data = {f"/{name}": data for name, data in parts.items()}
    server.data["/archive.tar.gz"] = packed

    def facts(data):
        return hashlib.sha256(data).hexdigest(), len(data)

    for name, files in (("fashion_mnist", parts), ("cifar10", batches)):
        found = tuple(datasets.Original(each, *facts(data), (1,)) for each, data in files.items())
        known = replace(datasets.ORIGINALS[name], files=found)
        monkeypatch.setitem(datasets.ORIGINALS, name, known)
    downloads = tuple(datasets.Original(name, *facts(data)) for name, data in parts.items())
    archive = datasets.Original("archive.tar.gz", *facts(packed))
    for name, new in (("fashion_mnist", downloads), ("cifar10", (archive,))):
        source = replace(download.CATALOGUE[name], base=f"{base}/", downloads=new)
        monkeypatch.setitem(download.CATALOGUE, name, source)
    return {"fashion_mnist": parts, "cifar10": batches}


@pytest.mark.parametrize("name", ["fashion_mnist", "cifar10"])
def test_a_data_set_by_its_name_lies_where_it_is_read(name, small, server, tmp_path):
    found = download.fetch(name, tmp_path)
    place = tmp_path / name
    assert {each: (place / each).read_bytes() for each in small[name]} == small[name]
    assert list(found) == [place / each for each in small[name]]
    assert sum(path.is_file() for path in place.rglob("*")) == len(small[name]), "nothing is left"
    asked = server.asked
    assert download.fetch(name, tmp_path) == found
    assert server.asked == asked
    assert verification.verify(place).ok
    # one damaged file is seen, and repaired by fetching again
    path = place / list(small[name])[1]
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    report = verification.verify(place)
    assert [damage.file for damage in report.damages] == [str(path)]
    download.fetch(name, tmp_path)
    assert verification.verify(place).ok


def test_an_archive_brought_by_hand_is_unpacked_without_a_network(small, server, tmp_path):
    data = server.data["/archive.tar.gz"]
    server.close()
    (tmp_path / "cifar10").mkdir()
    (tmp_path / "cifar10" / "archive.tar.gz").write_bytes(data)
    download.fetch("cifar10", tmp_path)
    assert sorted(os.listdir(tmp_path / "cifar10")) == ["cifar-10-batches-bin"]


def test_mnist_is_found_in_the_clone_and_what_was_fetched_in_the_cache(tmp_path, monkeypatch):
    assert {path.parent for path in download.fetch("mnist")} == {CLONE / "mnist"}
    whole = datasets.load("mnist")
    monkeypatch.setenv("DLGUIDE_DATA", str(tmp_path))
    monkeypatch.setenv("DLGUIDE_CACHE", str(tmp_path / "cache"))
    with pytest.raises(MissingComponentError, match="`dlguide data fetch mnist`"):
        datasets.load("mnist")
    # packed by another program, as its publisher's files are
    place, others = cached_data() / "mnist", []
    place.mkdir(parents=True)
    for file in datasets.ORIGINALS["mnist"].files:
        data = gzip.compress(gzip.decompress((CLONE / "mnist" / file.name).read_bytes()), 1)
        (place / file.name).write_bytes(data)
        others.append(replace(file, sha256=hashlib.sha256(data).hexdigest(), nbytes=len(data)))
    known = replace(datasets.ORIGINALS["mnist"], others=tuple(others))
    monkeypatch.setitem(datasets.ORIGINALS, "mnist", known)
    again = datasets.load("mnist")
    assert (again.train_images == whole.train_images).all()
    assert (again.test_labels == whole.test_labels).all()
    assert {path.parent for path in download.fetch("mnist")} == {place}
    assert verification.verify(place).ok


def test_what_only_a_person_can_download_is_named_with_its_page(tmp_path):
    source = download.CATALOGUE["imagenet"]
    with pytest.raises(TransferError, match=re.escape(source.page)) as error:
        download.fetch("imagenet", tmp_path)
    assert source.then in str(error.value)
    assert str(tmp_path / "imagenet") in str(error.value)


def test_an_archive_that_leads_outside_writes_nothing_there(small, server, tmp_path, monkeypatch):
    data = archived({"../../outside": b"bad"})
    server.data["/archive.tar.gz"] = data
    (one,) = download.CATALOGUE["cifar10"].downloads
    one = replace(one, sha256=hashlib.sha256(data).hexdigest(), nbytes=len(data))
    source = replace(download.CATALOGUE["cifar10"], downloads=(one,))
    monkeypatch.setitem(download.CATALOGUE, "cifar10", source)
    with pytest.raises(DataError, match=r"cannot be unpacked: .*outside"):
        download.fetch("cifar10", tmp_path)
    assert os.listdir(tmp_path) == ["cifar10"]
    assert os.listdir(tmp_path / "cifar10") == ["archive.tar.gz"]
