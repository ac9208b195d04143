"""Faults put into the code on purpose, and the tests that catch them.

`mutations.csv` lists the faults. Each one names a function (`module:Class.method`; nothing after
the colon means the whole module) and replaces a piece of its syntax tree: `old` and `new` are
Python source, an expression or statements; an empty `new` deletes the statement. `nth` (from 0)
selects one of several equal pieces. `tests` names test files that imports do not lead to. When
code moves, the new place goes into `function_now`; when it is rewritten, the same fault in the new
code goes into `old_now` and `new_now`.

    python tools/mutations.py check               # is every fault still at its place?
    python tools/mutations.py run --after         # which tests of `make test` catch them now?
    python tools/mutations.py run --rev 6387c63   # the column `before`
    python tools/mutations.py draw --count 30     # add faults drawn at random

A run works in a temporary worktree, never in the checkout. For each fault without a verdict it
runs the test files that import the changed module, the closest first, up to the first failure. A
test counts only if it passes without the fault and fails with it once more. Verdicts: caught,
survived, timeout, no test; `equivalent` is written by hand, with the reason in `note`.
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
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[1]
TABLE = Path(__file__).with_suffix(".csv")
BEFORE = "6387c63"
SOURCES = ("", "notebooks")  # folders that hold packages
PACKAGES = ("dlguide", "dlcourse")
FEW, MANY = 4, 8  # test files: taken from further away until there are so many; at most
ALONE_S = 600.0  # for a test that is repeated
SEPARATE = ("test_setup", "test_house_style")  # they look at the checkout, not at behaviour
# Not drawn from: code that is about to be removed.
UNDRAWN = (
    *("slides", "wheelhouse", "make_wheelhouse", "doctor.workshop", "doctor.timetables"),
    *(f"exercises.{name}" for name in ("watching", "exits", "frames", "leftovers", "memory")),
    *("exercises.output", "exercises.pulse"),
)
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
    kind: str
    name: str
    function: str
    old: str
    new: str
    nth: str = ""
    tests: str = ""
    before: str = ""
    test_before: str = ""
    after: str = ""
    test_after: str = ""
    function_now: str = ""
    old_now: str = ""
    new_now: str = ""
    note: str = ""

    def now(self) -> Fault:
        """The same fault in code that has moved or was rewritten since `before`."""
        changed = {"old": self.old_now, "new": self.new_now, "nth": ""} if self.old_now else {}
        return replace(self, function=self.function_now or self.function, **changed)


def read() -> list[Fault]:
    if not TABLE.exists():
        return []
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
def worktree(rev: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="dlguide-mutations-") as folder:
        tree = Path(folder) / "tree"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "-q", "--detach", tree, rev], check=True)
        try:
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", tree], check=True)


def pytest(tree: Path, arguments: list[str], limit_s: float) -> tuple[str, str]:
    """Run tests in a tree: passed, failed or timeout, and the test in which that happened."""
    log = tree.parent / "log"
    log.write_text("")
    path = os.pathsep.join(str(tree / source) for source in SOURCES)
    env = os.environ | {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    options = ["-x", "-q", "-p", "no:cacheprovider", "-o", "timeout=240"]
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
    if status is None:
        return "timeout", test
    return ("passed", "") if status in (0, 5) else ("failed", test)


def _end_processes_of(tree: Path) -> None:
    """End what a run has left: every process that takes its modules from its tree."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if f"{tree}{os.pathsep}" in process.environ().get("PYTHONPATH", ""):
                process.send_signal(signal.SIGKILL)


def verdict(
    tree: Path, fault: Fault, limit_s: float, options: list[str], useless: set[str]
) -> tuple[str, str]:
    """Find a test that fails with a fault and passes without it."""
    path = module_path(tree, fault.function.partition(":")[0])
    if path is None:
        raise LookupError("there is no such module")
    original = path.read_text()
    # Both sides of the comparison are written from the tree: without comments, on other lines.
    plain, changed = ast.unparse(ast.parse(original)), mutated(original, fault)
    files = [one for one in fault.tests.split() if (tree / one).is_file()]
    files += [str(one.relative_to(tree)) for one in Imports(tree).tests(fault.function)]
    files = list(dict.fromkeys(files))
    end = time.monotonic() + limit_s

    def outcome(contents: str, arguments: list[str], seconds: float) -> tuple[str, str]:
        path.write_text(contents)
        return pytest(tree, [*options, *arguments], seconds)

    try:
        for file in files:
            while time.monotonic() < end:
                skipped = [f"--deselect={one}" for one in sorted(useless)]
                found, test = outcome(changed, [*skipped, file], end - time.monotonic())
                if found != "failed" or test in useless:
                    break
                alone = [test] if "::" in test else ["--collect-only", file]
                passes = outcome(plain, alone, ALONE_S)[0] == "passed"
                if passes and outcome(changed, alone, ALONE_S)[0] != "passed":
                    return "caught", test
                useless.add(test)
    finally:
        path.write_text(original)
    if time.monotonic() >= end:
        return "timeout", " ".join(files)
    return ("survived" if files else "no test"), " ".join(files)


