"""Downloading one file: taken up where it stopped, checked, and named only when it is whole."""

from __future__ import annotations

import hashlib
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

from dlguide.data.transfer.errors import TransferError
from dlguide.data.transfer.part import Failed, Part
from dlguide.data.transfer.progress import Progress, reporting
from dlguide.errors import require, require_count, require_positive
from dlguide.files import file_lock, require_writable

_LONGEST_WAIT_S = 60.0
_SHA256 = re.compile(r"[0-9a-f]{64}")
OFFLINE = (
    "Without a network: mnist is part of this repository, and dlguide.data.synthetic makes data."
)


@dataclass(frozen=True)
class Fetched:
    """A file that was brought here.

    path, nbytes (of the file), downloaded_nbytes (that came over the network now: 0 when it was
    there already), seconds, sha256 (of the file), checked (whether it was held against a
    checksum that was known before).
    """

    path: str
    nbytes: int
    downloaded_nbytes: int
    seconds: float
    sha256: str
    checked: bool


def fetch_file(
    url: str,
    path: str | os.PathLike,
    sha256: str | None = None,
    timeout_s: float = 30.0,
    tries: int = 5,
    wait_s: float = 1.0,
    progress: bool | Progress | None = None,
) -> Fetched:
    """Download a file over HTTP and give it its name when it is whole and checked.

    What has come is in `path.part`. A later call takes it up where it stopped, when the server
    can send a part and its file is still the same (by ETag or Last-Modified); otherwise from
    the start. A server that fails is asked again after growing waits: `wait_s`, twice as long,
    four times, up to a minute; an attempt that brought more bytes starts the count anew.

    A file that is there is left alone when it has the checksum, or when none is known.

    Args:
        url: address, http or https.
        path: name of the file to write.
        sha256: its SHA-256 in hexadecimal; None when nobody knows it, then only the length that
            the server tells is checked.
        timeout_s: the longest silence of the server (s).
        tries: attempts in a row that bring nothing before it gives up (count).
        wait_s: wait before the second attempt (s).
        progress: True draws a bar; a function is called with the bytes done and in all.

    Returns:
        Fetched: path, length and checksum.

    Raises:
        ValueError: when an argument is not what it must be, or the disk is too full.
        TransferError: when the file cannot be had or is not the one with this checksum; the
            text names address and reason and says how to bring it by hand.
    """
    require(
        str(url).startswith(("http://", "https://")), "url", "begin with http:// or https://", url
    )
    good = sha256 is None or _SHA256.fullmatch(sha256) is not None
    require(good, "sha256", "be 64 hexadecimal digits in lower case", sha256)
    require_positive(timeout_s, "timeout_s")
    require_positive(wait_s, "wait_s")
    require_count(tries, "tries")
    final = Path(os.path.abspath(path))
    require(not final.is_dir(), "path", "be the name of a file", str(path))
    require_writable(final.parent, "path")
    started = time.monotonic()
    with file_lock(final.with_name(f"{final.name}.lock"), wait=False):
        if final.exists():
            found = digest(final)
            if sha256 in (None, found):
                seconds = time.monotonic() - started
                return Fetched(
                    str(final), final.stat().st_size, 0, seconds, found, sha256 is not None
                )
        with reporting(progress, final.name) as report:
            part = Part(url, final, timeout_s, report)
            found = _whole(part, tries, wait_s, sha256)
        os.replace(part.path, final)
        part.facts_path.unlink(missing_ok=True)
    seconds = time.monotonic() - started
    nbytes = final.stat().st_size
    return Fetched(str(final), nbytes, part.received, seconds, found, sha256 is not None)


def _whole(part: Part, tries: int, wait_s: float, sha256: str | None) -> str:
    """Download until the part is whole, and return its SHA-256."""
    # a part that was taken up may have been wrong before, so there is a second time, not a third
    for _ in range(2):
        resumed = _receive(part, tries, wait_s)
        found = digest(part.path)
        if sha256 in (None, found):
            return found
        part.forget()
        if not resumed:
            break
    raise TransferError(
        f"{part.url} is not the file that was expected: its SHA-256 is {found}, not {sha256}. "
        f"Nothing was kept. Ask who publishes it, or bring {part.final} from elsewhere."
    )


def _receive(part: Part, tries: int, wait_s: float) -> bool:
    """Ask until all has come; tells whether an earlier part was taken up."""
    most, failures, resumed = part.nbytes, 0, False
    while True:
        try:
            resumed |= part.receive()
            return resumed
        except Failed as error:
            failed = error
        failures = failures + 1 if part.nbytes <= most else 1
        most = max(most, part.nbytes)
        resumed |= part.nbytes > 0
        if failed.lasting or failures >= tries:
            raise TransferError(
                f"{part.url} cannot be had: {failed}. {OFFLINE} To bring it by hand, download it "
                f"where there is a network and copy it to {part.final}."
            ) from failed
        time.sleep(min(max(wait_s * 2 ** (failures - 1), failed.wait_s), _LONGEST_WAIT_S))


def digest(path: Path) -> str:
    """Compute the SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
