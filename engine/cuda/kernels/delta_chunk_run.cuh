// The recurrence over a long window's chunks, whose terms delta_chunks.cuh has prepared, and the
// gated norm. A block has a head of a row, a warpgroup 64 rows of its state in registers, as sums of
// products; they are operands, rounded to float16, where they are read.

template <typename S>
struct alignas(1024) ChunkStage {  // a chunk's terms in shared memory, in swizzled tiles of 64 x 64
  __half w[CHUNK * S::DK], q[CHUNK * S::DK], k[CHUNK * S::DK], scores[CHUNK * CHUNK];
  float factors[2 * CHUNK];

  // Where eight numbers of a line go: number ``piece`` of line t.
  __device__ static int place(int t, int piece) {
    return piece / 8 * CHUNK * 64 + swizzled(t, piece % 8);
  }
};
template <typename S>
struct ChunkRunRoom {
  static constexpr int READ = S::DV + 4;
  ChunkStage<S> stages[2];
  float read[CHUNK * READ];
};

template <int N>
__device__ __forceinline__ void finish_sums(float (&sums)[N][4]) {
  finish_products(reinterpret_cast<float(&)[4 * N]>(sums));
}

template <typename S>
struct ChunkState {  // rows 16 warp + lane / 4 and 8 further on, columns 8 n + 2 (lane % 4) and the next
  float s[S::DK / 8][4];

  __device__ static int row(int half) {
    return threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + 8 * half;
  }
  __device__ static int column(int n) { return 8 * n + 2 * (threadIdx.x % 4); }

  __device__ void load(const float* state) {
#pragma unroll
    for (int n = 0; n < S::DK / 8; n++)
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const float2 pair =
            *reinterpret_cast<const float2*>(state + row(half) * S::DK + column(n));
        s[n][2 * half] = pair.x;
        s[n][2 * half + 1] = pair.y;
      }
  }
  __device__ void store(float* state) const {
#pragma unroll
    for (int n = 0; n < S::DK / 8; n++)
#pragma unroll
      for (int half = 0; half < 2; half++)
        *reinterpret_cast<float2*>(state + row(half) * S::DK + column(n)) =
            make_float2(s[n][2 * half], s[n][2 * half + 1]);
  }
  __device__ void capture(
      const DeltaPools<S>& pools, const DeltaRow& row, int steps, int head) const {
    for (int c = 0; c < row.num_captures; c++)
      if (row.captures[2 * c] == steps) store(pools.state(row.captures[2 * c + 1], head));
  }
  // The accepted drafts of the last window, as fold_records adds them.
  __device__ void fold(const DeltaPools<S>& pools, const DeltaRow& from, int head) {
    const long long slot = pools.index(from.source, head) * S::DRAFTS;
    capture(pools, from, 0, head);
#pragma unroll 1
    for (int t = 0; t < from.fold; t++) {
      const float* keys = pools.keys + (slot + t) * S::DK;
      const float* deltas = pools.deltas + (slot + t) * S::DV;
      const float decay = pools.decays[slot + t];
#pragma unroll
      for (int n = 0; n < S::DK / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
          s[n][e] =
              fmaf(keys[column(n) + e % 2], deltas[row(e / 2)], __fmul_rn(s[n][e], decay));
      capture(pools, from, t + 1, head);
    }
  }
};

