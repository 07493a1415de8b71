"""The engine: computes. It owns every array and is the only importer of mlx.

Importing it loads a BLAS first and mlx second: on a Linux CPU, MLX then multiplies with it.
"""

from .blas import load as _load_blas

_load_blas()

from .answer import Answer, Delta, TokenLogprob, Usage  # noqa: E402  # a BLAS goes before mlx
from .engine import Engine  # noqa: E402
from .errors import EngineError, ModelError, RequestError  # noqa: E402
from .sampling_params import SamplingParams  # noqa: E402

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
