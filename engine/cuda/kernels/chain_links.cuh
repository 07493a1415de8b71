// What a chain of products consists of, and how its work is shared out: see product_chain.cuh.

constexpr int TILE = 128, CHUNK = 64;
constexpr int MULTIPLYING = 256;  // threads
constexpr int MOST_LINKS = 4;
constexpr int MOST_SHARES = 8;  // of a block: tiles of which it has chunks

enum class After { residual, gate, norm };  // what follows the sums

struct Link {
  const bfloat16* x;                 // (rows, depth), of the first; (chunks, ROWS, CHUNK), swizzled
  const bfloat16* weights[4];        // (columns, depth) each, side by side; gate and up, if gated
  int ends[4];
  int depth;
  After after;
  const bfloat16* residual;          // (rows, columns)
  bfloat16* out;                     // (rows, columns of out), or, if gated, as x
  const bfloat16* norm;              // (columns,): weight of the norm that follows, or null
  bfloat16* normed;                  // out times it, as x
  int norm_depth;                    // of the norm before
  const float* epsilon;              // of it

  __device__ bool gated() const { return after == After::gate; }
  __device__ int weight_rows() const { return gated() ? 2 * ends[0] : ends[3]; }
  __device__ int columns() const { return gated() ? ends[0] : ends[3]; }
  __device__ int tiles() const { return (weight_rows() + TILE - 1) / TILE; }
  __device__ int tile_chunks() const { return depth / CHUNK; }
  __device__ int chunks() const { return tiles() * tile_chunks(); }
  __device__ int blocks() const { return min((int)gridDim.x, chunks()); }
  __device__ int first_chunk(int block) const {
    return (unsigned)chunks() * min(block, blocks()) / blocks();
  }
  // Whether no tile has parts in more than two blocks, and sums may stay in registers.
  __device__ bool keeps() const {
    return after != After::residual && chunks() / blocks() >= tile_chunks();
  }
  // The block that has a chunk.
  __device__ int owner(int chunk) const {
    return ((unsigned)(chunk + 1) * blocks() - 1) / chunks();
  }

  // Of a tile, row ``row``; gates and values change every 8 rows. Past the end: the last row.
  __device__ const bfloat16* weight_row(int tile, int row) const {
    if (gated()) {
      const int column = min(tile * (TILE / 2) + row / 16 * 8 + row % 8, ends[0] - 1);
      return weights[row / 8 % 2] + (long long)column * depth;
    }
    const int column = min(tile * TILE + row, ends[3] - 1);
    if (column < ends[0]) return weights[0] + (long long)column * depth;
    if (column < ends[1]) return weights[1] + (long long)(column - ends[0]) * depth;
    if (column < ends[2]) return weights[2] + (long long)(column - ends[1]) * depth;
    return weights[3] + (long long)(column - ends[2]) * depth;
  }
};

struct Chain {
  Link links[MOST_LINKS];
  int num_links, rows, most_tiles;
  float* parts;      // (tiles + blocks, rows of x, TILE), or as sums lie in registers
  float* squares;    // (tiles, ROWS): of a row's tiles
  unsigned* stored;  // (MOST_LINKS, most_tiles): how many parts there are; zeros before the link
  Meeting meeting;
};

// What a block adds up of a tile: rows from ``first_row`` on.
struct Share {
  int tile, first_part, num_parts, first_row, first_item, end_item;
};
