// A product for more rows and many columns: weights and x stream through a ring in shared memory, of
// which eight warps, by four in columns and two in rows, multiply 16-row tiles of both.
//
// A warp runs through the parts of the depth one after the other, so no sums are exchanged. A block
// takes an equal share of all tiles, in rounds of ROUND_TILES; the ring runs on across rounds.

template <int ROUND_TILES, int COLUMN_TILES, int STAGES, bool NORM>
struct StreamedProduct {
  static constexpr int ROW_TILES = ROUND_TILES / 4;  // of weights, for a warp
  static constexpr int OWN = COLUMN_TILES / 2;       // tiles of x, for a warp
  static constexpr int ROWS = COLUMN_TILES * 8;
  static constexpr int DEPTH = 2 * STEP;  // numbers of the depth in a stage: 128 bytes a row
  static constexpr int STAGE = (ROUND_TILES * 16 + ROWS + (NORM ? 1 : 0)) * DEPTH;
  static constexpr int THREADS = 256;
  static constexpr int COPIES = ROUND_TILES / 2;  // rows of weights that a thread copies from

  const Product& product;
  const int first_tile, last_tile, num_rounds;
  const int lane = threadIdx.x % 32, column_group = threadIdx.x / 32 % 4;
  const int row_group = threadIdx.x / 128, g = lane / 4, c = lane % 4;

  __device__ StreamedProduct(const Product& of) : StreamedProduct(of, of.num_tiles()) {}

  __device__ StreamedProduct(const Product& of, int tiles)
      : product(of),
        first_tile((long long)tiles * blockIdx.x / gridDim.x),
        last_tile((long long)tiles * (blockIdx.x + 1) / gridDim.x),
        num_rounds((last_tile - first_tile + ROUND_TILES - 1) / ROUND_TILES) {}

  __device__ int round_start(int round) const {
    return first_tile + (last_tile - first_tile) * round / num_rounds;
  }

  // Where 8 numbers lie in a row: halves change place in every other row, so that 8 lanes which read
  // two rows meet all banks.
  __device__ static int place(int row, int piece) { return row * DEPTH + (piece ^ row % 2 * 4) * 8; }

