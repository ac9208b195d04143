"""One job written for the launchers of today, its ranks bound to cores."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Job:
    """What a launch line asks for, whatever the launcher.

    Args:
        ranks: number of ranks (count), as it is written: a number, a shell's variable, or "".
        per_node: ranks on each node, likewise.
        nodes: number of nodes, likewise.
        cpus: cores of each rank, likewise.
        hosts: names of the nodes, separated by commas, or "".
        hostfile: file with such names, or "".
        label: whether lines of output carry their rank.
        variables: environment of the ranks, without what is dead; None is the shell's value.
        program: what the ranks run, quoted as it was.
    """

    ranks: str
    per_node: str
    nodes: str
    cpus: str
    hosts: str
    hostfile: str
    label: bool
    variables: Mapping[str, str | None] = field(hash=False)
    program: tuple[str, ...]


def all_lines(job: Job) -> dict[str, str]:
    """Write the job for every launcher."""
    return {
        "MPICH": mpich(job),
        "Open MPI 5": open_mpi(job),
        "Intel MPI": intel_mpi(job),
        "Slurm": srun(job),
    }


def mpich(job: Job) -> str:
    """Write the job for MPICH's mpiexec (Hydra)."""
    bind = f"core:{job.cpus}" if job.cpus not in ("", "1") else "core"
    return _joined([*_hydra(job), "-bind-to", bind], job)


def intel_mpi(job: Job) -> str:
    """Write the job for Intel MPI's mpiexec, which binds each rank to a domain of CPUs."""
    domain = f"{job.cpus}:compact" if job.cpus else "auto"
    return _joined([*_hydra(job), "-genv", "I_MPI_PIN_DOMAIN", domain], job)


def _hydra(job: Job) -> list[str]:
    words = ["mpiexec", *_given("-n", job.ranks), *_given("-ppn", job.per_node)]
    words += [*_given("-f", job.hostfile), *_given("-hosts", job.hosts)]
    words += ["-l"] if job.label else []
    for name, value in job.variables.items():
        words += ["-genvlist", name] if value is None else ["-genv", name, value]
    return words


def open_mpi(job: Job) -> str:
    """Write the job for Open MPI's mpirun, version 5."""
    cores = f":PE={job.cpus}" if job.cpus else ""
    place = f"ppr:{job.per_node}:node{cores}" if job.per_node else f"slot{cores}"
    words = ["mpirun", *_given("-n", job.ranks), "--map-by", place, "--bind-to", "core"]
    words += [*_given("--hostfile", job.hostfile), *_given("--host", _slots(job))]
    words += ["--output", "tag"] if job.label else []
    for name, value in job.variables.items():
        words += ["-x", name if value is None else f"{name}={value}"]
    return _joined([*words, "--report-bindings"], job)


def _slots(job: Job) -> str:
    """Say how many ranks each host takes, since one host is one slot."""
    if not job.per_node or not job.hosts:
        return job.hosts
    return ",".join(f"{host}:{job.per_node}" for host in job.hosts.split(","))


def srun(job: Job) -> str:
    """Write the job for Slurm."""
    words = ["srun", *_given("--nodes", job.nodes, "="), *_given("--ntasks", job.ranks, "=")]
    words += [*_given("--ntasks-per-node", job.per_node, "=")]
    words += [*_given("--cpus-per-task", job.cpus, "="), "--cpu-bind=cores"]
    words += [*_given("--nodefile", job.hostfile, "="), *_given("--nodelist", job.hosts, "=")]
    words += ["--label"] if job.label else []
    # srun cuts the list at commas, so that a value with one must come from the shell
    both = [(name, value) for name, value in job.variables.items()]
    before = [f"{name}={value}" for name, value in both if value and "," in value]
    names = [name if not value or "," in value else f"{name}={value}" for name, value in both]
    words += [f"--export=ALL,{','.join(names)}"] if names else []
    return _joined([*before, *words], job)


def _given(option: str, value: str, between: str = "") -> Iterable[str]:
    if not value:
        return ()
    return (f"{option}{between}{value}",) if between else (option, value)


def _joined(words: Iterable[str], job: Job) -> str:
    """Join words, those in quotes that a shell would cut; `$NAME` stays a variable."""
    quiet = re.compile(r"""[\w$@%+=:,./"'{}~^-]+""")
    quoted = [word if quiet.fullmatch(word) else shlex.quote(word) for word in words]
    return " ".join([*quoted, *(job.program or ("PROGRAM",))])
