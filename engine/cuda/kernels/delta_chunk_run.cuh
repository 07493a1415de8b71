// The recurrence over a long window's chunks, whose terms delta_chunks.cuh has prepared, and the
// gated norm. A block has a head of a row, a warp sixteen rows of its state in registers, as sums of
// products; they are operands, rounded to float16, where they are read.

template <typename S>
struct ChunkStage {  // a chunk's terms in shared memory
  static constexpr int KEYS = S::DK + 8, SCORES = CHUNK + 8;
  __half w[CHUNK * KEYS], q[CHUNK * KEYS], k[CHUNK * KEYS], scores[CHUNK * SCORES];
  float factors[2 * CHUNK];
};
template <typename S>
struct ChunkRunRoom {
  static constexpr int READ = S::DV + 4;
  ChunkStage<S> stages[2];
  float read[CHUNK * READ];
};

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

// Grid: (value heads, rows); DV / 16 warps.
template <typename S>
__device__ void run_chunks(
    const DeltaPrompt<S>& all, const ChunkTerms<S>& from, typename S::T* out) {
  using T = typename S::T;
  using Room = ChunkRunRoom<S>;
  using Stage = ChunkStage<S>;
  constexpr int WARPS = S::DV / 16, THREADS = 32 * WARPS, TOKENS = CHUNK / WARPS;
  extern __shared__ __align__(16) unsigned char shared[];
  Room& room = *reinterpret_cast<Room*>(shared);
  const int head = blockIdx.x, number = blockIdx.y;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int key_head = head / (S::HV / S::HK), member = head % (S::HV / S::HK);
  const int down = lane % 8 + lane / 16 * 8, across = lane / 8 % 2 * 8;  // of four 8 x 8
  const DeltaRow row(all.rows, number, all.row_columns);
  const float scale = rsqrtf((float)S::DK);

  auto fetch = [&](int chunk) {
    Stage& stage = room.stages[chunk % 2];
    const long long here = from.of_value_head(number, chunk, head);
    const long long keys = from.of_key_head(number, chunk, key_head);
    for (int i = threadIdx.x; i < CHUNK * S::DK / 8; i += THREADS) {
      const int to = i / (S::DK / 8) * Stage::KEYS + i % (S::DK / 8) * 8;
      copy_async(stage.w + to, from.w + here * CHUNK * S::DK + i * 8);
      copy_async(stage.q + to, from.q + keys * CHUNK * S::DK + i * 8);
      copy_async(stage.k + to, from.k + keys * CHUNK * S::DK + i * 8);
    }
    for (int i = threadIdx.x; i < CHUNK * CHUNK / 8; i += THREADS)
      copy_async(
          stage.scores + i / (CHUNK / 8) * Stage::SCORES + i % (CHUNK / 8) * 8,
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
#pragma unroll
    for (int d = 0; d < S::DK / 16; d++) {
      const float(&low)[4] = state.s[2 * d], (&high)[4] = state.s[2 * d + 1];
      const unsigned a[4] = {
          packed_halves(low[0], low[1]), packed_halves(low[2], low[3]),
          packed_halves(high[0], high[1]), packed_halves(high[2], high[3])};
#pragma unroll
      for (int p = 0; p < PARTS; p++) {
        const int at = (p * 16 + down) * Stage::KEYS + d * 16 + across;
        unsigned b[4];
        load_matrices(b, stage.w + at);
        multiply_add_halves(delta[2 * p], a, b[0], b[1]);
        multiply_add_halves(delta[2 * p + 1], a, b[2], b[3]);
        load_matrices(b, stage.q + at);
        multiply_add_halves(y[2 * p], a, b[0], b[1]);
        multiply_add_halves(y[2 * p + 1], a, b[2], b[3]);
      }
    }
    const float whole = stage.factors[CHUNK - 1];
#pragma unroll
    for (int n = 0; n < 2 * PARTS; n++) {
      const float2 factor =
          *reinterpret_cast<const float2*>(stage.factors + 8 * n + 2 * (lane % 4));
#pragma unroll
      for (int e = 0; e < 4; e++) y[n][e] *= e % 2 ? factor.y : factor.x;
    }
#pragma unroll
    for (int n = 0; n < S::DK / 8; n++)
#pragma unroll
      for (int e = 0; e < 4; e++) state.s[n][e] *= whole;
#pragma unroll
    for (int p = 0; p < PARTS; p++) {  // sixteen tokens that are summed over
      const float(&low)[4] = delta[2 * p], (&high)[4] = delta[2 * p + 1];
      unsigned b[4];
      const unsigned a[4] = {
          packed_halves(low[0], low[1]), packed_halves(low[2], low[3]),
          packed_halves(high[0], high[1]), packed_halves(high[2], high[3])};
#pragma unroll
      for (int n = p; n < PARTS; n++) {
        load_matrices(b, stage.scores + (n * 16 + down) * Stage::SCORES + p * 16 + across);
        multiply_add_halves(y[2 * n], a, b[0], b[1]);
        multiply_add_halves(y[2 * n + 1], a, b[2], b[3]);
      }
      const float* left = stage.factors + CHUNK + p * 16 + 2 * (lane % 4);
      const float2 early = *reinterpret_cast<const float2*>(left);
      const float2 late = *reinterpret_cast<const float2*>(left + 8);
      const unsigned added[4] = {
          packed_halves(low[0] * early.x, low[1] * early.y),
          packed_halves(low[2] * early.x, low[3] * early.y),
          packed_halves(high[0] * late.x, high[1] * late.y),
          packed_halves(high[2] * late.x, high[3] * late.y)};
#pragma unroll
      for (int d = 0; d < S::DK / 16; d++) {
        load_matrices_transposed(
            b, stage.k + (p * 16 + lane % 16) * Stage::KEYS + d * 16 + lane / 16 * 8);
        multiply_add_halves(state.s[2 * d], added, b[0], b[1]);
        multiply_add_halves(state.s[2 * d + 1], added, b[2], b[3]);
      }
    }
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
