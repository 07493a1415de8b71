"""How much MLX puts into one CUDA graph, which it reads from the environment when it starts."""

import os
import sys

MOST_MEGABYTES = 1_000_000
"""MLX ends a graph once its operations have touched so much, counting whole arrays: a model's
weights and the pools of pages would end one every few operations, and each costs the host time."""


def set_graph_limits() -> None:
    """Let only the number of operations end a graph, unless the user has said otherwise.

    To be called before mlx is imported. On Linux alone: on Macs the same variable limits Metal's
    command buffers, for which MLX knows good numbers.
    """
    if sys.platform == "linux":
        os.environ.setdefault("MLX_MAX_MB_PER_BUFFER", str(MOST_MEGABYTES))
