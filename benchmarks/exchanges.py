"""A training step through MPI, beside Horovod, DistributedDataParallel and `keras.distribution`.

    python benchmarks/exchanges.py
    python benchmarks/exchanges.py --backend torch --net mnist_cnn

Two ranks of one thread each train the same net of Keras 3 with `fit` on each backend that is
installed, by `dlguide.distributed`, by the backend's own exchange and without any, in turns of an
epoch; the ranks start anew several times. Both exchanges must give the same weights. Then, on
TensorFlow: the exchange of 100 MB of gradients alone beside an allreduce of one array that already
lies in shared memory, which copies nothing; and the share of a core that a connected rank uses
while nothing is asked of it.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from report import report

from dlcourse import tensorflow_lab, three_backends
from dlcourse.three_backends import BACKENDS, OURS, OWN
from dlguide.cluster import Cluster
from dlguide.measure import Timing

# net -> images per rank and step, steps of a turn, shape of an image, the step's promised ratio
NETS = {
    "mnist_cnn": (64, 12, (28, 28, 1), 1.02),
    "resnet20": (16, 6, (32, 32, 3), 1.02),
    "resnet50": (2, 3, (224, 224, 3), 1.05),
}
GRADIENTS = [(4096, 2048), (4096,), (4096, 4096), (4096,), (4096, 10), (10,)]  # 101 MB
IDLE_S = 10.0


def cases(backend: str | None, net: str | None) -> list[tuple[str, str]]:
    """Return backends and nets; ResNet-50 by TensorFlow only, as the others need minutes for it."""
    return [
        (each, name)
        for each in three_backends.here()
        for name in NETS
        if each == (backend or each) and name == (net or name)
        if each == "tensorflow" or name != "resnet50"
    ]


def trained(backend: str, net: str, turns: int) -> dict[str, list[float]]:
    """Seconds of the epochs by each exchange, on new ranks."""
    batch, steps, shape, _ = NETS[net]
    random = np.random.default_rng(0)
    images = random.random((2 * batch * steps, *shape), np.float32)
    labels = random.integers(0, 10, len(images))
    with Cluster(ranks=2, magics=False, environment={"KERAS_BACKEND": backend}) as cluster:
        cluster.run(three_backends.start, port=tensorflow_lab.free_ports(1)[0])
        results = cluster.run(three_backends.in_turns, images, labels, batch, turns, net)
    for result in results:
        if OWN[backend] in result["weights"]:
            ours, own = (result["weights"][way] for way in (OURS, OWN[backend]))
            apart = three_backends.apart(ours, own)
            assert apart <= 1e-3, f"{net}: the weights are {apart:g} apart"
    return {way: list(each.seconds) for way, each in results[0]["seconds"].items()}


def exchange_of_gradients(comm):
    """Times of the exchange of `GRADIENTS`, and of an allreduce in a window of as many bytes."""
    from dlguide import collectives
    from dlguide.measure import timing

    window = collectives.shared_array(comm, sum(int(np.prod(shape)) for shape in GRADIENTS))
    found = []
    for _ in range(5):
        ours = three_backends.exchange_alone(comm, GRADIENTS, 5)
        alone = timing(lambda: collectives.allreduce(window, comm, check=False), 5, 2, comm)
        found.append((ours.median, alone.median))
    return found


def main() -> None:
    """Print a line for each ratio."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--backend", choices=BACKENDS, help="this one only")
    options.add_argument("--net", choices=NETS, help="this one only")
    options.add_argument("--starts", type=int, default=3, help="of the ranks")
    options.add_argument("--turns", type=int, default=5, help="of a start, interleaved")
    chosen = options.parse_args()
    for backend, net in cases(chosen.backend, chosen.net):
        found: dict[str, list[float]] = {}
        for _ in range(chosen.starts):
            for way, seconds in trained(backend, net, chosen.turns).items():
                found.setdefault(way, []).extend(seconds)
        steps, own = NETS[net][1], OWN[backend]
        for way, seconds in found.items():
            print(f"{backend}, {net}, {way}: a step", Timing(tuple(np.divide(seconds, steps))))
        if own not in found:
            continue
        ours, theirs = (np.array(found[way]) for way in (OURS, own))
        both = [ours, theirs]
        if backend == "tensorflow":
            what = f"step through MPI / through {own}, {net}"
            report(what, ours / theirs, most=NETS[net][3], seconds=both)
        else:
            what = f"images/s through MPI / through {own}, {net}"
            report(what, theirs / ours, least=0.95, seconds=both)
    if chosen.backend not in (None, "tensorflow") or chosen.net:
        return
    with Cluster(ranks=2, magics=False) as cluster:
        pairs = np.array(cluster.run(exchange_of_gradients)[0])
        what = "exchange of 101 MB of gradients / allreduce of one array in shared memory"
        report(what, pairs[:, 0] / pairs[:, 1], most=1.3, seconds=list(pairs.T))
        cluster.run(three_backends.start, port=0)
        shares = []
        for _ in range(3):
            before = cluster.run(time.process_time)
            time.sleep(IDLE_S)
            after = cluster.run(time.process_time)
            shares.append(100 * max(np.subtract(after, before)) / IDLE_S)
        report("CPU time of a connected idle rank (% of a core)", shares, most=2)


if __name__ == "__main__":
    main()
