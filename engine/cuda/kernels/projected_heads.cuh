// Queries, keys and values as one product left them, a Source of PagedWindow: heads are normed and
// turned on their way. Numbers are rounded to T where MLX's operations would have stored them.

// Sine and cosine to about a unit in the last place, for angles up to a million or so: sincosf keeps a
// stack for any that are larger. The angle less quarter turns is exact but for the last term.
__device__ __forceinline__ void sine_cosine(float angle, float& sine, float& cosine) {
  const float quarters = rintf(__fmul_rn(angle, 0.636619747f));
  float x = fmaf(quarters, -1.57079637f, angle);
  x = fmaf(quarters, 4.37113883e-8f, x);
  x = fmaf(quarters, 1.71512451e-15f, x);
  const float s = __fmul_rn(x, x);
  float a = fmaf(-1.95152956e-4f, s, 8.33216087e-3f), b = fmaf(2.44331571e-5f, s, -1.38873162e-3f);
  a = fmaf(__fmul_rn(x, s), fmaf(a, s, -0.166666546f), x);
  b = fmaf(s, fmaf(s, fmaf(b, s, 4.16666456e-2f), -0.5f), 1.f);
  const int turn = static_cast<int>(quarters);
  sine = turn & 1 ? b : a;
  cosine = turn & 1 ? a : b;
  if (turn & 2) sine = -sine;
  if ((turn + 1) & 2) cosine = -cosine;
}

// A pair of numbers by an angle.
__device__ __forceinline__ void turn_pair(float& a, float& b, float sine, float cosine) {
  const float turned = fmaf(a, cosine, -__fmul_rn(b, sine));
  b = fmaf(a, sine, __fmul_rn(b, cosine));
  a = turned;
}

template <
    typename T, int ROTARY, bool NORM, bool GATED, int QUERY_STRIDE, int QUERY_OFFSET,
    int KEY_OFFSET, int VALUE_OFFSET>
struct ProjectedHeads {
  const T* projected;  // (rows, width, columns)
  const T* query_norm;
  const T* key_norm;
  const float* epsilon;
  const float* frequencies;  // (ROTARY / 2,): the angle a position of the pair (i, i + ROTARY / 2)
  int columns;

  static constexpr int NUM_TURNED = ROTARY;
  static constexpr bool IS_NORMED = NORM;

  template <typename Share>
  __device__ const T* token(const Share& share, int t) const {
    return projected + ((long long)share.row * share.all.width + t) * columns;
  }
  static constexpr int TURNS = (ROTARY / 2 + 31) / 32;
  static constexpr bool IN_LANE = ROTARY % 64 == 0;  // both numbers of a pair are the same lane's
  struct Angles {
    float sine[TURNS + 1], cosine[TURNS + 1];
  };
  // What a warp needs for heads of a kind, of which lane l has numbers l + 32 j.
  template <int COUNT>
  struct Preparation {
    float weight[COUNT], frequency[TURNS + 1], epsilon;

    __device__ Preparation(const ProjectedHeads& all, const T* norm) {
      const int lane = threadIdx.x % 32;
      if constexpr (NORM) {
#pragma unroll
        for (int j = 0; j < COUNT; j++) weight[j] = static_cast<float>(__ldg(norm + lane + 32 * j));
        epsilon = __ldg(all.epsilon);
      }
#pragma unroll
      for (int j = 0; j < TURNS; j++)
        frequency[j] = __ldg(all.frequencies + min(lane + 32 * j, ROTARY / 2 - 1));
    }
    __device__ Angles angles(int position) const {
      Angles of;
#pragma unroll
      for (int j = 0; j < TURNS; j++)
        sine_cosine(
            __fmul_rn(static_cast<float>(position), frequency[j]), of.sine[j], of.cosine[j]);
      return of;
    }
    __device__ void norm(float (&x)[COUNT]) const {
      if constexpr (NORM) {
        float squares = 0.f;
#pragma unroll
        for (int j = 0; j < COUNT; j++) squares = fmaf(x[j], x[j], squares);
        const float factor = rsqrtf(warp_sum(squares) / (32 * COUNT) + epsilon);
#pragma unroll
        for (int j = 0; j < COUNT; j++)
          x[j] = rounded<T>(__fmul_rn(weight[j], rounded<T>(__fmul_rn(x[j], factor))));
      }
    }
  };

