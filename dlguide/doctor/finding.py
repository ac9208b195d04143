"""One result of a check, and the report of all of them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from dlguide.errors import require

SIGNS = {True: "ok  ", None: "note", False: "FAIL"}


@dataclass(frozen=True)
class Finding:
    """One result of a check.

    Args:
        name: what was checked, a word or two.
        ok: True when it works, False when it does not, None when it works but not at its best.
        found: version, path, number, or the error.
        fix: the command that fixes it; never empty when `ok` is False.
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


def report(findings: Iterable[Finding], as_json: bool = False) -> str:
    """Write the findings as lines of text, each fault with the command that fixes it.

    Args:
        findings: what `examine` returned.
        as_json: write a JSON list of objects with name, ok (true, false or null), found, fix.

    Returns:
        str: one or two lines each and a last one that counts the faults, or JSON.
    """
    findings = list(findings)
    if as_json:
        return json.dumps([asdict(finding) for finding in findings], indent=2)
    failed = sum(finding.ok is False for finding in findings)
    last = f"{failed} of {len(findings)} fail." if failed else "Everything that is needed works."
    return "\n".join([*map(str, findings), last])
