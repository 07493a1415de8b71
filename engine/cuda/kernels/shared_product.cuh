// A product for more rows than a register tile holds: two warps share a part of the depth, each with
// ROW_TILES tiles of weights, and read its part of x once for both, through a ring in shared memory.
//
// Weights go from memory straight into registers, AHEAD steps before they are multiplied. A block
// takes an equal share of all tiles, in rounds; what the next round reads is asked for before the
// sums of this one are added up.

template <int HINT>
__device__ __forceinline__ uint4 load_weights(const bfloat16* from) {
  if (!HINT) return __ldcs(reinterpret_cast<const uint4*>(from));
  uint4 to;
  asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(to.x), "=r"(to.y), "=r"(to.z), "=r"(to.w) : "l"(from));
  return to;
}

__device__ __forceinline__ void meet_pair(int part) {
  asm volatile("bar.sync %0, 64;" ::"r"(part + 1) : "memory");
}

template <int ROW_TILES, int COLUMN_TILES, int AHEAD, int STAGES, bool NORM, int TRIAL>
struct SharedProduct {
  static constexpr int ROWS = COLUMN_TILES * 8;
  static constexpr int STAGE = (ROWS + (NORM ? 1 : 0)) * STEP;  // the last row is the norm's weight
  static constexpr int WIDTH = 2 * ROW_TILES * 16;              // rows of weights in a round
  static constexpr int STRIDE = WIDTH + 4;  // a quarter of the banks further with every other row
  static constexpr int PASS = COLUMN_TILES < 4 ? COLUMN_TILES : 4;  // tiles of x added up at once
  static constexpr int THREADS = 2 * PARTS * 32;

  const Product& product;
  const int num_tiles, first_tile, last_tile, num_rounds;
  const int lane = threadIdx.x % 32, part = threadIdx.x / 64, half = threadIdx.x / 32 % 2;
  const int g = lane / 4, c = lane % 4;

  __device__ SharedProduct(const Product& of, int tiles)
      : product(of), num_tiles(tiles),
        first_tile((long long)tiles * blockIdx.x / gridDim.x),
        last_tile((long long)tiles * (blockIdx.x + 1) / gridDim.x),
        num_rounds((last_tile - first_tile + 2 * ROW_TILES - 1) / (2 * ROW_TILES)) {}

  __device__ int round_start(int round) const {
    return first_tile + (last_tile - first_tile) * round / num_rounds;
  }

  __device__ void run(unsigned char* shared) {
    bfloat16* ring = reinterpret_cast<bfloat16*>(shared) + part * STAGES * STAGE;
    float* sums = reinterpret_cast<float*>(shared + PARTS * STAGES * STAGE * 2);
    float* squares = sums + PARTS * PASS * 8 * STRIDE;  // (PARTS, ROWS)
    const int rows = product.rows, depth = product.depth;
    const int steps = depth / PARTS / STEP, padded = (steps + AHEAD - 1) / AHEAD * AHEAD;

    // x: copied by both warps, a step to a stage
    int copies_left = num_rounds * steps, copy_step = 0, copy_stage = 0;
    auto copy_ahead = [&]() {
      if (copies_left > 0 && !(TRIAL & 4)) {
        const int at = part * (depth / PARTS) + copy_step * STEP;
        bfloat16* stage = ring + copy_stage * STAGE;
#pragma unroll
        for (int i = 0; i < ROWS * 4; i += 64) {
          const int piece = i + threadIdx.x % 64, row = piece / 4, column = piece % 4 * 8;
          if (row < rows)
            copy_async(
                stage + row * STEP + column, product.x + (long long)row * depth + at + column);
        }
        if (NORM && threadIdx.x % 64 < 4)
          copy_async(
              stage + ROWS * STEP + threadIdx.x % 64 * 8, product.norm + at + threadIdx.x % 64 * 8);
        copies_left--;
        if (++copy_step == steps) copy_step = 0;
        if (++copy_stage == STAGES) copy_stage = 0;
      }
      commit_copies();
    };

    // weights: this warp's tiles of a round
    const bfloat16* from[ROW_TILES][2];
    int load_step = 0, load_round = 0, load_tiles = 0;
    auto tiles_of = [&](int round, int& first) {
      const int start = round_start(round), count = round_start(round + 1) - start;
      const int upper = (count + 1) / 2;
      first = start + (half ? upper : 0);
      return half ? count - upper : upper;
    };
    auto turn_to = [&](int round) {
      int first = 0;
      load_tiles = round < num_rounds ? tiles_of(round, first) : 0;
#pragma unroll
      for (int r = 0; r < ROW_TILES; r++)
#pragma unroll
        for (int lower = 0; lower < 2; lower++)
          if (r < load_tiles)
            from[r][lower] = product.weight_row(first + r, g + 8 * lower) +
                             part * (depth / PARTS) + 8 * c;
    };
    uint4 weights[AHEAD][ROW_TILES][2];
    auto load_ahead = [&](uint4 (&to)[ROW_TILES][2]) {
      if (load_step < steps) {
#pragma unroll
        for (int r = 0; r < ROW_TILES; r++)
#pragma unroll
          for (int lower = 0; lower < 2; lower++)
            if (r < load_tiles)
              to[r][lower] = load_weights<TRIAL & 1>(from[r][lower] + load_step * STEP);
      }
      if (++load_step == padded) {
        load_step = 0;
        turn_to(++load_round);
      }
    };

    turn_to(0);
#pragma unroll
    for (int u = 0; u < AHEAD; u++) load_ahead(weights[u]);
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++) copy_ahead();

