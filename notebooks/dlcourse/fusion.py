"""Fusion: small tensors copied into one buffer and sent as one message.

Each message costs its latency, however small it is; one message for many tensors pays it once,
and pays for two copies. `fused` returns the messages that Horovod forms, `predict` their cost,
`measure` their cost on the present ranks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dlguide.collectives import allreduce
from dlguide.collectives.agreement import agree_or_raise, require_equal
from dlguide.errors import ranks_in_words, require, require_count
from dlguide.measure import Timing, timing

if TYPE_CHECKING:
    from mpi4py.MPI import Comm

# Horovod 0.28.1 fuses up to this many bytes when HOROVOD_FUSION_THRESHOLD is not set.
HOROVOD_THRESHOLD_NBYTES = 128 * 2**20


@dataclass(frozen=True)
class FusionTiming:
    """The exchange of all tensors with one threshold."""

    threshold_nbytes: int
    messages: int
    timing: Timing


def fused(
    nbytes: Sequence[int], threshold_nbytes: int, dtypes: Sequence[str] | None = None
) -> list[list[int]]:
    """Return which tensors share a message, by Horovod's rule.

    Tensors are taken in the order in which they became ready. The first one opens a message;
    those behind it are added as long as the sum stays within the threshold. At the first that
    does not fit the message ends, and that tensor opens the next one: no later, smaller tensor
    overtakes it. A tensor of another dtype cannot be added and is skipped, as long as what is in
    the message and what was skipped are together within the threshold. A tensor that alone is
    larger than the threshold travels alone.

    On CPUs nothing is rounded up: a message has the sum of its tensors' bytes. On GPUs with
    batched copies each tensor is rounded up to 16 bytes. Leaves out the time: only what is ready
    in the same cycle (HOROVOD_CYCLE_TIME) can be fused, and all tensors are taken to be.

    Source:
        Horovod 0.28.1, docs/tensor-fusion.rst and horovod/common/controller.cc (FuseResponses).

    >>> fused([40, 40, 40, 200, 8], 100)
    [[0, 1], [2], [3], [4]]
    """
    sizes = [require_count(size, "nbytes", least=0) for size in nbytes]
    require_count(threshold_nbytes, "threshold_nbytes", least=0)
    kinds = ["same"] * len(sizes) if dtypes is None else list(dtypes)
    must = f"name the dtype of each of the {len(sizes)} tensors"
    require(len(kinds) == len(sizes), "dtypes", must, dtypes)
    ready, messages = deque(range(len(sizes))), []
    while ready:
        message, skipped = [ready.popleft()], []
        filled, passed = sizes[message[0]], 0
        while ready:
            size = sizes[ready[0]]
            alike_kinds = kinds[ready[0]] == kinds[message[0]]
            if alike_kinds and filled + size <= threshold_nbytes:
                message.append(ready.popleft())
                filled += size
            else:
                passed += size
                if filled + passed > threshold_nbytes:
                    break
                skipped.append(ready.popleft())
        ready.extendleft(reversed(skipped))
        messages.append(message)
    return messages


def predict(
    nbytes: Sequence[int],
    threshold_nbytes: int,
    latency_s: float,
    bytes_per_s: float,
    copy_bytes_per_s: float = float("inf"),
) -> float:
    """Predict the time to exchange all tensors, message after message.

    A message of n bytes takes latency_s + n / bytes_per_s. What was fused is copied into the
    buffer and out of it; a tensor that travels alone is not:

        t = sum over messages of (latency_s + n / bytes_per_s + [fused] 2 n / copy_bytes_per_s)

    Leaves out negotiation, and that a speed depends on the size.

    Args:
        nbytes: size of each tensor, in the order of readiness (bytes).
        threshold_nbytes: as in `fused` (bytes).
        latency_s: time of an allreduce of no bytes (s).
        bytes_per_s: bytes of the tensor, not of the wire, that a large allreduce finishes in a
            second (bytes/s).
        copy_bytes_per_s: speed of a copy in memory (bytes/s).

    Returns:
        float: time until all tensors are exchanged (s).

    Raises:
        ValueError: as `fused`, or when a speed is not positive or the latency negative.

    >>> round(1e6 * predict([1000] * 10, 0, latency_s=1e-5, bytes_per_s=1e9))
    110
    """
    require(latency_s >= 0, "latency_s", "be at least 0", latency_s)
    require(bytes_per_s > 0, "bytes_per_s", "be a positive number", bytes_per_s)
    require(copy_bytes_per_s > 0, "copy_bytes_per_s", "be a positive number", copy_bytes_per_s)
    seconds = 0.0
    for message in fused(nbytes, threshold_nbytes):
        size = sum(nbytes[place] for place in message)
        copies = 2 * size / copy_bytes_per_s if len(message) > 1 else 0.0
        seconds += latency_s + size / bytes_per_s + copies
    return seconds


def exchange(
    tensors: Sequence[np.ndarray],
    comm: Comm,
    threshold_nbytes: int = HOROVOD_THRESHOLD_NBYTES,
    algorithm: str = "auto",
) -> int:
    """Sum tensors over all ranks, in place, several in one message where they fit; collective.

    Args:
        tensors: contiguous arrays in the order of readiness; they hold the sums afterwards.
        comm: the ranks; all must call with the same shapes, dtypes and arguments.
        threshold_nbytes: as in `fused` (bytes).
        algorithm: of `dlguide.collectives.allreduce`.

    Returns:
        int: messages sent (count).

    Raises:
        ValueError: on all ranks alike, when they differ.
    """
    kinds = [(tensor.shape, str(tensor.dtype)) for tensor in tensors]
    require_equal(comm, tensors=kinds, threshold_nbytes=threshold_nbytes, algorithm=algorithm)
    with agree_or_raise(comm):
        send = _sender(tensors, comm, threshold_nbytes, algorithm)
    return send()


def _sender(
    tensors: Sequence[np.ndarray], comm: Any, threshold_nbytes: int, algorithm: str
) -> Callable[[], int]:
    """Lay out the buffers once, as Horovod does, and return what fills and sends them."""
    for tensor in tensors:
        flat = isinstance(tensor, np.ndarray) and tensor.flags.c_contiguous
        require(flat, "tensors", "be contiguous NumPy arrays", type(tensor).__name__)
    nbytes, dtypes = [t.nbytes for t in tensors], [str(t.dtype) for t in tensors]
    messages = []
    for places in fused(nbytes, threshold_nbytes, dtypes):
        parts = [tensors[place].reshape(-1) for place in places]
        size = sum(part.size for part in parts)
        buffer = np.empty(size, parts[0].dtype) if len(parts) > 1 else parts[0]
        ends = np.cumsum([part.size for part in parts])[:-1]
        messages.append((buffer, list(zip(parts, np.split(buffer, ends), strict=True))))

    def send() -> int:
        for buffer, pairs in messages:
            if len(pairs) > 1:
                for part, room in pairs:
                    room[:] = part
            allreduce(buffer, comm, algorithm=algorithm, check=False)
            if len(pairs) > 1:
                for part, room in pairs:
                    part[:] = room
        return len(messages)

    return send


def measure(
    comm: Comm,
    nbytes: Sequence[int],
    thresholds: Sequence[int] = (0, HOROVOD_THRESHOLD_NBYTES),
    repeats: int = 7,
    warmup: int = 2,
    algorithm: str = "auto",
) -> list[FusionTiming]:
    """Time the exchange of tensors with several thresholds; collective.

    First every threshold must give the sums that NumPy gives, on every rank. Then each exchange
    is repeated, and counts as long as the slowest rank took.

    Args:
        comm: the ranks; all must call with the same arguments.
        nbytes: size of each tensor, multiples of 4: they hold float32 (bytes).
        thresholds: to compare, as in `fused` (bytes).
        repeats: exchanges that count (count).
        warmup: exchanges before them (count).
        algorithm: of `dlguide.collectives.allreduce`.

    Returns:
        list: a `FusionTiming` for each threshold, equal on all ranks.

    Raises:
        ValueError: on all ranks alike, when an argument is not what it must be.
        ArithmeticError: on all ranks alike, when a threshold gives another sum.
    """
    arguments = {"nbytes": list(nbytes), "thresholds": list(thresholds), "repeats": repeats}
    require_equal(comm, **arguments, warmup=warmup, algorithm=algorithm)
    for size in nbytes:
        whole = require_count(size, "nbytes") % 4 == 0
        require(whole, "nbytes", "be multiples of the 4 bytes of a float32", size)
    require(bool(thresholds), "thresholds", "hold at least one size", list(thresholds))
    found = []
    for threshold in thresholds:
        tensors = _tensors(nbytes, comm.rank)
        messages = exchange(tensors, comm, threshold, algorithm)
        _require_sums(comm, tensors, nbytes, threshold)
        for tensor in tensors:
            tensor[:] = 0.0  # sums of sums would overflow
        send = _sender(tensors, comm, threshold, algorithm)
        found.append(FusionTiming(threshold, messages, timing(send, repeats, warmup, comm)))
    return found


def _tensors(nbytes: Sequence[int], rank: int) -> list[np.ndarray]:
    """Make whole numbers, whose float32 sums are exact in any order, different on each rank."""
    return [
        ((np.arange(size // 4) + 7 * place + 31 * rank) % 1000).astype(np.float32)
        for place, size in enumerate(nbytes)
    ]


def _require_sums(
    comm: Any, tensors: Sequence[np.ndarray], nbytes: Sequence[int], threshold: int
) -> None:
    expected = [np.zeros_like(tensor) for tensor in tensors]
    for rank in range(comm.size):
        for total, part in zip(expected, _tensors(nbytes, rank), strict=True):
            total += part
    right = all(map(np.array_equal, tensors, expected))
    wrong = [rank for rank, each in enumerate(comm.allgather(right)) if not each]
    if wrong:
        at = ranks_in_words(wrong)
        raise ArithmeticError(f"With a threshold of {threshold} bytes the sums are wrong on {at}.")
