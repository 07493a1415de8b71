// A decode or verify window of a gated-delta layer, from the projections to the gated norm.
//
//   fold: accepted drafts of the last window | certain tokens         | drafts
//   multiply-adds of the records             | enter the slot's state | are recorded
//
// Grid: (value heads, any); a block takes every gridDim.y-th row. 256 threads hold the head's state in
// registers: it is read once and written once, whatever was accepted or rejected. While one row runs, the
// next one's inputs and state are on their way to shared memory. The slots' memory is laid out so that each
// row of a head reads and writes its own part alone (delta_rule.cuh).

template <typename S, int WIDTH>
struct DeltaWindow {
  using T = typename S::T;
  Projected<T> mixed;    // q, k, v before the convolution
  Projected<T> gate, b, a;  // gate: z
  const int* columns;    // (6, 3), of q, k, v, gate, b, a
  DeltaWeights weights;
  const int* rows;
  int num_rows, row_columns, width;
  DeltaPools<S> pools;
  T* out;  // (rows, time, HV, DV)
};

// A head's share of a row.
template <typename S, int WIDTH>
struct DeltaItem {
  using T = typename S::T;
  static constexpr int THREADS = 256, ROWS = S::DV / 32;
  static constexpr int PIECE = 16 / sizeof(T);  // numbers that are copied at a time

  int number, head;
  DeltaRow row;

  __device__ DeltaItem(const DeltaWindow<S, WIDTH>& all, int number)
      : number(number), head(blockIdx.x), row(all.rows, number, all.row_columns) {}

  // Its part of a projection: of q, k, v, gate, b, a.
  __device__ const T* part(const DeltaWindow<S, WIDTH>& all, const Projected<T>& of, int which) const {
    constexpr int GROUP = S::HV / S::HK;
    return of.of(number, head / GROUP, head % GROUP, all.columns + 3 * which);
  }
  __device__ bool has_state() const { return !row.fresh && row.length > 0; }

  // Asks for the inputs, (BEFORE + length, CHANNELS), for the gates, (length, DV), and for the state.
  __device__ void ask(
      const DeltaWindow<S, WIDTH>& all, T* inputs, T* gates, float4* state, int first) const {
    constexpr int BEFORE = S::BEFORE * S::CHANNELS / PIECE, OF_TOKEN = (S::CHANNELS + S::DV) / PIECE;
    const T* history = all.pools.history(row.source, head) + row.fold * S::CHANNELS;
    for (int i = threadIdx.x; i < BEFORE + row.length * OF_TOKEN; i += THREADS) {
      T* to = inputs + i * PIECE;
      const T* from = history + i * PIECE;
      if (i >= BEFORE) {
        const int t = (i - BEFORE) / OF_TOKEN, c = (i - BEFORE) % OF_TOKEN * PIECE;
        const int which = c < S::DK ? 0 : c < 2 * S::DK ? 1 : c < S::CHANNELS ? 2 : 3;
        const Projected<T>& of = which < 3 ? all.mixed : all.gate;
        from = part(all, of, which) + t * of.time + c - (which < 3 ? which * S::DK : S::CHANNELS);
        to = which < 3 ? inputs + (S::BEFORE + t) * S::CHANNELS + c : gates + t * S::DV + c - S::CHANNELS;
      } else if (row.fresh) {
        *reinterpret_cast<uint4*>(to) = make_uint4(0, 0, 0, 0);
        continue;
      }
      if (reinterpret_cast<unsigned long long>(from) % 16 == 0) {
        copy_async(to, from);
      } else {
#pragma unroll
        for (int e = 0; e < PIECE; e++) to[e] = from[e];
      }
    }
    commit_copies();
    if (has_state()) StateRows<S, ROWS>::stage(state, all.pools.state(row.source, head), first);
    commit_copies();
  }
};

