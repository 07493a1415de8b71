"""The K/V of one attention layer, in blocks that any sequence may own or share.

One flat array for keys and one for values, (num_kv_heads * num_blocks * block_size, head_dim):
head h, block b, place i lies at row (h * num_blocks + b) * block_size + i. A block of one head is
then one contiguous piece, which is what makes gathering a copy of whole pieces, and the gathered
(rows, heads, positions, head_dim) array contiguous.

Writing happens in place because nobody else holds the arrays: write before gathering, at most one
write in an evaluation, and evaluate before the next one.
"""

from dataclasses import dataclass

import mlx.core as mx


@dataclass(frozen=True, slots=True)
class PageShape:
    """What one attention layer keeps of one position."""

    num_kv_heads: int
    key_dim: int
    value_dim: int
    dtype: mx.Dtype

    @property
    def bytes_per_position(self) -> int:
        """Bytes of K and V that one position takes in this layer."""
        return self.num_kv_heads * (self.key_dim + self.value_dim) * self.dtype.size


class Pages:
    """K/V pages of one attention layer."""

    def __init__(self, shape: PageShape, num_blocks: int, block_size: int) -> None:
        self.shape = shape
        self.num_blocks = num_blocks
        self.block_size = block_size
        rows = shape.num_kv_heads * num_blocks * block_size
        # zeros, not garbage: a stale NaN under a mask would still be NaN
        self.keys = mx.zeros((rows, shape.key_dim), shape.dtype)
        self.values = mx.zeros((rows, shape.value_dim), shape.dtype)

    def write(self, places: mx.array, keys: mx.array, values: mx.array) -> None:
        """Store ``keys`` and ``values``, (rows, heads, window, dim), at flat ``places``."""
        self.keys[places] = keys
        self.values[places] = values

    def gather(self, blocks: mx.array) -> tuple[mx.array, mx.array]:
        """Return K and V of flat block numbers ``blocks``, (rows, heads, blocks in a row).

        Each comes back as (rows, heads, blocks in a row * block_size, dim).
        """
        rows, heads, count = blocks.shape
        out = []
        for pool in (self.keys, self.values):
            pieces = pool.reshape(-1, self.block_size, pool.shape[-1])
            taken = mx.take(pieces, blocks, axis=0)
            out.append(taken.reshape(rows, heads, count * self.block_size, pool.shape[-1]))
        return out[0], out[1]

    def copy_block(self, source: int, target: int) -> None:
        """Copy all heads of one block onto another. Evaluate before the next write."""
        for name in ("keys", "values"):
            pool: mx.array = getattr(self, name)
            heads = self.shape.num_kv_heads
            view = (heads, self.num_blocks, self.block_size, pool.shape[-1])
            piece = mx.contiguous(pool.reshape(view)[:, source])
            mx.eval(piece)
            for head in range(heads):
                start = (head * self.num_blocks + target) * self.block_size
                pool[start : start + self.block_size] = piece[head]
            setattr(self, name, pool)

    def read_block(self, block: int) -> tuple[mx.array, mx.array]:
        """Return K and V of one block as (heads, block_size, dim), for checks."""
        heads = mx.arange(self.shape.num_kv_heads) * self.num_blocks + block
        keys, values = self.gather(heads[None, :, None])
        return keys[0], values[0]

    @property
    def arrays(self) -> list[mx.array]:
        """The arrays to evaluate after a write."""
        return [self.keys, self.values]
