"""Horovod's timeline read back: when each tensor was agreed on, copied, sent, and what was fused.

`hvd.record_timeline` and the `timeline=` of `training.fit` make the files, on rank 0, and
`plots.timeline` draws them. They can be opened in Chrome's trace viewer too.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from dlguide.errors import require
from dlguide.measure.run import Run
from dlguide.measure.trace import PHASES, Event, Message, messages_of, paired, parsed

__all__ = ["Event", "Message", "Timeline", "read", "total_s"]


@dataclass(frozen=True)
class Timeline:
    """A recording as rank 0 saw it; times are seconds after its start.

    Args:
        path: the file.
        started_unix_s: the clock at the start (s); None where the file does not say.
        events: in the order of their ends.
        messages: in their order.
        cycles_s: when each of Horovod's cycles began (s); empty unless they were marked.
        whole: whether the file ended as it should; False after a kill, and events are missing.
    """

    path: str
    started_unix_s: float | None
    events: tuple[Event, ...]
    messages: tuple[Message, ...]
    cycles_s: tuple[float, ...]
    whole: bool

    @property
    def tensors(self) -> tuple[str, ...]:
        """Names of all tensors, in the order in which they first appear."""
        return tuple(dict.fromkeys(event.tensor for event in self.events))

    @property
    def rounds(self) -> int:
        """How often the tensor was exchanged that was exchanged most often (count)."""
        names = [name for message in self.messages for name in message.tensors]
        return max((names.count(name) for name in set(names)), default=0)

    @property
    def messages_per_round(self) -> float:
        """Messages for each time that all tensors were exchanged; 0.0 without messages."""
        return len(self.messages) / self.rounds if self.rounds else 0.0

    @property
    def nbytes(self) -> int | None:
        """Size of all messages (bytes); None where the file does not say it of one."""
        sizes = [message.nbytes for message in self.messages]
        return None if None in sizes else sum(sizes)

    def seconds(self) -> dict[str, float]:
        """Give the time in which at least one tensor was in a phase, for each phase (s).

        It is the length of the union: eight tensors in one buffer are copied once. Phases may
        run at the same time, one tensor in each, so their times need not add up.
        """
        return {
            phase: total_s((e.start_s, e.end_s) for e in self.events if e.phase == phase)
            for phase in PHASES
        }

    def matching(self, text: str) -> Timeline:
        """Keep the tensors whose names hold a text: "gradients" those of `DistributedOptimizer`.

        Args:
            text: part of the name.

        Returns:
            Timeline: of these tensors; messages that hold one of them are kept whole.

        Raises:
            ValueError: when there is no such tensor.
        """
        kept = [name for name in self.tensors if text in name]
        must = f"be part of the name of one of the {len(self.tensors)} tensors"
        require(bool(kept), "text", must, text, f"There are {', '.join(self.tensors[:8])}.")
        return replace(
            self,
            events=tuple(event for event in self.events if text in event.tensor),
            messages=tuple(m for m in self.messages if any(text in name for name in m.tensors)),
        )

    def between(self, start_s: float, end_s: float) -> Timeline:
        """Keep what begins in a stretch of time.

        Args:
            start_s: begin of it (s).
            end_s: end of it, itself outside (s).

        Returns:
            Timeline: with the same clock.
        """

        def inside(thing: Event | Message) -> bool:
            return start_s <= thing.start_s < end_s

        return replace(
            self,
            events=tuple(filter(inside, self.events)),
            messages=tuple(filter(inside, self.messages)),
            cycles_s=tuple(cycle for cycle in self.cycles_s if start_s <= cycle < end_s),
        )

    def steps(self, run: Run) -> list[tuple[float, float]]:
        """Put the steps of a training on the clock of this recording.

        Args:
            run: what rank 0's `training.fit` returned.

        Returns:
            list: begin and end of each step (s), as `compute` and `plots.timeline` take them.

        Raises:
            ValueError: when the run or the file does not say when it began.
        """
        known = self.started_unix_s is not None and len(run.step_start_s) == len(run.step_s)
        then = "Take the Run that `training.fit` returned on rank 0 with this recording."
        require(known and bool(run.step_s), "run", "say when its steps began", str(run), then)
        zero = run.started_unix_s - self.started_unix_s
        pairs = zip(run.step_start_s, run.step_s, strict=True)
        return [(zero + start, zero + start + seconds) for start, seconds in pairs]

    def compute(self, steps: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
        """Give the parts of steps in which no tensor is negotiated, waits, is copied or sent.

        What is computed while a tensor is under way counts as exchange here.

        Args:
            steps: begin and end of each step (s).

        Returns:
            list: begin and end of each part (s), in their order.
        """
        busy = _joined((one.start_s, one.end_s) for one in (*self.events, *self.messages))
        parts = []
        for start, end in sorted(steps):
            for begin, stop in busy:
                if stop <= start or begin >= end:
                    continue
                if begin > start:
                    parts.append((start, begin))
                start = stop
            if start < end:
                parts.append((start, end))
        return parts

    def __str__(self) -> str:
        cut = "" if self.whole else ", cut off before its end"
        return (
            f"{self.path}: {len(self.tensors)} tensors in {len(self.messages)} messages, "
            f"{len(self.cycles_s)} marked cycles{cut}"
        )


def total_s(spans: Iterable[tuple[float, float]]) -> float:
    """Give the length of a union of stretches of time: what overlaps counts once.

    Args:
        spans: begin and end of each (s).

    Returns:
        float: its length (s).

    >>> total_s([(0.0, 2.0), (1.0, 3.0), (5.0, 6.0)])
    4.0
    """
    return sum(end - start for start, end in _joined(spans))


def _joined(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    joined: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


def read(path: str | os.PathLike) -> Timeline:
    """Read what Horovod has recorded.

    A file that ends in the middle, as after a kill, is read up to its last whole event, and the
    Timeline's `whole` is False. What began and never ended is left out.

    Args:
        path: the file, of rank 0.

    Returns:
        Timeline: all it holds.

    Raises:
        ValueError: when there is no such file, or it holds something else.

    Source:
        Horovod 0.28.1, horovod/common/timeline.cc.
    """
    path = Path(path)
    then = "Record one with `training.fit(..., timeline=...)` on ranks; rank 0 writes it."
    require(path.is_file(), "path", "be a file that exists", str(path), then)
    records, whole = parsed(path.read_bytes().decode(errors="replace"), str(path))
    operations, events, cycles = paired(records)
    starts = [
        record["args"]["start_time_since_epoch_in_micros"]
        for record in records
        if "start_time_since_epoch_in_micros" in record.get("args", {})
    ]
    return Timeline(
        path=str(path),
        started_unix_s=1e-6 * starts[0] if starts else None,
        events=tuple(events),
        messages=tuple(messages_of(operations)),
        cycles_s=tuple(cycles),
        whole=whole,
    )
