"""Every rank gets its own GPU, or all ranks get the same reason why not.

Tests dlguide.machine.accelerators and dlguide.training.devices. No GPU is needed: what ranks see
is written down, and a stand-in answers in the place of TensorFlow's configuration.
"""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as some
from lanes import long
from on_ranks import on_ranks

from dlguide.errors import MissingComponentError
from dlguide.machine import accelerators
from dlguide.machine.accelerators import DeviceAssignment, VisibleGpus


def gpus_of(everyone, device="auto"):
    return [(place.device, place.gpu) for place in accelerators.assign(everyone, device)]


def gpus(count):
    return tuple(map(str, range(count)))


def test_ranks_of_a_node_take_its_gpus_in_turn_however_ranks_are_dealt_out():
    block = [VisibleGpus("a", gpus(4))] * 4 + [VisibleGpus("b", gpus(4))] * 4
    assert gpus_of(block) == [("gpu", k) for k in (0, 1, 2, 3, 0, 1, 2, 3)]
    turns = [VisibleGpus(host, gpus(2)) for host in ("a", "b", "c", "a", "b", "c")]
    assert gpus_of(turns, "gpu") == [("gpu", k) for k in (0, 0, 0, 1, 1, 1)]
    for everyone in (block, turns):
        pairs = [(one.host, gpu) for one, (_, gpu) in zip(everyone, gpus_of(everyone), strict=True)]
        assert len(set(pairs)) == len(everyone)


def test_where_the_batch_system_shows_each_rank_its_own_gpu_each_takes_the_first():
    assert gpus_of([VisibleGpus("a", (f"GPU-{k}",)) for k in range(4)]) == [("gpu", 0)] * 4
    # one restriction for the whole node is none of each rank's own
    assert gpus_of([VisibleGpus("a", ("2", "3"))] * 2) == [("gpu", 0), ("gpu", 1)]
    assert gpus_of([VisibleGpus("a", ("3",))]) == [("gpu", 0)]
    mixed = [
        VisibleGpus("a", ("0",)),
        VisibleGpus("a", ("1",)),
        VisibleGpus("b", gpus(2)),
        VisibleGpus("b", gpus(2)),
    ]
    assert gpus_of(mixed) == [("gpu", 0), ("gpu", 0), ("gpu", 0), ("gpu", 1)]


@given(some.lists(some.permutations("0123").flatmap(
    lambda order: some.integers(1, 4).map(lambda many: tuple(order[:many]))
), min_size=1, max_size=4))  # fmt: skip
def test_lists_that_overlap_give_each_rank_another_gpu_where_that_can_be(lists):
    possible = any(len(set(pick)) == len(lists) for pick in itertools.product(*lists))
    found = accelerators.assign([VisibleGpus("a", each) for each in lists])
    assert {place.device for place in found} == {"gpu" if possible else "cpu"}
    if possible:
        names = [each[place.gpu] for each, place in zip(lists, found, strict=True)]
        assert len(set(names)) == len(lists)


def test_names_are_the_drivers_so_that_two_numbers_0_are_two_gpus():
    assert accelerators.unique_names(1, "0", ["GPU-a"]) != accelerators.unique_names(
        1, "0", ["GPU-b"]
    )
    assert accelerators.unique_names(1, "GPU-x", ["GPU-a"]) == ("GPU-x",)
    assert accelerators.unique_names(2, "1, 0", []) == ("1", "0")
    assert accelerators.unique_names(0, "", []) == ()
    assert accelerators.unique_names(2, None, ["GPU-a", "GPU-b"]) == ("GPU-a", "GPU-b")


def test_without_gpus_auto_says_so_and_gpu_is_refused():
    everyone = [VisibleGpus("a", ())] * 2
    places = accelerators.assign(everyone)
    assert {place.device for place in places} == {"cpu"}
    assert "sees no GPU on this machine" in places[0].why
    with pytest.raises(MissingComponentError, match=r"sees no GPU on this machine.*device='cpu'"):
        accelerators.assign(everyone, "gpu")


