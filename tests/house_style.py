"""The house's rules that a program can check, as functions from a module to its complaints.

`test_house_style.py` applies them to the package and shows that each one bites. A rule that must
be broken somewhere has its exception in a table here, with the reason beside it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# A room imports from lower floors only; rooms on one floor do not know each other.
FLOORS = {
    1.0: ("checks", "preflight", "wheelhouse"),
    1.5: ("folders", "commands"),
    2.0: ("nets", "measure", "published"),
    3.0: ("horovod", "collectives", "data", "machine", "scaling", "plots"),
    3.5: ("diagrams",),
    3.8: ("parallel",),
    4.0: ("build_horovod", "cluster", "training"),
    5.0: ("bench", "install_horovod", "notebooks", "search", "tuning"),
    5.2: ("doctor",),  # its --workshop begins the notebooks
    5.5: ("make_wheelhouse", "slides", "usecases"),
    5.8: ("exercises",),  # about all lessons
    6.0: ("cli",),
}
FLOOR_OF = {room: floor for floor, rooms in FLOORS.items() for room in rooms}

HEAVY = {
    *("tensorflow", "keras", "horovod", "mpi4py", "daal4py", "ipyparallel", "matplotlib"),
    *("onnx", "onnxruntime", "torch"),
}
# Rooms that may load them at once, because they are themselves only reached from inside functions.
LAZY_ROOMS = {
    "horovod": "Horovod's interface for Keras is nothing without both",
}
# Modules whose business is to speak to the person at the terminal.
SPEAKERS = {
    "dlguide.build_horovod",
    "dlguide.cli.batch",
    "dlguide.cli.bench",
    "dlguide.cli.bench_allreduce",
    "dlguide.cli.bench_io",
    "dlguide.cli.bench_scaling",
    "dlguide.cli.course",
    "dlguide.cli.data",
    "dlguide.cli.doctor",
    "dlguide.cli.offline",
    "dlguide.cli.predicting",
    "dlguide.cli.slides",
    "dlguide.cli.progress",
    "dlguide.cli.training",
    "dlguide.cli.tuning",
    "dlguide.cli.usecase",
    "dlguide.cluster.show",
    "dlguide.exercises",
    "dlguide.horovod.schedules",
    "dlguide.install_horovod",
    "dlguide.make_wheelhouse",
    "dlguide.notebooks.__main__",
    "dlguide.notebooks.executing",
    "dlguide.preflight",
    "dlguide.training.saving",
    "dlguide.tuning.show",
    "dlguide.usecases.video.resuming",
    "dlguide.wheelhouse",
}
# Module globals that change, each with its reason.
GLOBALS = {
    "dlguide.data.formats.lmdb_file._OPEN": "py-lmdb opens a file only once a process",
    "dlguide.measure.progress._last_s": "when this process last reported, so as to do it rarely",
}
MAX_LINES = 300


@dataclass(frozen=True)
class Module:
    """A source file of the package: its dotted name and its text."""

    name: str
    source: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.source)

    @property
    def room(self) -> str:
        """The part after `dlguide.`; empty for the package itself."""
        return [*self.name.split("."), ""][1]


def modules(folder: Path = ROOT / "dlguide") -> list[Module]:
    """Read every module of the package."""
    found = []
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder.parent).with_suffix("").parts
        if parts[-1] == "__init__":
            parts = parts[:-1]
        found.append(Module(".".join(parts), path.read_text()))
    return found


# --- what imports what -------------------------------------------------------------------------


def imports(module: Module, known: set[str]) -> Iterator[tuple[str, int, bool]]:
    """Yield (dotted name, line, whether at the top) of all imports, those in functions included.

    `from a import b` is `a.b` where that is a known module of the package, and `a` otherwise.
    """
    for node, at_top in _walk(module.tree, True):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno, at_top
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            for alias in node.names:
                longer = f"{node.module}.{alias.name}"
                yield (longer if longer in known else node.module), node.lineno, at_top
        elif isinstance(node, ast.Call) and _called(node) in ("import_module", "__import__"):
            for constant in node.args[:1]:
                if isinstance(constant, ast.Constant) and isinstance(constant.value, str):
                    yield constant.value, node.lineno, at_top


def _walk(node: ast.AST, at_top: bool) -> Iterator[tuple[ast.AST, bool]]:
    for child in ast.iter_child_nodes(node):
        typing_only = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test)
        function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        yield child, at_top
        yield from _walk(child, at_top and not function and not typing_only)


def _called(node: ast.Call) -> str:
    return getattr(node.func, "attr", getattr(node.func, "id", ""))


def floors(module: Module, known: set[str]) -> list[str]:
    """Imports go downwards only; inside one room they may go anywhere."""
    if module.room == "":
        return []
    if module.room not in FLOOR_OF:
        return [f"{module.room} is on no floor: put it into FLOORS"]
    complaints = []
    for name, line, _ in imports(module, known):
        if name.split(".")[0] != "dlguide":
            continue
        room = [*name.split("."), ""][1]
        if room == module.room:
            continue
        if room == "":
            complaints.append(f"line {line}: `import dlguide` hides which room is meant")
        elif FLOOR_OF.get(room, 9.0) >= FLOOR_OF[module.room]:
            complaints.append(f"line {line}: {module.room} must not import {room}, not below it")
    return complaints


def cycles(all_modules: list[Module]) -> list[str]:
    """No module reaches itself through what it imports, wherever the imports stand."""
    known = {module.name for module in all_modules}
    graph = {
        module.name: {name for name, _, _ in imports(module, known) if name in known}
        - {module.name}
        for module in all_modules
    }
    complaints, done = [], set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        if name in path:
            complaints.append(" -> ".join([*path[path.index(name) :], name]))
        elif name not in done:
            for other in sorted(graph[name]):
                visit(other, (*path, name))
            done.add(name)

    for name in sorted(graph):
        visit(name, ())
    return complaints


def relative_imports(module: Module) -> list[str]:
    """Imports are absolute."""
    return [
        f"line {node.lineno}: relative import"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ImportFrom) and node.level > 0
    ]


def heavy_imports(module: Module, known: set[str]) -> list[str]:
    """Nothing heavy is loaded when a module is imported."""
    if module.room in LAZY_ROOMS:
        return []
    complaints = []
    for name, line, at_top in imports(module, known):
        parts = [*name.split("."), ""]
        lazy = parts[0] == "dlguide" and parts[1] in LAZY_ROOMS
        if at_top and (parts[0] in HEAVY or lazy):
            complaints.append(f"line {line}: {name} at the top; import it where it is used")
    return complaints


# --- docstrings --------------------------------------------------------------------------------

_SECTION = re.compile(r"^(Args|Returns|Yields|Raises|Source|Example|Note)s?:\s*$", re.M)
_ENTRY = re.compile(r"^ {4}(\*{0,2}\w+(?:, \*{0,2}\w+)*)(?: \([^)]*\))?:", re.M)


def docstrings(module: Module) -> list[str]:
    """What is public has a docstring whose Args are the signature's, in its order."""
    complaints = [] if ast.get_docstring(module.tree) else ["the module has no docstring"]
    for node in module.tree.body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            complaints += _function(node, node.name, inherits=False)
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            complaints += _class(node)
    return complaints


