"""What was found out about the BLAS of this process."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class BlasInfo:
    """The library behind MLX's float32 products on the CPU.

    ``reason`` is None when a library was loaded for MLX; otherwise it says why MLX keeps its own.
    ``path`` is the file (a copy made without a cache folder is already deleted when this is read).
    ``threads`` is None where nobody knows it. ``lanes`` is how many streams of MLX may divide
    products among them, instead of the library's own threads.
    """

    name: str  # openblas, mkl, system, preloaded, the stem of a named file; reference, mlx
    path: Path | None = None
    threads: int | None = None
    lanes: int = 1
    threading: str = "unknown"  # sequential, pthreads, openmp, intel
    kernels: str | None = None  # the processor whose kernels OpenBLAS runs
    reason: str | None = None

    @property
    def loaded(self) -> bool:
        """Whether another library than MLX's own does the products."""
        return self.reason is None

    def __str__(self) -> str:
        details = [f"{self.threads} thread{'s' * (self.threads != 1)}"] if self.threads else []
        if self.threading != "unknown":
            details.append(f"{self.threading} threading")
        if self.kernels:
            details.append(f"{self.kernels} kernels")
        text = f"{self.name} ({', '.join(details)})" if details else self.name
        return f"{text} from {self.path}" if self.path else text
