// float32: all warps go through the key tiles together, each with some of the queries.
template <int HEAD_DIM, int GROUP, int BLOCK_SIZE, int SPLIT, int WARPS>
struct FloatTiles {
  using T = float;
  static constexpr int ROW = HEAD_DIM + 4;
  static constexpr int PARTS = 1;
  static constexpr int SHARED = (QUERIES + 2 * KEYS) * ROW * 4;
  static constexpr int QUERIES_OF_WARP = QUERIES / WARPS;
  static_assert(QUERIES % WARPS == 0);
  static constexpr int DIMS = HEAD_DIM / 32;  // of a lane: lane, lane + 32, ...

  struct Ahead {
    template <typename Share>
    __device__ explicit Ahead(const Share&) {}
  };

  template <typename Source>
  __device__ static SplitResult<1> run(
      const Share<T, HEAD_DIM, GROUP, BLOCK_SIZE, SPLIT, Source>& share,
      const Ahead&,
      unsigned char* shared,
      float (*stats)[QUERIES][2]) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float* queries = reinterpret_cast<float*>(shared);
    float* keys = queries + QUERIES * ROW;
    float* values = keys + KEYS * ROW;
    share.write_window([&](int, bool) { return queries + warp * ROW; });
    // they stay for further splits, but where new keys passed through their rows
    if (share.split == share.begin_split || share.high > share.start) share.load_queries(queries, ROW);

    float sums[QUERIES_OF_WARP][DIMS] = {};
    RunningSoftmax softmax[QUERIES_OF_WARP];
    const float scale = share.all.scale * 1.4426950408889634f;
    for (int tile = share.first_key_tile(); tile < share.num_key_tiles(); tile++) {
      __syncthreads();
      const long long from = share.page_row(share.low + tile * KEYS) * HEAD_DIM;
      for (int i = threadIdx.x; i < KEYS * HEAD_DIM; i += WARPS * 32) {
        keys[i / HEAD_DIM * ROW + i % HEAD_DIM] = share.all.key_pages[from + i];
        values[i / HEAD_DIM * ROW + i % HEAD_DIM] = share.all.value_pages[from + i];
      }
      __syncthreads();
#pragma unroll
      for (int q = 0; q < QUERIES_OF_WARP; q++) {
        const int query = warp * QUERIES_OF_WARP + q, key = lane % KEYS;
        float score = 0.f;  // half of the dims in each half of the warp
#pragma unroll 4
        for (int d = lane / 16 * (HEAD_DIM / 2); d < (lane / 16 + 1) * (HEAD_DIM / 2); d += 4) {
          const float4 a = *reinterpret_cast<const float4*>(queries + query * ROW + d);
          const float4 b = *reinterpret_cast<const float4*>(keys + key * ROW + d);
          score = fmaf(a.x, b.x, fmaf(a.y, b.y, fmaf(a.z, b.z, fmaf(a.w, b.w, score))));
        }
        score += __shfl_xor_sync(0xffffffffu, score, 16);
        const bool seen = share.sees(query, share.low + tile * KEYS + key);
        score = seen ? scaled(score, scale) : NOTHING;
        float highest = score;
#pragma unroll
        for (int o = 8; o; o >>= 1)
          highest = fmaxf(highest, __shfl_xor_sync(0xffffffffu, highest, o));
        const float factor = softmax[q].raise(highest);
        const float weight = softmax[q].weight(score);
        float total = weight;
#pragma unroll
        for (int o = 8; o; o >>= 1) total += __shfl_xor_sync(0xffffffffu, total, o);
        softmax[q].sum = __fadd_rn(softmax[q].sum, total);
#pragma unroll
        for (int j = 0; j < DIMS; j++) sums[q][j] = __fmul_rn(sums[q][j], factor);
#pragma unroll
        for (int k = 0; k < KEYS; k++) {
          const float w = __shfl_sync(0xffffffffu, weight, k);
#pragma unroll
          for (int j = 0; j < DIMS; j++)
            sums[q][j] = fmaf(w, values[k * ROW + lane + 32 * j], sums[q][j]);
        }
      }
    }
    __syncthreads();
#pragma unroll
    for (int q = 0; q < QUERIES_OF_WARP; q++) {
      const int query = warp * QUERIES_OF_WARP + q;
#pragma unroll
      for (int j = 0; j < DIMS; j++) keys[query * HEAD_DIM + lane + 32 * j] = sums[q][j];
      if (lane == 0) {
        stats[0][query][0] = softmax[q].maximum;
        stats[0][query][1] = softmax[q].sum;
      }
    }
    SplitResult<1> result;
    result.values[0] = keys;
    result.stride = HEAD_DIM;
    result.stats = stats;
    return result;
  }
};
