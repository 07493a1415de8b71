"""How much memory the device has left, and how many blocks and slots that makes."""

from dataclasses import dataclass

import mlx.core as mx

from .cgroup import memory_available

_GIB = 1 << 30
# What is left over is the margin for activations, and on the CPU for everybody else's programs.
_SHARES = {"cpu": 0.25, "metal": 0.7, "cuda": 0.85}
_ROWS_KEPT = 2  # blocks for twice the rows that run: what the prefix index keeps of ended ones
_CHECKPOINTS_PER_ROW = 2  # at least: a rolling one while it decodes, and one of its prompt
_MOST_CHECKPOINTS_PER_ROW = 8  # conversations that alternate on one row, times two
_CHECKPOINTS_SHARE = 0.125  # of the memory; what is above two a row stays within it
_SLOTS_SHARE = 0.5  # of the memory, at most
_FEWEST_BLOCKS = 3  # scratch and two of a sequence
_SCRATCH_AND_ONE = 2
_CPU_FALLBACK = 2 * _GIB


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Bytes of the default device's memory; ``bytes_free`` is what may still be allocated."""

    kind: str  # cpu, metal, cuda
    bytes_free: int

    @property
    def bytes_for_pools(self) -> int:
        """The part of ``bytes_free`` that blocks and slots may take when nothing else is said."""
        return int(self.bytes_free * _SHARES[self.kind])

    def less(self, num_bytes: int) -> "DeviceMemory":
        """What is free once ``num_bytes`` are taken."""
        return DeviceMemory(self.kind, max(0, self.bytes_free - num_bytes))


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Sizes of the two pools, their scratch block 0 and scratch slot 0 included."""

    num_blocks: int
    num_slots: int  # 0 for a model without recurrent state
    bytes_per_block: int  # of all layers together, like bytes_per_slot
    bytes_per_slot: int

    @property
    def num_bytes(self) -> int:
        """What both pools take."""
        return self.num_blocks * self.bytes_per_block + self.num_slots * self.bytes_per_slot


def probe_memory() -> DeviceMemory:
    """Ask MLX's default device, or the operating system for the CPU, what is free now."""
    device = mx.default_device()
    if device == mx.Device(mx.cpu):
        return DeviceMemory("cpu", memory_available() or _CPU_FALLBACK)
    info = {key: value for key, value in mx.device_info().items() if isinstance(value, int)}
    return gpu_memory(info, mx.get_active_memory(), mx.get_cache_memory())


def gpu_memory(info: dict[str, int], active: int, cached: int) -> DeviceMemory:
    """Memory of a GPU from MLX's ``device_info`` and what MLX holds already, in bytes.

    CUDA reports what is free, to which MLX's own cache adds; Metal a working set to stay within,
    of which the weights are part. Raises ValueError when the device reports neither.
    """
    if "free_memory" in info:
        return DeviceMemory("cuda", info["free_memory"] + cached)
    if "max_recommended_working_set_size" in info:
        return DeviceMemory("metal", max(0, info["max_recommended_working_set_size"] - active))
    raise ValueError(
        "the device reports neither free_memory nor max_recommended_working_set_size "
        f"(it reports {', '.join(sorted(info)) or 'nothing'}): set num_blocks"
    )


def plan_memory(
    memory: DeviceMemory,
    *,
    bytes_per_block: int,
    bytes_per_slot: int,
    block_size: int,
    max_rows: int,
    max_context: int,
    max_bytes: int | None = None,
    num_blocks: int | None = None,
    num_slots: int | None = None,
    max_checkpoint_bytes: int | None = None,
) -> MemoryPlan:
    """Divide ``memory`` between K/V blocks and recurrent slots (bytes of all layers together).

    Blocks are as many as fit and as ``max_rows`` rows of ``max_context`` tokens can use, twice
    over; slots are one a row, and as many checkpoints as ``max_checkpoint_bytes`` (None: twice the
    rows, or up to eight times where an eighth of the memory holds them). ``max_bytes`` replaces the
    device's share; ``num_blocks`` and ``num_slots`` are taken as they are. Raises ValueError, with
    the numbers, when not one sequence of two blocks fits.
    """
    _require_positive(block_size=block_size, max_rows=max_rows, max_context=max_context)
    _require_positive(max_bytes=max_bytes)
    budget = memory.bytes_for_pools if max_bytes is None else max_bytes
    fewest_slots = _SCRATCH_AND_ONE if bytes_per_slot else 0
    if num_slots is None and bytes_per_slot:
        room = budget - (num_blocks or _FEWEST_BLOCKS) * bytes_per_block
        if num_blocks is None:
            room = min(room, int(budget * _SLOTS_SHARE))
        wanted = _slots_wanted(budget, bytes_per_slot, max_rows, max_checkpoint_bytes)
        num_slots = max(fewest_slots, min(wanted, room // bytes_per_slot))
    num_slots = num_slots or 0
    if num_blocks is None:
        num_blocks = 1 + max_rows * -(-max_context // block_size) * _ROWS_KEPT
        num_blocks = max(num_blocks, _FEWEST_BLOCKS)
        if bytes_per_block:
            room = max(0, budget - num_slots * bytes_per_slot)
            num_blocks = min(num_blocks, room // bytes_per_block)
        if num_blocks < _FEWEST_BLOCKS:
            sizes = (bytes_per_block, bytes_per_slot)
            raise ValueError(_too_small(memory, budget, *sizes, block_size))
    if num_blocks < _SCRATCH_AND_ONE or num_slots < fewest_slots:
        raise ValueError(
            f"num_blocks={num_blocks} and num_slots={num_slots} hold no sequence: at least "
            f"{_SCRATCH_AND_ONE} blocks and {fewest_slots} slots (the first of each is scratch)"
        )
    return MemoryPlan(num_blocks, num_slots, bytes_per_block, bytes_per_slot)


def _slots_wanted(
    budget: int, bytes_per_slot: int, max_rows: int, max_checkpoint_bytes: int | None
) -> int:
    if max_checkpoint_bytes is None:
        within = int(budget * _CHECKPOINTS_SHARE) // bytes_per_slot
        few, most = _CHECKPOINTS_PER_ROW * max_rows, _MOST_CHECKPOINTS_PER_ROW * max_rows
        return 1 + max_rows + max(few, min(most, within))
    return 1 + max_rows + max_checkpoint_bytes // bytes_per_slot


def _too_small(
    memory: DeviceMemory, budget: int, bytes_per_block: int, bytes_per_slot: int, block_size: int
) -> str:
    parts = f"{_FEWEST_BLOCKS} blocks of {bytes_per_block:,}"
    needed = _FEWEST_BLOCKS * bytes_per_block
    if bytes_per_slot:
        parts += f" and 2 slots of {bytes_per_slot:,}"
        needed += 2 * bytes_per_slot
    return (
        f"one sequence of {2 * block_size} tokens needs {needed:,} bytes ({parts}, the first of "
        f"each for scratch), but K/V and recurrent states may take {budget:,} of the "
        f"{memory.bytes_free:,} free bytes of the {memory.kind}: free some memory or allow more"
    )


def _require_positive(**numbers: int | None) -> None:
    for name, number in numbers.items():
        if number is not None and number < 1:
            raise ValueError(f"{name} must be at least 1, not {number}")
