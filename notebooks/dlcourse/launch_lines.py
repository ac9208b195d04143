"""Explain a launch line of 2019 word by word, and read it as a job for today's launchers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache

from dlguide import published
from dlguide.cluster.launch_command import LaunchLine, given, hydra, joined, mpich, srun
from dlguide.errors import require, require_known

WORKS, DATED, DEAD, HARMFUL = "works", "dated", "dead", "harmful"


@dataclass(frozen=True)
class Option:
    """One option of a launcher: what it does, the part of a job it sets, its number of values."""

    did: str
    sets: str = ""
    values: int = 1
    state: str = WORKS
    note: str = ""
    value: str = ""


@dataclass(frozen=True)
class ExplainedWord:
    """A word of a launch line with its values."""

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
_MAP = Option("how ranks are dealt to nodes, sockets or slots")
_BIND = Option("what each rank is bound to")
_OMPI4 = "an option of Open MPI 1.6 that later ones refuse"

HYDRA: Mapping[str, Option] = {
    **dict.fromkeys(("n", "np"), _RANKS),
    **dict.fromkeys(("ppn", "perhost"), Option("ranks on each node", "per_node")),
    **dict.fromkeys(("f", "hostfile", "machinefile"), _FILE),
    **dict.fromkeys(("hosts", "host"), _HOSTS),
    **dict.fromkeys(("l", "prepend-rank"), _LABEL),
    **dict.fromkeys(("genv", "env"), Option("gives all ranks this variable", "variable", 2)),
    "genvlist": Option("gives all ranks these variables of this shell", "variable"),
    "bind-to": _BIND,
    "map-by": _MAP,
    "PSM2": Option(
        "uses the network Omni-Path", "", 0, DEAD,
        "Intel MPI since 2019 finds it by libfabric; by hand: FI_PROVIDER=psm2 or opx",
    ),
}  # fmt: skip
OPEN_MPI: Mapping[str, Option] = {
    **dict.fromkeys(("n", "np", "c"), _RANKS),
    **dict.fromkeys(("hostfile", "machinefile"), _FILE),
    **dict.fromkeys(("H", "host"), _HOSTS),
    "x": Option("gives all ranks this variable", "variable"),
    "map-by": _MAP,
    "bind-to": _BIND,
    "mca": Option("sets a parameter of Open MPI", "", 2),
    "oversubscribe": Option(
        "allows more ranks than slots", "", 0, HARMFUL,
        "it hides a wrong count: ranks then take turns on the cores. Leave it out",
    ),
    "report-bindings": Option("prints the cores each rank is bound to", "", 0),
    "cpus-per-proc": Option(
        "cores for each rank", "cpus", 1, DEAD, f"{_OMPI4}; now `--map-by slot:PE=...`"
    ),
    "npernode": Option("ranks on each node", "per_node", 1, DEAD, "now `--map-by ppr:...:node`"),
    "tag-output": replace(_LABEL, note="Open MPI 5 writes it `--output tag`"),
    "output": Option("`tag` writes the rank before each line of output", "label"),
    "allow-run-as-root": Option(
        "starts ranks as root", "", 0, WORKS, "for containers only: a faulty program may then "
        "break the whole machine",
    ),
}  # fmt: skip
FAMILIES = {"mpiexec of MPICH and Intel MPI": HYDRA, "mpirun of Open MPI": OPEN_MPI}
PROGRAMS = ("mpirun", "mpiexec", "orterun", "mpiexec.hydra", "mpiexec.gforker")

# What values mean, by option and value: (what it does, state, what to know).
MEANINGS: Mapping[tuple[str, str], tuple[str, str, str]] = {
    ("bind-to", "none"): (
        "binds nothing: the kernel moves ranks and threads about", DATED,
        "it gives up pinning; with two ranks that was better than Open MPI's default of one core "
        "for each. Today bind each rank to its share, as in `--map-by ppr:4:node:pe=7`",
    ),
    ("mca", "pml ob1"): (
        "sends messages by Open MPI's older layer ob1, not by UCX", DATED,
        "with the option below it forced TCP. On InfiniBand UCX is the fast way now",
    ),
    ("mca", "btl ^openib"): (
        "`^` means all but these: no InfiniBand by verbs", DATED,
        "Horovod advised it: MPI goes over TCP, which avoided crashes, and NCCL carries the "
        "gradients. Without NCCL it makes them slow; Open MPI 5 has no openib",
    ),
    ("map-by", "slot"): ("fills one node's slots, then the next node's", WORKS, "the default"),
    ("map-by", "socket"): ("deals ranks to the sockets in turn", WORKS, ""),
}  # fmt: skip


@dataclass(frozen=True)
class ExplainedLaunch:
    """A launch line explained: its words, the job it asks for, and what else to know."""

    launcher: str
    words: tuple[ExplainedWord, ...]
    job: LaunchLine
    findings: tuple[str, ...]


def explain(command: str) -> ExplainedLaunch:
    """Read a launch line of the sources word by word; nothing is run.

    Knows mpiexec (MPICH, Intel MPI) and mpirun of Open MPI, with the options that occur in courses,
    and variables before the command. Source: PRACE best practice guide (2019), sections 5.2, 5.3,
    6.2.7, 6.3.3, 6.4.3.
    """
    plain = command.replace("\\\n", " ")
    words = re.findall(r"""(?:[^\s"']|"[^"]*"|'[^']*')+|["']""", plain)
    closed = not {'"', "'"} & {*words}
    require(closed, "command", "close each quotation mark", command)
    at = next((i for i, word in enumerate(words) if word.rpartition("/")[2] in PROGRAMS), None)
    must = f"have a launcher, one of {', '.join(PROGRAMS)}"
    require(at is not None, "command", must, command)
    told, variables, findings = [], {}, []
    for word in words[:at]:
        name, equals, value = word.partition("=")
        if word == "export":
            findings = [
                "As printed this runs nothing: all that follows the first `export` on the line "
                "are its arguments, the launcher too. Each `export` needs its own line."
            ]
            told.append(ExplainedWord(word, "gives what follows to all later commands"))
            continue
        require(equals, "command", "have only variables before the launcher", word)
        variables[name] = _unquoted(value)
        told.append(_variable(word, name, _unquoted(value)))
    launcher, left = words[at], words[at + 1 :]
    # whose mpirun it is follows from the options, also from one that is almost an option
    only = {*OPEN_MPI} - {*HYDRA}
    names = {word.lstrip("-").partition("=")[0] for word in left if word.startswith("-")}
    near = any(get_close_matches(name, only, cutoff=0.75) for name in names - {*HYDRA})
    title = [*FAMILIES][near]
    table = FAMILIES[title]
    told.append(ExplainedWord(launcher, f"launcher: {title}"))
    parts: dict[str, str] = {}
    while left and left[0].startswith("-"):
        word = left[0]
        name, option, values = _option(left, title, table)
        meaning = MEANINGS.get((name, " ".join(values)))
        text = word if "=" in word else " ".join([word, *values])
        told.append(ExplainedWord(text, *(meaning or (option.did, option.state, option.note))))
        if option.sets == "variable":
            for key, value in _variables(name, values).items():
                variables[key] = value
                if key in _recipes() and value:
                    told[-1] = _variable(told[-1].text, key, value)
        elif option.sets:
            parts[option.sets] = values[0] if values else option.value
            if option.sets in ("ranks", "per_node", "nodes", "cpus"):
                counted = re.fullmatch(r"\$\{?\w+\}?|[1-9]\d*", parts[option.sets])
                require(counted, "command", f"have a count after -{name}", parts[option.sets])
    dead = [key for key, value in variables.items() if _state(key, value) == DEAD]
    if dead:
        findings.append(f"Left out below, because dead: {', '.join(dead)}.")
    job = LaunchLine(
        *(parts.get(key, "") for key in ("ranks", "per_node", "nodes")),
        cpus=parts.get("cpus") or variables.get("OMP_NUM_THREADS") or "",
        hosts=parts.get("hosts", ""),
        hostfile=parts.get("hostfile", ""),
        label="label" in parts,
        variables={key: value for key, value in variables.items() if key not in dead},
        program=tuple(left),
    )
    return ExplainedLaunch(title, tuple(told), job, (*findings, *_findings(job)))


def _option(
    left: list[str], title: str, table: Mapping[str, Option]
) -> tuple[str, Option, list[str]]:
    """Take the next option and its values from the words that are left."""
    word = left.pop(0)
    name, equals, value = word.lstrip("-").partition("=")
    require_known(name, table, f"command, {title}")
    option, values = table[name], [_unquoted(value)] if equals else []
    pair = option.values == 2 and left and "=" in left[0]
    while len(values) < (1 if pair else option.values):
        require(left, "command", f"have a value after {word}", "nothing")
        values.append(_unquoted(left.pop(0)))
    return name, option, values


def _variables(option: str, values: Sequence[str]) -> dict[str, str | None]:
    """The variables that an option gives to all ranks; None takes the shell's value."""
    joined = " ".join(values).replace(" ", "=", 1)
    pairs = joined.split(",") if option == "genvlist" else [joined]
    return {key: value or None for key, _, value in (each.partition("=") for each in pairs)}


def _unquoted(text: str) -> str:
    return text.replace('"', "").replace("'", "")


@cache
def _recipes() -> dict[str, dict[str, str]]:
    """The variables of the recipes of 2019, by name."""
    return {row["variable"]: row for row in published.load("recipes_2019")}


def _variable(text: str, name: str, value: str) -> ExplainedWord:
    recipe = _recipes().get(name)
    if recipe is None:
        return ExplainedWord(text, "a variable of the environment")
    instead = f"instead: {recipe['replacement']}" if recipe["replacement"] else ""
    note = "; ".join(filter(None, (recipe["note"], instead)))
    return ExplainedWord(text, recipe["meaning"], _state(name, value), note)


def _state(name: str, value: str | None) -> str:
    if (name, value) == ("I_MPI_FABRICS", "tmi"):
        return DEAD
    state = _recipes().get(name, {"state": "alive"})["state"]
    return WORKS if state == "alive" else state


def _findings(job: LaunchLine) -> list[str]:
    ranks, each, cpus = (
        int(text) if text.isdigit() else 0 for text in (job.ranks, job.per_node, job.cpus)
    )
    said = []
    if ranks and each:
        said.append(f"{ranks} ranks, {each} on a node, need {-(-ranks // each)} nodes.")
    if cpus and each:
        said.append(f"{each} ranks x {cpus} threads keep {each * cpus} cores of a node busy.")
    if not job.program:
        said.append("There is no program behind the options: nothing would run.")
    return said


def all_lines(job: LaunchLine) -> dict[str, str]:
    """Return the command for every launcher of today."""
    # Intel MPI binds each rank to a domain of CPUs
    domain = f"{job.cpus}:compact" if job.cpus else "auto"
    intel = joined([*hydra(job), "-genv", "I_MPI_PIN_DOMAIN", domain], job)
    lines = {"MPICH": mpich(job), "Open MPI 5": _open_mpi(job), "Intel MPI": intel}
    return lines | {"Slurm": srun(job)}


def _open_mpi(job: LaunchLine) -> str:
    cores = f":PE={job.cpus}" if job.cpus else ""
    place = f"ppr:{job.per_node}:node{cores}" if job.per_node else f"slot{cores}"
    hosts = job.hosts
    if job.per_node and hosts:  # a host without its number of ranks is one slot
        hosts = ",".join(f"{host}:{job.per_node}" for host in hosts.split(","))
    words = ["mpirun", *given("-n", job.ranks), "--map-by", place, "--bind-to", "core"]
    words += [*given("--hostfile", job.hostfile), *given("--host", hosts)]
    words += ["--output", "tag"] if job.label else []
    for name, value in job.variables.items():
        words += ["-x", name if value is None else f"{name}={value}"]
    return joined([*words, "--report-bindings"], job)
