// The norm of a product's input apart from it, where more rows would take longer inside: rows times
// the norm's weight, and what their products are to be multiplied by. A block takes a row, a warp a
// part of the depth, in whose squares lanes have the shares that they have in a product.

template <int WARPS>
__device__ void weighed_rows(
    const bfloat16* x, const bfloat16* norm, float epsilon, bfloat16* out, float* factors,
    int depth) {
  static_assert(WARPS == PARTS);
  __shared__ float squares[PARTS];
  const int lane = threadIdx.x % 32, part = threadIdx.x / 32;
  const uint4* row = reinterpret_cast<const uint4*>(x + (long long)blockIdx.x * depth);
  const uint4* weights = reinterpret_cast<const uint4*>(norm);
  uint4* to = reinterpret_cast<uint4*>(out + (long long)blockIdx.x * depth);
  for (int i = threadIdx.x; i < depth / 8; i += WARPS * 32) {
    uint4 numbers = row[i];
    weigh(numbers, weights[i]);
    to[i] = numbers;
  }
  float sum = 0.f;
  const int pieces = depth / 8 / PARTS;
  if (lane < 4) {
#pragma unroll 4
    for (int i = lane; i < pieces; i += 4) add_squares(row[part * pieces + i], sum);
  }
  sum = row_squares(sum);
  if (lane == 0) squares[part] = sum;
  __syncthreads();
  if (threadIdx.x == 0)
    factors[blockIdx.x] = inverse_norm(sum_parts(squares, 1), depth, epsilon);
}
