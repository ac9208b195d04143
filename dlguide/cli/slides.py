"""The command `dlguide slides`: a deck for each part of the course."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dlguide.checks import require, require_known
from dlguide.cli.app import app


@app.command()
def slides(
    part: Annotated[str | None, typer.Argument(help="A part; all that can be made.")] = None,
    execute: Annotated[
        bool,
        typer.Option("--execute", help="First execute notebooks without a run of today's text."),
    ] = False,
    output: Annotated[Path, typer.Option(help="Folder for the decks.")] = Path("slides"),
    pdf: Annotated[
        bool | None, typer.Option("--pdf/--no-pdf", help="Print too; default: where Chromium is.")
    ] = None,
) -> None:
    """Write slides from the notebooks' last run: HTML that needs no network, and PDF."""
    from dlguide.folders import require_writable
    from dlguide.slides import browser, decks, runs

    parts = [require_known(part, decks.PARTS, "part")] if part else list(decks.PARTS)
    there = [each for each in parts if decks.lessons(each)]
    require(bool(there), "part", "be one whose notebooks are there", part)
    require_writable(output, "output", decks.ROOM)
    waiting = decks.stale(there)
    if execute:
        for path in waiting:
            print(runs.execute(path), flush=True)
        waiting = decks.stale(there)
    for path, why in waiting.items():
        print(f"{path.stem} {why}.")
    wanting = {each for each in there if set(decks.lessons(each)) & set(waiting)}
    printing = bool(browser.find()) if pdf is None else pdf
    for each in there:
        if each in wanting:
            continue
        deck = decks.write(each, output)
        print(deck, flush=True)
        if printing:
            browser.print_pdf(deck.path, deck.path.with_suffix(".pdf"))
            print(deck.path.with_suffix(".pdf"), flush=True)
    if pdf is None and not printing and len(wanting) < len(there):
        print(f"No PDF: no Chromium was found. {browser.HOW.capitalize()}.")
    if wanting:
        then = "Mend these notebooks." if execute else "`dlguide slides --execute` executes them."
        raise RuntimeError(f"there are no slides of {', '.join(sorted(wanting))}. {then}")
