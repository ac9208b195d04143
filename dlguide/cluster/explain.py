"""Read a launch line word by word, and write the same job for today's launchers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches

from dlguide.cluster import launch_lines, launch_words
from dlguide.cluster.launch_lines import Job
from dlguide.cluster.launch_words import DEAD, WORKS, Explained, Option
from dlguide.errors import require
from dlguide.machine.threads import recipes
from dlguide.machine.threads.reading import Word, require_at

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.S)
_OPEN_MPI_ONLY = set(launch_words.OPEN_MPI) - set(launch_words.HYDRA)


@dataclass(frozen=True)
class Launch:
    """A launch line explained; `print` shows it."""

    launcher: str
    words: tuple[Explained, ...]
    job: Job
    findings: tuple[str, ...]

    @property
    def commands(self) -> dict[str, str]:
        """The same job for each of today's launchers, ranks bound, without what harms."""
        return launch_lines.all_lines(self.job)

    def __str__(self) -> str:
        parts = [f"launcher: {self.launcher}", *map(str, self.words), ""]
        parts += [f"- {finding}" for finding in self.findings]
        parts += ["", "the same job today:"]
        parts += [f"  {name}: {command}" for name, command in self.commands.items()]
        return "\n".join(parts).replace("\n\n\n", "\n\n")


def explain(command: str) -> Launch:
    """Read a launch line of the sources word by word.

    Knows mpiexec (MPICH, Intel MPI), mpirun of Open MPI, mpirun_rsh, srun, MXNet's launch.py and
    horovodrun, with the options that occur in courses. Leaves out everything a shell does but
    variables before the command, `export`, `&` and `wait`. Nothing is run.

    Args:
        command: the line, also over several lines with a backslash at their ends.

    Returns:
        Launch: its words, the job, what is wrong, and the job for today's launchers.

    Raises:
        ValueError: when there is no launcher, or an option is unknown or lacks its value; the
            text says at which column.

    Source:
        Best Practice Guide Deep Learning (PRACE, 2019), sections 5.2, 5.3, 6.2.7, 6.3.3, 6.4.3.
    """
    require(isinstance(command, str) and command.strip(), "command", "be a launch line", command)
    words = _split(command.replace("\\\n", " \n"))
    at = next((i for i, word in enumerate(words) if _family(word.said)), None)
    known = ", ".join([*launch_words.SHARED_NAMES, *launch_words.PROGRAMS])
    if at is None:
        words[0].require(False, "command", f"have a launcher, one of {known}")
    told, variables, findings = _before(words[:at])
    family = _family(words[at].said)
    rest = words[at + 1 :]
    if family == "?":
        family = _which_mpi(rest)
    name, table, note = launch_words.FAMILIES[family]
    told.append(Explained(words[at].said, f"launcher: {name}", note=note))
    parts: dict[str, str] = {}
    rest = _options(family, table, rest, told, parts, variables)
    if family == "mvapich":
        rest = _rsh_hosts(rest, told, parts, variables)
    program, after = _program(rest)
    more = sum(bool(_family(word.said)) for word in after)
    if more:
        findings.append(f"After it come {more} more launch lines: read them one by one.")
    told += [Explained(word.said, _SHELL[word.said]) for word in after if word.said in _SHELL]
    dead = [name for name, value in variables.items() if _state(name, value) == DEAD]
    if dead:
        findings.append(f"Left out below, because dead: {', '.join(dead)}.")
    job = Job(
        ranks=parts.get("ranks", ""),
        per_node=parts.get("per_node", ""),
        nodes=parts.get("nodes", ""),
        cpus=parts.get("cpus") or variables.get("OMP_NUM_THREADS") or "",
        hosts=parts.get("hosts", ""),
        hostfile=parts.get("hostfile", ""),
        label="label" in parts,
        variables={name: value for name, value in variables.items() if name not in dead},
        program=tuple(word.said for word in program),
    )
    findings += _findings(job)
    return Launch(name, tuple(told), job, tuple(findings))


_SHELL = {
    "&": "goes on with the next line while this one runs",
    "wait": "waits for all that was started with `&`",
}


def _split(command: str) -> list[Word]:
    found = []
    for match in re.finditer(r"""(?:[^\s"'&]|"[^"]*"|'[^']*')+|&|["']""", command):
        word = Word(command, match.start(), match.end())
        word.require(word.said not in "\"'", "command", "close each quotation mark")
        if word.said != "\\":
            found.append(word)
    return found


def _family(said: str) -> str:
    name = said.rpartition("/")[2]
    return "?" if name in launch_words.SHARED_NAMES else launch_words.PROGRAMS.get(name, "")


def _which_mpi(words: Sequence[Word]) -> str:
    """Tell by the options whose mpirun it is; also by one that is almost an option."""
    options = [word.said.lstrip("-") for word in words if word.said.startswith("-")]
    strange = [name for name in options if name.partition("=")[0] not in launch_words.HYDRA]
    near = any(get_close_matches(name, _OPEN_MPI_ONLY, cutoff=0.75) for name in strange)
    return "open_mpi" if near else "hydra"


def _plain(text: str) -> str:
    return text.replace('"', "").replace("'", "")


