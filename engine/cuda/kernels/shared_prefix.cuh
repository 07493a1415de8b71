// Attention over positions that the rows of a group share, read once for all of them.
//
// Grid: (splits, K/V heads, items). An item is some rows of a group; a block has one split, its own
// K/V head and all queries of the item. It leaves for each what a block of paged_attention leaves of
// this split, to the bit: the same key tiles in the same order for each of PARTS warps, and the parts
// merged likewise. SETS x PARTS warps: a set takes 16 queries at a time, whichever rows they are of.
// The split's K/V come into shared memory in steps of PARTS key tiles, once where all of it fits.

struct SharedPrefix {
  const bfloat16* queries;    // (rows, width, heads, dim), ready
  const bfloat16* key_pages;  // (K/V heads * blocks * block size, dim), see engine/pages.py
  const bfloat16* value_pages;
  const int* tables;  // (rows, table_length) block ids
  const int* items;   // (items, 3): first row, row after the last, splits that they share
  float* partial;     // (rows, K/V heads, splits, width x GROUP, dim), not normalised
  float* stats;       // likewise without dim: (maximum of the scaled scores in base 2, sum)
  int width, num_kv_heads, num_blocks, table_length;
  int first;  // positions before this one are not seen
  float scale;
};

template <
    int HEAD_DIM, int GROUP, int BLOCK_SIZE, int SPLIT, int PARTS, int SETS, int STAGES>
struct SharedSplit {
  using T = bfloat16;
  static constexpr int ROW = HEAD_DIM + 8;  // padding: the 8 rows of a matrix meet all banks
  static constexpr int WARPS = SETS * PARTS;
  static constexpr int STEP = PARTS * KEYS;  // positions
  static constexpr int STEPS = SPLIT / STEP;
  static constexpr bool STAYS = STEPS <= STAGES;  // all of the split has a place
  static constexpr int STAGE = 2 * STEP * ROW;
  static constexpr int PIECES = HEAD_DIM / 8;  // of 16 bytes in a row
  static constexpr int CHUNK = 32;             // columns that parts exchange at a time
  static constexpr int CHUNK_ROW = CHUNK + 8;  // padding likewise
  static constexpr int SHARED =
      (STAGES * STAGE + SETS * QUERIES * ROW) * 2 + WARPS * QUERIES * CHUNK_ROW * 4;
  static_assert(SPLIT % STEP == 0 && QUERIES % PARTS == 0 && BLOCK_SIZE % KEYS == 0);

  const SharedPrefix& all;
  const int lane, warp, set, part;

  __device__ explicit SharedSplit(const SharedPrefix& all)
      : all(all), lane(threadIdx.x % 32), warp(threadIdx.x / 32), set(warp / PARTS),
        part(warp % PARTS) {}

  __device__ void wait_for_set() const {
    asm volatile("bar.sync %0, %1;" ::"r"(1 + set), "n"(PARTS * 32) : "memory");
  }