template <typename S, int WIDTH>
__device__ void delta_window(const DeltaWindow<S, WIDTH>& all) {
  using T = typename S::T;
  using Item = DeltaItem<S, WIDTH>;
  constexpr int THREADS = Item::THREADS, WARPS = THREADS / 32, ROWS = Item::ROWS;
  constexpr int INPUTS = (S::BEFORE + WIDTH) * S::CHANNELS, GATES = WIDTH * S::DV;
  extern __shared__ __align__(16) float shared[];
  float4* asked_state = reinterpret_cast<float4*>(shared);
  T* asked_inputs = reinterpret_cast<T*>(shared + S::DV * S::DK);  // two of each: this row's, the next one's
  T* asked_gates = asked_inputs + 2 * INPUTS;
  float* q = reinterpret_cast<float*>(asked_gates + 2 * GATES);  // (WIDTH, DK)
  float* k = q + WIDTH * S::DK;  // (WIDTH, DK)
  float* values = k + WIDTH * S::DK;  // two of (WIDTH, DV): v, replaced by y token by token
  float* recorded_keys = values + 2 * WIDTH * S::DV;
  float* recorded_deltas = recorded_keys + S::DRAFTS * S::DK;
  float* recorded_decays = recorded_deltas + S::DRAFTS * S::DV;
  float* decay = recorded_decays + S::DRAFTS;
  float* beta = decay + WIDTH;
  const int head = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32, first = warp * 4 * ROWS;

  constexpr int OF_THREAD = (S::CHANNELS + THREADS - 1) / THREADS;
  float weight[OF_THREAD][S::TAPS];
#pragma unroll
  for (int n = 0; n < OF_THREAD; n++) {
    const int c = min(static_cast<int>(threadIdx.x) + n * THREADS, S::CHANNELS - 1);
#pragma unroll
    for (int j = 0; j < S::TAPS; j++)
      weight[n][j] = all.weights.convolution[channel_of<S>(head, c) * S::TAPS + j];
  }
  const int token = static_cast<int>(threadIdx.x) - (THREADS - 32);  // the last warp has fewest channels
  const float dt_bias = all.weights.dt_bias[head], decay_rate = all.weights.decay_rates[head];

  // The gated norm of a token of the row that ran last: a warp's work.
  const auto emit = [&](int number, int length, int t, const float* y, const T* gate) {
    const long long at = (((long long)number * all.width + t) * S::HV + head) * S::DV;
    float x[S::DV / 32], squares = 0.f;
#pragma unroll
    for (int j = 0; j < S::DV / 32; j++) {
      x[j] = t < length ? rounded<T>(y[t * S::DV + lane + 32 * j]) : 0.f;
      squares = fmaf(x[j], x[j], squares);
    }
    const float factor = rsqrtf(warp_sum(squares) / S::DV + all.weights.epsilon);
#pragma unroll
    for (int j = 0; j < S::DV / 32; j++) {
      const int d = lane + 32 * j;
      const float z = t < length ? static_cast<float>(gate[t * S::DV + d]) : 0.f;
      const float of = rounded<T>(x[j] * factor * all.weights.norm[d]);
      all.out[at + d] = static_cast<T>(of * z * sigmoid(z));
    }
  };
  Item item(all, blockIdx.y);
  item.ask(all, asked_inputs, asked_gates, asked_state, first);
  int turn = 0, last = -1, last_length = 0;  // the row that ran last, and its length
#pragma unroll 1
  for (int number = blockIdx.y; number < all.num_rows; number += gridDim.y, turn ^= 1) {
    const Item next(all, min(number + static_cast<int>(gridDim.y), all.num_rows - 1));
    const DeltaRow& row = item.row;
    const T* inputs = asked_inputs + turn * INPUTS;
    float* v = values + turn * WIDTH * S::DV;
    const long long read_from = all.pools.index(row.source, head);
    const long long write_to = all.pools.index(row.target, head);
    float a = 0.f, b = 0.f;
    if (token >= 0 && token < row.length) {
      a = static_cast<float>(item.part(all, all.a, 5)[token * all.a.time]);
      b = static_cast<float>(item.part(all, all.b, 4)[token * all.b.time]);
    }
    wait_for_copies<1>();
    __syncthreads();  // the inputs are here, and the row before is done with its places

    for (int i = threadIdx.x; i < row.fold * S::DK; i += THREADS)
      recorded_keys[i] = all.pools.keys[read_from * S::DRAFTS * S::DK + i];
    for (int i = threadIdx.x; i < row.fold * S::DV; i += THREADS)
      recorded_deltas[i] = all.pools.deltas[read_from * S::DRAFTS * S::DV + i];
    if (threadIdx.x < row.fold)
      recorded_decays[threadIdx.x] = all.pools.decays[read_from * S::DRAFTS + threadIdx.x];

    // A thread has some channels to itself: their convolution, and what their history becomes.
    const T* history = all.pools.history(row.source, head);
    T* new_history = all.pools.history(row.target, head);
#pragma unroll
    for (int n = 0; n < OF_THREAD; n++) {
      const int c = threadIdx.x + n * THREADS;
      if (c >= S::CHANNELS) break;
      for (int i = 0; i < row.num_captures; i++) {
        const int steps = row.captures[2 * i];
        T* to = all.pools.history(row.captures[2 * i + 1], head);
        const T* from = steps >= row.fold ? inputs + (steps - row.fold) * S::CHANNELS
                                          : history + steps * S::CHANNELS;
        for (int j = 0; j < S::BEFORE; j++) to[j * S::CHANNELS + c] = from[j * S::CHANNELS + c];
      }
      for (int i = row.certain; i < S::BEFORE + row.length; i++)
        new_history[(i - row.certain) * S::CHANNELS + c] = inputs[i * S::CHANNELS + c];
      for (int t = 0; t < row.length; t++) {
        float x[S::TAPS];
#pragma unroll
        for (int j = 0; j < S::TAPS; j++)
          x[j] = static_cast<float>(inputs[(t + j) * S::CHANNELS + c]);
        const float y = silu_of_convolution<S>(x, weight[n]);
        if (c < S::DK) q[t * S::DK + c] = y;
        else if (c < 2 * S::DK) k[t * S::DK + c - S::DK] = y;
        else v[t * S::DV + c - 2 * S::DK] = y;
      }
    }
    if (token >= 0 && token < row.length) {
      decay[token] = decay_of(a, dt_bias, decay_rate);
      beta[token] = sigmoid(b);
    }
    __syncthreads();
    // norms of this row's q and k, and what the row before comes to
    const int norms = 2 * row.length, tasks = norms + (last < 0 ? 0 : all.width);
    for (int i = warp; i < tasks; i += WARPS) {
      if (i >= norms) {
        emit(
            last, last_length, i - norms, values + (turn ^ 1) * WIDTH * S::DV,
            asked_gates + (turn ^ 1) * GATES);
        continue;
      }
      float* x = (i % 2 ? k : q) + i / 2 * S::DK;
      float squares = 0.f;
#pragma unroll
      for (int d = lane; d < S::DK; d += 32) squares = fmaf(x[d], x[d], squares);
      const float factor = norm_factor<S>(warp_sum(squares), i % 2 == 0);
#pragma unroll
      for (int d = lane; d < S::DK; d += 32) x[d] = rounded<T>(x[d] * factor);
    }
    __syncthreads();

    StateRows<S, ROWS> state;
    wait_for_copies<0>();
    if (item.has_state()) state.take(asked_state);
    else state.clear();
    if (number + gridDim.y < all.num_rows)
      next.ask(
          all, asked_inputs + (turn ^ 1) * INPUTS, asked_gates + (turn ^ 1) * GATES, asked_state, first);
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
    last = number;
    last_length = row.length;
    item = next;
  }
  __syncthreads();
  for (int t = warp; t < all.width; t += WARPS)
    emit(
        last, last_length, t, values + (turn ^ 1) * WIDTH * S::DV,
        asked_gates + (turn ^ 1) * GATES);
}
