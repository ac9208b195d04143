"""What this process may run on, and how ranks share it: `machine.describe()`, `machine.threads`.

`describe` is the function; its module is reached as `from dlguide.machine.describe import ...`.
"""

from dlguide.machine import (
    catalogue,
    extensions,
    libraries,
    links,
    precision,
    roofline,
    systolic,
    threads,
)
from dlguide.machine.describe import Core, Machine, describe
from dlguide.machine.imagined import imagine

__all__ = [
    "Core",
    "Machine",
    "catalogue",
    "describe",
    "extensions",
    "imagine",
    "libraries",
    "links",
    "precision",
    "roofline",
    "systolic",
    "threads",
]
