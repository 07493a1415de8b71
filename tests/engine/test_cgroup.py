"""What the control groups leave of memory and cores, read from made-up files."""

from pathlib import Path

import pytest

from engine.cgroup import cpu_quota, memory_available, memory_limit

GIB = 1 << 30


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(tmp_path, "proc/meminfo", f"MemTotal: 999 kB\nMemAvailable:   {8 * GIB // 1024} kB\n")
    return tmp_path


def write(root: Path, file: str, text: object) -> None:
    (root / file).parent.mkdir(parents=True, exist_ok=True)
    (root / file).write_text(f"{text}\n")


def test_without_groups_what_the_machine_has_available_counts(root: Path) -> None:
    assert memory_available(root) == 8 * GIB
    assert memory_limit(root) is None
    assert cpu_quota(root) is None


def test_without_proc_nothing_is_known(tmp_path: Path) -> None:
    assert memory_available(tmp_path) is None


def test_a_version_2_limit_counts_less_what_is_used_but_not_its_idle_cache(root: Path) -> None:
    write(root, "proc/self/cgroup", "0::/user/job")
    write(root, "sys/fs/cgroup/user/job/memory.max", 4 * GIB)
    write(root, "sys/fs/cgroup/user/job/memory.current", 3 * GIB)
    write(root, "sys/fs/cgroup/user/job/memory.stat", f"anon 1\ninactive_file {GIB}")

    assert memory_available(root) == 2 * GIB


def test_a_tighter_limit_of_a_group_above_holds(root: Path) -> None:
    write(root, "proc/self/cgroup", "0::/user/job")
    write(root, "sys/fs/cgroup/user/memory.max", 2 * GIB)
    write(root, "sys/fs/cgroup/user/memory.current", GIB)
    write(root, "sys/fs/cgroup/user/job/memory.max", 6 * GIB)
    write(root, "sys/fs/cgroup/user/job/memory.current", 0)

    assert memory_available(root) == GIB
    assert memory_limit(root) == 2 * GIB


def test_a_limit_above_what_the_machine_has_changes_nothing(root: Path) -> None:
    write(root, "proc/self/cgroup", "0::/job")
    write(root, "sys/fs/cgroup/job/memory.max", 64 * GIB)
    write(root, "sys/fs/cgroup/job/memory.current", 0)

    assert memory_available(root) == 8 * GIB


def test_no_limit_is_no_limit_in_both_versions(root: Path) -> None:
    write(root, "proc/self/cgroup", "4:memory:/job\n0::/job")
    write(root, "sys/fs/cgroup/unified/job/memory.max", "max")
    write(root, "sys/fs/cgroup/unified/job/memory.current", 5)
    write(root, "sys/fs/cgroup/memory/job/memory.limit_in_bytes", 9223372036854771712)
    write(root, "sys/fs/cgroup/memory/job/memory.usage_in_bytes", 5)

    assert memory_available(root) == 8 * GIB


def test_a_version_1_limit_counts_less_what_is_used(root: Path) -> None:
    write(root, "proc/self/cgroup", "9:name=systemd:/\n4:memory:/job\n3:cpuset:/\n0::/")
    write(root, "sys/fs/cgroup/memory/job/memory.limit_in_bytes", 4 * GIB)
    write(root, "sys/fs/cgroup/memory/job/memory.usage_in_bytes", 3 * GIB)
    write(root, "sys/fs/cgroup/memory/job/memory.stat", f"total_inactive_file {GIB // 2}")

    assert memory_available(root) == 3 * GIB // 2
    assert memory_limit(root) == 4 * GIB


def test_a_path_that_only_the_host_knows_falls_back_to_the_mount(root: Path) -> None:
    write(root, "proc/self/cgroup", "0::/docker/1234")
    write(root, "sys/fs/cgroup/memory.max", GIB)
    write(root, "sys/fs/cgroup/memory.current", 0)

    assert memory_available(root) == GIB


def test_a_group_over_its_limit_leaves_nothing(root: Path) -> None:
    write(root, "proc/self/cgroup", "0::/")
    write(root, "sys/fs/cgroup/memory.max", GIB)
    write(root, "sys/fs/cgroup/memory.current", 2 * GIB)

    assert memory_available(root) == 0


def test_the_tightest_quota_of_cores_holds(root: Path) -> None:
    write(root, "proc/self/cgroup", "0::/user/job")
    write(root, "sys/fs/cgroup/user/cpu.max", "250000 100000")
    write(root, "sys/fs/cgroup/user/job/cpu.max", "max 100000")
    assert cpu_quota(root) == 2.5

    write(root, "sys/fs/cgroup/cpu.max", "400000 100000")
    assert cpu_quota(root) == 2.5


@pytest.mark.parametrize("mount", ["cpu,cpuacct", "cpu"])
def test_a_version_1_quota_is_read_under_either_name_of_its_mount(root: Path, mount: str) -> None:
    write(root, "proc/self/cgroup", "2:cpu,cpuacct:/job")
    write(root, f"sys/fs/cgroup/{mount}/job/cpu.cfs_quota_us", 50000)
    write(root, f"sys/fs/cgroup/{mount}/job/cpu.cfs_period_us", 100000)
    assert cpu_quota(root) == 0.5

    write(root, f"sys/fs/cgroup/{mount}/job/cpu.cfs_quota_us", -1)
    assert cpu_quota(root) is None
