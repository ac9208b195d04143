"""A learner's answer under watch: it ends in time, in its memory, and with few words.

The answer runs where the notebook runs, in the same process and thread, because it works with the
learner's own objects, a communicator among them. So nothing can be taken away from it by force: a
thread beside it looks, and a signal makes Python stop it between two of its own steps. An answer
that is well gets no signal: some libraries do not bear one while they compute (seen with TensorFlow
and Horovod on ranks: a damaged heap). A single call of C code that never comes back, such as
`max(itertools.count())`, cannot be stopped from inside the process; if that call lets other threads
run, they tell the learner to restart the kernel.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import FrameType
from typing import Any

from dlguide.exercises import exits, leftovers, memory, output
from dlguide.exercises.frames import Stopped, importing, learners, place, within
from dlguide.exercises.pulse import Pulse

LIMIT_S = 5.0  # an answer that has had so long is taken for endless; most need less than 0.1
LOOK_S = 0.2  # between two looks
PATIENCE_S = 1.0  # for the answer to react before stronger means are taken
SLOWEST = 5  # the clock of an answer that gets no core goes so many times slower at most
STEP_S = 3 * LOOK_S  # a rank whose step takes longer than this has waited for other ranks
_WATCH: ContextVar[Watch | None] = ContextVar("watch", default=None)


def limit(seconds: float) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a check more or less time than others; for checks that train or start processes.

    Args:
        seconds: how long answer and check may take together, ranks not counted (s).

    Returns:
        Callable: a decorator for `exercise_NN_k`.
    """

    def decorate(check: Callable[..., Any]) -> Callable[..., Any]:
        check.limit_s = seconds
        return check

    return decorate


@contextmanager
def at_rest() -> Iterator[None]:
    """Stop the clock and lift the limit of memory while something else has limits of its own.

    What is started meanwhile inherits no limit of memory. Outside of a watch nothing happens.

    Yields:
        None: while the watch rests.
    """
    watch = _WATCH.get()
    if watch is None:
        yield
        return
    watch.resting = True
    watch.memory.lift()
    try:
        yield
    finally:
        watch.memory.limit()
        watch.looked_s, watch.waited_s = time.monotonic(), _waited_s(watch.thread)
        watch.resting = False


