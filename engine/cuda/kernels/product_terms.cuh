// What the products for few rows share: where weights lie, the order of sums, what follows a sum.
//
// The depth has PARTS equal parts. In each, tensor cores add 16 numbers of it at a time to a chain
// of sums; the parts' sums are then added as a tree. Every form keeps to that: so a result, bitwise,
// does not depend on how many rows there are, nor on which form ran.
//
// Lane l reads 16 bytes, 8 numbers of the depth, at 8 (l % 4), of the row l / 4 of a tile. Two
// products of 16 take them four by four: which numbers of the depth meet in one product is the
// same for weights and x, and that is all it needs.

constexpr int PARTS = 8;
constexpr int STEP = 32;  // numbers of the depth for which a lane reads 16 bytes

struct Product {
  const bfloat16* x;
  const bfloat16* weights[4];  // (columns, depth) each; their columns stand side by side
  int ends[4];
  const bfloat16* bias;      // (columns,), or null
  const bfloat16* residual;  // (rows, columns of out), or null
  const bfloat16* norm;      // (depth,), or null
  const float* epsilon;
  bfloat16* out;
  int rows, depth;
  bool gated;  // silu(weights[0]) * weights[1]

  __device__ int columns() const { return gated ? ends[0] : ends[3]; }

  // A tile is 16 rows of weights: of 16 columns or, if gated, of 8 gates and then their 8 values.
  __device__ int first_column(int tile) const { return tile * (gated ? 8 : 16); }

  __device__ const bfloat16* weight_row(int tile, int row) const {
    if (gated) {
      const long long at = tile * 8 + row % 8;
      return weights[row / 8 ? 1 : 0] + at * depth;
    }
    const int column = tile * 16 + row;
    if (column < ends[0]) return weights[0] + (long long)column * depth;
    if (column < ends[1]) return weights[1] + (long long)(column - ends[0]) * depth;
    if (column < ends[2]) return weights[2] + (long long)(column - ends[1]) * depth;
    return weights[3] + (long long)(column - ends[2]) * depth;
  }

  __device__ float inverse_norm(float squares) const {
    return rsqrtf(__fadd_rn(squares / depth, *epsilon));
  }

  // ``value``: the sum for row m and column n, times the inverse norm; ``up``: of its value if gated.
  __device__ void finish(int m, int n, float value, float up) const {
    const long long at = (long long)m * columns() + n;
    if (gated) {
      const float gate = rounded<bfloat16>(value);
      value = rounded<bfloat16>(__fmul_rn(gate, sigmoid(gate)));
      value = __fmul_rn(value, rounded<bfloat16>(up));
    } else if (bias) {
      value = __fadd_rn(value, static_cast<float>(bias[n]));
    }
    if (residual) value = __fadd_rn(rounded<bfloat16>(value), static_cast<float>(residual[at]));
    out[at] = static_cast<bfloat16>(value);
  }
};

// The sum of what lies at ``first`` and further on at each ``distance``, one number for each part.
__device__ __forceinline__ float sum_parts(const float* first, int distance) {
  float sums[PARTS];
#pragma unroll
  for (int q = 0; q < PARTS; q++) sums[q] = first[q * distance];
#pragma unroll
  for (int width = 1; width < PARTS; width *= 2)
#pragma unroll
    for (int q = 0; q < PARTS; q += 2 * width) sums[q] = __fadd_rn(sums[q], sums[q + width]);
  return sums[0];
}

// Adds the squares of 8 numbers to ``sum``, in order, and multiplies the numbers by ``weights``.
__device__ __forceinline__ void weigh(uint4& numbers, const uint4& weights, float& sum) {
  unsigned* pairs = reinterpret_cast<unsigned*>(&numbers);
  const unsigned* factors = reinterpret_cast<const unsigned*>(&weights);
#pragma unroll
  for (int i = 0; i < 4; i++) {
    __nv_bfloat162& pair = *reinterpret_cast<__nv_bfloat162*>(pairs + i);
    const float2 both = __bfloat1622float2(pair);
    sum = __fmaf_rn(both.x, both.x, sum);
    sum = __fmaf_rn(both.y, both.y, sum);
    pair = __hmul2(pair, *reinterpret_cast<const __nv_bfloat162*>(factors + i));
  }
}

// The squares of a row, of which 4 neighbouring lanes have each a share.
__device__ __forceinline__ float row_squares(float sum) {
  sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, 1));
  return __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, 2));
}
