// A product of few rows by very many rows of weights, on warpgroups' tensor cores:
//
//   out[m, n] = sum_k x[m, k] weights[n, k]
//
// A block has an equal share of the columns, in rounds of at most TILE; x streams through shared memory
// beside them once a round, from L2, so a round is as long as registers allow. One warpgroup only
// fetches; two multiply, each by half of a round's columns. A column's sum goes through the depth in
// order, so it comes out the same, bitwise, whatever the rows beside it and the block that has it.

template <int ROWS, int STAGES>
struct WideProduct {
  static constexpr int MULTIPLYING = 256, FETCHING = 128;  // threads
  static constexpr int TILE = 384, CHUNK = 64;  // columns of a round; numbers of the depth in a stage
  static constexpr int OWN = TILE / 128;        // 64 columns each, of a warpgroup
  static constexpr int STAGE = (TILE + ROWS) * CHUNK;
  static constexpr int AHEAD = 2;  // stages on their way whose arrival is not looked at yet
  static_assert(STAGES >= AHEAD + 2);

  struct Shared {
    bfloat16 stages[STAGES][STAGE];  // first, at a multiple of 1,024 bytes
    Arrivals here[STAGES], done[STAGES];
  };
  const bfloat16* x;
  const bfloat16* weights;
  bfloat16* out;
  int rows, depth, columns;

  // Of a block's share, by 16 columns.
  __device__ int share_start(int block) const {
    return (int)((long long)(columns / 16) * block / gridDim.x) * 16;
  }
  __device__ static int num_rounds(int share) { return (share + TILE - 1) / TILE; }
  __device__ static int round_start(int share, int round) {
    return share / 16 * round / num_rounds(share) * 16;
  }

  __device__ void run(unsigned char* memory) const {
    Shared& shared = *reinterpret_cast<Shared*>(memory + (-shared_address(memory) & 1023));
    if (threadIdx.x == 0)
      for (int i = 0; i < STAGES; i++) {
        shared.here[i].start(FETCHING);
        shared.done[i].start(MULTIPLYING / 32);
      }
    __syncthreads();
    if (uniform(threadIdx.x / 32) * 32 < MULTIPLYING) {
      multiply(shared, threadIdx.x);
    } else {
      fetch(shared, threadIdx.x - MULTIPLYING);
    }
  }

  __device__ void fetch(Shared& shared, int thread) const {
    constexpr int STEP = FETCHING / 8;  // rows that are copied at once
    const int piece = thread % 8, first_row = thread / 8;
    const int begin = share_start(blockIdx.x), share = share_start(blockIdx.x + 1) - begin;
    const long long step = (long long)STEP * depth;
    Turn turn, here;
    int fetched = 0;
    for (int round = 0; round < num_rounds(share); round++) {
      const int first = round_start(share, round), height = round_start(share, round + 1) - first;
      const bfloat16* from = weights + (long long)(begin + first + first_row) * depth + piece * 8;
      const bfloat16* from_x = x + (long long)first_row * depth + piece * 8;
      for (int at = 0; at < depth; at += CHUNK, from += CHUNK, from_x += CHUNK) {
        shared.done[turn.stage].wait(turn.parity ^ 1);
        bfloat16* to = shared.stages[turn.stage] + swizzled(first_row, piece);
        const bfloat16* row = from;
#pragma unroll
        for (int n = 0; n < TILE; n += STEP) {  // STEP is a multiple of 8: swizzled alike
          if (n < height) copy_ahead_async(to + n * CHUNK, row);
          row += step;
        }
        to += TILE * CHUNK;
        row = from_x;
#pragma unroll
        for (int n = 0; n < ROWS; n += STEP) {
          if (first_row + n < rows) copy_async(to + n * CHUNK, row);
          row += step;
        }
        commit_copies();
        turn.next(STAGES);
        if (++fetched > AHEAD) hand_over<AHEAD>(shared.here, here, STAGES);
      }
    }
    while (here.stage != turn.stage || here.parity != turn.parity)
      hand_over<0>(shared.here, here, STAGES);
  }

  __device__ void multiply(Shared& shared, int thread) const {
    const int begin = share_start(blockIdx.x), share = share_start(blockIdx.x + 1) - begin;
    const int group = uniform(thread / 128), rounds = uniform(num_rounds(share));
    Turn turn;
    for (int round = 0; round < rounds; round++) {
      const int first = uniform(round_start(share, round));
      const int height = uniform(round_start(share, round + 1)) - first, deep = uniform(depth);
      // As in product_chain.cuh: all of it straight on. Columns that there are not: whatever lies there.
      float sums[OWN][ROWS / 2] = {};
      int at = 0;
#pragma unroll 1
      do {
        shared.here[turn.stage].wait(turn.parity);
        const bfloat16* own = shared.stages[turn.stage] + group * (TILE / 2 * CHUNK);
        const bfloat16* beside = shared.stages[turn.stage] + TILE * CHUNK;
        begin_products();
#pragma unroll
        for (int k = 0; k < CHUNK; k += 16)
#pragma unroll
          for (int i = 0; i < OWN; i++)
            multiply_rows(
                sums[i], tile_descriptor(own + i * 64 * CHUNK + k, 16),
                tile_descriptor(beside + k, 16), 1, RowsOfX<ROWS>());
        commit_products();
        wait_for_products<0>();
        if (thread % 32 == 0) shared.done[turn.stage].arrive();
        turn.next(STAGES);
      } while ((at += CHUNK) < deep);
#pragma unroll
      for (int i = 0; i < OWN; i++) keep(sums[i]);
#pragma unroll
      for (int i = 0; i < OWN; i++) {
        const int column = group * (TILE / 2) + i * 64 + thread % 128 / 32 * 16;
        if (column < height) store(sums[i], begin + first + column, thread % 32);
      }
    }
  }

  // No reading of sums may move from here to before they are there.
  __device__ static void keep(float (&sums)[ROWS / 2]) {
#pragma unroll
    for (int i = 0; i < ROWS / 2; i++) asm volatile("" : "+f"(sums[i])::"memory");
  }

  // Of a warp, 16 columns from ``column`` on: matrices of 8 columns by 8 rows of x turn over.
  __device__ void store(const float (&sums)[ROWS / 2], int column, int lane) const {
#pragma unroll
    for (int j = 0; j < ROWS / 8; j++) {
      const unsigned low = transposed(packed(sums[j * 4], sums[j * 4 + 1]));
      const unsigned high = transposed(packed(sums[j * 4 + 2], sums[j * 4 + 3]));
      const int row = j * 8 + lane / 4;
      if (row < rows) {
        unsigned* to = reinterpret_cast<unsigned*>(
            out + (long long)row * columns + column + lane % 4 * 2);
        to[0] = low;
        to[4] = high;
      }
    }
  }
};
