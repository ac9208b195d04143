"""Judge from outside whether a run on ranks can still come to its end.

Three things are looked at: the processes themselves (a dead one is noticed at once), the state
that each rank's monitor writes, and the warnings of Horovod's stall inspector. A rank that is
merely slow is never taken for a deadlock: the verdict needs every rank that is waited for to be
past help, that is, to have returned or to wait for something itself.
"""

from __future__ import annotations

import json
import os
import re
import select
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dlguide.cluster import waiting
from dlguide.cluster.errors import RankError, names_of
from dlguide.cluster.rank import STALL_WARNING_S

BLOCKED_S = 2.5  # in the same call for so long, without one line of Python in between
SPENT_S = 0.4  # and so much of it with a core: on a full machine a rank may just not get one
MUTE_S = 10.0  # no sign of life while another rank has ended
FROZEN_S = 8.0  # stopped (SIGSTOP, a debugger) for so long
SILENT_S = 25.0  # no sign of life from the monitor for so long
PAUSE_S = 5.0  # between two looks: then the whole machine stood still, not a rank
LONG_CALL_S = 30.0  # for calls that match each other but last, as a very large message does


class Stalls:
    """The newest warning of Horovod's stall inspector: for each missing rank the tensors."""

    def __init__(self) -> None:
        self.missing: dict[int, tuple[str, ...]] = {}
        self.seen_s = 0.0
        self.offset = 0

    def read(self, path: Path, now_s: float) -> None:
        """Take in what has been added to rank 0's log since the last look."""
        try:
            with path.open("rb") as log:
                log.seek(self.offset)
                text = log.read().decode(errors="replace")
        except FileNotFoundError:
            return
        self.offset += len(text.encode())
        *_, block = text.rpartition("Missing ranks:")
        if block != text:
            pairs = re.findall(r"^(\d+)!?: \[(.*)\]", block, re.MULTILINE)
            self.missing = {int(rank): tuple(names.split(", ")) for rank, names in pairs}
            self.seen_s = now_s

    def current(self, now_s: float) -> dict[int, tuple[str, ...]]:
        """Return missing ranks and tensors; empty when the warning was not repeated."""
        fresh = now_s - self.seen_s < 2.5 * STALL_WARNING_S
        return self.missing if fresh else {}


def deadlock(
    states: Mapping[int, Mapping[str, Any]],
    missing: Mapping[int, Sequence[str]],
    now_s: float,
) -> RankError | None:
    """Decide from the ranks' states and Horovod's warnings whether they wait for ever."""
    still = {rank: now_s - state["since"] for rank, state in states.items()}
    ended = {rank for rank, state in states.items() if state["phase"] != "running"}
    # The first sum of Python objects holds the interpreter, so its rank's monitor falls silent.
    mute = {rank for rank in states if ended and now_s - states[rank]["beat"] >= MUTE_S} - ended
    blocked = mute | {
        rank
        for rank, state in states.items()
        if rank not in ended and state["call"]
        if still[rank] >= BLOCKED_S and state["spent_s"] >= SPENT_S
    }
    tensors = {name for names in missing.values() for name in names}
    waits_for = {
        rank: sorted(name for name in tensors if name not in missing.get(rank, ()))
        for rank in states
        if rank not in ended | blocked and still[rank] >= BLOCKED_S
    }
    waiting_still = blocked | {rank for rank, names in waits_for.items() if names}
    # A warning may be old: the rank that was late has joined and returned, and another computes.
    if waiting_still and any(rank in ended | waiting_still for rank in missing):
        return _verdict(states, missing, waits_for, now_s)
    if not blocked or blocked | ended != set(states):
        return None
    calls = {states[rank]["call"] for rank in blocked}
    # These may be one very large message on its way, so they get more time.
    same_collective = len(calls) == 1 and calls <= waiting.COLLECTIVES and not ended
    exchange = bool(calls & waiting.EITHER) and len(blocked) > 1
    pair = bool(calls & waiting.SENDS) and bool(calls & waiting.RECEIVES)
    if (same_collective or exchange or pair) and min(still[rank] for rank in blocked) < LONG_CALL_S:
        return None
    return _verdict(states, missing, waits_for, now_s)


