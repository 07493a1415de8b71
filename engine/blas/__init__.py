"""The BLAS that MLX's CPU build multiplies with: found and loaded before mlx is imported.

Nothing here imports mlx or numpy.
"""

from .info import BlasInfo
from .loader import current, load, set_threads

__all__ = ["BlasInfo", "current", "load", "set_threads"]
