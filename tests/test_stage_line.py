"""Stages measured alone predict the line: `dlguide.training.bottleneck`."""

import numpy as np
import pytest

from dlguide.training.bottleneck import (
    Stage,
    limited_by_cores,
    remedies,
    seconds_per_sample,
    slowest,
)


def line(*walls, cpu=0.0):
    names = [*(f"stage{number}" for number in range(len(walls) - 1)), "train"]
    return tuple(Stage(name, wall, cpu * wall) for name, wall in zip(names, walls, strict=True))


def simulated(walls, samples=4000):
    """Time per sample of stages with unlimited buffers between them, sample by sample."""
    free = [0.0] * len(walls)
    for _ in range(samples):
        ready = 0.0
        for place, wall in enumerate(walls):
            free[place] = ready = max(ready, free[place]) + wall
    return ready / samples


@pytest.mark.parametrize("seed", range(8))
def test_a_simulation_sample_by_sample_gives_the_predicted_time(seed):
    random = np.random.default_rng(seed)
    count = int(random.integers(1, 7))
    walls = random.exponential(1e-3, count).tolist()
    assert seconds_per_sample(line(*walls), 4) == pytest.approx(simulated(walls), rel=0.01)


def test_cores_bound_what_is_computed_but_not_what_waits():
    computing, waiting = line(1.0, 1.0, 1.0, cpu=1.0), line(1.0, 1.0, 1.0, cpu=0.0)
    assert seconds_per_sample(computing, 2) == pytest.approx(1.5)
    assert seconds_per_sample(computing, 8) == pytest.approx(1.0)
    assert seconds_per_sample(waiting, 1) == pytest.approx(1.0)
    assert limited_by_cores(computing, 2)
    assert not limited_by_cores(computing, 8)
    assert not limited_by_cores(waiting, 1)


def test_the_slowest_is_the_largest_part_of_what_sets_the_pace():
    assert slowest(line(1.0, 5.0, 2.0), 9).name == "stage1"
    # with full cores it is the stage that takes most of them, not the longest one
    stages = (Stage("read", 3.0, 0.1), Stage("decode", 2.5, 10.0), Stage("train", 2, 2))
    assert limited_by_cores(stages, 2)
    assert slowest(stages, 2).name == "decode"
    assert slowest(stages, 9).name == "read"


def remedies_of(stages, cores, **data):
    return {each.what: each.samples_per_s for each in remedies(stages, cores, **data)}


def test_calls_at_once_help_a_stage_that_computes_only_as_far_as_there_are_cores():
    stages = line(8.0, 1.0, cpu=1.0)
    found = remedies_of(stages, 4)
    assert found["4 calls of stage0 at once"] == pytest.approx(1 / 2.25)  # 9 s on 4 cores
    assert "2 calls of stage0 at once" in remedies_of(stages, 1.9)
    assert remedies_of(stages, 1) == {"twice as many cores": pytest.approx(1 / 8)}


def test_cache_is_named_where_it_fits_into_half_of_the_memory():
    stages = (
        Stage("read", 4.0, 0.0, out_nbytes=10),
        Stage("decode", 3.0, 3.0, out_nbytes=100),
        Stage("train", 1.0, 1.0, out_nbytes=0),
    )
    found = remedies_of(stages, 8, samples=10, memory_nbytes=2000)
    assert found["cache after read"] == pytest.approx(1 / 3)
    assert found["cache after decode"] == pytest.approx(1.0)
    assert "cache after decode" not in remedies_of(stages, 8, samples=10, memory_nbytes=1999)
    assert not any("cache" in what for what in remedies_of(stages, 8))
