// out[m, n] = x[m, :] . w[n, :] (+ bias[n]) for few rows m, bfloat16 with float32 sums.
//
// A block computes ROW_TILES x 16 columns n for all m: w goes from memory straight into the registers
// of the tensor cores, once. Each warp takes an equal part of K, and the parts are added in order: so
// a row's result, bitwise, does not depend on how many rows there are.
//
// Lane l reads 16 bytes, 8 numbers of K, of row l / 4 at 8 (l % 4). Two products of 16 take them four
// by four: which numbers of K meet in one product is the same for w and x, and that is all it needs.

template <int ROW_TILES, int COLUMN_TILES, int WARPS, int AHEAD, int BIAS>
__device__ void skinny_product(
    const bfloat16* x, const bfloat16* w, const bfloat16* bias, bfloat16* out, int rows, int columns,
    int depth) {
  constexpr int STEP = 32;                         // numbers of K an iteration takes
  constexpr int STRIDE = COLUMN_TILES * 8 + 2;     // of the sums in shared memory
  extern __shared__ __align__(16) float sums[];    // (WARPS, ROW_TILES x 16, STRIDE)
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, c = lane % 4;
  const int first = blockIdx.x * 16 * ROW_TILES, part = depth / WARPS, steps = part / STEP;
  const bfloat16* from = w + (long long)(first + g) * depth + warp * part + 8 * c;
  const bfloat16* input = x + warp * part + 8 * c;

  float acc[ROW_TILES][COLUMN_TILES][4] = {};
  for (int step = 0; step < steps; step += AHEAD) {
    uint4 weights[AHEAD][ROW_TILES][2];
#pragma unroll
    for (int u = 0; u < AHEAD; u++)
#pragma unroll
      for (int r = 0; r < ROW_TILES; r++)
#pragma unroll
        for (int half = 0; half < 2; half++)
          if (step + u < steps)
            weights[u][r][half] = __ldcs(reinterpret_cast<const uint4*>(
                from + (long long)(16 * r + 8 * half) * depth + (step + u) * STEP));
#pragma unroll
    for (int u = 0; u < AHEAD; u++) {
      if (step + u >= steps) break;
#pragma unroll
      for (int n = 0; n < COLUMN_TILES; n++) {
        const int m = n * 8 + g;
        uint4 b = make_uint4(0, 0, 0, 0);
        if (m < rows)
          b = __ldg(reinterpret_cast<const uint4*>(
              input + (long long)m * depth + (step + u) * STEP));
#pragma unroll
        for (int r = 0; r < ROW_TILES; r++) {
          const uint4 upper = weights[u][r][0], lower = weights[u][r][1];
          const unsigned low[4] = {upper.x, lower.x, upper.y, lower.y};
          const unsigned high[4] = {upper.z, lower.z, upper.w, lower.w};
          multiply_add(acc[r][n], low, b.x, b.y);
          multiply_add(acc[r][n], high, b.z, b.w);
        }
      }
    }
  }
#pragma unroll
  for (int r = 0; r < ROW_TILES; r++)
#pragma unroll
    for (int n = 0; n < COLUMN_TILES; n++) {
      float* to = sums + ((warp * ROW_TILES + r) * 16 + g) * STRIDE + n * 8 + 2 * c;
      to[0] = acc[r][n][0];
      to[1] = acc[r][n][1];
      to[8 * STRIDE] = acc[r][n][2];
      to[8 * STRIDE + 1] = acc[r][n][3];
    }
  __syncthreads();
  for (int i = threadIdx.x; i < ROW_TILES * 16 * rows; i += WARPS * 32) {
    const int m = i / (ROW_TILES * 16), n = i % (ROW_TILES * 16);
    float sum = 0.f;
#pragma unroll
    for (int q = 0; q < WARPS; q++) sum += sums[(q * ROW_TILES * 16 + n) * STRIDE + m];
    if (BIAS) sum += static_cast<float>(bias[first + n]);
    out[(long long)m * columns + first + n] = static_cast<bfloat16>(sum);
  }
}
