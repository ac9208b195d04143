"""Slides: chosen by one rule, with nothing of the lesson lost; decks only from a run that counts.

Tests dlguide.slides.stanzas, dlguide.slides.choosing, dlguide.slides.lesson, dlguide.slides.page,
dlguide.slides.runs, dlguide.slides.decks, dlguide.slides.browser and dlguide.cli.slides.
"""

from __future__ import annotations

import re
import sys

import nbformat
import pytest

from dlguide import cli
from dlguide.checks import MissingComponentError
from dlguide.slides import browser, choosing, decks, lesson, page, runs, stanzas

PICTURE = {"text/html": '<img alt="a curve" src="data:image/png;base64,AAAA"/>', "text/plain": "F"}
STAMP = "vm: a processor\n  this process may use 2 cores\n  and more\n"


def prose(text):
    return nbformat.v4.new_markdown_cell(text)


def code(source, text="", data=None, tags=()):
    cell = nbformat.v4.new_code_cell(source, execution_count=1)
    if text:
        cell.outputs.append(nbformat.v4.new_output("stream", name="stdout", text=text))
    if data:
        cell.outputs.append(nbformat.v4.new_output("display_data", data=data))
    cell.metadata["execution"] = {"iopub.execute_input": "2026-11-22T05:00:00.000000Z"}
    if tags:
        cell.metadata["tags"] = list(tags)
    return cell


def executed():
    return nbformat.v4.new_notebook(cells=[
        prose("# 20 A *trial*\n\nWhat it is about.\n\n**Needs** 00. **Before** 01."),
        prose("## Goals\n\n- you can a\n- you can b"),
        code("print(machine.describe().summary())", STAMP),
        prose("## 1 Curves\n\nWhy curves. **Predict:** up or down?"),
        code("draw()", "loss 0.5\n", PICTURE),
        prose("It falls. Always. **Predict** the next one:"),
        code("print('between')", "between\n"),
        prose("## 2 Numbers\n\nA cost is\n\n$$t = a + n b$$\n\nand so on."),
        code("x = 1"),
        prose("Nothing was printed. **Predict** `x + 1`!"),
        code("x + 1", "2\n"),
        prose("Two.\n\n### A table\n\nLook here:\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\nDone."),
        prose("### Only words\n\nFirst thought. More of it.\n\nSecond thought."),
        prose("## Summary"),
        code("print('sum')", "- one point,\n  on two lines\n- another\n"),
        prose("## Exercises\n\nReplace it.\n\n### 20-1 Try ★\n\nHow?"),
        code("exercises.check('20-1', ...)", "… not answered yet.\n"),
    ])  # fmt: skip


def plain(html):
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html)).strip()


@pytest.fixture
def found():
    return lesson.slides(executed(), "the run of today")


def test_slides_come_in_the_order_of_the_lesson(found):
    assert [slide.kind for slide in found] == [
        *("title", "goals", "figure", "formula", "numbers", "table", "points", "summary"),
        "exercises",
    ]
    assert [plain(slide.headline) for slide in found[2:7]] == [
        "1 Curves", "2 Numbers", "2 Numbers", "A table", "Only words",
    ]  # fmt: skip
    assert [plain(slide.over) for slide in found[4:7]] == ["", "2 Numbers", "2 Numbers"]


def test_a_figure_stands_between_its_question_and_its_finding(found):
    figure = found[2]
    assert plain(figure.question) == "Predict: up or down?"
    assert 'alt="a curve"' in figure.body
    assert "loss 0.5" in figure.body
    assert plain(figure.finding) == "It falls. Always."


def test_numbers_are_those_of_the_cell_that_asked(found):
    numbers = found[4]
    assert plain(numbers.body) == "x + 1 2"
    assert plain(numbers.finding) == "Two."
    assert "x = 1" in plain(numbers.notes)


def test_title_says_the_run_and_summary_joins_its_lines(found):
    assert "the run of today" in found[0].body
    assert "What it is about." in found[0].body
    assert found[7].body == "<ul><li>one point, on two lines</li><li>another</li></ul>"
    assert "★" in found[8].body


def test_every_word_of_the_lesson_is_in_the_notes_of_one_slide(found):
    said = plain(re.sub(r"</?span[^>]*>", "", " ".join(slide.notes for slide in found)))
    for words in (
        *("What it is about", "you can b", "Why curves", "draw()", "It falls", "('between')"),
        *("A cost is", "and so on", "Nothing was printed", "Look here", "Done", "First thought"),
        *("Second thought", "print('sum')", "Replace it", "How?"),
    ):
        assert said.count(words) == 1, words


def test_tags_overrule_the_rule():
    notebook = executed()
    notebook.cells[4].metadata["tags"] = ["no-slide"]
    kinds = [each.kind for each in lesson.slides(notebook, "")]
    assert kinds[2] == "numbers"
    notebook = executed()
    notebook.cells[6].metadata["tags"] = ["slide"]
    assert [each.kind for each in lesson.slides(notebook, "")][2:4] == ["figure", "numbers"]


