"""What a batch job asks for, checked before anybody waits in a queue for it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath

from dlguide.errors import require, require_count

TIME = re.compile(r"(?:(\d+)-)?(\d{1,3}):([0-5]\d):([0-5]\d)")
NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,99}")
MEMORY = re.compile(r"\d+[KMGT]?")
VARIABLE = re.compile(r"[A-Za-z_]\w*")
ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")
PLACES = ("{staged}", "{link}")  # what an argument may hold, filled in where the job runs


@dataclass(frozen=True)
class Job:
    """A program of ranks, the machines it wants and for how long.

    In `arguments`, `{staged}` stands for the folder on each node's own disk to which the job has
    copied its data, and `{link}` for the number of the job in a chain, from 1 on.

    Args:
        program: a Python script, or a notebook, which `inside` must be True for.
        arguments: its command line.
        name: of the job; "" for the program's name.
        nodes: number of nodes (count).
        ranks_per_node: MPI ranks on each node (count).
        threads: cores of each rank (count).
        gpus_per_node: GPUs on each node (count).
        time: longest time it may take, as H:MM:SS or D-HH:MM:SS.
        memory: of a node, such as "60G"; "" for the site's rule, "0" in Slurm for all of it.
        exclusive: whether to share no node with others' jobs.
        stage: files, folders and tar archives to bring to each node's disk first; an archive is
            unpacked there.
        requeue: whether to begin anew, from the last checkpoint, when the time is over.
        warn_s: how long before the limit the job is told that it ends (s).
        restarts: how often at most it begins anew (count).
        chain: number of such jobs, each beginning when the one before has ended well (count).
        inside: whether the program runs once, on the first node, and starts its ranks itself
            with `Cluster(inside="slurm")`.
        container: image of Apptainer in which the program runs; "" for none.
        environment: further variables of the job.

    Raises:
        ValueError: when a field is not what it must be.
    """

    program: str
    arguments: tuple[str, ...] = ()
    name: str = ""
    nodes: int = 1
    ranks_per_node: int = 1
    threads: int = 1
    gpus_per_node: int = 0
    time: str = "1:00:00"
    memory: str = ""
    exclusive: bool = False
    stage: tuple[str, ...] = ()
    requeue: bool = False
    warn_s: int = 120
    restarts: int = 10
    chain: int = 1
    inside: bool = False
    container: str = ""
    environment: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        """Check every field."""
        path = PurePosixPath(self.program)
        must = "be a script.py or a notebook.ipynb"
        require(path.suffix in (".py", ".ipynb"), "program", must, self.program)
        if not self.name:
            object.__setattr__(self, "name", path.stem)
        must = "be letters, digits and _ . - only, at most 100, a letter or digit first"
        require(bool(NAME.fullmatch(self.name)), "name", must, self.name, "Give a `name`.")
        for counted in ("nodes", "ranks_per_node", "threads", "chain", "restarts"):
            require_count(getattr(self, counted), counted)
        require_count(self.gpus_per_node, "gpus_per_node", least=0)
        require_count(self.warn_s, "warn_s")
        must = f"be below the {self.seconds} s of the job's time"
        fits = not self.requeue or self.warn_s < self.seconds
        require(fits, "warn_s", must, self.warn_s, "Ask for more time.")
        must = "be a number with K, M, G or T, such as 60G"
        fits = not self.memory or MEMORY.fullmatch(self.memory)
        require(fits, "memory", must, self.memory)
        notebook = path.suffix == ".ipynb"
        then = 'A notebook starts its ranks itself: `Cluster(inside="slurm")`.'
        require(self.inside or not notebook, "inside", "be True for a notebook", self.inside, then)
        then = "Give its values to a script."
        must = "be empty for a notebook"
        require(not (notebook and self.arguments), "arguments", must, self.arguments, then)
        self._check_texts()

    def _check_texts(self) -> None:
        """Refuse what would break out of its line of the script, and staging that is not there."""
        for name in ("arguments", "stage"):
            value = getattr(self, name)
            # a text is a sequence, too: of letters
            require(isinstance(value, tuple | list), name, "be a tuple of texts", value)
        texts = [self.program, self.container, *self.arguments, *self.stage]
        texts += [*self.environment, *self.environment.values()]
        for text in texts:
            require(isinstance(text, str), "job", "hold texts", text)
            require(text.isprintable(), "job", "hold printable characters, no line ends", text)
        for name in self.environment:
            must = "have names of shell variables"
            require(bool(VARIABLE.fullmatch(name)), "environment", must, name)
        for text in self.stage:
            fits = bool(text.strip()) and not text.startswith("-")
            require(fits, "stage", "be paths", text)
        names = [PurePosixPath(text).name for text in self.stage if not is_archive(text)]
        twice = sorted({name for name in names if names.count(name) > 1})
        must = "have names that differ, since all go into one folder"
        require(not twice, "stage", must, ", ".join(twice))
        wanted = [text for text in self.arguments if "{staged}" in text]
        then = "Name the data in `stage` too."
        must = "not use {staged} in a job that stages nothing"
        require(bool(self.stage) or not wanted, "arguments", must, wanted, then)
        unpacked = any(is_archive(text) for text in self.stage)
        for text in wanted:
            part = text.partition("{staged}")[2].strip("/").partition("/")[0]
            must = f"use what is staged, {', '.join(names)}"
            # what an archive holds is known only when it is unpacked: the job looks then
            require(unpacked or not part or part in names, "arguments", must, text)

    @property
    def ranks(self) -> int:
        """Number of ranks in all (count)."""
        return self.nodes * self.ranks_per_node

    @property
    def cores(self) -> int:
        """Number of cores in all (count)."""
        return self.ranks * self.threads

    @property
    def seconds(self) -> int:
        """Longest time it may take (s)."""
        return seconds_of(self.time)

    @property
    def core_hours(self) -> float:
        """Core-hours that are paid at most, all jobs of the chain together."""
        return self.cores * self.seconds / 3600 * self.chain

    def but(self, **changes: object) -> Job:
        """Return the same job with some fields changed.

        Args:
            changes: new values by field.

        Returns:
            Job: checked like a new one.
        """
        return replace(self, **changes)


def seconds_of(time: str) -> int:
    """Read a time limit.

    Slurm reads "2:00" as two minutes and "2" as two as well, PBS as two seconds; many who write
    them mean hours. So only the full form is taken.

    >>> seconds_of("2:00:00"), seconds_of("1-12:00:00")
    (7200, 129600)
    """
    found = TIME.fullmatch(time) if isinstance(time, str) else None
    then = "Two hours are 2:00:00."
    require(bool(found), "time", "be written H:MM:SS or D-HH:MM:SS", time, then)
    days, hours, minutes, seconds = (int(each or 0) for each in found.groups())
    limit_s = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    require(limit_s > 0, "time", "be more than nothing", time)
    return limit_s


def hours_minutes_seconds(seconds: int) -> str:
    """Write a time as HH:MM:SS, which Slurm and PBS read alike.

    >>> hours_minutes_seconds(129600)
    '36:00:00'
    """
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def is_archive(path: str) -> bool:
    """Tell whether a path is that of a tar archive, by its name."""
    return path.endswith(ARCHIVES)
