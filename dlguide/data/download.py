"""Where data sets come from, and downloading those that a program can have.

from dlguide.data import download

download.fetch("fashion_mnist", progress=True)
"""

from __future__ import annotations

import os
import re
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin

from dlguide.data.datasets import CIFAR_ARCHIVE, ORIGINALS, restoring
from dlguide.errors import DataError, TransferError, require, require_known
from dlguide.files import data_folder_to_write, file_lock, require_writable
from dlguide.files import sha256 as digest

if TYPE_CHECKING:
    import requests

__all__ = ["CATALOGUE", "Fetched", "fetch", "fetch_file"]

_FASHION = "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion"
_SHA256 = re.compile(r"[0-9a-f]{64}")
_TRIES_AGAIN = 2
_TIMEOUT_S = 30.0  # the longest silence of a server
_FINAL = (400, 401, 402, 403, 404, 410)  # answers that stay the same when asked again
_OFFLINE = "Without a network: mnist is part of this repository, and dlcourse.synthetic makes data."


Progress = Callable[[int, int | None], object]


@dataclass(frozen=True)
class Download:
    """A file to download; its name is the end of its address."""

    url: str
    sha256: str
    nbytes: int

    @property
    def name(self) -> str:
        """Its name in the folder of its data set."""
        return self.url.rpartition("/")[2]


@dataclass(frozen=True)
class DataSource:
    """Where a data set comes from.

    Args:
        page: of the publisher.
        downloads: empty when a program cannot have them.
        unpacks: whether the one download is an archive.
        by_hand: why a program cannot have it.
        then: what to do with the archives, a sentence.
    """

    name: str
    title: str
    page: str
    downloads: tuple[Download, ...] = ()
    unpacks: bool = False
    by_hand: str = ""
    then: str = ""

    @property
    def nbytes(self) -> int:
        """Bytes to download."""
        return sum(each.nbytes for each in self.downloads)


@dataclass(frozen=True)
class Fetched:
    """A file that was brought here.

    Args:
        downloaded_nbytes: 0 when it was there already (bytes).
        checked: whether it was compared with a checksum that was known before.
    """

    path: str
    nbytes: int
    downloaded_nbytes: int
    sha256: str
    checked: bool


CATALOGUE = {
    source.name: source
    for source in (
        DataSource(
            "mnist",
            "MNIST, 70 000 digits of 28 x 28",
            "http://yann.lecun.com/exdb/mnist/",
            by_hand="it is part of this repository, in `data/mnist`",
        ),
        DataSource(
            "fashion_mnist",
            "Fashion-MNIST, 70 000 articles of clothing of 28 x 28",
            "https://github.com/zalandoresearch/fashion-mnist",
            tuple(
                Download(f"{_FASHION}/{one.name}", one.sha256, one.nbytes)
                for one in ORIGINALS["fashion_mnist"].files
            ),
        ),
        DataSource(
            "cifar10",
            "CIFAR-10, 60 000 colour images of 32 x 32, binary version",
            "https://www.cs.toronto.edu/~kriz/cifar.html",
            (
                Download(
                    f"https://www.cs.toronto.edu/~kriz/{CIFAR_ARCHIVE}",
                    "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
                    170_052_171,
                ),
            ),
            unpacks=True,
        ),
        DataSource(
            "imagenet",
            "ImageNet ILSVRC 2012, 1.28 million images",
            "https://www.image-net.org/download.php",
            by_hand="its publishers ask for registration and consent to their terms",
            then="The training archive holds an archive per class: unpack each into "
            "`train/CLASS`, and sort the validation images into `val/CLASS` by their list.",
        ),
        DataSource(
            "chestxray14",
            "NIH ChestX-ray14, 112 120 radiographs",
            "https://nihcc.app.box.com/v/ChestXray-NIHCC",
            by_hand="its publishers offer it on a page for browsers, under terms to be read there",
            then="Unpack each archive into a folder with its name: `images_001`, `images_002`.",
        ),
        DataSource(
            "kitti_tracking",
            "KITTI tracking, 21 labelled sequences",
            "https://www.cvlibs.net/datasets/kitti/eval_tracking.php",
            by_hand="its publishers ask for registration",
            then="Unpack data_tracking_image_2.zip and data_tracking_label_2.zip, and move "
            "`label_02` beside `image_02`: the folder of both is the data set.",
        ),
    )
}


