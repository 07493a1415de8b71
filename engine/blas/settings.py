"""What the environment asks of the BLAS: OCTAVO_BLAS and OCTAVO_BLAS_THREADS."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

logger = logging.getLogger("octavo")

NAMES = ("reference", "exact", "mkl", "openblas", "system")
_OTHERS_LIMITS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True, slots=True)
class Settings:
    """``name`` or ``file`` is what was asked for, both None when the choice is ours."""

    name: str | None = None
    file: Path | None = None
    threads: int | None = None
    threads_limit: int | None = None  # from the variables of OpenMP, OpenBLAS and MKL

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> "Settings":
        """Read ``environ``; a value that cannot be meant is reported and left out."""
        asked = environ.get("OCTAVO_BLAS", "").strip()
        name = file = None
        if asked.lower() in NAMES:
            name = asked.lower()
        elif Path(asked).is_file():
            file = Path(asked).absolute()
        elif asked:
            logger.warning(
                "OCTAVO_BLAS=%s is neither the path of a file nor one of %s: choosing myself",
                asked,
                ", ".join(NAMES),
            )
        limits = [_count(environ, variable) for variable in _OTHERS_LIMITS]
        return cls(
            name=name,
            file=file,
            threads=_count(environ, "OCTAVO_BLAS_THREADS", complain=True),
            threads_limit=min((limit for limit in limits if limit), default=None),
        )


def _count(environ: Mapping[str, str], variable: str, *, complain: bool = False) -> int | None:
    text = environ.get(variable, "").strip()
    if text.isdecimal() and int(text) > 0:
        return int(text)
    if text and complain:
        logger.warning("%s=%s is not a number of threads (1 or more): measuring", variable, text)
    return None
