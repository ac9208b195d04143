"""One GPU for each rank: which ones TensorFlow sees, and who takes which.

    everyone = [accelerators.Seen("n0", ("0", "1"))] * 2   # what each rank sees, in rank order
    places = accelerators.assign(everyone, "auto")          # the same list on every rank
    accelerators.take(places[rank])

Every rank reckons with what all of them see, so all come to the same answer, or to the same error.
"""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dlguide import commands
from dlguide.errors import MissingComponentError, require, require_known

WISHES = ("auto", "cpu", "gpu")
_VARIABLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Seen:
    """What one rank sees of its node."""

    host: str
    gpus: tuple[str, ...]


@dataclass(frozen=True)
class Place:
    """Where a rank computes."""

    device: str
    gpu: int | None
    why: str


def seen(environment: Mapping[str, str] | None = None, program: str = "nvidia-smi") -> Seen:
    """Look at what this rank sees; loads TensorFlow, but starts no GPU.

    A batch system may show every rank of a node another GPU, and each of them as number 0: so
    the driver is asked for names that no other GPU has.
    """
    import tensorflow as tf

    environment = os.environ if environment is None else environment
    count = len(tf.config.list_physical_devices("GPU"))
    names = _own_names(program) if count else ()
    return Seen(socket.gethostname(), named(count, environment.get(_VARIABLE), names))


def named(count: int, visible: str | None, names: Sequence[str]) -> tuple[str, ...]:
    """Name the GPUs that a process sees.

    Args:
        count: of them.
        visible: what CUDA_VISIBLE_DEVICES says; None where it is not set.
        names: of all GPUs that the driver shows here, in its order; () where it was not asked.

    Returns:
        tuple: one name each.

    >>> named(2, "3,1", ["GPU-a", "GPU-b", "GPU-c", "GPU-d"])
    ('GPU-d', 'GPU-b')
    >>> named(2, None, [])
    ('0', '1')
    """
    entries = [one.strip() for one in (visible or "").split(",") if one.strip()][:count]
    entries += [str(number) for number in range(len(entries), count)]
    return tuple(
        names[int(one)] if one.isdigit() and int(one) < len(names) else one for one in entries
    )


def assign(everyone: Sequence[Seen], device: str = "auto") -> tuple[Place, ...]:
    """Give every rank a GPU of its own, or say why it has none.

    The ranks of a node that all see the same GPUs take them in turn; where each has been shown
    others, everyone finds one that nobody else takes.

    Args:
        everyone: what each rank sees, in rank order.
        device: "gpu"; "cpu"; or "auto" for GPUs where every rank has one, and else the CPU for
            all: a step that some compute a hundred times faster would wait for the others.

    Returns:
        tuple: one Place for each rank.

    Raises:
        ValueError: when there is no rank, when `device` is none of the three, or when "gpu" is
            asked for and a node has fewer GPUs than ranks.
        MissingComponentError: when "gpu" is asked for and a rank sees none.

    >>> [place.gpu for place in assign([Seen("a", ("0", "1")), Seen("a", ("0", "1"))])]
    [0, 1]
    """
    require_known(device, WISHES, "device")
    require(bool(everyone), "everyone", "hold what at least one rank sees", list(everyone))
    if device == "cpu":
        return (Place("cpu", None, "The CPU, as asked for."),) * len(everyone)
    blind = sorted({one.host for one in everyone if not one.gpus})
    if blind:
        where = "this machine" if len({one.host for one in everyone}) == 1 else ", ".join(blind)
        if device == "gpu":
            raise MissingComponentError(
                f"TensorFlow sees no GPU on {where}. Use `device='cpu'`, or install a TensorFlow "
                "that was built for your GPU (`pip install 'tensorflow[and-cuda]'`)."
            )
        return (Place("cpu", None, f"TensorFlow sees no GPU on {where}: the CPU."),) * len(everyone)
    places: list[Place | None] = [None] * len(everyone)
    for host in dict.fromkeys(one.host for one in everyone):
        ranks = [rank for rank, one in enumerate(everyone) if one.host == host]
        chosen = _one_each([everyone[rank].gpus for rank in ranks])
        if chosen is None:
            count = len({gpu for rank in ranks for gpu in everyone[rank].gpus})
            there = f"{count} GPU{'s' * (count != 1)}"
            then = "Start fewer ranks on a node, or use `device='cpu'`."
            must = f"be at most the {there} of {host}, one a rank"
            require(device == "auto", "ranks", must, len(ranks), then)
            why = f"{len(ranks)} ranks and {there} on {host}: the CPU for all. Start fewer ranks."
            return (Place("cpu", None, why),) * len(everyone)
        for local, (rank, gpu) in enumerate(zip(ranks, chosen, strict=True)):
            who = "the only rank" if len(ranks) == 1 else f"rank {local} of {len(ranks)}"
            many = len(everyone[rank].gpus)
            places[rank] = Place("gpu", gpu, f"GPU {gpu} of {many} for {who} on {host}.")
    return tuple(place for place in places if place is not None)


