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

constexpr int TILE = 128, CHUNK = 64;
constexpr int MULTIPLYING = 256, FETCHING_WEIGHTS = 128, FETCHING_ROWS = 96, NOTING = 32;  // threads
constexpr int WEIGHTS_STAGE = TILE * CHUNK;
constexpr int MOST_LINKS = 4, MOST_SHARES = 8;  // of a block: tiles of which it has chunks

enum class After { residual, gate, norm };  // what follows the sums

struct Link {
  const bfloat16* x;                 // (rows, depth)
  const bfloat16* weights[4];        // (columns, depth) each, side by side; gate and up, if gated
  int ends[4];
  int depth;
  After after;
  const bfloat16* residual;          // (rows, columns)
  bfloat16* out;                     // (rows, columns of out)
  const bfloat16* norm;              // (columns,): weight of the norm that follows, or null
  bfloat16* normed;                  // (rows, columns): out times it
  int norm_depth;                    // of the norm before
  const float* epsilon;              // of it

  __device__ bool gated() const { return after == After::gate; }
  __device__ int weight_rows() const { return gated() ? 2 * ends[0] : ends[3]; }
  __device__ int columns() const { return gated() ? ends[0] : ends[3]; }
  __device__ int tiles() const { return (weight_rows() + TILE - 1) / TILE; }
  __device__ int tile_chunks() const { return depth / CHUNK; }
  __device__ int chunks() const { return tiles() * tile_chunks(); }
  __device__ int blocks() const { return min((int)gridDim.x, chunks()); }
  __device__ int first_chunk(int block) const {
    return (int)((long long)chunks() * min(block, blocks()) / blocks());
  }
  // The block that has a chunk.
  __device__ int owner(int chunk) const {
    return (int)(((long long)(chunk + 1) * blocks() - 1) / chunks());
  }

  // Of a tile, row ``row``; gates and values change every 8 rows. Past the end: the last row.
  __device__ const bfloat16* weight_row(int tile, int row) const {
    if (gated()) {
      const int column = min(tile * (TILE / 2) + row / 16 * 8 + row % 8, ends[0] - 1);
      return weights[row / 8 % 2] + (long long)column * depth;
    }
    const int column = min(tile * TILE + row, ends[3] - 1);
    if (column < ends[0]) return weights[0] + (long long)column * depth;
    if (column < ends[1]) return weights[1] + (long long)(column - ends[0]) * depth;
    if (column < ends[2]) return weights[2] + (long long)(column - ends[1]) * depth;
    return weights[3] + (long long)(column - ends[2]) * depth;
  }
};

struct Chain {
  Link links[MOST_LINKS];
  int num_links, rows, most_tiles;
  float* parts;      // (tiles + blocks, rows of x, TILE)
  float* squares;    // (tiles, ROWS): of a row's tiles
  unsigned* stored;  // (MOST_LINKS, most_tiles): how many parts there are; zeros before the link
  Meeting meeting;
};

