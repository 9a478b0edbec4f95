// The PTX instructions that C++ has no words for; all of them are as old as Ampere. Tests have their own.

typedef unsigned short u16;
typedef unsigned int u32;

__device__ __forceinline__ u32 place(const u16* p) { return (u32)__cvta_generic_to_shared(p); }

// Four 8 x 8 matrices, each lane naming one of their rows; or the same transposed.
__device__ __forceinline__ void read4(u32* r, const u16* base, int offset) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
    : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(place(base) + 2 * offset));
}
__device__ __forceinline__ void read4_across(u32* r, const u16* base, int offset) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
    : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(place(base) + 2 * offset));
}
__device__ __forceinline__ void multiply(float* d, const u32* a, u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
    "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
    : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ u32 round2(float low, float high) {
  u32 both;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}
// Copies bytes, or zeros, to shared memory without waiting for them.
__device__ __forceinline__ void copy16(u16* to, const u16* from, bool inside) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
    :: "r"(place(to)), "l"(from), "r"(inside ? 16 : 0) : "memory");
}
__device__ __forceinline__ void copy8(u16* to, const u16* from, bool inside) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;"
    :: "r"(place(to)), "l"(from), "r"(inside ? 8 : 0) : "memory");
}
__device__ __forceinline__ void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
__device__ __forceinline__ void wait_all_but_one() {
  asm volatile("cp.async.wait_group 1;" ::: "memory");
}
// Waits for so many of a block's threads, not for all.
template <int THREADS_OF_SOME>
__device__ __forceinline__ void meet() {
  asm volatile("bar.sync 1, %0;" :: "n"(THREADS_OF_SOME) : "memory");
}
