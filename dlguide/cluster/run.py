"""One run of a function on the ranks: send it, show what they print, judge, collect."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from dlguide.cluster import watch
from dlguide.cluster.errors import RankError
from dlguide.cluster.show import Display

if TYPE_CHECKING:
    from dlguide.cluster.launch import Cluster

LOOK_S = 0.05
JUDGE_S = 0.25
GRACE_S = 1.0  # after the first failure, for the others to fail too and to tell why


class Run:
    """A function on its way through the ranks of a cluster.

    Args:
        cluster: a started cluster.
        ranks: the ranks that take part.
        number: the how-manieth run of the cluster this is.
    """

    def __init__(self, cluster: Cluster, ranks: list[int], number: int) -> None:
        self.cluster = cluster
        self.ranks = ranks
        self.number = number
        self.clean = False  # every rank has answered and can take the next call

    def results(
        self, function: Callable[..., Any], args: tuple, kwargs: Mapping[str, Any]
    ) -> list[Any]:
        """Send the function, wait, and return one result per rank.

        Args:
            function: what to call.
            args: its positional arguments.
            kwargs: its keyword arguments.

        Returns:
            list: the results in the order of `ranks`.

        Raises:
            RankError: when the run failed.
        """
        import cloudpickle

        from dlguide.cluster import engine

        payload = cloudpickle.dumps((function, args, dict(kwargs)))
        engines = {each["rank"]: each for each in self.cluster.engines}
        calls = {
            rank: self.cluster.client[engines[rank]["id"]].apply_async(
                engine.run, self.number, payload
            )
            for rank in self.ranks
        }
        pids = watch.Processes({rank: each["pid"] for rank, each in engines.items()})
        display = Display(self.cluster.folder, calls)
        try:
            outcomes, error = self._wait(calls, pids, display)
        except KeyboardInterrupt:
            self._interrupt(calls, pids)
            raise
        finally:
            display.close()
            pids.close()
        if error is None and any(each["phase"] != "returned" for each in outcomes.values()):
            error = watch.failed(outcomes)
        self.clean = len(outcomes) == len(calls)
        if error is not None:
            if not self.clean:
                error.add_note("The ranks were stopped; the next run starts them again.")
            raise error
        return [cloudpickle.loads(outcomes[rank]["value"]) for rank in self.ranks]

    def _wait(
        self, calls: Mapping[int, Any], pids: watch.Processes, display: Display
    ) -> tuple[dict[int, dict], RankError | None]:
        """Wait until all ranks have answered or one thing is wrong beyond repair."""
        stalls = watch.Stalls()
        outcomes: dict[int, dict] = {}
        judged_s = failed_s = 0.0
        while True:
            dead = pids.dead(LOOK_S)
            now_s = watch.now()
            collect(calls, outcomes)
            display.show()
            if len(outcomes) == len(calls):
                return outcomes, None
            if dead:
                return outcomes, watch.died(dead, self.cluster.folder)
            if any(each["phase"] != "returned" for each in outcomes.values()):
                failed_s = failed_s or now_s
                if now_s - failed_s > GRACE_S:
                    return outcomes, watch.failed(outcomes)
                continue
            if now_s - judged_s > JUDGE_S:
                judged_s = now_s
                error = self._judge(pids, stalls, now_s)
                if error is not None:
                    # An answer may have come in while the verdict was being made.
                    collect(calls, outcomes)
                    return outcomes, error

    def _judge(
        self, pids: watch.Processes, stalls: watch.Stalls, now_s: float
    ) -> RankError | None:
        folder, everyone = self.cluster.folder, range(self.cluster.ranks)
        stalls.read(watch.log_path(folder, 0), now_s)
        states = watch.read_states(folder, self.ranks, self.number)
        standing = pids.frozen(states, now_s)
        if standing:
            return watch.frozen(standing)
        if len(states) < len(self.ranks):
            return None  # some have not begun
        for rank in everyone:
            states.setdefault(rank, {"phase": "absent", "since": now_s, "call": "", "place": ""})
        return watch.deadlock(states, stalls.current(now_s), now_s)

    def _interrupt(self, calls: Mapping[int, Any], pids: watch.Processes) -> None:
        """Pass Ctrl-C on; ranks that are not back at the prompt soon are given up."""
        for engine in self.cluster.engines:
            if engine["rank"] in calls and not calls[engine["rank"]].ready():
                signal_process(engine["pid"])
        deadline = time.monotonic() + GRACE_S
        while time.monotonic() < deadline and not self.clean:
            pids.dead(LOOK_S)
            self.clean = all(call.ready() for call in calls.values())


def signal_process(pid: int) -> None:
    """Send SIGINT to a process that may have ended."""
    import os

    try:
        os.kill(pid, signal.SIGINT)
    except ProcessLookupError:
        return


def collect(calls: Mapping[int, Any], outcomes: dict[int, dict]) -> None:
    """Move the answers that have come in from `calls` to `outcomes`."""
    import cloudpickle

    for rank, call in calls.items():
        if rank not in outcomes and call.ready() and call.successful():
            outcomes[rank] = cloudpickle.loads(call.get())