    int stage = 0;
    for (int round = 0; round < num_rounds; round++) {
      int first;
      const int own_tiles = tiles_of(round, first);
      float acc[ROW_TILES][COLUMN_TILES][4] = {};
      float own_squares[(COLUMN_TILES + 1) / 2] = {};
      for (int start = 0; start < padded; start += AHEAD) {
#pragma unroll
        for (int u = 0; u < AHEAD; u++) {
          if (start + u < steps) {
            wait_for_copies<STAGES - 2>();
            meet_pair(part);  // its copies are here, and it has done with the stage before
            copy_ahead();
            const bfloat16* input = ring + stage * STAGE + 8 * c;
            uint4 norm;
            if (NORM) norm = *reinterpret_cast<const uint4*>(input + ROWS * STEP);
constexpr int GROUP = (TRIAL & 2) && COLUMN_TILES > 1 ? 2 : 1;
#pragma unroll
            for (int n0 = 0; n0 < COLUMN_TILES; n0 += GROUP) {
              uint4 b[GROUP];
#pragma unroll
              for (int i = 0; i < GROUP; i++) {
                const int n = n0 + i;
                b[i] = *reinterpret_cast<const uint4*>(input + (n * 8 + g) * STEP);
                if (NORM) {
                  if (round == 0 && n % 2 == half) add_squares(b[i], own_squares[n / 2]);
                  weigh(b[i], norm);
                }
              }
#pragma unroll
              for (int r = 0; r < ROW_TILES; r++) {
                const unsigned low[4] = {weights[u][r][0].x, weights[u][r][1].x, weights[u][r][0].y,
                                         weights[u][r][1].y};
#pragma unroll
                for (int i = 0; i < GROUP; i++) multiply_add(acc[r][n0 + i], low, b[i].x, b[i].y);
              }
#pragma unroll
              for (int r = 0; r < ROW_TILES; r++) {
                const unsigned high[4] = {weights[u][r][0].z, weights[u][r][1].z,
                                          weights[u][r][0].w, weights[u][r][1].w};
#pragma unroll
                for (int i = 0; i < GROUP; i++) multiply_add(acc[r][n0 + i], high, b[i].z, b[i].w);
              }
            }
            if (++stage == STAGES) stage = 0;
          }
          if (!(TRIAL & 16)) {
            load_ahead(weights[u]);
          } else if (u % 2) {
            load_ahead(weights[u - 1]);
            load_ahead(weights[u]);
          }
        }
      }
      if (NORM && round == 0) {
#pragma unroll
        for (int i = 0; i < (COLUMN_TILES + 1) / 2; i++) {
          const float sum = row_squares(own_squares[i]);
          if (c == 0 && 2 * i + half < COLUMN_TILES)
            squares[part * ROWS + (2 * i + half) * 8 + g] = sum;
        }
      }
      const int round_first = round_start(round), round_tiles = round_start(round + 1) - round_first;
#pragma unroll
      for (int pass = 0; pass < COLUMN_TILES; pass += PASS) {
        if ((TRIAL & 8) && acc[0][pass][0] != 12345.678f) continue;
        float* own = sums + part * PASS * 8 * STRIDE;
#pragma unroll
        for (int r = 0; r < ROW_TILES; r++)
          if (r < own_tiles) {
#pragma unroll
            for (int n = 0; n < PASS; n++) {
              float* to = own + (n * 8 + 2 * c) * STRIDE + (first - round_first + r) * 16 + g;
              to[0] = acc[r][pass + n][0];
              to[STRIDE] = acc[r][pass + n][1];
              to[8] = acc[r][pass + n][2];
              to[STRIDE + 8] = acc[r][pass + n][3];
            }
          }
        __syncthreads();
        const int quads = round_tiles * (product.gated ? 2 : 4);
        const int here = min(rows - pass * 8, PASS * 8);
        for (int i = threadIdx.x; i < quads * here; i += THREADS) {
          const int m = i / quads, quad = i % quads;
          const int tile = product.gated ? quad / 2 : quad / 4;
          const int row = product.gated ? quad % 2 * 4 : quad % 4 * 4;
          product.finish(
              pass * 8 + m, product.first_column(round_first + tile) + row,
              sums + m * STRIDE + tile * 16 + row, PASS * 8 * STRIDE,
              NORM ? product.inverse_norm(sum_parts(squares + pass * 8 + m, ROWS)) : product.factor(pass * 8 + m));
        }
        __syncthreads();
      }
    }
    wait_for_copies<0>();
  }
};
