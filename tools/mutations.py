"""Faults put into the code on purpose, and the tests that catch them.

`mutations.csv` lists the faults. Each one names a function (`module:Class.method`; nothing after
the colon means the whole module) and replaces a piece of its syntax tree: `old` and `new` are
Python source, an expression or statements; an empty `new` deletes the statement. `nth` (from 0)
selects one of several equal pieces. `tests` names test files that imports do not lead to. `test` is
the one that catches it, in `lane`.

    python tools/mutations.py run                 # which tests catch them now? --only d0, --jobs 2
    python tools/mutations.py new --count 20      # draw others, and which tests catch those?

A run works in a temporary worktree, never in the checkout. For each fault it runs the test that
caught it before, then the test files that import the changed module, the closest first, up to the
first failure: for `dlguide` the lanes of `make test`, for course code the parts too. A test counts
only if it passes without the fault and fails with it once more. Verdicts: caught, survived,
timeout, no test; `equivalent` is written by hand, with the reason in `note`.

Why not mutmut or cosmic-ray: both know operators, not a fault with a meaning ("the ranks' sum where
their mean belongs"), which half of the list are; and both take one command for all faults, while
here a fault is tried by the few files, of 200, that import its module.
"""

from __future__ import annotations

import argparse
import ast
import csv
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import lanes  # noqa: E402

TABLE = Path(__file__).with_suffix(".csv")
SOURCES = ("", "notebooks")  # folders that hold packages
PACKAGES = ("dlguide", "dlcourse")
FEW, MANY = 4, 8  # test files: taken from further away until there are so many; at most
ALONE_S = 300.0  # for a test that is repeated
SEPARATE = ("test_setup", "test_style", "test_lanes")  # they look at the checkout
NEVER = ("whole", "soak")  # lanes that take too long
WRITING = threading.Lock()
PYTEST = """
import sys, pytest
class Log:
    def write(self, word, nodeid):
        with open(sys.argv[1], "a") as file:
            print(word, nodeid, file=file)
    def pytest_runtest_logstart(self, nodeid):
        self.write("started", nodeid)
    def pytest_runtest_logreport(self, report):
        if report.failed:
            self.write("lane", dict(report.user_properties)["lane"])
            self.write("failed", report.nodeid)
    def pytest_collectreport(self, report):
        if report.failed:
            self.write("failed", report.nodeid)
sys.exit(pytest.main(sys.argv[2:], plugins=[Log()]))
"""


@dataclass
class Fault:
    """One row of the table."""

    id: str
    name: str
    function: str
    old: str
    new: str
    nth: str = ""
    tests: str = ""
    verdict: str = ""
    test: str = ""
    lane: str = ""
    note: str = ""


def read() -> list[Fault]:
    with TABLE.open(newline="") as file:
        return [Fault(**row) for row in csv.DictReader(file)]


def write(faults: list[Fault]) -> None:
    part = TABLE.with_suffix(".part")
    with part.open("w", newline="") as file:
        names = [field.name for field in fields(Fault)]
        table = csv.DictWriter(file, names, lineterminator="\n")
        table.writeheader()
        table.writerows(asdict(fault) for fault in faults)
    part.replace(TABLE)


# Changing the syntax tree


def module_path(tree: Path, module: str) -> Path | None:
    """The file of a module of this project, None if there is none."""
    for source in SOURCES:
        base = tree / source / module.replace(".", "/")
        for path in (base.with_suffix(".py"), base / "__init__.py"):
            if path.is_file():
                return path
    return None


def named(parsed: ast.Module, qualname: str) -> ast.AST:
    node: ast.AST = parsed
    for part in filter(None, qualname.split(".")):
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        found = [one for one in ast.walk(node) if isinstance(one, kinds) and one.name == part]
        if not found:
            raise LookupError(f"there is no {qualname!r}")
        node = found[0]
    return node


def places(node: ast.AST, old: str) -> list[tuple[ast.AST, str, int, int]]:
    """Where a piece of source is: parent, field, index (-1 if it is no list) and length."""
    wanted = ast.parse(old).body
    single = len(wanted) == 1 and isinstance(wanted[0], ast.Expr)
    expression = ast.dump(wanted[0].value) if single else None
    statements = [ast.dump(one) for one in wanted]
    found = []
    for parent in ast.walk(node):
        for field, value in ast.iter_fields(parent):
            if isinstance(value, ast.AST) and ast.dump(value) == expression:
                found.append((parent, field, -1, 1))
            elif isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                dumps = [ast.dump(one) for one in value]
                found += [
                    (parent, field, at, len(statements))
                    for at in range(len(dumps))
                    if not single and dumps[at : at + len(statements)] == statements
                ]
            elif isinstance(value, list):
                found += [
                    (parent, field, at, 1)
                    for at, one in enumerate(value)
                    if isinstance(one, ast.AST) and ast.dump(one) == expression
                ]
    return found


