"""How the device's memory becomes blocks and slots."""

import mlx.core as mx
import pytest

from engine.memory import DeviceMemory, MemoryPlan, gpu_memory, plan_memory, probe_memory

MIB = 1 << 20
SHAPE = {"block_size": 16, "max_rows": 8, "max_context": 1024}


def free(num_bytes: int) -> DeviceMemory:
    """A CPU that gives a quarter of its memory away: ``num_bytes``."""
    return DeviceMemory("cpu", 4 * num_bytes)


def plan(num_bytes: int, bytes_per_block: int, bytes_per_slot: int, **more: int) -> MemoryPlan:
    return plan_memory(
        free(num_bytes),
        bytes_per_block=bytes_per_block,
        bytes_per_slot=bytes_per_slot,
        **{**SHAPE, **more},
    )


def test_plenty_of_memory_gives_what_the_rows_can_use_and_not_more() -> None:
    # 8 rows x 64 blocks, twice, and scratch; 8 rows, 64 checkpoints and scratch.
    assert plan(10**12, MIB, MIB) == MemoryPlan(1025, 73, MIB, MIB)


def test_checkpoints_beyond_two_a_row_stay_within_an_eighth_of_the_memory() -> None:
    assert plan(240 * MIB, MIB, MIB).num_slots == 1 + 8 + 30
    assert plan(120 * MIB, MIB, MIB).num_slots == 1 + 8 + 16


def test_little_memory_is_divided_between_slots_and_blocks() -> None:
    little = plan(20 * MIB, MIB, MIB)

    assert little == MemoryPlan(10, 10, MIB, MIB)
    assert little.num_bytes == 20 * MIB


def test_slots_that_are_not_wanted_leave_their_memory_to_blocks() -> None:
    assert plan(100 * MIB, MIB, MIB) == MemoryPlan(75, 25, MIB, MIB)


def test_a_model_without_recurrent_state_has_no_slots() -> None:
    assert plan(20 * MIB, MIB, 0) == MemoryPlan(20, 0, MIB, 0)


def test_a_model_without_attention_has_blocks_that_take_nothing() -> None:
    assert plan(20 * MIB, 0, MIB) == MemoryPlan(1025, 10, 0, MIB)


def test_memory_for_checkpoints_is_counted_in_slots() -> None:
    assert plan(10**12, MIB, MIB, max_checkpoint_bytes=5 * MIB).num_slots == 1 + 8 + 5
    assert plan(10**12, MIB, MIB, max_checkpoint_bytes=0).num_slots == 1 + 8


def test_the_users_bytes_replace_the_devices() -> None:
    assert plan(10**12, MIB, 0, max_bytes=7 * MIB).num_blocks == 7
    assert plan(3 * MIB, MIB, 0, max_bytes=70 * MIB).num_blocks == 70


def test_the_users_numbers_are_taken_as_they_are() -> None:
    assert plan(MIB, MIB, MIB, num_blocks=5000, num_slots=60) == MemoryPlan(5000, 60, MIB, MIB)


def test_slots_get_what_the_users_blocks_leave() -> None:
    assert plan(20 * MIB, MIB, MIB, num_blocks=6) == MemoryPlan(6, 14, MIB, MIB)


def test_at_least_one_row_has_a_slot_however_many_blocks_the_user_wants() -> None:
    assert plan(20 * MIB, MIB, MIB, num_blocks=600) == MemoryPlan(600, 2, MIB, MIB)


def test_the_smallest_memory_holds_one_sequence_of_two_blocks() -> None:
    assert plan(5 * MIB, MIB, MIB) == MemoryPlan(3, 2, MIB, MIB)


def test_memory_too_small_for_one_sequence_is_refused_with_the_numbers() -> None:
    with pytest.raises(ValueError, match="one sequence of 32 tokens") as refusal:
        plan(5 * MIB - 1, MIB, MIB)

    for number in ("5,242,880 bytes", "3 blocks of 1,048,576", "2 slots of 1,048,576", "5,242,879"):
        assert number in str(refusal.value)


def test_no_free_memory_is_refused_and_not_planned_as_nothing() -> None:
    with pytest.raises(ValueError, match=r"may take 0 of the 0 free bytes of the cpu"):
        plan(0, MIB, 0)


@pytest.mark.parametrize(
    "numbers", [{"num_blocks": 1}, {"num_blocks": 0}, {"num_slots": 1}, {"num_slots": 0}]
)
def test_pools_that_hold_no_sequence_are_refused(numbers: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="hold no sequence: at least 2 blocks and 2 slots"):
        plan(10**12, MIB, MIB, **numbers)


@pytest.mark.parametrize("name", ["block_size", "max_rows", "max_context", "max_bytes"])
def test_a_number_below_one_is_refused_by_name(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be at least 1, not 0"):
        plan(10**12, MIB, MIB, **{name: 0})


def test_a_cpu_gives_a_quarter_and_a_gpu_more() -> None:
    assert DeviceMemory("cpu", 400).bytes_for_pools == 100
    assert DeviceMemory("metal", 400).bytes_for_pools == 280
    assert DeviceMemory("cuda", 400).bytes_for_pools == 340


def test_cuda_counts_what_is_free_and_what_mlx_only_keeps() -> None:
    info = {"free_memory": 100, "total_memory": 500, "compute_capability_major": 9}

    assert gpu_memory(info, active=50, cached=20) == DeviceMemory("cuda", 120)


def test_metal_counts_the_working_set_without_the_weights() -> None:
    info = {"memory_size": 1000, "max_recommended_working_set_size": 700}

    assert gpu_memory(info, active=50, cached=20) == DeviceMemory("metal", 650)
    assert gpu_memory(info, active=800, cached=0) == DeviceMemory("metal", 0)


def test_a_gpu_that_says_nothing_is_refused_with_what_it_says() -> None:
    with pytest.raises(ValueError, match="it reports memory_size"):
        gpu_memory({"memory_size": 5}, active=0, cached=0)


def test_the_default_device_is_probed() -> None:
    memory = probe_memory()

    on_cpu = mx.default_device() == mx.Device(mx.cpu)
    assert (memory.kind == "cpu") == on_cpu
    assert memory.bytes_for_pools > 16 * MIB