def _class(node: ast.ClassDef) -> list[str]:
    complaints = _summary(node, node.name)
    inherits = bool(node.bases)
    text = ast.get_docstring(node) or ""
    methods = [child for child in node.body if isinstance(child, ast.FunctionDef)]
    init = [child for child in methods if child.name == "__init__"]
    fields = [
        child.target.id
        for child in node.body
        if isinstance(child, ast.AnnAssign) and not child.target.id.startswith("_")
    ]
    if _args_section(text) is not None and not inherits:
        expected = _parameters(init[0])[1:] if init else fields
        complaints += _same(_args_section(text), expected, node.name)
    for method in methods:
        if method.name.startswith("_") or _decorated(method, "overload", "setter"):
            continue
        complaints += _function(method, f"{node.name}.{method.name}", inherits, method=True)
    return complaints


def _function(node: ast.FunctionDef, name: str, inherits: bool, method: bool = False) -> list[str]:
    complaints = _summary(node, name)
    text = ast.get_docstring(node)
    if text is None:
        return complaints
    expected = _parameters(node)
    if method and not _decorated(node, "staticmethod"):
        expected = expected[1:]
    written = _args_section(text)
    if written is None and _decorated(node, "'command'"):
        return complaints  # Typer shows the docstring; each option has its help beside it
    if written is None:
        # A method of a derived class fulfils what its base describes.
        if expected and not inherits:
            complaints.append(f"{name}: has no Args for {', '.join(expected)}")
        return complaints
    complaints += _same(written, expected, name)
    if _returns_value(node) and not re.search(r"^(Returns|Yields):", text, re.M):
        complaints.append(f"{name}: has Args but no Returns")
    return complaints


def _summary(node: ast.FunctionDef | ast.ClassDef, name: str) -> list[str]:
    text = ast.get_docstring(node)
    if not text:
        return [f"{name}: has no docstring"]
    first = text.split("\n\n")[0].strip()
    return [] if first.endswith(".") else [f"{name}: its first sentence has no full stop"]


def _same(written: list[str], expected: list[str], name: str) -> list[str]:
    if written == expected:
        return []
    return [f"{name}: Args are ({', '.join(written)}), the signature ({', '.join(expected)})"]


