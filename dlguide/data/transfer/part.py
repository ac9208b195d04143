"""What has come of a file over HTTP, and asking for what is missing."""

from __future__ import annotations

import errno
import http.client
import json
import os
import re
import socket
import ssl
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, BinaryIO

from dlguide.data.transfer.progress import Progress
from dlguide.files import require_writable

_BLOCK = 1 << 20
# Answers that another attempt may change; every other 4xx stays as it is.
_PASSING = {408, 425, 429, 500, 502, 503, 504}
_NO_NETWORK = {errno.ENETUNREACH, errno.ENETDOWN, errno.EHOSTUNREACH}


class Failed(Exception):
    """An attempt that failed; `lasting` when another one would fail in the same way."""

    def __init__(self, text: str, lasting: bool = False, wait_s: float = 0.0) -> None:
        super().__init__(text)
        self.lasting, self.wait_s = lasting, wait_s


class Part:
    """What has come of a file, and by what the server knows its version."""

    def __init__(self, url: str, final: Path, timeout_s: float, report: Progress) -> None:
        self.url, self.final = url, final
        self.timeout_s, self.report = timeout_s, report
        self.path = final.with_name(f"{final.name}.part")
        self.facts_path = final.with_name(f"{final.name}.part.json")
        self.received = 0

    @property
    def nbytes(self) -> int:
        """How many bytes have come."""
        return self.path.stat().st_size if self.path.exists() else 0

    def forget(self) -> None:
        """Begin again from the first byte."""
        self.path.unlink(missing_ok=True)
        self.facts_path.unlink(missing_ok=True)

    def receive(self) -> bool:
        """Ask once for what is missing; tells whether the earlier part was taken up."""
        version = self._version()
        start = self.nbytes if version else 0
        headers = {"User-Agent": "dlguide", "Accept-Encoding": "identity"}
        if start:
            headers |= {"Range": f"bytes={start}-", "If-Range": version}
        try:
            request = urllib.request.Request(self.url, headers=headers)
            with urllib.request.urlopen(request, timeout=self.timeout_s) as reply:
                return self._take(reply, start, version)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 416:
                if start and self._is_whole(error, start, version):
                    self.report(start, start)
                    return True
                self.forget()  # the file has become shorter than our part
                raise Failed("it has changed since the last attempt") from error
            wait = error.headers.get("Retry-After", "")
            raise Failed(
                f"the server answers {error.code} {error.reason}",
                error.code not in _PASSING,
                float(wait) if wait.isdigit() else 0.0,
            ) from error
        except urllib.error.URLError as error:
            raise _failed(error.reason) from error
        except (OSError, http.client.HTTPException) as error:
            raise _failed(error) from error

    def _is_whole(self, error: Any, nbytes: int, version: str) -> bool:
        """Tell from the refusal of a range whether nothing is missing."""
        told = error.headers.get("Content-Range", "")
        return told == f"bytes */{nbytes}" and _version_of(error) in ("", version)

    def _take(self, reply: Any, start: int, version: str) -> bool:
        safe = reply.url.startswith("https://") or self.url.startswith("http://")
        if not safe or not reply.url.startswith("http"):
            raise Failed(f"the server sends us on to {reply.url}, which is not safe", lasting=True)
        resumed = reply.status == 206
        first, total = _range(reply) if resumed else (0, _length(reply))
        if resumed and (first != start or _version_of(reply) not in ("", version)):
            self.forget()
            raise Failed("the server sends another part than was asked for")
        if not resumed:
            self._begin(_version_of(reply))
            start = 0
        mode = "ab" if resumed else "wb"
        with open(self.path, mode) as file:
            self._check_room(total, start)
            self._copy(reply, file, start, total)
        if total is not None and self.nbytes != total:
            raise Failed(f"the connection ended after {self.nbytes} of {total} bytes")
        return resumed

    def _copy(self, reply: Any, file: BinaryIO, done: int, total: int | None) -> None:
        self.report(done, total)
        # read1 hands on what has come, so that a break loses nothing of it
        while block := reply.read1(_BLOCK):
            try:
                file.write(block)
            except OSError as error:  # a full disk is no fault of the network
                raise Failed(f"{self.path}: {error.strerror}", lasting=True) from error
            done += len(block)
            self.received += len(block)
            self.report(done, total)
        file.flush()
        os.fsync(file.fileno())

    def _check_room(self, total: int | None, start: int) -> None:
        if total is not None:
            require_writable(self.path.parent, "path", max(total - start, 0))

    def _version(self) -> str:
        """Return the version of the server's file that the part is of; empty when unknown."""
        try:
            facts = json.loads(self.facts_path.read_text(encoding="utf-8"))
            return str(facts["version"]) if facts["url"] == self.url else ""
        except (OSError, ValueError, KeyError, TypeError):
            return ""  # then it is downloaded from the start

    def _begin(self, version: str) -> None:
        self.forget()
        facts = json.dumps({"url": self.url, "version": version})
        self.facts_path.write_text(facts, encoding="utf-8")


def _version_of(reply: Any) -> str:
    """Return what tells one version of the server's file from the next; empty for nothing.

    A weak ETag (W/...) says that two versions mean the same, not that their bytes are the same.
    """
    tag = reply.headers.get("ETag", "")
    return tag if tag.startswith('"') else reply.headers.get("Last-Modified", "")


def _length(reply: Any) -> int | None:
    length = reply.headers.get("Content-Length", "")
    return int(length) if length.isdigit() else None


def _range(reply: Any) -> tuple[int, int | None]:
    found = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", reply.headers.get("Content-Range", ""))
    if found is None:
        return -1, None
    return int(found[1]), None if found[2] == "*" else int(found[2])


def _failed(reason: Any) -> Failed:
    if isinstance(reason, TimeoutError):
        return Failed("the server is silent")
    if isinstance(reason, socket.gaierror):
        return Failed(f"no network, or no such server ({reason.strerror})", lasting=True)
    if isinstance(reason, OSError) and reason.errno in _NO_NETWORK:
        return Failed(f"no network ({reason.strerror})", lasting=True)
    if isinstance(reason, ssl.SSLCertVerificationError):
        return Failed(f"the server's certificate is not valid ({reason})", lasting=True)
    text = getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
    return Failed(text)
