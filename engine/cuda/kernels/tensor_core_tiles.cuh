// bfloat16: each warp takes every WARPS-th key tile; scores and values by tensor cores.
//
// A warp has room for HELD key tiles, which are on their way to it before anything else is done; the
// queries and the window's own K/V are prepared meanwhile. Whoever prepares a row of the window puts it
// into its tile if that is held. Later tiles come as room is left, when the window is in its pages.
template <int HEAD_DIM, int GROUP, int BLOCK_SIZE, int SPLIT, int WARPS, int HELD>
struct TensorCoreTiles {
  using T = bfloat16;
  static constexpr int ROW = HEAD_DIM + 8;  // padding: the 8 rows of a matrix meet all banks
  static constexpr int TILE = 2 * KEYS * ROW;  // keys, then values
  static constexpr int PARTS = WARPS;
  static constexpr int PIECES = HEAD_DIM / 8;  // of 16 bytes, of a row
  static_assert(HEAD_DIM % 32 == 0 && BLOCK_SIZE % KEYS == 0);
  static_assert(TILE * 2 >= QUERIES * HEAD_DIM * 4, "the sums take a tile's place");

  // The blocks of the warp's first tiles, asked for at once: of the split it is unless others come before.
  struct Ahead {
    int blocks[HELD];

    template <typename Share>
    __device__ explicit Ahead(const Share& share) {
      const int* table = share.table();
      const int low = blockIdx.x ? (blockIdx.x + 1) * SPLIT : 0;
#pragma unroll
      for (int i = 0; i < HELD; i++) {
        const int position = low + (i * WARPS + threadIdx.x / 32) * KEYS;
        blocks[i] = load_at_once(table + min(position / BLOCK_SIZE, share.all.table_length - 1));
      }
    }
  };

  template <typename Source>
  __device__ static SplitResult<WARPS> run(
      const Share<T, HEAD_DIM, GROUP, BLOCK_SIZE, SPLIT, Source>& share,
      const Ahead& ahead,
      unsigned char* shared,
      float (*stats)[QUERIES][2]) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    T* queries = reinterpret_cast<T*>(shared);
    T* tiles = queries + QUERIES * ROW;
    const int begin = share.first_key_tile(), num_key_tiles = share.num_key_tiles();
    const int first_tile = begin / WARPS * WARPS + warp;  // a tile's number modulo WARPS is the warp
    const bool is_ahead = share.split == blockIdx.x && share.num_shared == 0 && begin < WARPS;
    auto place = [&](int key_tile) { return tiles + key_tile % (HELD * WARPS) * TILE; };
    auto block_of = [&](int key_tile) {
      const int last = share.num_key_tiles() - 1;
      return share.table()[(share.low + min(key_tile, last) * KEYS) / BLOCK_SIZE];
    };
    // A tile's keys, or values. Rows of the window are left out where they come as they are written.
    auto fetch = [&](int key_tile, int block, const T* pages, int values, bool is_held) {
      if (key_tile >= num_key_tiles) return;
      const int tile_at = share.low + key_tile * KEYS;
      const T* from = pages + share.page_row(block, tile_at) * HEAD_DIM;
      T* to = place(key_tile) + values * KEYS * ROW;
      if (32 % PIECES == 0 && (!is_held || tile_at + KEYS <= share.start)) {
        T* mine = to + lane / PIECES * ROW + lane % PIECES * 8;
        from += lane * 8;
#pragma unroll
        for (int j = 0; j < KEYS * PIECES / 32; j++)
          copy_async(mine + j * (32 / PIECES) * ROW, from + j * 256);
        return;
      }
#pragma unroll 2
      for (int j = 0; j < KEYS * PIECES / 32; j++) {
        const int piece = j * 32 + lane, r = piece / PIECES, c = piece % PIECES;
        if (is_held && tile_at + r >= share.start && tile_at + r < share.end) continue;
        copy_async(to + r * ROW + c * 8, from + piece * 8);
      }
    };
#pragma unroll
    for (int i = 0; i < HELD; i++) {
      const int key_tile = first_tile + i * WARPS;
      const int block = is_ahead ? ahead.blocks[i] : block_of(key_tile);
      fetch(key_tile, block, share.all.key_pages, 0, true);
      commit_copies();
      fetch(key_tile, block, share.all.value_pages, 1, true);
      commit_copies();
    }
    int block = block_of(first_tile + HELD * WARPS);
    const int held = (begin / WARPS + HELD) * WARPS * KEYS;  // positions of the split before the first not held
    share.write_window([&](int position, bool is_value) {
      const int at = position - share.low;
      if (at >= held) return queries + warp * ROW;  // the warp's own, before its queries
      return place(at / KEYS) + (at % KEYS + is_value * KEYS) * ROW;
    });
    // they stay for further splits, but where new keys passed through their rows
    if (share.split == share.begin_split || share.high > share.start) share.load_queries(queries, ROW);
    __syncthreads();
    const bool has_lower = share.num_queries > 8;

