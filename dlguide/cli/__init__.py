"""The command line: `dlguide COMMAND --help` describes each command."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from functools import cache
from importlib.metadata import entry_points

from dlguide.cli import (  # noqa: F401  they add commands
    batch,
    bench,
    bench_allreduce,
    bench_io,
    bench_scaling,
    data,
    doctor,
    management,
    predicting,
    run,
    training,
    tuning,
)
from dlguide.cli.app import app
from dlguide.errors import MissingComponentError

EXPECTED = (ValueError, RuntimeError, OSError)  # reported in one line
COURSE = ("lab", "notebooks", "progress", "usecase")  # what dlcourse adds


@cache
def add_commands() -> dict[str, str]:
    """Add the commands of other distributions (entry points in the group `dlguide.commands`).

    A command that cannot be loaded is reported in one line and left out.

    Returns:
        dict: command -> why it was left out.
    """
    own = {command.name or command.callback.__name__ for command in app.registered_commands}
    own |= {group.name for group in app.registered_groups}
    left_out = {}
    for point in sorted(entry_points(group="dlguide.commands"), key=lambda point: point.name):
        try:
            if point.name in own:
                raise ValueError("dlguide has a command of this name")
            app.command(point.name)(point.load())
        except Exception as error:  # whatever another distribution does must not stop the others
            words = " ".join(str(error).split())
            left_out[point.name] = f"{point.value}: {type(error).__name__}: {words}"
            print(f"dlguide: no command `{point.name}` ({left_out[point.name]})", file=sys.stderr)
    return left_out


def main() -> None:
    """Run the command line; expected errors are reported without a traceback."""
    atexit.register(gc.freeze)  # else Python looks for garbage for a second at the end
    left_out = add_commands()
    asked = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
    known = {command.name for command in app.registered_commands}
    if asked in COURSE and asked not in known:
        sys.exit(
            "" if asked in left_out else f"dlguide: `{asked}` comes with the course (dlcourse), "
            "which is not installed: run `make setup` in a clone of the repository."
        )  # fmt: skip
    try:
        app()
    except KeyboardInterrupt:
        sys.exit("\nInterrupted; the ranks were stopped.")
    except MissingComponentError as error:
        sys.exit(f"dlguide: {error}")
    except EXPECTED as error:
        if os.environ.get("DLGUIDE_TRACEBACK"):
            raise
        sys.exit(f"dlguide: {type(error).__name__}: {error}")
