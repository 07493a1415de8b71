"""A loaded model made ready to run over pages and slots; its memory is not allocated yet."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import mlx.core as mx

from . import blas
from .attention.paged import bind_to_pages
from .backend import Backend, choose_backend
from .forward import Forward
from .loading import LoadedModel
from .options import EngineOptions
from .probe import Probe, check_exact, find_method
from .recurrence.forms import choose_form
from .registry import ArraysSpec, AttentionSpec, DeltaSpec, LayerSpec, flatten, inspect_layers
from .store import Method, Store, build_store


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a model's layers keep, and by which method they run."""

    specs: Sequence[LayerSpec]
    method: Method
    block_size: int
    max_drafts: int
    exact: bool
    dtype: mx.Dtype
    backend: Backend

    @property
    def bytes_per_block(self) -> int:
        """Bytes of all layers' K and V in one block."""
        shapes = [spec.shape for spec in flatten(self.specs) if isinstance(spec, AttentionSpec)]
        return self.block_size * sum(shape.bytes_per_position for shape in shapes)

    @property
    def bytes_per_slot(self) -> int:
        """Bytes of all layers' recurrent state and records in one slot; 0 if they keep none."""
        total = 0
        for spec in flatten(self.specs):
            if isinstance(spec, DeltaSpec):
                layout = self.backend.delta_layout(spec.module, self.max_drafts, self.dtype)
                total += sum(kept.nbytes for kept in layout.values())
            elif isinstance(spec, ArraysSpec):
                total += sum(kept.nbytes for kept in spec.arrays if kept is not None)
        return total

    @property
    def reads_groups_once(self) -> bool:
        """Whether attention reads once what the rows of a round's group share."""
        return self.backend.reads_groups_once and not self.exact and not self.method.gathers

    def make_store(self, num_blocks: int, num_slots: int, method: Method | None = None) -> Store:
        """Allocate the memory of all layers."""
        store = build_store(
            list(self.specs),
            num_blocks=num_blocks,
            block_size=self.block_size,
            num_slots=num_slots,
            max_drafts=self.max_drafts,
            dtype=self.dtype,
            form=choose_form(_key_dim(self.specs), exact=self.exact),
            method=method or self.method,
            backend=self.backend,
        )
        mx.eval([array for layer in store.layers for array in layer.arrays])
        return store


def prepare(
    loaded: LoadedModel,
    options: EngineOptions,
    forward: Forward,
    max_drafts: int,
    *,
    must_be_exact: bool,
) -> Prepared:
    """Find out what the layers of ``loaded`` keep, and try it out.

    Raises ModelError, with the cause, for models that cannot run, or that ``must_be_exact`` and
    cannot.
    """
    specs = tuple(inspect_layers(loaded.model))
    num_paged = sum(isinstance(spec, AttentionSpec) for spec in flatten(specs))
    size, dtype = options.block_size, forward.dtype
    backend = choose_backend(options.backend, exact=options.exact, dtype=dtype)
    gathers = bind_to_pages(loaded.model) < num_paged
    method = Method(gathers=gathers, widest=backend.widest)
    backend.bind_products(loaded.model)
    ready = Prepared(specs, method, size, max_drafts, options.exact, dtype, backend)

    def make_probe(method: Method) -> Probe:
        def make_store(num_blocks: int, num_slots: int) -> Store:
            return ready.make_store(num_blocks, num_slots, method)

        return Probe(forward, make_store, size, loaded.vocab_size)

    probe = find_method(make_probe, method, dtype)
    if must_be_exact:
        check_exact(probe, dtype, backend, str(blas.current()))
    return replace(ready, method=probe.store.method)


def _key_dim(specs: Sequence[LayerSpec]) -> int:
    return next((s.module.head_k_dim for s in flatten(specs) if isinstance(s, DeltaSpec)), 0)
