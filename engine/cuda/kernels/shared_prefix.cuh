// Attention over positions that the rows of a group share, read once for all of them.
//
// A group's queries of a K/V head, row by row, token by token, are cut into tiles of QUERIES; the tiles of
// the next group follow. Key tiles of what a group shares are dealt out to pieces, one after another, as
// many to each. A block has one tile and one piece; it leaves for each query what attention to its piece
// comes to, for the merge of paged_attention.cuh to add to the row's own splits.
// Results depend on the number of pieces, and so on the batch: exact mode has no groups.

// Queries that are ready, and queries as one product left them.
struct ReadyQueries {
  static constexpr bool ARE_READY = true;
  const bfloat16* queries;  // (rows, width, heads, dim)
  int numbers;              // of all heads of a token

  template <int DIM>
  __device__ void ask() const {}
  template <int DIM>
  __device__ const bfloat16* query(long long token, int head) const {
    return queries + token * numbers + head * DIM;
  }
};
template <typename Source>
struct ProjectedQueries {
  static constexpr bool ARE_READY = false;
  using Heads = Source;
  Source source;
  const int* starts;

  template <int DIM>
  __device__ void ask() const {
    source.template ask_preparation<DIM>();
  }
  template <int DIM>
  __device__ const bfloat16* query(long long token, int head) const {
    return source.query(token, head);
  }
};

template <typename Queries>
struct SharedPrefix {
  Queries queries;
  const bfloat16* key_pages;  // (K/V heads * blocks * block size, dim), see engine/pages.py
  const bfloat16* value_pages;
  const int* tables;  // (rows, table_length) block ids
  const int* groups;  // (num_groups, 3): first row, row after the last, positions that they share
  bfloat16* partial;  // (K/V heads, pieces, num_queries, dim), normalised
  float* stats;       // likewise without dim: (maximum of the scaled scores in base 2, sum)
  int num_groups, width, num_kv_heads, num_blocks, table_length, num_pieces;
  int num_queries;  // of all rows for a K/V head
  int first;  // positions before this one are not seen
  float scale;
};

template <int DIM, int GROUP, int BLOCK_SIZE, int WARPGROUPS, int SLOTS, typename Queries>
struct SharedPiece {
  using T = bfloat16;
  using Attention = WarpgroupAttention<DIM>;
  static constexpr int KEYS = Attention::KEYS, PIECES = Attention::PIECES;
  static constexpr int TILE_QUERIES = WARPGROUPS * 64, WARPS = WARPGROUPS * 4;
  static constexpr int SLOT = KEYS * DIM;       // keys of a tile, or its values
  static constexpr int FETCHED = KEYS / WARPS;  // rows of either that a warp fetches
  static constexpr float SLACK = 8.f;           // weights of up to two to the power of it are added up
  static_assert(KEYS == SHARED_KEYS && BLOCK_SIZE % FETCHED == 0);

  const SharedPrefix<Queries>& all;
  const int lane, warp, kv_head, piece;
  const int number;  // of a tile among those of all groups
  int tile;          // of its group's
  int first_row, num_queries = 0, positions = 0, begin = 0, stop = 0;  // key tiles of the piece

  __device__ SharedPiece(const SharedPrefix<Queries>& all, int number, int piece)
      : all(all), lane(threadIdx.x % 32), warp(threadIdx.x / 32), kv_head(blockIdx.y), piece(piece),
        number(number), tile(number) {
    if (threadIdx.x < 32) all.queries.template ask<DIM>();
    const int each = all.width * GROUP;
    for (const int* group = all.groups; group < all.groups + 3 * all.num_groups; group += 3) {
      const int here = (group[1] - group[0]) * each, tiles = (here + TILE_QUERIES - 1) / TILE_QUERIES;
      if (tile < tiles) {
        first_row = group[0];
        num_queries = here;
        positions = group[2];
        const int tiles_each = tiles_of_piece(positions, all.num_pieces);
        begin = piece * tiles_each;
        stop = min(begin + tiles_each, positions / KEYS);
        return;
      }
      tile -= tiles;
    }
  }
  __device__ bool is_empty() const { return begin >= stop; }

