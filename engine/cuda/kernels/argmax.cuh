// Where the highest number of a row is, the first of equals: a block reads a row.

template <typename T>
struct Pieces;  // of 16 bytes

template <>
struct Pieces<bfloat16> {
  static constexpr int SIZE = 8;
  __device__ static float highest(const uint4& piece) {
    const __nv_bfloat162* pairs = reinterpret_cast<const __nv_bfloat162*>(&piece);
    const __nv_bfloat162 best = __hmax2(__hmax2(pairs[0], pairs[1]), __hmax2(pairs[2], pairs[3]));
    return fmaxf(__low2float(best), __high2float(best));
  }
};

template <>
struct Pieces<float> {
  static constexpr int SIZE = 4;
  __device__ static float highest(const uint4& piece) {
    const float4& all = reinterpret_cast<const float4&>(piece);
    return fmaxf(fmaxf(all.x, all.y), fmaxf(all.z, all.w));
  }
};

struct Highest {
  float value;
  int at;  // first number of the piece, or the number

  __device__ void take(float other, int other_at) {
    if (other > value || (other == value && other_at < at)) {
      value = other;
      at = other_at;
    }
  }
  __device__ void take_from_warp() {
#pragma unroll
    for (int offset = 16; offset; offset >>= 1)
      take(__shfl_xor_sync(0xffffffffu, value, offset), __shfl_xor_sync(0xffffffffu, at, offset));
  }
};

template <typename T, int THREADS, int AHEAD>
__device__ void argmax(const T* numbers, int columns, unsigned* out) {
  constexpr int SIZE = Pieces<T>::SIZE;
  __shared__ Highest of_warps[THREADS / 32];
  const T* row = numbers + (long long)blockIdx.x * columns;
  Highest best = {__int_as_float(0xff800000), 0};  // -inf
  const bool whole = columns % SIZE == 0 && reinterpret_cast<unsigned long long>(row) % 16 == 0;
  if (whole) {
    const uint4* pieces = reinterpret_cast<const uint4*>(row);
    const int count = columns / SIZE;
    for (int i = threadIdx.x; i < count; i += THREADS * AHEAD) {
      uint4 here[AHEAD];
#pragma unroll
      for (int u = 0; u < AHEAD; u++)
        if (i + u * THREADS < count) here[u] = __ldg(pieces + i + u * THREADS);
#pragma unroll
      for (int u = 0; u < AHEAD; u++)
        if (i + u * THREADS < count) {
          const float highest = Pieces<T>::highest(here[u]);
          if (highest > best.value) best = {highest, (i + u * THREADS) * SIZE};
        }
    }
  } else {
    for (int i = threadIdx.x; i < columns; i += THREADS) {
      const float number = static_cast<float>(row[i]);
      if (number > best.value) best = {number, i};
    }
  }
  best.take_from_warp();
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = best;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  if (threadIdx.x < THREADS / 32) best = of_warps[threadIdx.x];
  best.take_from_warp();
  if (threadIdx.x == 0) {
    int at = best.at;
    if (whole)
      while (at < best.at + SIZE - 1 && !(static_cast<float>(row[at]) == best.value)) at++;
    out[blockIdx.x] = at;
  }
}