def _parameters(node: ast.FunctionDef) -> list[str]:
    given = node.args
    names = [argument.arg for argument in (*given.posonlyargs, *given.args)]
    names += [given.vararg.arg] if given.vararg else []
    names += [argument.arg for argument in given.kwonlyargs]
    names += [given.kwarg.arg] if given.kwarg else []
    return names


def _args_section(text: str) -> list[str] | None:
    """The names in the Args section, in order; None when there is none."""
    parts = _SECTION.split(text)
    for title, body in zip(parts[1::2], parts[2::2], strict=True):
        if title == "Args":
            entries = _ENTRY.findall(body)
            return [name.strip(" *") for entry in entries for name in entry.split(",")]
    return None


def _decorated(node: ast.FunctionDef, *names: str) -> bool:
    return any(name in ast.dump(decorator) for decorator in node.decorator_list for name in names)


def _returns_value(node: ast.FunctionDef) -> bool:
    def inside(parent: ast.AST) -> Iterator[ast.AST]:
        for child in ast.iter_child_nodes(parent):
            if not isinstance(child, ast.FunctionDef | ast.Lambda | ast.ClassDef):
                yield child
                yield from inside(child)

    return any(isinstance(child, ast.Return) and child.value for child in inside(node))


# --- the rest ----------------------------------------------------------------------------------


def length(module: Module) -> list[str]:
    """A module has at most 300 lines."""
    lines = len(module.source.splitlines())
    return [f"has {lines} lines, more than {MAX_LINES}"] if lines > MAX_LINES else []


def names(module: Module) -> list[str]:
    """Names say how a thing works and carry SI units; no module is a drawer for everything."""
    complaints = []
    if module.name.split(".")[-1] in ("utils", "util", "helpers", "misc", "common"):
        complaints.append("says nothing about its subject")
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and re.search(
            r"_(v\d+|fast|faster|new|old|tmp)$", node.name
        ):
            complaints.append(f"line {node.lineno}: {node.name} is not named by how it works")
        if isinstance(node, ast.FunctionDef):
            for name in _parameters(node):
                if re.search(r"_(gb|mb|kb|gib|mib|ms|us)$", name):
                    complaints.append(f"line {node.lineno}: {name} is not in SI units")
                if name in ("n_ranks", "num_ranks", "nranks", "world_size", "n_procs"):
                    complaints.append(f"line {node.lineno}: {name} is called ranks here")
    return complaints


def leftovers(module: Module) -> list[str]:
    """Nothing is left for later, and nothing is left from looking for a fault."""
    complaints = []
    for number, line in enumerate(module.source.splitlines(), 1):
        if re.search(r"\b(TODO|FIXME|XXX|HACK)\b", line):
            complaints.append(f"line {number}: something was left for later")
    for node in ast.walk(module.tree):
        # With a text it tells which combination is refused; bare it is a stub.
        told = isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args
        if isinstance(node, ast.Raise) and "NotImplementedError" in ast.dump(node) and not told:
            complaints.append(f"line {node.lineno}: a stub")
        if not isinstance(node, ast.Call):
            continue
        called = _called(node)
        if called in ("breakpoint", "set_trace"):
            complaints.append(f"line {node.lineno}: {called}()")
        if called == "print" and module.name not in SPEAKERS:
            to_file = any(keyword.arg == "file" for keyword in node.keywords)
            if not to_file:
                complaints.append(f"line {node.lineno}: prints, but is not one of SPEAKERS")
    return complaints


def cores(module: Module) -> list[str]:
    """Cores are those this process may use."""
    return [
        f"line {node.lineno}: counts the machine's cores, not those this process may use"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Attribute | ast.Name)
        and getattr(node, "attr", getattr(node, "id", "")) == "cpu_count"
    ]


def changing_globals(module: Module) -> list[str]:
    """Nothing at a module's top changes: capitals are constants, the rest is not a container."""
    complaints = []
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Global):
            for name in node.names:
                if f"{module.name}.{name}" not in GLOBALS:
                    complaints.append(f"line {node.lineno}: global {name}")
    for node in module.tree.body:
        targets = getattr(node, "targets", [getattr(node, "target", None)])
        for target in targets:
            if not isinstance(target, ast.Name) or not _mutable(getattr(node, "value", None)):
                continue
            constant = target.id.isupper() or target.id == "__all__"
            if not constant and f"{module.name}.{target.id}" not in GLOBALS:
                complaints.append(f"line {node.lineno}: {target.id} is a global that can change")
    return complaints


def _mutable(value: ast.AST | None) -> bool:
    if isinstance(value, ast.Call):
        return _called(value) in ("list", "dict", "set", "defaultdict", "deque", "Counter")
    return isinstance(
        value, ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp
    )


