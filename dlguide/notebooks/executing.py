"""Execute notebooks, each in a process of its own that is ended with all that it started."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import struct
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from dlguide import commands
from dlguide.checks import require, require_count, require_positive
from dlguide.notebooks.finding import choose, is_answers, missing

HOUSE_LIMIT_S, USE_CASE_LIMIT_S = 60.0, 90.0  # what a notebook may take on 2 cores
CUT = "DLGUIDE_NETWORK_CUT"
STRICT = "DLGUIDE_STRICT_EXERCISES"
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2"}  # TensorFlow's notes on every import, which say nothing new


@dataclass(frozen=True)
class Execution:
    """How one notebook went.

    Args:
        name: the file, below the folder of notebooks.
        ok: whether every cell ran, or none had to.
        seconds: from the start of the process to its end (s).
        network_cut: whether it ran without any network but loopback.
        error: what failed, empty when nothing did.
        skipped: why it was not executed, empty when it was.
        fast: whether it had less work to do, so that its time says nothing about the lesson.
    """

    name: str
    ok: bool
    seconds: float
    network_cut: bool
    error: str = ""
    skipped: str = ""
    fast: bool = False

    def __str__(self) -> str:
        if self.skipped:
            return f"skip  {'':8}  {self.name}  ({self.skipped})"
        limit_s = USE_CASE_LIMIT_S if Path(self.name).name.startswith("8") else HOUSE_LIMIT_S
        slow = self.seconds > limit_s and not self.fast  # those of the fast tour run side by side
        late = f"  (more than {limit_s:.0f} s)" if slow else ""
        cut = "" if self.network_cut else "  (with network)"
        line = f"{'ok  ' if self.ok else 'FAIL'}  {self.seconds:6.1f} s  {self.name}{late}{cut}"
        return line if self.ok else f"{line}\n{self.error}"


def execute(
    path: str | os.PathLike[str],
    timeout_s: float = 600.0,
    cut_network: bool = True,
    output: str | os.PathLike[str] | None = None,
    fast: bool = False,
) -> Execution:
    """Execute one notebook in its folder; the file itself stays as it is.

    Answers, those in a folder of that name, run with strict exercises: a wrong one fails. At the
    limit the kernel and all that it started are killed. A notebook that needs an optional package
    which is not installed is skipped.

    Args:
        path: the notebook.
        timeout_s: when to give up (s).
        cut_network: leave it loopback only, where the system allows that.
        output: where to write the executed notebook, also when it failed; None keeps none.
        fast: leave out what its cells say may be left out: see `shortening`.

    Returns:
        Execution: how it went.

    Raises:
        ValueError: when there is no such notebook or the limit is no time.
    """
    path = Path(path).resolve()
    require(path.is_file(), "path", "be a notebook", str(path))
    limit_s = require_positive(timeout_s, "timeout_s")
    strict = is_answers(path)
    name = f"answers/{path.name}" if strict else path.name
    lack = missing(path)
    if lack:
        return Execution(name, True, 0.0, False, skipped=lack)
    cutter = network_cutter() if cut_network else ()
    env = QUIET | commands.without_mpi()
    env |= {CUT: "1" if cutter else "0", STRICT: "1" if strict else "0"}
    command = [*cutter, sys.executable, "-m", "dlguide.notebooks", path]
    if output is not None:
        command += ["--output", Path(output).resolve()]
    if fast:
        command.append("--fast")
    done = commands.run(command, limit_s, env, folder=path.parent)
    error = ""
    if done.status is None:
        error = f"did not end within {limit_s:g} s"
    elif not done.ok:
        error = done.tail(40)
    return Execution(name, done.ok, done.seconds, bool(cutter), error, fast=fast)


def execute_all(
    names: Iterable[str] = (),
    timeout_s: float = 600.0,
    cut_network: bool = True,
    output: str | os.PathLike[str] | None = None,
    fast: bool = False,
    at_once: int = 1,
) -> bool:
    """Execute notebooks and print how each went.

    Args:
        names: numbers, names or paths of notebooks, such as "20"; its answers are meant too.
            Empty for all of the repository.
        timeout_s: when to give up on one (s).
        cut_network: leave them loopback only, where the system allows that.
        output: a folder for the executed notebooks; None keeps none.
        fast: lessons with less work, and no answers: to see that all runs, not how long it takes.
        at_once: notebooks that run side by side, the last ones first (count); more than one disturb
            each other's times.

    Returns:
        bool: whether every cell of all of them ran.

    Raises:
        ValueError: when a name means no notebook; the message lists those there are.
    """
    require_count(at_once, "at_once")
    paths = [path for path in choose(names) if not (fast and is_answers(path))]
    if at_once > 1:
        paths.reverse()  # the course ends with the longest: begun first, none is left for the end

    def one(path: Path) -> Execution:
        kept = None
        if output is not None:
            kept = Path(output) / ("answers" if is_answers(path) else "") / path.name
            kept.parent.mkdir(parents=True, exist_ok=True)
        return execute(path, timeout_s, cut_network, kept, fast)

    well = True
    with _mapping(at_once) as mapped:
        for result in mapped(one, paths):
            print(result, flush=True)
            well = well and result.ok
    return well


@contextmanager
def _mapping(at_once: int) -> Iterator[Callable[..., Iterable[Execution]]]:
    """Give a `map` that runs so many calls side by side; an interrupt ends all they started."""
    if at_once == 1:
        yield map
        return
    pool = ThreadPoolExecutor(at_once)
    try:
        yield pool.map
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for child in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                child.kill()
        raise
    finally:
        pool.shutdown()


def network_cutter() -> tuple[str, ...]:
    """Find the words before a command that take its network away.

    Returns:
        tuple[str, ...]: for root or through a user namespace; empty where neither is allowed.
    """
    unshare = shutil.which("unshare")
    for option in ("-n", "-rn") if unshare else ():
        if commands.run([unshare, option, "true"], timeout_s=20).ok:
            return (unshare, option)
    return ()


def raise_loopback() -> None:
    """Bring `lo` up in a network namespace of one's own, as `ip link set lo up` does."""
    get_flags, set_flags, up = 0x8913, 0x8914, 0x1  # SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        answer = fcntl.ioctl(any_socket, get_flags, struct.pack("16sh22x", b"lo", 0))
        flags = struct.unpack_from("16sh", answer)[1]
        fcntl.ioctl(any_socket, set_flags, struct.pack("16sh22x", b"lo", flags | up))
