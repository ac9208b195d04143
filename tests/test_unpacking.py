"""Archives of strangers: unpacked as they were packed, or refused by name, never outside.

Tests dlguide.data.transfer.unpacking and dlguide.data.transfer.archives.
"""

from __future__ import annotations

import gzip
import io
import os
import random
import stat
import tarfile
import tempfile
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlguide.data import transfer
from dlguide.data.transfer import unpacking
from dlguide.errors import DataError, MissingComponentError

MODES = {"tar": "w", "tar.gz": "w:gz", "tar.bz2": "w:bz2", "tar.xz": "w:xz"}
KINDS = (*MODES, "zip")
RANDOM = random.Random(7)
FILES = {
    "top/a/noise.bin": RANDOM.randbytes(3000),
    "top/a/empty": b"",
    "top/zeros": bytes(70_000),
    "ü ñ/name": b"x",
}


def pack(path: Path, kind: str, files: dict[str, bytes] = FILES) -> Path:
    """Pack with the standard library: the oracle for what unpacking must give back."""
    if kind == "zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in files.items():
                archive.writestr(name, data)
        return path
    with tarfile.open(path, MODES[kind]) as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def odd_tar(path: Path, name: str = "x", data: bytes = b"", mode: str = "w", **fields) -> Path:
    with tarfile.open(path, mode, format=fields.pop("format", tarfile.PAX_FORMAT)) as archive:
        good = tarfile.TarInfo("good")
        archive.addfile(good, io.BytesIO(b""))
        member = tarfile.TarInfo(name)
        member.size = len(data)
        for field, value in fields.items():
            setattr(member, field, value)
        archive.addfile(member, io.BytesIO(data))
    return path


def odd_zip(path: Path, name: str = "x", data: bytes = b"", **fields) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("good", b"")
        member = zipfile.ZipInfo("x")
        member.filename = member.orig_filename = name
        member.compress_type = zipfile.ZIP_DEFLATED
        for field, value in fields.items():
            setattr(member, field, value)
        archive.writestr(member, data)
    return path


