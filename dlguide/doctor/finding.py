"""One thing that was looked at, and how all of them are told."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from dlguide.checks import require

SIGNS = {True: "ok  ", None: "note", False: "FAIL"}


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Args:
        name: what it is, a word or two.
        ok: True when it works, False when it does not, None when it works but not at its best.
        found: what was found: version, path, number, or the error.
        mend: the command that mends it; never empty when `ok` is False.
    """

    name: str
    ok: bool | None
    found: str
    mend: str = ""

    def __post_init__(self) -> None:
        require(
            self.ok is not False or bool(self.mend.strip()),
            "mend",
            f"say how to mend {self.name}",
            self.mend,
        )

    def __str__(self) -> str:
        line = f"{SIGNS[self.ok]}  {self.name:<20}  {self.found}"
        return line if self.ok is True or not self.mend else f"{line}\n{'':28}mend: {self.mend}"


def report(findings: Iterable[Finding], as_json: bool = False) -> str:
    """Write the findings as lines of text, with the mending command below what fails.

    Args:
        findings: what `examine` returned.
        as_json: write a JSON list of objects with name, ok (true, false or null), found, mend.

    Returns:
        str: one or two lines each and a last one that counts them, or JSON.
    """
    findings = list(findings)
    if as_json:
        return json.dumps([asdict(finding) for finding in findings], indent=2)
    failed = sum(finding.ok is False for finding in findings)
    last = f"{failed} of {len(findings)} fail." if failed else "Everything that is needed works."
    return "\n".join([*map(str, findings), last])
