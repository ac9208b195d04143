"""What ranks print and how far they are appears in the launcher, whole and once."""

from __future__ import annotations

import json

from dlguide.cluster.show import Display, progress_text


class Call:
    """What Display needs of an AsyncResult."""

    def __init__(self):
        self.metadata = {"stdout": "", "stderr": "", "outputs": [], "execute_result": None}
        self.done = False

    def ready(self):
        return self.done

    def wait_for_output(self, timeout):
        self.metadata["stdout"] += "late\n"


def test_lines_appear_whole_behind_their_rank_and_once(tmp_path, capsys):
    calls = {0: Call(), 1: Call()}
    display = Display(tmp_path, calls)
    calls[0].metadata["stdout"] = "one\ntw"
    display.show()
    assert capsys.readouterr().out == "[0] one\n"
    display.show()
    calls[0].metadata["stdout"] += "o\n"
    calls[1].metadata["execute_result"] = {"data": {"text/plain": "42"}}
    calls[1].done = True
    display.show()
    assert capsys.readouterr().out == "[0] two\n"
    display.close()
    assert capsys.readouterr().out == "[1] late\n[1] 42\n"


def test_progress_is_drawn_over_itself_in_a_terminal(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    display = Display(tmp_path, {})
    numbers = {"epoch": 1, "epochs": 1, "step": 1, "steps": 4, "images_per_s": 10.0, "loss": 2.0}
    (tmp_path / "progress-rank0.json").write_text(json.dumps(numbers))
    display.show()
    display.close()
    out = capsys.readouterr().out
    assert out.startswith("\repoch 1 of 1 [#####...............] step 1 of 4, 10 images/s loss 2.0")
    assert out.endswith("\n")


def test_progress_of_an_earlier_run_is_not_shown(tmp_path, capsys):
    (tmp_path / "progress-rank0.json").write_text('{"epoch": 9, "epochs": 9}')
    display = Display(tmp_path, {})
    display.started += 10
    display.close()
    assert capsys.readouterr().out == ""
    assert progress_text({}) == ""
