"""Wait for ranks that are at work, and stop waiting as soon as waiting is in vain."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dlguide.cluster import errors, watch
from dlguide.cluster.errors import RankError
from dlguide.cluster.rank import log_path

LOOK_S = 0.05
JUDGE_S = 0.25
GRACE_S = 1.0  # after the first failure, for the others to fail too and to tell why

LOST_S = 20.0  # a very large result may be on its way for so long

Outcomes = dict[int, dict[str, Any]]


def supervise(
    folder: Path,
    everyone: int,
    ranks: Sequence[int],
    run_number: int,
    pids: watch.Processes,
    collect: Callable[[Outcomes], None],
    show: Callable[[], None],
) -> tuple[Outcomes, RankError | None]:
    """Wait until all ranks have answered, or one thing is wrong beyond repair."""
    stalls = watch.Stalls()
    stalls.read(log_path(folder, 0), float("-inf"))  # what earlier runs were warned of is past
    outcomes: Outcomes = {}
    judged_s = failed_s = 0.0
    while True:
        dead = pids.dead(LOOK_S)
        now_s = watch.now()
        collect(outcomes)
        show()
        lost = [rank for rank in dead if rank not in outcomes]
        failed = [rank for rank in outcomes if outcomes[rank]["phase"] != "returned"]
        if failed:
            failed_s = failed_s or now_s
            if len(outcomes) == len(ranks) or lost or now_s - failed_s > GRACE_S:
                return outcomes, errors.failed(outcomes)
        elif len(outcomes) == len(ranks):
            return outcomes, None
        elif lost:
            return outcomes, errors.died(lost, folder)
        # ranks of other machines have other clocks; when one dies, the launcher ends those here
        elif len(pids.pids) == everyone and now_s - judged_s > JUDGE_S:
            judged_s = now_s
            error = _judge(folder, everyone, ranks, run_number, pids, stalls, now_s)
            if error is not None:
                return outcomes, error


def _judge(
    folder: Path,
    everyone: int,
    ranks: Sequence[int],
    run_number: int,
    pids: watch.Processes,
    stalls: watch.Stalls,
    now_s: float,
) -> RankError | None:
    """Look once at what the ranks say of themselves; the arguments are those of `supervise`."""
    stalls.read(log_path(folder, 0), now_s)
    states = watch.read_states(folder, ranks, run_number)
    pids.renew(states, now_s)
    standing = pids.frozen(states, now_s)
    if standing:
        return errors.frozen(standing)
    if len(states) < len(ranks):
        return None  # some have not begun
    if all(state["phase"] != "running" for state in states.values()):
        if any(now_s - state["since"] <= LOST_S for state in states.values()):
            return None  # the answers are on their way
        message = "every rank has finished, but the answers do not arrive: the controller is gone."
        return RankError("lost", ranks, message)
    for rank in range(everyone):
        states.setdefault(
            rank, {"phase": "absent", "since": now_s, "beat": now_s, "call": "", "place": ""}
        )
    return watch.deadlock(states, stalls.current(now_s), now_s)
