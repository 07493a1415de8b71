// What the products for few rows share: where weights lie, the order of sums, what follows a sum.
//
// The depth has PARTS equal parts. In each, tensor cores add 16 numbers of it at a time to a chain
// of sums; the parts' sums are then added in order. Every form keeps to that: so a result, bitwise,
// does not depend on how many rows there are, nor on which form ran.
//
// Lane l reads 16 bytes, 8 numbers of the depth, at 8 (l % 4), of the row l / 4 of a tile. Two
// products of 16 take them four by four: which numbers of the depth meet in one product is the
// same for weights and x, and that is all it needs.

constexpr int PARTS = 8;
constexpr int STEP = 32;  // numbers of the depth for which a lane reads 16 bytes

// The sum of what lies at ``first`` and further on at each ``distance``, one number for each part.
__device__ __forceinline__ float sum_parts(const float* first, int distance) {
  float sum = *first;
#pragma unroll
  for (int q = 1; q < PARTS; q++) sum = __fadd_rn(sum, first[q * distance]);
  return sum;
}

// The same of 4 numbers that lie together, at a multiple of 16 bytes.
__device__ __forceinline__ void sum_parts(const float* first, int distance, float (&to)[4]) {
#pragma unroll
  for (int q = 0; q < PARTS; q++) {
    const float4 all = *reinterpret_cast<const float4*>(first + q * distance);
    to[0] = q ? __fadd_rn(to[0], all.x) : all.x;
    to[1] = q ? __fadd_rn(to[1], all.y) : all.y;
    to[2] = q ? __fadd_rn(to[2], all.z) : all.z;
    to[3] = q ? __fadd_rn(to[3], all.w) : all.w;
  }
}

// Makes silu(gates) * values, as operations on bfloat16 would, of pairs of sums.
__device__ __forceinline__ void activate(float* gates, const float* values) {
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const float gate = rounded<bfloat16>(gates[i]);
    gates[i] = __fmul_rn(
        rounded<bfloat16>(__fmul_rn(gate, sigmoid(gate))), rounded<bfloat16>(values[i]));
  }
}

__device__ __forceinline__ float inverse_norm(float squares, int depth, float epsilon) {
  return rsqrtf(__fadd_rn(squares / depth, epsilon));
}

struct Product {
  const bfloat16* x;
  const bfloat16* weights[4];  // (columns, depth) each; their columns stand side by side
  int ends[4];
  const bfloat16* bias;      // (columns,), or null
  const bfloat16* residual;  // (rows, columns of out), or null
  const bfloat16* norm;      // (depth,), or null
  float epsilon;
  const float* factors;  // (rows,), or null
  bfloat16* out;
  int rows, depth;
  bool gated;  // silu(weights[0]) * weights[1]

  __device__ int columns() const { return gated ? ends[0] : ends[3]; }
  __device__ int num_tiles() const { return columns() / (gated ? 8 : 16); }

  // A tile is 16 rows of weights: of 16 columns or, if gated, of 8 gates and then their 8 values.
  __device__ int first_column(int tile) const { return tile * (gated ? 8 : 16); }

  __device__ const bfloat16* weight_row(int tile, int row) const {
    if (gated) {
      const long long at = tile * 8 + row % 8;
      return (row / 8 ? weights[1] : weights[0]) + at * depth;
    }
    const int column = tile * 16 + row;
    if (column < ends[0]) return weights[0] + (long long)column * depth;
    if (column < ends[1]) return weights[1] + (long long)(column - ends[0]) * depth;
    if (column < ends[2]) return weights[2] + (long long)(column - ends[1]) * depth;
    return weights[3] + (long long)(column - ends[2]) * depth;
  }

  // What the sums of row m are multiplied by, where not the kernel itself adds up squares.
  __device__ float factor(int m) const { return factors ? factors[m] : 1.f; }

  __device__ float inverse_norm(float squares) const {
    return ::inverse_norm(squares, depth, epsilon);
  }

  // Row m and 4 columns from n on: of each part, the sums for them lie at ``sums``, ``distance``
  // further on for each part; if gated, those of their values 8 further on.
  __device__ void finish(int m, int n, const float* sums, int distance, float factor) const {
    float values[4];
    sum_parts(sums, distance, values);
#pragma unroll
    for (int i = 0; i < 4; i++) values[i] = __fmul_rn(values[i], factor);
    if (gated) {
      float ups[4];
      sum_parts(sums + 8, distance, ups);
#pragma unroll
      for (int i = 0; i < 4; i++) ups[i] = __fmul_rn(ups[i], factor);
      activate(values, ups);
      activate(values + 2, ups + 2);
    }
    store(m, n, values);
    store(m, n + 2, values + 2);
  }

  // Row m and 2 columns from n on.
  __device__ void store(int m, int n, float* values) const {
    const long long at = (long long)m * columns() + n;
    if (bias) add(bias + n, values);
    if (residual) {
      values[0] = rounded<bfloat16>(values[0]);
      values[1] = rounded<bfloat16>(values[1]);
      add(residual + at, values);
    }
    *reinterpret_cast<unsigned*>(out + at) = packed(values[0], values[1]);
  }

  __device__ static void add(const bfloat16* from, float* to) {
    const float2 both = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(from));
    to[0] = __fadd_rn(to[0], both.x);
    to[1] = __fadd_rn(to[1], both.y);
  }
};

__device__ __forceinline__ void add_squares(const uint4& numbers, float& sum) {
  const unsigned* pairs = reinterpret_cast<const unsigned*>(&numbers);
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const float2 both = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(pairs + i));
    sum = __fmaf_rn(both.x, both.x, sum);
    sum = __fmaf_rn(both.y, both.y, sum);
  }
}

// Multiplies 8 numbers by ``weights``.
__device__ __forceinline__ void weigh(uint4& numbers, const uint4& weights) {
  __nv_bfloat162* pairs = reinterpret_cast<__nv_bfloat162*>(&numbers);
  const __nv_bfloat162* factors = reinterpret_cast<const __nv_bfloat162*>(&weights);
#pragma unroll
  for (int i = 0; i < 4; i++) pairs[i] = __hmul2(pairs[i], factors[i]);
}

// The squares of a row, of which 4 neighbouring lanes have each a share.
__device__ __forceinline__ float row_squares(float sum) {
  sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, 1));
  return __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, 2));
}
