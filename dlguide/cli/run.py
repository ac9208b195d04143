"""`dlguide run`: a script of one's own on MPI ranks of this machine."""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import Annotated

import typer

from dlguide.cli.app import OversubscribeOption, app
from dlguide.errors import require, require_count
from dlguide.files import require_writable


# What stands behind the script belongs to the script, options too.
@app.command(context_settings={"allow_extra_args": True, "allow_interspersed_args": False})
def run(
    context: typer.Context,
    script: Annotated[str, typer.Argument(help="A Python script; its arguments follow it.")],
    ranks: Annotated[int, typer.Option("-n", "--ranks", "--np", help="Number of MPI ranks.")] = 2,
    oversubscribe: OversubscribeOption = False,
    transparent: Annotated[
        bool, typer.Option(help="Make a Keras script for one process parallel, without a change.")
    ] = False,
    report: Annotated[
        Path | None, typer.Option(help="FILE.json for what --transparent has changed.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Of --transparent, where the script sets none.")
    ] = None,
) -> None:
    """Run a script on MPI ranks; the exit status is 0 only when every rank ended well.

    Every line that a rank prints appears at once, with the rank in front: `[1] epoch 3`.
    With `--transparent` the ranks share each batch of an unmodified script, which prints and
    saves as one process would.
    """
    from dlguide.cluster.script import run_script

    must = "be given with `--transparent` only"
    require(transparent or report is None, "report", must, str(report))
    require(transparent or seed is None, "seed", must, seed)
    if not transparent:
        run_script(script, context.args, ranks, oversubscribe)
        return
    if report is not None:
        require_writable(report.absolute().parent, "report")
    seed = secrets.randbelow(2**31) if seed is None else require_count(seed, "seed", least=0)
    changed = run_script(script, context.args, ranks, oversubscribe, seed)
    typer.echo(f"\n{changed['text']}", err=True)
    if report is not None:
        report.write_text(json.dumps({k: v for k, v in changed.items() if k != "text"}, indent=1))
