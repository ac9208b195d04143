"""Answers that do not end, fill the memory, flood the screen or leave: the check ends all the same.

Tests dlguide.exercises.watching with frames, exits, output, memory, leftovers and pulse. The
limits are made small here; nothing is said about how long a busy machine takes to reach them.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest

from dlguide.exercises import exits, frames, leftovers, memory, output, pulse, watching
from dlguide.exercises.frames import Stopped
from dlguide.exercises.watching import Watch, at_rest

# A thread of an answer is ended by a SystemExit, which Python passes over and pytest does not.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


def whole():
    """All that an answer must leave as it was."""
    return {
        "threads": {each for each in threading.enumerate() if type(each) is not threading.Timer},
        "alarm": signal.getsignal(signal.SIGALRM),
        "timer": signal.getitimer(signal.ITIMER_REAL),
        "memory": resource.getrlimit(resource.RLIMIT_DATA),
        "streams": (sys.stdout, sys.stderr),
        "files": [os.readlink(f"/proc/self/fd/{number}") for number in (1, 2)],
        "descriptors": len(os.listdir("/proc/self/fd")),
        "trace": sys.gettrace(),
        "doors": (os._exit, os.abort, os.kill, os.killpg, os.execv, os.execve),
        "recursion": (sys.setrecursionlimit, sys.getrecursionlimit()),
    }


@pytest.fixture(autouse=True)
def nothing_stays():
    before, processes = whole(), children()
    yield
    assert whole() == before
    assert children() <= processes  # those of other files may come to their end meanwhile


def children():
    return {child.pid for child in psutil.Process().children()}


def loop():
    while True:
        pass


def generator():
    return sum(1 for _ in itertools.count())


def recursion_in_a_loop():
    while True:
        try:
            recursion_in_a_loop()
        except RecursionError:
            continue


def catches_what_stops_it():
    while True:
        try:
            time.sleep(10)
        except:  # noqa: E722  as beginners write it
            print(end="")


def catches_what_stops_its_loop():
    while True:
        try:
            loop()
        except BaseException:
            continue


def sleeps():
    time.sleep(1000)


def naps():
    while True:
        time.sleep(0.01)


def waits_for_a_lock():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def waits_for_a_process():
    subprocess.run(["sleep", "1000"])


def waits_in_c_for_a_process():
    os.system("sleep 1000")


def waits_for_its_thread():
    thread = threading.Thread(target=loop)
    thread.start()
    thread.join()


def backtracks():
    return re.match(r"(a+)+$", "a" * 60 + "b")


def large_numbers():
    return 10**10**9


ENDLESS = [
    loop,
    generator,
    recursion_in_a_loop,
    catches_what_stops_it,
    catches_what_stops_its_loop,
    sleeps,
    waits_for_a_lock,
    waits_for_a_process,
    waits_in_c_for_a_process,
    waits_for_its_thread,
    backtracks,
    large_numbers,
]


@pytest.mark.parametrize("answer", ENDLESS, ids=lambda each: each.__name__)
def test_endless_answer_is_stopped_and_its_line_is_named(answer):
    with pytest.raises(Stopped, match=r"did not end within 0\.3 s \(line \d+ of `\S+`\)"):
        Watch(0.3).run(answer)


def test_an_answer_gets_less_than_ten_seconds_before_all_means_are_used():
    late_s = watching.LIMIT_S + watching.PATIENCE_S + 2 * watching.LOOK_S
    assert late_s + leftovers.WAIT_S <= 10


def test_what_a_right_answer_returns_and_prints_comes_through(capsys):
    def answer(first, second):
        print("between")
        print("wrong", file=sys.stderr)
        return first + second

    assert Watch().run(answer, 1, 2) == 3
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("between\n", "wrong\n")


def test_an_answer_that_is_well_gets_no_signal(monkeypatch):
    ticks = []
    monkeypatch.setattr(Watch, "_tick", lambda *_: ticks.append(1))
    Watch().run(time.sleep, 1.0)
    assert ticks == []


def test_what_an_answer_raises_comes_through():
    with pytest.raises(ZeroDivisionError):
        Watch().run(lambda: 1 / 0)
    with pytest.raises(RecursionError):
        Watch().run(lambda: recursion_without_end(0))


def recursion_without_end(depth):
    return recursion_without_end(depth + 1)


def test_the_learners_own_interrupt_is_no_verdict():
    def answer():
        signal.default_int_handler(signal.SIGINT, None)

    with pytest.raises(KeyboardInterrupt) as caught:
        Watch().run(answer)
    assert not isinstance(caught.value, Stopped)


# --- what it prints ------------------------------------------------------------------------------


def prints():
    while True:
        print("x" * 1000)


def prints_and_catches():
    while True:
        try:
            print("x" * 1000)
        except:  # noqa: E722
            continue


def prints_in_a_thread():
    thread = threading.Thread(target=prints)
    thread.start()
    thread.join()


def writes_past_python():
    while True:
        os.write(1, b"x" * 1000)


def starts_what_prints():
    subprocess.run(["yes"])


def starts_what_prints_in_c():
    os.system("yes")


@pytest.mark.parametrize(
    "answer",
    [
        prints,
        prints_and_catches,
        prints_in_a_thread,
        writes_past_python,
        starts_what_prints,
        starts_what_prints_in_c,
    ],
    ids=lambda each: each.__name__,
)
def test_a_flood_of_words_is_cut_and_stopped(answer, capfd):
    with pytest.raises(Stopped, match="printed more than 100000 characters"):
        Watch(5.0).run(answer)
    assert 0 < len(capfd.readouterr().out) <= 2 * output.MOST_CHARACTERS


def test_many_words_are_not_too_many(capfd):
    Watch().run(lambda: print("x" * (output.MOST_CHARACTERS - 1)))
    assert len(capfd.readouterr().out) == output.MOST_CHARACTERS


def test_words_of_the_package_are_dropped_without_stopping_it(capfd, monkeypatch):
    monkeypatch.setattr(output, "_OWN", __file__)  # as though this file were part of it
    Watch().run(lambda: [print("x" * 50_000) for _ in range(4)])
    assert len(capfd.readouterr().out) == output.MOST_CHARACTERS


# --- what it needs -------------------------------------------------------------------------------


def grows():
    kept = []
    while True:
        kept.append(bytearray(1_000_000))


@pytest.mark.parametrize(
    "answer", [grows, lambda: [0] * 10**11, lambda: bytearray(10**12)], ids=["steps", "list", "one"]
)
def test_memory_without_end_is_refused(answer, monkeypatch):
    monkeypatch.setattr(memory, "MOST_BYTES", 50_000_000)
    monkeypatch.setattr(memory, "REFUSED_BYTES", 400_000_000)
    with pytest.raises(Stopped, match="needs more than 50 MB of memory"):
        Watch(30.0).run(answer)


def test_a_computer_with_little_memory_gives_half_of_what_is_free(monkeypatch):
    monkeypatch.setattr(memory, "_free_bytes", lambda: 60_000_000)
    with memory.Limit() as limit:
        assert limit.most_bytes == 30_000_000
        assert limit.told() == "needs more than 30 MB of memory"


# --- where it goes -------------------------------------------------------------------------------

LEAVING = {
    "sys.exit": lambda: sys.exit(3),
    "os._exit": lambda: os._exit(3),
    "os.abort": lambda: os.abort(),
    "os.kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "os.killpg": lambda: os.killpg(os.getpgrp(), signal.SIGTERM),
    "os.execv": lambda: os.execv("/bin/true", ["true"]),
    "sys.setrecursionlimit": lambda: sys.setrecursionlimit(10**9),
}


@pytest.mark.parametrize("door", LEAVING)
def test_an_answer_does_not_leave_with_the_notebook(door):
    with pytest.raises(Stopped, match=rf"called {door}\("):
        Watch().run(LEAVING[door])


def test_signals_to_others_and_a_forked_process_go_their_way():
    def answer():
        child = os.fork()
        if child == 0:
            os._exit(7)
        other = subprocess.Popen(["sleep", "1000"])
        os.kill(other.pid, signal.SIGTERM)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), other.wait()

    assert Watch(30.0).run(answer) == (7, -signal.SIGTERM)


def test_other_threads_of_the_process_may_leave(monkeypatch):
    left = []
    monkeypatch.setattr(os, "_exit", left.append)
    with exits.closed():
        timer = threading.Timer(0, os._exit, (5,))  # as a guard over tests does
        timer.start()
        timer.join()
    assert left == [5]


def test_an_answers_own_thread_may_not_leave():
    refused = []

    def leave():
        try:
            os._exit(5)
        except Stopped as stopped:
            refused.append(str(stopped))

    with exits.closed():
        thread = threading.Thread(target=leave)
        thread.start()
        thread.join()
    assert "called os._exit(5)" in refused[0]


def test_doors_are_open_again_after_an_error():
    real = os.kill

    def closed():
        with exits.closed():
            return 1 / (os.kill is real)

    with pytest.raises(ZeroDivisionError):
        closed()
    assert os.kill is real


# --- the clock -----------------------------------------------------------------------------------


def test_an_import_is_not_counted_and_not_torn(tmp_path, monkeypatch):
    (tmp_path / "slow_module_of_the_test.py").write_text("import time\ntime.sleep(1.5)\nwhole = 1")
    monkeypatch.syspath_prepend(str(tmp_path))

    def answer():
        import slow_module_of_the_test

        return slow_module_of_the_test.whole

    assert Watch(0.6).run(answer) == 1
    del sys.modules["slow_module_of_the_test"]


def test_time_without_a_core_hardly_counts(monkeypatch):
    monkeypatch.setattr(watching, "_waited_s", lambda thread: time.monotonic())
    assert Watch(0.6).run(lambda: time.sleep(1.5)) is None


def test_at_rest_nothing_is_counted_and_memory_is_free():
    before = resource.getrlimit(resource.RLIMIT_DATA)

    def answer():
        with at_rest():
            time.sleep(1.5)
            return resource.getrlimit(resource.RLIMIT_DATA)

    assert Watch(0.6).run(answer) == before


def test_without_a_watch_at_rest_does_nothing():
    with at_rest():
        assert watching._WATCH.get() is None


def test_on_a_rank_long_calls_of_c_code_count_as_waits_for_others():
    watch = Watch(1.5, rank=True)
    # 2 s at least in one call of C code
    assert watch.run(hash_for, 2.0) > 2.0
    assert watch.had_s < 1.5


def test_a_pulse_is_felt_between_steps_and_not_within_one_call():
    beat, felt = pulse.Pulse(), []

    def ask():
        for _ in range(2):
            time.sleep(0.2)
            felt.append(beat.felt())

    thread = threading.Thread(target=ask)
    thread.start()
    time.sleep(1.0)  # one call
    thread.join()
    assert felt == [True, False]
    assert beat.felt()
    beat.end()
    assert beat.question == set()


@pytest.mark.parametrize("answer", [loop, generator, naps], ids=lambda each: each.__name__)
def test_on_a_rank_steps_of_python_count(answer):
    with pytest.raises(Stopped, match=r"did not end within 0\.3 s"):
        Watch(0.3, rank=True).run(answer)


def hash_for(seconds):
    begin_s, rounds = time.monotonic(), 1_000_000
    while (past_s := time.monotonic() - begin_s) < seconds:
        hashlib.pbkdf2_hmac("sha256", b"word", b"salt", rounds)
        rounds = int(rounds * max(1.0, 1.2 * seconds / max(time.monotonic() - begin_s, 0.01)))
    return past_s


def test_an_answer_in_another_thread_is_stopped_as_well():
    found = []

    def run():
        try:
            Watch(0.3).run(loop)
        except Stopped as stopped:
            found.append(str(stopped))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert re.match(r"did not end within 0\.3 s \(line \d+ of `loop`\)", found[0])


def test_a_call_that_python_cannot_stop_is_told_while_it_lasts(capsys, monkeypatch):
    monkeypatch.setattr(watching, "PATIENCE_S", 0.1)
    watch = Watch(0.2)
    with pytest.raises(Stopped):
        watch.run(lambda: (hashlib.pbkdf2_hmac("sha256", b"a", b"b", 8_000_000), loop()))
    assert "a call that Python cannot stop" in capsys.readouterr().out


def test_a_timer_set_before_goes_on_afterwards():
    def handler(number, frame):
        raise AssertionError("rang too early")

    earlier = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 500, 7)
    try:
        Watch().run(time.sleep, 0.01)
        left_s, every_s = signal.getitimer(signal.ITIMER_REAL)
        assert 0 < left_s < 500
        assert every_s == 7
        assert signal.getsignal(signal.SIGALRM) is handler
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, earlier)


# --- what is left --------------------------------------------------------------------------------


def test_a_thread_that_cannot_be_ended_is_told(capsys):
    release = threading.Event()

    def answer():
        threading.Thread(target=lambda: release.wait(30)).start()
        loop()

    with pytest.raises(Stopped):
        Watch(0.3).run(answer)
    release.set()
    assert "still running. Restart the kernel" in capsys.readouterr().out
    for thread in threading.enumerate():
        if thread not in (threading.current_thread(), threading.main_thread()):
            thread.join(5)


def test_processes_in_a_session_of_their_own_are_a_clusters_and_stay():
    before = leftovers.Before()
    own = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    answers = subprocess.Popen(["sleep", "1000"])
    before.end_processes()
    gone = not psutil.pid_exists(answers.pid)
    there = own.poll() is None
    own.kill()
    own.wait()
    answers.wait()
    assert (gone, there) == (True, True)


# --- whose code it is ----------------------------------------------------------------------------


def test_code_of_libraries_is_not_the_learners():
    assert frames.is_learners(loop.__code__)
    assert not frames.is_learners(threading.Thread.run.__code__)
    assert not frames.is_learners(psutil.Process.children.__code__)
    assert not frames.is_learners(watching.limit.__code__)


def test_place_counts_lines_from_the_def():
    def answer():
        one = 1
        return one, sys._getframe()

    assert frames.place([answer()[1]]) == "line 3 of `answer`"
    assert frames.place([(lambda: sys._getframe())()]) == "line 1 of a lambda"
    assert frames.place([]) == ""


def test_frames_outside_of_the_watched_call_are_never_stopped():
    assert frames.within(sys._getframe(), watching._enter.__code__) == []
    inside = Watch().run(lambda: frames.within(sys._getframe(), watching._enter.__code__))
    assert len(inside) == 1


def test_the_decorator_of_a_longer_limit_leaves_the_check_as_it_is():
    @watching.limit(42.0)
    def exercise_98_1(answer):
        return answer

    assert exercise_98_1(3) == 3
    assert exercise_98_1.limit_s == 42.0