def _one_each(choices: Sequence[Sequence[str]]) -> list[int] | None:
    """Choose one of each list so that none is chosen twice; None where that cannot be."""
    taken: dict[str, int] = {}

    def find(rank: int, tried: set[str]) -> bool:
        # a GPU that is free, or whose owner finds another one
        for gpu in choices[rank]:
            if gpu not in tried:
                tried.add(gpu)
                if gpu not in taken or find(taken[gpu], tried):
                    taken[gpu] = rank
                    return True
        return False

    if not all(find(rank, set()) for rank in range(len(choices))):
        return None
    of = {rank: gpu for gpu, rank in taken.items()}
    chosen = [list(each).index(of[rank]) for rank, each in enumerate(choices)]
    alike = len({tuple(each) for each in choices}) == 1
    return sorted(chosen) if alike else chosen


def _own_names(program: str) -> tuple[str, ...]:
    path = shutil.which(program)
    if path is None:
        return ()
    done = commands.run([path, "--query-gpu=uuid", "--format=csv,noheader"], timeout_s=20)
    return tuple(done.output.split()) if done.ok else ()


def take(place: Place, config: Any = None) -> None:
    """Let TensorFlow see only this rank's GPU, or none, and use its memory as it needs it.

    Must come before TensorFlow's first operation; later it is too late, unless nothing changes.
    """
    if config is None:
        import tensorflow as tf

        config = tf.config
    gpus = config.list_physical_devices("GPU")
    wanted = [] if place.gpu is None else [gpus[place.gpu]]
    if config.get_visible_devices("GPU") == wanted:
        return
    try:
        config.set_visible_devices(wanted, "GPU")
        for gpu in wanted:
            config.experimental.set_memory_growth(gpu, True)
    except RuntimeError as error:
        raise RuntimeError(
            "TensorFlow has already computed in this process, so its GPUs are fixed. Choose the "
            "device before anything else, in fresh ranks."
        ) from error


def copy_seconds(nbytes: int, device: str = "GPU:0", repeats: int = 5) -> tuple[float, float]:
    """Time copies of an array from the host to a device and back: staging, measured.

    TensorFlow copies through memory that it has pinned where it can.
    """
    from time import perf_counter

    import numpy as np
    import tensorflow as tf

    there, back = [], []
    array = np.zeros(max(1, nbytes // 4), np.float32)
    for _ in range(repeats + 1):
        start = perf_counter()
        with tf.device(device):
            # a sum of one element is here only when the copy has arrived
            copied = tf.identity(tf.constant(array))
            float(copied[0])
        middle = perf_counter()
        np.array(copied)
        there.append(middle - start)
        back.append(perf_counter() - middle)
    return float(np.median(there[1:])), float(np.median(back[1:]))
