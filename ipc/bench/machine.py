"""On what a run ran: the machine, the versions, how busy it was."""

import importlib.metadata
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

PACKAGES = ("octavo", "mlx", "mlx-lm", "numpy", "scipy-openblas32", "mkl", "llguidance")


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that figures depend on."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, str | int | None]:
    """Return the processor, how many cores this process may use, memory, and the system."""
    return {
        "processor": processor(),
        "cores": usable_cores(),
        "memory_bytes": memory_bytes(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def processor() -> str | None:
    """Return the processor's name as the system gives it."""
    if sys.platform == "darwin":
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        told = subprocess.run(command, capture_output=True, text=True, check=False)
        return told.stdout.strip() or None
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or None
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), None
    )


def usable_cores() -> int | None:
    """Return how many cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def memory_bytes() -> int | None:
    """Return the machine's memory."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def load_average() -> float | None:
    """Return how many threads wanted a core over the last minute; None where nobody knows."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def resident_bytes() -> int | None:
    """Return the most memory this process ever had; None where nobody knows."""
    try:
        import resource
    except ImportError:
        return None
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def engine_facts(described: Mapping[str, object]) -> dict[str, object]:
    """Return what an engine says of itself, without paths, layers counted by their kind."""
    facts = {name: value for name, value in described.items() if name != "path"}
    if isinstance(facts.get("blas"), str):
        facts["blas"] = str(facts["blas"]).split(" from ")[0]
    layers = facts.get("layers")
    if isinstance(layers, list | tuple):
        facts["layers"] = {kind: layers.count(kind) for kind in dict.fromkeys(layers)}
    return facts