def _before(words: Sequence[Word]) -> tuple[list[Explained], dict[str, str | None], list[str]]:
    """Explain what stands before the launcher: variables, `export`, an interpreter."""
    told, variables, findings = [], {}, []
    for word in words:
        if _ASSIGNMENT.fullmatch(word.said):
            name, _, value = word.said.partition("=")
            variables[name] = _plain(value)
            told.append(_variable(word.said, name, _plain(value)))
        elif word.said == "export":
            told.append(Explained("export", "gives what follows to all later commands"))
            findings = [
                "As printed this runs nothing: all that follows the first `export` on the line "
                "are its arguments, the launcher too. Each `export` needs a line of its own."
            ]
        else:
            must = "have variables or the launcher here"
            word.require(re.search(r"python[\d.]*$", word.said), "command", must)
            told.append(Explained(word.said, "runs a script of Python"))
    return told, variables, findings


def _variable(text: str, name: str, value: str | None) -> Explained:
    recipe = recipes.RECIPES.get(name)
    if recipe is None:
        return Explained(text, "a variable of the environment")
    note = recipe.why + (f"; instead: {recipe.today}" if recipe.today else "")
    recipes.line(name, value)
    return Explained(text, recipe.did, _state(name, value), note)


def _state(name: str, value: str | None) -> str:
    if (name, value) == ("I_MPI_FABRICS", "tmi"):
        return DEAD
    state = recipes.RECIPES[name].state if name in recipes.RECIPES else recipes.ALIVE
    return WORKS if state == recipes.ALIVE else state


def _options(
    family: str,
    table: Mapping[str, Option],
    words: Sequence[Word],
    told: list[Explained],
    parts: dict[str, str],
    variables: dict[str, str | None],
) -> list[Word]:
    """Explain the options and return what comes after them."""
    words = list(words)
    while words and words[0].said.startswith("-"):
        word = words.pop(0)
        joined = family == "srun" and not word.said.startswith("--")
        name = word.said[1] if joined and len(word.said) > 1 else word.said.lstrip("-")
        values, last = [], word
        if not joined and "=" in name:
            name, _, value = name.partition("=")
            values = [value]
        near = get_close_matches(name, table, n=1)
        known = ", ".join(_dashed(family, each) for each in table)
        then = f"Did you mean {_dashed(family, near[0])}?" if near else f"Known are {known}."
        must = f"have an option of {launch_words.FAMILIES[family][0]} here"
        word.require(name in table, "command", must, then)
        option = table[name]
        if joined and len(word.said) > 2:  # -lN1 is -l -N 1
            more = word.part(2, len(word.said))
            if option.values:
                values = [more.said]
            else:
                words.insert(0, _again(more))
        needed = 1 if option.values == 2 and words and "=" in words[0].said else option.values
        while len(values) < needed:
            end = word.text
            require_at(words, "command", f"have a value after {word.said}", end, len(end), len(end))
            last = words.pop(0)
            values.append(_plain(last.said))
        told.append(_tell(f"-{name}" if joined else word.said, name, option, values))
        if option.sets == "variable":
            several = name in ("genvlist", "export")
            for each in values[0].split(",") if several else [" ".join(values)]:
                if several and each in ("ALL", "NONE"):
                    continue
                key, _, value = each.replace(" ", "=", 1).partition("=")
                variables[key] = value or None
                if key in recipes.RECIPES and value:
                    told[-1] = _variable(told[-1].text, key, value)
        elif option.sets:
            if option.sets in parts:
                told[-1] = replace(told[-1], note="given twice: the last one counts")
            parts[option.sets] = values[0] if values else option.value
            if option.sets in ("ranks", "per_node", "nodes", "cpus"):
                counted = re.fullmatch(r"\$\{?\w+\}?|[1-9]\d*", parts[option.sets])
                last.require(counted, "command", f"have a count after {word.said}")
    return words


def _dashed(family: str, name: str) -> str:
    return f"--{name}" if family == "srun" and len(name) > 1 else f"-{name}"


def _again(more: Word) -> Word:
    """Give the rest of joined options as a word of its own, with a dash before it."""
    text = f"{more.text[: more.start]}-{more.text[more.start :]}"
    return Word(text, more.start, more.end + 1)


def _tell(text: str, name: str, option: Option, values: Sequence[str]) -> Explained:
    said = " ".join([text, *(value for value in values if value not in text.partition("=")[2:])])
    meaning = launch_words.MEANINGS.get((name, " ".join(values)))
    return Explained(said, *(meaning or (option.did, option.state, option.note)))


def _rsh_hosts(
    words: Sequence[Word],
    told: list[Explained],
    parts: dict[str, str],
    variables: dict[str, str | None],
) -> list[Word]:
    """Take the hosts and variables that mpirun_rsh has between options and program."""
    words, hosts = list(words), []
    ranks = parts.get("ranks", "")
    wanted = int(ranks) if ranks.isdigit() and not parts.get("hostfile") else 0
    while words and (_ASSIGNMENT.fullmatch(words[0].said) or len(hosts) < wanted):
        word = words.pop(0)
        if _ASSIGNMENT.fullmatch(word.said):
            name, _, value = word.said.partition("=")
            variables[name] = _plain(value)
            told.append(_variable(word.said, name, variables[name]))
        else:
            hosts.append(word.said)
            told.append(Explained(word.said, f"the node of rank {len(hosts) - 1}"))
    parts["hosts"] = ",".join(dict.fromkeys(hosts))
    each = {hosts.count(host) for host in hosts}
    if len(each) == 1:
        parts["per_node"] = str(each.pop())
    return words


def _program(words: Sequence[Word]) -> tuple[list[Word], list[Word]]:
    ends = [place for place, word in enumerate(words) if word.said in _SHELL]
    end = ends[0] if ends else len(words)
    return list(words[:end]), list(words[end:])


def _findings(job: Job) -> list[str]:
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
