"""`dlguide data` says in one line what is wrong, and its exit status tells it too."""

from __future__ import annotations

import json
import os
import re
import sys

import pytest
from test_download import DATA, SHA256, Server
from test_staging import make, tree

from dlguide import cli
from dlguide.data import download, formats


@pytest.fixture
def dlguide(monkeypatch, capsys, tmp_path):
    """Give a function that runs `dlguide data ...` and returns exit status, output, error text."""
    monkeypatch.setenv("DLGUIDE_DATA", str(tmp_path / "course"))
    (tmp_path / "course").mkdir()

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["dlguide", "data", *map(str, words)])
        with pytest.raises(SystemExit) as left:
            cli.main()
        shown = capsys.readouterr()
        if isinstance(left.value.code, str):  # sys.exit(text) prints the text and exits with 1
            return 1, shown.out, left.value.code
        return left.value.code or 0, shown.out, shown.err

    return run


@pytest.fixture
def server(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    server = Server()
    yield server
    server.close()


def test_list_names_all_with_their_pages(dlguide, tmp_path):
    (tmp_path / "course" / "cifar10").mkdir()
    (tmp_path / "course" / "imagenet").mkdir()
    status, said, _ = dlguide("list")
    assert status == 0
    for name, source in download.CATALOGUE.items():
        assert f"{name}: " in said
        assert source.page in said
    assert "`dlguide data fetch cifar10` gets 170 MB" in said
    status, said, _ = dlguide("list", "--json")
    rows = {row["name"]: row for row in json.loads(said)}
    assert rows["imagenet"]["here"]
    assert not rows["cifar10"]["here"], "its folder is there, its files are not"
    assert rows["fashion_mnist"]["bytes_to_download"] == 26_421_880 + 29_515 + 4_422_102 + 5_148


def test_a_file_by_its_url_goes_to_the_data_folder(dlguide, server, tmp_path):
    status, said, _ = dlguide("fetch", server.url, "--sha256", SHA256)
    assert status == 0
    assert (tmp_path / "course" / "file").read_bytes() == DATA
    assert "300,000 bytes; SHA-256 as expected" in said
    assert f"SHA-256 {SHA256}, compared with nothing" in dlguide("fetch", server.url)[1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["fetch", "cifar"], "Did you mean cifar10?"),
        (["fetch", "imagenet"], "https://www.image-net.org/download.php"),
        (["fetch", "cifar10", "--sha256", "0" * 64], "`sha256` must be given with a URL only"),
        (["fetch", "ftp://data.example/file"], "`url` must begin with http"),
        (["fetch", "http://data.example/"], "a URL that ends in the name of a file"),
        (["fetch", "http://data.example/%2e%2e"], "a URL that ends in the name of a file"),
        (["verify", "nowhere"], "Run `dlguide data fetch NAME`"),
        (["verify", "cifar10"], "Run `dlguide data fetch cifar10` to get it"),
        (["stage", "nowhere", "copy"], "`dlguide data fetch NAME` to get a data set"),
        (
            ["stage", "nowhere", "copy", "--ranks", 0],
            "`ranks` must be a whole number of at least 1",
        ),
    ],
)
def test_what_is_wrong_is_said_in_one_line(dlguide, words, said, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    status, out, text = dlguide(*words)
    assert status == 1
    assert said in text
    assert text.startswith("dlguide: ")
    assert len(text.splitlines()) == 1
    assert out == ""
    assert not (tmp_path / "copy").exists()


def test_verify_ends_with_1_and_the_place_of_damage(dlguide, tmp_path):
    folder = make("recordio", tmp_path / "data")
    status, said, _ = dlguide("verify", folder)
    assert status == 0
    assert re.search(r"recordio, 12 records, \d+ bytes: no damage found", said)
    assert re.search(r"\d s, \d+ MB/s", said)
    path = max(folder.iterdir(), key=lambda path: path.stat().st_size)
    data = bytearray(path.read_bytes())
    data[-300] ^= 1
    path.write_bytes(data)
    status, said, _ = dlguide("verify", folder)
    assert status == 1
    assert re.search(rf"{path}: record 11 at byte \d+", said)
    status, said, err = dlguide("verify", folder, "--json")
    assert status == 1
    assert not err
    found = json.loads(said)
    assert not found["ok"]
    assert (found["damages"][0]["file"], found["damages"][0]["record"]) == (str(path), 11)


def test_stage_copies_once_and_says_so(dlguide, tmp_path):
    source, target = make("tfrecord", tmp_path / "data"), tmp_path / "local" / "copy"
    status, said, _ = dlguide("stage", source, target)
    assert status == 0
    assert f"{target}: copied; " in said
    assert tree(target) == tree(source)
    assert "was there already, whole" in dlguide("stage", source, target, "--quick")[1]
    (target / "more").write_bytes(b"not ours")
    assert dlguide("stage", source, target)[0] == 0
    for path in target.iterdir():
        path.write_bytes(b"")
    status, _, text = dlguide("stage", source, target)
    assert status == 1
    assert "`--replace`" in text
    status, said, _ = dlguide("stage", source, target, "--replace", "--json")
    assert status == 0
    assert json.loads(said)["copied"]
    assert formats.verify(target).ok


def test_stage_starts_ranks_of_its_own(tmp_path, monkeypatch, capfd):
    from dlguide.commands import without_mpi

    source, target = make("plain", tmp_path / "data"), tmp_path / "local" / "copy"
    for name in set(os.environ) - set(without_mpi()):
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    words = ["dlguide", "data", "stage", "data", "local/copy", "-n", "2", "--json"]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as left:
        cli.main()
    said = capfd.readouterr()
    assert not left.value.code, said
    assert json.loads(said.out)["path"] == str(target)
    assert tree(target).keys() == {*tree(source), "SHA256SUMS"}
