// The gated delta rule over slots: what the window kernel and the prompt kernels share, so that both
// compute the same numbers in the same order.
//
//   S[t] = g[t] S[t-1] + delta[t] k[t]^T      delta[t] = beta[t] (v[t] - g[t] S[t-1] k[t])
//   y[t] = S[t] q[t]                          (a head's state S is (DV, DK), float32)
//
// A slot keeps, head by value head so that no two blocks share any of it:
//   state    (slots, HV, DV, DK) float32
//   history  (slots, HV, TAPS - 1 + DRAFTS, 2 DK + DV)   the convolution's inputs: q, k, v
//   records  (slots, HV, DRAFTS, DK), (.., DV), (..)     k, delta and g of the drafts, float32
// The inputs before the state's position come first in the history; those of the drafts follow.
// With delta recorded, folding a draft in is one multiply-add for each number of the state, the same
// one that ran when the draft was tried.

template <typename T_, int HK_, int HV_, int DK_, int DV_, int TAPS_, int DRAFTS_>
struct DeltaShape {
  using T = T_;
  static constexpr int HK = HK_, HV = HV_, DK = DK_, DV = DV_, TAPS = TAPS_, DRAFTS = DRAFTS_;
  static constexpr int BEFORE = TAPS - 1;              // inputs the convolution looks back
  static constexpr int CHANNELS = 2 * DK + DV;         // of one head: q, k, v
  static constexpr int ALL_CHANNELS = 2 * HK * DK + HV * DV;
  static constexpr int HISTORY = BEFORE + DRAFTS;
  static constexpr int LANES = 8;  // of a state row; lane i holds columns 4 i .. 4 i + 3 of each 32
  static_assert(DK % 32 == 0 && DV % 32 == 0 && HV % HK == 0);
};

template <typename S>
struct DeltaPools {
  float* states;
  typename S::T* histories;
  float* keys;  // records
  float* deltas;
  float* decays;

  __device__ long long index(int slot, int head) const { return (long long)slot * S::HV + head; }
  __device__ float* state(int slot, int head) const {
    return states + index(slot, head) * S::DV * S::DK;
  }
  __device__ typename S::T* history(int slot, int head) const {
    return histories + index(slot, head) * S::HISTORY * S::CHANNELS;
  }
};

// How a row runs: one line of ``rows``, an int32 array.
struct DeltaRow {
  int source;   // the slot it is read from
  int target;   // the slot it is written to, the same as a rule
  int fresh;    // its sequence begins: state and history count as zeros
  int fold;     // recorded drafts that were accepted
  int certain;  // tokens of the window that enter the target's state
  int length;   // tokens of the window; those after the certain ones are drafts
  int num_captures;
  const int* captures;  // (steps, slot): the state after so many steps, folds counted, ascending

  __device__ DeltaRow(const int* rows, int number, int columns) {
    const int* line = rows + number * columns;
    source = line[0];
    target = line[1];
    fresh = line[2];
    fold = line[3];
    certain = line[4];
    length = line[5];
    num_captures = line[6];
    captures = line + 7;
  }
};

// One of the projections' outputs, (rows, time, columns) with any strides but the last. Where a head's
// numbers begin is affine in its key head and in its number among that one's value heads: so outputs
// that lie apart, side by side, or interleaved by key head (Qwen3-Next) are read where they are.
template <typename T>
struct Projected {
  const T* data;
  long long row, time;

  // ``columns``: the first, how much further a key head is, and a value head of the same key head.
  __device__ const T* of(int number, int key_head, int member, const int* columns) const {
    return data + number * row + columns[0] + key_head * columns[1] + member * columns[2];
  }
};

// What a layer computes with, in float32.
struct DeltaWeights {
  const float* convolution;  // (ALL_CHANNELS, TAPS)
  const float* decay_rates;  // (HV): exp(A_log)
  const float* dt_bias;      // (HV)
  const float* norm;         // (DV)
  float epsilon;             // of the norm
};

// Where channel c of a value head lies among all channels of the projection.
template <typename S>
__device__ __forceinline__ int channel_of(int head, int c) {
  const int key_head = head / (S::HV / S::HK);
  if (c < S::DK) return key_head * S::DK + c;
  if (c < 2 * S::DK) return (S::HK + key_head) * S::DK + c - S::DK;
  return 2 * S::HK * S::DK + head * S::DV + c - 2 * S::DK;
}

template <typename S>
__device__ __forceinline__ float silu_of_convolution(const float (&x)[S::TAPS], const float* weight) {
  float y = 0.f;
#pragma unroll
  for (int j = 0; j < S::TAPS; j++) y = fmaf(weight[j], x[j], y);
  y = rounded<typename S::T>(y);
  return rounded<typename S::T>(y * sigmoid(y));
}

// What a normalised q or k is multiplied by, given the sum of its squares: q carries the scale
// DK^-1/2 of the read-out (mlx_lm's normalize_qk; its epsilon belongs to the sum of squares).
template <typename S>
__device__ __forceinline__ float norm_factor(float sum_of_squares, bool is_query) {
  const float factor = rsqrtf(sum_of_squares + 1e-6f);
  return is_query ? factor * rsqrtf((float)S::DK) : factor;
}

