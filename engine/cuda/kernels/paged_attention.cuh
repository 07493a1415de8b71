// Attention of a window of new tokens over the pages of their rows, K/V write included.
//
//   out[b, t, h] = softmax_p(scale q[b, h, t] . k[p]) v[p],   p <= start[b] + t
//
// Grid: (splits, K/V heads, rows x query tiles). A query tile is 16 of the width x GROUP queries
// that share a K/V head, token by token. A split is SPLIT consecutive positions, counted from
// position 0 whatever the batch holds: so a query's result, bitwise, depends on its own row alone,
// not on the batch, nor on which other tokens are in its window (a split that is masked for a
// query adds nothing to it). The last block of a tile to finish merges its splits, in order.
//
//   position 0        SPLIT        2 SPLIT             end = start + length
//   |--- split 0 ---|--- split 1 ---|--- split 2 ...---|
//                                      ^ start: written here, by the blocks that read them

constexpr float NOTHING = -1e30f;  // the maximum of no scores
constexpr int QUERIES = 16;        // of a tile
constexpr int KEYS = 16;           // of a tile: one block of 16 positions, or a part of a larger

template <typename T>
struct Heads {  // (rows, heads, time, dim) with any strides
  const T* data;
  long long row, head, time, dim;

  __device__ T at(int b, int h, int t, int d) const {
    return data[b * row + h * head + t * time + d * dim];
  }
};

// What the blocks of one launch share.
template <typename T>
struct PagedWindow {
  Heads<T> queries, keys, values;
  T* key_pages;  // (K/V heads * blocks * block size, dim), see engine/pages.py
  T* value_pages;
  const int* tables;  // (rows, table_length) block ids
  const int* starts;
  const int* lengths;
  int* counters;  // one for each (row and tile, K/V head); zero before and after
  T* out;         // (rows, time, heads, dim)
  float* partial;  // (row and tile, K/V head, split, QUERIES, dim), not normalised
  float* stats;    // likewise without dim: (maximum of the scaled scores in base 2, sum)
  int width, num_kv_heads, num_blocks, table_length;
  int window_size;  // a query at p sees positions after p - window_size
  int first;        // positions before this one are seen by queries there only
  float scale;
};

// One block's share: which queries, which positions.
template <typename T, int HEAD_DIM, int GROUP, int BLOCK_SIZE, int SPLIT>
struct Share {
  const PagedWindow<T>& all;
  int row, tile, kv_head, split;
  int start, length, end;
  int low, high;  // the positions of the split that exist
  int first_split, num_splits;
  int num_queries;  // of the tile's 16

  __device__ explicit Share(const PagedWindow<T>& all) : all(all) {
    const int tiles = (all.width * GROUP + QUERIES - 1) / QUERIES;
    row = blockIdx.z / tiles;
    tile = blockIdx.z % tiles;
    kv_head = blockIdx.y;
    split = blockIdx.x;
    start = all.starts[row];
    length = all.lengths[row];
    end = start + length;
    low = split * SPLIT;
    high = min(end, low + SPLIT);
    first_split = max(0, start - all.window_size + 1) / SPLIT;
    num_splits = (end - 1) / SPLIT + 1 - first_split;
    num_queries = min(QUERIES, all.width * GROUP - tile * QUERIES);
  }
  __device__ bool is_empty() const { return split < first_split || low >= end; }
  __device__ int token(int query) const { return (tile * QUERIES + query) / GROUP; }
  __device__ int head(int query) const { return kv_head * GROUP + (tile * QUERIES + query) % GROUP; }
  __device__ long long page_row(int position) const {
    const int block = all.tables[(long long)row * all.table_length + position / BLOCK_SIZE];
    return ((long long)kv_head * all.num_blocks + block) * BLOCK_SIZE + position % BLOCK_SIZE;
  }
  __device__ bool sees(int query, int position) const {
    const int at = start + token(query);
    return position <= at && position < end && position > at - all.window_size &&
        (position >= all.first || at < all.first);
  }
  // Whether every query of the window sees all positions of a key tile.
  __device__ bool all_see(int position) const {
    return position + KEYS - 1 <= start && position > start + all.width - 1 - all.window_size &&
        position >= all.first;
  }
  __device__ int first_key_tile() const {
    return max(0, start - all.window_size + 1 - low) / KEYS;
  }
  __device__ int num_key_tiles() const { return (high - low + KEYS - 1) / KEYS; }

  __device__ void write_window() const {
    if (high <= start) return;
    for (int i = threadIdx.x; i < length * HEAD_DIM; i += blockDim.x) {
      const int t = i / HEAD_DIM, d = i % HEAD_DIM, position = start + t;
      if (position < low || position >= high) continue;
      const long long to = page_row(position) * HEAD_DIM + d;
      all.key_pages[to] = all.keys.at(row, kv_head, t, d);
      all.value_pages[to] = all.values.at(row, kv_head, t, d);
    }
  }
  // Queries of the tile into shared memory, rows of ``stride``; zeros for those that do not exist.
  __device__ void load_queries(T* to, int stride) const {
    for (int i = threadIdx.x; i < QUERIES * HEAD_DIM; i += blockDim.x) {
      const int query = i / HEAD_DIM, d = i % HEAD_DIM, t = token(query);
      to[query * stride + d] =
          t < length ? all.queries.at(row, head(query), t, d) : static_cast<T>(0.f);
    }
  }
  __device__ void emit(int query, int d, float value) const {
    const int t = token(query);
    if (t >= all.width) return;
    const long long at = (long long)row * all.width + t;
    all.out[(at * (all.num_kv_heads * GROUP) + head(query)) * HEAD_DIM + d] =
        static_cast<T>(t < length ? value : 0.f);
  }
};

