"""The exercises have moved to the course's package: `dlcourse.check` and `dlcourse.solution`."""

from typing import Any


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    raise ImportError(
        "The exercises are in the course's package now: write `import dlcourse`, then "
        '`dlcourse.check("20-1", answer)` and `dlcourse.solution("20-1")`.'
    )
