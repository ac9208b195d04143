"""`dlguide` and `python -m dlguide`: an interrupt is one line also while modules are loaded."""

from __future__ import annotations

import sys


def main() -> None:
    """Load and run the command line."""
    try:
        from dlguide.cli import main as run

        run()
    except KeyboardInterrupt:
        print("\nInterrupted.", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
