"""Many small calls on the ranks of a cluster, each on the first rank that is free.

The ranks serve as a pool: each takes the next task that nobody has taken yet, by creating a file
of that number in the cluster's folder. The system lets exactly one succeed, so no rank is needed
to deal the tasks out. Outcomes are files too: what was finished is kept when a rank dies.
"""

from __future__ import annotations

import itertools
import os
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dlguide.cluster import outcomes
from dlguide.cluster.errors import RankError
from dlguide.cluster.outcomes import Outcome
from dlguide.cluster.processes import FOLDER
from dlguide.cluster.run import FunctionRun
from dlguide.cluster.supervise import Outcomes
from dlguide.errors import require


class TaskRun(FunctionRun):
    """Tasks on their way through the ranks of a cluster; the arguments are those of the base."""

    def share(
        self,
        tasks: bytes,
        count: int,
        tell: Callable[[Outcome], None] | None,
        beforehand: bool,
    ) -> list[Outcome]:
        """Call the function once for each item, and wait for all."""
        self.tell = tell
        self.ended: dict[int, Outcome] = {}
        self.place = self.folder / f"tasks-{self.number}"
        self.place.mkdir()
        parts = blocks(count, len(self.ranks)) if beforehand else None
        try:
            self.results(work, (str(self.place), tasks, tuple(self.ranks), parts), {})
            self._read()
        except (RankError, KeyboardInterrupt) as error:
            self._read()
            error.outcomes = self._in_order()
            if isinstance(error, RankError):
                done = f"{len(self.ended)} of {count} tasks had ended"
                error.add_note(f"{done}; their outcomes are in this error's `outcomes`.")
            raise
        shutil.rmtree(self.place)
        return self._in_order()

    def _in_order(self) -> list[Outcome]:
        return [self.ended[number] for number in sorted(self.ended)]

    def _collect(self, outcomes: Outcomes) -> None:
        super()._collect(outcomes)
        self._read()

    def _read(self) -> None:
        """Take in the outcomes that have been written since the last look, in their order."""
        found = []
        for path in self.place.glob("done-*"):
            found.append(outcomes.unpacked(path.read_bytes()))
            path.unlink()
        for outcome in sorted(found, key=lambda each: each.end_s):
            self.ended[outcome.number] = outcome
            if self.tell is not None:
                self.tell(outcome)


def payload(function: Callable[..., Any], items: Sequence[Any], name: str = "function") -> bytes:
    """Pickle a function and its items, or say that they cannot be sent."""
    import cloudpickle

    require(callable(function), name, "be a function", function)
    try:
        return cloudpickle.dumps((function, list(items)))
    except Exception as error:
        then = (
            "It or what it uses holds an open file, a lock, a thread or the like. Make that inside "
            f"the function. ({type(error).__name__}: {error})"
        )
        called = getattr(function, "__name__", repr(function))
        require(False, name, "be one that can be pickled and sent to ranks", called, then)
        raise


def checked_ranks(ranks: Sequence[int] | None, everyone: int) -> tuple[int, ...]:
    """Return the ranks asked for, None for all; refuse none, one twice, one that does not exist."""
    asked = tuple(range(everyone) if ranks is None else ranks)
    there = set(asked) <= set(range(everyone)) and len(set(asked)) == len(asked)
    require(bool(asked) and there, "ranks", f"be some of 0 to {everyone - 1}, each once", asked)
    return asked


def blocks(tasks: int, ranks: int) -> list[range]:
    """Cut tasks into blocks as equal as they can be, one for each rank.

    >>> blocks(5, 2)
    [range(0, 3), range(3, 5)]
    """
    each, more = divmod(tasks, ranks)
    starts = [rank * each + min(rank, more) for rank in range(ranks + 1)]
    return [range(begin, end) for begin, end in itertools.pairwise(starts)]


def work(
    place: str,
    tasks: bytes,
    ranks: Sequence[int],
    parts: Sequence[range] | None,
) -> int:
    """Do tasks on this rank until none is left; runs in the engine."""
    import cloudpickle
    from mpi4py import MPI

    rank = MPI.COMM_WORLD.rank
    function, items = cloudpickle.loads(tasks)
    folder = Path(place)
    mine = claims(folder, len(items)) if parts is None else parts[list(ranks).index(rank)]
    done = 0
    with _unobserved():
        for number in mine:
            _write(folder, do(function, items[number], number, rank))
            done += 1
    return done


def claims(folder: Path, tasks: int) -> Iterator[int]:
    """Yield the tasks that this process is the first to claim, one at a time.

    Args:
        folder: where all that share the tasks claim them.
        tasks: how many there are (count).

    Yields:
        int: a task that is now this process's own.
    """
    for number in range(tasks):
        try:
            os.close(os.open(folder / f"claim-{number}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            continue
        yield number


def do(function: Callable[[Any], Any], item: Any, number: int, rank: int) -> Outcome:
    """Do one task so that whatever happens in it becomes an outcome."""
    start_s = time.monotonic()
    try:
        value = function(item)
    except KeyboardInterrupt:  # this is how all tasks are stopped
        raise
    except BaseException as error:
        line, where = outcomes.in_one_line(error), traceback.format_exc()
        return Outcome(number, rank, start_s, time.monotonic(), None, line, where)
    return Outcome(number, rank, start_s, time.monotonic(), value)


def _write(folder: Path, outcome: Outcome) -> None:
    """Write an outcome in one piece."""
    sys.stdout.flush()
    draft = folder / f"draft-{outcome.number}"
    draft.write_bytes(outcomes.packed(outcome))
    draft.replace(folder / f"done-{outcome.number}")


@contextmanager
def _unobserved() -> Iterator[None]:
    """Keep trainings from reporting their own progress: the progress of all tasks counts here."""
    kept: Mapping[str, str] = {FOLDER: os.environ[FOLDER]} if FOLDER in os.environ else {}
    os.environ.pop(FOLDER, None)
    try:
        yield
    finally:
        os.environ.update(kept)
