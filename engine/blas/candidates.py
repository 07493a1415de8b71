"""Which BLAS libraries this machine has, in the order in which they are tried."""

import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import Distribution, distributions
from pathlib import Path

from .renamed import cache_folder
from .settings import Settings

# OpenBLAS first: the usual one. BLIS is faster for few rows and slower at 32 (docs/blas.md).
_SYSTEM_NAMES = ("libopenblas.so.0", "libopenblasp.so.0", "libblis.so.4", "libblis.so")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A library that may serve; ``version`` is set where it needs a renamed copy."""

    name: str
    source: Path | str
    version: str | None = None
    exact: bool = False


@dataclass(frozen=True, slots=True)
class Places:
    """Where to look: folders of installed distributions, install prefixes, the linker's names."""

    site_folders: Sequence[str]
    prefixes: Sequence[Path] = ()
    system_names: Sequence[str] = _SYSTEM_NAMES
    cache: Path | None = None
    environ: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of_process(cls, environ: Mapping[str, str]) -> "Places":
        """The places of the interpreter that runs this."""
        prefixes = [Path(sys.prefix), Path(sys.base_prefix)]
        return cls(sys.path, prefixes, cache=cache_folder(environ), environ=environ)

    def installed_files(self, name: str) -> tuple[str, dict[str, Path]] | None:
        """Version and existing files (by file name) of the distribution ``name``."""
        found: Distribution | None = next(
            iter(distributions(name=name, path=list(self.site_folders))), None
        )
        if found is None:
            return None
        located = {file.name: str(found.locate_file(file)) for file in found.files or ()}
        files = {name: Path(os.path.normpath(path)) for name, path in located.items()}
        return found.version, {name: file for name, file in files.items() if file.is_file()}

    def gpu_build(self) -> str | None:
        """The distribution of MLX's NVIDIA build, if one is installed."""
        for folder in self.site_folders:
            for found in sorted(Path(folder or ".").glob("mlx_cuda*.dist-info")):
                return found.name.removesuffix(".dist-info")
        return None

    def reference(self) -> Path | None:
        """The BLAS that came inside MLX's CPU wheel."""
        for folder in self.site_folders:
            for found in sorted(Path(folder or ".").glob("mlx_cpu.libs/libblas*.so*")):
                return found
        return None


def find_candidates(settings: Settings, places: Places) -> list[Candidate]:
    """What was asked for, then everything else: scipy-openblas32, mkl, the system's.

    ``exact`` is never replaced by a library that does not keep the promise.
    """
    if settings.name == "exact":
        runs_avx = platform.machine() in ("x86_64", "AMD64")
        return [candidate for candidate in _openblas(places, exact=True) if runs_avx]
    found = [*_openblas(places), *_mkl(places), *_system(places)]
    asked = [candidate for candidate in found if candidate.name == settings.name]
    if settings.file is not None:
        asked = [Candidate(settings.file.name.partition(".")[0], settings.file)]
    return asked + [candidate for candidate in found if candidate not in asked]


def _mkl(places: Places) -> list[Candidate]:
    installed = places.installed_files("mkl")
    files = installed[1] if installed else {}
    found = [file for name, file in files.items() if name.startswith("libmkl_rt.so")]
    for prefix in places.prefixes:  # where conda puts it
        found += prefix.glob("lib/libmkl_rt.so*")
    return [Candidate("mkl", file) for file in sorted(found, key=str)[-1:]]


def _openblas(places: Places, *, exact: bool = False) -> list[Candidate]:
    installed = places.installed_files("scipy-openblas32")
    if installed is None:
        return []
    version, files = installed
    found = [file for name, file in files.items() if name.startswith("libscipy_openblas.so")]
    return [Candidate("openblas", file, version, exact) for file in found[:1]]


def _system(places: Places) -> list[Candidate]:
    return [Candidate("system", name) for name in places.system_names]