def fetch(
    name: str,
    folder: str | os.PathLike | None = None,
    progress: bool | Progress | None = None,
) -> tuple[Fetched, ...]:
    """Bring a data set into the data folder, as `dlguide.data.datasets.load` reads it.

    Files that are there and have their SHA-256 are left alone. An archive is unpacked, also one
    that was copied to its place, without a network.

    Args:
        name: one of `CATALOGUE`.
        folder: the data folder, which gets a folder of this name; None takes $DLGUIDE_DATA or the
            repository's `data`.
        progress: True draws a bar per file; a function is called with the bytes done and in all.

    Returns:
        tuple: a `Fetched` for each file that is read, whether it was downloaded or there.

    Raises:
        TransferError: when it cannot be had: no network, or a publisher who asks for
            registration; the text says what to do instead.
        DataError: when what is there or has come is damaged.
        LockHeldError: when another process downloads it.
    """
    source = CATALOGUE[require_known(name, CATALOGUE, "name")]
    place = data_folder_to_write(folder) / name
    if name in ORIGINALS and (there := _there(name, place)) is not None:
        return there
    if not source.downloads:
        raise TransferError(
            f"{name} cannot be fetched by a program: {source.by_hand}. Download it at "
            f"{source.page} and unpack it below {place}. {source.then} Check it with `dlguide data "
            f"verify {place}`. Without it: dlcourse.synthetic makes data."
        )
    try:
        if source.unpacks:
            return _fetch_archive(source, place, progress)
        return tuple(
            fetch_file(
                each.url, place / each.name, each.sha256, progress=progress, nbytes=each.nbytes
            )
            for each in source.downloads
        )
    except TransferError as error:
        with suppress(OSError):
            place.rmdir()  # when nothing has come
        files = ", ".join(each.url for each in source.downloads)
        raise TransferError(f"{error} {name} needs {len(source.downloads)}: {files}.") from error


def fetch_file(
    url: str,
    path: str | os.PathLike,
    sha256: str | None = None,
    progress: bool | Progress | None = None,
    nbytes: int = 0,
) -> Fetched:
    """Download a file over HTTP; it gets its name when it is whole and checked.

    A file that is there is left alone when it has the checksum, or when none is known.

    Args:
        sha256: in hexadecimal; None when it is not known.
        progress: True draws a bar; a function is called with the bytes done and in all.
        nbytes: for so many bytes the disk must have room before the download begins.

    Returns:
        Fetched: path, length and checksum.

    Raises:
        TransferError: when the file cannot be had or does not have this checksum; the text names
            address and reason and says how to bring it by hand.
        LockHeldError: when another process downloads it.
    """
    require(
        str(url).startswith(("http://", "https://")), "url", "begin with http:// or https://", url
    )
    good = sha256 is None or _SHA256.fullmatch(sha256) is not None
    require(good, "sha256", "be 64 hexadecimal digits in lower case", sha256)
    final = Path(os.path.abspath(path))
    require(not final.is_dir(), "path", "be the name of a file", str(path))
    if not final.is_file():
        require_writable(final.parent, "path", max(1_000_000, nbytes))
    with file_lock(final.with_name(f"{final.name}.lock"), wait=False):
        there = final.is_file() and sha256 in (None, digest(final))
        if not there:
            with reporting(progress, final.name) as report:
                _download(url, final, sha256, report)
    nbytes = final.stat().st_size
    return Fetched(str(final), nbytes, nbytes * (not there), digest(final), sha256 is not None)


class _Bar:
    """What pooch calls while it downloads."""

    def __init__(self, report: Progress) -> None:
        self.total, self._done, self._report = 0, 0, report

    def update(self, nbytes: int) -> None:
        self._done += nbytes
        self._report(self._done, self.total or None)

    def reset(self) -> None:
        self._done = 0

    def close(self) -> None:
        pass


