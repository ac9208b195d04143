"""The result of one check, and the report of all of them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from dlguide.errors import require

SIGNS = {True: "ok  ", None: "note", False: "FAIL"}


@dataclass(frozen=True)
class CheckResult:
    """One result of a check.

    Args:
        ok: True if it works, False if it does not, None if it works but not at its best.
        found: version, path, number, or the error.
        fix: the command that fixes it; never empty if `ok` is False.
    """

    name: str
    ok: bool | None
    found: str
    fix: str = ""

    def __post_init__(self) -> None:
        must = f"name the command that fixes {self.name}"
        require(self.ok is not False or bool(self.fix.strip()), "fix", must, self.fix)

    def __str__(self) -> str:
        line = f"{SIGNS[self.ok]}  {self.name:<20}  {self.found}"
        return line if self.ok is True or not self.fix else f"{line}\n{'':28}fix: {self.fix}"


def report(results: Iterable[CheckResult], as_json: bool = False) -> str:
    """Format results as lines, each failure with its fix, and a last line that counts failures.

    Args:
        as_json: return a JSON list of objects with name, ok (true, false or null), found, fix.

    Returns:
        str: lines, or JSON.
    """
    results = list(results)
    if as_json:
        return json.dumps([asdict(result) for result in results], indent=2)
    failed = sum(result.ok is False for result in results)
    last = f"{failed} of {len(results)} fail." if failed else "Everything that is needed works."
    return "\n".join([*map(str, results), last])
