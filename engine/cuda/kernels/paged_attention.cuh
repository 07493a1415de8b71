// Attention of a window of new tokens over the pages of their rows, K/V write included.
//
//   out[b, t, h] = softmax_p(scale q[b, h, t] . k[p]) v[p],   p <= start[b] + t
//
// Grid: (any, K/V heads, rows x query tiles); a row's splits are dealt out to the blocks of the first
// dimension, one after another, as many to each. A query tile is 16 of the width x GROUP queries
// that share a K/V head, token by token. A split is SPLIT consecutive positions, the first twice as many,
// counted from position 0 whatever the batch holds: so a query's result, bitwise, depends on its own row
// alone, not on the batch, nor on which other tokens are in its window (a split that is masked for a
// query adds nothing to it). The last block of a tile to finish merges its splits, in order. Rows that
// share a prefix find sums over it ready (shared_prefix.cuh); these do depend on the batch.
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

// What pieces of a shared prefix come to for the queries of a tile, in shared memory: on its way there before
// anything else, where ROOM is enough.
template <typename Share, int ROOM>
struct HeldPieces {
  static constexpr int CHUNKS = Share::DIM / 8, ROWS = 32 / CHUNKS;  // of 16 bytes; of parts a warp copies at once

  const Share& share;
  const int num_pieces;
  const unsigned char* room;  // query by query, piece by piece: first parts, then stats; null if not held

  __device__ HeldPieces(const Share& share, unsigned char* to)
      : share(share), num_pieces(pieces_of(share.num_shared, share.all.shared.num_pieces)), room(nullptr) {
    const int count = share.num_queries * num_pieces;
    if (ROOM == 0 || share.num_splits > 1 || count * (Share::DIM * 2 + 8) > ROOM) return;
    room = to;
    const int lane = threadIdx.x % 32;
    for (int i = threadIdx.x / 32 * ROWS + lane / CHUNKS; i < count; i += blockDim.x / 32 * ROWS)
      copy_async(
          to + (i * CHUNKS + lane % CHUNKS) * 16, part(i / num_pieces, i % num_pieces) + lane % CHUNKS * 8);
    for (int i = threadIdx.x; i < count; i += blockDim.x)
      copy_async_8(to + count * CHUNKS * 16 + i * 8, stat(i / num_pieces, i % num_pieces));
    commit_copies();
  }
  __device__ long long place(int query, int piece) const {
    const SharedSums& shared = share.all.shared;
    const int number = share.row * share.all.width * Share::QUERIES_OF_TOKEN + share.tile * QUERIES + query;
    return (long long)(share.kv_head * shared.num_pieces + piece) * shared.num_queries + number;
  }
  __device__ const bfloat16* part(int query, int piece) const {
    return share.all.shared.partial + place(query, piece) * Share::DIM;
  }
  __device__ const float2* stat(int query, int piece) const {
    return reinterpret_cast<const float2*>(share.all.shared.stats) + place(query, piece);
  }
  __device__ const unsigned char* held_part(int query, int piece) const {
    return room + (query * num_pieces + piece) * CHUNKS * 16;
  }
  __device__ float2 held_stat(int query, int piece) const {
    const int count = share.num_queries * num_pieces;
    return *reinterpret_cast<const float2*>(
        room + count * CHUNKS * 16 + (query * num_pieces + piece) * 8);
  }
};

// Those of a query, by a warp: where they are not held AT_ONCE are asked for when it is made.
template <typename Held>
struct QueryPieces {
  static constexpr int DIMS = Held::CHUNKS / 4, AT_ONCE = 8;

  const Held& all;
  const int query, num_pieces;
  float2 stat;  // of piece ``lane``
  alignas(16) unsigned parts[AT_ONCE][(DIMS + 1) / 2];

