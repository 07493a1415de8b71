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

// The same of pairs of 16-bit numbers.
template <int COUNT>
__device__ __forceinline__ void load_cached(unsigned (&to)[COUNT], const bfloat16* from) {
  if constexpr (COUNT % 4 == 0) {
#pragma unroll
    for (int i = 0; i < COUNT; i += 4)
      *reinterpret_cast<uint4*>(to + i) = __ldcg(reinterpret_cast<const uint4*>(from + 2 * i));
  } else if constexpr (COUNT % 2 == 0) {
#pragma unroll
    for (int i = 0; i < COUNT; i += 2)
      *reinterpret_cast<uint2*>(to + i) = __ldcg(reinterpret_cast<const uint2*>(from + 2 * i));
  } else {
#pragma unroll
    for (int i = 0; i < COUNT; i++) to[i] = __ldcg(reinterpret_cast<const unsigned*>(from) + i);
  }
}

// What this thread, and those it has met, wrote is seen by who acquires what it counts afterwards, and the
// other way round.
__device__ __forceinline__ void fence_counting() {
  asm volatile("fence.acq_rel.gpu;" ::: "memory");
}
// What others wrote before they counted is seen after it.
__device__ __forceinline__ int acquired(const int* from) {
  int value;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}

// Whether this block is the last of its tile to get here; what the others wrote is then visible.
__device__ __forceinline__ bool is_last(int* counter, int expected) {
  __shared__ bool last;
  fence_counting();
  __syncthreads();
  if (threadIdx.x == 0) {
    last = atomicAdd(counter, 1) == expected - 1;
    if (last) *counter = 0;
  }
  __syncthreads();
  fence_counting();
  return last;
}

// What pieces of a shared prefix come to for a query, by a warp: asked for when it is made, AT_ONCE of it.
template <typename Share>
struct QueryPieces {
  static constexpr int DIMS = Share::DIM / 32, AT_ONCE = 8;

  const Share& share;
  int num_pieces, number;  // of the query, for a K/V head
  float2 stat;             // of piece ``lane``
  alignas(16) unsigned parts[AT_ONCE][(DIMS + 1) / 2];

  __device__ QueryPieces(const Share& share, int query, bool are_wanted) : share(share) {
    num_pieces = are_wanted ? pieces_of(share.num_shared, share.all.shared.num_pieces) : 0;
    number = (share.row * share.all.width * Share::QUERIES_OF_TOKEN) + share.tile * QUERIES + query;
    stat = make_float2(NOTHING, 0.f);
    if (threadIdx.x % 32 < num_pieces)
      stat = __ldcg(
          reinterpret_cast<const float2*>(share.all.shared.stats) + place(threadIdx.x % 32));
    if (num_pieces) load_parts(0);
  }
  __device__ long long place(int piece) const {
    const SharedSums& shared = share.all.shared;
    return (long long)(share.kv_head * shared.num_pieces + piece) * shared.num_queries + number;
  }
  __device__ void load_parts(int first) {
    const bfloat16* from = share.all.shared.partial + threadIdx.x % 32 * DIMS;
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++)
      if constexpr (DIMS % 2 == 0)
        load_cached(parts[i], from + place(min(first + i, num_pieces - 1)) * Share::DIM);
  }
  // To the ``sum`` and weighed ``value`` of the row's own scores under their ``maximum``.
  __device__ void add_to(float maximum, float& sum, float (&value)[DIMS]) {
    if (num_pieces == 0) return;
    const float highest = fmaxf(maximum, warp_maximum(stat.x));
    const float own = exp2f(maximum - highest);
    const float weight = exp2f(stat.x - highest) * stat.y;
    sum = sum * own + warp_sum(weight);
#pragma unroll
    for (int j = 0; j < DIMS; j++) value[j] *= own;
    for (int first = 0;;) {
#pragma unroll
      for (int i = 0; i < AT_ONCE; i++) {
        const float w = __shfl_sync(0xffffffffu, weight, min(first + i, 31));
        if (first + i >= num_pieces) continue;
#pragma unroll
        for (int j = 0; j < DIMS / 2; j++) {
          const float2 pair = __bfloat1622float2(*reinterpret_cast<__nv_bfloat162*>(&parts[i][j]));
          value[2 * j] = fmaf(w, pair.x, value[2 * j]);
          value[2 * j + 1] = fmaf(w, pair.y, value[2 * j + 1]);
        }
      }
      first += AT_ONCE;
      if (first >= num_pieces) break;
      load_parts(first);
    }
  }
};

