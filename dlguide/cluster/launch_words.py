"""The options of launchers: how many values each takes, what it does, what of it is old."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

WORKS, DEAD, HARMFUL = "works", "dead", "harmful"


@dataclass(frozen=True)
class Option:
    """One option of a launcher."""

    did: str
    sets: str = ""
    values: int = 1
    state: str = WORKS
    note: str = ""
    value: str = ""


@dataclass(frozen=True)
class Explained:
    """A word of a launch line with its values.

    Args:
        text: the word and its values.
        did: what it asks for.
        state: "works", "harmful", "dead", or "not here" (TensorFlow does not heed it).
        note: what to know about it.
    """

    text: str
    did: str
    state: str = WORKS
    note: str = ""

    def __str__(self) -> str:
        state = "" if self.state == WORKS else f"{self.state.upper()}: "
        after = f". {state}{self.note[0].upper()}{self.note[1:]}" if self.note else ""
        return f"{self.text}\n    {self.did}{after}."


_RANKS = Option("number of ranks in all", "ranks")
_FILE = Option("file with the names of the nodes", "hostfile")
_HOSTS = Option("names of the nodes", "hosts")
_LABEL = Option("writes the rank before each line of output", "label", 0, value="yes")
_MAP = Option("how ranks are dealt to nodes, sockets or slots", "")
_BIND = Option("what each rank is bound to", "bind")
_ENV = Option("gives all ranks this variable", "variable")
_OMPI4 = "an option of Open MPI 1.6 that later ones refuse"

HYDRA: Mapping[str, Option] = {
    **dict.fromkeys(("n", "np"), _RANKS),
    **dict.fromkeys(("ppn", "perhost"), Option("ranks on each node", "per_node")),
    **dict.fromkeys(("f", "hostfile", "machinefile"), _FILE),
    **dict.fromkeys(("hosts", "host"), _HOSTS),
    **dict.fromkeys(("l", "prepend-rank"), _LABEL),
    **dict.fromkeys(("genv", "env"), Option(_ENV.did, "variable", 2)),
    "genvall": Option("gives all ranks all variables of this shell", "all_variables", 0),
    "genvlist": Option("gives all ranks these variables of this shell", "variable"),
    "bind-to": _BIND,
    "map-by": _MAP,
    "launcher": Option("how other nodes are reached, such as ssh"),
    "iface": Option("network interface for starting the ranks"),
    "PSM2": Option(
        "uses the network Omni-Path", "", 0, DEAD,
        "Intel MPI since 2019 finds it by libfabric; by hand: FI_PROVIDER=psm2 or opx",
    ),
}  # fmt: skip
OPEN_MPI: Mapping[str, Option] = {
    **dict.fromkeys(("n", "np", "c"), _RANKS),
    **dict.fromkeys(("hostfile", "machinefile"), _FILE),
    **dict.fromkeys(("H", "host"), _HOSTS),
    "x": _ENV,
    "map-by": _MAP,
    "bind-to": _BIND,
    "mca": Option("sets a parameter of Open MPI", "", 2),
    "oversubscribe": Option(
        "allows more ranks than slots", "", 0, HARMFUL,
        "it hides a wrong count: ranks then take turns on the cores. Leave it out",
    ),
    "report-bindings": Option("prints the cores each rank is bound to", "report", 0, value="yes"),
    "cpus-per-proc": Option(
        "cores for each rank", "cpus", 1, DEAD, f"{_OMPI4}; now `--map-by slot:PE=...`"
    ),
    "pernode": Option(
        "one rank on each node", "per_node", 0, DEAD, "now `--map-by ppr:1:node`", "1"
    ),
    "npernode": Option("ranks on each node", "per_node", 1, DEAD, "now `--map-by ppr:...:node`"),
    "tag-output": Option(
        _LABEL.did, "label", 0, WORKS, "Open MPI 5 writes it `--output tag`", "yes"
    ),
    "output": Option("`tag` writes the rank before each line of output", "label"),
    "allow-run-as-root": Option(
        "starts ranks as root", "", 0, WORKS, "for containers only: a faulty program may then "
        "break the whole machine",
    ),
}  # fmt: skip
MVAPICH: Mapping[str, Option] = {
    **dict.fromkeys(("n", "np"), _RANKS),
    "hostfile": _FILE,
    "export-all": Option(
        "gives all ranks all variables of this shell", "all_variables", 0, value="yes"
    ),
    "export": Option("gives all ranks the variables after it", "", 0),
}
SRUN: Mapping[str, Option] = {
    **dict.fromkeys(("n", "ntasks"), _RANKS),
    **dict.fromkeys(("N", "nodes"), Option("number of nodes", "nodes")),
    **dict.fromkeys(
        ("c", "cpus-per-task"),
        Option("CPUs for each rank", "cpus", note="say it in `srun` too: since Slurm 22.05 it "
               "does not take it over from `sbatch`"),
    ),
    **dict.fromkeys(
        ("r", "relative"),
        Option("begins at this node of the job, counted from 0", "", note="so several `srun ... "
               "&` share one job, each on nodes of its own"),
    ),
    **dict.fromkeys(("l", "label"), _LABEL),
    **dict.fromkeys(("w", "nodelist"), _HOSTS),
    **dict.fromkeys(("F", "nodefile"), _FILE),
    "ntasks-per-node": Option("ranks on each node", "per_node"),
    "tasks-per-node": Option("ranks on each node", "per_node", note="the documented name is "
                             "`--ntasks-per-node`"),
    "cpu-bind": Option("what each rank is bound to", "bind"),
    "mpi": Option("how Slurm tells MPI who is who", note="MPICH wants pmi2, Open MPI 5 pmix"),
    "export": Option("variables all ranks get", "variable"),
    "exclusive": Option("shares no node with others", "", 0),
    "exact": Option("takes only the CPUs that were asked for", "", 0),
}  # fmt: skip
MXNET: Mapping[str, Option] = {
    **dict.fromkeys(("n", "num-workers"), Option("number of workers", "ranks")),
    **dict.fromkeys(("s", "num-servers"), Option("number of parameter servers")),
    **dict.fromkeys(("H", "hostfile"), _FILE),
    "launcher": Option("how other nodes are reached, such as ssh"),
}
HOROVODRUN: Mapping[str, Option] = {
    **dict.fromkeys(("n", "np", "num-proc"), _RANKS),
    **dict.fromkeys(("H", "hosts"), _HOSTS),
    "hostfile": _FILE,
    "verbose": Option("prints the command it runs", "", 0),
    "mpi": Option("communicates by MPI", "", 0),
    "gloo": Option("communicates by Gloo", "", 0),
}

# What a family is called, its options, and what to know about it.
FAMILIES: Mapping[str, tuple[str, Mapping[str, Option], str]] = {
    "hydra": ("mpiexec of MPICH and Intel MPI", HYDRA, ""),
    "open_mpi": ("mpirun of Open MPI", OPEN_MPI, ""),
    "mvapich": ("mpirun_rsh of MVAPICH2", MVAPICH, "MVAPICH 3 and later start with mpiexec"),
    "srun": ("srun of Slurm", SRUN, ""),
    "mxnet": ("launch.py of MXNet", MXNET, "MXNet has been in the attic since 2023: dead"),
    "horovodrun": ("horovodrun", HOROVODRUN, "it does not know MPICH 4 and later: use mpiexec"),
}
PROGRAMS: Mapping[str, str] = {
    "mpiexec.hydra": "hydra",
    "mpiexec.gforker": "hydra",
    "mpirun_rsh": "mvapich",
    "srun": "srun",
    "launch.py": "mxnet",
    "horovodrun": "horovodrun",
}
SHARED_NAMES = ("mpirun", "mpiexec", "orterun")  # which MPI it is, only the options tell

# What values mean, by option and value: (what it does, state, what to know).
MEANINGS: Mapping[tuple[str, str], tuple[str, str, str]] = {
    ("bind-to", "none"): (
        "binds nothing: the kernel moves ranks and threads about", HARMFUL,
        "it gives up pinning. Leave it out, or bind each rank to its cores",
    ),
    ("mca", "pml ob1"): (
        "sends messages by Open MPI's older layer ob1, not by UCX", HARMFUL,
        "on InfiniBand UCX is the fast way now. Leave it out",
    ),
    ("mca", "btl ^openib"): (
        "`^` means all but these: no InfiniBand by verbs", HARMFUL,
        "MPI then goes over TCP, while NCCL finds its own way. Copied from Horovod's "
        "instructions; Open MPI 5 has no openib. Leave it out",
    ),
    ("map-by", "slot"): ("fills one node's slots, then the next node's", WORKS, "the default"),
    ("map-by", "socket"): ("deals ranks to the sockets in turn", WORKS, ""),
    ("cpu-bind", "none"): (
        "binds nothing: the kernel moves ranks and threads about", HARMFUL,
        "it gives up pinning. Leave it out",
    ),
}  # fmt: skip
