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

  template <typename Share>
  __device__ void write(const Share& share, int t, T* key, T* value, T*) const {
    for (int d = threadIdx.x % 32; d < Share::DIM; d += 32) {
      key[d] = keys.at(share.row, share.kv_head, t, d);
      value[d] = values.at(share.row, share.kv_head, t, d);
    }
  }
  template <typename Share>
  __device__ void load_query(const Share& share, int t, int head, T* to) const {
    for (int d = threadIdx.x % 32; d < Share::DIM; d += 32)
      to[d] = queries.at(share.row, head, t, d);
  }
  template <typename Share>
  __device__ T finished(const Share&, int, int, int, float value) const {
    return static_cast<T>(value);
  }
};
