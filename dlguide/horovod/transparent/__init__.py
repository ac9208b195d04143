"""A script for one process run on ranks as one training, without a change to it.

The batch, the learning rate and the number of steps stay the script's. Each rank computes its part
of every batch, gradients are averaged by samples, and metrics are summed, so that the run is
that of one process up to rounding. What cannot be the same is named in the report; what cannot be
done safely is refused, on all ranks together.

Source:
    The idea of user-transparent parallel training is that of MaTEx-TensorFlow (PNNL), which put
    it into TensorFlow's own operators: github.com/matex-org/matex.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import keras

from dlguide.horovod import runtime
from dlguide.horovod.native import native
from dlguide.horovod.transparent import files, losses, normalization, patches
from dlguide.horovod.transparent.session import Refused, Session

__all__ = ["REPORT", "Refused", "Session", "finish", "start"]

REPORT = "report.json"


def start(script: str, folder: Path, seed: int) -> Session:
    """Prepare this rank for a script; every rank must call it, before the script runs.

    Args:
        script: path of the script.
        folder: folder of the run.
        seed: for the random numbers of Python, NumPy and TensorFlow; equal on all ranks.

    Returns:
        Session: to be handed to `finish`.
    """
    runtime.init()
    session = Session(script, folder, native.rank(), native.size(), seed)
    keras.utils.set_random_seed(seed)
    patches.install(session)
    normalization.install(session)
    losses.install(session)
    files.install(session)
    return session


def finish(session: Session) -> None:
    """Write the report of a script that has ended; every rank must call it.

    Args:
        session: what `start` returned.

    Raises:
        Refused: when the script never trained with `fit`, so that nothing was made parallel.
    """
    if not session.trained:
        session.refuse("nothing was made parallel: the script never trains with `fit`")
    session.barrier()
    if session.rank == 0:
        draft = session.folder / f".{REPORT}"
        draft.write_text(json.dumps(session.report.record()))
        os.replace(draft, session.folder / REPORT)
