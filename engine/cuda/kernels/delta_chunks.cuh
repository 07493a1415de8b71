// A long window (a prompt's chunk) of a gated-delta layer in bfloat16, without drafts: 64 tokens at a
// time by tensor cores. With S the state before the 64, (DV, DK), and c[t] the product of their decays
// up to t,
//
//   L[i][j] = beta[i] c[i] / c[j] (k[i] . k[j])   for j < i
//   A[i][j] = c[i] / c[j] (q[i] . k[j])           for j <= i
//   W = (1 + L)^-1 (beta c k)       U = (1 + L)^-1 (beta v)          here, for all chunks at once
//
//   delta = U - W S^T               y = c S q + A delta              delta_chunk_run.cuh, in order
//   S' = c[63] S + sum of c[63] / c[t] delta[t] k[t]^T
//
// (the WY form of the delta rule, arXiv 2412.06464). Operands are float16, sums and the state float32:
// what bfloat16 brought here keeps its binary digits, and what is computed keeps three more of them.

#include <cuda_fp16.h>

constexpr int CHUNK = 64, PARTS = CHUNK / 16;

// As multiply_add, of float16.
__device__ __forceinline__ void multiply_add_halves(
    float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// What load_matrices_transposed reads from the same address.
__device__ __forceinline__ void store_matrices_transposed(void* row, const unsigned (&from)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(
                   shared_address(row)),
               "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3])
               : "memory");
}

__device__ __forceinline__ unsigned packed_halves(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const unsigned*>(&pair);
}
__device__ __forceinline__ float2 unpacked_halves(unsigned pair) {
  return __half22float2(*reinterpret_cast<const __half2*>(&pair));
}

// The tokens of a row's chunk; a chunk ends early where a capture is due.
struct ChunkBounds {
  int begin, end;  // equal: the row has no such chunk

  __device__ ChunkBounds(const DeltaRow& row, int chunk) {
    begin = 0;
    for (int n = 0; n <= row.num_captures; n++) {
      const int due = n < row.num_captures ? row.captures[2 * n] - row.fold : row.length;
      const int stop = min(due, row.length);
      if (stop <= begin) continue;
      const int count = (stop - begin + CHUNK - 1) / CHUNK;
      if (chunk < count) {
        begin += chunk * CHUNK;
        end = min(begin + CHUNK, stop);
        return;
      }
      chunk -= count;
      begin = stop;
    }
    end = begin;
  }
};

template <typename S>
struct ChunkTerms {  // in global memory, (rows, chunks, heads) of what one chunk of a head has
  __half* q;       // HK heads: (CHUNK, DK), normalised, without the scale of the read-out
  __half* k;       // HK heads: (CHUNK, DK), normalised
  __half* w;       // (CHUNK, DK): -W
  __half* u;       // (DV / 16, PARTS, 32, 8): U, as lanes hold it
  __half* scores;  // (CHUNK, CHUNK): A
  float* factors;  // (2, CHUNK): c[t], c[63] / c[t]
  int chunks;

  __device__ long long of_value_head(int number, int chunk, int head) const {
    return ((long long)number * chunks + chunk) * S::HV + head;
  }
  __device__ long long of_key_head(int number, int chunk, int head) const {
    return ((long long)number * chunks + chunk) * S::HK + head;
  }
};

template <typename S>
struct ChunkRoom {  // of a block that prepares a chunk, in shared memory
  static constexpr int KEYS = S::DK + 8, VALUES = S::DV + 8, SCORES = CHUNK + 8, INVERSE = 24;
  __half q[CHUNK * KEYS], k[CHUNK * KEYS], v[CHUNK * VALUES];
  __half lower[CHUNK * SCORES];             // -L
  __half inverse[PARTS * 16 * INVERSE];     // of 1 + L in its diagonal's 16 x 16, less 1
  float diagonal[PARTS * 16 * 16];          // L there
  float decay[CHUNK];                       // log c
  float beta[CHUNK], beta_decay[CHUNK];     // beta; beta c
};

