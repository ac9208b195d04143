"""What this process may run on, and how ranks share it: `machine.describe()`, `machine.threads`.

`describe` is the function; its module is reached as `from dlguide.machine.describe import ...`.
"""

from dlguide.machine import threads
from dlguide.machine.describe import Core, Machine, describe

__all__ = ["Core", "Machine", "describe", "threads"]