def test_more_ranks_than_gpus_are_refused_and_auto_sends_all_to_the_cpu():
    with pytest.raises(ValueError, match="at most the 1 GPU of a, one per rank, got 2"):
        accelerators.assign([VisibleGpus("a", ("0",))] * 2, "gpu")
    assert gpus_of([VisibleGpus("a", ("0",))] * 2, "cpu") == [("cpu", None)] * 2
    everyone = [VisibleGpus("a", gpus(2))] * 2 + [VisibleGpus("b", gpus(2))] * 3
    assert gpus_of(everyone) == [("cpu", None)] * 5
    assert "3 ranks and 2 GPUs on b: the CPU for all" in accelerators.assign(everyone)[0].why


class Config:
    """Answers as `tf.config` does on a node with some GPUs."""

    def __init__(self, gpus, started=False):
        self.gpus, self.visible, self.started, self.grows = gpus, list(gpus), started, []
        self.experimental = SimpleNamespace(
            get_memory_growth=lambda gpu: (gpu, True) in self.grows,
            set_memory_growth=self.set_memory_growth,
        )

    def set_memory_growth(self, gpu, grow):
        if self.started:
            raise RuntimeError("Physical devices cannot be modified after being initialized")
        self.grows.append((gpu, grow))

    def list_physical_devices(self, kind):
        return list(self.gpus)

    def get_visible_devices(self, kind):
        return list(self.visible)

    def set_visible_devices(self, devices, kind):
        if self.started:
            raise RuntimeError("Visible devices cannot be modified after being initialized")
        self.visible = list(devices)


def test_a_rank_sees_its_gpu_only_and_the_cpu_sees_none():
    config = Config(["g0", "g1", "g2"])
    accelerators.select(DeviceAssignment("gpu", 1, ""), config)
    assert config.visible == ["g1"]
    assert config.grows == [("g1", True)]
    config = Config(["g0"])
    accelerators.select(DeviceAssignment("cpu", None, ""), config)
    assert config.visible == []
    assert config.grows == []


def test_too_late_is_an_error_unless_nothing_changes():
    with pytest.raises(RuntimeError, match="already computed"):
        accelerators.select(DeviceAssignment("gpu", 1, ""), Config(["g0", "g1"], started=True))
    accelerators.select(DeviceAssignment("cpu", None, ""), Config([], started=True))
    only = Config(["g0"])
    accelerators.select(DeviceAssignment("gpu", 0, ""), only)
    assert only.grows == [("g0", True)]  # where a job shows each rank its GPU alone, too
    only.started = True
    accelerators.select(DeviceAssignment("gpu", 0, ""), only)
    assert only.visible == ["g0"]


def chosen():
    from dlguide.machine import accelerators
    from dlguide.training import devices
    from dlguide.training.devices import connect

    comm, found = connect(), {}
    real = accelerators.visible_gpus
    for wish in ("cpu", "auto", "gpu", "uneven"):
        if wish == "uneven":  # rank 0 sees a GPU, the others none: all must come to one answer
            mine = accelerators.VisibleGpus(
                f"n{comm.rank}", ("0",) * (comm.rank == 0 < comm.size - 1)
            )
            accelerators.visible_gpus = lambda mine=mine: mine
        try:
            place = devices.choose("auto" if wish == "uneven" else wish, comm)
            found[wish] = [place.device, place.why]
        except Exception as error:  # the text is what is compared
            found[wish] = ["error", f"{type(error).__name__}: {error}"]
    accelerators.visible_gpus = real
    return found


@pytest.mark.parametrize("ranks", [2, *long(1, 3)])
def test_all_ranks_choose_alike(ranks, tmp_path):
    found = on_ranks(ranks, chosen, tmp_path, env={"CUDA_VISIBLE_DEVICES": ""})
    assert all(one == found[0] for one in found)
    expected = {"cpu": "as requested", "auto": "sees no GPU", "gpu": "sees no GPU"}
    for wish, words in expected.items():
        assert found[0][wish][0] == ("error" if wish == "gpu" else "cpu")
        assert words in found[0][wish][1]
    assert found[0]["uneven"][0] == "cpu"
    assert "on n1" in found[0]["uneven"][1] or ranks == 1