def tree(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def attempt(archive: Path, folder: Path) -> str:
    """Unpack; return what was said against it, empty when it was unpacked."""
    try:
        transfer.unpack(archive, folder)
    except DataError as error:
        return str(error)
    return ""


def refused(archive: Path, folder: Path, *said: str, **limits) -> None:
    """Unpacking fails, names the archive, says why, and writes nothing anywhere."""
    before = sorted(os.listdir(folder.parent))
    with pytest.raises(DataError) as error:
        transfer.unpack(archive, folder, **limits)
    for word in (str(archive), *said):
        assert word in str(error.value)
    assert "\n" not in str(error.value)
    assert sorted(os.listdir(folder.parent)) == before


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_packed_comes_out(kind, tmp_path):
    archive = pack(tmp_path / "any name at all", kind)
    told = []
    done = transfer.unpack(archive, tmp_path / "out", progress=lambda *two: told.append(two))
    assert tree(tmp_path / "out") == FILES
    nbytes = sum(map(len, FILES.values()))
    assert (done.files, done.nbytes, done.path) == (len(FILES), nbytes, str(tmp_path / "out"))
    assert told[-1] == (nbytes, nbytes if kind == "zip" else None)
    assert sorted(os.listdir(tmp_path)) == ["any name at all", "out"]


def test_folders_may_stand_twice_and_modes_are_not_taken_over(tmp_path):
    with tarfile.open(tmp_path / "a", "w") as archive:
        for name, kind in (("./d", tarfile.DIRTYPE), ("d/", tarfile.DIRTYPE), ("d/f", None)):
            member = tarfile.TarInfo(name)
            member.type = kind or tarfile.REGTYPE
            member.mode = 0o6777
            archive.addfile(member, io.BytesIO(b""))
    transfer.unpack(tmp_path / "a", tmp_path / "out")
    assert tree(tmp_path / "out") == {"d/f": b""}
    assert stat.S_IMODE((tmp_path / "out" / "d" / "f").stat().st_mode) & 0o6111 == 0


BAD_NAMES = {
    "../x": "`..`",
    "a/../../x": "`..`",
    "..": "`..`",
    "/etc/x": "absolute",
    "//x": "absolute",
    "a\\..\\x": "backslash",
    "C:/x": "drive",
    "a\nb": "control",
    "a\x7fb": "control",
    "x" * 256: "too long",
    "/".join(["x" * 200] * 12): "too long",
}


@pytest.mark.parametrize("name", BAD_NAMES)
@pytest.mark.parametrize("odd", [odd_tar, odd_zip])
def test_names_that_lead_out_or_deceive_are_refused(odd, name, tmp_path):
    for kind in ({}, {"mode": "w:gz"} if odd is odd_tar else {}):
        refused(odd(tmp_path / "a", name, b"1", **kind), tmp_path / "out", BAD_NAMES[name])
    assert unpacking.refusal(name)


def test_a_nul_in_a_name_is_refused(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.PAX_FORMAT) as archive:
        member = tarfile.TarInfo("harmless")
        member.pax_headers = {"path": "x\0/../../y"}
        archive.addfile(member)
    refused(tmp_path / "a.tar", tmp_path / "out", "name contains")
    odd_zip(tmp_path / "a.zip", "xQevil", b"1")
    data = (tmp_path / "a.zip").read_bytes().replace(b"xQevil", b"x\0evil")
    (tmp_path / "a.zip").write_bytes(data)
    refused(tmp_path / "a.zip", tmp_path / "out", "control")


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (tarfile.SYMTYPE, "is a link"),
        (tarfile.LNKTYPE, "is a link"),
        (tarfile.CHRTYPE, "is a device"),
        (tarfile.BLKTYPE, "is a device"),
        (tarfile.FIFOTYPE, "is a device, pipe"),
    ],
)
@pytest.mark.parametrize("goal", ["good", "/etc/passwd", "../../x", ""])
def test_links_and_devices_in_a_tar_are_refused(kind, said, goal, tmp_path):
    refused(odd_tar(tmp_path / "a", "odd", type=kind, linkname=goal), tmp_path / "out", "odd", said)


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR, stat.S_IFSOCK])
def test_links_and_devices_in_a_zip_are_refused(kind, tmp_path):
    odd_zip(
        tmp_path / "a", "odd", b"/etc/passwd", create_system=3, external_attr=(kind | 0o777) << 16
    )
    refused(tmp_path / "a", tmp_path / "out", "odd", "is a")


