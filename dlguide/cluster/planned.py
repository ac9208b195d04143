"""Which thread plan a cluster gets that was given none: the tuned one, or the plain one."""

from __future__ import annotations

from dlguide.errors import require, require_count
from dlguide.machine import describe, threads
from dlguide.machine.threads import remembered


def planned(
    ranks: int | None = None, oversubscribe: bool = False, tuned: bool | None = None
) -> tuple[threads.ThreadPlan, str]:
    """Choose a thread plan for this machine."""
    require(tuned in (True, False, None), "tuned", "be True, False or None", tuned)
    machine = describe()
    if ranks is not None or not tuned:
        ranks = require_count(2 if ranks is None else ranks, "ranks")
        # refuses too many ranks, whatever was measured
        plain = threads.plan(machine, ranks=ranks, oversubscribe=oversubscribe)
    found = None if tuned is False else remembered.recall(machine)
    best = found and found.best(machine, ranks, oversubscribe)
    if best:
        return best.plan(machine), str(found)
    whose = "this machine" if ranks is None else f"{ranks} ranks of this machine"
    then = "Run `dlguide tune` first."
    require(
        not tuned, "tuned", f"be False or None where nothing was measured for {whose}", tuned, then
    )
    return plain, ""
