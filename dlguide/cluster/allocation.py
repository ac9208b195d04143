"""Where the ranks of a cluster run: on this machine, or on the nodes of a Slurm job."""

from __future__ import annotations

import os
import re
import socket
import sysconfig
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dlguide.cluster.environment import find_mpiexec
from dlguide.cluster.processes import identity
from dlguide.errors import MissingComponentError, require, require_count

LOOPBACK = "127.0.0.1"
# Two processes with the same one share a clock, process ids and /proc.
_BOOT = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class Allocation:
    """The machines on which a cluster starts its ranks."""

    job: str = ""
    nodes: int = 1
    tasks_per_node: int = 0

    def ranks_per_node(self, ranks: int | None) -> int | None:
        """Share ranks out among the nodes."""
        if ranks is None:
            return self.tasks_per_node or None
        if not self.job:
            return ranks
        fits = require_count(ranks, "ranks") % self.nodes == 0
        require(fits, "ranks", f"be a multiple of the {self.nodes} nodes of the job", ranks)
        return ranks // self.nodes

    @property
    def parent(self) -> Path | None:
        """Where the cluster's folder goes: None for this machine's own, else where all see it."""
        return Path.cwd() if self.nodes > 1 else None

    def launcher(self, per_node: int) -> list[str]:
        """Give the words that start a program on all ranks, but for their number."""
        if self.nodes == 1:
            return [str(find_mpiexec())]
        # only Hydra reaches other nodes, by srun; gforker forks on this one
        hydra = Path(sysconfig.get_path("scripts")) / "mpiexec"
        found = Path(os.environ.get("DLGUIDE_MPIEXEC", hydra))
        if not os.access(found, os.X_OK):
            raise MissingComponentError(f"There is no mpiexec at {found}. Run `pip install mpich`.")
        return [str(found), "-ppn", str(per_node)]

    def listening(self) -> list[str]:
        """Give the controller's options: where it listens and how ranks reach it."""
        address = LOOPBACK if self.nodes == 1 else reachable_address()
        return [f"--ip={address}", f"--location={address}"]

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """Let the ranks talk over the network where there are several nodes."""
        own = dict(env)
        if self.nodes > 1 and "UCX_TLS" not in os.environ:
            own.pop("UCX_TLS", None)  # shared memory alone would end at the node's border
        return own

    def __str__(self) -> str:
        nodes = f"{self.nodes} node{'s'[: self.nodes != 1]}"
        return f", {nodes} of Slurm job {self.job}" if self.job else ""


def find(inside: str | None) -> Allocation:
    """Find out where ranks are to run.

    Args:
        inside: None for this machine, "slurm" for the nodes of the Slurm job in which this
            process runs.

    Returns:
        Allocation: the machines.

    Raises:
        ValueError: outside a Slurm job, or where its nodes have not as many ranks each.

    Source:
        Slurm's manual, sbatch, section "Output environment variables".
    """
    require(inside in (None, "slurm"), "inside", 'be None or "slurm"', inside)
    if inside is None:
        return Allocation()
    job = os.environ.get("SLURM_JOB_ID", "")
    then = "Write a script with `dlguide batch --inside` and submit it, or leave `inside` out."
    require(bool(job), "inside", "be None outside a Slurm job", inside, then)
    nodes = int(os.environ.get("SLURM_JOB_NUM_NODES", "1"))
    tasks = os.environ.get("SLURM_TASKS_PER_NODE", "1")
    equal = re.fullmatch(r"(\d+)(?:\(x\d+\))?", tasks)  # "4(x2)": four on each of two nodes
    then = "Ask for `--ntasks-per-node`, not for `--ntasks`."
    require(bool(equal), "inside", "be in a job with as many ranks on each node", tasks, then)
    return Allocation(job, nodes, int(equal[1]))


def reachable_address() -> str:
    """Find an address of this node that other nodes can reach; DLGUIDE_ADDRESS may name it."""
    named = os.environ.get("DLGUIDE_ADDRESS")
    if named:
        return named
    found = []
    with suppress(OSError):  # a node without a name of its own may still have a way out
        found += socket.gethostbyname_ex(socket.gethostname())[2]
    probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with probe, suppress(OSError):
        probe.connect(("192.0.2.1", 9))  # of no host: a datagram socket sends nothing here
        found.append(probe.getsockname()[0])
    outside = [address for address in found if not address.startswith("127.")]
    if not outside:
        raise RuntimeError(
            f"Other nodes cannot reach {socket.gethostname()}: it knows itself by loopback only. "
            "Set DLGUIDE_ADDRESS to the address of its network."
        )
    return outside[0]


def machine() -> str:
    """Name the machine on which this process runs, for as long as it is up."""
    return _BOOT.read_text().strip()


def local_pids(engines: Sequence[Mapping[str, Any]]) -> dict[int, int]:
    """Pick the ranks that run on this machine, whose processes can be looked at."""
    here = machine()
    return {each["rank"]: each["pid"] for each in engines if each["machine"] == here}


def alive(engines: Sequence[Mapping[str, Any]]) -> bool:
    """Tell whether the ranks' processes are there, as far as this machine sees them."""
    return all(identity(pid) for pid in local_pids(engines).values())
