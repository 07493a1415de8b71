// A window of queries over pages: which of it each block has, and the softmax it keeps on the way.

constexpr float NOTHING = -1e30f;  // the maximum of no scores
constexpr int QUERIES = 16;        // of a tile
constexpr int KEYS = 16;           // of a tile: one block of 16 positions, or a part of a larger

// Sums over leading positions that rows have in common, see shared_prefix.cuh; none where there is nothing.
struct SharedSums {
  const int* positions;     // how many each row has
  const int* first_blocks;  // (rows, FIRST_BLOCKS): where its own positions begin, the block of each key tile
  const bfloat16* partial;  // (K/V heads, num_pieces, num_queries, dim), normalised
  const float* stats;       // likewise without dim, as below
  int num_pieces;           // at most 32
  int num_queries;          // rows x width x GROUP
};

constexpr int SHARED_KEYS = 64;  // positions that are shared are a multiple of
constexpr int FIRST_BLOCKS = 16;

// How many key tiles each piece of so many shared positions has, and how many pieces that makes.
__device__ __forceinline__ int tiles_of_piece(int positions, int most_pieces) {
  return (positions / SHARED_KEYS + most_pieces - 1) / most_pieces;
}
__device__ __forceinline__ int pieces_of(int positions, int most_pieces) {
  if (positions == 0) return 0;
  const int each = tiles_of_piece(positions, most_pieces);
  return (positions / SHARED_KEYS + each - 1) / each;
}

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
  int most_splits;  // of a row
  int window_size;  // a query at p sees positions after p - window_size
  int first;        // positions before this one are seen by queries there only
  float scale;
  SharedSums shared;
};

// A few numbers that lie side by side, in as few pieces as there are.
template <typename T, int COUNT>
__device__ __forceinline__ void load(T (&to)[COUNT], const T* from) {
  if constexpr (sizeof(T) * COUNT % 16 == 0) {
#pragma unroll
    for (int i = 0; i < sizeof(T) * COUNT / 16; i++)
      reinterpret_cast<uint4*>(to)[i] = reinterpret_cast<const uint4*>(from)[i];
  } else {
#pragma unroll
    for (int i = 0; i < COUNT; i++) to[i] = from[i];
  }
}
template <typename T, int COUNT>
__device__ __forceinline__ void store(T* to, const T (&from)[COUNT]) {
  constexpr int SIZE = sizeof(T) * COUNT;
  if constexpr (SIZE % 16 == 0) {
#pragma unroll
    for (int i = 0; i < SIZE / 16; i++)
      reinterpret_cast<uint4*>(to)[i] = reinterpret_cast<const uint4*>(from)[i];
  } else if constexpr (SIZE == 8) {
    *reinterpret_cast<uint2*>(to) = *reinterpret_cast<const uint2*>(from);
  } else {
#pragma unroll
    for (int i = 0; i < COUNT; i++) to[i] = from[i];
  }
}

// A load that stays where it is written.
__device__ __forceinline__ int load_at_once(const int* from) {
  int value;
  asm volatile("ld.global.nc.b32 %0, [%1];" : "=r"(value) : "l"(from));
  return value;
}

// One block's share: which queries, which positions.
template <typename T, int HEAD_DIM, int GROUP, int BLOCK_SIZE, int SPLIT, typename Source>
struct Share {
  static_assert(SPLIT % KEYS == 0);
  using Number = T;
  static constexpr int DIM = HEAD_DIM, QUERIES_OF_TOKEN = GROUP;

  const PagedWindow<T, Source>& all;
  int row, tile, kv_head, split;
  int start, length, end;
  int low, high;  // the positions of the split that exist and are this launch's
  int num_shared;  // leading positions that are not; splits are counted after them
  int first_split, num_splits;
  int each, begin_split, end_split;  // splits a block has, and which are this one's
  int num_queries;  // of the tile's 16