def test_a_group_without_anything_has_no_slide():
    assert choosing.section(stanzas.Group("Empty", "Empty")) == []


def test_long_output_is_not_put_on_a_slide():
    group = stanzas.groups(nbformat.v4.new_notebook(cells=[
        prose("## Long\n\nSome words."), code("f()", "line\n" * 40), prose("Seen."),
    ]))[0]  # fmt: skip
    (slide,) = choosing.section(group)
    assert slide.kind == "points"
    assert plain(slide.notes).count("line") == 40


@pytest.mark.parametrize(
    ("rows", "words", "kind"),
    [(10, "1", "table"), (11, "1", "points"), (9, "x" * 190, "table"), (9, "x" * 191, "points")],
)
def test_a_long_table_of_a_cell_is_not_put_on_a_slide(rows, words, kind):
    row = f"<tr><td>{words}</td></tr>"
    table = f"<table>{row * (rows + 1)}</table>"  # and the heads of its columns
    group = stanzas.groups(nbformat.v4.new_notebook(cells=[
        prose("## Long\n\nSome words."), code("rows", "", {"text/html": table}), prose("Seen."),
    ]))[0]  # fmt: skip
    assert [slide.kind for slide in choosing.section(group)] == [kind]


# --- the page ----------------------------------------------------------------------------------


def test_a_deck_asks_for_nothing_outside_itself(found):
    text = page.deck("A part", [("20 A trial", found)], ["Left out: nothing"])
    assert text.count('<section class="slide') == 1 + len(found)
    assert "default-src 'none'" in text
    outside = re.findall(r"""(?:src|href)=["'](?!data:|#)[^"']*|@import|url\(|https?://""", text)
    assert outside == []
    assert 'href="#2"' in text


def test_answers_come_with_the_next_key_only_where_something_is_asked(found):
    text = page.deck("A part", [("20", found)], [])
    pages = text.split("<section ")[1:]
    asked = ['class="question"' in each for each in pages]
    assert any(asked)
    assert [" later" in each.split("<aside")[0] for each in pages] == asked


# --- runs and decks ----------------------------------------------------------------------------


@pytest.fixture
def course(tmp_path):
    """Folders (notebooks, runs) with one notebook, and the run of it."""
    folder, ran = tmp_path / "notebooks", tmp_path / "ran"
    folder.mkdir()
    ran.mkdir()
    notebook = executed()
    nbformat.write(notebook, ran / "20_trial.ipynb")
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.metadata = [], {}
    nbformat.write(notebook, folder / "20_trial.ipynb")
    return folder, ran


def test_a_run_tells_when_and_where(course):
    folder, ran = course
    run = runs.read(folder / "20_trial.ipynb", ran)
    assert "22 November 2026" in str(run)
    assert run.machine == "vm: a processor; this process may use 2 cores"


def change(ran, act):
    notebook = nbformat.read(ran / "20_trial.ipynb", 4)
    act(notebook.cells)
    nbformat.write(notebook, ran / "20_trial.ipynb")


def fail(cells):
    error = nbformat.v4.new_output("error", ename="KeyError", evalue="'x'", traceback=[])
    cells[4].outputs.append(error)


@pytest.mark.parametrize(
    ("act", "why"),
    [
        (lambda cells: cells[4].update(source="other()"), "has changed since it was executed"),
        (lambda cells: cells.pop(), "has changed since it was executed"),
        (fail, "failed when it was executed (KeyError: 'x')"),
        (lambda cells: cells[-1].update(metadata={}), "was not executed to its end"),
    ],
)
def test_a_run_that_is_not_the_notebooks_is_not_shown(course, tmp_path, act, why):
    folder, ran = course
    change(ran, act)
    path = folder / "20_trial.ipynb"
    assert runs.lack(path, ran) == why
    assert decks.stale(["parallelism"], folder, ran) == {path: why}
    with pytest.raises(ValueError, match=r"that can be shown, got .20_trial, which"):
        decks.write("parallelism", tmp_path / "slides", folder, ran)
    assert not list((tmp_path / "slides").glob("*.html"))


def test_a_notebook_that_never_ran_or_is_damaged_is_told(course, tmp_path):
    folder, ran = course
    path = folder / "20_trial.ipynb"
    assert runs.lack(path, tmp_path / "none") == "has not been executed on this machine"
    (ran / path.name).write_text("{")
    with pytest.raises(ValueError, match="must be a notebook, got"):
        runs.lack(path, ran)


