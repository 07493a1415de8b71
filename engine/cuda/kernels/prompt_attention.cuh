// Attention of long windows over the pages of their rows, which hold the windows' K/V already.
//
// Grid: (rows x K/V heads, query tiles). A query tile is QUERIES of the width x GROUP queries that
// share a K/V head, token by token: 16 x TILES for each warp. Key tiles of KEYS positions, counted
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

template <int DIM, int GROUP, int BLOCK_SIZE, int WARPS, int TILES>
struct PromptAttention {
  using T = bfloat16;
  static constexpr int KEYS = 64, QUERIES = WARPS * TILES * 16;
  static constexpr int ROW = DIM + 8;  // padding: the 8 rows of a matrix meet all banks
  static constexpr int STAGE = 2 * KEYS * ROW;
  static constexpr int PIECES = DIM / 8;            // of 16 bytes in a row
  static constexpr int FETCHED = KEYS / WARPS;      // rows of a key tile that a warp fetches
  static_assert(DIM % 32 == 0 && BLOCK_SIZE % FETCHED == 0);

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

  // The warp's queries into its rows of shared memory; zeros for those that do not exist.
  __device__ void load_queries(T* to, int first) const {
    const Heads<T>& q = all.queries;
    const bool in_pieces = q.dim == 1 && (q.row | q.head | q.time) % 8 == 0 &&
        reinterpret_cast<unsigned long long>(q.data) % 16 == 0;
    if (in_pieces) {
      for (int i = lane; i < TILES * 16 * PIECES; i += 32) {
        const int query = first + i / PIECES, c = i % PIECES * 8, token = query / GROUP;
        T* at = to + i / PIECES * ROW + c;
        if (token < length) {
          const int head = kv_head * GROUP + query % GROUP;
          copy_async(at, q.data + row * q.row + head * q.head + token * q.time + c);
        } else {
          *reinterpret_cast<uint4*>(at) = make_uint4(0, 0, 0, 0);
        }
      }
      return;
    }
    for (int i = lane; i < TILES * 16 * DIM; i += 32) {
      const int query = first + i / DIM, token = query / GROUP;
      to[i / DIM * ROW + i % DIM] = token < length
          ? q.at(row, kv_head * GROUP + query % GROUP, token, i % DIM)
          : static_cast<T>(0.f);
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
    T* queries = reinterpret_cast<T*>(shared) + warp * TILES * 16 * ROW;
    T* ring = reinterpret_cast<T*>(shared) + QUERIES * ROW;
    const int warp_query = first_query + warp * TILES * 16;
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
        T* keys = ring + (key_tile - begin) % 2 * STAGE + warp * FETCHED * ROW;
#pragma unroll
        for (int i = 0; i < FETCHED * PIECES / 32; i++) {
          const int piece = i * 32 + lane;
          T* to = keys + piece / PIECES * ROW + piece % PIECES * 8;
          copy_async(to, all.key_pages + from + piece * 8);
          copy_async(to + KEYS * ROW, all.value_pages + from + piece * 8);
        }
        block = block_of(key_tile + 1);
      }
      commit_copies();
    };
    load_queries(queries, warp_query);
    fetch(begin);

    // Of each tile, two queries of a lane: lane / 4 and the one 8 further on.
    float sums[TILES][DIM / 8][4] = {};
    float maximum[TILES][2], total[TILES][2];
#pragma unroll
    for (int m = 0; m < TILES; m++)
#pragma unroll
      for (int half = 0; half < 2; half++) {
        maximum[m][half] = -INFINITY;
        total[m][half] = 0.f;
      }
    auto at = [&](int m, int half) {
      return start + (warp_query + m * 16 + half * 8 + lane / 4) / GROUP;
    };
    const int warp_low = start + warp_query / GROUP;
    const int warp_high = start + (warp_query + TILES * 16 - 1) / GROUP;
    const float scale = all.scale * 1.4426950408889634f;

