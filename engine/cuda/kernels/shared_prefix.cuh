// Attention over positions that the rows of a group share, read once for all of them.
//
// Grid: (splits, K/V heads, items). An item is some rows of a group; a block has one split, its own
// K/V head and all queries of the item. It leaves for each what a block of paged_attention leaves of
// this split, to the bit: the same key tiles in the same order for each of PARTS warps, and the parts
// merged likewise. SETS x PARTS warps: a set takes 16 queries at a time, whichever rows they are of.
// The split's K/V come into shared memory in steps of PARTS key tiles, once where all of it fits.

template <typename Source>
struct SharedPrefix {
  Source source;
  const bfloat16* key_pages;  // (K/V heads * blocks * block size, dim), see engine/pages.py
  const bfloat16* value_pages;
  const int* tables;  // (rows, table_length) block ids
  const int* starts;
  const int* items;  // (items, 3): first row, row after the last, splits that they share
  float* partial;    // (rows, K/V heads, splits, width x GROUP, dim), not normalised
  float* stats;      // likewise without dim: (maximum of the scaled scores in base 2, sum)
  int width, num_kv_heads, num_blocks, table_length;
  int first;  // positions before this one are not seen
  float scale;
};

// What a Source asks of the share it loads a query for.
template <int HEAD_DIM, typename Source>
struct QueryPlace {
  static constexpr int DIM = HEAD_DIM;
  const SharedPrefix<Source>& all;
  int row, kv_head, start;

  __device__ QueryPlace(const SharedPrefix<Source>& all, int row, int kv_head)
      : all(all), row(row), kv_head(kv_head), start(all.starts[row]) {}
};

template <
    int HEAD_DIM, int GROUP, int BLOCK_SIZE, int SPLIT, int PARTS, int SETS, int STAGES,
    typename Source>
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

  const SharedPrefix<Source>& all;
  const int lane, warp, set, part;

  __device__ explicit SharedSplit(const SharedPrefix<Source>& all)
      : all(all), lane(threadIdx.x % 32), warp(threadIdx.x / 32), set(warp / PARTS),
        part(warp % PARTS) {}

  __device__ void wait_for_set() const {
    asm volatile("bar.sync %0, %1;" ::"r"(1 + set), "n"(PARTS * 32) : "memory");
  }

  __device__ void run(unsigned char* shared) const {
    __shared__ int blocks[SPLIT / KEYS];
    __shared__ float stats[SETS][PARTS][QUERIES][2];
    __shared__ float factors[SETS][PARTS][QUERIES];
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
    // Queries as they lie, for the round after; each is then prepared where it is, by the same warp.
    auto fetch_queries = [&](int round) {
#pragma unroll
      for (int query = part; query < QUERIES; query += PARTS) {
        const int i = (round * SETS + set) * QUERIES + query;
        if (i >= num_queries) continue;
        const QueryPlace<HEAD_DIM, Source> place(all, first_row + i / each, kv_head);
        const T* from = all.source.query(place, i % each / GROUP, kv_head * GROUP + i % GROUP);
        for (int c = lane * 8; c < HEAD_DIM; c += 32 * 8)
          copy_async(queries + query * ROW + c, from + c);
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
      __syncwarp();
#pragma unroll
      for (int query = part; query < QUERIES; query += PARTS) {
        const int i = first + query;
        T* to = queries + query * ROW;
        if (i < num_queries) {
          const QueryPlace<HEAD_DIM, Source> place(all, first_row + i / each, kv_head);
          all.source.prepare_query(place, i % each / GROUP, to);
        } else {
          for (int d = lane; d < HEAD_DIM; d += 32) to[d] = static_cast<T>(0.f);
        }
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
        const int position = split * SPLIT + (step * PARTS + part) * KEYS + 2 * (lane % 4);
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
          for (int e = 0; e < 4; e++)
            scores[n][e] = position + n * 8 + e % 2 >= all.first ? scaled(scores[n][e], scale) : NOTHING;
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
        if (lane % 4 == 0) {
          stats[set][part][lane / 4 + 8 * half][0] = softmax[half].maximum;
          stats[set][part][lane / 4 + 8 * half][1] = sum;
        }
      }
      wait_for_set();
      const long long splits = gridDim.x;
      auto place = [&](int query) {
        const int i = first + query, row = first_row + i / each;
        return (((long long)row * all.num_kv_heads + kv_head) * splits + split) * each + i % each;
      };
      if (part == 0 && lane < QUERIES) {
        float maximum = NOTHING, sum = 0.f;
#pragma unroll
        for (int p = 0; p < PARTS; p++) maximum = fmaxf(maximum, stats[set][p][lane][0]);
#pragma unroll
        for (int p = 0; p < PARTS; p++) {
          const float factor = exp2f(stats[set][p][lane][0] - maximum);
          sum = fmaf(factor, stats[set][p][lane][1], sum);
          factors[set][p][lane] = factor;
        }
        if (first + lane < num_queries)
          reinterpret_cast<float2*>(all.stats)[place(lane)] = make_float2(maximum, sum);
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
        for (int query = part; query < QUERIES; query += PARTS) {
          float value = 0.f;
#pragma unroll
          for (int p = 0; p < PARTS; p++)
            value = fmaf(
                factors[set][p][query], exchange[(p * QUERIES + query) * CHUNK_ROW + lane], value);
          if (first + query < num_queries)
            all.partial[place(query) * HEAD_DIM + chunk * CHUNK + lane] = value;
        }
        wait_for_set();
      }
    }
    wait_for_copies<0>();
  }
};
