// A window of queries over pages: which of it each block has, and the softmax it keeps on the way.

constexpr float NOTHING = -1e30f;  // the maximum of no scores
constexpr int QUERIES = 16;        // of a tile
constexpr int KEYS = 16;           // of a tile: one block of 16 positions, or a part of a larger

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