    for (int key_tile = begin; key_tile < stop; key_tile++) {
      wait_for_copies<0>();
      __syncthreads();  // the tile is here, and the one before it is done with
      fetch(key_tile + 1);
      const int position = key_tile * KEYS;
      if (position > warp_high || position + KEYS <= warp_low - all.window_size + 1) continue;
      const T* keys = ring + (key_tile - begin) % 2 * STAGE;
      const T* values = keys + KEYS * ROW;

      float scores[TILES][KEYS / 8][4] = {};
#pragma unroll
      for (int k = 0; k < DIM / 16; k++) {
        unsigned a[TILES][4];
#pragma unroll
        for (int m = 0; m < TILES; m++)
          load_matrices(a[m], queries + (m * 16 + lane % 16) * ROW + k * 16 + lane / 16 * 8);
#pragma unroll
        for (int n = 0; n < KEYS / 16; n++) {
          unsigned b[4];
          load_matrices(
              b, keys + (n * 16 + lane % 8 + lane / 16 * 8) * ROW + k * 16 + lane / 8 % 2 * 8);
#pragma unroll
          for (int m = 0; m < TILES; m++) {
            multiply_add(scores[m][2 * n], a[m], b[0], b[1]);
            multiply_add(scores[m][2 * n + 1], a[m], b[2], b[3]);
          }
        }
      }
      const bool is_open = position + KEYS - 1 <= warp_low &&
          position > warp_high - all.window_size && position >= all.first;
      if (!is_open) {
#pragma unroll
        for (int m = 0; m < TILES; m++)
#pragma unroll
          for (int half = 0; half < 2; half++) {
            const int highest = at(m, half);
            const int lowest =
                max(highest - all.window_size + 1, highest < all.first ? 0 : all.first);
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
              for (int e = 0; e < 2; e++) {
                const int p = position + n * 8 + 2 * (lane % 4) + e;
                if (p > highest || p < lowest) scores[m][n][2 * half + e] = -INFINITY;
              }
          }
      }
#pragma unroll
      for (int m = 0; m < TILES; m++) {
        float factor[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
          float highest = maximum[m][half];
#pragma unroll
          for (int n = 0; n < KEYS / 8; n++)
            highest = fmaxf(highest, fmaxf(scores[m][n][2 * half], scores[m][n][2 * half + 1]));
          highest = fmaxf(highest, __shfl_xor_sync(0xffffffffu, highest, 1));
          highest = fmaxf(highest, __shfl_xor_sync(0xffffffffu, highest, 2));
          const float base = highest == -INFINITY ? 0.f : highest;
          // exactly 1 where the maximum stays: then it does not matter whether a tile was skipped
          factor[half] = power_of_two(__fmul_rn(__fsub_rn(maximum[m][half], base), scale));
          maximum[m][half] = highest;
          total[m][half] = __fmul_rn(total[m][half], factor[half]);
          const float shift = -__fmul_rn(base, scale);
#pragma unroll
          for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int e = 2 * half; e < 2 * half + 2; e++) {
              scores[m][n][e] = power_of_two(__fmaf_rn(scores[m][n][e], scale, shift));
              total[m][half] = __fadd_rn(total[m][half], scores[m][n][e]);
            }
        }
        if (__any_sync(0xffffffffu, factor[0] != 1.f || factor[1] != 1.f)) {
#pragma unroll
          for (int d = 0; d < DIM / 8; d++)
#pragma unroll
            for (int e = 0; e < 4; e++) sums[m][d][e] = __fmul_rn(sums[m][d][e], factor[e / 2]);
        }
      }
#pragma unroll
      for (int k = 0; k < KEYS / 16; k++) {
        unsigned weights[TILES][4];
#pragma unroll
        for (int m = 0; m < TILES; m++) {
          const float(&low)[4] = scores[m][2 * k];
          const float(&high)[4] = scores[m][2 * k + 1];
          weights[m][0] = packed(low[0], low[1]);
          weights[m][1] = packed(low[2], low[3]);
          weights[m][2] = packed(high[0], high[1]);
          weights[m][3] = packed(high[2], high[3]);
        }
#pragma unroll
        for (int d = 0; d < DIM / 16; d++) {
          unsigned b[4];
          load_matrices_transposed(
              b, values + (k * 16 + lane % 16) * ROW + d * 16 + lane / 16 * 8);
#pragma unroll
          for (int m = 0; m < TILES; m++) {
            multiply_add(sums[m][2 * d], weights[m], b[0], b[1]);
            multiply_add(sums[m][2 * d + 1], weights[m], b[2], b[3]);
          }
        }
      }
    }
    wait_for_copies<0>();

    // Results take the place of the warp's own queries, to be stored in whole pieces.
    __syncwarp();
#pragma unroll
    for (int m = 0; m < TILES; m++)
#pragma unroll
      for (int half = 0; half < 2; half++) {
        float sum = total[m][half];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        const float inverse = at(m, half) < start + length ? 1.f / sum : 0.f;
        T* to = queries + (m * 16 + half * 8 + lane / 4) * ROW + 2 * (lane % 4);
#pragma unroll
        for (int d = 0; d < DIM / 8; d++)
          *reinterpret_cast<unsigned*>(to + d * 8) =
              packed(sums[m][d][2 * half] * inverse, sums[m][d][2 * half + 1] * inverse);
      }
    __syncwarp();
    for (int i = lane; i < TILES * 16 * PIECES; i += 32) {
      T* to = out_row(warp_query + i / PIECES);
      if (to)
        reinterpret_cast<uint4*>(to)[i % PIECES] =
            *reinterpret_cast<const uint4*>(queries + i / PIECES * ROW + i % PIECES * 8);
    }
  }
};