def mutated(source: str, fault: Fault) -> str:
    """The module's source with the fault in it.

    Raises:
        LookupError: when the function or `old` is not found, or `old` is found more than once.
    """
    parsed = ast.parse(source)
    found = places(named(parsed, fault.function.partition(":")[2]), fault.old)
    if not found or (len(found) > 1 and not fault.nth):
        raise LookupError(f"`old` is found {len(found)} times")
    parent, field, at, length = found[int(fault.nth or 0)]
    new = ast.parse(fault.new or "pass").body
    if not fault.new and at < 0:
        setattr(parent, field, ast.Constant(None))  # the value of a statement with only a call
    elif at < 0:
        setattr(parent, field, new[0].value)
    else:
        target = getattr(parent, field)
        target[at : at + length] = new if isinstance(target[at], ast.stmt) else [new[0].value]
    return ast.unparse(ast.fix_missing_locations(parsed))


# Which tests import a module


class Imports:
    """The import graph of a tree; packages that only re-export are looked through."""

    def __init__(self, tree: Path) -> None:
        self.tree = tree
        self._exported: dict[str, dict[str, str]] = {}
        self._imported: dict[Path, set[str]] = {}

    def of(self, path: Path) -> set[str]:
        """The modules of this project whose names a file uses."""
        if path not in self._imported:
            parsed = ast.parse(path.read_text())
            bound = dict(_bindings(parsed))
            used = set(bound.values())
            for node in ast.walk(parsed):
                if isinstance(node, ast.Constant) and str(node.value).startswith(PACKAGES):
                    used.add(node.value)  # started by name: `python -m dlguide...`
                elif isinstance(node, ast.Attribute):
                    first, *rest = ast.unparse(node).split(".")
                    if first in bound:
                        used.add(".".join([bound[first], *rest]))
            self._imported[path] = set().union(*map(self._modules, used))
        return self._imported[path]

    def _modules(self, dotted: str) -> set[str]:
        parts = dotted.split(".")
        for length in range(len(parts), 0, -1):
            module = ".".join(parts[:length])
            path = module_path(self.tree, module)
            if path is None:
                continue
            if length < len(parts) and path.name == "__init__.py":
                if module not in self._exported:
                    self._exported[module] = dict(_bindings(ast.parse(path.read_text())))
                target = self._exported[module].get(parts[length])
                if target and target != dotted:
                    return {module} | self._modules(".".join([target, *parts[length + 1 :]]))
            return {module}
        return set()

    def tests(self, function: str) -> list[Path]:
        """Test files in order of their distance from a function's module."""
        module, _, qualname = function.partition(":")
        called = qualname.rpartition(".")[2].strip("_") or module
        parent, last = module.split(".")[-2:]
        words = {*parent.split("_"), *last.split("_")}
        ranked, others = [], []
        for path in sorted((self.tree / "tests").rglob("test_*.py")):
            name = path.stem.removeprefix("test_")
            if path.stem in SEPARATE:
                continue
            seen, nearest, distance = set(), self.of(path), 1
            while nearest and module not in nearest:
                seen |= nearest
                paths = [module_path(self.tree, one) for one in nearest]
                inner = [self.of(one) for one in paths if one and one.name != "__init__.py"]
                nearest, distance = set().union(*inner) - seen, distance + 1
            if name in (last, f"{parent}_{last}"):
                distance = 0
            alike = len(words & set(name.split("_"))) / len(name.split("_"))
            unnamed = called not in path.read_text()
            key = (distance, -alike, unnamed, path.stat().st_size, path)
            if distance == 0 or module in nearest:
                ranked.append(key)
            elif name.startswith(parent):  # perhaps through a program that it starts
                others.append(key)
        ranked = sorted(ranked or others)
        close = [path for distance, *_, path in ranked if distance < 2]
        return (close if len(close) > FEW else [path for *_, path in ranked][:FEW])[:MANY]


