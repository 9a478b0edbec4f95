// Runs the CUDA kernels on a CPU, in place of cuda/instructions.cu: every thread of a block is a fiber, and
// the instructions that a warp executes together wait for all its lanes. Warp after warp runs as far
// as barriers let it, in ascending order, and copies to shared memory arrive when they are waited for;
// or, with early_copies, in descending order, and they arrive at once: so missing barriers show.

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <tuple>
#include <ucontext.h>
#include <utility>
#include <vector>

#define __device__
#define __global__
#define __shared__
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __align__(...)
#ifndef TOGETHER
#define TOGETHER 1  // blocks of a cluster, side by side
#endif

typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
struct uint2 { u32 x, y; };
struct float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(16) uint4 { u32 x, y, z, w; };
struct Index { int x, y; };
static uint4 make_uint4(u32 x, u32 y, u32 z, u32 w) { return {x, y, z, w}; }
static float2 make_float2(float x, float y) { return {x, y}; }
static float rsqrtf(float x) { return 1 / std::sqrt(x); }

uint4 memory[227 * 1024 / 16];  // what a block shares: of a cluster, the one that runs
static std::vector<unsigned char> kept_memory[TOGETHER];
static int running;
static void turn_to(int block) {
  if (block == running) return;
  std::memcpy(kept_memory[running].data(), memory, sizeof memory);
  std::memcpy(memory, kept_memory[block].data(), sizeof memory);
  running = block;
}
static Index threadIdx, blockIdx, gridDim;

struct Copy { u16* to; const u16* from; int bytes; bool inside; };
struct Meeting { int arrived, turn; };
struct Fiber {
  ucontext_t context;
  std::vector<char> stack;
  bool done;
  int calls;                             // of the warp's instructions
  u32 given[2][8];                       // to the last two of them
  std::vector<std::vector<Copy>> groups;  // of copies, the last one still open
};
static ucontext_t scheduler;
static std::vector<Fiber> fibers;
static std::vector<Meeting> warps;
static Meeting meetings[TOGETHER][16];  // the first is that of all threads of a block
static int current;
static long events;  // that a fiber may have waited for
static bool early_copies;

static void expect(bool good, const char* what) {
  if (good) return;
  std::fprintf(stderr, "thread %d of block (%d, %d): %s\n", current, blockIdx.x, blockIdx.y, what);
  std::abort();
}
static bool aligned(const void* at, int bytes) { return (uint64_t)at % bytes == 0; }

static void pause() { swapcontext(&fibers[current].context, &scheduler); }
static void wait_at(Meeting& at, int expected) {
  const int turn = at.turn;
  events++;
  if (++at.arrived == expected) at.arrived = 0, at.turn++;
  while (at.turn == turn) pause();
}
static void __syncthreads() { wait_at(meetings[running][0], fibers.size() / TOGETHER); }

template <int threads>
static void meet_at(int number) { wait_at(meetings[running][number], threads); }
template <int threads>
static void meet() { meet_at<threads>(1); }
static Meeting cluster;
static void meet_cluster() { wait_at(cluster, fibers.size()); }

// What each of the warp's lanes gives to an instruction, as a table with one row per lane.
struct Lanes {
  int first, slot;
  const u32* operator[](int lane) const { return fibers[first + lane].given[slot]; }
};
static Lanes together(const u32* given, int count) {
  Fiber& own = fibers[current];
  const int slot = own.calls++ % 2, warp = current / 32;
  std::memcpy(own.given[slot], given, count * sizeof(u32));
  wait_at(warps[warp], 32);
  return {warp * 32, slot};
}
static int lane() { return current % 32; }

static float __uint_as_float(u32 bits) { float value; std::memcpy(&value, &bits, 4); return value; }
static u32 __float_as_uint(float value) { u32 bits; std::memcpy(&bits, &value, 4); return bits; }
static float __shfl_xor_sync(u32, float value, int across) {
  const u32 bits = __float_as_uint(value);
  return __uint_as_float(together(&bits, 1)[lane() ^ across][0]);
}

