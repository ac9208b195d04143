"""What was changed in a script's run, as plain text and as a record."""

from __future__ import annotations

from pathlib import Path


class Report:
    """The changes and what they leave different from one process.

    Args:
        script: path of the script.
        ranks: number of ranks (count).
        seed: what all ranks started from.
    """

    def __init__(self, script: str, ranks: int, seed: int) -> None:
        self.script, self.ranks, self.seed = script, ranks, seed
        self.changes: list[dict] = []  # each with call, line of the script, what, times
        self.assumed: list[str] = []  # what could not be checked
        self.different: list[str] = []  # what is not as in one process, a sentence each

    def change(self, call: str, line: int, what: str) -> None:
        """Note a change; the same one at the same place counts again.

        Args:
            call: what was changed, such as "fit".
            line: where in the script; 0 for no place.
            what: what became of it.
        """
        entry = {"call": call, "line": line, "what": what}
        for each in self.changes:
            if {**each, "times": 0} == {**entry, "times": 0}:
                each["times"] += 1
                return
        self.changes.append({**entry, "times": 1})

    def differs(self, what: str) -> None:
        """Note what is not as in one process, once."""
        if what not in self.different:
            self.different.append(what)

    def assume(self, what: str) -> None:
        """Note what is taken for granted because it cannot be checked, once."""
        if what not in self.assumed:
            self.assumed.append(what)

    def record(self) -> dict:
        """Return the report as plain values."""
        return {**vars(self), "text": self.text()}

    def text(self) -> str:
        """Return the report for a reader."""
        lines = [f"{Path(self.script).name} ran on {self.ranks} ranks as one training. Changed:"]
        for each in self.changes:
            place = f"line {each['line']}" if each["line"] else ""
            times = f" ({each['times']} times)" if each["times"] > 1 else ""
            lines.append(f"  {each['call']:<11}{place:<10}{each['what']}{times}")
        lines.append(f"  {'seeds':<21}all ranks started from seed {self.seed}; a seed that the")
        lines.append(f"  {'':<21}script sets wins over it")
        if self.different:
            lines.append("Not as in one process:")
            lines += [f"  - {each}" for each in self.different]
        if self.assumed:
            lines.append("Taken for granted:")
            lines += [f"  - {each}" for each in self.assumed]
        return "\n".join(lines)
