"""Explain a launch line of 2019 word by word, and write the same job for today's launchers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches

from dlcourse import recipes_2019
from dlcourse.omp_affinity import Word
from dlguide.cluster import launch_command
from dlguide.cluster.launch_command import LaunchLine
from dlguide.errors import require

WORKS, DATED, DEAD, HARMFUL = "works", "dated", "dead", "harmful"


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
               "&` share one job, each on its own nodes"),
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
    ("cpu-bind", "none"): (
        "binds nothing: the kernel moves ranks and threads about", HARMFUL,
        "it gives up pinning. Leave it out",
    ),
}  # fmt: skip

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.S)
_SHELL = {
    "&": "goes on with the next line while this one runs",
    "wait": "waits for all that was started with `&`",
}


@dataclass(frozen=True)
class ExplainedLaunch:
    """A launch line explained; `print` shows it."""

    launcher: str
    words: tuple[ExplainedWord, ...]
    job: LaunchLine
    findings: tuple[str, ...]

    @property
    def commands(self) -> dict[str, str]:
        """The same job for each of today's launchers, ranks bound, without what harms."""
        return launch_command.all_lines(self.job)

    def __str__(self) -> str:
        parts = [f"launcher: {self.launcher}", *map(str, self.words), ""]
        parts += [f"- {finding}" for finding in self.findings]
        parts += ["", "the same job today:"]
        parts += [f"  {name}: {command}" for name, command in self.commands.items()]
        return "\n".join(parts).replace("\n\n\n", "\n\n")


def explain(command: str) -> ExplainedLaunch:
    """Read a launch line of the sources word by word; nothing is run.

    Knows mpiexec (MPICH, Intel MPI), mpirun of Open MPI, mpirun_rsh, srun, MXNet's launch.py and
    horovodrun, with the options that occur in courses. Leaves out everything a shell does but
    variables before the command, `export`, `&` and `wait`. Source: PRACE best practice guide
    (2019), sections 5.2, 5.3, 6.2.7, 6.3.3, 6.4.3.
    """
    require(isinstance(command, str) and command.strip(), "command", "be a launch line", command)
    return _Reader(command.replace("\\\n", " \n")).read()


class _Reader:
    """Reads one launch line from left to right, and collects what it finds."""

    def __init__(self, command: str) -> None:
        self.words = _split(command)
        self.told: list[ExplainedWord] = []
        self.variables: dict[str, str | None] = {}
        self.parts: dict[str, str] = {}
        self.findings: list[str] = []

    def read(self) -> ExplainedLaunch:
        at = next((i for i, word in enumerate(self.words) if _family(word)), None)
        known = ", ".join([*SHARED_NAMES, *PROGRAMS])
        self.words[0].require(at is not None, "command", f"have a launcher, one of {known}")
        for _ in range(at):
            self.before(self.words.pop(0))
        launcher = self.words.pop(0)
        family = _family(launcher)
        if family == "?":
            family = _which_mpi(self.words)
        name, table, note = FAMILIES[family]
        self.told.append(ExplainedWord(launcher, f"launcher: {name}", note=note))
        while self.words and self.words[0].startswith("-"):
            self.option(family, table)
        if family == "mvapich":
            self.hosts()
        end = next((i for i, word in enumerate(self.words) if word in _SHELL), len(self.words))
        program, after = self.words[:end], self.words[end:]
        more = sum(bool(_family(word)) for word in after)
        if more:
            self.findings.append(f"After it come {more} more launch lines: read them one by one.")
        self.told += [ExplainedWord(word, _SHELL[word]) for word in after if word in _SHELL]
        dead = [key for key, value in self.variables.items() if _state(key, value) == DEAD]
        if dead:
            self.findings.append(f"Left out below, because dead: {', '.join(dead)}.")
        parts = {key: self.parts.get(key, "") for key in _PARTS}
        parts["cpus"] = parts["cpus"] or self.variables.get("OMP_NUM_THREADS") or ""
        kept = {key: value for key, value in self.variables.items() if key not in dead}
        label, words = "label" in self.parts, tuple(map(str, program))
        job = LaunchLine(**parts, label=label, variables=kept, program=words)
        findings = (*self.findings, *_findings(job))
        return ExplainedLaunch(name, tuple(self.told), job, findings)

    def before(self, word: Word) -> None:
        """Explain what is before the launcher: variables, `export`, an interpreter."""
        if _ASSIGNMENT.fullmatch(word):
            self.variable(word)
        elif word == "export":
            self.told.append(ExplainedWord(word, "gives what follows to all later commands"))
            self.findings = [
                "As printed this runs nothing: all that follows the first `export` on the line "
                "are its arguments, the launcher too. Each `export` needs its own line."
            ]
        else:
            must = "have variables or the launcher here"
            word.require(re.search(r"python[\d.]*$", word), "command", must)
            self.told.append(ExplainedWord(word, "runs a script of Python"))

    def variable(self, word: str) -> None:
        name, _, value = word.partition("=")
        self.variables[name] = _plain(value)
        self.told.append(_variable(word, name, _plain(value)))

    def option(self, family: str, table: Mapping[str, Option]) -> None:
        """Explain the next option with its values."""
        word = last = self.words.pop(0)
        joined = family == "srun" and not word.startswith("--")
        name = word[1] if joined and len(word) > 1 else word.lstrip("-")
        values: list[str] = []
        if not joined and "=" in name:
            name, _, value = name.partition("=")
            values = [value]
        near = get_close_matches(name, table, n=1)
        known = ", ".join(_dashed(family, each) for each in table)
        then = f"Did you mean {_dashed(family, near[0])}?" if near else f"Known are {known}."
        must = f"have an option of {FAMILIES[family][0]} here"
        word.require(name in table, "command", must, then)
        option = table[name]
        if joined and len(word) > 2:  # -lN1 is -l -N 1
            more = word.part(2)
            if option.values:
                values = [str(more)]
            else:
                text = f"{more.whole[: more.start]}-{more.whole[more.start :]}"
                self.words.insert(0, Word(text, more.start, more.start + len(more) + 1))
        pair = option.values == 2 and self.words and "=" in self.words[0]
        while len(values) < (1 if pair else option.values):
            end = Word(word.whole, len(word.whole))
            end.require(self.words, "command", f"have a value after {word}")
            last = self.words.pop(0)
            values.append(_plain(last))
        self.told.append(_tell(f"-{name}" if joined else word, name, option, values))
        if option.sets == "variable":
            self.variables_of(name, values)
        elif option.sets:
            if option.sets in self.parts:
                self.told[-1] = replace(self.told[-1], note="given twice: the last one counts")
            self.parts[option.sets] = values[0] if values else option.value
            if option.sets in ("ranks", "per_node", "nodes", "cpus"):
                counted = re.fullmatch(r"\$\{?\w+\}?|[1-9]\d*", self.parts[option.sets])
                last.require(counted, "command", f"have a count after {word}")

    def variables_of(self, option: str, values: Sequence[str]) -> None:
        """Take the variables that an option gives to all ranks."""
        several = option in ("genvlist", "export")
        for each in values[0].split(",") if several else [" ".join(values)]:
            if several and each in ("ALL", "NONE"):
                continue
            key, _, value = each.replace(" ", "=", 1).partition("=")
            self.variables[key] = value or None
            if key in recipes_2019.variables() and value:
                self.told[-1] = _variable(self.told[-1].text, key, value)

    def hosts(self) -> None:
        """Take the hosts and variables that mpirun_rsh has between options and program."""
        hosts: list[str] = []
        ranks = self.parts.get("ranks", "")
        wanted = int(ranks) if ranks.isdigit() and not self.parts.get("hostfile") else 0
        while self.words and (_ASSIGNMENT.fullmatch(self.words[0]) or len(hosts) < wanted):
            word = self.words.pop(0)
            if _ASSIGNMENT.fullmatch(word):
                self.variable(word)
            else:
                self.told.append(ExplainedWord(word, f"the node of rank {len(hosts)}"))
                hosts.append(str(word))
        self.parts["hosts"] = ",".join(dict.fromkeys(hosts))
        each = {hosts.count(host) for host in hosts}
        if len(each) == 1:
            self.parts["per_node"] = str(each.pop())


