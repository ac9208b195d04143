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
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlcourse.pytorch_net import require_pytorch
from dlcourse.tensorflow_lab import free_ports
from dlguide.errors import require_count

if TYPE_CHECKING:
    from mpi4py.MPI import Comm

PLACES = ("tcp", "file", "store")


@dataclass(frozen=True)
class Met:
    """The result of a rendezvous without MPI, for one process."""

    rank: int
    place: str
    total: float
    keys: int
    mpi_loaded: bool


@contextlib.contextmanager
def joined(
    rank: int, ranks: int, timeout_s: float, url: str | None = None, store: Any = None
) -> Iterator[None]:
    """Join a Gloo group for the length of a block; all ranks must enter it.

    Call a function in the block, so that sums begun with `async_op=True` are freed before the group
    is: after it, one may wait for Gloo's thread with Python's lock, which that thread needs.
    """
    import torch.distributed as dist

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    wait = timedelta(seconds=timeout_s)
    dist.init_process_group("gloo", url, wait, world_size=ranks, rank=rank, store=store)
    try:
        yield
    finally:
        dist.destroy_process_group()


@contextlib.contextmanager
def joined_by_mpi(comm: Comm, timeout_s: float = 60.0) -> Iterator[None]:
    """Join a Gloo group of the ranks that MPI has started; collective."""
    require_pytorch()
    store = listening(0, comm.size, timeout_s) if comm.rank == 0 else None
    port = comm.bcast(store.port if store else None)
    store = store or connected(port, comm.size, timeout_s)
    with joined(comm.rank, comm.size, timeout_s, store=store):
        yield
    comm.Barrier()  # rank 0's store ends with it, and no rank may still be asking


def listening(port: int, ranks: int, timeout_s: float) -> Any:
    """Open a key-value store on a port of loopback, 0 for a free one."""
    import torch.distributed as dist

    door = socket.create_server(("127.0.0.1", port))
    port, wait = door.getsockname()[1], timedelta(seconds=timeout_s)
    options = {"wait_for_workers": False, "master_listen_fd": door.detach()}
    return dist.TCPStore("127.0.0.1", port, ranks, True, wait, **options)


def connected(port: int, ranks: int, timeout_s: float) -> Any:
    """Connect to the key-value store that another process has opened."""
    import torch.distributed as dist

    wait = timedelta(seconds=timeout_s)
    return dist.TCPStore("127.0.0.1", port, ranks, False, wait, wait_for_workers=False)


def meet(ranks: int) -> list[list[Met]]:
    """Let plain processes without MPI find each other at each place and sum their rank + 1."""
    require_count(ranks, "ranks")
    require_pytorch()
    for _ in range(2):
        try:
            return _meet(ranks)
        except RuntimeError as error:  # another process took a port before ours bound it
            if "address already in use" not in str(error).lower():
                raise
    return _meet(ranks)


def _meet(ranks: int, timeout_s: float = 60.0) -> list[list[Met]]:
    ours = ("PMI", "MPI", "OMPI", "HYDRA")  # what an MPI launcher may have put around us
    clean = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="dlguide-meet-"))
        tcp, store = free_ports(2)
        places = {"tcp": f"tcp://127.0.0.1:{tcp}", "file": f"file://{folder}/rendezvous"}
        order = {"ranks": ranks, "timeout_s": timeout_s, "places": places | {"store": str(store)}}
        processes = []
        for rank in range(ranks):
            words = ["-m", "dlcourse.pytorch_rendezvous", json.dumps(order | {"rank": rank})]
            process = subprocess.Popen(
                [sys.executable, "-P", *words], env=clean | {"OMP_NUM_THREADS": "1"}, text=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )  # fmt: skip
            stack.callback(process.communicate)
            stack.callback(process.kill)
            processes.append(process)
        return [_told(process, timeout_s) for process in processes]


def _told(process: subprocess.Popen, timeout_s: float) -> list[Met]:
    try:
        out, errors = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"A process did not meet the others within {timeout_s:g} s.") from None
    if process.returncode != 0:
        tail = "\n".join(errors.splitlines()[-15:])
        raise RuntimeError(f"A process ended with {process.returncode}.\n{tail}")
    return [Met(**each) for each in json.loads(out.splitlines()[-1])]


def take_part(rank: int, ranks: int, places: dict[str, str], timeout_s: float) -> list[Met]:
    """Meet the others at each place in turn and sum rank + 1 of all ranks."""
    import torch
    import torch.distributed as dist
    from torch.distributed import distributed_c10d

    found = []
    for place, address in places.items():
        where: dict[str, Any] = {"url": address}
        if place == "store":
            where = {"store": (connected if rank else listening)(int(address), ranks, timeout_s)}
        with joined(rank, ranks, timeout_s, **where):
            number = torch.tensor([float(rank + 1)])
            dist.all_reduce(number)
            keys = distributed_c10d._get_default_store().num_keys()
            dist.barrier()
        maps = Path("/proc/self/maps").read_text()
        found.append(Met(rank, place, float(number), keys, "libmpi" in maps))
    return found


if __name__ == "__main__":
    answer = json.dumps([asdict(met) for met in take_part(**json.loads(sys.argv[1]))])
    os.write(1, f"{answer}\n".encode())
