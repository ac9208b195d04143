"""The command that starts ranks with MPICH or Slurm, bound to cores."""

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


def mpich(job: LaunchLine) -> str:
    """Return the command for MPICH's mpiexec (Hydra)."""
    bind = f"core:{job.cpus}" if job.cpus not in ("", "1") else "core"
    return joined([*hydra(job), "-bind-to", bind], job)


def hydra(job: LaunchLine) -> list[str]:
    """Return the words that all of Hydra's relatives share; none binds a rank."""
    words = ["mpiexec", *given("-n", job.ranks), *given("-ppn", job.per_node)]
    words += [*given("-f", job.hostfile), *given("-hosts", job.hosts)]
    words += ["-l"] if job.label else []
    for name, value in job.variables.items():
        words += ["-genvlist", name] if value is None else ["-genv", name, value]
    return words


def srun(job: LaunchLine) -> str:
    """Return the command for Slurm."""
    words = ["srun", *given("--nodes", job.nodes, "="), *given("--ntasks", job.ranks, "=")]
    words += [*given("--ntasks-per-node", job.per_node, "=")]
    words += [*given("--cpus-per-task", job.cpus, "="), "--cpu-bind=cores"]
    words += [*given("--nodefile", job.hostfile, "="), *given("--nodelist", job.hosts, "=")]
    words += ["--label"] if job.label else []
    # srun splits the list at commas, so a value with a comma must come from the shell
    both = job.variables.items()
    before = [f"{name}={value}" for name, value in both if value and "," in value]
    names = [name if not value or "," in value else f"{name}={value}" for name, value in both]
    words += [f"--export=ALL,{','.join(names)}"] if names else []
    return joined([*before, *words], job)


def given(option: str, value: str, between: str = "") -> Iterable[str]:
    if not value:
        return ()
    return (f"{option}{between}{value}",) if between else (option, value)


def joined(words: Iterable[str], job: LaunchLine) -> str:
    """Join words and quote those that a shell would split; `$NAME` stays a variable."""
    quiet = re.compile(r"""[\w$@%+=:,./"'{}~^-]+""")
    quoted = [word if quiet.fullmatch(word) else shlex.quote(word) for word in words]
    return " ".join([*quoted, *(job.program or ("PROGRAM",))])
