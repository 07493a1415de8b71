// A product for few rows in which weights go from memory straight into registers, once: a block
// computes ROW_TILES tiles of weights for all rows, each of its warps in one part of the depth.

template <int ROW_TILES, int COLUMN_TILES, int AHEAD, bool NORM>
__device__ void skinny_product(const Product& product, int num_tiles) {
  constexpr int HEIGHT = ROW_TILES * 16, ROWS = COLUMN_TILES * 8;
  constexpr int STRIDE = HEIGHT + 4;  // a quarter of the banks further with every other row
  extern __shared__ __align__(16) float sums[];     // (PARTS, ROWS, STRIDE)
  float* squares = sums + PARTS * ROWS * STRIDE;    // (PARTS, ROWS)
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, c = lane % 4;
  const int rows = product.rows, depth = product.depth;
  const int first = blockIdx.x * ROW_TILES, part = depth / PARTS, steps = part / STEP;
  const int start = warp * part + 8 * c;
  const bfloat16* from[ROW_TILES][2];
#pragma unroll
  for (int r = 0; r < ROW_TILES; r++)
#pragma unroll
    for (int half = 0; half < 2; half++)
      from[r][half] =
          product.weight_row(min(first + r, num_tiles - 1), g + 8 * half) + start;
  const bfloat16* input = product.x + start;

  float acc[ROW_TILES][COLUMN_TILES][4] = {};
  float own_squares[COLUMN_TILES] = {};
  for (int step = 0; step < steps; step += AHEAD) {
    uint4 weights[AHEAD][ROW_TILES][2];
#pragma unroll
    for (int u = 0; u < AHEAD; u++)
#pragma unroll
      for (int r = 0; r < ROW_TILES; r++)
#pragma unroll
        for (int half = 0; half < 2; half++)
          if (step + u < steps)
            weights[u][r][half] =
                __ldcs(reinterpret_cast<const uint4*>(from[r][half] + (step + u) * STEP));
#pragma unroll
    for (int u = 0; u < AHEAD; u++) {
      if (step + u >= steps) break;
      uint4 norm;
      if (NORM)
        norm = __ldg(reinterpret_cast<const uint4*>(product.norm + start + (step + u) * STEP));
#pragma unroll
      for (int n = 0; n < COLUMN_TILES; n++) {
        const int m = n * 8 + g;
        uint4 b = make_uint4(0, 0, 0, 0);
        if (m < rows)
          b = __ldg(reinterpret_cast<const uint4*>(
              input + (long long)m * depth + (step + u) * STEP));
        if (NORM) {
          add_squares(b, own_squares[n]);
          weigh(b, norm);
        }
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
      float* to = sums + (warp * ROWS + n * 8 + 2 * c) * STRIDE + r * 16 + g;
      to[0] = acc[r][n][0];
      to[STRIDE] = acc[r][n][1];
      to[8] = acc[r][n][2];
      to[STRIDE + 8] = acc[r][n][3];
    }
  if (NORM) {
#pragma unroll
    for (int n = 0; n < COLUMN_TILES; n++) {
      const float sum = row_squares(own_squares[n]);
      if (c == 0) squares[(warp * COLUMN_TILES + n) * 8 + g] = sum;
    }
  }
  __syncthreads();
  const int quads = product.gated ? 2 : 4;  // columns of out from a tile, by fours
  for (int i = threadIdx.x; i < ROW_TILES * quads * rows; i += PARTS * 32) {
    const int m = i / (ROW_TILES * quads), tile = i / quads % ROW_TILES, row = i % quads * 4;
    if (first + tile < num_tiles)
      product.finish(
          m, product.first_column(first + tile) + row, sums + m * STRIDE + tile * 16 + row,
          ROWS * STRIDE, NORM ? product.inverse_norm(sum_parts(squares + m, ROWS)) : product.factor(m));
  }
}