  __device__ void run(unsigned char* shared) const {
    // told to the compiler to be alike in all lanes: products may not diverge
    const int begin = __shfl_sync(0xffffffffu, this->begin, 0);
    const int stop = __shfl_sync(0xffffffffu, this->stop, 0);
    const int warp = __shfl_sync(0xffffffffu, this->warp, 0);
    const int num_queries = __shfl_sync(0xffffffffu, this->num_queries, 0);
    const int warp_query = __shfl_sync(0xffffffffu, tile, 0) * TILE_QUERIES + warp * 16;
    const bool is_idle = warp_query / 64 * 64 >= num_queries;  // all of the warpgroup
    T* queries = reinterpret_cast<T*>(shared) + warp / 4 * 64 * DIM;
    T* ring = reinterpret_cast<T*>(shared) + TILE_QUERIES * DIM;

    // Items: keys and values of one tile after another. A tile's values are multiplied with the next
    // tile's keys right after them; then two slots are filled anew.
    static_assert(SLOTS >= 4);
    constexpr int AHEAD = SLOTS - 1;
    const int* table = all.tables + (long long)first_row * all.table_length;
    auto block_of = [&](int key_tile) {
      return table[(min(stop - 1, key_tile) * KEYS + warp * FETCHED) / BLOCK_SIZE];
    };
    int block = block_of(begin + lane);  // of one of 32 tiles
    load_queries(queries, warp_query);
    commit_copies();
    constexpr int ROWS = 32 / PIECES;  // of a tile that a warp copies at once
    const long long mine = (long long)kv_head * all.num_blocks * BLOCK_SIZE * DIM + lane * 8;
    const unsigned place =
        shared_address(ring + Attention::place(warp * FETCHED + lane / PIECES, lane % PIECES));
    int filled = 0, used = 0;  // slots: the next to fill, and to use
    auto fetch = [&](int key_tile, bool are_values) {
      if (key_tile < stop) {
        const int number = key_tile - begin;
        if (!are_values && number && number % 32 == 0) block = block_of(key_tile + lane);
        const int here = (key_tile * KEYS + warp * FETCHED) % BLOCK_SIZE;
        const T* from = (are_values ? all.value_pages : all.key_pages) + mine +
            ((long long)__shfl_sync(0xffffffffu, block, number % 32) * BLOCK_SIZE + here) * DIM;
        const unsigned to = place + filled * SLOT * 2;
#pragma unroll
        for (int i = 0; i < FETCHED / ROWS; i++)
          copy_async(to ^ (i * ROWS * (128 + 16)), from + i * 256);
      }
      commit_copies();
      if (++filled == SLOTS) filled = 0;
    };
    auto use = [&] {
      const T* item = ring + used * SLOT;
      if (++used == SLOTS) used = 0;
      return item;
    };
#pragma unroll
    for (int i = 0; i < AHEAD; i++) fetch(begin + i / 2, i % 2);
    prepare<AHEAD>(queries, warp_query);

    // All warps have a tile's values and the next one's keys, and are done with what came before.
    auto meet_at = [&](int key_tile) {
      wait_for_copies<AHEAD - 3>();
      publish_to_products();
      __syncthreads();
      fetch(key_tile + AHEAD / 2, AHEAD % 2);
      fetch(key_tile + (AHEAD + 1) / 2, (AHEAD + 1) % 2);
    };
    wait_for_copies<AHEAD - 1>();
    publish_to_products();
    __syncthreads();
    if (is_idle) {
      for (int key_tile = begin; key_tile < stop; key_tile++) meet_at(key_tile);
      wait_for_copies<0>();
      return;
    }
    Attention attention;
    const typename Attention::Queries held(queries);
    const float scale = all.scale * 1.4426950408889634f;
    float scores[KEYS / 2];
    unsigned weights[KEYS / 16][4];
    auto weigh = [&](int key_tile) {
      const int hidden = all.first - key_tile * KEYS;
      if (hidden > 0) {
#pragma unroll
        for (int i = 0; i < KEYS / 2; i++)
          if (i / 4 * 8 + 2 * (lane % 4) + i % 2 < hidden) scores[i] = -INFINITY;
      }
      attention.weigh(scores, weights, scale, SLACK / scale);
    };
    begin_products();
    held.multiply_keys(scores, use());
    finish_products(scores);
    // Between two meetings one warpgroup multiplies before it weighs, the other after it: tensor cores have
    // something to do while scores become weights.
    const bool is_first = warp / 4 % 2 == 0;
    if (is_first) weigh(begin);
#pragma unroll 1
    for (int key_tile = begin; key_tile < stop - 1; key_tile++) {
      meet_at(key_tile);
      if (!is_first) weigh(key_tile);
      const T* values = use();
      const T* keys = use();
      begin_products();
      attention.multiply_values(weights, values);
      held.multiply_keys(scores, keys);
      finish_products(scores);
      attention.have_sums();
      if (is_first) weigh(key_tile + 1);
    }
    meet_at(stop - 1);
    if (!is_first) weigh(stop - 1);
    begin_products();
    attention.multiply_values(weights, use());
    finish_products(attention.sums);
    wait_for_copies<0>();
    leave(attention, queries, warp_query, scale);
  }

