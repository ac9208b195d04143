"""Look at everything at once, each thing under its own time limit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

from dlguide.checks import require_positive
from dlguide.doctor import ranks, software, surroundings
from dlguide.doctor.finding import Finding

Check = Callable[[float], "Finding | list[Finding]"]

# What takes long first, so that it starts first; told in the order of ORDER.
CHECKS: tuple[tuple[str, Check], ...] = (
    ("Two ranks", ranks.two_ranks),
    ("Jupyter", software.jupyter),
    ("libmpi", ranks.one_libmpi),
    ("Libraries", software.libraries),
    ("Data", surroundings.data_files),
    ("mpiexec", ranks.mpiexec),
    ("Python", software.python),
    ("Packages", software.packages),
    ("Compiler", software.compiler),
    ("Environment", surroundings.environment),
    ("Cores", surroundings.cores),
    ("Memory", surroundings.memory),
    ("Disk", surroundings.disk),
    ("Shared memory", surroundings.shared_memory),
    ("Loopback", surroundings.loopback),
    ("Home", surroundings.home),
    ("Leftovers", surroundings.leftovers),
)
TOLD = (
    *("Python", "Packages", "Environment", "mpiexec", "libmpi", "Two ranks", "Jupyter", "Compiler"),
    *(
        "Libraries",
        "Cores",
        "Memory",
        "Shared memory",
        "Disk",
        "Home",
        "Loopback",
        "Data",
        "Leftovers",
    ),
)


def examine(timeout_s: float = 60.0, checks: Iterable[tuple[str, Check]] = CHECKS) -> list[Finding]:
    """Look at all that the course needs on this machine.

    The heavy parts run in processes of their own, side by side; TensorFlow and MPI are never
    loaded here. A check that breaks or does not answer is a finding that fails, so that the
    others are still told.

    Args:
        timeout_s: time limit of each check (s); all run side by side.
        checks: pairs of a name and a function from the limit to one or several findings.

    Returns:
        list[Finding]: at least one for each check, in a fixed order.

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
    # Each kills its own processes at the limit; what is still silent after that hangs itself.
    deadline = time.monotonic() + limit_s + 5.0
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    silent = f"no answer within {limit_s:g} s"
    again = "Try again when the machine has less to do: `dlguide doctor`."
    for name, _ in checks:
        answers.setdefault(name, [Finding(name, False, silent, again)])
    order = sorted(answers, key=lambda name: TOLD.index(name) if name in TOLD else len(TOLD))
    return [finding for name in order for finding in answers[name]]


def _ask(name: str, check: Check, limit_s: float, answers: dict[str, list[Finding]]) -> None:
    try:
        answer = check(limit_s)
    except Exception as error:  # whatever broke is what the doctor has to tell
        text = str(error).strip().splitlines()
        found = f"{type(error).__name__}: {text[0] if text else 'without a text'}"
        answer = Finding(name, False, found, "make setup")
    answers[name] = [answer] if isinstance(answer, Finding) else list(answer)
