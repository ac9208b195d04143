"""Trace one gradient from a notebook's cell to the exchange, in a real training on 2 ranks.

    python tools/trace_gradient.py            prints the trace
    python tools/trace_gradient.py --write    puts it between the markers of docs/architecture.md

Frames are calls that are open at the same time, in this package's own files: (a) in the rank from
`fit` to the operator that will call the exchange while the training step is traced, (b) in the
notebook's process from the cell to ipyparallel.
"""

from __future__ import annotations

import ast
import linecache
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

PAGE = Path(__file__).resolve().parents[1] / "docs" / "architecture.md"
BEGIN, END = "<!-- trace of one gradient: begin -->", "<!-- trace of one gradient: end -->"
COMMAND = "python tools/trace_gradient.py --write"
CELL = """
from dlguide.cluster import Cluster

with Cluster(ranks=2) as cluster:
    trace, *_ = cluster.run(traced_fit)
"""


class Call(NamedTuple):
    """A function on the path: its module, its name, and its lines without docstring."""

    module: str
    function: str
    lines: int


def watch(is_target: Callable[[FrameType], bool], work: Callable[[], Any]) -> list[list[Call]]:
    """Run `work` and return the stack of calls, outermost first, at each call of a target."""
    found: list[list[Call]] = []

    def profile(frame: FrameType, event: str, _argument: Any) -> None:
        if event == "call" and is_target(frame):
            found.append(package_calls(frame))

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return found


def package_calls(frame: FrameType | None) -> list[Call]:
    """The open calls of functions of `dlguide`, outermost first."""
    calls = []
    while frame is not None:
        module, code = frame.f_globals.get("__name__", ""), frame.f_code
        inside_another = code.co_name in ("<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>")
        if module.split(".")[0] == "dlguide" and not inside_another:
            calls.append(Call(module, code.co_qualname, length(code)))
        frame = frame.f_back
    return calls[::-1]


def length(code: CodeType) -> int:
    """Lines of a function from its first one to its last, without its docstring."""
    tree = ast.parse("".join(linecache.getlines(code.co_filename)))
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.Lambda):
            continue
        first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", []))])
        if first == code.co_firstlineno:
            text = isinstance(node, ast.FunctionDef) and ast.get_docstring(node)
            docstring = node.body[0].end_lineno - node.body[0].lineno + 1 if text else 0
            return node.end_lineno - first + 1 - docstring
    return 0


def traced_fit() -> list[Call]:
    """Train on this rank; return the calls around the exchange's operator in the traced step."""
    from dlguide import training

    def is_operator(frame: FrameType) -> bool:
        return frame.f_code.co_name == "numpy_function"

    stacks = watch(is_operator, lambda: training.fit("mlp", config=training.FitConfig(samples=400)))
    # The comparison of weights, before it, is called in the same way.
    return next(s for s in stacks if any(call.function.endswith(".reduce") for call in s))


def traced_cell() -> tuple[list[Call], list[Call]]:
    """Run the cell; return its calls towards ipyparallel, and those in the rank."""
    names: dict[str, Any] = {"traced_fit": traced_fit}

    def is_submission(frame: FrameType) -> bool:
        return frame.f_code.co_name == "send_apply_request"

    stacks = watch(is_submission, lambda: exec(compile(CELL, "<cell>", "exec"), names))
    submissions = [s for s in stacks if any(call.function.endswith("Cluster.run") for call in s)]
    return submissions[0], names["trace"]


def report(cell: list[Call], rank: list[Call]) -> str:
    """The trace as Markdown."""
    at = next(i for i, call in enumerate(rank) if call.function == "fit")
    path = [*cell, *rank]
    longest = max(path, key=lambda call: call.lines)
    modules = {call.module for call in path}
    between = [f"`{call.module}.{call.function}`" for call in rank[:at]]

    def table(calls: list[Call]) -> list[str]:
        lines = ["| call | module | lines |", "|---|---|--:|"]
        return lines + [f"| `{c.function}` | `{c.module}` | {c.lines} |" for c in calls]

    return "\n".join(
        [
            f"Written by `{COMMAND}` from a training on 2 ranks.",
            "",
            f"**{len(rank) - at} calls in the rank, from `fit` to the operator that calls "
            "`Exchange` in each step:**",
            "",
            *table(rank[at:]),
            "",
            f"**{len(cell)} calls in the notebook's process, from the cell to ipyparallel:**",
            "",
            *table(cell),
            "",
            f"Between the two, in the rank: {', '.join(between)}.",
            f"The whole path passes {len(modules)} modules; its longest function is "
            f"`{longest.function}` with {longest.lines} lines (docstrings not counted).",
        ]
    )


def main() -> None:
    """Print the trace, and write it when asked to."""
    text = report(*traced_cell())
    print(text)
    if "--write" in sys.argv[1:]:
        page = PAGE.read_text()
        if BEGIN not in page or END not in page:
            sys.exit(f"{PAGE.name} must contain the lines\n{BEGIN}\n{END}")
        before, after = page.split(BEGIN)[0], page.split(END)[1]
        PAGE.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")


if __name__ == "__main__":
    main()
