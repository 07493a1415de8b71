"""Layers of a model whose products of few rows are quicker, on a CPU with OpenBLAS."""

from typing import Any

import mlx.core as mx
from mlx import nn

from .. import blas
from ..cgroup import memory_available
from ..quick_classes import exchange
from . import siblings
from .lanes import Lanes
from .siblings import Siblings
from .skinny_weight import LANE_VALUES, SkinnyWeight

FEWEST_APART = 64  # rows of x that pay for a lane of their own, which reads the weights once more
AT_A_TIME = 16  # weights
PANELS_SHARE = 0.25  # of the memory that is available: what they may take
UNPACKED_KERNELS = ("SkylakeX", "Cooperlake", "SapphireRapids")  # those that know the other way


def pays_apart(rows: int, lanes: Lanes) -> bool:
    """Whether each lane may well have rows of its own."""
    return rows // len(lanes.streams) >= FEWEST_APART


class SkinnyLinear(nn.Linear):
    """A Linear that is quicker, most for few rows; parameters and results are nn.Linear's."""

    skinny: SkinnyWeight

    def __call__(self, x: mx.array) -> mx.array:
        """Return x @ weight.T (+ bias), (..., outputs)."""
        product = self.skinny.product(x)
        return product + self["bias"] if "bias" in self else product


class SkinnyEmbedding(nn.Embedding):
    """An Embedding whose use as the output layer is quicker."""

    skinny: SkinnyWeight

    def as_linear(self, x: mx.array) -> mx.array:
        """Return x @ weight.T, (..., vocabulary)."""
        return self.skinny.product(x)


SKINNY: dict[type[Any], type[Any]] = {nn.Linear: SkinnyLinear, nn.Embedding: SkinnyEmbedding}


def pays_here() -> bool:
    """Whether products run on a CPU with OpenBLAS; MKL gains nothing by any of this."""
    used = blas.current()
    on_cpu = mx.default_device() == mx.Device(mx.cpu)
    return on_cpu and used is not None and used.name == "openblas"


def mostly_large(model: Any) -> bool:
    """Whether most of ``model``'s weights are in products that are worth dividing among lanes.

    Of a small model they are not: its products are over before another stream has begun.
    """
    kinds = {*SKINNY, *SKINNY.values()}  # another engine may have the model already
    weights: list[int] = [
        module["weight"].size for module in model.modules() if type(module) in kinds
    ]
    return 2 * sum(size for size in weights if size >= LANE_VALUES) > sum(weights)


def tiles_pay() -> bool:
    """Whether this BLAS has kernels that pack nothing below SMALL multiplications."""
    used = blas.current()
    return used is not None and used.kernels in UNPACKED_KERNELS


def panels_fit(model: Any) -> bool:
    """Whether there is plenty of memory for copies of all weights of ``model``."""
    modules = [module for module in model.modules() if type(module) in SKINNY]
    wanted: int = sum(module["weight"].nbytes for module in modules)
    return wanted <= (memory_available() or 0) * PANELS_SHARE


def quicken(model: Any, lanes: Lanes, *, tiles: bool, panels: bool = False, bar: int = 1) -> int:
    """Give the products of ``model`` the quicker class; return how many. Only these change.

    Call it after the weights are loaded, on the thread that will run the model. With several
    ``lanes`` the BLAS is left one thread.
    """
    if len(lanes.streams) > 1:
        blas.set_threads(1)
    found = exchange(model, SKINNY)
    for number, module in enumerate(found):
        with mx.stream(lanes.streams[number % len(lanes.streams)]):  # copies are made in turn
            module.skinny = SkinnyWeight(
                module["weight"], lanes, tiles=tiles, panels=panels, bar=bar
            )
    return len(found)


def join_siblings(model: Any) -> None:
    """Let layers of ``model`` that multiply the same input do so at once, where panels allow it."""
    for number, layers in enumerate(siblings.find(model)):
        if any(type(one) is not SkinnyLinear or one.skinny.has_siblings for one in layers):
            continue
        streams = layers[0].skinny.lanes.streams
        with mx.stream(streams[number % len(streams)]):  # copies are made in turn
            joined = Siblings.of([one.weight for one in layers])
        if joined is not None:
            for place, one in enumerate(layers):
                one.skinny.share(joined, place)


def copy_panels(model: Any) -> None:
    """Make all copies of weights, a few at a time, on all lanes."""
    modules = [module for module in model.modules() if type(module) in SKINNY.values()]
    copies = [panels.values for module in modules for panels in module.skinny.copies]
    for first in range(0, len(copies), AT_A_TIME):
        mx.eval(copies[first : first + AT_A_TIME])
