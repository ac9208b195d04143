"""Ranks that stay between the tests of one process: TensorFlow is loaded once, not for each test.

`python -m mpi4py kept_ranks.py FOLDER` is one rank. It runs the scripts whose paths come through
its pipe, one after the other, each with a module `__main__` of its own. `Ranks` starts and feeds
such processes.
"""

from __future__ import annotations

import contextlib
import gc
import io
import os
import runpy
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path


class Ranks:
    """Running ranks.

    Args:
        command: how they are started, up to the name of the program.
        ranks: number of ranks (count).
        env: their environment.
    """

    def __init__(self, command: Sequence[object], ranks: int, env: Mapping[str, str]) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="dlguide-test-ranks-")
        place = Path(self.folder.name)
        self.jobs, self.ranks = 0, range(ranks)
        self.pipes = []
        for rank in self.ranks:
            os.mkfifo(place / f"{rank}.pipe")
            # open for both, it waits for nobody; when this process ends, so do the ranks
            self.pipes.append(os.open(place / f"{rank}.pipe", os.O_RDWR))
        self.output = (place / "output").open("w+b")
        self.process = subprocess.Popen(
            [str(word) for word in (*command, __file__, place)],
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=self.output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def run(self, script: Path, timeout_s: float) -> str:
        """Run a script on all ranks; return what went wrong, nothing when all went well."""
        self.jobs += 1
        self.output.seek(0, io.SEEK_END)
        begin = self.output.tell()
        for pipe in self.pipes:
            os.write(pipe, f"{script}\n".encode())
        ends = [Path(self.folder.name) / f"{rank}.{self.jobs}" for rank in self.ranks]
        deadline = time.monotonic() + timeout_s
        why = ""
        while not why and not all(end.exists() for end in ends):
            if self.process.poll() is not None:
                why = f"exit status {self.process.returncode}"
            elif time.monotonic() > deadline:
                why = f"did not end within {timeout_s:g} s"
            elif any(end.exists() and end.read_text() for end in ends):
                why = "a rank failed"  # the others may wait for it for ever
            time.sleep(0.02)
        why = why or "\n".join(filter(None, (end.read_text() for end in ends)))
        if not why:
            return ""
        time.sleep(0.5)  # for the words of the others
        self.output.seek(begin)
        said = self.output.read().decode(errors="replace")
        return "\n".join([why, said, *(end.read_text() for end in ends if end.exists())])

    def close(self) -> None:
        """End the ranks."""
        for pipe in self.pipes:
            os.close(pipe)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(0.1)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, 9)
        self.process.wait()
        self.output.close()
        self.folder.cleanup()


def serve(folder: Path) -> None:
    """Be one rank: run what comes through the pipe, until nobody holds its other end."""
    import mpi4py.MPI  # noqa: F401  so that MPI is not Horovod's, which would end it with itself

    rank = os.environ["PMI_RANK"]
    env, paths = dict(os.environ), list(sys.path)
    with (folder / f"{rank}.pipe").open() as pipe:
        for number, line in enumerate(iter(pipe.readline, ""), start=1):
            failure = ""
            try:
                runpy.run_path(line.strip(), run_name="__main__")
                _as_before()
            except BaseException:  # also a rank that leaves
                failure = f"rank {rank}:\n{traceback.format_exc()}"
            os.environ.clear()
            os.environ.update(env)
            sys.path[:] = paths
            part = folder / f"{rank}.{number}.part"
            part.write_text(failure)
            part.rename(folder / f"{rank}.{number}")


def _as_before() -> None:
    """Take back what a test may have set for the whole process."""
    if "horovod.tensorflow" in sys.modules:
        sys.modules["horovod.tensorflow"].shutdown()  # its thread would talk to the others for ever
    if "keras" in sys.modules:
        import keras
        import tensorflow as tf

        keras.utils.clear_session()  # also its policy for dtypes
        keras.config.set_floatx("float32")
        keras.config.set_image_data_format("channels_last")
        tf.config.run_functions_eagerly(False)
    gc.collect()


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
