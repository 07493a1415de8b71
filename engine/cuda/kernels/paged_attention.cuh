// Attention of a window of new tokens over the pages of their rows, K/V write included.
//
//   out[b, t, h] = softmax_p(scale q[b, h, t] . k[p]) v[p],   p <= start[b] + t
//
// Grid: (splits, K/V heads, rows x query tiles). A query tile is 16 of the width x GROUP queries
// that share a K/V head, token by token. A split is SPLIT consecutive positions, counted from
// position 0 whatever the batch holds: so a query's result, bitwise, depends on its own row alone,
// not on the batch, nor on which other tokens are in its window (a split that is masked for a
// query adds nothing to it). The last block of a tile to finish merges its splits, in order.
//
//   position 0        SPLIT        2 SPLIT             end = start + length
//   |--- split 0 ---|--- split 1 ---|--- split 2 ...---|
//                                      ^ start: written here, by the blocks that read them

// Whether this block is the last of its tile to get here; what the others wrote is then visible.
__device__ __forceinline__ bool is_last(int* counter, int expected) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    last = atomicAdd(counter, 1) == expected - 1;
    if (last) *counter = 0;
  }
  __syncthreads();
  __threadfence();
  return last;
}

template <
    typename Tiles, typename T, int HEAD_DIM, int GROUP, int BLOCK_SIZE, int SPLIT, int WARPS,
    typename Source>
__device__ void paged_attention(const PagedWindow<T, Source>& all) {
  extern __shared__ __align__(16) unsigned char shared[];
  __shared__ float stats[Tiles::PARTS][QUERIES][2];
  const Share<T, HEAD_DIM, GROUP, BLOCK_SIZE, SPLIT, Source> share(all);
  if (share.is_empty()) return;
  const auto result = Tiles::run(share, shared, stats);
  __syncthreads();

  const long long group = (long long)blockIdx.z * gridDim.y + blockIdx.y;
  const long long here = group * gridDim.x + blockIdx.x;
  const bool is_whole = share.num_splits + share.num_shared == 1;
  for (int i = threadIdx.x; i < share.num_queries * HEAD_DIM; i += WARPS * 32) {
    const int query = i / HEAD_DIM, d = i % HEAD_DIM;
    float maximum = NOTHING, value = 0.f, sum = 0.f;
#pragma unroll
    for (int p = 0; p < Tiles::PARTS; p++) maximum = fmaxf(maximum, result.stats[p][query][0]);
#pragma unroll
    for (int p = 0; p < Tiles::PARTS; p++) {
      const float factor = exp2f(result.stats[p][query][0] - maximum);
      sum = fmaf(factor, result.stats[p][query][1], sum);
      value = fmaf(factor, result.values[p][i], value);
    }
    if (is_whole) {
      share.emit(query, d, value / sum);
    } else {
      all.partial[here * QUERIES * HEAD_DIM + i] = value;
      if (d == 0) {
        all.stats[(here * QUERIES + query) * 2] = maximum;
        all.stats[(here * QUERIES + query) * 2 + 1] = sum;
      }
    }
  }
  if (is_whole || !is_last(all.counters + group, share.num_splits)) return;

  // The merge: a warp for each query, splits in order, shared ones first; loads do not wait for the
  // sums.
  constexpr int DIMS = HEAD_DIM / 32;
  const SharedSums& shared_sums = all.shared;
  const int each = all.width * GROUP;
  const long long first = group * gridDim.x - share.num_shared;
  const long long first_shared =
      ((long long)share.row * all.num_kv_heads + share.kv_head) * shared_sums.num_splits;
  for (int query = threadIdx.x / 32; query < share.num_queries; query += WARPS) {
    RunningSoftmax softmax;
    float value[DIMS] = {};
#pragma unroll 8
    for (int s = 0; s < share.num_shared + share.num_splits; s++) {
      const bool is_shared = s < share.num_shared;
      const long long at = is_shared ? (first_shared + s) * each + share.tile * QUERIES + query
                                     : (first + s) * QUERIES + query;
      const float* partial = is_shared ? shared_sums.partial : all.partial;
      const float* stats = is_shared ? shared_sums.stats : all.stats;
      const float2 stat = __ldcg(reinterpret_cast<const float2*>(stats) + at);
      float part[DIMS];
#pragma unroll
      for (int j = 0; j < DIMS; j++)
        part[j] = __ldcg(partial + at * HEAD_DIM + threadIdx.x % 32 + 32 * j);
      const float factor = softmax.raise(stat.x);
      const float weight = softmax.weight(stat.x);
      softmax.sum = fmaf(weight, stat.y, softmax.sum);
#pragma unroll
      for (int j = 0; j < DIMS; j++) value[j] = fmaf(weight, part[j], __fmul_rn(value[j], factor));
    }
#pragma unroll
    for (int j = 0; j < DIMS; j++)
      share.emit(query, threadIdx.x % 32 + 32 * j, value[j] / softmax.sum);
  }
}
