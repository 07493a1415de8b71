// A ring of stages in shared memory that some threads fill by asynchronous copies and others read.

// A number that all threads of a warp have, told to the compiler: products may not diverge.
__device__ __forceinline__ int uniform(int number) {
  return __shfl_sync(0xffffffffu, number, 0);
}

// Place in a ring of stages and its parity.
struct Turn {
  int stage = 0, parity = 0;
  __device__ void next(int stages) {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// As copy_async; of what lies around it, L2 is filled with 256 bytes.
__device__ __forceinline__ void copy_ahead_async(void* to, const void* from) {
  asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16;" ::"r"(shared_address(to)),
               "l"(from)
               : "memory");
}

// Says of a stage that it is here when all but the last PENDING groups of copies are.
template <int PENDING>
__device__ __forceinline__ void hand_over(Arrivals* stages, Turn& turn, int num_stages) {
  wait_for_copies<PENDING>();
  publish_to_products();
  stages[turn.stage].arrive();
  turn.next(num_stages);
}
// The same of two stages.
template <int PENDING>
__device__ __forceinline__ void hand_over_two(Arrivals* stages, Turn& turn, int num_stages) {
  hand_over<PENDING>(stages, turn, num_stages);
  stages[turn.stage].arrive();
  turn.next(num_stages);
}

// Bytes that lie together, both at multiples of 16, as one copy that arrives at ``here``.
__device__ __forceinline__ void copy_whole(void* to, const void* from, int bytes, Arrivals& here) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(&here.word))
      : "memory");
}
// What this thread knows to be written is seen by such copies that it starts.
__device__ __forceinline__ void publish_to_copies() {
  asm volatile("fence.proxy.async;" ::: "memory");
}