    float sums[HEAD_DIM / 8][4] = {};
    RunningSoftmax upper, lower;  // of query lane / 4 and of the one 8 further on
    const float scale = share.all.scale * 1.4426950408889634f;
#pragma unroll 1
    for (int key_tile = first_tile; key_tile < num_key_tiles; key_tile += WARPS) {
      const int later = key_tile + HELD * WARPS;
      wait_for_copies<2 * HELD - 1>();
      __syncwarp();
      const T* keys = place(key_tile);
      const T* values = keys + KEYS * ROW;
      float scores[2][4] = {};
#pragma unroll
      for (int k = 0; k < HEAD_DIM / 16; k++) {
        unsigned a[4], b[4];
        load_matrices(a, queries + (lane % 16) * ROW + k * 16 + lane / 16 * 8);
        load_matrices(b, keys + (lane % 8 + lane / 16 * 8) * ROW + k * 16 + lane / 8 % 2 * 8);
        multiply_add(scores[0], a, b[0], b[1]);
        multiply_add(scores[1], a, b[2], b[3]);
      }
      __syncwarp();
      fetch(later, block, share.all.key_pages, 0, false);
      commit_copies();
      const int tile_at = share.low + key_tile * KEYS, position = tile_at + 2 * (lane % 4);
      const bool is_open = share.all_see(tile_at);
#pragma unroll
      for (int n = 0; n < 2; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
          if (e >= 2 && !has_lower) continue;
          const int query = lane / 4 + (e < 2 ? 0 : 8);
          const bool seen = is_open || share.sees(query, position + n * 8 + e % 2);
          scores[n][e] = seen ? scaled(scores[n][e], scale) : NOTHING;
        }
      float highest[2] = {NOTHING, NOTHING};
#pragma unroll
      for (int half = 0; half < 2; half++) {
        if (half && !has_lower) continue;
        const int e = 2 * half;
        float m = fmaxf(fmaxf(scores[0][e], scores[0][e + 1]), fmaxf(scores[1][e], scores[1][e + 1]));
        m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 1));
        highest[half] = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 2));
      }
      const float factor[2] = {
          upper.raise(highest[0]), has_lower ? lower.raise(highest[1]) : 1.f};
#pragma unroll
      for (int n = 0; n < 2; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
          if (e >= 2 && !has_lower) {
            scores[n][e] = 0.f;
            continue;
          }
          RunningSoftmax& of = e < 2 ? upper : lower;
          scores[n][e] = of.weight(scores[n][e]);
          of.sum = __fadd_rn(of.sum, scores[n][e]);
        }
      if (__any_sync(0xffffffffu, factor[0] != 1.f || factor[1] != 1.f)) {
#pragma unroll
        for (int d = 0; d < HEAD_DIM / 8; d++)
#pragma unroll
          for (int e = 0; e < 4; e++) sums[d][e] = __fmul_rn(sums[d][e], factor[e / 2]);
      }
      const unsigned weights[4] = {
          packed(scores[0][0], scores[0][1]), packed(scores[0][2], scores[0][3]),
          packed(scores[1][0], scores[1][1]), packed(scores[1][2], scores[1][3])};
      wait_for_copies<2 * HELD - 1>();
      __syncwarp();
#pragma unroll
      for (int d = 0; d < HEAD_DIM / 16; d++) {
        unsigned b[4];
        load_matrices_transposed(b, values + (lane % 16) * ROW + d * 16 + lane / 16 * 8);
        multiply_add(sums[2 * d], weights, b[0], b[1]);
        multiply_add(sums[2 * d + 1], weights, b[2], b[3]);
      }
      __syncwarp();
      fetch(later, block, share.all.value_pages, 1, false);
      commit_copies();
      block = block_of(later + WARPS);
    }
    wait_for_copies<0>();
    __syncwarp();

    float* left = reinterpret_cast<float*>(tiles + warp * TILE);  // which no other warp reads
    const int query = lane / 4;
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 8; i++) {
      float2* to = reinterpret_cast<float2*>(left + query * HEAD_DIM + i * 8 + 2 * (lane % 4));
      to[0] = make_float2(sums[i][0], sums[i][1]);
      if (has_lower) to[8 * HEAD_DIM / 2] = make_float2(sums[i][2], sums[i][3]);
    }
#pragma unroll
    for (int offset = 1; offset < 4; offset <<= 1) {
      upper.sum += __shfl_xor_sync(0xffffffffu, upper.sum, offset);
      lower.sum += __shfl_xor_sync(0xffffffffu, lower.sum, offset);
    }
    if (lane % 4 == 0) {
      stats[warp][query][0] = upper.maximum;
      stats[warp][query][1] = upper.sum;
      stats[warp][query + 8][0] = lower.maximum;
      stats[warp][query + 8][1] = lower.sum;
    }
    SplitResult<WARPS> result;
#pragma unroll
    for (int w = 0; w < WARPS; w++)
      result.values[w] =
          reinterpret_cast<const float*>(tiles + w * TILE);
    result.stats = stats;
    return result;
  }
};
