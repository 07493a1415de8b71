// bfloat16: each warp takes every WARPS-th key tile; scores and values by tensor cores. Rows of their
// products are keys, and dims of values, columns are queries: eight at a time, HALVES times.
//
// A warp has room for HELD key tiles, which are on their way to it before anything else is done; the
// queries and the window's own K/V are prepared meanwhile. Whoever prepares a row of the window puts it
// into its tile if that is held. Later tiles come as room is left, when the window is in its pages.
template <int HEAD_DIM, int GROUP, int BLOCK_SIZE, int SPLIT, int WARPS, int HELD, int HALVES>
struct TensorCoreTiles {
  using T = bfloat16;
  static constexpr int ROW = HEAD_DIM + 8;  // padding: the 8 rows of a matrix meet all banks
  static constexpr int TILE = 2 * KEYS * ROW;  // keys, then values
  static constexpr int PARTS = WARPS;
  static constexpr int PIECES = HEAD_DIM / 8;  // of 16 bytes, of a row
  static constexpr int LEFT = HEAD_DIM + 4;    // from one query's sums to the next: likewise
  static_assert(HEAD_DIM % 32 == 0 && BLOCK_SIZE % KEYS == 0);
  static_assert(TILE * 2 >= QUERIES * LEFT * 4, "the sums take a tile's place");

  // The blocks of the warp's first tiles, asked for at once: of the split it is unless others come before.
  struct Ahead {
    int blocks[HELD];

