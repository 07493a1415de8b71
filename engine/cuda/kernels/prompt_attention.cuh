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

__device__ __forceinline__ float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

template <int DIM, int GROUP, int BLOCK_SIZE, int WARPGROUPS>
struct PromptAttention {
  using T = bfloat16;
  static constexpr int KEYS = 64, QUERIES = WARPGROUPS * 64, WARPS = WARPGROUPS * 4;
  static constexpr int TILE = 64 * 64;               // numbers of a swizzled tile, 64 columns wide
  static constexpr int STAGE = 2 * KEYS * DIM;       // keys, then values: DIM / 64 tiles each
  static constexpr int PIECES = DIM / 8;             // of 16 bytes in a row
  static constexpr int FETCHED = KEYS / WARPS;       // rows of a key tile that a warp fetches
  static constexpr int COLUMNS = DIM % 128 ? 64 : 128;  // of values multiplied at a time
  static_assert(DIM % COLUMNS == 0 && BLOCK_SIZE % FETCHED == 0);

  const PromptWindow& all;
  const int lane, warp, row, kv_head, first_query, start, length;

  __device__ explicit PromptAttention(const PromptWindow& all)
      : all(all), lane(threadIdx.x % 32), warp(threadIdx.x / 32),
        row(blockIdx.x / all.num_kv_heads), kv_head(blockIdx.x % all.num_kv_heads),
        first_query((gridDim.y - 1 - blockIdx.y) * QUERIES), start(all.starts[row]),
        length(all.lengths[row]) {}

  // Where 16-byte piece ``c`` of a row stands in DIM / 64 swizzled tiles.
  __device__ static int place(int r, int c) { return c / 8 * TILE + swizzled(r, c % 8); }

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
      T* at = to + place(r, c);
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
          T* to = keys + place(warp * FETCHED + piece / PIECES, piece % PIECES);
          copy_async(to, all.key_pages + from + piece * 8);
          copy_async(to + KEYS * DIM, all.value_pages + from + piece * 8);
        }
        block = block_of(key_tile + 1);
      }
      commit_copies();
    };
    load_queries(queries, warp_query);
    fetch(begin);

    float sums[DIM / 2] = {};  // of queries lane / 4 and 8 further on, see multiply_add
    float maximum[2] = {-INFINITY, -INFINITY}, total[2] = {0.f, 0.f};
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

      float scores[KEYS / 2];
      begin_products();
#pragma unroll
      for (int k = 0; k < DIM / 16; k++) {
        const int offset = k / 4 * TILE + k % 4 * 16;
        warpgroup_multiply(
            scores, tile_descriptor(queries + offset, 16), tile_descriptor(keys + offset, 16), k > 0);
      }
      finish_products(scores);
      const bool is_open = position + KEYS - 1 <= low && position > high - all.window_size &&
          position >= all.first;
      if (!is_open) {
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
      }
      float factor[2];
#pragma unroll
      for (int half = 0; half < 2; half++) {
        float highest = maximum[half];
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
          highest = fmaxf(highest, fmaxf(scores[n * 4 + 2 * half], scores[n * 4 + 2 * half + 1]));
        highest = fmaxf(highest, __shfl_xor_sync(0xffffffffu, highest, 1));
        highest = fmaxf(highest, __shfl_xor_sync(0xffffffffu, highest, 2));
        const float base = highest == -INFINITY ? 0.f : highest;
        // exactly 1 where the maximum stays: then it does not matter whether a tile was skipped
        factor[half] = power_of_two(__fmul_rn(__fsub_rn(maximum[half], base), scale));
        maximum[half] = highest;
        total[half] = __fmul_rn(total[half], factor[half]);
        const float shift = -__fmul_rn(base, scale);
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
          for (int e = 0; e < 2; e++) {
            float& score = scores[n * 4 + 2 * half + e];
            score = power_of_two(__fmaf_rn(score, scale, shift));
            total[half] = __fadd_rn(total[half], score);
          }
      }
      if (__any_sync(0xffffffffu, factor[0] != 1.f || factor[1] != 1.f)) {
#pragma unroll
        for (int i = 0; i < DIM / 2; i++) sums[i] = __fmul_rn(sums[i], factor[i / 2 % 2]);
      }
      unsigned weights[KEYS / 16][4];
#pragma unroll
      for (int k = 0; k < KEYS / 16; k++)
#pragma unroll
        for (int i = 0; i < 4; i++)
          weights[k][i] = packed(scores[k * 8 + 2 * i], scores[k * 8 + 2 * i + 1]);
      begin_products();
#pragma unroll
      for (int k = 0; k < KEYS / 16; k++)
#pragma unroll
        for (int d = 0; d < DIM / COLUMNS; d++)
          warpgroup_multiply_add(
              sums + d * COLUMNS / 2, weights[k],
              tile_descriptor(values + d * (COLUMNS / 64) * TILE + k * 16 * 64, TILE * 2),
              Columns<COLUMNS>());
      finish_products(sums);
    }
    wait_for_copies<0>();

    // Results take the place of the warp's own queries, to be stored in whole pieces.
#pragma unroll
    for (int half = 0; half < 2; half++) {
      float sum = total[half];
      sum += __shfl_xor_sync(0xffffffffu, sum, 1);
      sum += __shfl_xor_sync(0xffffffffu, sum, 2);
      const float inverse = at(half) < start + length ? 1.f / sum : 0.f;
      const int r = warp % 4 * 16 + half * 8 + lane / 4;
#pragma unroll
      for (int c = 0; c < PIECES; c++)
        *reinterpret_cast<unsigned*>(queries + place(r, c) + 2 * (lane % 4)) =
            packed(sums[c * 4 + 2 * half] * inverse, sums[c * 4 + 2 * half + 1] * inverse);
    }
    __syncwarp();
    for (int i = lane; i < 16 * PIECES; i += 32) {
      T* to = out_row(warp_query + i / PIECES);
      if (to)
        reinterpret_cast<uint4*>(to)[i % PIECES] = *reinterpret_cast<const uint4*>(
            queries + place(warp % 4 * 16 + i / PIECES, i % PIECES));
    }
  }
};