def test_a_deck_is_written_and_told(course, tmp_path):
    folder, ran = course
    assert decks.stale(["parallelism"], folder, ran) == {}
    deck = decks.write("parallelism", tmp_path / "slides", folder, ran)
    assert deck.lessons == ("20_trial",)
    assert str(deck).endswith("parallelism.html: 10 slides of 1 notebooks")
    text = deck.path.read_text()
    assert text.count('<section class="slide') == deck.slides == 10
    assert "20 A trial" in text
    assert [path.name for path in deck.path.parent.iterdir()] == ["parallelism.html"]


def test_a_notebook_that_cannot_run_here_is_left_out_and_named(course, tmp_path):
    folder, ran = course
    notebook = nbformat.read(folder / "20_trial.ipynb", 4)
    notebook.metadata["dlguide"] = {"needs": ["nowhere_at_all"]}
    nbformat.write(notebook, folder / "21_more.ipynb")
    assert decks.stale(["parallelism"], folder, ran) == {}
    deck = decks.write("parallelism", tmp_path / "slides", folder, ran)
    assert deck.lessons == ("20_trial",)
    assert "left out: 21_more (nowhere_at_all is not installed" in str(deck)
    assert "Left out: 21_more" in deck.path.read_text()


def test_parts_take_every_notebook_but_the_first_two_once():
    taken = [path for part in decks.PARTS for path in decks.lessons(part)]
    names = [path.name for path in taken]
    assert len(set(names)) == len(names)
    assert {name[0] for name in names} >= set("1234567")
    assert "00_start_here.ipynb" not in names
    assert not [path for path in taken if path.parent.name == "answers"]
    with pytest.raises(ValueError, match="Did you mean hardware"):
        decks.lessons("hardwar")


# --- the command and the browser ---------------------------------------------------------------


@pytest.fixture
def dlguide(monkeypatch, capsys, course):
    """Give a function that runs `dlguide slides` on the trial course: (what it says, error)."""
    folder, ran = course
    monkeypatch.setattr(decks.notebooks, "KEPT", ran)
    find = decks.notebooks.find
    monkeypatch.setattr(decks.notebooks, "find", lambda where=None: find(where or folder))

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["dlguide", "slides", *map(str, words)])
        with pytest.raises(SystemExit) as left:
            cli.main()
        error = left.value.code if isinstance(left.value.code, str) else ""
        return capsys.readouterr().out, error

    return run


def test_command_writes_the_decks_there_are(dlguide, tmp_path):
    said, error = dlguide("--output", tmp_path / "out", "--no-pdf")
    assert (said.splitlines()[0].split(": ")[1], error) == ("10 slides of 1 notebooks", "")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["parallelism.html"]


def test_command_says_what_waits_and_how_to_go_on(dlguide, tmp_path, course):
    change(course[1], lambda cells: cells.pop())
    said, error = dlguide("parallelism", "--output", tmp_path / "out", "--no-pdf")
    assert said == "20_trial has changed since it was executed.\n"
    assert "there are no slides of parallelism. `dlguide slides --execute`" in error
    assert dlguide("musik")[1].startswith("dlguide: ValueError: `part` must be one of algorithms,")
    assert "notebooks are there, got 'usecases'" in dlguide("usecases")[1]


def test_command_executes_what_waits(dlguide, tmp_path, course):
    folder, ran = course
    notebook = nbformat.v4.new_notebook(cells=[prose("# 20 Short"), code("print(6 * 7)")])
    nbformat.write(notebook, folder / "20_trial.ipynb")
    said, error = dlguide("--execute", "--output", tmp_path / "out", "--no-pdf")
    assert error == ""
    assert said.startswith("ok ")
    assert nbformat.read(ran / "20_trial.ipynb", 4).cells[1].outputs[0].text == "42\n"


def test_without_a_browser_there_is_no_pdf_and_it_is_said(dlguide, monkeypatch, tmp_path):
    monkeypatch.delenv("DLGUIDE_BROWSER", raising=False)
    monkeypatch.setattr(browser.shutil, "which", lambda name: None)
    said, error = dlguide("--output", tmp_path / "out")
    assert error == ""
    assert "No PDF: no Chromium was found. `sudo apt-get install chromium`" in said
    with pytest.raises(MissingComponentError, match=r"found to print a\.html"):
        browser.print_pdf("a.html", tmp_path / "a.pdf")


def test_a_browser_that_fails_is_told_with_its_last_words(monkeypatch, tmp_path):
    program = tmp_path / "chrome"
    program.write_text("#!/bin/sh\necho no screen >&2\nexit 3\n")
    program.chmod(0o755)
    monkeypatch.setenv("DLGUIDE_BROWSER", str(program))
    (tmp_path / "a.pdf").write_text("the old one")
    with pytest.raises(RuntimeError, match=r"ended with status 3 and wrote no PDF:\nno screen"):
        browser.print_pdf(tmp_path / "a.html", tmp_path / "a.pdf")
    assert (tmp_path / "a.pdf").read_text() == "the old one"
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []
