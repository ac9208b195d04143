"""Execute notebooks from top to bottom, each in a process of its own, with the network cut.

Nothing comes from the network in this course, and this shows it: where the system allows it, a
notebook runs in a network namespace that holds nothing but the loopback interface.
"""

from __future__ import annotations

import argparse
import fcntl
import importlib.util
import json
import os
import re
import shutil
import socket
import struct
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from dlguide import commands
from dlguide.checks import require, require_positive

HOUSE_LIMIT_S = 60.0  # what a notebook may take on 2 cores
CUT = "DLGUIDE_NETWORK_CUT"
STRICT = "DLGUIDE_STRICT_EXERCISES"
HOW_TO_GET = {"torch": "make pytorch"}  # what a notebook may need that `make setup` leaves out
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2"}  # TensorFlow's notes on every import, which say nothing new
ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / "build" / "notebooks"  # the last run of each, from which slides take their figures


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
    """

    name: str
    ok: bool
    seconds: float
    network_cut: bool
    error: str = ""
    skipped: str = ""

    def __str__(self) -> str:
        if self.skipped:
            return f"skip  {'':8}  {self.name}  ({self.skipped})"
        late = f"  (more than {HOUSE_LIMIT_S:.0f} s)" if self.seconds > HOUSE_LIMIT_S else ""
        cut = "" if self.network_cut else "  (with network)"
        line = f"{'ok  ' if self.ok else 'FAIL'}  {self.seconds:6.1f} s  {self.name}{late}{cut}"
        return line if self.ok else f"{line}\n{self.error}"


def find(folder: str | os.PathLike[str] | None = None) -> list[Path]:
    """List the notebooks, the lessons first, then the answers.

    Args:
        folder: where they lie; None takes `notebooks` of the repository.

    Returns:
        list[Path]: the files, in the order of their numbers.
    """
    place = Path(folder or ROOT / "notebooks")
    return [*sorted(place.glob("*.ipynb")), *sorted(place.glob("answers/*.ipynb"))]


def execute(
    path: str | os.PathLike[str],
    timeout_s: float = 600.0,
    cut_network: bool = True,
    output: str | os.PathLike[str] | None = None,
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

    Returns:
        Execution: how it went.

    Raises:
        ValueError: when there is no such notebook or the limit is no time.
    """
    path = Path(path).resolve()
    require(path.is_file(), "path", "be a notebook", str(path))
    limit_s = require_positive(timeout_s, "timeout_s")
    strict = path.parent.name == "answers"
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
    done = commands.run(command, limit_s, env, folder=path.parent)
    error = ""
    if done.status is None:
        error = f"did not end within {limit_s:g} s"
    elif not done.ok:
        error = done.tail(40)
    return Execution(name, done.ok, done.seconds, bool(cutter), error)


def missing(path: str | os.PathLike[str]) -> str:
    """Say which optional packages a notebook needs that are not installed.

    A notebook names them in its metadata: `{"dlguide": {"needs": ["torch"]}}`.

    Args:
        path: the notebook.

    Returns:
        str: the packages and the command that installs them; empty when nothing is missing.

    Raises:
        ValueError: when the file is no notebook, or `needs` is no list of names.
    """
    try:
        contents = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError:
        contents = None
    then = "It holds no JSON object."
    require(isinstance(contents, dict), "path", "be a notebook", str(path), then)
    needed = contents.get("metadata", {}).get("dlguide", {}).get("needs", [])
    names = isinstance(needed, list) and all(isinstance(name, str) and name for name in needed)
    require(names, "needs", "be a list of packages in the notebook's metadata", needed)
    lack = [name for name in needed if not _installed(name)]
    return "; ".join(
        f"{name} is not installed: `{HOW_TO_GET.get(name, f'pip install {name}')}`" for name in lack
    )


def _installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # what comes before its last dot is not there either
        return False


def execute_all(
    names: Iterable[str] = (),
    timeout_s: float = 600.0,
    cut_network: bool = True,
    output: str | os.PathLike[str] | None = None,
) -> bool:
    """Execute notebooks one after the other and print how each went.

    Args:
        names: numbers, names or paths of notebooks, such as "20"; its answers are meant too.
            Empty for all of the repository.
        timeout_s: when to give up on one (s).
        cut_network: leave them loopback only, where the system allows that.
        output: a folder for the executed notebooks; None keeps none.

    Returns:
        bool: whether every cell of all of them ran.

    Raises:
        ValueError: when a name means no notebook; the message lists those there are.
    """
    well = True
    for path in choose(names):
        kept = None
        if output is not None:
            kept = Path(output) / ("answers" if path.parent.name == "answers" else "") / path.name
            kept.parent.mkdir(parents=True, exist_ok=True)
        result = execute(path, timeout_s, cut_network, kept)
        print(result, flush=True)
        well = well and result.ok
    return well


def choose(names: Iterable[str] = (), folder: str | os.PathLike[str] | None = None) -> list[Path]:
    """Find the notebooks that are meant.

    Args:
        names: numbers, names or paths, such as "20", "20_data_parallelism", "my.ipynb"; empty
            for all.
        folder: where the course's notebooks lie; None takes those of the repository.

    Returns:
        list[Path]: lessons before answers, each once.

    Raises:
        ValueError: when a name means no notebook; the message lists those there are.
    """
    known = find(folder)
    wanted = [str(name) for name in names]
    chosen = [] if wanted else known
    for name in wanted:
        meant = [path for path in known if name in (path.stem, path.name, path.stem[:2])]
        if not meant and Path(name).is_file():
            meant = [Path(name)]
        there = ", ".join(sorted({path.stem for path in known})) or "none"
        require(bool(meant), "names", f"be notebooks: {there}", name)
        chosen += [path for path in meant if path not in chosen]
    return chosen


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


def _raise_loopback() -> None:
    """Bring `lo` up in a network namespace of one's own, as `ip link set lo up` does."""
    get_flags, set_flags, up = 0x8913, 0x8914, 0x1  # SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        answer = fcntl.ioctl(any_socket, get_flags, struct.pack("16sh22x", b"lo", 0))
        flags = struct.unpack_from("16sh", answer)[1]
        fcntl.ioctl(any_socket, set_flags, struct.pack("16sh22x", b"lo", flags | up))


def _run(path: Path, output: Path | None) -> str:
    """Execute a notebook in this process; return what failed, or nothing."""
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, DeadKernelError

    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=None,  # the process has the limit
        kernel_name="python3",
        resources={"metadata": {"path": str(path.parent)}},
    )
    try:
        client.execute()
    except (CellExecutionError, DeadKernelError) as error:
        return re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    finally:
        if output is not None:
            nbformat.write(notebook, output)
    return ""


def main(arguments: list[str] | None = None) -> int:
    """Execute one notebook in this process, with `lo` raised if the network was cut.

    Args:
        arguments: what follows the command's name; None takes it from the command line.

    Returns:
        int: the exit status.
    """
    parser = argparse.ArgumentParser("dlguide.notebooks")
    parser.add_argument("path", type=Path)
    parser.add_argument("--output", type=Path)
    chosen = parser.parse_args(arguments)
    if os.environ.get(CUT) == "1":
        _raise_loopback()
    error = _run(chosen.path, chosen.output)
    if error:
        print(error)
    return 1 if error else 0


if __name__ == "__main__":
    sys.exit(main())
