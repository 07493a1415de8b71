// A long window (a prompt's chunk) of a gated-delta layer, without drafts, in two kernels: what is
// independent of the state, for all tokens at once; then the recurrence, token by token, exactly as
// the window kernel runs it. The gated norm follows in MLX operations. Kernels of other forms share
// what is said of a prompt here.

template <typename S>
struct DeltaPrompt {
  using T = typename S::T;
  Projected<T> mixed;       // q, k, v before the convolution
  Projected<T> gate, b, a;  // gate: z
  const int* columns;       // (6, 3), of q, k, v, gate, b, a
  DeltaWeights weights;
  const int* rows;
  int row_columns, width;
  DeltaPools<S> pools;

  // Channel c of a head, at the window's first token.
  __device__ const T* channel(int number, int head, int c) const {
    const int part = c < S::DK ? 0 : c < 2 * S::DK ? 1 : 2;  // of q, k, v
    const int members = S::HV / S::HK;
    return mixed.of(number, head / members, head % members, columns + 3 * part) + c - part * S::DK;
  }
};

// Keeps the convolution's inputs before each capture and before the end, of one head.
template <typename S>
__device__ void keep_inputs(
    const DeltaPrompt<S>& all, const DeltaRow& row, int number, int head) {
  using T = typename S::T;
  const T* history = all.pools.history(row.source, head);
  T* new_history = all.pools.history(row.target, head);
  for (int c = threadIdx.x; c < S::CHANNELS; c += blockDim.x) {
    const T* from = all.channel(number, head, c);
    auto input = [&](int i) {  // number i counted from the first that the slot keeps
      const int t = i - row.fold - S::BEFORE;
      if (t >= 0) return from[t * all.mixed.time];
      return row.fresh ? static_cast<T>(0.f) : history[i * S::CHANNELS + c];
    };
    for (int n = 0; n < row.num_captures; n++)
      for (int j = 0; j < S::BEFORE; j++)
        all.pools.history(row.captures[2 * n + 1], head)[j * S::CHANNELS + c] =
            input(row.captures[2 * n] + j);
    T kept[S::BEFORE];
#pragma unroll
    for (int j = 0; j < S::BEFORE; j++) kept[j] = input(row.fold + row.length + j);
#pragma unroll
    for (int j = 0; j < S::BEFORE; j++) new_history[j * S::CHANNELS + c] = kept[j];
  }
}

template <typename S>
struct PreparedTokens {  // what the recurrence takes, in global memory
  using T = typename S::T;
  T* q;  // (rows, time, HK, DK), normalised
  T* k;  // (rows, time, HK, DK), normalised
  T* v;  // (rows, time, HV, DV)
  float* decay;  // (rows, time, HV)
  float* beta;   // (rows, time, HV)
};

// Grid: (ceil(width / TOKENS), value heads, rows); 256 threads.
template <typename S, int TOKENS>
__device__ void prepare_tokens(const DeltaPrompt<S>& all, const PreparedTokens<S>& to) {
  using T = typename S::T;
  constexpr int THREADS = 256;
  extern __shared__ __align__(16) float shared[];  // (TOKENS, CHANNELS)
  const int head = blockIdx.y, number = blockIdx.z, begin = blockIdx.x * TOKENS;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int key_head = head / (S::HV / S::HK), member = head % (S::HV / S::HK);
  const DeltaRow row(all.rows, number, all.row_columns);
  const long long token = (long long)number * all.width;
  const int end = min(row.length, begin + TOKENS);
  const T* history = all.pools.history(row.source, head) + row.fold * S::CHANNELS;

  for (int c = threadIdx.x; c < S::CHANNELS; c += THREADS) {
    const int channel = channel_of<S>(head, c);
    const T* from = all.channel(number, head, c);
    float weight[S::TAPS], x[S::TAPS];
    auto input = [&](int i) {  // the convolution's input number i; the window's first is BEFORE
      if (i >= S::BEFORE) return static_cast<float>(from[(i - S::BEFORE) * all.mixed.time]);
      return row.fresh ? 0.f : static_cast<float>(history[i * S::CHANNELS + c]);
    };
#pragma unroll
    for (int j = 0; j < S::TAPS; j++) weight[j] = all.weights.convolution[channel * S::TAPS + j];
#pragma unroll
    for (int j = 0; j < S::BEFORE; j++) x[j + 1] = begin < end ? input(begin + j) : 0.f;
    for (int t = begin; t < end; t++) {
#pragma unroll
      for (int j = 0; j < S::BEFORE; j++) x[j] = x[j + 1];
      x[S::BEFORE] = input(S::BEFORE + t);
      shared[(t - begin) * S::CHANNELS + c] = silu_of_convolution<S>(x, weight);
    }
  }
  if (begin + (int)threadIdx.x < end) {
    const int t = begin + threadIdx.x;
    const T* a = all.a.of(number, key_head, member, all.columns + 15) + t * all.a.time;
    const T* b = all.b.of(number, key_head, member, all.columns + 12) + t * all.b.time;
    const long long at = (token + t) * S::HV + head;
    to.decay[at] = decay_of(
        static_cast<float>(*a), all.weights.dt_bias[head], all.weights.decay_rates[head]);
    to.beta[at] = sigmoid(static_cast<float>(*b));
  }
  __syncthreads();
  const bool writes_keys = member == 0;  // one value head of each key head
  for (int i = warp; writes_keys && i < 2 * (end - begin); i += THREADS / 32) {
    const bool is_query = i % 2 == 0;
    const float* x = shared + i / 2 * S::CHANNELS + (is_query ? 0 : S::DK);
    float squares = 0.f;
#pragma unroll
    for (int d = lane; d < S::DK; d += 32) squares = fmaf(x[d], x[d], squares);
    const float factor = norm_factor<S>(warp_sum(squares), is_query);
    T* out = (is_query ? to.q : to.k) + ((token + begin + i / 2) * S::HK + key_head) * S::DK;
#pragma unroll
    for (int d = lane; d < S::DK; d += 32) out[d] = static_cast<T>(x[d] * factor);
  }
  for (int i = threadIdx.x; i < (end - begin) * S::DV; i += THREADS) {
    const int t = i / S::DV, d = i % S::DV;
    to.v[((token + begin + t) * S::HV + head) * S::DV + d] =
        static_cast<T>(shared[t * S::CHANNELS + 2 * S::DK + d]);
  }
}

