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

  // All operands in shared memory, (64, DIM) each, published. ``values_of`` is called when scores are weighed
  // and returns where the values are, which need not be there before. ``hide`` sets scores that do not count
  // to -INFINITY: number n * 4 + 2 * half + e is of query lane / 4 + 8 * half and key 8 n + 2 (lane % 4) + e.
  template <typename Values, typename Hide>
  __device__ void add(
      const T* queries, const T* keys, Values&& values_of, float scale, const Hide& hide) {
    float scores[KEYS / 2];
    begin_products();
#pragma unroll
    for (int k = 0; k < DIM / 16; k++) {
      const int offset = k / 4 * TILE + k % 4 * 16;
      warpgroup_multiply(
          scores, tile_descriptor(queries + offset, 16), tile_descriptor(keys + offset, 16), k > 0);
    }
    finish_products(scores);
    hide(scores);
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
    const T* values = values_of();
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

  // The sum of a query's weights, of all lanes that hold a part of it.
  __device__ float whole_total(int half) const {
    float sum = total[half];
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    return sum + __shfl_xor_sync(0xffffffffu, sum, 2);
  }
};