    template <typename Share>
    __device__ explicit Ahead(const Share& share) {
      static_assert(HELD * WARPS <= FIRST_BLOCKS);
      const int* table = share.table();
      const int* first_blocks = share.all.shared.first_blocks;  // need not wait for where a row's own begin
      const int low = blockIdx.x ? (blockIdx.x + 1) * SPLIT : 0;
#pragma unroll
      for (int i = 0; i < HELD; i++) {
        const int key_tile = i * WARPS + threadIdx.x / 32, position = low + key_tile * KEYS;
        blocks[i] = load_at_once(
            first_blocks && blockIdx.x == 0
                ? first_blocks + share.row * FIRST_BLOCKS + key_tile
                : table + min(position / BLOCK_SIZE, share.all.table_length - 1));
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
    const bool is_ahead =
        share.split == blockIdx.x && (share.num_shared == 0 || blockIdx.x == 0) && begin < WARPS;
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

    float sums[HALVES][HEAD_DIM / 16][4] = {};
    // of queries 2 (lane % 4) and the next, and of those 8 further on; nvcc 13.0 leaves all but the first
    // row of an array of rows of structs without their members' initializers
    RunningSoftmax softmax[2 * HALVES];
    const float scale = share.all.scale * 1.4426950408889634f;
#pragma unroll 1
    for (int key_tile = first_tile; key_tile < num_key_tiles; key_tile += WARPS) {
      const int later = key_tile + HELD * WARPS;
      wait_for_copies<2 * HELD - 1>();
      __syncwarp();
      const T* keys = place(key_tile);
      const T* values = keys + KEYS * ROW;
      float parts[HALVES][2][4] = {};  // of even and of odd steps through the depth
      unsigned b[4];
#pragma unroll
      for (int k = 0; k < HEAD_DIM / 16; k++) {
        unsigned a[4];
        load_matrices(a, keys + (lane % 16) * ROW + k * 16 + lane / 16 * 8);
        if (HALVES == 2)
          load_matrices(b, queries + (lane % 8 + lane / 16 * 8) * ROW + k * 16 + lane / 8 % 2 * 8);
        else if (k % 2 == 0)  // of two steps
          load_matrices(b, queries + lane % 8 * ROW + k * 16 + lane / 8 * 8);
#pragma unroll
        for (int h = 0; h < HALVES; h++) {
          const int at = HALVES == 2 ? 2 * h : k % 2 * 2;
          multiply_add(parts[h][k % 2], a, b[at], b[at + 1]);
        }
      }
      __syncwarp();
      fetch(later, block, share.all.key_pages, 0, false);
      commit_copies();
      const int tile_at = share.low + key_tile * KEYS;
      const bool is_open = share.all_see(tile_at);
      float factor[HALVES][2];
      unsigned weights[HALVES][2];
#pragma unroll
      for (int h = 0; h < HALVES; h++) {
        float scores[4];
#pragma unroll
        for (int e = 0; e < 4; e++) {
          const int query = 8 * h + 2 * (lane % 4) + e % 2, position = tile_at + lane / 4 + e / 2 * 8;
          const bool seen = is_open || share.sees(query, position);
          scores[e] = seen ? scaled(__fadd_rn(parts[h][0][e], parts[h][1][e]), scale) : NOTHING;
        }
#pragma unroll
        for (int c = 0; c < 2; c++) {
          float highest = fmaxf(scores[c], scores[c + 2]);
#pragma unroll
          for (int offset = 4; offset < 32; offset <<= 1)
            highest = fmaxf(highest, __shfl_xor_sync(0xffffffffu, highest, offset));
          RunningSoftmax& of = softmax[2 * h + c];
          factor[h][c] = of.raise(highest);
          scores[c] = of.weight(scores[c]);
          scores[c + 2] = of.weight(scores[c + 2]);
          of.sum = __fadd_rn(of.sum, __fadd_rn(scores[c], scores[c + 2]));
        }
        weights[h][0] = transposed(packed(scores[0], scores[1]));
        weights[h][1] = transposed(packed(scores[2], scores[3]));
      }
#pragma unroll
      for (int h = 0; h < HALVES; h++)
        if (__any_sync(0xffffffffu, factor[h][0] != 1.f || factor[h][1] != 1.f)) {
#pragma unroll
          for (int d = 0; d < HEAD_DIM / 16; d++)
#pragma unroll
            for (int e = 0; e < 4; e++) sums[h][d][e] = __fmul_rn(sums[h][d][e], factor[h][e % 2]);
        }
      wait_for_copies<2 * HELD - 1>();
      __syncwarp();
#pragma unroll
      for (int d = 0; d < HEAD_DIM / 16; d++) {
        unsigned a[4];
        load_matrices_transposed(
            a, values + (lane / 16 * 8 + lane % 8) * ROW + d * 16 + lane / 8 % 2 * 8);
#pragma unroll
        for (int h = 0; h < HALVES; h++) multiply_add(sums[h][d], a, weights[h][0], weights[h][1]);
      }
      __syncwarp();
      fetch(later, block, share.all.value_pages, 1, false);
      commit_copies();
      block = block_of(later + WARPS);
    }
    wait_for_copies<0>();
    __syncwarp();

    float* left = reinterpret_cast<float*>(tiles + warp * TILE);  // which no other warp reads
#pragma unroll
    for (int h = 0; h < HALVES; h++) {
      const int query = 8 * h + 2 * (lane % 4);
#pragma unroll
      for (int d = 0; d < HEAD_DIM / 16; d++)
#pragma unroll
        for (int e = 0; e < 4; e++)
          left[(query + e % 2) * LEFT + d * 16 + lane / 4 + e / 2 * 8] = sums[h][d][e];
#pragma unroll
      for (int c = 0; c < 2; c++) {
        RunningSoftmax& of = softmax[2 * h + c];
#pragma unroll
        for (int offset = 4; offset < 32; offset <<= 1)
          of.sum += __shfl_xor_sync(0xffffffffu, of.sum, offset);
        if (lane < 4) {
          stats[warp][query + c][0] = of.maximum;
          stats[warp][query + c][1] = of.sum;
        }
      }
    }
    SplitResult<WARPS> result;
#pragma unroll
    for (int w = 0; w < WARPS; w++)
      result.values[w] = reinterpret_cast<const float*>(tiles + w * TILE);
    result.stride = LEFT;
    result.stats = stats;
    return result;
  }
};
