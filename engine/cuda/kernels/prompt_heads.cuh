// Heads of a long window, from the projections to where attention takes them: queries and keys normed
// and turned, keys and values into pages. A warp has some of the heads of one token, and computes its
// sines once; numbers come out as ProjectedHeads makes them.

template <typename T>
struct PromptHeads {
  Heads<T> queries, keys, values;  // as the projections left them, (rows, heads, width, dim)
  const T* query_norm;
  const T* key_norm;
  const float* epsilon;
  const float* frequencies;
  const int* tables;
  const int* starts;
  const int* lengths;
  int rows, width, num_heads, num_kv_heads, num_blocks, table_length;
  int first;  // position that rotary embeddings count from
  T* out;     // (rows, width, heads, dim)
  T* key_pages;
  T* value_pages;
};

// Grid: (blocks of WARPS tokens, heads of all kinds / HEADS); WARPS warps.
template <typename T, int DIM, int ROTARY, bool NORM, int BLOCK_SIZE, int WARPS, int HEADS>
__device__ void prepare_heads(const PromptHeads<T>& all) {
  constexpr int TURNS = (ROTARY / 2 + 31) / 32;
  __shared__ T prepared[WARPS][DIM];
  const int lane = threadIdx.x % 32, token = blockIdx.x * WARPS + threadIdx.x / 32;
  if (token >= all.rows * all.width) return;
  const int row = token / all.width, t = token % all.width;
  if (t >= all.lengths[row]) return;
  T* to = prepared[threadIdx.x / 32];
  const int position = all.starts[row] + t;
  const int block = all.tables[(long long)row * all.table_length + position / BLOCK_SIZE];
  float sine[TURNS + 1], cosine[TURNS + 1];
#pragma unroll
  for (int i = 0; i < TURNS; i++)
    if (lane + 32 * i < ROTARY / 2)
      sincosf(
          static_cast<float>(position - all.first) * all.frequencies[lane + 32 * i], &sine[i],
          &cosine[i]);

  for (int i = 0; i < HEADS; i++) {
    int head = blockIdx.y * HEADS + i;  // queries, then keys, then values
    const bool is_query = head < all.num_heads;
    head -= is_query ? 0 : all.num_heads;
    const bool is_key = !is_query && head < all.num_kv_heads;
    head -= is_query || is_key ? 0 : all.num_kv_heads;
    if (head >= (is_query ? all.num_heads : all.num_kv_heads)) return;
    const Heads<T>& kind = is_query ? all.queries : is_key ? all.keys : all.values;
    const T* from = &kind.data[row * kind.row + head * kind.head + t * kind.time];
    const long long paged =
        (((long long)head * all.num_blocks + block) * BLOCK_SIZE + position % BLOCK_SIZE) * DIM;
    T* into = is_query ? all.out + ((long long)token * all.num_heads + head) * DIM
                       : (is_key ? all.key_pages : all.value_pages) + paged;
    if (!is_query && !is_key) {
#pragma unroll
      for (int j = 0; j < DIM / 32; j++) into[lane + 32 * j] = from[lane + 32 * j];
      continue;
    }
    float x[DIM / 32], squares = 0.f;
#pragma unroll
    for (int j = 0; j < DIM / 32; j++) {
      x[j] = static_cast<float>(from[lane + 32 * j]);
      squares = fmaf(x[j], x[j], squares);
    }
    if constexpr (NORM) {
      const float factor = rsqrtf(warp_sum(squares) / DIM + *all.epsilon);
      const T* norm = is_query ? all.query_norm : all.key_norm;
#pragma unroll
      for (int j = 0; j < DIM / 32; j++)
        x[j] = __fmul_rn(
            static_cast<float>(norm[lane + 32 * j]), rounded<T>(__fmul_rn(x[j], factor)));
    }
    __syncwarp();
#pragma unroll
    for (int j = 0; j < DIM / 32; j++) to[lane + 32 * j] = static_cast<T>(x[j]);
    __syncwarp();
#pragma unroll
    for (int j = 0; j < TURNS; j++) {
      const int at = lane + 32 * j;
      if (at >= ROTARY / 2) continue;
      const float a = static_cast<float>(to[at]), b = static_cast<float>(to[at + ROTARY / 2]);
      to[at] = static_cast<T>(fmaf(a, cosine[j], -__fmul_rn(b, sine[j])));
      to[at + ROTARY / 2] = static_cast<T>(fmaf(a, sine[j], __fmul_rn(b, cosine[j])));
    }
    __syncwarp();
#pragma unroll
    for (int j = 0; j < DIM / 32; j++) into[lane + 32 * j] = to[lane + 32 * j];
  }
}