__device__ __forceinline__ float log_decay_of(float a, float dt_bias, float rate) {
  const float x = a + dt_bias;
  const float softplus = x > 20.f ? x : log1pf(expf(x));
  return -rate * softplus;
}
__device__ __forceinline__ float decay_of(float a, float dt_bias, float rate) {
  return expf(log_decay_of(a, dt_bias, rate));
}

template <typename S>
struct KeyPart {  // this lane's columns of a q or k
  float4 part[S::DK / 32];

  __device__ explicit KeyPart(const float* row) {
#pragma unroll
    for (int j = 0; j < S::DK / 32; j++)
      part[j] = *reinterpret_cast<const float4*>(row + 4 * (threadIdx.x % S::LANES) + 32 * j);
  }
};

__device__ __forceinline__ float sum_of_eight_lanes(float value) {
#pragma unroll
  for (int offset = 1; offset < 8; offset <<= 1)
    value += __shfl_xor_sync(0xffffffffu, value, offset);
  return value;
}

// ROWS rows of a state for each eight lanes, in registers. A warp holds 4 ROWS rows in all.
template <typename S, int ROWS>
struct StateRows {
  float4 s[ROWS][S::DK / 32];

  __device__ static int row(int first, int r) { return first + 4 * r + threadIdx.x % 32 / 8; }

  __device__ void clear() {
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
      for (int j = 0; j < S::DK / 32; j++) s[r][j] = make_float4(0.f, 0.f, 0.f, 0.f);
  }
  __device__ void load(const float* state, int first) {
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
      for (int j = 0; j < S::DK / 32; j++) s[r][j] = __ldcs(at(state, first, r, j));
  }
  // The same by way of shared memory, each thread's part in a place of its own.
  __device__ static void stage(float4* staged, const float* state, int first) {
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
      for (int j = 0; j < S::DK / 32; j++)
        copy_async(staged + (r * (S::DK / 32) + j) * blockDim.x + threadIdx.x, at(state, first, r, j));
  }
  __device__ void take(const float4* staged) {
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
      for (int j = 0; j < S::DK / 32; j++)
        s[r][j] = staged[(r * (S::DK / 32) + j) * blockDim.x + threadIdx.x];
  }
  __device__ void store(float* state, int first) const {
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
      for (int j = 0; j < S::DK / 32; j++)
        __stcs(const_cast<float4*>(at(state, first, r, j)), s[r][j]);
  }
  __device__ static const float4* at(const float* state, int first, int r, int j) {
    return reinterpret_cast<const float4*>(
        state + row(first, r) * S::DK + 4 * (threadIdx.x % S::LANES) + 32 * j);
  }

  __device__ void decay(float g) {
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
      for (int j = 0; j < S::DK / 32; j++) {
        s[r][j].x = __fmul_rn(s[r][j].x, g);
        s[r][j].y = __fmul_rn(s[r][j].y, g);
        s[r][j].z = __fmul_rn(s[r][j].z, g);
        s[r][j].w = __fmul_rn(s[r][j].w, g);
      }
  }
  __device__ void add(const KeyPart<S>& k, const float (&delta)[ROWS]) {
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
      for (int j = 0; j < S::DK / 32; j++) {
        s[r][j].x = fmaf(k.part[j].x, delta[r], s[r][j].x);
        s[r][j].y = fmaf(k.part[j].y, delta[r], s[r][j].y);
        s[r][j].z = fmaf(k.part[j].z, delta[r], s[r][j].z);
        s[r][j].w = fmaf(k.part[j].w, delta[r], s[r][j].w);
      }
  }
  __device__ void read(const KeyPart<S>& by, float (&out)[ROWS]) const {
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      float even = 0.f, odd = 0.f;
#pragma unroll
      for (int j = 0; j < S::DK / 32; j++) {
        float& sum = j % 2 ? odd : even;
        sum = fmaf(s[r][j].x, by.part[j].x, sum);
        sum = fmaf(s[r][j].y, by.part[j].y, sum);
        sum = fmaf(s[r][j].z, by.part[j].z, sum);
        sum = fmaf(s[r][j].w, by.part[j].w, sum);
      }
      out[r] = __fadd_rn(even, odd);
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) out[r] = sum_of_eight_lanes(out[r]);
  }
};

// Keeps a copy of the state, and of the inputs before it, in each capture's slot when its turn comes.
template <typename S, int ROWS>
__device__ __forceinline__ void capture(
    const DeltaPools<S>& pools, const DeltaRow& row, int steps, int head, int first,
    const StateRows<S, ROWS>& state) {
  for (int c = 0; c < row.num_captures; c++)
    if (row.captures[2 * c] == steps)
      state.store(pools.state(row.captures[2 * c + 1], head), first);
}

// Adds the accepted drafts of the last window, whose records are at ``keys`` (DK apart), ``deltas``
// (DV apart) and ``decays``, shared or global.
template <typename S, int ROWS>
__device__ __forceinline__ void fold_records(
    const DeltaPools<S>& pools, const DeltaRow& row, int head, int first,
    const float* keys, const float* deltas, const float* decays, StateRows<S, ROWS>& state) {
  capture(pools, row, 0, head, first, state);
#pragma unroll 1
  for (int t = 0; t < row.fold; t++) {
    float delta[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) delta[r] = deltas[t * S::DV + state.row(first, r)];
    state.decay(decays[t]);
    state.add(KeyPart<S>(keys + t * S::DK), delta);
    capture(pools, row, t + 1, head, first, state);
  }
}