class Watch:
    """The watch over one call.

    Args:
        limit_s: how long the call may take (s).
        rank: whether this process is one of several ranks. What it waits for the others, in one
            call of C code, is then not counted: the cluster sees for itself who waits for ever.
    """

    def __init__(self, limit_s: float = LIMIT_S, rank: bool = False) -> None:
        self.limit_s, self.rank, self.reason, self.place = limit_s, rank, "", ""
        self.memory = memory.Limit()
        self.thread = threading.current_thread()
        self.main = self.thread is threading.main_thread()
        self.pulse = Pulse() if rank and self.main else None
        self.ended, self.times, self.stopped_s = threading.Event(), 0, 0.0
        self.resting, self.had_s = False, 0.0

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function under this watch.

        Args:
            function: the check.
            args: its arguments.

        Returns:
            Any: what it returned.

        Raises:
            Stopped: when it was stopped, or left by `sys.exit`; the text says why.
        """
        self.before = leftovers.Before()
        token, earlier = _WATCH.set(self), sys.gettrace()
        try:
            with ExitStack() as stack:
                self.stream = stack.enter_context(output.limited(self._excess))
                stack.enter_context(exits.closed())
                stack.enter_context(self.memory)
                stack.callback(self._tidy)  # while what is left still cannot flood the screen
                self.begin_s, self.waited_s = time.monotonic(), _waited_s(self.thread)
                self.looked_s = self.begin_s
                if self.main:
                    # C code that lets no thread look still hears the timer. A rank may be this
                    # late because it waits for the others.
                    late_s = self.limit_s * (SLOWEST if self.rank else 1)
                    stack.enter_context(_ticking(self._tick, late_s))
                stack.enter_context(self._aided())  # it signals, so it ends before who listens
                return _enter(function, args)
        except SystemExit as left:
            why = f"called sys.exit({'' if left.code is None else repr(left.code)[:80]})"
            raise Stopped(f"{why}: give the result back with `return`") from None
        except KeyboardInterrupt as stopped:
            if self.reason or isinstance(stopped, Stopped):
                raise Stopped(self._told(str(stopped))) from None
            raise  # the learner's own Ctrl-C
        except MemoryError:
            raise Stopped(self._told(self.memory.told())) from None
        finally:
            self.ended.set()
            sys.settrace(earlier)
            _WATCH.reset(token)

    def _tidy(self) -> None:
        """End what a stopped answer has left behind."""
        left = self.before.end() if self.reason else ""
        if left:
            self.stream.write(f"{left} Restart the kernel to end it.\n")

    def _told(self, said: str) -> str:
        reason = self.reason or said
        return f"{reason} ({self.place})" if self.place else reason

    def _excess(self) -> None:
        """Note that too much is printed, and stop whoever does so in the watched thread."""
        self.reason = self.reason or f"printed more than {output.MOST_CHARACTERS} characters"
        frames = within(sys._getframe(1), _enter.__code__)
        if threading.current_thread() is self.thread and not self.ended.is_set() and frames:
            self._raise(frames)

    def _why(self) -> str:
        """Look at time and memory; the words for what is too much, or nothing."""
        now_s, waited_s = time.monotonic(), _waited_s(self.thread)
        step_s, self.looked_s = now_s - self.looked_s, now_s
        step_s = min(step_s, STEP_S) if self.rank else step_s
        self.had_s += max(step_s - (waited_s - self.waited_s), step_s / SLOWEST)
        self.waited_s = waited_s
        if self.had_s > self.limit_s:
            return f"did not end within {self.limit_s:g} s"
        return self.memory.told() if self.memory.exceeded() else ""

    def _tick(self, _number: int, frame: FrameType | None) -> None:
        """Look, in the watched thread between two of its steps, and stop it if need be."""
        frames = within(frame, _enter.__code__)
        if not frames or self.ended.is_set():
            return
        if self.resting or importing(frames):  # no work of the answer; no half module must stay
            self.looked_s, self.waited_s = time.monotonic(), _waited_s(self.thread)
            return
        self.reason = self.reason or self._why()
        if self.reason:
            self._raise(frames)

    def _raise(self, frames: list[FrameType]) -> None:
        self.place = self.place or place(frames)
        self.times += 1
        self.stopped_s = self.stopped_s or time.monotonic()
        if time.monotonic() - self.stopped_s > PATIENCE_S:
            # Its own `except:` has caught the others: now each further line of it raises.
            for frame in learners(frames):
                frame.f_trace = self._trace
            sys.settrace(self._trace)
        raise Stopped(self.reason)

    def _trace(self, frame: FrameType, event: str, _argument: Any) -> Any:
        if not learners([frame]) or self.ended.is_set():
            return None
        if event == "line":  # "exception" comes while still inside the `try`
            raise Stopped(self.reason)
        return self._trace

    @contextmanager
    def _aided(self) -> Iterator[None]:
        """Have a thread of its own beside the watched one, from here to the end."""
        aid = threading.Thread(target=self._aid, name="dlguide-exercise", daemon=True)
        aid.start()
        try:
            yield
        finally:
            self.ended.set()
            aid.join()
            if self.pulse:
                self.pulse.end()
            leftovers.raise_in(self.thread, None)  # what was asked for and has not come yet

    def _aid(self) -> None:
        """Help from a thread of its own where the watched one cannot look by itself."""
        begin_s, told = time.monotonic(), False
        while not self.ended.wait(LOOK_S):
            self._look_from_outside()
            if self.resting or self.rank:
                begin_s = time.monotonic()
            late_s = time.monotonic() - begin_s - self.limit_s
            if late_s > PATIENCE_S:
                self.before.end_processes()  # C code may wait for one of them
                self._stop_recursion()
            if late_s > 2 * PATIENCE_S and self.main and not self.times and not told:
                told = True
                self.stream.write(
                    "Your answer does not end, and stands in a call that Python cannot stop. "
                    "Restart the kernel.\n"
                )

    def _stop_recursion(self) -> None:
        """Stop an answer so deep in its own calls that there is no room for a look from inside."""
        frames = within(sys._current_frames().get(self.thread.ident), _enter.__code__)
        if len(frames) > sys.getrecursionlimit() // 2 and not self.ended.is_set():
            self.reason = self.reason or self._why()
            self.place = self.place or place(frames)
            if self.reason:
                leftovers.raise_in(self.thread, Stopped)

    def _look_from_outside(self) -> None:
        """Look from the thread beside the watched one, and have it stopped if need be."""
        frames = within(sys._current_frames().get(self.thread.ident), _enter.__code__)
        if not frames or self.resting or importing(frames):
            self.looked_s, self.waited_s = time.monotonic(), _waited_s(self.thread)
            return
        if self.pulse and not self.pulse.felt() and not self.reason:
            return  # it may wait for other ranks
        self.reason = self.reason or self._why()
        if self.reason and not self.ended.is_set():
            self.place = self.place or place(frames)
            if self.main:
                signal.pthread_kill(self.thread.ident, signal.SIGALRM)  # also ends its waiting
            else:
                leftovers.raise_in(self.thread, Stopped)


def _enter(function: Callable[..., Any], args: tuple) -> Any:
    """Call the function; only what is inside of this call is ever stopped."""
    return function(*args)


@contextmanager
def _ticking(tick: Callable[[int, FrameType | None], None], first_s: float) -> Iterator[None]:
    """Call a function in the main thread at the signal, from a time on again and again.

    A timer set before goes on after it.
    """
    earlier = signal.signal(signal.SIGALRM, tick)
    begin_s = time.monotonic()
    left_s, every_s = signal.setitimer(signal.ITIMER_REAL, first_s, LOOK_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, earlier)
        if left_s:
            rest_s = max(left_s - (time.monotonic() - begin_s), 1e-3)
            signal.setitimer(signal.ITIMER_REAL, rest_s, every_s)


def _waited_s(thread: threading.Thread) -> float:
    """Return how long a thread has waited for a core since it began; 0 where nobody counts (s)."""
    try:
        words = Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text().split()
    except OSError:
        return 0.0
    return int(words[1]) / 1e9 if len(words) == 3 else 0.0