// Grid: (value heads, rows); DV / 16 warps, which are DV / 64 warpgroups.
template <typename S>
__device__ void run_chunks(
    const DeltaPrompt<S>& all, const ChunkTerms<S>& from, typename S::T* out) {
  using T = typename S::T;
  using Room = ChunkRunRoom<S>;
  using Stage = ChunkStage<S>;
  constexpr int WARPS = S::DV / 16, THREADS = 32 * WARPS, TOKENS = CHUNK / WARPS;
  constexpr int TILE = CHUNK * 64;
  extern __shared__ __align__(1024) unsigned char shared[];
  Room& room = *reinterpret_cast<Room*>(shared);
  const int head = blockIdx.x, number = blockIdx.y;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int key_head = head / (S::HV / S::HK), member = head % (S::HV / S::HK);
  const DeltaRow row(all.rows, number, all.row_columns);
  const float scale = rsqrtf((float)S::DK);

  auto fetch = [&](int chunk) {
    Stage& stage = room.stages[chunk % 2];
    const long long here = from.of_value_head(number, chunk, head);
    const long long keys = from.of_key_head(number, chunk, key_head);
    for (int i = threadIdx.x; i < CHUNK * S::DK / 8; i += THREADS) {
      const int to = Stage::place(i / (S::DK / 8), i % (S::DK / 8));
      copy_async(stage.w + to, from.w + here * CHUNK * S::DK + i * 8);
      copy_async(stage.q + to, from.q + keys * CHUNK * S::DK + i * 8);
      copy_async(stage.k + to, from.k + keys * CHUNK * S::DK + i * 8);
    }
    for (int i = threadIdx.x; i < CHUNK * CHUNK / 8; i += THREADS)
      copy_async(
          stage.scores + Stage::place(i / (CHUNK / 8), i % (CHUNK / 8)),
          from.scores + here * CHUNK * CHUNK + i * 8);
    if (threadIdx.x < 2 * CHUNK / 4)
      copy_async(
          stage.factors + 4 * threadIdx.x, from.factors + here * 2 * CHUNK + 4 * threadIdx.x);
  };
  uint4 u[PARTS];
  auto load_u = [&](int chunk) {
    const __half* terms = from.u + from.of_value_head(number, chunk, head) * CHUNK * S::DV;
#pragma unroll
    for (int p = 0; p < PARTS; p++)
      u[p] = *reinterpret_cast<const uint4*>(terms + ((warp * PARTS + p) * 32 + lane) * 8);
  };

  ChunkBounds bounds(row, 0);
  if (bounds.begin < bounds.end) {
    fetch(0);
    load_u(0);
  }
  commit_copies();
  ChunkState<S> state;
  if (row.fresh) {
#pragma unroll
    for (int n = 0; n < S::DK / 8; n++)
#pragma unroll
      for (int e = 0; e < 4; e++) state.s[n][e] = 0.f;
  } else {
    state.load(all.pools.state(row.source, head));
  }
  state.fold(all.pools, row, head);

  float weight[S::DV / 32];  // of the norm; a lane has pairs 2 lane + 64 j
#pragma unroll
  for (int j = 0; j < S::DV / 32; j++) weight[j] = all.weights.norm[2 * lane + j / 2 * 64 + j % 2];
  const T* gates = all.gate.of(number, key_head, member, all.columns + 9);

#pragma unroll 1
  for (int chunk = 0; bounds.begin < bounds.end; chunk++) {
    const ChunkBounds next(row, chunk + 1);
    wait_for_copies<0>();
    publish_to_products();
    __syncthreads();
    if (next.begin < next.end) fetch(chunk + 1);
    commit_copies();
    const Stage& stage = room.stages[chunk % 2];
    __nv_bfloat162 gate[TOKENS][S::DV / 64];
#pragma unroll
    for (int i = 0; i < TOKENS; i++) {
      const int t = min(bounds.begin + i * WARPS + warp, bounds.end - 1);
#pragma unroll
      for (int j = 0; j < S::DV / 64; j++)
        gate[i][j] = *reinterpret_cast<const __nv_bfloat162*>(
            gates + t * all.gate.time + 2 * lane + 64 * j);
    }

    float delta[2 * PARTS][4], y[2 * PARTS][4] = {};  // rows as the state's, columns tokens
#pragma unroll
    for (int p = 0; p < PARTS; p++) {
      const unsigned pairs[4] = {u[p].x, u[p].y, u[p].z, u[p].w};
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const float2 pair = unpacked_halves(pairs[i]);
        delta[2 * p + i / 2][i % 2 * 2] = pair.x;
        delta[2 * p + i / 2][i % 2 * 2 + 1] = pair.y;
      }
    }
    if (next.begin < next.end) load_u(chunk + 1);
    unsigned read[S::DK / 16][4];
#pragma unroll
    for (int d = 0; d < S::DK / 16; d++)
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const float(&from_state)[4] = state.s[2 * d + i / 2];
        read[d][i] = packed_halves(from_state[i % 2 * 2], from_state[i % 2 * 2 + 1]);
      }
    begin_products();