def frozen(module: Module) -> list[str]:
    """Values that travel are frozen."""
    complaints = []
    for node in ast.walk(module.tree):
        for decorator in node.decorator_list if isinstance(node, ast.ClassDef) else []:
            call = decorator.func if isinstance(decorator, ast.Call) else decorator
            if getattr(call, "attr", getattr(call, "id", "")) != "dataclass":
                continue
            keywords = getattr(decorator, "keywords", [])
            if not any(word.arg == "frozen" and word.value.value is True for word in keywords):
                complaints.append(f"line {node.lineno}: dataclass {node.name} is not frozen")
    return complaints


def swallowed(module: Module) -> list[str]:
    """No error of any kind disappears without a trace."""
    complaints = []
    for node in ast.walk(module.tree):
        if not isinstance(node, ast.ExceptHandler):
            continue
        everything = node.type is None or getattr(node.type, "id", "") in (
            "Exception",
            "BaseException",
        )
        if everything and all(isinstance(child, ast.Pass) for child in node.body):
            complaints.append(f"line {node.lineno}: swallows every error")
    return complaints


RULES: tuple[Callable[[Module], list[str]], ...] = (
    relative_imports,
    docstrings,
    length,
    names,
    leftovers,
    cores,
    changing_globals,
    frozen,
    swallowed,
)


# --- files of every kind -----------------------------------------------------------------------

_ELSEWHERE = re.compile(
    r"pypi\.\w|pythonhosted|conda\.anaconda|registry\.npm|index-url|\.\./(shared|seeds)|/work/|/root/"
)
_TEXT = {".py", ".md", ".toml", ".txt", ".yml", ".yaml", ".ipynb", ".csv", ".cfg", ""}


def elsewhere(path: Path) -> list[str]:
    """No file names a package registry's host or a place outside the repository."""
    return [
        f"line {number}: names {match.group()!r}, which is outside the repository"
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if (match := _ELSEWHERE.search(line))
    ]


def files() -> list[Path]:
    """List the repository's own text files, without what tools make and without this one."""
    skipped = {".venv", ".git", "build", ".ruff_cache", ".pytest_cache", ".hypothesis", "slides"}
    found = []
    for path in sorted(ROOT.rglob("*")):
        parts = path.relative_to(ROOT).parts
        made = any(
            part in skipped or part.endswith(".egg-info") or part.startswith("__pycache")
            for part in parts
        )
        if not made and path.is_file() and path.suffix in _TEXT and path != Path(__file__):
            found.append(path)
    return found


# --- tests -------------------------------------------------------------------------------------


def named_in(module: Module, tests: dict[str, str]) -> bool:
    """Whether a test file is called after the module or names it in its source."""
    parts = module.name.split(".")[1:]
    if f"test_{'_'.join(parts)}.py" in tests or f"test_{parts[-1]}.py" in tests:
        return True
    dotted = re.escape(module.name)
    parent, last = re.escape(".".join(module.name.split(".")[:-1])), re.escape(parts[-1])
    pattern = rf"\b{dotted}\b|from {parent} import [^\n]*\b{last}\b|\b{r'[.]'.join(parts)}[.(]"
    return any(parts[-1] in source and re.search(pattern, source) for source in tests.values())


def empty_tests(source: str) -> list[str]:
    """A test asserts something, itself or in a function of its file; a skip has a reason."""
    tree = ast.parse(source)
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    asserting = {name for name, node in functions.items() if _asserts(node, set())}
    for _ in functions:
        asserting |= {name for name, node in functions.items() if _asserts(node, asserting)}
    complaints = [
        f"line {node.lineno}: {name} asserts nothing"
        for name, node in functions.items()
        if name.startswith("test_") and name not in asserting
    ]
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr == "skip":
            complaints += [] if _has_reason(tree, node) else [f"line {node.lineno}: no reason"]
    return complaints


def _asserts(node: ast.FunctionDef, asserting: set[str]) -> bool:
    for child in ast.walk(node):
        if isinstance(child, ast.Assert):
            return True
        if isinstance(child, ast.Call):
            called = _called(child)
            if called.startswith("assert_") or called in ("raises", "fail", "warns"):
                return True
        # What runs in a process of its own asserts there, or through its exit status.
        if isinstance(child, ast.Constant) and re.search(r"^\s*assert ", str(child.value), re.M):
            return True
        if (
            isinstance(child, ast.keyword)
            and child.arg == "check"
            and getattr(child.value, "value", None) is True
        ):
            return True
        if isinstance(child, ast.Name) and child.id in asserting and child.id != node.name:
            return True
    return False


def _has_reason(tree: ast.Module, attribute: ast.Attribute) -> bool:
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return any(call.func is attribute and (call.args or call.keywords) for call in calls)