  __device__ void run(unsigned char* shared) const {
    __shared__ int blocks[SPLIT / KEYS];
    __shared__ float2 stats[SETS][PARTS][QUERIES];
    __shared__ float factors[SETS][QUERIES][PARTS];
    __shared__ int places[SETS][QUERIES];  // of a query in the output; -1: there is none
    const int split = blockIdx.x, kv_head = blockIdx.y;
    const int* item = all.items + 3 * blockIdx.z;
    const int first_row = item[0];
    if (split >= item[2]) return;
    const int each = all.width * GROUP, num_queries = (item[1] - first_row) * each;
    const int rounds = (num_queries + SETS * QUERIES - 1) / (SETS * QUERIES);
    for (int i = threadIdx.x; i < SPLIT / KEYS; i += WARPS * 32)
      blocks[i] =
          all.tables[(long long)first_row * all.table_length + (split * SPLIT + i * KEYS) / BLOCK_SIZE];
    __syncthreads();

    T* ring = reinterpret_cast<T*>(shared);
    T* queries = ring + STAGES * STAGE + set * QUERIES * ROW;
    float* exchange = reinterpret_cast<float*>(ring + STAGES * STAGE + SETS * QUERIES * ROW) +
        set * PARTS * QUERIES * CHUNK_ROW;

    const int num_fetches = (STAYS ? 1 : rounds) * STEPS;
    auto fetch = [&](int number) {
      if (number < num_fetches) {
        const int step = number % STEPS;
        T* stage = ring + number % STAGES * STAGE;
#pragma unroll 2
        for (int piece = threadIdx.x; piece < STEP * PIECES; piece += WARPS * 32) {
          const int r = piece / PIECES, c = piece % PIECES * 8, within = step * STEP + r;
          const int position = split * SPLIT + within;
          const long long from =
              (((long long)kv_head * all.num_blocks + blocks[within / KEYS]) * BLOCK_SIZE +
               position % BLOCK_SIZE) * HEAD_DIM + c;
          T* to = stage + (r / KEYS * 2 * KEYS + r % KEYS) * ROW + c;
          copy_async(to, all.key_pages + from);
          copy_async(to + KEYS * ROW, all.value_pages + from);
        }
      }
      commit_copies();
    };
    // Queries of a round, while the one before it is worked on.
    auto fetch_queries = [&](int round) {
      for (int piece = part * 32 + lane; piece < QUERIES * PIECES; piece += PARTS * 32) {
        const int i = (round * SETS + set) * QUERIES + piece / PIECES, c = piece % PIECES * 8;
        T* to = queries + piece / PIECES * ROW + c;
        if (i < num_queries) {
          const long long token = (long long)first_row * all.width + i / GROUP;
          const long long head = token * all.num_kv_heads * GROUP + kv_head * GROUP + i % GROUP;
          copy_async(to, all.queries + head * HEAD_DIM + c);
        } else {
          *reinterpret_cast<uint4*>(to) = make_uint4(0, 0, 0, 0);
        }
      }
    };
    fetch_queries(0);
    commit_copies();
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++) fetch(s);

    const float scale = all.scale * 1.4426950408889634f;
    for (int round = 0; round < rounds; round++) {
      const int first = (round * SETS + set) * QUERIES;
      const bool is_idle = first >= num_queries;
      if (round == 0)
        wait_for_copies<STAGES - 1>();
      else if (STAYS)
        wait_for_copies<0>();
      if (part == 0 && lane < QUERIES) {
        const int i = first + lane, row = first_row + i / each;
        const int place =
            ((row * all.num_kv_heads + kv_head) * static_cast<int>(gridDim.x) + split) * each;
        places[set][lane] = i < num_queries ? place + i % each : -1;
      }
      wait_for_set();
      unsigned a[HEAD_DIM / 16][4];
#pragma unroll
      for (int k = 0; k < HEAD_DIM / 16; k++)
        load_matrices(a[k], queries + (lane % 16) * ROW + k * 16 + lane / 16 * 8);
      wait_for_set();
      if (round + 1 < rounds) fetch_queries(round + 1);
      if (STAYS && round > 0) commit_copies();

      float sums[HEAD_DIM / 8][4] = {};
      RunningSoftmax softmax[2];  // of query lane / 4 and of the one 8 further on
      for (int step = 0; step < STEPS; step++) {
        const int number = round * STEPS + step;
        if (!STAYS || round == 0) {
          wait_for_copies<STAGES - 2>();
          __syncthreads();  // the step's tiles are here, and the step before it is done with
          fetch(number + STAGES - 1);  // queries of the next round come with it
        }
        if (is_idle) continue;
        const T* keys = ring + (STAYS ? step : number % STAGES) * STAGE + part * 2 * KEYS * ROW;
        const T* values = keys + KEYS * ROW;
        float scores[2][4] = {};
#pragma unroll
        for (int k = 0; k < HEAD_DIM / 16; k++) {
          unsigned b[4];
          load_matrices(b, keys + (lane % 8 + lane / 16 * 8) * ROW + k * 16 + lane / 8 % 2 * 8);
          multiply_add(scores[0], a[k], b[0], b[1]);
          multiply_add(scores[1], a[k], b[2], b[3]);
        }
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
          for (int e = 0; e < 4; e++) scores[n][e] = scaled(scores[n][e], scale);
        const int tile_at = split * SPLIT + (step * PARTS + part) * KEYS;
        if (tile_at < all.first) {
#pragma unroll
          for (int n = 0; n < 2; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
              if (tile_at + 2 * (lane % 4) + n * 8 + e % 2 < all.first) scores[n][e] = NOTHING;
        }
        float factor[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
          const int e = 2 * half;
          float m = fmaxf(fmaxf(scores[0][e], scores[0][e + 1]), fmaxf(scores[1][e], scores[1][e + 1]));
          m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 1));
          factor[half] = softmax[half].raise(fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 2)));
        }
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
          for (int e = 0; e < 4; e++) {
            scores[n][e] = softmax[e / 2].weight(scores[n][e]);
            softmax[e / 2].sum = __fadd_rn(softmax[e / 2].sum, scores[n][e]);
          }
        const unsigned weights[4] = {
            packed(scores[0][0], scores[0][1]), packed(scores[0][2], scores[0][3]),
            packed(scores[1][0], scores[1][1]), packed(scores[1][2], scores[1][3])};
        if (__any_sync(0xffffffffu, factor[0] != 1.f || factor[1] != 1.f)) {
#pragma unroll
          for (int d = 0; d < HEAD_DIM / 8; d++)
#pragma unroll
            for (int e = 0; e < 4; e++) sums[d][e] = __fmul_rn(sums[d][e], factor[e / 2]);
        }
