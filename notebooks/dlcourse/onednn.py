"""oneDNN's verbose log as records and as a table, and the layouts it names.

oneDNN does the convolutions, products and poolings of TensorFlow on CPUs. With the environment
variable ONEDNN_VERBOSE=profile_exec, set before TensorFlow starts, it prints one line for each
operation ("primitive") it executes: the kernel, the memory layouts, the operations fused into it
and the time. A program may print lines such as `== warm-up` in between; what follows belongs to
the part of that name.

Source:
    oneDNN developer guide, section "Verbose Mode" (versions 2 and 3).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from dlguide import commands
from dlguide.errors import require, require_known
from dlguide.machine.onednn_switch import VARIABLE

# dnnl in 2020, onednn since; MKL-DNN's lines of 2019 had other fields
_PREFIXES = ("onednn_verbose", "dnnl_verbose")
_PART = re.compile(r"^== (.+?)\s*$")
_STAMP = re.compile(r"\d+\.\d+")
# both ways to write a tensor: "src_f32::blocked:acdb:f0" and "src:f32:a:blocked:acdb::f0"
_TENSOR = re.compile(
    r"^(?P<role>[a-z][a-z_0-9]*?)[_:](?P<dtype>(?:bf|f|s|u|e)\d\w*|undef|boolean)"
    r":[a-z]*:(?P<kind>\w*):(?P<tag>[A-Za-z0-9]*)"
)
_FIELDS = 9  # engine, primitive, implementation, propagation, tensors, attributes, two, time


@dataclass(frozen=True)
class OnednnTensor:
    """One tensor of a primitive."""

    role: str
    dtype: str
    tag: str

    @property
    def layout(self) -> str:
        """The tag with the names of the dimensions, "NHWC"; the tag itself where not known."""
        return layout_name(self.tag, weights="wei" in self.role)


@dataclass(frozen=True)
class Primitive:
    """One executed operation."""

    kind: str
    implementation: str
    tensors: tuple[OnednnTensor, ...]
    post_ops: tuple[str, ...]
    seconds: float
    part: str = ""

    @property
    def layouts(self) -> str:
        """Layouts of what it reads and writes, biases and work spaces left out.

        A reorder copies images or weights, which the log does not show: its tags are kept.
        """
        shown = [each for each in self.tensors if each.role.split("_")[-1] in ("src", "wei", "dst")]
        tags = self.kind == "reorder"
        return " ".join(f"{each.role}:{each.tag if tags else each.layout}" for each in shown)


@dataclass(frozen=True)
class VerboseLog:
    """A verbose log; `damaged` and `others` are lines that are no whole record of oneDNN."""

    version: str
    isa: str
    threads: int
    primitives: tuple[Primitive, ...]
    damaged: tuple[str, ...]
    others: tuple[str, ...] = ()

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts that executed something, in their order."""
        return tuple(dict.fromkeys(each.part for each in self.primitives))

    @property
    def seconds(self) -> float:
        """The time of all primitives together (s)."""
        return sum(each.seconds for each in self.primitives)

    def part(self, name: str) -> VerboseLog:
        """Keep what one part of the program executed."""
        require_known(name, self.parts, "name")
        return replace(self, primitives=tuple(p for p in self.primitives if p.part == name))

    def count(self, kind: str) -> int:
        """Count the primitives of one kind."""
        return sum(each.kind == kind for each in self.primitives)


@dataclass(frozen=True)
class PrimitiveGroup:
    """Equal primitives: one row of the table, with their time and its share of all groups'."""

    kind: str
    implementation: str
    layouts: str
    post_ops: str
    count: int
    seconds: float
    share: float


def parse_log(text: str) -> VerboseLog:
    """Parse a verbose log: cut records go to `damaged`, lines of other programs to `others`."""
    found, damaged, others, info = [], [], [], {}
    part = ""
    for line in text.splitlines():
        if mark := _PART.match(line):
            part = mark[1]
        words = line.rstrip().split(",")
        if words[0] not in _PREFIXES:
            others.append(line)
            continue
        words = [word for at, word in enumerate(words) if at not in (1, 2, 3) or not _skipped(word)]
        if "info" in words[1:3]:
            info |= _info(line)
        elif words[1:2] == ["exec"]:
            primitive = _primitive(words[2:], part)
            (damaged if primitive is None else found).append(primitive or line)
        # the times of creation and of oneDNN's graph interface are not those of a primitive
        elif not {"graph", "create", "create:cache_hit", "create:cache_miss"} & set(words[1:2]):
            known = words[1:2] and words[1].startswith(("create", "error", "warn", "ukernel"))
            damaged += [] if known else [line]
    head = info.get("version", ""), info.get("isa", ""), int(info.get("threads", 0))
    return VerboseLog(*head, tuple(found), tuple(damaged), tuple(others))


