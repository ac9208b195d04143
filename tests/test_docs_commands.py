"""docs/commands.md is what the commands' help texts say."""

from __future__ import annotations

import importlib.util
from difflib import unified_diff
from pathlib import Path

import typer

ROOT = Path(__file__).resolve().parents[1]
SPEC = importlib.util.spec_from_file_location("commands_page", ROOT / "tools" / "commands_page.py")
commands_page = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(commands_page)


def test_page_is_the_contract_of_the_commands(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    committed = commands_page.PAGE.read_text()
    generated = commands_page.page(commands_page.everything())
    changed = "\n".join(unified_diff(committed.splitlines(), generated.splitlines(), lineterm=""))
    assert committed == generated, f"run `python tools/commands_page.py`\n{changed}"


def trial():
    """A small command line as the page shows it."""
    app = typer.Typer()

    @app.command()
    def draw(file: Path, names: list[str] = [], level: int = 1, fast: bool = False):  # noqa: B006
        """Draw a file | or two. More words."""

    @app.command(hidden=True)
    def secret():
        """Nothing."""

    @app.command(context_settings={"allow_extra_args": True})
    def begin(name: str = typer.Option(None, "--name", "-n", help="Of the file.")):
        """Begin."""

    begin.__module__ = "dlcourse.commands"
    return commands_page.page(app).partition("|---|---|\n")[2]


def test_every_argument_option_and_default_is_shown():
    assert (
        trial()
        == """\
| [`dlguide begin`](#dlguide-begin) *(course)* | Begin |
| [`dlguide draw`](#dlguide-draw) | Draw a file \\| or two |

## dlguide begin

Begin. *(course)*

```text
dlguide begin [OPTIONS] [ARGUMENTS...]
```

| | type | default | |
|---|---|---|---|
| `--name`, `-n` | text |  | Of the file. |

## dlguide draw

Draw a file \\| or two. More words.

```text
dlguide draw [OPTIONS] FILE
```

| | type | default | |
|---|---|---|---|
| `FILE` | path | *required* |  |
| `--names` | text, repeated |  |  |
| `--level` | integer | `1` |  |
| `--fast`, `--no-fast` | flag | off |  |
"""
    )
