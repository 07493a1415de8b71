"""CUDA sources beside this file, made into kernels that MLX compiles when they first run."""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx

FOLDER = Path(__file__).parent / "kernels"

TemplateValue = int | bool | mx.Dtype
Template = tuple[tuple[str, TemplateValue], ...]


@cache
def read_source(file: str) -> str:
    """Return the text of one source file."""
    return (FOLDER / file).read_text()


@cache
def make_kernel(
    name: str,
    files: tuple[str, ...],
    body: str,
    inputs: tuple[str, ...],
    outputs: tuple[str, ...],
    *,
    threads: int,
    blocks: int = 1,
    shared_memory: int = 0,
    contiguous: bool = True,
) -> Callable[..., list[mx.array]]:
    """Return a kernel whose ``body`` calls what ``files`` define.

    ``blocks`` of ``threads`` are to fit on a multiprocessor at once; ``shared_memory`` is in bytes.
    Inputs come as they are laid out unless ``contiguous``; the body then uses their strides.
    """
    header = "\n".join(read_source(file) for file in files)
    # MLX writes the signature itself: the launch bounds have to hide in the word before it
    bounds = f"__attribute__((global)) __launch_bounds__({threads}, {blocks})"
    kernel: Any = mx.fast.cuda_kernel(
        name=name,
        input_names=inputs,
        output_names=outputs,
        source=body,
        header=f"{header}\n#undef __global__\n#define __global__ {bounds}\n",
        ensure_row_contiguous=contiguous,
        shared_memory=shared_memory,
    )
    return kernel  # type: ignore[no-any-return]


def launch(
    kernel: Callable[..., list[mx.array]],
    inputs: Sequence[mx.array],
    template: Template,
    *,
    grid: tuple[int, int, int],
    threads: int,
    outputs: Sequence[tuple[tuple[int, ...], mx.Dtype]],
) -> list[mx.array]:
    """Launch ``grid`` blocks of ``threads``; ``outputs`` are (shape, type)."""
    return kernel(
        inputs=list(inputs),
        template=list(template),
        grid=(grid[0] * threads, grid[1], grid[2]),
        threadgroup=(threads, 1, 1),
        output_shapes=[shape for shape, _ in outputs],
        output_dtypes=[dtype for _, dtype in outputs],
    )