  __device__ void run(unsigned char* shared) {
    bfloat16* ring = reinterpret_cast<bfloat16*>(shared);
    float* squares = reinterpret_cast<float*>(shared + STAGES * STAGE * 2);  // (ROWS,)
    const int rows = product.rows, depth = product.depth;
    const int stages = depth / DEPTH, part_stages = stages / PARTS;

    const int copy_row = threadIdx.x / 8, copy_piece = threadIdx.x % 8;
    const bfloat16* from[COPIES];
    int copy_at = 0, copy_round = 0, copy_stage = 0;
    auto turn_to = [&](int round) {
      if (round >= num_rounds) return;
      const int first = round_start(round), height = (round_start(round + 1) - first) * 16;
#pragma unroll
      for (int i = 0; i < COPIES; i++) {
        const int row = copy_row + 32 * i;
        from[i] = row < height ? product.weight_row(first + row / 16, row % 16) + copy_piece * 8
                               : nullptr;
      }
    };
    auto copy_ahead = [&]() {
      if (copy_round < num_rounds) {
        bfloat16* stage = ring + copy_stage * STAGE;
#pragma unroll
        for (int i = 0; i < COPIES; i++)
          if (from[i])
            copy_async(stage + place(copy_row + 32 * i, copy_piece), from[i] + copy_at);
        bfloat16* input = stage + ROUND_TILES * 16 * DEPTH;
#pragma unroll
        for (int i = 0; i < ROWS; i += 32) {
          const int row = copy_row + i;
          if (row < min(rows, ROWS))
            copy_async(
                input + place(row, copy_piece),
                product.x + (long long)row * depth + copy_at + copy_piece * 8);
        }
        if (NORM && threadIdx.x < 8)
          copy_async(
              input + ROWS * DEPTH + copy_piece * 8, product.norm + copy_at + copy_piece * 8);
        if (++copy_stage == STAGES) copy_stage = 0;
        copy_at += DEPTH;
        if (copy_at == depth) {
          copy_at = 0;
          turn_to(++copy_round);
        }
      }
      commit_copies();
    };

    turn_to(0);
#pragma unroll 1
    for (int s = 0; s < STAGES - 1; s++) copy_ahead();

    int stage = 0;
    for (int round = 0; round < num_rounds; round++) {
      const int first = round_start(round), count = round_start(round + 1) - first;
      const int own_tiles = (count - column_group + 3) / 4;  // every fourth
      float total[ROW_TILES][OWN][4], own_squares = 0.f;
      for (int part = 0; part < PARTS; part++) {
        float acc[ROW_TILES][OWN][4] = {}, part_squares = 0.f;
        for (int at = 0; at < part_stages; at++) {
          wait_for_copies<STAGES - 2>();
          __syncthreads();  // all copies are here, and all have done with the stage before
          copy_ahead();
          const bfloat16* weights = ring + stage * STAGE;
          const bfloat16* input = weights + ROUND_TILES * 16 * DEPTH;
#pragma unroll
          for (int step = 0; step < 2; step++) {
            const int piece = step * 4 + c;
            uint4 b[OWN];
#pragma unroll
            for (int n = 0; n < OWN; n++)
              b[n] = *reinterpret_cast<const uint4*>(
                  input + place((row_group * OWN + n) * 8 + g, piece));
            if (NORM) {
              const uint4 norm = *reinterpret_cast<const uint4*>(input + ROWS * DEPTH + piece * 8);
#pragma unroll
              for (int n = 0; n < OWN; n++) {
                if (round == 0 && n == column_group) add_squares(b[n], part_squares);
                weigh(b[n], norm);
              }
            }
uint4 upper[ROW_TILES], lower[ROW_TILES];  // of tiles that there are not: what lies there
#pragma unroll
            for (int r = 0; r < ROW_TILES; r++) {
              const int row = (column_group + 4 * r) * 16 + g;
              upper[r] = *reinterpret_cast<const uint4*>(weights + place(row, piece));
              lower[r] = *reinterpret_cast<const uint4*>(weights + place(row + 8, piece));
            }
#pragma unroll
            for (int r = 0; r < ROW_TILES; r++) {
              if (r >= own_tiles) break;
              const unsigned low[4] = {upper[r].x, lower[r].x, upper[r].y, lower[r].y};
              const unsigned high[4] = {upper[r].z, lower[r].z, upper[r].w, lower[r].w};
#pragma unroll
              for (int n = 0; n < OWN; n++) multiply_add(acc[r][n], low, b[n].x, b[n].y);
#pragma unroll
              for (int n = 0; n < OWN; n++) multiply_add(acc[r][n], high, b[n].z, b[n].w);
            }
          }
          if (++stage == STAGES) stage = 0;
        }
#pragma unroll
        for (int r = 0; r < ROW_TILES; r++)
#pragma unroll
          for (int n = 0; n < OWN; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
              total[r][n][e] = part ? __fadd_rn(total[r][n][e], acc[r][n][e]) : acc[r][n][e];
        if (NORM && round == 0) {
          const float sum = row_squares(part_squares);
          own_squares = part ? __fadd_rn(own_squares, sum) : sum;
        }
      }
      if (NORM && round == 0) {
        if (c == 0 && column_group < OWN)
          squares[(row_group * OWN + column_group) * 8 + g] = own_squares;
        __syncthreads();
      }
#pragma unroll
      for (int n = 0; n < OWN; n++) {
        // of neighbouring columns, one lane takes both of the upper row, the other both of the lower
        const bool is_odd = g % 2;
        const int m = (row_group * OWN + n) * 8 + 2 * c + is_odd;
        const float factor = m >= rows ? 0.f
                             : NORM  ? product.inverse_norm(squares[m])
                                     : product.factor(m);
#pragma unroll
        for (int r = 0; r < ROW_TILES; r++) {
          float pairs[2][2];
#pragma unroll
          for (int lower = 0; lower < 2; lower++) {
            const float* of = total[r][n] + 2 * lower;
            const float other = __shfl_xor_sync(0xffffffffu, is_odd ? of[0] : of[1], 4);
            pairs[lower][0] = __fmul_rn(is_odd ? other : of[0], factor);
            pairs[lower][1] = __fmul_rn(is_odd ? of[1] : other, factor);
          }
          if (r >= own_tiles || m >= rows) continue;
          const int column = product.first_column(first + column_group + 4 * r) + g - is_odd;
          if (product.gated) {
            activate(pairs[0], pairs[1]);
            product.store(m, column, pairs[0]);
          } else {
            product.store(m, column, pairs[0]);
            product.store(m, column + 8, pairs[1]);
          }
        }
      }
    }
    wait_for_copies<0>();
  }
};
