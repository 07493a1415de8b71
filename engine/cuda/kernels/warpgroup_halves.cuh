// Products of a warpgroup with float16 operands, as those of warpgroup.cuh; the left one in registers.

// c[64 x 64] += a[64 x 16] b[64 x 16]^T.
__device__ __forceinline__ void warpgroup_halves_by_rows(
    float* c, const unsigned (&a)[4], unsigned long long b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {" REGISTERS_32
      "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 0;"
      : SUMS_32(c)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
// c[64 x 64] += a[64 x 16] b[16 x 64].
__device__ __forceinline__ void warpgroup_halves(
    float* c, const unsigned (&a)[4], unsigned long long b, Columns<64>) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {" REGISTERS_32
      "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 1;"
      : SUMS_32(c)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
// c[64 x 128] += a[64 x 16] b[16 x 128].
__device__ __forceinline__ void warpgroup_halves(
    float* c, const unsigned (&a)[4], unsigned long long b, Columns<128>) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {" REGISTERS_64
      "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;"
      : SUMS_64(c)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
