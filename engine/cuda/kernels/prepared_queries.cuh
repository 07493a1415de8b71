// Queries out of a projection, ready to be multiplied with keys, for all blocks that take them.

// What a Source asks of the share it loads a query for.
template <int HEAD_DIM>
struct QueryPlace {
  static constexpr int DIM = HEAD_DIM;
  struct Window {
    int width, first;
  };
  Window all;
  int row, start;
};

// Grid: blocks of WARPS queries, a warp for each. ``out``: (rows, width, heads, dim).
template <typename T, int HEAD_DIM, int WARPS, typename Source>
__device__ void prepare_queries(
    const Source& source, const int* starts, T* out, int rows, int width, int num_heads, int first) {
  __shared__ T prepared[WARPS][HEAD_DIM];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int number = blockIdx.x * WARPS + warp, token = number / num_heads;
  if (token >= rows * width) return;
  const int row = token / width;
  const QueryPlace<HEAD_DIM> place{{width, first}, row, starts[row]};
  source.load_query(place, token % width, number % num_heads, prepared[warp]);
  __syncwarp();
  for (int d = lane; d < HEAD_DIM; d += 32)
    out[(long long)number * HEAD_DIM + d] = prepared[warp][d];
}