  // A warp's 16 queries as they come, zeros after the last.
  __device__ void load_queries(T* queries, int warp_query) const {
#pragma unroll
    for (int j = 0; j < 16 * PIECES / 32; j++) {
      const int i = j * 32 + lane, query = warp_query + i / PIECES;
      T* to = queries + Attention::place(warp % 4 * 16 + i / PIECES, i % PIECES);
      if (query < num_queries) {
        const long long token = (long long)first_row * all.width + query / GROUP;
        const T* from = all.queries.template query<DIM>(token, kv_head * GROUP + query % GROUP);
        copy_async(to, from + i % PIECES * 8);
      } else {
        *reinterpret_cast<uint4*>(to) = make_uint4(0, 0, 0, 0);
      }
    }
  }
  // What is done to them before they meet keys, where they lie; ``LATER`` copies may be on their way.
  template <int LATER>
  __device__ void prepare(T* queries, int warp_query) const {
    if constexpr (!Queries::ARE_READY) {
      constexpr int COUNT = DIM / 32, AT_ONCE = DIM <= 128 ? 8 : 4;
      constexpr bool IN_LANE = Queries::Heads::IN_LANE;
      const auto& source = all.queries.source;
      const int query = min(warp_query + lane % 16, num_queries - 1), token = query / GROUP;
      const int position =
          all.queries.starts[first_row + token / all.width] + token % all.width - all.first;
      const typename Queries::Heads::template Preparation<COUNT> by(source, source.query_norm);
      typename Queries::Heads::Angles angles;
      wait_for_copies<LATER>();
      __syncwarp();
      // Number lane + 32 j of query i + q: what swizzles it is known as soon as q and j are, but for two bits.
      T* mine[4];
#pragma unroll
      for (int q = 0; q < 4; q++) mine[q] = queries + warp % 4 * 16 * 64 + (lane / 8 ^ q) * 8 + lane % 8;
#pragma unroll 1
      for (int i = 0; i < 16; i += AT_ONCE) {
        auto number = [&](int q, int d) -> T& {
          if constexpr (IN_LANE && AT_ONCE == 8) {
            const int j = (d - lane) / 32;
            return mine[q % 4][j / 2 * Attention::TILE + (i + q) * 64 + (j % 2 ^ q / 4) * 32];
          }
          return queries[Attention::place(warp % 4 * 16 + i + q, d / 8) + d % 8];
        };
        float x[AT_ONCE][COUNT];
#pragma unroll
        for (int q = 0; q < AT_ONCE; q++)
#pragma unroll
          for (int j = 0; j < COUNT; j++) x[q][j] = static_cast<float>(number(q, lane + 32 * j));
#pragma unroll
        for (int q = 0; q < AT_ONCE; q++) by.norm(x[q]);
#pragma unroll
        for (int q = 0; q < AT_ONCE; q++) {
          if (i + q == 0 || (warp_query + i + q) % GROUP == 0)
            angles = by.angles(__shfl_sync(0xffffffffu, position, i + q));
          source.turn_into(x[q], angles, [&](int d) -> T& { return number(q, d); });
        }
      }
    }
  }

  // Results take the place of the warp's own queries, to be stored in whole pieces.
  __device__ void leave(const Attention& attention, T* queries, int warp_query, float scale) const {
    const long long place =
        (long long)(kv_head * all.num_pieces + piece) * all.num_queries +
        first_row * all.width * GROUP + warp_query;
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const float total = attention.whole_total(half);
      const float inverse = total > 0.f ? 1.f / total : 0.f;
      const int r = half * 8 + lane / 4;
      if (lane % 4 == 0 && warp_query + r < num_queries)
        reinterpret_cast<float2*>(all.stats)[place + r] =
            make_float2(fmaxf(NOTHING, __fmul_rn(attention.maximum[half], scale)), total);
#pragma unroll
      for (int c = 0; c < PIECES; c++)
        *reinterpret_cast<unsigned*>(
            queries + Attention::place(warp % 4 * 16 + r, c) + 2 * (lane % 4)) =
            packed(
                attention.sums[c * 4 + 2 * half] * inverse,
                attention.sums[c * 4 + 2 * half + 1] * inverse);
    }
    __syncwarp();
    uint4* to = reinterpret_cast<uint4*>(all.partial + place * DIM);
    const int count = min(16, num_queries - warp_query) * PIECES;
#pragma unroll
    for (int j = 0; j < 16 * PIECES / 32; j++) {
      const int i = j * 32 + lane;
      if (i < count)
        to[i] = *reinterpret_cast<const uint4*>(
            queries + Attention::place(warp % 4 * 16 + i / PIECES, i % PIECES));
    }
  }
};
