// silu(gate) * up, eight numbers a thread.

// Grid: blocks of 256 threads over ``count`` numbers, a multiple of eight.
__device__ void multiply_gated(
    const bfloat16* gate, const bfloat16* up, bfloat16* out, long long count) {
  const long long at = ((long long)blockIdx.x * blockDim.x + threadIdx.x) * 8;
  if (at >= count) return;
  uint4 z = __ldcs(reinterpret_cast<const uint4*>(gate + at));
  const uint4 x = __ldcs(reinterpret_cast<const uint4*>(up + at));
  __nv_bfloat162* gates = reinterpret_cast<__nv_bfloat162*>(&z);
  const __nv_bfloat162* ups = reinterpret_cast<const __nv_bfloat162*>(&x);
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const float2 g = __bfloat1622float2(gates[i]), u = __bfloat1622float2(ups[i]);
    gates[i] = __floats2bfloat162_rn(g.x * sigmoid(g.x) * u.x, g.y * sigmoid(g.y) * u.y);
  }
  *reinterpret_cast<uint4*>(out + at) = z;
}
