"""Measure links, allreduces and training steps on two hosts in a box, for lesson 71.

    python benchmarks/box.py            # several minutes on a machine that does nothing else
    python benchmarks/box.py --rounds 3

Writes `data/measured/box.csv`, a row for each quantity, with the model's value and the ratio:

- `rate`: 16 MiB from host to host by MPI, as a share of the rate that was set;
- `latency`: one byte one way less the same without a delay, over the delay that was set;
- `allreduce`: 4 MiB on 2 x 2 ranks by MPI's own, the hierarchical and the ring algorithm, ranks
  numbered in blocks and round robin, over the time of the link alone for what crosses it;
- `step`: data parallel on one rank per host, over the prediction from the step in shared memory
  and the measured link (`scaling.predict` with `costs.allreduce`); `shared memory` is that step.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

import cloudpickle
import numpy as np

from dlcourse import measured
from dlguide.cluster import Cluster, box
from dlguide.measure import Timing
from dlguide.models import registry
from dlguide.scaling import costs, step

RATES, DELAYS_S = (1e9, 3e8, 1e8), (0.001, 0.005)
BIG, ARRAY, ROUNDS = 16 << 20, 4 << 20, 5
WIDE = 1024  # of the two hidden layers of "wide mlp"
NETS = {
    "mlp": registry.parameters("mlp"),
    "mnist_cnn": registry.parameters("mnist_cnn"),
    "wide mlp": (784 + 1) * WIDE + (WIDE + 1) * WIDE + (WIDE + 1) * 10,
}
BATCH, STEPS = 100, 40
PLACEMENTS = {"block": (0, 1, 2, 3), "round robin": (0, 2, 1, 3)}


def one_way(comm, nbytes: int, repeats: int) -> list[float]:
    """Return the times (s) of a message from the first to the last rank: half a round trip."""
    from time import perf_counter

    array, last, times = np.zeros(nbytes, np.uint8), comm.size - 1, []
    for _ in range(repeats + 2):
        comm.Barrier()
        begin = perf_counter()
        if comm.rank == 0:
            comm.Send(array, last)
            comm.Recv(array, last)
        elif comm.rank == last:
            comm.Recv(array, 0)
            comm.Send(array, 0)
        times.append((perf_counter() - begin) / 2)
    return times[2:]


def allreduce(comm, algorithm: str, order: tuple[int, ...], repeats: int) -> list[float]:
    """Return the times (s) of an allreduce among ranks that are numbered in another order."""
    from time import perf_counter

    from dlguide import collectives

    placed, times = comm.Split(0, order.index(comm.rank)), []
    array = np.ones(ARRAY // 4, np.float32)
    for _ in range(repeats + 1):
        array[:] = 1
        placed.Barrier()
        begin = perf_counter()
        collectives.allreduce(array, placed, algorithm=algorithm)
        times.append(placed.allreduce(perf_counter() - begin) / placed.size)
        assert np.all(array == placed.size)
    placed.Free()
    return times[1:]


def steps(comm, net: str) -> list[float]:
    """Return the times (s) of the steps of a training, without the first."""
    import keras

    from dlguide import training

    def wide_mlp() -> keras.Model:
        keras.utils.set_random_seed(0)
        hidden = [keras.layers.Dense(WIDE, "relu") for _ in range(2)]
        flat = [keras.Input((28, 28, 1)), keras.layers.Flatten()]
        return keras.Sequential([*flat, *hidden, keras.layers.Dense(10)])

    config = training.FitConfig(samples=BATCH * comm.size * STEPS, evaluate=False)
    model = wide_mlp if net == "wide mlp" else net
    run = training.fit(model, "mnist", batch_per_rank=BATCH, config=config)
    return list(run.step_s[5:])


def row(what: str, case: str, bits_per_s: float, seconds: list[float], model_s: float) -> dict:
    """Print and return a row: median and quartiles beside the model."""
    found = Timing(tuple(seconds))
    ratio = found.median / model_s
    print(f"{what:10} {case:26} {bits_per_s / 1e6:6,.0f} Mbit/s: {found}, ratio {ratio:.3f}")
    values = {"median": found.median, "low": found.low, "high": found.high, "model": model_s}
    micro = {f"{name}_us": f"{1e6 * value:.5g}" for name, value in values.items()}
    return {"what": what, "case": case, "mbit_per_s": bits_per_s / 1e6, **micro, "ratio": ratio}


def links(rounds: int) -> Iterator[dict]:
    """Measure rates and delays between one rank on each host."""
    with box.hosts(2) as hosts, Cluster(hosts=hosts) as cluster:
        plain = cluster.run(one_way, 1, 50)[0]
        for rate in RATES:
            hosts.rate(rate)
            yield row("rate", "16 MiB", rate, cluster.run(one_way, BIG, rounds)[0], 8 * BIG / rate)
    for delay_s in DELAYS_S:
        with box.hosts(2, latency_s=delay_s) as hosts, Cluster(hosts=hosts) as cluster:
            added = np.array(cluster.run(one_way, 1, 50)[0]) - np.median(plain)
            how = "netem" if hosts.able.netem else "forwarder"
            yield row("latency", f"{1e3 * delay_s:g} ms by {how}", 1e9, list(added), delay_s)


def allreduces(rounds: int) -> Iterator[dict]:
    """Measure algorithms and placements on two ranks of each host."""
    with box.hosts(2) as hosts, Cluster(ranks=4, hosts=hosts) as cluster:
        for rate in RATES:
            hosts.rate(rate)
            for algorithm in ("library", "hierarchical", "ring"):
                for name, order in PLACEMENTS.items():
                    seconds = cluster.run(allreduce, algorithm, order, rounds)[0]
                    yield row("allreduce", f"{algorithm}, {name}", rate, seconds, 8 * ARRAY / rate)


def trainings() -> Iterator[dict]:
    """Measure steps in shared memory, then on the box beside their prediction."""
    alone = {}
    with Cluster(ranks=2, magics=False) as cluster:
        for net in NETS:
            alone[net] = cluster.run(steps, net)[0]
            yield row("step", f"{net}, shared memory", 0, alone[net], float(np.median(alone[net])))
    with box.hosts(2) as hosts, Cluster(hosts=hosts) as cluster:
        for rate in RATES:
            hosts.rate(rate)
            latency_s = float(np.median(cluster.run(one_way, 1, 50)[0]))
            bytes_per_s = BIG / float(np.median(cluster.run(one_way, BIG, 3)[0]))
            link = costs.Link(latency_s, bytes_per_s)
            for net in NETS:
                nbytes = 4 * NETS[net]
                exchange_s = costs.allreduce("ring", nbytes, 2, link)
                wanted = step.predict(float(np.median(alone[net])), exchange_s, workers=2)
                yield row("step", net, rate, cluster.run(steps, net)[0], wanted.seconds)


def main() -> None:
    """Print a line for each row, and write data/measured/box.csv."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--rounds", type=int, default=ROUNDS, help="samples of each that count")
    rounds = options.parse_args().rounds
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    rows = [*links(rounds), *allreduces(rounds), *trainings()]
    print(measured.write("box", rows, seeds=[0]))


if __name__ == "__main__":
    main()
