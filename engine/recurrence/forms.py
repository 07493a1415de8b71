"""Which form of the gated delta rule a loaded model runs, chosen by device and mode."""

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from .chunked import by_chunks
from .delta_rule import by_loop, by_metal_kernel, by_products
from .segments import Recurrence


@dataclass(frozen=True, slots=True)
class RecurrenceForm:
    """A form and its name, as `octavo inspect` prints it."""

    name: str
    run: Recurrence


LONG = 8  # tokens from which on chunks are faster than one product a token


def by_products_or_chunks(
    inputs: Sequence[mx.array], state: mx.array, valid: mx.array | None
) -> tuple[mx.array, mx.array]:
    """Windows of decoding token by token, prompt chunks as chunks."""
    run = by_chunks if inputs[1].shape[1] >= LONG else by_products
    return run(inputs, state, valid)


LOOP = RecurrenceForm("by mlx-lm's loop", by_loop)
PRODUCTS = RecurrenceForm("by one product a token, prompts in chunks", by_products_or_chunks)
METAL = RecurrenceForm("by mlx-lm's Metal kernel", by_metal_kernel)


def choose_form(key_dim: int, *, exact: bool) -> RecurrenceForm:
    """Return the form for heads of ``key_dim`` on the default device."""
    if exact:
        return LOOP
    if mx.default_device() == mx.gpu and mx.metal.is_available() and key_dim % 32 == 0:
        return METAL
    return PRODUCTS
