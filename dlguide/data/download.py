"""Where data sets come from, and downloading those that a program can have.

from dlguide.data import download

download.fetch("fashion_mnist", progress=True)
"""

from __future__ import annotations

import os
import tarfile
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

from dlguide.data.datasets import CIFAR_ARCHIVE, MNIST_PUBLISHED, ORIGINALS, Original, place_of
from dlguide.errors import DataError, TransferError, require, require_component, require_known
from dlguide.files import data_folder_to_write, require_writable, sha256

__all__ = ["CATALOGUE", "fetch", "fetch_file"]

_TIMEOUT_S = 30.0  # the longest silence of a server
Progress = Callable[[int, int | None], object]


@dataclass(frozen=True)
class DataSource:
    """Where a data set comes from.

    Args:
        page: of the publisher.
        base: what the addresses of `downloads` begin with.
        downloads: the files, or one archive; empty when a program cannot have them.
        then: why a program cannot have it and what to do with the archives, sentences.
    """

    name: str
    title: str
    page: str
    base: str = ""
    downloads: tuple[Original, ...] = ()
    then: str = ""

    @property
    def nbytes(self) -> int:
        """Bytes to download."""
        return sum(file.nbytes for file in self.downloads)


_CIFAR = Original(
    CIFAR_ARCHIVE,
    "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    170_052_171,
)
CATALOGUE = {
    source.name: source
    for source in (
        DataSource(
            "mnist",
            "MNIST, 70 000 digits of 28 x 28",
            "http://yann.lecun.com/exdb/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
            MNIST_PUBLISHED,
        ),
        DataSource(
            "fashion_mnist",
            "Fashion-MNIST, 70 000 articles of clothing of 28 x 28",
            "https://github.com/zalandoresearch/fashion-mnist",
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
            ORIGINALS["fashion_mnist"].files,
        ),
        DataSource(
            "cifar10",
            "CIFAR-10, 60 000 colour images of 32 x 32, binary version",
            "https://www.cs.toronto.edu/~kriz/cifar.html",
            "https://www.cs.toronto.edu/~kriz/",
            (_CIFAR,),
        ),
        DataSource(
            "imagenet",
            "ImageNet ILSVRC 2012, 1.28 million images",
            "https://www.image-net.org/download.php",
            then="Its publishers ask for registration and consent to their terms. The training "
            "archive holds an archive per class: unpack each into `train/CLASS`, and sort the "
            "validation images into `val/CLASS` by their list.",
        ),
        DataSource(
            "chestxray14",
            "NIH ChestX-ray14, 112 120 radiographs",
            "https://nihcc.app.box.com/v/ChestXray-NIHCC",
            then="Its publishers offer it on a page for browsers, under terms to be read there. "
            "Unpack each archive into a folder with its name: `images_001`, `images_002`.",
        ),
        DataSource(
            "kitti_tracking",
            "KITTI tracking, 21 sequences of street scenes",
            "https://www.cvlibs.net/datasets/kitti/eval_tracking.php",
            then="Its publishers ask for registration. Unpack data_tracking_image_2.zip: the "
            "folder that holds `image_02` is the data set.",
        ),
    )
}


def fetch(
    name: str, folder: str | os.PathLike | None = None, progress: bool | Progress | None = None
) -> tuple[Path, ...]:
    """Bring a data set into the data folder, as `dlguide.data.datasets.load` reads it.

    Files that are there and have their SHA-256 are left alone. An archive is unpacked, also one
    that was copied to its place, without a network.

    Args:
        name: one of `CATALOGUE`.
        folder: the data folder, which gets a folder of this name; None takes $DLGUIDE_DATA, the
            `data` folder of the clone, or else `data` in the user's cache.
        progress: True draws a bar per file; a function is called with the bytes done and in all.

    Returns:
        tuple: the files that are read.

    Raises:
        TransferError: when it could not be downloaded: no network, or a publisher who asks for
            registration; the text says what to do instead.
        DataError: when what has come is damaged.
    """
    source = CATALOGUE[require_known(name, CATALOGUE, "name")]
    place = data_folder_to_write(folder) / name
    if name in ORIGINALS:
        at = place_of(name, folder)
        files = [(at / file.name, file.sha256) for file in ORIGINALS[name].files_in(at)]
        if all(path.is_file() and sha256(path) == digest for path, digest in files):
            return tuple(path for path, _ in files)
    if not source.downloads:
        raise TransferError(
            f"{name} cannot be fetched by a program. {source.then} Download it at {source.page} "
            f"and unpack it below {place}; check it with `dlguide data verify {place}`."
        )
    paths = []
    for file in source.downloads:
        require_writable(place, "folder", file.nbytes)
        url, path = source.base + file.name, place / file.name
        try:
            paths.append(fetch_file(url, path, file.sha256, progress, file.nbytes))
        except TransferError:
            with suppress(OSError):
                place.rmdir()  # when nothing has come
            raise
    if paths[0].name.endswith(".tar.gz"):
        return _unpack(paths[0], name)
    return tuple(paths)