def test_a_link_and_then_a_file_through_it_writes_nothing(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    with tarfile.open(tmp_path / "a", "w") as archive:
        link = tarfile.TarInfo("d")
        link.type, link.linkname = tarfile.SYMTYPE, str(outside)
        archive.addfile(link)
        archive.addfile(tarfile.TarInfo("d/x"), io.BytesIO(b""))
    refused(tmp_path / "a", tmp_path / "out", "'d'", "is a link")
    assert os.listdir(outside) == []


@pytest.mark.filterwarnings("ignore:Duplicate name")  # zipfile's own, while it packs
@pytest.mark.parametrize("odd", [odd_tar, odd_zip])
@pytest.mark.parametrize("name", ["good", "./good", "good/below"])
def test_a_name_that_stands_twice_is_refused(odd, name, tmp_path):
    refused(
        odd(tmp_path / "a", name, b"1"),
        tmp_path / "out",
        "twice" if "/b" not in name else "already",
    )


@pytest.mark.parametrize("kind", ["tar.gz", "tar.bz2", "tar.xz", "zip"])
def test_bombs_stop_at_the_limit(kind, tmp_path):
    bomb = pack(tmp_path / "bomb", kind, {"zeros": bytes(5_000_000)})
    assert bomb.stat().st_size < 10_000
    refused(bomb, tmp_path / "out", "'zeros'", "more than 1000000 bytes", most_nbytes=1_000_000)
    assert transfer.unpack(bomb, tmp_path / "out", most_nbytes=5_000_000).nbytes == 5_000_000
    many = pack(tmp_path / "many", kind, {f"{number}": b"" for number in range(50)})
    refused(many, tmp_path / "out2", "more than 49 members", most_members=49)
    assert transfer.unpack(many, tmp_path / "out2", most_members=50).files == 50


def test_what_a_zip_declares_is_not_believed(tmp_path):
    path = pack(tmp_path / "a", "zip", {"zeros": bytes(1_000_000)})
    data = path.read_bytes()
    real = (1_000_000).to_bytes(4, "little")
    for declared in (10, 2_000_000):
        path.write_bytes(data.replace(real, declared.to_bytes(4, "little")))
        refused(path, tmp_path / "out", "'zeros'")
    path.write_bytes(data.replace(real, (4_000_000_000).to_bytes(4, "little")))
    refused(path, tmp_path / "out", "the limit", most_nbytes=10**9)


def test_a_tar_header_that_declares_gigabytes_fills_no_memory(tmp_path):
    for kind in (tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE):
        header = tarfile.TarInfo("x")
        header.type, header.size = kind, 8_000_000_000
        block = header.tobuf(tarfile.GNU_FORMAT)[:512]
        (tmp_path / "a").write_bytes(block + bytes(10_240))
        refused(tmp_path / "a", tmp_path / "out", "bytes of its own")
    negative = tarfile.TarInfo("x").tobuf(tarfile.GNU_FORMAT)
    size = b"\xff" * 11 + b"\x00"  # -256 in the binary form
    changed = bytearray(negative[:124] + size + negative[136:512])
    changed[148:156] = b" " * 8
    changed[148:156] = b"%06o\0 " % sum(changed)
    (tmp_path / "a").write_bytes(bytes(changed) + bytes(10_240))
    refused(tmp_path / "a", tmp_path / "out")


def test_an_encrypted_zip_is_refused(tmp_path):
    data = bytearray(pack(tmp_path / "a", "zip", {"secret": b"1"}).read_bytes())
    data[6] |= 1
    data[data.index(b"PK\x01\x02") + 8] |= 1
    (tmp_path / "a").write_bytes(data)
    refused(tmp_path / "a", tmp_path / "out", "'secret'", "encrypted")


def test_what_is_no_archive_is_said(tmp_path):
    for data in (b"", b"<html>404</html>", bytes(100), RANDOM.randbytes(5000), b"PK\x03\x04"):
        (tmp_path / "a").write_bytes(data)
        refused(tmp_path / "a", tmp_path / "out", "no tar or zip")
    with pytest.raises(MissingComponentError, match="There is no archive"):
        transfer.unpack(tmp_path / "nothing", tmp_path / "out")
    (tmp_path / "there").mkdir()
    with pytest.raises(ValueError, match="be a name that is not taken yet"):
        transfer.unpack(pack(tmp_path / "a", "zip"), tmp_path / "there")
    for limit in ("most_nbytes", "most_members"):
        with pytest.raises(ValueError, match=limit):
            transfer.unpack(tmp_path / "a", tmp_path / "out", **{limit: -1})


@pytest.mark.parametrize("kind", KINDS)
def test_no_damage_is_a_crash_and_checksums_see_all_of_it(kind, tmp_path):
    """150 archives of each kind: cut short, bits flipped, parts swapped, zeroed, doubled."""
    data = pack(tmp_path / "whole", kind).read_bytes()
    path, accepted = tmp_path / "damaged", 0
    for number in range(150):
        at, wide = RANDOM.randrange(len(data)), RANDOM.randrange(1, 600)
        changed = bytearray(data)
        if number % 5 == 0:
            del changed[at:]
        elif number % 5 == 1:
            changed[at] ^= 1 << RANDOM.randrange(8)
        elif number % 5 == 2:
            changed[at : at + wide] = bytes(len(changed[at : at + wide]))
        elif number % 5 == 3:
            changed[at:at] = changed[at : at + wide]
        else:
            changed[at : at + wide] = changed[at : at + wide][::-1]
        path.write_bytes(changed)
        folder = tmp_path / f"out{number}"
        said = attempt(path, folder)
        assert folder.exists() == (not said)
        if said:
            assert str(path) in said
            continue
        accepted += 1
        # a tar has checksums over its headers only, a zip none over times and modes
        if kind == "tar":
            assert set(tree(folder)) == set(FILES)
        else:
            assert tree(folder) == FILES
    assert accepted < 120
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("kind", ["tar", "tar.gz"])
def test_an_archive_cut_between_members_is_seen(kind, tmp_path):
    data = pack(tmp_path / "a", "tar").read_bytes()
    cut = data[: 512 + 3072]
    with tarfile.open(fileobj=io.BytesIO(cut)) as archive:
        assert archive.getnames() == ["top/a/noise.bin"]  # tarfile says nothing
    if kind == "tar.gz":
        cut = gzip.compress(cut)
    (tmp_path / "a").write_bytes(cut)
    refused(tmp_path / "a", tmp_path / "out", "cut short at byte 3584", "noise.bin")
    (tmp_path / "a").write_bytes(data + b"more")
    refused(tmp_path / "a", tmp_path / "out", "behind its end")


PARTS = st.sampled_from(
    [
        "..",
        ".",
        "",
        "a",
        "b",
        "\\",
        "C:",
        "\n",
        "\0",
        "ü",
        "~",
        "-",
        "*",
        "$HOME",
        "a" * 256,
        "\ud800",
    ]
)
NAMES = st.one_of(st.lists(PARTS, min_size=1, max_size=5).map("/".join), st.text(max_size=20))


@pytest.mark.filterwarnings("ignore:Duplicate name")
@settings(max_examples=200, deadline=None)
@given(names=st.lists(NAMES, min_size=1, max_size=3), as_zip=st.booleans())
def test_no_name_writes_outside_and_what_is_accepted_tarfile_accepts_too(names, as_zip):
    with tempfile.TemporaryDirectory() as place:
        box = Path(place) / "box"
        box.mkdir()
        archive = box / "a"
        made = False
        try:
            if as_zip:
                with zipfile.ZipFile(archive, "w") as packed:
                    for name in names:
                        member = zipfile.ZipInfo("x")
                        member.filename = member.orig_filename = name
                        packed.writestr(member, b"1")
            else:
                with tarfile.open(archive, "w") as packed:
                    for name in names:
                        member = tarfile.TarInfo(name)
                        member.size = 1
                        packed.addfile(member, io.BytesIO(b"1"))
            made = True
        except (ValueError, UnicodeError, KeyError):
            pass  # such a name cannot be packed
        if not as_zip:  # a tar's names end at a NUL
            names = [name.partition("\0")[0] for name in names]
        if not made:
            return
        said = attempt(archive, box / "out")
        if said:
            assert str(archive).encode() in said.encode()
            assert sorted(os.listdir(box)) == ["a"]
        else:
            assert sorted(os.listdir(box)) == ["a", "out"]
            # a zip marks a folder by the `/` at the end of its name
            files = [name for name in names if not (as_zip and name.endswith("/"))]
            assert len(tree(box / "out")) == len(files)
            for name in files:
                clean = "/".join(part for part in name.split("/") if part not in ("", "."))
                assert (box / "out" / clean).read_bytes() == b"1"
                if hasattr(tarfile, "data_filter"):
                    tarfile.data_filter(tarfile.TarInfo(name), str(box / "out"))
        assert os.listdir(place) == ["box"]
