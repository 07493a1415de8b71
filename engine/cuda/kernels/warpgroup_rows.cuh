// Products of a warpgroup, four warps, of 64 rows of weights by few rows of x, both in swizzled
// shared memory (warpgroup.cuh): c[64 x ROWS] = (adds ? c : 0) + a[64 x 16] b[ROWS x 16]^T.
// Lane l of warp w holds, of weights, rows 16 w + l/4 (c[4j], c[4j+1]) and 8 further on (c[4j+2],
// c[4j+3]); of x, rows 8 j + 2 (l % 4) and the next.

template <int ROWS>
struct RowsOfX {};

__device__ __forceinline__ void multiply_rows(
    float (&c)[4], unsigned long long a, unsigned long long b, int adds, RowsOfX<8>) {
  asm volatile(
      "{.reg .pred adds; setp.ne.b32 adds, %6, 0; "
      "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, "
      "%4, %5, adds, 1, 1, 0, 0;}"
      : SUMS_4(c, 0)
      : "l"(a), "l"(b), "r"(adds));
}

__device__ __forceinline__ void multiply_rows(
    float (&c)[8], unsigned long long a, unsigned long long b, int adds, RowsOfX<16>) {
  asm volatile(
      "{.reg .pred adds; setp.ne.b32 adds, %10, 0; "
      "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7}, %8, %9, adds, 1, 1, 0, 0;}"
      : SUMS_4(c, 0), SUMS_4(c, 4)
      : "l"(a), "l"(b), "r"(adds));
}

__device__ __forceinline__ void multiply_rows(
    float (&c)[16], unsigned long long a, unsigned long long b, int adds, RowsOfX<32>) {
  asm volatile(
      "{.reg .pred adds; setp.ne.b32 adds, %18, 0; "
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
      "%16, %17, adds, 1, 1, 0, 0;}"
      : SUMS_16(c, 0)
      : "l"(a), "l"(b), "r"(adds));
}

__device__ __forceinline__ void multiply_rows(
    float (&c)[32], unsigned long long a, unsigned long long b, int adds, RowsOfX<64>) {
  warpgroup_multiply(c, a, b, adds);
}

// The products begun since the last one are a group.
__device__ __forceinline__ void commit_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits until at most PENDING groups run; their sums may not be touched.
template <int PENDING>
__device__ __forceinline__ void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}
