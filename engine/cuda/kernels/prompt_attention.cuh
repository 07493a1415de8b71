// Attention of long windows over the pages of their rows, which hold the windows' K/V already.
//
// Grid: (rows x K/V heads, query tiles). A query tile is QUERIES of the width x GROUP queries that
// share a K/V head, token by token: 64 for each warpgroup. Key tiles of KEYS positions, counted
// from position 0, come through a ring in shared memory. A query goes through them in order, on its
// own: its result, bitwise, depends neither on the rows beside it nor on where the window starts.
// The last tiles, which see most, are launched first.

struct PromptWindow {
  Heads<bfloat16> queries;
  const bfloat16* key_pages;  // (K/V heads * blocks * block size, dim), see engine/pages.py
  const bfloat16* value_pages;
  const int* tables;  // (rows, table_length) block ids
  const int* starts;
  const int* lengths;
  bfloat16* out;  // (rows, width, heads, dim)
  int width, num_kv_heads, num_blocks, table_length;
  int window_size;  // a query at p sees positions after p - window_size
  int first;        // positions before this one are seen by queries there only
  float scale;
};

template <int DIM, int GROUP, int BLOCK_SIZE, int WARPGROUPS>
struct PromptAttention {
  using T = bfloat16;
  using Attention = WarpgroupAttention<DIM>;
  static constexpr int KEYS = Attention::KEYS, PIECES = Attention::PIECES;
  static constexpr int QUERIES = WARPGROUPS * 64, WARPS = WARPGROUPS * 4;
  static constexpr int STAGE = 2 * KEYS * DIM;  // keys, then values: DIM / 64 tiles each
  static constexpr int FETCHED = KEYS / WARPS;  // rows of a key tile that a warp fetches
  static_assert(BLOCK_SIZE % FETCHED == 0);

  const PromptWindow& all;
  const int lane, warp, row, kv_head, first_query, start, length;

  __device__ explicit PromptAttention(const PromptWindow& all)
      : all(all), lane(threadIdx.x % 32), warp(threadIdx.x / 32),
        row(blockIdx.x / all.num_kv_heads), kv_head(blockIdx.x % all.num_kv_heads),
        first_query((gridDim.y - 1 - blockIdx.y) * QUERIES), start(all.starts[row]),
        length(all.lengths[row]) {}

  // One row of the output, or where a query past the window would be: nullptr.
  __device__ T* out_row(int query) const {
    const int token = query / GROUP, head = kv_head * GROUP + query % GROUP;
    if (token >= all.width) return nullptr;
    return all.out + (((long long)row * all.width + token) * all.num_kv_heads * GROUP + head) * DIM;
  }

  // 16 queries from ``first`` on into rows of the warpgroup's tiles; zeros for those past the end.
  __device__ void load_queries(T* to, int first) const {
    const Heads<T>& q = all.queries;
    const bool in_pieces = q.dim == 1 && (q.row | q.head | q.time) % 8 == 0 &&
        reinterpret_cast<unsigned long long>(q.data) % 16 == 0;
    for (int i = lane; i < 16 * PIECES; i += 32) {
      const int r = warp % 4 * 16 + i / PIECES, c = i % PIECES, query = first + i / PIECES;
      const int token = query / GROUP, head = kv_head * GROUP + query % GROUP;
      T* at = to + Attention::place(r, c);
      if (token >= length) {
        *reinterpret_cast<uint4*>(at) = make_uint4(0, 0, 0, 0);
      } else if (in_pieces) {
        copy_async(at, q.data + row * q.row + head * q.head + token * q.time + c * 8);
      } else {
        for (int d = 0; d < 8; d++) at[d] = q.at(row, head, token, c * 8 + d);
      }
    }
  }

  __device__ void run(unsigned char* shared) const {
    const int first_token = first_query / GROUP;
    if (first_token >= length) {
      for (int i = threadIdx.x; i < QUERIES * PIECES; i += WARPS * 32) {
        T* to = out_row(first_query + i / PIECES);
        if (to) reinterpret_cast<uint4*>(to)[i % PIECES] = make_uint4(0, 0, 0, 0);
      }
      return;
    }
    T* queries = reinterpret_cast<T*>(shared) + warp / 4 * 64 * DIM;
    T* ring = reinterpret_cast<T*>(shared) + QUERIES * DIM;
    const int warp_query = first_query + warp * 16, group_query = first_query + warp / 4 * 64;
    const int last = start + min(length - 1, (first_query + QUERIES - 1) / GROUP);
    const int stop = last / KEYS + 1;
    const int begin = max(0, start + first_token - all.window_size + 1) / KEYS;

    const int* table = all.tables + (long long)row * all.table_length;
    auto block_of = [&](int key_tile) {
      return table[min(last, key_tile * KEYS + warp * FETCHED) / BLOCK_SIZE];
    };
    int block = block_of(begin);
    auto fetch = [&](int key_tile) {
      if (key_tile < stop) {
        const int position = key_tile * KEYS + warp * FETCHED;
        const long long from =
            (((long long)kv_head * all.num_blocks + block) * BLOCK_SIZE + position % BLOCK_SIZE) *
            DIM;
        T* keys = ring + (key_tile - begin) % 2 * STAGE;
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
    load_queries(queries, warp_query);
    fetch(begin);

    Attention attention;
    auto at = [&](int half) { return start + (warp_query + half * 8 + lane / 4) / GROUP; };
    const int low = start + group_query / GROUP, high = start + (group_query + 63) / GROUP;
    const float scale = all.scale * 1.4426950408889634f;

    for (int key_tile = begin; key_tile < stop; key_tile++) {
      wait_for_copies<0>();
      publish_to_products();
      __syncthreads();  // the tile is here, and the one before it is done with
      fetch(key_tile + 1);
      const int position = key_tile * KEYS;
      if (position > high || position + KEYS <= low - all.window_size + 1) continue;
      const T* keys = ring + (key_tile - begin) % 2 * STAGE;
      const T* values = keys + KEYS * DIM;

      const bool is_open = position + KEYS - 1 <= low && position > high - all.window_size &&
          position >= all.first;
      attention.add(queries, keys, values, scale, [&](float(&scores)[KEYS / 2]) {
        if (is_open) return;
#pragma unroll
        for (int half = 0; half < 2; half++) {
          const int highest = at(half);
          const int lowest = max(highest - all.window_size + 1, highest < all.first ? 0 : all.first);
#pragma unroll
          for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
              const int p = position + n * 8 + 2 * (lane % 4) + e;
              if (p > highest || p < lowest) scores[n * 4 + 2 * half + e] = -INFINITY;
            }
        }
      });
    }
    wait_for_copies<0>();

    // Results take the place of the warp's own queries, to be stored in whole pieces.
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const float total = attention.whole_total(half);
      const float inverse = at(half) < start + length ? 1.f / total : 0.f;
      const int r = warp % 4 * 16 + half * 8 + lane / 4;
#pragma unroll
      for (int c = 0; c < PIECES; c++)
        *reinterpret_cast<unsigned*>(queries + Attention::place(r, c) + 2 * (lane % 4)) =
            packed(
                attention.sums[c * 4 + 2 * half] * inverse,
                attention.sums[c * 4 + 2 * half + 1] * inverse);
    }
    __syncwarp();
    for (int i = lane; i < 16 * PIECES; i += 32) {
      T* to = out_row(warp_query + i / PIECES);
      if (to)
        reinterpret_cast<uint4*>(to)[i % PIECES] = *reinterpret_cast<const uint4*>(
            queries + Attention::place(warp % 4 * 16 + i / PIECES, i % PIECES));
    }
  }
};