// q, k and v of a chunk's tokens, zeros after them. A thread has two channels of sixteen tokens.
template <typename S>
__device__ __forceinline__ void convolve_chunk(
    const DeltaPrompt<S>& all, const DeltaRow& row, const ChunkBounds& bounds, int number, int head,
    ChunkRoom<S>& room) {
  using T = typename S::T;
  constexpr int PAIRS = S::CHANNELS / 2;
  constexpr float HIGHEST = 65504.f;
  const T* history = all.pools.history(row.source, head) + row.fold * S::CHANNELS;
  for (int i = threadIdx.x; i < PAIRS * PARTS; i += blockDim.x) {
    const int c = 2 * (i % PAIRS), first = bounds.begin + i / PAIRS * 16;
    const int part = c < S::DK ? 0 : c < 2 * S::DK ? 1 : 2, at = c - part * S::DK;
    const T* from = all.channel(number, head, c);
    __nv_bfloat162 x[S::BEFORE + 16];
#pragma unroll
    for (int j = 0; j < S::BEFORE + 16; j++) {
      const int t = first + j - S::BEFORE;
      x[j] = __floats2bfloat162_rn(0.f, 0.f);
      if (t >= 0) {
        if (t < bounds.end)
          x[j] = *reinterpret_cast<const __nv_bfloat162*>(from + t * all.mixed.time);
      } else if (!row.fresh) {
        x[j] = *reinterpret_cast<const __nv_bfloat162*>(
            history + (t + S::BEFORE) * S::CHANNELS + c);
      }
    }
    float weight[2][S::TAPS];
    const int channel = channel_of<S>(head, c);
#pragma unroll
    for (int j = 0; j < S::TAPS; j++) {
      weight[0][j] = all.weights.convolution[channel * S::TAPS + j];
      weight[1][j] = all.weights.convolution[(channel + 1) * S::TAPS + j];
    }
    __half* into = part == 0 ? room.q + at : part == 1 ? room.k + at : room.v + at;
    const int pitch = part == 2 ? ChunkRoom<S>::VALUES : ChunkRoom<S>::KEYS;
#pragma unroll
    for (int j = 0; j < 16; j++) {
      float2 y = make_float2(0.f, 0.f);
      if (first + j < bounds.end) {
#pragma unroll
        for (int tap = 0; tap < S::TAPS; tap++) {
          const float2 pair = __bfloat1622float2(x[j + tap]);
          y.x = fmaf(weight[0][tap], pair.x, y.x);
          y.y = fmaf(weight[1][tap], pair.y, y.y);
        }
        y.x = fminf(__fdividef(y.x, 1.f + __expf(-y.x)), HIGHEST);  // silu
        y.y = fminf(__fdividef(y.y, 1.f + __expf(-y.y)), HIGHEST);
      }
      *reinterpret_cast<__half2*>(into + (first - bounds.begin + j) * pitch) =
          __floats2half2_rn(y.x, y.y);
    }
  }
}

// L by warps 0 to 3, A by the others: sixteen rows each, up to the diagonal.
template <typename S>
__device__ __forceinline__ void multiply_keys(ChunkRoom<S>& room, __half* scores) {
  using Room = ChunkRoom<S>;
  const int lane = threadIdx.x % 32, tile = threadIdx.x / 32 % PARTS;
  const bool is_query = threadIdx.x / 32 >= PARTS;
  const __half* left = (is_query ? room.q : room.k) + (tile * 16 + lane % 16) * Room::KEYS;
  const __half* right = room.k + (lane % 8 + lane / 16 * 8) * Room::KEYS;
  float sums[2 * PARTS][4] = {};
#pragma unroll
  for (int d = 0; d < S::DK; d += 16) {
    unsigned a[4], b[4];
    load_matrices(a, left + d + lane / 16 * 8);
#pragma unroll
    for (int n = 0; n < PARTS; n++) {
      if (n > tile) continue;
      load_matrices(b, right + n * 16 * Room::KEYS + d + lane / 8 % 2 * 8);
      multiply_add_halves(sums[2 * n], a, b[0], b[1]);
      multiply_add_halves(sums[2 * n + 1], a, b[2], b[3]);
    }
  }
#pragma unroll
  for (int n = 0; n < 2 * PARTS; n++) {
    if (n > 2 * tile + 1 && !is_query) continue;
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int i = tile * 16 + lane / 4 + 8 * half, j = 8 * n + 2 * (lane % 4);
      float value[2];
#pragma unroll
      for (int e = 0; e < 2; e++) {
        const bool is_lower = is_query ? j + e <= i : j + e < i;
        const float sum = sums[n][2 * half + e] * (is_query ? 1.f : room.beta[i]);
        value[e] = is_lower ? sum * __expf(room.decay[i] - room.decay[j + e]) : 0.f;
      }
      if (is_query) {
        *reinterpret_cast<unsigned*>(scores + i * CHUNK + j) = packed_halves(value[0], value[1]);
        continue;
      }
      *reinterpret_cast<unsigned*>(room.lower + i * Room::SCORES + j) =
          packed_halves(-value[0], -value[1]);
      if (n / 2 == tile)
        *reinterpret_cast<float2*>(room.diagonal + (i * 16 + j % 16)) =
            make_float2(value[0], value[1]);
    }
  }
}

