// Attention of a window of new tokens over the pages of their rows, K/V write included.
//
//   out[b, t, h] = softmax_p(scale q[b, h, t] . k[p]) v[p],   p <= start[b] + t
//
// Grid: (any, K/V heads, rows x query tiles, after ``before`` others); a row's splits are dealt out to the blocks of the first
// dimension, one after another, as many to each. A query tile is 16 of the width x GROUP queries
// that share a K/V head, token by token. A split is SPLIT consecutive positions, the first twice as many,
// counted from position 0 whatever the batch holds: so a query's result, bitwise, depends on its own row
// alone, not on the batch, nor on which other tokens are in its window (a split that is masked for a
// query adds nothing to it). The last block of a tile to finish merges its splits, in order. Rows that
// share a prefix find sums over it ready (shared_prefix.cuh), or other blocks of the launch make them
// (prefix_attention.cuh); these do depend on the batch.
//
//   position 0            2 SPLIT       3 SPLIT         end = start + length
//   |------- split 0 -------|--- split 1 ---|--- split 2 ...---|
//                                              ^ start: written here, by the blocks that read them

__device__ __forceinline__ float warp_maximum(float value) {
#pragma unroll
  for (int offset = 16; offset; offset >>= 1)
    value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, offset));
  return value;
}

// What other blocks wrote: past L1.
template <int COUNT>
__device__ __forceinline__ void load_cached(float (&to)[COUNT], const float* from) {
  if constexpr (COUNT % 4 == 0) {
#pragma unroll
    for (int i = 0; i < COUNT; i += 4)
      *reinterpret_cast<float4*>(to + i) = __ldcg(reinterpret_cast<const float4*>(from + i));
  } else {
#pragma unroll
    for (int i = 0; i < COUNT; i++) to[i] = __ldcg(from + i);
  }
}

template <int COUNT>
__device__ __forceinline__ void load_cached(float (&to)[COUNT], const bfloat16* from) {
  static_assert(COUNT % 2 == 0 || COUNT < 8);
  if constexpr (COUNT % 2) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) to[i] = static_cast<float>(from[i]);
  } else {
    unsigned pairs[COUNT / 2];
    if constexpr (COUNT == 8) {
      const uint4 all = __ldcg(reinterpret_cast<const uint4*>(from));
      pairs[0] = all.x, pairs[1] = all.y, pairs[2] = all.z, pairs[3] = all.w;
    } else {
#pragma unroll
      for (int i = 0; i < COUNT / 2; i++) pairs[i] = __ldcg(reinterpret_cast<const unsigned*>(from) + i);
    }
#pragma unroll
    for (int i = 0; i < COUNT / 2; i++) {
      const float2 pair = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(pairs + i));
      to[2 * i] = pair.x, to[2 * i + 1] = pair.y;
    }
  }
}

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

// Joins what was left of one query of the tile, by a warp: pieces of what is shared first, then splits in
// order, 32 at a time.
template <typename Share>
__device__ void merge_query(const Share& share, int query) {
  using T = typename Share::Number;
  constexpr int DIMS = Share::DIM / 32;  // of a lane: DIMS * lane and on
  const int lane = threadIdx.x % 32;
  const SharedSums& shared = share.all.shared;
  const int each = share.all.width * Share::QUERIES_OF_TOKEN;
  // counted from position 0 where nothing is shared, so that it does not show where a window starts
  const int num_pieces = pieces_of(share.num_shared, shared.num_pieces);
  const int begin = share.num_shared ? 0 : share.first_split;
  const int own_begin = share.num_shared ? num_pieces : share.first_split;
  const int end = own_begin + share.num_splits;
  const long long own = (share.number() * share.all.most_splits - own_begin) * QUERIES + query;
  const long long others =
      ((long long)share.row * share.all.num_kv_heads + share.kv_head) * shared.num_pieces * each +
      share.tile * QUERIES + query;
  const auto stat_of = [&](int s) {
    if (s >= end || s < begin) return make_float2(NOTHING, 0.f);
    const float* stats = s < num_pieces ? shared.stats : share.all.stats;
    const long long place = s < num_pieces ? others + (long long)s * each : own + (long long)s * QUERIES;
    return __ldcg(reinterpret_cast<const float2*>(stats) + place);
  };
  alignas(16) T gates[DIMS];
  share.load_gates(query, gates);
  const int chunk = begin / 32 * 32;
  const float2 first_stat = stat_of(chunk + lane);
  float maximum = first_stat.x;
  for (int s = chunk + 32 + lane; s < end; s += 32) maximum = fmaxf(maximum, stat_of(s).x);
  maximum = warp_maximum(maximum);
  alignas(16) float value[DIMS] = {};
  float sum = 0.f;
  for (int base = chunk; base < end; base += 32) {
    const float2 stat = base == chunk ? first_stat : stat_of(base + lane);
    float weight = stat.x <= NOTHING ? 0.f : exp2f(__fsub_rn(stat.x, maximum));
    const float weighed = __fmul_rn(weight, stat.y);
    sum = __fadd_rn(sum, warp_sum(weighed));
    if (base + lane < num_pieces) weight = weighed;  // of what is normalised
    const int last = min(end, base + 32), last_piece = min(last, num_pieces);
    int s = max(base, begin);
    const auto add = [&](const float (&part)[DIMS]) {
      const float w = __shfl_sync(0xffffffffu, weight, s - base);
#pragma unroll
      for (int j = 0; j < DIMS; j++) value[j] = fmaf(w, part[j], value[j]);
    };
#pragma unroll 8
    for (; s < last_piece; s++) {
      alignas(16) float part[DIMS];
      load_cached<DIMS>(part, shared.partial + (others + (long long)s * each) * Share::DIM + lane * DIMS);
      add(part);
    }
#pragma unroll 8
    for (; s < last; s++) {
      alignas(16) float part[DIMS];
      load_cached<DIMS>(
          part, share.all.partial + (own + (long long)s * QUERIES) * Share::DIM + lane * DIMS);
      add(part);
    }
  }
  share.emit(query, value, sum, gates);
}

