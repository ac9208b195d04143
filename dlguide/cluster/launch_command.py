"""The command that starts ranks with MPICH, Open MPI, Intel MPI or Slurm, bound to cores."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class LaunchLine:
    """What a launch line asks for, for any launcher.

    Counts are texts: a number, a shell variable, or "". A variable whose value is None has the
    shell's value. `label` adds the rank to lines of output; `program` keeps its quotes.
    """

    ranks: str
    per_node: str = ""
    nodes: str = ""
    cpus: str = ""
    hosts: str = ""
    hostfile: str = ""
    label: bool = False
    variables: Mapping[str, str | None] = field(default_factory=dict, hash=False)
    program: tuple[str, ...] = ()


def all_lines(job: LaunchLine) -> dict[str, str]:
    """Return the command for every launcher."""
    ways = {"MPICH": mpich, "Open MPI 5": open_mpi, "Intel MPI": intel_mpi, "Slurm": srun}
    return {name: command(job) for name, command in ways.items()}


def mpich(job: LaunchLine) -> str:
    """Return the command for MPICH's mpiexec (Hydra)."""
    bind = f"core:{job.cpus}" if job.cpus not in ("", "1") else "core"
    return _joined([*hydra(job), "-bind-to", bind], job)


def intel_mpi(job: LaunchLine) -> str:
    """Return the command for Intel MPI's mpiexec, which binds each rank to a domain of CPUs."""
    domain = f"{job.cpus}:compact" if job.cpus else "auto"
    return _joined([*hydra(job), "-genv", "I_MPI_PIN_DOMAIN", domain], job)


def hydra(job: LaunchLine) -> list[str]:
    """Return the words that MPICH and Intel MPI share; none binds a rank."""
    words = ["mpiexec", *_given("-n", job.ranks), *_given("-ppn", job.per_node)]
    words += [*_given("-f", job.hostfile), *_given("-hosts", job.hosts)]
    words += ["-l"] if job.label else []
    for name, value in job.variables.items():
        words += ["-genvlist", name] if value is None else ["-genv", name, value]
    return words


def open_mpi(job: LaunchLine) -> str:
    """Return the command for Open MPI's mpirun, version 5."""
    cores = f":PE={job.cpus}" if job.cpus else ""
    place = f"ppr:{job.per_node}:node{cores}" if job.per_node else f"slot{cores}"
    words = ["mpirun", *_given("-n", job.ranks), "--map-by", place, "--bind-to", "core"]
    words += [*_given("--hostfile", job.hostfile), *_given("--host", _slots(job))]
    words += ["--output", "tag"] if job.label else []
    for name, value in job.variables.items():
        words += ["-x", name if value is None else f"{name}={value}"]
    return _joined([*words, "--report-bindings"], job)


def _slots(job: LaunchLine) -> str:
    """Return the hosts with their numbers of ranks: a host without one is one slot."""
    if not job.per_node or not job.hosts:
        return job.hosts
    return ",".join(f"{host}:{job.per_node}" for host in job.hosts.split(","))


def srun(job: LaunchLine) -> str:
    """Return the command for Slurm."""
    words = ["srun", *_given("--nodes", job.nodes, "="), *_given("--ntasks", job.ranks, "=")]
    words += [*_given("--ntasks-per-node", job.per_node, "=")]
    words += [*_given("--cpus-per-task", job.cpus, "="), "--cpu-bind=cores"]
    words += [*_given("--nodefile", job.hostfile, "="), *_given("--nodelist", job.hosts, "=")]
    words += ["--label"] if job.label else []
    # srun splits the list at commas, so a value with a comma must come from the shell
    both = job.variables.items()
    before = [f"{name}={value}" for name, value in both if value and "," in value]
    names = [name if not value or "," in value else f"{name}={value}" for name, value in both]
    words += [f"--export=ALL,{','.join(names)}"] if names else []
    return _joined([*before, *words], job)


def _given(option: str, value: str, between: str = "") -> Iterable[str]:
    if not value:
        return ()
    return (f"{option}{between}{value}",) if between else (option, value)


def _joined(words: Iterable[str], job: LaunchLine) -> str:
    """Join words and quote those that a shell would split; `$NAME` stays a variable."""
    quiet = re.compile(r"""[\w$@%+=:,./"'{}~^-]+""")
    quoted = [word if quiet.fullmatch(word) else shlex.quote(word) for word in words]
    return " ".join([*quoted, *(job.program or ("PROGRAM",))])