// Forward substitution by blocks of sixteen tokens, transposed: a warp has sixteen columns of
// W (left negative where k was) or U at a time, and needs nothing of the others.
template <typename S>
__device__ __forceinline__ void solve_chunk(ChunkRoom<S>& room, __half* u) {
  using Room = ChunkRoom<S>;
  const int lane = threadIdx.x % 32;
  const int down = lane % 8 + lane / 16 * 8, across = lane / 8 % 2 * 8;  // of four 8 x 8
  for (int m = threadIdx.x / 32; m < (S::DK + S::DV) / 16; m += blockDim.x / 32) {
    const bool is_key = m < S::DK / 16;
    const int pitch = is_key ? Room::KEYS : Room::VALUES;
    __half* columns = is_key ? room.k + m * 16 : room.v + m * 16 - S::DK;
    const float* factors = (is_key ? room.beta_decay : room.beta) + 2 * (lane % 4);
    unsigned x[PARTS][4];
#pragma unroll
    for (int block = 0; block < PARTS; block++) {
      __half* place = columns + (block * 16 + down) * pitch + across;
      unsigned b[4];
      float sums[2][4];
      load_matrices_transposed(x[block], place);
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const float2 pair = unpacked_halves(x[block][i]);
        const float2 factor =
            *reinterpret_cast<const float2*>(factors + block * 16 + i / 2 * 8);
        sums[i / 2][i % 2 * 2] = pair.x * factor.x;
        sums[i / 2][i % 2 * 2 + 1] = pair.y * factor.y;
      }
#pragma unroll
      for (int j = 0; j < block; j++) {
        load_matrices(b, room.lower + (block * 16 + down) * Room::SCORES + j * 16 + across);
        multiply_add_halves(sums[0], x[j], b[0], b[1]);
        multiply_add_halves(sums[1], x[j], b[2], b[3]);
      }
      auto pack = [&] {
#pragma unroll
        for (int i = 0; i < 4; i++)
          x[block][i] = packed_halves(sums[i / 2][i % 2 * 2], sums[i / 2][i % 2 * 2 + 1]);
      };
      pack();
      load_matrices(b, room.inverse + (block * 16 + down) * Room::INVERSE + across);
      multiply_add_halves(sums[0], x[block], b[0], b[1]);
      multiply_add_halves(sums[1], x[block], b[2], b[3]);
      pack();
      if (is_key) {
        const unsigned negative[4] = {
            x[block][0] ^ 0x80008000u, x[block][1] ^ 0x80008000u, x[block][2] ^ 0x80008000u,
            x[block][3] ^ 0x80008000u};
        store_matrices_transposed(place, negative);
      } else {
        *reinterpret_cast<uint4*>(
            u + (((m - S::DK / 16) * PARTS + block) * 32 + lane) * 8) =
            make_uint4(x[block][0], x[block][1], x[block][2], x[block][3]);
      }
    }
  }
}