  __device__ explicit Share(const PagedWindow<T, Source>& all) : all(all) {
    const int tiles = (all.width * GROUP + QUERIES - 1) / QUERIES;
    row = blockIdx.z / tiles;
    tile = blockIdx.z % tiles;
    kv_head = blockIdx.y;
    start = all.starts[row];
    length = all.lengths[row];
    end = start + length;
    num_shared = all.shared.positions ? all.shared.positions[row] : 0;
    first_split = split_of(start - all.window_size + 1 - num_shared);
    num_splits = split_of(end - 1 - num_shared) + 1 - first_split;
    each = (num_splits + gridDim.x - 1) / gridDim.x;
    begin_split = first_split + blockIdx.x * each;
    end_split = min(begin_split + each, first_split + num_splits);
    take(begin_split);
    num_queries = min(QUERIES, all.width * GROUP - tile * QUERIES);
  }
  __device__ void take(int next) {
    split = next;
    low = num_shared + (split ? (split + 1) * SPLIT : 0);
    high = min(end, num_shared + (split + 2) * SPLIT);
  }
  // The first split is as long as two others.
  __device__ static int split_of(int position) { return max(0, position / SPLIT - 1); }
  __device__ bool is_empty() const { return low >= end || begin_split >= end_split; }
  __device__ int num_blocks() const { return (num_splits + each - 1) / each; }
  // A number for the row's tile and the K/V head.
  __device__ long long number() const {
    const int tiles = (all.width * GROUP + QUERIES - 1) / QUERIES;
    return ((long long)row * tiles + tile) * all.num_kv_heads + kv_head;
  }
  __device__ int token(int query) const { return (tile * QUERIES + query) / GROUP; }
  __device__ int head(int query) const { return kv_head * GROUP + (tile * QUERIES + query) % GROUP; }
  __device__ const int* table() const { return all.tables + (long long)row * all.table_length; }
  __device__ long long page_row(int position) const {
    return page_row(table()[position / BLOCK_SIZE], position);
  }
  __device__ long long page_row(int block, int position) const {
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

  // The window's K/V within the split into their pages, a warp for each token, by way of the rows of
  // shared memory that ``row_of`` gives for a position's key and for its value. The last warps begin: the
  // first have queries to prepare.
  template <typename RowOf>
  __device__ void write_window(const RowOf& row_of) const {
    if (high <= start) return;
    const int warps = blockDim.x / 32;
    for (int t = max(0, low - start) + warps - 1 - threadIdx.x / 32; t < high - start; t += warps) {
      const int position = start + t;
      const long long to = page_row(position) * HEAD_DIM;
      all.source.write(
          *this, t, all.key_pages + to, all.value_pages + to, row_of(position, false),
          row_of(position, true));
    }
  }
  // Queries of the tile into shared memory, a warp for each. Rows of those that do not exist stay as
  // they are: what comes of them is nowhere read.
  __device__ void load_queries(T* to, int stride) const {
    for (int query = threadIdx.x / 32; query < QUERIES; query += blockDim.x / 32) {
      if (token(query) >= length) break;
      all.source.load_query(*this, token(query), head(query), to + query * stride);
    }
  }
  // What a lane has of a query: DIM / 32 numbers from ``first_dim`` on.
  __device__ static int first_dim() { return threadIdx.x % 32 * (HEAD_DIM / 32); }
  __device__ void load_gates(int query, T (&to)[HEAD_DIM / 32]) const {
#pragma unroll
    for (int j = 0; j < HEAD_DIM / 32; j++)
      to[j] = all.source.gate(*this, token(query), head(query), first_dim() + j);
  }
  // Asks for what every block needs first or last: it comes into L2 while the pages are on their way.
  __device__ void ask() const {
    if (threadIdx.x < 32) all.source.ask(*this);
    if (threadIdx.x == 32) prefetch(all.counters + number());
  }
  __device__ void emit(
      int query, const float (&values)[HEAD_DIM / 32], float sum, const T (&gates)[HEAD_DIM / 32]) const {
    const int t = token(query);
    const long long at =
        (((long long)row * all.width + t) * (all.num_kv_heads * GROUP) + head(query)) * HEAD_DIM;
    alignas(16) T out[HEAD_DIM / 32];
#pragma unroll
    for (int j = 0; j < HEAD_DIM / 32; j++)
      out[j] = t < length ? all.source.finished(values[j] / sum, gates[j]) : static_cast<T>(0.f);
    store(all.out + at + first_dim(), out);
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
  int stride;  // of a query's sums
  const float (*stats)[QUERIES][2];
};
