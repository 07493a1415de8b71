"""Which form of the gated delta rule a loaded model runs, chosen by device and mode."""

from dataclasses import dataclass

import mlx.core as mx

from .delta_rule import by_loop, by_metal_kernel, by_products
from .segments import Recurrence


@dataclass(frozen=True, slots=True)
class RecurrenceForm:
    """A form and its name, as `octavo inspect` prints it."""

    name: str
    run: Recurrence


LOOP = RecurrenceForm("by mlx-lm's loop", by_loop)
PRODUCTS = RecurrenceForm("by one product a token", by_products)
METAL = RecurrenceForm("by mlx-lm's Metal kernel", by_metal_kernel)


def choose_form(key_dim: int, *, exact: bool) -> RecurrenceForm:
    """Return the form for heads of ``key_dim`` on the default device."""
    if exact:
        return LOOP
    if mx.default_device() == mx.gpu and mx.metal.is_available() and key_dim % 32 == 0:
        return METAL
    return PRODUCTS
