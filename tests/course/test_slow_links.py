"""Nets over slow links: gradients, equal trainings, what crosses a link, predictions by hand.

Tests dlcourse.slow_links, and lesson 71 where no namespace can be made.
"""

from __future__ import annotations

import numpy as np
import pytest

from dlcourse import NOTEBOOKS, execution, slow_links
from dlguide import commands
from dlguide.cluster import Cluster
from dlguide.data import datasets


def loss(weights, images, labels):
    values, layers = images, list(zip(weights[::2], weights[1::2], strict=True))
    for place, (weight, bias) in enumerate(layers):
        inner = values @ weight + bias
        if place + 1 == len(layers):
            values = inner
        else:
            skip = values if weight.shape[0] == weight.shape[1] else 0
            values = skip + np.maximum(inner, 0)
    logs = values - np.log(np.exp(values).sum(axis=1, keepdims=True))
    return -logs[np.arange(len(labels)), labels].mean()


@pytest.mark.parametrize("net", slow_links.WIDTHS)
def test_gradient_is_the_slope_of_the_loss(net):
    data = datasets.load().first(64)
    images, labels = data.train_images.reshape(-1, 784)[:8].astype(float), data.train_labels[:8]
    weights = [array.astype(float) for array in slow_links.weights_of(net)]
    found = slow_links.gradients(weights, images, labels)
    assert [array.shape for array in found] == [array.shape for array in weights]
    assert [4 * array.size for array in found] == slow_links.sizes(net)
    for place in (0, 1, len(weights) // 2, -2, -1):
        at = np.unravel_index(np.abs(found[place]).argmax(), found[place].shape)
        ends = []
        for change in (1e-6, -2e-6):
            weights[place][at] += change
            ends.append(loss(weights, images, labels))
        weights[place][at] += 1e-6
        assert found[place][at] == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-4)


def both(comm, net):
    return {scheme: slow_links.train(comm, net, scheme, 1) for scheme in slow_links.SCHEMES}


@pytest.mark.parametrize("ranks", [2, 3])
def test_fusion_changes_no_weight_and_all_ranks_agree(ranks):
    with Cluster(ranks=ranks, oversubscribe=True) as cluster:
        every = cluster.run(both, "deep")
        slower = cluster.run(slow_links.train, "deep", "fused", 1, [0.001, 0.02, 0.001][:ranks])
    for scheme in slow_links.SCHEMES:
        for seconds, weights in (found[scheme] for found in every):
            assert len(seconds) == 1
            for own, first in zip(weights, every[0][scheme][1], strict=True):
                np.testing.assert_array_equal(own, first)
    # three ranks may be added up in another order
    close = {"rtol": 0, "atol": 0.0 if ranks == 2 else 1e-6}
    for one, other in zip(every[0]["one by one"][1], every[0]["fused"][1], strict=True):
        np.testing.assert_allclose(one, other, **close)
    # the slowest rank's time counts, on every rank
    assert all(seconds == slower[0][0] and seconds[0] >= 0.02 for seconds, _ in slower)


def test_slow_host_gets_as_many_samples_in_all():
    cases = {case: times for case, _, times in slow_links.slow_host(0.01)}
    assert cases["all alike"] == [0.08] * 4
    assert max(cases["one slow"]) == 0.16
    assert cases["shares by speed"] == pytest.approx([0.32 / 3] * 4)


# A user namespace in which the kernel makes no network namespace: a real refusal.
DENY = 'echo 0 > /proc/sys/user/max_net_namespaces && exec "$@"'


@pytest.mark.long("lessons-2")
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("lesson", "near_its_end"),
    [
        ("71", "is the fastest of the first three (elsewhere)"),
        ("94", "a step of data parallelism computes during"),
    ],
)
def test_lesson_runs_where_no_namespace_can_be_made(monkeypatch, tmp_path, lesson, near_its_end):
    cutter = ("unshare", "-rn", "sh", "-c", DENY, "sh")
    trial = [*cutter, "sh", "-c", "unshare --net true || echo refused"]
    if "refused" not in commands.run(trial, 20).output.split():
        pytest.skip("this system allows no user namespace, so it refuses by itself or not at all")
    monkeypatch.setattr(execution, "network_cutter", lambda: cutter)
    (path,) = NOTEBOOKS.glob(f"{lesson}_*.ipynb")
    output = tmp_path / path.name
    result = execution.execute(path, 350, output=output, fast=True)
    assert result.ok, result.error
    text = output.read_text(encoding="utf-8")
    assert "this machine allows no namespaces" in text
    assert "MEASURED ELSEWHERE" in text
    assert near_its_end in text
