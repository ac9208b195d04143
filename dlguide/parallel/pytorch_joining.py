"""How PyTorch's processes find each other: an address, a shared file, a key-value store.

Before processes can exchange anything, each must learn where the others listen. MPI's launcher
tells them; Gloo has no launcher. Its processes only need one place that all of them know, to write
their own address and to read the others': the rendezvous.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from dlguide.errors import require, require_count, require_known, require_positive
from dlguide.parallel.pytorch_net import require_pytorch

if TYPE_CHECKING:
    from mpi4py.MPI import Comm

PLACES = ("tcp", "file", "store")


@dataclass(frozen=True)
class Met:
    """What one process tells of a rendezvous without MPI."""

    rank: int
    place: str
    total: float
    seconds: float
    keys: int
    mpi_loaded: bool


@contextlib.contextmanager
def joined(
    rank: int, ranks: int, url: str = "", store: Any = None, timeout_s: float = 30.0
) -> Iterator[None]:
    """Join a Gloo group for the length of a block; all ranks must enter it.

    Gloo's own connections stay on loopback unless GLOO_SOCKET_IFNAME names another interface.
    """
    require_pytorch()
    import torch.distributed as dist

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        "gloo",
        init_method=url or None,
        store=store,
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=require_positive(timeout_s, "timeout_s")),
    )
    try:
        yield
    finally:
        dist.destroy_process_group()


@contextlib.contextmanager
def joined_by_mpi(comm: Comm, timeout_s: float = 60.0) -> Iterator[None]:
    """Join a Gloo group of the ranks that MPI has started; collective.

    Rank 0 opens a port on loopback and MPI tells the others which one, so that nobody has to
    agree on a number or a file beforehand.
    """
    require_pytorch()
    store = listening(timeout_s, comm.size) if comm.rank == 0 else None
    port = comm.bcast(store.port if store else None)
    store = store or connected(port, timeout_s, comm.size)
    with joined(comm.rank, comm.size, store=store, timeout_s=timeout_s):
        yield
    comm.Barrier()  # rank 0's store ends with it, and nobody may still be asking


def listening(timeout_s: float, ranks: int = 1, door: socket.socket | None = None) -> Any:
    """Open a key-value store on a port of loopback."""
    import torch.distributed as dist

    door = door or socket.create_server(("127.0.0.1", 0))
    port = door.getsockname()[1]
    return dist.TCPStore(
        "127.0.0.1", port, ranks, True, timedelta(seconds=timeout_s),
        wait_for_workers=False, master_listen_fd=door.detach(),
    )  # fmt: skip


def connected(port: int, timeout_s: float, ranks: int = 1) -> Any:
    """Connect to the key-value store that another process has opened."""
    import torch.distributed as dist

    wait = timedelta(seconds=timeout_s)
    return dist.TCPStore("127.0.0.1", port, ranks, False, wait, wait_for_workers=False)


def meet(
    ranks: int = 2, places: Sequence[str] = PLACES, timeout_s: float = 60.0
) -> list[list[Met]]:
    """Let plain processes, which no MPI has started, find each other and sum their numbers.

    Each process is told its rank, how many there are, and the place; nothing else. With "tcp"
    PyTorch's rank 0 listens on all network interfaces of the machine while the call lasts, with
    "store" on loopback only.
    """
    require_count(ranks, "ranks")
    for place in places:
        require_known(place, PLACES, "places")
    require(bool(places), "places", "name at least one", list(places))
    require_positive(timeout_s, "timeout_s")
    require_pytorch()
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="dlguide-meet-"))
        door = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        where = {
            "tcp": f"tcp://127.0.0.1:{_free_port()}",
            "file": f"file://{folder}/rendezvous",
            "store": str(door.getsockname()[1]),
        }
        order = {"ranks": ranks, "timeout_s": timeout_s, "door": door.fileno()}
        order["places"] = [[place, where[place]] for place in places]
        processes = [
            stack.enter_context(_process(order | {"rank": rank}, door)) for rank in range(ranks)
        ]
        return [_told(process, timeout_s) for process in processes]


@contextlib.contextmanager
def _process(order: dict[str, Any], door: socket.socket) -> Iterator[subprocess.Popen]:
    """Start one process, without what an MPI launcher may have put around us; end it after."""
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PMI", "MPI", "OMPI", "HYDRA"))
    }
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "dlguide.parallel.pytorch_role", json.dumps(order)],
        env={**clean, "OMP_NUM_THREADS": "1"}, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        pass_fds=(door.fileno(),),
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _told(process: subprocess.Popen, timeout_s: float) -> list[Met]:
    try:
        out, errors = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"A process did not meet the others within {timeout_s:g} s.") from None
    if process.returncode != 0:
        tail = "\n".join(errors.splitlines()[-5:])
        raise RuntimeError(f"A process ended with {process.returncode}.\n{tail}")
    return [Met(**each) for each in json.loads(out.splitlines()[-1])]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