_PARTS = ("ranks", "per_node", "nodes", "cpus", "hosts", "hostfile")


def _split(command: str) -> list[Word]:
    found = []
    for match in re.finditer(r"""(?:[^\s"'&]|"[^"]*"|'[^']*')+|&|["']""", command):
        word = Word(command, *match.span())
        word.require(word not in ('"', "'"), "command", "close each quotation mark")
        if word != "\\":
            found.append(word)
    return found


def _family(word: str) -> str:
    name = word.rpartition("/")[2]
    return "?" if name in SHARED_NAMES else PROGRAMS.get(name, "")


def _which_mpi(words: Sequence[Word]) -> str:
    """Tell by the options whose mpirun it is; also by one that is almost an option."""
    options = [word.lstrip("-") for word in words if word.startswith("-")]
    strange = [name for name in options if name.partition("=")[0] not in HYDRA]
    only = set(OPEN_MPI) - set(HYDRA)
    near = any(get_close_matches(name, only, cutoff=0.75) for name in strange)
    return "open_mpi" if near else "hydra"


def _plain(text: str) -> str:
    return text.replace('"', "").replace("'", "")


def _variable(text: str, name: str, value: str) -> ExplainedWord:
    recipe = recipes_2019.variables().get(name)
    if recipe is None:
        return ExplainedWord(text, "a variable of the environment")
    note = recipe.note + (f"; instead: {recipe.replacement}" if recipe.replacement else "")
    recipes_2019.setting(name, value)
    return ExplainedWord(text, recipe.meaning, _state(name, value), note)


def _state(name: str, value: str | None) -> str:
    if (name, value) == ("I_MPI_FABRICS", "tmi"):
        return DEAD
    state = recipes_2019.variables()[name].state if name in recipes_2019.variables() else "alive"
    return WORKS if state == "alive" else state


def _dashed(family: str, name: str) -> str:
    return f"--{name}" if family == "srun" and len(name) > 1 else f"-{name}"


def _tell(text: str, name: str, option: Option, values: Sequence[str]) -> ExplainedWord:
    said = " ".join([text, *(value for value in values if value not in text.partition("=")[2:])])
    meaning = MEANINGS.get((name, " ".join(values)))
    return ExplainedWord(said, *(meaning or (option.did, option.state, option.note)))


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
