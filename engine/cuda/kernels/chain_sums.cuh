// What follows a product of a chain: parts are stored, and of each row added up in order.

template <int ROWS>
struct PartSums {
  static constexpr int AT_ONCE = ROWS > 16 ? 2 : 1;  // rows that a warp adds up
  static constexpr int PARTS_AT_ONCE = 8 / AT_ONCE;

  const Chain& chain;
  const Share* shares;   // of this block
  const float* factors;  // (rows,) of the norm before

  __device__ float* part_row(int part, int row) const {
    return chain.parts + ((long long)part * chain.rows + row) * TILE;
  }

  __device__ void store_part(int part, const float (&sums)[ROWS / 2], int thread) const {
    const int column = thread / 32 * 16 + thread % 32 / 4, first_row = thread % 4 * 2;
#pragma unroll
    for (int j = 0; j < ROWS / 8; j++)
#pragma unroll
      for (int e = 0; e < 2; e++) {
        const int row = j * 8 + first_row + e;
        if (row < chain.rows) {
          float* to = part_row(part, row) + column;
          __stcg(to, sums[j * 4 + e]);
          __stcg(to + 8, sums[j * 4 + 2 + e]);
        }
      }
  }

  // Where tiles have two parts at most: the first stays in registers, the other goes by way of memory,
  // as it lies in registers.
  __device__ float4* kept_part(int part, int thread) const {
    return reinterpret_cast<float4*>(chain.parts + (long long)part * (ROWS * TILE)) + thread;
  }
  __device__ void store_as_is(int part, const float (&sums)[ROWS / 2], int thread) const {
    float4* to = kept_part(part, thread);
#pragma unroll
    for (int j = 0; j < ROWS / 8; j++)
      if (j * 8 < chain.rows)
        __stcg(
            to + j * MULTIPLYING,
            make_float4(sums[j * 4], sums[j * 4 + 1], sums[j * 4 + 2], sums[j * 4 + 3]));
  }
  __device__ void add_as_is(int part, float (&sums)[ROWS / 2], int thread) const {
    const float4* from = kept_part(part, thread);
    float4 more[ROWS / 8];
#pragma unroll
    for (int j = 0; j < ROWS / 8; j++)
      if (j * 8 < chain.rows) more[j] = __ldcg(from + j * MULTIPLYING);
#pragma unroll
    for (int j = 0; j < ROWS / 8; j++)
      if (j * 8 < chain.rows) {
        sums[j * 4] = __fadd_rn(sums[j * 4], more[j].x);
        sums[j * 4 + 1] = __fadd_rn(sums[j * 4 + 1], more[j].y);
        sums[j * 4 + 2] = __fadd_rn(sums[j * 4 + 2], more[j].z);
        sums[j * 4 + 3] = __fadd_rn(sums[j * 4 + 3], more[j].w);
      }
  }
  // What follows the sums of a tile, no residual, from registers: of a warp, 16 columns.
  __device__ void finish_tile(
      const Link& link, int tile, const float (&sums)[ROWS / 2], int thread) const {
    const int lane = thread % 32, warp = thread / 32;
    const int columns = link.columns(), column = tile * TILE + warp * 16;
#pragma unroll
    for (int j = 0; j < ROWS / 8; j++) {
      if (j * 8 >= chain.rows) break;
      const float2 both = *reinterpret_cast<const float2*>(factors + j * 8 + lane % 4 * 2);
      float low[2] = {__fmul_rn(sums[j * 4], both.x), __fmul_rn(sums[j * 4 + 1], both.y)};
      float high[2] = {__fmul_rn(sums[j * 4 + 2], both.x), __fmul_rn(sums[j * 4 + 3], both.y)};
      const int row = j * 8 + lane / 4;
      if (link.gated()) {
        activate(low, high);
        const unsigned pair = transposed(packed(low[0], low[1]));
        const int gated = tile * (TILE / 2) + warp * 8;
        if (row < chain.rows && gated < columns) store_pair(link.out + place(row, gated), pair);
      } else {
        const unsigned pairs[2] = {
            transposed(packed(low[0], low[1])), transposed(packed(high[0], high[1]))};
        if (row < chain.rows && column < columns) {
          bfloat16* to = link.out + (long long)row * columns + column;
          store_pair(to, pairs[0]);
          store_pair(to + 8, pairs[1]);
        }
      }
    }
  }
  // A lane has two columns of 8.
  __device__ static void store_pair(bfloat16* to, unsigned pair) {
    __stcg(reinterpret_cast<unsigned*>(to) + threadIdx.x % 4, pair);
  }

  // Adds up the parts of this block's share of all rows of tiles, and does what follows.
  __device__ void finish(
      const Link& link, const unsigned* stored, int num_shares, int thread) const {
    if (thread < num_shares) {
      const Share& share = shares[thread];
      while (acquired(stored + share.tile) < share.num_parts) {
      }
    }
    meet(1, MULTIPLYING);
    const int num_items = num_shares ? shares[num_shares - 1].end_item : 0;
    for (int first = thread / 32; first < num_items; first += MULTIPLYING / 32 * AT_ONCE)
      finish_rows(link, num_shares, first, num_items, thread % 32);
  }