// Grid: (chunks, value heads, rows); 256 threads.
template <typename S>
__device__ void prepare_chunk(const DeltaPrompt<S>& all, const ChunkTerms<S>& to) {
  constexpr int WARPS = 8, THREADS = 32 * WARPS;
  using Room = ChunkRoom<S>;
  extern __shared__ __align__(16) unsigned char shared[];
  Room& room = *reinterpret_cast<Room*>(shared);
  const int chunk = blockIdx.x, head = blockIdx.y, number = blockIdx.z;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int key_head = head / (S::HV / S::HK), member = head % (S::HV / S::HK);
  const DeltaRow row(all.rows, number, all.row_columns);
  const ChunkBounds bounds(row, chunk);
  if (bounds.begin == bounds.end) return;
  const long long here = to.of_value_head(number, chunk, head);

  convolve_chunk(all, row, bounds, number, head, room);
  if (threadIdx.x < CHUNK) {
    const int t = bounds.begin + threadIdx.x;
    float log_decay = 0.f, beta = 0.f;
    if (t < bounds.end) {
      const auto* a = all.a.of(number, key_head, member, all.columns + 15) + t * all.a.time;
      const auto* b = all.b.of(number, key_head, member, all.columns + 12) + t * all.b.time;
      log_decay = log_decay_of(
          static_cast<float>(*a), all.weights.dt_bias[head], all.weights.decay_rates[head]);
      beta = sigmoid(static_cast<float>(*b));
    }
    room.decay[threadIdx.x] = log_decay;
    room.beta[threadIdx.x] = beta;
  }
  __syncthreads();

  const long long keys = to.of_key_head(number, chunk, key_head) * CHUNK * S::DK;
  constexpr int TOGETHER = 4, PIECES = (S::DK + 63) / 64;
#pragma unroll 1
  for (int i = warp; i < 2 * CHUNK; i += TOGETHER * WARPS) {  // norms of q, then of k
    float2 x[TOGETHER][PIECES];
    float squares[TOGETHER] = {};
    __half* lines[TOGETHER];
#pragma unroll
    for (int n = 0; n < TOGETHER; n++) {
      const int line = i + n * WARPS;
      lines[n] = (line < CHUNK ? room.q : room.k) + line % CHUNK * Room::KEYS + 2 * lane;
#pragma unroll
      for (int j = 0; j < PIECES; j++) {
        if (2 * lane + 64 * j >= S::DK) continue;
        x[n][j] = __half22float2(*reinterpret_cast<__half2*>(lines[n] + 64 * j));
        squares[n] = fmaf(x[n][j].x, x[n][j].x, fmaf(x[n][j].y, x[n][j].y, squares[n]));
      }
    }
#pragma unroll
    for (int offset = 16; offset; offset >>= 1)
#pragma unroll
      for (int n = 0; n < TOGETHER; n++)
        squares[n] += __shfl_xor_sync(0xffffffffu, squares[n], offset);
#pragma unroll
    for (int n = 0; n < TOGETHER; n++) {
      const int line = i + n * WARPS;
      const float factor = rsqrtf(squares[n] + 1e-6f);
      __half* shared_by_heads =
          (line < CHUNK ? to.q : to.k) + keys + line % CHUNK * S::DK + 2 * lane;
#pragma unroll
      for (int j = 0; j < PIECES; j++) {
        if (2 * lane + 64 * j >= S::DK) continue;
        const __half2 normed = __floats2half2_rn(x[n][j].x * factor, x[n][j].y * factor);
        *reinterpret_cast<__half2*>(lines[n] + 64 * j) = normed;
        if (member == 0) *reinterpret_cast<__half2*>(shared_by_heads + 64 * j) = normed;
      }
    }
  }
  if (warp == 0) {  // sums of log decays; a lane has two tokens
    const float2 own = *reinterpret_cast<float2*>(room.decay + 2 * lane);
    float before = own.x + own.y;
#pragma unroll
    for (int offset = 1; offset < 32; offset <<= 1) {
      const float other = __shfl_up_sync(0xffffffffu, before, offset);
      if (lane >= offset) before += other;
    }
    const float last = __shfl_sync(0xffffffffu, before, 31);
    before = __shfl_up_sync(0xffffffffu, before, 1);
    if (lane == 0) before = 0.f;
    const float sums[2] = {before + own.x, before + own.x + own.y};
#pragma unroll
    for (int e = 0; e < 2; e++) {
      const int t = 2 * lane + e;
      room.decay[t] = sums[e];
      room.beta_decay[t] = room.beta[t] * expf(sums[e]);
      to.factors[here * 2 * CHUNK + t] = expf(sums[e]);
      to.factors[here * 2 * CHUNK + CHUNK + t] = expf(last - sums[e]);
    }
  }
  __syncthreads();

  multiply_keys(room, to.scores + here * CHUNK * CHUNK);
  __syncthreads();
  if (warp < PARTS && lane < 16) {  // column ``lane`` of an inverse
    const float* lower = room.diagonal + warp * 16 * 16;
    float x[16];
#pragma unroll
    for (int i = 0; i < 16; i++) {
      x[i] = i == lane ? 1.f : 0.f;
#pragma unroll
      for (int j = 0; j < i; j += 4) {
        const float4 row = *reinterpret_cast<const float4*>(lower + i * 16 + j);
        x[i] = fmaf(-row.x, x[j], x[i]);
        if (j + 1 < i) x[i] = fmaf(-row.y, x[j + 1], x[i]);
        if (j + 2 < i) x[i] = fmaf(-row.z, x[j + 2], x[i]);
        if (j + 3 < i) x[i] = fmaf(-row.w, x[j + 3], x[i]);
      }
      room.inverse[(warp * 16 + i) * Room::INVERSE + lane] = __float2half(i == lane ? 0.f : x[i]);
    }
  }
  __syncthreads();

  solve_chunk(room, to.u + here * CHUNK * S::DV);
  __syncthreads();
  for (int i = threadIdx.x; i < CHUNK * S::DK / 8; i += THREADS) {
    const int t = i / (S::DK / 8), d = i % (S::DK / 8) * 8;
    *reinterpret_cast<uint4*>(to.w + (here * CHUNK + t) * S::DK + d) =
        *reinterpret_cast<const uint4*>(room.k + t * Room::KEYS + d);
  }
}
