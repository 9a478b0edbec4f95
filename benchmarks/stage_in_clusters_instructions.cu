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
// Says that what was written before may be read, and waits until all threads of the cluster have said so.
__device__ __forceinline__ void announce_to_cluster() { asm volatile("barrier.cluster.arrive.release;" ::: "memory"); }
__device__ __forceinline__ void await_cluster() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }
// Writes to where another block of the cluster has what is at `at` here; `tell` also announces these bytes there.
__device__ __forceinline__ u32 place_in(int block, const void* at) {
  u32 there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
    : "=r"(there) : "r"((u32)__cvta_generic_to_shared(at)), "r"(block));
  return there;
}
__device__ __forceinline__ void write_to(int block, float2* at, float2 value) {
  asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};"
    :: "r"(place_in(block, at)), "f"(value.x), "f"(value.y) : "memory");
}
__device__ __forceinline__ void tell(int block, float2* at, float2 value, u64* barrier) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];"
    :: "r"(place_in(block, at)), "f"(value.x), "f"(value.y), "r"(place_in(block, barrier)) : "memory");
}
// A line of 128 bytes is to be in the L2 soon.
__device__ __forceinline__ void prefetch(const u16* line) {
  asm volatile("prefetch.global.L2 [%0];" :: "l"(line));
}
// `await` for those who would rather fail than wait longer than two seconds.
__device__ __forceinline__ u64 nanoseconds() {
  u64 now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}
__device__ __forceinline__ bool passed(u64* barrier, u32 parity) {
  u32 yes;
  asm volatile("{\n.reg .pred passed;\nmbarrier.try_wait.parity.shared::cta.b64 passed, [%1], %2;\n"
    "selp.u32 %0, 1, 0, passed;\n}" : "=r"(yes) : "r"(place(barrier)), "r"(parity) : "memory");
  return yes;
}
__device__ __forceinline__ void await_not_forever(u64* barrier, u32 parity) {
  if (passed(barrier, parity)) return;
  const u64 began = nanoseconds();
  while (!passed(barrier, parity))
    if (nanoseconds() - began > 2000000000ull) asm volatile("trap;");
}