static void __threadfence() {}
static u32 atomicInc(u32* at, u32 most) { const u32 old = *at; *at = old >= most ? 0 : old + 1; return old; }
template <class T>
static T __ldcg(const T* at) { return *at; }

static u32 __shfl_xor_sync(u32, u32 bits, int across) { return together(&bits, 1)[lane() ^ across][0]; }
static void __syncwarp() { together(nullptr, 0); }

static void read_matrices(u32* r, const u16* base, int offset, bool across) {
  uint64_t address = (uint64_t)(base + offset);
  u32 halves[2] = {(u32)address, (u32)(address >> 32)};
  expect(aligned(base + offset, 16), "a row of a matrix is not aligned");
  const Lanes rows = together(halves, 2);
  for (int i = 0; i < 4; i++) {
    u16 found[2];
    for (int j = 0; j < 2; j++) {
      const int row = across ? lane() % 4 * 2 + j : lane() / 4, column = across ? lane() / 4 : lane() % 4 * 2 + j;
      const u32* half = rows[i * 8 + row];
      found[j] = ((const u16*)((uint64_t)half[1] << 32 | half[0]))[column];
    }
    r[i] = found[0] | (u32)found[1] << 16;
  }
}
static void write4_across(u16* base, int offset, const u32* r) {
  uint64_t address = (uint64_t)(base + offset);
  u32 given[6] = {(u32)address, (u32)(address >> 32), r[0], r[1], r[2], r[3]};
  expect(aligned(base + offset, 16), "a row of a matrix is not aligned");
  const Lanes all = together(given, 6);
  const u32 column = lane() % 8;  // of what was given: each lane writes the row that it names
  for (int row = 0; row < 8; row++)
    base[offset + row] = all[row * 4 + column / 2][2 + lane() / 8] >> column % 2 * 16;
}
static void read4(u32* r, const u16* base, int offset) { read_matrices(r, base, offset, false); }
static void read4_across(u32* r, const u16* base, int offset) { read_matrices(r, base, offset, true); }

