// A product for few rows of x: each warp has a part of the depth and a ring of its own in shared
// memory, which keeps many kilobytes of weights on their way; warps meet once a round, for the sums.
//
// A block takes an equal share of all columns, by eights, in rounds of at most TILES tiles of two
// eights. A stage of the ring has STEPS steps of the depth of all rows of x, of the norm's weight,
// and of the tiles of a round: as many stages as fit. The ring runs on across rounds.

// Waits until at most ``pending`` groups of copies are on their way, which are up to 4.
__device__ __forceinline__ void wait_for_all_but(int pending) {
  if (pending == 0) {
    wait_for_copies<0>();
  } else if (pending == 1) {
    wait_for_copies<1>();
  } else if (pending == 2) {
    wait_for_copies<2>();
  } else if (pending == 3) {
    wait_for_copies<3>();
  } else {
    wait_for_copies<4>();
  }
}

// Keeps a number in its register, where the compiler would work it out each time.
__device__ __forceinline__ int kept(int number) {
  asm volatile("" : "+r"(number));
  return number;
}

// As copy_async; of what lies around it, L2 is filled with 256 bytes.
__device__ __forceinline__ void copy_weights_async(void* to, const void* from) {
  asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16;" ::"r"(shared_address(to)),
               "l"(from)
               : "memory");
}

template <int TILES, int COLUMN_TILES, int STEPS, bool NORM>
struct RingProduct {
  static constexpr int DEPTH = STEPS * STEP;  // numbers of the depth in a stage
  static constexpr int ROWS = COLUMN_TILES * 8;
  static constexpr int INPUT = (ROWS + (NORM ? 1 : 0)) * DEPTH;  // numbers of x in a stage
  static constexpr int STRIDE = TILES * 16 + 4;  // a quarter of the banks further every other row
  static constexpr int PASS = COLUMN_TILES < 2 ? COLUMN_TILES : 2;  // tiles of x added up at once
  static constexpr int THREADS = PARTS * 32, MOST_STAGES = 6;
  static constexpr int PIECES = STEPS * 4, COPY_ROWS = 32 / PIECES;  // that a warp copies at once
  static_assert(STEPS == 1 || STEPS == 2 || STEPS == 4);

  const Product& product;
  const int lane = threadIdx.x % 32, part = threadIdx.x / 32, g = lane / 4, c = lane % 4;
  int first_eight, num_eights, num_tiles, num_rounds;

  __device__ RingProduct(const Product& of) : product(of) {
    const int unit = of.gated ? 2 : 1, units = of.columns() / 8;  // gates and values go together
    first_eight = (int)((long long)units * blockIdx.x / gridDim.x) * unit;
    num_eights = (int)((long long)units * (blockIdx.x + 1) / gridDim.x) * unit - first_eight;
    num_tiles = (num_eights + 1) / 2;
    num_rounds = (num_tiles + TILES - 1) / TILES;
  }

  __device__ int round_start(int round) const { return num_tiles * round / num_rounds; }

  // 8 lanes that read two rows meet all banks: halves of 128 bytes change place in every other row.
  __device__ static int place(int row, int piece) {
    return row * DEPTH + (STEPS > 1 ? piece ^ row % 2 * 4 : piece) * 8;
  }

