// What 64 queries of a warpgroup keep while they go through key tiles, 64 positions each, one after
// the other: sums of weighed values in registers, not normalised, and the softmax so far.

__device__ __forceinline__ float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

template <int DIM>
struct WarpgroupAttention {
  using T = bfloat16;
  static constexpr int KEYS = 64, TILE = 64 * 64;       // numbers of a swizzled tile, 64 columns wide
  static constexpr int PIECES = DIM / 8;                // of 16 bytes in a row
  static constexpr int COLUMNS = DIM % 128 ? 64 : 128;  // of values multiplied at a time
  static_assert(DIM % COLUMNS == 0);

  float sums[DIM / 2] = {};  // of queries lane / 4 and 8 further on of a warp's 16, see multiply_add
  float maximum[2] = {-INFINITY, -INFINITY}, total[2] = {0.f, 0.f};

  // Where 16-byte piece ``c`` of a row stands in DIM / 64 swizzled tiles.
  __device__ static int place(int r, int c) { return c / 8 * TILE + swizzled(r, c % 8); }

  // Queries, (64, DIM) in shared memory, for products that follow each other: in registers where there are enough, for
  // shared memory gives no more than what these products read, and something else is written there meanwhile.
  struct Queries {
    static constexpr bool ARE_HELD = DIM <= 128;
    unsigned numbers[ARE_HELD ? DIM / 16 : 1][4];
    const T* queries;

    __device__ explicit Queries(const T* queries) : queries(queries) {
      if constexpr (ARE_HELD) {
        const int r = threadIdx.x / 32 % 4 * 16 + threadIdx.x % 16, c = threadIdx.x % 32 / 16;
#pragma unroll
        for (int k = 0; k < DIM / 16; k++) load_matrices(numbers[k], queries + place(r, 2 * k + c));
      }
    }
    __device__ void multiply_keys(float (&scores)[KEYS / 2], const T* keys) const {
      if constexpr (ARE_HELD) {
        const unsigned long long b = tile_descriptor(keys, 16);
        warpgroup_multiply_first(scores, numbers[0], b);
#pragma unroll
        for (int k = 1; k < DIM / 16; k++)
          warpgroup_multiply(scores, numbers[k], b + (k / 4 * TILE + k % 4 * 16) / 8);
      } else {
        WarpgroupAttention::multiply_keys(scores, queries, keys);
      }
    }
  };

  // All operands in shared memory, (64, DIM) each, published. ``hide`` sets scores that do not count
  // to -INFINITY: number n * 4 + 2 * half + e is of query lane / 4 + 8 * half and key 8 n + 2 (lane % 4) + e.
  template <typename Hide>
  __device__ void add(const T* queries, const T* keys, const T* values, float scale, const Hide& hide) {
    float scores[KEYS / 2];
    begin_products();
    multiply_keys(scores, queries, keys);
    finish_products(scores);
    hide(scores);
    unsigned weights[KEYS / 16][4];
    weigh(scores, weights, scale, 0.f);
    begin_products();
    multiply_values(weights, values);
    finish_products(sums);
  }

  // The steps of it, for those who begin several products at once.
  __device__ static void multiply_keys(float (&scores)[KEYS / 2], const T* queries, const T* keys) {
    unsigned long long a = tile_descriptor(queries, 16), b = tile_descriptor(keys, 16);
    asm volatile("" : "+l"(a), "+l"(b));  // or a loop's other steps would keep registers for each sum
    warpgroup_multiply_first(scores, a, b);
#pragma unroll
    for (int k = 1; k < DIM / 16; k++) {
      const int offset = (k / 4 * TILE + k % 4 * 16) / 8;
      warpgroup_multiply(scores, a + offset, b + offset, 1);
    }
  }
  __device__ void weigh(
      float (&scores)[KEYS / 2], unsigned (&weights)[KEYS / 16][4], float scale, float slack) {
    float factors[2];
    weigh_scores(scores, factors, scale, slack);
    apply(factors, [] {});
    pack(weights, scores);
  }
  // Makes weights of scores, where they are. A maximum stays where no score is higher by more than ``slack``:
  // sums are multiplied by ``factors`` other than 1 seldom then.
  __device__ void weigh_scores(
      float (&scores)[KEYS / 2], float (&factors)[2], float scale, float slack) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      float highest = -INFINITY;
#pragma unroll
      for (int n = 0; n < KEYS / 8; n++)
        highest = fmaxf(highest, fmaxf(scores[n * 4 + 2 * half], scores[n * 4 + 2 * half + 1]));
      highest = fmaxf(highest, __shfl_xor_sync(0xffffffffu, highest, 1));
      highest = fmaxf(highest, __shfl_xor_sync(0xffffffffu, highest, 2));
      if (highest <= maximum[half] + slack) highest = maximum[half];
      const float base = highest == -INFINITY ? 0.f : highest;
      // exactly 1 where the maximum stays: then it does not matter whether a tile was skipped
      factors[half] = power_of_two(__fmul_rn(__fsub_rn(maximum[half], base), scale));
      maximum[half] = highest;
      total[half] = __fmul_rn(total[half], factors[half]);
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
  }
  // To sums that are here once ``await`` has returned.
  template <typename Await>
  __device__ void apply(const float (&factors)[2], const Await& await) {
    if (__any_sync(0xffffffffu, factors[0] != 1.f || factors[1] != 1.f)) {
      await();
#pragma unroll
      for (int i = 0; i < DIM / 2; i++) sums[i] = __fmul_rn(sums[i], factors[i / 2 % 2]);
    } else {
      await();
    }
  }
  __device__ static void pack(unsigned (&weights)[KEYS / 16][4], const float (&scores)[KEYS / 2]) {
#pragma unroll
    for (int k = 0; k < KEYS / 16; k++)
#pragma unroll
      for (int i = 0; i < 4; i++)
        weights[k][i] = packed(scores[k * 8 + 2 * i], scores[k * 8 + 2 * i + 1]);
  }
  __device__ void multiply_values(const unsigned (&weights)[KEYS / 16][4], const T* values) {
    const unsigned long long b = tile_descriptor(values, TILE * 2);
#pragma unroll
    for (int k = 0; k < KEYS / 16; k++)
#pragma unroll
      for (int d = 0; d < DIM / COLUMNS; d++)
        warpgroup_multiply_add(
            sums + d * COLUMNS / 2, weights[k], b + (d * (COLUMNS / 64) * TILE + k * 16 * 64) / 8,
            Columns<COLUMNS>());
  }
  // The sum of a query's weights, of all lanes that hold a part of it.
  __device__ float whole_total(int half) const {
    float sum = total[half];
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    return sum + __shfl_xor_sync(0xffffffffu, sum, 2);
  }
};
