// Attention of a window whose rows share a prefix, in one launch: pieces of what is shared come first, and
// each row's own splits after them; tensor cores multiply for the ones while the others wait for pages.
//
// Grid: (any, K/V heads, ``before`` + rows x query tiles). A row's tile is merged by whichever block is the
// last to leave sums for it: nobody waits for anybody.

// Of a block that made a piece: merges those tiles of rows that lacked nothing else.
template <int WARPS, typename Share, typename Piece, typename Window>
__device__ void arrive(const Piece& piece, const Window& all) {
  __shared__ int count, list[SHARED_QUERIES];
  const int each = all.width * Share::QUERIES_OF_TOKEN, tiles = (each + QUERIES - 1) / QUERIES;
  const int first = piece.tile * SHARED_QUERIES;
  const int last = min(first + SHARED_QUERIES, piece.num_queries) - 1;
  const auto number_of = [&](int query) {  // of its tile
    return (piece.first_row + query / each) * tiles + query % each / QUERIES;
  };
  const int begin = number_of(first), end = number_of(last) + 1;
  __threadfence();
  if (threadIdx.x == 0) count = 0;
  __syncthreads();
  for (int z = begin + threadIdx.x; z < end; z += 32 * WARPS) {
    const Share share(all, 0, z);
    int* counter = all.counters + share.number();
    if (atomicAdd(counter, 1) == share.num_leaving() - 1) {
      *counter = 0;
      list[atomicAdd(&count, 1)] = z;
    }
  }
  __syncthreads();
  __threadfence();
  for (int i = threadIdx.x / 32; i < count; i += WARPS) {
    const Share share(all, 0, list[i]);
    for (int query = 0; query < share.num_queries; query++) merge_query(share, query);
  }
}
