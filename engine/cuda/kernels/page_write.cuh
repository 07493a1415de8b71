// Writes the K/V of a long window into pages, for readers that gather them.

// Grid: threads over (time, dim), then K/V heads, then rows.
template <typename T, int BLOCK_SIZE>
__device__ void write_pages(
    const Heads<T>& keys, const Heads<T>& values, T* key_pages, T* value_pages,
    const int* tables, int table_length, int start, int length, int num_blocks, int head_dim) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x, head = blockIdx.y, row = blockIdx.z;
  const int t = i / head_dim, d = i % head_dim;
  if (t >= length) return;
  const int position = start + t;
  const int block = tables[(long long)row * table_length + position / BLOCK_SIZE];
  const long long to =
      (((long long)head * num_blocks + block) * BLOCK_SIZE + position % BLOCK_SIZE) * head_dim + d;
  key_pages[to] = keys.at(row, head, t, d);
  value_pages[to] = values.at(row, head, t, d);
}
