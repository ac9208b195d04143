"""What is read in an epoch: files opened, requests and bytes, for each way to store samples."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dlguide.errors import require, require_count, require_known, require_positive


@dataclass(frozen=True)
class Reading:
    """What all clients together do in an epoch."""

    files: int
    file_nbytes: float
    opens: int
    requests: int
    nbytes: float

    def __post_init__(self) -> None:
        for name in ("files", "opens", "requests"):
            require_count(getattr(self, name), name)
        for name in ("file_nbytes", "nbytes"):
            require_positive(getattr(self, name), name)


def one_file_each(samples: int, sample_nbytes: float, request_nbytes: float = 1 << 20) -> Reading:
    """Describe an epoch in which every sample is a file of its own."""
    samples = require_count(samples, "samples")
    nbytes = require_positive(sample_nbytes, "sample_nbytes")
    each = math.ceil(nbytes / require_positive(request_nbytes, "request_nbytes"))
    return Reading(samples, nbytes, samples, samples * each, samples * nbytes)


def packed(
    samples: int,
    sample_nbytes: float,
    files: int,
    clients: int,
    access: str = "sequential",
    request_nbytes: float = 1 << 20,
) -> Reading:
    """Describe an epoch in which the samples lie in a few large files.

    "sequential": each client reads its own files or its own part of a file from begin to end, in
    requests of full size (TFRecord). "random": each client opens every file once and reads its
    samples one by one, wherever they lie (LMDB, HDF5).
    """
    samples = require_count(samples, "samples")
    sample_nbytes = require_positive(sample_nbytes, "sample_nbytes")
    files, clients = require_count(files, "files"), require_count(clients, "clients")
    require(files <= samples, "files", f"be at most the {samples} samples", files)
    request_nbytes = require_positive(request_nbytes, "request_nbytes")
    require_known(access, ("random", "sequential"), "access")
    nbytes = samples * sample_nbytes
    if access == "random":
        opens, requests = files * clients, samples * math.ceil(sample_nbytes / request_nbytes)
    else:
        opens = max(files, clients)
        requests = max(opens, math.ceil(nbytes / request_nbytes))
    return Reading(files, nbytes / files, opens, requests, nbytes)
