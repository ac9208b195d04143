"""Downloads from a server on this machine that does all that servers do, without the internet.

Tests dlguide.data.transfer.download, dlguide.data.transfer.part, dlguide.data.transfer.fetching,
dlguide.data.transfer.catalogue and dlguide.data.transfer.progress.
"""

from __future__ import annotations

import gzip
import hashlib
import http.server
import io
import os
import random
import shutil
import tarfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from dlguide.data import transfer
from dlguide.data.datasets import originals
from dlguide.data.transfer import catalogue, download, fetching
from dlguide.data.transfer.errors import TransferError
from dlguide.data.transfer.progress import reporting
from dlguide.errors import DataError, LockHeldError, MissingComponentError

DATA = random.Random(3).randbytes(300_000)
SHA256 = hashlib.sha256(DATA).hexdigest()
SOON = {"wait_s": 0.01, "timeout_s": 20.0}


class Server:
    """A web server on this machine; each request takes the next behaviour, the last one stays."""

    def __init__(self) -> None:
        self.data: dict[str, bytes] = {"/file": DATA}
        self.behaviours: list[str] = ["well"]
        self.tag, self.modified = '"one"', ""
        self.asked: list[tuple[str, str]] = []  # Range and If-Range of each request
        self.sent: list[int] = []  # bytes of each answer
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
        wanted = request.headers.get("Range", "")
        self.asked.append((wanted, request.headers.get("If-Range", "")))
        data = self.data.get(request.path)
        status = int(how) if how.isdigit() else 200 if data is not None else 404
        if how == "silent":
            self.stop.wait(30)
            return
        if status != 200:
            request.send_response(status)
            if status == 503:
                request.send_header("Retry-After", "0")
            request.send_header("Content-Length", "0")
            request.end_headers()
            return
        first = 0
        same = request.headers.get("If-Range") in (self.tag, self.modified)
        if wanted and how not in ("no ranges", "cut, no ranges") and (same or how == "any version"):
            first = int(wanted.removeprefix("bytes=").removesuffix("-"))
            if first >= len(data):
                request.send_response(416)
                request.send_header("Content-Range", f"bytes */{len(data)}")
                request.send_header("ETag", self.tag)
                request.send_header("Content-Length", "0")
                request.end_headers()
                return
            request.send_response(206)
            request.send_header("Content-Range", f"bytes {first}-{len(data) - 1}/{len(data)}")
        elif how == "moved":
            request.send_response(302)
            request.send_header("Location", "/other")
            request.send_header("Content-Length", "0")
            request.end_headers()
            return
        elif how == "to a file":
            request.send_response(302)
            request.send_header("Location", "file:///etc/passwd")
            request.end_headers()
            return
        else:
            request.send_response(200)
        if self.tag:
            request.send_header("ETag", self.tag)
        if self.modified:
            request.send_header("Last-Modified", self.modified)
        body = data[first:]
        told = len(body) + 1000 * (how == "promises more") - 1000 * (how == "promises less")
        if how != "no length":
            request.send_header("Content-Length", str(told))
        request.end_headers()
        if how.startswith("cut"):
            body = body[: max(len(body) // 2, 1)]
        if how == "slow":
            for at in range(0, len(body), 30_000):
                request.wfile.write(body[at : at + 30_000])
                self.stop.wait(0.01)
        else:
            request.wfile.write(body)
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


def there(path: Path) -> list[str]:
    return sorted(os.listdir(path.parent))


@pytest.mark.parametrize("how", ["well", "slow", "no length", "no ranges"])
def test_a_file_comes_whole_and_is_told(how, server, tmp_path):
    server.behaviours = [how]
    told = []
    path = tmp_path / "deep" / "file"
    done = transfer.fetch_file(
        server.url, path, SHA256, progress=lambda *two: told.append(two), **SOON
    )
    assert path.read_bytes() == DATA
    assert (done.nbytes, done.downloaded_nbytes, done.sha256, done.checked) == (
        *(len(DATA), len(DATA), SHA256, True),
    )
    assert told[-1] == (len(DATA), None if how == "no length" else len(DATA))
    assert [each for each, _ in told] == sorted(each for each, _ in told)
    assert there(path) == ["file"]
    # what is there is not asked for again
    server.close()
    again = transfer.fetch_file(server.url, path, SHA256)
    assert (again.nbytes, again.downloaded_nbytes) == (len(DATA), 0)


@pytest.mark.parametrize("version", ["tag", "time"])
def test_a_connection_cut_in_the_middle_is_taken_up_where_it_stopped(version, server, tmp_path):
    if version == "time":
        server.tag, server.modified = "", "Wed, 21 Oct 2015 07:28:00 GMT"
    server.behaviours = ["cut", "cut", "well"]
    done = transfer.fetch_file(server.url, tmp_path / "file", SHA256, **SOON)
    assert (tmp_path / "file").read_bytes() == DATA
    half, more = len(DATA) // 2, len(DATA) // 4
    known = server.tag or server.modified
    assert server.asked == [
        ("", ""),
        (f"bytes={half}-", known),
        (f"bytes={half + more}-", known),
    ]
    assert done.downloaded_nbytes == len(DATA) == sum(server.sent)


def test_a_later_call_takes_up_what_an_earlier_one_left(server, tmp_path):
    server.behaviours = ["cut", "404"]
    with pytest.raises(TransferError, match="404"):
        transfer.fetch_file(server.url, tmp_path / "file", SHA256, **SOON)
    assert there(tmp_path / "file") == ["file.part", "file.part.json"]
    server.behaviours = ["well"]
    done = transfer.fetch_file(server.url, tmp_path / "file", SHA256, **SOON)
    assert done.downloaded_nbytes == len(DATA) - len(DATA) // 2
    assert (tmp_path / "file").read_bytes() == DATA
    assert there(tmp_path / "file") == ["file"]


@pytest.mark.parametrize(
    "how", ["changed", "any version", "shorter", "weak", "nothing", "other url"]
)
def test_parts_of_two_versions_are_never_joined(how, server, tmp_path):
    if how in ("weak", "nothing"):
        server.tag = 'W/"one"' if how == "weak" else ""
    server.behaviours = ["cut", "404"]
    with pytest.raises(TransferError):
        transfer.fetch_file(server.url, tmp_path / "file", **SOON)
    other = DATA[::-1][: len(DATA) // (3 if how == "shorter" else 1)]
    server.data["/file"] = other
    server.behaviours = [how if how == "any version" else "well"]
    if how not in ("weak", "nothing", "shorter", "other url"):
        server.tag = '"two"'
    url = server.url
    if how == "other url":
        server.data["/other"] = other
        url = url.replace("/file", "/other")
    transfer.fetch_file(url, tmp_path / "file", **SOON)
    assert (tmp_path / "file").read_bytes() == other


def test_a_server_that_knows_no_ranges_is_asked_from_the_start(server, tmp_path):
    server.behaviours = ["cut, no ranges", "no ranges"]
    transfer.fetch_file(server.url, tmp_path / "file", SHA256, **SOON)
    assert (tmp_path / "file").read_bytes() == DATA
    assert server.sent == [len(DATA) // 2, len(DATA)]


@pytest.mark.parametrize("first", ["500", "503", "429", "silent", "cut"])
def test_what_passes_is_tried_again(first, server, tmp_path):
    server.behaviours = [first, first, "well"]
    timeout_s, tries = (1.0, 30) if first == "silent" else (20.0, 5)
    transfer.fetch_file(server.url, tmp_path / "file", SHA256, timeout_s, tries, wait_s=0.01)
    assert (tmp_path / "file").read_bytes() == DATA
    # a slow machine may not answer within the silence that is allowed here
    assert len(server.asked) == 3 or (first == "silent" and len(server.asked) > 3)


def test_waits_grow(server, tmp_path, monkeypatch):
    waits = []
    # of this module only: other threads of the process sleep, too
    clock = SimpleNamespace(sleep=waits.append, monotonic=time.monotonic)
    monkeypatch.setattr(download, "time", clock)
    server.behaviours = ["500"]
    with pytest.raises(TransferError, match="the server answers 500"):
        transfer.fetch_file(server.url, tmp_path / "file", tries=9)
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60]


def test_a_server_that_is_always_silent_or_always_cuts_is_given_up(server, tmp_path):
    server.behaviours = ["silent"]
    with pytest.raises(TransferError, match=r"cannot be had: the server is silent\."):
        transfer.fetch_file(server.url, tmp_path / "file", timeout_s=0.2, tries=2, wait_s=0.01)
    server.behaviours = ["cut, no ranges"]
    with pytest.raises(TransferError, match=f"ended after {len(DATA) // 2} of {len(DATA)} bytes"):
        transfer.fetch_file(server.url, tmp_path / "file", **SOON)
    assert not (tmp_path / "file").exists()


@pytest.mark.parametrize("status", ["404", "403", "410"])
def test_what_lasts_is_told_at_once(status, server, tmp_path):
    server.behaviours = [status]
    with pytest.raises(TransferError) as error:
        transfer.fetch_file(server.url, tmp_path / "file")
    text = str(error.value)
    assert f"{server.url} cannot be had: the server answers {status}" in text
    assert f"copy it to {tmp_path / 'file'}" in text
    assert "\n" not in text
    assert len(server.asked) == 1
    assert there(tmp_path / "file") == []


def test_without_a_network_one_line_says_what_works_and_how_to_copy(tmp_path, monkeypatch):
    import socket

    def no_network(*_, **__):
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", no_network)
    monkeypatch.delenv("http_proxy", raising=False)
    with pytest.raises(TransferError) as error:
        transfer.fetch_file("http://data.example/file", tmp_path / "file")
    text = str(error.value)
    for word in ("no network", "mnist", "dlguide.data.synthetic", f"copy it to {tmp_path}/file"):
        assert word in text
    assert "\n" not in text


def test_nobody_listens(server, tmp_path):
    server.close()
    with pytest.raises(TransferError, match="Connection refused"):
        transfer.fetch_file(server.url, tmp_path / "file", tries=2, wait_s=0.01)


@pytest.mark.parametrize("how", ["well", "promises less", "cut"])
def test_a_file_with_another_checksum_is_not_kept(how, server, tmp_path):
    server.data["/file"] = DATA[:-1] + b"?"
    server.behaviours = [how, "well"]
    with pytest.raises(TransferError, match=f"not {SHA256}. Nothing was kept"):
        transfer.fetch_file(server.url, tmp_path / "file", SHA256, **SOON)
    assert there(tmp_path / "file") == []


def test_a_wrong_file_on_a_line_that_always_breaks_is_given_up(server, tmp_path):
    server.data["/file"] = DATA[:-1] + b"?"
    server.behaviours = ["cut", "well"] * 4 + ["404"]
    with pytest.raises(TransferError, match=f"not {SHA256}. Nothing was kept"):
        transfer.fetch_file(server.url, tmp_path / "file", SHA256, **SOON)
    assert len(server.asked) == 4
    assert there(tmp_path / "file") == []


@pytest.mark.parametrize("how", ["well", "any version"])
def test_a_part_that_is_whole_is_not_downloaded_again(how, server, tmp_path, monkeypatch):
    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(download.os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            transfer.fetch_file(server.url, tmp_path / "file", **SOON)
    assert there(tmp_path / "file") == ["file.part", "file.part.json"]
    if how == "any version":  # of the same length, from a server that ignores If-Range
        server.behaviours, server.tag, server.data["/file"] = [how], '"two"', DATA[::-1]
    done = transfer.fetch_file(server.url, tmp_path / "file", **SOON)
    assert server.asked[1] == (f"bytes={len(DATA)}-", '"one"')
    assert (tmp_path / "file").read_bytes() == server.data["/file"]
    assert done.downloaded_nbytes == (0 if how == "well" else len(DATA))
    assert there(tmp_path / "file") == ["file"]


def test_a_length_that_is_not_kept_is_seen_without_a_checksum(server, tmp_path):
    server.behaviours = ["promises more"]
    with pytest.raises(TransferError, match=f"ended after {len(DATA)} of {len(DATA) + 1000} bytes"):
        transfer.fetch_file(server.url, tmp_path / "file", tries=1, timeout_s=20)
    assert not (tmp_path / "file").exists()


def test_a_damaged_file_under_the_name_is_replaced_only_by_the_right_one(server, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"damaged")
    server.behaviours = ["404"]
    with pytest.raises(TransferError):
        transfer.fetch_file(server.url, path, SHA256)
    assert path.read_bytes() == b"damaged"
    server.behaviours = ["well"]
    assert transfer.fetch_file(server.url, path, SHA256, **SOON).downloaded_nbytes == len(DATA)
    assert path.read_bytes() == DATA
    path.write_bytes(b"mine")
    kept = transfer.fetch_file(server.url, path)
    assert (kept.downloaded_nbytes, kept.checked, path.read_bytes()) == (0, False, b"mine")


def test_redirections_are_followed_to_the_web_only(server, tmp_path):
    server.data["/other"] = DATA
    server.behaviours = ["moved", "well"]
    transfer.fetch_file(server.url, tmp_path / "file", SHA256, **SOON)
    server.behaviours = ["to a file"]
    with pytest.raises(TransferError):
        transfer.fetch_file(server.url, tmp_path / "other", **SOON)
    assert not (tmp_path / "other").exists()


def test_arguments_are_checked_first(server, tmp_path):
    for words, said in (
        (("file:///etc/passwd", tmp_path / "x"), "`url` must begin with http"),
        ((server.url, tmp_path), "`path` must be the name of a file"),
        ((server.url, "/dev/null/x"), "`path` must be a folder this process can write to"),
        ((server.url, tmp_path / "x", "abc"), "`sha256` must be 64 hexadecimal digits"),
        ((server.url, tmp_path / "x", None, 0), "`timeout_s` must be a positive number"),
        ((server.url, tmp_path / "x", None, 1, 0), "`tries` must be a whole number"),
    ):
        with pytest.raises(ValueError, match=said):
            transfer.fetch_file(*words)
    assert server.asked == []


def test_a_disk_that_is_too_full_is_told_before_the_bytes_come(server, tmp_path, monkeypatch):
    real = shutil.disk_usage
    monkeypatch.setattr(
        "dlguide.files.shutil.disk_usage",
        lambda path: real(path)._replace(free=1_000_000 + len(DATA) // 2),
    )
    server.data["/file"] = DATA * 10
    with pytest.raises(ValueError, match=r"room for 3\.0 MB"):
        transfer.fetch_file(server.url, tmp_path / "file", **SOON)


def test_one_process_at_a_time_downloads_a_file(server, tmp_path):
    from dlguide.files import file_lock

    with (
        file_lock(tmp_path / "file.lock", wait=False),
        pytest.raises(LockHeldError, match=rf"Process {os.getpid()} on .* is at work on file in"),
    ):
        transfer.fetch_file(server.url, tmp_path / "file")
    assert server.asked == []


def test_a_bar_is_drawn_to_standard_error(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    with reporting(True, "some [file]") as report:
        report(1_000_000, 2_000_000)
    shown = capsys.readouterr()
    assert "some [file]" in shown.err
    assert "1.0/2.0 MB" in shown.err
    assert shown.out == ""
    with reporting(True, "some", "images") as report:
        report(1_000_000, 2_000_000)
    shown = capsys.readouterr()
    assert "1000000/2000000" in shown.err
    assert "images" in shown.err
    assert "MB" not in shown.err
    with reporting(None, "x") as report:
        report(1, None)


# --- data sets by name -------------------------------------------------------------------------


@pytest.fixture
def small(server, monkeypatch):
    """Put small files in the place of the published ones, on our own server."""
    parts = {
        f"part{number}.gz": gzip.compress(bytes([number]) * 50, mtime=0) for number in range(4)
    }
    batches = {f"cifar-10-batches-bin/{number}.bin": bytes([number]) * 99 for number in range(3)}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, data in batches.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    base = server.url.removesuffix("/file")
    server.data = {f"/{name}": data for name, data in parts.items()}
    server.data["/archive.tar.gz"] = packed.getvalue()

    def facts(data):
        return hashlib.sha256(data).hexdigest(), len(data)

    for name, files in (("fashion_mnist", parts), ("cifar10", batches)):
        found = tuple(originals.Original(each, *facts(data), (1,)) for each, data in files.items())
        known = replace(originals.ORIGINALS[name], files=found)
        monkeypatch.setitem(originals.ORIGINALS, name, known)
    downloads = tuple(
        catalogue.Download(f"{base}/{name}", name, *facts(data)) for name, data in parts.items()
    )
    archive = catalogue.Download(
        f"{base}/archive.tar.gz", "archive.tar.gz", *facts(packed.getvalue())
    )
    for name, new in (("fashion_mnist", downloads), ("cifar10", (archive,))):
        source = replace(catalogue.CATALOGUE[name], downloads=new)
        monkeypatch.setitem(catalogue.CATALOGUE, name, source)
    return {"fashion_mnist": parts, "cifar10": batches}


@pytest.mark.parametrize("name", ["fashion_mnist", "cifar10"])
def test_a_data_set_by_its_name_lies_where_it_is_read(name, small, server, tmp_path):
    found = transfer.fetch(name, tmp_path)
    place = tmp_path / name
    assert {each: (place / each).read_bytes() for each in small[name]} == small[name]
    assert sum(each.downloaded_nbytes for each in found) == sum(server.sent)
    assert [each.path for each in found] == [str(place / each) for each in small[name]]
    files = {str(path.relative_to(place)) for path in place.rglob("*") if path.is_file()}
    assert files == set(small[name]), "nothing else is left"
    asked = len(server.asked)
    assert sum(each.downloaded_nbytes for each in transfer.fetch(name, tmp_path)) == 0
    assert len(server.asked) == asked
    report = transfer.verify(place)
    assert report.ok
    assert report.nbytes == sum(map(len, small[name].values()))
    # one damaged file is seen, and mended by fetching again
    path = place / list(small[name])[1]
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    report = transfer.verify(place)
    assert [damage.file for damage in report.damages] == [str(path)]
    transfer.fetch(name, tmp_path)
    assert transfer.verify(place).ok


def test_an_archive_brought_by_hand_is_unpacked_without_a_network(small, server, tmp_path):
    data = server.data["/archive.tar.gz"]
    server.close()
    (tmp_path / "cifar10").mkdir()
    (tmp_path / "cifar10" / "archive.tar.gz").write_bytes(data)
    (tmp_path / "cifar10" / ".unpacking-left").mkdir()
    found = transfer.fetch("cifar10", tmp_path)
    assert sum(each.downloaded_nbytes for each in found) == 0
    assert sorted(os.listdir(tmp_path / "cifar10")) == ["cifar-10-batches-bin"]


def test_an_archive_with_other_contents_is_refused(small, server, tmp_path, monkeypatch):
    wrong = replace(originals.ORIGINALS["cifar10"].files[0], sha256="0" * 64)
    files = (wrong, *originals.ORIGINALS["cifar10"].files[1:])
    known = replace(originals.ORIGINALS["cifar10"], files=files)
    monkeypatch.setitem(originals.ORIGINALS, "cifar10", known)
    with pytest.raises(DataError, match=r"the archive holds no cifar-10-batches-bin/0\.bin"):
        transfer.fetch("cifar10", tmp_path)
    assert sorted(os.listdir(tmp_path / "cifar10")) == ["archive.tar.gz"]


def test_mnist_is_there_and_damage_says_how_to_restore_it(tmp_path):
    assert sum(each.downloaded_nbytes for each in transfer.fetch("mnist")) == 0
    with pytest.raises(DataError, match="git checkout -- data/mnist"):
        transfer.fetch("mnist", tmp_path)


@pytest.mark.parametrize("name", ["fashion_mnist", "cifar10"])
def test_a_data_set_that_cannot_be_reached_names_all_files_to_bring(name, small, server, tmp_path):
    server.behaviours = ["404"]
    with pytest.raises(TransferError, match="cannot be had") as error:
        transfer.fetch(name, tmp_path)
    for each in transfer.CATALOGUE[name].downloads:
        assert each.url in str(error.value)
    assert "\n" not in str(error.value)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["imagenet", "chestxray14", "kitti_tracking"])
def test_what_only_a_person_can_download_is_said_with_its_page(name, tmp_path):
    with pytest.raises(TransferError) as error:
        transfer.fetch(name, tmp_path)
    source = transfer.CATALOGUE[name]
    for word in (
        source.page,
        source.then,
        "dlguide data verify",
        "dlguide.data.synthetic",
        str(tmp_path / name),
    ):
        assert word in str(error.value)


def test_names_and_folders_are_checked(tmp_path):
    with pytest.raises(ValueError, match="Did you mean cifar10"):
        transfer.fetch("cifar")
    with pytest.raises(MissingComponentError, match="does not exist"):
        transfer.fetch("fashion_mnist", tmp_path / "nothing")


def test_the_catalogue_agrees_with_what_is_read():
    assert set(originals.ORIGINALS) <= set(transfer.names())
    fashion = catalogue.CATALOGUE["fashion_mnist"]
    assert [each.name for each in fashion.downloads] == [
        each.name for each in originals.ORIGINALS["fashion_mnist"].files
    ]
    for source in catalogue.CATALOGUE.values():
        assert bool(source.downloads) != bool(source.by_hand)
        assert source.nbytes == sum(each.nbytes for each in source.downloads)
        for each in source.downloads:
            assert download._SHA256.fullmatch(each.sha256)
            assert each.url.startswith("https://")
    assert fetching.CATALOGUE is catalogue.CATALOGUE
