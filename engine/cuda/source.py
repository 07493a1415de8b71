"""CUDA sources beside this file, made into kernels that MLX compiles when they first run."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx

FOLDER = Path(__file__).parent / "kernels"

Template = list[tuple[str, int | mx.Dtype]]


class Kernel:
    """A kernel whose ``body`` calls what ``files`` define, with its template arguments.

    ``blocks`` of ``threads`` are to fit on a multiprocessor at once; ``shared_memory`` is in bytes.
    Inputs come as they are laid out unless ``contiguous``; the body then uses their strides. Make
    one once for its template and keep it: a step launches hundreds.
    """

    def __init__(
        self,
        name: str,
        files: Sequence[str],
        body: str,
        inputs: Sequence[str],
        outputs: Sequence[str],
        *,
        template: Template,
        threads: int,
        blocks: int = 1,
        shared_memory: int = 0,
        contiguous: bool = True,
    ) -> None:
        # MLX hashes all of a kernel's source at each launch: files are named in it, not copied
        header = "\n".join(f'#include "{FOLDER / file}"' for file in files)
        # MLX writes the signature itself: the launch bounds have to hide in the word before it
        bounds = f"__attribute__((global)) __launch_bounds__({threads}, {blocks})"
        self.threads = threads
        self.template = template
        self._threadgroup = (threads, 1, 1)
        self._call: Any = mx.fast.cuda_kernel(
            name=name,
            input_names=list(inputs),
            output_names=list(outputs),
            source=body,
            header=f"{header}\n#undef __global__\n#define __global__ {bounds}\n",
            ensure_row_contiguous=contiguous,
            shared_memory=shared_memory,
        )

    def __call__(
        self,
        inputs: list[mx.array],
        grid: tuple[int, int, int],
        shapes: list[tuple[int, ...]],
        dtypes: list[mx.Dtype],
    ) -> list[mx.array]:
        """Launch ``grid`` blocks; return outputs of ``shapes`` and ``dtypes``."""
        outputs: list[mx.array] = self._call(
            inputs=inputs,
            template=self.template,
            grid=(grid[0] * self.threads, grid[1], grid[2]),
            threadgroup=self._threadgroup,
            output_shapes=shapes,
            output_dtypes=dtypes,
        )
        return outputs
