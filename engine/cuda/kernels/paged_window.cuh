// A window of queries over pages: which of it each block has, and the softmax it keeps on the way.

constexpr float NOTHING = -1e30f;  // the maximum of no scores
constexpr int QUERIES = 16;        // of a tile
constexpr int KEYS = 16;           // of a tile: one block of 16 positions, or a part of a larger

// Sums over leading splits that rows have in common, see shared_prefix.cuh; none where there is nothing.
struct SharedSums {
  const int* splits;     // how many each row has
  const float* partial;  // (rows, K/V heads, num_splits, width x GROUP, dim), not normalised
  const float* stats;    // likewise without dim, as below
  int num_splits;
};

// What the blocks of one launch share. A Source knows where new heads are and what is done to them.
template <typename T, typename Source>
struct PagedWindow {
  Source source;
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
  SharedSums shared;
};

// One block's share: which queries, which positions.
template <typename T, int HEAD_DIM, int GROUP, int BLOCK_SIZE, int SPLIT, typename Source>
struct Share {
  static constexpr int DIM = HEAD_DIM;

  const PagedWindow<T, Source>& all;
  int row, tile, kv_head, split;
  int start, length, end;
  int low, high;  // the positions of the split that exist
  int num_shared, first_split, num_splits;  // shared ones are not this launch's
  int num_queries;  // of the tile's 16

  __device__ explicit Share(const PagedWindow<T, Source>& all) : all(all) {
    const int tiles = (all.width * GROUP + QUERIES - 1) / QUERIES;
    row = blockIdx.z / tiles;
    tile = blockIdx.z % tiles;
    kv_head = blockIdx.y;
    start = all.starts[row];
    length = all.lengths[row];
    end = start + length;
    num_shared = all.shared.splits ? all.shared.splits[row] : 0;
    first_split = max(num_shared, max(0, start - all.window_size + 1) / SPLIT);
    num_splits = (end - 1) / SPLIT + 1 - first_split;
    split = first_split + blockIdx.x;
    low = split * SPLIT;
    high = min(end, low + SPLIT);
    num_queries = min(QUERIES, all.width * GROUP - tile * QUERIES);
  }
  __device__ bool is_empty() const { return low >= end; }
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

  // The window's K/V within the split into their pages, a warp for each token; a warp may use its own
  // row of ``rows`` on the way.
  __device__ void write_window(T* rows, int stride) const {
    if (high <= start) return;
    const int warp = threadIdx.x / 32;
    for (int t = max(0, low - start) + warp; t < high - start; t += blockDim.x / 32) {
      const long long to = page_row(start + t) * HEAD_DIM;
      all.source.write(*this, t, all.key_pages + to, all.value_pages + to, rows + warp * stride);
    }
  }
  // Queries of the tile into shared memory, a warp for each; zeros for those that do not exist.
  __device__ void load_queries(T* to, int stride) const {
    for (int query = threadIdx.x / 32; query < QUERIES; query += blockDim.x / 32) {
      T* row_of = to + query * stride;
      if (token(query) < length) {
        all.source.load_query(*this, token(query), head(query), row_of);
      } else {
        for (int d = threadIdx.x % 32; d < HEAD_DIM; d += 32) row_of[d] = static_cast<T>(0.f);
      }
    }
  }
  __device__ void emit(int query, int d, float value) const {
    const int t = token(query);
    if (t >= all.width) return;
    const long long at = (long long)row * all.width + t;
    all.out[(at * (all.num_kv_heads * GROUP) + head(query)) * HEAD_DIM + d] =
        t < length ? all.source.finished(*this, t, head(query), d, value) : static_cast<T>(0.f);
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
