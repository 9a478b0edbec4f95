// The instructions of thread-block clusters, and a few others that the package's kernels do not need.
// Tests have their own.

// Writes what read4_across reads: of four 8 x 8 matrices, each lane names one of their rows.
__device__ __forceinline__ void write4_across(u16* base, int offset, const u32* r) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};"
    :: "r"(place(base) + 2 * offset), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]) : "memory");
}
// Waits for so many threads of a block, who call it by the same number.
template <int COUNT>
__device__ __forceinline__ void meet_at(int number) {
  asm volatile("bar.sync %0, %1;" :: "r"(number), "n"(COUNT) : "memory");
}
// Waits for all threads of the cluster.
__device__ __forceinline__ void meet_cluster() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}
// Writes to where another block of the cluster has what is at `at` here, and announces these bytes there.
__device__ __forceinline__ u32 place_in(int block, const void* at) {
  u32 there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
    : "=r"(there) : "r"((u32)__cvta_generic_to_shared(at)), "r"(block));
  return there;
}
__device__ __forceinline__ void tell(int block, float2* at, float2 value, u64* barrier) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];"
    :: "r"(place_in(block, at)), "f"(value.x), "f"(value.y), "r"(place_in(block, barrier)) : "memory");
}