  __device__ void run(unsigned char* shared, int ring_bytes) {
    if (num_eights == 0) return;
    float* sums = reinterpret_cast<float*>(shared + ring_bytes);  // (PARTS, PASS x 8, STRIDE)
    float* squares = sums + PARTS * PASS * 8 * STRIDE;            // (PARTS, ROWS)
    const bfloat16** eights = reinterpret_cast<const bfloat16**>(squares + PARTS * ROWS);
    const int rows = product.rows, depth = product.depth, part_depth = depth / PARTS;
    const int steps = part_depth / STEP;
    for (int i = threadIdx.x; i < num_tiles * 2; i += THREADS) {
      const int eight = first_eight + min(i, num_eights - 1);
      eights[i] = product.weight_row(eight / 2, eight % 2 * 8);
    }
    const int most_tiles = (num_tiles + num_rounds - 1) / num_rounds;  // of a round
    const int most_eights = min(most_tiles * 2, num_eights);
    const int stage_size = INPUT + most_eights * 8 * DEPTH;
    const int num_stages = min(ring_bytes / PARTS / 2 / stage_size, MOST_STAGES);
    bfloat16* ring = reinterpret_cast<bfloat16*>(shared + ring_bytes / PARTS * part);
    __syncthreads();

    const int copy_row = lane / PIECES, piece = lane % PIECES;
    const long long own = (long long)copy_row * depth + part * part_depth + piece * 8;
    const long long next_rows = (long long)COPY_ROWS * depth;
    const bfloat16 *x, *norm, *from[TILES][2] = {};
    int copy_round = 0, copy_step = 0, copy_count = 0;
    auto turn_to = [&](int round) {
      const int first = round_start(round);
      copy_count = round < num_rounds ? round_start(round + 1) - first : 0;
      x = product.x + own;
      norm = product.norm + part * part_depth + piece * 8;
#pragma unroll
      for (int t = 0; t < TILES; t++)
        if (t < copy_count) {
          from[t][0] = eights[(first + t) * 2] + own;
          from[t][1] = (first + t) * 2 + 1 < num_eights ? eights[(first + t) * 2 + 1] + own : nullptr;
        }
    };
    const int to = kept(place(copy_row, piece)), own_step = kept(piece / 4);
    bfloat16* copy_to = ring;
    bfloat16* const ring_end = ring + num_stages * stage_size;
    auto copy_ahead = [&]() {
      if (copy_round < num_rounds) {
        if (STEPS == 1 || copy_step + own_step < steps) {
          bfloat16* stage = copy_to + to;
          const bfloat16* row = x;
#pragma unroll
          for (int i = 0; i < ROWS; i += COPY_ROWS) {
            if (copy_row + i < rows) copy_async(stage + i * DEPTH, row);
            row += next_rows;
          }
          if (NORM && lane < PIECES) copy_async(copy_to + ROWS * DEPTH + piece * 8, norm);
          stage += INPUT;
#pragma unroll
          for (int t = 0; t < TILES; t++) {
            if (t >= copy_count) break;
#pragma unroll
            for (int half = 0; half < 2; half++) {
              const bfloat16* eight = from[t][half];
              if (half && !eight) break;
#pragma unroll
              for (int i = 0; i < 8; i += COPY_ROWS) {
                copy_weights_async(stage + (t * 16 + half * 8 + i) * DEPTH, eight);
                eight += next_rows;
              }
            }
          }
        }
        copy_to += stage_size;
        if (copy_to == ring_end) copy_to = ring;
        copy_step += STEPS;
        if (copy_step >= steps) {
          copy_step = 0;
          turn_to(++copy_round);
        } else {
          x += DEPTH;
          norm += DEPTH;
#pragma unroll
          for (int t = 0; t < TILES; t++) {
            from[t][0] += DEPTH;
            if (from[t][1]) from[t][1] += DEPTH;
          }
        }
      }
      commit_copies();
    };
    turn_to(0);
#pragma unroll 1
    for (int s = 0; s < num_stages - 1; s++) copy_ahead();

    // Where this lane reads 8 numbers of an even step, and of an odd one: rows are g on.
    const int even = kept(g * DEPTH + c * 8 + (STEPS > 1 ? g % 2 * STEP : 0));
    const int odd = kept(even ^ STEP);
    const bfloat16* taken = ring;
    for (int round = 0; round < num_rounds; round++) {
      const int first = round_start(round), count = round_start(round + 1) - first;
      float acc[TILES][COLUMN_TILES][4] = {};
      float own_squares[COLUMN_TILES] = {};
#pragma unroll 1
      for (int stage_step = 0; stage_step < steps; stage_step += STEPS) {
        wait_for_all_but(num_stages - 2);
        __syncwarp();  // all lanes' copies are here, and all have done with the stage before
        copy_ahead();
        const bfloat16* input = taken;
        taken += stage_size;
        if (taken == ring_end) taken = ring;
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
          if (step && stage_step + step >= steps) break;
          const bfloat16* lane_input = input + (step % 2 ? odd : even) + step / 2 * 2 * STEP;
          const bfloat16* weights = lane_input + INPUT;
          uint4 b[COLUMN_TILES];
#pragma unroll
          for (int n = 0; n < COLUMN_TILES; n++)
            b[n] = *reinterpret_cast<const uint4*>(lane_input + n * 8 * DEPTH);
          if (NORM) {
            const uint4 factors =
                *reinterpret_cast<const uint4*>(input + ROWS * DEPTH + (step * 4 + c) * 8);
#pragma unroll
            for (int n = 0; n < COLUMN_TILES; n++) {
              if (round == 0) add_squares(b[n], own_squares[n]);
              weigh(b[n], factors);
            }
          }
uint4 upper[TILES], lower[TILES];  // of tiles that there are not: whatever lies there
#pragma unroll
          for (int t = 0; t < TILES; t++) {
            upper[t] = *reinterpret_cast<const uint4*>(weights + t * 16 * DEPTH);
            lower[t] = *reinterpret_cast<const uint4*>(weights + (t * 16 + 8) * DEPTH);
          }
#pragma unroll
          for (int t = 0; t < TILES; t++) {
            if (t >= count) break;
            const unsigned low[4] = {upper[t].x, lower[t].x, upper[t].y, lower[t].y};
#pragma unroll
            for (int n = 0; n < COLUMN_TILES; n++)
              multiply_add(acc[t][n], low, b[n].x, b[n].y);
          }
#pragma unroll
          for (int t = 0; t < TILES; t++) {
            if (t >= count) break;
            const unsigned high[4] = {upper[t].z, lower[t].z, upper[t].w, lower[t].w};
#pragma unroll
            for (int n = 0; n < COLUMN_TILES; n++)
              multiply_add(acc[t][n], high, b[n].z, b[n].w);
          }
        }
      }
      if (NORM && round == 0) {
#pragma unroll
        for (int n = 0; n < COLUMN_TILES; n++) {
          const float sum = row_squares(own_squares[n]);
          if (c == 0) squares[part * ROWS + n * 8 + g] = sum;
        }
      }
#pragma unroll
      for (int pass = 0; pass < COLUMN_TILES; pass += PASS) {
#pragma unroll
        for (int t = 0; t < TILES; t++)
          if (t < count) {
#pragma unroll
            for (int n = 0; n < PASS; n++) {
              float* to = sums + (part * PASS * 8 + n * 8 + 2 * c) * STRIDE + t * 16 + g;
              to[0] = acc[t][pass + n][0];
              to[STRIDE] = acc[t][pass + n][1];
              to[8] = acc[t][pass + n][2];
              to[STRIDE + 8] = acc[t][pass + n][3];
            }
          }
        __syncthreads();
        const int quads = product.gated ? 2 : 4;  // columns of out from a tile, by fours
        const int width = count * quads, here = min(rows - pass * 8, PASS * 8);
        for (int i = threadIdx.x; i < width * here; i += THREADS) {
          const int m = i / width, tile = i % width / quads, row = i % quads * 4;
          if ((first + tile) * 2 + row / 8 >= num_eights) continue;
          const int column = product.gated ? (first_eight / 2 + first + tile) * 8
                                           : first_eight * 8 + (first + tile) * 16;
          product.finish(
              pass * 8 + m, column + row, sums + m * STRIDE + tile * 16 + row,
              PASS * 8 * STRIDE,
              NORM ? product.inverse_norm(sum_parts(squares + pass * 8 + m, ROWS))
                   : product.factor(pass * 8 + m));
        }
        __syncthreads();
      }
    }
    wait_for_copies<0>();
  }
};