#pragma unroll
    for (int d = 0; d < S::DK / 16; d++) {
      const int at = d / 4 * TILE + d % 4 * 16;
      warpgroup_halves_by_rows(delta[0], read[d], tile_descriptor(stage.w + at, 16));
      warpgroup_halves_by_rows(y[0], read[d], tile_descriptor(stage.q + at, 16));
    }
    finish_sums(delta);
    finish_sums(y);

    const float whole = stage.factors[CHUNK - 1];
    unsigned added[2][PARTS][4];  // delta for y; delta decayed to the chunk's end for the state
#pragma unroll
    for (int n = 0; n < 2 * PARTS; n++) {
      const int token = 8 * n + 2 * (lane % 4);
      const float2 factor = *reinterpret_cast<const float2*>(stage.factors + token);
      const float2 left = *reinterpret_cast<const float2*>(stage.factors + CHUNK + token);
#pragma unroll
      for (int half = 0; half < 2; half++) {
        float* pair = delta[n] + 2 * half;
        y[n][2 * half] *= factor.x;
        y[n][2 * half + 1] *= factor.y;
        added[0][n / 2][n % 2 * 2 + half] = packed_halves(pair[0], pair[1]);
        added[1][n / 2][n % 2 * 2 + half] = packed_halves(pair[0] * left.x, pair[1] * left.y);
      }
    }
#pragma unroll
    for (int n = 0; n < S::DK / 8; n++)
#pragma unroll
      for (int e = 0; e < 4; e++) state.s[n][e] *= whole;
    begin_products();
#pragma unroll
    for (int p = 0; p < PARTS; p++) {  // sixteen tokens that are summed over
      warpgroup_halves_by_rows(y[0], added[0][p], tile_descriptor(stage.scores + p * 16, 16));
      warpgroup_halves(
          state.s[0], added[1][p], tile_descriptor(stage.k + p * 16 * 64, TILE * 2),
          Columns<S::DK>());
    }
    finish_sums(y);
    finish_sums(state.s);
#pragma unroll
    for (int n = 0; n < 2 * PARTS; n++)
#pragma unroll
      for (int e = 0; e < 4; e++)
        room.read[(8 * n + 2 * (lane % 4) + e % 2) * Room::READ + state.row(e / 2)] =
            y[n][e] * scale;
    state.capture(all.pools, row, row.fold + bounds.end, head);
    __syncthreads();

    // the gated norm; tokens after the last are worked on as well, for sums of several to overlap
    float2 x[TOKENS][S::DV / 64];
    float squares[TOKENS];
#pragma unroll
    for (int i = 0; i < TOKENS; i++) {
      const float* line = room.read + (i * WARPS + warp) * Room::READ + 2 * lane;
      squares[i] = 0.f;
#pragma unroll
      for (int j = 0; j < S::DV / 64; j++) {
        x[i][j] = *reinterpret_cast<const float2*>(line + 64 * j);
        squares[i] = fmaf(x[i][j].x, x[i][j].x, fmaf(x[i][j].y, x[i][j].y, squares[i]));
      }
    }
#pragma unroll
    for (int offset = 16; offset; offset >>= 1)
#pragma unroll
      for (int i = 0; i < TOKENS; i++)
        squares[i] += __shfl_xor_sync(0xffffffffu, squares[i], offset);
#pragma unroll
    for (int i = 0; i < TOKENS; i++) {
      const int t = bounds.begin + i * WARPS + warp;
      const float factor = rsqrtf(squares[i] / S::DV + all.weights.epsilon);
      T* to = out + (((long long)number * all.width + t) * S::HV + head) * S::DV + 2 * lane;
#pragma unroll
      for (int j = 0; j < S::DV / 64; j++) {
        const float2 z = __bfloat1622float2(gate[i][j]);
        const __nv_bfloat162 gated = __floats2bfloat162_rn(
            x[i][j].x * factor * weight[2 * j] * __fdividef(z.x, 1.f + __expf(-z.x)),
            x[i][j].y * factor * weight[2 * j + 1] * __fdividef(z.y, 1.f + __expf(-z.y)));
        if (t < bounds.end) *reinterpret_cast<__nv_bfloat162*>(to + 64 * j) = gated;
      }
    }
    bounds = next;
  }
  state.store(all.pools.state(row.target, head));
  keep_inputs(all, row, number, head);
}
