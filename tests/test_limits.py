"""Limits are those of the control groups around the process, in both versions."""

import pytest
from fake_machine import tree, write

from dlguide.machine import limits


@pytest.mark.parametrize(
    ("files", "groups", "quota"),
    [
        ({"cpu.max": "max 100000"}, "0::/", None),
        ({"cpu.max": "150000 100000"}, "0::/", 1.5),
        ({"cpu.max": "150000 100000"}, "", 1.5),
        ({"a/cpu.max": "200000 100000", "a/b/cpu.max": "max 100000"}, "0::/a/b", 2.0),
        ({"a/cpu.max": "200000 100000", "a/b/cpu.max": "50000 100000"}, "0::/a/b", 0.5),
        ({"cpu.max": "300000 100000"}, "0::/docker/not/mounted", 3.0),
        ({"other/cpu.max": "100000 100000"}, "0::/a", None),
        ({"cpu/cpu.cfs_quota_us": -1, "cpu/cpu.cfs_period_us": 100000}, "4:cpu:/", None),
        ({"cpu/cpu.cfs_quota_us": 250000, "cpu/cpu.cfs_period_us": 100000}, "4:cpu:/", 2.5),
        (
            {
                "cpu,cpuacct/job/cpu.cfs_quota_us": 200000,
                "cpu,cpuacct/job/cpu.cfs_period_us": 100000,
            },
            "0::/\n4:cpu,cpuacct:/job",
            2.0,
        ),
    ],
)
def test_quota_is_the_least_quota_around_the_process(tmp_path, files, groups, quota):
    sys_root, proc_root = tree(tmp_path, cores=4)
    write(proc_root / "self/cgroup", groups)
    for file, text in files.items():
        write(sys_root / "fs/cgroup" / file, text)
    assert limits.quota_cores(sys_root, proc_root) == quota


@pytest.mark.parametrize(
    ("file", "groups"),
    [("memory.max", "0::/"), ("memory/memory.limit_in_bytes", "9:memory:/")],
)
def test_memory_is_no_more_than_the_control_group_allows(tmp_path, file, groups):
    sys_root, proc_root = tree(tmp_path)
    write(proc_root / "self/cgroup", groups)
    write(sys_root / "fs/cgroup" / file, 2**31)
    assert limits.memory_bytes(sys_root, proc_root) == 2**31
    write(sys_root / "fs/cgroup" / file, 2**63 - 4096)
    assert limits.memory_bytes(sys_root, proc_root) == 16 * 2**30
