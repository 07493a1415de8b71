// Attention over positions that the rows of a group share, read once for all of them.
//
// Grid: (pieces, K/V heads, query tiles). A group's queries of a K/V head, row by row, token by token,
// are cut into tiles of QUERIES; the tiles of the next group follow. Key tiles of what a group shares
// are dealt out to pieces, one after another, as many to each. A block leaves for each query of its
// tile what attention to its piece comes to, for paged_attention to merge with the row's own splits.
// Results depend on the number of pieces, and so on the batch: exact mode has no groups.

struct SharedPrefix {
  const bfloat16* queries;    // (rows, width, heads, dim), ready
  const bfloat16* key_pages;  // (K/V heads * blocks * block size, dim), see engine/pages.py
  const bfloat16* value_pages;
  const int* tables;  // (rows, table_length) block ids
  const int* groups;  // (num_groups, 3): first row, row after the last, positions that they share
  float* partial;     // (rows, K/V heads, pieces, width x GROUP, dim), not normalised
  float* stats;       // likewise without dim: (maximum of the scaled scores in base 2, sum)
  int num_groups, width, num_kv_heads, num_blocks, table_length;
  int first;  // positions before this one are not seen
  float scale;
};

template <int DIM, int GROUP, int BLOCK_SIZE, int WARPGROUPS, int STAGES>
struct SharedPiece {
  using T = bfloat16;
  using Attention = WarpgroupAttention<DIM>;
  static constexpr int KEYS = Attention::KEYS, PIECES = Attention::PIECES;
  static constexpr int QUERIES = WARPGROUPS * 64, WARPS = WARPGROUPS * 4;
  static constexpr int STAGE = 2 * KEYS * DIM;   // keys, then values
  static constexpr int FETCHED = KEYS / WARPS;   // rows of a key tile that a warp fetches
  static_assert(KEYS == SHARED_KEYS && BLOCK_SIZE % FETCHED == 0);

  const SharedPrefix& all;
  const int lane, warp, kv_head;

  __device__ explicit SharedPiece(const SharedPrefix& all)
      : all(all), lane(threadIdx.x % 32), warp(threadIdx.x / 32), kv_head(blockIdx.y) {}

  __device__ void run(unsigned char* shared) const {
    const int each = all.width * GROUP;
    int tile = blockIdx.z, first_row, num_queries;
    const int* group = all.groups;
    for (;; group += 3) {
      if (group == all.groups + 3 * all.num_groups) return;
      first_row = group[0];
      num_queries = (group[1] - first_row) * each;
      const int tiles = (num_queries + QUERIES - 1) / QUERIES;
      if (tile < tiles) break;
      tile -= tiles;
    }
    const int positions = group[2], tiles_each = tiles_of_piece(positions, gridDim.x);
    const int begin = blockIdx.x * tiles_each, stop = min(begin + tiles_each, positions / KEYS);
    if (begin >= stop) return;
    const int warp_query = tile * QUERIES + warp * 16;
    const bool is_idle = warp_query / 64 * 64 >= num_queries;  // all of the warpgroup

    T* queries = reinterpret_cast<T*>(shared) + warp / 4 * 64 * DIM;
    T* ring = reinterpret_cast<T*>(shared) + QUERIES * DIM;
    const int* table = all.tables + (long long)first_row * all.table_length;
    auto block_of = [&](int key_tile) {
      return table[(min(stop - 1, key_tile) * KEYS + warp * FETCHED) / BLOCK_SIZE];
    };
    int block = block_of(begin);
    auto fetch = [&](int key_tile) {
      if (key_tile < stop) {
        const int position = key_tile * KEYS + warp * FETCHED;
        const long long from =
            (((long long)kv_head * all.num_blocks + block) * BLOCK_SIZE + position % BLOCK_SIZE) *
            DIM;
        T* keys = ring + (key_tile - begin) % STAGES * STAGE;
#pragma unroll
        for (int i = 0; i < FETCHED * PIECES / 32; i++) {
          const int piece = i * 32 + lane;
          T* to = keys + Attention::place(warp * FETCHED + piece / PIECES, piece % PIECES);
          copy_async(to, all.key_pages + from + piece * 8);
          copy_async(to + KEYS * DIM, all.value_pages + from + piece * 8);
        }
        block = block_of(key_tile + 1);
      }
      commit_copies();
    };
    for (int i = lane; i < 16 * PIECES; i += 32) {
      const int query = warp_query + i / PIECES;
      T* to = queries + Attention::place(warp % 4 * 16 + i / PIECES, i % PIECES);
      if (query < num_queries) {
        const long long token = (long long)first_row * all.width + query / GROUP;
        const long long head = token * all.num_kv_heads * GROUP + kv_head * GROUP + query % GROUP;
        copy_async(to, all.queries + head * DIM + i % PIECES * 8);
      } else {
        *reinterpret_cast<uint4*>(to) = make_uint4(0, 0, 0, 0);
      }
    }
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++) fetch(begin + s);

    Attention attention;
    const float scale = all.scale * 1.4426950408889634f;
    for (int key_tile = begin; key_tile < stop; key_tile++) {
      wait_for_copies<STAGES - 2>();
      publish_to_products();
      __syncthreads();  // the tile is here, and the one before it is done with
      fetch(key_tile + STAGES - 1);
      if (is_idle) continue;
      const T* keys = ring + (key_tile - begin) % STAGES * STAGE;
      const int hidden = all.first - key_tile * KEYS;
      attention.add(queries, keys, keys + KEYS * DIM, scale, [&](float(&scores)[KEYS / 2]) {
        if (hidden <= 0) return;
#pragma unroll
        for (int i = 0; i < KEYS / 2; i++)
          if (i / 4 * 8 + 2 * (lane % 4) + i % 2 < hidden) scores[i] = -INFINITY;
      });
    }
    wait_for_copies<0>();
    if (is_idle) return;

#pragma unroll
    for (int half = 0; half < 2; half++) {
      const float total = attention.whole_total(half);
      const int query = warp_query + half * 8 + lane / 4;
      if (query >= num_queries) continue;
      const long long head = (long long)(first_row + query / each) * all.num_kv_heads + kv_head;
      const long long place = (head * gridDim.x + blockIdx.x) * each + query % each;
      if (lane % 4 == 0)
        reinterpret_cast<float2*>(all.stats)[place] =
            make_float2(fmaxf(NOTHING, __fmul_rn(attention.maximum[half], scale)), total);
      float* to = all.partial + place * DIM + 2 * (lane % 4);
#pragma unroll
      for (int c = 0; c < PIECES; c++)
        *reinterpret_cast<float2*>(to + c * 8) =
            make_float2(attention.sums[c * 4 + 2 * half], attention.sums[c * 4 + 2 * half + 1]);
    }
  }
};
