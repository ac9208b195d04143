"""Find out from outside a thread which MPI call it waits in, if any.

A rank that is blocked in MPI keeps its core busy like one that computes, and Python shows nothing
of C code. But the Python frame that made the call still exists, and its current instruction
contains the name of the called function.
"""

from __future__ import annotations

import dis
from types import CodeType, FrameType
from typing import Any

COLLECTIVES = frozenset({
    "Barrier", "Bcast", "Gather", "Gatherv", "Scatter", "Scatterv", "Allgather", "Allgatherv",
    "Alltoall", "Alltoallv", "Alltoallw", "Reduce", "Allreduce", "Reduce_scatter",
    "Reduce_scatter_block", "Scan", "Exscan", "Split", "Dup", "Create", "Create_group", "Free",
    "Fence",
})  # fmt: skip
SENDS = frozenset({"Send", "Ssend", "Rsend", "Bsend"})
RECEIVES = frozenset({"Recv", "Probe", "Mprobe"})
EITHER = frozenset({
    "Sendrecv", "Sendrecv_replace", "Wait", "Waitall", "Waitany", "Waitsome", "Lock", "Lock_all",
    "Unlock", "Unlock_all", "Flush", "Flush_all",
})  # fmt: skip
BLOCKING = COLLECTIVES | SENDS | RECEIVES | EITHER


def blocking_call(frame: FrameType) -> str:
    """Return the name of the blocking MPI call that a frame is in, or "".

    Lower-case calls, which send Python objects, get the name of their upper-case twins. A name
    such as `wait` counts only when the object it is called on comes from mpi4py.
    """
    names = _called(frame.f_code, frame.f_lasti)
    name = names[-1].capitalize() if names else ""
    if name not in BLOCKING:
        return ""
    owners = _receivers(frame, names[:-1])
    return name if not owners or any(_from_mpi(owner) for owner in owners) else ""


def _called(code: CodeType, offset: int) -> list[str]:
    """Return the dotted name of the call at a byte offset, such as ["comm", "Allreduce"]."""
    instructions = list(dis.get_instructions(code))
    current = next((i for i, each in enumerate(instructions) if each.offset == offset), None)
    if current is None or "CALL" not in instructions[current].opname:
        return []
    start = _begin(instructions[current])
    names: list[str] = []
    for each in instructions[:current]:
        if _begin(each) != start or not each.opname.startswith("LOAD_"):
            continue
        if each.opname.startswith(("LOAD_ATTR", "LOAD_METHOD")):
            names.append(str(each.argval))
        elif isinstance(each.argval, str):
            names = [each.argval]
    return names


def _begin(instruction: dis.Instruction) -> tuple[int | None, int | None]:
    """Return line and column where the source of an instruction begins."""
    positions = instruction.positions
    return (positions.lineno, positions.col_offset) if positions else (None, None)


def _receivers(frame: FrameType, names: list[str]) -> list[Any]:
    """Look up the objects along a dotted name in a frame; empty if there are none."""
    found: list[Any] = []
    for name in names:
        if found:
            found.append(getattr(found[-1], name, None))
        else:
            found.append(frame.f_locals.get(name, frame.f_globals.get(name)))
    return [each for each in found if each is not None]


def _from_mpi(value: Any) -> bool:
    """Return whether an object, a class or a module belongs to mpi4py."""
    owner = value if isinstance(value, type) else type(value)
    return owner.__module__.startswith("mpi4py") or getattr(value, "__name__", "") == "mpi4py.MPI"
