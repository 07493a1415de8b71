// Attention of a window whose rows share a prefix, in one launch: pieces of what is shared come first, and
// each row's own splits after them; tensor cores multiply for the ones while the others wait for pages.
//
// Grid: (any, K/V heads, ``before`` + rows x query tiles). A row's block that finds the pieces there adds them
// to what it has; one that does not leaves what it has to the last block to make a piece of it.

// Tiles of rows that a block is to merge.
struct Merges {
  int count, list[SHARED_QUERIES];
};

// Of a block that has left a piece: says so to the tiles of rows, and finds those that lack nothing else.
template <typename Share, typename Piece, typename Window>
__device__ void find_merges(const Piece& piece, const Window& all, Merges& merges) {
  const int each = all.width * Share::QUERIES_OF_TOKEN, tiles = (each + QUERIES - 1) / QUERIES;
  const int first = piece.tile * SHARED_QUERIES;
  const int last = min(first + SHARED_QUERIES, piece.num_queries) - 1;
  const auto number_of = [&](int query) {  // of its tile
    return (piece.first_row + query / each) * tiles + query % each / QUERIES;
  };
  fence_counting();
  if (threadIdx.x == 0) merges.count = 0;
  __syncthreads();
  const int z = number_of(first) + threadIdx.x;
  if (z <= number_of(last)) {
    const Share share(all, 0, z);
    int* counter = all.counters + share.number();
    if (atomicAdd(counter, 1) == share.num_counted() - 1) {
      *counter = 0;
      merges.list[atomicAdd(&merges.count, 1)] = z;
    }
  }
  __syncthreads();
  fence_counting();
}

template <int WARPS, typename Share, typename Window>
__device__ void merge_tiles(const Window& all, const Merges& merges) {
  const int queries = min(QUERIES, all.width * Share::QUERIES_OF_TOKEN);
  for (int i = threadIdx.x / 32; i < merges.count * queries; i += WARPS) {
    const Share share(all, 0, merges.list[i / queries]);
    if (i % queries >= share.num_queries) continue;
    if (share.num_splits == 1)
      merge_one(share, i % queries);
    else
      merge_query(share, i % queries);
  }
}