static float half_of(u32 both, int which) { return __uint_as_float(which ? both & 0xffff0000u : both << 16); }
static void multiply(float* d, const u32* a, u32 b0, u32 b1) {
  u32 given[6] = {a[0], a[1], a[2], a[3], b0, b1};
  const Lanes all = together(given, 6);
  for (int i = 0; i < 4; i++) {
    const int row = lane() / 4, column = lane() % 4 * 2 + i % 2;
    for (int k = 0; k < 16; k++) {
      const u32 left = all[row * 4 + k % 8 / 2][i / 2 + k / 8 * 2];
      const u32 right = all[column * 4 + k % 8 / 2][4 + k / 8];
      d[i] += half_of(left, k % 2) * half_of(right, k % 2);
    }
  }
}
static u32 rounded(float value) {
  const u32 bits = __float_as_uint(value);
  if (std::isnan(value)) return 0x7fc0;
  return (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
}
static u32 round2(float low, float high) { return rounded(low) | rounded(high) << 16; }

static void arrive(const Copy& c) {
  c.inside ? std::memcpy(c.to, c.from, c.bytes) : std::memset(c.to, 0, c.bytes);
}
static void copy(u16* to, const u16* from, int bytes, bool inside) {
  expect(aligned(to, bytes) && aligned(from, bytes), "a copy is not aligned");
  const Copy one = {to, from, bytes, inside};
  early_copies ? arrive(one) : fibers[current].groups.back().push_back(one);
}
static void copy16(u16* to, const u16* from, bool inside) { copy(to, from, 16, inside); }
static void copy8(u16* to, const u16* from, bool inside) { copy(to, from, 8, inside); }
static void commit() { fibers[current].groups.emplace_back(); }
static void wait_all_but(size_t count) {
  auto& groups = fibers[current].groups;  // the last one is open
  while (groups.size() > count + 1) {
    for (const Copy& c : groups.front()) arrive(c);
    groups.erase(groups.begin());
  }
}
static void wait_all_but_one() { wait_all_but(1); }
static void wait_all() { wait_all_but(0); }

// Barriers that copies announce themselves to; they arrive when somebody waits for them.
struct Barrier { short expected, left; int bytes_and_phase; };
static std::map<u64*, std::vector<Copy>> coming[TOGETHER];
static void prepare(u64* barrier, int announcements) { *(Barrier*)barrier = {(short)announcements, (short)announcements, 0}; }
static void show_barriers() {}
static void reach(u64* barrier, int announcements, int bytes) {
  Barrier& own = *(Barrier*)barrier;
  own.left -= announcements, own.bytes_and_phase += 2 * bytes, events++;
  expect(own.left >= 0, "a barrier is passed twice");
  if (own.left == 0 && own.bytes_and_phase / 2 == 0) own.left = own.expected, own.bytes_and_phase ^= 1;
}
static void announce(u64* barrier) { reach(barrier, 1, 0); }
static void announce_bytes(u64* barrier, int bytes) {
  ((Barrier*)barrier)->bytes_and_phase += 2 * bytes;
  reach(barrier, 1, 0);
}
static void copy_block(u16* to, const u16* from, int bytes, u64* barrier) {
  expect(aligned(to, 16) && aligned(from, 16) && bytes % 16 == 0, "a copy is not aligned");
  const Copy one = {to, from, bytes, true};
  if (early_copies) arrive(one), reach(barrier, 0, -bytes);
  else coming[running][barrier].push_back(one);
}
static char* place_in(int block, void* at) {
  char* there = block == running ? (char*)memory : (char*)kept_memory[block].data();
  return there + ((char*)at - (char*)memory);
}
static void tell(int block, float2* at, float2 value, u64* barrier) {
  expect(aligned(at, 8), "a pair of numbers is not aligned");
  std::memcpy(place_in(block, at), &value, 8);
  reach((u64*)place_in(block, barrier), 0, -8);
}
static void await(u64* barrier, u32 parity) {
  for (;; pause()) {
    const std::vector<Copy> come = std::move(coming[running][barrier]);
    coming[running][barrier].clear();
    for (const Copy& c : come) arrive(c), reach(barrier, 0, -c.bytes);
    if ((u32)(((Barrier*)barrier)->bytes_and_phase & 1) != parity) return;
  }
}

// Products of matrices in shared memory, as late as they are waited for.
static u64 matrix(const u16* at, int along, int across) {
  const u64 from = (char*)at - (char*)memory;
  expect(from % 16 == 0 && along % 16 == 0 && across % 16 == 0, "a matrix is not aligned");
  expect((along | across) >> 4 < 1 << 14, "blocks of a matrix are too far apart");
  return from >> 4 | (u64)along << 12 | (u64)across << 28;
}
static u64 matrix_of_pixels(const u16* at, int along, int across) { return matrix(at, across, along) | (u64)1 << 62; }
static float number_of(u64 matrix, int row, int k, bool lies_across) {
  const int first = (matrix & 0x3fff) << 4, one = matrix >> 12 & 0x3fff0, other = matrix >> 28 & 0x3fff0;
  int at = first + k / 8 * one + row / 8 * other + (lies_across ? row % 8 * 2 + k % 8 * 16 : row % 8 * 16 + k % 8 * 2);
  if (matrix >> 62) {
    expect(lies_across, "pixels are summed over");
    at = first + k / 8 * other + row / 64 * one + row % 64 * 2 + k % 8 * 128;
    at ^= (at >> 7 & 7) << 4;
  }
  return half_of(*(const u16*)((char*)memory + at), 0);
}
static std::map<int, std::vector<std::vector<std::function<void()>>>> products;
template <int A_ACROSS, int B_ACROSS, int COUNT>
static void add_product(float (&sums)[COUNT], u64 a, u64 b) {
  float* d = sums;
  const int first = current % 128 / 32 * 16 + lane() / 4, second = lane() % 4 * 2;
  const auto work = [=] {
    float left[2][16], right[COUNT / 2][16];
    for (int k = 0; k < 16; k++) {
      for (int i = 0; i < 2; i++) left[i][k] = number_of(a, first + i * 8, k, A_ACROSS);
      for (int i = 0; i < COUNT / 2; i++) right[i][k] = number_of(b, i / 2 * 8 + second + i % 2, k, B_ACROSS);
    }
    for (int i = 0; i < COUNT; i++)
      for (int k = 0; k < 16; k++) d[i] += left[i / 2 % 2][k] * right[i / 4 * 2 + i % 2][k];
  };
  auto& own = products[current];
  if (own.empty()) own.emplace_back();
  early_copies ? work() : own.back().push_back(work);
}
static void begin_products() {}
static void commit_products() { products[current].emplace_back(); }
template <int ALL_BUT>
static void wait_for_products() {
  auto& own = products[current];
  for (; own.size() > ALL_BUT + 1; own.erase(own.begin()))
    for (auto& work : own.front()) work();
}
template <int COUNT>
static void wait_for_sums(float (&)[COUNT]) { wait_for_products<0>(); }
static void show_to_products() {}
template <int EACH>
static void take_registers() {}
template <int EACH>
static void leave_registers() {}

template <class... A, size_t... I>
static void call(void (*kernel)(A...), void** given, std::index_sequence<I...>) {
  kernel(*(A*)given[I]...);
}
static void (*body)(void**);
static void** arguments;
static void live() {
  body(arguments);
  fibers[current].done = true;
  events++;
  pause();
}

// Runs a kernel for all blocks of a grid, one cluster after another, with so many bytes of shared memory.
static void on_grid(void (*own)(void**), int across, int down, int threads, int shared, void** given) {
  body = own, arguments = given;
  gridDim = {across, down};
  for (int y = 0; y < down; y++)
    for (int x = 0; x < across; x += TOGETHER) {
      std::memset(memory, 0xff, sizeof memory);  // what nobody wrote is not a number
      for (auto& kept : kept_memory) kept.assign(sizeof memory, 0xff);
      fibers = std::vector<Fiber>(threads * TOGETHER);
      warps.assign(fibers.size() / 32, {0, 0});
      std::memset(meetings, 0, sizeof meetings), cluster = {0, 0};
      for (Fiber& fiber : fibers) {
        fiber.stack.resize(64 * 1024);
        fiber.done = false, fiber.calls = 0;
        fiber.groups.resize(1);
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack.data();
        fiber.context.uc_stack.ss_size = fiber.stack.size();
        fiber.context.uc_link = nullptr;
        makecontext(&fiber.context, live, 0);
      }
      for (bool left = true; left;) {
        const long before = events;
        left = false;
        for (int i = 0; i < (int)warps.size(); i++) {
          const int warp = early_copies ? warps.size() - 1 - i : i;
          turn_to(warp * 32 / threads);
          for (long seen = -1; seen != events;) {  // as far as it gets without the others
            seen = events;
            for (current = warp * 32; current < warp * 32 + 32; current++) {
              if (fibers[current].done) continue;
              left = true;
              threadIdx = {current - running * threads, 0};
              blockIdx = {x + running, y};
              swapcontext(&scheduler, &fibers[current].context);
            }
          }
        }
        expect(!left || events > before, "all wait for each other");
      }
      for (int block = 0; block < TOGETHER; block++) {
        turn_to(block);
        const unsigned char* end = (const unsigned char*)memory;
        for (size_t i = shared; i < sizeof memory; i++) expect(end[i] == 0xff, "too little shared memory");
      }
    }
}
template <class... A>
static void unpack(void (*kernel)(A...), void** given) {
  call(kernel, given, std::index_sequence_for<A...>{});
}
