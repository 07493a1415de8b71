// Products in a chain, each of the one before, in one launch: weights come without a pause.
//
//   h = residual + x out^T;  a = silu(n(h) gate^T) n(h) up^T;  h' = h + a down^T;  p = n'(h') next^T
//
// All blocks run at once, one on each multiprocessor, and meet between the products. Some warps of
// a block only fetch weights into a ring in shared memory: they do not wait for meetings, so that
// the next product's weights come while blocks meet. Others fetch x, of the product at hand; what this
// launch made itself lies as stages of the ring do, so that one copy brings a stage. Two warpgroups
// multiply, each by half of a tile; one warp does for them what takes time but no work.
//
// A product's work is its chunks, tile by tile: 64 numbers of the depth of TILE rows of weights.
// Each block has an equal share of them, one after the other; so most tiles have parts in several
// blocks. Parts are written to memory, in float32; blocks share all rows of all tiles, and add up
// their parts in order. Where a share is a tile or more and no residual follows (gate and up, mostly),
// the block that has a tile's first part keeps it in registers and adds the second, which was the first
// thing that the next block did. Which parts there are depends on the shape of the weights and on the number of blocks alone: a
// row comes out the same, bitwise, whatever stands beside it.
//
// A norm's weight is multiplied into x by who makes x, who also leaves the squares of each tile of
// each row; its factor is multiplied into the sums.

constexpr int FETCHING_WEIGHTS = 128, FETCHING_ROWS = 96, NOTING = 32;  // threads
constexpr int WEIGHTS_STAGE = TILE * CHUNK;

template <int ROWS, int WEIGHT_STAGES, int ROW_STAGES>
struct ProductChain {
  static constexpr int ROWS_STAGE = ROWS * CHUNK;
  // Stages on their way whose arrival is not looked at yet. More of them fill the memory's queues, in
  // which some blocks then wait much longer than others. Who multiplies holds one stage and waits for
  // another; they are told of in twos: that many must be left.
  static constexpr int WEIGHTS_AHEAD = 2, ROWS_AHEAD = 2;
  static_assert(WEIGHT_STAGES >= WEIGHTS_AHEAD + 4 && ROW_STAGES >= ROWS_AHEAD + 4);

  struct Shared {
    bfloat16 weights[WEIGHT_STAGES][WEIGHTS_STAGE];  // first, at a multiple of 1,024 bytes
    bfloat16 rows[ROW_STAGES][ROWS_STAGE];
    Chain chain;
    Share shares[MOST_SHARES];
    int num_shares;
    alignas(8) float factors[ROWS];
    Arrivals weights_here[WEIGHT_STAGES], weights_done[WEIGHT_STAGES];
    Arrivals rows_here[ROW_STAGES], rows_done[ROW_STAGES];
    Arrivals met, noted, stored[MOST_SHARES];
  };
  Shared& shared;
  Chain& chain;

  __device__ explicit ProductChain(unsigned char* memory)
      : shared(*reinterpret_cast<Shared*>(memory + (-shared_address(memory) & 1023))),
        chain(shared.chain) {}

  // What threads of a block wait on; of each kind, number ``i``.
  __device__ void start(int i) const {
    if (i < WEIGHT_STAGES) {
      shared.weights_here[i].start(FETCHING_WEIGHTS);
      shared.weights_done[i].start(MULTIPLYING / 32);
    }
    if (i < ROW_STAGES) {
      shared.rows_here[i].start(FETCHING_ROWS);
      shared.rows_done[i].start(MULTIPLYING / 32);
    }
    if (i < MOST_SHARES) shared.stored[i].start(MULTIPLYING / 32);
    if (i == 0) {
      shared.met.start(1);
      shared.noted.start(NOTING);
    }
  }

