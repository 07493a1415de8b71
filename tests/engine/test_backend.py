"""Which backend an engine gets, and what is said where the one asked for cannot run."""

import mlx.core as mx
import pytest

from engine.backend import Backend, choose_backend
from engine.options import EngineOptions

needs_no_gpu = pytest.mark.skipif(mx.is_available(mx.gpu), reason="says what holds without a GPU")


@needs_no_gpu
@pytest.mark.parametrize("name", ["auto", "cpu"])
def test_without_a_gpu_layers_are_those_of_the_cpu(name) -> None:
    assert choose_backend(name, exact=False).name == "cpu"


@needs_no_gpu
@pytest.mark.parametrize(
    ("name", "exact"), [("portable", False), ("portable", True), ("auto", True)]
)
def test_layers_are_portable_where_asked_for_or_exact(name, exact) -> None:
    assert type(choose_backend(name, exact=exact)) is Backend


@needs_no_gpu
def test_the_layers_of_a_cpu_are_not_exact() -> None:
    with pytest.raises(ValueError, match="exact=True is defined by MLX's own operations"):
        choose_backend("cpu", exact=True)


@needs_no_gpu
def test_kernels_are_refused_where_nothing_can_run_them() -> None:
    with pytest.raises(ValueError, match="backend='cuda' needs MLX's CUDA build"):
        choose_backend("cuda", exact=False)


def test_an_unknown_backend_is_refused_by_name() -> None:
    with pytest.raises(
        ValueError, match="backend must be 'auto', 'portable', 'cpu' or 'cuda', not 'm'"
    ):
        EngineOptions(backend="m")