// Grid: (value heads x DV / 32, rows); 256 threads, a state row for each eight of them. Chunks of
// TOKENS are loaded into registers while the one before is worked on.
template <typename S, int TOKENS>
__device__ void run_tokens(
    const DeltaPrompt<S>& all, const PreparedTokens<S>& from, typename S::T* out) {
  using T = typename S::T;
  constexpr int THREADS = 256, SLICES = S::DV / 32;
  constexpr int KEYS = (TOKENS * S::DK + THREADS - 1) / THREADS, VALUES = TOKENS * 32 / THREADS;
  extern __shared__ __align__(16) float shared[];
  float* q = shared;                 // (2, TOKENS, DK)
  float* k = q + 2 * TOKENS * S::DK;
  float* v = k + 2 * TOKENS * S::DK;  // (2, TOKENS, 32)
  float* decay = v + 2 * TOKENS * 32;
  float* beta = decay + 2 * TOKENS;
  const int head = blockIdx.x / SLICES, slice = blockIdx.x % SLICES, number = blockIdx.y;
  const int key_head = head / (S::HV / S::HK), warp = threadIdx.x / 32;
  const int first = slice * 32 + warp * 4;
  const DeltaRow row(all.rows, number, all.row_columns);
  const DeltaPools<S>& pools = all.pools;
  const long long token = (long long)number * all.width;
  const long long read_from = pools.index(row.source, head);

  StateRows<S, 1> state;
  if (row.fresh) state.clear();
  else state.load(pools.state(row.source, head), first);

  T next_q[KEYS], next_k[KEYS], next_v[VALUES];
  float next_decay = 1.f, next_beta = 0.f;
  auto load = [&](int begin) {
#pragma unroll
    for (int i = 0; i < KEYS; i++) {
      const int e = i * THREADS + threadIdx.x, t = begin + e / S::DK;
      if (e < TOKENS * S::DK && t < row.length) {
        const long long at = ((token + t) * S::HK + key_head) * S::DK + e % S::DK;
        next_q[i] = from.q[at];
        next_k[i] = from.k[at];
      }
    }
#pragma unroll
    for (int i = 0; i < VALUES; i++) {
      const int e = i * THREADS + threadIdx.x, t = begin + e / 32;
      if (t < row.length)
        next_v[i] = from.v[((token + t) * S::HV + head) * S::DV + slice * 32 + e % 32];
    }
    if (threadIdx.x < TOKENS && begin + (int)threadIdx.x < row.length) {
      const long long at = (token + begin + threadIdx.x) * S::HV + head;
      next_decay = from.decay[at];
      next_beta = from.beta[at];
    }
  };
  auto place = [&](int half) {
#pragma unroll
    for (int i = 0; i < KEYS; i++) {
      const int e = i * THREADS + threadIdx.x;
      if (e < TOKENS * S::DK) {
        q[half * TOKENS * S::DK + e] = static_cast<float>(next_q[i]);
        k[half * TOKENS * S::DK + e] = static_cast<float>(next_k[i]);
      }
    }
#pragma unroll
    for (int i = 0; i < VALUES; i++)
      v[half * TOKENS * 32 + i * THREADS + threadIdx.x] = static_cast<float>(next_v[i]);
    if (threadIdx.x < TOKENS) {
      decay[half * TOKENS + threadIdx.x] = next_decay;
      beta[half * TOKENS + threadIdx.x] = next_beta;
    }
  };

  load(0);
  fold_records(
      pools, row, head, first, pools.keys + read_from * S::DRAFTS * S::DK,
      pools.deltas + read_from * S::DRAFTS * S::DV, pools.decays + read_from * S::DRAFTS, state);
  place(0);
  __syncthreads();
  int half = 0;
  for (int begin = 0; begin < row.length; begin += TOKENS, half ^= 1) {
    const bool more = begin + TOKENS < row.length;
    if (more) load(begin + TOKENS);
    const int count = min(TOKENS, row.length - begin);
    for (int i = 0; i < count;) {
      int stop = count;  // where the next capture is due
      for (int c = row.num_captures - 1; c >= 0; c--) {
        const int due = row.captures[2 * c] - row.fold - begin;
        if (due > i && due < stop) stop = due;
      }
#pragma unroll 4
      for (; i < stop; i++) {
        const int at = half * TOKENS + i;
        const KeyPart<S> key(k + at * S::DK);
        float read[1], delta[1], y[1];
        state.decay(decay[at]);
        state.read(key, read);
        delta[0] = __fmul_rn(__fsub_rn(v[at * 32 + state.row(warp * 4, 0)], read[0]), beta[at]);
        state.add(key, delta);
        state.read(KeyPart<S>(q + at * S::DK), y);
        if (threadIdx.x % S::LANES == 0)
          out[((token + begin + i) * S::HV + head) * S::DV + state.row(first, 0)] =
              static_cast<T>(y[0]);
      }
      capture(pools, row, row.fold + begin + i, head, first, state);
    }
    if (more) place(half ^ 1);
    __syncthreads();
  }
  state.store(pools.state(row.target, head), first);

  if (slice == 0) keep_inputs(all, row, number, head);
}