// Joins what was left of one query of a tile that has one split, by a warp, and what is shared.
template <typename Share>
__device__ void merge_one(const Share& share, int query) {
  constexpr int DIMS = Share::DIM / 32;
  QueryPieces<Share> pieces(share, query, true);
  const long long here = share.number() * share.all.most_splits * QUERIES + query;
  const float2 stat = __ldcg(reinterpret_cast<const float2*>(share.all.stats) + here);
  alignas(16) float value[DIMS];
  load_cached<DIMS>(value, share.all.partial + here * Share::DIM + share.first_dim());
  alignas(16) typename Share::Number gates[DIMS];
  share.load_gates(query, gates);
  float sum = stat.y;
  pieces.add_to(stat.x, sum, value);
  share.emit(query, value, sum, gates);
}

// Joins the splits of one query of the tile, by a warp, in order, 32 at a time; then what is shared.
template <typename Share>
__device__ void merge_query(const Share& share, int query) {
  using T = typename Share::Number;
  constexpr int DIMS = Share::DIM / 32;  // of a lane: DIMS * lane and on
  const int lane = threadIdx.x % 32;
  // counted from position 0, so that it does not show where a window starts
  const int begin = share.first_split, end = begin + share.num_splits;
  const long long here = (share.number() * share.all.most_splits - begin) * QUERIES + query;
  const auto stat_of = [&](int s) {
    if (s >= end || s < begin) return make_float2(NOTHING, 0.f);
    return __ldcg(reinterpret_cast<const float2*>(share.all.stats) + here + (long long)s * QUERIES);
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
    const float weight = stat.x <= NOTHING ? 0.f : exp2f(__fsub_rn(stat.x, maximum));
    sum = __fadd_rn(sum, warp_sum(__fmul_rn(weight, stat.y)));
    const int last = min(end, base + 32);
#pragma unroll 8
    for (int s = max(base, begin); s < last; s++) {
      const float w = __shfl_sync(0xffffffffu, weight, s - base);
      alignas(16) float part[DIMS];
      load_cached<DIMS>(
          part, share.all.partial + (here + (long long)s * QUERIES) * Share::DIM + lane * DIMS);
#pragma unroll
      for (int j = 0; j < DIMS; j++) value[j] = fmaf(w, part[j], value[j]);
    }
  }
  QueryPieces<Share>(share, query, true).add_to(maximum, sum, value);
  share.emit(query, value, sum, gates);
}

// Joins the parts of a split, a warp for each query: into the output if ``is_whole``, with what is shared, or
// where the merge finds it.
template <int WARPS, int PARTS, typename Share, typename Result>
__device__ void leave(const Share& share, const Result& result, long long here, bool is_whole) {
  using T = typename Share::Number;
  constexpr int DIMS = Share::DIM / 32;
  for (int query = threadIdx.x / 32; query < share.num_queries; query += WARPS) {
    alignas(16) T gates[DIMS];
    if (is_whole) share.load_gates(query, gates);
    QueryPieces<Share> pieces(share, query, is_whole);
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
      pieces.add_to(maximum, sum, value);
      share.emit(query, value, sum, gates);
    } else {
      store(share.all.partial + (here * QUERIES + query) * Share::DIM + share.first_dim(), value);
      if (threadIdx.x % 32 == 0)
        reinterpret_cast<float2*>(share.all.stats)[here * QUERIES + query] = make_float2(maximum, sum);
    }
  }
}

// Whether what the one split of a tile lacks is ready: asked by the last warp, which is done first, and
// known to all of the block after the next barrier.
template <typename Share>
__device__ __forceinline__ void ask_for_pieces(const Share& share, int* counter, bool& are_ready) {
  if (threadIdx.x == blockDim.x - 1) {
    are_ready = acquired(counter) == share.num_counted() - 1;
    if (are_ready) *counter = 0;
  }
}

// Attends to a block's splits and leaves them; returns whether the block is to merge the tile. ``shared``: as
// much as Tiles take, ``stats`` of each of their parts.
template <typename Tiles, int WARPS, typename Share>
__device__ bool attend_to_splits(
    Share& share, const typename Tiles::Ahead& ahead, unsigned char* shared,
    float (*stats)[QUERIES][2]) {
  __shared__ bool are_ready;
  share.ask();
  if (share.is_empty()) return false;
  const long long number = share.number();
  int* counter = share.all.counters + number;
  const bool may_wait = share.all.shared.first_rows && share.num_shared;
  bool is_whole = share.num_splits == 1;
  for (int split = share.begin_split; split < share.end_split; split++) {
    share.take(split);
    const auto result = Tiles::run(share, ahead, shared, stats);
    if (is_whole && may_wait) ask_for_pieces(share, counter, are_ready);
    __syncthreads();
    if (is_whole && may_wait) is_whole = are_ready;
    const long long here = number * share.all.most_splits + split - share.first_split;
    leave<WARPS, Tiles::PARTS>(share, result, here, is_whole);
    __syncthreads();
  }
  if (is_whole) return false;
  const int num_counted = share.num_counted();
  return num_counted == 1 || is_last(counter, num_counted);
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
