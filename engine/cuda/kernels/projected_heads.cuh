// Queries, keys and values as one product left them, a Source of PagedWindow: heads are normed and
// turned on their way. Numbers are rounded to T where MLX's operations would have stored them.

template <
    typename T, int ROTARY, bool NORM, bool GATED, int QUERY_STRIDE, int QUERY_OFFSET,
    int KEY_OFFSET, int VALUE_OFFSET>
struct ProjectedHeads {
  const T* projected;  // (rows, width, columns)
  const T* query_norm;
  const T* key_norm;
  const float* epsilon;
  const float* frequencies;  // (ROTARY / 2,): the angle a position of the pair (i, i + ROTARY / 2)
  int columns;

  template <typename Share>
  __device__ const T* token(const Share& share, int t) const {
    return projected + ((long long)share.row * share.all.width + t) * columns;
  }
  // One head, by a warp: ``from`` in global memory, ``to`` in shared memory.
  template <int DIM>
  __device__ void prepare(const T* from, const T* norm, int position, T* to) const {
    const int lane = threadIdx.x % 32;
    float x[DIM / 32], squares = 0.f;
#pragma unroll
    for (int j = 0; j < DIM / 32; j++) {
      x[j] = static_cast<float>(from[lane + 32 * j]);
      squares = fmaf(x[j], x[j], squares);
    }
    if constexpr (NORM) {
      const float factor = rsqrtf(warp_sum(squares) / DIM + *epsilon);
#pragma unroll
      for (int j = 0; j < DIM / 32; j++)
        x[j] = __fmul_rn(
            static_cast<float>(norm[lane + 32 * j]), rounded<T>(__fmul_rn(x[j], factor)));
    }
#pragma unroll
    for (int j = 0; j < DIM / 32; j++) to[lane + 32 * j] = static_cast<T>(x[j]);
    __syncwarp();
    if constexpr (ROTARY > 0) {
      for (int i = lane; i < ROTARY / 2; i += 32) {
        float sine, cosine;
        sincosf(static_cast<float>(position) * frequencies[i], &sine, &cosine);
        const float a = static_cast<float>(to[i]), b = static_cast<float>(to[i + ROTARY / 2]);
        to[i] = static_cast<T>(fmaf(a, cosine, -__fmul_rn(b, sine)));
        to[i + ROTARY / 2] = static_cast<T>(fmaf(a, sine, __fmul_rn(b, cosine)));
      }
      __syncwarp();
    }
  }
  template <typename Share>
  __device__ void write(const Share& share, int t, T* key, T* value, T* row) const {
    const T* from = token(share, t) + share.kv_head * Share::DIM;
    prepare<Share::DIM>(from + KEY_OFFSET, key_norm, share.start + t - share.all.first, row);
    for (int d = threadIdx.x % 32; d < Share::DIM; d += 32) {
      key[d] = row[d];
      value[d] = from[VALUE_OFFSET + d];
    }
    __syncwarp();
  }
  template <typename Share>
  __device__ void load_query(const Share& share, int t, int head, T* to) const {
    const T* from = token(share, t) + QUERY_OFFSET + head * QUERY_STRIDE;
    prepare<Share::DIM>(from, query_norm, share.start + t - share.all.first, to);
  }
  // A gate follows its query.
  template <typename Share>
  __device__ T finished(const Share& share, int t, int head, int d, float value) const {
    if constexpr (!GATED) return static_cast<T>(value);
    const float gate = static_cast<float>(
        token(share, t)[QUERY_OFFSET + head * QUERY_STRIDE + Share::DIM + d]);
    return static_cast<T>(__fmul_rn(rounded<T>(value), rounded<T>(sigmoid(gate))));
  }
};
