"""How PyTorch's processes find each other: an address, a shared file, a key-value store.

Before processes can exchange anything, each must know where the others listen. MPI's launcher
provides that; Gloo has no launcher. Its processes only need one place that all of them know, to
write their address and to read the others': the rendezvous. `python -m dlcourse.pytorch_rendezvous
ORDER` is one plain process without MPI that takes part, ORDER as JSON.
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
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from dlcourse.pytorch_net import require_pytorch
from dlguide.errors import require, require_count, require_known, require_positive

if TYPE_CHECKING:
    from mpi4py.MPI import Comm

PLACES = ("tcp", "file", "store")


@dataclass(frozen=True)
class Met:
    """The result of a rendezvous without MPI, for one process."""

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

    Call a function in the block, so that sums begun with `async_op=True` are freed before the group
    is: after it, one may wait for Gloo's thread with Python's lock, which that thread needs.
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
    """Join a Gloo group of the ranks that MPI has started; collective."""
    require_pytorch()
    store = listening(timeout_s, comm.size) if comm.rank == 0 else None
    port = comm.bcast(store.port if store else None)
    store = store or connected(port, timeout_s, comm.size)
    with joined(comm.rank, comm.size, store=store, timeout_s=timeout_s):
        yield
    comm.Barrier()  # rank 0's store ends with it, and no rank may still be asking


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
    """Let plain processes without MPI find each other and sum their ranks + 1."""
    require_count(ranks, "ranks")
    for place in places:
        require_known(place, PLACES, "places")
    require(bool(places), "places", "name at least one", list(places))
    require_positive(timeout_s, "timeout_s")
    require_pytorch()
    for _ in range(2):
        try:
            return _meet(ranks, places, timeout_s)
        except RuntimeError as error:  # another process took the port before PyTorch bound it
            if "address already in use" not in str(error):
                raise
    return _meet(ranks, places, timeout_s)


def _meet(ranks: int, places: Sequence[str], timeout_s: float) -> list[list[Met]]:
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
        [sys.executable, "-P", "-m", "dlcourse.pytorch_rendezvous", json.dumps(order)],
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
        tail = "\n".join(errors.splitlines()[-15:])
        raise RuntimeError(f"A process ended with {process.returncode}.\n{tail}")
    return [Met(**each) for each in json.loads(out.splitlines()[-1])]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def take_part(
    rank: int, ranks: int, places: list[list[str]], timeout_s: float, door: int
) -> list[Met]:
    """Meet the others at each place in turn and sum rank + 1 of all ranks."""
    import torch
    import torch.distributed as dist
    from torch.distributed import distributed_c10d

    found = []
    for place, address in places:
        start, store = perf_counter(), None
        if place == "store":
            if rank == 0:
                store = listening(timeout_s, ranks, socket.socket(fileno=door))
            else:
                store = connected(int(address), timeout_s, ranks)
        with joined(rank, ranks, "" if store else address, store, timeout_s):
            met_s = perf_counter() - start
            number = torch.tensor([float(rank + 1)])
            dist.all_reduce(number)
            keys = distributed_c10d._get_default_store().num_keys()
            dist.barrier()
        maps = Path("/proc/self/maps").read_text()
        found.append(Met(rank, place, float(number), met_s, keys, "libmpi" in maps))
    return found


def main(order: str) -> None:
    """Do what ORDER says and print the result as one line of JSON."""
    answer = json.dumps([asdict(met) for met in take_part(**json.loads(order))])
    os.write(1, f"{answer}\n".encode())


if __name__ == "__main__":
    main(sys.argv[1])
