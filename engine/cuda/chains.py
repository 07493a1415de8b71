"""Products in chains, from one mixing of tokens to the next, in one launch: product_chain.cuh.

What a decoder block does after mixing, and the projections of the block after it. All blocks of the
launch run at once and wait for each other, so nothing else may run a chain on the device meanwhile:
one owner in a process has them (``claim``), one after the other.
"""

import gc
import os
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import mlx.core as mx

from .device import count_multiprocessors
from .product import MOST_ROWS, MOST_WEIGHTS, Norm
from .source import Kernel

TILE, CHUNK = 128, 64  # columns and numbers of the depth that are one piece of work
THREADS = 512
STAGES = {8: (12, 8), 16: (12, 8), 32: (11, 10), 64: (10, 8)}  # by rows of x: of weights, of x
SHARED = 227 * 1024  # bytes; alignment included
MOST_LINKS = 4  # products of a launch
MOST_SHARES = 8  # tiles of which a block of a launch may have parts
MULTI_PROCESS = "CUDA_MPS_PIPE_DIRECTORY"  # set where processes run on a device side by side

INPUTS = (
    *("x", "residual", "mixed", "gate", "up", "down", "w0", "w1", "w2", "w3"),
    *("constants", "scratch", "counters", "after"),
)
BODY = """
  extern __shared__ __align__(128) unsigned char memory[];
  using Form = ProductChain<ROWS, WEIGHT_STAGES, ROW_STAGES>;
  Form form(memory);
  Chain& chain = form.chain;
  int rows = 1;
  for (int i = 0; i < x_ndim - 1; i++) rows *= x_shape[i];
  const int hidden = mixed_shape[0], inner = gate_shape[0], most_tiles = counters_shape[1];
  const int num_links = w0_ndim == 2 ? 4 : 3;
  const float* const epsilons = reinterpret_cast<const float*>(constants);  // as _pack joins them
  const bfloat16* const norms = reinterpret_cast<const bfloat16*>(constants + 4);
  // of the scratch, in order; each at a multiple of 16 bytes
  float* const parts = const_cast<float*>(scratch);
  float* const squares = parts + (long long)(most_tiles + gridDim.x) * ROWS * TILE;
  bfloat16* const middle =
      reinterpret_cast<bfloat16*>(squares + (long long)(hidden + TILE - 1) / TILE * ROWS);
  bfloat16* const normed = middle + (long long)rows * hidden;
  bfloat16* const active = normed + (long long)ROWS * hidden;
  auto link = [&](int i, After after, const bfloat16* from, int depth, bfloat16* to) -> Link& {
    Link& one = chain.links[i];
    one.after = after;
    one.x = from;
    one.depth = depth;
    one.out = to;
    one.norm = nullptr;
    one.norm_depth = hidden;
    one.epsilon = nullptr;
    return one;
  };
  auto weigh = [&](Link& one, const bfloat16* const (&weights)[4], const int (&columns)[4]) {
    int end = 0;
    for (int i = 0; i < 4; i++) {
      end += columns[i];
      one.weights[i] = weights[i];
      one.ends[i] = end;
    }
  };
  if (threadIdx.x == 0) {  // each warp has something to prepare
    chain.rows = rows;
    chain.num_links = num_links;
    chain.meeting.count =
        reinterpret_cast<unsigned long long*>(const_cast<unsigned*>(counters));
    chain.most_tiles = most_tiles;
    chain.stored = const_cast<unsigned*>(counters) + most_tiles;
    chain.parts = parts;
    chain.squares = squares;
  } else if (threadIdx.x == 32) {
    Link& first = link(0, After::residual, x, mixed_shape[1], middle);
    weigh(first, {mixed, mixed, mixed, mixed}, {hidden, 0, 0, 0});
    first.residual = residual;
    first.norm = norms;
    first.normed = normed;
  } else if (threadIdx.x == 64) {
    Link& wide = link(1, After::gate, normed, hidden, active);
    weigh(wide, {gate, up, up, up}, {inner, 0, 0, 0});
    wide.epsilon = epsilons;
  } else if (threadIdx.x == 96) {
    Link& narrow = link(2, After::residual, active, inner, out);
    weigh(narrow, {down, down, down, down}, {hidden, 0, 0, 0});
    narrow.residual = middle;
    if (num_links == 4) {
      narrow.norm = norms + hidden;
      narrow.normed = normed;
    }
  } else if (threadIdx.x == 128 && num_links == 4) {
    Link& next = link(3, After::norm, normed, hidden, projected);
    weigh(next, {w0, w1, w2, w3},
          {w0_shape[0], w1_ndim == 2 ? w1_shape[0] : 0, w2_ndim == 2 ? w2_shape[0] : 0,
           w3_ndim == 2 ? w3_shape[0] : 0});
    next.epsilon = epsilons + 1;
  } else if (threadIdx.x >= 160) {
    form.start(threadIdx.x - 160);
  }
  __syncthreads();
  form.run();
"""