def table(primitives: Iterable[Primitive]) -> list[PrimitiveGroup]:
    """Sum up primitives of the same kind, kernel, layouts and fused operations, slowest first."""
    groups: dict[tuple[str, ...], list[float]] = {}
    for each in primitives:
        key = (each.kind, each.implementation, each.layouts, "+".join(each.post_ops))
        groups.setdefault(key, []).append(each.seconds)
    total = sum(sum(seconds) for seconds in groups.values())
    rows = [
        PrimitiveGroup(*key, len(seconds), sum(seconds), sum(seconds) / total if total else 0.0)
        for key, seconds in groups.items()
    ]
    return sorted(rows, key=lambda row: -row.seconds)


def run_verbose(
    program: str, timeout_s: float = 120.0, env: Mapping[str, str] | None = None
) -> VerboseLog:
    """Run a Python program in a new process with oneDNN's verbose log switched on.

    TensorFlow uses oneDNN there unless TF_ENABLE_ONEDNN_OPTS is set. oneDNN reads its own variable
    once, when it is first used.

    Raises:
        RuntimeError: if the program fails or takes too long, with its last lines.
    """
    require(isinstance(program, str) and bool(program.strip()), "program", "be a text", program)
    wanted = {VARIABLE: "1"} | commands.without_mpi() | {"ONEDNN_VERBOSE": "profile_exec"}
    wanted |= dict(env or {})
    done = commands.run([sys.executable, "-u", "-c", program], timeout_s, env=wanted)
    if not done.ok:
        how = "did not end in time" if done.status is None else f"ended with {done.status}"
        raise RuntimeError(f"The program {how}. Its last lines:\n{done.tail()}")
    return parse_log(done.output)


def _skipped(word: str) -> bool:
    """Return whether a word is optional: format, time stamp, component."""
    return word in ("v0", "v1", "v2", "primitive") or bool(_STAMP.fullmatch(word))


def _info(line: str) -> dict[str, str]:
    patterns = {"version": r"oneDNN v([\w.]+)", "isa": r"\bcpu,isa:(.+)$", "threads": r"nthr:(\d+)"}
    hits = {name: re.search(pattern, line) for name, pattern in patterns.items()}
    return {name: hit[1].strip() for name, hit in hits.items() if hit}


def _primitive(words: list[str], part: str) -> Primitive | None:
    """Parse the words after `exec`; None if the line is damaged."""
    if len(words) != _FIELDS:
        return None
    _, kind, implementation, _, tensors, attributes, _, _, time = words
    read = [_TENSOR.match(word) for word in tensors.split()]
    try:
        seconds = float(time) / 1e3
    except ValueError:
        return None
    if not kind or not all(read) or not 0 <= seconds < float("inf"):
        return None
    found = tuple(OnednnTensor(hit["role"], hit["dtype"], hit["tag"]) for hit in read if hit)
    fused = re.search(r"post[-_]ops:'?([^\s']+)", attributes)
    listed = re.split(r"[+;]", fused[1]) if fused else []
    operations = tuple(word.split(":")[0] for word in listed if word)
    return Primitive(kind, implementation, found, operations, seconds, part)


def layout_name(tag: str, weights: bool = False) -> str:
    """Return the usual name of a layout of four dimensions; the tag itself if it has none.

    oneDNN's a, b, c, d are batch N, channel C, height H, width W of an image tensor, and
    output O, input I, height, width of a convolution's weights. A capital letter in a tag with a
    number is a dimension cut into blocks, the number and its letter the block, innermost last.

    >>> layout_name("acdb"), layout_name("abcd"), layout_name("aBcd16b")
    ('NHWC', 'NCHW', 'nChw16c')
    >>> layout_name("cdba", weights=True), layout_name("ABcd16b16a", weights=True)
    ('HWIO', 'OIhw16i16o')
    """
    if sorted(re.sub(r"\d+[a-d]", "", tag).lower()) != list("abcd"):
        return tag
    names = str.maketrans("abcdABCD", "oihwOIHW" if weights else "nchwNCHW")
    named = tag.translate(names)
    return named if any(letter.isdigit() for letter in tag) else named.upper()
