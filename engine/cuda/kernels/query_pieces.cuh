// What is done to queries of a warp, 16 of a K/V head, before they meet keys: where they lie in shared memory, 16
// bytes at a time. LANES lanes have a query, lane l of them pieces l + LANES j, and so both numbers of each pair
// that a rotary embedding turns.

// A load that the compiler does not put off until its value is needed, at most until the next barrier: behind
// copies that are asked for meanwhile it would wait long.
__device__ __forceinline__ int load_early(const int* from) {
  int value;
  asm volatile("ld.global.b32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}
__device__ __forceinline__ float load_early(const float* from) {
  return __int_as_float(load_early(reinterpret_cast<const int*>(from)));
}
__device__ __forceinline__ uint4 load_early(const uint4* from) {
  uint4 value;
  asm volatile("ld.global.v4.b32 {%0,%1,%2,%3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(from)
               : "memory");
  return value;
}

constexpr int lanes_of_query(int rotary) {
  int lanes = 8;
  while (rotary / 16 % lanes) lanes /= 2;
  return lanes;
}
__device__ __forceinline__ float first_of(unsigned pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float second_of(unsigned pair) {
  return __uint_as_float(pair & 0xffff0000u);
}

// Queries that are ready, and queries as one product left them.
struct ReadyQueries {
  static constexpr bool ARE_READY = true, ARE_NORMED = false;
  static constexpr int ROTARY = 0;
  const bfloat16* queries;  // (rows, width, heads, dim)
  int numbers;              // of all heads of a token

  template <int DIM>
  __device__ const bfloat16* query(long long token, int head) const {
    return queries + token * numbers + head * DIM;
  }
};
template <typename Heads>
struct ProjectedQueries {
  static constexpr bool ARE_READY = false, ARE_NORMED = Heads::IS_NORMED;
  static constexpr int ROTARY = Heads::NUM_TURNED;
  Heads heads;
  const int* starts;

  template <int DIM>
  __device__ const bfloat16* query(long long token, int head) const {
    return heads.query(token, head);
  }
};

// Which a warp's 16 are, of those that rows have for a K/V head: row by row, token by token.
struct QueryPlace {
  int first_row, width, kv_head;
  int first, count;  // the warp's first one, and how many there are in all
};

template <int DIM, int GROUP, typename Queries>
struct QueryPieces {
  static constexpr int PIECES = DIM / 8, ROTARY = Queries::ROTARY, LANES = lanes_of_query(ROTARY);
  static constexpr int AT_ONCE = 32 / LANES, EACH = PIECES / LANES, PAIRS = ROTARY / 16 / LANES;
  static constexpr int TURNS = (ROTARY / 2 + 31) / 32;  // angles of a token that a lane finds
  static constexpr int TOKENS = 16 % GROUP ? 15 / GROUP + 2 : 16 / GROUP;  // at most
  static constexpr int ROOM = TOKENS * ROTARY;  // numbers that ``prepare`` needs, float32
  static_assert(LANES >= 2 && PIECES % LANES == 0);

  uint4 weights[EACH];
  float epsilon, frequencies[TURNS + 1];
  int position, first_token;  // of the token that lane l has: first_token + l
  int first_query;            // of all that this lane has

  // Asks for what all queries are prepared with.
  __device__ explicit QueryPieces(const Queries& from) {
    if constexpr (!Queries::ARE_READY) {
      const int lane = threadIdx.x % 32;
#pragma unroll
      for (int j = 0; j < TURNS; j++) {
        // what lane l finds lies at place l + 32 j: of each LANES pieces the first four numbers, then the others
        const int place = min(lane + 32 * j, ROTARY / 2 - 1), within = place % (8 * LANES);
        const int number = within / 4 % LANES * 8 + within / (4 * LANES) * 4 + within % 4;
        frequencies[j] = load_early(from.heads.frequencies + place - within + number);
      }
      if constexpr (Queries::ARE_NORMED) {
#pragma unroll
        for (int j = 0; j < EACH; j++)
          weights[j] = load_early(
              reinterpret_cast<const uint4*>(from.heads.query_norm) + lane % LANES + LANES * j);
        epsilon = load_early(from.heads.epsilon);
      }
    }
  }
  // Begins to copy the queries to where ``place`` says that piece c of query r goes.
  template <typename Place>
  __device__ void ask(const Queries& from, const QueryPlace& at, int positions_before, const Place& place) {
    const int lane = threadIdx.x % 32;
    first_token = at.first / GROUP;
    first_query = at.first + lane / LANES;
#pragma unroll
    for (int i = 0; i < 16 / AT_ONCE; i++) {
      const int query = min(first_query + i * AT_ONCE, at.count - 1);  // there is always one
      const long long token = (long long)at.first_row * at.width + query / GROUP;
      const bfloat16* numbers = from.template query<DIM>(token, at.kv_head * GROUP + query % GROUP);
#pragma unroll
      for (int j = 0; j < EACH; j++) {
        const int piece = lane % LANES + LANES * j;
        copy_async(place(i * AT_ONCE + lane / LANES, piece), numbers + piece * 8);
      }
    }
    if constexpr (!Queries::ARE_READY) {
      const int token = min(first_token + min(lane, TOKENS - 1), (at.count - 1) / GROUP);
      const int row = at.width == 1 ? token : token / at.width;
      position = load_early(from.starts + at.first_row + row) + token - row * at.width - positions_before;
    }
  }
  // Finds by what each token turns them: sines, then cosines. ``room``: ROOM numbers that are this warp's alone.
  __device__ void find_angles(float* room) const {
    if constexpr (Queries::ARE_READY) return;
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int t = 0; t < TOKENS; t++) {
      const float here = static_cast<float>(__shfl_sync(0xffffffffu, position, t));
#pragma unroll
      for (int j = 0; j < TURNS; j++) {
        float sine, cosine;
        sine_cosine(__fmul_rn(here, frequencies[j]), sine, cosine);
        const int place = lane + 32 * j;
        if (place < ROTARY / 2) {
          room[t * ROTARY + place] = sine;
          room[t * ROTARY + ROTARY / 2 + place] = cosine;
        }
      }
    }
  }
  // Norms and turns queries that have been copied.
  template <typename Place>
  __device__ void prepare(const float* room, const Place& place) const {
    __syncwarp();
    if constexpr (!Queries::ARE_READY) {
      const int lane = threadIdx.x % 32;
      auto piece = [&](int i, int j) -> uint4& {
        return *reinterpret_cast<uint4*>(place(i * AT_ONCE + lane / LANES, lane % LANES + LANES * j));
      };
      uint4 queries[16 / AT_ONCE][EACH];
#pragma unroll
      for (int i = 0; i < 16 / AT_ONCE; i++)
#pragma unroll
        for (int j = 0; j < EACH; j++) queries[i][j] = piece(i, j);
#pragma unroll
      for (int i = 0; i < 16 / AT_ONCE; i++) {
        if constexpr (Queries::ARE_NORMED) norm(queries[i]);
        const int token = (first_query + i * AT_ONCE) / GROUP - first_token;
        turn(queries[i], room + token * ROTARY + lane % LANES * 4);
#pragma unroll
        for (int j = 0; j < EACH; j++) piece(i, j) = queries[i][j];
      }
    }
  }

 private:
  __device__ void norm(uint4 (&query)[EACH]) const {
    float squares = 0.f;
#pragma unroll
    for (int j = 0; j < EACH; j++)
#pragma unroll
      for (int k = 0; k < 4; k++) {
        const unsigned pair = (&query[j].x)[k];
        squares = fmaf(first_of(pair), first_of(pair), squares);
        squares = fmaf(second_of(pair), second_of(pair), squares);
      }
#pragma unroll
    for (int offset = LANES / 2; offset; offset >>= 1)
      squares += __shfl_xor_sync(0xffffffffu, squares, offset);
    const float factor = rsqrtf(squares / DIM + epsilon);
#pragma unroll
    for (int j = 0; j < EACH; j++)
#pragma unroll
      for (int k = 0; k < 4; k++) {
        unsigned& pair = (&query[j].x)[k];
        const unsigned normed =
            packed(__fmul_rn(first_of(pair), factor), __fmul_rn(second_of(pair), factor));
        const unsigned weight = (&weights[j].x)[k];
        // exact before it is rounded, as in float32
        const __nv_bfloat162 weighed = __hmul2(
            reinterpret_cast<const __nv_bfloat162&>(normed),
            reinterpret_cast<const __nv_bfloat162&>(weight));
        pair = reinterpret_cast<const unsigned&>(weighed);
      }
  }
  // ``angles``: of a token, from the lane's first piece on.
  __device__ void turn(uint4 (&query)[EACH], const float* angles) const {
#pragma unroll
    for (int j = 0; j < PAIRS; j++)
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const float* here = angles + (2 * j + half) * 4 * LANES;
        const float4 sines = *reinterpret_cast<const float4*>(here);
        const float4 cosines = *reinterpret_cast<const float4*>(here + ROTARY / 2);
#pragma unroll
        for (int k = 0; k < 2; k++) {
          unsigned &a = (&query[j].x)[2 * half + k], &b = (&query[j + PAIRS].x)[2 * half + k];
          float a0 = first_of(a), a1 = second_of(a), b0 = first_of(b), b1 = second_of(b);
          turn_pair(a0, b0, (&sines.x)[2 * k], (&cosines.x)[2 * k]);
          turn_pair(a1, b1, (&sines.x)[2 * k + 1], (&cosines.x)[2 * k + 1]);
          a = packed(a0, a1);
          b = packed(b0, b1);
        }
      }
  }
};