// Joins the parts of a split, a warp for each query: into the output if nothing else is seen, or where the
// merge finds it.
template <int WARPS, int PARTS, typename Share, typename Result>
__device__ void leave(const Share& share, const Result& result, long long here, bool is_whole) {
  using T = typename Share::Number;
  constexpr int DIMS = Share::DIM / 32;
  for (int query = threadIdx.x / 32; query < share.num_queries; query += WARPS) {
    alignas(16) T gates[DIMS];
    if (is_whole) share.load_gates(query, gates);
    float maximum = NOTHING, sum = 0.f;
    alignas(16) float value[DIMS] = {};
#pragma unroll
    for (int p = 0; p < PARTS; p++) maximum = fmaxf(maximum, result.stats[p][query][0]);
#pragma unroll
    for (int p = 0; p < PARTS; p++) {
      const float factor = exp2f(result.stats[p][query][0] - maximum);
      sum = fmaf(factor, result.stats[p][query][1], sum);
      alignas(16) float part[DIMS];
      load(part, result.values[p] + query * result.stride + share.first_dim());
#pragma unroll
      for (int j = 0; j < DIMS; j++) value[j] = fmaf(factor, part[j], value[j]);
    }
    if (is_whole) {
      share.emit(query, value, sum, gates);
    } else {
      store(share.all.partial + (here * QUERIES + query) * Share::DIM + share.first_dim(), value);
      if (threadIdx.x % 32 == 0)
        reinterpret_cast<float2*>(share.all.stats)[here * QUERIES + query] = make_float2(maximum, sum);
    }
  }
}

// Attends to a block's splits and leaves them; returns whether the block is to merge the tile. ``shared``: as
// much as Tiles take, ``stats`` of each of their parts.
template <typename Tiles, int WARPS, typename Share>
__device__ bool attend_to_splits(
    Share& share, const typename Tiles::Ahead& ahead, unsigned char* shared,
    float (*stats)[QUERIES][2]) {
  share.ask();
  if (share.is_empty()) return false;
  const long long number = share.number();
  const bool is_whole = share.num_splits == 1 && share.num_shared == 0;
  for (int split = share.begin_split; split < share.end_split; split++) {
    share.take(split);
    const auto result = Tiles::run(share, ahead, shared, stats);
    __syncthreads();
    const long long here = number * share.all.most_splits + split - share.first_split;
    leave<WARPS, Tiles::PARTS>(share, result, here, is_whole);
    __syncthreads();
  }
  if (is_whole) return false;
  const int num_leaving = share.num_leaving();
  return num_leaving == 1 || is_last(share.all.counters + number, num_leaving);
}

template <
    typename Tiles, typename T, int HEAD_DIM, int GROUP, int BLOCK_SIZE, int SPLIT, int WARPS,
    typename Source>
__device__ void paged_attention(
    const PagedWindow<T, Source>& all, unsigned char* shared, float (*stats)[QUERIES][2]) {
  Share<T, HEAD_DIM, GROUP, BLOCK_SIZE, SPLIT, Source> share(all);
  const typename Tiles::Ahead ahead(share);
  if (!attend_to_splits<Tiles, WARPS>(share, ahead, shared, stats)) return;
  for (int query = threadIdx.x / 32; query < share.num_queries; query += WARPS)
    merge_query(share, query);
}
