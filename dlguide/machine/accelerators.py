"""One GPU for each rank: which ones TensorFlow sees, and who takes which.

    everyone = [accelerators.Seen("n0", None, 4)] * 4      # what each rank sees, in rank order
    places = accelerators.assign(everyone, "auto")          # the same list on every rank
    accelerators.take(places[rank])

Every rank reckons with what all of them see, so all come to the same answer, or to the same error.
"""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dlguide.checks import MissingComponentError, require, require_known

WISHES = ("auto", "cpu", "gpu")
_VARIABLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Seen:
    """What one rank sees of its node.

    Args:
        host: the node.
        visible: what CUDA_VISIBLE_DEVICES says to this rank; None where it is not set.
        gpus: GPUs that TensorFlow sees (count).
    """

    host: str
    visible: str | None
    gpus: int


@dataclass(frozen=True)
class Place:
    """Where a rank computes.

    Args:
        device: "cpu" or "gpu", as `training.fit` takes it.
        gpu: the GPU among those that this rank sees (index); None on the CPU.
        why: a sentence on how it came to that.
    """

    device: str
    gpu: int | None
    why: str


def seen(environment: Mapping[str, str] | None = None) -> Seen:
    """Look at what this rank sees; loads TensorFlow, but starts no GPU.

    Args:
        environment: variables to look at; this process's own when left out.

    Returns:
        Seen: host, restriction and number of GPUs.
    """
    import tensorflow as tf

    environment = os.environ if environment is None else environment
    gpus = len(tf.config.list_physical_devices("GPU"))
    return Seen(socket.gethostname(), environment.get(_VARIABLE), gpus)


def assign(everyone: Sequence[Seen], device: str = "auto") -> tuple[Place, ...]:
    """Give every rank a GPU of its own, or say why it has none.

    The k-th rank of a node takes the k-th GPU that it sees; where the batch system has shown each
    rank of a node another one (their CUDA_VISIBLE_DEVICES all differ), each takes its first.

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

    >>> [place.gpu for place in assign([Seen("a", None, 2), Seen("a", None, 2)])]
    [0, 1]
    """
    require_known(device, WISHES, "device")
    require(bool(everyone), "everyone", "hold what at least one rank sees", list(everyone))
    if device == "cpu":
        return (Place("cpu", None, "The CPU, as asked for."),) * len(everyone)
    blind = sorted({one.host for one in everyone if one.gpus == 0})
    if blind:
        where = "this machine" if len({one.host for one in everyone}) == 1 else ", ".join(blind)
        if device == "gpu":
            raise MissingComponentError(
                f"TensorFlow sees no GPU on {where}. Use `device='cpu'`, or install a TensorFlow "
                "that was built for your GPU (`pip install 'tensorflow[and-cuda]'`)."
            )
        return (Place("cpu", None, f"TensorFlow sees no GPU on {where}: the CPU."),) * len(everyone)
    ranks_of = Counter(one.host for one in everyone)
    gpus = {one.host: one.gpus for one in everyone}
    own = {
        host: ranks > 1
        and len({one.visible for one in everyone if one.host == host} - {None, ""}) == ranks
        for host, ranks in ranks_of.items()
    }
    crowded = [host for host, ranks in ranks_of.items() if not own[host] and ranks > gpus[host]]
    if crowded:
        host = crowded[0]
        ranks, there = ranks_of[host], f"{gpus[host]} GPU{'s' * (gpus[host] != 1)}"
        then = "Start fewer ranks on a node, or use `device='cpu'`."
        must = f"be at most the {there} of {host}, one a rank"
        require(device == "auto", "ranks", must, ranks, then)
        why = f"{ranks} ranks and {there} on {host}: the CPU for all. Start fewer ranks."
        return (Place("cpu", None, why),) * len(everyone)
    places, before = [], Counter()
    for one in everyone:
        ranks, local = ranks_of[one.host], before[one.host]
        before[one.host] += 1
        gpu = 0 if own[one.host] else local
        why = "the only rank" if ranks == 1 else f"rank {local} of {ranks}"
        places.append(Place("gpu", gpu, f"GPU {gpu} of {one.gpus} for {why} on {one.host}."))
    return tuple(places)


def take(place: Place, config: Any = None) -> None:
    """Let TensorFlow see only this rank's GPU, or none, and use its memory as it needs it.

    Must come before TensorFlow's first operation; later it is too late, unless nothing changes.

    Args:
        place: from `assign`.
        config: what answers as `tf.config` does; TensorFlow's own when left out.

    Raises:
        RuntimeError: when TensorFlow has already started with other devices.
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

    Args:
        nbytes: size of the array (bytes).
        device: TensorFlow's name of it.
        repeats: copies each way after a warm-up (count).

    Returns:
        tuple: median time to the device, and back (s).
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
