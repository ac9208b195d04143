"""One run of a function on the ranks of a cluster: send it, wait, hand the results back."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from dlguide.cluster import watch
from dlguide.cluster.show import Display
from dlguide.cluster.supervise import GRACE_S, LOOK_S, Outcomes, supervise

if TYPE_CHECKING:
    from dlguide.cluster.launch import Cluster


class FunctionRun:
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
        self.calls: dict[int, Any] = {}

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
        for rank in self.ranks:
            view = self.cluster.client[engines[rank]["id"]]
            self.calls[rank] = view.apply_async(engine.run, self.number, payload)
        pids = watch.Processes({rank: each["pid"] for rank, each in engines.items()})
        display = Display(self.cluster.folder, self.calls)
        where = (self.cluster.folder, self.cluster.ranks, self.ranks, self.number)
        try:
            outcomes, error = supervise(*where, pids, self.collect, display.show)
        except KeyboardInterrupt:
            self.interrupt(pids)
            raise
        finally:
            display.close()
            pids.close()
        self.clean = len(outcomes) == len(self.calls)
        if error is not None:
            if not self.clean:
                error.add_note("The ranks were stopped; the next run starts them again.")
            raise error
        return [cloudpickle.loads(outcomes[rank]["value"]) for rank in self.ranks]

    def collect(self, outcomes: Outcomes) -> None:
        """Add the answers that have come in."""
        import cloudpickle

        for rank, call in self.calls.items():
            if rank not in outcomes and call.ready() and call.successful():
                outcomes[rank] = cloudpickle.loads(call.get())

    def interrupt(self, pids: watch.Processes) -> None:
        """Pass Ctrl-C on; ranks that are not back at the prompt soon are given up."""
        for rank, call in self.calls.items():
            if not call.ready() and rank not in pids.dead():
                os.kill(pids.pids[rank], signal.SIGINT)
        deadline = time.monotonic() + GRACE_S
        while time.monotonic() < deadline and not self.clean:
            time.sleep(LOOK_S)
            self.clean = all(call.ready() for call in self.calls.values())