#pragma unroll
        for (int d = 0; d < HEAD_DIM / 16; d++) {
          unsigned b[4];
          load_matrices_transposed(b, values + (lane % 16) * ROW + d * 16 + lane / 16 * 8);
          multiply_add(sums[2 * d], weights, b[0], b[1]);
          multiply_add(sums[2 * d + 1], weights, b[2], b[3]);
        }
      }
      if (is_idle) continue;

      // The parts of the set's queries are merged as paged_attention merges its warps'.
#pragma unroll
      for (int half = 0; half < 2; half++) {
        float sum = softmax[half].sum;
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        if (lane % 4 == 0)
          stats[set][part][lane / 4 + 8 * half] = make_float2(softmax[half].maximum, sum);
      }
      wait_for_set();
      if (part == 0 && lane < QUERIES) {
        float maximum = NOTHING, sum = 0.f;
#pragma unroll
        for (int p = 0; p < PARTS; p++) maximum = fmaxf(maximum, stats[set][p][lane].x);
#pragma unroll
        for (int p = 0; p < PARTS; p++) {
          const float factor = exp2f(stats[set][p][lane].x - maximum);
          sum = fmaf(factor, stats[set][p][lane].y, sum);
          factors[set][lane][p] = factor;
        }
        const int place = places[set][lane];
        if (place >= 0)
          reinterpret_cast<float2*>(all.stats)[place] = make_float2(maximum, sum);
      }
#pragma unroll
      for (int chunk = 0; chunk < HEAD_DIM / CHUNK; chunk++) {
        float* mine = exchange + (part * QUERIES + lane / 4) * CHUNK_ROW + 2 * (lane % 4);
#pragma unroll
        for (int n = 0; n < CHUNK / 8; n++) {
          const float(&of)[4] = sums[chunk * (CHUNK / 8) + n];
          *reinterpret_cast<float2*>(mine + n * 8) = make_float2(of[0], of[1]);
          *reinterpret_cast<float2*>(mine + n * 8 + 8 * CHUNK_ROW) = make_float2(of[2], of[3]);
        }
        wait_for_set();
#pragma unroll
        for (int i = part * 32 + lane; i < QUERIES * CHUNK / 4; i += PARTS * 32) {
          const int query = i / (CHUNK / 4), d = i % (CHUNK / 4) * 4, place = places[set][query];
          float4 value = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
          for (int p = 0; p < PARTS; p++) {
            const float factor = factors[set][query][p];
            const float4 other = *reinterpret_cast<const float4*>(
                exchange + (p * QUERIES + query) * CHUNK_ROW + d);
            value.x = fmaf(factor, other.x, value.x);
            value.y = fmaf(factor, other.y, value.y);
            value.z = fmaf(factor, other.z, value.z);
            value.w = fmaf(factor, other.w, value.w);
          }
          if (place >= 0)
            *reinterpret_cast<float4*>(
                all.partial + (long long)place * HEAD_DIM + chunk * CHUNK + d) = value;
        }
        wait_for_set();
      }
    }
    wait_for_copies<0>();
  }
};
