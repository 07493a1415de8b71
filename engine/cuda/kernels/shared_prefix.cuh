// Attention over positions that the rows of a group share, read once for all of them.
//
// A group's queries of a K/V head, row by row, token by token, are cut into tiles of QUERIES; the tiles of
// the next group follow. Key tiles of what a group shares are dealt out to pieces, one after another, as
// many to each. A block has one tile and one piece; it leaves for each query what attention to its piece
// comes to, for the merge of paged_attention.cuh to add to the row's own splits.
// Results depend on the number of pieces, and so on the batch: exact mode has no groups.

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
  using Pieces = QueryPieces<DIM, GROUP, Queries>;
  static constexpr int KEYS = Attention::KEYS, PIECES = Attention::PIECES;
  static constexpr int TILE_QUERIES = WARPGROUPS * 64, WARPS = WARPGROUPS * 4;
  static constexpr int SLOT = KEYS * DIM;       // keys of a tile, or its values
  static constexpr float SLACK = 8.f;           // weights of up to two to the power of it are added up
  // Items that are asked for before queries are prepared: the ring's other slots have room for that.
  static constexpr int ANGLES = WARPS * Pieces::ROOM * 2;  // in numbers of the ring
  static constexpr int AT_FIRST = SLOTS - (ANGLES > SLOT ? (ANGLES + SLOT - 1) / SLOT : 1);
  static_assert(SLOTS >= 4 && AT_FIRST >= 1 && KEYS == SHARED_KEYS && BLOCK_SIZE % 16 == 0);

  const SharedPrefix<Queries>& all;
  Pieces pieces;
  const int lane, warp, kv_head, piece;
  const int number;  // of a tile among those of all groups
  int tile;          // of its group's
  int first_row, num_queries = 0, positions = 0, begin = 0, stop = 0;  // key tiles of the piece

  __device__ SharedPiece(const SharedPrefix<Queries>& all, int number, int piece)
      : all(all), pieces(all.queries), lane(threadIdx.x % 32), warp(threadIdx.x / 32), kv_head(blockIdx.y), piece(piece),
        number(number), tile(number) {
    const int each = all.width * GROUP;
    for (const int* group = all.groups; group < all.groups + 3 * all.num_groups; group += 3) {
      const int first = load_at_once(group), end = load_at_once(group + 1), shared = load_at_once(group + 2);
      const int here = (end - first) * each, tiles = (here + TILE_QUERIES - 1) / TILE_QUERIES;
      if (tile < tiles) {
        first_row = first;
        num_queries = here;
        positions = shared;
        const int tiles_each = tiles_of_piece(positions, all.num_pieces);
        begin = piece * tiles_each;
        stop = min(begin + tiles_each, positions / KEYS);
        return;
      }
      tile -= tiles;
    }
  }
  __device__ bool is_empty() const { return begin >= stop; }

  // Items: keys and values of one tile after another, by a warpgroup of its own into a ring of slots.
  __device__ void run(unsigned char* shared) {
    __shared__ Arrivals full[SLOTS], empty[SLOTS], prepared;
    // told to the compiler to be alike in all lanes: products may not diverge
    const int warp = uniform(this->warp), num_queries = uniform(this->num_queries);
    const int first_query = uniform(tile) * TILE_QUERIES;
    const int warps = min(WARPS, (num_queries - first_query + 63) / 64 * 4);  // that have queries
    if (threadIdx.x < SLOTS) {
      full[threadIdx.x].start(128);
      empty[threadIdx.x].start(warps);
    }
    if (threadIdx.x == SLOTS) prepared.start(warps);
    T* queries = reinterpret_cast<T*>(shared) + warp / 4 * 64 * DIM;
    T* ring = reinterpret_cast<T*>(shared) + TILE_QUERIES * DIM;
    if (warp >= WARPS) {
      give_registers<40>();
      fill(ring, full, empty, prepared);
    } else if (warp < warps) {
      take_registers<232>();
      read(first_query + warp * 16, queries, ring, full, empty, prepared);
    } else {
      __syncthreads();
    }
  }

  // A warp fetches a quarter of each item's positions.
  __device__ void fill(T* ring, Arrivals* full, Arrivals* empty, Arrivals& prepared) const {
    constexpr int PART = KEYS / 4, ROWS = 32 / PIECES;  // a warp's positions, copied so many at once
    constexpr int PENDING = SLOTS - 2 < 3 ? SLOTS - 2 : 3;
    static_assert(BLOCK_SIZE % PART == 0);
    const int begin = uniform(this->begin), stop = uniform(this->stop), part = warp % 4 * PART;
    const int* table = all.tables + (long long)first_row * all.table_length;
    auto block_of = [&](int key_tile) {
      return load_at_once(table + (min(stop - 1, key_tile) * KEYS + part) / BLOCK_SIZE);
    };
    int block = block_of(begin + lane), next = block_of(begin + 32 + lane);  // each of one of 32 tiles
    const long long mine = (long long)kv_head * all.num_blocks * BLOCK_SIZE * DIM + lane * 8;
    const unsigned place =
        shared_address(ring + Attention::place(part + lane / PIECES, lane % PIECES));
    __syncthreads();  // barriers have been started
    Turn turn, done;
#pragma unroll 1
    for (int item = 0; item < 2 * (stop - begin); item++) {
      const int number = item / 2;  // of the tile
      if (item && item % 64 == 0) {
        block = next;
        next = block_of(begin + number + 32 + lane);
      }
      if (item == AT_FIRST) prepared.wait(0);
      if (item >= SLOTS) empty[turn.stage].wait(turn.parity ^ 1);
      const int here = ((begin + number) * KEYS + part) % BLOCK_SIZE;
      const T* from = (item % 2 ? all.value_pages : all.key_pages) + mine +
          ((long long)__shfl_sync(0xffffffffu, block, number % 32) * BLOCK_SIZE + here) * DIM;
      const unsigned to = place + turn.stage * SLOT * 2;
#pragma unroll
      for (int i = 0; i < PART; i += ROWS)
        copy_async((to ^ i % 8 * (128 + 16)) + i / 8 * 1024, from + i * DIM);
      commit_copies();
      turn.next(SLOTS);
      if (item >= PENDING) hand_over<PENDING>(full, done, SLOTS);
    }
    wait_for_copies<0>();
    publish_to_products();
    for (int item = max(0, 2 * (stop - begin) - PENDING); item < 2 * (stop - begin); item++) {
      full[done.stage].arrive();
      done.next(SLOTS);
    }
  }

  __device__ void read(
      int first_query, T* queries, const T* ring, Arrivals* full, Arrivals* empty, Arrivals& prepared) {
    const int begin = uniform(this->begin), stop = uniform(this->stop);
    auto place_of = [&](int r, int c) { return queries + Attention::place(warp % 4 * 16 + r, c); };
    pieces.ask(all.queries, {first_row, all.width, kv_head, first_query, num_queries}, all.first, place_of);
    commit_copies();
    __syncthreads();
    // slots that are not filled yet have room for what queries are prepared with
    float* room =
        reinterpret_cast<float*>(const_cast<T*>(ring) + AT_FIRST * SLOT) + warp * Pieces::ROOM;
    pieces.find_angles(room);
    wait_for_copies<0>();
    pieces.prepare(room, place_of);
    publish_to_products();
    meet(1 + warp / 4, 128);
    if (lane == 0) prepared.arrive();

    Attention attention;
    const typename Attention::Queries held(queries);
    const float scale = all.scale * 1.4426950408889634f;
    float scores[KEYS / 2], factors[2];
    unsigned weights[KEYS / 16][4];
    auto weigh = [&](int key_tile) {
      const int hidden = all.first - key_tile * KEYS;
      if (hidden > 0) {
#pragma unroll
        for (int i = 0; i < KEYS / 2; i++)
          if (i / 4 * 8 + 2 * (lane % 4) + i % 2 < hidden) scores[i] = -INFINITY;
      }
      attention.weigh_scores(scores, factors, scale, SLACK / scale);
    };
    Turn turn, over;
    auto use = [&] {
      full[turn.stage].wait(turn.parity);
      const T* item = ring + turn.stage * SLOT;
      turn.next(SLOTS);
      return item;
    };
    auto release = [&](int count) {
      for (int i = 0; i < count; i++) {
        if (lane == 0) empty[over.stage].arrive();
        over.next(SLOTS);
      }
    };
    const T* keys = use();
    begin_products();
    held.multiply_keys(scores, keys);
    finish_products(scores);
    release(1);
    weigh(begin);
    attention.pack(weights, scores);
    // While a tile's values are multiplied the next one's scores become weights.
#pragma unroll 1
    for (int key_tile = begin + 1; key_tile < stop; key_tile++) {
      const T* values = use();
      const T* keys = use();
      begin_products();
      held.multiply_keys(scores, keys);
      send_products();
      attention.multiply_values(weights, values);
      send_products();
      await_products<1>(scores);
      weigh(key_tile);
      pin(scores);
      attention.apply(factors, [&] { await_products<0>(attention.sums); });
      release(2);
      attention.pack(weights, scores);
    }
    const T* values = use();
    begin_products();
    attention.multiply_values(weights, values);
    finish_products(attention.sums);
    leave(attention, queries, first_query, scale);
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
