"""What Linux lets this process's control group use (versions 1 and 2), read from its files."""

from collections.abc import Iterator
from pathlib import Path


def memory_available(root: Path = Path("/")) -> int | None:
    """Bytes that this process may still take: MemAvailable and what every group above it leaves.

    None where /proc does not say (not Linux). A group's page cache that it is not using counts as
    available, as in MemAvailable.
    """
    available = _mem_available(root / "proc/meminfo")
    if available is None:
        return None
    for folder, is_v2 in _group_folders(root, "memory"):
        names = ("memory.max", "memory.current") if is_v2 else (
            "memory.limit_in_bytes", "memory.usage_in_bytes"
        )  # fmt: skip
        limit, used = (_number(folder / name) for name in names)
        if limit is None or used is None:  # version 2 says max where there is no limit
            continue
        cached = _statistic(folder / "memory.stat", "inactive_file" if is_v2 else (
            "total_inactive_file"
        ))  # fmt: skip
        available = min(available, max(0, limit - max(0, used - cached)))
    return available


def memory_limit(root: Path = Path("/")) -> int | None:
    """Bytes that the tightest group above this process may have in all, None if unlimited."""
    limits = [
        _number(folder / ("memory.max" if is_v2 else "memory.limit_in_bytes"))
        for folder, is_v2 in _group_folders(root, "memory")
    ]
    return min((limit for limit in limits if limit is not None), default=None)


def cpu_quota(root: Path = Path("/")) -> float | None:
    """Cores' worth of time that the tightest group above this process allows, None if unlimited."""
    quotas = []
    for folder, is_v2 in _group_folders(root, "cpu"):
        if is_v2:
            quota, _, period = _text(folder / "cpu.max").partition(" ")
        else:
            quota = _text(folder / "cpu.cfs_quota_us")
            period = _text(folder / "cpu.cfs_period_us")
        if quota.isdecimal() and period.isdecimal() and int(period) > 0:
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def _group_folders(root: Path, controller: str) -> Iterator[tuple[Path, bool]]:
    """Folders of this process's groups and their ancestors, each with: is it version 2."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        is_v2 = number == "0" and not controllers
        mount = root / "sys/fs/cgroup"
        if is_v2:
            mount = mount / "unified" if (mount / "unified").is_dir() else mount
        elif controller in controllers.split(","):
            mount = mount / controllers if (mount / controllers).is_dir() else mount / controller
        else:
            continue
        # Inside a container the path may be the host's, and only the mount's own files exist.
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for depth in range(len(parts), -1, -1):
            folder = mount.joinpath(*parts[:depth])
            if folder.is_dir():
                yield folder, is_v2


def _mem_available(meminfo: Path) -> int | None:
    for line in _text(meminfo).splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _statistic(file: Path, name: str) -> int:
    for line in _text(file).splitlines():
        key, _, value = line.partition(" ")
        if key == name and value.strip().isdecimal():
            return int(value)
    return 0


def _number(file: Path) -> int | None:
    text = _text(file)
    return int(text) if text.isdecimal() else None


def _text(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""
