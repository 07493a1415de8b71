// Products in a chain, each of the one before, in one launch: weights come without a pause.
//
//   h = residual + x out^T;  a = silu(n(h) gate^T) n(h) up^T;  h' = h + a down^T;  p = n'(h') next^T
//
// All blocks run at once, one on each multiprocessor, and meet between the products. Some warps of
// a block only fetch weights into a ring in shared memory: they do not wait for meetings, so that
// the next product's weights come while blocks meet. Others fetch x, of the product at hand. Two
// warpgroups multiply, each by half of a tile; one warp does for them what takes time but no work.
//
// A product's work is its chunks, tile by tile: 64 numbers of the depth of TILE rows of weights.
// Each block has an equal share of them, one after the other; so most tiles have parts in several
// blocks. Parts are written to memory, in float32; the blocks that have one share the tile's rows
// of x, and add up their parts in order. Which parts there are depends on the shape of the weights
// and on the number of blocks alone: a row comes out the same, bitwise, whatever stands beside it.
//
// A norm's weight is multiplied into x by who makes x, who also leaves the squares of each tile of
// each row; its factor is multiplied into the sums.

constexpr int FETCHING_WEIGHTS = 128, FETCHING_ROWS = 96, NOTING = 32;  // threads
constexpr int WEIGHTS_STAGE = TILE * CHUNK;

// A number that all threads of a warp have, told to the compiler: products may not diverge.
__device__ __forceinline__ int uniform(int number) {
  return __shfl_sync(0xffffffffu, number, 0);
}

