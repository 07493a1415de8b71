// A decode or verify window of a gated-delta layer, from the projections to the gated norm.
//
//   fold: accepted drafts of the last window | certain tokens         | drafts
//   multiply-adds of the records             | enter the slot's state | are recorded
//
// Grid: (value heads, rows); 256 threads, which hold the head's state in registers: it is read once
// and written once, whatever was accepted or rejected. The slots' memory is laid out so that each
// block reads and writes its own part alone (delta_rule.cuh).

template <typename S, int WIDTH>
struct DeltaWindow {
  using T = typename S::T;
  Projected<T> mixed;    // q, k, v before the convolution
  Projected<T> gate, b, a;  // gate: z
  const int* columns;    // (6, 3), of q, k, v, gate, b, a
  DeltaWeights weights;
  const int* rows;
  int row_columns, width;
  DeltaPools<S> pools;
  T* out;  // (rows, time, HV, DV)

  static constexpr int INPUTS = S::BEFORE + WIDTH;
  static constexpr int SHARED_FLOATS = INPUTS * S::CHANNELS + WIDTH * (2 * S::DK + S::DV + 2) +
      S::DRAFTS * (S::DK + S::DV + 1);
};

template <typename S, int WIDTH>
__device__ void delta_window(const DeltaWindow<S, WIDTH>& all) {
  using T = typename S::T;
  constexpr int WARPS = 8, THREADS = 32 * WARPS, ROWS = S::DV / 32;
  constexpr int INPUTS = DeltaWindow<S, WIDTH>::INPUTS;
  extern __shared__ __align__(16) float shared[];
  float* inputs = shared;                    // (INPUTS, CHANNELS): history, then the window
  float* q = inputs + INPUTS * S::CHANNELS;  // (WIDTH, DK)
  float* k = q + WIDTH * S::DK;              // (WIDTH, DK)
  float* v = k + WIDTH * S::DK;              // (WIDTH, DV), replaced by y token by token
  float* recorded_keys = v + WIDTH * S::DV;
  float* recorded_deltas = recorded_keys + S::DRAFTS * S::DK;
  float* recorded_decays = recorded_deltas + S::DRAFTS * S::DV;
  float* decay = recorded_decays + S::DRAFTS;
  float* beta = decay + WIDTH;

  const int head = blockIdx.x, number = blockIdx.y, lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32, first = warp * 4 * ROWS;
  const int key_head = head / (S::HV / S::HK), member = head % (S::HV / S::HK);
  const DeltaRow row(all.rows, number, all.row_columns);
  const long long read_from = all.pools.index(row.source, head);
  const long long write_to = all.pools.index(row.target, head);

  StateRows<S, ROWS> state;
  if (row.fresh) state.clear();
  else state.load(all.pools.state(row.source, head), first);

  for (int i = threadIdx.x; i < row.fold * S::DK; i += THREADS)
    recorded_keys[i] = all.pools.keys[read_from * S::DRAFTS * S::DK + i];
  for (int i = threadIdx.x; i < row.fold * S::DV; i += THREADS)
    recorded_deltas[i] = all.pools.deltas[read_from * S::DRAFTS * S::DV + i];
  if (threadIdx.x < row.fold)
    recorded_decays[threadIdx.x] = all.pools.decays[read_from * S::DRAFTS + threadIdx.x];
  if (threadIdx.x < row.length) {
    const T* a = all.a.of(number, key_head, member, all.columns + 15) + threadIdx.x * all.a.time;
    const T* b = all.b.of(number, key_head, member, all.columns + 12) + threadIdx.x * all.b.time;
    decay[threadIdx.x] = decay_of(
        static_cast<float>(*a), all.weights.dt_bias[head], all.weights.decay_rates[head]);
    beta[threadIdx.x] = sigmoid(static_cast<float>(*b));
  }

  // A thread has a channel to itself: its history, convolution, and what the history becomes.
  const T* history = all.pools.history(row.source, head);
  T* new_history = all.pools.history(row.target, head);
  for (int c = threadIdx.x; c < S::CHANNELS; c += THREADS) {
    const int channel = channel_of<S>(head, c);
    const int part = c < S::DK ? 0 : c < 2 * S::DK ? 1 : 2;  // of q, k, v
    const T* from = all.mixed.of(number, key_head, member, all.columns + 3 * part) + c - part * S::DK;
    for (int i = 0; i < S::BEFORE; i++)
      inputs[i * S::CHANNELS + c] =
          row.fresh ? 0.f : static_cast<float>(history[(row.fold + i) * S::CHANNELS + c]);
    for (int t = 0; t < row.length; t++)
      inputs[(S::BEFORE + t) * S::CHANNELS + c] =
          static_cast<float>(from[t * all.mixed.time]);
    for (int n = 0; n < row.num_captures; n++) {
      const int steps = row.captures[2 * n];
      T* to = all.pools.history(row.captures[2 * n + 1], head);
      for (int i = 0; i < S::BEFORE; i++) {
        if (steps >= row.fold)
          to[i * S::CHANNELS + c] =
              static_cast<T>(inputs[(steps - row.fold + i) * S::CHANNELS + c]);
        else
          to[i * S::CHANNELS + c] = history[(steps + i) * S::CHANNELS + c];
      }
    }
    for (int i = row.certain; i < S::BEFORE + row.length; i++)
      new_history[(i - row.certain) * S::CHANNELS + c] =
          static_cast<T>(inputs[i * S::CHANNELS + c]);

    float weight[S::TAPS], x[S::TAPS];
#pragma unroll
    for (int j = 0; j < S::TAPS; j++) weight[j] = all.weights.convolution[channel * S::TAPS + j];
    for (int t = 0; t < row.length; t++) {
#pragma unroll
      for (int j = 0; j < S::TAPS; j++) x[j] = inputs[(t + j) * S::CHANNELS + c];
      const float y = silu_of_convolution<S>(x, weight);
      if (c < S::DK) q[t * S::DK + c] = y;
      else if (c < 2 * S::DK) k[t * S::DK + c - S::DK] = y;
      else v[t * S::DV + c - 2 * S::DK] = y;
    }
  }
  __syncthreads();
  for (int i = warp; i < 2 * row.length; i += WARPS) {
    float* x = (i % 2 ? k : q) + i / 2 * S::DK;
    float squares = 0.f;
#pragma unroll
    for (int d = lane; d < S::DK; d += 32) squares = fmaf(x[d], x[d], squares);
    const float factor = norm_factor<S>(warp_sum(squares), i % 2 == 0);
#pragma unroll
    for (int d = lane; d < S::DK; d += 32) x[d] = rounded<T>(x[d] * factor);
  }
  __syncthreads();

  fold_records(
      all.pools, row, head, first, recorded_keys, recorded_deltas, recorded_decays, state);
#pragma unroll 1
  for (int t = 0; t < row.length; t++) {
    const KeyPart<S> key(k + t * S::DK);
    float read[ROWS], delta[ROWS], y[ROWS];
    state.decay(decay[t]);
    state.read(key, read);
#pragma unroll
    for (int r = 0; r < ROWS; r++)
      delta[r] = __fmul_rn(__fsub_rn(v[t * S::DV + state.row(first, r)], read[r]), beta[t]);
    state.add(key, delta);
    state.read(KeyPart<S>(q + t * S::DK), y);
    const int draft = t - row.certain;
#pragma unroll
    for (int r = 0; r < ROWS; r++)
      if (lane % S::LANES == 0) {
        v[t * S::DV + state.row(first, r)] = y[r];
        if (draft >= 0)
          all.pools.deltas[(write_to * S::DRAFTS + draft) * S::DV + state.row(first, r)] = delta[r];
      }
    if (draft < 0) capture(all.pools, row, row.fold + t + 1, head, first, state);
    if (draft == -1) state.store(all.pools.state(row.target, head), first);
  }
  const int num_drafts = row.length - row.certain;
  for (int i = threadIdx.x; i < num_drafts * S::DK; i += THREADS)
    all.pools.keys[write_to * S::DRAFTS * S::DK + i] = k[row.certain * S::DK + i];
  if (threadIdx.x < num_drafts)
    all.pools.decays[write_to * S::DRAFTS + threadIdx.x] = decay[row.certain + threadIdx.x];
  __syncthreads();

  for (int t = warp; t < all.width; t += WARPS) {
    const long long at = (((long long)number * all.width + t) * S::HV + head) * S::DV;
    const T* gate = all.gate.of(number, key_head, member, all.columns + 9) + t * all.gate.time;
    float x[S::DV / 32], squares = 0.f;
#pragma unroll
    for (int j = 0; j < S::DV / 32; j++) {
      x[j] = t < row.length ? rounded<T>(v[t * S::DV + lane + 32 * j]) : 0.f;
      squares = fmaf(x[j], x[j], squares);
    }
    const float factor = rsqrtf(warp_sum(squares) / S::DV + all.weights.epsilon);
#pragma unroll
    for (int j = 0; j < S::DV / 32; j++) {
      const int d = lane + 32 * j;
      const float z = t < row.length ? static_cast<float>(gate[d]) : 0.f;
      const float y = rounded<T>(x[j] * factor * all.weights.norm[d]);
      all.out[at + d] = static_cast<T>(y * z * sigmoid(z));
    }
  }
}
