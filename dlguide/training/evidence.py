"""Evidence: what one rank of a training did, in plain numbers, for `dlguide.training.audit`."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from dlguide.errors import require, require_known


@dataclass(frozen=True)
class Seed:
    """A seed of one rank: name, value, and whether it should differ between ranks."""

    name: str
    value: int | str
    differs: bool


@dataclass(frozen=True)
class Metric:
    """A metric as one rank reports it at the end.

    name, value, samples (of this rank that it is the mean of, count), averaged (over the ranks:
    True or False; None when nobody said so, and the values tell).
    """

    name: str
    value: float
    samples: int
    averaged: bool | None


@dataclass(frozen=True)
class Call:
    """A collective as one rank called it: name, shape and dtype of its array."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.name} {self.dtype}{list(self.shape)}"


@dataclass(frozen=True)
class Evidence:
    """What one rank of a training did; what was not recorded is empty or None.

    Who: rank (index), ranks (count).
    Weights: first_weights (digest of the trainable weights after the broadcast), last_weights
        (the same at the end), statistics (digest of the moving means and variances of batch
        normalisation at the end).
    Data: seen (for each epoch the samples' ids in order, see `ids_of`), batches (for each epoch
        the samples of each step, count), steps (for each epoch, count), samples (of the data
        set, over all ranks, count), distinct (different ones among them, count).
    Rate: learning_rate (the highest of any epoch, as used), rate_of_one_rank (what it would be
        on one rank), rate_rule ("linear", "sqrt", "none"; empty for the optimizer's usual one),
        optimizer (its kind, such as "sgd").
    And: seeds, metrics, checkpoints (files that this rank wrote), calls (collectives in order),
        step_s (time of each step, s), images_per_s (the throughput that was reported).
    """

    rank: int
    ranks: int
    first_weights: str = ""
    last_weights: str = ""
    statistics: str = ""
    seen: tuple[tuple[int, ...], ...] = ()
    batches: tuple[tuple[int, ...], ...] = ()
    steps: tuple[int, ...] = ()
    samples: int | None = None
    distinct: int | None = None
    learning_rate: float | None = None
    rate_of_one_rank: float | None = None
    rate_rule: str = ""
    optimizer: str = ""
    seeds: tuple[Seed, ...] = ()
    metrics: tuple[Metric, ...] = ()
    checkpoints: tuple[str, ...] = ()
    calls: tuple[Call, ...] = ()
    step_s: tuple[float, ...] = ()
    images_per_s: float | None = None

    def to_json(self) -> str:
        """Write it as one line of JSON, which `from_json` reads back."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Evidence:
        """Read an Evidence back from what `to_json` wrote."""
        record = json.loads(text)
        require(isinstance(record, dict), "text", "be a JSON object", text[:60])
        for name in record:
            require_known(name, [one.name for one in fields(cls)], "text")
        missing = [name for name in ("rank", "ranks") if name not in record]
        require(not missing, "text", "name rank and ranks", f"none named {missing}")
        values = {name: _tuples(value) for name, value in record.items()}
        values["seeds"] = tuple(Seed(**one) for one in record.get("seeds", ()))
        values["metrics"] = tuple(Metric(**one) for one in record.get("metrics", ()))
        values["calls"] = tuple(
            Call(one["name"], tuple(one["shape"]), one["dtype"]) for one in record.get("calls", ())
        )
        return cls(**values)


def ids_of(images: Any) -> tuple[int, ...]:
    """Name samples by their contents: the CRC-32 of each one's bytes.

    So any pipeline can be watched without its help. Two samples of equal bytes have one id, and
    two different ones do so by chance once in 4 294 967 296 pairs. What is changed at random
    before it is looked at (augmentation) has another id each time: look before that.

    >>> hex(ids_of(np.frombuffer(b"123456789", np.uint8)[None])[0])
    '0xcbf43926'
    """
    array = np.asarray(images)
    require(array.ndim > 0, "images", "be an array of samples", images if array.ndim == 0 else "")
    return tuple(zlib.crc32(np.ascontiguousarray(sample).tobytes()) for sample in array)


def digest_of(arrays: Iterable[Any]) -> str:
    """Give the SHA-256 of the bytes of arrays; equal digests mean equal arrays, bit by bit."""
    digest, count = hashlib.sha256(), 0
    for array in arrays:
        contents = np.ascontiguousarray(array)
        digest.update(f"{contents.dtype.name}{contents.shape}".encode())
        digest.update(contents.tobytes())
        count += 1
    return digest.hexdigest() if count else ""


def _tuples(value: Any) -> Any:
    return tuple(_tuples(one) for one in value) if isinstance(value, list) else value
