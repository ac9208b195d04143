"""`dlguide doctor`: what works on this machine, and the command that fixes what does not."""

from __future__ import annotations

from typing import Annotated

import typer

from dlguide.cli.app import app


@app.command()
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check what training on ranks needs; below each fault stands the command that fixes it."""
    from dlguide import doctor

    findings = doctor.examine()
    print(doctor.report(findings, as_json=as_json))
    if any(finding.ok is False for finding in findings):
        raise typer.Exit(1)