def run(after: bool, rev: str, only: str, limit_s: float, again: bool) -> None:
    column = "after" if after else "before"
    # Executing lessons would take the whole budget of a fault, so `before` leaves them out.
    options = ["-m", "not long" if after else "not notebook"]
    useless: set[str] = set()  # tests that fail here without a fault, or not each time
    tried: set[str] = set()
    with worktree(rev) as tree:
        while True:
            # Read again each time: the table may be edited meanwhile.
            waiting = [one for one in read() if only in one.id and one.id not in tried]
            wanted = "caught" if after else ""
            waiting = [one for one in waiting if one.before == wanted]
            waiting = [one for one in waiting if again or not getattr(one, column)]
            if not waiting:
                return
            fault = waiting[0]
            tried.add(fault.id)
            try:
                place = fault.now() if after else fault
                found, test = verdict(tree, place, limit_s, options, useless)
            except LookupError as error:
                print(fault.id, place.function, error, flush=True)
                continue
            faults = read()
            for one in faults:
                if one.id == fault.id:
                    setattr(one, column, found)
                    setattr(one, f"test_{column}", test)
            write(faults)
            print(fault.id, place.function, found, test, flush=True)


def check(rev: str) -> int:
    """Print the faults that were caught and whose place is gone; return their number."""
    lost = 0
    with worktree(rev) as tree:
        for fault in (one.now() for one in read() if one.before == "caught"):
            path = module_path(tree, fault.function.partition(":")[0])
            try:
                if path is None:
                    raise LookupError("there is no such module")
                mutated(path.read_text(), fault)
            except LookupError as error:
                lost += 1
                print(f"{fault.id} {fault.function}: {error}")
    return lost


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


def draw(count: int, seed: int, rev: str) -> None:
    """Add faults: the function drawn with its lines of code as weight, then the change."""
    functions, lines = [], []
    with worktree(rev) as tree:
        for path in sorted((tree / "dlguide").rglob("*.py")):
            module = ".".join(path.relative_to(tree).with_suffix("").parts)
            module = module.removesuffix(".__init__")
            if module.partition(".")[2].startswith(UNDRAWN) or path.stem == "show":
                continue
            parsed = ast.parse(path.read_text())
            for owner in [parsed, *(one for one in parsed.body if isinstance(one, ast.ClassDef))]:
                prefix = f"{owner.name}." if isinstance(owner, ast.ClassDef) else ""
                for one in owner.body:
                    if not isinstance(one, ast.FunctionDef) or one.name in ("__repr__", "__str__"):
                        continue
                    documented = ast.get_docstring(one) is not None
                    one.body = one.body[documented:]
                    if not one.body or "print(" in ast.unparse(one):
                        continue
                    functions.append((f"{module}:{prefix}{one.name}", one))
                    lines.append(len(ast.unparse(one).splitlines()))
    generator = random.Random(seed)
    faults = read()
    known = {(one.function, one.old, one.new) for one in faults}
    number = sum(one.kind == "drawn" for one in faults)
    while count:
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
        number, count = number + 1, count - 1
        faults.append(Fault(f"d{number:02}", "drawn", "", name, old, new, nth))
    write(faults)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("command", choices=("check", "run", "draw"))
    parser.add_argument("--after", action="store_true", help="fill `after`: tests of `make test`")
    parser.add_argument("--rev", help=f"commit; {BEFORE} for `before` and `draw`, else HEAD")
    parser.add_argument("--again", action="store_true", help="`after` of all, not of the empty")
    parser.add_argument("--only", default="", help="part of the ids to run")
    parser.add_argument("--budget-s", type=float, default=600, help="for the tests of one fault")
    parser.add_argument("--count", type=int, default=30, help="faults to draw")
    parser.add_argument("--seed", type=int, default=18)
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the worktree is removed
    rev = given.rev or ("HEAD" if given.after or given.command == "check" else BEFORE)
    if given.command == "check":
        return check(rev)
    if given.command == "draw":
        draw(given.count, given.seed, rev)
    else:
        run(given.after, rev, given.only, given.budget_s, given.again and given.after)
    return 0


if __name__ == "__main__":
    sys.exit(main())