// What a block adds up of a tile: its rows are ``first_row`` and every num_parts further.
struct Share {
  int tile, first_part, num_parts, first_row, num_rows, first_item;
};

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
  static constexpr int AT_ONCE = ROWS > 16 ? 2 : 1;  // rows that a warp adds up
  static constexpr int PARTS_AT_ONCE = 8 / AT_ONCE;
  // Stages on their way whose arrival is not looked at yet. Who multiplies holds two stages and
  // waits for two more, which are told of in twos: that many must be left.
  static constexpr int WEIGHTS_AHEAD = WEIGHT_STAGES - 6, ROWS_AHEAD = ROW_STAGES - 6;
  static_assert(WEIGHTS_AHEAD > 0 && ROWS_AHEAD > 0);

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
        store_part(tile + blockIdx.x, sums, thread);
        __syncwarp();
        if (thread % 32 == 0) shared.stored[share].arrive();
      }
      shared.noted.wait(i % 2);
      if (first < end) {
        release(weights_done, rows_done, thread);
        finish(link, stored, (end - 1) / tile_chunks - first / tile_chunks + 1, thread);
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

  __device__ float* part_row(int part, int row) const {
    return chain.parts + ((long long)part * chain.rows + row) * TILE;
  }

  __device__ void store_part(int part, const float (&sums)[ROWS / 2], int thread) const {
    const int column = thread / 32 * 16 + thread % 32 / 4, first_row = thread % 4 * 2;
#pragma unroll
    for (int j = 0; j < ROWS / 8; j++)
#pragma unroll
      for (int e = 0; e < 2; e++) {
        const int row = j * 8 + first_row + e;
        if (row < chain.rows) {
          float* to = part_row(part, row) + column;
          __stcg(to, sums[j * 4 + e]);
          __stcg(to + 8, sums[j * 4 + 2 + e]);
        }
      }
  }

  // Adds up the parts of this block's rows of its tiles, and does what follows.
  __device__ void finish(
      const Link& link, const unsigned* stored, int num_shares, int thread) const {
    if (thread < num_shares) {
      const Share& share = shared.shares[thread];
      while (acquired(stored + share.tile) < share.num_parts) {
      }
    }
    meet(1, MULTIPLYING);
    const Share& last = shared.shares[num_shares - 1];
    const int num_items = last.first_item + last.num_rows;
    for (int first = thread / 32; first < num_items; first += MULTIPLYING / 32 * AT_ONCE)
      finish_rows(link, num_shares, first, num_items, thread % 32);
  }

  // Of AT_ONCE rows, so that what is read of them comes at once; a lane has 4 columns.
  __device__ void finish_rows(
      const Link& link, int num_shares, int first_item, int num_items, int lane) const {
    const float* from[AT_ONCE];
    int tiles[AT_ONCE], rows[AT_ONCE], num_parts[AT_ONCE], most_parts = 0;
    uint2 beside[AT_ONCE], weights[AT_ONCE] = {};
    float values[AT_ONCE][4] = {};
#pragma unroll
    for (int u = 0; u < AT_ONCE; u++) {
      const int item = min(first_item + u * (MULTIPLYING / 32), num_items - 1);
      int i = 0;
      while (i + 1 < num_shares && shared.shares[i + 1].first_item <= item) i++;
      const Share& share = shared.shares[i];
      tiles[u] = share.tile;
      rows[u] = share.first_row + (item - share.first_item) * share.num_parts;
      num_parts[u] = share.num_parts;
      most_parts = max(most_parts, share.num_parts);
      from[u] = part_row(share.first_part, rows[u]) + lane * 4;
      if (link.after == After::residual) {
        const int column = min(tiles[u] * TILE + lane * 4, link.columns() - 4);
        beside[u] = __ldcg(reinterpret_cast<const uint2*>(
            link.residual + (long long)rows[u] * link.columns() + column));
        if (link.norm) weights[u] = __ldg(reinterpret_cast<const uint2*>(link.norm + column));
      }
    }
    const long long distance = (long long)chain.rows * TILE;
    for (int first = 0; first < most_parts; first += PARTS_AT_ONCE) {
      float4 parts[PARTS_AT_ONCE][AT_ONCE];
#pragma unroll
      for (int i = 0; i < PARTS_AT_ONCE; i++)
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++)
          parts[i][u] = __ldcg(reinterpret_cast<const float4*>(
              from[u] + min(first + i, num_parts[u] - 1) * distance));
#pragma unroll
      for (int i = 0; i < PARTS_AT_ONCE; i++)
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++)
          if (first + i < num_parts[u]) {
            values[u][0] = __fadd_rn(values[u][0], parts[i][u].x);
            values[u][1] = __fadd_rn(values[u][1], parts[i][u].y);
            values[u][2] = __fadd_rn(values[u][2], parts[i][u].z);
            values[u][3] = __fadd_rn(values[u][3], parts[i][u].w);
          }
    }
#pragma unroll
    for (int u = 0; u < AT_ONCE; u++) {
      if (first_item + u * (MULTIPLYING / 32) >= num_items) break;
      if (link.after == After::residual) {
        add_residual(link, tiles[u], rows[u], lane, values[u], beside[u], weights[u]);
      } else {
        scale(link, tiles[u], rows[u], lane, values[u]);
      }
    }
  }

  __device__ void add_residual(
      const Link& link, int tile, int row, int lane, float (&values)[4],
      const uint2& beside, const uint2& weight) const {
    const int column = tile * TILE + lane * 4;
    const bool writes = column < link.columns();
    float squares = 0.f;
    unsigned normed[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const float2 both = as_floats(i ? beside.y : beside.x);
      const float2 factors = as_floats(i ? weight.y : weight.x);
      float* pair = values + 2 * i;
      pair[0] = rounded<bfloat16>(__fadd_rn(rounded<bfloat16>(pair[0]), both.x));
      pair[1] = rounded<bfloat16>(__fadd_rn(rounded<bfloat16>(pair[1]), both.y));
      squares = __fmaf_rn(pair[0], pair[0], squares);
      squares = __fmaf_rn(pair[1], pair[1], squares);
      normed[i] = packed(__fmul_rn(pair[0], factors.x), __fmul_rn(pair[1], factors.y));
    }
    squares = warp_sum(writes ? squares : 0.f);
    if (lane == 0) __stcg(chain.squares + tile * ROWS + row, squares);
    if (!writes) return;
    const long long at = (long long)row * link.columns() + column;
    if (link.norm)
      __stcg(reinterpret_cast<uint2*>(link.normed + at), make_uint2(normed[0], normed[1]));
    store(link.out + at, values);
  }

  __device__ static float2 as_floats(unsigned pair) {
    return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&pair));
  }

  __device__ static void store(bfloat16* to, const float (&values)[4]) {
    __stcg(
        reinterpret_cast<uint2*>(to),
        make_uint2(packed(values[0], values[1]), packed(values[2], values[3])));
  }

  __device__ void scale(
      const Link& link, int tile, int row, int lane, float (&values)[4]) const {
    const float factor = shared.factors[row];
#pragma unroll
    for (int i = 0; i < 4; i++) values[i] = __fmul_rn(values[i], factor);
    int column = tile * TILE + lane * 4;
    bool writes = true;
    if (link.gated()) {  // lanes with 4 gates, and those 2 further on with their values
      float ups[4];
#pragma unroll
      for (int i = 0; i < 4; i++) ups[i] = __shfl_down_sync(0xffffffffu, values[i], 2);
      activate(values, ups);
      activate(values + 2, ups + 2);
      column = tile * (TILE / 2) + lane / 4 * 8 + lane % 2 * 4;
      writes = lane % 4 < 2;
    }
    if (writes && column < link.columns())
      store(link.out + (long long)row * link.columns() + column, values);
  }
};