// Products and sums are spelt out: a product contracted with the sum that follows it, on one side of a
// branch and not on the other, would round differently in different windows.
__device__ __forceinline__ float scaled(float score, float scale) {
  return __fmul_rn(score, scale);
}

// Adds scores of one query to its running softmax; returns what earlier sums are multiplied by.
struct RunningSoftmax {
  float maximum = NOTHING, sum = 0.f;

  __device__ float raise(float candidate) {
    const float higher = fmaxf(maximum, candidate), factor = exp2f(__fsub_rn(maximum, higher));
    maximum = higher;
    sum = __fmul_rn(sum, factor);
    return factor;
  }
  __device__ float weight(float score) const {
    return score <= NOTHING ? 0.f : exp2f(__fsub_rn(score, maximum));
  }
};

// Where a block leaves its split for the merge: each of PARTS warps (or one, for all) has seen other
// positions and holds (QUERIES, dim) sums and (maximum, sum) of its own.
template <int PARTS>
struct SplitResult {
  const float* values[PARTS];
  const float (*stats)[QUERIES][2];
};

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

  __device__ static SplitResult<WARPS> run(
      const Share<T, HEAD_DIM, GROUP, BLOCK_SIZE, SPLIT>& share,
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
      share.write_window();
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

// float32: all warps go through the key tiles together, each with some of the queries.
template <int HEAD_DIM, int GROUP, int BLOCK_SIZE, int SPLIT, int WARPS>
struct FloatTiles {
  using T = float;
  static constexpr int ROW = HEAD_DIM + 4;
  static constexpr int PARTS = 1;
  static constexpr int SHARED = (QUERIES + 2 * KEYS) * ROW * 4;
  static constexpr int QUERIES_OF_WARP = QUERIES / WARPS;
  static constexpr int DIMS = HEAD_DIM / 32;  // of a lane: lane, lane + 32, ...

  __device__ static SplitResult<1> run(
      const Share<T, HEAD_DIM, GROUP, BLOCK_SIZE, SPLIT>& share,
      unsigned char* shared,
      float (*stats)[QUERIES][2]) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float* queries = reinterpret_cast<float*>(shared);
    float* keys = queries + QUERIES * ROW;
    float* values = keys + KEYS * ROW;
    share.write_window();
    share.load_queries(queries, ROW);

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
    result.stats = stats;
    return result;
  }
};

// Whether this block is the last of its tile to get here; what the others wrote is then visible.
__device__ __forceinline__ bool is_last(int* counter, int expected) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    last = atomicAdd(counter, 1) == expected - 1;
    if (last) *counter = 0;
  }
  __syncthreads();
  __threadfence();
  return last;
}

template <typename Tiles, typename T, int HEAD_DIM, int GROUP, int BLOCK_SIZE, int SPLIT, int WARPS>
__device__ void paged_attention(const PagedWindow<T>& all) {
  extern __shared__ __align__(16) unsigned char shared[];
  __shared__ float stats[Tiles::PARTS][QUERIES][2];
  const Share<T, HEAD_DIM, GROUP, BLOCK_SIZE, SPLIT> share(all);
  if (share.is_empty()) return;
  const auto result = Tiles::run(share, shared, stats);
  __syncthreads();

  const long long group = (long long)blockIdx.z * gridDim.y + blockIdx.y;
  const long long here = group * gridDim.x + share.split;
  for (int i = threadIdx.x; i < share.num_queries * HEAD_DIM; i += WARPS * 32) {
    const int query = i / HEAD_DIM, d = i % HEAD_DIM;
    float maximum = NOTHING, value = 0.f, sum = 0.f;
#pragma unroll
    for (int p = 0; p < Tiles::PARTS; p++) maximum = fmaxf(maximum, result.stats[p][query][0]);
#pragma unroll
    for (int p = 0; p < Tiles::PARTS; p++) {
      const float factor = exp2f(result.stats[p][query][0] - maximum);
      sum = fmaf(factor, result.stats[p][query][1], sum);
      value = fmaf(factor, result.values[p][i], value);
    }
    if (share.num_splits == 1) {
      share.emit(query, d, value / sum);
    } else {
      all.partial[here * QUERIES * HEAD_DIM + i] = value;
      if (d == 0) {
        all.stats[(here * QUERIES + query) * 2] = maximum;
        all.stats[(here * QUERIES + query) * 2 + 1] = sum;
      }
    }
  }
  if (share.num_splits == 1 || !is_last(all.counters + group, share.num_splits)) return;

  // The merge: a warp for each query, splits in order; loads do not wait for the sums.
  constexpr int DIMS = HEAD_DIM / 32;
  const long long first = group * gridDim.x + share.first_split;
  for (int query = threadIdx.x / 32; query < share.num_queries; query += WARPS) {
    RunningSoftmax softmax;
    float value[DIMS] = {};
#pragma unroll 8
    for (int s = 0; s < share.num_splits; s++) {
      const long long at = (first + s) * QUERIES + query;
      const float2 stat = __ldcg(reinterpret_cast<const float2*>(all.stats) + at);
      float part[DIMS];
#pragma unroll
      for (int j = 0; j < DIMS; j++)
        part[j] = __ldcg(all.partial + at * HEAD_DIM + threadIdx.x % 32 + 32 * j);
      const float factor = softmax.raise(stat.x);
      const float weight = softmax.weight(stat.x);
      softmax.sum = fmaf(weight, stat.y, softmax.sum);
#pragma unroll
      for (int j = 0; j < DIMS; j++) value[j] = fmaf(weight, part[j], __fmul_rn(value[j], factor));
    }
#pragma unroll
    for (int j = 0; j < DIMS; j++)
      share.emit(query, threadIdx.x % 32 + 32 * j, value[j] / softmax.sum);
  }
}
