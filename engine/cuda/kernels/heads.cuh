template <typename T>
struct Heads {  // (rows, heads, time, dim) with any strides
  const T* data;
  long long row, head, time, dim;

  __device__ T at(int b, int h, int t, int d) const {
    return data[b * row + h * head + t * time + d * dim];
  }
};