  __device__ QueryPieces(const Held& all, int query, bool are_wanted)
      : all(all), query(query), num_pieces(are_wanted ? all.num_pieces : 0) {
    const int lane = threadIdx.x % 32;
    stat = make_float2(NOTHING, 0.f);
    if (lane < num_pieces) stat = all.room ? all.held_stat(query, lane) : __ldcg(all.stat(query, lane));
    if (num_pieces && !all.room) load_parts(0);
  }
  __device__ void load_parts(int first) {
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++)
      if constexpr (DIMS % 2 == 0)
        load_cached(
            parts[i], all.part(query, min(first + i, num_pieces - 1)) + threadIdx.x % 32 * DIMS);
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
    if (all.room) {
      for (int piece = 0; piece < num_pieces; piece++) {
        alignas(16) unsigned part[(DIMS + 1) / 2];
        load(part, reinterpret_cast<const unsigned*>(all.held_part(query, piece)) + threadIdx.x % 32 * (DIMS / 2));
        add(__shfl_sync(0xffffffffu, weight, piece), part, value);
      }
      return;
    }
    for (int first = 0;;) {
#pragma unroll
      for (int i = 0; i < AT_ONCE; i++) {
        const float w = __shfl_sync(0xffffffffu, weight, min(first + i, 31));
        if (first + i < num_pieces) add(w, parts[i], value);
      }
      first += AT_ONCE;
      if (first >= num_pieces) break;
      load_parts(first);
    }
  }
  __device__ static void add(float weight, const unsigned (&part)[(DIMS + 1) / 2], float (&value)[DIMS]) {
#pragma unroll
    for (int j = 0; j < DIMS / 2; j++) {
      const float2 pair = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&part[j]));
      value[2 * j] = fmaf(weight, pair.x, value[2 * j]);
      value[2 * j + 1] = fmaf(weight, pair.y, value[2 * j + 1]);
    }
  }
};

// Joins the splits of one query of the tile, by a warp, in order, 32 at a time; then what is shared.
template <typename Share, typename Held>
__device__ void merge_query(const Share& share, const Held& held, int query) {
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
  QueryPieces<Held>(held, query, true).add_to(maximum, sum, value);
  share.emit(query, value, sum, gates);
}

// Joins the parts of a split, a warp for each query: into the output if ``is_whole``, with what is shared, or
// where the merge finds it.
template <int WARPS, int PARTS, typename Share, typename Held, typename Result>
__device__ void leave(
    const Share& share, const Held& held, const Result& result, long long here, bool is_whole) {
  using T = typename Share::Number;
  constexpr int DIMS = Share::DIM / 32;
  for (int query = threadIdx.x / 32; query < share.num_queries; query += WARPS) {
    alignas(16) T gates[DIMS];
    if (is_whole) share.load_gates(query, gates);
    QueryPieces<Held> pieces(held, query, is_whole);
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

template <
    typename Tiles, typename T, int HEAD_DIM, int GROUP, int BLOCK_SIZE, int SPLIT, int WARPS,
    int ROOM, typename Source>
__device__ void paged_attention(
    const PagedWindow<T, Source>& all, unsigned char* shared, float (*stats)[QUERIES][2],
    unsigned char* room) {
  Share<T, HEAD_DIM, GROUP, BLOCK_SIZE, SPLIT, Source> share(all);
  const typename Tiles::Ahead ahead(share);
  share.ask();
  if (share.is_empty()) return;
  const HeldPieces<decltype(share), ROOM> held(share, room);
  const long long number = share.number();
  const bool is_whole = share.num_splits == 1;
  for (int split = share.begin_split; split < share.end_split; split++) {
    share.take(split);
    const auto result = Tiles::run(share, ahead, shared, stats);
    __syncthreads();
    const long long here = number * all.most_splits + split - share.first_split;
    leave<WARPS, Tiles::PARTS>(share, held, result, here, is_whole);
    __syncthreads();
  }
  if (is_whole) return;
  const int expected = share.num_blocks();
  if (expected > 1 && !is_last(all.counters + number, expected)) return;
  for (int query = threadIdx.x / 32; query < share.num_queries; query += WARPS)
    merge_query(share, held, query);
}