  // Of AT_ONCE rows, so that what is read of them comes at once; a lane has 4 columns.
  __device__ void finish_rows(
      const Link& link, int num_shares, int first_item, int num_items, int lane) const {
    const float* from[AT_ONCE];
    int tiles[AT_ONCE], rows[AT_ONCE], num_parts[AT_ONCE], most_parts = 0;
    uint2 beside[AT_ONCE], weights[AT_ONCE] = {};
    float values[AT_ONCE][4] = {};
#pragma unroll
    for (int u = 0; u < AT_ONCE; u++) {
      const int item = min(first_item + u * (MULTIPLYING / 32), num_items - 1);
      int i = 0;
      while (i + 1 < num_shares && shares[i + 1].first_item <= item) i++;
      const Share& share = shares[i];
      tiles[u] = share.tile;
      rows[u] = share.first_row + item - share.first_item;
      num_parts[u] = share.num_parts;
      most_parts = max(most_parts, share.num_parts);
      from[u] = part_row(share.first_part, rows[u]) + lane * 4;
      if (link.after == After::residual) {
        const int column = min(tiles[u] * TILE + lane * 4, link.columns() - 4);
        beside[u] = __ldcg(reinterpret_cast<const uint2*>(
            link.residual + (long long)rows[u] * link.columns() + column));
        if (link.norm) weights[u] = __ldg(reinterpret_cast<const uint2*>(link.norm + column));
      }
    }
    const long long distance = (long long)chain.rows * TILE;
    for (int first = 0; first < most_parts; first += PARTS_AT_ONCE) {
      float4 parts[PARTS_AT_ONCE][AT_ONCE];
#pragma unroll
      for (int i = 0; i < PARTS_AT_ONCE; i++)
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++)
          parts[i][u] = __ldcg(reinterpret_cast<const float4*>(
              from[u] + min(first + i, num_parts[u] - 1) * distance));
#pragma unroll
      for (int i = 0; i < PARTS_AT_ONCE; i++)
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++)
          if (first + i < num_parts[u]) {
            values[u][0] = __fadd_rn(values[u][0], parts[i][u].x);
            values[u][1] = __fadd_rn(values[u][1], parts[i][u].y);
            values[u][2] = __fadd_rn(values[u][2], parts[i][u].z);
            values[u][3] = __fadd_rn(values[u][3], parts[i][u].w);
          }
    }
#pragma unroll
    for (int u = 0; u < AT_ONCE; u++) {
      if (first_item + u * (MULTIPLYING / 32) >= num_items) break;
      if (link.after == After::residual) {
        add_residual(link, tiles[u], rows[u], lane, values[u], beside[u], weights[u]);
      } else {
        scale(link, tiles[u], rows[u], lane, values[u]);
      }
    }
  }

  __device__ void add_residual(
      const Link& link, int tile, int row, int lane, float (&values)[4],
      const uint2& beside, const uint2& weight) const {
    const int column = tile * TILE + lane * 4;
    const bool writes = column < link.columns();
    float squares = 0.f;
    unsigned normed[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const float2 both = as_floats(i ? beside.y : beside.x);
      const float2 factors = as_floats(i ? weight.y : weight.x);
      float* pair = values + 2 * i;
      pair[0] = rounded<bfloat16>(__fadd_rn(rounded<bfloat16>(pair[0]), both.x));
      pair[1] = rounded<bfloat16>(__fadd_rn(rounded<bfloat16>(pair[1]), both.y));
      squares = __fmaf_rn(pair[0], pair[0], squares);
      squares = __fmaf_rn(pair[1], pair[1], squares);
      normed[i] = packed(__fmul_rn(pair[0], factors.x), __fmul_rn(pair[1], factors.y));
    }
    squares = warp_sum(writes ? squares : 0.f);
    if (lane == 0) __stcg(chain.squares + tile * ROWS + row, squares);
    if (!writes) return;
    if (link.norm)
      __stcg(
          reinterpret_cast<uint2*>(link.normed + place(row, column)),
          make_uint2(normed[0], normed[1]));
    store(link.out + (long long)row * link.columns() + column, values);
  }

  // Of what the next product takes: it lies as in stages of the ring, chunk by chunk.
  __device__ static long long place(int row, int column) {
    return (long long)(column / CHUNK) * (ROWS * CHUNK) + swizzled(row, column % CHUNK / 8) +
        column % 8;
  }

  __device__ static float2 as_floats(unsigned pair) {
    return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&pair));
  }

  __device__ static void store(bfloat16* to, const float (&values)[4]) {
    __stcg(
        reinterpret_cast<uint2*>(to),
        make_uint2(packed(values[0], values[1]), packed(values[2], values[3])));
  }

  __device__ void scale(
      const Link& link, int tile, int row, int lane, float (&values)[4]) const {
    const float factor = factors[row];
#pragma unroll
    for (int i = 0; i < 4; i++) values[i] = __fmul_rn(values[i], factor);
    int column = tile * TILE + lane * 4;
    bool writes = true;
    if (link.gated()) {  // lanes with 4 gates, and those 2 further on with their values
      float ups[4];
#pragma unroll
      for (int i = 0; i < 4; i++) ups[i] = __shfl_down_sync(0xffffffffu, values[i], 2);
      activate(values, ups);
      activate(values + 2, ups + 2);
      column = tile * (TILE / 2) + lane / 4 * 8 + lane % 2 * 4;
      writes = lane % 4 < 2;
    }
    if (writes && column < link.columns())
      store(
          link.out +
              (link.gated() ? place(row, column) : (long long)row * link.columns() + column),
          values);
  }
};
