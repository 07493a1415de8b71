__device__ __forceinline__ void prefetch(const void* from) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
}

template <typename T>
struct Heads {  // (rows, heads, time, dim) with any strides
  const T* data;
  long long row, head, time, dim;

  __device__ T at(int b, int h, int t, int d) const {
    return data[b * row + h * head + t * time + d * dim];
  }
};

// Queries, keys and values that are ready, a Source of PagedWindow.
template <typename T>
struct StridedHeads {
  Heads<T> queries, keys, values;

  // One token's K/V into its page and into shared memory, by a warp.
  template <typename Share>
  __device__ void write(
      const Share& share, int t, T* key_page, T* value_page, T* key, T* value) const {
    for (int d = threadIdx.x % 32; d < Share::DIM; d += 32) {
      key_page[d] = key[d] = keys.at(share.row, share.kv_head, t, d);
      value_page[d] = value[d] = values.at(share.row, share.kv_head, t, d);
    }
  }
  template <typename Share>
  __device__ void load_query(const Share& share, int t, int head, T* to) const {
    for (int d = threadIdx.x % 32; d < Share::DIM; d += 32)
      to[d] = queries.at(share.row, head, t, d);
  }
  template <typename Share>
  __device__ void ask(const Share&) const {}
  template <typename Share>
  __device__ T gate(const Share&, int, int, int) const {
    return static_cast<T>(0.f);
  }
  __device__ T finished(float value, T) const { return static_cast<T>(value); }
};
