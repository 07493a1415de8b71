// Heads of a long window, from the projections to where attention takes them: queries and keys normed
// and turned, keys and values into pages. A warp has some of the heads of one token, and computes its
// sines once; numbers are rounded as ProjectedHeads rounds them.

template <typename T>
struct PromptHeads {
  Heads<T> queries, keys, values;  // as the projections left them, (rows, heads, width, dim)
  const T* query_norm;
  const T* key_norm;
  const float* epsilon;
  const float* frequencies;
  const int* tables;
  const int* starts;
  const int* lengths;
  int rows, width, num_heads, num_kv_heads, num_blocks, table_length;
  int first;  // position that rotary embeddings count from
  T* out;     // (rows, width, heads, dim)
  T* key_pages;
  T* value_pages;
};

template <typename T>
struct alignas(2 * sizeof(T)) Two {
  T x, y;
};

// Grid: (blocks of WARPS tokens, heads of all kinds / HEADS); WARPS warps. A lane has pairs of numbers.
template <typename T, int DIM, int ROTARY, bool NORM, int BLOCK_SIZE, int WARPS, int HEADS>
__device__ void prepare_heads(const PromptHeads<T>& all) {
  static_assert(DIM % 32 == 0 && ROTARY % 4 == 0);
  constexpr int PAIRS = DIM / 2, EACH = (PAIRS + 31) / 32;
  constexpr int TURNED = ROTARY / 4, TURNS = (TURNED + 31) / 32;  // pairs of the first half
  __shared__ Two<T> prepared[WARPS][PAIRS];
  const int lane = threadIdx.x % 32, token = blockIdx.x * WARPS + threadIdx.x / 32;
  if (token >= all.rows * all.width) return;
  const int row = token / all.width, t = token % all.width;
  if (t >= all.lengths[row]) return;
  Two<T>* to = prepared[threadIdx.x / 32];
  const int position = all.starts[row] + t;
  const int block = all.tables[(long long)row * all.table_length + position / BLOCK_SIZE];
  float2 sine[TURNS + 1], cosine[TURNS + 1];
#pragma unroll
  for (int j = 0; j < TURNS; j++) {
    const int pair = lane + 32 * j;
    if (pair >= TURNED) continue;
    const float angle = static_cast<float>(position - all.first);
    sine_cosine(__fmul_rn(angle, all.frequencies[2 * pair]), sine[j].x, cosine[j].x);
    sine_cosine(__fmul_rn(angle, all.frequencies[2 * pair + 1]), sine[j].y, cosine[j].y);
  }

  // Heads are numbered queries first, then keys, then values.
  const int begin = blockIdx.y * HEADS;
  const int end = min(begin + HEADS, all.num_heads + 2 * all.num_kv_heads);
  Two<T> next[EACH];
  auto load = [&](int number) {
    const int key = number - all.num_heads, value = key - all.num_kv_heads;
    const Heads<T>& kind = key < 0 ? all.queries : value < 0 ? all.keys : all.values;
    const int head = key < 0 ? number : value < 0 ? key : value;
    const Two<T>* from = reinterpret_cast<const Two<T>*>(
        kind.data + row * kind.row + head * kind.head + t * kind.time);
#pragma unroll
    for (int j = 0; j < EACH; j++)
      if (lane + 32 * j < PAIRS) next[j] = from[lane + 32 * j];
  };
  load(begin);
  for (int number = begin; number < end; number++) {
    const int key = number - all.num_heads, value = key - all.num_kv_heads;
    const bool is_query = key < 0, is_value = value >= 0;
    const long long paged =
        (((long long)(is_value ? value : key) * all.num_blocks + block) * BLOCK_SIZE +
         position % BLOCK_SIZE) * DIM;
    Two<T>* into = reinterpret_cast<Two<T>*>(
        is_query ? all.out + ((long long)token * all.num_heads + number) * DIM
                 : (is_value ? all.value_pages : all.key_pages) + paged);
    Two<T> x[EACH];
#pragma unroll
    for (int j = 0; j < EACH; j++) x[j] = next[j];
    if (number + 1 < end) load(number + 1);
    if (!is_value) {
      if constexpr (NORM) {
        float squares = 0.f;
#pragma unroll
        for (int j = 0; j < EACH; j++) {
          if (lane + 32 * j >= PAIRS) continue;
          const float low = static_cast<float>(x[j].x), high = static_cast<float>(x[j].y);
          squares = fmaf(low, low, fmaf(high, high, squares));
        }
        const float factor = rsqrtf(warp_sum(squares) / DIM + *all.epsilon);
        const Two<T>* norm =
            reinterpret_cast<const Two<T>*>(is_query ? all.query_norm : all.key_norm);
        auto normed = [&](T number, T weight) {
          const float rounded_first = rounded<T>(__fmul_rn(static_cast<float>(number), factor));
          return static_cast<T>(__fmul_rn(static_cast<float>(weight), rounded_first));
        };
#pragma unroll
        for (int j = 0; j < EACH; j++) {
          if (lane + 32 * j >= PAIRS) continue;
          const Two<T> weight = norm[lane + 32 * j];
          x[j] = {normed(x[j].x, weight.x), normed(x[j].y, weight.y)};
        }
      }
      __syncwarp();
#pragma unroll
      for (int j = 0; j < EACH; j++)
        if (lane + 32 * j < PAIRS) to[lane + 32 * j] = x[j];
      __syncwarp();
      auto turn = [](T& low, T& high, float sine, float cosine) {
        const float a = static_cast<float>(low), b = static_cast<float>(high);
        low = static_cast<T>(fmaf(a, cosine, -__fmul_rn(b, sine)));
        high = static_cast<T>(fmaf(a, sine, __fmul_rn(b, cosine)));
      };
#pragma unroll
      for (int j = 0; j < TURNS; j++) {
        const int pair = lane + 32 * j;
        if (pair >= TURNED) continue;
        Two<T> low = to[pair], high = to[pair + TURNED];
        turn(low.x, high.x, sine[j].x, cosine[j].x);
        turn(low.y, high.y, sine[j].y, cosine[j].y);
        to[pair] = low;
        to[pair + TURNED] = high;
      }
      __syncwarp();
#pragma unroll
      for (int j = 0; j < EACH; j++)
        if (lane + 32 * j < PAIRS) x[j] = to[lane + 32 * j];
    }
#pragma unroll
    for (int j = 0; j < EACH; j++)
      if (lane + 32 * j < PAIRS) into[lane + 32 * j] = x[j];
  }
}
