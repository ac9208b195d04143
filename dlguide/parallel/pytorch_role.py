"""One plain process that looks for the others: `python -m ... ORDER`, ORDER as JSON.

No MPI has started it and it loads none: what it knows is its rank, how many there are, and where
to meet.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from dataclasses import asdict
from pathlib import Path
from time import perf_counter

from dlguide.parallel.pytorch_joining import Met, connected, joined, listening


def take_part(
    rank: int, ranks: int, places: list[list[str]], timeout_s: float, door: int
) -> list[Met]:
    """Meet the others at each place in turn and sum everybody's rank + 1."""
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
    told = json.dumps([asdict(met) for met in take_part(**json.loads(order))])
    os.write(1, f"{told}\n".encode())


if __name__ == "__main__":
    main(sys.argv[1])
