"""What MLX is given of a kernel, without a device to compile it."""

from typing import Any

import mlx.core as mx
import pytest

from engine.cuda.source import FOLDER, Kernel


def test_a_kernel_names_its_files_and_does_not_hold_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """MLX hashes all of a kernel's source at each of the hundred launches of a step."""
    given: dict[str, Any] = {}
    monkeypatch.setattr(mx.fast, "cuda_kernel", lambda **arguments: given.update(arguments))
    files = ("warp.cuh", "product_chain.cuh")
    Kernel("any", files, "body();", ("x",), ("out",), template=[], threads=32)

    lines = given["header"].splitlines()
    assert lines[: len(files)] == [f'#include "{FOLDER / file}"' for file in files]
    assert all((FOLDER / file).is_file() for file in files)
    assert len(given["header"]) < 1000
