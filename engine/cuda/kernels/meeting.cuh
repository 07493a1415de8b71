// How threads of a block, and all blocks of a launch that run at once, wait for each other.

// A barrier in shared memory on which some threads wait for a number of others' arrivals; phases
// alternate in parity.
struct Arrivals {
  unsigned long long word;

  __device__ void start(int number) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(&word)), "r"(number)
                 : "memory");
  }
  __device__ void arrive() {
    asm volatile("{.reg .b64 state; mbarrier.arrive.shared.b64 state, [%0];}" ::"r"(
                     shared_address(&word))
                 : "memory");
  }
  // So many at once, of one thread.
  __device__ void arrive(int count) {
    asm volatile("{.reg .b64 state; mbarrier.arrive.shared.b64 state, [%0], %1;}" ::"r"(
                     shared_address(&word)), "r"(count)
                 : "memory");
  }
  // This phase is not over before so many bytes have come, too.
  __device__ void expect(int bytes) {
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(
                     shared_address(&word)), "r"(bytes)
                 : "memory");
  }
  __device__ void wait(int parity) {
    asm volatile(
        "{.reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
        "@!done bra again;}" ::"r"(shared_address(&word)), "r"(parity)
        : "memory");
  }
};

// Threads of this block that call it with the same ``name``, 1 to 15, wait until all have.
__device__ __forceinline__ void meet(int name, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(name), "r"(threads) : "memory");
}

__device__ __forceinline__ unsigned acquired(const unsigned* word) {
  unsigned value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
}
__device__ __forceinline__ unsigned long long acquired(const unsigned long long* word) {
  unsigned long long value;
  asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  return value;
}
// Adds one: who acquires it sees what this thread saw, and what those wrote that it had met.
__device__ __forceinline__ void count_released(unsigned* word) {
  asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(word) : "memory");
}
__device__ __forceinline__ void count_released(unsigned long long* word) {
  asm volatile("red.release.gpu.global.add.u64 [%0], 1;" ::"l"(word) : "memory");
}

// All blocks of a launch: they must fit on the device at once, and all come to every meeting of the
// launch. ``count`` is of all that ever came.
struct Meeting {
  unsigned long long* count;

  // What the count is when the first meeting is over; for a block that did not come to it yet.
  __device__ unsigned long long first_end() const {
    const unsigned long long now = acquired(count);
    return now - now % gridDim.x + gridDim.x;
  }
  // One thread of each block says that its block has come.
  __device__ void come() const { count_released(count); }
  __device__ void wait_for(unsigned long long end) const {
    while (acquired(count) < end) {
    }
  }
};
