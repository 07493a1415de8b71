"""The engine: computes. It owns every array and is the only importer of mlx.

Importing it loads a BLAS, so that on a Linux CPU an mlx that is imported later multiplies with it.
``Engine`` is imported when it is first asked for: it brings mlx and transformers along, and who
only checks parameters, or refuses a bad file, need not wait for them.
"""

from typing import TYPE_CHECKING

from .blas import load as _load_blas
from .graph_limits import set_graph_limits as _set_graph_limits

_load_blas()
_set_graph_limits()

from .answer import Answer, Delta, TokenLogprob, Usage  # noqa: E402  # a BLAS goes before mlx
from .errors import EngineError, ModelError, RequestError  # noqa: E402
from .sampling_params import SamplingParams  # noqa: E402

if TYPE_CHECKING:
    from .engine import Engine

__all__ = [
    "Answer",
    "Delta",
    "Engine",
    "EngineError",
    "ModelError",
    "RequestError",
    "SamplingParams",
    "TokenLogprob",
    "Usage",
]


def __getattr__(name: str) -> object:
    if name == "Engine":
        from .engine import Engine

        return Engine
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
