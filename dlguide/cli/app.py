"""The command line's root, to which each module of commands adds its own."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(
    help="Deep learning at scale: set up, check, measure, tune, train, and open the notebooks. "
    "DLGUIDE_TRACEBACK=1 in the environment adds the traceback to an error.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

RanksOption = Annotated[int, typer.Option(help="Number of MPI ranks.")]
OversubscribeOption = Annotated[bool, typer.Option(help="Allow more ranks than cores.")]
