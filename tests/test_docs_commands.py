"""docs/commands.md is what the commands' help texts say."""

from __future__ import annotations

import importlib.util
from difflib import unified_diff
from pathlib import Path

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