def fetch_file(
    url: str,
    path: str | os.PathLike,
    digest: str | None = None,
    progress: bool | Progress | None = None,
    nbytes: int | None = None,
) -> Path:
    """Download a file over HTTP; it gets its name when it is whole and checked.

    A file that is there is left alone when it has the checksum, or when none is known.

    Args:
        digest: SHA-256 in hexadecimal; None when it is not known.
        progress: True draws a bar; a function is called with the bytes done and in all.
        nbytes: its length: when more than that comes, reading stops; None when it is not known.

    Returns:
        Path: of the file.

    Raises:
        TransferError: when the file could not be downloaded or does not have this checksum; the
            text names address and reason and says how to bring it by hand.
    """
    pooch = require_component("pooch")
    import requests

    final = Path(os.path.abspath(path))
    known = url.startswith(("http://", "https://"))
    require(known, "url", "begin with http:// or https://", url)
    require(not final.is_dir(), "path", "be the name of a file", str(path))
    require_writable(final.parent, "path")
    by_hand = f"To bring it by hand, download it where there is a network and copy it to {final}."
    pooch.get_logger().setLevel("ERROR")
    try:
        with reporting(progress, final.name) as report:
            pooch.retrieve(
                url,
                digest,
                final.name,
                final.parent,
                downloader=pooch.HTTPDownloader(
                    progressbar=_Bar(report),
                    timeout=_TIMEOUT_S,
                    hooks={"response": [_stay_on_tls, partial(_stop_after, nbytes)]},
                ),
            )
    except requests.RequestException as error:
        raise TransferError(f"{url} could not be downloaded: {error}. {by_hand}") from error
    except ValueError as error:  # pooch compares the checksum before the file gets its name
        raise TransferError(
            f"{url} is not the file that was expected, with SHA-256 {digest}. Nothing was kept. "
            f"{by_hand}"
        ) from error
    except OSError as error:
        raise TransferError(f"{final} cannot be written: {error.strerror}.") from error
    return final


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


def _stay_on_tls(reply: Any, **_: Any) -> None:
    there = urljoin(reply.url, reply.headers.get("Location", ""))
    if reply.url.startswith("https://") and not there.startswith("https://"):
        raise TransferError(
            f"{reply.url} could not be downloaded: it leads to {there}, without TLS."
        )


def _stop_after(nbytes: int | None, reply: Any, **_: Any) -> None:
    """Read no more than a file has: a server may send without end."""
    read = reply.iter_content

    def at_most(*arguments: Any, **named: Any) -> Iterator[bytes]:
        done = 0
        for chunk in read(*arguments, **named):
            done += len(chunk)
            if done > nbytes:
                what = f"is not the file that was expected: it has more than {nbytes} bytes"
                raise TransferError(f"{reply.url} {what}. Nothing was kept.")
            yield chunk

    if nbytes is not None:
        reply.iter_content = at_most


def _unpack(archive: Path, name: str) -> tuple[Path, ...]:
    """Unpack a tar archive whose checksum was compared; its folders get their names when whole."""
    files = ORIGINALS[name].files
    with tempfile.TemporaryDirectory(prefix=".unpacking-", dir=archive.parent) as beside:
        try:
            with tarfile.open(archive) as packed:
                # Python before 3.11.4 has no filters
                safe = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
                packed.extractall(beside, **safe)
        except (tarfile.TarError, EOFError) as error:
            raise DataError(f"{archive} cannot be unpacked: {error}. Nothing was kept.") from error
        for file in files:
            made, final = Path(beside, file.name), archive.parent / file.name
            if not made.is_file() or sha256(made) != file.sha256:
                raise DataError(f"{name}: the archive holds no {file.name} as it was published.")
            final.parent.mkdir(exist_ok=True)
            os.replace(made, final)
    archive.unlink(missing_ok=True)
    return tuple(archive.parent / file.name for file in files)


def adding(report: Progress, total: int) -> Callable[[int], None]:
    """Give a function that adds up bytes and reports their sum; threads may call it at once."""
    done, alone = 0, threading.Lock()

    def add(nbytes: int) -> None:
        nonlocal done
        with alone:
            done += nbytes
            report(done, total)

    return add


@contextmanager
def reporting(
    progress: bool | Progress | None, what: str, unit: str = "bytes"
) -> Iterator[Progress]:
    """Give a function to call with what is done and what there is in all."""
    if progress is not True:
        yield progress or (lambda done, of: None)
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