// Place in a ring of stages and its parity.
struct Turn {
  int stage = 0, parity = 0;
  __device__ void next(int stages) {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

template <int ROWS, int WEIGHT_STAGES, int ROW_STAGES>
struct ProductChain {
  static constexpr int ROWS_STAGE = ROWS * CHUNK;
  // Stages on their way whose arrival is not looked at yet. Who multiplies holds one stage and
  // waits for another; they are told of in twos: that many must be left.
  static constexpr int WEIGHTS_AHEAD = 4, ROWS_AHEAD = 2;
  static_assert(WEIGHT_STAGES >= WEIGHTS_AHEAD + 4 && ROW_STAGES >= ROWS_AHEAD + 4);

  struct Shared {
    bfloat16 weights[WEIGHT_STAGES][WEIGHTS_STAGE];  // first, at a multiple of 1,024 bytes
    bfloat16 rows[ROW_STAGES][ROWS_STAGE];
    Chain chain;
    Share shares[MOST_SHARES];
    float factors[ROWS];
    Arrivals weights_here[WEIGHT_STAGES], weights_done[WEIGHT_STAGES];
    Arrivals rows_here[ROW_STAGES], rows_done[ROW_STAGES];
    Arrivals met, noted, stored[MOST_SHARES];
  };
  Shared& shared;
  Chain& chain;

  __device__ explicit ProductChain(unsigned char* memory)
      : shared(*reinterpret_cast<Shared*>(memory + (-shared_address(memory) & 1023))),
        chain(shared.chain) {}

  // Once thread 0 has filled in the chain.
  __device__ void run() const {
    if (threadIdx.x == 0) {
      for (int i = 0; i < WEIGHT_STAGES; i++) {
        shared.weights_here[i].start(FETCHING_WEIGHTS);
        shared.weights_done[i].start(MULTIPLYING / 32);
      }
      for (int i = 0; i < ROW_STAGES; i++) {
        shared.rows_here[i].start(FETCHING_ROWS);
        shared.rows_done[i].start(MULTIPLYING / 32);
      }
      shared.met.start(1);
      shared.noted.start(NOTING);
      for (int i = 0; i < MOST_SHARES; i++) shared.stored[i].start(MULTIPLYING / 32);
    }
    const int thread = threadIdx.x, role_start = uniform(threadIdx.x / 32) * 32;
    unsigned long long meeting_end = 0;
    if (thread == 0 || thread == MULTIPLYING + FETCHING_WEIGHTS)
      meeting_end = chain.meeting.first_end();  // before this block comes to it
    __syncthreads();
    if (role_start < MULTIPLYING) {
      multiply(thread, meeting_end);
    } else if (role_start < MULTIPLYING + FETCHING_WEIGHTS) {
      fetch_weights(thread - MULTIPLYING);
    } else if (role_start < MULTIPLYING + FETCHING_WEIGHTS + FETCHING_ROWS) {
      fetch_rows(thread - MULTIPLYING - FETCHING_WEIGHTS, meeting_end);
    } else {
      note(thread % 32);
    }
  }

  __device__ void fetch_weights(int thread) const {
    const int piece = thread % 8, first_row = thread / 8;
    constexpr int STEP = FETCHING_WEIGHTS / 8, NUM = TILE / STEP;
    Turn turn, here;
    int fetched = 0;
    for (int i = 0; i < chain.num_links; i++) {
      const Link& link = chain.links[i];
      const int tile_chunks = link.tile_chunks(), end = link.first_chunk(blockIdx.x + 1);
      for (int chunk = link.first_chunk(blockIdx.x); chunk < end;) {
        const int tile = chunk / tile_chunks;
        const int tile_end = min((tile + 1) * tile_chunks, end);
        const bfloat16* from[NUM];
#pragma unroll
        for (int n = 0; n < NUM; n++)
          from[n] = link.weight_row(tile, first_row + n * STEP) +
              (chunk - tile * tile_chunks) * CHUNK + piece * 8;
        for (; chunk < tile_end; chunk++) {
          shared.weights_done[turn.stage].wait(turn.parity ^ 1);
          bfloat16* to = shared.weights[turn.stage] + swizzled(first_row, piece);
#pragma unroll
          for (int n = 0; n < NUM; n++) {  // STEP is a multiple of 8: swizzled alike
            copy_ahead_async(to + n * STEP * CHUNK, from[n]);
            from[n] += CHUNK;
          }
          commit_copies();
          turn.next(WEIGHT_STAGES);
          if (is_due(++fetched, WEIGHTS_AHEAD))
            hand_over_two<WEIGHTS_AHEAD>(shared.weights_here, here, WEIGHT_STAGES);
        }
      }
    }
    while (here.stage != turn.stage || here.parity != turn.parity)
      hand_over<0>(shared.weights_here, here, WEIGHT_STAGES);
  }

  // Says of two stages that they are here when all but the last PENDING groups of copies are.
  template <int PENDING>
  __device__ static void hand_over_two(Arrivals* stages, Turn& turn, int num_stages) {
    hand_over<PENDING>(stages, turn, num_stages);
    stages[turn.stage].arrive();
    turn.next(num_stages);
  }
  template <int PENDING>
  __device__ static void hand_over(Arrivals* stages, Turn& turn, int num_stages) {
    wait_for_copies<PENDING>();
    publish_to_products();
    stages[turn.stage].arrive();
    turn.next(num_stages);
  }
  // Whether two more are to be handed over when so many have been fetched.
  __device__ static bool is_due(int fetched, int ahead) {
    return fetched >= ahead + 2 && (fetched - ahead) % 2 == 0;
  }

  // As copy_async; of what lies around it, L2 is filled with 256 bytes.
  __device__ static void copy_ahead_async(void* to, const void* from) {
    asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16;" ::"r"(shared_address(to)),
                 "l"(from)
                 : "memory");
  }

  __device__ void fetch_rows(int thread, unsigned long long meeting_end) const {
    const int piece = thread % 8, first_row = thread / 8;
    Turn turn, here;
    for (int i = 0; i < chain.num_links; i++) {
      if (i) {
        if (thread == 0) {
          chain.meeting.wait_for(meeting_end);
          shared.met.arrive();
        }
        meeting_end += gridDim.x;
        meet(2, FETCHING_ROWS);
      }
      const Link& link = chain.links[i];
      const int tile_chunks = link.tile_chunks(), end = link.first_chunk(blockIdx.x + 1);
      const bfloat16* x = link.x + piece * 8;
      const int first = link.first_chunk(blockIdx.x);
      int at = first % tile_chunks;
      for (int chunk = first; chunk < end; chunk++) {
        shared.rows_done[turn.stage].wait(turn.parity ^ 1);
        bfloat16* to = shared.rows[turn.stage];
#pragma unroll
        for (int row = first_row; row < ROWS; row += FETCHING_ROWS / 8)
          if (row < chain.rows)
            copy_async(to + swizzled(row, piece), x + (long long)row * link.depth + at * CHUNK);
        commit_copies();
        turn.next(ROW_STAGES);
        if (is_due(chunk - first + 1, ROWS_AHEAD))
          hand_over_two<ROWS_AHEAD>(shared.rows_here, here, ROW_STAGES);
        if (++at == tile_chunks) at = 0;
      }
      while (here.stage != turn.stage || here.parity != turn.parity)
        hand_over<0>(shared.rows_here, here, ROW_STAGES);
    }
  }

  __device__ void multiply(int thread, unsigned long long meeting_end) const {
    const PartSums<ROWS> parts{chain, shared.shares, shared.factors};
    Turn weights_turn, rows_turn, weights_done, rows_done;
    const int num_links = uniform(chain.num_links);
    for (int i = 0; i < num_links; i++) {
      const Link& link = chain.links[i];
      unsigned* stored = chain.stored + i * chain.most_tiles;
      const int tile_chunks = uniform(link.tile_chunks());
      const int first = uniform(link.first_chunk(blockIdx.x));
      const int end = uniform(link.first_chunk(blockIdx.x + 1));
      for (int chunk = first, share = 0; chunk < end; share++) {
        const int tile = chunk / tile_chunks, tile_end = min((tile + 1) * tile_chunks, end);
        // All of it straight on: where it branches, or begins without sums, products wait in turn.
        float sums[ROWS / 2] = {};
#pragma unroll 1
        for (; chunk < tile_end; chunk++) {
          shared.weights_here[weights_turn.stage].wait(weights_turn.parity);
          shared.rows_here[rows_turn.stage].wait(rows_turn.parity);
          const bfloat16* weights =
              shared.weights[weights_turn.stage] + thread / 128 * (WEIGHTS_STAGE / 2);
          const bfloat16* rows = shared.rows[rows_turn.stage];
          begin_products();
#pragma unroll
          for (int k = 0; k < CHUNK; k += 16)
            multiply_rows(
                sums, tile_descriptor(weights + k, 16), tile_descriptor(rows + k, 16), 1,
                RowsOfX<ROWS>());
          commit_products();
          wait_for_products<1>();  // while these run: the chunk before has been read
          if (chunk > first) release(weights_done, rows_done, thread);
          weights_turn.next(WEIGHT_STAGES);
          rows_turn.next(ROW_STAGES);
        }
        finish_products(sums);
        parts.store_part(tile + blockIdx.x, sums, thread);
        __syncwarp();
        if (thread % 32 == 0) shared.stored[share].arrive();
      }
      shared.noted.wait(i % 2);
      if (first < end) {
        release(weights_done, rows_done, thread);
        parts.finish(link, stored, (end - 1) / tile_chunks - first / tile_chunks + 1, thread);
      } else if (i) {  // it did not wait for rows of x
        if (thread == 0) chain.meeting.wait_for(meeting_end - gridDim.x);
        meet(1, MULTIPLYING);
      }
      // What was counted for links before, here and in the launch before, is not read any more.
      for (int old = i ? i - 1 : 2; old < (i ? i : MOST_LINKS); old++)
        for (int t = blockIdx.x + thread * gridDim.x; t < chain.most_tiles;
             t += MULTIPLYING * gridDim.x)
          chain.stored[old * chain.most_tiles + t] = 0;
      meet(1, MULTIPLYING);
      if (thread == 0 && i + 1 < num_links) chain.meeting.come();
      meeting_end += gridDim.x;
    }
  }

  // The next stages may be filled again.
  __device__ void release(Turn& weights, Turn& rows, int thread) const {
    if (thread % 32 == 0) {
      shared.weights_done[weights.stage].arrive();
      shared.rows_done[rows.stage].arrive();
    }
    weights.next(WEIGHT_STAGES);
    rows.next(ROW_STAGES);
  }

  // Beside what multiplies: shares out each link's tiles, finds the factors of the norm before, and
  // tells other blocks which parts are stored, which takes as long as a chunk.
  __device__ void note(int lane) const {
    unsigned parities = 0;
    for (int i = 0; i < chain.num_links; i++) {
      if (i) shared.met.wait((i - 1) % 2);
      const Link& link = chain.links[i];
      const int first = link.first_chunk(blockIdx.x), end = link.first_chunk(blockIdx.x + 1);
      if (lane == 0) share_out(link, first, end);
      if (link.after != After::residual && first < end) find_factors(link, lane);
      __syncwarp();
      shared.noted.arrive();
      for (int chunk = first, share = 0; chunk < end; share++) {
        const int tile = chunk / link.tile_chunks();
        shared.stored[share].wait(parities >> share & 1);
        parities ^= 1u << share;
        if (lane == 0) count_released(chain.stored + i * chain.most_tiles + tile);
        chunk = (tile + 1) * link.tile_chunks();
      }
    }
  }

  // Says which rows of its tiles this block adds up.
  __device__ void share_out(const Link& link, int first, int end) const {
    const int tile_chunks = link.tile_chunks();
    for (int chunk = first, item = 0, i = 0; chunk < end; i++) {
      Share& share = shared.shares[i];
      share.tile = chunk / tile_chunks;
      const int low = link.owner(share.tile * tile_chunks);
      chunk = (share.tile + 1) * tile_chunks;
      share.first_part = share.tile + low;
      share.num_parts = link.owner(chunk - 1) - low + 1;
      share.first_row = blockIdx.x - low;
      share.num_rows = (chain.rows - share.first_row + share.num_parts - 1) / share.num_parts;
      share.first_item = item;
      item += share.num_rows;
    }
  }

  // The factors of the norm before, of all rows.
  __device__ void find_factors(const Link& link, int lane) const {
    const float epsilon = *link.epsilon;
    for (int row = lane; row < chain.rows; row += NOTING) {
      float sum = 0.f;
#pragma unroll 8
      for (int i = 0; i * TILE < link.norm_depth; i++)
        sum = __fadd_rn(sum, __ldcg(chain.squares + i * ROWS + row));
      shared.factors[row] = inverse_norm(sum, link.norm_depth, epsilon);
    }
  }
};
