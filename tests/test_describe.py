"""What `machine.describe` finds on trees of files and on the machine the tests run on."""

import json
import os
import subprocess
import sys

import psutil
import pytest
from fake_machine import tree, write

from dlguide import machine
from dlguide.machine.describe import Machine


def describe(roots, cpus):
    return machine.describe(*roots, cpus=cpus)


@pytest.mark.parametrize("siblings", [True, False])
def test_describe_counts_a_two_socket_xeon_with_hyperthreads(tmp_path, siblings):
    # without lists of siblings the pair (socket, core id) must tell, and core ids repeat
    roots = tree(
        tmp_path,
        sockets=2,
        cores=24,
        threads=2,
        siblings=siblings,
        model="Intel(R) Xeon(R) Platinum 8160 CPU @ 2.10GHz",
        flags="fpu sse4_2 avx f16c avx2 fma avx512f avx512bw",
    )
    found = describe(roots, range(96))
    assert (found.sockets, found.numa_nodes) == (2, 2)
    assert (found.physical_cores, found.logical_cores, found.usable_cores) == (48, 96, 48)
    assert found.processor == "Intel(R) Xeon(R) Platinum 8160 CPU @ 2.10GHz"
    assert found.simd == ("sse4_2", "avx", "f16c", "fma", "avx2", "avx512f", "avx512bw")
    assert found.caches == {"L1d": 32 * 1024, "L1i": 32 * 1024, "L2": 1024 * 1024}
    assert found.memory_bytes == 16 * 2**30
    assert found.quota_cores is None
    for core in found.cores:
        assert core.numa == core.socket == core.cpu % 48 // 24
        assert core.core == core.cpu % 48


def test_describe_counts_only_what_the_affinity_allows(tmp_path):
    roots = tree(tmp_path, sockets=2, cores=24, threads=2)
    found = describe(roots, [24, 25, 72])
    assert (found.sockets, found.numa_nodes) == (1, 1)
    assert (found.physical_cores, found.logical_cores) == (2, 3)
    assert [core.core for core in found.cores] == [24, 25, 24]


def test_a_core_has_one_number_in_every_process(tmp_path):
    roots = tree(tmp_path, sockets=2, cores=4, threads=2)
    everything = {core.cpu: core for core in describe(roots, range(16)).cores}
    for cpu in range(16):
        assert describe(roots, [cpu]).cores == (everything[cpu],)


def test_dies_of_one_socket_do_not_share_cores(tmp_path):
    sys_root, proc_root = tree(tmp_path, cores=4, siblings=False)
    for cpu in range(4):
        write(sys_root / f"devices/system/cpu/cpu{cpu}/topology/core_id", cpu % 2)
        write(sys_root / f"devices/system/cpu/cpu{cpu}/topology/die_id", cpu // 2)
    assert describe((sys_root, proc_root), range(4)).physical_cores == 4


def test_the_kernel_s_siblings_go_before_core_numbers(tmp_path):
    # some virtual machines number every core 0
    sys_root, proc_root = tree(tmp_path, cores=4, threads=2)
    for cpu in range(8):
        write(sys_root / f"devices/system/cpu/cpu{cpu}/topology/core_id", 0)
    found = describe((sys_root, proc_root), range(8))
    assert (found.physical_cores, found.logical_cores) == (4, 8)


def test_a_laptop_is_one_node(tmp_path):
    found = describe(tree(tmp_path, cores=4, threads=2), range(8))
    assert (found.sockets, found.numa_nodes, found.physical_cores) == (1, 1, 4)


def test_missing_topology_counts_each_cpu_as_a_core(tmp_path):
    found = machine.describe(tmp_path / "sys", tmp_path / "proc", cpus=[0, 3, 5])
    assert [(core.cpu, core.core) for core in found.cores] == [(0, 0), (3, 1), (5, 2)]
    assert (found.sockets, found.numa_nodes, found.physical_cores) == (1, 1, 3)
    assert (found.caches, found.simd, found.gpus, found.memory_bytes) == ({}, (), (), 0)
    assert "unknown" in str(found)


def test_cpuinfo_tells_cores_where_sys_is_hidden(tmp_path):
    _, proc_root = tree(tmp_path, sockets=2, cores=4, threads=2)
    found = machine.describe(tmp_path / "none", proc_root, cpus=range(16))
    assert (found.sockets, found.physical_cores, found.logical_cores) == (2, 8, 16)


def test_numbers_of_minus_one_mean_that_the_firmware_does_not_say(tmp_path):
    sys_root, proc_root = tree(tmp_path, cores=4, siblings=False)
    for cpu in range(4):
        for file in ("core_id", "die_id", "physical_package_id"):
            write(sys_root / f"devices/system/cpu/cpu{cpu}/topology/{file}", -1)
    found = describe((sys_root, proc_root), range(4))
    assert (found.sockets, found.physical_cores) == (1, 4)


@pytest.mark.parametrize(("quota", "usable"), [(50000, 1), (150000, 2), (400000, 4), (900000, 4)])
def test_usable_cores_are_no_more_than_affinity_and_quota(tmp_path, quota, usable):
    sys_root, proc_root = tree(tmp_path, cores=4, threads=2)
    write(sys_root / "fs/cgroup/cpu.max", f"{quota} 100000")
    found = describe((sys_root, proc_root), range(8))
    assert found.usable_cores == usable
    assert f"CPU time for {quota / 100000:g} cores" in str(found)


def test_describe_names_the_gpus_of_both_drivers(tmp_path):
    sys_root, proc_root = tree(tmp_path)
    write(
        proc_root / "driver/nvidia/gpus/0000:01:00.0/information", "Model: \t NVIDIA P100\nIRQ: 1"
    )
    nodes = sys_root / "class/kfd/kfd/topology/nodes"
    write(nodes / "0/gpu_id", 0)  # the processor itself
    write(nodes / "1/gpu_id", 4711)
    write(nodes / "1/name", "gfx906")
    assert describe((sys_root, proc_root), range(2)).gpus == ("NVIDIA P100", "gfx906")


def test_no_cpus_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"`cpus` must name at least one logical CPU, got \[\]"):
        machine.describe(cpus=[])


def test_a_machine_survives_json(tmp_path):
    for found in (machine.describe(), describe(tree(tmp_path, 2, 4, 2), range(16))):
        again = Machine.from_dict(json.loads(json.dumps(found.as_dict())))
        assert again == found
        assert hash(again) == hash(found)


def test_describe_agrees_with_the_system_here():
    found = machine.describe()
    assert {core.cpu for core in found.cores} == os.sched_getaffinity(0)
    if len(found.cores) == psutil.cpu_count():
        assert found.physical_cores == (psutil.cpu_count(logical=False) or found.logical_cores)
    assert 0 < found.memory_bytes <= psutil.virtual_memory().total
    assert 1 <= found.usable_cores <= found.physical_cores <= found.logical_cores


def test_describe_honours_the_affinity_of_its_process():
    cpu = max(os.sched_getaffinity(0))
    code = (
        f"import os; os.sched_setaffinity(0, {{{cpu}}}); from dlguide import machine; "
        "print([core.cpu for core in machine.describe().cores])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == f"[{cpu}]", done.stderr


def test_the_stamp_is_a_few_lines_with_the_counts(tmp_path):
    text = describe(tree(tmp_path, 2, 24, 2), range(96)).summary()
    assert len(text.splitlines()) <= 6
    for part in ("48 physical cores", "96 hardware threads", "2 sockets", "L2 1 MiB", "16 GiB"):
        assert part in text