def _verdict(
    states: Mapping[int, Mapping[str, Any]],
    missing: Mapping[int, Sequence[str]],
    waits_for: Mapping[int, Sequence[str]],
    now_s: float,
) -> RankError:
    """Write down the deadlock: who waits where for whom."""
    lines = []
    for rank, state in sorted(states.items()):
        if state["phase"] == "absent":
            doing = "takes no part"
        elif state["phase"] != "running":
            doing = f"has {state['phase']}"
        else:
            call = state["call"] or ", ".join(f"`{name}`" for name in waits_for.get(rank, ()))
            mute = now_s - state["beat"] >= MUTE_S
            doing = f"waits in {call}" if call else "does not answer" if mute else "computes"
            doing += f", {state['place']}" if state["place"] else ""
            doing += f", since {now_s - state['since']:.1f} s"
        lines.append(f"  rank {rank} {doing}")
    for rank, names in sorted(missing.items()):
        lines.append(f"  rank {rank} has not joined {', '.join(f'`{name}`' for name in names)}")
    culprits = sorted(missing) or [r for r, s in sorted(states.items()) if s["phase"] != "running"]
    culprits = culprits or sorted(states)
    calls = {state["call"] for state in states.values() if state["phase"] == "running"}
    advice = "Every rank must make the same collective calls in the same order."
    if calls and calls <= waiting.SENDS | waiting.RECEIVES:
        advice = "Each message needs one rank that sends and one that receives at the same time."
    message = f"deadlock: the ranks wait for {names_of(culprits)} and would wait for ever. {advice}"
    return RankError("deadlock", culprits, message, "\n".join(lines))


def read_states(folder: Path, ranks: Sequence[int], run_number: int) -> dict[int, dict[str, Any]]:
    """Read what each rank's monitor wrote; a rank not yet in this run is still on its way."""
    states = {}
    for rank in ranks:
        try:
            state = json.loads((folder / f"state-rank{rank}.json").read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            continue
        if state["run"] == run_number:
            states[rank] = state
    return states


class Processes:
    """The ranks' processes of this machine: who has died, who is stopped, who is silent."""

    def __init__(self, pids: Mapping[int, int]) -> None:
        self.pids = dict(pids)
        self.poll = select.poll()
        self.handles: dict[int, int] = {}
        self.gone: set[int] = set()
        self.stopped_since: dict[int, float] = {}
        self.page_faults: dict[int, int] = {}
        self.loaded_s: dict[int, float] = {}
        self.looked_s = now()
        for rank, pid in self.pids.items():
            try:
                handle = os.pidfd_open(pid)
            except ProcessLookupError:
                self.gone.add(rank)
                continue
            self.handles[handle] = rank
            self.poll.register(handle, select.POLLIN)

    def dead(self, timeout_s: float = 0.0) -> list[int]:
        """Return the ranks whose process has ended, waiting up to `timeout_s` for the next one.

        The kernel wakes the caller at the first death, before the launcher can have ended the
        other ranks because of it: so the first one seen is the culprit.
        """
        for handle, _ in self.poll.poll(timeout_s * 1000):
            self.poll.unregister(handle)
            self.gone.add(self.handles[handle])
        return sorted(self.gone)

    def renew(self, states: Mapping[int, dict[str, Any]], now_s: float) -> None:
        """Count a process that loads from a disk as one that gives a sign of life.

        The first import of TensorFlow from a slow disk holds the interpreter for a minute, and
        the rank's monitor with it; but the kernel counts the pages that it reads. After a pause
        of the whole machine (a laptop that slept) silence says nothing about a rank either.
        """
        paused = now_s - self.looked_s > PAUSE_S
        self.looked_s = now_s
        for rank, state in states.items():
            letter, faults = _process(self.pids.get(rank, 0))
            if paused or letter == "D" or faults != self.page_faults.get(rank, faults):
                self.loaded_s[rank] = now_s
            self.page_faults[rank] = faults
            state["beat"] = max(state["beat"], self.loaded_s.get(rank, 0.0))

    def frozen(self, states: Mapping[int, Mapping[str, Any]], now_s: float) -> list[int]:
        """Return the ranks that are stopped, or of which nothing has been heard for too long.

        A rank that has done its part is silent while it waits in MPI_Finalize for the others.
        """
        late = []
        for rank, pid in self.pids.items():
            letter, _ = _process(pid)
            if not letter:
                continue
            if letter not in "Tt":
                self.stopped_since.pop(rank, None)
            since = self.stopped_since.setdefault(rank, now_s) if letter in "Tt" else now_s
            speaks = rank in states and states[rank]["phase"] == "running"
            silent = now_s - states[rank]["beat"] if speaks else 0.0
            if now_s - since > FROZEN_S or silent > SILENT_S:
                late.append(rank)
        return late

    def close(self) -> None:
        """Give the process handles back."""
        for handle in self.handles:
            os.close(handle)
        self.handles.clear()


def _process(pid: int) -> tuple[str, int]:
    """Read a process's state, "" when it has gone, and its major page faults."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "", 0
    return fields[0], int(fields[9])


def now() -> float:
    """Return the monotonic clock, which all processes of a machine share (s)."""
    return time.monotonic()