  // Once the chain is filled in and everything started.
  __device__ void run() const {
    constexpr int THREADS = MULTIPLYING + FETCHING_WEIGHTS + FETCHING_ROWS + NOTING;
    const int thread = threadIdx.x, role_start = uniform(threadIdx.x / 32) * 32;
    if (role_start >= MULTIPLYING && role_start < MULTIPLYING + FETCHING_WEIGHTS) {
      fetch_weights(thread - MULTIPLYING);
      return;
    }
    unsigned long long meeting_end = 0;
    if (thread == 0 || thread == MULTIPLYING + FETCHING_WEIGHTS)
      meeting_end = chain.meeting.first_end();  // before this block comes to it
    meet(1, THREADS - FETCHING_WEIGHTS);
    if (role_start < MULTIPLYING) {
      multiply(thread, meeting_end);
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

  // Whether two more are to be handed over when so many have been fetched.
  __device__ static bool is_due(int fetched, int ahead) {
    return fetched >= ahead + 2 && (fetched - ahead) % 2 == 0;
  }

  __device__ void fetch_rows(int thread, unsigned long long meeting_end) const {
    const int piece = thread % 8, first_row = thread / 8;
    Turn turn, here;
    for (int i = 0; i < chain.num_links; i++) {
      if (i) {
        if (thread) return;
        chain.meeting.wait_for(meeting_end);
        shared.met.arrive();
        meeting_end += gridDim.x;
      }
      const Link& link = chain.links[i];
      const int tile_chunks = link.tile_chunks(), end = link.first_chunk(blockIdx.x + 1);
      const int first = link.first_chunk(blockIdx.x);
      int at = first % tile_chunks;
      if (i) {
        fetch_chunks(link, at, end - first, turn);
        continue;
      }
      const bfloat16* x = link.x + piece * 8;
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

  // What this launch made lies as stages do, chunk by chunk: one thread fetches it.
  __device__ void fetch_chunks(const Link& link, int at, int count, Turn& turn) const {
    const int bytes = (chain.rows + 7) / 8 * 8 * CHUNK * 2, tile_chunks = link.tile_chunks();
    publish_to_copies();
    for (int i = 0; i < count; i++) {
      shared.rows_done[turn.stage].wait(turn.parity ^ 1);
      Arrivals& here = shared.rows_here[turn.stage];
      here.expect(bytes);
      here.arrive(FETCHING_ROWS);
      copy_whole(shared.rows[turn.stage], link.x + (long long)at * ROWS_STAGE, bytes, here);
      turn.next(ROW_STAGES);
      if (++at == tile_chunks) at = 0;
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
      const bool keeps = uniform(link.keeps());
      for (int chunk = first, share = 0; chunk < end; share++) {
        const int tile = chunk / tile_chunks, tile_end = min((tile + 1) * tile_chunks, end);
        const bool has_start = chunk == tile * tile_chunks;
        // All of it straight on: where it branches, or begins without sums, products wait in turn.
        float sums[ROWS / 2] = {};
        const int share_first = chunk;
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
          if (chunk > share_first) release(weights_done, rows_done, thread);
          weights_turn.next(WEIGHT_STAGES);
          rows_turn.next(ROW_STAGES);
        }
        finish_products(sums);
        release(weights_done, rows_done, thread);
        if (keeps && has_start) {
          shared.noted.wait(i % 2);
          if (chunk < (tile + 1) * tile_chunks) {  // the other part was stored long ago
            if (thread % 32 == 0)
              while (acquired(stored + tile) == 0) {
              }
            __syncwarp();
            parts.add_as_is(tile + blockIdx.x + 1, sums, thread);
          }
          parts.finish_tile(link, tile, sums, thread);
          continue;
        }
        if (keeps) {
          parts.store_as_is(tile + blockIdx.x, sums, thread);
        } else {
          parts.store_part(tile + blockIdx.x, sums, thread);
        }
        __syncwarp();
        if (thread % 32 == 0) shared.stored[share].arrive();
      }
      shared.noted.wait(i % 2);
      if (first < end) {
        if (!keeps) parts.finish(link, stored, shared.num_shares, thread);
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
      if (lane == 0) share_out(link);
      if (link.after != After::residual && first < end) find_factors(link, lane);
      __syncwarp();
      shared.noted.arrive();
      const bool keeps = link.keeps();
      if (keeps && first % link.tile_chunks() == 0) continue;
      for (int chunk = first, share = 0; chunk < (keeps ? min(first + 1, end) : end); share++) {
        const int tile = chunk / link.tile_chunks();
        shared.stored[share].wait(parities >> share & 1);
        parities ^= 1u << share;
        if (lane == 0) count_released(chain.stored + i * chain.most_tiles + tile);
        chunk = (tile + 1) * link.tile_chunks();
      }
    }
  }

  // Says which rows of which tiles this block adds up: as many as any other.
  __device__ void share_out(const Link& link) const {
    const unsigned items = link.tiles() * chain.rows, blocks = link.blocks();
    if (blockIdx.x >= blocks) return;
    const int begin = items * blockIdx.x / blocks, end = items * (blockIdx.x + 1) / blocks;
    const int tile_chunks = link.tile_chunks();
    int count = 0;
    for (int item = begin; item < end; count++) {
      Share& share = shared.shares[count];
      share.tile = item / chain.rows;
      share.first_row = item % chain.rows;
      share.first_item = item - begin;
      item = min(end, (share.tile + 1) * chain.rows);
      share.end_item = item - begin;
      const int low = link.owner(share.tile * tile_chunks);
      share.first_part = share.tile + low;
      share.num_parts = link.owner((share.tile + 1) * tile_chunks - 1) - low + 1;
    }
    shared.num_shares = count;
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
