"""All checks, side by side, each under its own time limit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

from dlguide.doctor import ranks, software, surroundings
from dlguide.doctor.finding import Finding
from dlguide.errors import require_positive

# Each check gets its time limit in seconds; only those that start a process need it.
Check = Callable[[float], "Finding | list[Finding]"]

CHECKS: tuple[tuple[str, Check], ...] = (
    ("Python", software.python),
    ("Packages", software.packages),
    ("Environment", surroundings.environment),
    ("mpiexec", ranks.mpiexec),
    ("libmpi", ranks.one_libmpi),
    ("Two ranks", ranks.two_ranks),
    ("Jupyter", software.jupyter),
    ("Compiler", software.compiler),
    ("Libraries", software.libraries),
    ("Cores", surroundings.cores),
    ("Memory", surroundings.memory),
    ("Shared memory", surroundings.shared_memory),
    ("Disk", surroundings.disk),
    ("Home", surroundings.home),
    ("Loopback", surroundings.loopback),
    ("Data", surroundings.data_files),
    ("Leftovers", surroundings.leftovers),
)


def examine(timeout_s: float = 60.0, checks: Iterable[tuple[str, Check]] = CHECKS) -> list[Finding]:
    """Check everything that training on ranks and the lessons need on this machine.

    The heavy checks run in their own processes; TensorFlow and MPI are never loaded here. A check
    that raises or does not answer in time is a finding that fails.

    Args:
        timeout_s: time limit of each check (s); all run side by side.
        checks: pairs of a name and a function from the limit to one or several findings.

    Returns:
        list[Finding]: at least one for each check, in the order of `checks`.

    Raises:
        ValueError: when `timeout_s` is not a positive number.
    """
    limit_s = require_positive(timeout_s, "timeout_s")
    checks = list(checks)
    answers: dict[str, list[Finding]] = {}
    threads = []
    for name, check in checks:
        # Daemons: one that hangs in a system call must not keep Python from ending.
        thread = threading.Thread(target=_ask, args=(name, check, limit_s, answers), daemon=True)
        thread.start()
        threads.append(thread)
    # Each check kills its own processes at the limit; one that is still silent then hangs itself.
    deadline = time.monotonic() + limit_s + 5.0
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    silent = f"no answer within {limit_s:g} s"
    again = "dlguide doctor  # again, when the machine has less to do"
    late = {name: [Finding(name, False, silent, again)] for name, _ in checks}
    return [finding for name, _ in checks for finding in answers.get(name, late[name])]


def _ask(name: str, check: Check, limit_s: float, answers: dict[str, list[Finding]]) -> None:
    try:
        answer = check(limit_s)
    except Exception as error:  # whatever is broken is what the doctor has to report
        text = str(error).strip().splitlines()
        found = f"{type(error).__name__}: {text[0] if text else 'without a text'}"
        answer = Finding(name, False, found, "make setup")
    answers[name] = [answer] if isinstance(answer, Finding) else list(answer)
