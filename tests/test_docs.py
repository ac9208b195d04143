"""Pages for researchers: examples run as printed, links and tables are true."""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path

import docs_pages
import numpy as np
import pytest

from dlguide.errors import MissingComponentError

ROOT = docs_pages.ROOT
PAGES = docs_pages.pages()
ALL = sorted(docs_pages.DOCS.rglob("*.md"))


def of(page):
    return page.stem


@pytest.mark.parametrize("page", PAGES, ids=of)
def test_example_prints_what_the_page_says(page, tmp_path):
    seen = 0
    for block, printed, errors in docs_pages.run(page, tmp_path):
        difference = docs_pages.differs(block.text, printed)
        assert not difference, f"line {block.line}: {difference}\n{printed}\n{errors[-2000:]}"
        seen += 1
    assert seen, "no command's output is shown"


@pytest.mark.parametrize("page", PAGES, ids=of)
def test_python_of_a_page_compiles_and_imports_what_exists(page):
    python = [block for block in docs_pages.blocks(page) if block.language == "python"]
    assert python
    for block in python:
        for node in ast.walk(ast.parse(block.text)):
            if isinstance(node, ast.ImportFrom) and node.module.startswith("dlguide"):
                for alias in node.names:
                    assert exists(node.module, alias.name), f"{node.module}.{alias.name}"
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.name.startswith("dlguide"):
                        assert importlib.util.find_spec(alias.name), alias.name


def exists(module, name):
    """Whether a module has a name, judged by its text: importing it may load TensorFlow."""
    source = Path(importlib.util.find_spec(module).origin).read_text()
    return bool(re.search(rf"\b{name}\b", source)) or importlib.util.find_spec(f"{module}.{name}")


@pytest.mark.parametrize("page", ALL, ids=of)
def test_links_of_a_page_lead_somewhere(page):
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" not in target and not target.startswith("#"):
            assert (page.parent / target.partition("#")[0]).exists(), target


def test_contents_name_every_page():
    text = (docs_pages.DOCS / "README.md").read_text()
    named = set(re.findall(r"\]\(([^)\s]+\.md)\)", text))
    assert {str(page.relative_to(docs_pages.DOCS)) for page in PAGES} <= named


def test_commands_named_in_pages_exist():
    from typer.main import get_command

    from dlguide.cli import app

    commands = get_command(app).commands
    for page in PAGES:
        for name in re.findall(r"`dlguide ([a-z-]+)", page.read_text()):
            assert name in commands, f"{page.name}: dlguide {name}"


def refusals():
    """What the pages say is refused, as far as that needs no ranks."""
    from dlguide.cluster import Cluster, batch, box
    from dlguide.data import input_pipeline
    from dlguide.machine import imagine, threads
    from dlguide.parallel import compression
    from dlguide.scaling import predict
    from dlguide.training import schedules

    two, node = imagine(1, 2), batch.Profile(cores_per_node=64, max_time="1-00:00:00")
    few = input_pipeline.ArraySource("few", np.zeros((8, 2, 2, 1), "float32"), np.zeros(8, int))
    recipe = schedules.warmup("gradual", 3.2, 5, start=0.1).then(schedules.linear(3.2, 25))
    return [
        lambda: threads.plan(two, ranks=3),
        lambda: threads.plan(two, comm_cores=2),
        lambda: threads.apply(threads.plan(imagine(2, 1024), ranks=2), rank=1),
        lambda: predict.fit({1: 100.0}),
        lambda: predict.fit([(1, 100.0), (2, 190.0), (2, 120.0)]),
        lambda: predict.fit({1: 0.0, 2: 100.0}),
        lambda: batch.read_profile(ROOT / "pyproject.toml"),
        lambda: node.require_fit(batch.Job("a.py", ranks_per_node=8, threads=16)),
        lambda: node.require_fit(batch.Job("a.py", time="2-00:00:00")),
        lambda: batch.script(
            batch.Job("a.py", stage=("data",), container="train:1"),
            batch.Profile(scheduler="kubernetes"),
        ),
        lambda: Cluster(inside=True),
        lambda: box.hosts(10_000),
        lambda: Cluster(inside="lsf"),
        lambda: batch.submit(batch.Job("a.py"), batch.Profile(), "job.sh"),
        lambda: input_pipeline.Pipeline(few, batch_per_rank=8, ranks=2),
        lambda: input_pipeline.Pipeline(few, batch_per_rank=8, cache="disk"),
        lambda: recipe.to_steps(10, epochs=90),
        lambda: schedules.warmup("gradual", 3.2, 5, start=4.0),
        lambda: schedules.warmup("gradual", 3.2, 0.1, start=0.1).to_steps(4),
        lambda: schedules.as_keras(recipe),
        lambda: compression.named("zip"),
    ]


# Provoked where they are tested: they need ranks, TensorFlow or a damaged data set.
ELSEWHERE = {
    "RanksDifferError",
    "TypeError: optimizer must be an optimizer of Keras 3",
    "ValueError: op must be Average or Sum",
    "RankError",
    "PBS_NODEFILE must be a file that names",
    "ranks must be at most 16, the cores of the job",
    "in an instance of Flux, not in a task of one",
    "RuntimeWarning: TensorFlow has started its threads already",
    "DamageError: ... record ... at byte ...",
    "images differ in size: sample ...",
    "1 rank is left, and an elastic run needs at least ... 2",
    "nothing was committed that an elastic run could go on from",
    "order must be ... to divide the rest",
    "checkpoint-... cannot be written: No space left on device",
    "without a loss scale where compression remembers errors",
}


def test_refusals_of_the_pages_come_in_these_words(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")  # without a batch system
    messages = []
    for provoke in refusals():
        try:
            provoke()
        except (ValueError, MissingComponentError) as error:
            messages.append(str(error).replace("`", ""))
    for page in PAGES:
        table = page.read_text().partition("## What it refuses")[2].partition("\n## ")[0]
        for text in re.findall(r"^\| `([^`]+)`", table, re.M):
            pattern = ".*".join(re.escape(part) for part in text.split("..."))
            found = any(re.search(pattern, message, re.S) for message in messages)
            assert found or text in ELSEWHERE, f"{page.name}: {text!r}\n" + "\n".join(messages)
