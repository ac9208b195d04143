"""What a script itself does to folders and files: done by rank 0, and then there for all ranks.

The other ranks wait until rank 0 has done the same to the same path as often as they, and return
what it has returned or raise what it has raised. It is no exchange of all ranks: a script may well
do it on some of them only ("make the folder where there is none").
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from dlguide.horovod.transparent.outcomes import Outcome, Outcomes
from dlguide.horovod.transparent.private import Private, path_of
from dlguide.horovod.transparent.session import Session

PATIENCE_S = 60.0  # then rank 0 does not do it: folders are made, the rest is left
CHANGING = {
    os: "mkdir makedirs remove unlink rename renames replace rmdir removedirs",
    shutil: "rmtree move copy copy2 copyfile copytree",
    Path: "mkdir unlink rename replace rmdir touch",
}
TWO = ("rename", "renames", "replace", "move", "copy", "copy2", "copyfile", "copytree")


def install(session: Session, private: Private | None) -> None:
    """Let what the script does to folders and files be done by rank 0 alone."""
    beside = os.path.dirname(os.path.abspath(session.script))
    outcomes, seen = Outcomes(session.folder), Counter()

    def once(plain: Any, name: str) -> Any:
        @functools.wraps(plain)
        def call(*args: Any, **kwargs: Any) -> Any:
            who = sys._getframe(1).f_code.co_filename
            paths = [path for path in map(path_of, [*args, *kwargs.values()]) if path is not None]
            paths = paths[: 2 if name in TWO else 1]
            mine = who == session.script or os.path.dirname(who) == beside
            if not mine or not paths:
                return plain(*args, **kwargs)
            if private is not None and any(map(private.owns, paths)):
                return _own(private, plain, name, args, kwargs, paths)
            words = "\n".join([name, *paths])
            seen[words] += 1
            key = hashlib.sha256(f"{seen[words]}\n{words}".encode()).hexdigest()[:32]
            if private is None:
                outcome = _tried(plain, args, kwargs)
                outcomes.tell(key, outcome)
                return outcome.give()
            outcome = outcomes.find(key, PATIENCE_S)
            if outcome is None:
                made = os.makedirs(paths[0], exist_ok=True) if name.startswith("mk") else None
                outcome = Outcome(made)
            if outcome.error is None:
                private.follow(name, paths)
            return outcome.give()

        return call

    for place, names in CHANGING.items():
        for name in names.split():
            setattr(place, name, once(getattr(place, name), name))


def _tried(plain: Any, args: Any, kwargs: Any) -> Outcome:
    try:
        return Outcome(plain(*args, **kwargs))
    except Exception as error:
        return Outcome(error=error)


def _own(private: Private, plain: Any, name: str, args: Any, kwargs: Any, paths: list[str]) -> Any:
    """Do it for real in a temporary folder of this rank's own, and with its private copies."""
    source, copy = paths[0], private.copies.get(paths[0])
    if name not in TWO or (copy is None and private.owns(paths[1])):
        return plain(*args, **kwargs)
    # Into the temporary folder, or out of it to where rank 0 puts its own: here a private copy.
    target = paths[1]
    if os.path.isdir(target) and not os.path.isdir(source):
        target = os.path.join(target, os.path.basename(source))
    inside = [os.path.join(root, each) for root, _, names in os.walk(source) for each in names]
    for path in inside or [source]:
        goal = target + path[len(source) :]
        with private.open(path, "rb") as read, private.open(goal, "wb") as written:
            shutil.copyfileobj(read, written)
    return target
