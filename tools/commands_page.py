"""Write docs/commands.md from the help texts of the commands: `python tools/commands_page.py`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer import Typer
from typer.main import get_command

from dlguide import cli

PAGE = Path(__file__).resolve().parents[1] / "docs" / "commands.md"
HEAD = """# Commands

This page is the contract of what the commands do: a command, an option or a default changes only
together with this page. It is generated from the commands' own help texts by
`python tools/commands_page.py`.

The commands are in `.venv/bin`; `dlguide COMMAND --help` prints the same in a terminal. Commands
marked *course* come with the course (`dlcourse`), all others with the library (`dlguide`).

| command | what it does |
|---|---|"""
TYPES = {str: "text", int: "integer", float: "number", Path: "path", bool: "flag"}


def everything() -> Typer:
    """The command line with the course's commands."""
    if not set(cli.COURSE) <= _names():
        cli.add_commands()
    missing = set(cli.COURSE) - _names()
    if missing:
        raise RuntimeError(f"the page needs the course's commands, without {sorted(missing)}")
    return cli.app


def _names() -> set[str | None]:
    return {command.name for command in cli.app.registered_commands}


def page(app: Typer) -> str:
    """The whole page, commands in alphabetical order."""
    commands = list(_walk("dlguide", get_command(app)))
    contents = [
        f"| [`{name}`](#{name.replace(' ', '-')}){_mark(command)} "
        f"| {_text(command.help).split('. ')[0].rstrip('.')} |"
        for name, command in commands
    ]
    return "\n".join([HEAD, *contents, "", *(_section(*each) for each in commands)])


def _walk(name: str, group: Any) -> Iterator[tuple[str, Any]]:
    """The commands below a group, each with its full name."""
    for word, command in sorted(group.commands.items()):
        if not command.hidden:
            yield f"{name} {word}", command
            if hasattr(command, "commands"):
                yield from _walk(f"{name} {word}", command)


def _section(name: str, command: Any) -> str:
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    options = [each for each in command.params if each not in arguments and not each.hidden]
    usage = [name, *["COMMAND"][: hasattr(command, "commands")], *["[OPTIONS]"][: bool(options)]]
    for each in arguments:
        word = each.name.upper() + ("..." if each.nargs == -1 else "")
        usage.append(word if each.required else f"[{word}]")
    usage += ["[ARGUMENTS...]"][: command.context_settings.get("allow_extra_args", False)]
    lines = [f"## {name}", "", _text(command.help) + _mark(command), ""]
    lines += ["```text", " ".join(usage), "```", ""]
    if arguments or options:
        lines += ["| | type | default | |", "|---|---|---|---|"]
        lines += [*map(_row, [*arguments, *options]), ""]
    return "\n".join(lines)


def _row(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        names = parameter.name.upper()
    else:
        names = "`, `".join(parameter.opts + parameter.secondary_opts)
    kind, default = parameter.type_descriptor.annotation, parameter.default
    many = getattr(kind, "__args__", ())
    words = f"{TYPES[many[0]]}, repeated" if many else TYPES[kind]
    if parameter.required:
        shown = "*required*"
    elif kind is bool and default is not None:
        shown = "on" if default else "off"
    else:
        shown = "" if default in (None, "", []) else f"`{default}`"
    return f"| `{names}` | {words} | {shown} | {_text(parameter.help)} |"


def _mark(command: Any) -> str:
    """A sign behind what the course adds; a group belongs where its first command does."""
    known = command.callback or next(iter(command.commands.values())).callback
    return " *(course)*" if known.__module__.startswith("dlcourse") else ""


def _text(help_text: str | None) -> str:
    return " ".join((help_text or "").split()).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(everything()), encoding="utf-8")