def _bindings(parsed: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(parsed):
        if isinstance(node, ast.Import):
            for one in node.names:
                if one.name.split(".")[0] in PACKAGES:
                    yield (one.asname, one.name) if one.asname else (one.name.split(".")[0],) * 2
                    yield one.name, one.name
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in PACKAGES:
            for one in node.names:
                yield one.asname or one.name, f"{node.module}.{one.name}"


# Running tests


@contextmanager
def worktree() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="dlguide-mutations-") as folder:
        tree = Path(folder) / "tree"
        git = ["git", "-C", str(ROOT), "worktree"]
        with WRITING:
            subprocess.run([*git, "add", "-q", "--detach", tree, "HEAD"], check=True)
        try:
            yield tree
        finally:
            with WRITING:
                subprocess.run([*git, "remove", "--force", tree], check=True)


def pytest(tree: Path, arguments: list[str], limit_s: float) -> tuple[str, str, str]:
    """Run tests in a tree: passed, failed or timeout, the test in which that happened, its lane."""
    log = tree.parent / "log"
    log.write_text("")
    path = os.pathsep.join(str(tree / source) for source in SOURCES)
    env = os.environ | {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    options = ["-x", "-q", "-p", "no:cacheprovider", "-o", "timeout=120"]
    command = [sys.executable, "-c", PYTEST, str(log), *options, *arguments]
    with (tree.parent / "output").open("w") as output:
        process = subprocess.Popen(
            command, cwd=tree, env=env, stdout=output, stderr=output, start_new_session=True
        )
        try:
            status = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            _end_processes_of(tree)
    lines = [line.split(" ", 1) for line in log.read_text().splitlines()]
    failed = [nodeid for word, nodeid in lines if word == "failed"]
    test = (failed or [nodeid for _, nodeid in lines[-1:]] or [""])[0]
    lane = next((lane for word, lane in lines if word == "lane"), "")
    if status is None:
        return "timeout", test, lane
    return ("passed", "", "") if status in (0, 5) else ("failed", test, lane)


def _end_processes_of(tree: Path) -> None:
    """End what a run has left: every process that takes its modules from its tree."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if f"{tree}{os.pathsep}" in process.environ().get("PYTHONPATH", ""):
                process.send_signal(signal.SIGKILL)


def verdict(tree: Path, fault: Fault, limit_s: float, useless: set[str]) -> tuple[str, str, str]:
    """Find a test that fails with a fault and passes without it; return its lane, too."""
    path = module_path(tree, fault.function.partition(":")[0])
    if path is None:
        raise LookupError("there is no such module")
    known, budget = lanes.load()
    course = fault.function.startswith("dlcourse")
    wanted = [each for each in known if known[each].test or (course and not each.startswith(NEVER))]
    options = [f"--lane={each}" for each in wanted]
    original = path.read_text()
    # Both sides of the comparison are written from the tree: without comments, on other lines.
    plain, changed = ast.unparse(ast.parse(original)), mutated(original, fault)
    files = [one for one in fault.tests.split() if (tree / one).is_file()]
    files += [str(one.relative_to(tree)) for one in Imports(tree).tests(fault.function)]
    files = [each for each in files if set(budget[each.removeprefix("tests/")]) & set(wanted)]
    if "::" in fault.test and (tree / fault.test.partition("::")[0]).is_file():
        files.insert(0, fault.test)
    files = list(dict.fromkeys(files))
    end = time.monotonic() + limit_s

    def outcome(contents: str, arguments: list[str], seconds: float) -> tuple[str, str, str]:
        path.write_text(contents)
        return pytest(tree, [*options, *arguments], seconds)

    try:
        for file in files:
            while time.monotonic() < end:
                skipped = [f"--deselect={one}" for one in sorted(useless)]
                found, test, lane = outcome(changed, [*skipped, file], end - time.monotonic())
                if found != "failed" or test in useless:
                    break
                alone = [test] if "::" in test else ["--collect-only", file]
                passes = outcome(plain, alone, ALONE_S)[0] == "passed"
                if passes and outcome(changed, alone, ALONE_S)[0] != "passed":
                    return "caught", test or file, lane
                if not test:  # there is no such test any more
                    break
                useless.add(test)
    finally:
        path.write_text(original)
    if time.monotonic() >= end:
        return "timeout", " ".join(files), ""
    return ("survived" if files else "no test"), " ".join(files), ""


def run(faults: list[Fault], limit_s: float, jobs: int, keep: bool) -> int:
    """Fill in the verdicts; return how many faults no test catches."""
    useless: set[str] = set()  # tests that fail here without a fault, or not each time

    def one(fault: Fault) -> None:
        try:
            with worktree() as tree:
                fault.verdict, fault.test, fault.lane = verdict(tree, fault, limit_s, useless)
        except LookupError as error:
            fault.verdict, fault.test, fault.lane = f"lost: {error}", "", ""
        words = [fault.id, fault.function, fault.verdict, fault.test]
        words += [f"{fault.old!r} -> {fault.new!r}"] * (fault.verdict != "caught")
        print(*words, flush=True)
        if keep:
            with WRITING:
                rows = {each.id: each for each in read()} | {fault.id: fault}
                write(list(rows.values()))

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(one, faults))
    caught = sum(each.verdict == "caught" for each in faults)
    print(f"{caught} of {len(faults)} faults are caught")
    return len(faults) - caught


# Drawing faults

SWAPPED = {
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult},
    **{ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult},
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt},
    **{ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In},
    **{ast.Is: ast.IsNot, ast.IsNot: ast.Is},
}


def changes(function: ast.AST) -> list[tuple[str, str]]:
    """All faults that can be drawn in a function, as pairs of `old` and `new`."""
    texts = [one for one in ast.walk(function) if isinstance(one, ast.JoinedStr)]
    inside = {id(node) for text in texts for node in ast.walk(text)}
    found = []
    for node in (one for part in function.body for one in ast.walk(part)):
        if id(node) in inside:
            continue
        old = ast.unparse(node) if isinstance(node, ast.expr | ast.stmt) else ""
        match node:
            case ast.BinOp(left, op, right) if type(op) in SWAPPED:
                found.append((old, ast.unparse(ast.BinOp(left, SWAPPED[type(op)](), right))))
            case ast.Compare(left, [op], [right]) if type(op) in SWAPPED:
                new = ast.Compare(left, [SWAPPED[type(op)]()], [right])
                found.append((old, ast.unparse(new)))
            case ast.Constant(int() | float() as value) if not isinstance(value, bool):
                found.append((old, repr(value + 1)))
            case ast.BoolOp(values=[first, *_]):
                found.append((old, ast.unparse(first)))
            case ast.Expr(ast.Call()) | ast.AugAssign():
                found.append((old, ""))
        if isinstance(node, ast.If | ast.While | ast.IfExp):
            test = ast.unparse(node.test)
            found.append((test, f"not ({test})"))
    return found


def draw(count: int, seed: int) -> list[Fault]:
    """Draw faults: the function with its lines of code as weight, then the change."""
    functions, lines = [], []
    for path in sorted((ROOT / "dlguide").rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        parsed = ast.parse(path.read_text())
        for owner in [parsed, *(one for one in parsed.body if isinstance(one, ast.ClassDef))]:
            prefix = f"{owner.name}." if isinstance(owner, ast.ClassDef) else ""
            for one in owner.body:
                if not isinstance(one, ast.FunctionDef) or one.name in ("__repr__", "__str__"):
                    continue
                one.body = one.body[ast.get_docstring(one) is not None :]
                if not one.body or "print(" in ast.unparse(one):
                    continue
                functions.append((f"{module}:{prefix}{one.name}", one))
                lines.append(len(ast.unparse(one).splitlines()))
    generator = random.Random(seed)
    known = {(one.function, one.old, one.new) for one in read()}
    faults: list[Fault] = []
    while len(faults) < count:
        (name, function), *_ = generator.choices(functions, lines)
        possible = changes(function)
        if not possible:
            continue
        old, new = generator.choice(possible)
        several = len(places(function, old))
        nth = str(generator.randrange(several)) if several > 1 else ""
        if (name, old, new) in known or not several:
            continue
        known.add((name, old, new))
        faults.append(Fault(f"n{seed}-{len(faults) + 1:02}", "", name, old, new, nth))
    return faults


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("command", choices=("run", "new"))
    parser.add_argument("--only", default="", help="begin of the ids to run")
    parser.add_argument("--budget-s", type=float, default=300, help="for the tests of one fault")
    parser.add_argument("--count", type=int, default=20, help="faults to draw")
    parser.add_argument("--seed", type=int, help="of the draw; default: another each day")
    parser.add_argument("--jobs", type=int, default=1, help="faults at a time")
    parser.add_argument("--keep", action="store_true", help="enter what was drawn in the table")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the worktree is removed
    if given.command == "new":
        seed = given.seed if given.seed is not None else int(time.time() // 86400)
        return int(bool(run(draw(given.count, seed), given.budget_s, given.jobs, given.keep)))
    chosen = [one for one in read() if one.id.startswith(given.only)]
    chosen = [one for one in chosen if one.verdict != "equivalent"]
    return int(bool(run(chosen, given.budget_s, given.jobs, keep=True)))


if __name__ == "__main__":
    sys.exit(main())
