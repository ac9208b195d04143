"""The course's notebooks: where they are, and how they are executed.

Each runs from top to bottom in a process of its own. Nothing comes from the network in this
course, and this shows it: where the system allows it, a notebook runs in a network namespace that
holds nothing but the loopback interface.
"""

from dlguide.notebooks.executing import (
    HOUSE_LIMIT_S,
    QUIET,
    Execution,
    execute,
    execute_all,
    network_cutter,
)
from dlguide.notebooks.finding import KEPT, ROOT, choose, find, is_answers, missing

__all__ = [
    "HOUSE_LIMIT_S",
    "KEPT",
    "QUIET",
    "ROOT",
    "Execution",
    "choose",
    "execute",
    "execute_all",
    "find",
    "is_answers",
    "missing",
    "network_cutter",
]
