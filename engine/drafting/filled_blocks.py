"""How much of each block a drafter has computed for itself, which may be less than the target has.

What a block holds depends only on tokens that its hash covers: so it does not matter who fills it,
for which of its holders, or when.
"""

from collections.abc import Sequence


class FilledBlocks:
    """The number of leading positions that are true in each block; 0 where nothing is known."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self._counts: dict[int, int] = {}

    def end(self, blocks: Sequence[int], most: int) -> int:
        """Return up to which position a table is filled without a gap, ``most`` at most."""
        size, counts = self.block_size, self._counts
        for number, block in enumerate(blocks[: -(-most // size)]):
            count = counts.get(block, 0)
            if count < size:
                return min(most, number * size + count)
        return most

    def begin(self, blocks: Sequence[int], start: int) -> None:
        """Positions from ``start`` to the table's end are another's from now on."""
        first = start // self.block_size
        for number, block in enumerate(blocks[first:], first):
            kept = max(0, start - number * self.block_size)
            if self._counts.get(block, 0) > kept:
                self._counts[block] = kept

    def fill(self, blocks: Sequence[int], start: int, end: int) -> None:
        """Positions ``start`` to ``end`` - 1 are true; so far the table was, up to ``start``."""
        size = self.block_size
        for number in range(start // size, -(-end // size)):
            count = min(size, end - number * size)
            if count > self._counts.get(blocks[number], 0):
                self._counts[blocks[number]] = count

    def copy(self, source: int, target: int) -> None:
        """A block was copied."""
        self._counts[target] = self._counts.get(source, 0)
