// bfloat16: each warp takes every WARPS-th key tile; scores and values by tensor cores.
template <int HEAD_DIM, int GROUP, int BLOCK_SIZE, int SPLIT, int WARPS, int STAGES>
struct TensorCoreTiles {
  using T = bfloat16;
  static constexpr int ROW = HEAD_DIM + 8;  // padding: the 8 rows of a matrix meet all banks
  static constexpr int STAGE = 2 * KEYS * ROW;
  static constexpr int PARTS = WARPS;
  static constexpr int SHARED = (QUERIES * ROW + WARPS * STAGES * STAGE) * 2;
  static_assert(HEAD_DIM % 32 == 0 && BLOCK_SIZE % KEYS == 0 && SPLIT % KEYS == 0);
  static_assert(STAGES * STAGE * 2 >= QUERIES * HEAD_DIM * 4, "the sums take the stages' place");

  template <typename Source>
  __device__ static SplitResult<WARPS> run(
      const Share<T, HEAD_DIM, GROUP, BLOCK_SIZE, SPLIT, Source>& share,
      unsigned char* shared,
      float (*stats)[QUERIES][2]) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    T* queries = reinterpret_cast<T*>(shared);
    T* ring = queries + QUERIES * ROW + warp * STAGES * STAGE;
    const int num_key_tiles = share.num_key_tiles();

    auto fetch = [&](int key_tile, int stage) {
      if (key_tile < num_key_tiles) {
        const long long from = share.page_row(share.low + key_tile * KEYS) * HEAD_DIM;
        T* keys = ring + stage * STAGE;
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 16; i++) {
          const int piece = i * 32 + lane, r = piece / (HEAD_DIM / 8), c = piece % (HEAD_DIM / 8);
          copy_async(keys + r * ROW + c * 8, share.all.key_pages + from + piece * 8);
          copy_async(keys + (KEYS + r) * ROW + c * 8, share.all.value_pages + from + piece * 8);
        }
      }
      commit_copies();
    };

    const int begin = share.first_key_tile() / WARPS * WARPS + warp;  // tile % WARPS is the warp
    const bool is_written = share.high > share.start;  // by this block, before it reads
    if (is_written) {
      share.write_window(queries, ROW);
      __syncthreads();
    }
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++) fetch(begin + s * WARPS, s);
    share.load_queries(queries, ROW);
    __syncthreads();
    const bool has_lower = share.num_queries > 8;

    float sums[HEAD_DIM / 8][4] = {};
    RunningSoftmax upper, lower;  // of query lane / 4 and of the one 8 further on
    const float scale = share.all.scale * 1.4426950408889634f;
    int stage = 0;
    for (int key_tile = begin; key_tile < num_key_tiles; key_tile += WARPS) {
      fetch(key_tile + (STAGES - 1) * WARPS, (stage + STAGES - 1) % STAGES);
      wait_for_copies<STAGES - 1>();
      __syncwarp();
      const T* keys = ring + stage * STAGE;
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
      const unsigned weights[4] = {
          packed(scores[0][0], scores[0][1]), packed(scores[0][2], scores[0][3]),
          packed(scores[1][0], scores[1][1]), packed(scores[1][2], scores[1][3])};
#pragma unroll
      for (int d = 0; d < HEAD_DIM / 16; d++) {
        unsigned b[4];
        load_matrices_transposed(b, values + (lane % 16) * ROW + d * 16 + lane / 16 * 8);
#pragma unroll
        for (int e = 0; e < 4; e++) {
          sums[2 * d][e] = __fmul_rn(sums[2 * d][e], factor[e / 2]);
          sums[2 * d + 1][e] = __fmul_rn(sums[2 * d + 1][e], factor[e / 2]);
        }
        multiply_add(sums[2 * d], weights, b[0], b[1]);
        multiply_add(sums[2 * d + 1], weights, b[2], b[3]);
      }
      __syncwarp();
      stage = (stage + 1) % STAGES;
    }
    wait_for_copies<0>();
    __syncwarp();

    float* left = reinterpret_cast<float*>(ring);
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
          reinterpret_cast<const float*>(queries + QUERIES * ROW + w * STAGES * STAGE);
    result.stats = stats;
    return result;
  }
};
