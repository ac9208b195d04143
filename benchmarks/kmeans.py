"""Compare daal4py's k-means on 2 ranks with scikit-learn's KMeans on the same two cores.

    python benchmarks/kmeans.py
    python benchmarks/kmeans.py --clusters 8 64 --turns 9

All train on the same photograph from the same first centres, equally many iterations. That
centres and inertia are equal to 1e-12 is asserted before anything is timed. The candidates take
turns; ratios are taken turn by turn. Timed is the whole call, its checks and the last assignment
included, on the slowest rank. The table says where a difference comes from: the time of a step
(calls with `STEPS` steps and with one) and of all else, on two cores and on one. Beside them the
estimators of scikit-learn-intelex and of oneDAL, which that calls.
"""

from __future__ import annotations

import argparse
import sys
from itertools import product

import cloudpickle
import numpy as np
from report import compare

from dlcourse.usecases import photographs
from dlguide.cluster import Cluster
from dlguide.machine import describe, threads

STEPS = 20
ESTIMATORS = {
    "scikit-learn": "sklearn.cluster",
    "scikit-learn-intelex": "sklearnex.cluster",
    "oneDAL": "onedal.cluster",
}


def first_centres(pixels: np.ndarray, clusters: int) -> np.ndarray:
    """Choose centres off the grid of levels, so that no pixel is equally near to two."""
    random = np.random.default_rng(7)
    colours = np.unique(pixels[random.integers(0, len(pixels), 50 * clusters)], axis=0)
    chosen = random.permutation(colours)[:clusters]
    return chosen + random.uniform(-0.4, 0.4, chosen.shape)


def by_daal(pixels: np.ndarray, first: np.ndarray, steps: int) -> tuple:
    """On every rank: centres, inertia, seconds of the call and of the iterations alone."""
    from time import perf_counter

    from dlcourse.usecases import kmeans

    points = kmeans.share(pixels)
    begin = perf_counter()
    fit = kmeans.fit(points, len(first), steps, first)
    return fit.centres, fit.inertia, perf_counter() - begin, fit.seconds


def by_estimator(pixels: np.ndarray, first: np.ndarray, steps: int, count: int, name: str) -> tuple:
    """In one process with `count` threads: centres, inertia, seconds of the call."""
    from importlib import import_module
    from time import perf_counter

    from threadpoolctl import threadpool_limits

    KMeans = import_module(ESTIMATORS[name]).KMeans
    points = pixels.astype(np.float64)
    with threadpool_limits(count):
        begin = perf_counter()
        # far from zero oneDAL's |c|^2 - 2 x c has no digits left
        mean = points.mean(axis=0) if name == "oneDAL" else 0.0
        model = KMeans(len(first), init=first - mean, n_init=1, max_iter=steps, tol=0)
        model.fit(points - mean if name == "oneDAL" else points)
        seconds = perf_counter() - begin
    return model.cluster_centers_ + mean, float(model.inertia_), seconds


def assert_equal_work(results: dict[str, tuple], clusters: int) -> None:
    """All candidates have found the same centres and the same inertia."""
    centres, inertia = next(iter(results.values()))[:2]
    for name, other in results.items():
        apart = np.abs(other[0] - centres).max() / np.abs(centres).max()
        assert apart <= 1e-12, f"{name}, {clusters} clusters: centres {apart:.1e} apart"
        assert abs(other[1] / inertia - 1) <= 1e-12, f"{name}: inertia {other[1]} not {inertia}"


def main() -> None:
    """Print the times of every candidate and the ratios of all turns."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--turns", type=int, default=9, help="turns of each candidate")
    options.add_argument("--clusters", type=int, nargs="+", default=[8, 16])
    chosen = options.parse_args()
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    machine = describe()
    pair = threads.plan(machine, ranks=2)
    single = threads.ThreadPlan(1, 1, (pair.cpus[0],), False)
    plans = {"1 x 2": threads.plan(machine, ranks=1), "2 x 1": pair, "1 x 1": single}
    clusters = {name: Cluster(plan, magics=False) for name, plan in plans.items()}
    pixels = photographs.china().reshape(-1, 3)
    try:
        for count in chosen.clusters:
            first = first_centres(pixels, count)
            times: dict[tuple[str, int], list[float]] = {}
            for turn in range(chosen.turns + 1):  # the first one warms up
                for steps in (STEPS, 1):
                    results = one_turn(clusters, pixels, first, steps)
                    assert_equal_work(results, count)
                    for name, result in results.items():
                        times.setdefault((name, steps), []).extend([result[2]] * (turn > 0))
            show(times, len(pixels) * count, count)
    finally:
        for cluster in clusters.values():
            cluster.stop()


def one_turn(
    clusters: dict[str, Cluster], pixels: np.ndarray, first: np.ndarray, steps: int
) -> dict:
    """Run every candidate once: name -> centres, inertia, seconds of the slowest rank."""
    results = {}
    for name, (plan, count) in product(ESTIMATORS, (("1 x 2", 2), ("1 x 1", 1))):
        work = (pixels, first, steps, count, name)
        results[f"{name} {plan}"] = clusters[plan].run(by_estimator, *work)[0]
    for plan, cluster in clusters.items():
        ranks = cluster.run(by_daal, pixels, first, steps)
        results[f"daal4py {plan}"] = (*ranks[0][:2], max(one[2] for one in ranks))
    return results


def show(times: dict[tuple[str, int], list[float]], distances: int, clusters: int) -> None:
    """Print what a step and a call cost, and the ratio that is promised."""
    print(f"{clusters} clusters, ranks x threads, medians:")
    for name in dict.fromkeys(name for name, _ in times):
        cores = 1 if name.endswith("1 x 1") else 2
        whole, one = (float(np.median(times[name, steps])) for steps in (STEPS, 1))
        step = (whole - one) / (STEPS - 1)
        print(
            f"  {name:26} {1e3 * whole:6.1f} ms: a step {1e3 * step:5.2f} ms, "
            f"{1e9 * cores * step / distances:.2f} core-ns a distance, "
            f"else {1e3 * (one - step):.1f} ms"
        )
    ours = times["daal4py 2 x 1", STEPS]
    limit = np.median(times["daal4py 1 x 1", STEPS]) / 2  # two cores without any loss
    for name in ("scikit-learn", "scikit-learn-intelex"):
        least = 1.0 if name == "scikit-learn" else None
        what = f"k-means, {clusters} clusters: daal4py on 2 ranks / {name} with 2 threads"
        compare(what, ours, times[f"{name} 1 x 2", STEPS], least, share=limit / np.median(ours))


if __name__ == "__main__":
    main()
