"""What is the same for all jobs of one site, read from a file in TOML."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from dlguide.cluster.batch.job import MEMORY, VARIABLE, Job, seconds_of
from dlguide.errors import require, require_count, require_known

SCHEDULERS = ("slurm", "pbs")
LAUNCHERS = ("mpiexec", "srun")
PLACE = re.compile(r"[\w/.+:-]*(?:\$(?:\w+|\{\w+\})[\w/.+:-]*)*")
WORD = re.compile(r"[\w/.+:@=,-]*")
TEXTS = {str: "a text", int: "a whole number", bool: "true or false"}


@dataclass(frozen=True)
class Profile:
    """How jobs are written at one site.

    Args:
        scheduler: "slurm" or "pbs".
        account: project that pays; "" for the user's own.
        partition: Slurm's partition, or PBS' queue; "" for the site's default.
        gpu_type: what Slurm calls its GPUs, such as "p100"; "" to take any.
        cores_per_node: cores of a node (count); 0 where it is not known, nothing is checked then.
        gpus_per_node: GPUs of a node (count); 0 likewise.
        max_time: longest time that the site allows, as H:MM:SS; "" where it is not known.
        memory: of a node, for jobs that do not ask for another.
        exclusive: whether jobs share no node with others'.
        modules: modules to load.
        venv: folder of a virtual environment to activate; "" for none.
        setup: further lines of bash, run as they stand.
        launcher: "mpiexec" or, with Slurm, "srun".
        mpi: how srun tells MPI who is who: "pmi2" for MPICH, "pmix" for Open MPI 5.
        local_disk: folder on each node's own disk; may hold variables.
        binds: folders that a container shall see, too.
        options: further directives, without "#SBATCH" or "#PBS".
        environment: variables of all jobs.
    """

    scheduler: str = "slurm"
    account: str = ""
    partition: str = ""
    gpu_type: str = ""
    cores_per_node: int = 0
    gpus_per_node: int = 0
    max_time: str = ""
    memory: str = ""
    exclusive: bool = False
    modules: tuple[str, ...] = ()
    venv: str = ""
    setup: tuple[str, ...] = ()
    launcher: str = "mpiexec"
    mpi: str = "pmi2"
    local_disk: str = "${TMPDIR:-/tmp}"
    binds: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        """Check every field."""
        require_known(self.scheduler, SCHEDULERS, "scheduler")
        require_known(self.launcher, LAUNCHERS, "launcher")
        fits = self.scheduler == "slurm" or self.launcher != "srun"
        require(fits, "launcher", "be mpiexec where the scheduler is pbs", self.launcher)
        for counted in ("cores_per_node", "gpus_per_node"):
            require_count(getattr(self, counted), counted, least=0)
        if self.max_time:
            seconds_of(self.max_time)
        fits = not self.memory or MEMORY.fullmatch(self.memory)
        require(fits, "memory", "be a number with K, M, G or T, such as 60G", self.memory)
        for name in ("account", "partition", "gpu_type", "mpi"):
            fits = WORD.fullmatch(getattr(self, name))
            require(fits, name, "be one word", getattr(self, name))
        for name in ("modules", "options", "setup", "binds"):
            texts = getattr(self, name)
            # a text is a sequence, too: of letters
            require(isinstance(texts, tuple | list), name, "be a tuple of texts", texts)
            for text in texts:
                fits = isinstance(text, str) and bool(text.strip()) and text.isprintable()
                require(fits, name, "hold texts of one line", text)
        fits = PLACE.fullmatch(self.local_disk) or self.local_disk == "${TMPDIR:-/tmp}"
        then = "Such as /local/$USER or $TMPDIR."
        require(bool(self.local_disk and fits), "local_disk", "be a path", self.local_disk, then)
        for name, value in self.environment.items():
            fits = VARIABLE.fullmatch(name) and isinstance(value, str) and value.isprintable()
            require(fits, "environment", "give variables texts of one line", {name: value})

    def require_room(self, job: Job) -> None:
        """Refuse a job that no node of the site could ever run."""
        wanted = job.ranks_per_node * job.threads
        most = self.cores_per_node or wanted
        must = f"be such that ranks x threads fit into the {most} cores of a node"
        asked = f"{job.ranks_per_node} ranks x {job.threads} threads = {wanted}"
        require(wanted <= most, "threads", must, asked)
        most = self.gpus_per_node or job.gpus_per_node
        must = f"be at most the {most} of a node"
        require(job.gpus_per_node <= most, "gpus_per_node", must, job.gpus_per_node)
        if self.max_time:
            must = f"be at most the site's {self.max_time}"
            fits = job.seconds <= seconds_of(self.max_time)
            then = "Ask for less, with `requeue` or in a `chain`."
            require(fits, "time", must, job.time, then)
        if self.scheduler == "pbs":
            then = "Start one rank a process with mpiexec."
            require(not job.inside, "inside", "be False under PBS", job.inside, then)


def read_profile(path: str | os.PathLike[str]) -> Profile:
    """Read a site profile.

    Args:
        path: a file in TOML, whose keys are the fields of `Profile`.

    Returns:
        Profile: checked.

    Raises:
        ValueError: when there is no such file, it is no TOML, a key is unknown (the text names
            the nearest known one) or a value is of the wrong kind.
    """
    require(Path(path).is_file(), "profile", "be a file that exists", str(path))
    try:
        given = tomllib.loads(Path(path).read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        require(False, "profile", f"be TOML ({error})", str(path))
    return profile_of(given)


def profile_of(given: Mapping[str, Any]) -> Profile:
    """Make a profile of what a file has said.

    >>> profile_of({"partiton": "gpu"})
    Traceback (most recent call last):
    ValueError: `key of the profile` must be one of account, binds, cores_per_node, environment, \
exclusive, gpu_type, gpus_per_node, launcher, local_disk, max_time, memory, modules, mpi, \
options, partition, scheduler, setup, venv, got 'partiton'. Did you mean partition?
    """
    plain = Profile()
    known = [each.name for each in fields(Profile)]
    values: dict[str, Any] = {}
    for key, value in given.items():
        require_known(key, known, "key of the profile")
        kind = type(getattr(plain, key))
        if kind is tuple:
            must = "be a list of texts, in [ ]"
            fits = isinstance(value, list) and all(isinstance(each, str) for each in value)
            require(fits, key, must, value)
            values[key] = tuple(value)
        elif kind is dict:
            require(isinstance(value, dict), key, "be a table of texts", value)
            values[key] = value
        else:
            require(type(value) is kind, key, f"be {TEXTS[kind]}", value)
            values[key] = value
    return Profile(**values)