  __device__ const T* query(long long token, int head) const {
    return projected + token * columns + QUERY_OFFSET + head * QUERY_STRIDE;
  }
  // ``to`` says where number d goes.
  template <int COUNT, typename To>
  __device__ void turn_into(float (&x)[COUNT], const Angles& by, const To& to) const {
    const int lane = threadIdx.x % 32;
    if constexpr (IN_LANE) {
#pragma unroll
      for (int j = 0; j < TURNS; j++) turn_pair(x[j], x[j + TURNS], by.sine[j], by.cosine[j]);
    }
#pragma unroll
    for (int j = 0; j < COUNT; j++) to(lane + 32 * j) = static_cast<T>(x[j]);
    __syncwarp();
    if constexpr (!IN_LANE) {
#pragma unroll
      for (int j = 0; j < TURNS; j++) {
        const int i = lane + 32 * j;
        if (i >= ROTARY / 2) continue;
        float a = static_cast<float>(to(i)), b = static_cast<float>(to(i + ROTARY / 2));
        turn_pair(a, b, by.sine[j], by.cosine[j]);
        to(i) = static_cast<T>(a);
        to(i + ROTARY / 2) = static_cast<T>(b);
      }
      __syncwarp();
    }
  }
  // One head, by a warp: ``from`` in global memory, ``to`` in shared memory. All loads come first.
  template <int DIM>
  __device__ void prepare(const T* from, const T* norm, int position, T* to) const {
    float x[DIM / 32];
#pragma unroll
    for (int j = 0; j < DIM / 32; j++)
      x[j] = static_cast<float>(__ldg(from + threadIdx.x % 32 + 32 * j));
    const Preparation<DIM / 32> by(*this, norm);
    const Angles angles = by.angles(position);
    by.norm(x);
    turn_into(x, angles, [&](int d) -> T& { return to[d]; });
  }
  template <typename Share>
  __device__ void write(
      const Share& share, int t, T* key_page, T* value_page, T* key, T* value) const {
    constexpr int COUNT = Share::DIM / 32;
    const int lane = threadIdx.x % 32;
    const T* from = token(share, t) + share.kv_head * Share::DIM;
    T held[COUNT];  // asked for before anything waits
#pragma unroll
    for (int j = 0; j < COUNT; j++) held[j] = __ldg(from + VALUE_OFFSET + lane + 32 * j);
    prepare<Share::DIM>(from + KEY_OFFSET, key_norm, share.start + t - share.all.first, key);
#pragma unroll
    for (int j = 0; j < COUNT; j++) {
      const int d = lane + 32 * j;
      key_page[d] = key[d];  // whose place may be the value's
      value_page[d] = value[d] = held[j];
    }
  }
  template <typename Share>
  __device__ void load_query(const Share& share, int t, int head, T* to) const {
    const T* from = token(share, t) + QUERY_OFFSET + head * QUERY_STRIDE;
    prepare<Share::DIM>(from, query_norm, share.start + t - share.all.first, to);
  }
  // The first token's heads and what they are prepared with, by a warp, 128 bytes a lane.
  template <typename Share>
  __device__ void ask(const Share& share) const {
    constexpr int LINE = 128 / sizeof(T), LINES = (Share::DIM + LINE - 1) / LINE;
    const int lane = threadIdx.x % 32, line = lane % LINES * LINE, which = lane / LINES;
    const T* from = token(share, 0) + line;
    const int kv = share.kv_head * Share::DIM;
    const int query = QUERY_OFFSET + share.kv_head * Share::QUERIES_OF_TOKEN * QUERY_STRIDE;
    if (which == 0) prefetch(from + KEY_OFFSET + kv);
    if (which == 1) prefetch(from + VALUE_OFFSET + kv);
    if (which == 2 && NORM) prefetch(query_norm + line);
    if (which == 3 && NORM) prefetch(key_norm + line);
    if (which >= 4 && which - 4 < Share::QUERIES_OF_TOKEN) prefetch(from + query + (which - 4) * QUERY_STRIDE);
    if (lane * 32 < ROTARY / 2) prefetch(frequencies + lane * 32);
    if (lane == 31) prefetch(epsilon);
  }
  // A gate follows its query. It is asked for before the value is there.
  template <typename Share>
  __device__ T gate(const Share& share, int t, int head, int d) const {
    if constexpr (!GATED) return static_cast<T>(0.f);
    return __ldg(token(share, t) + QUERY_OFFSET + head * QUERY_STRIDE + Share::DIM + d);
  }
  __device__ T finished(float value, T gate) const {
    if constexpr (!GATED) return static_cast<T>(value);
    const float open = rounded<T>(sigmoid(static_cast<float>(gate)));
    return static_cast<T>(__fmul_rn(rounded<T>(value), open));
  }
};
