"""The format of Horovod's timeline: begins and ends of tensors' activities, paired and grouped.

The file is a list of records in the form of Chrome's trace viewer. Each tensor is a "process"
with a number, and a record says what begins or ends in it: first the negotiation, then the
operation, and within that its activities, one after the other.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from dlguide.errors import require

NEGOTIATION, WAITING, PREPARING = "negotiation", "waiting", "preparing"
COPY_IN, EXCHANGE, COPY_OUT, OTHER = "copy in", "exchange", "copy out", "other"
PHASES = (NEGOTIATION, WAITING, PREPARING, COPY_IN, EXCHANGE, COPY_OUT, OTHER)
# From the ranks' agreement to the start of the operation: behind other messages of the cycle.
ITS_TURN = "ITS_TURN"
_BEGINS = {
    "MEMCPY_IN": COPY_IN,
    "MEMCPY_OUT": COPY_OUT,
    "QUEUE": WAITING,
    "WAIT_FOR": WAITING,
    "INIT": PREPARING,
    "ALLOCATE": PREPARING,
    **dict.fromkeys(("MPI_", "GLOO_", "NCCL_", "CCL_", "DDL_", "ADASUM", "COMM_"), EXCHANGE),
}


@dataclass(frozen=True)
class Event:
    """One stretch of time of one tensor.

    Args:
        tensor: Horovod's name of it.
        operation: "allreduce", "broadcast", "allgather", ...
        phase: one of `PHASES`.
        activity: Horovod's word, such as MPI_ALLREDUCE; `ITS_TURN` for the time between the
            negotiation and the operation, which has no word.
        start_s: begin, after the start of the recording (s).
        end_s: end (s).
    """

    tensor: str
    operation: str
    phase: str
    activity: str
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Message:
    """What went in one operation: one tensor, or several that were fused.

    Args:
        operation: "allreduce", "broadcast", "allgather", ...
        tensors: their names, in the order in the buffer.
        start_s: begin, copying included (s).
        end_s: end (s).
        nbytes: size of the results of all tensors (bytes); None where the file does not say.
    """

    operation: str
    tensors: tuple[str, ...]
    start_s: float
    end_s: float
    nbytes: int | None


@dataclass(frozen=True)
class Operation:
    """One tensor's part in a message.

    Args:
        message: which one (index).
        name: "allreduce", ...
        tensor: Horovod's name of it.
        start_s: begin (s).
        end_s: end (s).
        nbytes: size of its result (bytes); None where the file does not say.
    """

    message: int
    name: str
    tensor: str
    start_s: float
    end_s: float
    nbytes: int | None


def parsed(text: str, path: str) -> tuple[list[dict[str, Any]], bool]:
    """Take the records out of a file's text, as far as they are whole."""
    then = "Horovod writes it on rank 0, and closes it when the recording ends."
    require(text.lstrip().startswith("["), "path", "be a Horovod timeline", path, then)
    decoder = json.JSONDecoder()
    place, records = text.index("[") + 1, []
    while True:
        while place < len(text) and text[place] in ", \n\r\t":
            place += 1
        try:
            record, place = decoder.raw_decode(text, place)
        except json.JSONDecodeError:
            break
        known = isinstance(record, dict) and isinstance(record.get("ph"), str)
        timed = known and (record["ph"] == "M" or isinstance(record.get("ts"), int | float))
        require(timed, "path", f"be a Horovod timeline, without {record!r:.60}", path, then)
        records.append(record)
    require(bool(records), "path", "hold at least one whole record", path, then)
    return records, text[place:].strip() == "]"


def paired(
    records: Sequence[dict[str, Any]],
) -> tuple[list[Operation], list[Event], list[float]]:
    """Join begins and ends.

    The operations of a message begin one right after the other, before any of its activities.
    """
    names = {
        record["pid"]: record["args"]["name"]
        for record in records
        if record.get("name") == "process_name" and "name" in record.get("args", {})
    }
    under_way: dict[Any, list[tuple[str, float, int]]] = {}
    agreed: dict[Any, float] = {}
    operations, events, cycles = [], [], []
    message, grows = -1, False
    for record in records:
        kind, pid, seconds = record["ph"], record.get("pid"), 1e-6 * record.get("ts", 0)
        stack = under_way.setdefault(pid, [])
        tensor = names.get(pid, f"tensor {pid}")
        if kind == "i":
            cycles.append(seconds)
        elif kind == "B":
            name = str(record.get("name"))
            if not stack and not name.startswith("NEGOTIATE_"):
                message, grows = message + (not grows), True
                if pid in agreed:
                    start = agreed.pop(pid)
                    waits = Event(tensor, name.lower(), WAITING, ITS_TURN, start, seconds)
                    events.append(waits)
            elif stack:
                grows = False
            stack.append((name, seconds, message))
        elif kind == "E" and stack:
            name, start, number = stack.pop()
            if name.startswith("NEGOTIATE_"):
                operation = name.removeprefix("NEGOTIATE_").lower()
                events.append(Event(tensor, operation, NEGOTIATION, name, start, seconds))
                agreed[pid] = seconds
            elif stack:
                operation = stack[0][0].lower()
                events.append(Event(tensor, operation, phase_of(name), name, start, seconds))
            else:
                grows = False
                size = _nbytes(record.get("args", {}))
                operations.append(Operation(number, name.lower(), tensor, start, seconds, size))
    return operations, events, cycles


def phase_of(activity: str) -> str:
    """Say what an activity of Horovod is.

    >>> phase_of("MEMCPY_IN_FUSION_BUFFER"), phase_of("MPI_ALLREDUCE")
    ('copy in', 'exchange')
    """
    return next((phase for start, phase in _BEGINS.items() if activity.startswith(start)), OTHER)


def messages_of(operations: Sequence[Operation]) -> Iterator[Message]:
    """Put together what was fused."""
    ordered = sorted(operations, key=lambda one: (one.message, one.start_s))
    for _, group in groupby(ordered, key=lambda one: one.message):
        parts = list(group)
        sizes = [part.nbytes for part in parts]
        yield Message(
            operation=parts[0].name,
            tensors=tuple(part.tensor for part in parts),
            start_s=parts[0].start_s,
            end_s=max(part.end_s for part in parts),
            nbytes=None if None in sizes else sum(sizes),
        )


def _nbytes(args: dict[str, Any]) -> int | None:
    """Return the size of a result whose dtype and shape stand in an end's arguments."""
    try:
        shape = json.loads(args["shape"])
        return int(np.prod(shape, dtype=np.int64)) * np.dtype(args["dtype"]).itemsize
    except (KeyError, TypeError, ValueError):
        return None
