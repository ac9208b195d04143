"""The command line: `dlguide COMMAND --help` tells what each command does."""

from __future__ import annotations

import os
import sys

from dlguide.checks import MissingComponentError
from dlguide.cli import (  # noqa: F401  they add commands
    batch,
    bench,
    bench_allreduce,
    bench_io,
    bench_scaling,
    course,
    data,
    doctor,
    offline,
    predicting,
    progress,
    run,
    slides,
    training,
    tuning,
    usecase,
)
from dlguide.cli.app import app

# The words of a wrong command line, of a missing component, of a failed run: one line each.
EXPECTED = (ValueError, RuntimeError, OSError)


def main() -> None:
    """Run the command line; what a user can mend is said in words, without a traceback."""
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