@dataclass(frozen=True, slots=True, eq=False)
class Following:
    """The norm and the weights, side by side, of what multiplies a chain's result."""

    norm: Norm
    weights: Sequence[mx.array]


@dataclass(slots=True, eq=False)
class ChainedBlock:
    """What of a decoder block comes after mixing, and what of the next one before."""

    mixed: mx.array  # (hidden, numbers of the mixed heads)
    norm: Norm
    gate: mx.array
    up: mx.array
    down: mx.array
    following: Following | None
    workspace: "Workspace | None" = None

    @property
    def matrices(self) -> list[mx.array]:
        """All weights that are multiplied by."""
        following = [] if self.following is None else list(self.following.weights)
        return [self.mixed, self.gate, self.up, self.down, *following]

    @property
    def products(self) -> list[tuple[int, int]]:
        """Of each product, how many tiles it has and how many chunks a tile has."""
        hidden, mixed = self.mixed.shape
        inner = self.gate.shape[0]
        sizes = [(hidden, mixed), (2 * inner, hidden), (hidden, inner)]
        if self.following is not None:
            sizes.append((sum(weight.shape[0] for weight in self.following.weights), hidden))
        return [(-(-columns // TILE), depth // CHUNK) for columns, depth in sizes]


def why_not(blocks: Sequence[ChainedBlock]) -> str | None:
    """Say why ``blocks``, whose weights product.takes, cannot run chains; None if they can."""
    if count_multiprocessors() == 0:
        return "a device that is not of compute capability 9.0"
    for block in blocks:
        if block.mixed.shape[0] != blocks[0].mixed.shape[0]:
            return "blocks of several widths"
        for tiles, chunks in block.products:
            if -(-tiles // count_multiprocessors()) + 2 > MOST_SHARES:
                return f"{tiles * TILE} columns"
            assert chunks > 0  # product.takes multiples of 256 alone
    return None


class Workspace:
    """Memory that the chains of one model write to: one chain at a time."""

    def __init__(self, blocks: Sequence[ChainedBlock]) -> None:
        self.num_blocks = count_multiprocessors()
        tiles = max(tiles for block in blocks for tiles, _ in block.products)
        hidden = blocks[0].mixed.shape[0]
        inner = max(block.gate.shape[0] for block in blocks)
        parts = (max(tiles, 32) + self.num_blocks) * MOST_ROWS * TILE
        squares = -(-hidden // TILE) * MOST_ROWS
        self.scratch = mx.zeros((parts + squares + MOST_ROWS * (hidden + inner // 2 + 1),))
        # the first row: how many blocks came to meetings; then how many parts there are of tiles
        self.counters = mx.zeros((1 + MOST_LINKS, max(tiles, 32)), mx.uint32)
        self._constants = {id(block): _pack(block) for block in blocks}
        mx.eval(self.scratch, self.counters, list(self._constants.values()))

    def run(
        self, block: ChainedBlock, x: mx.array, residual: mx.array, after: mx.array
    ) -> tuple[mx.array, mx.array | None]:
        """Return ``block``'s result of the mixed ``x``, (..., depth), and what follows of it.

        They are shaped like ``residual`` and (..., all columns). ``after`` is of what ran the chain
        before: it must have been done.
        """
        rows = x.size // x.shape[-1]
        assert 0 < rows <= MOST_ROWS
        following = block.following
        weights = [] if following is None else list(following.weights)
        projected = (1,) if following is None else (*x.shape[:-1], sum(w.shape[0] for w in weights))
        inputs = [
            *(x, residual, block.mixed, block.gate, block.up, block.down),
            *weights,
            *[_nothing()] * (MOST_WEIGHTS - len(weights)),
            *(self._constants[id(block)], self.scratch, self.counters, after),
        ]
        out, beside = _kernel(next(count for count in STAGES if count >= rows))(
            inputs, (self.num_blocks, 1, 1), [residual.shape, projected], [x.dtype, x.dtype]
        )
        return out, None if following is None else beside


class ChainRun:
    """The chains of one run through a model, one after the other."""

    def __init__(self, owner: Any, done: mx.array) -> None:
        """``done``: what the run before of ``owner`` left of its last chain, (1,)."""
        self._owner = owner
        self._before = done
        self._last: tuple[mx.array, mx.array | None] | None = None

    @cached_property
    def may_run(self) -> bool:
        """Whether its owner is the one that has the chains; ``claim`` says why."""
        return claim(self._owner)

    @property
    def done(self) -> mx.array:
        """What this run leaves of its last chain, (1,)."""
        return self._before if self._last is None else self._last[0].reshape(-1)[:1]

    def follow(self, block: ChainedBlock, mixed: mx.array, residual: mx.array) -> mx.array:
        """Return the result of ``block``; see Workspace.run."""
        assert block.workspace is not None
        after = self._before if self._last is None else self._last[0]
        self._last = block.workspace.run(block, mixed, residual, after)
        return self._last[0]

    def projected(self, x: mx.array) -> mx.array | None:
        """Return the projections of ``x`` if they came with it."""
        if self._last is None or self._last[0] is not x:
            return None
        return self._last[1]


@cache
def _kernel(rows: int) -> Kernel:
    return Kernel(
        "product_chain",
        (
            *("warp.cuh", "product_terms.cuh", "warpgroup.cuh", "warpgroup_rows.cuh"),
            *("meeting.cuh", "stage_ring.cuh", "chain_links.cuh", "chain_sums.cuh"),
            "product_chain.cuh",
        ),
        BODY,
        INPUTS,
        ("out", "projected"),
        template=[
            ("ROWS", rows),
            ("WEIGHT_STAGES", STAGES[rows][0]),
            ("ROW_STAGES", STAGES[rows][1]),
        ],
        threads=THREADS,
        shared_memory=SHARED,
    )


@cache
def _nothing() -> mx.array:
    """What stands for weights that there are none of."""
    nothing = mx.zeros((1,), mx.bfloat16)
    mx.eval(nothing)
    return nothing


def _pack(block: ChainedBlock) -> mx.array:
    """Join the norms and their epsilons, as int32: each array of a launch costs the host time."""
    norms = [block.norm, *([] if block.following is None else [block.following.norm])]
    epsilons = [norm.epsilon[:1].view(mx.int32) for norm in norms]
    padding = mx.zeros((4 - len(norms),), mx.int32)
    return mx.concatenate([*epsilons, padding, *(norm.weight.view(mx.int32) for norm in norms)])


_owners: "weakref.WeakSet[Any]" = weakref.WeakSet()
_refusals: "weakref.WeakKeyDictionary[Any, int]" = weakref.WeakKeyDictionary()
_claiming = threading.RLock()  # engines may have threads of their own


def claim(owner: Any) -> bool:
    """Let ``owner`` run chains if nobody else that lives does; return whether it may."""
    if MULTI_PROCESS in os.environ:  # another process's blocks would take the place of a launch's
        return False
    with _claiming:
        if owner not in _owners and _owners:
            count = _refusals[owner] = _refusals.get(owner, 0) + 1
            if count & (count - 1) == 0:  # more and more seldom, for it takes long
                gc.collect()  # an engine that nobody has any more lies in circles
        if not _owners:
            _owners.add(owner)
        return owner in _owners
