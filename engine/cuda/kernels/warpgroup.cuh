// Products of a warpgroup, four warps, by the tensor cores of sm_90a: operands in swizzled shared
// memory, sums in registers. Lane l of warp w holds rows 16 w + l/4 and 8 further on, as multiply_add.

// A tile of rows of 64 16-bit numbers, 128 bytes each: 16-byte piece c of row r lies at c ^ r % 8.
__device__ __forceinline__ int swizzled(int row, int piece) {
  return row * 64 + (piece ^ row % 8) * 8;
}
// Of rows that are what is multiplied out (stride alone), or, transposed, of rows summed over;
// ``leading`` is from one tile of 64 columns to the next, in bytes.
__device__ __forceinline__ unsigned long long tile_descriptor(const void* tile, int leading) {
  const unsigned long long address = (shared_address(tile) & 0x3ffff) >> 4;
  return address | (unsigned long long)(leading >> 4) << 16 | (unsigned long long)(1024 >> 4) << 32 |
      1ull << 62;
}
__device__ __forceinline__ void begin_products() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
// What these numbers come to is found here: not later, nor is it used earlier.
template <int N>
__device__ __forceinline__ void pin(float (&c)[N]) {
#pragma unroll
  for (int i = 0; i < N; i++) asm volatile("" : "+f"(c[i])::"memory");
}
__device__ __forceinline__ void send_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// All but the last PENDING that were sent, of which those with the sums ``c`` are.
template <int PENDING, int N>
__device__ __forceinline__ void await_products(float (&c)[N]) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
  pin(c);
}
template <int N>
__device__ __forceinline__ void finish_products(float (&c)[N]) {
  send_products();
  await_products<0>(c);
}
// A thread of this warpgroup has so many registers from here on; those that others give can be taken.
template <int COUNT>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}
// What threads wrote to shared memory is seen by products that start after the next barrier.
__device__ __forceinline__ void publish_to_products() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// The sums of a product as an instruction names them, and as its operands.
#define REGISTERS_32 \
  "%0, %1, %2, %3, %4, %5, %6, %7, " \
  "%8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, " \
  "%24, %25, %26, %27, %28, %29, %30, %31"
#define REGISTERS_64 \
  REGISTERS_32 ", " \
  "%32, %33, %34, %35, %36, %37, %38, %39, " \
  "%40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, " \
  "%56, %57, %58, %59, %60, %61, %62, %63"
#define SUMS_4(c, i) "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3])
#define SUMS_16(c, i) SUMS_4(c, i), SUMS_4(c, i + 4), SUMS_4(c, i + 8), SUMS_4(c, i + 12)
#define SUMS_32(c) SUMS_16(c, 0), SUMS_16(c, 16)
#define SUMS_64(c) SUMS_32(c), SUMS_16(c, 32), SUMS_16(c, 48)

// c[64 x 64] = (adds ? c : 0) + a[64 x 16] b[64 x 16]^T, both in shared memory.
__device__ __forceinline__ void warpgroup_multiply(
    float (&c)[32], unsigned long long a, unsigned long long b, int adds) {
  asm volatile(
      "{.reg .pred adds; setp.ne.b32 adds, %34, 0; "
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" REGISTERS_32
      "}, %32, %33, adds, 1, 1, 0, 0;}"
      : SUMS_32(c)
      : "l"(a), "l"(b), "r"(adds));
}
// The same for sums that begin: nobody has to set them.
#define NEW_4(c, i) "=f"(c[i]), "=f"(c[i + 1]), "=f"(c[i + 2]), "=f"(c[i + 3])
#define NEW_16(c, i) NEW_4(c, i), NEW_4(c, i + 4), NEW_4(c, i + 8), NEW_4(c, i + 12)
__device__ __forceinline__ void warpgroup_multiply_first(
    float (&c)[32], unsigned long long a, unsigned long long b) {
  asm volatile(
      "{.reg .pred adds; setp.ne.b32 adds, 0, 0; "
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" REGISTERS_32
      "}, %32, %33, adds, 1, 1, 0, 0;}"
      : NEW_16(c, 0), NEW_16(c, 16)
      : "l"(a), "l"(b));
}
// Likewise, a in registers.
__device__ __forceinline__ void warpgroup_multiply(
    float (&c)[32], const unsigned (&a)[4], unsigned long long b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" REGISTERS_32
      "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 0;"
      : SUMS_32(c)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
__device__ __forceinline__ void warpgroup_multiply_first(
    float (&c)[32], const unsigned (&a)[4], unsigned long long b) {
  asm volatile(
      "{.reg .pred adds; setp.ne.b32 adds, 0, 0; "
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" REGISTERS_32
      "}, {%32, %33, %34, %35}, %36, adds, 1, 1, 0;}"
      : NEW_16(c, 0), NEW_16(c, 16)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
template <int N>
struct Columns {};

// c[64 x 64] += a[64 x 16] b[16 x 64], a in registers.
__device__ __forceinline__ void warpgroup_multiply_add(
    float* c, const unsigned (&a)[4], unsigned long long b, Columns<64>) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" REGISTERS_32
      "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 1;"
      : SUMS_32(c)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
// c[64 x 128] += a[64 x 16] b[16 x 128], a in registers.
__device__ __forceinline__ void warpgroup_multiply_add(
    float* c, const unsigned (&a)[4], unsigned long long b, Columns<128>) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" REGISTERS_64
      "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;"
      : SUMS_64(c)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
