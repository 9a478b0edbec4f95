// The instructions of Hopper's warp groups: products of matrices that lie in shared memory, copies that
// announce themselves, and the barriers that they announce themselves to. Tests have their own.

typedef unsigned long long u64;

__device__ __forceinline__ u32 place(const u64* p) { return (u32)__cvta_generic_to_shared(p); }

// A barrier that is passed when so many have announced themselves, and all bytes have come.
__device__ __forceinline__ void prepare(u64* barrier, int announcements) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(place(barrier)), "r"(announcements) : "memory");
}
__device__ __forceinline__ void show_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ __forceinline__ void announce(u64* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(place(barrier)) : "memory");
}
__device__ __forceinline__ void announce_bytes(u64* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(place(barrier)), "r"(bytes) : "memory");
}
// Waits until a barrier has been passed an odd number of times, or an even one: it alternates.
__device__ __forceinline__ void await(u64* barrier, u32 parity) {
  asm volatile("{\n.reg .pred passed;\nagain:\n"
    "mbarrier.try_wait.parity.shared::cta.b64 passed, [%0], %1;\n@!passed bra again;\n}"
    :: "r"(place(barrier)), "r"(parity) : "memory");
}
__device__ __forceinline__ void copy_block(u16* to, const u16* from, int bytes, u64* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
    :: "r"(place(to)), "l"(from), "r"(bytes), "r"(place(barrier)) : "memory");
}
__device__ __forceinline__ void wait_all() { asm volatile("cp.async.wait_group 0;" ::: "memory"); }
// Lets products see what this thread, or its copies, wrote.
__device__ __forceinline__ void show_to_products() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// A matrix in shared memory, in blocks of 8 x 8 numbers, 128 bytes each: from one block to the next,
// along what is summed over and along the other axis, in bytes.
__device__ __forceinline__ u64 matrix(const u16* at, int along, int across) {
  return (u64)(place(at) >> 4 & 0x3fff) | (u64)(along >> 4) << 16 | (u64)(across >> 4) << 32;
}
// Another in rows of 64 numbers, what is summed over down the rows: from eight rows to the next, and from
// 64 columns to the next. Sixteen bytes lie where their address says, its bits 4 to 6 changed by bits 7 to 9.
__device__ __forceinline__ u64 matrix_of_pixels(const u16* at, int along, int across) {
  return matrix(at, across, along) | (u64)1 << 62;
}
__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int ALL_BUT>
__device__ __forceinline__ void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(ALL_BUT) : "memory");
}
// After all of them: nobody reads the sums before.
template <int COUNT>
__device__ __forceinline__ void wait_for_sums(float (&sums)[COUNT]) {
  wait_for_products<0>();
#pragma unroll
  for (int i = 0; i < COUNT; i++) asm volatile("" : "+f"(sums[i])::"memory");
}
// For a warp group, out of what the block has.
template <int EACH>
__device__ __forceinline__ void take_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(EACH)); }
template <int EACH>
__device__ __forceinline__ void leave_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(EACH)); }