def _download(url: str, final: Path, sha256: str | None, report: Progress) -> None:
    import pooch
    import requests

    def refuse(reply: requests.Response, **_: Any) -> None:
        """Raise at once what would be the same at the next try, and what leads away from TLS."""
        there = urljoin(reply.url, reply.headers.get("Location", ""))
        if reply.url.startswith("https://") and not there.startswith("https://"):
            raise TransferError(
                f"{reply.url} cannot be had: its server leads to {there}, without TLS."
            )
        if reply.status_code in _FINAL:
            raise TransferError(
                f"{url} cannot be had: its server answers {reply.status_code} {reply.reason}, and "
                "would again. Check the address on the publisher's page. If it needs a browser or "
                f"a login, download the file there and copy it to {final}."
            )

    pooch.get_logger().setLevel("ERROR")
    downloader = pooch.HTTPDownloader(
        progressbar=_Bar(report), timeout=_TIMEOUT_S, hooks={"response": refuse}
    )
    files = pooch.create(
        final.parent,
        base_url="",
        registry={final.name: sha256},
        urls={final.name: url},
        retry_if_failed=_TRIES_AGAIN,
    )
    try:
        files.fetch(final.name, downloader=downloader)
    except requests.RequestException as error:
        raise TransferError(
            f"{url} cannot be had: {error}. {_OFFLINE} To bring it by hand, download it where "
            f"there is a network and copy it to {final}."
        ) from error
    except ValueError as error:  # pooch compares the checksum before the file gets its name
        raise TransferError(
            f"{url} is not the file that was expected, with SHA-256 {sha256}: {error} Nothing was "
            f"kept. Ask the publisher, or bring {final} from elsewhere."
        ) from error
    except OSError as error:
        raise TransferError(f"{final} cannot be written: {error.strerror}.") from error


def _fetch_archive(
    source: DataSource, place: Path, progress: bool | Progress | None
) -> tuple[Fetched, ...]:
    """Download the archive, unpack it, and give its folders their names once all is checked."""
    (archive,) = source.downloads
    path = place / archive.name
    packed = fetch_file(archive.url, path, archive.sha256, progress=progress, nbytes=archive.nbytes)
    with file_lock(place / ".unpacking.lock", wait=True):
        for left in place.glob(".unpacking-*"):  # of killed processes: the lock is held
            shutil.rmtree(left, ignore_errors=True)
        if (whole := _there(source.name, place)) is None:
            with tempfile.TemporaryDirectory(prefix=".unpacking-", dir=place) as beside:
                _unpack(path, Path(beside), source.name)
            whole = _there(source.name, place)
    assert whole is not None
    path.unlink(missing_ok=True)
    first, *others = whole
    return replace(first, downloaded_nbytes=packed.downloaded_nbytes), *others


def _unpack(archive: Path, beside: Path, name: str) -> None:
    """Unpack a tar archive; `tarfile` refuses names and links that lead outside, and devices."""
    try:
        with tarfile.open(archive) as packed:
            # Python before 3.11.4 has no filters; the archive's checksum has been compared
            safe = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
            packed.extractall(beside / "all", **safe)
    except (tarfile.TarError, EOFError) as error:
        raise DataError(f"{archive} cannot be unpacked: {error}. Nothing was kept.") from error
    for file in ORIGINALS[name].files:
        made = beside / "all" / file.name
        if not made.is_file() or digest(made) != file.sha256:
            raise DataError(f"{name}: the archive holds no {file.name} as it was published.")
    for made in (beside / "all").iterdir():
        final = archive.with_name(made.name)
        if final.exists():
            final.rename(beside / f"before-{made.name}")
        made.rename(final)


def _there(name: str, place: Path) -> tuple[Fetched, ...] | None:
    """Return the files of a data set when all are there and as published, else None."""
    found = []
    for file in ORIGINALS[name].files:
        path = place / file.name
        same_length = path.is_file() and path.stat().st_size == file.nbytes
        if not same_length or digest(path) != file.sha256:
            if ORIGINALS[name].in_repository:
                what = "is damaged" if path.is_file() else "is not there"
                raise DataError(f"{path} {what}. {restoring(name, place)}")
            return None
        found.append(Fetched(str(path), file.nbytes, 0, file.sha256, True))
    return tuple(found)


@contextmanager
def reporting(
    progress: bool | Progress | None, what: str, unit: str = "bytes"
) -> Iterator[Progress]:
    """Give a function to call with what is done and what there is in all."""
    if callable(progress):
        yield progress
        return
    if not progress:
        yield lambda done, of: None
        return
    from rich import progress as rich_progress
    from rich.console import Console

    counted: tuple = (rich_progress.MofNCompleteColumn(), rich_progress.TextColumn(unit))
    if unit == "bytes":
        counted = (rich_progress.DownloadColumn(), rich_progress.TransferSpeedColumn())
    name = rich_progress.TextColumn("{task.description}", markup=False)
    columns = (name, rich_progress.BarColumn(), *counted, rich_progress.TimeRemainingColumn())
    with rich_progress.Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, of: bar.update(task, completed=done, total=of)
