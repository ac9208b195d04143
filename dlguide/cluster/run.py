"""One run of a function on the ranks of a cluster: send it, wait, hand the results back."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dlguide.cluster import allocation, watch
from dlguide.cluster.show import Display
from dlguide.cluster.supervise import GRACE_S, LOOK_S, Outcomes, supervise


class FunctionRun:
    """A function on its way through the ranks of a cluster."""

    def __init__(
        self,
        client: Any,
        engines: Sequence[Mapping[str, Any]],
        folder: Path,
        ranks: Sequence[int],
        number: int,
    ) -> None:
        self.client = client
        self.engines = engines
        self.folder = folder
        self.ranks = ranks
        self.number = number
        self.clean = False  # every rank has answered and can take the next call
        self.calls: dict[int, Any] = {}

    def results(
        self, function: Callable[..., Any], args: tuple, kwargs: Mapping[str, Any]
    ) -> list[Any]:
        """Send the function, wait, and return one result per rank."""
        import cloudpickle

        from dlguide.cluster import engine

        payload = cloudpickle.dumps((function, args, dict(kwargs)))
        for rank in self.ranks:
            view = self.client[self.engines[rank]["id"]]
            self.calls[rank] = view.apply_async(engine.run, self.number, payload)
        pids = watch.Processes(allocation.local_pids(self.engines))
        display = Display(self.folder, self.calls)
        where = (self.folder, len(self.engines), self.ranks, self.number)
        try:
            outcomes, error = supervise(*where, pids, self._collect, display.show)
        except KeyboardInterrupt:
            self._interrupt(pids)
            then = "were stopped; the next run starts them again"
            then = "are free again" if self.clean else then
            # without the lines of this package in which the launcher happened to wait
            raise KeyboardInterrupt(f"The ranks {then}.") from None
        finally:
            display.close()
            pids.close()
        self.clean = len(outcomes) == len(self.calls)
        if error is not None:
            if not self.clean:
                error.add_note("The ranks were stopped; the next run starts them again.")
            raise error
        return [cloudpickle.loads(outcomes[rank]["value"]) for rank in self.ranks]

    def _collect(self, outcomes: Outcomes) -> None:
        """Add the answers that have come in."""
        import cloudpickle

        for rank, call in self.calls.items():
            if rank not in outcomes and call.ready() and call.successful():
                outcomes[rank] = cloudpickle.loads(call.get())

    def _interrupt(self, pids: watch.Processes) -> None:
        """Pass Ctrl-C on; ranks that are not back at the prompt soon are given up."""
        for rank, call in self.calls.items():
            if not call.ready() and rank in pids.pids and rank not in pids.dead():
                os.kill(pids.pids[rank], signal.SIGINT)
        deadline = time.monotonic() + GRACE_S
        while time.monotonic() < deadline and not self.clean:
            time.sleep(LOOK_S)
            self.clean = all(call.ready() for call in self.calls.values())
